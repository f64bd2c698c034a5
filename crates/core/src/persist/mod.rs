//! Memory that outlives a loss of power: what protocol code says to it ([`Persist`]), and how far a
//! store has to travel to be safe ([`PersistenceDomain`]). No I/O here: `rackpool-mem` has the
//! instructions and the system call.
//!
//! [`log`] is a log of checksummed records in such memory. [`recorder`] stands in for the memory in
//! tests and in the simulator and remembers every call; [`images`] makes of that what the medium
//! may hold when the power fails at any moment.
//!
//! # Rules
//! - A store alone promises nothing: it may reach the medium at once, later, or never, and in any
//!   order with others. Only 8 aligned bytes are never torn.
//! - What was written back, or copied with [`Persist::copy_in_streaming`], before
//!   [`Persist::persist_fence`] is on the medium when that has returned without an error.
//! - A store to a line after its write-back is not covered by it.
//! - So an order between two stores on the medium needs a fence between them, and an
//!   acknowledgement comes after one.
//! - All calls that belong together come from one thread, by one handle.
//!
//! This is apart from [`Mem::flush`], which shows stores to other hosts and does nothing where
//! hardware keeps caches coherent.

pub mod images;
pub mod log;
mod profile;
pub mod recorder;

pub use profile::MediaProfile;

use crate::seam::Mem;
use std::fmt;
use std::str::FromStr;

/// What is written back as one. A loss of power may spare any part of it in units of 8 bytes.
pub const LINE_BYTES: u64 = 64;

/// How far a store has to travel until a loss of power spares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PersistenceDomain {
    /// A loss of power spares nothing.
    None,
    /// The memory controllers' write queues: lines have to leave the processor's caches.
    Adr,
    /// The processor's caches: a store has to leave its core.
    Eadr,
    /// A file of the system's page cache: the system has to write its pages.
    Msync,
}

impl PersistenceDomain {
    pub const ALL: [Self; 4] = [Self::None, Self::Adr, Self::Eadr, Self::Msync];

    /// The word for it in a memory specification.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Adr => "adr",
            Self::Eadr => "eadr",
            Self::Msync => "msync",
        }
    }
}

impl fmt::Display for PersistenceDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no persistence domain: none, adr, eadr or msync")]
pub struct UnknownDomain(pub String);

impl FromStr for PersistenceDomain {
    type Err = UnknownDomain;

    fn from_str(word: &str) -> Result<Self, UnknownDomain> {
        let known = Self::ALL.into_iter().find(|domain| domain.name() == word);
        known.ok_or_else(|| UnknownDomain(word.to_owned()))
    }
}

/// Why something was not made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PersistError {
    #[error("this memory forgets everything when the power fails: nothing in it can be durable")]
    Volatile,
    /// The system may have dropped what it could not write, and would report success for it the
    /// next time: this memory answers with this error from now on.
    #[error(
        "the system could not write {bytes} bytes from offset {offset} on to the device (error \
         {errno}): what was stored since the last success may be lost; do not retry, mend the \
         device and open the memory anew"
    )]
    NotWritten { offset: u64, bytes: u64, errno: i32 },
}

/// Memory of which stores can be made durable. What an implementation leaves out is that of memory
/// that forgets.
pub trait Persist: Mem {
    fn domain(&self) -> PersistenceDomain {
        PersistenceDomain::None
    }

    /// What copies into this memory go by.
    #[inline]
    fn profile(&self) -> MediaProfile {
        MediaProfile::GUIDE
    }

    /// Whether a loss of power spares what was made durable.
    #[inline]
    fn is_persistent(&self) -> bool {
        self.domain() != PersistenceDomain::None
    }

    /// Copies into the window around the caches, as far as the processor can: for what is not read
    /// here soon. The next fence makes it durable; until then it is in no order with other stores.
    fn copy_in_streaming(&self, offset: u64, from: &[u8]) {
        self.copy_in(offset, from);
    }

    /// Sends the lines of a range on their way to the medium, whole lines, without waiting. In
    /// domain `Msync` whole pages, which the next fence writes.
    fn write_back(&self, _offset: u64, _bytes: u64) {}

    /// Waits until everything that this handle sent on its way is durable.
    ///
    /// # Errors
    /// [`PersistError`]; nothing may be acknowledged then.
    fn persist_fence(&self) -> Result<(), PersistError> {
        Err(PersistError::Volatile)
    }

    /// Makes what was stored in a range durable.
    ///
    /// # Errors
    /// As [`Persist::persist_fence`].
    fn persist(&self, offset: u64, bytes: u64) -> Result<(), PersistError> {
        self.write_back(offset, bytes);
        self.persist_fence()
    }

    /// Copies into the window and sends it on its way, by the instructions that are faster for the
    /// length.
    fn copy_in_written_back(&self, offset: u64, from: &[u8]) {
        if from.len() as u64 >= self.profile().stream_bytes_min {
            self.copy_in_streaming(offset, from);
        } else {
            self.copy_in(offset, from);
            self.write_back(offset, from.len() as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_read_as_they_are_written() {
        for domain in PersistenceDomain::ALL {
            assert_eq!(domain.to_string().parse(), Ok(domain));
        }
        let error = "ADR".parse::<PersistenceDomain>().unwrap_err();
        assert!(error.to_string().contains("none, adr, eadr or msync"), "{error}");
    }
}
