//! A run is a function of its configuration and its seed: the same seed leaves the same trace
//! twice in a row, on any number of threads, and in every build profile.
//!
//! `golden_hashes.txt` holds what a few seeds leave. A change of the engines or of the world
//! changes it, and that is legitimate: write it anew, and look at nothing but the reason.
//! `cargo xtask sim` compares its last line with the release build.

use rackpool_sim::run::{Config, FaultSet, Sweep, sweep};
use rackpool_sim::world::run_seed;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;

const FIRST_SEED: u64 = 1;
const SEEDS: u64 = 10;
/// As many as `cargo xtask sim` asks of the release build.
const OPERATIONS: u32 = 300;

fn config() -> Config {
    Config { operations: OPERATIONS, ..Config::default() }
}

fn swept(threads: usize) -> Sweep {
    let go = &mut |_: &_| ControlFlow::Continue(());
    sweep(&config(), FIRST_SEED, SEEDS, threads, &run_seed, go)
}

#[test]
fn the_same_seed_leaves_the_same_trace_twice() {
    for faults in [FaultSet::ALL, FaultSet::NONE] {
        let config = Config { faults, trace_lines: u32::MAX, ..config() };
        for seed in FIRST_SEED..FIRST_SEED + SEEDS {
            let (once, again) = (run_seed(&config, seed), run_seed(&config, seed));
            let differ = once.trace.iter().zip(&again.trace).find(|(a, b)| a != b);
            assert!(differ.is_none(), "seed {seed}, faults {faults}: {differ:#?}");
            assert_eq!(once, again, "seed {seed}, faults {faults}");
            assert!(once.events > u64::from(OPERATIONS) && once.trace.len() > OPERATIONS as usize);
        }
    }
}

#[test]
fn another_seed_leaves_another_trace() {
    let mut hashes: Vec<u64> = (0..20).map(|seed| run_seed(&config(), seed).trace_hash).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 20);
}

#[test]
fn a_recorded_trace_changes_nothing() {
    let loud = Config { trace_lines: u32::MAX, ..config() };
    let (quiet, loud) = (run_seed(&config(), 3), run_seed(&loud, 3));
    assert_eq!((quiet.trace_hash, quiet.counts), (loud.trace_hash, loud.counts));
}

#[test]
fn one_thread_and_two_leave_the_same() {
    assert_eq!(swept(1), swept(2));
}

#[test]
fn seeds_leave_what_they_left_when_the_golden_file_was_written() {
    let mut text = format!(
        "# What seeds {FIRST_SEED} to {} leave at {OPERATIONS} operations and all faults, in every \
         build profile.\n# seed, trace hash\n",
        FIRST_SEED + SEEDS - 1
    );
    for seed in FIRST_SEED..FIRST_SEED + SEEDS {
        let outcome = run_seed(&config(), seed);
        let _ = writeln!(text, "{seed} {:016x}", outcome.trace_hash);
    }
    let _ = writeln!(text, "# the sweep over all of them\nsweep {:016x}", swept(1).trace_hash);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden_hashes.txt");
    if std::env::var_os("RACKPOOL_BLESS").is_some() {
        std::fs::write(&path, &text).expect("the golden file can be written");
    }
    let golden = std::fs::read_to_string(&path).expect("the golden file is in the repository");
    assert!(
        golden == text,
        "the traces differ from crates/sim/tests/golden_hashes.txt.\nIf the engines or the world \
         were changed, that is what must happen; write it anew:\n    RACKPOOL_BLESS=1 cargo test \
         -p rackpool-sim --test golden\nIf they were not, or if only one build \
         profile differs, the run depends on something beside its seed.\n--- golden\n{golden}\
         --- now\n{text}"
    );
}
