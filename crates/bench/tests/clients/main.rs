//! Benchmarks with real client processes. This program starts itself for each test, and a test
//! starts it for its clients: so it has a `main` of its own, instead of the usual test harness.
//! `cargo test -p rackpool-bench --test clients -- ycsb` runs one.

mod locks;
#[cfg(feature = "lab")]
mod migrate;
#[cfg(feature = "rack")]
mod tiering;
mod ycsb;

use rackpool_bench::run::BenchError;
use std::io::{BufRead, Write};
use std::process::{Command, ExitCode};

type Client = fn(&mut dyn BufRead, &mut dyn Write) -> Result<(), BenchError>;

/// By the word that this program is started with.
const TESTS: &[(&str, fn())] = &[
    ("ycsb", ycsb::test),
    ("locks", locks::test),
    #[cfg(feature = "rack")]
    ("tiering", tiering::test),
    #[cfg(feature = "lab")]
    ("migrate", migrate::test),
];
const CLIENTS: &[(&str, Client)] = &[
    (ycsb::CLIENT, rackpool_bench::ycsb_run::worker),
    (ycsb::DYING_CLIENT, ycsb::die),
    (locks::CLIENT, rackpool_bench::locks::worker),
    #[cfg(feature = "rack")]
    (tiering::WORKER, rackpool_bench::cache::tiering_os::worker),
    #[cfg(feature = "lab")]
    (migrate::CLIENT, rackpool_bench::migrate::worker),
];

fn main() -> ExitCode {
    let word = std::env::args().nth(1).unwrap_or_default();
    if let Some((_, client)) = CLIENTS.iter().find(|(name, _)| *name == word) {
        let (input, output) = (std::io::stdin(), std::io::stdout());
        return match client(&mut input.lock(), &mut output.lock()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    if let Some((_, test)) = TESTS.iter().find(|(name, _)| *name == word) {
        test();
        println!("{word}: ok");
        return ExitCode::SUCCESS;
    }
    // Cargo lists tests in this way; these are not the harness's.
    if word == "--list" {
        return ExitCode::SUCCESS;
    }
    // In processes of their own: threads that one test pins are not the next one's.
    let fails = |name: &str| !this_program(name).status().is_ok_and(|status| status.success());
    let failed = TESTS.iter().filter(|(name, _)| fails(name)).count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn this_program(word: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a program has a path"));
    command.arg(word);
    command
}
