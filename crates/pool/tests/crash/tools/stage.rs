//! The servers of a test: a master with its state in a directory of its own and the daemons of
//! some racks, all real processes, with everything that they leave behind.

use super::{PATIENCE, Proc, Random};
use rackpool::{DaemonStats, FabricChoice, Options, Pool, RackId};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory of a rack in most tests.
pub const MEMORY: &str = "size=64M&pages=64K";

/// See the module. Dropping it kills the servers and removes the files, also after a failure.
pub struct Stage {
    pub master: Option<Proc>,
    pub daemons: Vec<Option<Proc>>,
    pub addr: String,
    /// What each daemon serves: its rack, or its shard of a divided one.
    pub homes: Vec<RackId>,
    /// The memory of each daemon's rack.
    pub memory: Vec<String>,
    /// The policy by which daemons that are started move pages.
    pub migration: &'static str,
    /// The size of the spill file of the first rack.
    pub spill: Option<&'static str>,
    prefix: String,
    dir: PathBuf,
}

impl Stage {
    /// A master and one daemon for each memory, given as the part after `PATH?`.
    pub fn new(memory: &[&str]) -> Stage {
        Self::in_dir("/dev/shm", memory)
    }

    /// As [`Stage::new`], with the files in another directory.
    pub fn in_dir(place: &str, memory: &[&str]) -> Stage {
        Self::empty(place, memory).started()
    }

    /// A master and racks with this memory, each divided into so many shards with a daemon.
    pub fn divided(racks: &[(&str, u16)]) -> Stage {
        let memory: Vec<&str> = racks.iter().map(|(memory, _)| *memory).collect();
        let mut stage = Self::empty("/dev/shm", &memory);
        let whole = std::mem::take(&mut stage.memory);
        stage.homes.clear();
        for (rack, (_, shards)) in racks.iter().enumerate() {
            for shard in 0..*shards {
                stage.homes.push(RackId::sharded(rack as u16, shard, *shards).expect("a shard"));
                stage.memory.push(whole[rack].clone());
            }
        }
        stage.daemons = stage.homes.iter().map(|_| None).collect();
        // How long daemons are missed is measured here, and not how long a busy disk takes to sync.
        stage.dir = PathBuf::from(format!("{}-master", stage.prefix));
        stage.started()
    }

    /// As [`Stage::new`], with daemons that decide by a policy where pages live.
    pub fn with_policy(policy: &'static str, memory: &[&str]) -> Stage {
        let mut stage = Self::empty("/dev/shm", memory);
        stage.migration = policy;
        stage.started()
    }

    /// Racks with this memory, the first with a spill file of this size.
    pub fn with_spill(memory: &[&str], size: &'static str) -> Stage {
        let mut stage = Self::empty("/dev/shm", memory);
        stage.spill = Some(size);
        stage.started()
    }

    /// The spill file, on a disk if the directory of temporary files is on one.
    pub fn spill_path(&self) -> PathBuf {
        self.dir.with_extension("spill")
    }

    /// Where a file of memory that persists may be, beside the spill file.
    pub fn pmem_path(&self) -> PathBuf {
        self.dir.with_extension("pmem")
    }

    fn started(mut self) -> Stage {
        self.start_master();
        for daemon in 0..self.homes.len() {
            self.start_daemon(daemon);
        }
        self
    }

    /// Names and places; nothing runs.
    pub fn empty(place: &str, memory: &[&str]) -> Stage {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: a number that differs.
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = format!("rackpool-crash-{}-{count}", std::process::id());
        let prefix = format!("{place}/{id}");
        let memory = memory
            .iter()
            .enumerate()
            .map(|(rack, options)| format!("shm:{prefix}-rack{rack}?{options}"));
        let memory: Vec<String> = memory.collect();
        let daemons = memory.iter().map(|_| None).collect();
        let homes = (0..).map(RackId).take(memory.len()).collect();
        let dir = std::env::temp_dir().join(&id);
        let (addr, migration) = (free_address(), "off");
        let spill = None;
        Stage { master: None, daemons, addr, homes, memory, migration, spill, prefix, dir }
    }

    pub fn start_master(&mut self) {
        let args = [self.addr.clone(), self.dir.display().to_string()];
        let proc = Proc::start("master", "master", &args);
        proc.ready().unwrap_or_else(|error| panic!("the master does not start: {error}"));
        self.master = Some(proc);
    }

    pub fn start_daemon(&mut self, rack: usize) {
        let memory = self.memory[rack].clone();
        let proc = self.spawn_daemon(rack, &memory);
        proc.ready().unwrap_or_else(|error| panic!("daemon {rack} does not start: {error}"));
        self.daemons[rack] = Some(proc);
    }

    /// Starts another daemon process, which may fail.
    pub fn spawn_daemon(&self, rack: usize, memory: &str) -> Proc {
        self.spawn(self.homes[rack], memory)
    }

    /// Starts a daemon process for this rack or shard, which may fail.
    pub fn spawn(&self, home: RackId, memory: &str) -> Proc {
        let numbers = [home.number(), home.shard(), home.shards()].map(|n| n.to_string());
        let [rack, shard, shards] = numbers;
        let policy = self.migration.to_string();
        let spill = |size| format!("{}?size={size}", self.spill_path().display());
        let spill = self.spill.filter(|_| home.number() == 0).map(spill).unwrap_or_default();
        let args = [rack, self.addr.clone(), memory.into(), shard, shards, policy, spill];
        Proc::start(&format!("daemon {home}"), "daemon", &args)
    }

    pub fn daemon(&mut self, rack: usize) -> &mut Proc {
        self.daemons[rack].as_mut().expect("the daemon runs")
    }

    pub fn kill_daemon(&mut self, rack: usize) {
        self.daemons[rack].take().expect("the daemon runs").kill();
    }

    pub fn kill_master(&mut self) {
        self.master.take().expect("the master runs").kill();
    }

    pub fn options(&self, rack: u16, fabric: FabricChoice) -> Options {
        Options::new(&self.addr, rack).fabric(fabric)
    }

    /// Joins from the test itself.
    pub fn pool(&self, rack: u16, fabric: FabricChoice) -> Pool {
        Pool::open(self.options(rack, fabric)).expect("the pool can be joined")
    }

    pub fn stats(&self, pool: &Pool) -> Vec<DaemonStats> {
        let racks = pool.stats().expect("the pool answers").racks;
        racks.into_iter().map(|one| one.daemon.ok_or(one.error).expect("it answers")).collect()
    }

    /// The files of a rack's region.
    pub fn region_path(&self, rack: usize) -> PathBuf {
        PathBuf::from(format!("{}-rack{rack}", self.prefix))
    }

    pub fn remove_region(&self, rack: usize) {
        remove_files(&format!("{}-rack{rack}", self.prefix));
    }

    /// Ends everything and checks that nothing is left: no process, no file.
    pub fn finish(mut self) {
        for proc in self.daemons.iter_mut().flatten().chain(&mut self.master) {
            assert!(proc.is_alive(), "{} ended by itself; stderr: {}", proc.name, proc.stderr());
            let errors = proc.stderr();
            assert!(!errors.contains("panicked"), "{} panicked: {errors}", proc.name);
        }
        for daemon in self.daemons.iter_mut().flatten() {
            daemon.terminate();
            assert_eq!(daemon.exit_code(PATIENCE), Some(0), "{}", daemon.stderr());
        }
        let (prefix, dir, addr) = (self.prefix.clone(), self.dir.clone(), self.addr.clone());
        drop(self);
        assert_eq!(files(&prefix), Vec::<PathBuf>::new(), "files are left");
        assert!(!dir.exists(), "{} is left", dir.display());
        assert_eq!(processes(&addr), Vec::<String>::new(), "processes are left");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.daemons.clear();
        self.master = None;
        remove_files(&self.prefix);
        let _ = std::fs::remove_dir_all(&self.dir);
        let _ = std::fs::remove_file(self.spill_path());
        let _ = std::fs::remove_file(self.pmem_path());
    }
}

/// Files with a path that begins with `prefix`.
pub fn files(prefix: &str) -> Vec<PathBuf> {
    let path = PathBuf::from(prefix);
    let parent = path.parent().expect("it is absolute");
    let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&name));
    ours.map(|entry| entry.path()).collect()
}

/// Children of these tests that were told of the master at `addr`.
fn processes(addr: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let named = |path: &PathBuf| {
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        environment.split('\0').any(|one| one.starts_with(super::ARGS) && one.contains(addr))
    };
    let ours = entries.map(|entry| entry.path()).filter(named);
    ours.map(|path| path.display().to_string()).collect()
}

fn remove_files(prefix: &str) {
    for path in files(prefix) {
        let _ = std::fs::remove_file(path);
    }
}

/// An address below those that the system gives to outgoing connections, so that a master that
/// is killed finds it free again.
fn free_address() -> String {
    let mut random = Random::new(rackpool_mem::process::random_u64().expect("random"));
    for _ in 0..1000 {
        let addr = format!("127.0.0.1:{}", 20_000 + random.below(12_000));
        if std::net::TcpListener::bind(&addr).is_ok() {
            return addr;
        }
    }
    panic!("no free port from 20000 to 31999");
}
