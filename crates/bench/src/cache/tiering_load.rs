//! A cache under a stream of operations, in batches: what is got in a batch is looked up together,
//! and what is not there is stored. See `tiering.rs`.

use super::items::{BATCH, BLOCK, KEY_BYTES, SEED, VALUE_BYTES};
use super::ratio::ORIGINAL_BYTES;
use super::workload::{CacheWorkload, Key, Op};
use crate::run::{BenchError, Size};
use rackpool_cache::{Cache, Options, PartitionShare, Reuse};
use rackpool_mem::emulation::{FarModel, SystemClock};
use rackpool_stats::histogram::{Histogram, Summary};
use rackpool_stats::random::Rng;
use rackpool_stats::zipf::Zipfian;
use rackpool_tiers::advice::ObservedLoad;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Of a cache's log.
const UNIT_BYTES: u64 = 64 << 10;
/// The name of the Zipfian look-ups, and how uneven they are.
pub(super) const ZIPFIAN: &str = "zipf99";
const THETA: f64 = 0.99;
/// Bytes of memory a key of the Zipfian look-ups: as for the other look-ups of such items.
const BYTES_PER_KEY: u64 = 90;

/// Time that the cache is told to have passed while it warms up: items in far memory come near at a
/// pace by time, so that all of them are looked at some three times.
const WARM_UP: Duration = Duration::from_secs(180);
/// Longest value, bytes.
pub(super) const VALUE_BYTES_MAX: usize = 8 << 20;

/// What a cache goes through.
#[derive(Clone, Copy)]
pub(super) struct TieringTest<'w> {
    pub name: &'static str,
    /// Near and far together, bytes.
    pub memory: u64,
    /// For which the index is made; 0 = it grows.
    items: u64,
    /// Operations that do not count.
    pub warm_up: u64,
    /// None: look-ups of small items by a Zipfian popularity, all of which fit.
    workload: Option<&'w CacheWorkload>,
}

impl<'w> TieringTest<'w> {
    pub fn zipfian(size: Size) -> TieringTest<'w> {
        let items = match size {
            Size::Smoke => 1 << 14,
            Size::Quick => 1 << 22,
            Size::Full => 1 << 23,
        };
        let (memory, warm_up) = (items * BYTES_PER_KEY + (4 << 20), 16 * items);
        TieringTest { name: ZIPFIAN, memory, items, warm_up, workload: None }
    }

    pub fn of(workload: &'w CacheWorkload, size: Size) -> TieringTest<'w> {
        let (memory, longest) = match size {
            Size::Smoke => (16_u64 << 20, 20_000.0),
            Size::Quick => (64 << 20, 1e6),
            Size::Full => (512 << 20, 16e6),
        };
        let fits = memory as f64 / (workload.value_bytes_mean() + 60.0);
        let warm_up = (fits * 12.0).clamp(20_000.0, longest) as u64;
        TieringTest { name: workload.name, memory, items: 0, warm_up, workload: Some(workload) }
    }

    /// Those of a cache with so many bytes in one memory.
    pub fn options(&self, memory: u64) -> Options {
        Options {
            memory,
            // The longest value is the same for all: one that half of the memory can have, beside
            // its tables.
            max_value: self.memory / 2 / UNIT_BYTES / 5 * UNIT_BYTES,
            items_expected: self.items,
            seed: SEED,
            ..Options::default()
        }
    }

    /// Another stream for each engine.
    fn ops(&self, engine: u64) -> Box<dyn Iterator<Item = Op> + Send + 'w> {
        let seed = SEED ^ engine;
        match self.workload {
            None => Box::new(zipfian(self.items, THETA, seed)),
            Some(workload) => Box::new(workload.stream(self.memory as f64 / ORIGINAL_BYTES, seed)),
        }
    }

    /// A cache that has gone through what warms it up.
    pub fn load<'s>(
        &self,
        options: Options,
        stored: &'s [u8],
        engine: u64,
    ) -> Result<Load<'s>, BenchError>
    where
        'w: 's,
    {
        let mut load = Load::new(Cache::new(options)?, self.ops(engine), stored);
        load.warm_up(self.warm_up);
        Ok(load)
    }
}

/// What was seen of a cache so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LoadSummary {
    pub hit_ratio: f64,
    pub hits_per_op: f64,
    /// How long batches took, ns.
    pub batches: Summary,
}

impl LoadSummary {
    /// Of several together.
    pub fn of(loads: &[Load<'_>]) -> LoadSummary {
        let sum = |of: fn(&Load<'_>) -> u64| loads.iter().map(of).sum::<u64>() as f64;
        let (gets, ops) = (sum(|load| load.gets), sum(|load| load.ops_done));
        let hits = sum(|load| load.hits);
        let mut batches = Histogram::new();
        loads.iter().for_each(|load| batches.merge(&load.batches));
        let batches = batches.summary();
        LoadSummary { hit_ratio: hits / gets, hits_per_op: hits / ops, batches }
    }
}

/// A cache, and the operations that come next.
pub(super) struct Load<'w> {
    cache: Cache,
    is_emulated: bool,
    ops: Box<dyn Iterator<Item = Op> + Send + 'w>,
    block: Vec<Op>,
    keys: Box<[[u8; 256]; BATCH]>,
    read: Vec<u8>,
    stored: &'w [u8],
    /// The cache's clock.
    passed: Duration,
    ops_done: u64,
    gets: u64,
    hits: u64,
    /// How long batches took.
    batches: Histogram,
}

/// Look-ups of small items by a Zipfian popularity, and all items once before, in another order.
fn zipfian(keys: u64, theta: f64, seed: u64) -> impl Iterator<Item = Op> {
    assert!(keys.is_power_of_two(), "any odd step visits all keys");
    let op = |id, is_get| {
        let (key_bytes, value_bytes) = (KEY_BYTES as u32, VALUE_BYTES as u32);
        Op { key: Key { id, key_bytes, value_bytes }, is_get }
    };
    let (zipfian, mut rng) = (Zipfian::new(keys, theta), Rng::new(seed));
    let step = 0x9e37_79b9_7f4a_7c15_u64;
    let fill = (0..keys).map(move |index| op(index.wrapping_mul(step) & (keys - 1), false));
    fill.chain(std::iter::repeat_with(move || op(zipfian.next_rank(&mut rng), true)))
}

impl<'w> Load<'w> {
    fn new(
        cache: Cache,
        ops: Box<dyn Iterator<Item = Op> + Send + 'w>,
        stored: &'w [u8],
    ) -> Load<'w> {
        Load {
            cache,
            is_emulated: false,
            ops,
            block: Vec::with_capacity(BLOCK as usize),
            keys: Box::new([[0; 256]; BATCH]),
            read: vec![0; VALUE_BYTES_MAX],
            stored,
            passed: Duration::from_secs(1),
            ops_done: 0,
            gets: 0,
            hits: 0,
            batches: Histogram::new(),
        }
    }

    /// Operations that do not count.
    fn warm_up(&mut self, operations: u64) {
        let blocks = operations.div_ceil(BLOCK);
        for _ in 0..blocks {
            self.run_block();
            self.passed += WARM_UP / blocks as u32;
            // Idle turns as they come in such a time.
            self.cache.tidy(PartitionShare::ALL, self.now(), || true);
        }
        (self.ops_done, self.gets, self.hits) = (0, 0, 0);
        self.batches.clear();
    }

    /// As [`Cache::emulate_far`].
    pub fn emulate(
        &mut self,
        model: FarModel,
        weights: Option<[u32; 2]>,
    ) -> Result<(), BenchError> {
        self.is_emulated = true;
        Ok(self.cache.emulate_far(model, weights, Box::new(SystemClock::new()))?)
    }

    /// Ends that.
    pub fn end_emulation(&mut self) {
        self.is_emulated = false;
        self.cache.end_emulation();
    }

    /// What the counters of its cache, with [`Options::samples_reuse`], say of so many operations
    /// more.
    pub fn observe(&mut self, operations: u64) -> ObservedLoad {
        let counters = |cache: &Cache| (cache.stats(), cache.reuse().expect("reads are sampled"));
        let (before, reuse_before) = counters(&self.cache);
        let mut spent = Duration::ZERO;
        for _ in 0..operations.div_ceil(BLOCK) {
            spent += self.run_block();
        }
        let (now, reuse) = counters(&self.cache);
        let hits = (now.hits - before.hits) as f64;
        let misses = (now.misses - before.misses) as f64;
        let (sets, gets) = ((now.sets - before.sets) as f64, hits + misses);
        let since = |of: fn(&Reuse) -> &[(u64, u64)]| -> Vec<(u64, f64)> {
            let both = of(&reuse).iter().zip(of(&reuse_before));
            both.map(|((bytes, now), (_, before))| (*bytes, (now - before) as f64)).collect()
        };
        let mut within = since(|reuse| &reuse.by_capacity);
        let sampled = within.iter().map(|(_, reads)| reads).sum::<f64>()
            + (reuse.first_reads - reuse_before.first_reads) as f64;
        // Keys that are read much are in the sample or not by chance: any cache answers them.
        let mut answered = gets - sampled;
        for (_, reads) in &mut within {
            answered += *reads;
            *reads = answered;
        }
        ObservedLoad {
            gets,
            gets_per_s: None,
            sets_per_get: sets / gets,
            misses_per_get: misses / gets,
            item_bytes: now.live_bytes as f64 / now.items as f64,
            copied_bytes: (now.copied_bytes() - before.copied_bytes()) as f64 / gets,
            memory_bytes: Some(now.memory_bytes),
            within,
            by_item: since(|reuse| &reuse.by_item),
            found_bytes: (reuse.found_bytes - reuse_before.found_bytes) as f64,
            threads: 1,
            command_ns: Some(spent.as_secs_f64() * 1e9 / (gets + sets)),
        }
    }

    /// Operations a second, over at least `least`.
    pub fn slice(&mut self, least: Duration) -> f64 {
        let (mut spent, mut operations) = (Duration::ZERO, 0);
        while spent < least {
            spent += self.run_block();
            operations += BLOCK;
        }
        operations as f64 / spent.as_secs_f64()
    }

    /// How long a block took, an emulation's own time taken off; it is made before.
    fn run_block(&mut self) -> Duration {
        self.block.clear();
        self.block.extend(self.ops.by_ref().take(BLOCK as usize));
        let start = self.clock();
        let mut before = start;
        for first in (0..BLOCK as usize).step_by(BATCH) {
            self.run_batch(first);
            let now = self.clock();
            self.batches.record((now - before).as_nanos() as u64);
            before = now;
        }
        let mut is_first = true;
        self.cache.tidy(PartitionShare::ALL, self.now(), || std::mem::take(&mut is_first));
        let spent = self.clock() - start;
        self.passed += spent;
        self.ops_done += BLOCK;
        spent
    }

    fn clock(&self) -> Instant {
        let own = if self.is_emulated { self.cache.emulation_own() } else { Duration::ZERO };
        Instant::now() - own
    }

    fn now(&self) -> u64 {
        self.passed.as_millis() as u64
    }

    fn run_batch(&mut self, first: usize) {
        let (now, ops) = (self.now(), &self.block[first..first + BATCH]);
        let mut names: [&[u8]; BATCH] = [&[]; BATCH];
        let mut asked: [&[u8]; BATCH] = [&[]; BATCH];
        let (mut gets, mut count) = ([0; BATCH], 0);
        for (index, (op, buffer)) in ops.iter().zip(self.keys.iter_mut()).enumerate() {
            names[index] = op.key.bytes(buffer);
            if op.is_get {
                (asked[count], gets[count], count) = (names[index], index, count + 1);
            }
        }
        let mut is_there = [false; BATCH];
        self.cache.get_many_unordered(&asked[..count], now, |nth, item| {
            if let Some(item) = item {
                is_there[gets[nth]] = true;
                item.copy_to(0, &mut self.read).expect("it lies in memory");
            }
        });
        self.gets += count as u64;
        self.hits += is_there.iter().filter(|it| **it).count() as u64;
        for (index, op) in ops.iter().enumerate().filter(|(index, _)| !is_there[*index]) {
            let value = &self.stored[..op.key.value_bytes as usize];
            // What is too large for the cache is not cached.
            let _ = self.cache.set(names[index], value, 0, 0, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_are_stored_once_before_popular_ones_are_got_most() {
        let ops: Vec<Op> = zipfian(1024, 0.99, SEED).take(1024 + 10_000).collect();
        let (fill, gets) = ops.split_at(1024);
        let mut ids: Vec<u64> = fill.iter().map(|op| op.key.id).collect();
        ids.sort_unstable();
        assert!(ids.into_iter().eq(0..1024) && fill.iter().all(|op| !op.is_get));
        let of = |id| gets.iter().filter(|op| op.is_get && op.key.id == id).count();
        assert!(of(0) > 3 * of(9) && of(9) > of(500), "{} {} {}", of(0), of(9), of(500));
    }
}
