//! Of which parts a large hash consists. A part has the fields whose hashes begin with the same
//! bits. Parts split and join one at a time, in order (linear hashing by the highest bits), so
//! their number alone says which there are; and each has one range of hashes, so that what goes
//! over a hash in the order of ranges sees every field once, whatever splits and joins meanwhile.
//!
//! Source: Litwin's linear hashing.

/// Bytes of a part on average. Each change of a field writes one part anew; smaller ones would cost
/// a field more bytes.
pub const PART_BYTES_MEAN: u64 = 768;
/// With fewer bytes a part on average two parts become one.
const PART_BYTES_MIN: u64 = PART_BYTES_MEAN / 2;
/// Most parts, so that a range begins at a multiple of 2^32, which a cursor can name.
const PARTS_MAX: u32 = 1 << 30;

/// A part: the fields whose hashes begin with these bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId {
    /// How many bits, up to 31.
    depth: u32,
    prefix: u32,
}

impl PartId {
    /// The part that has all fields.
    pub const WHOLE: PartId = PartId { depth: 0, prefix: 0 };

    /// A number that no other part has; never 0.
    #[must_use]
    pub fn number(self) -> u32 {
        1 << self.depth | self.prefix
    }

    /// The part of this number; `None` of 0.
    #[must_use]
    pub fn of_number(number: u32) -> Option<PartId> {
        let depth = number.checked_ilog2()?;
        Some(PartId { depth, prefix: number - (1 << depth) })
    }

    /// The bit of hashes by which it splits, counted from the highest one.
    #[must_use]
    pub fn depth(self) -> u32 {
        self.depth
    }

    /// The lowest hash that belongs to it.
    #[must_use]
    pub fn first_hash(self) -> u64 {
        u64::from(self.prefix).checked_shl(u64::BITS - self.depth).unwrap_or(0)
    }

    /// Where the next one begins; `None` of the last.
    #[must_use]
    pub fn next_hash(self) -> Option<u64> {
        let hashes = 1u64.checked_shl(u64::BITS - self.depth)?;
        self.first_hash().checked_add(hashes)
    }

    /// The two that it splits into.
    #[must_use]
    pub fn halves(self) -> [PartId; 2] {
        let (depth, prefix) = (self.depth + 1, self.prefix << 1);
        [PartId { depth, prefix }, PartId { depth, prefix: prefix | 1 }]
    }
}

/// How many parts there are, and so which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    parts: u32,
}

impl Shape {
    /// `None` of no parts, or too many.
    #[must_use]
    pub fn of(parts: u32) -> Option<Shape> {
        (1..=PARTS_MAX).contains(&parts).then_some(Shape { parts })
    }

    #[must_use]
    pub fn parts(self) -> u32 {
        self.parts
    }

    /// The part of a hash.
    #[must_use]
    pub fn part_of(self, hash: u64) -> PartId {
        let next = self.next_split();
        let highest = |bits: u32| hash.checked_shr(u64::BITS - bits).unwrap_or(0) as u32;
        let prefix = highest(next.depth);
        if prefix < next.prefix {
            return PartId { depth: next.depth + 1, prefix: highest(next.depth + 1) };
        }
        PartId { depth: next.depth, prefix }
    }

    /// The part that splits next.
    fn next_split(self) -> PartId {
        let depth = self.parts.ilog2();
        PartId { depth, prefix: self.parts - (1 << depth) }
    }

    /// The part that is to split if all have so many bytes, and what there is then.
    #[must_use]
    pub fn split(self, bytes: u64) -> Option<(PartId, Shape)> {
        let is_due = bytes > PART_BYTES_MEAN * u64::from(self.parts) && self.parts < PARTS_MAX;
        is_due.then(|| (self.next_split(), Shape { parts: self.parts + 1 }))
    }

    /// The part that two are to become if all have so many bytes, and what there is then.
    #[must_use]
    pub fn join(self, bytes: u64) -> Option<(PartId, Shape)> {
        let fewer = Shape::of(self.parts - 1)?;
        let is_due = bytes < PART_BYTES_MIN * u64::from(fewer.parts);
        is_due.then(|| (fewer.next_split(), fewer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_one_behind_the_other_and_every_hash_has_one() {
        for parts in (1..70).chain([127, 128, 129, 1000]) {
            let shape = Shape::of(parts).unwrap();
            let (mut at, mut count) = (Some(0), 0);
            while let Some(first) = at {
                let part = shape.part_of(first);
                assert_eq!(part.first_hash(), first);
                assert_eq!(PartId::of_number(part.number()), Some(part));
                let last = part.next_hash().map_or(u64::MAX, |next| next - 1);
                assert_eq!(shape.part_of(last), part);
                (at, count) = (part.next_hash(), count + 1);
            }
            assert_eq!(count, parts);
        }
        assert_eq!((Shape::of(0), PartId::of_number(0)), (None, None));
    }

    #[test]
    fn a_split_and_a_join_undo_each_other() {
        for parts in 1..200 {
            let shape = Shape::of(parts).unwrap();
            assert_eq!(shape.split(PART_BYTES_MEAN * u64::from(parts)), None);
            let (part, more) = shape.split(u64::MAX).unwrap();
            assert_eq!(shape.part_of(part.first_hash()), part);
            let [low, high] = part.halves();
            assert_eq!(more.part_of(low.first_hash()), low);
            assert_eq!(more.part_of(high.first_hash()), high);
            assert_eq!(more.join(0), Some((part, shape)));
            assert_eq!(more.join(PART_BYTES_MEAN * u64::from(parts)), None);
        }
        assert_eq!(Shape::of(1).unwrap().join(0), None);
    }
}
