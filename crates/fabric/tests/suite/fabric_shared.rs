//! What only a shared connection promises: messages that reach their own member, ends that concern
//! one member, memory that goes while it is under way, and wake-ups of which none is lost.

use crate::fabric_rig::{Memory, PAGE, PATIENCE, at, pattern, sge, statuses, work};
use rackpool_core::seam::{Fabric, FabricEvent, Mem, PeerId, Verb, WorkRequest, WorkStatus};
use rackpool_core::wire::{self, RemoteReply, RemoteRequest, Routed};
use rackpool_fabric::shared::{MemberEndpoint, SharedEndpoint};
use rackpool_fabric::tcp::start_target;
use rackpool_fabric::{EndpointOptions, LocalBuffers, Target};
use rackpool_mem::process::monotonic_ns;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No member ever looks by itself, nor is the peer probed: only wake-ups help.
const NEVER_NS: u64 = 3_600_000_000_000;

fn quiet() -> EndpointOptions {
    EndpointOptions { lease_ms: 3_600_000, ..EndpointOptions::default() }
}

fn serve(memory: &Memory) -> Target {
    start_target(memory.target_options()).unwrap()
}

/// Another member with a channel to the target.
fn member(shared_endpoint: &Arc<SharedEndpoint>, target: &Target) -> (MemberEndpoint, PeerId) {
    let mut end = MemberEndpoint::new(shared_endpoint).unwrap();
    let peer = end.connect(target.local_addr(), monotonic_ns()).unwrap();
    let events = wait_for(&mut end, 1);
    assert_eq!(events, [FabricEvent::Connected { peer }]);
    (end, peer)
}

fn wait_for(end: &mut MemberEndpoint, count: usize) -> Vec<FabricEvent> {
    let deadline = monotonic_ns() + PATIENCE.as_nanos() as u64;
    let mut events = Vec::new();
    while events.len() < count {
        assert!(end.wait(deadline, &mut events) > 0, "no wake-up came: {events:?}");
    }
    events
}

fn send(end: &mut MemberEndpoint, peer: PeerId, message: RemoteRequest) {
    let bytes = wire::encode_vec(&Routed { channel: 0, message });
    let piece = [0, bytes.len() as u64];
    let buf = end.register(bytes).unwrap();
    let local = [sge(buf, piece[0], piece[1])];
    let work = WorkRequest { id: 1, verb: Verb::Send, local: &local, signalled: false };
    end.post(peer, &[work]).unwrap();
    // It was copied: the buffer is free at once.
    end.take(buf);
}

fn received(target: &Target, count: usize) -> Vec<(PeerId, Routed<RemoteRequest>)> {
    let (mut all, start) = (Vec::new(), Instant::now());
    while all.len() < count {
        let mut events = Vec::new();
        target.poll(&mut events);
        all.extend(events.into_iter().filter_map(|event| match event {
            FabricEvent::Received { peer, message } => {
                Some((peer, wire::decode::<Routed<RemoteRequest>>(&message, "us").unwrap()))
            }
            _ => None,
        }));
        assert!(start.elapsed() < PATIENCE, "{all:?}");
    }
    all
}

#[test]
fn messages_go_to_the_members_they_are_for_and_a_channel_ends_alone() {
    let target = serve(&Memory::new());
    let shared_endpoint = SharedEndpoint::new(quiet()).unwrap();
    let (mut a, of_a) = member(&shared_endpoint, &target);
    let (mut b, of_b) = member(&shared_endpoint, &target);
    assert_eq!(shared_endpoint.stats().connections, 1);
    send(&mut a, of_a, RemoteRequest::Consumed(1));
    send(&mut b, of_b, RemoteRequest::Consumed(2));
    let got = received(&target, 2);
    let channels = [1u64, 2].map(|seq| {
        let found = got.iter().find(|(_, one)| one.message == RemoteRequest::Consumed(seq));
        (found.unwrap().0, found.unwrap().1.channel)
    });
    assert!(channels[0].0 == channels[1].0 && channels[0].1 != channels[1].1, "{channels:?}");
    assert!(channels.iter().all(|(_, channel)| *channel != 0), "{channels:?}");
    let say = |index: usize, message: RemoteReply| {
        let (peer, channel) = channels[index];
        let bytes = wire::encode_vec(&Routed { channel, message });
        target.send(peer, &bytes).unwrap();
        bytes
    };
    let for_b = say(1, RemoteReply::Consumed(2));
    // A channel that no member has: dropped.
    let nowhere = Routed { channel: 77, message: RemoteReply::Consumed(3) };
    target.send(channels[0].0, &wire::encode_vec(&nowhere)).unwrap();
    let for_a = say(0, RemoteReply::Consumed(1));
    assert_eq!(wait_for(&mut a, 1), [FabricEvent::Received { peer: of_a, message: for_a }]);
    assert_eq!(wait_for(&mut b, 1), [FabricEvent::Received { peer: of_b, message: for_b }]);

    say(0, RemoteReply::Ended);
    let ended = wait_for(&mut a, 1);
    assert!(matches!(ended[..], [FabricEvent::Closed { peer, .. }] if peer == of_a), "{ended:?}");
    let add = Verb::FetchAdd { at: at(0), n: 1 };
    assert!(a.post(of_a, &[work(5, add, &[])]).is_err());
    b.post(of_b, &[work(5, add, &[])]).unwrap();
    assert_eq!(statuses(&wait_for(&mut b, 1)), [(5, WorkStatus::Done(0))]);
    b.close(of_b);
    let last = received(&target, 1);
    assert_eq!(last[0].1, Routed { channel: channels[1].1, message: RemoteRequest::Ended });
    assert_eq!(shared_endpoint.stats().connections, 0, "the connection ends with its last channel");
}

#[test]
fn what_a_member_leaves_behind_is_executed_as_a_whole_or_not_and_others_go_on() {
    for round in 0..8u64 {
        let memory = Memory::new();
        let target = serve(&memory);
        let shared_endpoint = SharedEndpoint::new(quiet()).unwrap();
        let (mut leaves, peer) = member(&shared_endpoint, &target);
        let (mut stays, of_stays) = member(&shared_endpoint, &target);
        let data: Vec<Vec<u8>> = (1..4).map(|page| pattern(PAGE, 10 * round + page)).collect();
        for (index, data) in data.iter().enumerate() {
            let buf = leaves.register(data.clone()).unwrap();
            let verb = Verb::Write(at((index as u64 + 1) * PAGE));
            leaves.post(peer, &[work(index as u64, verb, &[sge(buf, 0, PAGE)])]).unwrap();
        }
        if round % 2 == 0 {
            drop(leaves);
        } else {
            // A write under way for another member does not keep this one's memory.
            leaves.close(peer);
            let done = statuses(&wait_for(&mut leaves, 4));
            assert_eq!(done.len(), 3);
            let never = WorkStatus::Flushed { executed: Some(false) };
            let maybe = WorkStatus::Flushed { executed: None };
            assert!(done.iter().all(|(_, status)| [never, maybe].contains(status)), "{done:?}");
            drop(leaves);
        }
        let to = stays.register(vec![1; 64]).unwrap();
        stays.post(of_stays, &[work(9, Verb::Read(at(0)), &[sge(to, 0, 64)])]).unwrap();
        assert_eq!(statuses(&wait_for(&mut stays, 1)), [(9, WorkStatus::Done(0))]);
        assert_eq!(stays.take(to), [0; 64]);
        let mut is_over = false;
        for (index, data) in data.iter().enumerate() {
            let found = memory.bytes((index as u64 + 1) * PAGE, PAGE);
            let is_there = found == *data;
            assert!(is_there || found.iter().all(|byte| *byte == 0), "write {index} is torn");
            assert!(!(is_over && is_there), "what is behind a cancelled one is cancelled");
            is_over |= !is_there;
        }
    }
}

#[test]
fn nothing_is_received_into_memory_that_was_taken_back() {
    let memory = Memory::new();
    memory.pages.copy_in(0, &pattern(PAGE, 3));
    let target = serve(&memory);
    let shared_endpoint = SharedEndpoint::new(quiet()).unwrap();
    let (mut a, of_a) = member(&shared_endpoint, &target);
    let (mut b, of_b) = member(&shared_endpoint, &target);
    for _ in 0..20 {
        let buf = a.register(vec![0; PAGE as usize]).unwrap();
        a.post(of_a, &[work(1, Verb::Read(at(0)), &[sge(buf, 0, PAGE)])]).unwrap();
        b.poll(monotonic_ns(), &mut Vec::new());
        let taken = a.take(buf);
        let then = taken.clone();
        b.post(of_b, &[work(2, Verb::FetchAdd { at: at(PAGE), n: 1 }, &[])]).unwrap();
        // Its answer is behind the data.
        wait_for(&mut b, 1);
        assert!(taken == then);
        let done = statuses(&wait_for(&mut a, 1));
        assert_eq!(done, [(1, WorkStatus::Done(0))]);
    }
}

#[test]
#[should_panic(expected = "work under way names it")]
fn bytes_that_another_thread_may_change_are_refused() {
    let target = serve(&Memory::new());
    let shared_endpoint = SharedEndpoint::new(quiet()).unwrap();
    let (mut a, of_a) = member(&shared_endpoint, &target);
    let buf = a.register(vec![0; 128]).unwrap();
    a.post(of_a, &[work(1, Verb::Read(at(0)), &[sge(buf, 0, 64)])]).unwrap();
    assert_eq!(a.piece(&sge(buf, 64, 64)), [0; 64], "the rest is free");
    a.piece(&sge(buf, 63, 2));
}

#[test]
fn a_member_that_posts_and_does_not_wait_holds_up_nobody() {
    let memory = Memory::new();
    let target = serve(&memory);
    let shared_endpoint = SharedEndpoint::with_look(quiet(), NEVER_NS).unwrap();
    let (mut absent, of_absent) = member(&shared_endpoint, &target);
    let (mut b, of_b) = member(&shared_endpoint, &target);
    let add = Verb::FetchAdd { at: at(64), n: 1 };
    for id in 0..100 {
        absent.post(of_absent, &[work(id, add, &[])]).unwrap();
        b.post(of_b, &[work(id, add, &[])]).unwrap();
        assert_eq!(wait_for(&mut b, 1).len(), 1);
    }
    let done = statuses(&wait_for(&mut absent, 100));
    let order: Vec<u64> = done.iter().map(|(id, _)| *id).collect();
    assert_eq!(order, (0..100).collect::<Vec<u64>>());
    assert_eq!(memory.pages.load(64), 200);
}

#[test]
fn no_wake_up_is_lost_among_threads_that_sleep_and_wake() {
    let memory = Memory::new();
    let target = serve(&memory);
    // Waits sleep at once; a wake-up that is lost is noticed after PATIENCE.
    let options = EndpointOptions { spin_ns: 0, yield_ns: 0, ..quiet() };
    let shared_endpoint = SharedEndpoint::with_look(options, NEVER_NS).unwrap();
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 3_000;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (mut end, peer) = member(&shared_endpoint, &target);
            scope.spawn(move || {
                let buf = end.register(vec![0; PAGE as usize]).unwrap();
                let mut random = thread + 1;
                for round in 0..ROUNDS {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let bytes = if (random >> 33).is_multiple_of(64) { 1 << 20 } else { 64 };
                    let local = [sge(buf, 0, bytes)];
                    let read = Verb::Read(at(0));
                    let add = Verb::FetchAdd { at: at(PAGE), n: 1 };
                    end.post(peer, &[work(round, read, &local), work(round, add, &[])]).unwrap();
                    let done = statuses(&wait_for(&mut end, 2));
                    assert!(done.iter().all(|(id, _)| *id == round), "{done:?}");
                    if (random >> 40).is_multiple_of(8) {
                        std::thread::sleep(Duration::from_micros(random >> 54));
                    }
                }
            });
        }
    });
    assert_eq!(memory.pages.load(PAGE), THREADS * ROUNDS);
    assert_eq!(shared_endpoint.stats().connections, 0);
}

#[test]
fn the_watch_is_handed_over_by_who_leaves_and_news_wake_whose_they_are() {
    let target = serve(&Memory::new());
    let options = EndpointOptions { spin_ns: 0, yield_ns: 0, ..quiet() };
    let shared_endpoint = SharedEndpoint::with_look(options, NEVER_NS).unwrap();
    const THREADS: usize = 4;
    std::thread::scope(|scope| {
        let mut places = Vec::new();
        let (report, reports) = std::sync::mpsc::channel();
        for thread in 0..THREADS {
            let (mut end, peer) = member(&shared_endpoint, &target);
            send(&mut end, peer, RemoteRequest::Consumed(0));
            let (told, channel) = {
                let (peer, routed) = received(&target, 1).pop().unwrap();
                ((peer, routed.channel), std::sync::mpsc::channel::<()>())
            };
            places.push((told, channel.0));
            let report = report.clone();
            scope.spawn(move || {
                // A thread that is not told to wait is in no call: the others cannot count on it.
                while channel.1.recv().is_ok() {
                    let events = wait_for(&mut end, 1);
                    assert!(matches!(events[..], [FabricEvent::Received { .. }]), "{events:?}");
                    report.send(thread).unwrap();
                }
            });
        }
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) % below
        };
        for round in 0..500 {
            places.iter().for_each(|(_, permit)| permit.send(()).unwrap());
            let mut waiting: Vec<usize> = (0..THREADS).collect();
            while !waiting.is_empty() {
                std::thread::sleep(Duration::from_micros(next(400)));
                let thread = waiting.swap_remove(next(waiting.len() as u64) as usize);
                let (peer, channel) = places[thread].0;
                let message = Routed { channel, message: RemoteReply::Consumed(round) };
                target.send(peer, &wire::encode_vec(&message)).unwrap();
                assert_eq!(reports.recv_timeout(PATIENCE), Ok(thread), "no wake-up came");
            }
        }
        // The threads end when nothing tells them to wait any more.
        drop(places);
    });
}

#[test]
fn messages_without_end_for_one_who_does_not_take_them_end_the_connection() {
    let target = serve(&Memory::new());
    let shared_endpoint = SharedEndpoint::new(quiet()).unwrap();
    let (mut idle, peer) = member(&shared_endpoint, &target);
    let (mut busy, its) = member(&shared_endpoint, &target);
    send(&mut idle, peer, RemoteRequest::Consumed(1));
    let (line, asked) = received(&target, 1).remove(0);
    let answer = Routed { channel: asked.channel, message: RemoteReply::Consumed(1) };
    let answer = wire::encode_vec(&answer);
    let start = Instant::now();
    let mut events = Vec::new();
    // The member that waits takes them in for the other one, which never looks.
    while !events.iter().any(|event| matches!(event, FabricEvent::Closed { .. })) {
        assert!(start.elapsed() < PATIENCE, "it takes in without end");
        for _ in 0..64 {
            if target.send(line, &answer).is_err() {
                break;
            }
        }
        busy.poll(monotonic_ns(), &mut events);
    }
    assert!(
        events
            .iter()
            .all(|event| matches!(event, FabricEvent::Closed { peer, .. } if *peer == its))
    );
    let mut kept = Vec::new();
    idle.poll(monotonic_ns(), &mut kept);
    let is_message = |event: &&FabricEvent| matches!(event, FabricEvent::Received { .. });
    assert_eq!(kept.iter().filter(is_message).count(), 1024);
    assert!(matches!(kept.last(), Some(FabricEvent::Closed { .. })));
}
