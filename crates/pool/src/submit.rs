//! Submissions: reads and writes that run while their handle does something else. A submission
//! takes its buffer and its completion returns it, so nothing that is under way can outlive the
//! memory that it names.

use crate::clock;
use crate::drive::PackedFlush;
use crate::drive::{Buffers, Parts, block, driver};
use crate::links::{Links, fabric_error};
use rackpool_core::client::{Access, Client, Piece, Progress, Transfer, TransferTables};
use rackpool_core::seam::{BufId, WorkStatus};
use rackpool_core::{Error, GAddr, Result};
use rackpool_fabric::{Endpoint, LocalBuffers};
use rackpool_mem::window::Window;
use std::collections::VecDeque;

/// Submissions of one handle under way; more is `Busy`.
pub(crate) const SUBMISSIONS_MAX: usize = 64;

/// Names a submission; never used twice by a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A submission that has ended.
#[derive(Debug)]
pub struct Completed {
    /// Which one.
    pub ticket: Ticket,
    /// How it ended; after an error the buffer's bytes mean nothing.
    pub result: crate::Result<()>,
    /// The buffer that was given.
    pub buffer: Vec<u8>,
}

struct Submission {
    ticket: Ticket,
    pieces: [Piece; 1],
    buf: BufId,
    tables: TransferTables,
    deadline_ns: u64,
    failed: Option<Error>,
    may_step: bool,
    /// Losses of locks when it began.
    losses: u64,
}

/// The submissions of one handle.
#[derive(Default)]
pub(crate) struct Submissions {
    /// Buffered writes of the handle, once it has any.
    pub(crate) flush: Option<Box<PackedFlush>>,
    under_way: Vec<Submission>,
    spare: Vec<TransferTables>,
    done: VecDeque<Completed>,
}

impl Submissions {
    /// How many there are, those among them that have ended and were not taken.
    pub(crate) fn count(&self) -> usize {
        self.under_way.len() + self.done.len()
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a handle, borrowed one by one")]
    pub(crate) fn submit(
        &mut self,
        client: &mut Client<Window>,
        links: &mut Links,
        endpoint: &mut Endpoint,
        round: u64,
        access: Access,
        addr: GAddr,
        buffer: &mut Vec<u8>,
    ) -> Result<Ticket> {
        if self.count() >= SUBMISSIONS_MAX {
            let limit = SUBMISSIONS_MAX as u64;
            return Err(Error::Busy { what: "submissions".into(), limit });
        }
        let pieces = [Piece { addr, bytes: buffer.len() as u64 }];
        // Room is made sure of first: what has none is dropped, and this buffer is not ours yet.
        let room = endpoint.register(Vec::new()).map_err(fabric_error)?;
        endpoint.take(room);
        let buf = endpoint.register(std::mem::take(buffer)).map_err(fabric_error)?;
        let mut tables = self.spare.pop().unwrap_or_default();
        Transfer::new(&mut tables, round, access, &pieces);
        let deadline_ns = clock::deadline_ns(links.timeout_ms());
        let ticket = Ticket(round);
        let losses = links.loss_count();
        let (failed, may_step) = (None, true);
        let mut submission =
            Submission { ticket, pieces, buf, tables, deadline_ns, failed, may_step, losses };
        // While others are under way it waits for more to share a call to the system with, until
        // the next look at what has ended.
        endpoint.set_gathering(true);
        let ended = submission.step(client, links, endpoint);
        endpoint.set_gathering(false);
        match ended {
            None => self.under_way.push(submission),
            Some(result) => self.finish(submission, result, endpoint),
        }
        Ok(ticket)
    }

    /// Hands a completion to the submission that it belongs to; whether there is one.
    pub(crate) fn on_completion(
        &mut self,
        client: &mut Client<Window>,
        id: u64,
        status: WorkStatus,
    ) -> bool {
        if let Some(packed) = &mut self.flush
            && packed.flush.on_completion(client, id, status)
        {
            return true;
        }
        let owner = self.under_way.iter_mut().find(|one| one.tables.owns(id));
        let Some(submission) = owner else { return false };
        submission.may_step = true;
        let mut transfer = Transfer::resume(&mut submission.tables, &submission.pieces);
        if let Err(error) = transfer.on_completion(client, id, status) {
            submission.failed.get_or_insert(error);
        }
        true
    }

    /// Takes what the fabric has done meanwhile; a submission that ended, if there is one.
    pub(crate) fn poll(
        &mut self,
        client: &mut Client<Window>,
        links: &mut Links,
        endpoint: &mut Endpoint,
    ) -> Result<Option<Completed>> {
        if let Some(done) = self.done.pop_front() {
            return Ok(Some(done));
        }
        links.poll_completions(endpoint);
        for (id, status) in links.take_completions() {
            self.on_completion(client, id, status);
        }
        let now_ns = clock::now_ns();
        let mut index = 0;
        while index < self.under_way.len() {
            let one = &mut self.under_way[index];
            let ended = if one.may_step || now_ns >= one.deadline_ns {
                one.step(client, links, endpoint)
            } else {
                None
            };
            match ended {
                None => index += 1,
                Some(result) => {
                    let submission = self.under_way.swap_remove(index);
                    self.finish(submission, result, endpoint);
                }
            }
        }
        Ok(self.done.pop_front())
    }

    /// As [`Submissions::poll`], until one ends, nothing is under way, or the deadline.
    pub(crate) fn wait(
        &mut self,
        client: &mut Client<Window>,
        links: &mut Links,
        endpoint: &mut Endpoint,
        deadline_ns: u64,
    ) -> Result<Option<Completed>> {
        loop {
            if let Some(done) = self.poll(client, links, endpoint)? {
                return Ok(Some(done));
            }
            let first = self.under_way.iter().map(|one| one.deadline_ns).min();
            let Some(first) = first.filter(|_| clock::now_ns() < deadline_ns) else {
                return Ok(None);
            };
            links.wait_completions(endpoint, deadline_ns.min(first));
        }
    }

    fn finish(&mut self, submission: Submission, result: Result<()>, endpoint: &mut Endpoint) {
        let Submission { ticket, buf, tables, .. } = submission;
        let buffer = endpoint.take(buf);
        self.spare.push(tables);
        let result = result.map_err(crate::Error::from);
        self.done.push_back(Completed { ticket, result, buffer });
    }
}

impl Submission {
    /// Goes on; its result if it has ended.
    fn step(
        &mut self,
        client: &mut Client<Window>,
        links: &mut Links,
        endpoint: &mut Endpoint,
    ) -> Option<Result<()>> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        if links.loss_count() != self.losses {
            return Some(Err(links.loss()));
        }
        let timeout_ms = links.timeout_ms();
        self.may_step = false;
        if clock::now_ns() >= self.deadline_ns {
            return Some(Err(Transfer::time_up(timeout_ms)));
        }
        let mut transfer = Transfer::resume(&mut self.tables, &self.pieces);
        let parts = Parts { client, links, endpoint, submissions: None };
        let mut driver = driver(parts, Buffers::Owned(self.buf), self.deadline_ns);
        match block(driver.run(async |cx| transfer.advance(cx).await)) {
            Ok(Progress::Posted) => None,
            Ok(Progress::NoRoom) => {
                self.may_step = true;
                None
            }
            Ok(Progress::Done) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        }
    }
}
