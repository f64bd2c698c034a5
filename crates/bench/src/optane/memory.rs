//! The memories of the guide's machine as media, and the cache before them.

use super::load::{INTERLEAVE_BYTES, LINE_BYTES};
use rackpool_rack::model::memory::{Done, Medium};
use rackpool_rack::pmem::config::{OPTANE100, UNCORE};
use rackpool_rack::pmem::{Dimm, DimmCounts};
use rackpool_sim::rng::{Purpose, Rng};
use rackpool_sim::time::Ps;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Which memory, and how it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPlace {
    Dram,
    Single,
    Interleaved,
}

impl MemoryPlace {
    pub const fn name(self) -> &'static str {
        match self {
            MemoryPlace::Dram => "DRAM",
            MemoryPlace::Single => "Optane-NI",
            MemoryPlace::Interleaved => "Optane-I",
        }
    }

    pub const fn channels(self) -> u64 {
        match self {
            MemoryPlace::Single => 1,
            MemoryPlace::Dram | MemoryPlace::Interleaved => 6,
        }
    }

    pub fn devices(self, seed: u64) -> Vec<GuideDevice> {
        let of = |index| match self {
            MemoryPlace::Dram => GuideDevice::Ddr(Box::default()),
            _ => GuideDevice::Dimm(Box::new(Dimm::new(OPTANE100, seed + index))),
        };
        (0..self.channels()).map(of).collect()
    }

    /// The channel of an address, and the address there.
    pub fn channel(self, addr: u64) -> (usize, u64) {
        let count = self.channels();
        let bytes = match self {
            MemoryPlace::Dram => DRAM_INTERLEAVE_BYTES,
            _ => INTERLEAVE_BYTES,
        };
        let piece = addr / bytes;
        let within = piece / count * bytes + addr % bytes;
        ((piece % count) as usize, within)
    }
}

/// An idle read of an open row: figure 2, 81.4 ns in order.
pub const DRAM_HIT: Ps = Ps(81_400 - UNCORE.0);
/// One of another row: figure 2, 101.5 ns at random.
pub const DRAM_MISS: Ps = Ps(101_500 - UNCORE.0);
/// Between two reads of a channel: table of figure 4, 105.6 GB/s of six.
pub const DRAM_READ_GAP: Ps = Ps(3_636);
/// Between two writes: the same table, 76.8 GB/s.
pub const DRAM_WRITE_GAP: Ps = Ps(5_000);
/// Neighbouring pieces of this size are on different channels: the guide has the 4 KiB of
/// persistent memory alone.
pub const DRAM_INTERLEAVE_BYTES: u64 = 256;
const DRAM_BANKS: u64 = 16;
const DRAM_ROW_BYTES: u64 = 8192;
/// Reads or writes that a channel has under way.
const DRAM_QUEUE_MAX: usize = 256;

/// A channel of DRAM: a rate for reads and one for writes, and a row that is open in each bank.
#[derive(Debug, Default)]
pub struct Ddr {
    rows: [u64; DRAM_BANKS as usize],
    busy: Ps,
    under_way: BinaryHeap<Reverse<(Ps, u64)>>,
}

impl Medium for Ddr {
    fn submit(&mut self, now: Ps, id: u64, addr: u64, write: bool) -> bool {
        if self.under_way.len() == DRAM_QUEUE_MAX {
            return false;
        }
        let start = self.busy.max(now);
        let row = addr / DRAM_ROW_BYTES;
        let open = &mut self.rows[(row % DRAM_BANKS) as usize];
        let is_open = std::mem::replace(open, row) == row;
        let (gap, latency) = match (write, is_open) {
            (true, _) => (DRAM_WRITE_GAP, DRAM_WRITE_GAP),
            (false, true) => (DRAM_READ_GAP, DRAM_HIT),
            (false, false) => (DRAM_READ_GAP, DRAM_MISS),
        };
        self.busy = start + gap;
        self.under_way.push(Reverse((start + latency, id)));
        true
    }

    fn next_event(&self) -> Option<Ps> {
        self.under_way.peek().map(|Reverse((at, _))| *at)
    }

    fn next_room(&self) -> Ps {
        self.next_event().unwrap_or(Ps::ZERO)
    }

    fn advance(&mut self, until: Ps, done: &mut Vec<Done>) {
        while let Some(Reverse((at, id))) = self.under_way.peek().copied() {
            if at > until {
                return;
            }
            self.under_way.pop();
            done.push(Done { id, at });
        }
    }
}

#[derive(Debug)]
pub enum GuideDevice {
    Ddr(Box<Ddr>),
    Dimm(Box<Dimm>),
}

impl GuideDevice {
    pub fn counts(&self) -> DimmCounts {
        match self {
            GuideDevice::Ddr(_) => DimmCounts::default(),
            GuideDevice::Dimm(one) => one.counts(),
        }
    }
}

impl Medium for GuideDevice {
    fn submit(&mut self, now: Ps, id: u64, addr: u64, write: bool) -> bool {
        match self {
            GuideDevice::Ddr(one) => one.submit(now, id, addr, write),
            GuideDevice::Dimm(one) => one.submit(now, id, addr, write),
        }
    }

    fn next_event(&self) -> Option<Ps> {
        match self {
            GuideDevice::Ddr(one) => one.next_event(),
            GuideDevice::Dimm(one) => one.next_event(),
        }
    }

    fn next_room(&self) -> Ps {
        match self {
            GuideDevice::Ddr(one) => one.next_room(),
            GuideDevice::Dimm(one) => one.next_room(),
        }
    }

    fn advance(&mut self, until: Ps, done: &mut Vec<Done>) {
        match self {
            GuideDevice::Ddr(one) => one.advance(until, done),
            GuideDevice::Dimm(one) => one.advance(until, done),
        }
    }
}

/// What a thread's caches hold of written lines: 1 MiB of its own and, for a single thread, the
/// shared 35.75 MiB (Intel's data of the Xeon 8260).
pub const CACHE_BYTES: u64 = (1 << 20) + 36_608 * 1024;

/// Lines that were written and are nowhere else; which one leaves is drawn.
#[derive(Debug)]
pub struct LineCache {
    lines: Vec<u64>,
    index: HashMap<u64, usize>,
    lines_max: usize,
    rng: Rng,
}

impl LineCache {
    pub fn new(bytes: u64, seed: u64) -> LineCache {
        let lines_max = (bytes / LINE_BYTES) as usize;
        let rng = Rng::new(seed, Purpose::Memory, 0);
        LineCache { lines: Vec::new(), index: HashMap::new(), lines_max, rng }
    }

    pub fn has(&self, line: u64) -> bool {
        self.index.contains_key(&line)
    }

    /// Writes a line; the one that has to leave for it.
    pub fn insert(&mut self, line: u64) -> Option<u64> {
        if self.has(line) {
            return None;
        }
        let leaves = (self.lines.len() == self.lines_max).then(|| {
            let chosen = self.rng.below(self.lines.len() as u64) as usize;
            self.take(chosen)
        });
        self.index.insert(line, self.lines.len());
        self.lines.push(line);
        leaves
    }

    /// Writes a line back; whether it was here.
    pub fn remove(&mut self, line: u64) -> bool {
        let Some(at) = self.index.get(&line).copied() else { return false };
        self.take(at);
        true
    }

    fn take(&mut self, at: usize) -> u64 {
        let line = self.lines.swap_remove(at);
        self.index.remove(&line);
        if let Some(moved) = self.lines.get(at) {
            self.index.insert(*moved, at);
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_channels_have_neighbouring_pieces_of_four_kib() {
        let place = MemoryPlace::Interleaved;
        assert_eq!(place.channel(4095), (0, 4095));
        assert_eq!(place.channel(4096), (1, 0));
        assert_eq!(place.channel(6 * 4096 + 64), (0, 4096 + 64));
        assert_eq!(MemoryPlace::Single.channel(6 * 4096 + 64), (0, 6 * 4096 + 64));
        assert_eq!(MemoryPlace::Dram.channel(6 * 256 + 256 + 64), (1, 256 + 64));
    }

    #[test]
    fn a_cache_gives_back_each_line_that_was_written_once() {
        let mut cache = LineCache::new(64 * LINE_BYTES, 3);
        let mut left: Vec<u64> = (0..1000).filter_map(|line| cache.insert(line)).collect();
        assert_eq!(left.len(), 1000 - 64);
        left.extend((0..1000).filter(|&line| cache.remove(line)));
        left.sort_unstable();
        assert!(left.into_iter().eq(0..1000));
    }

    #[test]
    fn an_open_row_is_quicker() {
        let read = |ddr: &mut Ddr, now, addr| {
            assert!(ddr.submit(now, 0, addr, false));
            let mut done = Vec::new();
            ddr.advance(Ps(u64::MAX), &mut done);
            done[0].at - now
        };
        let mut ddr = Ddr::default();
        assert_eq!(read(&mut ddr, Ps::us(1), 1 << 20), DRAM_MISS);
        assert_eq!(read(&mut ddr, Ps::us(2), (1 << 20) + 64), DRAM_HIT);
    }
}
