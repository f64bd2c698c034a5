//! The write buffer of a handle with the registered half that leaves it. Like a submission, a
//! flush goes on whenever its handle looks at the fabric; what is sent when is the business of
//! `core::client::Coupled`.

use crate::clock;
use crate::drive::{Buffers, Parts, block, driver};
use crate::links::{Links, fabric_error};
use rackpool_core::client::{Client, Flush, Look, Progress, WriteBuffer};
use rackpool_core::seam::BufId;
use rackpool_core::{Error, Result};
use rackpool_hw::fabric::{Endpoint, LocalBuffers};
use rackpool_hw::window::Window;

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
        let result = match self.flush.look(clock::now_ns(), &links.losses, timeout_ms)? {
            Look::Wait => return None,
            Look::Ended(error) => Err(error),
            Look::Go => {
                let (mut transfer, offsets) = self.flush.transfer();
                let buffers = Buffers::Packed(self.packed, offsets);
                let parts = Parts { client, links, endpoint, submissions: None };
                let mut driver = driver(parts, buffers, deadline_ns);
                match block(driver.run(async |cx| transfer.advance(cx).await)) {
                    Ok(Progress::Posted) => return None,
                    Ok(Progress::Done) => Ok(()),
                    Err(error @ Error::LockLost { .. }) => {
                        links.losses.untell();
                        Err(error)
                    }
                    Err(error) => Err(error),
                }
            }
        };
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
