//! Racks with memory that is divided among several daemons, as the master sees them: each shard is
//! a member of its own, and where a rack is meant they count together.

use crate::master_world::*;
use rackpool_core::constants::RACKS_MAX;
use rackpool_core::wire::*;
use rackpool_core::{Error, RackId};

fn shard(rack: u16, shard: u16, shards: u16) -> RackId {
    RackId::sharded(rack, shard, shards).unwrap()
}

fn join(rack: RackId, frames_free: u32) -> RackInfo {
    let control = format!("control-{rack}");
    RackInfo { rack, frames_free, control, ..info(rack.0, 1) }
}

fn answered(answer: rackpool_core::Result<MasterAnswer>) -> RackInfo {
    match answer {
        Ok(MasterAnswer::Rack(info)) => info,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rack_named_by_its_number_is_a_live_shard_with_most_room() {
    let mut world = World::new();
    let client = world.connect();
    let nobody = world.call(client, MasterCall::Rack { rack: RackId(3) });
    assert!(matches!(nobody, Err(Error::NoSuchRack { .. })));
    let first = world.daemon(join(shard(3, 0, 3), 10));
    let second = world.daemon(join(shard(3, 1, 3), 30));
    world.daemon(join(shard(3, 2, 3), 20));
    let named = |world: &mut World, rack| answered(world.call(client, MasterCall::Rack { rack }));
    assert_eq!(named(&mut world, RackId(3)).rack, shard(3, 1, 3));
    assert_eq!(named(&mut world, shard(3, 0, 3)).rack, shard(3, 0, 3), "a shard is itself");
    world.master.on_closed(second);
    assert_eq!(named(&mut world, RackId(3)).rack, shard(3, 2, 3));
    let dead = named(&mut world, shard(3, 1, 3));
    assert!(!dead.alive, "who asks for the dead one hears that it is dead");
    world.master.on_closed(first);
    let Ok(MasterAnswer::Racks(all)) = world.call(client, MasterCall::Racks) else { panic!() };
    assert_eq!(
        all.iter().map(|one| one.rack.to_string()).collect::<Vec<_>>(),
        ["3.0", "3.1", "3.2"]
    );
}

#[test]
fn a_rack_keeps_the_number_of_its_shards() {
    let mut world = World::new();
    let first = world.daemon(join(shard(3, 0, 2), 10));
    for other in [RackId(3), shard(3, 1, 3), shard(3, 0, 4)] {
        let conn = world.connect();
        let refused = world.call(conn, MasterCall::JoinDaemon(join(other, 10)));
        assert_eq!(code(refused), "bad-region", "{other}");
    }
    // Also when all its daemons are long dead, and when the master forgot which were alive.
    world.master.on_closed(first);
    world.wait_for_a_lease();
    world.crash();
    let conn = world.connect();
    assert_eq!(code(world.call(conn, MasterCall::JoinDaemon(join(RackId(3), 10)))), "bad-region");
    world.daemon(join(shard(3, 1, 2), 10));
    world.daemon(join(RackId(4), 10));
    for wrong in [RackId::NONE, RackId(1 << 10), RackId(2 << 10 | 1 << 13)] {
        let conn = world.connect();
        assert_eq!(code(world.call(conn, MasterCall::JoinDaemon(join(wrong, 1)))), "denied");
    }
}

#[test]
fn shards_count_as_racks_of_the_pool() {
    let mut world = World::new();
    for rack in 0..RACKS_MAX / 2 {
        world.daemon(join(shard(rack, 0, 2), 1));
        world.daemon(join(shard(rack, 1, 2), 1));
    }
    let conn = world.connect();
    let refused = world.call(conn, MasterCall::JoinDaemon(join(RackId(RACKS_MAX - 1), 1)));
    assert_eq!(code(refused), "busy");
    // One of them comes back.
    let conn = world.connect();
    let again = world.call(conn, MasterCall::JoinDaemon(join(shard(7, 1, 2), 1)));
    assert!(matches!(again, Ok(MasterAnswer::Joined { .. })), "{again:?}");
}

#[test]
fn another_rack_is_picked_by_the_sum_of_its_shards_and_never_a_sibling() {
    let mut world = World::new();
    for (rack, frames_free) in [(shard(0, 0, 2), 1), (shard(0, 1, 2), 900), (RackId(1), 0)] {
        world.daemon(join(rack, frames_free));
    }
    let shards = [shard(2, 0, 2), shard(2, 1, 2)];
    world.daemon(join(shards[0], 40));
    world.daemon(join(shards[1], 50));
    let client = world.connect();
    let page_bytes = 2 << 20;
    let mut pick = |own, pages: u64, tried: &[RackId]| {
        let (bytes, tried) = (pages * page_bytes, tried.to_vec());
        world.call(client, MasterCall::PickRack { own, bytes, tried })
    };
    assert_eq!(answered(pick(shard(0, 0, 2), 1, &[])).rack, shards[1], "it has more room");
    assert_eq!(answered(pick(shard(0, 0, 2), 1, &shards[1..])).rack, shards[0]);
    assert_eq!(code(pick(shard(0, 0, 2), 1, &shards)), "full");
    assert_eq!(code(pick(shard(0, 0, 2), 60, &[])), "full", "one shard has to hold it");
    assert_eq!(answered(pick(RackId::NONE, 60, &[])).rack, shard(0, 1, 2));
}

#[test]
fn moves_are_for_other_racks_only() {
    let mut world = World::new();
    let first = world.daemon(join(shard(0, 0, 2), 10));
    world.daemon(join(shard(0, 1, 2), 10));
    world.daemon(join(RackId(1), 10));
    let page = world.page_ids(first, 1);
    let at = PageHome { rack: shard(0, 0, 2), ..home(page, 0, 5) };
    let commit = MasterCall::CommitPages { homes: vec![at] };
    assert_eq!(world.call(first, commit), Ok(MasterAnswer::Done));
    let (one, two) = (world.connect(), world.connect());
    // No mover claims a page that is to go where it is, by whatever name.
    for to in [shard(0, 0, 2), shard(0, 1, 2), RackId(0)] {
        for conn in [one, two] {
            let answer = world.call(conn, MasterCall::BeginMove { page, to });
            assert_eq!(answer, Ok(MasterAnswer::Homes(vec![Resolved::Home(at)])), "{to}");
        }
    }
    let begin = MasterCall::BeginMove { page, to: RackId(1) };
    assert!(world.call(one, begin.clone()).is_ok());
    assert_eq!(code(world.call(two, begin)), "stays");
    let nowhere = MasterCall::BeginMove { page, to: RackId(5) };
    assert_eq!(code(world.call(one, nowhere)), "no-such-rack");
}
