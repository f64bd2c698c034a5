//! The claims, and what is taken as their meaning.

use super::{Run, Runs};
use crate::model::stats::WorkloadStats;
use crate::model::{Config, Outcome};
use crate::report::{bin_shares, spread_share, total};
use serde::Serialize;

/// "Much less" is at most this part.
const MUCH_LESS: f64 = 0.5;
/// A "jump": the mean up to one of the ten epochs is more than this many times that up to the one
/// before it.
const JUMP: f64 = 1.5;
/// Epochs of a run: the published code ends after ten.
const EPOCHS: usize = 10;
/// "2 % take 1000 ns or more": from half to twice of it.
const SLOW_SHARE: [f64; 2] = [0.01, 0.04];
/// "Large" spread of pools: this part of a pool's mean count in the window.
const LARGE_SPREAD: f64 = 0.5;
const VERY_FEW: f64 = 0.05;

/// The origin of all that is judged here.
const PREDICTED: &str = "predicted";

/// A claim with what came out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PaperClaim {
    /// R1 to R7, with a letter for each part.
    pub name: &'static str,
    /// What is said, as it is judged.
    pub says: &'static str,
    /// Where what came out comes from: `predicted`, since no constant was chosen by a claim.
    pub origin: &'static str,
    pub holds: bool,
    /// The figures that decide it.
    pub because: String,
}

fn mean(point: &(Config, Outcome)) -> f64 {
    total(&point.1, |workload| workload.all).mean_ns()
}

fn network(point: &(Config, Outcome)) -> f64 {
    total(&point.1, WorkloadStats::network).mean_ns()
}

/// Cumulative means at the ends of ten epochs of a workload's time.
fn epochs(one: &WorkloadStats) -> Vec<f64> {
    let curve = one.cumulative_ns();
    let at = |epoch: usize| curve.get((curve.len() * epoch / EPOCHS).saturating_sub(1)).copied();
    (1..=EPOCHS).filter_map(at).collect()
}

/// The largest factor from one epoch to the next.
fn steepest(one: &WorkloadStats) -> f64 {
    let epochs = epochs(one);
    let factor = |pair: &[f64]| if pair[0] > 0.0 { pair[1] / pair[0] } else { 1.0 };
    epochs.windows(2).map(factor).fold(1.0, f64::max)
}

fn each(point: &(Config, Outcome), of: impl Fn(&WorkloadStats) -> String) -> String {
    let text = |one: &WorkloadStats| format!("{} {}", one.name, of(one));
    point.1.workloads.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Judges all claims by the runs of one preset.
pub fn judge(runs: &Runs<'_>) -> Vec<PaperClaim> {
    let mut claims = Vec::new();
    random(runs, &mut claims);
    local_first(runs, &mut claims);
    alternate(runs, &mut claims);
    details(runs, &mut claims);
    claims
}

fn random(runs: &Runs<'_>, claims: &mut Vec<PaperClaim>) {
    let point = runs.get(Run::AlternateRandom);
    claims.push(PaperClaim {
        name: "R1a",
        says: "random pools, alternate pages: every program's mean is above 1 us",
        origin: PREDICTED,
        holds: point.1.workloads.iter().all(|one| one.all.mean_ns() > 1_000.0),
        because: each(point, |one| format!("{:.0} ns", one.all.mean_ns())),
    });
    let (pool, remote) = (total(&point.1, |one| one.pool), total(&point.1, |one| one.remote));
    claims.push(PaperClaim {
        name: "R1b",
        says: "the time at the pool alone explains it: more than half of a remote access",
        origin: PREDICTED,
        holds: pool.mean_ns() > remote.mean_ns() / 2.0,
        because: format!("{:.0} ns of {:.0} ns", pool.mean_ns(), remote.mean_ns()),
    });
    let slow = bin_shares(&point.1)[5];
    claims.push(PaperClaim {
        name: "R1c",
        says: "some 2 % (1 to 4) of remote accesses take 1000 ns or more at the pool",
        origin: PREDICTED,
        holds: (SLOW_SHARE[0]..=SLOW_SHARE[1]).contains(&slow),
        because: format!("{:.1} %", 100.0 * slow),
    });
    let spread = spread_share(&point.1);
    claims.push(PaperClaim {
        name: "R2",
        says: "pools differ much in a window: by more than half of a pool's mean",
        origin: PREDICTED,
        holds: spread > LARGE_SPREAD,
        because: format!("by {:.2} of the mean", spread),
    });
}

fn local_first(runs: &Runs<'_>, claims: &mut Vec<PaperClaim>) {
    let turns = runs.get(Run::LocalTurns);
    let jumps = turns.1.workloads.iter().any(|one| steepest(one) > JUMP);
    claims.push(PaperClaim {
        name: "R3a",
        says: "own memory first, pools in turn: the mean jumps (1.5 times in an epoch)",
        origin: PREDICTED,
        holds: jumps,
        because: each(turns, |one| format!("at most {:.2} times", steepest(one))),
    });
    let by_random = mean(runs.get(Run::LocalRandom));
    claims.push(PaperClaim {
        name: "R3b",
        says: "pools in turn are much better than random ones: at most half the mean",
        origin: PREDICTED,
        holds: mean(turns) <= MUCH_LESS * by_random,
        because: format!("{:.0} ns, random {by_random:.0} ns", mean(turns)),
    });
    let mut worst: Vec<&WorkloadStats> = turns.1.workloads.iter().collect();
    worst.sort_by(|a, b| b.all.mean_ns().total_cmp(&a.all.mean_ns()));
    let first: Vec<&str> = worst.iter().take(2).map(|one| one.name.as_str()).collect();
    claims.push(PaperClaim {
        name: "R3c",
        says: "lbm and the FDTD code are the two worst",
        origin: PREDICTED,
        holds: first.contains(&"lbm") && first.contains(&"fdtd"),
        because: each(turns, |one| format!("{:.0} ns", one.all.mean_ns())),
    });
    let idle = runs.get(Run::LocalIdle);
    claims.push(PaperClaim {
        name: "R4a",
        says: "smart-idle is much better than turns: at most half the mean",
        origin: PREDICTED,
        holds: mean(idle) <= MUCH_LESS * mean(turns),
        because: format!("{:.0} ns, turns {:.0} ns", mean(idle), mean(turns)),
    });
    claims.push(gradual("R4b", "with smart-idle the mean rises without a jump", idle));
}

fn gradual(name: &'static str, says: &'static str, point: &(Config, Outcome)) -> PaperClaim {
    PaperClaim {
        name,
        says,
        origin: PREDICTED,
        holds: point.1.workloads.iter().all(|one| steepest(one) <= JUMP),
        because: each(point, |one| format!("at most {:.2} times", steepest(one))),
    }
}

fn alternate(runs: &Runs<'_>, claims: &mut Vec<PaperClaim>) {
    let [local_turns, local_idle] = [Run::LocalTurns, Run::LocalIdle].map(|run| runs.get(run));
    let [turns, idle] = [Run::AlternateTurns, Run::AlternateIdle].map(|run| runs.get(run));
    claims.push(gradual("R5a", "alternate pages, turns: no jump", turns));
    claims.push(gradual("R5b", "alternate pages, smart-idle: no jump", idle));
    let means = [local_turns, local_idle, turns, idle].map(mean);
    let all = format!(
        "own first: turns {:.0}, smart-idle {:.0} ns; alternate: turns {:.0}, smart-idle {:.0} ns",
        means[0], means[1], means[2], means[3]
    );
    claims.push(PaperClaim {
        name: "R5c",
        says: "alternate pages with smart-idle are the best of the four",
        origin: PREDICTED,
        holds: means.iter().all(|mean| means[3] <= *mean),
        because: all.clone(),
    });
    claims.push(PaperClaim {
        name: "R5d",
        says: "smart-idle is better than turns, by a smaller factor than with own memory first",
        origin: PREDICTED,
        holds: means[3] < means[2] && means[2] / means[3] < means[0] / means[1],
        because: format!("{:.2} times, {:.2} times", means[2] / means[3], means[0] / means[1]),
    });
    claims.push(PaperClaim {
        name: "R5e",
        says: "turns and smart-idle each do better with alternate pages",
        origin: PREDICTED,
        holds: means[2] < means[0] && means[3] < means[1],
        because: all,
    });
}

fn details(runs: &Runs<'_>, claims: &mut Vec<PaperClaim>) {
    let above = |run| bin_shares(&runs.get(run).1)[3..].iter().sum::<f64>();
    let (idle, turns) = (above(Run::AlternateIdle), above(Run::AlternateTurns));
    claims.push(PaperClaim {
        name: "R6",
        says: "with smart-idle very few (5 %) remote accesses take over 500 ns at the pool",
        origin: PREDICTED,
        holds: idle < VERY_FEW,
        because: format!("{:.1} %, turns {:.1} %", 100.0 * idle, 100.0 * turns),
    });
    let pairs = [(Run::LocalIdle, Run::LocalTurns), (Run::AlternateIdle, Run::AlternateTurns)];
    let times = pairs.map(|(idle, turns)| [network(runs.get(idle)), network(runs.get(turns))]);
    claims.push(PaperClaim {
        name: "R7",
        says: "with smart-idle a remote access spends less time in the network",
        origin: PREDICTED,
        holds: times.iter().all(|[idle, turns]| idle < turns),
        because: format!(
            "own first {:.1} ns, turns {:.1} ns; alternate {:.1} ns, turns {:.1} ns",
            times[0][0], times[0][1], times[1][0], times[1][1]
        ),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_sim::time::Ps;

    fn curve(means_ns: &[u64]) -> WorkloadStats {
        let mut stats = WorkloadStats::new("w");
        for (window, ns) in means_ns.iter().enumerate() {
            stats.local(window, Ps::ns(*ns));
        }
        stats
    }

    #[test]
    fn a_jump_is_seen_and_a_slow_rise_is_none() {
        // Up to the sixth epoch 100 ns, in the seventh 1000.
        let jump = curve(&[100, 100, 100, 100, 100, 100, 1000, 1000, 1000, 1000]);
        assert!(steepest(&jump) > JUMP, "{}", steepest(&jump));
        let slow = curve(&[100, 120, 140, 160, 180, 200, 220, 240, 260, 280]);
        assert!(steepest(&slow) < 1.2, "{}", steepest(&slow));
        assert_eq!(epochs(&slow).len(), EPOCHS);
        assert_eq!(steepest(&curve(&[])), 1.0);
    }
}
