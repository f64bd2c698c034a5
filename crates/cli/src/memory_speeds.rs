//! How fast the memories of this host are, as the processors of one node see them: by a profile
//! that `tiers measure` has stored, else measured at once. For what chooses by it: where `kv` keeps
//! values, advice, weights of `tiers run`, `calibrate`.

use crate::failure::{Failure, Result};
use crate::{tiers, tiers_measure, tiers_weights};
use rackpool_cache::ReadCost;
use rackpool_tiers::advice::CacheMemory;
use rackpool_tiers::measure::{
    Effort, MeasureError, Pair, PairProfile, Profile, Selection, Traffic, measure, pairs,
};
use rackpool_tiers::topology::{Sources, Topology};
use rackpool_tiers::weights::mixed_mbps;
use std::iter::once;
use std::path::Path;

pub struct MemorySpeeds {
    profile: Profile,
    /// The node of the processors, whose memory is near: the first of the profile.
    pub near: u16,
    /// Where the figures are from, and how old they are.
    pub origin: String,
}

impl MemorySpeeds {
    fn new(profile: Profile, origin: String) -> MemorySpeeds {
        let near = profile.pairs.first().map_or(0, |pair| pair.cpu_node);
        MemorySpeeds { profile, near, origin }
    }

    pub fn load(path: &Path) -> Result<MemorySpeeds> {
        let profile = tiers_weights::load(path)?;
        let age = profile.age(tiers_measure::unix_s());
        let age = age.map_or("from the future".to_owned(), |age| tiers_weights::old(age.as_secs()));
        Ok(MemorySpeeds::new(profile, format!("{} ({age})", path.display())))
    }

    /// Measures the memory of the first node with processors and memory, and of the nodes `far`,
    /// from there, by one thread. Blocks.
    pub fn measure(far: &[u16], effort: impl FnOnce(&[Pair]) -> Effort) -> Result<MemorySpeeds> {
        let failed = |error: MeasureError| {
            let hint = "or give a profile: `rackpool tiers measure --store FILE` makes one";
            tiers_measure::failure(error).with_hint(hint)
        };
        let topology = Topology::read(&Sources::here()).map_err(tiers::failure)?;
        let all = pairs(&topology, &Selection::default()).map_err(failed)?;
        let own = all.iter().find(|pair| pair.cpu_node == pair.memory_node);
        let near = own.unwrap_or(&all[0]).cpu_node;
        let far = far.iter().copied().filter(|node| *node != near);
        let memory_nodes = Some(once(near).chain(far).collect());
        let selection = Selection { cpu_nodes: Some(vec![near]), memory_nodes };
        let pairs = pairs(&topology, &selection).map_err(failed)?;
        let effort = Effort { threads_max: 1, ..effort(&pairs) };
        let measured = pairs.iter().map(|pair| measure(pair, effort, &mut |_| {}));
        let measured = measured.collect::<Result<Vec<PairProfile>, _>>().map_err(failed)?;
        let profile = Profile::new(tiers_measure::unix_s(), effort.rule.bound, measured);
        // Unlike memories look more alike then.
        let is_cached = effort.bytes < effort.uncached_bytes;
        let part = if is_cached { ", of which caches answered a part" } else { "" };
        Ok(MemorySpeeds::new(profile, format!("a measurement of now{part}")))
    }

    /// By what, where and when it was measured.
    #[cfg(feature = "lab")]
    pub fn source(&self) -> String {
        let Profile { source, machine, taken_unix_s, .. } = &self.profile;
        let day = rackpool_stats::time::date(taken_unix_s / 86_400);
        format!("{source} on {}, {day}", machine.processor)
    }

    /// The memory nodes that were measured.
    pub fn nodes(&self) -> impl Iterator<Item = u16> {
        let pairs = self.profile.pairs.iter().filter(move |pair| pair.cpu_node == self.near);
        pairs.map(|pair| pair.memory_node)
    }

    /// Memory of nodes to which pages are dealt out by weights, for this share of reads; how much
    /// there is of it is left 0.
    pub fn memory(&self, nodes: &[(u16, u16)], read_share: f64) -> Result<CacheMemory> {
        // The node that is busiest for its bandwidth bounds all.
        let (mut sum, mut least, mut latency) = (0.0, f64::INFINITY, 0.0);
        let (mut thread, mut thread_store) = (0.0, 0.0);
        for (node, weight) in nodes {
            let pair = self.profile.pair(self.near, *node);
            let one = pair.and_then(|pair| memory(pair, read_share)).ok_or_else(|| {
                let (origin, near) = (&self.origin, self.near);
                let what = format!("{origin} has nothing of memory node {node} from {near}");
                let hint = "measure anew: `rackpool tiers measure --store`";
                Failure::new("bad-file", what).with_hint(hint)
            })?;
            let weight = f64::from(*weight);
            sum += weight;
            least = least.min(one.bandwidth_mbps / weight);
            latency += weight * one.latency_ns;
            thread += weight / one.thread_mbps;
            thread_store += weight / one.thread_store_mbps;
        }
        Ok(CacheMemory {
            bytes: 0,
            latency_ns: latency / sum,
            bandwidth_mbps: least * sum,
            thread_mbps: sum / thread,
            thread_store_mbps: sum / thread_store,
        })
    }

    /// What one thread's reads cost there.
    pub fn read_cost(&self, nodes: &[(u16, u16)]) -> Result<ReadCost> {
        let CacheMemory { latency_ns, thread_mbps, .. } = self.memory(nodes, 1.0)?;
        // MB/s are bytes a microsecond, which has 10^6 ps.
        let [latency_ns, byte_ps] = [latency_ns, 1e6 / thread_mbps].map(|cost| cost.round() as u64);
        Ok(ReadCost { latency_ns, byte_ps })
    }
}

fn memory(pair: &PairProfile, read_share: f64) -> Option<CacheMemory> {
    let by_thread = |traffic| {
        let fewest =
            pair.bandwidth.iter().find(|curve| curve.traffic == traffic)?.points.first()?;
        Some(fewest.mbps.value / f64::from(fewest.threads))
    };
    Some(CacheMemory {
        bytes: 0,
        latency_ns: pair.idle_latency_ns()?,
        bandwidth_mbps: mixed_mbps(&pair.mix_points(), read_share).ok()?,
        thread_mbps: by_thread(Traffic::Read)?,
        thread_store_mbps: by_thread(Traffic::Write)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_tiers::measure::{BandwidthPoint, Curve, Figure, LoadedPoint};

    /// One thread reads a quarter of what all do.
    fn pair(memory_node: u16, thread_mbps: f64, latency_ns: f64) -> PairProfile {
        let figure = |value| Figure { value, spread: 0.0, runs: 5, disturbed: 0, is_settled: true };
        let point = |threads, mbps| BandwidthPoint { threads, mbps: figure(mbps) };
        let points = vec![point(1, thread_mbps), point(8, thread_mbps * 4.0)];
        let curve = |traffic| Curve { traffic, points: points.clone(), is_saturated: true };
        let bandwidth = vec![curve(Traffic::Read), curve(Traffic::Write)];
        let latency_ns = figure(latency_ns);
        let latency = vec![LoadedPoint { threads: 0, load_mbps: 0.0, latency_ns }];
        PairProfile { cpu_node: 1, memory_node, is_verified: true, bandwidth, latency }
    }

    #[test]
    fn memory_is_what_the_profile_says_of_the_nodes_by_their_weights() {
        let pairs = vec![pair(1, 10e3, 100.0), pair(2, 5e3, 200.0), pair(3, 2.5e3, 400.0)];
        let speeds = MemorySpeeds::new(Profile::new(0, 0.03, pairs), "a test".to_owned());
        assert_eq!((speeds.near, speeds.nodes().collect::<Vec<_>>()), (1, vec![1, 2, 3]));
        // Of 4 pages 3 lie on node 2, which reads 20 GB/s.
        assert_eq!(speeds.memory(&[(2, 3), (3, 1)], 1.0).unwrap().bandwidth_mbps.round(), 26_667.0);
        for (nodes, latency_ns, byte_ps) in
            [(vec![(1, 1)], 100, 100), (vec![(2, 3)], 200, 200), (vec![(2, 3), (3, 1)], 250, 250)]
        {
            assert_eq!(speeds.read_cost(&nodes).unwrap(), ReadCost { latency_ns, byte_ps });
        }
        let absent = speeds.read_cost(&[(2, 1), (7, 1)]).unwrap_err();
        assert_eq!(absent.code(), "bad-file");
        assert!(absent.message().starts_with("a test has nothing of memory node 7"), "{absent:?}");
    }
}
