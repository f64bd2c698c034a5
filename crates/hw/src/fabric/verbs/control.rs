//! The TCP connection that goes with a queue pair: by it the ends find one another, see one
//! another die, and renew a queue pair that has failed. Owns the socket; never blocks.

use super::broken::Broken;
use super::wire::{CONTROL_BYTES, Control};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// The connection.
pub(super) struct ControlLine {
    socket: OwnedFd,
    input: [u8; CONTROL_BYTES],
    filled: usize,
    /// Frames that the socket has not taken; a few at most.
    output: Vec<u8>,
}

/// Frames that wait for the socket at most; a peer that reads none of so many is no peer.
const WAITING_MAX: usize = 16;

impl ControlLine {
    pub(super) fn new(socket: OwnedFd) -> Self {
        let output = Vec::with_capacity(WAITING_MAX * CONTROL_BYTES);
        Self { socket, input: [0; CONTROL_BYTES], filled: 0, output }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Puts a frame in and sends what the socket takes. A socket that is not connected yet keeps
    /// it until [`ControlLine::flush`].
    pub(super) fn send(&mut self, control: Control) -> Result<(), Broken> {
        if self.output.len() >= WAITING_MAX * CONTROL_BYTES {
            return Err(Broken::System(Errno::NOBUFS));
        }
        self.output.extend_from_slice(&control.to_bytes());
        self.flush()
    }

    /// Sends what waits.
    pub(super) fn flush(&mut self) -> Result<(), Broken> {
        while !self.output.is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(&self.socket, &self.output, flags) {
                Ok(bytes) => drop(self.output.drain(..bytes)),
                Err(Errno::AGAIN | Errno::INTR | Errno::NOTCONN) => break,
                Err(error) => return Err(Broken::System(error)),
            }
        }
        Ok(())
    }

    /// Whether the socket should be asked for room.
    pub(super) fn wants_out(&self) -> bool {
        !self.output.is_empty()
    }

    /// The next frame, if one is there.
    pub(super) fn receive(&mut self) -> Result<Option<Control>, Broken> {
        loop {
            if self.filled == CONTROL_BYTES {
                self.filled = 0;
                return Ok(Some(Control::parse(&self.input)?));
            }
            let to = &mut self.input[self.filled..];
            match rustix::net::recv(&self.socket, to, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Broken::Closed),
                Ok((bytes, _)) => self.filled += bytes,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(error) => return Err(Broken::System(error)),
            }
        }
    }
}
