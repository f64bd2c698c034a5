//! What the log of `kv` says when its cache is switched to far memory or from it, and how much is
//! left. In: the cache's counters, once a second. Called by `kv`, where there is far memory.

use crate::failure::Result;
use crate::periodic::Periodic;
use rackpool_cache::Stats;
use rackpool_cache::front::Shared;
use rackpool_stats::format::Unit;
use std::sync::Arc;
use std::time::Duration;
use tracing::info;

const LOOK_EACH: Duration = Duration::from_secs(1);
/// Looks from one line about what is left to the next.
const LOOKS_PER_LINE: u32 = 30;

/// What was seen, and told.
#[derive(Debug)]
struct Progress {
    uses_far: bool,
    is_held: bool,
    looks: u32,
}

impl Progress {
    /// What is to be said, if anything.
    fn look(&mut self, uses_far: bool, stats: &Stats) -> Option<String> {
        let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
        let (was_used, was_held) = (self.uses_far, self.is_held);
        (self.uses_far, self.is_held) = (uses_far, stats.far_held_units > 0);
        self.looks += 1;
        let memory = show(stats.far_units * (64 << 10));
        if uses_far {
            return (!was_used).then(|| format!("tiering data: items may go to {memory} more"));
        }
        if !self.is_held {
            return was_held.then(|| format!("tiering dram: {memory} went back to the system"));
        }
        if was_used || self.looks >= LOOKS_PER_LINE {
            self.looks = 0;
            let left = show(stats.far_bytes);
            return Some(format!("tiering dram: {left} of items are left in far memory"));
        }
        None
    }
}

/// Says so until it is dropped; `None` for a cache without far memory.
pub fn start(shared: &Arc<Shared>) -> Result<Option<Periodic>> {
    if shared.cache.options().far.is_none() {
        return Ok(None);
    }
    let shared = Arc::clone(shared);
    let look = move || (shared.cache.uses_far(), shared.cache.stats());
    let (uses_far, stats) = look();
    let mut progress = Progress { uses_far, is_held: stats.far_held_units > 0, looks: 0 };
    let log = Periodic::start("kv-tiering", LOOK_EACH, move || {
        let (uses_far, stats) = look();
        if let Some(line) = progress.look(uses_far, &stats) {
            info!(target: "kv", "{line}");
        }
    });
    log.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_and_its_end_are_said_once_and_what_is_left_now_and_then() {
        let mut progress = Progress { uses_far: true, is_held: true, looks: 0 };
        let stats = |held: u64, far_bytes| Stats {
            far_units: 16,
            far_held_units: held,
            far_bytes,
            ..Stats::default()
        };
        assert_eq!(progress.look(true, &stats(16, 1000)), None);
        let said = progress.look(false, &stats(16, 1000)).unwrap();
        assert!(said.contains("tiering dram") && said.contains("left"), "{said}");
        let lines = (0..60).filter_map(|_| progress.look(false, &stats(16, 500))).count();
        assert_eq!(lines, 2);
        let said = progress.look(false, &stats(0, 0)).unwrap();
        assert!(said.contains("went back"), "{said}");
        assert_eq!(progress.look(false, &stats(0, 0)), None);
        assert!(progress.look(true, &stats(16, 0)).unwrap().contains("tiering data"));
        assert_eq!(progress.look(true, &stats(16, 0)), None);
    }
}
