//! The rules of the master's engine, each by itself: greeting, membership, leases, directory,
//! roots, placement, bounds.

use crate::master_world::*;
use rackpool_core::constants::*;
use rackpool_core::master::{ConnId, Notice};
use rackpool_core::placement::Order;
use rackpool_core::wire::*;
use rackpool_core::{Error, FrameIndex, GAddr, Generation, PageId, RackId, SessionId};

#[test]
fn the_first_call_is_hello_in_our_version() {
    let mut world = World::new();
    let conn = ConnId(99);
    assert_eq!(code(world.call(conn, MasterCall::Racks)), "protocol");
    let wrong = MasterCall::Hello { version: WIRE_VERSION + 1 };
    match world.call(conn, wrong) {
        Err(Error::Version { found, supported, .. }) => {
            assert_eq!((found, supported), (WIRE_VERSION + 1, WIRE_VERSION));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(code(world.call(conn, MasterCall::Stats)), "protocol");
    let right = MasterCall::Hello { version: WIRE_VERSION };
    let welcome =
        MasterAnswer::Welcome { pool_id: [7, 8], lease_ms: LEASE_MS, order: Order::LocalFirst };
    assert_eq!(world.call(conn, right), Ok(welcome));
    assert!(world.call(conn, MasterCall::Stats).is_ok());
}

#[test]
fn one_rack_is_told_by_itself_and_one_that_never_joined_is_refused() {
    let mut world = World::new();
    let ask = MasterCall::Rack { rack: RackId(3) };
    let conn = world.connect();
    assert_eq!(world.call(conn, ask.clone()), Err(Error::NoSuchRack { rack: RackId(3) }));
    let daemon = world.daemon(info(3, 1));
    world.daemon(info(4, 1));
    let told = RackInfo { alive: true, ..info(3, 1) };
    assert_eq!(world.call(conn, ask.clone()), Ok(MasterAnswer::Rack(told.clone())));
    world.master.on_closed(daemon);
    let dead = RackInfo { alive: false, ..told };
    assert_eq!(world.call(conn, ask), Ok(MasterAnswer::Rack(dead)));
}

#[test]
fn reads_show_nothing_before_it_is_stored() {
    let mut world = World::new();
    let conn = world.daemon(info(0, 1));
    let page = world.page_ids(conn, 1);
    let homes = vec![home(page, 0, 5)];
    let (_, answer) = world.submit(conn, MasterCall::CommitPages { homes: homes.clone() });
    assert_eq!(answer, None);
    let read = world.submit(conn, MasterCall::Resolve { page, count: 1 }).1;
    assert_eq!(read, Some(Ok(MasterAnswer::Homes(vec![Resolved::Unmapped]))));
    assert_eq!(world.commit().len(), 1);
    assert_eq!(world.resolve(page), Resolved::Home(homes[0]));
}

#[test]
#[should_panic(expected = "not yet stored")]
fn no_call_comes_between_apply_and_its_commit() {
    let mut world = World::new();
    let conn = world.connect();
    world.submit(conn, set_root("a", 0, 1));
    let batch = world.master.take_batch();
    let _ = world.master.apply(batch);
    world.submit(conn, MasterCall::Stats);
}

#[test]
fn a_page_with_two_homes_is_refused_and_nothing_of_the_call_is_kept() {
    let mut world = World::new();
    let conn = world.daemon(info(0, 1));
    let first = world.page_ids(conn, 10);
    let page = |n| PageId(first.0 + n);
    let commit = |homes: &[PageHome]| MasterCall::CommitPages { homes: homes.to_vec() };
    let known = home(page(0), 0, 5);
    assert_eq!(world.call(conn, commit(&[known])), Ok(MasterAnswer::Done));
    assert_eq!(world.call(conn, commit(&[known, known])), Ok(MasterAnswer::Done), "again");
    let fresh = home(page(1), 0, 6);
    let bad = [
        vec![fresh, home(page(0), 0, 7)],
        vec![fresh, home(page(1), 0, 7)],
        vec![fresh, home(PageId(0), 0, 7)],
        vec![fresh, home(page(10), 0, 7)],
        vec![fresh, home(page(2), 1, 7)],
        vec![fresh, PageHome { frame: FrameIndex(1000), ..home(page(2), 0, 7) }],
        vec![fresh, PageHome { generation: Generation(0), ..home(page(2), 0, 7) }],
        vec![fresh; COMMIT_PAGES_MAX as usize + 1],
    ];
    for homes in bad {
        assert_eq!(code(world.call(conn, commit(&homes))), "protocol", "{:?}", &homes[1]);
        assert_eq!(world.resolve(page(1)), Resolved::Unmapped);
        assert_eq!(world.resolve(page(0)), Resolved::Home(known));
    }
}

#[test]
fn only_the_racks_own_daemon_changes_its_pages() {
    let mut world = World::new();
    let one = world.daemon(info(0, 1));
    let two = world.daemon(info(1, 1));
    let guest = world.connect();
    let page = world.page_ids(one, 1);
    let commit = MasterCall::CommitPages { homes: vec![home(page, 0, 1)] };
    let remove = |rack| MasterCall::RemovePages { rack: RackId(rack), pages: vec![page] };
    assert_eq!(code(world.call(two, commit.clone())), "protocol");
    assert_eq!(code(world.call(guest, commit.clone())), "protocol");
    assert_eq!(code(world.call(guest, MasterCall::LeasePageIds { count: 1 })), "protocol");
    assert!(world.call(one, commit).is_ok());
    assert_eq!(code(world.call(two, remove(0))), "protocol");
    assert_eq!(world.call(two, remove(1)), Ok(MasterAnswer::Done), "homed elsewhere: ignored");
    assert!(matches!(world.resolve(page), Resolved::Home(_)));
    assert_eq!(world.call(one, remove(0)), Ok(MasterAnswer::Done));
    assert_eq!(world.call(one, remove(0)), Ok(MasterAnswer::Done), "again");
    assert_eq!(world.resolve(page), Resolved::Unmapped);
}

#[test]
fn a_new_region_loses_the_pages_of_the_old_one_until_they_are_freed() {
    let mut world = World::new();
    let old = world.daemon(info(0, 1));
    let first = world.page_ids(old, 3);
    let page = |n| PageId(first.0 + n);
    let homes = (0..3).map(|n| home(page(n), 0, n)).collect();
    assert!(world.call(old, MasterCall::CommitPages { homes }).is_ok());
    let other = world.connect();
    let join = MasterCall::JoinDaemon(info(0, 2));
    let denied = world.call(other, join.clone()).expect_err("the old one is alive");
    assert_eq!(denied.code(), "denied");
    assert!(denied.to_string().contains("stop it"), "the way out: {denied}");
    world.master.on_closed(old);
    assert!(!world.rack(0).alive);
    assert!(matches!(world.resolve(page(0)), Resolved::Home(_)), "dead is not lost");
    world.master.take_notices();
    world.wait_for_a_lease();
    world.now += 1;
    world.master.tick(world.now, &mut Vec::new());
    for _ in 0..2 {
        match world.call(other, join.clone()) {
            Ok(MasterAnswer::Joined { pages_lost: 3, .. }) => {}
            answer => panic!("{answer:?}"),
        }
    }
    let lost = Notice::PagesLost { rack: RackId(0), pages: 3 };
    assert_eq!(world.master.take_notices().iter().filter(|n| **n == lost).count(), 1);
    for _ in 0..2 {
        for n in 0..3 {
            assert_eq!(world.resolve(page(n)), Resolved::Lost(RackId(0)));
        }
        world.crash();
    }
    let back = world.daemon(info(0, 2));
    let again = MasterCall::CommitPages { homes: vec![home(page(0), 0, 0)] };
    assert_eq!(code(world.call(back, again)), "protocol", "a lost page keeps its old home");
    let remove = MasterCall::RemovePages { rack: RackId(0), pages: vec![page(1)] };
    assert!(world.call(back, remove).is_ok());
    assert_eq!(world.resolve(page(1)), Resolved::Unmapped);
    let Ok(MasterAnswer::Stats(stats)) = world.call(back, MasterCall::Stats) else { panic!() };
    assert_eq!((stats.pages, stats.pages_lost), (2, 2));
}

#[test]
fn a_daemon_that_comes_back_with_its_region_keeps_everything() {
    let mut world = World::new();
    let conn = world.daemon(info(0, 1));
    let page = world.page_ids(conn, 1);
    let homes = vec![home(page, 0, 1)];
    assert!(world.call(conn, MasterCall::CommitPages { homes }).is_ok());
    world.master.on_closed(conn);
    let back = RackInfo { epoch: 2, control: "another process".into(), ..info(0, 1) };
    let conn = world.daemon(back.clone());
    assert!(matches!(world.resolve(page), Resolved::Home(_)));
    assert_eq!(world.rack(0).epoch, 2);
    world.master.on_closed(conn);
    let conn = world.connect();
    let refused = [
        RackInfo { epoch: 1, ..back.clone() },
        RackInfo { frame_count: 999, ..back.clone() },
        RackInfo { page_shift: 12, ..back.clone() },
        RackInfo { page_shift: 40, ..back.clone() },
        RackInfo { frame_count: 0, ..back.clone() },
        RackInfo { rack: RackId(1), ..back.clone() },
        RackInfo { region_id: [0; 2], ..back.clone() },
    ];
    for info in refused {
        let answer = world.call(conn, MasterCall::JoinDaemon(info.clone()));
        assert_eq!(code(answer), "bad-region", "{info:?}");
        assert!(!world.rack(0).alive);
    }
    let number = RackInfo { rack: RackId(RACKS_MAX), ..back.clone() };
    assert_eq!(code(world.call(conn, MasterCall::JoinDaemon(number))), "denied");
    let long = RackInfo { host: "h".repeat(RACK_NAME_BYTES_MAX + 1), ..back.clone() };
    assert_eq!(code(world.call(conn, MasterCall::JoinDaemon(long))), "protocol");
    assert!(world.call(conn, MasterCall::JoinDaemon(back)).is_ok());
}

#[test]
fn the_same_daemon_on_a_new_connection_replaces_its_ghost() {
    let mut world = World::new();
    let ghost = world.daemon(info(0, 1));
    let conn = world.daemon(info(0, 1));
    assert!(world.rack(0).alive);
    let beat = MasterCall::Heartbeat { frames_free: 3, accesses: 0 };
    assert_eq!(code(world.call(ghost, beat.clone())), "denied");
    assert_eq!(code(world.call(ghost, MasterCall::CommitPages { homes: vec![] })), "denied");
    world.master.on_closed(ghost);
    assert!(world.rack(0).alive, "the ghost's end does not matter");
    assert!(world.call(conn, beat).is_ok());
    assert_eq!(world.rack(0).frames_free, 3);
}

#[test]
fn two_daemons_that_join_in_one_batch_do_not_both_get_the_rack() {
    let mut world = World::new();
    let (one, two) = (world.connect(), world.connect());
    assert_eq!(world.submit(one, MasterCall::JoinDaemon(info(0, 1))).1, None);
    let second = world.submit(two, MasterCall::JoinDaemon(info(0, 2))).1;
    assert_eq!(code(second.expect("refused at once")), "denied");
    assert_eq!(world.commit().len(), 1);
    assert_eq!(world.rack(0).region_id, [1, 1]);
}

#[test]
fn a_daemon_that_died_while_it_joined_is_not_alive() {
    let mut world = World::new();
    let conn = world.connect();
    world.submit(conn, MasterCall::JoinDaemon(info(0, 1)));
    world.master.on_closed(conn);
    world.commit();
    assert!(!world.rack(0).alive);
    world.daemon(info(0, 1));
    assert!(world.rack(0).alive);
}

#[test]
fn a_silent_daemon_is_dead_after_its_lease_and_alive_with_its_next_word() {
    let mut world = World::new();
    let conn = world.daemon(info(0, 1));
    world.master.take_notices();
    world.now += LEASE;
    world.master.tick(world.now, &mut Vec::new());
    assert!(world.rack(0).alive, "the lease is not over");
    world.now += 1;
    world.master.tick(world.now, &mut Vec::new());
    assert!(!world.rack(0).alive);
    assert!(matches!(world.master.take_notices()[..], [Notice::RackDead { .. }]));
    assert!(world.call(conn, MasterCall::Heartbeat { frames_free: 9, accesses: 0 }).is_ok());
    assert!(world.rack(0).alive);
    assert!(matches!(world.master.take_notices()[..], [Notice::RackJoined { .. }]));
}

#[test]
fn a_client_is_never_dead_by_silence_only_by_its_connection() {
    let mut world = World::new();
    let conn = world.connect();
    let join = MasterCall::JoinClient { session: SessionId(5), rack: RackId(0) };
    assert!(matches!(world.call(conn, join), Ok(MasterAnswer::Welcome { .. })));
    let clients = |world: &mut World| {
        let other = world.connect();
        match world.call(other, MasterCall::Stats) {
            Ok(MasterAnswer::Stats(stats)) => stats.clients,
            answer => panic!("{answer:?}"),
        }
    };
    world.now += 100 * LEASE;
    world.master.tick(world.now, &mut Vec::new());
    assert_eq!(clients(&mut world), 1);
    world.master.on_closed(conn);
    assert_eq!(clients(&mut world), 0);
}

#[test]
fn a_restarted_master_waits_one_lease_before_another_region_takes_a_rack() {
    let mut world = World::new();
    world.daemon(info(0, 1));
    world.crash();
    let thief = world.connect();
    let (id, answer) = world.submit(thief, MasterCall::JoinDaemon(info(0, 2)));
    assert_eq!(answer, None);
    assert!(world.commit().is_empty(), "it waits");
    let owner = world.daemon(info(0, 1));
    let mut out = Vec::new();
    world.now += 1;
    world.master.tick(world.now, &mut out);
    assert_eq!((out.len(), out[0].1.id), (1, id));
    assert_eq!(code(out.remove(0).1.answer), "denied");

    // The owner's daemon dies: it has a lease's time as well.
    let (_, answer) = world.submit(thief, MasterCall::JoinDaemon(info(0, 2)));
    assert_eq!(code(answer.unwrap()), "denied");
    world.master.on_closed(owner);
    assert_eq!(world.submit(thief, MasterCall::JoinDaemon(info(0, 2))).1, None);
    world.now += 1;
    world.master.tick(world.now, &mut out);
    assert!(world.commit().is_empty() && out.is_empty(), "it waits");
    world.daemon(info(0, 1));

    world.crash();
    let heir = world.connect();
    let (id, _) = world.submit(heir, MasterCall::JoinDaemon(info(0, 3)));
    // A master that was stopped itself has heard no daemon meanwhile.
    world.now += 100 * LEASE;
    world.master.tick(world.now, &mut out);
    assert!(world.commit().is_empty(), "it still waits");
    world.wait_for_a_lease();
    world.now += 1;
    world.master.tick(world.now, &mut out);
    let replies = world.commit();
    assert_eq!((replies.len(), replies[0].1.id), (1, id));
    assert!(matches!(replies[0].1.answer, Ok(MasterAnswer::Joined { .. })));
}

#[test]
fn a_rack_is_picked_only_if_it_is_alive_has_room_and_was_not_tried() {
    let mut world = World::new();
    let conns: Vec<ConnId> = (0..4).map(|rack| world.daemon(info(rack, 1))).collect();
    world.master.on_closed(conns[3]);
    assert!(world.call(conns[1], MasterCall::Heartbeat { frames_free: 2, accesses: 0 }).is_ok());
    let pick = |bytes, tried: &[u16]| MasterCall::PickRack {
        own: RackId(0),
        bytes,
        tried: tried.iter().map(|&rack| RackId(rack)).collect(),
    };
    for _ in 0..50 {
        match world.call(conns[0], pick(3 << 21, &[])) {
            Ok(MasterAnswer::Rack(info)) => assert_eq!(info.rack, RackId(2)),
            answer => panic!("{answer:?}"),
        }
    }
    match world.call(conns[0], pick(3 << 21, &[2])) {
        Err(Error::Full { bytes, free_bytes, .. }) => {
            assert_eq!((bytes, free_bytes), (3 << 21, 1002 << 21));
        }
        answer => panic!("{answer:?}"),
    }
    let lie = MasterCall::Heartbeat { frames_free: u32::MAX, accesses: 0 };
    assert!(world.call(conns[1], lie).is_ok());
    assert_eq!(code(world.call(conns[0], pick(u64::MAX, &[]))), "full");
    let tried = vec![0; usize::from(RACKS_MAX) + 1];
    assert_eq!(code(world.call(conns[0], pick(1, &tried))), "protocol");
}

#[test]
fn a_root_changes_only_from_what_is_expected_and_repeating_is_harmless() {
    let mut world = World::new();
    let conn = world.connect();
    let mut set = |name: &str, expected, addr| world.call(conn, set_root(name, expected, addr));
    let root = |addr| Ok(MasterAnswer::Root(GAddr(addr)));
    assert_eq!(set("a", 0, 5), root(5));
    assert_eq!(set("a", 0, 5), root(5), "again");
    assert_eq!(set("a", 0, 6), root(5), "not what was expected");
    assert_eq!(set("a", 5, 6), root(6));
    assert_eq!(set("b", 0, 0), root(0));
    assert_eq!(set("a", 6, 0), root(0), "removed");
    assert_eq!(code(set("", 0, 1)), "protocol");
    assert_eq!(code(set(&"n".repeat(ROOT_NAME_BYTES_MAX + 1), 0, 1)), "protocol");
    for n in 0..ROOTS_MAX {
        assert_eq!(set(&format!("root {n}"), 0, 9), root(9));
    }
    assert_eq!(code(set("one more", 0, 1)), "busy");
    assert_eq!(set("root 0", 9, 8), root(8), "a full table still changes");
    world.crash();
    let conn = world.connect();
    let get = |name: &str| MasterCall::GetRoot { name: name.into() };
    assert_eq!(world.call(conn, get("root 0")), root(8));
    assert_eq!(world.call(conn, get("a")), root(0));
}

#[test]
fn resolve_has_bounds_and_page_ids_never_repeat() {
    let mut world = World::new();
    let conn = world.daemon(info(0, 1));
    let resolve = |page, count| MasterCall::Resolve { page: PageId(page), count };
    assert!(world.call(conn, resolve(0, RESOLVE_PAGES_MAX)).is_ok());
    assert_eq!(world.call(conn, resolve(5, 0)), Ok(MasterAnswer::Homes(vec![])));
    assert_eq!(code(world.call(conn, resolve(0, RESOLVE_PAGES_MAX + 1))), "protocol");
    assert_eq!(code(world.call(conn, resolve(u64::MAX, 1))), "protocol");
    for count in [0, PAGE_ID_LEASE + 1] {
        assert_eq!(code(world.call(conn, MasterCall::LeasePageIds { count })), "protocol");
    }
    assert_eq!(world.page_ids(conn, PAGE_ID_LEASE), PageId(1));
    world.crash();
    let conn = world.daemon(info(0, 1));
    assert_eq!(world.page_ids(conn, 1), PageId(1 + PAGE_ID_LEASE));
}

#[test]
fn the_address_space_ends_with_a_typed_error() {
    let mut world = World::new();
    let conn = world.daemon(RackInfo { page_shift: 30, ..info(0, 1) });
    for _ in 0..(u64::MAX >> 30) / PAGE_ID_LEASE {
        world.page_ids(conn, PAGE_ID_LEASE);
    }
    let end = world.call(conn, MasterCall::LeasePageIds { count: PAGE_ID_LEASE });
    assert_eq!(code(end), "full");
}

#[test]
fn a_batch_has_a_bound_and_says_busy_beyond_it() {
    let mut world = World::new();
    let conn = world.connect();
    assert!(!world.master.batch_is_full());
    for _ in 0..MASTER_BATCH_COMMANDS_MAX {
        assert_eq!(world.submit(conn, set_root("a", 0, 0)).1, None);
    }
    assert!(world.master.batch_is_full());
    assert_eq!(code(world.submit(conn, set_root("a", 0, 0)).1.unwrap()), "busy");
    assert_eq!(world.commit().len(), MASTER_BATCH_COMMANDS_MAX);
    assert!(!world.master.batch_is_full());
}

#[test]
fn whoever_stepped_down_names_the_leader() {
    let mut world = World::new();
    let conn = world.connect();
    world.submit(conn, set_root("a", 0, 5));
    let mut out = Vec::new();
    world.master.step_down("elsewhere:1".into(), &mut out);
    let leader = || Err(Error::NotLeader { leader: "elsewhere:1".into() });
    assert_eq!(out[0].1.answer, leader());
    assert_eq!(world.call(conn, MasterCall::Stats), leader());
    assert!(world.commit().is_empty());
    assert_eq!(world.master.state().root("a"), GAddr(0));
}

#[test]
fn term_and_index_grow_and_are_in_every_answer() {
    let mut world = World::new();
    let conn = world.connect();
    for n in 0..5 {
        world.submit(conn, set_root("a", n, n + 1));
        let reply = world.commit().remove(0).1;
        assert_eq!((reply.term, reply.index), (1, n + 1));
    }
    world.crash();
    let state = world.master.state();
    assert_eq!((state.term(), state.index()), (2, 5));
}

#[test]
fn a_batch_that_was_not_stored_leaves_no_trace() {
    let mut world = World::new();
    let conn = world.daemon(info(0, 1));
    let page = world.page_ids(conn, 4);
    let before = world.disk.len();
    world.submit(conn, MasterCall::CommitPages { homes: vec![home(page, 0, 1)] });
    world.submit(conn, MasterCall::LeasePageIds { count: 3 });
    let batch = world.master.take_batch();
    assert_eq!(batch.len(), 2);
    let writes = world.master.apply(batch);
    assert!(writes.len() >= 2);
    world.crash();
    assert_eq!(world.disk.len(), before);
    assert_eq!(world.resolve(page), Resolved::Unmapped);
    let conn = world.daemon(info(0, 1));
    assert_eq!(world.page_ids(conn, 1), PageId(5));
}

#[test]
fn missing_foreign_and_damaged_records_are_typed_errors() {
    let mut world = World::new();
    let conn = world.daemon(info(0, 1));
    let page = world.page_ids(conn, 1);
    assert!(world.call(conn, MasterCall::CommitPages { homes: vec![home(page, 0, 1)] }).is_ok());
    assert!(world.call(conn, set_root("a", 0, 5)).is_ok());
    assert_eq!(world.disk.len(), 4, "one record of each table");
    assert!(load(&Disk::new()).is_err());
    for key in world.disk.keys() {
        let mut disk = world.disk.clone();
        disk.remove(key);
        assert!(load(&disk).is_err(), "without {key:?}");
        let value = &world.disk[key];
        for bit in 0..value.len() * 8 {
            let mut bad = value.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            disk.insert(key.clone(), bad);
            assert!(load(&disk).is_err(), "{key:?} bit {bit}");
        }
    }
}
