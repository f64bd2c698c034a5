//! What several memories give together by their weights, measured: pages of one buffer are dealt
//! out to them, and the cores of a node go over it. So what [`crate::weights`] promises is checked.
//!
//! A turn of the weights is as many extents as their sum, in random order: threads whose parts
//! began at the same place of a turn would all load one memory, then all the next one. There are
//! whole turns only, so that the shares are exact.

use super::threads::{StreamBuffer, shuffled};
use super::{Curve, Effort, MeasureError, Pair, Traffic, cores, curve, require_room, take};
use crate::weights::MixPoint;
use rackpool_mem::window::Window;
use rackpool_stats::random::Rng;

/// A huge page: smaller ones would cost bandwidth.
const EXTENT_BYTES: u64 = 2 << 20;

/// The bandwidth of memories together.
#[derive(Clone, Debug, PartialEq)]
pub struct Aggregate {
    /// One if the share of reads is that of a kind of traffic, else those of the two next to it.
    pub curves: Vec<Curve>,
    /// Of the buffer.
    pub bytes: u64,
    /// Whether the pages are known to lie where they were placed.
    pub is_verified: bool,
}

impl Aggregate {
    /// For [`crate::weights::mixed_mbps`].
    pub fn mix_points(&self) -> Vec<MixPoint> {
        let point = |curve: &Curve| {
            let (read_share, mbps) = (curve.traffic.read_share(), curve.best()?.mbps.value);
            Some(MixPoint { read_share, mbps })
        };
        self.curves.iter().filter_map(point).collect()
    }

    /// Threads of the greatest bandwidth; of two kinds of traffic the more.
    pub fn threads(&self) -> u32 {
        self.curves.iter().filter_map(Curve::best).map(|best| best.threads).max().unwrap_or(0)
    }

    /// Whether the greatest bandwidths met their noise bound.
    pub fn is_settled(&self) -> bool {
        self.curves.iter().filter_map(Curve::best).all(|best| best.mbps.is_settled)
    }

    /// Whether more threads brought no more.
    pub fn is_saturated(&self) -> bool {
        self.curves.iter().all(|curve| curve.is_saturated)
    }
}

/// Measures memories together, each with its weight above 0, for traffic of which reads are
/// `read_share`. The pairs are of one CPU node, at least one. `progress` is told what comes next.
/// Blocks; the machine should have nothing else to do.
///
/// # Errors
/// [`MeasureError`]; all memory is given back then too.
///
/// # Panics
/// Without a pair, or a weight for each.
pub fn aggregate(
    pairs: &[Pair],
    weights: &[u32],
    read_share: f64,
    effort: Effort,
    progress: &mut dyn FnMut(&str),
) -> Result<Aggregate, MeasureError> {
    assert!(!pairs.is_empty() && pairs.len() == weights.len(), "a weight for each memory");
    let cores = cores(&pairs[0], effort)?;
    let extents = extents(weights, effort.bytes);
    for (index, pair) in pairs.iter().enumerate() {
        let of_pair = extents.iter().filter(|of| **of == index).count() as u64;
        require_room(pair, of_pair * EXTENT_BYTES)?;
    }
    progress("taking memory");
    let bytes = extents.len() as u64 * EXTENT_BYTES;
    let failed = |error| MeasureError::Memory { node: pairs[0].memory_node, error };
    let window = Window::private(bytes).map_err(failed)?;
    let mut is_verified = true;
    for (extent, index) in extents.into_iter().enumerate() {
        let part = window.slice(extent as u64 * EXTENT_BYTES, EXTENT_BYTES);
        is_verified &= take(&part, &pairs[index])?;
    }
    let memory = StreamBuffer::new(window);
    let mut curves = Vec::new();
    for traffic in kinds_around(read_share) {
        progress(&format!("bandwidth, {}", traffic.name()));
        curves.push(curve(&memory, &cores, traffic, effort)?);
    }
    Ok(Aggregate { curves, bytes, is_verified })
}

/// The memory of each extent: whole turns, `bytes` or more.
fn extents(weights: &[u32], bytes: u64) -> Vec<usize> {
    let memories = weights.iter().enumerate();
    let turn: Vec<usize> =
        memories.flat_map(|(index, weight)| (0..*weight).map(move |_| index)).collect();
    let turns = bytes.div_ceil(turn.len() as u64 * EXTENT_BYTES).max(1);
    let mut rng = Rng::new(1);
    let in_turn = |_| shuffled(turn.len() as u64, &mut rng).into_iter();
    (0..turns).flat_map(in_turn).map(|place| turn[place as usize]).collect()
}

/// The kinds of traffic between which a share of reads lies; one if it is theirs.
fn kinds_around(read_share: f64) -> Vec<Traffic> {
    // By falling share of reads.
    let kinds = || Traffic::ALL.into_iter().filter(|kind| *kind != Traffic::NonTemporalWrite);
    let above = kinds().rfind(|kind| kind.read_share() >= read_share);
    let below = kinds().find(|kind| kind.read_share() <= read_share);
    let mut around: Vec<Traffic> = above.into_iter().chain(below).collect();
    around.dedup();
    around
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_mem::process::allowed_cores;

    fn pair() -> Pair {
        let cores = allowed_cores().unwrap();
        Pair { cpu_node: 0, cores, memory_node: 0, is_bound: false, available_bytes: None }
    }

    #[test]
    fn extents_have_exact_shares_in_each_turn_and_no_fixed_order() {
        let extents = extents(&[5, 2, 1], 100 << 20);
        assert_eq!(extents.len(), 56, "7 turns of 16 MiB");
        for turn in extents.chunks(8) {
            let counts = [0, 1, 2].map(|of| turn.iter().filter(|index| **index == of).count());
            assert_eq!(counts, [5, 2, 1]);
        }
        assert!(extents.chunks(8).any(|turn| turn != &extents[..8]));
        assert_eq!(super::extents(&[3, 1], 1).len(), 4);
    }

    #[test]
    fn a_mix_is_measured_by_its_neighbours() {
        for (read_share, kinds) in [
            (1.0, &[Traffic::Read] as &[Traffic]),
            (0.9, &[Traffic::Read, Traffic::ThreeToOne]),
            (0.75, &[Traffic::ThreeToOne]),
            (0.6, &[Traffic::ThreeToOne, Traffic::OneToOne]),
            (0.25, &[Traffic::OneToOne, Traffic::Write]),
            (0.0, &[Traffic::Write]),
        ] {
            assert_eq!(kinds_around(read_share), kinds, "{read_share}");
        }
    }

    #[test]
    fn memories_are_measured_together() {
        // Two memories to the measurement, one to a machine with one node.
        let mut steps = Vec::new();
        let effort = Effort { bytes: 10 << 20, ..Effort::quick() };
        let found = aggregate(&[pair(), pair()], &[3, 1], 0.9, effort, &mut |step| {
            steps.push(step.to_owned());
        });
        let found = found.unwrap();
        assert_eq!(steps, ["taking memory", "bandwidth, reads", "bandwidth, 3:1"]);
        assert_eq!((found.bytes, found.curves.len()), (16 << 20, 2));
        assert!(found.threads() >= 1);
        let mbps = crate::weights::mixed_mbps(&found.mix_points(), 0.9).unwrap();
        let [reads, mixed] = &found.mix_points()[..] else { panic!("{found:?}") };
        assert!(reads.mbps.min(mixed.mbps) <= mbps && mbps <= reads.mbps.max(mixed.mbps));
        println!("{found:#?}");
    }

    #[test]
    fn a_node_that_is_full_or_absent_is_refused() {
        let effort = Effort { bytes: 16 << 20, ..Effort::quick() };
        let of = |second: Pair| {
            let pairs = [pair(), second];
            aggregate(&pairs, &[3, 1], 1.0, effort, &mut |_| {}).unwrap_err()
        };
        // It would take 4 MiB, at most a half of what is free.
        let full = of(Pair { memory_node: 1, available_bytes: Some((8 << 20) - 1), ..pair() });
        let is_full = matches!(full, MeasureError::NoRoom { node: 1, needed_bytes: 4_194_304, .. });
        assert!(is_full, "{full}");
        let absent = of(Pair { memory_node: 1000, is_bound: true, ..pair() });
        assert!(matches!(absent, MeasureError::Bind { node: 1000, .. }), "{absent}");
        let none = Pair { cores: vec![1_000_000], ..pair() };
        let refused = aggregate(&[none], &[1], 1.0, effort, &mut |_| {}).unwrap_err();
        assert!(matches!(refused, MeasureError::NoCore { cpu_node: 0 }), "{refused}");
    }
}
