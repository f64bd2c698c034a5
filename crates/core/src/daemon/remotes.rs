//! Clients that come over the fabric: which connection belongs to which session record, and what
//! is done with their messages. A closed connection keeps its record for a while, because the
//! client may come back and ask for the answer that it missed; after that what the session owned
//! is freed.
//!
//! In: messages and ends of connections, time. Out: calls of the engine, and [`Act`]s for the
//! runtime, to be done in their order. Called by the process that owns the engine and the fabric
//! target. Source: DESIGN §3 (exactly once; what an old connection sent never runs after a new
//! one's).

use crate::addr::{GAddr, SessionId};
use crate::constants::{LEASE_MS_DEFAULT, LOCKS_OF_SESSION_MAX, SLOTS_MAX, UPLINK_SILENCE_NS};
use crate::daemon::{ClientId, Daemon, World, WriteBack};
use crate::error::{Error, Result};
use crate::seam::{Mutation, Nanos, PeerId, Probe};
use crate::wire::{
    self, AgentRequest, RegionInfo, RemoteReply, RemoteRequest, Routed, WIRE_VERSION,
};
use std::collections::BTreeMap;

/// Where a client is: its connection, and the channel in it if a daemon shares one among its own
/// clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientRoute {
    pub peer: PeerId,
    /// The channel; 0 for the owner of the connection.
    pub channel: u32,
}

/// What the runtime has to do with a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// End it. Nothing that came over it is executed after anything that is sent later.
    Close(PeerId),
    /// Send a message. If it cannot be sent, the connection is to be ended: when the client comes
    /// back it asks again.
    Send(PeerId, Routed<RemoteReply>),
    /// Write memory into a client's buffer, then send one of its answers, in order with others.
    WriteBack(ClientRoute, Box<WriteBack>),
    /// The agent of another host of the rack said something, which is its owner's to do.
    Agent(PeerId, Box<AgentRequest>),
}

/// All clients of the fabric.
#[derive(Debug)]
pub struct Remotes {
    /// How long a session outlives its connection.
    grace_ns: Nanos,
    record_of: BTreeMap<ClientRoute, u32>,
    place_of: BTreeMap<u32, ClientRoute>,
    /// Daemons that work for their clients, and when they last said so.
    uplinks: BTreeMap<SessionId, (PeerId, Nanos)>,
    closed: BTreeMap<u32, Closed>,
}

/// A session without a connection.
#[derive(Clone, Copy, Debug)]
struct Closed {
    /// When its locks go to others; `None` once they have.
    locks_at: Option<Nanos>,
    over_at: Nanos,
}

impl Remotes {
    /// No session yet; sessions outlive their connections for `grace_ms`.
    pub fn new(grace_ms: u64) -> Self {
        Self {
            grace_ns: grace_ms.saturating_mul(1_000_000),
            record_of: BTreeMap::new(),
            place_of: BTreeMap::new(),
            uplinks: BTreeMap::new(),
            closed: BTreeMap::new(),
        }
    }

    /// After an attach: the records that the region knows get their grace.
    pub fn recover(&mut self, engine: &Daemon, now: Nanos) {
        let remote = engine.sessions().filter(|info| info.record >= SLOTS_MAX);
        let closed = self.closed_at(now);
        self.closed.extend(remote.map(|info| (info.record, closed)));
    }

    fn closed_at(&self, now: Nanos) -> Closed {
        let locks_at = Some(now.saturating_add(LEASE_MS_DEFAULT * 1_000_000));
        Closed { locks_at, over_at: now.saturating_add(self.grace_ns) }
    }

    /// An answer to the client of a session record, if it is connected.
    pub fn answer(&self, record: u32, reply: RemoteReply) -> Option<Act> {
        self.place_of.get(&record).map(|place| to(*place, reply))
    }

    /// Data for the buffer of a session record's client, if it is connected.
    pub fn write_back(&self, record: u32, job: WriteBack) -> Option<Act> {
        self.place_of.get(&record).map(|place| Act::WriteBack(*place, Box::new(job)))
    }

    /// A message of a client. Answers of the engine come through its world, as always. Errors say
    /// what was wrong with the message; its connection is ended by then.
    pub fn on_message<W: World>(
        &mut self,
        (peer, now): (PeerId, Nanos),
        message: &[u8],
        region: &RegionInfo,
        engine: &mut Daemon,
        world: &mut W,
        acts: &mut Vec<Act>,
    ) -> Result<()> {
        let routed = wire::decode::<Routed<RemoteRequest>>(message, "remote client");
        let routed = routed.inspect_err(|_| acts.push(Act::Close(peer)))?;
        let place = ClientRoute { peer, channel: routed.channel };
        match routed.message {
            RemoteRequest::Join { version, session, next, pid, consumed_seq, locks } => {
                let who = ((session, next), pid, consumed_seq);
                let joined = self.join(place, version, who, engine, world, acts);
                acts.push(to(
                    place,
                    match joined {
                        Ok((known, record)) => {
                            let hidden = world.private().mutated(Mutation::HideLostLocks);
                            let shown = if hidden { &[] } else { &locks[..] };
                            let lost = lost_locks(engine, record, shown);
                            RemoteReply::Joined { known, lost, region: region.clone() }
                        }
                        Err(error) => RemoteReply::Refused(error),
                    },
                ));
            }
            RemoteRequest::Consumed(seq) => {
                if let Some(record) = self.record_of.get(&place) {
                    engine.note_consumed(*record, seq, world);
                    acts.push(to(place, RemoteReply::Consumed(seq)));
                }
            }
            RemoteRequest::Leave => {
                if let Some(record) = self.record_of.remove(&place) {
                    self.place_of.remove(&record);
                    engine.end_remote(record, world);
                }
                acts.push(over(place));
            }
            RemoteRequest::Uplink(daemon) => {
                let old = self.uplinks.insert(daemon, (peer, now));
                if let Some((old, _)) = old.filter(|(old, _)| *old != peer) {
                    self.on_closed(old, engine, now);
                    acts.push(Act::Close(old));
                }
            }
            RemoteRequest::Ended => {
                self.on_place_over(place, engine, now);
                acts.push(over(place));
            }
            RemoteRequest::Agent(says) => acts.push(Act::Agent(peer, Box::new(says))),
            RemoteRequest::Request(frame) => match self.record_of.get(&place) {
                Some(record) => engine.on_request(ClientId::Remote(*record), frame, world),
                None => acts.push(over(place)),
            },
        }
        Ok(())
    }

    /// A client says which session it is and what it has taken; whether the session was known, and
    /// its record.
    fn join<W: World>(
        &mut self,
        place: ClientRoute,
        version: u32,
        (sessions, pid, consumed_seq): ((SessionId, SessionId), u32, u64),
        engine: &mut Daemon,
        world: &mut W,
        acts: &mut Vec<Act>,
    ) -> Result<(bool, u32)> {
        if version != WIRE_VERSION {
            let peer = "client".into();
            return Err(Error::Version { peer, found: version, supported: WIRE_VERSION });
        }
        if let Some(record) = self.record_of.get(&place) {
            let reason = format!("it joined before, as record {record}");
            return Err(Error::Protocol { peer: "client".into(), reason });
        }
        let (record, known) = engine.join_remote(sessions, pid, world)?;
        engine.note_consumed(record, consumed_seq, world);
        if let Some(old) = self.place_of.insert(record, place) {
            // Ended before the answer is sent: nothing that the client once sent there is
            // executed after what it sends from now on. Within one connection the order of its
            // messages does the same.
            self.record_of.remove(&old);
            if old.peer != place.peer {
                acts.push(Act::Close(old.peer));
            }
        }
        self.record_of.insert(place, record);
        self.closed.remove(&record);
        Ok((known, record))
    }

    pub fn on_closed(&mut self, peer: PeerId, engine: &mut Daemon, now: Nanos) {
        let of_peer = ClientRoute { peer, channel: 0 }..=ClientRoute { peer, channel: u32::MAX };
        let places: Vec<ClientRoute> =
            self.record_of.range(of_peer).map(|(place, _)| *place).collect();
        for place in places {
            self.on_place_over(place, engine, now);
        }
        self.uplinks.retain(|_, (uplink, _)| *uplink != peer);
    }

    fn on_place_over(&mut self, place: ClientRoute, engine: &mut Daemon, now: Nanos) {
        if let Some(record) = self.record_of.remove(&place) {
            self.place_of.remove(&record);
            let closed = self.closed_at(now);
            self.closed.insert(record, closed);
            engine.leave_remote(record);
        }
    }

    /// Gives the locks of sessions to others that had no connection for a lease, and ends those
    /// that are past their grace. The connections have ended, so nothing that came over them is
    /// executed any more.
    ///
    /// A daemon that works for others and has been silent for long is gone, even if the end of its
    /// connection was not heard of: what is returned ends that.
    pub fn expire<W: World>(&mut self, now: Nanos, engine: &mut Daemon, world: &mut W) -> Vec<Act> {
        let silent = |(_, said): &&(PeerId, Nanos)| now.saturating_sub(*said) > UPLINK_SILENCE_NS;
        let gone: Vec<PeerId> =
            self.uplinks.values().filter(silent).map(|(peer, _)| *peer).collect();
        for peer in &gone {
            self.on_closed(*peer, engine, now);
        }
        let mut over = Vec::new();
        let at_once = world.private().mutated(Mutation::PassLocksAtOnce);
        for (record, closed) in &mut self.closed {
            if closed.over_at <= now {
                over.push(*record);
            } else if closed.locks_at.take_if(|at| *at <= now || at_once).is_some() {
                engine.lose_locks(*record, world);
            }
        }
        for record in over {
            self.closed.remove(&record);
            engine.end_remote(record, world);
        }
        gone.into_iter().map(Act::Close).collect()
    }
}

fn to(place: ClientRoute, message: RemoteReply) -> Act {
    Act::Send(place.peer, Routed { channel: place.channel, message })
}

/// The end of a client's connection, or of its part of one.
fn over(place: ClientRoute) -> Act {
    if place.channel == 0 { Act::Close(place.peer) } else { to(place, RemoteReply::Ended) }
}

/// Tokens of the locks that a client believes to hold and does not. No more are looked at than a
/// session can hold.
fn lost_locks(engine: &Daemon, record: u32, locks: &[(GAddr, u64)]) -> Vec<u64> {
    let named = locks.iter().take(LOCKS_OF_SESSION_MAX);
    let lost = named.filter(|(addr, token)| !engine.holds_lock(record, *addr, *token));
    lost.map(|(_, token)| *token).collect()
}
