//! A rack's daemon as two processes that die together: the loop with the engine, and the fabric
//! thread that executes one-sided operations.

use super::Cluster;
use super::kernel::{ConnId, Ctx, Input, ProcessId};
use super::master::MasterLink;
use super::rack::{Rack, RackWorld};
use super::uplinks::SimUplinks;
use crate::mem::SimMem;
use crate::time::Ps;
use rackpool_core::coherence::Coherence;
use rackpool_core::constants::{RING_ENTRIES, TICK_NS};
use rackpool_core::crash;
use rackpool_core::daemon::{Daemon, SessionInfo, World, format};
use rackpool_core::member::RackState;
use rackpool_core::runtime::daemon::{
    Client, DaemonHost, DaemonLoop, Fault, Joining, LoopParts, RackAddress, SlotGrant,
    TargetCommand, Work, join_call, refusal, region_info,
};
use rackpool_core::runtime::master_link::Call;
use rackpool_core::seam::{FabricEvent, Mem, Nanos, PeerId, Verb};
use rackpool_core::wire::{FabricKind, RackInfo};
use rackpool_core::{Error, Result};
use std::fmt::Display;
use std::rc::Rc;

/// How often time-driven work is looked at.
const TICK: Ps = Ps::ns(TICK_NS);
/// Looks at a ring if its bell rang before its request was there.
const LOOKS_MAX: u32 = 16;

/// A control connection, and the process at its other end.
struct ControlConn {
    id: ConnId,
    process: ProcessId,
}

struct SimHost {
    ctx: Ctx,
    cluster: Rc<Cluster>,
    rack: Rc<Rack>,
    uplinks: SimUplinks,
    fabric: ProcessId,
    master: MasterLink,
}

struct Server {
    daemon: DaemonLoop<SimHost>,
    ticked_at: Ps,
    heartbeat_at: Ps,
    /// Pages that moved between the rack's memories, as far as they are counted.
    tier_moves: u64,
}

impl DaemonHost for SimHost {
    type World = RackWorld;
    type Conn = ControlConn;
    type Process = ProcessId;

    fn now(&self) -> Nanos {
        self.ctx.clock_ns()
    }

    fn charge(&self, work: Work) {
        let costs = &self.cluster.costs;
        self.ctx.cpu.charge(match work {
            Work::Poll => costs.daemon_poll,
            Work::Request => costs.daemon_request,
        });
    }

    fn trace(&self, text: impl FnOnce() -> String) {
        self.ctx.kernel.say(|| format!("rack {}: {}", self.rack.id, text()));
    }

    /// Every client here keeps to the protocol: one that does not is a defect of ours.
    fn report(&self, at: Fault, error: &dyn Display) {
        let rack = self.rack.id;
        match at {
            Fault::Slot(slot) => {
                self.ctx.kernel.fail("ring", format!("rack {rack} slot {slot}: {error}"));
            }
            Fault::Fabric => self.ctx.kernel.fail("wire", format!("rack {rack}: {error}")),
        }
    }

    fn open_section(&mut self, world: &mut RackWorld, slot: u32, _is_near: bool) {
        let section = self.rack.region.borrow().slot(slot);
        if let Some(section) = section {
            world.add_slot(slot, section);
        }
    }

    fn create_section(&mut self, world: &mut RackWorld, info: &SessionInfo) -> Result<()> {
        let kernel = &self.ctx.kernel;
        let process = ProcessId(info.pid as u32);
        let coherence = self.rack.coherence_with(kernel.host_of(process));
        let mut region = self.rack.region.borrow_mut();
        let section = region.create_slot(info.record, kernel, coherence);
        drop(region);
        world.add_slot(info.record, section);
        Ok(())
    }

    fn remove_section(&mut self, world: &mut RackWorld, slot: u32) {
        world.remove_slot(slot);
    }

    /// The part of the client's agent, or that of the daemon itself.
    fn settle(&self, engine: &Daemon, world: &RackWorld, slot: u32) {
        if world.pages().is_coherent() {
            return;
        }
        let info = engine.sessions().find(|info| info.record == slot);
        let (Some(info), Some(section)) = (info, world.slot(slot)) else { return };
        let host = self.ctx.kernel.host_of(ProcessId(info.pid as u32));
        let is_near = host == self.rack.host;
        let cpu = if is_near { self.ctx.cpu.clone() } else { self.cluster.cpu(host) };
        let pages = self.rack.region.borrow().pages.clone();
        let of_host = |memory| SimMem::new(memory, cpu.clone());
        let slot = of_host(section.memory().clone());
        let (layout, tiers) = (&self.rack.layout, &self.rack.tiers);
        let frames = tiers.memory_frames(layout.frame_count);
        crash::flush_client(&slot, &of_host(pages), layout, frames);
    }

    fn identify(&self, conn: &ControlConn) -> Result<(u64, u64)> {
        let pid = u64::from(conn.process.0);
        Ok((pid, pid))
    }

    fn welcome(
        &mut self,
        _world: &RackWorld,
        conn: &ControlConn,
        welcome: SlotGrant,
    ) -> Result<()> {
        let beside_daemon = self.ctx.kernel.host_of(conn.process) == self.rack.host;
        self.trace(|| format!("to process {}: {welcome:?}", conn.process.0));
        self.ctx.send(conn.id, welcome.encode(true, beside_daemon, [0; 4]));
        Ok(())
    }

    fn refuse(&mut self, conn: ControlConn, error: Error) {
        self.trace(|| format!("to process {}: {error}", conn.process.0));
        self.ctx.send(conn.id, refusal(error));
    }

    fn watch_process(&mut self, info: &SessionInfo) -> Result<Option<ProcessId>> {
        let process = ProcessId(info.pid as u32);
        Ok(self.ctx.kernel.is_alive(process).then_some(process))
    }

    fn is_alive(&self, process: &ProcessId) -> bool {
        self.ctx.kernel.is_alive(*process)
    }

    fn unwatch(&mut self, _client: &Client<Self>) {}

    fn wake(&mut self, client: &Client<Self>) -> bool {
        if let Some(conn) = &client.conn {
            self.ctx.ring(conn.process, Input::Ring(u32::from(self.rack.id.0)));
        }
        true
    }

    fn wake_for_outcome(&mut self, client: &Client<Self>) {
        self.wake(client);
    }

    fn tell_target(&mut self, command: TargetCommand) {
        self.ctx.ring(self.fabric, Input::Target(command));
    }

    fn connect(&mut self, info: &RackInfo) -> Option<PeerId> {
        Some(self.uplinks.connect(info))
    }

    fn post(&mut self, peer: PeerId, index: u32, verb: Verb, data: &[u8], bytes: u32) {
        self.uplinks.post(peer, index, verb, data, bytes);
    }

    fn read(&self, peer: PeerId, index: u32, _bytes: u32) -> &[u8] {
        self.uplinks.read(peer, index)
    }

    fn ring_doorbells(&mut self) -> Vec<FabricEvent> {
        self.uplinks.ring_doorbells()
    }

    fn before_event(&mut self, event: &FabricEvent) {
        self.uplinks.before(event);
    }

    fn after_event(&mut self, _closed: Option<PeerId>) {
        self.uplinks.after();
    }

    fn call(&mut self, call: Call) -> Option<u64> {
        self.master.send(&self.ctx, call)
    }

    fn on_rack_state(&mut self, was: RackState, is: RackState) {
        if was != is {
            let drains = (is == RackState::Draining).then(|| (self.ctx.id, self.ctx.now()));
            self.rack.drains.set(drains);
        }
    }
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
        let address = RackAddress {
            host: format!("host-{}", rack.host.0),
            control: format!("control-{}-{}", rack.id, engine.region_id()[1]),
            fabric: FabricKind::Tcp,
            fabric_addr: format!("node-{}", rack.node.0),
        };
        let master = MasterLink::new(join_call(&engine, address));
        let cells = world.target_cells.clone();
        let fabric = super::target::start(&ctx, &cluster, &rack, cells);
        engine.set_balance(cluster.balance);
        rack.daemon.set(Some((ctx.id, fabric)));
        rack.drains.set(None);
        let (rings, session_grace_ms) = (cluster.rings, cluster.session_grace_ms);
        let (session, lease_ms) = (cluster.new_session(), cluster.lease_ms);
        let uplinks = SimUplinks::new(&ctx, &cluster);
        let (ticked_at, heartbeat_at) = (ctx.now(), ctx.now());
        let host = SimHost { ctx, cluster, rack, uplinks, fabric, master };
        let parts =
            LoopParts { host, engine, world, region, rings, session_grace_ms, session, lease_ms };
        let mut daemon = DaemonLoop::new(parts);
        daemon.recover()?;
        Ok(Server { daemon, ticked_at, heartbeat_at, tier_moves: 0 })
    }

    async fn run(&mut self) {
        let mut late_bells: Vec<(u32, u32)> = Vec::new();
        self.join_master().await;
        loop {
            let SimHost { ctx, cluster, master, .. } = &mut self.daemon.host;
            master.connect(ctx, cluster);
            let ctx = ctx.clone();
            let mut wake = self.next_wake();
            if !late_bells.is_empty() {
                wake = wake.min(ctx.now() + Ps::us(1));
            }
            let input = ctx.recv(Some(wake)).await;
            self.daemon.engine.note_time(ctx.clock_ns());
            match input {
                Some(Input::Bell(slot)) => {
                    if !self.daemon.on_bell(slot) && !self.daemon.is_queued() {
                        late_bells.push((slot, 0));
                    }
                }
                Some(input) => self.on_input(input),
                None => {
                    late_bells.retain_mut(|(slot, looks)| {
                        *looks += 1;
                        !self.daemon.serve_slot(*slot, RING_ENTRIES) && *looks < LOOKS_MAX
                    });
                    self.on_time();
                }
            }
            self.daemon.serve_queued();
            self.daemon.flush();
            let moves = self.daemon.engine.tier_report().moved;
            let (rack, new) = (&self.daemon.host.rack, moves - self.tier_moves);
            rack.tier_moves.set(rack.tier_moves.get() + new);
            self.tier_moves = moves;
        }
    }

    /// Joins the master before any client is served: a client that has reached this daemon gets
    /// answers from a master that knows its region.
    async fn join_master(&mut self) {
        let mut early = Vec::new();
        while !self.daemon.is_joined() {
            let SimHost { ctx, cluster, master, .. } = &mut self.daemon.host;
            master.connect(ctx, cluster);
            match ctx.clone().recv(master.due()).await {
                Some(input @ (Input::Message(conn, _) | Input::Closed(conn)))
                    if self.daemon.host.master.owns(conn) =>
                {
                    self.on_input(input);
                }
                Some(input) => early.push(input),
                None => {}
            }
        }
        early.into_iter().for_each(|input| match input {
            Input::Bell(slot) => drop(self.daemon.serve_slot(slot, RING_ENTRIES)),
            input => self.on_input(input),
        });
        self.daemon.flush();
    }

    fn tick_at(&self) -> Option<Ps> {
        self.daemon.engine.tick_ns().map(|ns| self.ticked_at + Ps::ns(ns))
    }

    fn next_wake(&self) -> Ps {
        let SimHost { ctx, master, .. } = &self.daemon.host;
        let behind = self.daemon.is_behind().then(|| ctx.now() + TICK);
        [self.tick_at(), behind, Some(self.heartbeat_at), master.due()]
            .into_iter()
            .flatten()
            .min()
            .expect("heartbeats go on")
    }

    fn on_input(&mut self, input: Input) {
        let SimHost { ctx, cluster, master, .. } = &mut self.daemon.host;
        match input {
            Input::Message(conn, message) if master.owns(conn) => self.on_answer(&message),
            Input::Message(id, hello) if ctx.kernel.is_accepted(id, ctx.id) => {
                let process = ctx.kernel.other_end(id, ctx.id);
                let conn = ControlConn { id, process };
                self.daemon.on_hello(Joining { conn, user: None, hello });
            }
            Input::Closed(conn) if master.owns(conn) => {
                master.on_closed(ctx);
                self.daemon.master_down();
            }
            Input::Closed(conn) => self.on_conn_closed(conn),
            Input::Fabric(event) => self.daemon.on_uplink(event),
            Input::Served(event) => {
                if let FabricEvent::Received { .. } = event {
                    ctx.cpu.charge(cluster.costs.daemon_message);
                }
                self.daemon.on_fabric(event);
            }
            _ => {}
        }
    }

    fn on_time(&mut self) {
        let now = self.daemon.host.ctx.now();
        if self.tick_at().is_some_and(|at| now >= at) {
            self.ticked_at = now;
            let DaemonLoop { host, engine, world, .. } = &mut self.daemon;
            engine.tick(host.ctx.clock_ns(), world);
        }
        if now >= self.heartbeat_at {
            self.daemon.expire();
            self.heartbeat_at = now + Ps::ns(self.daemon.heartbeat_ns);
            self.daemon.heartbeat();
        }
    }

    fn on_conn_closed(&mut self, id: ConnId) {
        let DaemonLoop { host, engine, world, slots, .. } = &self.daemon;
        let is_its = |client: &&Client<SimHost>| client.conn.as_ref().is_some_and(|c| c.id == id);
        if let Some(slot) = slots.iter().flatten().find(is_its).map(|client| client.slot) {
            host.settle(engine, world, slot);
            // What the client still said before its end is served first.
            self.daemon.serve_slot(slot, RING_ENTRIES);
            self.daemon.on_conn_lost(slot, false);
        }
    }

    fn on_answer(&mut self, message: &[u8]) {
        let SimHost { ctx, master, .. } = &mut self.daemon.host;
        let was_up = master.is_up();
        master.on_message(ctx, message);
        if let Some(reply) = master.link.take_replies().pop() {
            self.daemon.on_answer(reply);
        } else if !was_up && self.daemon.host.master.is_up() {
            let welcome = self.daemon.host.master.welcome.clone();
            self.daemon.master_up(welcome.as_ref());
        }
    }
}
