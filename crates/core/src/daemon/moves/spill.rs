//! Moves of pages between memory and the slots of the spill file: as between two memories
//! (`tiers.rs`), with the file where that copies.
//!
//! ```text
//! in memory    frame Home
//! going out    frame Departing, shut and drained; slot Arriving: written, sealed, then asked for
//! on SSD       slot Home, its table word 0
//! coming back  slot Home, frame Arriving: backed, filled, its sum compared; slot Departing, asked
//! ```
//!
//! Before the directory is asked for the slot that is durable, and before it is asked for the frame
//! that is filled. Its answer settles both, so whatever dies at whatever step leaves the page in
//! one of them with its bytes: attach asks about what is `Arriving` or `Departing`.
//!
//! The file has one job at a time, and may be slow or fail: a page that goes out is opened again
//! then, one that comes back stays where it is and its askers hear of the error. A job that was
//! left alone is waited for before the next one.

use super::tiers::{TierMove, TierMoveStage};
use super::{Departure, DepartureStage, OWN_MOVES, broken, stays};
use crate::addr::{FrameIndex, Generation, PageId};
use crate::coherence;
use crate::constants::TIER_COPY_BYTES;
use crate::copies;
use crate::daemon::frames::{FrameEntry, state_offset};
use crate::daemon::{Daemon, World};
use crate::error::{Error, Result};
use crate::layout::FrameState;
use crate::seam::{ByteRange, Mem, Mutation, Probe};
use crate::spill::{SlotHeader, SpillDone, SpillJob, add_to_sum, damaged};

impl Daemon {
    /// Begins to bring a page back that is at home in a slot; the caller knows that there is a free
    /// frame of memory.
    pub(in crate::daemon) fn begin_return<W: World>(
        &mut self,
        page: PageId,
        world: &mut W,
    ) -> Result<()> {
        let from = *self.frames.by_page.get(&page.0).expect("the caller saw it in a slot");
        let memory = self.frames.memory();
        self.start_tier_move(page, from, &memory, world)
    }

    /// Waits for the end of a job that a move left alone.
    pub(super) fn end_stray_job<W: World>(&mut self, world: &mut W) {
        if self.moves.is_file_busy {
            self.moves.is_file_busy = world.spill_ended().is_none();
        }
    }

    fn begin_job<W: World>(&mut self, job: SpillJob, world: &mut W) {
        assert!(!self.moves.is_file_busy, "the file has one job at a time");
        self.moves.is_file_busy = true;
        world.begin_spill(job);
    }

    fn slot(&self, frame: u32) -> u32 {
        frame - self.frames.slots().start
    }

    /// How long the piece of a page is that begins at a place.
    fn piece_bytes(&self, done: u64) -> u64 {
        TIER_COPY_BYTES.min(self.layout.pages.page_bytes() - done)
    }

    /// A page that goes out is shut: a piece of it is given to the file.
    pub(super) fn write_piece<W: World>(
        &mut self,
        tier_move: &TierMove,
        done: u64,
        world: &mut W,
    ) -> Result<TierMove> {
        let bytes = self.piece_bytes(done);
        let at = self.layout.frame_offset(FrameIndex(tier_move.from)) + done;
        let mut data = vec![0; bytes as usize];
        let range = ByteRange { offset: at, bytes };
        coherence::reading(world.pages(), range, |pages| pages.copy_out(at, &mut data));
        let sum = add_to_sum(tier_move.sum, &data);
        let slot = self.slot(tier_move.to);
        self.begin_job(SpillJob::Write { slot, offset: done, data }, world);
        Ok(TierMove { sum, stage: TierMoveStage::Writing(done + bytes), ..*tier_move })
    }

    /// A frame has memory for the page of a slot: first the slot's header is read.
    pub(super) fn open_slot<W: World>(
        &mut self,
        tier_move: &TierMove,
        world: &mut W,
    ) -> Result<TierMoveStage> {
        let slot = self.slot(tier_move.from);
        self.begin_job(SpillJob::ReadHeader { slot }, world);
        Ok(TierMoveStage::Opening)
    }

    /// Goes on with a page between memory and the file, if the file has done its part.
    pub(super) fn advance_job<W: World>(
        &mut self,
        tier_move: &TierMove,
        world: &mut W,
    ) -> Result<TierMove> {
        let TierMove { page, from, stage, .. } = *tier_move;
        if self.frames.is_slot(from) && !self.is_home_in_slot(from, page, world) {
            return stays(page, "it is being freed");
        }
        let Some(ended) = world.spill_ended() else { return Ok(*tier_move) };
        self.moves.is_file_busy = false;
        let page_bytes = self.layout.pages.page_bytes();
        match (stage, ended?) {
            (TierMoveStage::Writing(done), SpillDone::Written) if done < page_bytes => {
                self.write_piece(tier_move, done, world)
            }
            (TierMoveStage::Writing(_), SpillDone::Written) => self.seal(tier_move, world),
            (TierMoveStage::Sealing, SpillDone::Sealed) => self.ask_for(tier_move, world),
            (TierMoveStage::Opening, SpillDone::Read(header)) => {
                self.check_header(tier_move, &header, world)
            }
            (TierMoveStage::Filling(done), SpillDone::Read(data)) => {
                self.fill_piece(tier_move, done, &data, world)
            }
            (_, done) => broken(format!("the spill file did something else: {done:?}")),
        }
    }

    /// All of a page is written: its slot becomes durable with what it is.
    fn seal<W: World>(&mut self, tier_move: &TierMove, world: &mut W) -> Result<TierMove> {
        let TierMove { page, from, to, generation, sum, .. } = *tier_move;
        let entry = FrameEntry::load_checked(world.private(), from);
        let objects = match entry.shift {
            0 => Vec::new(),
            shift => self.slabs.bitmap_words(world.private(), from, shift)?,
        };
        let state = entry.state_word(FrameState::Home);
        let lock_token = self.locks.token_last();
        let header = SlotHeader { page, generation, lock_token, sum, state, objects }.encode();
        let slot = self.slot(to);
        self.begin_job(SpillJob::Seal { slot, header }, world);
        if world.private().mutated(Mutation::SkipSeal) {
            return self.ask_for(tier_move, world);
        }
        Ok(TierMove { stage: TierMoveStage::Sealing, ..*tier_move })
    }

    fn ask_for<W: World>(&mut self, tier_move: &TierMove, world: &mut W) -> Result<TierMove> {
        let stage = self.ask_tier_move(tier_move, world)?;
        Ok(TierMove { stage, ..*tier_move })
    }

    /// A slot's header says what its bytes have to add up to.
    fn check_header<W: World>(
        &mut self,
        tier_move: &TierMove,
        header: &[u8],
        world: &mut W,
    ) -> Result<TierMove> {
        let TierMove { page, from, .. } = *tier_move;
        let header = SlotHeader::decode(header).filter(|header| header.page == page);
        let Some(header) = header else {
            return Err(damaged(self.slot(from), page, "the slot has no header of it"));
        };
        let next = TierMove { expected_sum: header.sum, sum: 0, ..*tier_move };
        self.read_piece(&next, 0, world)
    }

    fn read_piece<W: World>(
        &mut self,
        tier_move: &TierMove,
        done: u64,
        world: &mut W,
    ) -> Result<TierMove> {
        let (slot, bytes) = (self.slot(tier_move.from), self.piece_bytes(done));
        self.begin_job(SpillJob::Read { slot, offset: done, bytes }, world);
        Ok(TierMove { stage: TierMoveStage::Filling(done), ..*tier_move })
    }

    /// A piece of a page has come back; after the last one the directory is asked to name its
    /// frame.
    fn fill_piece<W: World>(
        &mut self,
        tier_move: &TierMove,
        done: u64,
        data: &[u8],
        world: &mut W,
    ) -> Result<TierMove> {
        let TierMove { page, from, to, expected_sum, .. } = *tier_move;
        let bytes = self.piece_bytes(done);
        if data.len() as u64 != bytes {
            let what = format!("{} of {bytes} bytes were read", data.len());
            return Err(damaged(self.slot(from), page, &what));
        }
        let at = self.layout.frame_offset(FrameIndex(to)) + done;
        let range = ByteRange { offset: at, bytes };
        coherence::writing(world.pages(), range, |pages| pages.copy_in(at, data));
        self.persist_piece(at, bytes, world)?;
        let next = TierMove { sum: add_to_sum(tier_move.sum, data), ..*tier_move };
        let done = done + bytes;
        if done < self.layout.pages.page_bytes() {
            return self.read_piece(&next, done, world);
        }
        if next.sum != expected_sum && !world.private().mutated(Mutation::TrustSlot) {
            return Err(damaged(self.slot(from), page, "the slot's bytes are others"));
        }
        self.check_master(page)?;
        self.leave_slot(from, world);
        let asked = self.ask_for(&next, world)?;
        if world.private().mutated(Mutation::FreeSlotEarly) {
            self.gone(from, world);
        }
        Ok(asked)
    }

    /// A page is about to be at home in memory again: from now on the directory says where it is.
    fn leave_slot<W: World>(&mut self, slot: u32, world: &mut W) {
        let entry = FrameEntry::load_checked(world.private(), slot);
        let FrameEntry { page, generation, .. } = entry;
        let key = Generation(self.frames.take_generations(world.private(), 2));
        let reopen = Generation(key.0 + 1);
        let word = entry.state_word(FrameState::Departing);
        copies::store(world.private(), state_offset(slot), word);
        self.uncount(slot, &entry);
        let (record, asker, since) = (OWN_MOVES, None, None);
        let stage = DepartureStage::Shut;
        let departure = Departure { page, generation, key, reopen, record, asker, stage, since };
        self.moves.departing.insert(slot, departure);
    }

    /// A move to or from the file was given up; why.
    pub(super) fn note_given_up<W: World>(
        &mut self,
        tier_move: &TierMove,
        error: Error,
        world: &mut W,
    ) {
        if self.frames.is_slot(tier_move.from) {
            return self.return_failed(tier_move.page, error, world);
        }
        if self.frames.is_slot(tier_move.to) {
            let now = self.heat.now;
            self.spilling.note(false, now);
            if !matches!(error, Error::Stays { .. }) {
                // The file, or the memory for its metadata: it is the same for the next page.
                self.spilling.give_up(now);
            }
        }
    }
}
