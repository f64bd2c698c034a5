//! The daemon of a rack as a process or thread: the engine of `core::daemon` over real sections,
//! driven by one poll loop, beside the fabric target's own thread.
//!
//! What the loop does is `core::runtime::daemon`, the same that the simulator runs; `server.rs` has
//! its waits, `host.rs` what it needs of this process, `opening.rs` what stands before it,
//! `world.rs` what the engine sees, `uplinks.rs` the fabric endpoint for clients without one,
//! `standby.rs` shards that have a dead daemon of their own, `persister.rs` waits for a disk.
//! Threads with handles of their own (`helper.rs`) move pages (`relocation.rs`), hold replicas
//! (`replicas.rs`) and sweep (`sweep.rs`). Clients that come over the fabric are the core's
//! (`Remotes`).

mod helper;
mod host;
mod opening;
mod persister;
mod relocation;
mod replicas;
mod server;
mod spill;
mod standby;
mod standing;
mod sweep;
mod uplinks;
mod world;

use crate::links::no_devices;
use crate::local::only_own_clients;
use crate::options::{Emulate, Options};
use rackpool_core::coherence::Coherence;
use rackpool_core::constants::{
    LEFT_GRACE_MS_DEFAULT, RACK_SHARDS_MAX, RACKS_MAX, REQUEST_TIMEOUT_MS_DEFAULT,
    SESSION_GRACE_MS_DEFAULT,
};
pub use rackpool_core::daemon::Rings;
use rackpool_core::policy::{BalanceParams, MigrationPolicy as Migration};
use rackpool_core::wire::FabricKind;
use rackpool_core::{Error, RackId, Result};
use rackpool_fabric::secret::Secret;
use rackpool_fabric::{FabricOptions, Over};
use rackpool_mem::event::WakeEvent;
use rackpool_mem::log;
use rackpool_mem::process::{Shutdown, raise_descriptor_limit};
use rackpool_mem::region::{MemorySpec, SpecError, SpillSpec};
use server::Server;
use standby::Standby;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
pub use sweep::Sweeper;
use tracing::warn;

/// How a daemon is started.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// Its rack.
    pub rack: u16,
    /// Which of the shards, from 0, into which the rack's memory is divided.
    pub shard: u16,
    /// Into how many shards the rack's memory is divided, each with a daemon: 1 to 8. Fixed when
    /// the memory is made.
    pub shards: u16,
    /// Addresses of the master.
    pub master: Vec<String>,
    /// The rack's memory with all its shards, such as `shm:/dev/shm/rack0?size=1G` or
    /// `heap?size=64M`; `dax:/dev/dax0.0?coherence=software` if hosts share it without hardware
    /// that keeps their caches in agreement.
    pub memory: String,
    /// Where pages go that are not used, if memory is short, all shards together, such as
    /// `/var/lib/rackpool/rack0.spill?size=4G`: they come back when they are. Fixed when the memory
    /// is made. `None`: memory is all there is.
    pub spill: Option<String>,
    /// Whether a new region may promise more memory than the machine has.
    pub overcommit: bool,
    /// Address of the fabric endpoint, under which other hosts reach it as well; port 0 takes a
    /// free one. Without a secret only loopback addresses may be.
    pub listen: SocketAddr,
    /// What is proved to the master and to other racks, and what they and fabric clients prove.
    pub secret: Option<Secret>,
    /// How other racks are to reach this one; with `Verbs` also how this one reaches them for
    /// clients without a fabric endpoint.
    pub fabric: FabricKind,
    /// With `Verbs`, the RDMA device; see [`Options::verbs_device`].
    pub verbs_device: Option<String>,
    /// Latency to inject.
    pub emulate: Emulate,
    /// Whether the region is removed when the daemon stops.
    pub ephemeral: bool,
    /// How long to wait for the master at the start, ms.
    pub join_timeout_ms: u64,
    /// How long the session of a remote client outlives its connection, ms: longer than clients
    /// try to come back. After it, what the session owned is freed.
    pub session_grace_ms: u64,
    /// How long the daemon goes on, when its rack has left the pool, for clients of its host that
    /// are still there, ms.
    pub left_grace_ms: u64,
    /// How it is decided where pages live that several racks use. If not [`Migration::Off`],
    /// clients of this rack count their accesses, and pages of other racks that they use come here.
    pub migration: Migration,
    /// How clients' rings are served.
    pub rings: Rings,
    /// Whether, and how, the rack sends cold pages to emptier ones when it is fuller than they.
    pub balance: Option<BalanceParams>,
    /// What one client may have of this rack's memory, bytes: what counts is said by
    /// [`rackpool_core::daemon::Daemon::set_client_quota`]. `None` for no limit.
    pub client_quota_bytes: Option<u64>,
    /// Users of this host, by number, with access to the memory in addition to our own user and
    /// root.
    pub allowed_users: Vec<u32>,
    /// Where to serve the counters over HTTP, in the format of Prometheus; `None` for nowhere.
    pub metrics: Option<SocketAddr>,
    /// What readers of the counters have to send as `Authorization: Bearer`; without it only a
    /// loopback address may be.
    pub metrics_token: Option<Secret>,
    /// What looks for allocations that clients held when they died. `None`: they stay until an
    /// audit looks for them.
    pub sweeper: Option<Sweeper>,
}

impl DaemonOptions {
    /// Options for a rack, a master (one address, or several separated by commas) and a memory.
    pub fn new(rack: u16, master: &str, memory: &str) -> Self {
        Self {
            rack,
            shard: 0,
            shards: 1,
            master: master.split(',').map(str::to_string).collect(),
            memory: memory.into(),
            spill: None,
            overcommit: false,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            secret: None,
            fabric: FabricKind::Tcp,
            verbs_device: None,
            emulate: Emulate::default(),
            ephemeral: false,
            join_timeout_ms: REQUEST_TIMEOUT_MS_DEFAULT,
            session_grace_ms: SESSION_GRACE_MS_DEFAULT,
            left_grace_ms: LEFT_GRACE_MS_DEFAULT,
            migration: Migration::Off,
            rings: Rings::TwoLayer,
            balance: None,
            client_quota_bytes: None,
            allowed_users: Vec::new(),
            metrics: None,
            metrics_token: None,
            sweeper: None,
        }
    }

    /// One of `shards` daemons of the rack.
    pub fn shard(mut self, shard: u16, shards: u16) -> Self {
        (self.shard, self.shards) = (shard, shards);
        self
    }

    /// Options with which a thread of the daemon joins the pool: it works for its own daemon.
    /// `call_ms`: how long its calls ride through the restart of a peer.
    fn own_client(&self, call_ms: u64) -> Options {
        let mut options = Options::new(&self.master.join(","), self.rack);
        options.request_timeout_ms = call_ms;
        options.secret = self.secret.clone();
        options.verbs_device = self.verbs_device.clone();
        options.shard = (self.shards > 1).then_some(self.shard);
        options
    }

    /// What the daemon reaches others, and is reached, over.
    fn fabric_options(&self) -> FabricOptions {
        let over = match self.fabric {
            FabricKind::Verbs => Over::Verbs,
            FabricKind::Tcp | FabricKind::Shm => Over::Tcp,
        };
        let (device, secret) = (self.verbs_device.clone(), self.secret.clone());
        FabricOptions { over, device, secret }
    }

    /// Others are told where it listens, and what is injected has to be injectable.
    fn check(&self) -> Result<()> {
        if self.fabric == FabricKind::Verbs && self.emulate.rdma_ns > 0 {
            let reason = "fabric `verbs` is a real device's: no latency is injected into it; \
                          leave rdma= out of the emulated latencies, or use fabric `tcp`";
            return Err(Error::Config { reason: reason.into() });
        }
        if self.listen.ip().is_unspecified() {
            let what = format!("{} is nowhere", self.listen);
            let reason = format!("{what}: listen at the address at which others reach this host");
            return Err(Error::Config { reason });
        }
        let spec = self.spec()?;
        if spec.slots > 0 && self.fabric == FabricKind::Verbs {
            let reason = "a spill file is not for fabric `verbs`, which pins the whole memory: \
                          start the daemon with fabric `tcp`";
            return Err(Error::Config { reason: reason.into() });
        }
        self.check_coherence(spec.coherence.unwrap_or_default())
    }

    /// The memory of the whole rack; with a spill file, with the slots of one shard behind it.
    fn spec(&self) -> Result<MemorySpec> {
        let wrong = |error: SpecError| Error::Config { reason: error.to_string() };
        let memory = self.memory.parse::<MemorySpec>().map_err(wrong)?;
        match self.spill_spec()? {
            Some(spill) => spill.behind(memory).map_err(wrong),
            None => Ok(memory),
        }
    }

    /// The spill file of the shard.
    fn spill_spec(&self) -> Result<Option<SpillSpec>> {
        let wrong = |error: SpecError| Error::Config { reason: error.to_string() };
        let spec = self.spill.as_deref().map(str::parse::<SpillSpec>).transpose().map_err(wrong)?;
        Ok(spec.map(|spec| spec.shard(self.shard, self.shards)))
    }

    /// An ephemeral region is gone: what its spill file has is of no region any more.
    fn remove_spill_file(&self) {
        if let Ok(Some(spill)) = self.spill_spec()
            && let Err(error) = std::fs::remove_file(&spill.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            warn!(target: "daemon", "removing {}: {error}", spill.path.display());
        }
    }

    /// What is not done where only the software keeps the hosts of the memory coherent.
    fn check_coherence(&self, coherence: Coherence) -> Result<()> {
        if coherence.is_hardware() {
            return Ok(());
        }
        if self.fabric != FabricKind::Tcp {
            return Err(match self.fabric {
                FabricKind::Verbs => no_devices(RackId(self.rack)),
                FabricKind::Tcp | FabricKind::Shm => only_own_clients(RackId(self.rack)),
            });
        }
        if self.shards > 1 {
            let reason = "memory that is kept coherent by software is not divided: start one \
                          daemon, without shards";
            return Err(Error::Config { reason: reason.into() });
        }
        Ok(())
    }

    /// How messages name what the daemon serves: `2`, or `0.1` for a shard.
    fn name(&self) -> String {
        self.home().map_or_else(|_| self.rack.to_string(), |home| home.to_string())
    }

    fn home(&self) -> Result<RackId> {
        let Self { rack, shard, shards, .. } = *self;
        RackId::sharded(rack, shard, shards).ok_or_else(|| {
            let what = format!("shard {shard} of {shards} of rack {rack}");
            let (racks, most) = (RACKS_MAX - 1, RACK_SHARDS_MAX);
            let reason =
                format!("{what}: racks are 0 to {racks}, shards 0/1 to {}/{most}", most - 1);
            Error::Config { reason }
        })
    }
}

/// A daemon in a thread of this process. Stops, and keeps its region unless it is ephemeral, when
/// it is dropped.
///
/// ```no_run
/// use rackpool::daemon::{DaemonOptions, DaemonServer};
/// let options = DaemonOptions::new(0, "127.0.0.1:7400", "shm:/dev/shm/rack0?size=1G");
/// let daemon = DaemonServer::start(options)?;
/// println!("ready {}", daemon.local_addr());
/// # Ok::<(), rackpool::Error>(())
/// ```
#[derive(Debug)]
pub struct DaemonServer {
    /// Ends before the own shard does.
    standby: Option<Standby>,
    local_addr: SocketAddr,
    metrics_addr: Option<SocketAddr>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<Result<Ended>>>,
}

/// How a daemon ended that did nothing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to stop; its rack stays in the pool.
    Asked,
    /// Its rack was drained and has left the pool.
    Left,
}

/// The owner of a shard that a process serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belongs {
    /// This process was started for it.
    Here,
    /// Its daemon is dead, and this process took it over.
    Elsewhere,
}

/// How a running loop is asked to end.
#[derive(Debug)]
pub(crate) struct Stop {
    requested: AtomicBool,
    /// The process also serves other shards, those of dead daemons.
    serves_others: AtomicBool,
    wake: WakeEvent,
    /// Notified when the loop has ended.
    ended: WakeEvent,
}

impl Stop {
    fn new() -> Result<Self> {
        let event = || WakeEvent::new().map_err(|error| io_error("wake event", &error));
        let (requested, serves_others) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { requested, serves_others, wake: event()?, ended: event()? })
    }

    fn request(&self) {
        // Release: pairs with the Acquire in `is_requested`.
        self.requested.store(true, Ordering::Release);
        self.wake.notify();
    }

    /// Whether the process serves other shards: a shard that has left the pool waits for them.
    pub(crate) fn serves_others(&self) -> bool {
        // Relaxed: looked at with each heartbeat; nothing hangs on when.
        self.serves_others.load(Ordering::Relaxed)
    }

    pub(crate) fn is_requested(&self) -> bool {
        // Acquire: pairs with the Release in `request`.
        self.requested.load(Ordering::Acquire)
    }
}

impl DaemonServer {
    /// Opens or makes the region, joins the master, and serves. Returns when clients can come.
    ///
    /// # Errors
    /// `bad-region`, `version` if the region is not one that this release can serve; `full` if
    /// the host has no memory; `config` for a memory that makes no sense; `timeout` if the master
    /// does not answer; `denied` if the rack, or this shard, is served by another daemon, or the
    /// metrics' address is not a loopback one, or if master and daemon have not the same secret;
    /// `config` for an address at which no client could reach the daemon.
    ///
    /// One of several daemons of a rack also serves what belongs to another one that has died, from
    /// its region, until that one is started again and takes its shard back.
    pub fn start(options: DaemonOptions) -> crate::Result<Self> {
        let standby = Standby::new(&options)?;
        let mut daemon = Self::open(options, Belongs::Here)?;
        let stop = &daemon.stop;
        daemon.standby = standby.map(|standby| standby.start(stop)).transpose()?;
        Ok(daemon)
    }

    /// Serves one shard, and stands by for no other.
    fn open(options: DaemonOptions, belongs: Belongs) -> Result<Self> {
        let stop = Arc::new(Stop::new()?);
        let mut server = Server::open(options, belongs, Arc::clone(&stop))?;
        let (local_addr, metrics_addr) = (server.local_addr(), server.metrics_addr());
        let end = Arc::clone(&stop);
        let thread = log::spawn("rackpool-daemon", move || {
            let ended = server.run(None);
            server.close();
            end.ended.notify();
            ended
        })
        .map_err(|error| io_error("daemon thread", &error))?;
        Ok(Self { standby: None, local_addr, metrics_addr, stop, thread: Some(thread) })
    }

    /// Serves on the calling thread until SIGINT, SIGTERM or SIGHUP, or until the rack has left
    /// the pool.
    /// `ready` is called with the fabric address once clients can come.
    ///
    /// # Errors
    /// As [`DaemonServer::start`]; `forgotten` if the rack was declared lost meanwhile.
    pub fn run(options: DaemonOptions, ready: impl FnOnce(SocketAddr)) -> crate::Result<Ended> {
        let shutdown = Shutdown::install().map_err(|error| io_error("signal handler", &error))?;
        raise_descriptor_limit();
        let stop = Arc::new(Stop::new()?);
        let standby = Standby::new(&options)?;
        let mut server = Server::open(options, Belongs::Here, Arc::clone(&stop))?;
        let standby = standby.map(|standby| standby.start(&stop)).transpose()?;
        ready(server.local_addr());
        let ended = server.run(Some(shutdown));
        drop(standby);
        server.close();
        Ok(ended?)
    }

    /// Address of the fabric endpoint.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Where the counters are served, if they are.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics_addr
    }

    /// Whether it has ended by itself: its rack has left the pool, or was declared lost. The
    /// descriptor of [`AsFd`] becomes ready for reading then.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops, unless it has ended by itself, and waits for the end.
    pub fn stop(mut self) {
        if let Err(error) = self.join() {
            warn!(target: "daemon", "{error}");
        }
    }

    /// As [`DaemonServer::stop`]; how it ended.
    ///
    /// # Errors
    /// `forgotten` if it ended by itself because its rack was declared lost.
    pub fn end(mut self) -> crate::Result<Ended> {
        Ok(self.join()?)
    }

    fn join(&mut self) -> Result<Ended> {
        // It serves nothing any more before this daemon ends.
        self.standby = None;
        self.stop.request();
        let Some(thread) = self.thread.take() else { return Ok(Ended::Asked) };
        thread.join().unwrap_or_else(|_| {
            let what = "daemon thread".into();
            Err(Error::Io { what, reason: "it panicked".into() })
        })
    }
}

impl AsFd for DaemonServer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stop.ended.as_fd()
    }
}

impl Drop for DaemonServer {
    fn drop(&mut self) {
        if let Err(error) = self.join() {
            warn!(target: "daemon", "{error}");
        }
    }
}

pub(crate) fn io_error(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Io { what: what.into(), reason: error.to_string() }
}

/// The memory of a daemon's shard, once it is certain that the rack's is divided as it should be.
fn shard_memory(options: &DaemonOptions) -> Result<MemorySpec> {
    let wrong = |error: SpecError| Error::Config { reason: error.to_string() };
    let spec = options.spec()?;
    spec.check_division(options.shards).map_err(Error::from)?;
    spec.shard(options.shard, options.shards).map_err(wrong)
}

/// The control socket's name of a region: the same after every restart of its daemon, so that
/// clients find the next one without a question.
fn control_name(rack: RackId, region_id: [u64; 2]) -> String {
    format!("rackpool/rack{rack}/{:016x}{:016x}", region_id[0], region_id[1])
}
