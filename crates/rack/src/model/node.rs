//! A node: its frames, its pages, and the controller of remote memory with the map of the chunks
//! that it holds.

use super::manager::Chunk;
use super::pages::{PAGE_BYTES, Pages};
use crate::source::Access;
use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};

/// No page, or no flight.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Frames {
    count: u32,
    fresh: u32,
    back: Vec<u32>,
    /// The page in each frame that was ever used.
    owners: Vec<u32>,
    hand: u32,
}

/// Frames that are looked at for a victim.
const VICTIMS_SEEN: u32 = 8;

impl Frames {
    pub(super) fn new(bytes: u64) -> Frames {
        let count = (bytes / PAGE_BYTES) as u32;
        Frames { count, fresh: 0, back: Vec::new(), owners: Vec::new(), hand: 0 }
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        if let Some(frame) = self.back.pop() {
            return Some(frame);
        }
        (self.fresh < self.count).then(|| {
            self.fresh += 1;
            self.owners.push(NONE);
            self.fresh - 1
        })
    }

    pub(super) fn is_free(&self) -> bool {
        !self.back.is_empty() || self.fresh < self.count
    }

    pub(super) fn own(&mut self, frame: u32, page: u32) {
        self.owners[frame as usize] = page;
    }

    /// Of the next few frames the one with the page used least in this window, and how often.
    pub(super) fn victim(&mut self, pages: &Pages, window: u32) -> Option<(u32, u32, u32)> {
        let used = self.owners.len() as u32;
        let mut best: Option<(u32, u32, u32)> = None;
        for _ in 0..VICTIMS_SEEN.min(used) {
            let frame = self.hand % used;
            self.hand = frame + 1;
            let owner = self.owners[frame as usize];
            if owner == NONE || pages.page(owner).is_moving {
                continue;
            }
            let page = pages.page(owner);
            let heat = if page.window == window { page.heat } else { 0 };
            if best.is_none_or(|(.., least)| heat < least) {
                best = Some((frame, owner, heat));
            }
        }
        best
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct HeldChunk {
    chunk: Chunk,
    fresh: u32,
    back: Vec<u32>,
    live: u32,
}

/// The controller's map of chunks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Controller {
    chunk_pages: u32,
    held: Vec<Option<HeldChunk>>,
    /// Numbers of the map that are free again.
    gaps: Vec<u32>,
    /// Chunks with free pages, the newest last.
    open: Vec<u32>,
    count: u32,
}

impl Controller {
    pub(super) fn new(chunk_pages: u32) -> Controller {
        Controller { chunk_pages, held: Vec::new(), gaps: Vec::new(), open: Vec::new(), count: 0 }
    }

    /// A free page of a chunk that the node holds.
    pub(super) fn take_page(&mut self) -> Option<u32> {
        let number = *self.open.last()?;
        let held = self.held[number as usize].as_mut().expect("an open chunk is held");
        let page = held.back.pop().unwrap_or_else(|| {
            held.fresh += 1;
            held.fresh - 1
        });
        held.live += 1;
        if held.live == self.chunk_pages {
            self.open.pop();
        }
        Some(number * self.chunk_pages + page)
    }

    pub(super) fn hold(&mut self, chunk: Chunk) {
        let held = HeldChunk { chunk, fresh: 0, back: Vec::new(), live: 0 };
        let number = self.gaps.pop().unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() as u32 - 1
        });
        self.held[number as usize] = Some(held);
        self.open.push(number);
        self.count += 1;
    }

    /// A page is free again; its chunk, if nothing is in it any more and another one is open.
    pub(super) fn free_page(&mut self, slot: u32) -> Option<Chunk> {
        let number = slot / self.chunk_pages;
        let held = self.held[number as usize].as_mut().expect("the page's chunk is held");
        if held.live == self.chunk_pages {
            self.open.push(number);
        }
        held.live -= 1;
        held.back.push(slot % self.chunk_pages);
        if held.live > 0 || self.open.len() == 1 {
            return None;
        }
        self.open.retain(|open| *open != number);
        self.gaps.push(number);
        self.count -= 1;
        self.held[number as usize].take().map(|held| held.chunk)
    }

    /// The pool and the address in it of a page.
    #[inline]
    pub(super) fn locate(&self, slot: u32) -> (u16, u64) {
        let held = self.held[(slot / self.chunk_pages) as usize].as_ref();
        let Chunk { pool, number } = held.expect("the page's chunk is held").chunk;
        let page = u64::from(number) * u64::from(self.chunk_pages);
        (pool, (page + u64::from(slot % self.chunk_pages)) * PAGE_BYTES)
    }

    /// Steps of a search in the map: ceil(log2(chunks + 1)).
    #[inline]
    pub(super) fn lookup_steps(&self) -> u64 {
        u64::from(u32::BITS - self.count.leading_zeros())
    }

    /// All chunks; none is held any more.
    pub(super) fn release(&mut self) -> Vec<Chunk> {
        (self.open, self.gaps, self.count) = (Vec::new(), Vec::new(), 0);
        self.held.drain(..).flatten().map(|held| held.chunk).collect()
    }
}

/// A line in the controller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Buffered {
    /// Page and line.
    pub(super) line: u64,
    pub(super) state: LineState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LineState {
    Empty,
    /// It was asked for; an access may wait for it.
    Coming(u32),
    Here,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Node {
    pub(super) workload: u16,
    pub(super) rack: u16,
    pub(super) pages: Pages,
    pub(super) frames: Frames,
    pub(super) controller: Controller,
    pub(super) buffer: Vec<Buffered>,
    /// Of alternate pages: whether the next one is the pools'.
    pub(super) is_others_turn: bool,
    pub(super) is_exhausted: bool,
    /// The access that begins next.
    pub(super) next: Option<Access>,
    /// Accesses that were taken from the source, with the next one.
    pub(super) taken: u64,
    /// Accesses that began and are not over.
    pub(super) flying: u32,
    pub(super) moves: u32,
    /// How much later it is than its trace.
    pub(super) shift: Ps,
    /// Since when it waits for an access to be over.
    pub(super) stalled: Option<Ps>,
    pub(super) is_released: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pages::PageLocation;

    #[test]
    fn pages_of_chunks_are_given_out_once_and_empty_chunks_go_back() {
        let mut controller = Controller::new(4);
        assert_eq!((controller.take_page(), controller.lookup_steps()), (None, 0));
        controller.hold(Chunk { pool: 3, number: 7 });
        let first: Vec<u32> = std::iter::from_fn(|| controller.take_page()).collect();
        assert_eq!(first, [0, 1, 2, 3]);
        assert_eq!(controller.locate(2), (3, (7 * 4 + 2) * PAGE_BYTES));
        controller.hold(Chunk { pool: 1, number: 0 });
        assert_eq!(controller.lookup_steps(), 2);
        assert_eq!(controller.take_page(), Some(4));
        for slot in [1, 0, 3] {
            assert_eq!(controller.free_page(slot), None);
        }
        // The other chunk is open, so the empty one goes.
        assert_eq!(controller.free_page(2), Some(Chunk { pool: 3, number: 7 }));
        assert_eq!(controller.free_page(4), None, "the last open one stays");
        controller.hold(Chunk { pool: 2, number: 5 });
        assert_eq!(controller.take_page(), Some(0), "its number in the map is used again");
        assert_eq!(controller.release().len(), 2);
    }

    #[test]
    fn the_coldest_of_the_next_frames_is_the_victim() {
        let (mut frames, mut pages) = (Frames::new(16 * PAGE_BYTES), Pages::default());
        for heat in [9, 5, 7, 8] {
            let frame = frames.take().unwrap();
            let page = pages.add(heat.into(), PageLocation::Local(frame));
            frames.own(frame, page);
            (pages.page_mut(page).window, pages.page_mut(page).heat) = (1, heat);
        }
        assert_eq!(frames.victim(&pages, 1), Some((1, 1, 5)));
        pages.page_mut(1).is_moving = true;
        assert_eq!(frames.victim(&pages, 1), Some((2, 2, 7)));
        assert!(frames.is_free());
        assert_eq!(frames.victim(&pages, 2).map(|victim| victim.2), Some(0), "a window later");
    }
}
