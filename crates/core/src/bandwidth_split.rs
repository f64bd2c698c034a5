//! How the reads of a cache are split between near and far memory, and which items move for that.
//!
//! Two memories together deliver most when each carries traffic in proportion to its bandwidth. But
//! far memory answers later: while the near one alone has bandwidth to spare for all of the
//! traffic, what is hot belongs there, and nothing is decided here. Between the two states, and
//! between moving and not, lie distances, so that noise moves nothing.
//!
//! Turns of about a second: some that are measured, then one in which items move, if traffic is off
//! the best split; what is read in that one is of neither split, and counts for none. An item's
//! need is its bytes × how often it was read lately. It moves if it is no more than what is wanted,
//! else it would go to and fro. The need of an item that was read once in a long time seems too
//! high; where moves did less than they promised, the next ones are charged less.
//!
//! Pure, and of integers alone. In: what was read where in a turn; items that were read. Out:
//! whether one moves. Called by the cache for each of its partitions, and in virtual time.

const MS_PER_SECOND: u64 = 1000;
/// Share of near memory's bandwidth from which on all traffic is more than it alone should carry,
/// percent …
const SATURATED_PERCENT: u64 = 85;
/// … and below which it has bandwidth to spare again: requests hardly queue there.
const SPARE_PERCENT: u64 = 70;
/// How far far memory's traffic is off its best when items begin to move, percent of that …
const OFF_PERCENT: u64 = 4;
/// … and when they end.
const NEAR_ENOUGH_PERCENT: u64 = 1;
/// Samples that are enough to see that, or turns.
const SAMPLES_MIN: u64 = 8192;
const TURNS_MAX: u32 = 8;
/// Fewest samples if traffic is off by a third: that they show as well.
const COARSE_SAMPLES_MIN: u64 = 256;
const COARSE_PARTS: u64 = 3;
/// Off by less than a tenth, what moves did is lost in the noise.
const GAIN_PARTS: u64 = 10;
const GAIN_MAX: u64 = 8;

/// What two memories deliver to reads, bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidths {
    pub near: u64,
    pub far: u64,
}

impl Bandwidths {
    /// Of so many bytes, those that far memory carries in the best split.
    pub fn far_part(&self, bytes: u64) -> u64 {
        let all = u128::from(self.near) + u128::from(self.far);
        (u128::from(bytes) * u128::from(self.far) / all.max(1)) as u64
    }
}

/// Bytes that were read from each memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadBytes {
    pub near: u64,
    pub far: u64,
}

impl ReadBytes {
    pub fn sum(&self) -> u64 {
        self.near + self.far
    }

    fn add(&mut self, other: ReadBytes) {
        (self.near, self.far) = (self.near + other.near, self.far + other.far);
    }
}

/// What was read in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    pub ms: u64,
    /// Reads by which the bytes were estimated, of all.
    pub samples: u64,
    /// By all users of the memories.
    pub all: ReadBytes,
    /// By the one that asks.
    pub own: ReadBytes,
}

/// An item that was read.
#[derive(Clone, Copy, Debug)]
pub struct ReadItem {
    pub is_far: bool,
    /// Its bytes × how often it was read lately, bytes a second.
    pub need: u64,
    /// What is copied to move it, bytes.
    pub bytes: u64,
}

/// The state of one user of the two memories: of a partition.
#[derive(Clone, Debug)]
pub struct BandwidthSplit {
    bandwidths: Bandwidths,
    /// Bytes that may be moved in a turn.
    budget_bytes: u64,
    /// Turns that were measured since the last decision, together.
    gathered: Turn,
    turns: u32,
    is_split: bool,
    is_off: bool,
    /// Whether items move in this turn, and to which memory.
    is_moving: bool,
    to_far: bool,
    /// Traffic that this turn began with to move, and what is left of it, bytes a second.
    wanted: u64,
    left: u64,
    budget_left: u64,
    /// What a need is divided by, after moves that did less than their needs promised.
    gain: u64,
}

fn per_second(bytes: u64, ms: u64) -> u64 {
    (u128::from(bytes) * u128::from(MS_PER_SECOND) / u128::from(ms.max(1))) as u64
}

fn percent_of(value: u64, percent: u64) -> u64 {
    (u128::from(value) * u128::from(percent) / 100) as u64
}

impl BandwidthSplit {
    /// Moves at most `budget_bytes` a turn.
    pub fn new(bandwidths: Bandwidths, budget_bytes: u64) -> BandwidthSplit {
        BandwidthSplit {
            bandwidths,
            budget_bytes,
            gathered: Turn::default(),
            turns: 0,
            is_split: false,
            is_off: false,
            is_moving: false,
            to_far: false,
            wanted: 0,
            left: 0,
            budget_left: 0,
            gain: 1,
        }
    }

    /// Whether traffic is split by bandwidth; else what is hot belongs near.
    pub fn is_split(&self) -> bool {
        self.is_split
    }

    /// Whether items that lie there move in this turn.
    pub fn wants(&self, is_far: bool) -> bool {
        self.is_moving && is_far != self.to_far && self.left > 0
    }

    /// Whether the item moves to the other memory; then it is counted as moved.
    pub fn takes(&mut self, item: &ReadItem) -> bool {
        let charge = (item.need / self.gain).max(1);
        let fits = charge <= self.left && item.bytes <= self.budget_left;
        if !self.wants(item.is_far) || item.need > self.wanted || !fits {
            return false;
        }
        self.left -= charge;
        self.budget_left -= item.bytes;
        true
    }

    /// A turn is over.
    pub fn end_turn(&mut self, turn: &Turn) {
        if std::mem::take(&mut self.is_moving) {
            return;
        }
        let gathered = &mut self.gathered;
        gathered.ms += turn.ms;
        gathered.samples += turn.samples;
        gathered.all.add(turn.all);
        gathered.own.add(turn.own);
        self.turns += 1;
        let (best, off) = self.off();
        let samples = self.gathered.samples;
        let is_far_off = samples >= COARSE_SAMPLES_MIN && off > best / COARSE_PARTS;
        if samples >= SAMPLES_MIN || self.turns >= TURNS_MAX || is_far_off {
            self.decide();
        }
    }

    /// Far memory's bytes in the best split of those that were read, and how far it is off them.
    fn off(&self) -> (u64, u64) {
        let best = self.bandwidths.far_part(self.gathered.all.sum());
        (best, best.abs_diff(self.gathered.all.far))
    }

    fn decide(&mut self) {
        let (best, off) = self.off();
        let Turn { ms, all, own, .. } = std::mem::take(&mut self.gathered);
        self.turns = 0;
        let enough = if self.is_split { SPARE_PERCENT } else { SATURATED_PERCENT };
        self.is_split = per_second(all.sum(), ms) >= percent_of(self.bandwidths.near, enough);
        let tolerated = if self.is_off { NEAR_ENOUGH_PERCENT } else { OFF_PERCENT };
        self.is_off = self.is_split && off > percent_of(best, tolerated);
        self.is_moving = self.is_off;
        if !self.is_off {
            (self.wanted, self.left, self.gain) = (0, 0, 1);
            return;
        }
        let to_far = all.far < best;
        let (all_there, own_there) = if to_far { (all.near, own.near) } else { (all.far, own.far) };
        let part = u128::from(off) * u128::from(own_there) / u128::from(all_there.max(1));
        let wanted = per_second(part as u64, ms);
        let was_moved = self.wanted > 0 && self.left <= self.wanted / 2;
        if to_far != self.to_far {
            self.gain = 1;
        } else if was_moved && wanted > self.wanted / 2 && off > best / GAIN_PARTS {
            self.gain = (self.gain * 2).min(GAIN_MAX);
        }
        (self.to_far, self.wanted, self.left) = (to_far, wanted, wanted);
        self.budget_left = self.budget_bytes;
    }
}

#[cfg(test)]
mod tests;
