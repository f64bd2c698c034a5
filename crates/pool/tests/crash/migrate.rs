//! Movers, daemons and the master are killed or stopped at random moments while pages move and
//! clients work on them: what was acknowledged is found again, words are exact, no page stays shut,
//! and no frame is lost. Real processes; see `tools`.

use crate::tools::ledger::Crew;
use crate::tools::stage::Stage;
use crate::tools::{PATIENCE, Proc, Random, busy, seed, wait_until};
use rackpool::FabricChoice::{Shm, Tcp};
use rackpool::{FabricChoice, GAddr, Handle, Placement, Pool, RackId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Large enough for a worker's records to be one page, which moves.
const MEMORY: &str = "size=96M&pages=256K";
const KILLS: u32 = 21;
/// How long a page may be shut once every process that is needed to open it lives: two leases,
/// tenfold.
const SHUT: Duration = Duration::from_secs(20);

/// Workers, and the pages that movers move under them.
struct Moves {
    stage: Stage,
    pool: Pool,
    handle: Handle,
    crew: Crew,
    random: Random,
    pages: BTreeMap<GAddr, RackId>,
    /// Objects of the test itself, with their patterns, in pages that move as well.
    objects: Vec<(GAddr, u8)>,
    movers: Vec<Option<Proc>>,
    moved: u64,
    slowest_move: Duration,
    refused: BTreeMap<String, u64>,
    slowest_access: Duration,
    started: Instant,
}

/// A size class that no worker uses, and how many objects of it there are.
const OBJECT_BYTES: u64 = 1000;
const OBJECTS: u8 = 60;

const MOVERS: [(u16, FabricChoice); 3] = [(0, Tcp), (1, Tcp), (1, Shm)];

impl Moves {
    fn begin(test: &str) -> Moves {
        let seed = seed(test);
        let stage = Stage::new(&[MEMORY, MEMORY]);
        let pool = Pool::open(stage.options(0, Tcp).request_timeout_ms(60_000)).unwrap();
        let mut handle = pool.handle().unwrap();
        let crew = Crew::new(&stage, &mut handle, &[(0, Tcp), (1, Tcp), (0, Shm)], seed);
        let mut objects = Vec::new();
        for pattern in 0..OBJECTS {
            objects.push((new_object(&mut handle, pattern), pattern));
        }
        let mut moves = Moves {
            stage,
            pool,
            handle,
            crew,
            random: Random::new(seed ^ 1),
            pages: BTreeMap::new(),
            objects,
            movers: MOVERS.map(|_| None).into(),
            moved: 0,
            slowest_move: Duration::ZERO,
            refused: BTreeMap::new(),
            slowest_access: Duration::ZERO,
            started: Instant::now(),
        };
        moves.pages = moves.crew.pages(moves.handle.page_bytes());
        moves.crew.start_all();
        (0..MOVERS.len()).for_each(|index| moves.start_mover(index));
        moves
    }

    fn start_mover(&mut self, index: usize) {
        let (rack, fabric) = MOVERS[index];
        let fabric = if fabric == Shm { "shm" } else { "tcp" };
        let page_bytes = self.handle.page_bytes();
        let of_objects = self.objects.iter().map(|(addr, _)| addr.0 / page_bytes * page_bytes);
        let pages: BTreeSet<u64> = self.pages.keys().map(|addr| addr.0).chain(of_objects).collect();
        let pages: Vec<String> = pages.iter().map(u64::to_string).collect();
        let seed = self.random.next() >> 16;
        let args = [
            self.stage.addr.clone(),
            rack.to_string(),
            fabric.into(),
            seed.to_string(),
            pages.join(","),
        ];
        let mover = Proc::start(&format!("mover {index}"), "mover", &args);
        mover.ready().unwrap_or_else(|error| panic!("mover {index}: {error}"));
        self.movers[index] = Some(mover);
    }

    fn mover(&mut self, index: usize) -> &mut Proc {
        self.movers[index].as_mut().expect("it runs")
    }

    fn take(&mut self, index: usize, line: &str) {
        match line.split_once(' ') {
            Some(("m", micros)) => {
                self.moved += 1;
                let took = Duration::from_micros(micros.parse().expect("a number"));
                self.slowest_move = self.slowest_move.max(took);
            }
            Some(("x", code)) => *self.refused.entry(code.into()).or_default() += 1,
            // The last of its objects has been freed since the mover was told of it.
            Some(("g", page)) => {
                let page = GAddr(page.parse().expect("an address"));
                assert!(!self.pages.contains_key(&page), "mover {index}: {page} is gone");
            }
            _ => assert_eq!(line, "done", "mover {index}"),
        }
    }

    fn listen(&mut self) {
        for index in 0..self.movers.len() {
            while let Some(line) = self.movers[index].as_ref().and_then(Proc::try_line) {
                self.take(index, &line);
            }
        }
    }

    fn work(&mut self, from_ms: u64, to_ms: u64) {
        let pause = self.random.millis(from_ms, to_ms);
        self.crew.work(pause);
        self.listen();
    }

    fn kill_mover(&mut self, index: usize) {
        let mut mover = self.movers[index].take().expect("it runs");
        mover.kill();
        while let Some(line) = mover.line(PATIENCE) {
            self.take(index, &line);
        }
    }

    fn any_mover(&mut self) -> usize {
        self.random.below(MOVERS.len() as u64) as usize
    }

    fn any_rack(&mut self) -> usize {
        self.random.below(2) as usize
    }

    /// Daemons that move pages by another policy.
    fn restart_daemons(&mut self, policy: &'static str) {
        self.stage.migration = policy;
        for rack in 0..2 {
            self.stage.kill_daemon(rack);
            self.stage.start_daemon(rack);
        }
    }

    /// Every page can be read and written soon, whichever process was about to move it.
    fn check_open(&mut self) {
        for page in self.pages.keys() {
            let started = Instant::now();
            // It adds nothing, and has to be executed where the page lives.
            let last = GAddr(page.0 + self.handle.page_bytes() - 8);
            match self.handle.fetch_add(last, 0) {
                Err(error) if !["outcome-unknown", "moving"].contains(&error.code()) => {
                    panic!("{page}: {error}")
                }
                _ => {}
            }
            self.handle.read_u64(last).unwrap_or_else(|error| panic!("{page}: {error}"));
            let took = started.elapsed();
            assert!(took < SHUT, "{page} was shut for {took:?}");
            self.slowest_access = self.slowest_access.max(took);
        }
        self.crew.expect_progress(PATIENCE);
        self.turn_objects_over();
    }

    /// Some objects are looked at and freed where their pages are now, and others come.
    fn turn_objects_over(&mut self) {
        for _ in 0..5 {
            let index = self.random.below(u64::from(OBJECTS)) as usize;
            let (addr, pattern) = self.objects[index];
            free_object(&mut self.handle, addr, pattern);
            self.objects[index] = (new_object(&mut self.handle, pattern), pattern);
        }
    }

    /// All is as it was before, and everything that was acknowledged is there.
    fn end(mut self, test: &str) {
        for index in 0..self.movers.len() {
            self.mover(index).tell("stop");
        }
        for index in 0..self.movers.len() {
            let mut mover = self.movers[index].take().expect("it runs");
            while let Some(line) = mover.line(PATIENCE) {
                self.take(index, &line);
            }
            assert_eq!(mover.exit_code(PATIENCE), Some(0), "mover {index}: {}", mover.stderr());
        }
        self.crew.work(Duration::from_millis(100));
        self.crew.expect_progress(PATIENCE);
        self.crew.stop_all();
        let Moves { stage, pool, mut handle, mut crew, pages, objects, .. } = self;
        for (addr, pattern) in objects {
            free_object(&mut handle, addr, pattern);
        }
        for index in 0..crew.len() {
            crew.check_records(&mut handle, index);
        }
        crew.check_counters(&mut handle);
        for (page, home) in &pages {
            bring_home(&mut handle, *page, *home);
        }
        for index in 0..crew.len() {
            crew.check_records(&mut handle, index);
        }
        crew.check_counters(&mut handle);
        crew.check_memory(&mut handle);
        check_frames(&mut handle);
        crew.report(test);
        eprintln!(
            "{test}: {} moves, the slowest took {:?}; not moved: {:?}; the slowest access to a \
             page took {:?}; {:?} in all",
            self.moved,
            self.slowest_move,
            self.refused,
            self.slowest_access,
            self.started.elapsed()
        );
        assert!(self.moved > u64::from(KILLS), "{} moves", self.moved);
        drop((handle, pool));
        stage.finish();
    }
}

fn new_object(handle: &mut Handle, pattern: u8) -> GAddr {
    let rack = RackId(u16::from(pattern) % 2);
    let addr = handle.alloc(OBJECT_BYTES, Placement::Rack(rack)).unwrap();
    let mut found = [1; OBJECT_BYTES as usize];
    handle.read(addr, &mut found).unwrap();
    assert_eq!(found, [0; OBJECT_BYTES as usize], "new memory is zero");
    handle.write(addr, &[pattern; OBJECT_BYTES as usize]).unwrap();
    addr
}

fn free_object(handle: &mut Handle, addr: GAddr, pattern: u8) {
    let mut found = [0; OBJECT_BYTES as usize];
    handle.read(addr, &mut found).unwrap();
    assert_eq!(found, [pattern; OBJECT_BYTES as usize], "object {addr}");
    handle.free(addr, OBJECT_BYTES).unwrap_or_else(|error| panic!("{addr}: {error}"));
}

fn bring_home(handle: &mut Handle, page: GAddr, home: RackId) {
    wait_until("a page goes home", PATIENCE, || match handle.admin().migrate(page, home) {
        Ok(rack) => {
            assert_eq!(rack, home);
            None
        }
        Err(error) if error.code() == "stays" || error.may_retry() => Some(error.to_string()),
        Err(error) => panic!("{page}: {error}"),
    });
}

/// Every frame that is not free is the home of one page of the directory: nothing is leaked, and
/// nothing is in two places.
fn check_frames(handle: &mut Handle) {
    wait_until("frames and pages agree", PATIENCE, || {
        let stats = handle.admin().pool_stats().unwrap();
        let racks = stats.racks.iter().map(|rack| rack.daemon.as_ref().expect("it answers"));
        let (mut used, mut under_way) = (0, 0);
        for rack in racks {
            used += rack.frames - rack.frames_free;
            under_way += rack.pages_moving + rack.frames_quarantined;
        }
        let pages = stats.master.pages;
        let agree = used == pages && under_way == 0 && stats.master.pages_lost == 0;
        (!agree).then(|| format!("{used} frames, {pages} pages, {under_way} under way"))
    });
}

#[test]
fn a_killed_mover_leaves_its_pages_open_and_whole() {
    let _turn = busy();
    let mut moves = Moves::begin("killed_movers");
    for _ in 0..KILLS {
        moves.work(20, 150);
        let victim = moves.any_mover();
        moves.kill_mover(victim);
        moves.check_open();
        moves.start_mover(victim);
    }
    moves.end("killed_movers");
}

#[test]
fn a_stopped_mover_keeps_no_page_shut_and_harms_nobody_when_it_goes_on() {
    let _turn = busy();
    let mut moves = Moves::begin("stopped_movers");
    let mut under_way = 0;
    for round in 0..KILLS {
        moves.work(20, 100);
        let all = 0..moves.movers.len();
        all.clone().for_each(|index| moves.mover(index).pause());
        let stats = moves.handle.admin().pool_stats().unwrap().racks;
        let moving = stats.iter().map(|rack| rack.daemon.as_ref().unwrap().pages_moving);
        under_way += u64::from(moving.sum::<u64>() > 0);
        moves.check_open();
        if round % 3 == 0 {
            // Longer than a page is shut for any process.
            moves.work(600, 1200);
            moves.check_open();
        }
        all.for_each(|index| moves.mover(index).resume());
    }
    eprintln!("stopped_movers: pages were under way in {under_way} of {KILLS} rounds");
    assert!(under_way > 0, "no mover was stopped in the midst of a move");
    moves.end("stopped_movers");
}

#[test]
fn killed_daemons_of_either_home_come_back_with_the_pages_that_the_directory_names() {
    let _turn = busy();
    let mut moves = Moves::begin("killed_homes");
    for _ in 0..KILLS {
        moves.work(20, 150);
        let rack = moves.any_rack();
        moves.stage.kill_daemon(rack);
        moves.work(0, 100);
        moves.stage.start_daemon(rack);
        moves.check_open();
    }
    moves.end("killed_homes");
}

#[test]
fn killed_daemons_whose_own_movers_are_at_work_lose_no_page() {
    let _turn = busy();
    let mut moves = Moves::begin("killed_at_work");
    moves.crew.pages_wander = true;
    moves.restart_daemons("paper");
    let mut moved = [0; 2];
    for round in 0..KILLS as usize / 2 {
        // Heat has to be counted first.
        moves.work(500, 1500);
        let rack = round % 2;
        let stats = moves.handle.admin().pool_stats().unwrap();
        let daemon = stats.racks[rack].daemon.as_ref().expect("it answers");
        moved[rack] += daemon.moves.moved;
        moves.stage.kill_daemon(rack);
        moves.work(0, 100);
        moves.stage.start_daemon(rack);
        moves.check_open();
    }
    eprintln!("killed_at_work: the daemons that were killed had moved {moved:?} pages");
    assert!(moved.iter().all(|count| *count > 0), "movers that do nothing: {moved:?}");
    // What goes home in the end is to stay there.
    moves.restart_daemons("off");
    moves.check_open();
    moves.end("killed_at_work");
}

#[test]
fn a_killed_master_decides_the_moves_that_it_had_not_stored_when_it_is_back() {
    let _turn = busy();
    let mut moves = Moves::begin("killed_directory");
    for _ in 0..KILLS {
        moves.work(20, 150);
        moves.stage.kill_master();
        moves.work(0, 100);
        moves.stage.start_master();
        moves.check_open();
    }
    moves.end("killed_directory");
}

#[test]
fn whoever_of_a_move_dies_in_whatever_order_its_page_is_in_one_place() {
    let _turn = busy();
    let mut moves = Moves::begin("moves_in_chaos");
    for _ in 0..KILLS {
        moves.work(20, 150);
        let (rack, mover) = (moves.any_rack(), moves.any_mover());
        let both_racks = moves.random.below(4) == 0;
        let master_too = moves.random.below(3) == 0;
        let mover_first = moves.random.below(2) == 0;
        if mover_first {
            moves.kill_mover(mover);
        }
        moves.stage.kill_daemon(rack);
        if both_racks {
            moves.stage.kill_daemon(1 - rack);
        }
        if master_too {
            moves.stage.kill_master();
        }
        if !mover_first {
            moves.kill_mover(mover);
        }
        moves.work(0, 60);
        if master_too {
            moves.stage.start_master();
        }
        moves.stage.start_daemon(rack);
        if both_racks {
            moves.stage.start_daemon(1 - rack);
        }
        moves.check_open();
        moves.start_mover(mover);
    }
    moves.end("moves_in_chaos");
}
