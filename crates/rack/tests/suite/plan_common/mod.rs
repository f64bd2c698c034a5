//! Small plans for tests: the example with fewer designs, accesses and machines.

#![allow(dead_code)]

use rackpool_core::addr::RackId;
use rackpool_core::placement::{
    Candidate, Choice, Order, PickRequest, Policy, Recorder, entries_of,
};
use rackpool_rack::live::{Counters, RackCounters, RecordHeader, RecordLine, SCHEMA};
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
    ("accesses = 4000", "accesses = 600"),
    ("pod_machines = [8, 16]", "pod_machines = [16]"),
    ("pools = [2, 4]", "pools = [4]"),
    ("local_percent = [40, 60]", "local_percent = [40]"),
];

/// A small plan with virtual machines that leave `stranding` memory stranded.
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

/// A recording of a master that chooses among four racks.
pub fn recording(choice: Choice, turns: u64) -> String {
    let policy = Policy { order: Order::Anywhere, choice };
    let header = RecordHeader { schema: SCHEMA.into(), master: "a test".into(), placement: policy };
    let (mut recorder, page) = (Recorder::new(choice, 5), 1u64 << 16);
    let mut used = [3u64, 1, 2, 2];
    for turn in 0..turns {
        (0..4).for_each(|rack| recorder.note_accesses(RackId(rack), turn * u64::from(rack)));
        let rack = |rack: u16| Candidate {
            rack: RackId(rack),
            alive: true,
            free_bytes: (100 - used[usize::from(rack)]) * page,
            used_bytes: used[usize::from(rack)] * page,
            promised_bytes: 0,
        };
        let racks = (0..4).map(rack).collect();
        let own = RackId((turn % 4) as u16);
        let request = PickRequest { own, bytes: page, tried: &[] };
        let chosen = recorder.pick(racks, request, turn * 1_000_000).unwrap();
        used[usize::from(chosen.0)] += 1;
    }
    let piece = recorder.read(0);
    let (entries, read) = entries_of(&piece.bytes).unwrap();
    assert_eq!(read, piece.bytes.len());
    let counters = |rack: u16| RackCounters {
        rack: RackId(rack),
        page_bytes: page,
        frames: 100,
        frames_free: 100 - used[usize::from(rack)],
        requests: 0,
        operations: 0,
    };
    let end = Counters { at_ns: turns * 1_000_000, racks: (0..4).map(counters).collect() };
    let lines =
        [RecordLine::Header(header)].into_iter().chain(entries.into_iter().map(RecordLine::Entry));
    lines.chain([RecordLine::Counters(end)]).map(|line| line.to_text()).collect()
}

pub fn origin(text: &str) -> Origin {
    Origin::new("a-test".into(), text)
}
