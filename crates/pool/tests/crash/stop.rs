//! Processes that are stopped and continued, and clients that make no call for long: no other
//! process is harmed by them, and they lose nothing. Real processes; see `tools`.

use crate::tools::ledger::Crew;
use crate::tools::stage::{MEMORY, Stage};
use crate::tools::{PATIENCE, Proc, Random, busy, seed, wait_until, waiting};
use rackpool::FabricChoice::{Shm, Tcp};
use rackpool::{GAddr, Handle, Placement, Pool, RackId};
use std::time::{Duration, Instant};

const PAGE: u64 = 64 << 10;

/// Pages with a pattern each.
fn fill(handle: &mut Handle, pages: u64, random: &mut Random) -> Vec<(GAddr, u64, u8)> {
    let mut filled = Vec::new();
    for _ in 0..pages {
        let count = 1 + random.below(3);
        let addr = handle.alloc(count * PAGE, Placement::Rack(RackId(0))).unwrap();
        let pattern = random.below(200) as u8;
        handle.write(addr, &vec![pattern; (count * PAGE) as usize]).unwrap();
        filled.push((addr, count * PAGE, pattern));
    }
    filled
}

fn check_and_free(handle: &mut Handle, filled: Vec<(GAddr, u64, u8)>) {
    for (addr, bytes, pattern) in filled {
        let mut found = vec![0; bytes as usize];
        handle.read(addr, &mut found).unwrap();
        let wrong = found.iter().filter(|byte| **byte != pattern).count();
        assert_eq!(wrong, 0, "bytes of {addr} that are not {pattern}");
        handle.free(addr, bytes).unwrap();
    }
}

#[test]
fn a_client_stopped_in_the_midst_of_writing_a_page_that_is_freed_harms_nobody() {
    let _turn = busy();
    let seed = seed("stopped_writers");
    let mut random = Random::new(seed);
    let stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let word = handle.alloc(64, Placement::Rack(RackId(0))).unwrap();
    let mut touchers: Vec<Proc> = [(0, "tcp"), (1, "shm"), (1, "tcp")]
        .map(|(rack, fabric)| {
            let args = [stage.addr.clone(), rack.to_string(), fabric.into(), word.0.to_string()];
            let proc = Proc::start(&format!("toucher {rack} {fabric}"), "toucher", &args);
            proc.ready().unwrap_or_else(|error| panic!("{error}"));
            proc
        })
        .into();
    let mut quarantined = 0;
    const ROUNDS: u32 = 25;
    for _ in 0..ROUNDS {
        let victim = handle.alloc(PAGE, Placement::Rack(RackId(0))).unwrap();
        handle.write_u64(word, victim.0).unwrap();
        std::thread::sleep(random.millis(10, 30));
        touchers.iter_mut().for_each(Proc::pause);
        let started = Instant::now();
        handle.free(victim, PAGE).unwrap();
        assert!(started.elapsed() < Duration::from_secs(5), "a free waits for nobody");
        let kept = handle.admin().pool_stats().unwrap().racks[0].daemon.clone().unwrap();
        quarantined += u32::from(kept.frames_quarantined > 0);
        let filled = fill(&mut handle, 30, &mut random);
        touchers.iter_mut().for_each(Proc::resume);
        std::thread::sleep(random.millis(5, 20));
        check_and_free(&mut handle, filled);
    }
    handle.write_u64(word, 0).unwrap();
    for toucher in &mut touchers {
        while let Some(line) = toucher.try_line() {
            assert!(line.starts_with("t "), "{}: {line}", toucher.name);
        }
        let line = toucher.line(PATIENCE);
        assert!(line.is_some_and(|line| line.starts_with("t ")), "{}", toucher.name);
    }
    wait_until("the quarantine ends", PATIENCE, || {
        let now = handle.admin().pool_stats().unwrap().racks[0].daemon.clone().unwrap();
        (now.frames_quarantined > 0).then(|| format!("{now:?}"))
    });
    eprintln!("stopped_writers: a frame was in quarantine in {quarantined} of {ROUNDS} rounds");
    assert!(quarantined > 0, "no writer was stopped in the midst of an access");
    drop(touchers);
    drop((handle, pool));
    stage.finish();
}

#[test]
fn clients_that_are_stopped_for_longer_than_a_lease_go_on_with_all_they_had() {
    let _turn = busy();
    let seed = seed("stopped_clients");
    let mut random = Random::new(seed);
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let mut crew = Crew::new(&stage, &mut handle, &[(0, Tcp), (1, Tcp), (1, Shm)], seed);
    crew.start_all();
    for round in 0..8u64 {
        crew.work(random.millis(50, 150));
        let stopped = random.below(crew.len() as u64) as usize;
        crew.proc(stopped).pause();
        match round {
            // While it cannot notice, a server is replaced.
            2 => {
                stage.kill_daemon(0);
                stage.start_daemon(0);
            }
            4 => {
                stage.kill_daemon(1);
                stage.start_daemon(1);
            }
            6 => {
                stage.kill_master();
                stage.start_master();
            }
            _ => {}
        }
        crew.work(random.millis(300, 1500));
        crew.proc(stopped).resume();
        crew.expect_progress(PATIENCE);
    }
    crew.work(Duration::from_millis(100));
    crew.stop_all();
    for index in 0..crew.len() {
        crew.check_records(&mut handle, index);
    }
    crew.check_counters(&mut handle);
    crew.check_memory(&mut handle);
    crew.report("stopped_clients");
    drop((handle, pool));
    stage.finish();
}

#[test]
fn clients_ride_through_the_stop_of_a_daemon_and_of_the_master() {
    let _turn = waiting();
    let seed = seed("stopped_servers");
    let mut random = Random::new(seed);
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let mut crew = Crew::new(&stage, &mut handle, &[(0, Tcp), (1, Tcp), (0, Shm)], seed);
    crew.start_all();
    for round in 0..6u64 {
        crew.work(random.millis(50, 150));
        let pause = random.millis(200, 1800);
        let server = match round % 3 {
            2 => stage.master.as_mut().unwrap(),
            rack => stage.daemon(rack as usize),
        };
        server.pause();
        std::thread::sleep(pause);
        server.resume();
        crew.expect_progress(PATIENCE);
    }
    crew.work(Duration::from_millis(100));
    crew.stop_all();
    for index in 0..crew.len() {
        crew.check_records(&mut handle, index);
    }
    crew.check_counters(&mut handle);
    crew.check_memory(&mut handle);
    crew.report("stopped_servers");
    drop((handle, pool));
    stage.finish();
}

#[test]
fn callers_of_a_stopped_daemon_get_a_typed_error_in_time_and_go_on_afterwards() {
    let _turn = waiting();
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let open = |rack, fabric| {
        let options = stage.options(rack, fabric).request_timeout_ms(300);
        Pool::open(options).unwrap().handle().unwrap()
    };
    let mut callers = [(0, Tcp), (1, Tcp), (1, Shm)].map(|(rack, fabric)| open(rack, fabric));
    let addr = callers[0].alloc(PAGE, Placement::Rack(RackId(0))).unwrap();
    for handle in &mut callers {
        // They know the page, and have a session there.
        handle.write(addr, b"before").unwrap();
        let scratch = handle.alloc(64, Placement::Rack(RackId(0))).unwrap();
        handle.free(scratch, 64).unwrap();
    }
    let before = stage.stats(&stage.pool(1, Tcp));
    stage.daemon(0).pause();
    let mut unknown = 0;
    for _ in 0..3 {
        for (index, handle) in callers.iter_mut().enumerate() {
            let started = Instant::now();
            let alloc = handle.alloc(PAGE, Placement::Rack(RackId(0))).unwrap_err();
            let codes = ["outcome-unknown", "timeout", "peer-dead", "busy"];
            assert!(codes.contains(&alloc.code()), "{alloc}");
            let mut found = [0; 6];
            let read = handle.read(addr, &mut found).map_err(|error| error.code());
            let add = handle.fetch_add(GAddr(addr.0 + 64), 1).map_err(|error| error.code());
            if index == 1 {
                // Only its fabric's thread could answer.
                let codes = [Err("timeout"), Err("peer-dead")];
                assert!(codes.contains(&read), "{read:?}");
                unknown += u64::from(add == Err("outcome-unknown"));
                assert!(matches!(add, Err("outcome-unknown" | "timeout" | "peer-dead")), "{add:?}");
            } else {
                // Mapped memory needs no daemon.
                assert_eq!((read, &found), (Ok(()), b"before"));
                assert!(add.is_ok(), "{add:?}");
            }
            // Ten times as long as is allowed, for three calls.
            assert!(started.elapsed() < Duration::from_secs(9), "{:?}", started.elapsed());
        }
    }
    stage.daemon(0).resume();
    for (index, handle) in callers.iter_mut().enumerate() {
        wait_until("a caller goes on", PATIENCE, || {
            let result = handle.alloc(PAGE, Placement::Rack(RackId(0)));
            let addr = match result {
                Ok(addr) => addr,
                Err(error) => return Some(format!("caller {index}: {error}")),
            };
            handle.free(addr, PAGE).err().map(|error| error.to_string())
        });
        let mut found = [0; 6];
        handle.read(addr, &mut found).unwrap();
        assert_eq!(&found, b"before");
    }
    let value = callers[0].read_u64(GAddr(addr.0 + 64)).unwrap();
    assert!((6..=6 + unknown).contains(&value), "{value}, {unknown} unknown");
    let mut watcher = stage.pool(1, Tcp).handle().unwrap();
    wait_until("what was given up comes back", PATIENCE, || {
        let now = watcher.admin().pool_stats().unwrap().racks[0].daemon.clone().unwrap();
        (now.allocations != before[0].allocations).then(|| format!("{:?} now {now:?}", before[0]))
    });
    drop((callers, watcher));
    stage.finish();
}

#[test]
fn a_client_that_computes_for_seconds_without_a_call_keeps_everything() {
    let _turn = busy();
    let seed = seed("computing");
    let mut random = Random::new(seed);
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pools = [stage.pool(0, Tcp), stage.pool(1, Tcp), stage.pool(1, Shm)];
    let mut held = Vec::new();
    for pool in &pools {
        let mut handle = pool.handle().unwrap();
        let mut mine = Vec::new();
        for index in 0..20u64 {
            let bytes = [64, 5000, PAGE, 3 * PAGE][index as usize % 4];
            let place = Placement::Rack(RackId((index % 2) as u16));
            let addr = match index % 3 {
                0 => handle.alloc(bytes, place).unwrap(),
                _ => handle.alloc_owned(bytes, place).unwrap(),
            };
            let pattern = vec![random.below(256) as u8; bytes as usize];
            handle.write(addr, &pattern).unwrap();
            mine.push((addr, pattern));
        }
        held.push((handle, mine));
    }
    // Others come, work and die meanwhile, and so do the servers.
    let worker = stage.pool(0, Tcp);
    let mut handle = worker.handle().unwrap();
    let mut crew = Crew::new(&stage, &mut handle, &[(0, Tcp), (1, Tcp)], seed);
    crew.start_all();
    let until = Instant::now() + Duration::from_secs(4);
    for round in 0.. {
        crew.work(random.millis(200, 400));
        match round % 4 {
            0 => crew.kill(0),
            1 => {
                stage.kill_daemon(0);
                stage.start_daemon(0);
            }
            2 => {
                stage.kill_master();
                stage.start_master();
            }
            _ => {
                stage.kill_daemon(1);
                stage.start_daemon(1);
            }
        }
        if round % 4 == 0 {
            crew.clear_words(&mut handle, 0);
            crew.start(0);
            crew.wait_ready(0);
        }
        if Instant::now() > until {
            break;
        }
    }
    crew.stop_all();
    for (mut handle, mine) in held {
        for (addr, pattern) in mine {
            let mut found = vec![0; pattern.len()];
            handle.read(addr, &mut found).unwrap();
            assert_eq!(found, pattern, "{addr}");
            handle.free(addr, pattern.len() as u64).unwrap();
        }
    }
    drop((pools, handle, worker));
    stage.finish();
}

#[test]
fn a_pinned_page_stays_untouched_through_free_and_restart_and_its_slot_comes_back() {
    let _turn = waiting();
    let seed = seed("pinned");
    let mut random = Random::new(seed);
    let mut stage = Stage::new(&[MEMORY]);
    let watcher = stage.pool(0, Tcp);
    let before = stage.stats(&watcher)[0].clone();
    let mut handle = watcher.handle().unwrap();
    let pool = stage.pool(0, Tcp);
    let mut pinner = pool.handle().unwrap();
    let idle = pool.handle().unwrap();
    let addr = handle.alloc(PAGE, Placement::Local).unwrap();
    let pin = pinner.pin(addr, PAGE).unwrap();
    pin.write(0, b"mine");
    handle.free(addr, PAGE).unwrap();
    assert!(pin.is_revoked());
    for restart in 0..3 {
        let filled = fill(&mut handle, 20, &mut random);
        // A write through a pin that was revoked reaches a frame that no page has.
        pin.write(0, &vec![0xaa; PAGE as usize]);
        check_and_free(&mut handle, filled);
        let now = handle.admin().pool_stats().unwrap().racks[0].daemon.clone().unwrap();
        assert_eq!(now.frames_quarantined, 1, "after {restart} restarts");
        stage.kill_daemon(0);
        stage.start_daemon(0);
        if restart == 1 {
            // Only its pin is left of this handle, which has noticed one restart.
            pinner.alloc_owned(64, Placement::Local).unwrap();
        }
    }
    drop(pinner);
    // These two notice nothing of the last restart: they make no call.
    drop(idle);
    drop(pin);
    drop(pool);
    wait_until("slots, frames and memory come back", PATIENCE, || {
        let now = handle.admin().pool_stats().unwrap().racks[0].daemon.clone().unwrap();
        // The watcher's second handle.
        let is_back = now.slots_used <= before.slots_used + 1
            && now.frames_quarantined == 0
            && now.allocations == before.allocations;
        (!is_back).then(|| format!("{before:?} now {now:?}"))
    });
    drop((handle, watcher));
    stage.finish();
}

#[test]
fn without_a_master_what_is_known_goes_on_and_the_rest_is_a_typed_error_in_time() {
    let _turn = waiting();
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let options = stage.options(0, Tcp).request_timeout_ms(300);
    let mut handle = Pool::open(options).unwrap().handle().unwrap();
    let near = handle.alloc(64, Placement::Rack(RackId(0))).unwrap();
    let far = handle.alloc(64, Placement::Rack(RackId(1))).unwrap();
    handle.write(far, b"known").unwrap();
    let before = handle.admin().pool_stats().unwrap();
    stage.kill_master();
    for addr in [near, far] {
        handle.write(addr, b"known").unwrap();
        handle.fetch_add(GAddr(addr.0 + 8), 1).unwrap();
        // Its page has room, and no other process has to know.
        let scratch = handle.alloc(64, Placement::Rack(RackId((addr == far).into()))).unwrap();
        handle.free(scratch, 64).unwrap();
    }
    let mut codes = Vec::new();
    for rack in [0, 1, 0, 1] {
        let started = Instant::now();
        let error = handle.alloc(PAGE, Placement::Rack(RackId(rack))).unwrap_err();
        codes.push(error.code());
        assert!(["outcome-unknown", "timeout"].contains(&error.code()), "{error}");
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    }
    assert!(codes.contains(&"outcome-unknown"), "a page was under way: {codes:?}");
    let error = handle.root("name").unwrap_err();
    assert_eq!(error.code(), "timeout", "{error}");
    stage.start_master();
    for rack in [0, 1] {
        wait_until("pages can be had again", PATIENCE, || {
            let addr = match handle.alloc(PAGE, Placement::Rack(RackId(rack))) {
                Ok(addr) => addr,
                Err(error) => return Some(error.to_string()),
            };
            handle.free(addr, PAGE).err().map(|error| error.to_string())
        });
    }
    assert_eq!(handle.root("name").unwrap(), None);
    for (index, before) in before.racks.iter().enumerate() {
        let before = before.daemon.as_ref().unwrap();
        wait_until("what was given up comes back", PATIENCE, || {
            let now = handle.admin().pool_stats().unwrap().racks[index].daemon.clone().unwrap();
            let is_same =
                (now.allocations, now.frames_free) == (before.allocations, before.frames_free);
            (!is_same).then(|| format!("{before:?} now {now:?}"))
        });
    }
    drop(handle);
    stage.finish();
}
