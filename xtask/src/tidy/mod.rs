//! The house rules that the compiler does not check, over all files that git tracks.
//!
//! A rule reads a `Tree` (file texts, already split into tokens and comments by `source`, and the
//! packages from `cargo metadata`) and returns `Violation`s; it touches no disk, so that `tests`
//! can show for each rule what fails and what passes. Three rules are ratcheted (`ratchet`): a
//! checked-in count per file that may only go down.

mod arrows;
mod atomics;
mod links;
mod promises;
mod ratchet;
mod source;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::run;
use ratchet::Ratchet;
use source::Source;

/// Where the ratchet's table lies.
const RATCHET: &str = "xtask/tidy-ratchet.txt";

/// What to do with the ratchet's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bless {
    No,
    /// Lower its entries to the present counts.
    Down,
    /// Take the present counts, higher ones too.
    Raise,
}

impl Bless {
    /// From the words of the command line; `None` is wrong usage.
    pub fn parse(words: &[&str]) -> Option<Self> {
        match words {
            [] => Some(Self::No),
            ["--bless"] => Some(Self::Down),
            ["--bless", "--raise"] | ["--raise", "--bless"] => Some(Self::Raise),
            _ => None,
        }
    }
}

/// Checks the working tree; prints every violation.
pub fn run(bless: Bless) -> Result<(), String> {
    let root = run::root();
    let tree = Tree::read(&root)?;
    let table = fs::read_to_string(root.join(RATCHET)).unwrap_or_default();
    let mut ratchet = Ratchet::parse(&table)?;
    if bless != Bless::No {
        ratchet.bless(&ratchet::measure(&tree), bless == Bless::Raise);
        let path = root.join(RATCHET);
        fs::write(&path, ratchet.print()).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let report = check(&tree, &ratchet);
    for violation in &report.violations {
        println!("{violation}");
    }
    for notice in &report.notices {
        println!("note: {notice}");
    }
    let files = tree.files.len();
    match report.violations.len() {
        0 => {
            println!("tidy: {files} files are clean");
            Ok(())
        }
        count => Err(format!("{count} violations in {files} files, listed above")),
    }
}

/// Writes SPECIFICATION.md anew, or prints promises with their tests, or checks all of them.
pub fn promises(words: &[&str]) -> Result<(), String> {
    let root = run::root();
    let sources = promises::read(&root)?;
    match words {
        ["--bless"] => {
            let path = root.join(promises::DOCUMENT);
            fs::write(&path, sources.render()).map_err(|e| format!("{}: {e}", path.display()))
        }
        [words] => {
            print!("{}", sources.find(words));
            Ok(())
        }
        _ => {
            let mut violations = Vec::new();
            promises::check(&Tree::read(&root)?, &mut violations);
            violations.iter().for_each(|violation| println!("{violation}"));
            match violations.len() {
                0 => Ok(()),
                count => Err(format!("{count} promises are not as they say, listed above")),
            }
        }
    }
}

/// Every rule over the tree.
fn check(tree: &Tree, ratchet: &Ratchet) -> Report {
    let mut violations = Vec::new();
    arrows::check(tree, &mut violations);
    atomics::check(tree, &mut violations);
    text::check(tree, &mut violations);
    promises::check(tree, &mut violations);
    links::check(tree, &mut violations);
    let notices = ratchet.check(&ratchet::measure(tree), &mut violations);
    violations.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Report { violations, notices }
}

/// What `check` found.
struct Report {
    violations: Vec<Violation>,
    notices: Vec<String>,
}

/// One place that breaks one rule.
#[derive(Debug)]
struct Violation {
    rule: &'static str,
    path: String,
    /// From 1; 0 means the file as a whole.
    line: usize,
    message: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rule, path, line, message } = self;
        write!(f, "{path}:{line}: {rule}: {message}")
    }
}

/// All that the rules may look at.
struct Tree {
    files: Vec<File>,
    packages: Vec<Package>,
}

struct File {
    /// From the workspace's directory, with `/`.
    path: String,
    text: String,
    source: Option<Source>,
    /// Whether the whole file is test code.
    test: bool,
}

/// One package of the workspace.
struct Package {
    name: String,
    manifest: String,
    /// Names of all dependencies, of every kind, that lie in the workspace.
    dependencies: Vec<String>,
    /// Paths of `lib.rs`, `main.rs` and other crate roots of libraries and binaries.
    roots: Vec<String>,
}

impl Tree {
    fn read(root: &Path) -> Result<Self, String> {
        let mut files = Vec::new();
        for path in tracked(root)? {
            // Not UTF-8 means binary; not there means deleted but not yet committed.
            if let Ok(text) = fs::read_to_string(root.join(&path)) {
                files.push((path, text));
            }
        }
        Ok(Self::of(files, packages(root)?))
    }

    fn of(files: Vec<(String, String)>, packages: Vec<Package>) -> Self {
        let mut files: Vec<File> = files
            .into_iter()
            .map(|(path, text)| {
                let source = path.ends_with(".rs").then(|| Source::parse(&text));
                File { path, text, source, test: false }
            })
            .collect();
        let modules = test_modules(&files);
        for file in &mut files {
            file.test = is_test_path(&file.path)
                || file.source.as_ref().is_some_and(|source| source.all_test)
                || modules.iter().any(|module| {
                    let rest = file.path.strip_prefix(module.as_str());
                    rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
                });
        }
        Self { files, packages }
    }

    /// All Rust files with their tokens.
    fn sources(&self) -> impl Iterator<Item = (&File, &Source)> {
        self.files.iter().filter_map(|file| Some((file, file.source.as_ref()?)))
    }
}

impl File {
    /// Whether the line is test code: the whole file, or a `#[cfg(test)]` item around the line.
    fn is_test(&self, line: usize) -> bool {
        self.test || self.source.as_ref().is_some_and(|source| source.is_test(line))
    }
}

fn is_test_path(path: &str) -> bool {
    let mut parts = path.split('/');
    path.ends_with("/tests.rs") || parts.any(|part| matches!(part, "tests" | "benches" | "fuzz"))
}

/// Paths, without `.rs`, of the modules that are declared `#[cfg(test)] mod name;`.
fn test_modules(files: &[File]) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    for file in files {
        let Some(source) = &file.source else { continue };
        let (directory, name) = file.path.rsplit_once('/').unwrap_or((".", &file.path));
        for module in &source.test_modules {
            modules.insert(match name {
                "lib.rs" | "main.rs" | "mod.rs" => format!("{directory}/{module}"),
                _ => format!("{directory}/{}/{module}", name.trim_end_matches(".rs")),
            });
        }
    }
    modules
}

fn tracked(root: &Path) -> Result<Vec<String>, String> {
    // A checkout that belongs to another user, as in a container, is read all the same.
    let output = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cannot start git: {e}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git ls-files failed: {}", why.trim()));
    }
    let names = String::from_utf8_lossy(&output.stdout);
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata failed: {}", why.trim()));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|e| format!("cargo metadata is not JSON: {e}"))?;
    Ok(packages_of(&metadata))
}

fn packages_of(metadata: &Value) -> Vec<Package> {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let root = text(metadata, "workspace_root");
    let inside = |path: &str| {
        let path = path.strip_prefix(&root).unwrap_or(path);
        path.trim_start_matches('/').to_owned()
    };
    let is_root = |target: &Value| {
        let kinds = list(target, "kind");
        kinds.iter().filter_map(Value::as_str).any(|kind| kind == "bin" || kind.contains("lib"))
    };
    let package = |package: &Value| {
        let dependencies = list(package, "dependencies");
        let targets = list(package, "targets");
        let ours = |dependency: &&Value| {
            dependency["path"].as_str().is_some_and(|path| path.starts_with(&root))
        };
        Package {
            name: text(package, "name"),
            manifest: inside(&text(package, "manifest_path")),
            dependencies: dependencies.iter().filter(ours).map(|d| text(d, "name")).collect(),
            roots: targets
                .iter()
                .filter(|t| is_root(t))
                .map(|t| inside(&text(t, "src_path")))
                .collect(),
        }
    };
    list(metadata, "packages").iter().map(package).collect()
}
