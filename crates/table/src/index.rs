//! The index: from a bucket's number to its word, and the one way to change it. Owns the places
//! of the bucket words (chunks, and cells for retired words) and remembers them for one handle;
//! [`TableIndex::load`] and [`TableIndex::replace`] are called by everything else of the table.
//!
//! Ordering rule: a bucket's state is one word; each change is one compare-and-swap that raises
//! the bucket's sequence number by one. Chunks, arrays and cells are never freed nor moved while
//! the table exists, so no stale address of a word can ever lead into other data.
//!
//! Bucket `b` lies in chunk `b >> CHUNK_SHIFT`. Chunk 0 is named by the header; chunks
//! `2^(t-1) .. 2^t` by an array that the header's `t`-th pointer names. All are made when they are
//! first needed.

use crate::constants::{CHUNK_SHIFT, FORWARDS_MAX, RESOLVE_MAX};
use crate::error::{Error, Result};
use crate::header::{CHUNK_0_OFFSET, TOPS, top_offset};
use crate::word::{State, Word};
use crate::words::{ALIGN_BYTES, GAddr, Placement, PoolError, PoolResult, WordSwap, Words};
use rackpool::CasOutcome;

pub(crate) const CHUNK_BYTES: u64 = 8 << CHUNK_SHIFT;
/// Bytes of a cell: the word, its base, the cell before it.
pub(crate) const CELL_BYTES: u64 = ALIGN_BYTES;
const CELL_BASE: u64 = 8;
const CELL_PREV: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swap<T> {
    Done(T),
    /// Not applied: something else is there.
    Lost,
    /// It cannot be known, and whatever it was is final.
    Unknown,
}

/// A bucket's state as it was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketView {
    pub bucket: u64,
    /// Its word, `Data` or `Frozen`.
    pub word: Word,
    /// Where a bucket of this number has its first word.
    home: GAddr,
    /// What is there; the same as `word` unless that is in a cell.
    home_word: Word,
    at: GAddr,
    /// The bucket's sequence number when the word at `at` had version 0.
    base: u64,
}

impl BucketView {
    /// Changes of the bucket so far.
    pub fn seq(&self) -> u64 {
        self.base + u64::from(self.word.version())
    }

    /// The sequence number under which the blob was written: freezing keeps the blob.
    pub fn blob_seq(&self) -> u64 {
        self.seq() - u64::from(self.is_frozen())
    }

    pub fn at(&self) -> GAddr {
        self.at
    }

    pub fn is_frozen(&self) -> bool {
        self.word.state() == State::Frozen
    }

    /// The cell that holds the word, if it is not at home.
    pub fn cell(&self) -> Option<GAddr> {
        (self.at != self.home).then_some(self.at)
    }
}

/// Where a bucket's word is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WordPlace {
    pub bucket: u64,
    home: GAddr,
    /// In a cell, or at home.
    pub at: GAddr,
    base: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketContent {
    /// Nothing, at this depth.
    Empty(u8),
    /// A blob, with its length.
    Blob(GAddr, usize),
    Frozen,
}

#[derive(Clone, Copy, Debug, Default)]
struct Forward {
    bucket: u64,
    cell: u64,
    base: u64,
}

/// The index as one handle knows it.
#[derive(Debug)]
pub(crate) struct TableIndex {
    header: GAddr,
    versions_per_word: u32,
    tops: [u64; TOPS],
    chunks: Vec<u64>,
    forwards: Box<[Forward; FORWARDS_MAX]>,
    /// Where new chunks and cells are placed.
    pub placement: Placement,
    /// Bytes of cells and arrays that may be lost: nothing else names them, or that is not known.
    pub leaked_bytes: u64,
}

impl TableIndex {
    /// The index of the table that has its header at `header`.
    pub fn new(header: GAddr, versions_per_word: u32, placement: Placement) -> TableIndex {
        TableIndex {
            header,
            versions_per_word,
            tops: [0; TOPS],
            chunks: Vec::new(),
            forwards: Box::new([Forward::default(); FORWARDS_MAX]),
            placement,
            leaked_bytes: 0,
        }
    }

    /// The bucket's state, or `None` if it was not split off its parent yet.
    pub fn load<W: Words>(&mut self, mem: &mut W, bucket: u64) -> Result<Option<BucketView>> {
        let Some(place) = self.place(mem, bucket)? else { return Ok(None) };
        let bits = mem.read_u64(place.at)?;
        self.view_at(mem, place, bits)
    }

    /// Where the bucket's word is as far as this handle knows; `None` if it does not exist yet.
    pub fn place<W: Words>(&mut self, mem: &mut W, bucket: u64) -> Result<Option<WordPlace>> {
        let Some(home) = self.home(mem, bucket)? else { return Ok(None) };
        let known = self.forwards[bucket as usize % FORWARDS_MAX];
        Ok(Some(match known.cell != 0 && known.bucket == bucket {
            true => WordPlace { bucket, home, at: GAddr(known.cell), base: known.base },
            false => WordPlace { bucket, home, at: home, base: 0 },
        }))
    }

    /// The bucket's state, of which `bits` was read at `place`.
    pub fn view_at<W: Words>(
        &mut self,
        mem: &mut W,
        place: WordPlace,
        bits: u64,
    ) -> Result<Option<BucketView>> {
        let WordPlace { bucket, home, at, base } = place;
        let mut home_word = Word(bits);
        if at != home {
            let word = self.content_word(bucket, at, bits)?;
            // A cell that has not reached its last version has no successor.
            if word.version() < self.version_last() {
                let home_word = Word::forward(at);
                return Ok(Some(BucketView { bucket, word, home, home_word, at, base }));
            }
            home_word = Word(mem.read_u64(home)?);
        }
        match home_word.state() {
            State::None => Ok(None),
            State::Data | State::Frozen => {
                let word = self.content_word(bucket, home, home_word.0)?;
                Ok(Some(BucketView { bucket, word, home, home_word, at: home, base: 0 }))
            }
            State::Forward => self.follow(mem, bucket, home, home_word).map(Some),
        }
    }

    /// What the bucket's state is if `word` is still the one at `place`; `None` if that would not
    /// name a blob, or not tell.
    pub fn guess(&self, place: WordPlace, word: Word) -> Option<BucketView> {
        let WordPlace { bucket, home, at, base } = place;
        let names_blob =
            matches!(word.state(), State::Data | State::Frozen) && word.empty_depth().is_none();
        // A cell's last word stays in it for ever.
        let last = self.version_last();
        let tells = word.version() < last || word.version() == last && at == home;
        let home_word = if at == home { word } else { Word::forward(at) };
        let view = BucketView { bucket, word, home, home_word, at, base };
        (names_blob && tells).then_some(view)
    }

    /// Whether the bucket is still as it was. A word never comes back, so it was so all along.
    pub fn is_still<W: Words>(&self, mem: &mut W, view: &BucketView) -> Result<bool> {
        // A cell's last word stays in it for ever: then the home word tells.
        let in_retired_cell = view.at != view.home && view.word.version() == self.version_last();
        let (at, word) =
            if in_retired_cell { (view.home, view.home_word) } else { (view.at, view.word) };
        Ok(mem.read_u64(at)? == word.0)
    }

    /// Replaces the bucket's state if it is still `view`; the new state.
    pub fn replace<W: Words>(
        &mut self,
        mem: &mut W,
        view: &BucketView,
        next: BucketContent,
    ) -> Result<Swap<BucketView>> {
        let Some((swap, after)) = self.plan(view, next)? else {
            return self.replace_in_new_cell(mem, view, next);
        };
        let unique = matches!(next, BucketContent::Blob(..));
        Ok(publish(mem, swap, unique)?.map(|()| after))
    }

    /// The swap that makes `next` of `view`, and the state after it. `None` if the word has no
    /// further version: it will be in a new cell.
    pub fn plan(
        &self,
        view: &BucketView,
        next: BucketContent,
    ) -> Result<Option<(WordSwap, BucketView)>> {
        if view.word.version() == self.version_last() {
            return Ok(None);
        }
        let word = self.next_word(view, next, view.word.version() + 1)?;
        let home_word = if view.at == view.home { word } else { view.home_word };
        let swap = WordSwap { addr: view.at, expected: view.word.0, new: word.0 };
        Ok(Some((swap, BucketView { word, home_word, ..*view })))
    }

    /// Makes a bucket that was not split off yet, with sequence number 1. Its home exists.
    pub fn publish_first<W: Words>(
        &mut self,
        mem: &mut W,
        home: GAddr,
        next: BucketContent,
    ) -> Result<Swap<()>> {
        let word = match next {
            BucketContent::Empty(depth) => Word::empty(depth, 1),
            BucketContent::Blob(addr, blob_bytes) => Word::blob(addr, blob_bytes, 1)?,
            BucketContent::Frozen => unreachable!("a bucket is split off thawed"),
        };
        let swap = WordSwap { addr: home, expected: Word::NONE.0, new: word.0 };
        publish(mem, swap, matches!(next, BucketContent::Blob(..)))
    }

    /// Where the bucket's first word is, or `None` if no bucket of its chunk exists yet.
    pub fn home<W: Words>(&mut self, mem: &mut W, bucket: u64) -> Result<Option<GAddr>> {
        let chunk = bucket >> CHUNK_SHIFT;
        let known = self.chunks.get(chunk as usize).copied().unwrap_or(0);
        let base = match known {
            0 => {
                let Some(pointer) = self.chunk_pointer(mem, chunk)? else { return Ok(None) };
                let base = mem.read_u64(pointer)?;
                self.remember_chunk(bucket, pointer, base)?;
                base
            }
            known => known,
        };
        Ok((base != 0).then(|| word_in(base, bucket)))
    }

    /// Where the bucket's first word is; its chunk is made if it does not exist.
    pub fn make_home<W: Words>(&mut self, mem: &mut W, bucket: u64) -> Result<GAddr> {
        if let Some(home) = self.home(mem, bucket)? {
            return Ok(home);
        }
        let chunk = bucket >> CHUNK_SHIFT;
        let pointer = match self.chunk_pointer(mem, chunk)? {
            Some(pointer) => pointer,
            None => {
                let top = top_of(chunk);
                let at = GAddr(self.header.0 + top_offset(top));
                self.tops[top] = self.install(mem, at, top_bytes(top))?;
                GAddr(self.tops[top] + 8 * (chunk - first_chunk(top)))
            }
        };
        let base = self.install(mem, pointer, CHUNK_BYTES)?;
        self.remember_chunk(bucket, pointer, base)?;
        Ok(word_in(base, bucket))
    }

    /// The cell before `cell` in the line of a bucket's retired words, or null.
    pub fn cell_before<W: Words>(mem: &mut W, cell: GAddr) -> Result<GAddr> {
        Ok(GAddr(mem.read_u64(GAddr(cell.0 + CELL_PREV))?))
    }

    /// Reports every array and chunk that exists.
    pub fn for_each_array<W: Words>(
        &mut self,
        mem: &mut W,
        tell: &mut dyn FnMut(GAddr, u64),
    ) -> Result<()> {
        let chunk_0 = mem.read_u64(GAddr(self.header.0 + CHUNK_0_OFFSET))?;
        tell(GAddr(chunk_0), CHUNK_BYTES);
        for top in 0..TOPS {
            let array = mem.read_u64(GAddr(self.header.0 + top_offset(top)))?;
            if array == 0 {
                continue;
            }
            for index in 0..first_chunk(top) {
                let chunk = mem.read_u64(GAddr(array + 8 * index))?;
                if chunk != 0 {
                    tell(GAddr(chunk), CHUNK_BYTES);
                }
            }
            tell(GAddr(array), top_bytes(top));
        }
        Ok(())
    }

    fn version_last(&self) -> u32 {
        self.versions_per_word - 1
    }

    fn content_word(&self, bucket: u64, at: GAddr, bits: u64) -> Result<Word> {
        let word = Word(bits);
        let reason = match word.state() {
            State::None | State::Forward => "a word of a bucket in use has no content",
            _ if word.version() > self.version_last() => "a word is older than words get",
            _ => return Ok(word),
        };
        Err(Error::Corrupt { bucket, addr: at, reason })
    }

    /// The state in the cell that the home word names. If the cell's word is its last one, it was
    /// the bucket's state when the home word was read, or became it since.
    fn follow<W: Words>(
        &mut self,
        mem: &mut W,
        bucket: u64,
        home: GAddr,
        home_word: Word,
    ) -> Result<BucketView> {
        let at = home_word.cell();
        let base = mem.read_u64(GAddr(at.0 + CELL_BASE))?;
        if base == 0 || !base.is_multiple_of(u64::from(self.versions_per_word)) {
            let reason = "a cell has an impossible base";
            return Err(Error::Corrupt { bucket, addr: at, reason });
        }
        let word = self.content_word(bucket, at, mem.read_u64(at)?)?;
        self.forwards[bucket as usize % FORWARDS_MAX] = Forward { bucket, cell: at.0, base };
        Ok(BucketView { bucket, word, home, home_word, at, base })
    }

    fn next_word(&self, view: &BucketView, next: BucketContent, version: u32) -> Result<Word> {
        match next {
            BucketContent::Empty(depth) => Ok(Word::empty(depth, version)),
            BucketContent::Blob(addr, blob_bytes) => Word::blob(addr, blob_bytes, version),
            BucketContent::Frozen => Ok(view.word.frozen(version)),
        }
    }

    fn replace_in_new_cell<W: Words>(
        &mut self,
        mem: &mut W,
        view: &BucketView,
        next: BucketContent,
    ) -> Result<Swap<BucketView>> {
        let word = self.next_word(view, next, 0)?;
        let base = view.base + u64::from(self.versions_per_word);
        let at = mem.alloc(CELL_BYTES, self.placement)?;
        let mut cell = [0; 24];
        cell[..8].copy_from_slice(&word.0.to_le_bytes());
        cell[8..16].copy_from_slice(&base.to_le_bytes());
        cell[16..].copy_from_slice(&view.cell().unwrap_or(GAddr::NULL).0.to_le_bytes());
        if let Err(error) = mem.write(at, &cell) {
            // Part of the write may still be under way, so the memory must not be used again.
            self.leaked_bytes += CELL_BYTES;
            return Err(error.into());
        }
        let home_word = Word::forward(at);
        let swap = WordSwap { addr: view.home, expected: view.home_word.0, new: home_word.0 };
        match publish(mem, swap, true) {
            Ok(Swap::Done(())) => Ok(Swap::Done(BucketView { word, home_word, at, base, ..*view })),
            Ok(Swap::Unknown) => {
                self.leaked_bytes += CELL_BYTES;
                Ok(Swap::Unknown)
            }
            lost => {
                self.free_unseen(mem, at, CELL_BYTES);
                lost.map(|_| Swap::Lost)
            }
        }
    }

    /// Where the pointer to a chunk is, or `None` if its array does not exist yet.
    fn chunk_pointer<W: Words>(&mut self, mem: &mut W, chunk: u64) -> Result<Option<GAddr>> {
        if chunk == 0 {
            return Ok(Some(GAddr(self.header.0 + CHUNK_0_OFFSET)));
        }
        let top = top_of(chunk);
        if self.tops[top] == 0 {
            self.tops[top] = mem.read_u64(GAddr(self.header.0 + top_offset(top)))?;
        }
        let array = self.tops[top];
        Ok((array != 0).then(|| GAddr(array + 8 * (chunk - first_chunk(top)))))
    }

    fn remember_chunk(&mut self, bucket: u64, pointer: GAddr, base: u64) -> Result<()> {
        if !base.is_multiple_of(ALIGN_BYTES) {
            let reason = "a chunk has a misaligned address";
            return Err(Error::Corrupt { bucket, addr: pointer, reason });
        }
        let chunk = (bucket >> CHUNK_SHIFT) as usize;
        if base != 0 {
            if self.chunks.len() <= chunk {
                self.chunks.resize(chunk + 1, 0);
            }
            self.chunks[chunk] = base;
        }
        Ok(())
    }

    /// Allocates and publishes an array, unless another client does first; its address.
    fn install<W: Words>(&mut self, mem: &mut W, pointer: GAddr, bytes: u64) -> Result<u64> {
        let addr = mem.alloc(bytes, self.placement)?;
        match publish(mem, WordSwap { addr: pointer, expected: 0, new: addr.0 }, true) {
            Ok(Swap::Done(())) => Ok(addr.0),
            Ok(Swap::Lost) => {
                self.free_unseen(mem, addr, bytes);
                Ok(mem.read_u64(pointer)?)
            }
            Ok(Swap::Unknown) => {
                self.leaked_bytes += bytes;
                Err(Error::OutcomeUnknown { operation: "growing the index" })
            }
            Err(error) => {
                self.free_unseen(mem, addr, bytes);
                Err(error)
            }
        }
    }

    /// Frees what no other client has seen. If that cannot be done now, it is lost for good.
    fn free_unseen<W: Words>(&mut self, mem: &mut W, addr: GAddr, bytes: u64) {
        if mem.free(addr, bytes).is_err() {
            self.leaked_bytes += bytes;
        }
    }
}

impl Swap<()> {
    fn map<T>(self, done: impl FnOnce(()) -> T) -> Swap<T> {
        match self {
            Swap::Done(()) => Swap::Done(done(())),
            Swap::Lost => Swap::Lost,
            Swap::Unknown => Swap::Unknown,
        }
    }
}

fn word_in(base: u64, bucket: u64) -> GAddr {
    GAddr(base + 8 * (bucket & ((1 << CHUNK_SHIFT) - 1)))
}

/// Which pointer of the header names the array of a chunk (not of chunk 0).
fn top_of(chunk: u64) -> usize {
    chunk.ilog2() as usize
}

/// First chunk of an array, and the number of its chunks.
fn first_chunk(top: usize) -> u64 {
    1 << top
}

fn top_bytes(top: usize) -> u64 {
    (8 * first_chunk(top)).max(ALIGN_BYTES)
}

/// A compare-and-swap with an `expected` that never comes back once it is gone, so that it may be
/// repeated until its outcome is known. `unique`: no other client ever writes `new`. An error says
/// that nothing was done.
fn publish<W: Words>(mem: &mut W, swap: WordSwap, unique: bool) -> Result<Swap<()>> {
    let first = mem.cas(swap.addr, swap.expected, swap.new);
    settle(mem, swap, first, unique, RESOLVE_MAX)
}

/// As [`publish`], of a swap that ended with `first` when it was tried, in up to `tries` with that.
pub(crate) fn settle<W: Words>(
    mem: &mut W,
    swap: WordSwap,
    first: PoolResult<CasOutcome>,
    unique: bool,
    tries: u32,
) -> Result<Swap<()>> {
    let mut in_doubt = false;
    let again = std::iter::repeat_with(|| mem.cas(swap.addr, swap.expected, swap.new));
    for outcome in std::iter::once(first).chain(again).take(tries as usize) {
        match outcome {
            Ok(CasOutcome::Swapped) => return Ok(Swap::Done(())),
            Ok(CasOutcome::Found(_)) if !in_doubt => return Ok(Swap::Lost),
            Ok(CasOutcome::Found(actual)) if actual == swap.new && unique => {
                return Ok(Swap::Done(()));
            }
            Ok(CasOutcome::Found(_)) => return Ok(Swap::Unknown),
            Err(error) if !in_doubt && did_nothing(&error) => return Err(error.into()),
            Err(_) => in_doubt = true,
        }
    }
    Ok(Swap::Unknown)
}

/// Whether an error of the pool promises that the operation had no effect and never will have. A
/// word that was swapped may have been refused by its device, or its caller told of a lost lock.
fn did_nothing(error: &PoolError) -> bool {
    let in_doubt = ["outcome-unknown", "timeout", "protocol", "lock-lost", "denied", "io"];
    !in_doubt.contains(&error.code())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool::protocol::Error as WireError;

    /// Answers one compare-and-swap after the other as it is told, has memory that it refuses to
    /// write to and to take back, and can do nothing else.
    struct Script(Vec<PoolResult<CasOutcome>>);

    impl Words for Script {
        fn cas(&mut self, _: GAddr, _: u64, _: u64) -> PoolResult<CasOutcome> {
            self.0.remove(0)
        }
        fn alloc(&mut self, _: u64, _: Placement) -> PoolResult<GAddr> {
            Ok(GAddr(4096))
        }
        fn free(&mut self, _: GAddr, _: u64) -> PoolResult<()> {
            Err(busy("ring"))
        }
        fn read(&mut self, _: GAddr, _: &mut [u8]) -> PoolResult<()> {
            unreachable!()
        }
        fn write(&mut self, _: GAddr, _: &[u8]) -> PoolResult<()> {
            Err(busy("fabric buffers"))
        }
        fn read_u64(&mut self, _: GAddr) -> PoolResult<u64> {
            unreachable!()
        }
        fn write_u64(&mut self, _: GAddr, _: u64) -> PoolResult<()> {
            unreachable!()
        }
        fn fetch_add(&mut self, _: GAddr, _: u64) -> PoolResult<u64> {
            unreachable!()
        }
        fn read_batch(&mut self, _: &mut [(GAddr, &mut [u8])]) -> PoolResult<()> {
            unreachable!()
        }
        fn root(&mut self, _: &str) -> PoolResult<Option<GAddr>> {
            unreachable!()
        }
        fn set_root(&mut self, _: &str, _: GAddr, _: GAddr) -> PoolResult<GAddr> {
            unreachable!()
        }
    }

    const OLD: u64 = 1;
    const NEW: u64 = 2;
    const OTHER: u64 = 3;

    fn outcome(answers: Vec<PoolResult<CasOutcome>>, unique: bool) -> Result<Swap<()>> {
        let swap = WordSwap { addr: GAddr(64), expected: OLD, new: NEW };
        publish(&mut Script(answers), swap, unique)
    }

    fn unknown() -> PoolResult<CasOutcome> {
        Err(WireError::OutcomeUnknown { operation: "cas".into(), peer: "rack 1".into() }.into())
    }

    fn busy(what: &str) -> PoolError {
        WireError::Busy { what: what.into(), limit: 64 }.into()
    }

    #[test]
    fn a_cell_or_an_array_that_is_lost_is_counted() {
        let word = Word::empty(0, 1);
        let home = GAddr(64);
        let view = BucketView { bucket: 0, word, home, home_word: word, at: home, base: 0 };
        let mut index = TableIndex::new(GAddr(0), 2, Placement::Auto);
        let refused = index.replace(&mut Script(Vec::new()), &view, BucketContent::Empty(1));
        let cause = busy("fabric buffers");
        assert_eq!(refused, Err(cause.into()));
        assert_eq!(index.leaked_bytes, CELL_BYTES);
        let mut silent = Script((0..RESOLVE_MAX).map(|_| unknown()).collect());
        assert!(index.install(&mut silent, home, CHUNK_BYTES).is_err());
        assert_eq!(index.leaked_bytes, CELL_BYTES + CHUNK_BYTES);
        assert!(index.install(&mut Script(vec![Err(busy("ring"))]), home, CHUNK_BYTES).is_err());
        assert_eq!(index.leaked_bytes, CELL_BYTES + 2 * CHUNK_BYTES);
    }

    #[test]
    fn a_swap_with_an_answer_is_done_or_lost() {
        assert_eq!(outcome(vec![Ok(CasOutcome::Swapped)], false), Ok(Swap::Done(())));
        assert_eq!(outcome(vec![Ok(CasOutcome::Found(OTHER))], true), Ok(Swap::Lost));
        // Another client made the same change: it was not ours.
        assert_eq!(outcome(vec![Ok(CasOutcome::Found(NEW))], false), Ok(Swap::Lost));
        assert_eq!(outcome(vec![Err(busy("ring"))], true), Err(busy("ring").into()));
    }

    #[test]
    fn a_swap_without_an_answer_is_repeated_until_one_tells() {
        assert_eq!(outcome(vec![unknown(), Ok(CasOutcome::Swapped)], false), Ok(Swap::Done(())));
        assert_eq!(
            outcome(vec![unknown(), Err(busy("ring")), Ok(CasOutcome::Found(NEW))], true),
            Ok(Swap::Done(()))
        );
    }

    #[test]
    fn a_swap_whose_trace_may_be_anothers_stays_unknown() {
        assert_eq!(outcome(vec![unknown(), Ok(CasOutcome::Found(NEW))], false), Ok(Swap::Unknown));
        assert_eq!(outcome(vec![unknown(), Ok(CasOutcome::Found(OTHER))], true), Ok(Swap::Unknown));
        let silent = (0..RESOLVE_MAX).map(|_| unknown()).collect();
        assert_eq!(outcome(silent, true), Ok(Swap::Unknown));
    }
}
