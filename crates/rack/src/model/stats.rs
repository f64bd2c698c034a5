//! What a run has seen, as numbers that a report is made of. Nothing here depends on real time or
//! on threads, so equal runs are equal byte by byte.

use rackpool_sim::histogram::Histogram;
use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};

/// Upper ends of the seed's bins, ns; the last bin has none. A value on an end is in the bin
/// above it (the published code drops it, defect f).
/// Source: Rack-scale disaggregation, figure 5a.
pub const BIN_ENDS_NS: [u64; 5] = [100, 300, 500, 700, 1000];

/// Most windows of a run: in a longer one two become one as often as it takes, so that what is kept
/// follows accesses, not virtual time.
pub const WINDOWS_MAX: u64 = 1 << 16;

/// A sum of times with their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    pub count: u64,
    pub ps: u64,
}

impl Sum {
    #[inline]
    pub fn add(&mut self, time: Ps) {
        self.count += 1;
        self.ps += time.0;
    }

    /// Adds all of another sum.
    pub fn merge(&mut self, other: &Sum) {
        self.count += other.count;
        self.ps += other.ps;
    }

    /// The mean, ns; 0 without any.
    pub fn mean_ns(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.ps as f64 / self.count as f64 / 1e3 }
    }
}

/// Of one window of virtual time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Accesses that were over in it, with their times.
    pub all: Sum,
    /// Those of them that went to a pool: the time at the pool.
    pub pool: Sum,
}

impl Slice {
    fn merge(&mut self, other: &Slice) {
        self.all.merge(&other.all);
        self.pool.merge(&other.pool);
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadStats {
    pub name: String,
    pub slices: Vec<Slice>,
    /// All accesses, from the begin to the end.
    pub all: Sum,
    pub local: Sum,
    pub remote: Sum,
    /// The part of remote accesses at the pool: waiting for its channel, and the channel.
    pub pool: Sum,
    /// Lines that the controller had, or had asked for.
    pub prefetched: Sum,
    /// Times at the pool in the seed's bins.
    pub bins: [u64; 6],
    /// When the first and the last of its nodes had no free frame any more, ps.
    pub exhausted: Option<(u64, u64)>,
    /// Nodes of it that have none.
    pub exhausted_nodes: u32,
    pub faults: u64,
    /// Waiting for faults to be over, which no access's time contains.
    pub fault_time: Sum,
    /// Waiting for a free place in the window of accesses.
    pub stalls: Sum,
    /// Pages that came to own memory, and those that changed places with another one.
    pub moved: [u64; 2],
}

impl WorkloadStats {
    pub fn new(name: &str) -> WorkloadStats {
        WorkloadStats {
            name: name.to_owned(),
            slices: Vec::new(),
            all: Sum::default(),
            local: Sum::default(),
            remote: Sum::default(),
            pool: Sum::default(),
            prefetched: Sum::default(),
            bins: [0; 6],
            exhausted: None,
            exhausted_nodes: 0,
            faults: 0,
            fault_time: Sum::default(),
            stalls: Sum::default(),
            moved: [0; 2],
        }
    }

    /// What remote accesses spent outside of the pool.
    pub fn network(&self) -> Sum {
        Sum { count: self.pool.count, ps: self.remote.ps - self.pool.ps }
    }

    /// The mean of all accesses that were over up to each window's end, ns.
    pub fn cumulative_ns(&self) -> Vec<f64> {
        self.cumulative(|slice| slice.all)
    }

    /// The same of the time at the pools.
    pub fn cumulative_pool_ns(&self) -> Vec<f64> {
        self.cumulative(|slice| slice.pool)
    }

    fn cumulative(&self, of: impl Fn(&Slice) -> Sum) -> Vec<f64> {
        let mut sum = Sum::default();
        let mean = |slice: &Slice| {
            sum.merge(&of(slice));
            sum.mean_ns()
        };
        self.slices.iter().map(mean).collect()
    }

    /// Windows become twice as long.
    pub(super) fn widen(&mut self) {
        self.slices = pairs(&self.slices, Slice::merge);
    }

    fn slice(&mut self, window: usize) -> &mut Slice {
        if window >= self.slices.len() {
            self.slices.resize(window + 1, Slice::default());
        }
        &mut self.slices[window]
    }

    /// An access to own memory is over.
    #[inline]
    pub fn local(&mut self, window: usize, took: Ps) {
        self.all.add(took);
        self.local.add(took);
        self.slice(window).all.add(took);
    }

    /// A remote access is over; so much of it was at the pool.
    #[inline]
    pub fn remote(&mut self, window: usize, took: Ps, at_pool: Ps) {
        self.all.add(took);
        self.remote.add(took);
        self.pool.add(at_pool);
        self.bins[bin_of(at_pool)] += 1;
        let slice = self.slice(window);
        slice.all.add(took);
        slice.pool.add(at_pool);
    }

    /// An access found its line in the controller's buffer, or on its way there.
    pub fn prefetched(&mut self, window: usize, took: Ps) {
        self.all.add(took);
        self.prefetched.add(took);
        self.slice(window).all.add(took);
    }
}

fn pairs<T: Clone>(all: &[T], merge: impl Fn(&mut T, &T)) -> Vec<T> {
    let pair = |pair: &[T]| {
        let mut first = pair[0].clone();
        pair[1..].iter().for_each(|other| merge(&mut first, other));
        first
    };
    all.chunks(2).map(pair).collect()
}

/// The bin of a time.
#[inline]
pub fn bin_of(time: Ps) -> usize {
    let is_at_least = |end: &&u64| time.0 >= **end * 1_000;
    BIN_ENDS_NS.iter().take_while(is_at_least).count()
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolStats {
    /// By window, then pool: accesses that came.
    pub accesses: Vec<Vec<u32>>,
    /// Pages of the second channel that were read or written, of each pool.
    pub pages: Vec<u64>,
}

impl PoolStats {
    #[inline]
    pub(super) fn count(&mut self, window: usize, pool: usize, pools: usize) {
        if window >= self.accesses.len() {
            self.accesses.resize(window + 1, vec![0; pools]);
        }
        self.accesses[window][pool] += 1;
    }

    /// Windows become twice as long.
    pub(super) fn widen(&mut self) {
        self.accesses = pairs(&self.accesses, |first, other| {
            first.iter_mut().zip(other).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
        });
    }

    /// Most less fewest accesses of a pool, by window.
    pub fn spread(&self) -> Vec<u32> {
        let spread = |counts: &Vec<u32>| {
            let (min, max) = (counts.iter().min(), counts.iter().max());
            max.copied().unwrap_or(0) - min.copied().unwrap_or(0)
        };
        self.accesses.iter().map(spread).collect()
    }
}

/// Of all nodes: times of remote accesses at the pool, and of all accesses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tails {
    pub all: Histogram,
    pub remote: Histogram,
    /// Of remote ones, at the pool.
    pub pool: Histogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defect_f_bins_are_nanoseconds_and_hold_their_lower_end() {
        for (ps, bin) in [
            (0, 0),
            (99_999, 0),
            (100_000, 1),
            (299_999, 1),
            (300_000, 2),
            (500_000, 3),
            (700_000, 4),
            (999_999, 4),
            (1_000_000, 5),
            (u64::MAX, 5),
        ] {
            assert_eq!(bin_of(Ps(ps)), bin, "{ps} ps");
        }
    }

    #[test]
    fn sums_of_windows_become_cumulative_means() {
        let mut stats = WorkloadStats::new("w");
        stats.local(0, Ps::ns(100));
        stats.remote(2, Ps::ns(400), Ps::ns(250));
        stats.remote(2, Ps::ns(400), Ps::ns(250));
        assert_eq!(stats.cumulative_ns(), [100.0, 100.0, 300.0]);
        assert_eq!(stats.cumulative_pool_ns(), [0.0, 0.0, 250.0]);
        assert_eq!(stats.network().mean_ns(), 150.0);
        assert_eq!(stats.bins, [0, 2, 0, 0, 0, 0]);
    }
}
