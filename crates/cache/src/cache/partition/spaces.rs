//! Items by their space: how many a partition has, and those of spaces that are to go.

use super::{Header, Mem, Partition, Pos};

/// Buckets that one step looks into.
const WALKED_BUCKETS: usize = 256;
/// Spaces that there may be.
const SPACES: usize = 256;

/// A bit for each of some spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceSet(pub [u64; SPACES / 64]);

impl SpaceSet {
    pub fn has(self, space: u8) -> bool {
        self.0[usize::from(space / 64)] >> (space % 64) & 1 == 1
    }

    pub fn set(&mut self, space: u8, on: bool) {
        let word = &mut self.0[usize::from(space / 64)];
        *word = *word & !(1 << (space % 64)) | u64::from(on) << (space % 64);
    }

    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

#[derive(Debug, Default)]
pub(crate) struct SpaceCounts {
    /// Items by space, those of space 0 apart; empty while there were none.
    items: Vec<u64>,
    /// Spaces to be emptied.
    leaving: SpaceSet,
    /// Where the walk is that takes them out.
    cursor: u64,
}

impl Partition {
    /// Notes that an item of another space than 0 came.
    #[cold]
    pub fn space_gained(&mut self, space: u8) {
        self.spaces.items.resize(SPACES, 0);
        self.spaces.items[usize::from(space)] += 1;
    }

    /// Notes that an item of another space than 0 goes that was not flushed.
    #[cold]
    pub fn space_lost(&mut self, pos: Pos, header: Header) {
        let space = usize::from(self.space_at(pos, header));
        self.spaces.items[space] -= 1;
    }

    pub fn items_in(&self, space: u8) -> u64 {
        match space {
            0 => self.index.items() - self.spaces.items.iter().sum::<u64>(),
            space => self.spaces.items.get(usize::from(space)).copied().unwrap_or(0),
        }
    }

    pub fn space_at(&self, pos: Pos, header: Header) -> u8 {
        if !header.is_spaced() {
            return 0;
        }
        let at = pos.byte() + u64::from(header.value_at()) - 1;
        self.units.load(at & !7).to_le_bytes()[(at & 7) as usize]
    }

    /// All that there was is gone.
    pub fn forget_spaces(&mut self) {
        self.spaces.items.clear();
        self.spaces.leaving = SpaceSet::default();
    }

    /// Items of these spaces are to go.
    pub fn leave_spaces(&mut self, spaces: SpaceSet) {
        for (word, more) in self.spaces.leaving.0.iter_mut().zip(spaces.0) {
            *word |= more;
        }
        self.spaces.cursor = 0;
    }

    pub fn is_leaving(&self, space: u8) -> bool {
        self.spaces.leaving.has(space)
    }

    /// Makes a step of taking out items of spaces that are to go; whether there was any to make.
    pub fn sweep_spaces(&mut self) -> bool {
        let leaving = self.spaces.leaving;
        if leaving.is_empty() {
            return false;
        }
        let mut found = Vec::new();
        for _ in 0..WALKED_BUCKETS {
            let next = self.index.scan(self.spaces.cursor, |_, slot| {
                let (pos, header) = (slot.pos(), self.header(slot.pos()));
                if leaving.has(self.space_at(pos, header)) {
                    found.push((pos, header));
                }
            });
            self.spaces.cursor = next;
            if next == 0 {
                self.spaces.leaving = SpaceSet::default();
                break;
            }
        }
        self.disturbances += 1;
        for (pos, header) in found {
            let hash = self.hash_at(pos, header);
            if let Some(found) = self.index.find(hash, |slot| slot.pos() == pos) {
                self.remove(hash, found);
            }
        }
        true
    }
}
