//! The client's end of a fabric that its own rack's daemon serves: work requests become orders in
//! a ring, outcomes come back in another. One queue for all channels of a handle, in the order of
//! posting; long operations are cut into pieces that are executed one after the other.
//!
//! Owns the connection numbers, the work under way and its tags. In: work requests, what the
//! daemon puts into the ring. Out: events, and whether the daemon's doorbell is to be rung. Generic
//! over memory and local buffers, so that the simulator runs the same.

use super::peers::PeerTable;
use super::work_queue::{Work, WorkQueue};
use crate::RackId;
use crate::constants::{
    FABRIC_OUTSTANDING_MAX, FABRIC_PEERS_MAX, MESSAGE_BYTES_MAX, PROXY_PIECE_BYTES_MAX,
    RING_DATA_BYTES, RING_ENTRIES,
};
use crate::error::DeathCause;
use crate::ring::{Consumer, Producer, RingError};
use crate::seam::{
    BufId, FabricEvent, Mem, PeerId, PostError, RemoteAddr, Sge, Verb, WorkRequest, WorkStatus,
};
use crate::wire::{self, ProxyOrder, ProxyOutcome, ProxyWork};
use std::collections::{BTreeMap, VecDeque};

/// Data of READs that are asked for at once, bytes: their answers fit into the ring with room for
/// messages.
const READ_BYTES_MAX: u64 = RING_DATA_BYTES as u64 / 4 * 3;

/// The local memory that work requests name.
pub trait Pieces {
    /// Copies the bytes of a piece; `to` is as long.
    fn read(&self, piece: &Sge, to: &mut [u8]);
    /// Stores the bytes of a piece; `from` is as long.
    fn write(&mut self, piece: &Sge, from: &[u8]);
}

struct ProxiedChannel {
    number: u32,
    queue: WorkQueue<Ordered>,
}

/// What has to go into the ring, in this order.
#[derive(Clone, Copy)]
enum Item {
    Open(u32, RackId),
    Close(u32),
    Work(WorkName),
}

/// A work request: its connection, and its number there.
#[derive(Clone, Copy)]
struct WorkName(PeerId, u64);

/// How far the pieces of a work request are.
struct Ordered {
    /// Bytes that were ordered.
    at: u64,
    /// Orders without an outcome.
    under_way: u32,
    /// Whether all of it was ordered.
    is_whole: bool,
    status: WorkStatus,
}

type ProxiedWork = Work<Ordered>;

/// An order without an outcome.
#[derive(Clone, Copy)]
struct OrderTag {
    work: WorkName,
    at: u64,
    read_bytes: u64,
}

/// The queue; see the module.
pub struct Queue<M: Mem> {
    rings: Option<(Producer<M>, Consumer<M>)>,
    channels: PeerTable<ProxiedChannel>,
    peers: BTreeMap<u32, PeerId>,
    numbers: u32,
    tags: [Option<OrderTag>; RING_ENTRIES as usize],
    tags_free: Vec<u8>,
    items: VecDeque<Item>,
    /// Bytes of READs that were ordered and have not come.
    read_bytes: u64,
    events: VecDeque<FabricEvent>,
    rings_bell: bool,
    message: Box<[u8]>,
    operations: u64,
}

impl<M: Mem> Default for Queue<M> {
    fn default() -> Self {
        Self {
            rings: None,
            channels: PeerTable::new(FABRIC_PEERS_MAX),
            peers: BTreeMap::new(),
            numbers: 0,
            tags: [None; RING_ENTRIES as usize],
            tags_free: (0..RING_ENTRIES as u8).rev().collect(),
            items: VecDeque::new(),
            read_bytes: 0,
            events: VecDeque::new(),
            rings_bell: false,
            message: vec![0; MESSAGE_BYTES_MAX as usize].into_boxed_slice(),
            operations: 0,
        }
    }
}

impl<M: Mem> Queue<M> {
    /// The rings of a slot that was just joined or taken up again. What was under way has ended.
    pub fn attach(&mut self, orders: Producer<M>, outcomes: Consumer<M>) {
        self.detach();
        self.rings = Some((orders, outcomes));
    }

    /// The daemon is gone: everything ends with the next poll.
    pub fn detach(&mut self) {
        self.rings = None;
        self.items.clear();
        self.tags = [None; RING_ENTRIES as usize];
        self.tags_free = (0..RING_ENTRIES as u8).rev().collect();
        self.read_bytes = 0;
        let peers: Vec<PeerId> = self.peers.values().copied().collect();
        for peer in peers {
            self.end(peer, DeathCause::Closed);
        }
    }

    /// As [`Queue::detach`]; `last` was polled before and comes first.
    pub fn detach_after(&mut self, last: Vec<FabricEvent>) {
        self.events.extend(last);
        self.detach();
    }

    /// Whether a daemon serves it, as far as is known.
    pub fn is_attached(&self) -> bool {
        self.rings.is_some()
    }

    /// Begins a connection to a rack: `Connected` or `Closed` comes with a later poll. Work may be
    /// posted at once. `None` if there are too many.
    pub fn connect(&mut self, rack: RackId) -> Option<PeerId> {
        self.numbers += 1;
        let number = self.numbers;
        let peer =
            self.channels.insert(ProxiedChannel { number, queue: WorkQueue::new(0) }).ok()?;
        self.peers.insert(number, peer);
        if self.rings.is_none() {
            self.end(peer, DeathCause::Closed);
        } else {
            self.items.push_back(Item::Open(number, rack));
        }
        Some(peer)
    }

    /// Ends a connection. Its outstanding work and `Closed` come with the next poll.
    pub fn close(&mut self, peer: PeerId) {
        let Some(number) = self.channels.get_mut(peer).map(|channel| channel.number) else {
            return;
        };
        self.end(peer, DeathCause::Closed);
        self.items.push_back(Item::Close(number));
    }

    /// Work requests outstanding on a connection; 0 if it is down.
    pub fn outstanding(&mut self, peer: PeerId) -> usize {
        self.channels.get_mut(peer).map_or(0, |channel| channel.queue.len())
    }

    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Posts a batch; how many were posted is in the error, as `Fabric::post` says.
    pub fn post(
        &mut self,
        peer: PeerId,
        batch: &[WorkRequest<'_>],
        pieces: &impl Pieces,
    ) -> Result<(), (usize, PostError)> {
        for (posted, work) in batch.iter().enumerate() {
            let channel = self.channels.get_mut(peer).ok_or((posted, PostError::Down))?;
            if channel.queue.len() >= FABRIC_OUTSTANDING_MAX as usize {
                self.order(pieces);
                return Err((posted, PostError::Busy));
            }
            let status = WorkStatus::Done(0);
            let state = Ordered { at: 0, under_way: 0, is_whole: false, status };
            let number = channel.queue.push(Work::new(work, state));
            self.items.push_back(Item::Work(WorkName(peer, number)));
        }
        self.order(pieces);
        Ok(())
    }

    /// Whether the daemon's doorbell is to be rung, because something was ordered.
    pub fn take_bell(&mut self) -> bool {
        std::mem::take(&mut self.rings_bell)
    }

    /// Makes progress and appends what happened; how many events that were.
    pub fn poll(&mut self, pieces: &mut impl Pieces, events: &mut Vec<FabricEvent>) -> usize {
        let before = events.len();
        while let Some((_, outcomes)) = &mut self.rings {
            // The message is copied, so that the queue can be changed while it is read.
            let message = &mut self.message;
            let popped = outcomes.pop(|bytes| {
                message[..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            });
            match popped {
                None => break,
                Some(Ok(bytes)) => self.on_outcome(bytes, pieces),
                // Of no use until the daemon has reset it.
                Some(Err(_)) => self.detach(),
            }
        }
        self.order(pieces);
        events.extend(self.events.drain(..));
        events.len() - before
    }

    /// Makes sure that no work under way touches a buffer for which `named` holds.
    pub fn let_go(&mut self, named: impl Fn(BufId) -> bool) {
        let mut unsent = Vec::new();
        for slot in 0..self.channels.slots() {
            let Some((peer, channel)) = self.channels.at_mut(slot) else { continue };
            let is_lent = |work: &&mut ProxiedWork| !work.discard && work.names(&named);
            for work in channel.queue.iter_mut().filter(is_lent) {
                work.discard = true;
                if !work.state.is_whole {
                    unsent.push(peer);
                }
            }
        }
        for peer in unsent {
            self.close(peer);
        }
    }

    /// Whether the next poll has something to say already.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Waits for an outcome; see `ring::wait`.
    pub fn consumer(&self) -> Option<&Consumer<M>> {
        self.rings.as_ref().map(|(_, outcomes)| outcomes)
    }

    /// Puts orders into the ring as far as there is room.
    fn order(&mut self, pieces: &impl Pieces) {
        while let Some(item) = self.items.front().copied() {
            let Some((orders, _)) = &mut self.rings else { return };
            let done = match item {
                Item::Open(channel, rack) => {
                    let order = ProxyOrder::Open { channel, rack };
                    push(orders, &mut self.message, &order, |_| 0).then_some(true)
                }
                Item::Close(channel) => {
                    let order = ProxyOrder::Close { channel };
                    push(orders, &mut self.message, &order, |_| 0).then_some(true)
                }
                Item::Work(work) => self.order_piece(work, pieces),
            };
            match done {
                Some(true) => drop(self.items.pop_front()),
                Some(false) => {}
                None => break,
            }
            self.rings_bell = true;
        }
    }

    /// Orders the next piece of a work request: whether that was the last, or `None` if there is
    /// no room.
    fn order_piece(&mut self, name: WorkName, pieces: &impl Pieces) -> Option<bool> {
        let WorkName(peer, number) = name;
        let Some(channel) = self.channels.get_mut(peer) else { return Some(true) };
        let Some(work) = channel.queue.get_mut(number) else { return Some(true) };
        if work.state.status != WorkStatus::Done(0) {
            work.state.is_whole = true;
            self.settle(peer);
            return Some(true);
        }
        let tag = *self.tags_free.last()?;
        let (at, bytes) = (work.state.at, work.next_bytes());
        let read_bytes = if work.is_read() { bytes } else { 0 };
        if read_bytes > 0 && self.read_bytes > 0 && self.read_bytes + bytes > READ_BYTES_MAX {
            return None;
        }
        let order = ProxyOrder::Work { channel: channel.number, tag, work: work.order(bytes) };
        let (orders, _) = self.rings.as_mut()?;
        let pushed = push(orders, &mut self.message, &order, |data| {
            let mut done = 0;
            for piece in work.parts(at, if work.is_read() { 0 } else { bytes }) {
                let end = done + piece.bytes as usize;
                pieces.read(&piece, &mut data[done..end]);
                done = end;
            }
            done
        });
        if !pushed {
            return None;
        }
        self.tags_free.pop();
        self.tags[tag as usize] = Some(OrderTag { work: name, at, read_bytes });
        self.read_bytes += read_bytes;
        work.state.at += bytes;
        work.state.under_way += 1;
        work.state.is_whole = work.state.at == work.bytes;
        Some(work.state.is_whole)
    }

    fn on_outcome(&mut self, bytes: usize, pieces: &mut impl Pieces) {
        let message = std::mem::take(&mut self.message);
        match wire::decode_front::<ProxyOutcome>(&message[..bytes], "daemon") {
            Ok((ProxyOutcome::Opened { channel }, _)) => {
                if let Some(peer) = self.peers.get(&channel).copied() {
                    self.events.push_back(FabricEvent::Connected { peer });
                }
            }
            Ok((ProxyOutcome::Ended { channel, cause }, _)) => {
                if let Some(peer) = self.peers.get(&channel).copied() {
                    self.end(peer, cause);
                }
            }
            Ok((ProxyOutcome::Message { channel }, data)) => {
                if let Some(peer) = self.peers.get(&channel).copied() {
                    let message = data.to_vec();
                    self.events.push_back(FabricEvent::Received { peer, message });
                }
            }
            Ok((ProxyOutcome::Done { tag, status }, data)) => {
                self.on_done(tag, status.into(), data, pieces);
            }
            Err(_) => self.detach(),
        }
        self.message = message;
    }

    fn on_done(&mut self, tag: u8, status: WorkStatus, data: &[u8], pieces: &mut impl Pieces) {
        let Some(found) = self.tags.get_mut(usize::from(tag)).and_then(Option::take) else {
            return;
        };
        self.tags_free.push(tag);
        self.read_bytes -= found.read_bytes;
        let WorkName(peer, number) = found.work;
        let channel = self.channels.get_mut(peer);
        // None if its connection was closed here.
        let Some(work) = channel.and_then(|channel| channel.queue.get_mut(number)) else { return };
        work.state.under_way -= 1;
        let mut status = status;
        if let (true, WorkStatus::Done(_)) = (work.is_read(), status) {
            if data.len() as u64 != found.read_bytes {
                status = WorkStatus::Flushed { executed: None };
            } else if !work.discard {
                let mut data = data;
                for piece in work.parts(found.at, found.read_bytes) {
                    let (part, rest) = data.split_at(piece.bytes as usize);
                    pieces.write(&piece, part);
                    data = rest;
                }
            }
        }
        if let WorkStatus::Done(_) = work.state.status {
            work.state.status = status;
        }
        self.settle(peer);
    }

    /// Completes work requests that have nothing under way and nothing to order, in order.
    fn settle(&mut self, peer: PeerId) {
        let Some(channel) = self.channels.get_mut(peer) else { return };
        let is_over = |work: &ProxiedWork| {
            let failed = !matches!(work.state.status, WorkStatus::Done(_));
            work.state.under_way == 0 && (work.state.is_whole || failed)
        };
        while channel.queue.at(0).is_some_and(is_over)
            && let Some(work) = channel.queue.pop()
        {
            self.operations += 1;
            work.tell(peer, work.state.status, &mut self.events);
        }
    }

    /// A connection is over: all its work has ended.
    fn end(&mut self, peer: PeerId, cause: DeathCause) {
        let Some(mut channel) = self.channels.remove(peer) else { return };
        self.peers.remove(&channel.number);
        self.operations += channel.queue.len() as u64;
        let status = |_: usize, work: &ProxiedWork| {
            let never = work.state.at == 0 && work.state.under_way == 0;
            Some(match work.state.status {
                WorkStatus::Done(_) => WorkStatus::Flushed { executed: never.then_some(false) },
                failed => failed,
            })
        };
        channel.queue.flush(peer, status, &mut self.events);
        self.items.retain(|item| match item {
            Item::Work(WorkName(of, _)) => *of != peer,
            Item::Open(number, _) => *number != channel.number,
            Item::Close(_) => true,
        });
        self.events.push_back(FabricEvent::Closed { peer, cause });
    }
}

impl ProxiedWork {
    /// How much the next order is of: it ends at a word of the target, which is never cut.
    fn next_bytes(&self) -> u64 {
        let left = self.bytes - self.state.at;
        let from = self.at().map_or(0, |at| (at.offset + self.state.at) % 8);
        match self.verb {
            Verb::Send => left,
            _ => left.min(PROXY_PIECE_BYTES_MAX - from),
        }
    }

    fn order(&self, bytes: u64) -> ProxyWork {
        let done = self.state.at;
        let Some(RemoteAddr { offset, key }) = self.at() else { return ProxyWork::Send };
        let offset = offset + done;
        match self.verb {
            Verb::Read(_) => ProxyWork::Read { offset, key, bytes: bytes as u32 },
            Verb::WriteImm(_, imm) if done + bytes == self.bytes => {
                ProxyWork::WriteImm { offset, key, imm }
            }
            Verb::Write(_) | Verb::WriteImm(..) => ProxyWork::Write { offset, key },
            Verb::Cas { expected, new, .. } => ProxyWork::Cas { offset, key, expected, new },
            Verb::FetchAdd { n, .. } => ProxyWork::FetchAdd { offset, key, n },
            Verb::Send => ProxyWork::Send,
        }
    }
}

/// Puts an order into the ring, with what `data` writes behind it; whether there was room.
fn push<M: Mem>(
    orders: &mut Producer<M>,
    message: &mut [u8],
    order: &ProxyOrder,
    data: impl FnOnce(&mut [u8]) -> usize,
) -> bool {
    let head = wire::encode(order, message).expect("an order is short").len();
    let behind = data(&mut message[head..]);
    match orders.push(&message[..head + behind]) {
        Ok(()) => true,
        Err(RingError::Full { .. }) => false,
        // The daemon finds out and resets it.
        Err(RingError::TooLong { .. } | RingError::Corrupt { .. }) => false,
    }
}
