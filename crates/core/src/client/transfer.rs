//! Reads, writes and atomics that the warm path could not finish: across pages, in other racks,
//! after a page moved. A [`Transfer`] cuts pieces at page ends, copies what is mapped, posts
//! one-sided operations for the rest (many outstanding, one doorbell a batch), and repeats single
//! fragments whose page moved. One-sided atomics are posted once and never repeated blindly.
//!
//! Reads and writes are repeated after a lost connection: a write that outlives its connection may
//! be applied a second time while it is still under way (`docs/semantics.md`).

use super::locate::{Retries, unexpected};
use super::spread::{Spread, Spreading};
use super::{Client, Io, LinkId, Locate, Miss, Need, Operation, Reach, Step};
use crate::addr::{GAddr, Generation};
use crate::constants::FABRIC_OUTSTANDING_MAX;
use crate::error::{Error, Result};
use crate::rrpc::{Bytes, INLINE_BYTES_MAX};
use crate::seam::{
    Mem, Mutation, PostError, Race, Rare, RemoteAddr, Sge, Verb, WorkRequest, WorkStatus,
};
use crate::wire::{MasterAnswer, PageHome, Reply, Request};

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

/// A part of a piece within one page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment {
    pub(super) piece: u32,
    pub(super) offset: u64,
    pub(super) addr: GAddr,
    pub(super) bytes: u64,
    /// The key that it was posted with.
    key: Generation,
}

/// Work requests that one doorbell carries at most.
const BATCH_MAX: usize = 32;

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
    locate: Option<Locate>,
    /// What is being written to a page and its replicas.
    spread: Spread,
    /// What the page's daemon is writing for us, because we cannot.
    stored: Option<Fragment>,
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
            locate: None,
            spread: Spread::default(),
            stored: None,
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
        tables.locate = None;
        tables.spread.clear();
        tables.stored = None;
        tables.stale = None;
        tables.retries = Retries::default();
        Self { tables, pieces }
    }

    /// Goes on with the transfer that the tables are in the middle of.
    pub fn resume(tables: &'t mut TransferTables, pieces: &'t [Piece]) -> Self {
        Self { tables, pieces }
    }
}

impl<M: Mem> Operation<M> for Transfer<'_> {
    type Output = ();

    fn is_access(&self) -> bool {
        true
    }

    fn step(&mut self, client: &mut Client<M>, io: &mut impl Io) -> Result<Step<()>> {
        self.tables.step(client, self.pieces, io)
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        if let Some(fragment) = self.tables.stored.take() {
            return self.tables.on_stored(client, fragment, reply);
        }
        if self.tables.spread.fragment().is_some() {
            return self.tables.spread.on_reply(client, reply);
        }
        let locate = self.tables.locate.as_mut().expect("only a search asks the daemon");
        locate.on_reply(client, reply)
    }

    fn on_master(&mut self, client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        if self.tables.spread.fragment().is_some() {
            self.tables.spread.on_master(client, answer);
            return Ok(());
        }
        let locate = self.tables.locate.as_mut().expect("only a search asks the master");
        locate.on_master(client, answer)
    }

    fn on_completion(&mut self, client: &mut Client<M>, id: u64, status: WorkStatus) -> Result<()> {
        self.tables.on_completion(client, id, status)
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

    fn step<M: Mem>(
        &mut self,
        client: &mut Client<M>,
        pieces: &[Piece],
        io: &mut impl Io,
    ) -> Result<Step<()>> {
        if let Some(locate) = &mut self.locate {
            match locate.advance(client)? {
                Step::Done(()) => self.locate = None,
                need => return Ok(need),
            }
        }
        if let Some(step) = self.go_on_spreading(client, io)? {
            return Ok(step);
        }
        loop {
            let Some(fragment) = self.take_fragment(client, pieces) else {
                let need = Step::Need(Need::Completions);
                return Ok(if self.in_flight_count == 0 { Step::Done(()) } else { need });
            };
            match self.run_mapped(client, &fragment, io) {
                Ok(()) => self.retries = Retries::default(),
                Err(Miss::Shared(link)) => {
                    if client.is_apart() || !self.spread.begin(client, fragment, self.round) {
                        return Ok(self.store(link, fragment, io));
                    }
                    if let Some(step) = self.go_on_spreading(client, io)? {
                        return Ok(step);
                    }
                }
                Err(Miss::OneSided(link, _)) => {
                    self.again.push(fragment);
                    match self.post_batch(client, pieces, link, io) {
                        Ok(()) => {}
                        Err(PostError::Busy) => return Ok(Step::Need(Need::Completions)),
                        Err(PostError::Down) => {
                            return Ok(Step::Need(Need::Link(client.rack_of(link))));
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
                    let step = locate.advance(client)?;
                    self.locate = Some(locate);
                    return Ok(step);
                }
                Err(Miss::CrossesPage | Miss::Apart(_)) => {
                    unreachable!("fragments end at page ends, and are no words")
                }
            }
        }
    }

    /// Goes on with a write to a shared page; what that needs. `None` if there is none under way.
    fn go_on_spreading<M: Mem>(
        &mut self,
        client: &mut Client<M>,
        io: &mut impl Io,
    ) -> Result<Option<Step<()>>> {
        let Some(fragment) = self.spread.fragment() else { return Ok(None) };
        match self.spread.step(client, io, self.in_flight_count > 0)? {
            Spreading::Need(need) => return Ok(Some(Step::Need(need))),
            Spreading::ByHome(link) => return Ok(Some(self.store(link, fragment, io))),
            Spreading::Done => self.retries = Retries::default(),
            Spreading::Stale => {
                self.retries.again(fragment.addr)?;
                self.stale = client.forget_stale(client.geometry().page(fragment.addr));
                self.again.push(fragment);
            }
            Spreading::Unknown => {
                client.met(Race::WriteReposted);
                self.again.push(fragment);
            }
        }
        Ok(None)
    }

    /// Has the daemon of a shared page write, as much as one message carries.
    fn store(&mut self, link: LinkId, fragment: Fragment, io: &mut impl Io) -> Step<()> {
        let bytes = fragment.bytes.min(INLINE_BYTES_MAX.into());
        let Fragment { piece, offset, addr, .. } = fragment;
        let data = Bytes(io.source(piece, offset, bytes).to_vec());
        if bytes < fragment.bytes {
            let (addr, offset) = (GAddr(addr.0 + bytes), offset + bytes);
            let bytes = fragment.bytes - bytes;
            self.again.push(Fragment { addr, offset, bytes, ..fragment });
        }
        self.stored = Some(Fragment { bytes, ..fragment });
        Step::Need(Need::Daemon(link, Request::Store { addr, data }))
    }

    fn on_stored<M: Mem>(
        &mut self,
        client: &mut Client<M>,
        fragment: Fragment,
        reply: Result<Reply>,
    ) -> Result<()> {
        match reply {
            Ok(Reply::Stored(_)) => {
                client.note_remote(fragment.addr, Access::Write);
                self.retries = Retries::default();
                Ok(())
            }
            Ok(_) => Err(unexpected("daemon", "a write")),
            Err(Error::Moving { .. } | Error::NotMapped { .. }) => {
                self.retries.again(fragment.addr)?;
                self.stale = client.forget_stale(client.geometry().page(fragment.addr));
                self.again.push(fragment);
                Ok(())
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
        let posted = self.post_with(client, pieces, (link, &mut batch), io);
        self.batch = batch;
        posted
    }

    fn post_with<M: Mem>(
        &mut self,
        client: &Client<M>,
        pieces: &[Piece],
        (link, batch): (LinkId, &mut Vec<Posting>),
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
        match error {
            PostError::Busy if self.in_flight_count == 0 => Err(PostError::Down),
            error => Err(error),
        }
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
    posted: bool,
    /// Whether the page's daemon was asked to do it, because the page is shared.
    asked: bool,
    old: Option<u64>,
    locate: Option<Locate>,
    /// Where the page was found not to be any more.
    stale: Option<PageHome>,
    retries: Retries,
}

impl Atomic {
    /// Starts an atomic; `id` must differ from all other work requests of the handle.
    pub fn new(addr: GAddr, op: AtomicOp, id: u64) -> Self {
        let retries = Retries::default();
        let (posted, asked) = (false, false);
        Self { addr, op, id, posted, asked, old: None, locate: None, stale: None, retries }
    }

    fn post<M: Mem>(
        &mut self,
        client: &Client<M>,
        link: LinkId,
        at: RemoteAddr,
        io: &mut impl Io,
    ) -> Result<Step<u64>> {
        let verb = match self.op {
            AtomicOp::Cas { expected, new } => Verb::Cas { at, expected, new },
            AtomicOp::FetchAdd { n } => Verb::FetchAdd { at, n },
        };
        let request = WorkRequest { id: self.id, verb, local: &[], signalled: true };
        match io.post(link, &[request]) {
            Ok(()) => {
                client.note_remote(self.addr, Access::Write);
                self.posted = true;
                Ok(Step::Need(Need::Completions))
            }
            Err((_, PostError::Busy)) => Ok(Step::Need(Need::Completions)),
            Err((_, PostError::Down)) => Ok(Step::Need(Need::Link(client.rack_of(link)))),
        }
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

    fn is_access(&self) -> bool {
        true
    }

    fn step(&mut self, client: &mut Client<M>, io: &mut impl Io) -> Result<Step<u64>> {
        if let Some(locate) = &mut self.locate {
            match locate.advance(client)? {
                Step::Done(()) => self.locate = None,
                Step::Need(need) => return Ok(Step::Need(need)),
            }
        }
        if let Some(old) = self.old {
            return Ok(Step::Done(old));
        }
        if self.posted {
            return Ok(Step::Need(Need::Completions));
        }
        let miss = match self.op {
            AtomicOp::Cas { expected, new } => match client.cas_warm(self.addr, expected, new) {
                Ok(Ok(old)) | Ok(Err(old)) => return Ok(Step::Done(old)),
                Err(miss) => miss,
            },
            AtomicOp::FetchAdd { n } => match client.fetch_add_warm(self.addr, n) {
                Ok(old) => return Ok(Step::Done(old)),
                Err(miss) => miss,
            },
        };
        match miss {
            Miss::OneSided(link, at) => self.post(client, link, at, io),
            Miss::Shared(link) | Miss::Apart(link) => {
                self.asked = true;
                let addr = self.addr;
                let request = match self.op {
                    AtomicOp::Cas { expected, new } => Request::Cas { addr, expected, new },
                    AtomicOp::FetchAdd { n } => Request::FetchAdd { addr, n },
                };
                Ok(Step::Need(Need::Daemon(link, request)))
            }
            Miss::CrossesPage => unreachable!("an aligned word does not cross a page"),
            Miss::Unknown => {
                let page = client.geometry().page(self.addr);
                if client.translation(page).is_some() {
                    self.retries.again(self.addr)?;
                    self.stale = client.forget_stale(page);
                }
                self.locate = Some(Locate::new(client, self.addr, 8).after(self.stale));
                self.step(client, io)
            }
        }
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        if !std::mem::take(&mut self.asked) {
            let locate = self.locate.as_mut().expect("only a search asks the daemon");
            return locate.on_reply(client, reply);
        }
        match reply {
            Ok(Reply::Old { value }) => {
                client.note_remote(self.addr, Access::Write);
                self.old = Some(value);
                Ok(())
            }
            Ok(_) => Err(unexpected("daemon", "an atomic")),
            Err(Error::Moving { .. } | Error::NotMapped { .. }) => {
                self.retries.again(self.addr)?;
                self.stale = client.forget_stale(client.geometry().page(self.addr));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn on_master(&mut self, client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        let locate = self.locate.as_mut().expect("only a search asks the master");
        locate.on_master(client, answer)
    }

    fn on_deadline(&mut self, waited_ms: u64) -> Error {
        if !self.posted {
            return Error::Timeout { peer: "the page's home rack".into(), waited_ms };
        }
        self.outcome_unknown()
    }

    // Whether the work request was executed is never guessed: a connection that was lost after
    // the post answers `OutcomeUnknown`.
    fn on_completion(&mut self, client: &mut Client<M>, id: u64, status: WorkStatus) -> Result<()> {
        if id != self.id {
            return Ok(());
        }
        self.posted = false;
        match status {
            WorkStatus::Done(old) => {
                self.old = Some(old);
                Ok(())
            }
            WorkStatus::BadKey => {
                client.met(Race::KeyRefused);
                self.retries.again(self.addr)?;
                self.stale = client.forget_stale(client.geometry().page(self.addr));
                Ok(())
            }
            WorkStatus::Flushed { executed: Some(false) } => Ok(()),
            WorkStatus::Flushed { .. } if client.mutated(Mutation::RetryAppliedTwice) => Ok(()),
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
}
