//! A host's cached lines of memory that only software keeps coherent between hosts.
//!
//! A load fills a line and goes on reading that copy, however old, until the line is evicted,
//! flushed out or invalidated; a store changes the copy. Only evicting or flushing a changed
//! line brings it to memory, always as a whole: what another host has stored into it meanwhile
//! is lost. Processors of one host share the lines, so among them memory is coherent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use super::memory::merged;
use super::{Cpu, LINE_BYTES, Memory, Violations};
use crate::rng::{Purpose, Rng};

const LINE_WORDS: usize = LINE_BYTES as usize / 8;
/// Lines that a host holds at most.
const LINES_MAX: usize = 512;
/// Generators of hosts are numbered from here, those of processors below.
const HOST_INDEX: u64 = 1 << 32;

struct Line {
    memory: Rc<Memory>,
    number: u64,
    words: [u64; LINE_WORDS],
    changed: bool,
}

impl Line {
    fn write_back(&mut self, violations: &Violations) {
        if std::mem::take(&mut self.changed) {
            let (at, id) = (self.number * LINE_BYTES, self.memory.id());
            if !self.memory.is_backed(at, LINE_BYTES) {
                let what = format!("a late line of offset {at:#x} of memory {id}, not backed");
                violations.record(what);
            }
            for (index, word) in self.words.iter().enumerate() {
                self.memory.set_word(self.number * LINE_BYTES + index as u64 * 8, *word);
            }
        }
    }
}

#[derive(Default)]
struct Lines {
    list: Vec<Line>,
    places: BTreeMap<(u32, u64), usize>,
}

impl Lines {
    fn remove(&mut self, index: usize) -> Line {
        let line = self.list.swap_remove(index);
        self.places.remove(&(line.memory.id(), line.number));
        if let Some(moved) = self.list.get(index) {
            self.places.insert((moved.memory.id(), moved.number), index);
        }
        line
    }

    fn fill(&mut self, memory: &Rc<Memory>, number: u64) -> &mut Line {
        let next = self.list.len();
        let index = *self.places.entry((memory.id(), number)).or_insert(next);
        if index == next {
            let mut words = [0; LINE_WORDS];
            for (index, word) in words.iter_mut().enumerate() {
                *word = memory.word(number * LINE_BYTES + index as u64 * 8);
            }
            self.list.push(Line { memory: memory.clone(), number, words, changed: false });
        }
        &mut self.list[index]
    }
}

/// What the processors of one host share: cached lines, and which processors they are.
pub struct HostCache {
    lines: RefCell<Lines>,
    rng: RefCell<Rng>,
    /// Accesses from one eviction to the next, on average; 0 evicts only for room.
    eviction_gap: Cell<u64>,
    to_eviction: Cell<u64>,
    cpus: RefCell<Vec<Weak<Cpu>>>,
    asymmetric: Cell<bool>,
    violations: Rc<Violations>,
}

impl HostCache {
    /// An empty cache of host number `index`; violations of its processors go to `violations`.
    pub fn new(seed: u64, index: u64, violations: Rc<Violations>) -> Rc<HostCache> {
        Rc::new(HostCache {
            lines: RefCell::default(),
            rng: RefCell::new(Rng::new(seed, Purpose::Memory, HOST_INDEX + index)),
            eviction_gap: Cell::new(200),
            to_eviction: Cell::new(1),
            cpus: RefCell::default(),
            asymmetric: Cell::new(true),
            violations,
        })
    }

    /// Accesses from one random eviction to the next, on average; 0 for none.
    pub fn set_eviction_gap(&self, accesses: u64) {
        self.eviction_gap.set(accesses);
    }

    /// Whether an announcement is a plain store here, since the process that looks for
    /// announcements pays with [`barrier`](Self::barrier). On at first.
    pub fn set_asymmetric(&self, on: bool) {
        self.asymmetric.set(on);
    }

    /// See [`set_asymmetric`](Self::set_asymmetric).
    pub fn is_asymmetric(&self) -> bool {
        self.asymmetric.get()
    }

    /// What `membarrier` does: empties the store buffers of all processors of this host.
    pub fn barrier(&self) {
        self.cpus.borrow().iter().filter_map(Weak::upgrade).for_each(|cpu| cpu.drain());
    }

    pub fn violations(&self) -> &Rc<Violations> {
        &self.violations
    }

    /// Lines held now.
    pub fn lines(&self) -> usize {
        self.lines.borrow().list.len()
    }

    /// Power is lost: what was not written back is gone.
    pub fn lose_power(&self) {
        self.lines.take();
    }

    /// A processor joins the host.
    pub(super) fn register(&self, cpu: Weak<Cpu>) {
        let mut cpus = self.cpus.borrow_mut();
        cpus.retain(|cpu| cpu.strong_count() > 0);
        cpus.push(cpu);
    }

    /// The word around a byte, as this host sees it.
    pub(super) fn word(&self, memory: &Rc<Memory>, at: u64) -> u64 {
        self.evict_now_and_then();
        let mut lines = self.lines.borrow_mut();
        let line = lines.fill(memory, at / LINE_BYTES);
        line.words[(at % LINE_BYTES / 8) as usize]
    }

    /// Replaces the low `bytes` of `value` at a byte, for this host; they lie in one word.
    pub(super) fn set_piece(&self, memory: &Rc<Memory>, at: u64, bytes: u64, value: u64) {
        self.evict_now_and_then();
        let mut lines = self.lines.borrow_mut();
        let line = lines.fill(memory, at / LINE_BYTES);
        let word = &mut line.words[(at % LINE_BYTES / 8) as usize];
        *word = merged(*word, at, bytes, value);
        line.changed = true;
    }

    /// Whether a line of a memory is here.
    pub(super) fn holds(&self, memory: &Memory, number: u64) -> bool {
        self.lines.borrow().places.contains_key(&(memory.id(), number))
    }

    /// The kernel changed a range of a memory as a processor of this host: no older copy is left.
    pub fn forget(&self, memory: &Memory, at: u64, bytes: u64) {
        let mut lines = self.lines.borrow_mut();
        for number in at / LINE_BYTES..(at + bytes).div_ceil(LINE_BYTES) {
            if let Some(&index) = lines.places.get(&(memory.id(), number)) {
                lines.remove(index);
            }
        }
    }

    /// Writes the range's changed lines back; keeps their copies, or not.
    pub(super) fn flush(&self, memory: &Rc<Memory>, at: u64, bytes: u64, keep: bool) {
        let mut lines = self.lines.borrow_mut();
        for number in at / LINE_BYTES..(at + bytes).div_ceil(LINE_BYTES) {
            let Some(&index) = lines.places.get(&(memory.id(), number)) else { continue };
            lines.list[index].write_back(&self.violations);
            if !keep {
                lines.remove(index);
            }
        }
    }

    fn evict_now_and_then(&self) {
        let mut lines = self.lines.borrow_mut();
        let gap = self.eviction_gap.get();
        self.to_eviction.set(self.to_eviction.get().saturating_sub(1));
        let due = gap != 0 && self.to_eviction.get() == 0;
        if (due || lines.list.len() == LINES_MAX) && !lines.list.is_empty() {
            let mut rng = self.rng.borrow_mut();
            let index = rng.below(lines.list.len() as u64) as usize;
            lines.remove(index).write_back(&self.violations);
            self.to_eviction.set(rng.between(1, 2 * gap.max(1)));
        }
    }
}
