//! HERD's fast path over a fabric: counts of WRITEs and SENDs, lost WRITEs, a server that sleeps,
//! revoked keys, strangers, and kills of either end. Children are this program again.

use crate::herd::{
    Lossy, Process, TcpClient, any_port, ask_neighbours, await_that, cache, check, check_done,
    check_none_malformed, endpoint, for_rounds, key_of, kill_clients, tcp_server, value_of,
    when_free, work,
};
use crate::peers::{Rng, WITHIN};
use rackpool_cache::herd::fabric::Wire;
use rackpool_cache::herd::{
    Answer, Client, Error, FabricServerOptions, FabricTransport, Geometry, HerdCounter, HerdServer,
    HerdStartError,
};
use rackpool_core::addr::Generation;
use rackpool_core::seam::{
    Fabric, FabricEvent, PeerId, RemoteAddr, Sge, Verb, WorkRequest, WorkStatus,
};
use rackpool_fabric::FabricError;
use rackpool_fabric::secret::Secret;
use rackpool_fabric::tcp::TcpEndpoint;
use rackpool_mem::process::monotonic_ns;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

fn server(clients: u32, threads: u32) -> HerdServer {
    tcp_server(cache(), clients, threads)
}

/// What the endpoint and the server counted agree to the last WRITE and SEND.
fn check_counts(client: &mut Client<FabricTransport<Lossy>>, server: &HerdServer, operations: u64) {
    check_done(server, operations);
    let reminders = client.reminders();
    let lossy = client.link().wire();
    // The hello, and doorbells of clients that asked just when they were not watched any more.
    assert!(lossy.sends >= 1 && lossy.sends - 1 <= lossy.notices);
    if reminders > 0 && !lossy.loses_repeats {
        return println!("{reminders} reminders on a machine that stood still: no counts");
    }
    assert_eq!(lossy.writes + lossy.rings, operations, "one WRITE an operation");
    // The welcome, and what was said beside the replies.
    assert_eq!(lossy.received, operations + 1 + lossy.notices, "one SEND an operation");
    assert_eq!(server.counters().get(HerdCounter::Repeated), 0);
}

#[test]
fn an_operation_is_one_write_and_one_send_and_a_batch_one_doorbell() {
    let server = server(4, 1);
    let mut client = Lossy::client(server.addr().unwrap(), 0);
    let windows = client.windows();
    let before = client.link().wire().posts;
    let rounds = 200;
    for round in 0..rounds {
        for number in 0..windows {
            client.submit_put(&key_of(number as usize), &value_of(1, round), 0, 0).unwrap();
        }
        client.ring();
        while client.under_way() > 0 {
            client.wait().unwrap();
            client.poll(|_, answer| assert!(matches!(answer, Answer::Stored))).unwrap();
        }
    }
    if client.reminders() == 0 {
        let lossy = client.link().wire();
        assert_eq!(lossy.posts - before, rounds + (lossy.sends - 1), "one doorbell a batch");
    }
    check_counts(&mut client, &server, rounds * u64::from(windows));
}

/// A server that looks at windows one after the other while requests come in must not take one
/// before another that was made earlier.
#[test]
fn requests_take_effect_in_the_order_in_which_they_were_made() {
    let server = server(4, 1);
    let mut client = Lossy::client(server.addr().unwrap(), 0);
    let mut rng = Rng(31);
    // The answers that are due: what is stored, or what a look-up finds.
    let mut due: VecDeque<Option<u64>> = VecDeque::new();
    let mut version = 0u64;
    client.put(b"k", &version.to_le_bytes(), 0, 0).unwrap();
    while version < 30_000 {
        for _ in 0..=rng.below(5) {
            let submitted = if rng.below(2) == 0 {
                client.submit_get(b"k").map(|_| due.push_back(Some(version)))
            } else {
                let next = (version + 1).to_le_bytes();
                client.submit_put(b"k", &next, 0, 0).map(|_| {
                    version += 1;
                    due.push_back(None);
                })
            };
            match submitted {
                Ok(()) => {}
                Err(Error::Busy { .. }) => client.wait().unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
        client.ring();
        let take = |_, answer: Answer<'_>| match (due.pop_front().expect("one a request"), answer) {
            (None, Answer::Stored) => {}
            (Some(version), Answer::Found { value, .. }) => {
                assert_eq!(value, version.to_le_bytes())
            }
            other => panic!("{other:?}"),
        };
        client.poll(take).unwrap();
    }
}

#[test]
fn every_operation_answers_over_several_threads() {
    let server = server(4, 3);
    let mut client = Lossy::client(server.addr().unwrap(), 0);
    let mut value = Vec::new();
    assert_eq!(client.get(b"k", &mut value).unwrap(), None);
    for key in 0..100 {
        client.put(&key_of(key), &value_of(key, 7), key as u32, 0).unwrap();
    }
    for key in 0..100 {
        value.clear();
        assert_eq!(client.get(&key_of(key), &mut value).unwrap(), Some(key as u32));
        check(key, &value);
        assert!(client.delete(&key_of(key)).unwrap());
        assert!(!client.delete(&key_of(key)).unwrap());
    }
    client.put(b"k", &[7; 1000], 0, 0).unwrap();
    let long = client.submit_put(b"k", &[7; 1001], 0, 0).unwrap_err();
    assert!(matches!(long, Error::ValueSize { bytes: 1001, max_bytes: 1000 }));
    check_counts(&mut client, &server, 402);
}

/// Pauses of every length around the time after which the server sleeps: a WRITE that comes just
/// then is seen without a reminder.
#[test]
fn a_server_that_falls_asleep_misses_no_write() {
    let server = server(4, 2);
    let mut client = Lossy::client(server.addr().unwrap(), 0);
    // A reminder must not bring what was missed.
    client.link().wire().loses_repeats = true;
    let mut rng = Rng(3);
    let rounds = 600;
    for round in 0..rounds {
        let pause = Duration::from_micros(rng.below(2500) as u64);
        match round % 3 {
            // It sleeps, as an idle process does, or polls the clock.
            0 => std::thread::sleep(pause),
            1 => {
                let start = Instant::now();
                while start.elapsed() < pause {
                    std::hint::spin_loop();
                }
            }
            _ => {}
        }
        client.submit_put(&key_of(round), &value_of(round, 1), 0, 0).unwrap();
        client.ring();
        await_that("a WRITE was missed", || {
            client.poll(|_, answer| assert!(matches!(answer, Answer::Stored))).unwrap() > 0
        });
    }
    let notices = client.link().wire().notices;
    println!("{notices} times not watched, {} sleeps", server.counters().get(HerdCounter::Sleeps));
    assert!(notices > 0, "it never slept");
    check_counts(&mut client, &server, rounds as u64);
}

#[test]
fn a_lost_write_is_written_again_and_applied_once() {
    let server = server(4, 2);
    let mut client = Lossy::client(server.addr().unwrap(), 200);
    let done = work(&mut client, 9, for_rounds(60)).unwrap();
    let reminders = client.reminders();
    let lost = client.link().wire().lost;
    println!("{done} operations, {lost} WRITEs lost, {reminders} reminders");
    assert!(lost > 0 && reminders > 0);
    check_done(&server, done);
    check_none_malformed(&server);
}

#[test]
fn a_request_that_never_arrives_is_a_typed_error_within_the_bound() {
    let server = server(4, 1);
    let mut client = Lossy::client(server.addr().unwrap(), 0);
    client.put(b"k", b"first", 0, 0).unwrap();
    client.link().wire().lose_one_in = 1;
    let error = client.put(b"k", b"second", 0, 0).unwrap_err();
    let Error::Silent { waited_ms, reminders: 6 } = error else { panic!("{error}") };
    assert!(waited_ms >= 6350 && error.may_retry());
    client.link().wire().lose_one_in = 0;
    // It is still under way: the next reminder brings it, and answers come in order.
    assert_eq!(client.get(b"other", &mut Vec::new()).unwrap(), None);
    let mut value = Vec::new();
    assert!(client.get(b"k", &mut value).unwrap().is_some());
    assert_eq!(value, b"second");
    assert_eq!(server.counters().get(HerdCounter::Puts), 2);
}

/// Whether a place is one of thread 0, of a server with two threads: its frames begin at multiples
/// of so many bytes.
fn is_of_first_thread(at: RemoteAddr) -> bool {
    let geometry = Geometry { servers: 2, clients: 1, windows: 16, value_bytes: 1000 };
    at.offset % geometry.bytes().next_power_of_two() < geometry.offset(1, 0, 0)
}

/// A key of each of two threads that have two partitions each, of the cache as `server` makes it.
fn key_of_each_thread() -> [Vec<u8>; 2] {
    let cache = cache();
    [0, 1]
        .map(|thread| (0..).map(key_of).find(|key| cache.partition_of(key) / 2 == thread).unwrap())
}

/// One thread's requests are lost while the other answers all the time.
fn silence_beside_answers(is_waiting: bool) {
    let (server, [lost, answered]) = (server(4, 2), key_of_each_thread());
    let mut client = Lossy::client(server.addr().unwrap(), 0);
    client.link().wire().loses = is_of_first_thread;
    client.submit_put(&lost, b"late", 0, 0).unwrap();
    let (start, mut answers, mut repeated) = (Instant::now(), 0, 0);
    let error = loop {
        client.submit_get(&answered).unwrap();
        client.ring();
        let before = answers;
        let waited = if is_waiting { client.wait() } else { Ok(()) };
        let count = |_, answer: Answer<'_>| {
            assert!(matches!(answer, Answer::Missing));
            answers += 1;
        };
        if let Err(error) = waited.and_then(|()| client.poll(count)) {
            break error;
        }
        if answers == before {
            // Not so fast that it fills its windows.
            std::thread::sleep(Duration::from_micros(100));
        }
        repeated = client.reminders();
        assert!(start.elapsed() < WITHIN, "no error after {answers} answers");
        let mut polled = Ok(0);
        while polled.is_ok() && client.under_way() == 16 {
            polled = client.poll(|_, _| answers += 1);
        }
        if let Err(error) = polled {
            break error;
        }
    };
    println!("{answers} answers, {repeated} reminders, then {error}");
    let Error::Silent { waited_ms, reminders: 6 } = error else { panic!("{error}") };
    assert!(waited_ms >= 6350 && answers > 100 && repeated >= 6);
    // It is repeated on, and applied once when it arrives.
    client.link().wire().loses = |_| false;
    let mut is_stored = false;
    while client.under_way() > 0 {
        let taken = client.poll(|_, answer| is_stored |= matches!(answer, Answer::Stored));
        taken.unwrap();
        assert!(start.elapsed() < 2 * WITHIN, "it was not repeated");
    }
    let found = client.get(&lost, &mut Vec::new()).unwrap();
    assert!(is_stored);
    assert_eq!((found, server.counters().get(HerdCounter::Puts)), (Some(0), 1));
}

#[test]
fn a_request_that_is_lost_while_another_thread_answers_is_repeated_and_silent_in_time() {
    silence_beside_answers(true);
}

#[test]
fn who_only_polls_repeats_as_well_and_is_told_of_silence() {
    silence_beside_answers(false);
}

/// Windows of requests that were given up are free again when these arrive, also for a client that
/// asks by calls only.
#[test]
fn a_window_that_was_given_up_is_free_when_its_request_arrives() {
    let server = server(4, 1);
    let (wire, peer) = Lossy::connect(server.addr().unwrap(), 1);
    let mut client = Client::connect_over(wire, peer, 1).unwrap();
    assert!(matches!(client.put(b"k", b"late", 0, 0), Err(Error::Silent { reminders: 6, .. })));
    assert!(matches!(client.get(b"k", &mut Vec::new()), Err(Error::Busy { windows: 1 })));
    client.link().wire().lose_one_in = 0;
    let (start, mut value) = (Instant::now(), Vec::new());
    let flags = loop {
        match client.get(b"k", &mut value) {
            Err(Error::Busy { windows: 1 }) => std::thread::yield_now(),
            other => break other.unwrap(),
        }
        assert!(start.elapsed() < WITHIN, "its key is busy for ever");
    };
    assert_eq!((flags, &value[..]), (Some(0), &b"late"[..]));
}

/// Posts one work request with these bytes, and waits for what `find` looks for.
fn post_and_await<R>(
    wire: &mut TcpEndpoint,
    peer: PeerId,
    verb: Verb,
    bytes: Vec<u8>,
    find: impl Fn(FabricEvent) -> Option<R>,
) -> R {
    let count = bytes.len() as u64;
    let buf = Wire::register(wire, bytes).unwrap();
    let local = [Sge { buf, offset: 0, bytes: count }];
    let signalled = verb != Verb::Send;
    wire.post(peer, &[WorkRequest { id: 9, verb, local: &local, signalled }]).unwrap();
    let (start, mut events) = (Instant::now(), Vec::new());
    while start.elapsed() < WITHIN {
        Wire::wait(wire, monotonic_ns() + 1_000_000, &mut events);
        if let Some(found) = events.drain(..).find_map(&find) {
            return found;
        }
    }
    panic!("nothing came");
}

/// The outcome of one WRITE under a key.
fn write_under(wire: &mut TcpEndpoint, peer: PeerId, at: RemoteAddr) -> WorkStatus {
    post_and_await(wire, peer, Verb::Write(at), vec![0x55; 64], |event| match event {
        FabricEvent::Completed { status, .. } => Some(status),
        _ => None,
    })
}

/// A hello, and the welcome with the place and the key behind it.
fn hello(wire: &mut TcpEndpoint, peer: PeerId, hello: Vec<u8>) -> Option<Vec<u8>> {
    post_and_await(wire, peer, Verb::Send, hello, |event| match event {
        FabricEvent::Received { message, .. } => Some(Some(message)),
        FabricEvent::Closed { .. } => Some(None),
        _ => None,
    })
}

fn good_hello() -> Vec<u8> {
    [&b"rpherd\0\0"[..], &7u32.to_le_bytes(), &0u32.to_le_bytes()].concat()
}

fn grant_of(welcome: &[u8]) -> RemoteAddr {
    let word = |at: usize| u64::from_le_bytes(welcome[at..at + 8].try_into().unwrap());
    RemoteAddr { offset: word(48), key: Generation(word(56)) }
}

fn client_when_free(addr: SocketAddr) -> TcpClient {
    when_free(|| Client::connect_to(addr, 0))
}

#[test]
fn a_key_is_refused_after_its_connection_ended() {
    let server = server(1, 2);
    let addr = server.addr().unwrap();
    let mut wire = endpoint();
    let peer = wire.connect(addr, monotonic_ns()).unwrap();
    let at = grant_of(&hello(&mut wire, peer, good_hello()).unwrap());
    assert_eq!(write_under(&mut wire, peer, at), WorkStatus::Done(0));
    // Its neighbour's key is none here.
    let other = RemoteAddr { key: Generation(at.key.0 + 1), ..at };
    assert_eq!(write_under(&mut wire, peer, other), WorkStatus::BadKey);
    wire.close(peer);
    wire.poll(monotonic_ns(), &mut Vec::new());
    let mut client = client_when_free(addr);
    client.put(b"k", b"value", 0, 0).unwrap();
    let late = wire.connect(addr, monotonic_ns()).unwrap();
    assert_eq!(write_under(&mut wire, late, at), WorkStatus::BadKey);
    let mut value = Vec::new();
    assert!(client.get(b"k", &mut value).unwrap().is_some());
    assert_eq!(server.counters().get(HerdCounter::Malformed), 0, "the frame was cleared");
}

/// A request that was written and not taken when its client left is dropped afterwards.
#[test]
fn a_frame_is_given_out_clean() {
    let server = server(1, 1);
    let addr = server.addr().unwrap();
    for round in 0..30 {
        let mut client = client_when_free(addr);
        for key in 0..client.windows() as usize {
            client.submit_put(&key_of(key), &value_of(key, round), 0, 0).unwrap();
        }
        client.ring();
        // Of some nothing comes; others go in the midst of it.
        if round % 2 == 1 {
            client.wait().unwrap();
        }
        drop(client);
    }
    let mut client = client_when_free(addr);
    // Nothing that the one before has left is done for this one.
    let counted = || [HerdCounter::Puts, HerdCounter::Repeated].map(|of| server.counters().get(of));
    let before = counted();
    assert!(!client.delete(b"nothing").unwrap());
    let puts = before[0];
    println!("{puts} PUTs of 480 were done before their clients went");
    assert!((15..=480).contains(&puts), "15 clients had an answer");
    assert_eq!(counted(), before);
}

#[test]
fn strangers_and_other_versions_are_refused() {
    let server = server(1, 1);
    let addr = server.addr().unwrap();
    let mut wire = endpoint();
    let peer = wire.connect(addr, monotonic_ns()).unwrap();
    let refused = hello(&mut wire, peer, b"GET / HTTP/1.1".to_vec()).unwrap();
    assert_eq!(refused.len(), 48, "no place behind it");
    assert!(matches!(Client::connect_to(addr, 17), Err(Error::BadOption { max: 16, .. })));
    let client = Client::connect_to(addr, 3).unwrap();
    assert_eq!(client.windows(), 3);
    assert!(matches!(Client::connect_to(addr, 0), Err(Error::Full { clients: 1 })));
    let elsewhere = Client::connect_to("192.0.2.1:1".parse().unwrap(), 0);
    assert!(matches!(elsewhere, Err(Error::Fabric(FabricError::NotLoopback { .. }))));
    let cache = cache();
    let options = FabricServerOptions::new("0.0.0.0:0".parse().unwrap(), 1);
    let open = HerdServer::start_fabric(cache.clone(), &options, 1);
    assert!(matches!(open, Err(HerdStartError::Fabric(FabricError::NotLoopback { .. }))));
    let many = FabricServerOptions { windows: 25, ..FabricServerOptions::new(any_port(), 2) };
    let many = HerdServer::start_fabric(cache, &many, 2);
    assert!(matches!(many, Err(HerdStartError::BadOption { value: 50, max: 48, .. })));
    assert_eq!(server.counters().get(HerdCounter::Rejected), 3);
}

#[test]
fn many_clients_at_once_get_whole_values() {
    let server = server(32, 2);
    let addr = server.addr().unwrap();
    std::thread::scope(|scope| {
        for seed in 0..16 {
            scope.spawn(move || {
                let mut client = Client::connect_to(addr, 0).unwrap();
                work(&mut client, seed, for_rounds(40)).unwrap()
            });
        }
    });
    check_none_malformed(&server);
}

/// More than two thousand clients, all of which ask at the same time. The next one is told that
/// there is no room.
#[test]
fn thousands_of_clients_are_served_at_once() {
    const CLIENTS: u32 = 2200;
    let limit = rackpool_mem::process::raise_descriptor_limit();
    assert!(limit >= 10_000, "{limit} descriptors are too few: four a client are needed");
    let server = server(CLIENTS, 2);
    let addr = server.addr().unwrap();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Client::connect_to(addr, 0).unwrap()).collect();
    ask_neighbours(&mut clients);
    assert!(matches!(Client::connect_to(addr, 0), Err(Error::Full { .. })));
    check_none_malformed(&server);
}

#[test]
fn a_killed_client_frees_its_frame_and_leaves_only_whole_values() {
    let server = server(1, 2);
    let addr = server.addr().unwrap();
    kill_clients(&server, &addr.to_string(), || Client::connect_to(addr, 0));
}

#[test]
fn a_killed_server_is_a_typed_error_at_once_for_those_who_work_and_come() {
    let mut child = Process::start("server", "tcp");
    let addr: SocketAddr = child.said.parse().unwrap();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|seed| {
                let mut client = Client::connect_to(addr, 0).unwrap();
                scope.spawn(move || {
                    let error = work(&mut client, seed, || true).unwrap_err();
                    (error, client.reminders())
                })
            })
            .collect();
        let mut idle = Client::connect_to(addr, 0).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        child.kill();
        for worker in workers {
            let (error, _) = worker.join().unwrap();
            assert!(matches!(error, Error::Gone), "{error}");
        }
        assert!(matches!(idle.get(b"k", &mut Vec::new()), Err(Error::Gone)));
        assert!(matches!(Client::connect_to(addr, 0), Err(Error::Gone)));
    });
}

#[test]
fn who_has_the_secret_comes_in_and_nobody_else() {
    let secret = |byte| Some(Secret::new(&[byte; 32]).unwrap());
    let options =
        FabricServerOptions { secret: secret(7), ..FabricServerOptions::new(any_port(), 1) };
    let server = HerdServer::start_fabric(cache(), &options, 1).unwrap();
    let addr = server.addr().unwrap();
    let mut client = Client::connect_at(addr, 0, secret(7)).unwrap();
    client.put(b"k", &[7; 5000], 0, 0).unwrap();
    let mut value = Vec::new();
    assert!(client.get(b"k", &mut value).unwrap().is_some() && value == [7; 5000]);
    for other in [secret(8), None] {
        assert!(matches!(Client::connect_at(addr, 0, other), Err(Error::Gone)));
    }
    assert_eq!(server.counters().get(HerdCounter::Joined), 1);
}

/// A server without a device refuses clients that would come by one; a program without verbs has
/// none.
#[test]
fn a_door_without_its_device_does_not_open() {
    let device = Some("no-such-device".to_owned());
    let options = FabricServerOptions { device, ..FabricServerOptions::new(any_port(), 1) };
    match HerdServer::start_fabric(cache(), &options, 1) {
        Err(HerdStartError::Fabric(error)) => assert!(error.is_absence(), "{error}"),
        _ => panic!("it opened"),
    }
}
