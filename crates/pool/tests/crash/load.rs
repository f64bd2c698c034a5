//! Clients, daemons and the master are killed at random moments while clients work: what was
//! acknowledged is found again, nothing is counted twice, nothing leaks, and what is alive goes on.
//! Real processes; see `tools`.

use crate::tools::load::Load;
use crate::tools::{PATIENCE, busy};
use rackpool::FabricChoice::{Shm, Tcp};

const KILLS: u32 = 21;

#[test]
fn killed_clients_leave_what_was_acknowledged_and_nothing_else() {
    let _turn = busy();
    let mut load = Load::begin("killed_clients", &[(0, Tcp), (1, Tcp), (0, Shm)], false);
    for _ in 0..KILLS {
        load.work(50, 300);
        let victim = load.any_worker();
        load.crew.kill(victim);
        load.replace_worker(victim);
    }
    load.check();
    load.finish();
}

#[test]
fn killed_daemons_come_back_with_everything_and_clients_ride_through() {
    let _turn = busy();
    let mut load = Load::begin("killed_daemons", &[(0, Tcp), (1, Tcp), (0, Shm)], true);
    for _ in 0..KILLS {
        load.work(50, 300);
        let rack = load.any_rack();
        load.stage.kill_daemon(rack);
        load.work(0, 100);
        load.stage.start_daemon(rack);
        load.crew.expect_progress(PATIENCE);
    }
    load.check();
    load.finish();
}

#[test]
fn a_killed_master_finds_its_directory_again_and_clients_ride_through() {
    let _turn = busy();
    let mut load = Load::begin("killed_master", &[(0, Tcp), (1, Tcp), (1, Shm)], true);
    let before = load.handle.admin().pool_stats().unwrap().master;
    for kill in 0..KILLS {
        load.work(50, 300);
        let name = format!("root {kill}");
        let addr = rackpool::GAddr(4096 * u64::from(kill + 1));
        assert_eq!(load.handle.set_root(&name, rackpool::GAddr::NULL, addr).unwrap(), addr);
        load.stage.kill_master();
        load.work(0, 100);
        load.stage.start_master();
        assert_eq!(load.handle.root(&name).unwrap(), Some(addr), "it was acknowledged");
        load.crew.expect_progress(PATIENCE);
    }
    load.check();
    let after = load.handle.admin().pool_stats().unwrap().master;
    assert_eq!(after.roots, before.roots + u64::from(KILLS));
    assert_eq!(after.pages_lost, 0);
    load.finish();
}

#[test]
fn whatever_dies_in_whatever_order_what_was_acknowledged_is_found() {
    let _turn = busy();
    let places = [(0, Tcp), (1, Tcp), (0, Shm), (1, Shm)];
    let mut load = Load::begin("chaos", &places, true);
    let (mut both, mut early) = (0, 0);
    for _ in 0..KILLS {
        load.work(20, 150);
        let (rack, victim) = (load.any_rack(), load.any_worker());
        let master_too = load.random.below(3) == 0;
        if load.random.below(2) == 0 {
            load.crew.kill(victim);
            load.stage.kill_daemon(rack);
        } else {
            load.stage.kill_daemon(rack);
            std::thread::sleep(load.random.millis(0, 20));
            load.crew.kill(victim);
        }
        if master_too {
            both += 1;
            load.stage.kill_master();
        }
        // A server that dies while it starts, and one that starts before its master.
        for _ in 0..load.random.below(3) {
            early += 1;
            let mut daemon = load.stage.spawn_daemon(rack, &load.stage.memory[rack]);
            std::thread::sleep(load.random.millis(0, 60));
            daemon.kill();
        }
        if master_too {
            load.stage.start_master();
        }
        load.stage.start_daemon(rack);
        load.replace_worker(victim);
        load.crew.expect_progress(PATIENCE);
    }
    load.check();
    eprintln!("chaos: {both} with the master, {early} daemons died at the start");
    load.finish();
}
