//! Threads beside the daemon's poll loop that join the pool as clients of their own daemon. The
//! daemon wakes one when there may be work; at the end of the daemon each is asked to end, and the
//! daemon goes on serving until it has.

use super::io_error;
use crate::clock;
use crate::handle::{ATOMIC_ID, Handle};
use crate::options::Options;
use rackpool_core::Result;
use rackpool_core::client::{Migrate, Operation};
use rackpool_core::runtime::WorkerHost;
use rackpool_core::seam::Nanos;
use rackpool_fabric::LocalBuffer;
use rackpool_mem::event::WakeEvent;
use rackpool_mem::log;
use rackpool_mem::window::Window;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// How the daemon signals a thread.
#[derive(Default)]
pub(super) struct Signal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Default)]
struct SignalState {
    is_woken: bool,
    is_over: bool,
}

impl Signal {
    fn state(&self) -> MutexGuard<'_, SignalState> {
        self.state.lock().expect("no panic happens under this lock")
    }

    fn wake(&self) {
        if !std::mem::replace(&mut self.state().is_woken, true) {
            self.changed.notify_one();
        }
    }

    pub(super) fn stop(&self) {
        if !std::mem::replace(&mut self.state().is_over, true) {
            self.changed.notify_all();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.state().is_over
    }

    /// Waits until it is woken, the end, or the time.
    pub(super) fn wait(&self, ns: Nanos) {
        self.wait_while(ns, |state| !state.is_woken && !state.is_over);
        self.state().is_woken = false;
    }

    /// Waits for the end, or until the time is up; `false` at the end.
    pub(super) fn pause(&self, ns: Nanos) -> bool {
        self.wait_while(ns, |state| !state.is_over);
        !self.is_over()
    }

    fn wait_while(&self, ns: Nanos, is_silent: impl FnMut(&mut SignalState) -> bool) {
        let time = Duration::from_nanos(ns);
        let waited = self.changed.wait_timeout_while(self.state(), time, is_silent);
        drop(waited.expect("no panic happens under this lock"));
    }
}

/// A thread, as the daemon sees it, if it was started.
#[derive(Default)]
pub(super) struct HelperThread(Option<(Arc<Signal>, JoinHandle<()>)>);

impl HelperThread {
    /// Starts it, unless it runs; `wake` is notified when it ends.
    pub(super) fn start(
        &mut self,
        name: &str,
        wake: &WakeEvent,
        run: impl FnOnce(&Signal) + Send + 'static,
    ) -> Result<()> {
        if !self.is_finished() {
            return Ok(());
        }
        let signal = Arc::new(Signal::default());
        let heard = Arc::clone(&signal);
        let spawned = wake.try_clone().and_then(|wake| {
            log::spawn(format!("rackpool-{name}"), move || {
                run(&heard);
                wake.notify();
            })
        });
        let what = format!("{name} thread");
        self.0 = Some((signal, spawned.map_err(|error| io_error(&what, &error))?));
        Ok(())
    }

    pub(super) fn wake(&self) {
        self.0.iter().for_each(|(signal, _)| signal.wake());
    }

    /// Asks it to end after what is under way, and does not wait; whether it has.
    pub(super) fn stop(&self) -> bool {
        self.0.iter().for_each(|(signal, _)| signal.stop());
        self.is_finished()
    }

    fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(|(_, thread)| thread.is_finished())
    }
}

/// What a thread that moves or copies pages has: a handle, once it needs it, and a buffer.
pub(super) struct Worker<'s> {
    pub(super) signal: &'s Signal,
    pub(super) options: Options,
    opened: Option<OpenedHandle>,
}

pub(super) struct OpenedHandle {
    pub(super) handle: Handle,
    buffer: Vec<u8>,
}

impl<'s> Worker<'s> {
    pub(super) fn new(signal: &'s Signal, options: Options) -> Self {
        Self { signal, options, opened: None }
    }

    /// Joins the pool, unless it has.
    pub(super) fn open(&mut self) -> Result<&mut OpenedHandle> {
        if self.opened.is_none() {
            let mut handle = Handle::join(self.options.clone())?;
            // What is copied says nothing of where a page is used.
            handle.never_count_use();
            let buffer = vec![0; Migrate::buffer_bytes(&handle.client) as usize];
            self.opened = Some(OpenedHandle { handle, buffer });
        }
        Ok(self.opened.as_mut().expect("it was opened above"))
    }
}

impl WorkerHost<Window> for Worker<'_> {
    fn now_ns(&self) -> Nanos {
        clock::now_ns()
    }

    fn is_stopped(&self) -> bool {
        self.signal.is_over()
    }

    async fn sleep(&mut self, ns: Nanos) {
        self.signal.pause(ns);
    }

    async fn perform<O: Operation<Window>>(
        &mut self,
        make: impl FnOnce(u64) -> O,
    ) -> Result<O::Output> {
        let OpenedHandle { handle, buffer } = self.open()?;
        handle.rounds += 2;
        let mut op = make(ATOMIC_ID | (handle.rounds - 1));
        handle.wait_with(&mut [LocalBuffer::Into(buffer)], async |cx, _| op.run(cx).await)
    }
}
