//! Small plans for tests: the example with fewer designs, accesses and machines.

#![allow(dead_code)]

use rackpool_rack::plan::{self, Answer, Origin, Plan, Progress};
use std::sync::atomic::AtomicBool;

/// The example's text with words changed.
///
/// # Panics
/// If a word is not in it.
pub fn changed(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(plan::EXAMPLE.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "the example has no {from:?}");
        text.replacen(from, to, 1)
    })
}

/// What makes it take a second.
pub const SMALL: &[(&str, &str)] = &[
    ("accesses = 20000", "accesses = 600"),
    ("pod_machines = [8, 16]", "pod_machines = [16]"),
    ("pools = [2, 4]", "pools = [4]"),
    ("local_percent = [40, 60]", "local_percent = [40]"),
];

/// A small plan whose virtual machines leave `stranding` memory stranded.
pub fn small(stranding: &str) -> String {
    let word = format!("stranding = \"{stranding}\"");
    let change = [("stranding = \"much\"", word.as_str())];
    changed(&[SMALL, &change].concat())
}

pub fn work_out(text: &str, threads: usize) -> (Plan, Answer) {
    let question = Plan::from_toml(text).unwrap_or_else(|error| panic!("{error}"));
    let answer = with(threads, |progress| plan::work_out(&question, progress));
    (question, answer.unwrap_or_else(|error| panic!("{error}")))
}

pub fn with<T>(threads: usize, work: impl FnOnce(&Progress<'_>) -> T) -> T {
    let stop = AtomicBool::new(false);
    work(&Progress { threads, stop: &stop, told: &|_, _, _| {} })
}

pub fn origin(text: &str) -> Origin {
    Origin::new("a-test".into(), text)
}
