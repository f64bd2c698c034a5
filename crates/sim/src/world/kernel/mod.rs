//! Processes in virtual time: inboxes, timers, connections, and the loop that runs the next
//! process. A process is an `async fn`; its `await`s are where it waits for the world. In checking
//! mode it runs on a stack of its own, so that every memory operation inside an engine can suspend
//! it as well; in performance mode its future is polled directly, unless its own code blocks.
//!
//! Order: events come out of the wheel by time, source and the source's own count, and only the
//! loop here takes them; so a run is a function of its configuration and its seed.

mod conn;
mod ctx;
mod event_loop;
mod net;

pub use conn::ControlCosts;
pub use event_loop::{Loop, block_on};

use crate::check::Violation;
use crate::mem::{Cpu, Violations};
use crate::net::{Net, NetEvent, NodeId};
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use crate::wheel::Wheel;
use conn::Conn;
use net::{Exposed, RegisteredBuffers, Routes};
use rackpool_core::runtime::daemon::TargetCommand;
use rackpool_core::seam::{FabricEvent, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// A process of the run, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(pub u32);

/// A host: processors with processes that share memory and a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub u32);

/// A connection of bytes in order (a control socket, a link to the master), never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// What a process finds in its inbox.
#[derive(Debug)]
pub enum Input {
    Opened(ConnId),
    Message(ConnId, Vec<u8>),
    /// The other end of a connection closed or died; everything sent before came before.
    Closed(ConnId),
    Fabric(FabricEvent),
    /// An event of the endpoint that others connect to, from the thread that serves it.
    Served(FabricEvent),
    /// A one-sided operation is to be executed by the fabric thread.
    Execute(u32),
    /// What the fabric thread is to do with its connections.
    Target(TargetCommand),
    /// A client rang for this slot.
    Bell(u32),
    /// A reply may be in the ring of link number so and so.
    Ring(u32),
    /// Whatever the cluster wants its process to do next.
    Tell(u64),
}

/// What the loop takes from the wheel. Tags are words, so that copies are of whole words.
#[derive(Clone, Copy)]
#[repr(u32)]
enum KernelEvent {
    Run(ProcessId),
    Arrive(ProcessId, u32),
    Net(NetEvent),
    Heal(HostId, HostId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    /// Until this moment by its own wish or its processor's.
    Sleeping(Ps),
    Waiting,
    Running,
    Dead,
}

/// A process as the loop knows it.
struct Process {
    name: String,
    host: HostId,
    status: Status,
    /// Stopped, or busy with what it began (performance mode), until then.
    paused_until: Ps,
    /// Sleeps: its inbox does not wake it.
    deaf: bool,
    /// The earliest `Run` in the wheel that a deadline or a sleep asked for.
    timer: Option<Ps>,
    /// The same for what does without deadlines (performance mode).
    wake: Option<Ps>,
    /// How long after an input came an idle process sees it.
    notice: Ps,
    /// Has a stack of its own also where others do without.
    has_stack: bool,
    /// Numbers of inputs, in the order in which they came.
    inbox: VecDeque<u32>,
    cpu: Rc<Cpu>,
}

/// Processor time of calls into the world, in performance mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallCosts {
    pub post_request: Ps,
    /// Ringing a doorbell: busy while the card hears of it.
    pub post_doorbell: Ps,
    /// Sending a control message: busy while it is on its way.
    pub send: Ps,
    pub receive: Ps,
}

/// Marks the ids of work requests that carry messages; their buffer is below.
pub(super) const SEND_ID: u64 = 0xffff_ffff << 32;

type Body = Pin<Box<dyn Future<Output = ()>>>;

/// State that processes and the loop share. One run, one thread.
pub struct Kernel {
    now: Cell<Ps>,
    wheel: RefCell<Wheel<KernelEvent>>,
    processes: RefCell<Vec<Process>>,
    inputs: RefCell<Slab<Input>>,
    /// Inputs of this moment, which need no event (performance mode).
    at_once: RefCell<VecDeque<(ProcessId, u32)>>,
    conns: RefCell<Vec<Conn>>,
    /// When the last input of one process arrives at another of its host: they stay in order.
    rings: RefCell<BTreeMap<(ProcessId, ProcessId), Ps>>,
    spawned: RefCell<Vec<(ProcessId, Body)>>,
    killed: RefCell<Vec<ProcessId>>,
    /// One of the two is not empty.
    unsettled: Cell<bool>,
    pub net: RefCell<Net>,
    /// Owner of each endpoint and executor of each node.
    routes: RefCell<Routes>,
    clocks: RefCell<Vec<Clock>>,
    nodes: RefCell<Vec<NodeId>>,
    buffers: RefCell<Vec<RegisteredBuffers>>,
    /// What of them others may write into, and how often that was allowed.
    exposures: RefCell<Vec<Exposed>>,
    exposures_made: Cell<u64>,
    /// Hosts that cannot speak to each other now, as ordered pairs.
    cuts: RefCell<BTreeMap<(HostId, HostId), Ps>>,
    costs: ControlCosts,
    calls: Cell<CallCosts>,
    rng: RefCell<Rng>,
    /// Vectors for buffers, used again.
    spares: RefCell<Vec<Vec<u8>>>,
    memories: Cell<u32>,
    trace: Cell<u64>,
    events: Cell<u64>,
    /// Events after which the run goes round in circles.
    events_max: Cell<u64>,
    violation: RefCell<Option<Violation>>,
    /// What simulated memory objects to.
    violations: Rc<Violations>,
    /// Whether delays are drawn at random (checking mode).
    jitter: bool,
    /// How often the end of a connection between hosts is lost at first, in parts per million.
    ends_lost_ppm: Cell<u32>,
    /// The last events, for a user that replays a seed.
    pub log: RefCell<Option<Vec<String>>>,
}

/// A host's clock: `real · (1 + drift) + offset`.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Parts per million, at most 1000 either way.
    pub drift_ppm: i64,
    /// Nanoseconds at the start.
    pub offset_ns: u64,
}

struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    fn put(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.items[index as usize] = Some(item);
                index
            }
            None => {
                self.items.push(Some(item));
                self.items.len() as u32 - 1
            }
        }
    }

    fn take(&mut self, index: u32) -> T {
        self.free.push(index);
        self.items[index as usize].take().expect("an input is taken once")
    }
}

/// What a process knows of itself.
#[derive(Clone)]
pub struct Ctx {
    pub kernel: Rc<Kernel>,
    pub id: ProcessId,
    pub cpu: Rc<Cpu>,
    pub host: HostId,
}

impl Kernel {
    /// An empty world at time zero.
    pub fn new(seed: u64, net: Net, costs: ControlCosts, jitter: bool) -> Rc<Kernel> {
        Rc::new(Kernel {
            now: Cell::new(Ps::ZERO),
            wheel: RefCell::new(Wheel::new()),
            processes: RefCell::default(),
            inputs: RefCell::new(Slab { items: Vec::new(), free: Vec::new() }),
            at_once: RefCell::default(),
            conns: RefCell::default(),
            rings: RefCell::default(),
            spawned: RefCell::default(),
            killed: RefCell::default(),
            unsettled: Cell::new(false),
            net: RefCell::new(net),
            routes: RefCell::default(),
            clocks: RefCell::default(),
            nodes: RefCell::default(),
            buffers: RefCell::default(),
            exposures: RefCell::default(),
            exposures_made: Cell::default(),
            cuts: RefCell::default(),
            costs,
            calls: Cell::default(),
            rng: RefCell::new(Rng::new(seed, Purpose::Network, 1)),
            spares: RefCell::default(),
            memories: Cell::new(0),
            trace: Cell::new(seed),
            events: Cell::new(0),
            events_max: Cell::new(u64::MAX),
            violation: RefCell::default(),
            violations: Violations::new(),
            jitter,
            ends_lost_ppm: Cell::new(0),
            log: RefCell::default(),
        })
    }

    /// The number of a new piece of memory.
    pub fn new_memory(&self) -> u32 {
        self.memories.set(self.memories.get() + 1);
        self.memories.get()
    }

    /// A host with its clock.
    pub fn add_host(&self, clock: Clock) -> HostId {
        self.clocks.borrow_mut().push(clock);
        self.nodes.borrow_mut().push(self.net.borrow_mut().add_node());
        HostId(self.clocks.borrow().len() as u32 - 1)
    }

    pub fn node_of(&self, host: HostId) -> NodeId {
        self.nodes.borrow()[host.0 as usize]
    }

    /// The time of the event that is handled now.
    pub fn now(&self) -> Ps {
        self.now.get()
    }

    /// A host's monotonic clock at a moment.
    pub fn clock_ns(&self, host: HostId, at: Ps) -> Nanos {
        let Clock { drift_ppm, offset_ns } = self.clocks.borrow()[host.0 as usize];
        let ns = at.as_ns();
        let drift = i128::from(ns) * i128::from(drift_ppm) / 1_000_000;
        offset_ns + (i128::from(ns) + drift) as u64
    }

    pub fn events(&self) -> u64 {
        self.events.get()
    }

    /// After so many events the run ends with a failure of `live`. Without a call: no bound.
    pub fn set_events_max(&self, events: u64) {
        self.events_max.set(events);
    }

    /// The run may have so many events more.
    pub fn add_events_max(&self, events: u64) {
        self.events_max.set(self.events_max.get().saturating_add(events));
    }

    /// The hash of everything that happened.
    pub fn trace_hash(&self) -> u64 {
        self.trace.get()
    }

    /// Mixes what happened into the trace hash.
    pub fn note(&self, word: u64) {
        let mixed = (self.trace.get() ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.trace.set(mixed.rotate_left(29) ^ (mixed >> 32));
    }

    /// A line for a user that replays this seed.
    pub fn say(&self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut *self.log.borrow_mut() {
            log.push(format!("{:>16} {}", self.now.get().0, line()));
        }
    }

    /// A check failed: the run ends with the first one.
    pub fn fail(&self, checker: &'static str, text: String) {
        self.say(|| format!("VIOLATION {checker}: {text}"));
        let mut violation = self.violation.borrow_mut();
        violation.get_or_insert(Violation { checker, text, at: self.now.get() });
    }

    /// Where simulated memory says what it objects to.
    pub fn violations(&self) -> &Rc<Violations> {
        &self.violations
    }

    pub fn violation(&self) -> Option<Violation> {
        self.violation.borrow().clone()
    }

    /// Starts a process on a host.
    pub fn spawn<F: Future<Output = ()> + 'static>(
        self: &Rc<Self>,
        name: String,
        host: HostId,
        cpu: Rc<Cpu>,
        main: impl FnOnce(Ctx) -> F,
    ) -> ProcessId {
        let id = ProcessId(self.processes.borrow().len() as u32);
        self.say(|| format!("{name} starts as process {}", id.0));
        self.processes.borrow_mut().push(Process {
            name,
            host,
            status: Status::Waiting,
            paused_until: Ps::ZERO,
            deaf: false,
            timer: None,
            wake: None,
            notice: Ps::ZERO,
            has_stack: false,
            inbox: VecDeque::new(),
            cpu: cpu.clone(),
        });
        let ctx = Ctx { kernel: self.clone(), id, cpu, host };
        self.spawned.borrow_mut().push((id, Box::pin(main(ctx))));
        self.unsettled.set(true);
        self.run_at(id, self.now.get());
        id
    }

    /// Ends a process at whatever it is doing. Its memory operations stop; its connections close.
    pub fn kill(&self, id: ProcessId) {
        if self.is_alive(id) {
            self.say(|| format!("{} is killed", self.processes.borrow()[id.0 as usize].name));
            self.processes.borrow_mut()[id.0 as usize].status = Status::Dead;
            self.killed.borrow_mut().push(id);
            self.unsettled.set(true);
        }
    }

    /// Stops a process for a while (SIGSTOP, a paused host).
    pub fn pause(&self, id: ProcessId, time: Ps) {
        let until = self.now.get() + time;
        let mut processes = self.processes.borrow_mut();
        let process = &mut processes[id.0 as usize];
        process.paused_until = process.paused_until.max(until);
        drop(processes);
        self.run_at(id, until);
    }

    pub fn is_alive(&self, id: ProcessId) -> bool {
        self.processes.borrow()[id.0 as usize].status != Status::Dead
    }

    /// What calls into the world cost from now on.
    pub fn set_call_costs(&self, costs: CallCosts) {
        self.calls.set(costs);
    }

    /// How long after an input came this process sees it, if it was idle: half a round of its
    /// poll loop.
    pub fn set_notice(&self, id: ProcessId, notice: Ps) {
        self.processes.borrow_mut()[id.0 as usize].notice = notice;
    }

    /// Gives a process that has not begun yet a stack of its own, so that its code can block.
    pub fn give_stack(&self, id: ProcessId) {
        self.processes.borrow_mut()[id.0 as usize].has_stack = true;
    }

    /// Whether a process was interrupted between two of its memory operations.
    pub fn is_midway(&self, id: ProcessId) -> bool {
        matches!(self.processes.borrow()[id.0 as usize].status, Status::Sleeping(_))
    }

    pub fn cpu(&self, id: ProcessId) -> Rc<Cpu> {
        self.processes.borrow()[id.0 as usize].cpu.clone()
    }

    /// Processors of the living processes of a host.
    pub fn drain_host(&self, host: HostId) {
        let processes = self.processes.borrow();
        let living = processes.iter().filter(|p| p.host == host && p.status != Status::Dead);
        living.for_each(|process| process.cpu.drain());
    }

    /// As [`Kernel::drain_host`], of all hosts: racks that map each other are on one machine.
    pub fn drain_all(&self) {
        let processes = self.processes.borrow();
        let living = processes.iter().filter(|p| p.status != Status::Dead);
        living.for_each(|process| process.cpu.drain());
    }

    /// Hands an input to a process at a moment.
    pub fn post(&self, to: ProcessId, at: Ps, input: Input) {
        let index = self.inputs.borrow_mut().put(input);
        if !self.jitter && at <= self.now.get() {
            // No event can come before it.
            return self.at_once.borrow_mut().push_back((to, index));
        }
        self.wheel.borrow_mut().push(at.max(self.now.get()), to.0, KernelEvent::Arrive(to, index));
    }

    fn take_at_once(&self) -> Option<(ProcessId, u32)> {
        self.at_once.borrow_mut().pop_front()
    }

    fn run_at(&self, id: ProcessId, at: Ps) {
        let mut processes = self.processes.borrow_mut();
        let process = &mut processes[id.0 as usize];
        let at = at.max(self.now.get());
        if process.timer.is_none_or(|timer| timer > at) {
            process.timer = Some(at);
            self.wheel.borrow_mut().push(at, id.0, KernelEvent::Run(id));
        }
    }

    /// Lets a process run at a moment that is no deadline. In performance mode its deadline, if it
    /// has one, stays in the wheel: otherwise each wait would leave one there.
    fn wake_at(&self, id: ProcessId, at: Ps) {
        if self.jitter {
            return self.run_at(id, at);
        }
        let mut processes = self.processes.borrow_mut();
        let process = &mut processes[id.0 as usize];
        let at = at.max(self.now.get());
        if process.wake.is_none_or(|wake| wake > at) {
            process.wake = Some(at);
            self.wheel.borrow_mut().push(at, id.0, KernelEvent::Run(id));
        }
    }

    /// How often the end of a connection between hosts is lost at first and said again.
    pub fn set_ends_lost_ppm(&self, ppm: u32) {
        self.ends_lost_ppm.set(ppm);
    }

    /// A delay of about `base`.
    fn about(&self, base: Ps) -> Ps {
        if !self.jitter {
            return base;
        }
        let mut rng = self.rng.borrow_mut();
        let spread = if rng.chance_ppm(20_000) { 20 } else { 2 };
        Ps(rng.between(base.0 / 2, base.0 * spread))
    }

    /// From one core to another.
    pub fn line_delay(&self) -> Ps {
        self.about(self.costs.line)
    }

    /// A host's clock jumps ahead.
    pub fn jump_clock(&self, host: HostId, ns: u64) {
        self.clocks.borrow_mut()[host.0 as usize].offset_ns += ns;
    }

    pub fn host_of(&self, id: ProcessId) -> HostId {
        self.processes.borrow()[id.0 as usize].host
    }
}
