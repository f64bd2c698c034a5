//! The guide's four rules, each with and without, in the model: what keeping to it gives.
//!
//! No constant was fitted to what a rule shows: those of rule i come of figures 2 to 5 and of the
//! floor of figure 9, of rule ii of figures 2, 4, 13 and 17, of rule iii of figures 2 to 5, of rule
//! iv of the idle latencies and figure 6; how many units wait for the medium, and how many are a
//! block of the buffer, of raw data that no figure shows.

use super::figures::{Figures, KIB, THREADS, run_instructions};
use super::judge::{bandwidth_crossover, latency_crossover};
use super::load::{AccessOrder, GuideAccess, ThreadLoad};
use super::machine::{self, Length, Ran, Setting};
use super::memory::MemoryPlace;
use crate::run::Size;
use rackpool_rack::pmem::config::OPTANE100;
use rackpool_sim::report::Table;
use rackpool_sim::time::Ps;

const SEED: u64 = 38;
/// Threads that want to write, and how many of them rule iii lets.
const THREADS_MANY: usize = 24;
const WRITERS: [(MemoryPlace, usize); 2] =
    [(MemoryPlace::Single, 1), (MemoryPlace::Interleaved, 4)];
/// What is left of the peak has to be within this.
const KEPT_MIN: f64 = 0.95;
const EWR_MIN: f64 = 0.9;

#[derive(Clone, Debug)]
pub struct GuideRule {
    pub name: &'static str,
    pub what: String,
    /// `None` where a rule is at which size it begins to hold.
    pub without: Option<f64>,
    pub with: f64,
    /// What the guide has for it.
    pub paper: Option<f64>,
    pub unit: &'static str,
    pub holds_if: &'static str,
    pub holds: bool,
}

struct RuleRuns {
    warm_up: Ps,
    counted: Ps,
}

/// Runs the rules alone, with the figure that they need. `told` hears what is run.
pub fn run(size: Size, told: &mut dyn FnMut(&str)) -> Vec<GuideRule> {
    told("figure 12");
    let figures = run_instructions(size);
    told("the four rules");
    run_rules(size, &figures)
}

/// Runs what the figures have not.
pub fn run_rules(size: Size, figures: &Figures) -> Vec<GuideRule> {
    let (warm_us, counted_us) = match size {
        Size::Smoke => (10, 20),
        Size::Quick => (40, 60),
        Size::Full => (60, 300),
    };
    let lab = RuleRuns { warm_up: Ps::us(warm_us), counted: Ps::us(counted_us) };
    let mut rules = vec![lab.small_writes()];
    rules.push(large_writes(figures));
    rules.extend(crossovers(figures));
    rules.extend(WRITERS.map(|(place, writers)| lab.writers(place, writers)));
    rules.push(lab.node());
    rules
}

/// The rules as they are shown.
pub fn table(rules: &[GuideRule]) -> Table {
    let columns = [
        ("rule", ""),
        ("what", ""),
        ("without", ""),
        ("with", ""),
        ("unit", ""),
        ("origin", ""),
        ("holds", ""),
        ("holds if", ""),
    ];
    let mut table = Table::new("rules", "The guide's rules, without and with", &columns);
    for rule in rules {
        table.row([
            rule.name.into(),
            (&*rule.what).into(),
            rule.without.into(),
            rule.with.into(),
            rule.unit.into(),
            "predicted".into(),
            if rule.holds { "yes" } else { "NO" }.into(),
            rule.holds_if.into(),
        ]);
    }
    table
}

/// Rule ii: what ntstore gives where it is better.
fn large_writes(figures: &Figures) -> GuideRule {
    let rate = |kind: GuideAccess| figures.get("12 bandwidth").at(kind.name(), 4096.0);
    let [without, with] = [GuideAccess::Clwb, GuideAccess::Nt].map(rate);
    GuideRule {
        name: "rule_ii",
        what: "six threads write 4 KiB by store and clwb, or by ntstore".into(),
        without: Some(without),
        with,
        // Table of figure 12.
        paper: Some(13.45),
        unit: "GB/s",
        holds_if: "more with it",
        holds: with > without,
    }
}

/// Rule ii: from which size on ntstore is better.
fn crossovers(figures: &Figures) -> [GuideRule; 2] {
    let of = |name, what: &str, found: Option<u64>, should: u64, holds_if| GuideRule {
        name,
        what: format!("size from which on ntstore {what} than store and clwb"),
        without: None,
        // 0: it never does.
        with: found.map_or(0.0, |bytes| bytes as f64),
        paper: Some(should as f64),
        unit: "B",
        holds_if,
        holds: found == Some(should),
    };
    let bandwidth = bandwidth_crossover(figures);
    let latency = latency_crossover(figures);
    [
        of("rule_ii_bandwidth", "has more bandwidth", bandwidth, 256, "256 B, as of the guide"),
        of("rule_ii_latency", "takes less time", latency, 512, "512 B, as of the guide"),
    ]
}

impl RuleRuns {
    fn run(&self, load: ThreadLoad, place: MemoryPlace, threads: usize, at_once_max: usize) -> Ran {
        self.from(load, place, threads, at_once_max, false)
    }

    fn from(
        &self,
        load: ThreadLoad,
        place: MemoryPlace,
        threads: usize,
        most: usize,
        is_remote: bool,
    ) -> Ran {
        let RuleRuns { warm_up, counted } = *self;
        let length = Length::Time { warm_up, counted };
        let at_once_max = most;
        let setting = Setting { place, threads, is_remote, at_once_max, length, seed: SEED };
        machine::run(load, setting)
    }

    /// Rule i: random writes of 64 B, anywhere and within the buffer of one DIMM.
    fn small_writes(&self) -> GuideRule {
        let load = ThreadLoad::new(GuideAccess::Nt, AccessOrder::Random, 64);
        let ratio = |bytes| {
            let ran = self.run(load.within(bytes), MemoryPlace::Single, 1, 1);
            ran.counts.effective_write_ratio(&OPTANE100).unwrap_or(0.0)
        };
        let (without, with) = (ratio(1 << 30), ratio(16 * KIB));
        GuideRule {
            name: "rule_i",
            what: "random ntstores of 64 B to 1 GiB, and to 16 KiB of one DIMM".into(),
            without: Some(without),
            with,
            paper: None,
            unit: "EWR",
            holds_if: "0.9 or more with it, 0.25 within a tenth without",
            holds: with >= EWR_MIN && (without / 0.25 - 1.0).abs() <= 0.1,
        }
    }

    /// Rule iii: many threads write, and a few of them at once.
    fn writers(&self, place: MemoryPlace, writers: usize) -> GuideRule {
        let load = ThreadLoad::new(GuideAccess::Nt, AccessOrder::Sequential, 4 * KIB).fenced();
        let rate = |threads, most| self.run(load, place, threads, most).gbytes_per_s();
        let peak = THREADS.map(|threads| rate(threads, threads)).into_iter().fold(0.0, f64::max);
        let (without, with) = (rate(THREADS_MANY, THREADS_MANY), rate(THREADS_MANY, writers));
        let place = place.name();
        GuideRule {
            name: if writers == 1 { "rule_iii_ni" } else { "rule_iii_i" },
            what: format!("{THREADS_MANY} threads write {place}, at most {writers} at once"),
            without: Some(without / peak),
            with: with / peak,
            paper: None,
            unit: "of the peak",
            holds_if: "0.95 or more with it",
            holds: with >= KEPT_MIN * peak,
        }
    }

    /// Rule iv: eight threads read and write from afar, or have four there do it.
    fn node(&self) -> GuideRule {
        let load = ThreadLoad::new(GuideAccess::Nt, AccessOrder::Sequential, 256).mixed(75);
        let rate = |threads, is_remote| {
            self.from(load, MemoryPlace::Interleaved, threads, threads, is_remote).gbytes_per_s()
        };
        let (without, with) = (rate(8, true), rate(4, false));
        GuideRule {
            name: "rule_iv",
            what: "3:1 reads and writes by 8 remote threads, or by 4 local owners".into(),
            without: Some(without),
            with,
            paper: None,
            unit: "GB/s",
            holds_if: "more with it",
            holds: with > without,
        }
    }
}
