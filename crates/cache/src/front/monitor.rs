//! `MONITOR`: the commands of all clients of RESP, told to those that want to see them. In: words,
//! by the thread that runs them. Out: lines in a queue of each such client, which its own thread
//! sends. A queue that is full loses its client: commands wait for no one that reads.

use super::slowlog::redacted;
use crate::cache::Millis;
use crate::constants::{MONITOR_QUEUE_BYTES_MAX, MONITOR_WORD_BYTES_MAX, MONITORS_MAX};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub struct MonitorQueue {
    thread: usize,
    lines: Mutex<Vec<u8>>,
    is_lost: AtomicBool,
}

impl MonitorQueue {
    /// Appends a line; the thread that is to send it, if it does not know yet.
    fn push(&self, line: &[u8]) -> Option<usize> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() + line.len() > MONITOR_QUEUE_BYTES_MAX {
            // Relaxed, here and below: the flag carries no data, and its thread is woken.
            return (!self.is_lost.swap(true, Ordering::Relaxed)).then_some(self.thread);
        }
        let was_empty = lines.is_empty();
        lines.extend_from_slice(line);
        was_empty.then_some(self.thread)
    }

    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub struct Monitors {
    queues: Mutex<Vec<Arc<MonitorQueue>>>,
    count: AtomicUsize,
}

/// A command that is told.
pub struct ToldCommand<'a> {
    /// By the wall clock.
    pub at: Millis,
    pub database: u8,
    pub addr: &'a str,
}

impl Monitors {
    fn queues(&self) -> MutexGuard<'_, Vec<Arc<MonitorQueue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn are_any(&self) -> bool {
        // Relaxed: the queues are under the lock.
        self.count.load(Ordering::Relaxed) > 0
    }

    /// A queue for a client of this thread; `None` if there are as many as may be.
    pub fn add(&self, thread: usize) -> Option<Arc<MonitorQueue>> {
        let mut queues = self.queues();
        if queues.len() >= MONITORS_MAX {
            return None;
        }
        let (lines, is_lost) = (Mutex::default(), AtomicBool::new(false));
        let queue = Arc::new(MonitorQueue { thread, lines, is_lost });
        queues.push(Arc::clone(&queue));
        // Relaxed: as in `are_any`.
        self.count.store(queues.len(), Ordering::Relaxed);
        Some(queue)
    }

    pub fn remove(&self, queue: &Arc<MonitorQueue>) {
        let mut queues = self.queues();
        queues.retain(|one| !Arc::ptr_eq(one, queue));
        // Relaxed: as in `are_any`.
        self.count.store(queues.len(), Ordering::Relaxed);
    }

    /// Tells of a command with these words; threads that have lines to send are woken.
    pub fn tell<'a>(
        &self,
        command: &ToldCommand<'_>,
        words: impl Iterator<Item = &'a [u8]>,
        wake: impl Fn(usize),
    ) {
        let line = line(command, redacted(words));
        self.queues().iter().filter_map(|queue| queue.push(&line)).for_each(wake);
    }
}

fn line<'a>(command: &ToldCommand<'_>, words: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let ToldCommand { at, database, addr } = command;
    let mut line = Vec::new();
    // Writing to a vector cannot fail.
    let _ = write!(line, "+{}.{:03}000 [{database} {addr}]", at / 1000, at % 1000);
    for word in words {
        if line.len() > MONITOR_QUEUE_BYTES_MAX / 2 {
            line.extend_from_slice(b" ...");
            break;
        }
        line.push(b' ');
        push_quoted(&mut line, &word[..word.len().min(MONITOR_WORD_BYTES_MAX)]);
        if let Some(more @ 1..) = word.len().checked_sub(MONITOR_WORD_BYTES_MAX) {
            let _ = write!(line, "... ({more} more bytes)");
        }
    }
    line.extend_from_slice(b"\r\n");
    line
}

/// Appends bytes in quotes, those that are no text as escapes.
fn push_quoted(line: &mut Vec<u8>, bytes: &[u8]) {
    line.push(b'"');
    for byte in bytes {
        match byte {
            b'\\' | b'"' => line.extend_from_slice(&[b'\\', *byte]),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            b'\t' => line.extend_from_slice(b"\\t"),
            7 => line.extend_from_slice(b"\\a"),
            8 => line.extend_from_slice(b"\\b"),
            b' '..=b'~' => line.push(*byte),
            // Writing to a vector cannot fail.
            byte => drop(write!(line, "\\x{byte:02x}")),
        }
    }
    line.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_as_in_redis_and_hides_passwords() {
        let command = ToldCommand { at: 1_700_000_000_012, database: 3, addr: "127.0.0.1:5" };
        let told = |words: &[&[u8]]| {
            let line = line(&command, redacted(words.iter().copied()));
            String::from_utf8(line).unwrap()
        };
        let words: [&[u8]; 3] = [b"set", b"a\"\\\x07\x08\r\n\t", b"\x00\xff "];
        let head = "+1700000000.012000 [3 127.0.0.1:5]";
        assert_eq!(
            told(&words),
            format!("{head} \"set\" \"a\\\"\\\\\\a\\b\\r\\n\\t\" \"\\x00\\xff \"\r\n")
        );
        assert_eq!(told(&[b"AUTH", b"secret"]), format!("{head} \"AUTH\" \"(redacted)\"\r\n"));
        let long = told(&[b"echo", &[b'x'; MONITOR_WORD_BYTES_MAX + 7]]);
        assert!(long.ends_with("x\"... (7 more bytes)\r\n"), "{long}");
    }

    #[test]
    fn a_queue_that_nothing_is_taken_from_is_lost_and_bounded() {
        let monitors = Monitors::default();
        let queue = monitors.add(2).unwrap();
        let (word, woken) = ([b'x'; 1000], AtomicUsize::new(0));
        for _ in 0..2 * MONITOR_QUEUE_BYTES_MAX / 1000 {
            let command = ToldCommand { at: 1, database: 0, addr: "a" };
            monitors.tell(&command, [&word[..]].into_iter(), |thread| {
                assert_eq!(thread, 2);
                woken.fetch_add(1, Ordering::Relaxed);
            });
        }
        // Once for the first line, once for the loss.
        assert!(queue.is_lost() && woken.into_inner() == 2);
        assert!(queue.take().len() <= MONITOR_QUEUE_BYTES_MAX);
        monitors.remove(&queue);
        assert!(!monitors.are_any());
        let all: Vec<_> = (0..MONITORS_MAX).map(|_| monitors.add(0).unwrap()).collect();
        assert!(monitors.add(0).is_none() && monitors.are_any() && !all.is_empty());
    }
}
