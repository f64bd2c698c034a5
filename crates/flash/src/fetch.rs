//! Reads of items: several at once, by threads that wait for the device, so that no other has to.
//!
//! In: hashes and keys, in a queue of a limited length. Out: each item, or that it is not there, by
//! a call on the reading thread.

use crate::constants::{FETCH_BATCH, FETCHES_MAX};
use crate::error::{Error, Result};
use crate::index::IndexWord;
use crate::layout::{RecordKind, read_record};
use crate::log::{FlashShared, drop_item, lock};
use rackpool_mem::direct::{AlignedBytes, DirectTransfer};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::{fmt, io};

/// How often an item is looked for that has moved meanwhile.
const TRIES_MAX: u32 = 4;

/// An item as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashItem {
    pub value: Vec<u8>,
    pub flags: u32,
    pub kind: u8,
    pub expires: u64,
    pub cas: u64,
    pub version: u128,
}

/// The item, if it is there.
pub type FlashFetched = Result<Option<FlashItem>>;

pub(crate) struct ItemFetch {
    pub hash: u64,
    pub key: Box<[u8]>,
    pub done: Box<dyn FnOnce(FlashFetched) + Send>,
}

#[derive(Default)]
pub(crate) struct FetchQueue {
    waiting: Mutex<WaitingFetches>,
    news: Condvar,
}

#[derive(Default)]
struct WaitingFetches {
    fetches: VecDeque<ItemFetch>,
    is_over: bool,
}

impl fmt::Debug for FetchQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FetchQueue({})", lock(&self.waiting).fetches.len())
    }
}

impl FetchQueue {
    pub fn push(&self, fetch: ItemFetch) -> Result<()> {
        let mut waiting = lock(&self.waiting);
        if waiting.fetches.len() >= FETCHES_MAX || waiting.is_over {
            return Err(Error::Busy { waiting: waiting.fetches.len() });
        }
        waiting.fetches.push_back(fetch);
        drop(waiting);
        self.news.notify_one();
        Ok(())
    }

    /// Nothing more is taken; what waits is done.
    pub fn end(&self) {
        lock(&self.waiting).is_over = true;
        self.news.notify_all();
    }

    /// Does what comes, until the end.
    pub fn serve(&self, shared: &FlashShared, at_once: usize) {
        let mut fetches = Vec::with_capacity(at_once);
        loop {
            let mut waiting = lock(&self.waiting);
            while waiting.fetches.is_empty() {
                if waiting.is_over {
                    return;
                }
                waiting = self.news.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            let count = waiting.fetches.len().min(at_once.min(FETCH_BATCH));
            fetches.extend(waiting.fetches.drain(..count));
            drop(waiting);
            let wanted: Vec<_> = fetches.iter().map(|one| (one.hash, &*one.key)).collect();
            let found = read(shared, &wanted);
            for (fetch, found) in fetches.drain(..).zip(found) {
                (fetch.done)(found);
            }
        }
    }
}

/// A read under way: which of those that are wanted, where it lies, and its blocks.
struct ItemRead {
    index: usize,
    word: IndexWord,
    emptied: u64,
    blocks: AlignedBytes,
}

/// Reads items. Blocks until the device has answered.
pub(crate) fn read(shared: &FlashShared, wanted: &[(u64, &[u8])]) -> Vec<FlashFetched> {
    let mut found: Vec<_> = wanted.iter().map(|_| Ok(None)).collect();
    let mut left: Vec<usize> = (0..wanted.len()).collect();
    // Before any is looked up.
    let emptied = shared.emptied();
    for _ in 0..TRIES_MAX {
        let mut reads = Vec::new();
        let mut again = Vec::new();
        for index in left {
            let (hash, key) = wanted[index];
            match shared.index.get(hash) {
                None => {}
                Some(word) if word.is_pending() => match lock(&shared.tail).read(word) {
                    Some(bytes) => found[index] = Ok(item_in(&bytes, hash, key, word, emptied)),
                    // It was written in this moment.
                    None => again.push(index),
                },
                Some(word) => {
                    let blocks = AlignedBytes::zeroed(word.span().1);
                    reads.push(ItemRead { index, word, emptied, blocks });
                }
            }
        }
        run(shared, &mut reads, wanted, &mut found, &mut again);
        if again.is_empty() {
            break;
        }
        left = again;
    }
    for result in &found {
        match result {
            Ok(Some(_)) => shared.counters.hits.add(1),
            _ => shared.counters.misses.add(1),
        }
    }
    found
}

fn run(
    shared: &FlashShared,
    reads: &mut [ItemRead],
    wanted: &[(u64, &[u8])],
    found: &mut [FlashFetched],
    again: &mut Vec<usize>,
) {
    let mut transfers: Vec<_> = reads
        .iter_mut()
        .map(|read| DirectTransfer::read(read.word.span().0, &mut read.blocks))
        .collect();
    if transfers.is_empty() {
        return;
    }
    shared.device.run(&mut transfers);
    let results: Vec<_> = transfers.into_iter().map(|transfer| transfer.result).collect();
    for (read, result) in reads.iter().zip(results) {
        let (hash, key) = wanted[read.index];
        let (start, len) = read.word.span();
        shared.counters.read_bytes.add(len as u64);
        if let Err(source) = result {
            shared.note_bad(start);
            if !shared.is_store {
                drop_item(shared, hash, read.word);
            }
            let what = format!("reading {len} bytes at {start}");
            found[read.index] = Err(Error::Io { what, source });
            continue;
        }
        let at = (read.word.place() - start) as usize;
        let bytes = &read.blocks[at..at + read.word.bytes()];
        match item_in(bytes, hash, key, read.word, read.emptied) {
            Some(item) => {
                shared.index.mark_used(hash);
                found[read.index] = Ok(Some(item));
            }
            None if is_of_other_key(bytes, hash) => {}
            // Its region was written anew meanwhile, or its bytes are damaged.
            None if shared.index.get(hash).is_some_and(|word| word.is_at(read.word)) => {
                shared.counters.damaged.add(1);
                if shared.is_store {
                    let source = io::Error::new(io::ErrorKind::InvalidData, "it is damaged");
                    let what = format!("reading {len} bytes at {start}");
                    found[read.index] = Err(Error::Io { what, source });
                } else {
                    drop_item(shared, hash, read.word);
                }
            }
            None => again.push(read.index),
        }
    }
}

/// `emptied`: regions that were emptied before it was looked up.
fn item_in(
    bytes: &[u8],
    hash: u64,
    key: &[u8],
    word: IndexWord,
    emptied: u64,
) -> Option<FlashItem> {
    let (what, record) = read_record(bytes)?;
    let is_it = what == RecordKind::Item && record.hash == hash && record.key == key;
    is_it.then(|| FlashItem {
        value: record.value.to_vec(),
        flags: record.flags,
        kind: record.kind,
        expires: record.expires,
        cas: record.cas,
        version: u128::from(emptied) << 64 | u128::from(word.version()),
    })
}

/// Whether it is whole, but of another key with this hash.
fn is_of_other_key(bytes: &[u8], hash: u64) -> bool {
    read_record(bytes).is_some_and(|(_, record)| record.hash == hash)
}
