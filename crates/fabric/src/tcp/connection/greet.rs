//! The beginning of a connection: the proof of the secret, if there is one, then a hello each way.
//!
//! In: bytes of the target. Out: `Connected`. Called by `connection.rs` until the connection is up;
//! all of it is to be over within a lease.

use super::super::frame::{HELLO_BYTES, Hello, HelloStatus};
use super::super::{Moved, send};
use super::{CloseReason, Context, TcpConnection, TcpStage};
use crate::handshake::{MESSAGE_BYTES, Progress};
use rackpool_core::seam::{FabricEvent, Nanos};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

impl TcpConnection {
    /// Does what can be done without waiting; `true` once the connection is up.
    pub(super) fn greet(&mut self, now: Nanos, cx: &mut Context) -> Result<bool, CloseReason> {
        if self.stage == TcpStage::Connecting {
            match self.proof.as_ref().map(|(_, first)| *first) {
                Some(first) => self.say(&first, TcpStage::Proving, cx)?,
                None => self.say(Hello::of_initiator().as_bytes(), TcpStage::Greeting, cx)?,
            }
        }
        if self.stage == TcpStage::Proving {
            self.prove(cx)?;
        }
        if self.stage == TcpStage::Greeting && self.hear(HELLO_BYTES, cx)? {
            let hello = Hello::read_from_bytes(self.input.filled()).expect("it is whole");
            self.input.consume(HELLO_BYTES);
            match hello.check()? {
                HelloStatus::Ok => {}
                refused => return Err(CloseReason::Refused(refused)),
            }
            self.stage = TcpStage::Up;
            self.liveness.heard(now);
            cx.events.push(FabricEvent::Connected { peer: self.peer });
            self.flush(cx)?;
            return Ok(true);
        }
        cx.lease.check(self.liveness.heard, now)?;
        Ok(false)
    }

    /// Says something short, as soon as the connection is made, and then waits in `next`.
    fn say(&mut self, bytes: &[u8], next: TcpStage, cx: &mut Context) -> Result<(), CloseReason> {
        match send(&mut self.stream, bytes, &mut cx.stats)? {
            Moved::Bytes(sent) if sent == bytes.len() => self.stage = next,
            Moved::Nothing if self.stage == TcpStage::Connecting => {}
            // A new connection has room for more than this.
            _ => return Err(CloseReason::System(Errno::NOBUFS)),
        }
        Ok(())
    }

    /// Waits until the input holds `bytes` bytes, and takes no more; whether it does.
    fn hear(&mut self, bytes: usize, cx: &mut Context) -> Result<bool, CloseReason> {
        let missing = bytes - self.input.filled().len();
        if missing > 0 && self.input.fill(&mut self.stream, missing, &mut cx.stats)? == Moved::End {
            return Err(CloseReason::Closed);
        }
        Ok(self.input.filled().len() == bytes)
    }

    /// Goes on with the proof of the secret; after it the hello is said.
    fn prove(&mut self, cx: &mut Context) -> Result<(), CloseReason> {
        loop {
            let is_whole = self.hear(MESSAGE_BYTES, cx)?;
            let (proof, _) = self.proof.as_mut().expect("there is one in this stage");
            let step = proof.advance(self.input.filled());
            self.input.consume(step.consumed);
            if let Some(reply) = step.reply {
                self.say(&reply, TcpStage::Proving, cx)?;
            }
            match step.progress {
                Progress::Failed(why) => return Err(why.into()),
                Progress::Done => {
                    if let Some(records) =
                        self.proof.take().and_then(|(proof, _)| proof.into_records())
                    {
                        self.stream.encrypt(records);
                    }
                    return self.say(Hello::of_initiator().as_bytes(), TcpStage::Greeting, cx);
                }
                Progress::Pending if !is_whole => return Ok(()),
                Progress::Pending => {}
            }
        }
    }
}
