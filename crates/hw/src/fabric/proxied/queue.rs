//! The client's end of a fabric that its own rack's daemon serves: work requests become orders in
//! a ring, outcomes come back in another. One queue for all channels of a handle, in the order of
//! posting; long operations are cut into pieces that are executed one after the other.
//!
//! Owns the connection numbers, the work under way and its tags. In: work requests, what the
//! daemon puts into the ring. Out: events, and whether the daemon's doorbell is to be rung. Generic
//! over memory and local buffers, so that the simulator runs the same.

use super::super::peers::PeerTable;
use crate::ring::{Consumer, Producer, RingError};
use crate::window::Window;
use rackpool_core::RackId;
use rackpool_core::constants::{
    FABRIC_OUTSTANDING_MAX, FABRIC_PEERS_MAX, FABRIC_SGES_MAX, MESSAGE_BYTES_MAX,
    PROXY_PIECE_BYTES_MAX, RING_DATA_BYTES, RING_ENTRIES,
};
use rackpool_core::error::DeathCause;
use rackpool_core::seam::{
    BufId, FabricEvent, Mem, PeerId, PostError, RemoteAddr, Sge, Verb, WorkRequest, WorkStatus,
};
use rackpool_core::wire::{self, ProxyOrder, ProxyOutcome, ProxyWork};
use std::collections::{BTreeMap, VecDeque};

/// Data of READs that are asked for at once, bytes: their answers fit into the ring with room for
/// messages.
const READ_BYTES_MAX: u64 = RING_DATA_BYTES as u64 / 4 * 3;

/// The local memory that work requests name.
pub trait Pieces {
    /// Copies bytes of a piece, from `at` on.
    fn read(&self, piece: &Sge, at: u64, to: &mut [u8]);
    /// Stores bytes into a piece, from `at` on.
    fn write(&mut self, piece: &Sge, at: u64, from: &[u8]);
}

struct ProxiedChannel {
    number: u32,
    /// Work requests that have not completed.
    outstanding: u32,
}

/// What has to go into the ring, in this order.
#[derive(Clone, Copy)]
enum Item {
    Open(u32, RackId),
    Close(u32),
    Work(u32),
}

struct ProxiedWork {
    peer: PeerId,
    channel: u32,
    id: u64,
    verb: Verb,
    signalled: bool,
    pieces: [Sge; FABRIC_SGES_MAX],
    count: usize,
    bytes: u64,
    /// Bytes that were ordered.
    at: u64,
    /// Orders without an outcome.
    under_way: u32,
    /// Whether all of it was ordered.
    is_ordered: bool,
    status: WorkStatus,
    /// Whether its local memory is still lent.
    is_lent: bool,
}

/// An order without an outcome.
#[derive(Clone, Copy)]
struct OrderTag {
    /// `None` if its connection was closed here.
    work: Option<u32>,
    at: u64,
    read_bytes: u64,
}

/// The queue; see the module.
pub struct Queue<M: Mem = Window> {
    rings: Option<(Producer<M>, Consumer<M>)>,
    channels: PeerTable<ProxiedChannel>,
    peers: BTreeMap<u32, PeerId>,
    numbers: u32,
    works: Vec<Option<ProxiedWork>>,
    works_free: Vec<u32>,
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
            works: Vec::new(),
            works_free: Vec::new(),
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
    pub(super) fn detach_after(&mut self, last: Vec<FabricEvent>) {
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
        let peer = self.channels.insert(ProxiedChannel { number, outstanding: 0 }).ok()?;
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
        for tag in self.tags.iter_mut().flatten() {
            let work = tag.work.and_then(|work| self.works[work as usize].as_ref());
            if work.is_some_and(|work| work.peer == peer) {
                tag.work = None;
            }
        }
        self.end(peer, DeathCause::Closed);
        self.items.push_back(Item::Close(number));
    }

    /// Work requests outstanding on a connection; 0 if it is down.
    pub fn outstanding(&mut self, peer: PeerId) -> usize {
        self.channels.get_mut(peer).map_or(0, |channel| channel.outstanding as usize)
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
            if channel.outstanding >= FABRIC_OUTSTANDING_MAX {
                self.order(pieces);
                return Err((posted, PostError::Busy));
            }
            channel.outstanding += 1;
            let channel = channel.number;
            let mut local = [Sge { buf: BufId(0), offset: 0, bytes: 0 }; FABRIC_SGES_MAX];
            local[..work.local.len()].copy_from_slice(work.local);
            let made = ProxiedWork {
                peer,
                channel,
                id: work.id,
                verb: work.verb,
                signalled: work.signalled,
                pieces: local,
                count: work.local.len(),
                bytes: work.local.iter().map(|piece| piece.bytes).sum(),
                at: 0,
                under_way: 0,
                is_ordered: false,
                status: WorkStatus::Done(0),
                is_lent: true,
            };
            let index = self.works_free.pop().unwrap_or_else(|| {
                self.works.push(None);
                self.works.len() as u32 - 1
            });
            self.works[index as usize] = Some(made);
            self.items.push_back(Item::Work(index));
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
        for work in self.works.iter_mut().flatten() {
            let is_named = work.pieces[..work.count].iter().any(|piece| named(piece.buf));
            if !is_named || !work.is_lent {
                continue;
            }
            work.is_lent = false;
            if !work.is_ordered {
                unsent.push(work.peer);
            }
        }
        for peer in unsent {
            self.close(peer);
        }
    }

    /// Whether the next poll has something to say already.
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Waits for an outcome; see `ring::wait`.
    pub(super) fn consumer(&self) -> Option<&Consumer<M>> {
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
                Item::Work(index) => self.order_piece(index, pieces),
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
    fn order_piece(&mut self, index: u32, pieces: &impl Pieces) -> Option<bool> {
        let Some(work) = &mut self.works[index as usize] else { return Some(true) };
        if work.status != WorkStatus::Done(0) {
            work.is_ordered = true;
            self.finish(index);
            return Some(true);
        }
        let tag = *self.tags_free.last()?;
        let bytes = work.next_bytes();
        let is_read = matches!(work.verb, Verb::Read(_));
        if is_read && self.read_bytes > 0 && self.read_bytes + bytes > READ_BYTES_MAX {
            return None;
        }
        let order = ProxyOrder::Work { channel: work.channel, tag, work: work.order(bytes) };
        let (orders, _) = self.rings.as_mut()?;
        let pushed = push(orders, &mut self.message, &order, |data| {
            if is_read {
                return 0;
            }
            work.gather(pieces, &mut data[..bytes as usize]);
            bytes as usize
        });
        if !pushed {
            return None;
        }
        self.tags_free.pop();
        let at = work.at;
        let read_bytes = if is_read { bytes } else { 0 };
        self.tags[tag as usize] = Some(OrderTag { work: Some(index), at, read_bytes });
        self.read_bytes += read_bytes;
        work.at += bytes;
        work.under_way += 1;
        work.is_ordered = work.at == work.bytes;
        Some(work.is_ordered)
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
        let Some(index) = found.work else { return };
        let work = self.works[index as usize].as_mut().expect("a tag names work under way");
        work.under_way -= 1;
        let mut status = status;
        if let (Verb::Read(_), WorkStatus::Done(_)) = (work.verb, status) {
            if data.len() as u64 != found.read_bytes {
                status = WorkStatus::Flushed { executed: None };
            } else if work.is_lent {
                work.scatter(found.at, data, pieces);
            }
        }
        if let WorkStatus::Done(_) = work.status {
            work.status = status;
        }
        self.finish(index);
    }

    /// Completes a work request that has nothing under way and nothing to order.
    fn finish(&mut self, index: u32) {
        let work = self.works[index as usize].as_ref().expect("only called for work");
        let failed = !matches!(work.status, WorkStatus::Done(_));
        if work.under_way > 0 || !work.is_ordered && !failed {
            return;
        }
        let work = self.works[index as usize].take().expect("looked at above");
        if !work.is_ordered {
            self.items.retain(|item| !matches!(item, Item::Work(of) if *of == index));
        }
        self.works_free.push(index);
        if let Some(channel) = self.channels.get_mut(work.peer) {
            channel.outstanding -= 1;
        }
        self.operations += 1;
        if work.signalled || failed {
            let (peer, id, status) = (work.peer, work.id, work.status);
            self.events.push_back(FabricEvent::Completed { peer, id, status });
        }
    }

    /// A connection is over: all its work has ended.
    fn end(&mut self, peer: PeerId, cause: DeathCause) {
        let Some(channel) = self.channels.remove(peer) else { return };
        self.peers.remove(&channel.number);
        for index in 0..self.works.len() {
            let Some(work) = self.works[index].take_if(|work| work.peer == peer) else { continue };
            let never = work.at == 0 && work.under_way == 0;
            let executed = never.then_some(false);
            let status = match work.status {
                WorkStatus::Done(_) => WorkStatus::Flushed { executed },
                failed => failed,
            };
            self.works_free.push(index as u32);
            self.operations += 1;
            self.events.push_back(FabricEvent::Completed { peer, id: work.id, status });
        }
        let works = &self.works;
        self.items.retain(|item| match item {
            Item::Work(index) => works[*index as usize].is_some(),
            Item::Open(number, _) => *number != channel.number,
            Item::Close(_) => true,
        });
        for tag in self.tags.iter_mut().flatten() {
            tag.work = tag.work.filter(|work| works[*work as usize].is_some());
        }
        self.events.push_back(FabricEvent::Closed { peer, cause });
    }
}

impl ProxiedWork {
    fn remote(&self) -> Option<RemoteAddr> {
        match self.verb {
            Verb::Read(at) | Verb::Write(at) | Verb::WriteImm(at, _) => Some(at),
            Verb::Cas { at, .. } | Verb::FetchAdd { at, .. } => Some(at),
            Verb::Send => None,
        }
    }

    /// How much the next order is of: it ends at a word of the target, which is never cut.
    fn next_bytes(&self) -> u64 {
        let left = self.bytes - self.at;
        let from = self.remote().map_or(0, |at| (at.offset + self.at) % 8);
        match self.verb {
            Verb::Send => left,
            _ => left.min(PROXY_PIECE_BYTES_MAX - from),
        }
    }

    fn order(&self, bytes: u64) -> ProxyWork {
        match self.verb {
            Verb::Read(RemoteAddr { offset, key }) => {
                ProxyWork::Read { offset: offset + self.at, key, bytes: bytes as u32 }
            }
            Verb::WriteImm(RemoteAddr { offset, key }, imm) if self.at + bytes == self.bytes => {
                ProxyWork::WriteImm { offset: offset + self.at, key, imm }
            }
            Verb::Write(at) | Verb::WriteImm(at, _) => {
                ProxyWork::Write { offset: at.offset + self.at, key: at.key }
            }
            Verb::Send => ProxyWork::Send,
            Verb::Cas { at: RemoteAddr { offset, key }, expected, new } => {
                ProxyWork::Cas { offset, key, expected, new }
            }
            Verb::FetchAdd { at: RemoteAddr { offset, key }, n } => {
                ProxyWork::FetchAdd { offset, key, n }
            }
        }
    }

    fn gather(&self, pieces: &impl Pieces, to: &mut [u8]) {
        self.each(self.at, to.len() as u64, |piece, at, range| {
            pieces.read(piece, at, &mut to[range]);
        });
    }

    fn scatter(&self, at: u64, from: &[u8], pieces: &mut impl Pieces) {
        self.each(at, from.len() as u64, |piece, at, range| pieces.write(piece, at, &from[range]));
    }

    /// Goes over `bytes` bytes of the local pieces, from `at` on.
    fn each(&self, at: u64, bytes: u64, mut f: impl FnMut(&Sge, u64, std::ops::Range<usize>)) {
        let (mut begin, mut done) = (0, 0);
        for piece in &self.pieces[..self.count] {
            let from = (at + done).max(begin);
            let end = begin + piece.bytes;
            if from < end && done < bytes {
                let count = (end - from).min(bytes - done);
                f(piece, from - begin, done as usize..(done + count) as usize);
                done += count;
            }
            begin = end;
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
