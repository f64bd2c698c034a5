//! The header of a table: what never changes, checksummed, and the few words that do. Written by
//! the creator before the table gets its name; read by every client that opens it.
//!
//! | offset | content |
//! |---|---|
//! | 0 | [`Fixed`] |
//! | 64 | level: log2 of the buckets that the table is to have |
//! | 128 | sampled count of keys |
//! | 192 | address of chunk 0 |
//! | 256 | addresses of the arrays of chunks |

use crate::constants::{CHUNK_SHIFT, LEVEL_MAX, VERSIONS_PER_WORD_MAX, VERSIONS_PER_WORD_MIN};
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of a table: "rpktable" read as a little-endian word.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"rpktable");
/// Version of the table's layout. Another version is an error, never a reformat.
pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: u64 = 512;
pub(crate) const LEVEL_OFFSET: u64 = 64;
/// Offset of the sampled count. A cache line of its own.
pub(crate) const COUNT_OFFSET: u64 = 128;
pub(crate) const CHUNK_0_OFFSET: u64 = 192;
/// Arrays of chunks; each holds as many chunks as all before it.
pub(crate) const TOPS: usize = LEVEL_MAX as usize - CHUNK_SHIFT as usize;
const TOPS_OFFSET: u64 = 256;
const _: () = assert!(top_offset(TOPS) <= HEADER_BYTES);

/// Offset of the address of an array of chunks.
pub(crate) const fn top_offset(top: usize) -> u64 {
    TOPS_OFFSET + 8 * top as u64
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct Fixed {
    pub magic: u64,
    pub version: u32,
    /// log2 of the buckets that exist from the start.
    pub level_first: u32,
    /// Identity of this table, random.
    pub table_id: u64,
    /// Seed of the keys' hash, random.
    pub hash_seed: u64,
    /// Changes after which a bucket word is retired.
    pub versions_per_word: u32,
    pub reserved: [u32; 5],
    /// xxh3 of all the bytes before.
    pub checksum: u64,
}
const _: () = assert!(size_of::<Fixed>() == 64);
const _: () = assert!(std::mem::offset_of!(Fixed, checksum) == 56);

impl Fixed {
    /// The checksum that the other fields call for.
    pub fn checksum_of(&self) -> u64 {
        xxh3_64(&self.as_bytes()[..std::mem::offset_of!(Fixed, checksum)])
    }

    /// What makes this no header that can be used.
    pub fn fault(&self) -> Option<String> {
        if self.magic != MAGIC {
            return Some("it does not begin like a table".into());
        }
        if self.version != VERSION {
            let version = self.version;
            return Some(format!("version {version}, this program knows {VERSION}"));
        }
        if self.checksum != self.checksum_of() {
            return Some("its checksum is wrong".into());
        }
        let sound = self.level_first <= CHUNK_SHIFT
            && (VERSIONS_PER_WORD_MIN..=VERSIONS_PER_WORD_MAX).contains(&self.versions_per_word);
        (!sound).then(|| "its geometry is impossible".into())
    }
}
