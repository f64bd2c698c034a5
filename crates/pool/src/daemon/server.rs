//! The poll loop of a daemon. One thread serves the rings of local clients, their control
//! sockets, the messages of remote clients, and the master; it spins while there is work, then
//! yields, then sleeps in the poller until a client rings the doorbell or a socket is readable.

use super::helper::HelperThread;
use super::host::{PoolHost, TOKEN_PENDING, TOKEN_PROCESS, TOKEN_SLOT};
use super::opening::{
    RegionOpening, join_call, master_link, open_region, region_info, start_target,
};
use super::persister::Persister;
use super::standing::Membership;
use super::uplinks::FabricUplinks;
use super::world::RegionWorld;
use super::{Belongs, DaemonOptions, Ended, Stop, control_name, io_error, standby, sweep};
use crate::acceptor::{self, Acceptor};
use crate::clock;
use crate::metrics::{self, DaemonSnapshot, Endpoint, SnapshotRequests};
use rackpool_core::constants::{
    CONTROL_PENDING_MAX, LEASE_MS_DEFAULT, MESSAGE_BYTES_MAX, RING_ENTRIES, TICK_NS,
};
use rackpool_core::daemon::World;
use rackpool_core::persist::{Persist, PersistenceDomain};
use rackpool_core::runtime::daemon::{DaemonLoop, Joining, LoopParts, User};
use rackpool_core::seam::{FabricEvent, Nanos};
use rackpool_core::{Error, Result};
use rackpool_fabric::acceptor::{PendingConn, PendingConns};
use rackpool_fabric::control::{self, ControlConn, Drained, Received};
use rackpool_fabric::{FabricOptions, Target};
use rackpool_mem::event::{Interest, Poller, Readiness, WakeEvent};
use rackpool_mem::process::Shutdown;
use rackpool_mem::region::{Claim, RegionError, RegionFiles};
use rackpool_mem::ring::bitmap::Bitmap;
use rackpool_mem::wait::{Pause, Waiter};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

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
/// How long a connection may take to say hello, ns.
const HELLO_NS: u64 = 5_000_000_000;
/// Longest sleep, ns: a doorbell that a dying client did not ring is noticed by then.
const SLEEP_NS_MAX: u64 = 100_000_000;

/// The loop's waits. What is served under names goes before the region's lock, which the loop's
/// world has: the daemon that gets the lock next takes them.
pub(super) struct Server {
    acceptor: Acceptor,
    /// Connections that have not said hello yet.
    pending: PendingConns<()>,
    /// Where a disk would be waited for.
    persister: Option<Persister>,
    daemon: DaemonLoop<PoolHost>,
    stop: Arc<Stop>,
    bell: Bitmap,
    heartbeat_at: Nanos,
    ticked_at: Nanos,
    /// How often the master's link had come up when this daemon last joined.
    connections: u64,
    /// Why the master does not want this rack, to be said once.
    refused: Option<Error>,
    readiness: Vec<Readiness>,
    events: Vec<FabricEvent>,
    sweeps: HelperThread,
    /// The rack is no member any more, and no process of this host needs the daemon.
    wants_end: bool,
    metrics: Option<(SnapshotRequests<DaemonSnapshot>, Endpoint)>,
    /// Says to the rack's other daemons that the shard's own one lives. Last: it goes after the
    /// region's lock.
    _claim: Option<Claim>,
}

/// What the fabric is reached over, opened before there is a region.
struct FabricParts {
    options: FabricOptions,
    uplinks: FabricUplinks,
}

/// Where a daemon would wait for a disk, a thread does.
fn start_persister(world: &mut RegionWorld, wake: &WakeEvent) -> Result<Option<Persister>> {
    if world.pages().domain() != PersistenceDomain::Msync {
        return Ok(None);
    }
    world.outbox().persists = Some(Vec::new());
    Persister::start(world.pages(), wake).map(Some)
}

impl Server {
    pub(super) fn open(options: DaemonOptions, belongs: Belongs, stop: Arc<Stop>) -> Result<Self> {
        let asymmetric = rackpool_mem::barrier::register().is_ok();
        options.check()?;
        let fabric = options.fabric_options();
        // Before a region is made: what is not here is said at once.
        let uplinks = FabricUplinks::new(fabric.clone())?;
        let (files, is_new, claim) = standby::region_of(&options, belongs)?;
        let spec = files.spec().clone();
        let rack = options.home()?;
        let cells = Target::cells(fabric.over, files.layout());
        let spill = options.spill_spec()?;
        let opening =
            RegionOpening { files, rack, asymmetric, cells, is_new, belongs, claim, spill };
        let mut joined = false;
        let fabric = FabricParts { options: fabric, uplinks };
        let opened = Self::open_on(opening, options, stop, fabric, &mut joined);
        if opened.is_err() && is_new && !joined {
            // Nothing is in it. If another daemon has found it meanwhile, it is that one's; if the
            // master has heard of it after all, the next one is that of a host that booted again.
            match RegionFiles::remove_path(&spec) {
                Ok(_) | Err(RegionError::Locked { .. }) => {}
                Err(error) => warn!(target: "daemon", "removing the new region: {error}"),
            }
        }
        opened
    }

    fn open_on(
        opening: RegionOpening,
        options: DaemonOptions,
        stop: Arc<Stop>,
        fabric: FabricParts,
        joined: &mut bool,
    ) -> Result<Self> {
        let rack = opening.rack;
        options.check_coherence(opening.files.coherence())?;
        let (mut world, mut engine, claim) = open_region(opening)?;
        engine.set_policy(options.migration);
        engine.set_balance(options.balance);
        engine.set_client_quota(options.client_quota_bytes, &world);
        let wake = WakeEvent::new().map_err(|e| io_error("wake event", &e))?;
        let target = start_target(&options, &fabric.options, engine.layout(), &mut world, &wake)?;
        let region = region_info(&engine, &options, world.files.coherence());
        let access = control::access(options.allowed_users.iter().copied());
        let control = control_name(rack, engine.region_id());
        let acceptor = Acceptor::bind(&control, TOKEN_LISTENER, access)
            .map_err(|e| io_error("control socket", &e))?;
        let join = join_call(&engine, &options, acceptor.name().into(), target.local_addr())?;
        let (rings, session_grace_ms) = (options.rings, options.session_grace_ms);
        let bell = Bitmap::attach(world.bell.clone());
        let persister = start_persister(&mut world, &wake)?;
        let host = PoolHost {
            target,
            uplinks: fabric.uplinks,
            master: master_link(&options, join),
            poller: Poller::new().map_err(|e| io_error("epoll", &e))?,
            wake,
            membership: Membership::new(options.left_grace_ms),
            relocation: HelperThread::default(),
            access: acceptor.access().clone(),
            buffer: vec![0; MESSAGE_BYTES_MAX as usize].into_boxed_slice(),
            options,
        };
        let (session, lease_ms) = (crate::local::new_session()?, LEASE_MS_DEFAULT);
        let parts =
            LoopParts { host, engine, world, region, rings, session_grace_ms, session, lease_ms };
        let mut server = Self {
            acceptor,
            pending: PendingConns::new(TOKEN_PENDING..TOKEN_SLOT, HELLO_NS),
            persister,
            daemon: DaemonLoop::new(parts),
            stop,
            bell,
            heartbeat_at: 0,
            ticked_at: 0,
            connections: 0,
            refused: None,
            readiness: Vec::new(),
            events: Vec::new(),
            sweeps: HelperThread::default(),
            wants_end: false,
            metrics: None,
            _claim: claim,
        };
        let begun = server.begin();
        *joined = server.daemon.is_joined();
        begun.map(|()| server)
    }

    /// Clients of the daemon's earlier process first: they are known when the master learns of this
    /// one.
    fn begin(&mut self) -> Result<()> {
        self.watch()?;
        self.daemon.recover()?;
        self.remove_strays()?;
        let host = &self.daemon.host;
        if let Some(listen) = host.options.metrics {
            let place = metrics::Place { listen, token: host.options.metrics_token.clone() };
            let (text, ready) = (metrics::daemon_text, metrics::daemon_ready);
            let (endpoint, door) = metrics::start(&place, &host.wake, text, ready)?;
            self.metrics = Some((door, endpoint));
        }
        self.join_master()?;
        let DaemonLoop { host, engine, .. } = &mut self.daemon;
        if engine.counts_use() || engine.balances() {
            host.start_relocation()?;
        }
        Ok(())
    }

    /// Sections of slots that no session knows.
    fn remove_strays(&mut self) -> Result<()> {
        let DaemonLoop { world, slots, .. } = &self.daemon;
        for slot in world.files.slots_present().map_err(Error::from)? {
            if slots[slot as usize].is_none() {
                world.files.remove_slot(slot).map_err(Error::from)?;
            }
        }
        Ok(())
    }

    fn watch(&mut self) -> Result<()> {
        let add = |result: std::io::Result<()>| result.map_err(|e| io_error("epoll", &e));
        let PoolHost { poller, wake, master, uplinks, .. } = &mut self.daemon.host;
        add(self.acceptor.watch(poller))?;
        add(poller.add(&*wake, TOKEN_WAKE, Interest::Read))?;
        let master = master.fd().map_err(|e| io_error("epoll", &e))?;
        add(poller.add(master, TOKEN_MASTER, Interest::Read))?;
        add(poller.add(uplinks.prepare_sleep()?, TOKEN_UPLINKS, Interest::Read))?;
        add(poller.add(&self.stop.wake, TOKEN_STOP, Interest::Read))
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.daemon.host.target.local_addr()
    }

    pub(super) fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(_, thread)| thread.local_addr())
    }

    /// Joins the master before any client is served: a rack that clients cannot find is no rack.
    fn join_master(&mut self) -> Result<()> {
        let waited_ms = self.daemon.host.options.join_timeout_ms;
        let deadline_ns = clock::deadline_ns(waited_ms);
        while !self.daemon.is_joined() {
            match self.poll_master() {
                Err(error) if !error.may_retry() => return Err(error),
                _ => {}
            }
            if clock::now_ns() >= deadline_ns {
                return Err(self.daemon.host.master.silence(waited_ms));
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
            && let Err(error) = self.daemon.host.poller.add(shutdown, TOKEN_STOP, Interest::Read)
        {
            warn!(target: "daemon", "watching for signals: {error}");
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
                let unheard = self.daemon.unheard();
                worked |=
                    unheard.into_iter().fold(false, |any, slot| any | self.daemon.on_bell(slot));
                worked |= self.serve_fabric();
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
            worked |= self.serve_persists();
            self.daemon.flush();
            if worked {
                waiter.progressed();
            } else if waiter.pause() == Pause::Sleep {
                self.sleep();
                self.daemon.engine.note_time(clock::now_ns());
                // Whatever woke the loop is looked for at once.
                turn = RINGS_TURNS - 1;
                waiter.progressed();
            }
        }
        self.daemon.host.membership.ended(self.daemon.engine.rack())
    }

    /// Whether nothing is under way that needs this loop: the threads beside it have ended, or take
    /// too long.
    fn may_end(&self, end_at: Nanos, now: Nanos) -> bool {
        self.stop_helpers() || now >= end_at
    }

    /// Asks the threads beside the loop to end; whether they have.
    fn stop_helpers(&self) -> bool {
        let has_ended = self.daemon.host.relocation.stop();
        self.sweeps.stop() && has_ended
    }

    fn sleep(&mut self) {
        // After it was said that the daemon sleeps: a client that writes a request later rings its
        // doorbell.
        if self.bell.prepare_sleep() && self.daemon.unheard().is_empty() {
            let idle_ns = SLEEP_NS_MAX.min(self.daemon.heartbeat_ns);
            let behind_ns = self.daemon.is_behind().then_some(TICK_NS);
            let tick_ns = self.daemon.engine.tick_ns().unwrap_or(idle_ns);
            let ns = behind_ns.unwrap_or(idle_ns).min(tick_ns);
            if let Err(error) = self.daemon.host.uplinks.prepare_sleep() {
                warn!(target: "daemon", "{error}");
            }
            self.serve_sockets(Some(Duration::from_nanos(ns)));
        }
        self.bell.awake();
    }

    /// Drains the request rings with their bit set. Bounded by the rings' length.
    fn serve_rings(&mut self) -> bool {
        let mut worked = false;
        for word in 0..self.bell.words() {
            let mut bits = self.bell.take(word);
            while bits != 0 {
                let slot = word * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                worked |= self.daemon.on_bell(slot);
            }
        }
        worked | self.daemon.serve_queued()
    }

    /// What came of the work for clients, and what comes to the fabric's target.
    fn serve_fabric(&mut self) -> bool {
        let mut events = std::mem::take(&mut self.events);
        self.daemon.host.uplinks.poll(clock::now_ns(), &mut events);
        let mut worked = !events.is_empty();
        events.drain(..).for_each(|event| self.daemon.on_uplink(event));
        self.daemon.host.target.poll(&mut events);
        worked |= !events.is_empty();
        events.drain(..).for_each(|event| self.daemon.on_fabric(event));
        self.events = events;
        worked
    }

    /// Has pages made durable that clients want to be, and answers them when that is done.
    fn serve_persists(&mut self) -> bool {
        let Some(persister) = &mut self.persister else { return false };
        let DaemonLoop { engine, world, .. } = &mut self.daemon;
        let jobs = world.outbox().persists.as_mut().map(std::mem::take).unwrap_or_default();
        let mut worked = !jobs.is_empty();
        for (job, result) in jobs.into_iter().filter_map(|job| persister.submit(job)) {
            engine.on_persisted(job, result, world);
        }
        while let Some((job, result)) = persister.next_finished() {
            engine.on_persisted(job, result, world);
            worked = true;
        }
        worked
    }

    fn serve_sockets(&mut self, timeout: Option<Duration>) -> bool {
        let mut ready = std::mem::take(&mut self.readiness);
        if let Err(error) = self.daemon.host.poller.wait(timeout, &mut ready) {
            warn!(target: "daemon", "epoll: {error}");
        }
        ready.iter().for_each(|one| self.on_ready(one.token));
        let worked = !ready.is_empty();
        self.readiness = ready;
        if let Some((door, _)) = &self.metrics {
            let DaemonLoop { engine, world, .. } = &self.daemon;
            door.answer(|| DaemonSnapshot {
                stats: engine.stats(world),
                tiers: engine.tier_report(),
                is_joined: self.daemon.is_joined(),
            });
        }
        let refused = self.poll_master().err();
        if refused != self.refused {
            if let Some(error) = &refused {
                self.daemon.host.membership.on_refused(error);
                let rack = self.daemon.region.rack;
                warn!(target: "daemon", "rack {rack}: the master says: {error}");
            }
            self.refused = refused;
        }
        worked
    }

    fn on_ready(&mut self, token: u64) {
        let DaemonLoop { host, .. } = &mut self.daemon;
        match token {
            TOKEN_LISTENER => {
                let now = clock::now_ns();
                for (conn, user) in self.acceptor.accept(now, &host.poller) {
                    if let Some(old) = self.pending.add(conn, user, now, &host.poller) {
                        let what = "the daemon's new connections".into();
                        let limit = CONTROL_PENDING_MAX as u64;
                        acceptor::refuse(&old, Error::Busy { what, limit });
                    }
                }
            }
            TOKEN_WAKE => {
                host.wake.drain();
            }
            TOKEN_MASTER | TOKEN_STOP | TOKEN_UPLINKS => {}
            TOKEN_PENDING..TOKEN_SLOT => {
                if let Some(joining) = self.hear(token) {
                    self.daemon.on_hello(joining);
                }
            }
            TOKEN_SLOT..TOKEN_PROCESS => {
                // What the client still said before its end is served first.
                let slot = (token - TOKEN_SLOT) as u32;
                self.daemon.serve_slot(slot, RING_ENTRIES);
                let client = self.daemon.slots[slot as usize].as_ref();
                match client.and_then(|client| client.conn.as_ref()).map(ControlConn::drain) {
                    None | Some(Drained::Open) => {}
                    Some(Drained::Closed) => self.daemon.on_conn_lost(slot, false),
                    // It may live, and have the memory mapped.
                    Some(Drained::Broken) => self.daemon.on_conn_lost(slot, true),
                }
            }
            token => self.daemon.on_process_end((token - TOKEN_PROCESS) as u32),
        }
    }

    /// A connection without a slot has sent something or closed: what it said first.
    fn hear(&mut self, token: u64) -> Option<Joining<ControlConn>> {
        let DaemonLoop { host, .. } = &mut self.daemon;
        let hello = match self.pending.get_mut(token)?.conn.recv(&mut host.buffer) {
            Ok(Received::Nothing) => return None,
            Ok(Received::Message { bytes, .. }) => Ok(host.buffer[..bytes].to_vec()),
            Ok(Received::Closed) => Err(Error::Protocol {
                peer: "client".into(),
                reason: "closed before its hello".into(),
            }),
            Err(error) => Err(io_error("control connection", &error)),
        };
        let PendingConn { conn, user, .. } = self.pending.remove(token, &host.poller)?;
        let user = User { id: user, is_guest: user != host.access.own() && user != 0 };
        match hello {
            Ok(hello) => Some(Joining { conn, user: Some(user), hello }),
            Err(error) => {
                acceptor::refuse(&conn, error);
                None
            }
        }
    }

    fn tick(&mut self, now: Nanos) {
        let DaemonLoop { host, engine, world, .. } = &mut self.daemon;
        engine.note_time(now);
        match engine.tick_ns() {
            Some(_) => engine.tick(now, world),
            None => engine.scrub(now.saturating_sub(self.ticked_at) / TICK_NS, world),
        }
        self.ticked_at = now;
        world.report_checks(engine.rack(), engine.metadata_checks());
        if engine.wants_move() {
            host.relocation.wake();
        }
        self.pending.expire(now, &host.poller);
        self.acceptor.tick(now, &host.poller);
        self.daemon.expire();
        if now < self.heartbeat_at {
            return;
        }
        self.heartbeat_at = now + self.daemon.heartbeat_ns;
        if self.daemon.host.membership.has_left() {
            self.stop_helpers();
        }
        let clients = self.daemon.slots.iter().flatten().count();
        let DaemonLoop { host, engine, .. } = &self.daemon;
        self.wants_end = host.membership.wants_end(clients, self.stop.serves_others(), now);
        sweep::start_if_due(&mut self.sweeps, &host.options, engine, &host.wake);
        self.daemon.heartbeat();
    }

    /// Takes the master's answers, and tells the loop when the link came up or went down: after
    /// a new connection every call under way is sent again, because its answer is lost.
    fn poll_master(&mut self) -> Result<()> {
        let master = &mut self.daemon.host.master;
        let replies = master.poll();
        let (is_up, connections) = (master.is_up(), master.connections());
        if self.daemon.is_joined() && !(is_up && connections == self.connections) {
            self.daemon.master_down();
        }
        if is_up && !self.daemon.is_joined() {
            self.connections = connections;
            let welcome = self.daemon.host.master.welcome().cloned();
            if self.daemon.master_up(welcome.as_ref()) > 0 {
                warn!(
                    target: "daemon",
                    "rack {}: this is a new region; pages of the old one are lost",
                    self.daemon.region.rack
                );
            }
        }
        replies.into_iter().for_each(|reply| self.daemon.on_answer(reply));
        match self.daemon.host.master.refused() {
            Some(error) if !is_up => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// The end: clients see their sockets close. The region stays unless it is ephemeral.
    pub(super) fn close(self) {
        let DaemonLoop { host, world, .. } = self.daemon;
        drop((self.acceptor, host.target, self.persister));
        let mut files = world.into_files();
        let (done, what) = match host.options.ephemeral {
            true => {
                host.options.remove_spill_file();
                (files.remove(), "removing the region")
            }
            false => (files.note_stopped(), "stopping"),
        };
        if let Err(error) = done {
            warn!(target: "daemon", "{what}: {error}");
        }
    }
}
