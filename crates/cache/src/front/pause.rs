//! `CLIENT PAUSE`: until when which commands of clients of RESP wait. In: orders of any client.
//! Out: what each thread asks when it wakes up, and before a command while anything may wait.

use crate::cache::Millis;
use std::sync::atomic::{AtomicU64, Ordering};

/// An order, as it was when it was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// By the items' clock; 0 for none.
    until: Millis,
    is_of_all: bool,
}

impl Pause {
    pub fn until(until: Millis, is_of_all: bool) -> Pause {
        Pause { until, is_of_all }
    }

    /// Milliseconds that it goes on.
    pub fn left(self, now: Millis) -> Millis {
        self.until.saturating_sub(now)
    }

    /// Whether a command waits that may write or not.
    pub fn holds(self, may_write: bool, now: Millis) -> bool {
        self.left(now) > 0 && (self.is_of_all || may_write)
    }
}

/// The order that was given last.
#[derive(Debug, Default)]
pub struct PauseOrder(AtomicU64);

impl PauseOrder {
    pub fn give(&self, pause: Pause) {
        // Relaxed: the number is all there is; threads that wait are woken.
        self.0.store(pause.until << 1 | u64::from(pause.is_of_all), Ordering::Relaxed);
    }

    pub fn get(&self) -> Pause {
        // Relaxed: as above.
        let order = self.0.load(Ordering::Relaxed);
        Pause { until: order >> 1, is_of_all: order & 1 == 1 }
    }
}
