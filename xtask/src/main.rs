//! The workspace's chores, called as `cargo xtask NAME`.
//!
//! `ci` runs every step of `ci::STEPS` in order and stops at the first failure; each step can also
//! be run alone by its name. Nothing here is part of the product: the crates never depend on it.

#![forbid(unsafe_code)]

mod bench;
mod bindings;
mod built;
mod ci;
mod deny;
mod deps;
mod dist;
mod residue;
mod run;
mod sim;
mod soak;
mod tidy;
mod vm;

use std::process::ExitCode;

const HELP: &str = "\
Checks and chores of the rackpool workspace.

Usage: cargo xtask NAME [OPTIONS]

  ci        all steps below, in this order; stops at the first failure
  deps      install the Debian packages that the checks need, if they are missing
  fmt       cargo fmt --all --check
  clippy    cargo clippy for all targets, warnings are errors
  deny      licences and sources of all dependencies, by cargo-deny
  tidy      the house rules that the compiler does not check: code, promises, links
  test      unit and integration tests
  doctest   examples in documentation and in the README
  doc       rustdoc, warnings are errors
  loom      tests of rackpool-mem over all interleavings of a small model
  shuttle   tests of rackpool-mem over random schedules of a whole rack, fresh each time
  sim       release against golden hashes, then fresh seeds under every fault for half a minute
  mutations each safeguard of the engines left out in turn: the simulator must miss it
  vm        scenarios in virtual machines: verbs, shared devdax, memory nodes, CXL, dead hosts
  bench     every benchmark in its smallest size
  soak NAME a heavier run of what CI does in small, not part of ci; NAME is kills: 200 kills of
            each kind of process; alloc: the allocator in 10 million operations, and under
            python3's own tests and redis-server; seeds: fixed seeds of the simulator, 20 times as
            many; models: as many schedules of shuttle, 40 times; clients: those written in Go
            beside the original servers; tiers: programs of 2 GiB and a cache on three memory
            nodes; streams: 200,000 of commands, beside redis-server and memcached; parsers: 10
            million changed inputs for each; config: a million changed files for kv --config; or
            latency: what GETs wait for while a script, an EXEC or an HGETALL takes long
  bindings  the wheel and the Go module, under their own languages' tests
  dist --out DIR [PART...] [--check]
            packages with their sums and a bill of materials: c (headers and libraries), wheel,
            cli-wheel, tarball, deb; all without a PART; --check installs and uses each
  help      this text

Options of promises (SPECIFICATION.md is written from docs/promises.toml; tidy checks it):
  --bless           writes SPECIFICATION.md anew
  WORDS             prints the promises that have these words, with their tests

Options of vm:
  --list            names the scenarios
  SCENARIO...       these instead of all but the soaks
  --verbose         shows what the guests say also when they pass
  --kernel NAME     7.3 (fetched once from Debian), 6.12 (the same), or own: this machine's kernel
                    and emulator; else 7.3, and for some scenarios own as well
  --kvm             the host's virtualisation instead of plain emulation

Options of sim (failing seeds are shrunk and stored):
  --seeds N         how many seeds (200), or seeds for each mutation (3000)
  --first-seed S    these seeds instead of fresh ones
  --mutations       as the step, with these seeds

Examples:
  cargo xtask ci                what .ci/run calls
  cargo xtask tidy              after each change: takes well under a second
  cargo xtask promises torn     which tests hold promises about what is torn
  cargo xtask sim --seeds 2000  what a release needs
  cargo xtask sim --mutations   the proof that the checks bite
  cargo xtask vm verbs-one      conformance over verbs in one guest
  cargo xtask dist --out DIR wheel --check
  CI=true cargo xtask ci        as in CI: a missing package fails, steps have time limits

Exit codes: 0 passed, 1 failed, 2 wrong usage.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        ["ci"] => ci::all(),
        ["promises", words @ ..] if words.len() < 2 => tidy::promises(words),
        ["sim", options @ ..] => match sim::Options::parse(options) {
            Some(options) => ci::alone("sim", |context| sim::run(context, options)),
            None => return wrong_usage(&words),
        },
        ["soak", name] if soak::is_known(name) => {
            ci::alone("soak", |context| soak::run(context, name))
        }
        ["bindings"] => ci::alone("bindings", bindings::run),
        ["dist", options @ ..] => match dist::Options::parse(options) {
            Some(options) => ci::alone("dist", |context| dist::run(context, &options)),
            None => return wrong_usage(&words),
        },
        ["vm", options @ ..] => match vm::Options::parse(options) {
            Some(options) => ci::alone("vm", |context| vm::run(context, &options)),
            None => return wrong_usage(&words),
        },
        [name] => match ci::step(name) {
            Some(step) => ci::alone(step.name, step.run),
            None => return wrong_usage(&words),
        },
        _ => return wrong_usage(&words),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn wrong_usage(words: &[&str]) -> ExitCode {
    eprintln!("xtask: do not know `{}`; see `cargo xtask help`", words.join(" "));
    ExitCode::from(2)
}
