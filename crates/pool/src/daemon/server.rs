//! The poll loop of a daemon. One thread serves the rings of local clients, their control
//! sockets, the messages of remote clients, and the master; it spins while there is work, then
//! yields, then sleeps in the poller until a client rings the doorbell or a socket is readable.

use super::clients::{Clients, TOKEN_PENDING, TOKEN_PROCESS, TOKEN_SLOT, Welcome};
use super::helper::HelperThread;
use super::hosts::{Hosts, Rack};
use super::opening::{
    RegionOpening, master_link, open_region, rack_info, region_info, start_target,
};
use super::standing::{Membership, StateChange};
use super::uplinks::{FabricUplinks, Turn};
use super::world::RegionWorld;
use super::{
    Belongs, DaemonOptions, Ended, Stop, control_name, io_error, relocation, standby, sweep,
};
use crate::acceptor::Acceptor;
use crate::clock;
use crate::link::MasterLink;
use crate::metrics::{self, DaemonSnapshot, Endpoint, SnapshotRequests};
use rackpool_core::constants::{LEASE_MS_DEFAULT, MESSAGE_BYTES_MAX, RING_ENTRIES, TICK_NS};
use rackpool_core::daemon::{
    Act, ClientId, ClientRoute, Daemon, Proxy, RemoteMessage, Remotes, Rings, WriteBack,
};
use rackpool_core::member::{MemberAnswer, RackState};
use rackpool_core::seam::{FabricEvent, Nanos, PeerId};
use rackpool_core::wire::{
    self, AgentEvent, AgentRequest, MasterAnswer, MasterCall, MasterReply, RackInfo, RegionInfo,
    RemoteReply, RequestFrame, Routed,
};
use rackpool_core::{Error, RackId, Result};
use rackpool_hw::control;
use rackpool_hw::event::{Interest, Poller, Readiness, WakeEvent};
use rackpool_hw::fabric::{FabricOptions, Target, tcp};
use rackpool_hw::process::Shutdown;
use rackpool_hw::region::{Claim, RegionError, RegionFiles};
use rackpool_hw::ring::bitmap::Bitmap;
use rackpool_hw::wait::{Pause, Waiter};
use rackpool_hw::warn;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const TOKEN_LISTENER: u64 = 1;
const TOKEN_WAKE: u64 = 2;
const TOKEN_MASTER: u64 = 3;
const TOKEN_STOP: u64 = 4;
const TOKEN_UPLINKS: u64 = 5;

/// Turns in which only rings are looked at, between two that look at everything: a turn over the
/// rings costs some 10 ns, one over everything some 200.
const RINGS_TURNS: u32 = 16;
/// How often sockets are looked at while rings are busy, ns.
const SOCKETS_NS: u64 = 50_000;
/// How long a daemon that is stopped goes on until the threads beside it have ended, ns.
const HELPERS_END_NS: u64 = 500_000_000;
/// Longest sleep, ns: a doorbell that a dying client did not ring is noticed by then.
const SLEEP_NS_MAX: u64 = 100_000_000;

pub(super) struct Server {
    options: DaemonOptions,
    stop: Arc<Stop>,
    engine: Daemon,
    /// What is served under addresses and names goes before the region's lock, which `world` has:
    /// the daemon that gets the lock next takes them.
    target: Target,
    acceptor: Acceptor,
    world: RegionWorld,
    clients: Clients,
    hosts: Hosts,
    remotes: Remotes,
    /// Work for clients without a fabric endpoint, and the endpoint that it is done on.
    proxy: Proxy,
    uplinks: FabricUplinks,
    /// Slots with requests, if they are taken one after the other.
    queued: Option<VecDeque<u32>>,
    bell: Bitmap,
    wake: WakeEvent,
    poller: Poller,
    master: MasterLink,
    joined: bool,
    heartbeat_at: Nanos,
    ticked_at: Nanos,
    /// A quarter of the master's lease.
    heartbeat_ns: u64,
    calls: BTreeMap<u64, u64>,
    /// Racks that the master was asked for.
    rack_calls: BTreeMap<u64, RackId>,
    connections: u64,
    /// Why the master does not want this rack, to be said once.
    refused: Option<Error>,
    region: RegionInfo,
    buffer: Box<[u8]>,
    readiness: Vec<Readiness>,
    events: Vec<FabricEvent>,
    relocation: HelperThread,
    sweeps: HelperThread,
    membership: Membership,
    /// The rack is no member any more, and no process of this host needs the daemon.
    wants_end: bool,
    metrics: Option<(SnapshotRequests<DaemonSnapshot>, Endpoint)>,
    /// Says to the rack's other daemons that the shard's own one lives. Last: it goes after the
    /// region's lock.
    _claim: Option<Claim>,
}

impl Server {
    pub(super) fn open(options: DaemonOptions, belongs: Belongs, stop: Arc<Stop>) -> Result<Self> {
        let asymmetric = rackpool_hw::barrier::register().is_ok();
        options.check()?;
        let fabric = options.fabric_options();
        // Before a region is made: what is not here is said at once.
        let uplinks = FabricUplinks::new(fabric.clone())?;
        let (files, is_new, claim) = standby::region_of(&options, belongs)?;
        let spec = files.spec().clone();
        let (ways, mut joined) = ((fabric, uplinks, asymmetric), false);
        let region = (files, is_new, claim);
        let opened = Self::open_on(region, options, belongs, stop, ways, &mut joined);
        if opened.is_err() && is_new && !joined {
            // Nothing is in it. If another daemon has found it meanwhile, it is that one's; if the
            // master has heard of it after all, the next one is that of a host that booted again.
            match RegionFiles::remove_path(&spec) {
                Ok(_) | Err(RegionError::Locked { .. }) => {}
                Err(error) => warn!("rackpool", "removing the new region: {error}"),
            }
        }
        opened
    }

    fn open_on(
        (files, is_new, claim): (RegionFiles, bool, Option<Claim>),
        options: DaemonOptions,
        belongs: Belongs,
        stop: Arc<Stop>,
        (fabric, uplinks, asymmetric): (FabricOptions, FabricUplinks, bool),
        joined: &mut bool,
    ) -> Result<Self> {
        let rack = options.home()?;
        options.check_coherence(files.coherence())?;
        let cells = Target::cells(fabric.over, files.layout());
        let opening = RegionOpening { files, rack, asymmetric, cells, is_new, belongs, claim };
        let (mut world, mut engine, claim) = open_region(opening)?;
        engine.set_policy(options.migration);
        engine.set_balance(options.balance);
        engine.set_client_quota(options.client_quota_bytes, &world);
        let wake = WakeEvent::new().map_err(|e| io_error("wake event", &e))?;
        let target = start_target(&options, &fabric, engine.layout(), &mut world, &wake)?;
        let region = region_info(&engine, &options, world.files.coherence());
        let access = control::access(options.allowed_users.iter().copied());
        let control = control_name(rack, engine.region_id());
        let acceptor = Acceptor::bind(&control, TOKEN_LISTENER, access)
            .map_err(|e| io_error("control socket", &e))?;
        let rack_info = rack_info(&engine, &options, acceptor.name().into(), target.local_addr())?;
        let remotes = Remotes::new(options.session_grace_ms);
        let membership = Membership::new(options.left_grace_ms);
        let master = master_link(&options, rack_info);
        let queued = (options.rings == Rings::Single).then(VecDeque::new);
        let mut server = Self {
            master,
            bell: Bitmap::attach(world.bell.clone()),
            poller: Poller::new().map_err(|e| io_error("epoll", &e))?,
            uplinks,
            options,
            stop,
            engine,
            world,
            clients: Clients::new(acceptor.access().clone()),
            hosts: Hosts::default(),
            remotes,
            proxy: Proxy::new(crate::local::new_session()?),
            queued,
            target,
            acceptor,
            wake,
            joined: false,
            heartbeat_at: 0,
            ticked_at: 0,
            heartbeat_ns: LEASE_MS_DEFAULT * 1_000_000 / 4,
            calls: BTreeMap::new(),
            rack_calls: BTreeMap::new(),
            connections: 0,
            refused: None,
            region,
            buffer: vec![0; MESSAGE_BYTES_MAX as usize].into_boxed_slice(),
            readiness: Vec::new(),
            events: Vec::new(),
            relocation: HelperThread::default(),
            sweeps: HelperThread::default(),
            membership,
            wants_end: false,
            metrics: None,
            _claim: claim,
        };
        let begun = server.begin();
        *joined = server.joined;
        begun.map(|()| server)
    }

    /// Clients of the daemon's earlier process first: they are known when the master learns of this
    /// one.
    fn begin(&mut self) -> Result<()> {
        self.watch()?;
        self.clients.recover(&mut self.engine, &mut self.world, &self.poller)?;
        self.remotes.recover(&self.engine, clock::now_ns());
        if let Some(listen) = self.options.metrics {
            let place = metrics::Place { listen, token: self.options.metrics_token.clone() };
            let (text, ready) = (metrics::daemon_text, metrics::daemon_ready);
            let (endpoint, door) = metrics::start(&place, &self.wake, text, ready)?;
            self.metrics = Some((door, endpoint));
        }
        self.join_master()?;
        if self.engine.counts_use() || self.engine.balances() {
            relocation::start(&mut self.relocation, &self.options, &self.wake)?;
        }
        Ok(())
    }

    fn watch(&mut self) -> Result<()> {
        let add = |result: std::io::Result<()>| result.map_err(|e| io_error("epoll", &e));
        add(self.acceptor.watch(&self.poller))?;
        add(self.poller.add(&self.wake, TOKEN_WAKE, Interest::Read))?;
        let master = self.master.fd().map_err(|e| io_error("epoll", &e))?;
        add(self.poller.add(master, TOKEN_MASTER, Interest::Read))?;
        add(self.poller.add(self.uplinks.prepare_sleep()?, TOKEN_UPLINKS, Interest::Read))?;
        add(self.poller.add(&self.stop.wake, TOKEN_STOP, Interest::Read))
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.target.local_addr()
    }

    pub(super) fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(_, thread)| thread.local_addr())
    }

    /// Joins the master before any client is served: a rack that clients cannot find is no rack.
    fn join_master(&mut self) -> Result<()> {
        let deadline_ns = clock::deadline_ns(self.options.join_timeout_ms);
        while !self.joined {
            match self.poll_master(clock::now_ns()) {
                Err(error) if !error.may_retry() => return Err(error),
                _ => {}
            }
            if clock::now_ns() >= deadline_ns {
                let waited_ms = self.options.join_timeout_ms;
                return Err(self.master.silence(waited_ms));
            }
            if self.stop.is_requested() || Shutdown::was_requested() {
                return Err(Error::Denied { reason: "stopped before the master answered".into() });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(super) fn run(&mut self, shutdown: Option<Shutdown>) -> Result<Ended> {
        if let Some(shutdown) = &shutdown
            && let Err(error) = self.poller.add(shutdown, TOKEN_STOP, Interest::Read)
        {
            warn!("rackpool", "watching for signals: {error}");
        }
        let (mut sockets_at, mut tick_at, mut turn) = (0, 0, 0u32);
        let mut waiter = Waiter::new();
        let mut end_at = None;
        let is_asked = |stop: &Stop| {
            stop.is_requested() || shutdown.as_ref().is_some_and(|one| one.is_requested())
        };
        loop {
            if self.wants_end || is_asked(&self.stop) {
                let now = clock::now_ns();
                if self.may_end(*end_at.get_or_insert(now + HELPERS_END_NS), now) {
                    break;
                }
            }
            let mut worked = self.serve_rings();
            turn = turn.wrapping_add(1);
            if turn.is_multiple_of(RINGS_TURNS) {
                worked |= self.serve_unheard();
                worked |= self.serve_fabric();
                worked |= self.serve_uplinks();
                let now = clock::now_ns();
                if now >= sockets_at {
                    worked |= self.serve_sockets(Some(Duration::ZERO));
                    sockets_at = now + SOCKETS_NS;
                }
                if now >= tick_at {
                    self.tick(now);
                    tick_at = now + TICK_NS;
                }
            }
            self.flush();
            if worked {
                waiter.progressed();
            } else if waiter.pause() == Pause::Sleep {
                self.sleep();
                self.engine.note_time(clock::now_ns());
                // Whatever woke the loop is looked for at once.
                turn = RINGS_TURNS - 1;
                waiter.progressed();
            }
        }
        self.membership.ended(self.engine.rack())
    }

    /// Whether nothing is under way that needs this loop: the threads beside it have ended, or take
    /// too long.
    fn may_end(&self, end_at: Nanos, now: Nanos) -> bool {
        self.stop_helpers() || now >= end_at
    }

    /// Asks the threads beside the loop to end; whether they have.
    fn stop_helpers(&self) -> bool {
        let is_still = self.relocation.stop();
        self.sweeps.stop() && is_still
    }

    fn sleep(&mut self) {
        if self.bell.prepare_sleep() && !self.has_unheard() {
            let idle_ns = SLEEP_NS_MAX.min(self.heartbeat_ns);
            let behind_ns = self.proxy.is_behind().then_some(TICK_NS);
            let tick_ns = self.engine.tick_ns().unwrap_or(idle_ns);
            let ns = behind_ns.unwrap_or(idle_ns).min(tick_ns);
            if let Err(error) = self.uplinks.prepare_sleep() {
                warn!("rackpool", "{error}");
            }
            self.serve_sockets(Some(Duration::from_nanos(ns)));
        }
        self.bell.awake();
    }

    /// Looked at after it was said that the daemon sleeps: a client that writes a request later
    /// rings its doorbell.
    fn has_unheard(&self) -> bool {
        !self.region.coherence.is_hardware() && !self.clients.unheard().is_empty()
    }

    /// Drains the request rings with their bit set. Bounded by the rings' length.
    fn serve_rings(&mut self) -> bool {
        let mut worked = false;
        for word in 0..self.bell.words() {
            let mut bits = self.bell.take(word);
            while bits != 0 {
                let slot = word * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                worked |= self.on_bell(slot);
            }
        }
        worked | self.serve_queued()
    }

    /// A slot has something to be taken, now or in its turn.
    fn on_bell(&mut self, slot: u32) -> bool {
        match &mut self.queued {
            None => return self.serve_slot(slot, RING_ENTRIES),
            Some(queued) if queued.contains(&slot) => {}
            Some(queued) => queued.push_back(slot),
        }
        false
    }

    /// Serves clients with a doorbell that is not seen here, because software alone keeps their
    /// host coherent with this one: a look at each of their rings.
    fn serve_unheard(&mut self) -> bool {
        if self.region.coherence.is_hardware() {
            return false;
        }
        let unheard = self.clients.unheard();
        unheard.into_iter().fold(false, |worked, slot| worked | self.on_bell(slot))
    }

    /// One request after the other, each to its end, if that is how rings are to be served.
    fn serve_queued(&mut self) -> bool {
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

    /// Takes at most so many requests of a slot, and as many orders.
    fn serve_slot(&mut self, slot: u32, limit: u32) -> bool {
        let mut worked = false;
        for _ in 0..limit {
            let client = self.clients.slots[slot as usize].as_mut();
            let Some(client) = client.filter(|client| client.is_connected()) else { break };
            let popped = client.requests.pop(|bytes| wire::decode::<RequestFrame>(bytes, "client"));
            match popped {
                None => break,
                Some(Ok(Ok(frame))) => {
                    // What was given back before the request counts before it.
                    self.engine.take_releases(slot, &mut self.world);
                    self.engine.on_request(ClientId::Slot(slot), frame, &mut self.world);
                }
                Some(Ok(Err(error))) => warn!("rackpool", "slot {slot}: {error}"),
                Some(Err(error)) => {
                    warn!("rackpool", "slot {slot}: {error}");
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

    /// What works for clients without a fabric endpoint, and its world.
    fn proxied(&mut self) -> (&mut Proxy, Turn<'_>) {
        let turn = Turn {
            links: &mut self.uplinks,
            clients: &mut self.clients,
            buffer: &mut self.buffer,
            now: clock::now_ns(),
        };
        (&mut self.proxy, turn)
    }

    /// Takes what a client wants done in other racks; bounded as the ring is.
    fn serve_orders(&mut self, slot: u32, limit: u32) -> bool {
        let client = self.clients.slots[slot as usize].as_mut();
        let client = client.filter(|client| client.is_connected());
        let Some(mut orders) = client.and_then(|client| client.orders.take()) else { return false };
        let (mut taken, (proxy, mut turn)) = (0, self.proxied());
        while taken < limit
            && let Some(popped) = orders.pop(|order| proxy.on_order(slot, order, &mut turn))
        {
            taken += 1;
            match popped {
                Ok(Ok(())) => {}
                Ok(Err(error)) => warn!("rackpool", "slot {slot}: {error}"),
                Err(error) => {
                    warn!("rackpool", "slot {slot}: {error}");
                    break;
                }
            }
        }
        if let Some(client) = self.clients.slots[slot as usize].as_mut() {
            client.orders = Some(orders);
        }
        taken > 0
    }

    /// What came of the work for clients, and what they ordered since: one doorbell a connection.
    fn serve_uplinks(&mut self) -> bool {
        let mut events = std::mem::take(&mut self.events);
        self.uplinks.poll(clock::now_ns(), &mut events);
        let worked = !events.is_empty();
        let (proxy, mut turn) = self.proxied();
        for event in events.drain(..) {
            let closed = match &event {
                FabricEvent::Closed { peer, .. } => Some(*peer),
                _ => None,
            };
            proxy.on_event(event, &mut turn);
            if let Some(peer) = closed {
                turn.links.forget(peer);
            }
        }
        proxy.deliver(&mut turn);
        self.world.proxy = self.proxy.counts();
        self.events = events;
        for rack in self.uplinks.take_wanted() {
            let sent = self.joined.then(|| self.master.send(MasterCall::Rack { rack }));
            match sent {
                Some(Ok(id)) => drop(self.rack_calls.insert(id, rack)),
                _ => self.on_rack(rack, Err(Error::Busy { what: "the master".into(), limit: 0 })),
            }
        }
        self.uplinks.ring_doorbells();
        worked
    }

    fn on_rack(&mut self, rack: RackId, answer: Result<RackInfo>) {
        let (proxy, mut turn) = self.proxied();
        proxy.on_rack(rack, answer, &mut turn);
    }

    /// Clients with rings that were made anew, or that are gone, do nothing elsewhere any more.
    fn end_proxied(&mut self) {
        for (slot, is_gone) in std::mem::take(&mut self.clients.ended) {
            let (proxy, mut turn) = self.proxied();
            if is_gone {
                proxy.on_slot_gone(slot, &mut turn);
            } else {
                proxy.on_slot_reset(slot, &mut turn);
            }
        }
    }

    fn serve_fabric(&mut self) -> bool {
        let mut events = std::mem::take(&mut self.events);
        self.target.poll(&mut events);
        let worked = !events.is_empty();
        for event in events.drain(..) {
            match event {
                FabricEvent::Received { peer, message } => self.on_remote(peer, &message),
                FabricEvent::Closed { peer, .. } => {
                    self.remotes.on_closed(peer, &mut self.engine, clock::now_ns());
                    self.hosts.on_closed(peer, &mut self.clients);
                }
                _ => {}
            }
        }
        self.events = events;
        worked
    }

    /// The agent of another host of the rack sent something.
    fn on_agent(&mut self, peer: PeerId, says: AgentRequest) {
        let Self { clients, engine, world, poller, .. } = self;
        let mut rack = Rack { clients, engine, world, poller };
        let welcome = Welcome { region: &self.region };
        let now = clock::now_ns();
        let (answer, replaced) = self.hosts.hear(peer, now, says, &mut rack, &welcome);
        replaced.into_iter().for_each(|old| self.target.close(old));
        if let Some(answer) = answer {
            let message = RemoteReply::Agent(answer);
            self.send_remote(peer, &Routed { channel: 0, message });
        }
        self.end_proxied();
    }

    fn on_remote(&mut self, peer: PeerId, message: &[u8]) {
        let (engine, world) = (&mut self.engine, &mut self.world);
        let mut acts = Vec::new();
        let message = RemoteMessage { from: peer, now: clock::now_ns(), bytes: message };
        let served = self.remotes.on_message(message, &self.region, engine, world, &mut acts);
        if let Err(error) = served {
            warn!("rackpool", "{error}");
        }
        for act in acts {
            self.act(act);
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Close(peer) => self.target.close(peer),
            Act::Send(peer, reply) => self.send_remote(peer, &reply),
            Act::WriteBack(place, job) => self.write_back(place, *job),
            Act::Agent(peer, says) => self.on_agent(peer, *says),
        }
    }

    fn send_remote(&mut self, peer: PeerId, reply: &Routed<RemoteReply>) {
        let sent = match wire::encode(reply, &mut self.buffer) {
            Ok(bytes) => self.target.send(peer, bytes).is_ok(),
            Err(_) => false,
        };
        if !sent {
            // The client does not take its answers; when it comes back it asks again.
            self.target.close(peer);
        }
    }

    /// Sends what the engine has said since the last time.
    fn flush(&mut self) {
        let mut replies = std::mem::take(&mut self.world.replies);
        for (to, frame) in replies.drain(..) {
            match to {
                ClientId::Slot(slot) => {
                    let client = self.clients.slots[slot as usize].as_mut();
                    let Some(client) = client.filter(|client| client.is_connected()) else {
                        continue;
                    };
                    let pushed = wire::encode(&frame, &mut self.buffer)
                        .map(|bytes| client.replies.push(bytes).is_ok());
                    if pushed != Ok(true) {
                        warn!("rackpool", "slot {slot} does not take its answers");
                    }
                    let is_asleep = client.replies.wake_if_sleeping();
                    let agent = client.host.and_then(|tag| self.hosts.agent_of(tag));
                    if let Some(agent) = agent.filter(|_| is_asleep) {
                        let message = RemoteReply::Agent(AgentEvent::Wake { slot });
                        self.send_remote(agent, &Routed { channel: 0, message });
                    }
                }
                ClientId::Remote(record) => {
                    if let Some(act) = self.remotes.answer(record, RemoteReply::Reply(frame)) {
                        self.act(act);
                    }
                }
            }
        }
        self.world.replies = replies;
        for (to, job) in std::mem::take(&mut self.world.write_backs) {
            if let ClientId::Remote(record) = to
                && let Some(act) = self.remotes.write_back(record, job)
            {
                self.act(act);
            }
        }
        for (id, call) in std::mem::take(&mut self.world.calls) {
            // What cannot be sent now is asked for again by the engine when the master is back.
            if self.joined
                && let Ok(sent) = self.master.send(call)
            {
                self.calls.insert(sent, id);
            }
        }
    }

    /// Hands what goes into a client's buffer to the fabric, with the answers after it.
    fn write_back(&mut self, ClientRoute { peer, channel }: ClientRoute, job: WriteBack) {
        let WriteBack { to, from, bytes, done, refused } = job;
        let routed = |frame| Routed { channel, message: RemoteReply::Reply(frame) };
        let encoded = |frame| wire::encode_vec(&routed(frame));
        let (done, refused) = (encoded(done), encoded(refused));
        let job = tcp::WriteBack { to, from, bytes, done, refused };
        if self.target.write_back(peer, job).is_err() {
            // The client does not take its answers; when it comes back it asks again.
            self.target.close(peer);
        }
    }

    fn serve_sockets(&mut self, timeout: Option<Duration>) -> bool {
        let mut ready = std::mem::take(&mut self.readiness);
        if let Err(error) = self.poller.wait(timeout, &mut ready) {
            warn!("rackpool", "epoll: {error}");
        }
        for one in &ready {
            self.on_ready(one.token);
            self.end_proxied();
        }
        let worked = !ready.is_empty();
        self.readiness = ready;
        if let Some((door, _)) = &self.metrics {
            door.answer(|| (self.engine.stats(&self.world), self.joined));
        }
        let refused = self.poll_master(clock::now_ns()).err();
        if refused != self.refused {
            if let Some(error) = &refused {
                self.membership.on_refused(error);
                warn!("rackpool", "rack {}: the master says: {error}", self.region.rack);
            }
            self.refused = refused;
        }
        worked
    }

    fn on_ready(&mut self, token: u64) {
        let (engine, world, poller) = (&mut self.engine, &mut self.world, &self.poller);
        match token {
            TOKEN_LISTENER => {
                let now = clock::now_ns();
                for (conn, user) in self.acceptor.accept(now, poller) {
                    self.clients.accept((conn, user), now, poller);
                }
            }
            TOKEN_WAKE => {
                self.wake.drain();
            }
            TOKEN_MASTER | TOKEN_STOP | TOKEN_UPLINKS => {}
            TOKEN_PENDING..TOKEN_SLOT => {
                let welcome = Welcome { region: &self.region };
                self.clients.on_pending(token, engine, world, poller, &welcome);
            }
            TOKEN_SLOT..TOKEN_PROCESS => {
                // What the client still said before its end is served first.
                let slot = (token - TOKEN_SLOT) as u32;
                self.serve_slot(slot, RING_ENTRIES);
                self.clients.on_slot(slot, &mut self.engine, &mut self.world, &self.poller);
            }
            token => {
                let slot = (token - TOKEN_PROCESS) as u32;
                self.clients.on_process_end(slot, engine, world, poller);
            }
        }
    }

    fn tick(&mut self, now: Nanos) {
        self.engine.note_time(now);
        match self.engine.tick_ns() {
            Some(_) => self.engine.tick(now, &mut self.world),
            None => self.engine.scrub(now.saturating_sub(self.ticked_at) / TICK_NS, &self.world),
        }
        self.ticked_at = now;
        self.world.report_checks(self.engine.rack(), self.engine.metadata_checks());
        if self.engine.wants_move() {
            self.relocation.wake();
        }
        self.clients.expire(now, &self.poller);
        self.acceptor.tick(now, &self.poller);
        for act in self.remotes.expire(now, &mut self.engine, &mut self.world) {
            self.act(act);
        }
        if now < self.heartbeat_at {
            return;
        }
        self.heartbeat_at = now + self.heartbeat_ns;
        let (proxy, mut turn) = self.proxied();
        proxy.reconcile(&mut turn);
        if self.membership.has_left() {
            self.stop_helpers();
        }
        let clients = self.clients.slots.iter().flatten().count();
        self.wants_end = self.membership.wants_end(clients, self.stop.serves_others(), now);
        self.clients.give_back_left(&mut self.engine, &mut self.world, &self.poller);
        self.end_proxied();
        sweep::start_if_due(&mut self.sweeps, &self.options, &self.engine, &self.wake);
        if self.joined {
            let frames_free = self.engine.frames_available();
            // A full link has something under way, which is as good as a heartbeat.
            let accesses = self.engine.accesses(&self.world);
            let _ = self.master.send(MasterCall::Heartbeat { frames_free, accesses });
        }
    }

    /// Takes the master's answers, and tells the engine when the link came up or went down: after
    /// a new connection every call under way is sent again, because its answer is lost.
    fn poll_master(&mut self, now: Nanos) -> Result<()> {
        let replies = self.master.poll();
        let is_up = self.master.is_up();
        if self.joined && !(is_up && self.master.connections() == self.connections) {
            self.joined = false;
            self.calls.clear();
            self.rack_calls.clear();
            let (proxy, mut turn) = self.proxied();
            proxy.on_master_down(&mut turn);
            self.engine.master_down();
        }
        if is_up && !self.joined {
            self.joined = true;
            self.connections = self.master.connections();
            if let Some(MasterAnswer::Joined { lease_ms, .. }) = self.master.welcome() {
                self.heartbeat_ns = lease_ms * 1_000_000 / 4;
            }
            if let Some(MasterAnswer::Joined { pages_lost: 1.., .. }) = self.master.welcome() {
                warn!(
                    "rackpool",
                    "rack {}: this is a new region; pages of the old one are lost",
                    self.region.rack
                );
            }
            self.engine.master_up(&mut self.world);
        }
        for reply in replies {
            if let Some(rack) = self.rack_calls.remove(&reply.id) {
                let answer = reply.answer.and_then(|answer| match answer {
                    MasterAnswer::Rack(info) => Ok(info),
                    other => Err(crate::links::unexpected_answer(&other)),
                });
                self.on_rack(rack, answer);
            } else if let Some(id) = self.calls.remove(&reply.id) {
                self.engine.on_master(now, MasterReply { id, ..reply }, &mut self.world);
            } else if let Ok(MasterAnswer::Member(MemberAnswer::RackState(is))) = reply.answer {
                let was = self.engine.standing();
                self.engine.set_standing(is, &mut self.world);
                self.membership.on_standing(StateChange { was, is }, &self.options, now);
                if is == RackState::Draining {
                    // If it cannot be, the next heartbeat's answer tries again.
                    let thread = &mut self.relocation;
                    if let Err(error) = relocation::start(thread, &self.options, &self.wake) {
                        warn!("rackpool", "rack {}: {error}", self.options.name());
                    }
                    self.relocation.wake();
                }
            }
        }
        match self.master.refused() {
            Some(error) if !is_up => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// The end: clients see their sockets close. The region stays unless it is ephemeral.
    pub(super) fn close(self) {
        drop((self.target, self.acceptor));
        if self.options.ephemeral
            && let Err(error) = self.world.into_files().remove()
        {
            warn!("rackpool", "removing the region: {error}");
        }
    }
}
