//! What the log lies on. In: transfers of whole blocks, several at once. Out: a result of each.
//! The real one is [`DirectFile`]; tests put one below that fails and forgets.

use rackpool_mem::direct::{DirectCalls, DirectFile, Transfer};
use std::fmt::Debug;
use std::io;

/// A file, a block device, or what a test says that it is. Several threads call at once.
pub trait Device: Send + Sync + Debug {
    /// Bytes that may be used.
    fn bytes(&self) -> u64;

    /// Does all transfers, each with a result of its own. Blocks.
    fn run(&self, transfers: &mut [Transfer<'_>]);

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

impl Device for DirectFile {
    fn bytes(&self) -> u64 {
        DirectFile::bytes(self)
    }

    fn run(&self, transfers: &mut [Transfer<'_>]) {
        DirectFile::run(self, transfers);
    }

    fn sync(&self) -> io::Result<()> {
        DirectFile::sync(self)
    }

    fn is_waiting(&self) -> bool {
        self.calls() == DirectCalls::Waiting
    }
}

pub(crate) fn read(device: &dyn Device, offset: u64, to: &mut [u8]) -> io::Result<()> {
    let mut transfers = [Transfer::read(offset, to)];
    device.run(&mut transfers);
    let [transfer] = transfers;
    transfer.result
}

pub(crate) fn write(device: &dyn Device, offset: u64, from: &[u8]) -> io::Result<()> {
    let mut transfers = [Transfer::write(offset, from)];
    device.run(&mut transfers);
    let [transfer] = transfers;
    transfer.result
}
