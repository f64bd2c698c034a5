//! A processor's view of a part of a memory: the simulator's `Mem`.

use std::rc::Rc;

use rackpool_core::persist::Persist;
use rackpool_core::seam::{Mem, Mutation, Probe, Race, Rare, Section};

use super::cpu::{Checking, CpuMode};
use super::memory::little;
use super::{Coherence, Cpu, LINE_BYTES, Memory};

/// A part of a memory as one processor sees it. Clones and slices are views of the same.
#[derive(Clone)]
pub struct SimMem {
    memory: Rc<Memory>,
    cpu: Rc<Cpu>,
    base: u64,
    bytes: u64,
    writable: bool,
}

impl SimMem {
    /// The whole memory, to be read and written.
    pub fn new(memory: Rc<Memory>, cpu: Rc<Cpu>) -> SimMem {
        let bytes = memory.bytes();
        SimMem { memory, cpu, base: 0, bytes, writable: true }
    }

    /// A part of it.
    ///
    /// # Panics
    /// Outside of the view, or if `offset` is not a multiple of 8.
    pub fn slice(&self, offset: u64, bytes: u64) -> SimMem {
        assert!(offset.is_multiple_of(8), "a slice at offset {offset} is misaligned");
        let base = self.inside(offset, bytes);
        SimMem { base, bytes, ..self.clone() }
    }

    /// The same, stores to which panic.
    pub fn read_only(self) -> SimMem {
        SimMem { writable: false, ..self }
    }

    pub fn memory(&self) -> &Rc<Memory> {
        &self.memory
    }

    pub fn cpu(&self) -> &Rc<Cpu> {
        &self.cpu
    }

    /// Offset of the view in its memory, bytes.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The offset in the memory.
    #[inline]
    fn inside(&self, offset: u64, bytes: u64) -> u64 {
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > self.bytes) {
            out_of_view(offset, bytes, self.bytes);
        }
        self.base + offset
    }

    #[inline]
    fn aligned(&self, offset: u64) -> u64 {
        if !offset.is_multiple_of(8) {
            misaligned(offset);
        }
        self.inside(offset, 8)
    }

    #[inline]
    fn stores(&self) {
        assert!(self.writable, "a store to a read-only view");
    }

    fn buffered_store(&self, checking: &Checking, at: u64, bytes: u64, value: u64) {
        if self.cpu.point(checking) {
            checking.store(&self.memory, at, bytes, value);
        }
    }

    /// The count of stores to a line, with one more; none if nothing was ever stored there.
    #[inline]
    fn bump(&self, at: u64) -> Option<u16> {
        let version = self.memory.block(at)?.version(at);
        version.set(version.get().wrapping_add(1));
        Some(version.get())
    }

    /// Charges a copy: its first line as an access, further ones by bandwidth if they are away.
    fn charge_copy(&self, at: u64, bytes: u64, store: bool) {
        let CpuMode::Performance(meter) = &self.cpu.mode else { return };
        let (first, end) = (at / LINE_BYTES, (at + bytes).div_ceil(LINE_BYTES));
        let stream = meter.costs.stream(self.memory.tier());
        for line in first..end {
            let at = line * LINE_BYTES;
            let cost = match store.then(|| self.bump(at)) {
                // Zeroed, and never stored to: it takes no memory of the simulator.
                Some(None) => stream,
                Some(Some(version)) => meter.store(&self.memory, at, version),
                None => meter.load(&self.memory, at, self.version(at)),
            };
            self.cpu.charge(if line == first { cost } else { cost.min(stream) });
        }
    }

    #[inline]
    fn version(&self, at: u64) -> u16 {
        self.memory.block(at).map_or(0, |block| block.version(at).get())
    }

    fn atomic(&self, offset: u64, change: impl FnOnce(u64) -> Option<u64>) -> Option<u64> {
        self.stores();
        let at = self.aligned(offset);
        match &self.cpu.mode {
            CpuMode::Checking(checking) => {
                self.cpu.point(checking).then(|| checking.atomic(&self.memory, at, change))
            }
            CpuMode::Performance(meter) => {
                let word = self.memory.block_made(at).word(at);
                let version = self.bump(at).unwrap_or(0);
                self.cpu.charge(meter.atomic(&self.memory, at, version));
                let old = word.get();
                if let Some(new) = change(old) {
                    word.set(new);
                }
                Some(old)
            }
        }
    }

    fn flush_lines(&self, offset: u64, bytes: u64, keep: bool) {
        let at = self.inside(offset, bytes);
        match &self.cpu.mode {
            CpuMode::Checking(checking) => {
                if self.cpu.point(checking) {
                    self.cpu.drain();
                }
                // Line by line, as a processor does it. Those that are not here cost nothing.
                for line in at / LINE_BYTES..(at + bytes).div_ceil(LINE_BYTES) {
                    if checking.host.holds(&self.memory, line) && self.cpu.point(checking) {
                        checking.flush(&self.memory, line * LINE_BYTES, LINE_BYTES, keep);
                    }
                }
            }
            CpuMode::Performance(meter) => {
                if !self.is_coherent() {
                    let lines = (at + bytes).div_ceil(LINE_BYTES) - at / LINE_BYTES;
                    self.cpu.charge(meter.costs.flush_line.times(lines));
                }
            }
        }
    }
}

#[cold]
#[inline(never)]
fn out_of_view(offset: u64, bytes: u64, view_bytes: u64) -> ! {
    panic!("{bytes} bytes at offset {offset} are outside the view of {view_bytes} bytes");
}

#[cold]
#[inline(never)]
fn misaligned(offset: u64) -> ! {
    panic!("a word at offset {offset} is misaligned");
}

/// Cuts a range into pieces of 1, 2, 4 and 8 bytes at multiples of their length: what is
/// single-copy atomic and no more.
fn pieces(mut at: u64, bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = at + bytes;
    std::iter::from_fn(move || {
        let left = end - at;
        if left == 0 {
            return None;
        }
        let aligned = 1 << at.trailing_zeros().min(3);
        let fits = 1 << left.ilog2().min(3);
        let piece = (at, aligned.min(fits) as usize);
        at += aligned.min(fits);
        Some(piece)
    })
}

impl Section for SimMem {
    fn slice(&self, offset: u64, bytes: u64) -> Self {
        SimMem::slice(self, offset, bytes)
    }
}

impl Persist for SimMem {}

impl Mem for SimMem {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    fn load(&self, offset: u64) -> u64 {
        let at = self.aligned(offset);
        match &self.cpu.mode {
            CpuMode::Performance(meter) => {
                let (word, version) = match self.memory.block(at) {
                    Some(block) => (block.word(at).get(), block.version(at).get()),
                    None => (0, 0),
                };
                self.cpu.charge(meter.load(&self.memory, at, version));
                word
            }
            CpuMode::Checking(checking) => {
                if self.cpu.point(checking) {
                    checking.word(&self.memory, at)
                } else {
                    0
                }
            }
        }
    }

    #[inline]
    fn store(&self, offset: u64, value: u64) {
        self.stores();
        let at = self.aligned(offset);
        match &self.cpu.mode {
            CpuMode::Performance(meter) => {
                let block = self.memory.block_made(at);
                let version = block.version(at);
                version.set(version.get().wrapping_add(1));
                block.word(at).set(value);
                self.cpu.charge(meter.store(&self.memory, at, version.get()));
            }
            CpuMode::Checking(checking) => self.buffered_store(checking, at, 8, value),
        }
    }

    #[inline]
    fn announce(&self, offset: u64, value: u64) {
        self.store(offset, value);
        if let CpuMode::Checking(checking) = &self.cpu.mode
            && !checking.host.is_asymmetric()
        {
            self.cpu.drain();
        }
    }

    fn compare_exchange(&self, offset: u64, expected: u64, new: u64) -> Result<u64, u64> {
        let change = |old| (old == expected).then_some(new);
        // A dead process must not wait for a word to change.
        let old = self.atomic(offset, change).unwrap_or(expected);
        if old == expected { Ok(old) } else { Err(old) }
    }

    fn fetch_add(&self, offset: u64, n: u64) -> u64 {
        self.atomic(offset, |old| Some(old.wrapping_add(n))).unwrap_or(0)
    }

    fn copy_out(&self, offset: u64, to: &mut [u8]) {
        let bytes = to.len() as u64;
        let at = self.inside(offset, bytes);
        let CpuMode::Checking(checking) = &self.cpu.mode else {
            self.memory.copy_out(at, to);
            return self.charge_copy(at, bytes, false);
        };
        for (piece, count) in pieces(at, bytes) {
            let alive = self.cpu.point(checking);
            let word = if alive { checking.word(&self.memory, piece) } else { 0 };
            let first = (piece - at) as usize;
            let seen = (word >> (piece % 8 * 8)).to_le_bytes();
            to[first..first + count].copy_from_slice(&seen[..count]);
        }
    }

    fn copy_in(&self, offset: u64, from: &[u8]) {
        self.stores();
        let bytes = from.len() as u64;
        let at = self.inside(offset, bytes);
        let CpuMode::Checking(checking) = &self.cpu.mode else {
            self.memory.copy_in(at, from);
            return self.charge_copy(at, bytes, true);
        };
        for (piece, count) in pieces(at, bytes) {
            let first = (piece - at) as usize;
            let value = little(&from[first..first + count]);
            self.buffered_store(checking, piece, count as u64, value);
        }
    }

    fn zero(&self, offset: u64, bytes: u64) {
        self.stores();
        let at = self.inside(offset, bytes);
        let CpuMode::Checking(checking) = &self.cpu.mode else {
            self.memory.zero(at, bytes);
            return self.charge_copy(at, bytes, true);
        };
        for (piece, count) in pieces(at, bytes) {
            self.buffered_store(checking, piece, count as u64, 0);
        }
    }

    fn equal(&self, first: u64, second: u64, bytes: u64) -> bool {
        let [first, second] = [first, second].map(|offset| self.inside(offset, bytes));
        let equal = |word: &dyn Fn(u64) -> u64| {
            (0..bytes).step_by(8).all(|at| word(first + at) == word(second + at))
        };
        match &self.cpu.mode {
            CpuMode::Performance(_) => {
                self.charge_copy(first, bytes, false);
                self.charge_copy(second, bytes, false);
                equal(&|at| self.memory.word(at))
            }
            // One step, since nobody stores meanwhile.
            CpuMode::Checking(checking) => {
                !self.cpu.point(checking) || equal(&|at| checking.word(&self.memory, at))
            }
        }
    }

    fn prefetch(&self, offset: u64) {
        if offset >= self.bytes {
            return;
        }
        let at = self.base + offset;
        match &self.cpu.mode {
            CpuMode::Performance(meter) => {
                // Several are under way at a time: each takes its share of the bandwidth.
                if !meter.has(&self.memory, at, self.version(at)) {
                    self.cpu.charge(meter.costs.stream(self.memory.tier()));
                }
            }
            CpuMode::Checking(checking) => {
                if self.cpu.point(checking) {
                    checking.prefetch(&self.memory, at);
                }
            }
        }
    }

    fn fence(&self) {
        match &self.cpu.mode {
            CpuMode::Performance(meter) => self.cpu.charge(meter.costs.fence),
            CpuMode::Checking(checking) => {
                if self.cpu.point(checking) {
                    self.cpu.drain();
                }
            }
        }
    }

    #[inline]
    fn is_coherent(&self) -> bool {
        self.memory.coherence() == Coherence::Hardware
    }

    fn flush(&self, offset: u64, bytes: u64) {
        self.flush_lines(offset, bytes, true);
    }

    fn invalidate(&self, offset: u64, bytes: u64) {
        self.flush_lines(offset, bytes, false);
    }
}

impl Probe for SimMem {
    #[inline]
    fn mutated(&self, mutation: Mutation) -> bool {
        self.cpu.hooks().is_some_and(|hooks| hooks.mutated(mutation))
    }

    #[inline]
    fn rare(&self, rare: Rare) -> bool {
        self.cpu.hooks().is_some_and(|hooks| !self.cpu.is_dead() && hooks.rare(rare))
    }

    #[inline]
    fn met(&self, race: Race) {
        if let Some(hooks) = self.cpu.hooks() {
            hooks.met(race);
        }
    }
}
