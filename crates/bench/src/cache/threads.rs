//! Two threads that look up in one partition at once: without its lock, beside with it.

use super::items::{BATCH, BLOCK, KEY_BYTES, SEED, VALUE_BYTES, key_of};
use crate::interleave::compare;
use crate::micro::index::IndexStream;
use crate::micro::pin;
use crate::probe::SystemProbe;
use crate::report::{Better, Reference, Row};
use crate::run::{BenchError, Size, slice_ns};
use rackpool_cache::Cache;
use std::hint::black_box;
use std::sync::Barrier;

/// Look-ups of keys below `keys` in one partition, one by one or by `batch`.
#[derive(Clone, Copy)]
pub(super) struct LookupLoad<'c> {
    pub cache: &'c Cache,
    pub keys: u64,
    pub batch: usize,
    pub size: Size,
}

/// The rate of two threads on two of these cores together, copies without the lock beside items
/// under it. Nothing where there is only one core.
pub(super) fn row(
    name: &str,
    load: LookupLoad<'_>,
    cores: &[usize],
) -> Result<Option<Row>, BenchError> {
    let [first, second, ..] = *cores else { return Ok(None) };
    let LookupLoad { cache, keys, batch, size } = load;
    let rate = |cache: &Cache| {
        let start = Barrier::new(2);
        let rates = std::thread::scope(|scope| {
            let worker = |core| {
                let start = &start;
                move || {
                    let pinned = pin::pin_to(core);
                    start.wait();
                    pinned?;
                    one(LookupLoad { cache, ..load }, SEED ^ core as u64)
                }
            };
            let workers = [first, second].map(|core| scope.spawn(worker(core)));
            workers.map(|worker| worker.join().expect("a thread that looks up"))
        });
        rates.into_iter().sum::<Result<f64, BenchError>>()
    };
    let [shared, locked] = [true, false].map(|shared| cache.clone().with_shared_reads(shared));
    let mut probe = SystemProbe::of_this_process();
    let compared = compare(&size.rules(), SEED, &mut probe, || rate(&shared), || rate(&locked))?;
    let row = Row::compared(name, "ops/s", Better::Higher, &compared, Reference::Peer);
    Ok(Some(row.with("keys", keys).with("batch", batch).with("beside", "the partition's lock")))
}

/// The rate of one thread.
fn one(load: LookupLoad<'_>, seed: u64) -> Result<f64, BenchError> {
    let LookupLoad { cache, keys, batch, size } = load;
    let mut stream = IndexStream::new(keys, seed);
    let mut names = [[0; KEY_BYTES]; BATCH];
    let mut value = [0; VALUE_BYTES];
    let mut found = 0_u64;
    let ns = slice_ns(size.slice(), BLOCK, || {
        for _ in 0..BLOCK / batch as u64 {
            names[..batch].iter_mut().for_each(|name| *name = key_of(stream.next_index()));
            let names: [&[u8]; BATCH] = std::array::from_fn(|i| &names[i][..]);
            cache.get_many_unordered(&names[..batch], 1, |_, item| {
                if let Some(item) = item {
                    found += item.copy_to(0, &mut value).expect("in memory") as u64;
                }
            });
            black_box(&value);
        }
        Ok(())
    })?;
    assert!(found.is_multiple_of(VALUE_BYTES as u64 * BLOCK), "all are found");
    Ok(1e9 / ns)
}
