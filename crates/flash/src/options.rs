//! How a flash log is made, and the limits of that.

use crate::admission::FlashAdmission;
use crate::constants::{
    BATCH_BYTES, BATCH_BYTES_ROTATIONAL, FLUSH_AFTER_MS, HEAD_BYTES, ITEM_BYTES, REGION_BYTES,
    REGION_BYTES_MIN, REGIONS_MIN, REGIONS_WANTED,
};
use crate::error::{Error, Result};
use crate::index::Index;
use crate::log::check_region;
use crate::recover::WantedLog;
use rackpool_mem::direct::{BLOCK_BYTES, DirectCalls, DirectFile};
use std::path::PathBuf;
use std::time::Duration;

/// A flash log. `0` means what fits.
#[derive(Clone, Debug)]
pub struct Options {
    /// A file, which is made, or a block device.
    pub path: PathBuf,
    /// Bytes of it that are used.
    pub bytes: u64,
    /// Whether nothing may be lost: stores are acknowledged when they are durable.
    pub is_store: bool,
    pub admission: FlashAdmission,
    /// Of the hashes: a log keeps that with which it was made
    /// ([`Flash::seed`](crate::Flash::seed)).
    pub seed: u64,
    /// Bytes of memory of the index; 0: for items of 2 KiB on average.
    pub index_bytes: u64,
    /// A file for what is gone and not in the log yet; without one, or of another boot, a cache
    /// of a killed process begins empty. Of a file, `PATH.gone` if none is given.
    pub journal: Option<PathBuf>,
    /// Fewest bytes of a batch; 0: 256 KiB, on disks that turn 4 MiB.
    pub batch_bytes: usize,
    /// Bytes of a region; 0: 16 MiB, below 1 GiB less.
    pub region_bytes: u64,
    /// How long a batch waits for more.
    pub flush_after: Duration,
    /// How the device is called.
    pub calls: DirectCalls,
}

impl Options {
    /// Of a cache, at this place.
    pub fn new(path: impl Into<PathBuf>, bytes: u64) -> Options {
        Options {
            path: path.into(),
            bytes,
            is_store: false,
            admission: FlashAdmission::default(),
            seed: 0,
            index_bytes: 0,
            journal: None,
            batch_bytes: 0,
            region_bytes: 0,
            flush_after: Duration::from_millis(FLUSH_AFTER_MS),
            calls: DirectCalls::Uring,
        }
    }

    /// With all that was left open.
    pub(crate) fn checked(mut self) -> Result<Options> {
        if self.region_bytes == 0 {
            let wanted = self.bytes / REGIONS_WANTED / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
            self.region_bytes = wanted.clamp(REGION_BYTES_MIN, REGION_BYTES);
        }
        self.bytes -= self.bytes % BLOCK_BYTES as u64;
        let (bytes, least) = (self.bytes, HEAD_BYTES + REGIONS_MIN * self.region_bytes);
        if !(least..=MAX_BYTES).contains(&bytes) {
            let option = "bytes of flash";
            return Err(Error::BadOption { option, value: bytes, min: least, max: MAX_BYTES });
        }
        if self.index_bytes == 0 {
            self.index_bytes = Index::bytes_for(bytes / ITEM_BYTES);
        }
        if self.batch_bytes != 0 {
            check_region(self.region_bytes, self.batch_bytes)?;
        }
        Ok(self)
    }

    /// With what the device says.
    pub(crate) fn for_device(mut self, file: &DirectFile) -> Result<Options> {
        if self.batch_bytes == 0 {
            let is_rotational = file.is_rotational();
            self.batch_bytes = if is_rotational { BATCH_BYTES_ROTATIONAL } else { BATCH_BYTES };
        }
        check_region(self.region_bytes, self.batch_bytes)?;
        if self.journal.is_none() && !file.is_block_device() {
            let mut name = self.path.clone().into_os_string();
            name.push(".gone");
            self.journal = Some(name.into());
        }
        Ok(self)
    }

    pub(crate) fn wanted(&self) -> WantedLog {
        let (bytes, region_bytes, is_store) = (self.bytes, self.region_bytes, self.is_store);
        WantedLog { bytes, region_bytes, is_store, seed: self.seed }
    }
}

/// What a word of the index can say: 512 TiB.
const MAX_BYTES: u64 = 1 << 49;
