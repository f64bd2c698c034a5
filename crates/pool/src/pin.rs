//! Pins: direct access to a piece of a mapped page that stays where it is meanwhile. A pin holds
//! an announce cell of its handle's slot; a process that wants the frame changes its table word
//! (the notice) and waits for the cell. A pin keeps its slot's connection, because a client unmaps
//! before it closes.

use crate::links::Links;
use crate::local::SlotLease;
use rackpool_core::client::{Client, Miss, Pinned};
use rackpool_core::constants::CELLS;
use rackpool_core::layout::{cell_offset, table_word};
use rackpool_core::seam::Mem;
use rackpool_core::{Error, FrameIndex, GAddr, Generation, Result};
use rackpool_mem::window::Window;
use std::ptr::NonNull;
use std::sync::Arc;

/// A pinned piece of memory. Offsets count from its start; an offset outside panics.
#[derive(Debug)]
pub struct Pin {
    memory: Window,
    table: Window,
    slot: Window,
    frame: FrameIndex,
    generation: Generation,
    cell: u32,
    // Last: the connection outlives the mappings.
    lease: Arc<SlotLease>,
}

impl Pin {
    /// Length, bytes.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// The first byte, for programs that are not in Rust: there until the drop, with others that
    /// read and write it meanwhile.
    pub fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    /// Whether the page is wanted elsewhere, or was freed: finish and drop the pin.
    pub fn is_revoked(&self) -> bool {
        self.table.load(table_word(self.frame)) != self.generation.0
    }

    /// Reads at an offset; aligned pieces of up to 8 bytes at once.
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        self.memory.copy_out(offset, to);
    }

    /// Writes at an offset, under the same rule.
    pub fn write(&self, offset: u64, from: &[u8]) {
        self.memory.copy_in(offset, from);
    }

    /// Loads the aligned word at an offset.
    pub fn load(&self, offset: u64) -> u64 {
        self.memory.load(offset)
    }

    /// Stores the aligned word at an offset.
    pub fn store(&self, offset: u64, value: u64) {
        self.memory.store(offset, value);
    }

    /// Compares and swaps the aligned word at an offset; `Err` is the value that was there.
    pub fn cas(&self, offset: u64, expected: u64, new: u64) -> std::result::Result<u64, u64> {
        self.memory.compare_exchange(offset, expected, new)
    }

    /// Adds to the aligned word at an offset; the value before.
    pub fn fetch_add(&self, offset: u64, n: u64) -> u64 {
        self.memory.fetch_add(offset, n)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.slot.store(cell_offset(self.cell), 0);
        self.lease.give_cell_back(self.cell);
    }
}

/// Pins a piece; `None` if its page has to be located first.
pub(crate) fn pin(
    client: &Client<Window>,
    links: &Links,
    addr: GAddr,
    bytes: u64,
) -> Result<Option<Pin>> {
    if !addr.0.is_multiple_of(8) {
        return Err(Error::Misaligned { addr, align_bytes: 8 });
    }
    let link = match client.translation(client.geometry().page(addr)) {
        None => return Ok(None),
        Some(entry) => entry.link,
    };
    let denied = || Error::Denied {
        reason: format!("{addr} is in a rack that is not mapped here, so it cannot be pinned"),
    };
    let lease = links.lease(link).ok_or_else(denied)?;
    let cell = lease.take_cell().ok_or_else(|| Error::Busy {
        what: "pins of this handle".into(),
        limit: u64::from(CELLS) - 1,
    })?;
    match client.pin(addr, bytes, cell) {
        Ok(Pinned { view, offset, entry, .. }) => Ok(Some(Pin {
            memory: view.pages.slice(offset, bytes),
            table: view.table.clone(),
            slot: view.slot.clone(),
            frame: entry.frame,
            generation: entry.generation,
            cell,
            lease,
        })),
        Err(miss) => {
            lease.give_cell_back(cell);
            match miss {
                Miss::Unknown | Miss::Shared(_) => Ok(None),
                Miss::OneSided(..) => Err(denied()),
                Miss::Apart(_) => Err(Error::Denied {
                    reason: format!(
                        "{addr} is in memory that is kept coherent by software, which a pin goes \
                         around: use reads and writes"
                    ),
                }),
                Miss::CrossesPage => {
                    Err(Error::OutOfBounds { addr, bytes, limit_bytes: client.bytes_in_page(addr) })
                }
            }
        }
    }
}
