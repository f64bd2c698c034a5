//! The link to the master as a state machine: what goes first, and one answer for each call.

use rackpool_core::constants::{MASTER_CALLS_MAX, REQUEST_TIMEOUT_MS_DEFAULT};
use rackpool_core::error::{DeathCause, Error, Result};
use rackpool_core::placement::Order;
use rackpool_core::runtime::master_link::{Advance, Call, MasterLink, UNASKED};
use rackpool_core::runtime::{Backoff, jittered_ns};
use rackpool_core::seam::Nanos;
use rackpool_core::wire::{MasterAnswer, MasterCall, MasterReply, WIRE_VERSION};
use rackpool_core::{RackId, SessionId};

const MS: Nanos = 1_000_000;
const WELCOME: MasterAnswer =
    MasterAnswer::Welcome { pool_id: [1, 2], lease_ms: 3, order: Order::LocalFirst };

fn link(addresses: &[&str]) -> MasterLink {
    let mut link = MasterLink::new(addresses.iter().map(|it| it.to_string()).collect());
    link.join = Some(Call::join_client(SessionId(1), RackId(0)));
    link
}

fn reply(id: u64, answer: Result<MasterAnswer>) -> MasterReply {
    MasterReply { id, term: 1, index: 1, answer }
}

/// Connects, and has hello and join answered.
fn bring_up(link: &mut MasterLink, now: Nanos) {
    link.on_open(now);
    for request in link.connected() {
        assert!(!link.is_up());
        assert!(link.on_reply(reply(request.id, Ok(WELCOME))));
    }
    assert!(link.is_up());
}

fn codes(link: &mut MasterLink) -> Vec<(u64, &'static str)> {
    let code = |answer: Result<_>| answer.map_or_else(|error| error.code(), |_| "ok");
    link.take_replies().into_iter().map(|it| (it.id, code(it.answer))).collect()
}

#[test]
fn hello_and_join_go_first_on_every_connection_and_calls_after_their_answers() {
    let mut link = link(&["a"]);
    assert_eq!(link.send(0, MasterCall::Stats).unwrap_err().code(), "peer-dead");
    for round in 1..3 {
        link.on_open(0);
        let first: Vec<_> = link.connected().collect();
        assert!(matches!(first[0].call, MasterCall::Hello { version: WIRE_VERSION }));
        assert!(matches!(first[1].call, MasterCall::JoinClient { .. }));
        assert!(link.on_reply(reply(first[0].id, Ok(WELCOME))));
        assert_eq!(link.send(0, MasterCall::Stats).unwrap_err().code(), "peer-dead");
        assert!(link.on_reply(reply(first[1].id, Ok(MasterAnswer::Done))));
        assert_eq!((link.is_up(), link.connections()), (true, round));
        assert_eq!(link.welcome, Some(MasterAnswer::Done));
        assert!(codes(&mut link).is_empty(), "hello and join are the link's own business");
        link.on_closed(0, true);
        assert!(!link.is_up());
    }
    assert_eq!(link.calls_sent(), 4);
}

#[test]
fn each_call_is_answered_once_by_the_master_by_death_or_by_timeout() {
    let mut link = link(&["a"]);
    bring_up(&mut link, 0);
    let send = |link: &mut MasterLink, now| link.send(now, MasterCall::Stats).unwrap().id;
    let (served, late, lost) = (send(&mut link, 0), send(&mut link, 0), send(&mut link, 2 * MS));
    assert!(link.on_reply(reply(served, Ok(MasterAnswer::Done))));
    assert!(link.tick(REQUEST_TIMEOUT_MS_DEFAULT * MS));
    assert_eq!(codes(&mut link), [(served, "ok")]);
    assert!(link.tick(REQUEST_TIMEOUT_MS_DEFAULT * MS + 1));
    assert_eq!(codes(&mut link), [(late, "timeout")]);
    link.on_closed(0, true);
    assert_eq!(codes(&mut link), [(lost, "peer-dead")]);
    for id in [served, late, lost] {
        assert!(link.on_reply(reply(id, Ok(MasterAnswer::Done))));
    }
    assert!(codes(&mut link).is_empty());
}

#[test]
fn an_encoded_answer_is_taken_as_the_answer_and_what_is_none_is_an_error() {
    let mut link = link(&["a"]);
    bring_up(&mut link, 0);
    let id = link.send(0, MasterCall::Stats).unwrap().id;
    let message = reply(id, Ok(MasterAnswer::Done)).encode();
    assert_eq!(link.on_message(&message[1..]).unwrap_err().code(), "protocol");
    assert_eq!(link.on_message(&message), Ok(true));
    assert_eq!(codes(&mut link), [(id, "ok")]);
}

#[test]
fn calls_under_way_are_bounded() {
    let mut link = link(&["a"]);
    bring_up(&mut link, 0);
    for _ in 0..MASTER_CALLS_MAX {
        link.send(0, MasterCall::Racks).unwrap();
    }
    assert_eq!(link.send(0, MasterCall::Racks).unwrap_err().code(), "busy");
}

#[test]
fn a_connection_that_does_not_come_up_in_time_is_given_up() {
    let mut link = link(&["a", "b"]);
    link.on_open(5 * MS);
    assert!(link.tick(1005 * MS) && !link.tick(1005 * MS + 1));
    link.on_closed(1006 * MS, false);
    assert_eq!(link.address(), "a", "the name stands for something else that was not tried");
    link.on_closed(1006 * MS, true);
    assert_eq!(link.address(), "b");
}

#[test]
fn a_master_that_is_slow_to_greet_gets_more_time_with_each_try_until_it_has_answered() {
    let mut link = link(&["a"]);
    for allowed in [1000, 2000, 4000, 4000] {
        link.on_open(0);
        let first = link.connected().next().unwrap();
        assert!(link.tick(allowed * MS), "within {allowed} ms");
        assert!(!link.tick(allowed * MS + 1));
        link.on_closed(0, true);
        assert!(link.on_reply(reply(first.id, Ok(WELCOME))), "an answer too late is none");
    }
    // Where there is no connection, more time would not help.
    link.on_open(0);
    assert!(link.tick(1000 * MS) && !link.tick(1000 * MS + 1));
    link.on_closed(0, true);
    bring_up(&mut link, 0);
    link.on_closed(0, true);
    link.on_open(0);
    let _ = link.connected();
    assert!(link.tick(1000 * MS) && !link.tick(1000 * MS + 1));
}

#[test]
fn a_refusal_ends_the_connection_and_fails_what_waits_for_it_unless_it_passes() {
    let mut link = link(&["a"]);
    let mut call = link.begin(MasterCall::Stats);
    link.on_open(0);
    let hello = link.connected().next().unwrap();
    let (peer, found) = ("the caller".to_string(), WIRE_VERSION);
    let version = Error::Version { peer, found, supported: 77 };
    assert!(!link.on_reply(reply(hello.id, Err(version))));
    link.on_closed(0, true);
    let told = Error::Version { peer: "master at a".into(), found: 77, supported: WIRE_VERSION };
    assert!(matches!(link.advance(0, &mut call), Advance::Answered(Err(error)) if error == told));
    assert_eq!(link.send(0, MasterCall::Stats), Err(told));

    let mut call = link.begin(MasterCall::Stats);
    link.on_open(0);
    assert_eq!(link.connected().count(), 2);
    let busy = Error::Busy { what: "connections".into(), limit: 1 };
    assert!(!link.on_reply(reply(UNASKED, Err(busy.clone()))));
    link.on_closed(0, true);
    assert!(matches!(link.advance(0, &mut call), Advance::Waits));
    assert_eq!(link.give_up(&call), Some(busy));
    bring_up(&mut link, 0);
    assert_eq!(link.refused, None);
}

#[test]
fn a_leader_that_is_named_is_tried_before_the_next_address() {
    let mut link = link(&["a", "b"]);
    bring_up(&mut link, 0);
    let id = link.send(0, MasterCall::Stats).unwrap().id;
    let not_leader = |leader: &str| Err(Error::NotLeader { leader: leader.into() });
    assert!(!link.on_reply(reply(id, not_leader("c"))));
    link.on_closed(0, true);
    assert_eq!((codes(&mut link), link.address()), (vec![(id, "not-leader")], "c"));
    link.on_closed(0, true);
    assert_eq!(link.address(), "b");
    link.on_open(0);
    let hello = link.connected().next().unwrap();
    assert!(!link.on_reply(reply(hello.id, not_leader(""))));
    link.on_closed(0, true);
    assert_eq!(link.address(), "a");
}

#[test]
fn a_lasting_call_is_sent_again_until_it_is_answered() {
    let mut link = link(&["a"]);
    let mut call = link.begin(MasterCall::Racks);
    let mut ids = Vec::new();
    for _ in 0..3 {
        assert!(matches!(link.advance(0, &mut call), Advance::Waits));
        bring_up(&mut link, 0);
        let Advance::Send(request) = link.advance(0, &mut call) else { panic!() };
        assert!(matches!(link.advance(0, &mut call), Advance::Waits));
        ids.push(request.id);
        if ids.len() < 3 {
            link.on_closed(0, true);
        }
    }
    let other = link.send(0, MasterCall::Stats).unwrap().id;
    assert!(link.on_reply(reply(other, Ok(MasterAnswer::Done))));
    assert!(link.on_reply(reply(ids[2], Ok(MasterAnswer::Racks(vec![])))));
    let answered = link.advance(0, &mut call);
    assert!(matches!(answered, Advance::Answered(Ok(MasterAnswer::Racks(_)))));
    assert_eq!(codes(&mut link), [(other, "ok")], "answers to other calls stay");
    let dead = link.begin(MasterCall::Racks);
    assert_eq!(link.give_up(&dead), None);
}

#[test]
fn pauses_double_up_to_a_limit_and_begin_anew_after_an_answer() {
    let mut backoff = Backoff::ms(1, 5);
    let mut pauses = || [(); 4].map(|()| backoff.pause_ns() / MS);
    assert_eq!(pauses(), [1, 2, 4, 5]);
    backoff.reset();
    assert_eq!(backoff.pause_ns(), MS);
    for random in [0, 1, MS, u64::MAX] {
        assert!((MS / 2..MS).contains(&jittered_ns(MS, random)));
    }
    let mut link = link(&["a"]);
    assert_eq!([(); 3].map(|()| link.on_closed(0, true)), [MS, 2 * MS, 4 * MS]);
    bring_up(&mut link, 0);
    assert_eq!(link.on_closed(1000 * MS, true), 8 * MS, "a master that comes and goes");
    bring_up(&mut link, 0);
    assert_eq!(link.on_closed(1001 * MS, true), MS, "it served for a while");
    bring_up(&mut link, 0);
    let id = link.send(0, MasterCall::Racks).unwrap().id;
    assert!(link.on_reply(reply(id, Ok(MasterAnswer::Done))));
    assert_eq!(link.on_closed(0, true), MS);
    let cause = DeathCause::Closed;
    let death = Error::PeerDead { peer: link.peer(), cause };
    assert_eq!(link.send(0, MasterCall::Racks), Err(death));
}
