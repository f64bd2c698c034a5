//! How clients come to a daemon: over the fabric by SEND, or on the control socket of its host.

use super::{AgentEvent, AgentRequest, ReplyFrame, RequestFrame};
use crate::addr::{GAddr, RackId, SessionId};
use crate::coherence::Coherence;
use crate::error::Error;
use serde::{Deserialize, Serialize};

/// SEND messages from a remote client to a daemon, [`Routed`](super::Routed).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoteRequest {
    /// First message of a connection.
    Join {
        version: u32,
        /// The session that the client has, 0 for none.
        session: SessionId,
        /// What its session is called from now on if the daemon does not know `session`. The
        /// client uses it once a daemon has answered, and no sooner: whether its earlier join made
        /// this one or not, no request was sent in it.
        next: SessionId,
        /// Process id of the client, for people.
        pid: u32,
        /// The last mutating request for which the client has taken the answer, 0 for none.
        consumed_seq: u64,
        /// Locks of this rack that the client holds: names and tokens, at most
        /// `LOCKS_OF_SESSION_MAX`.
        locks: Vec<(GAddr, u64)>,
    },
    /// A request of that session.
    Request(RequestFrame),
    /// The client has taken the answer to this mutating request; what it allocated will be in use
    /// once the daemon has answered the same.
    Consumed(u64),
    /// The client leaves on purpose: its session is over.
    Leave,
    /// The client does not use the channel any more, as if a connection of its own had ended.
    Ended,
    /// A daemon that works for others states its identity: a connection that it had before is over,
    /// whether its end was heard of or not.
    Uplink(SessionId),
    /// Of the agent of another host of the rack.
    Agent(AgentRequest),
}

/// SEND messages from a daemon to a remote client, [`Routed`](super::Routed).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoteReply {
    /// To `Join`. `known` says whether the daemon has the session's last answer: if not, a
    /// mutating request that was under way has an unknown outcome.
    Joined {
        /// Whether `session` was known; if not, the session is `next`.
        known: bool,
        /// Tokens of the locks named in `Join` that the session holds no more.
        lost: Vec<u64>,
        region: RegionInfo,
    },
    Refused(Error),
    Reply(ReplyFrame),
    /// To `Consumed`: it is known, also to the next daemon.
    Consumed(u64),
    /// The channel is over, as if a connection of its own had ended.
    Ended,
    /// To the agent of another host of the rack.
    Agent(AgentEvent),
}

/// What a client must know of a region before it uses addresses in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionInfo {
    pub rack: RackId,
    pub region_id: [u64; 2],
    pub epoch: u64,
    /// log2 of the page size.
    pub page_shift: u8,
    pub frame_count: u32,
    /// Injected latency of own-rack accesses, nanoseconds; 0 is none.
    pub emulate_cxl_ns: u32,
    /// Injected latency of one-sided operations to this rack, nanoseconds; 0 is none.
    pub emulate_rdma_ns: u32,
    /// Whether the rack moves pages to where they are used, so that its clients count.
    pub counts_use: bool,
    /// What keeps the caches of the hosts that share the memory in agreement. A process that maps
    /// it follows that, or does not use it.
    pub coherence: Coherence,
}

/// First message of a client on a daemon's control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlHello {
    pub version: u32,
    /// A new random session, or one to resume.
    pub session: SessionId,
    /// The slot to resume; `None` for a new one.
    pub resume_slot: Option<u32>,
    /// Whether the pages are to be handed over read-only.
    pub read_only: bool,
    /// Greater in each hello of a session than in those before it. A client that has stopped
    /// waiting says hello anew over another connection; what it said before may be heard later.
    pub number: u64,
}

/// A daemon's answer to [`ControlHello`]; comes with the file descriptors of slot, bell, table
/// and pages, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlReply {
    Welcome {
        slot: u32,
        region: RegionInfo,
        /// Whether the daemon pays for announcements with `membarrier`; if not, clients fence.
        asymmetric_fence: bool,
        /// Whether the daemon runs on the client's host, so that the hardware keeps the caches of
        /// the two in agreement whatever `region` says.
        beside_daemon: bool,
        /// Where slot, bell, table and pages start behind their descriptors, bytes: not 0 where
        /// one device holds them all.
        offsets: [u64; 4],
    },
    Refused(Error),
}
