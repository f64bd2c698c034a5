//! Rules on words and lines: what must not stand in the code, and how a file begins.

use super::source::Source;
use super::{File, Tree, Violation};

/// Words in comments that promise later work. Written in two parts, as the next list, lest this
/// file break its own rules.
const PROMISES: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];

/// Paths of one person's machine.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// Macros that mark unfinished work.
const MACROS: &[&str] = &["todo", "unimplemented", "dbg"];

/// Files whose comments are read for promises, beside Rust.
const SCRIPTS: &[&str] = &[".toml", ".sh", ".py", ".c", ".h", ".yml", ".yaml"];

pub fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    for file in &tree.files {
        let mut found = Found { file, violations };
        machine_paths(&mut found);
        match &file.source {
            Some(source) => {
                code(source, &mut found);
                comments(source, &mut found);
                beginning(&mut found);
                documentation(&mut found);
            }
            None => promises_in_scripts(&mut found),
        }
    }
}

/// Where violations of one file go.
struct Found<'a> {
    file: &'a File,
    violations: &'a mut Vec<Violation>,
}

impl Found<'_> {
    fn add(&mut self, rule: &'static str, line: usize, message: impl Into<String>) {
        let (path, message) = (self.file.path.clone(), message.into());
        self.violations.push(Violation { rule, path, line, message });
    }
}

fn machine_paths(found: &mut Found<'_>) {
    let file = found.file;
    for (index, line) in file.text.lines().enumerate() {
        for needle in MACHINE_PATHS {
            // In the middle of a longer path it is somebody's own directory name.
            let absolute = line.match_indices(needle).any(|(at, _)| {
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-/~}".contains(c))
            });
            if absolute {
                found.add(
                    "machine-path",
                    index + 1,
                    format!("`{needle}` is a path of one machine"),
                );
            }
        }
    }
}

fn code(source: &Source, found: &mut Found<'_>) {
    let path = &found.file.path;
    let fenced = !path.starts_with("crates/hw/") && !path.starts_with("bindings/");
    for index in 0..source.count() {
        let line = source.line(index);
        match source.token(index) {
            "unsafe" if fenced => {
                found.add("unsafe-fence", line, "unsafe code belongs in crates/hw or bindings");
            }
            name if MACROS.contains(&name) && is_macro_call(source, index) => {
                found.add("unfinished", line, format!("`{name}!` must not be committed"));
            }
            "unwrap" if is_bare_unwrap(source, index) && !found.file.is_test(line) => {
                let advice = "`.unwrap()` outside tests: return an error, or `expect` a reason";
                found.add("no-unwrap", line, advice);
            }
            "ignore" if is_bare_ignore(source, index) => {
                found.add("ignore-reason", line, "say why: `#[ignore = \"reason\"]`");
            }
            _ => {}
        }
    }
}

fn is_macro_call(source: &Source, index: usize) -> bool {
    // `todo != x` is a comparison.
    source.token(index + 1) == "!" && source.token(index + 2) != "="
}

fn is_bare_ignore(source: &Source, index: usize) -> bool {
    index >= 2 && source.stands(index - 2, &["#", "[", "ignore", "]"])
}

fn is_bare_unwrap(source: &Source, index: usize) -> bool {
    source.before(index, 1) == "." && source.stands(index + 1, &["(", ")"])
}

fn comments(source: &Source, found: &mut Found<'_>) {
    for (line, text) in source.comments() {
        for word in promises(text) {
            found.add("unfinished", *line, format!("`{word}`: do it or write an issue"));
        }
        if looks_like_code(text) {
            found.add("dead-code", *line, "commented-out code: delete it, git remembers");
        }
    }
}

fn promises(text: &str) -> impl Iterator<Item = &'static str> {
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    PROMISES.iter().copied().filter(move |promise| words.contains(promise))
}

/// Deliberately timid: prose must never be taken for code.
fn looks_like_code(comment: &str) -> bool {
    let Some(text) = comment.strip_prefix("//") else {
        return false;
    };
    if text.starts_with(['/', '!']) {
        return false;
    }
    let text = text.trim();
    let starts = |words: &[&str]| words.iter().any(|word| text.starts_with(word));
    let opens = text.ends_with('{');
    let ends = text.ends_with(';');
    if starts(&["let "]) {
        return ends && text.contains(" = ");
    }
    if starts(&["use ", "pub use "]) {
        return ends && text.contains("::");
    }
    if starts(&["fn ", "pub fn ", "pub(crate) fn "]) {
        return opens && text.contains('(');
    }
    if starts(&["if ", "for ", "while ", "match ", "impl ", "} else", "struct ", "pub struct "]) {
        return opens;
    }
    // `name.field.call(…);`, `path::call(…)?;`: a call that stands alone and has no space before
    // its bracket.
    let head = text.split('(').next().unwrap_or_default();
    let call = (text.ends_with(");") || text.ends_with(")?;")) && !head.is_empty();
    let name = |c: char| c.is_alphanumeric() || "_.:!&*".contains(c);
    call && head.chars().all(name) || starts(&["self."]) && ends && text.contains(" = ")
}

fn beginning(found: &mut Found<'_>) {
    let text = &found.file.text;
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    if !first.starts_with("//!") {
        found.add("module-doc", 1, "a file begins with `//!`: what it owns, who calls it");
    }
}

/// Documentation stands before attributes: what is inserted between the two takes attributes that
/// were meant for what follows, `#[inline(never)]` for one, and nobody notices.
fn documentation(found: &mut Found<'_>) {
    let file = found.file;
    let lines = file.text.lines().map(str::trim);
    for (index, (line, next)) in lines.clone().zip(lines.skip(1)).enumerate() {
        if line.starts_with("#[") && line.ends_with(']') && next.starts_with("///") {
            found.add("doc-first", index + 2, "documentation stands before attributes");
        }
    }
}

fn promises_in_scripts(found: &mut Found<'_>) {
    let file = found.file;
    if !SCRIPTS.iter().any(|end| file.path.ends_with(end)) && !file.text.starts_with("#!") {
        return;
    }
    for (index, line) in file.text.lines().enumerate() {
        for word in promises(line) {
            found.add("unfinished", index + 1, format!("`{word}`: do it or write an issue"));
        }
    }
}
