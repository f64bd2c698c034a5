//! The runs of one reading of the study's memory and cache, and what they say of its claims.
//! What is run for which claim was written here before the first run, but for
//! `follower_small_objects`: its run with all items in CXL memory replaced one with 6 % of DDR.

use super::claims::{Claims, Judged};
use super::replay::{Devices, Load, Place, Played, play};
use super::trace::{EngineMemory, KeyedWorkload, Trace, TraceOptions, record};
use super::{CORES, Scale, Traces, Workloads};
use crate::run::BenchError;
use rackpool_sim::report::Table;
use rackpool_sim::time::Ps;

/// Weights of near memory for one of CXL.
const WEIGHTS: [u64; 6] = [1, 2, 4, 6, 8, 12];
/// Offered loads, percent of what DDR memory alone serves.
const PACES: [u64; 3] = [50, 80, 95];
/// DDR memory that is left of a cache, percent: the last has the index and hardly any item.
const DRAM_PERCENT: [u64; 4] = [75, 50, 25, 6];
/// CXL memory that is added, of the DDR memory.
const ADDED: [u64; 2] = [1, 2];
/// What a tool reads at once to measure bandwidth.
const MEASURED_RUN_LINES: u64 = 64;
const CLOSED: Load = Load { cores: CORES, every: None };

pub fn table() -> Table {
    let columns = [
        ("case", ""),
        ("workload", ""),
        ("memory", ""),
        ("load", ""),
        ("rate", "Mops/s"),
        ("mean time", "ns"),
        ("DDR", "GB/s"),
        ("CXL", "GB/s"),
        ("hit ratio", ""),
        ("touched in CXL", ""),
        ("moved near", "B/op"),
        ("moved over", "B/op"),
        ("moved far", "B/op"),
    ];
    Table::new("runs", "Every run", &columns)
}

pub struct Case<'a> {
    pub name: &'a str,
    pub claims: &'a Claims,
    pub workloads: &'a Workloads,
    pub traces: &'a Traces,
    pub devices: Devices,
    pub scale: Scale,
    /// Bytes of the study's cache for each of ours.
    pub shrink: f64,
    pub runs: &'a mut Table,
    pub judged: &'a mut Vec<Judged>,
}

/// By how much percent `rate` is above `base`.
fn percent_over(rate: f64, base: f64) -> f64 {
    100.0 * (rate / base - 1.0)
}

fn rises(values: &[f64]) -> bool {
    values.windows(2).all(|pair| pair[1] > pair[0])
}

fn joined(values: impl IntoIterator<Item = String>) -> String {
    values.into_iter().collect::<Vec<_>>().join(", ")
}

/// Best gain of transparent tiering, and by which weight.
struct Gain {
    base: Played,
    percent: f64,
    weight: u64,
}

impl Case<'_> {
    pub fn judge_all(&mut self, told: &mut dyn FnMut(&str)) -> Result<(), BenchError> {
        let mut tell = |what: &str, name: &str| told(&format!("{name}: {what}"));
        tell("transparent tiering", self.name);
        let traces = self.traces;
        let gains = [("cdn", &traces.cdn), ("follower", &traces.follower)];
        let [cdn, follower] = gains.map(|(name, trace)| self.gain(name, trace, CORES));
        let half = self.gain("cdn", &traces.cdn, CORES / 2);
        self.bandwidth_bound_throughput(&cdn, &half, &follower);
        let paced = self.bandwidth_bound_latency(&cdn, &follower);
        self.follower(&follower, &paced);
        tell("data tiering", self.name);
        self.less_dram(&follower.base)?;
        tell("more capacity", self.name);
        self.more_capacity(&cdn.base)
    }

    /// One run, and its row.
    fn play(&mut self, workload: &str, what: &str, trace: &Trace, run: (Place, Load)) -> Played {
        let (place, load) = run;
        let played = play(trace, &self.devices, place, load);
        let [near, far] = played.gbytes_per_s();
        let how = match load.every {
            None => format!("{} cores, closed loop", load.cores),
            Some(every) => {
                format!("{:.2} Mops/s offered", load.cores as f64 * 1e6 / every.0 as f64)
            }
        };
        let share = |lines: u64| lines as f64 / trace.touched.max(1) as f64;
        let [moved_near, moved_over, moved_far] = trace.moved_bytes();
        let far_share = match place {
            Place::Near => 0.0,
            Place::Far => 1.0,
            Place::Weighted(near, far) => far as f64 / (near + far) as f64,
            Place::ByItem => share(trace.touched_far),
            Place::ItemsFar => share(trace.touched_items),
        };
        self.runs.row([
            self.name.into(),
            workload.into(),
            what.into(),
            how.into(),
            (played.ops_per_s() / 1e6).into(),
            played.latency_ns.into(),
            near.into(),
            far.into(),
            trace.hit_ratio().into(),
            far_share.into(),
            moved_near.into(),
            moved_over.into(),
            moved_far.into(),
        ]);
        played
    }

    fn judge(&mut self, name: &str, ours: f64, holds: bool, because: String) {
        let (claim, case) = (self.claims.get(name).clone(), self.name.to_owned());
        self.judged.push(Judged { claim, case, ours, holds, because });
    }

    /// Transparent tiering by all weights in closed loop.
    fn gain(&mut self, name: &str, trace: &Trace, cores: usize) -> Gain {
        let load = Load { cores, every: None };
        let base = self.play(name, "DDR alone", trace, (Place::Near, load));
        let mut best = Gain { base, percent: f64::NEG_INFINITY, weight: 0 };
        for weight in WEIGHTS {
            let what = format!("transparent {weight}:1");
            let played = self.play(name, &what, trace, (Place::Weighted(weight, 1), load));
            let percent = percent_over(played.ops_per_s(), base.ops_per_s());
            if percent > best.percent {
                (best.percent, best.weight) = (percent, weight);
            }
        }
        best
    }

    fn bandwidth_bound_throughput(&mut self, cdn: &Gain, half: &Gain, follower: &Gain) {
        let all = [("cdn", cdn), ("cdn, half the cores", half), ("follower", follower)];
        let best = all.iter().map(|(_, gain)| gain.percent).fold(f64::NEG_INFINITY, f64::max);
        let because = joined(
            all.map(|(name, gain)| format!("{name} {:+.1} % at {}:1", gain.percent, gain.weight)),
        );
        self.judge("bandwidth_bound_throughput", best, best >= 15.0, because);
    }

    /// Graph Follower in DDR memory at the first pace as well.
    fn bandwidth_bound_latency(&mut self, cdn: &Gain, follower: &Gain) -> Played {
        let (mut falls, mut follower_paced) = (Vec::new(), None);
        let traces = self.traces;
        for (name, trace, gain) in
            [("cdn", &traces.cdn, cdn), ("follower", &traces.follower, follower)]
        {
            for pace in PACES {
                let per_core = gain.base.ops_per_s() * pace as f64 / 100.0 / CORES as f64;
                let load = Load { cores: CORES, every: Some(Ps((1e12 / per_core) as u64)) };
                let weighted = Place::Weighted(gain.weight, 1);
                let what = format!("transparent {}:1", gain.weight);
                let alone = self.play(name, "DDR alone", trace, (Place::Near, load));
                let both = self.play(name, &what, trace, (weighted, load));
                falls.push((name, pace, percent_over(both.latency_ns, alone.latency_ns)));
                if name == "follower" {
                    follower_paced.get_or_insert(alone);
                }
            }
        }
        let best = falls.iter().map(|(.., percent)| *percent).fold(f64::INFINITY, f64::min);
        let text = |(name, pace, percent): &(&str, u64, f64)| {
            format!("{name} {percent:+.1} % at a load of {pace} %")
        };
        let because = joined(falls.iter().map(text));
        self.judge("bandwidth_bound_latency", best, best <= -9.0, because);
        follower_paced.expect("there are paces")
    }

    /// Time of the cores that they have an operation, and compute for it, percent.
    fn core_percents(played: &Played) -> [f64; 2] {
        let all_time = played.took.0 as f64 * CORES as f64;
        [played.busy, played.computing].map(|time| 100.0 * time.0 as f64 / all_time)
    }

    /// What the study says of Graph Follower in DDR memory, and of equal capacity.
    fn follower(&mut self, gain: &Gain, paced: &Played) {
        let (trace, base) = (&self.traces.follower, gain.base);
        let [peak, _] = self.devices.peaks();
        let [busy, computing] = Self::core_percents(&base);
        let ([paced_busy, _], [paced_ddr, _]) = (Self::core_percents(paced), paced.gbytes_per_s());
        let because = format!(
            "cores in closed loop are never idle; they compute {computing:.0} % of the time and \
             wait for memory else. Nor is it said what load the study had: at {:.0} Mops/s they \
             are busy {paced_busy:.0} % of the time, and DDR memory carries {:.1} % of its peak",
            paced.ops_per_s() / 1e6,
            100.0 * paced_ddr / peak,
        );
        self.judge("follower_cpu", busy, (49.5..=60.5).contains(&busy), because);
        let [ddr, _] = base.gbytes_per_s();
        let shares = [100.0 * ddr / peak, 100.0 * ddr / 40.0];
        let is_near = |share: &f64| (14.4..=17.6).contains(share);
        let holds = shares.iter().any(is_near);
        let ours = shares.into_iter().find(is_near).unwrap_or(shares[0]);
        let (of_peak, of_40) = (shares[0], shares[1]);
        let rate = base.ops_per_s() / 1e6;
        let because = format!(
            "{ddr:.1} GB/s at {rate:.0} Mops/s: {of_peak:.1} % of the devices' {peak:.0} GB/s, \
             {of_40:.1} % of 40 GB/s"
        );
        self.judge("follower_ddr", ours, holds, because);
        let because = format!("at best {:+.1} %, at {}:1", gain.percent, gain.weight);
        self.judge("follower_no_gain", gain.percent, gain.percent <= 3.0, because);
        let far = self.play("follower", "CXL alone", trace, (Place::Far, CLOSED));
        let percent = percent_over(far.ops_per_s(), base.ops_per_s());
        let rates = [far.ops_per_s(), base.ops_per_s()].map(|rate| rate / 1e6);
        let because = format!("CXL {:.0}, DDR {:.0} Mops/s in closed loop", rates[0], rates[1]);
        self.judge("equal_capacity_throughput", percent, percent.abs() <= 3.0, because);
        let far = self.play("follower", "index DDR, items CXL", trace, (Place::ItemsFar, CLOSED));
        let percent = percent_over(far.ops_per_s(), base.ops_per_s());
        let because = format!(
            "all items in CXL and the index in DDR memory {:.1}, all in DDR {:.1} Mops/s in closed \
             loop",
            far.ops_per_s() / 1e6,
            base.ops_per_s() / 1e6,
        );
        self.judge("follower_small_objects", percent, percent < 0.0, because);
    }

    /// What both memories deliver to a tool that measures them.
    fn measured(&self) -> [f64; 2] {
        let streams = Trace::streams(30 * CORES, MEASURED_RUN_LINES, 1 << 28, false);
        let measured = |place| play(&streams, &self.devices, place, CLOSED).gbytes_per_s();
        [measured(Place::Near)[0], measured(Place::Far)[1]]
    }

    /// A trace of data tiering.
    fn tiered(
        &self,
        keyed: &KeyedWorkload,
        memory: EngineMemory,
        (ops, ops_per_s): (usize, f64),
    ) -> Result<Trace, BenchError> {
        Ok(record(&TraceOptions {
            gbytes_per_s: self.measured(),
            ops_per_s,
            ..self.scale.options(keyed, memory, self.shrink, ops)
        })?)
    }

    /// The same capacity with less and less of it in DDR memory.
    fn less_dram(&mut self, base: &Played) -> Result<(), BenchError> {
        let (bytes, workloads) = (self.scale.engine_bytes, self.workloads);
        let mut rates = vec![base.ops_per_s()];
        let mut ratio = 0.0;
        for percent in DRAM_PERCENT {
            let near_bytes = bytes * percent / 100;
            let memory = EngineMemory { near_bytes, far_bytes: bytes - near_bytes };
            let how = (self.scale.follower_ops, base.ops_per_s());
            let trace = self.tiered(&workloads.follower, memory, how)?;
            let what = format!("data tiering, {percent} % DDR");
            let played = self.play("follower", &what, &trace, (Place::ByItem, CLOSED));
            rates.push(played.ops_per_s());
            ratio = trace.hit_ratio();
        }
        let shares = std::iter::once(100).chain(DRAM_PERCENT);
        let text = |(share, rate): (u64, &f64)| format!("{share} % {:.1} Mops/s", rate / 1e6);
        let because = joined(shares.zip(&rates).map(text));
        let lost = percent_over(rates[rates.len() - 1], rates[0]);
        let holds = rates.windows(2).all(|pair| pair[1] <= pair[0]);
        self.judge("follower_dram_saved", lost, holds, because);
        let alone = self.traces.follower.hit_ratio();
        let off = ratio - alone;
        let least = DRAM_PERCENT[DRAM_PERCENT.len() - 1];
        let because = format!("{ratio:.4} with {least} % in DDR, {alone:.4} with all in DDR");
        self.judge("equal_capacity_hit_ratio", off, off.abs() <= 0.01, because);
        Ok(())
    }

    /// The same DDR memory with more and more of CXL memory.
    fn more_capacity(&mut self, base: &Played) -> Result<(), BenchError> {
        let (near_bytes, workloads) = (self.scale.engine_bytes, self.workloads);
        let mut rates = vec![base.ops_per_s()];
        let mut ratios = vec![self.traces.cdn.hit_ratio()];
        let mut moved = vec![self.traces.cdn.moved_bytes()];
        for added in ADDED {
            let memory = EngineMemory { near_bytes, far_bytes: added * near_bytes };
            let how = (self.scale.cdn_ops, base.ops_per_s());
            let trace = self.tiered(&workloads.cdn, memory, how)?;
            let what = format!("data tiering, {added} times as much CXL added");
            let played = self.play("cdn", &what, &trace, (Place::ByItem, CLOSED));
            rates.push(played.ops_per_s());
            ratios.push(trace.hit_ratio());
            moved.push(trace.moved_bytes());
        }
        let gained = ratios[ADDED.len()] - ratios[0];
        let because = joined(ratios.iter().map(|ratio| format!("{ratio:.3}")));
        let holds = rises(&ratios) && gained >= 0.01;
        self.judge("more_capacity_hit_ratio", gained, holds, because);
        let gained = percent_over(rates[ADDED.len()], rates[0]);
        let rate = |(rate, [near, over, far]): (&f64, [f64; 3])| {
            let [near, over, far] = [near, over, far].map(|bytes| bytes / 1e3);
            format!(
                "{:.2} Mops/s with {near:.0} KB an operation moved within DDR, {over:.0} over and \
                 {far:.0} within CXL memory",
                rate / 1e6
            )
        };
        let rated = joined(rates.iter().zip(moved).map(rate));
        let because = format!("{rated}; behind a miss there is no database to wait for");
        let holds = rises(&rates) && gained >= 3.0;
        self.judge("more_capacity_throughput", gained, holds, because);
        Ok(())
    }
}
