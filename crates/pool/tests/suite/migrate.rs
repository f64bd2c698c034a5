//! Pages that move between racks while others use them, through the public API, over both fabrics;
//! servers in threads of this process.

use rackpool::cluster::{Cluster, ClusterOptions};
use rackpool::{
    CasOutcome, DaemonStats, ErrorKind, FabricChoice, GAddr, Handle, LockMode, LockOptions,
    Placement, RackId,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAGE: u64 = 64 << 10;
const FABRICS: [FabricChoice; 2] = [FabricChoice::Tcp, FabricChoice::Shm];
const RACKS: [RackId; 2] = [RackId(0), RackId(1)];
/// How often a page moves while others use it.
const MOVES: usize = 100;

fn open(cluster: &Cluster, rack: u16, fabric: FabricChoice) -> Handle {
    cluster.pool_over(rack, fabric).unwrap().handle().unwrap()
}

fn handles(cluster: &Cluster, fabric: FabricChoice) -> (Handle, Handle) {
    (open(cluster, 0, fabric), open(cluster, 1, fabric))
}

fn pattern(bytes: u64, seed: u64) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8).collect()
}

fn content(handle: &mut Handle, addr: GAddr, bytes: u64) -> Vec<u8> {
    let mut found = vec![0; bytes as usize];
    handle.read(addr, &mut found).unwrap();
    found
}

fn stats(handle: &mut Handle) -> Vec<DaemonStats> {
    let racks = handle.admin().pool_stats().unwrap().racks;
    racks.into_iter().map(|rack| rack.daemon.unwrap()).collect()
}

/// What each rack holds: frames that are free, allocations, bytes of them.
fn holdings(handle: &mut Handle) -> Vec<(u64, u64, u64)> {
    let of = |one: DaemonStats| (one.frames_free, one.allocations, one.allocated_bytes);
    stats(handle).into_iter().map(of).collect()
}

/// Waits until the frames that are on their way back have come: nothing is shut or awaited.
fn wait_for_holdings(handle: &mut Handle, expected: &[(u64, u64, u64)]) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let found = holdings(handle);
        let moving: u64 = stats(handle).iter().map(|one| one.pages_moving).sum();
        if found == expected && moving == 0 {
            return;
        }
        let late = Instant::now() > deadline;
        assert!(!late, "{moving} pages move, racks hold {found:?}, not {expected:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Moves a page, however often it is the turn of another move.
fn insist(handle: &mut Handle, addr: GAddr, to: RackId) {
    for _ in 0..1000 {
        match handle.admin().migrate(addr, to) {
            Ok(rack) => return assert_eq!(rack, to),
            Err(error) if error.kind() == ErrorKind::Busy => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{addr} does not move to rack {to}");
}

fn stays(result: rackpool::Result<RackId>, why: &str) {
    let error = result.expect_err("it stays");
    assert_eq!(error.code(), "stays", "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

#[test]
fn a_page_goes_there_and_back_with_its_content_and_leaves_nothing_behind() {
    for fabric in FABRICS {
        let cluster = Cluster::start(2).unwrap();
        let (mut a, mut b) = handles(&cluster, fabric);
        let start = holdings(&mut a);
        let addr = a.alloc(PAGE, Placement::Local).unwrap();
        let data = pattern(PAGE, 77);
        a.write(addr, &data).unwrap();
        assert_eq!(content(&mut b, addr, PAGE), data);
        let at = GAddr(addr.0 + 100);
        for (round, to) in [1, 0, 1, 1, 0, 1].into_iter().enumerate() {
            let mover = if round % 2 == 0 { &mut a } else { &mut b };
            assert_eq!(mover.admin().migrate(at, RackId(to)), Ok(RackId(to)));
            for handle in [&mut a, &mut b] {
                // One knows the new home, the other one finds it.
                assert_eq!(content(handle, addr, PAGE), data, "round {round}");
                assert_eq!(handle.explain(addr).unwrap().rack, to);
            }
            let mark = [round as u8; 5];
            b.write(at, &mark).unwrap();
            assert_eq!(content(&mut a, at, 5), mark);
            b.write(at, &data[100..105]).unwrap();
        }
        let (came, went): (Vec<u64>, Vec<u64>) =
            stats(&mut a).iter().map(|one| (one.pages_came, one.pages_went)).unzip();
        assert_eq!((came, went), (vec![2, 3], vec![3, 2]));
        let mut there = start.clone();
        there[1] = (start[1].0 - 1, start[1].1 + 1, start[1].2 + PAGE);
        wait_for_holdings(&mut a, &there);
        a.free(addr, PAGE).unwrap();
        assert_eq!(b.read(addr, &mut [0]).unwrap_err().code(), "not-mapped");
        wait_for_holdings(&mut a, &start);
    }
}

#[test]
fn a_page_that_moved_between_racks_with_room_is_kept_when_its_old_rack_is_filled() {
    let memory = "heap?size=4M&pages=64K".to_string();
    let cluster = Cluster::with(ClusterOptions { racks: 2, memory, ..Default::default() }).unwrap();
    let (mut a, mut b) = handles(&cluster, FabricChoice::Tcp);
    let data = pattern(PAGE, 5);
    let pages: Vec<GAddr> = (0..8).map(|_| a.alloc(PAGE, Placement::Local).unwrap()).collect();
    for addr in &pages {
        a.write(*addr, &data).unwrap();
        assert_eq!(a.admin().migrate(*addr, RackId(1)), Ok(RackId(1)));
    }
    // Nothing was swapped for them, and no daemon gives their frames away.
    for rack in RACKS {
        while let Ok(other) = b.alloc(PAGE, Placement::Rack(rack)) {
            b.write(other, &vec![0xee; PAGE as usize]).unwrap();
        }
    }
    let mut fresh = open(&cluster, 0, FabricChoice::Tcp);
    for addr in &pages {
        assert_eq!(fresh.explain(*addr).unwrap().rack, 1);
        for handle in [&mut a, &mut b, &mut fresh] {
            assert_eq!(content(handle, *addr, PAGE), data);
        }
    }
}

#[test]
fn a_rack_without_room_takes_no_page_until_one_is_freed() {
    let memory = "heap?size=4M&pages=64K".to_string();
    for fabric in FABRICS {
        let options = ClusterOptions { racks: 2, memory: memory.clone(), ..Default::default() };
        let cluster = Cluster::with(options).unwrap();
        let (mut a, mut b) = handles(&cluster, fabric);
        let addr = a.alloc(PAGE, Placement::Local).unwrap();
        let data = pattern(PAGE, 9);
        a.write(addr, &data).unwrap();
        let mut held = Vec::new();
        while let Ok(other) = b.alloc(PAGE, Placement::Local) {
            held.push(other);
        }
        let full = holdings(&mut a);
        for mover in [&mut a, &mut b] {
            assert_eq!(mover.admin().migrate(addr, RackId(1)).unwrap_err().code(), "full");
            assert_eq!(content(mover, addr, PAGE), data);
        }
        assert_eq!(holdings(&mut a), full);
        b.free(held.pop().unwrap(), PAGE).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Err(error) = a.admin().migrate(addr, RackId(1)) {
            assert_eq!(error.code(), "full");
            assert!(Instant::now() < deadline, "the frame does not come back");
        }
        assert_eq!(content(&mut b, addr, PAGE), data);
        assert_eq!(b.explain(addr).unwrap().rack, 1);
    }
}

#[test]
fn a_page_of_objects_lives_on_in_its_new_rack() {
    for fabric in FABRICS {
        let cluster = Cluster::start(2).unwrap();
        let (mut a, mut b) = handles(&cluster, fabric);
        let objects = |handle: &mut Handle| -> Vec<u64> {
            stats(handle).iter().map(|one| one.allocations).collect()
        };
        let start = objects(&mut a);
        let sizes = [64, 100, 1000, 4096];
        let mut live = Vec::new();
        for index in 0..80 {
            let bytes = sizes[index % sizes.len()];
            let addr = a.alloc(bytes, Placement::Local).unwrap();
            a.write(addr, &pattern(bytes, addr.0)).unwrap();
            live.push((addr, bytes));
        }
        // Holes, and another handle that knows where all that was.
        for (addr, bytes) in live.split_off(60) {
            a.free(addr, bytes).unwrap();
        }
        let check = |handle: &mut Handle, live: &[(GAddr, u64)]| {
            for (addr, bytes) in live {
                assert_eq!(content(handle, *addr, *bytes), pattern(*bytes, addr.0), "{addr}");
            }
        };
        check(&mut b, &live);
        let pages: BTreeSet<u64> = live.iter().map(|(addr, _)| addr.0 / PAGE).collect();
        for page in &pages {
            assert_eq!(b.admin().migrate(GAddr(page * PAGE), RackId(1)), Ok(RackId(1)));
        }
        check(&mut a, &live);
        check(&mut b, &live);
        assert_eq!(objects(&mut a), [start[0], start[1] + 60]);
        assert_eq!(b.explain(live[0].0).unwrap().rack, 1);

        // What is allocated there now fills the holes, and nothing that lives.
        let taken: BTreeSet<GAddr> = live.iter().map(|(addr, _)| *addr).collect();
        let mut filled = 0;
        let mut fresh = Vec::new();
        for index in 0..400 {
            let bytes = sizes[index % sizes.len()];
            let addr = a.alloc(bytes, Placement::Rack(RackId(1))).unwrap();
            assert!(!taken.contains(&addr), "{addr} lives already");
            assert_eq!(content(&mut a, addr, bytes), vec![0; bytes as usize]);
            a.write(addr, &vec![0xee; bytes as usize]).unwrap();
            filled += usize::from(pages.contains(&(addr.0 / PAGE)));
            fresh.push((addr, bytes));
        }
        assert!(filled >= 20, "{filled} objects are in pages that came");
        check(&mut b, &live);

        // Each is freed once, by any handle, whatever it believes.
        for (index, (addr, bytes)) in live.iter().enumerate() {
            let (one, other) = if index % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
            assert_eq!(other.free(*addr, 2 * bytes).unwrap_err().code(), "bad-free");
            one.free(*addr, *bytes).unwrap();
            let again = other.free(*addr, *bytes).unwrap_err();
            assert!(["bad-free", "not-mapped"].contains(&again.code()), "{again}");
        }
        for (addr, bytes) in fresh {
            b.free(addr, bytes).unwrap();
        }
        assert_eq!(objects(&mut a), start);
    }
}

#[test]
fn locks_keep_their_page_and_go_on_with_greater_tokens_in_its_new_rack() {
    for fabric in FABRICS {
        let cluster = Cluster::start(2).unwrap();
        let (mut a, mut b) = handles(&cluster, fabric);
        let addr = a.alloc(PAGE, Placement::Local).unwrap();
        let name = GAddr(addr.0 + 64);
        let mut token = 0;
        for (round, to) in [1, 0, 1].into_iter().enumerate() {
            let (one, other) = if round % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
            let guard = one.lock(name, LockMode::Write, LockOptions::line()).unwrap();
            assert!(guard.token() > token, "{} after {token}", guard.token());
            token = guard.token();
            for _ in 0..2 {
                stays(one.admin().migrate(addr, RackId(to)), "lock");
                stays(other.admin().migrate(addr, RackId(to)), "lock");
            }
            one.check_lock(&guard).unwrap();
            let waited =
                other.lock(name, LockMode::Write, LockOptions::line().within_ms(0)).unwrap_err();
            assert_eq!(waited.code(), "lock-timeout");
            one.unlock(guard).unwrap();
            assert_eq!(other.admin().migrate(addr, RackId(to)), Ok(RackId(to)));
            assert_eq!(one.explain(addr).unwrap().rack, to);
        }
        let readers = [
            a.lock(name, LockMode::Read, LockOptions::line()).unwrap(),
            b.lock(name, LockMode::Read, LockOptions::line()).unwrap(),
        ];
        stays(a.admin().migrate(addr, RackId(0)), "lock");
        drop(readers);
    }
}

#[test]
fn pages_that_others_count_on_stay_and_say_why() {
    for fabric in FABRICS {
        let cluster = Cluster::start(2).unwrap();
        let (mut a, mut b) = handles(&cluster, fabric);
        let owned = a.alloc_owned(PAGE, Placement::Local).unwrap();
        for mover in [&mut a, &mut b] {
            stays(mover.admin().migrate(owned, RackId(1)), "session");
            assert_eq!(mover.explain(owned).unwrap().rack, 0);
            assert_eq!(mover.admin().migrate(owned, RackId(0)), Ok(RackId(0)), "it is there");
        }
        let page = a.alloc(PAGE, Placement::Local).unwrap();
        let pin = a.pin(page, 64).unwrap();
        stays(b.admin().migrate(page, RackId(1)), "touching");
        assert!(!pin.is_revoked(), "it is open again");
        pin.store(0, 42);
        assert_eq!(b.read_u64(page), Ok(42));
        drop(pin);
        assert_eq!(b.admin().migrate(page, RackId(1)), Ok(RackId(1)));
        assert_eq!(a.read_u64(page), Ok(42));

        assert_eq!(a.admin().migrate(page, RackId(7)).unwrap_err().code(), "no-such-rack");
        assert_eq!(a.admin().migrate(GAddr(0), RackId(1)).unwrap_err().code(), "not-mapped");
        a.free(page, PAGE).unwrap();
        assert_eq!(b.admin().migrate(page, RackId(0)).unwrap_err().code(), "not-mapped");
    }
}

#[test]
fn who_only_reads_moves_nothing() {
    let cluster = Cluster::start(2).unwrap();
    let (mut a, _) = handles(&cluster, FabricChoice::Tcp);
    let addr = a.alloc(PAGE, Placement::Local).unwrap();
    let options = rackpool::Options::new(&cluster.master_addr(), 1).read_only(true);
    let mut reader = rackpool::Pool::open(options).unwrap().handle().unwrap();
    assert_eq!(reader.admin().migrate(addr, RackId(1)).unwrap_err().code(), "denied");
    assert_eq!(a.explain(addr).unwrap().rack, 0);
}

/// Runs `work` in threads with handles of all kinds until `done` returns.
fn while_others_work<R: Send>(
    cluster: &Cluster,
    work: impl Fn(&mut Handle, usize, &AtomicBool) -> R + Sync,
    done: impl FnOnce(),
) -> Vec<R> {
    use FabricChoice::{Shm, Tcp};
    let stop = AtomicBool::new(false);
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            // Relaxed: the flag carries no data; the scope's end orders everything.
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let workers: Vec<_> = [(0, Tcp), (1, Tcp), (0, Shm), (1, Shm)]
            .into_iter()
            .enumerate()
            .map(|(index, (rack, fabric))| {
                let mut handle = open(cluster, rack, fabric);
                let (work, stop) = (&work, &stop);
                scope.spawn(move || work(&mut handle, index, stop))
            })
            .collect();
        // Also if it panics: no thread would end.
        let stop = Stop(&stop);
        done();
        drop(stop);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

fn is_over(stop: &AtomicBool) -> bool {
    // Relaxed: the flag carries no data.
    stop.load(Ordering::Relaxed)
}

#[test]
fn counters_from_both_racks_over_both_fabrics_are_exact_while_their_page_moves_a_hundred_times() {
    let cluster = Cluster::start(2).unwrap();
    let mut mover = open(&cluster, 0, FabricChoice::Tcp);
    let counters = mover.alloc(PAGE, Placement::Local).unwrap();
    let at = |index: u64| GAddr(counters.0 + 4096 * index + 8);
    let work = |handle: &mut Handle, index: usize, stop: &AtomicBool| {
        let mut done = [0u64; 4];
        for round in 0u64.. {
            if is_over(stop) {
                break;
            }
            let counter = (round + index as u64) % 4;
            if round % 2 == 0 {
                handle.fetch_add(at(counter), 1).unwrap();
            } else {
                let mut old = handle.read_u64(at(counter)).unwrap();
                while let CasOutcome::Found(actual) = handle.cas(at(counter), old, old + 1).unwrap()
                {
                    old = actual;
                }
            }
            done[counter as usize] += 1;
        }
        done
    };
    let done = while_others_work(&cluster, work, || {
        for round in 0..MOVES {
            insist(&mut mover, counters, RACKS[(round + 1) % 2]);
        }
    });
    let total: u64 = done.iter().flatten().sum();
    eprintln!("{total} additions while the page moved {MOVES} times");
    for counter in 0..4 {
        let sum: u64 = done.iter().map(|one| one[counter]).sum();
        assert_eq!(mover.read_u64(at(counter as u64)).unwrap(), sum, "counter {counter}");
    }
    assert!(done.iter().all(|one| one.iter().sum::<u64>() > 0), "everybody went on: {done:?}");
}

/// A word that tells its page and version.
fn tag(page: u64, version: u64) -> u64 {
    (0xabc0 + page) << 48 | version
}

/// Checks that a buffer holds words of that page only.
fn check_tags(bytes: &[u8], page: u64) {
    for (index, word) in bytes.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes(word.try_into().unwrap());
        assert_eq!(word >> 48, 0xabc0 + page, "word {index} of page {page} is {word:#x}");
    }
}

#[test]
fn nobody_reads_foreign_bytes_or_writes_to_foreign_pages_while_pages_move() {
    const PAGES: u64 = 4;
    let cluster = Cluster::start(2).unwrap();
    let mut mover = open(&cluster, 1, FabricChoice::Tcp);
    let pages: Vec<GAddr> = (0..PAGES)
        .map(|page| mover.alloc(PAGE, Placement::Rack(RackId(page as u16 % 2))).unwrap())
        .collect();
    for (page, addr) in pages.iter().enumerate() {
        let words = (0..PAGE / 8).flat_map(|_| tag(page as u64, 0).to_le_bytes());
        mover.write(*addr, &words.collect::<Vec<u8>>()).unwrap();
    }
    let work = |handle: &mut Handle, index: usize, stop: &AtomicBool| {
        let mut buffer = vec![0; PAGE as usize];
        let mut rounds = 0u64;
        while !is_over(stop) {
            rounds += 1;
            let page = (rounds + index as u64) % PAGES;
            let addr = pages[page as usize];
            // Each writer has its own eighth, so that the versions there only grow.
            let own = GAddr(addr.0 + index as u64 * PAGE / 8);
            match rounds % 4 {
                0 => {
                    handle.read(addr, &mut buffer).unwrap();
                    check_tags(&buffer, page);
                }
                1 => {
                    let words = (0..PAGE / 64).flat_map(|_| tag(page, rounds).to_le_bytes());
                    let data: Vec<u8> = words.collect();
                    handle.write(own, &data).unwrap();
                    let part = &mut buffer[..data.len()];
                    handle.read(own, part).unwrap();
                    assert!(part == data, "page {page}: what was acknowledged is gone");
                }
                2 => {
                    // Frames that come and go at once, full of something else.
                    let rack = RACKS[(rounds / 4 % 2) as usize];
                    let other = handle.alloc(PAGE, Placement::Rack(rack)).unwrap();
                    let found = &mut buffer[..];
                    handle.read(other, found).unwrap();
                    assert!(found.iter().all(|byte| *byte == 0), "new memory is zero");
                    handle.write(other, &vec![0xee; PAGE as usize]).unwrap();
                    handle.read(other, found).unwrap();
                    assert!(found.iter().all(|byte| *byte == 0xee), "it was written to");
                    handle.free(other, PAGE).unwrap();
                }
                _ => {
                    let ticket = handle.submit_read(addr, std::mem::take(&mut buffer)).unwrap();
                    let done = handle.wait_completion(30_000).unwrap().expect("it ends");
                    assert_eq!(done.ticket, ticket);
                    done.result.unwrap();
                    check_tags(&done.buffer, page);
                    buffer = done.buffer;
                }
            }
        }
        rounds
    };
    let rounds = while_others_work(&cluster, work, || {
        for round in 0..MOVES {
            let (page, turn) = (round % pages.len(), round / pages.len());
            insist(&mut mover, pages[page], RACKS[(page + turn + 1) % 2]);
        }
    });
    eprintln!("{rounds:?} rounds of four clients while {PAGES} pages moved {MOVES} times");
    assert!(rounds.iter().all(|rounds| *rounds > 8), "everybody went on: {rounds:?}");
    for (page, addr) in pages.iter().enumerate() {
        check_tags(&content(&mut mover, *addr, PAGE), page as u64);
    }
}

#[test]
fn movers_that_want_the_same_page_take_turns_and_harm_nothing() {
    let cluster = Cluster::start(3).unwrap();
    let mut handle = open(&cluster, 0, FabricChoice::Tcp);
    let start = holdings(&mut handle);
    let addr = handle.alloc(PAGE, Placement::Local).unwrap();
    let data = pattern(PAGE, 3);
    handle.write(addr, &data).unwrap();
    let work = |mover: &mut Handle, index: usize, stop: &AtomicBool| {
        let (mut moved, mut refused) = (0u64, 0u64);
        for round in index.. {
            if is_over(stop) {
                break;
            }
            match mover.admin().migrate(addr, RackId((round % 3) as u16)) {
                Ok(_) => moved += 1,
                Err(error) if error.kind() == ErrorKind::Busy => {
                    refused += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
        (moved, refused)
    };
    let turns = while_others_work(&cluster, work, || {
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            assert_eq!(content(&mut handle, addr, PAGE), data);
        }
    });
    eprintln!("(moved, refused) of four movers: {turns:?}");
    assert!(turns.iter().all(|(moved, _)| *moved > 0), "{turns:?}");
    insist(&mut handle, addr, RackId(0));
    assert_eq!(content(&mut handle, addr, PAGE), data);
    handle.free(addr, PAGE).unwrap();
    wait_for_holdings(&mut handle, &start);
}

#[test]
fn a_move_sends_one_call_to_the_master_and_two_requests_to_each_rack() {
    let cluster = Cluster::start(2).unwrap();
    let (mut a, _) = handles(&cluster, FabricChoice::Tcp);
    let addr = a.alloc(PAGE, Placement::Local).unwrap();
    a.admin().migrate(addr, RackId(1)).unwrap();
    let asked = |handle: &mut Handle| {
        let requests = stats(handle).into_iter().map(|one| {
            let by_kind = one.requests_by_kind;
            [by_kind.move_in, by_kind.move_out, by_kind.move_commit, by_kind.move_settle]
        });
        let calls = handle.admin().pool_stats().unwrap().master.calls_by_kind;
        (requests.collect::<Vec<_>>(), [calls.begin_move, calls.move_page])
    };
    let (before, handle_before) = (asked(&mut a), a.handle_stats());
    a.admin().migrate(addr, RackId(0)).unwrap();
    let handle_after = a.handle_stats();
    let after = asked(&mut a);
    let grown = |now: [u64; 4], then: [u64; 4]| -> Vec<u64> {
        now.into_iter().zip(then).map(|(now, then)| now - then).collect()
    };
    assert_eq!(grown(after.0[0], before.0[0]), [1, 0, 1, 0]);
    assert_eq!(grown(after.0[1], before.0[1]), [0, 1, 0, 1]);
    let calls: Vec<u64> = after.1.into_iter().zip(before.1).map(|(now, then)| now - then).collect();
    assert_eq!(calls, [1, 2], "the mover asks once, each daemon once");
    assert_eq!(handle_after.master_requests - handle_before.master_requests, 1);
    assert_eq!(handle_after.ring_requests - handle_before.ring_requests, 2);
}
