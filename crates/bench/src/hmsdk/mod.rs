//! `rackpool repro hmsdk`: the product's cache over DDR5 and CXL memory in virtual time, beside
//! what the study of HMSDK with CacheLib says ([`claims`]). Nothing here was chosen by a claim.
//!
//! ```text
//! workload -> 3 engines (rackpool-cache) -> lines touched -> shared cache -> Trace    trace.rs
//! Trace -> 60 cores, in closed loop or paced -> queues of DDR5 and CXL channels       replay.rs
//! runs for each reading of the study -> claims judged                                 case.rs
//! ```
//!
//! An engine is `rackpool_cache::Cache` with its index, segments and eviction; where a get misses,
//! the value is set. An operation computes, reads its buckets one after the other, then the pieces
//! of its item, of each as many lines at once as a core can; it writes where the cache writes. A
//! line is in near or far memory where the engine put its item (data tiering: `Options::far`, split
//! by bandwidth), by its page's turn among weights (transparent tiering), or in far memory with all
//! items.
//!
//! Parameters and their sources; "study": the seed's text, part Evaluation.
//! - 3 engines of 20 cores, 40 GB of cache, CXL of 40 GB/s: study, Graph Follower.
//!   Whether 40 GB are each engine's or all together's it does not say: both are run.
//! - Workloads: Graph Follower is CacheBench's `follower_assocs`, with as many keys as give the
//!   study's 95 % hits; where bandwidth binds, `cdn`, the only other one that the study names, with
//!   as many for a byte of cache as CacheBench's configuration, whose cache has 8 GiB.
//! - DDR5-4800 (HMSDK's page on its prototype; timing by JESD79-5): a socket's 8 channels, 307
//!   GB/s; or one, 38 GB/s, as "DDR memory (bandwidth 40 GB/s)" of the study can be read: both.
//! - CXL: four lanes with a DDR5-4800 sub-channel each, 40 GB/s of lines each way (study); 70 ns
//!   each way (chosen, as `--emulate cxl=140ns`).
//! - Pages of transparent tiering: 4 KiB (study, HMSDK: the kernel's page interleaving).
//! - Between core and channel 70 ns, so that an idle read takes 105 ns; a shared cache of 112.5 MB,
//!   30 ns; 16 lines that a core reads at once: chosen, as of a socket of 60 cores with DDR5-4800.
//! - Time of the processor: [`GET_PS`], [`SET_PS`], [`COPIED_LINE_PS`], measured by [`cpu`].
//!
//! Scaled: an engine has some MiB instead of GB; its keys and the shared cache are as much smaller,
//! its clock as much faster. Two sizes have to agree, which a table shows: both are as warm, and
//! among keys that are asked for equally often lengths are dealt evenly, as of many more keys they
//! would be; drawn, some long ones would make one size another workload. Not in the model: locks,
//! TLBs, processors of two threads a core, a database behind the cache.
//!
//! Source: Improving key-value cache performance with heterogeneous memory tiering, IEEE Micro
//! 2024, of which the seed has a part; absolute rates and DRAM to CXL ratios are not in it.

mod case;
pub mod claims;
pub mod cpu;
pub(crate) mod replay;
pub(crate) mod trace;

use crate::cache::workload::all;
use crate::run::{BenchError, Size};
use case::Case;
use claims::{Claims, Judged};
use rackpool_sim::report::Table;
use rackpool_sim::time::Ps;
use replay::{Devices, Load, Place, play};
use trace::{EngineMemory, KeyedWorkload, Trace, TraceOptions, hit_ratio, record};

pub(crate) const ENGINES: usize = 3;
pub(crate) const CORES: usize = 60;
/// Lines that a core reads at once.
const LINES_MAX: usize = 16;
/// Between a core and a memory's channel, both ways together.
const UNCORE: Ps = Ps::ns(70);
/// The processor's shared cache.
const LLC_BYTES: f64 = 112.5e6;
const LLC_PS: u64 = 30_000;
/// Time of the processor for a get, as [`cpu`] measured it in a release build on an Intel Xeon of a
/// virtual machine.
pub const GET_PS: u64 = 61_600;
/// For a set.
pub const SET_PS: u64 = 143_700;
/// For each line of key and value.
pub const COPIED_LINE_PS: u64 = 960;
const PAGE_BYTES: u64 = 4096;
/// Most by which what half of the memory in CXL costs may differ between two scaled sizes for them
/// to agree.
const SIZES_OFF_PERCENT_MAX: f64 = 3.0;
pub(crate) const CXL: (&str, usize) = ("cxl:70:10.625:ddr5-4800", 4);
/// What the study's bandwidth of DDR memory may mean, in sub-channels of DDR5-4800.
pub(crate) const DDR: [(&str, usize); 2] = [("DDR 307 GB/s", 16), ("DDR 38 GB/s", 2)];

/// Fewest and most keys among which those are searched that give the study's hits, times as many as
/// CacheBench has …
const KEYS: [f64; 2] = [0.25, 64.0];
/// … until so many times the fewest that remain are the most.
const KEYS_OFF: f64 = 1.02;
/// Operations for each item that fits that are enough for that.
const KEYS_WARM_UP: f64 = 24.0;

/// How much is run.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Memory of an engine.
    engine_bytes: u64,
    /// Keys of an engine that are stored first, for each item that fits.
    stored: f64,
    /// Operations of an engine's warm-up for each item that fits.
    warm_up: f64,
    cdn_ops: usize,
    follower_ops: usize,
}

impl Scale {
    fn of(size: Size) -> Scale {
        let (engine_mib, stored, warm_up, cdn_ops, follower_ops) = match size {
            Size::Smoke => (16, 0.5, 1.0, 180, 1_800),
            Size::Quick => (16, 1.0, 4.0, 400, 8_000),
            Size::Full => (64, 3.0, 60.0, 4_000, 240_000),
        };
        Scale { engine_bytes: engine_mib << 20, stored, warm_up, cdn_ops, follower_ops }
    }

    /// What records so many operations; the engines are as warm whatever their memory is.
    fn options<'w>(
        &self,
        keyed: &'w KeyedWorkload,
        memory: EngineMemory,
        shrink: f64,
        ops: usize,
    ) -> TraceOptions<'w> {
        let fits = self.engine_bytes as f64 / (keyed.workload.value_bytes_mean() + 60.0);
        TraceOptions {
            keyed,
            keys_bytes: self.engine_bytes,
            memory,
            shrink,
            gbytes_per_s: [1.0; 2],
            ops_per_s: f64::INFINITY,
            stored_first: (fits * self.stored) as usize,
            warm_up: (fits * self.warm_up) as usize,
            ops,
        }
    }

    fn near(&self) -> EngineMemory {
        EngineMemory { near_bytes: self.engine_bytes, far_bytes: 0 }
    }
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Study {
    pub claims: Claims,
    pub judged: Vec<Judged>,
    /// Every run, and what two sizes give.
    pub tables: Vec<Table>,
    /// Times as many keys as CacheBench has for the same cache, so that Graph Follower has the
    /// study's hits.
    pub follower_keys: f64,
    /// Hits of Graph Follower with all in one memory, of all gets.
    pub follower_hits_percent: f64,
    /// Ns of the processor as this machine has them: a get, a set, a line.
    pub cpu_ns: [f64; 3],
}

/// Traces of the two workloads with all in one memory.
struct Traces {
    cdn: Trace,
    follower: Trace,
}

struct Workloads {
    cdn: KeyedWorkload,
    follower: KeyedWorkload,
}

impl Workloads {
    /// Both with as many keys as CacheBench has.
    fn new() -> Workloads {
        let named = |name: &str| {
            let mut all = all().into_iter();
            let workload = all.find(|workload| workload.name == name).expect("one of them");
            KeyedWorkload { workload, keys: 1.0 }
        };
        Workloads { cdn: named("cdn"), follower: named("follower_assocs") }
    }

    /// Gives Graph Follower as many keys as leave it these hits: a setting of the study.
    fn with_follower_hits(mut self, scale: Scale, hits: f64) -> Result<Workloads, BenchError> {
        let [mut fewest, mut most] = KEYS;
        let scale = Scale { warm_up: scale.warm_up.min(KEYS_WARM_UP), ..scale };
        while most / fewest > KEYS_OFF {
            self.follower.keys = (fewest * most).sqrt();
            let found = hit_ratio(&scale.options(&self.follower, scale.near(), 1.0, 0))?;
            let bound = if found < hits { &mut most } else { &mut fewest };
            *bound = self.follower.keys;
        }
        Ok(self)
    }

    fn traces(&self, scale: Scale, shrink: f64) -> Result<Traces, BenchError> {
        let of = |keyed, ops| record(&scale.options(keyed, scale.near(), shrink, ops));
        Ok(Traces {
            cdn: of(&self.cdn, scale.cdn_ops)?,
            follower: of(&self.follower, scale.follower_ops)?,
        })
    }
}

/// Runs all cases. `told` hears what is run.
///
/// # Errors
/// [`BenchError::Cache`].
pub fn run(size: Size, told: &mut dyn FnMut(&str)) -> Result<Study, BenchError> {
    let (claims, scale) = (Claims::of_the_study(), Scale::of(size));
    told("time of the processor");
    let cpu_ns = cpu::measure()?;
    told("as many keys as give the study's hits");
    let hits = claims.input("hit_ratio_percent") / 100.0;
    let workloads = Workloads::new().with_follower_hits(scale, hits)?;
    let mut runs = case::table();
    let mut judged = Vec::new();
    let cache = claims.input("cache_gb") * 1e9;
    let readings = [("40 GB together", cache / ENGINES as f64), ("40 GB each", cache)];
    // A small run has only one.
    let readings = if size == Size::Full { &readings[..] } else { &readings[..1] };
    let mut recorded = Vec::new();
    for (reading, engine_bytes) in readings {
        let shrink = *engine_bytes / scale.engine_bytes as f64;
        told(&format!("engines, {reading}"));
        let traces = workloads.traces(scale, shrink)?;
        for (ddr, lanes) in DDR {
            let name = format!("{ddr}, {reading}");
            let devices = Devices { near: ("ddr5-4800", lanes), far: CXL };
            let mut case = Case {
                name: &name,
                claims: &claims,
                workloads: &workloads,
                traces: &traces,
                devices,
                scale,
                shrink,
                runs: &mut runs,
                judged: &mut judged,
            };
            case.judge_all(told)?;
        }
        recorded.push(traces);
    }
    let order = |one: &Judged| claims.claim.iter().position(|claim| claim.name == one.claim.name);
    judged.sort_by_key(order);
    told("a larger size");
    let larger = Scale { engine_bytes: 2 * scale.engine_bytes, ..scale };
    let traces = workloads.traces(larger, readings[0].1 / larger.engine_bytes as f64)?;
    let (sizes, off_percent) = sizes([(scale, &recorded[0]), (larger, &traces)]);
    require_agreement(&mut judged, off_percent);
    let tables = vec![runs, sizes];
    let follower_keys = workloads.follower.keys;
    let follower_hits_percent = 100.0 * recorded[0].follower.hit_ratio();
    Ok(Study { judged, tables, follower_keys, follower_hits_percent, cpu_ns, claims })
}

/// Where two sizes do not agree, no number of either counts.
fn require_agreement(judged: &mut [Judged], off_percent: f64) {
    if off_percent <= SIZES_OFF_PERCENT_MAX {
        return;
    }
    for one in judged {
        one.holds = false;
        one.because = format!(
            "two scaled sizes differ by {off_percent:.1} %, so this does not count: {}",
            one.because
        );
    }
}

/// Two scaled sizes of the same cache, and by how much percent their ratios differ: the claims too
/// set one memory against another. Rates by themselves go with the few long values that are met.
fn sizes(sizes: [(Scale, &Traces); 2]) -> (Table, f64) {
    let columns = [
        ("engine", "MiB"),
        ("workload", ""),
        ("hit ratio", ""),
        ("all in DDR", "Mops/s"),
        ("half in CXL", "Mops/s"),
        ("ratio", ""),
    ];
    let title = "Two scaled sizes, DDR 307 GB/s, 40 GB together";
    let mut table = Table::new("sizes", title, &columns);
    let devices = Devices { near: ("ddr5-4800", DDR[0].1), far: CXL };
    let load = Load { cores: CORES, every: None };
    let mut ratios = Vec::new();
    for (scale, traces) in sizes {
        for (name, trace) in [("cdn", &traces.cdn), ("follower", &traces.follower)] {
            let rate = |place| play(trace, &devices, place, load).ops_per_s() / 1e6;
            let both = [Place::Near, Place::Weighted(1, 1)].map(rate);
            ratios.push(both[1] / both[0]);
            table.row([
                (scale.engine_bytes >> 20).into(),
                name.into(),
                trace.hit_ratio().into(),
                both[0].into(),
                both[1].into(),
                (both[1] / both[0]).into(),
            ]);
        }
    }
    let (small, large) = ratios.split_at(ratios.len() / 2);
    let off = small.iter().zip(large).map(|(small, large)| (large / small - 1.0).abs());
    let most = 100.0 * off.fold(0.0, f64::max);
    table.note(format!(
        "ratios of the two sizes differ by at most {most:.1} %; they agree up to \
         {SIZES_OFF_PERCENT_MAX} %"
    ));
    (table, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_has_the_inputs_of_the_study() {
        let claims = Claims::of_the_study();
        assert_eq!(claims.input("engines"), ENGINES as f64);
        assert_eq!(claims.input("cores_per_engine") * claims.input("engines"), CORES as f64);
        let devices = Devices { near: ("ddr5-4800", DDR[0].1), far: CXL };
        let [near, far] = devices.peaks();
        assert!((near - 307.2).abs() < 1.0, "{near}");
        assert!((far - claims.input("cxl_gb_per_s")).abs() < 0.1, "{far}");
    }

    #[test]
    fn streams_take_what_a_memory_has_and_weights_add_the_other() {
        let devices = Devices { near: ("constant:100:8", 2), far: ("constant:200:4", 2) };
        let trace = Trace::streams(12_000, 64, 1 << 28, false);
        let load = Load { cores: CORES, every: None };
        let rate = |place| play(&trace, &devices, place, load).gbytes_per_s().iter().sum::<f64>();
        let rates = [Place::Near, Place::Far, Place::Weighted(2, 1)].map(rate);
        for (rate, all) in rates.into_iter().zip([16.0, 8.0, 24.0]) {
            assert!((0.95 * all..=1.01 * all).contains(&rate), "{rates:?}");
        }
    }

    #[test]
    fn an_operation_alone_takes_the_sum_of_what_it_waits_for() {
        let devices = Devices { near: ("constant:100:64", 1), far: ("constant:200:64", 1) };
        let trace = Trace::streams(600, 16, 1 << 28, false);
        let load = Load { cores: ENGINES, every: Some(Ps::us(10)) };
        for (place, ns) in [(Place::Near, 100.0), (Place::Far, 200.0)] {
            // Sixteen lines one nanosecond after the other.
            let expected = ns + UNCORE.as_ns_f64() + 15.0;
            let played = play(&trace, &devices, place, load);
            assert!((played.latency_ns - expected).abs() < 1.0, "{played:?}");
        }
    }

    #[test]
    fn sizes_that_do_not_agree_leave_no_number_standing() {
        let claim = Claims::of_the_study().claim.remove(0);
        let one =
            Judged { claim, case: "a case".into(), ours: 15.0, holds: true, because: "cdn".into() };
        for (off_percent, holds) in [(2.9, true), (3.1, false), (f64::NAN, false)] {
            let mut judged = [one.clone()];
            require_agreement(&mut judged, off_percent);
            assert_eq!((judged[0].holds, judged[0].because == "cdn"), (holds, holds));
            assert!(judged[0].because.ends_with("cdn"), "{}", judged[0].because);
        }
    }

    #[test]
    fn items_alone_in_far_memory_leave_their_index_near() {
        let devices = Devices { near: ("constant:100:64", 1), far: ("constant:200:64", 1) };
        let traces = Workloads::new().traces(Scale::of(Size::Smoke), 1000.0).unwrap();
        let follower = &traces.follower;
        let load = Load { cores: CORES, every: None };
        let bytes = |place| play(follower, &devices, place, load).bytes;
        let ([near, far], [_, none]) = (bytes(Place::ItemsFar), bytes(Place::Near));
        assert!(near > 0 && far > 0 && none == 0, "{near} {far} {none}");
        assert!(0 < follower.touched_items && follower.touched_items < follower.touched);
    }

    #[test]
    fn every_claim_is_judged_in_every_case() {
        let study = run(Size::Smoke, &mut |_| ()).unwrap();
        assert_eq!(study.judged.len(), 2 * study.claims.claim.len());
        for claim in &study.claims.claim {
            let of = study.judged.iter().filter(|judged| judged.claim.name == claim.name);
            assert_eq!(of.filter(|judged| judged.ours.is_finite()).count(), 2, "{}", claim.name);
        }
        assert!(study.tables.iter().all(|table| !table.rows.is_empty()));
    }
}
