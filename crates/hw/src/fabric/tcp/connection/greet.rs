//! The beginning of a connection: the proof of the secret, if there is one, then a hello each way.
//!
//! In: bytes of the target. Out: `Connected`. Called by `connection.rs` until the connection is up;
//! all of it is to be over within a lease.

use super::super::broken::Broken;
use super::super::frame::{HELLO_BYTES, Hello, HelloStatus};
use super::super::{Moved, send};
use super::{Connection, Context, Stage};
use crate::handshake::{Handshake, MESSAGE_BYTES, Message, Progress, Purpose, draw_nonce};
use rackpool_core::seam::{FabricEvent, Nanos, PeerId};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

impl Connection {
    /// Does what can be done without waiting; `true` once the connection is up.
    pub(super) fn greet(
        &mut self,
        peer: PeerId,
        now: Nanos,
        cx: &mut Context<'_>,
        events: &mut Vec<FabricEvent>,
    ) -> Result<bool, Broken> {
        if self.stage == Stage::Connecting {
            self.say_first(cx)?;
        }
        if self.stage == Stage::Proving {
            self.prove(cx)?;
        }
        if self.stage == Stage::Greeting && self.hear(HELLO_BYTES, cx)? {
            let hello = Hello::read_from_bytes(self.input.filled()).expect("it is whole");
            self.input.consume(HELLO_BYTES);
            match hello.check()? {
                HelloStatus::Ok => {}
                refused => return Err(Broken::Refused(refused)),
            }
            self.stage = Stage::Up;
            self.heard = now;
            events.push(FabricEvent::Connected { peer });
            self.flush(cx)?;
            return Ok(true);
        }
        if now.saturating_sub(self.heard) >= cx.lease_ms * 1_000_000 {
            return Err(Broken::Silent { lease_ms: cx.lease_ms });
        }
        Ok(false)
    }

    /// Says the first words as soon as the connection is made.
    fn say_first(&mut self, cx: &mut Context<'_>) -> Result<(), Broken> {
        let Some(secret) = &self.secret else {
            return self.say(Hello::of_initiator().as_bytes(), Stage::Greeting, cx);
        };
        if self.proof.is_none() {
            let nonce = draw_nonce().map_err(super::super::errno)?;
            let (proof, first) = Handshake::initiator(secret, Purpose::Fabric, nonce);
            self.proof = Some(proof);
            self.first = first;
        }
        let first = self.first;
        self.say(&first, Stage::Proving, cx)
    }
