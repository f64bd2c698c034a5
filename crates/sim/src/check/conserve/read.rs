//! Frames from a region's bytes.

use super::FrameAudit;
use rackpool_core::addr::FrameIndex;
use rackpool_core::layout::{FrameState, FrameWord, RegionLayout, frame_word, table_word};

/// Reads every frame of a region of this layout. `private` and `table` answer the word at an
/// offset of their section, `backed` whether a frame has memory, if that is known. A state that
/// is none is an error in words.
pub fn frames_of(
    layout: &RegionLayout,
    private: impl Fn(u64) -> u64,
    table: impl Fn(u64) -> u64,
    backed: impl Fn(u32) -> Option<bool>,
) -> Result<Vec<FrameAudit>, String> {
    let frame = |index: u32| {
        let word = |word| private(frame_word(FrameIndex(index), word));
        let state_word = word(FrameWord::State);
        let state = FrameState::from_byte(state_word as u8)
            .ok_or_else(|| format!("frame {index} has the unknown state {}", state_word as u8))?;
        let shift = (state_word >> 8) as u8;
        let slab = state == FrameState::Home && shift != 0;
        Ok(FrameAudit {
            frame: index,
            state,
            page: word(FrameWord::Page),
            generation: word(FrameWord::Generation),
            shift,
            first: state_word >> 16 & 1 == 1,
            span: (state_word >> 32) as u32,
            owner: word(FrameWord::Owner),
            table_generation: table(table_word(FrameIndex(index))),
            backed: backed(index),
            objects: if slab { objects(layout, index, shift, &private) } else { Vec::new() },
        })
    };
    (0..layout.frame_count).map(frame).collect()
}

fn objects(layout: &RegionLayout, frame: u32, shift: u8, private: impl Fn(u64) -> u64) -> Vec<u32> {
    let bitmap = layout.bitmap_offset(FrameIndex(frame));
    let capacity = layout.pages.page_bytes().checked_shr(u32::from(shift)).unwrap_or(0) as u32;
    let lives = |index: &u32| private(bitmap + u64::from(index / 64) * 8) >> (index % 64) & 1 == 1;
    (0..capacity).filter(lives).collect()
}
