//! Racks with two daemons, one of which is killed or stopped while clients work: the other one goes
//! on with both shards, what was acknowledged is found again, nothing hangs, and the dead one takes
//! its shard back when it is started again. Real processes; see `tools`.

use crate::tools::ledger::Crew;
use crate::tools::stage::{MEMORY, Stage};
use crate::tools::{PATIENCE, Proc, Random, busy, seed, wait_until, waiting};
use rackpool::FabricChoice::{Shm, Tcp};
use rackpool::monitor::Monitor;
use rackpool::{GAddr, Handle, LockMode, LockOptions, Placement, Pool, RackId, RackState};
use std::time::{Duration, Instant};

/// Rack 0 has two daemons, rack 1 one.
const RACKS: [(&str, u16); 2] = [("size=128M&pages=64K", 2), (MEMORY, 1)];
const KILLS: u32 = 16;
/// How long a client may be held up by a daemon's death: two leases, tenfold.
const HELD_UP: Duration = Duration::from_secs(20);

/// Adds to a word of its own under a lock in one of the shards, and says so.
struct Lockers {
    procs: Vec<Proc>,
    names: Vec<GAddr>,
    acked: Vec<u64>,
    unknown: u64,
}

impl Lockers {
    /// Two for each shard of rack 0, one of them beside it and one far away.
    fn start(stage: &Stage, handle: &mut Handle) -> Lockers {
        let homes = stage.homes.iter().filter(|home| home.number() == 0);
        let names: Vec<GAddr> =
            homes.map(|home| handle.alloc(64, Placement::Rack(*home)).unwrap()).collect();
        let mut procs = Vec::new();
        for name in &names {
            for rack in ["0", "1"] {
                let name = name.0.to_string();
                let args = [stage.addr.clone(), rack.into(), "tcp".into(), name, "reads".into()];
                let proc = Proc::start("counter", "counter", &args);
                proc.ready().unwrap_or_else(|error| panic!("counter: {error}"));
                procs.push(proc);
            }
        }
        let acked = vec![0; names.len()];
        Lockers { procs, names, acked, unknown: 0 }
    }

    fn take(&mut self, index: usize, line: &str) {
        match line.split(' ').next().unwrap_or_default() {
            "c" => self.acked[index / 2] += 1,
            "u" => self.unknown += 1,
            "r" | "done" => {}
            _ => panic!("counter {index}: {line}"),
        }
    }

    fn listen(&mut self) {
        for index in 0..self.procs.len() {
            while let Some(line) = self.procs[index].try_line() {
                self.take(index, &line);
            }
        }
    }

    fn expect_progress(&mut self) {
        self.listen();
        for index in 0..self.procs.len() {
            let line = self.procs[index].line(HELD_UP).expect("it goes on");
            self.take(index, &line);
        }
    }

    fn end(mut self, handle: &mut Handle) {
        self.procs.iter_mut().for_each(|proc| proc.tell("stop"));
        for index in 0..self.procs.len() {
            while let Some(line) = self.procs[index].line(PATIENCE) {
                self.take(index, &line);
            }
        }
        for (name, acked) in self.names.iter().zip(&self.acked) {
            let value = handle.read_u64(*name).unwrap();
            assert!((*acked..=acked + self.unknown).contains(&value), "{value}, {acked} were told");
            handle.free(*name, 64).unwrap();
        }
        eprintln!("locked additions: {:?}, {} unknown", self.acked, self.unknown);
    }
}

/// Workers, lockers and two racks.
struct Load {
    stage: Stage,
    pool: Pool,
    handle: Handle,
    crew: Crew,
    lockers: Lockers,
    random: Random,
    slowest: Duration,
}

impl Load {
    fn begin(test: &str) -> Load {
        let seed = seed(test);
        let stage = Stage::divided(&RACKS);
        let pool = Pool::open(stage.options(0, Tcp).request_timeout_ms(60_000)).unwrap();
        let mut handle = pool.handle().unwrap();
        let places = [(0, Tcp), (0, Tcp), (1, Tcp), (1, Shm)];
        let mut crew = Crew::new(&stage, &mut handle, &places, seed);
        crew.change_jobs(|job| job.reopens = true);
        let lockers = Lockers::start(&stage, &mut handle);
        crew.start_all();
        let random = Random::new(seed ^ 1);
        Load { stage, pool, handle, crew, lockers, random, slowest: Duration::ZERO }
    }

    fn work(&mut self, from_ms: u64, to_ms: u64) {
        let pause = self.random.millis(from_ms, to_ms);
        self.crew.work(pause);
        self.lockers.listen();
    }

    /// Every worker goes on, and each shard of rack 0 answers, allocates and frees.
    fn expect_service(&mut self) {
        let started = Instant::now();
        for home in self.stage.homes.clone() {
            let addr = self.handle.alloc(128 << 10, Placement::Rack(home)).unwrap();
            self.handle.write(addr, b"served").unwrap();
            let at = self.handle.explain(addr).unwrap();
            assert_eq!((at.rack, at.shard), (home.number(), home.shard()));
            self.handle.free(addr, 128 << 10).unwrap();
        }
        self.slowest = self.slowest.max(started.elapsed());
        assert!(started.elapsed() < HELD_UP, "{:?} without service", started.elapsed());
        self.crew.expect_progress(HELD_UP);
        self.lockers.expect_progress();
    }

    fn end(self, test: &str) {
        let Load { stage, pool, mut handle, mut crew, lockers, slowest, .. } = self;
        crew.work(Duration::from_millis(200));
        crew.stop_all();
        lockers.end(&mut handle);
        for index in 0..crew.len() {
            crew.check_records(&mut handle, index);
        }
        crew.check_counters(&mut handle);
        crew.check_memory(&mut handle);
        crew.report(test);
        eprintln!("{test}: all shards served {slowest:?} after a death at the latest");
        drop((handle, pool));
        stage.finish();
    }
}

#[test]
fn one_daemon_of_two_dies_and_the_other_serves_both_shards_until_it_is_back() {
    let _turn = busy();
    let mut load = Load::begin("killed_shards");
    for _ in 0..KILLS {
        load.work(20, 200);
        let victim = load.random.below(2) as usize;
        load.stage.kill_daemon(victim);
        load.expect_service();
        load.work(0, 100);
        if load.random.below(2) == 0 {
            // The survivor as well, with both shards: the daemon that starts first has both again.
            load.stage.kill_daemon(1 - victim);
            load.work(0, 50);
            let first = load.random.below(2) as usize;
            load.stage.start_daemon(first);
            load.expect_service();
            load.stage.start_daemon(1 - first);
        } else {
            load.stage.start_daemon(victim);
        }
        load.expect_service();
    }
    load.end("killed_shards");
}

#[test]
fn a_daemon_that_dies_while_its_shard_changes_hands_leaves_it_to_the_other() {
    let _turn = busy();
    let mut load = Load::begin("handed_over");
    for _ in 0..KILLS {
        load.work(20, 100);
        let victim = load.random.below(2) as usize;
        load.stage.kill_daemon(victim);
        load.work(0, 30);
        // It takes its shard back, or not yet, and dies.
        for _ in 0..1 + load.random.below(2) {
            let memory = load.stage.memory[victim].clone();
            let mut early = load.stage.spawn_daemon(victim, &memory);
            load.work(0, 60);
            early.kill();
        }
        load.expect_service();
        load.stage.start_daemon(victim);
        load.expect_service();
    }
    load.end("handed_over");
}

#[test]
fn a_stopped_daemon_keeps_its_shard_and_the_other_shard_goes_on() {
    let _turn = waiting();
    let mut stage = Stage::divided(&RACKS[..1]);
    let open = |shard| Pool::open(stage.options(0, Tcp).shard(shard).request_timeout_ms(20_000));
    let pools = [open(0).unwrap(), open(1).unwrap()];
    let mut handles = pools.clone().map(|pool| pool.handle().unwrap());
    let addrs = [0, 1].map(|shard| {
        let addr = handles[shard].alloc(64 << 10, Placement::Local).unwrap();
        assert_eq!(usize::from(handles[shard].explain(addr).unwrap().shard), shard);
        handles[shard].write_u64(addr, 7).unwrap();
        // Both know both pages.
        handles[1 - shard].read_u64(addr).unwrap();
        addr
    });
    stage.daemon(0).pause();
    std::thread::sleep(Duration::from_millis(2_500));
    // More than two leases later: pages with a known place are read and written by each handle.
    for handle in &mut handles {
        for addr in addrs {
            handle.fetch_add(addr, 1).unwrap();
        }
    }
    // The other shard does everything.
    let more = handles[1].alloc(128 << 10, Placement::Local).unwrap();
    handles[1].write(more, b"goes on").unwrap();
    let guard = handles[1].lock(more, LockMode::Write, LockOptions::line()).unwrap();
    handles[1].unlock(guard).unwrap();
    handles[1].free(more, 128 << 10).unwrap();
    let survivor = stage.daemons[1].as_ref().unwrap();
    assert!(!survivor.stderr().contains("takes it over"), "its owner lives: {}", survivor.stderr());
    stage.daemon(0).resume();
    let own = handles[0].alloc(64 << 10, Placement::Local).unwrap();
    assert_eq!(handles[0].explain(own).unwrap().shard, 0);
    assert_eq!(handles[0].read_u64(addrs[0]).unwrap(), 9);
    handles[0].free(own, 64 << 10).unwrap();
    drop((handles, pools));
    stage.finish();
}

#[test]
fn the_other_daemon_takes_over_at_once_and_gives_back_in_order() {
    let _turn = waiting();
    let mut stage = Stage::divided(&RACKS[..1]);
    let pool = Pool::open(stage.options(0, Tcp).shard(0)).unwrap();
    let mut handle = pool.handle().unwrap();
    let addr = handle.alloc(64, Placement::Local).unwrap();
    handle.write_u64(addr, 11).unwrap();
    let guard = handle.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
    let token = guard.token();
    let killed = Instant::now();
    stage.kill_daemon(0);
    // A first touch and an allocation, by a client that never saw the dead daemon.
    let other = stage.pool(0, Tcp);
    assert_eq!(other.read_u64(addr).unwrap(), 11);
    eprintln!("joined and read {:?} after the death", killed.elapsed());
    assert!(killed.elapsed() < HELD_UP);
    stage.daemon(1).wait_stderr("rack 0.0: served here");
    let infos = other.stats().unwrap().racks;
    assert!(infos.len() == 2 && infos.iter().all(|rack| rack.alive && rack.daemon.is_some()));
    // The lock was in the region.
    handle.check_lock(&guard).unwrap();
    handle.unlock(guard).unwrap();
    stage.start_daemon(0);
    stage.daemon(1).wait_stderr("rack 0.0: its own daemon is back");
    let guard = handle.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
    assert!(guard.token() > token);
    handle.unlock(guard).unwrap();
    handle.free(addr, 64).unwrap();
    drop((handle, pool, other));
    stage.finish();
}

#[test]
fn a_shard_that_comes_back_finds_its_names_free_as_soon_as_it_has_its_lock() {
    let _turn = waiting();
    let mut stage = Stage::divided(&RACKS[..1]);
    // Clients at the shard, so that letting go of it takes its time.
    let pool = Pool::open(stage.options(0, Tcp).shard(0)).unwrap();
    let handles: Vec<_> = (0..8).map(|_| pool.handle().unwrap()).collect();
    for round in 1..=20 {
        stage.kill_daemon(0);
        wait_until("it is taken over", PATIENCE, || {
            let said = stage.daemons[1].as_ref().unwrap().stderr();
            (said.matches("rack 0.0: served here").count() < round).then_some(said)
        });
        stage.start_daemon(0);
    }
    drop((handles, pool));
    stage.finish();
}

#[test]
fn a_divided_rack_is_drained_as_a_whole_and_both_daemons_end() {
    let _turn = waiting();
    let mut stage = Stage::divided(&RACKS);
    let pool = stage.pool(1, Tcp);
    let mut operator = Monitor::new(vec![stage.addr.clone()], 60_000).unwrap();
    let pages: Vec<GAddr> = (0..40)
        .map(|index| pool.alloc(64 << 10, Placement::Rack(stage.homes[index % 2])).unwrap())
        .collect();
    for page in &pages {
        pool.write(*page, &page.0.to_le_bytes()).unwrap();
    }
    assert_eq!(operator.drain(RackId(0)), Ok(RackState::Draining));
    // In the midst of it one of the daemons dies; the other one drains for it.
    stage.kill_daemon(0);
    wait_until("both shards leave", PATIENCE, || {
        let members = operator.members().unwrap().into_iter();
        let shards = members.filter(|member| member.info.rack.number() == 0);
        let left: Vec<_> = shards.map(|member| (member.standing, member.pages)).collect();
        (left != [(RackState::Left, 0); 2]).then(|| format!("{left:?}"))
    });
    let survivor = stage.daemon(1);
    assert_eq!(survivor.exit_code(PATIENCE), Some(0), "{}", survivor.stderr());
    survivor.wait_stderr("rack 0.0 has left the pool");
    survivor.wait_stderr("rack 0.1 has left the pool");
    stage.daemons[1] = None;
    for page in &pages {
        assert_eq!(pool.read_u64(*page), Ok(page.0));
        assert_eq!(pool.handle().unwrap().explain(*page).unwrap().rack, 1);
        pool.free(*page, 64 << 10).unwrap();
    }
    // It joins again with new memory, both shards.
    stage.remove_region(0);
    stage.start_daemon(0);
    stage.start_daemon(1);
    let again = pool.alloc(64 << 10, Placement::Rack(stage.homes[0])).unwrap();
    pool.free(again, 64 << 10).unwrap();
    drop((pool, operator));
    stage.finish();
}

#[test]
fn memory_that_is_divided_otherwise_is_refused_and_nothing_is_formatted() {
    let _turn = waiting();
    let mut stage = Stage::divided(&RACKS);
    let pool = stage.pool(0, Tcp);
    let addr = pool.alloc(64 << 10, Placement::Rack(stage.homes[1])).unwrap();
    pool.write(addr, b"still here").unwrap();
    let refused = |stage: &Stage, rack: u16, shard: u16, shards: u16, memory: usize| {
        let home = rackpool::RackId::sharded(rack, shard, shards).unwrap();
        let mut proc = stage.spawn(home, &stage.memory[memory]);
        let error = proc.ready().unwrap_err();
        assert_eq!(proc.exit_code(PATIENCE), Some(1));
        error
    };
    for shards in [1, 3, 4] {
        let error = refused(&stage, 0, 0, shards, 0);
        assert!(error.contains("bad-region"), "{error}");
        assert!(error.contains("is one of 2 parts"), "{error}");
    }
    let error = refused(&stage, 1, 1, 2, 2);
    assert!(error.contains("is one of 1 parts"), "{error}");
    // The shard's own daemon lives.
    let error = refused(&stage, 0, 1, 2, 0);
    assert!(error.contains("denied"), "{error}");
    // Another memory, but the master knows how the rack is divided.
    let elsewhere = stage.memory[0].replace("-rack0", "-other");
    let mut proc =
        stage.spawn(rackpool::RackId::sharded(0, 0, 3).unwrap(), &elsewhere.replace("128M", "96M"));
    let error = proc.ready().unwrap_err();
    assert!(error.contains("2 shards"), "{error}");
    assert_eq!(proc.exit_code(PATIENCE), Some(1));
    stage.kill_daemon(1);
    stage.start_daemon(1);
    let mut found = [0; 10];
    pool.read(addr, &mut found).unwrap();
    assert_eq!(&found, b"still here");
    drop(pool);
    stage.finish();
}
