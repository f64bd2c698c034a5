//! The rules of queue pairs under faults: reliable connections execute once and in order or end
//! with an error, unreliable ones lose whole messages, datagrams do as they like; nothing is
//! forgotten in the slabs.

use crate::net_rig::{Rig, at, sge};
use rackpool_core::addr::Generation;
use rackpool_core::error::DeathCause;
use rackpool_core::seam::{
    Fabric, FabricEvent, PeerId, PostError, RemoteAddr, Verb, WorkRequest, WorkStatus,
};
use rackpool_sim::device::Profile;
use rackpool_sim::net::{
    Connection, Down, EndpointId, NetFaults, NodeId, Remote, Shared, SimFabric,
};
use rackpool_sim::rng::{Purpose, Rng};
use rackpool_sim::time::Ps;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

fn profile() -> Profile {
    Profile::load("modern").unwrap()
}

fn bad() -> NetFaults {
    NetFaults {
        loss_ppm: 20_000,
        duplicate_ppm: 20_000,
        delay_ppm: 20_000,
        delay_max: Ps::us(500),
        reorder_ppm: 20_000,
        reorder_max: Ps::us(3),
    }
}

/// Posts one request with `bytes` from the buffer's start, with `word` as its first word. The
/// buffer stays as it is until the request is complete.
fn post_word(
    rig: &mut Rig,
    ends: (EndpointId, PeerId),
    id: u64,
    verb: Verb,
    place: u64,
    bytes: u64,
) -> Result<(), PostError> {
    rig.world.buffer[place as usize..][..8].copy_from_slice(&id.to_le_bytes());
    let local = [sge(place, bytes)];
    let work = WorkRequest { id, verb, local: &local, signalled: true };
    rig.post(ends.0, ends.1, &[work]).map_err(|(_, error)| error)
}

#[test]
fn a_reliable_connection_executes_once_and_in_order_whatever_the_network_does() {
    let mut totals = [0u64; 6];
    for seed in 0..30 {
        let mut rig = Rig::new(&profile(), bad(), seed);
        let (client, peer, far) = rig.pair(Connection::Reliable);
        let adds = [WorkRequest {
            id: u64::MAX,
            verb: Verb::FetchAdd { at: at(0), n: 1 },
            local: &[],
            signalled: true,
        }];
        let mut posted = 0u64;
        while posted < 1_000 {
            let bytes = [8, 64, 1024, 9000][posted as usize % 4];
            // Each request has its own piece of the buffer for as long as it can be under way.
            let place = posted % 50 * 16_384;
            let verb = Verb::Write(at(64));
            let outstanding = posted as usize - rig.world.told.len() / 2;
            if outstanding > 48
                || post_word(&mut rig, (client, peer), posted, verb, place, bytes).is_err()
            {
                assert!(rig.step(), "seed {seed}");
                continue;
            }
            while rig.post(client, peer, &adds).is_err() {
                assert!(rig.step(), "seed {seed}");
            }
            posted += 1;
        }
        rig.drain();
        let statuses = rig.statuses(client);
        assert!(
            statuses.iter().all(|(_, status)| matches!(status, WorkStatus::Done(_))),
            "seed {seed}: a connection must not end while the network lets something through"
        );
        let olds = statuses.iter().filter(|(id, _)| *id == u64::MAX).map(|(_, status)| *status);
        let ids: Vec<_> = statuses.iter().map(|(id, _)| *id).filter(|id| *id < u64::MAX).collect();
        assert!(olds.eq((0..1_000).map(WorkStatus::Done)), "seed {seed}");
        assert!(ids.into_iter().eq(0..1_000), "seed {seed}");
        let words: Vec<u64> = rig.world.written.iter().map(|(_, word)| *word).collect();
        assert!(words.into_iter().eq(0..1_000), "seed {seed}");
        assert_eq!(rig.world.memory[far.0 as usize][..8], 1_000u64.to_le_bytes());
        assert_eq!(rig.net.operations_alive(), 0, "seed {seed}");
        let c = rig.net.counters();
        let counts =
            [c.lost, c.duplicated, c.delayed, c.reordered, c.retried, c.duplicates_refused];
        totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
    }
    assert!(totals.iter().all(|count| *count > 0), "{totals:?}");
}

#[test]
fn reads_under_faults_bring_what_was_there_when_they_were_executed() {
    let mut rig = Rig::new(&profile(), bad(), 5);
    let (client, peer, far) = rig.pair(Connection::Reliable);
    let bytes = 20_000;
    for round in 0..100u8 {
        rig.world.memory[far.0 as usize][..bytes as usize].fill(round);
        rig.world.buffer[..bytes as usize].fill(255);
        rig.time(client, peer, Verb::Read(at(0)), bytes);
        assert!(rig.world.buffer[..bytes as usize].iter().all(|byte| *byte == round));
    }
    assert!(rig.net.counters().retried > 0);
    assert_eq!(rig.net.operations_alive(), 0);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut rig = Rig::new(&profile(), bad(), seed);
        let (client, peer, _) = rig.pair(Connection::Reliable);
        for id in 0..100 {
            post_word(&mut rig, (client, peer), id, Verb::Write(at(0)), 0, 64).unwrap();
        }
        rig.drain();
        (rig.world.told.clone(), *rig.net.counters(), rig.world.popped)
    };
    assert!(run(3) == run(3));
    assert!(run(3) != run(4));
}

#[test]
fn a_silent_peer_ends_the_connection_after_its_retries_and_says_what_was_never_sent() {
    let p = profile();
    let mut rig = Rig::new(&p, NetFaults::none(), 1);
    let (near, far) = (rig.node(), rig.node());
    let (client, server) = (rig.net.add_endpoint(near), rig.net.add_endpoint(far));
    let peer = rig.connect(client, server, Connection::Reliable);
    rig.world.told.clear();
    rig.net.node_down(rig.world.now, far, Down::Power, &mut rig.world);
    let start = rig.world.now;
    let local = [sge(0, 64)];
    let work = |id| WorkRequest { id, verb: Verb::Read(at(0)), local: &local, signalled: false };
    let batch: Vec<_> = (0..40).map(work).collect();
    rig.post(client, peer, &batch).unwrap();
    rig.drain();
    let statuses = rig.statuses(client);
    let depth = p.rnic.reads_per_connection.0 as usize;
    for (index, (id, status)) in statuses.iter().enumerate() {
        assert_eq!(*id, index as u64);
        let executed = if index < depth { None } else { Some(false) };
        assert_eq!(*status, WorkStatus::Flushed { executed });
    }
    let closed = FabricEvent::Closed { peer, cause: DeathCause::Silent };
    assert_eq!(rig.told(client).len(), 41);
    let (when, _, last) = rig.world.told.last().unwrap();
    assert_eq!(*last, closed);
    let tries = p.rnic.retransmit.times(p.rnic.retries.0 + 1);
    assert!(*when - start >= tries && *when - start < tries + Ps::us(100), "{}", *when - start);
    assert_eq!(rig.post(client, peer, &batch), Err((0, PostError::Down)));
    assert_eq!((rig.net.operations_alive(), rig.net.counters().qp_errors), (0, 1));
    // Another connection has another number, and works when the node is back.
    rig.net.node_up(far);
    let server = rig.net.add_endpoint(far);
    let again = rig.connect(client, server, Connection::Reliable);
    assert_ne!(again, peer);
    rig.time(client, again, Verb::Read(at(0)), 64);
}

#[test]
fn a_crashed_process_is_told_at_once_if_its_kernel_lives() {
    for seen in [true, false] {
        let mut rig = Rig::new(&profile(), NetFaults::none(), 1);
        rig.net.set_close_is_seen(seen);
        let (near, far) = (rig.node(), rig.node());
        let (client, server) = (rig.net.add_endpoint(near), rig.net.add_endpoint(far));
        let peer = rig.connect(client, server, Connection::Reliable);
        let start = rig.world.now;
        post_word(&mut rig, (client, peer), 1, Verb::Write(at(0)), 0, 64).unwrap();
        rig.net.endpoint_down(start, server, Down::Crash, &mut rig.world);
        rig.drain();
        assert!(rig.world.written.is_empty(), "nothing is executed for a dead process");
        let flushed = WorkStatus::Flushed { executed: None };
        assert_eq!(rig.statuses(client), [(1, flushed)]);
        let (when, _, last) = rig.world.told.last().unwrap();
        let cause = if seen { DeathCause::Closed } else { DeathCause::Silent };
        assert_eq!(*last, FabricEvent::Closed { peer, cause });
        let message = profile().tcp.message;
        assert_eq!(*when - start == message, seen);
        assert_eq!(rig.net.operations_alive(), 0);
    }
}

#[test]
fn a_requester_that_dies_in_a_long_write_leaves_a_prefix() {
    let p = profile();
    let mut rig = Rig::new(&p, NetFaults::none(), 1);
    let (client, peer, far) = rig.pair(Connection::Reliable);
    rig.world.buffer.fill(1);
    let bytes = 100 * p.link.mtu.0;
    post_word(&mut rig, (client, peer), 1, Verb::Write(at(0)), 0, bytes).unwrap();
    let half = rig.world.now + p.link.bandwidth.time(bytes / 2) + Ps::us(2);
    rig.run_until(half);
    rig.net.endpoint_down(half, client, Down::Power, &mut rig.world);
    rig.drain();
    let memory = &rig.world.memory[far.0 as usize];
    let written = rig.world.written[0].0;
    assert!(
        written > 0 && written < bytes as usize && written.is_multiple_of(p.link.mtu.0 as usize)
    );
    assert!(memory[8..written].iter().all(|byte| *byte == 1));
    assert!(memory[written..].iter().all(|byte| *byte == 0));
    assert_eq!((rig.net.counters().torn, rig.net.operations_alive()), (1, 0));
}

#[test]
fn an_unreliable_connection_loses_whole_messages_and_keeps_their_order() {
    let faults = NetFaults { loss_ppm: 100_000, reorder_ppm: 100_000, ..bad() };
    let mut rig = Rig::new(&profile(), faults, 9);
    let (client, peer, _) = rig.pair(Connection::Unreliable);
    for id in 0..300 {
        let bytes = if id % 2 == 0 { 64 } else { 9000 };
        post_word(&mut rig, (client, peer), id, Verb::Write(at(0)), 0, bytes).unwrap();
        rig.drain();
    }
    assert_eq!(rig.statuses(client).len(), 300, "sent is done");
    let written = &rig.world.written;
    assert!(written.windows(2).all(|pair| pair[0].1 <= pair[1].1), "in order");
    let whole = |&(bytes, word): &(usize, u64)| bytes == if word % 2 == 0 { 64 } else { 9000 };
    assert!(written.iter().all(whole));
    let mut words: Vec<u64> = written.iter().map(|(_, word)| *word).collect();
    words.dedup();
    let (small, large) = (
        words.iter().filter(|word| **word % 2 == 0).count(),
        words.iter().filter(|word| **word % 2 == 1).count(),
    );
    assert!((120..145).contains(&small) && (90..125).contains(&large), "{small} {large}");
    let counters = rig.net.counters();
    assert!(counters.gaps > 0 && counters.executed_again > 0 && counters.retried == 0);
    // A verb that it has not.
    let local = [sge(0, 64)];
    let work = WorkRequest { id: 999, verb: Verb::Read(at(0)), local: &local, signalled: true };
    rig.post(client, peer, &[work]).unwrap();
    rig.drain();
    assert_eq!(rig.statuses(client).last(), Some(&(999, WorkStatus::BadRange)));
    assert_eq!(rig.net.operations_alive(), 0);
}

#[test]
fn datagrams_are_lost_doubled_and_overtaken_and_need_receives() {
    let faults = NetFaults { loss_ppm: 50_000, reorder_ppm: 200_000, ..bad() };
    let mut rig = Rig::new(&profile(), faults, 2);
    let (near, far) = (rig.node(), rig.node());
    let (client, server) = (rig.net.add_endpoint(near), rig.net.add_endpoint(far));
    let peer = rig.connect(client, server, Connection::Datagram);
    rig.net.post_receives(server, 10_000);
    for id in 0..1_000 {
        while post_word(&mut rig, (client, peer), id, Verb::Send, 0, 64).is_err() {
            rig.step();
        }
    }
    rig.drain();
    let words = |rig: &Rig| -> Vec<u64> {
        let word = |event| match event {
            FabricEvent::Received { message, .. } => {
                assert_eq!(message.len(), 104);
                u64::from_le_bytes(message[40..48].try_into().unwrap())
            }
            other => panic!("{other:?}"),
        };
        rig.told(server).into_iter().map(word).collect()
    };
    let got = words(&rig);
    let mut sorted = got.clone();
    sorted.sort_unstable();
    assert!(sorted != got, "some were overtaken");
    let received = sorted.len();
    sorted.dedup();
    assert!(sorted.len() < received, "some came twice");
    assert!((920..980).contains(&sorted.len()), "{}", sorted.len());
    assert_eq!(rig.statuses(client).len(), 1_000);
    // Longer than the MTU.
    let bytes = profile().link.mtu.0 + 1;
    post_word(&mut rig, (client, peer), 7, Verb::Send, 0, bytes).unwrap();
    rig.drain();
    assert_eq!(rig.statuses(client).last(), Some(&(7, WorkStatus::BadRange)));
    // Without a posted receive.
    let (third, fourth) = (rig.node(), rig.net.add_endpoint(far));
    let sender = rig.net.add_endpoint(third);
    let to = rig.connect(sender, fourth, Connection::Datagram);
    rig.net.set_faults(NetFaults::none());
    post_word(&mut rig, (sender, to), 7, Verb::Send, 0, 64).unwrap();
    rig.drain();
    assert_eq!((rig.told(fourth).len(), rig.net.counters().no_receive), (0, 1));
    assert_eq!(rig.net.operations_alive(), 0);
}

#[test]
fn messages_and_immediate_values_arrive_in_order_after_their_data() {
    for kind in [Connection::Reliable, Connection::Stream] {
        let mut rig = Rig::new(&profile(), bad(), 11);
        let (near, far) = (rig.node(), rig.node());
        let (client, server) = (rig.net.add_endpoint(near), rig.net.add_endpoint(far));
        let peer = rig.connect(client, server, kind);
        rig.world.told.clear();
        for id in 0..40 {
            post_word(&mut rig, (client, peer), id, Verb::Send, id * 16_384, 100).unwrap();
            let imm = Verb::WriteImm(at(0), id as u32);
            post_word(&mut rig, (client, peer), id, imm, id * 16_384, 9_000).unwrap();
        }
        rig.drain();
        let told = rig.told(server);
        assert_eq!(told.len(), 80);
        for (index, event) in told.iter().enumerate() {
            let id = index as u64 / 2;
            match event {
                FabricEvent::Received { message, .. } => {
                    assert!(
                        index % 2 == 0 && message.len() == 100 && message[..8] == id.to_le_bytes()
                    );
                }
                FabricEvent::ReceivedImm { imm, .. } => {
                    assert!(index % 2 == 1 && u64::from(*imm) == id);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(rig.world.written.len(), 40);
        // The server answers on the same connection.
        rig.world.told.clear();
        post_word(&mut rig, (server, PeerId(0)), 1, Verb::Send, 0, 10).unwrap();
        rig.drain();
        let told = rig.told(client);
        assert!(matches!(told[0], FabricEvent::Received { peer: from, .. } if from == peer));
        assert_eq!(rig.net.operations_alive(), 0);
    }
}

#[test]
fn a_refused_operation_does_nothing_and_the_connection_goes_on() {
    let mut rig = Rig::new(&profile(), NetFaults::none(), 1);
    let (client, peer, far) = rig.pair(Connection::Reliable);
    let wrong = RemoteAddr { offset: 0, key: Generation(8) };
    let outside = at(crate::net_rig::MEMORY_BYTES as u64 - 8);
    rig.world.buffer[..64].fill(1);
    let local = [sge(0, 64)];
    let work = |id, verb, signalled| WorkRequest { id, verb, local: &local, signalled };
    let batch = [
        work(1, Verb::Write(wrong), false),
        work(2, Verb::Write(at(64)), false),
        work(3, Verb::Read(outside), false),
        work(4, Verb::Write(at(128)), true),
    ];
    rig.post(client, peer, &batch).unwrap();
    rig.drain();
    let expected = [(1, WorkStatus::BadKey), (3, WorkStatus::BadRange), (4, WorkStatus::Done(0))];
    assert_eq!(rig.statuses(client), expected);
    let memory = &rig.world.memory[far.0 as usize];
    assert!(memory[..64] == [0; 64] && memory[64..192] == [1; 128]);
}

#[test]
fn a_full_queue_answers_busy_and_keeps_what_was_posted() {
    let mut rig = Rig::new(&profile(), NetFaults::none(), 1);
    let (client, peer, far) = rig.pair(Connection::Reliable);
    let limit = rig.net.capabilities().outstanding_max as usize;
    let verb = Verb::FetchAdd { at: at(0), n: 1 };
    let batch = vec![WorkRequest { id: 0, verb, local: &[], signalled: true }; limit + 3];
    assert_eq!(rig.post(client, peer, &batch), Err((limit, PostError::Busy)));
    assert_eq!(rig.post(client, peer, &batch[..1]), Err((0, PostError::Busy)));
    rig.drain();
    assert_eq!(rig.statuses(client).len(), limit);
    assert_eq!(rig.world.memory[far.0 as usize][..8], (limit as u64).to_le_bytes());
}

#[test]
fn buffers_are_read_at_dma_and_inline_ones_at_the_post() {
    let p = profile();
    let inline = p.rnic.inline_max.0;
    for (bytes, seen) in [(inline, 1), (inline + 1, 2)] {
        let mut rig = Rig::new(&p, NetFaults::none(), 1);
        let (client, peer, far) = rig.pair(Connection::Reliable);
        rig.world.buffer.fill(1);
        let local = [sge(0, bytes)];
        let work = WorkRequest { id: 1, verb: Verb::Write(at(0)), local: &local, signalled: true };
        rig.post(client, peer, &[work]).unwrap();
        // The buffer is used again too early.
        rig.world.buffer.fill(2);
        rig.drain();
        assert_eq!(rig.world.memory[far.0 as usize][0], seen);
    }
}

#[test]
fn a_partition_is_one_way_and_heals() {
    let mut rig = Rig::new(&profile(), NetFaults::none(), 1);
    let (near, far) = (rig.node(), rig.node());
    let client = rig.net.add_endpoint(near);
    let peer = rig.connect(client, far, Connection::Reliable);
    rig.world.told.clear();
    rig.net.partition(far, near, true);
    post_word(&mut rig, (client, peer), 5, Verb::Write(at(0)), 0, 64).unwrap();
    rig.run_until(rig.world.now + Ps::ms(2));
    assert_eq!(rig.world.written.len(), 1, "the way there is open");
    assert!(rig.told(client).is_empty(), "the way back is not");
    rig.net.partition(far, near, false);
    rig.drain();
    assert_eq!(rig.statuses(client), [(5, WorkStatus::Done(0))]);
    assert_eq!(rig.world.written.len(), 1, "once");
    assert!(rig.net.counters().partitioned > 0 && rig.net.counters().duplicates_refused > 0);
}

#[test]
fn an_end_that_hears_nothing_finds_out_by_its_probes() {
    let mut rig = Rig::new(&profile(), NetFaults::none(), 1);
    let (near, far) = (rig.node(), rig.node());
    let (client, server) = (rig.net.add_endpoint(near), rig.net.add_endpoint(far));
    let peer = rig.connect(client, server, Connection::Reliable);
    rig.world.told.clear();
    rig.net.partition(near, far, true);
    post_word(&mut rig, (client, peer), 5, Verb::Write(at(0)), 0, 64).unwrap();
    rig.drain();
    let closed = |peer, cause| FabricEvent::Closed { peer, cause };
    assert_eq!(rig.told(client).last(), Some(&closed(peer, DeathCause::Silent)));
    assert_eq!(rig.told(server), [closed(PeerId(0), DeathCause::Closed)]);
    assert_eq!(rig.told(client).len(), 2);
    rig.net.heal();
    rig.net.close(rig.world.now, client, peer, &mut rig.world);
    rig.drain();
    assert_eq!(rig.told(server).len(), 1, "a connection ends once");
}

#[test]
fn a_paused_node_does_its_work_later_and_a_slow_one_slowly() {
    let mut rig = Rig::new(&profile(), NetFaults::none(), 1);
    let (client, peer, far) = rig.pair(Connection::Reliable);
    let normal = {
        rig.time(client, peer, Verb::Read(at(0)), 64);
        rig.time(client, peer, Verb::Read(at(0)), 64)
    };
    let until = rig.world.now + Ps::us(300);
    rig.net.pause(far, until);
    let start = rig.world.now;
    let paused = rig.time(client, peer, Verb::Read(at(0)), 64);
    assert!(start + paused > until && paused < Ps::us(300) + normal);
    rig.net.slow_node(far, 1_000);
    let slow = rig.time(client, peer, Verb::Read(at(0)), 64);
    assert!(slow > normal && slow < normal.times(10), "{slow} after {normal}");
}

#[test]
fn a_revocation_waits_for_what_is_being_executed() {
    let p = profile();
    let mut rig = Rig::new(&p, NetFaults::none(), 1);
    let (client, peer, far) = rig.pair(Connection::Reliable);
    rig.world.execution = Ps::us(50);
    post_word(&mut rig, (client, peer), 1, Verb::Write(at(0)), 0, 64).unwrap();
    post_word(&mut rig, (client, peer), 2, Verb::Write(at(0)), 64, 64).unwrap();
    rig.run_until(rig.world.now + Ps::us(10));
    let begun = rig.world.now;
    rig.net.revoke(begun, far, crate::net_rig::KEY, 77, &mut rig.world);
    rig.net.revoke(begun, far, Generation(8), 78, &mut rig.world);
    rig.drain();
    let revoked = &rig.world.revoked;
    assert_eq!(revoked[0], (begun + p.rnic.revoke, 78), "nothing runs under this key");
    assert!(revoked[1].1 == 77 && revoked[1].0 > begun + Ps::us(30));
    assert_eq!(rig.statuses(client).len(), 2);
}

#[test]
fn closing_flushes_both_ends_and_connecting_to_the_dead_fails() {
    let mut rig = Rig::new(&profile(), NetFaults::none(), 1);
    let (near, far) = (rig.node(), rig.node());
    let (client, server) = (rig.net.add_endpoint(near), rig.net.add_endpoint(far));
    let peer = rig.connect(client, server, Connection::Reliable);
    rig.world.told.clear();
    post_word(&mut rig, (client, peer), 1, Verb::Write(at(0)), 0, 64).unwrap();
    rig.net.close(rig.world.now, client, peer, &mut rig.world);
    rig.drain();
    let unsent = WorkStatus::Flushed { executed: Some(false) };
    let closed = |peer| FabricEvent::Closed { peer, cause: DeathCause::Closed };
    let completed = FabricEvent::Completed { peer, id: 1, status: unsent };
    assert_eq!(rig.told(client), [completed, closed(peer)]);
    assert_eq!(rig.told(server), [closed(PeerId(0))]);
    assert!(rig.world.written.is_empty());
    rig.net.endpoint_down(rig.world.now, server, Down::Crash, &mut rig.world);
    rig.world.told.clear();
    let again =
        rig.net.connect(rig.world.now, client, server, Connection::Reliable, &mut rig.world);
    rig.drain();
    assert_eq!(rig.told(client), [closed(again)]);
    rig.net.node_down(rig.world.now, far, Down::Power, &mut rig.world);
    rig.world.told.clear();
    let third = rig.net.connect(rig.world.now, client, far, Connection::Reliable, &mut rig.world);
    rig.drain();
    assert_eq!(rig.told(client), [FabricEvent::Closed { peer: third, cause: DeathCause::Silent }]);
    assert_eq!(rig.net.operations_alive(), 0);
}

fn fetch_add(fabric: &mut impl Fabric, peer: PeerId, n: u64) -> Result<(), PostError> {
    let verb = Verb::FetchAdd { at: at(0), n };
    let work = WorkRequest { id: n, verb, local: &[], signalled: true };
    fabric.post(peer, &[work]).map_err(|(_, error)| error)
}

#[test]
fn the_network_serves_code_that_is_written_against_the_seam() {
    let mut rig = Rig::new(&profile(), NetFaults::none(), 1);
    let (client, peer, _) = rig.pair(Connection::Reliable);
    let now = rig.world.now;
    let shared = Rc::new(RefCell::new(Shared { net: rig.net, sink: rig.world, now }));
    let mut fabric = SimFabric::new(shared.clone(), client);
    assert_eq!(fabric.capabilities().name, "sim");
    fetch_add(&mut fabric, peer, 5).unwrap();
    fetch_add(&mut fabric, peer, 6).unwrap();
    let mut events = Vec::new();
    assert_eq!(fabric.poll(0, &mut events), 0, "not yet");
    drop(fabric);
    let Ok(whole) = Rc::try_unwrap(shared) else { panic!("somebody kept it") };
    let Shared { net, sink, .. } = whole.into_inner();
    let mut rig = Rig { net, world: sink };
    rig.drain();
    let now = rig.world.now;
    let shared = Rc::new(RefCell::new(Shared { net: rig.net, sink: rig.world, now }));
    assert_eq!(SimFabric::new(shared, client).poll(0, &mut events), 2);
    let done = |id, old| FabricEvent::Completed { peer, id, status: WorkStatus::Done(old) };
    assert_eq!(events, [done(5, 0), done(6, 5)]);
}

/// Many nodes, crashes and partitions at random: everything posted ends once, nothing leaks.
#[test]
fn everything_ends_and_nothing_leaks_when_nodes_come_and_go() {
    let (mut ended, mut crashes) = (0, 0);
    for seed in 0..40 {
        let mut rng = Rng::new(seed, Purpose::Faults, 0);
        let mut rig = Rig::new(&profile(), bad(), seed);
        let nodes: Vec<_> = (0..4).map(|_| rig.node()).collect();
        let mut ends: Vec<_> = nodes.iter().map(|node| Some(rig.net.add_endpoint(*node))).collect();
        let mut posted = BTreeMap::<EndpointId, Vec<u64>>::new();
        for _ in 0..200 {
            let (from, to) = (rng.below(4) as usize, rng.below(4) as usize);
            let (now, world) = (rig.world.now, &mut rig.world);
            match (rng.below(12), ends[from], ends[to]) {
                (0, Some(_), _) => {
                    let how = if rng.below(2) == 0 { Down::Crash } else { Down::Power };
                    rig.net.node_down(now, nodes[from], how, world);
                    ends[from] = None;
                    crashes += 1;
                }
                (_, None, _) => {
                    rig.net.node_up(nodes[from]);
                    ends[from] = Some(rig.net.add_endpoint(nodes[from]));
                }
                (1, ..) => rig.net.partition(nodes[from], nodes[to], true),
                (2, ..) => rig.net.heal(),
                (3, ..) => rig.net.pause(nodes[from], now + Ps::us(rng.below(2_000))),
                (_, Some(near), Some(far)) => {
                    let memory = (rng.below(3) == 0).then_some(nodes[to]);
                    let ids = post_some(&mut rig, &mut rng, near, far, memory);
                    posted.entry(near).or_default().extend(ids);
                }
                (_, Some(_), None) => {}
            }
            rig.run_until(rig.world.now + Ps::us(rng.below(100)));
        }
        rig.net.heal();
        rig.drain();
        for end in ends.into_iter().flatten() {
            let mut ids: Vec<u64> = rig.statuses(end).iter().map(|(id, _)| *id).collect();
            ids.sort_unstable();
            let expected = posted.remove(&end).unwrap_or_default();
            assert!(ids == expected, "seed {seed}: {ids:?} ended of {expected:?}");
            ended += ids.len();
        }
        assert_eq!(rig.net.operations_alive(), 0, "seed {seed}");
    }
    assert!(ended > 10_000 && crashes > 100, "{ended} {crashes}");
}

/// Connects somehow, waits a little, posts this and that; the numbers that were taken.
fn post_some(
    rig: &mut Rig,
    rng: &mut Rng,
    near: EndpointId,
    far: EndpointId,
    memory: Option<NodeId>,
) -> Vec<u64> {
    let kinds = [Connection::Reliable, Connection::Unreliable, Connection::Stream];
    let kind = kinds[rng.below(3) as usize];
    let to = memory.map_or(Remote::Endpoint(far), Remote::Node);
    let peer = rig.net.connect(rig.world.now, near, to, kind, &mut rig.world);
    rig.run_until(rig.world.now + Ps::us(100));
    let first = rig.world.now.0;
    let mut ids = Vec::new();
    for id in first..first + rng.below(40) {
        let verb = match rng.below(4) {
            0 => Verb::Read(at(0)),
            1 => Verb::Send,
            _ => Verb::Write(at(0)),
        };
        let bytes = [8, 64, 60_000][rng.below(3) as usize];
        if post_word(rig, (near, peer), id, verb, 0, bytes).is_ok() {
            ids.push(id);
        }
    }
    ids
}
