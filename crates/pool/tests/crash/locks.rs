//! Locks while their holders and their daemon are killed and stopped, in real processes: no process
//! holds a lock beside another, no dead process keeps one, and one that lost its lock is told
//! before it changes anything.

use crate::tools::stage::{MEMORY, Stage};
use crate::tools::{PATIENCE, Proc, Random, busy, seed, wait_until, waiting};
use rackpool::FabricChoice::{self, Shm, Tcp};
use rackpool::{GAddr, Handle, LockMode, LockOptions, Placement, RackId};
use std::time::Instant;

fn start(stage: &Stage, role: &str, place: (u16, FabricChoice), name: GAddr, how: &str) -> Proc {
    let fabric = if place.1 == Shm { "shm" } else { "tcp" };
    let (rack, name) = (place.0.to_string(), name.0.to_string());
    let args = [stage.addr.clone(), rack, fabric.into(), name, how.into()];
    let proc = Proc::start(role, role, &args);
    proc.ready().unwrap_or_else(|error| panic!("{role}: {error}"));
    proc
}

fn holder(stage: &Stage, place: (u16, FabricChoice), name: GAddr) -> Proc {
    start(stage, "holder", place, name, "")
}

fn name_in(handle: &mut Handle, rack: u16) -> GAddr {
    handle.alloc(64, Placement::Rack(RackId(rack))).unwrap()
}

/// Tells a holder something; its answer without the first word, or the error's code.
fn tell(proc: &mut Proc, what: &str) -> Result<u64, String> {
    proc.tell(what);
    answer(proc)
}

fn answer(proc: &Proc) -> Result<u64, String> {
    let line = proc.line(PATIENCE).unwrap_or_else(|| panic!("ended; stderr: {}", proc.stderr()));
    let words: Vec<&str> = line.split(' ').collect();
    match words[0] {
        "ok" => Ok(words[1].parse().expect("a number")),
        "not" => Err(words[1].into()),
        _ => panic!("{line}"),
    }
}

/// Waits until a client waits for a lock in the rack.
fn wait_for_waiter(stage: &Stage, handle: &mut Handle, rack: usize) {
    let _ = stage;
    wait_until("a client waits for the lock", PATIENCE, || {
        let stats = handle.admin().pool_stats().expect("the pool answers");
        let waits = stats.racks[rack].daemon.as_ref().is_some_and(|daemon| daemon.lock_waiters > 0);
        (!waits).then(|| "no client waits".into())
    });
}

/// Additions that are seen before the next one is killed.
const PROGRESS: u64 = 10;

#[derive(Debug, Default)]
struct Said {
    acked: u64,
    unknown: u64,
    retries: u64,
}

impl Said {
    fn take(&mut self, line: &str) {
        match line.split(' ').next().unwrap_or_default() {
            "c" => self.acked += 1,
            "u" => self.unknown += 1,
            "r" => self.retries += 1,
            "done" => {}
            _ => panic!("a counter says {line}"),
        }
    }
}

#[test]
fn a_counter_that_is_only_locked_loses_nothing_while_holders_and_daemons_die() {
    let _turn = busy();
    let mut random = Random::new(seed("locked_counter"));
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let name = name_in(&mut handle, 1);
    let places = [(0, Tcp), (1, Tcp), (0, Shm), (0, Tcp)];
    let begin = |stage: &Stage, index: usize| start(stage, "counter", places[index], name, "reads");
    let mut procs: Vec<Proc> = (0..places.len()).map(|index| begin(&stage, index)).collect();
    let mut said = Said::default();
    let (mut kills, mut restarts) = (0, 0);
    for round in 0..24 {
        // A process that died with the lock over tcp is waited for, so all count again first.
        let (until, wanted) = (Instant::now() + random.millis(50, 250), said.acked + PROGRESS);
        wait_until("the counters count", PATIENCE, || {
            for proc in &procs {
                while let Some(line) = proc.try_line() {
                    said.take(&line);
                }
            }
            let on = said.acked >= wanted && Instant::now() >= until;
            (!on).then(|| format!("{said:?}"))
        });
        if round % 6 == 5 {
            restarts += 1;
            stage.kill_daemon(1);
            std::thread::sleep(random.millis(0, 50));
            stage.start_daemon(1);
        } else {
            kills += 1;
            let victim = random.below(places.len() as u64) as usize;
            procs[victim].kill();
            while let Some(line) = procs[victim].line(PATIENCE) {
                said.take(&line);
            }
            procs[victim] = begin(&stage, victim);
        }
    }
    for proc in &mut procs {
        proc.tell("stop");
    }
    for mut proc in procs {
        while let Some(line) = proc.line(PATIENCE) {
            said.take(&line);
        }
        assert_eq!(proc.exit_code(PATIENCE), Some(0), "{}", proc.stderr());
    }
    let guard = handle.lock(name, LockMode::Write, LockOptions::line()).unwrap();
    let value = handle.read_u64(name).unwrap();
    handle.unlock(guard).unwrap();
    eprintln!("locked_counter: {value}, {kills} kills, {restarts} restarts, {said:?}");
    let most = said.acked + said.unknown + kills;
    assert!((said.acked..=most).contains(&value), "{value} of {} to {most}", said.acked);
    drop((handle, pool));
    stage.finish();
}

#[test]
fn a_killed_holder_gives_its_lock_to_whoever_waits() {
    let _turn = waiting();
    let stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(1, Tcp);
    let mut handle = pool.handle().unwrap();
    let name = name_in(&mut handle, 1);
    for place in [(1, Tcp), (0, Shm), (0, Tcp)] {
        let mut first = holder(&stage, place, name);
        let mut second = holder(&stage, (1, Tcp), name);
        let token = tell(&mut first, "lock").unwrap();
        second.tell("lock");
        wait_for_waiter(&stage, &mut handle, 1);
        first.kill();
        let next = answer(&second).unwrap_or_else(|code| panic!("{place:?}: {code}"));
        assert!(next > token, "{next} after {token}");
        assert_eq!(tell(&mut second, "unlock"), Ok(0));
    }
    handle.free(name, 64).unwrap();
    drop((handle, pool));
    stage.finish();
}

#[test]
fn a_stopped_holder_keeps_its_lock_and_who_waits_learns_its_name() {
    let _turn = waiting();
    let stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(1, Tcp);
    let mut handle = pool.handle().unwrap();
    let name = name_in(&mut handle, 1);
    for place in [(1, Tcp), (0, Tcp)] {
        let mut stopped = holder(&stage, place, name);
        let token = tell(&mut stopped, "lock").unwrap();
        stopped.pause();
        // Longer than any lease.
        let error =
            handle.lock(name, LockMode::Write, LockOptions::line().within_ms(2_500)).unwrap_err();
        assert_eq!(error.code(), "lock-timeout", "{error}");
        let (pid, text) = (stopped.pid().as_raw_nonzero(), error.to_string());
        let begin =
            format!("the lock at {name} did not become free within 2500 ms: process {pid} ");
        let held = text.strip_prefix(&begin).unwrap_or_else(|| panic!("{place:?}: {text}"));
        let held_ms = held.strip_prefix("has held it for ").and_then(|ms| ms.strip_suffix(" ms"));
        let held_ms: u64 = held_ms.unwrap().parse().unwrap();
        assert!(held_ms >= 2_400, "held for {held_ms} ms");
        stopped.resume();
        assert_eq!(tell(&mut stopped, "check"), Ok(token), "it has it still");
        assert_eq!(tell(&mut stopped, "unlock"), Ok(0));
        let guard = handle.lock(name, LockMode::Write, LockOptions::line()).unwrap();
        assert!(guard.token() > token);
        handle.unlock(guard).unwrap();
    }
    handle.free(name, 64).unwrap();
    drop((handle, pool));
    stage.finish();
}

#[test]
fn locks_survive_their_daemon_and_so_do_those_who_wait() {
    let _turn = waiting();
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let name = name_in(&mut handle, 1);
    let mut first = holder(&stage, (1, Tcp), name);
    let mut second = holder(&stage, (0, Shm), name);
    let mut token = 0;
    for waits in [false, true] {
        let before = token;
        token = tell(&mut first, "lock").unwrap();
        assert!(token > before);
        if waits {
            second.tell("lock");
            wait_for_waiter(&stage, &mut handle, 1);
        }
        stage.kill_daemon(1);
        stage.start_daemon(1);
        assert_eq!(tell(&mut first, "check"), Ok(token), "the lock is still its own");
        assert_eq!(tell(&mut first, "write"), Ok(0));
        assert!(second.try_line().is_none(), "it is free");
        let tried = handle
            .lock(name, LockMode::Write, LockOptions::line().within_ms(0))
            .map(drop)
            .unwrap_err();
        assert_eq!(tried.code(), "lock-timeout");
        assert_eq!(tell(&mut first, "unlock"), Ok(0));
        if waits {
            let next = answer(&second).unwrap();
            assert!(next > token);
            assert_eq!(tell(&mut second, "unlock"), Ok(0));
        }
    }
    handle.free(name, 64).unwrap();
    drop((first, second, handle, pool));
    stage.finish();
}

#[test]
fn a_remote_holder_that_was_away_is_told_that_its_lock_is_lost_before_it_writes() {
    let _turn = waiting();
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(1, Tcp);
    let mut handle = pool.handle().unwrap();
    let name = name_in(&mut handle, 1);
    let word = GAddr(name.0 + 8);
    let mut away = holder(&stage, (0, Tcp), name);
    let token = tell(&mut away, "lock").unwrap();
    assert_eq!(tell(&mut away, "write"), Ok(0));
    handle.write_u64(word, 0).unwrap();
    stage.kill_daemon(1);
    stage.start_daemon(1);
    // It says nothing meanwhile, so its connection is not there and its locks go.
    let guard = handle.lock(name, LockMode::Write, LockOptions::line()).unwrap();
    assert!(guard.token() > token);
    handle.write_u64(word, 7).unwrap();
    assert_eq!(tell(&mut away, "write"), Err("lock-lost".into()));
    assert_eq!(handle.read_u64(word).unwrap(), 7, "nothing of it was done");
    assert_eq!(tell(&mut away, "check"), Err("lock-lost".into()));
    assert_eq!(tell(&mut away, "unlock"), Err("lock-lost".into()));
    handle.check_lock(&guard).unwrap();
    handle.unlock(guard).unwrap();
    tell(&mut away, "lock").unwrap();
    assert_eq!(tell(&mut away, "write"), Ok(0), "told once, it goes on");
    assert_eq!(tell(&mut away, "unlock"), Ok(0));
    handle.free(name, 64).unwrap();
    drop((away, handle, pool));
    stage.finish();
}
