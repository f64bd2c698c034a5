//! What to buy, before buying it: how much memory for machines and how much for pools, at which
//! cost and latency, and whether to pool at all.
//!
//! ```text
//!  virtual machines → packing → capacity engine → GiB, risk, blast radius ─┐
//!  addresses → rack model → performance engine → latencies, links ─────────┼→ cost, front, answer
//!  prices, each with date and source ──────────────────────────────────────┘
//! ```
//!
//! Beside these a cache over several memories is divided by its curve of hits (`cache.rs`).
//!
//! The two engines share a design's numbers and nothing else: no latency is inferred from virtual
//! machines, and no need of memory from addresses. Each design is tried with the same seeds; an
//! answer is a function of the file, the traces and the seeds, whatever the number of threads.

mod answer;
mod cache;
mod capacity;
mod check;
mod confirm;
mod cost;
mod decide;
mod design;
mod html;
mod input;
mod locate;
mod packing;
mod performance;
mod point;
mod samples;
mod sensitivity;
mod stats;
mod summary;
mod tables;
mod tiers;
mod units;

pub use answer::Answer;
pub use cache::{CacheAnswer, CacheSplit};
pub use capacity::Blast;
pub use confirm::{Check, Claim};
pub use cost::Cost;
pub use decide::Verdict;
pub use design::Design;
pub use html::page;
pub use input::*;
pub use performance::{LATENCY_NAMES, Latency};
pub use point::{Baseline, Point};
pub use samples::write as write_samples;
pub use sensitivity::{BreakEven, Swing};
pub use stats::Estimate;
pub use summary::{Origin, SCHEMA, json};
pub use tiers::TierFacts;
pub use units::{Size, Span};

use crate::live::RecordingError;
use crate::run::SimError;
use crate::trace::TraceError;
use confirm::Trial;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A plan's file that runs as it is, with comments. Its prices are made up.
pub const EXAMPLE: &str = include_str!("example.toml");

/// A plan without an answer.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file says something that cannot be meant. Correct it.
    #[error("line {line}: `{field}`: {reason}")]
    Field {
        line: usize,
        field: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A table of virtual machines cannot be read.
    #[error(transparent)]
    Table(#[from] TraceError),
    /// A trace of virtual machines says nothing.
    #[error("the trace of virtual machines: {0}")]
    Trace(String),
    /// A recording of a running pool.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// A rack cannot be simulated.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// The samples cannot be written.
    #[error("writing samples: {0}")]
    Samples(String),
}

/// How a plan is worked out.
pub struct Progress<'a> {
    /// Threads, one at least.
    pub threads: usize,
    /// Set from outside to stop.
    pub stop: &'a AtomicBool,
    /// Is told what goes on, how far it is, and how far it goes.
    pub told: &'a (dyn Fn(&str, u64, u64) + Sync),
}

/// Works a plan out: both engines, costs, the answer, and its claim tried with other seeds.
/// Blocks for as long as that takes.
///
/// # Errors
/// A trace or recording that cannot be read, a rack that runs out of memory, or
/// [`SimError::Stopped`].
pub fn work_out(plan: &Plan, progress: &Progress<'_>) -> Result<Answer, PlanError> {
    answer::work_out(plan, progress)
}

/// Tries an answer's claim with as many seeds as the plan has, from `first_seed` on; nothing if
/// the answer claims nothing.
///
/// # Errors
/// As [`work_out`].
pub fn confirm(
    plan: &Plan,
    answer: &Answer,
    first_seed: u64,
    progress: &Progress<'_>,
) -> Result<Vec<Check>, PlanError> {
    let Some(claim) = &answer.claim else { return Ok(Vec::new()) };
    confirm::confirm(
        plan,
        Trial { claim, point: &answer.points[claim.point], first_seed },
        progress,
    )
}

/// Does `count` pieces of work on the threads; results in the order of their numbers.
fn side_by_side<T: Send>(
    count: usize,
    what: &str,
    progress: &Progress<'_>,
    work: impl Fn(usize) -> Result<T, PlanError> + Sync,
) -> Result<Vec<T>, PlanError> {
    let next = AtomicUsize::new(0);
    let over = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<T, PlanError>>>> =
        Mutex::new((0..count).map(|_| None).collect());
    let worker = || {
        loop {
            // Relaxed: a counter that orders nothing else.
            let number = next.fetch_add(1, Ordering::Relaxed);
            // Relaxed: seen sooner or later.
            if number >= count || progress.stop.load(Ordering::Relaxed) {
                return;
            }
            let result = work(number);
            results.lock().expect("no piece of work panics")[number] = Some(result);
            // Relaxed: it is shown to people.
            let done = over.fetch_add(1, Ordering::Relaxed) + 1;
            (progress.told)(what, done as u64, count as u64);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..progress.threads.clamp(1, count.max(1)) {
            scope.spawn(worker);
        }
        worker();
    });
    let results = results.into_inner().expect("no piece of work panics");
    results.into_iter().map(|it| it.unwrap_or(Err(SimError::Stopped.into()))).collect()
}
