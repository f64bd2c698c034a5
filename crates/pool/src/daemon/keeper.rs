//! Keeps replicas of other racks' pages for this one: a thread for each home, beside the mover,
//! with an ordinary handle. A thread asks its home what to do and does it
//! (`core::client::Tending`); what it has, it owns, and with its handle all of that goes back.

use super::io_error;
use super::mover::Bell;
use crate::clock;
use crate::handle::{ATOMIC_ID, Handle};
use crate::options::Options;
use rackpool_core::client::{Keeper, Migrate, Operation, Tended};
use rackpool_core::constants::NS_PER_MS;
use rackpool_core::{Error, RackId, Result};
use rackpool_fabric::LocalBuffer;
use rackpool_mem::log;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use tracing::warn;

/// Pause while there is no memory for replicas, ms.
const IDLE_MS: u64 = 100;
/// Pause while a client writes to a replica that is to be closed, ns.
const WAIT_NS: u64 = 20_000;
/// Pause after a turn that failed, ms.
const PAUSE_MS: u64 = 10;

#[derive(Default)]
pub(super) struct Keepers {
    bell: Arc<Bell>,
    threads: BTreeMap<RackId, JoinHandle<()>>,
}

impl Keepers {
    /// Starts to keep replicas of a home's pages, once.
    pub(super) fn keep(&mut self, home: RackId, options: &Options) -> Result<()> {
        if self.threads.contains_key(&home) {
            return Ok(());
        }
        let (bell, options) = (Arc::clone(&self.bell), options.clone());
        let thread = log::spawn("rackpool-keeper", move || run(&bell, &options, home))
            .map_err(|error| io_error("thread for replicas", &error))?;
        self.threads.insert(home, thread);
        Ok(())
    }
}

impl Drop for Keepers {
    fn drop(&mut self) {
        self.bell.stop();
        for (_, thread) in std::mem::take(&mut self.threads) {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}

fn run(bell: &Bell, options: &Options, home: RackId) {
    let mut is_said = false;
    while !bell.is_over() {
        let error = match keep(bell, options, home) {
            Ok(()) => return,
            Err(error) => error,
        };
        if !std::mem::replace(&mut is_said, true) {
            warn!(target: "daemon", "rack {}: replicas (said once): {error}", options.rack);
        }
        bell.pause(IDLE_MS * NS_PER_MS);
    }
}

/// Until the daemon ends, or the memory is gone.
fn keep(bell: &Bell, options: &Options, home: RackId) -> Result<()> {
    let mut handle = Handle::join(options.clone())?;
    // What it reads says nothing of where a page is used.
    handle.never_count_use();
    let mut buffer = vec![0; Migrate::buffer_bytes(&handle.client) as usize];
    let mut keeper = Keeper::new(home);
    while !bell.is_over() {
        match tend(&mut handle, &mut keeper, &mut buffer) {
            Ok(Tended::Polled) => {}
            Ok(Tended::Waiting) => drop(bell.pause(WAIT_NS)),
            Ok(Tended::Idle) => drop(bell.pause(IDLE_MS * NS_PER_MS)),
            Err(error @ Error::Lost { .. }) => return Err(error),
            // The same question is asked again; its leases run out meanwhile, if it must be so.
            Err(_) => drop(bell.pause(PAUSE_MS * NS_PER_MS)),
        }
    }
    if keeper.retire(&handle.client) {
        tend(&mut handle, &mut keeper, &mut buffer)?;
    }
    Ok(())
}

fn tend(handle: &mut Handle, keeper: &mut Keeper, buffer: &mut [u8]) -> Result<Tended> {
    handle.rounds += 1;
    let mut turn = keeper.turn(ATOMIC_ID | handle.rounds, clock::now_ns());
    handle.wait_with(&mut [LocalBuffer::Into(buffer)], async |cx, _| turn.run(cx).await)
}
