//! Looks for what dead clients held: a thread beside the daemon's poll loop, with an ordinary
//! handle, that is started when a session has ended in the middle of a change, and ends when
//! nothing is to be looked for any more. What is looked at belongs to the structures in the pool,
//! which this crate does not know: the process that serves hands a [`Sweeper`] in.

use super::mover::Bell;
use super::{DaemonOptions, io_error};
use crate::handle::Handle;
use crate::options::Options;
use rackpool_core::constants::{NS_PER_MS, REQUEST_TIMEOUT_MS_DEFAULT};
use rackpool_core::daemon::Daemon;
use rackpool_core::{RackId, Result};
use rackpool_mem::event::WakeEvent;
use rackpool_mem::log;
use std::sync::Arc;
use std::thread::JoinHandle;
use tracing::warn;

/// Looks through the pool for what nothing names and frees it, as long as a rack says that this is
/// due; whether nothing is due any more, or why it could not be done now.
pub type Sweeper = fn(&mut Handle, RackId) -> std::result::Result<bool, String>;

/// Pause after a sweep that could not be done, the first one, ms; it doubles.
const PAUSE_MS_MIN: u64 = 500;
/// The longest such pause, ms.
const PAUSE_MS_MAX: u64 = 30_000;

/// The thread, as the daemon sees it.
#[derive(Default)]
pub(super) struct Sweeps(Option<(Arc<Bell>, JoinHandle<()>)>);

impl Sweeps {
    /// Starts the thread if a sweep is due, unless it runs. `wake` is notified when it ends.
    pub(super) fn start_if_due(
        &mut self,
        options: &DaemonOptions,
        engine: &Daemon,
        wake: &WakeEvent,
    ) {
        let is_under_way = self.0.as_ref().is_some_and(|(_, thread)| !thread.is_finished());
        let Some(sweeper) = options.sweeper else { return };
        if is_under_way || engine.sweeps_due() == 0 {
            return;
        }
        let wake = wake.try_clone().map_err(|e| io_error("wake event", &e));
        match wake.and_then(|wake| start(options, sweeper, engine.rack(), wake)) {
            Ok(started) => self.0 = Some(started),
            Err(error) => warn!(target: "daemon", "rack {}: {error}", engine.rack()),
        }
    }

    /// Asks the thread to end after the sweep that is under way, and does not wait; whether it has.
    pub(super) fn stop(&self) -> bool {
        self.0.as_ref().is_none_or(|(bell, thread)| {
            bell.stop();
            thread.is_finished()
        })
    }
}

fn start(
    options: &DaemonOptions,
    sweeper: Sweeper,
    rack: RackId,
    wake: WakeEvent,
) -> Result<(Arc<Bell>, JoinHandle<()>)> {
    let bell = Arc::new(Bell::default());
    let pool = options.own_client(REQUEST_TIMEOUT_MS_DEFAULT);
    let heard = Arc::clone(&bell);
    let thread = log::spawn("rackpool-sweep", move || {
        run(&heard, &pool, sweeper, rack);
        wake.notify();
    })
    .map_err(|error| io_error("sweep thread", &error))?;
    Ok((bell, thread))
}

fn run(bell: &Bell, options: &Options, sweeper: Sweeper, rack: RackId) {
    let mut pause_ms = PAUSE_MS_MIN;
    let mut said = String::new();
    while !bell.is_over() {
        let swept = Handle::join(options.clone())
            .map_err(|error| error.to_string())
            .and_then(|mut handle| sweeper(&mut handle, rack));
        match swept {
            Ok(true) => return,
            Ok(false) => {}
            Err(why) if why == said => {}
            Err(why) => {
                warn!(target: "daemon", "rack {rack}: what dead clients held waits: {why}");
                said = why;
            }
        }
        if !bell.pause(pause_ms * NS_PER_MS) {
            return;
        }
        pause_ms = (2 * pause_ms).min(PAUSE_MS_MAX);
    }
}
