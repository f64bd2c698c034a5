//! A trace on devices, in virtual time: cores that take one operation after the other, as soon as
//! the one before is over or at a pace, and wait for the lines that they read.
//!
//! In: a [`Trace`], where its lines lie, how many cores. Out: operations a second, their mean time,
//! and what each memory carried, from when a part of the operations is over: at first all cores
//! begin at once and nothing is long under way. The channels with their queues are the rack's.

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
    /// The lanes of near memory, then those of the far one, each called by itself: a call of all
    /// of them for each line would take most of a run.
    fn lanes(&self) -> Vec<Memory<Media>> {
        let of = |(name, lanes): (&str, usize)| {
            let medium = Media::new(name, "memory").expect("a medium of the rack's");
            vec![Memory::new(vec![medium]); lanes]
        };
        [self.near, self.far].into_iter().flat_map(of).collect()
    }

    /// The lane of a line, and its address there.
    fn lane_of(&self, is_far: bool, addr: u64) -> (usize, u64) {
        let (first, count) = if is_far { (self.near.1, self.far.1) } else { (0, self.near.1) };
        let piece = addr / INTERLEAVE_BYTES;
        let within = piece / count as u64 * INTERLEAVE_BYTES + addr % INTERLEAVE_BYTES;
        (first + (piece % count as u64) as usize, within)
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

#[derive(Clone, Copy, Debug, Default)]
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
    Lane(usize),
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
/// Neighbouring pieces of this size are in different lanes, as in the rack's memories.
const INTERLEAVE_BYTES: u64 = 256;
/// One part in so many of the operations is over before anything is counted.
const RUN_IN_PARTS: u64 = 4;

struct Replay<'a> {
    trace: &'a Trace,
    place: Place,
    load: Load,
    devices: Devices,
    lanes: Vec<Memory<Media>>,
    /// Lanes that were asked for a line since they were last called.
    asked: Vec<usize>,
    cores: Vec<Core>,
    /// The next operation of each engine.
    next_ops: [usize; ENGINES],
    events: BinaryHeap<Reverse<(Ps, Event)>>,
    /// Operations that are still to be over until what happens counts.
    run_in: u64,
    counted_from: Ps,
    played: Played,
    latency_ps: u128,
    /// An engine has no operation left.
    is_over: bool,
}

/// Runs the trace until an engine has no operation left.
pub fn play(trace: &Trace, devices: &Devices, place: Place, load: Load) -> Played {
    let mut replay = Replay {
        trace,
        place,
        load,
        devices: *devices,
        lanes: devices.lanes(),
        asked: Vec::new(),
        cores: vec![Core::default(); load.cores],
        next_ops: std::array::from_fn(|engine| engine),
        events: BinaryHeap::new(),
        run_in: trace.ops.len() as u64 / RUN_IN_PARTS,
        counted_from: Ps::ZERO,
        played: Played::default(),
        latency_ps: 0,
        is_over: false,
    };
    for core in 0..load.cores {
        // Not all at once.
        let gap = load.every.map_or(1_000, |every| every.0 / load.cores as u64);
        replay.cores[core].due = Ps(gap * core as u64);
        replay.begin(core, Ps::ZERO);
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
                Event::Lane(lane) => {
                    if self.lanes[lane].call(now, &mut done, &mut taken) {
                        let read = done.drain(..).filter(|done| done.id != POSTED);
                        self.events.extend(read.map(|done| {
                            let core = done.id as usize;
                            Reverse((done.at.max(now) + UNCORE, Event::Arrived(core)))
                        }));
                        taken.clear();
                        self.call_lane(lane, now);
                    }
                }
                Event::Arrived(core) => {
                    self.cores[core].flying -= 1;
                    self.go_on(core, now);
                }
                Event::Asks(core) => self.go_on(core, now),
            }
            if self.is_over {
                self.played.took = now - self.counted_from;
                break;
            }
        }
        self.played
    }

    /// Has a lane called when it wants to be.
    fn call_lane(&mut self, lane: usize, now: Ps) {
        if let Some(at) = self.lanes[lane].wants(now) {
            self.events.push(Reverse((at, Event::Lane(lane))));
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
        loop {
            let state = &mut self.cores[core];
            let Some(line) = self.trace.lines[..state.end].get(state.next).copied() else { break };
            let is_full = !line.is_write() && state.flying == LINES_MAX;
            if is_full || (line.waits() && state.flying > 0) {
                break;
            }
            state.next += 1;
            state.flying += usize::from(!line.is_write());
            let is_far = self.place.is_far(line);
            let id = if line.is_write() { POSTED } else { core as u64 };
            let (lane, addr) = self.devices.lane_of(is_far, line.addr());
            self.lanes[lane].submit(now, id, addr, line.is_write());
            self.played.bytes[usize::from(is_far)] += LINE_BYTES;
            if !self.asked.contains(&lane) {
                self.asked.push(lane);
            }
        }
        while let Some(lane) = self.asked.pop() {
            self.call_lane(lane, now);
        }
        let state = self.cores[core];
        if state.next == state.end && state.flying == 0 {
            self.end(core, now);
        }
    }

    fn end(&mut self, core: usize, now: Ps) {
        let state = &mut self.cores[core];
        if self.run_in > 0 {
            self.run_in -= 1;
            (self.counted_from, self.played) = (now, Played::default());
        } else {
            self.played.ops += 1;
            self.played.busy += now - state.began;
            self.played.computing += Ps(self.trace.ops[state.op].cpu_ps);
            self.latency_ps += u128::from((now - state.due).0);
        }
        state.due = self.load.every.map_or(now, |every| state.due + every);
        self.begin(core, now);
    }
}
