//! What the daemon's loop needs of its process: sections in files, control sockets and pidfds in
//! the poller, the fabric's target and the endpoint of its own, the link to the master.

use super::helper::HelperThread;
use super::standing::{Membership, StateChange};
use super::uplinks::FabricUplinks;
use super::world::RegionWorld;
use super::{DaemonOptions, io_error, relocation};
use crate::link::MasterLink;
use crate::{acceptor, clock};
use rackpool_core::access::AccessList;
use rackpool_core::crash;
use rackpool_core::daemon::{Daemon, SessionInfo, World};
use rackpool_core::layout::SlotWord;
use rackpool_core::member::RackState;
use rackpool_core::runtime::daemon::{
    Client, DaemonHost, FabricTarget, Fault, SlotGrant, TargetCommand,
};
use rackpool_core::runtime::master_link::Call;
use rackpool_core::seam::{EncodedWriteBack, FabricEvent, Mem, Nanos, PeerId, Verb};
use rackpool_core::wire::{HostTag, RackInfo};
use rackpool_core::{Error, Result};
use rackpool_fabric::Target;
use rackpool_fabric::control::ControlConn;
use rackpool_mem::event::{Interest, Poller, WakeEvent};
use rackpool_mem::process::{ProcessHandle, ProcessId};
use rackpool_mem::region::Section;
use rackpool_mem::ring::WakeConsumer;
use rackpool_mem::window::Access;
use std::fmt::Display;
use std::os::fd::AsFd;
use tracing::warn;

/// Tokens of the poller: connections that have not said hello, then slots, then processes.
pub(super) const TOKEN_PENDING: u64 = 1 << 16;
pub(super) const TOKEN_SLOT: u64 = 2 << 16;
pub(super) const TOKEN_PROCESS: u64 = 3 << 16;

pub(super) struct PoolHost {
    pub options: DaemonOptions,
    pub target: Target,
    pub uplinks: FabricUplinks,
    pub master: MasterLink,
    pub poller: Poller,
    pub wake: WakeEvent,
    pub membership: Membership,
    /// Moves pages, if they are to move.
    pub relocation: HelperThread,
    /// Users that may join with their processes.
    pub access: AccessList,
    pub buffer: Box<[u8]>,
}

impl DaemonHost for PoolHost {
    type World = RegionWorld;
    type Conn = ControlConn;
    type Process = ProcessHandle;

    fn now(&self) -> Nanos {
        clock::now_ns()
    }

    fn report(&self, at: Fault, error: &dyn Display) {
        match at {
            Fault::Slot(slot) => warn!(target: "daemon", "slot {slot}: {error}"),
            Fault::Fabric => warn!(target: "daemon", "{error}"),
        }
    }

    fn open_section(&mut self, world: &mut RegionWorld, slot: u32, is_near: bool) {
        if let Ok((_, window)) = world.files.open_slot(slot) {
            world.add_slot(slot, window, is_near);
        }
    }

    fn create_section(&mut self, world: &mut RegionWorld, info: &SessionInfo) -> Result<()> {
        let (_, window) = world.files.create_slot(info.record)?;
        world.add_slot(info.record, window, is_near(info));
        Ok(())
    }

    fn remove_section(&mut self, world: &mut RegionWorld, slot: u32) {
        world.remove_slot(slot);
        if let Err(error) = world.files.remove_slot(slot) {
            warn!(target: "daemon", "removing slot {slot}: {error}");
        }
    }

    fn offsets(world: &RegionWorld, slot: u32) -> [u64; 4] {
        world.files.client_offsets(slot)
    }

    /// For a client of another host its agent has done that.
    fn settle(&self, engine: &Daemon, world: &RegionWorld, slot: u32) {
        let is_near =
            engine.sessions().find(|info| info.record == slot).as_ref().is_some_and(is_near);
        if let Some(window) = world.slot(slot).filter(|_| is_near) {
            let layout = engine.layout();
            let frames = world.tiers().memory_frames(layout.frame_count);
            crash::flush_client(window, world.pages(), &layout, frames);
        }
    }

    fn identify(&self, conn: &ControlConn) -> Result<(u64, u64)> {
        let peer = conn.peer_credentials().map_err(|e| Error::Denied { reason: e.to_string() })?;
        self.access.check(peer.uid, &())?;
        let process = ProcessId::of(peer.pid).map_err(|error| Error::Denied {
            reason: format!(
                "process {} is not visible from the daemon ({error}): run both in one process \
                 namespace",
                peer.pid
            ),
        })?;
        Ok((u64::from(process.pid), process.start_time))
    }

    fn welcome(
        &mut self,
        world: &RegionWorld,
        conn: &ControlConn,
        welcome: SlotGrant,
    ) -> Result<()> {
        let slot = welcome.slot;
        let token = TOKEN_SLOT + u64::from(slot);
        let watched = self.poller.add(conn, token, Interest::Read);
        watched.map_err(|error| io_error("watching a client", &error))?;
        let (slot_fd, _) = world.files.open_slot(slot).map_err(Error::from)?;
        let open = |section, access| world.files.client_fd(section, access).map_err(Error::from);
        let pages = if welcome.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let bell_fd = open(Section::Bell, Access::ReadWrite)?;
        let table_fd = open(Section::Table, Access::ReadOnly)?;
        let pages_fd = open(Section::Pages, pages)?;
        let fds = [&slot_fd, &bell_fd, &table_fd, &pages_fd].map(|fd| fd.as_fd());
        let message = welcome.encode(world.is_asymmetric(), true, Self::offsets(world, slot));
        conn.send(&message, &fds).map_err(|e| io_error("welcome", &e))
    }

    fn refuse(&mut self, conn: ControlConn, error: Error) {
        acceptor::refuse(&conn, error);
    }

    fn watch_process(&mut self, info: &SessionInfo) -> Result<Option<ProcessHandle>> {
        let Ok(process) = ProcessHandle::open_exact(process_id(info)) else { return Ok(None) };
        let watched =
            self.poller.add(&process, TOKEN_PROCESS + u64::from(info.record), Interest::Read);
        watched.map_err(|error| io_error("watching a process", &error))?;
        Ok(Some(process))
    }

    fn is_alive(&self, process: &ProcessHandle) -> bool {
        process.is_alive()
    }

    fn unwatch(&mut self, client: &Client<Self>) {
        // Descriptors that are not in the poller any more are what is wanted.
        if let Some(conn) = &client.conn {
            let _ = self.poller.remove(conn);
        }
        if let Some(process) = &client.process {
            let _ = self.poller.remove(process);
        }
    }

    fn wake(&mut self, client: &Client<Self>) -> bool {
        client.replies.wake_if_sleeping()
    }

    /// Wherever it sleeps.
    fn wake_for_outcome(&mut self, client: &Client<Self>) {
        // Pairs with the fence in local.rs::FabricDoor::prepare_sleep, by that of the wake.
        client.outcomes.wake_if_sleeping();
        if client.section.load(SlotWord::FabricSleeping as u64) == 1
            && let Some(conn) = &client.conn
        {
            client.section.store(SlotWord::FabricSleeping as u64, 0);
            conn.notify();
        }
    }

    fn tell_target(&mut self, command: TargetCommand) {
        command.carry_out(&mut TargetPort(&mut self.target));
    }

    fn connect(&mut self, info: &RackInfo) -> Option<PeerId> {
        self.uplinks.connect(info, clock::now_ns())
    }

    fn post(&mut self, peer: PeerId, index: u32, verb: Verb, data: &[u8], bytes: u32) {
        self.uplinks.post(peer, index, verb, data, bytes);
    }

    fn read(&self, peer: PeerId, index: u32, bytes: u32) -> &[u8] {
        self.uplinks.read(peer, index, bytes)
    }

    fn ring_doorbells(&mut self) -> Vec<FabricEvent> {
        self.uplinks.ring_doorbells()
    }

    fn after_event(&mut self, closed: Option<PeerId>) {
        if let Some(peer) = closed {
            self.uplinks.forget(peer);
        }
    }

    fn call(&mut self, call: Call) -> Option<u64> {
        self.master.send(call).ok()
    }

    fn on_rack_state(&mut self, was: RackState, is: RackState) {
        let change = StateChange { was, is };
        self.membership.on_standing(change, &self.options, clock::now_ns());
        if is == RackState::Draining {
            // If it cannot be, the next heartbeat's answer tries again.
            if let Err(error) = self.start_relocation() {
                warn!(target: "daemon", "rack {}: {error}", self.options.name());
            }
            self.relocation.wake();
        }
    }
}

impl PoolHost {
    /// Starts the thread that moves pages, unless it runs.
    pub(super) fn start_relocation(&mut self) -> Result<()> {
        relocation::start(&mut self.relocation, &self.options, &self.wake)
    }
}

/// The fabric's target, as the commands of the loop see it.
struct TargetPort<'a>(&'a mut Target);

impl FabricTarget for TargetPort<'_> {
    fn send(&mut self, peer: PeerId, message: Vec<u8>) -> bool {
        self.0.send_vec(peer, message).is_ok()
    }

    fn write_back(&mut self, peer: PeerId, job: EncodedWriteBack) -> bool {
        self.0.write_back(peer, job).is_ok()
    }

    fn close(&mut self, peer: PeerId) {
        self.0.close(peer);
    }
}

/// Whether a client is of this host.
fn is_near(info: &SessionInfo) -> bool {
    HostTag::unpack(info.pid, info.start_time).is_none()
}

fn process_id(info: &SessionInfo) -> ProcessId {
    ProcessId { pid: u32::try_from(info.pid).unwrap_or(0), start_time: info.start_time }
}
