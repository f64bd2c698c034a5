//! What the master says that the rack is to the pool, and what the daemon's process does about it:
//! it ends by itself when the rack has left or was given up.

use super::{DaemonOptions, Ended};
use rackpool_core::member::RackState;
use rackpool_core::seam::Nanos;
use rackpool_core::{Error, RackId, Result};
use tracing::{info, warn};

pub(super) struct Membership {
    /// How long clients of the host may keep the daemon of a rack that has left.
    left_grace_ns: Nanos,
    /// Since when the rack is no member.
    left_at: Option<Nanos>,
    was_forgotten: bool,
}

/// What a rack was to the pool, and is.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateChange {
    pub was: RackState,
    pub is: RackState,
}

impl Membership {
    pub(super) fn new(left_grace_ms: u64) -> Self {
        let left_grace_ns = left_grace_ms.saturating_mul(1_000_000);
        Self { left_grace_ns, left_at: None, was_forgotten: false }
    }

    /// The master said what the rack is.
    pub(super) fn on_standing(&mut self, change: StateChange, options: &DaemonOptions, now: Nanos) {
        let StateChange { was, is } = change;
        if was != is {
            say(options, change);
        }
        match is {
            RackState::Draining | RackState::Serving => {}
            RackState::Left => {
                self.left_at.get_or_insert(now);
            }
            RackState::Lost => self.was_forgotten = true,
        }
    }

    /// The master does not want the region back.
    pub(super) fn on_refused(&mut self, error: &Error) {
        self.was_forgotten |= matches!(error, Error::Forgotten { .. });
    }

    /// Whether the rack is no member of the pool any more.
    pub(super) fn has_left(&self) -> bool {
        self.left_at.is_some()
    }

    /// Whether the daemon should end by itself now, while so many clients of its host are there.
    /// One that serves shards of others beside its own goes on until those have left as well.
    pub(super) fn wants_end(&self, clients: usize, serves_others: bool, now: Nanos) -> bool {
        let is_late = |left_at: Nanos| now.saturating_sub(left_at) >= self.left_grace_ns;
        let has_left = self.left_at.is_some_and(|left_at| clients == 0 || is_late(left_at));
        self.was_forgotten || has_left && !serves_others
    }

    pub(super) fn ended(&self, rack: RackId) -> Result<Ended> {
        match (self.was_forgotten, self.left_at) {
            (true, _) => Err(Error::Forgotten { rack }),
            (false, Some(_)) => Ok(Ended::Left),
            (false, None) => Ok(Ended::Asked),
        }
    }
}

fn say(options: &DaemonOptions, StateChange { was, is }: StateChange) {
    let (rack, memory) = (options.name(), &options.memory);
    match is {
        RackState::Draining => info!(
            target: "daemon",
            "rack {rack} is being drained: its pages move"
        ),
        RackState::Serving if was == RackState::Draining => {
            info!(target: "daemon", "rack {rack} is not being drained any more");
        }
        RackState::Serving => {}
        RackState::Left if options.ephemeral => {
            info!(target: "daemon", "rack {rack} has left the pool: no page is in it any more");
        }
        RackState::Left if options.shards > 1 => info!(
            target: "daemon",
            "rack {rack} has left the pool: no page is in it any more; when all shards \
             of the rack have, its memory {memory} can be removed"
        ),
        RackState::Left => info!(
            target: "daemon",
            "rack {rack} has left the pool: no page is in it any more, and its memory \
             {memory} can be removed"
        ),
        RackState::Lost => warn!(target: "daemon", "rack {rack} was declared lost: stopping"),
    }
}
