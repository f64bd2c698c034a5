//! Clients that map the rack's memory: their slots and rings. A closed connection is the client's
//! end, because a client unmaps before it closes and the kernel does the same for the dead. After a
//! restart of the daemon the slots of living processes are kept until they resume. Clients of other
//! hosts of the rack have their connections to the agents there (`hosts.rs`), which say which
//! clients come and which are gone.

use super::{DaemonHost, DaemonLoop, SlotGrant};
use crate::constants::{SLOTS_MAX, SLOTS_OF_USER_MAX};
use crate::daemon::{LocalClient, SessionInfo, World};
use crate::error::{Error, Result};
use crate::layout::{
    RING_BYTES, SLOT_REMOTE_REPLY_RING, SLOT_REMOTE_REQUEST_RING, SLOT_REPLY_RING,
    SLOT_REQUEST_RING, SlotWord,
};
use crate::ring::{self, Consumer, Producer};
use crate::seam::{Mem, Section};
use crate::wire::{self, ControlHello, HostTag, WIRE_VERSION};

type MemOf<H> = <<H as DaemonHost>::World as World>::Mem;

/// The rings and the connection of a slot in use.
pub struct Client<H: DaemonHost> {
    pub(super) requests: Consumer<MemOf<H>>,
    pub replies: Producer<MemOf<H>>,
    /// What the daemon's fabric endpoint is to do; `None` while an order is looked at.
    pub(super) orders: Option<Consumer<MemOf<H>>>,
    pub outcomes: Producer<MemOf<H>>,
    pub section: MemOf<H>,
    pub slot: u32,
    pub conn: Option<H::Conn>,
    /// Of which user it is, if it has been connected since the daemon began.
    pub user: Option<u32>,
    /// Whether the client had the slot before this connection, and so has its memory mapped.
    resumed: bool,
    /// Watched instead of a connection until the client resumes.
    pub process: Option<H::Process>,
    /// The host's, if it is not the daemon's own.
    pub host: Option<HostTag>,
    /// Of a client of another host: its agent says that it is connected.
    pub(super) is_attached: bool,
}

/// A connection that sent its first message.
pub struct Joining<C> {
    pub conn: C,
    /// Of the process at its other end, if that is known.
    pub user: Option<User>,
    pub hello: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub struct User {
    pub id: u32,
    /// Neither the daemon's own user nor root.
    pub is_guest: bool,
}

/// The rings of a slot.
const RINGS: [u64; 4] =
    [SLOT_REQUEST_RING, SLOT_REPLY_RING, SLOT_REMOTE_REQUEST_RING, SLOT_REMOTE_REPLY_RING];

/// The client of a slot, if it is connected: requests of others wait until they resume.
pub(super) fn connected<H: DaemonHost>(
    slots: &mut [Option<Client<H>>],
    slot: u32,
) -> Option<&mut Client<H>> {
    slots[slot as usize].as_mut().filter(|client| client.is_connected())
}

impl<H: DaemonHost> Client<H> {
    fn attach(slot: u32, section: &MemOf<H>) -> Self {
        let ring = |at| section.slice(at, RING_BYTES);
        Client {
            orders: Some(Consumer::attach(ring(SLOT_REMOTE_REQUEST_RING))),
            outcomes: Producer::attach(ring(SLOT_REMOTE_REPLY_RING)),
            requests: Consumer::attach(ring(SLOT_REQUEST_RING)),
            replies: Producer::attach(ring(SLOT_REPLY_RING)),
            section: section.clone(),
            slot,
            conn: None,
            user: None,
            resumed: false,
            process: None,
            host: None,
            is_attached: false,
        }
    }

    /// A client of another host, which its agent has let in.
    pub(super) fn of_host(self, tag: HostTag, hello: &ControlHello) -> Self {
        let resumed = hello.resume_slot.is_some();
        Client { host: Some(tag), is_attached: true, resumed, ..self }
    }

    pub fn is_connected(&self) -> bool {
        self.conn.is_some() || self.is_attached
    }

    /// Whether it has sent something that was not taken yet, and its doorbell is not seen: no
    /// hardware keeps its host coherent with this one.
    fn is_unheard(&self) -> bool {
        let has_spoken =
            || self.requests.is_ready() || self.orders.as_ref().is_some_and(Consumer::is_ready);
        !self.section.is_coherent() && self.is_connected() && has_spoken()
    }
}

impl<H: DaemonHost> DaemonLoop<H> {
    /// After an attach: keeps the slots of living processes, gives the others back.
    ///
    /// # Errors
    /// If the end of a process cannot be noticed.
    pub fn recover(&mut self) -> Result<()> {
        let sessions: Vec<SessionInfo> =
            self.engine.sessions().filter(|info| info.record < SLOTS_MAX).collect();
        let tag_of = |info: &SessionInfo| HostTag::unpack(info.pid, info.start_time);
        for info in &sessions {
            let is_near = tag_of(info).is_none();
            self.host.open_section(&mut self.world, info.record, is_near);
        }
        // Of all of them, before anything is freed or handed out.
        for info in &sessions {
            self.engine.recover_loans(info.record, &mut self.world);
        }
        for info in sessions {
            let slot = info.record;
            let tag = tag_of(&info).map(|(tag, _)| tag);
            let has_left = self.world.slot_word(slot, SlotWord::Left) != Some(0);
            let process = match tag {
                None if !has_left => self.host.watch_process(&info)?,
                _ => None,
            };
            if has_left || tag.is_none() && process.is_none() {
                self.leave(slot);
                continue;
            }
            let section = self.world.slot(slot).expect("left reads as gone without a section");
            let client = Client { process, host: tag, ..Client::attach(slot, section) };
            self.slots[slot as usize] = Some(client);
        }
        self.remotes.recover(&self.engine, self.host.now());
        Ok(())
    }

    /// A connection has said what it wants: finds or makes its slot, and answers.
    pub fn on_hello(&mut self, joining: Joining<H::Conn>) {
        let Joining { conn, user, hello } = joining;
        let admitted = wire::decode::<ControlHello>(&hello, "client").and_then(|hello| {
            self.check_share(user, &hello)?;
            Ok((self.admit(|host| host.identify(&conn), &hello)?, hello))
        });
        let (slot, hello) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => return self.host.refuse(conn, error),
        };
        let mut client = self.begin(slot);
        (client.user, client.resumed) = (user.map(|user| user.id), hello.resume_slot.is_some());
        let (region, read_only) = (self.region.clone(), hello.read_only);
        let welcome = SlotGrant { slot, read_only, region };
        let sent = self.host.welcome(&self.world, &conn, welcome);
        client.conn = Some(conn);
        self.slots[slot as usize] = Some(client);
        if sent.is_err() {
            self.on_conn_lost(slot, false);
        }
    }

    /// A permitted user other than our own has half of the slots, so that others can join.
    fn check_share(&self, user: Option<User>, hello: &ControlHello) -> Result<()> {
        let Some(User { id, is_guest: true }) = user else { return Ok(()) };
        let held = self.slots.iter().flatten().filter(|client| client.user == Some(id)).count();
        if hello.resume_slot.is_some() || held < SLOTS_OF_USER_MAX as usize {
            return Ok(());
        }
        let (what, limit) = (format!("user {id}'s share of slots"), SLOTS_OF_USER_MAX);
        Err(Error::Busy { what, limit: limit.into() })
    }

    /// Finds or makes the slot of a client that sends a hello; for a new one its process is looked
    /// up.
    pub(super) fn admit(
        &mut self,
        process_of: impl FnOnce(&H) -> Result<(u64, u64)>,
        hello: &ControlHello,
    ) -> Result<u32> {
        if hello.version != WIRE_VERSION {
            let (found, supported) = (hello.version, WIRE_VERSION);
            return Err(Error::Version { peer: "client".into(), found, supported });
        }
        let (pid, start_time) = process_of(&self.host)?;
        if let Some(slot) = hello.resume_slot.or_else(|| self.forgotten_slot(hello)) {
            self.engine.resume_local(hello.session, hello.number, slot)?;
            if self.world.slot(slot).is_none() {
                return Err(Error::Denied { reason: format!("slot {slot} has no section") });
            }
            return Ok(slot);
        }
        let (session, number) = (hello.session, hello.number);
        let client = LocalClient { session, hello: number, pid, start_time };
        let record = self.engine.join_local(client, &mut self.world)?;
        let info = SessionInfo { record, session, pid, start_time };
        if let Err(error) = self.host.create_section(&mut self.world, &info) {
            self.engine.leave(record, &mut self.world);
            return Err(error);
        }
        Ok(record)
    }

    /// The slot of a new client that lost its welcome with the last daemon: it says hello again
    /// with the same session, and no client is connected there.
    fn forgotten_slot(&self, hello: &ControlHello) -> Option<u32> {
        let known = self.engine.sessions().find(|info| info.session == hello.session)?;
        let client = self.slots.get(known.record as usize)?.as_ref()?;
        (!client.is_connected()).then_some(known.record)
    }

    /// Makes the rings of a slot anew.
    pub(super) fn begin(&mut self, slot: u32) -> Client<H> {
        let section = self.world.slot(slot).expect("admitted clients have a section");
        for at in RINGS {
            ring::reset(&section.slice(at, RING_BYTES));
        }
        let (proxy, mut links) = self.uplinks();
        proxy.on_slot_reset(slot, &mut links);
        if let Some(old) = self.slots[slot as usize].take() {
            self.host.unwatch(&old);
        }
        let section = self.world.slot(slot).expect("admitted clients have a section");
        Client::attach(slot, section)
    }

    /// A slot's connection is over, and so is its client; but one that gave up taking its slot up
    /// again, or broke the protocol, may still have the memory mapped, and the slot is kept until
    /// it comes back or ends.
    pub fn on_conn_lost(&mut self, slot: u32, is_broken: bool) {
        let Some(client) = &self.slots[slot as usize] else { return };
        let (user, may_live) = (client.user, client.resumed || is_broken);
        if may_live && self.world.slot_word(slot, SlotWord::Left) == Some(0) {
            let info = self.engine.sessions().find(|info| info.record == slot);
            let process = info.map(|info| self.host.watch_process(&info));
            if let (Some(Ok(Some(process))), Some(section)) = (process, self.world.slot(slot)) {
                let kept = Client { process: Some(process), user, ..Client::attach(slot, section) };
                if let Some(old) = self.slots[slot as usize].replace(kept) {
                    self.host.unwatch(&old);
                }
                return;
            }
        }
        self.leave(slot);
    }

    /// The process of a slot that was never resumed may have ended.
    pub fn on_process_end(&mut self, slot: u32) {
        let client = self.slots[slot as usize].as_ref();
        let process = client.and_then(|client| client.process.as_ref());
        if process.is_some_and(|process| !self.host.is_alive(process)) {
            self.leave(slot);
        }
    }

    /// Gives back the slots that no client will resume, and the locks of guards that were dropped
    /// while no daemon was there to see the doorbell.
    pub(super) fn give_back_left(&mut self) {
        for slot in 0..SLOTS_MAX {
            if self.slots[slot as usize].is_none() {
                continue;
            }
            self.engine.take_releases(slot, &mut self.world);
            let Some(client) = &self.slots[slot as usize] else { continue };
            let is_dead = || client.process.as_ref().is_some_and(|one| !self.host.is_alive(one));
            let has_left = || self.world.slot_word(slot, SlotWord::Left) != Some(0);
            if !client.is_connected() && (is_dead() || has_left()) {
                self.leave(slot);
            }
        }
    }

    /// Gives back everything that a client held, which is provably gone.
    pub(super) fn leave(&mut self, slot: u32) {
        self.host.settle(&self.engine, &self.world, slot);
        self.host.trace(|| format!("slot {slot} is given back"));
        if let Some(client) = self.slots[slot as usize].take() {
            self.host.unwatch(&client);
        }
        let (proxy, mut links) = self.uplinks();
        proxy.on_slot_gone(slot, &mut links);
        self.engine.leave(slot, &mut self.world);
        self.host.remove_section(&mut self.world, slot);
    }

    /// Slots of connected clients that have sent something and have a doorbell that is not seen
    /// here.
    pub fn unheard(&self) -> Vec<u32> {
        if self.region.coherence.is_hardware() {
            return Vec::new();
        }
        let unheard = self.slots.iter().flatten().filter(|client| client.is_unheard());
        unheard.map(|client| client.slot).collect()
    }
}
