//! Reading replicas: pages of another rack of which a keeper of the own rack keeps the bytes here.
//!
//! All of it is ordinary memory of the own rack, read by ordinary guarded accesses: the directory,
//! its entry for the page, the replica. Nothing is cached, and no process is asked.
//!
//! ```text
//! w = the entry's word;  page and address of the entry;  copy;  until;  now;  the word again
//! valid if w is open, the page is the one, now < until, and the word is w again
//! ```
//!
//! *Why it is right.* A process that changes the entry or the bytes adds to the word before and
//! after; only a process that changed nothing takes its addition back. So a word that is open has a
//! value that comes once, and if it was `w` before the copy and after the time was taken, nothing
//! changed in between: the bytes are those that the replica had when the time was taken. At that
//! time the lease was not over, so no process had written to the page without having closed this
//! replica, nor opened it without having written the same to it: the bytes were the page's. A
//! reader that is stopped anywhere in it finds out at the end. If the keeper's memory is given back
//! and used again, the guarded accesses fail, or the last one does.
//!
//! Source: Rcmp §5.3; decision 0031.

use super::{Access, Client, LinkId, OWN, Reach};
use crate::addr::GAddr;
use crate::constants::REPLICA_BITS_MAX;
use crate::replica::{
    ENTRY_DATA, ENTRY_PAGE, ENTRY_WORD, EntryWord, HEAD_BITS, HEAD_UNTIL, entry_offset, home_index,
};
use crate::seam::{Mem, Mutation, Nanos, Race};

/// How the reading of a replica ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaRead {
    Done,
    /// There is none, or none that may be read now: the page's home has the bytes.
    None,
    /// This address of the own rack has to be found first; then it is tried again.
    Untouched(GAddr),
}

impl<M: Mem> Client<M> {
    /// Reads from a replica of a page that is reached over the fabric. If it is not
    /// [`ReplicaRead::Done`], what is in `to` means nothing. `now` is the time of the host,
    /// the same for all its processes.
    pub fn read_replica(
        &self,
        addr: GAddr,
        to: &mut [u8],
        now: impl FnOnce() -> Nanos,
    ) -> ReplicaRead {
        match self.try_replica(addr, to, now) {
            Ok(()) => {
                self.met(Race::ReplicaRead);
                self.note_remote(addr, Access::Read);
                ReplicaRead::Done
            }
            Err(miss) => miss,
        }
    }

    fn try_replica(
        &self,
        addr: GAddr,
        to: &mut [u8],
        now: impl FnOnce() -> Nanos,
    ) -> Result<(), ReplicaRead> {
        let page = self.geometry.page(addr);
        let offset = self.geometry.offset(addr);
        let entry = self.translations.get(page).ok_or(ReplicaRead::None)?;
        let view = self.view(OWN).ok_or(ReplicaRead::None)?;
        let home = &self.links[entry.link.0 as usize];
        let fits = offset + to.len() as u64 <= self.geometry.page_bytes();
        if matches!(home.reach, Reach::Mapped(_)) || !fits {
            return Err(ReplicaRead::None);
        }
        let word = view.layout.replicas_word(home_index(home.rack));
        // How long a copy may be read is said in the time of the daemon's host.
        if view.is_apart() {
            return Err(ReplicaRead::None);
        }
        let directory = GAddr(view.table.load(word));
        if directory.is_null() {
            return Err(ReplicaRead::None);
        }
        let bits = self.load_own(directory, HEAD_BITS)?;
        let bits = u32::try_from(bits).unwrap_or(u32::MAX);
        if bits > REPLICA_BITS_MAX {
            return Err(ReplicaRead::None);
        }
        let entry = entry_offset(page, bits);
        let word = self.load_own(directory, entry + ENTRY_WORD)?;
        if !EntryWord(word).is_open() || self.load_own(directory, entry + ENTRY_PAGE)? != page.0 {
            return Err(ReplicaRead::None);
        }
        let data = GAddr(self.load_own(directory, entry + ENTRY_DATA)?);
        self.own(data, offset, to.len() as u64, |pages, at| pages.copy_out(at, to))?;
        let until = self.load_own(directory, HEAD_UNTIL)?;
        let in_time = now() < until || self.mutated(Mutation::ReadExpiredReplica);
        let again = self.load_own(directory, entry + ENTRY_WORD)?;
        let is_open = again == word || self.mutated(Mutation::SkipReplicaRecheck);
        if in_time && is_open { Ok(()) } else { Err(ReplicaRead::None) }
    }

    fn load_own(&self, at: GAddr, offset: u64) -> Result<u64, ReplicaRead> {
        self.own(at, offset, 8, |pages, at| pages.load(at))
    }

    /// An access to memory of the own rack at an address that was read in shared memory.
    #[inline]
    fn own<R>(
        &self,
        at: GAddr,
        offset: u64,
        bytes: u64,
        access: impl FnOnce(&M, u64) -> R,
    ) -> Result<R, ReplicaRead> {
        let at = at.checked_add(offset).ok_or(ReplicaRead::None)?;
        let (page, in_page) = (self.geometry.page(at), self.geometry.offset(at));
        if in_page + bytes > self.geometry.page_bytes() || !at.0.is_multiple_of(8) && bytes == 8 {
            return Err(ReplicaRead::None);
        }
        let entry = self.translations.get(page).ok_or(ReplicaRead::Untouched(at))?;
        let view = self.view(OWN).filter(|_| entry.link == OWN).ok_or(ReplicaRead::None)?;
        let run = |pages: &M| access(pages, entry.base + in_page);
        let place = (Access::Read, entry.base + in_page, bytes);
        Self::guarded(view, entry, place, run).ok_or(ReplicaRead::Untouched(at))
    }

    /// The link over which an address's page is reached, if that is the fabric and the page may
    /// have a replica here. Without a policy there are no replicas, and nothing is looked at. A
    /// client with a lock there reads no replica: [`super::HeldLocks::holds_at`].
    #[inline]
    pub fn may_have_replica(&self, addr: GAddr) -> Option<LinkId> {
        if !self.usage.is_on() {
            return None;
        }
        let entry = self.translations.get(self.geometry.page(addr))?;
        let (view, link) = (self.view(OWN)?, &self.links[entry.link.0 as usize]);
        let word = view.layout.replicas_word(home_index(link.rack));
        let may = matches!(link.reach, Reach::OneSided(_))
            && !view.is_apart()
            && view.table.load(word) != 0;
        may.then_some(entry.link)
    }
}
