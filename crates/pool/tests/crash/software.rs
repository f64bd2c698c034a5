//! A rack with hosts that are kept coherent by software: daemon, agent and clients as processes.
//! The other host is a name and a boot identity, so caches agree here in any case: this is about
//! what is done and refused, and that no message goes astray. What each flush is for is shown by
//! the simulator; several kernels on one devdax are in `cargo xtask vm rack-two`.

use crate::tools::stage::Stage;
use crate::tools::{PATIENCE, Proc, busy, say, wait_until};
use rackpool::agent::{AgentOptions, AgentServer};
use rackpool::daemon::{DaemonOptions, DaemonServer};
use rackpool::{
    CasOutcome, DaemonStats, Error, FabricChoice, GAddr, Handle, LockMode, LockOptions, Options,
    Placement, Pool, RackId,
};
use rackpool_core::wire::FabricKind;
use std::io::BufRead;

const MEMORY: &str = "size=8M&pages=64K&coherence=software";
/// What clients write at once: some pages, and no whole number of lines.
const BYTES: usize = 150_001;
/// What one that is killed writes again and again.
const WORDS: usize = 20_000;

/// A child in one of this file's roles.
pub fn child(role: &str, args: &[&str]) {
    match role {
        "agent" => agent(args),
        "client" => client(args),
        other => panic!("no role {other}"),
    }
}

fn agent(args: &[&str]) {
    let [master, memory, host] = args else { panic!("{args:?}") };
    std::thread::spawn(|| {
        let _ = std::io::stdin().lock().lines().count();
        std::process::exit(3);
    });
    let options = AgentOptions::new(0, master, memory, "host-b");
    let options = AgentOptions { host: Some((*host).into()), ..options };
    AgentServer::run(options, |at| say(&format!("ready {at}"))).unwrap();
}

/// A client that does what it is told, a line at a time, until its input ends.
fn client(args: &[&str]) {
    let [master, host] = args else { panic!("{args:?}") };
    let host = (!host.is_empty()).then(|| (*host).to_string());
    let options = Options { host, ..Options::new(master, 0) };
    let mut handle = Pool::open(options).unwrap().handle().unwrap();
    say("ready client");
    let mut guards = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let addr = GAddr(number(1));
        let done = match words[0] {
            "add" => (0..number(2)).try_for_each(|_| handle.fetch_add(addr, 1).map(drop)),
            "locked" => (0..number(2)).try_for_each(|_| add_locked(&mut handle, addr)),
            "write" => handle.write(addr, &pattern(number(2))),
            "check" => check(&mut handle, addr, number(2)),
            "hold" => handle
                .lock(addr, LockMode::Write, LockOptions::line())
                .map(|guard| guards.push(guard)),
            "flood" => flood(&mut handle, addr),
            other => panic!("{other}"),
        };
        say(&done.map_or_else(|error| format!("not {error}"), |()| "ok".into()));
    }
}

fn add_locked(handle: &mut Handle, addr: GAddr) -> Result<(), Error> {
    let guard = handle.lock(addr, LockMode::Write, LockOptions::line())?;
    let value = handle.read_u64(addr)?;
    handle.write_u64(addr, value + 1)?;
    handle.unlock(guard)
}

fn check(handle: &mut Handle, addr: GAddr, seed: u64) -> Result<(), Error> {
    let mut back = vec![0; BYTES];
    handle.read(addr, &mut back)?;
    assert!(back == pattern(seed), "pattern {seed} at {addr}");
    Ok(())
}

/// Under a lock that is never given back, until this process is killed.
fn flood(handle: &mut Handle, addr: GAddr) -> Result<(), Error> {
    let _guard = handle.lock(addr, LockMode::Write, LockOptions::line())?;
    for round in 1.. {
        handle.write(addr, &filled(round))?;
        if round == 3 {
            say("writing");
        }
    }
    Ok(())
}

fn pattern(seed: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|at| (at.wrapping_mul(2 * seed + 1) >> 3) as u8).collect()
}

fn filled(word: u64) -> Vec<u8> {
    std::iter::repeat_n(word.to_le_bytes(), WORDS).flatten().collect()
}

/// A rack of two hosts: its servers, and handles of the test itself on either.
struct Rack {
    stage: Stage,
    agent: Option<Proc>,
    host: String,
}

impl Rack {
    fn new() -> Rack {
        let stage = Stage::new(&[MEMORY]);
        let host = format!("host-b-{}", stage.addr.replace(':', "-"));
        let mut rack = Rack { stage, agent: None, host };
        rack.start_agent();
        rack
    }

    fn start_agent(&mut self) {
        let args = [self.stage.addr.clone(), self.memory(), self.host.clone()];
        let agent = Proc::start("agent", "agent", &args);
        agent.ready().unwrap();
        self.agent = Some(agent);
    }

    fn memory(&self) -> String {
        self.stage.memory[0].clone()
    }

    fn options_there(&self) -> Options {
        Options { host: Some(self.host.clone()), ..Options::new(&self.stage.addr, 0) }
    }

    fn here(&self) -> Handle {
        self.stage.pool(0, FabricChoice::Auto).handle().unwrap()
    }

    fn there(&self) -> Handle {
        Pool::open(self.options_there()).unwrap().handle().unwrap()
    }

    /// A client process; on the other host if it is `apart`.
    fn client(&self, is_apart: bool) -> Proc {
        let host = if is_apart { self.host.clone() } else { String::new() };
        let client = Proc::start("client", "client", &[self.stage.addr.clone(), host]);
        client.ready().unwrap();
        client
    }

    fn stats(&self, handle: &mut Handle) -> DaemonStats {
        handle.admin().pool_stats().unwrap().racks[0].daemon.clone().unwrap()
    }

    fn wait_slots(&self, handle: &mut Handle, slots: u64) {
        wait_until("slots are given back", PATIENCE, || {
            let used = self.stats(handle).slots_used;
            (used != slots).then(|| format!("{used} are used, not {slots}"))
        });
    }

    fn finish(mut self) {
        let mut agent = self.agent.take().unwrap();
        assert!(!agent.stderr().contains("panicked"), "{}", agent.stderr());
        agent.terminate();
        assert_eq!(agent.exit_code(PATIENCE), Some(0), "{}", agent.stderr());
        self.stage.finish();
    }
}

fn told(client: &mut Proc, what: &str) {
    client.tell(what);
    said(client, "ok");
}

fn said(client: &Proc, expected: &str) {
    let line = client.line(PATIENCE).unwrap_or_else(|| panic!("ended: {}", client.stderr()));
    assert_eq!(line, expected, "{}", client.stderr());
}

#[test]
fn processes_of_two_hosts_share_data_atomics_and_locks() {
    let _turn = busy();
    let rack = Rack::new();
    let mut handle = rack.here();
    let mut clients = [rack.client(false), rack.client(true)];
    let places = [0, 1].map(|_| handle.alloc(BYTES as u64, Placement::Local).unwrap());
    for (seed, place) in (1..).zip(places) {
        let (writer, reader) = (seed as usize % 2, 1 - seed as usize % 2);
        told(&mut clients[writer], &format!("write {} {seed}", place.0));
        told(&mut clients[reader], &format!("check {} {seed}", place.0));
        check(&mut handle, place, seed).unwrap();
    }
    // Both count in one line, by the processor here and by the daemon there.
    let words = handle.alloc(64, Placement::Local).unwrap();
    let before = rack.stats(&mut handle).requests_by_kind;
    for (at, client) in (0..).zip(&mut clients) {
        client.tell(&format!("add {} 3000", words.0));
        client.tell(&format!("add {} 1000", words.0 + 8 + 8 * at));
    }
    for client in &clients {
        said(client, "ok");
        said(client, "ok");
    }
    assert_eq!(handle.read_u64(words).unwrap(), 6000);
    for at in [8, 16] {
        assert_eq!(handle.read_u64(GAddr(words.0 + at)).unwrap(), 1000);
    }
    let after = rack.stats(&mut handle).requests_by_kind;
    assert_eq!(after.fetch_add - before.fetch_add, 4000, "the daemon adds for the other host");
    let counted = handle.alloc(64, Placement::Local).unwrap();
    clients.iter_mut().for_each(|client| client.tell(&format!("locked {} 200", counted.0)));
    clients.iter().for_each(|client| said(client, "ok"));
    assert_eq!(handle.read_u64(counted).unwrap(), 400);
    drop(clients);
    rack.wait_slots(&mut handle, 1);
    drop(handle);
    rack.finish();
}

#[test]
fn reads_and_writes_of_the_other_host_need_nobody_and_words_one_request_each() {
    let _turn = busy();
    let rack = Rack::new();
    let (mut here, mut there) = (rack.here(), rack.there());
    assert_eq!(rack.stats(&mut here).coherence.to_string(), "software");
    let addr = there.alloc(4096, Placement::Local).unwrap();
    there.write(addr, &[1; 200]).unwrap();
    here.read_u64(addr).unwrap();
    let at = there.explain(addr).unwrap();
    assert_eq!((at.own_rack, at.path.as_str()), (true, "mapped"));
    let before = (there.handle_stats(), here.handle_stats());
    let mut back = [0; 200];
    for round in 0..100 {
        there.write(addr, &[round; 200]).unwrap();
        here.read(addr, &mut back).unwrap();
        assert_eq!(back, [round; 200]);
        here.write_u64(addr, 7).unwrap();
        assert_eq!(there.read_u64(addr).unwrap(), 7);
        assert_eq!(here.fetch_add(addr, 1).unwrap(), 7);
    }
    assert_eq!(
        (there.handle_stats(), here.handle_stats()),
        before,
        "warm accesses need no other process"
    );
    let requests = there.handle_stats().ring_requests;
    for round in 0..100 {
        there.write_u64(addr, round).unwrap();
        assert_eq!(here.read_u64(addr).unwrap(), round);
        assert_eq!(there.cas(addr, round, round + 1).unwrap(), CasOutcome::Swapped);
        assert_eq!(there.cas(addr, round, 0).unwrap(), CasOutcome::Found(round + 1));
        assert_eq!(here.cas(addr, round + 1, round).unwrap(), CasOutcome::Swapped);
        assert_eq!(there.fetch_add(addr, 5).unwrap(), round);
        assert_eq!(here.read_u64(addr).unwrap(), round + 5);
    }
    assert_eq!(there.handle_stats().ring_requests - requests, 400);
    // A page that is freed has no owner on either host.
    let page_bytes = here.page_bytes();
    for _ in 0..20 {
        let page = here.alloc(page_bytes, Placement::Local).unwrap();
        assert_eq!(there.read_u64(page).unwrap(), 0);
        there.write(page, &[9; 4096]).unwrap();
        here.free(page, page_bytes).unwrap();
        assert_eq!(there.read_u64(page).unwrap_err().code(), "not-mapped");
    }
    drop((here, there));
    rack.finish();
}

#[test]
fn a_killed_process_of_the_other_host_leaves_its_lock_and_whole_lines_to_the_next() {
    let _turn = busy();
    let rack = Rack::new();
    let mut handle = rack.here();
    let near = handle.alloc(WORDS as u64 * 8, Placement::Local).unwrap();
    let far = handle.alloc(WORDS as u64 * 8, Placement::Local).unwrap();
    let held = handle.alloc(64, Placement::Local).unwrap();
    let mut holder = rack.client(true);
    told(&mut holder, &format!("hold {}", held.0));
    assert_eq!(
        handle.lock(held, LockMode::Write, LockOptions::line().within_ms(50)).unwrap_err().code(),
        "lock-timeout"
    );
    let mut writers = [(rack.client(false), near), (rack.client(true), far)];
    for (writer, place) in &mut writers {
        writer.tell(&format!("flood {}", place.0));
        said(writer, "writing");
    }
    holder.kill();
    writers.iter_mut().for_each(|(writer, _)| writer.kill());
    for (_, place) in &writers {
        let guard = handle.lock(*place, LockMode::Write, LockOptions::line()).unwrap();
        let mut back = vec![0; WORDS * 8];
        handle.read(*place, &mut back).unwrap();
        let words = back.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let words: Vec<u64> = words.collect();
        let torn = words.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(words[0] >= 3 && torn <= 1, "{} {torn}", words[0]);
        // What is written now stays, whatever the dead one had in flight.
        handle.write(*place, &filled(0)).unwrap();
        handle.unlock(guard).unwrap();
    }
    let guard = handle.lock(held, LockMode::Write, LockOptions::line()).unwrap();
    handle.unlock(guard).unwrap();
    rack.wait_slots(&mut handle, 1);
    for (_, place) in &writers {
        let mut back = vec![1; WORDS * 8];
        handle.read(*place, &mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == 0));
    }
    drop(handle);
    rack.finish();
}

#[test]
fn data_locks_and_slots_of_both_hosts_outlive_a_killed_daemon_and_a_killed_agent() {
    let _turn = busy();
    let mut rack = Rack::new();
    let mut handle = rack.here();
    let place = handle.alloc(BYTES as u64, Placement::Local).unwrap();
    let word = handle.alloc(64, Placement::Local).unwrap();
    let (mut near, mut far) = (rack.client(false), rack.client(true));
    told(&mut far, &format!("write {} 4", place.0));
    told(&mut far, &format!("hold {}", word.0));
    for turn in 1..=2 {
        rack.stage.kill_daemon(0);
        rack.stage.start_daemon(0);
        told(&mut near, &format!("check {} 4", place.0));
        told(&mut far, &format!("check {} 4", place.0));
        told(&mut far, &format!("add {} 100", word.0));
        told(&mut near, &format!("add {} 100", word.0));
        assert_eq!(handle.read_u64(word).unwrap(), 200 * turn);
        assert_eq!(
            handle
                .lock(word, LockMode::Write, LockOptions::line().within_ms(100))
                .unwrap_err()
                .code(),
            "lock-timeout"
        );
        rack.agent.take().unwrap().kill();
        rack.start_agent();
    }
    told(&mut far, &format!("add {} 100", word.0));
    // A client that dies while no agent is there is found dead by the next one.
    rack.agent.take().unwrap().kill();
    far.kill();
    assert_eq!(
        handle.lock(word, LockMode::Write, LockOptions::line().within_ms(300)).unwrap_err().code(),
        "lock-timeout"
    );
    rack.start_agent();
    let guard = handle.lock(word, LockMode::Write, LockOptions::line()).unwrap();
    handle.unlock(guard).unwrap();
    assert_eq!(handle.read_u64(word).unwrap(), 500);
    drop(near);
    rack.wait_slots(&mut handle, 1);
    drop(handle);
    rack.finish();
}

#[test]
fn what_software_cannot_keep_coherent_is_refused_with_the_way_out() {
    let _turn = busy();
    let rack = Rack::new();
    let refused = |options: Options, what: &str| {
        let error = Pool::open(options).and_then(|pool| pool.handle()).map(drop).unwrap_err();
        assert_eq!(error.code(), "config", "{error}");
        let text = error.to_string();
        assert!(text.contains("software") && text.contains(what), "{text}");
    };
    for options in [Options::new(&rack.stage.addr, 0), rack.options_there()] {
        refused(options.fabric(FabricChoice::Verbs), "use fabric `tcp`");
    }
    let mut there = rack.there();
    let addr = there.alloc(64, Placement::Local).unwrap();
    for handle in [&mut there, &mut rack.here()] {
        let error = handle.pin(addr, 64).map(drop).unwrap_err();
        assert_eq!(error.code(), "denied", "{error}");
        assert!(error.to_string().contains("software"), "{error}");
    }
    let daemon = |change: fn(&mut DaemonOptions), memory: &str| {
        let mut options = DaemonOptions::new(1, &rack.stage.addr, memory);
        change(&mut options);
        DaemonServer::start(options).map(drop).unwrap_err()
    };
    let other = rack.memory().replace("-rack0", "-rack1");
    for (change, way_out) in [
        ((|options| options.fabric = FabricKind::Verbs) as fn(&mut DaemonOptions), "tcp"),
        (|options| options.fabric = FabricKind::Shm, "tcp"),
        (|options| options.shards = 2, "without shards"),
    ] {
        let error = daemon(change, &other);
        assert_eq!(error.code(), "config", "{error}");
        assert!(error.to_string().contains("software"), "{error}");
        assert!(error.to_string().contains(way_out), "{error}");
    }
    let hardware = rack.memory().replace("=software", "=hardware");
    let agent = AgentOptions::new(0, &rack.stage.addr, &hardware, "host-c");
    let agent = AgentOptions { host: Some(format!("{}-c", rack.host)), ..agent };
    let error = AgentServer::start(agent).map(drop).unwrap_err();
    assert_eq!(error.code(), "bad-region", "{error}");
    assert!(error.to_string().contains("has coherence software"), "{error}");
    let error = daemon(|_| (), "heap?size=4M&coherence=software");
    assert!(error.to_string().contains("heap has no key \"coherence\""), "{error}");
    // Another rack's clients come over the fabric, and do not map it.
    let mut options = DaemonOptions::new(1, &rack.stage.addr, "heap?size=4M&pages=64K");
    options.ephemeral = true;
    let next = DaemonServer::start(options).unwrap();
    let mut beside = rack.stage.pool(1, FabricChoice::Shm).handle().unwrap();
    let error = beside.read(addr, &mut [0; 8]).unwrap_err();
    assert_eq!(error.code(), "config", "{error}");
    assert!(error.to_string().contains("use `tcp`"), "{error}");
    let mut beyond = rack.stage.pool(1, FabricChoice::Tcp).handle().unwrap();
    there.write(addr, b"by the other host's caches").unwrap();
    let mut back = [0; 26];
    beyond.read(addr, &mut back).unwrap();
    assert_eq!(&back, b"by the other host's caches");
    assert_eq!(beyond.fetch_add(GAddr(addr.0 + 56), 3).unwrap(), 0);
    assert_eq!(there.fetch_add(GAddr(addr.0 + 56), 3).unwrap(), 3);
    assert_eq!(there.alloc(64, Placement::Rack(RackId(1))).map(drop), Ok(()));
    drop((beside, beyond, there, next));
    rack.finish();
}
