//! The pool through its public API, servers in threads of this process, both fabrics.

use rackpool::cluster::{Cluster, ClusterOptions};
use rackpool::{
    CasOutcome, FabricChoice, GAddr, Handle, LockMode, LockOptions, Options, Placement, Pool,
    RackId, interruptible,
};

const PAGE: u64 = 64 << 10;

fn handles(cluster: &Cluster, fabric: FabricChoice) -> (Handle, Handle) {
    let open = |rack| cluster.pool_over(rack, fabric).unwrap().handle().unwrap();
    (open(0), open(1))
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8).collect()
}

fn everything_written_in_one_rack_is_read_in_the_other(fabric: FabricChoice) {
    let cluster = Cluster::start(2).unwrap();
    let (mut a, mut b) = handles(&cluster, fabric);
    for (bytes, offset) in
        [(1, 0), (7, 3), (64, 0), (4096, 100), (3 * PAGE as usize + 17, PAGE - 5)]
    {
        let addr = a.alloc(bytes as u64 + offset, Placement::Rack(RackId(1))).unwrap();
        let data = pattern(bytes, addr.0);
        let at = GAddr(addr.0 + offset);
        a.write(at, &data).unwrap();
        for reader in [&mut a, &mut b] {
            let mut found = vec![0; bytes];
            reader.read(at, &mut found).unwrap();
            assert_eq!(found, data, "{bytes} bytes at offset {offset}");
        }
        b.free(addr, bytes as u64 + offset).unwrap();
        if bytes as u64 > PAGE {
            assert_eq!(a.read(at, &mut [0]).unwrap_err().code(), "not-mapped");
        }
    }
}

#[test]
fn everything_written_in_one_rack_is_read_in_the_other_over_tcp() {
    everything_written_in_one_rack_is_read_in_the_other(FabricChoice::Tcp);
}

#[test]
fn everything_written_in_one_rack_is_read_in_the_other_over_shm() {
    everything_written_in_one_rack_is_read_in_the_other(FabricChoice::Shm);
}

#[test]
fn a_counter_added_to_from_both_racks_at_once_loses_nothing() {
    let cluster = Cluster::start(2).unwrap();
    let (mut a, _) = handles(&cluster, FabricChoice::Tcp);
    let counter = a.alloc(8, Placement::Local).unwrap();
    const EACH: u64 = 2_000;
    std::thread::scope(|scope| {
        for (rack, fabric) in
            [(0, FabricChoice::Tcp), (1, FabricChoice::Tcp), (1, FabricChoice::Shm)]
        {
            let mut handle = cluster.pool_over(rack, fabric).unwrap().handle().unwrap();
            scope.spawn(move || {
                for i in 0..EACH {
                    if i % 2 == 0 {
                        handle.fetch_add(counter, 1).unwrap();
                        continue;
                    }
                    let mut old = handle.read_u64(counter).unwrap();
                    while let CasOutcome::Found(actual) = handle.cas(counter, old, old + 1).unwrap()
                    {
                        old = actual;
                    }
                }
            });
        }
    });
    assert_eq!(a.read_u64(counter).unwrap(), 3 * EACH);
}

#[test]
fn memory_is_zero_when_it_is_handed_out_again() {
    let cluster = Cluster::start(1).unwrap();
    let mut handle = cluster.pool(0).unwrap().handle().unwrap();
    for bytes in [64, 1000, PAGE, 3 * PAGE] {
        for _ in 0..3 {
            let addr = handle.alloc(bytes, Placement::Local).unwrap();
            let mut found = vec![1; bytes as usize];
            handle.read(addr, &mut found).unwrap();
            assert!(found.iter().all(|byte| *byte == 0), "{bytes} bytes");
            handle.write(addr, &vec![0xff; bytes as usize]).unwrap();
            handle.free(addr, bytes).unwrap();
        }
    }
}

#[test]
fn a_full_rack_overflows_into_another_and_a_full_pool_says_so_and_recovers() {
    let memory = "heap?size=4M&pages=64K".to_string();
    let cluster = Cluster::with(ClusterOptions { racks: 2, memory, ..Default::default() }).unwrap();
    let mut handle = cluster.pool(0).unwrap().handle().unwrap();
    let free_at_start = frames_free(&mut handle);
    let mut held = Vec::new();
    let error = loop {
        match handle.alloc(4 * PAGE, Placement::Auto) {
            Ok(addr) => held.push(addr),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), "full");
    assert_eq!(held.len(), 32, "16 in each rack");
    let racks: Vec<u16> = held.iter().map(|addr| handle.explain(*addr).unwrap().rack).collect();
    assert!(racks[..16].iter().all(|rack| *rack == 0), "own rack first: {racks:?}");
    assert!(racks[16..].iter().all(|rack| *rack == 1), "{racks:?}");
    assert_eq!(handle.alloc(64, Placement::Local).unwrap_err().code(), "full");
    for addr in held {
        handle.free(addr, 4 * PAGE).unwrap();
    }
    assert_eq!(frames_free(&mut handle), free_at_start, "free really frees");
    let again = handle.alloc(PAGE, Placement::Local).unwrap();
    handle.free(again, PAGE).unwrap();
}

fn frames_free(handle: &mut Handle) -> Vec<u64> {
    let stats = handle.admin().pool_stats().unwrap();
    stats.racks.iter().map(|rack| rack.daemon.as_ref().unwrap().frames_free).collect()
}

#[test]
fn wrong_addresses_sizes_and_frees_are_typed_errors() {
    let cluster = Cluster::start(1).unwrap();
    let mut handle = cluster.pool(0).unwrap().handle().unwrap();
    let addr = handle.alloc(64, Placement::Local).unwrap();
    let far = GAddr(addr.0 + (1 << 40));
    assert_eq!(handle.read(GAddr::NULL, &mut [0]).unwrap_err().code(), "not-mapped");
    assert_eq!(handle.read(far, &mut [0]).unwrap_err().code(), "not-mapped");
    assert_eq!(handle.write(far, &[0]).unwrap_err().code(), "not-mapped");
    assert_eq!(handle.fetch_add(GAddr(addr.0 + 1), 1).unwrap_err().code(), "misaligned");
    assert_eq!(handle.alloc(0, Placement::Auto).unwrap_err().code(), "bad-size");
    assert_eq!(handle.alloc(u64::MAX, Placement::Auto).unwrap_err().code(), "bad-size");
    assert_eq!(handle.alloc(64, Placement::Rack(RackId(7))).unwrap_err().code(), "no-such-rack");
    assert_eq!(handle.free(addr, 128).unwrap_err().code(), "bad-free");
    assert_eq!(handle.free(GAddr(addr.0 + 64), 64).unwrap_err().code(), "bad-free");
    handle.free(addr, 64).unwrap();
    assert!(["bad-free", "not-mapped"].contains(&handle.free(addr, 64).unwrap_err().code()));
    // The access reaches past the last page: the part that is there is not the whole.
    let last = handle.alloc(PAGE, Placement::Local).unwrap();
    let over = vec![0; PAGE as usize + 1];
    assert_eq!(handle.write(last, &over).unwrap_err().code(), "not-mapped");
}

#[test]
fn a_word_holds_its_allocation_or_nothing_from_both_racks_and_over_both_fabrics() {
    for fabric in [FabricChoice::Tcp, FabricChoice::Shm] {
        let cluster = Cluster::start(2).unwrap();
        let (mut a, mut b) = handles(&cluster, fabric);
        let word = a.alloc(64, Placement::Rack(RackId(1))).unwrap();
        for bytes in [64, 5 * PAGE - 9] {
            let addr = a.alloc_into(word, bytes).unwrap();
            assert_eq!(b.read_u64(word).unwrap(), addr.0);
            assert_eq!(a.explain(addr).unwrap().rack, 1, "it is where its word is");
            b.write(addr, &[7; 64]).unwrap();
            assert_eq!(b.alloc_into(word, bytes).unwrap_err().code(), "occupied");
            assert_eq!(a.free_from(word, bytes + PAGE).unwrap_err().code(), "bad-free");
            a.free_from(word, bytes).unwrap();
            assert_eq!(b.read_u64(word).unwrap(), 0);
            assert_eq!(b.free_from(word, bytes).unwrap_err().code(), "bad-free");
        }
        let plain = b.alloc(64, Placement::Rack(RackId(1))).unwrap();
        a.write_u64(word, plain.0).unwrap();
        a.free_from(word, 64).unwrap();
        let elsewhere = b.alloc(64, Placement::Rack(RackId(0))).unwrap();
        a.write_u64(word, elsewhere.0).unwrap();
        assert_eq!(a.free_from(word, PAGE).unwrap_err().code(), "bad-free", "it is in rack 0");
        a.free_from(word, 64).unwrap();
        assert_eq!(b.read_u64(word).unwrap(), 0);
        a.free(word, 64).unwrap();
        assert_eq!(a.alloc_into(GAddr(word.0 + 4), 64).unwrap_err().code(), "misaligned");
        assert_eq!(a.alloc_into(word, 64).unwrap_err().code(), "not-mapped");
    }
}

#[test]
fn a_read_only_pool_reads_and_refuses_to_write() {
    let cluster = Cluster::start(2).unwrap();
    let mut writer = cluster.pool(0).unwrap().handle().unwrap();
    let own = writer.alloc(64, Placement::Local).unwrap();
    writer.write(own, b"read me").unwrap();
    let options = Options::new(&cluster.master_addr(), 0).read_only(true);
    let mut reader = Pool::open(options).unwrap().handle().unwrap();
    let mut found = [0; 7];
    reader.read(own, &mut found).unwrap();
    assert_eq!(&found, b"read me");
    assert_eq!(reader.write(own, b"x").unwrap_err().code(), "denied");
    assert_eq!(reader.fetch_add(own, 1).unwrap_err().code(), "denied");
    assert_eq!(reader.cas(own, 0, 1).unwrap_err().code(), "denied");
}

#[test]
fn forty_joins_and_leaves_leave_no_slot_behind_and_owned_memory_comes_back() {
    let cluster = Cluster::start(1).unwrap();
    let mut watcher = cluster.pool(0).unwrap().handle().unwrap();
    let before = watcher.admin().pool_stats().unwrap().racks[0].daemon.clone().unwrap();
    for _ in 0..40 {
        let mut handle = cluster.pool(0).unwrap().handle().unwrap();
        handle.alloc_owned(64, Placement::Local).unwrap();
        handle.alloc_owned(2 * PAGE, Placement::Local).unwrap();
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let after = watcher.admin().pool_stats().unwrap().racks[0].daemon.clone().unwrap();
        if after.slots_used == before.slots_used && after.allocated_bytes == before.allocated_bytes
        {
            assert_eq!(after.allocations, before.allocations);
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{after:?} is not {before:?}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn more_handles_than_slots_are_busy_and_a_dropped_one_makes_room() {
    let cluster = Cluster::start(1).unwrap();
    let pool =
        Pool::open(Options::new(&cluster.master_addr(), 0).request_timeout_ms(2_000)).unwrap();
    let mut handles = Vec::new();
    let error = loop {
        match pool.handle() {
            Ok(handle) => handles.push(handle),
            Err(error) => break error,
        }
    };
    assert_eq!((error.code(), handles.len()), ("busy", 256));
    handles.truncate(200);
    pool.handle().unwrap();
}

#[test]
fn batches_across_racks_arrive_whole_and_stop_at_a_bad_address() {
    let cluster = Cluster::start(2).unwrap();
    let (mut a, mut b) = handles(&cluster, FabricChoice::Tcp);
    let mut ops = Vec::new();
    for i in 0..600u64 {
        let rack = RackId((i % 2) as u16);
        ops.push((a.alloc(200, Placement::Rack(rack)).unwrap(), pattern(200, i)));
    }
    let mut writes: Vec<_> = ops.iter().map(|(addr, data)| (*addr, data.as_slice())).collect();
    a.write_batch(&mut writes).unwrap();
    let mut found: Vec<_> = ops.iter().map(|(addr, _)| (*addr, vec![0; 200])).collect();
    let mut reads: Vec<_> =
        found.iter_mut().map(|(addr, data)| (*addr, data.as_mut_slice())).collect();
    b.read_batch(&mut reads).unwrap();
    assert_eq!(found, ops);
    let mut byte = [0];
    assert_eq!(a.read_batch(&mut [(GAddr(8), &mut byte)]).unwrap_err().code(), "not-mapped");
}

#[test]
fn names_are_set_once_and_found_by_everybody() {
    let cluster = Cluster::start(2).unwrap();
    let (mut a, mut b) = handles(&cluster, FabricChoice::Tcp);
    assert_eq!(a.root("table").unwrap(), None);
    let addr = a.alloc(64, Placement::Auto).unwrap();
    assert_eq!(a.set_root("table", GAddr::NULL, addr).unwrap(), addr);
    assert_eq!(b.set_root("table", GAddr::NULL, GAddr(1 << 30)).unwrap(), addr, "too late");
    assert_eq!(b.root("table").unwrap(), Some(addr));
    assert_eq!(b.set_root("table", addr, GAddr::NULL).unwrap(), GAddr::NULL);
    assert_eq!(a.root("table").unwrap(), None);
}

#[test]
fn nobody_at_the_masters_address_is_a_typed_error_in_time() {
    let started = std::time::Instant::now();
    let options = Options::new("127.0.0.1:1", 0).request_timeout_ms(300);
    let error = Pool::open(options).unwrap_err();
    assert!(["timeout", "peer-dead"].contains(&error.code()), "{error}");
    assert!(started.elapsed() < std::time::Duration::from_secs(3), "{:?}", started.elapsed());
}

#[test]
fn the_death_of_a_rack_is_a_typed_error_within_the_timeout_and_others_go_on() {
    let mut cluster = Cluster::start(2).unwrap();
    let options = Options::new(&cluster.master_addr(), 0).request_timeout_ms(500);
    let mut handle = Pool::open(options).unwrap().handle().unwrap();
    let far = handle.alloc(64, Placement::Rack(RackId(1))).unwrap();
    let near = handle.alloc(64, Placement::Local).unwrap();
    handle.write(far, b"far").unwrap();
    cluster.stop_rack(1).unwrap();
    let started = std::time::Instant::now();
    let error = handle.read(far, &mut [0; 3]).unwrap_err();
    assert!(["timeout", "peer-dead"].contains(&error.code()), "{error}");
    assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
    handle.write(near, b"near").unwrap();
    handle.alloc(64, Placement::Local).unwrap();
}

#[test]
fn submissions_return_their_buffers_while_the_handle_does_other_work() {
    let cluster = Cluster::start(2).unwrap();
    let (mut a, mut b) = handles(&cluster, FabricChoice::Tcp);
    let places: Vec<_> = (0..40u64)
        .map(|i| a.alloc(5000, Placement::Rack(RackId((i % 2) as u16))).unwrap())
        .collect();
    let mut tickets: Vec<_> =
        places.iter().map(|addr| a.submit_write(*addr, pattern(5000, addr.0)).unwrap()).collect();
    let busy = a.alloc(64, Placement::Rack(RackId(1))).unwrap();
    a.write(busy, b"meanwhile").unwrap();
    assert_eq!(a.fetch_add(GAddr(busy.0 + 16), 1).unwrap(), 0);
    while let Some(done) = a.wait_completion(5_000).unwrap() {
        done.result.unwrap();
        assert_eq!(done.buffer.len(), 5000);
        tickets.retain(|ticket| *ticket != done.ticket);
    }
    assert!(tickets.is_empty(), "{tickets:?}");
    let mut under_way: std::collections::BTreeMap<_, _> =
        places.iter().map(|addr| (b.submit_read(*addr, vec![0; 5000]).unwrap(), *addr)).collect();
    while let Some(done) = b.wait_completion(5_000).unwrap() {
        let addr = under_way.remove(&done.ticket).unwrap();
        done.result.unwrap();
        assert_eq!(done.buffer, pattern(5000, addr.0));
    }
    assert!(under_way.is_empty());
    for _ in 0..64 {
        b.submit_read(places[0], vec![0; 8]).unwrap();
    }
    assert_eq!(b.submit_read(places[0], vec![0; 8]).unwrap_err().code(), "busy");
}

/// More pages than a connection takes work requests: what is submitted behind them finds no room.
#[test]
fn a_submission_that_finds_the_queue_full_goes_on_when_there_is_room() {
    const LONG: u64 = 160 * PAGE;
    let cluster = Cluster::start(2).unwrap();
    let mut handle = handles(&cluster, FabricChoice::Tcp).0;
    let long = handle.alloc(LONG, Placement::Rack(RackId(1))).unwrap();
    let short = handle.alloc(64, Placement::Rack(RackId(1))).unwrap();
    let connections = |handle: &mut Handle| {
        handle.admin().pool_stats().unwrap().racks[1].daemon.as_ref().unwrap().fabric.connections
    };
    // Both are known, and the connection is up.
    handle.write(long, &vec![1; LONG as usize]).unwrap();
    handle.write(short, &[1; 64]).unwrap();
    let before = connections(&mut handle);
    for round in 0..5 {
        let data = pattern(LONG as usize, round);
        handle.submit_write(long, data.clone()).unwrap();
        handle.submit_write(short, pattern(64, round)).unwrap();
        for _ in 0..2 {
            handle.wait_completion(5_000).unwrap().unwrap().result.unwrap();
        }
        let mut seen = vec![0; LONG as usize];
        handle.read(long, &mut seen).unwrap();
        assert!(seen == data);
        handle.read(short, &mut seen[..64]).unwrap();
        assert_eq!(seen[..64], pattern(64, round));
    }
    assert_eq!(connections(&mut handle), before, "the connection is kept");
}

#[test]
fn a_pinned_page_stays_readable_until_the_pin_is_dropped_and_then_goes() {
    let cluster = Cluster::start(2).unwrap();
    let (mut a, mut b) = handles(&cluster, FabricChoice::Tcp);
    let quarantined = |handle: &mut Handle| {
        let stats = handle.admin().pool_stats().unwrap();
        stats.racks[0].daemon.as_ref().unwrap().frames_quarantined
    };
    let addr = a.alloc(PAGE, Placement::Local).unwrap();
    let pin = a.pin(addr, PAGE).unwrap();
    pin.write(8, b"pinned");
    assert_eq!(pin.fetch_add(0, 5), 0);
    b.free(addr, PAGE).unwrap();
    assert!(pin.is_revoked());
    let mut found = [0; 6];
    pin.read(8, &mut found);
    assert_eq!(&found, b"pinned", "not punched under the pin");
    assert_eq!(quarantined(&mut a), 1);
    drop(a);
    pin.write(8, b"still!");
    let mut a = cluster.pool(0).unwrap().handle().unwrap();
    assert_eq!(quarantined(&mut a), 1, "the pin outlives its handle");
    drop(pin);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while quarantined(&mut a) != 0 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let far = a.alloc(64, Placement::Rack(RackId(1))).unwrap();
    assert_eq!(a.pin(far, 8).unwrap_err().code(), "denied");
    let near = a.alloc(PAGE, Placement::Local).unwrap();
    assert_eq!(a.pin(near, PAGE + 8).unwrap_err().code(), "out-of-bounds");
    assert_eq!(a.pin(GAddr(near.0 + 1), 8).unwrap_err().code(), "misaligned");
    let pins: Vec<_> = (0..7).map(|_| a.pin(near, 8).unwrap()).collect();
    assert_eq!(a.pin(near, 8).unwrap_err().code(), "busy");
    drop(pins);
    a.pin(near, 8).unwrap();
}

#[test]
fn an_aligned_word_never_tears_when_it_is_written_over_tcp() {
    let cluster = Cluster::start(2).unwrap();
    let (mut far, mut near) = handles(&cluster, FabricChoice::Tcp);
    const WORDS: u64 = 500;
    let base = near.alloc(8 * WORDS, Placement::Local).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..400u64 {
                let word = (round % 2).wrapping_neg().to_le_bytes();
                let mut ops: Vec<_> =
                    (0..WORDS).map(|i| (GAddr(base.0 + 8 * i), &word[..])).collect();
                far.write_batch(&mut ops).unwrap();
            }
            // Relaxed: only ends the loop below.
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        // Relaxed: as above.
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            for i in 0..WORDS {
                let word = near.read_u64(GAddr(base.0 + 8 * i)).unwrap();
                assert!(word == 0 || word == u64::MAX, "word {i} is {word:#x}");
            }
        }
    });
}

#[test]
fn clients_learn_the_pools_placement_with_the_masters_welcome() {
    let homes = |placement: &str| {
        let placement: rackpool::Policy = placement.parse().unwrap();
        let cluster = Cluster::with(ClusterOptions { placement, ..Default::default() }).unwrap();
        let mut handle = cluster.pool(1).unwrap().handle().unwrap();
        let asked = handle.handle_stats().master_requests;
        let mut home = |_| {
            let addr = handle.alloc(PAGE, Placement::Auto).unwrap();
            handle.explain(addr).unwrap().rack
        };
        let homes: Vec<u16> = (0..6).map(&mut home).collect();
        let stats = handle.admin().pool_stats().unwrap();
        assert_eq!(stats.master.placement, placement.to_string());
        (homes, stats.master.calls_by_kind.pick_rack, asked)
    };
    let (local, picks, joined) = homes("local-first");
    assert_eq!((local, picks), (vec![1; 6], 0));
    let (turns, picks, asked) = homes("alternate+round-robin");
    assert_eq!((turns, picks), (vec![1, 0, 1, 0, 1, 0], 3));
    assert_eq!(asked, joined, "the policy comes with what is said anyway");
    assert_eq!(homes("round-robin").0, [0, 1, 0, 1, 0, 1]);
}

#[test]
fn a_handle_has_its_own_time_limit_and_a_rack_that_starts_again_has_lost_what_it_had() {
    let mut cluster = Cluster::start(2).unwrap();
    let mut handle = cluster.pool(0).unwrap().handle().unwrap();
    let far = handle.alloc(PAGE, Placement::Rack(RackId(1))).unwrap();
    cluster.stop_rack(1).unwrap();
    assert_eq!(cluster.stop_rack(1).unwrap_err().code(), "no-such-rack");
    handle.set_timeout_ms(Some(200));
    let began = std::time::Instant::now();
    let error = handle.read(far, &mut [0; 8]).unwrap_err();
    assert!(error.may_retry() && began.elapsed().as_millis() < 3_000, "{error}");
    cluster.start_rack(1).unwrap();
    handle.set_timeout_ms(None);
    assert_eq!(handle.read(far, &mut [0; 8]).unwrap_err().code(), "lost");
    assert!(handle.alloc(PAGE, Placement::Rack(RackId(1))).is_ok());
}

#[test]
fn a_buffer_whose_submission_is_refused_is_still_the_callers() {
    let cluster = Cluster::start(2).unwrap();
    let mut handle = cluster.pool(0).unwrap().handle().unwrap();
    let far = handle.alloc(PAGE, Placement::Rack(RackId(1))).unwrap();
    handle.write(far, b"there").unwrap();
    let mut buffer = vec![7; 5];
    let start = buffer.as_ptr();
    assert!(handle.submit_read_from(GAddr(u64::MAX), &mut buffer).is_err());
    assert_eq!((buffer.as_slice(), buffer.as_ptr()), (&[7; 5][..], start));
    handle.submit_read_from(far, &mut buffer).unwrap();
    assert!(buffer.is_empty());
    let done = handle.wait_completion(5_000).unwrap().unwrap();
    assert_eq!((done.buffer.as_slice(), done.buffer.as_ptr()), (&b"there"[..], start));
}

#[test]
fn a_call_that_waits_is_interrupted_and_its_handle_is_as_one_that_died() {
    let cluster = Cluster::start(2).unwrap();
    let pool = cluster.pool(0).unwrap();
    for rack in [0, 1] {
        let (mut holder, mut waits) = (pool.handle().unwrap(), pool.handle().unwrap());
        let addr = holder.alloc(64, Placement::Rack(RackId(rack))).unwrap();
        let guard = holder.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
        let began = std::time::Instant::now();
        let interrupted =
            interruptible(|| true, || waits.lock(addr, LockMode::Write, LockOptions::line()));
        assert!(interrupted.is_none() && began.elapsed().as_millis() < 1_000);
        drop(waits);
        holder.unlock(guard).unwrap();
        let mut next = pool.handle().unwrap();
        let asked = LockOptions::line().within_ms(5_000);
        let guard = interruptible(|| false, || next.lock(addr, LockMode::Write, asked));
        next.unlock(guard.unwrap().unwrap()).unwrap();
    }
}
