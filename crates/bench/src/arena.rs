//! A large allocation in mapped memory, accessed at random by us and by the bare copy: the same
//! lines of the same mapping in the same order, through [`Handle`] on one side and through the
//! window that it maps on the other.
//!
//! Latencies are taken along dependent chains: each slot names its successor, so that an access
//! cannot begin before the one before it has answered. The two sides walk one cycle half a turn
//! apart, so that neither finds what the other has just brought into the caches. Rates are taken
//! with independent indices in batches.
//!
//! Nothing allocates and no clock is read inside the blocks that are timed.

use crate::interleave::{Comparison, compare};
use crate::micro::index::{IndexStream, random_cycle};
use crate::probe::SystemProbe;
use crate::report::Row;
use crate::run::{BenchError, Size, slice_ns};
use rackpool::{Handle, Placement};
use rackpool_core::GAddr;
use rackpool_core::seam::Mem;
use rackpool_mem::window::Window;
use rackpool_stats::histogram::{Histogram, Summary};
use std::hint::black_box;
use std::time::Instant;

/// Independent accesses of a batch.
pub(crate) const BATCH: usize = 32;
/// Accesses between two looks at the clock.
const BLOCK: u64 = 1024;
/// Accesses that are timed together for percentiles.
const SAMPLE_GROUP: u64 = 16;
/// Bytes of a line: the small access.
pub(crate) const LINE: usize = 64;
/// Names the index streams; any other would do.
const SEED: u64 = 0x7261_636b_706f_6f6c;

/// The allocation; see the module. Freed by [`Arena::end`].
pub(crate) struct Arena {
    handle: Handle,
    addr: GAddr,
    bytes: u64,
    window: Window,
    /// Where `addr` is in `window`.
    offset: u64,
    size: Size,
    probe: SystemProbe,
}

impl Arena {
    /// Allocates what `size` asks for. Its pages must be mapped here and one behind the other,
    /// which those of a new pool are: then the bare copy needs no translation at all.
    pub(crate) fn new(
        mut handle: Handle,
        placement: Placement,
        size: Size,
        probe: SystemProbe,
    ) -> Result<Self, BenchError> {
        let bytes = size.region_bytes();
        let addr = handle.alloc(bytes, placement)?;
        let (window, offset) = match Self::find(&mut handle, addr, bytes) {
            Ok(found) => found,
            Err(error) => {
                handle.free(addr, bytes)?;
                return Err(error);
            }
        };
        let arena = Self { handle, addr, bytes, window, offset, size, probe };
        // Memory that was never written may be one shared page of zeros.
        arena.window.zero(offset, bytes);
        Ok(arena)
    }

    fn find(handle: &mut Handle, addr: GAddr, bytes: u64) -> Result<(Window, u64), BenchError> {
        let raw = |handle: &mut Handle, addr| {
            let unmapped = "the page is not mapped here";
            let found = handle.raw_window_at(addr)?;
            found.ok_or(BenchError::Unsuitable { addr, reason: unmapped })
        };
        let page_bytes = handle.page_bytes() as usize;
        let (window, offset) = raw(handle, addr)?;
        for start in (0..bytes).step_by(page_bytes) {
            let page = GAddr(addr.0 + start);
            if raw(handle, page)?.1 != offset + start {
                let reason = "its pages are scattered over the region: use a new pool";
                return Err(BenchError::Unsuitable { addr: page, reason });
            }
        }
        Ok((window, offset))
    }

    pub(crate) fn addr(&self) -> GAddr {
        self.addr
    }

    /// The handle that it is accessed through.
    pub(crate) fn handle(&mut self) -> &mut Handle {
        &mut self.handle
    }

    pub(crate) fn end(mut self) -> Result<(), BenchError> {
        Ok(self.handle.free(self.addr, self.bytes)?)
    }

    fn slots(&self, slot_bytes: usize) -> u64 {
        // Floor to a power of two, so that one `and` keeps any index inside.
        1 << (self.bytes / slot_bytes as u64).ilog2()
    }

    fn compare(
        &mut self,
        mut ours: impl FnMut(&mut Handle) -> Result<f64, BenchError>,
        mut raw: impl FnMut(&Window) -> Result<f64, BenchError>,
    ) -> Result<Comparison, BenchError> {
        let Self { handle, window, probe, size, .. } = self;
        compare(&size.rules(), SEED, probe, || ours(handle), || raw(window))
    }

    /// Lays a random cycle through all slots of `slot_bytes`: the last word of each holds the
    /// number of the next.
    fn lay_chain(&self, slot_bytes: usize) -> Chain {
        let slots = self.slots(slot_bytes);
        let count = u32::try_from(slots).expect("an arena has fewer than 2^32 lines");
        let cycle = random_cycle(count, SEED);
        for (slot, next) in (0u64..).zip(&cycle) {
            let word = self.offset + (slot + 1) * slot_bytes as u64 - 8;
            self.window.store(word, u64::from(*next));
        }
        let mut half_way = 0;
        for _ in 0..slots / 2 {
            half_way = u64::from(cycle[half_way as usize]);
        }
        Chain { mask: slots - 1, starts: [0, half_way] }
    }

    /// Reads of `BYTES` bytes along a dependent chain, ns each: the next slot is named by the
    /// last word of what was just read.
    pub(crate) fn read_latency<const BYTES: usize>(
        &mut self,
    ) -> Result<MeasuredLatency, BenchError> {
        let Chain { mask, starts: [mut at_ours, mut at_raw] } = self.lay_chain(BYTES);
        let (addr, offset, slice) = (self.addr.0, self.offset, self.size.slice());
        let (mut to_ours, mut to_raw) = ([0u8; BYTES], [0u8; BYTES]);
        let comparison = self.compare(
            |handle| {
                slice_ns(slice, BLOCK, || {
                    for _ in 0..BLOCK {
                        handle.read(GAddr(addr + at_ours * BYTES as u64), &mut to_ours)?;
                        at_ours = last_word(&to_ours) & mask;
                    }
                    Ok(())
                })
            },
            |window| {
                slice_ns(slice, BLOCK, || {
                    for _ in 0..BLOCK {
                        window.copy_out(offset + at_raw * BYTES as u64, &mut to_raw);
                        at_raw = last_word(&to_raw) & mask;
                    }
                    Ok(())
                })
            },
        )?;
        let mut at = at_ours;
        let samples = self.sample(|handle| {
            handle.read(GAddr(addr + at * BYTES as u64), &mut to_ours)?;
            at = last_word(&to_ours) & mask;
            Ok(())
        })?;
        Ok(MeasuredLatency { comparison, samples })
    }

    /// Writes of whole lines along a dependent chain, ns each. What is written names the next
    /// line, and the name is loaded from the line again, on both sides by the same bare load,
    /// before the next write begins. The order visits every line once a turn.
    pub(crate) fn write_latency(&mut self) -> Result<MeasuredLatency, BenchError> {
        let mask = self.slots(LINE) - 1;
        let (addr, offset, slice) = (self.addr.0, self.offset, self.size.slice());
        let (mut at_ours, mut at_raw) = (0, mask / 2);
        let (mut from_ours, mut from_raw) = ([0x5a_u8; LINE], [0x5a_u8; LINE]);
        let window = self.window.clone();
        let mut write_ours = |handle: &mut Handle| -> Result<(), BenchError> {
            let at = scattered(at_ours, mask) * LINE as u64;
            from_ours[..8].copy_from_slice(&(at_ours + 1).to_le_bytes());
            handle.write(GAddr(addr + at), &from_ours)?;
            at_ours = window.load(offset + at) & mask;
            Ok(())
        };
        let comparison = self.compare(
            |handle| slice_ns(slice, BLOCK, || (0..BLOCK).try_for_each(|_| write_ours(handle))),
            |window| {
                slice_ns(slice, BLOCK, || {
                    for _ in 0..BLOCK {
                        let at = scattered(at_raw, mask) * LINE as u64;
                        from_raw[..8].copy_from_slice(&(at_raw + 1).to_le_bytes());
                        window.copy_in(offset + at, &from_raw);
                        at_raw = window.load(offset + at) & mask;
                    }
                    Ok(())
                })
            },
        )?;
        let samples = self.sample(write_ours)?;
        Ok(MeasuredLatency { comparison, samples })
    }

    /// Reads of single lines at independent places, in batches, operations a second. The bare
    /// side asks for the lines of a batch before it copies them, as ours does.
    pub(crate) fn read_rate(&mut self) -> Result<Comparison, BenchError> {
        let slots = self.slots(LINE);
        let (addr, offset, slice) = (self.addr.0, self.offset, self.size.slice());
        let mut stream_ours = IndexStream::new(slots, SEED);
        let mut stream_raw = stream_ours.clone();
        let (mut to_ours, mut to_raw) = ([0u8; BATCH * LINE], [0u8; BATCH * LINE]);
        let mut ops: Vec<_> = to_ours.chunks_mut(LINE).map(|line| (GAddr::NULL, line)).collect();
        let mut offsets = [0; BATCH];
        let rate = |ns: f64| 1e9 / ns;
        self.compare(
            |handle| {
                let batch = || {
                    for (at, _) in &mut ops {
                        *at = GAddr(addr + stream_ours.next_index() * LINE as u64);
                    }
                    Ok(handle.read_batch(&mut ops)?)
                };
                slice_ns(slice, BATCH as u64, batch).map(rate)
            },
            |window| {
                let batch = || {
                    for at in &mut offsets {
                        *at = offset + stream_raw.next_index() * LINE as u64;
                        window.prefetch(*at);
                    }
                    for (at, to) in offsets.iter().zip(to_raw.chunks_exact_mut(LINE)) {
                        window.copy_out(*at, to);
                    }
                    black_box(&mut to_raw);
                    Ok(())
                };
                slice_ns(slice, BATCH as u64, batch).map(rate)
            },
        )
    }

    /// Accesses of `bytes` bytes at independent places, one after the other, bytes a second.
    pub(crate) fn bandwidth(
        &mut self,
        bytes: usize,
        direction: Direction,
    ) -> Result<Comparison, BenchError> {
        let slots = self.slots(bytes);
        let (addr, offset, slice) = (self.addr.0, self.offset, self.size.slice());
        let mut stream_ours = IndexStream::new(slots, SEED);
        let mut stream_raw = stream_ours.clone();
        // One buffer for both: neither has the better place for it.
        let buffer = std::cell::RefCell::new(vec![0xa5_u8; bytes]);
        let rate = |ns: f64| bytes as f64 * 1e9 / ns;
        self.compare(
            |handle| {
                let buffer = &mut *buffer.borrow_mut();
                let access = || {
                    let at = GAddr(addr + stream_ours.next_index() * bytes as u64);
                    let done = match direction {
                        Direction::Read => handle.read(at, buffer),
                        Direction::Write => handle.write(at, buffer),
                    };
                    Ok(done?)
                };
                slice_ns(slice, 1, access).map(rate)
            },
            |window| {
                let buffer = &mut *buffer.borrow_mut();
                let access = || {
                    let at = offset + stream_raw.next_index() * bytes as u64;
                    match direction {
                        Direction::Read => window.copy_out(at, buffer),
                        Direction::Write => window.copy_in(at, buffer),
                    }
                    Ok(())
                };
                slice_ns(slice, 1, access).map(rate)
            },
        )
    }

    /// The spread of our own times, which slices do not show: groups of a few accesses are
    /// timed, since a look at the clock costs as much as an access.
    fn sample(
        &mut self,
        mut access: impl FnMut(&mut Handle) -> Result<(), BenchError>,
    ) -> Result<Samples, BenchError> {
        let mut histogram = Histogram::new();
        for _ in 0..self.size.samples() {
            let start = Instant::now();
            for _ in 0..SAMPLE_GROUP {
                access(&mut self.handle)?;
            }
            histogram.record(start.elapsed().as_nanos() as u64 / SAMPLE_GROUP);
        }
        Ok(Samples(histogram.summary()))
    }
}

struct Chain {
    mask: u64,
    /// Two places half a turn apart.
    starts: [u64; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// Ours beside raw, and how ours is spread.
pub(crate) struct MeasuredLatency {
    pub comparison: Comparison,
    pub samples: Samples,
}

/// Percentiles of the mean time of [`SAMPLE_GROUP`] accesses.
pub(crate) struct Samples(Summary);

impl Samples {
    /// Puts the percentiles into a row, and says what they are of.
    pub(crate) fn show_in(&self, row: Row) -> Row {
        row.percentiles(self.0).with("percentiles_of_means_of", SAMPLE_GROUP)
    }
}

/// Place number `turn` of an order that visits every slot once in `mask + 1` turns: odd
/// multiplications and shifts are bijections.
#[inline(always)]
fn scattered(turn: u64, mask: u64) -> u64 {
    let bits = mask.count_ones();
    let mixed = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
    let mixed = (mixed ^ (mixed >> bits.div_ceil(2))).wrapping_mul(0xd134_2543_de82_ef95) & mask;
    mixed ^ (mixed >> bits.div_ceil(2))
}

#[inline(always)]
fn last_word<const BYTES: usize>(bytes: &[u8; BYTES]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[BYTES - 8..]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{PoolSource, Testbed};
    use rackpool::FabricChoice;

    #[test]
    fn the_scattered_order_visits_every_slot_once() {
        for bits in [1u32, 2, 7, 16] {
            let mask = (1u64 << bits) - 1;
            let mut seen = vec![false; 1 << bits];
            for turn in 0..=mask {
                let slot = scattered(turn, mask) as usize;
                assert!(!std::mem::replace(&mut seen[slot], true), "slot {slot} of {bits} bits");
            }
        }
    }

    #[test]
    fn an_arena_is_mapped_and_gives_its_memory_back() {
        let testbed = Testbed::open(&PoolSource::default(), 1, 16 << 20).unwrap();
        let pool = testbed.pool(0, FabricChoice::Auto).unwrap();
        let mut handle = pool.handle().unwrap();
        let free = |handle: &mut Handle| {
            handle.admin().pool_stats().unwrap().racks[0].daemon.as_ref().unwrap().frames_free
        };
        let before = free(&mut handle);
        let mut arena =
            Arena::new(pool.handle().unwrap(), Placement::Local, Size::Smoke, testbed.probe())
                .unwrap();
        assert!(free(&mut handle) < before);
        let comparison = arena.read_latency::<LINE>().unwrap().comparison;
        assert!(comparison.ours > 0.0 && comparison.reference > 0.0);
        assert!(arena.read_rate().unwrap().ratio > 0.0);
        arena.write_latency().unwrap();
        arena.bandwidth(1 << 20, Direction::Write).unwrap();
        arena.end().unwrap();
        assert_eq!(free(&mut handle), before);
    }
}
