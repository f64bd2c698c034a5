//! Racks that are fuller than the others send cold pages to emptier ones, and a rack that joins
//! takes load: daemons with their threads, real handles under load, over tcp.

use rackpool::cluster::{Cluster, ClusterOptions};
use rackpool::daemon::{DaemonOptions, DaemonServer};
use rackpool::{BalanceParams, GAddr, Handle, Placement, RackId};
use rackpool_core::policy::{Balance, replay_balance};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Ten times as long as anything here needs, and more.
const LONG: Duration = Duration::from_secs(60);
const PAGE: u64 = 64 << 10;
const MEMORY: &str = "heap?size=16M&pages=64K";
/// Of [`MEMORY`].
const FRAMES: u64 = 256;

fn balanced(options: &mut DaemonOptions) {
    // A share that a test can wait for, and of which between two heartbeats not half a rack goes.
    let params = BalanceParams { fabric_share_milli: 300, ..BalanceParams::default() };
    options.balance = Some(params);
}

fn cluster(racks: u16) -> Cluster {
    let memory = MEMORY.into();
    let options = ClusterOptions { racks, memory, daemon: balanced, ..ClusterOptions::default() };
    Cluster::with(options).unwrap()
}

fn used(handle: &mut Handle) -> Vec<u64> {
    let racks = handle.admin().pool_stats().unwrap().racks;
    let daemons = racks.into_iter().map(|rack| rack.daemon.expect("it answers"));
    daemons.map(|stats| stats.frames - stats.frames_free).collect()
}

fn put(handle: &mut Handle, rack: u16, page: u64) -> GAddr {
    let addr = handle.alloc(PAGE, Placement::Rack(RackId(rack))).unwrap();
    handle.write(addr, &[page as u8; PAGE as usize]).unwrap();
    addr
}

fn fill(handle: &mut Handle, rack: u16, pages: u64) -> Vec<GAddr> {
    (0..pages).map(|page| put(handle, rack, page)).collect()
}

fn check(handle: &mut Handle, pages: &[GAddr]) {
    let mut found = vec![0; PAGE as usize];
    for (page, addr) in pages.iter().enumerate() {
        handle.read(*addr, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == page as u8), "{addr}");
    }
}

fn until(what: &str, handle: &mut Handle, mut is_so: impl FnMut(&[u64]) -> bool) -> Vec<u64> {
    let started = Instant::now();
    loop {
        let used = used(handle);
        if is_so(&used) {
            println!("{what} after {:?}: {used:?}", started.elapsed());
            return used;
        }
        assert!(started.elapsed() < LONG, "{what}: {used:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_full_rack_sends_cold_pages_to_an_empty_one_and_then_rests() {
    let cluster = cluster(2);
    let mut handle = cluster.pool(1).unwrap().handle().unwrap();
    let pages = fill(&mut handle, 0, 160);
    until("they are near", &mut handle, |used| used[0] <= 80 + FRAMES * 6 / 100);
    // Two looks, and more.
    std::thread::sleep(Duration::from_secs(3));
    let settled = used(&mut handle);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(settled, used(&mut handle));
    check(&mut handle, &pages);
    let records = handle.admin().balances(RackId(0), 0).unwrap();
    assert!(records.iter().all(|(_, one)| replay_balance(one) == one.decision));
    let sent = records.iter().filter(|(_, one)| matches!(one.decision, Balance::Send { .. }));
    assert!(sent.count() >= 60, "{} decisions", records.len());
    let others = handle.admin().balances(RackId(1), 0).unwrap();
    let sends = |one: &Balance| matches!(one, Balance::Send { .. });
    assert!(!others.iter().any(|(_, one)| sends(&one.decision)), "none comes back");
    for page in pages {
        handle.free(page, PAGE).unwrap();
    }
}

#[test]
fn racks_that_are_about_alike_send_nothing() {
    let cluster = cluster(2);
    let mut handle = cluster.pool(0).unwrap().handle().unwrap();
    // In turns: between two racks one of which is filled first, pages would go.
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for page in 0..100 {
        here.push(put(&mut handle, 0, page));
        if page < 60 {
            there.push(put(&mut handle, 1, page));
        }
    }
    std::thread::sleep(Duration::from_secs(3));
    let stats = handle.admin().pool_stats().unwrap().racks;
    let went: Vec<u64> =
        stats.iter().map(|rack| rack.daemon.as_ref().unwrap().pages_went).collect();
    assert_eq!(went, [0, 0]);
    check(&mut handle, &here);
    check(&mut handle, &there);
}

#[test]
fn a_rack_that_joins_takes_load_while_programs_go_on() {
    let cluster = cluster(2);
    let mut handle = cluster.pool(0).unwrap().handle().unwrap();
    let all = [fill(&mut handle, 0, 170), fill(&mut handle, 1, 170)];
    let stop = Arc::new(AtomicBool::new(false));
    let load = |rack: u16, pages: &[GAddr]| {
        let mut handle = cluster.pool(rack).unwrap().handle().unwrap();
        let (pages, stop) = (pages.to_vec(), Arc::clone(&stop));
        std::thread::spawn(move || {
            let (mut accesses, mut slowest) = (0u64, Duration::ZERO);
            let mut line = [0; 64];
            // Relaxed: nothing else hangs on it.
            while !stop.load(Ordering::Relaxed) {
                let page = (accesses * 7 % pages.len() as u64) as usize;
                let at = GAddr(pages[page].0 + accesses * 64 % PAGE);
                let started = Instant::now();
                handle.read(at, &mut line).unwrap();
                assert_eq!(line, [page as u8; 64]);
                handle.write(at, &line).unwrap();
                slowest = slowest.max(started.elapsed());
                accesses += 1;
            }
            (accesses, slowest)
        })
    };
    let threads = [load(0, &all[0]), load(1, &all[1]), load(0, &all[1])];
    let mut options = DaemonOptions::new(2, &cluster.master_addr(), MEMORY);
    options.ephemeral = true;
    balanced(&mut options);
    let third = DaemonServer::start(options).unwrap();
    until("it has taken load", &mut handle, |used| used.len() == 3 && used[2] >= 60);
    // New memory goes there as well.
    let spread: Vec<GAddr> =
        (0..30).map(|_| handle.alloc(PAGE, Placement::Spread).unwrap()).collect();
    let homes: Vec<u16> = spread.iter().map(|addr| handle.explain(*addr).unwrap().rack).collect();
    assert!(homes.contains(&2), "{homes:?}");
    // Relaxed: nothing else hangs on it.
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        let (accesses, slowest) = thread.join().expect("it met what it wrote");
        println!("{accesses} accesses, the slowest took {slowest:?}");
        assert!(accesses > 1000);
    }
    all.iter().for_each(|pages| check(&mut handle, pages));
    drop((handle, third));
}
