//! When a write of a pool is to be safe from a loss of power, and the header of a region that
//! outlives one.
//!
//! How a range is made durable is [`Persist`]; in which order the metadata is, `copies.rs` and
//! `daemon/redo.rs` say.

use crate::persist::{Persist, PersistError, PersistenceDomain};
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// When what a handle writes into memory that persists is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// At no time that could be known: asking for it does nothing.
    None,
    /// When the handle was asked to make it so, and has returned.
    #[default]
    Flush,
    /// When the write has returned.
    Write,
}

/// First word of memory that persists: "rackpmem" read as a little-endian word.
pub const PMEM_MAGIC: u64 = u64::from_le_bytes(*b"rackpmem");
/// Version of [`PmemHeader`]; another one is refused.
pub const PMEM_VERSION: u32 = 1;
/// From one copy of the header to the other. They are written in turn, so that one is whole
/// whenever the power goes.
pub const PMEM_COPY_BYTES: u64 = 2048;
pub const PMEM_COPIES: u64 = 2;

/// What stands before a region in memory that persists: its pool and rack, and how it was left.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct PmemHeader {
    pub magic: u64,
    pub version: u32,
    /// Number of the persistence domain with which it was served last, in
    /// [`PersistenceDomain::ALL`].
    pub domain: u32,
    /// Identity of this memory, random.
    pub memory_id: [u64; 2],
    /// Length of the file or device, bytes.
    pub length_bytes: u64,
    /// What the sections begin at multiples of, bytes.
    pub align_bytes: u64,
    /// The boot of the host in which it was served last.
    pub boot: [u64; 2],
    /// Counts the writes of this header: the copy with the greater one counts.
    pub sequence: u64,
    /// 1 while a daemon serves it, and after a daemon that did not stop in order.
    pub in_use: u64,
    /// How often another boot found it in use.
    pub power_losses: u64,
    /// Dirty shutdowns of the device, plus one, when it was served last; 0 if it does not count.
    pub dirty_shutdowns: u64,
    /// Identity of the region behind it, once a daemon has attached to it; 0 before.
    pub region_id: [u64; 2],
    /// What stands behind it: 0 a region, 1 the values of a cache.
    pub holds: u64,
    /// xxh3 of all the bytes before.
    pub checksum: u64,
}
const _: () = assert!(size_of::<PmemHeader>() == 128);
const _: () = assert!(std::mem::offset_of!(PmemHeader, checksum) == 120);
const _: () = assert!(size_of::<PmemHeader>() as u64 <= PMEM_COPY_BYTES);

impl PmemHeader {
    /// The copy in these bytes, if it is whole.
    pub fn read(bytes: &[u8; size_of::<PmemHeader>()]) -> Option<Self> {
        let header = Self::read_from_bytes(bytes).ok()?;
        (header.magic == PMEM_MAGIC && header.checksum == header.checksum_of()).then_some(header)
    }

    /// The newer of the whole copies; `copy` answers the bytes of each.
    pub fn newest(copy: impl Fn(u64) -> [u8; size_of::<PmemHeader>()]) -> Option<Self> {
        let copies = (0..PMEM_COPIES).filter_map(|index| Self::read(&copy(index)));
        copies.max_by_key(|header| header.sequence)
    }

    /// The header to be written next with these fields: its place before the region, bytes from
    /// the start, and what is to stand there.
    pub fn next(self) -> (Self, u64) {
        let mut header = Self { sequence: self.sequence + 1, ..self };
        header.checksum = header.checksum_of();
        (header, header.sequence % PMEM_COPIES * PMEM_COPY_BYTES)
    }

    /// The newer of the whole copies in a memory that begins with them.
    pub fn load<P: Persist>(head: &P) -> Option<Self> {
        Self::newest(|copy| {
            let mut bytes = [0; size_of::<PmemHeader>()];
            head.copy_out(copy * PMEM_COPY_BYTES, &mut bytes);
            bytes
        })
    }

    /// Stores the header durably with these fields in place of the older copy, so that one is whole
    /// at any time; as it is then.
    ///
    /// # Errors
    /// [`PersistError`]: nothing is known of what is stored.
    pub fn store<P: Persist>(self, head: &P) -> Result<Self, PersistError> {
        let (header, at) = self.next();
        head.copy_in(at, &header.to_bytes());
        head.persist(at, size_of::<PmemHeader>() as u64)?;
        Ok(header)
    }

    pub fn to_bytes(self) -> [u8; size_of::<PmemHeader>()] {
        self.as_bytes().try_into().expect("a header has its own length")
    }

    /// The domain with which it was served last; `None` if the number makes no sense.
    pub fn domain(&self) -> Option<PersistenceDomain> {
        PersistenceDomain::ALL.get(self.domain as usize).copied()
    }

    /// The checksum that the other fields call for.
    pub fn checksum_of(&self) -> u64 {
        let bytes = self.as_bytes();
        xxhash_rust::xxh3::xxh3_64(&bytes[..std::mem::offset_of!(PmemHeader, checksum)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_with_any_flipped_bit_is_none() {
        let mut header = PmemHeader::read_from_bytes(&[0; 128]).unwrap();
        (header.magic, header.version, header.domain) = (PMEM_MAGIC, PMEM_VERSION, 1);
        header.checksum = header.checksum_of();
        let bytes = header.to_bytes();
        assert_eq!(PmemHeader::read(&bytes), Some(header));
        assert_eq!(header.domain(), Some(PersistenceDomain::Adr));
        for bit in 0..128 * 8 {
            let mut torn = bytes;
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(PmemHeader::read(&torn), None, "bit {bit}");
        }
    }
}
