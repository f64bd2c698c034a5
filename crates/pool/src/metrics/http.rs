//! The endpoint of `--metrics`: plain HTTP/1.1, `GET /metrics` and nothing else, one connection at
//! a time, each bounded in bytes and time. A thread of its own speaks to the network; it asks the
//! server's poll loop for a snapshot through a [`Door`] and makes the text itself, so that a slow
//! or wrong reader costs the loop one snapshot at most.
//!
//! Ordering rule: the thread puts its question into the door, then wakes the loop; the loop drains
//! its wake event, then looks at the door.
//!
//! Source: DESIGN §4 (bounded, loopback only, no byte is trusted).

use crate::daemon::io_error;
use rackpool_core::constants::{METRICS_CONNECTION_MS_MAX, METRICS_HEAD_BYTES_MAX};
use rackpool_core::{Error, Result};
use rackpool_hw::event::{Interest, Poller, WakeEvent};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TOKEN_STOP: u64 = 0;
const TOKEN_LISTENER: u64 = 1;
/// Pause after a connection could not be accepted: out of descriptors, as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a poll loop finds who wants a snapshot.
pub(crate) struct Door<T> {
    asks: Receiver<SyncSender<T>>,
}

impl<T> Door<T> {
    /// Answers whoever asks. Never blocks.
    pub(crate) fn answer(&self, mut snapshot: impl FnMut() -> T) {
        while let Ok(reply) = self.asks.try_recv() {
            // Who has given up waiting does not hear it.
            let _ = reply.try_send(snapshot());
        }
    }
}

/// The thread. Dropping it ends it, within the time of one connection.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    local_addr: SocketAddr,
    stop: WakeEvent,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Where it serves.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.notify();
        let thread = self.thread.take().expect("taken only here");
        if thread.join().is_err() {
            eprintln!("rackpool: the metrics thread panicked");
        }
    }
}

/// Starts serving. `wake` is the poll loop's; `text` makes the answer of a snapshot.
///
/// # Errors
/// `denied` for an address that other machines can reach; `io` if it cannot be listened at.
pub(crate) fn start<T: Send + 'static>(
    listen: SocketAddr,
    wake: &WakeEvent,
    text: fn(&T) -> String,
) -> Result<(MetricsServer, Door<T>)> {
    if !listen.ip().is_loopback() {
        let reason = format!("metrics at {listen} could be read by other machines");
        return Err(Error::Denied { reason });
    }
    let failed = |error: io::Error| io_error(&format!("serving metrics at {listen}"), &error);
    let listener = TcpListener::bind(listen).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let local_addr = listener.local_addr().map_err(failed)?;
    let (stop, poller) = (WakeEvent::new().map_err(failed)?, Poller::new().map_err(failed)?);
    poller.add(&stop, TOKEN_STOP, Interest::Read).map_err(failed)?;
    poller.add(&listener, TOKEN_LISTENER, Interest::Read).map_err(failed)?;
    let (ask, asks) = sync_channel(1);
    let source = Source { ask, wake: wake.try_clone().map_err(failed)?, text };
    let thread = std::thread::Builder::new()
        .name("rackpool-metrics".into())
        .spawn(move || serve(&poller, &listener, &source))
        .map_err(failed)?;
    Ok((MetricsServer { local_addr, stop, thread: Some(thread) }, Door { asks }))
}

/// Where the answer comes from.
struct Source<T> {
    ask: SyncSender<SyncSender<T>>,
    wake: WakeEvent,
    text: fn(&T) -> String,
}

impl<T> Source<T> {
    /// `None` if the poll loop does not answer in time.
    fn text(&self, deadline: Instant) -> Option<String> {
        let (reply, answer) = sync_channel(1);
        // A question that was never answered may be in the door still.
        self.ask.try_send(reply).ok()?;
        self.wake.notify();
        let left = deadline.saturating_duration_since(Instant::now());
        answer.recv_timeout(left).ok().map(|snapshot| (self.text)(&snapshot))
    }
}

fn serve<T>(poller: &Poller, listener: &TcpListener, source: &Source<T>) {
    let mut ready = Vec::new();
    loop {
        if let Err(error) = poller.wait(None, &mut ready) {
            eprintln!("rackpool: metrics: {error}");
            return;
        }
        if ready.iter().any(|one| one.token == TOKEN_STOP) {
            return;
        }
        match listener.accept() {
            Ok((stream, _)) => {
                let deadline = Instant::now() + Duration::from_millis(METRICS_CONNECTION_MS_MAX);
                // A reader that left or is too slow has ended its own request only.
                let _ = converse(stream, deadline, source);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

/// One request and its answer.
fn converse<T>(mut stream: TcpStream, deadline: Instant, source: &Source<T>) -> io::Result<()> {
    let head = read_head(&mut stream, deadline)?;
    let (status, body, with_body) = match parse(&head) {
        Ok(request) => match source.text(deadline) {
            Some(text) => ("200 OK", text, request == Request::Get),
            None => ("503 Service Unavailable", "the server does not answer\n".into(), true),
        },
        Err(status) => (status, format!("{status}; GET /metrics is served\n"), true),
    };
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n",
        body.len()
    );
    if status.starts_with("405") {
        answer.push_str("Allow: GET, HEAD\r\n");
    }
    answer.push_str("\r\n");
    if with_body {
        answer.push_str(&body);
    }
    write_until(&mut stream, answer.as_bytes(), deadline)?;
    stream.shutdown(Shutdown::Write)
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    Get,
    Head,
}

/// Understands a request's head; else the status to answer with.
fn parse(head: &Head) -> std::result::Result<Request, &'static str> {
    let Head::Complete(bytes) = head else {
        return Err(match head {
            Head::TooLong => "431 Request Header Fields Too Large",
            _ => "400 Bad Request",
        });
    };
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else { return Err("400 Bad Request") };
    if !version.starts_with(b"HTTP/1.") {
        return Err("400 Bad Request");
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    match (method, path) {
        (b"GET", b"/metrics") => Ok(Request::Get),
        (b"HEAD", b"/metrics") => Ok(Request::Head),
        (b"GET" | b"HEAD", _) => Err("404 Not Found"),
        _ => Err("405 Method Not Allowed"),
    }
}

/// What came before the empty line.
#[derive(Debug)]
enum Head {
    Complete(Vec<u8>),
    TooLong,
    /// The peer ended before the empty line.
    Cut,
}

fn read_head(stream: &mut TcpStream, deadline: Instant) -> io::Result<Head> {
    let mut bytes = Vec::with_capacity(512);
    let mut chunk = [0; 512];
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        let count = match stream.read(&mut chunk) {
            Ok(0) => return Ok(Head::Cut),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        // The empty line may have begun in the last piece.
        let from = bytes.len().saturating_sub(3);
        bytes.extend_from_slice(&chunk[..count]);
        if let Some(at) = bytes[from..].windows(4).position(|four| four == b"\r\n\r\n") {
            bytes.truncate(from + at);
            return Ok(Head::Complete(bytes));
        }
        if bytes.len() > METRICS_HEAD_BYTES_MAX {
            return Ok(Head::TooLong);
        }
    }
}

fn write_until(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What is left of a connection's time; never zero, which would mean no limit.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(addr: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(request).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        // What a refused head left unread may reset the connection behind the answer.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn served<R>(body: impl FnOnce(SocketAddr) -> R) -> R {
        let wake = WakeEvent::new().unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let (server, door) = start::<u64>(listen, &wake, |n| format!("answer {n}\n")).unwrap();
        let stop = WakeEvent::new().unwrap();
        let addr = server.local_addr();
        std::thread::scope(|scope| {
            let (wake, stop) = (&wake, &stop);
            scope.spawn(move || {
                let poller = Poller::new().unwrap();
                poller.add(wake, 0, Interest::Read).unwrap();
                poller.add(stop, 1, Interest::Read).unwrap();
                let (mut ready, mut count) = (Vec::new(), 0);
                loop {
                    poller.wait(None, &mut ready).unwrap();
                    if ready.iter().any(|one| one.token == 1) {
                        return;
                    }
                    wake.drain();
                    door.answer(|| {
                        count += 1;
                        count
                    });
                }
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(addr)));
            stop.notify();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    #[test]
    fn a_request_gets_a_fresh_snapshot_and_the_connection_ends() {
        served(|addr| {
            let first = ask(addr, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
            assert!(first.starts_with("HTTP/1.1 200 OK\r\n"), "{first}");
            assert!(first.contains("text/plain; version=0.0.4"), "{first}");
            assert!(first.contains("Content-Length: 9\r\n"), "{first}");
            assert!(first.ends_with("\r\n\r\nanswer 1\n"), "{first}");
            let head = ask(addr, b"HEAD /metrics?x=y HTTP/1.0\r\n\r\n");
            assert!(head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"), "{head}");
            assert!(ask(addr, b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("answer 3\n"));
        });
    }

    #[test]
    fn wrong_requests_are_refused_and_end_nobody_elses() {
        served(|addr| {
            let long = [b"GET /metrics HTTP/1.1\r\nx: ".as_slice(), &[b'a'; 20_000]].concat();
            for (request, status) in [
                (b"POST /metrics HTTP/1.1\r\n\r\n".as_slice(), "405"),
                (b"GET / HTTP/1.1\r\n\r\n", "404"),
                (b"GET /metrics\r\n\r\n", "400"),
                (b"GET /metrics SPDY/1\r\n\r\n", "400"),
                (b"\0\xff\r\n\r\n", "400"),
                (b"GET /metrics HTTP/1.1\r\n", "400"),
                (long.as_slice(), "431"),
            ] {
                let answer = ask(addr, request);
                let refused = answer.starts_with(&format!("HTTP/1.1 {status} "));
                assert!(refused || answer.is_empty() && status == "431", "{status}: {answer}");
            }
            let silent = TcpStream::connect(addr).unwrap();
            let answer = ask(addr, b"GET /metrics HTTP/1.1\r\n\r\n");
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "behind a silent one: {answer}");
            drop(silent);
        });
    }

    #[test]
    fn a_loop_that_does_not_answer_is_said_and_other_machines_are_not_served() {
        let wake = WakeEvent::new().unwrap();
        let text = |_: &()| String::new();
        let (server, door) = start::<()>("127.0.0.1:0".parse().unwrap(), &wake, text).unwrap();
        drop(door);
        let answer = ask(server.local_addr(), b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        let error = start::<()>("0.0.0.0:0".parse().unwrap(), &wake, text).err().unwrap();
        assert_eq!(error.code(), "denied");
        let error = start::<()>(server.local_addr(), &wake, text).err().unwrap();
        assert_eq!(error.code(), "io");
    }
}
