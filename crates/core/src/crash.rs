//! What a process that died in the midst of something may have left in the caches of its host,
//! where software keeps the hosts of a memory coherent: it is written back before any process is
//! told of the death. See `coherence.rs`.

use crate::addr::FrameIndex;
use crate::constants::CELLS;
use crate::layout::{RegionLayout, cell_offset};
use crate::seam::{Mem, Mutation};

/// Writes back what a dead process may have left in the caches of its host: its slot section, and
/// the frames that its cells announce. Called on that host by the process that reports it dead,
/// before the report. `slot` and `pages` are that host's views; so many frames are memory.
pub fn flush_client(slot: &impl Mem, pages: &impl Mem, layout: &RegionLayout, frames: u32) {
    if pages.is_coherent() || pages.mutated(Mutation::LeaveDeadLines) {
        return;
    }
    for cell in 0..CELLS {
        let frame = slot.load(cell_offset(cell)).checked_sub(1);
        let frame = frame.and_then(|frame| u32::try_from(frame).ok()).map(FrameIndex);
        if let Some(frame) = frame.filter(|frame| frame.0 < frames) {
            pages.flush(layout.frame_offset(frame), layout.pages.page_bytes());
        }
    }
    slot.flush(0, slot.bytes());
}

/// Writes back what a daemon that died, or the thread that executed for others beside it, may have
/// left: what they were doing is unknown. Called by its successor, before it serves.
pub fn flush_daemon(table: &impl Mem, pages: &impl Mem, layout: &RegionLayout, frames: u32) {
    if pages.is_coherent() || pages.mutated(Mutation::LeaveLinesAtAttach) {
        return;
    }
    table.flush(0, layout.table_bytes());
    pages.flush(0, u64::from(frames) * layout.pages.page_bytes());
}
