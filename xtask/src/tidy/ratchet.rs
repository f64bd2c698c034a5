//! Limits on lengths, with a checked-in table of what exceeds them today and may only shrink.
//!
//! Counts per file: `line-length` the number of lines over the limit, `function-length` and
//! `file-length` the number of lines beyond it, summed, so that a long function cannot grow either.

use std::collections::BTreeMap;

use super::source::Source;
use super::{File, Tree, Violation};

const LINE_CHARS_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 70;
/// Without the tests at its end.
const FILE_LINES_MAX: usize = 800;

const RULES: &[&str] = &["file-length", "function-length", "line-length"];

const HEADER: &str = "\
# What exceeds tidy's limits today: rule, file, count (see xtask/src/tidy/ratchet.rs).
# Counts only go down: `cargo xtask tidy --bless` lowers them, `--bless --raise` needs a reason.
";

#[derive(Default)]
pub struct Ratchet {
    entries: BTreeMap<Key, usize>,
}

type Key = (&'static str, String);

/// What one file has too much of.
pub struct Excess {
    count: usize,
    /// The first line concerned, and a description.
    places: Vec<(usize, String)>,
}

impl Ratchet {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut entries = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || format!("{}:{}: not `RULE FILE COUNT`", super::RATCHET, index + 1);
            let words: Vec<&str> = line.split_whitespace().collect();
            let [rule, path, count] = words.as_slice() else {
                return Err(wrong());
            };
            let rule = RULES.iter().find(|known| *known == rule).ok_or_else(wrong)?;
            let count = count.parse().map_err(|_| wrong())?;
            if entries.insert((*rule, (*path).to_owned()), count).is_some() {
                return Err(format!("{}, or twice", wrong()));
            }
        }
        Ok(Self { entries })
    }

    pub fn print(&self) -> String {
        let line = |((rule, path), count): (&Key, &usize)| format!("{rule} {path} {count}\n");
        HEADER.to_owned() + &self.entries.iter().map(line).collect::<String>()
    }

    /// Takes the present counts where they are lower, and with `raise` everywhere.
    pub fn bless(&mut self, measured: &BTreeMap<Key, Excess>, raise: bool) {
        let count = |key: &Key| measured.get(key).map_or(0, |excess| excess.count);
        for (key, allowed) in &mut self.entries {
            *allowed = count(key).min(*allowed);
        }
        if raise {
            let present = measured.iter().map(|(key, excess)| (key.clone(), excess.count));
            self.entries.extend(present);
        }
        self.entries.retain(|_, allowed| *allowed > 0);
    }

    /// Adds a violation for each place of a count that rose; returns notices on those that fell.
    pub fn check(
        &self,
        measured: &BTreeMap<Key, Excess>,
        violations: &mut Vec<Violation>,
    ) -> Vec<String> {
        for ((rule, path), excess) in measured {
            let allowed = self.entries.get(&(*rule, path.clone())).copied().unwrap_or(0);
            if excess.count <= allowed {
                continue;
            }
            for (line, what) in &excess.places {
                let message = match allowed {
                    0 => what.clone(),
                    _ => format!("{what}; {} in this file, {allowed} allowed", excess.count),
                };
                violations.push(Violation { rule, path: path.clone(), line: *line, message });
            }
        }
        let mut notices = Vec::new();
        for (key, allowed) in &self.entries {
            let count = measured.get(key).map_or(0, |excess| excess.count);
            if count < *allowed {
                let (rule, path) = key;
                notices.push(format!(
                    "{path}: {rule} fell from {allowed} to {count}: run `cargo xtask tidy --bless`"
                ));
            }
        }
        notices
    }
}

/// The present counts of all files that exceed a limit.
pub fn measure(tree: &Tree) -> BTreeMap<Key, Excess> {
    let mut measured = BTreeMap::new();
    for (file, source) in tree.sources() {
        let excesses = [lines(file), functions(source), length(file, source)];
        let rules = ["line-length", "function-length", "file-length"];
        for (rule, excess) in rules.into_iter().zip(excesses) {
            if excess.count > 0 {
                measured.insert((rule, file.path.clone()), excess);
            }
        }
    }
    measured
}

fn lines(file: &File) -> Excess {
    let mut places = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let chars = line.chars().count();
        // An address cannot be broken.
        if chars > LINE_CHARS_MAX && !line.contains("://") {
            places.push((index + 1, format!("{chars} characters, limit {LINE_CHARS_MAX}")));
        }
    }
    Excess { count: places.len(), places }
}

fn functions(source: &Source) -> Excess {
    let mut excess = Excess { count: 0, places: Vec::new() };
    for function in &source.functions {
        let lines = function.last - function.first + 1;
        if lines > FUNCTION_LINES_MAX {
            let what = format!("`{}` has {lines} lines, limit {FUNCTION_LINES_MAX}", function.name);
            excess.count += lines - FUNCTION_LINES_MAX;
            excess.places.push((function.first, what));
        }
    }
    excess
}

fn length(file: &File, source: &Source) -> Excess {
    let lines = source.tests_line.map_or(file.text.lines().count(), |line| line - 1);
    if lines <= FILE_LINES_MAX {
        return Excess { count: 0, places: Vec::new() };
    }
    let what = format!("{lines} lines before the tests, limit {FILE_LINES_MAX}");
    Excess { count: lines - FILE_LINES_MAX, places: vec![(FILE_LINES_MAX + 1, what)] }
}
