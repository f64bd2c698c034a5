//! The TCP connection that goes with a queue pair: by it the ends prove to one another that they
//! have the pool's secret, find one another, see one another die, and renew a queue pair that has
//! failed. Owns the socket; never blocks.
//!
//! Frames that are sent before the proof is over wait for it; none is taken before.

use super::wire::{CONTROL_BYTES, Control, MAGIC};
use crate::FabricError;
use crate::close::CloseReason;
use crate::handshake::{Failure, Handshake, MESSAGE_BYTES, Progress, Purpose};
use crate::secret::Secret;
use rackpool_core::error::Distrust;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

pub(super) struct ControlLine {
    socket: OwnedFd,
    /// Until the secret is proved, or found not to be asked for.
    proof: Option<Handshake>,
    input: [u8; CONTROL_BYTES],
    filled: usize,
    /// Bytes that the socket has not taken; a few frames at most.
    output: Vec<u8>,
    /// Frames that wait for the proof.
    held: Vec<u8>,
}

/// Frames that wait for the socket at most; a peer that reads none of so many is no peer.
const WAITING_MAX: usize = 16;

impl ControlLine {
    /// The end that connects; its socket may not be connected yet. Errors: `Io` if the kernel has
    /// no random numbers.
    pub(super) fn begin(socket: OwnedFd, secret: Option<&Secret>) -> Result<Self, FabricError> {
        let mut line = Self::new(socket, None);
        if let Some(secret) = secret {
            let begun = Handshake::begin(secret, Purpose::Fabric);
            let (proof, first) = begun.map_err(FabricError::io("random numbers"))?;
            line.output.extend_from_slice(&first);
            line.proof = Some(proof);
        }
        Ok(line)
    }

    /// The end that was connected to. Errors: as of [`ControlLine::begin`].
    pub(super) fn accept(socket: OwnedFd, secret: Option<&Secret>) -> Result<Self, FabricError> {
        let proof = Handshake::accept(secret, Purpose::Fabric);
        let proof = proof.map_err(FabricError::io("random numbers"))?;
        Ok(Self::new(socket, Some(proof)))
    }

    fn new(socket: OwnedFd, proof: Option<Handshake>) -> Self {
        let output = Vec::with_capacity(WAITING_MAX * CONTROL_BYTES);
        Self { socket, proof, input: [0; CONTROL_BYTES], filled: 0, output, held: Vec::new() }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Puts a frame in and sends what the socket takes. A socket that is not connected yet keeps
    /// it until [`ControlLine::flush`].
    pub(super) fn send(&mut self, control: Control) -> Result<(), CloseReason> {
        if self.output.len() + self.held.len() >= WAITING_MAX * CONTROL_BYTES {
            return Err(CloseReason::System(Errno::NOBUFS));
        }
        let to = if self.proof.is_some() { &mut self.held } else { &mut self.output };
        to.extend_from_slice(&control.to_bytes());
        self.flush()
    }

    pub(super) fn flush(&mut self) -> Result<(), CloseReason> {
        while !self.output.is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(&self.socket, &self.output, flags) {
                Ok(bytes) => drop(self.output.drain(..bytes)),
                Err(Errno::AGAIN | Errno::INTR | Errno::NOTCONN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether the socket should be asked for room.
    pub(super) fn wants_out(&self) -> bool {
        !self.output.is_empty()
    }

    /// The next frame, if one is there.
    pub(super) fn receive(&mut self) -> Result<Option<Control>, CloseReason> {
        loop {
            self.prove()?;
            if self.proof.is_none() && self.filled == CONTROL_BYTES {
                self.filled = 0;
                return Ok(Some(Control::parse(&self.input)?));
            }
            let is_proving = self.proof.is_some() && self.filled < MESSAGE_BYTES;
            let limit = if is_proving { MESSAGE_BYTES } else { CONTROL_BYTES };
            let to = &mut self.input[self.filled..limit];
            match rustix::net::recv(&self.socket, to, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(CloseReason::Closed),
                Ok((bytes, _)) => self.filled += bytes,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Goes on with the proof as far as the bytes that have come allow.
    fn prove(&mut self) -> Result<(), CloseReason> {
        let Some(proof) = self.proof.as_mut().filter(|_| self.filled > 0) else { return Ok(()) };
        let step = proof.advance(&self.input[..self.filled]);
        self.input.copy_within(step.consumed..self.filled, 0);
        self.filled -= step.consumed;
        if let Some(reply) = step.reply {
            self.output.extend_from_slice(&reply);
        }
        match step.progress {
            Progress::Pending => {}
            Progress::Done => {
                self.proof = None;
                self.output.append(&mut self.held);
            }
            Progress::Failed(why) => {
                if why == Failure::Distrust(Distrust::InitiatorHasNone) {
                    let magic = MAGIC.to_le_bytes();
                    let begins = self.input[..self.filled].iter().zip(magic).all(|(a, b)| *a == b);
                    // It is told in its own words, once its whole hello is here.
                    if begins && self.filled < CONTROL_BYTES {
                        return Ok(());
                    }
                    self.output.extend_from_slice(&Control::Secret.to_bytes());
                }
                self.flush()?;
                return Err(why.into());
            }
        }
        self.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::frame::HelloStatus;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn no_secret() -> CloseReason {
        CloseReason::Refused(HelloStatus::Secret)
    }

    /// What both ends say after each has said hello, or why it ended.
    fn meet(initiator: Option<&[u8]>, target: Option<&[u8]>) -> [Result<(), CloseReason>; 2] {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let secret = |bytes: Option<&[u8]>| bytes.map(|bytes| Secret::new(bytes).unwrap());
        let mut a = ControlLine::begin(a, secret(initiator).as_ref()).unwrap();
        let mut b = ControlLine::accept(b, secret(target).as_ref()).unwrap();
        a.send(Control::Ping).unwrap();
        let mut ends = [None, None];
        for _ in 0..10 {
            for (end, line, says) in [(1, &mut b, Control::Ping), (0, &mut a, Control::Pong)] {
                if ends[end].is_some() {
                    continue;
                }
                let _ = line.flush();
                ends[end] = match line.receive() {
                    Ok(None) => None,
                    Ok(Some(Control::Secret)) => Some(Err(no_secret())),
                    Ok(Some(control)) => {
                        assert_eq!(control, says);
                        Some(line.send(Control::Pong))
                    }
                    Err(broken) => Some(Err(broken)),
                };
            }
        }
        ends.map(|end| end.expect("it ended"))
    }

    #[test]
    fn frames_pass_after_the_same_secret_or_without_any_and_else_both_ends_say_why() {
        let (one, two) = (Some(&[1; 32][..]), Some(&[2; 32][..]));
        assert_eq!(meet(None, None), [Ok(()), Ok(())]);
        assert_eq!(meet(one, one), [Ok(()), Ok(())]);
        let failed = |why: Distrust| Err(CloseReason::Handshake(Failure::Distrust(why)));
        assert_eq!(meet(one, two), [failed(Distrust::OtherSecret), failed(Distrust::OtherSecret)]);
        let none = failed(Distrust::TargetHasNone);
        assert_eq!(meet(one, None), [none.clone(), none]);
        let [initiator, target] = meet(None, two);
        assert_eq!(target, failed(Distrust::InitiatorHasNone));
        assert_eq!(initiator, Err(no_secret()));
    }
}
