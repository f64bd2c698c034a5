//! Looks for what dead clients held: a thread beside the daemon's poll loop, with an ordinary
//! handle, that is started when a session has ended in the middle of a change, and ends when
//! nothing is to be looked for any more. What is looked at belongs to the structures in the pool,
//! which this crate does not know: the process that serves hands a [`Sweeper`] in.

use super::DaemonOptions;
use super::helper::{HelperThread, Signal};
use crate::handle::Handle;
use crate::options::Options;
use rackpool_core::RackId;
use rackpool_core::constants::REQUEST_TIMEOUT_MS_DEFAULT;
use rackpool_core::daemon::Daemon;
use rackpool_core::runtime::Backoff;
use rackpool_mem::event::WakeEvent;
use tracing::warn;

/// Looks through the pool for what nothing names and frees it, as long as a rack says that this is
/// due; whether nothing is due any more, or why it could not be done now.
pub type Sweeper = fn(&mut Handle, RackId) -> std::result::Result<bool, String>;

/// Pauses after a sweep that could not be done.
const BACKOFF: Backoff = Backoff::ms(500, 30_000);

/// Starts the thread if a sweep is due, unless it runs.
pub(super) fn start_if_due(
    thread: &mut HelperThread,
    options: &DaemonOptions,
    engine: &Daemon,
    wake: &WakeEvent,
) {
    let Some(sweeper) = options.sweeper.filter(|_| engine.sweeps_due() > 0) else { return };
    let (pool, rack) = (options.own_client(REQUEST_TIMEOUT_MS_DEFAULT), engine.rack());
    let started = thread.start("sweep", wake, move |signal| run(signal, &pool, sweeper, rack));
    if let Err(error) = started {
        warn!(target: "daemon", "rack {}: {error}", engine.rack());
    }
}

fn run(signal: &Signal, options: &Options, sweeper: Sweeper, rack: RackId) {
    let mut backoff = BACKOFF;
    let mut said = String::new();
    while !signal.is_over() {
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
        signal.pause(backoff.pause_ns());
    }
}
