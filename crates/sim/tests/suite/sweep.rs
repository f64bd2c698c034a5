//! Fixed seeds under all faults: none fails, and together they meet everything that the simulator
//! is there to meet. Fresh seeds are run by `cargo xtask sim`.

use rackpool_sim::run::{Config, FaultSet, Group, Sweep, sweep};
use rackpool_sim::world::run_seed;
use std::ops::ControlFlow;

const SEEDS: u64 = 100;
/// Those with something besides; `cargo xtask sim` runs fresh ones with half of them so, too, and
/// `cargo xtask soak seeds` more of these.
const SEEDS_BESIDES: u64 = 15;
const THREADS: usize = 2;

/// What an operation may answer when nothing is broken: memory has an end, and what another client
/// frees is gone.
const WITHOUT_FAULTS: [&str; 3] = ["ok", "full", "not-mapped"];
/// What besides: locks that others have, pages that stay or that others move.
const OF_OPERATIONS: [(&str, &str); 18] = [
    ("share", "stays"),
    ("share", "moving"),
    ("balance-turn", "gone"),
    ("balance-turn", "stays"),
    ("balance-turn", "moving"),
    ("free-wrong", "bad-free"),
    ("lock-range", "lock-timeout"),
    ("move-wanted", "idle"),
    ("move-wanted", "left"),
    ("move-wanted", "unmeasured"),
    ("move-wanted", "stays"),
    ("move-wanted", "moving"),
    ("lock", "lock-timeout"),
    ("lock-again", "lock-timeout"),
    ("migrate", "stays"),
    ("migrate", "moving"),
    ("migrate-locked", "stays"),
    ("migrate-locked", "moving"),
];

fn swept(config: &Config, seeds: u64) -> Sweep {
    let sum = sweep(config, 1, seeds, THREADS, &run_seed, &mut |_| ControlFlow::Continue(()));
    for one in &sum.failures {
        println!("{}", config.replay_command(one.seed));
    }
    assert!(sum.failures.is_empty(), "{} seeds failed: {:#?}", sum.failed_seeds, sum.failures);
    assert_eq!(sum.seeds, seeds);
    assert!(sum.operations_min >= u64::from(config.operations));
    sum
}

/// Of those with something besides, so many as `RACKPOOL_SEEDS_TIMES` says.
#[expect(clippy::disallowed_methods, reason = "how long a test runs, and nothing of the library")]
fn seeds_besides() -> u64 {
    let times = std::env::var("RACKPOOL_SEEDS_TIMES").ok();
    SEEDS_BESIDES
        * times.map_or(1, |times| times.parse::<u64>().expect("RACKPOOL_SEEDS_TIMES is a number"))
}

#[test]
fn every_fault_rare_branch_and_race_is_met() {
    let config = Config::default();
    let never = swept(&config, SEEDS).counts.never(FaultSet::ALL);
    assert!(never.is_empty(), "{SEEDS} seeds never met {never:?}");
}

#[test]
fn clients_of_a_second_host_without_coherent_caches_find_everything() {
    let software_coherent = Some(true);
    let config = Config { software_coherent, operations: 1000, ..Config::default() };
    swept(&config, seeds_besides());
}

#[test]
fn pages_move_between_the_memories_of_racks_and_nothing_is_lost() {
    let sum = swept(&Config { tiers: true, ..Config::default() }, seeds_besides());
    let moved = sum.counts.get(Group::Message, "pages moved between tiers");
    assert!(moved > 0, "no page moved in {} seeds", sum.seeds);
    println!("{moved} pages moved between tiers");
}

#[test]
fn pages_go_to_spill_files_and_come_back_and_nothing_is_lost() {
    let sum = swept(&Config { spill: true, ..Config::default() }, seeds_besides());
    let moved = sum.counts.get(Group::Message, "pages moved between tiers");
    assert!(moved > 0, "no page was spilled in {} seeds", sum.seeds);
    println!("{moved} pages went or came");
}

#[test]
fn without_faults_nothing_goes_wrong() {
    let config = Config { faults: FaultSet::NONE, operations: 500, ..Config::default() };
    let counts = swept(&config, SEEDS).counts;
    for (name, result, count) in counts.group(Group::Operation) {
        println!("{name}: {count} {result}");
        // Some callers have less patience than a call takes.
        let calls = ["fetch", "read", "write"];
        let is_impatient = calls.iter().any(|of| name.starts_with(of)) && result == "timeout";
        let is_known = is_impatient
            || WITHOUT_FAULTS.contains(&result)
            || OF_OPERATIONS.contains(&(name, result));
        assert!(is_known, "{name}: {count} times {result} without a fault");
    }
}
