//! What the log lies on. In: transfers of whole blocks, several at once. Out: a result of each.
//! The real one is [`DirectFile`]; tests put one below that fails and forgets.

use crate::error::{Error, Result};
use crate::layout::{FlashSuperblock, SUPERBLOCK_BYTES};
use rackpool_mem::direct::{AlignedBytes, BLOCK_BYTES, DirectCalls, DirectFile, DirectTransfer};
use std::fmt::Debug;
use std::io;

/// A file, a block device, or what a test says that it is. Several threads call at once.
pub trait FlashDevice: Send + Sync + Debug {
    /// Bytes that may be used.
    fn bytes(&self) -> u64;

    /// Does all transfers, each with a result of its own. Blocks.
    fn run(&self, transfers: &mut [DirectTransfer<'_>]);

    /// Has it keep what was written, also if the power goes.
    ///
    /// # Errors
    /// What the system says: what was written since the last one may be lost.
    fn sync(&self) -> io::Result<()>;

    /// Whether each thread that calls waits for one transfer after the other.
    fn is_waiting(&self) -> bool {
        false
    }
}

impl FlashDevice for DirectFile {
    fn bytes(&self) -> u64 {
        DirectFile::bytes(self)
    }

    fn run(&self, transfers: &mut [DirectTransfer<'_>]) {
        DirectFile::run(self, transfers);
    }

    fn sync(&self) -> io::Result<()> {
        DirectFile::sync(self)
    }

    fn is_waiting(&self) -> bool {
        self.calls() == DirectCalls::Waiting
    }
}

pub(crate) fn read(device: &dyn FlashDevice, offset: u64, to: &mut [u8]) -> io::Result<()> {
    let mut transfers = [DirectTransfer::read(offset, to)];
    device.run(&mut transfers);
    let [transfer] = transfers;
    transfer.result
}

pub(crate) fn write(device: &dyn FlashDevice, offset: u64, from: &[u8]) -> io::Result<()> {
    let mut transfers = [DirectTransfer::write(offset, from)];
    device.run(&mut transfers);
    let [transfer] = transfers;
    transfer.result
}

/// Writes both copies, one after the other, so that one is whole at any time.
pub(crate) fn write_superblock(
    device: &dyn FlashDevice,
    superblock: &FlashSuperblock,
) -> Result<()> {
    let mut bytes = AlignedBytes::zeroed(BLOCK_BYTES);
    superblock.write(&mut bytes[..SUPERBLOCK_BYTES]);
    for copy in 0..2 {
        let at = copy * BLOCK_BYTES as u64;
        let written = write(device, at, &bytes).and_then(|()| device.sync());
        written.map_err(Error::io("writing the superblock"))?;
    }
    Ok(())
}
