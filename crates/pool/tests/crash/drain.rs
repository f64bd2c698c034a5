//! Racks join, are drained and leave under load, while the draining daemon, the daemons that take
//! its pages, and the master are killed: the drain goes on after each restart, nothing that was
//! acknowledged is lost, and no call hangs. Real servers; the load is threads of the test. See
//! `tools`.

use crate::tools::stage::Stage;
use crate::tools::{PATIENCE, Random, busy, seed, wait_until};
use rackpool::FabricChoice::{Shm, Tcp};
use rackpool::monitor::Monitor;
use rackpool::{FabricChoice, GAddr, Handle, Placement, Pool, RackId, RackState, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MEMORY: &str = "size=64M&pages=64K";
const PAGE: u64 = 64 << 10;
/// The rack that is drained.
const RACK: u16 = 2;
/// Pages that are in it before each drain.
const PAGES: u64 = 160;
const KILLS: u32 = 4;
/// Two leases, tenfold: how long a call may take while servers are away for a moment.
const CALL_MAX: Duration = Duration::from_secs(20);
const SLOT: u64 = 512;

/// What one thread of load has done.
#[derive(Debug, Default)]
struct Done {
    reads: u64,
    writes: u64,
    adds: u64,
    unknown: u64,
    allocs: u64,
    slowest: Duration,
    refused: BTreeMap<&'static str, u64>,
}

/// A thread of load: writes and reads slots of pages of its own, adds to a counter of all, and
/// allocates and frees wherever there is room.
struct Load {
    handle: Handle,
    random: Random,
    pages: Vec<GAddr>,
    versions: BTreeMap<u64, u64>,
    counter: GAddr,
    stop: Arc<AtomicBool>,
    rests: Arc<AtomicBool>,
    done: Done,
}

fn pattern(addr: u64, version: u64) -> Vec<u8> {
    let mut random = Random::new(addr ^ version << 40);
    (0..SLOT / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

impl Load {
    fn timed<T>(&mut self, call: impl FnOnce(&mut Handle) -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let result = call(&mut self.handle);
        self.done.slowest = self.done.slowest.max(started.elapsed());
        if let Err(error) = &result {
            *self.done.refused.entry(error.code()).or_default() += 1;
        }
        result
    }

    fn slot(&mut self) -> GAddr {
        let page = self.pages[self.random.below(self.pages.len() as u64) as usize];
        GAddr(page.0 + SLOT * self.random.below(PAGE / SLOT))
    }

    fn expected(&self, slot: GAddr) -> Vec<u8> {
        match self.versions.get(&slot.0) {
            Some(version) => pattern(slot.0, *version),
            None => vec![0; SLOT as usize],
        }
    }

    fn check(&mut self, slot: GAddr) {
        let mut found = vec![0; SLOT as usize];
        let read = self.timed(|handle| handle.read(slot, &mut found));
        read.unwrap_or_else(|error| panic!("{slot}: {error}"));
        assert!(found == self.expected(slot), "{slot} is not as it was acknowledged");
        self.done.reads += 1;
    }

    fn step(&mut self) {
        let slot = self.slot();
        match self.random.below(10) {
            0..4 => self.check(slot),
            4..7 => {
                let version = self.versions.get(&slot.0).copied().unwrap_or(0) + 1;
                let bytes = pattern(slot.0, version);
                let written = self.timed(|handle| handle.write(slot, &bytes));
                written.unwrap_or_else(|error| panic!("{slot}: {error}"));
                self.versions.insert(slot.0, version);
                self.done.writes += 1;
            }
            7 | 8 => {
                let counter = self.counter;
                match self.timed(|handle| handle.fetch_add(counter, 1)) {
                    Ok(_) => self.done.adds += 1,
                    Err(error) if error.code() == "outcome-unknown" => self.done.unknown += 1,
                    Err(error) if error.code() == "moving" => {}
                    Err(error) => panic!("a counter: {error}"),
                }
            }
            _ => self.alloc(),
        }
    }

    fn alloc(&mut self) {
        let bytes = [100, 5000, 2 * PAGE][self.random.below(3) as usize];
        match self.timed(|handle| handle.alloc(bytes, Placement::Spread)) {
            Ok(addr) => {
                let mut found = vec![1; bytes as usize];
                let read = self.timed(|handle| handle.read(addr, &mut found));
                read.unwrap_or_else(|error| panic!("{addr}: {error}"));
                assert!(found.iter().all(|byte| *byte == 0), "new memory is zero");
                match self.timed(|handle| handle.free(addr, bytes)) {
                    Err(error) if error.code() != "outcome-unknown" => panic!("{addr}: {error}"),
                    _ => {}
                }
                self.done.allocs += 1;
            }
            Err(error) => match error.code() {
                "outcome-unknown" | "draining" => {}
                // A picked rack that leaves or dies meanwhile.
                "no-such-rack" | "peer-dead" | "full" => {}
                _ => panic!("an allocation: {error}"),
            },
        }
    }

    fn run(mut self) -> Load {
        // Relaxed: nothing else hangs on either; the join orders what was done.
        while !self.stop.load(Ordering::Relaxed) {
            match self.rests.load(Ordering::Relaxed) {
                true => std::thread::sleep(Duration::from_millis(1)),
                false => self.step(),
            }
        }
        self
    }
}

struct Scene {
    stage: Stage,
    pool: Pool,
    handle: Handle,
    operator: Monitor,
    random: Random,
    pages: Vec<GAddr>,
    counter: GAddr,
    stop: Arc<AtomicBool>,
    rests: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Load>>,
    drains: u32,
    midway: u32,
    slowest_drain: Duration,
}

const LOADS: [(u16, FabricChoice); 3] = [(0, Tcp), (1, Tcp), (1, Shm)];

impl Scene {
    fn begin(test: &str) -> Scene {
        let seed = seed(test);
        let stage = Stage::new(&[MEMORY, MEMORY, MEMORY]);
        let pool = Pool::open(stage.options(0, Tcp).request_timeout_ms(60_000)).unwrap();
        let mut handle = pool.handle().unwrap();
        let operator = Monitor::new(vec![stage.addr.clone()], 60_000).unwrap();
        let there = Placement::Rack(RackId(RACK));
        let pages = (0..PAGES).map(|_| handle.alloc(PAGE, there).unwrap()).collect();
        let counter = handle.alloc(PAGE, there).unwrap();
        let mut scene = Scene {
            stage,
            pool,
            handle,
            operator,
            random: Random::new(seed),
            pages,
            counter,
            stop: Arc::default(),
            rests: Arc::default(),
            threads: Vec::new(),
            drains: 0,
            midway: 0,
            slowest_drain: Duration::ZERO,
        };
        scene.start_load();
        scene
    }

    fn start_load(&mut self) {
        let each = self.pages.len().div_ceil(LOADS.len());
        for (index, (rack, fabric)) in LOADS.into_iter().enumerate() {
            let options = self.stage.options(rack, fabric).request_timeout_ms(60_000);
            let load = Load {
                handle: Pool::open(options).unwrap().handle().unwrap(),
                random: Random::new(self.random.next()),
                pages: self.pages.iter().copied().skip(index * each).take(each).collect(),
                versions: BTreeMap::new(),
                counter: self.counter,
                stop: Arc::clone(&self.stop),
                rests: Arc::clone(&self.rests),
                done: Done::default(),
            };
            self.threads.push(std::thread::spawn(|| load.run()));
        }
    }

    fn pause(&mut self, from_ms: u64, to_ms: u64) {
        let pause = self.random.millis(from_ms, to_ms);
        std::thread::sleep(pause);
        assert!(self.threads.iter().all(|thread| !thread.is_finished()), "a thread has ended");
    }

    fn standing(&mut self) -> (RackState, u64) {
        let members = self.operator.members().unwrap();
        let found = members.iter().find(|member| member.info.rack == RackId(RACK));
        let found = found.expect("it joined once");
        (found.standing, found.pages)
    }

    fn drain(&mut self) {
        self.drains += 1;
        let standing = self.operator.drain(RackId(RACK)).unwrap();
        assert!(matches!(standing, RackState::Draining | RackState::Left), "{standing:?}");
    }

    /// Waits until some of the pages have gone, or the rack has.
    fn wait_midway(&mut self) {
        let goal = PAGES / 8 * self.random.below(8);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (standing, pages) = self.standing();
            if standing == RackState::Left || pages <= PAGES - goal {
                self.midway += u32::from(standing == RackState::Draining && pages > 0);
                return;
            }
            assert!(Instant::now() < deadline, "{pages} pages stay");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the rack has left and its daemon has ended by itself, with 0.
    fn wait_left(&mut self) {
        let started = Instant::now();
        wait_until("the rack leaves", PATIENCE, || {
            let (standing, pages) = self.standing();
            (standing != RackState::Left).then(|| format!("{standing:?}, {pages} pages"))
        });
        self.slowest_drain = self.slowest_drain.max(started.elapsed());
        let daemon = self.stage.daemon(RACK.into());
        assert_eq!(daemon.exit_code(PATIENCE), Some(0), "{}", daemon.stderr());
        daemon.wait_stderr("has left the pool");
        assert!(self.stage.region_path(RACK.into()).exists(), "it is not the daemon's to remove");
    }

    /// The rack joins with a new region under load, and takes its pages again, for which the load
    /// rests: moving them one by one against it took most of the test's time.
    fn rejoin(&mut self) {
        self.stage.remove_region(RACK.into());
        self.stage.start_daemon(RACK.into());
        // Relaxed: nothing else hangs on it.
        self.rests.store(true, Ordering::Relaxed);
        for page in self.pages.clone().into_iter().chain([self.counter]) {
            let handle = &mut self.handle;
            wait_until("a page goes back", PATIENCE, || {
                match handle.admin().migrate(page, RackId(RACK)) {
                    Ok(_) => None,
                    Err(error) if error.code() == "stays" || error.may_retry() => {
                        Some(error.to_string())
                    }
                    Err(error) => panic!("{page}: {error}"),
                }
            });
        }
        self.rests.store(false, Ordering::Relaxed);
    }

    fn end(mut self, test: &str) {
        self.pause(100, 200);
        // Relaxed: nothing else hangs on it.
        self.stop.store(true, Ordering::Relaxed);
        let (mut adds, mut unknown) = (0, 0);
        let mut slowest = Duration::ZERO;
        for thread in std::mem::take(&mut self.threads) {
            let mut load = thread.join().expect("it met what it expected");
            let slots: Vec<u64> = load.versions.keys().copied().collect();
            slots.into_iter().for_each(|slot| load.check(GAddr(slot)));
            eprintln!("{test}: {:?}", load.done);
            adds += load.done.adds;
            unknown += load.done.unknown;
            slowest = slowest.max(load.done.slowest);
            assert!(load.done.writes > 50 && load.done.adds > 20, "it worked");
        }
        let count = self.handle.read_u64(self.counter).unwrap();
        assert!((adds..=adds + unknown).contains(&count), "{count} of {adds} and {unknown}");
        eprintln!(
            "{test}: {} drains, killed midway in {}; the slowest took {:?} from the last kill; the \
             slowest call took {slowest:?}",
            self.drains, self.midway, self.slowest_drain
        );
        assert!(slowest < CALL_MAX, "a call took {slowest:?}");
        assert!(self.midway > 0, "no drain was met midway");
        for page in self.pages.iter().chain([&self.counter]) {
            self.handle.free(*page, PAGE).unwrap();
        }
        let Scene { stage, pool, handle, operator, .. } = self;
        drop((handle, pool, operator));
        stage.finish();
    }
}

#[test]
fn a_killed_draining_daemon_goes_on_and_leaves_with_nothing_lost() {
    let _turn = busy();
    let mut scene = Scene::begin("killed_draining");
    for _ in 0..KILLS {
        scene.pause(20, 100);
        scene.drain();
        for _ in 0..2 {
            scene.wait_midway();
            scene.stage.kill_daemon(RACK.into());
            scene.pause(1, 100);
            scene.stage.start_daemon(RACK.into());
        }
        scene.wait_left();
        scene.rejoin();
    }
    scene.end("killed_draining");
}

#[test]
fn killed_racks_that_take_the_pages_lose_none_of_them() {
    let _turn = busy();
    let mut scene = Scene::begin("killed_takers");
    for round in 0..KILLS as usize {
        scene.pause(20, 100);
        scene.drain();
        scene.wait_midway();
        scene.stage.kill_daemon(round % 2);
        scene.pause(1, 300);
        scene.stage.start_daemon(round % 2);
        scene.wait_left();
        scene.rejoin();
    }
    scene.end("killed_takers");
}

#[test]
fn a_killed_master_remembers_who_drains_and_what_has_moved() {
    let _turn = busy();
    let mut scene = Scene::begin("killed_master_draining");
    for _ in 0..KILLS {
        scene.pause(20, 100);
        scene.drain();
        scene.wait_midway();
        scene.stage.kill_master();
        scene.pause(1, 300);
        scene.stage.start_master();
        scene.wait_left();
        scene.rejoin();
    }
    scene.end("killed_master_draining");
}
