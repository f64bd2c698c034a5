//! `Region`: allocated memory, copied in and out anywhere; in a mapped rack and within one page
//! also seen as it is, through Python's buffer protocol. It is pinned while such views exist.

use crate::failure::{exception, invalid};
use crate::memory::{Memory, filled};
use crate::session::Sessions;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rackpool::{GAddr, Pin};
use rackpool_bindings::fork::Owned;
use rackpool_bindings::{Failure, Outcome};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[pyclass(frozen, module = "rackpool")]
pub struct Region {
    sessions: Arc<Sessions>,
    address: GAddr,
    bytes: u64,
    views: Mutex<Views>,
}

#[derive(Default)]
struct Views {
    /// There while there are views.
    pin: Option<Owned<Pin>>,
    count: usize,
    is_freed: bool,
}

impl Region {
    pub fn new(sessions: Arc<Sessions>, address: GAddr, bytes: u64) -> Self {
        Self { sessions, address, bytes, views: Mutex::default() }
    }

    fn views(&self) -> MutexGuard<'_, Views> {
        // Nothing under it is left half done.
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of `n` bytes at an offset.
    fn at(&self, py: Python<'_>, off: u64, n: u64) -> PyResult<GAddr> {
        if self.views().is_freed {
            return Err(exception(py, &Failure::misuse("the region was freed")));
        }
        if off.checked_add(n).is_none_or(|end| end > self.bytes) {
            return Err(invalid(py, "that is outside of the region"));
        }
        Ok(GAddr(self.address.0 + off))
    }

    /// Pins the memory for one view more; where it is.
    fn open_view(&self, py: Python<'_>) -> PyResult<usize> {
        self.at(py, 0, self.bytes)?;
        if let Some(opened) = self.views().open_one() {
            return opened.map_err(|failure| exception(py, &failure));
        }
        let pinned = self.sessions.with(py, |session| {
            match session.handle.pin(self.address, self.bytes) {
                // A session has few pins: one more has as many again.
                Err(error) if error.code() == "busy" => {
                    let mut more = self.sessions.open()?;
                    let pin = more.handle.pin(self.address, self.bytes);
                    self.sessions.give_back(more);
                    Ok(pin?)
                }
                pin => Ok(pin?),
            }
        });
        let pinned = pinned.map_err(|error| {
            let text = "only memory of a mapped rack, within one page, can be seen as it is: use \
                        read, readinto and write";
            let refused = PyBufferError::new_err(text);
            refused.set_cause(py, Some(error));
            refused
        })?;
        let mut views = self.views();
        // Another thread may have been first: then its pin is as good.
        views.pin.get_or_insert_with(|| Owned::new(pinned));
        let opened = views.open_one().expect("it is pinned");
        opened.map_err(|failure| exception(py, &failure))
    }
}

impl Views {
    /// Counts one view more of pinned memory; where it is.
    fn open_one(&mut self) -> Option<Outcome<usize>> {
        let start = self.pin.as_ref()?.get().map(|pin| pin.start().as_ptr() as usize);
        self.count += usize::from(start.is_ok());
        Some(start)
    }

    fn close_one(&mut self) {
        self.count -= 1;
        if self.count == 0 {
            self.pin = None;
        }
    }
}

#[pymethods]
impl Region {
    #[getter]
    fn address(&self) -> u64 {
        self.address.0
    }

    fn __len__(&self) -> usize {
        self.bytes as usize
    }

    fn __repr__(&self) -> String {
        format!("<rackpool.Region of {} bytes at {}>", self.bytes, self.address)
    }

    #[pyo3(signature = (buf, off = 0))]
    fn write(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, off: u64) -> PyResult<usize> {
        let memory = Memory::of(buf)?;
        let from = memory.bytes();
        let address = self.at(py, off, from.len() as u64)?;
        self.sessions.with(py, |session| Ok(session.handle.write(address, from)?))?;
        Ok(from.len())
    }

    #[pyo3(signature = (off = 0, n = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        off: u64,
        n: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let n = n.unwrap_or(self.bytes.saturating_sub(off));
        let address = self.at(py, off, n)?;
        filled(py, n as usize, |to| {
            self.sessions.with(py, |session| Ok(session.handle.read(address, to)?))
        })
    }

    #[pyo3(signature = (buf, off = 0))]
    fn readinto(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, off: u64) -> PyResult<usize> {
        let mut memory = Memory::writable(buf)?;
        let to = memory.bytes_mut();
        let bytes = to.len();
        let address = self.at(py, off, bytes as u64)?;
        self.sessions.with(py, |session| Ok(session.handle.read(address, to)?))?;
        Ok(bytes)
    }

    /// Gives the memory back to the pool.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        let address = self.at(py, 0, self.bytes)?;
        if self.views().count > 0 {
            return Err(PyBufferError::new_err("views of this region exist"));
        }
        self.sessions.with(py, |session| Ok(session.handle.free(address, self.bytes)?))?;
        self.views().is_freed = true;
        Ok(())
    }

    /// Whether the page under the views is wanted elsewhere, or was freed: end them soon.
    #[getter]
    fn revoked(&self, py: Python<'_>) -> PyResult<bool> {
        let views = self.views();
        let Some(pin) = &views.pin else { return Ok(false) };
        let pin = pin.get().map_err(|failure| exception(py, &failure))?;
        Ok(pin.is_revoked())
    }

    /// # Safety
    /// Python calls it, with a view to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (py, region) = (slf.py(), slf.get());
        let start = region.open_view(py)?;
        let read_only = region.sessions.read_only.into();
        let bytes = region.bytes as ffi::Py_ssize_t;
        // SAFETY: the memory is there while the pin is, and that as long as a view counts; the
        // object that the view holds is this one.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start as *mut _, bytes, read_only, flags)
        };
        if filled != 0 {
            region.views().close_one();
            return Err(PyErr::fetch(py));
        }
        Ok(())
    }

    /// # Safety
    /// Python calls it, once for each view that was filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.views().close_one();
    }
}
