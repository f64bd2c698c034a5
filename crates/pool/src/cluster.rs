//! A whole pool in one process: a master and any number of racks, each served by threads, with
//! the same sockets, rings and sections as real ones. For examples, tests and a first look.
//!
//! Its master keeps its state in a temporary directory, which the drop removes; that of a cluster
//! that was killed is removed by the next one.

use crate::daemon::{DaemonOptions, DaemonServer};
use crate::error::{Result, WireError};
use crate::master::{MasterOptions, MasterServer};
use crate::options::{FabricChoice, Options};
use crate::pool::Pool;
use rackpool_core::RackId;
use rackpool_core::placement::Policy;
use rackpool_fabric::secret::Secret;
use rackpool_mem::temporary::TemporaryDir;

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
    /// With the rack of each.
    daemons: Vec<(u16, DaemonServer)>,
    options: ClusterOptions,
    /// There until the drop.
    master: Option<MasterServer>,
    _state_dir: TemporaryDir,
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
        let state_dir = TemporaryDir::new(&std::env::temp_dir(), "pool");
        let state_dir =
            state_dir.map_err(|error| crate::daemon::io_error("temporary directory", &error))?;
        let mut master = MasterOptions::new("127.0.0.1:0", state_dir.path().join("state"));
        master.policy = options.placement;
        master.secret = options.secret.clone();
        let master = MasterServer::start(master)?;
        let racks = options.racks;
        let master = Some(master);
        let mut cluster = Cluster { daemons: Vec::new(), options, master, _state_dir: state_dir };
        (0..racks).try_for_each(|rack| cluster.start_rack(rack))?;
        Ok(cluster)
    }

    /// Starts the daemons of a rack that was stopped, or of a new one, with new memory: what it had
    /// is lost.
    ///
    /// # Errors
    /// Of the first daemon that cannot start, as when the rack runs.
    pub fn start_rack(&mut self, rack: u16) -> Result<()> {
        let (addr, shards) = (self.master_addr(), self.options.shards.max(1));
        for shard in 0..shards {
            let mut daemon = DaemonOptions::new(rack, &addr, &self.options.memory);
            daemon = daemon.shard(shard, shards);
            daemon.ephemeral = true;
            daemon.secret = self.options.secret.clone();
            (self.options.daemon)(&mut daemon);
            self.daemons.push((rack, DaemonServer::start(daemon)?));
        }
        Ok(())
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
        options.secret = self.options.secret.clone();
        Pool::open(options)
    }

    /// Stops a rack's daemons; clients see their death.
    pub fn stop_rack(&mut self, rack: u16) -> Result<()> {
        let stopped = self.daemons.extract_if(.., |(of, _)| *of == rack);
        let stopped: Vec<_> = stopped.collect();
        if stopped.is_empty() {
            return Err(WireError::NoSuchRack { rack: RackId(rack) }.into());
        }
        stopped.into_iter().for_each(|(_, daemon)| daemon.stop());
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.daemons.clear();
        self.master = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::Duration;

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
    fn what_a_killed_cluster_left_is_removed_by_the_next_and_a_living_one_is_not() {
        let base = TemporaryDir::new(&std::env::temp_dir(), "test").unwrap();
        let left = || {
            let entries = std::fs::read_dir(base.path()).unwrap();
            entries.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cluster::tests::a_child_process_has_a_cluster", "--nocapture"])
            .env(CHILD, "1")
            .env("TMPDIR", base.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_ready = lines.any(|line| line.is_ok_and(|line| line == "ready"));
        drop(TemporaryDir::new(base.path(), "pool").unwrap());
        let while_it_lives = left();
        child.kill().unwrap();
        child.wait().unwrap();
        let after = left();
        drop(TemporaryDir::new(base.path(), "pool").unwrap());
        assert!(is_ready, "the child came up");
        assert_eq!((while_it_lives, after, left()), (1, 1, 0));
    }
}
