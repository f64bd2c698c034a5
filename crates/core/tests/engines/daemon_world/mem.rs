//! Memory of the daemon's tests: it knows which blocks are backed, its fuse ends the daemon before
//! its n-th effect, and a loss of power leaves of each word any version since it was made durable.

use super::Answers;
use rackpool_core::Result;
use rackpool_core::copies;
use rackpool_core::layout::BLOCK_BYTES;
use rackpool_core::persist::recorder::StoreRecorder;
use rackpool_core::persist::{Persist, PersistError, PersistenceDomain};
use rackpool_core::seam::{self, Mem, Probe};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::rc::Rc;

/// What a burnt fuse unwinds with.
pub struct Crash;

/// Counts effects and ends the daemon before one of them.
#[derive(Default)]
pub struct Fuse {
    left: Cell<Option<u64>>,
    pub burnt: Cell<bool>,
    pub answers: Answers,
}

impl Fuse {
    pub fn arm(&self, effects: u64) {
        self.left.set(Some(effects));
    }

    pub fn disarm(&self) {
        self.left.set(None);
    }

    pub(super) fn burn(&self) {
        match self.left.get() {
            Some(0) => {
                self.left.set(None);
                self.burnt.set(true);
                resume_unwind(Box::new(Crash));
            }
            Some(left) => self.left.set(Some(left - 1)),
            None => {}
        }
    }
}

pub struct TestMem {
    words: Vec<Cell<u64>>,
    backed: Vec<Cell<bool>>,
    /// Blocks in which something was stored ever, by any means.
    touched: Vec<Cell<bool>>,
    fuse: Rc<Fuse>,
    /// What another process stores where, right after the next load from there.
    pub meanwhile: Cell<Option<(u64, u64)>>,
    /// By number of word, if the memory persists: what is not certain to be durable.
    unsaved: RefCell<Option<BTreeMap<usize, Unsaved>>>,
    durability: Cell<Durability>,
    pub domain: Cell<PersistenceDomain>,
    /// What is told of all that happens.
    recorder: RefCell<Option<StoreRecorder>>,
    /// What words held, by their number, if all that happens is to be undone.
    undo: RefCell<Option<Vec<(usize, u64)>>>,
}

struct Unsaved {
    /// What the word was when it was durable last, and what was stored since.
    versions: Vec<u64>,
    /// The version that the next fence makes durable; 0 if none.
    sent: usize,
}

/// What asking for durability does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It cannot be asked for.
    None,
    Kept,
    /// It is promised and not kept.
    Pretended,
}

impl TestMem {
    pub(super) fn new(bytes: u64, backed: bool, fuse: &Rc<Fuse>) -> TestMem {
        let blocks = bytes.div_ceil(BLOCK_BYTES) as usize;
        TestMem {
            words: vec![Cell::new(0); bytes as usize / 8],
            backed: vec![Cell::new(backed); blocks],
            touched: vec![Cell::new(false); blocks],
            fuse: fuse.clone(),
            meanwhile: Cell::new(None),
            unsaved: RefCell::new(None),
            durability: Cell::new(Durability::None),
            domain: Cell::new(PersistenceDomain::Adr),
            recorder: RefCell::new(None),
            undo: RefCell::new(None),
        }
    }

    /// Persists from now on, and tells the recorder.
    pub(super) fn record(&self, recorder: StoreRecorder) {
        assert_eq!(recorder.bytes(), self.bytes());
        self.durability.set(Durability::Kept);
        *self.recorder.borrow_mut() = Some(recorder);
    }

    /// Backed as a whole and as it was before the last call, for what can be undone from now on.
    pub(super) fn undo(&self) {
        self.backed.iter().for_each(|backed| backed.set(true));
        let undone = self.undo.borrow_mut().replace(Vec::new()).unwrap_or_default();
        undone.into_iter().rev().for_each(|(word, old)| self.words[word].set(old));
    }

    /// As another process would, and nothing undoes it.
    pub(super) fn fill(&self, offset: u64, bytes: &[u8]) {
        if bytes.iter().any(|byte| *byte != 0) {
            let blocks = offset / BLOCK_BYTES..(offset + bytes.len() as u64).div_ceil(BLOCK_BYTES);
            blocks.for_each(|block| self.touched[block as usize].set(true));
        }
        let words = &self.words[offset as usize / 8..];
        for (word, bytes) in words.iter().zip(bytes.chunks_exact(8)) {
            word.set(u64::from_le_bytes(bytes.try_into().unwrap()));
        }
    }

    /// Stores a word, whatever it means.
    fn put(&self, offset: u64, value: u64) -> u64 {
        self.touched[(offset / BLOCK_BYTES) as usize].set(true);
        let old = self.word(offset).replace(value);
        if old != value
            && let Some(undo) = &mut *self.undo.borrow_mut()
        {
            undo.push((offset as usize / 8, old));
        }
        old
    }

    fn told(&self, tell: impl FnOnce(&StoreRecorder)) {
        if let Some(recorder) = &*self.recorder.borrow() {
            tell(recorder);
        }
    }

    /// From now on a loss of power leaves what it leaves.
    pub(super) fn outlive_power(&self, durability: Durability) {
        *self.unsaved.borrow_mut() = Some(BTreeMap::new());
        self.durability.set(durability);
    }

    /// The power goes: `pick` chooses among so many versions of a word, the oldest first.
    pub(super) fn lose_power(&self, pick: &mut impl FnMut(usize) -> usize) {
        let Some(unsaved) = &mut *self.unsaved.borrow_mut() else { return };
        for (word, Unsaved { versions, .. }) in std::mem::take(unsaved) {
            self.words[word].set(versions[pick(versions.len())]);
        }
    }

    fn change(&self, offset: u64, value: u64) {
        let old = self.put(offset, value);
        self.told(|recorder| recorder.store(offset, value));
        if let Some(unsaved) = &mut *self.unsaved.borrow_mut()
            && old != value
        {
            let new = || Unsaved { versions: vec![old], sent: 0 };
            unsaved.entry(offset as usize / 8).or_insert_with(new).versions.push(value);
        }
    }

    /// Durable at once.
    fn save(&self, offset: u64, bytes: u64) {
        if let Some(unsaved) = &mut *self.unsaved.borrow_mut() {
            let words = offset as usize / 8..(offset + bytes).div_ceil(8) as usize;
            unsaved.retain(|word, _| !words.contains(word));
        }
    }

    fn word(&self, offset: u64) -> &Cell<u64> {
        assert_eq!(offset % 8, 0, "misaligned word at {offset}");
        let block = (offset / BLOCK_BYTES) as usize;
        assert!(self.backed[block].get(), "SIGBUS at {offset}");
        &self.words[offset as usize / 8]
    }

    /// Whether there may be anything but zeros in a block, which is backed.
    fn is_touched(&self, offset: u64) -> bool {
        let block = (offset / BLOCK_BYTES) as usize;
        assert!(self.backed[block].get(), "SIGBUS at {offset}");
        self.touched[block].get()
    }

    /// Whole words, backed or not.
    fn cells(&self, offset: u64, bytes: u64) -> &[Cell<u64>] {
        assert_eq!((offset % 8, bytes % 8), (0, 0), "{bytes} bytes at {offset}");
        &self.words[offset as usize / 8..][..bytes as usize / 8]
    }

    /// Reads without a care for backing, as a test.
    pub fn peek(&self, offset: u64) -> u64 {
        self.words[offset as usize / 8].get()
    }

    /// Writes without the fuse, as another process, and durably.
    pub fn poke(&self, offset: u64, value: u64) {
        self.put(offset, value);
        self.save(offset, 8);
    }

    /// As [`TestMem::poke`], of a word of the private section, in all its copies.
    pub fn poke_copies(&self, offset: u64, value: u64) {
        let [first, second, third] = copies::places(self.bytes(), offset);
        self.poke(third, value);
        self.poke(second, value);
        self.poke(first, value);
    }

    pub fn backed_bytes(&self) -> u64 {
        self.backed.iter().filter(|backed| backed.get()).count() as u64 * BLOCK_BYTES
    }

    pub(super) fn back(&self, offset: u64, bytes: u64) -> u64 {
        let mut new = 0;
        for block in offset / BLOCK_BYTES..(offset + bytes).div_ceil(BLOCK_BYTES) {
            let was = self.backed[block as usize].replace(true);
            new += u64::from(!was);
        }
        new
    }

    pub(super) fn punch(&self, offset: u64, bytes: u64) -> u64 {
        assert_eq!((offset % BLOCK_BYTES, bytes % BLOCK_BYTES), (0, 0));
        let mut gone = 0;
        for block in offset / BLOCK_BYTES..(offset + bytes) / BLOCK_BYTES {
            let was = self.backed[block as usize].replace(false);
            gone += u64::from(was);
        }
        let words = offset as usize / 8..(offset + bytes) as usize / 8;
        for (word, cell) in words.clone().zip(&self.words[words]) {
            let old = cell.replace(0);
            if old != 0
                && let Some(undo) = &mut *self.undo.borrow_mut()
            {
                undo.push((word, old));
            }
        }
        self.save(offset, bytes);
        self.told(|recorder| {
            recorder.zero(offset, bytes);
            recorder.persist(offset, bytes).unwrap();
        });
        gone
    }
}

impl Probe for TestMem {
    fn mutated(&self, mutation: seam::Mutation) -> bool {
        self.fuse.answers.mutated(mutation)
    }
    fn rare(&self, rare: seam::Rare) -> bool {
        self.fuse.answers.rare(rare)
    }
    fn met(&self, race: seam::Race) {
        self.fuse.answers.met(race);
    }
}

impl Mem for TestMem {
    fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }
    fn load(&self, offset: u64) -> u64 {
        let value = self.word(offset).get();
        if let Some((at, new)) = self.meanwhile.get().filter(|(at, _)| *at == offset) {
            self.meanwhile.set(None);
            self.put(at, new);
        }
        value
    }
    fn store(&self, offset: u64, value: u64) {
        self.fuse.burn();
        self.change(offset, value);
    }
    fn announce(&self, offset: u64, value: u64) {
        self.store(offset, value);
    }
    fn compare_exchange(&self, offset: u64, expected: u64, new: u64) -> Result<u64, u64> {
        self.fuse.burn();
        let old = self.word(offset).get();
        if old != expected {
            return Err(old);
        }
        self.change(offset, new);
        Ok(old)
    }
    fn fetch_add(&self, offset: u64, n: u64) -> u64 {
        self.fuse.burn();
        let old = self.word(offset).get();
        self.change(offset, old.wrapping_add(n));
        old
    }
    fn copy_out(&self, offset: u64, to: &mut [u8]) {
        let (words, rest) = to.as_chunks_mut::<8>();
        let mut there = self.words[offset as usize / 8..].iter();
        for (word, there) in words.iter_mut().zip(&mut there) {
            *word = there.get().to_ne_bytes();
        }
        if let Some(there) = there.next() {
            rest.copy_from_slice(&there.get().to_ne_bytes()[..rest.len()]);
        }
    }
    fn copy_in(&self, offset: u64, from: &[u8]) {
        for (index, chunk) in from.chunks_exact(8).enumerate() {
            self.store(offset + 8 * index as u64, u64::from_ne_bytes(chunk.try_into().unwrap()));
        }
    }
    fn zero(&self, offset: u64, bytes: u64) {
        let is_told = self.recorder.borrow().is_some();
        // A torn zeroing: every few words is one effect.
        for at in (offset..offset + bytes).step_by(128) {
            self.fuse.burn();
            let words = self.cells(at, 128.min(offset + bytes - at));
            if is_told || self.is_touched(at) && words.iter().any(|word| word.get() != 0) {
                (0..words.len() as u64).for_each(|word| self.change(at + 8 * word, 0));
            }
        }
    }
    fn equal(&self, first: u64, second: u64, bytes: u64) -> bool {
        let is_one_block = first % BLOCK_BYTES + bytes <= BLOCK_BYTES;
        if is_one_block && first.abs_diff(second).is_multiple_of(BLOCK_BYTES) {
            // Otherwise both are zero.
            if !self.is_touched(first) && !self.is_touched(second) {
                return true;
            }
        }
        self.cells(first, bytes) == self.cells(second, bytes)
    }
    fn prefetch(&self, _: u64) {}
    fn fence(&self) {}
    fn flush(&self, _: u64, _: u64) {}
}

impl Persist for TestMem {
    fn domain(&self) -> PersistenceDomain {
        match self.durability.get() {
            Durability::None => PersistenceDomain::None,
            Durability::Kept | Durability::Pretended => self.domain.get(),
        }
    }
    fn write_back(&self, offset: u64, bytes: u64) {
        self.told(|recorder| recorder.write_back(offset, bytes));
        if let Some(unsaved) = &mut *self.unsaved.borrow_mut() {
            let words = offset as usize / 8..(offset + bytes).div_ceil(8) as usize;
            for (_, word) in unsaved.range_mut(words) {
                word.sent = word.versions.len() - 1;
            }
        }
    }
    fn persist_fence(&self) -> std::result::Result<(), PersistError> {
        self.fuse.burn();
        self.told(|recorder| recorder.persist_fence().unwrap());
        if let (Durability::Kept, Some(unsaved)) =
            (self.durability.get(), &mut *self.unsaved.borrow_mut())
        {
            unsaved.retain(|_, word| {
                word.versions.drain(..std::mem::take(&mut word.sent));
                word.versions.len() > 1
            });
        }
        if self.is_persistent() { Ok(()) } else { Err(PersistError::Volatile) }
    }
}
