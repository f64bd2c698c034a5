//! A stream socket that never blocks, in clear text or encrypted: what moves frames over TCP
//! does it by this, and sees the same bytes either way.
//!
//! In clear text each call is one system call, on the caller's own memory. Encrypted
//! ([`SecureStream::encrypt`]), what is sent goes into records that are kept here until the socket
//! has taken them ([`SecureStream::has_unsent`]), and what is received is decrypted into the
//! caller's memory if a whole record fits there, and else into a buffer here. `recv` fills all that
//! it was given as long as the socket has bytes: fewer mean that nothing is left, here or there, so
//! that a caller that sleeps until the socket is ready misses nothing. One that stops before that
//! asks for what is left here first ([`SecureStream::take_buffered`]).
//!
//! All buffers are allocated when encryption begins. Used by one thread at a time. Source: decision
//! 0038.

mod record_layer;

pub use record_layer::RecordLayer;

use record_layer::{HEAD_BYTES, PLAIN_BYTES_MAX, RECORD_BYTES_MAX, TAG_BYTES};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice};
use std::ops::Range;

/// Bytes of records that one call sends, and that one call receives, at most.
const BURST_BYTES: usize = 4 * RECORD_BYTES_MAX;
const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// A connected socket; see the module.
pub struct SecureStream {
    socket: OwnedFd,
    encrypted: Option<Box<Encrypted>>,
}

struct Encrypted {
    records: RecordLayer,
    /// Records that the socket has not taken.
    output: Box<[u8]>,
    unsent: Range<usize>,
    /// Where pieces that are shorter than a record are gathered.
    gathered: Box<[u8]>,
    /// Received bytes of records.
    input: Box<[u8]>,
    received: Range<usize>,
    /// A decrypted record, and which bytes of it the caller has not got.
    plain: Box<[u8]>,
    left: Range<usize>,
}

impl SecureStream {
    /// One in clear text. The socket should not block.
    pub fn new(socket: impl Into<OwnedFd>) -> Self {
        Self { socket: socket.into(), encrypted: None }
    }

    /// Encrypts what is sent from now on, and decrypts what is received from now on.
    pub fn encrypt(&mut self, records: RecordLayer) {
        let buffer = |bytes| vec![0; bytes].into_boxed_slice();
        self.encrypted = Some(Box::new(Encrypted {
            records,
            output: buffer(BURST_BYTES),
            unsent: 0..0,
            gathered: buffer(PLAIN_BYTES_MAX),
            input: buffer(BURST_BYTES),
            received: 0..0,
            plain: buffer(PLAIN_BYTES_MAX + TAG_BYTES),
            left: 0..0,
        }));
    }

    /// Whether bytes do not go straight between the socket and the caller's memory.
    #[inline]
    pub fn is_encrypted(&self) -> bool {
        self.encrypted.is_some()
    }

    /// Whether records wait here for the socket to have room: to be looked at by
    /// [`SecureStream::flush`].
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.encrypted.as_ref().is_some_and(|encrypted| !encrypted.unsent.is_empty())
    }

    /// Sends what waits here; whether all of it went.
    pub fn flush(&mut self) -> Result<bool, Errno> {
        match &mut self.encrypted {
            Some(encrypted) => encrypted.flush(self.socket.as_fd()),
            None => Ok(true),
        }
    }

    /// Sends some of the pieces, which are not all empty; how many bytes are taken. Errors: `AGAIN`
    /// if the socket has no room, and what the system says.
    pub fn send(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
        match (&mut self.encrypted, pieces) {
            (Some(encrypted), pieces) => encrypted.send(self.socket.as_fd(), pieces),
            (None, [bytes]) => rustix::net::send(&self.socket, bytes, FLAGS),
            (None, pieces) => {
                let mut control = SendAncillaryBuffer::default();
                rustix::net::sendmsg(&self.socket, pieces, &mut control, FLAGS)
            }
        }
    }

    /// Receives into `to`, which is not empty; 0 at the end of the stream. Errors: `AGAIN` if there
    /// is nothing; `BADMSG` if bytes were changed between the ends; `CONNRESET` if the stream ends
    /// within a record; what the system says.
    pub fn recv(&mut self, to: &mut [u8]) -> Result<usize, Errno> {
        match &mut self.encrypted {
            Some(encrypted) => encrypted.recv(self.socket.as_fd(), to),
            None => raw_recv(self.socket.as_fd(), to),
        }
    }

    /// Appends what was received and is still here, at most 64 KiB, without a look at the socket:
    /// then the system reports whatever else comes. Errors: `BADMSG`.
    pub fn take_buffered(&mut self, to: &mut Vec<u8>) -> Result<(), Errno> {
        let Some(encrypted) = &mut self.encrypted else { return Ok(()) };
        loop {
            to.extend_from_slice(&encrypted.plain[encrypted.left.clone()]);
            encrypted.left = 0..0;
            if encrypted.decrypt_next(&mut [])?.is_none() {
                return Ok(());
            }
        }
    }
}

impl AsFd for SecureStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl io::Read for SecureStream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv(to)?)
    }
}

impl io::Write for SecureStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.send(&[IoSlice::new(bytes)])?)
    }

    fn flush(&mut self) -> io::Result<()> {
        if SecureStream::flush(self)? { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }
}

fn raw_recv(socket: BorrowedFd<'_>, to: &mut [u8]) -> Result<usize, Errno> {
    rustix::net::recv(socket, to, RecvFlags::DONTWAIT).map(|(bytes, _)| bytes)
}

impl Encrypted {
    fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Errno> {
        while !self.unsent.is_empty() {
            match rustix::net::send(socket, &self.output[self.unsent.clone()], FLAGS) {
                Ok(bytes) => self.unsent.start += bytes,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.unsent = 0..0;
        Ok(true)
    }

    fn send(&mut self, socket: BorrowedFd<'_>, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
        if !self.flush(socket)? {
            return Err(Errno::AGAIN);
        }
        let mut taken = 0;
        let mut pieces = pieces.iter().map(|piece| &piece[..]);
        let mut piece: &[u8] = &[];
        while self.unsent.end + RECORD_BYTES_MAX <= BURST_BYTES {
            let mut gathered = 0;
            // A record's worth of one piece is encrypted from where it is.
            while gathered < PLAIN_BYTES_MAX && (gathered > 0 || piece.len() < PLAIN_BYTES_MAX) {
                if piece.is_empty() {
                    let Some(next) = pieces.next() else { break };
                    piece = next;
                    continue;
                }
                let (now, later) = piece.split_at(piece.len().min(PLAIN_BYTES_MAX - gathered));
                self.gathered[gathered..gathered + now.len()].copy_from_slice(now);
                (piece, gathered) = (later, gathered + now.len());
            }
            let plain = match (gathered, piece.split_at_checked(PLAIN_BYTES_MAX)) {
                (1.., _) => &self.gathered[..gathered],
                (0, Some((now, later))) => {
                    piece = later;
                    now
                }
                (0, None) => break,
            };
            taken += plain.len();
            self.unsent.end += self.records.encrypt(plain, &mut self.output[self.unsent.end..]);
        }
        // What does not go now waits here: it counts as sent.
        self.flush(socket)?;
        Ok(taken)
    }

    fn recv(&mut self, socket: BorrowedFd<'_>, to: &mut [u8]) -> Result<usize, Errno> {
        let (mut done, mut is_drained) = (0, false);
        loop {
            let bytes = self.left.len().min(to.len() - done);
            let from = self.left.start..self.left.start + bytes;
            to[done..done + bytes].copy_from_slice(&self.plain[from]);
            self.left.start += bytes;
            done += bytes;
            if done == to.len() {
                return Ok(done);
            }
            if let Some(bytes) = self.decrypt_next(&mut to[done..])? {
                done += bytes;
                continue;
            }
            if is_drained && done > 0 {
                return Ok(done);
            }
            // What is not whole is moved to the beginning, and has room for the rest.
            self.input.copy_within(self.received.clone(), 0);
            self.received = 0..self.received.len();
            let room = &mut self.input[self.received.end..];
            let asked = room.len();
            match raw_recv(socket, room) {
                Ok(0) if done == 0 && !self.received.is_empty() => return Err(Errno::CONNRESET),
                Ok(0) => return Ok(done),
                Ok(bytes) => {
                    self.received.end += bytes;
                    is_drained = bytes < asked;
                }
                Err(Errno::AGAIN | Errno::INTR) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }

    /// Decrypts the next record, if it is whole: into `to` if it fits there, and else to be taken
    /// from `plain`, where nothing is left. How many bytes are in `to`.
    fn decrypt_next(&mut self, to: &mut [u8]) -> Result<Option<usize>, Errno> {
        let Some(body) = self.records.next(&self.input[self.received.clone()])? else {
            return Ok(None);
        };
        self.received.start += HEAD_BYTES + body.len();
        if to.len() >= body.len() {
            return self.records.decrypt(body, to).map(Some);
        }
        self.left = 0..self.records.decrypt(body, &mut self.plain)?;
        Ok(Some(0))
    }
}

#[cfg(test)]
mod tests;
