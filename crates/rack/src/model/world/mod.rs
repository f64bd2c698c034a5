//! A rack at work: nodes take accesses from their sources, pages are mapped at their first touch,
//! lines come from the nodes' own memory or over the interconnect from the pools.
//!
//! ```text
//!  source → page → own frame → channel → over
//!                → chunk of a pool: map → packet → switch → pool's channel → packet → over
//! ```
//!
//! A run is a function of its configuration and its sources: one thread, one queue of events,
//! virtual time. What is not in the queue is in `Flight`s (accesses) and `Move`s (pages).

mod access;
mod checkpoint;
mod moves;
mod prefetch;
#[cfg(test)]
mod tests;

use super::config::{Config, ConfigError, Costs, Injection};
use super::manager::Manager;
use super::media::Media;
use super::memory::{Done, Memory};
use super::node::{Buffered, Controller, Frames, LineState, Node};
use super::pages::{PAGE_BYTES, Pages};
use super::stats::{PoolStats, Tails, WINDOWS_MAX, WorkloadStats};
use crate::net::config::PacketKind;
use crate::net::{Endpoint, NetCounts, NetEvent, Network, Packet, Schedule, Topology};
use crate::source::Source;
pub use checkpoint::CheckpointError;
use moves::Move;
use rackpool_sim::time::Ps;
use rackpool_sim::wheel::Wheel;
use serde::{Deserialize, Serialize};

/// A run that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// All memory is given out. Give the rack more, or its nodes less to do.
    #[error(
        "node {node} touched a new page at {at} and no memory is left: its own {local_mib} MiB \
         and all pools are full"
    )]
    NoMemory { node: u16, at: Ps, local_mib: u64 },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Event {
    Net(NetEvent),
    Issue(u16),
    /// A flight's page fault is over.
    Begin(u32),
    /// A flight found its line in the controller's buffer.
    Hit(u32),
    /// The memory of an endpoint wants to be called.
    Memory(u16),
    /// A page of another rack is asked for, or sent.
    Page(u32),
}

struct Queue(Wheel<Event>);

impl Queue {
    #[inline]
    fn push(&mut self, at: Ps, event: Event) {
        self.0.push(at, 0, event);
    }
}

impl Schedule for Queue {
    #[inline]
    fn at(&mut self, at: Ps, event: NetEvent) {
        self.push(at, Event::Net(event));
    }
}

/// What a flight is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Purpose {
    Access,
    /// For this cell of the node's buffer.
    Prefetch(u32),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Flight {
    purpose: Purpose,
    node: u16,
    pool: u16,
    page: u32,
    line: u8,
    write: bool,
    addr: u64,
    /// When its memory was asked for: after faults.
    began: Ps,
    /// When it came to the pool; then how long it was there.
    at_pool: Ps,
}

/// Things that are numbered, with free numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Slab<T> {
    all: Vec<T>,
    free: Vec<u32>,
}

impl<T: Copy> Slab<T> {
    const EMPTY: Slab<T> = Slab { all: Vec::new(), free: Vec::new() };

    #[inline]
    fn add(&mut self, one: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.all[index as usize] = one;
            return index;
        }
        self.all.push(one);
        self.all.len() as u32 - 1
    }

    #[inline]
    fn take(&mut self, index: u32) -> T {
        self.free.push(index);
        self.all[index as usize]
    }

    fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }
}

/// Ids that memories hand back: a flight, a line of a page that moves, or a write without waiters.
const LINE_OF_MOVE: u64 = 1 << 32;
const POSTED_WRITE: u64 = 1 << 33;

/// What everything hangs on. Times that a configuration gives in other units.
#[derive(Clone, Copy, Debug)]
struct Times {
    costs: Costs,
    hot_window: Ps,
    hit: Ps,
    end: Ps,
}

/// A rack. See the module.
pub struct World {
    config: Config,
    times: Times,
    sources: Vec<Box<dyn Source>>,
    queue: Queue,
    state: State,
    done: Vec<Done>,
    taken: Vec<u64>,
}

/// Everything that a checkpoint holds, but the queue of events.
#[derive(Serialize, Deserialize)]
struct State {
    net: Network,
    memories: Vec<Memory<Media>>,
    nodes: Vec<Node>,
    manager: Manager,
    /// Until when the manager is busy.
    manager_busy: Ps,
    flights: Slab<Flight>,
    moves: Slab<Move>,
    pools: PoolStats,
    workloads: Vec<WorkloadStats>,
    tails: Tails,
    /// Of the series, see [`World::window`].
    window: Ps,
    over: u64,
    events: u64,
    /// When the last event was: a queue that a checkpoint made anew does not know it.
    now: Ps,
}

/// What a run has seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub workloads: Vec<WorkloadStats>,
    pub pools: PoolStats,
    pub tails: Tails,
    pub net: NetCounts,
    /// Chunks given out of each pool at the end, and those that came back.
    pub chunks: Vec<u32>,
    pub chunks_returned: u64,
    /// The pools in the order in which they were chosen.
    pub choices: Vec<u16>,
    /// The longest queue before a pool's channel.
    pub pool_waiting_max: u64,
    pub accesses: u64,
    pub events: u64,
    /// A window of the series: the configuration's, or twice as long as often as it took.
    pub window: Ps,
    /// Virtual time at the end.
    pub end: Ps,
}

fn memories(config: &Config, nodes: usize) -> Result<Vec<Memory<Media>>, ConfigError> {
    let [local, pool] = config.memories();
    let of = |name: &str, field, channels: u16| -> Result<Memory<Media>, ConfigError> {
        let channels = (0..channels).map(|_| Media::new(name, field));
        Ok(Memory::new(channels.collect::<Result<_, _>>()?))
    };
    let locals = (0..nodes).map(|_| of(local, "local_memory", config.local_channels));
    let pools = (0..config.pools).map(|_| of(pool, "pool_memory", config.pool_channels));
    locals.chain(pools).collect()
}

fn times(config: &Config) -> Times {
    Times {
        costs: config.costs(),
        hot_window: Ps::us(config.hot.map_or(1, |hot| hot.window_us.into())),
        hit: Ps::ns(config.prefetch.map_or(0, |prefetch| prefetch.hit_ns)),
        end: config.end_ms.map_or(Ps(u64::MAX), Ps::ms),
    }
}

impl World {
    /// A rack before its first access. `sources` are the nodes', in the order of the workloads.
    ///
    /// # Panics
    /// If there is not one source for each node.
    pub fn new(config: &Config, sources: Vec<Box<dyn Source>>) -> Result<World, ConfigError> {
        config.check()?;
        let nodes = usize::from(config.nodes());
        assert_eq!(sources.len(), nodes, "a source for each node");
        let rack_of = |index: usize| (index % usize::from(config.racks)) as u16;
        let racks = (0..nodes).chain(0..usize::from(config.pools)).map(rack_of);
        let topology = Topology { rack_of: racks.collect(), racks: config.racks };
        let chunk_bytes = config.chunk_kib << 10;
        let pools: Vec<(u16, u64)> =
            (0..usize::from(config.pools)).map(|p| (rack_of(p), config.pool_mib << 20)).collect();
        let mut world = World {
            times: times(config),
            sources,
            queue: Queue(Wheel::new()),
            state: State {
                net: Network::new(config.fabric(), &topology),
                memories: memories(config, nodes)?,
                nodes: Vec::new(),
                manager: Manager::new(config.placement.choice, chunk_bytes, &pools, config.seed),
                manager_busy: Ps::ZERO,
                flights: Slab::EMPTY,
                moves: Slab::EMPTY,
                pools: PoolStats { accesses: Vec::new(), pages: vec![0; pools.len()] },
                workloads: Vec::new(),
                tails: Tails::default(),
                window: Ps::us(config.window_us),
                over: 0,
                events: 0,
                now: Ps::ZERO,
            },
            config: config.clone(),
            done: Vec::new(),
            taken: Vec::new(),
        };
        for (number, workload) in config.workloads.iter().enumerate() {
            world.state.workloads.push(WorkloadStats::new(&workload.name));
            for turn in 0..workload.nodes {
                let shift = Ps::us(workload.stagger_us * u64::from(turn));
                world.add_node(number as u16, rack_of(world.state.nodes.len()), shift);
            }
        }
        Ok(world)
    }

    fn add_node(&mut self, workload: u16, rack: u16, shift: Ps) {
        let empty = Buffered { line: u64::MAX, state: LineState::Empty };
        let lines = self.config.prefetch.map_or(0, |prefetch| prefetch.buffer_lines as usize);
        let index = self.state.nodes.len();
        self.state.nodes.push(Node {
            workload,
            rack,
            pages: Pages::default(),
            frames: Frames::new(self.config.local_mib << 20),
            controller: Controller::new(self.config.chunk_pages()),
            buffer: vec![empty; lines],
            is_others_turn: false,
            is_exhausted: false,
            next: None,
            taken: 0,
            flying: 0,
            moves: 0,
            shift,
            stalled: None,
            is_released: false,
        });
        self.fetch(index, Ps::ZERO);
    }

    /// Takes up to so many events; whether all is over.
    pub fn run(&mut self, events_max: u64) -> Result<bool, RunError> {
        for _ in 0..events_max {
            let Some((now, _, event)) = self.queue.0.pop() else {
                return Ok(true);
            };
            self.state.events += 1;
            self.state.now = now;
            match event {
                Event::Net(NetEvent::Deliver(packet)) => self.deliver(now, packet),
                Event::Net(event) => self.state.net.on(now, event, &mut self.queue),
                Event::Issue(node) => self.issue(now, usize::from(node))?,
                Event::Begin(flight) => self.begin(now, flight),
                Event::Hit(flight) => self.finish(now, flight),
                Event::Memory(endpoint) => self.memory(now, usize::from(endpoint)),
                Event::Page(number) => self.page_asked(now, number),
            }
        }
        Ok(false)
    }

    /// Accesses that are over, and how many there will be at most.
    pub fn progress(&self) -> (u64, u64) {
        (self.state.over, self.config.accesses * self.state.nodes.len() as u64)
    }

    /// What was seen so far; all of it once the run is over.
    pub fn outcome(&mut self) -> Outcome {
        let state = &mut self.state;
        let pools = &state.memories[state.nodes.len()..];
        Outcome {
            pool_waiting_max: pools.iter().map(|pool| pool.waiting_max).max().unwrap_or(0),
            workloads: state.workloads.clone(),
            pools: state.pools.clone(),
            tails: state.tails.clone(),
            net: state.net.counts(),
            chunks: state.manager.used(),
            chunks_returned: state.manager.returned,
            choices: state.manager.choices().to_vec(),
            accesses: state.over,
            events: state.events,
            window: state.window,
            end: state.now,
        }
    }

    /// The window of a time. Where there would be too many, all become twice as long.
    #[inline]
    fn window(&mut self, now: Ps) -> usize {
        let state = &mut self.state;
        while now.0 / state.window.0 >= WINDOWS_MAX {
            state.window = state.window.times(2);
            state.pools.widen();
            state.workloads.iter_mut().for_each(WorkloadStats::widen);
        }
        (now.0 / state.window.0) as usize
    }

    fn pool_endpoint(&self, pool: u16) -> Endpoint {
        Endpoint(self.state.nodes.len() as u16 + pool)
    }

    /// A packet is at its end.
    fn deliver(&mut self, now: Ps, packet: Packet) {
        match packet.kind {
            PacketKind::ReadLine | PacketKind::WriteLine => self.line_at_pool(now, packet),
            PacketKind::LineData | PacketKind::LineWritten => {
                self.state.net.taken(now, &packet, &mut self.queue);
                self.finish(now, packet.tag);
            }
            PacketKind::ReadPage | PacketKind::PageData | PacketKind::PageWritten => {
                self.state.net.taken(now, &packet, &mut self.queue);
                self.page_packet(now, packet);
            }
        }
    }

    /// Hands an access to a memory; whether a channel has it.
    #[inline]
    fn submit(&mut self, now: Ps, endpoint: usize, id: u64, addr: u64, write: bool) -> bool {
        let memory = &mut self.state.memories[endpoint];
        let is_taken = memory.submit(now, id, addr, write);
        if let Some(at) = memory.wants(now) {
            self.queue.push(at, Event::Memory(endpoint as u16));
        }
        is_taken
    }

    /// A memory is called at the time that it asked for.
    fn memory(&mut self, now: Ps, endpoint: usize) {
        let (mut done, mut taken) =
            (std::mem::take(&mut self.done), std::mem::take(&mut self.taken));
        if self.state.memories[endpoint].call(now, &mut done, &mut taken) {
            if endpoint >= self.state.nodes.len() {
                self.pool_moved(now, &done, &taken);
            } else {
                self.node_moved(now, &done);
            }
            if let Some(at) = self.state.memories[endpoint].wants(now) {
                self.queue.push(at, Event::Memory(endpoint as u16));
            }
            done.clear();
            taken.clear();
        }
        (self.done, self.taken) = (done, taken);
    }

    fn node_moved(&mut self, now: Ps, done: &[Done]) {
        for Done { id, at } in done {
            match *id {
                POSTED_WRITE => {}
                id if id & LINE_OF_MOVE != 0 => self.line_of_move(now, id as u32),
                id => self.finish(*at, id as u32),
            }
        }
    }

    /// How many accesses, pages and packets are under way. None is lost: at a run's end that is 0.
    pub fn under_way(&mut self) -> usize {
        let counts = self.state.net.counts();
        let packets = (counts.sent - counts.delivered) as usize;
        let waiting: usize = self.state.memories.iter().map(Memory::waiting).sum();
        self.state.flights.len() + self.state.moves.len() + packets + waiting
    }

    /// Frame addresses are the node's own.
    fn frame_addr(frame: u32, line: u8) -> u64 {
        u64::from(frame) * PAGE_BYTES + u64::from(line) * 64
    }
}
