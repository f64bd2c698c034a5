//! The beginning of a connection, as its target sees it: the proof of the secret, if there is one,
//! then a hello each way. An initiator that is refused is told why, in a form that it understands.

use super::super::frame::{FrameError, HELLO_BYTES, HELLO_MAGIC, Hello, HelloStatus};
use super::{CloseReason, ServeStep, TargetReceiveState, TcpServeContext, TcpSession};
use crate::handshake::{Failure, Progress};
use rackpool_core::error::Distrust;
use zerocopy::{FromBytes, IntoBytes};

impl TcpSession {
    /// Goes on with the proof of the secret.
    pub(super) fn prove(
        &mut self,
        service: &mut TcpServeContext,
    ) -> Result<ServeStep, CloseReason> {
        let TargetReceiveState::Proof(proof) = &mut self.receiving else {
            unreachable!("the caller looked");
        };
        if self.input.is_empty() {
            return Ok(ServeStep::Input);
        }
        let step = proof.advance(self.input.filled());
        self.input.consume(step.consumed);
        if let Some(reply) = step.reply {
            self.output.push(&reply);
        }
        match step.progress {
            Progress::Pending if step.consumed == 0 => Ok(ServeStep::Input),
            Progress::Pending => Ok(ServeStep::Again),
            Progress::Done => {
                let TargetReceiveState::Proof(proof) =
                    std::mem::replace(&mut self.receiving, TargetReceiveState::Hello)
                else {
                    unreachable!("looked at above");
                };
                if let Some(records) = proof.into_records() {
                    // Our proof is the last that goes in clear, and theirs the last that came so.
                    self.flush(service)?;
                    if !self.output.is_empty() || !self.input.is_empty() {
                        return Err(Failure::Strange.into());
                    }
                    self.stream.encrypt(records);
                }
                Ok(ServeStep::Again)
            }
            Progress::Failed(Failure::Distrust(Distrust::InitiatorHasNone)) => {
                // It is told in its own words, once its whole hello is here.
                let Some(hello) = self.hello()? else { return Ok(ServeStep::Input) };
                if let Err(error @ FrameError::Magic { .. }) = hello.check() {
                    return Err(error.into());
                }
                self.refuse(HelloStatus::Secret, service)?;
                Err(Failure::Distrust(Distrust::InitiatorHasNone).into())
            }
            Progress::Failed(why) => {
                self.flush(service)?;
                Err(why.into())
            }
        }
    }

    pub(super) fn greet(
        &mut self,
        service: &mut TcpServeContext,
    ) -> Result<ServeStep, CloseReason> {
        let Some(hello) = self.hello()? else { return Ok(ServeStep::Input) };
        let checked = hello.check();
        if let Err(FrameError::Version { .. }) = checked {
            self.refuse(HelloStatus::Version, service)?;
        }
        checked?;
        self.output.push(answer(HelloStatus::Ok, service).as_bytes());
        self.receiving = TargetReceiveState::Header;
        service.queues.connected(self.peer);
        Ok(ServeStep::Again)
    }

    /// Takes the initiator's hello, if it is whole. A stranger's first bytes are refused at once.
    fn hello(&mut self) -> Result<Option<Hello>, CloseReason> {
        let filled = self.input.filled();
        let Ok((hello, _)) = Hello::read_from_prefix(filled) else {
            let magic = HELLO_MAGIC.to_le_bytes();
            if filled.iter().zip(magic).any(|(byte, expected)| *byte != expected) {
                return Err(FrameError::Magic { found: 0 }.into());
            }
            return Ok(None);
        };
        self.input.consume(HELLO_BYTES);
        Ok(Some(hello))
    }

    fn refuse(
        &mut self,
        status: HelloStatus,
        service: &mut TcpServeContext,
    ) -> Result<bool, CloseReason> {
        self.output.push(answer(status, service).as_bytes());
        self.flush(service)
    }
}

fn answer(status: HelloStatus, service: &TcpServeContext) -> Hello {
    let layout = service.memory.layout();
    Hello::of_target(status, layout.pages.page_shift(), layout.frame_count)
}
