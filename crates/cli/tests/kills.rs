//! Series of `kill -9` at random moments, of each kind of process, while clients put, get, remove
//! and move objects and the table grows. After each series the pool settles by itself: `fsck` finds
//! nothing lost, every value that was acknowledged is there with its bytes, and no file, process or
//! mount is left behind. 20 kills a kind; `RACKPOOL_KILLS=200` (`cargo xtask soak kills`) for ten
//! such series, each looked at a minute after its end instead of when it has settled.

#[path = "suite/common/mod.rs"]
mod common;

use common::{Dir, Server, WITHIN, rackpool, told, unique};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SERIES: u32 = 20;
/// Clients, half of them in each rack.
const CLIENTS: u16 = 4;
const RACKS: usize = 2;
/// Where the racks' memory is, and how its files end but for slots.
const SHM: &str = "/dev/shm";
const SECTIONS: [&str; 5] = ["-0", "-1", ".meta", ".table", ".bell"];
/// Handles of a daemon's own threads: one moves pages, one keeps replicas, one sweeps.
const OWN_SLOTS_MAX: usize = 3;
const OBJECTS: u64 = 400;
/// Objects that are there before: nearly as many as the first buckets take, so that the table grows
/// while others change it.
const BALLAST: u32 = 700;
/// A value that is stored in its bucket is shorter, one of several pages longer.
const LENGTHS: [usize; 4] = [20, 900, 9_000, 700_000];
/// What the long form waits before it looks.
const MINUTE: Duration = Duration::from_secs(60);
/// Keys and longest value of the cache over the pool.
const CACHE_KEYS: u64 = 200;
const CACHED_BYTES_MAX: u64 = 60_000;

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

/// What each object may hold: the number of its last acknowledged value, and of those that were
/// never answered; 0 is none.
type Known = BTreeMap<u64, Vec<u64>>;

fn value(number: u64) -> Vec<u8> {
    let length = LENGTHS[number as usize % LENGTHS.len()];
    let text = format!("value {number:016} ").into_bytes();
    text.iter().copied().cycle().take(length).collect()
}

/// Where the pool is, for those that use it.
#[derive(Clone)]
struct Site {
    folder: PathBuf,
    addr: String,
    /// Whether clients of rack 0 are on another host than its daemon.
    is_shared: bool,
}

impl Site {
    /// The command, which keeps its temporary files in a folder of the pool.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = rackpool();
        command.args(words).env("TMPDIR", self.temp());
        command
    }

    fn temp(&self) -> PathBuf {
        self.folder.join("temp")
    }

    fn shell(&self, rack: u16) -> Command {
        let rack_word = rack.to_string();
        let words = ["shell", "--rack", &rack_word, "--master", &self.addr];
        let mut command = self.command(&words);
        command.args(["--timeout-ms", "20000"]);
        if self.is_shared && rack == 0 {
            command.env("RACKPOOL_CONFIG", self.config());
        }
        command
    }

    /// A file of options that says which host this is.
    fn config(&self) -> PathBuf {
        self.folder.join("host.toml")
    }
}

/// A master and two racks that keep their addresses and memory over kills; with an agent for rack 0
/// or a cache over the pool, if these are to be killed.
struct Pool {
    dir: Dir,
    name: String,
    site: Site,
    master: Option<Server>,
    daemons: Vec<Option<Server>>,
    agent: Option<Server>,
    cache: Option<(Server, JoinHandle<u64>)>,
    /// Those of the host at the start.
    mounts: BTreeSet<String>,
}

impl Pool {
    fn start(victim: Victim) -> Pool {
        let (dir, name) = (Dir::new(), unique("kills"));
        let (folder, addr) = (dir.0.clone(), "127.0.0.1:0".into());
        let site = Site { folder, addr, is_shared: victim == Victim::Agent };
        std::fs::create_dir(site.temp()).expect("a temporary folder");
        std::fs::write(site.config(), "host = 'host-b'\n").expect("a temporary file");
        let (master, daemons, agent, cache) = (None, vec![None, None], None, None);
        let mounts = mounts();
        let mut pool = Pool { dir, name, site, master, daemons, agent, cache, mounts };
        pool.start_master();
        (0..2).for_each(|rack| pool.start_daemon(rack));
        match victim {
            Victim::Agent => pool.start_agent(),
            Victim::Cache => pool.start_cache(),
            Victim::Client | Victim::Daemon | Victim::Master => {}
        }
        pool
    }

    /// A server that writes its log to a file of that name.
    fn server(&self, name: &str, words: &[&str]) -> Command {
        let mut log = std::fs::File::options();
        let log = log.append(true).create(true).open(self.dir.file(&format!("{name}.log")));
        let mut command = self.site.command(words);
        command.stderr(log.expect("a log"));
        command
    }

    fn start_master(&mut self) {
        let state = self.dir.file("state");
        let words = ["master", "--listen", &self.site.addr, "--state", &state];
        let server = Server::by(&mut self.server("master", &words));
        self.site.addr.clone_from(&server.addr);
        self.master = Some(server);
    }

    fn memory(&self, rack: usize) -> String {
        let coherence = if self.site.is_shared && rack == 0 { "&coherence=software" } else { "" };
        format!("shm:{SHM}/{}-{rack}?size=256M{coherence}", self.name)
    }

    fn start_daemon(&mut self, rack: usize) {
        let (number, memory) = (rack.to_string(), self.memory(rack));
        let words = ["daemon", "--rack", &number, "--master", &self.site.addr, "--memory", &memory];
        let mut command = self.server(&format!("daemon-{rack}"), &words);
        self.daemons[rack] = Some(Server::by(command.args(["--session-grace-ms", "1000"])));
    }

    fn start_agent(&mut self) {
        let (master, memory) = (&self.site.addr, self.memory(0));
        let words = ["agent", "--rack", "0", "--master", master, "--memory", &memory];
        let mut command = self.server("agent", &words);
        command.args(["--name", "host-b"]).env("RACKPOOL_CONFIG", self.site.config());
        self.agent = Some(Server::by(&mut command));
    }

    fn start_cache(&mut self) {
        let words = ["kv", "--memory", "32m", "--resp", "0", "--threads", "1", "--rack", "1"];
        let mut command = self.server("cache", &words);
        command.args(["--pool", &self.site.addr, "--pool-values", "1k"]);
        let server = Server::by(&mut command);
        let resp = server.addr.split("resp=").nth(1).expect("it was asked for");
        let resp = resp.split(' ').next().expect("at least one").to_owned();
        self.cache = Some((server, std::thread::spawn(move || fill_cache(&resp))));
    }

    /// Kills the cache; how many values it had taken.
    fn kill_cache(&mut self) -> u64 {
        let (server, filler) = self.cache.take().expect("it was started");
        drop(server);
        filler.join().expect("what fills the cache")
    }

    /// Names of the pool's files in shared memory.
    fn files(&self) -> Vec<String> {
        let names = names_in(Path::new(SHM)).into_iter();
        names.filter(|name| name.starts_with(&self.name)).collect()
    }

    /// What `fsck` says: whether all is well, the bytes that caches have, and all of it.
    fn fsck(&self) -> (bool, f64, String) {
        let json = self.dir.file("fsck.json");
        let words = ["fsck", "--master", &self.site.addr, "--json", &json];
        let told = told(&self.site.command(&words).output().expect("the binary runs"));
        let text = std::fs::read_to_string(&json).unwrap_or_default();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let rows = report["results"].as_array().into_iter().flatten();
        let of_cache = |row: &&serde_json::Value| {
            row["name"].as_str().is_some_and(|name| name.ends_with("_cache_bytes"))
        };
        let cached = rows.filter(of_cache).map(|row| row["ours"].as_f64().expect("bytes")).sum();
        let is_clean = told.0 == 0 && report["clean"] == true;
        (is_clean, cached, format!("{told:?}\n{text}"))
    }

    /// Waits until the cache has memory of the pool.
    fn await_cached(&self) {
        let start = Instant::now();
        while self.fsck().1 == 0.0 {
            assert!(start.elapsed() < WITHIN, "the cache takes nothing of the pool");
        }
    }

    /// Waits until `fsck` finds nothing wrong and nothing is left behind; the long form waits a
    /// minute and looks once.
    fn settle(&self, what: &str) {
        let patience = if kills_asked().is_some() { Duration::ZERO } else { WITHIN };
        if patience.is_zero() {
            std::thread::sleep(MINUTE);
        }
        let start = Instant::now();
        loop {
            let (is_clean, cached, said) = self.fsck();
            let left = self.left();
            if is_clean && cached == 0.0 && left.is_empty() {
                return;
            }
            if start.elapsed() > patience {
                let names = ["master", "daemon-0", "daemon-1", "agent", "cache"];
                let log = |name| std::fs::read_to_string(self.dir.file(&format!("{name}.log")));
                let logs: String = names.into_iter().filter_map(|name| log(name).ok()).collect();
                panic!("after {what} the pool does not settle: {said}\nleft: {left:?}\n{logs}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// What is there and should not be, when no client is at work.
    fn left(&self) -> Vec<String> {
        let mut left: Vec<String> = mounts().difference(&self.mounts).cloned().collect();
        left.extend(names_in(&self.site.temp()));
        let (slots, others): (Vec<_>, Vec<_>) =
            self.files().into_iter().partition(|name| name.contains(".slot-"));
        let of_region = |name: &String| SECTIONS.iter().any(|end| name.ends_with(end));
        left.extend(others.into_iter().filter(|name| !of_region(name)));
        if slots.len() > RACKS * OWN_SLOTS_MAX {
            left.extend(slots);
        }
        let servers = self.daemons.iter().chain([&self.master, &self.agent]).flatten();
        let known: Vec<u32> = servers.map(|server| server.child.id()).collect();
        left.extend(self.processes().filter(|(pid, _)| !known.contains(pid)).map(|(_, says)| says));
        left
    }

    /// Processes that the pool's address, or its folder, was given to.
    fn processes(&self) -> impl Iterator<Item = (u32, String)> {
        names_in(Path::new("/proc")).into_iter().filter_map(|name| {
            let pid = name.parse().ok()?;
            let words = std::fs::read_to_string(format!("/proc/{name}/cmdline")).ok()?;
            let folder = self.site.folder.to_str().expect("temporary paths are text");
            let is_ours = |word: &str| word == self.site.addr || word.contains(folder);
            words.split('\0').any(is_ours).then(|| (pid, format!("process {pid}: {words:?}")))
        })
    }

    /// Stops all of it as an operator would.
    fn stop(mut self) {
        let start = Instant::now();
        while !self.left().is_empty() {
            assert!(start.elapsed() < WITHIN, "left: {:?}", self.left());
            std::thread::sleep(Duration::from_millis(20));
        }
        let servers = [self.agent.take()].into_iter().chain(self.daemons.drain(..));
        for server in servers.chain([self.master.take()]).flatten() {
            let mut server = server;
            assert_eq!(server.terminate(), Some(0));
        }
        assert_eq!(self.left(), [""; 0]);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        (self.agent, self.cache) = (None, None);
        self.daemons.clear();
        let files = self.files().into_iter();
        files.for_each(|name| _ = std::fs::remove_file(Path::new(SHM).join(name)));
    }
}

fn mounts() -> BTreeSet<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the kernel's file");
    mounts.lines().map(Into::into).collect()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Stores values in a cache until it is gone; how many it took.
fn fill_cache(resp: &str) -> u64 {
    let Ok(mut stream) = TcpStream::connect(resp) else { return 0 };
    let mut answers = BufReader::new(stream.try_clone().expect("a second handle"));
    let (mut rng, mut taken) = (Rng(1), 0);
    loop {
        let (key, bytes) = (rng.below(CACHE_KEYS), 1_000 + rng.below(CACHED_BYTES_MAX - 1_000));
        let mut set = format!("*3\r\n$3\r\nSET\r\n$3\r\n{key:03}\r\n${bytes}\r\n").into_bytes();
        set.extend(std::iter::repeat_n(b'v', bytes as usize));
        set.extend(b"\r\n");
        let mut answer = String::new();
        let asked = stream.write_all(&set).and_then(|()| answers.read_line(&mut answer));
        if !matches!(asked, Ok(1..)) {
            return taken;
        }
        taken += u64::from(answer == "+OK\r\n");
    }
}

/// Kills that the long form is asked for.
fn kills_asked() -> Option<u32> {
    std::env::var("RACKPOOL_KILLS").ok().and_then(|kills| kills.parse().ok())
}

/// A shell that gets one command after the other.
struct Shell {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Shell {
    fn start(rack: u16, site: &Site) -> Shell {
        let mut child = site
            .shell(rack)
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
        let site = pool.site.clone();
        let (own_pid, own_stop) = (Arc::clone(&pid), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let folder = site.folder.clone();
            let mut work = Work { number, folder, known, rng: Rng(seed | 1), next: seed << 20 };
            while !own_stop.load(Ordering::Relaxed) {
                let mut shell = Shell::start(number % 2, &site);
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
    let mut shell = Shell::start(1 - client % 2, &pool.site);
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
                shell = Shell::start(1 - client % 2, &pool.site);
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
    let (site, stop, mut rng) = (pool.site.clone(), Arc::clone(stop), Rng(seed | 1));
    std::thread::spawn(move || {
        let mut moved = 0;
        while !stop.load(Ordering::Relaxed) {
            let name = name_of(rng.below(u64::from(CLIENTS)) as u16, rng.below(OBJECTS));
            let shell = |command: &str| {
                told(&site.shell(1).args(["-c", command]).output().expect("the binary runs"))
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
    /// The agent of a host that shares rack 0's memory, on which all of that rack's clients are.
    Agent,
    /// A cache with its values in the pool.
    Cache,
}

impl Victim {
    /// Kills one, and starts it again unless others do.
    fn kill(self, pool: &mut Pool, clients: &[Client], rng: &mut Rng) {
        match self {
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
            Victim::Agent => {
                pool.agent = None;
                pool.start_agent();
            }
            Victim::Cache => {
                pool.kill_cache();
                pool.start_cache();
            }
        }
    }
}

fn kill_in_series(victim: Victim) {
    let seed = std::env::var("RACKPOOL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed}: RACKPOOL_SEED={seed} repeats the choices");
    let (mut rng, mut pool) = (Rng(seed << 8 | 1), Pool::start(victim));
    let mut known: Vec<Known> = (0..CLIENTS).map(|_| Known::new()).collect();
    let mut shell = Shell::start(0, &pool.site);
    (0..BALLAST).for_each(|n| assert!(shell.ask(&format!("put ballast{n} text:x")).is_some()));
    shell.end();
    for series in 0..kills_asked().unwrap_or(SERIES) / SERIES {
        let start = |(number, known): (u16, Known)| {
            let seed = seed + 100 * u64::from(series) + u64::from(number);
            Client::start(number, &pool, known, seed)
        };
        let clients: Vec<Client> = (0..).zip(std::mem::take(&mut known)).map(start).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let mover = move_pages(&pool, &stop, seed + u64::from(series));
        for _ in 0..SERIES {
            std::thread::sleep(Duration::from_millis(20 + rng.below(130)));
            victim.kill(&mut pool, &clients, &mut rng);
        }
        stop.store(true, Ordering::Relaxed);
        let moved = mover.join().expect("the mover");
        println!("series {series} of kills of a {victim:?}: {moved} pages moved");
        known = clients.into_iter().map(Client::end).collect();
        if victim == Victim::Cache {
            pool.await_cached();
            assert!(pool.kill_cache() > 0);
        }
        pool.settle(&format!("series {series} of kills of a {victim:?}, {moved} moves"));
        (0..).zip(&mut known).for_each(|(number, known)| check_objects(&pool, number, known));
        if victim == Victim::Cache {
            pool.start_cache();
        }
    }
    if victim == Victim::Cache {
        pool.kill_cache();
    }
    pool.stop();
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

#[test]
fn a_killed_agent_loses_and_leaks_nothing() {
    kill_in_series(Victim::Agent);
}

#[test]
fn the_memory_of_a_killed_cache_comes_back() {
    kill_in_series(Victim::Cache);
}
