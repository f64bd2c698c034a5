//! Kills of every process that a proxied access goes through: the client, the daemon that works
//! for it, the daemon of the other rack. What was acknowledged is found again, nothing is counted
//! twice, nothing leaks. Real processes; see `crash_tools`.

mod crash_tools;

use crash_tools::ledger::Crew;
use crash_tools::stage::{MEMORY, Stage};
use crash_tools::{PATIENCE, Random, one_at_a_time, seed, wait_until};
use rackpool::FabricChoice::{Proxied, Tcp};
use std::time::Duration;

/// Kills in each role.
const KILLS: u32 = 14;

#[test]
fn child_process() {
    crash_tools::child_main();
}

fn check_all(crew: &mut Crew, handle: &mut rackpool::Handle, test: &str) {
    crew.stop_all();
    for index in 0..crew.len() {
        crew.check_records(handle, index);
    }
    crew.check_counters(handle);
    crew.check_memory(handle);
    crew.report(test);
}

#[test]
fn killed_proxied_clients_leave_no_session_and_no_channel() {
    let _turn = one_at_a_time();
    let seed = seed("killed_proxied_clients");
    let mut random = Random::new(seed);
    let stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(1, Tcp);
    let mut handle = pool.handle().unwrap();
    let places = [(0, Proxied), (0, Proxied), (1, Proxied)];
    let mut crew = Crew::new(&stage, &mut handle, &places, seed);
    crew.start_all();
    for _ in 0..KILLS {
        crew.work(random.millis(50, 200));
        let victim = random.below(crew.len() as u64) as usize;
        crew.kill(victim);
        crew.check_records(&mut handle, victim);
        crew.clear_words(&mut handle, victim);
        crew.start(victim);
        crew.wait_ready(victim);
        crew.check_acknowledged(&mut handle);
    }
    crew.expect_progress(PATIENCE);
    check_all(&mut crew, &mut handle, "killed_proxied_clients");
    wait_until("the channels of the dead are gone", PATIENCE, || {
        let racks = handle.pool_stats().unwrap().racks;
        let left: u64 = racks.iter().map(|one| one.daemon.as_ref().unwrap().proxy.channels).sum();
        (left > 0).then(|| format!("{left} channels"))
    });
    drop((handle, pool));
    stage.finish();
}

#[test]
fn killed_daemons_on_either_side_of_a_proxied_access_come_back_and_clients_ride_through() {
    let _turn = one_at_a_time();
    let seed = seed("killed_proxies");
    let mut random = Random::new(seed);
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let places = [(0, Proxied), (1, Proxied), (0, Tcp)];
    let mut crew = Crew::new(&stage, &mut handle, &places, seed);
    crew.change_jobs(|job| job.reopens = true);
    crew.start_all();
    for kill in 0..KILLS {
        crew.work(random.millis(50, 200));
        let rack = random.below(2) as usize;
        stage.kill_daemon(rack);
        crew.work(random.millis(0, 100));
        stage.start_daemon(rack);
        if kill % 5 == 4 {
            stage.kill_master();
            crew.work(random.millis(0, 50));
            stage.start_master();
        }
        crew.expect_progress(PATIENCE);
    }
    crew.work(Duration::from_millis(200));
    check_all(&mut crew, &mut handle, "killed_proxies");
    drop((handle, pool));
    stage.finish();
}

#[test]
fn a_stopped_proxied_client_holds_up_nobody_and_goes_on() {
    let _turn = one_at_a_time();
    let seed = seed("stopped_proxied");
    let mut random = Random::new(seed);
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let places = [(0, Proxied), (0, Proxied), (1, Proxied)];
    let mut crew = Crew::new(&stage, &mut handle, &places, seed);
    crew.start_all();
    for round in 0..6u64 {
        crew.work(random.millis(50, 150));
        let stopped = random.below(crew.len() as u64) as usize;
        crew.proc(stopped).pause();
        match round {
            2 => {
                stage.kill_daemon(0);
                stage.start_daemon(0);
            }
            4 => {
                stage.kill_daemon(1);
                stage.start_daemon(1);
            }
            _ => {}
        }
        crew.work(random.millis(300, 1200));
        crew.proc(stopped).resume();
        crew.expect_progress(PATIENCE);
    }
    check_all(&mut crew, &mut handle, "stopped_proxied");
    drop((handle, pool));
    stage.finish();
}
