//! The simulated network: queue pairs, network cards, cables and a switch, as a component that
//! is driven by events and has neither a clock nor a queue of its own.
//!
//! A work request goes through these events, each at the time when its stage is entered:
//!
//! ```text
//! post: lines by programmed I/O, doorbell
//!  -> Transmit   send engine of the card (rate of the verb, connection state)
//!  -> Fetch      payload by DMA, unless it is inline            (reads the local buffer)
//!  -> Link       one event a packet: the cable, when the switch has room for it
//!  -> Switch     output port towards the target                 (faults strike here)
//!  -> Arrive     receive engine, order and duplicates, DMA
//!  -> Execute    Sink::execute; the world answers with Net::executed
//!  -> Ack        for WRITE, SEND, atomics; a READ's data comes back by Link, Switch, Arrive
//! ```
//!
//! The caller is the world, with every event that it was asked to schedule, in the order of time.
//! What flows out goes to the world's [`Sink`]. Slab entries of operations live as long as an
//! event, a queue or the executor refers to them.
//!
//! Modelling decisions: acknowledgements, atomic answers and connection messages take the path's
//! latency but no bandwidth; an operation takes effect as a whole when its last packet is there
//! (the executor may take longer and so tear it); one switch joins all nodes.
//!
//! Source: HERD figures 2 to 6 (verbs, transports, programmed I/O), Rcmp §5.5.

mod connection;
mod fabric;
mod faults;
mod node;
mod operation;
mod path;
mod reliable;

pub use fabric::{Inbox, Shared, SimFabric};
pub use faults::{NetCounters, NetFaults};
pub use operation::{Executed, Operation};
pub use path::lines as request_lines;

use crate::device::{Bytes, Profile};
use crate::rng::Rng;
use crate::time::Ps;
use connection::{Endpoint, Pair, Stage};
use node::Node;
use operation::Slab;
use rackpool_core::addr::Generation;
use rackpool_core::error::DeathCause;
use rackpool_core::seam::{
    Capabilities, Exposure, FabricEvent, PeerId, PostError, Sge, WorkRequest,
};
use std::collections::BTreeSet;

/// A machine with one network card. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A process's use of the card. Never reused: a restarted process has a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u32);

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    /// Memory of a node, for one-sided operations; no process is there for messages.
    Node(NodeId),
    /// A process, which gets messages and can post as well.
    Endpoint(EndpointId),
}

impl From<NodeId> for Remote {
    fn from(node: NodeId) -> Remote {
        Remote::Node(node)
    }
}

impl From<EndpointId> for Remote {
    fn from(endpoint: EndpointId) -> Remote {
        Remote::Endpoint(endpoint)
    }
}

/// The transport of a connection.
pub use crate::repro::herd::baselines::Connection;

/// What precedes a datagram in the receiver's buffer.
pub const GRH_BYTES: usize = 40;

/// How a node or process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// Its kernel lives on and closes its connections.
    Crash,
    Power,
}

/// What the network asks to be called with later. Small and plain: the number of an operation, a
/// packet or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NetEvent {
    /// A work request is on the card.
    Transmit {
        token: u32,
    },
    /// Its payload is to be read.
    Fetch {
        token: u32,
    },
    /// A packet is ready for the cable.
    Link(Packet),
    /// A packet's first bit leaves the switch if its port is free.
    Switch(Packet),
    /// A packet's last bit is at the other card.
    Arrive(Packet),
    Execute {
        token: u32,
    },
    Ack {
        token: u32,
    },
    /// A card that waits for room in the switch tries again.
    Unstall {
        node: u32,
    },
    /// Has something waited too long for its answer?
    Timer {
        connection: u32,
        side: u8,
    },
    /// A request to connect is at the target.
    Connect {
        connection: u32,
    },
    /// The target's consent is back.
    Connected {
        connection: u32,
    },
    /// A connection has waited too long to be set up.
    ConnectTimeout {
        connection: u32,
    },
    /// The news that the other end closed is at `side`.
    Close {
        connection: u32,
        /// The end that learns it.
        side: u8,
    },
    /// A revocation may be complete.
    Revoked {
        node: u32,
        revocation: u32,
    },
}

/// One packet of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub token: u32,
    /// Which, from 0.
    pub index: u32,
    /// Whether it goes back to the end that posted.
    pub answer: bool,
}

const _: () = assert!(size_of::<NetEvent>() <= 16);

/// The world, as the network sees it. None of these may call the network back: what they ask for
/// is kept and done afterwards.
pub trait Sink {
    /// Calls [`Net::on_event`] with `event` at `at`; events of the same time in the order in
    /// which they were scheduled.
    fn schedule(&mut self, at: Ps, event: NetEvent);
    /// Executes operation `token` on the memory of `target` now, then or later calls
    /// [`Net::executed`]; until then no later operation of its connection runs.
    fn execute(&mut self, at: Ps, target: NodeId, token: u32);
    /// Hands an event to an endpoint's user at `at`, in the order of these calls.
    fn deliver(&mut self, at: Ps, endpoint: EndpointId, event: FabricEvent);
    /// Appends the bytes of local pieces to `to`: the card reads them now.
    fn read_local(&mut self, endpoint: EndpointId, pieces: &[Sge], to: &mut Vec<u8>);
    /// Writes to local pieces, in order: the card writes them now.
    fn write_local(&mut self, endpoint: EndpointId, pieces: &[Sge], from: &[u8]);
    /// Writes to a buffer that `endpoint` has exposed to a peer: the card writes it now. What is
    /// not exposed is dropped, which a world without exposures does with all of it.
    fn write_exposed(&mut self, _: (EndpointId, PeerId), _to: &Exposure, _from: &[u8]) {}
    /// From `at` on, `node` executes nothing under the key of revocation `cookie`.
    fn revoked(&mut self, at: Ps, node: NodeId, cookie: u64);
}

/// The network. See the module's description.
pub struct Net {
    profile: Profile,
    faults: NetFaults,
    faulty: bool,
    rng: Rng,
    nodes: Vec<Node>,
    endpoints: Vec<Endpoint>,
    pairs: Vec<Pair>,
    operations: Slab,
    blocked: BTreeSet<(u32, u32)>,
    counters: NetCounters,
    close_is_seen: bool,
}

impl Net {
    /// A network without nodes. `close_is_seen` by default: the kernel of a crashed process
    /// tells its peers.
    pub fn new(profile: &Profile, faults: NetFaults, rng: Rng) -> Net {
        Net {
            profile: profile.clone(),
            faulty: faults != NetFaults::none(),
            faults,
            rng,
            nodes: Vec::new(),
            endpoints: Vec::new(),
            pairs: Vec::new(),
            operations: Slab::default(),
            blocked: BTreeSet::new(),
            counters: NetCounters::default(),
            close_is_seen: true,
        }
    }

    /// Other fault probabilities from now on, such as none for a run's quiet end.
    pub fn set_faults(&mut self, faults: NetFaults) {
        self.faulty = faults != NetFaults::none();
        self.faults = faults;
    }

    /// Whether peers of a crashed process are told at once, or find out by their retries.
    pub fn set_close_is_seen(&mut self, seen: bool) {
        self.close_is_seen = seen;
    }

    pub fn add_node(&mut self) -> NodeId {
        self.nodes.push(Node::new(&self.profile));
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// A process on a machine that is up.
    pub fn add_endpoint(&mut self, node: NodeId) -> EndpointId {
        assert!(self.nodes[node.0 as usize].up, "node {} is down", node.0);
        self.endpoints.push(Endpoint::new(node, self.profile.rnic.inline_max));
        EndpointId(self.endpoints.len() as u32 - 1)
    }

    /// Lets an endpoint's longer payloads be fetched by the card, from now on; at most the card's
    /// own `inline_max`, which is the default.
    pub fn set_inline_max(&mut self, endpoint: EndpointId, bytes: Bytes) {
        let limit = bytes.min(self.profile.rnic.inline_max);
        self.endpoints[endpoint.0 as usize].inline_max = limit;
    }

    /// What an endpoint's connections can do.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "sim",
            atomics_global: false,
            mapped: false,
            inline_bytes_max: self.profile.rnic.inline_max.0 as u32,
            mtu_bytes: self.profile.link.mtu.0 as u32,
            outstanding_max: self.profile.rnic.send_queue.0 as u32,
        }
    }

    pub fn counters(&self) -> &NetCounters {
        &self.counters
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The machine of an endpoint.
    pub fn node_of(&self, endpoint: EndpointId) -> NodeId {
        self.endpoints[endpoint.0 as usize].node
    }

    /// Operations that something still refers to.
    pub fn operations_alive(&self) -> usize {
        self.operations.alive()
    }

    pub fn operation(&self, token: u32) -> &Operation {
        &self.operations[token]
    }

    /// The node on which an operation is to be executed.
    pub fn target(&self, token: u32) -> NodeId {
        let operation = &self.operations[token];
        self.pairs[operation.pair as usize].sides[1 - operation.side as usize].node
    }

    /// The endpoint and connection at the target that an operation came in by, if there is a
    /// process.
    pub fn arrived_by(&self, token: u32) -> Option<(EndpointId, PeerId)> {
        let operation = &self.operations[token];
        let side = &self.pairs[operation.pair as usize].sides[1 - operation.side as usize];
        side.endpoint.map(|endpoint| (endpoint, side.peer))
    }

    /// Receives for datagrams that `endpoint` has posted in addition.
    pub fn post_receives(&mut self, endpoint: EndpointId, count: u32) {
        self.endpoints[endpoint.0 as usize].receives += count;
    }

    /// Gives the vector of a received message back, to be used again.
    pub fn recycle(&mut self, message: Vec<u8>) {
        self.operations.recycle(message);
    }

    /// Makes a connection. It can be posted to from its [`FabricEvent::Connected`] on (datagrams:
    /// at once); if it fails, [`FabricEvent::Closed`] comes instead. The target gets its own
    /// `Connected` (not for datagrams).
    pub fn connect(
        &mut self,
        now: Ps,
        from: EndpointId,
        to: impl Into<Remote>,
        kind: Connection,
        sink: &mut impl Sink,
    ) -> PeerId {
        self.connect_to(now, from, to.into(), kind, sink)
    }

    /// Posts a batch under one doorbell. `Err` carries how many were posted. Inline payload is
    /// read now. A verb that the kind of connection has not, a message of more than
    /// `MESSAGE_BYTES_MAX` or a datagram of more than the MTU completes as `BadRange`, in order.
    pub fn post(
        &mut self,
        now: Ps,
        endpoint: EndpointId,
        peer: PeerId,
        batch: &[WorkRequest<'_>],
        sink: &mut impl Sink,
    ) -> Result<(), (usize, PostError)> {
        self.post_batch(now, endpoint, peer, batch, None, sink)
    }

    /// Posts a write of `work`'s local pieces into a buffer that the other end has exposed, in
    /// order with messages. `work` is a SEND otherwise.
    pub fn post_write_back(
        &mut self,
        now: Ps,
        (endpoint, peer): (EndpointId, PeerId),
        to: Exposure,
        work: WorkRequest<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), PostError> {
        let posted = self.post_batch(now, endpoint, peer, &[work], Some(to), sink);
        posted.map_err(|(_, error)| error)
    }

    /// Goes on with what was scheduled for now.
    pub fn on_event(&mut self, now: Ps, event: NetEvent, sink: &mut impl Sink) {
        match event {
            NetEvent::Transmit { token } => self.on_transmit(now, token, sink),
            NetEvent::Fetch { token } => self.on_fetch(now, token, sink),
            NetEvent::Link(packet) => self.on_link(now, packet, sink),
            NetEvent::Switch(packet) => self.on_switch(now, packet, sink),
            NetEvent::Arrive(packet) => self.on_arrive(now, packet, sink),
            NetEvent::Execute { token } => self.on_execute(now, token, sink),
            NetEvent::Ack { token } => self.on_ack(now, token, sink),
            NetEvent::Unstall { node } => self.on_unstall(now, node, sink),
            NetEvent::Timer { connection, side } => self.on_timer(now, connection, side, sink),
            NetEvent::Connect { connection } => self.on_connect(now, connection, sink),
            NetEvent::Connected { connection } => self.on_connected(now, connection, sink),
            NetEvent::ConnectTimeout { connection } => {
                self.on_connect_timeout(now, connection, sink);
            }
            NetEvent::Close { connection, side } => self.on_close(now, connection, side, sink),
            NetEvent::Revoked { node, revocation } => {
                self.on_revoked(now, node, revocation, sink);
            }
        }
    }

    /// The answer to [`Sink::execute`]. Ignored if the target's process or power went meanwhile.
    pub fn executed(&mut self, now: Ps, token: u32, result: Executed<'_>, sink: &mut impl Sink) {
        self.on_executed(now, token, result, sink);
    }

    /// Ends a connection from here: what is outstanding completes as `Flushed`, then `Closed`
    /// comes, and the other end learns it one message later. On a connection that has ended here
    /// it only tells the other end, which after an error of this end knows nothing yet.
    pub fn close(&mut self, now: Ps, endpoint: EndpointId, peer: PeerId, sink: &mut impl Sink) {
        let (pair, side) = self.endpoints[endpoint.0 as usize].peers[peer.0 as usize];
        if self.pairs[pair as usize].sides[side as usize].stage != Stage::Closed {
            self.fail(now, pair, side, DeathCause::Closed, sink);
        }
        self.tell_close(now, pair, 1 - side, sink);
    }

    /// Ends all connections of an endpoint, as a card or a middlebox may; its process lives on.
    pub fn reset(&mut self, now: Ps, endpoint: EndpointId, sink: &mut impl Sink) {
        let peers = self.endpoints[endpoint.0 as usize].peers.len() as u32;
        (0..peers).for_each(|peer| self.close(now, endpoint, PeerId(peer), sink));
    }

    /// Withdraws a key at `node`: [`Sink::revoked`] comes when no operation under it is being
    /// executed any more and the card has confirmed. The world makes sure, before it calls this,
    /// that executions that begin later are refused.
    pub fn revoke(
        &mut self,
        now: Ps,
        node: NodeId,
        key: Generation,
        cookie: u64,
        sink: &mut impl Sink,
    ) {
        let at = now + self.profile.rnic.revoke;
        let revocation = self.nodes[node.0 as usize].begin_revocation(key, cookie);
        sink.schedule(at, NetEvent::Revoked { node: node.0, revocation });
    }

    /// Ends a process: it hears nothing more. What it has put on the network goes on.
    pub fn endpoint_down(
        &mut self,
        now: Ps,
        endpoint: EndpointId,
        how: Down,
        sink: &mut impl Sink,
    ) {
        self.take_endpoint_down(now, endpoint, how, sink);
    }

    /// Ends all processes of a node; with [`Down::Power`] also the card.
    pub fn node_down(&mut self, now: Ps, node: NodeId, how: Down, sink: &mut impl Sink) {
        for index in 0..self.endpoints.len() as u32 {
            if self.endpoints[index as usize].node == node {
                self.take_endpoint_down(now, EndpointId(index), how, sink);
            }
        }
        if how == Down::Power {
            self.forget_memory(node);
            let waiting = self.nodes[node.0 as usize].power_off(now);
            for packet in waiting {
                self.end_message(now, packet, sink);
                self.release(packet.token);
            }
        }
    }

    /// Switches a node on again. Its processes need new endpoints.
    pub fn node_up(&mut self, node: NodeId) {
        self.nodes[node.0 as usize].up = true;
    }

    /// Cuts (`on`) or heals the way `from` → `to`; both ways need two calls.
    pub fn partition(&mut self, from: NodeId, to: NodeId, on: bool) {
        if on {
            self.blocked.insert((from.0, to.0));
        } else {
            self.blocked.remove(&(from.0, to.0));
        }
    }

    pub fn heal(&mut self) {
        self.blocked.clear();
    }

    /// Makes a node's card take `percent` of its time for everything; 100 is normal.
    pub fn slow_node(&mut self, node: NodeId, percent: u32) {
        self.nodes[node.0 as usize].slow_percent = percent.max(1);
    }

    /// Stops a node with its card until `until`: what arrives waits.
    pub fn pause(&mut self, node: NodeId, until: Ps) {
        let node = &mut self.nodes[node.0 as usize];
        node.paused_until = node.paused_until.max(until);
    }
}
