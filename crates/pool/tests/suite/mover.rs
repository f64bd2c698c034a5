//! Pages come to the rack with the clients that use them, by themselves: daemons with their movers,
//! real handles, over tcp.

use rackpool::cluster::{Cluster, ClusterOptions};
use rackpool::{DaemonStats, FetchMode, GAddr, Handle, Migration, Placement, RackId};
use std::time::{Duration, Instant};

/// Ten times as long as a page that is used all the time needs, and more.
const LONG: Duration = Duration::from_secs(30);

fn cost() -> Migration {
    "cost".parse().unwrap()
}

fn cluster(racks: u16, memory: &str) -> Cluster {
    Cluster::with(ClusterOptions {
        racks,
        memory: memory.into(),
        daemon: |options| options.migration = cost(),
        ..ClusterOptions::default()
    })
    .unwrap()
}

fn handle(cluster: &Cluster, rack: u16) -> Handle {
    cluster.pool(rack).unwrap().handle().unwrap()
}

/// A page for itself, filled with a byte.
fn page(handle: &mut Handle, placement: Placement, byte: u8) -> GAddr {
    let bytes = handle.page_bytes();
    let addr = handle.alloc(bytes, placement).unwrap();
    handle.write(addr, &vec![byte; bytes as usize]).unwrap();
    addr
}

fn home(handle: &mut Handle, addr: GAddr) -> u16 {
    handle.explain(addr).unwrap().rack
}

fn stats(handle: &mut Handle, rack: usize) -> DaemonStats {
    handle.admin().pool_stats().unwrap().racks[rack].daemon.clone().unwrap()
}

fn read_and_write(handle: &mut Handle, addr: GAddr) {
    let mut line = [0; 64];
    handle.read(addr, &mut line).unwrap();
    handle.write(addr, &line).unwrap();
}

fn call(handle: &mut Handle, addr: GAddr) {
    let mut line = [0; 64];
    handle.fetch(addr, &mut line, FetchMode::Inline).unwrap();
    handle.store(addr, &line).unwrap();
}

/// Uses a page until it is at home here.
fn use_until_here(handle: &mut Handle, rack: u16, addr: GAddr) {
    use_by(read_and_write, handle, rack, addr);
}

fn use_by(access: fn(&mut Handle, GAddr), handle: &mut Handle, rack: u16, addr: GAddr) {
    let started = Instant::now();
    while home(handle, addr) != rack {
        assert!(started.elapsed() < LONG, "it does not come: {:?}", stats(handle, 0).moves);
        (0..200).for_each(|at| access(handle, GAddr(addr.0 + 64 * at)));
    }
    println!("it came after {:?}", started.elapsed());
}

#[test]
fn a_page_that_one_rack_uses_comes_to_it_whole() {
    let cluster = cluster(2, "heap?size=16M&pages=64K");
    let (mut here, mut there) = (handle(&cluster, 0), handle(&cluster, 1));
    let addr = page(&mut here, Placement::Local, 0x5a);
    use_until_here(&mut there, 1, addr);
    let mut bytes = vec![0; 64 << 10];
    for handle in [&mut here, &mut there] {
        handle.read(addr, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0x5a));
    }
    let (from, to) = (stats(&mut here, 0), stats(&mut here, 1));
    assert_eq!((from.pages_went, to.pages_came, to.moves.moved), (1, 1, 1));
    assert_eq!((from.moves.decided_move, to.moves.moved_bytes), (1, 64 << 10));
    assert!(from.requests_by_kind.decide_move >= 1 && to.requests_by_kind.note_use >= 1);
    here.free(addr, 64 << 10).unwrap();
}

#[test]
fn a_page_that_is_reached_by_calls_alone_comes_as_well() {
    let cluster = cluster(2, "heap?size=16M&pages=64K");
    let (mut here, mut there) = (handle(&cluster, 0), handle(&cluster, 1));
    let addr = page(&mut here, Placement::Local, 0x5a);
    use_by(call, &mut there, 1, addr);
    assert_eq!(there.read_u64(addr).unwrap(), 0x5a5a_5a5a_5a5a_5a5a);
}

#[test]
fn a_full_rack_gives_a_page_that_nobody_uses_for_one_that_it_uses() {
    let cluster = cluster(2, "heap?size=1M&pages=64K");
    let (mut here, mut there) = (handle(&cluster, 0), handle(&cluster, 1));
    let addr = page(&mut here, Placement::Local, 1);
    let mut cold = Vec::new();
    while stats(&mut there, 1).frames_free > 0 {
        cold.push(page(&mut there, Placement::Local, 2));
    }
    use_until_here(&mut there, 1, addr);
    let racks: Vec<u16> = cold.iter().map(|addr| home(&mut there, *addr)).collect();
    assert_eq!(racks.iter().filter(|rack| **rack == 0).count(), 1, "one made room: {racks:?}");
    assert_eq!(stats(&mut here, 0).moves.decided_swap, 1);
    assert_eq!(stats(&mut here, 1).moves.moved, 2);
    let mut bytes = vec![0; 64 << 10];
    for addr in cold {
        here.read(addr, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 2));
        here.free(addr, 64 << 10).unwrap();
    }
}

#[test]
fn a_page_that_two_racks_use_alike_stays() {
    let cluster = cluster(2, "heap?size=16M&pages=64K");
    let (mut here, mut there) = (handle(&cluster, 0), handle(&cluster, 1));
    let addr = page(&mut here, Placement::Local, 7);
    let started = Instant::now();
    let mut line = [0; 64];
    while started.elapsed() < Duration::from_secs(4) {
        for at in 0..64 {
            here.read(GAddr(addr.0 + 64 * at), &mut line).unwrap();
            there.read(GAddr(addr.0 + 64 * at), &mut line).unwrap();
        }
    }
    assert_eq!(stats(&mut here, 1).pages_came, 0, "{:?}", stats(&mut here, 0).moves);
    assert!(stats(&mut here, 0).moves.left.values().sum::<u64>() > 0, "it was asked for");
}

#[test]
fn a_page_that_cannot_move_is_asked_for_seldom_and_stays_usable() {
    let cluster = cluster(2, "heap?size=16M&pages=64K");
    let (mut here, mut there) = (handle(&cluster, 0), handle(&cluster, 1));
    // Owned by a session.
    let addr = here.alloc_owned(64 << 10, Placement::Local).unwrap();
    let started = Instant::now();
    let mut line = [0; 64];
    let mut failed = 0;
    while started.elapsed() < Duration::from_secs(3) || failed == 0 && started.elapsed() < LONG {
        (0..200).for_each(|_| there.read(addr, &mut line).unwrap());
        failed = stats(&mut here, 1).moves.failed;
    }
    let most = 2 + started.elapsed().as_secs();
    assert!((1..=most).contains(&failed), "{failed} in {:?}", started.elapsed());
    assert_eq!(home(&mut there, addr), 0);
}

#[test]
fn without_a_policy_nobody_counts_and_no_mover_has_a_slot() {
    let cluster = Cluster::start(2).unwrap();
    let (mut here, mut there) = (handle(&cluster, 0), handle(&cluster, 1));
    let addr = page(&mut here, Placement::Rack(RackId(0)), 7);
    let mut line = [0; 64];
    for at in 0..20_000 {
        here.read(GAddr(addr.0 + 64 * (at % 1024)), &mut line).unwrap();
    }
    (0..500).for_each(|_| there.read(addr, &mut line).unwrap());
    for rack in 0..2 {
        let stats = stats(&mut here, rack);
        assert_eq!((stats.requests_by_kind.note_use, stats.moves.heat_pages), (0, 0));
        assert_eq!(stats.slots_used, 1);
    }
}
