//! Where an allocation goes when the asker's own rack has no room. Owns no rack: the master hands
//! in what it knows of each and keeps the [`Chooser`] between calls. Pure functions; the own rack
//! first is the client's business. Randomness is a seeded generator that the caller owns.
//!
//! Source: Rcmp §5.1 (a free page of the own rack, else one of another rack at random).

use crate::addr::RackId;
use serde::{Deserialize, Serialize};

/// How a rack is chosen among those with room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// Any, each as likely as the others. Source: Rcmp §5.1.
    #[default]
    Random,
    /// The one with most free bytes; of equals the lowest number.
    LeastLoaded,
    /// The next one after the last choice.
    RoundRobin,
}

/// What a choice must know of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The rack.
    pub rack: RackId,
    /// Whether its daemon is alive.
    pub alive: bool,
    /// Bytes in its free frames at the last heartbeat.
    pub free_bytes: u64,
}

/// What is remembered from choice to choice: a generator and the last choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chooser {
    random: u64,
    last: Option<RackId>,
}

impl Chooser {
    /// A chooser whose choices follow from `seed` alone.
    pub fn new(seed: u64) -> Self {
        // One round of splitmix64: near seeds give far states, and xorshift must not start at 0.
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self { random: (z ^ (z >> 31)) | 1, last: None }
    }

    /// A number below `limit`, which is not 0.
    fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0 && limit <= u64::from(u32::MAX));
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 32) * limit) >> 32
    }
}

/// A rack other than `own` and those in `tried` that is alive and has room for `bytes`; `None`
/// if there is none. `racks` are in the order of their numbers.
pub fn pick_rack(
    policy: Policy,
    racks: &[Candidate],
    own: RackId,
    bytes: u64,
    tried: &[RackId],
    chooser: &mut Chooser,
) -> Option<RackId> {
    let fits = |c: &&Candidate| {
        c.alive
            && c.rack != own
            && c.free_bytes > 0
            && c.free_bytes >= bytes
            && !tried.contains(&c.rack)
    };
    let mut fitting = racks.iter().filter(fits);
    let chosen = match policy {
        Policy::Random => {
            let count = fitting.clone().count();
            if count == 0 {
                return None;
            }
            let index = chooser.below(count as u64);
            fitting.nth(usize::try_from(index).expect("below a count of racks"))?.rack
        }
        Policy::LeastLoaded => {
            fitting.max_by_key(|c| (c.free_bytes, std::cmp::Reverse(c.rack)))?.rack
        }
        Policy::RoundRobin => {
            let after = |c: &&Candidate| chooser.last.is_none_or(|last| c.rack > last);
            let next = fitting.clone().find(after).or_else(|| fitting.next());
            next?.rack
        }
    };
    chooser.last = Some(chosen);
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn racks(free: &[u64]) -> Vec<Candidate> {
        let rack = |(i, &free_bytes): (usize, &u64)| Candidate {
            rack: RackId(u16::try_from(i).unwrap()),
            alive: true,
            free_bytes,
        };
        free.iter().enumerate().map(rack).collect()
    }

    #[test]
    fn dead_full_tried_and_own_racks_are_never_chosen() {
        let mut racks = racks(&[100, 100, 100, 10, 0, 100]);
        racks[1].alive = false;
        for policy in [Policy::Random, Policy::LeastLoaded, Policy::RoundRobin] {
            let mut chooser = Chooser::new(7);
            for _ in 0..100 {
                let tried = [RackId(2)];
                let got = pick_rack(policy, &racks, RackId(0), 50, &tried, &mut chooser);
                assert_eq!(got, Some(RackId(5)), "{policy:?}");
            }
            let none = pick_rack(policy, &racks, RackId(0), 101, &[], &mut chooser);
            assert_eq!(none, None, "{policy:?}");
            assert_eq!(pick_rack(policy, &[], RackId(0), 0, &[], &mut chooser), None);
        }
    }

    #[test]
    fn random_choices_reach_every_rack_about_equally_and_follow_from_the_seed() {
        let racks = racks(&[1, 1, 1, 1, 1]);
        let run = |seed| {
            let mut chooser = Chooser::new(seed);
            let pick =
                |_| pick_rack(Policy::Random, &racks, RackId(0), 1, &[], &mut chooser).unwrap().0;
            (0..4000).map(pick).collect::<Vec<u16>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        for rack in 1..5 {
            let count = run(1).iter().filter(|&&r| r == rack).count();
            assert!((800..1200).contains(&count), "rack {rack}: {count} of 4000");
        }
    }

    #[test]
    fn least_loaded_takes_the_emptiest_and_round_robin_takes_turns() {
        let racks = racks(&[9, 3, 8, 8]);
        let mut chooser = Chooser::new(0);
        let least = pick_rack(Policy::LeastLoaded, &racks, RackId(0), 1, &[], &mut chooser);
        assert_eq!(least, Some(RackId(2)));
        let mut chooser = Chooser::new(0);
        let pick =
            |_| pick_rack(Policy::RoundRobin, &racks, RackId(2), 1, &[], &mut chooser).unwrap().0;
        assert_eq!((0..5).map(pick).collect::<Vec<_>>(), [0, 1, 3, 0, 1]);
    }
}
