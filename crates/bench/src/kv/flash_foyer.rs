//! foyer's hybrid cache under a workload of `bench flash`, in this process, by its own published
//! interface and as it is by default, but that its files are opened for direct transfers as ours.

use super::capacity::HitShares;
use super::flash::{FlashContest, FlashOutcome, remove};
use super::servers::written_bytes;
use crate::cache::peers::Costs;
use crate::run::{BenchError, io_error};
use foyer::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder, RecoverMode,
};
use std::path::Path;
use std::time::{Duration, Instant};

/// Operations between two looks at the clock.
const OPS_AT_ONCE: u64 = 64;

fn failed(what: &str) -> impl Fn(foyer::Error) -> BenchError + '_ {
    move |error| io_error(what)(std::io::Error::other(error.to_string()))
}

async fn opened(
    contest: &FlashContest<'_>,
    folder: &Path,
    entry_bytes: usize,
) -> foyer::Result<HybridCache<u64, Vec<u8>>> {
    let device = FsDeviceBuilder::new(folder.join("foyer"))
        .with_capacity(contest.flash_bytes as usize)
        .with_direct(true)
        .build()?;
    HybridCacheBuilder::new()
        .with_flush_on_close(false)
        .memory(contest.memory_bytes as usize)
        .with_shards(1)
        .with_weighter(move |_: &u64, value: &Vec<u8>| value.len() + entry_bytes)
        .storage()
        .with_recover_mode(RecoverMode::None)
        .with_engine_config(BlockEngineConfig::new(device))
        .build()
        .await
}

/// Looks keys up and stores what is not there, an operation in `pace` at most.
pub(super) fn measure(
    contest: &FlashContest<'_>,
    folder: &Path,
    pace: Duration,
) -> Result<FlashOutcome, BenchError> {
    let entry_bytes = Costs::measure(0).foyer as usize;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
    let runtime = runtime.map_err(io_error("starting foyer"))?;
    let before = written_bytes("self")?;
    let cache = runtime.block_on(opened(contest, folder, entry_bytes));
    let cache = cache.map_err(failed("starting foyer"))?;
    let counted_from = contest.counted_from();
    let (mut gets, mut hits, mut asked_bytes, mut hit_bytes) = (0_u64, 0_u64, 0_u64, 0_u64);
    let (mut stored_bytes, start) = (0, Instant::now());
    for (number, op) in (0..2 * counted_from).zip(contest.ops()) {
        if number % OPS_AT_ONCE == 0 {
            let until = start + pace.mul_f64(number as f64);
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        let found = match op.is_get {
            true => runtime.block_on(cache.get(&op.key.id)).map_err(failed("foyer"))?.is_some(),
            false => false,
        };
        let value_bytes = u64::from(op.key.value_bytes);
        if !found {
            let bytes = value_bytes + u64::from(op.key.key_bytes);
            cache.insert(op.key.id, vec![b'v'; bytes as usize]);
            stored_bytes += bytes;
        }
        if op.is_get && number >= counted_from {
            (gets, asked_bytes) = (gets + 1, asked_bytes + value_bytes);
            hits += u64::from(found);
            hit_bytes += if found { value_bytes } else { 0 };
        }
    }
    let took = start.elapsed();
    runtime.block_on(cache.close()).map_err(failed("foyer"))?;
    drop(cache);
    let written_bytes = written_bytes("self")? - before;
    remove(folder)?;
    let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
    let (objects, bytes) = (share(hits, gets), share(hit_bytes, asked_bytes));
    let shares = HitShares { objects, bytes, stored_bytes };
    Ok(FlashOutcome {
        name: "foyer",
        shares,
        written_bytes,
        admitted_bytes: None,
        // It shares this process.
        resident_bytes: 0,
        took,
    })
}
