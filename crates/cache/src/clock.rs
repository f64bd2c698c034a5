//! The clocks of a server. Items expire by the time since the system's boot, which nothing sets: a
//! wall clock that jumps, also for a moment, ends no item that has a time to live. What clients
//! give as a point in time is the wall's (`EXPIREAT`, `EXAT`, memcached's large numbers, HERD).
//!
//! In: the system's clocks, or ones that are handed in. Out: the items' time, which begins with the
//! wall's and goes on where an earlier process of a cache's file has left it: by the boot clock in
//! the same boot, by the wall clock after another one.

use crate::cache::{Millis, Timeline, at_wall, wall_of};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MS_NS: u64 = 1_000_000;

/// Both clocks are read so many times, and the two count that were read closest together.
const PAIRS_READ: usize = 8;

/// Times that are handed in, for tests.
#[derive(Debug, Default)]
pub struct HandedTime {
    pub boot: [u64; 2],
    pub since_boot_ns: AtomicU64,
    /// The wall clock, nanoseconds since the Unix epoch.
    pub wall_ns: AtomicU64,
}

/// See the module. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct Clock {
    handed: Option<Arc<HandedTime>>,
    boot: [u64; 2],
    /// What the items' time is ahead of the time since the boot, milliseconds.
    ahead: i64,
    /// What is counted to the time since the boot, so that its milliseconds begin with the wall's:
    /// else one of both would be seen a millisecond before the other.
    phase_ns: u64,
}

impl Clock {
    #[must_use]
    pub fn system() -> Clock {
        Clock::begun(None, boot_id())
    }

    /// A clock that shows these times.
    #[must_use]
    pub fn handed(time: Arc<HandedTime>) -> Clock {
        let boot = time.boot;
        Clock::begun(Some(time), boot)
    }

    /// The items' time begins with the wall's.
    fn begun(handed: Option<Arc<HandedTime>>, boot: [u64; 2]) -> Clock {
        let mut clock = Clock { handed, boot, ahead: 0, phase_ns: 0 };
        let (since_boot_ns, wall_ns) = clock.read_together();
        clock.phase_ns = (wall_ns % MS_NS + MS_NS - since_boot_ns % MS_NS) % MS_NS;
        clock.ahead = clock.wall().wrapping_sub(clock.since_boot()) as i64;
        clock
    }

    /// The clock that goes on from where a file's stood.
    #[must_use]
    pub fn resumed(mut self, kept: Option<Timeline>) -> Clock {
        let Some(kept) = kept else { return self };
        let since_boot = self.since_boot();
        let passed = match since_boot.checked_sub(kept.since_boot) {
            Some(passed) if kept.boot == self.boot && self.boot != [0; 2] => passed,
            // Another boot. A wall clock that is behind says nothing of what has passed.
            _ => self.wall().saturating_sub(kept.wall),
        };
        self.ahead = kept.now.saturating_add(passed).wrapping_sub(since_boot) as i64;
        self
    }

    pub fn now(&self) -> Millis {
        self.since_boot().saturating_add_signed(self.ahead)
    }

    pub fn wall(&self) -> Millis {
        self.wall_ns() / MS_NS
    }

    fn wall_ns(&self) -> u64 {
        match &self.handed {
            // Relaxed: a number by itself.
            Some(time) => time.wall_ns.load(Ordering::Relaxed),
            None => nanoseconds(ClockId::Realtime),
        }
    }

    fn since_boot(&self) -> Millis {
        (self.since_boot_ns() + self.phase_ns) / MS_NS
    }

    fn since_boot_ns(&self) -> u64 {
        match &self.handed {
            // Relaxed: a number by itself.
            Some(time) => time.since_boot_ns.load(Ordering::Relaxed),
            None => nanoseconds(ClockId::Boottime),
        }
    }

    /// Both clocks at one moment, nanoseconds: the time since the boot, and the wall's, which is
    /// read behind it. So the items' time is never behind what a client has seen.
    fn read_together(&self) -> (u64, u64) {
        let pair = |_| {
            let (since_boot_ns, wall_ns) = (self.since_boot_ns(), self.wall_ns());
            (self.since_boot_ns() - since_boot_ns, (since_boot_ns, wall_ns))
        };
        (0..PAIRS_READ).map(pair).min().map_or((0, 0), |(_, pair)| pair)
    }

    pub fn timeline(&self) -> Timeline {
        let since_boot = self.since_boot();
        let now = since_boot.saturating_add_signed(self.ahead);
        Timeline { boot: self.boot, since_boot, now, wall: self.wall() }
    }
}

/// Two are equal if they show the same from the same source.
impl PartialEq for Clock {
    fn eq(&self, other: &Clock) -> bool {
        let source = |clock: &Clock| clock.handed.as_ref().map(Arc::as_ptr);
        (source(self), self.ahead) == (source(other), other.ahead)
    }
}

impl Eq for Clock {}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The boot of this system; zeros where it does not say.
fn boot_id() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).unwrap_or(0);
    [(id >> 64) as u64, id as u64]
}

/// A moment by the items' clock and by the wall's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub now: Millis,
    /// By the wall's, milliseconds since the epoch.
    pub wall: Millis,
}

/// Whether an expiry, which is not 0, is over.
pub fn has_passed(expires: Millis, times: Times) -> bool {
    time_left(expires, times) == 0
}

/// Milliseconds until an expiry, which is not 0.
pub fn time_left(expires: Millis, times: Times) -> Millis {
    match wall_of(expires) {
        Some(wall) => wall.saturating_sub(times.wall),
        None => expires.saturating_sub(times.now),
    }
}

/// Longest relative expiry of memcached, seconds: 30 days. Larger numbers are points in time.
const RELATIVE_SECONDS_MAX: i64 = 60 * 60 * 24 * 30;

/// An item that expires then is gone already.
pub const PAST: Millis = 1;

/// When an item expires that memcached's client gave this expiry: 0 for never.
pub fn expiry(exptime: i64, times: Times) -> Millis {
    match exptime {
        0 => 0,
        i64::MIN..0 => PAST,
        1..=RELATIVE_SECONDS_MAX => times.now + exptime as u64 * 1000,
        absolute => {
            let at = absolute as u64 * 1000;
            if at <= times.wall { PAST } else { at_wall(at) }
        }
    }
}

/// Whole seconds until then, the last one counted whole; -1 for never.
pub fn seconds_left(expires: Millis, times: Times) -> i64 {
    match expires {
        0 => -1,
        expires => time_left(expires, times).div_ceil(1000) as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handed_ns(boot: u64, since_boot_ns: u64, wall_ns: u64) -> Arc<HandedTime> {
        let (since_boot_ns, wall_ns) = (AtomicU64::new(since_boot_ns), AtomicU64::new(wall_ns));
        Arc::new(HandedTime { boot: [boot, 0], since_boot_ns, wall_ns })
    }

    fn handed(boot: u64, since_boot: u64, wall: u64) -> Clock {
        Clock::handed(handed_ns(boot, since_boot * MS_NS, wall * MS_NS))
    }

    #[test]
    fn the_items_milliseconds_begin_with_the_walls() {
        for (since_boot_ns, wall_ns) in [(0, 999_999), (999_999, 0), (1, 2), (700_000, 300_000)] {
            let time = handed_ns(1, 5 * MS_NS + since_boot_ns, 9 * MS_NS + wall_ns);
            let clock = Clock::handed(Arc::clone(&time));
            let kept = Timeline { boot: [1, 0], since_boot: 2, now: 4000, wall: 1 };
            let resumed = clock.clone().resumed(Some(kept));
            let ahead = resumed.now().wrapping_sub(clock.wall());
            for _ in 0..40 {
                for ns in [&time.since_boot_ns, &time.wall_ns] {
                    ns.fetch_add(77_777, Ordering::Relaxed);
                }
                assert_eq!(clock.now(), clock.wall());
                assert_eq!(resumed.now().wrapping_sub(clock.wall()), ahead);
            }
        }
    }

    #[test]
    fn the_items_time_goes_on_by_the_boot_clock_and_over_a_boot_by_the_wall_clock() {
        let kept = handed(1, 50_000, 1_000_000).timeline();
        assert_eq!((kept.now, kept.since_boot, kept.wall), (1_000_000, 50_000, 1_000_000));
        let resumed = |boot, since_boot, wall| handed(boot, since_boot, wall).resumed(Some(kept));
        // A wall clock that was set a day ahead says nothing within a boot.
        assert_eq!(resumed(1, 53_000, 87_400_000).now(), 1_003_000);
        assert_eq!(resumed(2, 7_000, 1_060_000).now(), 1_060_000);
        // Nor one that is behind, nor a boot clock that is: a namespace has another one.
        assert_eq!(resumed(2, 7_000, 900_000).now(), 1_000_000);
        assert_eq!(resumed(1, 7_000, 1_002_000).now(), 1_002_000);
        // Whatever was kept, nothing overflows.
        let max = Timeline { boot: [1, 0], since_boot: u64::MAX, now: u64::MAX, wall: u64::MAX };
        handed(1, 5, 5).resumed(Some(max)).now();
        // A wall clock that is behind the boot's.
        assert_eq!(handed(1, 5000, 3).now(), 3);
    }

    #[test]
    fn this_system_has_a_boot_and_its_clock_begins_with_the_wall() {
        assert_ne!(boot_id(), [0, 0]);
        let clock = Clock::system();
        assert!(clock.now().abs_diff(clock.wall()) < 60_000);
    }
}
