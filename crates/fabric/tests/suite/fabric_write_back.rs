//! Write-backs: data that a target puts into a buffer which its initiator has exposed. Every size,
//! every refusal, revocation at both ends, and the death of either.

use crate::fabric_rig::{
    PAGE, PATIENCE, Rig, TcpRig, at, events_until, is_closed, pattern, sge, wait_until,
};
use rackpool_core::addr::Generation;
use rackpool_core::seam::{
    BufId, EncodedWriteBack, Exposure, Fabric, FabricEvent, Mem, RemoteAddr, Verb,
};
use rackpool_fabric::EndpointOptions;
use rackpool_fabric::tcp::TcpEndpoint;
use rackpool_fabric::tcp::frame::{HELLO_BYTES, Hello, HelloStatus, Put};
use rackpool_fabric::{LocalBuffer, LocalBuffers};
use rackpool_mem::process::monotonic_ns;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;
use zerocopy::IntoBytes;

fn job(to: Exposure, from: RemoteAddr, bytes: u64) -> EncodedWriteBack {
    EncodedWriteBack { to, from, bytes, done: b"done".to_vec(), refused: b"refused".to_vec() }
}

fn expose(rig: &mut TcpRig, bytes: u64) -> (BufId, Exposure) {
    let peer = rig.peer;
    let buf = rig.end.register(vec![0xee; bytes as usize + 16]).unwrap();
    let exposure = rig.end.expose(peer, &sge(buf, 8, bytes)).unwrap();
    (buf, exposure)
}

/// The next message of the target's application, which may be among the events already.
fn message_after(rig: &mut TcpRig, mut events: Vec<FabricEvent>) -> Vec<u8> {
    let start = Instant::now();
    loop {
        match events.pop() {
            Some(FabricEvent::Received { message, .. }) if events.is_empty() => return message,
            None => {}
            other => panic!("{other:?} after {events:?}"),
        }
        rig.poll(&mut events);
        assert!(start.elapsed() < PATIENCE, "no message came");
    }
}

fn message(rig: &mut TcpRig) -> Vec<u8> {
    message_after(rig, Vec::new())
}

fn put(rig: &TcpRig, job: EncodedWriteBack) {
    rig.target().write_back(rig.target_peer, job).unwrap();
}

#[test]
fn every_size_lands_between_the_bytes_around_it() {
    let mut rig = TcpRig::new();
    let sizes = [0, 1, 7, 8, 63, 512, 513, 8191, 8192, 8193, 65536, 70001, 1 << 20, 5 << 20];
    for (index, bytes) in sizes.into_iter().enumerate() {
        let offset = PAGE + 3 + index as u64;
        let data = pattern(bytes, index as u64);
        rig.memory().pages.copy_in(offset, &data);
        let (buf, to) = expose(&mut rig, bytes);
        put(&rig, job(to, at(offset), bytes));
        assert_eq!(message(&mut rig), b"done", "{bytes}");
        let peer = rig.peer;
        assert_eq!(rig.end.conceal(peer, to), bytes);
        let all = rig.end.take(buf);
        assert!(all[8..8 + bytes as usize] == data, "{bytes} bytes came differently");
        assert!(all[..8].iter().chain(&all[8 + bytes as usize..]).all(|byte| *byte == 0xee));
    }
}

#[test]
fn write_backs_messages_and_answers_keep_their_order() {
    let mut rig = TcpRig::new();
    let data = pattern(100_000, 5);
    rig.memory().pages.copy_in(PAGE, &data);
    let places = [(0, 100_000), (17, 300), (1000, 20_000), (0, 1)];
    let exposed: Vec<_> =
        places.iter().map(|(_, bytes)| (expose(&mut rig, *bytes), *bytes)).collect();
    for (((_, to), bytes), (offset, _)) in exposed.iter().zip(places) {
        put(&rig, job(*to, at(PAGE + offset), *bytes));
        rig.application_sends(b"between");
    }
    let mut back = vec![0; 300_000];
    let all = pattern(300_000, 6);
    rig.memory().pages.copy_in(2 * PAGE, &all);
    let buf = rig.end.register(vec![0; 300_000]).unwrap();
    let peer = rig.peer;
    rig.post(7, Verb::Read(at(2 * PAGE)), &[sge(buf, 0, 300_000)]);
    let events = rig.poll_until(|events| events.len() > 2 * places.len());
    let said: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            FabricEvent::Received { message, .. } => Some(message.as_slice()),
            _ => None,
        })
        .collect();
    let expected = [&b"done"[..], b"between"].repeat(places.len());
    assert_eq!(said, expected);
    back.copy_from_slice(&rig.end.take(buf));
    assert!(back == all);
    for (((buf, to), bytes), (offset, _)) in exposed.into_iter().zip(places) {
        assert_eq!(rig.end.conceal(peer, to), bytes);
        let found = rig.end.take(buf);
        assert!(found[8..8 + bytes as usize] == data[offset as usize..][..bytes as usize]);
    }
}

#[test]
fn memory_that_is_refused_brings_the_other_message_and_no_data() {
    let mut rig = TcpRig::new();
    let revoked = |offset| RemoteAddr { offset, key: Generation(99) };
    let outside = RemoteAddr { offset: u64::MAX - 7, key: crate::fabric_rig::key(0) };
    for bytes in [64, 100_000] {
        for from in [revoked(PAGE), revoked(0), at(2 * PAGE - 8), outside] {
            let (buf, to) = expose(&mut rig, bytes);
            put(&rig, job(to, from, bytes));
            assert_eq!(message(&mut rig), b"refused", "{from:?}");
            let peer = rig.peer;
            assert_eq!(rig.end.conceal(peer, to), 0);
            assert!(rig.end.take(buf).iter().all(|byte| *byte == 0xee));
        }
    }
}

#[test]
fn data_after_the_end_of_an_exposure_is_discarded() {
    let mut rig = TcpRig::new();
    let bytes = 6 << 20;
    rig.memory().pages.copy_in(PAGE, &pattern(bytes, 3));
    let (mut cut, begin) = (0, Instant::now());
    // Where the machine is busy, all of it may have come before the test looks.
    for round in 0.. {
        let (buf, to) = expose(&mut rig, bytes);
        let peer = rig.peer;
        put(&rig, job(to, at(PAGE), bytes));
        let (mut events, start) = (Vec::new(), Instant::now());
        while round > 0 && rig.end.buffer(buf)[8] == 0xee {
            rig.poll(&mut events);
            assert!(start.elapsed() < PATIENCE);
        }
        let come = rig.end.conceal(peer, to);
        assert!(come == 0 || round > 0, "{come} bytes came before anybody looked");
        cut += u32::from(0 < come && come < bytes);
        let before = rig.end.buffer(buf).to_vec();
        assert_eq!(message_after(&mut rig, events), b"done");
        assert!(rig.end.buffer(buf) == before, "data came after the end");
        assert_eq!(rig.end.conceal(peer, to), 0);
        rig.end.take(buf);
        if cut == 3 {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "cut in the midst {cut} times in {round} rounds");
    }
}

#[test]
fn a_buffer_that_is_taken_back_or_not_lent_any_more_gets_nothing() {
    let mut rig = TcpRig::new();
    rig.memory().pages.copy_in(PAGE, &pattern(1 << 20, 3));
    let (buf, to) = expose(&mut rig, 1 << 20);
    assert!(rig.end.take(buf).iter().all(|byte| *byte == 0xee));
    put(&rig, job(to, at(PAGE), 1 << 20));
    assert_eq!(message(&mut rig), b"done");
    let mut lent = vec![0xee; 1 << 20];
    let peer = rig.peer;
    let to = rig
        .end
        .with_buffers(&mut [LocalBuffer::Into(&mut lent)], |end, ids| {
            end.expose(peer, &sge(ids.id(0), 0, 1 << 20)).unwrap()
        })
        .unwrap();
    put(&rig, job(to, at(PAGE), 1 << 20));
    assert_eq!(message(&mut rig), b"done");
    assert!(lent.iter().all(|byte| *byte == 0xee));
}

#[test]
#[should_panic(expected = "lent to send from")]
fn a_buffer_that_was_lent_to_send_from_cannot_be_exposed() {
    let mut rig = TcpRig::new();
    let peer = rig.peer;
    let bytes = [0; 64];
    let _ = rig.end.with_buffers(&mut [LocalBuffer::From(&bytes)], |end, ids| {
        end.expose(peer, &sge(ids.id(0), 0, 64))
    });
}

#[test]
fn a_key_revoked_in_the_midst_brings_the_other_message_and_nothing_of_the_next_page() {
    let mut rig = TcpRig::new();
    let memory = rig.memory();
    let (mut refused, begin) = (0, Instant::now());
    for round in 0u64.. {
        if round >= 20 && refused > 0 {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "no transfer was under way in {round} rounds");
        let old = vec![1; PAGE as usize];
        memory.pages.copy_in(PAGE, &old);
        memory.set_key(1, crate::fabric_rig::key(1));
        let (buf, to) = expose(&mut rig, PAGE);
        put(&rig, job(to, at(PAGE), PAGE));
        let mut events = Vec::new();
        for _ in 0..round % 20 {
            rig.end.poll(monotonic_ns(), &mut events);
        }
        memory.revoke(1);
        memory.pages.copy_in(PAGE, &vec![2; PAGE as usize]);
        let said = message_after(&mut rig, events);
        let peer = rig.peer;
        rig.end.conceal(peer, to);
        let found = rig.end.take(buf);
        assert!(!found.contains(&2), "bytes of the next page");
        let whole = found[8..8 + PAGE as usize].iter().all(|byte| *byte == 1);
        assert!(said == b"refused" || (said == b"done" && whole), "round {round}");
        refused += u32::from(said == b"refused");
    }
}

#[test]
fn a_dead_target_ends_exposures_and_the_next_connection_does_not_know_them() {
    let mut rig = TcpRig::new();
    rig.memory().pages.copy_in(PAGE, &pattern(PAGE, 3));
    let (buf, to) = expose(&mut rig, PAGE);
    put(&rig, job(to, at(PAGE), PAGE));
    rig.kill();
    let old = rig.peer;
    rig.poll_until(is_closed);
    assert_eq!(rig.end.conceal(old, to), 0);
    assert!(rig.end.expose(old, &sge(buf, 0, 8)).is_none());
    let before = rig.end.buffer(buf).to_vec();
    rig.restart();
    put(&rig, job(to, at(PAGE), PAGE));
    assert_eq!(message(&mut rig), b"done");
    assert!(rig.end.buffer(buf) == before, "another connection wrote");
}

fn polled_until(end: &mut TcpEndpoint, is_enough: fn(&[FabricEvent]) -> bool) {
    events_until(|events| _ = end.poll(monotonic_ns(), events), is_enough);
}

/// An endpoint connected to a target that is played by the test.
fn played() -> (TcpEndpoint, rackpool_core::seam::PeerId, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut end = TcpEndpoint::new(EndpointOptions::default()).unwrap();
    let peer = end.connect(listener.local_addr().unwrap(), monotonic_ns()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(Hello::of_target(HelloStatus::Ok, 21, 1).as_bytes()).unwrap();
    polled_until(&mut end, |events| !events.is_empty());
    stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
    (end, peer, stream)
}

#[test]
fn a_target_that_lies_about_places_loses_its_connection_and_writes_nothing() {
    for (offset, bytes) in [(0, 65), (64, 1), (u64::MAX, 1), (1, 64)] {
        let (mut end, peer, mut stream) = played();
        let buf = end.register(vec![0xee; 128]).unwrap();
        let to = end.expose(peer, &sge(buf, 8, 64)).unwrap();
        let put = Put { id: to.id, key: to.key, offset, bytes };
        stream.write_all(put.header().as_bytes()).unwrap();
        stream.write_all(&vec![1; bytes as usize]).unwrap();
        polled_until(&mut end, is_closed);
        assert!(end.take(buf).iter().all(|byte| *byte == 0xee));
    }
}

#[test]
fn guessed_numbers_and_keys_write_nothing_and_hurt_nobody() {
    let (mut end, peer, mut stream) = played();
    let buf = end.register(vec![0xee; 128]).unwrap();
    let to = end.expose(peer, &sge(buf, 0, 128)).unwrap();
    for (id, key) in [(to.id, to.key + 1), (to.id + 1, to.key), (u32::MAX, 0), (to.id, 0)] {
        stream.write_all(Put { id, key, offset: 0, bytes: 128 }.header().as_bytes()).unwrap();
        stream.write_all(&[1; 128]).unwrap();
    }
    let right = Put { id: to.id, key: to.key, offset: 0, bytes: 3 };
    stream.write_all(right.header().as_bytes()).unwrap();
    stream.write_all(b"yes").unwrap();
    wait_until(|| {
        end.poll(monotonic_ns(), &mut Vec::new());
        end.buffer(buf)[..3] == *b"yes"
    });
    assert_eq!(end.conceal(peer, to), 3);
    assert!(end.take(buf)[3..].iter().all(|byte| *byte == 0xee));
}
