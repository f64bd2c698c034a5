//! What rackpool promises: `docs/promises.toml` and `docs/measurements.toml`, the document that is
//! written from them (SPECIFICATION.md), and whether each promise is held by tests that exist.
//!
//! A test is named by its crate and its function, so that it may change its file.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{Tree, Violation};

const PROMISES: &str = "docs/promises.toml";
/// What was measured of it.
const MEASUREMENTS: &str = "docs/measurements.toml";
/// What is written from both.
pub const DOCUMENT: &str = "SPECIFICATION.md";

const RULE: &str = "promise";

const HEAD: &str = "\
# Specification

<!-- Written by `cargo xtask promises --bless` from docs/promises.toml, docs/measurements.toml. -->

What rackpool promises. Each promise is held by tests, or by the command beside it:
`cargo xtask promises WORDS` prints those that have these words, with their tests.
`cargo xtask tidy` checks that tests exist and that this page is what its sources say. Words are
those of the [glossary](ARCHITECTURE.md#glossary).
";

/// All of `docs/promises.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Promises {
    area: Vec<Area>,
    promise: Vec<Promise>,
    /// What is known and not done.
    #[serde(default)]
    gaps: Vec<String>,
}

/// A chapter; the ids of its promises are its own id and a number.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Area {
    id: String,
    title: String,
    note: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Promise {
    id: String,
    /// Left out where the name of the one test says it.
    promise: Option<String>,
    bound: Option<String>,
    test: Option<String>,
    #[serde(default)]
    tests: Vec<String>,
    command: Option<String>,
}

/// All of `docs/measurements.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Measurements {
    machine: Vec<MeasuredMachine>,
    measurement: Vec<Measurement>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredMachine {
    id: String,
    is: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Measurement {
    promise: String,
    measured: String,
    machine: String,
    date: String,
}

impl Promise {
    fn area(&self) -> &str {
        self.id.trim_end_matches(|c: char| c.is_ascii_digit())
    }

    fn tests(&self) -> impl Iterator<Item = &str> {
        self.test.iter().chain(&self.tests).map(String::as_str)
    }

    /// What is promised, in words.
    fn says(&self) -> String {
        if let Some(promise) = &self.promise {
            return promise.clone();
        }
        let name = self.tests().next().and_then(|test| test.split_once(": ")).unwrap_or_default().1;
        let mut words = name.replace('_', " ");
        if let Some(first) = words.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        words
    }
}

/// Both sources, read and consistent in themselves.
pub struct Sources {
    promises: Promises,
    measurements: Measurements,
}

impl Sources {
    /// From the texts of the two files.
    ///
    /// # Errors
    ///
    /// With the file and the reason: no TOML, an unknown field, an id twice or of no chapter, a
    /// promise that nothing holds, a measurement of nothing.
    fn parse(promises: &str, measurements: &str) -> Result<Self, String> {
        let promises = toml::from_str(promises).map_err(|e| format!("{PROMISES}: {e}"))?;
        let measurements =
            toml::from_str(measurements).map_err(|e| format!("{MEASUREMENTS}: {e}"))?;
        let sources = Self { promises, measurements };
        sources.check()?;
        Ok(sources)
    }

    fn of(tree: &Tree) -> Result<Self, String> {
        let text = |path: &str| {
            let file = tree.files.iter().find(|file| file.path == path);
            file.map(|file| file.text.as_str()).ok_or_else(|| format!("{path} is not there"))
        };
        Self::parse(text(PROMISES)?, text(MEASUREMENTS)?)
    }

    fn check(&self) -> Result<(), String> {
        let areas: BTreeSet<&str> = self.promises.area.iter().map(|a| a.id.as_str()).collect();
        let mut ids = BTreeSet::new();
        for promise in &self.promises.promise {
            let id = promise.id.as_str();
            let tests = promise.tests().count();
            let why = if !ids.insert(id) {
                "is there twice"
            } else if !areas.contains(promise.area()) {
                "is of no chapter"
            } else if tests == 0 && promise.command.is_none() {
                "is held by no test and no command"
            } else if promise.promise.is_none() && tests != 1 {
                "says nothing, and has not one test with a name that would"
            } else {
                continue;
            };
            return Err(format!("{PROMISES}: {id} {why}"));
        }
        for one in &self.measurements.measurement {
            if !ids.contains(one.promise.as_str()) {
                return Err(format!("{MEASUREMENTS}: no promise {}", one.promise));
            }
            if !self.measurements.machine.iter().any(|machine| machine.id == one.machine) {
                return Err(format!("{MEASUREMENTS}: no machine {}", one.machine));
            }
        }
        Ok(())
    }

    /// Promises with these words in their id, text or tests, each with what holds it.
    pub fn find(&self, words: &str) -> String {
        let wanted = words.to_lowercase();
        let mut text = String::new();
        for promise in &self.promises.promise {
            let command = promise.command.as_deref();
            let held: Vec<&str> = promise.tests().chain(command).collect();
            let entry = format!("{} {}\n  {}\n", promise.id, promise.says(), held.join("\n  "));
            if entry.to_lowercase().contains(&wanted) {
                text += &entry;
            }
        }
        text
    }

    /// SPECIFICATION.md.
    pub fn render(&self) -> String {
        let mut text = HEAD.to_owned();
        for area in &self.promises.area {
            text += &format!("\n## {}\n\n", area.title);
            area.note.iter().for_each(|note| text += &format!("{note}\n\n"));
            text += &self.render_table(&area.id);
        }
        text += "\n## Known gaps\n\n";
        self.promises.gaps.iter().for_each(|gap| text += &format!("- {gap}\n"));
        text
    }

    /// The promises of a chapter, with bounds, commands and figures if any of them has one.
    fn render_table(&self, area: &str) -> String {
        let all = self.promises.promise.iter();
        let promises: Vec<_> = all.filter(|promise| promise.area() == area).collect();
        let figures = |id: &str| self.measurements.measurement.iter().find(|m| m.promise == id);
        let has_bounds = promises.iter().any(|promise| promise.bound.is_some());
        let has_commands = promises.iter().any(|promise| promise.command.is_some());
        let has_figures = promises.iter().any(|promise| figures(&promise.id).is_some());
        if !has_bounds && !has_commands && !has_figures {
            return promises.iter().map(|promise| format!("- {}\n", promise.says())).collect();
        }
        let mut rows = vec![vec!["Promise".to_owned(), "Bound".into(), "Command".into()]];
        rows[0].extend(["Measured".into(), "On".into()]);
        rows.push(vec!["---".to_owned(); 5]);
        for promise in promises {
            let bound = promise.bound.clone().unwrap_or_default();
            let command = promise.command.iter().map(|command| format!("`{command}`")).collect();
            let mut row = vec![promise.says(), bound, command];
            row.extend(match figures(&promise.id) {
                Some(one) => [one.measured.clone(), format!("{}, {}", one.machine, one.date)],
                None => [String::new(), String::new()],
            });
            rows.push(row);
        }
        let mut text = String::new();
        for mut row in rows {
            row.truncate(if has_figures { 5 } else { 3 });
            if !has_commands {
                row.remove(2);
            }
            if !has_bounds {
                row.remove(1);
            }
            text += &format!("{}\n", row.join("|").trim_end_matches('|'));
        }
        if has_figures {
            let machines = self.measurements.machine.iter();
            let machines = machines.map(|machine| format!("{}: {}.", machine.id, machine.is));
            text += &format!("\n{}\n", machines.collect::<Vec<_>>().join(" "));
        }
        text
    }
}

/// The sources from their texts, as tests have them.
#[cfg(test)]
pub fn sources(promises: &str, measurements: &str) -> Result<Sources, String> {
    Sources::parse(promises, measurements)
}

/// The sources as they are in the working tree.
pub fn read(root: &std::path::Path) -> Result<Sources, String> {
    let text = |path: &str| {
        let path = root.join(path);
        std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
    };
    Sources::parse(&text(PROMISES)?, &text(MEASUREMENTS)?)
}

/// The document is what its sources say, and every test that they name is there.
pub fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    let Some(source) = tree.files.iter().find(|file| file.path == PROMISES) else { return };
    let mut found = |path: &str, line: usize, message: String| {
        violations.push(Violation { rule: RULE, path: path.to_owned(), line, message });
    };
    let sources = match Sources::of(tree) {
        Ok(sources) => sources,
        Err(why) => return found(PROMISES, 0, why),
    };
    let there = Tests::of(tree);
    for test in sources.promises.promise.iter().flat_map(Promise::tests) {
        if !there.has(test) {
            let line = source.text.lines().position(|line| line.contains(&format!("\"{test}\"")));
            let line = line.map_or(0, |index| index + 1);
            found(PROMISES, line, format!("there is no test `{test}`"));
        }
    }
    let document = tree.files.iter().find(|file| file.path == DOCUMENT);
    if document.is_none_or(|document| document.text != sources.render()) {
        let why = "is not what its sources say: run `cargo xtask promises --bless`";
        found(DOCUMENT, 0, why.to_owned());
    }
}

/// Functions and files of test code, each behind its crate.
struct Tests(BTreeSet<String>);

impl Tests {
    fn of(tree: &Tree) -> Self {
        let mut tests = BTreeSet::new();
        for file in tree.sources() {
            let path = file.path.strip_prefix("crates/").unwrap_or(&file.path);
            let Some((name, rest)) = path.split_once('/') else { continue };
            let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
            for (index, line) in lines.iter().enumerate() {
                let line = line.trim_start_matches("pub ");
                let function =
                    line.strip_prefix("fn ").and_then(|rest| rest.split(['(', '<']).next());
                // The attribute stands a few lines above, with others.
                let is_test = || lines[index.saturating_sub(4)..index].contains(&"#[test]");
                if let Some(function) =
                    function.filter(|_| index + 1 >= file.tests_line || is_test())
                {
                    tests.insert(format!("{name}: {function}"));
                }
            }
            if file.tests_line == 1 {
                let file = rest.rsplit('/').next().unwrap_or(rest);
                tests.insert(format!("{name}: {file}"));
            }
        }
        Self(tests)
    }

    fn has(&self, test: &str) -> bool {
        self.0.contains(test)
    }
}
