//! The loop of a rack's daemon, without its waits: what it does with each thing that comes.
//!
//! In: doorbells of slots, control connections, messages of the fabric and of other hosts' agents,
//! answers of the master, time. Out: calls of the engine, and what a [`DaemonHost`] is to do. The
//! host's own loop waits, hands over what came, and then calls [`DaemonLoop::flush`].
//!
//! `clients.rs` has the slots of clients that map the memory, `hosts.rs` other hosts that have it,
//! `target.rs` what the fabric's target is told, `uplinks.rs` the fabric endpoint for clients
//! without one, `master.rs` the link to the master.

mod clients;
mod hosts;
mod master;
mod target;
mod uplinks;

pub use clients::{Client, Joining, User};
pub use master::{RackAddress, join_call, region_info};
pub use target::{FabricTarget, TargetCommand};

use super::master_link::Call;
use crate::constants::{MESSAGE_BYTES_MAX, RING_ENTRIES, SLOTS_MAX};
use crate::daemon::{
    Act, ClientId, Daemon, Handover, Proxy, RemoteMessage, Remotes, Rings, SessionInfo, World,
};
use crate::error::{Error, Result};
use crate::member::RackState;
use crate::seam::{FabricEvent, Nanos, PeerId, Section, Verb};
use crate::wire::{
    self, AgentEvent, ControlReply, RackInfo, RegionInfo, RemoteReply, ReplyFrame, RequestFrame,
    Routed,
};
use crate::{RackId, SessionId};
use hosts::Hosts;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;

/// Tries to put an answer into a ring. A client has room for the answers that it waits for, unless
/// a test says otherwise for a while.
const PUSHES_MAX: u32 = 16;

/// A piece of work that takes processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A look at a ring.
    Poll,
    /// A request or an order from a ring.
    Request,
}

/// Where a peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Slot(u32),
    Fabric,
}

/// What the loop needs of its process. Statically dispatched; no call may call the loop.
pub trait DaemonHost: Sized {
    type World: World<Mem: Section, Outbox = Handover>;
    /// A control connection to a client of this host.
    type Conn;
    /// A client's process, known by more than its number.
    type Process;

    fn now(&self) -> Nanos;
    /// Lets time pass that work costs, where time is virtual.
    fn charge(&self, _work: Work) {}
    /// For a reader of what happened, if there is one.
    fn trace(&self, _text: impl FnOnce() -> String) {}
    /// A peer broke the protocol, does not take its answers, or is gone.
    fn report(&self, at: Fault, error: &dyn Display);

    /// Opens the section of a slot of before, if it is there, and adds it to the world. `is_near`:
    /// its client is on this host.
    fn open_section(&mut self, world: &mut Self::World, slot: u32, is_near: bool);
    /// Makes the section of a slot and adds it to the world.
    ///
    /// # Errors
    /// If the host has no memory for it.
    fn create_section(&mut self, world: &mut Self::World, info: &SessionInfo) -> Result<()>;
    /// No process touches the section any more: takes it out of the world and removes it.
    fn remove_section(&mut self, world: &mut Self::World, slot: u32);
    /// Where the sections of a client start behind their descriptors, bytes.
    fn offsets(_world: &Self::World, _slot: u32) -> [u64; 4] {
        [0; 4]
    }
    /// A client is gone: what its host may have left in caches is written back before its slot, and
    /// what it held, may be given away.
    fn settle(&self, engine: &Daemon, world: &Self::World, slot: u32);

    /// Number and start of the process at the other end of a connection, if it may join.
    ///
    /// # Errors
    /// `denied`.
    fn identify(&self, conn: &Self::Conn) -> Result<(u64, u64)>;
    /// Says what came of a hello, and keeps the connection in mind.
    ///
    /// # Errors
    /// If the client cannot be told: its connection is over.
    fn welcome(&mut self, world: &Self::World, conn: &Self::Conn, reply: SlotGrant) -> Result<()>;
    /// Says with [`refusal`] that a hello is refused; the connection ends.
    fn refuse(&mut self, conn: Self::Conn, error: Error);
    /// The process of a slot, if it lives; its end is noticed from now on.
    ///
    /// # Errors
    /// If its end cannot be noticed.
    fn watch_process(&mut self, info: &SessionInfo) -> Result<Option<Self::Process>>;
    fn is_alive(&self, process: &Self::Process) -> bool;
    /// A client's connection and process are of no interest any more.
    fn unwatch(&mut self, client: &Client<Self>);
    /// Wakes a client for an answer, if it sleeps; whether it did.
    fn wake(&mut self, client: &Client<Self>) -> bool;
    /// Wakes a client for an outcome of what was done for it elsewhere.
    fn wake_for_outcome(&mut self, client: &Client<Self>);

    /// Hands the fabric's target what it is to do, in order.
    fn tell_target(&mut self, command: TargetCommand);
    /// As [`Uplinks::connect`](crate::daemon::Uplinks::connect).
    fn connect(&mut self, info: &RackInfo) -> Option<PeerId>;
    /// As [`Uplinks::post`](crate::daemon::Uplinks::post).
    fn post(&mut self, peer: PeerId, index: u32, verb: Verb, data: &[u8], bytes: u32);
    /// What a READ has brought.
    fn read(&self, peer: PeerId, index: u32, bytes: u32) -> &[u8];
    /// Posts what waits; what cannot be posted has ended.
    fn ring_doorbells(&mut self) -> Vec<FabricEvent>;
    /// Before the event of the own endpoint is looked at.
    fn before_event(&mut self, _event: &FabricEvent) {}
    /// After that. `closed`: a connection that is over.
    fn after_event(&mut self, closed: Option<PeerId>);

    /// Sends a call to the master; its number, or `None` if it cannot be sent now.
    fn call(&mut self, call: Call) -> Option<u64>;
    /// The master said what the rack is.
    fn on_rack_state(&mut self, was: RackState, is: RackState);
}

/// What a client is told that is let in.
#[derive(Debug)]
pub struct SlotGrant {
    pub slot: u32,
    /// The pages are to be handed over read-only.
    pub read_only: bool,
    pub region: RegionInfo,
}

/// What a loop begins with.
pub struct LoopParts<H: DaemonHost> {
    pub host: H,
    pub engine: Daemon,
    pub world: H::World,
    pub region: RegionInfo,
    pub rings: Rings,
    /// How long the session of a remote client outlives its connection, ms.
    pub session_grace_ms: u64,
    /// The identity of this process to other racks.
    pub session: SessionId,
    pub lease_ms: u64,
}

/// The loop: see the module. What is served under addresses goes before the region's lock, which
/// `world` has.
pub struct DaemonLoop<H: DaemonHost> {
    pub host: H,
    pub engine: Daemon,
    pub world: H::World,
    pub region: RegionInfo,
    /// Clients that map the memory, by slot.
    pub slots: Vec<Option<Client<H>>>,
    /// A quarter of the master's lease.
    pub heartbeat_ns: Nanos,
    hosts: Hosts,
    remotes: Remotes,
    /// Work for clients without a fabric endpoint.
    proxy: Proxy,
    /// Racks that the master is to be asked for.
    wanted: Vec<RackId>,
    /// Something was said to the endpoint, or by it, since the last flush.
    uplinks_touched: bool,
    /// Slots with requests, if they are taken one after the other.
    queued: Option<VecDeque<u32>>,
    joined: bool,
    /// The engine's numbers of calls under way, by those of the link.
    calls: BTreeMap<u64, u64>,
    /// Racks that the master was asked for.
    rack_calls: BTreeMap<u64, RackId>,
    buffer: Box<[u8]>,
}

impl<H: DaemonHost> DaemonLoop<H> {
    /// A loop around an engine that was just attached; [`DaemonLoop::recover`] comes next.
    pub fn new(parts: LoopParts<H>) -> Self {
        let LoopParts { host, engine, world, region, rings, session_grace_ms, session, lease_ms } =
            parts;
        Self {
            host,
            engine,
            world,
            region,
            slots: (0..SLOTS_MAX).map(|_| None).collect(),
            heartbeat_ns: lease_ms * 1_000_000 / 4,
            hosts: Hosts::default(),
            remotes: Remotes::new(session_grace_ms),
            proxy: Proxy::new(session),
            wanted: Vec::new(),
            uplinks_touched: false,
            queued: (rings == Rings::Single).then(VecDeque::new),
            joined: false,
            calls: BTreeMap::new(),
            rack_calls: BTreeMap::new(),
            buffer: vec![0; MESSAGE_BYTES_MAX as usize].into_boxed_slice(),
        }
    }

    /// A slot has something to be taken, now or in its turn; whether something was.
    pub fn on_bell(&mut self, slot: u32) -> bool {
        match &mut self.queued {
            None => return self.serve_slot(slot, RING_ENTRIES),
            Some(queued) if queued.contains(&slot) => {}
            Some(queued) => queued.push_back(slot),
        }
        false
    }

    /// Whether slots are served one after the other.
    pub fn is_queued(&self) -> bool {
        self.queued.is_some()
    }

    /// One request after the other, each to its end, if that is how rings are to be served.
    pub fn serve_queued(&mut self) -> bool {
        let mut worked = false;
        while self.proxy.under_way() == 0
            && let Some(slot) = self.queued.as_mut().and_then(VecDeque::pop_front)
        {
            if self.serve_slot(slot, 1) {
                worked = true;
                self.queued.as_mut().expect("it was popped from").push_back(slot);
            }
        }
        worked
    }

    /// Takes at most so many requests of a slot, and as many orders; whether there was something.
    pub fn serve_slot(&mut self, slot: u32, limit: u32) -> bool {
        let mut worked = false;
        for _ in 0..limit {
            let Some(client) = clients::connected(&mut self.slots, slot) else {
                self.host.trace(|| format!("slot {slot} has no client"));
                break;
            };
            self.host.charge(Work::Poll);
            let popped = client.requests.pop(|bytes| wire::decode::<RequestFrame>(bytes, "client"));
            match popped {
                None => break,
                Some(Ok(Ok(frame))) => {
                    self.host.charge(Work::Request);
                    // What was given back before the request counts before it.
                    self.engine.take_releases(slot, &mut self.world);
                    self.engine.on_request(ClientId::Slot(slot), frame, &mut self.world);
                }
                Some(Ok(Err(error))) => self.host.report(Fault::Slot(slot), &error),
                Some(Err(error)) => {
                    self.host.report(Fault::Slot(slot), &error);
                    break;
                }
            }
            worked = true;
        }
        if limit > 1 || !worked {
            worked |= self.serve_orders(slot, limit);
        }
        worked | self.engine.take_releases(slot, &mut self.world)
    }

    /// The fabric's target has a message, or a connection to it is over.
    pub fn on_fabric(&mut self, event: FabricEvent) {
        match event {
            FabricEvent::Received { peer, message } => self.on_remote(peer, &message),
            FabricEvent::Closed { peer, .. } => {
                let now = self.host.now();
                self.remotes.on_closed(peer, &mut self.engine, now);
                self.on_agent_closed(peer);
            }
            _ => {}
        }
    }

    fn on_remote(&mut self, peer: PeerId, message: &[u8]) {
        let (engine, world) = (&mut self.engine, &mut self.world);
        let mut acts = Vec::new();
        let message = RemoteMessage { from: peer, now: self.host.now(), bytes: message };
        let served = self.remotes.on_message(message, &self.region, engine, world, &mut acts);
        if let Err(error) = served {
            self.host.report(Fault::Fabric, &error);
        }
        acts.into_iter().for_each(|act| self.act(act));
    }

    fn act(&mut self, act: Act) {
        match TargetCommand::of(act, &mut self.buffer) {
            Ok(command) => self.host.tell_target(command),
            Err((peer, request)) => self.on_agent(peer, *request),
        }
    }

    /// Sessions of remote clients that did not come back in time end.
    pub fn expire(&mut self) {
        let now = self.host.now();
        for act in self.remotes.expire(now, &mut self.engine, &mut self.world) {
            self.act(act);
        }
    }

    /// Sends what the engine has said since the last time.
    pub fn flush(&mut self) {
        let mut replies = std::mem::take(&mut self.world.outbox().replies);
        for (to, frame) in replies.drain(..) {
            self.host.trace(|| format!("to {to:?}: {frame:?}"));
            match to {
                ClientId::Slot(slot) => self.reply(slot, &frame),
                ClientId::Remote(record) => {
                    if let Some(act) = self.remotes.answer(record, RemoteReply::Reply(frame)) {
                        self.act(act);
                    }
                }
            }
        }
        self.world.outbox().replies = replies;
        if std::mem::take(&mut self.uplinks_touched) || self.is_behind() {
            self.flush_uplinks();
        }
        for (to, job) in std::mem::take(&mut self.world.outbox().write_backs) {
            if let ClientId::Remote(record) = to
                && let Some(act) = self.remotes.write_back(record, job)
            {
                self.act(act);
            }
        }
        for (id, call) in std::mem::take(&mut self.world.outbox().calls) {
            // What cannot be sent now is asked for again by the engine when the master is back.
            if self.joined
                && let Some(sent) = self.host.call(call.into())
            {
                self.calls.insert(sent, id);
            }
        }
    }

    fn reply(&mut self, slot: u32, frame: &ReplyFrame) {
        let Some(client) = clients::connected(&mut self.slots, slot) else { return };
        let bytes = wire::encode(frame, &mut self.buffer).expect("answers fit");
        if !(0..PUSHES_MAX).any(|_| client.replies.push(bytes).is_ok()) {
            self.host.report(Fault::Slot(slot), &"it does not take its answers");
        }
        let is_asleep = self.host.wake(client);
        let agent = client.host.and_then(|tag| self.hosts.agent_of(tag));
        if let Some(agent) = agent.filter(|_| is_asleep) {
            self.send_agent(agent, AgentEvent::Wake { slot });
        }
    }

    fn send_agent(&mut self, agent: PeerId, event: AgentEvent) {
        let message = RemoteReply::Agent(event);
        self.act(Act::Send(agent, Routed { channel: 0, message }));
    }
}

impl SlotGrant {
    /// The message. `asymmetric_fence`, `beside_daemon`, `offsets`: see [`ControlReply`].
    pub fn encode(self, asymmetric_fence: bool, beside_daemon: bool, offsets: [u64; 4]) -> Vec<u8> {
        wire::encode_vec(&self.reply(asymmetric_fence, beside_daemon, offsets))
    }

    fn reply(self, asymmetric_fence: bool, beside_daemon: bool, offsets: [u64; 4]) -> ControlReply {
        let Self { slot, region, .. } = self;
        ControlReply::Welcome { slot, region, asymmetric_fence, beside_daemon, offsets }
    }
}

/// The message that refuses a connection.
pub fn refusal(error: Error) -> Vec<u8> {
    wire::encode_vec(&ControlReply::Refused(error))
}
