//! How fast the memories of this host are for reads, as the processors of one node see them: by a
//! profile that `tiers measure` has stored, else measured at once. For what chooses by it: where
//! `kv` keeps values, and `calibrate`.

use crate::failure::{Failure, Result};
use crate::{tiers, tiers_measure, tiers_weights};
use rackpool_cache::ReadCost;
use rackpool_tiers::measure::{
    Effort, MeasureError, Pair, PairProfile, Profile, Selection, Traffic, measure, pairs,
};
use rackpool_tiers::topology::{Sources, Topology};
use std::path::Path;

pub struct MemorySpeeds {
    profile: Profile,
    /// Where the figures are from, and how old they are.
    pub origin: String,
}

impl MemorySpeeds {
    pub fn load(path: &Path) -> Result<MemorySpeeds> {
        let profile = tiers_weights::load(path)?;
        let age = profile.age(tiers_measure::unix_s());
        let age = age.map_or("from the future".to_owned(), |age| tiers_weights::old(age.as_secs()));
        Ok(MemorySpeeds { profile, origin: format!("{} ({age})", path.display()) })
    }

    /// Measures the memory of the first node with processors, and of the nodes `far`, from there,
    /// by one thread. Blocks.
    pub fn measure(far: &[u16], effort: impl FnOnce(&[Pair]) -> Effort) -> Result<MemorySpeeds> {
        let failed = |error: MeasureError| {
            let hint = "a stored profile needs none: `rackpool tiers measure --store FILE`";
            tiers_measure::failure(error).with_hint(hint)
        };
        let topology = Topology::read(&Sources::here()).map_err(tiers::failure)?;
        let mut pairs = pairs(&topology, &Selection::default()).map_err(failed)?;
        let near = pairs[0].cpu_node;
        pairs.retain(|pair| {
            let is_used = pair.memory_node == near || far.contains(&pair.memory_node);
            pair.cpu_node == near && is_used
        });
        let effort = Effort { threads_max: 1, ..effort(&pairs) };
        let measured = pairs.iter().map(|pair| measure(pair, effort, &mut |_| {}).map_err(failed));
        let measured = measured.collect::<Result<Vec<PairProfile>>>()?;
        let profile = Profile::new(tiers_measure::unix_s(), effort.rule.bound, measured);
        Ok(MemorySpeeds { profile, origin: "a measurement of now".to_owned() })
    }

    /// The node of the processors, whose memory is near.
    pub fn near(&self) -> u16 {
        self.profile.pairs.first().map_or(0, |pair| pair.cpu_node)
    }

    /// By what, where and when it was measured.
    #[cfg(feature = "lab")]
    pub fn source(&self) -> String {
        let Profile { source, machine, taken_unix_s, .. } = &self.profile;
        let day = rackpool_stats::time::date(taken_unix_s / 86_400);
        format!("{source} on {}, {day}", machine.processor)
    }

    /// What all threads together read of a node's memory.
    pub fn read_mbps(&self, node: u16) -> Result<f64> {
        self.figure(node, |pair| pair.bandwidth_mbps(Traffic::Read))
    }

    /// What one thread does.
    pub fn thread_read_mbps(&self, node: u16) -> Result<f64> {
        self.figure(node, PairProfile::thread_read_mbps)
    }

    /// Of a dependent load.
    pub fn latency_ns(&self, node: u16) -> Result<f64> {
        self.figure(node, PairProfile::idle_latency_ns)
    }

    fn figure(&self, node: u16, of: impl FnOnce(&PairProfile) -> Option<f64>) -> Result<f64> {
        self.profile.pair(self.near(), node).and_then(of).ok_or_else(|| {
            let what = format!("{} has nothing of memory node {node}", self.origin);
            let hint = "measure anew: `rackpool tiers measure --store`";
            Failure::new("bad-file", what).with_hint(hint)
        })
    }

    /// What one thread's reads cost on nodes among which pages are dealt out by weights: the mean.
    pub fn read_cost(&self, nodes: &[(u16, u16)]) -> Result<ReadCost> {
        let [mut weights, mut latency_ns, mut byte_ps] = [0.0; 3];
        for (node, weight) in nodes {
            let weight = f64::from(*weight);
            weights += weight;
            latency_ns += weight * self.latency_ns(*node)?;
            // MB/s are bytes a microsecond, which has 10^6 ps.
            byte_ps += weight * 1e6 / self.thread_read_mbps(*node)?;
        }
        let mean = |sum: f64| (sum / weights).round() as u64;
        Ok(ReadCost { latency_ns: mean(latency_ns), byte_ps: mean(byte_ps) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_cache::Speeds;
    use rackpool_tiers::measure::{BandwidthPoint, Curve, Figure, LoadedPoint};

    fn figure(value: f64) -> Figure {
        Figure { value, spread: 0.0, runs: 5, disturbed: 0, is_settled: true }
    }

    /// One thread reads a quarter of what all do.
    fn pair(memory_node: u16, thread_mbps: f64, latency_ns: f64) -> PairProfile {
        let point = |threads, mbps: f64| BandwidthPoint { threads, mbps: figure(mbps) };
        let points = vec![point(1, thread_mbps), point(8, thread_mbps * 4.0)];
        let curve = |traffic| Curve { traffic, points: points.clone(), is_saturated: true };
        PairProfile {
            cpu_node: 1,
            memory_node,
            is_verified: true,
            bandwidth: Traffic::ALL.map(curve).to_vec(),
            latency: vec![LoadedPoint {
                threads: 0,
                load_mbps: 0.0,
                latency_ns: figure(latency_ns),
            }],
        }
    }

    fn speeds() -> MemorySpeeds {
        let pairs = vec![pair(1, 10e3, 100.0), pair(2, 5e3, 200.0), pair(3, 2.5e3, 400.0)];
        MemorySpeeds { profile: Profile::new(0, 0.03, pairs), origin: "a test".to_owned() }
    }

    #[test]
    fn reads_cost_one_thread_what_the_profile_says_of_the_nodes_by_their_weights() {
        let (speeds, cost) = (speeds(), |latency_ns, byte_ps| ReadCost { latency_ns, byte_ps });
        let near = speeds.read_cost(&[(speeds.near(), 1)]).unwrap();
        assert_eq!(near, cost(100, 100));
        let far = speeds.read_cost(&[(2, 3)]).unwrap();
        assert_eq!(far, cost(200, 200));
        assert_eq!(speeds.read_cost(&[(2, 3), (3, 1)]).unwrap(), cost(250, 250));
        assert_eq!(speeds.read_mbps(2).unwrap(), 20e3);
        // Twice as slow: a copy pays at the third read.
        let both = Speeds { far, near };
        assert!(!both.pays(2, 4096) && both.pays(3, 4096));
        let absent = speeds.read_cost(&[(2, 1), (7, 1)]).unwrap_err();
        assert_eq!(absent.code(), "bad-file");
        assert!(absent.message().starts_with("a test has nothing of memory node 7"), "{absent:?}");
    }

    #[test]
    fn memory_is_measured_where_there_is_no_profile_and_a_node_without_it_is_refused() {
        let measured = MemorySpeeds::measure(&[u16::MAX], |_| Effort::quick());
        let measured = match measured {
            Ok(measured) => measured,
            // Several nodes, and mbind is refused.
            Err(failure) => return assert_eq!(failure.code(), "no-node"),
        };
        let near = measured.read_cost(&[(measured.near(), 1)]).unwrap();
        assert!(near.latency_ns > 0 && near.byte_ps > 0, "{near:?}");
        assert!(measured.read_cost(&[(u16::MAX, 1)]).is_err());
    }
}
