//! Registered memory: what a device may read and write. A [`Region`] keeps its memory mapped and
//! its protection domain alive; when it is dropped, the device has stopped using it.

use super::device::{Domain, RawDomain};
use super::ffi::{self, number};
use super::{VerbsError, last_os_error};
use rackpool_core::seam::Mem;
use rackpool_mem::window::Window;
use std::ptr::NonNull;
use std::sync::Arc;

/// What others may do with a region, beside what its own queue pairs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Nothing: it is the local end of work requests. `writable` says whether they may write it.
    Local {
        /// Whether receives and READs may go there.
        writable: bool,
    },
    /// One-sided READ and WRITE, and with `atomics` also these.
    Remote {
        /// Whether atomics are allowed; not all devices have them.
        atomics: bool,
    },
}

impl Rights {
    fn flags(self) -> i32 {
        match self {
            Rights::Local { writable: false } => 0,
            Rights::Local { writable: true } => number::ACCESS_LOCAL_WRITE,
            Rights::Remote { atomics } => {
                number::ACCESS_LOCAL_WRITE
                    | number::ACCESS_REMOTE_READ
                    | number::ACCESS_REMOTE_WRITE
                    | if atomics { number::ACCESS_REMOTE_ATOMIC } else { 0 }
            }
        }
    }
}

/// A registered piece of memory.
pub struct Region {
    raw: NonNull<ffi::Mr>,
    domain: Arc<RawDomain>,
    start: NonNull<u8>,
    address: u64,
    bytes: u64,
    /// Keeps the memory; `None` if that is another's promise.
    _window: Option<Window>,
}

// SAFETY: it stands for memory that may be used from any thread, as windows may, or is private to
// the owner that promised to keep it; the library may be called from any thread.
unsafe impl Send for Region {}
// SAFETY: as above; shared it gives out only numbers.
unsafe impl Sync for Region {}

impl Region {
    /// Registers a window of shared memory. Others name its first byte `address`, so that no
    /// pointer of this process leaves it; it lies in its page as the window does (such as 0).
    ///
    /// The memory is pinned: it needs `ulimit -l` that high. Errors: `Pin`; its text explains what
    /// kinds of memory devices take.
    pub fn of_window(
        domain: &Domain,
        window: &Window,
        address: u64,
        rights: Rights,
    ) -> Result<Region, VerbsError> {
        let start = window.start();
        // SAFETY: the region holds the window, which keeps the memory mapped; all other users of
        // a window's memory touch it by atomics and copies that may race.
        let mut region = unsafe {
            Self::of_memory(
                domain,
                NonNull::slice_from_raw_parts(start, window.bytes() as usize),
                address,
                rights,
            )
        }?;
        region._window = Some(window.clone());
        Ok(region)
    }

    /// Registers private memory.
    ///
    /// # Safety
    /// The memory stays until the region is dropped. While a work request that names it is under
    /// way, no other code writes what it reads, or touches what it writes.
    pub(crate) unsafe fn of_memory(
        domain: &Domain,
        memory: NonNull<[u8]>,
        address: u64,
        rights: Rights,
    ) -> Result<Region, VerbsError> {
        let Domain(domain) = domain;
        let (start, bytes) = (memory.cast::<u8>(), memory.len());
        let register = domain.context.library.reg_mr_iova2;
        let flags = rights.flags() as u32;
        // SAFETY: the domain is there; the memory is mapped, as the caller promises.
        let raw =
            unsafe { register(domain.raw.as_ptr(), start.as_ptr().cast(), bytes, address, flags) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::Pin {
            bytes: bytes as u64,
            source: last_os_error().into(),
        })?;
        let domain = Arc::clone(domain);
        Ok(Region { raw, domain, start, address, bytes: bytes as u64, _window: None })
    }

    /// What others name it by. Guessing it is no way in from another domain: the device compares
    /// the domains too.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: ours, and not ended.
        unsafe { self.raw.as_ref() }.rkey
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A piece of it, as a work request names it. Panics outside. The device knows the region by
    /// the address that it was given; only what is copied `inline` is named by the processor's.
    pub(super) fn piece(&self, offset: u64, bytes: u64, inline: bool) -> ffi::Sge {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "{bytes} bytes at {offset} of a region");
        // SAFETY: ours, and not ended.
        let lkey = unsafe { self.raw.as_ref() }.lkey;
        let start = if inline { self.start.as_ptr() as u64 } else { self.address };
        ffi::Sge { addr: start + offset, length: bytes as u32, lkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered by us, ended once. It returns when the device no longer uses it.
        let code = unsafe { (self.domain.context.library.dereg_mr)(self.raw.as_ptr()) };
        // If it could still be written, the memory must not be given away.
        if code != 0 {
            rackpool_mem::log::abort(format_args!(
                "a registered region could not be ended ({code}); the process ends"
            ));
        }
    }
}
