//! What outlives a loss of power, in a region that can: ranges of pages on request, pages that come
//! from other racks, and objects that are zeroed for the next user.
//!
//! In: requests of clients of any rack. Out: an acknowledgement when the range is durable here. A
//! one-sided write of another rack has completed before its client asks, so that the bytes are in
//! this host's memory or caches; that they are durable only this host can say: the completion of a
//! fabric does not. Called by `mod.rs`, `alloc.rs`, `moves.rs`.
//!
//! What a client asks for in a file of the page cache takes as long as its device: that is done
//! beside the engine, which serves others meanwhile. Only the answer hangs on it: a page that is
//! freed or moved in between loses nothing by being written once more.

use crate::addr::{FrameIndex, GAddr};
use crate::copies;
use crate::daemon::moves::Asker;
use crate::daemon::{ClientId, Daemon, Outbox, World};
use crate::error::{Error, Result};
use crate::layout::{FRAMES_OFFSET, SESSIONS_OFFSET};
use crate::persist::{Persist, PersistError, PersistenceDomain};
use crate::seam::{Mem, Mutation, Probe};
use crate::wire::{Reply, ReplyFrame};

/// A range of the pages that a client wants to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PersistJob {
    pub offset: u64,
    pub bytes: u64,
    record: u32,
    session: u64,
    seq: u64,
}

/// Waits until a range of the pages is durable, where the memory outlives a loss of power.
pub(super) fn persist_pages<W: World>(world: &W, offset: u64, bytes: u64) -> Result<()> {
    let pages = world.pages();
    if !pages.is_persistent() {
        return Ok(());
    }
    pages.persist(offset, bytes).map_err(|error| not_durable(bytes, error))
}

fn not_durable(bytes: u64, error: PersistError) -> Error {
    let what = format!("making {bytes} bytes of pages durable");
    Error::Io { what, reason: error.to_string() }
}

/// Drops what was of processes that ended with the power: sessions and locks. They were not made
/// durable, so that their copies need not agree.
pub(super) fn drop_volatile<W: World>(world: &W) {
    let mem = world.private();
    if mem.mutated(Mutation::KeepDeadSessions) {
        return;
    }
    for place in copies::places(mem.bytes(), SESSIONS_OFFSET) {
        mem.zero(place, FRAMES_OFFSET - SESSIONS_OFFSET);
    }
}

impl Daemon {
    /// The answer, unless it comes later.
    pub(super) fn persist<W: World>(
        &self,
        asker: Asker,
        addr: GAddr,
        bytes: u64,
        world: &mut W,
    ) -> Option<Result<Reply>> {
        let offset = match self.persistent_range(addr, bytes, world) {
            Ok(offset) => offset,
            Err(error) => return Some(Err(error)),
        };
        if world.private().mutated(Mutation::AcknowledgeUnpersisted) {
            return Some(Ok(Reply::Persisted));
        }
        let Asker { record, seq, .. } = asker;
        let session = self.sessions.session(record);
        let is_slow = world.pages().domain() == PersistenceDomain::Msync;
        if is_slow && world.outbox().persist(PersistJob { offset, bytes, record, session, seq }) {
            return None;
        }
        Some(persist_pages(world, offset, bytes).map(|()| Reply::Persisted))
    }

    fn persistent_range<W: World>(&self, addr: GAddr, bytes: u64, world: &W) -> Result<u64> {
        let (_, offset, _) = self.home_of(addr, world)?;
        self.check_in_page(addr, bytes)?;
        if world.pages().is_persistent() {
            return Ok(offset);
        }
        let reason = format!(
            "{addr} is in rack {}, with memory that does not outlive a loss of power: nothing \
             there can be made durable; use a rack with --memory pmem:",
            self.rack
        );
        Err(Error::Denied { reason })
    }

    /// What came of a job. A client that has ended gets no answer.
    pub fn on_persisted<W: World>(
        &mut self,
        job: PersistJob,
        result: std::result::Result<(), PersistError>,
        world: &mut W,
    ) {
        let PersistJob { bytes, record, session, seq, .. } = job;
        if self.sessions.session(record) != session {
            return;
        }
        let reply = result.map(|()| Reply::Persisted).map_err(|error| not_durable(bytes, error));
        self.answers.note(&reply);
        world.outbox().reply(ClientId::of_record(record), ReplyFrame { seq, reply });
    }

    /// A piece of a page has come from the rack's file or from another of its memories: it is
    /// durable here before what it came from is given back.
    pub(super) fn persist_piece<W: World>(&self, offset: u64, bytes: u64, world: &W) -> Result<()> {
        match world.private().mutated(Mutation::AcknowledgeUnpersisted) {
            true => Ok(()),
            false => persist_pages(world, offset, bytes),
        }
    }

    /// A page has come as a whole: it is durable here before its old home lets go of it.
    pub(super) fn persist_frame<W: World>(&self, frame: u32, world: &W) -> Result<()> {
        let offset = self.layout.frame_offset(FrameIndex(frame));
        persist_pages(world, offset, self.layout.pages.page_bytes())
    }
}
