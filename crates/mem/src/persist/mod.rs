//! Memory that outlives a loss of power, in the real world: [`PersistentWindow`] is the core's
//! [`Persist`], on a devdax, on a file of a DAX file system, or on any other file by `msync`.
//! `medium.rs` finds out which of these a file is, `lines.rs` has the instructions.
//!
//! In: an open file and what the user says of it. Out: a window, or why its stores cannot be made
//! durable as was said. Called by what opens regions and logs.
//!
//! A handle is for one thread: what it has sent on its way its own fence waits for. Clones and
//! slices are handles of their own on the same memory.
//!
//! Once the system could not write a page it may count the page as written: no handle on that
//! mapping reports success again.
//!
//! Source: docs of Linux on MAP_SYNC (mmap(2)) and on what fsync keeps after an error.

mod lines;
mod medium;
mod shutdowns;

pub use medium::{AttachError, Medium};
pub use shutdowns::dirty_shutdowns;
pub(crate) use shutdowns::number_in;

use crate::window::{Access, MapOptions, Window};
use rackpool_core::persist::{MediaProfile, Persist, PersistError, PersistenceDomain};
use rackpool_core::seam::{ByteRange, Mem, Probe, Section};
use rustix::fd::BorrowedFd;
use rustix::mm::{MsyncFlags, msync};
use std::cell::Cell;
use std::sync::{Arc, OnceLock};

/// A window on memory of which stores can be made durable.
#[derive(Debug)]
pub struct PersistentWindow {
    window: Window,
    domain: PersistenceDomain,
    profile: MediaProfile,
    /// In domain `Msync`: what the next fence writes.
    sent: Cell<Option<ByteRange>>,
    /// The first error, of any handle.
    failure: Arc<OnceLock<PersistError>>,
}

impl PersistentWindow {
    /// Maps `bytes` bytes of a file from `file_offset` on, to read and write, in the domain that
    /// the user `declared`, else in what the system says. See [`Medium::domain`].
    ///
    /// # Errors
    /// [`AttachError`]; a file that is too short is one of the system's.
    pub fn map(
        file: BorrowedFd<'_>,
        bytes: u64,
        file_offset: u64,
        declared: Option<PersistenceDomain>,
    ) -> Result<PersistentWindow, AttachError> {
        let medium = Medium::of(file)?;
        let domain = medium.domain(declared)?;
        let is_synchronous = matches!(medium, Medium::DaxFile(_))
            && matches!(domain, PersistenceDomain::Adr | PersistenceDomain::Eadr);
        let options = MapOptions { file_offset, ..MapOptions::default() };
        let window = if is_synchronous {
            Window::map_synchronous(file, bytes, options)?
        } else {
            Window::map(file, bytes, Access::ReadWrite, options)?
        };
        Self::new(window, domain)
    }

    /// Of a window whose memory is in that domain (see [`Medium::domain`]), or is to be used as if
    /// it were.
    ///
    /// # Errors
    /// [`AttachError::NoInstruction`].
    pub fn new(window: Window, domain: PersistenceDomain) -> Result<Self, AttachError> {
        let needs_instruction = matches!(domain, PersistenceDomain::Adr | PersistenceDomain::Eadr);
        if needs_instruction && !lines::is_supported() {
            return Err(AttachError::NoInstruction { domain });
        }
        Ok(Self::of(window, domain, MediaProfile::GUIDE, Arc::default()))
    }

    pub fn volatile(window: Window) -> Self {
        Self::of(window, PersistenceDomain::None, MediaProfile::GUIDE, Arc::default())
    }

    fn of(
        window: Window,
        domain: PersistenceDomain,
        profile: MediaProfile,
        failure: Arc<OnceLock<PersistError>>,
    ) -> Self {
        Self { window, domain, profile, sent: Cell::default(), failure }
    }

    /// The same with what was measured of its medium.
    #[must_use]
    pub fn with_profile(self, profile: MediaProfile) -> Self {
        Self { profile, ..self }
    }

    /// The memory, for what is not to be durable.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Another window of the same open file, in a domain of that file: the system reports what it
    /// could not write to one of them alone, so an error of either is one of both.
    pub fn beside(&self, window: Window, domain: PersistenceDomain) -> Self {
        Self::of(window, domain, self.profile, Arc::clone(&self.failure))
    }

    /// Has the system write the pages with everything that was sent.
    fn write_pages(&self) -> Result<(), PersistError> {
        let Some(ByteRange { offset, bytes }) = self.sent.take() else {
            return self.failure.get().map_or(Ok(()), |error| Err(*error));
        };
        let at = self.window.readable(offset, bytes);
        // Windows begin anywhere; mappings begin with a page, so its start is mapped too.
        let before = at.addr() % rustix::param::page_size();
        let start = at.wrapping_sub(before);
        let write = || {
            // SAFETY: pages of a mapping that lives as long as the window; their bytes stay.
            unsafe { msync(start.cast(), before + bytes as usize, MsyncFlags::SYNC) }
        };
        let result = rustix::io::retry_on_intr(write);
        self.note(result.map_err(|errno| PersistError::NotWritten {
            offset,
            bytes,
            errno: errno.raw_os_error(),
        }))
    }

    /// Success only if there was no error before.
    fn note(&self, result: Result<(), PersistError>) -> Result<(), PersistError> {
        if let Err(error) = result {
            // The first one stays.
            let _ = self.failure.set(error);
        }
        self.failure.get().map_or(Ok(()), |error| Err(*error))
    }
}

impl Clone for PersistentWindow {
    fn clone(&self) -> Self {
        self.beside(self.window.clone(), self.domain)
    }
}

impl Section for PersistentWindow {
    fn slice(&self, offset: u64, bytes: u64) -> Self {
        self.beside(self.window.slice(offset, bytes), self.domain)
    }
}

impl Persist for PersistentWindow {
    fn domain(&self) -> PersistenceDomain {
        self.domain
    }

    fn profile(&self) -> MediaProfile {
        self.profile
    }

    fn copy_in_streaming(&self, offset: u64, from: &[u8]) {
        match self.domain {
            PersistenceDomain::None => self.window.copy_in(offset, from),
            PersistenceDomain::Msync => {
                self.window.copy_in(offset, from);
                self.write_back(offset, from.len() as u64);
            }
            PersistenceDomain::Adr | PersistenceDomain::Eadr => {
                let streamed = self.window.copy_in_streaming(offset, from);
                self.write_back(offset, streamed.start as u64);
                let behind = (from.len() - streamed.end) as u64;
                self.write_back(offset + streamed.end as u64, behind);
            }
        }
    }

    fn write_back(&self, offset: u64, bytes: u64) {
        let from = self.window.readable(offset, bytes);
        if bytes == 0 {
            return;
        }
        match self.domain {
            PersistenceDomain::None | PersistenceDomain::Eadr => {}
            // SAFETY: inside the window, which is mapped as long as `self` lives; the domain was
            // refused where there is no such instruction.
            PersistenceDomain::Adr => unsafe { lines::send(from, bytes as usize) },
            // One call for all, which also has the device empty its cache but once.
            PersistenceDomain::Msync => {
                let before = self.sent.get().unwrap_or(ByteRange { offset, bytes });
                let end = (before.offset + before.bytes).max(offset + bytes);
                let offset = before.offset.min(offset);
                self.sent.set(Some(ByteRange { offset, bytes: end - offset }));
            }
        }
    }

    fn persist_fence(&self) -> Result<(), PersistError> {
        match self.domain {
            PersistenceDomain::None => Err(PersistError::Volatile),
            PersistenceDomain::Adr | PersistenceDomain::Eadr => {
                lines::fence();
                Ok(())
            }
            PersistenceDomain::Msync => self.write_pages(),
        }
    }
}

impl Probe for PersistentWindow {}

impl Mem for PersistentWindow {
    #[inline]
    fn bytes(&self) -> u64 {
        self.window.bytes()
    }

    #[inline]
    fn load(&self, offset: u64) -> u64 {
        self.window.load(offset)
    }

    #[inline]
    fn store(&self, offset: u64, value: u64) {
        self.window.store(offset, value);
    }

    #[inline]
    fn announce(&self, offset: u64, value: u64) {
        self.window.announce(offset, value);
    }

    #[inline]
    fn compare_exchange(&self, offset: u64, expected: u64, new: u64) -> Result<u64, u64> {
        self.window.compare_exchange(offset, expected, new)
    }

    #[inline]
    fn fetch_add(&self, offset: u64, n: u64) -> u64 {
        self.window.fetch_add(offset, n)
    }

    #[inline]
    fn copy_out(&self, offset: u64, to: &mut [u8]) {
        self.window.copy_out(offset, to);
    }

    #[inline]
    fn copy_in(&self, offset: u64, from: &[u8]) {
        self.window.copy_in(offset, from);
    }

    fn zero(&self, offset: u64, bytes: u64) {
        self.window.zero(offset, bytes);
    }

    #[inline]
    fn prefetch(&self, offset: u64) {
        self.window.prefetch(offset);
    }

    #[inline]
    fn fence(&self) {
        self.window.fence();
    }

    #[inline]
    fn is_coherent(&self) -> bool {
        self.window.is_coherent()
    }

    #[inline]
    fn flush(&self, offset: u64, bytes: u64) {
        self.window.flush(offset, bytes);
    }

    #[inline]
    fn invalidate(&self, offset: u64, bytes: u64) {
        self.window.invalidate(offset, bytes);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use rackpool_core::persist::log::{Log, LogGeometry};
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    fn memfd(bytes: u64) -> File {
        let fd = rustix::fs::memfd_create("persist-test", rustix::fs::MemfdFlags::CLOEXEC);
        let file = File::from(fd.unwrap());
        file.set_len(bytes).unwrap();
        file
    }

    /// A window in a domain that its memory does not have.
    fn window(file: &File, bytes: u64, domain: PersistenceDomain) -> PersistentWindow {
        let options = MapOptions::default();
        let window = Window::map(file.as_fd(), bytes, Access::ReadWrite, options).unwrap();
        PersistentWindow::new(window, domain).unwrap()
    }

    #[test]
    fn every_copy_and_write_back_of_every_domain_leaves_the_bytes_that_it_was_given() {
        let always = MediaProfile { stream_bytes_min: 0, ..MediaProfile::GUIDE };
        let profiles = [MediaProfile::GUIDE, MediaProfile::UNRULED, always];
        for (domain, profile) in
            PersistenceDomain::ALL.into_iter().flat_map(|domain| profiles.map(|one| (domain, one)))
        {
            let file = memfd(3 * 4096);
            let window = window(&file, 3 * 4096, domain).with_profile(profile);
            let mut expected = vec![0; 3 * 4096];
            for (number, bytes) in
                [0, 1, 8, 63, 64, 65, 200, 511, 512, 513, 4096].iter().enumerate()
            {
                for offset in [0, 1, 8, 63, 64, 4000, 4095] {
                    let from: Vec<u8> =
                        (0..*bytes).map(|at| (at + number + offset) as u8).collect();
                    expected[offset..offset + bytes].copy_from_slice(&from);
                    match number % 2 {
                        0 => window.copy_in_streaming(offset as u64, &from),
                        _ => window.copy_in_written_back(offset as u64, &from),
                    }
                    let durable = window.persist_fence();
                    assert_eq!(durable.is_ok(), domain != PersistenceDomain::None);
                }
            }
            let mut found = vec![0; 3 * 4096];
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(found == expected, "{domain}");
        }
    }

    #[test]
    fn a_file_is_mapped_in_the_domain_that_its_memory_has() {
        let file = memfd(4096);
        let map = |declared| PersistentWindow::map(file.as_fd(), 4096, 0, declared);
        assert!(matches!(map(None), Err(AttachError::Volatile)));
        assert!(matches!(map(Some(PersistenceDomain::Adr)), Err(AttachError::Volatile)));
        let window = map(Some(PersistenceDomain::None)).unwrap();
        window.store(8, 7);
        assert_eq!(window.persist(8, 8), Err(PersistError::Volatile));
        assert_eq!(window.load(8), 7);
    }

    #[test]
    fn ranges_outside_panic_and_an_empty_one_is_nothing() {
        let file = memfd(4096);
        let window = window(&file, 4096, PersistenceDomain::Adr);
        window.persist(4096, 0).unwrap();
        let outside = || window.write_back(4090, 7);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(outside));
        assert!(result.is_err());
    }

    #[test]
    fn pages_are_written_once_for_all_that_was_sent_by_this_handle() {
        let file = memfd(8 * 4096);
        let whole = window(&file, 8 * 4096, PersistenceDomain::Msync);
        let part = whole.slice(4096 + 8, 3 * 4096);
        part.write_back(5000, 8);
        part.write_back(100, 8);
        part.write_back(300, 8);
        let range = ByteRange { offset: 100, bytes: 4908 };
        assert_eq!((part.sent.get(), part.clone().sent.get()), (Some(range), None));
        part.persist_fence().unwrap();
        assert_eq!((part.sent.get(), whole.sent.get()), (None, None));
    }

    #[test]
    fn after_an_error_of_any_handle_none_reports_success() {
        let file = memfd(4096);
        let window = window(&file, 4096, PersistenceDomain::Msync);
        let slice = window.slice(64, 64);
        slice.persist(0, 8).unwrap();
        let error = PersistError::NotWritten { offset: 0, bytes: 8, errno: 5 };
        assert_eq!(window.note(Err(error)), Err(error));
        assert_eq!(slice.persist(0, 8), Err(error));
        assert_eq!(slice.persist_fence(), Err(error));
        assert_eq!(window.clone().persist_fence(), Err(error));
        assert!(error.to_string().contains("do not retry"));
    }

    #[test]
    fn a_log_in_a_file_is_found_by_the_next_that_maps_it() {
        let geometry = LogGeometry::new(1, 2).unwrap();
        let file = memfd(geometry.bytes());
        let map = || window(&file, geometry.bytes(), PersistenceDomain::Adr);
        Log::format(&map(), geometry, 1).unwrap();
        let mut log = Log::open(map(), &mut |_| ()).unwrap();
        log.append(1, &[b"one"]).unwrap();
        log.append(2, &[b"two, ", &[b'x'; 3000]]).unwrap();
        log.commit().unwrap();
        drop(log);
        let mut found = Vec::new();
        Log::open(map(), &mut |entry| found.push((entry.kind, entry.bytes.len()))).unwrap();
        assert_eq!(found, [(1, 3), (2, 3005)]);
    }
}
