//! Sends cold pages of a rack that is fuller than the others to emptier ones (`--rebalance on`): a
//! thread beside the daemon's poll loop, with an ordinary handle, that takes turns
//! (`core::client::BalanceTurn`). Whether a page goes is decided by the daemon's engine.

use super::drain::RelocationWorker;
use super::mover::Bell;
use super::{DaemonOptions, io_error};
use crate::clock;
use crate::options::Options;
use rackpool_core::client::{Balanced, Balancer};
use rackpool_core::constants::{LEASE_MS_DEFAULT, NS_PER_MS, NS_PER_SECOND};
use rackpool_core::{Error, Result};
use rackpool_mem::event::WakeEvent;
use rackpool_mem::log;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use tracing::warn;

/// How long a call of the thread rides through the restart of a peer, ms.
const CALL_MS: u64 = LEASE_MS_DEFAULT;
/// Pause after a turn that sent nothing, ms: four heartbeats, which tell how full racks are.
const PAUSE_MS: u64 = LEASE_MS_DEFAULT;
/// Pause after a page, ms: the allowance says how many go in a second.
const NEXT_MS: u64 = 1;
/// What a copy is expected to carry before the first, bytes a second: less than any fabric does.
const FIRST_BYTES_PER_SECOND: u64 = 100_000_000;

/// The thread, as the daemon sees it.
pub(super) struct BalanceThread {
    bell: Arc<Bell>,
    thread: JoinHandle<()>,
}

impl BalanceThread {
    /// Starts it. `wake` is notified when it ends.
    pub(super) fn start(options: &DaemonOptions, wake: WakeEvent) -> Result<Self> {
        let bell = Arc::new(Bell::default());
        let pool = options.own_client(CALL_MS);
        let heard = Arc::clone(&bell);
        let thread = log::spawn("rackpool-balance", move || {
            run(&heard, &pool);
            wake.notify();
        })
        .map_err(|error| io_error("balance thread", &error))?;
        Ok(Self { bell, thread })
    }

    /// Asks it to end after the page that is under way, and does not wait.
    pub(super) fn stop(&self) {
        self.bell.stop();
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

fn run(bell: &Bell, options: &Options) {
    let mut worker: Option<RelocationWorker> = None;
    let mut balancer = Balancer::default();
    balancer.measured(FIRST_BYTES_PER_SECOND);
    let mut said: BTreeSet<&'static str> = BTreeSet::new();
    let mut say = |error: &Error| {
        if said.insert(error.code()) {
            warn!(target: "daemon", "rack {}: balancing (said once): {error}", options.rack);
        }
    };
    let mut pause_ms = PAUSE_MS;
    // A rack that has just started is told how full the others are only after a heartbeat.
    while bell.pause(pause_ms * NS_PER_MS) {
        pause_ms = PAUSE_MS;
        let worker = match &mut worker {
            Some(worker) => worker,
            None => match RelocationWorker::open(options) {
                Ok(new) => worker.insert(new),
                Err(error) => {
                    say(&error);
                    continue;
                }
            },
        };
        let started_ns = clock::now_ns();
        match worker.drive(|id| balancer.turn(id)) {
            Ok(Balanced::Sent(..)) => {
                let took_ns = (clock::now_ns() - started_ns).max(1);
                balancer.measured(worker.page_bytes().saturating_mul(NS_PER_SECOND) / took_ns);
                pause_ms = NEXT_MS;
            }
            // Another one is looked for at once; there are not many that stay.
            Ok(Balanced::Stays(_, error)) => {
                say(&error);
                pause_ms = NEXT_MS;
            }
            Ok(Balanced::Rests) => {}
            Err(error) => say(&error),
        }
    }
}
