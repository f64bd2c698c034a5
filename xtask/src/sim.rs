//! The simulator from the outside: fresh seeds (the first is printed), with failing ones shrunk
//! and stored; and the proof that the checkers bite.
//!
//! The tests' build of the program runs them, with its checks of arithmetic: the feature
//! `mutations` is in it, and never in what people build by `cargo build --release`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::built;
use crate::run::{Context, Task, processors};

/// Where failing seeds are kept.
const SEEDS: &str = "crates/sim/seeds";
/// Seeds if only the first one is told.
const SEEDS_DEFAULT: u64 = 200;
/// Seeds within which each mutation must be caught.
const MUTATION_SEEDS: u64 = 3000;
/// Seeds that are searched for one that its known seed does not catch any more.
const MUTATION_SEARCH: u64 = 10_000;
/// Mutations that there are: a report of fewer is not of this tree.
const MUTATIONS: usize = 90;
/// How many fresh seeds `cargo xtask ci` runs at most, and how long.
const CI_SEEDS: u64 = 50;
const CI_SECONDS: u64 = 30;
/// The fewest seeds that make such a run worth something.
const CI_SEEDS_MIN: u64 = 15;
/// Tests that compare the release build: those of determinism, and those of a ring.
const GOLDEN_TESTS: u64 = 9;
/// Operations that every seed must have done.
const OPERATIONS_MIN: u64 = 2000;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    seeds: Option<u64>,
    first_seed: Option<u64>,
    mutations: bool,
}

impl Options {
    /// From the words after `sim`; `None` if they make no sense.
    pub fn parse(words: &[&str]) -> Option<Self> {
        let mut options = Self { seeds: None, first_seed: None, mutations: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut number = || words.next().and_then(|text| text.parse::<u64>().ok());
            match *word {
                "--seeds" => options.seeds = Some(number().filter(|seeds| *seeds > 0)?),
                "--first-seed" => options.first_seed = Some(number()?),
                "--mutations" => options.mutations = true,
                _ => return None,
            }
        }
        Some(options)
    }
}

/// `cargo xtask sim`; without options it is the step of `ci`.
pub fn run(context: &Context, options: Options) -> Result<(), String> {
    if options == (Options { seeds: None, first_seed: None, mutations: false }) {
        return step(context);
    }
    if options.mutations {
        return mutations(context, options);
    }
    let seeds = options.seeds.unwrap_or(SEEDS_DEFAULT);
    let first = options.first_seed.unwrap_or_else(fresh_seed);
    let report = sweep(context, first, seeds, None)?;
    summary(&report, seeds)
}

/// The step of `ci`: fresh seeds, for a bounded time. Those that failed once are in step `test`.
pub fn step(context: &Context) -> Result<(), String> {
    golden(context)?;
    let report = sweep(context, fresh_seed(), CI_SEEDS, Some(CI_SECONDS))?;
    summary(&report, CI_SEEDS_MIN)
}

/// A seed that no run had before: the time in milliseconds, far below what JSON holds exactly.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(1)
}

/// The release build leaves what the tests' build left: the same tests compare both with the same
/// file. It has no mutations: one that is asked for is not made.
fn golden(context: &Context) -> Result<(), String> {
    // Engines as they are shipped; the simulator itself would be two thirds of the build. Without
    // any optimization its coroutines need larger stacks.
    let plain_simulator = "profile.release.package.rackpool-sim.opt-level=1";
    let words = ["test", "--release", "--config", plain_simulator, "--test", "golden"];
    // The program's package is named so that step `bench` finds engines with the same features.
    let words = [&words[..], &["-p", "rackpool-sim", "-p", "rackpool-cli"]].concat();
    let before = context.passed();
    Task::cargo(&words).minutes(20).count_tests().run(context)?;
    if context.passed() < before + GOLDEN_TESTS {
        return Err("tests of golden traces are missing".into());
    }
    Ok(())
}

fn sweep(
    context: &Context,
    first_seed: u64,
    seeds: u64,
    seconds: Option<u64>,
) -> Result<Value, String> {
    let program = built::rackpool(context)?;
    let report = report_path(context, "sim.json")?;
    let (first, count, store) =
        (first_seed.to_string(), seeds.to_string(), context.root.join(SEEDS));
    let (file, store) = (report.to_string_lossy(), store.to_string_lossy());
    let mut words =
        vec!["sim", "run", "--faults", "all", "--first-seed", &first, "--seeds", &count];
    words.extend(["--store", &store, "--json", &file]);
    let limit = seconds.map(|seconds| seconds.to_string());
    if let Some(limit) = &limit {
        words.extend(["--seconds", limit]);
    }
    // Half of the runs have racks with several memories. None has spill files yet: in some 5 of 100
    // a free is refused as `full` while only pages that cannot leave are in memory.
    if first_seed % 2 == 1 {
        words.push("--tiers");
    }
    println!("first seed {first_seed}");
    let task = Task::new(&program, &words).minutes(minutes(seeds, seconds));
    let ran = task.run(context);
    ran.map_err(|why| format!("{why}; if a seed was stored in {SEEDS}, commit it"))?;
    read(&report)
}

/// The limit in CI: a minute for twenty seeds, or the time that was asked for and some for the
/// last seeds and for shrinking.
fn minutes(seeds: u64, seconds: Option<u64>) -> u64 {
    seconds.map_or(10 + seeds / 20, |seconds| 20 + seconds.div_ceil(60))
}

/// Where a report goes; an earlier one is removed, lest it pass for this run's.
fn report_path(context: &Context, name: &str) -> Result<PathBuf, String> {
    let directory = context.target.join("xtask-sim");
    let path = directory.join(name);
    fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    if path.exists() {
        fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(path)
}

fn read(path: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: not JSON: {e}", path.display()))
}

/// Says what ran, and refuses a report of fewer seeds or emptier ones than were meant.
fn summary(report: &Value, seeds_min: u64) -> Result<(), String> {
    let number = |field: &str| {
        let value = report.get(field).and_then(Value::as_u64);
        value.ok_or_else(|| format!("the report has no number `{field}`"))
    };
    let (seeds, first) = (number("seeds")?, number("first_seed")?);
    let (failed, operations) = (number("failed_seeds")?, number("operations_min_per_seed")?);
    let hash = report.get("trace_hash").and_then(Value::as_str).unwrap_or("missing");
    println!(
        "{seeds} seeds from {first}, {failed} failed, at least {operations} operations each, \
         trace hash {hash}"
    );
    if failed > 0 {
        return Err(format!("{failed} seeds failed"));
    }
    if seeds < seeds_min {
        return Err(format!("only {seeds} seeds ran, {seeds_min} were meant to"));
    }
    if operations < OPERATIONS_MIN {
        return Err(format!("a seed did {operations} operations, not {OPERATIONS_MIN}"));
    }
    Ok(())
}

/// The step of `ci`: each safeguard is missed by the seed that missed it last. Where one is not,
/// since the engines have changed, all seeds are searched, and the file is to be written anew.
pub fn mutations_step(context: &Context) -> Result<(), String> {
    let program = built::rackpool(context)?;
    let known = known_seeds(include_str!("../mutation-seeds.txt"))?;
    let missed = Mutex::new(Vec::new());
    let queue = Mutex::new(known.iter());
    let take = || queue.lock().expect("no thread panics").next();
    // A seed keeps one processor busy.
    let work = || {
        while let Some((seed, names)) = take() {
            let caught = with_seeds(context, &program, names, *seed..seed + 1);
            let caught = caught.unwrap_or_else(|why| {
                println!("{}: {why}", names.join(","));
                Vec::new()
            });
            let left = names.iter().filter(|name| !caught.iter().any(|one| one == *name));
            missed.lock().expect("no thread panics").extend(left.copied());
        }
    };
    thread::scope(|scope| {
        for _ in 0..processors() {
            scope.spawn(work);
        }
    });
    let missed: Vec<&str> = missed.into_inner().expect("no thread panics");
    if missed.is_empty() {
        return Ok(());
    }
    println!("xtask/mutation-seeds.txt catches no more: {}; searching", missed.join(", "));
    for name in missed {
        // Stops at the first seed that catches it.
        let caught = with_seeds(context, &program, &[name], 1..MUTATION_SEARCH + 1)?;
        if !caught.iter().any(|one| one == name) {
            return Err(format!("{name} survived {MUTATION_SEARCH} seeds"));
        }
    }
    Ok(())
}

/// Leaves these out, with these seeds; those that are caught.
fn with_seeds(
    context: &Context,
    program: &str,
    names: &[&str],
    seeds: std::ops::Range<u64>,
) -> Result<Vec<String>, String> {
    let report = report_path(context, &format!("mutation-{}.json", seeds.start))?;
    let (names, first) = (names.join(","), seeds.start.to_string());
    let seeds = (seeds.end - seeds.start).to_string();
    let words = ["sim", "mutations", "--only", &names, "--seeds", &seeds, "--first-seed", &first];
    let file = report.to_string_lossy();
    // It fails if one survives, and reports all the same.
    if let Err(why) = Task::new(program, &[&words[..], &["--json", &file]].concat())
        .minutes(60)
        .background()
        .run(context)
    {
        println!("{why}");
    }
    let report = read(&report)?;
    let rows = report.get("results").and_then(Value::as_array).ok_or("no `results`")?;
    let is_caught = |row: &&Value| row.get("caught").and_then(Value::as_bool) == Some(true);
    let name = |row: &Value| row.get("name").and_then(Value::as_str).map(str::to_owned);
    Ok(rows.iter().filter(is_caught).filter_map(name).collect())
}

/// Lines of a seed and the mutations that it catches.
fn known_seeds(text: &str) -> Result<Vec<(u64, Vec<&str>)>, String> {
    let of_line = |line: &str| line.split_once(' ').map(|(seed, _)| seed.parse::<u64>());
    text.lines()
        .map(|line| match of_line(line) {
            Some(Ok(seed)) => Ok((seed, line.split(' ').skip(1).collect())),
            _ => Err(format!("no seed and names: {line}")),
        })
        .collect()
}

/// Leaves each safeguard out in turn. The command prints the table and fails if one is not missed.
fn mutations(context: &Context, options: Options) -> Result<(), String> {
    let program = built::rackpool(context)?;
    let report = report_path(context, "mutations.json")?;
    let seeds = options.seeds.unwrap_or(MUTATION_SEEDS).to_string();
    let first = options.first_seed.unwrap_or(1).to_string();
    let file = report.to_string_lossy();
    let words = ["sim", "mutations", "--seeds", &seeds, "--first-seed", &first, "--json", &file];
    Task::new(&program, &words).minutes(240).run(context)?;
    all_caught(&read(&report)?)
}

/// The report names every mutation, each of them caught.
fn all_caught(report: &Value) -> Result<(), String> {
    match caught(report)? {
        MUTATIONS.. => Ok(()),
        count => Err(format!("the report has {count} mutations, not {MUTATIONS}")),
    }
}

/// How many mutations the report names, each of them caught.
fn caught(report: &Value) -> Result<usize, String> {
    let rows = report.get("results").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let is_caught = |row: &&Value| row.get("caught").and_then(Value::as_bool) == Some(true);
    match rows.iter().find(|row| !is_caught(row)) {
        Some(row) => Err(format!("a mutation survived: {row}")),
        None => Ok(rows.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_are_numbers_and_nothing_else() {
        let options = |seeds, first_seed, mutations| Options { seeds, first_seed, mutations };
        assert_eq!(Options::parse(&[]), Some(options(None, None, false)));
        let both = ["--seeds", "5", "--first-seed", "0", "--mutations"];
        assert_eq!(Options::parse(&both), Some(options(Some(5), Some(0), true)));
        for wrong in [&["--seeds"][..], &["--seeds", "0"], &["--seeds", "x"], &["5"], &["--fast"]] {
            assert_eq!(Options::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_report_must_have_run_what_was_meant() {
        let report = |seeds: u64, failed: u64, operations: u64| {
            json!({"seeds": seeds, "first_seed": 7, "failed_seeds": failed, "trace_hash": "ab",
                   "operations_min_per_seed": operations})
        };
        assert_eq!(summary(&report(10, 0, 2000), 10), Ok(()));
        assert!(summary(&report(9, 0, 2000), 10).is_err());
        assert!(summary(&report(10, 1, 2000), 10).is_err());
        assert!(summary(&report(10, 0, 1999), 10).is_err());
        assert!(summary(&json!({}), 0).is_err());
    }

    #[test]
    fn a_mutation_that_survives_or_is_missing_fails() {
        let rows = |count: usize, caught: bool| {
            let mut rows = vec![json!({"name": "a", "caught": true}); count];
            rows[0]["caught"] = json!(caught);
            json!({ "results": rows })
        };
        assert_eq!(all_caught(&rows(MUTATIONS, true)), Ok(()));
        assert!(all_caught(&rows(MUTATIONS, false)).is_err());
        assert!(all_caught(&rows(MUTATIONS - 1, true)).is_err());
        assert!(all_caught(&json!({})).is_err());
    }

    #[test]
    fn every_mutation_has_a_seed_that_catches_it() {
        let known = known_seeds(include_str!("../mutation-seeds.txt")).unwrap();
        let mut names: Vec<&str> = known.iter().flat_map(|(_, names)| names.clone()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), MUTATIONS);
        assert!(known_seeds("seven a b\n").is_err() && known_seeds("7\n").is_err());
    }

    #[test]
    fn fresh_seeds_differ_and_survive_json() {
        let first = fresh_seed();
        std::thread::sleep(std::time::Duration::from_millis(3));
        assert!(first < fresh_seed() && first < 1 << 53);
    }
}
