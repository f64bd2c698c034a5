//! The house rules that neither clippy nor cargo-deny can check, over all files that git tracks.
//!
//! A rule reads a `Tree` (paths and texts) and returns `Violation`s; it touches no disk, so that
//! `tests` can show for each rule what fails and what passes. Rules read lines, not tokens: they
//! are good for code that rustfmt has laid out. Which crate may depend on which is in `deny.toml`.

mod atomics;
mod lines;
mod links;
mod promises;
#[cfg(test)]
mod tests;
mod world;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::run;

/// Checks the working tree; prints every violation.
pub fn run() -> Result<(), String> {
    let tree = Tree::read(&run::root())?;
    let violations = check(&tree);
    for violation in &violations {
        println!("{violation}");
    }
    let files = tree.files.len();
    match violations.len() {
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

/// Every rule over the tree, in the order of files and lines.
fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    atomics::check(tree, &mut violations);
    lines::check(tree, &mut violations);
    promises::check(tree, &mut violations);
    links::check(tree, &mut violations);
    world::check(tree, &mut violations);
    violations.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    violations
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
}

struct File {
    /// From the workspace's directory, with `/`.
    path: String,
    text: String,
    /// The first line, from 1, of what only tests are built with; 1 in a file of tests.
    tests_line: usize,
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
        Ok(Self::of(files))
    }

    fn of(files: Vec<(String, String)>) -> Self {
        let files = files.into_iter().map(|(path, text)| {
            let tests_line = match is_test_path(&path) {
                true => 1,
                false => tests_line(&text),
            };
            File { path, text, tests_line }
        });
        Self { files: files.collect() }
    }

    fn sources(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }
}

impl File {
    /// Lines without their comments, counted from 1.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, parts(line).0))
    }
}

fn is_test_path(path: &str) -> bool {
    let mut parts = path.split('/');
    path.ends_with("/tests.rs")
        || parts.any(|part| matches!(part, "tests" | "benches" | "examples"))
}

/// Where the module of tests begins at a file's end; behind the end where there is none.
fn tests_line(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    if lines.contains(&"#![cfg(test)]") {
        return 1;
    }
    let is_tests = |line: &&str| {
        let is_module = line
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub(super) ")
            .starts_with("mod ");
        is_module && line.ends_with('{')
    };
    let begins = |index: &usize| {
        let (line, rest) = (lines[*index], &lines[*index + 1..]);
        let item = rest.iter().find(|line| !line.starts_with("#["));
        line.starts_with("#[cfg(") && line.contains("test") && item.is_some_and(is_tests)
    };
    let index = (0..lines.len()).find(begins);
    index.map_or(lines.len() + 1, |index| index + 1)
}

/// A line's code and its comment.
fn parts(line: &str) -> (&str, &str) {
    let is_comment = |at: &usize| {
        !line[..*at].ends_with(':') && line[..*at].matches('"').count().is_multiple_of(2)
    };
    let at = line.match_indices("//").map(|(at, _)| at).find(is_comment);
    line.split_at(at.unwrap_or(line.len()))
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
