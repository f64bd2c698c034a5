//! What a daemon's fabric target is told: messages are encoded by then, so that the target only
//! carries bytes. In: from the loop, in order. Out: to connections of remote clients, agents and
//! other racks' daemons.

use crate::daemon::{Act, ClientRoute, WriteBack};
use crate::seam::{EncodedWriteBack, PeerId};
use crate::wire::{self, AgentRequest, RemoteReply, ReplyFrame, Routed};

/// What is to be done with a connection. Those of one connection are done in their order.
#[derive(Clone, Debug)]
pub enum TargetCommand {
    /// End it. Nothing that came over it is executed after anything that is sent later.
    Close(PeerId),
    Send(PeerId, Vec<u8>),
    /// Write memory into a client's buffer, then send one of two messages.
    WriteBack(PeerId, Box<EncodedWriteBack>),
}

/// The connections of a fabric target.
pub trait FabricTarget {
    /// Whether the message was taken.
    fn send(&mut self, peer: PeerId, message: Vec<u8>) -> bool;
    /// Whether the job was taken.
    fn write_back(&mut self, peer: PeerId, job: EncodedWriteBack) -> bool;
    fn close(&mut self, peer: PeerId);
}

impl TargetCommand {
    /// What an act means for the target; what an agent said is its caller's to answer. `buffer` is
    /// as long as the longest message: what is longer ends the connection.
    pub(super) fn of(act: Act, buffer: &mut [u8]) -> Result<Self, (PeerId, Box<AgentRequest>)> {
        Ok(match act {
            Act::Close(peer) => Self::Close(peer),
            Act::Send(peer, reply) => match wire::encode(&reply, buffer) {
                Ok(message) => Self::Send(peer, message.to_vec()),
                Err(_) => Self::Close(peer),
            },
            Act::WriteBack(ClientRoute { peer, channel }, job) => {
                let WriteBack { to, from, bytes, done, refused } = *job;
                let encode = |frame: ReplyFrame| {
                    wire::encode_vec(&Routed { channel, message: RemoteReply::Reply(frame) })
                };
                let (done, refused) = (encode(done), encode(refused));
                let job = EncodedWriteBack { to, from, bytes, done, refused };
                Self::WriteBack(peer, Box::new(job))
            }
            Act::Agent(peer, request) => return Err((peer, request)),
        })
    }

    /// Has it done. A client that does not take its answers is cut off; when it comes back it asks
    /// again.
    pub fn carry_out(self, target: &mut impl FabricTarget) {
        let (peer, is_taken) = match self {
            Self::Close(peer) => (peer, false),
            Self::Send(peer, message) => (peer, target.send(peer, message)),
            Self::WriteBack(peer, job) => (peer, target.write_back(peer, *job)),
        };
        if !is_taken {
            target.close(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Generation;
    use crate::error::Error;
    use crate::seam::{Exposure, RemoteAddr};
    use crate::wire::Reply;

    const PEER: PeerId = PeerId(7);

    #[derive(Default)]
    struct FullTarget {
        is_full: bool,
        sent: Vec<Vec<u8>>,
        closed: Vec<PeerId>,
    }

    impl FabricTarget for FullTarget {
        fn send(&mut self, _: PeerId, message: Vec<u8>) -> bool {
            self.sent.push(message);
            !self.is_full
        }

        fn write_back(&mut self, peer: PeerId, job: EncodedWriteBack) -> bool {
            self.send(peer, job.done)
        }

        fn close(&mut self, peer: PeerId) {
            self.closed.push(peer);
        }
    }

    fn acts() -> [Act; 2] {
        let frame = |reply| ReplyFrame { seq: 3, reply };
        let reply = RemoteReply::Reply(frame(Ok(Reply::Pong)));
        let to = Exposure { id: 1, key: 2, bytes: 64 };
        let from = RemoteAddr { offset: 0, key: Generation(5) };
        let refused = frame(Err(Error::Denied { reason: "moved".into() }));
        let job = WriteBack { to, from, bytes: 64, done: frame(Ok(Reply::Pong)), refused };
        let route = ClientRoute { peer: PEER, channel: 9 };
        [
            Act::Send(PEER, Routed { channel: 9, message: reply }),
            Act::WriteBack(route, Box::new(job)),
        ]
    }

    #[test]
    fn answers_go_out_encoded_for_their_channel() {
        for act in acts() {
            let mut target = FullTarget::default();
            TargetCommand::of(act, &mut [0; 64]).unwrap().carry_out(&mut target);
            let sent = wire::decode::<Routed<RemoteReply>>(&target.sent[0], "test").unwrap();
            assert_eq!(sent.channel, 9);
            assert!(matches!(sent.message, RemoteReply::Reply(ReplyFrame { seq: 3, .. })));
            assert_eq!(target.closed, []);
        }
    }

    #[test]
    fn a_client_that_does_not_take_an_answer_is_cut_off() {
        for act in acts() {
            let mut target = FullTarget { is_full: true, ..FullTarget::default() };
            TargetCommand::of(act, &mut [0; 64]).unwrap().carry_out(&mut target);
            assert_eq!(target.closed, [PEER]);
        }
        let [too_long, _] = acts();
        let command = TargetCommand::of(too_long, &mut [0; 2]).unwrap();
        assert!(matches!(command, TargetCommand::Close(PEER)), "{command:?}");
    }
}
