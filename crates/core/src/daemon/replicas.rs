//! Replicas of this rack's pages in other racks, as their home sees them.
//!
//! In: decisions to make a replica, polls of keepers, requests that write, free or move pages,
//! time. Out: orders to keepers, and the requests themselves once no replica is in their way.
//!
//! A page with replicas is *shared*: its table word is a number of its own, given out once for each
//! set of replicas, with a bit that every writer sees. Writers ask where the replicas are
//! ([`Request::Sharers`]), close them, write to the page and to them, and open them again
//! (`client/spread.rs`). A writer that cannot do that leaves the write to this daemon: before it is
//! executed each replica is closed by an order, and a keeper says with its next poll that it has
//! done what it was told. Then the write is executed, its bytes follow to the replicas, and they
//! are opened again; no client waits for that. What ends a page, moves it, or wants it as it was is
//! kept until all its replicas are dropped.
//!
//! A replica that comes to a set, or leaves one, makes another set of it: writers that know the old
//! one are waited for before a new replica is filled.
//!
//! ```text
//! page:    not shared -> Draining (earlier writers are waited for) <-> Ready -> not shared
//! replica: Wanted -> Fetching -> Closed <-> Open -> Closing -> Closed;  any -> Dropping -> none
//! ```
//!
//! A keeper that is silent may still have readers. It is waited for until its lease is over: as
//! long as `REPLICA_LEASE_NS` after the last answer to it, by a time that was surely taken after
//! that answer. A process that starts finds which pages were shared by their entries, and waits for
//! as long before it lets any client write there. So no clock but this host's counts here.
//!
//! Source: Rcmp §5.3 (read-hot pages are cached); decision 0031.

use crate::addr::{FrameIndex, GAddr, Generation, PageId, RackId};
use crate::constants::{
    MOVE_REST_NS, MOVE_RESTING_MAX, REPLICA_BACKLOG_BYTES_MAX, REPLICA_POLL_NS, REPLICA_STEP_NS,
    REPLICA_WAITERS_MAX, REPLICAS_MAX, TICK_NS,
};
use crate::copies;
use crate::daemon::frames::{FrameEntry, state_offset};
use crate::daemon::{ClientId, Daemon, Outbox, World, set_table, slab, word_of};
use crate::error::{Error, Result};
use crate::layout::table_word;
use crate::policy::Decision;
use crate::replica::{Orders, Poll, ReplicaCounts, ReplicaLocation, ReplicaOrder, Sharers};
use crate::rrpc::Bytes;
use crate::seam::{Mutation, Nanos, Probe, Race};
use crate::wire::{PageHome, Reply, ReplyFrame, Request, RequestFrame};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

mod keeper;
mod time;

use keeper::KeeperState;

/// How far a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The page's writers are waited for.
    Wanted,
    /// It is being filled; `sent`: the order is on its way or executed.
    Fetching {
        sent: bool,
    },
    /// No client reads it; with the orders before it, it equals the page.
    Closed,
    /// The order to open it has not been sent.
    Opening,
    Open,
    /// It may be read until its keeper says that it has heard.
    Closing,
    /// The same, for good; `open`: it may be read until then.
    Dropping {
        open: bool,
    },
}

/// A replica of a page.
#[derive(Clone, Copy, Debug)]
struct Replica {
    stage: Phase,
    /// Where it is, once it is made.
    place: Option<ReplicaLocation>,
    /// When it was asked for last; `None` since the last tick.
    asked: Option<Nanos>,
}

impl Replica {
    fn is_readable(&self) -> bool {
        matches!(self.stage, Phase::Open | Phase::Closing | Phase::Dropping { open: true })
    }

    /// Whether it is made, its place is known, and it stays.
    fn is_made(&self) -> bool {
        let stays = [Phase::Closed, Phase::Opening, Phase::Open, Phase::Closing];
        self.place.is_some() && stays.contains(&self.stage)
    }
}

/// What is to happen with a shared page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// Writers that began before are waited for; since when.
    Draining(Option<Nanos>),
    Ready,
    /// A process before this one shared it: its leases are waited for.
    Found,
}

/// A page that is shared.
#[derive(Debug)]
struct Shared {
    frame: u32,
    /// Its table word.
    key: Generation,
    sharing: Sharing,
    replicas: BTreeMap<u64, Replica>,
    /// Its replicas end, and no new one is made.
    recalled: bool,
    /// Its key says of replicas that there are no more.
    outdated: bool,
}

impl Shared {
    /// Whether another key is due: replicas have gone or are to come, and none is on its way that
    /// would be read by the old one.
    fn wants_key(&self) -> bool {
        let comes = |replica: &Replica| replica.stage == Phase::Wanted;
        let busy = |replica: &Replica| matches!(replica.stage, Phase::Fetching { .. });
        let mut replicas = self.replicas.values();
        let wants = self.outdated || replicas.clone().any(comes);
        wants && self.sharing == Sharing::Ready && !self.recalled && !replicas.any(busy)
    }
}

/// What a request wants of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    Closed,
    Alone,
}

/// All that this daemon knows of replicas of its pages.
#[derive(Default)]
pub(super) struct Replicas {
    pages: BTreeMap<PageId, Shared>,
    pub(super) frames: BTreeSet<u32>,
    keepers: BTreeMap<u64, KeeperState>,
    /// Requests that wait, in order.
    held: VecDeque<(ClientId, RequestFrame)>,
    /// Pages that shall have no replicas, until when.
    resting: BTreeMap<PageId, Nanos>,
    /// Time as it passes from tick to tick.
    now: Nanos,
    /// The time of the last tick.
    ticked: Nanos,
    /// A time after the start, if pages were shared then.
    found_at: Option<Nanos>,
    /// Frames with writers that are waited for.
    draining: BTreeSet<u32>,
    /// Pages to be looked at: replicas of theirs may be opened, or the last one is gone.
    changed: BTreeSet<PageId>,
    served_late: bool,
    /// When idle replicas are looked for again.
    look_at: Nanos,
    counts: ReplicaCounts,
}

/// What becomes of a request.
pub(super) enum HoldDecision {
    No,
    Yes,
    /// It is answered with this.
    Refused(Error),
}

impl Replicas {
    pub(super) fn counts(&self) -> ReplicaCounts {
        ReplicaCounts { shared_pages: self.pages.len() as u64, ..self.counts }
    }

    /// When time matters next: soon where a process is waited for, else for leases and polls only.
    pub(super) fn tick_ns(&self) -> Option<Nanos> {
        if !(self.draining.is_empty() && self.changed.is_empty() && self.held.is_empty()) {
            return Some(TICK_NS);
        }
        (!(self.keepers.is_empty() && self.pages.is_empty())).then_some(REPLICA_STEP_NS)
    }

    /// The key of a page that is shared.
    pub(super) fn key(&self, page: PageId) -> Option<Generation> {
        self.pages.get(&page).map(|shared| shared.key)
    }

    /// Whether a page's key has the bit that says that it is shared.
    pub(super) fn is_shared(&self, page: PageId) -> bool {
        self.pages.contains_key(&page)
    }

    /// Frames with writers that are waited for.
    pub(super) fn draining(&self) -> impl Iterator<Item = u32> + '_ {
        self.draining.iter().copied()
    }

    /// A page that was shared when this process started.
    pub(super) fn found(&mut self, page: PageId, frame: u32, key: Generation) {
        let (sharing, replicas) = (Sharing::Found, BTreeMap::new());
        let (recalled, outdated) = (true, false);
        let shared = Shared { frame, key, sharing, replicas, recalled, outdated };
        self.pages.insert(page, shared);
        self.frames.insert(frame);
    }

    /// The keeper of a rack that was heard last, if it has room for another replica or has one of
    /// the page.
    fn keeper_for(&self, page: PageId, rack: RackId) -> Option<u64> {
        let has = |id: &u64| self.pages.get(&page).is_some_and(|p| p.replicas.contains_key(id));
        let mut keepers = self.keepers.iter().rev().filter(|(_, keeper)| keeper.rack == rack);
        keepers.find(|(id, keeper)| keeper.room > 0 || has(id)).map(|(id, _)| *id)
    }

    /// Whether a replica of a page could be made in a rack.
    pub(super) fn has_room(&self, page: PageId, rack: RackId) -> bool {
        let rests = self.resting.get(&page).is_some_and(|until| self.now < *until);
        let fits = self.pages.len() < REPLICAS_MAX || self.is_shared(page);
        fits && !rests && self.keeper_for(page, rack).is_some()
    }

    /// A rack does not want its replica of a page any more.
    pub(super) fn unwanted(&mut self, page: PageId, rack: RackId) {
        let of = |(id, keeper): (&u64, &KeeperState)| (keeper.rack == rack).then_some(*id);
        let ids: Vec<u64> = self.keepers.iter().filter_map(of).collect();
        ids.into_iter().for_each(|id| self.drop_replicas(page, Some(id)));
    }

    fn rest(&mut self, page: PageId) {
        let now = self.now;
        self.resting.retain(|_, until| now < *until);
        if self.resting.len() < MOVE_RESTING_MAX {
            self.resting.insert(page, now.saturating_add(MOVE_REST_NS));
        }
    }

    fn close(&mut self, page: PageId) {
        let Self { pages, keepers, .. } = self;
        let Some(shared) = pages.get_mut(&page) else { return };
        for (id, replica) in &mut shared.replicas {
            let Some(keeper) = keepers.get_mut(id) else { continue };
            match replica.stage {
                Phase::Opening => {
                    keeper.orders.retain(|order| *order != ReplicaOrder::Open(page));
                    replica.stage = Phase::Closed;
                }
                Phase::Open => {
                    keeper.tell(ReplicaOrder::Close(page));
                    replica.stage = Phase::Closing;
                }
                _ => {}
            }
        }
    }

    /// Has the replicas of a page dropped, of one keeper or of all.
    fn drop_replicas(&mut self, page: PageId, of: Option<u64>) {
        let Self { pages, keepers, counts, changed, .. } = self;
        let Some(shared) = pages.get_mut(&page) else { return };
        changed.insert(page);
        shared.replicas.retain(|id, replica| {
            if of.is_some_and(|of| of != *id) || matches!(replica.stage, Phase::Dropping { .. }) {
                return true;
            }
            counts.dropped += 1;
            let keeper = keepers.get_mut(id).filter(|_| replica.stage != Phase::Wanted);
            let Some(keeper) = keeper else { return false };
            keeper.untell(page);
            keeper.tell(ReplicaOrder::Drop(page));
            replica.stage = Phase::Dropping { open: replica.is_readable() };
            true
        });
    }

    /// The keeper's replicas are over: its lease is, or it says so.
    fn forget_replicas(&mut self, id: u64) {
        for (page, shared) in &mut self.pages {
            if shared.replicas.remove(&id).is_some() {
                shared.outdated = true;
                self.counts.dropped += 1;
                self.changed.insert(*page);
            }
        }
    }

    /// Writers of a page do not end: it gets no more replicas. All of them know of those that it
    /// has.
    fn give_up_wanted(&mut self, page: PageId) {
        let Some(shared) = self.pages.get_mut(&page) else { return };
        shared.replicas.retain(|_, replica| replica.stage != Phase::Wanted);
        shared.sharing = Sharing::Ready;
        self.draining.remove(&shared.frame);
        self.changed.insert(page);
    }

    /// A keeper has closed replicas for good.
    fn note_gone(&mut self, id: u64, gone: &[PageId]) {
        for page in gone {
            let Some(shared) = self.pages.get_mut(page) else { continue };
            if shared.replicas.remove(&id).is_some() {
                shared.outdated = true;
                self.counts.dropped += 1;
                self.changed.insert(*page);
                self.keepers.get_mut(&id).into_iter().for_each(|keeper| keeper.untell(*page));
            }
        }
    }

    /// Ends a page's replicas, for a while.
    fn recall(&mut self, page: PageId) {
        self.rest(page);
        self.drop_replicas(page, None);
        self.pages.get_mut(&page).into_iter().for_each(|shared| shared.recalled = true);
    }

    /// A keeper has done what it was told, and says where replicas are.
    fn note_done(&mut self, id: u64, told: &[ReplicaOrder], made: &[(PageId, ReplicaLocation)]) {
        let rack = self.keepers.get(&id).map(|keeper| keeper.rack);
        for (page, place) in made.iter().filter(|(_, place)| Some(place.rack) == rack) {
            let shared = self.pages.get_mut(page);
            if let Some(replica) = shared.and_then(|shared| shared.replicas.get_mut(&id)) {
                replica.place = Some(*place);
            }
        }
        for order in told {
            let Some(shared) = self.pages.get_mut(&order.page()) else { continue };
            let Some(replica) = shared.replicas.get_mut(&id) else { continue };
            self.changed.insert(order.page());
            match (order, replica.stage) {
                (ReplicaOrder::Fetch(_), Phase::Fetching { sent: true }) => {
                    self.counts.made += 1;
                    replica.stage = Phase::Closed;
                }
                (ReplicaOrder::Close(_), Phase::Closing) => replica.stage = Phase::Closed,
                (ReplicaOrder::Drop(_), Phase::Dropping { .. }) => {
                    shared.replicas.remove(&id);
                    shared.outdated = true;
                }
                _ => {}
            }
        }
    }

    /// Bytes of a page were written here: they follow to its replicas.
    fn note_written(&mut self, home: PageHome, offset: u64, data: &[u8]) {
        let Self { pages, keepers, counts, changed, .. } = self;
        let page = home.page;
        let Some(shared) = pages.get_mut(&page) else { return };
        changed.insert(page);
        for (id, replica) in &mut shared.replicas {
            let Some(keeper) = keepers.get_mut(id) else { continue };
            if !matches!(replica.stage, Phase::Fetching { sent: true } | Phase::Closed) {
                continue;
            }
            counts.updates += 1;
            if keeper.orders_bytes + data.len() > REPLICA_BACKLOG_BYTES_MAX {
                keeper.untell(page);
                keeper.tell(ReplicaOrder::Fetch(home));
                replica.stage = Phase::Fetching { sent: false };
                continue;
            }
            let data = Bytes(data.to_vec());
            keeper.tell(ReplicaOrder::Update { page, offset, data });
        }
    }

    /// Opens the replicas of a page that are closed.
    fn open(&mut self, page: PageId) {
        let Self { pages, keepers, .. } = self;
        let shared = pages.get_mut(&page);
        let Some(shared) = shared.filter(|one| !one.recalled && one.sharing == Sharing::Ready)
        else {
            return;
        };
        for (id, replica) in &mut shared.replicas {
            let Some(keeper) = keepers.get_mut(id) else { continue };
            if replica.stage == Phase::Closed {
                keeper.tell(ReplicaOrder::Open(page));
                replica.stage = Phase::Opening;
            }
        }
    }

    /// What the sending of orders changes.
    fn note_sent(&mut self, id: u64, sent: &[ReplicaOrder]) {
        for order in sent {
            let shared = self.pages.get_mut(&order.page());
            let Some(replica) = shared.and_then(|shared| shared.replicas.get_mut(&id)) else {
                continue;
            };
            match (order, replica.stage) {
                (ReplicaOrder::Fetch(_), Phase::Fetching { .. }) => {
                    replica.stage = Phase::Fetching { sent: true };
                }
                (ReplicaOrder::Open(_), Phase::Opening) => replica.stage = Phase::Open,
                _ => {}
            }
        }
    }

    /// What a page still waits for before a request can be executed.
    fn is_ready(&self, page: PageId, wants: Wants) -> bool {
        let Some(shared) = self.pages.get(&page) else { return true };
        let closed = || !shared.replicas.values().any(Replica::is_readable);
        wants == Wants::Closed && shared.sharing == Sharing::Ready && closed()
    }

    /// A connection is over: what came over it and waits is not executed any more.
    pub(super) fn forget_held(&mut self, from: ClientId) {
        self.held.retain(|(other, _)| *other != from);
    }

    /// A client asks for something else: what it asked for before it has given up, and perhaps the
    /// lock under which that would have been right.
    pub(super) fn forget_before(&mut self, from: ClientId, seq: u64) {
        if !self.held.is_empty() {
            self.held.retain(|(other, held)| *other != from || held.seq >= seq);
        }
    }

    /// A session is over: its requests go with it. Its replicas may have readers until its lease is
    /// over.
    pub(super) fn end_session(&mut self, from: ClientId, session: u64) {
        self.forget_held(from);
        if let Some(keeper) = self.keepers.get_mut(&session) {
            keeper.parked = None;
        }
    }
}

/// Notes in the entry of a frame whether its table word has the key of a page with replicas: before
/// it has one, and after it has one no more.
fn set_shared<W: World>(frame: u32, entry: FrameEntry, shared: bool, world: &W) {
    let changed = FrameEntry { shared, ..entry };
    if changed != entry {
        copies::store(world.private(), state_offset(frame), changed.state_word(entry.state));
    }
}

impl Daemon {
    /// Whether a request has to wait for replicas; then it is kept, and served when they are closed
    /// or gone.
    pub(super) fn hold_for_replicas<W: World>(
        &mut self,
        from: ClientId,
        frame: &RequestFrame,
        world: &W,
    ) -> HoldDecision {
        if self.replicas.pages.is_empty() {
            return HoldDecision::No;
        }
        let shared = self.shared_pages(&frame.request, world);
        let Some((pages, wants)) = shared else { return HoldDecision::No };
        if world.private().mutated(Mutation::WriteUnderReplica) && wants == Wants::Closed {
            return HoldDecision::No;
        }
        for page in &pages {
            match wants {
                Wants::Closed if self.replicas_end_with_writes() => {
                    self.replicas.drop_replicas(*page, None);
                }
                Wants::Closed => self.replicas.close(*page),
                Wants::Alone => self.replicas.recall(*page),
            }
        }
        if pages.iter().all(|page| self.replicas.is_ready(*page, wants)) {
            return HoldDecision::No;
        }
        let replicas = &mut self.replicas;
        if replicas.held.iter().any(|(other, held)| *other == from && held.seq == frame.seq) {
            return HoldDecision::Yes;
        }
        if replicas.held.len() >= REPLICA_WAITERS_MAX {
            let what = "requests that wait for replicas".into();
            return HoldDecision::Refused(Error::Busy { what, limit: REPLICA_WAITERS_MAX as u64 });
        }
        replicas.counts.waited += 1;
        world.private().met(Race::ReplicaInTheWay);
        replicas.held.push_back((from, frame.clone()));
        HoldDecision::Yes
    }

    /// A client gives a lock back: what of it waits may have been given up, and is asked for again
    /// if not.
    pub(super) fn refuse_held<W: World>(&mut self, from: ClientId, world: &mut W) {
        if self.replicas.held.is_empty() {
            return;
        }
        let (waits, others): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.replicas.held).into_iter().partition(|held| held.0 == from);
        self.replicas.held = others;
        for (to, RequestFrame { seq, .. }) in waits {
            let reply = Err(Error::Moving { addr: GAddr::NULL, retries: 0 });
            self.answers.note(&reply);
            world.outbox().reply(to, ReplyFrame { seq, reply });
        }
    }

    /// The shared pages that a request touches, and what it wants of them.
    fn shared_pages<W: World>(&self, request: &Request, world: &W) -> Option<(Vec<PageId>, Wants)> {
        let pages = self.layout.pages;
        let whole_pages = |bytes: u64| {
            let is_run = slab::class_shift(&self.layout, bytes).is_none();
            is_run.then(|| bytes.div_ceil(pages.page_bytes()))
        };
        let (first, count, wants) = match request {
            Request::Store { addr, .. }
            | Request::Cas { addr, .. }
            | Request::FetchAdd { addr, .. } => (pages.page(*addr), 1, Wants::Closed),
            Request::AllocInto { word, .. }
            | Request::FreeFrom { word, .. }
            | Request::FreeApart { word, .. } => (pages.page(*word), 1, Wants::Alone),
            Request::Free { addr, bytes } => {
                (pages.page(*addr), whole_pages(*bytes)?, Wants::Alone)
            }
            Request::MoveOut { page, .. } | Request::Recall { page } => (*page, 1, Wants::Alone),
            _ => return None,
        };
        let of_run = |first: PageId, count: u64| {
            let range = first..PageId(first.0.saturating_add(count));
            self.replicas.pages.range(range).map(|(page, _)| *page)
        };
        let mut shared: Vec<PageId> = of_run(first, count).collect();
        // What the word names goes with it; no process changes the word meanwhile.
        if let Request::FreeFrom { word, bytes } = request
            && let (Some(count), Ok(at)) = (whole_pages(*bytes), self.locate_word(*word, world))
        {
            shared.extend(of_run(pages.page(GAddr(word_of(world.pages(), at))), count));
        }
        (!shared.is_empty()).then_some((shared, wants))
    }

    /// Goes on with all that replicas stood in the way of, then tells keepers what is new.
    pub(super) fn advance_replicas<W: World>(&mut self, world: &mut W) {
        for _ in 0..self.replicas.held.len() {
            let Some((from, frame)) = self.replicas.held.pop_front() else { break };
            let pages = self.shared_pages(&frame.request, world);
            let is_ready = |page: &PageId, wants| self.replicas.is_ready(*page, wants);
            match pages {
                Some((pages, wants)) if !pages.iter().all(|page| is_ready(page, wants)) => {
                    self.replicas.held.push_back((from, frame));
                }
                _ => self.dispatch(from, frame, world),
            }
        }
        let held = self.replicas.held.iter();
        let held = held.filter_map(|(_, frame)| self.shared_pages(&frame.request, world));
        let held: BTreeSet<PageId> = held.flat_map(|(pages, _)| pages).collect();
        for page in std::mem::take(&mut self.replicas.changed) {
            let shared = self.replicas.pages.get(&page);
            if shared.is_some_and(|one| one.replicas.is_empty() && one.sharing != Sharing::Found) {
                self.unshare(page, world);
                // A request that waited for that goes on with the next step.
                self.replicas.served_late = !self.replicas.held.is_empty();
            } else if held.contains(&page) {
                // Another keeper has not closed it: what waits for that comes first.
                self.replicas.changed.insert(page);
            } else {
                self.change_key(page, world);
                self.replicas.open(page);
            }
        }
        if std::mem::take(&mut self.replicas.served_late) {
            return self.advance_replicas(world);
        }
        self.tell_keepers(false, world);
    }

    /// The page is as others: its daemon's is not the only hand that writes.
    fn unshare<W: World>(&mut self, page: PageId, world: &W) {
        let Some(shared) = self.replicas.pages.remove(&page) else { return };
        self.replicas.frames.remove(&shared.frame);
        self.replicas.draining.remove(&shared.frame);
        if let Some((frame, entry)) = self.frames.home(world.private(), page)
            && frame == shared.frame
        {
            set_table(world, table_word(FrameIndex(frame)), entry.generation.0);
            set_shared(frame, entry, false, world);
        }
    }

    /// A page that goes without having been recalled: no client reads it at its home any more.
    pub(super) fn forget_shared(&mut self, frame: u32, page: PageId) {
        if self.replicas.frames.contains(&frame) {
            self.replicas.drop_replicas(page, None);
            self.replicas.pages.remove(&page);
            self.replicas.frames.remove(&frame);
            self.replicas.draining.remove(&frame);
        }
    }

    /// Has a replica of a page made by a keeper of a rack.
    pub(super) fn replicate<W: World>(
        &mut self,
        page: PageId,
        to: RackId,
        world: &W,
    ) -> Result<Reply> {
        let stays = |reason: &str| Err(Error::Stays { page, reason: reason.into() });
        let addr = self.layout.pages.join(page, 0);
        let home = self.frames.home(world.private(), page);
        let (frame, entry) = home.ok_or(Error::NotMapped { addr })?;
        let keeper = self.replicas.keeper_for(page, to);
        let fits = self.replicas.pages.len() < REPLICAS_MAX || self.replicas.is_shared(page);
        let Some(id) = keeper.filter(|_| fits) else {
            return stays("no replica of it can be made there now");
        };
        if entry.owner.0 != 0 {
            return stays("it belongs to a session");
        }
        if self.is_leaving() {
            return stays("its rack is being drained");
        }
        let replicas = &mut self.replicas;
        let shared = replicas.pages.entry(page).or_insert_with(|| Shared {
            frame,
            key: entry.generation,
            sharing: Sharing::Ready,
            replicas: BTreeMap::new(),
            recalled: false,
            outdated: false,
        });
        if shared.recalled {
            return stays("its replicas are recalled");
        }
        if let Some(replica) = shared.replicas.get_mut(&id) {
            replica.asked = None;
            return Ok(Reply::Replicas);
        }
        shared.replicas.insert(id, Replica { stage: Phase::Wanted, place: None, asked: None });
        replicas.frames.insert(frame);
        if let Some(keeper) = replicas.keepers.get_mut(&id) {
            keeper.room -= 1;
        }
        self.change_key(page, world);
        Ok(Reply::Replicas)
    }

    /// Gives a page a key of its own for another set of replicas, if that is due, and has writers
    /// by the old one waited for.
    fn change_key<W: World>(&mut self, page: PageId, world: &W) {
        let Some(shared) = self.replicas.pages.get_mut(&page).filter(|one| one.wants_key()) else {
            return;
        };
        shared.key = Generation(self.frames.take_generations(world.private(), 1)).shared();
        shared.sharing = Sharing::Draining(None);
        shared.outdated = false;
        self.replicas.draining.insert(shared.frame);
        let entry = FrameEntry::load_checked(world.private(), shared.frame);
        set_shared(shared.frame, entry, true, world);
        set_table(world, table_word(FrameIndex(shared.frame)), shared.key.0);
        self.freeing.table_changed();
        self.request_scan();
    }

    /// Where the replicas of a page are, for a client that wants to write to them. As long as the
    /// page's key is the one that is named, there are no others.
    pub(super) fn sharers(&self, page: PageId) -> Result<Reply> {
        let addr = self.layout.pages.join(page, 0);
        let shared = self.replicas.pages.get(&page).ok_or(Error::NotMapped { addr })?;
        let are_made = shared.replicas.values().all(Replica::is_made);
        let may = shared.sharing == Sharing::Ready && !shared.recalled && are_made;
        let places = shared.replicas.values().filter_map(|replica| replica.place);
        let places = match may && !self.replicas_end_with_writes() {
            true => places.collect(),
            false => Vec::new(),
        };
        Ok(Reply::Sharers(Sharers { key: shared.key, places }))
    }

    /// Has a replica made, or only kept if none is to be made now.
    pub(super) fn keep_replica<W: World>(
        &mut self,
        page: PageId,
        to: RackId,
        decision: Decision,
        world: &W,
    ) -> Result<()> {
        let has = self.replicas.keeper_for(page, to).is_some_and(|id| {
            self.replicas.pages.get(&page).is_some_and(|shared| shared.replicas.contains_key(&id))
        });
        if has || matches!(decision, Decision::Replicate { .. }) {
            self.replicate(page, to, world)?;
        }
        Ok(())
    }

    /// A page's writers have ended, and new ones come here.
    pub(super) fn replica_drained<W: World>(&mut self, frame: u32, world: &W) {
        self.replicas.draining.remove(&frame);
        let mut pages = self.replicas.pages.iter_mut();
        let Some((page, shared)) = pages.find(|(_, shared)| shared.frame == frame) else { return };
        let page = *page;
        shared.sharing = Sharing::Ready;
        self.replicas.changed.insert(page);
        self.fetch_replicas(page, world);
    }

    /// Tells keepers to make the replicas that are wanted.
    fn fetch_replicas<W: World>(&mut self, page: PageId, world: &W) {
        let Some(home) = self.shared_home(page, world) else { return };
        let Replicas { pages, keepers, .. } = &mut self.replicas;
        let Some(shared) = pages.get_mut(&page) else { return };
        for (id, replica) in &mut shared.replicas {
            if replica.stage == Phase::Wanted
                && let Some(keeper) = keepers.get_mut(id)
            {
                keeper.tell(ReplicaOrder::Fetch(home));
                replica.stage = Phase::Fetching { sent: false };
            }
        }
    }

    /// Bytes of a page were written by a request.
    pub(super) fn wrote<W: World>(&mut self, addr: GAddr, data: &[u8], world: &W) {
        let page = self.layout.pages.page(addr);
        let Some(home) = self.shared_home(page, world) else { return };
        self.replicas.note_written(home, self.layout.pages.offset(addr), data);
    }

    /// Where a shared page is read.
    fn shared_home<W: World>(&self, page: PageId, world: &W) -> Option<PageHome> {
        let generation = self.replicas.key(page)?;
        let (frame, _) = self.frames.home(world.private(), page)?;
        Some(PageHome { page, rack: self.rack, frame: FrameIndex(frame), generation })
    }

    /// Serves a keeper's poll. No answer now means that it comes when there is something to do.
    pub(super) fn replica_poll(
        &mut self,
        record: u32,
        seq: u64,
        poll: &Poll,
    ) -> Option<Result<Reply>> {
        let id = self.sessions.session(record);
        let replicas = &mut self.replicas;
        let reset = || Some(Ok(Reply::ReplicaOrders(Orders { reset: true, orders: Vec::new() })));
        let known = replicas.keepers.get_mut(&id);
        if known.as_ref().is_some_and(|keeper| seq < keeper.seq) {
            // It was late: the keeper has said more since.
            return None;
        }
        match known {
            _ if poll.number == 1 => {
                replicas.forget_replicas(id);
                replicas.keepers.insert(id, KeeperState::new(poll.rack));
            }
            Some(keeper) if poll.number == keeper.number => {
                if keeper.parked.is_none() {
                    let orders = keeper.told.clone();
                    (keeper.ticks, keeper.answered) = (0, None);
                    return Some(Ok(Reply::ReplicaOrders(Orders { reset: false, orders })));
                }
            }
            Some(keeper) if poll.number == keeper.number + 1 && keeper.parked.is_none() => {
                let told = std::mem::take(&mut keeper.told);
                replicas.note_done(id, &told, &poll.made);
            }
            _ => return reset(),
        }
        replicas.note_gone(id, &poll.gone);
        let keeper = replicas.keepers.get_mut(&id).expect("it is known, or was made above");
        (keeper.number, keeper.room, keeper.seq) = (poll.number, poll.room, seq);
        keeper.parked = Some((record, seq));
        None
    }

    /// Answers keepers that wait: those that have something to do, or (`due`) all that need it for
    /// their lease.
    fn tell_keepers<W: World>(&mut self, due: bool, world: &mut W) {
        let now = self.replicas.now;
        let late = |keeper: &KeeperState| {
            keeper.parked_since.is_some_and(|since| now.saturating_sub(since) > REPLICA_POLL_NS)
        };
        let waits = |keeper: &KeeperState| {
            keeper.parked.is_some() && (!keeper.orders.is_empty() || (due && late(keeper)))
        };
        let keepers = self.replicas.keepers.iter().filter(|(_, keeper)| waits(keeper));
        let ids: Vec<u64> = keepers.map(|(id, _)| *id).collect();
        for id in ids {
            let Some(keeper) = self.replicas.keepers.get_mut(&id) else { continue };
            let Some((record, seq)) = keeper.parked.take() else { continue };
            let orders = keeper.take_orders();
            keeper.told.clone_from(&orders);
            (keeper.ticks, keeper.answered, keeper.parked_since) = (0, None, None);
            self.replicas.note_sent(id, &orders);
            let reply = Ok(Reply::ReplicaOrders(Orders { reset: false, orders }));
            self.answers.note(&reply);
            world.outbox().reply(ClientId::of_record(record), ReplyFrame { seq, reply });
        }
    }
}
