//! A handle's slot at a daemon of this host: the control socket, which joins and by its end tells
//! of the daemon's death, the mapped sections, and the rings of the slot. What goes through them is
//! the business of `core::runtime::client`.
//!
//! One request at a time goes out through the request ring; the answer comes back through the
//! reply ring. Source: DESIGN §2–3, Rcmp §5.2.

use crate::acceptor;
use crate::clock;
use rackpool_core::client::RackView;
use rackpool_core::coherence;
use rackpool_core::constants::{CELLS, MESSAGE_BYTES_MAX};
use rackpool_core::error::DeathCause;
use rackpool_core::layout::{
    BELL_BYTES, RING_BYTES, SLOT_BYTES, SLOT_REMOTE_REPLY_RING, SLOT_REMOTE_REQUEST_RING,
    SLOT_REPLY_RING, SLOT_REQUEST_RING, SlotWord,
};
use rackpool_core::runtime::client::{Slot, Welcome};
use rackpool_core::seam::{Mem, Mutation};
use rackpool_core::wire::{self, ControlHello, ControlReply, RegionInfo};
use rackpool_core::{Error, RackId, Result, SessionId, lock_releases};
use rackpool_fabric::control::{self, ControlConn, ControlError, Received};
use rackpool_fabric::{Endpoint, proxied};
use rackpool_mem::caches;
use rackpool_mem::ring::bitmap::Bitmap;
use rackpool_mem::ring::{Consumer, Producer};
use rackpool_mem::wait::Waiter;
use rackpool_mem::window::{Access, MapOptions, Window};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long other names of a control socket are believed to be all there are.
const SPARE_NAMES_FOR: Duration = Duration::from_secs(1);

/// Other names of a control socket and when they were looked for.
type Spare = BTreeMap<String, (Instant, Vec<String>)>;

/// As [`control::spare_names_of`], for all handles of this process once a second: it reads the
/// system's list of sockets, and all of them ask again and again while a daemon restarts.
fn spare_names_of(name: &str) -> Vec<String> {
    static FOUND: Mutex<Spare> = Mutex::new(Spare::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    match found.get(name) {
        Some((at, names)) if at.elapsed() < SPARE_NAMES_FOR => names.clone(),
        _ => {
            let names = control::spare_names_of(name);
            found.insert(name.to_owned(), (Instant::now(), names.clone()));
            names
        }
    }
}

/// How to join a daemon of this host.
#[derive(Clone, Debug)]
pub(crate) struct JoinOptions {
    /// Name of the daemon's control socket.
    pub control: String,
    /// Whether pages are mapped read-only.
    pub read_only: bool,
    /// Whether accesses are delayed as those of another rack.
    pub as_remote: bool,
    /// See [`crate::Options::daemon_user`].
    pub daemon_user: Option<u32>,
}

impl JoinOptions {
    /// Connects to the daemon or agent, which is elsewhere if another user has its name.
    fn reach(&self) -> Result<ControlConn, ControlError> {
        let access = control::access(self.daemon_user);
        let reach = |name: &str| {
            let conn = ControlConn::connect(name)?;
            conn.check_peer_of(&access)?;
            Ok(conn)
        };
        reach(&self.control).or_else(|error| {
            let spare = match &error {
                ControlError::NobodyListens { .. } => spare_names_of(&self.control),
                _ => control::spare_names_of(&self.control),
            };
            spare.iter().find_map(|name| reach(name).ok()).ok_or(error)
        })
    }

    /// Whether a process of a user that is not trusted serves the daemon's name.
    pub(crate) fn is_squatted(&self) -> bool {
        acceptor::is_squatted(&self.control, &control::access(self.daemon_user))
    }
}

/// The slot; see the module.
pub(crate) struct MappedSlot {
    view: RackView<Window>,
    door: Arc<Door>,
    producer: Producer,
    pub(crate) consumer: Consumer,
    pub(crate) waiter: Waiter,
    // Last: a client unmaps before it closes.
    lease: Arc<SlotLease>,
}

/// A control connection with the descriptors that came with the welcome.
pub(crate) struct Control {
    conn: ControlConn,
    fds: Vec<OwnedFd>,
}

/// How the daemon of a slot is called.
pub(crate) struct Door {
    slot: Window,
    slot_index: u32,
    bell: Bitmap,
    // Last: a client unmaps before it closes.
    conn: ControlConn,
}

impl Door {
    /// Says that something is there for the daemon.
    fn ring(&self) {
        if self.bell.set(self.slot_index) {
            self.conn.notify();
        }
    }

    /// Gives a lock back without waiting for an answer; `false` if there is no room to say it.
    pub(crate) fn give_back(&self, token: u64) -> bool {
        let noted = lock_releases::put(&self.slot, token);
        if noted {
            self.ring();
        }
        noted
    }
}

/// What a fabric endpoint that the daemon serves needs of the slot: it keeps the slot, as a pin
/// does.
struct FabricDoor {
    door: Arc<Door>,
    lease: Arc<SlotLease>,
    /// The control connection's descriptor, to be slept on.
    fd: OwnedFd,
}

impl proxied::DaemonNotifier for FabricDoor {
    fn ring(&self) {
        self.door.ring();
    }

    fn is_closed(&self) -> bool {
        self.lease.is_closed()
    }

    fn prepare_sleep(&self) -> BorrowedFd<'_> {
        // Calls of before.
        if let Some(conn) = &*self.lease.conn() {
            while let Ok(Received::Message { .. }) = conn.recv(&mut [0; 8]) {}
        }
        self.door.slot.store(SlotWord::FabricSleeping as u64, 1);
        // Pairs with the fence in daemon/clients.rs::Client::tell: one of the two sees the other.
        self.door.slot.fence();
        self.fd.as_fd()
    }
}

/// Holds a slot: as long as it lives, the daemon takes the slot's memory as in use. Shared with
/// pins, which may outlive their handle.
#[derive(Debug)]
pub(crate) struct SlotLease {
    slot: Window,
    /// Bit i: cell i is free. Cell 0 is for accesses.
    cells_free: AtomicU32,
    /// `None` once another lease has taken it over.
    conn: Mutex<Option<ControlConn>>,
}

impl SlotLease {
    fn conn(&self) -> MutexGuard<'_, Option<ControlConn>> {
        self.conn.lock().expect("no panic happens under this lock")
    }

    fn is_closed(&self) -> bool {
        self.conn().as_ref().is_none_or(ControlConn::is_closed)
    }

    /// Goes on with the connection of `next`, which is the same slot's.
    fn take_over(self: &Arc<Self>, next: &SlotLease) -> Arc<Self> {
        *self.conn() = next.conn().take();
        Arc::clone(self)
    }

    /// Takes a cell for a pin.
    pub(crate) fn take_cell(&self) -> Option<u32> {
        // Relaxed: only the bit's owner matters; the cell itself orders what is under it.
        let old = self.cells_free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
            (free != 0).then(|| free & (free - 1))
        });
        old.ok().map(u32::trailing_zeros)
    }

    /// Gives the cell of a pin back.
    pub(crate) fn give_cell_back(&self, cell: u32) {
        // Relaxed: as in `take_cell`.
        self.cells_free.fetch_or(1 << cell, Ordering::Relaxed);
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        // A daemon that is down now learns at its next attach that no client will resume.
        if self.conn().is_some() {
            coherence::store(&self.slot, Mutation::HideConsumed, SlotWord::Left as u64, 1);
        }
    }
}

impl Slot for MappedSlot {
    type Memory = Window;
    type Daemon = JoinOptions;

    fn view(&self) -> &RackView<Window> {
        &self.view
    }

    fn rings(&mut self) -> (&mut Producer, &mut Consumer) {
        (&mut self.producer, &mut self.consumer)
    }

    /// Pins hold the old lease: it goes on with the new connection.
    fn resume(&mut self, next: Self) {
        let old = std::mem::replace(self, next);
        self.lease = old.lease.take_over(&self.lease);
    }
}

impl MappedSlot {
    pub(crate) fn lease(&self) -> Arc<SlotLease> {
        Arc::clone(&self.lease)
    }

    /// How to call the daemon from elsewhere, while this slot is mapped.
    pub(crate) fn door(&self) -> Weak<Door> {
        Arc::downgrade(&self.door)
    }

    /// Whether the control connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.lease.is_closed()
    }

    /// The daemon works for this endpoint, if it is one without connections of its own.
    pub(crate) fn serve(&self, endpoint: &mut Endpoint) {
        let Endpoint::Proxied(endpoint) = endpoint else { return };
        let slot = &self.view.slot;
        let orders = Producer::attach(slot.slice(SLOT_REMOTE_REQUEST_RING, RING_BYTES));
        let outcomes = Consumer::attach(slot.slice(SLOT_REMOTE_REPLY_RING, RING_BYTES));
        let (door, lease) = (self.door.clone(), self.lease.clone());
        let fd = lease.conn().as_ref().map(|conn| conn.as_fd().try_clone_to_owned());
        // Without a connection the next call of the link finds the daemon again.
        if let Some(Ok(fd)) = fd {
            endpoint.attach(orders, outcomes, Box::new(FabricDoor { door, lease, fd }));
        }
    }

    /// Says to the daemon that something is in the ring of requests.
    pub(crate) fn ring(&self) {
        self.door.ring();
    }
}

pub(crate) fn new_session() -> Result<SessionId> {
    let random = rackpool_mem::process::random_u64()
        .map_err(|error| Error::Io { what: "getrandom".into(), reason: error.to_string() })?;
    Ok(SessionId(random.max(1)))
}

/// Says hello to a daemon and waits for its answer.
pub(crate) fn greet(
    options: &JoinOptions,
    hello: &ControlHello,
    deadline_ns: u64,
) -> Result<(Control, ControlReply)> {
    let peer = format!("daemon at {}", options.control);
    let conn = options.reach().map_err(|e| control_error(&peer, e))?;
    conn.send(&wire::encode_vec(hello), &[]).map_err(|e| control_error(&peer, e))?;
    let mut buffer = vec![0; MESSAGE_BYTES_MAX as usize];
    let started_ns = clock::now_ns();
    loop {
        let now_ns = clock::now_ns();
        let left = Duration::from_nanos(clock::slice(deadline_ns).saturating_sub(now_ns));
        match conn.recv_timeout(&mut buffer, left).map_err(|e| control_error(&peer, e))? {
            Received::Message { bytes, fds } => {
                let reply = wire::decode::<ControlReply>(&buffer[..bytes], &peer)?;
                return Ok((Control { conn, fds }, reply));
            }
            Received::Closed => {
                return Err(Error::PeerDead { peer, cause: DeathCause::Closed });
            }
            Received::Nothing if now_ns >= deadline_ns => {
                let waited_ms = (now_ns - started_ns) / 1_000_000;
                return Err(Error::Timeout { peer, waited_ms });
            }
            Received::Nothing => {}
        }
    }
}

/// Maps the sections that a welcome came with.
pub(crate) fn map(
    options: &JoinOptions,
    Control { conn, fds }: Control,
    welcome: &Welcome,
) -> Result<MappedSlot> {
    let peer = format!("daemon at {}", options.control);
    let Welcome { slot_index, region, layout, .. } = welcome;
    let layout = *layout;
    let is_coherent = check_coherence(options, region)?;
    // The daemon's host and ours, if they are one, agree whatever other hosts see.
    let is_near = is_coherent || welcome.beside_daemon;
    let [slot_offset, bell_offset, table_offset, pages_offset] = welcome.offsets;
    let [slot_fd, bell_fd, table_fd, pages_fd]: [_; 4] = fds.try_into().map_err(|_| {
        let reason = "a welcome without four descriptors".into();
        Error::Protocol { peer: peer.clone(), reason }
    })?;
    let map = |fd: &std::os::fd::OwnedFd, file_offset, bytes, access| {
        let options = MapOptions { file_offset, ..MapOptions::default() };
        Window::map(fd.as_fd(), bytes, access, options).map_err(|error| Error::Io {
            what: format!("mapping {bytes} bytes of {peer}"),
            reason: error.to_string(),
        })
    };
    let access = if options.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let delay_ns = if options.as_remote { region.emulate_rdma_ns } else { region.emulate_cxl_ns };
    // A process that cannot take part in the barrier fences for itself.
    let asymmetric = welcome.asymmetric_fence && rackpool_mem::barrier::register().is_ok();
    let slot = map(&slot_fd, slot_offset, SLOT_BYTES, Access::ReadWrite)?.with_coherence(is_near);
    // What is here of the slot's last client, or of the daemon before, is older than the welcome.
    coherence::renew(&slot, Mutation::KeepRingReset, 0, SLOT_BYTES);
    let pages = map(&pages_fd, pages_offset, layout.pages_bytes(), access)?;
    let table = map(&table_fd, table_offset, layout.table_bytes(), Access::ReadOnly)?;
    let view = RackView {
        pages: pages.with_delay(delay_ns).with_coherence(is_coherent),
        table: table.with_coherence(is_near),
        slot: slot.clone().with_asymmetric_fence(asymmetric),
        layout,
    };
    let bell = map(&bell_fd, bell_offset, BELL_BYTES, Access::ReadWrite)?;
    let bell = Bitmap::attach(bell.with_coherence(is_near));
    let producer = Producer::attach(slot.slice(SLOT_REQUEST_RING, RING_BYTES));
    let consumer = Consumer::attach(slot.slice(SLOT_REPLY_RING, RING_BYTES));
    let cells_free = AtomicU32::new((1 << CELLS) - 2);
    let to_wake = conn.try_clone().map_err(|error| control_error(&peer, error))?;
    let door = Arc::new(Door { slot: slot.clone(), slot_index: *slot_index, bell, conn: to_wake });
    let lease = Arc::new(SlotLease { slot, cells_free, conn: Mutex::new(Some(conn)) });
    let waiter = Waiter::new();
    Ok(MappedSlot { view, door, producer, consumer, waiter, lease })
}

/// Whether the hardware keeps the hosts of a region coherent; refuses what is not done where only
/// the software does.
fn check_coherence(options: &JoinOptions, region: &RegionInfo) -> Result<bool> {
    if region.coherence.is_hardware() {
        return Ok(true);
    }
    if options.as_remote {
        return Err(only_own_clients(region.rack));
    }
    if !caches::is_supported() {
        let rack = region.rack;
        let reason = format!(
            "rack {rack}'s memory is kept coherent by software, which this processor does not let \
             programs do: run this program in another rack"
        );
        return Err(Error::Config { reason });
    }
    Ok(false)
}

/// The memory is not mapped by clients of other racks.
pub(crate) fn only_own_clients(rack: RackId) -> Error {
    Error::Config {
        reason: format!(
            "rack {rack}'s memory is kept coherent by software, for its own clients alone: fabric \
             `shm` does not reach it from other racks; use `tcp`, also for the daemon"
        ),
    }
}

fn control_error(peer: &str, error: ControlError) -> Error {
    match error {
        ControlError::NobodyListens { .. } | ControlError::Closed => {
            Error::PeerDead { peer: peer.into(), cause: DeathCause::Closed }
        }
        // A backlog that is full for a moment: tried again until the deadline.
        ControlError::Busy { .. } => Error::Timeout { peer: peer.into(), waited_ms: 0 },
        ControlError::Protocol { reason } => {
            Error::Protocol { peer: peer.into(), reason: reason.into() }
        }
        ControlError::ForeignUser { uid, .. } => Error::Denied {
            reason: format!(
                "{peer}: {error}, or say that user {uid} is to be trusted (RACKPOOL_DAEMON_USER, \
                 Options::daemon_user)"
            ),
        },
        other => Error::Io { what: peer.into(), reason: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::drive::block;
    use crate::link::MasterLink;
    use crate::links::Shared;
    use crate::node::Node;
    use rackpool_core::runtime::client::{LocalLink, Platform};
    use rackpool_core::wire::{MasterAnswer, MasterCall, WIRE_VERSION};

    /// Long enough for the daemon to see a closed socket.
    const SEEN: Duration = Duration::from_millis(200);

    #[test]
    fn a_slot_that_is_taken_up_in_vain_is_kept_for_the_client_that_has_it_mapped() {
        let cluster = Cluster::start(1).unwrap();
        let deadline_ns = clock::deadline_ns(10_000);
        let master = MasterLink::new(vec![cluster.master_addr()]);
        let shared = Arc::new(Shared::new(crate::Options::default()).unwrap());
        let mut node = Node::new(shared, master);
        let call = MasterCall::Rack { rack: RackId(0) };
        let answer = block(node.master(call, deadline_ns)).unwrap();
        let MasterAnswer::Rack(info) = answer else { panic!("{answer:?}") };
        let options = node.join_options(info.control, false);
        let link = block(LocalLink::join(&mut node, options.clone(), deadline_ns)).unwrap();
        let (session, slot) = (link.session_id, link.joined.welcome.slot_index);
        let mut hello = || ControlHello {
            version: WIRE_VERSION,
            session,
            resume_slot: Some(slot),
            read_only: false,
            number: node.hello_number(),
        };
        // It was stopped, its time was up when it went on, and no client reads the welcome.
        let conn = ControlConn::connect(&options.control).unwrap();
        conn.send(&wire::encode_vec(&hello()), &[]).unwrap();
        std::thread::sleep(SEEN);
        drop(conn);
        std::thread::sleep(SEEN);
        let (again, reply) = greet(&options, &hello(), deadline_ns).unwrap();
        assert!(matches!(reply, ControlReply::Welcome { slot: kept, .. } if kept == slot), "kept");
        // A client that leaves on purpose gives it back.
        drop((again, link));
        let refused = loop {
            // A daemon that has not seen its end yet welcomes it.
            std::thread::sleep(SEEN);
            if let (_, ControlReply::Refused(error)) =
                greet(&options, &hello(), deadline_ns).unwrap()
            {
                break error;
            }
        };
        assert!(matches!(refused, Error::BadRegion { .. } | Error::Denied { .. }), "{refused}");
    }
}
