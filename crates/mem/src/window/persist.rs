//! What is stored in a window and is to outlive a loss of power: how it is mapped, and when a
//! range of it is durable. See `window.rs`.
//!
//! Ordering: [`Window::persist_range`] returns when all that this process, or another one of this
//! host, had stored in the range before is within the persistence domain; what follows it comes
//! after that. Lines are written back one by one on `adr`, nothing but a fence is needed on `eadr`,
//! and the file system writes whole pages back on `msync`. What it could not write it may count as
//! written from then on, so no later call of this process says that anything is durable.

use super::{MapOptions, Window};
use crate::caches;
use crate::sync::full_fence;
use rackpool_core::durability::PersistenceDomain;
use rustix::io::retry_on_intr;
use rustix::mm::{MapFlags, MsyncFlags, msync};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::error;

/// Whether the file system could not write something back in this process.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

impl MapOptions {
    /// How the mapping is shared. With `is_synchronous` the kernel refuses what is not directly
    /// the device's memory, and its file system's metadata are durable before a page is written.
    pub(super) fn sharing(self) -> MapFlags {
        match self.is_synchronous {
            true => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            false => MapFlags::SHARED,
        }
    }
}

impl Window {
    /// This window with stores that can be made durable, as its device has them; as made they
    /// cannot.
    ///
    /// # Panics
    /// For `adr` if this processor cannot write lines back: see [`crate::caches::is_supported`].
    pub fn with_persistence(mut self, domain: PersistenceDomain) -> Window {
        let needs_lines = domain == PersistenceDomain::Adr;
        assert!(!needs_lines || caches::is_supported(), "lines cannot be written back here");
        self.persistence = domain;
        self
    }

    /// As [`Mem::make_durable`](rackpool_core::seam::Mem::make_durable).
    pub(super) fn persist_range(&self, offset: u64, bytes: u64) -> bool {
        let from = self.readable(offset, bytes);
        match self.persistence {
            PersistenceDomain::None => false,
            PersistenceDomain::Eadr => {
                full_fence();
                true
            }
            PersistenceDomain::Adr => {
                // SAFETY: inside the window, which is mapped as long as `self` lives.
                unsafe { caches::write_back(from, bytes as usize) };
                true
            }
            PersistenceDomain::Msync => {
                // A mapping begins with a page, so that the page of `from` is part of it.
                let before = from.addr() % rustix::param::page_size();
                let size = bytes as usize + before;
                let page = from.wrapping_sub(before).cast();
                let write = || {
                    // SAFETY: whole pages of the mapping, which are written and not changed.
                    unsafe { msync(page, size, MsyncFlags::SYNC) }
                };
                let result = retry_on_intr(write);
                if let Err(errno) = result {
                    // Relaxed: the flag only ever goes up, and orders nothing.
                    HAS_FAILED.store(true, Ordering::Relaxed);
                    error!(target: "region", "msync of {bytes} bytes: {errno}");
                }
                // Relaxed: as above.
                !HAS_FAILED.load(Ordering::Relaxed)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Access;
    use rackpool_core::seam::Mem;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    #[test]
    fn a_range_is_durable_in_each_domain_that_says_so_and_in_no_other() {
        let fd = memfd_create("persist", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 3 << 16).unwrap();
        let window =
            Window::map(fd.as_fd(), 3 << 16, Access::ReadWrite, MapOptions::default()).unwrap();
        assert!(!window.is_durable() && !window.make_durable(0, 8));
        for domain in PersistenceDomain::ALL {
            if domain == PersistenceDomain::Adr && !caches::is_supported() {
                continue;
            }
            let window = window.clone().with_persistence(domain);
            let part = window.slice(4096 + 64, 1 << 16);
            part.store(8, 77);
            let promises = domain != PersistenceDomain::None;
            assert_eq!(part.is_durable(), promises, "{domain}");
            for (offset, bytes) in [(8, 8), (0, 1 << 16), (63, 2), (1 << 16, 0)] {
                assert_eq!(part.make_durable(offset, bytes), promises, "{domain} {offset} {bytes}");
            }
            assert_eq!(part.load(8), 77);
        }
    }

    #[test]
    fn memory_that_is_no_device_is_not_mapped_synchronously() {
        let fd = memfd_create("persist", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 4096).unwrap();
        let options = MapOptions { is_synchronous: true, ..MapOptions::default() };
        assert!(Window::map(fd.as_fd(), 4096, Access::ReadWrite, options).is_err());
    }
}
