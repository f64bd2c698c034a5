//! Who may depend on whom: the arrows between crates, and the walls inside `rackpool-core`.

use super::source::Source;
use super::{File, Package, Tree, Violation};

/// Every package of the workspace, and which of ours it may name in its manifest (as a dependency
/// of any kind). The order is bottom up.
const ARROWS: &[(&str, &[&str])] = &[
    ("rackpool-core", &[]),
    ("rackpool-stats", &[]),
    ("rackpool-hw", &["rackpool-core"]),
    ("rackpool", &["rackpool-core", "rackpool-hw"]),
    ("rackpool-sim", &["rackpool-core", "rackpool-hw"]),
    ("rackpool-rack", &["rackpool-core", "rackpool-sim", "rackpool-stats"]),
    ("rackpool-kv", &["rackpool", "rackpool-core", "rackpool-hw", "rackpool-sim"]),
    ("rackpool-fs", &["rackpool"]),
    (
        "rackpool-bench",
        &[
            "rackpool",
            "rackpool-kv",
            "rackpool-rack",
            "rackpool-sim",
            "rackpool-stats",
            "rackpool-hw",
            "rackpool-core",
        ],
    ),
    (
        "rackpool-cli",
        &[
            "rackpool",
            "rackpool-bench",
            "rackpool-core",
            "rackpool-fs",
            "rackpool-hw",
            "rackpool-kv",
            "rackpool-rack",
            "rackpool-sim",
            "rackpool-stats",
        ],
    ),
    ("xtask", &[]),
];

/// Engines of the core that meet in `wire` only.
const ENGINES: &[&str] = &["client", "daemon", "master"];

const CORE: &str = "crates/core/src/";

/// The pool's hash table, which proves that the public API is enough.
const TABLE: &str = "crates/kv/src/table";

pub fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    for package in &tree.packages {
        crates(package, violations);
        forbids_unsafe(tree, package, violations);
    }
    for (file, source) in tree.sources() {
        if let Some(inside) = file.path.strip_prefix(CORE) {
            engines(file, source, inside, violations);
        }
        if file.path.starts_with(TABLE) {
            public_api_only(file, source, violations);
        }
    }
}

fn crates(package: &Package, violations: &mut Vec<Violation>) {
    let mut wrong = |message: String| {
        let path = package.manifest.clone();
        violations.push(Violation { rule: "crate-arrows", path, line: 0, message });
    };
    let Some((name, allowed)) = ARROWS.iter().find(|(name, _)| *name == package.name) else {
        let name = &package.name;
        return wrong(format!("unknown crate {name}: enter it in xtask/src/tidy/arrows.rs"));
    };
    for dependency in &package.dependencies {
        if !allowed.contains(&dependency.as_str()) {
            let list =
                if allowed.is_empty() { "none of ours".to_owned() } else { allowed.join(", ") };
            wrong(format!("{name} must not depend on {dependency}; it may on {list}"));
        }
    }
}

/// Every crate root says that it holds no unsafe code, except where unsafe code belongs.
fn forbids_unsafe(tree: &Tree, package: &Package, violations: &mut Vec<Violation>) {
    if package.name == "rackpool-hw" || package.manifest.starts_with("bindings/") {
        return;
    }
    for root in &package.roots {
        let found = tree.sources().find(|(file, _)| file.path == *root);
        // Not tracked yet: `git add` brings it into view.
        let Some((_, source)) = found else { continue };
        let says = |level: &str| {
            let words = ["#", "!", "[", level, "(", "unsafe_code"];
            (0..source.count()).any(|index| source.stands(index, &words))
        };
        let core = package.name == "rackpool-core";
        if says("forbid") || says("deny") && !core {
            continue;
        }
        let message = "the crate root lacks `#![forbid(unsafe_code)]`".to_owned();
        violations.push(Violation { rule: "unsafe-fence", path: root.clone(), line: 1, message });
    }
}

fn engines(file: &File, source: &Source, inside: &str, violations: &mut Vec<Violation>) {
    let module = module_of(inside);
    let Some(own) = module.first().copied().filter(|name| ENGINES.contains(name)) else {
        return;
    };
    for (path, line) in paths(source) {
        let Some(other) = resolve(&path, &module) else {
            continue;
        };
        if ENGINES.contains(&other) && other != own {
            let path = file.path.clone();
            let message = format!("`{own}` must not name `{other}`: they meet in `wire`");
            violations.push(Violation { rule: "engine-walls", path, line, message });
        }
    }
}

/// `client/cache.rs` is `[client, cache]`.
fn module_of(inside: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
    if matches!(parts.last(), Some(&"mod" | &"lib")) {
        parts.pop();
    }
    parts
}

/// Paths that begin with `crate`, `super` or `self`, in `use` items and elsewhere.
fn paths(source: &Source) -> Vec<(Vec<&str>, usize)> {
    let mut paths = Vec::new();
    for (path, index) in source.imports() {
        let depth = source.module_depth(index);
        paths.push((leave_inline_modules(path, depth), source.line(index)));
    }
    for index in 0..source.count() {
        let begins = matches!(source.token(index), "crate" | "super" | "self");
        if !begins || source.before(index, 1) == ":" || source.in_use(index) {
            continue;
        }
        let mut path = vec![source.token(index)];
        let mut at = index + 1;
        while source.stands(at, &[":", ":"]) {
            path.push(source.token(at + 2));
            at += 3;
        }
        let depth = source.module_depth(index);
        paths.push((leave_inline_modules(path, depth), source.line(index)));
    }
    paths
}

/// Takes off each `super` that only leaves an inline module (`mod tests { … }`) of the file.
fn leave_inline_modules(path: Vec<&str>, depth: usize) -> Vec<&str> {
    let supers = path.iter().take_while(|part| **part == "super").count();
    let inline = depth.min(supers);
    if inline == 0 {
        return path;
    }
    let mut rest = vec!["self"];
    rest.extend(&path[inline..]);
    rest
}

/// The first part of the path, seen from the crate's root.
fn resolve<'a>(path: &[&'a str], module: &[&'a str]) -> Option<&'a str> {
    let mut full: Vec<&str> = match *path.first()? {
        "crate" => Vec::new(),
        "self" | "super" => module.to_vec(),
        _ => return None,
    };
    for part in path {
        match *part {
            "crate" | "self" => {}
            "super" => {
                full.pop();
            }
            name => full.push(name),
        }
    }
    full.first().copied()
}

fn public_api_only(file: &File, source: &Source, violations: &mut Vec<Violation>) {
    for index in 0..source.count() {
        let word = source.token(index);
        if word.starts_with("rackpool_") {
            let message = format!("the table uses the public API `rackpool` only, not `{word}`");
            let (path, line) = (file.path.clone(), source.line(index));
            violations.push(Violation { rule: "crate-arrows", path, line, message });
        }
    }
}
