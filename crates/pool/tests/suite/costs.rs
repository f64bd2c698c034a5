//! What accesses cost, counted exactly: messages, allocations. System calls are counted by
//! `syscalls.rs`, which needs a tracer.

use rackpool::cluster::Cluster;
use rackpool::{Connections, FabricChoice, GAddr, Options, Placement, Pool, RackId};

#[test]
fn a_warm_access_to_the_own_rack_costs_no_message_and_no_allocation() {
    let cluster = Cluster::start(1).unwrap();
    let mut handle = cluster.pool(0).unwrap().handle().unwrap();
    let addr = handle.alloc(64 << 10, Placement::Local).unwrap();
    handle.write(addr, &[0; 64]).unwrap();
    let before = handle.handle_stats();
    let mut bytes = [0; 64];
    let allocated = allocation_counter::measure(|| {
        for i in 0..1000 {
            let at = rackpool::GAddr(addr.0 + 64 * i);
            handle.write(at, &bytes).unwrap();
            handle.read(at, &mut bytes).unwrap();
            handle.fetch_add(at, 1).unwrap();
            assert!(handle.cas(at, 1, 0).unwrap().is_swapped());
        }
    });
    assert_eq!(allocated.count_total, 0, "allocations");
    assert_eq!(handle.handle_stats(), before, "messages");
}

/// Objects that live at once, in no order of their own.
const OBJECTS: usize = 10_000;

#[test]
fn small_objects_come_and_go_without_messages() {
    let cluster = Cluster::start(1).unwrap();
    let mut handle = cluster.pool(0).unwrap().handle().unwrap();
    let begin = handle.handle_stats().ring_requests;
    let mut live: Vec<GAddr> =
        (0..OBJECTS).map(|_| handle.alloc(64, Placement::Local).unwrap()).collect();
    let allocated = handle.handle_stats().ring_requests - begin;
    assert!(allocated * 1000 <= 32 * OBJECTS as u64, "{allocated} messages to allocate");
    let mut random = 7_usize;
    let mut next = || {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % OBJECTS
    };
    let before = handle.handle_stats();
    let heap = allocation_counter::measure(|| {
        for _ in 0..OBJECTS {
            let one = &mut live[next()];
            handle.free(*one, 64).unwrap();
            *one = handle.alloc(64, Placement::Local).unwrap();
        }
    });
    assert_eq!(heap.count_total, 0, "allocations of our own");
    assert_eq!(handle.handle_stats(), before, "a steady mix costs no message");
    let distinct: std::collections::BTreeSet<GAddr> = live.iter().copied().collect();
    assert_eq!(distinct.len(), OBJECTS);
    // Half of them by the handle that has got them, half by another one.
    let mut other = cluster.pool(0).unwrap().handle().unwrap();
    for index in (1..OBJECTS).rev() {
        live.swap(index, next() % (index + 1));
    }
    let (own, others) = live.split_at(OBJECTS / 2);
    let begin = handle.handle_stats().ring_requests;
    own.iter().for_each(|addr| handle.free(*addr, 64).unwrap());
    let freed = handle.handle_stats().ring_requests - begin;
    assert!(freed * 1000 <= 32 * own.len() as u64, "{freed} messages to free");
    let mut bytes = [0; 64];
    other.read(others[0], &mut bytes).unwrap();
    let begin = other.handle_stats().ring_requests;
    others.iter().for_each(|addr| other.free(*addr, 64).unwrap());
    let freed = other.handle_stats().ring_requests - begin;
    assert!(freed * 1000 <= 32 * others.len() as u64, "{freed} messages to free others'");
    drop((handle, other));
}

#[test]
fn a_warm_batch_costs_no_allocation() {
    let cluster = Cluster::start(1).unwrap();
    let mut handle = cluster.pool(0).unwrap().handle().unwrap();
    let addr = handle.alloc(64 << 10, Placement::Local).unwrap();
    let mut buffers = [[0u8; 64]; 32];
    let mut ops = Vec::new();
    for (i, buffer) in buffers.iter_mut().enumerate() {
        ops.push((rackpool::GAddr(addr.0 + 64 * i as u64), &mut buffer[..]));
    }
    handle.read_batch(&mut ops).unwrap();
    let allocated = allocation_counter::measure(|| handle.read_batch(&mut ops).unwrap());
    assert_eq!(allocated.count_total, 0);
}

#[test]
fn a_remote_first_touch_costs_one_message_and_a_warm_one_none() {
    let cluster = Cluster::start(2).unwrap();
    let mut writer = cluster.pool(1).unwrap().handle().unwrap();
    let first = writer.alloc(64 << 10, Placement::Local).unwrap();
    let second = writer.alloc(64 << 10, Placement::Local).unwrap();
    for fabric in [FabricChoice::Tcp, FabricChoice::Shm] {
        let mut handle = cluster.pool_over(0, fabric).unwrap().handle().unwrap();
        let mut bytes = [0; 64];
        // The first page also finds the rack: one more call, once for each rack.
        handle.read(first, &mut bytes).unwrap();
        let before = handle.handle_stats();
        handle.read(second, &mut bytes).unwrap();
        let touched = handle.handle_stats();
        // Over the fabric a call to the rack of the first page finds the second one there; where
        // memory is mapped the own daemon and the master are asked.
        let mapped = u64::from(fabric == FabricChoice::Shm);
        assert_eq!(touched.master_requests - before.master_requests, mapped, "first touch");
        assert_eq!(touched.ring_requests - before.ring_requests, mapped, "first touch");
        assert_eq!(touched.fabric_operations - before.fabric_operations, 1 - mapped);
        handle.read(second, &mut bytes).unwrap();
        handle.write(second, &bytes).unwrap();
        handle.fetch_add(second, 1).unwrap();
        let warm = handle.handle_stats();
        assert_eq!(warm.master_requests, touched.master_requests, "warm");
        assert_eq!(warm.ring_requests, touched.ring_requests, "warm");
        let remote = warm.fabric_operations - touched.fabric_operations;
        assert_eq!(remote, if fabric == FabricChoice::Tcp { 3 } else { 0 });
        assert_eq!(warm.fabric_send_calls - touched.fabric_send_calls, remote);
        assert_eq!(warm.fabric_receive_calls - touched.fabric_receive_calls, remote);
    }
}

#[test]
fn a_warm_remote_access_costs_no_allocation() {
    for connections in [Connections::Own, Connections::Shared] {
        remote_accesses_allocate_nothing(connections);
    }
}

fn remote_accesses_allocate_nothing(connections: Connections) {
    let cluster = Cluster::start(2).unwrap();
    let options = Options::new(&cluster.master_addr(), 0).connections(connections);
    let mut handle = Pool::open(options).unwrap().handle().unwrap();
    let addr = handle.alloc(64 << 10, Placement::Rack(RackId(1))).unwrap();
    let mut bytes = [0; 64];
    for _ in 0..3 {
        handle.write(addr, &bytes).unwrap();
        handle.read(addr, &mut bytes).unwrap();
    }
    let allocated = allocation_counter::measure(|| {
        for _ in 0..100 {
            handle.write(addr, &bytes).unwrap();
            handle.read(addr, &mut bytes).unwrap();
        }
    });
    assert_eq!(allocated.count_total, 0);
}

/// Reads of 64 bytes with 32 under way; calls to the system that sent and that received.
#[test]
fn thirty_two_submissions_share_three_calls_to_the_system() {
    let cluster = Cluster::start(2).unwrap();
    let mut handle = cluster.pool_over(0, FabricChoice::Tcp).unwrap().handle().unwrap();
    let addr = handle.alloc(64 << 10, Placement::Rack(RackId(1))).unwrap();
    handle.write(addr, &[7; 4096]).unwrap();
    for _ in 0..20 {
        let before = handle.handle_stats();
        for index in 0..32 {
            let at = rackpool::GAddr(addr.0 + 64 * index);
            handle.submit_read(at, vec![0; 64]).unwrap();
        }
        for _ in 0..32 {
            let done = handle.wait_completion(10_000).unwrap().expect("32 are under way");
            assert!(done.result.is_ok() && done.buffer == [7; 64]);
        }
        let after = handle.handle_stats();
        assert_eq!(after.fabric_operations - before.fabric_operations, 32);
        // The first at once, a batch of 16, and the rest with the first look at what has ended.
        assert_eq!(after.fabric_send_calls - before.fabric_send_calls, 3);
        let received = after.fabric_receive_calls - before.fabric_receive_calls;
        assert!((1..=32).contains(&received), "{received} receiving calls");
    }
}

#[test]
fn a_batch_of_32_reads_is_one_call_to_send() {
    let cluster = Cluster::start(2).unwrap();
    let mut handle = cluster.pool_over(0, FabricChoice::Tcp).unwrap().handle().unwrap();
    let addr = handle.alloc(64 << 10, Placement::Rack(RackId(1))).unwrap();
    handle.write(addr, &[7; 4096]).unwrap();
    let mut buffers = [[0u8; 64]; 32];
    let mut ops = Vec::new();
    for (i, buffer) in buffers.iter_mut().enumerate() {
        ops.push((rackpool::GAddr(addr.0 + 64 * i as u64), &mut buffer[..]));
    }
    let before = handle.handle_stats();
    handle.read_batch(&mut ops).unwrap();
    let after = handle.handle_stats();
    assert_eq!(after.fabric_operations - before.fabric_operations, 32);
    assert_eq!(after.fabric_send_calls - before.fabric_send_calls, 1);
}
