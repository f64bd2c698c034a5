//! Into how many partitions a cache is divided: for its threads, unless the longest value asks for
//! larger ones. In: memory, threads, the longest value if one was asked for. Out: both numbers,
//! where the longest value does not depend on the threads.

use super::PARTITIONS_MAX;

/// Partitions for each thread, where there is room for so many: threads then seldom wait for one
/// another.
const PARTITIONS_PER_THREAD: u32 = 4;
/// Longest value that may be asked for, bytes: clients of Redis send none that is longer.
pub const VALUE_BYTES_MAX: u64 = 512 << 20;
/// Partitions without a longest value that was asked for have so many bytes …
const PARTITION_BYTES_USUAL: u64 = 64 << 20;
/// … but there may be so many of them …
const PARTITIONS_USUAL: u64 = 8;
/// … of no less than this.
const PARTITION_BYTES_MIN: u64 = 1 << 20;

/// How many partitions a cache has that so many threads use, where its memory is enough: a multiple
/// of the threads, up to 64 of them, so that a thread of HERD's server, to which clients bring the
/// keys of its share, has its partitions for itself.
pub fn partitions_for(threads: u32) -> u32 {
    match threads {
        0 | 1 => 1,
        several => {
            let each = (PARTITIONS_MAX / several).clamp(1, PARTITIONS_PER_THREAD);
            (several * each).min(PARTITIONS_MAX)
        }
    }
}

/// How a cache is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Parts of its memory, each with a lock of its own.
    pub partitions: u32,
    /// Longest value, bytes.
    pub max_value: u64,
}

impl Division {
    /// The most partitions, up to [`partitions_for`] these threads, in which a value of `max_value`
    /// bytes has room. Without it the longest value follows from `memory` alone, in which long
    /// values lie: a quarter of a partition of 64 MiB, or of an 8th or a 64th of the memory if that
    /// is less or more. `longest_in`: the longest value with so many partitions; 0: there cannot be
    /// so many. Where there can be none at all the options will say why.
    ///
    /// # Errors
    /// The longest value that can be asked for.
    pub fn new(
        threads: u32,
        memory: u64,
        max_value: Option<u64>,
        longest_in: impl Fn(u32) -> u64,
    ) -> Result<Division, u64> {
        let usual = (memory / PARTITION_BYTES_USUAL)
            .clamp(PARTITIONS_USUAL, u64::from(PARTITIONS_MAX))
            .min((memory / PARTITION_BYTES_MIN).max(1));
        let default = || longest_in(usual as u32).min(VALUE_BYTES_MAX);
        let max_value = max_value.unwrap_or_else(default);
        // Where there are fewer than threads, some share one.
        let is_even = |count: &u32| *count < threads || count.is_multiple_of(threads.max(1));
        let mut counts = (1..=partitions_for(threads)).rev().filter(is_even);
        match counts.find(|count| longest_in(*count) >= max_value) {
            Some(partitions) => Ok(Division { partitions, max_value }),
            None if longest_in(1) == 0 => Ok(Division { partitions: 1, max_value: 0 }),
            None => Err(longest_in(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Options;

    const MIB: u64 = 1 << 20;

    fn divided(threads: u32, memory: u64, max_value: Option<u64>) -> Result<Division, u64> {
        let options = Options { memory, ..Options::default() };
        Division::new(threads, memory, max_value, |count| options.longest_value(count))
    }

    #[test]
    fn the_longest_value_follows_from_the_memory_whatever_the_threads() {
        for (memory, longest) in [(8, 0), (64, 2), (256, 8), (1024, 16), (4096, 16), (65536, 256)] {
            let first = divided(1, memory * MIB, None).unwrap().max_value;
            // Somewhat less, for what a partition needs beside its items.
            assert!((longest * MIB * 7 / 8..=longest.max(1) * MIB).contains(&first), "{memory}");
            for threads in [2, 3, 4, 7, 16, 17, 64] {
                let division = divided(threads, memory * MIB, None).unwrap();
                assert_eq!(division.max_value, first, "{threads} threads, {memory} MiB");
                let options = Options {
                    memory: memory * MIB,
                    partitions: division.partitions,
                    max_value: division.max_value,
                    ..Options::default()
                };
                assert!(options.checked().is_ok(), "{threads} threads, {memory} MiB");
            }
        }
        let huge = divided(2, 1 << 40, None).unwrap();
        assert_eq!(huge, Division { partitions: 8, max_value: VALUE_BYTES_MAX });
    }

    #[test]
    fn threads_have_their_partitions_unless_a_value_needs_larger_ones() {
        let partitions = |threads, memory_mib, max_value: Option<u64>| {
            divided(threads, memory_mib * MIB, max_value).unwrap().partitions
        };
        assert_eq!(
            [1, 2, 4, 16, 64].map(|threads| partitions(threads, 8192, None)),
            [1, 8, 16, 64, 64]
        );
        assert_eq!(partitions(2, 64, None), 8);
        assert_eq!([2, 3, 4].map(|threads| partitions(threads, 1024, Some(95 * MIB))), [2; 3]);
        assert_eq!([6, 64].map(|threads| partitions(threads, 4096, Some(95 * MIB))), [6, 10]);
        assert_eq!(partitions(16, 2400, Some(512 * MIB)), 1);
        let longest = divided(2, 64 * MIB, Some(512 * MIB)).unwrap_err();
        assert!((14 * MIB..16 * MIB).contains(&longest), "{longest}");
    }
}
