//! Clients that come over the fabric, lose their connections and have their daemon started anew:
//! the client's session beside the daemon's table of them.

use crate::daemon_world::{RACK, Rig};
use rackpool_core::client::Session;
use rackpool_core::coherence::Coherence;
use rackpool_core::daemon::{Act, ClientId, Remotes};
use rackpool_core::seam::PeerId;
use rackpool_core::wire::{
    self, RegionInfo, RemoteReply, RemoteRequest, Reply, ReplyFrame, Request, Routed,
};
use rackpool_core::{GAddr, Result, SessionId};

const GRACE_MS: u64 = 1_000;
const AFTER_GRACE_NS: u64 = 2 * GRACE_MS * 1_000_000;

fn region() -> RegionInfo {
    RegionInfo {
        rack: RACK,
        region_id: [1, 2],
        epoch: 1,
        page_shift: 12,
        frame_count: 24,
        emulate_cxl_ns: 0,
        emulate_rdma_ns: 0,
        counts_use: false,
        coherence: Coherence::default(),
    }
}

/// A client and its rack's daemon with what lies between them.
struct Pair {
    rig: Rig,
    remotes: Remotes,
    session: Session,
    connections: u32,
    sessions_made: u64,
}

impl Pair {
    fn new() -> Self {
        let session = Session::over_fabric("daemon of rack 0".into(), SessionId(1));
        let (rig, remotes) = (Rig::new(24), Remotes::new(GRACE_MS));
        Self { rig, remotes, session, connections: 0, sessions_made: 1 }
    }

    /// Sends a message over the latest connection; what the daemon says to it.
    fn send(&mut self, message: RemoteRequest) -> Vec<Act> {
        let from = (PeerId(self.connections), 0);
        let bytes = wire::encode_vec(&Routed { channel: 0, message });
        let (remotes, mut acts) = (&mut self.remotes, Vec::new());
        let served = self.rig.run(|daemon, world| {
            remotes.on_message(from, &bytes, &region(), daemon, world, &mut acts)
        });
        served.expect("nothing crashes").expect("the message is understood");
        acts
    }

    /// A new connection, over which the client names its session; the daemon's answer.
    fn join(&mut self) -> RemoteReply {
        self.connections += 1;
        let mut acts = self.send(self.session.join(7, Vec::new()));
        match acts.pop() {
            Some(Act::Send(_, Routed { message, .. })) if acts.is_empty() => message,
            other => panic!("a join is answered with {other:?}"),
        }
    }

    /// The same, and the client hears the answer: whether it was known, and what becomes of the
    /// request under way.
    fn rejoin(&mut self) -> (bool, Option<Result<Reply>>) {
        let RemoteReply::Joined { known, .. } = self.join() else { panic!("it is welcome") };
        self.sessions_made += 1;
        self.session.joined(known, SessionId(self.sessions_made));
        (known, self.session.rejoined())
    }

    /// The request under way is executed; the answer that goes to the connection's client.
    fn execute(&mut self) -> ReplyFrame {
        let frame = self.session.under_way().expect("a request was begun").clone();
        assert_eq!(self.send(RemoteRequest::Request(frame)), []);
        let (to, reply) = self.rig.world.replies.pop_front().expect("it is answered");
        assert!(matches!(to, ClientId::Remote(_)));
        reply
    }

    /// A request that was executed in a session that is past its grace; the client heard of
    /// neither.
    fn executed_and_forgotten() -> (Self, GAddr) {
        let mut pair = Self::new();
        pair.rig.join(0);
        let counter = pair.rig.alloc(0, 64, false);
        assert_eq!(pair.rejoin(), (false, None));
        pair.session.begin(add(counter));
        pair.execute();
        pair.close();
        pair.forget();
        (pair, counter)
    }

    fn close(&mut self) {
        let (remotes, from) = (&mut self.remotes, PeerId(self.connections));
        self.rig.run(|daemon, _| remotes.on_closed(from, daemon, 0));
    }

    fn forget(&mut self) {
        let remotes = &mut self.remotes;
        self.rig.run(|daemon, world| remotes.expire(AFTER_GRACE_NS, daemon, world));
        assert_eq!(self.records(), 0, "its grace is over");
    }

    /// The daemon is killed and started anew.
    fn restart(&mut self) {
        self.rig.start();
        self.remotes = Remotes::new(GRACE_MS);
        let daemon = self.rig.daemon.as_ref().expect("the daemon runs");
        self.remotes.recover(daemon, 0);
    }

    fn records(&self) -> usize {
        let daemon = self.rig.daemon.as_ref().expect("the daemon runs");
        daemon.sessions().filter(|info| matches!(info.session, SessionId(1..100))).count()
    }
}

fn add(addr: GAddr) -> Request {
    Request::FetchAdd { addr, n: 1 }
}

#[test]
fn what_was_executed_is_answered_again_as_long_as_the_session_is_known() {
    let mut pair = Pair::new();
    pair.rig.join(0);
    let counter = pair.rig.alloc(0, 64, false);
    assert_eq!(pair.rejoin(), (false, None));
    pair.session.begin(add(counter));
    let first = pair.execute();
    pair.close();
    // Two daemons further, and a join with its answer lost in between.
    pair.restart();
    pair.join();
    pair.restart();
    assert_eq!(pair.rejoin(), (true, None), "it is sent again");
    assert_eq!(pair.execute(), first);
    assert_eq!(pair.records(), 1);
}

#[test]
fn a_session_that_an_unanswered_join_has_made_is_not_taken_for_the_one_before_it() {
    for restarts in [false, true] {
        let (mut pair, counter) = Pair::executed_and_forgotten();
        // The daemon has made a session for it, which the client does not hear of.
        pair.join();
        match restarts {
            true => pair.restart(),
            false => pair.close(),
        }
        let (known, ended) = pair.rejoin();
        assert!(!known);
        let unknown = ended.expect("it is not sent again").unwrap_err();
        assert_eq!(unknown.code(), "outcome-unknown");
        assert_eq!(pair.records(), 1, "the session that was made is used");
        // From here on that is the session.
        pair.session.begin(add(counter));
        let second = pair.execute();
        pair.close();
        assert_eq!(pair.rejoin(), (true, None));
        assert_eq!(pair.execute(), second);
    }
}

#[test]
fn a_request_ends_if_any_join_since_it_was_sent_has_found_its_session_forgotten() {
    let (mut pair, _) = Pair::executed_and_forgotten();
    // The connection ends anew before the client comes to its request.
    let RemoteReply::Joined { known: false, .. } = pair.join() else { panic!("it is forgotten") };
    pair.session.joined(false, SessionId(9));
    pair.close();
    let (known, ended) = pair.rejoin();
    assert!(known);
    assert_eq!(ended.expect("it is not sent again").unwrap_err().code(), "outcome-unknown");
}
