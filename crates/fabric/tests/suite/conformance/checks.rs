//! The checks themselves; see `conformance/mod.rs`.

use super::{FRAMES, PAGE, PATIENCE, Rig, at, is_closed, key, pattern, sge, statuses, work};
use rackpool_core::addr::Generation;
use rackpool_core::constants::{FABRIC_OUTSTANDING_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::seam::{
    Fabric, FabricEvent, Mem, PostError, RemoteAddr, Sge, Verb, WorkRequest, WorkStatus,
};
use std::time::Instant;

pub fn every_size_is_written_and_read_back_unaligned<R: Rig>() {
    let mut rig = R::new();
    let sizes = [0, 1, 7, 8, 63, 64, 65, 1000, 4096, 8191, 8192, 8193, 16384, 65535, 65536, 70001];
    for (index, bytes) in sizes.into_iter().chain([1 << 20, (1 << 20) + 1, 5 << 20]).enumerate() {
        let offset = PAGE + 3 + index as u64;
        let data = pattern(bytes, index as u64);
        assert_eq!(rig.write(at(offset), &data), WorkStatus::Done(0), "{bytes}");
        assert!(rig.memory().bytes(offset, bytes) == data, "{bytes}");
        let mut back = vec![0; bytes as usize];
        assert_eq!(rig.read(at(offset), &mut back), WorkStatus::Done(0), "{bytes}");
        assert!(back == data, "{bytes} bytes came back differently");
    }
    let whole = pattern(PAGE, 99);
    assert_eq!(rig.write(at(2 * PAGE), &whole), WorkStatus::Done(0));
    let mut back = vec![0; PAGE as usize];
    assert_eq!(rig.read(at(2 * PAGE), &mut back), WorkStatus::Done(0));
    assert!(back == whole);
    assert!(rig.memory().bytes(3 * PAGE, PAGE).iter().all(|byte| *byte == 0));
}

pub fn atomics_answer_the_old_value<R: Rig>() {
    let mut rig = R::new();
    let word = at(PAGE + 64);
    assert_eq!(rig.one(Verb::FetchAdd { at: word, n: 5 }, &[]), WorkStatus::Done(0));
    assert_eq!(rig.one(Verb::FetchAdd { at: word, n: u64::MAX }, &[]), WorkStatus::Done(5));
    let cas = |expected, new| Verb::Cas { at: word, expected, new };
    assert_eq!(rig.one(cas(3, 9), &[]), WorkStatus::Done(4));
    assert_eq!(rig.one(cas(4, u64::MAX), &[]), WorkStatus::Done(4));
    assert_eq!(rig.memory().pages.load(PAGE + 64), u64::MAX);
}

pub fn accesses_outside_one_frame_are_refused_and_touch_nothing<R: Rig>() {
    let mut rig = R::new();
    let end = PAGE * u64::from(FRAMES);
    let outside = |offset| RemoteAddr { offset, key: key(3) };
    for bytes in [1u64, 64, 20_000] {
        let data = vec![1; bytes as usize];
        let mut places = vec![outside(end - bytes + 1), outside(end), outside(u64::MAX)];
        if bytes > 1 {
            places.push(at(PAGE - bytes + 1));
        }
        for place in places {
            assert_eq!(rig.write(place, &data), WorkStatus::BadRange, "{place:?} {bytes}");
            let mut back = vec![0; bytes as usize];
            assert_eq!(rig.read(place, &mut back), WorkStatus::BadRange, "{place:?} {bytes}");
            assert!(back.iter().all(|byte| *byte == 0xee), "nothing is received");
        }
    }
    assert_eq!(rig.write(outside(end), &[]), WorkStatus::BadRange);
    for place in [at(PAGE + 4), outside(end), outside(u64::MAX - 6)] {
        assert_eq!(rig.one(Verb::FetchAdd { at: place, n: 1 }, &[]), WorkStatus::BadRange);
        let cas = Verb::Cas { at: place, expected: 0, new: 1 };
        assert_eq!(rig.one(cas, &[]), WorkStatus::BadRange);
    }
    assert!(rig.memory().bytes(0, end).iter().all(|byte| *byte == 0));
    assert_eq!(rig.write(at(PAGE - 1), &[1]), WorkStatus::Done(0));
}

pub fn a_wrong_key_is_refused_and_touches_nothing<R: Rig>() {
    let mut rig = R::new();
    for wrong in [0, 99, 101, u64::MAX] {
        let place = RemoteAddr { offset: 64, key: Generation(wrong) };
        for bytes in [0, 64, 8192, 300_000] {
            let data = vec![1; bytes];
            assert_eq!(rig.write(place, &data), WorkStatus::BadKey);
            assert_eq!(rig.read(place, &mut vec![0; bytes]), WorkStatus::BadKey);
        }
        assert_eq!(rig.one(Verb::FetchAdd { at: place, n: 1 }, &[]), WorkStatus::BadKey);
        let cas = Verb::Cas { at: place, expected: 0, new: 1 };
        assert_eq!(rig.one(cas, &[]), WorkStatus::BadKey);
        assert_eq!(rig.one(Verb::WriteImm(place, 5), &[]), WorkStatus::BadKey);
    }
    // A freed frame has word 0, and no key opens it.
    rig.memory().set_key(0, Generation(0));
    let nothing = RemoteAddr { offset: 64, key: Generation(0) };
    assert_eq!(rig.write(nothing, &[1]), WorkStatus::BadKey);
    assert!(rig.memory().bytes(0, PAGE).iter().all(|byte| *byte == 0));
    assert!(rig.application().is_empty());
}

pub fn pieces_are_gathered_and_scattered_in_order<R: Rig>() {
    let mut rig = R::new();
    for lengths in [[1u64, 0, 62, 1], [100, 5000, 3, 9000], [300_000, 1, 200_000, 77]] {
        let bytes: u64 = lengths.iter().sum();
        let data = pattern(bytes, bytes);
        let from = rig.register(data.clone());
        let to = rig.register(vec![0; bytes as usize + 10]);
        let (mut source, mut sink, mut offset) = (Vec::new(), Vec::new(), 0);
        for length in lengths {
            source.push(sge(from, offset, length));
            // From the back, so that the pieces lie in another order.
            sink.push(sge(to, bytes + 10 - offset - length, length));
            offset += length;
        }
        assert_eq!(rig.one(Verb::Write(at(PAGE + 5)), &source), WorkStatus::Done(0));
        assert!(rig.memory().bytes(PAGE + 5, bytes) == data);
        assert_eq!(rig.one(Verb::Read(at(PAGE + 5)), &sink), WorkStatus::Done(0));
        let back = rig.take(to);
        let mut joined: Vec<u8> = Vec::new();
        for piece in &sink {
            joined.extend(&back[piece.offset as usize..(piece.offset + piece.bytes) as usize]);
        }
        assert!(joined == data);
        assert!(back[..10].iter().all(|byte| *byte == 0));
        rig.take(from);
    }
}

pub fn messages_and_immediate_values_arrive_in_order_after_their_data<R: Rig>() {
    let mut rig = R::new();
    let data = pattern(u64::from(MESSAGE_BYTES_MAX), 3);
    let buf = rig.register(data.clone());
    let lengths = [0, 1, 100, u64::from(MESSAGE_BYTES_MAX)];
    for length in lengths {
        assert_eq!(rig.one(Verb::Send, &[sge(buf, 0, length)]), WorkStatus::Done(0));
    }
    let imm = Verb::WriteImm(at(PAGE), 0xdead_beef);
    assert_eq!(rig.one(imm, &[sge(buf, 0, 10_000)]), WorkStatus::Done(0));
    let got = rig.await_application(5);
    for (event, length) in got.iter().zip(lengths) {
        let FabricEvent::Received { message, .. } = event else { panic!("{event:?}") };
        assert!(message == &data[..length as usize]);
    }
    assert!(matches!(got[4], FabricEvent::ReceivedImm { imm: 0xdead_beef, .. }));
    assert!(rig.memory().bytes(PAGE, 10_000) == data[..10_000]);
    let long = rig.register(vec![0; MESSAGE_BYTES_MAX as usize + 1]);
    let all = sge(long, 0, u64::from(MESSAGE_BYTES_MAX) + 1);
    assert_eq!(rig.one(Verb::Send, &[all]), WorkStatus::BadRange);
    assert!(rig.application().is_empty());
}

pub fn the_applications_messages_are_received<R: Rig>() {
    let mut rig = R::new();
    let long = pattern(u64::from(MESSAGE_BYTES_MAX), 8);
    for message in [&b"first"[..], b"", &long] {
        rig.application_sends(message);
    }
    let events = rig.poll_until(|events| events.len() >= 3);
    let peer = rig.peer();
    let expected =
        [b"first".to_vec(), vec![], long].map(|message| FabricEvent::Received { peer, message });
    assert!(events == expected);
}

pub fn completions_come_in_the_order_of_posting<R: Rig>() {
    let mut rig = R::new();
    let from = rig.register(vec![3; 300_000]);
    let to = rig.register(vec![0; 300_000]);
    let (small, large) = ([sge(from, 0, 8)], [sge(from, 0, 300_000)]);
    let (small_to, large_to) = ([sge(to, 0, 8)], [sge(to, 0, 300_000)]);
    let bad = RemoteAddr { offset: 0, key: Generation(1) };
    let word = 0x0303_0303_0303_0303;
    let verbs: [(Verb, &[Sge], WorkStatus); 8] = [
        (Verb::Write(at(PAGE)), &large, WorkStatus::Done(0)),
        (Verb::Read(bad), &small_to, WorkStatus::BadKey),
        (Verb::FetchAdd { at: at(PAGE), n: 1 }, &[], WorkStatus::Done(word)),
        (Verb::Read(at(PAGE)), &large_to, WorkStatus::Done(0)),
        (Verb::Write(bad), &large, WorkStatus::BadKey),
        (Verb::Send, &large, WorkStatus::BadRange),
        (Verb::Write(at(PAGE - 1)), &small, WorkStatus::BadRange),
        (Verb::Read(at(0)), &small_to, WorkStatus::Done(0)),
    ];
    let one = |id: usize| work(id as u64, verbs[id % 8].0, verbs[id % 8].1);
    let batch: Vec<_> = (0..80).map(one).collect();
    let expected: Vec<_> = (0..80).map(|id| (id as u64, verbs[id % 8].2)).collect();
    assert_eq!(rig.run(&batch), expected);
}

pub fn unsignalled_work_is_silent_unless_it_fails<R: Rig>() {
    let mut rig = R::new();
    let buf = rig.register(vec![5; 64]);
    let local = [sge(buf, 0, 64)];
    let bad = RemoteAddr { offset: 0, key: Generation(1) };
    let work = |id, verb, signalled| WorkRequest { id, verb, local: &local, signalled };
    let batch = [
        work(1, Verb::Write(at(0)), false),
        work(2, Verb::Write(bad), false),
        work(3, Verb::Write(at(64)), true),
    ];
    let peer = rig.peer();
    rig.end().post(peer, &batch).unwrap();
    let events = rig.poll_until(|events| events.len() >= 2);
    assert_eq!(statuses(&events), [(2, WorkStatus::BadKey), (3, WorkStatus::Done(0))]);
    assert_eq!(rig.memory().bytes(0, 128), [5; 128]);
}

pub fn a_full_queue_answers_busy_and_keeps_what_was_posted<R: Rig>() {
    let mut rig = R::new();
    let max = FABRIC_OUTSTANDING_MAX as usize;
    let add = |id| work(id as u64, Verb::FetchAdd { at: at(0), n: 1 }, &[]);
    let batch: Vec<_> = (0..max + 3).map(add).collect();
    let peer = rig.peer();
    assert_eq!(rig.end().post(peer, &batch), Err((max, PostError::Busy)));
    assert_eq!(rig.end().post(peer, &batch[max..]), Err((0, PostError::Busy)));
    rig.poll_until(|events| events.len() >= max);
    assert_eq!(rig.memory().pages.load(0), max as u64);
    assert_eq!(rig.run(&batch[max..]).len(), 3);
    assert_eq!(rig.end().capabilities().outstanding_max as usize, max);
}

pub fn ten_thousand_operations_in_batches_all_take_effect<R: Rig>() {
    let mut rig = R::new();
    let source = pattern(64, 1);
    let from = rig.register(source.clone());
    let to = rig.register(vec![0; 64 * 32]);
    let mut adds = 0;
    for round in 0..10_000 / 32 {
        let slot = |i: u64| PAGE + 4096 + 64 * ((round * 7 + i) % 1000);
        let local =
            |i: u64| if i.is_multiple_of(2) { [sge(from, 0, 64)] } else { [sge(to, 64 * i, 64)] };
        let locals: Vec<[Sge; 1]> = (0..32).map(local).collect();
        let one = |i: u64| {
            let (verb, local): (Verb, &[Sge]) = match i % 4 {
                0 | 2 => (Verb::Write(at(slot(i))), &locals[i as usize]),
                1 => (Verb::Read(at(slot(i - 1))), &locals[i as usize]),
                _ => (Verb::FetchAdd { at: at(PAGE), n: i }, &[]),
            };
            work(round * 32 + i, verb, local)
        };
        let batch: Vec<_> = (0..32).map(one).collect();
        let done = rig.run(&batch);
        for (i, (id, status)) in done.into_iter().enumerate() {
            assert_eq!(id, round * 32 + i as u64);
            assert!(matches!(status, WorkStatus::Done(_)), "{status:?}");
        }
        adds += (0..32).filter(|i| i % 4 == 3).sum::<u64>();
        for i in (1..32).step_by(4) {
            assert_eq!(rig.bytes_of(to)[64 * i..64 * i + 64], source);
        }
    }
    assert_eq!(rig.memory().pages.load(PAGE), adds);
}

pub fn a_key_revoked_in_the_midst_of_a_write_lets_no_later_byte_through<R: Rig>() {
    let mut rig = R::new();
    let memory = rig.memory();
    let data = vec![7; PAGE as usize];
    let (mut refused, begin) = (0, Instant::now());
    for round in 0u64.. {
        if round >= R::REVOCATIONS && (refused > 0 || rig.end().capabilities().mapped) {
            break;
        }
        assert!(begin.elapsed() < 4 * PATIENCE, "no transfer was under way in {round} rounds");
        memory.set_key(1, key(1));
        memory.pages.zero(PAGE, PAGE);
        let buf = rig.register(data.clone());
        rig.post(round, Verb::Write(at(PAGE)), &[sge(buf, 0, PAGE)]);
        let mut events = Vec::new();
        for _ in 0..round % R::REVOCATIONS * (60 / R::REVOCATIONS) {
            rig.poll(&mut events);
        }
        memory.revoke(1);
        let then = memory.bytes(PAGE, PAGE);
        rig.poll_on(&mut events, |events| !statuses(events).is_empty());
        assert!(memory.bytes(PAGE, PAGE) == then, "a byte came after the revocation");
        match statuses(&events)[0].1 {
            WorkStatus::BadKey => refused += 1,
            WorkStatus::Done(0) => assert!(then == data),
            other => panic!("{other:?}"),
        }
        rig.take(buf);
        assert_eq!(rig.write(at(0), b"next"), WorkStatus::Done(0));
    }
}

pub fn a_key_revoked_in_the_midst_of_a_read_shows_nothing_of_the_next_page<R: Rig>() {
    let mut rig = R::new();
    let memory = rig.memory();
    let (mut refused, begin) = (0, Instant::now());
    for round in 0u64.. {
        if round >= R::REVOCATIONS && (refused > 0 || rig.end().capabilities().mapped) {
            break;
        }
        assert!(begin.elapsed() < 4 * PATIENCE, "no transfer was under way in {round} rounds");
        memory.set_key(1, key(1));
        memory.pages.copy_in(PAGE, &vec![7; PAGE as usize]);
        let buf = rig.register(vec![0; PAGE as usize]);
        rig.post(round, Verb::Read(at(PAGE)), &[sge(buf, 0, PAGE)]);
        let mut events = Vec::new();
        for _ in 0..round % R::REVOCATIONS * (60 / R::REVOCATIONS) {
            rig.poll(&mut events);
        }
        memory.revoke(1);
        // The frame is used again for something else.
        memory.pages.copy_in(PAGE, &vec![9; PAGE as usize]);
        rig.poll_on(&mut events, |events| !statuses(events).is_empty());
        let got = rig.take(buf);
        assert!(!got.contains(&9), "a byte of the frame's next page was read");
        match statuses(&events)[0].1 {
            WorkStatus::BadKey => refused += 1,
            WorkStatus::Done(0) => assert!(got.iter().all(|byte| *byte == 7)),
            other => panic!("{other:?}"),
        }
        assert_eq!(rig.write(at(0), b"next"), WorkStatus::Done(0));
    }
}

pub fn a_dead_peer_ends_all_work_and_can_be_connected_to_again<R: Rig>() {
    let mut rig = R::new();
    assert_eq!(rig.write(at(0), b"kept"), WorkStatus::Done(0));
    let buf = rig.register(vec![1; PAGE as usize]);
    let (old, local) = (rig.peer(), [sge(buf, 0, PAGE)]);
    let one = |id| work(id, Verb::Write(at(PAGE)), &local);
    let batch: Vec<_> = (0..50).map(one).collect();
    rig.end().post(old, &batch).unwrap();
    rig.kill();
    let events = rig.poll_until(is_closed);
    let done = statuses(&events);
    assert_eq!(done.len(), 50, "every work request ends, before the connection does");
    let is_unsent = |status: &WorkStatus| *status == WorkStatus::Flushed { executed: Some(false) };
    let first = done.iter().position(|(_, status)| is_unsent(status)).unwrap_or(50);
    assert!(done[first..].iter().all(|(_, status)| is_unsent(status)));
    assert!(done[..first].iter().all(|(_, status)| matches!(
        status,
        WorkStatus::Done(0) | WorkStatus::Flushed { executed: None }
    )));
    assert_eq!(rig.end().post(old, &batch), Err((0, PostError::Down)));
    rig.restart();
    assert_ne!(rig.peer(), old);
    let mut back = [0; 4];
    assert_eq!(rig.read(at(0), &mut back), WorkStatus::Done(0));
    assert_eq!(&back, b"kept");
}

/// Refused keys stop a queue pair of some fabrics; what is around them must not suffer.
pub fn what_is_posted_around_a_refused_key_is_executed_exactly_once<R: Rig>() {
    let mut rig = R::new();
    let from = rig.register(pattern(20_000, 6));
    let (short, long) = ([sge(from, 0, 40)], [sge(from, 0, 20_000)]);
    let bad = RemoteAddr { offset: 64, key: Generation(1) };
    let mut expected = Vec::new();
    for round in 0..4 {
        // The frame is opened under one key, which then is no more.
        assert_eq!(rig.write(at(PAGE), b"open"), WorkStatus::Done(0));
        rig.memory().revoke(1);
        rig.memory().set_key(1, Generation(500 + round));
        let now = RemoteAddr { offset: PAGE + 8, key: Generation(500 + round) };
        let stale = RemoteAddr { offset: PAGE + 8, key: key(1) };
        let add = Verb::FetchAdd { at: at(8), n: 1 };
        let steps: [(Verb, &[Sge], WorkStatus); 8] = [
            (add, &[], WorkStatus::Done(3 * round)),
            (Verb::Send, &short, WorkStatus::Done(0)),
            (Verb::Write(stale), &long, WorkStatus::BadKey),
            (add, &[], WorkStatus::Done(3 * round + 1)),
            (Verb::Write(bad), &short, WorkStatus::BadKey),
            (Verb::WriteImm(now, round as u32), &long, WorkStatus::Done(0)),
            (add, &[], WorkStatus::Done(3 * round + 2)),
            (Verb::Send, &short, WorkStatus::Done(0)),
        ];
        let numbered = (0..).zip(&steps);
        let batch: Vec<_> = numbered.map(|(id, (verb, local, _))| work(id, *verb, local)).collect();
        let want: Vec<_> = steps.iter().enumerate().map(|(id, step)| (id as u64, step.2)).collect();
        assert_eq!(rig.run(&batch), want, "round {round}");
        assert!(rig.memory().bytes(PAGE + 8, 20_000) == pattern(20_000, 6));
        expected.extend([None, Some(round as u32), None]);
        rig.memory().set_key(1, key(1));
    }
    let told = rig.await_application(expected.len());
    let imms: Vec<_> = told
        .iter()
        .map(|event| match event {
            FabricEvent::ReceivedImm { imm, .. } => Some(*imm),
            FabricEvent::Received { message, .. } => {
                assert_eq!(message[..], pattern(20_000, 6)[..40]);
                None
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(imms, expected);
    assert!(rig.application().is_empty());
}

/// What a reader of the target's memory relies on.
pub fn who_sees_a_flag_sees_the_data_written_before_it<R: Rig>() {
    let mut rig = R::new();
    let memory = rig.memory();
    let data = pattern(9000, 4);
    let from = rig.register(data.clone());
    for round in 1..=50u64 {
        memory.pages.zero(PAGE, 10_000);
        let flag = rig.register(round.to_le_bytes().to_vec());
        let (long, word) = ([sge(from, 0, 9000)], [sge(flag, 0, 8)]);
        let batch =
            [work(1, Verb::Write(at(PAGE + 16)), &long), work(2, Verb::Write(at(PAGE)), &word)];
        let peer = rig.peer();
        rig.end().post(peer, &batch).unwrap();
        let mut events = rig.poll_until(|_| memory.pages.load(PAGE) == round);
        assert!(memory.bytes(PAGE + 16, 9000) == data, "the flag came before the data");
        rig.poll_on(&mut events, |events| statuses(events).len() >= 2);
        assert_eq!(statuses(&events), [(1, WorkStatus::Done(0)), (2, WorkStatus::Done(0))]);
        rig.take(flag);
    }
}
