//! What accesses cost, counted exactly: messages, allocations. System calls are counted by
//! `syscalls.rs`, which needs a tracer.

use rackpool::cluster::Cluster;
use rackpool::{CasOutcome, Connections, FabricChoice, Options, Placement, Pool, RackId};

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

#[test]
fn sixteen_swaps_in_another_rack_are_one_call_to_send_and_one_in_two_racks_each() {
    let cluster = Cluster::start(3).unwrap();
    let mut handle = cluster.pool_over(0, FabricChoice::Tcp).unwrap().handle().unwrap();
    let mut words = Vec::new();
    for rack in [0, 1, 2] {
        let addr = handle.alloc(4096, Placement::Rack(RackId(rack))).unwrap();
        handle.write(addr, &[0; 4096]).unwrap();
        words.push(addr);
    }
    let swaps = |racks: &[usize], expected| -> Vec<rackpool::WordSwap> {
        // The racks take turns: what goes to one of them is sent together all the same.
        let at = |index: u64| words[racks[index as usize % racks.len()]].0 + 8 * index;
        let swap = |index| rackpool::WordSwap {
            addr: rackpool::GAddr(at(index)),
            expected,
            new: expected + 1,
        };
        (0..16).map(swap).collect()
    };
    for (racks, sends) in [(&[1][..], 1), (&[0], 0), (&[0, 1, 2], 2)] {
        let before = handle.handle_stats();
        // It does not count what they find there.
        let outcomes = handle.cas_batch(&swaps(racks, 9));
        let after = handle.handle_stats();
        assert_eq!(outcomes, vec![Ok(CasOutcome::Found(0)); 16]);
        assert_eq!(after.fabric_send_calls - before.fabric_send_calls, sends);
    }
    let outcomes = handle.cas_batch(&swaps(&[2], 0));
    assert_eq!(outcomes, vec![Ok(CasOutcome::Swapped); 16]);
    let outcomes = handle.cas_batch(&swaps(&[2], 0));
    assert_eq!(outcomes, vec![Ok(CasOutcome::Found(1)); 16]);
    let odd = rackpool::WordSwap { addr: rackpool::GAddr(words[1].0 + 4), expected: 0, new: 1 };
    assert_eq!(handle.cas_batch(&[odd])[0].as_ref().unwrap_err().code(), "misaligned");
}
