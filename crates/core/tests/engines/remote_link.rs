//! A client's link over the fabric, over a transport whose daemon and send queue do what a test
//! says. Time passes where the link waits.

use rackpool_core::coherence::Coherence;
use rackpool_core::error::{DeathCause, Error, Result};
use rackpool_core::runtime::Environment;
use rackpool_core::runtime::client::{LinkMessage, RemoteLink, Sent, Transport, Wait};
use rackpool_core::seam::{Nanos, PeerId, WorkStatus};
use rackpool_core::wire::{
    self, FabricKind, RackInfo, RegionInfo, RemoteReply, RemoteRequest, Reply, ReplyFrame, Request,
    Routed,
};
use rackpool_core::{GAddr, RackId, SessionId};
use std::collections::VecDeque;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// What becomes of a join.
#[derive(Clone, Debug)]
enum Daemon {
    /// The connection never comes up.
    Unreachable,
    /// The connection comes up and ends.
    Ends,
    Silent,
    Refuses(Error),
    /// It answers with a region of pages of so many address bits.
    Serves {
        page_shift: u8,
    },
}

const SERVES: Daemon = Daemon::Serves { page_shift: 12 };

struct Network {
    daemon: Daemon,
    /// ms.
    now: u64,
    opened: Vec<PeerId>,
    closed: Vec<PeerId>,
    buffers: u32,
    /// Waits until there is room in the send queue.
    waits_to_room: u64,
    /// Messages that the send queue has room for at once.
    room: usize,
    requests_sent: u64,
    messages: VecDeque<Vec<u8>>,
    completions: Vec<(u64, WorkStatus)>,
}

fn network(daemon: Daemon) -> Network {
    Network {
        daemon,
        now: 0,
        opened: Vec::new(),
        closed: Vec::new(),
        buffers: 0,
        waits_to_room: 0,
        room: 16,
        requests_sent: 0,
        messages: VecDeque::new(),
        completions: Vec::new(),
    }
}

impl Environment for Network {
    type Instant = u64;

    fn now(&self) -> u64 {
        self.now
    }

    fn after_ms(&self, ms: u64) -> u64 {
        self.now + ms
    }

    fn between_ms(from: u64, to: u64) -> u64 {
        to.saturating_sub(from)
    }

    async fn sleep_ns(&mut self, ns: Nanos) {
        self.now += ns / 1_000_000;
    }

    fn new_session(&mut self) -> Result<SessionId> {
        Ok(SessionId(7))
    }
}

impl Network {
    fn take(&mut self, message: &RemoteRequest) {
        let reply = match (message, &self.daemon) {
            (RemoteRequest::Join { .. }, Daemon::Refuses(error)) => {
                RemoteReply::Refused(error.clone())
            }
            (RemoteRequest::Join { .. }, Daemon::Serves { page_shift }) => RemoteReply::Joined {
                known: true,
                lost: Vec::new(),
                region: RegionInfo {
                    rack: RackId(1),
                    region_id: [1, 2],
                    epoch: 1,
                    page_shift: *page_shift,
                    frame_count: 8,
                    emulate_cxl_ns: 0,
                    emulate_rdma_ns: 0,
                    counts_use: false,
                    coherence: Coherence::default(),
                },
            },
            (RemoteRequest::Request(frame), Daemon::Serves { .. }) => {
                self.requests_sent += 1;
                RemoteReply::Reply(ReplyFrame { seq: frame.seq, reply: Ok(Reply::Pong) })
            }
            _ => return,
        };
        self.messages.push_back(wire::encode_vec(&Routed { channel: 0, message: reply }));
    }
}

impl Transport for Network {
    type Buffer = u32;

    fn process_id(&self) -> u32 {
        1
    }

    fn is_served(&mut self) -> bool {
        true
    }

    fn open_buffer(&mut self) -> Result<u32> {
        self.buffers += 1;
        Ok(self.buffers)
    }

    fn close_buffer(&mut self, _: u32) {
        self.buffers -= 1;
    }

    fn connect(&mut self, _: &RackInfo) -> Result<PeerId> {
        let peer = PeerId(self.opened.len() as u32);
        self.opened.push(peer);
        Ok(peer)
    }

    fn close(&mut self, peer: PeerId) {
        self.closed.push(peer);
    }

    fn send(&mut self, _: PeerId, _: &mut u32, messages: &[LinkMessage]) -> Result<Sent> {
        if self.waits_to_room > 0 {
            return Ok(Sent::Busy);
        }
        let count = messages.len().min(self.room);
        messages[..count].iter().for_each(|message| self.take(&message.message));
        Ok(Sent::Count(count))
    }

    fn take_connected(&mut self, _: PeerId) -> bool {
        !matches!(self.daemon, Daemon::Unreachable)
    }

    fn take_message(&mut self, _: PeerId) -> Option<Vec<u8>> {
        self.messages.pop_front()
    }

    fn take_closed(&mut self) -> Option<PeerId> {
        None
    }

    fn completions(&mut self) -> &mut Vec<(u64, WorkStatus)> {
        &mut self.completions
    }

    async fn next_event(&mut self, _: u64) -> bool {
        unreachable!("a link waits for its own connection")
    }

    async fn wait(&mut self, wait: &Wait<'_, u64>) -> Result<()> {
        let peer = wait.name.to_string();
        if matches!(self.daemon, Daemon::Ends) {
            return Err(Error::PeerDead { peer, cause: DeathCause::Closed });
        }
        if self.now >= wait.deadline {
            return Err(Error::Timeout { peer, waited_ms: self.now - wait.started });
        }
        self.now += 1;
        self.waits_to_room = self.waits_to_room.saturating_sub(1);
        Ok(())
    }
}

fn block<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("the transport answers where it is asked"),
    }
}

fn info() -> RackInfo {
    RackInfo {
        rack: RackId(1),
        region_id: [1, 2],
        epoch: 1,
        page_shift: 12,
        frame_count: 8,
        frames_free: 8,
        host: String::new(),
        control: String::new(),
        fabric: FabricKind::Tcp,
        fabric_addr: String::new(),
        alive: true,
    }
}

fn connected(network: &mut Network) -> RemoteLink<u32> {
    block(RemoteLink::connect(network, &info(), 100)).expect("the daemon serves")
}

#[test]
fn a_connection_whose_join_fails_is_closed() {
    let refusal = Error::Busy { what: "sessions".into(), limit: 1 };
    let failures = [
        (Daemon::Unreachable, "timeout"),
        (Daemon::Ends, "peer-dead"),
        (Daemon::Silent, "timeout"),
        (Daemon::Refuses(refusal), "busy"),
        (Daemon::Serves { page_shift: 3 }, "protocol"),
    ];
    for (daemon, code) in failures {
        // The first connection of a link.
        let mut network = network(daemon.clone());
        let failed = block(RemoteLink::connect(&mut network, &info(), 100)).err();
        assert_eq!(failed.map(|error| error.code()), Some(code), "{daemon:?}");
        assert_eq!(network.opened, network.closed, "{daemon:?}");
        assert_eq!(network.buffers, 0, "{daemon:?}");
    }
}

#[test]
fn a_reconnect_that_fails_closes_the_old_connection_and_the_new_one() {
    let mut network = network(SERVES);
    let mut link = connected(&mut network);
    for daemon in [Daemon::Silent, Daemon::Unreachable, Daemon::Serves { page_shift: 3 }] {
        network.daemon = daemon;
        let deadline = network.now + 100;
        let failed = block(link.over(&mut network, deadline).reconnect(&info(), Vec::new()));
        assert!(failed.is_err());
        assert_eq!(link.peer(), None);
        assert_eq!(network.opened, network.closed);
    }
    network.daemon = SERVES;
    let deadline = network.now + 100;
    block(link.over(&mut network, deadline).reconnect(&info(), Vec::new())).unwrap();
    assert_eq!(link.peer(), network.opened.last().copied());
    assert_eq!(network.opened.len(), network.closed.len() + 1);
}

#[test]
fn a_request_waits_for_room_in_the_send_queue_and_keeps_its_connection() {
    let mut network = network(SERVES);
    let mut link = connected(&mut network);
    let peer = link.peer();
    network.waits_to_room = 5;
    link.session.begin(Request::Ping);
    let reply = block(link.over(&mut network, 100).call(0));
    assert_eq!(reply, Some(Ok(Reply::Pong)));
    assert_eq!((network.now, network.requests_sent), (5, 1));
    assert_eq!((link.peer(), network.opened.len(), network.closed.len()), (peer, 1, 0));
}

#[test]
fn a_request_that_never_had_room_ends_at_its_deadline_without_effect() {
    let mut network = network(SERVES);
    let mut link = connected(&mut network);
    let peer = link.peer();
    network.waits_to_room = 1_000;
    // Had it been sent, its outcome were unknown.
    link.session.begin(Request::Unlock { addr: GAddr(64), token: 1 });
    let reply = block(link.over(&mut network, 100).call(0));
    let error = reply.expect("the connection is up").unwrap_err();
    assert!(matches!(error, Error::Timeout { waited_ms: 100, .. }), "{error}");
    assert_eq!((link.peer(), network.closed.len(), network.requests_sent), (peer, 0, 0));
    // The next one goes over the same connection.
    network.waits_to_room = 0;
    link.session.begin(Request::Ping);
    assert_eq!(block(link.over(&mut network, 200).call(100)), Some(Ok(Reply::Pong)));
    assert_eq!(network.opened.len(), 1);
}

#[test]
fn a_batch_goes_in_pieces_that_the_send_queue_has_room_for() {
    let mut network = network(SERVES);
    let mut link = connected(&mut network);
    let peer = link.peer();
    (network.room, network.waits_to_room) = (2, 3);
    let replies = block(link.over(&mut network, 100).call_many(vec![Request::Ping; 5]));
    assert!(replies.iter().all(|reply| *reply == Ok(Reply::Pong)), "{replies:?}");
    assert_eq!((replies.len(), network.requests_sent), (5, 5));
    assert_eq!((link.peer(), network.closed.len()), (peer, 0));
}
