//! What was forgotten and the log does not say yet: a ring in memory of a file, which outlives the
//! process at once and without a system call, though not a power cut.
//!
//! In: hashes of items that are gone, numbered from 1. Out: those that the log has still to take.
//! A log that was not closed in order is believed only together with its journal of the same boot.
//! Ordering rule: an entry's hash is stored before its number; an entry is overwritten only when
//! the log has it, or a later one says that all is gone.

use crate::constants::JOURNAL_ENTRIES;
use rackpool_core::seam::Mem;
use rackpool_mem::files;
use rackpool_mem::window::Window;
use rustix::fs::OFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

const MAGIC: u64 = u64::from_le_bytes(*b"rkplFJN1");
const HEADER_BYTES: u64 = 64;
const ENTRY_BYTES: u64 = 16;
const BYTES: u64 = HEADER_BYTES + JOURNAL_ENTRIES * ENTRY_BYTES;
/// In a number: all items are gone.
const ALL: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    Item(u64),
    All,
}

#[derive(Debug)]
pub(crate) struct GoneJournal {
    window: Window,
    /// Holds the lock that keeps other processes away.
    file: Option<OwnedFd>,
    next: u64,
    /// Entries up to this number are in the log.
    logged: u64,
}

impl GoneJournal {
    /// That of a file, which is made if it is not there; without one it ends with the process.
    ///
    /// # Errors
    /// What the system says; `WouldBlock` if another process has it, `InvalidData` if it holds
    /// something else.
    pub fn open(path: Option<&Path>) -> io::Result<GoneJournal> {
        let Some(path) = path else {
            return Ok(GoneJournal {
                window: Window::private(BYTES)?,
                file: None,
                next: 1,
                logged: 0,
            });
        };
        let file = files::open_private_linked(path, OFlags::RDWR | OFlags::CREATE)?;
        files::lock(&file)?;
        check(&file)?;
        let window = Window::of_file(file.as_fd(), BYTES)?;
        Ok(GoneJournal { window, file: Some(file), next: 1, logged: 0 })
    }

    /// Whether it is what a process of this boot has left of this log.
    pub fn is_of(&self, identity: u64, boot: u64) -> bool {
        let header = [0, 8, 16].map(|at| self.window.load(at));
        self.file.is_some() && header == [MAGIC, identity, boot]
    }

    /// Begins anew; numbers up to `logged` were used.
    pub fn reset(&mut self, identity: u64, boot: u64, start: u64, logged: u64) {
        self.window.store(0, 0);
        self.window.zero(HEADER_BYTES, BYTES - HEADER_BYTES);
        self.window.store(8, identity);
        self.window.store(16, boot);
        self.window.store(24, start);
        self.window.store(0, MAGIC);
        (self.next, self.logged) = (logged + 1, logged);
    }

    /// Takes over what an earlier process left; the log has entries up to `logged`.
    pub fn take_over(&mut self, logged: u64) -> Vec<(u64, Gone)> {
        let mut left: Vec<_> =
            (0..JOURNAL_ENTRIES).filter_map(|slot| self.entry_in(slot)).collect();
        left.retain(|(number, _)| *number > logged);
        left.sort_unstable_by_key(|(number, _)| *number);
        // What is before a flush may have been overwritten.
        if let Some(flush) = left.iter().rposition(|(_, gone)| *gone == Gone::All) {
            left.drain(..flush);
        }
        self.next = left.last().map_or(logged, |(number, _)| *number) + 1;
        self.logged = left.first().map_or(logged, |(number, _)| *number - 1);
        left
    }

    fn entry_in(&self, slot: u64) -> Option<(u64, Gone)> {
        let at = HEADER_BYTES + slot * ENTRY_BYTES;
        let number = self.window.load(at + 8);
        let gone = if number & ALL != 0 { Gone::All } else { Gone::Item(self.window.load(at)) };
        let number = number & !ALL;
        (number != 0 && number % JOURNAL_ENTRIES == slot).then_some((number, gone))
    }

    /// Regions with lower numbers are not of the log any more.
    pub fn start(&self) -> u64 {
        self.window.load(24)
    }

    pub fn set_start(&mut self, sequence: u64) {
        self.window.store(24, sequence);
    }

    /// Notes that an item is gone; `false` if there is no room.
    pub fn add(&mut self, hash: u64) -> bool {
        let has_room = self.next - self.logged <= JOURNAL_ENTRIES;
        if has_room {
            self.put(hash, self.next);
        }
        has_room
    }

    /// Notes that all items are gone, which says all that entries before it say.
    pub fn add_all(&mut self) {
        self.put(0, self.next | ALL);
        self.logged = self.next - 2;
    }

    fn put(&mut self, hash: u64, number: u64) {
        let at = HEADER_BYTES + (number & !ALL) % JOURNAL_ENTRIES * ENTRY_BYTES;
        self.window.store(at, hash);
        self.window.store(at + 8, number);
        self.next += 1;
    }

    /// The entries behind `number` that the log does not have.
    pub fn since(&self, number: u64) -> impl Iterator<Item = (u64, Gone)> {
        let numbers = number.max(self.logged) + 1..self.next;
        numbers.map(|number| {
            let entry = self.entry_in(number % JOURNAL_ENTRIES);
            entry.expect("an entry stays until the log has it")
        })
    }

    pub fn last(&self) -> u64 {
        self.next - 1
    }

    /// How many the log has not.
    pub fn unlogged(&self) -> u64 {
        self.last() - self.logged
    }

    /// Whether the log has all of them.
    pub fn is_logged(&self) -> bool {
        self.logged == self.last()
    }

    /// Entries up to this number are in the log.
    pub fn logged(&self) -> u64 {
        self.logged
    }

    pub fn set_logged(&mut self, number: u64) {
        self.logged = self.logged.max(number);
    }
}

/// Refuses a file that is no journal.
fn check(file: &OwnedFd) -> io::Result<()> {
    let (bytes, mut word) = (rustix::fs::fstat(file)?.st_size, [0; 8]);
    if bytes > 0 {
        rustix::io::pread(file, &mut word, 0)?;
    }
    // 0 while it is made.
    let is_own = bytes == BYTES as i64 && [0, MAGIC].contains(&u64::from_le_bytes(word));
    if bytes == 0 || is_own {
        return Ok(());
    }
    let what = "it holds something else: name another place, or remove it";
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_mem::temporary::TemporaryDir;

    #[test]
    fn what_the_log_lacks_is_there_after_the_process_and_nothing_is_overwritten_before() {
        let folder = TemporaryDir::new(&std::env::temp_dir(), "journal").unwrap();
        let path = folder.path().join("journal");
        let mut journal = GoneJournal::open(Some(&path)).unwrap();
        assert!(!journal.is_of(1, 2));
        journal.reset(1, 2, 3, 100);
        assert!((0..JOURNAL_ENTRIES).all(|hash| journal.add(hash)));
        assert!(!journal.add(0));
        journal.set_logged(150);
        assert!((0..50).all(|hash| journal.add(1_000_000 + hash)) && !journal.add(0));
        assert_eq!(journal.since(0).next(), Some((151, Gone::Item(50))));
        drop(journal);
        let mut journal = GoneJournal::open(Some(&path)).unwrap();
        assert!(journal.is_of(1, 2) && !journal.is_of(1, 3) && journal.start() == 3);
        // The log has said more than this process knew to be there.
        let left = journal.take_over(160);
        let last = 150 + JOURNAL_ENTRIES;
        assert_eq!((left.len() as u64, left[0]), (last - 160, (161, Gone::Item(60))));
        assert_eq!(*left.last().unwrap(), (last, Gone::Item(1_000_049)));
        journal.add_all();
        assert!(journal.add(7));
        let wanted = [(last + 1, Gone::All), (last + 2, Gone::Item(7))];
        assert!(journal.since(0).eq(wanted));
        drop(journal);
        let mut journal = GoneJournal::open(Some(&path)).unwrap();
        assert_eq!(journal.take_over(160), wanted);
        assert_eq!(journal.last(), last + 2);
    }
}
