//! HERD's fast path over RDMA devices: WRITEs over unreliable connections and SENDs over datagrams,
//! with packets lost. Needs two devices; `cargo xtask vm herd` runs it.
#![cfg(feature = "verbs")]

use crate::herd::{any_port, cache_of, check_done, check_none_malformed, tcp_server, when_free};
use crate::peers::Rng;
use rackpool_cache::Options;
use rackpool_cache::herd::fabric::{RdmaOptions, TransportKind};
use rackpool_cache::herd::{
    Answer, Client, Error, FabricServerOptions, HerdCounter, HerdServer, Ticket, Transport,
};
use std::collections::BTreeMap;
use std::time::Instant;
use xxhash_rust::xxh3::Xxh3;

const KEYS: u64 = 96;
const ROUNDS: u64 = 60;
/// One round in so many puts and reads a long value.
const LONG_EACH: u64 = 10;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn server(clients: u32, threads: u32) -> HerdServer {
    let device = Some(variable("RACKPOOL_VERBS_TARGET_DEVICE"));
    let options = FabricServerOptions::new(any_port(), threads);
    let options = FabricServerOptions { clients, device, ..options };
    let cache = Options { memory: 32 << 20, partitions: 2, seed: 5, ..Options::default() };
    HerdServer::start_fabric(cache_of(cache), &options, threads).unwrap()
}

fn options(kind: TransportKind) -> RdmaOptions {
    let device = variable("RACKPOOL_VERBS_DEVICE");
    RdmaOptions { kind, device, ..RdmaOptions::default() }
}

/// Repeats a call that may get no answer within 6.35 s, by losses one after the other.
fn insist<R>(mut call: impl FnMut() -> Result<R, Error>) -> R {
    for _ in 0..5 {
        match call() {
            Err(Error::Silent { .. }) => {}
            other => return other.unwrap(),
        }
    }
    panic!("no answer");
}

/// Random operations in full windows, each of a round on a key of its own, as what is lost may be
/// done behind what was submitted after it: what was answered, and how many operations that were.
fn answers<L: Transport>(client: &mut Client<L>) -> (u64, u64) {
    let (mut rng, mut digest, mut done) = (Rng(41), Xxh3::new(), 0);
    for round in 0..ROUNDS {
        let mut asked: BTreeMap<Ticket, Vec<u8>> = BTreeMap::new();
        let first = rng.next();
        for place in 0..u64::from(client.windows()) {
            let key = ((first + place) % KEYS).to_le_bytes();
            let value = vec![(round * 7 + place) as u8; rng.below(900)];
            let ticket = match rng.below(8) {
                0..3 => client.submit_put(&key, &value, round as u32, 0),
                3 => client.submit_delete(&key),
                _ => client.submit_get(&key),
            };
            assert!(asked.insert(ticket.unwrap(), Vec::new()).is_none());
            done += 1;
        }
        while client.under_way() > 0 {
            insist(|| client.wait());
            client
                .poll(|ticket, answer| {
                    *asked.get_mut(&ticket).unwrap() = format!("{answer:?}").into_bytes();
                })
                .unwrap();
        }
        asked.values().for_each(|answer| digest.update(answer));
        if round % LONG_EACH == 0 {
            let long: Vec<u8> = (0..5000 + round).map(|at| (at * 3 + round) as u8).collect();
            insist(|| client.put(b"long", &long, 1, 0));
            let mut value = Vec::new();
            insist(|| client.get(b"long", &mut value));
            assert!(value == long, "round {round}");
        }
    }
    (digest.digest(), done)
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask vm herd"]
fn answers_over_connections_and_datagrams_are_those_over_tcp() {
    let tcp = server(4, 1);
    let expected = answers(&mut Client::connect_to(tcp.addr().unwrap(), 0).unwrap());
    let mut reminded = 0;
    for kind in [TransportKind::Connected, TransportKind::Datagrams] {
        let server = server(4, 1);
        let start = Instant::now();
        let mut client = Client::connect_rdma(server.addr().unwrap(), &options(kind)).unwrap();
        assert_eq!(answers(&mut client), expected, "{kind:?}");
        let count = |what| server.counters().get(what);
        let reminders = client.reminders();
        println!(
            "\nresult: {kind:?}: {} operations and {} parts answered as over tcp in {:.1} s, \
             {reminders} reminders, {} requests came again",
            expected.1,
            count(HerdCounter::Parts),
            start.elapsed().as_secs_f64(),
            count(HerdCounter::Repeated),
        );
        // Long ones: a put, and a look-up that tells the length, with its parts apart.
        let longs = ROUNDS.div_ceil(LONG_EACH);
        check_done(&server, expected.1 + longs);
        check_none_malformed(&server);
        reminded += reminders;
    }
    assert!(reminded > 0 || variable("RACKPOOL_LOSSY").is_empty(), "nothing was lost");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask vm herd"]
fn many_clients_come_by_datagrams_and_the_server_has_one_queue_pair_for_them() {
    const CLIENTS: u64 = 1100;
    rackpool_mem::process::raise_descriptor_limit();
    let server = server(CLIENTS as u32, 1);
    let start = Instant::now();
    let addr = server.addr().unwrap();
    let few = RdmaOptions { windows: 2, ..options(TransportKind::Datagrams) };
    let mut clients: Vec<_> =
        (0..CLIENTS).map(|_| Client::connect_rdma(addr, &few).unwrap()).collect();
    let (connected_s, rounds) = (start.elapsed().as_secs_f64(), 3);
    for round in 0..rounds {
        for (number, client) in clients.iter_mut().enumerate() {
            let value = [number as u64, round].map(u64::to_le_bytes).concat();
            client.submit_put(&number.to_le_bytes(), &value, 0, 0).unwrap();
            client.submit_get(&number.to_le_bytes()).unwrap();
            client.ring();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let value = [number as u64, round].map(u64::to_le_bytes).concat();
            while client.under_way() > 0 {
                insist(|| client.wait());
                client
                    .poll(|_, answer| match answer {
                        Answer::Stored => {}
                        Answer::Found { value: found, .. } => assert_eq!(found, value),
                        other => panic!("{other:?}"),
                    })
                    .unwrap();
            }
        }
    }
    let reminders = clients.iter().map(|client| client.reminders()).sum::<u64>();
    let (all_s, operations) = (start.elapsed().as_secs_f64(), 2 * rounds * CLIENTS);
    println!(
        "\nresult: {CLIENTS} clients by datagrams, connected in {connected_s:.1} s, {operations} \
         operations after {all_s:.1} s, {reminders} reminders"
    );
    assert_eq!(server.counters().get(HerdCounter::Puts), rounds * CLIENTS);
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask vm herd"]
fn a_client_has_one_connected_queue_pair_whatever_the_number_of_threads() {
    const CLIENTS: u64 = 5;
    for threads in [1, 2, 3] {
        let server = server(8, threads);
        let addr = server.addr().unwrap();
        let connected = || server.counters().get(HerdCounter::QueuePairs);
        let mut clients: Vec<_> = (0..CLIENTS)
            .map(|_| Client::connect_rdma(addr, &options(TransportKind::Connected)).unwrap())
            .collect();
        assert_eq!(connected(), CLIENTS, "{threads} threads");
        // Each asks every thread.
        for client in &mut clients {
            for key in 0..20u64 {
                insist(|| client.put(&key.to_le_bytes(), &key.to_le_bytes(), 0, 0));
            }
        }
        let _datagrams = Client::connect_rdma(addr, &options(TransportKind::Datagrams)).unwrap();
        assert_eq!(connected(), CLIENTS, "datagrams need none");
        assert_eq!(server.counters().get(HerdCounter::Puts), 20 * CLIENTS);
        println!("\nresult: {CLIENTS} clients of {threads} threads: {} queue pairs", connected());
    }
}

/// A datagram that finds no receive is lost, so each reply's is there before its request goes out
/// (HERD §4.3).
#[test]
#[ignore = "needs RDMA devices: cargo xtask vm herd"]
fn receives_are_posted_before_requests() {
    for kind in [TransportKind::Connected, TransportKind::Datagrams] {
        let server = server(2, 2);
        let mut client = Client::connect_rdma(server.addr().unwrap(), &options(kind)).unwrap();
        let (mut rng, mut made, mut spare) = (Rng(43), 0u64, u64::MAX);
        while made < 4000 {
            let key = (rng.next() % KEYS).to_le_bytes();
            let posted = u64::from(client.link().wire().receives());
            // This one's, and those of all requests with replies that were not taken.
            assert!(posted > client.under_way(), "{posted} receives, {} asked", client.under_way());
            spare = spare.min(posted - client.under_way());
            match client.submit_get(&key) {
                Ok(_) => made += 1,
                Err(Error::Busy { .. }) => {
                    insist(|| client.wait());
                    client.poll(|_, _| ()).unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
        println!("\nresult: {kind:?}: {made} requests, {spare} receives or more beyond theirs");
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask vm herd"]
fn a_frame_goes_from_client_to_client_whatever_its_transport() {
    let server = server(1, 1);
    let addr = server.addr().unwrap();
    for round in 0..6u64 {
        let kind = [TransportKind::Connected, TransportKind::Datagrams][round as usize % 2];
        let mut client = when_free(|| Client::connect_rdma(addr, &options(kind)));
        insist(|| client.put(b"k", &round.to_le_bytes(), 0, 0));
        // What is under way when it ends is dropped.
        client.submit_get(b"k").unwrap();
        client.ring();
    }
    let mut value = Vec::new();
    let connected = options(TransportKind::Connected);
    let mut client = when_free(|| Client::connect_rdma(addr, &connected));
    insist(|| client.get(b"k", &mut value));
    assert_eq!(value, 5u64.to_le_bytes());
    check_none_malformed(&server);
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask vm herd"]
fn a_server_without_a_device_says_so() {
    let server = tcp_server(cache_of(Options { memory: 32 << 20, ..Options::default() }), 1, 1);
    let refused = Client::connect_rdma(server.addr().unwrap(), &options(TransportKind::Connected));
    assert!(matches!(refused, Err(Error::NoDevices)));
}
