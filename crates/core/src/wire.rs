//! Every message between processes. Clients, daemons and the master share these types and nothing
//! else. Encoded with postcard: fixed meaning on every host, bounded length, no pointer.
//! A receiver decodes into these types once and checks the numbers before it uses them.

mod agent;
mod audit;
mod counts;
mod join;
mod loan;
mod proxied;
mod stats;

pub use crate::addr::PageHome;
pub use crate::member::{FabricKind, RackInfo};
pub use agent::{AgentEvent, AgentRequest, HostProcess, HostTag};
pub use audit::{AllocationPiece, AuditReply, AuditRequest, ChangingSession, KindTotal};
pub use counts::{AnswerCounts, CallCounts, RequestCounts};
pub use join::{ControlHello, ControlReply, RegionInfo, RemoteReply, RemoteRequest};
pub use loan::{LentGroup, LoanReply, LoanRequest};
pub use proxied::{
    ProxyOrder, ProxyOutcome, ProxyStatus, ProxyWork, Routed, channel_of, decode_front, reroute,
};
pub use stats::{DaemonStats, MetadataChecks};

use crate::addr::{FrameIndex, GAddr, Generation, PageId, RackId, SessionId};
use crate::constants::MESSAGE_BYTES_MAX;
use crate::counts::Refusals;
use crate::error::{Error, Result};
use crate::heat::PageUse;
use crate::layout::AllocationKind;
use crate::member::{DrainReport, MemberAnswer, MemberCall, RackState};
use crate::placement::{LogPiece, Order};
use crate::policy::{BalanceRecord, Decided, DecisionRecord, MoveAsk, MoveHistory};
use crate::relocation::{Relocation, RelocationQuery};
use crate::replica::{Orders, Poll, Sharers};
use crate::rrpc::{Bytes, Fetch, Fetched};
use crate::tier::{Tier, TierReport};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;

/// Version of the messages here; said first on every connection.
pub const WIRE_VERSION: u32 = 21;

/// What a page's home knows of it and hands over with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageMetadata {
    /// log2 of the object size of a slab page; 0 for a whole page.
    pub shift: u8,
    /// What its allocations are for.
    pub kind: AllocationKind,
    /// Which objects of a slab page live, one bit each; at most `MOVE_BITMAP_WORDS_MAX` words.
    pub objects: Vec<u64>,
    /// The last fencing token of the old home: those of the new one are greater.
    pub lock_token: u64,
    /// How often the page moved, as [`MoveHistory::leaving`] says.
    pub history: MoveHistory,
    /// Which page of a run it is; 0 for the first, and for a page alone.
    pub run_index: u32,
    /// Of a run's first page: how many pages the run has beside it.
    pub run_more: u32,
}

/// A request of a client handle to a daemon, in a ring or by SEND. `seq` counts from 1 within a
/// session. A session has at most one mutating request under way; repeating its `seq` repeats the
/// answer, never the effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestFrame {
    pub seq: u64,
    pub request: Request,
}

/// What a client asks of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Homes of up to `RESOLVE_PAGES_MAX` consecutive pages, as far as they are in this rack.
    Resolve {
        page: PageId,
        count: u32,
    },
    /// Allocates in this rack, zeroed: a slab object up to half a page, else whole pages in a row.
    Alloc {
        bytes: u64,
        /// What for: whether it comes back when the session ends, or is found by audits.
        kind: AllocationKind,
    },
    /// Frees what `Alloc` gave, with the same size.
    Free {
        /// What `Alloc` answered.
        addr: GAddr,
        bytes: u64,
    },
    /// Allocates in this rack and stores the address into a word of this rack, in one step that
    /// happens or does not. The memory is in use at once: it never comes back by itself. Until
    /// the answer, others may read the word and must not change it.
    AllocInto {
        /// The word: aligned to 8 bytes, in memory that is allocated here, 0.
        word: GAddr,
        bytes: u64,
    },
    /// Frees what a word of this rack names, in this rack, and sets the word to 0, in one step
    /// under the same rules.
    FreeFrom {
        word: GAddr,
        /// What was asked for when it was allocated.
        bytes: u64,
    },
    /// Compare and swap of an aligned word of this rack by the daemon.
    Cas {
        addr: GAddr,
        expected: u64,
        new: u64,
    },
    /// Wrapping add to an aligned word of this rack by the daemon.
    FetchAdd {
        addr: GAddr,
        n: u64,
    },
    /// Locks lines of this rack's memory, now or when it is the asker's turn.
    Lock {
        /// The first, the lock's name: aligned to `LOCK_ALIGN_BYTES`, in memory that is allocated
        /// here.
        addr: GAddr,
        /// How many, all in one page.
        lines: u32,
        /// Whether it is to be held alone.
        write: bool,
        /// How long to wait for it, ms.
        wait_ms: u64,
    },
    Unlock {
        addr: GAddr,
        /// The token of the grant; 0 for any that this session has.
        token: u64,
    },
    /// Whether this session still holds a lock.
    CheckLock {
        addr: GAddr,
        /// The token of the grant.
        token: u64,
    },
    /// To the rack where a page shall go: a frame for it. Repeated by the same session it gets the
    /// same frame. The frame is given up with the session, or by `MoveSettle`.
    MoveIn {
        page: PageId,
    },
    /// To a page's home: the page is shut, its users are waited for, and only the asker can read it
    /// until `MoveSettle`, or until the asker has taken too long.
    MoveOut {
        page: PageId,
        /// The generation of its frame.
        generation: Generation,
    },
    /// To the rack of the new frame: the page's bytes are there. The daemon has the directory name
    /// it as the home, unless the old home has taken the page back.
    MoveCommit {
        /// The old home, as `BeginMove` answered.
        from: PageHome,
        /// The new frame's generation, as `MoveIn` answered.
        generation: Generation,
        /// What the old home knows of the page.
        keep: PageMetadata,
    },
    /// To either rack: the move is over, done or given up. The old home asks the directory where
    /// the page is and opens it again or frees its frame; the new one gives up a frame that was not
    /// committed.
    MoveSettle {
        page: PageId,
    },
    /// To the own rack's daemon: use of pages by this handle since it said so last, of at most
    /// `USE_PAGES_MAX`. A hint: the handle does not wait for the answer.
    NoteUse {
        /// The pages, each once.
        pages: Vec<PageUse>,
    },
    /// To the own rack's daemon, by the worker that moves pages for it.
    NextMove(Box<RelocationQuery>),
    /// To the page's home: whether it may go.
    DecideMove(Box<MoveAsk>),
    /// What was decided about pages of this rack, from a number on.
    Decisions {
        /// The first of interest; decisions count from 1 in each process.
        from: u64,
    },
    Stats,
    /// The clients that have a session, from a record on.
    Sessions {
        /// The first record of interest.
        from: u32,
    },
    /// Nothing; answered with `Pong`.
    Ping,
    /// Bytes of this rack's memory, or an object there.
    Fetch(Fetch),
    /// Bytes into this rack's memory, within one page. As with a one-sided write, repeating it
    /// writes them again.
    Store {
        addr: GAddr,
        data: Bytes,
    },
    /// What came of the last pass over the pages of a rack that is being drained.
    DrainReport,
    /// What was decided about the balance of the pool, from a number on.
    Balances {
        /// The first of interest; decisions count from 1 in each process.
        from: u64,
    },
    /// To the home of an address: whether address and size name an allocation there.
    CheckFree {
        addr: GAddr,
        /// What was asked for when it was allocated.
        bytes: u64,
    },
    /// As `FreeFrom`, after that was answered with `Apart` and the memory's home has said that
    /// address and size name an allocation: the word becomes 0 in the same step in which this rack
    /// notes that it owes the free.
    FreeApart {
        word: GAddr,
        /// What it has to hold.
        addr: GAddr,
        /// What was asked for when it was allocated.
        bytes: u64,
    },
    /// To the own rack's daemon, by the keeper of replicas of `home`'s pages: how many frames it
    /// may have for them, and where its directory is for the rack's clients to look at.
    ReplicaRoom {
        /// The home of the pages.
        home: RackId,
        /// The directory; null for none.
        directory: GAddr,
    },
    /// To a home, by a keeper of replicas of its pages. Answered when there is something to do, or
    /// in time for the lease.
    ReplicaPoll(Poll),
    /// To a page's home: a replica of it is to be made in a rack.
    Replicate {
        page: PageId,
        to: RackId,
    },
    /// To a page's home: it is to have no replicas for a while. Answered when it has none.
    Recall {
        page: PageId,
    },
    /// To a page's home, by a client that wants to write to it: where its replicas are.
    Sharers {
        page: PageId,
    },
    /// About the allocations of the rack.
    Audit(AuditRequest),
    /// To the home of an address: frees an allocation of the kind `Table` that has lived since a
    /// watch began.
    Reclaim {
        addr: GAddr,
        /// The number of the watch.
        watch: u64,
    },
    /// As `Alloc`, from one of this rack's memories or not at all.
    AllocIn {
        bytes: u64,
        kind: AllocationKind,
        tier: Tier,
    },
    /// To the home of an address: what was written to a range within one page is to outlive a loss
    /// of power. Answered when it does.
    Persist {
        addr: GAddr,
        bytes: u64,
    },
    /// To the daemon of a slot: about the objects that its handle hands out itself.
    Loan(LoanRequest),
}

impl Request {
    /// Whether repeating it blindly would matter.
    pub fn is_mutating(&self) -> bool {
        matches!(
            self,
            Request::Alloc { .. }
                | Request::AllocIn { .. }
                | Request::Free { .. }
                | Request::AllocInto { .. }
                | Request::FreeFrom { .. }
                | Request::FreeApart { .. }
                | Request::Reclaim { .. }
                | Request::Cas { .. }
                | Request::FetchAdd { .. }
                | Request::Lock { .. }
                | Request::Unlock { .. }
        )
    }

    /// Whether it touches memory that a lock may protect: it is not sent after a loss of locks has
    /// become known since its operation began.
    pub fn is_access(&self) -> bool {
        matches!(
            self,
            Request::AllocInto { .. }
                | Request::FreeFrom { .. }
                | Request::FreeApart { .. }
                | Request::Cas { .. }
                | Request::FetchAdd { .. }
                | Request::Fetch(_)
                | Request::Store { .. }
        )
    }
}

/// A daemon's answer; `seq` is the request's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyFrame {
    pub seq: u64,
    pub reply: Result<Reply>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To `Resolve`: the pages that live here; others are missing.
    Homes(Vec<PageHome>),
    Allocated {
        addr: GAddr,
    },
    /// To `Free`, `FreeFrom`, `FreeApart` and `Reclaim`.
    Freed,
    /// To `Cas` and `FetchAdd`: the value before.
    Old {
        value: u64,
    },
    Locked {
        /// The fencing token: greater than all that this rack's region gave before.
        token: u64,
    },
    Held {
        /// Whether the session held the lock under that token.
        held: bool,
    },
    Room {
        frame: FrameIndex,
        /// Its generation: the key under which it is filled.
        generation: Generation,
    },
    /// To `MoveOut`: no other process touches the page any more.
    Shut {
        /// The key under which it is read.
        key: Generation,
        keep: PageMetadata,
    },
    /// To `MoveCommit`: the new home.
    Moved(PageHome),
    /// To `MoveSettle`: whether the page is at home in this rack now.
    Settled {
        here: bool,
    },
    Noted,
    /// To `NextMove`: `None` if the rack wants nothing now.
    NextMove(Option<Relocation>),
    Decided(Decided),
    /// To `Decisions`: at most `DECISIONS_ANSWER_MAX`, with their numbers; empty after the last.
    Decisions(Vec<(u64, DecisionRecord)>),
    Stats(Box<DaemonStats>),
    /// To `Sessions`: at most `SESSIONS_ANSWER_MAX`, by record; empty after the last.
    Sessions(Vec<SessionState>),
    Pong,
    Fetched(Fetched),
    /// To `Store`: where the page is.
    Stored(PageHome),
    DrainReport(DrainReport),
    /// To `Balances`: at most `BALANCES_ANSWER_MAX`, with their numbers; empty after the last.
    Balances(Vec<(u64, BalanceRecord)>),
    /// To `FreeFrom`: what the word names is not at home in this rack. Nothing was done.
    Apart {
        /// What the word holds.
        addr: GAddr,
    },
    /// To `CheckFree`: there is such an allocation.
    Known,
    /// To `ReplicaRoom`: how many frames may be used in all.
    ReplicaRoom {
        frames: u32,
    },
    ReplicaOrders(Orders),
    /// To `Replicate`: it will be made. To `Recall`: there is none.
    Replicas,
    Sharers(Sharers),
    Audit(AuditReply),
    /// To `Stats`, of a rack with several memories.
    TieredStats(Box<DaemonStats>, TierReport),
    /// To `Persist`: it outlives a loss of power from now on.
    Persisted,
    Loan(LoanReply),
}

/// A session as its daemon sees it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionState {
    /// Its record: the slot of a client of the rack's host, above all slots for others.
    pub record: u32,
    /// Process id, as the kernel says for clients of the host and as they say themselves for
    /// others.
    pub pid: u32,
    /// Whether the client is connected. Of a remote client with an ended connection this says, once
    /// it is false, that nothing it sent will be executed any more.
    pub connected: bool,
}

/// A request to the master; `id` counts within the connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterRequest {
    pub id: u64,
    pub call: MasterCall,
}

impl MasterRequest {
    pub fn encode(&self) -> Vec<u8> {
        encode_vec(self)
    }
}

/// What clients and daemons ask of the master. Every command can be repeated without harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterCall {
    /// First call of a connection.
    Hello {
        version: u32,
    },
    /// A daemon joins with its region, or joins again after a restart of either side.
    JoinDaemon(RackInfo),
    /// A client joins; it leaves when its connection closes.
    JoinClient {
        session: SessionId,
        rack: RackId,
    },
    /// A daemon or client is alive; daemons say how many frames are free.
    Heartbeat {
        /// Free frames (0 from clients).
        frames_free: u32,
        /// How often the rack's memory was accessed since the daemon started, as far as it knows:
        /// requests and operations of the fabric, not loads and stores.
        accesses: u64,
    },
    /// A range of page ids that no other daemon gets.
    LeasePageIds {
        count: u64,
    },
    /// Pages have a home. From the daemon of that rack, before any client learns of the pages.
    CommitPages {
        /// The homes; at most `COMMIT_PAGES_MAX`.
        homes: Vec<PageHome>,
    },
    /// Pages are freed; the directory forgets them if they are homed in `rack`.
    RemovePages {
        rack: RackId,
        /// The pages; at most `COMMIT_PAGES_MAX`.
        pages: Vec<PageId>,
    },
    /// Asks for the right to move a page to a rack; refused with `Stays` while another move of the
    /// page is under way. Answered with the page's home. The right ends with the move, with the
    /// connection, or after a lease; it orders moves, the directory decides them.
    BeginMove {
        page: PageId,
        to: RackId,
    },
    /// A page's home changes, if it is `from` now. Answered with the page's home afterwards. From
    /// the daemon of the rack `to`; `from` and `to` may differ in the generation only, so that the
    /// old home takes the page back and no other answer counts any more.
    MovePage {
        /// What must be the home; of the same page.
        from: PageHome,
        /// What shall be the home.
        to: PageHome,
    },
    /// Homes of consecutive pages, with everything needed for a one-sided access.
    Resolve {
        page: PageId,
        /// How many; at most `RESOLVE_PAGES_MAX`.
        count: u32,
    },
    /// The racks of the pool: for people, since the answer grows with the cluster.
    Racks,
    /// One rack of the pool; `NoSuchRack` if it never joined.
    Rack {
        rack: RackId,
    },
    /// A rack with room for an allocation, other than `own`, by the placement policy.
    PickRack {
        own: RackId,
        bytes: u64,
        /// Racks that were tried and were full.
        tried: Vec<RackId>,
    },
    /// The address under a name; null if there is none.
    GetRoot {
        name: String,
    },
    /// Names and their addresses, in the order of the names.
    Roots {
        /// Only names behind this one; empty for all.
        after: String,
    },
    /// Sets a name's address if it is `expected` now (or is `addr` already).
    SetRoot {
        name: String,
        /// What must be there; null for nothing.
        expected: GAddr,
        /// What shall be there; null removes the name.
        addr: GAddr,
    },
    Stats,
    /// What led to choices of racks, from this byte of its log on.
    Placements(u64),
    /// About racks that come and go.
    Member(MemberCall),
    /// From the daemon that frees a run, before it removes the run's first page: the directory
    /// forgets these pages too, wherever they are, and their homes are told to free them.
    OrphanPages {
        /// The run's first page, at home in the asker's rack.
        first: PageId,
        /// Later pages of the run; at most `COMMIT_PAGES_MAX`.
        pages: Vec<PageId>,
    },
    /// Allocations that a word of the asker's rack named until it was freed there: their homes are
    /// told to free them. Numbers grow in the life of a region; the master takes each once.
    FreeElsewhere {
        /// In the order of their numbers; at most `DEBTS_MAX`.
        debts: Vec<DeferredFree>,
    },
    /// From a daemon: what it is to free for others, as soon as there is something. Answered then,
    /// and a later one of the same connection takes its place.
    NextOrphans,
    /// From a daemon: it has noted these and frees them; the numbers of `Orphans`.
    OrphansTaken {
        /// At most `DUES_MAX`.
        orphans: Vec<DeferredFree>,
    },
    /// Answered with `Done` as soon as no page of a range of addresses is at home anywhere, and
    /// none is left to be freed.
    AwaitGone {
        addr: GAddr,
        bytes: u64,
    },
}

/// An allocation that is to be freed by its home; no process knows its address any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeferredFree {
    /// A number that no other has: of the debtor's region to the master, of the pool from there.
    pub id: u64,
    pub addr: GAddr,
    /// What was asked for when it was allocated.
    pub bytes: u64,
}

/// The master's answer, with its term and the log index that it reflects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterReply {
    pub id: u64,
    pub term: u64,
    pub index: u64,
    pub answer: Result<MasterAnswer>,
}

impl MasterReply {
    pub fn encode(&self) -> Vec<u8> {
        encode_vec(self)
    }

    /// Whether racks are described in it: its length grows with their number.
    pub fn describes_racks(&self) -> bool {
        matches!(self.answer, Ok(MasterAnswer::Rack(_) | MasterAnswer::Racks(_)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterAnswer {
    Done,
    Welcome {
        pool_id: [u64; 2],
        lease_ms: u64,
        /// When allocations that name no rack ask the own one.
        order: Order,
    },
    Joined {
        pool_id: [u64; 2],
        lease_ms: u64,
        /// Pages of this rack that were on another region and are lost.
        pages_lost: u64,
    },
    PageIds {
        first: PageId,
        count: u64,
    },
    /// To `Resolve`: one entry a page asked for. To `BeginMove` and `MovePage`: one.
    Homes(Vec<Resolved>),
    Racks(Vec<RackInfo>),
    Rack(RackInfo),
    /// To `GetRoot` and `SetRoot`: the address under the name now.
    Root(GAddr),
    /// To `Roots`: at most `ROOTS_ANSWER_MAX`; empty after the last.
    Roots(Vec<(String, GAddr)>),
    Stats(Box<MasterStats>),
    Placements(LogPiece),
    /// To `Member`, and to a daemon's `Heartbeat`.
    Member(MemberAnswer),
    Orphans {
        /// Pages of freed runs: freed and forgotten by `RemovePages`.
        pages: Vec<PageId>,
        /// Allocations: taken by `OrphansTaken`, then freed.
        allocations: Vec<DeferredFree>,
    },
}

impl MasterAnswer {
    /// When allocations that name no rack ask the own one, if this is a welcome.
    pub fn order(&self) -> Option<Order> {
        match self {
            MasterAnswer::Welcome { order, .. } => Some(*order),
            _ => None,
        }
    }
}

/// What a call is answered with, as its own type; another answer breaks the protocol.
macro_rules! answers {
    ($($name:ident: $variant:ident($type:ty),)*) => {
        impl MasterAnswer {
            $(pub fn $name(self) -> Result<$type> {
                match self {
                    MasterAnswer::$variant(it) => Ok(it),
                    other => Err(Error::Protocol {
                        peer: "master".into(),
                        reason: format!("unexpected answer {other:?}"),
                    }),
                }
            })*
        }
    };
}

answers! {
    racks: Racks(Vec<RackInfo>),
    rack: Rack(RackInfo),
    root: Root(GAddr),
    roots: Roots(Vec<(String, GAddr)>),
    stats: Stats(Box<MasterStats>),
    placements: Placements(LogPiece),
    member: Member(MemberAnswer),
}

/// One page in the answer to `Resolve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resolved {
    Home(PageHome),
    Unmapped,
    Lost(RackId),
}

impl Resolved {
    pub fn is_lost(&self) -> bool {
        matches!(self, Resolved::Lost(_))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterStats {
    pub pages: u64,
    /// Of these, on regions that are gone.
    pub pages_lost: u64,
    pub roots: u64,
    pub daemons: u64,
    pub clients: u64,
    /// Requests answered since this process started.
    pub requests: u64,
    /// Commands applied since the pool was made.
    pub index: u64,
    /// Calls by kind since this process started.
    pub calls_by_kind: CallCounts,
    /// Refusals by the word of their error since this process started.
    pub refused: Refusals,
    /// The name of the placement policy.
    pub placement: String,
    /// Racks that joined once and do not just serve.
    pub standings: BTreeMap<u16, RackState>,
    /// Whether changes are refused because the state's disk is full.
    pub storage_full: bool,
}

/// Encodes a message into `buffer`; the encoded part.
pub fn encode<'b, T: Serialize>(message: &T, buffer: &'b mut [u8]) -> Result<&'b mut [u8]> {
    let limit = buffer.len() as u64;
    postcard::to_slice(message, buffer)
        .map_err(|_| Error::Busy { what: "message buffer (bytes)".into(), limit })
}

/// Encodes a message of any length, for control connections.
pub fn encode_vec<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_stdvec(message).expect("wire types have no value that postcard refuses")
}

/// Decodes a message from `peer`; trailing bytes are an error.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], peer: &str) -> Result<T> {
    match decode_front(bytes, peer)? {
        (message, []) => Ok(message),
        (_, rest) => Err(broken(peer, format!("{} bytes too many", rest.len()))),
    }
}

fn broken(peer: &str, reason: String) -> Error {
    Error::Protocol { peer: peer.into(), reason }
}

/// A buffer that every message between client and daemon fits into.
pub fn message_buffer() -> Box<[u8]> {
    vec![0; MESSAGE_BYTES_MAX as usize].into_boxed_slice()
}

#[cfg(test)]
mod tests;
