//! One who keeps replicas of one home's pages for a rack: asks the home what to do, does it, and
//! says so with the next question. A daemon's process has one for each home, with a handle of its
//! own; nothing else is done with that handle.
//!
//! ```text
//! own daemon  ReplicaRoom -> how many frames replicas may take, and its directory is announced
//! own daemon  Alloc, Free -> owned memory: the directory and a page for each replica
//! home        ReplicaPoll -> orders; kept by the home until there are some, or for the lease
//!             one-sided reads of pages to be filled; stores into the own rack's memory
//! ```
//!
//! The time that replicas may be read is counted from when the poll was sent whose answer has come,
//! after everything that the answer has to have closed is closed. A replica is closed by the
//! keeper's addition to its word, and is the keeper's when nobody else is at it any more: only then
//! do its bytes change, is its memory used for another one, or does a poll say that it is closed.
//! Whoever was at it and has died is never waited for longer than [`REPLICA_STUCK_NS`]: the keeper
//! begins anew, with other memory.
//!
//! Memory is taken when a replica is to be filled, and given back when it has ended; the directory
//! is there as long as any replica is. The own daemon may take pages away for others at any time:
//! the replicas in them are given up.
//!
//! Source: Rcmp §5.3; decision 0031.

mod room;

use super::locate::unexpected;
use super::{Access, Client, Io, Need, OWN, Operation, Reach, Step, Translation};
use crate::addr::{GAddr, PageId, RackId};
use crate::constants::{
    MOVE_CHUNK_BYTES, REPLICA_POLL_NS, REPLICA_READ_NS, REPLICA_STUCK_NS, STALE_RETRIES_MAX,
};
use crate::error::{Error, Result};
use crate::layout::AllocationKind;
use crate::replica::{
    ENTRY_DATA, ENTRY_PAGE, ENTRY_WORD, EntryWord, HEAD_BITS, HEAD_UNTIL, Orders, Poll,
    ReplicaLocation, ReplicaOrder, entry_offset,
};
use crate::seam::{Mem, Mutation, Nanos, PostError, RemoteAddr, Verb, WorkRequest, WorkStatus};
use crate::wire::{MasterAnswer, PageHome, Reply, Request};
use std::collections::{BTreeMap, VecDeque};

/// Memory of the own rack that the keeper owns: it stays where it is as long as the session.
#[derive(Clone, Debug)]
struct Run {
    addr: GAddr,
    pages: Vec<Translation>,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    /// Where its entry is in the directory.
    entry: u64,
    data: GAddr,
    /// Which of the entry's replicas it is.
    placement: u16,
    /// Whether the keeper has begun, and not ended.
    closed: bool,
}

/// What is known from one turn to the next.
#[derive(Debug)]
pub struct Keeper {
    home: RackId,
    directory: Option<Run>,
    bits: u32,
    /// A page for each replica, by address.
    runs: BTreeMap<u64, Run>,
    /// Those of them that are not used.
    free: Vec<GAddr>,
    kept: BTreeMap<PageId, Kept>,
    /// Whose the entries in use are.
    entries: BTreeMap<u64, PageId>,
    /// Replicas that have ended while others were at them, by entry: their memory is not used yet.
    leaving: BTreeMap<u64, GAddr>,
    /// The last one given out.
    placement: u16,
    /// Of the next poll, or of the one under way.
    number: u64,
    /// When that was sent first.
    sent: Option<Nanos>,
    gone: Vec<PageId>,
    made: Vec<(PageId, ReplicaLocation)>,
    /// What is to be done before the next poll.
    orders: VecDeque<ReplicaOrder>,
    /// Since when it waits for those who are at a replica.
    waits: Option<Nanos>,
    /// Frames that it may have.
    allowed: u32,
    room_at: Nanos,
    /// Pages given back since the own daemon was asked for room.
    returned: u32,
}

/// Where a replica that is to be filled gets its memory.
enum Placing {
    At(GAddr),
    /// The own daemon is to give so many pages first.
    Needs {
        pages: u32,
        directory: bool,
    },
    Nowhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tended {
    /// There is no memory for replicas now, or no use for them: ask again later.
    Idle,
    /// The home was asked, and what it said is done.
    Polled,
    /// Somebody is writing to a replica that is to be closed: ask again in some microseconds.
    Waiting,
}

#[derive(Debug)]
enum Stage {
    /// What is left to do, then what is next.
    Start,
    Room,
    Allocate {
        pages: u32,
        directory: bool,
    },
    Resolve {
        run: Run,
        directory: bool,
        pages: u32,
    },
    /// The directory is not announced any more, then freed.
    Retract(Run),
    GiveBack(Run),
    Poll,
    Work,
    Fetch(Fetching),
    Done(Tended),
}

/// A replica that is being filled.
#[derive(Debug)]
struct Fetching {
    home: PageHome,
    data: GAddr,
    done: u64,
    posted: bool,
    /// Whether the next chunk is in the buffer.
    filled: bool,
}

/// One question to the home and what follows from it. Piece 0 of its `Io` is a buffer of
/// [`Migrate::buffer_bytes`](super::Migrate::buffer_bytes). A turn that fails is taken again; an
/// [`Error::Lost`] says that the keeper's own memory is gone, and the keeper with it.
#[derive(Debug)]
pub struct Tending<'k> {
    keeper: &'k mut Keeper,
    id: u64,
    now: Nanos,
    stage: Stage,
}

impl Keeper {
    pub fn new(home: RackId) -> Keeper {
        Keeper {
            home,
            directory: None,
            bits: 0,
            runs: BTreeMap::new(),
            free: Vec::new(),
            kept: BTreeMap::new(),
            entries: BTreeMap::new(),
            leaving: BTreeMap::new(),
            placement: 0,
            number: 1,
            sent: None,
            gone: Vec::new(),
            made: Vec::new(),
            orders: VecDeque::new(),
            waits: None,
            allowed: 0,
            room_at: 0,
            returned: 0,
        }
    }

    /// Whose pages it keeps.
    pub fn home(&self) -> RackId {
        self.home
    }

    pub fn count(&self) -> usize {
        self.kept.len()
    }

    /// Ends all replicas: one more turn tells the home so, and then no writer waits for the lease.
    /// Whether there is anything to tell.
    pub fn retire<M: Mem>(&mut self, client: &Client<M>) -> bool {
        let has_replicas = !self.kept.is_empty();
        let is_closed = self.reset(client).is_ok();
        self.free.clear();
        (self.allowed, self.room_at) = (0, Nanos::MAX);
        has_replicas && is_closed
    }

    /// The next turn. `id` differs from all other work requests of the handle; `now` is the time
    /// of the host before the turn, by the clock that readers look at.
    pub fn turn(&mut self, id: u64, now: Nanos) -> Tending<'_> {
        Tending { keeper: self, id, now, stage: Stage::Start }
    }

    /// Runs `access` on own memory. It fails only if the memory is not ours any more.
    fn own<M: Mem, R>(
        &self,
        client: &Client<M>,
        (at, bytes): (GAddr, u64),
        access: impl Fn(&M, u64) -> R,
    ) -> Result<R> {
        let run = match &self.directory {
            Some(run) if run.holds(client, at) => Some(run),
            _ => self.runs.range(..=at.0).next_back().map(|(_, run)| run),
        };
        let page = client.geometry().page(at);
        let entry = run.and_then(|run| run.pages.iter().find(|entry| entry.page == page));
        let Reach::Mapped(view) = client.reach(OWN) else { return Err(lost(client, at)) };
        let offset = client.geometry().offset(at);
        let done = entry.and_then(|entry| {
            let place = (Access::Write, entry.base + offset, bytes);
            let run = |pages: &M| access(pages, place.1);
            // It is our own: that it counts as stale once says nothing.
            (0..STALE_RETRIES_MAX).find_map(|_| Client::guarded(view, entry, place, run))
        });
        done.ok_or_else(|| lost(client, at))
    }

    /// Address of a word of the directory.
    fn at(&self, offset: u64) -> GAddr {
        GAddr(self.directory.as_ref().map_or(0, |directory| directory.addr.0) + offset)
    }

    /// Stores a word of the directory.
    fn set<M: Mem>(&self, client: &Client<M>, offset: u64, value: u64) -> Result<()> {
        self.own(client, (self.at(offset), 8), |pages, at| pages.store(at, value))
    }

    /// An entry's word, after `n` was added.
    fn add_to<M: Mem>(&self, client: &Client<M>, entry: u64, n: u64) -> Result<EntryWord> {
        let add = |pages: &M, at| pages.fetch_add(at, n).wrapping_add(n);
        Ok(EntryWord(self.own(client, (self.at(entry + ENTRY_WORD), 8), add)?))
    }

    /// From here on nobody begins to read a replica, and who has begun finds that out. Whether
    /// nobody else is at it: then it stays as it is until it is opened.
    fn close<M: Mem>(&mut self, client: &Client<M>, page: PageId) -> Result<bool> {
        let Some(kept) = self.kept.get(&page).copied() else { return Ok(true) };
        let n = if kept.closed { 0 } else { EntryWord::BEGIN };
        let word = self.add_to(client, kept.entry, n)?;
        self.kept.insert(page, Kept { closed: true, ..kept });
        Ok(word.in_flight() == 1)
    }

    fn open<M: Mem>(&mut self, client: &Client<M>, page: PageId) -> Result<()> {
        let Some(kept) = self.kept.get(&page).copied().filter(|kept| kept.closed) else {
            return Ok(());
        };
        self.kept.insert(page, Kept { closed: false, ..kept });
        self.add_to(client, kept.entry, EntryWord::END).map(drop)
    }

    /// Closes a replica for good. If others are at it, its memory is not used before they end.
    fn forget<M: Mem>(&mut self, client: &Client<M>, page: PageId) -> Result<()> {
        let is_ours = self.close(client, page)?;
        if let Some(kept) = self.kept.remove(&page) {
            self.entries.remove(&kept.entry);
            match is_ours {
                true => self.free.push(kept.data),
                false => drop(self.leaving.insert(kept.entry, kept.data)),
            }
        }
        Ok(())
    }

    /// Takes back what others have left meanwhile. Whether nobody is waited for any more.
    fn reclaim<M: Mem>(&mut self, client: &Client<M>) -> Result<bool> {
        let leaving = std::mem::take(&mut self.leaving);
        for (entry, data) in leaving {
            match self.add_to(client, entry, 0)?.in_flight() {
                1 => self.free.push(data),
                _ => drop(self.leaving.insert(entry, data)),
            }
        }
        Ok(self.leaving.is_empty())
    }

    /// Whoever is waited for too long has died: all of the memory is given up, and with it what
    /// they may still do to it.
    fn wait<M: Mem>(&mut self, client: &Client<M>, now: Nanos) -> Result<()> {
        let since = *self.waits.get_or_insert(now);
        match now.saturating_sub(since) > REPLICA_STUCK_NS {
            true => Err(lost(client, self.at(0))),
            false => Ok(()),
        }
    }

    /// The home knows nothing of this keeper: all replicas end.
    fn reset<M: Mem>(&mut self, client: &Client<M>) -> Result<()> {
        let pages: Vec<PageId> = self.kept.keys().copied().collect();
        for page in pages {
            self.forget(client, page)?;
        }
        fence(client);
        self.orders.clear();
        self.gone.clear();
        self.made.clear();
        (self.number, self.sent) = (1, None);
        Ok(())
    }

    /// Takes an answer in: first what it closes, then the time until which the rest is readable.
    fn take_orders<M: Mem>(&mut self, client: &Client<M>, orders: Orders) -> Result<()> {
        if orders.reset {
            return self.reset(client);
        }
        let kept_open = client.mutated(Mutation::KeepReplicaOpen);
        for order in &orders.orders {
            match order {
                ReplicaOrder::Close(page) if !kept_open => drop(self.close(client, *page)?),
                ReplicaOrder::Drop(page) => self.forget(client, *page)?,
                _ => {}
            }
        }
        fence(client);
        if let Some(sent) = self.sent.take().filter(|_| self.directory.is_some()) {
            self.set(client, HEAD_UNTIL, sent.saturating_add(REPLICA_READ_NS))?;
        }
        self.orders.extend(orders.orders);
        self.gone.clear();
        self.made.clear();
        self.number += 1;
        Ok(())
    }

    /// A place for a replica that is to be filled, closed. Whoever comes to the entry by what it
    /// was before takes back what they add, so that its word is seldom another one for long.
    fn place<M: Mem>(&mut self, client: &Client<M>, page: PageId) -> Result<Placing> {
        if let Some(kept) = self.kept.get(&page) {
            return Ok(Placing::At(kept.data));
        }
        let page_bytes = client.geometry().page_bytes();
        let has_room = self.room(page_bytes) > 0;
        if self.directory.is_none() && has_room {
            let (bits, pages) = self.new_directory(page_bytes);
            self.bits = bits;
            return Ok(Placing::Needs { pages, directory: true });
        }
        let entry = entry_offset(page, self.bits);
        if self.directory.is_none() || self.entries.contains_key(&entry) {
            return Ok(Placing::Nowhere);
        }
        let old = self.add_to(client, entry, 0)?;
        let is_ours = old == EntryWord(0) || old.placement() != 0 && old.in_flight() == 1;
        if !is_ours {
            return Ok(Placing::Nowhere);
        }
        let Some(data) = self.free.pop() else {
            let more = Placing::Needs { pages: 1, directory: false };
            return Ok(if has_room { more } else { Placing::Nowhere });
        };
        self.placement = self.placement.checked_add(1).unwrap_or(1);
        let (placement, at) = (self.placement, self.at(entry + ENTRY_WORD));
        self.set(client, entry + ENTRY_PAGE, page.0)?;
        self.set(client, entry + ENTRY_DATA, data.0)?;
        let new = EntryWord::placed(placement).0;
        let swap = |pages: &M, at| pages.compare_exchange(at, old.0, new);
        if self.own(client, (at, 8), swap)?.is_err() {
            self.free.push(data);
            return Ok(Placing::Nowhere);
        }
        self.entries.insert(entry, page);
        self.kept.insert(page, Kept { entry, data, placement, closed: true });
        Ok(Placing::At(data))
    }

    fn note_made<M: Mem>(&mut self, client: &Client<M>, page: PageId) {
        let Some(Kept { entry, data, placement, .. }) = self.kept.get(&page).copied() else {
            return;
        };
        let (rack, word) = (client.own_rack(), self.at(entry + ENTRY_WORD));
        self.made.push((page, ReplicaLocation { rack, word, data, placement }));
    }

    /// A replica could not be made, or its memory is given back.
    fn give_up<M: Mem>(&mut self, client: &Client<M>, page: PageId) -> Result<()> {
        self.forget(client, page)?;
        self.made.retain(|(made, _)| *made != page);
        self.gone.push(page);
        Ok(())
    }

    /// Replicas whose words have counted too far end.
    fn end_worn<M: Mem>(&mut self, client: &Client<M>) -> Result<()> {
        let pages: Vec<(PageId, u64)> =
            self.kept.iter().map(|(page, kept)| (*page, kept.entry)).collect();
        for (page, entry) in pages {
            if self.add_to(client, entry, 0)?.is_worn() {
                self.give_up(client, page)?;
            }
        }
        Ok(())
    }

    /// Does one order that needs no message.
    fn execute<M: Mem>(&mut self, client: &Client<M>, order: &ReplicaOrder) -> Result<()> {
        match order {
            ReplicaOrder::Open(page) => self.open(client, *page),
            ReplicaOrder::Update { page, offset, data } => {
                let Some(kept) = self.kept.get(page) else { return Ok(()) };
                let end = offset.saturating_add(data.0.len() as u64);
                if end > client.geometry().page_bytes() {
                    return Err(unexpected("home of replicas", "a page"));
                }
                let (base, at) = (kept.data, GAddr(kept.data.0 + offset));
                let place = (at, data.0.len() as u64);
                match self.own(client, place, |pages, at| pages.copy_in(at, &data.0)) {
                    Err(_) => self.lose(client, base),
                    Ok(()) => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Takes a page in, or the directory.
    fn add<M: Mem>(&mut self, client: &Client<M>, run: Run, directory: bool) -> Result<()> {
        if directory {
            self.directory = Some(run);
            return self.set(client, HEAD_BITS, self.bits.into());
        }
        self.free.extend(run.pages.iter().map(|entry| client.geometry().join(entry.page, 0)));
        self.runs.insert(run.addr.0, run);
        Ok(())
    }
}

impl Run {
    fn bytes<M: Mem>(&self, client: &Client<M>) -> u64 {
        self.pages.len() as u64 * client.geometry().page_bytes()
    }

    fn holds<M: Mem>(&self, client: &Client<M>, at: GAddr) -> bool {
        (self.addr.0..self.addr.0 + self.bytes(client)).contains(&at.0)
    }
}

/// Memory that is not ours any more.
fn lost<M: Mem>(client: &Client<M>, addr: GAddr) -> Error {
    Error::Lost { addr, rack: client.own_rack() }
}

/// What was closed is closed for everybody before anything that follows.
fn fence<M: Mem>(client: &Client<M>) {
    if let Reach::Mapped(view) = client.reach(OWN) {
        view.pages.fence();
    }
}

impl Tending<'_> {
    /// Posts the next chunk of a page, or says what that needs.
    fn fetch<M: Mem>(&mut self, client: &mut Client<M>, io: &mut impl Io) -> Result<Option<Need>> {
        let Stage::Fetch(fetching) = &mut self.stage else { return Ok(None) };
        if fetching.posted {
            return Ok(Some(Need::Completions));
        }
        let bytes = MOVE_CHUNK_BYTES.min(client.geometry().page_bytes() - fetching.done);
        if std::mem::take(&mut fetching.filled) {
            let at = GAddr(fetching.data.0 + fetching.done);
            let chunk = io.source(0, 0, bytes);
            if self.keeper.own(client, (at, bytes), |pages, at| pages.copy_in(at, chunk)).is_err() {
                let data = fetching.data;
                self.keeper.orders.pop_front();
                self.stage = Stage::Work;
                return self.keeper.lose(client, data).map(|()| None);
            }
            fetching.done += bytes;
        }
        if fetching.done == client.geometry().page_bytes() {
            self.keeper.note_made(client, fetching.home.page);
            self.keeper.orders.pop_front();
            self.stage = Stage::Work;
            return Ok(None);
        }
        let bytes = MOVE_CHUNK_BYTES.min(client.geometry().page_bytes() - fetching.done);
        let rack = fetching.home.rack;
        let Some(link) = client.link_of(rack) else { return Ok(Some(Need::Link(rack))) };
        let Reach::OneSided(layout) = client.reach(link) else {
            // Its home is mapped: there is no use for replicas.
            self.stage = Stage::Done(Tended::Idle);
            return Ok(None);
        };
        if fetching.home.frame.0 >= layout.frame_count {
            return Err(unexpected("home of replicas", "a frame of that rack"));
        }
        let offset = layout.frame_offset(fetching.home.frame) + fetching.done;
        let verb = Verb::Read(RemoteAddr { offset, key: fetching.home.generation });
        let local = [io.sge(0, 0, bytes)];
        let request = WorkRequest { id: self.id, verb, local: &local, signalled: true };
        match io.post(link, &[request]) {
            Ok(()) => {
                fetching.posted = true;
                Ok(Some(Need::Completions))
            }
            Err((_, PostError::Busy)) => Ok(Some(Need::Completions)),
            Err((_, PostError::Down)) => Ok(Some(Need::Link(rack))),
        }
    }

    /// Does the orders up to one that needs a message.
    fn work<M: Mem>(&mut self, client: &mut Client<M>) -> Result<()> {
        let is_free = self.keeper.reclaim(client)?;
        while let Some(order) = self.keeper.orders.front().cloned() {
            if self.must_wait(client, &order)? {
                self.keeper.wait(client, self.now)?;
                self.stage = Stage::Done(Tended::Waiting);
                return Ok(());
            }
            if let ReplicaOrder::Fetch(home) = order {
                match self.keeper.place(client, home.page)? {
                    Placing::At(data) => {
                        let (done, posted, filled) = (0, false, false);
                        self.stage = Stage::Fetch(Fetching { home, data, done, posted, filled });
                        return Ok(());
                    }
                    Placing::Needs { pages, directory } => {
                        self.stage = Stage::Allocate { pages, directory };
                        return Ok(());
                    }
                    Placing::Nowhere => self.keeper.gone.push(home.page),
                }
            } else {
                self.keeper.execute(client, &order)?;
            }
            self.keeper.orders.pop_front();
        }
        match is_free {
            true => self.keeper.waits = None,
            false => self.keeper.wait(client, self.now)?,
        }
        self.stage = match self.stage {
            Stage::Work => Stage::Done(Tended::Polled),
            _ if self.keeper.wants_room(self.now) => Stage::Room,
            _ => self.keeper.next(client.geometry().page_bytes()),
        };
        Ok(())
    }

    /// Whether others are at a replica that an order wants closed.
    fn must_wait<M: Mem>(&mut self, client: &Client<M>, order: &ReplicaOrder) -> Result<bool> {
        match order {
            ReplicaOrder::Close(_) if client.mutated(Mutation::KeepReplicaOpen) => Ok(false),
            ReplicaOrder::Close(page) => Ok(!self.keeper.close(client, *page)?),
            ReplicaOrder::Fetch(home) => Ok(!self.keeper.close(client, home.page)?),
            _ => Ok(false),
        }
    }

    fn poll<M: Mem>(&mut self, client: &Client<M>) -> Need {
        let Keeper { home, number, gone, made, .. } = &*self.keeper;
        let Some(link) = client.link_of(*home) else { return Need::Link(*home) };
        let room = self.keeper.room(client.geometry().page_bytes());
        let (number, rack) = (*number, client.own_rack());
        let (gone, made) = (gone.clone(), made.clone());
        self.keeper.sent.get_or_insert(self.now);
        Need::Daemon(link, Request::ReplicaPoll(Poll { number, rack, room, gone, made }))
    }

    fn on_homes<M: Mem>(&mut self, client: &Client<M>, homes: Vec<PageHome>) -> Result<()> {
        let Stage::Resolve { run, directory, pages } = &mut self.stage else { return Ok(()) };
        let Reach::Mapped(view) = client.reach(OWN) else { return Ok(()) };
        let first = client.geometry().page(run.addr);
        for (index, home) in (0..).zip(homes) {
            if home.page.0 != first.0 + index || home.frame.0 >= view.layout.frame_count {
                return Err(unexpected("own daemon", "pages of one's own"));
            }
            let PageHome { page, frame, generation, .. } = home;
            let base = view.layout.frame_offset(frame);
            run.pages.push(Translation { page, generation, base, frame, link: OWN });
        }
        if run.pages.len() as u32 != *pages {
            return Err(unexpected("own daemon", "pages of one's own"));
        }
        let (run, directory) = (run.clone(), *directory);
        self.stage = if directory { Stage::Room } else { Stage::Work };
        self.keeper.add(client, run, directory)
    }
}

impl<M: Mem> Operation<M> for Tending<'_> {
    type Output = Tended;

    fn step(&mut self, client: &mut Client<M>, io: &mut impl Io) -> Result<Step<Tended>> {
        loop {
            let need = match &mut self.stage {
                Stage::Start | Stage::Work => {
                    self.work(client)?;
                    continue;
                }
                Stage::Room => {
                    let directory = self.keeper.directory.as_ref();
                    let directory = directory.map_or(GAddr::NULL, |run| run.addr);
                    let home = self.keeper.home;
                    Need::Daemon(OWN, Request::ReplicaRoom { home, directory })
                }
                Stage::Allocate { pages, .. } => {
                    let bytes = u64::from(*pages) * client.geometry().page_bytes();
                    Need::Daemon(OWN, Request::Alloc { bytes, kind: AllocationKind::Session })
                }
                Stage::Resolve { run, pages, .. } => {
                    let page = client.geometry().page(run.addr);
                    Need::Daemon(OWN, Request::Resolve { page, count: *pages })
                }
                Stage::Retract(_) => {
                    let (home, directory) = (self.keeper.home, GAddr::NULL);
                    Need::Daemon(OWN, Request::ReplicaRoom { home, directory })
                }
                Stage::GiveBack(run) => {
                    let (addr, bytes) = (run.addr, run.bytes(client));
                    Need::Daemon(OWN, Request::Free { addr, bytes })
                }
                Stage::Poll => self.poll(client),
                Stage::Fetch(_) => match self.fetch(client, io)? {
                    Some(need) => need,
                    None => continue,
                },
                Stage::Done(tended) => return Ok(Step::Done(*tended)),
            };
            return Ok(Step::Need(need));
        }
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        let stage = std::mem::replace(&mut self.stage, Stage::Done(Tended::Idle));
        let reply = match (stage, reply) {
            // There was less than the daemon thought.
            (Stage::Allocate { .. }, Err(Error::Full { .. } | Error::Draining { .. })) => {
                self.keeper.allowed = self.keeper.frames();
                self.stage = Stage::Work;
                return Ok(());
            }
            // The daemon took the page away meanwhile.
            (stage @ Stage::GiveBack(_), Err(Error::BadFree { .. })) => (stage, Reply::Freed),
            (Stage::GiveBack(run), Err(error)) => {
                self.keeper.have_again(run);
                return Err(error);
            }
            (stage, reply) => (stage, reply?),
        };
        self.stage = match reply {
            (Stage::Room, Reply::ReplicaRoom { frames }) => {
                (self.keeper.allowed, self.keeper.returned) = (frames, 0);
                self.keeper.room_at = self.now.saturating_add(REPLICA_POLL_NS);
                self.keeper.end_taken(client)?;
                self.keeper.end_worn(client)?;
                self.keeper.use_room(client)?
            }
            (Stage::Allocate { pages, directory }, Reply::Allocated { addr }) => {
                Stage::Resolve { run: Run { addr, pages: Vec::new() }, directory, pages }
            }
            (stage @ Stage::Resolve { .. }, Reply::Homes(homes)) => {
                self.stage = stage;
                return self.on_homes(client, homes);
            }
            (Stage::Retract(run), Reply::ReplicaRoom { .. }) => Stage::GiveBack(run),
            (Stage::GiveBack(_), Reply::Freed) => self.keeper.use_room(client)?,
            (Stage::Poll, Reply::ReplicaOrders(orders)) => {
                self.keeper.take_orders(client, orders)?;
                Stage::Work
            }
            _ => return Err(unexpected("daemon", "a keeper of replicas")),
        };
        Ok(())
    }

    fn on_master(&mut self, _client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        answer.map(drop)
    }

    fn on_completion(&mut self, client: &mut Client<M>, id: u64, status: WorkStatus) -> Result<()> {
        let Stage::Fetch(fetching) = &mut self.stage else { return Ok(()) };
        if id != self.id || !fetching.posted {
            return Ok(());
        }
        fetching.posted = false;
        let page = fetching.home.page;
        match status {
            WorkStatus::Done(_) => fetching.filled = true,
            WorkStatus::Flushed { .. } => return Ok(()),
            WorkStatus::BadKey | WorkStatus::BadRange => {
                // It has gone, or been recalled.
                self.keeper.orders.pop_front();
                self.stage = Stage::Work;
                return self.keeper.give_up(client, page);
            }
        }
        Ok(())
    }
}
