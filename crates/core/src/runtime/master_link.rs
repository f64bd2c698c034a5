//! The link to the master without its connection: which messages go, what an answer means, where
//! to connect next and after which pause. Hello and join go first on every new connection; calls go
//! once both are answered. Driven by `rackpool::link` over sockets and by the simulator.
//!
//! ```text
//! on_open -> connected --hello, join--> on_reply .. up: send, on_reply .. on_closed -> pause
//! ```
//! Ordering rule: every call that [`MasterLink::send`] took is answered by
//! [`MasterLink::take_replies`] or [`MasterLink::advance`] exactly once: by the master, by
//! `PeerDead` when the connection ended, or by `Timeout`. All calls may be repeated, so a caller
//! that still wants the answer sends again.
//!
//! The join does not wait for the answer to hello: a master that refuses the version takes no call
//! of the connection, and the link ends it with that refusal.

use super::Backoff;
use crate::client::MasterQuery;
use crate::constants::{
    MASTER_BACKOFF_MS_MAX, MASTER_BACKOFF_MS_MIN, MASTER_CALLS_MAX, MASTER_CONNECT_MS_MAX,
    REQUEST_TIMEOUT_MS_DEFAULT,
};
use crate::error::{DeathCause, Error, Result};
use crate::seam::Nanos;
use crate::wire::{
    self, MasterAnswer, MasterCall, MasterReply, MasterRequest, RackInfo, WIRE_VERSION,
};
use crate::{RackId, SessionId};
use std::collections::BTreeMap;
use std::ops::Range;

/// The number of an answer that the master gives unasked, to a connection that it does not take.
pub const UNASKED: u64 = 0;

/// How long a connection may take until it is there, and at first until its hello is answered.
const CONNECT_NS: Nanos = MASTER_CONNECT_MS_MAX * 1_000_000;
/// How long hello may go unanswered where the tries before ended for that.
const GREET_NS_MAX: Nanos = 4 * CONNECT_NS;
/// How long a join and a call may take.
const TIMEOUT_NS: Nanos = REQUEST_TIMEOUT_MS_DEFAULT * 1_000_000;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Down,
    /// Until hello is sent.
    Connecting,
    Greeting,
    Joining,
    /// Calls may be sent.
    Up,
}

/// A call as its sender sees it, which only carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call(MasterCall);

impl From<MasterCall> for Call {
    fn from(call: MasterCall) -> Self {
        Self(call)
    }
}

impl<A> From<&MasterQuery<A>> for Call {
    fn from(query: &MasterQuery<A>) -> Self {
        Self(query.call())
    }
}

impl Call {
    /// The join of a client. Its session is over when its connection closes.
    pub fn join_client(session: SessionId, rack: RackId) -> Self {
        Self(MasterCall::JoinClient { session, rack })
    }

    /// The join of a daemon.
    pub fn join_daemon(info: RackInfo) -> Self {
        Self(MasterCall::JoinDaemon(info))
    }
}

#[derive(Debug)]
pub struct MasterLink {
    /// A call that is made on every new connection before the link is up: that of
    /// [`Call::join_daemon`] or [`Call::join_client`].
    pub join: Option<Call>,
    /// The answer to the join (or hello) of the present or last connection.
    pub welcome: Option<MasterAnswer>,
    /// Why the master does not want this link, as of the last attempt.
    pub refused: Option<Error>,
    addresses: Vec<String>,
    /// Which address is in use or tried next.
    current: usize,
    /// An address that a `NotLeader` named, to be tried before the list.
    leader: Option<String>,
    /// What a `NotLeader` named on a connection that is to end.
    redirect: Option<String>,
    stage: Stage,
    since: Nanos,
    /// How long a connection may take until its hello is answered.
    greet_ns: Nanos,
    /// The calls of the link itself that are not answered: hello, then the join.
    own: Range<u64>,
    outstanding: BTreeMap<u64, Nanos>,
    replies: Vec<MasterReply>,
    id_next: u64,
    backoff: Backoff,
    connections: u64,
}

/// A call that goes on through reconnects and changes of the leader.
#[derive(Debug)]
pub struct LastingCall {
    call: Call,
    /// Under which number it is under way.
    id: Option<u64>,
}

/// What [`MasterLink::advance`] came to.
#[derive(Debug)]
pub enum Advance {
    Send(MasterRequest),
    Answered(Result<MasterAnswer>),
    /// For an answer, or for the link to come up.
    Waits,
}

impl MasterLink {
    /// A link to the master at one of these addresses.
    ///
    /// # Panics
    /// Without an address.
    pub fn new(addresses: Vec<String>) -> Self {
        assert!(!addresses.is_empty(), "a link needs an address");
        Self {
            join: None,
            welcome: None,
            refused: None,
            addresses,
            current: 0,
            leader: None,
            redirect: None,
            stage: Stage::Down,
            since: 0,
            greet_ns: CONNECT_NS,
            own: 0..0,
            outstanding: BTreeMap::new(),
            replies: Vec::new(),
            id_next: 1,
            backoff: Backoff::ms(MASTER_BACKOFF_MS_MIN, MASTER_BACKOFF_MS_MAX),
            connections: 0,
        }
    }

    /// Where to connect to, or where the connection goes.
    pub fn address(&self) -> &str {
        self.leader.as_ref().unwrap_or(&self.addresses[self.current])
    }

    /// The master in the words of an error.
    pub fn peer(&self) -> String {
        format!("master at {}", self.address())
    }

    /// Whether calls can be sent: connected, greeted, joined.
    pub fn is_up(&self) -> bool {
        self.stage == Stage::Up
    }

    /// How often the link came up: a change tells a daemon that it joined anew.
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// Messages so far, hello and join included.
    pub fn calls_sent(&self) -> u64 {
        self.id_next - 1
    }

    /// A connection is being opened.
    pub fn on_open(&mut self, now: Nanos) {
        (self.stage, self.since) = (Stage::Connecting, now);
    }

    /// The connection is there: what is to be sent first.
    pub fn connected(&mut self) -> impl Iterator<Item = MasterRequest> + use<> {
        self.stage = Stage::Greeting;
        let hello = self.number(MasterCall::Hello { version: WIRE_VERSION }.into());
        let join = self.join.clone().map(|join| self.number(join));
        self.own = hello.id..self.id_next;
        std::iter::once(hello).chain(join)
    }

    fn number(&mut self, call: Call) -> MasterRequest {
        let id = self.id_next;
        self.id_next += 1;
        MasterRequest { id, call: call.0 }
    }

    /// Takes a call, which the caller has to send at once; its number comes back with the answer.
    ///
    /// # Errors
    /// Why the master refuses the link, or `PeerDead`, while it is not up; `Busy` with too many
    /// calls under way.
    pub fn send(&mut self, now: Nanos, call: impl Into<Call>) -> Result<MasterRequest> {
        if !self.is_up() {
            return Err(self.refused.clone().unwrap_or_else(|| self.death()));
        }
        if self.outstanding.len() >= MASTER_CALLS_MAX {
            let limit = MASTER_CALLS_MAX as u64;
            return Err(Error::Busy { what: "link to the master (calls)".into(), limit });
        }
        let request = self.number(call.into());
        self.outstanding.insert(request.id, now);
        Ok(request)
    }

    pub fn take_replies(&mut self) -> Vec<MasterReply> {
        std::mem::take(&mut self.replies)
    }

    /// As [`MasterLink::on_reply`], for an encoded message.
    ///
    /// # Errors
    /// `protocol` for what is none: the connection is to end.
    pub fn on_message(&mut self, message: &[u8]) -> Result<bool> {
        wire::decode(message, "master").map(|reply| self.on_reply(reply))
    }

    /// Takes a message of the master; whether the connection goes on.
    #[must_use]
    pub fn on_reply(&mut self, reply: MasterReply) -> bool {
        let is_own = self.own.contains(&reply.id) || reply.id == UNASKED;
        if is_own && matches!(self.stage, Stage::Greeting | Stage::Joining) {
            return self.on_own(reply.answer);
        }
        if self.outstanding.remove(&reply.id).is_none() {
            return true; // It timed out before.
        }
        match &reply.answer {
            Err(Error::NotLeader { leader }) => self.redirect = Some(leader.clone()),
            _ => self.backoff.reset(),
        }
        self.replies.push(reply);
        self.redirect.is_none()
    }

    /// The answer to hello or join.
    fn on_own(&mut self, answer: Result<MasterAnswer>) -> bool {
        self.greet_ns = CONNECT_NS;
        match answer {
            Ok(answer) => {
                self.welcome = Some(answer);
                self.stage = Stage::Joining;
                self.own.start += 1;
                if self.own.is_empty() {
                    self.stage = Stage::Up;
                    self.refused = None;
                    self.connections += 1;
                }
                return true;
            }
            Err(Error::NotLeader { leader }) => self.redirect = Some(leader),
            // The master's error names its caller; the error for our caller names the master.
            Err(Error::Version { found, supported, .. }) => {
                let (peer, found, supported) = (self.peer(), supported, found);
                self.refused = Some(Error::Version { peer, found, supported });
            }
            Err(error) => self.refused = Some(error),
        }
        false
    }

    /// The connection is gone, or there was none: answers what was under way. The pause before the
    /// next attempt, ns. `is_tried`: whether nothing else is left that the address stands for.
    pub fn on_closed(&mut self, now: Nanos, is_tried: bool) -> Nanos {
        // After a connection that served for a while the backoff begins anew; else it grows, so
        // that a master that comes and goes is tried less often.
        if self.is_up() && now.saturating_sub(self.since) > CONNECT_NS {
            self.backoff.reset();
        }
        self.stage = Stage::Down;
        let death = self.death();
        for (id, _) in std::mem::take(&mut self.outstanding) {
            self.replies.push(unanswered(id, death.clone()));
        }
        let redirect = self.redirect.take();
        if redirect.is_some() || is_tried && self.leader.take().is_none() {
            self.current = (self.current + 1) % self.addresses.len();
        }
        if let Some(leader) = redirect {
            self.leader = Some(leader).filter(|leader| !leader.is_empty());
        }
        self.backoff.pause_ns()
    }

    fn death(&self) -> Error {
        Error::PeerDead { peer: self.peer(), cause: DeathCause::Closed }
    }

    /// Answers calls that took too long; whether the connection may go on.
    #[must_use]
    pub fn tick(&mut self, now: Nanos) -> bool {
        let late = |(_, sent): &(&u64, &Nanos)| now.saturating_sub(**sent) > TIMEOUT_NS;
        let late: Vec<u64> = self.outstanding.iter().filter(late).map(|(&id, _)| id).collect();
        for id in late {
            self.outstanding.remove(&id);
            let waited_ms = REQUEST_TIMEOUT_MS_DEFAULT;
            let timeout = Error::Timeout { peer: self.peer(), waited_ms };
            self.replies.push(unanswered(id, timeout));
        }
        let allowed_ns = match self.stage {
            Stage::Connecting => CONNECT_NS,
            Stage::Greeting => self.greet_ns,
            // A fresh master makes a daemon with a new region wait for a lease.
            Stage::Joining => TIMEOUT_NS,
            Stage::Down | Stage::Up => return true,
        };
        let goes_on = now.saturating_sub(self.since) <= allowed_ns;
        if !goes_on && self.stage == Stage::Greeting {
            // It is there and slow: with the same limit each try would end as this one did.
            self.greet_ns = (2 * self.greet_ns).min(GREET_NS_MAX);
        }
        goes_on
    }

    /// A call for [`MasterLink::advance`].
    pub fn begin(&mut self, call: impl Into<Call>) -> LastingCall {
        self.refused = None;
        LastingCall { call: call.into(), id: None }
    }

    /// Goes on with a call: sends it when the link is up, and again when the answer is lost. Fails
    /// at once if the master does not want the link. Answers to other calls stay.
    pub fn advance(&mut self, now: Nanos, call: &mut LastingCall) -> Advance {
        if let Some(id) = call.id {
            match self.replies.iter().position(|reply| reply.id == id) {
                None if self.outstanding.contains_key(&id) => return Advance::Waits,
                None => {}
                Some(at) => match self.replies.remove(at).answer {
                    Err(Error::PeerDead { .. } | Error::NotLeader { .. }) => {}
                    answer => return Advance::Answered(answer),
                },
            }
            call.id = None;
        }
        if !self.is_up() {
            let refused = self.refused.clone().filter(|error| !error.may_retry());
            return refused.map_or(Advance::Waits, |error| Advance::Answered(Err(error)));
        }
        match self.send(now, call.call.clone()) {
            Ok(request) => {
                call.id = Some(request.id);
                Advance::Send(request)
            }
            Err(error) => Advance::Answered(Err(error)),
        }
    }

    /// The answer is no longer wanted. Why the master does not want the link, if that is why there
    /// was none.
    pub fn give_up(&mut self, call: &LastingCall) -> Option<Error> {
        if let Some(id) = call.id {
            self.outstanding.remove(&id);
        }
        self.refused.clone().filter(|_| !self.is_up())
    }
}

/// What stands for the answer that a call does not get.
fn unanswered(id: u64, error: Error) -> MasterReply {
    MasterReply { id, term: 0, index: 0, answer: Err(error) }
}
