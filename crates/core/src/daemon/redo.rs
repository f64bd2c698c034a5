//! The redo record of the private section: several 8-byte stores that happen all or not at all.
//!
//! In: absolute stores, gathered with [`Redo::set`], and words of pages, with [`Redo::set_page`].
//! Out: the same stores in the private section, then in the pages. Every other file of the engine
//! changes several words only through here; one word alone is stored directly. Order: entries,
//! sequence, count, checksum, then the stores, then count 0, each of the three durable before the
//! next where the memory outlives a loss of power. The record counts from the moment its
//! checksum is there; a crash before it leaves nothing, a crash after it is finished by
//! [`Redo::replay`]. A word of a page can be seen by clients, which live on while the daemon is
//! down: it may be stored once more at the replay, so until the record is done no other process may
//! change it (`Request::AllocInto` says so). Source: DESIGN §2 (state changes by one store or by a
//! checksummed, idempotent redo record).

use crate::addr::FrameIndex;
use crate::coherence;
use crate::copies;
use crate::daemon::World;
use crate::daemon::persist::persist_pages;
use crate::error::{Error, Result};
use crate::layout::{
    FrameState, FrameWord, REDO_BYTES, REDO_HEADER_BYTES, REDO_OFFSET, REDO_PAGES_TAG,
    REDO_STORES_MAX, RegionLayout, STATE_OFFSET, StateWord, frame_word, is_volatile,
};
use crate::persist::Persist;
use crate::seam::{ByteRange, Mem, Mutation, Probe, Race};

const SEQUENCE: u64 = REDO_OFFSET;
const COUNT: u64 = REDO_OFFSET + 8;
const CHECKSUM: u64 = REDO_OFFSET + 16;
const ENTRIES: u64 = REDO_OFFSET + REDO_HEADER_BYTES;

/// Gathers stores and commits them as one.
pub(super) struct Redo {
    sequence: u64,
    stores: Vec<(u64, u64)>,
    scratch: Vec<u8>,
}

impl Redo {
    /// Finishes a committed record, drops an unfinished one, and starts with the next sequence.
    pub(super) fn replay<W: World>(world: &W, layout: &RegionLayout) -> Result<Redo> {
        let mem = world.private();
        let mut redo = Redo {
            sequence: copies::load(mem, SEQUENCE)?,
            stores: Vec::new(),
            scratch: Vec::new(),
        };
        let count = copies::load(mem, COUNT)?;
        if count > REDO_STORES_MAX as u64 {
            let reason = format!("the redo record has {count} stores of {REDO_STORES_MAX}");
            return Err(Error::BadRegion { reason });
        }
        for index in 0..count {
            let entry = ENTRIES + 16 * index;
            redo.stores.push((copies::load(mem, entry)?, copies::load(mem, entry + 8)?));
        }
        let committed = count > 0 && redo.checksum() == copies::load(mem, CHECKSUM)?;
        if committed && !mem.mutated(Mutation::DropRedo) {
            for (offset, _) in &redo.stores {
                if !may_store(*offset, mem, layout) {
                    let reason = format!("the redo record stores to offset {offset:#x}");
                    return Err(Error::BadRegion { reason });
                }
            }
            mem.met(Race::RedoFinished);
            redo.apply(world);
        }
        if count > 0 {
            copies::store(mem, COUNT, 0);
        }
        redo.stores.clear();
        Ok(redo)
    }

    /// Adds a store to the record under preparation.
    pub(super) fn set(&mut self, offset: u64, value: u64) {
        self.stores.push((offset, value));
    }

    /// Adds a store to a word of a page, at an offset in the pages section. Its frame is `Home`
    /// before and after this record.
    pub(super) fn set_page(&mut self, offset: u64, value: u64) {
        assert!(offset.is_multiple_of(8), "words of pages are aligned");
        self.stores.push((offset | REDO_PAGES_TAG, value));
    }

    /// Makes all stores added since the last commit happen as one.
    pub(super) fn commit<W: World>(&mut self, world: &W) {
        let mem = world.private();
        assert!(!self.stores.is_empty(), "a redo record says something");
        assert!(self.stores.len() <= REDO_STORES_MAX, "a redo record fits into its place");
        self.sequence = self.sequence.wrapping_add(1);
        for (index, (offset, value)) in self.stores.iter().enumerate() {
            let entry = ENTRIES + 16 * index as u64;
            copies::put(mem, entry, *offset);
            copies::put(mem, entry + 8, *value);
        }
        let checksum = self.checksum();
        copies::put(mem, SEQUENCE, self.sequence);
        copies::put(mem, COUNT, self.stores.len() as u64);
        copies::put(mem, CHECKSUM, checksum);
        if !mem.mutated(Mutation::ApplyUndurableRedo) {
            let bytes = REDO_HEADER_BYTES + 16 * self.stores.len() as u64;
            copies::persist(mem, REDO_OFFSET, bytes);
        }
        self.apply(world);
        copies::store(mem, COUNT, 0);
        self.stores.clear();
    }

    /// Pages last: a client that sees an address there finds its memory allocated.
    fn apply<W: World>(&self, world: &W) {
        let in_pages = |offset: &u64| offset & REDO_PAGES_TAG != 0;
        for (offset, value) in self.stores.iter().filter(|(offset, _)| !in_pages(offset)) {
            copies::put(world.private(), *offset, *value);
        }
        let is_early = world.private().mutated(Mutation::FinishUndurableRedo);
        if world.private().is_persistent() && !is_early {
            let lasting = |offset: &u64| !in_pages(offset) && !is_volatile(*offset);
            for (offset, _) in self.stores.iter().filter(|(offset, _)| lasting(offset)) {
                copies::write_back(world.private(), *offset, 8);
            }
            copies::fence(world.private());
        }
        for (offset, value) in self.stores.iter().filter(|(offset, _)| in_pages(offset)) {
            let at = *offset & !REDO_PAGES_TAG;
            let range = ByteRange { offset: at, bytes: 8 };
            coherence::writing(world.pages(), range, |pages| pages.store(at, *value));
            let is_safe = is_early || persist_pages(world, at, 8).is_ok();
            assert!(is_safe, "a word that names an allocation cannot be made durable");
        }
    }

    fn checksum(&mut self) -> u64 {
        self.scratch.clear();
        self.scratch.extend_from_slice(&self.sequence.to_le_bytes());
        self.scratch.extend_from_slice(&(self.stores.len() as u64).to_le_bytes());
        for (offset, value) in &self.stores {
            self.scratch.extend_from_slice(&offset.to_le_bytes());
            self.scratch.extend_from_slice(&value.to_le_bytes());
        }
        xxhash_rust::xxh3::xxh3_64(&self.scratch)
    }
}

/// Whether a store of a committed record makes sense: an aligned word of the private section
/// behind the superblock and beside the record, or one of a page that lives.
fn may_store<M: Mem>(offset: u64, private: &M, layout: &RegionLayout) -> bool {
    if offset & REDO_PAGES_TAG != 0 {
        let offset = offset & !REDO_PAGES_TAG;
        let frame = offset >> layout.pages.page_shift();
        // Entries further up may have no memory yet.
        let high = copies::load(private, StateWord::FramesHigh.offset()).unwrap_or(0);
        let used = high.min(layout.frame_count.into());
        let Some(frame) = u32::try_from(frame).ok().filter(|frame| u64::from(*frame) < used) else {
            return false;
        };
        let state = copies::load(private, frame_word(FrameIndex(frame), FrameWord::State));
        let is_home = state.is_ok_and(|word| word as u8 == FrameState::Home as u8);
        return offset.is_multiple_of(8) && is_home;
    }
    let inside = (STATE_OFFSET..layout.copy_bytes()).contains(&offset);
    let apart = !(REDO_OFFSET..REDO_OFFSET + REDO_BYTES).contains(&offset);
    offset.is_multiple_of(8) && inside && apart
}
