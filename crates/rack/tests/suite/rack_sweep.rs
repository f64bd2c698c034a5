//! Sweeps of racks: the same with any number of threads, and after a stop.

use rackpool_rack::model::{Config, Outcome, builtin};
use rackpool_rack::report;
use rackpool_rack::repro::{self, PRESETS, Run, Runs};
use rackpool_rack::run::{Checkpoints, SimError, Sweep, hash_of, sweep};
use rackpool_rack::source::TraceSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// WL-Mix, 64 times smaller and shorter still.
fn points(accesses: u64) -> Vec<Config> {
    let of = |(placement, seed): (&str, u64)| Config {
        placement: placement.parse().unwrap(),
        seed,
        accesses,
        ..builtin::wl_mix(64)
    };
    let placements = ["alternate+random", "alternate+smart-idle", "local-first+even:7us"];
    placements.into_iter().flat_map(|name| [(name, 1), (name, 2)]).map(of).collect()
}

fn run(points: &[Config], traces: &TraceSet, threads: usize) -> Vec<Outcome> {
    let stop = AtomicBool::new(false);
    let how = Sweep { threads, checkpoints: None, stop: &stop, told: &|_, _, _| () };
    sweep(points, traces, &how).unwrap()
}

/// A directory that goes with its value.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let directory = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Directory(directory)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_number_of_threads_changes_no_result_and_the_seed_does() {
    let points = points(1_500);
    let traces = TraceSet::record(&points, &mut |_| ()).unwrap();
    let one = run(&points, &traces, 1);
    assert!(one.iter().all(|outcome| outcome.accesses == 64 * 1_500));
    for threads in [2, 3, 8] {
        assert_eq!(hash_of(&run(&points, &traces, threads)), hash_of(&one), "{threads} threads");
    }
    assert_ne!(one[0], one[1], "random pools of another seed");
}

#[test]
fn a_stopped_sweep_goes_on_from_its_directory_and_ends_with_the_same_result() {
    let points = points(4_000);
    let traces = TraceSet::record(&points, &mut |_| ()).unwrap();
    let whole = run(&points, &traces, 2);
    let directory = Directory::new("rackpool-rack-sweep");
    let checkpoints = Checkpoints {
        directory: directory.0.clone(),
        events: 1,
        write: |path, bytes| std::fs::write(path, bytes),
    };
    let mut stops = 0;
    let resumed = loop {
        let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
        // Every thread stops after a step or two.
        let told = |_: usize, _: u64, _: u64| {
            // Relaxed: a count and a wish.
            if steps.fetch_add(1, Ordering::Relaxed) >= 2 {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let how = Sweep { threads: 2, checkpoints: Some(&checkpoints), stop: &stop, told: &told };
        match sweep(&points, &traces, &how) {
            Ok(outcomes) => break outcomes,
            Err(SimError::Stopped) => stops += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(stops < 100, "it gets on with each attempt");
    };
    assert!(stops >= 2, "it was stopped {stops} times");
    assert_eq!(hash_of(&resumed), hash_of(&whole));
    let mut other = points.clone();
    other[0].local_mib += 1;
    let stop = AtomicBool::new(false);
    let how =
        Sweep { threads: 1, checkpoints: Some(&checkpoints), stop: &stop, told: &|_, _, _| () };
    let error = sweep(&other, &traces, &how).unwrap_err();
    assert!(error.to_string().contains("another configuration"), "{error}");
}

#[test]
fn a_reproduction_judges_each_claim_under_both_presets_and_draws_every_figure() {
    let mut points = repro::points(64);
    points.iter_mut().for_each(|point| point.accesses = 1_000);
    let traces = TraceSet::record(&points, &mut |_| ()).unwrap();
    let outcomes = run(&points, &traces, 2);
    let points: Vec<(Config, Outcome)> = points.into_iter().zip(outcomes).collect();
    for (preset, points) in PRESETS.into_iter().zip(points.chunks(Run::ALL.len())) {
        assert!(points.iter().all(|point| point.0.preset == preset));
        let runs = Runs::new(points);
        let claims = repro::judge(&runs);
        for number in 1..=7 {
            let name = format!("R{number}");
            assert!(claims.iter().any(|claim| claim.name.starts_with(&name)), "{name}");
        }
        assert!(claims.iter().all(|claim| !claim.because.is_empty()));
        // Where all runs are one and the same, none is better than another.
        let same: Vec<_> = points.iter().map(|_| points[0].clone()).collect();
        let claims = repro::judge(&Runs::new(&same));
        let holds = |name| claims.iter().find(|claim| claim.name == name).unwrap().holds;
        for name in ["R3b", "R4a", "R5d", "R5e", "R7"] {
            assert!(!holds(name), "{name}");
        }
        assert!(holds("R5c") && holds("R3a") != holds("R4b") && holds("R4b") == holds("R5a"));
        let drawings = repro::draw("p", &runs);
        assert!(drawings.len() >= 12);
        assert!(drawings.iter().all(|drawing| !drawing.svg.contains("NaN")));
        let summary = report::summary(points);
        assert_eq!(summary.rows.len(), Run::ALL.len());
        let json = report::json(&points[0].0, &points[0].1);
        assert_eq!(json["accesses"], 64_000);
        assert_eq!(json["workloads"].as_array().unwrap().len(), 4);
    }
}
