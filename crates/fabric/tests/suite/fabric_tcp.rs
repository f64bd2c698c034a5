//! What only the tcp fabric promises: exact numbers of system calls, liveness, back-pressure,
//! bounded connections, and that no peer's bytes can hurt either side.

use crate::fabric_rig::{
    Memory, PAGE, PATIENCE, Rig, TcpRig, at, events_until, key, sge, statuses, wait_until, work,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rackpool_core::constants::{BUFFERED_PIECE_BYTES_MAX, FABRIC_EVENTS_MAX, FABRIC_MESSAGES_MAX};
use rackpool_core::error::DeathCause;
use rackpool_core::seam::{
    Fabric, FabricEvent, Mem, PeerId, PostError, RemoteAddr, Verb, WorkRequest, WorkStatus,
};
use rackpool_fabric::secret::Secret;
use rackpool_fabric::tcp::frame::{
    HEADER_BYTES, HELLO_BYTES, Header, Hello, HelloStatus, Op, Request,
};
use rackpool_fabric::tcp::{TcpEndpoint, start_target};
use rackpool_fabric::{
    EndpointOptions, FabricError, LocalBuffer, LocalBuffers, Target, TargetOptions, TargetSendError,
};
use rackpool_mem::process::monotonic_ns;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// A rig with these options of its endpoint.
fn rig_with(end: EndpointOptions) -> TcpRig {
    let memory = Memory::new();
    TcpRig::with(memory.target_options(), memory, end)
}

/// A rig whose target serves so many connections at once.
fn rig_for(connections_max: u32) -> TcpRig {
    let memory = Memory::new();
    let target = TargetOptions { connections_max, ..memory.target_options() };
    TcpRig::with(target, memory, EndpointOptions::default())
}

/// Polls an endpoint until an event is there for which `is_last` holds.
fn poll_until(
    end: &mut TcpEndpoint,
    mut is_last: impl FnMut(&FabricEvent) -> bool,
) -> Vec<FabricEvent> {
    let wait = |events: &mut Vec<_>| {
        end.wait(monotonic_ns, monotonic_ns() + 10_000_000, None, events);
    };
    events_until(wait, |events| events.iter().any(&mut is_last))
}

fn is_up(event: &FabricEvent) -> bool {
    matches!(event, FabricEvent::Connected { .. })
}

fn closed(event: &FabricEvent) -> bool {
    matches!(event, FabricEvent::Closed { .. })
}

fn cause(events: &[FabricEvent]) -> DeathCause {
    match events.last() {
        Some(FabricEvent::Closed { cause, .. }) => *cause,
        other => panic!("{other:?}"),
    }
}

/// A stream that has said hello to a target.
fn raw_client(target: &Target) -> TcpStream {
    let mut stream = TcpStream::connect(target.local_addr()).unwrap();
    stream.write_all(Hello::of_initiator().as_bytes()).unwrap();
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A listener, and an endpoint's connection to it that has been accepted; `greets` says hello.
fn fake_target(options: EndpointOptions, greets: bool) -> (TcpEndpoint, PeerId, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut end = TcpEndpoint::new(options).unwrap();
    let peer = peer_of(&mut end, listener.local_addr().unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    if greets {
        stream.write_all(Hello::of_target(HelloStatus::Ok, 21, 1).as_bytes()).unwrap();
        poll_until(&mut end, is_up);
        stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
    }
    (end, peer, stream)
}

fn peer_of(end: &mut TcpEndpoint, addr: SocketAddr) -> PeerId {
    end.connect(addr, monotonic_ns()).unwrap()
}

#[test]
fn a_read_of_64_bytes_is_one_send_and_one_receive_on_each_side() {
    let mut rig = rig_with(EndpointOptions { lease_ms: 3_600_000, ..EndpointOptions::default() });
    let buf = rig.end.register(vec![1; 64]).unwrap();
    let local = [sge(buf, 0, 64)];
    rig.one(Verb::Read(at(0)), &local);
    let settled = |rig: &TcpRig, ops: u64| {
        wait_until(|| rig.target().stats().ops >= ops);
        rig.target().stats()
    };
    let (ours, theirs) = (rig.end.stats(), settled(&rig, 1));
    const OPS: u64 = 1000;
    for (verb, sent, received) in
        [(Verb::Read(at(64)), 48, 48 + 64), (Verb::Write(at(64)), 48 + 64, 48)]
    {
        let (ours, theirs) = (rig.end.stats(), settled(&rig, rig.end.stats().ops));
        for _ in 0..OPS {
            assert_eq!(rig.one(verb, &local), WorkStatus::Done(0));
        }
        let (us, them) = (rig.end.stats(), settled(&rig, ours.ops + OPS));
        assert_eq!(us.ops - ours.ops, OPS);
        assert_eq!(us.send_calls - ours.send_calls, OPS);
        assert_eq!(us.recv_calls - ours.recv_calls, OPS);
        assert_eq!(us.sent_bytes - ours.sent_bytes, OPS * sent);
        assert_eq!(us.received_bytes - ours.received_bytes, OPS * received);
        assert_eq!(them.ops - theirs.ops, OPS);
        assert_eq!(them.send_calls - theirs.send_calls, OPS);
        assert_eq!(them.recv_calls - theirs.recv_calls, OPS);
    }
    assert_eq!(ours.pings + theirs.pings, 0);
}

#[test]
fn a_batch_is_sent_under_one_doorbell() {
    let mut rig = TcpRig::new();
    let buf = rig.end.register(vec![1; 64 * 128]).unwrap();
    let locals: Vec<_> = (0..128).map(|i| [sge(buf, 64 * i, 64)]).collect();
    for verb in [Verb::Read(at(0)), Verb::Write(at(0))] {
        let before = rig.end.stats().send_calls;
        let batch: Vec<_> = locals.iter().map(|local| work(0, verb, local)).collect();
        let peer = rig.peer;
        rig.end.post(peer, &batch).unwrap();
        assert_eq!(rig.end.stats().send_calls - before, 1);
        assert_eq!(rig.end.outstanding(peer), 128);
        rig.poll_until(|events| events.len() >= 128);
    }
}

#[test]
fn a_target_on_another_address_than_loopback_is_refused() {
    let memory = Memory::new();
    let mut options = memory.target_options();
    options.listen = "0.0.0.0:0".parse().unwrap();
    let error = start_target(options).err().unwrap();
    assert!(matches!(error, FabricError::NotLoopback { .. }), "{error}");
    let mut end = TcpEndpoint::new(EndpointOptions::default()).unwrap();
    let refused = end.connect("192.0.2.1:1".parse().unwrap(), 0);
    assert!(matches!(refused, Err(FabricError::NotLoopback { .. })));
}

#[test]
fn memory_shorter_than_its_layout_is_refused_with_numbers() {
    let memory = Memory::new();
    let mut options = memory.target_options();
    options.pages = memory.pages.slice(0, PAGE);
    let error = start_target(options).err().unwrap().to_string();
    assert!(error.contains("pages") && error.contains(&PAGE.to_string()), "{error}");
}

#[test]
fn more_connections_than_allowed_are_refused_as_busy_and_admitted_after_one_left() {
    for secret in [None, Some(Secret::new(&[7; 32]).unwrap())] {
        let memory = Memory::new();
        let mut options = memory.target_options();
        (options.connections_max, options.secret) = (1, secret.clone());
        let quiet = || EndpointOptions { secret: secret.clone(), ..EndpointOptions::default() };
        let mut rig = TcpRig::with(options, memory, quiet());
        // It has asked for something, and so does not give way.
        assert_eq!(rig.write(at(0), b"first"), WorkStatus::Done(0));
        let mut second = TcpEndpoint::new(quiet()).unwrap();
        let addr = rig.target().local_addr();
        peer_of(&mut second, addr);
        assert_eq!(cause(&poll_until(&mut second, closed)), DeathCause::Busy);
        assert_eq!(rig.write(at(0), b"undisturbed"), WorkStatus::Done(0));
        let peer = rig.peer;
        rig.end.close(peer);
        poll_until(&mut rig.end, closed);
        wait_until(|| {
            peer_of(&mut second, addr);
            let is_end = |event: &FabricEvent| closed(event) || is_up(event);
            !poll_until(&mut second, is_end).iter().any(closed)
        });
    }
}

#[test]
fn an_address_has_its_share_of_the_places_and_its_silent_ones_go_first() {
    let mut rig = rig_for(8);
    assert_eq!(rig.write(at(0), b"undisturbed"), WorkStatus::Done(0));
    let addr = rig.target().local_addr();
    // A stream of another address of this host, and what the target says to it.
    let come = |last: u8| {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        connect(&socket, &addr).unwrap();
        let mut stream = TcpStream::from(socket);
        let _ = stream.write_all(Hello::of_initiator().as_bytes());
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).unwrap();
        (stream, Hello::read_from_bytes(&hello).unwrap().check().unwrap())
    };
    let is_open = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        matches!((&*stream).read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    };
    let few = come(3);
    let many: Vec<_> = (0..6).map(|_| come(2)).collect();
    assert!(many.iter().chain([&few]).all(|(_, status)| *status == HelloStatus::Ok));
    assert_eq!([come(2).1, come(4).1], [HelloStatus::Busy; 2], "its share, and all places");
    std::thread::sleep(Duration::from_millis(1200));
    let others = [come(4), come(5), come(2)];
    assert!(others.iter().all(|(_, status)| *status == HelloStatus::Ok));
    wait_until(|| many.iter().filter(|(stream, _)| is_open(stream)).count() <= 3);
    assert!(is_open(&few.0) && many[3..].iter().all(|(stream, _)| is_open(stream)));
    assert_eq!(rig.write(at(0), b"still"), WorkStatus::Done(0));
}

#[test]
fn connections_that_ask_for_nothing_give_way_to_those_that_do() {
    let mut rig = rig_for(4);
    assert_eq!(rig.write(at(0), b"undisturbed"), WorkStatus::Done(0));
    let idle: Vec<_> = (0..3).map(|_| raw_client(rig.target())).collect();
    std::thread::sleep(Duration::from_millis(1500));
    let mut late = TcpEndpoint::new(EndpointOptions::default()).unwrap();
    peer_of(&mut late, rig.target().local_addr());
    let events = poll_until(&mut late, |event| closed(event) || is_up(event));
    assert!(!events.iter().any(closed), "{events:?}");
    assert_eq!(rig.write(at(0), b"still"), WorkStatus::Done(0));
    drop(idle);
}

#[test]
fn a_port_where_nobody_listens_is_a_closed_connection_and_nothing_was_sent() {
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut end = TcpEndpoint::new(EndpointOptions::default()).unwrap();
    let peer = peer_of(&mut end, addr);
    let add = Verb::FetchAdd { at: at(0), n: 1 };
    let _ = end.post(peer, &[WorkRequest { id: 4, verb: add, local: &[], signalled: false }]);
    let events = poll_until(&mut end, closed);
    assert_eq!(cause(&events), DeathCause::Closed);
    assert_eq!(statuses(&events), [(4, WorkStatus::Flushed { executed: Some(false) })]);
    assert_eq!(end.post(peer, &[]), Err((0, PostError::Down)));
}

#[test]
fn a_target_that_falls_silent_is_found_within_the_lease() {
    for greets in [true, false] {
        let options = EndpointOptions { lease_ms: 200, ..EndpointOptions::default() };
        let (mut end, _, _stream) = fake_target(options, greets);
        let start = Instant::now();
        let events = poll_until(&mut end, closed);
        assert_eq!(cause(&events), DeathCause::Silent);
        let took = start.elapsed();
        // The lease of 200 ms counts from the connection, which is a little older.
        assert!(took > Duration::from_millis(100), "{took:?}");
        assert!(took < Duration::from_millis(2_000), "{took:?}");
    }
}

#[test]
fn an_application_that_was_away_longer_than_the_lease_finds_its_connection_alive() {
    let mut rig = rig_with(EndpointOptions { lease_ms: 100, ..EndpointOptions::default() });
    let buf = rig.end.register(vec![1; PAGE as usize]).unwrap();
    for bytes in [0, 64, PAGE] {
        rig.post(1, Verb::Read(at(0)), &[sge(buf, 0, bytes)]);
        std::thread::sleep(Duration::from_millis(300));
        let events = poll_until(&mut rig.end, |event| {
            closed(event) || matches!(event, FabricEvent::Completed { .. })
        });
        assert_eq!(statuses(&events), [(1, WorkStatus::Done(0))]);
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(rig.write(at(0), b"alive"), WorkStatus::Done(0));
}

#[test]
fn an_idle_connection_is_kept_by_pings() {
    let mut rig = rig_with(EndpointOptions { lease_ms: 100, ..EndpointOptions::default() });
    let mut events = Vec::new();
    let deadline = monotonic_ns() + 500_000_000;
    assert_eq!(rig.end.wait(monotonic_ns, deadline, None, &mut events), 0, "{events:?}");
    assert!(rig.end.stats().pings >= 3, "{:?}", rig.end.stats());
}

#[test]
fn a_full_application_stops_its_senders_without_loss_and_nobody_else() {
    let memory = Memory::new();
    // The sender must not take the full application for a dead target.
    let mut target = memory.target_options();
    target.lease_ms = 200;
    let options = EndpointOptions { lease_ms: 200, ..EndpointOptions::default() };
    let mut rig = TcpRig::with(target, memory, options);
    let mut other = TcpEndpoint::new(EndpointOptions::default()).unwrap();
    let other_peer = peer_of(&mut other, rig.target().local_addr());
    poll_until(&mut other, is_up);
    let buf = rig.end.register(vec![0; 8]).unwrap();
    let total = FABRIC_EVENTS_MAX + 100;
    let (mut sent, mut events, start) = (0u64, Vec::new(), Instant::now());
    let mut post_some = |rig: &mut TcpRig, events: &mut Vec<FabricEvent>| {
        let local = [sge(buf, 0, 8)];
        while sent < total as u64 {
            // The buffer's bytes go out with the post, since the socket has room.
            rig.end.buffer_mut(buf).copy_from_slice(&sent.to_le_bytes());
            let peer = rig.peer;
            if rig.end.post(peer, &[work(sent, Verb::Send, &local)]).is_err() {
                break;
            }
            sent += 1;
        }
        rig.poll(events);
    };
    while start.elapsed() < Duration::from_millis(700) {
        post_some(&mut rig, &mut events);
    }
    assert!(!events.iter().any(closed), "{:?}", events.last());
    // The connection of the other end was made before the congestion.
    assert_eq!(statuses(&events).len(), FABRIC_EVENTS_MAX);
    let add = Verb::FetchAdd { at: at(0), n: 1 };
    other.post(other_peer, &[work(9, add, &[])]).unwrap();
    poll_until(&mut other, |event| matches!(event, FabricEvent::Completed { .. }));
    let mut got = Vec::new();
    while got.len() < total {
        post_some(&mut rig, &mut events);
        let fresh = rig.application();
        got.extend(fresh.into_iter().filter_map(|event| match event {
            FabricEvent::Received { message, .. } => Some(message),
            _ => None,
        }));
        assert!(start.elapsed() < PATIENCE);
    }
    let expected: Vec<_> = (0..total as u64).map(|i| i.to_le_bytes().to_vec()).collect();
    assert!(got == expected, "each message once and in order");
}

#[test]
fn messages_to_an_initiator_that_reads_nothing_end_in_busy() {
    let rig = TcpRig::new();
    let message = vec![1; 16 << 10];
    let start = Instant::now();
    let mut taken = 0;
    loop {
        match rig.target().send(rig.target_peer, &message) {
            Ok(()) => taken += 1,
            // The thread has had time to move what the socket takes.
            Err(TargetSendError::Busy) => {
                std::thread::sleep(Duration::from_millis(50));
                if rig.target().send(rig.target_peer, &message).is_err() {
                    break;
                }
            }
            Err(other) => panic!("{other}"),
        }
        assert!(start.elapsed() < PATIENCE, "{taken} messages");
    }
    assert!(taken >= FABRIC_MESSAGES_MAX);
    let long = vec![1; (16 << 10) + 1];
    let refused = rig.target().send(rig.target_peer, &long);
    assert!(matches!(refused, Err(TargetSendError::TooLong { .. })));
    rig.target().close(rig.target_peer);
    wait_until(|| rig.target().send(rig.target_peer, b"x") == Err(TargetSendError::Down));
}

#[test]
fn the_application_is_woken_by_messages_and_never_by_one_sided_work() {
    let memory = Memory::new();
    let mut options = memory.target_options();
    let woken = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&woken);
    // Relaxed: a counter, read after the completion that follows it.
    options.waker = Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let mut rig = TcpRig::with(options, memory, EndpointOptions::default());
    // Relaxed: as above.
    let wakes = || woken.load(Ordering::Relaxed);
    assert_eq!(wakes(), 1, "by the connection");
    for _ in 0..100 {
        rig.write(at(0), &[1; 20_000]);
        rig.one(Verb::FetchAdd { at: at(0), n: 1 }, &[]);
    }
    assert_eq!(wakes(), 1);
    rig.one(Verb::Send, &[]);
    rig.one(Verb::WriteImm(at(0), 1), &[]);
    assert_eq!(wakes(), 2, "once until the application has looked");
    assert_eq!(rig.application().len(), 2);
    rig.one(Verb::Send, &[]);
    assert_eq!(wakes(), 3);
}

#[test]
fn a_client_that_stops_in_the_midst_of_a_read_does_not_keep_its_frame_announced() {
    let memory = Memory::new();
    let rig = TcpRig::with(memory.target_options(), memory.clone(), EndpointOptions::default());
    let mut streams: Vec<_> = (0..4).map(|_| raw_client(rig.target())).collect();
    for (seq, stream) in streams.iter_mut().enumerate() {
        for _ in 0..8 {
            let request = Request {
                op: Op::Read,
                seq: seq as u32 + 1,
                bytes: PAGE,
                at: at(0),
                operands: [0, 0],
            };
            stream.write_all(request.header().as_bytes()).unwrap();
        }
    }
    std::thread::sleep(Duration::from_millis(100));
    // `revoke` waits for the cell, and fails if that takes long.
    memory.revoke(0);
}

#[test]
fn a_write_of_what_a_buffer_sends_is_applied_whole_or_not_at_all() {
    let mut rig = TcpRig::new();
    let bytes = BUFFERED_PIECE_BYTES_MAX;
    let request = Request { op: Op::Write, seq: 1, bytes, at: at(0), operands: [0; 2] };
    for sent in [1, 8, 100, bytes / 2 + 1, bytes - 1, bytes] {
        assert_eq!(rig.write(at(0), &vec![1; bytes as usize]), WorkStatus::Done(0));
        let mut stream = raw_client(rig.target());
        stream.write_all(request.header().as_bytes()).unwrap();
        stream.write_all(&vec![2; sent as usize]).unwrap();
        // Long enough for the target to have taken what is there; if not, the check is weaker.
        std::thread::sleep(Duration::from_millis(20));
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // The target's end says that it will do no more for this connection.
        let _ = stream.read_to_end(&mut Vec::new());
        let mut seen = vec![0; bytes as usize];
        assert_eq!(rig.read(at(0), &mut seen), WorkStatus::Done(0));
        let expected = if sent == bytes { 2 } else { 1 };
        assert!(seen.iter().all(|byte| *byte == expected), "{sent} of {bytes} bytes were sent");
    }
}

#[test]
fn a_buffer_taken_back_before_it_was_sent_ends_the_connection_and_nothing_else() {
    let mut rig = TcpRig::new();
    let data = vec![1; PAGE as usize];
    // A target that has its processor takes what is sent as fast as it is sent: then nothing is
    // left to take back, and it is tried again.
    for round in 0.. {
        assert!(round < 50, "the sockets always take everything at once");
        let peer = rig.peer;
        let mut lent = [LocalBuffer::From(&data)];
        let left = rig.end.with_buffers(&mut lent, |end, ids| {
            let local = [sge(ids.id(0), 0, PAGE)];
            let verb = Verb::Write(at(PAGE));
            let batch = [1, 2, 3, 4].map(|id| work(id, verb, &local));
            end.post(peer, &batch).unwrap();
            end.outstanding(peer)
        });
        assert_eq!(left.unwrap(), 4);
        let events = rig.poll_until(|events| statuses(events).len() >= 4);
        let done = statuses(&events);
        if done.iter().all(|(_, status)| *status == WorkStatus::Done(0)) {
            continue;
        }
        if !events.iter().any(closed) {
            poll_until(&mut rig.end, closed);
        }
        wait_until(|| !rig.application().is_empty());
        rig.connect();
        let unsent = WorkStatus::Flushed { executed: Some(false) };
        if let Some(first) = done.iter().position(|(_, status)| *status == unsent) {
            assert!(done[first..].iter().all(|(_, status)| *status == unsent), "{done:?}");
            break;
        }
    }
    assert_eq!(rig.write(at(0), b"again"), WorkStatus::Done(0));
}

#[test]
fn waiting_ends_with_the_deadline_an_event_or_the_other_descriptor() {
    let mut rig = TcpRig::new();
    let start = Instant::now();
    let mut events = Vec::new();
    let soon = |ms: u64| monotonic_ns() + ms * 1_000_000;
    assert_eq!(rig.end.wait(monotonic_ns, soon(30), None, &mut events), 0);
    assert!(start.elapsed() >= Duration::from_millis(30));
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.write_all(b"x").unwrap();
    let start = Instant::now();
    let extra = Some(theirs.as_fd());
    assert_eq!(rig.end.wait(monotonic_ns, soon(10_000), extra, &mut events), 0);
    assert!(start.elapsed() < Duration::from_secs(5));
    let sender = std::thread::scope(|scope| {
        let (target, peer) = (rig.target.as_ref().unwrap(), rig.target_peer);
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            target.send(peer, b"good morning").unwrap();
        });
        rig.end.wait(monotonic_ns, soon(10_000), None, &mut events)
    });
    assert_eq!(sender, 1, "{events:?}");
    assert!(
        matches!(&events[0], FabricEvent::Received { message, .. } if message == b"good morning")
    );
}

#[test]
fn injected_latency_is_added_to_one_sided_operations() {
    let mut rig =
        rig_with(EndpointOptions { emulate_rdma_ns: 3_000_000, ..EndpointOptions::default() });
    let start = Instant::now();
    for _ in 0..5 {
        rig.write(at(0), &[1]);
    }
    assert!(start.elapsed() >= Duration::from_millis(15));
}

#[test]
fn a_target_of_another_version_says_so() {
    let rig = rig_with(EndpointOptions::default());
    let mut stream = TcpStream::connect(rig.target().local_addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut hello = Hello::of_initiator();
    hello.version = 77.into();
    stream.write_all(hello.as_bytes()).unwrap();
    let mut answer = [0; HELLO_BYTES];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, Hello::of_target(HelloStatus::Version, 23, 4).as_bytes());
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

/// A header that is wrong in at most a few places.
fn nearly_valid() -> impl Strategy<Value = Vec<u8>> {
    let fields = (0u8..12, 0u64..200_000, any::<bool>(), 0u64..6 * PAGE, any::<[u64; 2]>());
    (fields, prop::option::weighted(0.3, (0usize..HEADER_BYTES, any::<u8>()))).prop_map(
        |((op, bytes, is_known, offset, operands), flip)| {
            let place = RemoteAddr { offset, key: if is_known { key(3) } else { key(9) } };
            let request = Request { op: Op::Write, seq: 1, bytes, at: place, operands: [0, 0] };
            let mut header: Header = request.header();
            header.op = op;
            if op == 5 || op == 6 {
                header.bytes = 0.into();
                header.operands[0] = operands[0].into();
            }
            let mut bytes = header.as_bytes().to_vec();
            if let Some((place, value)) = flip {
                bytes[place] = value;
            }
            bytes
        },
    )
}

#[test]
fn random_bytes_at_the_target_neither_stop_it_nor_disturb_other_connections() {
    let memory = Memory::new();
    let mut rig = TcpRig::with(memory.target_options(), memory.clone(), EndpointOptions::default());
    // Strangers know the key of frame 3 alone.
    let keep = crate::fabric_rig::pattern(PAGE, 1);
    assert_eq!(rig.write(at(PAGE), &keep), WorkStatus::Done(0));
    let rig = RefCell::new(rig);
    let mut runner = TestRunner::new(Config { cases: 200, ..Config::default() });
    let pieces = prop::collection::vec(
        prop_oneof![nearly_valid(), prop::collection::vec(any::<u8>(), 0..3000)],
        0..20,
    );
    let result = runner.run(&(any::<bool>(), pieces), |(greets, pieces)| {
        let mut rig = rig.borrow_mut();
        let mut stream = TcpStream::connect(rig.target().local_addr()).unwrap();
        stream.set_nonblocking(true).unwrap();
        if greets {
            let _ = stream.write(Hello::of_initiator().as_bytes());
        }
        for piece in pieces {
            let _ = stream.write(&piece);
            let _ = stream.read(&mut [0; 4096]);
        }
        drop(stream);
        rig.application();
        prop_assert_eq!(rig.write(at(0), b"still here"), WorkStatus::Done(0));
        Ok(())
    });
    result.unwrap();
    assert!(memory.bytes(PAGE, PAGE) == keep);
    assert_eq!(memory.pages.load(2 * PAGE), 0);
}

#[test]
fn random_bytes_from_a_target_end_the_connection_or_nothing() {
    let mut runner = TestRunner::new(Config { cases: 60, ..Config::default() });
    let bytes = prop::collection::vec(any::<u8>(), 1..200);
    let cases = (prop::option::of(0u8..12), prop::option::of(0u8..4), bytes);
    let result = runner.run(&cases, |(op, status, mut bytes)| {
        let (mut end, peer, mut stream) = fake_target(EndpointOptions::default(), true);
        if let (Some(op), true) = (op, bytes.len() > 48) {
            // Close to an answer to the first request, which has number 1.
            bytes[..48].fill(0);
            (bytes[0], bytes[2], bytes[4]) = (op, status.unwrap_or(0), 1);
        }
        let buf = end.register(vec![0; 100]).unwrap();
        end.post(peer, &[work(1, Verb::Read(at(0)), &[sge(buf, 0, 100)])]).unwrap();
        stream.write_all(&bytes).unwrap();
        drop(stream);
        poll_until(&mut end, closed);
        Ok(())
    });
    result.unwrap();
}
