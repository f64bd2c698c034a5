//! A master in a process of its own is killed at random moments under load: whatever it
//! acknowledged is there afterwards, and what it did not acknowledge is there as a whole or not
//! at all. The process is this test program itself, started again.

use crate::master_tools::*;
use rackpool::link::MasterLink;
use rackpool::master::{MasterOptions, run};
use rackpool_core::wire::*;
use rackpool_core::{GAddr, PageId, RackId};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const STATE: &str = "RACKPOOL_TEST_MASTER_STATE";
const LISTEN: &str = "RACKPOOL_TEST_MASTER_LISTEN";
const KILLS: u32 = 24;
/// Pages of one commit: enough that a torn one would show.
const RUN: u32 = 64;

/// Does nothing unless this process was started as a master.
#[test]
fn a_child_process_is_a_master() {
    let (Ok(state), Ok(listen)) = (std::env::var(STATE), std::env::var(LISTEN)) else { return };
    let parent = rustix::process::getppid();
    let options = MasterOptions::new(listen, state);
    let orphaned = || rustix::process::getppid() != parent;
    run(&options, &orphaned, |addr| println!("\nready {addr}")).expect("the master runs");
}

struct ChildMaster {
    child: Child,
    addr: String,
}

impl ChildMaster {
    fn start(dir: &Dir, listen: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "master_crash::a_child_process_is_a_master", "--nocapture"])
            .env(STATE, &dir.0)
            .env(LISTEN, listen)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready =
            lines.find_map(|line| line.expect("a line").strip_prefix("ready ").map(str::to_string));
        ChildMaster { child, addr: ready.expect("the master came up") }
    }
}

impl Drop for ChildMaster {
    /// kill -9, in the midst of whatever it does.
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// In a process of its own, so that its writes are those of the one master.
#[test]
fn calls_that_come_together_share_a_sync() {
    let dir = Dir::new("batch");
    let master = ChildMaster::start(&dir, "127.0.0.1:0");
    let writes = || {
        let counts = std::fs::read_to_string(format!("/proc/{}/io", master.child.id())).unwrap();
        let line = counts.lines().find_map(|line| line.strip_prefix("syscw: "));
        line.expect("a count of writes").parse::<u64>().unwrap()
    };
    let mut raw = Raw(TcpStream::connect(&master.addr).unwrap());
    raw.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(raw.call(0, MasterCall::Hello { version: WIRE_VERSION }).answer.is_ok());
    const CALLS: u64 = 500;
    let one = |n| MasterRequest { id: n + 1, call: set_root("a", n, n + 1) };
    let answered = |reply: MasterReply, n| {
        let expected = (n + 1, n + 1, Ok(MasterAnswer::Root(GAddr(n + 1))));
        assert_eq!((reply.id, reply.index, reply.answer), expected);
    };
    // One after the other, then all at once.
    let before = writes();
    for n in 0..CALLS {
        raw.0.write_all(&frame(&one(n))).unwrap();
        answered(raw.receive(), n);
    }
    let apart = writes() - before;
    let all: Vec<u8> = (CALLS..2 * CALLS).flat_map(|n| frame(&one(n))).collect();
    raw.0.write_all(&all).unwrap();
    (CALLS..2 * CALLS).for_each(|n| answered(raw.receive(), n));
    let together = writes() - before - apart;
    println!("{CALLS} calls: {apart} writes one by one, {together} together");
    assert!(apart > CALLS && 10 * together < apart, "{together} writes, {apart} one by one");
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Step {
    Committing,
    Committed,
    Removing,
    Removed,
}

/// What the writers know: a step is noted as under way before the call, as done after it.
#[derive(Default)]
struct Known {
    runs: Vec<(RackId, PageId, Step)>,
    leases: Vec<(PageId, u64)>,
    counter: u64,
}

fn daemon(addr: &str, rack: u16, known: &Mutex<Known>, stop: &AtomicBool) {
    let mut link = MasterLink::new(vec![addr.to_string()]);
    link.set_join(MasterCall::JoinDaemon(info(rack, 1)));
    // Relaxed: the flag carries no data.
    while !stop.load(Ordering::Relaxed) {
        let count = u64::from(RUN);
        let first = lease(&mut link, count);
        let at = {
            let mut known = known.lock().unwrap();
            known.leases.push((first, count));
            known.runs.push((RackId(rack), first, Step::Committing));
            known.runs.len() - 1
        };
        let page = |n: u32| PageId(first.0 + u64::from(n));
        let homes = (0..RUN).map(|n| home(page(n), rack, u64::from(n))).collect();
        assert_eq!(call(&mut link, MasterCall::CommitPages { homes }), Ok(MasterAnswer::Done));
        let remove = (first.0 / count).is_multiple_of(4);
        let step = if remove { Step::Removing } else { Step::Committed };
        known.lock().unwrap().runs[at].2 = step;
        if remove {
            let pages = (0..RUN).map(page).collect();
            let call_remove = MasterCall::RemovePages { rack: RackId(rack), pages };
            assert_eq!(call(&mut link, call_remove), Ok(MasterAnswer::Done));
            known.lock().unwrap().runs[at].2 = Step::Removed;
        }
    }
}

fn counter(addr: &str, known: &Mutex<Known>, stop: &AtomicBool) {
    let mut link = MasterLink::new(vec![addr.to_string()]);
    // Relaxed: the flag carries no data.
    while !stop.load(Ordering::Relaxed) {
        let n = known.lock().unwrap().counter;
        let answer = call(&mut link, set_root("counter", n, n + 1));
        assert_eq!(answer, Ok(MasterAnswer::Root(GAddr(n + 1))));
        known.lock().unwrap().counter = n + 1;
    }
}

/// Compares a master that no other client talks to with what the writers know.
fn check(addr: &str, known: &Mutex<Known>, kill: u32) {
    let mut link = MasterLink::new(vec![addr.to_string()]);
    assert!(call(&mut link, MasterCall::Stats).is_ok());
    // Writers wait for the other address, and a writer that got an answer has noted it by now or
    // does it while this sleeps.
    std::thread::sleep(Duration::from_millis(5));
    let known = known.lock().unwrap();
    let mut pages = 0;
    for (rack, first, step) in &known.runs {
        let answer = call(&mut link, MasterCall::Resolve { page: *first, count: RUN });
        let Ok(MasterAnswer::Homes(homes)) = answer else { panic!("{answer:?}") };
        let there = homes.iter().filter(|h| matches!(h, Resolved::Home(_))).count();
        for (n, resolved) in homes.iter().enumerate() {
            let page = PageId(first.0 + n as u64);
            let expected = Resolved::Home(home(page, rack.0, n as u64));
            assert!(*resolved == expected || *resolved == Resolved::Unmapped);
        }
        let all = RUN as usize;
        match step {
            Step::Committed => assert_eq!(there, all, "kill {kill}: acknowledged, page {first}"),
            Step::Removed => assert_eq!(there, 0, "kill {kill}: acknowledged, page {first}"),
            Step::Committing | Step::Removing => {
                assert!(there == 0 || there == all, "kill {kill}: {there} pages of {first}");
            }
        }
        pages += there as u64;
    }
    let Ok(MasterAnswer::Stats(stats)) = call(&mut link, MasterCall::Stats) else { panic!() };
    assert_eq!((stats.pages, stats.pages_lost), (pages, 0), "kill {kill}");
    match call(&mut link, MasterCall::GetRoot { name: "counter".into() }) {
        Ok(MasterAnswer::Root(GAddr(n))) => {
            assert!(n == known.counter || n == known.counter + 1, "{n}, {}", known.counter);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_master_killed_at_random_moments_keeps_all_it_acknowledged_and_nothing_half_done() {
    let dir = Dir::new("crash");
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = free.local_addr().unwrap().to_string();
    drop(free);
    let seed = 0xdead_u64;
    println!("seed {seed}");
    let mut random = Random(seed);
    let known = Mutex::new(Known::default());
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| daemon(&addr, 0, &known, &stop));
        scope.spawn(|| daemon(&addr, 1, &known, &stop));
        scope.spawn(|| counter(&addr, &known, &stop));
        for kill in 0..KILLS {
            let master = ChildMaster::start(&dir, &addr);
            assert_eq!(master.addr, addr);
            std::thread::sleep(Duration::from_micros(10_000 + random.below(150_000)));
            drop(master);
            let quiet = ChildMaster::start(&dir, "127.0.0.1:0");
            check(&quiet.addr, &known, kill);
        }
        let _master = ChildMaster::start(&dir, &addr);
        // Relaxed: the flag carries no data.
        stop.store(true, Ordering::Relaxed);
        while known.lock().unwrap().runs.iter().any(|run| run.2 == Step::Committing) {
            std::thread::sleep(Duration::from_millis(5));
            assert!(started.elapsed() < Duration::from_secs(300));
        }
        std::thread::sleep(Duration::from_millis(200));
    });
    let mut known = known.into_inner().unwrap();
    println!(
        "{KILLS} kills in {:?}: {} runs of pages, counter at {}",
        started.elapsed(),
        known.runs.len(),
        known.counter
    );
    assert!(known.runs.len() >= KILLS as usize && known.counter >= u64::from(KILLS));
    known.leases.sort();
    let apart = |pair: &[(PageId, u64)]| pair[0].0.0 + pair[0].1 <= pair[1].0.0;
    assert!(known.leases.windows(2).all(apart), "a page id was given out twice");
}
