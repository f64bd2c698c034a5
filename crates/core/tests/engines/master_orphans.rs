//! What the master keeps of frees that concern several racks: which racks are told, what waits, and
//! that nothing is forgotten by a restart, told twice, or told to the wrong rack.

use crate::master_world::*;
use rackpool_core::constants::*;
use rackpool_core::master::ConnId;
use rackpool_core::wire::*;
use rackpool_core::{GAddr, Generation, PageId, RackId, Result};

const SHIFT: u32 = 21;

/// Two racks, and a run of three pages that begins in rack 0; its second page is in rack 1.
fn a_run_in_two_racks() -> (World, [ConnId; 2], PageId) {
    let mut world = World::new();
    let daemons = [world.daemon(info(0, 1)), world.daemon(info(1, 1))];
    let first = world.page_ids(daemons[0], 3);
    let homes: Vec<PageHome> = (0..3).map(|n| home(PageId(first.0 + n), 0, n + 1)).collect();
    let commit = MasterCall::CommitPages { homes: homes.clone() };
    assert_eq!(world.call(daemons[0], commit), Ok(MasterAnswer::Done));
    let to = home(homes[1].page, 1, 7);
    let moved = world.call(daemons[1], MasterCall::MovePage { from: homes[1], to });
    assert_eq!(moved, Ok(MasterAnswer::Homes(vec![Resolved::Home(to)])));
    (world, daemons, first)
}

fn addr(page: PageId) -> GAddr {
    GAddr(page.0 << SHIFT)
}

fn orphans(pages: &[PageId], allocations: &[DeferredFree]) -> MasterAnswer {
    MasterAnswer::Orphans { pages: pages.to_vec(), allocations: allocations.to_vec() }
}

/// Asks without expecting an answer now.
fn park(world: &mut World, conn: ConnId, call: MasterCall) -> u64 {
    let (id, answer) = world.submit(conn, call);
    assert_eq!(answer, None);
    id
}

/// A mutating call; all answers that come with it.
fn answers(world: &mut World, conn: ConnId, call: MasterCall) -> Vec<(u64, Result<MasterAnswer>)> {
    park(world, conn, call);
    world.commit().into_iter().map(|(_, reply)| (reply.id, reply.answer)).collect()
}

fn remove(rack: u16, pages: &[PageId]) -> MasterCall {
    MasterCall::RemovePages { rack: RackId(rack), pages: pages.to_vec() }
}

#[test]
fn a_page_of_a_freed_run_is_told_to_its_home_and_awaited_until_that_has_shut_it() {
    let (mut world, [zero, one], first) = a_run_in_two_racks();
    let second = PageId(first.0 + 1);
    let asked = park(&mut world, one, MasterCall::NextOrphans);
    let orphan = MasterCall::OrphanPages { first, pages: vec![second] };
    let said = answers(&mut world, zero, orphan.clone());
    assert_eq!(said[1..], [(asked, Ok(orphans(&[second], &[])))], "at once");
    assert_eq!(world.resolve(second), Resolved::Unmapped);
    let gone = MasterCall::AwaitGone { addr: addr(first), bytes: 3 << SHIFT };
    let waits = park(&mut world, zero, gone.clone());
    world.call(zero, remove(0, &[first, PageId(first.0 + 2)])).unwrap();
    // The run's home repeats itself, another rack says that it was its own: nothing changes.
    assert_eq!(world.call(zero, orphan), Ok(MasterAnswer::Done));
    let two = world.daemon(info(2, 1));
    world.call(two, remove(2, &[second])).unwrap();
    let asked = world.call(one, MasterCall::NextOrphans);
    assert_eq!(asked, Ok(orphans(&[second], &[])), "until it has done it");
    let said = answers(&mut world, one, remove(1, &[second]));
    assert_eq!(said[1..], [(waits, Ok(MasterAnswer::Done))]);
    assert_eq!(world.call(zero, gone), Ok(MasterAnswer::Done));
    park(&mut world, one, MasterCall::NextOrphans);
}

#[test]
fn only_the_home_of_the_first_page_gives_pages_up_and_only_those_of_a_run() {
    let (mut world, [zero, one], first) = a_run_in_two_racks();
    let second = PageId(first.0 + 1);
    let call = |first, page| MasterCall::OrphanPages { first, pages: vec![page] };
    assert_eq!(world.call(one, call(first, second)), Ok(MasterAnswer::Done));
    assert!(matches!(world.resolve(second), Resolved::Home(_)), "it has not the first page");
    for page in [first, PageId(first.0 + u64::from(RUN_PAGES_MAX)), PageId(0)] {
        assert_eq!(code(world.call(zero, call(first, page))), "protocol");
    }
    let guest = world.connect();
    for call in [
        call(first, second),
        MasterCall::NextOrphans,
        MasterCall::AwaitGone { addr: addr(first), bytes: 1 },
        MasterCall::FreeElsewhere { debts: Vec::new() },
        MasterCall::OrphansTaken { orphans: Vec::new() },
    ] {
        assert_eq!(code(world.call(guest, call)), "protocol");
    }
    let many = vec![DeferredFree { id: 1, addr: addr(first), bytes: 1 }; DEBTS_MAX + 1];
    assert_eq!(code(world.call(zero, MasterCall::FreeElsewhere { debts: many })), "protocol");
}

#[test]
fn what_is_owed_is_taken_over_once_and_told_where_its_page_is() {
    let (mut world, [zero, one], first) = a_run_in_two_racks();
    let second = PageId(first.0 + 1);
    let debt = DeferredFree { id: 5, addr: addr(second), bytes: 64 };
    let pay = |debts: &[DeferredFree]| MasterCall::FreeElsewhere { debts: debts.to_vec() };
    let told = DeferredFree { id: 1, ..debt };
    let asked = park(&mut world, one, MasterCall::NextOrphans);
    let said = answers(&mut world, zero, pay(&[debt]));
    assert_eq!(said[1..], [(asked, Ok(orphans(&[], &[told])))]);
    // The page goes on: its new home is told, its old one not any more.
    let Resolved::Home(from) = world.resolve(second) else { panic!("it lives") };
    let to = PageHome { generation: Generation(77), ..home(second, 0, 9) };
    world.call(zero, MasterCall::MovePage { from, to }).unwrap();
    park(&mut world, one, MasterCall::NextOrphans);
    assert_eq!(world.call(zero, MasterCall::NextOrphans), Ok(orphans(&[], &[told])));
    let waits = park(&mut world, one, MasterCall::AwaitGone { addr: debt.addr, bytes: 64 });
    let wrong = DeferredFree { id: 9, ..told };
    world.call(zero, MasterCall::OrphansTaken { orphans: vec![wrong] }).unwrap();
    assert_eq!(world.call(zero, MasterCall::NextOrphans), Ok(orphans(&[], &[told])));
    let taken = MasterCall::OrphansTaken { orphans: vec![told] };
    assert_eq!(answers(&mut world, zero, taken).len(), 1, "it is noted, and lives");
    // Said again, it is known: a new allocation at the same address stays.
    world.call(zero, pay(&[debt])).unwrap();
    park(&mut world, zero, MasterCall::NextOrphans);
    let next = DeferredFree { id: 6, ..debt };
    world.call(zero, pay(&[debt, next])).unwrap();
    let told = DeferredFree { id: 2, ..debt };
    assert_eq!(world.call(zero, MasterCall::NextOrphans), Ok(orphans(&[], &[told])));
    // What is owed by two is freed once; what is nowhere is not owed.
    let lost = DeferredFree { id: 1, addr: addr(PageId(first.0 + 90)), bytes: 64 };
    world.call(one, pay(&[lost, DeferredFree { id: 2, ..debt }])).unwrap();
    assert_eq!(world.call(zero, MasterCall::NextOrphans), Ok(orphans(&[], &[told])));
    let said = answers(&mut world, zero, remove(0, &[second]));
    assert_eq!(said[1..], [(waits, Ok(MasterAnswer::Done))], "its page is gone");
    park(&mut world, zero, MasterCall::NextOrphans);
}

#[test]
fn a_restarted_master_tells_the_same() {
    let (mut world, [zero, _], first) = a_run_in_two_racks();
    let second = PageId(first.0 + 1);
    let debt = DeferredFree { id: 3, addr: addr(PageId(first.0 + 2)), bytes: 1 << SHIFT };
    world.call(zero, MasterCall::FreeElsewhere { debts: vec![debt] }).unwrap();
    world.call(zero, MasterCall::OrphanPages { first, pages: vec![second] }).unwrap();
    world.crash();
    let (zero, one) = (world.daemon(info(0, 1)), world.daemon(info(1, 1)));
    assert_eq!(world.call(one, MasterCall::NextOrphans), Ok(orphans(&[second], &[])));
    let told = DeferredFree { id: 1, ..debt };
    assert_eq!(world.call(zero, MasterCall::NextOrphans), Ok(orphans(&[], &[told])));
    world.call(zero, MasterCall::OrphansTaken { orphans: vec![told] }).unwrap();
    world.call(one, remove(1, &[second])).unwrap();
    world.call(zero, MasterCall::FreeElsewhere { debts: vec![debt] }).unwrap();
    world.crash();
    let (zero, one) = (world.daemon(info(0, 1)), world.daemon(info(1, 1)));
    park(&mut world, zero, MasterCall::NextOrphans);
    park(&mut world, one, MasterCall::NextOrphans);
}

#[test]
fn what_was_in_a_region_that_is_gone_is_nobodys() {
    let (mut world, [zero, one], first) = a_run_in_two_racks();
    let (second, third) = (PageId(first.0 + 1), PageId(first.0 + 2));
    let Resolved::Home(from) = world.resolve(third) else { panic!("it lives") };
    let to = home(third, 1, 8);
    world.call(one, MasterCall::MovePage { from, to }).unwrap();
    let debt = DeferredFree { id: 1, addr: addr(third), bytes: 64 };
    world.call(zero, MasterCall::FreeElsewhere { debts: vec![debt] }).unwrap();
    world.call(zero, MasterCall::OrphanPages { first, pages: vec![second] }).unwrap();
    let gone = MasterCall::AwaitGone { addr: addr(second), bytes: 2 << SHIFT };
    let waits = park(&mut world, zero, gone);
    world.master.on_closed(one);
    world.wait_for_a_lease();
    world.now += 1;
    world.master.tick(world.now, &mut Vec::new());
    let one = world.connect();
    let said = answers(&mut world, one, MasterCall::JoinDaemon(info(1, 2)));
    assert_eq!(said[1..], [(waits, Ok(MasterAnswer::Done))]);
    park(&mut world, one, MasterCall::NextOrphans);
    assert_eq!(world.resolve(third), Resolved::Lost(RackId(1)));
    world.crash();
}
