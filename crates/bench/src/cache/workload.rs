//! The popularity and sizes of eight caches in production, as streams of operations.
//!
//! The distributions are those of CacheBench, condensed to some hundred numbers each
//! (`workloads.txt`). Keys and memory are scaled down together, so that a run takes seconds.

use crate::run::BenchError;
use rackpool_stats::random::Rng;
use rackpool_stats::random::SplitMix64;

const TEXT: &str = include_str!("workloads.txt");
/// Of all keys, those that are as short as can be.
const SHORTEST_SHARE: f64 = 0.3;
/// Of 2^64.
const GOLDEN_SECTION: u64 = 0x9e37_79b9_7f4a_7c15;

/// One operation; the key says its own lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    pub key: Key,
    /// A get that is followed by a set if nothing was found, or a set alone.
    pub is_get: bool,
}

/// A key: its number, and the lengths that belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    pub id: u64,
    /// Length of the key, bytes; 8 at least.
    pub key_bytes: u32,
    /// Length of its value, bytes.
    pub value_bytes: u32,
}

impl Key {
    /// The key's bytes, in `buffer`.
    pub fn bytes<'b>(&self, buffer: &'b mut [u8; 256]) -> &'b [u8] {
        buffer[..8].copy_from_slice(&self.id.to_le_bytes());
        &buffer[..self.key_bytes as usize]
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct CacheWorkload {
    pub name: &'static str,
    /// Keys before scaling.
    pub keys: f64,
    /// Cumulated shares of gets, gets of lone keys, sets, sets of lone keys.
    ops: [f64; 4],
    key_bytes: (u32, u32),
    popularity: CumulativeShares,
    sizes: CumulativeShares,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct CumulativeShares {
    values: Vec<f64>,
    shares: Vec<f64>,
}

impl CumulativeShares {
    fn parse(text: &str) -> Option<CumulativeShares> {
        let mut table = CumulativeShares::default();
        let mut sum = 0.0;
        for pair in text.split_whitespace() {
            let (value, share) = pair.split_once(':')?;
            sum += share.parse::<f64>().ok()?;
            table.values.push(value.parse().ok()?);
            table.shares.push(sum);
        }
        table.shares.iter_mut().for_each(|share| *share /= sum);
        Some(table)
    }

    /// The place of a number below 1, and how far it is from there to the next.
    fn find(&self, at: f64) -> (usize, f64) {
        let place = self.shares.partition_point(|share| *share <= at).min(self.shares.len() - 1);
        let below = if place == 0 { 0.0 } else { self.shares[place - 1] };
        (place, ((at - below) / (self.shares[place] - below)).clamp(0.0, 1.0))
    }
}

/// All eight.
///
/// # Panics
/// Never: the text is part of the program, and read by a test.
#[must_use]
pub fn all() -> Vec<CacheWorkload> {
    parse(TEXT).expect("the text is well-formed")
}

/// Those with these names, or all.
///
/// # Errors
/// [`BenchError::Option`] for a name that is none.
pub(super) fn named(names: &[String]) -> Result<Vec<CacheWorkload>, BenchError> {
    let mut all = all();
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|it| it.name == **name)) {
        let allowed: Vec<&str> = all.iter().map(|workload| workload.name).collect();
        let reason = format!("\"{unknown}\" is none of {}", allowed.join(", "));
        return Err(BenchError::Option { option: "workload", reason });
    }
    all.retain(|it| names.is_empty() || names.iter().any(|name| name == it.name));
    Ok(all)
}

fn parse(text: &'static str) -> Option<Vec<CacheWorkload>> {
    // A line that begins with blanks goes on from the one before.
    let mut lines: Vec<String> = Vec::new();
    let mut names = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match lines.last_mut().filter(|_| line.starts_with(' ')) {
            Some(last) => last.push_str(line),
            None => {
                names.push(line.split(' ').next()?);
                lines.push(line.to_owned());
            }
        }
    }
    let workload = |(lines, name): (&[String], &&'static str)| {
        let [head, popularity, sizes] = lines else { return None };
        let numbers: Option<Vec<f64>> =
            head.split(' ').skip(1).map(|word| word.parse().ok()).collect();
        let [keys, gets, lone_gets, sets, lone_sets, shortest, longest] = numbers?[..] else {
            return None;
        };
        let sum = gets + lone_gets + sets + lone_sets;
        let ops = [gets, gets + lone_gets, gets + lone_gets + sets, sum].map(|share| share / sum);
        Some(CacheWorkload {
            name,
            keys,
            ops,
            key_bytes: (shortest as u32, longest as u32),
            popularity: CumulativeShares::parse(popularity)?,
            sizes: CumulativeShares::parse(sizes)?,
        })
    };
    lines.chunks(3).zip(names.iter().step_by(3)).map(workload).collect()
}

impl CacheWorkload {
    /// Mean length of the values of all keys, bytes.
    #[must_use]
    pub fn value_bytes_mean(&self) -> f64 {
        let mut below = 0.0;
        let pairs = self.sizes.values.iter().zip(&self.sizes.shares);
        pairs.map(|(value, share)| value * (share - std::mem::replace(&mut below, *share))).sum()
    }

    /// Mean length of all keys, bytes.
    #[must_use]
    pub fn key_bytes_mean(&self) -> f64 {
        let (shortest, longest) = self.key_bytes;
        let spread = f64::from(longest - shortest);
        f64::from(shortest) + (1.0 - SHORTEST_SHARE) * spread / 2.0
    }

    /// Operations on `scale` times the keys; the same for the same seed.
    #[must_use]
    pub fn stream(&self, scale: f64, seed: u64) -> OpStream<'_> {
        let mut starts = Vec::with_capacity(self.popularity.values.len());
        let mut sum = 0.0;
        for count in &self.popularity.values {
            starts.push(sum);
            sum += count * scale;
        }
        let rng = Rng::new(seed);
        OpStream { workload: self, scale, starts, rng, seed, lone: 0, even_lengths: None }
    }

    fn key(&self, id: u64, seed: u64) -> Key {
        let mut mixer = SplitMix64::new(id ^ seed.rotate_left(32));
        let (place, _) = self.sizes.find(unit(mixer.next_u64()));
        let (shortest, longest) = self.key_bytes;
        let (kind, at) = (unit(mixer.next_u64()), unit(mixer.next_u64()));
        let spread = f64::from(longest - shortest);
        let more = if kind < SHORTEST_SHARE { 0.0 } else { at * spread };
        let value_bytes = self.sizes.values[place] as u32;
        Key { id, key_bytes: shortest + more as u32, value_bytes }
    }
}

/// A number in 0..1 from random bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// Operations of a workload, without end.
#[derive(Debug)]
pub struct OpStream<'w> {
    workload: &'w CacheWorkload,
    scale: f64,
    starts: Vec<f64>,
    rng: Rng,
    seed: u64,
    lone: u64,
    /// Where the lengths of values begin that are dealt evenly.
    even_lengths: Option<u64>,
}

impl OpStream<'_> {
    /// Deals the lengths of values evenly among keys that are asked for equally often, instead of
    /// drawing each: of few keys, as of a scaled cache, the long ones that happen to be asked for
    /// often decide all else.
    #[must_use]
    pub fn with_even_lengths(mut self) -> Self {
        self.even_lengths = Some(SplitMix64::new(self.seed).next_u64());
        self
    }

    /// So many keys, the ones that are asked for most: of these the least first.
    pub fn most_asked(&self, count: usize) -> impl Iterator<Item = Key> {
        let all = self.starts.last().zip(self.workload.popularity.values.last());
        let all = all.map_or(0.0, |(start, last)| start + last * self.scale) as u64;
        (1..=all.min(count as u64)).rev().map(|id| self.key(id))
    }

    fn key(&self, id: u64) -> Key {
        let mut key = self.workload.key(id, self.seed);
        if let Some(first) = self.even_lengths {
            // Multiples of the golden section lie evenly, however many there are.
            let at = first.wrapping_add(id.wrapping_mul(GOLDEN_SECTION));
            let (place, _) = self.workload.sizes.find(unit(at));
            key.value_bytes = self.workload.sizes.values[place] as u32;
        }
        key
    }
}

impl Iterator for OpStream<'_> {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        let mut draw = || unit(self.rng.next_u64());
        let kind = draw();
        let kind = self.workload.ops.iter().position(|share| kind < *share).unwrap_or(3);
        let id = if kind % 2 == 1 {
            self.lone += 1;
            (1 << 63) | self.lone
        } else {
            let (place, within) = self.workload.popularity.find(draw());
            let count = self.workload.popularity.values[place] * self.scale;
            (self.starts[place] + within * count) as u64
        };
        let id = id.wrapping_add(1);
        Some(Op { key: self.key(id), is_get: kind < 2 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_eight_are_there_with_their_means() {
        let all = all();
        let means: Vec<_> = all.iter().map(|it| (it.name, it.value_bytes_mean() as u64)).collect();
        assert_eq!(means.len(), 8, "{means:?}");
        for (name, mean) in [("cdn", 33_024), ("follower_assocs", 567), ("kvcache_l2_wc", 92_422)] {
            let found = means.iter().find(|it| it.0 == name).unwrap().1;
            assert!(found.abs_diff(mean) * 200 < mean, "{name}: {found} bytes");
        }
    }

    #[test]
    fn keys_have_the_mean_length_that_is_told() {
        for workload in all() {
            let keys = (0..20_000).map(|id| f64::from(workload.key(id, 7).key_bytes));
            let (found, mean) = (keys.sum::<f64>() / 20_000.0, workload.key_bytes_mean());
            // Lengths are whole bytes.
            assert!((mean - found).abs() < 0.5 + mean * 0.02, "{}: {found}", workload.name);
        }
    }

    #[test]
    fn even_lengths_have_the_mean_of_all_among_few_keys_too() {
        let all = all();
        let workload = all.iter().find(|it| it.name == "follower_assocs").unwrap();
        let stream = workload.stream(1.0, 7).with_even_lengths();
        let keys: Vec<Key> = stream.most_asked(1 << 17).collect();
        assert!(keys.windows(2).all(|pair| pair[1].id + 1 == pair[0].id));
        // Parts that are asked for more and less often, of which each has the lengths of all.
        for part in keys.chunks(1 << 15) {
            let sum: u64 = part.iter().map(|key| u64::from(key.value_bytes)).sum();
            let (found, mean) = (sum as f64 / part.len() as f64, workload.value_bytes_mean());
            assert!((found / mean - 1.0).abs() < 0.1, "{found} bytes, {mean}");
        }
        let short = workload.stream(0.001, 7);
        let first = short.most_asked(usize::MAX).next().unwrap();
        assert!(first.id.abs_diff(23_458) < 2, "{first:?}");
    }

    #[test]
    fn streams_repeat_with_their_seed_and_lone_keys_never_come_again() {
        let all = all();
        let workload = all.iter().find(|it| it.name == "leader_fbobj").unwrap();
        let take = |seed| workload.stream(0.001, seed).take(20_000).collect::<Vec<_>>();
        assert_eq!(take(3), take(3));
        assert_ne!(take(3), take(4));
        let lone: Vec<u64> =
            take(3).iter().map(|op| op.key.id).filter(|id| *id > 1 << 62).collect();
        let share = lone.len() as f64 / 20_000.0;
        assert!((share - 0.2315).abs() < 0.02, "{share}");
        assert_eq!(lone.iter().collect::<std::collections::HashSet<_>>().len(), lone.len());
    }
}
