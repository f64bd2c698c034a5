//! The log of a process: `tracing` events as lines on standard error, as text or JSON.
//!
//! The crates emit `tracing` events with the part of rackpool as target (`master`, `daemon`,
//! `fabric` ..). A program that wants them as its log calls [`start`] once; without it, or with
//! a subscriber of its own, nothing here takes them.
//!
//! Standard error belongs to another process: a pipe that is not read any more, a disk that is
//! full, a terminal that is gone. So no caller writes to it. Lines flow into a bounded queue, and a
//! thread of its own writes them, one call a line; only that thread ever waits. What has no room,
//! or cannot be written, is dropped and counted ([`counts`]). Each place in the code that logs has
//! a token bucket, so that no peer makes a log grow without bound; the next line of such a place
//! says how many were held back.
//!
//! A panic in a server ends the process, because other threads would wait for what the panicked one
//! owed them ([`end_at_panic`]).

use crate::process::monotonic_ns;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::callsite::Identifier;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, format};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

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

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// `TIME LEVEL TARGET: MESSAGE`.
    Text,
    /// An object with `timestamp`, `level`, `target`, `fields.message`, and `held_back` if events
    /// of this place were.
    Json,
}

/// Writes the events that `filter` lets through to standard error, from now on and for the whole
/// process. A second call changes nothing.
pub fn start(filter: Targets, format: LogFormat) {
    let bytes_max = match format {
        LogFormat::Text => LINE_BYTES_MAX,
        // A part of an object is no object.
        LogFormat::Json => usize::MAX,
    };
    let lines = tracing_subscriber::fmt::layer()
        .event_format(Lines { format, buckets: Mutex::default() })
        .with_writer(move || QueueWriter { bytes_max })
        .log_internal_errors(false);
    let subscriber = tracing_subscriber::registry().with(lines).with(filter);
    // Another one is there: this process has a log.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Reads a filter in the syntax of `RUST_LOG`: `LEVEL`, `TARGET` and `TARGET=LEVEL` with commas
/// between, where a level is `off`, `error`, `warn`, `info`, `debug` or `trace`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_filter(text: &str) -> Result<Targets, String> {
    text.parse().map_err(|error| {
        format!("{text:?} is no filter such as info, or warn,fabric=debug: {error}")
    })
}

struct Lines {
    format: LogFormat,
    buckets: Mutex<HashMap<Identifier, TokenBucket>>,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let held_back = {
            let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
            buckets.entry(metadata.callsite()).or_default().take(monotonic_ns())
        };
        let Some(held_back) = held_back else {
            // Relaxed: a counter for people.
            COUNTS.dropped.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        if self.format == LogFormat::Json {
            let mut line = String::new();
            format().json().format_event(context, Writer::new(&mut line), event)?;
            return match line.trim_end().strip_suffix('}') {
                Some(open) if held_back > 0 => write!(to, "{open},\"held_back\":{held_back}}}"),
                _ => to.write_str(&line),
            };
        }
        SystemTime.format_time(&mut to)?;
        write!(to, " {} {}: ", metadata.level(), metadata.target())?;
        context.format_fields(to.by_ref(), event)?;
        match held_back {
            0 => Ok(()),
            held => write!(to, " ({held} lines of this kind before it were held back)"),
        }
    }
}

/// What one place in the code may log.
#[derive(Debug, Default)]
struct TokenBucket {
    /// When the next line would be free if lines came evenly, ns.
    due_ns: u64,
    held_back: u64,
}

impl TokenBucket {
    /// How many lines were held back before this one; `None` if this one is as well.
    fn take(&mut self, now: u64) -> Option<u64> {
        if self.due_ns > now {
            self.held_back += 1;
            return None;
        }
        self.due_ns = self.due_ns.max(now.saturating_sub((BURST_LINES - 1) * REFILL_NS));
        self.due_ns += REFILL_NS;
        Some(std::mem::take(&mut self.held_back))
    }
}

struct QueueWriter {
    bytes_max: usize,
}

impl Write for QueueWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        queue(&String::from_utf8_lossy(line), self.bytes_max);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A line as it is, without time and level: how a command ends, for programs that read it.
pub fn line(what: impl fmt::Display) {
    queue(&what.to_string(), LINE_BYTES_MAX);
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
fn queue(what: &str, bytes_max: usize) {
    static WRITER: OnceLock<Option<SyncSender<String>>> = OnceLock::new();
    let mut text = String::with_capacity(what.len() + 1);
    for char in what.trim_end().chars() {
        if text.len() + 16 > bytes_max {
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
    fn a_place_has_a_burst_and_then_a_line_a_second() {
        let mut bucket = TokenBucket::default();
        let start = 5_000 * REFILL_NS;
        let mut taken = |at: u64, tries: u64| {
            (0..tries)
                .filter_map(|_| bucket.take(at))
                .fold((0, 0), |(n, held), more| (n + 1, held + more))
        };
        assert_eq!(taken(start, 1000), (BURST_LINES, 0));
        assert_eq!(taken(start + REFILL_NS - 1, 1000), (0, 0));
        assert_eq!(taken(start + REFILL_NS, 1000), (1, 1968));
        assert_eq!(taken(start + 9 * REFILL_NS, 1000), (8, 999));
        assert_eq!(taken(start + 3600 * REFILL_NS, 1000), (BURST_LINES, 992));
    }

    /// What a subscriber with this format makes of events.
    fn lines_of(format: LogFormat, filter: &str, events: impl FnOnce()) -> Vec<String> {
        #[derive(Clone, Default)]
        struct Kept(std::sync::Arc<Mutex<Vec<u8>>>);
        impl Write for Kept {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend([bytes.trim_ascii_end(), b"\n"].concat());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let kept = Kept::default();
        let to = kept.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(Lines { format, buckets: Mutex::default() })
            .with_writer(move || to.clone());
        let subscriber =
            tracing_subscriber::registry().with(layer).with(parse_filter(filter).unwrap());
        tracing::subscriber::with_default(subscriber, events);
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_filter_names_levels_and_targets() {
        let events = || {
            tracing::info!(target: "master", "one");
            tracing::warn!(target: "master", "two");
            tracing::info!(target: "fabric", rack = 3, "three");
        };
        let said = |filter: &str| -> Vec<String> {
            let lines = lines_of(LogFormat::Text, filter, events);
            lines.iter().map(|line| line.split_once("Z ").unwrap().1.to_owned()).collect()
        };
        let all = ["INFO master: one", "WARN master: two", "INFO fabric: three rack=3"];
        assert_eq!(said("info"), all);
        assert_eq!(said("warn"), all[1..2]);
        assert_eq!(said("warn,fabric=debug"), all[1..]);
        assert_eq!(said("off"), all[..0]);
        assert!(parse_filter("fabric=loud").unwrap_err().contains("warn,fabric=debug"));
    }

    #[test]
    fn json_says_how_many_were_held_back() {
        let mut bucket = |_| tracing::warn!(target: "master", "a \"word\"\nand more");
        let lines = lines_of(LogFormat::Json, "info", || (0..40).for_each(&mut bucket));
        assert_eq!(lines.len() as u64, BURST_LINES);
        let message =
            r#""level":"WARN","fields":{"message":"a \"word\"\nand more"},"target":"master"}"#;
        assert!(lines.iter().all(|line| line.ends_with(message)), "{lines:?}");
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
