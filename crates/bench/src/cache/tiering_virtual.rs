//! Whether `tiers advise` names the best mode, in virtual time: the modes that it chooses between,
//! each run by the product's cache on the devices of `repro hmsdk`.
//!
//! In: a workload. Out: [`Judged`]. A socket of 60 cores for three engines, with DDR5 and CXL
//! memory. Each engine has DRAM of half of the cache that the workload was taken of, and may have
//! as much CXL memory: *dram* has the one, *transparent* what the weights leave of both, *data*
//! both. Look-aside clients ask for half of what the cache in DRAM carries; a miss costs the cache
//! a store and its client [`MISS_NS`]. What counts is how many look-ups a second a client that
//! waits for each has answered, by its mean time. A mode that does not carry the load falls behind
//! it and has hardly any.
//!
//! `advise` is told what a user can tell it: the devices' speeds, taken here as `tiers measure`
//! takes them; the workload (`workload_load.rs`); what the cache in DRAM counts at that load.
//! Scaled as `hmsdk` has it; nothing depends on this machine.

use super::ratio::ORIGINAL_BYTES;
use super::tiering_advice::Judged;
use super::workload::CacheWorkload;
use super::workload_load::observed_load;
use crate::hmsdk::replay::{Devices, Load, Place, play};
use crate::hmsdk::trace::{EngineMemory, KeyedWorkload, Trace, TraceOptions, record};
use crate::hmsdk::{CORES, CXL, DDR, ENGINES};
use crate::run::{BenchError, Size};
use rackpool_sim::time::Ps;
use rackpool_tiers::advice::{CacheMemory, ObservedLoad, TieringAdvice, TieringMode, advise};
use rackpool_tiers::weights::{MixPoint, WeightsError, mixed_mbps};

const LINE_BYTES: u64 = 64;
/// Memory that is streamed through, and how much of it at once, to see what it delivers.
const STREAM_BYTES: u64 = 1 << 28;
const STREAM_LINES: u64 = 64;
const STREAMS_PER_CORE: usize = 60;
/// Memory of an engine of either kind, not scaled.
const HALF_BYTES: u64 = ORIGINAL_BYTES as u64 / 2;
/// Of the items that both memories hold, how many are stored first, and how many operations warm
/// the cache up.
const STORED_FIRST: f64 = 2.0;
const WARM_UP: f64 = 8.0;
/// What a miss costs its client: as `tiers advise` takes it.
const MISS_NS: f64 = 100_000.0;
const CLOSED: Load = Load { cores: CORES, every: None };

/// What a memory delivers; bandwidths of reads and stores, MB/s.
#[derive(Clone, Copy, Debug)]
struct DeviceSpeed {
    latency_ns: f64,
    all_mbps: [f64; 2],
    thread_mbps: [f64; 2],
}

impl DeviceSpeed {
    fn of(devices: &Devices, place: Place) -> DeviceSpeed {
        let run = |lines, are_stores, cores| {
            let trace = Trace::streams(STREAMS_PER_CORE * cores, lines, STREAM_BYTES, are_stores);
            play(&trace, devices, place, Load { cores, every: None })
        };
        let mbps = |cores| {
            [false, true].map(|are_stores| {
                let ops_per_s = run(STREAM_LINES, are_stores, cores).ops_per_s();
                ops_per_s * (STREAM_LINES * LINE_BYTES) as f64 / 1e6
            })
        };
        DeviceSpeed {
            latency_ns: run(1, false, ENGINES).latency_ns,
            all_mbps: mbps(CORES),
            thread_mbps: mbps(ENGINES).map(|mbps| mbps / ENGINES as f64),
        }
    }

    fn memory(&self, read_share: f64) -> Result<CacheMemory, WeightsError> {
        let [read, store] = self.all_mbps;
        let points = [(1.0, read), (0.0, store)];
        let points = points.map(|(read_share, mbps)| MixPoint { read_share, mbps });
        let [thread_mbps, thread_store_mbps] = self.thread_mbps;
        Ok(CacheMemory {
            bytes: HALF_BYTES,
            latency_ns: self.latency_ns,
            bandwidth_mbps: mixed_mbps(&points, read_share)?,
            thread_mbps,
            thread_store_mbps,
        })
    }
}

/// The socket.
pub(super) struct VirtualSocket {
    devices: Devices,
    near: DeviceSpeed,
    far: DeviceSpeed,
    /// Memory of an engine of either kind, scaled, and lines that a run asks for, about.
    half_bytes: u64,
    lines: f64,
}

impl VirtualSocket {
    pub fn new(size: Size) -> VirtualSocket {
        let devices = Devices { near: ("ddr5-4800", DDR[0].1), far: CXL };
        let [near, far] = [Place::Near, Place::Far].map(|place| DeviceSpeed::of(&devices, place));
        let (mib, lines) = match size {
            Size::Smoke => (8, 1e5),
            Size::Quick => (16, 1e6),
            Size::Full => (32, 2e6),
        };
        VirtualSocket { devices, near, far, half_bytes: mib << 20, lines }
    }

    /// # Errors
    /// [`BenchError`].
    pub fn judge(&self, workload: &CacheWorkload) -> Result<Judged, BenchError> {
        let keyed = KeyedWorkload { workload: workload.clone(), keys: 1.0 };
        let half = self.half_bytes;
        let dram = self.trace(&keyed, half, 0, f64::INFINITY)?;
        let most_per_s = play(&dram, &self.devices, Place::Near, CLOSED).ops_per_s();
        let every = Some(Ps((2e12 * CORES as f64 / most_per_s) as u64));
        let half_load = Load { cores: CORES, every };
        let advice = self.advise(workload, &dram, half_load)?;
        let mut modes = advice.modes.iter();
        let both = modes.find(|one| one.mode == TieringMode::Transparent);
        let both = both.expect("with two memories there is this mode");
        let [near, far] = both.weights.expect("this mode has weights").map(u64::from);
        let scaled = (both.capacity_bytes as f64 * half as f64 / HALF_BYTES as f64) as u64;
        let transparent = self.trace(&keyed, scaled, 0, f64::INFINITY)?;
        let data = self.trace(&keyed, half, half, most_per_s)?;
        let gets_per_s = |trace: &Trace, place| {
            let played = play(trace, &self.devices, place, half_load);
            1e9 / (played.latency_ns + (1.0 - trace.hit_ratio()) * MISS_NS)
        };
        let scores = [
            gets_per_s(&dram, Place::Near),
            gets_per_s(&dram, Place::Far),
            gets_per_s(&transparent, Place::Weighted(near, far)),
            gets_per_s(&data, Place::ByItem),
        ];
        Ok(Judged { scores, advised: advice.chosen.name() })
    }

    fn trace(
        &self,
        keyed: &KeyedWorkload,
        near_bytes: u64,
        far_bytes: u64,
        ops_per_s: f64,
    ) -> Result<Trace, BenchError> {
        let both = 2 * self.half_bytes;
        let item_bytes = keyed.workload.value_bytes_mean() + keyed.workload.key_bytes_mean();
        let fits = both as f64 / item_bytes;
        // Its buckets, and a get or a set that leaves lines to be written.
        let lines_per_op = 4.0 + 1.5 * item_bytes / LINE_BYTES as f64;
        Ok(record(&TraceOptions {
            keyed,
            keys_bytes: both,
            memory: EngineMemory { near_bytes, far_bytes },
            shrink: ORIGINAL_BYTES / both as f64,
            gbytes_per_s: [self.near, self.far].map(|speed| speed.all_mbps[0] / 1e3),
            ops_per_s,
            stored_first: (fits * STORED_FIRST) as usize,
            warm_up: (fits * WARM_UP) as usize,
            ops: (self.lines / lines_per_op) as usize,
        })?)
    }

    /// What is advised to a user of the cache in DRAM.
    fn advise(
        &self,
        workload: &CacheWorkload,
        dram: &Trace,
        half_load: Load,
    ) -> Result<TieringAdvice, BenchError> {
        let at_ease = play(dram, &self.devices, Place::Near, half_load);
        let gets = dram.gets as f64;
        let (misses, sets) = (gets - dram.hits as f64, (dram.ops.len() as u64 - dram.hits) as f64);
        let op_ns = at_ease.busy.as_ns_f64() / at_ease.ops as f64;
        let observed = ObservedLoad {
            sets_per_get: sets / gets,
            misses_per_get: misses / gets,
            copied_bytes: dram.moved_bytes()[0] * dram.ops.len() as f64 / gets,
            memory_bytes: Some(HALF_BYTES),
            command_ns: Some(op_ns * dram.ops.len() as f64 / (gets + sets)),
            ..observed_load(workload, HALF_BYTES, HALF_BYTES)
        };
        let advice = || {
            let read_share = observed.read_share();
            let (near, far) = (self.near.memory(read_share)?, self.far.memory(read_share)?);
            let gets_per_s = Some(at_ease.ops_per_s() * gets / dram.ops.len() as f64);
            let load = observed.load(&near, gets_per_s, CORES as u32, MISS_NS)?;
            advise(&near, Some(&far), &load)
        };
        advice().map_err(|error: WeightsError| BenchError::Option {
            option: "workload",
            reason: format!("no advice for {}: {error}", workload.name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::workload::all;

    #[test]
    fn a_workload_is_judged_alike_each_time() {
        let workloads = all();
        let judge = || VirtualSocket::new(Size::Smoke).judge(&workloads[0]).unwrap();
        let (one, other) = (judge(), judge());
        assert_eq!((one.scores, one.advised), (other.scores, other.advised));
        assert!(one.scores.iter().all(|score| *score > 0.0), "{one:?}");
    }
}
