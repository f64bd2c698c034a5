//! Prometheus over HTTP: `GET /metrics` and nothing else, one connection at a time, each bounded in
//! bytes and time, on a thread of its own.

use super::core::Shared;
use super::stats;
use rackpool_hw::event::{Interest, Poller, WakeEvent};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of a request that are looked at.
const HEAD_BYTES_MAX: usize = 4096;
/// How long a client may keep us waiting for each of its bytes, and reads at most.
const PATIENCE: Duration = Duration::from_millis(500);

/// The thread. Dropping it ends it, within the time of one connection.
pub struct Metrics {
    addr: SocketAddr,
    stop: Arc<WakeEvent>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Listens and answers.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(addr: SocketAddr, shared: Arc<Shared>) -> io::Result<Self> {
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let stop = Arc::new(WakeEvent::new()?);
        let poller = Poller::new()?;
        poller.add(&listener, 0, Interest::Read)?;
        poller.add(&*stop, 1, Interest::Read)?;
        let held = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("kv-metrics".into()).spawn(move || {
            let _held_open = held;
            serve(&listener, &poller, &shared);
        })?;
        Ok(Self { addr, stop, thread: Some(thread) })
    }

    /// Where it answers.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.stop.notify();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, poller: &Poller, shared: &Shared) {
    let mut events = Vec::new();
    while poller.wait(None, &mut events).is_ok() {
        // Relaxed: the flag carries no data; the wake event made us look.
        let stopping = shared.stopping.load(Ordering::Relaxed);
        if stopping || events.iter().any(|event| event.token == 1) {
            return;
        }
        match listener.accept() {
            // Who does not listen to the answer has lost nothing else.
            Ok((stream, _)) => drop(answer(stream, shared)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => std::thread::sleep(PATIENCE),
        }
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head = [0; HEAD_BYTES_MAX];
    let mut length = 0;
    // Bounded in time as well: each read brings at least a byte.
    for _ in 0..64 {
        let count = stream.read(&mut head[length..])?;
        length += count;
        let ended = head[..length].windows(4).any(|bytes| bytes == b"\r\n\r\n");
        if count == 0 || ended || length == HEAD_BYTES_MAX {
            break;
        }
    }
    let (status, text) = if head[..length].starts_with(b"GET /metrics ") {
        ("200 OK", stats::prometheus(shared))
    } else {
        ("404 Not Found", String::new())
    };
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
}
