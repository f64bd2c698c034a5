//! A whole pool in one process: a master and any number of racks, each served by threads, with
//! the same sockets, rings and sections as real ones. For examples, tests and a first look.
//!
//! Its master keeps its state in a folder of the system's for temporary files, which the drop
//! removes; that of a cluster that was killed is removed by the next one that starts a minute later
//! or more.

use crate::daemon::{DaemonOptions, DaemonServer};
use crate::master::{MasterOptions, MasterServer};
use crate::options::{FabricChoice, Options};
use crate::pool::Pool;
use rackpool_core::placement::Policy;
use rackpool_core::{Error, Result};
use rackpool_hw::secret::Secret;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the name of a cluster's folder begins with, before 16 digits.
const STATE_PREFIX: &str = "rackpool-";
/// A folder that is younger may be one whose master is about to lock it.
const LEFT_AGE: Duration = Duration::from_secs(60);

/// A pool of this process. Everything is gone when it is dropped.
///
/// ```
/// use rackpool::{Placement, cluster::Cluster};
/// let cluster = Cluster::start(2)?;
/// let pool = cluster.pool(0)?;
/// let addr = pool.alloc(1 << 20, Placement::Local)?;
/// pool.write(addr, b"hello")?;
/// assert_eq!(cluster.pool(1)?.explain(addr)?.rack, 0);
/// # Ok::<(), rackpool::Error>(())
/// ```
#[derive(Debug)]
pub struct Cluster {
    daemons: Vec<DaemonServer>,
    shards: u16,
    secret: Option<Secret>,
    /// There until the drop.
    master: Option<MasterServer>,
    state_dir: PathBuf,
}

/// What [`Cluster::with`] builds.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Racks, numbered from 0.
    pub racks: u16,
    /// Daemons of each rack, among which its memory is divided.
    pub shards: u16,
    /// Memory of each rack.
    pub memory: String,
    /// Where new memory goes.
    pub placement: Policy,
    /// What all its processes have to prove to one another.
    pub secret: Option<Secret>,
    /// Changes each daemon's options before it starts.
    pub daemon: fn(&mut DaemonOptions),
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            racks: 2,
            shards: 1,
            memory: "heap?size=64M&pages=64K".into(),
            placement: Policy::default(),
            secret: None,
            daemon: |_| (),
        }
    }
}

impl Cluster {
    /// `racks` racks of 64 MiB with pages of 64 KiB, reached over TCP from one another.
    pub fn start(racks: u16) -> Result<Cluster> {
        Self::with(ClusterOptions { racks, ..ClusterOptions::default() })
    }

    /// A pool as the options say.
    pub fn with(options: ClusterOptions) -> Result<Cluster> {
        let random = rackpool_hw::process::random_u64()
            .map_err(|error| crate::daemon::io_error("getrandom", &error))?;
        let base = std::env::temp_dir();
        sweep(&base);
        let state_dir = base.join(format!("{STATE_PREFIX}{random:016x}"));
        let mut master = MasterOptions::new("127.0.0.1:0", &state_dir);
        master.policy = options.placement;
        master.secret = options.secret.clone();
        let master = MasterServer::start(master)?;
        let mut cluster = Cluster {
            daemons: Vec::new(),
            shards: options.shards.max(1),
            secret: options.secret.clone(),
            master: Some(master),
            state_dir,
        };
        let addr = cluster.master_addr();
        let daemons = (0..options.racks)
            .flat_map(|rack| (0..options.shards.max(1)).map(move |shard| (rack, shard)));
        for (rack, shard) in daemons {
            let daemon = DaemonOptions::new(rack, &addr, &options.memory);
            let mut daemon = daemon.shard(shard, options.shards.max(1));
            daemon.ephemeral = true;
            daemon.secret = options.secret.clone();
            (options.daemon)(&mut daemon);
            cluster.daemons.push(DaemonServer::start(daemon)?);
        }
        Ok(cluster)
    }

    /// The master's address.
    pub fn master_addr(&self) -> String {
        let master = self.master.as_ref().expect("there until the drop");
        master.local_addr().to_string()
    }

    /// Joins the pool in a rack.
    pub fn pool(&self, rack: u16) -> Result<Pool> {
        self.pool_over(rack, FabricChoice::Auto)
    }

    /// Joins the pool in a rack, reaching the others over a chosen fabric.
    pub fn pool_over(&self, rack: u16, fabric: FabricChoice) -> Result<Pool> {
        let mut options = Options::new(&self.master_addr(), rack).fabric(fabric);
        options.secret = self.secret.clone();
        Pool::open(options)
    }

    /// Stops a rack's daemons; clients see their death.
    pub fn stop_rack(&mut self, rack: u16) -> Result<()> {
        let shards = usize::from(self.shards);
        let first = usize::from(rack) * shards;
        if first >= self.daemons.len() {
            return Err(Error::NoSuchRack { rack: rackpool_core::RackId(rack) });
        }
        self.daemons.drain(first..first + shards).for_each(DaemonServer::stop);
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.daemons.clear();
        self.master = None;
        if let Err(error) = std::fs::remove_dir_all(&self.state_dir) {
            eprintln!("rackpool: removing {}: {error}", self.state_dir.display());
        }
    }
}

/// Removes what clusters of this user that were killed have left in a folder. What cannot be
/// removed stays: it harms nobody.
fn sweep(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let digits = name.to_str().and_then(|name| name.strip_prefix(STATE_PREFIX));
        let is_state = digits.is_some_and(|digits| {
            digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        if is_state && let Ok(Some(_locked)) = lock_left(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The folder of a cluster that was killed, locked; `None` of any other.
fn lock_left(path: &Path) -> io::Result<Option<File>> {
    let about = std::fs::symlink_metadata(path)?;
    let is_own = about.uid() == rustix::process::geteuid().as_raw();
    let age = about.modified()?.elapsed().unwrap_or_default();
    if !about.is_dir() || !is_own || age < LEFT_AGE {
        return Ok(None);
    }
    let folder = File::open(path)?;
    // A master that lives has it locked (`master/journal.rs`).
    Ok(folder.try_lock().is_ok().then_some(folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::SystemTime;

    const CHILD: &str = "RACKPOOL_TEST_CLUSTER";

    #[test]
    fn a_child_process_has_a_cluster() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let parent = rustix::process::getppid();
        let _cluster = Cluster::start(1).expect("a cluster");
        println!("\nready");
        while rustix::process::getppid() == parent {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn what_a_killed_cluster_left_is_swept_and_a_living_one_is_not() {
        let base = std::env::temp_dir().join(format!("rackpool-left-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let left = || std::fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().path());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cluster::tests::a_child_process_has_a_cluster", "--nocapture"])
            .env(CHILD, "1")
            .env("TMPDIR", &base)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_ready = lines.any(|line| line.is_ok_and(|line| line == "ready"));
        let state: Vec<PathBuf> = left().collect();
        let grow_old = |path: &Path| {
            let long_ago = SystemTime::now() - 2 * LEFT_AGE;
            File::open(path).unwrap().set_modified(long_ago).unwrap();
        };
        state.iter().for_each(|path| grow_old(path));
        sweep(&base);
        let while_it_lives = left().count();
        child.kill().unwrap();
        child.wait().unwrap();
        // Whatever else lies there is nobody's state.
        let others = [base.join("rackpool-0123"), base.join("other-0123456789abcdef")];
        others.iter().for_each(|path| std::fs::create_dir(path).unwrap());
        std::fs::write(base.join("rackpool-0123456789abcdef"), "a file").unwrap();
        others.iter().for_each(|path| grow_old(path));
        sweep(&base);
        let after = left().count();
        let fresh = base.join("rackpool-fedcba9876543210");
        std::fs::create_dir(&fresh).unwrap();
        sweep(&base);
        let is_fresh_there = fresh.is_dir();
        std::fs::remove_dir_all(&base).unwrap();
        assert!(is_ready, "the child came up");
        assert_eq!((state.len(), while_it_lives), (1, 1), "its state, locked");
        assert_eq!(after, 3, "what is no cluster's state stays");
        assert!(is_fresh_there, "its master may be about to lock it");
    }
}
