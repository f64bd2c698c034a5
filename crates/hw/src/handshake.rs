//! How the two ends of a connection prove to one another that they have the pool's secret, before
//! anything else is said. Bytes in, bytes out; no socket and no clock.
//!
//! | step | who | says |
//! |---|---|---|
//! | 1 | initiator | `Greeting`, its nonce |
//! | 2 | target | `Greeting`, its nonce |
//! | 3 | initiator | `Proof` |
//! | 4 | target | `Proof`, or `Refusal` with the reason |
//!
//! Each message has [`MESSAGE_BYTES`]: a word that says what it is, and 32 bytes. A proof is
//! HMAC-SHA256 over who proves, what the connection is for and both nonces; so what was recorded,
//! what the other end said itself and what was said on another kind of connection prove nothing.
//! The initiator proves first: a stranger gets no bytes that depend on the secret.
//!
//! Where the connection is to be encrypted ([`Secret::encrypting`]) the greetings say so, and the
//! nonces are public keys of X25519 (RFC 7748), drawn for this one connection: the proofs vouch for
//! them, and what both ends make of them and of the secret is the [`Seal`] of all that follows. Who
//! learns the secret later opens nothing that was recorded. Ends of which only one encrypts refuse
//! one another.
//!
//! A target that has no secret answers a greeting by a refusal. One that has a secret and meets
//! something else says so in the words of the connection's own protocol, which is its caller's.
//!
//! Source: DESIGN §4; decisions 0035 and 0038.

use crate::line::Seal;
use crate::secret::Secret;
use rackpool_core::error::Distrust;
use ring::agreement::{self, EphemeralPrivateKey, UnparsedPublicKey, X25519};
use ring::hmac;
use ring::rand::SystemRandom;
use std::io;

/// Bytes of every message.
pub const MESSAGE_BYTES: usize = 40;
/// Bytes of the word that says what a message is.
const WORD_BYTES: usize = 8;
/// Bytes of a nonce and of a proof.
const BODY_BYTES: usize = 32;
/// Version 1 of all of this.
const GREETING: &[u8; WORD_BYTES] = b"rackaut1";
/// Version 1 of it, encrypted.
const SEALED_GREETING: &[u8; WORD_BYTES] = b"rackenc1";
const PROOF: &[u8; WORD_BYTES] = b"rackprf1";
const REFUSAL: &[u8; WORD_BYTES] = b"rackref1";

pub type Message = [u8; MESSAGE_BYTES];
/// Random bytes, drawn for one handshake.
type Nonce = [u8; BODY_BYTES];
/// In a claim, beside the purpose: what follows is encrypted.
const CLAIMS_SEALED: u8 = 0x80;
/// What is signed: the role, the purpose, whether the rest is encrypted, and both nonces.
type Claim = [u8; 2 + 2 * BODY_BYTES];

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    Master = 1,
    /// Operations at a fabric target.
    Fabric = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Role {
    Initiator = 1,
    Target = 2,
}

/// Why a handshake failed. The connection ends, after the reply if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The ends have not the same secret.
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
pub struct Step {
    /// Bytes that are done with: 0 or those of one message.
    pub consumed: usize,
    /// To be sent, also if it failed.
    pub reply: Option<Message>,
    /// How far it is now.
    pub progress: Progress,
}

/// In a claim, in place of a role: what it signs is the salt of the seal, and is never said.
const SEALS: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    Greeting,
    Proof { theirs: Nonce },
}

/// What encrypts the rest: first our part, then what both made.
enum Exchange {
    Ours(EphemeralPrivateKey),
    Sealed(Box<Seal>),
}

/// One end of a handshake; see the module. It keeps no bytes: what was not consumed is shown again,
/// with what came since.
pub struct Handshake {
    secret: Option<Secret>,
    role: Role,
    purpose: Purpose,
    ours: Nonce,
    awaits: Awaits,
    /// If the rest is to be encrypted.
    exchange: Option<Exchange>,
}

impl Handshake {
    /// The end that begins a connection, and what it says first. Errors: if the kernel has no
    /// random numbers.
    pub fn begin(secret: &Secret, purpose: Purpose) -> io::Result<(Self, Message)> {
        let (nonce, exchange) = draw(secret)?;
        Ok(Self::initiator(secret, purpose, nonce, exchange))
    }

    /// The end that was called. Errors: as of [`Handshake::begin`], if there is a secret.
    pub fn accept(secret: Option<&Secret>, purpose: Purpose) -> io::Result<Self> {
        let (nonce, exchange) = secret.map_or(Ok(([0; BODY_BYTES], None)), draw)?;
        Ok(Self::target(secret, purpose, nonce, exchange))
    }

    fn initiator(
        secret: &Secret,
        purpose: Purpose,
        ours: Nonce,
        exchange: Option<Exchange>,
    ) -> (Self, Message) {
        let (role, awaits) = (Role::Initiator, Awaits::Greeting);
        let end = Self { secret: Some(secret.clone()), role, purpose, ours, awaits, exchange };
        let first = message(end.greeting(), &ours);
        (end, first)
    }

    fn target(
        secret: Option<&Secret>,
        purpose: Purpose,
        ours: Nonce,
        exchange: Option<Exchange>,
    ) -> Self {
        let (role, awaits) = (Role::Target, Awaits::Greeting);
        Self { secret: secret.cloned(), role, purpose, ours, awaits, exchange }
    }

    /// What encrypts the rest of the connection, once it is `Done`; `None` if it is not to be.
    pub fn into_seal(self) -> Option<Seal> {
        match self.exchange {
            Some(Exchange::Sealed(seal)) => Some(*seal),
            _ => None,
        }
    }

    fn greeting(&self) -> &'static [u8; WORD_BYTES] {
        if self.exchange.is_some() { SEALED_GREETING } else { GREETING }
    }

    /// Looks at the bytes that came and were not consumed; to be called again as long as it
    /// consumes some. Without a secret, whatever is not a greeting is `Done` with nothing consumed.
    pub fn advance(&mut self, input: &[u8]) -> Step {
        self.advance_with(input, |key, claim, proof| hmac::verify(key, claim, proof).is_ok())
    }

    fn advance_with(
        &mut self,
        input: &[u8],
        verify: impl Fn(&hmac::Key, &Claim, &[u8]) -> bool,
    ) -> Step {
        if self.role == Role::Initiator && begins(input, REFUSAL) {
            return self.on_refusal(input);
        }
        let word = if self.awaits == Awaits::Greeting { self.greeting() } else { PROOF };
        if self.role == Role::Target && self.awaits == Awaits::Greeting {
            let known = [GREETING, SEALED_GREETING];
            if !known.iter().any(|word| begins(input, word)) {
                return self.on_strange();
            }
        } else if !begins(input, word) {
            return self.on_strange();
        }
        let Some(body) = body(input) else { return Step::pending(0, None) };
        let Some(secret) = self.secret.clone() else {
            return Step::refuse(Distrust::TargetHasNone.into());
        };
        if !begins(input, word) {
            let is_sealed = self.exchange.is_some();
            let why = if is_sealed { Distrust::InitiatorInClear } else { Distrust::TargetInClear };
            return Step::refuse(why.into());
        }
        match (self.awaits, self.role) {
            (Awaits::Greeting, Role::Initiator) => {
                self.awaits = Awaits::Proof { theirs: body };
                let proof = self.prove(&secret, &body);
                Step::pending(MESSAGE_BYTES, Some(message(PROOF, &proof)))
            }
            (Awaits::Greeting, Role::Target) => {
                self.awaits = Awaits::Proof { theirs: body };
                Step::pending(MESSAGE_BYTES, Some(message(self.greeting(), &self.ours)))
            }
            (Awaits::Proof { theirs }, role) => {
                let proves = verify(secret.key(), &self.claim(role.other(), &theirs), &body);
                if proves && !self.agree(&secret, &theirs) {
                    return Step::failed(Failure::Strange);
                }
                match (proves, role) {
                    (true, Role::Target) => {
                        let proof = self.prove(&secret, &theirs);
                        Step::done(MESSAGE_BYTES, Some(message(PROOF, &proof)))
                    }
                    (true, Role::Initiator) => Step::done(MESSAGE_BYTES, None),
                    (false, Role::Target) => Step::refuse(Distrust::OtherSecret.into()),
                    (false, Role::Initiator) => Step::failed(Distrust::OtherSecret.into()),
                }
            }
        }
    }

    /// Makes the seal of the other end's public key, if there is to be one; whether it could.
    fn agree(&mut self, secret: &Secret, theirs: &Nonce) -> bool {
        let Some(Exchange::Ours(key)) = self.exchange.take() else { return true };
        let is_initiator = self.role == Role::Initiator;
        let salt = hmac::sign(secret.key(), &self.claim_of(SEALS, theirs));
        let make = |shared: &[u8]| Seal::new(salt.as_ref(), shared, is_initiator);
        let theirs = UnparsedPublicKey::new(&X25519, theirs);
        let seal = agreement::agree_ephemeral(key, &theirs, make);
        self.exchange = seal.ok().map(|seal| Exchange::Sealed(Box::new(seal)));
        self.exchange.is_some()
    }

    /// The first bytes are not what was waited for.
    fn on_strange(&self) -> Step {
        match (self.role, self.awaits, &self.secret) {
            (Role::Target, Awaits::Greeting, None) => Step::done(0, None),
            (Role::Target, Awaits::Greeting, Some(_)) => {
                Step::failed(Distrust::InitiatorHasNone.into())
            }
            _ => Step::failed(Failure::Strange),
        }
    }

    fn on_refusal(&self, input: &[u8]) -> Step {
        let Some(body) = body(input) else { return Step::pending(0, None) };
        let known = REASONS.iter().find(|(code, _)| reason_body(*code) == body);
        Step::failed(known.map_or(Failure::Strange, |(_, failure)| *failure))
    }

    fn prove(&self, secret: &Secret, theirs: &Nonce) -> [u8; BODY_BYTES] {
        let tag = hmac::sign(secret.key(), &self.claim(self.role, theirs));
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    fn claim(&self, who: Role, theirs: &Nonce) -> Claim {
        self.claim_of(who as u8, theirs)
    }

    fn claim_of(&self, what: u8, theirs: &Nonce) -> Claim {
        let (first, second) = match self.role {
            Role::Initiator => (&self.ours, theirs),
            Role::Target => (theirs, &self.ours),
        };
        let mut claim = [0; 2 + 2 * BODY_BYTES];
        let sealed = if self.exchange.is_some() { CLAIMS_SEALED } else { 0 };
        (claim[0], claim[1]) = (what, self.purpose as u8 | sealed);
        claim[2..2 + BODY_BYTES].copy_from_slice(first);
        claim[2 + BODY_BYTES..].copy_from_slice(second);
        claim
    }
}

/// A nonce: random bytes, or a public key, which is as random.
fn draw(secret: &Secret) -> io::Result<(Nonce, Option<Exchange>)> {
    let mut nonce = [0; BODY_BYTES];
    if !secret.encrypts() {
        crate::process::random_bytes(&mut nonce)?;
        return Ok((nonce, None));
    }
    let failed = |_| io::Error::other("no random numbers for a key");
    let key = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(failed)?;
    nonce.copy_from_slice(key.compute_public_key().map_err(failed)?.as_ref());
    Ok((nonce, Some(Exchange::Ours(key))))
}

impl Role {
    fn other(self) -> Self {
        match self {
            Role::Initiator => Role::Target,
            Role::Target => Role::Initiator,
        }
    }
}

impl Step {
    fn pending(consumed: usize, reply: Option<Message>) -> Self {
        Self { consumed, reply, progress: Progress::Pending }
    }

    fn done(consumed: usize, reply: Option<Message>) -> Self {
        Self { consumed, reply, progress: Progress::Done }
    }

    fn failed(why: Failure) -> Self {
        Self { consumed: 0, reply: None, progress: Progress::Failed(why) }
    }

    /// Takes the message and answers why it is not believed.
    fn refuse(why: Failure) -> Self {
        let reply = Some(refusal(why));
        Self { consumed: MESSAGE_BYTES, reply, progress: Progress::Failed(why) }
    }
}

/// What a refusal can say.
const REASONS: [(u8, Failure); 5] = [
    (1, Failure::Distrust(Distrust::OtherSecret)),
    (2, Failure::Distrust(Distrust::TargetHasNone)),
    (3, Failure::Busy),
    (4, Failure::Distrust(Distrust::TargetInClear)),
    (5, Failure::Distrust(Distrust::InitiatorInClear)),
];

/// What a target says that takes no further connection, without having heard anything.
pub fn busy() -> Message {
    refusal(Failure::Busy)
}

fn refusal(why: Failure) -> Message {
    let code = REASONS.iter().find(|(_, failure)| *failure == why).map_or(0, |(code, _)| *code);
    message(REFUSAL, &reason_body(code))
}

fn reason_body(code: u8) -> [u8; BODY_BYTES] {
    let mut body = [0; BODY_BYTES];
    body[0] = code;
    body
}

fn message(word: &[u8; WORD_BYTES], body: &[u8; BODY_BYTES]) -> Message {
    let mut message = [0; MESSAGE_BYTES];
    message[..WORD_BYTES].copy_from_slice(word);
    message[WORD_BYTES..].copy_from_slice(body);
    message
}

/// Whether `input` can still become a message of this kind.
fn begins(input: &[u8], word: &[u8; WORD_BYTES]) -> bool {
    input.iter().zip(word).all(|(byte, expected)| byte == expected)
}

/// What follows the word, if the message is whole.
fn body(input: &[u8]) -> Option<[u8; BODY_BYTES]> {
    input.get(WORD_BYTES..MESSAGE_BYTES)?.try_into().ok()
}

#[cfg(test)]
mod tests;
