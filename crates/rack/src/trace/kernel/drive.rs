//! Threads of a program in virtual time.
//!
//! A phase is a list of units of work for each thread. Units are computed ahead, by any number of
//! workers, each thread's into a buffer of its own: its TLB and private caches depend on nothing
//! else. Then buffers are merged by virtual time, one event after the other, through the shared
//! cache. At the end of a phase all threads wait for the last one.

use super::{Config, Sink, Summary};
use crate::trace::Record;
use crate::trace::filter::{Core, CoreEvent, CoreEventKind, Counts, Passed, ReorderBuffer, Shared};
use std::collections::VecDeque;
use std::ops::ControlFlow;

/// A thread computes ahead until it has so many events. A unit may add to that what it makes.
const AHEAD_EVENTS: usize = 1 << 14;

/// A thread of the program.
pub(super) struct KernelThread {
    /// Without it, each access is an event.
    core: Option<Core>,
    events: VecDeque<CoreEvent>,
    /// The time of the last event that was merged.
    clock: u64,
}

impl KernelThread {
    #[inline]
    fn access(&mut self, addr: u64, size: u16, store: bool) {
        let events = &mut self.events;
        match &mut self.core {
            Some(core) => core.access(addr, size, store, |event| events.push_back(event)),
            None => {
                let kind = if store { CoreEventKind::Store } else { CoreEventKind::Load };
                events.push_back(CoreEvent { addr, gap: 1, tlb: 0, size, kind });
            }
        }
    }
}

impl Sink for KernelThread {
    #[inline]
    fn load(&mut self, addr: u64, size: u16) {
        self.access(addr, size, false);
    }

    #[inline]
    fn store(&mut self, addr: u64, size: u16) {
        self.access(addr, size, true);
    }
}

pub(super) struct Drive<'a> {
    lanes: Vec<KernelThread>,
    shared: Option<Shared>,
    workers: usize,
    order: ReorderBuffer,
    emit: &'a mut dyn FnMut(Record) -> ControlFlow<()>,
    node: u16,
    pid: u32,
    summary: Summary,
}

impl<'a> Drive<'a> {
    pub fn new(config: &Config, emit: &'a mut dyn FnMut(Record) -> ControlFlow<()>) -> Drive<'a> {
        let core = config.caches.as_ref().map(Core::new);
        let lane = || KernelThread { core: core.clone(), events: VecDeque::new(), clock: 0 };
        Drive {
            lanes: (0..config.threads).map(|_| lane()).collect(),
            shared: config.caches.as_ref().map(Shared::new),
            workers: config.workers.clamp(1, config.threads as usize),
            order: ReorderBuffer::default(),
            emit,
            node: config.node,
            pid: config.pid,
            summary: Summary::default(),
        }
    }

    /// Does all units: each thread has a piece of the list, and does it in order.
    pub fn phase<U: Send>(
        &mut self,
        units: impl ExactSizeIterator<Item = U>,
        work: impl Fn(U, &mut KernelThread) + Sync,
    ) -> ControlFlow<()> {
        let (count, threads) = (units.len(), self.lanes.len());
        let mut units = units;
        // The first threads have one more if it does not come out even.
        let mut queues: Vec<VecDeque<U>> = (0..threads)
            .map(|thread| {
                let share = count / threads + usize::from(thread < count % threads);
                units.by_ref().take(share).collect()
            })
            .collect();
        while queues.iter().any(|queue| !queue.is_empty()) {
            self.ahead(&mut queues, &work);
            self.merge(&queues)?;
        }
        self.merge(&queues)?;
        self.wait();
        ControlFlow::Continue(())
    }

    fn ahead<U: Send>(
        &mut self,
        queues: &mut [VecDeque<U>],
        work: &(impl Fn(U, &mut KernelThread) + Sync),
    ) {
        let fill = |lane: &mut KernelThread, queue: &mut VecDeque<U>| {
            while lane.events.len() < AHEAD_EVENTS
                && let Some(unit) = queue.pop_front()
            {
                work(unit, lane);
            }
        };
        let share = self.lanes.len().div_ceil(self.workers);
        if self.workers == 1 {
            self.lanes.iter_mut().zip(queues).for_each(|(lane, queue)| fill(lane, queue));
            return;
        }
        std::thread::scope(|scope| {
            for (lanes, queues) in self.lanes.chunks_mut(share).zip(queues.chunks_mut(share)) {
                scope.spawn(|| {
                    lanes.iter_mut().zip(queues).for_each(|(lane, queue)| fill(lane, queue));
                });
            }
        });
    }

    /// Merges until a thread that has units left has no events: what it does next is not known.
    fn merge<U>(&mut self, queues: &[VecDeque<U>]) -> ControlFlow<()> {
        loop {
            let (mut first, mut second) = ((u64::MAX, usize::MAX), (u64::MAX, usize::MAX));
            for (index, lane) in self.lanes.iter().enumerate() {
                match lane.events.front() {
                    Some(event) => {
                        let next = (lane.clock + event.gap, index);
                        second = second.min(first.max(next));
                        first = first.min(next);
                    }
                    None if queues[index].is_empty() => {}
                    None => return ControlFlow::Continue(()),
                }
            }
            let (_, index) = first;
            if index == usize::MAX {
                return ControlFlow::Continue(());
            }
            // The same thread goes on while it is the least far.
            while let Some(event) = self.lanes[index].events.front() {
                if (self.lanes[index].clock + event.gap, index) > second {
                    break;
                }
                let event = self.lanes[index].events.pop_front().expect("it was there");
                self.pass(index, &event)?;
            }
        }
    }

    fn pass(&mut self, index: usize, event: &CoreEvent) -> ControlFlow<()> {
        let lane = &mut self.lanes[index];
        lane.clock += event.gap;
        let record = Record {
            at: lane.clock,
            node: self.node,
            pid: self.pid,
            tid: index as u32,
            addr: event.addr,
            size: event.size,
            write: event.kind == CoreEventKind::Store,
        };
        let Some(shared) = &mut self.shared else {
            self.summary.records += 1;
            return (self.emit)(record);
        };
        let sure = lane.clock;
        let Passed { cycles, read, written } = shared.pass(event);
        lane.clock += cycles;
        if let Some(after) = read {
            self.summary.counts.memory_reads += 1;
            self.order.put(Record { at: record.at + after, ..record });
        }
        if let Some(addr) = written {
            self.summary.counts.memory_writes += 1;
            self.order.put(Record { at: lane.clock, addr, write: true, ..record });
        }
        self.give(sure)
    }

    fn give(&mut self, sure: u64) -> ControlFlow<()> {
        while let Some(record) = self.order.take(sure) {
            self.summary.records += 1;
            (self.emit)(record)?;
        }
        ControlFlow::Continue(())
    }

    /// All threads wait for the last one.
    fn wait(&mut self) {
        for lane in &mut self.lanes {
            lane.clock += lane.core.as_mut().map_or(0, |core| std::mem::take(&mut core.gap));
        }
        let last = self.lanes.iter().map(|lane| lane.clock).max().expect("there are threads");
        self.lanes.iter_mut().for_each(|lane| lane.clock = last);
        self.summary.cycles = last;
    }

    /// Gives out what is left at the end.
    pub fn flush(&mut self) -> ControlFlow<()> {
        self.give(u64::MAX)
    }

    pub fn summary(&self) -> Summary {
        let mut counts = Counts::default();
        for core in self.lanes.iter().filter_map(|lane| lane.core.as_ref()) {
            counts.add_core(&core.counts);
        }
        let Counts { memory_reads, memory_writes, .. } = self.summary.counts;
        Summary { counts: Counts { memory_reads, memory_writes, ..counts }, ..self.summary }
    }
}

/// Runs a program for its arithmetic, in tests.
#[cfg(test)]
pub(super) fn silently(threads: u32, run: impl FnOnce(&mut Drive<'_>) -> ControlFlow<()>) {
    let mut emit = |_| ControlFlow::Continue(());
    let config = Config::new(super::Name::Lbm, super::FOOTPRINT_BYTES_MIN);
    let config = Config { threads, caches: None, workers: 2, ..config };
    let flow = run(&mut Drive::new(&config, &mut emit));
    assert!(flow.is_continue());
}
