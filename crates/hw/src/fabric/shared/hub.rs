//! What the threads of a client share, under one lock: the endpoint, its connections, the member
//! that each channel in them and each work request under way belongs to, and the threads that
//! sleep.
//!
//! In: what members post, connect, close and take back. Out: events in the inboxes of members,
//! which are woken. Called by the members' endpoints with the lock held; nothing here waits.
//!
//! Ownership rule: a work request names memory of its member only while it is in `works` with
//! `count` above 0. Before that memory goes, its member disowns it here.

use super::super::buffers::Buffers;
use super::super::peers::PeerTable;
use super::super::tcp::Disowned;
use super::super::{FabricError, tcp};
use crate::event::WakeEvent;
use rackpool_core::constants::{FABRIC_OUTSTANDING_MAX, FABRIC_PEERS_MAX, FABRIC_SGES_MAX};
use rackpool_core::error::DeathCause;
use rackpool_core::seam::{
    BufId, Fabric, FabricEvent, Nanos, PeerId, PostError, Sge, Verb, WorkRequest, WorkStatus,
};
use rackpool_core::wire::{self, RemoteReply, RemoteRequest, Routed};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Messages that wait for one member, while others drive the endpoint for it: far more than its
/// requests under way have answers.
const MESSAGES_MAX: usize = 8 * FABRIC_OUTSTANDING_MAX as usize;

/// What others say to a member.
pub(super) struct Seat {
    /// Its inbox is not empty.
    pub(super) news: AtomicBool,
    pub(super) wake: WakeEvent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// It runs, or was notified.
    Awake,
    /// It sleeps on the sockets: the watch.
    Watching,
    /// It sleeps until it is notified.
    Following,
    /// Its application sleeps on its descriptor, which looks at the sockets as well.
    Outside,
}

pub(super) struct Member {
    seat: Arc<Seat>,
    channels: PeerTable<Channel>,
    inbox: Vec<FabricEvent>,
    messages: usize,
    /// Work requests that gave their memory back to the member since the inbox was taken.
    released: u32,
    /// Whether a one-sided operation completed since.
    one_sided: bool,
    pub(super) operations: u64,
    pub(super) rest: Rest,
}

/// What happened to a member.
pub(super) struct News {
    pub(super) events: usize,
    pub(super) released: u32,
    pub(super) one_sided: bool,
}

#[derive(Clone, Copy)]
struct Channel {
    line: PeerId,
    number: u32,
    /// Work requests that have not completed.
    outstanding: u32,
}

struct Line {
    addr: SocketAddr,
    is_up: bool,
    /// Member of each channel, and what it calls it.
    channels: BTreeMap<u32, (usize, PeerId)>,
}

/// A work request under way.
struct Work {
    line: PeerId,
    owner: Option<Owner>,
    kind: Kind,
    /// The pieces as the member named them, and here.
    pieces: [(Sge, BufId); FABRIC_SGES_MAX],
    count: usize,
    /// A buffer of ours: a message, or what is left to send of memory that is gone.
    spare: Option<BufId>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Send,
    Other,
}

#[derive(Clone, Copy)]
struct Owner {
    member: usize,
    peer: PeerId,
    id: u64,
    signalled: bool,
}

pub(super) struct State {
    pub(super) endpoint: tcp::Endpoint,
    lines: BTreeMap<PeerId, Line>,
    pub(super) members: Vec<Option<Member>>,
    works: Vec<Option<Work>>,
    works_free: Vec<u32>,
    numbers: u32,
    pub(super) watcher: Option<usize>,
    events: Vec<FabricEvent>,
}

impl Work {
    /// A message of our own.
    fn new(line: PeerId) -> Self {
        let pieces = [(Sge { buf: BufId(0), offset: 0, bytes: 0 }, BufId(0)); FABRIC_SGES_MAX];
        Self { line, owner: None, kind: Kind::Send, pieces, count: 0, spare: None }
    }
}

impl State {
    pub(super) fn new(endpoint: tcp::Endpoint) -> Self {
        Self {
            endpoint,
            lines: BTreeMap::new(),
            members: Vec::new(),
            works: Vec::new(),
            works_free: Vec::new(),
            numbers: 0,
            watcher: None,
            events: Vec::new(),
        }
    }

    pub(super) fn join(&mut self, seat: Arc<Seat>) -> usize {
        let member = Member {
            seat,
            channels: PeerTable::new(FABRIC_PEERS_MAX),
            inbox: Vec::new(),
            messages: 0,
            released: 0,
            one_sided: false,
            operations: 0,
            rest: Rest::Awake,
        };
        let free = self.members.iter().position(Option::is_none);
        let index = free.unwrap_or(self.members.len());
        if index == self.members.len() {
            self.members.push(None);
        }
        self.members[index] = Some(member);
        index
    }

    pub(super) fn member(&mut self, index: usize) -> &mut Member {
        self.members[index].as_mut().expect("a member is there until it leaves")
    }

    /// A channel to `addr`, over the connection that is there or a new one.
    pub(super) fn connect(
        &mut self,
        member: usize,
        addr: SocketAddr,
        now: Nanos,
    ) -> Result<PeerId, FabricError> {
        if self.member(member).channels.is_full() {
            return Err(FabricError::PeersFull { limit: FABRIC_PEERS_MAX });
        }
        let known = self.lines.iter().find(|(_, line)| line.addr == addr);
        let line = match known.map(|(line, _)| *line) {
            Some(line) => line,
            None => {
                let line = self.endpoint.connect(addr, now)?;
                self.lines.insert(line, Line { addr, is_up: false, channels: BTreeMap::new() });
                // A thread that sleeps has to learn that it is up.
                self.endpoint.prepare_sleep();
                line
            }
        };
        self.numbers = self.numbers.checked_add(1).expect("numbers last longer than processes");
        let channel = Channel { line, number: self.numbers, outstanding: 0 };
        let inserted = self.member(member).channels.insert(channel);
        let peer = inserted.map_err(|_| FabricError::PeersFull { limit: FABRIC_PEERS_MAX })?;
        let found = self.lines.get_mut(&line).expect("found or made above");
        found.channels.insert(channel.number, (member, peer));
        if found.is_up {
            self.tell(member, FabricEvent::Connected { peer });
        }
        Ok(peer)
    }

    /// Posts a batch under one doorbell; how many of its work requests name memory of the member
    /// now, and the outcome.
    pub(super) fn post(
        &mut self,
        member: usize,
        peer: PeerId,
        batch: &[WorkRequest<'_>],
        buffers: &Buffers,
        gathers: bool,
    ) -> (u32, Result<(), (usize, PostError)>) {
        let Some(channel) = self.member(member).channels.get_mut(peer).copied() else {
            return (0, Err((0, PostError::Down)));
        };
        let (mut lent, mut result) = (0, Ok(()));
        for (posted, work) in batch.iter().enumerate() {
            let outcome = match channel.outstanding as usize + posted {
                many if many >= FABRIC_OUTSTANDING_MAX as usize => Err(PostError::Busy),
                _ => self.post_one(channel, (member, peer), work, buffers),
            };
            if let Err(error) = outcome {
                result = Err((posted, error));
                break;
            }
            lent += u32::from(work.verb != Verb::Send && !work.local.is_empty());
        }
        let posted = result.map_or_else(|(posted, _)| posted, |()| batch.len());
        let channel_now = self.member(member).channels.get_mut(peer);
        channel_now.expect("it was there above").outstanding += posted as u32;
        self.ring(channel.line, gathers);
        (lent, result)
    }

    /// Sends what was appended; a sleeping thread learns of room for the rest.
    fn ring(&mut self, line: PeerId, gathers: bool) {
        self.endpoint.flush(line, gathers);
        if self.endpoint.wants_out(line) {
            self.endpoint.prepare_sleep();
        }
    }

    fn post_one(
        &mut self,
        channel: Channel,
        (member, peer): (usize, PeerId),
        work: &WorkRequest<'_>,
        buffers: &Buffers,
    ) -> Result<(), PostError> {
        let owner = Some(Owner { member, peer, id: work.id, signalled: work.signalled });
        let kind = match work.verb {
            Verb::Read(_) => Kind::Read,
            Verb::Send => Kind::Send,
            _ => Kind::Other,
        };
        let mut made = Work { owner, kind, ..Work::new(channel.line) };
        if kind == Kind::Send {
            let parts: Vec<&[u8]> = work.local.iter().map(|piece| buffers.slice(piece)).collect();
            let message = wire::reroute(&parts.concat(), channel.number);
            let message = message.expect("members send what is routed to the connection's owner");
            return self.send(made, message);
        }
        let mut local = [Sge { buf: BufId(0), offset: 0, bytes: 0 }; FABRIC_SGES_MAX];
        for (index, piece) in work.local.iter().enumerate() {
            let memory = buffers.memory_of(piece, kind == Kind::Read);
            // SAFETY: the member's endpoint has this work request disowned before the buffer is
            // taken back, dropped, or the loan ends, and refuses its user the bytes until then.
            let adopted = unsafe { self.endpoint.adopt(memory) };
            let Ok(buf) = adopted else {
                self.release(&mut made);
                return Err(PostError::Busy);
            };
            made.pieces[index] = (*piece, buf);
            made.count += 1;
            local[index] = Sge { buf, offset: 0, bytes: piece.bytes };
        }
        let count = made.count;
        self.enqueue(made, work.verb, &local[..count])
    }

    fn send(&mut self, mut work: Work, message: Vec<u8>) -> Result<(), PostError> {
        let bytes = message.len() as u64;
        let buf = self.endpoint.keep(message).map_err(|_| PostError::Busy)?;
        work.spare = Some(buf);
        self.enqueue(work, Verb::Send, &[Sge { buf, offset: 0, bytes }])
    }

    fn enqueue(&mut self, mut work: Work, verb: Verb, local: &[Sge]) -> Result<(), PostError> {
        let index = self.works_free.pop().unwrap_or_else(|| {
            self.works.push(None);
            self.works.len() as u32 - 1
        });
        let request = WorkRequest { id: index.into(), verb, local, signalled: true };
        let posted = self.endpoint.enqueue(work.line, &request);
        if posted.is_err() {
            self.works_free.push(index);
            self.release(&mut work);
        } else {
            self.works[index as usize] = Some(work);
        }
        posted
    }

    /// The memory of a work request that the endpoint does not look at any more.
    fn release(&mut self, work: &mut Work) {
        for (_, buf) in &work.pieces[..work.count] {
            self.endpoint.release(*buf);
        }
        work.count = 0;
        if let Some(buf) = work.spare.take() {
            self.endpoint.release(buf);
        }
    }

    /// A work request may not touch the memory of its member any more.
    fn disown(&mut self, index: usize) -> Disowned {
        let mut work = self.works[index].take().expect("it is under way");
        let disowned = self.endpoint.disown(work.line, index as u64);
        self.release(&mut work);
        if let Disowned::Copied(buf) = disowned {
            work.spare = Some(buf);
        }
        self.works[index] = Some(work);
        disowned
    }

    /// Ends what work requests of a member have to do with pieces for which `named` holds; how
    /// many named any.
    pub(super) fn let_go(&mut self, member: usize, named: impl Fn(&Sge) -> bool) -> u32 {
        let mut released = 0;
        for index in 0..self.works.len() {
            if self.names(index, member, &named) {
                self.disown(index);
                released += 1;
            }
        }
        released
    }

    fn names(&self, index: usize, member: usize, named: &impl Fn(&Sge) -> bool) -> bool {
        let work = self.works[index].as_ref();
        let work = work.filter(|work| work.owner.is_some_and(|owner| owner.member == member));
        work.is_some_and(|work| work.pieces[..work.count].iter().any(|(piece, _)| named(piece)))
    }

    /// Whether a work request under way names bytes of `piece`; those that only send them do not
    /// count for a member that `reads`.
    pub(super) fn is_under_way(&self, member: usize, piece: &Sge, reads: bool) -> bool {
        let overlaps = |of: &Sge| {
            let end = |piece: &Sge| piece.offset + piece.bytes;
            of.buf == piece.buf && of.offset < end(piece) && piece.offset < end(of)
        };
        let may = |index: &usize| {
            !reads || self.works[*index].as_ref().is_some_and(|work| work.kind == Kind::Read)
        };
        (0..self.works.len()).filter(may).any(|index| self.names(index, member, &overlaps))
    }

    /// A member ends one of its channels: what it had under way is flushed.
    pub(super) fn close(&mut self, member: usize, peer: PeerId, now: Nanos) {
        let Some(channel) = self.member(member).channels.get_mut(peer).copied() else { return };
        self.end_channel(channel, (member, peer), DeathCause::Closed);
        let Some(line) = self.lines.get(&channel.line) else { return };
        let (is_up, is_last) = (line.is_up, line.channels.is_empty());
        if is_up {
            // Behind all that came over the channel, so that the target's daemon learns of the end
            // when nothing of it can be executed any more.
            let message = RemoteRequest::Ended;
            let message = wire::encode_vec(&Routed { channel: channel.number, message });
            if self.send(Work::new(channel.line), message).is_err() {
                self.endpoint.close(channel.line);
            }
            self.ring(channel.line, false);
        }
        if is_last {
            self.endpoint.close(channel.line);
            self.drive(now);
        }
    }

    /// Flushes what a channel has under way, and says that it is over.
    fn end_channel(
        &mut self,
        channel: Channel,
        (member, peer): (usize, PeerId),
        cause: DeathCause,
    ) {
        if let Some(line) = self.lines.get_mut(&channel.line) {
            line.channels.remove(&channel.number);
        }
        for index in 0..self.works.len() {
            let owner = self.works[index].as_ref().and_then(|work| work.owner);
            let Some(owner) = owner.filter(|one| (one.member, one.peer) == (member, peer)) else {
                continue;
            };
            let work = self.works[index].as_mut().expect("looked at above");
            work.owner = None;
            let (is_send, is_lent) = (work.kind == Kind::Send, work.count > 0);
            // A message is in a buffer of ours, and may be the last one.
            let disowned = if is_send { Disowned::Executed } else { self.disown(index) };
            let executed = (disowned == Disowned::Cancelled).then_some(false);
            let found = self.member(member);
            found.released += u32::from(is_lent);
            found.operations += 1;
            let status = WorkStatus::Flushed { executed };
            self.tell(member, FabricEvent::Completed { peer, id: owner.id, status });
        }
        self.member(member).channels.remove(peer);
        self.tell(member, FabricEvent::Closed { peer, cause });
    }

    /// A member leaves: its channels end.
    pub(super) fn leave(&mut self, member: usize, now: Nanos) {
        for slot in 0..self.member(member).channels.slots() {
            if let Some((peer, _)) = self.member(member).channels.at_mut(slot) {
                self.close(member, peer, now);
            }
        }
        self.members[member] = None;
    }

    pub(super) fn drive(&mut self, now: Nanos) {
        let mut events = std::mem::take(&mut self.events);
        self.endpoint.poll(now, &mut events);
        for event in events.drain(..) {
            match event {
                FabricEvent::Connected { peer } => self.on_connected(peer),
                FabricEvent::Completed { id, status, .. } => self.on_completed(id, status),
                FabricEvent::Received { peer, message } => self.on_message(peer, message),
                FabricEvent::Closed { peer, cause } => self.on_closed(peer, cause),
                FabricEvent::ReceivedImm { .. } => {}
            }
        }
        self.events = events;
    }

    fn on_connected(&mut self, line: PeerId) {
        let Some(line) = self.lines.get_mut(&line) else { return };
        line.is_up = true;
        let channels: Vec<_> = line.channels.values().copied().collect();
        for (member, peer) in channels {
            self.tell(member, FabricEvent::Connected { peer });
        }
    }

    fn on_completed(&mut self, id: u64, status: WorkStatus) {
        let work = self.works[id as usize].take();
        let mut work = work.expect("what completes was posted, once");
        let is_lent = work.count > 0;
        self.release(&mut work);
        self.works_free.push(id as u32);
        let Some(Owner { member, peer, id, signalled }) = work.owner else { return };
        let found = self.member(member);
        if let Some(channel) = found.channels.get_mut(peer) {
            channel.outstanding -= 1;
        }
        found.operations += 1;
        found.released += u32::from(is_lent);
        found.one_sided |= work.kind != Kind::Send;
        let is_done = matches!(status, WorkStatus::Done(_));
        if signalled || !is_done {
            self.tell(member, FabricEvent::Completed { peer, id, status });
        }
    }

    fn on_message(&mut self, line: PeerId, message: Vec<u8>) {
        // What is no message, or for a channel that has ended, concerns no member.
        let Ok((number, _)) = wire::channel_of(&message) else { return };
        let channels = self.lines.get(&line).map(|line| &line.channels);
        let found = channels.and_then(|channels| channels.get(&number)).copied();
        let Some((member, peer)) = found else { return };
        let ended = Routed { channel: number, message: RemoteReply::Ended };
        if message != wire::encode_vec(&ended) {
            let inbox = self.member(member);
            inbox.messages += 1;
            if inbox.messages <= MESSAGES_MAX {
                return self.tell(member, FabricEvent::Received { peer, message });
            }
            // No member is sent so many answers: a peer that sends it breaks the protocol.
            return self.endpoint.close(line);
        }
        let channel = self.member(member).channels.get_mut(peer).copied();
        let channel = channel.expect("lines and members know the same channels");
        self.end_channel(channel, (member, peer), DeathCause::Closed);
        if self.lines[&line].channels.is_empty() {
            self.endpoint.close(line);
        }
    }

    /// A connection is over; its work requests have completed.
    fn on_closed(&mut self, line: PeerId, cause: DeathCause) {
        let Some(line) = self.lines.remove(&line) else { return };
        for (member, peer) in line.channels.into_values() {
            self.member(member).channels.remove(peer);
            self.tell(member, FabricEvent::Closed { peer, cause });
        }
    }

    fn tell(&mut self, member: usize, event: FabricEvent) {
        let member = self.member(member);
        member.inbox.push(event);
        // Release: pairs with the Acquire in `mod.rs::look`; the lock orders the inbox itself.
        member.seat.news.store(true, Ordering::Release);
        member.rouse();
    }

    /// Moves a member's inbox to `events`.
    pub(super) fn take(&mut self, member: usize, events: &mut Vec<FabricEvent>) -> News {
        let member = self.member(member);
        let count = member.inbox.len();
        member.messages = 0;
        events.append(&mut member.inbox);
        // Relaxed: it is set under the same lock.
        member.seat.news.store(false, Ordering::Relaxed);
        News {
            events: count,
            released: std::mem::take(&mut member.released),
            one_sided: std::mem::take(&mut member.one_sided),
        }
    }

    /// Whether a member's inbox holds something.
    pub(super) fn has_news(&mut self, member: usize) -> bool {
        !self.member(member).inbox.is_empty()
    }

    /// A thread leaves its call: if none has the watch, the next one that sleeps gets it.
    pub(super) fn hand_over(&mut self) {
        if self.watcher.is_some() {
            return;
        }
        let mut members = self.members.iter_mut().flatten();
        if let Some(next) = members.find(|member| member.rest == Rest::Following) {
            next.rouse();
        }
    }
}

impl Member {
    /// Wakes it, if it sleeps.
    fn rouse(&mut self) {
        if self.rest != Rest::Awake {
            self.rest = Rest::Awake;
            self.seat.wake.notify();
        }
    }
}
