//! What a handle's accesses cost, by the path that they took. Counted where an access leaves the
//! warm path anyway: at first touches, and at everything that goes over the fabric. A warm access
//! to a mapped rack counts nowhere and reads no clock.

use serde::Serialize;
use serde::ser::SerializeStruct;
use std::collections::BTreeMap;

/// Buckets of a [`Latency`], the last one without a limit.
const BUCKETS: usize = 28;
/// The first bucket ends here, ns; each next one at twice as much, the last but one at 8.6 s.
const FIRST_BUCKET_NS: u64 = 128;

/// Durations, counted in buckets that double. Nothing is allocated and nothing is clipped: what
/// is longer than every bucket is in the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    counts: [u64; BUCKETS],
    sum_ns: u64,
    max_ns: u64,
}

impl Latency {
    pub(crate) fn record(&mut self, ns: u64) {
        let doubled = ns.div_ceil(FIRST_BUCKET_NS).max(1);
        let index = (u64::BITS - (doubled - 1).leading_zeros()) as usize;
        self.counts[index.min(BUCKETS - 1)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum, ns.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The longest, ns.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Each bucket's upper end, ns (`None` for the last), and how many durations are in it.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        let end = |index: usize| (index + 1 < BUCKETS).then_some(FIRST_BUCKET_NS << index);
        self.counts.iter().enumerate().map(move |(index, count)| (end(index), *count))
    }

    /// A duration that `ppm` millionths of all do not exceed: the end of its bucket, so up to
    /// twice too long, but never longer than the longest. `None` if nothing was counted.
    pub fn percentile_ns(&self, ppm: u64) -> Option<u64> {
        let rank = (u128::from(self.count()) * u128::from(ppm)).div_ceil(1_000_000).max(1);
        let mut seen = 0;
        let found = self.buckets().find(|(_, count)| {
            seen += u128::from(*count);
            seen >= rank
        });
        found.map(|(end, _)| end.unwrap_or(u64::MAX).min(self.max_ns))
    }
}

impl Serialize for Latency {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = |end: Option<u64>| end.map_or("inf".to_owned(), |ns| ns.to_string());
        let filled = self.buckets().filter(|(_, count)| *count > 0);
        let buckets: BTreeMap<String, u64> = filled.map(|(end, n)| (name(end), n)).collect();
        let mut out = serializer.serialize_struct("Latency", 7)?;
        out.serialize_field("count", &self.count())?;
        out.serialize_field("sum_ns", &self.sum_ns)?;
        out.serialize_field("p50_ns", &self.percentile_ns(500_000))?;
        out.serialize_field("p99_ns", &self.percentile_ns(990_000))?;
        out.serialize_field("p999_ns", &self.percentile_ns(999_000))?;
        out.serialize_field("max_ns", &self.max_ns)?;
        out.serialize_field("buckets_by_end_ns", &buckets)?;
        out.end()
    }
}

/// One path in [`PathStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PathCounts {
    /// Accesses; each piece of a batch is one.
    pub accesses: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Calls that ended with an error.
    pub failed: u64,
    /// How long the calls took, lookups and waits for restarts included. A batch is one call.
    pub latency: Latency,
}

/// Accesses of a handle that were not warm accesses to mapped memory, by the path of their first
/// byte. Submissions and pins are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PathStats {
    /// First touches of the own rack's pages, and accesses across pages that were not all warm.
    pub own_rack: PathCounts,
    /// The same in other racks that are mapped.
    pub other_rack_mapped: PathCounts,
    /// Everything in racks that are reached over the fabric, warm or not.
    pub other_rack_fabric: PathCounts,
    /// Calls that failed before their page's home was known.
    pub unresolved: u64,
}

/// The path of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    OwnRack,
    OtherRackMapped,
    OtherRackFabric,
    Unresolved,
}

/// One call, as it is counted.
pub(crate) struct Call {
    pub accesses: u64,
    pub bytes: u64,
    pub elapsed_ns: u64,
    pub failed: bool,
}

/// What a call was about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallSize {
    pub accesses: u64,
    pub bytes: u64,
}

impl PathStats {
    pub(crate) fn note(&mut self, path: Path, call: &Call) {
        let counts = match path {
            Path::OwnRack => &mut self.own_rack,
            Path::OtherRackMapped => &mut self.other_rack_mapped,
            Path::OtherRackFabric => &mut self.other_rack_fabric,
            Path::Unresolved => {
                self.unresolved += 1;
                return;
            }
        };
        counts.accesses += call.accesses;
        counts.bytes += call.bytes;
        counts.failed += u64::from(call.failed);
        counts.latency.record(call.elapsed_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_in_the_bucket_that_ends_at_or_above_them() {
        let mut latency = Latency::default();
        for ns in [0, 1, 128, 129, 256, 257, u64::MAX / 2] {
            latency.record(ns);
        }
        let filled: Vec<_> = latency.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(Some(128), 3), (Some(256), 2), (Some(512), 1), (None, 1)]);
        assert_eq!((latency.count(), latency.max_ns()), (7, u64::MAX / 2));
        assert_eq!(latency.percentile_ns(500_000), Some(256));
        assert_eq!(latency.percentile_ns(1_000_000), Some(u64::MAX / 2));
        assert_eq!(Latency::default().percentile_ns(500_000), None);
    }

    #[test]
    fn a_call_is_counted_on_its_path_alone() {
        let mut stats = PathStats::default();
        let call = Call { accesses: 3, bytes: 24, elapsed_ns: 1_000, failed: false };
        stats.note(Path::OtherRackFabric, &call);
        stats.note(Path::Unresolved, &Call { failed: true, ..call });
        assert_eq!((stats.other_rack_fabric.accesses, stats.other_rack_fabric.bytes), (3, 24));
        assert_eq!(stats.other_rack_fabric.latency.count(), 1);
        assert_eq!((stats.own_rack, stats.unresolved), (PathCounts::default(), 1));
        let json = serde_json::to_value(stats).unwrap();
        assert_eq!(json["other_rack_fabric"]["latency"]["buckets_by_end_ns"]["1024"], 1);
        assert_eq!(json["other_rack_fabric"]["latency"]["p99_ns"], 1_000);
    }
}
