//! Clients, daemons and the master are killed at random moments while clients work: what was
//! acknowledged is found again, nothing is counted twice, nothing leaks, and who is alive goes
//! on. Real processes; see `crash_tools`.

mod crash_tools;

use crash_tools::ledger::Crew;
use crash_tools::stage::{MEMORY, Stage};
use crash_tools::{PATIENCE, Random, one_at_a_time, seed};
use rackpool::FabricChoice::{Shm, Tcp};
use std::time::{Duration, Instant};

/// Kills in each role.
const KILLS: u32 = 21;

#[test]
fn child_process() {
    crash_tools::child_main();
}

#[test]
fn killed_clients_leave_what_was_acknowledged_and_nothing_else() {
    let _turn = one_at_a_time();
    let seed = seed("killed_clients");
    let started = Instant::now();
    let mut random = Random::new(seed);
    let stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let mut crew = Crew::new(&stage, &mut handle, &[(0, Tcp), (1, Tcp), (0, Shm)], seed);
    crew.start_all();
    for _ in 0..KILLS {
        crew.work(random.millis(50, 300));
        let victim = random.below(crew.len() as u64) as usize;
        crew.kill(victim);
        crew.check_records(&mut handle, victim);
        crew.clear_words(&mut handle, victim);
        crew.start(victim);
        crew.wait_ready(victim);
        crew.check_acknowledged(&mut handle);
    }
    crew.expect_progress(PATIENCE);
    crew.stop_all();
    for index in 0..crew.len() {
        crew.check_records(&mut handle, index);
    }
    crew.check_counters(&mut handle);
    crew.check_memory(&mut handle);
    crew.report("killed_clients");
    eprintln!("killed_clients: {:?}", started.elapsed());
    drop((handle, pool));
    stage.finish();
}

#[test]
fn killed_daemons_come_back_with_everything_and_clients_ride_through() {
    let _turn = one_at_a_time();
    let seed = seed("killed_daemons");
    let started = Instant::now();
    let mut random = Random::new(seed);
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let mut crew = Crew::new(&stage, &mut handle, &[(0, Tcp), (1, Tcp), (0, Shm)], seed);
    crew.change_jobs(|job| job.reopens = true);
    crew.start_all();
    for _ in 0..KILLS {
        crew.work(random.millis(50, 300));
        let rack = random.below(2) as usize;
        stage.kill_daemon(rack);
        crew.work(random.millis(0, 100));
        stage.start_daemon(rack);
        crew.expect_progress(PATIENCE);
    }
    crew.work(Duration::from_millis(200));
    crew.stop_all();
    for index in 0..crew.len() {
        crew.check_records(&mut handle, index);
    }
    crew.check_counters(&mut handle);
    crew.check_memory(&mut handle);
    crew.report("killed_daemons");
    eprintln!("killed_daemons: {:?}", started.elapsed());
    drop((handle, pool));
    stage.finish();
}

#[test]
fn a_killed_master_finds_its_directory_again_and_clients_ride_through() {
    let _turn = one_at_a_time();
    let seed = seed("killed_master");
    let started = Instant::now();
    let mut random = Random::new(seed);
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let mut crew = Crew::new(&stage, &mut handle, &[(0, Tcp), (1, Tcp), (1, Shm)], seed);
    crew.change_jobs(|job| job.reopens = true);
    let before = handle.pool_stats().unwrap().master;
    crew.start_all();
    for kill in 0..KILLS {
        crew.work(random.millis(50, 300));
        let name = format!("root {kill}");
        let addr = rackpool::GAddr(4096 * u64::from(kill + 1));
        assert_eq!(handle.set_root(&name, rackpool::GAddr::NULL, addr).unwrap(), addr);
        stage.kill_master();
        crew.work(random.millis(0, 100));
        stage.start_master();
        assert_eq!(handle.root(&name).unwrap(), Some(addr), "it was acknowledged");
        crew.expect_progress(PATIENCE);
    }
    crew.work(Duration::from_millis(200));
    crew.stop_all();
    for index in 0..crew.len() {
        crew.check_records(&mut handle, index);
    }
    crew.check_counters(&mut handle);
    crew.check_memory(&mut handle);
    let after = handle.pool_stats().unwrap().master;
    assert_eq!(after.roots, before.roots + u64::from(KILLS));
    assert_eq!(after.pages_lost, 0);
    crew.report("killed_master");
    eprintln!("killed_master: {:?}", started.elapsed());
    drop((handle, pool));
    stage.finish();
}

#[test]
fn whatever_dies_in_whatever_order_what_was_acknowledged_is_found() {
    let _turn = one_at_a_time();
    let seed = seed("chaos");
    let started = Instant::now();
    let mut random = Random::new(seed);
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let mut crew = Crew::new(&stage, &mut handle, &[(0, Tcp), (1, Tcp), (0, Shm), (1, Shm)], seed);
    crew.change_jobs(|job| job.reopens = true);
    crew.start_all();
    let (mut both, mut early) = (0, 0);
    for _ in 0..KILLS {
        crew.work(random.millis(20, 150));
        let rack = random.below(2) as usize;
        let victim = random.below(crew.len() as u64) as usize;
        let master_too = random.below(3) == 0;
        if random.below(2) == 0 {
            crew.kill(victim);
            stage.kill_daemon(rack);
        } else {
            stage.kill_daemon(rack);
            std::thread::sleep(random.millis(0, 20));
            crew.kill(victim);
        }
        if master_too {
            both += 1;
            stage.kill_master();
        }
        // A server that dies while it starts, and one that starts before its master.
        for _ in 0..random.below(3) {
            early += 1;
            let mut daemon = stage.spawn_daemon(rack, &stage.memory[rack]);
            std::thread::sleep(random.millis(0, 60));
            daemon.kill();
        }
        if master_too {
            stage.start_master();
        }
        stage.start_daemon(rack);
        crew.check_records(&mut handle, victim);
        crew.clear_words(&mut handle, victim);
        crew.start(victim);
        crew.wait_ready(victim);
        crew.check_acknowledged(&mut handle);
        crew.expect_progress(PATIENCE);
    }
    crew.stop_all();
    for index in 0..crew.len() {
        crew.check_records(&mut handle, index);
    }
    crew.check_counters(&mut handle);
    crew.check_memory(&mut handle);
    crew.report("chaos");
    eprintln!("chaos: {both} with the master, {early} daemons died at the start");
    eprintln!("chaos: {:?}", started.elapsed());
    drop((handle, pool));
    stage.finish();
}
