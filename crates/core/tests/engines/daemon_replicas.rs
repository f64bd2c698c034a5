//! Replicas in their home's engine: what waits for what, and for how long. The keeper is played by
//! the test; two real engines meet in the simulator.

use crate::daemon_world::travel::*;
use crate::daemon_world::{PAGE, Rig, kind_of};
use rackpool_core::replica::{Orders, Poll, ReplicaOrder};
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{GAddr, Generation, PageId, RackId, Result};

/// The client that writes, and the one that keeps replicas.
const WRITER: u32 = 0;
const KEEPER: u32 = 1;
/// Looks at the clock within a lease, at least.
const LOOKS: u32 = 100;

fn poll(rig: &mut Rig, number: u64) {
    let (rack, room, gone, made) = (RackId(1), 4, Vec::new(), Vec::new());
    rig.submit(KEEPER, Request::ReplicaPoll(Poll { number, rack, room, gone, made }));
}

/// What a client was answered by now.
fn answer(rig: &mut Rig, name: u32) -> Option<Result<Reply>> {
    rig.take_replies();
    rig.clients.get_mut(&name).unwrap().last.take()
}

/// Waits for an answer; how many turns that took.
fn wait(rig: &mut Rig, name: u32) -> (Result<Reply>, u32) {
    for turns in 0..10_000 {
        if let Some(reply) = answer(rig, name) {
            return (reply, turns);
        }
        rig.turn();
    }
    panic!("client {name} is not answered");
}

fn orders(rig: &mut Rig) -> Vec<ReplicaOrder> {
    match wait(rig, KEEPER).0 {
        Ok(Reply::ReplicaOrders(Orders { reset: false, orders })) => orders,
        other => panic!("{other:?}"),
    }
}

/// A page with an open replica; its keeper has asked for more.
fn shared(rig: &mut Rig) -> (GAddr, PageId) {
    rig.join(WRITER);
    rig.join_remote(KEEPER);
    let addr = rig.alloc(WRITER, PAGE, false);
    (addr, share(rig, addr))
}

/// Has a replica made and opened of the page at an address.
fn share(rig: &mut Rig, addr: GAddr) -> PageId {
    let page = home_of(rig, addr).page;
    poll(rig, 1);
    rig.submit(WRITER, Request::Replicate { page, to: RackId(1) });
    assert_eq!(wait(rig, WRITER).0, Ok(Reply::Replicas));
    assert!(matches!(orders(rig)[..], [ReplicaOrder::Fetch(home)] if home.page == page));
    poll(rig, 2);
    assert_eq!(orders(rig), [ReplicaOrder::Open(page)]);
    poll(rig, 3);
    page
}

fn is_shared(rig: &Rig, addr: GAddr) -> bool {
    Generation(rig.world.table_word(home_of(rig, addr).frame)).is_shared()
}

fn add(rig: &mut Rig, addr: GAddr) {
    rig.submit(WRITER, Request::FetchAdd { addr, n: 1 });
}

#[test]
fn a_write_waits_until_replicas_are_closed_and_follows_to_them() {
    let mut rig = Rig::new(8);
    let (addr, page) = shared(&mut rig);
    add(&mut rig, addr);
    assert_eq!(answer(&mut rig, WRITER), None, "the replica may be read");
    assert_eq!(orders(&mut rig), [ReplicaOrder::Close(page)]);
    assert_eq!(answer(&mut rig, WRITER), None, "no message said that it is closed");
    poll(&mut rig, 4);
    assert!(matches!(answer(&mut rig, WRITER), Some(Ok(Reply::Old { .. }))));
    let found = orders(&mut rig);
    let [ReplicaOrder::Update { offset: 0, data, .. }, ReplicaOrder::Open(opened)] = &found[..]
    else {
        panic!("{found:?}");
    };
    assert_eq!((data.0.len(), *opened), (8, page));
    // While the keeper has not asked again, it has not been told to open once more.
    add(&mut rig, addr);
    assert_eq!(answer(&mut rig, WRITER), None);
    poll(&mut rig, 5);
    assert_eq!(orders(&mut rig), [ReplicaOrder::Close(page)]);
    poll(&mut rig, 6);
    assert!(matches!(answer(&mut rig, WRITER), Some(Ok(Reply::Old { .. }))));
}

#[test]
fn a_shared_page_whose_table_word_lost_that_mark_is_shared_after_a_restart() {
    let mut rig = Rig::new(8);
    let (addr, _) = shared(&mut rig);
    rig.daemon = None;
    let home = home_of(&rig, addr);
    let word = Generation(rig.world.table_word(home.frame));
    rig.world.table_mem().poke(rackpool_core::layout::table_word(home.frame), word.plain().0);
    rig.start();
    assert!(is_shared(&rig, addr), "a replica may be read there");
    add(&mut rig, addr);
    assert_eq!(answer(&mut rig, WRITER), None, "until its lease is over");
}

#[test]
fn a_silent_keeper_is_waited_for_as_long_as_its_lease_and_then_begins_anew() {
    let mut rig = Rig::new(8);
    let (addr, page) = shared(&mut rig);
    add(&mut rig, addr);
    assert_eq!(orders(&mut rig), [ReplicaOrder::Close(page)]);
    let (reply, turns) = wait(&mut rig, WRITER);
    assert!(matches!(reply, Ok(Reply::Old { .. })), "{reply:?}");
    assert!((LOOKS..LOOKS + 10).contains(&turns), "{turns} turns");
    poll(&mut rig, 4);
    let reset = Orders { reset: true, orders: Vec::new() };
    assert_eq!(answer(&mut rig, KEEPER), Some(Ok(Reply::ReplicaOrders(reset))));
}

#[test]
fn a_home_that_starts_again_lets_nobody_write_before_the_lease_is_over() {
    let mut rig = Rig::new(8);
    let (addr, _) = shared(&mut rig);
    rig.clients.get_mut(&KEEPER).unwrap().pending = None;
    rig.daemon = None;
    rig.start();
    assert!(is_shared(&rig, addr));
    add(&mut rig, addr);
    let (reply, turns) = wait(&mut rig, WRITER);
    assert!(matches!(reply, Ok(Reply::Old { .. })), "{reply:?}");
    assert!(turns >= LOOKS, "{turns} turns");
    assert!(!is_shared(&rig, addr));
}

#[test]
fn what_is_freed_or_moved_has_no_replica_any_more() {
    for moves in [false, true] {
        let mut rig = Rig::new(8);
        let (addr, page) = shared(&mut rig);
        let request = match moves {
            true => {
                let generation = home_of(&rig, addr).generation;
                Request::MoveOut { page, generation }
            }
            false => Request::Free { addr, bytes: PAGE },
        };
        rig.submit(WRITER, request);
        assert_eq!(answer(&mut rig, WRITER), None, "it may be read");
        assert_eq!(orders(&mut rig), [ReplicaOrder::Drop(page)]);
        poll(&mut rig, 4);
        let (reply, turns) = wait(&mut rig, WRITER);
        assert!(reply.is_ok() && turns < LOOKS, "{reply:?} after {turns} turns");
    }
}

#[test]
fn what_is_freed_by_the_word_that_names_it_has_no_replica_any_more() {
    let mut rig = Rig::new(8);
    rig.join(WRITER);
    rig.join_remote(KEEPER);
    let word = rig.alloc(WRITER, 64, false);
    let addr = rig.alloc_into(WRITER, word, PAGE);
    let page = share(&mut rig, addr);
    rig.submit(WRITER, Request::FreeFrom { word, bytes: PAGE });
    assert_eq!(orders(&mut rig), [ReplicaOrder::Drop(page)]);
    (0..LOOKS / 2).for_each(|_| rig.turn());
    assert_eq!(answer(&mut rig, WRITER), None, "it may be read");
    poll(&mut rig, 4);
    let (reply, turns) = wait(&mut rig, WRITER);
    assert!(reply == Ok(Reply::Freed) && turns < LOOKS, "{reply:?} after {turns} turns");
}

#[test]
fn what_came_over_a_connection_that_has_ended_is_not_executed() {
    let mut rig = Rig::new(8);
    let (addr, page) = shared(&mut rig);
    rig.join_remote(2);
    let id = rig.clients[&2].id;
    rig.submit(2, Request::FetchAdd { addr, n: 5 });
    assert_eq!(orders(&mut rig), [ReplicaOrder::Close(page)]);
    let rackpool_core::daemon::ClientId::Remote(record) = id else { panic!("{id:?}") };
    rig.run(|daemon, _| daemon.leave_remote(record));
    rig.clients.get_mut(&2).unwrap().pending = None;
    add(&mut rig, addr);
    poll(&mut rig, 4);
    assert_eq!(wait(&mut rig, WRITER).0, Ok(Reply::Old { value: 0 }));
}

#[test]
fn an_allocation_has_the_pages_of_replicas_when_nothing_else_is_free() {
    let mut rig = Rig::new(8);
    rig.join(WRITER);
    rig.join(KEEPER);
    let directory = rig.alloc(KEEPER, PAGE, true);
    let room = Request::ReplicaRoom { home: RackId(1), directory };
    assert_eq!(rig.ask(KEEPER, room), Ok(Reply::ReplicaRoom { frames: 7 }));
    let kept: Vec<GAddr> = (0..6).map(|_| rig.alloc(KEEPER, PAGE, true)).collect();
    let counts = |rig: &Rig| {
        let daemon = rig.daemon.as_ref().unwrap();
        let stats = daemon.stats(&rig.world);
        (stats.frames_free, stats.replicas.frames, daemon.frames_available())
    };
    assert_eq!(counts(&rig), (1, 7, 8));
    let alloc = |pages: u64, owned| Request::Alloc { bytes: pages * PAGE, kind: kind_of(owned) };
    // One replica does not make room for another one, nor for the directory that names it.
    assert_eq!(rig.ask(KEEPER, alloc(2, true)).unwrap_err().code(), "full");
    assert_eq!(rig.ask(WRITER, alloc(8, false)).unwrap_err().code(), "full");
    assert_eq!(counts(&rig), (1, 7, 8), "nothing was taken in vain");
    assert!(matches!(rig.ask(WRITER, alloc(4, false)), Ok(Reply::Allocated { .. })));
    assert_eq!(counts(&rig), (0, 4, 4));
    let there = |addr: &&GAddr| {
        let page = rig.world.layout.pages.page(**addr);
        rig.world.master.pages.contains_key(&page.0)
    };
    assert!(there(&&directory));
    assert_eq!(kept.iter().filter(there).count(), 3);
}

#[test]
fn a_page_that_comes_has_the_frame_of_a_replica_when_nothing_else_is_free() {
    let mut rig = Rig::new(8);
    rig.join(WRITER);
    rig.join(KEEPER);
    let directory = rig.alloc(KEEPER, PAGE, true);
    let room = Request::ReplicaRoom { home: RackId(1), directory };
    rig.ask(KEEPER, room).unwrap();
    (0..3).for_each(|_| _ = rig.alloc(KEEPER, PAGE, true));
    rig.alloc(WRITER, 4 * PAGE, false);
    let stats = |rig: &Rig| {
        let stats = rig.daemon.as_ref().unwrap().stats(&rig.world);
        (stats.frames_free, stats.replicas.frames, stats.pages_moving)
    };
    assert_eq!(stats(&rig), (0, 4, 0));
    let move_in = |page| Request::MoveIn { page: PageId(page) };
    assert_eq!(rig.ask(KEEPER, move_in(9)).unwrap_err().code(), "full", "not for its keeper");
    rig.join(2);
    // Said again before there is a frame, as by a mover that lost its connection.
    rig.submit(WRITER, move_in(9));
    assert_eq!(answer(&mut rig, WRITER), None, "a replica gives way first");
    rig.clients.get_mut(&WRITER).unwrap().pending = None;
    rig.submit(WRITER, move_in(9));
    rig.submit(2, move_in(10));
    let frames = [WRITER, 2].map(|name| match wait(&mut rig, name).0 {
        Ok(Reply::Room { frame, .. }) => frame,
        other => panic!("{other:?}"),
    });
    assert_ne!(frames[0], frames[1]);
    assert_eq!(stats(&rig), (0, 2, 2), "no more were taken than are needed");
}
