//! Submissions as futures, on any executor. A future that waits leaves its waker with its handle;
//! one thread of the process sleeps on the completion descriptors of all handles with waiting
//! futures, collects what has ended, and wakes.
//!
//! A submission owns its buffer until it has completed. So a future may be dropped at any time: the
//! buffer stays where it is until the fabric has done with it, and goes then.

use crate::daemon::io_error;
use crate::error::Result;
use crate::handle::Handle;
use crate::submit::{Completed, SUBMISSIONS_MAX, Ticket};
use rackpool_core::GAddr;
use rackpool_core::client::Access;
use rackpool_mem::event::WakeEvent;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

/// How long the thread sleeps at most while something is under way: deadlines of submissions are
/// looked at then.
const SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A handle with reads and writes that are futures. `Send + Sync`; clones are the same handle.
///
/// ```
/// # use std::{future::Future, pin::pin, sync::Arc, task::{Context, Poll, Wake, Waker}};
/// # struct Unpark(std::thread::Thread);
/// # impl Wake for Unpark { fn wake(self: Arc<Self>) { self.0.unpark() } }
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
/// #     let (mut cx, mut future) = (Context::from_waker(&waker), pin!(future));
/// #     loop {
/// #         match future.as_mut().poll(&mut cx) {
/// #             Poll::Ready(output) => return output,
/// #             Poll::Pending => std::thread::park(),
/// #         }
/// #     }
/// # }
/// # fn main() -> rackpool::Result<()> {
/// use rackpool::{Placement, RackId, cluster::Cluster};
/// let cluster = Cluster::start(2)?;
/// let handle = cluster.pool(0)?.async_handle()?;
/// let far = handle.with(|handle| handle.alloc(4096, Placement::Rack(RackId(1))))?;
/// let bytes = block_on(async {
///     handle.write(far, b"hello".to_vec()).await?;
///     handle.read(far, vec![0; 5]).await
/// })?;
/// assert_eq!(bytes, b"hello");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AsyncHandle {
    state: Arc<Mutex<State>>,
}

struct State {
    handle: Handle,
    /// Submissions with a future that waits for them.
    waiting: BTreeMap<Ticket, Waker>,
    /// Those that have ended and whose futures have not looked yet.
    ended: BTreeMap<Ticket, Completed>,
    /// Of futures that wait until there is room for their submission.
    blocked: Vec<Waker>,
    /// To be woken once the lock is released: a waker may run anything, this handle's calls too.
    due: Vec<Waker>,
    /// To be dropped then, for the same reason.
    replaced: Option<Waker>,
    is_watched: bool,
}

/// A read or write that is under way; its output is the buffer. It begins when it is first polled.
#[must_use = "it does nothing before it is polled"]
pub struct Submitted {
    state: Arc<Mutex<State>>,
    stage: Stage,
}

enum Stage {
    New(Access, GAddr, Vec<u8>),
    UnderWay(Ticket),
    Over,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A panic of a caller's `with` leaves the submissions as they were.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` under the lock, then wakes what it found due.
fn with_state<R>(state: &Mutex<State>, work: impl FnOnce(&mut State) -> R) -> R {
    let mut guard = lock(state);
    let result = work(&mut guard);
    let (due, _replaced) = (std::mem::take(&mut guard.due), guard.replaced.take());
    drop(guard);
    due.into_iter().for_each(Waker::wake);
    result
}

impl AsyncHandle {
    pub(crate) fn new(handle: Handle) -> Self {
        let state = State {
            handle,
            waiting: BTreeMap::new(),
            ended: BTreeMap::new(),
            blocked: Vec::new(),
            due: Vec::new(),
            replaced: None,
            is_watched: false,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Reads `buffer.len()` bytes at `addr` into `buffer`, which is the output. See
    /// [`Handle::submit_read`]; with 64 submissions under way the future waits for room.
    ///
    /// # Errors
    /// As [`Handle::read`].
    pub fn read(&self, addr: GAddr, buffer: Vec<u8>) -> Submitted {
        Submitted { state: Arc::clone(&self.state), stage: Stage::New(Access::Read, addr, buffer) }
    }

    /// Writes `buffer` to `addr`; the buffer is the output. See [`Handle::submit_write`].
    ///
    /// # Errors
    /// As [`Handle::write`].
    pub fn write(&self, addr: GAddr, buffer: Vec<u8>) -> Submitted {
        Submitted { state: Arc::clone(&self.state), stage: Stage::New(Access::Write, addr, buffer) }
    }

    /// Runs `work`, which blocks, with the handle: for what is no submission. Submissions under way
    /// go on meanwhile; their futures are woken afterwards. `work` must not complete submissions
    /// itself.
    pub fn with<R>(&self, work: impl FnOnce(&mut Handle) -> R) -> R {
        work(&mut lock(&self.state).handle)
    }
}

impl State {
    /// Takes what has ended; the futures of it are due.
    fn collect(&mut self) -> Result<()> {
        while let Some(completed) = self.handle.poll_completion()? {
            // Without a waker the future was dropped.
            if let Some(waker) = self.waiting.remove(&completed.ticket) {
                self.ended.insert(completed.ticket, completed);
                self.due.push(waker);
            }
            self.due.append(&mut self.blocked);
        }
        Ok(())
    }

    fn begin(&mut self, access: Access, addr: GAddr, buffer: Vec<u8>) -> Result<Ticket> {
        match access {
            Access::Read => self.handle.submit_read(addr, buffer),
            Access::Write => self.handle.submit_write(addr, buffer),
        }
    }

    fn wake_all(&mut self) {
        self.due.extend(self.waiting.values().cloned());
        self.due.append(&mut self.blocked);
    }
}

impl Future for Submitted {
    type Output = Result<Vec<u8>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Submitted { state, stage } = self.get_mut();
        with_state(state, |locked| stage.poll(state, locked, cx.waker()))
    }
}

impl Stage {
    fn poll(
        &mut self,
        shared: &Arc<Mutex<State>>,
        state: &mut State,
        waker: &Waker,
    ) -> Poll<Result<Vec<u8>>> {
        state.collect()?;
        let is_new = matches!(self, Stage::New(..));
        let ticket = match std::mem::replace(self, Stage::Over) {
            Stage::UnderWay(ticket) => ticket,
            Stage::New(access, addr, buffer) if state.handle.submitted() >= SUBMISSIONS_MAX => {
                *self = Stage::New(access, addr, buffer);
                // Once, however often it is polled meanwhile.
                if !state.blocked.iter().any(|one| one.will_wake(waker)) {
                    state.blocked.push(waker.clone());
                }
                watch(shared, state)?;
                return Poll::Pending;
            }
            Stage::New(access, addr, buffer) => {
                let ticket = state.begin(access, addr, buffer)?;
                *self = Stage::UnderWay(ticket);
                state.waiting.insert(ticket, waker.clone());
                // What a mapped rack has is done already.
                state.collect()?;
                ticket
            }
            Stage::Over => panic!("a future was polled after its end"),
        };
        if let Some(completed) = state.ended.remove(&ticket) {
            *self = Stage::Over;
            return Poll::Ready(completed.result.map(|()| completed.buffer));
        }
        state.replaced = state.waiting.insert(ticket, waker.clone());
        *self = Stage::UnderWay(ticket);
        if is_new || !state.is_watched {
            watch(shared, state)?;
        }
        Poll::Pending
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if let Stage::UnderWay(ticket) = self.stage {
            with_state(&self.state, |state| {
                state.replaced = state.waiting.remove(&ticket);
                state.ended.remove(&ticket);
            });
        }
    }
}

/// Handles with futures that wait, and what wakes the thread that looks at them.
struct Reactor {
    watched: Mutex<Vec<Weak<Mutex<State>>>>,
    wake: WakeEvent,
}

fn reactor() -> Result<&'static Arc<Reactor>> {
    static REACTOR: OnceLock<Result<Arc<Reactor>>> = OnceLock::new();
    let begun = REACTOR.get_or_init(|| {
        let wake = WakeEvent::new().map_err(|error| io_error("wake event", &error))?;
        let reactor = Arc::new(Reactor { watched: Mutex::default(), wake });
        let of_thread = Arc::clone(&reactor);
        std::thread::Builder::new()
            .name("rackpool-async".into())
            .spawn(move || of_thread.run())
            .map_err(|error| io_error("starting a thread", &error))?;
        Ok(reactor)
    });
    begun.as_ref().map_err(Clone::clone)
}

/// Has a handle looked at until nothing of it waits.
fn watch(state: &Arc<Mutex<State>>, locked: &mut State) -> Result<()> {
    let reactor = reactor()?;
    if !std::mem::replace(&mut locked.is_watched, true) {
        reactor.list().push(Arc::downgrade(state));
    }
    // Also if it is looked at already: what was just begun may need another descriptor.
    reactor.wake.notify();
    Ok(())
}

impl Reactor {
    fn list(&self) -> MutexGuard<'_, Vec<Weak<Mutex<State>>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut watched: Vec<Weak<Mutex<State>>> = Vec::new();
        loop {
            watched.append(&mut self.list());
            let mut fds = Vec::new();
            watched.retain(|one| {
                let fd = one.upgrade().and_then(|state| look(&state));
                fd.map(|fd| fds.push(fd)).is_some()
            });
            let mut polled = vec![PollFd::new(&self.wake, PollFlags::IN)];
            polled.extend(fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            let sleep = (!fds.is_empty()).then_some(&SLEEP);
            // A signal is as good as a wake-up.
            let _ = poll(&mut polled, sleep);
            self.wake.drain();
        }
    }
}

/// Collects what has ended of a handle; what to sleep on until there is more.
fn look(state: &Mutex<State>) -> Option<OwnedFd> {
    with_state(state, |state| {
        if state.collect().is_err() {
            // Each future hears of it by itself.
            state.wake_all();
        }
        state.is_watched = !(state.waiting.is_empty() && state.blocked.is_empty());
        if !state.is_watched {
            return None;
        }
        let fd = state.handle.completion_fd().ok().and_then(|fd| fd.try_clone_to_owned().ok());
        if fd.is_none() {
            state.is_watched = false;
            state.wake_all();
        }
        fd
    })
}

impl fmt::Debug for AsyncHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncHandle").finish_non_exhaustive()
    }
}

impl fmt::Debug for Submitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitted").finish_non_exhaustive()
    }
}
