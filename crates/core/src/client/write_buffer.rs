//! The write buffer: small writes to another rack under a write lock, gathered in order of address
//! until they are flushed in a batch.
//!
//! In: writes ([`WriteBuffer::put`]), whole or not at all. Out: pieces for a
//! [`Transfer`](super::Transfer) in order of address, adjacent ones merged, with their bytes side
//! by side ([`WriteBuffer::leave`]); and what a read has to show of all this
//! ([`WriteBuffer::cover`], [`WriteBuffer::overlay`]). The buffer has two halves: one fills while
//! the pieces of the other are under way. It knows nothing of locks: its owner puts only what a
//! held lock covers, and flushes before the lock is given back (decision 0020).
//!
//! A piece holds whole writes, save what later writes have replaced: so if targets apply pieces of
//! this length whole or not at all, no process ever sees a part of a write. Source: Rcmp §5.4.

use super::Piece;
use crate::addr::{GAddr, PageGeometry};
use crate::constants::{BUFFERED_PIECE_BYTES_MAX, LOCK_ALIGN_BYTES};
use std::collections::BTreeMap;

/// Where the bytes of a run of buffered addresses are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    /// In the half's bytes.
    offset: u32,
    bytes: u32,
}

/// How much of a read the buffer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    None,
    Part,
    Whole,
}

/// Writes that are not at home yet.
#[derive(Debug)]
pub struct WriteBuffer {
    geometry: PageGeometry,
    half_bytes: usize,
    extents_max: usize,
    /// The half that fills: disjoint runs by address, their bytes in the order of the calls.
    filling: BTreeMap<u64, Extent>,
    data: Vec<u8>,
    /// The half under way, in order of address, and where each piece is in the packed bytes.
    leaving: Vec<Piece>,
    leaving_at: Vec<u64>,
}

impl WriteBuffer {
    /// An empty buffer of two halves of `half_bytes` bytes.
    pub fn new(geometry: PageGeometry, half_bytes: u32) -> Self {
        let extents_max = (u64::from(half_bytes) / LOCK_ALIGN_BYTES).max(1) as usize;
        Self {
            geometry,
            half_bytes: half_bytes as usize,
            extents_max,
            filling: BTreeMap::new(),
            data: Vec::with_capacity(half_bytes as usize),
            leaving: Vec::with_capacity(extents_max),
            leaving_at: Vec::with_capacity(extents_max),
        }
    }

    /// Bytes of a half: what [`WriteBuffer::leave`] packs at most.
    pub fn half_bytes(&self) -> usize {
        self.half_bytes
    }

    /// Whether everything that was put is at home.
    pub fn is_empty(&self) -> bool {
        self.filling.is_empty() && self.leaving.is_empty()
    }

    /// Whether the half that fills holds anything.
    pub fn is_filling(&self) -> bool {
        !self.filling.is_empty()
    }

    /// Whether pieces are under way.
    pub fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Takes a write within one page; `false`, and nothing is taken, if the half has no room.
    pub fn put(&mut self, addr: GAddr, from: &[u8]) -> bool {
        let (first, end) = (addr.0, addr.0 + from.len() as u64);
        if from.is_empty() {
            return true;
        }
        if let Some((at, extent)) = self.filling.range(..=first).next_back()
            && at + u64::from(extent.bytes) >= end
        {
            let start = extent.offset as usize + (first - at) as usize;
            self.data[start..start + from.len()].copy_from_slice(from);
            return true;
        }
        // Cutting a run in two adds one, the write another.
        if self.data.len() + from.len() > self.half_bytes
            || self.filling.len() + 2 > self.extents_max
        {
            return false;
        }
        self.cut(first, end);
        let offset = self.data.len() as u32;
        self.data.extend_from_slice(from);
        self.filling.insert(first, Extent { offset, bytes: from.len() as u32 });
        true
    }

    /// Takes addresses out of the half that fills.
    fn cut(&mut self, first: u64, end: u64) {
        if let Some((at, extent)) = self.filling.range(..first).next_back() {
            let (at, Extent { offset, bytes }) = (*at, *extent);
            let over = at + u64::from(bytes);
            if over > first {
                let kept = (first - at) as u32;
                self.filling.insert(at, Extent { offset, bytes: kept });
            }
            if over > end {
                let skipped = (end - at) as u32;
                let rest = Extent { offset: offset + skipped, bytes: bytes - skipped };
                self.filling.insert(end, rest);
            }
        }
        while let Some((at, extent)) = self.filling.range(first..end).next() {
            let (at, Extent { offset, bytes }) = (*at, *extent);
            self.filling.remove(&at);
            let over = at + u64::from(bytes);
            if over > end {
                let skipped = (end - at) as u32;
                let rest = Extent { offset: offset + skipped, bytes: bytes - skipped };
                self.filling.insert(end, rest);
            }
        }
    }

    /// How much of a read is here.
    pub fn cover(&self, addr: GAddr, bytes: u64) -> Cover {
        let (mut at, end) = (addr.0, addr.0 + bytes);
        while at < end {
            match self.run_at(at) {
                Some(over) => at = over,
                None if at > addr.0 || self.meets(at, end) => return Cover::Part,
                None => return Cover::None,
            }
        }
        Cover::Whole
    }

    /// The end of a run of buffered bytes that begins at or before `at`.
    fn run_at(&self, at: u64) -> Option<u64> {
        let filling = self.filling.range(..=at).next_back();
        let filling = filling.map(|(first, extent)| first + u64::from(extent.bytes));
        let leaving = self.leaving[..self.leaving_from(at + 1)].last();
        let leaving = leaving.map(|piece| piece.addr.0 + piece.bytes);
        filling.into_iter().chain(leaving).filter(|end| *end > at).max()
    }

    /// Whether anything here lies between two addresses.
    fn meets(&self, first: u64, end: u64) -> bool {
        let leaving = self.leaving.get(self.leaving_from(first));
        self.run_at(first).is_some()
            || self.filling.range(first..end).next().is_some()
            || leaving.is_some_and(|piece| piece.addr.0 < end)
    }

    /// The index of the first piece under way that begins at `at` or after it.
    fn leaving_from(&self, at: u64) -> usize {
        self.leaving.partition_point(|piece| piece.addr.0 < at)
    }

    /// Puts what is here of a read over what memory said. `packed`: what [`WriteBuffer::leave`]
    /// filled.
    pub fn overlay(&self, addr: GAddr, to: &mut [u8], packed: &[u8]) {
        let end = addr.0 + to.len() as u64;
        let mut show = |at: u64, bytes: u64, from: &[u8], offset: u64| {
            let (first, last) = (at.max(addr.0), (at + bytes).min(end));
            if first < last {
                let start = (offset + first - at) as usize;
                let part = &from[start..start + (last - first) as usize];
                to[(first - addr.0) as usize..(last - addr.0) as usize].copy_from_slice(part);
            }
        };
        let from = self.leaving_from(addr.0 + 1).saturating_sub(1);
        for (piece, offset) in self.leaving[from..].iter().zip(&self.leaving_at[from..]) {
            if piece.addr.0 >= end {
                break;
            }
            show(piece.addr.0, piece.bytes, packed, *offset);
        }
        let before = self.filling.range(..=addr.0).next_back();
        let within = self.filling.range(addr.0 + 1..end.max(addr.0 + 1));
        for (at, extent) in before.into_iter().chain(within) {
            show(*at, u64::from(extent.bytes), &self.data, u64::from(extent.offset));
        }
    }

    /// Empties the half that fills into `packed` and names the pieces to be sent from there; the
    /// pieces before must have come home. How many bytes are packed.
    pub fn leave(&mut self, packed: &mut [u8]) -> usize {
        assert!(self.leaving.is_empty(), "one half is under way at a time");
        let mut used = 0;
        for (at, extent) in &self.filling {
            let bytes = u64::from(extent.bytes);
            let from = &self.data[extent.offset as usize..][..extent.bytes as usize];
            packed[used..used + from.len()].copy_from_slice(from);
            match self.leaving.last_mut() {
                Some(piece)
                    if piece.addr.0 + piece.bytes == *at
                        && piece.bytes + bytes <= BUFFERED_PIECE_BYTES_MAX
                        && self.geometry.offset(GAddr(*at)) != 0 =>
                {
                    piece.bytes += bytes;
                }
                _ => {
                    self.leaving.push(Piece { addr: GAddr(*at), bytes });
                    self.leaving_at.push(used as u64);
                }
            }
            used += from.len();
        }
        self.filling.clear();
        self.data.clear();
        used
    }

    /// The pieces under way, in order of address.
    pub fn pieces(&self) -> &[Piece] {
        &self.leaving
    }

    /// Where the pieces under way are in the packed bytes.
    pub fn offsets(&self) -> &[u64] {
        &self.leaving_at
    }

    /// The pieces under way are at home, or given up.
    pub fn arrived(&mut self) {
        self.leaving.clear();
        self.leaving_at.clear();
    }

    /// Gives up what lies between two addresses, in both halves. Not while its pieces may be
    /// posted.
    pub fn give_up(&mut self, first: GAddr, end: GAddr) {
        self.cut(first.0, end.0);
        let (pieces, offsets) =
            (std::mem::take(&mut self.leaving), std::mem::take(&mut self.leaving_at));
        for (piece, offset) in pieces.into_iter().zip(offsets) {
            let (at, over) = (piece.addr.0, piece.addr.0 + piece.bytes);
            // What lies before and behind is other locks'.
            for (from, to) in [(at, over.min(first.0)), (at.max(end.0), over)] {
                if from < to {
                    self.leaving.push(Piece { addr: GAddr(from), bytes: to - from });
                    self.leaving_at.push(offset + from - at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
