//! Buffered writes and cached reads under locks of ranges while their holders and their daemon are
//! killed and stopped, in real processes: a client that gets a lock sees what was unlocked, and
//! whole writes; a client that lost one is told what did not reach home, and reads no old copy.

use crate::tools::rows::{self, TABLE_BYTES};
use crate::tools::stage::{MEMORY, Stage};
use crate::tools::{PATIENCE, Proc, Random, seed, wait_until, waiting};
use rackpool::FabricChoice::Tcp;
use rackpool::{GAddr, Handle, LockMode, LockOptions, Placement, RackId};
use std::time::{Duration, Instant};

fn ready(role: &str, args: &[String]) -> Proc {
    let proc = Proc::start(role, role, args);
    proc.ready().unwrap_or_else(|error| panic!("{role}: {error}"));
    proc
}

fn holder(stage: &Stage, rack: u16, name: GAddr) -> Proc {
    let args = [stage.addr.clone(), rack.to_string(), "tcp".into(), name.0.to_string(), "".into()];
    ready("holder", &args)
}

fn tell(proc: &mut Proc, what: &str) -> Result<u64, String> {
    proc.tell(what);
    let line = proc.line(PATIENCE).unwrap_or_else(|| panic!("ended; stderr: {}", proc.stderr()));
    let words: Vec<&str> = line.split(' ').collect();
    match words[0] {
        "ok" => Ok(words[1].parse().expect("a number")),
        "not" => Err(words[1].into()),
        _ => panic!("{line}"),
    }
}

fn line_in(handle: &mut Handle, rack: u16) -> (GAddr, GAddr) {
    let name = handle.alloc(64, Placement::Rack(RackId(rack))).unwrap();
    (name, GAddr(name.0 + 8))
}

#[test]
fn a_killed_holder_leaves_nothing_of_what_it_had_only_buffered() {
    let _turn = waiting();
    let stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(1, Tcp);
    let mut handle = pool.handle().unwrap();
    let (name, word) = line_in(&mut handle, 1);
    let mut first = holder(&stage, 0, name);
    tell(&mut first, "range").unwrap();
    assert_eq!(tell(&mut first, "write"), Ok(0));
    let value = tell(&mut first, "read").unwrap();
    assert_eq!(value, first.pid().as_raw_nonzero().get() as u64, "its own reads see it");
    first.kill();
    let guard = handle.lock(name, LockMode::Write, LockOptions::range(64)).unwrap();
    assert_eq!(handle.read_u64(word), Ok(0));
    handle.unlock(guard).unwrap();
    drop((handle, pool));
    stage.finish();
}

#[test]
fn who_lost_its_lock_is_told_of_buffered_writes_and_they_are_not_done_later() {
    let _turn = waiting();
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(1, Tcp);
    let mut handle = pool.handle().unwrap();
    let (name, word) = line_in(&mut handle, 1);
    for (way, told) in [("unlock", "writes-lost"), ("check", "writes-lost"), ("drop", "")] {
        let mut away = holder(&stage, 0, name);
        tell(&mut away, "range").unwrap();
        assert_eq!(tell(&mut away, "write"), Ok(0));
        if way == "drop" {
            assert_eq!(tell(&mut away, "drop"), Ok(0));
        }
        stage.kill_daemon(1);
        stage.start_daemon(1);
        // It says nothing meanwhile, so its connection is not there and its lock goes.
        let guard = handle.lock(name, LockMode::Write, LockOptions::range(64)).unwrap();
        handle.write_u64(word, 7).unwrap();
        if way == "drop" {
            // A client without a guard is told of it with the next call.
            assert_eq!(tell(&mut away, "read"), Err("writes-lost".into()));
            assert_eq!(tell(&mut away, "read"), Ok(7));
        } else {
            assert_eq!(tell(&mut away, way), Err(told.into()));
        }
        assert_eq!(handle.read_u64(word), Ok(7), "{way}: nothing of it was done");
        if way == "check" {
            assert_eq!(tell(&mut away, "unlock"), Err("lock-lost".into()));
        }
        handle.unlock(guard).unwrap();
        tell(&mut away, "range").unwrap();
        assert_eq!(tell(&mut away, "write"), Ok(0), "told once, it goes on");
        assert_eq!(tell(&mut away, "unlock"), Ok(0));
        assert_ne!(handle.read_u64(word), Ok(7));
        away.kill();
    }
    drop((handle, pool));
    stage.finish();
}

#[test]
fn who_lost_its_lock_for_reading_reads_no_copy_any_more() {
    let _turn = waiting();
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(1, Tcp);
    let mut handle = pool.handle().unwrap();
    let (name, word) = line_in(&mut handle, 1);
    let mut away = holder(&stage, 0, name);
    tell(&mut away, "share").unwrap();
    assert_eq!(tell(&mut away, "read"), Ok(0));
    assert_eq!(tell(&mut away, "read"), Ok(0));
    stage.kill_daemon(1);
    stage.start_daemon(1);
    let guard = handle.lock(name, LockMode::Write, LockOptions::range(64)).unwrap();
    handle.write_u64(word, 7).unwrap();
    assert_eq!(tell(&mut away, "read"), Err("lock-lost".into()));
    assert_eq!(tell(&mut away, "read"), Ok(7), "from home");
    assert_eq!(tell(&mut away, "unlock"), Err("lock-lost".into()));
    handle.unlock(guard).unwrap();
    drop((away, handle, pool));
    stage.finish();
}

#[test]
fn a_stopped_reader_keeps_its_lock_and_its_copy_is_right_when_it_goes_on() {
    let _turn = waiting();
    let stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(1, Tcp);
    let mut handle = pool.handle().unwrap();
    let (name, word) = line_in(&mut handle, 1);
    let mut stopped = holder(&stage, 0, name);
    tell(&mut stopped, "share").unwrap();
    assert_eq!(tell(&mut stopped, "read"), Ok(0));
    stopped.pause();
    // Longer than any lease.
    let error =
        handle.lock(name, LockMode::Write, LockOptions::range(64).within_ms(2_500)).unwrap_err();
    assert_eq!(error.code(), "lock-timeout");
    stopped.resume();
    assert_eq!(tell(&mut stopped, "read"), Ok(0));
    assert_eq!(tell(&mut stopped, "unlock"), Ok(0));
    let guard = handle.lock(name, LockMode::Write, LockOptions::range(64)).unwrap();
    handle.write_u64(word, 7).unwrap();
    handle.unlock(guard).unwrap();
    tell(&mut stopped, "share").unwrap();
    assert_eq!(tell(&mut stopped, "read"), Ok(7));
    drop((stopped, handle, pool));
    stage.finish();
}

/// What the writers of rows said.
#[derive(Debug, Default)]
struct Said {
    unlocked: u64,
    newest: u64,
    mixed: u64,
    retries: u64,
}

impl Said {
    fn take(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "c" => {
                self.unlocked += 1;
                self.newest = self.newest.max(rest.parse().expect("a version"));
            }
            "m" => self.mixed += 1,
            "r" => self.retries += 1,
            "done" | "w" => {}
            _ => panic!("a writer of rows says {line}"),
        }
    }
}

/// Buffers of the writers, bytes: flushed many times under one lock, or at its end.
const BUFFERS: [u32; 3] = [1024, 4096, 1 << 20];

#[test]
fn whoever_dies_while_it_flushes_leaves_whole_rows_and_nothing_that_was_unlocked_is_lost() {
    let _turn = waiting();
    let mut random = Random::new(seed("coupled_rows"));
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = stage.pool(1, Tcp);
    let mut handle = pool.handle().unwrap();
    let table = handle.alloc(TABLE_BYTES, Placement::Rack(RackId(1))).unwrap();
    let mut begin = |stage: &Stage, index: usize| {
        let (bytes, seed) = (BUFFERS[index].to_string(), random.next().to_string());
        ready("rows", &[stage.addr.clone(), "0".into(), table.0.to_string(), bytes, seed])
    };
    let mut procs: Vec<Proc> = (0..BUFFERS.len()).map(|index| begin(&stage, index)).collect();
    let mut pauses = Random::new(seed("coupled_rows_pauses"));
    let mut said = Said::default();
    let (mut kills, mut restarts) = (0, 0);
    for round in 0..24 {
        let (until, wanted) = (Instant::now() + pauses.millis(20, 150), said.unlocked + 5);
        wait_until("rows are written", PATIENCE, || {
            for proc in &procs {
                while let Some(line) = proc.try_line() {
                    said.take(&line);
                }
            }
            let on = said.unlocked >= wanted && Instant::now() >= until;
            (!on).then(|| format!("{said:?}"))
        });
        if round % 6 == 5 {
            restarts += 1;
            stage.kill_daemon(1);
            stage.start_daemon(1);
        } else {
            kills += 1;
            let victim = pauses.below(procs.len() as u64) as usize;
            if round % 3 > 0 {
                // In the midst of its writing, or at its end. What it said before is old.
                while let Some(line) = procs[victim].try_line() {
                    said.take(&line);
                }
                while let Some(line) = procs[victim].line(PATIENCE).filter(|line| line != "w") {
                    said.take(&line);
                }
                std::thread::sleep(Duration::from_micros(pauses.below(600)));
            }
            procs[victim].kill();
            while let Some(line) = procs[victim].line(PATIENCE) {
                said.take(&line);
            }
            procs[victim] = begin(&stage, victim);
        }
    }
    procs.iter_mut().for_each(|proc| proc.tell("stop"));
    for mut proc in procs {
        while let Some(line) = proc.line(PATIENCE) {
            said.take(&line);
        }
        assert_eq!(proc.exit_code(PATIENCE), Some(0), "{}", proc.stderr());
    }
    let guard = handle.lock(table, LockMode::Write, LockOptions::range(TABLE_BYTES)).unwrap();
    let (least, greatest) = rows::versions(&mut handle, table).unwrap();
    handle.unlock(guard).unwrap();
    eprintln!("coupled_rows: {least} to {greatest}, {kills} kills, {restarts} restarts, {said:?}");
    assert!(least >= said.newest, "{least} is older than {} that was unlocked", said.newest);
    drop((handle, pool));
    stage.finish();
}
