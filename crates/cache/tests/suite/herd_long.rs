//! Values that are longer than a slot of HERD's fast path: every length, counts of requests,
//! readers and writers of one key, lost WRITEs, kills of either end, values in another tier,
//! silence.

use crate::herd::{
    LONG, Lossy, Process, await_that, cache, cache_of, check_all, check_none_malformed,
    check_up_to, key_of, shm_server, tcp_server, unique, value_up_to, work_long,
};
use crate::peers::Rng;
use rackpool_cache::herd::message::{Head, MessageKind, request_number};
use rackpool_cache::herd::slot::Read;
use rackpool_cache::herd::{
    Answer, Client, ClientSlots, Engine, Error, Geometry, HerdCounter, HerdServer, SlotFormat,
    ThreadCounters, Transport,
};
use rackpool_cache::{Cache, Mode, Options, Tier, TierConfig, TierError, TierRule};
use rackpool_mem::window::Window;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Longest part in a slot of 1000 bytes.
const PART: usize = 976;

/// A server of each transport before the same cache; the name of the first.
fn servers(cache: Cache, clients: u32, threads: u32) -> (String, [HerdServer; 2]) {
    let name = unique("long");
    let by_shm = shm_server(cache.clone(), &name, clients, threads);
    (name, [by_shm, tcp_server(cache, clients, threads)])
}

fn every_length<L: Transport>(client: &mut Client<L>, server: &HerdServer) {
    let parts = || server.counters().get(HerdCounter::Parts);
    let lengths = [0, 1, 999, 1000, 1001, PART, 2 * PART, 2 * PART + 1, 64 << 10, 1 << 20];
    for (number, bytes) in lengths.into_iter().enumerate() {
        let stored: Vec<u8> = (0..bytes).map(|at| (at * 31 + at / 976 + number) as u8).collect();
        let before = parts();
        client.put(b"colour", &stored, number as u32, 0).unwrap();
        let mut value = b"before".to_vec();
        let flags = client.get(b"colour", &mut value).unwrap();
        assert_eq!(flags, Some(number as u32), "{bytes} bytes");
        assert!(value[..6] == *b"before" && value[6..] == stored, "{bytes} bytes");
        let expected = if bytes > 1000 { 2 * bytes.div_ceil(PART) } else { 0 };
        // It counts behind its last reply.
        await_that("parts are missing", || parts() - before >= expected as u64);
        assert_eq!(parts() - before, expected as u64, "a request for each part, {bytes} bytes");
        // A client that submits is told the length.
        client.submit_get(b"colour").unwrap();
        client.wait().unwrap();
        let polled = client.poll(|_, answer| match answer {
            Answer::Found { value, .. } => assert!(bytes <= 1000 && value == stored),
            Answer::Refused(Error::ValueSize { bytes: told, max_bytes: 1000 }) => {
                assert!(bytes > 1000 && told == bytes as u64);
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(polled.unwrap(), 1);
    }
    let long = client.submit_put(b"colour", &[7; 1001], 0, 0).unwrap_err();
    assert!(matches!(long, Error::ValueSize { bytes: 1001, max_bytes: 1000 }));
    assert!(client.delete(b"colour").unwrap());
    assert_eq!(client.get(b"colour", &mut Vec::new()).unwrap(), None);
}

#[test]
fn values_of_every_length_go_through_both_doors() {
    let (name, [near, far]) = servers(cache(), 4, 2);
    every_length(&mut Client::connect(&name).unwrap(), &near);
    every_length(&mut Client::connect_to(far.addr().unwrap(), 0).unwrap(), &far);
}

#[test]
fn a_value_that_fits_a_slot_is_one_request_and_one_reply_as_before() {
    let server = tcp_server(cache(), 4, 1);
    let mut client = Lossy::client(server.addr().unwrap(), 0);
    for round in 0..300 {
        client.put(b"k", &vec![7; 1000 - round], 0, 0).unwrap();
        let mut value = Vec::new();
        assert_eq!(client.get(b"k", &mut value).unwrap(), Some(0));
        assert_eq!(value.len(), 1000 - round);
    }
    let reminders = client.reminders();
    let wire = client.link().wire();
    if reminders == 0 {
        assert_eq!(wire.writes + wire.rings, 600, "one WRITE an operation");
        assert_eq!(wire.received, 600 + 1 + wire.notices, "one SEND an operation");
    }
    assert_eq!(server.counters().get(HerdCounter::Parts), 0);
}

#[test]
fn a_value_longer_than_the_cache_takes_is_refused_and_the_old_one_stays() {
    let options = Options { memory: 16 << 20, max_value: 100_000, ..Options::default() };
    let server = tcp_server(cache_of(options), 4, 1);
    let mut client = Client::connect_to(server.addr().unwrap(), 0).unwrap();
    client.put(b"k", &[1; 100_000], 0, 0).unwrap();
    let error = client.put(b"k", &[2; 100_001], 0, 0).unwrap_err();
    let told = Error::ValueSize { bytes: 100_001, max_bytes: 100_000 };
    assert_eq!(error.to_string(), told.to_string());
    let mut value = Vec::new();
    client.get(b"k", &mut value).unwrap();
    assert!(value == [1; 100_000]);
    assert!(matches!(client.put(&[7; 251], &[1; 2000], 0, 0), Err(Error::KeySize { .. })));
}

#[test]
fn a_refused_value_is_named_by_its_own_length_and_the_caches_limit() {
    let options = Options { memory: 16 << 20, max_value: 100, ..Options::default() };
    let (name, [_near, far]) = servers(cache_of(options), 4, 1);
    refuse_long_ones(&mut Client::connect(&name).unwrap());
    refuse_long_ones(&mut Client::connect_to(far.addr().unwrap(), 0).unwrap());
}

fn refuse_long_ones<L: Transport>(client: &mut Client<L>) {
    client.put(b"k", &[1; 100], 0, 0).unwrap();
    // Of those that fit a slot, and of those that go in parts.
    for bytes in [101, 1000, 1001, 5000] {
        let Err(Error::ValueSize { bytes: told, max_bytes }) =
            client.put(b"k", &vec![2; bytes], 0, 0)
        else {
            panic!("{bytes} bytes were taken")
        };
        assert_eq!((told, max_bytes), (bytes as u64, 100));
    }
    client.submit_put(b"k", &[2; 101], 0, 0).unwrap();
    client.wait().unwrap();
    let answer = |_, answer: Answer<'_>| match answer {
        Answer::Refused(Error::ValueSize { bytes: 101, max_bytes: 100 }) => {}
        other => panic!("{other:?}"),
    };
    assert_eq!(client.poll(answer).unwrap(), 1);
    let mut value = Vec::new();
    assert!(client.get(b"k", &mut value).unwrap().is_some() && value == [1; 100]);
}

/// Readers see values of one put each, while several change the keys, also to short ones and none.
#[test]
fn every_value_read_is_of_one_put_while_others_change_it() {
    let (name, [_near, far]) = servers(cache(), 8, 2);
    let (addr, is_over) = (far.addr().unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for seed in 1..=2 {
            let (name, is_over) = (&name, &is_over);
            scope.spawn(move || {
                let (mut client, mut rng) = (Client::connect(name).unwrap(), Rng(seed));
                // Relaxed: nothing but the end is told.
                while !is_over.load(Ordering::Relaxed) {
                    let key = rng.below(3);
                    if rng.chance(8) {
                        client.delete(&key_of(key)).unwrap();
                    } else {
                        let value = value_up_to(LONG, key, rng.next());
                        client.put(&key_of(key), &value, 0, 0).unwrap();
                    }
                }
            });
        }
        let mut found = 0;
        let (mut client, mut rng) = (Client::connect_to(addr, 0).unwrap(), Rng(9));
        while found < 300 {
            let (key, mut value) = (rng.below(3), Vec::new());
            if client.get(&key_of(key), &mut value).unwrap().is_some() {
                check_up_to(LONG, key, &value);
                found += 1;
            }
        }
        // Relaxed: as above.
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn lost_parts_are_written_again_and_each_is_taken_once() {
    let server = tcp_server(cache(), 4, 2);
    let mut client = Lossy::client(server.addr().unwrap(), 100);
    let mut rng = Rng(77);
    for round in 0..40 {
        let (key, mut value) = (round % 5, Vec::new());
        let stored = value_up_to(LONG, key, rng.next());
        client.put(&key_of(key), &stored, 3, 0).unwrap();
        assert_eq!(client.get(&key_of(key), &mut value).unwrap(), Some(3));
        assert!(value == stored, "round {round}");
    }
    let (reminders, lost) = (client.reminders(), client.link().wire().lost);
    println!("{lost} WRITEs lost, {reminders} reminders");
    assert!(lost > 0 && reminders > 0);
    check_none_malformed(&server);
}

/// A client that is killed in the midst of long values leaves whole ones, and no memory behind: the
/// store has room for a few values more than there are keys.
#[test]
fn a_killed_client_leaves_whole_long_values_and_no_memory_behind() {
    let options = Options { memory: 8 << 20, mode: Mode::Store, ..Options::default() };
    let (name, servers) = servers(cache_of(options), 16, 2);
    let addr = servers[1].addr().unwrap();
    for round in 0..20 {
        let place = if round % 2 == 0 { name.clone() } else { addr.to_string() };
        let mut child = Process::start("long", &place);
        std::thread::sleep(std::time::Duration::from_millis(round));
        child.kill();
        let found = check_all(&mut Client::connect(&name).unwrap(), LONG, 20);
        assert!(found > 0, "round {round}");
    }
    servers.iter().for_each(check_none_malformed);
}

#[test]
fn a_server_killed_in_the_midst_of_a_long_value_is_gone_at_once() {
    let mut child = Process::start("server", "tcp");
    let mut client = Client::connect_to(child.said.parse().unwrap(), 0).unwrap();
    let works = std::thread::spawn(move || work_long(&mut client).unwrap_err());
    std::thread::sleep(std::time::Duration::from_millis(100));
    child.kill();
    let error = works.join().unwrap();
    assert!(matches!(error, Error::Gone), "{error}");
}

/// A tier in this process that fails on demand.
#[derive(Debug, Default)]
struct Shelf(Mutex<(BTreeMap<u64, Vec<u8>>, bool, u64)>);

impl Shelf {
    fn with<R>(&self, f: impl FnOnce(&mut BTreeMap<u64, Vec<u8>>) -> R) -> Result<R, TierError> {
        let mut inner = self.0.lock().unwrap();
        inner.2 += 1;
        if inner.1 { Err(TierError::Failed("on demand".into())) } else { Ok(f(&mut inner.0)) }
    }
}

impl Tier for Shelf {
    fn alloc(&self, bytes: u64) -> Result<u64, TierError> {
        self.with(|values| {
            let place = values.last_key_value().map_or(0, |(place, _)| place + 1);
            values.insert(place, vec![0; bytes as usize]);
            place
        })
    }

    fn free(&self, place: u64, _: u64) {
        self.0.lock().unwrap().0.remove(&place);
    }

    fn write(&self, place: u64, offset: u64, from: &[u8]) -> Result<(), TierError> {
        self.with(|values| {
            let value = values.get_mut(&place).unwrap();
            value[offset as usize..][..from.len()].copy_from_slice(from);
        })
    }

    fn read(&self, place: u64, offset: u64, to: &mut [u8]) -> Result<(), TierError> {
        self.with(|values| to.copy_from_slice(&values[&place][offset as usize..][..to.len()]))
    }
}

#[test]
fn a_value_in_another_tier_goes_through_herd_and_a_tier_that_fails_is_an_error() {
    let shelf = Arc::new(Shelf::default());
    let tier: Arc<dyn Tier> = Arc::clone(&shelf) as _;
    let tier_config = TierConfig {
        tier,
        min_bytes: 64 << 10,
        memory: 64 << 20,
        max_value: 0,
        rule: TierRule::Length,
    };
    let options = Options { memory: 16 << 20, ..Options::default() };
    let cache = cache_of(options).with_tier(&tier_config).unwrap();
    let name = unique("tier");
    let _server = shm_server(cache, &name, 4, 1);
    let mut client = Client::connect(&name).unwrap();
    let stored: Vec<u8> = (0..5_000_000u32).map(|at| (at * 7 + at / 976) as u8).collect();
    client.put(b"k", &stored, 0, 0).unwrap();
    let asked = shelf.0.lock().unwrap().2;
    assert!(asked < 200, "asked once for many parts, not {asked} times");
    let mut value = Vec::new();
    assert_eq!(client.get(b"k", &mut value).unwrap(), Some(0));
    assert!(value == stored);
    shelf.0.lock().unwrap().1 = true;
    let error = client.get(b"k", &mut value).unwrap_err();
    assert!(matches!(error, Error::Tier) && error.may_retry() && value.len() == stored.len());
    assert!(matches!(client.put(b"k", &stored, 0, 0), Err(Error::Tier)));
    shelf.0.lock().unwrap().1 = false;
    value.clear();
    assert!(client.get(b"k", &mut value).unwrap().is_some() && value == stored);
}

/// The engine alone, with a clock of its own: parts out of order, parts of what was given up.
#[test]
fn a_part_out_of_order_is_not_taken_and_silence_ends_a_long_value() {
    let geometry = Geometry { servers: 1, clients: 1, windows: 1, value_bytes: 1000 };
    let requests = Window::heap(geometry.bytes());
    let replies = requests.clone();
    let (tally, form) = (ThreadCounters::default(), SlotFormat::Ordered);
    let cache = cache_of(Options { memory: 16 << 20, ..Options::default() });
    let mut engine = Engine::new(cache.clone(), form, geometry, 1);
    engine.enter(0, ClientSlots::new(requests.clone(), replies.clone()));
    let mut number = 0;
    let mut ask = |kind, words: [u64; 3], bytes: usize, now| {
        number += 1;
        let asked = request_number(number);
        let value = [&words.map(u64::to_le_bytes).concat()[..], &vec![7; bytes]].concat();
        let head = Head::new(asked, kind).with_lengths(1, value.len() as u16);
        form.publish(&requests, 0, &geometry, &[&head.bytes()[..], b"k", &value].concat());
        assert_eq!(engine.gather(0, &tally), 1);
        engine.run(now, &tally, &mut |_| {});
        engine.lapse(now);
        let mut reply = vec![0; geometry.message_bytes()];
        let read = form.read(&replies, 0, &geometry, asked, &mut reply);
        let Some(Read::Message(head)) = read else { panic!("{read:?}") };
        (head.kind().unwrap(), head.extra, engine.holds_long())
    };
    let (put, get) = (MessageKind::PutPart, MessageKind::GetPart);
    let taken = |extra| (MessageKind::Taken, extra, true);
    assert_eq!(ask(put, [5, 500, 1500], 500, 1000), taken(0), "the first was lost");
    assert_eq!(ask(put, [5, 0, 1500], 500, 1000), taken(500));
    assert_eq!(ask(put, [5, 0, 1500], 500, 1000), taken(500), "it came again");
    assert_eq!(ask(put, [4, 0, 1500], 500, 1000).0, MessageKind::Lapsed, "one given up");
    assert_eq!(ask(put, [5, 500, 1500], 0, 1000).0, MessageKind::Malformed);
    assert_eq!(ask(put, [5, 500, 1500], 500, 31_000), taken(1000));
    assert_eq!(ask(get, [5, 0, 0], 0, 31_000).0, MessageKind::Malformed, "it is being put");
    assert_eq!(ask(put, [6, 0, 600], 600, 31_000).0, MessageKind::Stored, "another instead");
    assert_eq!(ask(put, [6, 0, 600], 600, 31_000).0, MessageKind::Stored, "it came again");
    assert_eq!(ask(get, [7, 0, 0], 0, 31_000).0, MessageKind::Part);
    assert_eq!(ask(get, [7, 0, 0], 0, 31_000).0, MessageKind::Lapsed, "all of it was read");
    assert_eq!(ask(put, [8, 0, 1500], 500, 40_000), taken(500));
    // Nothing is heard of it for 30 s and more: its memory is the cache's again.
    assert_eq!(ask(MessageKind::Get, [0; 3], 0, 70_001).0, MessageKind::Malformed);
    assert_eq!(ask(put, [8, 500, 1500], 500, 70_001), taken(0), "it begins anew");
    assert_eq!(cache.len(), 1);
}
