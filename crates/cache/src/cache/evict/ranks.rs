//! A round of TinyLFU as data: its segments, what was weighed of them, and which of it stays.

use crate::cache::layout::{Pos, UNIT_BYTES};
use crate::cache::segments::Memory;

pub(super) const RANKS: usize = 1024;
/// … of which the lowest is that of 2^-44, less than that of any value.
const RANK_MIN: u32 = (127 - 44) << 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct Weighed {
    pub hash: u64,
    pub pos: Pos,
    pub bytes: u64,
    pub rank: u16,
    /// Uses that went to the sketch.
    pub uses: u8,
}

/// A round that has begun; without segments, none.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// Whether it makes room for what lies in the other memory, and not for what is stored.
    pub is_exchange: bool,
    /// Its segments, in the order in which they are gone through: of one queue older ones first, so
    /// that a further piece of an item never leaves before its head.
    pub(super) units: Vec<u32>,
    /// Where they lie.
    pub(super) memory: Memory,
    pub(super) step: RoundStep,
    /// Dead bytes that count as given back: half of those that a far round finds. What leaves it is
    /// lost, and other than of near memory much of it may be dead, where items went near.
    pub(super) dead_bytes: u64,
    /// Bytes that are to be gone through for what was stored since the last step.
    pub(super) owed: u64,
    pub(super) weighed: Vec<Weighed>,
    pub(super) bytes_of_rank: Vec<u64>,
}

#[derive(Debug)]
pub(super) enum RoundStep {
    /// Weighing what lies here in this one of the segments.
    Weigh { index: usize, offset: u32 },
    /// Judging this one of those that were weighed.
    Judge { next: usize, last: LastRank },
}

impl Default for RoundStep {
    fn default() -> Self {
        RoundStep::Weigh { index: 0, offset: 0 }
    }
}

/// The last rank that stays, and how many bytes of it.
#[derive(Debug)]
pub(super) struct LastRank {
    pub rank: u16,
    pub bytes: u64,
}

impl LastRank {
    pub fn keeps(&mut self, item: &Weighed) -> bool {
        let is_last = item.rank == self.rank && item.bytes <= self.bytes;
        if is_last {
            self.bytes -= item.bytes;
        }
        is_last || item.rank > self.rank
    }
}

/// The rank of an item that is asked for so often; as more is worth less, for its bytes.
pub(super) fn rank(uses: u8, bytes: u64) -> u16 {
    // A key that was asked for once may never come again.
    let score = (f32::from(uses) - 0.8).max(0.02) / (bytes as f32 + 16.0);
    (score.to_bits() >> 19).saturating_sub(RANK_MIN).min(RANKS as u32 - 1) as u16
}

impl Round {
    pub fn is_open(&self) -> bool {
        !self.units.is_empty()
    }

    pub(super) fn add(&mut self, item: Weighed) {
        self.bytes_of_rank[usize::from(item.rank)] += item.bytes;
        self.weighed.push(item);
    }

    /// The last rank that stays: one unit at least has to come out of this.
    pub(super) fn last_rank(&self) -> LastRank {
        // Of a near round what is dead is not counted: to let as much more stay gives no unit back
        // in some rounds, and misses more where values are long.
        let total: u64 = self.bytes_of_rank.iter().sum();
        let leaving = u64::from(UNIT_BYTES).saturating_sub(self.dead_bytes);
        let mut bytes = total.saturating_sub(leaving);
        for (rank, of_rank) in self.bytes_of_rank.iter().enumerate().rev() {
            match bytes.checked_sub(*of_rank) {
                Some(left) => bytes = left,
                None => return LastRank { rank: rank as u16, bytes },
            }
        }
        LastRank { rank: 0, bytes }
    }
}
