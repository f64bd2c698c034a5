//! A stream socket that never blocks, plain or sealed: whoever moves frames over TCP does it by
//! this, and sees the same bytes either way.
//!
//! Plain, each call is one call of the system, on the caller's own memory. Sealed
//! ([`Line::seal`]), what is sent goes into records that are kept here until the socket has taken
//! them ([`Line::owes`]), and what is received is opened in a buffer here and copied out. `recv`
//! fills all that it was given as long as the socket has bytes: fewer mean that nothing is left,
//! here or there, so that a caller who sleeps until the socket is ready misses nothing. Who stops
//! before that asks for what is left here first ([`Line::take_held`]).
//!
//! Used by one thread at a time. Source: decision 0038.

mod seal;

pub use seal::Seal;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use seal::{HEAD_BYTES, PLAIN_BYTES_MAX, RECORD_BYTES_MAX};
use std::io::{self, IoSlice};

/// Bytes of sealed records that one call sends, and that one call receives, at most.
const BURST_BYTES: usize = 4 * RECORD_BYTES_MAX;
const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// A connected socket; see the module.
pub struct Line {
    socket: OwnedFd,
    sealed: Option<Box<Sealed>>,
}

struct Sealed {
    seal: Seal,
    /// Records for the socket; what is before `sent` it has taken.
    out: Vec<u8>,
    sent: usize,
    /// Opened bytes in `plain`, then records in `raw`.
    input: Box<[u8]>,
    plain: std::ops::Range<usize>,
    raw: std::ops::Range<usize>,
}

impl Line {
    /// A plain one. The socket should not block.
    pub fn new(socket: impl Into<OwnedFd>) -> Self {
        Self { socket: socket.into(), sealed: None }
    }

    /// Seals what is sent from now on, and opens what is received from now on.
    pub fn seal(&mut self, seal: Seal) {
        self.sealed = Some(Box::new(Sealed {
            seal,
            out: Vec::with_capacity(BURST_BYTES),
            sent: 0,
            input: vec![0; BURST_BYTES].into_boxed_slice(),
            plain: 0..0,
            raw: 0..0,
        }));
    }

    /// Whether it is sealed: bytes do not go straight between the socket and the caller's memory.
    #[inline]
    pub fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Whether sealed bytes wait here for the socket to have room: to be looked at by
    /// [`Line::flush`].
    #[inline]
    pub fn owes(&self) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.sent < sealed.out.len())
    }

    /// Sends what waits here; whether all of it went.
    pub fn flush(&mut self) -> Result<bool, Errno> {
        match &mut self.sealed {
            Some(sealed) => sealed.flush(self.socket.as_fd()),
            None => Ok(true),
        }
    }

    /// Sends some of the pieces, which are not all empty; how many bytes are taken. Errors: `AGAIN`
    /// if the socket has no room, and what the system says.
    pub fn send(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
        match (&mut self.sealed, pieces) {
            (Some(sealed), pieces) => sealed.send(self.socket.as_fd(), pieces),
            (None, [bytes]) => rustix::net::send(&self.socket, bytes, FLAGS),
            (None, pieces) => {
                let mut control = SendAncillaryBuffer::default();
                rustix::net::sendmsg(&self.socket, pieces, &mut control, FLAGS)
            }
        }
    }

    /// Receives into `to`, which is not empty; 0 at the end of the stream. Errors: `AGAIN` if there
    /// is nothing; `BADMSG` if somebody between the ends has changed bytes; what the system says.
    pub fn recv(&mut self, to: &mut [u8]) -> Result<usize, Errno> {
        match &mut self.sealed {
            Some(sealed) => sealed.recv(self.socket.as_fd(), to),
            None => raw_recv(self.socket.as_fd(), to),
        }
    }

    /// Appends what was received and is still here, at most 64 KiB, without a look at the socket:
    /// then the system reports whatever else comes. Errors: `BADMSG`.
    pub fn take_held(&mut self, to: &mut Vec<u8>) -> Result<(), Errno> {
        let Some(sealed) = &mut self.sealed else { return Ok(()) };
        loop {
            to.extend_from_slice(&sealed.input[sealed.plain.clone()]);
            sealed.plain.start = sealed.plain.end;
            if !sealed.open_next()? {
                return Ok(());
            }
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl io::Read for Line {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv(to)?)
    }
}

impl io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.send(&[IoSlice::new(bytes)])?)
    }

    fn flush(&mut self) -> io::Result<()> {
        if Line::flush(self)? { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }
}

fn raw_recv(socket: BorrowedFd<'_>, to: &mut [u8]) -> Result<usize, Errno> {
    rustix::net::recv(socket, to, RecvFlags::DONTWAIT).map(|(bytes, _)| bytes)
}

impl Sealed {
    fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Errno> {
        while self.sent < self.out.len() {
            match rustix::net::send(socket, &self.out[self.sent..], FLAGS) {
                Ok(bytes) => self.sent += bytes,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(true)
    }

    fn send(&mut self, socket: BorrowedFd<'_>, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
        if !self.flush(socket)? {
            return Err(Errno::AGAIN);
        }
        let mut taken = 0;
        let mut pieces = pieces.iter().map(|piece| &piece[..]);
        let mut left: &[u8] = &[];
        while self.out.len() + RECORD_BYTES_MAX <= BURST_BYTES {
            let start = self.out.len();
            self.out.extend_from_slice(&[0; HEAD_BYTES]);
            let limit = start + HEAD_BYTES + PLAIN_BYTES_MAX;
            while self.out.len() < limit {
                if left.is_empty() {
                    let Some(next) = pieces.next() else { break };
                    left = next;
                }
                let (now, later) = left.split_at(left.len().min(limit - self.out.len()));
                self.out.extend_from_slice(now);
                (left, taken) = (later, taken + now.len());
            }
            if self.out.len() == start + HEAD_BYTES {
                self.out.truncate(start);
                break;
            }
            self.seal.outgoing.seal(&mut self.out, start);
        }
        // What does not go now waits here: it counts as sent.
        self.flush(socket)?;
        Ok(taken)
    }

    fn recv(&mut self, socket: BorrowedFd<'_>, to: &mut [u8]) -> Result<usize, Errno> {
        let (mut done, mut is_drained) = (0, false);
        loop {
            let bytes = self.plain.len().min(to.len() - done);
            let from = self.plain.start..self.plain.start + bytes;
            to[done..done + bytes].copy_from_slice(&self.input[from]);
            self.plain.start += bytes;
            done += bytes;
            if done == to.len() {
                return Ok(done);
            }
            if self.open_next()? {
                continue;
            }
            if is_drained && done > 0 {
                return Ok(done);
            }
            // What is not whole is moved to the beginning, and has room for the rest.
            self.input.copy_within(self.raw.clone(), 0);
            self.raw = 0..self.raw.len();
            let room = &mut self.input[self.raw.end..];
            let asked = room.len();
            match raw_recv(socket, room) {
                Ok(0) => return Ok(done),
                Ok(bytes) => {
                    self.raw.end += bytes;
                    is_drained = bytes < asked;
                }
                Err(Errno::AGAIN | Errno::INTR) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens the next record, if it is whole; whether it was.
    fn open_next(&mut self) -> Result<bool, Errno> {
        let Some(opened) = self.seal.incoming.open(&mut self.input[self.raw.clone()])? else {
            return Ok(false);
        };
        let start = self.raw.start + HEAD_BYTES;
        self.plain = start..start + opened.plain_bytes;
        self.raw.start += opened.record_bytes;
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
