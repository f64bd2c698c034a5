//! The rule between two memories of given bandwidth, turn by turn, with a hot set that shifts.

#![allow(clippy::disallowed_types, reason = "a model of two memories, which decides nothing")]
use super::*;

const BANDWIDTHS: Bandwidths = Bandwidths { near: 40_000_000, far: 10_000_000 };
const ITEMS: usize = 4000;
/// Reads that one sample stands for, as in the cache.
const SAMPLED: u64 = 31;
const BUDGET_BYTES: u64 = BANDWIDTHS.near / 64;

/// Two memories, and readers that ask again as soon as they are answered, up to a demand.
struct World {
    bytes: Vec<u64>,
    /// How often each is read, of all reads.
    use_of: Vec<f64>,
    is_far: Vec<bool>,
    near_room: u64,
    random: u64,
    moved_bytes_max: u64,
}

impl World {
    /// The hottest items lie near, as many as find room.
    fn new(seed: u64) -> World {
        let bytes: Vec<u64> = (0..ITEMS as u64).map(|item| 1000 + item * 7919 % 3000).collect();
        let near_room = bytes.iter().sum::<u64>() * 6 / 10;
        let mut left = near_room;
        let mut is_far = |bytes: &u64| match left.checked_sub(*bytes) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        };
        let is_far = bytes.iter().map(&mut is_far).collect();
        let mut world = World {
            bytes,
            use_of: Vec::new(),
            is_far,
            near_room,
            random: seed,
            moved_bytes_max: 0,
        };
        world.shift(0);
        world
    }

    /// The hottest item is this one, then those behind it.
    fn shift(&mut self, hottest: usize) {
        let score = |item| 1.0 / ((item + ITEMS - hottest) % ITEMS + 1) as f64;
        let sum: f64 = (0..ITEMS).map(score).sum();
        self.use_of = (0..ITEMS).map(|item| score(item) / sum).collect();
    }

    fn random(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Bytes of a mean read from near and from far memory.
    fn mean_read(&self, is_ours: impl Fn(usize) -> bool) -> [f64; 2] {
        let mut mean = [0.0; 2];
        for item in (0..ITEMS).filter(|item| is_ours(*item)) {
            mean[usize::from(self.is_far[item])] += self.use_of[item] * self.bytes[item] as f64;
        }
        mean
    }

    /// Reads a second.
    fn rate(&self, demand: f64) -> f64 {
        let [near, far] = self.mean_read(|_| true);
        let most = f64::min(BANDWIDTHS.near as f64 / near, BANDWIDTHS.far as f64 / far);
        most.min(demand / (near + far))
    }

    fn far_share(&self) -> f64 {
        let [near, far] = self.mean_read(|_| true);
        far / (near + far)
    }

    fn turn(&mut self, splits: &mut [BandwidthSplit], demand: f64) {
        let (rate, mut moved_bytes) = (self.rate(demand), 0);
        let samples = rate as u64 / SAMPLED;
        let count = splits.len();
        let mut sums: Vec<f64> = Vec::with_capacity(ITEMS);
        self.use_of.iter().for_each(|of| sums.push(sums.last().unwrap_or(&0.0) + of));
        for _ in 0..samples {
            let random = self.random();
            let item = sums.partition_point(|sum| *sum < random).min(ITEMS - 1);
            let (is_far, bytes) = (self.is_far[item], self.bytes[item]);
            // One that is read seldom seems to be read more often than it is.
            let need = bytes * u64::max((rate * self.use_of[item]) as u64, SAMPLED * 2 / 3);
            if splits[item % count].takes(&ReadItem { is_far, need, bytes }) {
                self.is_far[item] = !is_far;
                moved_bytes += bytes;
            }
        }
        if !splits[0].is_split() {
            moved_bytes += self.bring_hottest_near();
        }
        self.moved_bytes_max = self.moved_bytes_max.max(moved_bytes);
        let [near, far] = self.mean_read(|_| true);
        let read = |[near, far]: [f64; 2]| ReadBytes {
            near: (near * rate) as u64,
            far: (far * rate) as u64,
        };
        for (index, split) in splits.iter_mut().enumerate() {
            let own = read(self.mean_read(|item| item % count == index));
            let all = read([near, far]);
            split.end_turn(&Turn { ms: 1000, samples, all, own });
        }
    }

    /// What the cache does by use alone; the bytes that moved.
    fn bring_hottest_near(&mut self) -> u64 {
        let worth = |item: &usize| self.use_of[*item] / self.bytes[*item] as f64;
        let mut order: Vec<usize> = (0..ITEMS).collect();
        order.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
        let (mut room, mut moved) = (self.near_room, 0);
        for item in order {
            let stays_far = self.bytes[item] > room;
            room -= if stays_far { 0 } else { self.bytes[item] };
            if self.is_far[item] != stays_far && moved + self.bytes[item] <= BUDGET_BYTES {
                (self.is_far[item], moved) = (stays_far, moved + self.bytes[item]);
            }
        }
        moved
    }

    fn run(&mut self, splits: &mut [BandwidthSplit], demand: f64, turns: usize) {
        (0..turns).for_each(|_| self.turn(splits, demand));
    }

    /// Within 5 % of the best split, and of what that delivers.
    fn check_best(&self, what: &str) {
        let best = BANDWIDTHS.far_part(1_000_000) as f64 / 1e6;
        let [near, far] = self.mean_read(|_| true);
        let delivered = self.rate(f64::MAX) * (near + far);
        let most = (BANDWIDTHS.near + BANDWIDTHS.far) as f64;
        let off = (self.far_share() - best).abs() / best;
        assert!(off <= 0.05, "{what}: far memory carries {} of the reads", self.far_share());
        assert!(delivered >= 0.95 * most, "{what}: {delivered} of {most} bytes a second");
    }
}

#[test]
fn reads_end_at_the_best_split_of_two_memories_while_the_hot_set_shifts() {
    for seed in 1..=2 {
        for partitions in [1, 4] {
            let what = format!("seed {seed}, {partitions} partitions");
            let mut world = World::new(seed);
            let budget_bytes = BUDGET_BYTES / partitions as u64;
            let mut splits = vec![BandwidthSplit::new(BANDWIDTHS, budget_bytes); partitions];
            world.run(&mut splits, 5e6, 20);
            assert!(splits.iter().all(|split| !split.is_split()), "{what}");
            let light = world.far_share();
            assert!(light < 0.1, "{what}: with bandwidth to spare {light} is far");
            world.run(&mut splits, f64::MAX, 100);
            world.check_best(&what);
            for hottest in [2800, 800] {
                world.shift(hottest);
                world.run(&mut splits, f64::MAX, 150);
                world.check_best(&format!("{what}, hottest {hottest}"));
            }
            world.run(&mut splits, 5e6, 100);
            assert!(world.far_share() < 0.1, "{what}: {} is far", world.far_share());
            assert!(world.moved_bytes_max <= BUDGET_BYTES, "{what}: {}", world.moved_bytes_max);
        }
    }
}

#[test]
fn at_the_best_split_and_near_it_nothing_moves() {
    let mut split = BandwidthSplit::new(BANDWIDTHS, BUDGET_BYTES);
    let turn = |far_percent: u64| {
        let far = BANDWIDTHS.near / 100 * far_percent;
        let all = ReadBytes { near: BANDWIDTHS.near - far, far };
        Turn { ms: 1000, samples: SAMPLES_MIN, all, own: all }
    };
    let candidate = |is_far| ReadItem { is_far, need: 1, bytes: 1 };
    for far_percent in [20, 20, 20] {
        split.end_turn(&turn(far_percent));
        assert!(split.is_split());
        assert!(!split.takes(&candidate(true)) && !split.takes(&candidate(false)));
    }
    split.end_turn(&turn(30));
    assert!(split.wants(true) && !split.wants(false));
    assert!(split.takes(&candidate(true)) && !split.takes(&candidate(false)));
}

#[test]
fn an_item_that_carries_more_than_is_wanted_stays() {
    let mut split = BandwidthSplit::new(BANDWIDTHS, BUDGET_BYTES);
    let all = ReadBytes { near: BANDWIDTHS.near, far: 0 };
    let turn = Turn { ms: 1000, samples: SAMPLES_MIN, all, own: all };
    split.end_turn(&turn);
    let wanted = BANDWIDTHS.far_part(BANDWIDTHS.near);
    let mut takes = |need, bytes| split.takes(&ReadItem { is_far: false, need, bytes });
    assert!(!takes(wanted + 1, 100));
    assert!(!takes(wanted / 2, BUDGET_BYTES + 1));
    assert!(takes(wanted / 2, 100) && takes(wanted / 2, 100));
    assert!(!takes(wanted / 2, 100), "as much as was wanted has moved");
}

#[test]
fn a_turn_in_which_items_move_is_not_measured() {
    let mut split = BandwidthSplit::new(BANDWIDTHS, BUDGET_BYTES);
    let all = ReadBytes { near: BANDWIDTHS.near, far: 0 };
    let turn = Turn { ms: 1000, samples: SAMPLES_MIN, all, own: all };
    let mut wants = || {
        split.end_turn(&turn);
        split.wants(false)
    };
    assert_eq!([wants(), wants(), wants(), wants()], [true, false, true, false]);
}
