//! The steps of continuous integration: their order, their time limits, and the closing totals.
//!
//! Builds, cheapest first: clippy and rustdoc only check; tests are built in the dev profile (which
//! the workspace sets to opt-level 1, with debug assertions and overflow checks on), and most of
//! what runs is of that build; in release are the program of the README's first command and the
//! golden traces.

use std::fs;
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::run::{Context, Task, processors};
use crate::{bench, deny, deps, residue, sim, tidy, vm};

/// What a whole run of a fresh clone needs in the target folder, roughly: the tests 5200 MiB,
/// release builds 1200, what is only checked, rustdoc and the model checkers 1200, the virtual
/// machines 600.
const ROOM_MIB: u64 = 8200;

/// What tests are built with, and what virtual machines run: the program with all fabrics and the
/// laboratory. `bench` builds the one of the README, with none of the two.
pub const FEATURES: &str = "rackpool-cli/verbs,rackpool-cli/mutations";

/// What is only checked has other caches, too, which the program may have, and no step builds.
const CHECKED: &str = "rackpool-cli/verbs,rackpool-cli/mutations,rackpool-cli/peers";

/// Without verbs and mutations, and the cache without a pool. The first is of the whole workspace
/// with a test, so that other crates have the features with which all has been checked before.
const BUILDS: &[&[&str]] = &[
    &["--workspace", "--lib", "--bins", "--test", "golden", "--features", "rackpool-cli/peers"],
    &["-p", "rackpool-cache", "--no-default-features"],
];

/// One step; `run` gives the reason of a failure.
pub struct Step {
    pub name: &'static str,
    pub run: fn(&Context) -> Result<(), String>,
}

/// In the order in which they run: the quick ones that fail most often come first.
pub const STEPS: &[Step] = &[
    Step { name: "deps", run: deps::install },
    Step { name: "fmt", run: fmt },
    Step { name: "clippy", run: clippy },
    Step { name: "tidy", run: |_| tidy::run() },
    Step { name: "deny", run: deny::step },
    Step { name: "test", run: test },
    Step { name: "doctest", run: doctest },
    Step { name: "doc", run: doc },
    Step { name: "loom", run: loom },
    Step { name: "shuttle", run: shuttle },
    Step { name: "sim", run: sim::step },
    Step { name: "mutations", run: sim::mutations_step },
    Step { name: "vm", run: vm::step },
    Step { name: "bench", run: bench::smallest },
];

/// The step of that name.
pub fn step(name: &str) -> Option<&'static Step> {
    STEPS.iter().find(|step| step.name == name)
}

/// Runs one step by itself.
pub fn alone(name: &str, run: impl FnOnce(&Context) -> Result<(), String>) -> Result<(), String> {
    let context = Context::new()?;
    let start = Instant::now();
    run(&context).map_err(|why| format!("{name} failed after {}: {why}", seconds(start)))?;
    println!("{name}: passed in {}{}", seconds(start), context.tests());
    Ok(())
}

/// Runs all steps, then looks for what they left behind.
pub fn all() -> Result<(), String> {
    let mut context = Context::new()?;
    // No incremental builds and no debug lines: both would cost room, and time to write and link.
    for (name, value) in [
        ("CARGO_INCREMENTAL", "0"),
        ("CARGO_PROFILE_DEV_DEBUG", "false"),
        ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
    ] {
        if std::env::var_os(name).is_none() {
            context.cargo_env.push((name, value));
        }
    }
    room(&context)?;
    let before = residue::Snapshot::take();
    let start = Instant::now();
    let count = STEPS.len() + 1;
    let mut times = Vec::new();
    thread::scope(|scope| {
        let mut fetching = None;
        for (index, step) in STEPS.iter().enumerate() {
            let label = format!("[{}/{count}] {}", index + 1, step.name);
            match step.name {
                // That takes a while, and little but the network.
                "test" => fetching = Some(scope.spawn(|| vm::fetch(&context))),
                "vm" => drop(fetching.take().map(ScopedJoinHandle::join)),
                _ => {}
            }
            times.push(timed(&label, step.name, start, || (step.run)(&context))?);
        }
        Ok::<_, String>(())
    })?;
    let label = format!("[{count}/{count}] residue");
    times.push(timed(&label, "residue", start, || before.compare(&context))?);

    println!();
    println!("ci: passed, {count} steps in {}{}", seconds(start), context.tests());
    println!("ci: {}", times.join(", "));
    Ok(())
}

/// Says what room the target folder has, and refuses to begin what could not end.
fn room(context: &Context) -> Result<(), String> {
    let target = context.target.display();
    fs::create_dir_all(&context.target).map_err(|e| format!("{target}: {e}"))?;
    let path = context.target.to_string_lossy();
    let file_system = numbers("stat", &["--file-system", "--format=%a %S", &path])?;
    let [blocks, block_bytes] = file_system[..] else {
        return Err(format!("stat does not say how much room {target} has"));
    };
    let free_mib = blocks.saturating_mul(block_bytes) >> 20;
    let held_mib = numbers("du", &["--summarize", "--block-size=1M", &path])?.first().copied();
    let held_mib = held_mib.ok_or_else(|| format!("du does not say how large {target} is"))?;
    let said = format!("{free_mib} MiB are free for {target}, which holds {held_mib} MiB");
    println!("ci: {said}; a whole run needs {ROOM_MIB} MiB");
    if is_roomy(free_mib, held_mib) {
        return Ok(());
    }
    Err(format!(
        "{said}: a whole run needs {ROOM_MIB} MiB; make room, or set CARGO_TARGET_DIR to a folder \
         on another file system"
    ))
}

/// Most of what an earlier run left is used again.
fn is_roomy(free_mib: u64, held_mib: u64) -> bool {
    free_mib.saturating_add(held_mib) >= ROOM_MIB
}

/// The numbers that a program's answer begins with.
fn numbers(program: &str, words: &[&str]) -> Result<Vec<u64>, String> {
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|e| format!("cannot start {program}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split_whitespace().map_while(|word| word.parse().ok()).collect())
}

fn timed(
    label: &str,
    name: &str,
    whole: Instant,
    run: impl FnOnce() -> Result<(), String>,
) -> Result<String, String> {
    println!("\n==> {label} (at {})", seconds(whole));
    let start = Instant::now();
    let outcome = run();
    let time = seconds(start);
    match outcome {
        Ok(()) => {
            println!("<== {label}: passed in {time}");
            Ok(format!("{name} {time}"))
        }
        Err(why) => {
            println!("<== {label}: FAILED after {time}");
            Err(format!("ci failed in step `{name}` after {time}: {why}"))
        }
    }
}

fn fmt(context: &Context) -> Result<(), String> {
    Task::cargo(&["fmt", "--all", "--check"]).run(context)
}

fn clippy(context: &Context) -> Result<(), String> {
    let what = ["clippy", "--workspace", "--all-targets", "--features", CHECKED];
    let words = [&what[..], &["--", "-D", "warnings"]].concat();
    Task::cargo(&words).minutes(15).run(context)?;
    // What people build, and no step does.
    for words in BUILDS {
        let words = [&["clippy"], *words, &["--", "-D", "warnings"]].concat();
        Task::cargo(&words).minutes(5).run(context)?;
    }
    Ok(())
}

/// Everything but the documentation's examples, which `doctest` runs. A failure does not hide
/// those behind it; one or two tests that failed are run again, once, and named at the end if they
/// pass (decision 0032).
fn test(context: &Context) -> Result<(), String> {
    let words = ["test", "--no-fail-fast", "--workspace", "--features", FEATURES];
    let words = [&words[..], &["--lib", "--bins", "--tests"]].concat();
    Task::cargo(&[&words[..], &["--no-run"]].concat()).minutes(45).run(context)?;
    let Err(why) = tests(context, &words) else {
        return Ok(());
    };
    let (names, targets) = context.take_failed().ok_or(why)?;
    println!("run again, by themselves: {}", names.join(", "));
    for target in targets {
        // Without the package's name: with it much would be built anew, with other features.
        let mut words = vec!["test", "--workspace", "--features", FEATURES];
        words.extend(target.split(' ').skip(2).chain(["--", "--exact"]));
        words.extend(names.iter().map(String::as_str));
        let before = context.passed();
        Task::cargo(&words).minutes(10).count_tests().run(context)?;
        if context.passed() == before {
            return Err(format!("`{target}` failed, but none of the tests that failed is in it"));
        }
    }
    context.unsteady(names);
    Ok(())
}

/// Test programs that only compute, by their package's folder and their name: no clock and no other
/// process decides what they find.
const COMPUTING: &str = "core/*|rack/*|sim/suite-*|sim/golden-*|bench/sim_table-*";

/// With this cargo runs a test program, in its package's folder: only those of one kind, which is
/// named behind it. Cargo itself cannot leave out programs of a workspace.
const RUNNER: &str = r#"kind=waiting
case ${PWD##*/}/${1##*/} in COMPUTING) kind=computing ;; esac
[ $kind = "$0" ] || exit 0
exec "$@""#;

/// Those that wait for other processes, for leases and for time, and in the time that they leave
/// those that compute.
fn tests(context: &Context, words: &[&str]) -> Result<(), String> {
    let config = |kind: &str| {
        let runner = ["sh", "-c", &RUNNER.replace("COMPUTING", COMPUTING), kind].map(str::to_owned);
        let runner = serde_json::to_string(&runner).expect("strings are JSON, and TOML as well");
        format!("target.'cfg(all())'.runner={runner}")
    };
    let (waiting, computing) = (config("waiting"), config("computing"));
    let waiting = [words, &["--config", &waiting]].concat();
    let computing = [words, &["--config", &computing]].concat();
    let waiting = Task::cargo(&waiting).env("RUST_TEST_THREADS", &(2 * processors()).to_string());
    let computing =
        Task::cargo(&computing).env("RUST_TEST_THREADS", &processors().to_string()).background();
    let run = |task: Task| task.minutes(35).count_tests().run(context);
    let (waiting, computing) = thread::scope(|scope| {
        let computing = scope.spawn(|| run(computing.called("the tests that compute")));
        (run(waiting.called("the other tests")), computing.join().expect("it never panics"))
    });
    waiting.and(computing)
}

fn doctest(context: &Context) -> Result<(), String> {
    let words = ["test", "--doc", "--workspace", "--features", FEATURES];
    Task::cargo(&words).minutes(10).count_tests().run(context)
}

fn doc(context: &Context) -> Result<(), String> {
    let words = ["doc", "--workspace", "--no-deps", "--features", CHECKED];
    Task::cargo(&words).env("RUSTDOCFLAGS", "-D warnings").minutes(10).run(context)
}

/// Loom replaces the atomics, and so does shuttle.
fn loom(context: &Context) -> Result<(), String> {
    modelled(context, "loom")
}

fn shuttle(context: &Context) -> Result<(), String> {
    modelled(context, "shuttle")
}

/// The tests `crates/mem/tests/models/MODEL_*.rs` with the atomics of a model checker.
fn modelled(context: &Context, model: &str) -> Result<(), String> {
    let tests = context.root.join("crates/mem/tests/models");
    let any = fs::read_dir(&tests).into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with(&format!("{model}_")) && name.ends_with(".rs")
    });
    if !any {
        return Err(format!("no crates/mem/tests/models/{model}_*.rs"));
    }
    // Of the whole workspace in the tests' profile: so most of what they need is there.
    let features = format!("{FEATURES},rackpool-mem/{model}");
    let words = ["test", "--workspace", "--features", &features, "--test", "models"];
    Task::cargo(&words).minutes(15).count_tests().run(context)
}

fn seconds(since: Instant) -> String {
    seconds_of(since.elapsed())
}

fn seconds_of(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_begins_only_where_it_can_end() {
        assert!(is_roomy(ROOM_MIB, 0) && is_roomy(1, ROOM_MIB));
        assert!(!is_roomy(ROOM_MIB - 1, 0));
        let words = ["--file-system", "--format=%a %S", "/"];
        assert_eq!(numbers("stat", &words).map(|found| found.len()), Ok(2));
    }
}
