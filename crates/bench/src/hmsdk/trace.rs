//! What operations of the cache ask of memory: three engines run a workload, and each operation's
//! lines that the processor's shared cache does not have are written down in order.
//!
//! In: a workload, the engines' memories. Out: a [`Trace`], which `replay.rs` runs on devices. The
//! engines are the product's; buckets and pieces of items lie where [`Cache::touched`] says.
//! Sets write whole lines, which are read first; what leaves the shared cache written goes to
//! memory. Items that the engine moves are read here and written elsewhere; headers that it looks
//! at while it makes room are not counted, nor are its locks.

use super::{COPIED_LINE_PS, ENGINES, GET_PS, LLC_BYTES, LLC_PS, SET_PS};
use crate::cache::workload::{CacheWorkload, OpStream};
use rackpool_cache::{
    Bandwidths, Cache, FarMemory, Options, PartitionShare, Result, Stats, Touched,
};
use rackpool_rack::trace::filter::{CacheSize, LINE_BYTES, Level};

/// Names the streams and hashes; any other would do.
const SEED: u64 = 0x686d_7364_6b00;
/// Memory of the caches that the distributions were taken for: keys scale with it.
const ORIGINAL_BYTES: f64 = 8192.0 * 1024.0 * 1024.0;
/// Between two idle turns of an engine, as of a server's worker.
const TIDY_MS: u64 = 100;
/// Longest value that is stored.
const VALUE_BYTES_MAX: usize = 8 << 20;
/// Lines between the memories of two engines.
const ENGINE_LINES: u64 = 1 << 24;
/// Marks a line of far memory.
const FAR_LINE: u64 = 1 << 40;
/// Marks a line of near memory that is no bucket's.
const ITEM_LINE: u64 = 1 << 41;
const LLC_WAYS_MIN: u64 = 8;

/// An access of a line of memory.
#[derive(Clone, Copy, Debug)]
pub struct Line(u64);

impl Line {
    /// Nothing waits for it.
    const WRITE: u64 = 1;
    /// It is asked for when all lines before it have come.
    const WAITS: u64 = 2;

    pub fn is_write(self) -> bool {
        self.0 & Line::WRITE != 0
    }

    pub fn waits(self) -> bool {
        self.0 & Line::WAITS != 0
    }

    pub fn is_far(self) -> bool {
        self.number() & FAR_LINE != 0
    }

    /// Of an item, and not of a bucket.
    pub fn is_item(self) -> bool {
        self.number() & (FAR_LINE | ITEM_LINE) != 0
    }

    /// Bytes from the start of the memory of all engines.
    pub fn addr(self) -> u64 {
        (self.number() & !(FAR_LINE | ITEM_LINE)) * LINE_BYTES
    }

    fn number(self) -> u64 {
        self.0 >> 2
    }
}

/// An operation: its lines end here, those of the next one begin.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub end: usize,
    /// Time of the processor, without waits for memory.
    pub cpu_ps: u64,
}

/// Operations of all engines in turn.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub ops: Vec<Op>,
    pub lines: Vec<Line>,
    pub gets: u64,
    pub hits: u64,
    /// Lines of buckets and items that the operations touched, those of items, and those in far
    /// memory.
    pub touched: u64,
    pub touched_items: u64,
    pub touched_far: u64,
    moved: MovedLines,
}

/// Lines of items that were moved, each read and written.
#[derive(Clone, Copy, Debug, Default)]
struct MovedLines {
    /// Within near memory.
    near: u64,
    /// From one memory to the other.
    over: u64,
    /// Within far memory.
    far: u64,
}

impl Trace {
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.gets.max(1) as f64
    }

    /// Bytes that an operation moved within near memory, over, and within far memory.
    pub fn moved_bytes(&self) -> [f64; 3] {
        let MovedLines { near, over, far } = self.moved;
        let ops = self.ops.len().max(1) as f64;
        [near, over, far].map(|lines| (lines * LINE_BYTES) as f64 / ops)
    }

    /// Each operation reads a run of lines, all at once, from one place of `span` bytes after the
    /// other, or stores it, for which it is read first: what a tool does that measures bandwidth.
    pub fn streams(ops: usize, run_lines: u64, span: u64, are_stores: bool) -> Trace {
        let mut trace = Trace::default();
        for op in 0..ops as u64 {
            let first = op * run_lines % (span / LINE_BYTES);
            for number in first..first + run_lines {
                trace.lines.push(Line(number << 2));
                trace.lines.extend(are_stores.then_some(Line(number << 2 | Line::WRITE)));
            }
            trace.ops.push(Op { end: trace.lines.len(), cpu_ps: 0 });
        }
        trace
    }
}

/// A workload, and times how many keys for a byte of cache as in CacheBench's configuration.
#[derive(Clone, Debug)]
pub struct KeyedWorkload {
    pub workload: CacheWorkload,
    pub keys: f64,
}

/// The memory of each engine, scaled.
#[derive(Clone, Copy, Debug)]
pub struct EngineMemory {
    pub near_bytes: u64,
    pub far_bytes: u64,
}

pub struct TraceOptions<'a> {
    pub keyed: &'a KeyedWorkload,
    /// Memory of an engine by which keys are scaled.
    pub keys_bytes: u64,
    pub memory: EngineMemory,
    /// Bytes of the study's cache for each byte of ours.
    pub shrink: f64,
    /// What both memories deliver, GB/s, and operations a second of all engines together: the
    /// engines' clock. Of no use without far memory.
    pub gbytes_per_s: [f64; 2],
    pub ops_per_s: f64,
    /// Keys that are stored first, the most asked for: else what is asked for seldom would be
    /// missed for a long time only because it was never stored.
    pub stored_first: usize,
    /// Operations of an engine until it is warm.
    pub warm_up: usize,
    /// Operations that are written down, of all engines.
    pub ops: usize,
}

impl TraceOptions<'_> {
    fn engine(&self) -> Options {
        let EngineMemory { near_bytes, far_bytes } = self.memory;
        // An engine has its share of the memories, and as much less as it is smaller.
        let share = |gbytes: f64| (gbytes * 1e9 / self.shrink / ENGINES as f64) as u64;
        let [near, far] = self.gbytes_per_s.map(share);
        let far = FarMemory {
            memory: far_bytes,
            placement: None,
            bandwidths: Some(Bandwidths { near, far }),
        };
        let far = (far_bytes > 0).then_some(far);
        Options { memory: near_bytes, seed: SEED, far, ..Options::default() }
    }

    /// Milliseconds of an engine's clock for each of its operations: time runs as much faster as
    /// its memory is smaller.
    fn ms_per_op(&self) -> f64 {
        1e3 * self.shrink * ENGINES as f64 / self.ops_per_s
    }
}

struct Engine<'w> {
    cache: Cache,
    stream: OpStream<'w>,
    first_line: u64,
    before: Stats,
    tidied: u64,
}

impl<'w> Engine<'w> {
    fn new(options: &TraceOptions<'w>, nth: u64, value: &[u8]) -> Result<Engine<'w>> {
        let cache = Cache::new(options.engine())?;
        let KeyedWorkload { workload, keys } = options.keyed;
        let scale = keys * options.keys_bytes as f64 / ORIGINAL_BYTES;
        let stream = workload.stream(scale, SEED + nth).with_even_lengths();
        let first_line = nth * ENGINE_LINES;
        for key in stream.most_asked(options.stored_first) {
            let value = &value[..key.value_bytes as usize];
            // What is too long for the cache is not cached.
            let _ = cache.set(key.bytes(&mut [0; 256]), value, 0, 0, 1);
        }
        Ok(Engine { cache, stream, first_line, before: Stats::default(), tidied: 0 })
    }

    /// An operation of which nothing is written down.
    fn warm(&mut self, value: &[u8], now: u64) {
        let op = self.stream.next().expect("it has no end");
        let mut buffer = [0; 256];
        let key = op.key.bytes(&mut buffer);
        if !(op.is_get && self.cache.get(key, now, |_| ()).is_some()) {
            let _ = self.cache.set(key, &value[..op.key.value_bytes as usize], 0, 0, now);
        }
    }

    /// An idle turn, if one is due.
    fn tidy(&mut self, now: u64) {
        if now >= self.tidied + TIDY_MS {
            self.cache.tidy(PartitionShare::ALL, now, || true);
            self.tidied = now;
        }
    }
}

/// Hits of all gets of one engine once it is warm, of as many as warm it.
///
/// # Errors
/// Of [`Cache::new`].
pub fn hit_ratio(options: &TraceOptions<'_>) -> Result<f64> {
    let value = vec![0x5a; VALUE_BYTES_MAX];
    let mut engine = Engine::new(options, 0, &value)?;
    (0..options.warm_up).for_each(|_| engine.warm(&value, 1));
    let before = engine.cache.stats();
    (0..options.warm_up).for_each(|_| engine.warm(&value, 1));
    let after = engine.cache.stats();
    let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
    Ok(hits as f64 / (hits + misses).max(1) as f64)
}

/// Runs the engines until they are warm, then writes down what they touch.
///
/// # Errors
/// Of [`Cache::new`].
pub fn record(options: &TraceOptions<'_>) -> Result<Trace> {
    let value = vec![0x5a; VALUE_BYTES_MAX];
    let engine = |nth| Engine::new(options, nth, &value);
    let mut engines = (0..ENGINES as u64).map(engine).collect::<Result<Vec<_>>>()?;
    let warm_up = ENGINES * options.warm_up;
    let mut recorder = Recorder {
        llc: Level::new(llc_size(options.shrink)),
        trace: Trace::default(),
        value: &value,
        moves: 0,
        near_lines: options.memory.near_bytes / LINE_BYTES,
    };
    // The shared cache is warm after half as many operations as are written down.
    let (recorded, all) = (warm_up + options.ops / 2, warm_up + options.ops / 2 + options.ops);
    for number in 0..all {
        let now = 1 + ((number / ENGINES) as f64 * options.ms_per_op()) as u64;
        let engine = &mut engines[number % ENGINES];
        engine.tidy(now);
        if number < warm_up {
            engine.warm(&value, now);
            continue;
        }
        if number < warm_up + ENGINES {
            engine.before = engine.cache.stats();
        }
        if number == recorded {
            recorder.trace = Trace::default();
        }
        recorder.step(engine, now);
    }
    Ok(recorder.trace)
}

/// The shared cache, as much smaller as the engines; a power of two of sets.
fn llc_size(shrink: f64) -> CacheSize {
    let lines = (LLC_BYTES / shrink / LINE_BYTES as f64) as u64;
    let sets = 1_u64 << (lines / LLC_WAYS_MIN).max(1).ilog2();
    let ways = (lines / sets).max(1);
    CacheSize { bytes: sets * ways * LINE_BYTES, ways: ways as u32 }
}

struct Recorder<'v> {
    llc: Level,
    trace: Trace,
    value: &'v [u8],
    /// Lines that were moved by all engines so far.
    moves: u64,
    near_lines: u64,
}

impl Recorder<'_> {
    fn step(&mut self, engine: &mut Engine<'_>, now: u64) {
        let op = engine.stream.next().expect("it has no end");
        let mut buffer = [0; 256];
        let key = op.key.bytes(&mut buffer);
        let (mut cpu_ps, mut is_hit) = (0, false);
        if op.is_get {
            let runs = engine.cache.touched(key);
            is_hit = engine.cache.get(key, now, |_| ()).is_some();
            cpu_ps += GET_PS;
            for run in &runs {
                // A hit marks the use in its bucket.
                cpu_ps += self.touch(engine.first_line, run, is_hit && run.is_bucket);
            }
            self.trace.gets += 1;
            self.trace.hits += u64::from(is_hit);
        }
        if !is_hit {
            let value = &self.value[..op.key.value_bytes as usize];
            let _ = engine.cache.set(key, value, 0, 0, now);
            cpu_ps += SET_PS;
            for run in engine.cache.touched(key) {
                cpu_ps += self.touch(engine.first_line, &run, true);
            }
        }
        cpu_ps += self.moved(engine);
        self.trace.ops.push(Op { end: self.trace.lines.len(), cpu_ps });
    }

    /// The lines of a run; time of the processor.
    fn touch(&mut self, first_line: u64, run: &Touched, is_store: bool) -> u64 {
        let kind = match run {
            Touched { is_far: true, .. } => FAR_LINE,
            Touched { is_bucket: true, .. } => 0,
            Touched { .. } => ITEM_LINE,
        };
        let (from, end) = (run.at / LINE_BYTES, (run.at + run.bytes).div_ceil(LINE_BYTES));
        let mut cpu_ps = (end - from) * COPIED_LINE_PS;
        for line in from..end {
            let number = (first_line + line) | kind;
            let waits = if line == from { Line::WAITS } else { 0 };
            match self.llc.access(number, is_store) {
                Ok(()) => cpu_ps += if waits != 0 { LLC_PS } else { 0 },
                Err(written) => {
                    self.trace.lines.push(Line(number << 2 | waits));
                    let written = written.map(|number| Line(number << 2 | Line::WRITE));
                    self.trace.lines.extend(written);
                }
            }
        }
        self.trace.touched += end - from;
        self.trace.touched_items += if run.is_bucket { 0 } else { end - from };
        self.trace.touched_far += if run.is_far { end - from } else { 0 };
        cpu_ps
    }

    /// What the engine has moved since its operation before: read here, written there.
    fn moved(&mut self, engine: &mut Engine<'_>) -> u64 {
        let (now, before) = (engine.cache.stats(), engine.before);
        engine.before = now;
        let crossed_bytes = now.crossed_bytes - before.crossed_bytes;
        let far_bytes = now.moved_far_bytes - before.moved_far_bytes;
        let near_bytes = now.moved_bytes - before.moved_bytes - crossed_bytes - far_bytes;
        let is_up = now.promotions - before.promotions > now.demotions - before.demotions;
        let (from, to) = if is_up { (FAR_LINE, ITEM_LINE) } else { (ITEM_LINE, FAR_LINE) };
        let lines = [near_bytes, crossed_bytes, far_bytes].map(|bytes| bytes.div_ceil(LINE_BYTES));
        let ways = [(ITEM_LINE, ITEM_LINE), (from, to), (FAR_LINE, FAR_LINE)];
        for (lines, (from, to)) in lines.into_iter().zip(ways) {
            for _ in 0..lines {
                // What is written lies elsewhere than what is read.
                let [read, written] = [self.moves, self.moves + self.near_lines / 2]
                    .map(|at| engine.first_line + at % self.near_lines);
                self.moves += 1;
                self.trace.lines.push(Line((read | from) << 2));
                self.trace.lines.push(Line((written | to) << 2 | Line::WRITE));
            }
        }
        let [near, over, far] = lines;
        let moved = &mut self.trace.moved;
        (moved.near, moved.over, moved.far) =
            (moved.near + near, moved.over + over, moved.far + far);
        lines.iter().sum::<u64>() * COPIED_LINE_PS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::workload::all;

    fn moves(far_bytes: u64) -> MovedLines {
        let mut all = all().into_iter();
        let workload = all.find(|workload| workload.name == "follower_assocs").unwrap();
        let record = record(&TraceOptions {
            keyed: &KeyedWorkload { workload, keys: 1.0 },
            keys_bytes: 64 << 20,
            memory: EngineMemory { near_bytes: 8 << 20, far_bytes },
            shrink: 1000.0,
            gbytes_per_s: [300.0, 40.0],
            ops_per_s: 1e8,
            stored_first: 0,
            warm_up: 120_000,
            ops: 30_000,
        });
        record.unwrap().moved
    }

    #[test]
    fn items_that_stay_far_while_room_is_made_are_read_and_written_there() {
        assert!(moves(8 << 20).far > 100);
        assert_eq!(moves(256 << 20).far, 0, "there is room");
    }
}
