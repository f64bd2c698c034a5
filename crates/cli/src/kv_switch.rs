//! What the log of `kv` says when its cache is switched to other memories, and how much is left to
//! do. In: the cache's counters, once a second. Called by `kv`.

use crate::failure::Result;
use crate::periodic::Periodic;
use rackpool_cache::front::Shared;
use rackpool_cache::{Stats, Tiering};
use rackpool_stats::format::Unit;
use std::sync::Arc;
use std::time::Duration;
use tracing::info;

const LOOK_EACH: Duration = Duration::from_secs(1);
/// Looks from one line about what is left to the next.
const LOOKS_PER_LINE: u32 = 30;

fn show(bytes: u64) -> String {
    Unit::Bytes.show(bytes as f64)
}

/// What was seen of far memory, and told.
#[derive(Debug)]
struct FarProgress {
    uses_far: bool,
    is_held: bool,
    looks: u32,
}

impl FarProgress {
    /// What is to be said, if anything.
    fn look(&mut self, mode: &Tiering, stats: &Stats) -> Option<String> {
        let (was_used, was_held) = (self.uses_far, self.is_held);
        (self.uses_far, self.is_held) = (*mode == Tiering::Data, stats.far_held_units > 0);
        self.looks += 1;
        let (mode, memory) = (mode.name(), show(stats.far_units * (64 << 10)));
        if self.uses_far {
            return (!was_used).then(|| format!("tiering {mode}: items may go to {memory} more"));
        }
        if !self.is_held {
            return was_held.then(|| format!("tiering {mode}: {memory} went back to the system"));
        }
        if was_used || self.looks >= LOOKS_PER_LINE {
            self.looks = 0;
            let left = show(stats.far_bytes);
            return Some(format!("tiering {mode}: {left} of items are left in far memory"));
        }
        None
    }
}

/// What was seen of pages that move to other nodes, and told.
#[derive(Debug)]
struct PageProgress {
    mode: Tiering,
    is_moving: bool,
    moved_bytes: u64,
    looks: u32,
}

impl PageProgress {
    fn look(&mut self, mode: &Tiering, stats: &Stats) -> Option<String> {
        let was_moving = std::mem::replace(&mut self.is_moving, stats.pages_left_bytes > 0);
        let old_mode = std::mem::replace(&mut self.mode, mode.clone());
        self.looks += 1;
        if self.is_moving {
            let is_due = !was_moving || old_mode != *mode || self.looks >= LOOKS_PER_LINE;
            self.looks = if is_due { 0 } else { self.looks };
            let (mode, left) = (mode.name(), show(stats.pages_left_bytes));
            return is_due
                .then(|| format!("tiering {mode}: pages move, {left} are left to look at"));
        }
        // A small cache is done between two looks.
        let is_dealt = old_mode != *mode && matches!(mode, Tiering::Transparent(_));
        if !was_moving && !is_dealt && stats.pages_moved_bytes == self.moved_bytes {
            return None;
        }
        let moved = show(stats.pages_moved_bytes - self.moved_bytes);
        self.moved_bytes = stats.pages_moved_bytes;
        let stayed = match stats.pages_stayed_bytes {
            0 => String::new(),
            stayed => format!(
                "; {} could not, as their node is full or they are in use: set it again later",
                show(stayed)
            ),
        };
        Some(format!("tiering {}: {moved} of pages have moved{stayed}", mode.name()))
    }
}

/// Says so until it is dropped.
pub fn start(shared: &Arc<Shared>) -> Result<Periodic> {
    let shared = Arc::clone(shared);
    let look = move || (shared.cache.tiering(), shared.cache.stats());
    let (mode, stats) = look();
    let (uses_far, is_held) = (mode == Tiering::Data, stats.far_held_units > 0);
    let mut far = FarProgress { uses_far, is_held, looks: 0 };
    let is_moving = stats.pages_left_bytes > 0;
    let mut pages = PageProgress { mode, is_moving, moved_bytes: 0, looks: 0 };
    Periodic::start("kv-tiering", LOOK_EACH, move || {
        let (mode, stats) = look();
        let lines = [far.look(&mode, &stats), pages.look(&mode, &stats)];
        lines.into_iter().flatten().for_each(|line| info!(target: "kv", "{line}"));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_and_its_end_are_said_once_and_what_is_left_now_and_then() {
        let mut progress = FarProgress { uses_far: true, is_held: true, looks: 0 };
        let (dram, data) = (&Tiering::Dram, &Tiering::Data);
        let stats = |held: u64, far_bytes| Stats {
            far_units: 16,
            far_held_units: held,
            far_bytes,
            ..Stats::default()
        };
        assert_eq!(progress.look(data, &stats(16, 1000)), None);
        let said = progress.look(dram, &stats(16, 1000)).unwrap();
        assert!(said.contains("tiering dram") && said.contains("left"), "{said}");
        let lines = (0..60).filter_map(|_| progress.look(dram, &stats(16, 500))).count();
        assert_eq!(lines, 2);
        let said = progress.look(dram, &stats(0, 0)).unwrap();
        assert!(said.contains("went back"), "{said}");
        assert_eq!(progress.look(dram, &stats(0, 0)), None);
        assert!(progress.look(data, &stats(16, 0)).unwrap().contains("tiering data"));
        assert_eq!(progress.look(data, &stats(16, 0)), None);
    }

    #[test]
    fn pages_that_move_are_told_at_the_start_now_and_then_and_at_the_end() {
        let (dram, nodes) = (Tiering::Dram, "numa:0=3,numa:1=1".parse().unwrap());
        let mut progress =
            PageProgress { mode: dram.clone(), is_moving: false, moved_bytes: 0, looks: 0 };
        let stats = |pages_left_bytes, pages_moved_bytes, pages_stayed_bytes| Stats {
            pages_left_bytes,
            pages_moved_bytes,
            pages_stayed_bytes,
            ..Stats::default()
        };
        let transparent = Tiering::Transparent(nodes);
        assert_eq!(progress.look(&dram, &stats(0, 0, 0)), None);
        let said = progress.look(&transparent, &stats(64 << 20, 0, 0)).unwrap();
        assert!(said.contains("tiering transparent") && said.contains("64.0 MiB"), "{said}");
        let moving = stats(32 << 20, 8 << 20, 0);
        assert_eq!((0..60).filter_map(|_| progress.look(&transparent, &moving)).count(), 2);
        // Another mode meanwhile.
        let said = progress.look(&dram, &moving).unwrap();
        assert!(said.starts_with("tiering dram: pages move"), "{said}");
        assert!(progress.look(&transparent, &moving).is_some());
        let said = progress.look(&transparent, &stats(0, 16 << 20, 4096)).unwrap();
        assert!(said.contains("16.0 MiB of pages") && said.contains("set it again"), "{said}");
        assert_eq!(progress.look(&transparent, &stats(0, 16 << 20, 4096)), None);
        // Between two looks.
        let said = progress.look(&dram, &stats(0, 20 << 20, 0)).unwrap();
        assert!(said.ends_with("tiering dram: 4.00 MiB of pages have moved"), "{said}");
        assert_eq!(progress.look(&dram, &stats(0, 20 << 20, 0)), None);
    }
}
