//! `Lock`: a lock of the pool as a context manager. It has a session of its own while it is held,
//! because a lock is its handle's.

use crate::failure::exception;
use crate::session::{Sessions, detached};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rackpool::{GAddr, LockGuard, LockMode, LockOptions};
use rackpool_bindings::fork::Owned;
use rackpool_bindings::{Failure, Outcome, Session};
use std::sync::{Arc, Mutex, PoisonError};

#[pyclass(frozen, module = "rackpool")]
pub struct Lock {
    sessions: Arc<Sessions>,
    held: Owned<Mutex<Option<Held>>>,
    token: u64,
}

/// The guard is given back before its session.
struct Held {
    guard: LockGuard,
    session: Session,
}

impl Lock {
    pub fn take(
        py: Python<'_>,
        sessions: Arc<Sessions>,
        address: GAddr,
        bytes: u64,
        write: bool,
        timeout_ms: Option<u64>,
    ) -> PyResult<Lock> {
        let mode = if write { LockMode::Write } else { LockMode::Read };
        let line_or_range = match bytes {
            0 => LockOptions::line(),
            bytes => LockOptions::range(bytes),
        };
        let options = timeout_ms.map_or(line_or_range, |ms| line_or_range.within_ms(ms));
        let held = detached(py, || {
            let mut session = sessions.lend()?;
            match session.handle.lock(address, mode, options) {
                Ok(guard) => Ok(Held { guard, session }),
                Err(error) => {
                    sessions.give_back(session);
                    Err(error.into())
                }
            }
        })?;
        let token = held.guard.token();
        Ok(Lock { sessions, held: Owned::new(Mutex::new(Some(held))), token })
    }

    /// Works with what is held, which is taken out meanwhile.
    fn with(
        &self,
        py: Python<'_>,
        work: impl FnOnce(Held) -> Outcome<Option<Held>> + Send,
    ) -> PyResult<()> {
        detached(py, || {
            let held = self.held.get()?;
            let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = held.take().ok_or_else(|| Failure::misuse("the lock was released"))?;
            *held = work(taken)?;
            Ok(())
        })
    }
}

#[pymethods]
impl Lock {
    /// Grows with each grant of the rack: for services that refuse what is old.
    #[getter]
    fn token(&self) -> u64 {
        self.token
    }

    /// Asks the rack whether it is still held; raises Lost if not.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let mut outcome = Ok(());
        self.with(py, |mut held| {
            outcome = held.session.handle.check_lock(&held.guard);
            Ok(Some(held))
        })?;
        outcome.map_err(|error| exception(py, &Failure::Pool(error)))
    }

    /// Gives it back; raises Lost if it was not ours any more.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let sessions = &self.sessions;
        self.with(py, |Held { guard, mut session }| {
            let outcome = session.handle.unlock(guard);
            sessions.give_back(session);
            Ok(outcome.map(|()| None)?)
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.release(py)
    }
}
