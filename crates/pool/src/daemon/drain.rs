//! Empties a rack that is being drained: a thread beside the daemon's poll loop, with an ordinary
//! handle, that takes turns (`core::client::DrainTurn`) until the rack has left the pool or is to
//! stay. It needs no policy and runs whatever `--migrate` says.
//!
//! Pages that stay are tried again with each pass; a pass that moved nothing is followed by a
//! pause. What stays and why goes to the daemon, which tells every client that asks.

use super::mover::Bell;
use super::{DaemonOptions, io_error};
use crate::handle::{ATOMIC_ID, Handle};
use crate::options::Options;
use rackpool_core::Result;
use rackpool_core::client::{Drained, Drainer, Migrate, Operation};
use rackpool_core::constants::{LEASE_MS_DEFAULT, NS_PER_MS};
use rackpool_core::member::DrainReport;
use rackpool_fabric::LocalBuffer;
use rackpool_mem::event::WakeEvent;
use rackpool_mem::log;
use rackpool_mem::window::Window;
use std::sync::Arc;
use std::thread::JoinHandle;
use tracing::warn;

/// How long a call of the thread rides through the restart of a peer, ms: pages wait meanwhile,
/// and the next pass asks again.
const CALL_MS: u64 = LEASE_MS_DEFAULT;
/// Pause after a pass that moved nothing, the first one, ms; it doubles.
const PAUSE_MS_MIN: u64 = 10;
/// The longest such pause, ms: memory that is freed, unlocked or unpinned goes this much later.
const PAUSE_MS_MAX: u64 = 500;

/// The thread, as the daemon sees it.
pub(super) struct DrainThread {
    bell: Arc<Bell>,
    thread: JoinHandle<()>,
}

impl DrainThread {
    /// Starts it. `wake` is notified when it ends.
    pub(super) fn start(options: &DaemonOptions, wake: WakeEvent) -> Result<Self> {
        let bell = Arc::new(Bell::default());
        let (pool, name) = (options.own_client(CALL_MS), options.name());
        let heard = Arc::clone(&bell);
        let thread = log::spawn("rackpool-drain", move || {
            DrainLoop { bell: &heard, options: pool, name, said: Vec::new() }.run();
            wake.notify();
        })
        .map_err(|error| io_error("drain thread", &error))?;
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

struct DrainLoop<'b> {
    bell: &'b Bell,
    options: Options,
    name: String,
    /// What was said last, so that it is said once.
    said: Vec<String>,
}

impl DrainLoop<'_> {
    fn run(&mut self) {
        let mut worker: Option<RelocationWorker> = None;
        let mut drainer = Drainer::default();
        let mut pause_ms = PAUSE_MS_MIN;
        while !self.bell.is_over() {
            let mut turn = |worker: &mut RelocationWorker| worker.drive(|id| drainer.turn(id));
            let turned = match &mut worker {
                Some(worker) => turn(worker),
                None => {
                    RelocationWorker::open(&self.options).and_then(|new| turn(worker.insert(new)))
                }
            };
            match turned {
                Ok(Drained::Left) => return,
                Ok(Drained::PassOver(report)) if report.moved > 0 => {
                    pause_ms = PAUSE_MS_MIN;
                    continue;
                }
                Ok(Drained::PassOver(report)) => self.say_report(&report),
                Ok(Drained::Moved(..) | Drained::Gone(_) | Drained::Stays(..)) => continue,
                Err(error) => self.say(vec![format!("asking for pages: {error}")]),
            }
            if !self.bell.pause(pause_ms * NS_PER_MS) {
                return;
            }
            pause_ms = (2 * pause_ms).min(PAUSE_MS_MAX);
        }
    }

    fn say_report(&mut self, report: &DrainReport) {
        self.say(report.lines());
    }

    fn say(&mut self, lines: Vec<String>) {
        if lines == self.said {
            return;
        }
        for line in &lines {
            warn!(target: "daemon", "rack {}: draining: {line}", self.name);
        }
        self.said = lines;
    }
}

/// A handle, and what an operation that moves pages needs beside it.
pub(super) struct RelocationWorker {
    handle: Handle,
    buffer: Vec<u8>,
}

impl RelocationWorker {
    pub(super) fn open(options: &Options) -> Result<Self> {
        let mut handle = Handle::join(options.clone())?;
        // What is copied says nothing of where a page is used.
        handle.never_count_use();
        let buffer = vec![0; Migrate::buffer_bytes(&handle.client) as usize];
        Ok(Self { handle, buffer })
    }

    pub(super) fn page_bytes(&self) -> u64 {
        self.handle.page_bytes()
    }

    /// Runs the operation that `make` makes of the number of its work requests.
    pub(super) fn drive<O: Operation<Window>>(
        &mut self,
        make: impl FnOnce(u64) -> O,
    ) -> Result<O::Output> {
        let Self { handle, buffer } = self;
        handle.rounds += 1;
        let mut op = make(ATOMIC_ID | handle.rounds);
        handle.wait_with(&mut [LocalBuffer::Into(buffer)], async |cx, _| op.run(cx).await)
    }
}
