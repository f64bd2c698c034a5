//! Machines on a network of one profile, and what their processes share: cards that execute what
//! is one-sided, registered buffers, counts and processor time.
//!
//! A card executes without a processor. What it writes into the server's request region is a slot,
//! `s * (W * NC) + c * W + (r mod W)`, and tells the server process `s` that polls it; what it
//! writes at a client is an answer. What it reads is zeros, or the table of [`super::store`].
//!
//! Source: HERD, sections on requests and responses (figure 8).

use super::store::Store;
use crate::device::{Bytes, Profile};
use crate::histogram::Histogram;
use crate::mem::{Cpu, MemCosts};
use crate::net::{Connection, EndpointId, Executed};
pub use crate::repro::herd::baselines::KvRequest;
use crate::repro::herd::baselines::{RequestRegion, SLOT_BYTES};
use crate::time::Ps;
use crate::world::performance::{add_host, kernel, mem_costs, notice};
use crate::world::{Ctx, HostId, Input, Kernel, Loop, ProcessId};
use rackpool_core::addr::Generation;
use rackpool_core::seam::{BufId, FabricEvent, PeerId, RemoteAddr, Sge, Verb, WorkRequest};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Room for one answer or one payload in a registered buffer: FaRM's longest neighbourhood fits.
pub const AREA_BYTES: u64 = 8192;
/// What processes receive by datagram is never short of receives here: their cost is charged.
const RECEIVES: u32 = u32::MAX / 2;
/// In addresses: one-sided operations on the table, above offsets of the request region.
pub const TABLE_AT: u64 = 1 << 40;
/// In words for servers: the sender, above the slot.
pub const PEER_SHIFT: u32 = 32;

/// The kind of process that pays for processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Client,
    Server,
}

/// What is counted, between the moment when `warm` operations are done and that when `wanted` are.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub done: u64,
    /// Before it is measured.
    pub warm: u64,
    /// After that nothing is of interest.
    pub wanted: u64,
    begun: Option<Ps>,
    ended: Option<Ps>,
    /// How long each took, ps.
    pub latency: Histogram,
    /// Requests served, by server process.
    pub served: Vec<u64>,
    /// Processor time of clients and of servers.
    pub busy: [Ps; 2],
    /// What a client took for wrong in an answer.
    pub wrong: u64,
}

impl Measured {
    /// Whether it is being measured.
    pub fn is_on(&self) -> bool {
        self.begun.is_some() && self.ended.is_none()
    }

    pub fn count(&mut self, now: Ps, took: Option<Ps>) {
        if let (true, Some(took)) = (self.is_on(), took) {
            self.latency.record(took.0);
        }
        self.done += 1;
        if self.done == self.warm {
            self.begun = Some(now);
        }
        if self.done == self.wanted {
            self.ended = Some(now);
        }
    }

    pub fn operations(&self) -> u64 {
        self.wanted - self.warm
    }

    /// Seconds of that. `None` before the end.
    pub fn seconds(&self) -> Option<f64> {
        Some((self.ended? - self.begun?).as_ns_f64() / 1e9)
    }
}

/// What the processes of a run share.
pub struct RigState {
    pub profile: Profile,
    pub measured: RefCell<Measured>,
    /// How the server's memory is divided.
    pub region: RequestRegion,
    /// What has been written into it and not been taken, by server process and client.
    pub written: RefCell<Vec<Vec<VecDeque<KvRequest>>>>,
    pub servers: RefCell<Vec<ProcessId>>,
    /// Tables of the server, if there are any.
    pub store: Option<RefCell<Store>>,
    /// Payload of requests that no card has seen as such.
    pub torn: Cell<u64>,
    owners: RefCell<Vec<Option<ProcessId>>>,
    /// Connections of each endpoint, in the order in which they were made.
    peers: RefCell<BTreeMap<EndpointId, Vec<PeerId>>>,
}

impl RigState {
    pub fn new(
        profile: &Profile,
        region: RequestRegion,
        servers: u32,
        store: Option<Store>,
    ) -> RigState {
        let clients = vec![VecDeque::new(); region.clients as usize];
        RigState {
            profile: profile.clone(),
            measured: RefCell::default(),
            region,
            written: RefCell::new(vec![clients; servers as usize]),
            servers: RefCell::default(),
            store: store.map(RefCell::new),
            torn: Cell::new(0),
            owners: RefCell::default(),
            peers: RefCell::default(),
        }
    }

    fn own(&self, endpoint: EndpointId, owner: ProcessId) {
        let mut owners = self.owners.borrow_mut();
        let index = endpoint.0 as usize;
        let count = owners.len().max(index + 1);
        owners.resize(count, None);
        owners[index] = Some(owner);
    }

    /// How many are done, or were told.
    pub fn is_over(&self) -> bool {
        let measured = self.measured.borrow();
        measured.done >= measured.wanted
    }
}

pub struct Rig {
    pub kernel: Rc<Kernel>,
    looped: Loop,
    pub shared: Rc<RigState>,
    /// Machines; the first is the server.
    pub hosts: Vec<HostId>,
}

impl Rig {
    /// A server and client machines, each with its card.
    pub fn new(shared: RigState, machines: u32, seed: u64) -> Rig {
        let kernel = kernel(&shared.profile, seed);
        let hosts: Vec<HostId> = (0..=machines).map(|_| add_host(&kernel)).collect();
        let shared = Rc::new(shared);
        for (index, host) in hosts.iter().enumerate() {
            let (shared, is_server) = (shared.clone(), index == 0);
            let card = Cpu::performance(MemCosts::default());
            let id =
                kernel.spawn("card".into(), *host, card, |ctx| execute(ctx, shared, is_server));
            kernel.route_node(kernel.node_of(*host), id);
        }
        Rig { looped: Loop::new(kernel.clone(), None), kernel, shared, hosts }
    }

    /// A process of a machine with an endpoint and a buffer of `areas` for it.
    pub fn spawn<F: Future<Output = ()> + 'static>(
        &self,
        host: HostId,
        role: Role,
        areas: u64,
        main: impl FnOnce(RigEndpoint) -> F,
    ) -> (ProcessId, EndpointId) {
        let node = self.kernel.node_of(host);
        let endpoint = self.kernel.with_net(|net, _| {
            let endpoint = net.add_endpoint(node);
            net.post_receives(endpoint, RECEIVES);
            endpoint
        });
        let buf = self.kernel.register(endpoint, vec![0; (areas * AREA_BYTES) as usize]);
        let shared = self.shared.clone();
        let round = match role {
            Role::Client => self.shared.profile.poll.client,
            // A server looks at each slot in turn, which it does itself.
            Role::Server => Ps::ZERO,
        };
        let cpu = Cpu::performance(mem_costs(&self.shared.profile));
        let id = self.kernel.spawn("process".into(), host, cpu, |ctx| {
            main(RigEndpoint { ctx, shared, endpoint, buf, role })
        });
        self.kernel.set_notice(id, notice(round));
        self.kernel.route_endpoint(endpoint, id);
        self.shared.own(endpoint, id);
        (id, endpoint)
    }

    /// Connects two endpoints, or an endpoint and mere memory; it is up when [`Rig::settle`]
    /// returns.
    pub fn connect(&self, from: EndpointId, to: EndpointId, kind: Connection) {
        let now = self.kernel.now();
        let peer = self.kernel.with_net(|net, wires| net.connect(now, from, to, kind, wires));
        self.shared.peers.borrow_mut().entry(from).or_default().push(peer);
    }

    /// Up to how many bytes an endpoint sends inline.
    pub fn set_inline_max(&self, endpoint: EndpointId, bytes: u64) {
        self.kernel.with_net(|net, _| net.set_inline_max(endpoint, Bytes(bytes)));
    }

    /// Runs until nothing happens.
    pub fn settle(&mut self) {
        self.looped.run(Ps(u64::MAX), || false);
    }

    /// Lets processes begin and runs until all is measured.
    pub fn run(&mut self, begin: &[ProcessId], warm: u64, wanted: u64) -> Result<Measured, String> {
        let count = self.shared.servers.borrow().len();
        *self.shared.measured.borrow_mut() =
            Measured { warm: warm.max(1), wanted, served: vec![0; count], ..Measured::default() };
        let now = self.kernel.now();
        begin.iter().for_each(|process| self.kernel.post(*process, now, Input::Tell(BEGIN)));
        let shared = self.shared.clone();
        self.looped.run(Ps(u64::MAX), || shared.is_over());
        match self.kernel.violation() {
            Some(violation) => Err(violation.text),
            None if !shared.is_over() => {
                Err(format!("nothing happens any more at {}", self.kernel.now()))
            }
            None => Ok(shared.measured.borrow().clone()),
        }
    }
}

/// What processes are told when they are to begin.
pub const BEGIN: u64 = u64::MAX;

/// A process's end of its connections.
pub struct RigEndpoint {
    pub ctx: Ctx,
    pub shared: Rc<RigState>,
    pub endpoint: EndpointId,
    pub buf: BufId,
    role: Role,
}

impl RigEndpoint {
    pub fn charge(&self, cost: Ps) {
        self.ctx.cpu.charge(cost);
        let mut measured = self.shared.measured.borrow_mut();
        if measured.is_on() {
            measured.busy[self.role as usize] += cost;
        }
    }

    /// Waits until it may begin; the connections that it has then, in the order in which they were
    /// made.
    pub async fn begin(&self) -> Vec<PeerId> {
        while !matches!(self.ctx.recv(None).await, Some(Input::Tell(BEGIN))) {}
        self.shared.peers.borrow_mut().remove(&self.endpoint).unwrap_or_default()
    }

    /// Posts one request with what is in an area of the buffer.
    pub async fn post(&self, peer: PeerId, verb: Verb, work: Work<'_>) {
        // A process that posts acts in the order of time.
        self.ctx.sync(Ps::ZERO).await;
        let offset = work.area * AREA_BYTES;
        let piece = Sge { buf: self.buf, offset, bytes: work.bytes };
        if !work.payload.is_empty() {
            self.ctx.kernel.write_buffer(self.endpoint, &piece, 0, work.payload);
        }
        let request =
            WorkRequest { id: work.id, verb, local: &[piece], signalled: work.is_signalled };
        let mut measured = self.shared.measured.borrow_mut();
        if measured.is_on() {
            measured.busy[self.role as usize] += self.shared.profile.cpu.post_request;
        }
        drop(measured);
        let posted = self.ctx.post_work(self.endpoint, peer, &[request]);
        assert!(posted.is_ok(), "windows are shorter than send queues: {posted:?}");
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Work<'a> {
    /// Comes back in its completion.
    pub id: u64,
    /// Which area of the buffer.
    pub area: u64,
    pub bytes: u64,
    /// What is stored there first.
    pub payload: &'a [u8],
    pub is_signalled: bool,
}

/// An address in the other end's memory.
pub fn address(offset: u64) -> RemoteAddr {
    RemoteAddr { offset, key: Generation(1) }
}

pub fn message_of(event: &FabricEvent, kind: Connection) -> &[u8] {
    let FabricEvent::Received { message, .. } = event else { panic!("no message: {event:?}") };
    match kind {
        Connection::Datagram => &message[crate::net::GRH_BYTES..],
        _ => message,
    }
}

/// The card of a machine.
async fn execute(ctx: Ctx, shared: Rc<RigState>, is_server: bool) {
    let zeros = vec![0; AREA_BYTES as usize];
    while let Some(input) = ctx.recv(None).await {
        let Input::Execute(token) = input else { continue };
        let (at, bytes, payload, by) = ctx.kernel.with_net(|net, _| {
            let operation = net.operation(token);
            let at = operation.at().expect("one-sided operations have an address").offset;
            let written = matches!(operation.verb(), Verb::Write(_));
            let payload = written.then(|| operation.payload().to_vec());
            (at, operation.bytes() as usize, payload, net.arrived_by(token))
        });
        let Some(payload) = payload else {
            match shared.store.as_ref().filter(|_| at >= TABLE_AT) {
                Some(store) => {
                    let store = store.borrow();
                    let table = store.bytes((at - TABLE_AT) as usize, bytes);
                    ctx.executed(token, Executed::Data(table));
                }
                None => ctx.executed(token, Executed::Data(&zeros[..bytes])),
            }
            continue;
        };
        ctx.executed(token, Executed::Done);
        let (endpoint, peer) = by.expect("both ends are processes");
        if is_server {
            write_request(&ctx, &shared, at / SLOT_BYTES, peer, &payload);
        } else {
            let owner = shared.owners.borrow()[endpoint.0 as usize].expect("it was opened");
            ctx.kernel.post(owner, ctx.now(), Input::Tell(at / AREA_BYTES));
        }
    }
}

/// A request has been written into a slot.
fn write_request(ctx: &Ctx, shared: &RigState, slot: u64, peer: PeerId, payload: &[u8]) {
    let (server, client) = shared.region.owner(slot);
    let Some(process) = shared.servers.borrow().get(server as usize).copied() else {
        // Verbs without a process that polls: the write is all that counts.
        return shared.measured.borrow_mut().count(ctx.now(), None);
    };
    let Some(request) = KvRequest::decode(payload, peer.0) else {
        return shared.torn.set(shared.torn.get() + 1);
    };
    shared.written.borrow_mut()[server as usize][client as usize].push_back(request);
    ctx.kernel.post(process, ctx.now(), Input::Tell(u64::from(client)));
}
