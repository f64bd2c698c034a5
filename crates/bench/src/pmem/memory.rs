//! The memory that is measured: anonymous, of one node, or a file or device that a user names.
//! What is on it is overwritten, so a file has to be new, and a device empty.

use crate::run::{BenchError, io_error};
use rackpool_core::persist::PersistenceDomain;
use rackpool_core::seam::Mem;
use rackpool_mem::numa::Placement;
use rackpool_mem::persist::{Medium, PersistentWindow};
use rackpool_mem::region::{MemoryKind, MemorySpec};
use rackpool_mem::window::{Access, MapOptions, Window};
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Room for the largest accesses of two threads.
const BYTES_MIN: u64 = 8 << 20;
/// What of a device has to be zero.
const LOOKED_AT_BYTES: u64 = 1 << 20;

/// Mapped until it is dropped; a file that was made goes with it.
pub struct MeasuredMemory {
    pub window: PersistentWindow,
    /// In words, for the report.
    pub what: String,
    made: Option<PathBuf>,
}

impl Drop for MeasuredMemory {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            // It may be gone already.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn refused(reason: impl Into<String>) -> BenchError {
    BenchError::Option { option: "memory", reason: reason.into() }
}

impl MeasuredMemory {
    /// `text`: none for anonymous memory, `numa:NODE`, a specification as of a daemon's `--memory`,
    /// or a path, which is one of `pmem:`.
    ///
    /// # Errors
    /// What cannot be read, is not there, or holds something.
    pub fn open(text: Option<&str>, bytes: u64) -> Result<MeasuredMemory, BenchError> {
        let Some(text) = text else { return Self::anonymous(None, bytes) };
        if text.starts_with("numa:") {
            return Self::anonymous(Some(text), bytes);
        }
        let with_kind = if text.starts_with('/') { format!("pmem:{text}") } else { text.into() };
        let spec: MemorySpec = with_kind.parse().map_err(|error| refused(format!("{error}")))?;
        let bytes = spec.size_bytes.unwrap_or(bytes);
        if bytes < BYTES_MIN {
            return Err(refused(format!("{bytes} bytes are too few; take size=8M or more")));
        }
        match spec.kind {
            MemoryKind::Heap => Self::anonymous(None, bytes),
            MemoryKind::Shm { path, .. } => Self::file(&path, bytes, Some(PersistenceDomain::None)),
            MemoryKind::Dax { path } => Self::file(&path, bytes, Some(PersistenceDomain::None)),
            MemoryKind::Pmem { path, domain } => Self::file(&path, bytes, domain),
        }
    }

    fn anonymous(node: Option<&str>, bytes: u64) -> Result<MeasuredMemory, BenchError> {
        let window = Window::heap(bytes);
        if let Some(node) = node {
            let placement: Placement = node.parse().map_err(|error| refused(format!("{error}")))?;
            placement.apply(&window).map_err(|error| refused(error.to_string()))?;
        }
        Self::as_if(window, node.unwrap_or("anonymous").to_owned(), None)
    }

    /// Of memory that forgets, as if the controllers' queues kept it.
    fn as_if(
        window: Window,
        what: String,
        made: Option<PathBuf>,
    ) -> Result<MeasuredMemory, BenchError> {
        window.zero(0, window.bytes());
        let window = PersistentWindow::new(window, PersistenceDomain::Adr);
        let window = window.map_err(|error| refused(error.to_string()))?;
        Ok(MeasuredMemory { window, what, made })
    }

    fn file(
        path: &Path,
        bytes: u64,
        domain: Option<PersistenceDomain>,
    ) -> Result<MeasuredMemory, BenchError> {
        let name = path.display();
        let is_device = std::fs::metadata(path).is_ok_and(|of| of.file_type().is_char_device());
        let open = |options: &mut OpenOptions| {
            let file = options.read(true).write(true).open(path);
            file.map_err(io_error(format!("{name} (a file has to be new: it is overwritten)")))
        };
        let file = open(OpenOptions::new().create_new(!is_device))?;
        let mut memory = Self::map(&file, path, bytes, domain, is_device);
        match &mut memory {
            Ok(memory) if !is_device => memory.made = Some(path.to_owned()),
            Err(_) if !is_device => {
                // The error tells more than that of its removal.
                let _ = std::fs::remove_file(path);
            }
            _ => {}
        }
        memory
    }

    fn map(
        file: &File,
        path: &Path,
        bytes: u64,
        domain: Option<PersistenceDomain>,
        is_device: bool,
    ) -> Result<MeasuredMemory, BenchError> {
        let what = path.display().to_string();
        if !is_device {
            file.set_len(bytes).map_err(io_error(what.clone()))?;
        }
        let medium = Medium::of(file.as_fd()).map_err(|error| refused(error.to_string()))?;
        let domain = medium.domain(domain).map_err(|error| refused(error.to_string()))?;
        if domain == PersistenceDomain::None {
            let window = Window::map(file.as_fd(), bytes, Access::ReadWrite, MapOptions::default());
            let window = window.map_err(io_error(what.clone()))?;
            if is_device {
                nothing_in(&window, &what)?;
            }
            return Self::as_if(window, what, None);
        }
        let window = PersistentWindow::map(file.as_fd(), bytes, 0, Some(domain));
        let window = window.map_err(|error| refused(error.to_string()))?;
        if is_device {
            nothing_in(window.window(), &what)?;
        }
        window.zero(0, bytes);
        Ok(MeasuredMemory { window, what: format!("{what}, domain {domain}"), made: None })
    }
}

fn nothing_in(window: &Window, name: &str) -> Result<(), BenchError> {
    let mut bytes = vec![0; window.bytes().min(LOOKED_AT_BYTES) as usize];
    window.copy_out(0, &mut bytes);
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    Err(refused(format!(
        "{name} holds something, and would be overwritten; if it is of no use, zero its first \
         {LOOKED_AT_BYTES} bytes"
    )))
}
