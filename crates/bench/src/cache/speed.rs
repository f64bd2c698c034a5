//! Look-ups of small items among millions, one by one and in batches, beside the bound: the same
//! number of keys, two dependent random accesses a key (a line that names an item, the item, to
//! compare its key and copy its value; items are packed as in a log, so most lie on two
//! lines), in memory of the same kind, with the same number of keys under way. Both sides are
//! handed the same keys, bytes in memory, which are made within what is measured. The items of a
//! batch are taken as they come, and in a row of its own in order.
//!
//! One by one the next key is named by the value that was read, so that a look-up cannot begin
//! before the one before it has answered. The two sides walk in turn. Beside that, two threads in
//! the one partition (`threads`).

use super::items::{BATCH, BLOCK, KEY_BYTES, SEED, VALUE_BYTES, key_of};
use super::threads::{self, LookupLoad};
use crate::interleave::{Comparison, compare};
use crate::micro::index::{IndexStream, random_cycle};
use crate::micro::pin;
use crate::probe::SystemProbe;
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, Progress, Size, Steps, slice_ns};
use rackpool_cache::{Cache, Item, Options};
use rackpool_core::seam::Mem;
use rackpool_mem::window::Window;
use std::hint::black_box;

/// Bytes of an item of the bound, laid out one behind the other as in a log.
const ITEM_BYTES: u64 = 8 + (KEY_BYTES + VALUE_BYTES) as u64;
const LINE: u64 = 64;
/// Keys on a line of the bound: as many as on a bucket of the cache.
const KEYS_PER_LINE: u64 = 5;

/// Measures.
///
/// # Errors
/// [`BenchError`].
pub fn run(size: Size, progress: &mut dyn FnMut(Progress)) -> Result<Report, BenchError> {
    let mut steps = Steps::new(7, progress);
    let mut report = Report::here(Kind::Measured);
    let cores = pin::allowed_cores()?;
    pin::pin_to(cores[0])?;
    steps.begin("filling");
    let keys = match size {
        Size::Smoke => 1 << 14,
        Size::Quick | Size::Full => 1 << 23,
    };
    let bench = LookupBench::new(keys, size)?;
    let measured = (|| {
        steps.begin("cache_get_batch32");
        let comparison = bench.batches::<false>()?;
        let row = |name: &str, comparison: &Comparison| {
            Row::compared(name, "ops/s", Better::Higher, comparison, Reference::Raw)
                .with("keys", keys)
                .with("key_bytes", KEY_BYTES)
                .with("value_bytes", VALUE_BYTES)
        };
        report.results.push(row("cache_get_batch32", &comparison).with("batch", BATCH));
        steps.begin("cache_get_batch32_in_order");
        let comparison = bench.batches::<true>()?;
        report.results.push(row("cache_get_batch32_in_order", &comparison).with("batch", BATCH));
        steps.begin("cache_get_single");
        report.results.push(row("cache_get_single", &bench.singles()?));
        report.results.push(bench.overhead());
        for (name, batch) in [("cache_get_2_threads", 1), ("cache_get_batch32_2_threads", BATCH)] {
            steps.begin(name);
            let load = LookupLoad { cache: &bench.cache, keys, batch, size };
            let row = threads::row(name, load, &cores)?;
            report.results.extend(row);
        }
        steps.begin("cache_set");
        report.results.push(bench.sets()?);
        Ok(report)
    })();
    pin::pin_to_any(&cores)?;
    steps.end();
    measured
}

struct LookupBench {
    size: Size,
    keys: u64,
    cache: Cache,
    bound: Bound,
}

/// Batches of keys at random.
#[derive(Clone)]
struct Names {
    stream: IndexStream,
    keys: [[u8; KEY_BYTES]; BATCH],
}

impl Names {
    fn new(keys: u64) -> Names {
        Names { stream: IndexStream::new(keys, SEED), keys: [[0; KEY_BYTES]; BATCH] }
    }

    fn next(&mut self) -> [&[u8]; BATCH] {
        self.keys.iter_mut().for_each(|key| *key = key_of(self.stream.next_index()));
        std::array::from_fn(|i| &self.keys[i][..])
    }
}

/// The value of an index: the one that comes next, and padding.
fn value_of(next: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0x5a; VALUE_BYTES];
    value[..8].copy_from_slice(&next.to_le_bytes());
    value
}

impl LookupBench {
    fn new(keys: u64, size: Size) -> Result<LookupBench, BenchError> {
        let count = u32::try_from(keys).expect("fewer than 2^32 keys");
        let next = random_cycle(count, SEED);
        let bytes = keys * 90 + (4 << 20);
        let options =
            Options { memory: bytes, items_expected: keys, seed: SEED, ..Options::default() };
        let cache = Cache::new(options).map_err(BenchError::Cache)?;
        for (index, next) in (0..).zip(&next) {
            let value = value_of(u64::from(*next));
            cache.set(&key_of(index), &value, 0, 0, 1).map_err(BenchError::Cache)?;
        }
        assert_eq!(cache.len(), keys, "the memory suffices");
        // The first look-up of an item marks it as fetched: once, not at every look-up.
        (0..keys).for_each(|index| assert!(cache.get(&key_of(index), 1, |_| ()).is_some()));
        let bound = Bound::new(keys, &next);
        Ok(LookupBench { size, keys, cache, bound })
    }

    fn compare(
        &self,
        ours: impl FnMut() -> Result<f64, BenchError>,
        raw: impl FnMut() -> Result<f64, BenchError>,
    ) -> Result<Comparison, BenchError> {
        compare(&self.size.rules(), SEED, &mut SystemProbe::of_this_process(), ours, raw)
    }

    fn batches<const IN_ORDER: bool>(&self) -> Result<Comparison, BenchError> {
        let slice = self.size.slice();
        let mut names = Names::new(self.keys);
        let mut names_raw = names.clone();
        let (mut value, mut value_raw) = ([0; VALUE_BYTES], [0; VALUE_BYTES]);
        let rate = |ns: f64| 1e9 / ns;
        let ours = || {
            let mut found = 0;
            let ns = slice_ns(slice, BLOCK, || {
                for _ in 0..BLOCK / BATCH as u64 {
                    let copy = |_, item: Option<&Item<'_>>| {
                        if let Some(item) = item {
                            found += item.copy_to(0, &mut value).expect("in memory") as u64;
                        }
                    };
                    if IN_ORDER {
                        self.cache.get_many(&names.next(), 1, copy);
                    } else {
                        self.cache.get_many_unordered(&names.next(), 1, copy);
                    }
                    black_box(&value);
                }
                Ok(())
            })?;
            assert!(found.is_multiple_of(VALUE_BYTES as u64 * BATCH as u64), "all are found");
            Ok(rate(ns))
        };
        let raw = || {
            let ns = slice_ns(slice, BLOCK, || {
                for _ in 0..BLOCK / BATCH as u64 {
                    let found = self.bound.batch(&names_raw.next(), &mut value_raw);
                    assert_eq!(found, BATCH, "all are found");
                    black_box(&value_raw);
                }
                Ok(())
            });
            ns.map(rate)
        };
        self.compare(ours, raw)
    }

    fn singles(&self) -> Result<Comparison, BenchError> {
        let slice = self.size.slice();
        let (mut at, mut at_raw) = (0, self.keys / 2);
        let mut value = [0; VALUE_BYTES];
        let rate = |ns: f64| 1e9 / ns;
        let ours = || {
            let ns = slice_ns(slice, BLOCK, || {
                for _ in 0..BLOCK {
                    let found = self.cache.get(&key_of(at), 1, |item| {
                        item.copy_to(0, &mut value).expect("in memory")
                    });
                    assert_eq!(found, Some(VALUE_BYTES), "key {at} is there");
                    at = first_word(&value);
                }
                Ok(())
            });
            ns.map(rate)
        };
        let raw = || {
            let ns = slice_ns(slice, BLOCK, || {
                (0..BLOCK).for_each(|_| at_raw = self.bound.single(at_raw));
                Ok(())
            });
            ns.map(rate)
        };
        self.compare(ours, raw)
    }

    /// What an item costs beyond key and value, of all memory that is in use.
    fn overhead(&self) -> Row {
        let stats = self.cache.stats();
        let used_units = stats.units - stats.free_units;
        let used_bytes = stats.memory_bytes as f64 * used_units as f64 / stats.units as f64;
        let each = used_bytes / stats.items as f64 - (KEY_BYTES + VALUE_BYTES) as f64;
        Row::new("cache_bytes_per_item_overhead", "B", Better::Lower, each)
            .samples(stats.items)
            .with("limit", 24)
    }

    fn sets(&self) -> Result<Row, BenchError> {
        let mut stream = IndexStream::new(self.keys, SEED + 1);
        let ns = slice_ns(self.size.slice() * 5, BLOCK, || {
            for _ in 0..BLOCK {
                let index = stream.next_index();
                let value = value_of(index);
                self.cache.set(&key_of(index), &value, 0, 0, 1).map_err(BenchError::Cache)?;
            }
            Ok(())
        })?;
        Ok(Row::new("cache_set_single", "ops/s", Better::Higher, 1e9 / ns))
    }
}

/// The index in a key, the next one in a value.
#[inline(always)]
fn first_word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
}

/// The bound: lines that name items, and items.
struct Bound {
    window: Window,
    lines: u64,
    items_at: u64,
}

impl Bound {
    fn new(keys: u64, next: &[u32]) -> Bound {
        let lines = keys.div_ceil(KEYS_PER_LINE);
        let items_at = lines * LINE;
        let bytes = items_at + keys * ITEM_BYTES;
        let window = Window::private(bytes).expect("as much address space as the cache has");
        // Items lie in an order that has nothing to do with the lines'.
        for (index, next) in (0..).zip(next) {
            let item = items_at + index * ITEM_BYTES;
            window.copy_in(item + 8, &key_of(index));
            window.copy_in(item + 8 + KEY_BYTES as u64, &value_of(u64::from(*next)));
        }
        // A line holds what turns an index into its item: a word that has to be waited for.
        for line in 0..lines {
            window.store(line * LINE, items_at);
        }
        Bound { window, lines, items_at }
    }

    #[inline(always)]
    fn line_of(&self, index: u64) -> u64 {
        let mixed = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mixed) * u128::from(self.lines)) >> 64) as u64 * LINE
    }

    #[inline(always)]
    fn item_of(&self, line: u64, index: u64) -> u64 {
        self.window.load(line) + index * ITEM_BYTES
    }

    fn batch(&self, keys: &[&[u8]; BATCH], value: &mut [u8; VALUE_BYTES]) -> usize {
        let mut items = [0; BATCH];
        for key in keys {
            self.window.prefetch(self.line_of(first_word(key)));
        }
        for (item, key) in items.iter_mut().zip(keys) {
            let index = first_word(key);
            *item = self.item_of(self.line_of(index), index);
            self.window.prefetch(*item);
            self.window.prefetch(*item + ITEM_BYTES - 1);
        }
        let is_key = |(item, key): &(&u64, &&[u8])| {
            self.window.copy_out(**item + 8 + KEY_BYTES as u64, value);
            self.window.equals(**item + 8, key)
        };
        items.iter().zip(keys).filter(is_key).count()
    }

    fn single(&self, index: u64) -> u64 {
        let item = self.item_of(self.line_of(index), index);
        assert!(
            item >= self.items_at && self.window.equals(item + 8, &key_of(index)),
            "the item is there"
        );
        self.window.load(item + 8 + KEY_BYTES as u64)
    }
}
