//! One allocation of the model: its life, and for each word of 8 bytes the writes that may show
//! there. A word that was never written takes no room.

use super::{Backing, WriteId, Writes};
use crate::time::Ps;
use std::collections::BTreeMap;
use std::fmt;

/// No client has seen a byte.
pub(super) const UNSEEN: Ps = Ps(u64::MAX);

/// What an allocation is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Live,
    /// A free was called then.
    FreeCalled(Ps),
    Freed(Ps),
    /// Its memory was gone then, perhaps after it was freed: a free was under way.
    Lost {
        at: Ps,
        freeing: bool,
    },
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Life::Live => f.write_str("live"),
            Life::FreeCalled(at) => write!(f, "being freed since {at}"),
            Life::Freed(at) => write!(f, "freed at {at}"),
            Life::Lost { at, .. } => write!(f, "lost at {at}"),
        }
    }
}

/// What one write put into one word.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) write: WriteId,
    /// The bytes of the word that it covers, bit 0 for the first.
    pub(super) mask: u8,
    pub(super) bytes: [u8; 8],
    /// When another client had seen each byte; [`UNSEEN`] if none.
    pub(super) seen: [Ps; 8],
}

impl Version {
    pub(super) fn covers(&self, byte: usize) -> bool {
        self.mask >> byte & 1 == 1
    }

    /// Whether a read called at `called` finds this byte of it, or something later.
    pub(super) fn is_there(
        &self,
        writes: &Writes,
        byte: usize,
        reader: Option<u32>,
        called: Ps,
    ) -> bool {
        self.covers(byte)
            && (self.seen[byte] < called || writes[&self.write].is_there_for(reader, called))
    }
}

#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) bytes: u64,
    pub(super) backing: Backing,
    pub(super) life: Life,
    /// By the word's index in the allocation. Allocations begin at a multiple of 8.
    pub(super) words: BTreeMap<u64, Vec<Version>>,
}

/// The words that `bytes` bytes at `offset` touch: index, first byte in the word, how many.
pub(super) fn words_of(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + bytes as u64;
    (offset / 8..end.div_ceil(8)).map(move |word| {
        let from = offset.max(8 * word) - 8 * word;
        let to = end.min(8 * word + 8) - 8 * word;
        (word, from as usize, (to - from) as usize)
    })
}

impl Allocation {
    pub(super) fn new(bytes: u64, backing: Backing) -> Allocation {
        Allocation { bytes, backing, life: Life::Live, words: BTreeMap::new() }
    }

    /// Notes a write; how many words it touches.
    pub(super) fn write(&mut self, write: WriteId, offset: u64, data: &[u8]) -> u64 {
        let mut taken = 0;
        let mut words = 0;
        for (word, from, count) in words_of(offset, data.len()) {
            let mut bytes = [0; 8];
            bytes[from..from + count].copy_from_slice(&data[taken..taken + count]);
            taken += count;
            words += 1;
            let mask = (((1u16 << count) - 1) << from) as u8;
            let version = Version { write, mask, bytes, seen: [UNSEEN; 8] };
            self.words.entry(word).or_default().push(version);
        }
        words
    }

    /// Takes a write back; its id for each word that it touched.
    pub(super) fn unwrite(&mut self, write: WriteId, offset: u64, bytes: usize) -> Vec<WriteId> {
        let mut gone = Vec::new();
        for (word, ..) in words_of(offset, bytes) {
            let Some(versions) = self.words.get_mut(&word) else { continue };
            let before = versions.len();
            versions.retain(|version| version.write != write);
            gone.extend(std::iter::repeat_n(write, before - versions.len()));
        }
        gone
    }

    /// Forgets all words; the ids of the versions that were there.
    pub(super) fn clear(&mut self) -> Vec<WriteId> {
        let words = std::mem::take(&mut self.words);
        words.into_values().flatten().map(|version| version.write).collect()
    }

    /// Forgets versions that no read called from `oldest_called` on can show; their ids.
    pub(super) fn forget(&mut self, writes: &Writes, oldest_called: Ps) -> Vec<WriteId> {
        let mut gone = Vec::new();
        for versions in self.words.values_mut().filter(|versions| versions.len() > 1) {
            let hidden = |version: &Version| {
                let by = |later: &Version| hides(writes, later, version, oldest_called);
                versions.iter().any(by)
            };
            let hidden: Vec<bool> = versions.iter().map(hidden).collect();
            let mut index = 0;
            versions.retain(|version| {
                index += 1;
                if hidden[index - 1] {
                    gone.push(version.write);
                }
                !hidden[index - 1]
            });
        }
        gone
    }
}

/// Whether all of `version` lies under `later` for every read called from `called` on.
fn hides(writes: &Writes, later: &Version, version: &Version, called: Ps) -> bool {
    version.mask & !later.mask == 0
        && writes[&version.write].is_before(&writes[&later.write])
        && (0..8)
            .filter(|byte| version.covers(*byte))
            .all(|byte| later.is_there(writes, byte, None, called))
}
