//! What the threads of a client share, under one lock: the endpoint, its connections, the member of
//! each channel in them, its work requests under way, and which members sleep.
//!
//! In: what members post, connect, close and take back. Out: events in the inboxes of members,
//! which are woken. Called by the members' endpoints with the lock held; nothing here waits.
//!
//! Ownership rule: the endpoint may touch memory of a member only while the work request that names
//! it is in its channel's queue and `is_lent`. Before that memory goes, its member cancels it here.
//! The endpoint's name of a work request is its channel's number and its own in the channel.

use super::super::buffers::Buffers;
use super::super::{FabricError, tcp};
use rackpool_core::constants::{FABRIC_OUTSTANDING_MAX, FABRIC_PEERS_MAX, FABRIC_SGES_MAX};
use rackpool_core::error::DeathCause;
use rackpool_core::fabric::peers::PeerTable;
use rackpool_core::fabric::work_queue::{Work, WorkQueue};
use rackpool_core::seam::{
    BufId, Fabric, FabricEvent, Nanos, PeerId, PostError, Sge, Verb, WorkRequest, WorkStatus,
};
use rackpool_core::wire::{self, RemoteReply, RemoteRequest, Routed};
use rackpool_mem::event::WakeEvent;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Messages that wait for one member, while others drive the endpoint for it: far more than its
/// requests under way have answers.
const MESSAGES_MAX: usize = 8 * FABRIC_OUTSTANDING_MAX as usize;

/// How other threads reach a member.
pub(super) struct MemberNotifier {
    /// Its inbox is not empty.
    pub(super) news: AtomicBool,
    pub(super) wake: WakeEvent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitState {
    /// It runs, or was notified.
    Awake,
    /// It sleeps on the sockets.
    Leading,
    /// It sleeps until it is notified.
    Following,
    /// Its application sleeps on its descriptor, which looks at the sockets as well.
    Outside,
}

pub(super) struct Member {
    notifier: Arc<MemberNotifier>,
    channels: PeerTable<SharedChannel>,
    inbox: Vec<FabricEvent>,
    messages: usize,
    /// Work requests that gave their memory back to the member since the inbox was taken.
    released: u32,
    /// Whether a one-sided operation completed since.
    one_sided: bool,
    pub(super) operations: u64,
    pub(super) wait_state: WaitState,
}

/// What happened to a member.
pub(super) struct News {
    pub(super) events: usize,
    pub(super) released: u32,
    pub(super) one_sided: bool,
}

struct SharedChannel {
    connection: PeerId,
    number: u32,
    queue: WorkQueue<IsLent>,
}

/// Whether the endpoint may touch the member's memory.
struct IsLent(bool);

struct SharedConnection {
    addr: SocketAddr,
    is_up: bool,
    /// Member of each channel, and what it calls it.
    channels: BTreeMap<u32, (usize, PeerId)>,
}

pub(super) struct State {
    pub(super) endpoint: tcp::TcpEndpoint,
    connections: BTreeMap<PeerId, SharedConnection>,
    pub(super) members: Vec<Option<Member>>,
    numbers: u32,
    pub(super) leader: Option<usize>,
    events: Vec<FabricEvent>,
}

/// The endpoint's name of the work request `number` of a channel.
fn endpoint_id(channel: u32, number: u64) -> u64 {
    u64::from(channel) << 32 | number & u64::from(u32::MAX)
}

impl State {
    pub(super) fn new(endpoint: tcp::TcpEndpoint) -> Self {
        Self {
            endpoint,
            connections: BTreeMap::new(),
            members: Vec::new(),
            numbers: 0,
            leader: None,
            events: Vec::new(),
        }
    }

    pub(super) fn join(&mut self, notifier: Arc<MemberNotifier>) -> usize {
        let member = Member {
            notifier,
            channels: PeerTable::new(FABRIC_PEERS_MAX),
            inbox: Vec::new(),
            messages: 0,
            released: 0,
            one_sided: false,
            operations: 0,
            wait_state: WaitState::Awake,
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
        let known = self.connections.iter().find(|(_, connection)| connection.addr == addr);
        let connection = match known.map(|(connection, _)| *connection) {
            Some(connection) => connection,
            None => {
                let connection = self.endpoint.connect(addr, now)?;
                self.connections.insert(
                    connection,
                    SharedConnection { addr, is_up: false, channels: BTreeMap::new() },
                );
                // The leader has to learn that it is up.
                self.endpoint.prepare_sleep();
                connection
            }
        };
        self.numbers = self.numbers.checked_add(1).expect("numbers last longer than processes");
        let number = self.numbers;
        let channel = SharedChannel { connection, number, queue: WorkQueue::new(0) };
        let inserted = self.member(member).channels.insert(channel);
        let peer = inserted.map_err(|_| FabricError::PeersFull { limit: FABRIC_PEERS_MAX })?;
        let found = self.connections.get_mut(&connection).expect("found or made above");
        found.channels.insert(number, (member, peer));
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
        let Self { members, endpoint, .. } = self;
        let channels = members[member].as_mut().map(|member| &mut member.channels);
        let Some(channel) = channels.and_then(|channels| channels.get_mut(peer)) else {
            return (0, Err((0, PostError::Down)));
        };
        let (mut lent, mut result) = (0, Ok(()));
        for (posted, work) in batch.iter().enumerate() {
            let is_full = channel.queue.len() >= FABRIC_OUTSTANDING_MAX as usize;
            let outcome = match is_full {
                true => Err(PostError::Busy),
                false => channel.post(work, endpoint, buffers),
            };
            match outcome {
                Ok(is_lent) => lent += u32::from(is_lent),
                Err(error) => {
                    result = Err((posted, error));
                    break;
                }
            }
        }
        let connection = channel.connection;
        self.ring(connection, gathers);
        (lent, result)
    }

    /// Sends what was appended; the leader learns of room for the rest.
    fn ring(&mut self, connection: PeerId, gathers: bool) {
        self.endpoint.flush(connection, gathers);
        if self.endpoint.wants_out(connection) {
            self.endpoint.prepare_sleep();
        }
    }

    /// Ends what work requests of a member have to do with pieces for which `named` holds; how
    /// many named any.
    pub(super) fn let_go(&mut self, member: usize, named: impl Fn(BufId) -> bool) -> u32 {
        let Self { members, endpoint, .. } = self;
        let member = members[member].as_mut().expect("a member is there until it leaves");
        let mut released = 0;
        for slot in 0..member.channels.slots() {
            let Some((_, channel)) = member.channels.at_mut(slot) else { continue };
            for place in 0..channel.queue.len() {
                if channel.queue.at(place).is_some_and(|work| work.state.0 && work.names(&named)) {
                    channel.cancel(place, endpoint);
                    released += 1;
                }
            }
        }
        released
    }

    /// Whether a work request under way names bytes of `piece`; those that only send them do not
    /// count if `reads`.
    pub(super) fn is_under_way(&mut self, member: usize, piece: &Sge, reads: bool) -> bool {
        let channels = &mut self.member(member).channels;
        (0..channels.slots())
            .filter_map(|slot| {
                let (_, channel) = channels.at_mut(slot)?;
                let is_it = |work: &Work<IsLent>| {
                    work.state.0 && (!reads || work.is_read()) && work.overlaps(piece)
                };
                Some(channel.queue.iter().any(is_it))
            })
            .any(|is_it| is_it)
    }

    /// A member ends one of its channels: what it had under way is flushed.
    pub(super) fn close(&mut self, member: usize, peer: PeerId, now: Nanos) {
        let Some(channel) = self.end_channel(member, peer) else { return };
        let Some(connection) = self.connections.get(&channel.connection) else { return };
        let (is_up, is_last) = (connection.is_up, connection.channels.is_empty());
        if is_up {
            // Behind all that came over the channel, so that the target's daemon learns of the end
            // when nothing of it can be executed any more.
            let message = RemoteRequest::Ended;
            let message = wire::encode_vec(&Routed { channel: channel.number, message });
            let id = endpoint_id(channel.number, 0);
            if send(&mut self.endpoint, channel.connection, id, message).is_err() {
                self.endpoint.close(channel.connection);
            }
            self.ring(channel.connection, false);
        }
        if is_last {
            self.endpoint.close(channel.connection);
            self.drive(now);
        }
    }

    /// Flushes what a channel has under way, and says that it is over.
    fn end_channel(&mut self, member: usize, peer: PeerId) -> Option<SharedChannel> {
        let Self { members, endpoint, connections, .. } = self;
        let found = members[member].as_mut().expect("a member is there until it leaves");
        let mut channel = found.channels.remove(peer)?;
        if let Some(connection) = connections.get_mut(&channel.connection) {
            connection.channels.remove(&channel.number);
        }
        found.operations += channel.queue.len() as u64;
        for place in 0..channel.queue.len() {
            found.released += u32::from(channel.queue.at(place).is_some_and(|work| work.state.0));
            // A message is in a buffer of the endpoint, and may be the last one.
            let is_send = channel.queue.at(place).is_some_and(|work| work.verb == Verb::Send);
            let may_be_executed = is_send || channel.cancel(place, endpoint);
            let executed = if may_be_executed { None } else { Some(false) };
            let status = WorkStatus::Flushed { executed };
            let work = channel.queue.at(place).expect("it is in the queue");
            work.tell(peer, status, &mut found.inbox);
        }
        self.tell(member, FabricEvent::Closed { peer, cause: DeathCause::Closed });
        Some(channel)
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
                FabricEvent::Completed { peer, id, status } => self.on_completed(peer, id, status),
                FabricEvent::Received { peer, message } => self.on_message(peer, message),
                FabricEvent::Closed { peer, cause } => self.on_closed(peer, cause),
                FabricEvent::ReceivedImm { .. } => {}
            }
        }
        self.events = events;
    }

    fn on_connected(&mut self, connection: PeerId) {
        let Some(connection) = self.connections.get_mut(&connection) else { return };
        connection.is_up = true;
        let channels: Vec<_> = connection.channels.values().copied().collect();
        for (member, peer) in channels {
            self.tell(member, FabricEvent::Connected { peer });
        }
    }

    /// The member of a channel of a connection, and what it calls it.
    fn owner(&self, connection: PeerId, number: u32) -> Option<(usize, PeerId)> {
        self.connections.get(&connection)?.channels.get(&number).copied()
    }

    fn on_completed(&mut self, connection: PeerId, id: u64, status: WorkStatus) {
        // Of a channel that has ended there is nothing more to be told.
        let Some((member, peer)) = self.owner(connection, (id >> 32) as u32) else { return };
        let found = self.member(member);
        let channel = found.channels.get_mut(peer).expect("both sides know the same channels");
        // The endpoint completes in order.
        let work = channel.queue.pop().expect("what completes was posted, once");
        found.operations += 1;
        found.released += u32::from(work.state.0);
        found.one_sided |= work.verb != Verb::Send;
        if work.tell(peer, status, &mut found.inbox) {
            found.notify();
        }
    }

    fn on_message(&mut self, connection: PeerId, message: Vec<u8>) {
        // What is no message, or for a channel that has ended, is dropped.
        let Ok((number, _)) = wire::channel_of(&message) else { return };
        let Some((member, peer)) = self.owner(connection, number) else { return };
        let ended = Routed { channel: number, message: RemoteReply::Ended };
        if message != wire::encode_vec(&ended) {
            let inbox = self.member(member);
            inbox.messages += 1;
            if inbox.messages <= MESSAGES_MAX {
                return self.tell(member, FabricEvent::Received { peer, message });
            }
            // No member is answered that much: the sender keeps to no protocol.
            return self.endpoint.close(connection);
        }
        self.end_channel(member, peer);
        if self.connections[&connection].channels.is_empty() {
            self.endpoint.close(connection);
        }
    }

    /// A connection is over; its work requests have completed.
    fn on_closed(&mut self, connection: PeerId, cause: DeathCause) {
        let Some(connection) = self.connections.remove(&connection) else { return };
        for (member, peer) in connection.channels.into_values() {
            self.member(member).channels.remove(peer);
            self.tell(member, FabricEvent::Closed { peer, cause });
        }
    }

    fn tell(&mut self, member: usize, event: FabricEvent) {
        let member = self.member(member);
        member.inbox.push(event);
        member.notify();
    }

    /// Moves a member's inbox to `events`.
    pub(super) fn take(&mut self, member: usize, events: &mut Vec<FabricEvent>) -> News {
        let member = self.member(member);
        let count = member.inbox.len();
        member.messages = 0;
        events.append(&mut member.inbox);
        // Relaxed: it is set under the same lock.
        member.notifier.news.store(false, Ordering::Relaxed);
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

    /// A thread leaves its call: if there is no leader, the next member that sleeps becomes it.
    pub(super) fn pass_lead(&mut self) {
        if self.leader.is_some() {
            return;
        }
        let mut members = self.members.iter_mut().flatten();
        if let Some(next) = members.find(|member| member.wait_state == WaitState::Following) {
            next.rouse();
        }
    }
}

impl SharedChannel {
    /// Posts a work request; whether it names memory of the member now.
    fn post(
        &mut self,
        work: &WorkRequest<'_>,
        endpoint: &mut tcp::TcpEndpoint,
        buffers: &Buffers,
    ) -> Result<bool, PostError> {
        let id = endpoint_id(self.number, self.queue.number(self.queue.len()));
        let is_send = work.verb == Verb::Send;
        if is_send {
            let parts: Vec<&[u8]> = work.local.iter().map(|piece| buffers.slice(piece)).collect();
            let message = wire::reroute(&parts.concat(), self.number);
            let message = message.expect("members send what is routed to the connection's owner");
            send(endpoint, self.connection, id, message)?;
        } else {
            let mut local = [Sge { buf: BufId(0), offset: 0, bytes: 0 }; FABRIC_SGES_MAX];
            for (index, piece) in work.local.iter().enumerate() {
                let memory = buffers.memory_of(piece, matches!(work.verb, Verb::Read(_)));
                // SAFETY: the member's endpoint has this work request cancelled before the buffer
                // is taken back, dropped, or the loan ends, and refuses its user the bytes until
                // then.
                let adopted = unsafe { endpoint.adopt(memory) };
                let Ok(buf) = adopted else {
                    endpoint.release(&local[..index]);
                    return Err(PostError::Busy);
                };
                local[index] = Sge { buf, offset: 0, bytes: piece.bytes };
            }
            let local = &local[..work.local.len()];
            let request = WorkRequest { id, verb: work.verb, local, signalled: true };
            endpoint.enqueue(self.connection, &request, true)?;
        }
        let is_lent = !is_send && !work.local.is_empty();
        self.queue.push(Work::new(work, IsLent(is_lent)));
        Ok(is_lent)
    }

    /// A work request may not touch the memory of its member any more; whether it may be executed.
    fn cancel(&mut self, place: usize, endpoint: &mut tcp::TcpEndpoint) -> bool {
        let id = endpoint_id(self.number, self.queue.number(place));
        self.queue.at_mut(place).expect("it is in the queue").state.0 = false;
        endpoint.cancel(self.connection, id)
    }
}

/// Appends a message of the endpoint's own.
fn send(
    endpoint: &mut tcp::TcpEndpoint,
    connection: PeerId,
    id: u64,
    message: Vec<u8>,
) -> Result<(), PostError> {
    let bytes = message.len() as u64;
    let buf = endpoint.keep(message).map_err(|_| PostError::Busy)?;
    let local = &[Sge { buf, offset: 0, bytes }];
    let request = WorkRequest { id, verb: Verb::Send, local, signalled: true };
    endpoint.enqueue(connection, &request, true)
}

impl Member {
    /// Its inbox is not empty.
    fn notify(&mut self) {
        // Release: pairs with the Acquire in `mod.rs::look`; the lock orders the inbox itself.
        self.notifier.news.store(true, Ordering::Release);
        self.rouse();
    }

    /// Wakes it, if it sleeps.
    fn rouse(&mut self) {
        if self.wait_state != WaitState::Awake {
            self.wait_state = WaitState::Awake;
            self.notifier.wake.notify();
        }
    }
}
