//! The tcp fabric: one-sided operations framed over TCP and executed at the target by a thread
//! of the fabric, without waking the target's application.
//!
//! | module | owns |
//! |---|---|
//! | `frame` | the bytes on the wire and their checks |
//! | `endpoint` | the initiator's end: connections, buffers, waiting; implements `Fabric` |
//! | `connection` | one connection of an endpoint: send queue, receiving, liveness |
//! | `exposed` | buffers that the target may write into |
//! | `target` | the target's thread |
//! | `serve` | one connection of a target: execution of requests, answers |
//!
//! Here: the buffer that both sides receive into.
//! Without a secret only loopback addresses are spoken to. With one, both ends of a connection
//! prove first that they have it ([`crate::handshake`]), and what follows may be encrypted
//! ([`crate::secure_stream`]): then each byte is copied once more on either side.
//!
//! Source: DESIGN §1 (`Fabric`), §3 (waiting), §4 (liveness, loopback only without
//! authentication).

mod connection;
pub mod endpoint;
mod exposed;
pub mod frame;
mod serve;
mod target;

pub use endpoint::TcpEndpoint;
pub use target::start_target;

use super::FabricStats;
use crate::secure_stream::SecureStream;
use rustix::io::Errno;
use std::io::IoSlice;

/// Data from this length on is received straight to where it belongs; shorter data comes along
/// with its header in one system call and is copied once.
const DIRECT_BYTES_MIN: u64 = 8 << 10;
/// Most bytes that one system call moves from or to registered memory, so that a frame is never
/// announced for longer than such a call takes.
const CHUNK_BYTES: u64 = 1 << 20;

/// What a call on a socket that does not block did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    /// This many bytes; at least one.
    Bytes(usize),
    /// None: the socket is empty, or full.
    Nothing,
    /// None: the peer closed its side.
    End,
}

type Io = Result<Moved, Errno>;

/// Sends without blocking. `bytes` is not empty.
fn send(stream: &mut SecureStream, bytes: &[u8], stats: &mut FabricStats) -> Io {
    sent(stream.send(&[IoSlice::new(bytes)]), stats)
}

/// Counts the outcome of a call that sends.
fn sent(result: Result<usize, Errno>, stats: &mut FabricStats) -> Io {
    match result {
        Ok(bytes) => {
            stats.send_calls += 1;
            stats.sent_bytes += bytes as u64;
            Ok(Moved::Bytes(bytes))
        }
        Err(Errno::AGAIN | Errno::INTR) => {
            stats.empty_calls += 1;
            Ok(Moved::Nothing)
        }
        Err(error) => Err(error),
    }
}

/// Receives without blocking. `to` is not empty.
fn recv(stream: &mut SecureStream, to: &mut [u8], stats: &mut FabricStats) -> Io {
    debug_assert!(!to.is_empty());
    received(stream.recv(to), stats)
}

/// Counts the outcome of a call that receives into something that is not empty.
fn received(result: Result<usize, Errno>, stats: &mut FabricStats) -> Io {
    match result {
        Ok(0) => Ok(Moved::End),
        Ok(bytes) => {
            stats.recv_calls += 1;
            stats.received_bytes += bytes as u64;
            Ok(Moved::Bytes(bytes))
        }
        Err(Errno::AGAIN | Errno::INTR) => {
            stats.empty_calls += 1;
            Ok(Moved::Nothing)
        }
        Err(error) => Err(error),
    }
}

/// The system's answer behind an error of `Window`'s calls.
fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Received bytes that are not parsed yet, in a buffer of fixed size.
struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes].into_boxed_slice(), start: 0, end: 0 }
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        assert!(self.start <= self.end, "more consumed than received");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Appends what there is of a message of which `left` bytes are missing; whether it is whole.
    fn take_into(&mut self, message: &mut Vec<u8>, left: &mut usize) -> bool {
        let taken = self.filled().len().min(*left);
        message.extend_from_slice(&self.filled()[..taken]);
        *left -= taken;
        self.consume(taken);
        *left == 0
    }

    /// Receives up to `limit` bytes; never with a full buffer, because whatever is waited for in
    /// it is shorter than the buffer.
    fn fill(&mut self, stream: &mut SecureStream, limit: usize, stats: &mut FabricStats) -> Io {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let to = self.bytes.len().min(self.end + limit);
        assert!(to > self.end, "the receive buffer is full");
        let moved = recv(stream, &mut self.bytes[self.end..to], stats)?;
        if let Moved::Bytes(bytes) = moved {
            self.end += bytes;
        }
        Ok(moved)
    }
}
