//! Kills of the daemon behind a connection that four threads share: each handle gets its typed
//! outcome, goes on after the restart, and what was acknowledged is found again. The daemons are
//! real processes, the threads are the test's; see `tools`.

use crate::tools::stage::{MEMORY, Stage};
use crate::tools::{PATIENCE, Random, seed, wait_until, waiting};
use rackpool::{
    Connections, Error, FabricChoice, GAddr, Handle, LockMode, LockOptions, Placement, Pool,
    RackId, Result,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const THREADS: usize = 4;
/// Kills with a restart at once, and kills that are longer than a request's patience.
const SHORT: u32 = 10;
const LONG: u32 = 3;
const TIMEOUT_MS: u64 = 1_500;

/// What the threads say of themselves, for the test to look at.
#[derive(Default)]
struct Told {
    /// Calls that were acknowledged, and errors, by thread.
    done: [AtomicU64; THREADS],
    errors: [AtomicU64; THREADS],
    stop: AtomicBool,
}

/// Additions that were acknowledged, and that may have been made.
#[derive(Clone, Copy, Default)]
struct Tally {
    sure: u64,
    maybe: u64,
}

struct Places {
    /// Added to by one operation.
    atomic: GAddr,
    /// Read, and written one more, under its lock.
    locked: GAddr,
}

struct Worker<'a> {
    handle: Handle,
    index: usize,
    told: &'a Told,
    places: &'a Places,
    mine: GAddr,
    /// The last version that was acknowledged.
    version: u64,
    atomic: Tally,
    locked: Tally,
}

impl Worker<'_> {
    /// Counts an outcome; panics at one that must not be.
    fn note<T>(&self, result: Result<T>) -> std::result::Result<T, Error> {
        // Relaxed: counters for the test's eye.
        match &result {
            Ok(_) => self.told.done[self.index].fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                let known = ["peer-dead", "timeout", "outcome-unknown", "lock-lost"];
                let is_known = known.contains(&error.code()) || error.code() == "lock-timeout";
                assert!(is_known, "thread {}: {error}", self.index);
                self.told.errors[self.index].fetch_add(1, Ordering::Relaxed)
            }
        };
        result
    }

    fn run(&mut self) {
        // Relaxed: the flag carries no data.
        while !self.told.stop.load(Ordering::Relaxed) {
            self.write_and_read();
            self.add();
            self.add_under_lock();
        }
        // In peace all is as it was told.
        while self.handle.read_u64(self.mine).is_err() {}
        self.check_record();
    }

    fn write_and_read(&mut self) {
        let bytes = [self.version + 1; 40].map(u64::to_le_bytes).concat();
        let written = self.handle.write(self.mine, &bytes);
        if self.note(written).is_ok() {
            self.version += 1;
        }
        self.check_record();
    }

    fn check_record(&mut self) {
        let mut found = vec![0; 40 * 8];
        let read = self.handle.read(self.mine, &mut found);
        if self.note(read).is_ok() {
            let versions = found.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            for version in versions {
                let is_known = version == self.version || version == self.version + 1;
                assert!(is_known, "{version} instead of {}", self.version);
            }
        }
    }

    fn add(&mut self) {
        let added = self.handle.fetch_add(self.places.atomic, 1);
        match self.note(added) {
            Ok(_) => self.atomic.sure += 1,
            Err(error) if error.code() == "outcome-unknown" => self.atomic.maybe += 1,
            Err(_) => {}
        }
    }

    fn add_under_lock(&mut self) {
        let name = self.places.locked;
        let guard =
            self.handle.lock(name, LockMode::Write, LockOptions::line().within_ms(TIMEOUT_MS));
        let Ok(guard) = self.note(guard) else { return };
        let added = self
            .handle
            .read_u64(name)
            .and_then(|value| self.handle.write_u64(name, value + 1))
            .and_then(|()| self.handle.unlock(guard));
        match self.note(added) {
            Ok(()) => self.locked.sure += 1,
            Err(_) => self.locked.maybe += 1,
        }
    }
}

fn wait_for_all(what: &str, counters: &[AtomicU64; THREADS], each: u64) {
    // Relaxed: as in `note`.
    let now = || counters.each_ref().map(|one| one.load(Ordering::Relaxed));
    let before = now();
    wait_until(what, PATIENCE, || {
        let is_there = now().iter().zip(before).all(|(now, before)| *now >= before + each);
        (!is_there).then(|| format!("{before:?}, then {:?}", now()))
    });
}

fn far(handle: &mut Handle, bytes: u64) -> GAddr {
    handle.alloc(bytes, Placement::Rack(RackId(1))).unwrap()
}

#[test]
fn all_handles_of_a_killed_daemons_connection_learn_of_it_and_go_on() {
    let _turn = waiting();
    let mut random = Random::new(seed("shared_killed"));
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let options = stage.options(0, FabricChoice::Tcp).connections(Connections::Shared);
    let pool = Pool::open(options.request_timeout_ms(TIMEOUT_MS)).unwrap();
    let mut first = pool.handle().unwrap();
    let places = Places { atomic: far(&mut first, 64), locked: far(&mut first, 64) };
    let told = Told::default();
    let tallies = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|index| {
                let mut handle = pool.handle().unwrap();
                let mine = far(&mut handle, 40 * 8);
                let (told, places) = (&told, &places);
                let (atomic, locked) = (Tally::default(), Tally::default());
                scope.spawn(move || {
                    let version = 0;
                    let mut worker =
                        Worker { handle, index, told, places, mine, version, atomic, locked };
                    worker.run();
                    (worker.atomic, worker.locked)
                })
            })
            .collect();
        let test = std::panic::AssertUnwindSafe(|| {
            for kill in 0..SHORT + LONG {
                wait_for_all("all threads work", &told.done, 50);
                std::thread::sleep(random.millis(1, 100));
                stage.kill_daemon(1);
                if kill % 4 == 3 {
                    wait_for_all("all threads learn of the death", &told.errors, 1);
                }
                stage.start_daemon(1);
            }
            wait_for_all("all threads go on", &told.done, 50);
        });
        let outcome = std::panic::catch_unwind(test);
        told.stop.store(true, Ordering::Relaxed);
        let tallies: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        tallies
    });
    let sum = |of: fn(&(Tally, Tally)) -> Tally| {
        let all = tallies.iter().map(of);
        all.fold((0, 0), |(low, high), one| (low + one.sure, high + one.sure + one.maybe))
    };
    let (atomic, locked) = (sum(|one| one.0), sum(|one| one.1));
    let found = [places.atomic, places.locked].map(|addr| first.read_u64(addr).unwrap());
    eprintln!("atomic {} of {atomic:?}, locked {} of {locked:?}", found[0], found[1]);
    assert!((atomic.0..=atomic.1).contains(&found[0]), "{} of {atomic:?}", found[0]);
    assert!((locked.0..=locked.1).contains(&found[1]), "{} of {locked:?}", found[1]);
    assert_eq!(stage.stats(&pool)[1].fabric.connections, 1, "one for all of them again");
    drop((first, pool));
    stage.finish();
}

#[test]
fn handles_with_shared_connections_that_end_leave_no_session_and_no_connection() {
    let _turn = waiting();
    let stage = Stage::new(&[MEMORY, MEMORY]);
    let options = stage.options(0, FabricChoice::Tcp).connections(Connections::Shared);
    let pool = Pool::open(options).unwrap();
    let other = stage.pool(1, FabricChoice::Tcp);
    let mut handles: Vec<Handle> = (0..THREADS).map(|_| pool.handle().unwrap()).collect();
    let name = far(&mut handles[0], 64);
    for handle in &mut handles {
        handle.write(name, &[1; 64]).unwrap();
    }
    let guard = handles[1].lock(name, LockMode::Write, LockOptions::line()).unwrap();
    assert_eq!(stage.stats(&other)[1].remote_sessions, THREADS as u64);
    // Its handle goes, the others stay: so does the lock, for each that asks.
    drop((guard, handles.remove(1)));
    let mut next = other.handle().unwrap();
    let guard = next.lock(name, LockMode::Write, LockOptions::line()).unwrap();
    next.unlock(guard).unwrap();
    for handle in &mut handles {
        assert_eq!(handle.read_u64(name).unwrap(), u64::from_le_bytes([1; 8]));
    }
    drop((handles, pool));
    wait_until("the sessions are over", Duration::from_secs(30), || {
        let daemon = &stage.stats(&other)[1];
        let left = (daemon.remote_sessions, daemon.fabric.connections);
        (left != (0, 0)).then(|| format!("{left:?}"))
    });
    drop((next, other));
    stage.finish();
}
