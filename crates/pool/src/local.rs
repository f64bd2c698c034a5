//! A handle's link to a daemon of this host: the control socket, which joins and by its end tells
//! of the daemon's death, the mapped sections, and the rings of the handle's slot.
//!
//! One request at a time goes out through the request ring; the answer comes back through the
//! reply ring. If the daemon dies, the link resumes its slot with the next daemon of the same
//! region and repeats what was under way; the daemon answers a repeated mutating request from its
//! record. Source: DESIGN §2–3, Rcmp §5.2.

use crate::acceptor;
use crate::clock;
use rackpool_core::client::{LinkLoss, RackView, Session};
use rackpool_core::coherence;
use rackpool_core::constants::{CELLS, MESSAGE_BYTES_MAX};
use rackpool_core::error::DeathCause;
use rackpool_core::layout::{
    BELL_BYTES, RING_BYTES, RegionLayout, SLOT_BYTES, SLOT_REMOTE_REPLY_RING,
    SLOT_REMOTE_REQUEST_RING, SLOT_REPLY_RING, SLOT_REQUEST_RING, SlotWord,
};
use rackpool_core::seam::{Mem, Mutation};
use rackpool_core::wire::{
    self, ControlHello, ControlReply, RegionInfo, Reply, ReplyFrame, Request, WIRE_VERSION,
};
use rackpool_core::{Error, PageGeometry, RackId, Result, SessionId, lock_releases};
use rackpool_hw::caches;
use rackpool_hw::control::{self, ControlConn, ControlError, Received};
use rackpool_hw::fabric::{Endpoint, proxied};
use rackpool_hw::ring::bitmap::Bitmap;
use rackpool_hw::ring::{self, Consumer, Producer};
use rackpool_hw::wait::Waiter;
use rackpool_hw::window::{Access, MapOptions, Window};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Longest pause between two tries to reach a daemon that is gone, ms.
const RETRY_PAUSE_MS_MAX: u64 = 50;
/// How long one wait for a reply lasts before the control socket is looked at, ns.
const WAIT_SLICE_NS: u64 = 20_000_000;

/// How long other names of a control socket are believed to be all there are.
const SPARE_NAMES_FOR: Duration = Duration::from_secs(1);

/// Hellos that this process has said: the number of the last one.
static HELLOS: AtomicU64 = AtomicU64::new(0);

fn next_hello() -> u64 {
    // Relaxed: only the order of the hellos of one handle counts, which one thread says.
    HELLOS.fetch_add(1, Ordering::Relaxed) + 1
}

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
    fn is_squatted(&self) -> bool {
        acceptor::is_squatted(&self.control, &control::access(self.daemon_user))
    }
}

/// The link; see the module.
pub(crate) struct LocalLink {
    options: JoinOptions,
    session_id: SessionId,
    session: Session,
    joined: Joined,
    view_changed: bool,
    /// The connection ended and the slot was not taken up again: a daemon may have begun the
    /// rings anew for a try that was given up, so nothing is sent there before the next one.
    lapsed: bool,
    message: Box<[u8]>,
    /// A request with an answer that no caller waits for and that has not come yet.
    aside: Option<u64>,
    /// Requests sent, for counts in tests and `stats`.
    pub requests_sent: u64,
}

struct Joined {
    view: RackView<Window>,
    region: RegionInfo,
    slot_index: u32,
    door: Arc<Door>,
    producer: Producer,
    consumer: Consumer,
    waiter: Waiter,
    // Last: a client unmaps before it closes.
    lease: Arc<SlotLease>,
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

impl LocalLink {
    /// Joins, waiting until `deadline_ns` for the daemon to appear.
    pub(crate) fn join(options: JoinOptions, deadline_ns: u64) -> Result<Self> {
        let session_id = new_session()?;
        let joined = join_until(&options, session_id, None, deadline_ns)?;
        let peer = format!("daemon of rack {}", joined.region.rack);
        Ok(Self {
            options,
            session_id,
            session: Session::new(peer),
            joined,
            view_changed: false,
            lapsed: false,
            message: wire::message_buffer(),
            aside: None,
            requests_sent: 0,
        })
    }

    pub(crate) fn view(&self) -> &RackView<Window> {
        &self.joined.view
    }

    pub(crate) fn region(&self) -> &RegionInfo {
        &self.joined.region
    }

    pub(crate) fn lease(&self) -> Arc<SlotLease> {
        Arc::clone(&self.joined.lease)
    }

    /// How to call the daemon from elsewhere, while this link lives.
    pub(crate) fn door(&self) -> Weak<Door> {
        Arc::downgrade(&self.joined.door)
    }

    pub(crate) fn slot_index(&self) -> u32 {
        self.joined.slot_index
    }

    /// Whether the view was replaced since the last call.
    pub(crate) fn take_view_changed(&mut self) -> bool {
        std::mem::take(&mut self.view_changed)
    }

    /// Sends a request and waits for its answer, through restarts of the daemon, until the
    /// deadline; `find` tells the name of the rack's control socket now, if it is known.
    pub(crate) fn call(
        &mut self,
        request: Request,
        deadline_ns: u64,
        find: &mut dyn FnMut() -> Found,
    ) -> Result<Reply> {
        let started_ns = clock::now_ns();
        self.session.begin(request);
        let mut sent = !self.lapsed;
        if sent && let Err(error) = self.send() {
            self.session.abandon_unsent();
            return Err(error);
        }
        loop {
            let waited = if self.lapsed { Ok(Waited::Closed) } else { self.wait(deadline_ns) };
            let waited = match waited {
                Ok(waited) => waited,
                Err(error) => return Err(self.session.give_up(error)),
            };
            match waited {
                Waited::Reply(frame) => {
                    let slot = &self.joined.view.slot;
                    if let Some(reply) = self.session.take_reply(frame, slot) {
                        return reply;
                    }
                }
                Waited::Closed => {
                    self.lapsed = true;
                    let loss = self.resume(deadline_ns, find);
                    self.session.shorten_wait(crate::locks::wait_left_ms(deadline_ns));
                    if sent {
                        if let Some(ended) = self.session.on_loss(loss) {
                            return ended;
                        }
                    } else if let LinkLoss::Gone(cause) = loss {
                        self.session.abandon_unsent();
                        return Err(Error::PeerDead { peer: self.session.peer().into(), cause });
                    }
                    sent = true;
                    if let Err(error) = self.send() {
                        return Err(self.session.give_up(error));
                    }
                }
                Waited::TimeUp => {
                    let waited_ms = (clock::now_ns() - started_ns) / 1_000_000;
                    let loss = LinkLoss::TimeUp { waited_ms };
                    return self.session.on_loss(loss).expect("time up ends a request");
                }
            }
        }
    }

    /// The daemon works for this endpoint, if it is one without connections of its own.
    pub(crate) fn serve(&self, endpoint: &mut Endpoint) {
        let Endpoint::Proxied(endpoint) = endpoint else { return };
        let slot = &self.joined.view.slot;
        let orders = Producer::attach(slot.slice(SLOT_REMOTE_REQUEST_RING, RING_BYTES));
        let outcomes = Consumer::attach(slot.slice(SLOT_REMOTE_REPLY_RING, RING_BYTES));
        let (door, lease) = (self.joined.door.clone(), self.joined.lease.clone());
        let fd = lease.conn().as_ref().map(|conn| conn.as_fd().try_clone_to_owned());
        // Without a connection the next call of the link finds the daemon again.
        if let Some(Ok(fd)) = fd {
            endpoint.attach(orders, outcomes, Box::new(FabricDoor { door, lease, fd }));
        }
    }

    /// Whether [`LocalLink::say`] would be taken, as far as is known without waiting: the last
    /// thing that was said is answered.
    pub(crate) fn is_heard(&mut self) -> bool {
        while self.aside.is_some() && matches!(self.pop_reply(), Some(Ok(_))) {}
        self.aside.is_none() && !self.lapsed
    }

    /// Sends a request that nothing depends on and waits for nothing.
    pub(crate) fn say(&mut self, request: Request) -> Result<()> {
        let frame = self.session.aside(request);
        let bytes = wire::encode(&frame, &mut self.message)?.len();
        self.push(bytes)?;
        self.aside = Some(frame.seq);
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        let frame = self.session.under_way().expect("only called with a request under way");
        let bytes = wire::encode(frame, &mut self.message)?.len();
        self.push(bytes)
    }

    /// The first bytes of `self.message` go to the daemon.
    fn push(&mut self, bytes: usize) -> Result<()> {
        self.joined.producer.push(&self.message[..bytes]).map_err(|_| Error::Busy {
            what: "request ring".into(),
            limit: u64::from(rackpool_core::constants::RING_ENTRIES),
        })?;
        self.requests_sent += 1;
        self.joined.door.ring();
        Ok(())
    }

    fn pop_reply(&mut self) -> Option<Result<ReplyFrame>> {
        let peer = self.session.peer();
        let frame = match self
            .joined
            .consumer
            .pop(|bytes| wire::decode::<ReplyFrame>(bytes, peer))?
        {
            Ok(Ok(frame)) => frame,
            Ok(Err(error)) => return Some(Err(error)),
            Err(error) => {
                return Some(Err(Error::Protocol { peer: peer.into(), reason: error.to_string() }));
            }
        };
        self.aside.take_if(|aside| *aside <= frame.seq);
        Some(Ok(frame))
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<Waited> {
        loop {
            if let Some(frame) = self.pop_reply() {
                return frame.map(Waited::Reply);
            }
            let now_ns = clock::now_ns();
            if now_ns >= deadline_ns {
                return Ok(Waited::TimeUp);
            }
            let slice = Duration::from_nanos(WAIT_SLICE_NS.min(deadline_ns - now_ns));
            let Joined { consumer, waiter, .. } = &mut self.joined;
            let ready = ring::wait(consumer, waiter, Instant::now() + slice);
            if !ready && self.joined.lease.is_closed() {
                return Ok(Waited::Closed);
            }
        }
    }

    /// Finds the next daemon of the region and takes the slot up again there. `find` tells the
    /// name of the rack's control socket now: another region has another one.
    fn resume(&mut self, deadline_ns: u64, find: &mut dyn FnMut() -> Found) -> LinkLoss {
        let slot = Some(self.joined.slot_index);
        let mut pause_ms = 1;
        loop {
            match join_once(&self.options, self.session_id, slot, deadline_ns) {
                Ok(joined) => return self.rejoined(joined, LinkLoss::Resumed),
                // The next daemon serves under another name then, as the master says.
                Err(Error::Denied { .. })
                    if clock::now_ns() < deadline_ns && self.options.is_squatted() => {}
                Err(Error::BadRegion { .. } | Error::Denied { .. }) => {
                    return self.join_anew(deadline_ns);
                }
                Err(Error::PeerDead { .. } | Error::Timeout { .. })
                    if clock::now_ns() < deadline_ns => {}
                Err(_) => return LinkLoss::Gone(DeathCause::Closed),
            }
            // A daemon that only restarts is there before the master is worth asking.
            if pause_ms == RETRY_PAUSE_MS_MAX {
                match find() {
                    Found::At(control) if control != self.options.control => {
                        // Another region, or the same one under another name.
                        self.options.control = control;
                        continue;
                    }
                    Found::Gone => return LinkLoss::Gone(DeathCause::Closed),
                    Found::At(_) | Found::Unknown => {}
                }
            }
            std::thread::sleep(Duration::from_millis(pause_ms));
            pause_ms = (pause_ms * 2).min(RETRY_PAUSE_MS_MAX);
        }
    }

    /// The region was made anew: nothing of the session is left.
    fn join_anew(&mut self, deadline_ns: u64) -> LinkLoss {
        let Ok(session_id) = new_session() else {
            return LinkLoss::Gone(DeathCause::Closed);
        };
        match join_until(&self.options, session_id, None, deadline_ns) {
            Ok(joined) => {
                self.session_id = session_id;
                self.rejoined(joined, LinkLoss::SessionForgotten)
            }
            Err(_) => LinkLoss::Gone(DeathCause::Closed),
        }
    }

    fn rejoined(&mut self, joined: Joined, loss: LinkLoss) -> LinkLoss {
        let old = std::mem::replace(&mut self.joined, joined);
        self.view_changed = true;
        self.lapsed = false;
        self.aside = None;
        if loss == LinkLoss::Resumed {
            // Pins hold the old lease: it goes on with the new connection.
            self.joined.lease = old.lease.take_over(&self.joined.lease);
        }
        loss
    }
}

/// Where the daemon of a rack is, as the master says.
pub(crate) enum Found {
    /// At this control socket.
    At(String),
    /// It is dead, or the master does not answer.
    Unknown,
    /// The rack is no member of the pool any more.
    Gone,
}

enum Waited {
    Reply(ReplyFrame),
    Closed,
    TimeUp,
}

pub(crate) fn new_session() -> Result<SessionId> {
    let random = rackpool_hw::process::random_u64()
        .map_err(|error| Error::Io { what: "getrandom".into(), reason: error.to_string() })?;
    Ok(SessionId(random.max(1)))
}

fn join_until(
    options: &JoinOptions,
    session: SessionId,
    resume_slot: Option<u32>,
    deadline_ns: u64,
) -> Result<Joined> {
    let mut pause_ms = 1;
    loop {
        match join_once(options, session, resume_slot, deadline_ns) {
            Err(Error::PeerDead { .. } | Error::Timeout { .. })
                if clock::now_ns() < deadline_ns => {}
            result => return result,
        }
        std::thread::sleep(Duration::from_millis(pause_ms));
        pause_ms = (pause_ms * 2).min(RETRY_PAUSE_MS_MAX);
    }
}

fn join_once(
    options: &JoinOptions,
    session: SessionId,
    resume_slot: Option<u32>,
    deadline_ns: u64,
) -> Result<Joined> {
    let peer = format!("daemon at {}", options.control);
    let conn = options.reach().map_err(|e| control_error(&peer, e))?;
    let hello = ControlHello {
        version: WIRE_VERSION,
        session,
        resume_slot,
        read_only: options.read_only,
        number: next_hello(),
    };
    conn.send(&wire::encode_vec(&hello), &[]).map_err(|e| control_error(&peer, e))?;
    let mut buffer = vec![0; MESSAGE_BYTES_MAX as usize];
    let started_ns = clock::now_ns();
    loop {
        let now_ns = clock::now_ns();
        let left = Duration::from_nanos(deadline_ns.saturating_sub(now_ns));
        match conn.recv_timeout(&mut buffer, left).map_err(|e| control_error(&peer, e))? {
            Received::Message { bytes, fds } => {
                let reply = wire::decode::<ControlReply>(&buffer[..bytes], &peer)?;
                return open_sections(options, conn, reply, fds, &peer);
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

fn open_sections(
    options: &JoinOptions,
    conn: ControlConn,
    reply: ControlReply,
    fds: Vec<std::os::fd::OwnedFd>,
    peer: &str,
) -> Result<Joined> {
    let broken = |reason: &str| Error::Protocol { peer: peer.into(), reason: reason.into() };
    let (slot_index, region, (asymmetric_fence, beside_daemon), offsets) = match reply {
        ControlReply::Refused(error) => return Err(error),
        ControlReply::Welcome { slot, region, asymmetric_fence, beside_daemon, offsets } => {
            (slot, region, (asymmetric_fence, beside_daemon), offsets)
        }
    };
    let is_coherent = check_coherence(options, &region)?;
    // The daemon's host and ours, if they are one, agree whatever other hosts see.
    let is_near = is_coherent || beside_daemon;
    let [slot_offset, bell_offset, table_offset, pages_offset] = offsets;
    let [slot_fd, bell_fd, table_fd, pages_fd]: [_; 4] =
        fds.try_into().map_err(|_| broken("a welcome without four descriptors"))?;
    let pages = PageGeometry::new(region.page_shift).ok_or_else(|| broken("a page size"))?;
    let layout = RegionLayout { pages, frame_count: region.frame_count };
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
    let asymmetric = asymmetric_fence && rackpool_hw::barrier::register().is_ok();
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
    let to_wake = conn.try_clone().map_err(|error| control_error(peer, error))?;
    let door = Arc::new(Door { slot: slot.clone(), slot_index, bell, conn: to_wake });
    let lease = Arc::new(SlotLease { slot, cells_free, conn: Mutex::new(Some(conn)) });
    let waiter = Waiter::new();
    Ok(Joined { view, region, slot_index, door, producer, consumer, waiter, lease })
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
    use crate::link::MasterLink;
    use rackpool_core::wire::{MasterAnswer, MasterCall};

    /// Long enough for the daemon to see a closed socket.
    const SEEN: Duration = Duration::from_millis(200);

    #[test]
    fn a_slot_that_is_taken_up_in_vain_is_kept_for_the_client_that_has_it_mapped() {
        let cluster = Cluster::start(1).unwrap();
        let deadline_ns = clock::deadline_ns(10_000);
        let mut master = MasterLink::new(vec![cluster.master_addr()]);
        let call = MasterCall::Rack { rack: RackId(0) };
        let answer = master.call(call, clock::instant(deadline_ns)).unwrap();
        let MasterAnswer::Rack(info) = answer else { panic!("{answer:?}") };
        let control = info.control;
        let options = JoinOptions {
            control: control.clone(),
            read_only: false,
            as_remote: false,
            daemon_user: None,
        };
        let link = LocalLink::join(options.clone(), deadline_ns).unwrap();
        let (session, slot) = (link.session_id, link.slot_index());
        // It was stopped, its time was up when it went on, and no client reads the welcome.
        let conn = ControlConn::connect(&control).unwrap();
        let hello = ControlHello {
            version: WIRE_VERSION,
            session,
            resume_slot: Some(slot),
            read_only: false,
            number: next_hello(),
        };
        conn.send(&wire::encode_vec(&hello), &[]).unwrap();
        std::thread::sleep(SEEN);
        drop(conn);
        std::thread::sleep(SEEN);
        let again = join_once(&options, session, Some(slot), deadline_ns).unwrap();
        assert_eq!(again.slot_index, slot, "it was kept");
        // A client that leaves on purpose gives it back.
        drop((again, link));
        std::thread::sleep(SEEN);
        let refused = join_once(&options, session, Some(slot), deadline_ns).map(drop).unwrap_err();
        assert!(matches!(refused, Error::BadRegion { .. } | Error::Denied { .. }), "{refused}");
    }
}
