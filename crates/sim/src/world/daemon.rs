//! A rack's daemon as two processes that die together: the loop with the engine, and the fabric
//! thread that executes one-sided operations.

use super::Cluster;
use super::kernel::{ConnId, Ctx, Input, Message, ProcessId};
use super::master::MasterLink;
use super::rack::{Rack, RackWorld};
use super::uplinks::{ProxyRings, SimUplinks, rack_of};
use crate::mem::SimMem;
use crate::time::Ps;
use rackpool_core::coherence::{self, Coherence};
use rackpool_core::constants::{MESSAGE_BYTES_MAX, RING_ENTRIES, SLOTS_MAX, TICK_NS};
use rackpool_core::daemon::{
    Act, ClientId, Daemon, LocalClient, Proxy, RemoteMessage, Remotes, Rings, SessionInfo, World,
    format,
};
use rackpool_core::layout::{
    RING_BYTES, SLOT_REMOTE_REPLY_RING, SLOT_REMOTE_REQUEST_RING, SLOT_REPLY_RING,
    SLOT_REQUEST_RING, SlotWord,
};
use rackpool_core::member::{MemberAnswer, RackState};
use rackpool_core::seam::{FabricEvent, Mem, PeerId};
use rackpool_core::wire::{
    self, ControlHello, ControlReply, FabricKind, MasterAnswer, MasterCall, MasterReply, RackInfo,
    RegionInfo, RemoteReply, RequestFrame,
};
use rackpool_core::{Error, RackId, Result};
use rackpool_hw::ring::{self, Consumer, Producer};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// How often time-driven work is looked at.
const TICK: Ps = Ps::ns(TICK_NS);
/// Looks at a ring if its bell rang before its request was there.
const LOOKS_MAX: u32 = 16;

struct Slot {
    requests: Consumer<SimMem>,
    replies: Producer<SimMem>,
    /// The connection and its process; `None` until the client resumes.
    conn: Option<(ConnId, ProcessId)>,
    /// Whether the client had the slot before this connection, and so has its memory mapped.
    resumed: bool,
    process: ProcessId,
}

struct Server {
    ctx: Ctx,
    cluster: Rc<Cluster>,
    rack: Rc<Rack>,
    engine: Daemon,
    world: RackWorld,
    slots: Vec<Option<Slot>>,
    remotes: Remotes,
    proxy: Proxy,
    uplinks: SimUplinks,
    /// Slots with requests, if they are taken one after the other.
    queued: VecDeque<u32>,
    fabric: ProcessId,
    master: MasterLink,
    joined: bool,
    calls: BTreeMap<u64, u64>,
    rack_calls: BTreeMap<u64, RackId>,
    region: RegionInfo,
    lease_ms: u64,
    ticked_at: Ps,
    heartbeat_at: Ps,
    buffer: Vec<u8>,
}

pub async fn main(ctx: Ctx, cluster: Rc<Cluster>, rack: Rc<Rack>) {
    let name = format!("daemon {}", rack.id);
    match Server::open(ctx.clone(), cluster.clone(), rack) {
        Ok(mut server) => server.run().await,
        Err(error) => cluster.kernel.fail("attach", format!("{name}: {error}")),
    }
}

impl Server {
    fn open(ctx: Ctx, cluster: Rc<Cluster>, rack: Rc<Rack>) -> Result<Server> {
        if !rack.region.borrow().is_formatted {
            // A daemon that dies while it makes its region leaves nothing that others open.
            rack.make_region();
        }
        let mut world = RackWorld::new(&rack, &ctx);
        let (id, is_formatted) = {
            let region = rack.region.borrow();
            (region.id, region.is_formatted)
        };
        if !is_formatted {
            format(&mut world, rack.id, id, rack.layout)?;
            ctx.cpu.drain();
            rack.region.borrow_mut().is_formatted = true;
        }
        let mut engine = Daemon::attach(&mut world, rack.id, Some(rack.layout.pages))?;
        engine.set_policy(cluster.migration);
        let region = region_info(&engine, Coherence::of(world.pages()));
        let join = MasterCall::JoinDaemon(RackInfo {
            rack: rack.id,
            region_id: engine.region_id(),
            epoch: engine.epoch(),
            page_shift: region.page_shift,
            frame_count: region.frame_count,
            frames_free: engine.frames_available(),
            host: format!("host-{}", rack.host.0),
            control: format!("control-{}-{}", rack.id, engine.region_id()[1]),
            fabric: FabricKind::Tcp,
            fabric_addr: format!("node-{}", rack.node.0),
            alive: true,
        });
        let cells = world.target_cells.clone();
        let fabric = super::target::start(&ctx, &cluster, &rack, cells);
        engine.set_balance(cluster.balance);
        rack.daemon.set(Some((ctx.id, fabric)));
        rack.drains.set(None);
        let mut server = Server {
            slots: (0..SLOTS_MAX).map(|_| None).collect(),
            remotes: Remotes::new(cluster.session_grace_ms),
            fabric,
            master: MasterLink::new(join),
            joined: false,
            calls: BTreeMap::new(),
            rack_calls: BTreeMap::new(),
            proxy: Proxy::new(cluster.new_session()),
            uplinks: SimUplinks::new(&ctx, &cluster, rack.id),
            queued: VecDeque::new(),
            region,
            lease_ms: cluster.lease_ms,
            ticked_at: ctx.now(),
            heartbeat_at: ctx.now(),
            buffer: vec![0; MESSAGE_BYTES_MAX as usize],
            ctx,
            cluster,
            rack,
            engine,
            world,
        };
        server.recover();
        server.remotes.recover(&server.engine, server.ctx.clock_ns());
        Ok(server)
    }

    /// After an attach: keeps the slots of living processes, gives the others back.
    fn recover(&mut self) {
        let sessions: Vec<SessionInfo> =
            self.engine.sessions().filter(|info| info.record < SLOTS_MAX).collect();
        for info in sessions {
            let slot = info.record;
            let section = self.rack.region.borrow().slot(slot);
            let process = ProcessId(info.pid as u32);
            if let Some(section) = section.clone() {
                self.world.add_slot(slot, section);
            }
            let left = self.world.slot_word(slot, SlotWord::Left) != Some(0);
            if section.is_some() && !left && self.ctx.kernel.is_alive(process) {
                let rings = self.rings(slot, process);
                self.slots[slot as usize] = Some(rings);
            } else {
                self.leave(slot);
            }
        }
    }

    fn rings(&mut self, slot: u32, process: ProcessId) -> Slot {
        let section = self.world.slot(slot).expect("admitted clients have a section");
        self.uplinks.rings.insert(slot, ProxyRings::attach(section));
        Slot {
            requests: Consumer::attach(section.slice(SLOT_REQUEST_RING, RING_BYTES)),
            replies: Producer::attach(section.slice(SLOT_REPLY_RING, RING_BYTES)),
            conn: None,
            resumed: false,
            process,
        }
    }

    async fn run(&mut self) {
        let mut late_bells: Vec<(u32, u32)> = Vec::new();
        self.join_master().await;
        loop {
            self.master.connect(&self.ctx, &self.cluster);
            let mut wake = self.next_wake();
            if !late_bells.is_empty() {
                wake = wake.min(self.ctx.now() + Ps::us(1));
            }
            let input = self.ctx.recv(Some(wake)).await;
            self.engine.note_time(self.ctx.clock_ns());
            if let Some(input) = input {
                if let Input::Bell(slot) = input
                    && self.cluster.rings == Rings::Single
                {
                    self.queued.push_back(slot);
                } else if let Input::Bell(slot) = input
                    && !self.serve_slot(slot, RING_ENTRIES)
                {
                    late_bells.push((slot, 0));
                } else {
                    self.on_input(input);
                }
            } else {
                late_bells.retain_mut(|(slot, looks)| {
                    *looks += 1;
                    !self.serve_slot(*slot, RING_ENTRIES) && *looks < LOOKS_MAX
                });
                self.on_time();
            }
            self.serve_queued();
            self.flush();
        }
    }

    /// Joins the master before any client is served: a client that has reached this daemon gets
    /// answers from a master that knows its region.
    async fn join_master(&mut self) {
        let mut early = Vec::new();
        while !self.joined {
            self.master.connect(&self.ctx, &self.cluster);
            match self.ctx.recv(self.master.due()).await {
                Some(Input::Message(conn, message)) if matches!(*message, Message::Answer(_)) => {
                    self.on_input(Input::Message(conn, message));
                }
                Some(Input::Closed(conn)) if self.master.owns(conn) => {
                    self.on_input(Input::Closed(conn));
                }
                Some(input) => early.push(input),
                None => {}
            }
        }
        early.into_iter().for_each(|input| match input {
            Input::Bell(slot) => drop(self.serve_slot(slot, RING_ENTRIES)),
            input => self.on_input(input),
        });
        self.flush();
    }

    fn tick_at(&self) -> Option<Ps> {
        self.engine.tick_ns().map(|ns| self.ticked_at + Ps::ns(ns))
    }

    fn next_wake(&self) -> Ps {
        let tick = self.tick_at();
        let behind = self.proxy.is_behind().then(|| self.ctx.now() + TICK);
        let grace = Some(self.heartbeat_at);
        [tick, behind, grace, self.master.due()]
            .into_iter()
            .flatten()
            .min()
            .expect("heartbeats go on")
    }

    fn on_input(&mut self, input: Input) {
        match input {
            Input::Message(conn, message) => match *message {
                Message::Hello(hello) => self.on_hello(conn, &hello),
                Message::Answer(reply) => self.on_answer(reply),
                Message::Control(_) | Message::Call(_) => {}
            },
            Input::Closed(conn) if self.master.owns(conn) => {
                self.master.on_closed(&self.ctx);
                self.joined = false;
                self.calls.clear();
                self.rack_calls.clear();
                self.proxy.on_master_down(&mut self.uplinks);
                self.engine.master_down();
            }
            Input::Closed(conn) => self.on_conn_closed(conn),
            Input::Fabric(event) => self.on_uplink(event),
            Input::Served(FabricEvent::Received { peer, message }) => {
                self.ctx.cpu.charge(self.cluster.costs.daemon_message);
                self.on_remote(peer, &message);
            }
            Input::Served(FabricEvent::Closed { peer, .. }) => {
                self.remotes.on_closed(peer, &mut self.engine, self.ctx.clock_ns());
            }
            _ => {}
        }
    }

    fn on_time(&mut self) {
        let now = self.ctx.now();
        if self.tick_at().is_some_and(|at| now >= at) {
            self.ticked_at = now;
            self.engine.tick(self.ctx.clock_ns(), &mut self.world);
        }
        if now < self.heartbeat_at {
            return;
        }
        let now_ns = self.ctx.clock_ns();
        for act in self.remotes.expire(now_ns, &mut self.engine, &mut self.world) {
            self.command(act);
        }
        self.heartbeat_at = now + Ps(Ps::ms(self.lease_ms).0 / 4);
        self.proxy.reconcile(&mut self.uplinks);
        for slot in 0..SLOTS_MAX {
            if self.slots[slot as usize].is_none() {
                continue;
            }
            // A guard may have been dropped while no daemon was there to hear the doorbell.
            self.engine.take_releases(slot, &mut self.world);
            let Some(one) = &self.slots[slot as usize] else { continue };
            let is_over = one.conn.is_none()
                && (!self.ctx.kernel.is_alive(one.process)
                    || self.world.slot_word(slot, SlotWord::Left) != Some(0));
            if is_over {
                self.leave(slot);
            }
        }
        if self.joined {
            let frames_free = self.engine.frames_available();
            let accesses = self.engine.accesses(&self.world);
            self.master.send(&self.ctx, MasterCall::Heartbeat { frames_free, accesses });
        }
    }

    /// Serves what is in a slot's ring; whether there was something.
    fn serve_slot(&mut self, slot: u32, limit: u32) -> bool {
        let mut worked = false;
        for _ in 0..limit {
            let Some(client) = self.slots[slot as usize].as_mut() else {
                self.ctx.kernel.say(|| format!("rack {}: no slot {slot}", self.rack.id));
                break;
            };
            if client.conn.is_none() {
                self.ctx.kernel.say(|| format!("rack {}: slot {slot} alone", self.rack.id));
                break;
            }
            self.ctx.cpu.charge(self.cluster.costs.daemon_poll);
            let popped = client.requests.pop(|bytes| wire::decode::<RequestFrame>(bytes, "client"));
            match popped {
                None => break,
                Some(Ok(Ok(frame))) => {
                    self.ctx.cpu.charge(self.cluster.costs.daemon_request);
                    // What was given back before the request counts before it.
                    self.engine.take_releases(slot, &mut self.world);
                    self.engine.on_request(ClientId::Slot(slot), frame, &mut self.world);
                }
                Some(Ok(Err(error))) => self.broken(slot, &error.to_string()),
                Some(Err(error)) => {
                    self.broken(slot, &error.to_string());
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

    /// One request after the other, each to its end, if that is how rings are to be served.
    fn serve_queued(&mut self) {
        while self.proxy.under_way() == 0
            && let Some(slot) = self.queued.pop_front()
        {
            if self.serve_slot(slot, 1) {
                self.queued.push_back(slot);
            }
        }
    }

    /// Takes what a client wants done in other racks.
    fn serve_orders(&mut self, slot: u32, limit: u32) -> bool {
        let rings = self.uplinks.rings.get_mut(&slot).filter(|rings| rings.process.is_some());
        let Some(mut orders) = rings.and_then(|rings| rings.orders.take()) else { return false };
        let mut taken = 0;
        while taken < limit {
            let (proxy, uplinks) = (&mut self.proxy, &mut self.uplinks);
            self.ctx.cpu.charge(self.cluster.costs.daemon_poll);
            let popped = orders.pop(|order| proxy.on_order(slot, order, uplinks));
            match popped {
                None => break,
                Some(Ok(Ok(()))) => self.ctx.cpu.charge(self.cluster.costs.daemon_request),
                Some(Ok(Err(error))) => self.broken(slot, &error.to_string()),
                Some(Err(error)) => {
                    self.broken(slot, &error.to_string());
                    break;
                }
            }
            taken += 1;
        }
        if let Some(rings) = self.uplinks.rings.get_mut(&slot) {
            rings.orders = Some(orders);
        }
        taken > 0
    }

    /// The daemon's own endpoint says something.
    fn on_uplink(&mut self, event: FabricEvent) {
        self.uplinks.before(&event);
        self.proxy.on_event(event, &mut self.uplinks);
        self.uplinks.after();
    }

    /// Orders that wait for a doorbell, racks that are asked for, outcomes that had no room.
    fn flush_proxy(&mut self) {
        self.proxy.deliver(&mut self.uplinks);
        for rack in std::mem::take(&mut self.uplinks.wanted) {
            let call = MasterCall::Rack { rack };
            let sent = self.joined.then(|| self.master.send(&self.ctx, call)).flatten();
            match sent {
                Some(id) => drop(self.rack_calls.insert(id, rack)),
                None => {
                    let busy = Error::Busy { what: "the master".into(), limit: 0 };
                    self.proxy.on_rack(rack, Err(busy), &mut self.uplinks);
                }
            }
        }
        for event in self.uplinks.ring_doorbells() {
            self.on_uplink(event);
        }
    }

    /// Every client here keeps to the protocol: a ring that does not is a defect of ours.
    fn broken(&self, slot: u32, what: &str) {
        self.ctx.kernel.fail("ring", format!("rack {} slot {slot}: {what}", self.rack.id));
    }

    fn on_hello(&mut self, conn: ConnId, hello: &ControlHello) {
        let process = self.ctx.kernel.other_end(conn, self.ctx.id);
        let reply = match self.admit(hello, process) {
            Ok(slot) => {
                let section = self.world.slot(slot).expect("admitted clients have a section");
                for at in [
                    SLOT_REQUEST_RING,
                    SLOT_REPLY_RING,
                    SLOT_REMOTE_REQUEST_RING,
                    SLOT_REMOTE_REPLY_RING,
                ] {
                    ring::reset(&section.slice(at, RING_BYTES));
                }
                self.proxy.on_slot_reset(slot, &mut self.uplinks);
                let mut client = self.rings(slot, process);
                if let Some(rings) = self.uplinks.rings.get_mut(&slot) {
                    rings.process = Some(process);
                }
                client.conn = Some((conn, process));
                client.resumed = hello.resume_slot.is_some();
                self.slots[slot as usize] = Some(client);
                ControlReply::Welcome {
                    slot,
                    region: self.region.clone(),
                    asymmetric_fence: true,
                    beside_daemon: self.ctx.kernel.host_of(process) == self.rack.host,
                    offsets: [0; 4],
                }
            }
            Err(error) => ControlReply::Refused(error),
        };
        self.ctx
            .kernel
            .say(|| format!("rack {}: to process {}: {reply:?}", self.rack.id, process.0));
        self.ctx.send(conn, Message::Control(reply));
    }

    fn admit(&mut self, hello: &ControlHello, process: ProcessId) -> Result<u32> {
        if let Some(slot) = hello.resume_slot.or_else(|| self.forgotten_slot(hello)) {
            self.engine.resume_local(hello.session, hello.number, slot)?;
            if self.world.slot(slot).is_none() {
                return Err(Error::Denied { reason: format!("slot {slot} has no section") });
            }
            return Ok(slot);
        }
        let pid = u64::from(process.0);
        let (session, hello) = (hello.session, hello.number);
        let client = LocalClient { session, hello, pid, start_time: pid };
        let slot = self.engine.join_local(client, &mut self.world)?;
        let coherence = self.rack.coherence_with(self.ctx.kernel.host_of(process));
        let mut region = self.rack.region.borrow_mut();
        let section = region.create_slot(slot, &self.ctx.kernel, coherence);
        drop(region);
        self.world.add_slot(slot, section);
        Ok(slot)
    }

    fn forgotten_slot(&self, hello: &ControlHello) -> Option<u32> {
        let known = self.engine.sessions().find(|info| info.session == hello.session)?;
        let client = self.slots.get(known.record as usize)?.as_ref()?;
        client.conn.is_none().then_some(known.record)
    }

    fn on_conn_closed(&mut self, conn: ConnId) {
        let found = self.slots.iter().position(|slot| {
            slot.as_ref().is_some_and(|slot| slot.conn.is_some_and(|(of, _)| of == conn))
        });
        if let Some(slot) = found {
            self.settle(slot as u32);
            // What the client still said before its end is served first.
            self.serve_slot(slot as u32, RING_ENTRIES);
            self.on_conn_lost(slot as u32);
        }
    }

    /// See the daemon's `on_conn_lost` in `rackpool`.
    fn on_conn_lost(&mut self, slot: u32) {
        let Some(client) = &self.slots[slot as usize] else { return };
        let process = client.process;
        let mapped = client.resumed && self.world.slot_word(slot, SlotWord::Left) == Some(0);
        if mapped && self.ctx.kernel.is_alive(process) {
            let rings = self.rings(slot, process);
            self.slots[slot as usize] = Some(rings);
        } else {
            self.leave(slot);
        }
    }

    /// What the kernel of a client's host does before it says that the client is gone: the agent's
    /// part, or that of the daemon itself.
    fn settle(&self, slot: u32) {
        if self.world.pages().is_coherent() {
            return;
        }
        let info = self.engine.sessions().find(|info| info.record == slot);
        let (Some(info), Some(section)) = (info, self.world.slot(slot)) else { return };
        let host = self.ctx.kernel.host_of(ProcessId(info.pid as u32));
        let is_near = host == self.rack.host;
        let cpu = if is_near { self.ctx.cpu.clone() } else { self.cluster.cpu(host) };
        let pages = self.rack.region.borrow().pages.clone();
        let of_host = |memory| SimMem::new(memory, cpu.clone());
        let slot = of_host(section.memory().clone());
        coherence::settle_slot(&slot, &of_host(pages), &self.rack.layout);
    }

    fn leave(&mut self, slot: u32) {
        self.settle(slot);
        self.ctx.kernel.say(|| format!("rack {}: slot {slot} is given back", self.rack.id));
        self.slots[slot as usize] = None;
        self.proxy.on_slot_gone(slot, &mut self.uplinks);
        self.uplinks.rings.remove(&slot);
        self.engine.leave(slot, &mut self.world);
        self.world.remove_slot(slot);
    }

    fn on_remote(&mut self, peer: PeerId, message: &[u8]) {
        let mut acts = Vec::new();
        let (engine, world) = (&mut self.engine, &mut self.world);
        let message = RemoteMessage { from: peer, now: self.ctx.clock_ns(), bytes: message };
        let served = self.remotes.on_message(message, &self.region, engine, world, &mut acts);
        if let Err(error) = served {
            // Every client here keeps to the protocol.
            self.ctx.kernel.fail("wire", format!("rack {}: {error}", self.rack.id));
        }
        acts.into_iter().for_each(|act| self.command(act));
    }

    fn command(&self, act: Act) {
        self.ctx.ring(self.fabric, Input::Act(Box::new(act)));
    }

    /// Sends what the engine has said since the last time.
    fn flush(&mut self) {
        let mut replies = std::mem::take(&mut self.world.replies);
        for (to, frame) in replies.drain(..) {
            self.ctx.kernel.say(|| format!("rack {}: {to:?}: {frame:?}", self.rack.id));
            match to {
                ClientId::Slot(slot) => {
                    let Some(client) = self.slots[slot as usize].as_mut() else { continue };
                    let Some((_, process)) = client.conn else { continue };
                    let bytes = wire::encode(&frame, &mut self.buffer).expect("answers fit");
                    // A client has one request under way, so there is room unless that is forced.
                    let pushed = (0..LOOKS_MAX).any(|_| client.replies.push(bytes).is_ok());
                    if !pushed {
                        self.ctx.kernel.fail("ring", format!("slot {slot} takes no answers"));
                    }
                    let input = Input::Ring(u32::from(self.rack.id.0));
                    self.ctx.ring(process, input);
                }
                ClientId::Remote(record) => {
                    if let Some(act) = self.remotes.answer(record, RemoteReply::Reply(frame)) {
                        self.command(act);
                    }
                }
            }
        }
        self.world.replies = replies;
        self.flush_proxy();
        for (to, job) in std::mem::take(&mut self.world.write_backs) {
            if let ClientId::Remote(record) = to
                && let Some(act) = self.remotes.write_back(record, job)
            {
                self.command(act);
            }
        }
        for (id, call) in std::mem::take(&mut self.world.calls) {
            if self.joined
                && let Some(sent) = self.master.send(&self.ctx, call)
            {
                self.calls.insert(sent, id);
            }
        }
    }

    fn on_answer(&mut self, reply: MasterReply) {
        let was_up = self.master.is_up();
        let Some(reply) = self.master.on_answer(&self.ctx, reply) else {
            if !was_up && self.master.is_up() {
                if let Some(MasterAnswer::Joined { lease_ms, .. }) = self.master.welcome {
                    self.lease_ms = lease_ms;
                }
                self.joined = true;
                self.engine.master_up(&mut self.world);
            }
            return;
        };
        if let Some(rack) = self.rack_calls.remove(&reply.id) {
            self.proxy.on_rack(rack, rack_of(reply.answer), &mut self.uplinks);
            self.flush_proxy();
        } else if let Some(id) = self.calls.remove(&reply.id) {
            let now = self.ctx.clock_ns();
            self.engine.on_master(now, MasterReply { id, ..reply }, &mut self.world);
        } else if let Ok(MasterAnswer::Member(MemberAnswer::RackState(standing))) = reply.answer {
            if self.engine.standing() != standing {
                let drains =
                    (standing == RackState::Draining).then(|| (self.ctx.id, self.ctx.now()));
                self.rack.drains.set(drains);
            }
            self.engine.set_standing(standing, &mut self.world);
        }
    }
}

/// What clients are told of the region.
fn region_info(engine: &Daemon, coherence: Coherence) -> RegionInfo {
    let layout = engine.layout();
    RegionInfo {
        rack: engine.rack(),
        region_id: engine.region_id(),
        epoch: engine.epoch(),
        page_shift: layout.pages.page_shift(),
        frame_count: layout.frame_count,
        emulate_cxl_ns: 0,
        emulate_rdma_ns: 0,
        counts_use: engine.counts_use(),
        coherence,
    }
}
