//! Handles without a fabric endpoint: their own rack's daemon works for them (Rcmp §4.2, methods b
//! and c). Servers in threads of this process.

use rackpool::cluster::Cluster;
use rackpool::{CasOutcome, FabricChoice, GAddr, Handle, LockMode, LockOptions, Placement, RackId};
use std::time::{Duration, Instant};

const PAGE: u64 = 64 << 10;

fn proxied(cluster: &Cluster) -> Handle {
    cluster.pool_over(0, FabricChoice::Proxied).unwrap().handle().unwrap()
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8).collect()
}

#[test]
fn what_is_written_through_the_daemon_is_read_in_the_other_rack() {
    let cluster = Cluster::start(2).unwrap();
    let mut other = cluster.pool(1).unwrap().handle().unwrap();
    let mut handle = proxied(&cluster);
    for (bytes, offset) in [
        (1, 0),
        (7, 3),
        (64, 0),
        (4096, 100),
        (8192, 1),
        (40_000, 24_001),
        (3 * PAGE as usize + 17, PAGE - 5),
        (2 << 20, 7),
    ] {
        let addr = handle.alloc(bytes as u64 + offset, Placement::Rack(RackId(1))).unwrap();
        let data = pattern(bytes, addr.0);
        let at = GAddr(addr.0 + offset);
        handle.write(at, &data).unwrap();
        for reader in [&mut handle, &mut other] {
            let mut found = vec![0; bytes];
            reader.read(at, &mut found).unwrap();
            assert!(found == data, "{bytes} bytes at offset {offset}");
        }
        other.free(addr, bytes as u64 + offset).unwrap();
        if bytes as u64 > PAGE {
            assert_eq!(handle.read(at, &mut [0]).unwrap_err().code(), "not-mapped");
        }
    }
}

#[test]
fn atomics_and_locks_through_the_daemon_exclude_those_of_the_home_rack() {
    let cluster = Cluster::start(2).unwrap();
    let mut a = proxied(&cluster);
    let counter = a.alloc(64, Placement::Rack(RackId(1))).unwrap();
    const EACH: u64 = 500;
    std::thread::scope(|scope| {
        for (rack, fabric) in
            [(0, FabricChoice::Proxied), (0, FabricChoice::Proxied), (1, FabricChoice::Tcp)]
        {
            let mut handle = cluster.pool_over(rack, fabric).unwrap().handle().unwrap();
            scope.spawn(move || {
                for i in 0..EACH {
                    match i % 3 {
                        0 => drop(handle.fetch_add(counter, 1).unwrap()),
                        1 => {
                            let mut old = handle.read_u64(counter).unwrap();
                            while let CasOutcome::Found(actual) =
                                handle.cas(counter, old, old + 1).unwrap()
                            {
                                old = actual;
                            }
                        }
                        _ => {
                            let guard =
                                handle.lock(counter, LockMode::Write, LockOptions::line()).unwrap();
                            handle.fetch_add(counter, 1).unwrap();
                            handle.unlock(guard).unwrap();
                        }
                    }
                }
            });
        }
    });
    assert_eq!(a.read_u64(counter).unwrap(), 3 * EACH);
}

#[test]
fn all_handles_of_a_rack_share_one_connection_to_each_other_rack() {
    let cluster = Cluster::start(3).unwrap();
    let mut handles: Vec<Handle> = (0..8).map(|_| proxied(&cluster)).collect();
    let remote = [1, 2].map(|rack| handles[0].alloc(PAGE, Placement::Rack(RackId(rack))).unwrap());
    for handle in &mut handles {
        for addr in remote {
            handle.write(addr, &[7; 64]).unwrap();
        }
    }
    let stats = handles[0].admin().pool_stats().unwrap();
    let of = |rack: usize| stats.racks[rack].daemon.clone().unwrap();
    assert_eq!(of(0).proxy.uplinks, 2, "one to each other rack, for eight handles");
    for rack in [1, 2] {
        assert_eq!(of(rack).remote_sessions, 8, "sessions are the handles' own");
    }
}

#[test]
fn a_warm_access_is_one_order_one_operation_and_nothing_else() {
    let cluster = Cluster::start(2).unwrap();
    let mut handle = proxied(&cluster);
    let addr = handle.alloc(PAGE, Placement::Rack(RackId(1))).unwrap();
    handle.write(addr, &[1; 64]).unwrap();
    // Asks by memory where the work is done, so that asking is no work there.
    let mut observer = cluster.pool(1).unwrap().handle().unwrap();
    let mut operations = || {
        let stats = observer.admin().pool_stats().unwrap();
        let of = |rack: usize| stats.racks[rack].daemon.clone().unwrap();
        // Rack 0 asks every now and then for what it may keep replicas of.
        let polls = of(1).requests_by_kind.replica_poll;
        (of(0).proxy.operations, of(1).fabric.operations - polls)
    };
    const TIMES: u64 = 100;
    // How often the daemon says who it is, which is an operation as well.
    const UPLINK_PERIOD: Duration = Duration::from_millis(250);
    let started = Instant::now();
    let before = operations();
    let stats = handle.handle_stats();
    for i in 0..TIMES {
        handle.read(GAddr(addr.0 + 64 * i), &mut [0; 64]).unwrap();
    }
    let after = handle.handle_stats();
    assert_eq!(after.master_requests, stats.master_requests, "the master is not asked");
    assert_eq!(after.ring_requests, stats.ring_requests, "nor is the daemon's engine");
    assert_eq!(after.fabric_operations - stats.fabric_operations, TIMES);
    // What was answered is counted a moment later, and so is what a poll asked.
    let mut now = operations();
    while now.1 < before.1 + TIMES && started.elapsed() < Duration::from_secs(30) {
        now = operations();
    }
    assert_eq!(now.0, before.0 + TIMES, "orders");
    let of_others = now.1 - before.1 - TIMES;
    let periods = started.elapsed().as_nanos() / UPLINK_PERIOD.as_nanos();
    // One more period may have begun, and a write and a poll be counted late.
    assert!(u128::from(of_others) <= periods + 3, "{of_others} operations more at the target");
}

#[test]
fn submissions_go_through_the_daemon_and_their_descriptor_wakes() {
    let cluster = Cluster::start(2).unwrap();
    let mut handle = proxied(&cluster);
    let addr = handle.alloc(4 * PAGE, Placement::Rack(RackId(1))).unwrap();
    let data = pattern(3 * PAGE as usize, 5);
    for round in 0..50u64 {
        handle.submit_write(GAddr(addr.0 + round), data.clone()).unwrap();
        let started = Instant::now();
        let done = loop {
            if let Some(done) = handle.poll_completion().unwrap() {
                break done;
            }
            let fd = handle.completion_fd().unwrap();
            let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
            let ready = rustix::event::poll(&mut fds, Some(&second)).unwrap();
            assert!(ready > 0 || started.elapsed() < Duration::from_secs(1), "no wake-up came");
        };
        done.result.unwrap();
        let mut found = vec![0; data.len()];
        handle.read(GAddr(addr.0 + round), &mut found).unwrap();
        assert!(found == data);
    }
}
