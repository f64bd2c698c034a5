//! What the counters of a `kv` in DRAM would say of a workload, for the advice on tiers.
//!
//! In: a workload, and the memory of a cache. Out: an [`ObservedLoad`], of the second half of a
//! stream on as many keys as a sample of some thousands stands for. Pure.

use super::workload::{CacheWorkload, Op};
use rackpool_cache::ReuseSampler;
use rackpool_stats::random::SplitMix64;
use rackpool_tiers::advice::ObservedLoad;

/// Of an item in the log.
const HEADER_BYTES: u64 = 8;
const SEED: u64 = 0x6164_7669_7365;
/// Items that both memories hold, scaled down; and operations for each.
const ITEMS: f64 = 200_000.0;
const OPS_PER_ITEM: f64 = 24.0;

/// Has the operations looked at; gets and sets.
fn sample(sampler: &ReuseSampler, ops: impl Iterator<Item = Op>) -> [u64; 2] {
    let [mut gets, mut sets] = [0; 2];
    for op in ops {
        (gets, sets) = (gets + u64::from(op.is_get), sets + u64::from(!op.is_get));
        let hash = SplitMix64::new(op.key.id).next_u64();
        if sampler.wants(hash) {
            let bytes = u64::from(op.key.key_bytes + op.key.value_bytes) + HEADER_BYTES;
            match op.is_get {
                true => sampler.read(hash, Some(bytes)),
                false => sampler.stored(hash, bytes),
            }
        }
    }
    [gets, sets]
}

/// The load of this workload on a cache with so many bytes of near memory, which could have so many
/// of far memory.
#[must_use]
pub fn observed_load(workload: &CacheWorkload, near: u64, far: u64) -> ObservedLoad {
    let both = (near + far) as f64;
    let item_bytes = workload.value_bytes_mean() + workload.key_bytes_mean() + HEADER_BYTES as f64;
    // Of the keys, hence of the memories.
    let scale = ITEMS * item_bytes / both;
    let sampler = ReuseSampler::new((both * scale) as u64);
    let half = (ITEMS * OPS_PER_ITEM) as usize / 2;
    let mut stream = workload.stream(scale, SEED);
    sample(&sampler, stream.by_ref().take(half));
    let before = sampler.counts();
    let [gets, sets] = sample(&sampler, stream.take(half)).map(|count| count as f64);
    let now = sampler.counts();
    let since = |now: &[(u64, u64)], before: &[(u64, u64)]| -> Vec<(u64, f64)> {
        let both = now.iter().zip(before);
        both.map(|((bytes, now), (_, before))| (*bytes, (now - before) as f64)).collect()
    };
    let by_capacity = since(&now.by_capacity, &before.by_capacity);
    let sampled = by_capacity.iter().map(|(_, reads)| reads).sum::<f64>();
    // As of the counters of a kv.
    let mut answered = gets - sampled - (now.first_reads - before.first_reads) as f64;
    let within = by_capacity.iter().map(|(bytes, reads)| {
        answered += reads;
        ((*bytes as f64 / scale) as u64, answered)
    });
    let within: Vec<(u64, f64)> = within.collect();
    // What is not found is stored; as a kv with this DRAM alone would count it.
    let hits = within.iter().rev().find(|(bytes, _)| *bytes <= near);
    let misses_per_get = 1.0 - hits.map_or(0.0, |(_, reads)| reads / gets);
    ObservedLoad {
        within,
        gets,
        gets_per_s: None,
        sets_per_get: sets / gets + misses_per_get,
        misses_per_get,
        item_bytes,
        copied_bytes: 0.0,
        memory_bytes: None,
        by_item: since(&now.by_item, &before.by_item),
        found_bytes: (now.found_bytes - before.found_bytes) as f64,
        threads: 1,
        command_ns: None,
    }
}
