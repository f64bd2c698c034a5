//! Series of `kill -9` at random moments, of each kind of process, while clients put, get, remove
//! and move objects and the table grows. After each series the pool settles by itself: `fsck` finds
//! nothing lost, every value that was acknowledged is there with its bytes, and nothing is left
//! behind. 20 kills a kind; `RACKPOOL_KILLS=200` (`cargo xtask soak kills`) for ten such series.

mod common;

use common::{Dir, Server, WITHIN, rackpool, run, told, unique};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Kills between two looks.
const SERIES: u32 = 20;
/// Clients, half of them in each rack.
const CLIENTS: u16 = 4;
/// Handles of a daemon's own threads: one moves pages, one keeps replicas, one sweeps.
const OWN_SLOTS_MAX: usize = 3;
/// Objects of each client.
const OBJECTS: u64 = 400;
/// Objects that are there before: nearly as many as the first buckets take, so that the table grows
/// while others change it.
const BALLAST: u32 = 700;
/// A value that is stored in its bucket is shorter, one of several pages longer.
const LENGTHS: [usize; 4] = [20, 900, 9_000, 700_000];

/// A generator of random numbers that a seed repeats (xorshift).
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What each object may hold: the number of its last acknowledged value, and of those whose answer
/// never came; 0 is none.
type Known = BTreeMap<u64, Vec<u64>>;

fn value(number: u64) -> Vec<u8> {
    let length = LENGTHS[number as usize % LENGTHS.len()];
    let text = format!("value {number:016} ").into_bytes();
    text.iter().copied().cycle().take(length).collect()
}

/// A master and two racks that keep their addresses and memory over kills.
struct Pool {
    dir: Dir,
    name: String,
    master: Option<Server>,
    daemons: Vec<Option<Server>>,
    addr: String,
}

impl Pool {
    fn start() -> Pool {
        let (dir, name) = (Dir::new(), unique("kills"));
        let mut pool =
            Pool { dir, name, master: None, daemons: vec![None, None], addr: "127.0.0.1:0".into() };
        pool.start_master();
        (0..2).for_each(|rack| pool.start_daemon(rack));
        pool
    }

    fn start_master(&mut self) {
        let state = self.dir.file("state");
        let server = Server::start(&["master", "--listen", &self.addr, "--state", &state]);
        self.addr.clone_from(&server.addr);
        self.master = Some(server);
    }

    fn start_daemon(&mut self, rack: usize) {
        let memory = format!("shm:/dev/shm/{}-{rack}?size=256M", self.name);
        let words = ["daemon", "--rack", &rack.to_string(), "--master", &self.addr, "--memory"];
        let mut command = rackpool();
        let mut log = std::fs::File::options();
        let log = log.append(true).create(true).open(self.dir.file(&format!("daemon-{rack}.log")));
        let log = log.expect("a log");
        command.args(words).args([&memory, "--session-grace-ms", "1000"]).stderr(log);
        self.daemons[rack] = Some(Server::by(&mut command));
    }

    /// Files of the pool's memory.
    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let ours = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&self.name))
        };
        entries.map(|entry| entry.path()).filter(ours).collect()
    }

    /// Waits until `fsck` finds nothing wrong; what it said last.
    fn settle(&self, what: &str) {
        let start = Instant::now();
        loop {
            let told = told(&run(&["fsck", "--master", &self.addr]));
            if told.0 == 0 {
                return;
            }
            if start.elapsed() > WITHIN {
                let log = |rack| std::fs::read_to_string(self.dir.file(rack)).unwrap_or_default();
                let logs = format!("{}{}", log("daemon-0.log"), log("daemon-1.log"));
                panic!("after {what} the pool does not settle: {told:?}\n{logs}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Pool {
    /// Waits until no slot is left but those of the daemons' own threads.
    fn await_slots(&self) {
        let is_slot = |path: &&PathBuf| path.to_string_lossy().contains(".slot-");
        let start = Instant::now();
        while self.files().iter().filter(is_slot).count() > self.daemons.len() * OWN_SLOTS_MAX {
            assert!(start.elapsed() < WITHIN, "slots of clients that are gone: {:?}", self.files());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.daemons.clear();
        self.files().iter().for_each(|file| _ = std::fs::remove_file(file));
    }
}

/// A shell that gets one command after the other.
struct Shell {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Shell {
    fn start(rack: u16, master: &str) -> Shell {
        let mut child = rackpool()
            .args(["shell", "--rack", &rack.to_string(), "--master", master])
            .args(["--timeout-ms", "20000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let answers = BufReader::new(child.stdout.take().expect("it was asked for"));
        Shell { child, answers }
    }

    /// The first line of the answer; `None` if the shell has ended.
    fn ask(&mut self, command: &str) -> Option<String> {
        let input = self.child.stdin.as_mut().expect("it was asked for");
        writeln!(input, "{command}").ok()?;
        let mut line = String::new();
        self.answers.read_line(&mut line).ok()?;
        line.ends_with('\n').then(|| line.trim_end().to_owned())
    }
}

impl Shell {
    /// Lets it end in its own time, after what it is at.
    fn end(&mut self) {
        drop(self.child.stdin.take());
        let start = Instant::now();
        while start.elapsed() < WITHIN && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that works until it is told to stop, in one process after the other.
struct Client {
    pid: Arc<Mutex<Option<u32>>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Known>,
}

impl Client {
    fn start(number: u16, pool: &Pool, known: Known, seed: u64) -> Client {
        let (pid, stop) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
        let (master, folder) = (pool.addr.clone(), pool.dir.0.clone());
        let (own_pid, own_stop) = (Arc::clone(&pid), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut work = Work { number, folder, known, rng: Rng(seed | 1), next: seed << 20 };
            while !own_stop.load(Ordering::Relaxed) {
                let mut shell = Shell::start(number % 2, &master);
                *own_pid.lock().expect("no panic under it") = Some(shell.child.id());
                while !own_stop.load(Ordering::Relaxed) && work.step(&mut shell).is_some() {}
                // Only what has not been waited for is killed.
                *own_pid.lock().expect("no panic under it") = None;
                shell.end();
            }
            work.known
        });
        Client { pid, stop, thread }
    }

    /// Kills its process of the moment, if it has one.
    fn kill(&self) {
        let pid = self.pid.lock().expect("no panic under it");
        if let Some(pid) = pid.and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }

    fn end(self) -> Known {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the client's thread")
    }
}

/// What a client does, one step after the other.
struct Work {
    number: u16,
    folder: PathBuf,
    known: Known,
    rng: Rng,
    next: u64,
}

impl Work {
    /// `None` if the shell has ended.
    fn step(&mut self, shell: &mut Shell) -> Option<()> {
        let object = self.rng.below(OBJECTS);
        let name = name_of(self.number, object);
        let may_be = self.known.entry(object).or_insert_with(|| vec![0]);
        if may_be.len() == 1 && may_be[0] > 0 && self.rng.below(6) == 0 {
            may_be.push(0);
            let answer = shell.ask(&format!("del {name}"))?;
            assert_eq!(answer, "ok", "{name} was there");
            *may_be = vec![0];
            return Some(());
        }
        if may_be.len() == 1 && may_be[0] > 0 && self.rng.below(4) == 0 {
            let file = self.folder.join(format!("got-{}", self.number));
            let answer = shell.ask(&format!("get {name} file:{}", file.display()))?;
            let found = std::fs::read(&file).expect("the shell wrote it");
            assert!(answer == "ok" && found == value(may_be[0]), "{name} has changed");
            return Some(());
        }
        self.next += 1;
        let file = self.folder.join(format!("put-{}", self.number));
        std::fs::write(&file, value(self.next)).expect("a temporary file");
        may_be.push(self.next);
        let answer = shell.ask(&format!("put {name} file:{}", file.display()))?;
        assert_eq!(answer, "ok");
        *may_be = vec![self.next];
        Some(())
    }
}

fn name_of(client: u16, object: u64) -> String {
    format!("client{client}/object{object}")
}

/// Whether each object holds what it may.
fn check_objects(pool: &Pool, client: u16, known: &mut Known) {
    let mut shell = Shell::start(1 - client % 2, &pool.addr);
    let names = pool.dir.file("get");
    for (object, may_be) in known {
        let name = name_of(client, *object);
        let _ = std::fs::remove_file(&names);
        let found = match shell.ask(&format!("get {name} file:{names}")) {
            Some(answer) => {
                assert_eq!(answer, "ok", "{name}");
                std::fs::read(&names).expect("the shell wrote it")
            }
            // An object that is not there ends the shell.
            None => {
                shell.end();
                shell = Shell::start(1 - client % 2, &pool.addr);
                Vec::new()
            }
        };
        let number = may_be.iter().copied().find(|number| match number {
            0 => found.is_empty(),
            number => found == value(*number),
        });
        let begins = String::from_utf8_lossy(&found[..found.len().min(40)]).into_owned();
        let number = number.unwrap_or_else(|| {
            panic!("{name} holds {} bytes, {begins:?}; it may be {may_be:?}", found.len())
        });
        *may_be = vec![number];
    }
}

/// Moves the pages of objects to and fro until it is told to stop. Refusals do not matter.
fn move_pages(pool: &Pool, stop: &Arc<AtomicBool>, seed: u64) -> JoinHandle<u32> {
    let (master, stop, mut rng) = (pool.addr.clone(), Arc::clone(stop), Rng(seed | 1));
    std::thread::spawn(move || {
        let mut moved = 0;
        while !stop.load(Ordering::Relaxed) {
            let name = name_of(rng.below(u64::from(CLIENTS)) as u16, rng.below(OBJECTS));
            let shell = |command: &str| {
                told(&run(&["shell", "--master", &master, "--timeout-ms", "20000", "-c", command]))
            };
            let (_, explained, _) = shell(&format!("explain {name}"));
            let addr = explained.lines().find_map(|line| line.strip_prefix("addr="));
            if let Some(addr) = addr {
                let (code, ..) = shell(&format!("migrate {addr} rack:{}", rng.below(2)));
                moved += u32::from(code == 0);
            }
        }
        moved
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Client,
    Daemon,
    Master,
}

fn kill_in_series(victim: Victim) {
    let kills = std::env::var("RACKPOOL_KILLS").ok().and_then(|kills| kills.parse().ok());
    let seed = std::env::var("RACKPOOL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed}: RACKPOOL_SEED={seed} repeats the choices");
    let (mut rng, mut pool) = (Rng(seed << 8 | 1), Pool::start());
    let mut known: Vec<Known> = (0..CLIENTS).map(|_| Known::new()).collect();
    let mut shell = Shell::start(0, &pool.addr);
    (0..BALLAST).for_each(|n| assert!(shell.ask(&format!("put ballast{n} text:x")).is_some()));
    shell.end();
    for series in 0..kills.unwrap_or(SERIES) / SERIES {
        let start = |(number, known): (u16, Known)| {
            let seed = seed + 100 * u64::from(series) + u64::from(number);
            Client::start(number, &pool, known, seed)
        };
        let clients: Vec<Client> = (0..).zip(std::mem::take(&mut known)).map(start).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let mover = move_pages(&pool, &stop, seed + u64::from(series));
        for _ in 0..SERIES {
            std::thread::sleep(Duration::from_millis(20 + rng.below(130)));
            match victim {
                Victim::Client => clients[rng.below(clients.len() as u64) as usize].kill(),
                Victim::Daemon => {
                    let rack = rng.below(2) as usize;
                    pool.daemons[rack] = None;
                    pool.start_daemon(rack);
                }
                Victim::Master => {
                    pool.master = None;
                    pool.start_master();
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        let moved = mover.join().expect("the mover");
        println!("series {series} of kills of a {victim:?}: {moved} pages moved");
        known = clients.into_iter().map(Client::end).collect();
        pool.settle(&format!("series {series} of kills of a {victim:?}, {moved} moves"));
        (0..).zip(&mut known).for_each(|(number, known)| check_objects(&pool, number, known));
        pool.await_slots();
    }
    for daemon in pool.daemons.iter_mut().flatten() {
        assert_eq!(daemon.terminate(), Some(0));
    }
}

#[test]
fn a_killed_client_leaves_nothing_behind() {
    kill_in_series(Victim::Client);
}

#[test]
fn a_killed_daemon_loses_and_leaks_nothing() {
    kill_in_series(Victim::Daemon);
}

#[test]
fn a_killed_master_loses_and_leaks_nothing() {
    kill_in_series(Victim::Master);
}
