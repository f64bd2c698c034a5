//! The words of a large hash: its root, and the keys of the items that belong to it.
//!
//! ```text
//! root      generation 4 | parts 4 | fields 8 | bytes 8 | long bytes 8 | next serial 6
//!           | earliest expiry by the items' clock 6, by the wall's 6
//! part      hash of the root's key 8 | generation 4 | number of the part 4
//! long      hash of the root's key 8 | generation 4 | serial 6
//! ```

use super::Damaged;
use super::expiry::{EXPIRY_BYTES, kept_expiry, read_expiry};
use super::shape::{PartId, Shape};
use super::text::little;
use crate::clock::{Times, has_passed};
use crate::{Millis, wall_of};
use xxhash_rust::xxh3::xxh3_64;

pub const ROOT_BYTES: usize = 50;
const SERIAL_BYTES: usize = 6;
/// The bits of a hash by which the cache chooses the partition: the items of a hash share them.
const PARTITION_BITS: u64 = 0xffff;

/// What lies under the key of a large hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Tells its items from those of an earlier hash of the same key.
    pub generation: u32,
    pub shape: Shape,
    /// Fields, expired ones that are still there included.
    pub fields: u64,
    pub bytes: u64,
    /// Bytes of its values that are items of their own.
    pub long_bytes: u64,
    /// The serial of the next of these.
    pub next_serial: u64,
    /// No field expires before these, by the items' clock and by the wall's; 0 = none does.
    pub earliest: [Millis; 2],
}

impl Root {
    /// What its item keeps.
    #[must_use]
    pub fn kept(&self) -> [u8; ROOT_BYTES] {
        let mut kept = [0; ROOT_BYTES];
        let (generation, parts) = (self.generation.to_le_bytes(), self.shape.parts().to_le_bytes());
        let words = [self.fields, self.bytes, self.long_bytes].map(u64::to_le_bytes);
        let serial = self.next_serial.to_le_bytes();
        let [own, wall] = self.earliest.map(kept_expiry);
        let pieces: [&[u8]; 8] = [
            &generation,
            &parts,
            &words[0],
            &words[1],
            &words[2],
            &serial[..SERIAL_BYTES],
            &own,
            &wall,
        ];
        let mut at = 0;
        for piece in pieces {
            kept[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        kept
    }

    /// The root that is kept in these bytes.
    ///
    /// # Errors
    /// [`Damaged`].
    pub fn read(kept: &[u8]) -> Result<Root, Damaged> {
        let kept: &[u8; ROOT_BYTES] = kept.try_into().map_err(|_| Damaged)?;
        let earliest = |at: usize| read_expiry(&kept[at..]).ok_or(Damaged);
        Ok(Root {
            generation: little(&kept[..4]) as u32,
            shape: Shape::of(little(&kept[4..8]) as u32).ok_or(Damaged)?,
            fields: little(&kept[8..16]),
            bytes: little(&kept[16..24]),
            long_bytes: little(&kept[24..32]),
            next_serial: little(&kept[32..38]),
            earliest: [earliest(38)?, earliest(38 + EXPIRY_BYTES)?],
        })
    }

    /// A field expires then; 0 = never.
    pub(crate) fn note_expiry(&mut self, expires: Millis) {
        note_earliest(&mut self.earliest, expires);
    }

    /// Whether fields may have expired that are still there: [`Root::fields`] counts them.
    #[must_use]
    pub fn may_have_expired(&self, times: Times) -> bool {
        self.earliest.iter().any(|expires| *expires != 0 && has_passed(*expires, times))
    }
}

/// A field expires then; 0 = never.
pub(super) fn note_earliest(earliest: &mut [Millis; 2], expires: Millis) {
    let earliest = &mut earliest[usize::from(wall_of(expires).is_some())];
    // Both by the same clock, so they compare as they are.
    if expires != 0 && (*earliest == 0 || expires < *earliest) {
        *earliest = expires;
    }
}

/// An item that belongs to a large hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HashItem {
    Part(PartId),
    /// The value of this serial.
    Long(u64),
}

/// The key of an item that belongs to a large hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashItemKey {
    /// The hash of the root's key.
    pub owner: u64,
    pub generation: u32,
    /// Which of the hash's items.
    pub item: HashItem,
}

impl HashItemKey {
    /// Its bytes: 16 for a part, 18 for a value.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.owner.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        match self.item {
            HashItem::Part(part) => out.extend_from_slice(&part.number().to_le_bytes()),
            HashItem::Long(serial) => {
                out.extend_from_slice(&serial.to_le_bytes()[..SERIAL_BYTES]);
            }
        }
    }

    /// The key of these bytes.
    ///
    /// # Errors
    /// [`Damaged`].
    pub fn read(key: &[u8]) -> Result<HashItemKey, Damaged> {
        let (head, rest) = key.split_at_checked(12).ok_or(Damaged)?;
        let item = match rest.len() {
            4 => PartId::of_number(little(rest) as u32).map(HashItem::Part).ok_or(Damaged)?,
            SERIAL_BYTES => HashItem::Long(little(rest)),
            _ => return Err(Damaged),
        };
        let (owner, generation) = (little(&head[..8]), little(&head[8..]) as u32);
        Ok(HashItemKey { owner, generation, item })
    }

    /// The hash by which the index finds the item of these bytes, which are a key: in the partition
    /// of its root.
    #[must_use]
    pub fn index_hash(key: &[u8]) -> u64 {
        let owner = little(&key[..key.len().min(8)]);
        (xxh3_64(key) & !PARTITION_BITS) | (owner & PARTITION_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::at_wall;

    #[test]
    fn roots_and_keys_come_back() {
        let mut root = Root {
            generation: 0xfeed_beef,
            shape: Shape::of(1_234_567).unwrap(),
            fields: 1 << 40,
            bytes: 2 << 40,
            long_bytes: 3,
            next_serial: (1 << 48) - 1,
            earliest: [0; 2],
        };
        assert_eq!(Root::read(&root.kept()), Ok(root));
        for expires in [0, 500, at_wall(900), 400, at_wall(70), 600] {
            note_earliest(&mut root.earliest, expires);
        }
        assert_eq!(root.earliest, [400, at_wall(70)]);
        assert_eq!(Root::read(&root.kept()), Ok(root));
        assert!(root.may_have_expired(Times { now: 399, wall: 70 }));
        assert!(!root.may_have_expired(Times { now: 399, wall: 69 }));
        assert_eq!(Root::read(&root.kept()[1..]), Err(Damaged));
        assert_eq!(Root::read(&[0; ROOT_BYTES]), Err(Damaged));
        let part = HashItem::Part(PartId::of_number(77).unwrap());
        for (item, bytes) in [(part, 16), (HashItem::Long((1 << 48) - 2), 18)] {
            let key = HashItemKey { owner: 0x1234_5678_9abc_def0, generation: 9, item };
            let mut kept = Vec::new();
            key.append_to(&mut kept);
            assert_eq!((kept.len(), HashItemKey::read(&kept)), (bytes, Ok(key)));
            assert_eq!(HashItemKey::index_hash(&kept) & 0xffff, 0xdef0);
            assert_eq!(HashItemKey::read(&kept[1..]), Err(Damaged));
        }
    }
}
