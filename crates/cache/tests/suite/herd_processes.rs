//! HERD's fast path between processes: kills and stops of clients and of the server under load,
//! hundreds of clients, greetings and memory that make no sense. Children are this program again.

use crate::herd::{
    Process, ShmClient, ask_neighbours, await_that, cache, check, check_none_malformed, key_of,
    kill_clients, shm_server, unique, value_of, when_free, work_in_batches,
};
use crate::peers::{Rng, WITHIN};
use rackpool_cache::herd::{
    Answer, Client, Error, HerdCounter, HerdServer, HerdStartError, Pipeline, ServerOptions,
};
use rackpool_core::seam::Mem;
use rackpool_fabric::control::{ControlConn, Received};
use rackpool_mem::window::{Access, MapOptions, Window};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn server(name: &str, clients: u32, threads: u32) -> HerdServer {
    shm_server(cache(), name, clients, threads)
}

/// Random operations in windows full or not: now and then a request is the only one under way, or
/// others join it.
fn work(client: &mut ShmClient, seed: u64, go_on: impl FnMut() -> bool) -> Result<u64, Error> {
    work_in_batches(client, seed, 8, go_on)
}

#[test]
fn a_killed_client_frees_its_place_and_leaves_only_whole_values() {
    let name = unique("kill");
    let server = server(&name, 1, 2);
    kill_clients(&server, &name, || Client::connect(&name));
    let tallies = server.counters();
    assert_eq!(tallies.get(HerdCounter::Joined), 10);
    assert!(tallies.get(HerdCounter::Left) >= 9);
}

#[test]
fn a_killed_server_is_a_typed_error_at_once_for_those_who_work_sleep_and_come() {
    let name = unique("server");
    let mut child = Process::start("server", &name);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|seed| {
                let mut client = Client::connect(&name).unwrap();
                scope.spawn(move || work(&mut client, seed, || true).unwrap_err())
            })
            .collect();
        let mut idle = Client::connect(&name).unwrap();
        let mut sleeper = Client::connect(&name).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        // A client that asks a stopped server sleeps.
        child.stop();
        let sleeps = scope.spawn(move || {
            let start = Instant::now();
            (sleeper.get(b"k", &mut Vec::new()).unwrap_err(), start.elapsed())
        });
        std::thread::sleep(Duration::from_millis(200));
        child.kill();
        let (error, waited) = sleeps.join().unwrap();
        println!("asleep for {waited:?}: {error}");
        assert!(matches!(error, Error::Gone), "{error}");
        for worker in workers {
            let error = worker.join().unwrap();
            assert!(matches!(error, Error::Gone), "{error}");
        }
        assert!(matches!(idle.get(b"k", &mut Vec::new()), Err(Error::Gone)));
        // A client that only polls learns it as well.
        idle.submit_get(b"k").unwrap();
        idle.ring();
        let error = (0..1_000_000).find_map(|_| idle.poll(|_, _| panic!("an answer")).err());
        assert!(matches!(error, Some(Error::Gone)));
        assert_eq!(Client::connect(&name).err().unwrap().code(), "io");
    });
}

#[test]
fn a_stopped_server_is_silent_after_the_last_reminder_and_answers_when_it_goes_on() {
    let name = unique("stop");
    let child = Process::start("server", &name);
    let mut client = Client::connect(&name).unwrap();
    client.put(b"k", b"first", 3, 0).unwrap();
    child.stop();
    let error = client.put(b"k", b"second", 0, 0).unwrap_err();
    let Error::Silent { waited_ms, reminders: 6 } = error else { panic!("{error}") };
    println!("silent after {waited_ms} ms");
    assert!(waited_ms >= 6350 && error.may_retry());
    child.go_on();
    // Its answer is not taken any more; it was applied once, before what comes now.
    assert!(client.delete(b"k").unwrap());
    assert!(!client.delete(b"k").unwrap());
    // A short stop is bridged by the reminders.
    child.stop();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| client.put(b"k", b"third", 0, 0));
        std::thread::sleep(Duration::from_millis(400));
        child.go_on();
        asks.join().unwrap().unwrap();
    });
    let mut value = Vec::new();
    assert_eq!(client.get(b"k", &mut value).unwrap(), Some(0));
    assert_eq!(value, b"third");
}

#[test]
fn who_only_polls_a_stopped_server_is_told_that_it_is_silent() {
    let name = unique("polls");
    let child = Process::start("server", &name);
    let mut client = Client::connect(&name).unwrap();
    child.stop();
    client.submit_put(b"k", b"late", 0, 0).unwrap();
    client.ring();
    let start = Instant::now();
    let error = loop {
        if let Err(error) = client.poll(|_, _| panic!("an answer")) {
            break error;
        }
        assert!(start.elapsed() < WITHIN, "no error");
        std::thread::yield_now();
    };
    let Error::Silent { waited_ms, reminders: 6 } = error else { panic!("{error}") };
    assert!(waited_ms >= 6350 && client.reminders() == 6);
    child.go_on();
    client.wait().unwrap();
    assert_eq!(client.poll(|_, answer| assert!(matches!(answer, Answer::Stored))).unwrap(), 1);
}

/// More than a thread watches at once: most of them are found by their bits.
#[test]
fn hundreds_of_clients_are_served_and_the_server_sleeps_between() {
    const CLIENTS: usize = 300;
    let name = unique("many");
    let server = server(&name, CLIENTS as u32, 2);
    let mut clients: Vec<ShmClient> =
        (0..CLIENTS).map(|_| Client::connect_with(&name, 4).unwrap()).collect();
    for round in 0..3u64 {
        for (key, client) in clients.iter_mut().enumerate() {
            client.submit_put(&key_of(key), &value_of(key, round), 0, 0).unwrap();
            client.submit_get(&key_of(key)).unwrap();
            client.ring();
        }
        for (key, client) in clients.iter_mut().enumerate() {
            let mut answers = 0;
            while client.under_way() > 0 {
                client.wait().unwrap();
                client
                    .poll(|_, answer| {
                        answers += 1;
                        match (answers, answer) {
                            (1, Answer::Stored) => {}
                            (2, Answer::Found { value, .. }) => {
                                assert!(value == value_of(key, round));
                            }
                            other => panic!("{other:?}"),
                        }
                    })
                    .unwrap();
            }
            assert_eq!(answers, 2);
        }
        let sleeps = || server.counters().get(HerdCounter::Sleeps);
        let before = sleeps();
        await_that("no client asks and the server does not sleep", || sleeps() > before);
    }
    let tallies = server.counters();
    let counts = [HerdCounter::Puts, HerdCounter::Gets, HerdCounter::Hits, HerdCounter::Joined]
        .map(|what| tallies.get(what));
    assert_eq!(counts, [900, 900, 900, 300]);
    drop(clients);
    await_that("not all have left", || tallies.get(HerdCounter::Left) == 300);
}

/// As many clients as a listener admits by default, and one more.
#[test]
fn a_thousand_clients_share_memory_with_the_server_at_once() {
    const CLIENTS: usize = 1024;
    let limit = rackpool_mem::process::raise_descriptor_limit();
    assert!(limit >= 10_000, "{limit} descriptors are too few: nine a client are needed");
    let name = unique("thousand");
    let server = server(&name, CLIENTS as u32, 2);
    let mut clients: Vec<ShmClient> =
        (0..CLIENTS).map(|_| Client::connect_with(&name, 2).unwrap()).collect();
    assert!(matches!(Client::connect(&name), Err(Error::Full { clients: 1024 })));
    ask_neighbours(&mut clients);
    assert_eq!(server.counters().get(HerdCounter::Puts), 1024);
    check_none_malformed(&server);
}

#[test]
fn several_threads_and_clients_work_without_a_wrong_value() {
    let name = unique("work");
    let server = server(&name, 8, 3);
    let end = Instant::now() + Duration::from_millis(600);
    std::thread::scope(|scope| {
        let works: Vec<_> = (0..4)
            .map(|seed| {
                let name = &name;
                scope.spawn(move || {
                    let windows = [1, 4, 32, 256][seed as usize];
                    let mut client = Client::connect_with(name, windows).unwrap();
                    assert_eq!(client.windows(), windows);
                    work(&mut client, seed, || Instant::now() < end).unwrap()
                })
            })
            .collect();
        let done: Vec<u64> = works.into_iter().map(|work| work.join().unwrap()).collect();
        println!("operations: {done:?}");
        assert!(done.iter().all(|done| *done > 0));
    });
    check_none_malformed(&server);
}

const VERSION: u32 = 7;

fn hello(version: u32, windows: u32) -> Vec<u8> {
    [&b"rpherd\0\0"[..], &version.to_le_bytes(), &windows.to_le_bytes()].concat()
}

fn answer_to(name: &str, hello: &[u8]) -> (ControlConn, Vec<u8>, Vec<OwnedFd>) {
    let conn = ControlConn::connect(name).unwrap();
    conn.send(hello, &[]).unwrap();
    let mut buffer = [0; 256];
    let Received::Message { bytes, fds } = conn.recv_timeout(&mut buffer, WITHIN).unwrap() else {
        panic!("no answer")
    };
    (conn, buffer[..bytes].to_vec(), fds)
}

#[test]
fn greetings_of_other_versions_and_sizes_are_refused_with_a_reason() {
    let name = unique("greet");
    let server = server(&name, 2, 1);
    for wrong in [&hello(VERSION + 1, 4)[..], &hello(VERSION, 4)[1..], b"GET / HTTP/1.1", b"x"] {
        let (conn, answer, fds) = answer_to(&name, wrong);
        assert_eq!((answer.len(), answer[12], fds.len()), (48, 1, 0));
        await_that("the connection stays", || conn.is_closed());
    }
    let error = Client::connect_with(&name, 257).err().unwrap();
    let is_told = matches!(error, Error::BadOption { option: "windows", value: 257, max: 256, .. });
    assert!(is_told, "{error}");
    assert_eq!(server.counters().get(HerdCounter::Rejected), 5);
    let second = HerdServer::start(cache(), &ServerOptions::new(&name), 1);
    assert!(matches!(second, Err(HerdStartError::Control(_))), "the name is taken");
    let none =
        HerdServer::start(cache(), &ServerOptions { clients: 0, ..ServerOptions::new("x") }, 1);
    assert!(matches!(none, Err(HerdStartError::BadOption { option: "clients", .. })));
    Client::connect(&name).unwrap().put(b"k", b"v", 0, 0).unwrap();
    let mut client = Client::connect(&name).unwrap();
    assert!(matches!(client.put(b"", b"v", 0, 0), Err(Error::KeySize { bytes: 0, .. })));
    assert!(matches!(client.get(&[1; 251], &mut Vec::new()), Err(Error::KeySize { .. })));
    let is_long = client.submit_put(b"k", &[0; 1001], 0, 0).unwrap_err();
    assert!(matches!(is_long, Error::ValueSize { bytes: 1001, max_bytes: 1000 }), "{is_long}");
}

/// A client that writes anything anywhere into what it shares damages only its own requests.
#[test]
fn a_client_that_scribbles_harms_no_other() {
    let name = unique("scribble");
    let server = server(&name, 4, 1);
    let (_conn, welcome, fds) = answer_to(&name, &hello(VERSION, 16));
    assert_eq!((welcome[12], fds.len()), (0, 2));
    let map = |fd: &OwnedFd| {
        let bytes = rustix::fs::fstat(fd).unwrap().st_size as u64;
        Window::map(fd.as_fd(), bytes, Access::ReadWrite, MapOptions::default()).unwrap()
    };
    let (memory, bell) = (map(&fds[0]), map(&fds[1]));
    let stop = AtomicBool::new(false);
    let mut client = Client::connect(&name).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng(7);
            // Relaxed: a stop flag.
            while !stop.load(Ordering::Relaxed) {
                let at = 8 * (rng.next() % (memory.bytes() / 8));
                memory.store(at, if rng.chance(2) { rng.next() } else { rng.next() & 0x0310 });
                if rng.chance(8) {
                    bell.store(8 * (rng.next() % (bell.bytes() / 8)), rng.next());
                }
            }
        });
        let end = Instant::now() + Duration::from_millis(600);
        let done = work(&mut client, 3, || Instant::now() < end);
        // Relaxed: a stop flag.
        stop.store(true, Ordering::Relaxed);
        println!("operations: {}", done.unwrap());
    });
    println!("malformed: {}", server.counters().get(HerdCounter::Malformed));
    let mut value = Vec::new();
    client.put(b"after", b"it", 0, 0).unwrap();
    assert!(client.get(b"after", &mut value).unwrap().is_some());
}

#[test]
fn a_two_stage_pipeline_answers_a_client_that_is_alone_by_no_ops() {
    let name = unique("stages");
    let options = ServerOptions { pipeline: Pipeline::TwoStage, ..ServerOptions::new(&name) };
    let _server = HerdServer::start(cache(), &options, 1).unwrap();
    let mut client = when_free(|| Client::connect(&name));
    for key in 0..50 {
        client.put(&key_of(key), &value_of(key, 1), 0, 0).unwrap();
    }
    for key in 0..50 {
        let mut value = Vec::new();
        assert!(client.get(&key_of(key), &mut value).unwrap().is_some());
        check(key, &value);
    }
    let mut rounds = 0;
    work(&mut client, 3, || {
        rounds += 1;
        rounds < 2000
    })
    .unwrap();
}
