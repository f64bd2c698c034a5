//! Two racks that use each other's pages, as plain as a model can be: each access takes the time of
//! a local or a remote one, each rack does one after another, and what is moved is waited for. The
//! heat and the decisions are the real code.
//!
//! Times of the paper's testbed as far as they are known: 250 ns in the own rack, 4300 ns in the
//! other (a ring, a daemon, a network card), 100 Gb/s. The rack that asks waits for a round trip,
//! whatever is decided; a move takes its round trips and its bytes, and its rack waits for all of
//! them; the other rack's remote accesses wait while the wire is busy with them. A copy is dropped
//! by a write of either rack; if the other rack wrote, that write waits for a round trip.

use rackpool_core::constants::{MOVE_ROUND_TRIPS, NS_PER_MS};
use rackpool_core::heat::{
    Counts, HEAT_MILLI_MIN, HeatParams, HeatTable, ONE_Q32, PageHeat, Recent, exp2_neg_q32,
};
use rackpool_core::policy::{
    AccessCosts, Allowance, CostParams, Decision, DecisionRecord, HeatEffect, Limit,
    MigrationPolicy, MoveHistory, Observation, Use, Victim, oracle, replay,
};
use rackpool_core::{PageId, RackId};

pub const COSTS: AccessCosts = AccessCosts {
    local_ns: 250,
    remote_ns: 4300,
    round_trip_ns: 4000,
    bytes_per_second: 12_500_000_000,
};
/// Bytes of an access. Source: Rcmp §6.3.
const ACCESS_BYTES: u64 = 64;
/// Copies that a rack holds. Source: Rcmp §6.2 (50 pages).
pub const COPIES_MAX: usize = 50;

/// Which pages a rack likes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Likes {
    /// All pages the same.
    Uniform,
    /// Zipfian (0.99), each rack in an order of its own.
    OwnHotSet,
    /// Zipfian (0.99), both racks in the same order.
    SameHotSet,
}

/// What the two racks do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub likes: Likes,
    pub reads_milli: u64,
    pub pages: usize,
    pub page_bytes: u64,
    /// Copies that a rack can hold. In the paper they need a read lock; without locks it is 0.
    pub copies: usize,
    pub accesses: usize,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub time_ns: u64,
    pub remote: u64,
    pub asks: u64,
    pub moves: u64,
    pub copies: u64,
    pub moved_bytes: u64,
    pub copied_bytes: u64,
    pub fabric_bytes: u64,
}

impl Outcome {
    /// How many times as fast as `other`, thousandths.
    pub fn speedup_milli(&self, other: &Outcome) -> u64 {
        other.time_ns * 1000 / self.time_ns
    }
}

/// An access: a page by its index, and whether it is a write.
type Access = (usize, bool);

/// The accesses of both racks, the same for each policy.
pub fn accesses(load: &Load) -> [Vec<Access>; 2] {
    let mut random = Random(load.seed);
    let first = shuffled(load.pages, &mut random);
    let second = match load.likes {
        Likes::OwnHotSet => shuffled(load.pages, &mut random),
        _ => first.clone(),
    };
    let ladder = ladder(load);
    [first, second].map(|order| {
        let access = |_| {
            let at = random.below(*ladder.last().unwrap());
            let rank = ladder.partition_point(|&end| end <= at);
            (order[rank], random.below(1000) >= load.reads_milli)
        };
        (0..load.accesses).map(access).collect()
    })
}

/// Sums of the weights by rank.
fn ladder(load: &Load) -> Vec<u64> {
    let weight = |rank: usize| match load.likes {
        Likes::Uniform => ONE_Q32,
        // rank^-0.99
        _ => exp2_neg_q32(log2_q32(rank as u64 + 1) * 99 / 100),
    };
    let sums = (0..load.pages).scan(0, |sum, rank| {
        *sum += weight(rank);
        Some(*sum)
    });
    sums.collect()
}

/// The binary logarithm in Q32: each squaring gives a bit.
fn log2_q32(value: u64) -> u64 {
    let whole = value.ilog2();
    let mut mantissa_q62 = u128::from(value) << (62 - whole);
    let mut log = u64::from(whole);
    for _ in 0..32 {
        mantissa_q62 = (mantissa_q62 * mantissa_q62) >> 62;
        let bit = mantissa_q62 >> 63;
        mantissa_q62 >>= bit;
        log = log << 1 | bit as u64;
    }
    log
}

fn shuffled(count: usize, random: &mut Random) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for index in (1..count).rev() {
        order.swap(index, random.below(index as u64 + 1) as usize);
    }
    order
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * u128::from(limit)) >> 64) as u64
    }
}

/// Runs a load under a policy, from a placement that has every second page in each rack.
pub fn run(load: &Load, policy: MigrationPolicy) -> Outcome {
    let homes = (0..load.pages).map(|page| (page % 2) as u8).collect();
    World::new(load, policy, homes).run()
}

/// Runs a load on the best placement there is, without a move.
pub fn run_oracle(load: &Load) -> Outcome {
    let mut uses = vec![[0, 0]; load.pages];
    for (rack, accesses) in accesses(load).iter().enumerate() {
        for &(page, _) in accesses {
            uses[page][rack] += 1;
        }
    }
    let capacity = [load.pages.div_ceil(2), load.pages / 2];
    let best = oracle::best_static_placement(&uses, capacity).unwrap();
    let outcome = World::new(load, MigrationPolicy::Off, best.racks).run();
    assert_eq!(outcome.remote, best.remote_accesses);
    outcome
}

/// A copy of a page in the other rack.
struct Copy {
    page: usize,
    until_ns: u64,
    /// A write drops the bytes, not the lease.
    there: bool,
    used_ns: u64,
}

struct World {
    load: Load,
    policy: MigrationPolicy,
    heat: HeatParams,
    limit: Limit,
    settle_ns: u64,
    homes: Vec<u8>,
    tables: [HeatTable; 2],
    /// Use of all pages.
    all: [PageHeat; 2],
    copies: [Vec<Copy>; 2],
    histories: Vec<MoveHistory>,
    allowance: Allowance,
    clocks_ns: [u64; 2],
    wire_free_ns: u64,
    /// Where the last victim was found.
    scan_from: [usize; 2],
    outcome: Outcome,
}

fn id(page: usize) -> PageId {
    PageId(page as u64 + 1)
}

impl World {
    fn new(load: &Load, policy: MigrationPolicy, homes: Vec<u8>) -> Self {
        let (heat, params) = match policy {
            MigrationPolicy::Paper(params) => (params.heat, CostParams::default()),
            MigrationPolicy::Cost(params) => (HeatParams::default(), params),
            MigrationPolicy::Off => (HeatParams::default(), CostParams::default()),
        };
        let table = HeatTable::new(heat, load.pages * 50).unwrap();
        Self {
            load: *load,
            policy,
            heat,
            limit: params.limit(&COSTS),
            settle_ns: params.settle_ns(),
            homes,
            tables: [table.clone(), table],
            all: [PageHeat::default(); 2],
            copies: [Vec::new(), Vec::new()],
            histories: vec![MoveHistory::default(); load.pages],
            allowance: Allowance::default(),
            clocks_ns: [0, 0],
            wire_free_ns: 0,
            scan_from: [0, 0],
            outcome: Outcome::default(),
        }
    }

    fn run(mut self) -> Outcome {
        let accesses = accesses(&self.load);
        let mut done = [0, 0];
        while done != [self.load.accesses; 2] {
            let first = done[1] == self.load.accesses
                || done[0] < self.load.accesses && self.clocks_ns[0] <= self.clocks_ns[1];
            let rack = usize::from(!first);
            let (page, write) = accesses[rack][done[rack]];
            self.access(rack, page, write);
            done[rack] += 1;
        }
        self.outcome.time_ns = self.clocks_ns[0] + self.clocks_ns[1];
        let changes = self.outcome.moved_bytes + self.outcome.copied_bytes;
        self.outcome.fabric_bytes = changes + self.outcome.remote * ACCESS_BYTES;
        self.outcome
    }

    fn access(&mut self, rack: usize, page: usize, write: bool) {
        let now_ns = self.clocks_ns[rack];
        let counts = Counts { reads: u32::from(!write), writes: u32::from(write) };
        let noted = self.tables[rack].note(id(page), counts, now_ns);
        self.all[rack].note(&self.heat, counts, now_ns);
        if write {
            self.drop_copies(rack, page);
        }
        if usize::from(self.homes[page]) == rack || !write && self.read_copy(rack, page) {
            self.clocks_ns[rack] += COSTS.local_ns;
            return;
        }
        self.outcome.remote += 1;
        self.clocks_ns[rack] = now_ns.max(self.wire_free_ns) + COSTS.remote_ns;
        let leased = self.copies[rack].iter().any(|copy| copy.page == page);
        if leased && !write || self.policy.asks(&noted) {
            self.ask(rack, page, leased);
        }
    }

    /// Whether the rack has a copy of the page that may be read.
    fn read_copy(&mut self, rack: usize, page: usize) -> bool {
        let now_ns = self.clocks_ns[rack];
        self.copies[rack].retain(|copy| now_ns < copy.until_ns);
        let copy = self.copies[rack].iter_mut().find(|copy| copy.page == page && copy.there);
        copy.map(|copy| copy.used_ns = now_ns).is_some()
    }

    /// Before a write. The paper's policy lets a dropped copy become hot again first; ours decides
    /// anew when the page is read next.
    fn drop_copies(&mut self, writer: usize, page: usize) {
        let keeps_lease = matches!(self.policy, MigrationPolicy::Cost(_));
        for rack in 0..2 {
            let Some(index) = self.copies[rack].iter().position(|copy| copy.page == page) else {
                continue;
            };
            if self.copies[rack][index].there && rack != writer {
                self.clocks_ns[writer] += COSTS.round_trip_ns;
            }
            self.copies[rack][index].there = false;
            if !keeps_lease {
                self.copies[rack].remove(index);
            }
        }
    }

    /// The bytes of a page come over, and the rack waits for them.
    fn fetch(&mut self, rack: usize, page: usize) {
        let start_ns = self.clocks_ns[rack].max(self.wire_free_ns);
        self.wire_free_ns = start_ns + COSTS.transfer_ns(self.load.page_bytes).unwrap();
        self.clocks_ns[rack] = self.wire_free_ns + COSTS.round_trip_ns;
        self.outcome.copies += 1;
        self.outcome.copied_bytes += self.load.page_bytes;
        self.allowance.take(&self.limit, self.clocks_ns[rack], self.load.page_bytes);
        assert_ne!(usize::from(self.homes[page]), rack);
    }

    /// Decides, and does it. A rack that holds a lease knows the other rack's numbers and need not
    /// ask.
    fn ask(&mut self, rack: usize, page: usize, leased: bool) {
        let o = self.observe(rack, page);
        let record = self.policy.decide(&o, &self.allowance);
        assert_eq!(replay(&record), record.decision);
        if !leased {
            self.outcome.asks += 1;
            self.clocks_ns[rack] += COSTS.round_trip_ns;
        }
        self.copies[rack].retain(|copy| copy.page != page);
        let victim = match record.decision {
            Decision::Swap { victim } => Some(victim.0 as usize - 1),
            _ => None,
        };
        match record.heat_effect() {
            HeatEffect::Keep => {}
            HeatEffect::ClearAtAsker => drop(self.tables[rack].remove(id(page))),
            HeatEffect::ClearAtOldHomes => {
                self.tables[1 - rack].remove(id(page));
                victim.map(|victim| self.tables[rack].remove(id(victim)));
            }
        }
        if let Some(victim) = victim {
            self.swap(rack, page, victim, &record);
        } else if let Decision::Replicate { lease_ms } = record.decision {
            self.fetch(rack, page);
            self.keep_copy(rack, page, u64::from(lease_ms) * NS_PER_MS);
        }
    }

    fn swap(&mut self, rack: usize, page: usize, victim: usize, record: &DecisionRecord) {
        let start_ns = self.clocks_ns[rack].max(self.wire_free_ns);
        let rest = u64::from(MOVE_ROUND_TRIPS - 1) * COSTS.round_trip_ns;
        self.wire_free_ns = start_ns + COSTS.transfer_ns(self.load.page_bytes).unwrap();
        let now_ns = self.wire_free_ns + rest;
        self.clocks_ns[rack] = now_ns;
        self.outcome.moves += 1;
        self.outcome.moved_bytes += record.fabric_bytes;
        self.allowance.take(&self.limit, now_ns, record.fabric_bytes);
        for (page, home) in [(page, rack), (victim, 1 - rack)] {
            assert_eq!(usize::from(self.homes[page]), 1 - home);
            self.homes[page] = home as u8;
            self.histories[page].note(now_ns, self.settle_ns);
            for copies in &mut self.copies {
                copies.retain(|copy| copy.page != page);
            }
        }
    }

    fn keep_copy(&mut self, rack: usize, page: usize, lease_ns: u64) {
        let now_ns = self.clocks_ns[rack];
        if self.copies[rack].len() == self.load.copies {
            let copies = self.copies[rack].iter().enumerate();
            let (oldest, _) = copies.min_by_key(|(_, copy)| copy.used_ns).unwrap();
            self.copies[rack].remove(oldest);
        }
        let until_ns = now_ns + lease_ns;
        self.copies[rack].push(Copy { page, until_ns, there: true, used_ns: now_ns });
    }

    fn observe(&mut self, rack: usize, page: usize) -> Observation {
        let now_ns = self.clocks_ns[rack];
        let victim = self.victim(rack, now_ns);
        let others = self.copies[rack].iter().filter(|copy| copy.page != page).count();
        let used = |rack: usize| {
            let heat = self.tables[rack].get(id(page));
            Use {
                heat_milli: heat.heat_milli(&self.heat, now_ns),
                counts: heat.counts(&self.heat, now_ns),
                recent: heat.recent(&self.heat, now_ns),
                rack: self.all[rack].recent(&self.heat, now_ns),
            }
        };
        Observation {
            now_ns,
            page: id(page),
            asker: RackId(rack as u16),
            home: RackId(1 - rack as u16),
            copy_bytes: self.load.page_bytes,
            asker_use: used(rack),
            home_use: used(1 - rack),
            others_use: Recent::default(),
            free_frame: false,
            victim: Some(victim),
            // By the paper the copy that was used longest ago makes room (§6.2, LRU).
            replica_room: match self.policy {
                MigrationPolicy::Paper(_) => self.load.copies > 0,
                _ => others < self.load.copies,
            },
            under_way: false,
            history: self.histories[page],
            costs: COSTS,
        }
    }

    /// The coldest page of a rack, by heat or by what is counted in the last windows. Of pages that
    /// were not used, the next one after the last that was found.
    fn victim(&mut self, rack: usize, now_ns: u64) -> Victim {
        let recent =
            |rack: usize, page: usize| self.tables[rack].get(id(page)).recent(&self.heat, now_ns);
        let coldness = |page: usize| match self.policy {
            MigrationPolicy::Cost(_) => recent(rack, page).counts.total(),
            _ => self.tables[rack].heat_milli(id(page), now_ns) - HEAT_MILLI_MIN,
        };
        let mut coldest = (u64::MAX, 0);
        for offset in 0..self.load.pages {
            let page = (self.scan_from[rack] + offset) % self.load.pages;
            if usize::from(self.homes[page]) == rack {
                coldest = coldest.min((coldness(page), page));
            }
            if coldest.0 == 0 {
                break;
            }
        }
        let (_, coldest) = coldest;
        let victim = Victim {
            page: id(coldest),
            copy_bytes: self.load.page_bytes,
            heat_milli: self.tables[rack].heat_milli(id(coldest), now_ns),
            asker_use: recent(rack, coldest),
            home_use: recent(1 - rack, coldest),
        };
        self.scan_from[rack] = coldest;
        victim
    }
}
