//! The fast path over a fabric in virtual time: the client, the acceptor, serving threads with
//! their engines and a cache, as they are, over a simulated network that loses, delays, repeats and
//! overtakes, with clients that are killed at any moment.
//!
//! `wire.rs` is a client's endpoint, `port.rs` the server's devices; nothing else stands for
//! anything. Requests go by WRITE over a connection (executed as by the tcp target), by WRITE over
//! an unreliable connection (its words become visible in any order), or by datagram.
//!
//! What is checked of each run, which is a function of its seed:
//! - what clients saw of each key is linearizable, each operation taking effect once; those with an
//!   answer that was never seen, because their client was killed, once or not at all;
//! - every request is answered, nothing is corrupt, and where nothing is lost no client has to
//!   repeat a request or a doorbell;
//! - no datagram finds its receiver without a receive, unless the network repeats datagrams;
//! - frames of clients that ended can be had again.
//!
//! Safeguards that are left out ([`Mutation`]) have to be noticed by these.

mod port;
mod wire;

use super::THREAD_RECEIVES;
use super::connections::{ConnectionManager, FabricClient, Frames};
use super::transport::FabricTransport;
use crate::cache::{Cache, Options};
use crate::clock;
use crate::herd::admission::Admission;
use crate::herd::counters::{HerdCounter, HerdCounters};
use crate::herd::engine::Pipeline;
use crate::herd::error::Error;
use crate::herd::geometry::Geometry;
use crate::herd::pair;
use crate::herd::serving::{CommandQueue, Doorbell, SLEEP_MAX, Serving, ServingOptions};
use crate::herd::{Answer, Client, Ticket};
use port::{SimDevices, SimPort, SimQueue, SimSource};
use rackpool_core::seam::{FabricEvent, Mutation, PeerId};
use rackpool_mem::window::Window;
use rackpool_sim::check::keys::{MapKey, MapOp};
use rackpool_sim::check::linear::{self, Event, Times, Verdict};
use rackpool_sim::device::Profile;
use rackpool_sim::mem::{Cpu, HostCache, SwitchRates};
use rackpool_sim::net::{Connection, EndpointId, GRH_BYTES, Net, NetFaults, Remote};
use rackpool_sim::rng::{Purpose, Rng};
use rackpool_sim::time::Ps;
use rackpool_sim::world::{
    Clock, ControlCosts, Ctx, HostId, Input, Kernel, Loop, ProcessId, block_on,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use wire::SimWire;

/// Keys that clients ask for.
const KEYS: u64 = 24;
/// Requests of a client in its one.
const REQUESTS: u64 = 40;
/// Virtual time after which a run hangs.
const RUN_MAX: Ps = Ps::ms(60_000);
const STACK_BYTES: usize = 512 << 10;
const CONFIGURATIONS_MAX: usize = 300_000;
const SEEDS: u64 = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimTransportKind {
    Stream,
    Connected,
    Datagrams,
}

#[derive(Clone, Copy, Debug)]
struct SimRun {
    seed: u64,
    /// `None`: each client its own.
    transport_kind: Option<SimTransportKind>,
    pipeline: Pipeline,
    threads: u32,
    windows: u32,
    /// Clients at once, all clients of the run, and how many of these are killed.
    clients: u32,
    lives: u32,
    kills: u32,
    faults: NetFaults,
    mutation: Option<Mutation>,
}

impl SimRun {
    fn is_lossy(&self) -> bool {
        self.faults.loss_ppm > 0
    }
}

/// What the processes of a run share.
struct SimShared {
    seed: u64,
    mutation: Option<Mutation>,
    server: HostId,
    frames: Frames,
    listener: EndpointId,
    /// Of the acceptor, not handled yet.
    events: RefCell<Vec<FabricEvent>>,
    /// Connections that may WRITE by devices: by key, the client and its frame.
    connections: RefCell<BTreeMap<u64, (u32, Window)>>,
    lanes: RefCell<Vec<Rc<RefCell<SimQueue>>>>,
    rng: RefCell<Rng>,
    /// How often a key's end had to wait for a WRITE.
    waits: Cell<u64>,
    stamps: Cell<u64>,
    history: RefCell<BTreeMap<u64, Vec<Event<MapOp>>>>,
    answered: Cell<u64>,
    reminders: Cell<u64>,
    failures: RefCell<Vec<String>>,
    is_over: Cell<bool>,
}

impl SimShared {
    fn stamp(&self) -> u64 {
        self.stamps.set(self.stamps.get() + 1);
        self.stamps.get()
    }

    fn fail(&self, text: String) {
        self.failures.borrow_mut().push(text);
    }
}

/// The result of a run.
#[derive(Debug, PartialEq, Eq)]
struct SimOutcome {
    failures: Vec<String>,
    answered: u64,
    reminders: u64,
    repeated: u64,
    waits: u64,
    lost: u64,
    trace: u64,
}

/// A value that shows whether it was torn: its number again and again.
fn value_of(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + number as usize * 7 % 40)
}

fn number_of(value: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(*value.first_chunk()?);
    (value == value_of(number)).then_some(number)
}

fn key_of(key: u64) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

async fn accept(
    ctx: Ctx,
    shared: Rc<SimShared>,
    mut manager: ConnectionManager<SimPort>,
    threads: Vec<ProcessId>,
) {
    let listener = shared.listener;
    loop {
        let deadline =
            manager.poll_after().map(|after| ctx.now() + Ps::ns(after.as_nanos() as u64));
        let mut input = ctx.recv(deadline).await;
        while let Some(Input::Fabric(event)) = input {
            let is_own =
                matches!(event, FabricEvent::Completed { id, .. } if ctx.sent(listener, id));
            if !is_own {
                shared.events.borrow_mut().push(event);
            }
            input = if ctx.has_input() { ctx.recv(None).await } else { None };
        }
        ctx.cpu.pass();
        manager.poll_events();
        // Bells may have been rung.
        threads.iter().for_each(|thread| ctx.ring(*thread, Input::Tell(0)));
    }
}

async fn serve(
    ctx: Ctx,
    shared: Rc<SimShared>,
    number: u32,
    mut serving: Serving<FabricClient<SimPort>>,
) {
    let lane = shared.lanes.borrow()[number as usize].clone();
    let endpoint = lane.borrow().endpoint;
    let take = |input: Input| match input {
        Input::Fabric(FabricEvent::Completed { id, .. }) => {
            ctx.sent(endpoint, id);
        }
        Input::Fabric(FabricEvent::Received { mut message, .. }) => {
            message.drain(..GRH_BYTES);
            lane.borrow_mut().incoming.push_back(message);
            ctx.kernel.with_net(|net, _| net.post_receives(endpoint, 1));
        }
        _ => {}
    };
    let mut rng = Rng::new(shared.seed, Purpose::Engine, number.into());
    let (mut vain, mut idle_since_ns) = (0, None);
    loop {
        while ctx.has_input() {
            take(ctx.recv(None).await.expect("it is there"));
        }
        ctx.cpu.pass();
        if serving.round(1) {
            (vain, idle_since_ns) = (0, None);
            ctx.sleep(rng.duration(Ps::ns(50), Ps::us(1))).await;
            continue;
        }
        vain += 1;
        if vain < 50 || !serving.has_lingered(&mut idle_since_ns) {
            ctx.sleep(rng.duration(Ps::ns(100), Ps::us(if vain < 50 { 2 } else { 50 }))).await;
            continue;
        }
        // Bits that are set keep it awake, as they do in `Bitmap::sleep`.
        if serving.is_to_sleep() && !serving.round(1) {
            let deadline = ctx.now() + Ps::ns(SLEEP_MAX.as_nanos() as u64);
            if let Some(input) = ctx.recv(Some(deadline)).await {
                take(input);
            }
            serving.woke();
            (vain, idle_since_ns) = (0, None);
        }
    }
}

/// A connection of an endpoint, or of a way for datagrams.
fn connect(ctx: &Ctx, from: EndpointId, to: Remote, kind: Connection) -> PeerId {
    let now = ctx.now();
    ctx.kernel.with_net(|net, wires| net.connect(now, from, to, kind, wires))
}

type SimClient = Client<FabricTransport<SimWire>>;

fn connect_client(
    ctx: &Ctx,
    shared: &Rc<SimShared>,
    transport_kind: SimTransportKind,
) -> Result<SimClient, Error> {
    let (wire, peer) = SimWire::open(ctx.clone(), shared.clone()).ok_or(Error::Gone)?;
    let (mut far, geometry, seed) = FabricTransport::connect(wire, peer, 0)?;
    if transport_kind != SimTransportKind::Stream {
        let frame = far.frame();
        far.wire().take_way(frame, transport_kind)?;
    }
    Ok(Client::over(far, geometry, seed))
}

/// A client of `run`, which asks so many requests and ends.
struct ClientRun {
    ctx: Ctx,
    shared: Rc<SimShared>,
    rng: Rng,
    /// Requests that are under way: of which key, and which of its history.
    pending: BTreeMap<Ticket, (u64, usize)>,
}

impl ClientRun {
    async fn run(
        ctx: Ctx,
        shared: Rc<SimShared>,
        number: u32,
        transport_kind: Option<SimTransportKind>,
        requests: u64,
    ) {
        let mut rng = Rng::new(shared.seed, Purpose::Workload, number.into());
        let any =
            [SimTransportKind::Stream, SimTransportKind::Connected, SimTransportKind::Datagrams];
        let transport_kind = transport_kind.unwrap_or(any[rng.below(3) as usize]);
        let mut one = ClientRun { ctx, shared, rng, pending: BTreeMap::new() };
        let mut client = loop {
            match connect_client(&one.ctx, &one.shared, transport_kind) {
                Ok(client) => break client,
                // Frames of those before it are on their way back.
                Err(Error::Full { .. }) => one.ctx.sleep(Ps::us(200)).await,
                Err(error) => return one.shared.fail(format!("client {number}: {error}")),
            }
        };
        if let Err(error) = one.ask(&mut client, requests) {
            one.shared.fail(format!("client {number}: {error}"));
        }
        let reminders = &one.shared.reminders;
        reminders.set(reminders.get() + client.reminders());
    }

    fn ask(&mut self, client: &mut SimClient, requests: u64) -> Result<(), Error> {
        let mut made = 0;
        while made < requests || !self.pending.is_empty() {
            let burst = self.rng.below(u64::from(client.windows()) + 2).min(requests - made);
            for _ in 0..burst {
                match self.submit(client) {
                    Ok(()) => made += 1,
                    Err(Error::Busy { .. }) => break,
                    Err(error) => return Err(error),
                }
            }
            self.ctx.cpu.pass();
            if self.rng.below(2) == 0 {
                client.wait()?;
            } else {
                client.ring();
                self.sleep(Ps::ns(100), Ps::us(20));
            }
            self.poll(client)?;
            if self.pending.is_empty() && self.rng.below(8) == 0 {
                // So long that the threads stop to watch.
                self.sleep(Ps::us(500), Ps::ms(4));
            }
        }
        Ok(())
    }

    fn sleep(&mut self, low: Ps, high: Ps) {
        let pause = self.rng.duration(low, high);
        block_on(self.ctx.sleep(pause));
    }

    fn submit(&mut self, client: &mut SimClient) -> Result<(), Error> {
        let key = self.rng.below(KEYS);
        let called = self.shared.stamp();
        let (ticket, op) = match self.rng.below(5) {
            0 | 1 => (
                client.submit_put(&key_of(key), &value_of(called), 0, 0)?,
                MapOp::Put(called, None),
            ),
            2 => (client.submit_delete(&key_of(key))?, MapOp::Delete(None)),
            _ => (client.submit_get(&key_of(key))?, MapOp::Get(None)),
        };
        let event = Event { client: None, called, returned: None, times: Times::AtMostOnce, op };
        let mut history = self.shared.history.borrow_mut();
        let events = history.entry(key).or_default();
        events.push(event);
        self.pending.insert(ticket, (key, events.len() - 1));
        Ok(())
    }

    fn poll(&mut self, client: &mut SimClient) -> Result<(), Error> {
        let ClientRun { shared, pending, .. } = self;
        client.poll(|ticket, answer| {
            let Some((key, index)) = pending.remove(&ticket) else {
                return shared.fail(format!("an answer to nothing: {answer:?}"));
            };
            let mut history = shared.history.borrow_mut();
            let event = &mut history.get_mut(&key).expect("it was asked for")[index];
            let op = match (&event.op, &answer) {
                (MapOp::Put(..), Answer::Stored) => Some(event.op),
                (MapOp::Delete(_), Answer::Deleted) => Some(MapOp::Delete(Some(true))),
                (MapOp::Delete(_), Answer::Missing) => Some(MapOp::Delete(Some(false))),
                (MapOp::Get(_), Answer::Missing) => Some(MapOp::Get(None)),
                (MapOp::Get(_), Answer::Found { value, .. }) => {
                    number_of(value).map(|number| MapOp::Get(Some(number)))
                }
                _ => None,
            };
            match op {
                Some(op) => (event.op, event.times) = (op, Times::Once),
                None => shared.fail(format!("{:?} of key {key}: {answer:?}", event.op)),
            }
            event.returned = Some(shared.stamp());
            shared.answered.set(shared.answered.get() + 1);
        })?;
        Ok(())
    }
}

/// Starts clients, kills some, and in the end lets one look at everything.
async fn supervise(ctx: Ctx, shared: Rc<SimShared>, run: SimRun, hosts: Vec<HostId>, cpus: Cpus) {
    let mut rng = Rng::new(run.seed, Purpose::Faults, 0);
    let (mut alive, mut begun, mut kills): (Vec<ProcessId>, u32, u32) = (Vec::new(), 0, run.kills);
    let spawn = |number: u32, requests: u64| {
        let host = hosts[number as usize % hosts.len()];
        let shared = shared.clone();
        ctx.kernel.spawn(format!("client {number}"), host, cpus.make(host), move |ctx| {
            ClientRun::run(ctx, shared, number, run.transport_kind, requests)
        })
    };
    loop {
        alive.retain(|id| ctx.kernel.is_alive(*id));
        while begun < run.lives && alive.len() < run.clients as usize {
            alive.push(spawn(begun, REQUESTS));
            begun += 1;
        }
        if alive.is_empty() {
            break;
        }
        ctx.sleep(rng.duration(Ps::us(10), Ps::us(600))).await;
        if kills > 0 && rng.below(3) == 0 {
            kills -= 1;
            ctx.kernel.kill(alive[rng.below(alive.len() as u64) as usize]);
        }
    }
    ctx.kernel.with_net(|net, _| net.set_faults(NetFaults::none()));
    let last = spawn(run.lives, 4 * KEYS);
    while ctx.kernel.is_alive(last) {
        ctx.sleep(Ps::us(100)).await;
    }
    // What became of frames.
    ctx.sleep(Ps::ms(200)).await;
    shared.is_over.set(true);
}

#[derive(Clone)]
struct Cpus {
    caches: Rc<BTreeMap<HostId, Rc<HostCache>>>,
    count: Rc<Cell<u64>>,
    seed: u64,
    rates: SwitchRates,
}

impl Cpus {
    fn make(&self, host: HostId) -> Rc<Cpu> {
        self.count.set(self.count.get() + 1);
        Cpu::checking(self.caches[&host].clone(), self.seed, self.count.get(), self.rates)
    }

    /// One that is not interrupted.
    fn make_device(&self, host: HostId) -> Rc<Cpu> {
        Cpus { rates: SwitchRates::device(), ..self.clone() }.make(host)
    }
}

/// A simulation before its processes begin.
struct World {
    run: SimRun,
    kernel: Rc<Kernel>,
    hosts: Vec<HostId>,
    cpus: Cpus,
    shared: Rc<SimShared>,
    serving: ServingOptions,
}

type Queues = Vec<Arc<CommandQueue<FabricClient<SimPort>>>>;

impl World {
    fn new(run: SimRun) -> World {
        let profile = Profile::load("herd-apt").expect("a profile of the program");
        let net = Net::new(&profile, run.faults, Rng::new(run.seed, Purpose::Network, 0));
        let costs = ControlCosts { local: Ps::us(2), remote: Ps::us(20), line: Ps::ns(60) };
        let kernel = Kernel::new(run.seed, net, costs, true);
        kernel.set_events_max(20_000_000);
        let clock = Clock { drift_ppm: 0, offset_ns: 0 };
        let hosts: Vec<HostId> = (0..4).map(|_| kernel.add_host(clock)).collect();
        let rates = SwitchRates {
            // Pauses of milliseconds look like losses to a client that waits for 50.
            millis_ppm: if run.is_lossy() { 2_000 } else { 0 },
            ..SwitchRates::draw(&mut Rng::new(run.seed, Purpose::Shape, 0))
        };
        let cache = |host: &HostId| {
            (*host, HostCache::new(run.seed, host.0.into(), kernel.violations().clone()))
        };
        let caches = Rc::new(hosts.iter().map(cache).collect());
        let geometry =
            Geometry { servers: run.threads, clients: 1, windows: run.windows, value_bytes: 400 };
        let shared = Rc::new(SimShared {
            seed: run.seed,
            mutation: run.mutation,
            server: hosts[0],
            frames: Frames::new(&geometry, run.clients + 1).expect("memory"),
            listener: add_endpoint(&kernel, hosts[0], 0),
            events: RefCell::default(),
            connections: RefCell::default(),
            lanes: RefCell::default(),
            rng: RefCell::new(Rng::new(run.seed, Purpose::Engine, 1 << 20)),
            waits: Cell::default(),
            stamps: Cell::default(),
            history: RefCell::default(),
            answered: Cell::default(),
            reminders: Cell::default(),
            failures: RefCell::default(),
            is_over: Cell::default(),
        });
        let cpus = Cpus { caches, count: Rc::default(), seed: run.seed, rates };
        let options = Options { memory: 8 << 20, partitions: 2, seed: 9, ..Options::default() };
        let serving = ServingOptions {
            cache: Cache::new(options).expect("memory"),
            geometry,
            clients: run.clients + 1,
            counters: Arc::new(HerdCounters::new(run.threads)),
            pipeline: run.pipeline,
            clock: clock::Clock::system(),
        };
        World { run, kernel, hosts, cpus, shared, serving }
    }

    fn start_threads(&self) -> (Queues, Vec<ProcessId>) {
        let World { run, kernel, hosts, shared, serving, .. } = self;
        let clients = serving.clients;
        let bells = Window::heap(pair::bell_bytes(run.threads, clients));
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        for number in 0..run.threads {
            let bell = Doorbell::new(pair::bitmap(&bells, number, clients), clients);
            #[expect(clippy::arc_with_non_send_sync, reason = "it is sent where threads are real")]
            let queue = Arc::new(CommandQueue::new(Arc::new(bell)));
            queues.push(queue.clone());
            let endpoint = add_endpoint(kernel, hosts[0], THREAD_RECEIVES);
            let (name, cpu) = (format!("thread {number}"), self.cpus.make(hosts[0]));
            let (parts, options) = (shared.clone(), serving.clone());
            let id = kernel.spawn(name, hosts[0], cpu, |ctx| {
                let (outgoing, incoming) = Default::default();
                let lane = SimQueue { ctx: ctx.clone(), endpoint, outgoing, incoming };
                let lane = Rc::new(RefCell::new(lane));
                parts.lanes.borrow_mut().push(lane.clone());
                let source = SimSource { lane, shared: parts.clone() };
                serve(ctx, parts, number, Serving::new(number, options, queue, source))
            });
            kernel.route_endpoint(endpoint, id);
            threads.push(id);
        }
        (queues, threads)
    }

    /// Starts the acceptor, and the process that executes WRITEs.
    fn start_listener(&self, queues: Queues, threads: Vec<ProcessId>) {
        let World { run, kernel, hosts, shared, serving, .. } = self;
        let parts = shared.clone();
        let card = self.cpus.make_device(hosts[0]);
        let card = kernel.spawn("card".into(), hosts[0], card, |ctx| port::execute(ctx, parts));
        kernel.route_node(kernel.node_of(hosts[0]), card);
        let (parts, admission) = (shared.clone(), Admission::new(serving, queues));
        let listener = kernel.spawn("acceptor".into(), hosts[0], self.cpus.make(hosts[0]), |ctx| {
            let port = SimPort { ctx: ctx.clone(), shared: parts.clone() };
            let devices = SimDevices { shared: parts.clone(), made: 0 };
            let (frames, key) = (parts.frames.clone(), run.seed << 40 | 7 << 20);
            let manager = ConnectionManager::new(port, Some(devices), frames, admission, key);
            accept(ctx, parts, manager, threads)
        });
        kernel.route_endpoint(shared.listener, listener);
    }
}

fn add_endpoint(kernel: &Kernel, host: HostId, receives: u32) -> EndpointId {
    let node = kernel.node_of(host);
    kernel.with_net(|net, _| {
        let endpoint = net.add_endpoint(node);
        net.post_receives(endpoint, receives);
        endpoint
    })
}

fn run(run: SimRun) -> SimOutcome {
    let world = World::new(run);
    let (queues, threads) = world.start_threads();
    world.start_listener(queues, threads);
    let World { kernel, hosts, cpus, shared, serving, .. } = world;
    let (parts, clients) = (shared.clone(), hosts[1..].to_vec());
    let cpu = cpus.make_device(hosts[0]);
    kernel
        .spawn("supervisor".into(), hosts[0], cpu, |ctx| supervise(ctx, parts, run, clients, cpus));
    Loop::new(kernel.clone(), Some(STACK_BYTES)).run(RUN_MAX, || shared.is_over.get());
    judge(&kernel, &shared, &serving.counters, run)
}

fn judge(kernel: &Kernel, shared: &SimShared, counters: &HerdCounters, run: SimRun) -> SimOutcome {
    let mut failures = std::mem::take(&mut *shared.failures.borrow_mut());
    failures.extend(kernel.violation().map(|violation| violation.text));
    if !shared.is_over.get() {
        failures.push(format!("it hangs at {}", kernel.now()));
    }
    for (key, events) in shared.history.borrow().iter() {
        // A look-up says nothing if its answer was not seen.
        let is_seen =
            |event: &&Event<MapOp>| event.returned.is_some() || !matches!(event.op, MapOp::Get(_));
        let events: Vec<_> = events.iter().filter(is_seen).cloned().collect();
        if let Verdict::Violation { returned } =
            linear::check::<MapKey>(None, &events, CONFIGURATIONS_MAX)
        {
            failures.push(format!("key {key} at {returned}: {events:?}"));
        }
    }
    let reminders = shared.reminders.get();
    if !run.is_lossy() && reminders > 0 {
        failures.push(format!("{reminders} reminders where nothing is lost"));
    }
    let net = kernel.with_net(|net, _| *net.counters());
    if run.faults.duplicate_ppm == 0 && net.no_receive > 0 {
        failures.push(format!("{} datagrams without a receive", net.no_receive));
    }
    let (joined, left) = (counters.get(HerdCounter::Joined), counters.get(HerdCounter::Left));
    if failures.is_empty() && joined != left {
        failures.push(format!("{joined} clients came and {left} left"));
    }
    SimOutcome {
        failures,
        answered: shared.answered.get(),
        reminders,
        repeated: counters.get(HerdCounter::Repeated),
        waits: shared.waits.get(),
        lost: net.lost,
        trace: kernel.trace_hash(),
    }
}

const QUIET: SimRun = SimRun {
    seed: 0,
    transport_kind: None,
    pipeline: Pipeline::Batched,
    threads: 2,
    windows: 4,
    clients: 4,
    lives: 10,
    kills: 0,
    faults: NetFaults::none(),
    mutation: None,
};

const FAULTS: NetFaults = NetFaults {
    loss_ppm: 30_000,
    duplicate_ppm: 20_000,
    delay_ppm: 20_000,
    delay_max: Ps::ms(3),
    reorder_ppm: 50_000,
    reorder_max: Ps::us(50),
};

const DELAYS: NetFaults = NetFaults {
    delay_ppm: 100_000,
    delay_max: Ps::ms(2),
    reorder_ppm: 100_000,
    reorder_max: Ps::us(50),
    ..NetFaults::none()
};

const TRANSPORTS: [Option<SimTransportKind>; 4] = [
    None,
    Some(SimTransportKind::Stream),
    Some(SimTransportKind::Connected),
    Some(SimTransportKind::Datagrams),
];

/// Events seen over the runs of a test.
#[derive(Debug, Default)]
struct Met {
    lost: u64,
    reminders: u64,
    repeated: u64,
    waits: u64,
}

/// Runs of these seeds, each by every kind of transport, without a failure.
fn survive(seeds: std::ops::Range<u64>, of: impl Fn(u64) -> SimRun) -> Met {
    let mut met = Met::default();
    for seed in seeds {
        for transport_kind in TRANSPORTS {
            let one = SimRun { seed, transport_kind, ..of(seed) };
            let outcome = run(one);
            assert_eq!(outcome.failures, [""; 0], "{one:?}");
            let all = u64::from(one.lives) * REQUESTS + 4 * KEYS;
            assert!(one.kills > 0 || outcome.answered == all, "{} of {all}", outcome.answered);
            met.lost += outcome.lost;
            met.reminders += outcome.reminders;
            met.repeated += outcome.repeated;
            met.waits += outcome.waits;
        }
    }
    met
}

const PIPELINES: [Pipeline; 2] = [Pipeline::Batched, Pipeline::TwoStage];

#[test]
fn nobody_repeats_anything_where_nothing_is_lost() {
    survive(0..6, |seed| SimRun { pipeline: PIPELINES[seed as usize % 2], ..QUIET });
}

#[test]
fn each_request_is_done_once_and_answered_whatever_the_network_loses() {
    let lossy = SimRun { faults: FAULTS, ..QUIET };
    let met = survive(0..SEEDS, |seed| match seed % 3 {
        0 => lossy,
        1 => SimRun { kills: 6, pipeline: Pipeline::TwoStage, ..lossy },
        _ => SimRun { kills: 25, lives: 30, ..lossy },
    });
    println!("{met:?}");
    assert!(met.lost > 0 && met.reminders > 0 && met.repeated > 0, "{met:?}");
}

#[test]
fn clients_that_are_killed_leave_nothing_behind() {
    let deadly = SimRun { lives: 30, kills: 25, ..QUIET };
    let met = survive(0..SEEDS, |seed| match seed % 3 {
        0 => deadly,
        1 => SimRun { faults: DELAYS, ..deadly },
        _ => SimRun { faults: DELAYS, pipeline: Pipeline::TwoStage, threads: 1, ..deadly },
    });
    println!("{met:?}");
    assert!(met.waits > 0, "no key ended while its frame was written");
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let one = SimRun { kills: 6, faults: FAULTS, ..QUIET };
    assert_eq!(run(one), run(one));
    assert_ne!(run(one).trace, run(SimRun { seed: 1, ..one }).trace);
}

/// Each safeguard is needed, and these checks see that.
#[test]
fn safeguards_that_are_left_out_are_noticed() {
    for mutation in [
        Mutation::ApplyRepeatedRequest,
        Mutation::DropRepeatedRequest,
        Mutation::StopWatchUntold,
        Mutation::KeepFrameKey,
        Mutation::GiveFrameEarly,
        Mutation::GiveFrameUncleared,
    ] {
        let is_noticed = |number: u64| {
            let transport_kind = TRANSPORTS[number as usize % 4];
            let faults = [FAULTS, DELAYS][number as usize / 4 % 2];
            let mutation = Some(mutation);
            let deadly = SimRun { lives: 30, kills: 25, faults, mutation, ..QUIET };
            !run(SimRun { seed: number, transport_kind, ..deadly }).failures.is_empty()
        };
        assert!((0..200).any(is_noticed), "{mutation:?}");
    }
}
