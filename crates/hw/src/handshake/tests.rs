//! Who knows the secret comes in, nobody else does, and what nobody sent breaks nothing. The
//! attacks are run against wrong verifiers too, to see that they would come in there.

use super::*;
use crate::line::Line;
use proptest::prelude::*;

type Verify = fn(&hmac::Key, &Claim, &[u8]) -> bool;

fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32]).unwrap()
}

fn initiator_of(secret: &Secret, purpose: Purpose, nonce: Nonce) -> (Handshake, Message) {
    Handshake::initiator(secret, purpose, nonce, None)
}

fn target_of(secret: Option<&Secret>, purpose: Purpose, nonce: Nonce) -> Handshake {
    Handshake::target(secret, purpose, nonce, None)
}

fn right(key: &hmac::Key, claim: &Claim, proof: &[u8]) -> bool {
    hmac::verify(key, claim, proof).is_ok()
}

/// What both ends came to, with all that was said, each direction by itself.
struct Talk {
    ends: [Progress; 2],
    said: [Vec<u8>; 2],
}

/// Carries messages between two ends until neither says anything more.
fn talk(first: Message, mut initiator: Handshake, mut target: Handshake) -> Talk {
    let mut said = [first.to_vec(), Vec::new()];
    let (mut heard, mut ends) = ([0, 0], [Progress::Pending; 2]);
    loop {
        let mut moved = false;
        for (who, end) in [&mut initiator, &mut target].into_iter().enumerate() {
            if ends[who] != Progress::Pending {
                continue;
            }
            let other = 1 - who;
            let step = end.advance(&said[other][heard[other]..]);
            heard[other] += step.consumed;
            said[who].extend(step.reply.iter().flatten());
            moved |= step.consumed > 0 || step.progress != Progress::Pending;
            ends[who] = step.progress;
        }
        if !moved {
            return Talk { ends, said };
        }
    }
}

fn talk_of(ours: &Secret, theirs: Option<&Secret>) -> Talk {
    let (initiator, first) = initiator_of(ours, Purpose::Fabric, [1; 32]);
    talk(first, initiator, target_of(theirs, Purpose::Fabric, [2; 32]))
}

fn distrust(why: Distrust) -> Progress {
    Progress::Failed(Failure::Distrust(why))
}

#[test]
fn two_ends_with_one_secret_trust_one_another_after_four_messages() {
    let Talk { ends, said } = talk_of(&secret(7), Some(&secret(7)));
    assert_eq!(ends, [Progress::Done; 2]);
    assert_eq!(said.map(|bytes| bytes.len()), [2 * MESSAGE_BYTES; 2]);
}

#[test]
fn another_secret_is_refused_and_both_ends_say_so() {
    let Talk { ends, said } = talk_of(&secret(7), Some(&secret(8)));
    assert_eq!(ends, [distrust(Distrust::OtherSecret); 2]);
    // The target has shown nothing that depends on its secret.
    assert_eq!(said[1][..MESSAGE_BYTES], message(GREETING, &[2; 32]));
    assert_eq!(said[1][MESSAGE_BYTES..], reason_message(1));
}

fn reason_message(code: u8) -> Message {
    message(REFUSAL, &reason_body(code))
}

#[test]
fn a_target_without_a_secret_says_so_to_who_has_one() {
    let Talk { ends, said } = talk_of(&secret(7), None);
    assert_eq!(ends, [distrust(Distrust::TargetHasNone); 2]);
    assert_eq!(said[1], reason_message(2));
}

#[test]
fn a_target_with_a_secret_tells_who_says_something_else_from_the_first_byte() {
    for stranger in [&b"rackwire"[..], b"\x0e\0\0\0\0", b"GET / HTTP/1.1", b"r\0"] {
        let mut asks = target_of(Some(&secret(7)), Purpose::Master, [2; 32]);
        let step = asks.advance(stranger);
        assert_eq!(step.progress, distrust(Distrust::InitiatorHasNone));
        assert_eq!((step.consumed, step.reply), (0, None));
        let step = target_of(None, Purpose::Master, [2; 32]).advance(stranger);
        assert_eq!((step.consumed, step.reply, step.progress), (0, None, Progress::Done));
    }
}

/// What two ends came to that may encrypt, and what they made of it.
fn talk_and_seal(ours: Secret, theirs: &Secret) -> ([Progress; 2], [Option<Seal>; 2]) {
    let (mut initiator, first) = Handshake::begin(&ours, Purpose::Fabric).unwrap();
    let mut target = Handshake::accept(Some(theirs), Purpose::Fabric).unwrap();
    let (mut ends, mut said) = ([Progress::Pending; 2], Some(first));
    while let Some(message) = said {
        let step = target.advance(&message);
        ends[1] = step.progress;
        let Some(reply) = step.reply else { break };
        let step = initiator.advance(&reply);
        (ends[0], said) = (step.progress, step.reply);
    }
    (ends, [initiator.into_seal(), target.into_seal()])
}

#[test]
fn two_ends_that_encrypt_have_keys_that_no_other_connection_has() {
    let sends = |from: Seal, to: Seal| {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (mut one, mut other) = (Line::new(one), Line::new(other));
        one.seal(from);
        other.seal(to);
        one.send(&[std::io::IoSlice::new(b"hello")]).unwrap();
        let mut heard = [0; 9];
        other.recv(&mut heard).is_ok_and(|count| &heard[..count] == b"hello")
    };
    let known = || secret(7).encrypting(true);
    let both = || {
        let (ends, [one, other]) = talk_and_seal(known(), &known());
        assert_eq!(ends, [Progress::Done; 2]);
        (one.unwrap(), other.unwrap())
    };
    let ((one, other), (_, later)) = (both(), both());
    assert!(sends(one, other));
    assert!(!sends(both().0, later));
    let (one, other) = both();
    assert!(sends(other, one), "the other way as well");
    let (ends, seals) = talk_and_seal(secret(7), &secret(7));
    assert_eq!(ends, [Progress::Done; 2]);
    assert!(seals.iter().all(Option::is_none));
}

#[test]
fn ends_of_which_one_encrypts_refuse_one_another_and_say_why() {
    for (ours, why) in [(true, Distrust::TargetInClear), (false, Distrust::InitiatorInClear)] {
        let (ours, theirs) = (secret(7).encrypting(ours), secret(7).encrypting(!ours));
        let (ends, seals) = talk_and_seal(ours, &theirs);
        assert_eq!(ends, [distrust(why); 2]);
        assert!(seals.iter().all(Option::is_none));
    }
    let (ends, _) = talk_and_seal(secret(7).encrypting(true), &secret(8).encrypting(true));
    assert_eq!(ends, [distrust(Distrust::OtherSecret); 2]);
}

#[test]
fn who_sits_between_and_changes_keys_or_their_announcement_is_found() {
    let known = secret(7).encrypting(true);
    for greeting_of_target in [false, true] {
        let (mut initiator, mut first) = Handshake::begin(&known, Purpose::Fabric).unwrap();
        let mut target = Handshake::accept(Some(&known), Purpose::Fabric).unwrap();
        let (_, false_key) = Handshake::begin(&known, Purpose::Fabric).unwrap();
        if !greeting_of_target {
            first = false_key;
        }
        let mut greeting = target.advance(&first).reply.unwrap();
        if greeting_of_target {
            greeting = false_key;
        }
        let proof = initiator.advance(&greeting).reply.unwrap();
        let step = target.advance(&proof);
        assert_eq!(step.progress, distrust(Distrust::OtherSecret));
    }
    // The announcement: both are told that the other one does not encrypt.
    let (mut initiator, first) = Handshake::begin(&known, Purpose::Fabric).unwrap();
    let mut target = Handshake::accept(Some(&known), Purpose::Fabric).unwrap();
    let plain = |said: &Message| message(GREETING, &said[WORD_BYTES..].try_into().unwrap());
    assert_eq!(target.advance(&plain(&first)).progress, distrust(Distrust::InitiatorInClear));
    let (_, other) = Handshake::begin(&secret(7), Purpose::Fabric).unwrap();
    assert_eq!(initiator.advance(&other).progress, Progress::Failed(Failure::Strange));
    // A key that makes the same of every other one is no key.
    let mut target = Handshake::accept(Some(&known), Purpose::Fabric).unwrap();
    let greeting = target.advance(&message(SEALED_GREETING, &[0; 32])).reply.unwrap();
    let theirs = greeting[WORD_BYTES..].try_into().unwrap();
    let (mut liar, _) = Handshake::begin(&known, Purpose::Fabric).unwrap();
    liar.ours = [0; 32];
    let step = target.advance(&message(PROOF, &liar.prove(&known, &theirs)));
    assert_eq!(step.progress, Progress::Failed(Failure::Strange));
}

#[test]
fn a_target_that_is_full_is_told_from_one_that_distrusts() {
    let (mut initiator, _) = initiator_of(&secret(7), Purpose::Fabric, [1; 32]);
    assert_eq!(initiator.advance(&busy()).progress, Progress::Failed(Failure::Busy));
    for strange in [0, 6, 255] {
        let (mut initiator, _) = initiator_of(&secret(7), Purpose::Fabric, [1; 32]);
        let step = initiator.advance(&reason_message(strange));
        assert_eq!(step.progress, Progress::Failed(Failure::Strange));
    }
}

/// Attacks by somebody without the secret who has heard one good handshake and may talk with both
/// ends. Answers the names of those that came in.
fn intrusions(verify: Verify) -> Vec<&'static str> {
    let known = secret(7);
    let mut came_in = Vec::new();
    let mut note = |name, step: Step| {
        if step.progress == Progress::Done {
            came_in.push(name);
        }
    };
    let heard = talk_of(&known, Some(&known)).said;
    let proof_of = |said: &[u8]| Message::try_from(&said[MESSAGE_BYTES..]).unwrap();
    // A target with another nonce each time.
    let target = |greeting: &Message, purpose| {
        let mut end = target_of(Some(&known), purpose, [3; 32]);
        assert_eq!(end.advance_with(greeting, verify).progress, Progress::Pending);
        end
    };
    let greeting = message(GREETING, &[9; 32]);

    note(
        "no key",
        target(&greeting, Purpose::Fabric).advance_with(&message(PROOF, &[0; 32]), verify),
    );
    let (_, first) = initiator_of(&known, Purpose::Fabric, [1; 32]);
    let again = proof_of(&heard[0]);
    note("replay", target(&first, Purpose::Fabric).advance_with(&again, verify));
    // What the target proves to others is said back to it as an initiator's.
    let mut asked = target_of(Some(&known), Purpose::Fabric, [3; 32]);
    asked.advance_with(&greeting, verify);
    let reflected = {
        let claim = asked.claim(Role::Target, &[9; 32]);
        message(PROOF, hmac::sign(known.key(), &claim).as_ref().try_into().unwrap())
    };
    note("reflection", asked.advance_with(&reflected, verify));
    // The proof for a connection to the master is said to a fabric target with the same nonces.
    let (mut lured, first) = initiator_of(&known, Purpose::Master, [4; 32]);
    let proof = lured.advance_with(&message(GREETING, &[3; 32]), verify).reply.unwrap();
    note("other purpose", target(&first, Purpose::Fabric).advance_with(&proof, verify));
    // A false target says the initiator's own words back, or old ones.
    for (name, answer) in [("mirror", None), ("replayed target", Some(proof_of(&heard[1])))] {
        let (mut lured, first) = initiator_of(&known, Purpose::Fabric, [5; 32]);
        let proof = lured.advance_with(&first, verify).reply.unwrap();
        note(name, lured.advance_with(&answer.unwrap_or(proof), verify));
    }
    came_in
}

#[test]
fn nobody_comes_in_without_the_secret() {
    assert_eq!(intrusions(right), [""; 0]);
}

#[test]
fn wrong_verifiers_let_in_what_the_attacks_try() {
    let all = ["no key", "replay", "reflection", "other purpose", "mirror", "replayed target"];
    assert_eq!(intrusions(|_, _, _| true), all);
    // The role is left out: either one's proof will do.
    let roles: Verify = |key, claim, proof| {
        let of = |role: Role| [&[role as u8], &claim[1..]].concat();
        [Role::Initiator, Role::Target]
            .into_iter()
            .any(|role| hmac::verify(key, &of(role), proof).is_ok())
    };
    assert_eq!(intrusions(roles), ["reflection", "mirror"]);
    let purposes: Verify = |key, claim, proof| {
        let of = |purpose: Purpose| [&[claim[0], purpose as u8], &claim[2..]].concat();
        [Purpose::Master, Purpose::Fabric]
            .into_iter()
            .any(|purpose| hmac::verify(key, &of(purpose), proof).is_ok())
    };
    assert_eq!(intrusions(purposes), ["other purpose"]);
    // Only the own nonce is left out: what was recorded is good for ever.
    let old: Verify = |key, claim, proof| {
        let nonces = [[[1; 32], [2; 32]].concat(), claim[2..].to_vec()];
        nonces
            .iter()
            .any(|nonces| hmac::verify(key, &[&claim[..2], nonces].concat(), proof).is_ok())
    };
    assert_eq!(intrusions(old), ["replay", "replayed target"]);
}

/// Shows `end` the first `length` bytes of a message and then the rest.
fn cut(end: &mut Handshake, message: &Message, length: usize) -> Step {
    let step = end.advance(&message[..length]);
    assert_eq!((step.consumed, step.progress), (0, Progress::Pending), "{length} bytes");
    assert!(step.reply.is_none());
    end.advance(message)
}

#[test]
fn a_message_that_is_cut_anywhere_is_waited_for() {
    for length in 0..MESSAGE_BYTES {
        let (mut initiator, first) = initiator_of(&secret(7), Purpose::Fabric, [1; 32]);
        let mut target = target_of(Some(&secret(7)), Purpose::Fabric, [2; 32]);
        let greeting = cut(&mut target, &first, length).reply.unwrap();
        let proof = cut(&mut initiator, &greeting, length).reply.unwrap();
        let step = cut(&mut target, &proof, length);
        assert_eq!(step.progress, Progress::Done);
        assert_eq!(cut(&mut initiator, &step.reply.unwrap(), length).progress, Progress::Done);
        let (mut initiator, _) = initiator_of(&secret(7), Purpose::Fabric, [1; 32]);
        let step = cut(&mut initiator, &reason_message(1), length);
        assert_eq!(step.progress, distrust(Distrust::OtherSecret));
    }
}

#[test]
fn one_wrong_bit_anywhere_keeps_the_door_shut() {
    for bit in 0..8 * MESSAGE_BYTES {
        for of in 0..4 {
            let (mut initiator, mut said) = initiator_of(&secret(7), Purpose::Fabric, [1; 32]);
            let mut target = target_of(Some(&secret(7)), Purpose::Fabric, [2; 32]);
            let mut ends = [Progress::Pending; 2];
            for step in 0..4 {
                if step == of {
                    said[bit / 8] ^= 1 << (bit % 8);
                }
                let end = if step % 2 == 0 { &mut target } else { &mut initiator };
                let heard = end.advance(&said);
                ends[step % 2] = heard.progress;
                let Some(reply) = heard.reply else { break };
                said = reply;
            }
            assert_ne!(ends, [Progress::Done; 2], "bit {bit} of message {of}");
        }
    }
}

proptest! {
    /// Whatever comes, in whatever pieces: never done, never more consumed than is there, and one
    /// message a reply.
    #[test]
    fn bytes_of_nobody_open_nothing(
        input in proptest::collection::vec(any::<u8>(), 0..400),
        word in 0usize..4,
        pieces in proptest::collection::vec(1usize..60, 1..20),
        is_target in any::<bool>(),
    ) {
        let known = secret(7);
        let mut end = if is_target {
            target_of(Some(&known), Purpose::Fabric, [2; 32])
        } else {
            initiator_of(&known, Purpose::Fabric, [2; 32]).0
        };
        let mut stream = [&GREETING[..], PROOF, REFUSAL, b""][word].to_vec();
        stream.extend(&input);
        let (mut start, mut there) = (0, 0);
        'pieces: for piece in pieces.iter().cycle() {
            there = (there + piece).min(stream.len());
            loop {
                let step = end.advance(&stream[start..there]);
                prop_assert_ne!(step.progress, Progress::Done);
                prop_assert!(step.consumed == 0 || step.consumed == MESSAGE_BYTES);
                prop_assert!(step.consumed <= there - start);
                prop_assert!(step.reply.is_none() || step.consumed > 0);
                start += step.consumed;
                if step.progress != Progress::Pending {
                    break 'pieces;
                }
                if step.consumed == 0 {
                    break;
                }
            }
            // What is kept is bounded: a whole message is always taken, or the end.
            prop_assert!(there - start < MESSAGE_BYTES);
            if there == stream.len() {
                break;
            }
        }
    }
}
