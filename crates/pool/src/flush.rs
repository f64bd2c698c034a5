//! The way home of buffered writes: the write buffer of a handle, its registered half, and the
//! transfer that is under way from there. Like a submission, it goes on whenever its handle looks
//! at the fabric, and its owner (`coupled.rs`) waits for it where the order of things asks for it.

use crate::clock;
use crate::drive::{Advanced, Buffers, advance};
use crate::links::{Links, fabric_error};
use rackpool_core::Result;
use rackpool_core::client::{Access, Client, Operation, Transfer, TransferTables, WriteBuffer};
use rackpool_core::seam::{BufId, WorkStatus};
use rackpool_hw::fabric::{Endpoint, LocalBuffers};
use rackpool_hw::window::Window;

/// Buffered writes and their way home.
pub(crate) struct Flush {
    pub(crate) buffer: WriteBuffer,
    tables: TransferTables,
    /// The half that leaves, packed.
    packed: BufId,
    under_way: Option<UnderWay>,
}

struct UnderWay {
    deadline_ns: u64,
    may_step: bool,
    failed: Option<rackpool_core::Error>,
    /// Losses of locks when it began.
    losses: u64,
}

impl Flush {
    /// An empty buffer.
    pub(crate) fn new(buffer: WriteBuffer, endpoint: &mut Endpoint) -> Result<Self> {
        let packed = endpoint.register(vec![0; buffer.half_bytes()]).map_err(fabric_error)?;
        Ok(Self { buffer, tables: TransferTables::default(), packed, under_way: None })
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Batches that were posted so far.
    pub(crate) fn doorbells(&self) -> u64 {
        self.tables.doorbells()
    }

    /// The bytes of the half that leaves.
    pub(crate) fn packed<'e>(&self, endpoint: &'e Endpoint) -> &'e [u8] {
        endpoint.buffer(self.packed)
    }

    /// Begins to send what fills, or sends again what did not arrive. `round` tells its work
    /// requests from all others of the handle.
    pub(crate) fn begin(&mut self, endpoint: &mut Endpoint, links: &Links, round: u64) {
        assert!(self.under_way.is_none(), "one half is under way at a time");
        if !self.buffer.is_leaving() {
            self.buffer.leave(endpoint.buffer_mut(self.packed));
        }
        Transfer::new(&mut self.tables, round, Access::Write, self.buffer.pieces());
        self.under_way = Some(UnderWay {
            deadline_ns: clock::deadline_ns(links.options().request_timeout_ms),
            may_step: true,
            failed: None,
            losses: links.loss_count(),
        });
    }

    /// Takes a completion if it is one of its own; whether it was.
    pub(crate) fn on_completion(
        &mut self,
        client: &mut Client<Window>,
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
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.under_way.as_ref().map(|under_way| under_way.deadline_ns)
    }

    /// Goes on without waiting for the fabric; its result when it has ended. What did not arrive
    /// then is the buffer's still.
    pub(crate) fn step(
        &mut self,
        client: &mut Client<Window>,
        links: &mut Links,
        endpoint: &mut Endpoint,
    ) -> Option<Result<()>> {
        let under_way = self.under_way.as_mut()?;
        let is_late = clock::now_ns() >= under_way.deadline_ns;
        let is_lost = links.loss_count() != under_way.losses;
        let mut transfer = Transfer::resume(&mut self.tables, self.buffer.pieces());
        let result = if let Some(error) = under_way.failed.take() {
            Err(error)
        } else if is_lost {
            Err(links.loss())
        } else if is_late {
            let timeout_ms = links.options().request_timeout_ms;
            Err(Operation::<Window>::on_deadline(&mut transfer, timeout_ms))
        } else if !std::mem::take(&mut under_way.may_step) {
            return None;
        } else {
            let buffers = Buffers::Packed(self.packed, self.buffer.offsets());
            let deadline_ns = under_way.deadline_ns;
            match advance(client, links, endpoint, buffers, &mut transfer, deadline_ns) {
                Ok(Advanced::Posted) => return None,
                Ok(Advanced::Done(())) => Ok(()),
                Err(error) => Err(error),
            }
        };
        self.under_way = None;
        match result {
            Ok(()) => self.buffer.arrived(),
            // Work requests of this try may name the buffer: it comes back under another name.
            Err(_) => {
                let bytes = endpoint.take(self.packed);
                let renewed = endpoint.register(bytes);
                self.packed = renewed.expect("the place that was left is free");
            }
        }
        Some(result)
    }
}
