//! Moves pages for a rack: hot ones of other racks to it (`--migrate`), cold ones to racks with
//! more room (`--rebalance`), all of them away when it is drained. One thread, which runs
//! [`relocate`] with an ordinary handle and measures what accesses to a rack cost when a page of
//! that rack is wanted.
//!
//! What stays in a draining rack and why goes to the daemon, which tells every client that asks;
//! it is said here when it changes. Other failures are said once.

use super::DaemonOptions;
use super::helper::{HelperThread, OpenedHandle, Worker};
use super::replicas::ReplicaHolders;
use crate::clock;
use crate::drive::block;
use crate::handle::Handle;
use rackpool_core::client::{DaemonQuery, Placement, RelocationOutcome};
use rackpool_core::constants::{LEASE_MS_DEFAULT, NS_PER_MS, NS_PER_SECOND};
use rackpool_core::policy::{AccessCosts, MigrationPolicy};
use rackpool_core::runtime::relocation::{RelocationHost, RelocationOptions, relocate};
use rackpool_core::runtime::{Backoff, WorkerHost};
use rackpool_core::seam::Nanos;
use rackpool_core::{Error, GAddr, RackId, Result};
use rackpool_mem::event::WakeEvent;
use rackpool_mem::window::Window;
use std::collections::BTreeSet;
use tracing::warn;

/// How long a call rides through the restart of a peer, ms: pages wait meanwhile, and the next
/// question asks again.
const CALL_MS: u64 = LEASE_MS_DEFAULT;
/// Pauses after a step that could not ask, or a pass over a draining rack that moved nothing.
const BACKOFF: Backoff = Backoff::ms(10, 500);
/// After how long it is asked again whether a cold page goes, ns: four heartbeats, which tell how
/// full racks are.
const BALANCE_NS: Nanos = LEASE_MS_DEFAULT * NS_PER_MS;
/// Small accesses, and messages, that are timed to know what one costs.
const SAMPLES: usize = 15;
/// Bytes that are read at once to know what the fabric carries.
const BULK_BYTES: u64 = 1 << 20;
/// How often that is done; the fastest counts.
const BULK_TRIES: usize = 3;
/// An access to the own rack, if there is no memory left to measure one, ns. Source: Rcmp §6.1.
const LOCAL_NS: u64 = 140;
const LINE: usize = 64;

/// What the thread is there for, and what failures are about.
const MOVING: &str = "moving a page";
const BALANCING: &str = "balancing";
const DRAINING: &str = "draining";

/// Starts the thread, unless it runs.
pub(super) fn start(
    thread: &mut HelperThread,
    options: &DaemonOptions,
    wake: &WakeEvent,
) -> Result<()> {
    let (pool, name) = (options.own_client(CALL_MS), options.name());
    let task = match (options.migration != MigrationPolicy::Off, options.balance.is_some()) {
        (true, _) => MOVING,
        (false, true) => BALANCING,
        (false, false) => DRAINING,
    };
    let balance_ns = options.balance.map(|_| BALANCE_NS);
    let options = RelocationOptions { stays: task != DRAINING, backoff: BACKOFF, balance_ns };
    thread.start("relocation", wake, move |signal| {
        let mut host = Relocations {
            worker: Worker::new(signal, pool),
            name,
            task,
            said: BTreeSet::new(),
            drains: task == DRAINING,
            said_of_drain: Vec::new(),
            local_ns: None,
            holders: ReplicaHolders::default(),
        };
        block(relocate(&mut host, options));
    })
}

struct Relocations<'s> {
    worker: Worker<'s>,
    name: String,
    task: &'static str,
    /// Failures that were said, by their word: each once.
    said: BTreeSet<(&'static str, &'static str)>,
    /// The last that was heard is about a rack that is being drained.
    drains: bool,
    /// What was said last of that.
    said_of_drain: Vec<String>,
    local_ns: Option<u64>,
    /// Of pages of other racks that were wanted here.
    holders: ReplicaHolders,
}

impl Relocations<'_> {
    fn warn_once(&mut self, task: &'static str, error: &Error) {
        if self.said.insert((task, error.code())) {
            warn!(target: "daemon", "rack {}: {task} (said once): {error}", self.name);
        }
    }

    fn warn_of_drain(&mut self, lines: Vec<String>) {
        if lines != self.said_of_drain {
            lines
                .iter()
                .for_each(|line| warn!(target: "daemon", "rack {}: draining: {line}", self.name));
            self.said_of_drain = lines;
        }
    }

    /// Times accesses to a page of `rack`, messages to its daemon, and how fast much of it comes.
    fn costs(&mut self, rack: RackId, addr: GAddr) -> crate::Result<AccessCosts> {
        let OpenedHandle { handle, .. } = self.worker.open()?;
        let local_ns = *self.local_ns.get_or_insert_with(|| measure_local(handle));
        let mut line = [0; LINE];
        let remote_ns = median_ns(|| handle.read(addr, &mut line))?;
        let round_trip_ns = median_ns(|| {
            let deadline_ns = clock::deadline_ns(CALL_MS);
            Ok(handle.query(rack, &DaemonQuery::ping(), deadline_ns)?)
        })?;
        let piece_bytes = handle.page_bytes().min(BULK_BYTES);
        let mut bulk = vec![0; BULK_BYTES as usize];
        let mut fastest_ns = u64::MAX;
        for _ in 0..BULK_TRIES {
            let pieces = bulk.chunks_exact_mut(piece_bytes as usize);
            let mut pieces: Vec<_> = pieces.map(|piece| (addr, piece)).collect();
            let started_ns = clock::now_ns();
            handle.read_batch(&mut pieces)?;
            fastest_ns = fastest_ns.min(clock::now_ns() - started_ns);
        }
        let bytes_per_second = BULK_BYTES * NS_PER_SECOND / fastest_ns.max(1);
        Ok(AccessCosts { local_ns, remote_ns, round_trip_ns, bytes_per_second })
    }
}

impl RelocationHost<Window> for Relocations<'_> {
    fn worker(&mut self) -> &mut impl WorkerHost<Window> {
        &mut self.worker
    }

    async fn wait_for_work(&mut self, until_ns: Nanos) {
        self.worker.signal.wait(until_ns.saturating_sub(clock::now_ns()));
    }

    async fn measure(&mut self, rack: RackId, at: GAddr) -> Result<AccessCosts> {
        let costs = self.costs(rack, at).map_err(crate::Error::into_wire)?;
        if let Err(error) = self.holders.hold(rack, &self.worker.options) {
            self.warn_once(MOVING, &error);
        }
        Ok(costs)
    }

    fn note(&mut self, outcome: &Result<RelocationOutcome>) {
        match outcome {
            Ok(RelocationOutcome::Evacuated(..) | RelocationOutcome::PassOver(_)) => {
                self.drains = true;
            }
            Ok(_) => {
                self.drains = self.task == DRAINING;
                if !self.drains {
                    self.said_of_drain.clear();
                }
            }
            Err(_) => {}
        }
        match outcome {
            Ok(RelocationOutcome::Pulled(_, Some(error))) => self.warn_once(MOVING, error),
            Ok(RelocationOutcome::Pushed(_, Err(error))) => {
                self.warn_once(BALANCING, error);
            }
            Ok(RelocationOutcome::PassOver(report)) if report.moved == 0 => {
                self.warn_of_drain(report.lines());
            }
            Ok(_) => {}
            Err(error) if self.drains => {
                self.warn_of_drain(vec![format!("asking for pages: {error}")]);
            }
            Err(error) => self.warn_once(self.task, error),
        }
    }
}

fn measure_local(handle: &mut Handle) -> u64 {
    let Ok(addr) = handle.alloc_owned(LINE as u64, Placement::Local) else { return LOCAL_NS };
    let mut line = [0; LINE];
    let local_ns = median_ns(|| handle.read(addr, &mut line));
    // What cannot be freed now comes back with the session.
    let _ = handle.free(addr, LINE as u64);
    local_ns.unwrap_or(LOCAL_NS)
}

/// How long it takes, the first time aside.
fn median_ns(mut work: impl FnMut() -> crate::Result<()>) -> crate::Result<u64> {
    work()?;
    let mut samples = [0; SAMPLES];
    for sample in &mut samples {
        let started_ns = clock::now_ns();
        work()?;
        *sample = clock::now_ns() - started_ns;
    }
    samples.sort_unstable();
    Ok(samples[SAMPLES / 2])
}
