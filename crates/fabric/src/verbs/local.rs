//! The endpoint's local memory as its device sees it: slots of registered memory through which
//! short data goes, and registrations of local buffers for long data.
//!
//! Short data is copied, since registering costs more than copying it; long data goes straight
//! from and to the buffers, which are registered at their first such use and until they go.

use super::VerbsError;
use super::device::{Device, Domain};
use super::memory::{Region, Rights};
use crate::buffers::Buffers;
use rackpool_core::seam::{BufId, Mem, Sge};
use rackpool_mem::window::Window;
use std::collections::BTreeMap;

/// Data up to this length is copied.
pub(super) const STAGED_BYTES_MAX: u64 = 16 << 10;
const SLOTS: u16 = 128;

/// A piece of registered memory: its region, the offset in it, and its bytes.
pub(super) type Part<'a> = (&'a Region, u64, u64);

/// The local memory of an endpoint.
pub(super) struct Locals {
    pub(super) buffers: Buffers,
    pub(super) domain: Domain,
    slots: Window,
    region: Region,
    free: Vec<u16>,
    /// Registrations, by the buffers' ids.
    pinned: BTreeMap<u32, Region>,
}

impl Locals {
    pub(super) fn new(device: &Device) -> Result<Self, VerbsError> {
        let domain = Domain::new(device)?;
        let slots = Window::private(u64::from(SLOTS) * STAGED_BYTES_MAX);
        let slots = slots.map_err(|error| VerbsError::Os {
            what: "memory for data on its way",
            code: error.raw_os_error().unwrap_or(0),
        })?;
        let region = Region::of_window(&domain, &slots, 0, Rights::Local { writable: true })?;
        let free = (0..SLOTS).collect();
        Ok(Self { buffers: Buffers::new(), domain, slots, region, free, pinned: BTreeMap::new() })
    }

    pub(super) fn take_slot(&mut self) -> Option<u16> {
        self.free.pop()
    }

    pub(super) fn free_slot(&mut self, slot: u16) {
        self.free.push(slot);
    }

    /// Copies pieces of buffers to a place in a window.
    pub(super) fn gather(&self, pieces: &[Sge], window: &Window, mut offset: u64) {
        for piece in pieces {
            window.copy_in(offset, self.buffers.slice(piece));
            offset += piece.bytes;
        }
    }

    /// Copies pieces into a slot.
    pub(super) fn stage(&self, slot: u16, pieces: &[Sge]) {
        self.gather(pieces, &self.slots, offset_of(slot));
    }

    /// Copies a slot out into pieces.
    pub(super) fn unstage(&mut self, slot: u16, pieces: &[Sge]) {
        let mut offset = offset_of(slot);
        for piece in pieces {
            self.slots.copy_out(offset, self.buffers.slice_mut(piece));
            offset += piece.bytes;
        }
    }

    /// The first word of a slot.
    pub(super) fn word(&self, slot: u16) -> u64 {
        self.slots.load(offset_of(slot))
    }

    /// The first bytes of a slot.
    pub(super) fn slot(&self, slot: u16, bytes: u64) -> Part<'_> {
        (&self.region, offset_of(slot), bytes)
    }

    /// Registers the buffers of pieces that are not registered yet.
    pub(super) fn pin(&mut self, pieces: &[Sge], writable: bool) -> Result<(), VerbsError> {
        for piece in pieces.iter().filter(|piece| piece.bytes > 0) {
            if self.pinned.contains_key(&piece.buf.0) {
                continue;
            }
            let (memory, is_writable) = self.buffers.whole_memory(piece.buf);
            debug_assert!(is_writable || !writable, "checked when it was posted");
            let rights = Rights::Local { writable: is_writable };
            // Its own address, which lies in its page as the memory does; no other process learns
            // it.
            let address = memory.cast::<u8>().as_ptr() as u64;
            // SAFETY: the buffer is in the table; before it leaves that, `let_go` has waited for
            // the work that uses it, and `unpin` has ended this. The table's rules and
            // `require_idle` keep all other code away from pieces that are in use.
            let region = unsafe { Region::of_memory(&self.domain, memory, address, rights) }?;
            self.pinned.insert(piece.buf.0, region);
        }
        Ok(())
    }

    /// Ends the registrations of buffers for which `named` holds.
    pub(super) fn unpin(&mut self, named: impl Fn(BufId) -> bool) {
        self.pinned.retain(|buf, _| !named(BufId(*buf)));
    }

    /// A piece of a registered buffer.
    pub(super) fn part(&self, piece: &Sge) -> Part<'_> {
        (&self.pinned[&piece.buf.0], piece.offset, piece.bytes)
    }
}

fn offset_of(slot: u16) -> u64 {
    u64::from(slot) * STAGED_BYTES_MAX
}
