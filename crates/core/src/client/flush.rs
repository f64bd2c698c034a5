//! The way home of buffered writes: the write buffer of a handle and the transfer that is under
//! way from its packed half. It goes on whenever its handle looks at the fabric.
//!
//! In: completions, the time, losses of locks. Out: a [`Transfer`] to be driven ([`Flush::look`]),
//! and what became of the half. The bytes of the half that leaves are the runtime's: registered
//! with its fabric. The locks around it are the business of [`Coupled`](super::Coupled).

use super::{Access, Client, Transfer, TransferTables, WriteBuffer};
use crate::error::{Error, Result};
use crate::seam::{Mem, Nanos, WorkStatus};

/// Buffered writes and their way home.
#[derive(Debug)]
pub struct Flush {
    pub buffer: WriteBuffer,
    tables: TransferTables,
    under_way: Option<FlushInFlight>,
}

#[derive(Debug)]
struct FlushInFlight {
    deadline_ns: Nanos,
    may_step: bool,
    failed: Option<Error>,
    /// Losses of locks when it began.
    losses: u64,
}

/// What is to be done about a flush.
#[derive(Debug)]
pub enum Look {
    /// Nothing before a completion.
    Wait,
    /// Drive [`Flush::transfer`] as far as it goes.
    Go,
    /// It has ended that way.
    Ended(Error),
}

impl Flush {
    pub fn new(buffer: WriteBuffer) -> Self {
        Self { buffer, tables: TransferTables::default(), under_way: None }
    }

    /// Whether a half is under way.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Batches that were posted so far.
    pub fn doorbells(&self) -> u64 {
        self.tables.doorbells()
    }

    /// Begins to send what fills, or sends again what did not arrive; `packed` is where the half
    /// that leaves is. `round` tells its work requests from all others of the handle, `losses` is
    /// [`Losses::count`](super::Losses::count).
    pub fn begin(&mut self, packed: &mut [u8], round: u64, deadline_ns: Nanos, losses: u64) {
        assert!(self.under_way.is_none(), "one half is under way at a time");
        if !self.buffer.is_leaving() {
            self.buffer.leave(packed);
        }
        Transfer::new(&mut self.tables, round, Access::Write, self.buffer.pieces());
        let (may_step, failed) = (true, None);
        self.under_way = Some(FlushInFlight { deadline_ns, may_step, failed, losses });
    }

    /// Takes a completion if it is one of its own; whether it was.
    pub fn on_completion<M: Mem>(
        &mut self,
        client: &mut Client<M>,
        id: u64,
        status: WorkStatus,
    ) -> bool {
        let Some(under_way) = &mut self.under_way else { return false };
        if !self.tables.owns(id) {
            return false;
        }
        under_way.may_step = true;
        let mut transfer = Transfer::resume(&mut self.tables, self.buffer.pieces());
        if let Err(error) = transfer.on_completion(client, id, status) {
            under_way.failed.get_or_insert(error);
        }
        true
    }

    /// Until when it may be waited for.
    pub fn deadline_ns(&self) -> Option<Nanos> {
        self.under_way.as_ref().map(|under_way| under_way.deadline_ns)
    }

    /// What is to be done now, if a half is under way.
    pub fn look(&mut self, now_ns: Nanos, losses: &super::Losses, timeout_ms: u64) -> Option<Look> {
        let under_way = self.under_way.as_mut()?;
        if let Some(error) = under_way.failed.take() {
            return Some(Look::Ended(error));
        }
        if losses.count() != under_way.losses {
            // A caller that this loss was not reported to is told by the next access.
            return Some(Look::Ended(losses.last()));
        }
        if now_ns >= under_way.deadline_ns {
            return Some(Look::Ended(Transfer::time_up(timeout_ms)));
        }
        let goes = std::mem::take(&mut under_way.may_step);
        Some(if goes { Look::Go } else { Look::Wait })
    }

    /// The transfer that is under way, where its pieces are in the packed bytes, and whether it
    /// goes on with the next look without a completion of its own.
    pub fn transfer(&mut self) -> Option<(Transfer<'_>, &[u64], &mut bool)> {
        let Self { buffer, tables, under_way, .. } = self;
        let transfer = Transfer::resume(tables, buffer.pieces());
        Some((transfer, buffer.offsets(), &mut under_way.as_mut()?.may_step))
    }

    /// It has ended. What did not arrive then is the buffer's still; the packed bytes may be named
    /// by work requests of this try until their connections have ended.
    pub fn ended(&mut self, result: &Result<()>) {
        self.under_way = None;
        if result.is_ok() {
            self.buffer.arrived();
        }
    }
}
