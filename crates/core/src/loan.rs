//! Groups of objects that a daemon lends to a handle: the handle hands them out and takes them back
//! without a message. What is free is said by one word of the handle's slot, which both change by
//! atomics, so that the daemon can end a loan at any time.
//!
//! A group is an aligned part of a slab page. While it is lent its bits in the page's bitmap are
//! all set: each object lives, is free in the word, or is being handed out. The word also says that
//! it is lent at all ([`LENT`]); without that the handle takes and frees nothing there. To hand an
//! object out the handle clears its bit and names it in the word, zeroes it, and takes the name
//! away: a handle that dies before that has not got it.
//!
//! Called by the client's and the daemon's engine. Decision 0062.

use crate::addr::{GAddr, PageGeometry};
use crate::constants::{LOAN_BYTES_MAX, LOAN_OBJECTS_MAX, LOAN_SHIFT_MAX, SLAB_SHIFT_MIN};

/// Bit of a loan's second word: the handle may take objects and free them there.
pub const LENT: u64 = 1 << 63;
/// The bits of it that say which objects are free.
const FREE: u64 = (1 << LOAN_OBJECTS_MAX) - 1;
/// Where it names the object that is being handed out.
const TAKING_SHIFT: u32 = LOAN_OBJECTS_MAX;
const TAKING: u64 = 0x3f << TAKING_SHIFT;
/// The low bits of an address that is aligned to the smallest object.
const LOW: u64 = (1 << SLAB_SHIFT_MIN) - 1;

/// A word with the address of an object, and log2 of its size in the low bits.
pub fn object_word(addr: GAddr, shift: u8) -> u64 {
    addr.0 | u64::from(shift)
}

/// What such a word names; `None` if it makes no sense.
pub fn named_object(word: u64) -> Option<(GAddr, u8)> {
    let (addr, shift) = (GAddr(word & !LOW), (word & LOW) as u8);
    let is_object =
        (SLAB_SHIFT_MIN..64).contains(&shift) && addr.0.trailing_zeros() >= shift.into();
    (is_object && !addr.is_null()).then_some((addr, shift))
}

/// Objects of one size that are lent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectGroup {
    pub addr: GAddr,
    pub shift: u8,
}

impl ObjectGroup {
    /// The group with an object in; `None` for sizes that are not lent.
    #[inline]
    pub fn with(pages: PageGeometry, addr: GAddr, shift: u8) -> Option<Self> {
        if !(SLAB_SHIFT_MIN..=LOAN_SHIFT_MAX.min(pages.page_shift() - 1)).contains(&shift) {
            return None;
        }
        let bytes = u64::from(objects_in_group(pages, shift)) << shift;
        Some(Self { addr: GAddr(addr.0 & !(bytes - 1)), shift })
    }

    /// What the first word of a loan names.
    pub fn from_word(pages: PageGeometry, word: u64) -> Option<Self> {
        let (addr, shift) = named_object(word)?;
        Self::with(pages, addr, shift).filter(|group| group.addr == addr)
    }

    #[inline]
    pub fn word(self) -> u64 {
        object_word(self.addr, self.shift)
    }

    #[inline]
    pub fn object(self, index: u32) -> GAddr {
        GAddr(self.addr.0 + (u64::from(index) << self.shift))
    }

    /// Which object of the group begins at an address, which is inside.
    #[inline]
    pub fn index_of(self, addr: GAddr) -> Option<u32> {
        let offset = addr.0 - self.addr.0;
        let index = (offset >> self.shift) as u32;
        offset.is_multiple_of(1 << self.shift).then_some(index)
    }
}

/// How many objects a group has; all groups of a size are alike.
#[inline]
pub fn objects_in_group(pages: PageGeometry, shift: u8) -> u32 {
    let in_page = (pages.page_bytes() >> shift).min(u64::from(LOAN_OBJECTS_MAX)) as u32;
    ((LOAN_BYTES_MAX >> shift) as u32).clamp(1, in_page)
}

/// The second word of a loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoanState(pub u64);

impl LoanState {
    #[inline]
    pub fn is_lent(self) -> bool {
        self.0 & LENT != 0
    }

    #[inline]
    pub fn free(self) -> u32 {
        (self.0 & FREE) as u32
    }

    /// The object that is being handed out.
    #[inline]
    pub fn taking(self) -> Option<u32> {
        let number = (self.0 & TAKING) >> TAKING_SHIFT;
        (number as u32).checked_sub(1).filter(|index| *index < LOAN_OBJECTS_MAX)
    }

    /// With a free object named as the one that is being handed out.
    #[inline]
    pub fn take(self, index: u32) -> Self {
        Self(self.0 & !(1 << index) & !TAKING | u64::from(index + 1) << TAKING_SHIFT)
    }

    /// With an object free, and none being handed out.
    #[inline]
    pub fn put(self, index: u32) -> Self {
        Self(self.0 & !TAKING | 1 << index)
    }

    /// What ends the handing out of an object if it is added to the word.
    #[inline]
    pub fn taken(index: u32) -> u64 {
        (u64::from(index + 1) << TAKING_SHIFT).wrapping_neg()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_an_aligned_part_of_a_page_that_its_objects_fill() {
        for page_shift in [12, 16, 21, 30] {
            let pages = PageGeometry::new(page_shift).unwrap();
            for shift in SLAB_SHIFT_MIN..=LOAN_SHIFT_MAX.min(page_shift - 1) {
                let objects = objects_in_group(pages, shift);
                assert!(objects.is_power_of_two() && objects <= LOAN_OBJECTS_MAX);
                assert!(u64::from(objects) << shift <= pages.page_bytes());
                let addr = GAddr((7 << page_shift) + (1 << shift));
                let group = ObjectGroup::with(pages, addr, shift).unwrap();
                assert_eq!(pages.page(group.addr), pages.page(addr));
                let index = group.index_of(addr).unwrap();
                assert_eq!((group.object(index), index < objects), (addr, true));
                assert_eq!(ObjectGroup::from_word(pages, group.word()), Some(group));
            }
        }
        let pages = PageGeometry::new(21).unwrap();
        assert_eq!(ObjectGroup::with(pages, GAddr(1 << 22), LOAN_SHIFT_MAX + 1), None);
        assert_eq!(ObjectGroup::from_word(pages, 0), None);
    }

    #[test]
    fn an_object_is_free_or_being_handed_out_or_lives() {
        let state = LoanState(LENT | 0b101);
        let taking = state.take(2);
        assert_eq!((taking.free(), taking.taking(), taking.is_lent()), (1, Some(2), true));
        let lives = LoanState(taking.0.wrapping_add(LoanState::taken(2)));
        assert_eq!((lives.free(), lives.taking(), lives.is_lent()), (1, None, true));
        assert_eq!(lives.put(2), state);
        assert_eq!(taking.put(2), state);
        // The daemon ends a loan by an addition too.
        assert!(!LoanState(state.0.wrapping_add(LENT)).is_lent());
    }
}
