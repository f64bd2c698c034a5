//! Memories of a rack that has several, as DRAM and CXL memory. A *tier* is a contiguous range of
//! frames with memory of one node; tier 0 is the nearest. The superblock says which ranges there
//! are; a rack with one memory says none there, and has tier 0 only.
//!
//! Nothing is placed here: `mem::region` binds the ranges, the daemon's frames give them out.
//!
//! Source: HMSDK (memory of several nodes by weights).

use crate::constants::TIERS_MAX;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use std::ops::Range;
use std::str::FromStr;

/// What stands for a node at the last range of frames if that is the slots of a file: pages that
/// are not in memory.
pub const SPILL_NODE: u16 = u16::MAX;

/// Which of a rack's memories is meant.
///
/// ```
/// use rackpool_core::tier::Tier;
/// assert_eq!("far".parse(), Ok(Tier::Far));
/// assert_eq!("1".parse(), Ok(Tier::Number(1)));
/// assert!("middle".parse::<Tier>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tier {
    /// Tier 0.
    Near,
    /// The last tier; of a rack with one memory that is tier 0.
    Far,
    Number(u8),
}

impl Display for Tier {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Tier::Near => f.write_str("near"),
            Tier::Far => f.write_str("far"),
            Tier::Number(number) => write!(f, "{number}"),
        }
    }
}

/// The text names no tier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no tier: near, far, or a number from 0")]
pub struct TierNameError {
    text: String,
}

impl FromStr for Tier {
    type Err = TierNameError;

    fn from_str(text: &str) -> Result<Tier, TierNameError> {
        match text {
            "near" => Ok(Tier::Near),
            "far" => Ok(Tier::Far),
            number => {
                let number = number.parse().map(Tier::Number);
                number.map_err(|_| TierNameError { text: text.to_owned() })
            }
        }
    }
}

/// One memory of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TierRange {
    pub node: u16,
    pub first_frame: u32,
    /// Not 0.
    pub frame_count: u32,
}

impl TierRange {
    pub fn frames(&self) -> Range<u32> {
        self.first_frame..self.first_frame + self.frame_count
    }
}

/// What a daemon says of one memory of its rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStats {
    pub node: u16,
    pub first_frame: u32,
    pub frames: u64,
    pub frames_free: u64,
}

impl TierStats {
    /// Whether it is no memory, but the slots of the rack's spill file.
    pub fn is_file(&self) -> bool {
        self.node == SPILL_NODE
    }
}

/// What a daemon says of its rack's memories.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierReport {
    /// Nearest first; none if the rack has one memory.
    pub tiers: Vec<TierStats>,
    /// Pages that moved between these since the daemon started.
    pub moved: u64,
}

impl TierReport {
    /// Whether the rack has one memory, so that there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.tiers.is_empty()
    }

    /// Whether a frame is a slot of the rack's spill file.
    pub fn is_slot(&self, frame: u32) -> bool {
        self.of(frame).is_some_and(|(_, tier)| tier.is_file())
    }

    /// The tier of a frame, with its number.
    pub fn of(&self, frame: u32) -> Option<(u8, &TierStats)> {
        let holds = |tier: &TierStats| {
            let index = frame.checked_sub(tier.first_frame);
            index.is_some_and(|index| u64::from(index) < tier.frames)
        };
        (0..).zip(&self.tiers).find(|(_, tier)| holds(tier))
    }
}

/// The memories of a rack that has several, nearest first; none for a rack with one.
///
/// ```
/// use rackpool_core::tier::{Tier, Tiers};
/// let tiers = Tiers::by_weights(8, &[(0, 3), (2, 1)]).unwrap();
/// assert_eq!(tiers.frames_of(Tier::Far, 8), Some(6..8));
/// assert_eq!((tiers.of(5), tiers.of(6)), (Some(0), Some(1)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tiers(Vec<TierRange>);

impl Tiers {
    /// Divides frames among nodes by weights, exact to one frame. `None` if there are more nodes
    /// than tiers can be, or too few frames for all of them.
    pub fn by_weights(frame_count: u32, nodes: &[(u16, u16)]) -> Option<Tiers> {
        let sum: u64 = nodes.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let (mut before, mut first_frame) = (0, 0);
        let mut ranges = Vec::with_capacity(nodes.len());
        for (node, weight) in nodes {
            before += u64::from(*weight);
            let end = u64::from(frame_count) * before / sum.max(1);
            let end = u32::try_from(end).expect("a share of the frames");
            ranges.push(TierRange { node: *node, first_frame, frame_count: end - first_frame });
            first_frame = end;
        }
        let is_empty = |range: &TierRange| range.frame_count == 0;
        (nodes.len() <= TIERS_MAX && !ranges.iter().any(is_empty)).then_some(Tiers(ranges))
    }

    /// Reads what the superblock of a region of so many frames says; `None` if it makes no sense.
    pub fn from_words(words: [u64; TIERS_MAX], frame_count: u32) -> Option<Tiers> {
        let count = words.iter().take_while(|word| **word != 0).count();
        let (mut first_frame, mut ranges) = (0_u32, Vec::with_capacity(count));
        for word in &words[..count] {
            let node = u16::try_from(word >> 32).ok()?;
            let range = TierRange { node, first_frame, frame_count: *word as u32 };
            first_frame = first_frame.checked_add(range.frame_count)?;
            ranges.push(range);
        }
        let is_file = |range: &TierRange| range.node == SPILL_NODE;
        if ranges.iter().rev().skip(1).any(is_file) {
            return None;
        }
        let is_whole = count == 0 || count > 1 && first_frame == frame_count;
        let is_empty = |range: &TierRange| range.frame_count == 0;
        let is_known = is_whole && words[count..].iter().all(|word| *word == 0);
        (is_known && !ranges.iter().any(is_empty)).then_some(Tiers(ranges))
    }

    /// As the superblock has them: frames in bits 0–31, the node in bits 32–47.
    pub fn words(&self) -> [u64; TIERS_MAX] {
        let mut words = [0; TIERS_MAX];
        for (word, range) in words.iter_mut().zip(&self.0) {
            *word = u64::from(range.node) << 32 | u64::from(range.frame_count);
        }
        words
    }

    /// These memories, of so many frames in all, and behind them the slots of a file. `None` if
    /// that is one range too many, or too many frames.
    pub fn with_spill(self, memory_frames: u32, slots: u32) -> Option<Tiers> {
        let Tiers(mut ranges) = self;
        if ranges.is_empty() {
            ranges.push(TierRange { node: 0, first_frame: 0, frame_count: memory_frames });
        }
        let (node, first_frame) = (SPILL_NODE, memory_frames);
        ranges.push(TierRange { node, first_frame, frame_count: slots });
        let fits = memory_frames.checked_add(slots).is_some_and(|frames| frames < u32::MAX);
        (slots > 0 && fits && ranges.len() <= TIERS_MAX).then_some(Tiers(ranges))
    }

    /// All ranges of frames, the slots of a file among them.
    pub fn ranges(&self) -> &[TierRange] {
        &self.0
    }

    /// The slots of the file, if the rack has one.
    pub fn spill(&self) -> Option<TierRange> {
        self.0.last().copied().filter(|range| range.node == SPILL_NODE)
    }

    /// How many of a region's frames are memory.
    pub fn memory_frames(&self, frame_count: u32) -> u32 {
        self.spill().map_or(frame_count, |slots| slots.first_frame)
    }

    /// The ranges that are memory.
    pub fn memories(&self) -> &[TierRange] {
        &self.0[..self.0.len() - usize::from(self.spill().is_some())]
    }

    /// The number of a frame's tier, if the rack has several.
    pub fn of(&self, frame: u32) -> Option<u8> {
        let index = self.0.iter().position(|range| range.frames().contains(&frame))?;
        Some(u8::try_from(index).expect("tiers are few"))
    }

    /// The frames of a memory, of a region of so many; `None` if there is no such memory.
    pub fn frames_of(&self, tier: Tier, frame_count: u32) -> Option<Range<u32>> {
        let index = match tier {
            Tier::Near => 0,
            Tier::Far => self.memories().len().saturating_sub(1),
            Tier::Number(number) => usize::from(number),
        };
        let is_all = self.0.is_empty() && index == 0;
        let range = self.memories().get(index).map(TierRange::frames);
        range.or_else(|| is_all.then_some(0..frame_count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact_to_one_frame_and_cover_all() {
        let nodes = [(0, 5), (3, 2), (1, 1)];
        for frame_count in [8, 9, 1000, 1 << 20] {
            let tiers = Tiers::by_weights(frame_count, &nodes).unwrap();
            let mut next = 0;
            for (range, (node, weight)) in tiers.ranges().iter().zip(nodes) {
                assert_eq!((range.node, range.first_frame), (node, next));
                let (is, exact) = (8 * range.frame_count, frame_count * u32::from(weight));
                assert!(is.abs_diff(exact) < 8, "{range:?}");
                next = range.frames().end;
            }
            assert_eq!(next, frame_count);
            assert_eq!(Tiers::from_words(tiers.words(), frame_count), Some(tiers));
        }
        assert_eq!(Tiers::by_weights(2, &nodes), None);
        assert_eq!(Tiers::by_weights(1 << 20, &[(0, 1); TIERS_MAX + 1]), None);
    }

    #[test]
    fn words_that_make_no_sense_are_refused_and_zeroes_are_one_memory() {
        let one = Tiers::from_words([0; TIERS_MAX], 8).unwrap();
        assert_eq!((one.ranges().len(), one.of(3)), (0, None));
        for tier in [Tier::Near, Tier::Far, Tier::Number(0)] {
            assert_eq!(one.frames_of(tier, 8), Some(0..8));
        }
        assert_eq!(one.frames_of(Tier::Number(1), 8), None);
        let node_2 = 2 << 32;
        for words in [
            [8, 0, 0, 0],                   // one tier is none
            [6, 0, 2, 0],                   // a gap
            [6, node_2 | 3, 0, 0],          // more frames than there are
            [6, node_2, 2, 0],              // an empty tier
            [6, 1 << 48 | 2, 0, 0],         // no node
            [u64::from(u32::MAX), 9, 0, 0], // the sum overflows
        ] {
            assert_eq!(Tiers::from_words(words, 8), None, "{words:x?}");
        }
        assert!(Tiers::from_words([6, node_2 | 2, 0, 0], 8).is_some());
    }

    #[test]
    fn the_slots_of_a_file_are_the_last_range_and_no_memory() {
        let file = u64::from(SPILL_NODE) << 32;
        let one = Tiers::default().with_spill(8, 64).unwrap();
        assert_eq!(one.words(), [8, file | 64, 0, 0]);
        assert_eq!(Tiers::from_words(one.words(), 72), Some(one.clone()));
        assert_eq!(one.spill().map(|range| range.frames()), Some(8..72));
        assert_eq!((one.memory_frames(72), Tiers::default().memory_frames(72)), (8, 72));
        for tier in [Tier::Near, Tier::Far, Tier::Number(0)] {
            assert_eq!(one.frames_of(tier, 72), Some(0..8));
        }
        assert_eq!((one.frames_of(Tier::Number(1), 72), one.of(8)), (None, Some(1)));
        let two = Tiers::by_weights(8, &[(0, 3), (2, 1)]).unwrap().with_spill(8, 8).unwrap();
        assert_eq!((two.memories().len(), two.frames_of(Tier::Far, 16)), (2, Some(6..8)));
        assert_eq!(Tiers::from_words([file | 8, 8, 0, 0], 16), None, "it is the last");
        assert_eq!(Tiers::default().with_spill(8, 0), None);
        assert_eq!(Tiers::default().with_spill(u32::MAX - 1, 1), None);
        let four = Tiers::by_weights(8, &[(0, 1), (1, 1), (2, 1), (3, 1)]).unwrap();
        assert_eq!(four.with_spill(8, 8), None, "one range too many");
    }
}
