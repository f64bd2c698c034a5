//! Locks of ranges with the write buffer and the page cache under them, through the public API,
//! servers in threads of this process.

use rackpool::cluster::Cluster;
use rackpool::{
    FabricChoice, GAddr, Handle, HandleStats, LockMode, LockOptions, Options, Placement, Pool,
    RackId,
};
use std::time::Duration;

const BYTES: u64 = 8192;

fn pool(cluster: &Cluster, rack: u16, change: impl Fn(Options) -> Options) -> Pool {
    let options = Options::new(&cluster.master_addr().to_string(), rack);
    Pool::open(change(options.fabric(FabricChoice::Tcp))).unwrap()
}

/// A handle in rack 0, one in rack 1, and memory of rack 1 that both know.
fn two(cluster: &Cluster) -> (Handle, Handle, GAddr) {
    let (mut far, mut near) = (
        pool(cluster, 0, |options| options).handle().unwrap(),
        pool(cluster, 1, |options| options).handle().unwrap(),
    );
    let addr = far.alloc(BYTES, Placement::Rack(RackId(1))).unwrap();
    far.write(addr, &[0; BYTES as usize]).unwrap();
    near.read(addr, &mut [0; 8]).unwrap();
    (far, near, addr)
}

fn at(addr: GAddr, offset: u64) -> GAddr {
    GAddr(addr.0 + offset)
}

/// Operations and calls that sent something, since `before`.
fn sent(before: HandleStats, handle: &Handle) -> (u64, u64) {
    let after = handle.handle_stats();
    (
        after.fabric_operations - before.fabric_operations,
        after.fabric_send_calls - before.fabric_send_calls,
    )
}

#[test]
fn buffered_writes_are_seen_by_their_handle_at_once_and_by_others_after_the_unlock() {
    let cluster = Cluster::start(2).unwrap();
    let (mut far, mut near, addr) = two(&cluster);
    let guard = far.lock(at(addr, 100), LockMode::Write, LockOptions::range(1000)).unwrap();
    assert_eq!((guard.addr(), guard.bytes()), (at(addr, 64), 1088));
    let before = far.handle_stats();
    far.write(at(addr, 200), b"buffered").unwrap();
    far.write_u64(at(addr, 256), 77).unwrap();
    let mut seen = [0; 8];
    far.read(at(addr, 200), &mut seen).unwrap();
    assert_eq!((&seen, far.read_u64(at(addr, 256))), (b"buffered", Ok(77)));
    assert_eq!(sent(before, &far), (0, 0), "nothing was sent");
    // A read of more than is buffered shows both.
    let mut seen = [9; 16];
    far.read(at(addr, 196), &mut seen).unwrap();
    assert_eq!(&seen, b"\0\0\0\0buffered\0\0\0\0");
    assert_eq!(near.read_u64(at(addr, 200)), Ok(0));
    far.unlock(guard).unwrap();
    assert_eq!(near.read_u64(at(addr, 200)), Ok(u64::from_le_bytes(*b"buffered")));
    assert_eq!(near.read_u64(at(addr, 256)), Ok(77));
    let coupled = far.handle_stats().coupled;
    assert_eq!((coupled.buffered_writes, coupled.buffered_bytes), (2, 16));
    assert_eq!((coupled.flushes, coupled.flush_batches, coupled.buffer_reads), (1, 1, 2));
}

#[test]
fn an_unlock_brings_the_writes_of_a_page_home_with_one_doorbell() {
    let cluster = Cluster::start(2).unwrap();
    let (mut far, mut near, addr) = two(&cluster);
    // What lies apart is one work request each, what lies side by side one together.
    for (step, pieces) in [(128, 32), (64, 1)] {
        let guard = far.lock(addr, LockMode::Write, LockOptions::range(4096)).unwrap();
        let before = far.handle_stats();
        for line in 0..32 {
            far.write(at(addr, line * step), &[line as u8 + 1; 64]).unwrap();
        }
        assert_eq!(sent(before, &far), (0, 0));
        far.unlock(guard).unwrap();
        let after = far.handle_stats();
        assert_eq!(after.coupled.flush_batches - before.coupled.flush_batches, 1);
        // The unlock itself is a message with its answer.
        assert_eq!(sent(before, &far), (pieces + 1, 2), "{step}");
        for line in 0..32 {
            let mut seen = [0; 64];
            near.read(at(addr, line * step), &mut seen).unwrap();
            assert_eq!(seen, [line as u8 + 1; 64]);
        }
    }
}

#[test]
fn a_dropped_guard_gives_its_lock_back_when_its_writes_are_home() {
    let cluster = Cluster::start(2).unwrap();
    let (mut far, mut near, addr) = two(&cluster);
    for round in 1..20 {
        let guard = far.lock(addr, LockMode::Write, LockOptions::range(64)).unwrap();
        far.write_u64(addr, round).unwrap();
        drop(guard);
        assert_eq!(
            near.lock(addr, LockMode::Write, LockOptions::line().within_ms(0))
                .map(drop)
                .unwrap_err()
                .code(),
            "lock-timeout"
        );
        // With its next call that sends anything.
        far.read_u64(at(addr, 4096)).unwrap();
        let guard = near.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
        assert_eq!(near.read_u64(addr), Ok(round));
        near.unlock(guard).unwrap();
    }
    let guard = far.lock(addr, LockMode::Write, LockOptions::range(64)).unwrap();
    far.write_u64(addr, 99).unwrap();
    drop(far);
    drop(guard);
    let guard = near.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
    assert_eq!(near.read_u64(addr), Ok(99), "a handle that ends flushes");
    near.unlock(guard).unwrap();
}

/// Something that others can see, and its name.
type Act<'a> = (&'a str, &'a dyn Fn(&mut Handle));

#[test]
fn what_others_can_see_of_a_handle_comes_after_what_it_had_buffered() {
    let cluster = Cluster::start(2).unwrap();
    let (mut far, mut near, addr) = two(&cluster);
    let word = far.alloc(64, Placement::Rack(RackId(1))).unwrap();
    let outside: [Act<'_>; 7] = [
        ("a longer write", &|far| far.write(at(addr, 1024), &[1; 257]).unwrap()),
        ("a write outside", &|far| far.write(at(addr, 4096), &[1; 8]).unwrap()),
        ("an atomic", &|far| _ = far.fetch_add(word, 1).unwrap()),
        ("a batch", &|far| far.write_batch(&mut [(at(addr, 512), &[1; 8][..])]).unwrap()),
        ("a submission", &|far| {
            far.submit_write(at(addr, 512), vec![1; 8]).unwrap();
            far.wait_completion(10_000).unwrap().unwrap().result.unwrap();
        }),
        ("an allocation", &|far| _ = far.alloc_owned(64, Placement::Local).unwrap()),
        ("a batch of reads", &|far| {
            let mut seen = [0; 8];
            far.read_batch(&mut [(addr, &mut seen[..])]).unwrap();
            assert_ne!(seen, [0; 8]);
        }),
    ];
    for (index, (what, act)) in outside.iter().enumerate() {
        let guard = far.lock(addr, LockMode::Write, LockOptions::range(4096)).unwrap();
        let value = index as u64 + 1;
        far.write_u64(addr, value).unwrap();
        assert_eq!(near.read_u64(addr), Ok(value - 1), "{what}: it is buffered");
        act(&mut far);
        assert_eq!(near.read_u64(addr), Ok(value), "after {what}");
        far.check_lock(&guard).unwrap();
        far.unlock(guard).unwrap();
    }
}

#[test]
fn what_no_range_lock_covers_is_not_buffered() {
    let cluster = Cluster::start(2).unwrap();
    let (mut far, mut near, addr) = two(&cluster);
    let name = far.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
    let reader = far.lock(at(addr, 1024), LockMode::Read, LockOptions::range(64)).unwrap();
    let range = far.lock(at(addr, 512), LockMode::Write, LockOptions::range(64)).unwrap();
    for (offset, bytes) in [(0, 8), (1024, 8), (504, 16), (572, 8), (2048, 8)] {
        far.write(at(addr, offset), &vec![5; bytes]).unwrap();
        let mut seen = vec![0; bytes];
        near.read(at(addr, offset), &mut seen).unwrap();
        assert_eq!(seen, vec![5; bytes], "{bytes} bytes at {offset}");
    }
    assert_eq!(far.handle_stats().coupled.buffered_writes, 0);
    let guards: [rackpool::LockGuard; 3] = [name, reader, range];
    guards.into_iter().for_each(|guard| far.unlock(guard).unwrap());
    // Nor in the own rack, nor where there is no buffer.
    let near_guard = near.lock(addr, LockMode::Write, LockOptions::range(64)).unwrap();
    near.write_u64(addr, 6).unwrap();
    assert_eq!(far.read_u64(addr), Ok(6));
    near.unlock(near_guard).unwrap();
    let mut plain = pool(&cluster, 0, |options| options.write_buffer_bytes(0)).handle().unwrap();
    let guard = plain.lock(addr, LockMode::Write, LockOptions::range(64)).unwrap();
    plain.write_u64(addr, 7).unwrap();
    assert_eq!(far.read_u64(addr), Ok(7));
    plain.unlock(guard).unwrap();
    assert_eq!(near.handle_stats().coupled, plain.handle_stats().coupled);
}

#[test]
fn reads_under_a_read_lock_are_fetched_once_and_never_served_after_it() {
    let cluster = Cluster::start(2).unwrap();
    let (mut far, mut near, addr) = two(&cluster);
    near.write(addr, &[1; 4096]).unwrap();
    let guard = far.lock(addr, LockMode::Read, LockOptions::range(4096)).unwrap();
    let mut seen = [0; 64];
    far.read(at(addr, 64), &mut seen).unwrap();
    let before = far.handle_stats();
    for line in 0..64 {
        far.read(at(addr, 64 * line), &mut seen).unwrap();
        assert_eq!(seen, [1; 64]);
    }
    assert_eq!(sent(before, &far), (0, 0), "it was fetched before");
    let coupled = far.handle_stats().coupled;
    assert_eq!((coupled.cache_misses, coupled.cache_hits), (1, 64));
    // What lies outside is not from a copy, not in part either.
    near.write(at(addr, 4096), &[2; 64]).unwrap();
    far.read(at(addr, 4096 - 32), &mut seen).unwrap();
    assert_eq!((seen[31], seen[32]), (1, 2));
    assert_eq!(sent(before, &far), (1, 1));
    far.unlock(guard).unwrap();
    for (round, dropped) in [(3, false), (4, true)] {
        let guard = near.lock(addr, LockMode::Write, LockOptions::range(4096)).unwrap();
        near.write(addr, &[round; 4096]).unwrap();
        near.unlock(guard).unwrap();
        far.read(addr, &mut seen).unwrap();
        assert_eq!(seen, [round; 64], "without a lock");
        let guard = far.lock(addr, LockMode::Read, LockOptions::range(4096)).unwrap();
        far.read(addr, &mut seen).unwrap();
        assert_eq!(seen, [round; 64]);
        if dropped { drop(guard) } else { far.unlock(guard).unwrap() }
    }
    near.write(addr, &[9; 64]).unwrap();
    far.read(addr, &mut seen).unwrap();
    assert_eq!(seen, [9; 64], "the guard was dropped");
}

#[test]
fn a_handles_own_writes_are_seen_through_its_copies() {
    let cluster = Cluster::start(2).unwrap();
    let (mut far, _near, addr) = two(&cluster);
    let guard = far.lock(addr, LockMode::Read, LockOptions::range(4096)).unwrap();
    let mut expected = 0;
    for round in 1..=4u64 {
        assert_eq!(far.read_u64(addr), Ok(expected), "from home or a copy");
        assert_eq!(far.read_u64(addr), Ok(expected));
        // Writing under a read lock is not prevented, only unwise.
        expected = round;
        match round {
            1 => far.write_u64(addr, round).unwrap(),
            2 => _ = far.fetch_add(addr, 1).unwrap(),
            3 => far.write_batch(&mut [(addr, &round.to_le_bytes()[..])]).unwrap(),
            _ => {
                far.submit_write(addr, round.to_le_bytes().to_vec()).unwrap();
                far.wait_completion(10_000).unwrap().unwrap().result.unwrap();
            }
        }
    }
    assert_eq!(far.read_u64(addr), Ok(4));
    assert_eq!(far.handle_stats().coupled.cache_misses, 5);
    far.unlock(guard).unwrap();
}

#[test]
fn copies_are_served_only_for_a_while_without_a_proof_that_the_lock_is_held() {
    let cluster = Cluster::start(2).unwrap();
    let (mut far, _near, addr) = two(&cluster);
    let guard = far.lock(addr, LockMode::Read, LockOptions::range(64)).unwrap();
    far.read_u64(addr).unwrap();
    let before = far.handle_stats();
    far.read_u64(addr).unwrap();
    std::thread::sleep(Duration::from_millis(600));
    far.read_u64(addr).unwrap();
    assert!(sent(before, &far).0 >= 1, "the lock was asked for");
    let coupled = far.handle_stats().coupled;
    assert_eq!((coupled.cache_misses, coupled.cache_hits), (1, 2));
    far.unlock(guard).unwrap();
}

#[test]
fn ranges_exclude_each_other_by_lines_and_end_with_their_page() {
    let cluster = Cluster::start(2).unwrap();
    let (mut far, mut near, _) = two(&cluster);
    let page = far.page_bytes();
    let run = far.alloc(2 * page, Placement::Rack(RackId(1))).unwrap();
    let guard = far.lock(at(run, 70), LockMode::Write, LockOptions::range(60)).unwrap();
    for (offset, bytes, free) in [(0, 64, true), (0, 65, false), (127, 1, false), (192, 64, true)] {
        let tried =
            near.lock(at(run, offset), LockMode::Read, LockOptions::range(bytes).within_ms(0));
        assert_eq!(tried.is_ok(), free, "{bytes} bytes at {offset}: {tried:?}");
        if let Ok(guard) = tried {
            near.unlock(guard).unwrap();
        }
    }
    let again = far.lock(run, LockMode::Write, LockOptions::range(128)).unwrap_err();
    assert_eq!(again.code(), "already-locked");
    far.unlock(guard).unwrap();
    for (addr, bytes) in [(run, 0), (run, page + 1), (at(run, page - 64), 65)] {
        assert_eq!(
            far.lock(addr, LockMode::Write, LockOptions::range(bytes)).unwrap_err().code(),
            "out-of-bounds"
        );
    }
    let guard = far.lock(run, LockMode::Write, LockOptions::range(page)).unwrap();
    assert_eq!(guard.bytes(), page);
    far.unlock(guard).unwrap();
}
