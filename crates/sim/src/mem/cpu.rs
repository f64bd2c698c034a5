//! One simulated hardware thread: its store buffer, its cost meter, and where it is interrupted.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use super::cost::Meter;
use super::memory::merged;
use super::{Coherence, Hooks, HostCache, MemCosts, Memory};
use crate::coro::{self, Wait};
use crate::rng::{Purpose, Rng};
use crate::time::Ps;

/// How often a processor is interrupted and for how long, and how its store buffer behaves.
/// Gaps count memory operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchRates {
    /// Operations from one interruption to the next, on average; 0 for none.
    pub switch_gap: u32,
    /// Of the interruptions, parts per million that take 0.1 to 10 µs. Most take 1 to 100 ns.
    pub micros_ppm: u32,
    /// … that take 0.1 to 10 ms.
    pub millis_ppm: u32,
    /// … that take as long as `stop`: a stopped process, a paused host.
    pub stop_ppm: u32,
    pub stop: (Ps, Ps),
    /// Operations from one draining of the store buffer to the next, on average. Each drains a
    /// random number of the oldest stores; 0 drains only when it must.
    pub drain_gap: u32,
    /// Of the interruptions of a microsecond and more, parts per million during which the buffer
    /// keeps its stores. (Processors do so for less long; the memory model sets no limit.)
    pub hold_ppm: u32,
    /// Stores that the buffer holds; 0 for a device: its stores are seen at once.
    pub buffer_stores_max: u32,
    /// The nominal time of one operation.
    pub operation: Ps,
}

impl Default for SwitchRates {
    fn default() -> Self {
        SwitchRates {
            switch_gap: 12,
            micros_ppm: 20_000,
            millis_ppm: 500,
            stop_ppm: 0,
            stop: (Ps::ms(1), Ps::ms(5_000)),
            drain_gap: 6,
            hold_ppm: 500_000,
            buffer_stores_max: 56,
            operation: Ps::ns(1),
        }
    }
}

impl SwitchRates {
    /// Never interrupted, and stores are seen at once: a device.
    pub fn device() -> SwitchRates {
        SwitchRates { switch_gap: 0, drain_gap: 0, buffer_stores_max: 0, ..Self::default() }
    }

    /// Rates for one run: from seldom to all the time interrupted, from stores that are seen at
    /// once to stores that are seen late, so that runs differ in kind.
    pub fn draw(rng: &mut Rng) -> SwitchRates {
        let mut one_of = |choices: [u32; 4]| choices[rng.below(4) as usize];
        SwitchRates {
            switch_gap: one_of([3, 8, 25, 100]),
            micros_ppm: one_of([1_000, 10_000, 50_000, 200_000]),
            millis_ppm: one_of([0, 100, 500, 2_000]),
            drain_gap: one_of([1, 4, 10, 40]),
            hold_ppm: one_of([0, 200_000, 500_000, 900_000]),
            ..SwitchRates::default()
        }
    }

    fn duration(&self, rng: &mut Rng) -> Ps {
        let mut draw = rng.below(1_000_000) as u32;
        for (ppm, low, high) in [
            (self.stop_ppm, self.stop.0, self.stop.1),
            (self.millis_ppm, Ps::us(100), Ps::ms(10)),
            (self.micros_ppm, Ps::ns(100), Ps::us(10)),
        ] {
            if draw < ppm {
                return rng.duration(low, high);
            }
            draw -= ppm;
        }
        rng.duration(Ps::ns(1), Ps::ns(100))
    }
}

/// A store that no other processor sees yet. Its bytes lie in one word.
struct Pending {
    memory: Rc<Memory>,
    at: u64,
    bytes: u64,
    value: u64,
}

/// State of a processor in checking mode.
pub(super) struct Checking {
    /// Its number in the run, counted from 1 in the order of processes.
    index: u64,
    pub(super) host: Rc<HostCache>,
    rates: SwitchRates,
    schedule: RefCell<Rng>,
    draining: RefCell<Rng>,
    to_switch: Cell<u64>,
    to_drain: Cell<u64>,
    snare: Cell<Option<Snare>>,
    buffer: RefCell<VecDeque<Pending>>,
}

/// Where a process is to be caught: so many operations after it next stores something else than 0
/// to a word, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Snare {
    /// It has not stored there yet.
    Set { memory: u32, at: u64, zero: bool, operations: u64, time: Ps },
    /// It has, and goes on for so many operations. Then it is stopped for this time, unless it is
    /// killed there.
    Sprung { operations: u64, time: Ps },
}

#[allow(clippy::large_enum_variant, reason = "the meter is looked at with every access")]
pub(super) enum Mode {
    Checking(Box<Checking>),
    Performance(Meter),
}

/// One simulated hardware thread. Each process has its own; a process that is started again gets
/// a new one.
pub struct Cpu {
    pub(super) mode: Mode,
    cost: Cell<Ps>,
    dead: Cell<bool>,
    hooks: OnceCell<Hooks>,
}

impl Cpu {
    /// A processor of `host` in checking mode; `index` is its number in the run of `seed`.
    pub fn checking(host: Rc<HostCache>, seed: u64, index: u64, rates: SwitchRates) -> Rc<Cpu> {
        let mut schedule = Rng::new(seed, Purpose::Schedule, index);
        let mut draining = Rng::new(seed, Purpose::Memory, index);
        let checking = Checking {
            index,
            rates,
            to_switch: Cell::new(gap(&mut schedule, rates.switch_gap)),
            to_drain: Cell::new(gap(&mut draining, rates.drain_gap)),
            snare: Cell::new(None),
            schedule: RefCell::new(schedule),
            draining: RefCell::new(draining),
            buffer: RefCell::new(VecDeque::with_capacity(rates.buffer_stores_max as usize)),
            host: host.clone(),
        };
        let cpu = Rc::new(Cpu::new(Mode::Checking(Box::new(checking))));
        host.register(Rc::downgrade(&cpu));
        cpu
    }

    /// A processor in performance mode.
    pub fn performance(costs: MemCosts) -> Rc<Cpu> {
        Rc::new(Cpu::new(Mode::Performance(Meter::new(costs))))
    }

    fn new(mode: Mode) -> Cpu {
        let (cost, dead) = (Cell::new(Ps::ZERO), Cell::new(false));
        Cpu { mode, cost, dead, hooks: OnceCell::new() }
    }

    /// Gives the engines' questions to `hooks`; without, the answers are the real world's.
    ///
    /// # Panics
    /// The second time.
    pub fn set_hooks(&self, hooks: Hooks) {
        assert!(self.hooks.set(hooks).is_ok(), "a processor has its hooks for life");
    }

    pub(super) fn hooks(&self) -> Option<&Hooks> {
        self.hooks.get()
    }

    /// Empties the store buffer into memory, as a fence does, or an interrupt.
    pub fn drain(&self) {
        if let Mode::Checking(checking) = &self.mode {
            checking.drain(usize::MAX);
        }
    }

    /// Stores that no other processor sees yet.
    pub fn pending_stores(&self) -> usize {
        match &self.mode {
            Mode::Checking(checking) => checking.buffer.borrow().len(),
            Mode::Performance(_) => 0,
        }
    }

    /// What its operations have cost since it was taken last.
    pub fn cost(&self) -> Ps {
        self.cost.get()
    }

    /// As [`cost`](Self::cost); begins at zero again.
    pub fn take_cost(&self) -> Ps {
        self.cost.replace(Ps::ZERO)
    }

    /// Adds to the cost: time that goes by in the processor itself.
    #[inline]
    pub fn charge(&self, cost: Ps) {
        self.cost.set(self.cost.get() + cost);
    }

    /// Its process is interrupted `operations` after it next stores something to the word at `at`
    /// of `memory` (`zero`: after it stores 0 there), long enough to be killed: for windows of few
    /// operations, which are seldom met otherwise. Nothing in performance mode.
    pub fn set_snare(&self, (memory, at): (&Memory, u64), zero: bool, operations: u64, time: Ps) {
        if let Mode::Checking(checking) = &self.mode {
            let memory = memory.id();
            checking.snare.set(Some(Snare::Set { memory, at, zero, operations, time }));
        }
    }

    /// Whether a snare is there and has not caught the process yet.
    pub fn has_snare(&self) -> bool {
        matches!(&self.mode, Mode::Checking(checking) if checking.snare.get().is_some())
    }

    /// A point at which its process may be interrupted or die, as each of its memory operations
    /// is one; for what a process does besides. Nothing in performance mode.
    pub fn pass(&self) {
        if let Mode::Checking(checking) = &self.mode {
            self.point(checking);
        }
    }

    /// Enters the kernel to wait: all its stores are seen, and the world goes on.
    ///
    /// # Panics
    /// Outside of processes.
    pub fn wait(&self, wait: Wait) {
        self.drain();
        coro::wait(wait);
    }

    /// The kernel changed a range of a memory on behalf of this processor's process.
    pub fn forget(&self, memory: &Memory, at: u64, bytes: u64) {
        self.drain();
        if let Mode::Checking(checking) = &self.mode {
            checking.host.forget(memory, at, bytes);
        }
    }

    /// Its process was killed. What it had stored reaches memory, since those instructions were
    /// done; from now on its operations do nothing, and loads give zero.
    pub fn kill(&self) {
        self.drain();
        self.dead.set(true);
    }

    /// Its host lost power: as [`kill`](Self::kill), but what was in the store buffer is lost.
    pub fn lose_power(&self) {
        if let Mode::Checking(checking) = &self.mode {
            checking.buffer.borrow_mut().clear();
        }
        self.dead.set(true);
    }

    /// Whether its operations do nothing any more.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.get() || coro::is_dying()
    }

    /// Where an operation begins in checking mode: the process may be interrupted here, and does
    /// not come back if it dies meanwhile. Whether the operation is to be done.
    pub(super) fn point(&self, checking: &Checking) -> bool {
        if self.is_dead() {
            return false;
        }
        self.charge(checking.rates.operation);
        checking.drain_now_and_then();
        if let Some(pause) = checking.pause() {
            coro::wait(Wait::For(pause));
        }
        !self.dead.get()
    }
}

impl Drop for Cpu {
    /// A process that ends leaves its stores behind.
    fn drop(&mut self) {
        self.drain();
    }
}

/// The number of operations until something that happens every `mean` operations; 0 for never.
fn gap(rng: &mut Rng, mean: u32) -> u64 {
    if mean == 0 { u64::MAX } else { rng.between(1, 2 * u64::from(mean) - 1) }
}

impl Checking {
    /// Counts down; true every now and then.
    fn due(counter: &Cell<u64>, rng: &RefCell<Rng>, mean: u32) -> bool {
        counter.set(counter.get() - 1);
        let due = counter.get() == 0;
        if due {
            counter.set(gap(&mut rng.borrow_mut(), mean));
        }
        due
    }

    fn drain_now_and_then(&self) {
        if Self::due(&self.to_drain, &self.draining, self.rates.drain_gap) {
            let pending = self.buffer.borrow().len();
            if pending > 0 {
                let count = self.draining.borrow_mut().between(1, pending as u64);
                self.drain(count as usize);
            }
        }
    }

    /// Whether the process is interrupted now, and for how long.
    fn pause(&self) -> Option<Ps> {
        if let Some(Snare::Sprung { operations, time }) = self.snare.get() {
            let left = operations.checked_sub(1);
            self.snare.set(left.map(|operations| Snare::Sprung { operations, time }));
            if left.is_none() && coro::is_inside() {
                return Some(time);
            }
        }
        let due = Self::due(&self.to_switch, &self.schedule, self.rates.switch_gap);
        if !due || !coro::is_inside() {
            return None;
        }
        let pause = self.rates.duration(&mut self.schedule.borrow_mut());
        let long = pause >= Ps::us(1);
        if long && !self.draining.borrow_mut().chance_ppm(self.rates.hold_ppm) {
            self.drain(usize::MAX);
        }
        Some(pause)
    }

    /// Lets at most `count` of the oldest stores be seen.
    fn drain(&self, count: usize) {
        for _ in 0..count {
            let Some(store) = self.buffer.borrow_mut().pop_front() else { break };
            self.reveal(&store.memory, store.at, store.bytes, store.value);
        }
    }

    fn reveal(&self, memory: &Rc<Memory>, at: u64, bytes: u64, value: u64) {
        match memory.coherence() {
            Coherence::Hardware => memory.set_piece(at, bytes, value),
            Coherence::Software => self.host.set_piece(memory, at, bytes, value),
        }
        self.check_backed(memory, at, bytes, "a store reached");
    }

    /// Stores the low `bytes` of `value`, which lie in one word.
    pub(super) fn store(&self, memory: &Rc<Memory>, at: u64, bytes: u64, value: u64) {
        if let Some(Snare::Set { memory: id, at: word, zero, operations, time }) = self.snare.get()
            && word == at
            && zero == (value == 0)
            && id == memory.id()
        {
            self.snare.set(Some(Snare::Sprung { operations, time }));
        }
        let room = self.rates.buffer_stores_max as usize;
        if room == 0 {
            return self.reveal(memory, at, bytes, value);
        }
        if self.buffer.borrow().len() >= room {
            self.drain(1);
        }
        let memory = memory.clone();
        self.buffer.borrow_mut().push_back(Pending { memory, at, bytes, value });
    }

    /// The word around a byte, as this processor sees it.
    pub(super) fn word(&self, memory: &Rc<Memory>, at: u64) -> u64 {
        self.check_backed(memory, at, 1, "a load from");
        let mut word = match memory.coherence() {
            Coherence::Hardware => memory.word(at),
            Coherence::Software => self.host.word(memory, at),
        };
        for store in self.buffer.borrow().iter() {
            if store.at / 8 == at / 8 && store.memory.id() == memory.id() {
                word = merged(word, store.at, store.bytes, store.value);
            }
        }
        word
    }

    /// Brings a software-coherent line into the host's cache, and with it what may grow old.
    pub(super) fn prefetch(&self, memory: &Rc<Memory>, at: u64) {
        if memory.coherence() == Coherence::Software {
            self.host.word(memory, at);
        }
    }

    /// A locked operation on an aligned word: what is there becomes what `change` says, if
    /// anything. On software-coherent memory that is within this host's line.
    pub(super) fn atomic(
        &self,
        memory: &Rc<Memory>,
        at: u64,
        change: impl FnOnce(u64) -> Option<u64>,
    ) -> u64 {
        self.drain(usize::MAX);
        let old = self.word(memory, at);
        if let Some(new) = change(old) {
            self.reveal(memory, at, 8, new);
        }
        old
    }

    /// Writes changed lines back; drops their copies as well, or not.
    pub(super) fn flush(&self, memory: &Rc<Memory>, at: u64, bytes: u64, keep: bool) {
        if memory.coherence() == Coherence::Software {
            self.host.flush(memory, at, bytes, keep);
        }
    }

    fn check_backed(&self, memory: &Memory, at: u64, bytes: u64, what: &str) {
        if !memory.is_backed(at, bytes) {
            let (id, index) = (memory.id(), self.index);
            self.host.violations().record(format!(
                "{what} offset {at:#x} of memory {id}, which is not backed, by processor {index}"
            ));
        }
    }
}
