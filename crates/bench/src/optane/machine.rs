//! A socket of the guide's machine in virtual time: threads, the controllers' queues, the link to
//! the other socket, and memory.
//!
//! In: what each thread does ([`ThreadLoad`]), where, how long. Out: bandwidth, what the DIMMs
//! counted, and how long accesses took ([`Ran`]).
//!
//! ```text
//! thread -- 10 lines read at once --------> [link] --> channel: reads   (pmem::Dimm, Ddr)
//!        -- 4 lines written, in order ----> [link] --> channel: writes
//! ```
//!
//! - A thread has at most 256 B of writes in the controllers' queues. Its next line waits for the
//!   first of these to leave, though others have left before: head of line.
//! - A fence waits until all lines have entered those queues, which is when they are durable.
//! - A store needs its line in the cache, which costs the memory a read. Where stores are foreseen
//!   that read is ahead of them, by as many lines as a core reads at once, and a fence does not
//!   hold it up: by the table of figure 13 a thread stores 256 B with clwb and fence in 195 ns,
//!   less than one read of the medium.
//! - The link takes accesses in their order. To Optane it turns from reads to writes, or back, only
//!   when all of the other kind are over and their answers are back; no constant says how long
//!   that takes.

use super::costs::{
    CACHED_GAP, CLWB_DURABLE, CLWB_GAP, FETCHED_AHEAD, LINK_GAP, NT_AFTER_FENCE, NT_DURABLE,
    NT_GAP, PAUSE, READ_GAP, READS_MAX, WRITES_MAX,
};
use super::load::{GuideAccess, LINE_BYTES, Program, ThreadLoad, ThreadOp};
use super::memory::{CACHE_BYTES, LineCache, MemoryPlace};
use super::queues::{GuideChannel, LineKind, LineRequest, LineRequests, NEVER, SocketLink};
use rackpool_rack::model::memory::{Done, Medium};
use rackpool_rack::pmem::DimmCounts;
use rackpool_rack::pmem::config::UNCORE;
use rackpool_sim::time::Ps;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// How long a run is.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// What is counted begins after some time.
    Time { warm_up: Ps, counted: Ps },
    /// The same in accesses of all threads.
    Accesses { warm_up: u64, counted: u64 },
}

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub place: MemoryPlace,
    pub threads: usize,
    /// The threads are on the other socket.
    pub is_remote: bool,
    /// Threads that have an access under way; the others wait for their turn.
    pub at_once_max: usize,
    pub length: Length,
    pub seed: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Ran {
    pub took: Ps,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub counts: DimmCounts,
    /// How long each access took, in the order of their ends.
    pub accesses: Vec<Ps>,
}

impl Ran {
    /// GB/s of reads and writes together.
    pub fn gbytes_per_s(&self) -> f64 {
        (self.read_bytes + self.written_bytes) as f64 / self.took.as_ns_f64()
    }

    pub fn mean_ns(&self) -> f64 {
        let sum: f64 = self.accesses.iter().map(|took| took.as_ns_f64()).sum();
        sum / self.accesses.len() as f64
    }

    pub fn variation(&self) -> f64 {
        let mean = self.mean_ns();
        let square = |took: &Ps| (took.as_ns_f64() - mean).powi(2);
        let sum: f64 = self.accesses.iter().map(square).sum();
        (sum / self.accesses.len() as f64).sqrt() / mean
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MachineEvent {
    /// A channel wants to be called.
    Channel(usize),
    /// A request has come to the channels, or to the link.
    Enters(LineRequest),
    /// The link can go on.
    Link,
    /// An answer has come back over the link.
    Answered,
    /// A line that was read has come to its thread.
    Arrived(LineRequest),
    Thread(usize),
}

#[derive(Debug)]
struct Thread {
    program: Program,
    cache: LineCache,
    op: Option<ThreadOp>,
    /// When it can do its next operation.
    ready: Ps,
    /// When the next line that it will store to has been fetched.
    fetched: Ps,
    is_asked: bool,
    reads: usize,
    /// Reads of lines that will be written when they come.
    reads_for_write: usize,
    /// Lines that are to be written when there is room.
    to_write: VecDeque<u64>,
    /// Those in the controllers' queues, whether each has left.
    writes: VecDeque<bool>,
    first_write: u64,
    /// Lines that have not entered the queues, and until when the others are known to have.
    entering: usize,
    durable: Ps,
    last_fence: Option<Ps>,
    began: Ps,
    /// It was given the turn of another thread, or is among those that wait for one.
    has_turn: bool,
    waits_for_turn: bool,
}

struct GuideMachine {
    setting: Setting,
    threads: Vec<Thread>,
    channels: Vec<GuideChannel>,
    requests: LineRequests,
    link: SocketLink,
    /// The number keeps those of one time in their order.
    events: BinaryHeap<Reverse<(Ps, u64, MachineEvent)>>,
    event_count: u64,
    done: Vec<Done>,
    accesses: u64,
    ran: Ran,
    counted_from: Option<(Ps, DimmCounts)>,
    is_over: bool,
    /// Threads with an access under way, and those that wait for their turn.
    at_once: usize,
    waiting: VecDeque<usize>,
}

/// Has all threads do the same.
pub fn run(load: ThreadLoad, setting: Setting) -> Ran {
    let mut machine = GuideMachine::new(load, setting);
    for thread in 0..setting.threads {
        machine.push(Ps(1_000 * thread as u64), MachineEvent::Thread(thread));
        machine.threads[thread].is_asked = true;
    }
    machine.run()
}

impl GuideMachine {
    fn new(load: ThreadLoad, setting: Setting) -> GuideMachine {
        let thread = |index: usize| Thread {
            program: Program::new(load, index as u64, setting.seed),
            cache: full_cache(&load, index as u64, setting),
            op: None,
            ready: Ps::ZERO,
            fetched: Ps::ZERO,
            is_asked: false,
            reads: 0,
            reads_for_write: 0,
            to_write: VecDeque::new(),
            writes: VecDeque::new(),
            first_write: 0,
            entering: 0,
            durable: Ps::ZERO,
            last_fence: None,
            began: Ps::ZERO,
            has_turn: false,
            waits_for_turn: false,
        };
        GuideMachine {
            setting,
            threads: (0..setting.threads).map(thread).collect(),
            channels: setting
                .place
                .devices(setting.seed)
                .into_iter()
                .map(GuideChannel::new)
                .collect(),
            requests: LineRequests::default(),
            link: SocketLink::default(),
            events: BinaryHeap::new(),
            event_count: 0,
            done: Vec::new(),
            accesses: 0,
            ran: Ran::default(),
            // With nothing to warm up, all is counted.
            counted_from: matches!(setting.length, Length::Accesses { warm_up: 0, .. })
                .then(Default::default),
            is_over: false,
            at_once: 0,
            waiting: VecDeque::new(),
        }
    }

    fn push(&mut self, at: Ps, event: MachineEvent) {
        self.event_count += 1;
        self.events.push(Reverse((at, self.event_count, event)));
    }

    fn run(mut self) -> Ran {
        let mut end = Ps::ZERO;
        // The last access of a single thread leaves no event behind.
        while !self.is_over
            && let Some(Reverse((now, _, event))) = self.events.pop()
        {
            end = now;
            if let Length::Time { warm_up, counted } = self.setting.length {
                if self.counted_from.is_none() && now >= warm_up {
                    self.begin_to_count(now);
                }
                if now >= warm_up + counted {
                    break;
                }
            }
            match event {
                MachineEvent::Channel(channel) => self.call(now, channel),
                MachineEvent::Enters(request) if self.setting.is_remote => {
                    self.link.queue.push_back(request);
                    self.serve_link(now);
                }
                MachineEvent::Enters(request) => self.enter(now, request),
                MachineEvent::Link => {
                    self.link.is_asked = false;
                    self.serve_link(now);
                }
                MachineEvent::Answered => {
                    self.link.under_way -= 1;
                    self.serve_link(now);
                }
                MachineEvent::Arrived(request) => self.arrived(now, request),
                MachineEvent::Thread(thread) => {
                    self.threads[thread].is_asked = false;
                    self.step(now, thread);
                }
            }
        }
        let (from, before) = self.counted_from.unwrap_or_default();
        self.ran.took = end - from;
        self.ran.counts = self.counts().since(before);
        self.ran
    }

    fn begin_to_count(&mut self, now: Ps) {
        self.counted_from = Some((now, self.counts()));
        self.ran = Ran::default();
    }

    fn counts(&self) -> DimmCounts {
        let each = self.channels.iter().map(|channel| channel.device.counts());
        each.fold(DimmCounts::default(), DimmCounts::and)
    }

    /// Lets the first requests of the link go, as far as they can.
    fn serve_link(&mut self, now: Ps) {
        while let Some(request) = self.link.queue.front().copied() {
            let is_turn = self.link.is_writing != request.what.is_write();
            let drains = self.setting.place != MemoryPlace::Dram;
            if is_turn && drains && self.link.under_way > 0 {
                // Called again when these are over.
                return;
            }
            if self.link.free > now {
                if !self.link.is_asked {
                    self.link.is_asked = true;
                    self.push(self.link.free, MachineEvent::Link);
                }
                return;
            }
            self.link.queue.pop_front();
            self.link.is_writing = request.what.is_write();
            self.link.under_way += 1;
            self.link.free = now + LINK_GAP;
            self.enter(now, request);
        }
    }

    /// A request comes to its channel's controller.
    fn enter(&mut self, now: Ps, request: LineRequest) {
        let (channel, _) = self.setting.place.channel(request.addr);
        self.channels[channel].waiting.push_back(request);
        self.feed(now, channel);
        if request.what.is_write() {
            let whole = if request.what == LineKind::Nt { NT_DURABLE } else { CLWB_DURABLE };
            let back = if self.setting.is_remote { request.what.remote() } else { Ps::ZERO };
            let thread = &mut self.threads[request.thread];
            thread.entering -= 1;
            thread.durable = thread.durable.max(now + whole - Ps(UNCORE.0 / 2) + back);
            self.step(now, request.thread);
        }
    }

    /// Gives a channel what it has room for, and has it called when it wants to be.
    fn feed(&mut self, now: Ps, channel: usize) {
        let one = &mut self.channels[channel];
        while let Some(request) = one.waiting.front().copied() {
            let (_, addr) = self.setting.place.channel(request.addr);
            let id = self.requests.add(request);
            if !one.device.submit(now, id, addr, request.what.is_write()) {
                self.requests.take(id);
                break;
            }
            one.waiting.pop_front();
        }
        let next = one.device.next_event().map_or(NEVER, |at| at.max(now));
        if next < one.wake {
            one.wake = next;
            self.push(next, MachineEvent::Channel(channel));
        }
    }

    fn call(&mut self, now: Ps, channel: usize) {
        let one = &mut self.channels[channel];
        if one.wake != now {
            return;
        }
        one.wake = NEVER;
        let mut done = std::mem::take(&mut self.done);
        one.device.advance(now, &mut done);
        self.feed(now, channel);
        for one in done.drain(..) {
            let request = self.requests.take(one.id);
            if self.setting.is_remote {
                self.push(now + request.what.remote(), MachineEvent::Answered);
            }
            if request.what.is_write() {
                self.left(now, request);
            } else {
                let back = if self.setting.is_remote { request.what.remote() } else { Ps::ZERO };
                self.push(now + Ps(UNCORE.0 / 2) + back, MachineEvent::Arrived(request));
            }
        }
        self.done = done;
    }

    /// A write has left the controller's queue.
    fn left(&mut self, now: Ps, request: LineRequest) {
        let thread = &mut self.threads[request.thread];
        let index = request.number - thread.first_write;
        thread.writes[index as usize] = true;
        while thread.writes.front() == Some(&true) {
            thread.writes.pop_front();
            thread.first_write += 1;
        }
        self.step(now, request.thread);
    }

    fn arrived(&mut self, now: Ps, request: LineRequest) {
        let thread = &mut self.threads[request.thread];
        thread.reads -= 1;
        match request.what {
            LineKind::Read => self.ran.read_bytes += LINE_BYTES,
            LineKind::ReadForWrite => {
                thread.reads_for_write -= 1;
                thread.to_write.push_back(request.addr);
            }
            _ => {}
        }
        self.step(now, request.thread);
    }

    fn send(&mut self, at: Ps, request: LineRequest) {
        let way = if self.setting.is_remote { request.what.remote() } else { Ps::ZERO };
        self.push(at + Ps(UNCORE.0 / 2) + way, MachineEvent::Enters(request));
    }

    /// Asks for a line; false if the thread has as many under way as it can.
    fn read(&mut self, at: Ps, thread: usize, addr: u64, what: LineKind) -> bool {
        let one = &mut self.threads[thread];
        if one.reads == READS_MAX {
            return false;
        }
        one.reads += 1;
        one.reads_for_write += usize::from(what == LineKind::ReadForWrite);
        self.send(at, LineRequest { thread, what, addr, number: 0 });
        true
    }

    /// Writes a line; false if the thread has as many in the queues as it can.
    fn write(&mut self, at: Ps, thread: usize, addr: u64, what: LineKind) -> bool {
        let one = &mut self.threads[thread];
        if one.writes.len() == WRITES_MAX {
            return false;
        }
        let number = one.first_write + one.writes.len() as u64;
        one.writes.push_back(false);
        one.entering += 1;
        self.send(at, LineRequest { thread, what, addr, number });
        true
    }

    /// Does a thread's operations as far as it can.
    fn step(&mut self, now: Ps, thread: usize) {
        while !self.is_over {
            while let Some(addr) = self.threads[thread].to_write.front().copied() {
                if !self.write(now, thread, addr, LineKind::Clwb) {
                    break;
                }
                self.threads[thread].to_write.pop_front();
            }
            let one = &mut self.threads[thread];
            if one.ready > now {
                if !one.is_asked {
                    one.is_asked = true;
                    let ready = one.ready;
                    self.push(ready, MachineEvent::Thread(thread));
                }
                return;
            }
            let op = *one.op.get_or_insert_with(|| one.program.next_op());
            if self.perform(now, thread, op) {
                self.threads[thread].op = None;
            } else if self.threads[thread].ready <= now {
                // Called again when what it waits for is over.
                return;
            }
        }
    }

    /// False if the operation has to wait for something.
    fn perform(&mut self, now: Ps, thread: usize, op: ThreadOp) -> bool {
        match op {
            ThreadOp::Begin => self.begin(now, thread),
            ThreadOp::Read(addr) => {
                let is_taken = self.read(now, thread, addr, LineKind::Read);
                if is_taken {
                    self.threads[thread].ready = now + READ_GAP;
                }
                is_taken
            }
            ThreadOp::Nt(addr) => self.nt(now, thread, addr),
            ThreadOp::Clwb(addr) => self.clwb(now, thread, addr),
            ThreadOp::Store(addr) => self.store(now, thread, addr),
            ThreadOp::Flush(addr) => {
                let one = &mut self.threads[thread];
                if one.cache.has(addr) {
                    if !self.write(now + CACHED_GAP, thread, addr, LineKind::Clwb) {
                        return false;
                    }
                    self.threads[thread].cache.remove(addr);
                }
                self.threads[thread].ready = now + CACHED_GAP;
                true
            }
            ThreadOp::Fence => self.fence(now, thread),
            ThreadOp::End => self.end(now, thread),
        }
    }

    fn begin(&mut self, now: Ps, thread: usize) -> bool {
        let one = &mut self.threads[thread];
        if !std::mem::take(&mut one.has_turn) {
            if self.at_once == self.setting.at_once_max {
                if !std::mem::replace(&mut one.waits_for_turn, true) {
                    self.waiting.push_back(thread);
                }
                return false;
            }
            self.at_once += 1;
        }
        one.began = now;
        true
    }

    /// An access is over: its thread's turn goes to the one that has waited longest.
    fn give_turn(&mut self, now: Ps) {
        let Some(next) = self.waiting.pop_front() else {
            self.at_once -= 1;
            return;
        };
        let one = &mut self.threads[next];
        (one.has_turn, one.waits_for_turn) = (true, false);
        if !std::mem::replace(&mut one.is_asked, true) {
            self.push(now, MachineEvent::Thread(next));
        }
    }

    fn nt(&mut self, now: Ps, thread: usize, addr: u64) -> bool {
        let one = &mut self.threads[thread];
        if let Some(fence) = one.last_fence.take() {
            // Unless it has done something else for as long.
            let start = fence + NT_AFTER_FENCE;
            if start > now {
                one.ready = start;
                return false;
            }
        }
        if !self.write(now + NT_GAP, thread, addr, LineKind::Nt) {
            return false;
        }
        self.threads[thread].ready = now + NT_GAP;
        self.ran.written_bytes += LINE_BYTES;
        true
    }

    fn clwb(&mut self, now: Ps, thread: usize, addr: u64) -> bool {
        let one = &self.threads[thread];
        let load = one.program.load();
        let is_foreseen = load.cached || one.program.is_foreseen();
        let gap = if is_foreseen { CACHED_GAP } else { CLWB_GAP };
        let has_room = one.writes.len() < WRITES_MAX && one.to_write.is_empty();
        let is_taken = if load.cached {
            has_room && self.write(now + gap, thread, addr, LineKind::Clwb)
        } else if is_foreseen {
            has_room
                && one.reads < READS_MAX
                && self.is_fetched(now, thread)
                && self.read(now, thread, addr, LineKind::ReadAhead)
                && self.write(now + gap, thread, addr, LineKind::Clwb)
        } else {
            one.to_write.len() + one.reads_for_write < READS_MAX
                && self.read(now, thread, addr, LineKind::ReadForWrite)
        };
        if is_taken {
            self.threads[thread].ready = now + gap;
            self.ran.written_bytes += LINE_BYTES;
        }
        is_taken
    }

    /// Whether the next line that is foreseen has been fetched; then the one after it will be.
    fn is_fetched(&mut self, now: Ps, thread: usize) -> bool {
        let one = &mut self.threads[thread];
        if one.fetched > now {
            one.ready = one.fetched;
            return false;
        }
        one.fetched = one.fetched.max(Ps(now.0.saturating_sub(FETCHED_AHEAD.0))) + CLWB_GAP;
        true
    }

    /// A store to the cache, which may have to write another line for it.
    fn store(&mut self, now: Ps, thread: usize, addr: u64) -> bool {
        let one = &self.threads[thread];
        if one.cache.has(addr) {
            self.threads[thread].ready = now + CACHED_GAP;
            self.ran.written_bytes += LINE_BYTES;
            return true;
        }
        let has_room = one.writes.len() < WRITES_MAX && one.to_write.is_empty();
        if !has_room
            || one.reads == READS_MAX
            || !self.is_fetched(now, thread)
            || !self.read(now, thread, addr, LineKind::ReadAhead)
        {
            return false;
        }
        if let Some(leaves) = self.threads[thread].cache.insert(addr) {
            self.threads[thread].to_write.push_back(leaves);
        }
        self.threads[thread].ready = now + CACHED_GAP;
        self.ran.written_bytes += LINE_BYTES;
        true
    }

    fn fence(&mut self, now: Ps, thread: usize) -> bool {
        let one = &mut self.threads[thread];
        // Stores that stay in the cache have nothing to wait for.
        if one.program.load().kind == GuideAccess::Store {
            return true;
        }
        if one.entering > 0 || one.reads_for_write > 0 || !one.to_write.is_empty() {
            return false;
        }
        one.ready = one.durable.max(now);
        one.last_fence = Some(one.ready);
        true
    }

    fn end(&mut self, now: Ps, thread: usize) -> bool {
        let length = self.setting.length;
        let one = &mut self.threads[thread];
        if one.program.load().alone {
            if one.reads > 0 {
                return false;
            }
            one.ready = now + PAUSE;
        }
        let took = now - one.began;
        self.ran.accesses.push(took);
        self.accesses += 1;
        if let Length::Accesses { warm_up, counted } = length {
            if self.accesses == warm_up {
                self.begin_to_count(now);
            }
            self.is_over = self.accesses >= warm_up + counted;
        }
        self.give_turn(now);
        true
    }
}

/// A thread's cache, full of lines that were written before where the load stores to it.
fn full_cache(load: &ThreadLoad, thread: u64, setting: Setting) -> LineCache {
    let is_used = matches!(load.kind, GuideAccess::Store | GuideAccess::StoreThenClwb);
    let bytes = if is_used { CACHE_BYTES / setting.threads as u64 } else { LINE_BYTES };
    let mut cache = LineCache::new(bytes, setting.seed.wrapping_add(thread));
    if load.kind == GuideAccess::Store {
        // Of a region of its own, one after the other, as the thread's own will be.
        let base = (1 << 40) + thread * bytes;
        for line in 0..bytes / LINE_BYTES {
            cache.insert(base + line * LINE_BYTES);
        }
    }
    cache
}

#[cfg(test)]
mod tests {
    use super::super::load::AccessOrder;
    use super::*;

    const SHORT: Length = Length::Time { warm_up: Ps::us(40), counted: Ps::us(60) };
    const FEW: Length = Length::Accesses { warm_up: 8, counted: 400 };

    fn setting(place: MemoryPlace, threads: usize, length: Length) -> Setting {
        Setting { place, threads, is_remote: false, at_once_max: threads, length, seed: 5 }
    }

    fn idle(load: ThreadLoad, place: MemoryPlace, is_remote: bool) -> f64 {
        let setting = Setting { is_remote, ..setting(place, 1, FEW) };
        run(load.alone(), setting).mean_ns()
    }

    #[test]
    fn idle_accesses_take_what_they_were_fitted_to() {
        let near = |ours: f64, is: f64| assert!((ours / is - 1.0).abs() < 0.01, "{ours} for {is}");
        let read = |order| ThreadLoad::new(GuideAccess::Read, order, 64);
        let nt = ThreadLoad::new(GuideAccess::Nt, AccessOrder::Random, 64).fenced();
        let clwb = ThreadLoad::new(GuideAccess::Clwb, AccessOrder::Random, 64).fenced().cached();
        let optane = MemoryPlace::Interleaved;
        near(idle(read(AccessOrder::Random), optane, false), 305.0);
        near(idle(read(AccessOrder::Sequential), optane, false), 169.4);
        near(idle(nt, optane, false), 90.4);
        near(idle(clwb, optane, false), 62.3);
        near(idle(read(AccessOrder::Random), MemoryPlace::Dram, false), 101.5);
        near(idle(read(AccessOrder::Random), optane, true), 1.20 * 305.0);
        near(idle(nt, optane, true), 2.53 * 90.4);
        near(idle(clwb, optane, true), 1.68 * 62.3);
    }

    #[test]
    fn a_run_of_one_thread_has_its_time_and_counts() {
        let read = ThreadLoad::new(GuideAccess::Read, AccessOrder::Sequential, 64).alone();
        let ran = run(read, setting(MemoryPlace::Single, 1, FEW));
        assert_eq!((ran.accesses.len(), ran.counts.reads), (400, 400));
        assert!(ran.took >= PAUSE.times(399), "{:?}", ran.took);
    }

    #[test]
    fn one_dimm_carries_what_its_medium_does() {
        let read = ThreadLoad::new(GuideAccess::Read, AccessOrder::Sequential, 256);
        let rate = run(read, setting(MemoryPlace::Single, 4, SHORT)).gbytes_per_s();
        assert!((5.9..6.7).contains(&rate), "{rate} GB/s");
        let nt = ThreadLoad::new(GuideAccess::Nt, AccessOrder::Sequential, 256);
        let ran = run(nt, setting(MemoryPlace::Single, 1, SHORT));
        assert!((2.2..2.4).contains(&ran.gbytes_per_s()), "{} GB/s", ran.gbytes_per_s());
        assert_eq!(ran.counts.partial_writes, 0);
    }

    #[test]
    fn stores_that_the_cache_evicts_are_scattered() {
        let ratio = |kind| {
            let load = ThreadLoad::new(kind, AccessOrder::Sequential, 256).fenced();
            let ran = run(load, setting(MemoryPlace::Interleaved, 6, SHORT));
            let config = rackpool_rack::pmem::config::OPTANE100;
            ran.counts.effective_write_ratio(&config).expect("units are written")
        };
        let (stores, clwb) = (ratio(GuideAccess::Store), ratio(GuideAccess::Clwb));
        assert!(stores < 0.4 && clwb > 0.8, "{stores} {clwb}");
    }

    #[test]
    fn the_link_turns_only_when_what_is_under_way_is_over() {
        let load = ThreadLoad::new(GuideAccess::Nt, AccessOrder::Sequential, 256);
        let rate = |read_percent, place| {
            let setting = Setting { is_remote: true, ..setting(place, 4, SHORT) };
            run(load.mixed(read_percent), setting).gbytes_per_s()
        };
        let [reads, half, writes] =
            [100, 50, 0].map(|percent| rate(percent, MemoryPlace::Interleaved));
        assert!(2.0 * half < reads.min(writes), "{reads} {half} {writes}");
        let [reads, half, writes] = [100, 50, 0].map(|percent| rate(percent, MemoryPlace::Dram));
        assert!(2.0 * half > reads.min(writes), "DRAM: {reads} {half} {writes}");
    }

    #[test]
    fn threads_take_turns_and_carry_as_much_as_those_that_may_write_at_once() {
        let load = ThreadLoad::new(GuideAccess::Nt, AccessOrder::Sequential, 256).fenced();
        let rate = |threads, at_once_max| {
            let setting = Setting { at_once_max, ..setting(MemoryPlace::Single, threads, SHORT) };
            let ran = run(load, setting);
            (ran.gbytes_per_s(), ran.counts.partial_writes)
        };
        let ((alone, _), (many, partial)) = (rate(1, 1), rate(8, 1));
        assert!(many > 0.95 * alone, "{many} {alone}");
        assert_eq!(partial, 0, "one at a time writes its unit whole");
    }

    #[test]
    fn a_run_is_a_function_of_its_seed() {
        let load = ThreadLoad::new(GuideAccess::Nt, AccessOrder::Random, 256);
        let ran = || run(load, setting(MemoryPlace::Interleaved, 4, SHORT));
        let (one, other) = (ran(), ran());
        assert_eq!((one.written_bytes, one.counts), (other.written_bytes, other.counts));
    }
}
