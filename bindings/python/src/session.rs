//! Sessions of a pool, lent to one thread for one call; more are opened when all are lent.

use crate::failure::exception;
use pyo3::prelude::*;
use rackpool::{Pool, interruptible};
use rackpool_bindings::fork::Owned;
use rackpool_bindings::{Failure, Outcome, Session};
use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sessions that wait for the next call; more are closed.
const IDLE_MAX: usize = 64;

/// A pool that was joined, and its sessions.
#[derive(Debug)]
pub struct Sessions {
    state: Owned<Mutex<Open>>,
    pub read_only: bool,
}

#[derive(Debug)]
struct Open {
    /// `None` once it was closed.
    pool: Option<Pool>,
    idle: Vec<Session>,
}

thread_local! {
    /// What a signal's handler raised while a call waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs the handlers of signals that have come; whether one has raised something. They run in the
/// main thread only.
fn is_interrupted() -> bool {
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let is_raised = raised.is_some();
    RAISED.with(|last| *last.borrow_mut() = raised);
    is_raised
}

/// How a call came to its end.
enum Ended<R> {
    With(Outcome<R>),
    Interrupted,
}

/// Runs what may wait, detached from the interpreter.
pub fn detached<R: Send>(py: Python<'_>, work: impl FnOnce() -> Outcome<R> + Send) -> PyResult<R> {
    let ended = py.detach(|| match interruptible(is_interrupted, work) {
        Some(outcome) => Ended::With(outcome),
        None => Ended::Interrupted,
    });
    match ended {
        Ended::With(outcome) => outcome.map_err(|failure| exception(py, &failure)),
        Ended::Interrupted => {
            let raised = RAISED.with(|last| last.borrow_mut().take());
            Err(raised.expect("an interrupted call has what was raised"))
        }
    }
}

impl Sessions {
    pub fn new(pool: Pool) -> Self {
        let read_only = pool.options().read_only;
        let open = Open { pool: Some(pool), idle: Vec::new() };
        Self { state: Owned::new(Mutex::new(open)), read_only }
    }

    fn lock(&self) -> Outcome<MutexGuard<'_, Open>> {
        // Nothing under it is left half done.
        Ok(self.state.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// An idle session, or a new one.
    pub fn lend(&self) -> Outcome<Session> {
        // The lock is over before another session is opened, which takes it too.
        let idle = self.lock()?.idle.pop();
        idle.map_or_else(|| self.open(), Ok)
    }

    /// A new one, whether others are idle.
    pub fn open(&self) -> Outcome<Session> {
        let pool = self.lock()?.pool.clone();
        let pool = pool.ok_or_else(|| Failure::misuse("the pool is closed"))?;
        Ok(Session::new(pool.handle()?))
    }

    pub fn give_back(&self, mut session: Session) {
        session.handle.set_timeout_ms(None);
        if let Ok(mut open) = self.lock()
            && open.pool.is_some()
            && open.idle.len() < IDLE_MAX
        {
            open.idle.push(session);
        }
    }

    /// Works with a session. One in which a call was interrupted is closed, by another thread
    /// because that may take a while.
    pub fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Session) -> Outcome<R> + Send,
    ) -> PyResult<R> {
        detached(py, || {
            let mut lent = Lent(Some(self.lend()?));
            let outcome = work(lent.0.as_mut().expect("it was just lent"));
            lent.0.take().into_iter().for_each(|session| self.give_back(session));
            outcome
        })
    }

    /// Closes it: calls that are under way end as they would.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            let (pool, idle) = {
                let mut open = self.lock()?;
                (open.pool.take(), std::mem::take(&mut open.idle))
            };
            drop((idle, pool));
            Ok(())
        })
    }
}

/// A session in a call, which is left behind where the call unwinds.
struct Lent(Option<Session>);

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            let name = "rackpool-close".into();
            // Without a thread it is closed here, with the closure.
            drop(std::thread::Builder::new().name(name).spawn(move || drop(session)));
        }
    }
}
