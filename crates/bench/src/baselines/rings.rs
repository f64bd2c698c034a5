//! The SENDs of `shm`: a ring each way between a server and a client.

use rackpool_fabric::shm::{HandOff, HandOffError};
use rackpool_mem::ring::{Consumer, Producer, RingError};
use rackpool_mem::window::Window;

pub struct Rings {
    pub(super) out: Producer<Window>,
    pub(super) inward: Consumer<Window>,
}

impl HandOff for Rings {
    fn room(&mut self) -> Result<(), HandOffError> {
        Ok(())
    }

    fn message(&mut self, message: &[u8]) -> Result<(), HandOffError> {
        self.out.push(message).map_err(|error| match error {
            RingError::Full { .. } => HandOffError::Busy,
            _ => HandOffError::Down,
        })
    }

    fn imm(&mut self, _: u32) -> Result<(), HandOffError> {
        Err(HandOffError::Down)
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        // A ring that is corrupt has no messages any more.
        self.inward.pop(<[u8]>::to_vec)?.ok()
    }
}
