//! How the two ends of a connection prove to one another that they have the pool's secret, before
//! anything else is said: the Noise handshake `NNpsk0` (crate `snow`), then one transport message
//! each way that confirms its keys. Bytes in, bytes out; no socket and no clock.
//!
//! | step | from | message | body |
//! |---|---|---|---|
//! | 1 | initiator | `Greeting` | `-> psk, e` |
//! | 2 | target | `Greeting`, or `Refusal` with the reason | `<- e, ee` |
//! | 3 | initiator | `Proof` | the first transport message of the initiator |
//! | 4 | target | `Proof`, or `Refusal` with the reason | the first one of the target |
//!
//! Each message has [`MESSAGE_BYTES`]: a word that says what it is and which version, and a body of
//! 48 bytes. The prologue holds version, [`Purpose`] and whether the rest is encrypted, as each end
//! has it from its own options: ends that differ in one of them do not agree on keys. A recorded
//! step 1 is answered, and ends at step 3, because `ee` is another one.
//!
//! Where the connection is to be encrypted ([`Secret::encrypting`]) the greetings say so, and all
//! that follows goes through the [`RecordLayer`] that the handshake made. Ends of which only one
//! encrypts refuse one another, and so do ends of different versions.
//!
//! A target that has no secret answers a greeting by a refusal. One that has a secret and meets
//! something else says so in the connection's own protocol, which is its caller's.
//!
//! Source: DESIGN §4; decisions 0035 and 0038.

use crate::secret::{PSK_BYTES, Secret};
use crate::secure_stream::RecordLayer;
use rackpool_core::error::Distrust;
use snow::{Builder, HandshakeState, TransportState};
use std::io;

pub const MESSAGE_BYTES: usize = WORD_BYTES + BODY_BYTES;
/// Bytes of the word that says what a message is, its last one the version.
const WORD_BYTES: usize = 8;
/// Bytes of a public key of X25519 and a tag of AES-GCM; a proof is as long.
const BODY_BYTES: usize = 48;
/// Bytes of a proof before it is encrypted: they are zero, the tag is what counts.
const PROOF_BYTES: usize = BODY_BYTES - 16;
/// Version 1 was not Noise.
const VERSION: u8 = b'2';
const NOISE: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

pub type Message = [u8; MESSAGE_BYTES];
type Body = [u8; BODY_BYTES];

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    Master = 1,
    /// Operations at a fabric target.
    Fabric = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Initiator,
    Target,
}

/// Why a handshake failed. The connection ends, after the reply if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The ends have not the same secret, or not the same version.
    #[error("{0}")]
    Distrust(#[from] Distrust),
    /// The target has no room for connections. Retry later.
    #[error("the target has no room for another connection")]
    Busy,
    /// Bytes of another protocol.
    #[error("the peer speaks something else than a rackpool with a secret")]
    Strange,
}

/// How far a handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes of the peer are needed.
    Pending,
    /// What follows is the connection's own protocol.
    Done,
    Failed(Failure),
}

/// What became of bytes of the peer.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeStep {
    /// Bytes that are done with: 0 or those of one message.
    pub consumed: usize,
    /// To be sent, also if it failed.
    pub reply: Option<Message>,
    /// How far it is now.
    pub progress: Progress,
}

/// What this end has of Noise.
enum NoiseState {
    /// The other end's greeting is waited for.
    Greeting(Box<HandshakeState>),
    /// The other end's proof is waited for.
    Proof(Box<TransportState>),
    Done(Box<TransportState>),
    /// There is no secret, or it failed.
    Over,
}

/// One end of a handshake; see the module. It keeps no bytes: what was not consumed is shown again,
/// with what came since.
pub struct Handshake {
    secret: Option<Secret>,
    role: Role,
    stage: NoiseState,
}

impl Handshake {
    /// The end that begins a connection, and what it says first. Errors: if the kernel has no
    /// random numbers.
    pub fn begin(secret: &Secret, purpose: Purpose) -> io::Result<(Self, Message)> {
        let mut noise = noise_of(secret, purpose, Role::Initiator).map_err(io::Error::other)?;
        let mut body = [0; BODY_BYTES];
        with_psk(&mut noise, secret, |noise| noise.write_message(&[], &mut body))
            .map_err(io::Error::other)?;
        let first = message(MessageKind::Greeting { encrypts: secret.encrypts() }, &body);
        let (secret, role) = (Some(secret.clone()), Role::Initiator);
        Ok((Self { secret, role, stage: NoiseState::Greeting(noise) }, first))
    }

    /// The end that was called. Errors: none that are known, because it draws its random numbers
    /// when it answers.
    pub fn accept(secret: Option<&Secret>, purpose: Purpose) -> io::Result<Self> {
        let noise = secret.map(|secret| noise_of(secret, purpose, Role::Target)).transpose();
        let stage = noise.map_err(io::Error::other)?.map_or(NoiseState::Over, NoiseState::Greeting);
        Ok(Self { secret: secret.cloned(), role: Role::Target, stage })
    }

    /// What encrypts the rest of the connection, once it is `Done`; `None` if it is not to be.
    pub fn into_records(self) -> Option<RecordLayer> {
        match self.stage {
            NoiseState::Done(noise) if self.encrypts() => Some(RecordLayer::new(noise)),
            _ => None,
        }
    }

    /// Looks at the bytes that came and were not consumed; to be called again as long as it
    /// consumes some. Without a secret, whatever is not a greeting is `Done` with nothing consumed.
    pub fn advance(&mut self, input: &[u8]) -> HandshakeStep {
        let (kind, body) = match parse(input) {
            Parsed::Partial => return HandshakeStep::pending(0, None),
            Parsed::Message(kind, body) => (kind, body),
            Parsed::OtherVersion => return self.refuse(0, Distrust::OtherVersion),
            Parsed::Strange => return self.on_strange(),
        };
        match (std::mem::replace(&mut self.stage, NoiseState::Over), kind) {
            (_, MessageKind::Refusal) if self.role == Role::Initiator => {
                let known = REASONS.iter().find(|(code, _)| reason_body(*code) == body);
                HandshakeStep::failed(known.map_or(Failure::Strange, |(_, failure)| *failure))
            }
            (NoiseState::Greeting(noise), MessageKind::Greeting { encrypts }) => {
                self.on_greeting(noise, encrypts, &body)
            }
            (NoiseState::Proof(noise), MessageKind::Proof) => self.on_proof(noise, &body),
            (_, MessageKind::Greeting { .. }) if self.secret.is_none() => {
                self.refuse(MESSAGE_BYTES, Distrust::TargetHasNone)
            }
            (stage, _) => {
                self.stage = stage;
                self.on_strange()
            }
        }
    }

    fn encrypts(&self) -> bool {
        self.secret.as_ref().is_some_and(Secret::encrypts)
    }

    fn on_greeting(
        &mut self,
        noise: Box<HandshakeState>,
        encrypts: bool,
        body: &Body,
    ) -> HandshakeStep {
        if encrypts != self.encrypts() {
            let is_target_in_clear = encrypts == (self.role == Role::Target);
            return self.refuse(
                MESSAGE_BYTES,
                if is_target_in_clear {
                    Distrust::TargetInClear
                } else {
                    Distrust::InitiatorInClear
                },
            );
        }
        let secret = self.secret.as_ref().expect("without one there is no such stage");
        let Ok((noise, reply)) = agree(noise, secret, self.role, body) else {
            return self.refuse(MESSAGE_BYTES, Distrust::OtherSecret);
        };
        self.stage = NoiseState::Proof(noise);
        let kind = match self.role {
            Role::Initiator => MessageKind::Proof,
            Role::Target => MessageKind::Greeting { encrypts },
        };
        HandshakeStep::pending(MESSAGE_BYTES, Some(message(kind, &reply)))
    }

    fn on_proof(&mut self, mut noise: Box<TransportState>, body: &Body) -> HandshakeStep {
        let Ok(()) = noise.read_message(body, &mut [0; BODY_BYTES]).map(drop) else {
            return self.refuse(MESSAGE_BYTES, Distrust::OtherSecret);
        };
        let reply = (self.role == Role::Target).then(|| {
            let mut proof = [0; BODY_BYTES];
            let written = noise.write_message(&[0; PROOF_BYTES], &mut proof);
            assert_eq!(written, Ok(BODY_BYTES), "a proof fits");
            message(MessageKind::Proof, &proof)
        });
        self.stage = NoiseState::Done(noise);
        HandshakeStep { consumed: MESSAGE_BYTES, reply, progress: Progress::Done }
    }

    /// The bytes are not what was waited for.
    fn on_strange(&self) -> HandshakeStep {
        match (self.role, &self.stage, &self.secret) {
            (Role::Target, NoiseState::Over, None) => {
                HandshakeStep { consumed: 0, reply: None, progress: Progress::Done }
            }
            (Role::Target, NoiseState::Greeting(_), _) => {
                HandshakeStep::failed(Distrust::InitiatorHasNone.into())
            }
            _ => HandshakeStep::failed(Failure::Strange),
        }
    }

    /// Ends it; a target answers why.
    fn refuse(&self, consumed: usize, why: Distrust) -> HandshakeStep {
        let reply = (self.role == Role::Target).then(|| refusal(why.into()));
        HandshakeStep { consumed, reply, progress: Progress::Failed(why.into()) }
    }
}

impl HandshakeStep {
    fn pending(consumed: usize, reply: Option<Message>) -> Self {
        Self { consumed, reply, progress: Progress::Pending }
    }

    fn failed(why: Failure) -> Self {
        Self { consumed: 0, reply: None, progress: Progress::Failed(why) }
    }
}

fn noise_of(
    secret: &Secret,
    purpose: Purpose,
    role: Role,
) -> Result<Box<HandshakeState>, snow::Error> {
    let prologue = [VERSION, purpose as u8, u8::from(secret.encrypts())];
    let builder = Builder::new(NOISE.parse()?).prologue(&prologue)?;
    Ok(Box::new(match role {
        Role::Initiator => builder.build_initiator()?,
        Role::Target => builder.build_responder()?,
    }))
}

/// Lets Noise have the key for as long as `run` takes.
fn with_psk(
    noise: &mut HandshakeState,
    secret: &Secret,
    run: impl FnOnce(&mut HandshakeState) -> Result<usize, snow::Error>,
) -> Result<usize, snow::Error> {
    noise.set_psk(0, secret.psk())?;
    let result = run(noise);
    noise.set_psk(0, &[0; PSK_BYTES])?;
    result
}

/// Takes the other end's greeting: the keys, and the body of what is said next.
fn agree(
    mut noise: Box<HandshakeState>,
    secret: &Secret,
    role: Role,
    body: &Body,
) -> Result<(Box<TransportState>, Body), snow::Error> {
    let mut reply = [0; BODY_BYTES];
    with_psk(&mut noise, secret, |noise| noise.read_message(body, &mut [0; BODY_BYTES]))?;
    if role == Role::Target {
        noise.write_message(&[], &mut reply)?;
    }
    let mut noise = Box::new(noise.into_transport_mode()?);
    if role == Role::Initiator {
        noise.write_message(&[0; PROOF_BYTES], &mut reply)?;
    }
    Ok((noise, reply))
}

/// What a refusal can say.
const REASONS: [(u8, Failure); 6] = [
    (1, Failure::Distrust(Distrust::OtherSecret)),
    (2, Failure::Distrust(Distrust::TargetHasNone)),
    (3, Failure::Busy),
    (4, Failure::Distrust(Distrust::TargetInClear)),
    (5, Failure::Distrust(Distrust::InitiatorInClear)),
    (6, Failure::Distrust(Distrust::OtherVersion)),
];

/// What a target says that takes no further connection, before it has received anything.
pub fn busy() -> Message {
    refusal(Failure::Busy)
}

fn refusal(why: Failure) -> Message {
    let code = REASONS.iter().find(|(_, failure)| *failure == why).map_or(0, |(code, _)| *code);
    message(MessageKind::Refusal, &reason_body(code))
}

fn reason_body(code: u8) -> Body {
    let mut body = [0; BODY_BYTES];
    body[0] = code;
    body
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageKind {
    Greeting { encrypts: bool },
    Proof,
    Refusal,
}

/// What each message begins with; the version follows.
const WORDS: [(&[u8; WORD_BYTES - 1], MessageKind); 4] = [
    (b"rackaut", MessageKind::Greeting { encrypts: false }),
    (b"rackenc", MessageKind::Greeting { encrypts: true }),
    (b"rackprf", MessageKind::Proof),
    (b"rackref", MessageKind::Refusal),
];

fn message(kind: MessageKind, body: &Body) -> Message {
    let (word, _) = WORDS.iter().find(|(_, other)| *other == kind).expect("each has a word");
    let mut message = [VERSION; MESSAGE_BYTES];
    message[..WORD_BYTES - 1].copy_from_slice(&word[..]);
    message[WORD_BYTES..].copy_from_slice(body);
    message
}

enum Parsed {
    /// It can still become a message.
    Partial,
    Message(MessageKind, Body),
    OtherVersion,
    Strange,
}

fn parse(input: &[u8]) -> Parsed {
    let begins = |word: &[u8]| input.iter().zip(word).all(|(byte, expected)| byte == expected);
    let Some((_, kind)) = WORDS.iter().find(|(word, _)| begins(&word[..])) else {
        return Parsed::Strange;
    };
    if input.get(WORD_BYTES - 1).is_some_and(|version| *version != VERSION) {
        return Parsed::OtherVersion;
    }
    let body = input.get(WORD_BYTES..MESSAGE_BYTES).and_then(|body| body.try_into().ok());
    body.map_or(Parsed::Partial, |body| Parsed::Message(*kind, body))
}

#[cfg(test)]
mod tests;
