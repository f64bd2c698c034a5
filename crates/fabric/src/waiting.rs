//! Waiting of an endpoint: how a thread waits for events, and whether the peer of a connection
//! lives. In: the time. Out: whether to sleep; whether to ask the peer, or to give it up.
//!
//! Waiting is adaptive: look without pause, then give way to other threads between looks, then
//! sleep in the system.
//!
//! Liveness: the peer is asked when nothing was heard of it for a heartbeat; it is silent when it
//! was asked and nothing was heard for a lease less that heartbeat.
//!
//! Source: DESIGN §3 (waiting, liveness).

use super::close::CloseReason;
use rackpool_core::seam::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::BorrowedFd;

/// One wait in so many looks without pause for the full time, to learn whether that helps again.
const SPIN_PROBES: u32 = 64;

/// A heartbeat is due after this fraction of the lease.
const HEARTBEATS_PER_LEASE: u64 = 4;

/// How long waits look without pause before they give way between looks, and how long they do
/// that before they sleep. It learns: where looking without pause does not help, as when the other
/// end shares the core, a wait does so for a quarter of the time.
pub(super) struct Patience {
    waits: u32,
    spin_ns: Nanos,
    spin_ns_max: Nanos,
    yield_ns: Nanos,
    /// Of the wait under way: how long it looks without pause, since when, and for how long by now.
    spin_ns_now: Nanos,
    idle_since: Nanos,
    idle_ns: Nanos,
}

impl Patience {
    pub(super) fn new(spin_ns_max: u32, yield_ns: u32) -> Self {
        let (spin_ns_max, yield_ns) = (spin_ns_max.into(), yield_ns.into());
        Self {
            waits: 0,
            spin_ns: spin_ns_max,
            spin_ns_max,
            yield_ns,
            spin_ns_now: 0,
            idle_since: 0,
            idle_ns: 0,
        }
    }

    pub(super) fn begin(&mut self, now: Nanos) {
        self.waits = self.waits.wrapping_add(1);
        let is_probe = self.waits.is_multiple_of(SPIN_PROBES);
        self.spin_ns_now = if is_probe { self.spin_ns_max } else { self.spin_ns };
        (self.idle_since, self.idle_ns) = (now, 0);
    }

    /// Something happened, as was waited for.
    pub(super) fn learn(&mut self) {
        let helped = self.idle_ns < self.spin_ns_now;
        self.spin_ns = if helped { self.spin_ns * 2 } else { self.spin_ns / 2 };
        self.spin_ns = self.spin_ns.clamp(self.spin_ns_max / 4, self.spin_ns_max);
    }

    /// Something moved, so that looking without pause is worth its time.
    pub(super) fn moved(&mut self, now: Nanos) {
        self.idle_since = now;
    }

    /// Nothing happened until `now`: pauses before the next look; `true` if it is time to sleep.
    pub(super) fn pause(&mut self, now: Nanos) -> bool {
        self.idle_ns = now.saturating_sub(self.idle_since);
        if self.idle_ns < self.spin_ns_now {
            std::hint::spin_loop();
        } else if self.idle_ns < self.spin_ns_now + self.yield_ns {
            std::thread::yield_now();
        } else {
            return true;
        }
        false
    }

    /// It slept until `now`, and looks without pause again.
    pub(super) fn slept(&mut self, now: Nanos) {
        (self.idle_since, self.idle_ns) = (now, self.spin_ns_now);
    }
}

/// Sleeps until a descriptor can be read or `ns` are over, or for a shorter time; which of them
/// can be read.
pub(super) fn sleep_on<const N: usize>(fds: [BorrowedFd<'_>; N], ns: Nanos) -> [bool; N] {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let (tv_sec, tv_nsec) = ((ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as i64);
    let woken = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec, tv_nsec }));
    fds.map(|fd| woken.is_ok() && !fd.revents().is_empty())
}

/// When the peer of a connection was heard, and since when it is asked whether it lives.
pub(super) struct Liveness {
    pub(super) heard: Nanos,
    asked: Option<Nanos>,
}

/// How long a peer may be silent.
#[derive(Clone, Copy)]
pub(super) struct Lease {
    pub(super) lease_ms: u64,
    /// The pause after which a heartbeat is due.
    pub(super) heartbeat_ns: Nanos,
}

impl Lease {
    pub(super) fn new(lease_ms: u64) -> Self {
        Self { lease_ms, heartbeat_ns: lease_ms * 1_000_000 / HEARTBEATS_PER_LEASE }
    }

    /// Ends a connection on which nothing came for all of it.
    pub(super) fn check(self, since: Nanos, now: Nanos) -> Result<(), CloseReason> {
        let is_over = now.saturating_sub(since) >= self.lease_ms * 1_000_000;
        if is_over { Err(CloseReason::Silent { lease_ms: self.lease_ms }) } else { Ok(()) }
    }
}

impl Liveness {
    pub(super) fn new(now: Nanos) -> Self {
        Self { heard: now, asked: None }
    }

    /// Something of the peer came, or it took something that waited for it.
    pub(super) fn heard(&mut self, now: Nanos) {
        (self.heard, self.asked) = (now, self.asked.map(|_| now));
    }

    pub(super) fn answered(&mut self) {
        self.asked = None;
    }

    /// Whether it is to be asked now. Errors: `Silent`.
    pub(super) fn is_due(&mut self, now: Nanos, lease: Lease) -> Result<bool, CloseReason> {
        if let Some(since) = self.asked {
            return lease.check(since.saturating_sub(lease.heartbeat_ns), now).map(|()| false);
        }
        let is_due = now.saturating_sub(self.heard) >= lease.heartbeat_ns;
        self.asked = is_due.then_some(now);
        Ok(is_due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_asked_after_a_heartbeat_and_silent_a_lease_after_it_was_heard() {
        let (mut peer, lease) = (Liveness::new(1_000_000_000), Lease::new(8));
        let ms = |ms: u64| 1_000_000_000 + ms * 1_000_000;
        assert_eq!(lease.heartbeat_ns, 2_000_000);
        assert_eq!(
            [1, 2, 3].map(|at| peer.is_due(ms(at), lease)),
            [Ok(false), Ok(true), Ok(false)]
        );
        assert_eq!(peer.is_due(ms(8) - 1, lease), Ok(false));
        assert_eq!(peer.is_due(ms(8), lease), Err(CloseReason::Silent { lease_ms: 8 }));
        // What it says before its answer counts as a sign of life.
        peer.heard(ms(7));
        assert_eq!(peer.is_due(ms(12), lease), Ok(false));
        peer.answered();
        assert_eq!([12, 13].map(|at| peer.is_due(ms(at), lease)), [Ok(true), Ok(false)]);
        assert!(lease.check(ms(0), ms(7)).is_ok() && lease.check(ms(0), ms(8)).is_err());
    }

    #[test]
    fn a_wait_spins_then_gives_way_then_sleeps_and_learns_where_spinning_does_not_help() {
        let mut patience = Patience::new(100, 100);
        patience.begin(0);
        assert_eq!(
            [0, 99, 150, 199, 200].map(|now| patience.pause(now)),
            [false, false, false, false, true]
        );
        patience.slept(500);
        patience.learn();
        patience.begin(1000);
        assert!(patience.pause(1150), "it spins for half the time");
        for _ in 0..10 {
            patience.begin(0);
            patience.pause(10);
            patience.learn();
        }
        patience.begin(0);
        assert!(!patience.pause(199), "it has learnt that it helps");
    }
}
