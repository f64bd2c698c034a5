//! The HTTP endpoint of every server (`--metrics`): `/metrics` for Prometheus, `/livez` and
//! `/readyz` for whatever starts and watches servers, by GET or HEAD. One thread serves all
//! connections, none of which it waits for: each is bounded in bytes and time, and where all places
//! are taken the oldest gives its own to a new one. A connection is one request and one answer.
//!
//! In: a listener, and a function that makes a page's text. A server with a poll loop is asked for
//! a snapshot through [`SnapshotRequests`], so that a slow or wrong reader costs the loop one
//! snapshot at most.
//!
//! Ordering rule: the thread puts its request into the queue, then wakes the loop; the loop drains
//! its wake event, then looks at the queue.
//!
//! Source: DESIGN §4 (bounded, loopback or a secret, no byte is trusted).

use crate::daemon::io_error;
use rackpool_core::constants::{
    METRICS_CONNECTION_MS_MAX, METRICS_CONNECTIONS_MAX, METRICS_HEAD_BYTES_MAX,
    METRICS_HEAD_FIELDS_MAX, METRICS_SNAPSHOT_MS_MAX,
};
use rackpool_core::{Error, Result};
use rackpool_fabric::secret::Secret;
use rackpool_mem::event::{Interest, Poller, WakeEvent};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TOKEN_STOP: u64 = 0;
const TOKEN_LISTENER: u64 = 1;
/// That of the first connection.
const TOKEN_FIRST: u64 = 2;
/// Pause after a connection could not be accepted: out of descriptors, as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Reads in a row of one connection.
const READS_MAX: usize = 16;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The counters, in the exposition format of Prometheus.
    Metrics,
    /// Whether the server works: if not, it should be started anew.
    Live,
    /// Whether it should be sent work.
    Ready,
}

impl Page {
    fn of(path: &str) -> Option<Self> {
        match path {
            "/metrics" => Some(Page::Metrics),
            "/livez" => Some(Page::Live),
            "/readyz" => Some(Page::Ready),
            _ => None,
        }
    }
}

/// Makes a page: its text, or why the answer is no. May block for as long as the server is asked.
pub type Pages = Box<dyn FnMut(Page) -> std::result::Result<String, String> + Send>;

/// Requests for a snapshot that a poll loop has to answer.
pub(crate) struct SnapshotRequests<T> {
    asks: Receiver<SyncSender<T>>,
}

impl<T> SnapshotRequests<T> {
    /// Answers those that wait. Never blocks.
    pub(crate) fn answer(&self, mut snapshot: impl FnMut() -> T) {
        while let Ok(reply) = self.asks.try_recv() {
            // A caller that has given up waiting does not get it.
            let _ = reply.try_send(snapshot());
        }
    }
}

/// Where the counters are served, and to which clients.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub listen: SocketAddr,
    pub token: Option<Secret>,
}

/// Starts the endpoint of a server with a poll loop and its wake event. `text` makes the counters
/// of a snapshot, `ready` says why the server should not be sent work, if it should not.
///
/// # Errors
/// As [`Endpoint::start`].
pub(crate) fn start<T: Send + 'static>(
    place: &Place,
    wake: &WakeEvent,
    text: fn(&T) -> String,
    ready: fn(&T) -> std::result::Result<(), String>,
) -> Result<(Endpoint, SnapshotRequests<T>)> {
    let (ask, asks) = sync_channel(1);
    let wake = wake.try_clone().map_err(|error| io_error("serving metrics", &error))?;
    let snapshot = move || {
        let (reply, answer) = sync_channel(1);
        // A question that was never answered may be in the queue still: it is not waited for again.
        ask.try_send(reply).ok()?;
        wake.notify();
        answer.recv_timeout(Duration::from_millis(METRICS_SNAPSHOT_MS_MAX)).ok()
    };
    let pages = move |page| {
        let snapshot = snapshot().ok_or("the server does not answer")?;
        match page {
            Page::Metrics => Ok(text(&snapshot)),
            Page::Live => Ok("live\n".into()),
            Page::Ready => ready(&snapshot).map(|()| "ready\n".into()),
        }
    };
    let endpoint = Endpoint::open(place.listen, place.token.clone(), Box::new(pages))?;
    Ok((endpoint, SnapshotRequests { asks }))
}

/// The endpoint and its thread, which ends when this is dropped, within the time of one snapshot.
#[derive(Debug)]
pub struct Endpoint {
    local_addr: SocketAddr,
    stop: WakeEvent,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Listens and answers. With a `token` the counters are only for clients that send it as
    /// `Authorization: Bearer TOKEN`; whether the server lives is no secret.
    ///
    /// # Errors
    /// `denied` for an address that other machines can reach without a token; `io` if it cannot be
    /// listened at.
    pub fn start(listen: SocketAddr, token: Option<Secret>, pages: Pages) -> crate::Result<Self> {
        Ok(Self::open(listen, token, pages)?)
    }

    fn open(listen: SocketAddr, token: Option<Secret>, pages: Pages) -> Result<Self> {
        if !listen.ip().to_canonical().is_loopback() && token.is_none() {
            let reason = format!(
                "metrics at {listen} could be read by other machines: serve them at a loopback \
                 address such as 127.0.0.1, or ask for a token with --metrics-token-file FILE"
            );
            return Err(Error::Denied { reason });
        }
        let failed = |error: io::Error| io_error(&format!("serving metrics at {listen}"), &error);
        let listener = TcpListener::bind(listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let local_addr = listener.local_addr().map_err(failed)?;
        let (stop, poller) = (WakeEvent::new().map_err(failed)?, Poller::new().map_err(failed)?);
        poller.add(&stop, TOKEN_STOP, Interest::Read).map_err(failed)?;
        poller.add(&listener, TOKEN_LISTENER, Interest::Read).map_err(failed)?;
        let exchanges = std::iter::repeat_with(|| None).take(METRICS_CONNECTIONS_MAX).collect();
        let mut serving = Serving { poller, listener, exchanges, site: Site { pages, token } };
        let thread =
            rackpool_mem::log::spawn("rackpool-metrics", move || serving.run()).map_err(failed)?;
        Ok(Self { local_addr, stop, thread: Some(thread) })
    }

    /// Where it serves.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.notify();
        let thread = self.thread.take().expect("taken only here");
        // A thread that panicked has said so.
        let _ = thread.join();
    }
}

struct Serving {
    poller: Poller,
    listener: TcpListener,
    /// The connections, by their tokens.
    exchanges: Vec<Option<Exchange>>,
    site: Site,
}

impl Serving {
    fn run(&mut self) {
        let mut ready = Vec::new();
        loop {
            let next = self.exchanges.iter().flatten().map(|exchange| exchange.deadline).min();
            let left = next.map(|next| next.saturating_duration_since(Instant::now()));
            if self.poller.wait(left, &mut ready).is_err() {
                std::thread::sleep(ACCEPT_PAUSE);
            }
            for one in &ready {
                match one.token {
                    TOKEN_STOP => return,
                    TOKEN_LISTENER => self.accept(),
                    token => self.serve((token - TOKEN_FIRST) as usize),
                }
            }
            let now = Instant::now();
            for index in 0..self.exchanges.len() {
                if self.exchanges[index].as_ref().is_some_and(|one| one.deadline <= now) {
                    self.end(index);
                }
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..METRICS_CONNECTIONS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => self.begin(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    /// Takes a connection; the oldest one goes if there is no place.
    fn begin(&mut self, stream: TcpStream) {
        let age = |index: &usize| self.exchanges[*index].as_ref().map(|one| one.deadline);
        let oldest = (0..self.exchanges.len()).min_by_key(age).expect("there are places");
        self.end(oldest);
        let added = stream
            .set_nonblocking(true)
            .and_then(|()| self.poller.add(&stream, TOKEN_FIRST + oldest as u64, Interest::Read));
        if added.is_ok() {
            self.exchanges[oldest] = Some(Exchange::new(stream));
        }
    }

    fn serve(&mut self, index: usize) {
        let Some(exchange) = &mut self.exchanges[index] else { return };
        match exchange.advance(&mut self.site) {
            Ok(Some(interest)) => {
                let token = TOKEN_FIRST + index as u64;
                if self.poller.modify(&exchange.stream, token, interest).is_err() {
                    self.end(index);
                }
            }
            // A reader that left has ended its own request only.
            Ok(None) | Err(_) => self.end(index),
        }
    }

    fn end(&mut self, index: usize) {
        if let Some(exchange) = self.exchanges[index].take() {
            // It is closed in any case.
            let _ = self.poller.remove(&exchange.stream);
        }
    }
}

/// One request and its answer.
struct Exchange {
    stream: TcpStream,
    head: Vec<u8>,
    /// Empty until the head is whole.
    answer: Vec<u8>,
    sent: usize,
    /// Our side has ended: what still comes is passed over, since a socket that is closed with
    /// something unread takes the answer away from its reader.
    is_parting: bool,
    deadline: Instant,
}

impl Exchange {
    fn new(stream: TcpStream) -> Self {
        let deadline = Instant::now() + Duration::from_millis(METRICS_CONNECTION_MS_MAX);
        let (head, answer) = (Vec::new(), Vec::new());
        Self { stream, head, answer, sent: 0, is_parting: false, deadline }
    }

    /// Goes on as far as it can; what to wait for, `None` at its end.
    fn advance(&mut self, site: &mut Site) -> io::Result<Option<Interest>> {
        if self.answer.is_empty() {
            let has_ended = self.read_head()?;
            match site.answer(&self.head, has_ended) {
                Some(answer) => self.answer = answer,
                None => return Ok(Some(Interest::Read)),
            }
        }
        while self.sent < self.answer.len() {
            match self.stream.write(&self.answer[self.sent..]) {
                Ok(0) => return Ok(None),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Some(Interest::Write));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if !self.is_parting {
            self.is_parting = true;
            self.stream.shutdown(Shutdown::Write)?;
        }
        let mut passed_over = [0; 4096];
        for _ in 0..READS_MAX {
            match self.read(&mut passed_over)? {
                None => break,
                Some(0) => return Ok(None),
                Some(_) => {}
            }
        }
        Ok(Some(Interest::Read))
    }

    /// Reads what there is of the head; whether its sender has ended its side.
    fn read_head(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 1024];
        while self.head.len() <= METRICS_HEAD_BYTES_MAX {
            match self.read(&mut chunk)? {
                None => return Ok(false),
                Some(0) => return Ok(true),
                Some(count) => self.head.extend_from_slice(&chunk[..count]),
            }
        }
        Ok(false)
    }

    /// `None`: nothing is there now.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.stream.read(buffer) {
                Ok(count) => return Ok(Some(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

struct Site {
    pages: Pages,
    token: Option<Secret>,
}

impl Site {
    /// The answer to a head; `None` if it is not whole and may become so.
    fn answer(&mut self, head: &[u8], has_ended: bool) -> Option<Vec<u8>> {
        let mut fields = [httparse::EMPTY_HEADER; METRICS_HEAD_FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let status = match request.parse(head) {
            Ok(httparse::Status::Complete(_)) => return Some(self.respond(&request)),
            Ok(httparse::Status::Partial) if head.len() > METRICS_HEAD_BYTES_MAX => TOO_LARGE,
            Ok(httparse::Status::Partial) if !has_ended => return None,
            Err(httparse::Error::TooManyHeaders) => TOO_LARGE,
            Ok(httparse::Status::Partial) | Err(_) => "400 Bad Request",
        };
        Some(message(status, "", &format!("{status}\n"), true))
    }

    fn respond(&mut self, request: &httparse::Request<'_, '_>) -> Vec<u8> {
        let (method, target) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
        // A proxy names the whole address.
        let target = target
            .strip_prefix("http://")
            .map_or(target, |of_host| of_host.find('/').map_or("/", |slash| &of_host[slash..]));
        let path = target.split('?').next().unwrap_or_default();
        let is_head = method == "HEAD";
        let error = |status: &str, field: &str| {
            let known = "GET /metrics, /livez and /readyz are served";
            message(status, field, &format!("{status}; {known}\n"), !is_head)
        };
        let Some(page) = Page::of(path) else { return error("404 Not Found", "") };
        if method != "GET" && !is_head {
            return error("405 Method Not Allowed", "Allow: GET, HEAD\r\n");
        }
        if page == Page::Metrics && !self.may_read(request) {
            return error("401 Unauthorized", "WWW-Authenticate: Bearer\r\n");
        }
        match (self.pages)(page) {
            Ok(text) => message("200 OK", "", &text, !is_head),
            Err(why) => message("503 Service Unavailable", "", &format!("{why}\n"), !is_head),
        }
    }

    /// Whether a request has the token, if there is one; compared in constant time.
    fn may_read(&self, request: &httparse::Request<'_, '_>) -> bool {
        let Some(token) = &self.token else { return true };
        let mut fields = request.headers.iter();
        let field = fields.find(|field| field.name.eq_ignore_ascii_case("authorization"));
        field.is_some_and(|field| {
            let blank = field.value.iter().position(|byte| *byte == b' ').unwrap_or(0);
            let (scheme, given) = field.value.split_at(blank);
            scheme.eq_ignore_ascii_case(b"bearer") && token.is(given.trim_ascii())
        })
    }
}

const TOO_LARGE: &str = "431 Request Header Fields Too Large";

/// An answer; `field` is a line of its head.
fn message(status: &str, field: &str, body: &str, has_body: bool) -> Vec<u8> {
    let length = body.len();
    let body = if has_body { body } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nCache-Control: no-store\r\nConnection: close\r\n{field}\r\n\
         {body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests;
