//! The keeper of replicas of one home's pages for a rack: it asks the home what to do, does it, and
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
//! The time that replicas may be read is counted from when the answered poll was sent, after
//! everything that the answer has to have closed is closed. A replica is closed by the keeper's
//! addition to its word, and is the keeper's when no other process is at it any more: only then do
//! its bytes change, is its memory used for another one, or does a poll say that it is closed. A
//! process that was at it and has died is never waited for longer than [`REPLICA_STUCK_NS`]: the
//! keeper begins anew, with other memory.
//!
//! Memory is taken when a replica is to be filled, and given back when it has ended; the directory
//! is there as long as any replica is. The own daemon may take pages away for others at any time:
//! the replicas in them are given up.
//!
//! Source: Rcmp §5.3; decision 0031.

mod room;

use super::locate::unexpected;
use super::{Access, Client, Context, Io, OWN, Operation, Reach, Translation};
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
use crate::seam::{
    ByteRange, Mem, Mutation, Nanos, PostError, RemoteAddr, Verb, WorkRequest, WorkStatus,
};
use crate::wire::{PageHome, Reply, Request};
use std::collections::{BTreeMap, VecDeque};

/// Memory of the own rack that the keeper owns: it stays where it is as long as the session.
#[derive(Clone, Debug)]
struct Run {
    addr: GAddr,
    pages: Vec<Translation>,
    /// Else a page for a replica.
    is_directory: bool,
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
    /// The pages of the entries in use.
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
    /// Since when it waits for the processes at a replica.
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
    /// A client is writing to a replica that is to be closed: ask again in some microseconds.
    Waiting,
}

/// What is next when nothing is to be done about memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeeperTask {
    Work,
    Poll,
    Idle,
}

/// How a chunk of a page was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Done,
    /// The page has gone, or been recalled.
    Gone,
    /// Its home is mapped: there is no use for replicas.
    Mapped,
}

/// One question to the home and what follows from it. Piece 0 of its `Io` is a buffer of
/// [`Migrate::buffer_bytes`](super::Migrate::buffer_bytes). A turn that fails is taken again; an
/// [`Error::Lost`] says that the keeper's own memory is gone, and the keeper with it.
#[derive(Debug)]
pub struct Tending<'k> {
    keeper: &'k mut Keeper,
    id: u64,
    now: Nanos,
    /// Whether all replicas end, and the home is told so.
    is_last: bool,
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

    /// Ends all replicas. Whether there is anything to tell the home.
    fn retire<M: Mem>(&mut self, client: &Client<M>) -> bool {
        let has_replicas = !self.kept.is_empty();
        let is_closed = self.reset(client).is_ok();
        self.free.clear();
        (self.allowed, self.room_at) = (0, Nanos::MAX);
        has_replicas && is_closed
    }

    /// The next turn. `id` differs from all other work requests of the handle; `now` is the time
    /// of the host before the turn, by the clock that readers look at.
    pub fn turn(&mut self, id: u64, now: Nanos) -> Tending<'_> {
        Tending { keeper: self, id, now, is_last: false }
    }

    /// As [`Keeper::turn`], after which no writer waits for the lease.
    pub fn last_turn(&mut self, id: u64, now: Nanos) -> Tending<'_> {
        Tending { is_last: true, ..self.turn(id, now) }
    }

    /// Runs `access` on own memory. It fails only if the memory is not ours any more.
    fn own<M: Mem, R>(
        &self,
        client: &Client<M>,
        at: GAddr,
        bytes: u64,
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
            let range = ByteRange { offset: entry.base + offset, bytes };
            let run = |pages: &M| access(pages, range.offset);
            // It is our own: that it counts as stale once says nothing.
            (0..STALE_RETRIES_MAX)
                .find_map(|_| Client::guarded(view, entry, Access::Write, range, run))
        });
        done.ok_or_else(|| lost(client, at))
    }

    /// Address of a word of the directory.
    fn at(&self, offset: u64) -> GAddr {
        GAddr(self.directory.as_ref().map_or(0, |directory| directory.addr.0) + offset)
    }

    /// Stores a word of the directory.
    fn set<M: Mem>(&self, client: &Client<M>, offset: u64, value: u64) -> Result<()> {
        self.own(client, self.at(offset), 8, |pages, at| pages.store(at, value))
    }

    /// An entry's word, after `n` was added.
    fn add_to<M: Mem>(&self, client: &Client<M>, entry: u64, n: u64) -> Result<EntryWord> {
        let add = |pages: &M, at| pages.fetch_add(at, n).wrapping_add(n);
        Ok(EntryWord(self.own(client, self.at(entry + ENTRY_WORD), 8, add)?))
    }

    /// From here on no client begins to read a replica, and a reader that has begun finds that out.
    /// Whether no other process is at it: then it stays as it is until it is opened.
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

    /// Takes back what others have left meanwhile. Whether no process is waited for any more.
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

    /// A process that is waited for too long has died: all of the memory is given up, and with it
    /// what the process may still do to it.
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

    /// A place for a replica that is to be filled, closed. A client that comes to the entry by what
    /// it was before takes back what it adds, so that the entry's word is seldom another one for
    /// long.
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
        if self.own(client, at, 8, swap)?.is_err() {
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

    /// Ends replicas with words that have counted too far.
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
                let bytes = data.0.len() as u64;
                match self.own(client, at, bytes, |pages, at| pages.copy_in(at, &data.0)) {
                    Err(_) => self.lose(client, base),
                    Ok(()) => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Takes a page in, or the directory.
    fn add<M: Mem>(&mut self, client: &Client<M>, run: Run) -> Result<()> {
        if run.is_directory {
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

/// What was closed is closed for all processes before anything that follows.
fn fence<M: Mem>(client: &Client<M>) {
    if let Reach::Mapped(view) = client.reach(OWN) {
        view.pages.fence();
    }
}

impl Tending<'_> {
    /// Carries out the orders. How the turn ends, unless all were done without a message.
    async fn work<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<Option<Tended>> {
        cx.check()?;
        let (mut ended, mut is_free) = (None, self.keeper.reclaim(cx.client())?);
        while let Some(order) = self.keeper.orders.front().cloned() {
            if self.must_wait(cx.client(), &order)? {
                self.keeper.wait(cx.client(), self.now)?;
                return Ok(Some(Tended::Waiting));
            }
            if let ReplicaOrder::Fetch(home) = order {
                let placing = self.keeper.place(cx.client(), home.page)?;
                match placing {
                    Placing::At(data) => {
                        if !self.fetch(cx, home, data).await? {
                            return Ok(Some(Tended::Idle));
                        }
                    }
                    Placing::Needs { pages, directory } => {
                        self.allocate(cx, pages, directory).await?;
                    }
                    Placing::Nowhere => {
                        self.keeper.gone.push(home.page);
                        self.keeper.orders.pop_front();
                        continue;
                    }
                }
                cx.check()?;
                (ended, is_free) = (Some(Tended::Polled), self.keeper.reclaim(cx.client())?);
                continue;
            }
            self.keeper.execute(cx.client(), &order)?;
            self.keeper.orders.pop_front();
        }
        match is_free {
            true => self.keeper.waits = None,
            false => self.keeper.wait(cx.client(), self.now)?,
        }
        Ok(ended)
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

    /// Fills a replica, which ends the order. `false` if there is no use for replicas.
    async fn fetch<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
        home: PageHome,
        data: GAddr,
    ) -> Result<bool> {
        let page_bytes = cx.client().geometry().page_bytes();
        let mut done = 0;
        while done < page_bytes {
            let bytes = MOVE_CHUNK_BYTES.min(page_bytes - done);
            let range = ByteRange { offset: done, bytes };
            match self.read_chunk(cx, home, range).await? {
                Read::Done => {}
                Read::Gone => {
                    self.keeper.orders.pop_front();
                    return self.keeper.give_up(cx.client(), home.page).map(|()| true);
                }
                Read::Mapped => return Ok(false),
            }
            let (client, io) = cx.access()?;
            let (at, chunk) = (GAddr(data.0 + done), io.source(0, 0, bytes));
            let kept = self.keeper.own(client, at, bytes, |pages, at| pages.copy_in(at, chunk));
            if kept.is_err() {
                self.keeper.orders.pop_front();
                return self.keeper.lose(client, data).map(|()| true);
            }
            done += bytes;
        }
        self.keeper.note_made(cx.client(), home.page);
        self.keeper.orders.pop_front();
        Ok(true)
    }

    /// Reads a range of a page into the buffer.
    async fn read_chunk<M: Mem>(
        &self,
        cx: &mut impl Context<M>,
        home: PageHome,
        range: ByteRange,
    ) -> Result<Read> {
        loop {
            let (client, mut io) = cx.access()?;
            let Some(link) = client.link_of(home.rack) else {
                drop(io);
                cx.connect(home.rack).await?;
                continue;
            };
            let Reach::OneSided(layout) = client.reach(link) else { return Ok(Read::Mapped) };
            if home.frame.0 >= layout.frame_count {
                return Err(unexpected("home of replicas", "a frame of that rack"));
            }
            let offset = layout.frame_offset(home.frame) + range.offset;
            let verb = Verb::Read(RemoteAddr { offset, key: home.generation });
            let local = [io.sge(0, 0, range.bytes)];
            let request = WorkRequest { id: self.id, verb, local: &local, signalled: true };
            let posted = io.post(link, &[request]);
            drop(io);
            match posted {
                Ok(()) => match cx.completion(self.id).await? {
                    WorkStatus::Done(_) => return Ok(Read::Done),
                    // The same bytes once more.
                    WorkStatus::Flushed { .. } => {}
                    WorkStatus::BadKey | WorkStatus::BadRange => return Ok(Read::Gone),
                },
                Err((_, PostError::Busy)) => cx.room().await?,
                Err((_, PostError::Down)) => cx.connect(home.rack).await?,
            }
        }
    }

    /// Takes pages of the own daemon, for replicas or for the directory.
    async fn allocate<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
        pages: u32,
        directory: bool,
    ) -> Result<()> {
        let bytes = u64::from(pages) * cx.client().geometry().page_bytes();
        let request = Request::Alloc { bytes, kind: AllocationKind::Session };
        let addr = match cx.daemon(OWN, request).await {
            Ok(Reply::Allocated { addr }) => addr,
            Ok(_) => return Err(unfit()),
            // There was less than the daemon thought.
            Err(Error::Full { .. } | Error::Draining { .. }) => {
                self.keeper.allowed = self.keeper.frames();
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let page = cx.client().geometry().page(addr);
        let request = Request::Resolve { page, count: pages };
        let Reply::Homes(homes) = cx.daemon(OWN, request).await? else { return Err(unfit()) };
        let client = cx.client();
        let run = Run { addr, pages: own_pages(client, page, homes)?, is_directory: directory };
        if run.pages.len() as u32 != pages {
            return Err(unexpected("own daemon", "pages of one's own"));
        }
        self.keeper.add(client, run)?;
        if directory {
            // It is announced.
            self.ask_room(cx).await?;
        }
        Ok(())
    }

    /// Asks the own daemon how much there may be, and gives back what is too much; what is next.
    async fn ask_room<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<KeeperTask> {
        let directory = self.keeper.directory.as_ref().map_or(GAddr::NULL, |run| run.addr);
        let frames = self.announce(cx, directory).await?;
        (self.keeper.allowed, self.keeper.returned) = (frames, 0);
        self.keeper.room_at = self.now.saturating_add(REPLICA_POLL_NS);
        cx.check()?;
        self.keeper.end_taken(cx.client())?;
        self.keeper.end_worn(cx.client())?;
        while let Some(spare) = self.keeper.spare(cx.client())? {
            if spare.is_directory {
                self.announce(cx, GAddr::NULL).await?;
            }
            self.give_back(cx, spare).await?;
            cx.check()?;
        }
        Ok(self.keeper.next(cx.client().geometry().page_bytes()))
    }

    /// Says where the directory is; how many frames replicas may take.
    async fn announce<M: Mem>(&self, cx: &mut impl Context<M>, directory: GAddr) -> Result<u32> {
        let home = self.keeper.home;
        match cx.daemon(OWN, Request::ReplicaRoom { home, directory }).await? {
            Reply::ReplicaRoom { frames } => Ok(frames),
            _ => Err(unfit()),
        }
    }

    async fn give_back<M: Mem>(&mut self, cx: &mut impl Context<M>, run: Run) -> Result<()> {
        let (addr, bytes) = (run.addr, run.bytes(cx.client()));
        match cx.daemon(OWN, Request::Free { addr, bytes }).await {
            // Or the daemon took the page away meanwhile.
            Ok(Reply::Freed) | Err(Error::BadFree { .. }) => Ok(()),
            Ok(_) => Err(unfit()),
            Err(error) => {
                self.keeper.have_again(run);
                Err(error)
            }
        }
    }

    /// Asks the home what to do.
    async fn poll<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<()> {
        let home = self.keeper.home;
        let link = loop {
            match cx.client().link_of(home) {
                Some(link) => break link,
                None => cx.connect(home).await?,
            }
        };
        let client = cx.client();
        let Keeper { number, gone, made, .. } = &*self.keeper;
        let room = self.keeper.room(client.geometry().page_bytes());
        let (number, rack) = (*number, client.own_rack());
        let (gone, made) = (gone.clone(), made.clone());
        self.keeper.sent.get_or_insert(self.now);
        let poll = Poll { number, rack, room, gone, made };
        match cx.daemon(link, Request::ReplicaPoll(poll)).await? {
            Reply::ReplicaOrders(orders) => self.keeper.take_orders(cx.client(), orders),
            _ => Err(unfit()),
        }
    }
}

fn unfit() -> Error {
    unexpected("daemon", "a keeper of replicas")
}

/// Where pages of the own rack are, that begin with `first`.
fn own_pages<M: Mem>(
    client: &Client<M>,
    first: PageId,
    homes: Vec<PageHome>,
) -> Result<Vec<Translation>> {
    let Reach::Mapped(view) = client.reach(OWN) else { return Ok(Vec::new()) };
    let mut pages = Vec::with_capacity(homes.len());
    for (index, home) in (0..).zip(homes) {
        let PageHome { page, frame, generation, .. } = home;
        if page.0 != first.0 + index || frame.0 >= view.layout.frame_count {
            return Err(unexpected("own daemon", "pages of one's own"));
        }
        let base = view.layout.frame_offset(frame);
        pages.push(Translation { page, generation, base, frame, link: OWN });
    }
    Ok(pages)
}

impl<M: Mem> Operation<M> for Tending<'_> {
    type Output = Tended;

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<Tended> {
        if self.is_last && !self.keeper.retire(cx.client()) {
            return Ok(Tended::Idle);
        }
        if let Some(ended) = self.work(cx).await? {
            return Ok(ended);
        }
        let next = match self.keeper.wants_room(self.now) {
            true => self.ask_room(cx).await?,
            false => self.keeper.next(cx.client().geometry().page_bytes()),
        };
        match next {
            KeeperTask::Idle => return Ok(Tended::Idle),
            KeeperTask::Poll => self.poll(cx).await?,
            KeeperTask::Work => {}
        }
        Ok(self.work(cx).await?.unwrap_or(Tended::Polled))
    }
}
