//! An end that knows the secret comes in, no other one does, and bytes that no end sent break
//! nothing.

use super::*;
use crate::secure_stream::SecureStream;
use proptest::prelude::*;
use std::io::IoSlice;
use std::os::unix::net::UnixStream;

const GREETING: MessageKind = MessageKind::Greeting { encrypts: false };

fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32]).unwrap()
}

fn initiator_of(secret: &Secret, purpose: Purpose) -> (Handshake, Message) {
    Handshake::begin(secret, purpose).unwrap()
}

fn target_of(secret: Option<&Secret>, purpose: Purpose) -> Handshake {
    Handshake::accept(secret, purpose).unwrap()
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
        for (index, end) in [&mut initiator, &mut target].into_iter().enumerate() {
            if ends[index] != Progress::Pending {
                continue;
            }
            let other = 1 - index;
            let step = end.advance(&said[other][heard[other]..]);
            heard[other] += step.consumed;
            said[index].extend(step.reply.iter().flatten());
            moved |= step.consumed > 0 || step.progress != Progress::Pending;
            ends[index] = step.progress;
        }
        if !moved {
            return Talk { ends, said };
        }
    }
}

fn talk_of(ours: &Secret, theirs: Option<&Secret>) -> Talk {
    let (initiator, first) = initiator_of(ours, Purpose::Fabric);
    talk(first, initiator, target_of(theirs, Purpose::Fabric))
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
    assert_eq!(said[1], reason_message(1));
}

fn reason_message(code: u8) -> Message {
    message(MessageKind::Refusal, &reason_body(code))
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
        let mut asks = target_of(Some(&secret(7)), Purpose::Master);
        let step = asks.advance(stranger);
        assert_eq!(step.progress, distrust(Distrust::InitiatorHasNone));
        assert_eq!((step.consumed, step.reply), (0, None));
        let step = target_of(None, Purpose::Master).advance(stranger);
        assert_eq!((step.consumed, step.reply, step.progress), (0, None, Progress::Done));
    }
}

#[test]
fn ends_of_other_versions_are_refused_by_either_end_and_hear_that_it_is_the_version() {
    let old = [&b"rackaut1"[..], &[9; 32]].concat();
    let old_encrypted = [&b"rackenc1"[..], &[9; 32]].concat();
    for secret in [Some(secret(7)), Some(secret(7).encrypting(true)), None] {
        for greeting in [&old[..], &old_encrypted, &old[..WORD_BYTES], b"rackaut3"] {
            let step = target_of(secret.as_ref(), Purpose::Fabric).advance(greeting);
            assert_eq!(step.progress, distrust(Distrust::OtherVersion));
            assert_eq!(step.reply, Some(reason_message(6)));
        }
    }
    for heard in [&old[..], &old_encrypted, b"rackref1", b"rackref3", b"rackaut3"] {
        let step = initiator_of(&secret(7), Purpose::Fabric).0.advance(heard);
        assert_eq!(step.progress, distrust(Distrust::OtherVersion));
        assert_eq!(step.reply, None);
    }
    let step = initiator_of(&secret(7), Purpose::Fabric).0.advance(&reason_message(6));
    assert_eq!(step.progress, distrust(Distrust::OtherVersion));
}

/// What two ends came to that may encrypt, and what they made of it.
fn talk_and_encrypt(ours: Secret, theirs: &Secret) -> ([Progress; 2], [Option<RecordLayer>; 2]) {
    let (mut initiator, first) = initiator_of(&ours, Purpose::Fabric);
    let mut target = target_of(Some(theirs), Purpose::Fabric);
    let (mut ends, mut said) = ([Progress::Pending; 2], Some(first));
    while let Some(message) = said {
        let step = target.advance(&message);
        ends[1] = step.progress;
        let Some(reply) = step.reply else { break };
        let step = initiator.advance(&reply);
        (ends[0], said) = (step.progress, step.reply);
    }
    (ends, [initiator.into_records(), target.into_records()])
}

#[test]
fn two_ends_that_encrypt_have_keys_that_no_other_connection_has() {
    let sends = |from: RecordLayer, to: RecordLayer| {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut one, mut other) = (SecureStream::new(one), SecureStream::new(other));
        one.encrypt(from);
        other.encrypt(to);
        one.send(&[IoSlice::new(b"hello")]).unwrap();
        let mut heard = [0; 9];
        other.recv(&mut heard).is_ok_and(|count| &heard[..count] == b"hello")
    };
    let known = || secret(7).encrypting(true);
    let both = || {
        let (ends, [one, other]) = talk_and_encrypt(known(), &known());
        assert_eq!(ends, [Progress::Done; 2]);
        (one.unwrap(), other.unwrap())
    };
    let ((one, other), (_, later)) = (both(), both());
    assert!(sends(one, other));
    assert!(!sends(both().0, later));
    let (one, other) = both();
    assert!(sends(other, one), "the other way as well");
    let (ends, records) = talk_and_encrypt(secret(7), &secret(7));
    assert_eq!(ends, [Progress::Done; 2]);
    assert!(records.iter().all(Option::is_none));
}

#[test]
fn ends_of_which_one_encrypts_refuse_one_another_and_say_why() {
    for (ours, why) in [(true, Distrust::TargetInClear), (false, Distrust::InitiatorInClear)] {
        let (ours, theirs) = (secret(7).encrypting(ours), secret(7).encrypting(!ours));
        let (ends, records) = talk_and_encrypt(ours, &theirs);
        assert_eq!(ends, [distrust(why); 2]);
        assert!(records.iter().all(Option::is_none));
    }
    let (ends, _) = talk_and_encrypt(secret(7).encrypting(true), &secret(8).encrypting(true));
    assert_eq!(ends, [distrust(Distrust::OtherSecret); 2]);
}

/// The same body as the announcement of the other kind.
fn announce(said: &Message, encrypts: bool) -> Message {
    message(MessageKind::Greeting { encrypts }, &said[WORD_BYTES..].try_into().unwrap())
}

#[test]
fn who_sits_between_and_changes_keys_or_their_announcement_is_found() {
    let known = secret(7).encrypting(true);
    let false_key = initiator_of(&secret(9).encrypting(true), Purpose::Fabric).1;
    // The initiator's key, made up or of another connection, then the target's.
    let step = target_of(Some(&known), Purpose::Fabric).advance(&false_key);
    assert_eq!(step.progress, distrust(Distrust::OtherSecret));
    let (mut initiator, _) = initiator_of(&known, Purpose::Fabric);
    let (_, other) = initiator_of(&known, Purpose::Fabric);
    let greeting = target_of(Some(&known), Purpose::Fabric).advance(&other).reply.unwrap();
    assert_eq!(initiator.advance(&greeting).progress, distrust(Distrust::OtherSecret));
    let (mut initiator, _) = initiator_of(&known, Purpose::Fabric);
    assert_eq!(initiator.advance(&false_key).progress, distrust(Distrust::OtherSecret));
    // A key that makes the same of every other one is no key.
    let nothing = message(MessageKind::Greeting { encrypts: true }, &[0; BODY_BYTES]);
    let step = target_of(Some(&known), Purpose::Fabric).advance(&nothing);
    assert_eq!(step.progress, distrust(Distrust::OtherSecret));
}

#[test]
fn an_attacker_that_strips_or_adds_the_announcement_of_encryption_is_refused_by_both_ends() {
    for encrypts in [true, false] {
        let known = secret(7).encrypting(encrypts);
        let whys = [Distrust::InitiatorInClear, Distrust::TargetInClear];
        let [of_target, of_initiator] = if encrypts { whys } else { [whys[1], whys[0]] };
        let (mut initiator, first) = initiator_of(&known, Purpose::Fabric);
        let mut target = target_of(Some(&known), Purpose::Fabric);
        let step = target.advance(&announce(&first, !encrypts));
        assert_eq!(step.progress, distrust(of_target));
        let greeting = target_of(Some(&known), Purpose::Fabric).advance(&first).reply.unwrap();
        let step = initiator.advance(&announce(&greeting, !encrypts));
        assert_eq!(step.progress, distrust(of_initiator));
        // Also the end that is told what it wants to hear: its prologue is another one.
        let mut target = target_of(Some(&known.encrypting(!encrypts)), Purpose::Fabric);
        let step = target.advance(&announce(&first, !encrypts));
        assert_eq!(step.progress, distrust(Distrust::OtherSecret));
    }
}

#[test]
fn a_target_that_is_full_is_told_from_one_that_distrusts() {
    let (mut initiator, _) = initiator_of(&secret(7), Purpose::Fabric);
    assert_eq!(initiator.advance(&busy()).progress, Progress::Failed(Failure::Busy));
    for strange in [0, 7, 255] {
        let (mut initiator, _) = initiator_of(&secret(7), Purpose::Fabric);
        let step = initiator.advance(&reason_message(strange));
        assert_eq!(step.progress, Progress::Failed(Failure::Strange));
    }
}

/// Attacks by a stranger that has heard one good handshake and may talk with both ends; `known` is
/// the secret of the ends that it attacks. Answers the names of those that came in.
fn intrusions(known: &Secret) -> Vec<&'static str> {
    let mut came_in = Vec::new();
    let mut note = |name, step: HandshakeStep| {
        assert!(step.progress == Progress::Done || matches!(step.progress, Progress::Failed(_)));
        if step.progress == Progress::Done {
            came_in.push(name);
        }
    };
    let message_of = |said: &[u8], index: usize| {
        Message::try_from(&said[index * MESSAGE_BYTES..][..MESSAGE_BYTES]).unwrap()
    };
    let heard = talk_of(known, Some(known)).said;
    let (first, proof) = (message_of(&heard[0], 0), message_of(&heard[0], 1));
    let (greeting, target_proof) = (message_of(&heard[1], 0), message_of(&heard[1], 1));
    // A target that answers the recorded greeting.
    let target = |purpose| {
        let mut end = target_of(Some(known), purpose);
        let step = end.advance(&first);
        (end, step)
    };
    let nothing = message(MessageKind::Proof, &[0; BODY_BYTES]);
    note("no key", target(Purpose::Fabric).0.advance(&nothing));
    note("replay", target(Purpose::Fabric).0.advance(&proof));
    note("reflection", target(Purpose::Fabric).0.advance(&target_proof));
    note("other purpose", target(Purpose::Master).1);
    // A false target says the initiator's own words back, or old ones.
    for (name, answer) in [("mirror", None), ("replayed target", Some(greeting))] {
        let (mut lured, said) = initiator_of(known, Purpose::Fabric);
        note(name, lured.advance(&answer.unwrap_or(said)));
    }
    // What the initiator proves to an honest target is said back to it as the target's.
    let (mut lured, said) = initiator_of(known, Purpose::Fabric);
    let greeting = target_of(Some(known), Purpose::Fabric).advance(&said).reply.unwrap();
    let proof = lured.advance(&greeting).reply.unwrap();
    note("mirrored proof", lured.advance(&proof));
    // A secret that was the pool's before.
    let (_, said) = initiator_of(&secret(6), Purpose::Fabric);
    note("old secret", target_of(Some(known), Purpose::Fabric).advance(&said));
    came_in
}

#[test]
fn nobody_comes_in_without_the_secret() {
    assert_eq!(intrusions(&secret(7)), [""; 0]);
    assert_eq!(intrusions(&secret(7).encrypting(true)), [""; 0]);
}

/// Shows `end` the first `length` bytes of a message and then the rest.
fn cut(end: &mut Handshake, message: &Message, length: usize) -> HandshakeStep {
    let step = end.advance(&message[..length]);
    assert_eq!((step.consumed, step.progress), (0, Progress::Pending), "{length} bytes");
    assert!(step.reply.is_none());
    end.advance(message)
}

#[test]
fn a_message_that_is_cut_anywhere_is_waited_for() {
    for length in 0..MESSAGE_BYTES {
        let (mut initiator, first) = initiator_of(&secret(7), Purpose::Fabric);
        let mut target = target_of(Some(&secret(7)), Purpose::Fabric);
        let greeting = cut(&mut target, &first, length).reply.unwrap();
        let proof = cut(&mut initiator, &greeting, length).reply.unwrap();
        let step = cut(&mut target, &proof, length);
        assert_eq!(step.progress, Progress::Done);
        assert_eq!(cut(&mut initiator, &step.reply.unwrap(), length).progress, Progress::Done);
        let (mut initiator, _) = initiator_of(&secret(7), Purpose::Fabric);
        let step = cut(&mut initiator, &reason_message(1), length);
        assert_eq!(step.progress, distrust(Distrust::OtherSecret));
    }
}

#[test]
fn one_wrong_bit_anywhere_keeps_the_door_shut() {
    for bit in 0..8 * MESSAGE_BYTES {
        for of in 0..4 {
            let (mut initiator, mut said) = initiator_of(&secret(7), Purpose::Fabric);
            let mut target = target_of(Some(&secret(7)), Purpose::Fabric);
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
            target_of(Some(&known), Purpose::Fabric)
        } else {
            initiator_of(&known, Purpose::Fabric).0
        };
        let words = [GREETING, MessageKind::Proof, MessageKind::Refusal];
        let word = words.get(word).map(|kind| message(*kind, &[0; BODY_BYTES]));
        let mut stream = word.map_or(Vec::new(), |word| word[..WORD_BYTES].to_vec());
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
