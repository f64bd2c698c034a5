//! Kills of every process that a proxied access goes through: the client, the daemon that works
//! for it, the daemon of the other rack. What was acknowledged is found again, nothing is counted
//! twice, nothing leaks. Real processes; see `tools`.

use crate::tools::load::Load;
use crate::tools::{PATIENCE, busy, wait_until};
use rackpool::FabricChoice::{Proxied, Tcp};

const KILLS: u32 = 14;

#[test]
fn killed_proxied_clients_leave_no_session_and_no_channel() {
    let _turn = busy();
    let places = [(0, Proxied), (0, Proxied), (1, Proxied)];
    let mut load = Load::begin("killed_proxied_clients", &places, false);
    for _ in 0..KILLS {
        load.work(50, 200);
        let victim = load.any_worker();
        load.crew.kill(victim);
        load.replace_worker(victim);
    }
    load.check();
    wait_until("the channels of the dead are gone", PATIENCE, || {
        let racks = load.handle.admin().pool_stats().unwrap().racks;
        let left: u64 = racks.iter().map(|one| one.daemon.as_ref().unwrap().proxy.channels).sum();
        (left > 0).then(|| format!("{left} channels"))
    });
    load.finish();
}

#[test]
fn killed_daemons_on_either_side_of_a_proxied_access_come_back_and_clients_ride_through() {
    let _turn = busy();
    let mut load = Load::begin("killed_proxies", &[(0, Proxied), (1, Proxied), (0, Tcp)], true);
    for kill in 0..KILLS {
        load.work(50, 200);
        let rack = load.any_rack();
        load.stage.kill_daemon(rack);
        load.work(0, 100);
        load.stage.start_daemon(rack);
        if kill % 5 == 4 {
            load.stage.kill_master();
            load.work(0, 50);
            load.stage.start_master();
        }
        load.crew.expect_progress(PATIENCE);
    }
    load.check();
    load.finish();
}

#[test]
fn a_stopped_proxied_client_holds_up_nobody_and_goes_on() {
    let _turn = busy();
    let places = [(0, Proxied), (0, Proxied), (1, Proxied)];
    let mut load = Load::begin("stopped_proxied", &places, false);
    for round in 0..6u64 {
        load.work(50, 150);
        let stopped = load.any_worker();
        load.crew.proc(stopped).pause();
        if let Some(rack) = [2, 4].iter().position(|killed| *killed == round) {
            load.stage.kill_daemon(rack);
            load.stage.start_daemon(rack);
        }
        load.work(300, 1200);
        load.crew.proc(stopped).resume();
        load.crew.expect_progress(PATIENCE);
    }
    load.check();
    load.finish();
}
