//! `rackpool repro optane`: the machine of the guide to Optane memory in virtual time, beside what
//! the guide says ([`claims`]) and the numbers behind its figures.
//!
//! ```text
//! ThreadLoad: what a thread does, operation by operation                          load.rs
//! threads -> controllers' queues -> link -> DIMMs (rack::pmem) or DRAM      machine.rs, queues.rs,
//!                                                                           memory.rs
//! what they take, with sources                                              costs.rs
//! runs of each figure -> curves                                             figures.rs
//! curves -> claims judged, the guide's four rules without and with          judge.rs, rules.rs
//! ```
//!
//! Each constant has its source and is called a setting, fitted or chosen ([`constants`]); what a
//! constant was fitted to is an input in `claims.toml` or marked in `published.toml`, and is never
//! counted as a result. What the figures show beyond that comes of the structure: units of 256 B,
//! a buffer of 64 shared by reads and writes, queues in order.
//!
//! Not in the model: hardware prefetching of reads, TLBs, processors of two threads a core, heat,
//! bad blocks, the directory of the caches. DRAM is a rate, a latency and a row that is open.
//!
//! Source: the guide (its text, figures 2 to 17); An Empirical Guide to the Behavior and Use of
//! Scalable Persistent Memory, FAST 2020, of which the authors published the numbers.

pub mod claims;
mod costs;
pub mod figures;
mod judge;
pub mod load;
mod machine;
mod memory;
mod queues;
pub mod rules;

use crate::run::Size;
use claims::{GuideClaims, Judged, Published};
use figures::run_all;
use memory::{DRAM_HIT, DRAM_INTERLEAVE_BYTES, DRAM_MISS, DRAM_READ_GAP, DRAM_WRITE_GAP};
use rackpool_rack::pmem::config::{ConstantOrigin, MediaConstant, OPTANE100};
use rackpool_sim::report::Table;
use rules::GuideRule;

#[derive(Clone, Debug)]
pub struct GuideStudy {
    pub claims: GuideClaims,
    pub judged: Vec<Judged>,
    /// A table for each part of a figure.
    pub tables: Vec<Table>,
    pub rules: Vec<GuideRule>,
    /// The published points of figures.
    pub points: Vec<ShownPoint>,
}

/// A point of a figure beside the published one.
#[derive(Clone, Debug)]
pub struct ShownPoint {
    /// Figure, series and place on the axis.
    pub name: String,
    pub unit: &'static str,
    pub ours: f64,
    pub paper: f64,
    /// A constant was fitted to it.
    pub is_fitted: bool,
}

impl GuideStudy {
    /// How many claims with a number hold, and how many there are; then the same of those that
    /// say an order.
    pub fn totals(&self) -> [(usize, usize); 2] {
        [true, false].map(|is_number| {
            let of = self.judged.iter().filter(|one| one.claim.value.is_some() == is_number);
            (of.clone().filter(|one| one.holds).count(), of.count())
        })
    }
}

/// All numbers of the model that are not the guide's words.
pub fn constants() -> Vec<MediaConstant> {
    let dram = |name, value: rackpool_sim::time::Ps, source| {
        let value = value.as_ns_f64();
        MediaConstant { name, value, unit: "ns", origin: ConstantOrigin::Fitted, source }
    };
    let mut all = OPTANE100.constants();
    all.extend(costs::constants());
    all.push(MediaConstant {
        name: "dram_interleave",
        value: DRAM_INTERLEAVE_BYTES as f64,
        unit: "B",
        origin: ConstantOrigin::Chosen,
        source: "the guide has 4 KiB of persistent memory alone; 256 B is usual of DRAM",
    });
    all.extend([
        dram("dram_open_row", DRAM_HIT, "figure 2: 81.4 ns in order, less the way there"),
        dram("dram_closed_row", DRAM_MISS, "figure 2: 101.5 ns at random, less the way there"),
        dram("dram_read_gap", DRAM_READ_GAP, "table of figure 4: 105.6 GB/s of six channels"),
        dram("dram_write_gap", DRAM_WRITE_GAP, "table of figure 4: 76.8 GB/s of six channels"),
    ]);
    all
}

/// Runs all figures and judges what the guide says. `told` hears what is run.
pub fn run(size: Size, told: &mut dyn FnMut(&str)) -> GuideStudy {
    let (claims, published) = (GuideClaims::of_the_guide(), Published::all());
    let figures = run_all(size, told);
    let judged = judge::judge(&claims, &figures);
    told("the four rules");
    let rules = rules::run_rules(size, &figures);
    let tables = figures.all.iter().map(|figure| figure.table(&published)).collect();
    let points = figures.all.iter().flat_map(|figure| figure.shown(&published)).collect();
    GuideStudy { claims, judged, tables, rules, points }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_is_judged_once_and_every_published_number_has_its_point() {
        let study = run(Size::Smoke, &mut |_| ());
        let names: Vec<&str> = study.judged.iter().map(|one| &*one.claim.name).collect();
        let stated: Vec<&str> = study.claims.claim.iter().map(|claim| &*claim.name).collect();
        assert_eq!(names, stated);
        for one in &study.judged {
            assert!(one.ours.is_finite(), "{}: {}", one.claim.name, one.because);
        }
        assert_eq!(study.points.len(), Published::all().point.len());
        assert!(study.points.iter().all(|point| point.ours.is_finite()));
        for rule in &study.rules {
            assert!(rule.without.is_none_or(f64::is_finite) && rule.with.is_finite(), "{rule:?}");
        }
    }

    #[test]
    fn constants_have_a_name_and_a_source_each() {
        let all = constants();
        let mut names: Vec<&str> = all.iter().map(|one| one.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert!(all.iter().all(|one| one.source.len() > 9 && one.value > 0.0));
    }
}
