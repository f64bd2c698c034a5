//! Global addresses and the ids of everything that protocol messages name. Each is a newtype of
//! fixed width, so that a frame number can never be passed where a page id is meant.
//!
//! A [`GAddr`] holds the page id above and the offset below; [`PageGeometry`] knows where the cut
//! is. Source: Rcmp §4.1, §5.1; page id 0 is reserved so that 0 is the null address.

use crate::constants::{PAGE_SHIFT_MAX, PAGE_SHIFT_MIN};
use serde::{Deserialize, Serialize};
use std::fmt;

pub use crate::shard::RackId;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $repr);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A page of the pool. Never used twice in a pool's life, so the address of a page that is gone
    /// is always an error and never the data of another page. (An object inside a slab page is
    /// another matter: its address is handed out again while the page lives.) 0 is no page.
    PageId,
    u64
);
id!(
    /// A page-sized piece of a rack's memory, counted from 0.
    FrameIndex,
    u32
);
id!(
    /// What a frame holds at this moment: a number that the rack gives out once, 0 for nothing.
    /// It is the frame's epoch in the page table and its key on the fabric.
    Generation,
    u64
);
id!(
    /// A client handle's session with one rack; random, given by the runtime. 0 is no session.
    SessionId,
    u64
);

impl Generation {
    /// Bit of a table word, and so of a key, that says: the page has replicas. A client with such a
    /// key may read; before it writes, it closes the replicas, or it leaves the write to the page's
    /// daemon.
    const SHARED: u64 = 1 << 63;

    /// The same generation of a page that has replicas.
    #[inline]
    pub fn shared(self) -> Generation {
        Generation(self.0 | Self::SHARED)
    }

    /// The same generation of a page that has none.
    #[inline]
    pub fn plain(self) -> Generation {
        Generation(self.0 & !Self::SHARED)
    }

    /// Whether the page has replicas.
    #[inline(always)]
    pub fn is_shared(self) -> bool {
        self.0 & Self::SHARED != 0
    }
}

/// An address in the pool: page id above, offset below. 0 is null.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct GAddr(pub u64);

impl GAddr {
    pub const NULL: GAddr = GAddr(0);

    /// Whether this is the null address.
    #[inline]
    pub fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `bytes` further on, or `None` past the end of the address space.
    #[inline]
    pub fn checked_add(self, bytes: u64) -> Option<GAddr> {
        self.0.checked_add(bytes).map(GAddr)
    }
}

impl fmt::Display for GAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}

/// Where an address is cut into page id and offset. Fixed when the pool is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageGeometry {
    page_shift: u8,
}

impl PageGeometry {
    /// Pages of `1 << page_shift` bytes; `None` outside 4 KiB … 1 GiB.
    pub fn new(page_shift: u8) -> Option<Self> {
        (PAGE_SHIFT_MIN..=PAGE_SHIFT_MAX).contains(&page_shift).then_some(Self { page_shift })
    }

    /// Pages of `bytes` bytes; `None` unless a power of two in 4 KiB … 1 GiB.
    pub fn from_page_bytes(bytes: u64) -> Option<Self> {
        if !bytes.is_power_of_two() {
            return None;
        }
        Self::new(u8::try_from(bytes.trailing_zeros()).ok()?)
    }

    /// log2 of the page size.
    pub fn page_shift(self) -> u8 {
        self.page_shift
    }

    /// The size of a page in bytes.
    #[inline]
    pub fn page_bytes(self) -> u64 {
        1 << self.page_shift
    }

    /// The page of an address.
    #[inline]
    pub fn page(self, addr: GAddr) -> PageId {
        PageId(addr.0 >> self.page_shift)
    }

    /// The offset of an address in its page, in bytes.
    #[inline]
    pub fn offset(self, addr: GAddr) -> u64 {
        addr.0 & (self.page_bytes() - 1)
    }

    /// The address at `offset` bytes in `page`.
    #[inline]
    pub fn join(self, page: PageId, offset: u64) -> GAddr {
        GAddr((page.0 << self.page_shift) + offset)
    }

    /// The largest page id that an address can hold.
    pub fn page_id_max(self) -> PageId {
        PageId(u64::MAX >> self.page_shift)
    }
}

/// Where one page lives: one answer carries all that a one-sided access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageHome {
    pub page: PageId,
    pub rack: RackId,
    pub frame: FrameIndex,
    /// The frame's generation: epoch in the page table, key on the fabric.
    pub generation: Generation,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_split_and_join() {
        for shift in PAGE_SHIFT_MIN..=PAGE_SHIFT_MAX {
            let geometry = PageGeometry::new(shift).unwrap();
            let addr = geometry.join(PageId(77), geometry.page_bytes() - 1);
            assert_eq!(geometry.page(addr), PageId(77));
            assert_eq!(geometry.offset(addr), geometry.page_bytes() - 1);
        }
    }

    #[test]
    fn pages_below_4_kib_above_1_gib_and_odd_sizes_are_refused() {
        assert!(PageGeometry::new(11).is_none());
        assert!(PageGeometry::new(31).is_none());
        assert!(PageGeometry::from_page_bytes(3 << 20).is_none());
        assert_eq!(PageGeometry::from_page_bytes(2 << 20).unwrap().page_shift(), 21);
    }
}
