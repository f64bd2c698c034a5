//! The global memory manager: the table of all chunks of all pools, asked at page faults for one.
//! Which pool gives it is `rackpool_core::placement`'s choice, the one that a running master uses.
//!
//! Source: Rack-scale disaggregation, §III D and §IV. Defects of its published code that cannot
//! happen here: (a) the policy is a parameter, not an edit; (b) accesses are counted; (c, i) how
//! many pools are looked at is checked, one at least; (h) a full pool is passed over, and if all
//! are full, the answer is `None`.

use rackpool_core::addr::RackId;
use rackpool_core::placement::{Candidate, Choice, Chooser, PickRequest, pick_rack};
use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};

/// A chunk of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Chunk {
    pub pool: u16,
    pub number: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Pool {
    rack: u16,
    chunks: u32,
    /// Chunks from this one on were never given out.
    fresh: u32,
    back: Vec<u32>,
    used: u32,
    /// Accesses that the switch has seen.
    accesses: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manager {
    choice: Choice,
    chunk_bytes: u64,
    pools: Vec<Pool>,
    chooser: Chooser,
    /// Every choice, in order: what a replay compares.
    choices: Vec<u16>,
    pub returned: u64,
}

impl Manager {
    /// Pools, each with its rack and its bytes.
    pub fn new(choice: Choice, chunk_bytes: u64, pools: &[(u16, u64)], seed: u64) -> Manager {
        let pool = |(rack, bytes): &(u16, u64)| Pool {
            rack: *rack,
            chunks: (bytes / chunk_bytes) as u32,
            fresh: 0,
            back: Vec::new(),
            used: 0,
            accesses: 0,
        };
        let mut chooser = Chooser::new(seed);
        for pool in 0..pools.len() {
            // Where counting begins.
            chooser.note_accesses(RackId(pool as u16), 0);
        }
        let pools = pools.iter().map(pool).collect();
        Manager { choice, chunk_bytes, pools, chooser, choices: Vec::new(), returned: 0 }
    }

    /// An access passes the switch on its way to a pool.
    #[inline]
    pub fn count_access(&mut self, pool: u16) {
        self.pools[usize::from(pool)].accesses += 1;
    }

    /// A chunk for node `asker` of `rack`: of a pool of that rack, or if these are full of another
    /// one; `None` if all are.
    pub fn ask(&mut self, now: Ps, asker: u16, rack: u16) -> Option<Chunk> {
        for (pool, view) in self.pools.iter().enumerate() {
            self.chooser.note_accesses(RackId(pool as u16), view.accesses);
        }
        let near = self.candidates(|pool| pool.rack == rack);
        let far = self.candidates(|pool| pool.rack != rack);
        let mut pick = |candidates: &[Candidate]| {
            // Numbers from above: no pool's.
            let own = RackId(u16::MAX - asker);
            let request = PickRequest { own, bytes: self.chunk_bytes, tried: &[] };
            pick_rack(self.choice, candidates, request, now.as_ns(), &mut self.chooser)
        };
        let chosen = pick(&near).or_else(|| pick(&far))?.0;
        let pool = &mut self.pools[usize::from(chosen)];
        let number = pool.back.pop().unwrap_or_else(|| {
            pool.fresh += 1;
            pool.fresh - 1
        });
        pool.used += 1;
        self.choices.push(chosen);
        Some(Chunk { pool: chosen, number })
    }

    fn candidates(&self, is_meant: impl Fn(&Pool) -> bool) -> Vec<Candidate> {
        let view = |(index, pool): (usize, &Pool)| Candidate {
            rack: RackId(index as u16),
            alive: true,
            free_bytes: u64::from(pool.chunks - pool.used) * self.chunk_bytes,
            used_bytes: u64::from(pool.used) * self.chunk_bytes,
            promised_bytes: 0,
        };
        let meant = self.pools.iter().enumerate().filter(|(_, pool)| is_meant(pool));
        meant.map(view).collect()
    }

    /// A chunk is free again.
    ///
    /// # Panics
    /// If it was not given out.
    pub fn give_back(&mut self, chunk: Chunk) {
        let pool = &mut self.pools[usize::from(chunk.pool)];
        assert!(chunk.number < pool.fresh && pool.used > 0, "{chunk:?} was never given out");
        pool.used -= 1;
        pool.back.push(chunk.number);
        self.returned += 1;
    }

    /// Chunks of each pool that are given out.
    pub fn used(&self) -> Vec<u32> {
        self.pools.iter().map(|pool| pool.used).collect()
    }

    /// The pools in the order in which they were chosen.
    pub fn choices(&self) -> &[u16] {
        &self.choices
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_core::placement::Window;

    const CHUNK: u64 = 4 << 20;
    const CHOICES: [Choice; 6] = [
        Choice::Random,
        Choice::LeastLoaded,
        Choice::RoundRobin,
        Choice::SmartIdle(Window::PerChoice),
        Choice::SmartIdle(Window::Us(417)),
        Choice::Even(Window::Us(250)),
    ];

    fn of(choice: Choice, pools: usize, chunks: u64) -> Manager {
        Manager::new(choice, CHUNK, &vec![(0, chunks * CHUNK); pools], 3)
    }

    #[test]
    fn defect_h_a_full_pool_is_passed_over_and_all_full_is_an_answer() {
        for choice in CHOICES {
            let mut manager = of(choice, 3, 5);
            let mut given: Vec<Chunk> =
                (0..15).map(|turn| manager.ask(Ps::us(turn), 0, 0).unwrap()).collect();
            assert_eq!(manager.ask(Ps::us(15), 0, 0), None, "{choice:?}");
            given.sort_unstable();
            given.dedup();
            assert_eq!(given.len(), 15, "{choice:?}: no chunk twice");
            manager.give_back(given[7]);
            assert_eq!(manager.ask(Ps::us(16), 0, 0), Some(given[7]), "{choice:?}");
        }
    }

    #[test]
    fn defects_c_and_i_every_number_of_pools_can_be_chosen_from() {
        for choice in CHOICES {
            for pools in [1, 2, 6, 9] {
                let mut manager = of(choice, pools, 100);
                for turn in 0..100 {
                    let chunk = manager.ask(Ps::us(turn * 50), 0, 0).unwrap();
                    manager.count_access(chunk.pool);
                }
                let used = manager.used();
                assert!(used.iter().all(|chunks| *chunks > 0), "{choice:?}: {used:?}");
            }
        }
    }

    #[test]
    fn defects_a_and_b_policies_are_parameters_and_smart_idle_sees_accesses() {
        let mut manager = of(Choice::SmartIdle(Window::PerChoice), 6, 1000);
        let first: Vec<u16> = (0..6).map(|_| manager.ask(Ps::ZERO, 0, 0).unwrap().pool).collect();
        assert_eq!(first, [0, 1, 2, 3, 4, 5]);
        // Pools 0 to 2 are busy: the three idlest are the others.
        for _ in 0..50 {
            (0..3).for_each(|pool| manager.count_access(pool));
            assert!(manager.ask(Ps::ZERO, 0, 0).unwrap().pool >= 3);
        }
    }

    #[test]
    fn the_own_racks_pools_come_first() {
        let mut manager =
            Manager::new(Choice::RoundRobin, CHUNK, &[(0, 2 * CHUNK), (1, CHUNK), (1, CHUNK)], 0);
        let got: Vec<u16> = (0..4).map(|_| manager.ask(Ps::ZERO, 0, 1).unwrap().pool).collect();
        assert_eq!(got, [1, 2, 0, 0]);
        assert_eq!(manager.used(), [2, 1, 1]);
    }
}
