//! Several daemons of one rack stand by for one another. Each serves a shard of the rack's memory,
//! and each looks after the regions of the others: one that no process serves and that has a dead
//! daemon of its own is served here from then on, by a second engine with a loop of its own, which
//! starts as a restarted daemon does: redo record, locks and sessions are in the region, and
//! clients find it under the same control name. When the shard's own daemon is started again it
//! claims its shard, and the one that took it over stops serving it, in order.
//!
//! Only the kernel says that a daemon is dead: it lets go of the locks of dead processes (`Claim`
//! in `rackpool_mem::region`). One that is stopped, or slow, keeps its shard for any time.
//! Source: Rcmp §4.2 (c); decision 0026.

use super::{Belongs, DaemonOptions, DaemonServer, Ended, Stop, io_error, shard_memory};
use crate::clock;
use rackpool_core::constants::LEASE_MS_DEFAULT;
use rackpool_core::{Error, Result};
use rackpool_mem::log;
use rackpool_mem::region::{Claim, MemoryKind, MemorySpec, RegionError, RegionFiles};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::{info, warn};

/// How often the other shards are looked at: two system calls each.
const LOOK_MS: u64 = 10;
/// How long a shard is left alone after it could not be taken over.
const FAILED_MS: u64 = LEASE_MS_DEFAULT;
/// How often a daemon looks whether its shard was given back.
const BACK_MS: u64 = 5;

/// Opens the region of a daemon's shard, or makes it; whether it is new, and the claim if it was
/// to be had already. The daemon to which the shard belongs claims it first, and waits until the
/// daemon that took it over has given it back.
pub(super) fn region_of(
    options: &DaemonOptions,
    belongs: Belongs,
) -> Result<(RegionFiles, bool, Option<Claim>)> {
    let spec = shard_memory(options)?;
    let divided = options.shards > 1;
    let claim = match belongs {
        Belongs::Here if divided => Claim::take(&spec).map_err(Error::from)?,
        _ => None,
    };
    if !RegionFiles::exists(&spec).map_err(Error::from)? {
        if belongs == Belongs::Elsewhere {
            return Err(
                RegionError::Absent { path: spec.path().unwrap_or("".as_ref()).into() }.into()
            );
        }
        if !options.overcommit {
            options.spec()?.check_room(options.shards).map_err(Error::from)?;
        }
        return Ok((RegionFiles::create(&spec).map_err(Error::from)?, true, claim));
    }
    let deadline_ns = clock::deadline_ns(options.join_timeout_ms);
    let mut said = false;
    loop {
        match RegionFiles::open(&spec) {
            Err(RegionError::Locked { holder, .. })
                if claim.is_some() && clock::now_ns() < deadline_ns =>
            {
                if !std::mem::replace(&mut said, true) {
                    let holder = holder.map_or("another".into(), |pid| pid.to_string());
                    let home = options.home()?;
                    info!(
                        target: "daemon",
                        "rack {home}: waits for process {holder}, which took it over"
                    );
                }
                std::thread::sleep(Duration::from_millis(BACK_MS));
            }
            opened => {
                let files = opened.map_err(Error::from)?;
                // What is stored in it is served in any case.
                if let (false, Err(RegionError::TooLarge { wanted_bytes, free_bytes, by, .. })) =
                    (options.overcommit, files.check_room())
                {
                    let (more, there) = (wanted_bytes >> 20, free_bytes >> 20);
                    warn!(
                        target: "daemon",
                        "rack {}: its memory may need {more} MiB more and {by} has \
                         {there} MiB free: allocations fail when that is used up",
                        options.name()
                    );
                }
                return Ok((files, false, claim));
            }
        }
    }
}

/// The thread that looks after the rack's other shards. Stops what it serves when it is dropped.
#[derive(Debug)]
pub(super) struct Standby {
    watched: Vec<Watched>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

#[derive(Debug)]
struct Watched {
    options: DaemonOptions,
    spec: MemorySpec,
    /// The shard, while it is served here.
    server: Option<DaemonServer>,
    /// Not to be looked at before.
    not_before_ns: u64,
    /// The shard has left the pool: its region is of no use until a daemon comes with a new one.
    has_left: bool,
}

impl Standby {
    /// For the shards beside the one of `options`; `None` if there are none, or if they are memory
    /// that ends with its daemon.
    pub(super) fn new(options: &DaemonOptions) -> Result<Option<Standby>> {
        let home = options.home()?;
        let mut watched = Vec::new();
        for sibling in home.siblings() {
            let mut options = options.clone();
            options.shard = sibling.shard();
            // Those addresses are the own shard's.
            options.listen.set_port(0);
            options.metrics = None;
            let spec = shard_memory(&options)?;
            if spec.kind != MemoryKind::Heap {
                let (server, not_before_ns, has_left) = (None, 0, false);
                watched.push(Watched { options, spec, server, not_before_ns, has_left });
            }
        }
        Ok((!watched.is_empty()).then_some(Standby { watched, thread: None }))
    }

    /// Begins to look; `own` is the process's own shard, which is told whether others are served.
    pub(super) fn start(mut self, own: &Arc<Stop>) -> Result<Standby> {
        let own = Arc::clone(own);
        let (stop, stopped) = channel();
        let watched = std::mem::take(&mut self.watched);
        let thread = log::spawn("rackpool-standby", move || watch(watched, &stopped, &own))
            .map_err(|error| io_error("standby thread", &error))?;
        self.thread = Some((stop, thread));
        Ok(self)
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        let Some((stop, thread)) = self.thread.take() else { return };
        drop(stop);
        if thread.join().is_err() {
            warn!(target: "daemon", "the standby thread panicked");
        }
    }
}

fn watch(mut watched: Vec<Watched>, stopped: &Receiver<()>, own: &Stop) {
    let pause = Duration::from_millis(LOOK_MS);
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        watched.iter_mut().for_each(Watched::look);
        let any = watched.iter().any(|one| one.server.is_some());
        // Relaxed: see `Stop::serves_others`.
        own.serves_others.store(any, Ordering::Relaxed);
    }
    watched.iter_mut().for_each(Watched::end);
}

impl Watched {
    fn look(&mut self) {
        let now = clock::now_ns();
        if now < self.not_before_ns {
            return;
        }
        let looked = match &self.server {
            None if self.has_left => self.look_for_another(),
            None => self.take_over(),
            Some(server) if server.has_ended() => self.ended(),
            Some(_) => self.give_back(),
        };
        if let Err(error) = looked {
            let (rack, shard) = (self.options.rack, self.options.shard);
            warn!(target: "daemon", "rack {rack}.{shard}: standing by for it: {error}");
            self.not_before_ns = now + FAILED_MS * 1_000_000;
        }
    }

    fn take_over(&mut self) -> Result<()> {
        if !Claim::is_orphan(&self.spec).map_err(Error::from)? {
            return Ok(());
        }
        let mut options = self.options.clone();
        // It may have to be given back; what is to go goes in `end`.
        options.ephemeral = false;
        // Others are looked after meanwhile, too, and this can be tried again.
        options.join_timeout_ms = options.join_timeout_ms.min(LEASE_MS_DEFAULT);
        let home = options.home()?;
        info!(target: "daemon", "rack {home}: its daemon is gone; this process takes it over");
        match DaemonServer::open(options, Belongs::Elsewhere) {
            Ok(server) => {
                info!(target: "daemon", "rack {home}: served here, at {}", server.local_addr());
                self.server = Some(server);
                Ok(())
            }
            // Another one of the rack's daemons was first.
            Err(Error::Denied { .. }) => {
                self.not_before_ns = clock::now_ns() + FAILED_MS * 1_000_000;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// What was taken over has ended by itself. If not because it is no member of the pool any
    /// more, it is taken over again, after a pause.
    fn ended(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let ended = server.join();
        self.has_left = matches!(ended, Ok(Ended::Left) | Err(Error::Forgotten { .. }));
        ended.map(drop)
    }

    /// After the shard has left: whether a daemon has claimed it for a new region.
    fn look_for_another(&mut self) -> Result<()> {
        self.has_left = !Claim::is_held(&self.spec).map_err(Error::from)?;
        Ok(())
    }

    fn give_back(&mut self) -> Result<()> {
        if !Claim::is_held(&self.spec).map_err(Error::from)? {
            return Ok(());
        }
        let (rack, shard) = (self.options.rack, self.options.shard);
        info!(
            target: "daemon",
            "rack {rack}.{shard}: its own daemon is back; this process lets go of it"
        );
        if let Some(server) = self.server.take() {
            server.stop();
        }
        Ok(())
    }

    /// What is served here ends; an ephemeral region goes, unless another process serves it.
    fn end(&mut self) {
        let Some(server) = self.server.take() else { return };
        server.stop();
        if !self.options.ephemeral {
            return;
        }
        match RegionFiles::remove_path(&self.spec) {
            Ok(_) => self.options.remove_spill_file(),
            Err(RegionError::Locked { .. }) => {}
            Err(error) => warn!(target: "daemon", "removing the region: {error}"),
        }
    }
}
