//! What moving pages may put on the fabric: a bucket of bytes that fills with time. Owned by the
//! process that moves pages, one for each fabric link; decisions look at it and change nothing.

use crate::constants::NS_PER_SECOND;
use serde::{Deserialize, Serialize};

/// How fast an [`Allowance`] fills, and how full it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub bytes_per_second: u64,
    /// What it holds at most, bytes.
    pub burst_bytes: u64,
}

/// Bytes that may be moved now. Starts full. One move that is larger than a burst is allowed when
/// the bucket is full; it then owes the difference. So from any moment on, what was moved is at
/// most `bytes_per_second` × time + the larger of a burst and one move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowance {
    /// What is missing from a full bucket at `at_ns`, bytes.
    missing_bytes: u64,
    at_ns: u64,
}

impl Allowance {
    /// A bucket from which `missing_bytes` are missing at `now_ns`: another process's, by our
    /// clock.
    pub fn missing(missing_bytes: u64, now_ns: u64) -> Self {
        Self { missing_bytes, at_ns: now_ns }
    }

    /// What is missing from a full bucket at `now_ns`, bytes.
    pub fn missing_bytes(&self, limit: &Limit, now_ns: u64) -> u64 {
        let elapsed_ns = u128::from(now_ns.saturating_sub(self.at_ns));
        let filled = elapsed_ns * u128::from(limit.bytes_per_second) / u128::from(NS_PER_SECOND);
        self.missing_bytes.saturating_sub(u64::try_from(filled).unwrap_or(u64::MAX))
    }

    /// Bytes that may be moved at `now_ns`; 0 while something is owed.
    pub fn available_bytes(&self, limit: &Limit, now_ns: u64) -> u64 {
        limit.burst_bytes.saturating_sub(self.missing_bytes(limit, now_ns))
    }

    /// Whether `bytes` may be moved at `now_ns`.
    pub fn allows(&self, limit: &Limit, now_ns: u64, bytes: u64) -> bool {
        let missing_bytes = self.missing_bytes(limit, now_ns);
        let full = missing_bytes == 0 && limit.burst_bytes > 0;
        full || bytes <= limit.burst_bytes.saturating_sub(missing_bytes)
    }

    /// Takes `bytes`, which were or are being moved.
    pub fn take(&mut self, limit: &Limit, now_ns: u64, bytes: u64) {
        let before = self.missing_bytes;
        let missing_bytes = self.missing_bytes(limit, now_ns);
        let filled = before - missing_bytes;
        // Time that filled no whole byte is kept, unless the bucket is full.
        let used_ns = (u128::from(filled) * u128::from(NS_PER_SECOND))
            .div_ceil(u128::from(limit.bytes_per_second.max(1)));
        let kept_ns = self.at_ns.saturating_add(u64::try_from(used_ns).unwrap_or(u64::MAX));
        let at_ns = if missing_bytes == 0 { now_ns } else { kept_ns.min(now_ns) };
        self.at_ns = self.at_ns.max(at_ns);
        self.missing_bytes = missing_bytes.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: Limit = Limit { bytes_per_second: 1_000_000, burst_bytes: 10_000 };

    #[test]
    fn a_bucket_fills_with_time_and_no_further() {
        let mut bucket = Allowance::default();
        assert_eq!(bucket.available_bytes(&LIMIT, 0), 10_000);
        bucket.take(&LIMIT, 0, 10_000);
        assert!(!bucket.allows(&LIMIT, 0, 1));
        assert_eq!(bucket.available_bytes(&LIMIT, 5_000_000), 5000);
        assert!(bucket.allows(&LIMIT, 5_000_000, 5000) && !bucket.allows(&LIMIT, 5_000_000, 5001));
        assert_eq!(bucket.available_bytes(&LIMIT, NS_PER_SECOND), 10_000);
    }

    #[test]
    fn a_bucket_goes_from_one_clock_to_another() {
        let mut here = Allowance::default();
        here.take(&LIMIT, NS_PER_SECOND, 8000);
        let now_ns = NS_PER_SECOND + 3_000_000;
        let there = Allowance::missing(here.missing_bytes(&LIMIT, now_ns), 77);
        assert_eq!(here.available_bytes(&LIMIT, now_ns), 5000);
        assert_eq!(there.available_bytes(&LIMIT, 77), 5000);
        assert_eq!(there.available_bytes(&LIMIT, 1_000_077), 6000);
    }

    #[test]
    fn a_move_larger_than_a_burst_waits_for_a_full_bucket_and_is_owed() {
        let mut bucket = Allowance::default();
        assert!(bucket.allows(&LIMIT, 0, 50_000));
        bucket.take(&LIMIT, 0, 50_000);
        assert!(!bucket.allows(&LIMIT, 49_999_000, 50_000));
        assert!(bucket.allows(&LIMIT, 50_000_000, 50_000));
        let none = Limit { burst_bytes: 0, ..LIMIT };
        assert!(!Allowance::default().allows(&none, 0, 1));
    }

    proptest! {
        #[test]
        fn no_stretch_of_time_carries_more_than_its_share(
            asks in proptest::collection::vec((0_u64..40_000_000, 1_u64..30_000), 1..200),
        ) {
            let mut bucket = Allowance::default();
            let mut taken: Vec<(u64, u64)> = Vec::new();
            let mut now_ns = 0;
            for (pause_ns, bytes) in asks {
                now_ns += pause_ns;
                if bucket.allows(&LIMIT, now_ns, bytes) {
                    bucket.take(&LIMIT, now_ns, bytes);
                    taken.push((now_ns, bytes));
                }
            }
            for (from, &(start_ns, _)) in taken.iter().enumerate() {
                let mut sum = 0;
                for &(at_ns, bytes) in &taken[from..] {
                    sum += bytes;
                    let share = (at_ns - start_ns) * LIMIT.bytes_per_second / NS_PER_SECOND;
                    prop_assert!(sum <= share + LIMIT.burst_bytes.max(30_000) + 1);
                }
            }
        }

        #[test]
        fn no_number_makes_it_panic(calls in proptest::collection::vec(any::<[u64; 4]>(), 1..10)) {
            let mut bucket = Allowance::default();
            for [rate, burst_bytes, now_ns, bytes] in calls {
                let limit = Limit { bytes_per_second: rate, burst_bytes };
                bucket.take(&limit, now_ns, bytes);
                prop_assert!(bucket.available_bytes(&limit, now_ns) <= burst_bytes);
                bucket.allows(&limit, now_ns, bytes);
            }
        }
    }
}
