//! Remote work that a daemon does for the clients of its rack: one connection to each other rack
//! is shared by all of them, so their number does not show in queue pairs.
//!
//! ```text
//! rings for remote requests --> on_order --> waiting --> Uplinks::post --> fabric
//! rings for their replies  <-- Uplinks::tell <-- on_event <-- completions, messages, ends
//! ```
//!
//! A *channel* is what a connection of its own would be to a client: it opens and ends, its work
//! requests are executed in their order, and the target's daemon keeps a session for it. Keys stay
//! with the clients and are compared at the target, so a page that moves is refused here as
//! anywhere. What a client had under way when it died is executed before the message that ends its
//! channels, because both take the same connection.
//!
//! Every work request gets one outcome, except those of clients that are gone. Nothing here waits:
//! outcomes that a client's ring has no room for are kept, at most as many as it has tags and
//! channels. Source: Rcmp §4.2 (methods b and c), §5.2; decision 0023.

use crate::addr::{RackId, SessionId};
use crate::constants::{
    FABRIC_OUTSTANDING_MAX, PROXY_CHANNELS_MAX, PROXY_PIECE_BYTES_MAX, RING_ENTRIES, SLOTS_MAX,
};
use crate::counts::ProxyCounts;
use crate::error::{DeathCause, Error, Result};
use crate::seam::{FabricEvent, PeerId, Verb, WorkStatus};
use crate::wire::{
    self, ProxyOrder, ProxyOutcome, ProxyStatus, ProxyWork, RackInfo, RemoteReply, RemoteRequest,
    Routed,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How a daemon takes what its clients put into their rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rings {
    /// Local and remote requests apart, and an unfinished one blocks no other. Source: Rcmp §4.2.
    #[default]
    TwoLayer,
    /// As if all of them were in one ring of one layer: the next is taken when the one before it is
    /// finished. To measure what the two layers are worth.
    Single,
}

impl std::str::FromStr for Rings {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "two-layer" => Ok(Rings::TwoLayer),
            "single" => Ok(Rings::Single),
            other => Err(Error::Config {
                reason: format!("rings `{other}`: there are `two-layer` and `single`"),
            }),
        }
    }
}

/// Work requests under way on one connection.
const IN_FLIGHT_MAX: usize = FABRIC_OUTSTANDING_MAX as usize;

/// Outcomes kept for one client: one for each tag, two for each channel.
const BACKLOG_MAX: usize = RING_ENTRIES as usize + 2 * PROXY_CHANNELS_MAX;
/// Work requests and messages that wait for one connection: all tags of all clients of a rack, and
/// as many ends of channels.
const WAITING_MAX: usize = 2 * (RING_ENTRIES * SLOTS_MAX) as usize;

/// Data that go with an outcome.
#[derive(Clone, Copy, Debug)]
pub enum OutcomeData<'a> {
    Bytes(&'a [u8]),
    /// What the READ in this buffer has brought.
    Read {
        peer: PeerId,
        index: u32,
        bytes: u32,
    },
}

/// What the engine needs of its process. Statically dispatched; no call may call the engine.
pub trait Uplinks {
    /// Asks the master for a rack; the answer comes to [`Proxy::on_rack`].
    fn find(&mut self, rack: RackId);
    /// Begins a connection; `None` if that cannot be.
    fn connect(&mut self, info: &RackInfo) -> Option<PeerId>;
    /// Posts a work request, perhaps with others under one doorbell: its `id` is `index`, which is
    /// below `FABRIC_OUTSTANDING_MAX` and not under way on this connection. `data` are copied; a
    /// READ brings `bytes` bytes into the buffer of that index, which is kept until it is posted
    /// with again. What cannot be posted completes as flushed.
    fn post(&mut self, peer: PeerId, index: u32, verb: Verb, data: &[u8], bytes: u32);
    /// Puts an outcome into a client's ring; `false` if there is no room now.
    fn tell(&mut self, slot: u32, outcome: ProxyOutcome, data: OutcomeData<'_>) -> bool;
    /// A copy of what a READ has brought.
    fn copy(&self, peer: PeerId, index: u32, bytes: u32) -> Vec<u8>;
}

/// The engine; see the module.
#[derive(Debug, Default)]
pub struct Proxy {
    /// The identity of this daemon to others: another one after a restart.
    identity: SessionId,
    /// Racks to which a connection ended: they may not know it, and sessions of clients that are
    /// gone by now may be left there.
    estranged: BTreeSet<RackId>,
    uplinks: BTreeMap<RackId, Uplink>,
    rack_of: BTreeMap<PeerId, RackId>,
    clients: BTreeMap<u32, RingClient>,
    /// Slot and channel of each number that the other racks know.
    owners: BTreeMap<u32, (u32, u32)>,
    numbers: u32,
    /// Work requests that clients posted.
    operations: u64,
    /// Clients so far: a slot is used again, this is not.
    arrivals: u64,
    /// Clients with a ring that had no room.
    behind: usize,
}

#[derive(Debug, Default)]
struct RingClient {
    arrival: u64,
    channels: BTreeMap<u32, Channel>,
    /// Tags under way, one bit each.
    tags: u64,
    backlog: VecDeque<(ProxyOutcome, Vec<u8>)>,
}
const _: () = assert!(RING_ENTRIES <= 64);

#[derive(Clone, Copy, Debug)]
struct Channel {
    rack: RackId,
    number: u32,
    is_open: bool,
}

#[derive(Debug)]
struct Uplink {
    state: State,
    waiting: VecDeque<Waiting>,
    in_flight: Vec<Option<UplinkWork>>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asked,
    Connecting(PeerId),
    Up(PeerId),
}

/// A work request: its client, and the client's name for it; `None` for our own messages.
#[derive(Clone, Copy, Debug)]
struct UplinkWork {
    number: u32,
    slot: u32,
    arrival: u64,
    tag: Option<u8>,
    verb: Verb,
    bytes: u32,
}

#[derive(Debug)]
struct Waiting {
    work: UplinkWork,
    data: Vec<u8>,
}

impl Uplink {
    fn new() -> Self {
        Self {
            state: State::Asked,
            waiting: VecDeque::new(),
            in_flight: vec![None; IN_FLIGHT_MAX],
            free: (0..IN_FLIGHT_MAX as u32).rev().collect(),
        }
    }

    /// Posts, or keeps until there is room or the connection is up.
    fn take_in<U: Uplinks>(&mut self, work: UplinkWork, data: &[u8], links: &mut U) {
        match (self.state, self.free.last()) {
            (State::Up(peer), Some(&index)) if self.waiting.is_empty() => {
                self.free.pop();
                self.in_flight[index as usize] = Some(work);
                links.post(peer, index, work.verb, data, work.bytes);
            }
            _ => self.waiting.push_back(Waiting { work, data: data.to_vec() }),
        }
    }

    /// Posts what waited, as far as there is room.
    fn pump<U: Uplinks>(&mut self, links: &mut U) {
        let State::Up(peer) = self.state else { return };
        while let Some(&index) = self.free.last()
            && let Some(Waiting { work, data }) = self.waiting.pop_front()
        {
            self.free.pop();
            self.in_flight[index as usize] = Some(work);
            links.post(peer, index, work.verb, &data, work.bytes);
        }
    }
}

/// A message of the daemon itself.
const HELLO: UplinkWork =
    UplinkWork { number: 0, slot: 0, arrival: 0, tag: None, verb: Verb::Send, bytes: 0 };

fn hello(identity: SessionId) -> Vec<u8> {
    wire::encode_vec(&Routed { channel: 0, message: RemoteRequest::Uplink(identity) })
}

fn broken(reason: impl Into<String>) -> Error {
    Error::Protocol { peer: "client".into(), reason: reason.into() }
}

impl Proxy {
    /// Nothing is connected yet. `identity` is random.
    pub fn new(identity: SessionId) -> Self {
        Self { identity, ..Self::default() }
    }

    /// Says to all racks that this daemon is there, and connects again to those that may not know
    /// that a connection is over. To be called four times a lease.
    pub fn reconcile<U: Uplinks>(&mut self, links: &mut U) {
        for uplink in self.uplinks.values_mut() {
            if matches!(uplink.state, State::Up(_)) && uplink.waiting.is_empty() {
                uplink.take_in(HELLO, &hello(self.identity), links);
            }
        }
        for rack in self.estranged.clone() {
            self.uplinks.entry(rack).or_insert_with(|| {
                links.find(rack);
                Uplink::new()
            });
        }
    }

    /// Connections, those that are being made among them, channels, and work so far.
    pub fn counts(&self) -> ProxyCounts {
        ProxyCounts {
            uplinks: self.uplinks.len() as u64,
            channels: self.owners.len() as u64,
            operations: self.operations,
        }
    }

    /// Work requests of clients that have no outcome yet.
    pub fn under_way(&self) -> u32 {
        self.clients.values().map(|client| client.tags.count_ones()).sum()
    }

    /// Whether outcomes are kept back: [`Proxy::deliver`] is to be called in a moment.
    pub fn is_behind(&self) -> bool {
        self.behind > 0
    }

    /// A client's order, with the data behind it. Errors say what was wrong with it; nothing was
    /// done then.
    pub fn on_order<U: Uplinks>(&mut self, slot: u32, order: &[u8], links: &mut U) -> Result<()> {
        let client = self.clients.get(&slot);
        if client.is_some_and(|client| client.backlog.len() >= BACKLOG_MAX) {
            return Err(broken("it takes no outcomes and orders more"));
        }
        match wire::decode_front::<ProxyOrder>(order, "client")? {
            (ProxyOrder::Open { channel, rack }, []) => self.open(slot, channel, rack, links),
            (ProxyOrder::Close { channel }, []) => {
                let client = self.clients.get_mut(&slot);
                if let Some(channel) = client.and_then(|client| client.channels.remove(&channel)) {
                    self.end_channel(slot, channel, &RemoteRequest::Ended, links);
                }
                Ok(())
            }
            (ProxyOrder::Work { channel, tag, work }, data) => {
                self.on_work(slot, (channel, tag), work, data, links)
            }
            (_, rest) => Err(broken(format!("{} bytes behind an order", rest.len()))),
        }
    }

    fn client(&mut self, slot: u32) -> &mut RingClient {
        let arrivals = &mut self.arrivals;
        self.clients.entry(slot).or_insert_with(|| {
            *arrivals += 1;
            RingClient { arrival: *arrivals, ..RingClient::default() }
        })
    }

    fn open<U: Uplinks>(
        &mut self,
        slot: u32,
        channel: u32,
        rack: RackId,
        links: &mut U,
    ) -> Result<()> {
        self.numbers += 1;
        let number = self.numbers;
        let client = self.client(slot);
        if client.channels.contains_key(&channel) || client.channels.len() >= PROXY_CHANNELS_MAX {
            return Err(broken(format!("channel {channel} is open, or one too many")));
        }
        let waiting = self.uplinks.get(&rack).map_or(0, |uplink| uplink.waiting.len());
        if waiting >= WAITING_MAX {
            return Err(broken(format!("{waiting} messages wait for rack {rack}")));
        }
        let uplink = self.uplinks.entry(rack).or_insert_with(|| {
            links.find(rack);
            Uplink::new()
        });
        let is_open = matches!(uplink.state, State::Up(_));
        let made = Channel { rack, number, is_open };
        self.client(slot).channels.insert(channel, made);
        self.owners.insert(number, (slot, channel));
        if is_open {
            self.tell(slot, ProxyOutcome::Opened { channel }, OutcomeData::Bytes(&[]), links);
        }
        Ok(())
    }

    fn on_work<U: Uplinks>(
        &mut self,
        slot: u32,
        (channel, tag): (u32, u8),
        work: ProxyWork,
        data: &[u8],
        links: &mut U,
    ) -> Result<()> {
        let client = self.client(slot);
        let arrival = client.arrival;
        let bit = 1u64.checked_shl(tag.into()).unwrap_or(0);
        if u32::from(tag) >= RING_ENTRIES || client.tags & bit != 0 {
            return Err(broken(format!("tag {tag} is under way, or none")));
        }
        let (bytes, has_data) = match work {
            ProxyWork::Read { bytes, .. } => (bytes, false),
            ProxyWork::Write { .. } | ProxyWork::WriteImm { .. } | ProxyWork::Send => (0, true),
            ProxyWork::Cas { .. } | ProxyWork::FetchAdd { .. } => (0, false),
        };
        let is_send = work == ProxyWork::Send;
        let longest = data.len().max(bytes as usize) as u64;
        if !has_data && !data.is_empty() || !is_send && longest > PROXY_PIECE_BYTES_MAX {
            return Err(broken(format!("{work:?} with {} bytes of data", data.len())));
        }
        let Some(found) = client.channels.get(&channel).copied() else {
            // It ended while the order was on its way.
            client.tags |= bit;
            let executed = Some(false);
            self.done(slot, tag, WorkStatus::Flushed { executed }, None, links);
            return Ok(());
        };
        // Checked here: a message that the target cannot read would end the connection of all.
        let routed = is_send.then(|| wire::decode::<Routed<RemoteRequest>>(data, "client"));
        let routed = routed.transpose()?.map(|routed| {
            wire::encode_vec(&Routed { channel: found.number, message: routed.message })
        });
        client.tags |= bit;
        self.operations += 1;
        let (number, verb) = (found.number, work.verb());
        let work = UplinkWork { number, slot, arrival, tag: Some(tag), verb, bytes };
        let uplink = self.uplinks.get_mut(&found.rack).expect("a channel has an uplink");
        uplink.take_in(work, routed.as_deref().unwrap_or(data), links);
        Ok(())
    }

    /// A channel that its client does not use any more: what waits is flushed, and the target
    /// learns of it after what is under way.
    fn end_channel<U: Uplinks>(
        &mut self,
        slot: u32,
        channel: Channel,
        last: &RemoteRequest,
        links: &mut U,
    ) {
        self.owners.remove(&channel.number);
        let Some(uplink) = self.uplinks.get_mut(&channel.rack) else { return };
        let mut dropped = VecDeque::new();
        if uplink.waiting.iter().any(|one| one.work.number == channel.number) {
            let all = std::mem::take(&mut uplink.waiting).into_iter();
            (dropped, uplink.waiting) = all.partition(|one| one.work.number == channel.number);
        }
        if channel.is_open {
            let message = Routed { channel: channel.number, message: last };
            let (number, verb) = (channel.number, Verb::Send);
            let work = UplinkWork { number, slot, arrival: 0, tag: None, verb, bytes: 0 };
            uplink.take_in(work, &wire::encode_vec(&message), links);
        }
        for Waiting { work, .. } in dropped {
            if let Some(tag) = work.tag {
                let status = WorkStatus::Flushed { executed: Some(false) };
                self.done(slot, tag, status, None, links);
            }
        }
    }

    /// A slot's rings were made anew: its client takes nothing up again by itself.
    pub fn on_slot_reset<U: Uplinks>(&mut self, slot: u32, links: &mut U) {
        self.forget_client(slot, &RemoteRequest::Ended, links);
    }

    /// A slot's client has left or is provably dead: its sessions elsewhere are over.
    pub fn on_slot_gone<U: Uplinks>(&mut self, slot: u32, links: &mut U) {
        self.forget_client(slot, &RemoteRequest::Leave, links);
    }

    fn forget_client<U: Uplinks>(&mut self, slot: u32, last: &RemoteRequest, links: &mut U) {
        let Some(client) = self.clients.remove(&slot) else { return };
        self.behind -= usize::from(!client.backlog.is_empty());
        for channel in client.channels.into_values() {
            self.end_channel(slot, channel, last, links);
        }
    }

    /// The master's answer about a rack that was asked for.
    pub fn on_rack<U: Uplinks>(&mut self, rack: RackId, answer: Result<RackInfo>, links: &mut U) {
        if matches!(answer, Err(Error::NoSuchRack { .. })) {
            self.estranged.remove(&rack);
        }
        let uplink = self.uplinks.get_mut(&rack);
        let Some(uplink) = uplink.filter(|uplink| uplink.state == State::Asked) else { return };
        let info = answer.ok().filter(|info| info.alive);
        match info.and_then(|info| links.connect(&info)) {
            Some(peer) => {
                uplink.state = State::Connecting(peer);
                self.rack_of.insert(peer, rack);
            }
            None => self.end_uplink(rack, DeathCause::Closed, links),
        }
    }

    /// The connection to the master was lost: what was asked is not answered any more.
    pub fn on_master_down<U: Uplinks>(&mut self, links: &mut U) {
        let asked = self.uplinks.iter().filter(|(_, uplink)| uplink.state == State::Asked);
        let racks: Vec<RackId> = asked.map(|(rack, _)| *rack).collect();
        for rack in racks {
            self.end_uplink(rack, DeathCause::Closed, links);
        }
    }

    pub fn on_event<U: Uplinks>(&mut self, event: FabricEvent, links: &mut U) {
        match event {
            FabricEvent::Connected { peer } => self.on_connected(peer, links),
            FabricEvent::Completed { peer, id, status } => {
                self.on_completed(peer, id, status, links);
            }
            FabricEvent::Received { peer, message } => self.on_message(peer, &message, links),
            FabricEvent::Closed { peer, cause } => {
                if let Some(rack) = self.rack_of.get(&peer).copied() {
                    self.end_uplink(rack, cause, links);
                }
            }
            FabricEvent::ReceivedImm { .. } => {}
        }
    }

    fn on_connected<U: Uplinks>(&mut self, peer: PeerId, links: &mut U) {
        let Some(rack) = self.rack_of.get(&peer).copied() else { return };
        self.estranged.remove(&rack);
        let uplink = self.uplinks.get_mut(&rack).expect("it has a peer");
        uplink.state = State::Up(peer);
        // Before everything else, so that what clients say here is about this connection.
        uplink.waiting.push_front(Waiting { work: HELLO, data: hello(self.identity) });
        uplink.pump(links);
        let mut opened = Vec::new();
        for (slot, client) in &mut self.clients {
            for (number, channel) in &mut client.channels {
                if channel.rack == rack && !channel.is_open {
                    channel.is_open = true;
                    opened.push((*slot, *number));
                }
            }
        }
        for (slot, channel) in opened {
            self.tell(slot, ProxyOutcome::Opened { channel }, OutcomeData::Bytes(&[]), links);
        }
        self.pump(rack, links);
    }

    fn on_completed<U: Uplinks>(
        &mut self,
        peer: PeerId,
        id: u64,
        status: WorkStatus,
        links: &mut U,
    ) {
        let Some(rack) = self.rack_of.get(&peer).copied() else { return };
        let uplink = self.uplinks.get_mut(&rack).expect("it has a peer");
        let index = usize::try_from(id).expect("an index that was posted");
        let Some(work) = uplink.in_flight.get_mut(index).and_then(Option::take) else { return };
        if let Some(tag) = work.tag
            && self.owners.contains_key(&work.number)
        {
            self.done(work.slot, tag, status, Some((peer, index as u32, work)), links);
        } else if let Some(tag) = work.tag {
            // The channel was closed meanwhile; its client, if it is there, frees the tag.
            self.done_of_old(work, tag, status, links);
        }
        let uplink = self.uplinks.get_mut(&rack).expect("as above");
        uplink.free.push(index as u32);
        self.pump(rack, links);
    }

    /// The end of a work request of a closed channel.
    fn done_of_old<U: Uplinks>(
        &mut self,
        work: UplinkWork,
        tag: u8,
        status: WorkStatus,
        links: &mut U,
    ) {
        let client = self.clients.get(&work.slot);
        if client.is_some_and(|client| client.arrival == work.arrival) {
            let status = match status {
                WorkStatus::Done(_) if matches!(work.verb, Verb::Read(_)) => {
                    WorkStatus::Flushed { executed: None }
                }
                status => status,
            };
            self.done(work.slot, tag, status, None, links);
        }
    }

    fn on_message<U: Uplinks>(&mut self, peer: PeerId, message: &[u8], links: &mut U) {
        let Ok(routed) = wire::decode::<Routed<RemoteReply>>(message, "daemon") else { return };
        if !self.rack_of.contains_key(&peer) {
            return;
        }
        let Some((slot, channel)) = self.owners.get(&routed.channel).copied() else { return };
        if routed.message == RemoteReply::Ended {
            self.owners.remove(&routed.channel);
            if let Some(client) = self.clients.get_mut(&slot) {
                client.channels.remove(&channel);
            }
            let cause = DeathCause::Closed;
            let ended = ProxyOutcome::Ended { channel, cause };
            self.tell(slot, ended, OutcomeData::Bytes(&[]), links);
            return;
        }
        let outcome = ProxyOutcome::Message { channel };
        self.tell(slot, outcome, OutcomeData::Bytes(message), links);
    }

    /// The connection to a rack is over, or cannot be made.
    fn end_uplink<U: Uplinks>(&mut self, rack: RackId, cause: DeathCause, links: &mut U) {
        let Some(uplink) = self.uplinks.remove(&rack) else { return };
        if let State::Connecting(peer) | State::Up(peer) = uplink.state {
            self.rack_of.remove(&peer);
        }
        if matches!(uplink.state, State::Up(_)) {
            self.estranged.insert(rack);
        }
        let posted = uplink.in_flight.into_iter().flatten();
        let posted = posted.map(|work| (work, WorkStatus::Flushed { executed: None }));
        let waiting = uplink.waiting.into_iter().map(|one| one.work);
        let waiting = waiting.map(|work| (work, WorkStatus::Flushed { executed: Some(false) }));
        for (work, status) in posted.chain(waiting) {
            if let Some(tag) = work.tag {
                self.done_of_old(work, tag, status, links);
            }
        }
        let mut ended = Vec::new();
        for (slot, client) in &mut self.clients {
            client.channels.retain(|number, channel| {
                if channel.rack == rack {
                    ended.push((*slot, *number, channel.number));
                }
                channel.rack != rack
            });
        }
        for (slot, channel, number) in ended {
            self.owners.remove(&number);
            let ended = ProxyOutcome::Ended { channel, cause };
            self.tell(slot, ended, OutcomeData::Bytes(&[]), links);
        }
    }

    fn done<U: Uplinks>(
        &mut self,
        slot: u32,
        tag: u8,
        status: WorkStatus,
        from: Option<(PeerId, u32, UplinkWork)>,
        links: &mut U,
    ) {
        let Some(client) = self.clients.get_mut(&slot) else { return };
        client.tags &= !(1 << tag);
        let outcome = ProxyOutcome::Done { tag, status: ProxyStatus::from(status) };
        let data = match from {
            Some((peer, index, work))
                if matches!((work.verb, status), (Verb::Read(_), WorkStatus::Done(_))) =>
            {
                OutcomeData::Read { peer, index, bytes: work.bytes }
            }
            _ => OutcomeData::Bytes(&[]),
        };
        self.tell(slot, outcome, data, links);
    }

    fn tell<U: Uplinks>(
        &mut self,
        slot: u32,
        outcome: ProxyOutcome,
        data: OutcomeData<'_>,
        links: &mut U,
    ) {
        let Some(client) = self.clients.get_mut(&slot) else { return };
        if client.backlog.is_empty() && links.tell(slot, outcome, data) {
            return;
        }
        let data = match data {
            OutcomeData::Bytes(bytes) => bytes.to_vec(),
            OutcomeData::Read { peer, index, bytes } => links.copy(peer, index, bytes),
        };
        self.behind += usize::from(client.backlog.is_empty());
        client.backlog.push_back((outcome, data));
    }

    /// Puts what was kept back into rings that have room now.
    pub fn deliver<U: Uplinks>(&mut self, links: &mut U) {
        if self.behind == 0 {
            return;
        }
        for (slot, client) in &mut self.clients {
            while let Some((outcome, data)) = client.backlog.front() {
                if !links.tell(*slot, *outcome, OutcomeData::Bytes(data)) {
                    break;
                }
                client.backlog.pop_front();
                self.behind -= usize::from(client.backlog.is_empty());
            }
        }
    }

    fn pump<U: Uplinks>(&mut self, rack: RackId, links: &mut U) {
        if let Some(uplink) = self.uplinks.get_mut(&rack) {
            uplink.pump(links);
        }
    }
}
