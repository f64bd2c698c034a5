//! Local clients of a daemon: control connections, slots and their rings. A closed connection is
//! the client's end, because a client unmaps before it closes and the kernel does the same for
//! the dead. After a restart of the daemon the slots of living processes are kept until they
//! resume. Clients of other hosts of the rack have their connections to the agents there
//! (`hosts.rs`), which say which clients come and which are gone.

use super::io_error;
use super::world::RegionWorld;
use crate::acceptor;
use rackpool_core::access::AccessList;
use rackpool_core::coherence;
use rackpool_core::constants::{
    CONTROL_PENDING_MAX, MESSAGE_BYTES_MAX, SLOTS_MAX, SLOTS_OF_USER_MAX,
};
use rackpool_core::daemon::{Daemon, LocalClient, SessionInfo, World};
use rackpool_core::layout::{
    RING_BYTES, SLOT_REMOTE_REPLY_RING, SLOT_REMOTE_REQUEST_RING, SLOT_REPLY_RING,
    SLOT_REQUEST_RING, SlotWord,
};
use rackpool_core::seam::{Mem, Nanos};
use rackpool_core::wire::{
    self, ControlHello, ControlReply, HostProcess, HostTag, RegionInfo, WIRE_VERSION,
};
use rackpool_core::{Error, Result, SessionId};
use rackpool_hw::control::{ControlConn, Drained, Received};
use rackpool_hw::event::{Interest, Poller};
use rackpool_hw::process::{ProcessHandle, ProcessId};
use rackpool_hw::region::Section;
use rackpool_hw::ring::{self, Consumer, Producer};
use rackpool_hw::window::{Access, Window};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use tracing::warn;

/// Tokens of the poller: connections that have not said hello, then slots, then processes.
pub(super) const TOKEN_PENDING: u64 = 1 << 16;
pub(super) const TOKEN_SLOT: u64 = 2 << 16;
pub(super) const TOKEN_PROCESS: u64 = 3 << 16;

/// How long a connection may take to say hello, ns.
const HELLO_NS: u64 = 5_000_000_000;

/// The rings and the connection of a slot in use.
pub(super) struct Client {
    pub requests: Consumer,
    pub replies: Producer,
    /// What the daemon's fabric endpoint is to do; `None` while an order is looked at.
    pub orders: Option<Consumer>,
    outcomes: Producer,
    slot: Window,
    conn: Option<ControlConn>,
    /// Of which user it is, if it has been connected since the daemon began.
    user: Option<u32>,
    /// Whether the client had the slot before this connection, and so has its memory mapped.
    resumed: bool,
    /// Watched instead of a connection until the client resumes.
    process: Option<ProcessHandle>,
    /// The host's, if it is not the daemon's own.
    pub host: Option<HostTag>,
    /// Of a client of another host: its agent says that it is connected.
    is_attached: bool,
}

/// A connection that has not said hello yet.
struct Pending {
    conn: ControlConn,
    user: u32,
    until: Nanos,
}

pub(super) struct Clients {
    pub slots: Vec<Option<Client>>,
    /// Slots with rings that were made anew, or with a client that is gone for good (`true`), for
    /// the code that works for them elsewhere.
    pub ended: Vec<(u32, bool)>,
    pending: BTreeMap<u64, Pending>,
    next_pending: u64,
    buffer: Vec<u8>,
    /// Users that may join with their processes.
    access: AccessList,
}

impl Clients {
    pub(super) fn new(access: AccessList) -> Self {
        Self {
            slots: (0..SLOTS_MAX).map(|_| None).collect(),
            ended: Vec::new(),
            pending: BTreeMap::new(),
            next_pending: 0,
            buffer: vec![0; MESSAGE_BYTES_MAX as usize],
            access,
        }
    }

    /// After an attach: keeps the slots of living processes, gives the others back.
    pub(super) fn recover(
        &mut self,
        engine: &mut Daemon,
        world: &mut RegionWorld,
        poller: &Poller,
    ) -> Result<()> {
        let sessions: Vec<SessionInfo> =
            engine.sessions().filter(|info| info.record < SLOTS_MAX).collect();
        for info in sessions {
            let slot = info.record;
            let host = HostTag::unpack(info.pid, info.start_time);
            if let Ok((_, window)) = world.files.open_slot(slot) {
                world.add_slot(slot, window, host.is_none());
            }
            let window = world.slot(slot).cloned();
            let left = world.slot_word(slot, SlotWord::Left) != Some(0);
            match (host, ProcessHandle::open_exact(process_id(&info))) {
                (Some((tag, _)), _) if !left => {
                    let mut client = rings(&window.expect("left reads as gone without a section"));
                    client.host = Some(tag);
                    self.slots[slot as usize] = Some(client);
                }
                (None, Ok(process)) if !left => {
                    let window = window.expect("left reads as gone without a section");
                    self.reserve(slot, rings(&window), process, poller)
                        .map_err(|error| io_error("watching a process", &error))?;
                }
                _ => self.leave(slot, engine, world, poller),
            }
        }
        for slot in world.files.slots_present().map_err(Error::from)? {
            if self.slots[slot as usize].is_none() {
                world.files.remove_slot(slot).map_err(Error::from)?;
            }
        }
        Ok(())
    }

    /// Takes a new connection of a user in; it has to say hello.
    pub(super) fn accept(&mut self, (conn, user): (ControlConn, u32), now: Nanos, poller: &Poller) {
        let waiting = self.pending.iter().map(|(token, one)| (*token, one.user));
        if let Some(token) = acceptor::crowded_out(waiting, user)
            && let Some(old) = self.pending.remove(&token)
        {
            let _ = poller.remove(&old.conn);
            let (what, limit) = ("the daemon's new connections".into(), CONTROL_PENDING_MAX as u64);
            acceptor::refuse(&old.conn, Error::Busy { what, limit });
        }
        self.next_pending = (self.next_pending + 1) % TOKEN_PENDING;
        let token = TOKEN_PENDING + self.next_pending;
        if poller.add(&conn, token, Interest::Read).is_ok() {
            self.pending.insert(token, Pending { conn, user, until: now + HELLO_NS });
        }
    }

    /// Gives back the slots that no client will resume, as their clients say in them, and the locks
    /// of dropped guards.
    pub(super) fn give_back_left(
        &mut self,
        engine: &mut Daemon,
        world: &mut RegionWorld,
        poller: &Poller,
    ) {
        for slot in 0..SLOTS_MAX {
            let client = self.slots[slot as usize].as_ref();
            let reserved = client.is_some_and(|client| !client.is_connected());
            if client.is_some() {
                // A guard may have been dropped while no daemon was there to see the doorbell.
                engine.take_releases(slot, world);
            }
            if reserved && world.slot_word(slot, SlotWord::Left) != Some(0) {
                self.leave(slot, engine, world, poller);
            }
        }
    }

    /// Slots of connected clients that have sent something and have a doorbell that is not seen
    /// here.
    pub(super) fn unheard(&self) -> Vec<u32> {
        let says =
            |client: &Client| client.is_apart() && client.is_connected() && client.has_spoken();
        let slots = (0..SLOTS_MAX).zip(&self.slots);
        let slots = slots.filter(|(_, client)| client.as_ref().is_some_and(says));
        slots.map(|(slot, _)| slot).collect()
    }

    /// Closes connections that did not say hello in time.
    pub(super) fn expire(&mut self, now: Nanos, poller: &Poller) {
        self.pending.retain(|_, pending| {
            let keep = pending.until > now;
            if !keep {
                let _ = poller.remove(&pending.conn);
            }
            keep
        });
    }

    /// A pending connection has sent something or closed.
    pub(super) fn on_pending(
        &mut self,
        token: u64,
        engine: &mut Daemon,
        world: &mut RegionWorld,
        poller: &Poller,
        context: &Welcome<'_>,
    ) {
        let Some(pending) = self.pending.get(&token) else { return };
        let hello = match pending.conn.recv(&mut self.buffer) {
            Ok(Received::Nothing) => return,
            Ok(Received::Message { bytes, .. }) => {
                wire::decode::<ControlHello>(&self.buffer[..bytes], "client")
            }
            Ok(Received::Closed) => Err(Error::Protocol {
                peer: "client".into(),
                reason: "closed before its hello".into(),
            }),
            Err(error) => Err(io_error("control connection", &error)),
        };
        let Pending { conn, user, .. } = self.pending.remove(&token).expect("looked up above");
        let _ = poller.remove(&conn);
        let resume_slot = hello.as_ref().ok().and_then(|hello| hello.resume_slot);
        let result = hello.and_then(|hello| {
            if hello.resume_slot.is_none() {
                self.check_share(user)?;
            }
            let process_of = |access: &AccessList| local_process(&conn, access);
            self.admit(process_of, &hello, engine, world)
        });
        match result {
            Ok(slot) => {
                let sent = self.welcome(&conn, slot, world, context);
                let resumed = resume_slot.is_some();
                self.attach_conn((conn, user), (slot.0, resumed), sent, engine, world, poller);
            }
            Err(error) => acceptor::refuse(&conn, error),
        }
    }

    /// A permitted user other than our own has half of the slots at most, so others can join.
    fn check_share(&self, user: u32) -> Result<()> {
        let held = self.slots.iter().flatten().filter(|client| client.user == Some(user)).count();
        let is_guest = user != self.access.own() && user != 0;
        if is_guest && held >= SLOTS_OF_USER_MAX as usize {
            let (what, limit) = (format!("user {user}'s share of slots"), SLOTS_OF_USER_MAX.into());
            return Err(Error::Busy { what, limit });
        }
        Ok(())
    }

    /// Finds or makes the slot of a client that sends a hello; for a new one its process is looked
    /// up.
    fn admit(
        &mut self,
        process_of: impl FnOnce(&AccessList) -> Result<(u64, u64)>,
        hello: &ControlHello,
        engine: &mut Daemon,
        world: &mut RegionWorld,
    ) -> Result<(u32, bool)> {
        if hello.version != WIRE_VERSION {
            let (found, supported) = (hello.version, WIRE_VERSION);
            return Err(Error::Version { peer: "client".into(), found, supported });
        }
        let (pid, start_time) = process_of(&self.access)?;
        if let Some(slot) = hello.resume_slot.or_else(|| self.forgotten_slot(hello, engine)) {
            engine.resume_local(hello.session, hello.number, slot)?;
            if world.slot(slot).is_none() {
                return Err(Error::Denied { reason: format!("slot {slot} has no section") });
            }
            return Ok((slot, hello.read_only));
        }
        let (session, hello_number) = (hello.session, hello.number);
        let client = LocalClient { session, hello: hello_number, pid, start_time };
        let slot = engine.join_local(client, world)?;
        match world.files.create_slot(slot) {
            Ok((_, window)) => {
                world.add_slot(slot, window, HostTag::unpack(pid, start_time).is_none());
                Ok((slot, hello.read_only))
            }
            Err(error) => {
                engine.leave(slot, world);
                Err(error.into())
            }
        }
    }

    /// The slot of a new client that lost its welcome with the last daemon: it says hello again
    /// with the same session, and no client is connected there.
    fn forgotten_slot(&self, hello: &ControlHello, engine: &Daemon) -> Option<u32> {
        let known = engine.sessions().find(|info| info.session == hello.session)?;
        let client = self.slots.get(known.record as usize)?.as_ref()?;
        (!client.is_connected()).then_some(known.record)
    }

    fn welcome(
        &mut self,
        conn: &ControlConn,
        (slot, read_only): (u32, bool),
        world: &RegionWorld,
        context: &Welcome<'_>,
    ) -> Result<()> {
        let reply = self.begin(slot, (world.is_asymmetric(), true), world, context);
        let (slot_fd, _) = world.files.open_slot(slot).map_err(Error::from)?;
        let open = |section, access| world.files.client_fd(section, access).map_err(Error::from);
        let pages = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        let bell_fd = open(Section::Bell, Access::ReadWrite)?;
        let table_fd = open(Section::Table, Access::ReadOnly)?;
        let pages_fd = open(Section::Pages, pages)?;
        let fds = [&slot_fd, &bell_fd, &table_fd, &pages_fd].map(|fd| fd.as_fd());
        conn.send(&wire::encode_vec(&reply), &fds).map_err(|e| io_error("welcome", &e))
    }

    /// Makes the rings of a slot anew; what its client is to be told.
    fn begin(
        &mut self,
        slot: u32,
        (asymmetric_fence, beside_daemon): (bool, bool),
        world: &RegionWorld,
        context: &Welcome<'_>,
    ) -> ControlReply {
        let window = world.slot(slot).expect("admitted clients have a section");
        for ring in RINGS {
            ring::reset(&window.slice(ring, RING_BYTES));
        }
        self.ended.push((slot, false));
        let (region, offsets) = (context.region.clone(), world.files.client_offsets(slot));
        ControlReply::Welcome { slot, region, asymmetric_fence, beside_daemon, offsets }
    }

    /// A client of another host says hello, by its agent. It fences for itself: the barrier of this
    /// host's kernel does not reach it.
    pub(super) fn join_of_host(
        &mut self,
        (tag, process): (HostTag, HostProcess),
        hello: &ControlHello,
        engine: &mut Daemon,
        world: &mut RegionWorld,
        context: &Welcome<'_>,
    ) -> ControlReply {
        let slot = match self.admit(|_| Ok(tag.pack(process)), hello, engine, world) {
            Ok((slot, _)) => slot,
            Err(error) => return ControlReply::Refused(error),
        };
        let reply = self.begin(slot, (false, false), world, context);
        let mut client = rings(world.slot(slot).expect("admitted clients have a section"));
        (client.host, client.is_attached) = (Some(tag), true);
        client.resumed = hello.resume_slot.is_some();
        self.slots[slot as usize] = Some(client);
        reply
    }

    /// The agent of a host is there: slots of its clients of before, which are not served until
    /// they take them up again. Those of an earlier boot are given back.
    pub(super) fn host_is_back(
        &mut self,
        tag: HostTag,
        engine: &mut Daemon,
        world: &mut RegionWorld,
        poller: &Poller,
    ) -> Vec<(u32, SessionId, HostProcess)> {
        self.detach(tag.host);
        let mut kept = Vec::new();
        for (slot, session, found, process) in of_host(tag.host, engine) {
            if found == tag {
                kept.push((slot, session, process));
            } else {
                self.leave(slot, engine, world, poller);
            }
        }
        kept
    }

    /// Gives back all slots of a host; how many.
    pub(super) fn host_is_gone(
        &mut self,
        host: u32,
        engine: &mut Daemon,
        world: &mut RegionWorld,
        poller: &Poller,
    ) -> u32 {
        let slots = of_host(host, engine);
        for (slot, ..) in &slots {
            self.leave(*slot, engine, world, poller);
        }
        slots.len() as u32
    }

    /// The agent of a host says that a client is gone.
    pub(super) fn left_of_host(
        &mut self,
        (slot, session, tag): (u32, SessionId, HostTag),
        engine: &mut Daemon,
        world: &mut RegionWorld,
        poller: &Poller,
    ) {
        let is_its = |(known, of, found, _): &(u32, SessionId, HostTag, HostProcess)| {
            (*known, *of, *found) == (slot, session, tag)
        };
        if of_host(tag.host, engine).iter().any(is_its) {
            self.leave(slot, engine, world, poller);
        }
    }

    /// The clients of a host are not served until its agent is back.
    pub(super) fn detach(&mut self, host: u32) {
        let of_host = |client: &&mut Client| client.host.is_some_and(|tag| tag.host == host);
        self.slots.iter_mut().flatten().filter(of_host).for_each(|one| one.is_attached = false);
    }

    fn attach_conn(
        &mut self,
        (conn, user): (ControlConn, u32),
        (slot, resumed): (u32, bool),
        sent: Result<()>,
        engine: &mut Daemon,
        world: &mut RegionWorld,
        poller: &Poller,
    ) {
        let token = TOKEN_SLOT + u64::from(slot);
        if let Some(old) = self.slots[slot as usize].take() {
            unwatch(&old, poller);
        }
        let mut client = rings(world.slot(slot).expect("admitted clients have a section"));
        let watched = poller.add(&conn, token, Interest::Read);
        (client.conn, client.resumed, client.user) = (Some(conn), resumed, Some(user));
        self.slots[slot as usize] = Some(client);
        if sent.is_err() || watched.is_err() {
            self.on_conn_lost((slot, resumed), engine, world, poller);
        }
    }

    /// Something happened on a slot's control connection: its client woke the loop, or it ended.
    pub(super) fn on_slot(
        &mut self,
        slot: u32,
        engine: &mut Daemon,
        world: &mut RegionWorld,
        poller: &Poller,
    ) {
        let Some(conn) = self.slots[slot as usize].as_ref().and_then(|one| one.conn.as_ref())
        else {
            return;
        };
        let resumed = self.slots[slot as usize].as_ref().is_some_and(|client| client.resumed);
        match conn.drain() {
            Drained::Open => {}
            Drained::Closed => self.on_conn_lost((slot, resumed), engine, world, poller),
            // It may live, and have the memory mapped.
            Drained::Broken => self.on_conn_lost((slot, true), engine, world, poller),
        }
    }

    /// A slot's connection is over, and so is its client; but one that gave up taking its slot up
    /// again, or broke the protocol, may still have the memory mapped, and the slot is kept until
    /// it comes back or ends.
    fn on_conn_lost(
        &mut self,
        (slot, may_live): (u32, bool),
        engine: &mut Daemon,
        world: &mut RegionWorld,
        poller: &Poller,
    ) {
        if may_live && world.slot_word(slot, SlotWord::Left) == Some(0) {
            let info = engine.sessions().find(|info| info.record == slot);
            let process = info.and_then(|info| ProcessHandle::open_exact(process_id(&info)).ok());
            let window = world.slot(slot).map(rings);
            if let (Some(process), Some(mut rings)) = (process, window) {
                rings.user = self.slots[slot as usize].as_ref().and_then(|client| client.user);
                if let Some(old) = self.slots[slot as usize].take() {
                    unwatch(&old, poller);
                }
                if self.reserve(slot, rings, process, poller).is_ok() {
                    return;
                }
            }
        }
        self.leave(slot, engine, world, poller);
    }

    /// Keeps a slot for the client that has it mapped, until its process ends.
    fn reserve(
        &mut self,
        slot: u32,
        mut client: Client,
        process: ProcessHandle,
        poller: &Poller,
    ) -> std::io::Result<()> {
        poller.add(&process, TOKEN_PROCESS + u64::from(slot), Interest::Read)?;
        client.process = Some(process);
        self.slots[slot as usize] = Some(client);
        Ok(())
    }

    /// The process of a slot that was never resumed has ended.
    pub(super) fn on_process_end(
        &mut self,
        slot: u32,
        engine: &mut Daemon,
        world: &mut RegionWorld,
        poller: &Poller,
    ) {
        let client = self.slots[slot as usize].as_ref();
        let ended = client.and_then(|one| one.process.as_ref()).is_some_and(|p| !p.is_alive());
        if ended {
            self.leave(slot, engine, world, poller);
        }
    }

    /// Gives back everything that a client held, which is provably gone.
    fn leave(&mut self, slot: u32, engine: &mut Daemon, world: &mut RegionWorld, poller: &Poller) {
        if let Some(client) = self.slots[slot as usize].take() {
            unwatch(&client, poller);
        }
        settle(slot, engine, world);
        self.ended.push((slot, true));
        engine.leave(slot, world);
        world.remove_slot(slot);
        if let Err(error) = world.files.remove_slot(slot) {
            warn!(target: "daemon", "removing slot {slot}: {error}");
        }
    }
}

/// A client of this host is gone: what it may have left in caches is written back before its slot
/// and what it held may be given away. For one of another host its agent has done that.
fn settle(slot: u32, engine: &Daemon, world: &RegionWorld) {
    let info = engine.sessions().find(|info| info.record == slot);
    let is_near = info.is_some_and(|info| HostTag::unpack(info.pid, info.start_time).is_none());
    if let Some(window) = world.slot(slot).filter(|_| is_near) {
        coherence::settle_slot(window, world.pages(), &engine.layout());
    }
}

pub(super) struct Welcome<'a> {
    pub region: &'a RegionInfo,
}

/// Slots of clients of a host, each with its session, boot and process.
fn of_host(host: u32, engine: &Daemon) -> Vec<(u32, SessionId, HostTag, HostProcess)> {
    let local = engine.sessions().filter(|info| info.record < SLOTS_MAX);
    let known = local.filter_map(|info| {
        let (tag, process) = HostTag::unpack(info.pid, info.start_time)?;
        (tag.host == host).then_some((info.record, info.session, tag, process))
    });
    known.collect()
}

/// The process at the other end of a control connection, for its session record, if it may join.
fn local_process(conn: &ControlConn, access: &AccessList) -> Result<(u64, u64)> {
    let peer = conn.peer_credentials().map_err(|e| Error::Denied { reason: e.to_string() })?;
    access.check(peer.uid, &())?;
    let process = ProcessId::of(peer.pid).map_err(|error| Error::Denied {
        reason: format!(
            "process {} is not visible from the daemon ({error}): run both in one process \
             namespace",
            peer.pid
        ),
    })?;
    Ok((u64::from(process.pid), process.start_time))
}

fn process_id(info: &SessionInfo) -> ProcessId {
    ProcessId { pid: u32::try_from(info.pid).unwrap_or(0), start_time: info.start_time }
}

/// The rings of a slot.
const RINGS: [u64; 4] =
    [SLOT_REQUEST_RING, SLOT_REPLY_RING, SLOT_REMOTE_REQUEST_RING, SLOT_REMOTE_REPLY_RING];

fn rings(slot: &Window) -> Client {
    let [requests, replies, orders, outcomes] = RINGS.map(|at| slot.slice(at, RING_BYTES));
    Client {
        requests: Consumer::attach(requests),
        replies: Producer::attach(replies),
        orders: Some(Consumer::attach(orders)),
        outcomes: Producer::attach(outcomes),
        slot: slot.clone(),
        conn: None,
        user: None,
        resumed: false,
        process: None,
        host: None,
        is_attached: false,
    }
}

impl Client {
    /// Whether the client is of a host that no hardware keeps coherent with this one, so that its
    /// doorbell is not seen: the daemon looks at its rings.
    fn is_apart(&self) -> bool {
        !self.slot.is_coherent()
    }

    /// Whether it has sent something that was not taken yet.
    fn has_spoken(&self) -> bool {
        self.requests.is_ready() || self.orders.as_ref().is_some_and(Consumer::is_ready)
    }

    /// Whether the client is connected: requests of others wait until they resume.
    pub(super) fn is_connected(&self) -> bool {
        self.conn.is_some() || self.is_attached
    }

    /// Puts an outcome into the client's ring and wakes it, wherever it sleeps; `false` if there
    /// is no room.
    pub(super) fn tell(&mut self, outcome: &[u8]) -> bool {
        if self.outcomes.push(outcome).is_err() {
            return false;
        }
        // Pairs with the fence in local.rs::FabricDoor::prepare_sleep, by that of the wake.
        self.outcomes.wake_if_sleeping();
        if self.slot.load(SlotWord::FabricSleeping as u64) == 1
            && let Some(conn) = &self.conn
        {
            self.slot.store(SlotWord::FabricSleeping as u64, 0);
            conn.notify();
        }
        true
    }
}

fn unwatch(client: &Client, poller: &Poller) {
    // Descriptors that are not in the poller any more are what is wanted.
    if let Some(conn) = &client.conn {
        let _ = poller.remove(conn);
    }
    if let Some(process) = &client.process {
        let _ = poller.remove(process);
    }
}
