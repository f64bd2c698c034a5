//! Which tiering mode a cache should use, what each would do, and why.
//!
//! For each mode: how much it holds, hence answers (hits by capacity); how long a look-up takes, by
//! idle latencies and what one thread reads behind the first line, and what a miss costs; how many
//! a second memories and threads carry. Of the modes that carry the load with ease the one with the
//! shortest look-up is best, misses included; if none does, the one with the most hits a second: a
//! client waits for a miss, a thread of the cache does not. A mode of more parts has to be better
//! by 1 %.
//!
//! Items are taken to lie near as `--tiering data` has it in the long run: those that are read most
//! lately, short ones only; and reads to be split by bandwidth where near memory is saturated
//! (`rackpool_core::bandwidth_split`). A stored item is written near and, as another one has to go,
//! once more far; to make room, others are copied within each. What a processor's cache answers is
//! not known here.
//!
//! Pure. In: two memories from a profile, a load, as counters have it ([`ObservedLoad`]). Out:
//! figures of all modes, a choice, reasons.

mod observed;

pub use observed::ObservedLoad;

use crate::weights::{WEIGHT_MAX_DEFAULT, Weights, WeightsError, checked, solve};
use rackpool_stats::format::Unit;
use serde::Serialize;

const LINE_BYTES: f64 = 64.0;
/// What an item costs in the index, about.
const INDEX_BYTES: f64 = 10.0;
/// The index takes no more of near memory.
const INDEX_SHARE_MAX: f64 = 0.75;
/// Items from this length on go far at once.
const LONG_BYTES: f64 = 65_536.0;
/// Up to this share of its bandwidth a memory is left alone, as by the cache itself; above,
/// requests queue.
const EASE_SHARE: f64 = 0.85;
/// Bytes that are copied within far memory for each that goes there, at most: the median of the
/// workloads of `bench cache`. What goes there was not read lately, so little of it is kept.
const FAR_COPIES: f64 = 1.5;
/// What a mode of more parts has to gain.
const GAIN_MIN: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TieringMode {
    Dram,
    Data,
    Transparent,
}

impl TieringMode {
    /// As `--tiering` has it.
    pub fn name(self) -> &'static str {
        match self {
            TieringMode::Dram => "dram",
            TieringMode::Data => "data",
            TieringMode::Transparent => "transparent",
        }
    }
}

/// A memory that the cache may use, as its threads see it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CacheMemory {
    pub bytes: u64,
    /// Of one dependent load, idle.
    pub latency_ns: f64,
    /// For the load's mix of reads and writes: [`crate::weights::mixed_mbps`].
    pub bandwidth_mbps: f64,
    /// Of reads by one thread.
    pub thread_mbps: f64,
    /// Of stores by one thread.
    pub thread_store_mbps: f64,
}

/// Items of about this length, and their share of what look-ups find.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SizeShare {
    pub bytes: f64,
    pub share: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Of items.
    pub capacity_bytes: u64,
    pub hit_ratio: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheLoad {
    /// Look-ups a second that are asked for; `None`: as many as can be.
    pub gets_per_s: Option<f64>,
    /// Beside those that follow a miss.
    pub sets_per_get: f64,
    /// Of misses, those that a store follows: a mode that hits more stores less.
    pub fills_per_miss: f64,
    /// Mean of all items, headers included.
    pub item_bytes: f64,
    /// Of each stored byte, how many are copied to make room.
    pub copies: f64,
    pub sizes: Vec<SizeShare>,
    /// Ascending. Between two points it is a line; behind the last one, no more is hit.
    pub curve: Vec<CurvePoint>,
    pub threads: u32,
    /// Of a look-up, beside its waits for memory.
    pub work_ns: f64,
    /// Of its waits in idle memory one by one, what it waits: those of a batch overlap, and
    /// processors' caches answer. At most 1.
    pub wait_share: f64,
    /// What a miss costs its client. It decides between modes that carry the load.
    pub miss_ns: f64,
}

/// What a mode would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    pub mode: TieringMode,
    /// Memory of both kinds that it uses.
    pub capacity_bytes: u64,
    pub dram_bytes: u64,
    pub hit_ratio: f64,
    /// Mean of a look-up, misses included, where nothing queues.
    pub get_ns: f64,
    /// Look-ups that the threads carry.
    pub thread_gets_per_s: f64,
    /// Look-ups that the memories carry.
    pub memory_gets_per_s: f64,
    /// What is asked for, over what both carry; `None`: as many as can be.
    pub load: Option<f64>,
    /// Of all bytes that are moved.
    pub far_share: f64,
    /// Of near and far pages.
    pub weights: Option<[u32; 2]>,
}

/// What the choice has over DRAM alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    pub hit_ratio: f64,
    /// Below 1: shorter look-ups.
    pub get_ns_ratio: f64,
    pub gets_per_s_ratio: f64,
    /// What DRAM alone of the same capacity would take more.
    pub dram_saved_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TieringAdvice {
    pub chosen: TieringMode,
    pub gain: Gain,
    pub reasons: Vec<String>,
    pub modes: Vec<Predicted>,
}

impl Predicted {
    pub fn gets_per_s_max(&self) -> f64 {
        self.thread_gets_per_s.min(self.memory_gets_per_s)
    }

    pub fn hits_per_s_max(&self) -> f64 {
        self.gets_per_s_max() * self.hit_ratio
    }

    fn is_carried(&self) -> bool {
        self.load.is_some_and(|load| load <= EASE_SHARE)
    }

    fn is_better_than(&self, other: &Predicted) -> bool {
        match (self.is_carried(), other.is_carried()) {
            (true, true) => self.get_ns < other.get_ns * (1.0 - GAIN_MIN),
            (false, false) => self.hits_per_s_max() > other.hits_per_s_max() * (1.0 + GAIN_MIN),
            (is_better, _) => is_better,
        }
    }

    fn dram_saved_bytes(&self) -> u64 {
        self.capacity_bytes - self.dram_bytes
    }
}

/// Predicts all modes and chooses; without far memory there is one mode.
///
/// ```
/// use rackpool_tiers::advice::{CacheLoad, CacheMemory, CurvePoint, TieringMode, advise};
/// let near = CacheMemory {
///     bytes: 1 << 30,
///     latency_ns: 90.0,
///     bandwidth_mbps: 3e5,
///     thread_mbps: 1e4,
///     thread_store_mbps: 5e3,
/// };
/// let far = CacheMemory { bytes: 3 << 30, latency_ns: 250.0, bandwidth_mbps: 1e5, ..near };
/// let point = |gib: u64, hit_ratio| CurvePoint { capacity_bytes: gib << 30, hit_ratio };
/// let load = CacheLoad {
///     gets_per_s: Some(1e5),
///     sets_per_get: 0.1,
///     fills_per_miss: 0.0,
///     item_bytes: 500.0,
///     copies: 0.0,
///     sizes: Vec::new(),
///     curve: vec![point(1, 0.8), point(4, 0.95)],
///     threads: 4,
///     work_ns: 1000.0,
///     wait_share: 1.0,
///     miss_ns: 1e5,
/// };
/// assert_eq!(advise(&near, Some(&far), &load)?.chosen, TieringMode::Data);
/// # Ok::<(), rackpool_tiers::weights::WeightsError>(())
/// ```
///
/// # Errors
/// [`WeightsError::Bandwidth`], [`WeightsError::Figure`].
pub fn advise(
    near: &CacheMemory,
    far: Option<&CacheMemory>,
    load: &CacheLoad,
) -> Result<TieringAdvice, WeightsError> {
    check(near, far, load)?;
    let mut modes = vec![load.dram(near)];
    if let Some(far) = far {
        modes.push(load.data(near, far));
        modes.push(load.transparent(near, far)?);
    }
    let mut best = &modes[0];
    for other in &modes[1..] {
        if other.is_better_than(best) {
            best = other;
        }
    }
    let dram = &modes[0];
    let gain = Gain {
        hit_ratio: best.hit_ratio - dram.hit_ratio,
        get_ns_ratio: best.get_ns / dram.get_ns,
        gets_per_s_ratio: best.gets_per_s_max() / dram.gets_per_s_max(),
        dram_saved_bytes: best.dram_saved_bytes(),
    };
    let reasons = reasons(best, &modes, load);
    Ok(TieringAdvice { chosen: best.mode, gain, reasons, modes })
}

fn check(
    near: &CacheMemory,
    far: Option<&CacheMemory>,
    load: &CacheLoad,
) -> Result<(), WeightsError> {
    let figure = |what, value: f64, is_right: bool| match value.is_finite() && is_right {
        true => Ok(()),
        false => Err(WeightsError::Figure { what, value }),
    };
    let not_negative = |what, value: f64| figure(what, value, value >= 0.0);
    let above_0 = |what, value: f64| figure(what, value, value > 0.0);
    for (index, memory) in [near].into_iter().chain(far).enumerate() {
        checked(index, memory.bandwidth_mbps)?;
        checked(index, memory.thread_mbps)?;
        checked(index, memory.thread_store_mbps)?;
        above_0("a memory, bytes, which must not be 0 either,", memory.bytes as f64)?;
        above_0("a latency, ns, which must not be 0 either,", memory.latency_ns)?;
    }
    not_negative("look-ups a second", load.gets_per_s.unwrap_or(0.0))?;
    not_negative("stores a look-up", load.sets_per_get)?;
    let is_share = |share: f64| (0.0..=1.0).contains(&share);
    figure("stores a miss", load.fills_per_miss, is_share(load.fills_per_miss))?;
    let is_wait = is_share(load.wait_share) && load.wait_share > 0.0;
    figure("the share of waits, which must not be 0 either,", load.wait_share, is_wait)?;
    above_0("an item, bytes, which must not be 0 either,", load.item_bytes)?;
    above_0("threads, which must not be 0 either,", load.threads.into())?;
    not_negative("the copies of a stored byte", load.copies)?;
    not_negative("the work of a look-up, ns,", load.work_ns)?;
    not_negative("the cost of a miss, ns,", load.miss_ns)?;
    for size in &load.sizes {
        not_negative("the length of items, bytes,", size.bytes)?;
        not_negative("the share of a length", size.share)?;
    }
    let ratio = |point: &CurvePoint| {
        figure("a hit ratio", point.hit_ratio, (0.0..=1.0).contains(&point.hit_ratio))
    };
    load.curve.iter().try_for_each(ratio)
}

/// What a mode makes of the load, before threads and misses are looked at.
struct Model {
    mode: TieringMode,
    capacity_bytes: f64,
    dram_bytes: f64,
    hit_ratio: f64,
    /// Waits for memory of a look-up, and of a store.
    wait_ns: f64,
    store_ns: f64,
    memory_gets_per_s: f64,
    far_share: f64,
    weights: Option<[u32; 2]>,
}

/// The mean of what look-ups find.
struct Found {
    bytes: f64,
    /// Share of those that may lie near in data mode, and their mean.
    short_share: f64,
    short_bytes: f64,
}

/// Bytes a second of MB/s.
fn per_s(mbps: f64) -> f64 {
    mbps * 1e6
}

/// How long one thread moves so many bytes, ns.
fn moved_ns(bytes: f64, thread_mbps: f64) -> f64 {
    bytes.max(0.0) * 1000.0 / thread_mbps
}

impl CacheLoad {
    /// What a cache answers with room for so many bytes of items.
    pub fn hit_ratio(&self, capacity_bytes: f64) -> f64 {
        let (mut at, mut hit_ratio) = (0.0, 0.0);
        for point in &self.curve {
            let next = point.capacity_bytes as f64;
            if next >= capacity_bytes {
                let part = if next > at { (capacity_bytes - at) / (next - at) } else { 1.0 };
                return hit_ratio + part * (point.hit_ratio - hit_ratio);
            }
            (at, hit_ratio) = (next, point.hit_ratio);
        }
        hit_ratio
    }

    fn found(&self) -> Found {
        let own = [SizeShare { bytes: self.item_bytes, share: 1.0 }];
        let all: f64 = self.sizes.iter().map(|size| size.share).sum();
        let (sizes, all) = if all > 0.0 { (&self.sizes[..], all) } else { (&own[..], 1.0) };
        let sum = |is_counted: fn(&SizeShare) -> bool| {
            let counted = sizes.iter().filter(|size| is_counted(size));
            counted.fold((0.0, 0.0), |(share, bytes), size| {
                (share + size.share / all, bytes + size.share / all * size.bytes)
            })
        };
        let (short_share, short_bytes) = sum(|size| size.bytes < LONG_BYTES);
        let short_bytes = if short_share > 0.0 { short_bytes / short_share } else { 0.0 };
        Found { bytes: sum(|_| true).1, short_share, short_bytes }
    }

    /// Bytes of items in so much memory, its index apart.
    fn items_in(&self, memory_bytes: f64) -> f64 {
        memory_bytes / (1.0 + INDEX_BYTES / self.item_bytes)
    }

    /// Stores a look-up, of which so many hit.
    fn sets(&self, hits: f64) -> f64 {
        self.sets_per_get + self.fills_per_miss * (1.0 - hits)
    }

    /// How long one thread stores an item.
    fn item_ns(&self, memory: &CacheMemory) -> f64 {
        memory.latency_ns + moved_ns(self.item_bytes, memory.thread_store_mbps)
    }

    /// Bytes that a look-up has stored, and copied: each is read and written.
    fn stored_bytes(&self, hits: f64, copies: f64) -> f64 {
        self.sets(hits) * self.item_bytes * (1.0 + 2.0 * copies)
    }

    fn dram(&self, near: &CacheMemory) -> Predicted {
        let memory = near.bytes as f64;
        let (hits, found) = (self.hit_ratio(self.items_in(memory)), self.found());
        let bytes = LINE_BYTES + hits * found.bytes + self.stored_bytes(hits, self.copies);
        let rest = hits * (found.bytes - LINE_BYTES);
        self.predicted(&Model {
            mode: TieringMode::Dram,
            capacity_bytes: memory,
            dram_bytes: memory,
            hit_ratio: hits,
            wait_ns: near.latency_ns * (1.0 + hits) + moved_ns(rest, near.thread_mbps),
            store_ns: self.item_ns(near),
            memory_gets_per_s: per_s(near.bandwidth_mbps) / bytes,
            far_share: 0.0,
            weights: None,
        })
    }

    fn data(&self, near: &CacheMemory, far: &CacheMemory) -> Predicted {
        let (near_memory, found) = (near.bytes as f64, self.found());
        let indexed = near_memory * INDEX_SHARE_MAX / INDEX_BYTES * self.item_bytes;
        let far_memory = (far.bytes as f64).min(indexed);
        let index_bytes = far_memory / self.item_bytes * INDEX_BYTES;
        let near_items = self.items_in(near_memory - index_bytes);
        let hits = self.hit_ratio(near_items + far_memory);
        let near_hits = self.hit_ratio(near_items) * found.short_share;
        let near_read = near_hits * found.short_bytes;
        let (far_hits, far_read) = (hits - near_hits, (hits * found.bytes - near_read).max(0.0));
        let near_bytes = LINE_BYTES + near_read + self.stored_bytes(hits, self.copies);
        let far_bytes = far_read + self.stored_bytes(hits, self.copies.min(FAR_COPIES));
        let (near_rate, far_rate) = (per_s(near.bandwidth_mbps), per_s(far.bandwidth_mbps));
        // What goes over where near memory is saturated: as far as far memory is not then.
        let best = (near_bytes + far_bytes) * far_rate / (near_rate + far_rate);
        let movable = (best - far_bytes).clamp(0.0, near_read);
        let near_gets = near_rate / (near_bytes - movable);
        let far_gets = far_rate / (far_bytes + movable);
        // What the threads ask of near memory at most: as if all that they find lay there.
        let rest_ns = moved_ns(hits * (found.bytes - LINE_BYTES), near.thread_mbps);
        let wait_ns = near.latency_ns * (1.0 + hits) + rest_ns;
        let most = self.thread_gets_per_s(wait_ns, self.item_ns(near), hits);
        let gets = self.gets_per_s.map_or(most, |gets| gets.min(most));
        let is_split = gets * near_bytes > EASE_SHARE * near_rate;
        let moved = if is_split { movable } else { 0.0 };
        let moved_hits = if moved > 0.0 { moved / found.short_bytes } else { 0.0 };
        let (near_hits, far_hits) = (near_hits - moved_hits, far_hits + moved_hits);
        let near_rest = near_read - moved - near_hits * LINE_BYTES;
        let far_rest = far_read + moved - far_hits * LINE_BYTES;
        self.predicted(&Model {
            mode: TieringMode::Data,
            capacity_bytes: near_memory + far_memory,
            dram_bytes: near_memory,
            hit_ratio: hits,
            wait_ns: near.latency_ns * (1.0 + near_hits)
                + far.latency_ns * far_hits
                + moved_ns(near_rest, near.thread_mbps)
                + moved_ns(far_rest, far.thread_mbps),
            store_ns: self.item_ns(near) + moved_ns(self.item_bytes, far.thread_store_mbps),
            memory_gets_per_s: near_gets.min(far_gets),
            far_share: (far_bytes + moved) / (near_bytes + far_bytes),
            weights: None,
        })
    }

    fn transparent(
        &self,
        near: &CacheMemory,
        far: &CacheMemory,
    ) -> Result<Predicted, WeightsError> {
        let bandwidths = [near.bandwidth_mbps, far.bandwidth_mbps];
        let Weights { weights, utilisation } = solve(&bandwidths, WEIGHT_MAX_DEFAULT)?;
        let far_share = f64::from(weights[1]) / f64::from(weights[0] + weights[1]);
        let near_share = 1.0 - far_share;
        let memory = (near.bytes as f64 / near_share).min(far.bytes as f64 / far_share);
        let (hits, found) = (self.hit_ratio(self.items_in(memory)), self.found());
        let bytes = LINE_BYTES + hits * found.bytes + self.stored_bytes(hits, self.copies);
        let rest = hits * (found.bytes - LINE_BYTES);
        let latency_ns = near_share * near.latency_ns + far_share * far.latency_ns;
        Ok(self.predicted(&Model {
            mode: TieringMode::Transparent,
            capacity_bytes: memory,
            dram_bytes: memory * near_share,
            hit_ratio: hits,
            wait_ns: latency_ns * (1.0 + hits)
                + moved_ns(rest * near_share, near.thread_mbps)
                + moved_ns(rest * far_share, far.thread_mbps),
            store_ns: near_share * self.item_ns(near) + far_share * self.item_ns(far),
            memory_gets_per_s: utilisation * per_s(bandwidths.iter().sum()) / bytes,
            far_share,
            weights: Some([weights[0], weights[1]]),
        }))
    }

    fn served_ns(&self, wait_ns: f64) -> f64 {
        self.work_ns + self.wait_share * wait_ns
    }

    /// Look-ups that the threads carry with so long waits in each and in each store, if so many
    /// hit; beside its waits, a store takes as long as a look-up.
    fn thread_gets_per_s(&self, wait_ns: f64, store_ns: f64, hits: f64) -> f64 {
        let get_ns = self.served_ns(wait_ns) + self.sets(hits) * self.served_ns(store_ns);
        f64::from(self.threads) * 1e9 / get_ns
    }

    fn predicted(&self, model: &Model) -> Predicted {
        let served_ns = self.served_ns(model.wait_ns);
        let thread_gets_per_s =
            self.thread_gets_per_s(model.wait_ns, model.store_ns, model.hit_ratio);
        let carried = thread_gets_per_s.min(model.memory_gets_per_s);
        Predicted {
            mode: model.mode,
            capacity_bytes: model.capacity_bytes as u64,
            dram_bytes: model.dram_bytes as u64,
            hit_ratio: model.hit_ratio,
            get_ns: served_ns + (1.0 - model.hit_ratio) * self.miss_ns,
            thread_gets_per_s,
            memory_gets_per_s: model.memory_gets_per_s,
            load: self.gets_per_s.map(|gets| gets / carried),
            far_share: model.far_share,
            weights: model.weights,
        }
    }
}

/// Why one mode is best, a sentence for each other one, and what it saves.
fn reasons(best: &Predicted, modes: &[Predicted], load: &CacheLoad) -> Vec<String> {
    if modes.len() == 1 {
        return vec!["there is one memory only".to_owned()];
    }
    let others = modes.iter().filter(|other| other.mode != best.mode);
    let mut reasons: Vec<String> = others.map(|other| reason(best, other, load)).collect();
    if best.dram_saved_bytes() > 0 {
        let saved = Unit::Bytes.show(best.dram_saved_bytes() as f64);
        reasons.push(format!("DRAM alone of the same capacity would take {saved} more of it"));
    }
    reasons
}

fn reason(best: &Predicted, other: &Predicted, load: &CacheLoad) -> String {
    let (name, other_name) = (best.mode.name(), other.mode.name());
    let rate = |rate: f64| Unit::OpsPerSecond.show(rate);
    let (most, other_most) = (rate(best.gets_per_s_max()), rate(other.gets_per_s_max()));
    let bound = match other.memory_gets_per_s < other.thread_gets_per_s {
        true => "its memories",
        false => "its threads",
    };
    match (best.is_carried(), other.is_carried()) {
        (true, false) => format!(
            "{other_name} carries {other_most}, which {bound} bound, and {} are asked for; {name} \
             carries {most}",
            rate(load.gets_per_s.unwrap_or(f64::INFINITY)),
        ),
        (true, true) => {
            let time = |ns: f64| Unit::Nanoseconds.show(ns);
            let percent = |share: f64| format!("{:.1} %", share * 100.0);
            format!(
                "a look-up takes {} in {name} and {} in {other_name}: {} and {} hit, a miss costs \
                 {}, {} and {} of the bytes are far",
                time(best.get_ns),
                time(other.get_ns),
                percent(best.hit_ratio),
                percent(other.hit_ratio),
                time(load.miss_ns),
                percent(best.far_share),
                percent(other.far_share),
            )
        }
        _ => format!(
            "at full load {name} gives {} hits, {other_name} {}, which {bound} bound",
            rate(best.hits_per_s_max()),
            rate(other.hits_per_s_max()),
        ),
    }
}

#[cfg(test)]
mod tests;
