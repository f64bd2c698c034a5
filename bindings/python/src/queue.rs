//! `Queue`: reads and writes that run while the program does something else. What is under way is
//! owned here, so a program that has given up waiting frees nothing that is still written to.

use crate::failure::exception;
use crate::memory::Memory;
use crate::session::{Sessions, detached};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use rackpool::{Completed, GAddr, Ticket};
use rackpool_bindings::fork::Owned;
use rackpool_bindings::{Failure, Outcome, Session};
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Its session is its own from its opening on.
#[pyclass(frozen, module = "rackpool")]
pub struct Queue {
    sessions: Arc<Sessions>,
    state: Owned<Mutex<State>>,
}

struct State {
    /// `None` once it was closed.
    session: Option<Session>,
    /// Reads under way: their bytes are answered.
    reads: BTreeSet<Ticket>,
}

impl Queue {
    pub fn open(py: Python<'_>, sessions: Arc<Sessions>) -> PyResult<Queue> {
        let session = detached(py, || sessions.open())?;
        let state = State { session: Some(session), reads: BTreeSet::new() };
        Ok(Queue { sessions, state: Owned::new(Mutex::new(state)) })
    }

    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Session, &mut BTreeSet<Ticket>) -> Outcome<R> + Send,
    ) -> PyResult<R> {
        detached(py, || {
            let mut state = self.state.get()?.lock().unwrap_or_else(PoisonError::into_inner);
            let State { session, reads } = &mut *state;
            let session = session.as_mut().ok_or_else(|| Failure::misuse("it is closed"))?;
            work(session, reads)
        })
    }
}

#[pymethods]
impl Queue {
    /// Begins to read; its ticket. Raises Busy with 64 under way.
    fn submit_read(&self, py: Python<'_>, address: u64, n: usize) -> PyResult<u64> {
        self.with(py, |session, reads| {
            let ticket = session.handle.submit_read(GAddr(address), vec![0; n])?;
            reads.insert(ticket);
            Ok(ticket.0)
        })
    }

    /// Begins to write what is in the buffer now; its ticket.
    fn submit_write(&self, py: Python<'_>, address: u64, buf: &Bound<'_, PyAny>) -> PyResult<u64> {
        let data = Memory::of(buf)?.bytes().to_vec();
        self.with(py, |session, _| Ok(session.handle.submit_write(GAddr(address), data)?.0))
    }

    /// What has ended: tickets, each with the bytes of a read, the length of a write, or the
    /// exception.
    fn poll<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let ended = self.with(py, |session, reads| {
            let mut ended: Vec<(Completed, bool)> = Vec::new();
            while let Some(completed) = session.handle.poll_completion()? {
                let is_read = reads.remove(&completed.ticket);
                ended.push((completed, is_read));
            }
            Ok(ended)
        })?;
        let list = PyList::empty(py);
        for (Completed { ticket, result, buffer }, is_read) in ended {
            let value = match result {
                Ok(()) if is_read => PyBytes::new(py, &buffer).into_any(),
                Ok(()) => buffer.len().into_pyobject(py)?.into_any(),
                Err(error) => {
                    exception(py, &Failure::Pool(error)).into_value(py).into_bound(py).into_any()
                }
            };
            list.append((ticket.0, value))?;
        }
        Ok(list)
    }

    /// A descriptor that is readable when `poll` may have something: to be asked for again before
    /// each sleep.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        self.with(py, |session, _| Ok(session.handle.completion_fd()?.as_raw_fd()))
    }

    /// Ends it; what is under way comes to no end that is told.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            let mut state = self.state.get()?.lock().unwrap_or_else(PoisonError::into_inner);
            drop(state.session.take());
            Ok(())
        })
    }

    /// Whether its pool was opened to be read only.
    #[getter]
    fn read_only(&self) -> bool {
        self.sessions.read_only
    }
}
