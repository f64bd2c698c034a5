//! A handle's session with one daemon: sequence numbers, and what a lost link means for a request
//! that was under way. One request at a time; the daemon applies a sequence number at most once
//! and remembers the answer to the last one, so repeating a request repeats only its answer.

use crate::addr::{GAddr, SessionId};
use crate::coherence;
use crate::error::{DeathCause, Error, Result};
use crate::layout::SlotWord;
use crate::seam::{Mem, Mutation};
use crate::wire::{RemoteRequest, Reply, ReplyFrame, Request, RequestFrame, WIRE_VERSION};

/// What happened to the link while a request was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLoss {
    /// A daemon that knows the session answers again: the request is repeated.
    Resumed,
    /// The daemon that answers now has no record of the session.
    SessionForgotten,
    /// No answer came, and the time is up.
    Gone(DeathCause),
    /// The daemon lives but did not answer in time.
    TimeUp {
        /// How long was waited, ms.
        waited_ms: u64,
    },
}

/// How the answer of a daemon over the fabric is taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    Done(Result<Reply>),
    /// It allocated memory, which the daemon takes back from a session that dies unless it knows
    /// that the answer was taken: tell it that this request's was, and call
    /// [`Session::confirmed`] once that has arrived. Only then may any other process learn of the
    /// memory.
    Confirm(u64),
}

/// The state of one session.
#[derive(Debug)]
pub struct Session {
    peer: String,
    seq: u64,
    under_way: Option<RequestFrame>,
    /// The answer to the request under way, until the daemon knows that it was taken.
    held: Option<Reply>,
    consumed_seq: u64,
    in_doubt: u64,
    /// Over the fabric: the session's name, 0 before the first join, and the one that it gets from
    /// a daemon that does not know that.
    names: (SessionId, SessionId),
    /// A daemon did not know the session since the request under way was sent.
    forgotten: bool,
}

impl Session {
    /// A new session with `peer`, such as `daemon of rack 1`, with a slot that identifies it.
    pub fn new(peer: String) -> Self {
        Self::over_fabric(peer, SessionId(0))
    }

    /// A new session with `peer` over the fabric, to be called `next`.
    pub fn over_fabric(peer: String, next: SessionId) -> Self {
        Self {
            peer,
            seq: 0,
            under_way: None,
            held: None,
            consumed_seq: 0,
            in_doubt: 0,
            names: (SessionId(0), next),
            forgotten: false,
        }
    }

    /// The session's name over the fabric; 0 before a daemon has answered a join.
    pub fn id(&self) -> SessionId {
        self.names.0
    }

    /// The first message of a connection, of a client that holds `locks`. It can be repeated until
    /// it is answered.
    pub fn join(&self, pid: u32, locks: Vec<(GAddr, u64)>) -> RemoteRequest {
        let ((session, next), consumed_seq) = (self.names, self.consumed_seq());
        RemoteRequest::Join { version: WIRE_VERSION, session, next, pid, consumed_seq, locks }
    }

    /// A join was answered. A daemon that did not know the session has made the next one, and
    /// `fresh`, which is not in use, will be the next after that: a record that a join without an
    /// answer has made is never taken for the session in which something was sent.
    pub fn joined(&mut self, known: bool, fresh: SessionId) {
        if !known {
            self.names = (self.names.1, fresh);
            self.forgotten = true;
        }
    }

    /// The link is up again after it was lost: `None` says send the request under way again, else
    /// it has ended with this.
    pub fn rejoined(&mut self) -> Option<Result<Reply>> {
        let forgotten = std::mem::take(&mut self.forgotten);
        self.on_loss(if forgotten { LinkLoss::SessionForgotten } else { LinkLoss::Resumed })
    }

    /// The peer's name for messages.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Starts a request; the frame to send.
    pub fn begin(&mut self, request: Request) -> &RequestFrame {
        assert!(self.under_way.is_none(), "a session has one request under way");
        self.seq += 1;
        self.forgotten = false;
        self.under_way.insert(RequestFrame { seq: self.seq, request })
    }

    /// A request that nothing depends on: its answer, if one comes, is of no session's request.
    pub fn aside(&mut self, request: Request) -> RequestFrame {
        assert!(!request.is_mutating(), "what changes something is waited for");
        assert!(self.under_way.is_none(), "a session has one request under way");
        self.seq += 1;
        RequestFrame { seq: self.seq, request }
    }

    /// As [`Session::on_reply`], for a session without a slot section: its daemon must be told what
    /// was taken.
    pub fn on_remote_reply(&mut self, frame: ReplyFrame) -> Option<Taken> {
        if self.under_way.as_ref()?.seq != frame.seq || self.held.is_some() {
            return None;
        }
        if let Ok(reply @ Reply::Allocated { .. }) = &frame.reply
            && matches!(self.under_way()?.request, Request::Alloc { .. } | Request::AllocIn { .. })
        {
            self.held = Some(reply.clone());
            return Some(Taken::Confirm(frame.seq));
        }
        self.under_way = None;
        Some(Taken::Done(frame.reply))
    }

    /// The daemon knows that the answer was taken, by the message or by a join: the request has
    /// ended.
    pub fn confirmed(&mut self) -> Option<Reply> {
        let reply = self.held.take()?;
        self.consumed_seq = self.under_way.take()?.seq;
        Some(reply)
    }

    /// The last request with an answer that was taken, for a join. The daemon believes no other
    /// number: what was given up before it was confirmed comes back.
    pub fn consumed_seq(&self) -> u64 {
        match (&self.held, &self.under_way) {
            (Some(_), Some(frame)) => frame.seq,
            _ => self.consumed_seq,
        }
    }

    /// The request under way, to be sent again after the link was resumed.
    pub fn under_way(&self) -> Option<&RequestFrame> {
        self.under_way.as_ref()
    }

    /// Takes a reply; `None` if it answers an earlier request that was given up.
    pub fn on_reply(&mut self, frame: ReplyFrame) -> Option<Result<Reply>> {
        if self.under_way.as_ref()?.seq != frame.seq {
            return None;
        }
        self.under_way = None;
        Some(frame.reply)
    }

    /// A request that waits at the daemon is sent again: it waits no longer than `left_ms`.
    pub fn shorten_wait(&mut self, left_ms: u64) {
        if let Some(RequestFrame { request: Request::Lock { wait_ms, .. }, .. }) =
            &mut self.under_way
        {
            *wait_ms = left_ms.min(*wait_ms);
        }
    }

    /// The link was lost: `None` says send again, else the request has ended with this.
    pub fn on_loss(&mut self, loss: LinkLoss) -> Option<Result<Reply>> {
        if loss == LinkLoss::Resumed {
            // The join has told what was taken.
            return self.confirmed().map(Ok);
        }
        let frame = self.under_way.as_ref()?;
        let mutating = frame.request.is_mutating();
        // A lock that was granted went with the session.
        let is_lock = matches!(frame.request, Request::Lock { .. });
        let error = match loss {
            LinkLoss::SessionForgotten if !mutating || is_lock => return None,
            LinkLoss::Gone(cause) if !mutating => {
                Error::PeerDead { peer: self.peer.clone(), cause }
            }
            LinkLoss::TimeUp { waited_ms } if !mutating => {
                Error::Timeout { peer: self.peer.clone(), waited_ms }
            }
            _ => Error::OutcomeUnknown {
                operation: operation_name(&frame.request).into(),
                peer: self.peer.clone(),
            },
        };
        self.abandon_unsent();
        Some(Err(error))
    }

    /// The request was sent before, cannot be sent again and ends with this error, unless it may
    /// have been executed: then its outcome is unknown.
    pub fn give_up(&mut self, error: Error) -> Error {
        let lost = self.on_loss(LinkLoss::Gone(DeathCause::Closed));
        match lost.and_then(Result::err) {
            Some(unknown @ Error::OutcomeUnknown { .. }) => unknown,
            _ => error,
        }
    }

    /// No answer came in time: how the request under way ends.
    ///
    /// # Panics
    /// Without a request under way.
    pub fn time_up(&mut self, waited_ms: u64) -> Result<Reply> {
        self.on_loss(LinkLoss::TimeUp { waited_ms }).expect("time up ends a request")
    }

    /// The request under way ends with this error, or with an unknown outcome if it was sent.
    pub fn end(&mut self, was_sent: bool, error: Error) -> Error {
        if was_sent {
            return self.give_up(error);
        }
        self.abandon_unsent();
        error
    }

    /// The request was never sent: it ends without effect.
    pub fn abandon_unsent(&mut self) {
        self.under_way = None;
        self.in_doubt += u64::from(self.held.take().is_some());
    }

    /// Allocations since the last call that were given up while the daemon was told that they were
    /// taken. They come back with the next join. They are lost if there is none before the daemon
    /// ends the session, and it had heard that they were taken.
    pub fn take_in_doubt(&mut self) -> u64 {
        std::mem::take(&mut self.in_doubt)
    }

    /// As [`Session::on_reply`], for a session with a slot section: the answer to a mutating
    /// request is noted there as taken before the caller learns of it. An allocation in it is the
    /// caller's for good; one that was given up before is not taken by this, and comes back.
    pub fn take_reply<M: Mem>(&mut self, frame: ReplyFrame, slot: &M) -> Option<Result<Reply>> {
        let mutates = self.under_way.as_ref()?.request.is_mutating();
        let seq = frame.seq;
        let reply = self.on_reply(frame)?;
        if mutates {
            coherence::store(slot, Mutation::HideConsumed, SlotWord::ConsumedSeq as u64, seq);
        }
        Some(reply)
    }
}

fn operation_name(request: &Request) -> &'static str {
    match request {
        Request::Alloc { .. } | Request::AllocIn { .. } => "alloc",
        Request::Free { .. } => "free",
        Request::AllocInto { .. } => "alloc_into",
        Request::FreeFrom { .. } => "free_from",
        Request::Cas { .. } => "cas",
        Request::FetchAdd { .. } => "fetch_add",
        Request::Lock { .. } => "lock",
        Request::Unlock { .. } => "unlock",
        Request::CheckLock { .. } => "check of a lock",
        Request::Resolve { .. } => "resolve",
        Request::MoveIn { .. } => "move in",
        Request::MoveOut { .. } => "move out",
        Request::MoveCommit { .. } => "move commit",
        Request::MoveSettle { .. } => "move settle",
        Request::NoteUse { .. } => "report of use",
        Request::NextMove(_) => "question for the next move",
        Request::DecideMove(_) => "decision of a move",
        Request::Decisions { .. } => "question for decisions",
        Request::Stats => "stats",
        Request::Sessions { .. } => "sessions",
        Request::Ping => "ping",
        Request::Fetch(_) => "fetch",
        Request::Store { .. } => "store",
        Request::DrainReport => "drain",
        Request::Balances { .. } => "balance",
        Request::CheckFree { .. } => "check of an allocation",
        Request::FreeApart { .. } => "free_from",
        Request::ReplicaRoom { .. } => "question for memory for replicas",
        Request::ReplicaPoll(_) => "poll of replicas",
        Request::Replicate { .. } => "replica",
        Request::Recall { .. } => "recall of replicas",
        Request::Sharers { .. } => "where replicas are",
        Request::Audit(_) => "audit",
        Request::Reclaim { .. } => "free of what nothing names",
        Request::Persist { .. } => "persist",
        Request::Loan(_) => "loan of objects",
    }
}
