//! Reads, writes and atomics that the warm path could not finish: across pages, in other racks,
//! after a page moved. A [`Transfer`] cuts pieces at page ends, copies what is mapped, posts
//! one-sided operations for the rest (many outstanding, one doorbell a batch), and repeats single
//! fragments after their page moved. One-sided atomics are posted once and never repeated blindly.
//!
//! Reads and writes are repeated after a lost connection: a write that outlives its connection may
//! be applied a second time while it is still under way (`docs/semantics.md`).

use super::locate::{Retries, unexpected};
use super::spread::{Fragment, Spread, Spreading};
use super::{Client, Context, Io, LinkId, Locate, Miss, Operation, Reach};
use crate::addr::{GAddr, Generation};
use crate::constants::FABRIC_OUTSTANDING_MAX;
use crate::error::{Error, Result};
use crate::rrpc::{Bytes, INLINE_BYTES_MAX};
use crate::seam::{
    Mem, Mutation, PostError, Race, Rare, RemoteAddr, Sge, Verb, WorkRequest, WorkStatus,
};
use crate::wire::{PageHome, Reply, Request};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// One contiguous part of a transfer; its buffer is known to the `Io` by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub addr: GAddr,
    pub bytes: u64,
}

/// Work requests that one doorbell carries at most.
pub(super) const BATCH_MAX: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Posting {
    id: u64,
    remote: RemoteAddr,
    sge: Sge,
}

/// The tables of a handle's transfers, allocated once and used by one [`Transfer`] after another.
#[derive(Debug)]
pub struct TransferTables {
    access: Access,
    round: u64,
    next_piece: u32,
    next_offset: u64,
    again: Vec<Fragment>,
    in_flight: Vec<Option<Fragment>>,
    in_flight_count: u32,
    /// What the next doorbell is for; empty between calls.
    batch: Vec<Posting>,
    /// Doorbells so far, of all transfers.
    doorbells: u64,
    /// What is being written to a page and its replicas.
    spread: Spread,
    /// Where a page was found not to be any more.
    stale: Option<PageHome>,
    retries: Retries,
}

impl Default for TransferTables {
    fn default() -> Self {
        Self {
            access: Access::Read,
            round: 0,
            next_piece: 0,
            next_offset: 0,
            again: Vec::with_capacity(FABRIC_OUTSTANDING_MAX as usize + BATCH_MAX + 1),
            in_flight: vec![None; FABRIC_OUTSTANDING_MAX as usize],
            in_flight_count: 0,
            batch: Vec::with_capacity(BATCH_MAX),
            doorbells: 0,
            spread: Spread::default(),
            stale: None,
            retries: Retries::default(),
        }
    }
}

/// A read or write of any number of pieces.
#[derive(Debug)]
pub struct Transfer<'t> {
    tables: &'t mut TransferTables,
    pieces: &'t [Piece],
}

impl<'t> Transfer<'t> {
    /// Begins a transfer. `round` tells its work requests from all others of the handle: it is
    /// below 2^55 and never used twice. Completions of the tables' earlier transfers are ignored
    /// from now on.
    pub fn new(
        tables: &'t mut TransferTables,
        round: u64,
        access: Access,
        pieces: &'t [Piece],
    ) -> Self {
        assert!(round < 1 << 55, "rounds share a word with a slot and a mark");
        tables.access = access;
        tables.round = round;
        tables.next_piece = 0;
        tables.next_offset = 0;
        tables.again.clear();
        if tables.in_flight_count > 0 {
            tables.in_flight.fill(None);
            tables.in_flight_count = 0;
        }
        tables.spread.clear();
        tables.stale = None;
        tables.retries = Retries::default();
        Self { tables, pieces }
    }

    /// Goes on with the transfer that the tables are in the middle of.
    pub fn resume(tables: &'t mut TransferTables, pieces: &'t [Piece]) -> Self {
        Self { tables, pieces }
    }
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Done,
    /// It waits for completions of its work requests.
    Posted,
    /// Nothing of it is under way, and work requests of others fill the queue: it goes on after any
    /// of them.
    NoRoom,
}

impl Transfer<'_> {
    /// Goes as far as possible without waiting for the fabric.
    pub async fn advance<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<Progress> {
        cx.end_with_locks();
        self.tables.advance(cx, self.pieces).await
    }

    /// The time is up while work requests are under way.
    pub fn time_up(waited_ms: u64) -> Error {
        Error::Timeout { peer: "the page's home rack".into(), waited_ms }
    }

    /// A work request of this handle ended, perhaps of an earlier operation.
    pub fn on_completion<M: Mem>(
        &mut self,
        client: &mut Client<M>,
        id: u64,
        status: WorkStatus,
    ) -> Result<()> {
        self.tables.on_completion(client, id, status)
    }
}

impl<M: Mem> Operation<M> for Transfer<'_> {
    type Output = ();

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<()> {
        while self.advance(cx).await? != Progress::Done {
            cx.completions(|client, id, status| self.on_completion(client, id, status)).await?;
        }
        Ok(())
    }
}

impl TransferTables {
    /// Whether a work request belongs to the transfer that the tables are in the middle of.
    pub fn owns(&self, id: u64) -> bool {
        id >> 8 == self.round
    }

    /// Writes that went to a page and its replicas, of all transfers that used the tables.
    pub fn spreads(&self) -> u64 {
        self.spread.count
    }

    /// Batches that were posted, of all transfers that used the tables.
    pub fn doorbells(&self) -> u64 {
        self.doorbells
    }

    async fn advance<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
        pieces: &[Piece],
    ) -> Result<Progress> {
        loop {
            if self.waits_for_spread(cx).await? {
                return Ok(Progress::Posted);
            }
            let (client, mut io) = cx.access()?;
            let Some(fragment) = self.take_fragment(client, pieces) else {
                let is_done = self.in_flight_count == 0;
                return Ok(if is_done { Progress::Done } else { Progress::Posted });
            };
            match self.run_mapped(client, &fragment, &mut io) {
                Ok(()) => self.retries = Retries::default(),
                Err(Miss::Shared(link)) => {
                    if client.is_apart() || !self.spread.begin(client, fragment, self.round) {
                        drop(io);
                        self.store(cx, link, fragment).await?;
                    }
                }
                Err(Miss::OneSided(link, _)) => {
                    self.again.push(fragment);
                    match self.post_batch(client, pieces, link, &mut io) {
                        Ok(()) => {}
                        Err(PostError::Busy) if self.in_flight_count == 0 => {
                            return Ok(Progress::NoRoom);
                        }
                        Err(PostError::Busy) => return Ok(Progress::Posted),
                        Err(PostError::Down) => {
                            let rack = client.rack_of(link);
                            drop(io);
                            cx.connect(rack).await?;
                        }
                    }
                }
                Err(Miss::Unknown) => {
                    let page = client.geometry().page(fragment.addr);
                    if client.translation(page).is_some() {
                        self.retries.again(fragment.addr)?;
                        self.stale = client.forget_stale(page);
                    }
                    let rest = pieces[fragment.piece as usize].bytes - fragment.offset;
                    self.again.push(fragment);
                    let mut locate = Locate::new(client, fragment.addr, rest).after(self.stale);
                    drop(io);
                    locate.run(cx).await?;
                }
                Err(Miss::CrossesPage | Miss::Apart(_)) => {
                    unreachable!("fragments end at page ends, and are no words")
                }
            }
        }
    }

    /// Goes on with a write to a shared page, if there is one; whether it waits for the fabric.
    async fn waits_for_spread<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<bool> {
        let Some(fragment) = self.spread.fragment() else { return Ok(false) };
        match self.spread.advance(cx, self.in_flight_count > 0).await? {
            Spreading::Posted => return Ok(true),
            Spreading::ByHome(link) => self.store(cx, link, fragment).await?,
            Spreading::Done => self.retries = Retries::default(),
            Spreading::Stale => self.find_again(cx.client(), fragment)?,
            Spreading::Unknown => {
                cx.client().met(Race::WriteReposted);
                self.again.push(fragment);
            }
        }
        Ok(false)
    }

    /// A fragment's page is not there any more.
    fn find_again<M: Mem>(&mut self, client: &mut Client<M>, fragment: Fragment) -> Result<()> {
        self.retries.again(fragment.addr)?;
        self.stale = client.forget_stale(client.geometry().page(fragment.addr));
        self.again.push(fragment);
        Ok(())
    }

    /// Has the daemon of a shared page write, as much as one message carries.
    async fn store<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
        link: LinkId,
        fragment: Fragment,
    ) -> Result<()> {
        let bytes = fragment.bytes.min(INLINE_BYTES_MAX.into());
        let Fragment { piece, offset, addr, .. } = fragment;
        let data = Bytes(cx.parts().1.source(piece, offset, bytes).to_vec());
        if bytes < fragment.bytes {
            let (addr, offset) = (GAddr(addr.0 + bytes), offset + bytes);
            let bytes = fragment.bytes - bytes;
            self.again.push(Fragment { addr, offset, bytes, ..fragment });
        }
        let fragment = Fragment { bytes, ..fragment };
        match cx.daemon(link, Request::Store { addr, data }).await {
            Ok(Reply::Stored(_)) => {
                cx.client().note_remote(fragment.addr, Access::Write);
                self.retries = Retries::default();
                Ok(())
            }
            Ok(_) => Err(unexpected("daemon", "a write")),
            Err(Error::Moving { .. } | Error::NotMapped { .. }) => {
                self.find_again(cx.client(), fragment)
            }
            Err(error) => Err(error),
        }
    }

    fn on_completion<M: Mem>(
        &mut self,
        client: &mut Client<M>,
        id: u64,
        status: WorkStatus,
    ) -> Result<()> {
        if !self.owns(id) {
            return Ok(());
        }
        let mark = id & 0xff;
        if mark >= FABRIC_OUTSTANDING_MAX.into() {
            return self.spread.on_completion(mark, status);
        }
        let slot = self.in_flight.get_mut(mark as usize);
        let Some(fragment) = slot.and_then(Option::take) else {
            return Ok(());
        };
        self.in_flight_count -= 1;
        match status {
            WorkStatus::Done(_) => {
                self.retries = Retries::default();
                Ok(())
            }
            WorkStatus::Flushed { .. } if client.mutated(Mutation::FlushedIsDone) => Ok(()),
            WorkStatus::Flushed { .. } if client.mutated(Mutation::DropFailedCompletion) => {
                self.in_flight_count += 1;
                Ok(())
            }
            WorkStatus::Flushed { .. } => {
                if self.access == Access::Write {
                    client.met(Race::WriteReposted);
                }
                self.again.push(fragment);
                Ok(())
            }
            WorkStatus::BadKey => {
                client.met(Race::KeyRefused);
                // Of all fragments of a page that moved, the first one makes us forget the page.
                let page = client.geometry().page(fragment.addr);
                if client.translation(page).is_some_and(|entry| entry.generation == fragment.key) {
                    self.retries.again(fragment.addr)?;
                    self.stale = client.forget_stale(page);
                }
                self.again.push(fragment);
                Ok(())
            }
            WorkStatus::BadRange => Err(Error::Protocol {
                peer: "fabric target".into(),
                reason: format!("refused {} bytes at {}", fragment.bytes, fragment.addr),
            }),
        }
    }

    fn take_fragment<M: Mem>(&mut self, client: &Client<M>, pieces: &[Piece]) -> Option<Fragment> {
        if let Some(fragment) = self.again.pop() {
            return Some(fragment);
        }
        loop {
            let piece = pieces.get(self.next_piece as usize)?;
            let left = piece.bytes - self.next_offset;
            if left == 0 {
                self.next_piece += 1;
                self.next_offset = 0;
                continue;
            }
            let addr = GAddr(piece.addr.0 + self.next_offset);
            let bytes = left.min(client.bytes_in_page(addr));
            let (piece, offset) = (self.next_piece, self.next_offset);
            let fragment = Fragment { piece, offset, addr, bytes, key: Generation(0) };
            self.next_offset += bytes;
            return Some(fragment);
        }
    }

    fn run_mapped<M: Mem>(
        &self,
        client: &Client<M>,
        fragment: &Fragment,
        io: &mut impl Io,
    ) -> std::result::Result<(), Miss> {
        let Fragment { piece, offset, addr, bytes, .. } = *fragment;
        match self.access {
            Access::Read => client.read_warm(addr, io.target(piece, offset, bytes)),
            Access::Write => client.write_warm(addr, io.source(piece, offset, bytes)),
        }
    }

    /// Posts fragments to one rack until the batch is full or another one is next.
    fn post_batch<M: Mem>(
        &mut self,
        client: &Client<M>,
        pieces: &[Piece],
        link: LinkId,
        io: &mut impl Io,
    ) -> std::result::Result<(), PostError> {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let posted = self.post_with(client, pieces, link, &mut batch, io);
        self.batch = batch;
        posted
    }

    fn post_with<M: Mem>(
        &mut self,
        client: &Client<M>,
        pieces: &[Piece],
        link: LinkId,
        batch: &mut Vec<Posting>,
        io: &mut impl Io,
    ) -> std::result::Result<(), PostError> {
        let batch_max = if client.rare(Rare::BatchOfOne) { 1 } else { BATCH_MAX };
        let full = self.in_flight_count > 0 && client.rare(Rare::SendQueueFull);
        let in_flight_max = if full { 0 } else { FABRIC_OUTSTANDING_MAX };
        while batch.len() < batch_max && self.in_flight_count < in_flight_max {
            let Some(fragment) = self.take_fragment(client, pieces) else { break };
            let Some(remote) = one_sided(client, fragment.addr, link, self.access) else {
                self.again.push(fragment);
                break;
            };
            client.note_remote(fragment.addr, self.access);
            let slot = self.in_flight.iter().position(Option::is_none);
            let slot = slot.expect("fewer are in flight than the table holds");
            let sge = io.sge(fragment.piece, fragment.offset, fragment.bytes);
            self.in_flight[slot] = Some(Fragment { key: remote.key, ..fragment });
            self.in_flight_count += 1;
            batch.push(Posting { id: self.round << 8 | slot as u64, remote, sge });
        }
        if batch.is_empty() {
            return Err(PostError::Busy);
        }
        self.doorbells += 1;
        let Err((posted, error)) = ring_doorbell(self.access, batch, link, io) else {
            self.complete_early(client, batch);
            return Ok(());
        };
        for posting in &batch[posted..] {
            let fragment = self.in_flight[(posting.id & 0xff) as usize].take();
            self.again.extend(fragment);
            self.in_flight_count -= 1;
        }
        Err(error)
    }

    /// The safeguard that a test can leave out: what was posted is not done before it completes.
    fn complete_early<M: Mem>(&mut self, client: &Client<M>, posted: &[Posting]) {
        let early = match self.access {
            Access::Read => Mutation::RecycleBufferEarly,
            Access::Write => Mutation::AcknowledgeBeforeCopy,
        };
        if client.mutated(early) {
            for posting in posted {
                self.in_flight[(posting.id & 0xff) as usize] = None;
                self.in_flight_count -= 1;
            }
        }
    }
}
const _: () = assert!(FABRIC_OUTSTANDING_MAX <= 256);

fn one_sided<M: Mem>(
    client: &Client<M>,
    addr: GAddr,
    link: LinkId,
    access: Access,
) -> Option<RemoteAddr> {
    let entry = client.translation(client.geometry().page(addr))?;
    let one_sided = matches!(client.reach(entry.link), Reach::OneSided(_));
    let shared = access == Access::Write && entry.generation.is_shared();
    (entry.link == link && one_sided && !shared).then(|| RemoteAddr {
        offset: entry.base + client.geometry().offset(addr),
        key: entry.generation,
    })
}

fn ring_doorbell(
    access: Access,
    batch: &[Posting],
    link: LinkId,
    io: &mut impl Io,
) -> std::result::Result<(), (usize, PostError)> {
    let request_of = |posting: &Posting| {
        let verb = match access {
            Access::Read => Verb::Read(posting.remote),
            Access::Write => Verb::Write(posting.remote),
        };
        (posting.id, verb)
    };
    if let [posting] = batch {
        // Most doorbells ring for one.
        let (id, verb) = request_of(posting);
        let local = std::slice::from_ref(&posting.sge);
        return io.post(link, &[WorkRequest { id, verb, local, signalled: true }]);
    }
    let requests: [WorkRequest<'_>; BATCH_MAX] = std::array::from_fn(|index| {
        // Beyond the batch: filler, which is not posted.
        let posting = &batch[index.min(batch.len() - 1)];
        let (id, verb) = request_of(posting);
        let local = std::slice::from_ref(&posting.sge);
        WorkRequest { id, verb, local, signalled: true }
    });
    io.post(link, &requests[..batch.len()])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Compare and swap; the old value says whether it was done.
    Cas {
        expected: u64,
        new: u64,
    },
    FetchAdd {
        n: u64,
    },
}

/// An atomic under way. Mapped racks: our own processor. Others: one one-sided atomic, executed by
/// a processor of the home rack, so both are atomic with each other (decision 0012).
#[derive(Debug)]
pub struct Atomic {
    addr: GAddr,
    op: AtomicOp,
    id: u64,
    /// Where the page was found not to be any more.
    stale: Option<PageHome>,
    retries: Retries,
}

impl Atomic {
    /// An atomic; `id` must differ from all other work requests of the handle.
    pub fn new(addr: GAddr, op: AtomicOp, id: u64) -> Self {
        Self { addr, op, id, stale: None, retries: Retries::default() }
    }

    fn run_mapped<M: Mem>(&self, client: &Client<M>) -> std::result::Result<u64, Miss> {
        match self.op {
            AtomicOp::Cas { expected, new } => {
                client.cas_warm(self.addr, expected, new).map(|done| done.unwrap_or_else(|old| old))
            }
            AtomicOp::FetchAdd { n } => client.fetch_add_warm(self.addr, n),
        }
    }

    fn post<M: Mem>(
        &self,
        client: &Client<M>,
        link: LinkId,
        at: RemoteAddr,
        io: &mut impl Io,
    ) -> std::result::Result<(), PostError> {
        let verb = match self.op {
            AtomicOp::Cas { expected, new } => Verb::Cas { at, expected, new },
            AtomicOp::FetchAdd { n } => Verb::FetchAdd { at, n },
        };
        let request = WorkRequest { id: self.id, verb, local: &[], signalled: true };
        io.post(link, &[request]).map_err(|(_, error)| error)?;
        client.note_remote(self.addr, Access::Write);
        Ok(())
    }

    /// Waits for the work request; the old value, unless it was not executed.
    ///
    /// Whether it was is never guessed: a connection that was lost after the post answers
    /// `OutcomeUnknown`.
    async fn posted<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<Option<u64>> {
        let status = match cx.completion(self.id).await {
            Err(Error::Timeout { .. }) => return Err(self.outcome_unknown()),
            status => status?,
        };
        let client = cx.client();
        match status {
            WorkStatus::Done(old) => Ok(Some(old)),
            WorkStatus::BadKey => {
                client.met(Race::KeyRefused);
                self.find_again(client)
            }
            WorkStatus::Flushed { executed: Some(false) } => Ok(None),
            WorkStatus::Flushed { .. } if client.mutated(Mutation::RetryAppliedTwice) => Ok(None),
            WorkStatus::Flushed { .. } => {
                client.met(Race::AtomicUnknown);
                Err(self.outcome_unknown())
            }
            WorkStatus::BadRange => Err(Error::Protocol {
                peer: "fabric target".into(),
                reason: format!("refused an atomic at {}", self.addr),
            }),
        }
    }

    /// Has the page's daemon do it; the old value, unless the page is elsewhere.
    async fn ask<M: Mem>(&mut self, cx: &mut impl Context<M>, link: LinkId) -> Result<Option<u64>> {
        let addr = self.addr;
        let request = match self.op {
            AtomicOp::Cas { expected, new } => Request::Cas { addr, expected, new },
            AtomicOp::FetchAdd { n } => Request::FetchAdd { addr, n },
        };
        match cx.daemon(link, request).await {
            Ok(Reply::Old { value }) => {
                cx.client().note_remote(addr, Access::Write);
                Ok(Some(value))
            }
            Ok(_) => Err(unexpected("daemon", "an atomic")),
            Err(Error::Moving { .. } | Error::NotMapped { .. }) => self.find_again(cx.client()),
            Err(error) => Err(error),
        }
    }

    fn find_again<M: Mem>(&mut self, client: &mut Client<M>) -> Result<Option<u64>> {
        self.retries.again(self.addr)?;
        self.stale = client.forget_stale(client.geometry().page(self.addr));
        Ok(None)
    }

    fn outcome_unknown(&self) -> Error {
        let operation = match self.op {
            AtomicOp::Cas { .. } => "cas",
            AtomicOp::FetchAdd { .. } => "fetch_add",
        };
        Error::OutcomeUnknown { operation: operation.into(), peer: "the page's home rack".into() }
    }
}

impl<M: Mem> Operation<M> for Atomic {
    type Output = u64;

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<u64> {
        cx.end_with_locks();
        loop {
            let (client, mut io) = cx.access()?;
            let old = match self.run_mapped(client) {
                Ok(old) => return Ok(old),
                Err(Miss::OneSided(link, at)) => {
                    let posted = self.post(client, link, at, &mut io);
                    let rack = client.rack_of(link);
                    drop(io);
                    match posted {
                        Ok(()) => self.posted(cx).await?,
                        Err(PostError::Busy) => cx.room().await.map(|()| None)?,
                        Err(PostError::Down) => cx.connect(rack).await.map(|()| None)?,
                    }
                }
                Err(Miss::Shared(link) | Miss::Apart(link)) => {
                    drop(io);
                    self.ask(cx, link).await?
                }
                Err(Miss::CrossesPage) => unreachable!("an aligned word does not cross a page"),
                Err(Miss::Unknown) => {
                    if client.translation(client.geometry().page(self.addr)).is_some() {
                        self.find_again(client)?;
                    }
                    let mut locate = Locate::new(client, self.addr, 8).after(self.stale);
                    drop(io);
                    locate.run(cx).await.map(|()| None)?
                }
            };
            if let Some(old) = old {
                return Ok(old);
            }
        }
    }
}
