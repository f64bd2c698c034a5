//! The paper's figures, drawn from our runs.

use super::{Run, Runs};
use crate::model::stats::WorkloadStats;
use crate::model::{Config, Outcome};
use crate::report::{BIN_NAMES, bin_shares, total};
use rackpool_stats::svg::{Line, Lines, Stacks};

#[derive(Clone, Debug)]
pub struct Drawing {
    /// Name of its file, without ending.
    pub name: String,
    pub svg: String,
}

/// All drawings of one preset; `preset` begins their names.
pub fn draw(preset: &str, runs: &Runs<'_>) -> Vec<Drawing> {
    let curves = [
        ("2a", Run::AlternateRandom),
        ("3-random", Run::LocalRandom),
        ("3a", Run::LocalTurns),
        ("3b", Run::LocalIdle),
        ("4a", Run::AlternateTurns),
        ("4b", Run::AlternateIdle),
        ("4-ours", Run::AlternateEven),
    ];
    let mut drawings = Vec::new();
    let mut add = |name: &str, svg: String| {
        drawings.push(Drawing { name: format!("{preset}-{name}"), svg });
    };
    for (figure, run) in curves {
        add(&format!("figure-{figure}"), cumulative(runs.get(run)));
    }
    add("figure-2b", pools("Time at the pools, random", runs, &[Run::AlternateRandom]));
    let runs_3c = [Run::LocalTurns, Run::LocalIdle, Run::LocalEven];
    add("figure-3c", pools("Time at the pools, own memory first", runs, &runs_3c));
    add("figure-2d", spread(runs));
    add("figure-5a", bins(runs));
    add("figure-5b", breakdown(runs));
    drawings
}

fn window_us(outcome: &Outcome) -> f64 {
    outcome.window.as_ns_f64() / 1e3
}

fn timed(outcome: &Outcome, values: impl IntoIterator<Item = f64>) -> Vec<(f64, f64)> {
    let at = |(index, value)| ((index as f64 + 1.0) * window_us(outcome), value);
    values.into_iter().enumerate().map(at).collect()
}

/// Mean time of all accesses up to a time, of each program; black where own memory is full.
fn cumulative((config, outcome): &(Config, Outcome)) -> String {
    let line = |one: &WorkloadStats| {
        let points = timed(outcome, one.cumulative_ns());
        let mark = one.exhausted.and_then(|(first, _)| {
            let window = (first as f64 / 1e6 / window_us(outcome)) as usize;
            points.get(window).or(points.last()).copied()
        });
        Line { name: one.name.clone(), points, mark }
    };
    Lines {
        title: format!("Mean access time up to now, {}", config.placement),
        across: "virtual time, us (black: own memory is full)".into(),
        up: "ns".into(),
        lines: outcome.workloads.iter().map(line).collect(),
    }
    .svg()
}

/// Mean time at the pools up to a time, over all programs.
fn pools(title: &str, runs: &Runs<'_>, which: &[Run]) -> String {
    let line = |run: &Run| {
        let (config, outcome) = runs.get(*run);
        let windows = outcome.workloads.iter().map(|one| one.slices.len()).max().unwrap_or(0);
        let (mut count, mut ps) = (0u64, 0u64);
        let mean = (0..windows).map(|window| {
            for slice in outcome.workloads.iter().filter_map(|one| one.slices.get(window)) {
                count += slice.pool.count;
                ps += slice.pool.ps;
            }
            if count == 0 { 0.0 } else { ps as f64 / count as f64 / 1e3 }
        });
        let points = timed(outcome, mean);
        Line { name: config.placement.choice.to_string(), points, mark: None }
    };
    Lines {
        title: title.into(),
        across: "virtual time, us".into(),
        up: "ns".into(),
        lines: which.iter().map(line).collect(),
    }
    .svg()
}

fn spread(runs: &Runs<'_>) -> String {
    let which = [Run::AlternateRandom, Run::AlternateTurns, Run::AlternateIdle, Run::AlternateEven];
    let line = |run: &Run| {
        let (config, outcome) = runs.get(*run);
        let points = timed(outcome, outcome.pools.spread().into_iter().map(f64::from));
        Line { name: config.placement.choice.to_string(), points, mark: None }
    };
    Lines {
        title: "Most less fewest accesses of a pool in a window, alternate pages".into(),
        across: "virtual time, us".into(),
        up: "accesses".into(),
        lines: which.iter().map(line).collect(),
    }
    .svg()
}

fn bins(runs: &Runs<'_>) -> String {
    let bar = |run: &Run| {
        let (config, outcome) = runs.get(*run);
        let shares = bin_shares(outcome).map(|share| 100.0 * share);
        (config.placement.to_string(), shares.to_vec())
    };
    Stacks {
        title: "Remote accesses by their time at the pool".into(),
        unit: "%".into(),
        parts: BIN_NAMES.map(String::from).to_vec(),
        bars: Run::ALL.iter().map(bar).collect(),
    }
    .svg()
}

/// What the mean access is made of: each part's sum over all accesses.
fn breakdown(runs: &Runs<'_>) -> String {
    let bar = |run: &Run| {
        let (config, outcome) = runs.get(*run);
        let all = total(outcome, |one| one.all).count.max(1) as f64;
        let parts = [
            total(outcome, |one| one.local),
            total(outcome, |one| one.pool),
            total(outcome, WorkloadStats::network),
        ];
        let parts = parts.map(|sum| sum.ps as f64 / 1e3 / all);
        (config.placement.to_string(), parts.to_vec())
    };
    Stacks {
        title: "What a mean access is made of".into(),
        unit: "ns".into(),
        parts: ["own memory", "pool's memory", "network"].map(String::from).to_vec(),
        bars: Run::ALL.iter().map(bar).collect(),
    }
    .svg()
}
