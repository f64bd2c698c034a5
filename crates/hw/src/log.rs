//! What servers say to their operator: one line at a time on standard error, with time, level and
//! source.
//!
//! Standard error belongs to another process: a pipe that is not read any more, a disk that is
//! full, a terminal that is gone. So no caller writes to it. Lines flow into a bounded queue, and a
//! thread of its own writes them, one call a line; only that thread ever waits. What has no room,
//! or cannot be written, is dropped and counted ([`counts`]). Each place that logs is a [`LogSite`]
//! with a token bucket, so that no peer makes a log grow without bound; the next line of a kind
//! says how many were held back.
//!
//! A panic in a server ends the process, because other threads would wait for what the panicked one
//! owed them ([`end_at_panic`]).

use crate::process::monotonic_ns;
use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Lines that wait for standard error.
const QUEUE_LINES: usize = 1024;
/// Longest line, bytes: a pipe takes as much in one piece (`PIPE_BUF`), so that lines of several
/// processes do not tear one another.
const LINE_BYTES_MAX: usize = 4096;
/// Lines of one kind that go at once.
const BURST_LINES: u64 = 32;
/// Then one line in so many ns.
const REFILL_NS: u64 = 1_000_000_000;
/// How long an end waits for lines that are queued.
const FLUSH: Duration = Duration::from_secs(1);
/// Writes of a line that are tried again because standard error was not ready.
const RETRIES_MAX: u32 = 100;

/// How grave a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// What a person wants to know.
    Info,
    /// What a person should look at.
    Warn,
}

/// One kind of line: one place in the code. Made by the macros [`crate::info!`], [`crate::warn!`]
/// and [`crate::tell!`].
#[derive(Debug)]
pub struct LogSite {
    level: Level,
    /// Token bucket: when the next line would be free if lines came evenly, ns.
    due_ns: AtomicU64,
    held_back: AtomicU64,
}

impl LogSite {
    /// A kind of which nothing was said yet.
    pub const fn new(level: Level) -> Self {
        Self { level, due_ns: AtomicU64::new(0), held_back: AtomicU64::new(0) }
    }

    /// Says it, unless too much of this kind was said lately. Never blocks, never panics.
    pub fn say(&self, source: impl fmt::Display, what: impl fmt::Display) {
        if !self.admits(monotonic_ns()) {
            // Relaxed: two counters, of which each is right by itself.
            self.held_back.fetch_add(1, Ordering::Relaxed);
            COUNTS.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Relaxed: as above.
        let more = match self.held_back.swap(0, Ordering::Relaxed) {
            0 => String::new(),
            held => format!(" ({held} lines of this kind before it were held back)"),
        };
        say(self.level, source, format_args!("{what}{more}"));
    }

    fn admits(&self, now: u64) -> bool {
        let earliest = now.saturating_sub((BURST_LINES - 1) * REFILL_NS);
        let take = |due: u64| (due <= now).then(|| due.max(earliest) + REFILL_NS);
        // Relaxed: the bucket is all that it orders.
        self.due_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

/// Where a part of rackpool says something, if its owner wants to hear it otherwise.
pub type Sink = dyn Fn(&'static LogSite, fmt::Arguments<'_>) + Send + Sync;

/// Logs what a person wants to know: `info!(source, "format", …)`.
#[macro_export]
macro_rules! info {
    ($source:expr, $($what:tt)+) => {{
        static KIND: $crate::log::LogSite = $crate::log::LogSite::new($crate::log::Level::Info);
        KIND.say(&$source, format_args!($($what)+));
    }};
}

/// Logs what a person should look at: `warn!(source, "format", …)`.
#[macro_export]
macro_rules! warn {
    ($source:expr, $($what:tt)+) => {{
        static KIND: $crate::log::LogSite = $crate::log::LogSite::new($crate::log::Level::Warn);
        KIND.say(&$source, format_args!($($what)+));
    }};
}

/// Says something to a [`log::Sink`](crate::log::Sink): `tell!(sink, Warn, "format", …)`.
#[macro_export]
macro_rules! tell {
    ($sink:expr, $level:ident, $($what:tt)+) => {{
        static KIND: $crate::log::LogSite = $crate::log::LogSite::new($crate::log::Level::$level);
        ($sink)(&KIND, format_args!($($what)+));
    }};
}

/// Says what is said only so often, as at start and end.
pub fn say(level: Level, source: impl fmt::Display, what: impl fmt::Display) {
    let level = match level {
        Level::Info => "INFO",
        Level::Warn => "WARN",
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (time, ms) = (utc(now, 'T'), now.subsec_millis());
    queue(&format!("{time}.{ms:03}Z {level} {source}: {what}"));
}

/// A line as it is, without time and level: how a command ends, for programs that read it.
pub fn line(what: impl fmt::Display) {
    queue(&what.to_string());
}

/// Lines since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub written: u64,
    /// Held back because there were too many of their kind, left out because the queue was full, or
    /// refused by standard error.
    pub dropped: u64,
}

/// How much was said, and how much was not.
pub fn counts() -> Counts {
    // Relaxed: counters for people, of which each is right by itself.
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    Counts { written: of(&COUNTS.written), dropped: of(&COUNTS.dropped) }
}

/// Waits until what was logged is written, for a second at most.
pub fn flush() {
    let end_ns = monotonic_ns() + FLUSH.as_nanos() as u64;
    // Acquire: pairs with the Release in log.rs::write_all.
    while COUNTS.waiting.load(Ordering::Acquire) > 0 && monotonic_ns() < end_ns {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A last line, and the end of the process by SIGABRT: memory that another process may still write
/// to must not be given away.
pub fn abort(what: impl fmt::Display) -> ! {
    line(what);
    flush();
    std::process::abort();
}

struct AllCounts {
    written: AtomicU64,
    dropped: AtomicU64,
    /// Lines in the queue.
    waiting: AtomicU64,
}

static COUNTS: AllCounts = AllCounts {
    written: AtomicU64::new(0),
    dropped: AtomicU64::new(0),
    waiting: AtomicU64::new(0),
};

/// Queues one line: control characters would make several, or worse, of it.
fn queue(what: &str) {
    static WRITER: OnceLock<Option<SyncSender<String>>> = OnceLock::new();
    let mut text = String::with_capacity(what.len() + 1);
    for char in what.trim_end().chars() {
        if text.len() + 16 > LINE_BYTES_MAX {
            text.push('…');
            break;
        }
        match char {
            '\n' => text.push(' '),
            char if char.is_control() => text.extend(char.escape_default()),
            char => text.push(char),
        }
    }
    text.push('\n');
    let writer = WRITER.get_or_init(start_writer).as_ref();
    // Relaxed: pairs with nothing; the channel orders the line behind it.
    COUNTS.waiting.fetch_add(1, Ordering::Relaxed);
    if writer.is_none_or(|writer| writer.try_send(text).is_err()) {
        // Relaxed: as above, and a counter for people.
        COUNTS.waiting.fetch_sub(1, Ordering::Relaxed);
        COUNTS.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// `None` if there can be no thread: nothing is said then.
fn start_writer() -> Option<SyncSender<String>> {
    let (lines, queued) = sync_channel(QUEUE_LINES);
    let thread = std::thread::Builder::new().name("rackpool-log".into());
    thread.spawn(move || write_all(&queued)).ok().map(|_| lines)
}

fn write_all(queued: &Receiver<String>) {
    block_file_size_signal();
    let mut is_torn = false;
    while let Ok(text) = queued.recv() {
        let mut line = text.into_bytes();
        if is_torn {
            line.insert(0, b'\n');
        }
        let left = write_line(&line, &mut io::stderr());
        is_torn = left > 0 && (is_torn || left < line.len());
        let count = if left == 0 { &COUNTS.written } else { &COUNTS.dropped };
        // Relaxed: a counter for people.
        count.fetch_add(1, Ordering::Relaxed);
        // Release: pairs with the Acquire in log.rs::flush.
        COUNTS.waiting.fetch_sub(1, Ordering::Release);
    }
}

/// Bytes of the line that could not be written.
fn write_line(line: &[u8], to: &mut impl Write) -> usize {
    let (mut left, mut retries) = (line, 0);
    while !left.is_empty() {
        match to.write(left) {
            Ok(0) => break,
            Ok(count) => left = &left[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process that shares it made it non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && retries < RETRIES_MAX => {
                retries += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(_) => break,
        }
    }
    left.len()
}

/// A log that is as long as files may be is an error of a write, not the end of the process.
fn block_file_size_signal() {
    // SAFETY: the set is a plain structure that the call fills; nothing else refers to it.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is ours and writable.
    unsafe { libc::sigemptyset(&mut set) };
    // SAFETY: as above; SIGXFSZ is a signal of this system.
    unsafe { libc::sigaddset(&mut set, libc::SIGXFSZ) };
    // SAFETY: it changes the mask of this thread, which is ours; the old one is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

/// A time since 1970 as date and time of day, UTC.
pub fn utc(since_1970: Duration, separator: char) -> String {
    let seconds = since_1970.as_secs();
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = date(seconds / 86_400);
    format!("{year:04}-{month:02}-{day:02}{separator}{hour:02}:{minute:02}:{second:02}")
}

/// The civil date of a day since 1970, counted in years that begin in March, so that the leap day
/// is the last one.
fn date(days_since_1970: u64) -> (u64, u64, u64) {
    let days = days_since_1970 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Whether a panic of any thread ends the process.
static ENDS_AT_PANIC: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether a panic of what this thread does now is an answer.
    static IS_GUARDED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// From now on a panic says `error internal …`, on one line.
pub fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        if IS_GUARDED.get() {
            return;
        }
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
        let text = panic.payload().downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.payload().downcast_ref::<&str>().copied());
        let text = text.unwrap_or("no reason was given");
        line(format_args!("error internal thread {name} panicked{place}: {text}"));
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            trace.to_string().lines().for_each(line);
        }
        // Relaxed: set once at the start.
        if ENDS_AT_PANIC.load(Ordering::Relaxed) {
            flush();
            // Not `exit`: what it tears down other threads still use.
            // SAFETY: it only ends the process.
            unsafe { libc::_exit(1) };
        }
    }));
}

/// From now on a panic of any thread of this process is said and ends it with exit code 1: it is a
/// server, and others would wait for what the thread owed them.
pub fn end_at_panic() {
    // Relaxed: read by the hook, which is set behind it.
    ENDS_AT_PANIC.store(true, Ordering::Relaxed);
    report_panics();
}

/// Runs what may panic over bytes of others; `None` if it did, of which nothing is said. What it
/// used must not be used again.
pub fn guarded<T>(run: impl FnOnce() -> T) -> Option<T> {
    let was = IS_GUARDED.replace(true);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    IS_GUARDED.set(was);
    result.ok()
}

/// Starts a named thread of a server.
///
/// # Errors
/// If the system has no room for it.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let name = name.into();
    std::thread::Builder::new().name(name.clone()).spawn(move || {
        // For tests, which cannot reach into the threads of another process.
        if cfg!(debug_assertions)
            && std::env::var("RACKPOOL_TEST_PANIC").is_ok_and(|thread| thread == name)
        {
            panic!("asked for by a test");
        }
        body()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_164_799, "2024-02-28 23:59:59"),
            (1_735_689_600, "2025-01-01 00:00:00"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(utc(Duration::from_secs(seconds), ' '), text);
        }
    }

    #[test]
    fn a_kind_has_a_burst_and_then_a_line_a_second() {
        let kind = LogSite::new(Level::Warn);
        let start = 5_000 * REFILL_NS;
        let admitted = |at: u64, tries: u64| (0..tries).filter(|_| kind.admits(at)).count() as u64;
        assert_eq!(admitted(start, 1000), BURST_LINES);
        assert_eq!(admitted(start + REFILL_NS - 1, 1000), 0);
        assert_eq!(admitted(start + REFILL_NS, 1000), 1);
        assert_eq!(admitted(start + 9 * REFILL_NS, 1000), 8);
        assert_eq!(admitted(start + 3600 * REFILL_NS, 1000), BURST_LINES);
    }

    #[test]
    fn what_cannot_be_written_is_given_up() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let count = bytes.len().min(self.0);
                self.0 -= count;
                if count == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(count) }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert_eq!(write_line(b"line\n", &mut Full(5)), 0);
        assert_eq!(write_line(b"line\n", &mut Full(2)), 3);
        assert_eq!(write_line(b"line\n", &mut Full(0)), 5);
    }

    #[test]
    fn what_is_guarded_answers_instead_of_panicking() {
        assert_eq!(guarded(|| 3), Some(3));
        assert_eq!(guarded(|| if true { panic!("within") } else { 3 }), None);
    }
}
