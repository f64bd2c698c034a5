//! Answers to what changes a store behind memory: they are sent when the change is durable. Other
//! connections are served meanwhile, and their changes become durable with it.

use super::{Connection, Core};
use crate::cache::take_last_change;
use crate::front::jobs::{Job, JobEnd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Changes that a connection made, which are to be durable.
#[derive(Debug)]
pub(super) struct StoreCommit {
    job: Arc<Job>,
    is_lost: Arc<AtomicBool>,
}

impl StoreCommit {
    fn begin(core: &Core, change: u64) -> StoreCommit {
        let (job, end) = JobEnd::begin(core);
        let is_lost = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_lost);
        core.cache().when_durable(change, move |is_durable| {
            // Relaxed: the end of the job, which comes later, orders it.
            told.store(!is_durable, Ordering::Relaxed);
            drop(end);
        });
        StoreCommit { job, is_lost }
    }
}

impl Connection {
    /// What another thread does for it.
    pub(super) fn job(&self) -> Option<&Arc<Job>> {
        let commit = self.commit.as_ref().map(|commit| &commit.job);
        commit.or_else(|| self.session.job().filter(|_| self.is_waiting()))
    }

    /// Whether all that its client has changed is durable; if it never will be the client is told
    /// so in place of its answers.
    pub(super) fn is_durable(&mut self, core: &mut Core) -> bool {
        match take_last_change() {
            0 => {}
            // It comes behind all that were before.
            change => self.commit = Some(StoreCommit::begin(core, change)),
        }
        if self.commit.as_ref().is_some_and(|commit| !commit.job.is_done()) {
            return false;
        }
        // Relaxed: see `StoreCommit::begin`.
        let is_lost = |commit: StoreCommit| commit.is_lost.load(Ordering::Relaxed);
        if self.commit.take().is_some_and(is_lost) {
            core.out.clear();
            self.session.lose_store(core, "whether what was stored stays is not known");
        }
        true
    }
}
