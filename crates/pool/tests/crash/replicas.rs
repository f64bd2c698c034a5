//! Homes of pages with replicas, and the racks that have those, are killed and stopped while the
//! pages are written and read: what was written is what the next read finds, in each rack, no
//! write waits for ever, and a client that has lost a lock is told. Real processes; see `tools`.

use crate::tools::stage::Stage;
use crate::tools::{PATIENCE, Proc, Random, busy, seed, wait_until, waiting};
use rackpool::FabricChoice::Tcp;
use rackpool::{GAddr, Handle, LockGuard, LockMode, LockOptions, Placement, RackId, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MEMORY: &str = "size=16M&pages=64K";
const FAULTS: u32 = 3;
const STOPPED: Duration = Duration::from_millis(2_500);
/// How long a write may wait for a stopped rack: two leases, tenfold.
const HELD_UP: Duration = Duration::from_secs(20);

/// Does it again as long as that may help.
fn again<T>(mut call: impl FnMut() -> Result<T>) -> T {
    let started = Instant::now();
    loop {
        match call() {
            Ok(result) => return result,
            Err(error) => {
                let patient = started.elapsed() < PATIENCE;
                assert!(patient && (error.may_retry() || error.code() == "stays"), "{error}");
            }
        }
    }
}

/// A page of rack 0, written from both racks and read in both.
struct Shared {
    here: Handle,
    there: Handle,
    addr: GAddr,
    written: u64,
    slowest: Duration,
    random: Random,
}

impl Shared {
    fn new(stage: &Stage, seed: u64) -> Shared {
        let open = |rack| {
            let options = stage.options(rack, Tcp).request_timeout_ms(60_000);
            rackpool::Pool::open(options).unwrap().handle().unwrap()
        };
        let (mut here, there) = (open(0), open(1));
        let addr = here.alloc(here.page_bytes(), Placement::Local).unwrap();
        let (written, slowest, random) = (0, Duration::ZERO, Random::new(seed));
        Shared { here, there, addr, written, slowest, random }
    }

    /// One write, by any handle and in any way, then a read in each rack.
    fn step(&mut self) {
        let (addr, next) = (self.addr, self.written + 1);
        let by = self.random.below(2) == 0;
        let writer = if by { &mut self.here } else { &mut self.there };
        let started = Instant::now();
        match self.random.below(3) {
            0 => again(|| writer.write_u64(addr, next)),
            // Its outcome may be unknown if the home dies; then it is looked at.
            1 => match writer.fetch_add(addr, 1) {
                Ok(old) => assert_eq!(old, self.written, "an atomic found an old value"),
                Err(error) => {
                    let code = error.code();
                    assert!(code == "outcome-unknown" || error.may_retry(), "{error}");
                    again(|| writer.write_u64(addr, next));
                }
            },
            _ => {
                let line = [next; 8].map(u64::to_le_bytes).concat();
                again(|| writer.write(addr, &line));
            }
        }
        self.slowest = self.slowest.max(started.elapsed());
        self.written = next;
        for reader in [&mut self.there, &mut self.here] {
            let found = again(|| reader.read_u64(addr));
            assert_eq!(found, next, "a read after the write finds what was there before");
        }
    }

    /// Waits until no rack does what a dead process had sent: until then it may still be done.
    fn bury(&mut self, pid: u32) {
        for rack in [RackId(0), RackId(1)] {
            wait_until("the dead are seen to be dead", PATIENCE, || {
                let sessions = again(|| self.here.admin().sessions(rack));
                let lives = sessions.iter().any(|one| one.connected && one.pid == pid);
                lives.then(|| format!("{sessions:?}"))
            });
        }
    }

    /// Reads until a replica was read.
    fn share(&mut self) {
        let before = self.there.handle_stats().replica_reads;
        let addr = self.addr;
        wait_until("a replica is read", PATIENCE, || {
            if again(|| self.here.explain(addr)).rack != 0 {
                again(|| self.here.admin().migrate(addr, RackId(0)));
            }
            let said: Result<()> = self.here.admin().replicate(addr, RackId(1));
            // As clients that use the page alike, so that their racks' movers meet.
            for _ in 0..200 {
                again(|| self.there.read_u64(addr));
                again(|| self.here.read_u64(addr));
            }
            let found = self.there.handle_stats().replica_reads > before;
            (!found).then(|| format!("{said:?}"))
        });
    }

    /// Works while `fault` does its worst, in this thread: children end with the thread that
    /// started them.
    fn work(&mut self, fault: impl FnOnce()) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Relaxed: nothing hangs on when it is seen.
                while !over.load(Ordering::Relaxed) {
                    self.step();
                }
            });
            fault();
            over.store(true, Ordering::Relaxed);
        });
        (0..50).for_each(|_| self.step());
    }

    fn end(mut self, stage: Stage, test: &str) {
        let (reads, slowest) = (self.there.handle_stats().replica_reads, self.slowest);
        eprintln!("{test}: {} writes, {reads} reads of replicas, {slowest:?}", self.written);
        assert!(slowest < HELD_UP, "a write took {slowest:?}");
        self.here.admin().recall(self.addr).unwrap();
        let bytes = self.here.page_bytes();
        self.here.free(self.addr, bytes).unwrap();
        assert!(self.there.read_u64(self.addr).is_err(), "it is freed");
        drop(self);
        stage.finish();
    }
}

fn begin(test: &str) -> (Stage, Shared) {
    let seed = seed(test);
    let stage = Stage::with_policy("cost", &[MEMORY, MEMORY]);
    let shared = Shared::new(&stage, seed);
    (stage, shared)
}

/// Work goes on while `fault` comes over the stage, again and again.
fn faults(test: &str, fault: impl Fn(&mut Stage)) {
    let (mut stage, mut shared) = begin(test);
    for _ in 0..FAULTS {
        shared.share();
        let pause = shared.random.millis(1, 50);
        shared.work(|| {
            std::thread::sleep(pause);
            fault(&mut stage);
        });
    }
    shared.end(stage, test);
}

fn killed(rack: usize, test: &str) {
    faults(test, |stage| {
        stage.kill_daemon(rack);
        stage.start_daemon(rack);
    });
}

fn stopped(rack: usize, test: &str) {
    faults(test, |stage| {
        stage.daemon(rack).pause();
        std::thread::sleep(STOPPED);
        stage.daemon(rack).resume();
    });
}

#[test]
fn a_replica_is_read_in_its_rack_and_never_old() {
    let _turn = waiting();
    let (stage, mut shared) = begin("replicas");
    for _ in 0..20 {
        shared.share();
        (0..100).for_each(|_| shared.step());
    }
    shared.here.admin().recall(shared.addr).unwrap();
    let pool = stage.pool(0, Tcp);
    assert_eq!(stage.stats(&pool)[0].replicas.shared_pages, 0);
    shared.end(stage, "replicas");
}

#[test]
fn memory_of_replicas_is_taken_as_they_need_it_and_is_for_whoever_asks() {
    let _turn = waiting();
    let (stage, mut shared) = begin("replica_room");
    let pool = stage.pool(1, Tcp);
    let stats = || stage.stats(&pool)[1].clone();
    assert_eq!(stats().replicas.frames, 0);
    shared.share();
    // The one replica and its directory; the pages of the pool's own tables may have some too.
    assert!((2..=6).contains(&stats().replicas.frames), "{:?}", stats().replicas);
    let (mut handle, mut taken) = (pool.handle().unwrap(), Vec::new());
    let bytes = handle.page_bytes();
    let full = loop {
        match handle.alloc(bytes, Placement::Rack(RackId(1))) {
            Ok(addr) => taken.push(addr),
            Err(error) => break error,
        }
    };
    assert_eq!(full.code(), "full", "{full}");
    let (frames, kept) = (stats().frames, stats().replicas.frames);
    assert!(taken.len() as u64 + kept + 2 >= frames, "{} of {frames}, {kept} kept", taken.len());
    assert!(kept <= 1, "the replicas gave way: {kept}");
    assert_eq!(again(|| shared.there.read_u64(shared.addr)), shared.written);
    taken.into_iter().for_each(|addr| handle.free(addr, bytes).unwrap());
    shared.share();
    shared.here.admin().recall(shared.addr).unwrap();
    wait_until("what keeps nothing is given back", PATIENCE, || {
        let kept = stats().replicas.frames;
        (kept > 0).then(|| format!("{kept} frames"))
    });
    drop((handle, pool));
    shared.end(stage, "replica_room");
}

#[test]
fn a_killed_home_finds_its_replicas_and_waits_for_their_lease() {
    let _turn = waiting();
    killed(0, "killed_home");
}

#[test]
fn replicas_of_a_killed_daemon_are_given_up_and_made_again() {
    let _turn = waiting();
    killed(1, "killed_keeper");
}

#[test]
fn replicas_that_a_killed_writer_left_closed_are_right_again() {
    let _turn = busy();
    let (stage, mut shared) = begin("killed_writer");
    let addr = shared.addr;
    for rack in [0, 1].repeat(2 * FAULTS as usize) {
        shared.share();
        let args = [stage.addr.clone(), rack.to_string(), addr.0.to_string()];
        let args: Vec<String> = args.into_iter().chain([shared.written.to_string()]).collect();
        let mut writer = Proc::start("writer", "writer", &args);
        assert!(writer.ready().is_ok(), "{}", writer.stderr());
        std::thread::sleep(shared.random.millis(1, 50));
        let pid = writer.pid().as_raw_nonzero().get() as u32;
        writer.kill();
        while let Some(line) = writer.line(PATIENCE) {
            shared.written = line[2..].parse().expect("a version");
        }
        // The last write may have been done and not said; no reader goes back behind it.
        let most = shared.written + 1;
        shared.bury(pid);
        for there in [true, false, true] {
            let reader = if there { &mut shared.there } else { &mut shared.here };
            let found = again(|| reader.read_u64(addr));
            assert!((shared.written..=most).contains(&found), "{found}, {}", shared.written);
            shared.written = found;
        }
        (0..20).for_each(|_| shared.step());
    }
    shared.end(stage, "killed_writer");
}

#[test]
fn a_stopped_home_is_overtaken_by_nobody() {
    let _turn = waiting();
    stopped(0, "stopped_home");
}

#[test]
fn writers_wait_for_a_stopped_keeper_no_longer_than_its_lease() {
    let _turn = waiting();
    stopped(1, "stopped_keeper");
}

/// Another process gets a lock of `there`, which says nothing meanwhile: its connection ends with
/// the home's daemon.
fn take_lock(stage: &mut Stage, shared: &mut Shared) -> LockGuard {
    stage.kill_daemon(0);
    stage.start_daemon(0);
    let addr = shared.addr;
    let guard = again(|| shared.here.lock(addr, LockMode::Write, LockOptions::range(64)));
    shared.written += 1;
    let next = shared.written;
    again(|| shared.here.write_u64(addr, next));
    guard
}

#[test]
fn who_has_a_lock_reads_no_replica_and_is_told_when_it_has_lost_it() {
    let _turn = waiting();
    let (mut stage, mut shared) = begin("locked_reader");
    let addr = shared.addr;
    for coupled in [false, true] {
        shared.share();
        let there = &mut shared.there;
        let guard = again(|| match coupled {
            // For writing: what is locked for reading is served from the handle's own copies.
            true => there.lock(addr, LockMode::Write, LockOptions::range(64)),
            false => there.lock(addr, LockMode::Read, LockOptions::line()),
        });
        let before = there.handle_stats().replica_reads;
        (0..100).for_each(|_| assert_eq!(again(|| there.read_u64(addr)), shared.written));
        assert_eq!(there.handle_stats().replica_reads, before, "home says whether it is held");
        let newer = take_lock(&mut stage, &mut shared);
        let there = &mut shared.there;
        assert_eq!(there.read_u64(addr).unwrap_err().code(), "lock-lost");
        assert!(guard.is_lost());
        assert_eq!(again(|| there.read_u64(addr)), shared.written, "told once, it goes on");
        assert_eq!(there.unlock(guard).unwrap_err().code(), "lock-lost");
        shared.here.unlock(newer).unwrap();
    }
    shared.share();
    shared.end(stage, "locked_reader");
}

#[test]
fn who_lost_its_lock_writes_nothing_into_a_shared_page_that_came_to_it() {
    let _turn = waiting();
    let (mut stage, mut shared) = begin("locked_writer");
    let addr = shared.addr;
    for _ in 0..FAULTS {
        shared.share();
        let old = again(|| shared.there.lock(addr, LockMode::Write, LockOptions::range(64)));
        shared.there.write_u64(addr, u64::MAX).unwrap();
        let newer = take_lock(&mut stage, &mut shared);
        shared.here.unlock(newer).unwrap();
        again(|| shared.here.admin().migrate(addr, RackId(1)));
        // The way of its write leads over the old home, which tells it, to its own rack.
        assert_eq!(shared.there.unlock(old).unwrap_err().code(), "writes-lost");
        for reader in [&mut shared.there, &mut shared.here] {
            assert_eq!(again(|| reader.read_u64(addr)), shared.written, "nothing of it was done");
        }
    }
    shared.end(stage, "locked_writer");
}
