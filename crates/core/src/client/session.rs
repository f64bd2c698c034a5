//! A handle's session with one daemon: sequence numbers, and what a lost link means for a request
//! that was under way. One request at a time; the daemon applies a sequence number at most once
//! and remembers the answer to the last one, so repeating a request repeats only its answer.

use crate::error::{DeathCause, Error, Result};
use crate::layout::SlotWord;
use crate::seam::Mem;
use crate::wire::{Reply, ReplyFrame, Request, RequestFrame};

/// What happened to the link while a request was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLoss {
    /// A daemon that knows the session answers again: the request is repeated.
    Resumed,
    /// The daemon that answers now has no record of the session.
    SessionForgotten,
    /// Nobody answers, and the time is up.
    Gone(DeathCause),
    /// The daemon lives but did not answer in time.
    TimeUp {
        /// How long was waited, ms.
        waited_ms: u64,
    },
}

/// The state of one session.
#[derive(Debug)]
pub struct Session {
    peer: String,
    seq: u64,
    under_way: Option<RequestFrame>,
}

impl Session {
    /// A new session with `peer`, such as `daemon of rack 1`.
    pub fn new(peer: String) -> Self {
        Self { peer, seq: 0, under_way: None }
    }

    /// The peer's name for messages.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Starts a request; the frame to send.
    pub fn begin(&mut self, request: Request) -> &RequestFrame {
        assert!(self.under_way.is_none(), "a session has one request under way");
        self.seq += 1;
        self.under_way.insert(RequestFrame { seq: self.seq, request })
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

    /// The link was lost: `None` says send again, else the request has ended with this error.
    pub fn on_loss(&mut self, loss: LinkLoss) -> Option<Error> {
        let frame = self.under_way.as_ref()?;
        let mutating = frame.request.is_mutating();
        let error = match loss {
            LinkLoss::Resumed => return None,
            LinkLoss::SessionForgotten if !mutating => return None,
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
        self.under_way = None;
        Some(error)
    }

    /// The request was never sent: it ends without effect.
    pub fn abandon_unsent(&mut self) {
        self.under_way = None;
    }

    /// As [`Session::on_reply`], for a session with a slot section: the answer to a mutating
    /// request is noted there as taken before the caller learns of it. An allocation in it is the
    /// caller's for good; one that was given up before is not taken by this, and comes back.
    pub fn take_reply<M: Mem>(&mut self, frame: ReplyFrame, slot: &M) -> Option<Result<Reply>> {
        let mutates = self.under_way.as_ref()?.request.is_mutating();
        let seq = frame.seq;
        let reply = self.on_reply(frame)?;
        if mutates {
            slot.store(SlotWord::ConsumedSeq as u64, seq);
        }
        Some(reply)
    }
}

fn operation_name(request: &Request) -> &'static str {
    match request {
        Request::Alloc { .. } => "alloc",
        Request::Free { .. } => "free",
        Request::AllocInto { .. } => "alloc_into",
        Request::FreeFrom { .. } => "free_from",
        Request::Cas { .. } => "cas",
        Request::FetchAdd { .. } => "fetch_add",
        Request::Lock { .. } => "lock",
        Request::Unlock { .. } => "unlock",
        Request::CheckLock { .. } => "check of a lock",
        Request::Resolve { .. } => "resolve",
        Request::Stats => "stats",
        Request::Sessions { .. } => "sessions",
        Request::Ping => "ping",
    }
}
