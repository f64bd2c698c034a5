//! A rack that holds more than its memory: pages go to a file on an SSD and come back, while the
//! daemon and the master are killed. Real processes; see `tools`.

use crate::tools::stage::Stage;
use crate::tools::{PATIENCE, Random, busy, seed, wait_until};
use rackpool::FabricChoice::Tcp;
use rackpool::monitor::Monitor;
use rackpool::{GAddr, Handle, Placement, RackId, RackState, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A run of pages with words that say where they are, and how often they were written.
struct Filled {
    addr: GAddr,
    bytes: u64,
    version: u64,
}

impl Filled {
    fn content(&self) -> Vec<u8> {
        let words = (self.addr.0..self.addr.0 + self.bytes).step_by(8);
        words.flat_map(|at| (at ^ self.version << 48).to_le_bytes()).collect()
    }

    fn write(&self, handle: &mut Handle) {
        until_served(|| handle.write(self.addr, &self.content()));
    }

    fn check(&self, handle: &mut Handle) {
        let mut found = vec![0; self.bytes as usize];
        until_served(|| handle.read(self.addr, &mut found));
        let wrong = found.iter().zip(self.content()).filter(|(is, was)| **is != *was).count();
        assert_eq!(wrong, 0, "bytes of {} that are not what was written", self.addr);
    }
}

/// Calls until the servers are there again.
fn until_served<T>(mut call: impl FnMut() -> Result<T>) -> T {
    let began = Instant::now();
    loop {
        match call() {
            Ok(done) => return done,
            Err(error) => {
                let may_pass = ["peer-dead", "timeout", "moving", "busy"].contains(&error.code());
                assert!(may_pass && began.elapsed() < PATIENCE, "{error}");
            }
        }
    }
}

/// Runs of pages until there are so many bytes.
fn fill(handle: &mut Handle, bytes: u64, random: &mut Random) -> Vec<Filled> {
    let page_bytes = handle.page_bytes();
    let (mut filled, mut sum) = (Vec::new(), 0);
    while sum < bytes {
        let bytes = page_bytes * (1 + random.below(5));
        let addr = handle.alloc(bytes, Placement::Local).unwrap();
        let one = Filled { addr, bytes, version: 1 };
        one.write(handle);
        filled.push(one);
        sum += bytes;
    }
    filled
}

fn free_all(handle: &mut Handle, filled: Vec<Filled>) {
    for one in filled {
        one.check(handle);
        until_served(|| handle.free(one.addr, one.bytes));
    }
}

#[test]
fn a_rack_with_a_spill_file_holds_six_times_its_memory_also_after_kill_9() {
    let _turn = busy();
    let mut random = Random::new(seed("spill_capacity"));
    // `cargo xtask soak spill`: 256 MiB of memory, 2 GiB of slots.
    let is_full = std::env::var("RACKPOOL_SPILL").is_ok_and(|size| size == "full");
    let (memory, size, mib) =
        if is_full { ("size=256M", "2G", 256) } else { ("size=32M", "256M", 32) };
    let mut stage = Stage::with_spill(&[memory], size);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let began = Instant::now();
    let filled = fill(&mut handle, (6 * mib) << 20, &mut random);
    let filling = began.elapsed();
    let stats = &stage.stats(&pool)[0];
    assert_eq!((stats.frames, stats.page_bytes), (9 * mib / 2, 2 << 20));
    // A page on its way counts for neither place.
    let held_bytes = stats.allocated_bytes + stats.pages_moving * stats.page_bytes;
    assert!(held_bytes >= (6 * mib) << 20, "{stats:?}");
    stage.kill_daemon(0);
    stage.start_daemon(0);
    let began = Instant::now();
    filled.iter().for_each(|one| one.check(&mut handle));
    eprintln!("{} MiB: filled in {filling:?}, read in {:?}", 6 * mib, began.elapsed());
    drop((filled, handle, pool));
    stage.finish();
}

#[test]
fn a_rack_is_drained_of_what_is_in_its_spill_file_too() {
    let _turn = busy();
    let mut random = Random::new(seed("spill_drain"));
    let memory = ["size=1M&pages=64K", "size=16M&pages=64K"];
    let mut stage = Stage::with_spill(&memory, "8M");
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let filled = fill(&mut handle, 4 << 20, &mut random);
    drop((handle, pool));
    let mut operator = Monitor::new(vec![stage.addr.clone()], 60_000).unwrap();
    operator.drain(RackId(0)).unwrap();
    wait_until("the rack leaves", PATIENCE, || {
        let members = operator.members().unwrap();
        let first = members.iter().find(|member| member.info.rack == RackId(0)).unwrap();
        (first.standing != RackState::Left).then(|| format!("{} pages", first.pages))
    });
    assert_eq!(stage.daemon(0).exit_code(PATIENCE), Some(0), "{}", stage.daemon(0).stderr());
    stage.kill_daemon(0);
    let pool = stage.pool(1, Tcp);
    let mut handle = pool.handle().unwrap();
    free_all(&mut handle, filled);
    drop((handle, pool));
    stage.finish();
}

#[test]
fn killed_daemons_and_masters_lose_no_page_between_memory_and_the_spill_file() {
    const KILLS: u32 = 12;
    let _turn = busy();
    let mut random = Random::new(seed("spill_kills"));
    let mut stage = Stage::with_spill(&["size=2M&pages=64K"], "16M");
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let mut filled = fill(&mut handle, 8 << 20, &mut random);
    drop(handle);
    let is_over = AtomicBool::new(false);
    let mut worker = random.clone();
    let (reads, mut filled) = std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let mut handle = pool.handle().unwrap();
            let mut reads = 0_u32;
            // Relaxed: nothing else is told by it.
            while !is_over.load(Ordering::Relaxed) {
                let index = worker.below(filled.len() as u64) as usize;
                filled[index].check(&mut handle);
                if worker.below(4) == 0 {
                    filled[index].version += 1;
                    filled[index].write(&mut handle);
                }
                reads += 1;
            }
            (reads, filled)
        });
        for kill in 0..KILLS {
            std::thread::sleep(random.millis(50, 400));
            let with_master = kill % 3 == 2;
            stage.kill_daemon(0);
            if with_master {
                stage.kill_master();
                stage.start_master();
            }
            stage.start_daemon(0);
        }
        is_over.store(true, Ordering::Relaxed);
        work.join().expect("what was written is read")
    });
    eprintln!("{reads} reads with {KILLS} kills");
    let mut handle = pool.handle().unwrap();
    let rest = filled.split_off(filled.len() / 2);
    free_all(&mut handle, rest);
    // What they had can be used again.
    let more = fill(&mut handle, 2 << 20, &mut random);
    free_all(&mut handle, filled);
    free_all(&mut handle, more);
    drop((handle, pool));
    stage.finish();
}

#[test]
fn memory_that_persists_has_a_spill_file_too() {
    let _turn = busy();
    let mut random = Random::new(seed("spill_pmem"));
    let mut stage = Stage::empty("/dev/shm", &[""]);
    stage.spill = Some("16M");
    stage.memory[0] = format!("pmem:{}?size=2M&pages=64K", stage.pmem_path().display());
    stage.start_master();
    stage.start_daemon(0);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let filled = fill(&mut handle, 8 << 20, &mut random);
    for _ in 0..2 {
        stage.kill_daemon(0);
        stage.start_daemon(0);
        filled.iter().for_each(|one| one.check(&mut handle));
    }
    until_served(|| handle.persist(filled[0].addr, filled[0].bytes));
    free_all(&mut handle, filled);
    drop((handle, pool));
    stage.finish();
}

#[test]
fn a_region_and_its_spill_file_belong_together() {
    let _turn = busy();
    let mut stage = Stage::with_spill(&["size=1M&pages=64K"], "4M");
    stage.kill_daemon(0);
    for other in [None, Some("8M")] {
        let size = std::mem::replace(&mut stage.spill, other);
        let refused = stage.spawn_daemon(0, &stage.memory[0]).ready().unwrap_err();
        assert!(refused.contains("spill file"), "{other:?}: {refused}");
        stage.spill = size;
    }
    let path = stage.spill_path();
    let away = path.with_extension("away");
    std::fs::rename(&path, &away).unwrap();
    let refused = stage.spawn_daemon(0, &stage.memory[0]).ready().unwrap_err();
    assert!(refused.contains("it is gone"), "{refused}");
    std::fs::rename(&away, &path).unwrap();
    stage.start_daemon(0);
    stage.finish();
}

#[test]
fn after_a_reboot_pages_in_the_spill_file_are_back_and_those_in_memory_are_lost() {
    const PAGES: u64 = 100;
    let _turn = busy();
    let memory = ["size=2M&pages=64K", "size=1M&pages=64K"];
    let mut stage = Stage::with_spill(&memory, "16M");
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let bytes = handle.page_bytes();
    let page = |handle: &mut Handle| {
        let addr = handle.alloc(bytes, Placement::Local).unwrap();
        let one = Filled { addr, bytes, version: 1 };
        one.write(handle);
        one
    };
    let filled: Vec<Filled> = (0..PAGES).map(|_| page(&mut handle)).collect();
    stage.kill_daemon(0);
    stage.remove_region(0);
    stage.start_daemon(0);
    drop((handle, pool));
    // From another rack, which hears of each page what is final.
    let pool = stage.pool(1, Tcp);
    let mut handle = pool.handle().unwrap();
    let (mut lost, mut back) = (0, Vec::new());
    for one in &filled {
        match handle.read(one.addr, &mut [0; 8]) {
            Err(error) if error.code() == "lost" => lost += 1,
            _ => back.push(one),
        }
    }
    back.iter().for_each(|one| one.check(&mut handle));
    // No more than memory had, and the directory counts the same.
    assert!((1..=32).contains(&lost), "{lost} of {PAGES} pages are lost");
    assert_eq!(handle.admin().pool_stats().unwrap().master.pages_lost, lost);
    // The next daemon has nothing to adopt.
    stage.kill_daemon(0);
    stage.start_daemon(0);
    back[0].check(&mut handle);
    drop((handle, pool));
    stage.finish();
}
