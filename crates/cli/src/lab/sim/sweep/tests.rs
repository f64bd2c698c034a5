//! The commands on a toy in the cluster's place: exit codes, reports, shrinking, storing.

use super::super::{Engine, run_on};
use super::*;
use crate::args::{Cli, Command};
use crate::lab::LabCommand;
use clap::Parser;
use rackpool_bench::sim_runs::calibration;
use rackpool_sim::device::Profile;
use rackpool_sim::report::Table;
use rackpool_sim::run::{Counts, Fault, Group};
use rackpool_sim::stored::StoredSeed;
use rackpool_sim::time::Ps;
use rackpool_sim::world::scale::Options;
use serde_json::Value;
use std::path::PathBuf;

/// Seeds from 90 fail from operation 7 on, if a daemon may crash.
fn toy(config: &Config, seed: u64) -> SeedOutcome {
    let mut counts = Counts::default();
    config.faults.iter().for_each(|fault| counts.fault(fault));
    counts.add_result(Group::Operation, "read", "ok", 3);
    counts.add_result(Group::Operation, "read", "peer-dead", 1);
    let fails = seed >= 90 && config.operations >= 7 && config.faults.has(Fault::CrashDaemon);
    let failure = rackpool_sim::run::Failure {
        checker: "bytes".into(),
        text: "found 0x01".into(),
        at: Ps::us(3),
    };
    let lines = |count: u32| (0..count).map(|line| format!("line {line}")).collect();
    SeedOutcome {
        seed,
        trace_hash: seed,
        events: 10,
        operations: config.operations.into(),
        virtual_time: Ps::ms(1),
        counts,
        failure: fails.then_some(failure),
        trace: lines(config.trace_lines.min(3)),
    }
}

fn sim(line: &str) -> Result<()> {
    let cli = Cli::try_parse_from(line.split_whitespace()).expect("a good line");
    let Command::Lab(LabCommand::Sim(args)) = cli.command else { panic!("not sim") };
    let scale = |_: &Profile, options: &Options, told: &mut dyn FnMut(&str)| {
        let racks = *options.racks.last().expect("there is a size");
        told(&format!("{racks} racks"));
        let mut table = Table::new("scale", "Cost by size", &[("racks", ""), ("access", "ns")]);
        table.row([u64::from(racks).into(), 100.0.into()]);
        Ok(vec![table])
    };
    let engine = Engine { run_seed: toy, scale, ladder: |_| Err("no ladder here".into()) };
    run_on(&engine, &args)
}

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("rackpool-sim-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // A directory of ours that cannot go is no reason to fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read_json(path: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_sweep_that_passes_writes_what_programs_and_people_read() {
    let dir = Dir::new("pass");
    let (json, html) = (dir.file("a.json"), dir.file("a.html"));
    let line = |threads, json: &str| {
        format!(
            "rackpool sim run --seeds 50 --faults all --threads {threads} --json {json} \
             --html {html}"
        )
    };
    sim(&line(1, &json)).unwrap();
    let one = read_json(&json);
    for field in ["schema", "machine", "command", "git_revision", "trace_hash", "counts", "never"] {
        assert!(!one[field].is_null(), "{field} is missing");
    }
    assert_eq!((&one["kind"], &one["failed_seeds"]), (&"simulated".into(), &0.into()));
    assert_eq!((&one["events"], &one["operations"]), (&500.into(), &100_000.into()));
    assert_eq!(one["counts"]["operations"]["read"]["peer-dead"], 50);
    let profile = super::super::profile("rcmp-testbed").unwrap();
    assert_eq!(one["calibration"], calibration(&profile));
    assert!(one["results"].as_array().unwrap().len() == 3);
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("50 seeds passed every checker") && page.contains("crash-daemon"));
    sim(&line(4, &json)).unwrap();
    assert_eq!(read_json(&json)["trace_hash"], one["trace_hash"]);
}

#[test]
fn a_seed_that_fails_is_shrunk_stored_and_replayed() {
    let dir = Dir::new("fail");
    let (json, seeds) = (dir.file("a.json"), dir.file("seeds"));
    let line = format!("rackpool sim run --seeds 5 --first-seed 88 --json {json} --store {seeds}");
    let failure = sim(&line).unwrap_err();
    let command = "rackpool sim replay 90 --racks 1 --clients 1 --operations 7 \
                   --faults crash-daemon";
    let expected = format!("error seed-failed 3 of 5 seeds failed; shortest replay: {command}");
    assert_eq!((failure.to_string(), failure.exit_code()), (expected, 1));
    let report = read_json(&json);
    assert_eq!((&report["failed_seeds"], &report["failures"][0]["seed"]), (&3.into(), &90.into()));
    assert_eq!(report["shrunk"][0]["replay"], command);
    let stored = rackpool_sim::stored::files(seeds.as_ref()).unwrap();
    assert_eq!(stored.len(), 3);
    let first = StoredSeed::read(&stored[0]).unwrap();
    assert_eq!((first.seed, first.config.operations), (90, 7));
    let again = sim(command).unwrap_err();
    assert_eq!(again.to_string(), "error seed-failed seed 90: bytes: found 0x01");
    sim("rackpool sim replay 90 --operations 6").unwrap();
    let unshrunk = sim("rackpool sim run --seeds 1 --first-seed 90 --no-shrink").unwrap_err();
    assert!(unshrunk.message().ends_with("replay 90 --operations 2000 --faults all"));
}

#[test]
fn a_sweep_ends_when_its_time_is_over() {
    let dir = Dir::new("time");
    let json = dir.file("a.json");
    let line = "rackpool sim run --seeds 100000000 --seconds 0 --threads 1 --faults none --json";
    sim(&format!("{line} {json}")).unwrap();
    let seeds = read_json(&json)["seeds"].as_u64().unwrap();
    assert!((1..100_000_000).contains(&seeds), "{seeds} seeds");
}

#[test]
fn a_replay_shows_the_end_of_the_trace() {
    let config = Config { trace_lines: 2, ..Config::default() };
    let profile = super::super::profile("rcmp-testbed").unwrap();
    let outcome = toy(&config, 91);
    let text = show::outcome(&outcome, &config, &profile, Duration::from_secs(1));
    assert!(text.starts_with("line 0\nline 1\nseed 91: "), "{text}");
    assert!(text.contains(calibration(&profile)) && text.ends_with("bytes\n"), "{text}");
}

#[test]
fn what_cannot_be_run_is_wrong_usage() {
    for line in [
        "rackpool sim run --seeds 1 --racks 99",
        "rackpool sim run --seeds 1 --profile nowhere",
        "rackpool sim replay 1 --mutation nothing",
        "rackpool sim run --seeds 1 --json /",
    ] {
        assert_eq!(sim(line).unwrap_err().exit_code(), 2, "{line}");
    }
    let refused = sim("rackpool sim replay 1 --mutation drop-redo");
    assert_eq!(refused.is_err(), !cfg!(feature = "mutations"));
    let failure = sim("rackpool sim ladder").unwrap_err();
    assert_eq!(failure.to_string(), "error sim no ladder here");
}

#[test]
fn tables_are_shown_and_written() {
    let dir = Dir::new("scale");
    let (json, html) = (dir.file("a.json"), dir.file("a.html"));
    sim(&format!("rackpool sim scale --racks 2,8 --json {json} --html {html}")).unwrap();
    let report = read_json(&json);
    assert_eq!(report["tables"][0]["rows"][0]["racks"], 8.0);
    assert_eq!(report["results"][0]["name"], "scale_8_racks_access");
    assert!(std::fs::read_to_string(&html).unwrap().contains("Cost by size"));
}
