//! Rules on lines and files.

use super::{File, Tree, Violation, parts};

/// Words in comments that promise later work. Written in two parts, as the next list, lest this
/// file break its own rules.
const PROMISES: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];

/// Paths of one person's machine.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// Files that are searched for promises, beside Rust.
const SCRIPTS: &[&str] = &[".toml", ".sh", ".py", ".c", ".h", ".yml", ".yaml"];

const LINE_CHARS_MAX: usize = 100;
/// Without the module of tests at its end.
const FILE_LINES_MAX: usize = 800;

/// Where unsafe code may be.
const UNSAFE: &[&str] = &["crates/mem/", "crates/fabric/", "crates/tiers-alloc/", "bindings/"];

/// Engines of the core that meet in `wire` only.
const ENGINES: &[&str] = &["client", "daemon", "master"];

pub fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    for file in &tree.files {
        let mut add = |rule: &'static str, line: usize, message: String| {
            violations.push(Violation { rule, path: file.path.clone(), line, message });
        };
        for (index, line) in file.text.lines().enumerate() {
            for path in MACHINE_PATHS.iter().filter(|path| is_absolute(line, path)) {
                add("machine-path", index + 1, format!("`{path}` is a path of one machine"));
            }
            let is_script = SCRIPTS.iter().any(|end| file.path.ends_with(end));
            for word in PROMISES.iter().filter(|word| promises(line, word)) {
                if is_script || file.path.ends_with(".rs") || file.text.starts_with("#!/") {
                    add("unfinished", index + 1, format!("`{word}`: do it or write an issue"));
                }
            }
        }
        if file.path.ends_with(".rs") {
            rust(file, &mut add);
        }
    }
}

fn rust(file: &File, add: &mut impl FnMut(&'static str, usize, String)) {
    if !file.text.trim_start().starts_with("//!") {
        add("module-doc", 1, "a file begins with `//!`: what it owns, what calls it".into());
    }
    if file.tests_line > FILE_LINES_MAX + 1 {
        let lines = file.tests_line - 1;
        add("file-length", 0, format!("{lines} lines before the tests, limit {FILE_LINES_MAX}"));
    }
    let is_fenced = !UNSAFE.iter().any(|folder| file.path.starts_with(folder));
    let is_table = file.path.starts_with("crates/table/src/");
    for (index, line) in file.text.lines().enumerate() {
        let is_long = line.len() > LINE_CHARS_MAX && line.chars().count() > LINE_CHARS_MAX;
        // An address cannot be broken.
        if is_long && !line.contains("://") {
            add("line-length", index + 1, format!("more than {LINE_CHARS_MAX} characters"));
        }
    }
    for (line, code) in file.code() {
        if is_fenced && words(code).any(|word| word == "unsafe") && !code.contains('"') {
            add("unsafe-fence", line, format!("unsafe code belongs in {}", UNSAFE.join(", ")));
        }
        if line < file.tests_line && code.contains(concat!(".unwrap", "()")) {
            let advice = "`unwrap` outside tests: return an error, or `expect` a reason";
            add("no-unwrap", line, advice.into());
        }
        // The pool's hash table proves that the public API is enough.
        if is_table && words(code).any(|word| word.starts_with("rackpool_")) {
            add("crate-arrows", line, "the table uses the public API `rackpool` only".into());
        }
    }
    attributes(file, add);
    walls(file, add);
}

/// Documentation stands before attributes: what is inserted between the two takes attributes that
/// were meant for what follows, `#[inline(never)]` for one.
fn attributes(file: &File, add: &mut impl FnMut(&'static str, usize, String)) {
    let lines = file.text.lines().map(str::trim);
    for (index, (line, next)) in lines.clone().zip(lines.skip(1)).enumerate() {
        if line.starts_with("#[") && line.ends_with(']') && next.starts_with("///") {
            add("doc-first", index + 2, "documentation stands before attributes".into());
        }
    }
}

/// No engine of the core names another.
fn walls(file: &File, add: &mut impl FnMut(&'static str, usize, String)) {
    let Some(inside) = file.path.strip_prefix("crates/core/src/") else { return };
    let own = inside.split(['/', '.']).next().unwrap_or_default();
    if !ENGINES.contains(&own) {
        return;
    }
    // What `use crate::{` and `use super::{` open is on the lines up to the next semicolon.
    let mut is_open = false;
    for (line, code) in file.code() {
        is_open |= code.contains("crate::{") || code.contains("super::{");
        for other in ENGINES.iter().filter(|other| **other != own) {
            let names = ["crate::", "super::"].map(|of| format!("{of}{other}::"));
            let is_part = is_open && words(code).any(|word| word == *other);
            if is_part || names.iter().any(|name| code.contains(name.as_str())) {
                let message = format!("`{own}` must not name `{other}`: they meet in `wire`");
                add("engine-walls", line, message);
            }
        }
        is_open &= !code.contains(';');
    }
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// In the middle of a longer path it is a directory's own name.
fn is_absolute(line: &str, path: &str) -> bool {
    line.match_indices(path)
        .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-/~}".contains(c)))
}

fn promises(line: &str, word: &str) -> bool {
    let comment = parts(line).1;
    let comment = if comment.is_empty() { line } else { comment };
    line.contains(word) && words(comment).any(|found| found == word)
}
