//! Which memories a program should use, by the bandwidth that it asks for.
//!
//! Interleaving adds bandwidth, and it adds latency: a part of all accesses goes to slower memory.
//! Where one memory alone has bandwidth to spare for the demand, the first is of no use, and only
//! the second remains. So [`choose`] compares each memory alone, the fastest 2, 3, ... together,
//! and the nearest, by their best weights, and takes the least mean latency of those that have
//! bandwidth to spare; if none has, the greatest bandwidth.
//!
//! For bandwidth no more sets need be looked at. With the weights as they are, a memory that is
//! exchanged for one of more bandwidth raises `min(b_i / w_i)` or leaves it: so of all sets of one
//! size the fastest memories have the greatest bandwidth. For latency the nearest memories are
//! looked at as well, since far memory may be the faster one; not all sets are, of which there are
//! too many. How much room there is in a memory is not looked at: the data must fit. Pure; in:
//! idle latencies and bandwidths from a profile.

use crate::weights::{Weights, WeightsError, checked, solve};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Up to this share of its bandwidth a memory answers about as fast as when idle; above, requests
/// queue. DDR4 and Optane, measured under load: latency rises by less than a third up to here.
pub const SPARE_SHARE: f64 = 0.7;

/// One memory, as seen from the processors that will use it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    pub node: u16,
    /// Of one dependent load, idle.
    pub latency_ns: f64,
    /// For the mix of reads and writes that is expected: [`crate::weights::mixed_mbps`].
    pub bandwidth_mbps: f64,
}

impl Memory {
    /// The greatest demand that it alone has bandwidth to spare for, in whole MB/s.
    pub fn spare_mbps(&self) -> f64 {
        (self.bandwidth_mbps * SPARE_SHARE).floor()
    }
}

/// Some memories with weights, and what they do for the demand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightedUse {
    /// A weight for each memory that was given; 0 for one that is left out.
    pub weights: Vec<u32>,
    /// What they reach together.
    pub bandwidth_mbps: f64,
    /// The demand over that bandwidth; above 1 it is not met.
    pub load: f64,
    /// Idle latency, the mean over all accesses.
    pub latency_ns: f64,
}

impl WeightedUse {
    fn has_spare(&self) -> bool {
        self.load <= SPARE_SHARE
    }
}

/// What to do, beside interleaving over all memories. Its text says why, with the numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    pub memories: Vec<Memory>,
    pub demand_mbps: f64,
    pub chosen: WeightedUse,
    /// All memories by their best weights.
    pub interleaved: WeightedUse,
}

/// Chooses for a program that moves `demand_mbps` MB/s, by weights up to `weight_max`.
///
/// # Errors
/// [`WeightsError`]: of the bandwidths, their number, a latency, the demand or `weight_max`.
pub fn choose(
    memories: &[Memory],
    demand_mbps: f64,
    weight_max: u32,
) -> Result<Choice, WeightsError> {
    let figure = |what, value: f64| match value.is_finite() && value >= 0.0 {
        true => Ok(()),
        false => Err(WeightsError::Figure { what, value }),
    };
    figure("the demand, MB/s,", demand_mbps)?;
    for (index, memory) in memories.iter().enumerate() {
        checked(index, memory.bandwidth_mbps)?;
        figure("a latency, ns,", memory.latency_ns)?;
    }
    let mut fastest: Vec<usize> = (0..memories.len()).collect();
    // Stable: of two equally fast the first stays first.
    fastest.sort_by(|a, b| memories[*b].bandwidth_mbps.total_cmp(&memories[*a].bandwidth_mbps));
    let mut nearest = fastest.clone();
    nearest.sort_by(|a, b| memories[*a].latency_ns.total_cmp(&memories[*b].latency_ns));
    let share = |used: &[usize]| share(memories, used, demand_mbps, weight_max);
    let interleaved = share(&fastest)?;
    let mut chosen = interleaved.clone();
    let alone = (0..memories.len()).map(|index| vec![index]);
    let together = [&fastest, &nearest]
        .into_iter()
        .flat_map(|order| (2..memories.len()).map(move |count| order[..count].to_vec()));
    for used in alone.chain(together) {
        let other = share(&used)?;
        let is_better = match (other.has_spare(), chosen.has_spare()) {
            (true, true) => other.latency_ns < chosen.latency_ns,
            (false, false) => other.bandwidth_mbps > chosen.bandwidth_mbps,
            (is_better, _) => is_better,
        };
        if is_better {
            chosen = other;
        }
    }
    Ok(Choice { memories: memories.to_vec(), demand_mbps, chosen, interleaved })
}

/// What the memories `used` do for the demand by their best weights.
fn share(
    memories: &[Memory],
    used: &[usize],
    demand_mbps: f64,
    weight_max: u32,
) -> Result<WeightedUse, WeightsError> {
    let bandwidths: Vec<f64> = used.iter().map(|index| memories[*index].bandwidth_mbps).collect();
    let Weights { weights, utilisation } = solve(&bandwidths, weight_max)?;
    let bandwidth_mbps = utilisation * bandwidths.iter().sum::<f64>();
    let mut all = vec![0; memories.len()];
    let (mut latency_ns, mut sum) = (0.0, 0.0);
    for (index, weight) in used.iter().zip(weights) {
        all[*index] = weight;
        latency_ns += f64::from(weight) * memories[*index].latency_ns;
        sum += f64::from(weight);
    }
    let load = demand_mbps / bandwidth_mbps;
    Ok(WeightedUse { weights: all, bandwidth_mbps, load, latency_ns: latency_ns / sum })
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { demand_mbps, chosen, interleaved, .. } = self;
        let percent = chosen.load * 100.0;
        write!(f, "{}: ", self.names(&chosen.weights))?;
        match (chosen.load > 1.0, chosen.has_spare()) {
            (true, _) => write!(
                f,
                "no weights meet the demand of {demand_mbps:.0} MB/s; these reach the most, {:.0}",
                chosen.bandwidth_mbps
            )?,
            (_, true) => write!(
                f,
                "{demand_mbps:.0} MB/s are {percent:.0} % of {:.0} MB/s, there is bandwidth to \
                 spare; mean latency {:.0} ns",
                chosen.bandwidth_mbps, chosen.latency_ns
            )?,
            (_, false) => write!(
                f,
                "{demand_mbps:.0} MB/s are {percent:.0} % of {:.0} MB/s, the most that there is; \
                 above {:.0} % requests queue; mean latency {:.0} ns when idle",
                chosen.bandwidth_mbps,
                SPARE_SHARE * 100.0,
                chosen.latency_ns
            )?,
        }
        if chosen.weights == interleaved.weights {
            return Ok(());
        }
        let added_ns = interleaved.latency_ns - chosen.latency_ns;
        let all = self.names(&interleaved.weights);
        let added_mbps = interleaved.bandwidth_mbps - chosen.bandwidth_mbps;
        if added_mbps < 0.0 {
            let (mbps, ns) = (interleaved.bandwidth_mbps, interleaved.latency_ns);
            return write!(f, "; {all} reach {mbps:.0} MB/s only, at {ns:.0} ns");
        }
        write!(f, "; {all} would add {added_ns:.0} ns and {added_mbps:.0} MB/s")?;
        if chosen.has_spare() { write!(f, " that are not needed") } else { Ok(()) }
    }
}

impl Choice {
    /// Such as `node 0 alone` or `nodes 0=3,1=1`.
    fn names(&self, weights: &[u32]) -> String {
        let used: Vec<(u16, u32)> = self
            .memories
            .iter()
            .zip(weights)
            .filter(|(_, weight)| **weight > 0)
            .map(|(memory, weight)| (memory.node, *weight))
            .collect();
        match used.as_slice() {
            [(node, _)] => format!("node {node} alone"),
            used => {
                let parts: Vec<String> =
                    used.iter().map(|(node, weight)| format!("{node}={weight}")).collect();
                format!("nodes {}", parts.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(node: u16, latency_ns: f64, bandwidth_mbps: f64) -> Memory {
        Memory { node, latency_ns, bandwidth_mbps }
    }

    fn two() -> [Memory; 2] {
        [memory(0, 90.0, 300_000.0), memory(2, 250.0, 100_000.0)]
    }

    #[test]
    fn one_memory_with_bandwidth_to_spare_is_taken_alone_and_the_text_says_why() {
        let choice = choose(&two(), 40_000.0, 16).unwrap();
        assert_eq!(choice.chosen.weights, [1, 0]);
        assert_eq!(choice.interleaved.weights, [3, 1]);
        assert_eq!(choice.interleaved.latency_ns, 130.0);
        let text = choice.to_string();
        assert_eq!(
            text,
            "node 0 alone: 40000 MB/s are 13 % of 300000 MB/s, there is bandwidth to spare; mean \
             latency 90 ns; nodes 0=3,2=1 would add 40 ns and 100000 MB/s that are not needed"
        );
    }

    #[test]
    fn where_bandwidth_binds_memories_are_interleaved() {
        // 70 % of 300,000 MB/s.
        assert_eq!(two()[0].spare_mbps(), 210_000.0);
        assert_eq!(choose(&two(), 210_000.0, 16).unwrap().chosen.weights, [1, 0]);
        assert_eq!(choose(&two(), 210_001.0, 16).unwrap().chosen.weights, [3, 1]);
        let full = choose(&two(), 390_000.0, 16).unwrap();
        assert_eq!(full.chosen.weights, [3, 1]);
        assert!(full.to_string().contains("the most that there is"), "{full}");
        let over = choose(&two(), 500_000.0, 16).unwrap();
        assert_eq!((over.chosen.weights.as_slice(), over.chosen.load), (&[3, 1][..], 1.25));
        assert!(over.to_string().contains("no weights meet the demand of 500000 MB/s"), "{over}");
    }

    #[test]
    fn a_memory_that_holds_the_others_back_is_left_out() {
        let memories = [two()[0], memory(1, 400.0, 1_000.0), two()[1]];
        let choice = choose(&memories, 390_000.0, 16).unwrap();
        assert_eq!(choice.chosen.weights, [3, 0, 1]);
        assert!(choice.interleaved.bandwidth_mbps < 40_000.0);
        let text = choice.to_string();
        assert!(text.ends_with("; nodes 0=16,1=1,2=16 reach 33000 MB/s only, at 177 ns"), "{text}");
    }

    #[test]
    fn a_nearer_memory_goes_before_a_faster_one_if_it_is_enough() {
        // The other socket's memory, behind its link, and CXL memory of several devices.
        let memories = [memory(0, 90.0, 200e3), memory(1, 140.0, 100e3), memory(2, 250.0, 120e3)];
        let choice = choose(&memories, 200_000.0, 16).unwrap();
        let chosen = &choice.chosen;
        assert_eq!((chosen.weights.as_slice(), chosen.load), (&[2, 1, 0][..], 2.0 / 3.0));
    }

    #[test]
    fn no_more_memories_are_used_than_the_demand_needs() {
        let memories = [memory(0, 90.0, 200e3), memory(1, 250.0, 80e3), memory(2, 300.0, 40e3)];
        let weights = |demand| choose(&memories, demand, 16).unwrap().chosen.weights;
        assert_eq!(weights(100e3), [1, 0, 0]);
        assert_eq!(weights(180e3), [5, 2, 0]);
        assert_eq!(weights(210e3), [5, 2, 1]);
    }

    #[test]
    fn one_memory_needs_no_weights_and_wrong_figures_are_refused() {
        let choice = choose(&two()[..1], 1e6, 16).unwrap();
        assert_eq!(choice.chosen.weights, [1]);
        assert_eq!(choose(&[], 1.0, 16), Err(WeightsError::NoMemory));
        assert_eq!(choose(&two(), 1.0, 0), Err(WeightsError::Max { max: 0 }));
        for demand in [-1.0, f64::NAN, f64::INFINITY] {
            let refused = choose(&two(), demand, 16);
            assert!(matches!(refused, Err(WeightsError::Figure { .. })), "{refused:?}");
        }
        let slow = [memory(0, -5.0, 1.0)];
        assert!(matches!(choose(&slow, 1.0, 16), Err(WeightsError::Figure { .. })));
        let none = [memory(0, 5.0, 0.0)];
        assert!(matches!(choose(&none, 1.0, 16), Err(WeightsError::Bandwidth { index: 0, .. })));
    }
}
