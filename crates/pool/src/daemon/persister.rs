//! A thread that has pages of an ordinary file written to their device, beside the daemon's loop.
//!
//! In: jobs of the engine. Out: what came of each, after which the loop's wake event is notified.
//! What waits is written together: one `msync` for all. Called by `server.rs`.

use super::io_error;
use rackpool_core::Result;
use rackpool_core::constants::SESSIONS_MAX;
use rackpool_core::daemon::PersistJob;
use rackpool_core::persist::{Persist, PersistError};
use rackpool_mem::event::WakeEvent;
use rackpool_mem::log;
use rackpool_mem::persist::PersistentWindow;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::JoinHandle;
use tracing::warn;

type Finished = (PersistJob, std::result::Result<(), PersistError>);

pub(super) struct Persister {
    /// `None` only while it is dropped.
    jobs: Option<SyncSender<PersistJob>>,
    finished: Receiver<Finished>,
    under_way: usize,
    pages: PersistentWindow,
    thread: Option<JoinHandle<()>>,
}

impl Persister {
    pub(super) fn start(pages: &PersistentWindow, wake: &WakeEvent) -> Result<Self> {
        // Each session waits for one at a time.
        let (jobs, taken) = mpsc::sync_channel(SESSIONS_MAX as usize);
        let (told, finished) = mpsc::channel();
        let own = pages.clone();
        let spawned = wake.try_clone().and_then(|wake| {
            log::spawn("rackpool-persist", move || write_pages(&own, &taken, &told, &wake))
        });
        let thread = Some(spawned.map_err(|error| io_error("persist thread", &error))?);
        Ok(Self { jobs: Some(jobs), finished, under_way: 0, pages: pages.clone(), thread })
    }

    /// Has a job done; what came of it, if there was no room for it.
    pub(super) fn submit(&mut self, job: PersistJob) -> Option<Finished> {
        if self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok()) {
            self.under_way += 1;
            return None;
        }
        Some((job, self.pages.persist(job.offset, job.bytes)))
    }

    pub(super) fn next_finished(&mut self) -> Option<Finished> {
        if self.under_way == 0 {
            return None;
        }
        let finished = self.finished.try_recv().ok()?;
        self.under_way -= 1;
        Some(finished)
    }
}

/// The memory is not given up before nothing writes it.
impl Drop for Persister {
    fn drop(&mut self) {
        self.jobs = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            warn!(target: "daemon", "the thread that makes pages durable panicked");
        }
    }
}

fn write_pages(
    pages: &PersistentWindow,
    jobs: &Receiver<PersistJob>,
    told: &Sender<Finished>,
    wake: &WakeEvent,
) {
    while let Ok(first) = jobs.recv() {
        let group: Vec<PersistJob> = std::iter::once(first).chain(jobs.try_iter()).collect();
        group.iter().for_each(|job| pages.write_back(job.offset, job.bytes));
        let result = pages.persist_fence();
        for job in group {
            // The loop may have ended meanwhile: then no client hears of it any more.
            let _ = told.send((job, result));
        }
        wake.notify();
    }
}
