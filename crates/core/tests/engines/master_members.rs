//! Racks that join, are drained, leave and are given up, as the master keeps them.

use crate::master_world::*;
use rackpool_core::master::{ConnId, Master, MasterConfig};
use rackpool_core::member::{Member, MemberAnswer, MemberCall, RackState};
use rackpool_core::placement::Policy;
use rackpool_core::seam::{Mutation, Probe};
use rackpool_core::wire::*;
use rackpool_core::{PageId, RackId, Result};

fn call(world: &mut World, call: MemberCall) -> Result<MemberAnswer> {
    let conn = world.connect();
    let answer = world.call(conn, MasterCall::Member(call));
    world.master.on_closed(conn);
    match answer? {
        MasterAnswer::Member(answer) => Ok(answer),
        other => panic!("{other:?}"),
    }
}

fn stand(world: &mut World, asked: MemberCall) -> RackState {
    match call(world, asked) {
        Ok(MemberAnswer::RackState(standing)) => standing,
        other => panic!("{other:?}"),
    }
}

fn member(world: &mut World, rack: u16) -> Member {
    let Ok(MemberAnswer::List(members)) = call(world, MemberCall::List) else { panic!() };
    members.into_iter().find(|member| member.info.rack == RackId(rack)).expect("it joined once")
}

fn heartbeat(world: &mut World, daemon: ConnId) -> Result<MasterAnswer> {
    world.call(daemon, MasterCall::Heartbeat { frames_free: 900, accesses: 0 })
}

fn told(world: &mut World, daemon: ConnId) -> RackState {
    match heartbeat(world, daemon) {
        Ok(MasterAnswer::Member(MemberAnswer::RackState(standing))) => standing,
        other => panic!("{other:?}"),
    }
}

fn new_page(world: &mut World, daemon: ConnId, rack: u16, n: u64) -> PageHome {
    let at = home(world.page_ids(daemon, 1), rack, n);
    let commit = MasterCall::CommitPages { homes: vec![at] };
    assert_eq!(world.call(daemon, commit), Ok(MasterAnswer::Done));
    at
}

fn pick(world: &mut World, own: u16) -> Result<RackId> {
    let conn = world.connect();
    let call = MasterCall::PickRack { own: RackId(own), bytes: 1, tried: Vec::new() };
    match world.call(conn, call)? {
        MasterAnswer::Rack(info) => Ok(info.rack),
        other => panic!("{other:?}"),
    }
}

fn rack(world: &mut World, rack: u16) -> Result<MasterAnswer> {
    let conn = world.connect();
    world.call(conn, MasterCall::Rack { rack: RackId(rack) })
}

fn two_racks() -> (World, [ConnId; 2]) {
    let mut world = World::new();
    let daemons = [world.daemon(info(0, 1)), world.daemon(info(1, 1))];
    (world, daemons)
}

const ONE: RackId = RackId(1);

#[test]
fn a_draining_rack_is_told_is_never_picked_and_takes_no_page() {
    let (mut world, [zero, one]) = two_racks();
    assert_eq!(told(&mut world, one), RackState::Serving);
    assert_eq!(pick(&mut world, 0), Ok(ONE));
    let at = new_page(&mut world, zero, 0, 3);
    assert_eq!(stand(&mut world, MemberCall::Drain(ONE)), RackState::Draining);
    assert_eq!(stand(&mut world, MemberCall::Drain(ONE)), RackState::Draining, "again");
    assert_eq!(
        (told(&mut world, zero), told(&mut world, one)),
        (RackState::Serving, RackState::Draining)
    );
    assert_eq!(code(pick(&mut world, 0)), "full");
    let conn = world.connect();
    let to = MasterCall::BeginMove { page: at.page, to: ONE };
    assert_eq!(code(world.call(conn, to)), "draining");
    assert_eq!(stand(&mut world, MemberCall::Undrain(ONE)), RackState::Serving);
    assert_eq!(pick(&mut world, 0), Ok(ONE));
    assert_eq!(code(call(&mut world, MemberCall::Drain(RackId(7)))), "no-such-rack");
}

#[test]
fn what_a_rack_is_survives_a_restart_of_the_master_and_of_the_daemon() {
    let (mut world, _) = two_racks();
    stand(&mut world, MemberCall::Drain(ONE));
    world.crash();
    let one = world.daemon(RackInfo { epoch: 2, ..info(1, 1) });
    assert_eq!(told(&mut world, one), RackState::Draining);
    assert_eq!(member(&mut world, 1).standing, RackState::Draining);
}

#[test]
fn a_rack_leaves_only_without_pages_and_nothing_comes_to_it_afterwards() {
    let (mut world, [zero, one]) = two_racks();
    let at = new_page(&mut world, one, 1, 3);
    assert_eq!(code(call(&mut world, MemberCall::Leave(ONE))), "denied", "it serves");
    stand(&mut world, MemberCall::Drain(ONE));
    let refused = call(&mut world, MemberCall::Leave(ONE)).unwrap_err();
    assert!(refused.to_string().contains("1 pages"), "{refused}");
    let to = home(at.page, 0, 8);
    let moved = world.call(zero, MasterCall::MovePage { from: at, to });
    assert_eq!(moved, Ok(MasterAnswer::Homes(vec![Resolved::Home(to)])));
    assert_eq!(stand(&mut world, MemberCall::Leave(ONE)), RackState::Left);
    assert_eq!(stand(&mut world, MemberCall::Leave(ONE)), RackState::Left, "its answer was lost");
    assert_eq!(stand(&mut world, MemberCall::Drain(ONE)), RackState::Left, "it is drained");
    assert_eq!(code(call(&mut world, MemberCall::Undrain(ONE))), "denied");
    assert_eq!(told(&mut world, one), RackState::Left);
    assert_eq!(code(rack(&mut world, 1)), "no-such-rack");
    assert_eq!(code(pick(&mut world, 0)), "full");
    let late = home(world.page_ids(one, 1), 1, 5);
    assert_eq!(code(world.call(one, MasterCall::CommitPages { homes: vec![late] })), "denied");
    let back = MasterCall::MovePage { from: to, to: home(at.page, 1, 9) };
    let stays = world.call(one, back);
    assert_eq!(stays, Ok(MasterAnswer::Homes(vec![Resolved::Home(to)])), "the page stays");
    assert_eq!((member(&mut world, 0).pages, member(&mut world, 1).pages), (1, 0));
}

#[test]
fn a_page_that_was_committed_in_the_same_batch_keeps_its_rack_in_the_pool() {
    let (mut world, [_, one]) = two_racks();
    stand(&mut world, MemberCall::Drain(ONE));
    let at = home(world.page_ids(one, 1), 1, 3);
    let operator = world.connect();
    let (_, none) = world.submit(one, MasterCall::CommitPages { homes: vec![at] });
    let (leave, also) = world.submit(operator, MasterCall::Member(MemberCall::Leave(ONE)));
    assert_eq!((none, also), (None, None), "both wait for the batch");
    let answers = world.commit();
    let answer = answers.into_iter().find(|(to, reply)| *to == operator && reply.id == leave);
    assert_eq!(code(answer.expect("it is answered").1.answer), "denied");
}

#[test]
fn a_region_that_has_left_stays_so_and_a_new_one_serves_in_its_place() {
    let (mut world, [_, one]) = two_racks();
    stand(&mut world, MemberCall::Drain(ONE));
    assert_eq!(stand(&mut world, MemberCall::Leave(ONE)), RackState::Left);
    world.master.on_closed(one);
    world.crash();
    let again = world.daemon(RackInfo { epoch: 2, ..info(1, 1) });
    assert_eq!(told(&mut world, again), RackState::Left, "it ends by itself");
    // No call waits for the old daemon, which may be there still.
    let new = world.daemon(info(1, 2));
    assert_eq!(told(&mut world, new), RackState::Serving);
    assert_eq!(code(heartbeat(&mut world, again)), "denied");
    let old = world.connect();
    assert_eq!(code(world.call(old, MasterCall::JoinDaemon(info(1, 1)))), "forgotten");
    world.master.on_closed(new);
    world.wait_for_a_lease();
    assert_eq!(code(world.call(old, MasterCall::JoinDaemon(info(1, 1)))), "forgotten");
}

#[test]
fn a_rack_is_given_up_only_when_its_daemon_had_a_lease_to_come_back() {
    let (mut world, [zero, one]) = two_racks();
    let (there, here) = (new_page(&mut world, one, 1, 3), new_page(&mut world, zero, 0, 4));
    let forget = MemberCall::Forget(ONE);
    let alive = call(&mut world, forget).unwrap_err();
    assert!(alive.code() == "denied" && alive.to_string().contains("is alive"), "{alive}");
    world.master.on_closed(one);
    let soon = call(&mut world, forget).unwrap_err();
    assert!(soon.code() == "denied" && soon.to_string().contains("come back"), "{soon}");
    world.crash();
    assert_eq!(code(call(&mut world, forget)), "denied", "the master knows nobody yet");
    world.wait_for_a_lease();
    world.now += 1;
    world.master.tick(world.now, &mut Vec::new());
    assert_eq!(stand(&mut world, forget), RackState::Lost);
    assert_eq!(stand(&mut world, forget), RackState::Lost, "again");
    assert_eq!(world.resolve(there.page), Resolved::Lost(ONE));
    assert_eq!(world.resolve(here.page), Resolved::Home(here));
    assert_eq!(code(rack(&mut world, 1)), "no-such-rack");
    let member = member(&mut world, 1);
    assert_eq!((member.pages, member.pages_lost, member.standing), (0, 1, RackState::Lost));
    // Also after a restart, the old region is refused and a new one is not.
    world.crash();
    assert_eq!(world.resolve(there.page), Resolved::Lost(ONE));
    let old = world.connect();
    let back = RackInfo { epoch: 2, ..info(1, 1) };
    assert_eq!(code(world.call(old, MasterCall::JoinDaemon(back.clone()))), "forgotten");
    let new = world.daemon(info(1, 2));
    assert_eq!(told(&mut world, new), RackState::Serving);
    world.master.on_closed(new);
    world.wait_for_a_lease();
    assert_eq!(code(world.call(old, MasterCall::JoinDaemon(back))), "forgotten", "for good");
    assert_eq!(world.resolve(there.page), Resolved::Lost(ONE));
}

#[test]
fn a_daemon_that_wakes_up_after_its_rack_was_given_up_is_told_and_changes_nothing() {
    let (mut world, [zero, one]) = two_racks();
    let at = new_page(&mut world, one, 1, 3);
    let ids = world.page_ids(one, 1);
    // It is stopped; its socket stays open.
    for _ in 0..6 {
        world.now += LEASE / 4;
        heartbeat(&mut world, zero).unwrap();
        world.master.tick(world.now, &mut Vec::new());
    }
    world.wait_for_a_lease();
    assert_eq!(stand(&mut world, MemberCall::Forget(ONE)), RackState::Lost);
    assert_eq!(told(&mut world, one), RackState::Lost);
    let commit = MasterCall::CommitPages { homes: vec![home(ids, 1, 5)] };
    assert_eq!(code(world.call(one, commit)), "forgotten");
    let remove = MasterCall::RemovePages { rack: ONE, pages: vec![at.page] };
    assert_eq!(code(world.call(one, remove)), "forgotten");
    let back = PageHome { generation: rackpool_core::Generation(77), ..at };
    assert_eq!(code(world.call(one, MasterCall::MovePage { from: at, to: back })), "forgotten");
    assert_eq!(world.resolve(at.page), Resolved::Lost(ONE));
    assert_eq!(code(pick(&mut world, 0)), "full");
}

#[test]
fn a_draining_rack_that_dies_can_be_given_up() {
    let (mut world, [_, one]) = two_racks();
    new_page(&mut world, one, 1, 3);
    stand(&mut world, MemberCall::Drain(ONE));
    world.master.on_closed(one);
    world.wait_for_a_lease();
    world.now += 1;
    world.master.tick(world.now, &mut Vec::new());
    assert_eq!(stand(&mut world, MemberCall::Forget(ONE)), RackState::Lost);
    assert_eq!(code(call(&mut world, MemberCall::Leave(ONE))), "denied");
    assert_eq!(code(call(&mut world, MemberCall::Undrain(ONE))), "denied");
}

struct Mutated(Option<Mutation>);

impl Probe for Mutated {
    fn mutated(&self, mutation: Mutation) -> bool {
        self.0 == Some(mutation)
    }
}

/// What the calls are answered with by a master with a rack 1 that has one page and is as `before`
/// says.
fn answers(mutation: Option<Mutation>, before: &[MemberCall], asked: MasterCall) -> &'static str {
    let (mut world, [_, one]) = two_racks();
    new_page(&mut world, one, 1, 3);
    for call in before {
        stand(&mut world, *call);
    }
    let state = load(&world.disk).expect("what was stored can be loaded");
    let config = MasterConfig { lease_ms: LEASE_MS, policy: Policy::default(), seed: 1 };
    let mut master = Master::with_probe(state, config, 5, Mutated(mutation));
    let mut out = Vec::new();
    let daemon = MasterCall::JoinDaemon(info(1, 1));
    let hello = || MasterCall::Hello { version: WIRE_VERSION };
    for (conn, call) in [(1, hello()), (1, daemon), (2, hello()), (2, asked)] {
        let request = MasterRequest { id: 9, call };
        master.on_call(6, ConnId(conn), request, &mut out);
        let batch = master.take_batch();
        master.apply(batch);
        master.committed(&mut out);
    }
    let (_, reply) = out.pop().expect("it is answered");
    reply.answer.map_or_else(|error| error.code(), |_| "ok")
}

#[test]
fn without_each_safeguard_of_membership_the_wrong_rack_is_let_go_or_picked() {
    let member = MasterCall::Member;
    let pick = MasterCall::PickRack { own: RackId(9), bytes: 1, tried: Vec::new() };
    for (mutation, before, asked, refusal) in [
        (
            Mutation::LeaveWithPages,
            &[MemberCall::Drain(ONE)][..],
            member(MemberCall::Leave(ONE)),
            "denied",
        ),
        (Mutation::PickDrainingRack, &[MemberCall::Drain(ONE)], pick, "full"),
        (Mutation::ForgetLivingRack, &[], member(MemberCall::Forget(ONE)), "denied"),
    ] {
        assert_eq!(answers(None, before, asked.clone()), refusal, "{}", mutation.name());
        assert_eq!(answers(Some(mutation), before, asked), "ok", "{}", mutation.name());
    }
}

#[test]
fn page_ids_are_not_given_again_by_a_rack_that_comes_back() {
    let (mut world, [_, one]) = two_racks();
    let first = world.page_ids(one, 10);
    stand(&mut world, MemberCall::Drain(ONE));
    stand(&mut world, MemberCall::Leave(ONE));
    world.master.on_closed(one);
    let new = world.daemon(info(1, 2));
    assert!(world.page_ids(new, 10) >= PageId(first.0 + 10));
}
