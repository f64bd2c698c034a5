//! A trace on devices, in virtual time: cores that take one operation after the other, as soon as
//! the one before is over or at a pace, and wait for the lines that they read.
//!
//! In: a [`Trace`], where its lines lie, how many cores. Out: operations a second, their mean time,
//! and what each memory carried. The channels with their queues are the rack's.

use super::trace::{Line, Trace};
use super::{ENGINES, LINES_MAX, PAGE_BYTES, UNCORE};
use rackpool_rack::model::media::Media;
use rackpool_rack::model::memory::Memory;
use rackpool_rack::trace::filter::LINE_BYTES;
use rackpool_sim::time::Ps;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Where lines lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Near,
    Far,
    /// Pages in turn by weights of near and far memory.
    Weighted(u64, u64),
    /// Where the engine put them.
    ByItem,
    /// Items far, their index near.
    ItemsFar,
}

impl Place {
    fn is_far(self, line: Line) -> bool {
        match self {
            Place::Near => false,
            Place::Far => true,
            Place::Weighted(near, far) => line.addr() / PAGE_BYTES % (near + far) >= near,
            Place::ByItem => line.is_far(),
            Place::ItemsFar => line.is_item(),
        }
    }
}

/// Media of the lanes of each memory.
#[derive(Clone, Copy, Debug)]
pub struct Devices {
    pub near: (&'static str, usize),
    pub far: (&'static str, usize),
}

impl Devices {
    fn memories(&self) -> [Memory<Media>; 2] {
        [self.near, self.far].map(|(name, lanes)| {
            let medium = Media::new(name, "memory").expect("a medium of the rack's");
            Memory::new(vec![medium; lanes])
        })
    }

    /// What each memory's lanes carry at most, GB/s.
    pub fn peaks(&self) -> [f64; 2] {
        [self.near, self.far].map(|(name, lanes)| {
            let medium = Media::new(name, "memory").expect("a medium of the rack's");
            medium.gbytes_per_s() * lanes as f64
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Of all engines; a multiple of them.
    pub cores: usize,
    /// From the begin of a core's operation to that of its next; `None`: as soon as it is over.
    pub every: Option<Ps>,
}

#[derive(Clone, Copy, Debug)]
pub struct Played {
    pub ops: u64,
    pub took: Ps,
    /// From when an operation was due until it was over, mean.
    pub latency_ns: f64,
    /// Time of the cores, together: with an operation, and computing for it.
    pub busy: Ps,
    pub computing: Ps,
    /// By near and far memory.
    pub bytes: [u64; 2],
}

impl Played {
    pub fn ops_per_s(&self) -> f64 {
        self.ops as f64 * 1e12 / self.took.0 as f64
    }

    pub fn gbytes_per_s(&self) -> [f64; 2] {
        self.bytes.map(|bytes| bytes as f64 * 1e3 / self.took.0 as f64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Memory(usize),
    /// A line has come to this core.
    Arrived(usize),
    /// It has computed, and asks for lines.
    Asks(usize),
}

#[derive(Clone, Copy, Debug, Default)]
struct Core {
    /// Its operation, the next one of its lines and the end of these.
    op: usize,
    next: usize,
    end: usize,
    flying: usize,
    due: Ps,
    began: Ps,
}

/// The id of accesses that nothing waits for.
const POSTED: u64 = u64::MAX;

struct Replay<'a> {
    trace: &'a Trace,
    place: Place,
    load: Load,
    memories: [Memory<Media>; 2],
    cores: Vec<Core>,
    /// The next operation of each engine.
    next_ops: [usize; ENGINES],
    events: BinaryHeap<Reverse<(Ps, Event)>>,
    played: Played,
    latency_ps: u128,
    /// An engine has no operation left.
    is_over: bool,
}

/// Runs the trace until an engine has no operation left.
pub fn play(trace: &Trace, devices: &Devices, place: Place, load: Load) -> Played {
    let zero = Ps::ZERO;
    let mut replay = Replay {
        trace,
        place,
        load,
        memories: devices.memories(),
        cores: vec![Core::default(); load.cores],
        next_ops: std::array::from_fn(|engine| engine),
        events: BinaryHeap::new(),
        played: Played {
            ops: 0,
            took: zero,
            latency_ns: 0.0,
            busy: zero,
            computing: zero,
            bytes: [0; 2],
        },
        latency_ps: 0,
        is_over: false,
    };
    for core in 0..load.cores {
        // Not all at once.
        let gap = load.every.map_or(1_000, |every| every.0 / load.cores as u64);
        replay.cores[core].due = Ps(gap * core as u64);
        replay.begin(core, zero);
    }
    let mut played = replay.run();
    played.latency_ns = replay.latency_ps as f64 / 1e3 / played.ops.max(1) as f64;
    played
}

impl Replay<'_> {
    fn run(&mut self) -> Played {
        let (mut done, mut taken) = (Vec::new(), Vec::new());
        while let Some(Reverse((now, event))) = self.events.pop() {
            match event {
                Event::Memory(which) => {
                    if self.memories[which].call(now, &mut done, &mut taken) {
                        let read = done.drain(..).filter(|done| done.id != POSTED);
                        self.events.extend(read.map(|done| {
                            let core = done.id as usize;
                            Reverse((done.at.max(now) + UNCORE, Event::Arrived(core)))
                        }));
                        taken.clear();
                        self.call_memory(which, now);
                    }
                }
                Event::Arrived(core) => {
                    self.cores[core].flying -= 1;
                    self.go_on(core, now);
                }
                Event::Asks(core) => self.go_on(core, now),
            }
            if self.is_over {
                self.played.took = now;
                break;
            }
        }
        self.played
    }

    /// Has a memory called when it wants to be.
    fn call_memory(&mut self, which: usize, now: Ps) {
        if let Some(at) = self.memories[which].wants(now) {
            self.events.push(Reverse((at, Event::Memory(which))));
        }
    }

    /// Gives a core its next operation.
    fn begin(&mut self, core: usize, now: Ps) {
        let next = &mut self.next_ops[core % ENGINES];
        let state = &mut self.cores[core];
        let Some(op) = self.trace.ops.get(*next) else {
            self.is_over = true;
            return;
        };
        state.op = *next;
        state.next = if *next == 0 { 0 } else { self.trace.ops[*next - 1].end };
        state.end = op.end;
        state.began = state.due.max(now);
        *next += ENGINES;
        self.events.push(Reverse((state.began + Ps(op.cpu_ps), Event::Asks(core))));
    }

    /// Asks for lines as far as a core can, and ends its operation if all have come.
    fn go_on(&mut self, core: usize, now: Ps) {
        let mut asked = [false; 2];
        loop {
            let state = &mut self.cores[core];
            let Some(line) = self.trace.lines[..state.end].get(state.next).copied() else { break };
            let is_full = !line.is_write() && state.flying == LINES_MAX;
            if is_full || (line.waits() && state.flying > 0) {
                break;
            }
            state.next += 1;
            state.flying += usize::from(!line.is_write());
            let which = usize::from(self.place.is_far(line));
            let id = if line.is_write() { POSTED } else { core as u64 };
            self.memories[which].submit(now, id, line.addr(), line.is_write());
            self.played.bytes[which] += LINE_BYTES;
            asked[which] = true;
        }
        for (which, asked) in asked.into_iter().enumerate() {
            if asked {
                self.call_memory(which, now);
            }
        }
        let state = self.cores[core];
        if state.next == state.end && state.flying == 0 {
            self.end(core, now);
        }
    }

    fn end(&mut self, core: usize, now: Ps) {
        let state = &mut self.cores[core];
        self.played.ops += 1;
        self.played.busy += now - state.began;
        self.played.computing += Ps(self.trace.ops[state.op].cpu_ps);
        self.latency_ps += u128::from((now - state.due).0);
        state.due = self.load.every.map_or(now, |every| state.due + every);
        self.begin(core, now);
    }
}
