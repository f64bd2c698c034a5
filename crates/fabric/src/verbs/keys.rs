//! The device's keys of a target's frames: which frames are open, under which generation, and
//! for which connection each is registered. Owns the registrations and the cells that announce open
//! frames.
//!
//! Rule, the same as for every access (`rackpool_core::target`): the frame is announced in a cell,
//! then its table word is compared with the generation, then it is registered. The thread that
//! frees the frame changes the word first, executes a barrier, and waits for the cells.
//! [`Keys::look`] finds that the word has changed, ends the registrations, and only then clears the
//! cell. Ending a registration returns when the device executes nothing more under it.
//!
//! Called by the target's thread, often: a thread that frees a frame waits for it.

use super::VerbsError;
use super::device::Domain;
use super::memory::{Region, Rights};
use rackpool_core::addr::{FrameIndex, Generation};
use rackpool_core::layout::{RegionLayout, table_word};
use rackpool_core::seam::{Mem, PeerId, RemoteAddr, WorkStatus};
use rackpool_mem::window::Window;

struct Open {
    frame: u32,
    key: Generation,
    regions: Vec<(PeerId, Region)>,
}

/// The open frames; the number of each is that of its cell.
pub(super) struct Keys {
    pages: Window,
    table: Window,
    cells: Window,
    layout: RegionLayout,
    open: Vec<Option<Open>>,
    /// The next one to give way.
    hand: usize,
    atomics: bool,
}

impl Keys {
    /// `cells` has a word for each frame that can be open at once.
    pub(super) fn new(
        pages: Window,
        table: Window,
        cells: Window,
        layout: RegionLayout,
        atomics: bool,
    ) -> Self {
        let open = (0..cells.bytes() / 8).map(|_| None).collect();
        Self { pages, table, cells, layout, open, hand: 0, atomics }
    }

    /// Whether any frame is open.
    pub(super) fn has_open(&self) -> bool {
        self.open.iter().any(Option::is_some)
    }

    /// Opens the frame at `at` for a connection: the device's key. `closed` learns of frames that
    /// had to give way. A frame that cannot be registered is an error of this machine.
    pub(super) fn open(
        &mut self,
        at: RemoteAddr,
        peer: PeerId,
        domain: &Domain,
        closed: &mut Vec<(PeerId, RemoteAddr)>,
    ) -> Result<WorkStatus, VerbsError> {
        let shift = self.layout.pages.page_shift();
        let frame = at.offset >> shift;
        if frame >= u64::from(self.layout.frame_count) {
            return Ok(WorkStatus::BadRange);
        }
        let frame = frame as u32;
        let is_it = |open: &Option<Open>| {
            open.as_ref().is_some_and(|open| open.frame == frame && open.key == at.key)
        };
        let index = match self.open.iter().position(is_it) {
            Some(index) => index,
            None => {
                let index = self.take_cell(closed);
                self.cells.announce(8 * index as u64, u64::from(frame) + 1);
                self.open[index] = Some(Open { frame, key: at.key, regions: Vec::new() });
                index
            }
        };
        // A generation of 0 means that the frame holds nothing.
        let word = self.table.load(table_word(FrameIndex(frame)));
        if at.key.0 == 0 || word != at.key.0 {
            self.close(index, closed);
            return Ok(WorkStatus::BadKey);
        }
        let page_bytes = self.layout.pages.page_bytes();
        let open = self.open[index].as_mut().expect("it was just found or made");
        let known = open.regions.iter().find(|(user, _)| *user == peer);
        if let Some((_, region)) = known {
            return Ok(WorkStatus::Done(region.remote_key().into()));
        }
        let offset = u64::from(frame) << shift;
        let page = self.pages.slice(offset, page_bytes);
        let rights = Rights::Remote { atomics: self.atomics && !at.key.is_shared() };
        let region = Region::of_window(domain, &page, offset, rights)?;
        let key = region.remote_key();
        open.regions.push((peer, region));
        Ok(WorkStatus::Done(key.into()))
    }

    /// A free cell, or one that is free after its frame gave way.
    fn take_cell(&mut self, closed: &mut Vec<(PeerId, RemoteAddr)>) -> usize {
        if let Some(index) = self.open.iter().position(Option::is_none) {
            return index;
        }
        let index = self.hand % self.open.len();
        self.hand = index + 1;
        self.close(index, closed);
        index
    }

    fn close(&mut self, index: usize, closed: &mut Vec<(PeerId, RemoteAddr)>) {
        let Some(Open { frame, key, regions }) = self.open[index].take() else { return };
        let offset = u64::from(frame) << self.layout.pages.page_shift();
        let at = RemoteAddr { offset, key };
        closed.extend(regions.iter().map(|(peer, _)| (*peer, at)));
        drop(regions);
        self.cells.store(8 * index as u64, 0);
    }

    /// Closes frames with a changed generation; whether there were any.
    pub(super) fn look(&mut self, closed: &mut Vec<(PeerId, RemoteAddr)>) -> bool {
        let mut any = false;
        for index in 0..self.open.len() {
            let Some(open) = &self.open[index] else { continue };
            if self.table.load(table_word(FrameIndex(open.frame))) != open.key.0 {
                self.close(index, closed);
                any = true;
            }
        }
        any
    }

    /// Ends what was registered for a connection; frames that no other connection has open are
    /// closed.
    pub(super) fn forget(&mut self, peer: PeerId) {
        for index in 0..self.open.len() {
            let Some(open) = &mut self.open[index] else { continue };
            open.regions.retain(|(user, _)| *user != peer);
            if open.regions.is_empty() {
                self.close(index, &mut Vec::new());
            }
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        for index in 0..self.open.len() {
            self.close(index, &mut Vec::new());
        }
    }
}
