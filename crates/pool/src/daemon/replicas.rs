//! Holds replicas of other racks' pages for this one: a thread for each home, beside the one that
//! moves pages, which runs [`hold_replicas`] with a handle of its own.

use super::helper::{Signal, Worker};
use super::io_error;
use crate::drive::block;
use crate::options::Options;
use rackpool_core::constants::NS_PER_MS;
use rackpool_core::runtime::replicas::{ReplicaPauses, hold_replicas};
use rackpool_core::{RackId, Result};
use rackpool_mem::log;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use tracing::warn;

const PAUSES: ReplicaPauses = ReplicaPauses { idle_ns: 100 * NS_PER_MS, failed_ns: 10 * NS_PER_MS };

#[derive(Default)]
pub(super) struct ReplicaHolders {
    signal: Arc<Signal>,
    threads: BTreeMap<RackId, JoinHandle<()>>,
}

impl ReplicaHolders {
    /// Starts to hold replicas of a home's pages, once.
    pub(super) fn hold(&mut self, home: RackId, options: &Options) -> Result<()> {
        if self.threads.contains_key(&home) {
            return Ok(());
        }
        let (signal, options) = (Arc::clone(&self.signal), options.clone());
        let thread = log::spawn("rackpool-replicas", move || run(&signal, &options, home))
            .map_err(|error| io_error("thread for replicas", &error))?;
        self.threads.insert(home, thread);
        Ok(())
    }
}

impl Drop for ReplicaHolders {
    fn drop(&mut self) {
        self.signal.stop();
        for (_, thread) in std::mem::take(&mut self.threads) {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}

fn run(signal: &Signal, options: &Options, home: RackId) {
    let mut is_said = false;
    while !signal.is_over() {
        let mut worker = Worker::new(signal, options.clone());
        let held = worker.open().map(drop);
        let Err(error) = held.and_then(|()| block(hold_replicas(&mut worker, home, PAUSES))) else {
            return;
        };
        if !std::mem::replace(&mut is_said, true) {
            warn!(target: "daemon", "rack {}: replicas (said once): {error}", options.rack);
        }
        signal.pause(PAUSES.idle_ns);
    }
}
