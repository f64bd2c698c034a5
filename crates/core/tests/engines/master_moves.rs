//! How the master lets pages move: which mover may, and the compare-and-swap that decides where
//! they live.

use crate::master_world::*;
use rackpool_core::constants::*;
use rackpool_core::master::ConnId;
use rackpool_core::wire::*;
use rackpool_core::{Error, FrameIndex, Generation, PageId, RackId};

/// Two racks, and a page at home in rack 0.
fn two_racks() -> (World, [ConnId; 2], PageHome) {
    let mut world = World::new();
    let daemons = [world.daemon(info(0, 1)), world.daemon(info(1, 1))];
    let at = new_page(&mut world, daemons[0], 5);
    (world, daemons, at)
}

fn new_page(world: &mut World, daemon: ConnId, n: u64) -> PageHome {
    let at = home(world.page_ids(daemon, 1), 0, n);
    let commit = MasterCall::CommitPages { homes: vec![at] };
    assert_eq!(world.call(daemon, commit), Ok(MasterAnswer::Done));
    at
}

fn begin(page: PageId, to: u16) -> MasterCall {
    MasterCall::BeginMove { page, to: RackId(to) }
}

/// Asks for a move; the one answer.
fn moved(world: &mut World, conn: ConnId, from: PageHome, to: PageHome) -> Resolved {
    homes(world.call(conn, MasterCall::MovePage { from, to }))
}

fn homes(answer: rackpool_core::Result<MasterAnswer>) -> Resolved {
    match answer {
        Ok(MasterAnswer::Homes(homes)) if homes.len() == 1 => homes[0],
        other => panic!("{other:?}"),
    }
}

/// Pages of each rack and lost ones, as an operator sees them.
fn stats(world: &mut World) -> (u64, u64) {
    let conn = world.connect();
    match world.call(conn, MasterCall::Stats) {
        Ok(MasterAnswer::Stats(stats)) => (stats.pages, stats.pages_lost),
        other => panic!("{other:?}"),
    }
}

/// A rack's region is replaced; how many pages that loses.
fn replace_region(world: &mut World, daemon: ConnId, rack: u16, region: u64) -> (ConnId, u64) {
    world.master.on_closed(daemon);
    world.wait_for_a_lease();
    world.now += 1;
    world.master.tick(world.now, &mut Vec::new());
    let conn = world.connect();
    match world.call(conn, MasterCall::JoinDaemon(info(rack, region))) {
        Ok(MasterAnswer::Joined { pages_lost, .. }) => (conn, pages_lost),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_swap_is_won_once_and_whoever_comes_later_learns_who_won() {
    let (mut world, [_, one], at) = two_racks();
    let two = world.daemon(info(2, 1));
    let to_one = home(at.page, 1, 7);
    let to_two = home(at.page, 2, 8);
    assert_eq!(moved(&mut world, one, at, to_one), Resolved::Home(to_one));
    assert_eq!(moved(&mut world, two, at, to_two), Resolved::Home(to_one), "too late");
    assert_eq!(world.resolve(at.page), Resolved::Home(to_one));
    assert_eq!(moved(&mut world, one, at, to_one), Resolved::Home(to_one), "again");
    assert_eq!(moved(&mut world, two, to_one, to_two), Resolved::Home(to_two), "in its turn");
    assert_eq!(stats(&mut world), (1, 0));
}

#[test]
fn of_two_swaps_in_one_batch_the_first_one_counts() {
    let (mut world, [zero, one], at) = two_racks();
    let back = PageHome { generation: Generation(99), ..at };
    let to = home(at.page, 1, 7);
    assert_eq!(world.submit(zero, MasterCall::MovePage { from: at, to: back }).1, None);
    assert_eq!(world.submit(one, MasterCall::MovePage { from: at, to }).1, None);
    assert_eq!(world.resolve(at.page), Resolved::Home(at), "nothing is shown before it is stored");
    let answers = world.commit();
    let all_say = |(_, reply): &(ConnId, MasterReply)| homes(reply.answer.clone());
    let said: Vec<_> = answers.iter().map(all_say).collect();
    assert_eq!(said, [Resolved::Home(back); 2]);
}

#[test]
fn a_page_that_its_home_takes_back_cannot_be_committed_elsewhere_any_more() {
    let (mut world, [zero, one], at) = two_racks();
    let back = PageHome { generation: Generation(99), ..at };
    assert_eq!(moved(&mut world, zero, at, back), Resolved::Home(back));
    let to = home(at.page, 1, 7);
    assert_eq!(moved(&mut world, one, at, to), Resolved::Home(back));
    assert_eq!(world.resolve(at.page), Resolved::Home(back));
    assert_eq!(moved(&mut world, one, back, to), Resolved::Home(to), "the next move");
    let late = PageHome { generation: Generation(100), ..at };
    assert_eq!(moved(&mut world, zero, back, late), Resolved::Home(to), "it has gone");
}

#[test]
fn every_part_of_the_old_home_is_compared() {
    let (mut world, [_, one], at) = two_racks();
    world.daemon(info(2, 1));
    let to = home(at.page, 1, 7);
    for from in [
        PageHome { rack: RackId(2), ..at },
        PageHome { frame: FrameIndex(6), ..at },
        PageHome { generation: Generation(at.generation.0 + 1), ..at },
    ] {
        assert_eq!(moved(&mut world, one, from, to), Resolved::Home(at), "{from:?}");
    }
    let unknown = PageId(at.page.0 + 1);
    let nobody = PageHome { page: unknown, ..at };
    let to = PageHome { page: unknown, ..to };
    assert_eq!(moved(&mut world, one, nobody, to), Resolved::Unmapped);
    assert_eq!(world.resolve(unknown), Resolved::Unmapped);
}

#[test]
fn only_the_new_homes_own_daemon_moves_a_page_and_only_into_its_region() {
    let (mut world, [zero, one], at) = two_racks();
    let to = home(at.page, 1, 7);
    let guest = world.connect();
    let call = |to| MasterCall::MovePage { from: at, to };
    assert_eq!(code(world.call(guest, call(to))), "protocol");
    assert_eq!(code(world.call(zero, call(to))), "protocol");
    for bad in [
        PageHome { frame: FrameIndex(1000), ..to },
        PageHome { generation: Generation(0), ..to },
        PageHome { page: PageId(at.page.0 + 1), ..to },
        PageHome { rack: RackId(0), ..to },
    ] {
        assert_eq!(code(world.call(one, call(bad))), "protocol", "{bad:?}");
        assert_eq!(world.resolve(at.page), Resolved::Home(at));
    }
    let successor = world.daemon(info(1, 1));
    assert_eq!(code(world.call(one, call(to))), "denied", "it was deposed");
    assert_eq!(world.resolve(at.page), Resolved::Home(at));
    assert_eq!(moved(&mut world, successor, at, to), Resolved::Home(to));
}

#[test]
fn a_swap_that_was_proposed_before_its_region_was_replaced_is_refused() {
    let (mut world, [_, one], at) = two_racks();
    let call = MasterCall::MovePage { from: at, to: home(at.page, 1, 7) };
    let (id, answer) = world.submit(one, call);
    assert_eq!(answer, None);
    let batch = world.master.take_batch();
    replace_region(&mut world, one, 1, 2);
    let mut out = Vec::new();
    world.master.apply(batch);
    world.master.committed(&mut out);
    assert_eq!(out[0].1.id, id);
    assert_eq!(code(out.remove(0).1.answer), "denied");
    assert_eq!(world.resolve(at.page), Resolved::Home(at));
}

#[test]
fn a_lost_home_stays_lost() {
    let (mut world, [zero, one], at) = two_racks();
    let (zero, lost) = replace_region(&mut world, zero, 0, 2);
    assert_eq!(lost, 1);
    let to = home(at.page, 1, 7);
    let gone = Resolved::Lost(RackId(0));
    assert_eq!(moved(&mut world, one, at, to), gone);
    let back = PageHome { generation: Generation(99), ..at };
    assert_eq!(moved(&mut world, zero, at, back), gone, "not even in its own rack");
    assert_eq!(world.resolve(at.page), gone);
    let conn = world.connect();
    assert_eq!(homes(world.call(conn, begin(at.page, 1))), gone);
}

#[test]
fn a_moved_page_counts_where_it_is_and_a_reload_tells_the_same() {
    let (mut world, [zero, one], at) = two_racks();
    let stays = new_page(&mut world, zero, 6);
    let to = home(at.page, 1, 7);
    assert_eq!(moved(&mut world, one, at, to), Resolved::Home(to));
    for _ in 0..2 {
        assert_eq!(world.resolve(at.page), Resolved::Home(to));
        assert_eq!(world.resolve(stays.page), Resolved::Home(stays));
        assert_eq!(stats(&mut world), (2, 0));
        world.crash();
    }
    let (zero, one) = (world.daemon(info(0, 1)), world.daemon(info(1, 1)));
    assert_eq!(moved(&mut world, one, at, to), Resolved::Home(to), "again, after all that");
    let (_, lost) = replace_region(&mut world, zero, 0, 2);
    assert_eq!(lost, 1, "of the two pages one is elsewhere");
    let (_, lost) = replace_region(&mut world, one, 1, 2);
    assert_eq!(lost, 1, "and was counted there");
    for _ in 0..2 {
        assert_eq!(world.resolve(at.page), Resolved::Lost(RackId(1)));
        assert_eq!(stats(&mut world), (2, 2));
        world.crash();
    }
}

#[test]
fn a_moved_page_is_one_write_beside_the_pools_own_record() {
    let (mut world, [_, one], at) = two_racks();
    let to = home(at.page, 1, 7);
    for expected in [2, 1] {
        world.submit(one, MasterCall::MovePage { from: at, to });
        let batch = world.master.take_batch();
        assert_eq!(world.master.apply(batch).len(), expected);
        world.master.committed(&mut Vec::new());
    }
}

#[test]
fn who_asks_first_moves_a_page_and_others_are_told_so() {
    let (mut world, [_, one], at) = two_racks();
    let (first, second) = (world.connect(), world.connect());
    let now = Resolved::Home(at);
    for _ in 0..2 {
        assert_eq!(homes(world.call(first, begin(at.page, 1))), now);
        assert_eq!(code(world.call(second, begin(at.page, 1))), "stays");
    }
    let to = home(at.page, 1, 7);
    let other = PageHome { generation: Generation(99), ..at };
    assert_eq!(moved(&mut world, one, other, to), now);
    assert_eq!(code(world.call(second, begin(at.page, 1))), "stays", "that was another move");
    assert_eq!(moved(&mut world, one, at, to), Resolved::Home(to));
    assert_eq!(homes(world.call(second, begin(at.page, 0))), Resolved::Home(to));
}

#[test]
fn a_claim_ends_when_its_home_takes_the_page_back() {
    let (mut world, [zero, one], at) = two_racks();
    let (first, second) = (world.connect(), world.connect());
    assert_eq!(homes(world.call(first, begin(at.page, 1))), Resolved::Home(at));
    let back = PageHome { generation: Generation(99), ..at };
    assert_eq!(moved(&mut world, zero, at, back), Resolved::Home(back));
    assert_eq!(homes(world.call(second, begin(at.page, 1))), Resolved::Home(back));
    // What is late of the first move ends nothing of the second.
    assert_eq!(moved(&mut world, one, at, home(at.page, 1, 7)), Resolved::Home(back));
    assert_eq!(code(world.call(first, begin(at.page, 1))), "stays");
}

#[test]
fn a_claim_ends_with_its_connection_with_its_lease_and_when_it_is_given_up() {
    let (mut world, _, at) = two_racks();
    let (first, second) = (world.connect(), world.connect());
    let now = Resolved::Home(at);
    assert_eq!(homes(world.call(first, begin(at.page, 1))), now);
    world.master.on_closed(first);
    assert_eq!(homes(world.call(second, begin(at.page, 1))), now);

    let third = world.connect();
    assert_eq!(code(world.call(third, begin(at.page, 1))), "stays");
    assert_eq!(homes(world.call(third, begin(at.page, 0))), now, "it is there: nothing to claim");
    assert_eq!(code(world.call(third, begin(at.page, 1))), "stays", "and nothing of others' ends");
    assert_eq!(homes(world.call(second, begin(at.page, 0))), now, "its holder gives it up");
    assert_eq!(homes(world.call(third, begin(at.page, 1))), now);

    // A pause of the master is none of the holder's time.
    world.now += 100 * LEASE;
    world.master.tick(world.now, &mut Vec::new());
    assert_eq!(code(world.call(second, begin(at.page, 1))), "stays");
    world.wait_for_a_lease();
    assert_eq!(homes(world.call(second, begin(at.page, 1))), now);
}

#[test]
fn what_needs_no_move_claims_nothing_and_is_answered() {
    let (mut world, _, at) = two_racks();
    let unknown = PageId(at.page.0 + 1);
    for _ in 0..2 {
        let conn = world.connect();
        assert_eq!(homes(world.call(conn, begin(at.page, 0))), Resolved::Home(at));
        assert_eq!(homes(world.call(conn, begin(unknown, 1))), Resolved::Unmapped);
        let nowhere = world.call(conn, begin(at.page, 9));
        assert_eq!(nowhere, Err(Error::NoSuchRack { rack: RackId(9) }));
    }
    let conn = world.connect();
    assert_eq!(homes(world.call(conn, begin(at.page, 1))), Resolved::Home(at));
}

#[test]
fn claims_are_bounded_and_a_restart_forgets_them() {
    let mut world = World::new();
    let daemons = [world.daemon(info(0, 1)), world.daemon(info(1, 1))];
    let count = MASTER_MOVES_MAX as u64 + 1;
    let first = world.page_ids(daemons[0], count);
    let page = |n| PageId(first.0 + n);
    for chunk in (0..count).collect::<Vec<_>>().chunks(COMMIT_PAGES_MAX as usize) {
        let homes = chunk.iter().map(|n| home(page(*n), 0, *n)).collect();
        assert!(world.call(daemons[0], MasterCall::CommitPages { homes }).is_ok());
    }
    let conn = world.connect();
    for n in 0..count - 1 {
        assert!(world.call(conn, begin(page(n), 1)).is_ok());
    }
    let answer = world.call(conn, begin(page(count - 1), 1));
    assert_eq!(answer.as_ref().map_err(Error::code), Err("busy"));
    assert!(answer.unwrap_err().to_string().contains(&MASTER_MOVES_MAX.to_string()));
    assert!(world.call(conn, begin(page(0), 1)).is_ok(), "what is claimed can be asked again");
    assert!(world.call(conn, begin(page(0), 0)).is_ok());
    assert!(world.call(conn, begin(page(count - 1), 1)).is_ok(), "one was given up");
    world.crash();
    world.daemon(info(0, 1));
    world.daemon(info(1, 1));
    let conn = world.connect();
    assert!(world.call(conn, begin(page(1), 1)).is_ok());
}

#[test]
fn a_page_of_a_lost_region_is_adopted_in_the_frame_where_it_was_and_nowhere_else() {
    let (mut world, [zero, one], at) = two_racks();
    let adopted = |world: &mut World, conn, from, to| {
        homes(world.call(conn, MasterCall::AdoptPage { from, to }))
    };
    let back = PageHome { generation: Generation(3), ..at };
    assert_eq!(adopted(&mut world, zero, at, back), Resolved::Home(at), "it is not lost");
    let (zero, lost) = replace_region(&mut world, zero, 0, 2);
    assert_eq!(lost, 1);
    let gone = Resolved::Lost(RackId(0));
    let (frame, generation) = (FrameIndex(6), Generation(at.generation.0 + 1));
    let moved = PageHome { frame, ..at };
    let elsewhere = PageHome { frame, ..back };
    assert_eq!(adopted(&mut world, zero, moved, elsewhere), gone, "another frame");
    let later = PageHome { generation, ..at };
    assert_eq!(adopted(&mut world, zero, later, back), gone, "what it never had there");
    for (conn, from, to) in [
        (one, at, back),
        (zero, at, elsewhere),
        (zero, PageHome { rack: RackId(1), ..at }, back),
        (zero, at, PageHome { generation: Generation(0), ..back }),
    ] {
        let call = MasterCall::AdoptPage { from, to };
        assert_eq!(code(world.call(conn, call)), "protocol", "{from:?} {to:?}");
    }
    assert_eq!(stats(&mut world), (1, 1));
    for _ in 0..2 {
        assert_eq!(adopted(&mut world, zero, at, back), Resolved::Home(back), "and again");
        assert_eq!(world.resolve(at.page), Resolved::Home(back));
        assert_eq!(stats(&mut world), (1, 0));
    }
}
