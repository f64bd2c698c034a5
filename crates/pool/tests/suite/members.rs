//! Racks that join, are drained and leave, and one that is given up: daemons in threads, handles
//! over tcp and mapped.

use rackpool::cluster::Cluster;
use rackpool::daemon::{DaemonOptions, DaemonServer, Ended};
use rackpool::master::{MasterOptions, MasterServer};
use rackpool::monitor::Monitor;
use rackpool::{FabricChoice, GAddr, Handle, Options, Placement, Pool, RackId, RackState};
use std::time::{Duration, Instant};

/// Ten times as long as anything here needs, and more.
const LONG: Duration = Duration::from_secs(30);
const PAGE: u64 = 64 << 10;

fn monitor(cluster: &Cluster) -> Monitor {
    Monitor::new(vec![cluster.master_addr()], 5_000).unwrap()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn standing(monitor: &mut Monitor, rack: u16) -> RackState {
    let members = monitor.members().unwrap();
    members.iter().find(|one| one.info.rack == RackId(rack)).expect("it joined once").standing
}

fn join(cluster: &Cluster, rack: u16) -> DaemonServer {
    let mut options = DaemonOptions::new(rack, &cluster.master_addr(), "heap?size=64M&pages=64K");
    options.ephemeral = true;
    DaemonServer::start(options).unwrap()
}

fn fill(handle: &mut Handle, bytes: u64, placement: Placement, byte: u8) -> GAddr {
    let addr = handle.alloc(bytes, placement).unwrap();
    handle.write(addr, &vec![byte; bytes as usize]).unwrap();
    addr
}

fn check(handle: &mut Handle, addr: GAddr, bytes: u64, byte: u8) {
    let mut found = vec![!byte; bytes as usize];
    handle.read(addr, &mut found).unwrap();
    assert!(found.iter().all(|one| *one == byte), "{addr}");
}

fn home(handle: &mut Handle, addr: GAddr) -> u16 {
    handle.explain(addr).unwrap().rack
}

#[test]
fn a_drained_rack_leaves_with_nothing_lost_and_its_daemon_ends() {
    let cluster = Cluster::start(2).unwrap();
    let third = join(&cluster, 2);
    let mut handle = cluster.pool(0).unwrap().handle().unwrap();
    let mut mapped = cluster.pool_over(1, FabricChoice::Shm).unwrap().handle().unwrap();
    let there = Placement::Rack(RackId(2));
    let mut all = Vec::new();
    for byte in 0..40 {
        let bytes = [PAGE, 3000, 64][usize::from(byte) % 3];
        all.push((fill(&mut handle, bytes, there, byte), bytes, byte));
    }
    let word = handle.alloc(8, there).unwrap();
    let mut operator = monitor(&cluster);
    assert_eq!(operator.drain(RackId(2)), Ok(RackState::Draining));
    let mut added = 0;
    until("it leaves", || {
        for (one, n) in [(&mut handle, 1), (&mut mapped, 1)] {
            one.fetch_add(word, n).unwrap();
            added += n;
        }
        standing(&mut operator, 2) == RackState::Left
    });
    until("its daemon ends", || third.has_ended());
    assert_eq!(third.end(), Ok(Ended::Left));
    for (addr, bytes, byte) in all {
        assert_ne!(home(&mut handle, addr), 2);
        check(&mut handle, addr, bytes, byte);
        check(&mut mapped, addr, bytes, byte);
        handle.free(addr, bytes).unwrap();
    }
    assert_eq!(handle.read_u64(word), Ok(added));
    let gone = handle.alloc(64, there).unwrap_err();
    assert_eq!(gone.code(), "no-such-rack");
    assert_eq!(operator.drain(RackId(2)), Ok(RackState::Left), "asked again");
    assert_eq!(operator.undrain(RackId(2)).unwrap_err().code(), "denied");
    // A new region joins in its place.
    let again = join(&cluster, 2);
    assert_eq!(standing(&mut operator, 2), RackState::Serving);
    let addr = fill(&mut handle, PAGE, there, 9);
    assert_eq!(home(&mut handle, addr), 2);
    check(&mut mapped, addr, PAGE, 9);
    again.stop();
}

#[test]
fn what_stays_is_named_and_goes_when_its_reason_has_passed() {
    let cluster = Cluster::start(2).unwrap();
    let mut here = cluster.pool(0).unwrap().handle().unwrap();
    let mut there = cluster.pool(1).unwrap().handle().unwrap();
    let owned = there.alloc_owned(PAGE, Placement::Local).unwrap();
    there.write(owned, &[7; 64]).unwrap();
    let free = fill(&mut here, PAGE, Placement::Rack(RackId(1)), 5);
    let mut operator = monitor(&cluster);
    operator.drain(RackId(1)).unwrap();
    let refused = here.alloc(64, Placement::Rack(RackId(1)));
    until("the daemon hears of it", || {
        let again = here.alloc(64, Placement::Rack(RackId(1)));
        again.is_err_and(|error| error.code() == "draining")
    });
    drop(refused);
    let elsewhere = there.alloc(64, Placement::Auto).unwrap();
    assert_eq!(home(&mut there, elsewhere), 0, "placement goes on to others");
    until("all but the owned page go", || {
        let member = operator.members().unwrap().remove(1);
        let report = operator.drain_report(&member).unwrap();
        member.pages == 1 && report.stayed == 1 && report.reasons[0].1.contains("session")
    });
    assert_eq!(home(&mut here, free), 0);
    check(&mut there, free, PAGE, 5);
    assert_eq!(operator.undrain(RackId(1)), Ok(RackState::Serving));
    until("it serves again", || {
        there.alloc(64, Placement::Local).is_ok_and(|addr| there.free(addr, 64).is_ok())
    });
    operator.drain(RackId(1)).unwrap();
    // The memory of a session goes with it.
    drop(there);
    until("it leaves", || standing(&mut operator, 1) == RackState::Left);
    check(&mut here, free, PAGE, 5);
}

#[test]
fn a_rack_that_was_given_up_is_lost_at_once_and_the_others_go_on() {
    let cluster = Cluster::start(2).unwrap();
    let third = join(&cluster, 2);
    let mut handle = cluster.pool(0).unwrap().handle().unwrap();
    let mut late = cluster.pool(1).unwrap().handle().unwrap();
    let lost = fill(&mut handle, PAGE, Placement::Rack(RackId(2)), 3);
    let unread = fill(&mut handle, PAGE, Placement::Rack(RackId(2)), 3);
    let kept = fill(&mut handle, PAGE, Placement::Rack(RackId(1)), 4);
    let mut operator = monitor(&cluster);
    let refused = operator.forget(RackId(2)).unwrap_err();
    assert!(refused.code() == "denied" && refused.to_string().contains("is alive"), "{refused}");
    third.stop();
    until("it may be given up", || operator.forget(RackId(2)) == Ok(RackState::Lost));
    let started = Instant::now();
    let mut line = [0; 64];
    for (is_late, addr) in [(false, lost), (false, unread), (true, lost)] {
        let one = if is_late { &mut late } else { &mut handle };
        assert_eq!(one.read(addr, &mut line).unwrap_err().code(), "lost");
        assert_eq!(one.write(addr, &line).unwrap_err().code(), "lost");
        assert_eq!(one.fetch_add(addr, 1).unwrap_err().code(), "lost");
        assert_eq!(one.free(addr, PAGE).unwrap_err().code(), "lost");
        check(one, kept, PAGE, 4);
    }
    assert!(started.elapsed() < LONG / 3, "{:?}", started.elapsed());
    println!("lost pages were answered for within {:?}", started.elapsed());
    let new = join(&cluster, 2);
    let addr = fill(&mut handle, PAGE, Placement::Rack(RackId(2)), 6);
    check(&mut late, addr, PAGE, 6);
    assert_eq!(handle.read(lost, &mut line).unwrap_err().code(), "lost");
    new.stop();
}

#[test]
fn a_region_that_was_given_up_may_not_come_back() {
    let random = rackpool_mem::process::random_u64().unwrap();
    let state = std::env::temp_dir().join(format!("rackpool-members-{random:016x}"));
    let path = format!("/dev/shm/rackpool-members-{random:016x}");
    let memory = format!("shm:{path}?size=16M&pages=64K");
    let mut master = MasterOptions::new("127.0.0.1:0", &state);
    master.lease_ms = 100;
    let master = MasterServer::start(master).unwrap();
    let addr = master.local_addr().to_string();
    let start = |rack, memory: &str| DaemonServer::start(DaemonOptions::new(rack, &addr, memory));
    let zero = start(0, "heap?size=16M&pages=64K").unwrap();
    let one = start(1, &memory).unwrap();
    let mut handle = Pool::open(Options::new(&addr, 0)).unwrap().handle().unwrap();
    let lost = fill(&mut handle, PAGE, Placement::Rack(RackId(1)), 3);
    one.stop();
    let mut operator = Monitor::new(vec![addr.clone()], 5_000).unwrap();
    until("it may be given up", || operator.forget(RackId(1)) == Ok(RackState::Lost));
    let refused = start(1, &memory).unwrap_err();
    assert_eq!(refused.code(), "forgotten", "{refused}");
    assert_eq!(handle.read(lost, &mut [0; 8]).unwrap_err().code(), "lost");
    for file in std::fs::read_dir("/dev/shm").unwrap().flatten() {
        if file.path().to_string_lossy().starts_with(&path) {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
    let mut options = DaemonOptions::new(1, &addr, &memory);
    options.ephemeral = true;
    let new = DaemonServer::start(options).unwrap();
    let addr = fill(&mut handle, PAGE, Placement::Rack(RackId(1)), 6);
    check(&mut handle, addr, PAGE, 6);
    drop((handle, new, zero));
    master.stop().unwrap();
    std::fs::remove_dir_all(&state).unwrap();
}
