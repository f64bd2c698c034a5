//! Servers with queues: a stage that does one thing after the other, and the network card's store
//! of connection state. They keep no events: a request learns at once when it is served.
//!
//! Ordering rule: a server must be asked in the order of arrival. Where flows meet that were
//! scheduled ahead by different times, an event brings them into order first ([`crate::net`]).

use crate::time::Ps;

/// First come, first served, one at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Server {
    busy_until: Ps,
}

impl Server {
    /// Queues something that arrives at `now` and takes `service`: when it begins and ends.
    #[inline]
    pub fn serve(&mut self, now: Ps, service: Ps) -> (Ps, Ps) {
        let start = now.max(self.busy_until);
        let end = start + service;
        self.busy_until = end;
        (start, end)
    }

    /// When all that arrived is done.
    #[inline]
    pub fn busy_until(&self) -> Ps {
        self.busy_until
    }

    /// How long something that arrives at `now` would wait.
    #[inline]
    pub fn backlog(&self, now: Ps) -> Ps {
        self.busy_until.saturating_sub(now)
    }

    /// Forgets what waits: the device lost its power.
    pub fn reset(&mut self, now: Ps) {
        self.busy_until = now;
    }
}

const NONE: u32 = u32::MAX;

/// Which connections' state a network card holds: the `entries` used last. What is not held is
/// fetched, which costs time, and displaces the one that was not used for longest.
///
/// A connection remembers its slot, so a look-up is one comparison.
#[derive(Clone, Debug)]
pub struct QpCache {
    slots: Vec<Slot>,
    limit: usize,
    newest: u32,
    oldest: u32,
    hits: u64,
    misses: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    connection: u32,
    newer: u32,
    older: u32,
}

impl QpCache {
    /// A cache of `entries` connections, at least 1. Memory grows with use, up to that.
    pub fn new(entries: usize) -> QpCache {
        assert!((1..NONE as usize).contains(&entries), "{entries} entries");
        QpCache {
            slots: Vec::new(),
            limit: entries,
            newest: NONE,
            oldest: NONE,
            hits: 0,
            misses: 0,
        }
    }

    /// Uses `connection`, which was last seen in `slot` (any number if never). True if its state
    /// was held. `slot` is where it is now.
    pub fn touch(&mut self, connection: u32, slot: &mut u32) -> bool {
        if self.slots.get(*slot as usize).is_some_and(|held| held.connection == connection) {
            self.hits += 1;
            if self.newest != *slot {
                self.unlink(*slot);
                self.push_newest(*slot);
            }
            return true;
        }
        self.misses += 1;
        if self.slots.len() < self.limit {
            *slot = self.slots.len() as u32;
            self.slots.push(Slot { connection, newer: NONE, older: NONE });
        } else {
            *slot = self.oldest;
            self.unlink(*slot);
            self.slots[*slot as usize].connection = connection;
        }
        self.push_newest(*slot);
        false
    }

    /// How often the state was held, and how often not.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { newer, older, .. } = self.slots[slot as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }

    fn push_newest(&mut self, slot: u32) {
        let older = std::mem::replace(&mut self.newest, slot);
        let entry = &mut self.slots[slot as usize];
        (entry.newer, entry.older) = (NONE, older);
        match older {
            NONE => self.oldest = slot,
            older => self.slots[older as usize].newer = slot,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Rng};
    use proptest::prelude::*;

    #[test]
    fn a_server_does_one_thing_after_the_other() {
        let mut server = Server::default();
        assert_eq!(server.serve(Ps(5), Ps(10)), (Ps(5), Ps(15)));
        assert_eq!(server.serve(Ps(7), Ps(10)), (Ps(15), Ps(25)));
        assert_eq!(server.backlog(Ps(20)), Ps(5));
        assert_eq!(server.serve(Ps(40), Ps(1)), (Ps(40), Ps(41)));
        assert_eq!(server.backlog(Ps(50)), Ps(0));
    }

    /// M/D/1: Poisson arrivals, one service time. The mean wait is rho s / 2 (1 - rho).
    #[test]
    fn one_queue_waits_as_long_as_queueing_theory_says() {
        let service = Ps::ns(100);
        for rho in [0.3, 0.6, 0.8, 0.9] {
            let mut rng = Rng::new(42, Purpose::Workload, (rho * 10.0) as u64);
            let mean = Ps((service.0 as f64 / rho) as u64);
            let (mut server, mut now, mut waited) = (Server::default(), Ps::ZERO, 0u128);
            let count = 8_000_000u64;
            for _ in 0..count {
                now += rng.exponential(mean);
                let (start, _) = server.serve(now, service);
                waited += u128::from((start - now).0);
            }
            let mean_wait = waited as f64 / count as f64;
            let theory = rho * service.0 as f64 / (2.0 * (1.0 - rho));
            let error = mean_wait / theory - 1.0;
            println!("rho {rho}: {:.1} ps, theory {theory:.1}, {:+.2} %", mean_wait, error * 100.0);
            assert!(error.abs() < 0.02, "rho {rho}: {mean_wait} ps instead of {theory}");
        }
    }

    #[test]
    fn a_saturated_server_gives_its_rate() {
        let mut server = Server::default();
        let ends: Vec<Ps> = (0..1000).map(|i| server.serve(Ps(i), Ps(28_571)).1).collect();
        assert_eq!(ends[999], Ps(28_571 * 1000));
    }

    proptest! {
        #[test]
        fn the_cache_holds_what_was_used_last(
            entries in 1usize..6,
            uses in proptest::collection::vec(0u32..9, 0..200),
        ) {
            let mut cache = QpCache::new(entries);
            let (mut slots, mut model) = ([u32::MAX; 9], Vec::<u32>::new());
            for connection in uses {
                let held = model.contains(&connection);
                model.retain(|other| *other != connection);
                model.push(connection);
                if model.len() > entries {
                    model.remove(0);
                }
                prop_assert_eq!(cache.touch(connection, &mut slots[connection as usize]), held);
            }
        }
    }
}
