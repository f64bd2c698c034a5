//! Clients of the agent's host: their control connections and processes. In: what they and the
//! daemon say. Out: what the daemon is to be told.
//!
//! The end of a connection is the client's end, because a client unmaps before it closes and the
//! kernel does the same for the dead; but a client that has taken a slot up again has the memory
//! from before, so for it only the end of its process counts.

use crate::acceptor;
use crate::daemon::io_error;
use rackpool_core::access::AccessList;
use rackpool_core::constants::{CONTROL_PENDING_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::layout::{RING_BYTES, SLOT_BYTES, SLOT_REPLY_RING, SlotWord};
use rackpool_core::seam::{Mem, Nanos};
use rackpool_core::wire::{self, AgentRequest, ControlHello, ControlReply, HostProcess};
use rackpool_core::{Error, Result, SessionId};
use rackpool_fabric::acceptor::PendingConns;
use rackpool_fabric::control::{ControlConn, Drained, Received};
use rackpool_mem::event::{Interest, Poller};
use rackpool_mem::process::{ProcessHandle, ProcessId};
use rackpool_mem::region::ClientSections;
use rackpool_mem::ring;
use rackpool_mem::window::{Access, MapOptions, Window};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use tracing::warn;

/// Tokens of the poller: connections that have no slot yet, then slots, then processes.
pub(super) const TOKEN_PENDING: u64 = 1 << 16;
pub(super) const TOKEN_SLOT: u64 = 2 << 16;
pub(super) const TOKEN_PROCESS: u64 = 3 << 16;

/// How long a connection may take until it has one, ns: longer than clients wait for the daemon.
const PENDING_NS: u64 = 60_000_000_000;

/// What is known of a connection without a slot.
#[derive(Default)]
struct PendingClient {
    /// Its hello, and the process that sent it.
    hello: Option<(ControlHello, ProcessId)>,
    is_told: bool,
}

/// A slot of a client.
struct Kept {
    session: SessionId,
    process: ProcessId,
    conn: Option<ControlConn>,
    /// Watched while there is no connection.
    handle: Option<ProcessHandle>,
    is_resumed: bool,
    /// Mapped when there is a process to be woken.
    slot: Option<Window>,
}

pub(super) struct HostClients {
    pending: PendingConns<PendingClient>,
    slots: BTreeMap<u32, Kept>,
    buffer: Vec<u8>,
    /// Users that may join with their processes.
    access: AccessList,
    /// What they get, and what is written back after them.
    sections: ClientSections,
}

impl HostClients {
    /// Clients that have a slot.
    pub(super) fn count(&self) -> u64 {
        self.slots.len() as u64
    }

    pub(super) fn new(access: AccessList, sections: ClientSections) -> Self {
        let buffer = vec![0; MESSAGE_BYTES_MAX as usize];
        let pending = PendingConns::new(TOKEN_PENDING..TOKEN_SLOT, PENDING_NS);
        Self { pending, slots: BTreeMap::new(), buffer, access, sections }
    }

    /// Takes a new connection of a user in; it has to say hello.
    pub(super) fn accept(&mut self, conn: ControlConn, user: u32, now: Nanos, poller: &Poller) {
        if let Some(old) = self.pending.add(conn, user, now, poller) {
            let (what, limit) = ("the agent's new connections".into(), CONTROL_PENDING_MAX as u64);
            acceptor::refuse(&old, Error::Busy { what, limit });
        }
    }

    /// A connection without a slot has sent something or closed.
    pub(super) fn on_pending(&mut self, token: u64, poller: &Poller) {
        let Some(pending) = self.pending.get_mut(token) else { return };
        let hello = match pending.conn.recv(&mut self.buffer) {
            Ok(Received::Nothing) => return,
            Ok(Received::Message { bytes, .. }) if pending.state.hello.is_none() => {
                wire::decode::<ControlHello>(&self.buffer[..bytes], "client")
            }
            _ => return drop(self.pending.remove(token, poller)),
        };
        match hello.and_then(|hello| Ok((hello, process_of(&pending.conn, &self.access)?))) {
            Ok(said) => pending.state.hello = Some(said),
            Err(error) => {
                if let Some(one) = self.pending.remove(token, poller) {
                    acceptor::refuse(&one.conn, error);
                }
            }
        }
    }

    /// What the daemon has not been told yet of new clients.
    pub(super) fn take_joins(&mut self) -> Vec<AgentRequest> {
        let untold = self.pending.iter_mut().filter(|(_, pending)| !pending.state.is_told);
        let joins = untold.filter_map(|(number, pending)| {
            let (hello, process) = pending.state.hello.clone()?;
            pending.state.is_told = true;
            let process = HostProcess { pid: process.pid, start_time: process.start_time };
            Some(AgentRequest::Join { number, hello, process })
        });
        joins.collect()
    }

    /// Closes connections that have waited for too long.
    pub(super) fn expire(&mut self, now: Nanos, poller: &Poller) {
        self.pending.expire(now, poller);
    }

    /// The daemon has answered a hello. What it is to be told if the client is gone already.
    pub(super) fn joined(
        &mut self,
        number: u64,
        reply: ControlReply,
        poller: &Poller,
    ) -> Option<AgentRequest> {
        let pending = self.pending.remove(number, poller);
        let said = pending.and_then(|pending| Some((pending.conn, pending.state.hello?)));
        let ControlReply::Welcome { slot, region, offsets, .. } = &reply else {
            if let Some((conn, _)) = said {
                let _ = conn.send(&wire::encode_vec(&reply), &[]);
            }
            return None;
        };
        let (slot, offset, is_coherent) = (*slot, offsets[0], region.coherence.is_hardware());
        // The client that had it before has it no more.
        self.forget(slot, poller);
        let Some((conn, (hello, process))) = said else {
            // It has gone while the daemon was asked; its process may have the slot from before.
            return None;
        };
        let (session, is_resumed) = (hello.session, hello.resume_slot.is_some());
        let access = if hello.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let sent = self.sections.client_fds(slot, access).map_err(Error::from).and_then(|fds| {
            let fds = [fds[0].as_fd(), fds[1].as_fd(), fds[2].as_fd(), fds[3].as_fd()];
            conn.send(&wire::encode_vec(&reply), &fds).map_err(|e| io_error("welcome", &e))
        });
        let watched = poller.add(&conn, TOKEN_SLOT + u64::from(slot), Interest::Read);
        let fds = self.sections.client_fds(slot, access).ok();
        let window = fds.and_then(|[fd, ..]| map(&fd, offset));
        let window = window.map(|slot| slot.with_coherence(is_coherent));
        let conn = Some(conn);
        self.slots
            .insert(slot, Kept { session, process, conn, handle: None, is_resumed, slot: window });
        if let Err(error) = &sent {
            warn!(target: "agent", "slot {slot}: {error}");
        }
        let is_lost = sent.is_err() || watched.is_err();
        is_lost.then(|| self.on_conn_lost(slot, poller)).flatten()
    }

    /// Something happened on a slot's connection: its client wakes the daemon, or it ended.
    pub(super) fn on_slot(&mut self, slot: u32, poller: &Poller) -> Option<AgentRequest> {
        let conn = self.slots.get(&slot)?.conn.as_ref()?;
        match conn.drain() {
            Drained::Open => Some(AgentRequest::Ring),
            Drained::Closed => self.on_conn_lost(slot, poller),
            Drained::Broken => {
                // It may live, and have the memory mapped.
                self.slots.get_mut(&slot)?.is_resumed = true;
                self.on_conn_lost(slot, poller)
            }
        }
    }

    fn on_conn_lost(&mut self, slot: u32, poller: &Poller) -> Option<AgentRequest> {
        let kept = self.slots.get_mut(&slot)?;
        if let Some(conn) = kept.conn.take() {
            let _ = poller.remove(&conn);
        }
        let window = kept.slot.as_ref();
        let has_left = window.is_some_and(|slot| slot.load(SlotWord::Left as u64) != 0);
        match kept.is_resumed && !has_left {
            true => self.watch(slot, poller),
            false => self.left(slot, poller),
        }
    }

    /// Waits for the end of a slot's process, which has the memory though it is not connected.
    fn watch(&mut self, slot: u32, poller: &Poller) -> Option<AgentRequest> {
        let kept = self.slots.get_mut(&slot)?;
        let handle = ProcessHandle::open_exact(kept.process).ok().filter(ProcessHandle::is_alive);
        let watched = handle.filter(|handle| {
            poller.add(handle, TOKEN_PROCESS + u64::from(slot), Interest::Read).is_ok()
        });
        match watched {
            None => self.left(slot, poller),
            Some(handle) => {
                kept.handle = Some(handle);
                None
            }
        }
    }

    /// The process of a slot without a connection may have ended.
    pub(super) fn on_process(&mut self, slot: u32, poller: &Poller) -> Option<AgentRequest> {
        let is_alive = self.slots.get(&slot)?.handle.as_ref()?.is_alive();
        if is_alive { None } else { self.left(slot, poller) }
    }

    fn left(&mut self, slot: u32, poller: &Poller) -> Option<AgentRequest> {
        let kept = self.slots.get_mut(&slot)?;
        let session = kept.session;
        // The daemon gives away what it is told of: nothing of it may be written back later.
        if let Err(error) = self.sections.settle(slot) {
            warn!(target: "agent", "slot {slot} is kept until the agent is started again: {error}");
            if let Some(handle) = kept.handle.take() {
                let _ = poller.remove(&handle);
            }
            return None;
        }
        self.forget(slot, poller);
        Some(AgentRequest::Left { slot, session })
    }

    fn forget(&mut self, slot: u32, poller: &Poller) {
        let Some(kept) = self.slots.remove(&slot) else { return };
        if let Some(conn) = &kept.conn {
            let _ = poller.remove(conn);
        }
        if let Some(handle) = &kept.handle {
            let _ = poller.remove(handle);
        }
    }

    /// The daemon says which slots are of clients of this host; what it is to be told of those with
    /// a process that has ended.
    pub(super) fn of_daemon(
        &mut self,
        slots: Vec<(u32, SessionId, HostProcess)>,
        poller: &Poller,
    ) -> Vec<AgentRequest> {
        self.detach(poller);
        self.slots.clear();
        let mut ended = Vec::new();
        for (slot, session, HostProcess { pid, start_time }) in slots {
            let process = ProcessId { pid, start_time };
            let kept =
                Kept { session, process, conn: None, handle: None, is_resumed: true, slot: None };
            self.slots.insert(slot, kept);
            ended.extend(self.watch(slot, poller));
        }
        ended
    }

    /// The daemon is gone: clients find that out, and take their slots up again.
    pub(super) fn detach(&mut self, poller: &Poller) {
        for kept in self.slots.values_mut() {
            if let Some(conn) = kept.conn.take() {
                let _ = poller.remove(&conn);
            }
            if let Some(handle) = kept.handle.take() {
                let _ = poller.remove(&handle);
            }
        }
        self.pending.iter_mut().for_each(|(_, pending)| pending.state.is_told = false);
    }

    /// Wakes the client of a slot.
    pub(super) fn wake(&self, slot: u32) {
        if let Some(window) = self.slots.get(&slot).and_then(|kept| kept.slot.as_ref()) {
            ring::wake(&window.slice(SLOT_REPLY_RING, RING_BYTES));
        }
    }
}

fn map(fd: &OwnedFd, file_offset: u64) -> Option<Window> {
    let options = MapOptions { file_offset, ..MapOptions::default() };
    Window::map(fd.as_fd(), SLOT_BYTES, Access::ReadWrite, options).ok()
}

fn process_of(conn: &ControlConn, access: &AccessList) -> Result<ProcessId> {
    let denied = |error: &dyn std::fmt::Display| Error::Denied { reason: error.to_string() };
    let peer = conn.peer_credentials().map_err(|error| denied(&error))?;
    access.check(peer.uid, &())?;
    ProcessId::of(peer.pid).map_err(|error| denied(&error))
}
