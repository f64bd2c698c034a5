//! Every byte that outlives a process or is seen by several: the sections of a rack's region.
//! Offsets and ids only; no pointer, no `usize`. `docs/layout.md` is generated from here.
//!
//! | section | file | daemon | clients |
//! |---|---|---|---|
//! | pages | `PATH` | read, write | read, write |
//! | private | `PATH.meta` | read, write | nothing |
//! | page table: one word a frame, directories of replicas | `PATH.table` | read, write | read |
//! | slot: cells, request ring, reply ring | `PATH.slot-N` | read, write | its own: read, write |
//! | bell: ready bitmap | `PATH.bell` | read, write | read, write |
//!
//! State of the private section changes by one 8-byte store or by a redo record, and stands there
//! in three copies (`copies.rs`).

use crate::addr::{FrameIndex, PageGeometry};
use crate::coherence::Coherence;
use crate::constants::{
    CELLS, DEBTS_MAX, DUES_MAX, FREE_QUEUE, LOANS_MAX, LOCKS_MAX, REPLICA_HOMES, RING_DATA_BYTES,
    RING_ENTRIES, RING_ENTRY_BYTES, SESSIONS_MAX, SLAB_SHIFT_MIN, SLOTS_MAX, TIERS_MAX,
};
use crate::tier::Tiers;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of every private section: "rackpool" read as a little-endian word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rackpool");
/// Version of all layouts here. Another version is an error, never a reformat.
pub const LAYOUT_VERSION: u32 = 8;

pub use crate::constants::BLOCK_BYTES;

/// Offset of the superblock in the private section.
pub const SUPERBLOCK_OFFSET: u64 = 0;
/// Offset of the words that change ([`StateWord`]).
pub const STATE_OFFSET: u64 = BLOCK_BYTES;
/// Offset of the debts: frees that this rack owes.
pub const DEBTS_OFFSET: u64 = STATE_OFFSET + 512;
/// Bytes of a debt.
pub const DEBT_BYTES: u64 = 32;
/// Offset of the dues: allocations that are freed here because a word of another rack named them.
pub const DUES_OFFSET: u64 = DEBTS_OFFSET + DEBT_BYTES * DEBTS_MAX as u64;
const _: () = assert!(DUES_OFFSET + DEBT_BYTES * DUES_MAX as u64 <= REDO_OFFSET);
/// Offset of the redo record.
pub const REDO_OFFSET: u64 = 2 * BLOCK_BYTES;
/// Bytes of the redo record.
pub const REDO_BYTES: u64 = 2 * BLOCK_BYTES;
/// Header words of the redo record: sequence, count, checksum, reserved.
pub const REDO_HEADER_BYTES: u64 = 32;
/// Bit of an offset in a redo record that says: in the pages section, not in the private one.
pub const REDO_PAGES_TAG: u64 = 1;
/// Stores (offset, value) that one redo record holds.
pub const REDO_STORES_MAX: usize = ((REDO_BYTES - REDO_HEADER_BYTES) / 16) as usize;
/// Offset of the session records.
pub const SESSIONS_OFFSET: u64 = REDO_OFFSET + REDO_BYTES;
/// Bytes of a session record.
pub const SESSION_BYTES: u64 = 128;
/// Offset of the lock entries.
pub const LOCKS_OFFSET: u64 =
    (SESSIONS_OFFSET + SESSION_BYTES * SESSIONS_MAX as u64).next_multiple_of(BLOCK_BYTES);
/// Bytes of a lock entry.
pub const LOCK_BYTES: u64 = 32;
/// Offset of the frame entries.
pub const FRAMES_OFFSET: u64 =
    (LOCKS_OFFSET + LOCK_BYTES * LOCKS_MAX as u64).next_multiple_of(BLOCK_BYTES);
/// Bytes of a frame entry.
pub const FRAME_BYTES: u64 = 32;

/// Copies of each word of the private section.
pub const COPIES: u64 = 3;

/// Whether what is at an offset of the private section is dropped after a loss of power: session
/// records and lock entries, of processes that are gone.
pub fn is_volatile(offset: u64) -> bool {
    (SESSIONS_OFFSET..FRAMES_OFFSET).contains(&offset)
}

/// The unchanging head of a region, checksummed as a whole.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`LAYOUT_VERSION`].
    pub version: u32,
    /// log2 of the page size.
    pub page_shift: u8,
    /// Reserved, zero (alignment).
    pub reserved_0: u8,
    /// The rack.
    pub rack: u16,
    /// Identity of this region, random.
    pub region_id: [u64; 2],
    /// Frames in the pages section.
    pub frame_count: u64,
    /// Feature bits; unknown ones are an error. Bit 0: [`FEATURE_SOFTWARE_COHERENT`].
    pub features: u64,
    /// Session records, for a later larger table.
    pub sessions: u32,
    /// Slots.
    pub slots: u32,
    /// Memories of a region that has several, each a range of frames: frames in bits 0–31, the
    /// memory node in bits 32–47; 0 for none (`tier.rs`).
    pub tiers: [u64; 4],
    /// Tenant and capability of the region; zero today.
    pub reserved: [u64; 4],
    /// xxh3 of all the bytes before.
    pub checksum: u64,
}
const _: () = assert!(size_of::<Superblock>() == 128);
const _: () = assert!(std::mem::offset_of!(Superblock, region_id) == 16);
const _: () = assert!(TIERS_MAX == 4);
const _: () = assert!(std::mem::offset_of!(Superblock, checksum) == 120);

/// Feature bit of a region whose hosts' caches no hardware keeps in agreement: whoever opens it has
/// to write lines back and drop them (`coherence.rs`).
pub const FEATURE_SOFTWARE_COHERENT: u64 = 1;
/// Feature bits that this release knows.
pub const FEATURES: u64 = FEATURE_SOFTWARE_COHERENT;

impl Superblock {
    /// Who keeps the caches of the region's hosts in agreement.
    pub fn coherence(&self) -> Coherence {
        match self.features & FEATURE_SOFTWARE_COHERENT {
            0 => Coherence::Hardware,
            _ => Coherence::Software,
        }
    }

    /// The region's memories; `None` if what it says makes no sense.
    pub fn tiers(&self) -> Option<Tiers> {
        Tiers::from_words(self.tiers, u32::try_from(self.frame_count).ok()?)
    }

    /// The checksum that the other fields call for.
    pub fn checksum_of(&self) -> u64 {
        let bytes = self.as_bytes();
        xxhash_rust::xxh3::xxh3_64(&bytes[..std::mem::offset_of!(Superblock, checksum)])
    }
}

/// The words that change in the private section, one aligned word each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum StateWord {
    /// Attach count of the region; the daemon's epoch.
    Epoch = 0,
    /// Frames that were ever used: attach scans no further.
    FramesHigh = 1,
    /// The next generation to give out.
    GenerationNext = 2,
    /// The next page id of the leased range.
    PageIdNext = 3,
    /// End of the leased range of page ids.
    PageIdEnd = 4,
    /// The last fencing token that a lock was given.
    LockToken = 5,
    /// The number of the last debt.
    DebtLast = 6,
    /// Sessions that ended in a change: what they held is to be looked for.
    SweepsDue = 7,
}

impl StateWord {
    /// Offset in the private section.
    pub const fn offset(self) -> u64 {
        STATE_OFFSET + 8 * self as u64
    }
}

/// Words of a debt or of a due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum DebtWord {
    /// What is to be freed; 0 if the entry is free.
    Addr = 0,
    /// What was asked for when it was allocated, bytes.
    Bytes = 1,
    /// Of a debt: its number in the region's life. Of a due: its number at the master.
    Id = 2,
}

/// Offset of a word of a debt in the private section.
pub const fn debt_word(entry: u32, word: DebtWord) -> u64 {
    DEBTS_OFFSET + DEBT_BYTES * entry as u64 + 8 * word as u64
}

/// Offset of a word of a due in the private section.
pub const fn due_word(entry: u32, word: DebtWord) -> u64 {
    DUES_OFFSET + DEBT_BYTES * entry as u64 + 8 * word as u64
}

/// Words of a frame entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum FrameWord {
    /// The page in the frame.
    Page = 0,
    /// Its generation.
    Generation = 1,
    /// [`FrameState`] in bits 0–7, slab shift in bits 8–15 (0 for whole pages), bit 16 marks the
    /// first page of a run, [`AllocationKind`] in bits 17–19. Bit 20 ([`FRAME_SHARED`]): the page
    /// has or had replicas, and its table word a key of its own. Bits 32–63 of the first page:
    /// pages of the run, which may be in other racks; of a later page: its index in the run, by
    /// which attach finds the first one, which decides for those in its rack.
    State = 2,
    /// The session that owns it, 0 for none.
    Owner = 3,
}

/// Bit of a frame's state word that says: the table word has the key of a page with replicas.
pub const FRAME_SHARED: u64 = 1 << 20;

/// Offset of a word of a frame entry in the private section.
pub const fn frame_word(frame: FrameIndex, word: FrameWord) -> u64 {
    FRAMES_OFFSET + FRAME_BYTES * frame.0 as u64 + 8 * word as u64
}

/// What a frame is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameState {
    /// Not in use.
    Free = 0,
    /// Chosen for a page that the master has not committed: rolled back at attach, unless it is a
    /// later page of a run whose first page is `Home`.
    Pending = 1,
    /// Home of a page.
    Home = 2,
    /// Being freed: the master forgets it first, then its users are waited for.
    Freeing = 3,
    /// For a page that comes from another rack; the directory decides whose it is.
    Arriving = 4,
    /// Home of a page that is about to leave; the directory decides whose it is.
    Departing = 5,
    /// Its page is at home in another rack: its users are waited for.
    Gone = 6,
}

impl FrameState {
    /// From the byte of a frame's state word.
    pub fn from_byte(byte: u8) -> Option<Self> {
        let all = [
            Self::Free,
            Self::Pending,
            Self::Home,
            Self::Freeing,
            Self::Arriving,
            Self::Departing,
            Self::Gone,
        ];
        all.into_iter().find(|state| *state as u8 == byte)
    }
}

/// What an allocation is for: whether it is found by a walk over the pool's structures, or ends
/// with a session. In `docs/semantics.md`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum AllocationKind {
    /// An application's, or allocated by a version before 8 of this layout.
    #[default]
    User = 0,
    /// A part of a hash table, named by one word of it, or held by a session that is
    /// [`SlotWord::Changing`].
    Table = 1,
    /// A session's own: it ends with the session.
    Session = 2,
    /// As `Session`, the values of a cache.
    Cache = 3,
}

impl AllocationKind {
    /// All, by number.
    pub const ALL: [Self; 4] = [Self::User, Self::Table, Self::Session, Self::Cache];

    /// Whether it ends with the session that allocated it.
    pub fn is_owned(self) -> bool {
        matches!(self, Self::Session | Self::Cache)
    }

    /// Its word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Table => "table",
            Self::Session => "session",
            Self::Cache => "cache",
        }
    }
}

/// Words of a session record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum SessionWord {
    /// The session id; 0 if the record is free.
    Session = 0,
    /// Process id of the client, for a remote one as it says itself.
    Pid = 1,
    /// Start time of a local client's process, clock ticks after boot. Of a remote client:
    /// [`SessionWord::CONSUMED_SEQ`].
    StartTime = 2,
    /// Sequence number of the last mutating request that was applied.
    LastSeq = 3,
    /// Its `ResultKind`.
    ResultKind = 4,
    /// Its value: an address or an old value.
    ResultValue = 5,
    /// Bytes of an allocation that comes back when its answer is not taken; else 0.
    ResultBytes = 6,
    /// Sequence number of a running request that no redo record covers (an atomic on page memory).
    IntentSeq = 7,
}

impl SessionWord {
    /// Of a remote client, which has no slot section to say it: the last mutating request whose
    /// answer it has taken.
    pub const CONSUMED_SEQ: SessionWord = SessionWord::StartTime;
}

/// Offset of a word of a session record in the private section.
pub const fn session_word(record: u32, word: SessionWord) -> u64 {
    SESSIONS_OFFSET + SESSION_BYTES * record as u64 + 8 * word as u64
}

/// What the last mutating request of a session answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum ResultKind {
    /// Nothing yet.
    None = 0,
    /// An allocation: address and bytes.
    Allocated = 1,
    /// A free.
    Freed = 2,
    /// An atomic: its old value.
    Old = 3,
    /// A grant of a lock: its token.
    Locked = 4,
    /// An unlock: 1 if the lock was held.
    Unlocked = 5,
}

impl ResultKind {
    /// From the word of a session record.
    pub fn from_word(word: u64) -> Option<Self> {
        [Self::None, Self::Allocated, Self::Freed, Self::Old, Self::Locked, Self::Unlocked]
            .into_iter()
            .find(|kind| *kind as u64 == word)
    }
}

/// Words of a lock entry: one grant of a lock to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum LockWord {
    /// The first line's address; 0 if the entry is free. Bit 0: held alone ([`LOCK_WRITE`]).
    Name = 0,
    /// The session that holds it.
    Session = 1,
    /// The grant's fencing token.
    Token = 2,
    /// How many lines the grant is of, from the name on.
    Lines = 3,
}

/// Bit of a lock entry's name that says: held alone, for writing.
pub const LOCK_WRITE: u64 = 1;

/// Offset of a word of a lock entry in the private section.
pub const fn lock_word(entry: u32, word: LockWord) -> u64 {
    LOCKS_OFFSET + LOCK_BYTES * entry as u64 + 8 * word as u64
}

/// Geometry of a region: where the per-frame parts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLayout {
    /// Page geometry.
    pub pages: PageGeometry,
    /// Frames.
    pub frame_count: u32,
}

impl RegionLayout {
    /// Length of the pages section.
    pub fn pages_bytes(&self) -> u64 {
        u64::from(self.frame_count) * self.pages.page_bytes()
    }

    /// Offset of a frame in the pages section.
    #[inline]
    pub fn frame_offset(&self, frame: FrameIndex) -> u64 {
        u64::from(frame.0) << self.pages.page_shift()
    }

    /// Bytes of slab bitmap that a frame may need: one bit for each smallest object.
    pub fn bitmap_bytes(&self) -> u64 {
        (self.pages.page_bytes() >> SLAB_SHIFT_MIN) / 8
    }

    /// Offset of the slab bitmaps in the private section.
    pub fn bitmaps_offset(&self) -> u64 {
        (FRAMES_OFFSET + FRAME_BYTES * u64::from(self.frame_count)).next_multiple_of(BLOCK_BYTES)
    }

    /// Offset of a frame's slab bitmap.
    pub fn bitmap_offset(&self, frame: FrameIndex) -> u64 {
        self.bitmaps_offset() + self.bitmap_bytes() * u64::from(frame.0)
    }

    /// Length of the private section, of all copies. Sparse: parts are backed when they are first
    /// used, so a region of whole pages never pays for slab bitmaps.
    pub fn private_bytes(&self) -> u64 {
        COPIES * self.copy_bytes()
    }

    /// Length of one copy of the private section.
    pub fn copy_bytes(&self) -> u64 {
        (self.bitmaps_offset() + self.bitmap_bytes() * u64::from(self.frame_count))
            .next_multiple_of(BLOCK_BYTES)
    }

    /// Length of the table section.
    pub fn table_bytes(&self) -> u64 {
        self.replicas_word(REPLICA_HOMES).next_multiple_of(BLOCK_BYTES)
    }

    /// Offset in the table section of a word, behind those of all frames: the address of the
    /// directory of replicas of one home's pages in this rack, or 0.
    #[inline]
    pub const fn replicas_word(&self, index: u64) -> u64 {
        8 * (self.frame_count as u64 + index)
    }
}

/// Offset of a frame's generation word in the table section.
#[inline]
pub const fn table_word(frame: FrameIndex) -> u64 {
    8 * frame.0 as u64
}

/// Words of a slot's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum SlotWord {
    /// The first announce cell; `CELLS` of them fill one cache line.
    Cells = 64,
    /// Sequence number of the last request whose answer the client has taken.
    ConsumedSeq = 128,
    /// 1 once the client left on purpose.
    Left = 136,
    /// 1 while the client sleeps on its control connection: the daemon wakes it there for the ring
    /// of remote replies, and stores 0.
    FabricSleeping = 144,
    /// Counts begins and ends of changes: odd while the client may hold allocations of the kind
    /// `Table` that no word names.
    Changing = 152,
    /// The first of `LOCK_RELEASES` words: tokens of locks that the client gives back; the daemon
    /// stores 0.
    Releases = 192,
}

/// Offset of a word in a slot section that gives a lock back.
pub const fn release_offset(index: u32) -> u64 {
    SlotWord::Releases as u64 + 8 * index as u64
}

/// Offset of announce cell `index` in a slot section. A cell holds the frame's index plus one, or
/// 0 for none.
#[inline]
pub const fn cell_offset(index: u32) -> u64 {
    SlotWord::Cells as u64 + 8 * index as u64
}
const _: () = assert!(cell_offset(CELLS) == SlotWord::ConsumedSeq as u64);
// Lines have one writer each where the software keeps caches coherent: the client. (There it fills
// no word of `Releases`, and the daemon leaves `FabricSleeping` alone.)
const _: () = assert!((SlotWord::Cells as u64).is_multiple_of(64));
const _: () = assert!((SlotWord::ConsumedSeq as u64).is_multiple_of(64));
const _: () = assert!((SlotWord::Releases as u64).is_multiple_of(64));
const _: () = assert!(SLOT_REQUEST_RING.is_multiple_of(64) && RING_BYTES.is_multiple_of(64));

/// Bytes of one ring: a control block, the poll entries, the data ring.
pub const RING_BYTES: u64 =
    BLOCK_BYTES + (RING_ENTRIES * RING_ENTRY_BYTES) as u64 + RING_DATA_BYTES as u64;
/// Offset of the request ring in a slot section.
pub const SLOT_REQUEST_RING: u64 = BLOCK_BYTES;
/// Offset of the reply ring in a slot section.
pub const SLOT_REPLY_RING: u64 = SLOT_REQUEST_RING + RING_BYTES;
/// Offset of the ring for requests that the daemon's fabric endpoint serves: long ones do not
/// hold up those that the daemon answers itself.
pub const SLOT_REMOTE_REQUEST_RING: u64 = SLOT_REPLY_RING + RING_BYTES;
/// Offset of the ring for their replies.
pub const SLOT_REMOTE_REPLY_RING: u64 = SLOT_REMOTE_REQUEST_RING + RING_BYTES;
/// Offset of the loans: groups of objects that the handle may hand out.
pub const SLOT_LOANS: u64 = SLOT_REMOTE_REPLY_RING + RING_BYTES;
pub const LOAN_BYTES: u64 = 16;
/// Offset of the frees that wait for the daemon.
pub const SLOT_FREE_QUEUE: u64 = SLOT_LOANS + LOAN_BYTES * LOANS_MAX as u64;
/// Length of a slot section without loans, as before them: such a section is lengthened.
pub const SLOT_BYTES_OLD: u64 = SLOT_LOANS;
/// Length of a slot section.
pub const SLOT_BYTES: u64 = (SLOT_FREE_QUEUE + 8 * FREE_QUEUE as u64).next_multiple_of(BLOCK_BYTES);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum LoanWord {
    /// The first object's address, and log2 of the size in the low bits. The daemon writes it.
    Group = 0,
    /// Which objects are free in bits 0–31; the number of the object that is being handed out plus
    /// one in bits 32–37; bit 63: they are lent. Changed by atomics of both.
    Free = 1,
}

/// Offset of a word of a loan in a slot section.
#[inline]
pub const fn loan_word(loan: u16, word: LoanWord) -> u64 {
    SLOT_LOANS + LOAN_BYTES * loan as u64 + 8 * word as u64
}

/// Offset of a free that waits, in a slot section: an address and log2 of the size in the low bits;
/// the client fills it, the daemon stores 0.
#[inline]
pub const fn free_queue_word(index: u32) -> u64 {
    SLOT_FREE_QUEUE + 8 * index as u64
}

/// Length of the bell section: the ready bitmap, one bit a slot.
pub const BELL_BYTES: u64 = BLOCK_BYTES;
/// Offset of the word in the bell section that is 1 while the daemon sleeps.
pub const BELL_SLEEPING: u64 = 2048;
const _: () = assert!(SLOTS_MAX as u64 / 8 <= BELL_SLEEPING);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_1_tib_region_of_2_mib_pages_needs_less_than_a_thousandth_of_metadata_before_slabs() {
        let layout = RegionLayout { pages: PageGeometry::new(21).unwrap(), frame_count: 1 << 19 };
        let metadata = COPIES * layout.bitmaps_offset() + layout.table_bytes();
        assert_eq!(layout.pages_bytes(), 1 << 40);
        assert!(metadata * 1000 < layout.pages_bytes(), "{metadata}");
    }

    #[test]
    fn a_superblock_with_any_bit_flipped_fails_its_checksum() {
        let mut block = Superblock {
            magic: MAGIC,
            version: LAYOUT_VERSION,
            page_shift: 21,
            reserved_0: 0,
            rack: 1,
            region_id: [1, 2],
            frame_count: 512,
            features: 0,
            sessions: SESSIONS_MAX,
            slots: SLOTS_MAX,
            tiers: [0; 4],
            reserved: [0; 4],
            checksum: 0,
        };
        block.checksum = block.checksum_of();
        for bit in 0..120 * 8 {
            let mut torn = block;
            torn.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(torn.checksum_of(), torn.checksum, "bit {bit}");
        }
    }
}
