//! Heavier runs, each under a name: what CI does in small, long enough for what is rare.

use crate::run::{Context, Task};

/// A run: its name, what cargo is told, and what the environment says of its length.
struct SoakRun {
    name: &'static str,
    words: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
}

const RUNS: [SoakRun; 13] = [
    SoakRun {
        name: "kills",
        words: &["test", "-p", "rackpool-cli", "--release", "--test", "kills"],
        env: &[("RACKPOOL_KILLS", "200")],
    },
    SoakRun {
        name: "alloc",
        words: &["test", "-p", "rackpool-tiers-alloc", "--release", "--tests"],
        // By each of three threads.
        env: &[("RACKPOOL_TIERS_OPERATIONS", "3400000"), ("RACKPOOL_TIERS_PROGRAMS", "1")],
    },
    SoakRun {
        name: "seeds",
        words: &[
            "test",
            "-p",
            "rackpool-sim",
            "-p",
            "rackpool-bench",
            "--features",
            "rackpool-bench/rack",
            "--release",
            "--test",
            "suite",
            "--test",
            "sim_table",
            "--",
            "sweep::",
            "the_keys_of_a_table",
        ],
        env: &[("RACKPOOL_SEEDS_TIMES", "20")],
    },
    SoakRun {
        name: "models",
        words: &[
            "test",
            "-p",
            "rackpool-mem",
            "--release",
            "--features",
            "shuttle",
            "--test",
            "models",
        ],
        env: &[("RACKPOOL_SEEDS_TIMES", "40")],
    },
    SoakRun {
        name: "clients",
        words: &["test", "-p", "rackpool-cache", "--test", "suite", "--", "--ignored", "clients::"],
        env: &[],
    },
    SoakRun {
        name: "streams",
        words: &[
            "test",
            "-p",
            "rackpool-cache",
            "--release",
            "--test",
            "protocols",
            "--",
            "--streams",
            "200000",
        ],
        env: &[],
    },
    SoakRun {
        name: "parsers",
        words: &[
            "test",
            "-p",
            "rackpool-cache",
            "--release",
            "--test",
            "protocols",
            "--",
            "--inputs",
            "10000000",
        ],
        env: &[],
    },
    SoakRun {
        name: "config",
        words: &["test", "-p", "rackpool-cli", "--release", "--bins", "kv_config::fuzz"],
        env: &[("RACKPOOL_CONFIG_INPUTS", "1000000")],
    },
    SoakRun {
        name: "latency",
        words: &[
            "test",
            "-p",
            "rackpool-cache",
            "--release",
            "--test",
            "protocols",
            "--",
            "--latency",
            "12",
        ],
        env: &[],
    },
    SoakRun {
        name: "spill",
        words: &["test", "-p", "rackpool", "--release", "--test", "crash", "--", "spill::"],
        env: &[("RACKPOOL_SPILL", "full")],
    },
    SoakRun {
        name: "images",
        words: &[
            "test",
            "-p",
            "rackpool-core",
            "--release",
            "--test",
            "engines",
            "--",
            "daemon_images",
            "daemon_power",
            "persist_lives",
            "--nocapture",
        ],
        env: &[("RACKPOOL_SEEDS_TIMES", "100")],
    },
    SoakRun { name: "power", words: &["xtask", "vm", "power-soak"], env: &[] },
    SoakRun { name: "tiers", words: &["xtask", "vm", "tiers-run-soak", "tiers-kv-soak"], env: &[] },
];

/// Whether there is a run of this name.
pub fn is_known(name: &str) -> bool {
    RUNS.iter().any(|run| run.name == name)
}

pub fn run(context: &Context, name: &str) -> Result<(), String> {
    let run = RUNS.iter().find(|run| run.name == name).ok_or("there is no such run")?;
    let task = Task::cargo(run.words).minutes(120).count_tests();
    run.env.iter().fold(task, |task, (variable, value)| task.env(variable, value)).run(context)
}
