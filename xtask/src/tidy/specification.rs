//! Promises in SPECIFICATION.md name tests that exist.
//!
//! A test is named in backticks as `crates/x/tests/y.rs::name`. A file that does not exist yet is
//! accepted only on a line that says `pending`.

use super::{Tree, Violation};

const FILE: &str = "SPECIFICATION.md";

pub fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    let Some(document) = tree.files.iter().find(|file| file.path == FILE) else {
        return;
    };
    for (index, line) in document.text.lines().enumerate() {
        // The odd parts between backticks are code.
        for code in line.split('`').skip(1).step_by(2) {
            let Some((stem, name)) = code.split_once(".rs::") else {
                continue;
            };
            let path = format!("{stem}.rs");
            if let Some(message) = missing(tree, &path, name, line) {
                let (path, line) = (FILE.to_owned(), index + 1);
                violations.push(Violation { rule: "promise-test", path, line, message });
            }
        }
    }
}

fn missing(tree: &Tree, path: &str, name: &str, line: &str) -> Option<String> {
    let name = name.rsplit("::").next().unwrap_or(name).trim_end_matches("()");
    let Some((_, source)) = tree.sources().find(|(file, _)| file.path == path) else {
        let pending = line.to_lowercase().contains("pending");
        return (!pending).then(|| format!("no file {path}, and the line does not say `pending`"));
    };
    let there = source.functions.iter().any(|function| function.name == name);
    (!there).then(|| format!("{path} has no function `{name}`"))
}
