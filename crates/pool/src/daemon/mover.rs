//! Moves pages for a rack: a thread beside the daemon's poll loop, with an ordinary handle. The
//! daemon signals it when its clients want a page of another rack; the thread then takes turns
//! (`core::client::Turn`) until there is nothing to move, and sleeps. It measures what accesses to
//! another rack cost when a page of that rack is wanted, and anew every few seconds.
//!
//! It ends with its daemon, which goes on serving until the move that is under way is over.

use super::keeper::Keepers;
use super::{DaemonOptions, io_error};
use crate::clock;
use crate::handle::{ATOMIC_ID, Handle};
use crate::options::Options;
use rackpool_core::client::{Migrate, Mover, Operation, Placement, Turned};
use rackpool_core::constants::{LEASE_MS_DEFAULT, NS_PER_MS, NS_PER_SECOND};
use rackpool_core::policy::AccessCosts;
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{Error, GAddr, RackId, Result};
use rackpool_fabric::LocalBuffer;
use rackpool_mem::event::WakeEvent;
use rackpool_mem::log;
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::warn;

/// How long what was measured is believed, ns.
const COSTS_NS: u64 = 10 * NS_PER_SECOND;
/// How long a call of the mover rides through the restart of a peer, ms: pages wait meanwhile, and
/// the next turn asks again.
const CALL_MS: u64 = LEASE_MS_DEFAULT;
/// Pause after a turn that could not ask, the first one; it doubles.
const PAUSE_MS_MIN: u64 = 10;
/// The longest such pause, ms.
const PAUSE_MS_MAX: u64 = 1_000;
/// Small accesses, and messages, that are timed to know what one costs.
const SAMPLES: usize = 15;
/// Bytes that are read at once to know what the fabric carries.
const BULK_BYTES: u64 = 1 << 20;
/// How often that is done; the fastest counts.
const BULK_TRIES: usize = 3;
/// An access to the own rack, if there is no memory left to measure one, ns. Source: Rcmp §6.1.
const LOCAL_NS: u64 = 140;
const LINE: usize = 64;

/// The thread, as the daemon sees it.
pub(super) struct MoverThread {
    bell: Arc<Bell>,
    thread: JoinHandle<()>,
}

/// The wake-up of a thread beside the daemon's loop, signalled by the daemon.
#[derive(Default)]
pub(super) struct Bell {
    state: Mutex<BellState>,
    rung: Condvar,
}

#[derive(Default)]
struct BellState {
    is_rung: bool,
    is_over: bool,
}

impl Bell {
    fn state(&self) -> MutexGuard<'_, BellState> {
        self.state.lock().expect("no panic happens under this lock")
    }

    /// Waits until it is signalled; `false` at the end.
    fn wait(&self) -> bool {
        let silent = |state: &mut BellState| !state.is_rung && !state.is_over;
        let waited = self.rung.wait_while(self.state(), silent);
        let mut state = waited.expect("no panic happens under this lock");
        state.is_rung = false;
        !state.is_over
    }

    /// Waits for the end, or until the time is up; `false` at the end.
    pub(super) fn pause(&self, ns: u64) -> bool {
        let goes_on = |state: &mut BellState| !state.is_over;
        let waited = self.rung.wait_timeout_while(self.state(), Duration::from_nanos(ns), goes_on);
        !waited.expect("no panic happens under this lock").0.is_over
    }
}

impl Bell {
    /// Asks the thread to end.
    pub(super) fn stop(&self) {
        if !std::mem::replace(&mut self.state().is_over, true) {
            self.rung.notify_one();
        }
    }

    /// Whether the thread is to end.
    pub(super) fn is_over(&self) -> bool {
        self.state().is_over
    }
}

impl MoverThread {
    /// Starts it; it joins when it is first signalled. `wake` is notified when it ends.
    pub(super) fn start(options: &DaemonOptions, wake: WakeEvent) -> Result<Self> {
        let bell = Arc::new(Bell::default());
        let pool = options.own_client(CALL_MS);
        let heard = Arc::clone(&bell);
        let thread = log::spawn("rackpool-mover", move || {
            let (said, keepers) = (BTreeSet::new(), Keepers::default());
            MoverLoop { bell: &heard, options: pool, said, keepers }.run();
            wake.notify();
        })
        .map_err(|error| io_error("mover thread", &error))?;
        Ok(Self { bell, thread })
    }

    /// Tells the thread that a page is wanted.
    pub(super) fn ring(&self) {
        let mut state = self.bell.state();
        if !std::mem::replace(&mut state.is_rung, true) {
            self.bell.rung.notify_one();
        }
    }

    /// Asks it to end after the move that is under way, and does not wait.
    pub(super) fn stop(&self) {
        self.bell.stop();
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

struct MoverLoop<'b> {
    bell: &'b Bell,
    options: Options,
    /// Failures that were said, by their word: each once.
    said: BTreeSet<&'static str>,
    /// Of homes with pages that were wanted here.
    keepers: Keepers,
}

impl MoverLoop<'_> {
    fn run(&mut self) {
        let mut worker: Option<MoverWorker> = None;
        let mut pause_ms = PAUSE_MS_MIN;
        while self.bell.wait() {
            let worked = match &mut worker {
                Some(worker) => self.work(worker),
                None => {
                    MoverWorker::open(&self.options).and_then(|new| self.work(worker.insert(new)))
                }
            };
            match worked {
                Ok(()) => pause_ms = PAUSE_MS_MIN,
                Err(error) => {
                    self.say(&error);
                    // The daemon rings as long as a page is wanted.
                    if !self.bell.pause(pause_ms * NS_PER_MS) {
                        return;
                    }
                    pause_ms = (2 * pause_ms).min(PAUSE_MS_MAX);
                }
            }
        }
    }

    /// Takes turns until nothing is wanted.
    fn work(&mut self, worker: &mut MoverWorker) -> Result<()> {
        while !self.bell.state().is_over {
            let started_ns = clock::now_ns();
            match worker.turn()? {
                Turned::Idle => break,
                Turned::Unmeasured(rack, addr) => {
                    let measured = worker.measure(rack, addr).map_err(crate::Error::into_wire);
                    if let Err(error) = &measured {
                        self.say(error);
                        worker.mover.unmeasurable();
                    }
                    if let Err(error) =
                        measured.and_then(|()| self.keepers.keep(rack, &self.options))
                    {
                        self.say(&error);
                    }
                }
                Turned::Asked(report, error) => {
                    error.iter().for_each(|error| self.say(error));
                    let took_ns = clock::now_ns() - started_ns;
                    self.bell.pause(worker.mover.pause_ns(&report, took_ns));
                }
            }
        }
        Ok(())
    }

    fn say(&mut self, error: &Error) {
        if self.said.insert(error.code()) {
            let rack = self.options.rack;
            warn!(target: "daemon", "rack {rack}: moving a page (said once): {error}");
        }
    }
}

/// The handle, and what a turn needs beside it.
struct MoverWorker {
    handle: Handle,
    mover: Mover,
    buffer: Vec<u8>,
    local_ns: u64,
    measured_at_ns: u64,
}

impl MoverWorker {
    fn open(options: &Options) -> Result<Self> {
        let mut handle = Handle::join(options.clone())?;
        // What the mover reads says nothing of where a page is used.
        handle.never_count_use();
        let buffer = vec![0; Migrate::buffer_bytes(&handle.client) as usize];
        let local_ns = measure_local(&mut handle);
        let mover = Mover::default();
        Ok(Self { handle, mover, buffer, local_ns, measured_at_ns: clock::now_ns() })
    }

    fn turn(&mut self) -> Result<Turned> {
        let now_ns = clock::now_ns();
        if now_ns >= self.measured_at_ns + COSTS_NS {
            self.mover.forget_costs();
            self.measured_at_ns = now_ns;
        }
        let Self { handle, mover, buffer, .. } = self;
        // It may need two.
        handle.rounds += 2;
        let mut turn = mover.turn(ATOMIC_ID | (handle.rounds - 1));
        handle.wait_with(&mut [LocalBuffer::Into(buffer)], async |cx, _| turn.run(cx).await)
    }

    /// Times accesses to a page of `rack`, messages to its daemon, and how fast much of it comes.
    fn measure(&mut self, rack: RackId, addr: GAddr) -> crate::Result<()> {
        let Self { handle, mover, local_ns, .. } = self;
        let mut line = [0; LINE];
        let remote_ns = median_ns(|| handle.read(addr, &mut line))?;
        let round_trip_ns = median_ns(|| {
            let deadline_ns = clock::deadline_ns(CALL_MS);
            match handle.ask_daemon(rack, Request::Ping, deadline_ns)? {
                Reply::Pong => Ok(()),
                other => Err(crate::handle::unexpected_reply(rack, &other).into()),
            }
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
        let local_ns = *local_ns;
        mover.measured(rack, AccessCosts { local_ns, remote_ns, round_trip_ns, bytes_per_second });
        Ok(())
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
