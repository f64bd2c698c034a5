//! The tcp fabric with a secret: a client that has it is served as without one, a client without it
//! is told so at once and touches nothing, and strangers keep no client out.

use crate::fabric_rig::{Memory, PAGE, PATIENCE, Rig, TcpRig, at, events_until, wait_until, work};
use rackpool_core::constants::UNPROVEN_CONNECTIONS_MAX;
use rackpool_core::error::{DeathCause, Distrust};
use rackpool_core::seam::{Fabric, FabricEvent, Mem, Sge, Verb, WorkStatus};
use rackpool_fabric::handshake::MESSAGE_BYTES;
use rackpool_fabric::secret::Secret;
use rackpool_fabric::tcp::frame::{HELLO_BYTES, Hello};
use rackpool_fabric::tcp::{TcpEndpoint, start_target};
use rackpool_fabric::{EndpointOptions, LocalBuffers, Target, TargetOptions, shared};
use rackpool_mem::process::monotonic_ns;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;
use zerocopy::IntoBytes;

fn secret(byte: u8) -> Option<Secret> {
    Some(Secret::new(&[byte; 32]).unwrap())
}

fn encrypting(byte: u8) -> Option<Secret> {
    secret(byte).map(|secret| secret.encrypting(true))
}

fn end_options(secret: Option<Secret>) -> EndpointOptions {
    EndpointOptions { secret, ..EndpointOptions::default() }
}

fn target_options(memory: &Memory, secret: Option<Secret>) -> TargetOptions {
    TargetOptions { secret, ..memory.target_options() }
}

fn rig() -> TcpRig {
    let memory = Memory::new();
    TcpRig::with(target_options(&memory, secret(7)), memory, end_options(secret(7)))
}

/// How a connection of an endpoint with these options to `addr` ends.
fn end_of(options: EndpointOptions, addr: SocketAddr) -> DeathCause {
    let mut end = TcpEndpoint::new(options).unwrap();
    end.connect(addr, monotonic_ns()).unwrap();
    let events = happened(&mut end, 1);
    let [FabricEvent::Closed { cause, .. }] = events[..] else { panic!("{events:?}") };
    cause
}

/// The first events of an endpoint.
fn happened(end: &mut TcpEndpoint, count: usize) -> Vec<FabricEvent> {
    let wait = |events: &mut Vec<_>| {
        end.wait(monotonic_ns, monotonic_ns() + 10_000_000, None, events);
    };
    events_until(wait, |events| events.len() >= count)
}

/// Waits until the target counts so many connections.
fn wait_for_connections(target: &Target, expected: impl Fn(u64) -> bool) {
    wait_until(|| expected(target.stats().connections));
}

#[test]
fn one_secret_on_both_sides_is_two_messages_each_and_then_as_without() {
    let bytes_of = |secret: Option<Secret>| {
        let memory = Memory::new();
        let options = EndpointOptions { lease_ms: 3_600_000, ..end_options(secret.clone()) };
        let mut rig = TcpRig::with(target_options(&memory, secret), memory, options);
        assert_eq!(rig.write(at(64), b"through"), WorkStatus::Done(0));
        let mut back = [0; 7];
        assert_eq!(rig.read(at(64), &mut back), WorkStatus::Done(0));
        assert_eq!(&back, b"through");
        let stats = rig.end.stats();
        [stats.sent_bytes, stats.received_bytes]
    };
    let (without, with) = (bytes_of(None), bytes_of(secret(7)));
    assert_eq!(with.map(|bytes| bytes - 2 * MESSAGE_BYTES as u64), without);
}

#[test]
fn without_a_secret_the_first_bytes_are_the_hello_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut end = TcpEndpoint::new(end_options(None)).unwrap();
    end.connect(listener.local_addr().unwrap(), monotonic_ns()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut hello = [0; HELLO_BYTES];
    stream.set_nonblocking(true).unwrap();
    wait_until(|| {
        end.poll(monotonic_ns(), &mut Vec::new());
        stream.read(&mut hello).is_ok()
    });
    assert_eq!(hello, Hello::of_initiator().as_bytes());
    end.poll(monotonic_ns(), &mut Vec::new());
    assert!(stream.read(&mut hello).is_err(), "nothing follows");
}

/// How many were refused, once it is as many: counts are published at the end of a turn.
fn refused(target: &Target, expected: u64) -> u64 {
    let start = Instant::now();
    while target.stats().refused < expected && start.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    target.stats().refused
}

#[test]
fn ends_that_have_not_one_secret_say_so_at_once_and_nothing_is_served() {
    for (theirs, ours, why) in [
        (secret(7), secret(8), Distrust::OtherSecret),
        (None, secret(7), Distrust::TargetHasNone),
        (secret(7), None, Distrust::InitiatorHasNone),
        (secret(7), encrypting(7), Distrust::TargetInClear),
        (encrypting(7), secret(7), Distrust::InitiatorInClear),
        (encrypting(7), encrypting(8), Distrust::OtherSecret),
    ] {
        let memory = Memory::new();
        let target = start_target(target_options(&memory, theirs)).unwrap();
        let options = end_options(ours);
        let expected = DeathCause::Distrusted(why);
        assert_eq!(end_of(options.clone(), target.local_addr()), expected);
        // The threads of a pool that share one endpoint hear the same.
        let shared_endpoint = shared::SharedEndpoint::new(options).unwrap();
        let mut member = shared::MemberEndpoint::new(&shared_endpoint).unwrap();
        let peer = member.connect(target.local_addr(), monotonic_ns()).unwrap();
        let wait = |events: &mut Vec<_>| _ = member.wait(monotonic_ns() + 10_000_000, events);
        let events = events_until(wait, |events| !events.is_empty());
        assert_eq!(events, [FabricEvent::Closed { peer, cause: expected }]);
        wait_for_connections(&target, |count| count == 0);
        assert_eq!(refused(&target, 2), 2, "{why:?}");
        assert_eq!(target.poll(&mut Vec::new()), 0, "the application hears of none");
    }
}

#[test]
fn a_target_that_never_proves_anything_is_silent_after_a_lease() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = EndpointOptions { lease_ms: 100, ..end_options(secret(7)) };
    let addr = listener.local_addr().unwrap();
    assert_eq!(end_of(options, addr), DeathCause::Silent);
}

/// Carries what comes from one socket to the other, all that went, and what it is turned into.
fn carry(mut from: TcpStream, mut to: TcpStream, change: fn(&mut [u8], usize)) -> Vec<u8> {
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        let piece = &mut buffer[..bytes];
        change(piece, said.len());
        said.extend_from_slice(piece);
        if to.write_all(piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    said
}

/// Sits between one connection and `to`; both directions of what was said, the initiator's first.
fn overheard_and(
    to: SocketAddr,
    change: fn(&mut [u8], usize),
) -> (SocketAddr, std::thread::JoinHandle<[Vec<u8>; 2]>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let sit = move || {
        let (from, _) = listener.accept().unwrap();
        let to = TcpStream::connect(to).unwrap();
        let (back_from, back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
        let back = std::thread::spawn(move || carry(back_from, back_to, |_, _| ()));
        [carry(from, to, change), back.join().unwrap()]
    };
    (addr, std::thread::spawn(sit))
}

fn overheard(to: SocketAddr) -> (SocketAddr, std::thread::JoinHandle<[Vec<u8>; 2]>) {
    overheard_and(to, |_, _| ())
}

#[test]
fn what_was_heard_on_a_good_connection_opens_no_other() {
    let rig = rig();
    let (addr, carried) = overheard(rig.target().local_addr());
    let mut end = TcpEndpoint::new(end_options(secret(7))).unwrap();
    end.connect(addr, monotonic_ns()).unwrap();
    let events = happened(&mut end, 1);
    assert!(matches!(events[..], [FabricEvent::Connected { .. }]), "a listener is unseen");
    drop(end);
    let [said, _] = carried.join().unwrap();
    assert!(said.len() >= 2 * MESSAGE_BYTES + HELLO_BYTES);
    wait_for_connections(rig.target(), |count| count == 1);
    rig.target().poll(&mut Vec::new());

    let mut again = TcpStream::connect(rig.target().local_addr()).unwrap();
    again.set_read_timeout(Some(PATIENCE)).unwrap();
    again.write_all(&said[..2 * MESSAGE_BYTES]).unwrap();
    let mut heard = Vec::new();
    again.read_to_end(&mut heard).unwrap();
    assert_eq!(heard.len(), 2 * MESSAGE_BYTES, "a greeting and a refusal");
    assert_eq!(refused(rig.target(), 1), 1);
    assert_eq!(rig.target().poll(&mut Vec::new()), 0);
}

#[test]
fn whatever_strangers_say_and_wherever_they_stop_the_others_are_served() {
    let mut rig = rig();
    let addr = rig.target().local_addr();
    let greeting = [&b"rackaut2"[..], &[9; 48]].concat();
    let proof = [&b"rackprf2"[..], &[9; 48]].concat();
    let whole = [&greeting[..], &proof, &[0xff; 64 << 10]].concat();
    for length in (0..=2 * MESSAGE_BYTES).chain([whole.len()]) {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(&whole[..length]);
        let _ = stream.shutdown(Shutdown::Write);
        let mut heard = Vec::new();
        // A reset is an end as well.
        let _ = stream.read_to_end(&mut heard);
        assert!(heard.len() <= 2 * MESSAGE_BYTES, "{length} bytes: {} heard", heard.len());
    }
    for junk in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 9000], &[0; 40], b"rackwirX"] {
        let mut stream = TcpStream::connect(addr).unwrap();
        let _ = stream.write_all(junk);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    wait_for_connections(rig.target(), |count| count == 1);
    assert_eq!(rig.write(at(0), b"undisturbed"), WorkStatus::Done(0));
    let heard = rig.application();
    assert!(heard.is_empty(), "{heard:?}");
}

#[test]
fn strangers_that_stay_keep_nobody_out_and_are_bounded() {
    let mut rig = rig();
    let addr = rig.target().local_addr();
    let limit = UNPROVEN_CONNECTIONS_MAX;
    let strangers: Vec<_> = (0..2 * limit).map(|_| TcpStream::connect(addr).unwrap()).collect();
    rig.connect();
    assert_eq!(rig.write(at(0), b"served"), WorkStatus::Done(0));
    // Both connections of the rig, and no more strangers than may be.
    let is_bounded = |count| (2..=2 + limit as u64).contains(&count);
    wait_for_connections(rig.target(), is_bounded);
    drop(strangers);
    wait_for_connections(rig.target(), |count| count == 2);
}

/// Writes and reads back through a man in the middle. How it ended, what it saw in either
/// direction, and what is in memory.
fn through(
    secret: Option<Secret>,
    value: &[u8],
    change: fn(&mut [u8], usize),
) -> (Vec<FabricEvent>, [Vec<u8>; 2], Vec<u8>) {
    let memory = Memory::new();
    let target = start_target(target_options(&memory, secret.clone())).unwrap();
    let (addr, carried) = overheard_and(target.local_addr(), change);
    let mut end = TcpEndpoint::new(end_options(secret)).unwrap();
    let peer = end.connect(addr, monotonic_ns()).unwrap();
    let (buf, back) = (end.register(value.to_vec()).unwrap(), end.register(vec![0; value.len()]));
    let piece = |buf| Sge { buf, offset: 0, bytes: value.len() as u64 };
    let (from, into) = ([piece(buf)], [piece(back.unwrap())]);
    end.post(peer, &[work(1, Verb::Write(at(0)), &from), work(2, Verb::Read(at(0)), &into)])
        .unwrap();
    let events = happened(&mut end, 3);
    if events.iter().all(|event| !matches!(event, FabricEvent::Closed { .. })) {
        assert_eq!(end.buffer(into[0].buf), value);
    }
    drop(end);
    let seen = carried.join().unwrap();
    drop(target);
    let mut there = vec![0; value.len()];
    memory.pages.copy_out(0, &mut there);
    (events, seen, there)
}

#[test]
fn who_listens_sees_nothing_of_what_is_encrypted_and_all_of_what_is_not() {
    // Short data goes with its header, long data straight between pages and socket.
    for bytes in [100, PAGE as usize] {
        let value = b"nobody shall read this. ".repeat(1 + bytes / 24)[..bytes].to_vec();
        let parts = |seen: &[Vec<u8>; 2]| {
            [0, 1].map(|way| seen[way].windows(16).filter(|part| value.starts_with(part)).count())
        };
        for (secret, sees) in [(secret(7), true), (encrypting(7), false)] {
            let (events, seen, there) = through(secret, &value, |_, _| ());
            assert!(matches!(events[..], [FabricEvent::Connected { .. }, ..]), "{events:?}");
            assert!(seen.iter().all(|said| said.len() > bytes), "it went by there, both ways");
            assert_eq!(parts(&seen).map(|count| count > 0), [sees; 2]);
            assert!(there == value);
        }
    }
}

#[test]
fn bytes_that_somebody_changes_end_the_connection_and_write_nothing() {
    // The first byte behind the initiator's two messages and its hello, where it is encrypted.
    fn flip(piece: &mut [u8], before: usize) {
        let place = 2 * MESSAGE_BYTES + 60;
        if (before..before + piece.len()).contains(&place) {
            piece[place - before] ^= 0x10;
        }
    }
    let (events, _, there) = through(encrypting(7), &[0xab; 3000], flip);
    assert!(
        matches!(events[..], [.., FabricEvent::Closed { cause: DeathCause::Closed, .. }]),
        "{events:?}"
    );
    assert!(there.iter().all(|byte| *byte == 0));
}

#[test]
fn an_encrypted_connection_needs_no_more_calls() {
    let of = |secret: Option<Secret>| {
        let memory = Memory::new();
        let options = EndpointOptions { lease_ms: 3_600_000, ..end_options(secret.clone()) };
        let mut rig = TcpRig::with(target_options(&memory, secret), memory, options);
        assert_eq!(rig.write(at(64), b"through"), WorkStatus::Done(0));
        let before = rig.end.stats();
        for _ in 0..100 {
            assert_eq!(rig.write(at(64), b"through"), WorkStatus::Done(0));
        }
        let after = rig.end.stats();
        (after.send_calls - before.send_calls, after.sent_bytes - before.sent_bytes)
    };
    assert_eq!(of(secret(7)), of(encrypting(7)), "bytes are counted as the caller gave them");
}
