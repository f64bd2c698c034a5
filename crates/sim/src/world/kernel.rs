//! Processes in virtual time: inboxes, timers, connections, and the loop that runs whoever is
//! next. A process is an `async fn`; its `await`s are where it waits for the world. In checking
//! mode it runs on a stack of its own, so that every memory operation inside an engine can suspend
//! it as well; in performance mode its future is polled directly.
//!
//! Order: events come out of the wheel by time, source and the source's own count, and only the
//! loop here takes them; so a run is a function of its configuration and its seed.

use crate::check::Violation;
use crate::coro::{Coroutine, Order, Progress, Wait};
use crate::mem::{Cpu, Violations};
use crate::net::{Connection, Down, EndpointId, Executed, Net, NetEvent, NodeId, Sink};
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use crate::wheel::Wheel;
use rackpool_core::daemon::Act;
use rackpool_core::seam::{BufId, FabricEvent, Nanos, PeerId, PostError, Sge, Verb, WorkRequest};
use rackpool_core::wire::{ControlHello, ControlReply, MasterReply, MasterRequest};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A process of the run, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(pub u32);

/// A host: processors whose processes share memory and a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub u32);

/// A connection of bytes in order (a control socket, a link to the master), never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// What travels over a connection.
#[derive(Clone, Debug)]
pub enum Message {
    /// A client to its host's daemon.
    Hello(ControlHello),
    /// The daemon's answer.
    Control(ControlReply),
    /// Anybody to the master.
    Call(MasterRequest),
    /// The master's answer.
    Answer(MasterReply),
}

/// What a process finds in its inbox.
#[derive(Debug)]
pub enum Input {
    /// A connection was accepted.
    Opened(ConnId),
    /// A message came.
    Message(ConnId, Box<Message>),
    /// The other end of a connection closed or died; everything sent before came before.
    Closed(ConnId),
    /// The endpoint's event.
    Fabric(FabricEvent),
    /// A one-sided operation is to be executed by the fabric thread.
    Execute(u32),
    /// For the fabric thread.
    Act(Box<Act>),
    /// A client rang for this slot.
    Bell(u32),
    /// A reply may be in the ring of link number so and so.
    Ring(u32),
    /// Whatever the cluster wants its process to do next.
    Tell(u64),
}

/// What the loop takes from the wheel.
#[derive(Clone, Copy)]
enum Event {
    Run(ProcessId),
    Arrive(ProcessId, u32),
    Net(NetEvent),
    Heal(HostId, HostId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    /// Until this moment by its own wish or its processor's.
    Sleeping(Ps),
    /// For its inbox.
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
    /// Numbers of inputs, in the order in which they came.
    inbox: VecDeque<u32>,
    cpu: Rc<Cpu>,
}

struct Conn {
    ends: [ProcessId; 2],
    open: bool,
    /// When the last message of each direction arrives.
    last: [Ps; 2],
}

/// How long control messages take.
#[derive(Clone, Copy, Debug)]
pub struct ControlCosts {
    /// Within a host, one way.
    pub local: Ps,
    /// Between hosts, one way.
    pub remote: Ps,
    /// A line from one core to another: bells and rings.
    pub line: Ps,
}

/// Processor time of calls into the world, in performance mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallCosts {
    /// Writing one work request.
    pub post_request: Ps,
    /// Ringing a doorbell: busy while the card hears of it.
    pub post_doorbell: Ps,
    /// Sending a control message: busy while it is on its way.
    pub send: Ps,
    /// Taking a control message.
    pub receive: Ps,
}

/// Vectors that are kept, and their longest.
const SPARES_MAX: usize = 1024;
const SPARE_BYTES_MAX: usize = 16 << 10;

/// Marks the ids of work requests that carry messages; their buffer is below.
const SEND_ID: u64 = 0xffff_ffff << 32;

type Body = Pin<Box<dyn Future<Output = ()>>>;

enum Runner {
    Stack(Box<Coroutine>),
    Direct(Body),
}

/// State that processes and the loop share. One run, one thread.
pub struct Kernel {
    now: Cell<Ps>,
    wheel: RefCell<Wheel<Event>>,
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
    /// The network.
    pub net: RefCell<Net>,
    /// Owner of each endpoint and executor of each node.
    routes: RefCell<Routes>,
    clocks: RefCell<Vec<Clock>>,
    nodes: RefCell<Vec<NodeId>>,
    /// Registered buffers, by endpoint.
    buffers: RefCell<Vec<Buffers>>,
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
    violation: RefCell<Option<Violation>>,
    /// What simulated memory objects to.
    violations: Rc<Violations>,
    /// Whether delays are drawn at random (checking mode).
    jitter: bool,
    /// The last events, for a person who replays a seed.
    pub log: RefCell<Option<Vec<String>>>,
}

/// Registered buffers of one endpoint. A number is not used again while the network may know it.
#[derive(Default)]
struct Buffers {
    registered: Vec<(u32, Vec<u8>)>,
    next: u32,
}

impl Buffers {
    fn find(&self, number: u32) -> Option<usize> {
        self.registered.iter().position(|(of, _)| *of == number)
    }
}

#[derive(Default)]
struct Routes {
    endpoints: Vec<Option<ProcessId>>,
    executors: Vec<Option<ProcessId>>,
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
    /// The run.
    pub kernel: Rc<Kernel>,
    /// The process.
    pub id: ProcessId,
    /// Its processor.
    pub cpu: Rc<Cpu>,
    /// Its host.
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
            cuts: RefCell::default(),
            costs,
            calls: Cell::default(),
            rng: RefCell::new(Rng::new(seed, Purpose::Network, 1)),
            spares: RefCell::default(),
            memories: Cell::new(0),
            trace: Cell::new(seed),
            events: Cell::new(0),
            violation: RefCell::default(),
            violations: Violations::new(),
            jitter,
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

    /// A host's network card.
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

    /// Events handled.
    pub fn events(&self) -> u64 {
        self.events.get()
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

    /// A line for whoever replays this seed.
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

    /// What failed.
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

    /// Whether a process runs.
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

    /// Whether a process was interrupted between two of its memory operations.
    pub fn is_midway(&self, id: ProcessId) -> bool {
        matches!(self.processes.borrow()[id.0 as usize].status, Status::Sleeping(_))
    }

    /// A process's processor.
    pub fn cpu(&self, id: ProcessId) -> Rc<Cpu> {
        self.processes.borrow()[id.0 as usize].cpu.clone()
    }

    /// Processors of the living processes of a host.
    pub fn drain_host(&self, host: HostId) {
        let processes = self.processes.borrow();
        let living = processes.iter().filter(|p| p.host == host && p.status != Status::Dead);
        living.for_each(|process| process.cpu.drain());
    }

    /// Hands an input to a process at a moment.
    pub fn post(&self, to: ProcessId, at: Ps, input: Input) {
        let index = self.inputs.borrow_mut().put(input);
        if !self.jitter && at <= self.now.get() {
            // No event can come before it.
            return self.at_once.borrow_mut().push_back((to, index));
        }
        self.wheel.borrow_mut().push(at.max(self.now.get()), to.0, Event::Arrive(to, index));
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
            self.wheel.borrow_mut().push(at, id.0, Event::Run(id));
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
            self.wheel.borrow_mut().push(at, id.0, Event::Run(id));
        }
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

    /// One way between two hosts for a control message.
    fn control_delay(&self, from: HostId, to: HostId) -> Ps {
        self.about(if from == to { self.costs.local } else { self.costs.remote })
    }

    /// From one core to another.
    pub fn line_delay(&self) -> Ps {
        self.about(self.costs.line)
    }

    /// Nothing passes from one host to another for a while: control messages wait, packets are
    /// lost.
    pub fn cut_for(&self, from: HostId, to: HostId, time: Ps) {
        let until = self.now.get() + time;
        let mut cuts = self.cuts.borrow_mut();
        let cut = cuts.entry((from, to)).or_insert(until);
        *cut = until.max(*cut);
        self.net.borrow_mut().partition(self.node_of(from), self.node_of(to), true);
        self.wheel.borrow_mut().push(until, u32::MAX - 1, Event::Heal(from, to));
    }

    fn on_heal(&self, from: HostId, to: HostId) {
        let until = self.cuts.borrow().get(&(from, to)).copied();
        if until.is_some_and(|until| until <= self.now.get()) {
            self.cuts.borrow_mut().remove(&(from, to));
            self.net.borrow_mut().partition(self.node_of(from), self.node_of(to), false);
        }
    }

    /// Everybody reaches everybody, and whoever was stopped goes on.
    pub fn heal(&self) {
        self.cuts.borrow_mut().clear();
        self.net.borrow_mut().heal();
        let count = self.processes.borrow().len() as u32;
        for id in (0..count).map(ProcessId).filter(|id| self.is_alive(*id)) {
            self.processes.borrow_mut()[id.0 as usize].paused_until = self.now.get();
            self.run_at(id, self.now.get());
        }
    }

    /// A host's network card takes `factor` times as long for everything.
    pub fn slow(&self, host: HostId, factor: u32) {
        self.net.borrow_mut().slow_node(self.node_of(host), 100 * factor);
    }

    /// A host's clock jumps ahead.
    pub fn jump_clock(&self, host: HostId, ns: u64) {
        self.clocks.borrow_mut()[host.0 as usize].offset_ns += ns;
    }

    /// Registers a buffer of an endpoint.
    pub fn register(&self, endpoint: EndpointId, bytes: Vec<u8>) -> BufId {
        let mut all = self.buffers.borrow_mut();
        let buffers = buffers_of(&mut all, endpoint);
        buffers.next = buffers.next.wrapping_add(1);
        buffers.registered.push((buffers.next, bytes));
        BufId(buffers.next)
    }

    /// Takes a registered buffer back: whatever the network still reads from it is garbage, what
    /// it writes to it is lost.
    pub fn take_buffer(&self, endpoint: EndpointId, buf: BufId) -> Vec<u8> {
        let buffers = &mut self.buffers.borrow_mut()[endpoint.0 as usize];
        let index = buffers.find(buf.0).expect("a buffer is taken once");
        buffers.registered.swap_remove(index).1
    }

    /// An empty vector for a buffer.
    pub fn spare(&self) -> Vec<u8> {
        self.spares.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes a vector back, to be used again.
    pub fn recycle(&self, mut bytes: Vec<u8>) {
        let mut spares = self.spares.borrow_mut();
        if spares.len() < SPARES_MAX && bytes.capacity() <= SPARE_BYTES_MAX {
            bytes.clear();
            spares.push(bytes);
        }
    }

    /// The other end of a connection.
    pub fn other_end(&self, conn: ConnId, me: ProcessId) -> ProcessId {
        let ends = self.conns.borrow()[conn.0 as usize].ends;
        if ends[0] == me { ends[1] } else { ends[0] }
    }

    /// A process's endpoint is gone with it.
    pub fn close_endpoint(&self, endpoint: EndpointId, how: Down) {
        let now = self.now.get();
        self.with_net(|net, wires| net.endpoint_down(now, endpoint, how, wires));
    }

    fn host_of(&self, id: ProcessId) -> HostId {
        self.processes.borrow()[id.0 as usize].host
    }

    fn connect(&self, from: ProcessId, to: ProcessId, at: Ps) -> ConnId {
        let mut conns = self.conns.borrow_mut();
        let id = ConnId(conns.len() as u32);
        conns.push(Conn { ends: [from, to], open: true, last: [at; 2] });
        drop(conns);
        self.deliver(id, from, at, Input::Opened(id));
        id
    }

    /// Sends an input over a connection, in order.
    fn deliver(&self, id: ConnId, from: ProcessId, at: Ps, input: Input) {
        let (to, side, last) = {
            let conns = self.conns.borrow();
            let conn = &conns[id.0 as usize];
            let side = usize::from(conn.ends[0] != from);
            (conn.ends[1 - side], side, conn.last[side])
        };
        let (here, there) = (self.host_of(from), self.host_of(to));
        let held = self.cuts.borrow().get(&(here, there)).copied().unwrap_or(Ps::ZERO);
        let arrival = (at.max(held) + self.control_delay(here, there)).max(last);
        self.conns.borrow_mut()[id.0 as usize].last[side] = arrival;
        self.post(to, arrival, input);
    }

    fn close(&self, id: ConnId, from: ProcessId, at: Ps) {
        let was_open = std::mem::take(&mut self.conns.borrow_mut()[id.0 as usize].open);
        if was_open {
            self.deliver(id, from, at, Input::Closed(id));
        }
    }

    /// Runs `f` on the network, whose wishes go into the wheel.
    pub fn with_net<R>(&self, f: impl FnOnce(&mut Net, &mut Wires<'_>) -> R) -> R {
        f(&mut self.net.borrow_mut(), &mut Wires(self))
    }

    /// Who gets an endpoint's events.
    pub fn route_endpoint(&self, endpoint: EndpointId, to: ProcessId) {
        put(&mut self.routes.borrow_mut().endpoints, endpoint.0 as usize, to);
    }

    /// Who executes what arrives at a node.
    pub fn route_node(&self, node: NodeId, to: ProcessId) {
        put(&mut self.routes.borrow_mut().executors, node.0 as usize, to);
    }
}

fn buffers_of(all: &mut Vec<Buffers>, endpoint: EndpointId) -> &mut Buffers {
    if all.len() <= endpoint.0 as usize {
        all.resize_with(endpoint.0 as usize + 1, Buffers::default);
    }
    &mut all[endpoint.0 as usize]
}

fn put(routes: &mut Vec<Option<ProcessId>>, index: usize, to: ProcessId) {
    if routes.len() <= index {
        routes.resize(index + 1, None);
    }
    routes[index] = Some(to);
}

/// Where the network's wishes go.
pub struct Wires<'a>(&'a Kernel);

impl Sink for Wires<'_> {
    fn schedule(&mut self, at: Ps, event: NetEvent) {
        self.0.wheel.borrow_mut().push(at, u32::MAX, Event::Net(event));
    }

    fn execute(&mut self, at: Ps, target: NodeId, token: u32) {
        let executor = self.0.routes.borrow().executors.get(target.0 as usize).copied().flatten();
        if let Some(to) = executor {
            self.0.post(to, at, Input::Execute(token));
        }
    }

    fn deliver(&mut self, at: Ps, endpoint: EndpointId, event: FabricEvent) {
        let owner = self.0.routes.borrow().endpoints.get(endpoint.0 as usize).copied().flatten();
        if let Some(to) = owner {
            self.0.post(to, at, Input::Fabric(event));
        }
    }

    fn read_local(&mut self, endpoint: EndpointId, pieces: &[Sge], to: &mut Vec<u8>) {
        let mut buffers = self.0.buffers.borrow_mut();
        let buffers = buffers_of(&mut buffers, endpoint);
        for Sge { buf, offset, bytes } in pieces {
            match buffers.find(buf.0).map(|index| &buffers.registered[index].1) {
                Some(from) => {
                    to.extend_from_slice(&from[*offset as usize..(offset + bytes) as usize]);
                }
                // Its owner uses it for something else by now.
                None => to.resize(to.len() + *bytes as usize, 0xdb),
            }
        }
    }

    fn write_local(&mut self, endpoint: EndpointId, pieces: &[Sge], mut from: &[u8]) {
        let mut buffers = self.0.buffers.borrow_mut();
        let buffers = buffers_of(&mut buffers, endpoint);
        for Sge { buf, offset, bytes } in pieces {
            let (here, rest) = from.split_at((*bytes as usize).min(from.len()));
            if let Some(index) = buffers.find(buf.0) {
                let to = &mut buffers.registered[index].1;
                to[*offset as usize..][..here.len()].copy_from_slice(here);
            }
            from = rest;
        }
    }

    fn revoked(&mut self, _at: Ps, _node: NodeId, _cookie: u64) {}
}

impl Ctx {
    /// The moment at which this process is.
    pub fn now(&self) -> Ps {
        self.kernel.now.get() + self.cpu.cost()
    }

    /// The host's clock, which the engines are handed.
    pub fn clock_ns(&self) -> Nanos {
        self.kernel.clock_ns(self.host, self.now())
    }

    /// The next input, or `None` when the deadline has come.
    pub async fn recv(&self, deadline: Option<Ps>) -> Option<Input> {
        std::future::poll_fn(|_| {
            let kernel = &self.kernel;
            let index = kernel.processes.borrow_mut()[self.id.0 as usize].inbox.pop_front();
            if let Some(index) = index {
                let input = Some(kernel.inputs.borrow_mut().take(index));
                if let Some(Input::Message(..)) = input {
                    self.cpu.charge(kernel.calls.get().receive);
                }
                return Poll::Ready(input);
            }
            match deadline {
                Some(at) if at <= self.now() => Poll::Ready(None),
                Some(at) => {
                    kernel.run_at(self.id, at);
                    Poll::Pending
                }
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Lets time pass; inputs wait.
    pub async fn sleep(&self, time: Ps) {
        let until = self.now() + time;
        std::future::poll_fn(|_| {
            let is_over = until <= self.now();
            self.kernel.processes.borrow_mut()[self.id.0 as usize].deaf = !is_over;
            if is_over {
                return Poll::Ready(());
            }
            self.kernel.wake_at(self.id, until);
            Poll::Pending
        })
        .await;
    }

    /// In performance mode a process runs ahead of the world by what it has charged since it was
    /// resumed; this lets the world catch up if that is more than `ahead`. In checking mode time
    /// passes in between, and nobody is ahead.
    pub async fn sync(&self, ahead: Ps) {
        if self.cpu.cost() <= ahead {
            return;
        }
        let until = self.now();
        std::future::poll_fn(|_| {
            if self.kernel.now.get() >= until {
                return Poll::Ready(());
            }
            self.kernel.wake_at(self.id, until);
            Poll::Pending
        })
        .await;
    }

    /// Hands an input to another process of this host, a line away.
    pub fn ring(&self, to: ProcessId, input: Input) {
        // Setting a bell's bit, waking a sleeper: atomic operations.
        self.cpu.drain();
        if !self.kernel.jitter {
            // The line of a reply is charged where it is loaded; one delay for all keeps order.
            let is_loaded = matches!(input, Input::Ring(_));
            let delay = if is_loaded { Ps::ZERO } else { self.kernel.costs.line };
            return self.kernel.post(to, self.now() + delay, input);
        }
        let mut rings = self.kernel.rings.borrow_mut();
        let last = rings.entry((self.id, to)).or_default();
        *last = (self.now() + self.kernel.line_delay()).max(*last);
        self.kernel.post(to, *last, input);
    }

    /// Connects to a process; whether it listens shows in what comes back.
    pub fn connect(&self, to: ProcessId) -> ConnId {
        self.kernel.connect(self.id, to, self.now())
    }

    /// Whether something waits in the inbox.
    pub fn has_input(&self) -> bool {
        !self.kernel.processes.borrow()[self.id.0 as usize].inbox.is_empty()
    }

    /// Connects an endpoint of this process with another process's.
    pub fn connect_peer(&self, from: EndpointId, to: EndpointId) -> PeerId {
        let now = self.now();
        self.kernel.with_net(|net, wires| net.connect(now, from, to, Connection::Reliable, wires))
    }

    /// Ends a connection of an endpoint.
    pub fn close_peer(&self, endpoint: EndpointId, peer: PeerId) {
        let now = self.now();
        self.kernel.with_net(|net, wires| net.close(now, endpoint, peer, wires));
    }

    /// Posts work under one doorbell.
    pub fn post_work(
        &self,
        endpoint: EndpointId,
        peer: PeerId,
        batch: &[WorkRequest<'_>],
    ) -> Result<(), (usize, PostError)> {
        // The card must find what was stored before.
        self.cpu.drain();
        let costs = self.kernel.calls.get();
        self.cpu.charge(costs.post_request.times(batch.len() as u64));
        let now = self.now();
        let posted = self.kernel.with_net(|net, wires| net.post(now, endpoint, peer, batch, wires));
        self.cpu.charge(costs.post_doorbell);
        posted
    }

    /// Sends a message from a buffer of its own, which [`Ctx::sent`] gives back; the number of its
    /// completion.
    pub fn send_message(
        &self,
        endpoint: EndpointId,
        peer: PeerId,
        message: Vec<u8>,
    ) -> Result<u64, PostError> {
        let bytes = message.len() as u64;
        let buf = self.kernel.register(endpoint, message);
        let local = [Sge { buf, offset: 0, bytes }];
        let id = SEND_ID | u64::from(buf.0);
        let request = WorkRequest { id, verb: Verb::Send, local: &local, signalled: true };
        match self.post_work(endpoint, peer, &[request]) {
            Ok(()) => Ok(id),
            Err((_, error)) => {
                self.kernel.take_buffer(endpoint, buf);
                Err(error)
            }
        }
    }

    /// Whether a completion was a message's, whose buffer is free then.
    pub fn sent(&self, endpoint: EndpointId, id: u64) -> bool {
        let is_send = id & SEND_ID == SEND_ID;
        if is_send {
            let bytes = self.kernel.take_buffer(endpoint, BufId(id as u32));
            self.kernel.recycle(bytes);
        }
        is_send
    }

    /// Answers an operation that was executed.
    pub fn executed(&self, token: u32, result: Executed<'_>) {
        let now = self.now();
        self.kernel.with_net(|net, wires| net.executed(now, token, result, wires));
    }

    /// Sends over a connection; what is sent to a dead process is lost.
    pub fn send(&self, conn: ConnId, message: Message) {
        // A system call.
        self.cpu.drain();
        if self.kernel.conns.borrow()[conn.0 as usize].open {
            self.kernel.deliver(conn, self.id, self.now(), Input::Message(conn, Box::new(message)));
        }
        self.cpu.charge(self.kernel.calls.get().send);
    }

    /// Ends a connection.
    pub fn close(&self, conn: ConnId) {
        self.cpu.drain();
        self.kernel.close(conn, self.id, self.now());
    }
}

/// The loop's own part of the world.
pub struct Loop {
    kernel: Rc<Kernel>,
    runners: Vec<Option<Runner>>,
    /// Stack of a process in checking mode; `None`: futures are polled directly.
    stack_bytes: Option<usize>,
}

impl Loop {
    /// The loop of a world.
    pub fn new(kernel: Rc<Kernel>, stack_bytes: Option<usize>) -> Loop {
        Loop { kernel, runners: Vec::new(), stack_bytes }
    }

    /// Handles events until `done` says so, nothing is left, a check fails, or `until`.
    pub fn run(&mut self, until: Ps, mut done: impl FnMut() -> bool) {
        self.settle();
        self.do_at_once();
        while !done() && self.kernel.violation.borrow().is_none() {
            let next = self.kernel.wheel.borrow_mut().pop();
            let Some((at, source, event)) = next else { return };
            self.kernel.now.set(at);
            self.kernel.violations.set_now(at);
            if at > until {
                return;
            }
            self.kernel.events.set(self.kernel.events.get() + 1);
            self.kernel.note(at.0 ^ u64::from(source) << 48);
            match event {
                Event::Run(id) => self.on_run(id, at),
                Event::Arrive(id, index) => self.on_arrive(id, index),
                Event::Heal(from, to) => self.kernel.on_heal(from, to),
                Event::Net(event) => {
                    self.kernel.with_net(|net, wires| net.on_event(at, event, wires));
                }
            }
            self.settle();
            self.do_at_once();
            if self.kernel.violations.count() > 0 {
                for (_, text) in self.kernel.violations.take() {
                    self.kernel.fail("memory", text);
                }
            }
        }
    }

    /// Hands over what came at this very moment.
    fn do_at_once(&mut self) {
        while let Some((id, index)) = self.kernel.take_at_once() {
            self.on_arrive(id, index);
            self.settle();
        }
    }

    /// Starts who was spawned and ends who was killed meanwhile.
    fn settle(&mut self) {
        while self.kernel.unsettled.take() {
            let spawned = std::mem::take(&mut *self.kernel.spawned.borrow_mut());
            let killed = std::mem::take(&mut *self.kernel.killed.borrow_mut());
            for (id, body) in spawned {
                let runner = match self.stack_bytes {
                    Some(bytes) => {
                        Runner::Stack(Box::new(Coroutine::new(bytes, move || block_on(body))))
                    }
                    None => Runner::Direct(body),
                };
                self.runners.resize_with(id.0 as usize + 1, || None);
                self.runners[id.0 as usize] = Some(runner);
            }
            for id in killed {
                if let Some(Runner::Stack(mut stack)) = self.runners[id.0 as usize].take() {
                    stack.resume(Order::Die);
                }
                self.bury(id);
            }
        }
    }

    /// A process is over: what its processor had retired reaches memory, its connections close.
    fn bury(&mut self, id: ProcessId) {
        let kernel = &self.kernel;
        let cpu = {
            let mut processes = kernel.processes.borrow_mut();
            let process = &mut processes[id.0 as usize];
            process.status = Status::Dead;
            let mut inputs = kernel.inputs.borrow_mut();
            process.inbox.drain(..).for_each(|index| drop(inputs.take(index)));
            process.cpu.clone()
        };
        cpu.kill();
        let open: Vec<ConnId> = (0..)
            .map(ConnId)
            .zip(kernel.conns.borrow().iter())
            .filter(|(_, conn)| conn.open && conn.ends.contains(&id))
            .map(|(conn, _)| conn)
            .collect();
        open.into_iter().for_each(|conn| kernel.close(conn, id, kernel.now.get()));
        let endpoints: Vec<EndpointId> = (0..)
            .map(EndpointId)
            .zip(kernel.routes.borrow().endpoints.iter())
            .filter(|(_, owner)| **owner == Some(id))
            .map(|(endpoint, _)| endpoint)
            .collect();
        endpoints.into_iter().for_each(|one| kernel.close_endpoint(one, Down::Crash));
    }

    fn on_arrive(&mut self, id: ProcessId, index: u32) {
        let kernel = &self.kernel;
        let waits = {
            let mut processes = kernel.processes.borrow_mut();
            let process = &mut processes[id.0 as usize];
            if process.status == Status::Dead {
                drop(processes);
                let input = kernel.inputs.borrow_mut().take(index);
                if let Input::Opened(conn) = input {
                    // Nobody listens.
                    kernel.close(conn, id, kernel.now.get());
                }
                return;
            }
            process.inbox.push_back(index);
            let waits = process.status == Status::Waiting && !process.deaf;
            if waits && process.paused_until <= kernel.now.get() {
                process.cpu.charge(process.notice);
            }
            waits
        };
        if waits {
            self.resume(id);
        }
    }

    fn on_run(&mut self, id: ProcessId, at: Ps) {
        {
            let mut processes = self.kernel.processes.borrow_mut();
            let process = &mut processes[id.0 as usize];
            if process.timer == Some(at) {
                process.timer = None;
            }
            if process.wake == Some(at) {
                process.wake = None;
            }
            match process.status {
                Status::Dead | Status::Running => return,
                Status::Sleeping(until) if until > at => {
                    drop(processes);
                    return self.kernel.run_at(id, until);
                }
                Status::Sleeping(_) | Status::Waiting => {}
            }
        }
        self.resume(id);
    }

    /// Lets a process go on until it waits.
    fn resume(&mut self, id: ProcessId) {
        let now = self.kernel.now.get();
        {
            let mut processes = self.kernel.processes.borrow_mut();
            let process = &mut processes[id.0 as usize];
            if process.paused_until > now {
                let until = process.paused_until;
                drop(processes);
                return self.kernel.wake_at(id, until);
            }
            process.status = Status::Running;
        }
        let Some(runner) = &mut self.runners[id.0 as usize] else { return };
        let status = match runner {
            Runner::Stack(stack) => match stack.resume(Order::Go) {
                Progress::Waiting(Wait::For(time)) => Some(Status::Sleeping(now + time)),
                Progress::Waiting(Wait::Event) => Some(Status::Waiting),
                Progress::Ended => None,
                Progress::Panicked(text) => {
                    let name = self.kernel.processes.borrow()[id.0 as usize].name.clone();
                    self.kernel.fail("assertion", format!("{name}: {text}"));
                    None
                }
            },
            Runner::Direct(body) => {
                let poll = body.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                let mut processes = self.kernel.processes.borrow_mut();
                let process = &mut processes[id.0 as usize];
                // What comes while it is busy is looked at afterwards.
                process.paused_until = process.paused_until.max(now + process.cpu.take_cost());
                poll.is_pending().then_some(Status::Waiting)
            }
        };
        self.after(id, status);
    }

    fn after(&mut self, id: ProcessId, status: Option<Status>) {
        let mut processes = self.kernel.processes.borrow_mut();
        let process = &mut processes[id.0 as usize];
        if process.status == Status::Dead {
            // Killed by itself or by whom it called; `settle` ends it.
            return;
        }
        match status {
            None => {
                drop(processes);
                self.runners[id.0 as usize] = None;
                self.bury(id);
            }
            Some(Status::Sleeping(until)) => {
                process.status = Status::Sleeping(until);
                drop(processes);
                self.kernel.run_at(id, until);
            }
            Some(status) => {
                process.status = status;
                // A processor that idles has long emptied its store buffer.
                let cpu = process.cpu.clone();
                let more = !process.inbox.is_empty() && !process.deaf;
                drop(processes);
                cpu.drain();
                if more {
                    self.kernel.wake_at(id, self.kernel.now.get());
                }
            }
        }
    }
}

/// Runs a process's future on its own stack: when it has to wait, the stack does.
fn block_on(mut body: Body) {
    while body.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        crate::coro::wait(Wait::Event);
    }
}
