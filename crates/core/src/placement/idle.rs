//! How often each rack was accessed lately, for smart-idle. The access frequency of a rack is the
//! count of the window that closed last plus the mean of the three before it; it is kept in thirds,
//! so that it is exact in whole numbers. Source: Rack-scale disaggregation (recent windows weigh
//! more); the weights are those of its published code.

use super::Window;
use crate::addr::RackId;
use crate::seam::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Closed windows that a frequency is made of: the last one and three before it.
pub const HISTORY_WINDOWS: usize = 4;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct History {
    /// Accesses in the window that is open.
    open: u64,
    /// Accesses in the closed ones, the last first.
    closed: [u64; HISTORY_WINDOWS],
}

/// Of all racks that ever said how often they are accessed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Histories {
    racks: BTreeMap<RackId, History>,
    /// What each shard of a rack said last.
    totals: BTreeMap<RackId, u64>,
    /// When the open window began, ns; `None` before the first fixed one.
    opened: Option<Nanos>,
}

impl Histories {
    pub(super) fn note(&mut self, rack: RackId, total: u64) {
        let known = self.racks.entry(rack.rack()).or_default();
        let last = self.totals.insert(rack, total).unwrap_or(total);
        // A daemon that restarted counts from 0: what it says is what happened since.
        let since = total.checked_sub(last).unwrap_or(total);
        known.open = known.open.saturating_add(since);
    }

    /// Whether a word of a rack changes anything.
    pub(super) fn is_news(&self, rack: RackId, total: u64) -> bool {
        self.totals.get(&rack) != Some(&total)
    }

    /// Closes the window that is open, if it is over.
    pub(super) fn close(&mut self, window: Window, now: Nanos) {
        let over = match window {
            Window::PerChoice => 1,
            Window::Ms(_) | Window::Us(_) => {
                let window_ns = window.nanos();
                let opened = *self.opened.get_or_insert(now);
                let over = now.saturating_sub(opened) / window_ns;
                self.opened = Some(opened + over * window_ns);
                over
            }
        };
        // What is older than all windows that are kept matters no more.
        for _ in 0..over.min(HISTORY_WINDOWS as u64 + 1) {
            for history in self.racks.values_mut() {
                history.closed.rotate_right(1);
                history.closed[0] = std::mem::take(&mut history.open);
            }
        }
    }

    /// Three times the access frequency of a rack; 0 if it never said anything.
    pub(super) fn frequency_thirds(&self, rack: RackId) -> u64 {
        let Some(History { closed: [last, before @ ..], .. }) = self.racks.get(&rack.rack()) else {
            return 0;
        };
        let sum = before.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
        last.saturating_mul(before.len() as u64).saturating_add(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACK: RackId = RackId(4);

    #[test]
    fn the_frequency_is_the_last_window_and_the_mean_of_the_three_before_it() {
        let mut histories = Histories::default();
        histories.note(RACK, 1_000);
        assert_eq!(histories.frequency_thirds(RACK), 0, "the first word is where counting begins");
        // Windows of 30, 9, 6, 3, 12 accesses.
        for (total, thirds) in [
            (1_030, 3 * 30),
            (1_039, 3 * 9 + 30),
            (1_045, 3 * 6 + 9 + 30),
            (1_048, 3 * 3 + 6 + 9 + 30),
            (1_060, 3 * 12 + 3 + 6 + 9),
        ] {
            histories.note(RACK, total);
            histories.close(Window::PerChoice, 0);
            assert_eq!(histories.frequency_thirds(RACK), thirds, "at {total}");
        }
        assert_eq!(histories.frequency_thirds(RackId(5)), 0);
    }

    #[test]
    fn a_restarted_daemon_counts_from_nothing_and_nothing_overflows() {
        let mut histories = Histories::default();
        histories.note(RACK, 500);
        histories.note(RACK, 7);
        histories.close(Window::PerChoice, 0);
        assert_eq!(histories.frequency_thirds(RACK), 21);
        histories.note(RACK, u64::MAX);
        for _ in 0..5 {
            histories.close(Window::PerChoice, 0);
        }
        assert_eq!(histories.frequency_thirds(RACK), 0);
    }

    #[test]
    fn fixed_windows_close_with_time_and_long_silence_empties_them() {
        let mut histories = Histories::default();
        let (ms, window) = (1_000_000, Window::Ms(10));
        histories.close(window, 5 * ms);
        histories.note(RACK, 0);
        histories.note(RACK, 8);
        histories.close(window, 14 * ms);
        assert_eq!(histories.frequency_thirds(RACK), 0, "it is open still");
        histories.close(window, 15 * ms);
        assert_eq!(histories.frequency_thirds(RACK), 24);
        histories.note(RACK, 9);
        // Two windows later: one access in the first, none in the second.
        histories.close(window, 39 * ms);
        assert_eq!(histories.frequency_thirds(RACK), 1 + 8);
        histories.close(window, u64::MAX);
        assert_eq!(histories.frequency_thirds(RACK), 0);
    }
}
