use super::tiering_advice::Judged;
use super::workload::CacheWorkload;
use super::workload_load::observed_load;
use crate::hmsdk::replay::{Devices, Load, Place, play};
use crate::hmsdk::trace::{EngineMemory, KeyedWorkload, Trace, TraceOptions, record};
use crate::hmsdk::{CORES, CXL, ENGINES};
use crate::run::{BenchError, Size};
use rackpool_tiers::advice::{CacheMemory, TieringMode, advise};
use rackpool_tiers::weights::{MixPoint, WeightsError, mixed_mbps};

const ORIGINAL_BYTES: f64 = 8192.0 * 1024.0 * 1024.0;
const REAL: u64 = 4 << 30;
const SPAN: u64 = 1 << 28;
const LINE_BYTES: f64 = 64.0;

#[derive(Clone, Copy, Debug)]
pub(super) struct Speeds {
    latency_ns: f64,
    mbps: [f64; 2],
    thread_mbps: [f64; 2],
}

impl Speeds {
    fn of(devices: &Devices, place: Place) -> Speeds {
        let run = |lines: u64, are_stores, cores| {
            let trace = Trace::streams(60 * cores, lines, SPAN, are_stores);
            let played = play(&trace, devices, place, Load { cores, every: None });
            (played.latency_ns, played.ops_per_s() * lines as f64 * LINE_BYTES / 1e6)
        };
        let one = |are_stores| run(64, are_stores, ENGINES).1 / ENGINES as f64;
        let all = |are_stores| run(64, are_stores, CORES).1;
        Speeds {
            latency_ns: run(1, false, ENGINES).0,
            mbps: [all(false), all(true)],
            thread_mbps: [one(false), one(true)],
        }
    }

    fn memory(&self, bytes: u64, read_share: f64) -> Result<CacheMemory, WeightsError> {
        let points = [(1.0, self.mbps[0]), (0.0, self.mbps[1])];
        let points = points.map(|(read_share, mbps)| MixPoint { read_share, mbps });
        Ok(CacheMemory {
            bytes,
            latency_ns: self.latency_ns,
            bandwidth_mbps: mixed_mbps(&points, read_share)?,
            thread_mbps: self.thread_mbps[0],
            thread_store_mbps: self.thread_mbps[1],
        })
    }
}

pub(crate) fn try_all(size: Size, lanes: usize) {
    let devices = Devices { near: ("ddr5-4800", lanes), far: CXL };
    let near_speed = Speeds::of(&devices, Place::Near);
    let far_speed = Speeds::of(&devices, Place::Far);
    println!("{near_speed:?} {far_speed:?}");
    let mut all = Vec::new();
    for workload in super::workload::all() {
        let name = workload.name;
        let at = std::time::Instant::now();
        let one = judge(workload, size, &devices, near_speed, far_speed).unwrap();
        println!("{name} {one:?} best {:?} {:.1} s", one.row(name, "virtual").extra, at.elapsed().as_secs_f64());
        all.push(one);
    }
    println!("{:?}", super::tiering_advice::summary(&all, "virtual"));
}

fn judge(
    workload: CacheWorkload,
    size: Size,
    devices: &Devices,
    near_speed: Speeds,
    far_speed: Speeds,
) -> Result<Judged, BenchError> {
    let (near_bytes, lines) = match size {
        Size::Smoke => (8_u64 << 20, 2e5),
        Size::Quick => (16 << 20, 1e6),
        Size::Full => (64 << 20, 6e6),
    };
    let both = 2 * near_bytes;
    let item = workload.value_bytes_mean() + 60.0;
    let fits = both as f64 / item;
    let lines_per_op = 4.0 + 1.5 * item / 64.0;
    let keyed = KeyedWorkload { workload, keys: 1.0 };
    let trace = |near_bytes, far_bytes, ops_per_s| {
        Ok::<_, BenchError>(record(&TraceOptions {
            keyed: &keyed,
            keys_bytes: both,
            memory: EngineMemory { near_bytes, far_bytes },
            shrink: ORIGINAL_BYTES / both as f64,
            gbytes_per_s: [near_speed.mbps[0] / 1e3, far_speed.mbps[0] / 1e3],
            ops_per_s,
            stored_first: (2.0 * fits) as usize,
            warm_up: (8.0 * fits) as usize,
            ops: (lines / lines_per_op) as usize,
        })?)
    };
    let closed = Load { cores: CORES, every: None };
    let hits = |trace: &Trace, place| {
        let played = play(trace, devices, place, closed);
        println!(
            "    {place:?} ops/s {:.0} hit {:.4} hits/op {:.4} GB/s {:?} comp {:.2}", played.ops_per_s(),
            trace.hit_ratio(), trace.hits as f64 / trace.ops.len() as f64,
            played.gbytes_per_s(), played.computing.0 as f64 / played.busy.0 as f64
        );
        played.ops_per_s() * trace.hits as f64 / trace.ops.len() as f64
    };
    let dram = trace(near_bytes, 0, f64::INFINITY)?;
    let most = play(&dram, devices, Place::Near, closed).ops_per_s();
    let every = rackpool_sim::time::Ps((1e12 * CORES as f64 / (most / 2.0)) as u64);
    let at_ease = play(&dram, devices, Place::Near, Load { cores: CORES, every: Some(every) });
    let mut observed = observed_load(&keyed.workload, REAL, REAL);
    let (ops, gets) = (dram.ops.len() as f64, dram.gets as f64);
    let misses = gets - dram.hits as f64;
    let sets = ops - dram.hits as f64;
    let counted = 1.0 - misses / gets;
    println!("  observed curve miss {:.4} real {:.4}; sets {:.4} real {:.4}", observed.misses_per_get, 1.0 - counted, observed.sets_per_get, sets / gets);
    observed.misses_per_get = misses / gets;
    observed.sets_per_get = sets / gets;
    observed.threads = CORES as u32;
    observed.command_ns = Some(at_ease.busy.0 as f64 / 1e3 / at_ease.ops as f64 * ops / (gets + sets));
    let advice = (|| {
        let near = near_speed.memory(REAL, observed.read_share())?;
        let far = far_speed.memory(REAL, observed.read_share())?;
        let load = observed.load(&near, None, CORES as u32, 0.0)?;
        println!("  {near:?} {far:?}\n  fills {:.3} sets/get {:.3} work {:.0} wait_share {:.3} command {:?}", load.fills_per_miss, load.sets_per_get, load.work_ns, load.wait_share, observed.command_ns);
        advise(&near, Some(&far), &load)
    })()
    .map_err(|error: WeightsError| BenchError::Option { option: "workload", reason: error.to_string() })?;
    for mode in &advice.modes {
        println!(
            "    {} cap {} hit {:.4} threads {:.0} memory {:.0} gets/s -> ops/s {:.0} far {:.3} {:?} hits/s {:.0}",
            mode.mode.name(), mode.capacity_bytes, mode.hit_ratio, mode.thread_gets_per_s,
            mode.memory_gets_per_s, mode.gets_per_s_max() * ops / gets, mode.far_share, mode.weights, mode.hits_per_s_max()
        );
    }
    let transparent = advice.modes.iter().find(|mode| mode.mode == TieringMode::Transparent);
    let transparent = transparent.expect("there are two memories");
    let [near, far] = transparent.weights.expect("it has weights").map(u64::from);
    let interleaved = trace((transparent.capacity_bytes as f64 * both as f64 / ORIGINAL_BYTES) as u64, 0, f64::INFINITY)?;
    let data = trace(near_bytes, near_bytes, most)?;
    println!("  moved {:?}", data.moved_bytes());
    Ok(Judged {
        hits_per_s: [
            hits(&dram, Place::Near),
            hits(&dram, Place::Far),
            hits(&interleaved, Place::Weighted(near, far)),
            hits(&data, Place::ByItem),
        ],
        advised: advice.chosen.name(),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    #[ignore]
    fn all() {
        let lanes = std::env::var("LANES").map_or(16, |it| it.parse().unwrap());
        let size = match std::env::var("SIZE").as_deref() {
            Ok("full") => crate::run::Size::Full,
            Ok("smoke") => crate::run::Size::Smoke,
            _ => crate::run::Size::Quick,
        };
        super::try_all(size, lanes);
    }
}
