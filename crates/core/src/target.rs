//! The target's end of one-sided operations: announce, compare the key, touch, withdraw.
//!
//! In: places, keys and data of work requests, from any fabric. Out: what became of them. Called
//! by the thread that executes for others (`tcp`), by an initiator that maps the rack (`shm`), and
//! by a simulated target. It has no state but a cell; no byte that an initiator sent is trusted.
//!
//! Ordering rule, the same for every access: announce the frame in the cell, load the frame's table
//! word, compare it with the key, touch, clear the cell. A process that frees or moves the frame
//! changes the table word first, executes a barrier, then waits for the cells: an access either
//! sees the new word or is waited for. An operation that is done in [`Pieces`] is announced and
//! checked for each of them; once its key is revoked, the rest is not executed.
//!
//! Source: DESIGN §3 (after the revocation of a key nothing is executed under it).

use crate::addr::{FrameIndex, Generation};
use crate::coherence;
use crate::layout::{RegionLayout, table_word};
use crate::seam::{Mem, Mutation, Rare, RemoteAddr, WorkStatus};

/// What is stored or loaded at once if it is aligned, bytes.
pub const WORD_BYTES: u64 = 8;

/// Why an access did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The key is not the frame's generation.
    BadKey,
    /// Outside one frame, or misaligned.
    BadRange,
}

impl From<Refused> for WorkStatus {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::BadKey => WorkStatus::BadKey,
            Refused::BadRange => WorkStatus::BadRange,
        }
    }
}

/// A piece of memory that is shorter than its geometry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooShort {
    pub what: &'static str,
    pub found_bytes: u64,
    pub needed_bytes: u64,
}

/// A rack's memory as the executor of one-sided operations sees it: pages, table and a cell of
/// its own. One thread at a time uses a cell, so this is not shared; accesses do not nest.
#[derive(Debug)]
pub struct TargetMemory<M: Mem> {
    pages: M,
    table: M,
    cell: M,
    layout: RegionLayout,
}

/// Clears the cell when the access ends, however it ends.
struct Announced<'a, M: Mem>(&'a M);

impl<M: Mem> Drop for Announced<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.store(0, 0);
    }
}

impl<M: Mem> TargetMemory<M> {
    /// A rack with `pages` and `table` at least as long as `layout` says; `cell` is one word that a
    /// process looks at before it frees a frame of the rack.
    pub fn new(pages: M, table: M, cell: M, layout: RegionLayout) -> Result<Self, TooShort> {
        for (what, window, needed_bytes) in [
            ("pages", &pages, layout.pages_bytes()),
            ("table", &table, 8 * u64::from(layout.frame_count)),
            ("cell", &cell, 8),
        ] {
            let found_bytes = window.bytes();
            if found_bytes < needed_bytes {
                return Err(TooShort { what, found_bytes, needed_bytes });
            }
        }
        Ok(Self { pages, table, cell, layout })
    }

    pub fn layout(&self) -> RegionLayout {
        self.layout
    }

    /// The frame that `bytes` bytes at `offset` lie in, if they lie in one.
    #[inline]
    fn frame_of(&self, offset: u64, bytes: u64) -> Result<FrameIndex, Refused> {
        let pages = self.layout.pages;
        let frame = offset >> pages.page_shift();
        let within = offset & (pages.page_bytes() - 1);
        if frame >= u64::from(self.layout.frame_count) {
            return Err(Refused::BadRange);
        }
        if bytes > pages.page_bytes() - within && !self.cell.mutated(Mutation::CrossPageUnchecked) {
            return Err(Refused::BadRange);
        }
        Ok(FrameIndex(frame as u32))
    }

    /// Runs `touch` on the pages while `frame` is announced and `key` is its generation.
    #[inline(always)]
    fn access<R>(
        &self,
        frame: FrameIndex,
        key: Generation,
        touch: impl FnOnce(&M) -> R,
    ) -> Result<R, Refused> {
        self.cell.announce(0, u64::from(frame.0) + 1);
        let announced = Announced(&self.cell);
        // A generation of 0 means that the frame holds nothing, so 0 is never a valid key.
        let valid = key.0 != 0 && self.table.load(table_word(frame)) == key.0;
        if !valid && !self.cell.mutated(Mutation::ExecuteRevokedKey) {
            return Err(Refused::BadKey);
        }
        let result = touch(&self.pages);
        drop(announced);
        Ok(result)
    }

    /// Runs `read` while the frame of `bytes` bytes at `at` is announced and its key is valid.
    #[inline(always)]
    pub fn reading<R>(
        &self,
        at: RemoteAddr,
        bytes: u64,
        read: impl FnOnce(&M) -> R,
    ) -> Result<R, Refused> {
        let touch = |pages: &M| coherence::reading(pages, (at.offset, bytes), read);
        self.access(self.frame_of(at.offset, bytes)?, at.key, touch)
    }

    /// As [`TargetMemory::reading`] for what may write.
    #[inline(always)]
    pub fn writing<R>(
        &self,
        at: RemoteAddr,
        bytes: u64,
        write: impl FnOnce(&M) -> R,
    ) -> Result<R, Refused> {
        let touch = |pages: &M| coherence::writing(pages, (at.offset, bytes), write);
        self.access(self.frame_of(at.offset, bytes)?, at.key, touch)
    }

    /// Copies bytes of one frame out. If the key is refused, what is in `to` means nothing.
    #[inline]
    pub fn read(&self, offset: u64, key: Generation, to: &mut [u8]) -> WorkStatus {
        let at = RemoteAddr { offset, key };
        if self.cell.rare(Rare::TargetOneWord) {
            let mut pieces = Pieces::new(self, at, to.len() as u64);
            let mut rest = to;
            while !rest.is_empty() {
                let (word, after) = rest.split_at_mut(pieces.word_bytes());
                pieces.read(self, word);
                rest = after;
            }
            return pieces.status();
        }
        status(self.reading(at, to.len() as u64, |pages| {
            pages.copy_out(offset, to);
            0
        }))
    }

    /// Copies bytes into one frame.
    #[inline]
    pub fn write(&self, offset: u64, key: Generation, from: &[u8]) -> WorkStatus {
        let at = RemoteAddr { offset, key };
        if self.cell.rare(Rare::TargetOneWord) {
            let mut pieces = Pieces::new(self, at, from.len() as u64);
            let mut rest = from;
            while !rest.is_empty() {
                let (word, after) = rest.split_at(pieces.word_bytes());
                pieces.write(self, word);
                rest = after;
            }
            return pieces.status();
        }
        status(self.writing(at, from.len() as u64, |pages| {
            pages.copy_in(offset, from);
            0
        }))
    }

    /// Compares and swaps an aligned word; `Done` carries the old value.
    #[inline]
    pub fn cas(&self, offset: u64, key: Generation, expected: u64, new: u64) -> WorkStatus {
        if !offset.is_multiple_of(WORD_BYTES) {
            return WorkStatus::BadRange;
        }
        if key.is_shared() {
            return WorkStatus::BadKey;
        }
        status(self.writing(RemoteAddr { offset, key }, WORD_BYTES, |pages| {
            if self.cell.mutated(Mutation::AtomicsInTwoSteps) {
                return load_then_store(pages, offset, |old| (old == expected).then_some(new));
            }
            match pages.compare_exchange(offset, expected, new) {
                Ok(old) | Err(old) => old,
            }
        }))
    }

    /// Adds to an aligned word, wrapping; `Done` carries the old value.
    #[inline]
    pub fn fetch_add(&self, offset: u64, key: Generation, n: u64) -> WorkStatus {
        if !offset.is_multiple_of(WORD_BYTES) {
            return WorkStatus::BadRange;
        }
        if key.is_shared() {
            return WorkStatus::BadKey;
        }
        let at = RemoteAddr { offset, key };
        status(self.writing(at, WORD_BYTES, |pages| {
            if self.cell.mutated(Mutation::AtomicsInTwoSteps) {
                return load_then_store(pages, offset, |old| Some(old.wrapping_add(n)));
            }
            pages.fetch_add(offset, n)
        }))
    }
}

/// What an atomic must not be: others come in between, and the longer it takes the more of them.
fn load_then_store<M: Mem>(pages: &M, offset: u64, new: impl FnOnce(u64) -> Option<u64>) -> u64 {
    const LOOKS: u32 = 200;
    let old = pages.load(offset);
    (0..LOOKS).for_each(|_| _ = pages.load(offset));
    if let Some(new) = new(old) {
        pages.store(offset, new);
    }
    old
}

#[inline(always)]
fn status(result: Result<u64, Refused>) -> WorkStatus {
    match result {
        Ok(value) => WorkStatus::Done(value),
        Err(refused) => refused.into(),
    }
}

/// A read or write that is done piece by piece, as its data comes or goes. Between two pieces
/// nothing is announced. The first piece that meets another key ends it: what was written before
/// stays, the rest is not executed.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    frame: FrameIndex,
    at: RemoteAddr,
    left_bytes: u64,
    status: WorkStatus,
}

impl Pieces {
    /// Begins with the `bytes` bytes at `at`. Range and key are checked now, because data that is
    /// refused may be long.
    pub fn new<M: Mem>(memory: &TargetMemory<M>, at: RemoteAddr, bytes: u64) -> Self {
        let frame = memory.frame_of(at.offset, bytes);
        let checked = frame.and_then(|frame| memory.access(frame, at.key, |_| 0));
        let frame = frame.unwrap_or(FrameIndex(0));
        Self { frame, at, left_bytes: bytes, status: status(checked) }
    }

    /// Bytes that have not been gone over.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// Bytes from here to the end of the aligned word, or of all: a word is never cut in two.
    fn word_bytes(&self) -> usize {
        (WORD_BYTES - self.at.offset % WORD_BYTES).min(self.left_bytes) as usize
    }

    /// How it stands: `Done(0)` while nothing was refused.
    pub fn status(&self) -> WorkStatus {
        self.status
    }

    /// Runs `read(pages, offset)` on the next bytes, of which it may read up to `bytes`, no more
    /// than [`Pieces::left_bytes`]; `None` if they must not be touched, because the key is not
    /// valid or the range never was. To be followed by [`Pieces::advance`].
    #[inline]
    pub fn reading<M: Mem, R>(
        &mut self,
        memory: &TargetMemory<M>,
        bytes: u64,
        read: impl FnOnce(&M, u64) -> R,
    ) -> Option<R> {
        let offset = self.at.offset;
        self.touch(memory, |pages| {
            coherence::reading(pages, (offset, bytes), |pages| read(pages, offset))
        })
    }

    /// As [`Pieces::reading`] for what may write.
    #[inline]
    pub fn writing<M: Mem, R>(
        &mut self,
        memory: &TargetMemory<M>,
        bytes: u64,
        write: impl FnOnce(&M, u64) -> R,
    ) -> Option<R> {
        let offset = self.at.offset;
        self.touch(memory, |pages| {
            coherence::writing(pages, (offset, bytes), |pages| write(pages, offset))
        })
    }

    #[inline(always)]
    fn touch<M: Mem, R>(
        &mut self,
        memory: &TargetMemory<M>,
        touch: impl FnOnce(&M) -> R,
    ) -> Option<R> {
        let WorkStatus::Done(_) = self.status else { return None };
        match memory.access(self.frame, self.at.key, touch) {
            Ok(result) => Some(result),
            Err(refused) => {
                self.status = refused.into();
                None
            }
        }
    }

    /// Goes over the next bytes, touched or not.
    #[inline]
    pub fn advance(&mut self, bytes: u64) {
        assert!(bytes <= self.left_bytes, "{bytes} bytes of {} that are left", self.left_bytes);
        self.at.offset = self.at.offset.wrapping_add(bytes);
        self.left_bytes -= bytes;
    }

    /// Writes the next bytes, or drops them.
    pub fn write<M: Mem>(&mut self, memory: &TargetMemory<M>, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= self.left_bytes, "no more than are left");
        let count = bytes.len() as u64;
        self.writing(memory, count, |pages, offset| pages.copy_in(offset, bytes));
        self.advance(bytes.len() as u64);
    }

    /// Reads the next bytes, or leaves `to` as it is.
    pub fn read<M: Mem>(&mut self, memory: &TargetMemory<M>, to: &mut [u8]) {
        assert!(to.len() as u64 <= self.left_bytes, "no more than are left");
        let count = to.len() as u64;
        self.reading(memory, count, |pages, offset| pages.copy_out(offset, to));
        self.advance(to.len() as u64);
    }
}
