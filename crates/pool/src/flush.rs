//! The write buffer of a handle with the registered half that leaves it. Like a submission, a
//! flush goes on whenever its handle looks at the fabric; what is sent when is the business of
//! `core::client::Coupled`.

use crate::clock;
use crate::drive::{Buffers, OperationBuffers, block};
use crate::links::{Links, fabric_error};
use rackpool_core::Result;
use rackpool_core::client::{Client, Flush, WriteBuffer};
use rackpool_core::runtime::client::TimeLimit;
use rackpool_core::seam::BufId;
use rackpool_fabric::{Endpoint, LocalBuffers};
use rackpool_mem::window::Window;

/// Buffered writes and the bytes of their half that leaves.
pub(crate) struct PackedFlush {
    pub(crate) flush: Flush,
    /// The half that leaves, packed.
    packed: BufId,
}

impl PackedFlush {
    /// An empty buffer.
    pub(crate) fn new(buffer: WriteBuffer, endpoint: &mut Endpoint) -> Result<Self> {
        let packed = endpoint.register(vec![0; buffer.half_bytes()]).map_err(fabric_error)?;
        Ok(Self { flush: Flush::new(buffer), packed })
    }

    /// The bytes of the half that leaves.
    pub(crate) fn packed<'e>(&self, endpoint: &'e Endpoint) -> &'e [u8] {
        endpoint.buffer(self.packed)
    }

    /// Begins to send what fills, or sends again what did not arrive.
    pub(crate) fn begin(&mut self, endpoint: &mut Endpoint, links: &Links, round: u64) {
        let deadline_ns = clock::deadline_ns(links.options().request_timeout_ms);
        let packed = endpoint.buffer_mut(self.packed);
        self.flush.begin(packed, round, deadline_ns, links.losses.count());
    }

    /// Goes on without waiting for the fabric; its result when it has ended.
    pub(crate) fn step(
        &mut self,
        client: &mut Client<Window>,
        links: &mut Links,
        endpoint: &mut Endpoint,
    ) -> Option<Result<()>> {
        let timeout_ms = links.options().request_timeout_ms;
        let deadline_ns = self.flush.deadline_ns()?;
        let limit = TimeLimit { deadline: deadline_ns, timeout_ms };
        let packed = self.packed;
        let buffers = |offsets| OperationBuffers::alone(Buffers::Packed(packed, offsets));
        let runtime = links.runtime(client, endpoint);
        let step = runtime.step_flush(&mut self.flush, limit, clock::now_ns(), buffers);
        let result = block(step)?;
        self.flush.ended(&result);
        if result.is_err() {
            // Work requests of this try may name the buffer: it comes back under another name.
            let bytes = endpoint.take(self.packed);
            let renewed = endpoint.register(bytes);
            self.packed = renewed.expect("the place that was left is free");
        }
        Some(result)
    }
}
