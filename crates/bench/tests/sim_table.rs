//! The pool's hash table in simulated runs, by fixed seeds: every key is linearizable under all
//! faults, no memory is lost, and buckets split, words are retired and sweeps are killed meanwhile.
#![cfg(feature = "lab")]

use rackpool_bench::sim_table::run_seed;
use rackpool_sim::run::{Config, FaultSet, Group, Sweep, sweep};
use rackpool_sim::stored::{StoredSeed, files};
use std::ops::ControlFlow;
use std::path::Path;

/// `cargo xtask soak seeds` runs more of them.
const SEEDS: u64 = 200;
const OPERATIONS: [&str; 8] = [
    "table-get",
    "table-insert",
    "table-update",
    "table-put",
    "table-delete",
    "table-modify",
    "table-put-if",
    "table-put-many",
];

fn swept(config: &Config, seeds: u64) -> Sweep {
    let sum = sweep(config, 1, seeds, 2, &run_seed, &mut |_| ControlFlow::Continue(()));
    for one in &sum.failures {
        println!("{}", config.replay_command(one.seed));
    }
    assert!(sum.failures.is_empty(), "{} seeds failed: {:#?}", sum.failed_seeds, sum.failures);
    sum
}

#[test]
fn the_keys_of_a_table_are_linearizable_under_all_faults() {
    let times = std::env::var("RACKPOOL_SEEDS_TIMES").ok();
    let times: u64 =
        times.map_or(1, |times| times.parse().expect("RACKPOOL_SEEDS_TIMES is a number"));
    let seeds = SEEDS * times;
    let config = Config { operations: 1000, ..Config::default() };
    let counts = swept(&config, seeds).counts;
    for name in OPERATIONS {
        let done = counts.group(Group::Operation).find(|(of, how, _)| *of == name && *how == "ok");
        assert!(done.is_some_and(|(.., count)| 2 * count > seeds), "{name}: {done:?}");
    }
    let tables = ["tables", "table keys", "table splits", "table words retired"];
    for name in tables.into_iter().chain(["allocations swept", "sweeps cut short"]) {
        let count = counts.get(Group::Checked, name);
        println!("{name}: {count}");
        assert!(8 * count > seeds, "{name}: {count}");
    }
}

#[test]
fn without_faults_every_operation_of_a_table_succeeds() {
    let config = Config { faults: FaultSet::NONE, operations: 500, ..Config::default() };
    let counts = swept(&config, 40).counts;
    for (name, result, count) in counts.group(Group::Operation) {
        if name.starts_with("table-") {
            assert!(matches!(result, "ok" | "full"), "{name}: {count} times {result}");
        }
    }
    assert!(counts.get(Group::Operation, "table-put") > 0);
}

#[test]
fn stored_seeds_pass_with_their_tables() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim/seeds");
    let mut failed = Vec::new();
    for path in &files(&directory).expect("the directory can be read") {
        let stored = StoredSeed::read(path).expect("it was written by a sweep, or with care");
        println!("{}: {}", path.display(), stored.config.replay_command(stored.seed));
        failed.extend(stored.replay(path, &run_seed).err().map(|error| error.to_string()));
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
