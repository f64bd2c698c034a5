//! Random operations of several threads against a model: which blocks live, and what is in them.
//! `RACKPOOL_TIERS_OPERATIONS` is how many each of the threads does, `RACKPOOL_TIERS_SEED` what
//! they draw from.

use crate::support::Recorder;
use rackpool_tiers_alloc::{Arena, Hint, free, usable_size};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

const OPERATIONS: u64 = 100_000;
const THREADS: u64 = 3;
const LIVE_MAX: usize = 3000;
/// Blocks of a thread are given back so that they stay below this.
const LIVE_BYTES_MAX: usize = 192 << 20;
/// Longer blocks are written and compared at both ends alone.
const WHOLE_BYTES_MAX: usize = 8192;
const END_BYTES: usize = 256;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Mostly short, and all lengths up to 2^`log` bytes.
    fn size(&mut self, log: u64) -> usize {
        let log = self.below(log + 1).min(self.below(log + 1));
        self.below((1 << log) + 1) as usize
    }
}

/// A block that lives, and what it was filled from.
struct Block {
    start: *mut u8,
    bytes: usize,
    seed: u8,
}

// SAFETY: a block may be used by whichever thread owns it.
unsafe impl Send for Block {}

impl Block {
    fn new(live: &Live, start: *mut u8, bytes: usize, align: usize, seed: u8) -> Block {
        assert!(!start.is_null(), "{bytes} bytes, aligned to {align}");
        assert!(start.addr().is_multiple_of(align), "{start:?} is not aligned to {align}");
        // SAFETY: a block.
        let usable = unsafe { usable_size(start) };
        assert!(usable >= bytes, "{usable} of {bytes} bytes");
        live.insert(start.addr(), usable.max(1));
        let block = Block { start, bytes, seed };
        block.fill();
        block
    }

    /// The bytes that are written and compared.
    fn offsets(&self, bytes: usize) -> impl Iterator<Item = usize> {
        let (head, tail) = match bytes <= WHOLE_BYTES_MAX {
            true => (bytes, bytes),
            false => (END_BYTES, bytes - END_BYTES),
        };
        (0..head).chain(tail..bytes)
    }

    fn byte(&self, offset: usize) -> u8 {
        self.seed ^ (offset as u8) ^ ((offset >> 8) as u8)
    }

    fn fill(&self) {
        for offset in self.offsets(self.bytes) {
            // SAFETY: within the block, which is this thread's.
            unsafe { self.start.wrapping_add(offset).write(self.byte(offset)) };
        }
    }

    fn check(&self) {
        self.check_start(self.offsets(self.bytes));
    }

    fn check_start(&self, offsets: impl Iterator<Item = usize>) {
        for offset in offsets {
            // SAFETY: within the block, which is this thread's.
            let found = unsafe { self.start.wrapping_add(offset).read() };
            assert_eq!(found, self.byte(offset), "byte {offset} of {} bytes", self.bytes);
        }
    }

    fn give(self, live: &Live) {
        self.check();
        live.remove(self.start.addr());
        // SAFETY: a block that is this thread's, and gone from the model.
        unsafe { free(self.start) };
    }
}

/// Start and length of all blocks of all threads.
#[derive(Default)]
struct Live(Mutex<BTreeMap<usize, usize>>);

impl Live {
    fn insert(&self, start: usize, bytes: usize) {
        let mut live = self.0.lock().unwrap();
        if let Some((before, length)) = live.range(..=start).next_back() {
            assert!(before + length <= start, "{start:x} lies in {before:x} + {length}");
        }
        if let Some((behind, _)) = live.range(start..).next() {
            assert!(start + bytes <= *behind, "{start:x} + {bytes} reaches {behind:x}");
        }
        live.insert(start, bytes);
    }

    fn remove(&self, start: usize) {
        assert!(self.0.lock().unwrap().remove(&start).is_some());
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

struct Worker<'a> {
    random: Random,
    arenas: &'a [Arena],
    live: &'a Live,
    blocks: Vec<Block>,
    to: Sender<Block>,
    from: Receiver<Block>,
}

impl Worker<'_> {
    fn run(mut self, operations: u64) {
        for _ in 0..operations {
            self.step();
            while let Ok(block) = self.from.try_recv() {
                // Blocks that another thread took.
                block.give(self.live);
            }
        }
        drop(self.to);
        for block in self.blocks.into_iter().chain(self.from.iter()) {
            block.give(self.live);
        }
    }

    fn step(&mut self) {
        // Long to count, so not at every step.
        let is_counted = self.random.below(64) == 0;
        let bytes = || self.blocks.iter().map(|block| block.bytes).sum::<usize>();
        if self.blocks.len() >= LIVE_MAX || is_counted && bytes() > LIVE_BYTES_MAX {
            for _ in 0..self.blocks.len() / 2 {
                self.give_one();
            }
        }
        match self.random.below(10) {
            0..=4 => self.take_one(),
            5 => self.resize_one(),
            _ => self.give_one(),
        }
    }

    fn arena(&mut self) -> Arena {
        self.arenas[self.random.below(self.arenas.len() as u64) as usize]
    }

    fn take_one(&mut self) {
        let arena = self.arena();
        // Some are mappings of their own.
        let log = if self.random.below(2000) == 0 { 26 } else { 20 };
        let bytes = self.random.size(log);
        let seed = self.random.next() as u8;
        let (start, align) = match self.random.below(8) {
            0 => {
                let start = arena.calloc(bytes.div_ceil(8), 8);
                let zeros = Block { start, bytes, seed };
                for offset in zeros.offsets(bytes) {
                    // SAFETY: within the new block.
                    let found = unsafe { start.wrapping_add(offset).read() };
                    assert_eq!(found, 0, "{offset} of {bytes}");
                }
                (start, 8)
            }
            1 => {
                let far = self.random.below(400) == 0;
                let align = 1 << self.random.below(if far { 23 } else { 13 });
                (arena.aligned_alloc(align, bytes), align)
            }
            2 => (arena.malloc_hint(bytes, Hint::Far), 8),
            _ => (arena.malloc(bytes), if bytes > 8 { 16 } else { 8 }),
        };
        self.blocks.push(Block::new(self.live, start, bytes, align, seed));
    }

    fn take_from_model(&mut self) -> Option<Block> {
        let count = self.blocks.len() as u64;
        (count > 0).then(|| self.blocks.swap_remove(self.random.below(count) as usize))
    }

    fn resize_one(&mut self) {
        let arena = self.arena();
        let bytes = self.random.size(20);
        let Some(block) = self.take_from_model() else { return };
        block.check();
        self.live.remove(block.start.addr());
        // SAFETY: a block that is this thread's, and gone from the model.
        let start = unsafe { arena.realloc(block.start, bytes) };
        let kept = block.bytes.min(bytes);
        let moved = Block { start, ..block };
        // Of a long block the end was not written where the new one ends.
        let ends = moved.offsets(block.bytes).filter(|offset| *offset < kept);
        moved.check_start(ends);
        self.blocks.push(Block::new(self.live, start, bytes, 8, block.seed.wrapping_add(1)));
    }

    fn give_one(&mut self) {
        let Some(block) = self.take_from_model() else { return };
        if self.random.below(3) > 0 {
            block.give(self.live);
        } else {
            // The other thread frees it; one that has ended hands it back.
            block.check();
            if let Err(back) = self.to.send(block) {
                back.0.give(self.live);
            }
        }
    }
}

#[test]
fn random_operations_hold_against_a_model_of_live_blocks() {
    let operations = number("RACKPOOL_TIERS_OPERATIONS", OPERATIONS);
    let seed = number("RACKPOOL_TIERS_SEED", 1);
    println!("{THREADS} threads of {operations} operations, seed {seed}");
    let recorder = Recorder::new(u64::MAX);
    let arenas = ["weighted:0=3,1=1", "size:512;preferred:0;preferred:1", "hint;bind:2;bind:3"];
    let arenas: Vec<Arena> = arenas
        .into_iter()
        .enumerate()
        .map(|(index, text)| {
            let policy = text.parse().unwrap();
            Arena::with_placer(&format!("model-{index}"), policy, recorder).unwrap()
        })
        .collect();
    let live = Live::default();
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
    std::thread::scope(|scope| {
        for (index, from) in receivers.into_iter().enumerate() {
            // A ring: each thread frees what the one before it took.
            let to = senders[(index + 1) % senders.len()].clone();
            let random = Random(seed.wrapping_mul(1000) + index as u64);
            let (arenas, live, blocks) = (&arenas[..], &live, Vec::new());
            let worker = Worker { random, arenas, live, blocks, to, from };
            scope.spawn(move || worker.run(operations));
        }
        drop(senders);
    });
    assert!(live.0.lock().unwrap().is_empty());
}
