//! An answer as JSON, for programs.

use super::answer::Answer;
use super::input::Plan;
use super::performance::LATENCY_NAMES;
use super::point::{Baseline, Point};
use super::stats::Estimate;
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_64;

/// Of `summary.json`: changes when a field changes its meaning or goes.
pub const SCHEMA: &str = "rackpool-plan/1";

/// Where an answer comes from.
#[derive(Clone, Debug)]
pub struct Origin {
    pub git_revision: String,
    pub plan_hash: u64,
}

impl Origin {
    pub fn new(git_revision: String, text: &str) -> Origin {
        Origin { git_revision, plan_hash: xxh3_64(text.as_bytes()) }
    }

    /// As the pairs that a file of samples keeps.
    pub fn pairs(&self, answer: &Answer) -> [(&'static str, String); 4] {
        [
            ("schema", SCHEMA.to_owned()),
            ("git_revision", self.git_revision.clone()),
            ("plan_hash", format!("{:016x}", self.plan_hash)),
            ("trace_hash", format!("{:016x}", answer.trace_hash)),
        ]
    }
}

/// The whole answer. Hashes are text: a number of 64 bits is not safe in every reader of JSON.
pub fn json(plan: &Plan, answer: &Answer, origin: &Origin) -> Value {
    let presets: Vec<Value> = plan
        .tiers
        .iter()
        .map(|tier| {
            let preset = tier.preset.name();
            json!({"tier": tier.name, "preset": preset, "pool_memory": tier.pool_memory})
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "kind": "simulated",
        "calibration": "uncalibrated",
        "name": plan.name,
        "git_revision": origin.git_revision,
        "plan_hash": format!("{:016x}", origin.plan_hash),
        "trace_hash": format!("{:016x}", answer.trace_hash),
        "seed": plan.run.first_seed,
        "seeds": plan.run.seeds,
        "confidence_percent": plan.run.confidence_percent,
        "interval": "student-t over seeds",
        "preset": presets,
        "tiers": plan.tier_facts(),
        "currency": plan.currency,
        "plan": plan,
        "baseline": baseline(&answer.baseline),
        "points": answer.points.iter().map(point).collect::<Vec<_>>(),
        "pareto": (0..answer.points.len())
            .filter(|index| answer.points[*index].is_on_front).collect::<Vec<_>>(),
        "recommendation": {
            "pool": answer.verdict.pool,
            "point": answer.verdict.best,
            "text": answer.verdict.text,
        },
        "sensitivity": answer.swings,
        "break_even": answer.break_even,
        "claim": answer.claim,
        "confirmed_with_first_seed": plan.run.first_seed.wrapping_add(plan.run.seeds.into()),
        "checks": answer.checks,
        "cache": answer.cache,
        "live": answer.live,
    })
}

fn baseline(one: &Baseline) -> Value {
    json!({
        "stranded_percent": one.stranded_percent,
        "used_percent": one.used_percent,
        "refused_percent": one.refused_percent,
        "machine_mib": one.right_mib,
        "cost": one.cost,
        "cost_as_bought": one.cost_as_bought,
        "latency": one.latency.iter().map(|(pod, latency)| {
            json!({"pod_machines": pod, "latency": latencies(latency)})
        }).collect::<Vec<_>>(),
    })
}

fn latencies(all: &[Estimate; 8]) -> Value {
    let pairs = LATENCY_NAMES.iter().zip(all);
    Value::Object(pairs.map(|(name, one)| ((*name).to_owned(), json!(one))).collect::<Map<_, _>>())
}

fn point(one: &Point) -> Value {
    json!({
        "label": one.label,
        "design": one.design,
        "machine_mib": one.local_mib,
        "pools_bought": one.pools_bought,
        "pool_mib": one.pool_mib,
        "demand_mib": one.demand_mib,
        "over_percent": one.over_percent,
        "blast": one.blast,
        "cost": one.cost,
        "cost_sum": one.cost.sum(),
        "saving_percent": one.saving_percent,
        "latency": latencies(&one.latency),
        "on_front": one.is_on_front,
        "fails": one.fails,
    })
}
