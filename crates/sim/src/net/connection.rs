//! Queue pairs: their two ends, how they are set up and how they end.

use super::{Connection, Down, EndpointId, Net, NetEvent, NodeId, Packet, Remote, Sink};
use crate::device::Bytes;
use crate::time::Ps;
use rackpool_core::error::DeathCause;
use rackpool_core::seam::{FabricEvent, PeerId, WorkStatus};
use std::collections::VecDeque;

/// A process's connections, by its own numbers: pair and end.
pub(super) struct Endpoint {
    pub node: NodeId,
    pub alive: bool,
    pub peers: Vec<(u32, u8)>,
    pub receives: u32,
    /// Longest payload that is inline.
    pub inline_max: Bytes,
}

impl Endpoint {
    pub fn new(node: NodeId, inline_max: Bytes) -> Endpoint {
        Endpoint { node, alive: true, peers: Vec::new(), receives: 0, inline_max }
    }
}

/// How far a connection, or one end of it, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    Up,
    Closed,
}

/// Both ends; 0 is the end that connected.
pub(super) struct Pair {
    pub kind: Connection,
    pub sides: [Side; 2],
}

/// The messages that one end puts on the cable: one after the other, as packets of a connection
/// are numbered.
#[derive(Default)]
pub(super) struct Stream {
    /// The only packet that may go next; `None` if any message may begin.
    pub next: Option<Packet>,
    /// First packets of messages that wait for that.
    pub waiting: VecDeque<Packet>,
}

/// One end: what it sends, and how far it has received.
pub(super) struct Side {
    pub node: NodeId,
    /// `None` for mere memory.
    pub endpoint: Option<EndpointId>,
    pub peer: PeerId,
    pub stage: Stage,
    /// Posted and not completed, in order.
    pub queue: VecDeque<u32>,
    /// Next number of a work request here.
    pub next_sequence: u32,
    /// Next number expected from the other end.
    pub expected: u32,
    /// READs and atomics under way.
    pub reads: u32,
    /// A READ waits for another, and all behind it.
    pub stalled: bool,
    pub fetching: u32,
    /// Its requests, and its answers.
    pub streams: [Stream; 2],
    /// Its requests leave the card in order.
    pub last_departure: Ps,
    /// What it sends arrives in order.
    pub last_arrival: Ps,
    /// What it receives takes effect in order.
    pub last_effect: Ps,
    /// Its completions come in order.
    pub last_completion: Ps,
    /// When something was last heard or sent.
    pub progress: Ps,
    pub timer: bool,
    pub attempts: u32,
    /// Where its card holds the connection's state.
    pub cache_slot: u32,
    /// An operation from the other end is being executed.
    pub executing: bool,
    /// Others that wait for it.
    pub held: VecDeque<u32>,
}

impl Side {
    fn new(node: NodeId, endpoint: Option<EndpointId>, peer: PeerId) -> Side {
        Side {
            node,
            endpoint,
            peer,
            stage: Stage::Connecting,
            queue: VecDeque::new(),
            next_sequence: 0,
            expected: 0,
            reads: 0,
            stalled: false,
            fetching: 0,
            streams: Default::default(),
            last_departure: Ps::ZERO,
            last_arrival: Ps::ZERO,
            last_effect: Ps::ZERO,
            last_completion: Ps::ZERO,
            progress: Ps::ZERO,
            timer: false,
            attempts: 0,
            cache_slot: u32::MAX,
            executing: false,
            held: VecDeque::new(),
        }
    }

    pub fn is_usable(&self) -> bool {
        self.stage == Stage::Up
    }
}

/// When an end that has nothing to send finds out that the other one is gone: probes after 5 s of
/// silence, then every second, five times (as the tcp fabric sets its sockets).
const KEEP_ALIVE: Ps = Ps::ms(10_000);

impl Net {
    pub(super) fn connect_to(
        &mut self,
        now: Ps,
        from: EndpointId,
        to: Remote,
        kind: Connection,
        sink: &mut impl Sink,
    ) -> PeerId {
        assert!(self.endpoints[from.0 as usize].alive, "endpoint {} is dead", from.0);
        let pair = self.pairs.len() as u32;
        let peer = self.add_peer(from, pair, 0);
        let (node, endpoint) = match to {
            Remote::Node(node) => (node, None),
            Remote::Endpoint(endpoint) => (self.node_of(endpoint), Some(endpoint)),
        };
        let there = endpoint.map_or(PeerId(0), |endpoint| self.add_peer(endpoint, pair, 1));
        let here = Side::new(self.node_of(from), Some(from), peer);
        self.pairs.push(Pair { kind, sides: [here, Side::new(node, endpoint, there)] });
        if kind == Connection::Datagram {
            self.pairs[pair as usize].sides.iter_mut().for_each(|side| side.stage = Stage::Up);
            sink.deliver(now, from, FabricEvent::Connected { peer });
            return peer;
        }
        let message = self.profile.tcp.message;
        let patience = self.patience(kind);
        sink.schedule(now + message, NetEvent::Connect { connection: pair });
        sink.schedule(now + message + patience, NetEvent::ConnectTimeout { connection: pair });
        peer
    }

    fn add_peer(&mut self, endpoint: EndpointId, pair: u32, side: u8) -> PeerId {
        let peers = &mut self.endpoints[endpoint.0 as usize].peers;
        peers.push((pair, side));
        PeerId(peers.len() as u32 - 1)
    }

    /// How long a silent peer is tried.
    fn patience(&self, kind: Connection) -> Ps {
        let (interval, retries) = self.retransmission(kind);
        interval.times(u64::from(retries) + 1)
    }

    /// Whether messages get from one node to another; counts those that do not.
    pub(super) fn is_open(&mut self, from: NodeId, to: NodeId) -> bool {
        let open = self.blocked.is_empty() || !self.blocked.contains(&(from.0, to.0));
        self.counters.partitioned += u64::from(!open);
        open
    }

    /// Whether the end has a living process, or is memory of a node that is up.
    pub(super) fn is_alive(&self, pair: u32, side: u8) -> bool {
        let side = &self.pairs[pair as usize].sides[side as usize];
        let node = &self.nodes[side.node.0 as usize];
        node.up && side.endpoint.is_none_or(|endpoint| self.endpoints[endpoint.0 as usize].alive)
    }

    fn nodes_of(&self, pair: u32) -> [NodeId; 2] {
        let sides = &self.pairs[pair as usize].sides;
        [sides[0].node, sides[1].node]
    }

    fn stage(&mut self, pair: u32, side: u8) -> &mut Stage {
        &mut self.pairs[pair as usize].sides[side as usize].stage
    }

    fn announce(&mut self, now: Ps, pair: u32, side: u8, sink: &mut impl Sink) {
        let side = &self.pairs[pair as usize].sides[side as usize];
        if let Some(endpoint) = side.endpoint {
            sink.deliver(now, endpoint, FabricEvent::Connected { peer: side.peer });
        }
    }

    pub(super) fn on_connect(&mut self, now: Ps, pair: u32, sink: &mut impl Sink) {
        let [from, to] = self.nodes_of(pair);
        let answers = self.nodes[to.0 as usize].up && self.is_open(from, to);
        if !answers || *self.stage(pair, 1) != Stage::Connecting {
            return;
        }
        if !self.is_alive(pair, 1) {
            // The node's kernel refuses in the name of the dead process.
            self.tell_close(now, pair, 0, sink);
            return;
        }
        *self.stage(pair, 1) = Stage::Up;
        self.announce(now, pair, 1, sink);
        if self.is_open(to, from) {
            let at = now + self.profile.tcp.message;
            sink.schedule(at, NetEvent::Connected { connection: pair });
        }
    }

    pub(super) fn on_connected(&mut self, now: Ps, pair: u32, sink: &mut impl Sink) {
        if *self.stage(pair, 0) == Stage::Connecting && self.is_alive(pair, 0) {
            *self.stage(pair, 0) = Stage::Up;
            self.announce(now, pair, 0, sink);
        }
    }

    pub(super) fn on_connect_timeout(&mut self, now: Ps, pair: u32, sink: &mut impl Sink) {
        if *self.stage(pair, 0) == Stage::Connecting && self.is_alive(pair, 0) {
            self.fail(now, pair, 0, DeathCause::Silent, sink);
        }
    }

    /// Sends the news of an end to `side`.
    pub(super) fn tell_close(&mut self, now: Ps, pair: u32, side: u8, sink: &mut impl Sink) {
        let nodes = self.nodes_of(pair);
        let is_open = self.is_open(nodes[1 - side as usize], nodes[side as usize]);
        let after = if is_open { self.profile.tcp.message } else { KEEP_ALIVE };
        sink.schedule(now + after, NetEvent::Close { connection: pair, side });
    }

    /// The other end is silent for good: this one finds out when its probes stay unanswered.
    pub(super) fn miss_peer(&mut self, now: Ps, pair: u32, side: u8, sink: &mut impl Sink) {
        sink.schedule(now + KEEP_ALIVE, NetEvent::Close { connection: pair, side });
    }

    pub(super) fn on_close(&mut self, now: Ps, pair: u32, side: u8, sink: &mut impl Sink) {
        let stage = *self.stage(pair, side);
        if side == 1 && stage == Stage::Connecting {
            // It has not heard of the connection and shall not.
            *self.stage(pair, side) = Stage::Closed;
        } else if stage != Stage::Closed && self.is_alive(pair, side) {
            self.fail(now, pair, side, DeathCause::Closed, sink);
        }
    }

    /// Ends a connection at one end: all work completes, then `Closed` comes.
    pub(super) fn fail(
        &mut self,
        now: Ps,
        pair: u32,
        side: u8,
        cause: DeathCause,
        sink: &mut impl Sink,
    ) {
        let end = &mut self.pairs[pair as usize].sides[side as usize];
        end.stage = Stage::Closed;
        let (endpoint, peer) = (end.endpoint, end.peer);
        let at = now.max(end.last_completion);
        let queue = std::mem::take(&mut end.queue);
        self.counters.qp_errors += u64::from(cause == DeathCause::Silent);
        for token in queue {
            let operation = &mut self.operations[token];
            operation.queued = false;
            let unsent = !operation.sent && !operation.done;
            let status = match operation.done {
                true => operation.outcome,
                false => WorkStatus::Flushed { executed: unsent.then_some(false) },
            };
            let silent = operation.done && !operation.signalled && is_success(status);
            let id = operation.id;
            if let Some(endpoint) = endpoint.filter(|_| !silent) {
                sink.deliver(at, endpoint, FabricEvent::Completed { peer, id, status });
            }
            self.tear(now, token, sink);
            self.release(token);
        }
        if let Some(endpoint) = endpoint {
            sink.deliver(at, endpoint, FabricEvent::Closed { peer, cause });
        }
        self.drop_held(pair, side);
    }

    /// Forgets operations that wait for execution at a closed end.
    fn drop_held(&mut self, pair: u32, side: u8) {
        let held = std::mem::take(&mut self.pairs[pair as usize].sides[side as usize].held);
        for token in held {
            self.release(token);
        }
    }

    pub(super) fn take_endpoint_down(
        &mut self,
        now: Ps,
        endpoint: EndpointId,
        how: Down,
        sink: &mut impl Sink,
    ) {
        if !std::mem::replace(&mut self.endpoints[endpoint.0 as usize].alive, false) {
            return;
        }
        let peers = self.endpoints[endpoint.0 as usize].peers.clone();
        for (pair, side) in peers {
            if std::mem::replace(self.stage(pair, side), Stage::Closed) == Stage::Closed {
                continue;
            }
            let end = &mut self.pairs[pair as usize].sides[side as usize];
            let queue = std::mem::take(&mut end.queue);
            for token in queue {
                self.operations[token].queued = false;
                self.tear(now, token, sink);
                self.release(token);
            }
            self.abort_execution(pair, side);
            self.drop_held(pair, side);
            if how == Down::Crash && self.close_is_seen {
                self.tell_close(now, pair, 1 - side, sink);
            } else {
                self.miss_peer(now, pair, 1 - side, sink);
            }
        }
    }

    /// Connections to the memory of a node end with its power.
    pub(super) fn forget_memory(&mut self, node: NodeId) {
        for pair in 0..self.pairs.len() as u32 {
            let side = &mut self.pairs[pair as usize].sides[1];
            if side.node == node && side.endpoint.is_none() && side.stage != Stage::Closed {
                side.stage = Stage::Closed;
                self.abort_execution(pair, 1);
                self.drop_held(pair, 1);
            }
        }
    }

    pub(super) fn release(&mut self, token: u32) {
        self.operations.release(token);
    }
}

pub(super) fn is_success(status: WorkStatus) -> bool {
    matches!(status, WorkStatus::Done(_))
}
