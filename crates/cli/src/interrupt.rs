//! How a signal (SIGINT, SIGTERM, SIGHUP) ends a command. One thread waits for it. A one-shot
//! command ends at once, wherever it is: what it began to write goes, its child processes are
//! killed and reaped, its temporary directories with the regions in them go, and the exit code is
//! 128 and the signal's number (130 for SIGINT). A command that has something to finish says for
//! how long ([`allow`]); a second signal ends that too. One that changes the machine's settings
//! ends by itself ([`end_by_itself`]). A server that serves ends by its own loop ([`serve`]), one
//! that does not yet serve ends with 0 as it does after.

use crate::children;
use crate::failure::{Failure, Result};
use rackpool_mem::log;
use rackpool_mem::process::Shutdown;
use rackpool_mem::temporary;
use rustix::event::{PollFd, PollFlags, poll};
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a command that is let finish is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// When a person that waits for it is told so.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// How long a server may take to give up what it has begun before it serves.
const START_GIVES_UP: Duration = Duration::from_secs(2);
/// The least exit code of a command that a signal ended.
const EXIT_SIGNAL: u8 = 128;

/// How long the command may go on after a signal, ms.
static ALLOWED_MS: AtomicU64 = AtomicU64::new(0);
/// Whether this process is a server.
static IS_SERVER: AtomicBool = AtomicBool::new(false);
/// Whether it serves: then its own loop ends it.
static SERVES: AtomicBool = AtomicBool::new(false);
/// Held by the thread that ends the process.
static ENDING: Mutex<()> = Mutex::new(());

/// Begins to wait for signals; called once, by `main`.
pub fn install(is_server: bool) -> Result<()> {
    let shutdown = shutdown()?;
    // Relaxed: nothing else hangs on the flag, and the thread that reads it starts later.
    IS_SERVER.store(is_server, Ordering::Relaxed);
    if is_server {
        allow(START_GIVES_UP);
    }
    let thread = std::thread::Builder::new().name("signals".into());
    let started = thread.spawn(move || watch(shutdown));
    started.map(drop).map_err(|error| Failure::io("starting a thread", &error))
}

/// The wish that the process stops, for loops that look at it themselves.
pub fn shutdown() -> Result<Shutdown> {
    Shutdown::install().map_err(|error| Failure::io("installing signal handlers", &error))
}

/// From now on the command ends by itself after a signal, within this time; with zero it is ended
/// at once again.
pub fn allow(time: Duration) {
    // Relaxed: seen sooner or later; nothing else hangs on it.
    ALLOWED_MS.store(time.as_millis() as u64, Ordering::Relaxed);
}

/// From now on the server's own loop ends it after a signal.
pub fn serve() {
    // Relaxed: seen sooner or later; nothing else hangs on it.
    SERVES.store(true, Ordering::Relaxed);
}

/// From now on the command ends by itself after a signal: what it changes on the machine is not to
/// be left half done. A signal that came before ends it here.
pub fn end_by_itself(shutdown: Shutdown) {
    serve();
    if shutdown.is_requested() {
        end(shutdown);
    }
}

fn serves() -> bool {
    // Relaxed: as in `serve`.
    SERVES.load(Ordering::Relaxed)
}

fn allowed() -> Duration {
    // Relaxed: as in `allow`.
    Duration::from_millis(ALLOWED_MS.load(Ordering::Relaxed))
}

fn watch(shutdown: Shutdown) {
    while !shutdown.is_requested() {
        let mut fds = [PollFd::new(&shutdown, PollFlags::IN)];
        if poll(&mut fds, None).is_err() {
            std::thread::sleep(LOOK);
        }
    }
    let (start, mut is_told) = (Instant::now(), false);
    while start.elapsed() < allowed() && shutdown.requests() < 2 {
        if serves() {
            return;
        }
        if start.elapsed() > TELL_AFTER && !std::mem::replace(&mut is_told, true) {
            log::line("ending; once more to end at once");
        }
        std::thread::sleep(LOOK);
    }
    if !serves() {
        end(shutdown);
    }
}

/// Ends the process because of a signal: by whichever thread comes first, the others wait.
pub fn end(shutdown: Shutdown) -> ! {
    let _ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    temporary::end(children::end_remaining);
    // Relaxed: as in `install`.
    let is_server = IS_SERVER.load(Ordering::Relaxed);
    if !is_server {
        log::line(Failure::interrupted());
    }
    // Not for ever: the reader of standard error may have stopped.
    log::flush();
    let code = EXIT_SIGNAL + shutdown.signal().unwrap_or(0);
    exit(if is_server { 0 } else { i32::from(code) });
}

/// Ends the process if a signal asked for it, and only then: what failed after it is no failure.
pub fn end_if_asked() {
    if Shutdown::was_requested()
        && !serves()
        && let Ok(shutdown) = shutdown()
    {
        end(shutdown);
    }
}
