//! Locks through the public API, servers in threads of this process, both fabrics.

use rackpool::cluster::Cluster;
use rackpool::{
    ErrorKind, FabricChoice, GAddr, Handle, LockMode, LockOptions, Options, Placement, Pool, RackId,
};
use std::time::{Duration, Instant};

const FABRICS: [FabricChoice; 2] = [FabricChoice::Tcp, FabricChoice::Shm];

fn handle(cluster: &Cluster, rack: u16, fabric: FabricChoice) -> Handle {
    cluster.pool_over(rack, fabric).unwrap().handle().unwrap()
}

fn name_in(handle: &mut Handle, rack: u16) -> GAddr {
    handle.alloc(64, Placement::Rack(RackId(rack))).unwrap()
}

fn locks_held(handle: &mut Handle, rack: usize) -> u64 {
    handle.admin().pool_stats().unwrap().racks[rack].daemon.as_ref().unwrap().locks_held
}

#[test]
fn readers_share_and_writers_exclude_from_both_racks_and_over_both_fabrics() {
    for fabric in FABRICS {
        let cluster = Cluster::start(2).unwrap();
        let (mut a, mut b) = (handle(&cluster, 0, fabric), handle(&cluster, 1, fabric));
        let name = name_in(&mut a, 1);
        let (first, second) = (
            a.lock(name, LockMode::Read, LockOptions::line()).unwrap(),
            b.lock(name, LockMode::Read, LockOptions::line()).unwrap(),
        );
        assert_eq!(
            b.lock(name, LockMode::Write, LockOptions::line().within_ms(0)).unwrap_err().code(),
            "already-locked"
        );
        assert_eq!(b.unlock(second), Ok(()));
        assert_eq!(
            b.lock(name, LockMode::Write, LockOptions::line().within_ms(0)).unwrap_err().code(),
            "lock-timeout"
        );
        a.write_u64(name, 5).unwrap();
        assert_eq!(a.read_u64(name), Ok(5), "a handle works while it holds a lock");
        a.check_lock(&first).unwrap();
        let token = first.token();
        a.unlock(first).unwrap();
        let third = b.lock(name, LockMode::Write, LockOptions::line()).unwrap();
        assert!(third.token() > token && third.addr() == name && !third.is_lost());
        let wrong = a.check_lock(&third).unwrap_err();
        assert_eq!(wrong.code(), "denied", "it is the other handle's");
        b.unlock(third).unwrap();
        assert_eq!(locks_held(&mut a, 1), 0);
    }
}

#[test]
fn a_dropped_guard_gives_its_lock_back_by_itself() {
    for fabric in FABRICS {
        let cluster = Cluster::start(2).unwrap();
        let (mut a, mut b) = (handle(&cluster, 0, fabric), handle(&cluster, 1, fabric));
        for rack in [0, 1] {
            let name = name_in(&mut a, rack);
            drop(a.lock(name, LockMode::Write, LockOptions::line()).unwrap());
            if rack == 1 && fabric == FabricChoice::Tcp {
                // Over the fabric with the next call that sends anything.
                a.read_u64(name).unwrap();
            }
            let started = Instant::now();
            let guard = b.lock(name, LockMode::Write, LockOptions::line()).unwrap();
            assert!(started.elapsed() < Duration::from_secs(5), "it is free");
            b.unlock(guard).unwrap();
            for _ in 0..100 {
                drop(a.lock(name, LockMode::Write, LockOptions::line()).unwrap());
            }
        }
    }
}

#[test]
fn many_dropped_guards_are_all_given_back() {
    let cluster = Cluster::start(1).unwrap();
    let mut a = handle(&cluster, 0, FabricChoice::Tcp);
    let run = a.alloc(64 * 64, Placement::Local).unwrap();
    let guards: Vec<_> = (0..64)
        .map(|index| {
            a.lock(GAddr(run.0 + 64 * index), LockMode::Read, LockOptions::line()).unwrap()
        })
        .collect();
    let error = a.lock(run, LockMode::Read, LockOptions::line()).unwrap_err();
    assert_eq!(error.code(), "already-locked");
    let other = a.alloc(64, Placement::Local).unwrap();
    assert_eq!(
        a.lock(other, LockMode::Read, LockOptions::line()).unwrap_err().code(),
        "busy",
        "a handle holds 64"
    );
    drop(guards);
    drop(a.lock(run, LockMode::Write, LockOptions::line()).unwrap());
    let deadline = Instant::now() + Duration::from_secs(30);
    while locks_held(&mut a, 0) > 0 {
        assert!(Instant::now() < deadline, "{} are held", locks_held(&mut a, 0));
    }
}

#[test]
fn a_handle_that_ends_gives_its_locks_back_and_its_guards_know() {
    for fabric in FABRICS {
        let cluster = Cluster::start(2).unwrap();
        let (mut a, mut b) = (handle(&cluster, 0, fabric), handle(&cluster, 1, fabric));
        let (near, far) = (name_in(&mut a, 0), name_in(&mut a, 1));
        let guards = (
            a.lock(near, LockMode::Write, LockOptions::line()).unwrap(),
            a.lock(far, LockMode::Write, LockOptions::line()).unwrap(),
        );
        // A pin keeps the slot of its handle.
        let pin = a.pin(near, 8).unwrap();
        drop(a);
        assert!(guards.0.is_lost() && guards.1.is_lost());
        for name in [near, far] {
            let guard = b.lock(name, LockMode::Write, LockOptions::line()).unwrap();
            b.unlock(guard).unwrap();
        }
        drop((pin, guards));
    }
}

#[test]
fn waiting_ends_with_a_typed_error_that_names_the_holder() {
    for fabric in FABRICS {
        let cluster = Cluster::start(2).unwrap();
        let (mut a, mut b) = (handle(&cluster, 0, fabric), handle(&cluster, 1, fabric));
        let name = name_in(&mut a, 0);
        let guard = a.lock(name, LockMode::Write, LockOptions::line()).unwrap();
        let started = Instant::now();
        let error = b.lock(name, LockMode::Read, LockOptions::line().within_ms(200)).unwrap_err();
        assert!(started.elapsed() >= Duration::from_millis(150), "{:?}", started.elapsed());
        assert_eq!((error.kind(), error.code()), (ErrorKind::Timeout, "lock-timeout"), "{error}");
        let (pid, text) = (std::process::id(), error.to_string());
        let begin = format!("the lock at {name} did not become free within 200 ms: process {pid} ");
        assert!(text.starts_with(&begin), "{text}");
        a.unlock(guard).unwrap();
        let guard = b.lock(name, LockMode::Read, LockOptions::line()).unwrap();
        b.unlock(guard).unwrap();
    }
}

#[test]
fn names_that_are_no_locks_are_refused() {
    let cluster = Cluster::start(2).unwrap();
    let mut a = handle(&cluster, 0, FabricChoice::Tcp);
    for rack in [0, 1] {
        let page = a.page_bytes();
        let name = a.alloc(page, Placement::Rack(RackId(rack))).unwrap();
        assert_eq!(
            a.lock(GAddr(name.0 + 8), LockMode::Write, LockOptions::line()).unwrap_err().code(),
            "misaligned"
        );
        let guard = a.lock(name, LockMode::Write, LockOptions::line()).unwrap();
        a.free(name, page).unwrap();
        a.unlock(guard).expect("a lock is given back although its memory is gone");
        assert_eq!(
            a.lock(name, LockMode::Read, LockOptions::line()).unwrap_err().code(),
            "not-mapped"
        );
    }
    assert_eq!(
        a.lock(GAddr::NULL, LockMode::Read, LockOptions::line()).unwrap_err().code(),
        "not-mapped"
    );
}

#[test]
fn a_counter_under_a_lock_loses_nothing_from_both_racks_and_over_both_fabrics() {
    let cluster = Cluster::start(2).unwrap();
    let mut a = handle(&cluster, 0, FabricChoice::Tcp);
    let name = name_in(&mut a, 1);
    const EACH: u64 = 200;
    let places = [(0, FabricChoice::Tcp), (1, FabricChoice::Tcp), (0, FabricChoice::Shm)];
    std::thread::scope(|scope| {
        for (rack, fabric) in places {
            let mut handle = handle(&cluster, rack, fabric);
            scope.spawn(move || {
                for _ in 0..EACH {
                    let guard = handle.lock(name, LockMode::Write, LockOptions::line()).unwrap();
                    let value = handle.read_u64(name).unwrap();
                    handle.write_u64(name, value + 1).unwrap();
                    handle.unlock(guard).unwrap();
                }
            });
        }
    });
    assert_eq!(a.read_u64(name), Ok(EACH * places.len() as u64));
}

#[test]
fn locks_work_for_those_who_only_read() {
    let cluster = Cluster::start(1).unwrap();
    let mut a = handle(&cluster, 0, FabricChoice::Tcp);
    let name = name_in(&mut a, 0);
    let options = Options::new(&cluster.master_addr().to_string(), 0).read_only(true);
    let mut reader = Pool::open(options).unwrap().handle().unwrap();
    let guard = reader.lock(name, LockMode::Read, LockOptions::line()).unwrap();
    assert_eq!(
        a.lock(name, LockMode::Write, LockOptions::line().within_ms(0)).unwrap_err().code(),
        "lock-timeout"
    );
    drop(guard);
    let guard = a.lock(name, LockMode::Write, LockOptions::line()).unwrap();
    a.unlock(guard).unwrap();
}
