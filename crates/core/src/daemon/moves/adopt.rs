//! Pages of a region that was lost, with the machine's memory, in a spill file that was not: a new
//! region of the rack takes them over, if the directory still has them where the file has them.
//!
//! In: the headers of all slots, between attach and the first connection to the master. Out: a
//! frame `Arriving` for each, and a question for it; the answer settles it as that about any page
//! that comes. A daemon that dies before the last answer leaves frames `Arriving`: the next one is
//! told of the same slots again, and asks the same. What the directory does not have there is given
//! back: it was freed, or has moved, or is another rack's. Then all slots without a page are made
//! empty, whatever they hold: what the file was told last before a kill or a loss of power may not
//! have been done.

use super::ArrivalStage;
use crate::addr::{FrameIndex, Generation, PageId};
use crate::daemon::frames::{FrameEntry, back_metadata};
use crate::daemon::{Daemon, World};
use crate::error::Result;
use crate::layout::AllocationKind;
use crate::spill::SlotHeader;
use crate::wire::{PageHome, PageMetadata};

/// What a header says of a page, as an old home would; `None` if that makes no sense.
fn metadata_of(header: SlotHeader) -> Option<PageMetadata> {
    let SlotHeader { state, lock_token, objects, .. } = header;
    let (is_first, span) = (state >> 16 & 1 == 1, (state >> 32) as u32);
    let kind = AllocationKind::ALL.get((state >> 17 & 7) as usize).copied()?;
    let run_index = if is_first { 0 } else { span };
    let run_more = if is_first { span.checked_sub(1)? } else { 0 };
    let (shift, history) = ((state >> 8) as u8, Default::default());
    Some(PageMetadata { shift, kind, objects, lock_token, history, run_index, run_more })
}

impl Daemon {
    /// Takes over what the spill file has of the rack's region before, if it is said to have some.
    /// To be called after attach and before [`Daemon::master_up`]; for the same slots again as long
    /// as [`SpillFile::slots_adopted`] was not called.
    ///
    /// # Errors
    /// If there is no memory for the metadata of slots.
    ///
    /// [`SpillFile::slots_adopted`]: crate::spill::SpillFile::slots_adopted
    pub fn adopt_slots<W: World>(
        &mut self,
        found: Vec<(u32, SlotHeader)>,
        world: &mut W,
    ) -> Result<()> {
        let slots = self.frames.slots();
        for (slot, header) in found {
            let frame = slots.start.saturating_add(slot);
            if slots.contains(&frame) {
                self.adopt_slot(frame, header, world)?;
            }
        }
        if self.moves.adopting.is_empty() {
            self.end_adoption(world);
        }
        Ok(())
    }

    /// What a header says is looked at as what another rack says.
    fn adopt_slot<W: World>(
        &mut self,
        frame: u32,
        header: SlotHeader,
        world: &mut W,
    ) -> Result<()> {
        let (page, old) = (header.page, header.generation);
        let from = PageHome { page, rack: self.rack, frame: FrameIndex(frame), generation: old };
        // If the daemon before died before it had the answer, attach has found the frame.
        let is_taken = self.moves.arriving.get(&frame).is_some_and(|one| one.page == page);
        let is_page = page.0 != 0 && page <= self.layout.pages.page_id_max();
        let is_new = !self.frames.by_page.contains_key(&page.0) && !self.frames.is_unused_id(page);
        let is_free = self.frames.free_in(&(frame..frame + 1), 1) == 1;
        let may_come = is_taken || is_page && is_new && is_free;
        let Some(keep) = metadata_of(header).filter(|_| may_come) else { return Ok(()) };
        if !is_taken {
            self.take_slot(frame, page, world)?;
        }
        if self.store_keep(frame, &keep, world).is_err() {
            self.drop_arrival(frame, "its header makes no sense", world);
            return Ok(());
        }
        let arrival = self.moves.arriving.get_mut(&frame).expect("it is taken");
        arrival.stage = ArrivalStage::Asking(from);
        self.moves.adopting.insert(frame);
        Ok(())
    }

    /// Makes a slot the new home of its page, as far as the directory will agree.
    fn take_slot<W: World>(&mut self, frame: u32, page: PageId, world: &mut W) -> Result<()> {
        let range = frame..frame + 1;
        if let Some((offset, bytes)) = self.frames.fresh_entries(1, &range) {
            back_metadata(world, offset, bytes)?;
        }
        let generation = Generation(self.frames.take_generations(world.private(), 1));
        let taken = self.frames.take(world.private(), 1, &range)[0];
        let entry = FrameEntry::arriving(page, generation);
        entry.store(world.private(), taken);
        self.frames.by_page.insert(page.0, taken);
        self.settle_move(taken, &entry, world);
        Ok(())
    }

    /// The directory has said of a frame where its page is; if it was the last slot that was to be
    /// adopted, the file is told.
    pub(super) fn note_adopted<W: World>(&mut self, frame: u32, world: &mut W) {
        if self.moves.adopting.remove(&frame) && self.moves.adopting.is_empty() {
            self.end_adoption(world);
        }
    }

    /// Empties what is free: nothing of it is to come any more.
    fn end_adoption<W: World>(&mut self, world: &mut W) {
        let slots = self.frames.slots();
        let mut next = slots.start;
        let used = (slots.start..self.frames.high).filter(|slot| !self.frames.free.contains(slot));
        for end in used.chain([slots.end]) {
            if next < end {
                world.punch_slots(next - slots.start, end - next);
            }
            next = end + 1;
        }
        world.slots_adopted();
    }
}
