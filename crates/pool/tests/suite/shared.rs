//! Handles of one pool that share their connections to other racks: how many there are, that
//! every message reaches its own handle, and that a handle's end is its own.

use rackpool::cluster::Cluster;
use rackpool::{
    CasOutcome, Connections, GAddr, Handle, LockMode, LockOptions, Options, Placement, Pool, RackId,
};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const PAGE: u64 = 64 << 10;
const THREADS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(30);

fn pool(cluster: &Cluster, connections: Connections) -> Pool {
    Pool::open(Options::new(&cluster.master_addr(), 0).connections(connections)).unwrap()
}

fn far(handle: &mut Handle, bytes: u64, rack: u16) -> GAddr {
    handle.alloc(bytes, Placement::Rack(RackId(rack))).unwrap()
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8).collect()
}

/// Connections and sessions of others at racks 1 and 2.
fn counted(handle: &mut Handle) -> [(u64, u64); 2] {
    let stats = handle.admin().pool_stats().unwrap();
    [1, 2].map(|rack: usize| {
        let daemon = stats.racks[rack].daemon.as_ref().unwrap();
        (daemon.fabric.connections, daemon.remote_sessions)
    })
}

fn connections_of_four_threads(connections: Connections) -> [(u64, u64); 2] {
    let cluster = Cluster::start(3).unwrap();
    let pool = pool(&cluster, connections);
    let mut handles: Vec<Handle> = (0..THREADS).map(|_| pool.handle().unwrap()).collect();
    let places = [1, 2].map(|rack| far(&mut handles[0], PAGE, rack));
    std::thread::scope(|scope| {
        for (index, handle) in handles.iter_mut().enumerate() {
            scope.spawn(move || {
                for addr in places {
                    let mine = GAddr(addr.0 + 64 * index as u64);
                    handle.write(mine, &[index as u8 + 1; 64]).unwrap();
                    let mut found = [0; 64];
                    handle.read(mine, &mut found).unwrap();
                    assert_eq!(found, [index as u8 + 1; 64]);
                }
            });
        }
    });
    counted(&mut handles[0])
}

#[test]
fn four_handles_and_two_racks_are_two_connections_shared_and_eight_of_their_own() {
    let each = THREADS as u64;
    assert_eq!(connections_of_four_threads(Connections::Shared), [(1, each); 2]);
    assert_eq!(connections_of_four_threads(Connections::Own), [(each, each); 2]);
}

#[test]
fn a_warm_access_over_a_shared_connection_is_one_operation_and_nothing_else() {
    let cluster = Cluster::start(2).unwrap();
    let pool = pool(&cluster, Connections::Shared);
    let mut handle = pool.handle().unwrap();
    let addr = far(&mut handle, PAGE, 1);
    handle.write(addr, &[1; 64]).unwrap();
    let before = handle.handle_stats();
    const TIMES: u64 = 100;
    for i in 0..TIMES {
        handle.read(GAddr(addr.0 + 64 * i), &mut [0; 64]).unwrap();
    }
    let after = handle.handle_stats();
    assert_eq!(after.master_requests, before.master_requests);
    assert_eq!(after.ring_requests, before.ring_requests);
    assert_eq!(after.fabric_operations - before.fabric_operations, TIMES);
    assert_eq!(after.fabric_send_calls - before.fabric_send_calls, TIMES);
    assert_eq!(after.fabric_receive_calls - before.fabric_receive_calls, TIMES);
}

/// Sizes that are received with their header, straight into their place, and in many pieces.
const SIZES: [usize; 6] = [1, 64, 4096, 20_000, PAGE as usize + 17, 9 * PAGE as usize];

#[test]
fn data_of_all_threads_reach_whom_they_belong_to() {
    let cluster = Cluster::start(3).unwrap();
    let pool = pool(&cluster, Connections::Shared);
    let mut first = pool.handle().unwrap();
    let counter = far(&mut first, 64, 1);
    const ROUNDS: u64 = 60;
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let mut handle = pool.handle().unwrap();
            scope.spawn(move || {
                let room = 10 * PAGE;
                let mine = [1, 2].map(|rack| far(&mut handle, room, rack));
                for round in 0..ROUNDS {
                    let data = pattern(SIZES[(round % 6) as usize], thread << 32 | round);
                    let addr = GAddr(mine[(round % 2) as usize].0 + round * 13);
                    handle.write(addr, &data).unwrap();
                    let ticket = handle.submit_read(addr, vec![0; data.len()]).unwrap();
                    let mut found = vec![0; data.len()];
                    handle.read(addr, &mut found).unwrap();
                    assert!(found == data, "thread {thread} round {round}");
                    let done = handle.wait_completion(20_000).unwrap().expect("it ends");
                    assert_eq!(done.ticket, ticket);
                    assert!(done.result.is_ok() && done.buffer == data, "{thread} {round}");
                    match round % 3 {
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
                            let old = handle.read_u64(GAddr(counter.0 + 8)).unwrap();
                            handle.write_u64(GAddr(counter.0 + 8), old + 1).unwrap();
                            handle.unlock(guard).unwrap();
                        }
                    }
                }
                for addr in mine {
                    handle.free(addr, room).unwrap();
                }
            });
        }
    });
    let all = THREADS as u64 * ROUNDS;
    assert_eq!(first.read_u64(counter).unwrap(), all / 3 * 2);
    assert_eq!(first.read_u64(GAddr(counter.0 + 8)).unwrap(), all / 3);
}

#[test]
fn a_handle_that_ends_in_the_midst_of_its_work_ends_alone() {
    let cluster = Cluster::start(3).unwrap();
    let pool = pool(&cluster, Connections::Shared);
    let mut first = pool.handle().unwrap();
    let counter = far(&mut first, 64, 1);
    let start = Barrier::new(THREADS);
    let adders = THREADS as u64 - 1;
    const EACH: u64 = 3_000;
    std::thread::scope(|scope| {
        for _ in 0..adders {
            let mut handle = pool.handle().unwrap();
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for _ in 0..EACH {
                    // Each is counted once: the connection goes on under it.
                    handle.fetch_add(counter, 1).unwrap();
                }
            });
        }
        let (pool, start) = (&pool, &start);
        scope.spawn(move || {
            start.wait();
            for round in 0..20 {
                let mut handle = pool.handle().unwrap();
                let (bytes, mine) = (40 * PAGE, far(&mut handle, 40 * PAGE, 1));
                let guard = handle.lock(mine, LockMode::Write, LockOptions::line()).unwrap();
                handle.submit_write(mine, pattern(bytes as usize, round)).unwrap();
                handle.submit_read(mine, vec![0; bytes as usize]).unwrap();
                drop((guard, handle));
                // The lock is free again, and nothing of the handle is executed any more.
                let mut next = pool.handle().unwrap();
                let guard = next.lock(mine, LockMode::Write, LockOptions::line()).unwrap();
                next.write(mine, &[9; 64]).unwrap();
                next.unlock(guard).unwrap();
                next.free(mine, bytes).unwrap();
            }
        });
    });
    assert_eq!(first.read_u64(counter).unwrap(), adders * EACH);
    let started = Instant::now();
    while counted(&mut first)[0] != (1, 1) {
        assert!(started.elapsed() < PATIENCE, "{:?}", counted(&mut first));
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(first);
    drop(pool);
    let mut other = cluster.pool(1).unwrap().handle().unwrap();
    let started = Instant::now();
    loop {
        let stats = other.admin().pool_stats().unwrap();
        if stats.racks[1].daemon.as_ref().unwrap().fabric.connections == 0 {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "the last handle ends the connection");
    }
}

#[test]
fn a_thread_that_panics_in_its_work_holds_up_nobody() {
    let cluster = Cluster::start(2).unwrap();
    let pool = pool(&cluster, Connections::Shared);
    let mut first = pool.handle().unwrap();
    let addr = far(&mut first, 40 * PAGE, 1);
    let mut unlucky = pool.handle().unwrap();
    let panicked = std::thread::spawn(move || {
        unlucky.submit_read(addr, vec![0; 40 * PAGE as usize]).unwrap();
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    for _ in 0..100 {
        assert_eq!(first.read_u64(addr).unwrap(), 0);
    }
}

#[test]
fn a_descriptor_wakes_for_what_another_thread_has_received() {
    let cluster = Cluster::start(2).unwrap();
    let pool = pool(&cluster, Connections::Shared);
    let mut handle = pool.handle().unwrap();
    let addr = far(&mut handle, 4 * PAGE, 1);
    let data = pattern(3 * PAGE as usize, 5);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut busy = pool.handle().unwrap();
        let stop = &stop;
        scope.spawn(move || {
            // Relaxed: only that it is seen some time matters.
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                busy.read_u64(addr).unwrap();
            }
        });
        for round in 0..50u64 {
            handle.submit_write(GAddr(addr.0 + round), data.clone()).unwrap();
            let done = loop {
                if let Some(done) = handle.poll_completion().unwrap() {
                    break done;
                }
                let fd = handle.completion_fd().unwrap();
                let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                let patience = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
                let ready = rustix::event::poll(&mut fds, Some(&patience)).unwrap();
                assert!(ready > 0, "no wake-up came");
            };
            done.result.unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let mut found = vec![0; data.len()];
    handle.read(GAddr(addr.0 + 49), &mut found).unwrap();
    assert!(found == data);
}
