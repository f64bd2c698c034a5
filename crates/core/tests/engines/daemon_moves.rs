//! Moves of pages in the daemon's engine: what leaves and what stays, what waits, what gives up,
//! and that no crash at any effect loses a page, doubles it or keeps a frame without a page. The
//! other rack and the mover are played by the test; two real engines meet in the simulator.

use crate::daemon_world::travel::*;
use crate::daemon_world::{PAGE, Rig};
use rackpool_core::constants::{CELLS, SLOTS_MAX};
use rackpool_core::layout::table_word;
use rackpool_core::seam::{Mem, Mutation, Race};
use rackpool_core::wire::{PageHome, PageMetadata, Reply, Request};
use rackpool_core::{GAddr, Generation, PageId, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A stopped reader's cell.
const CELL: usize = (SLOTS_MAX * CELLS - 1) as usize;
fn code<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
    result.unwrap_err().code()
}

/// Whole pages and slab pages go and come, are taken back, and are given up by dead movers.
fn script(rig: &mut Rig) {
    rig.join(0);
    rig.join_remote(1);
    let whole = rig.alloc(0, PAGE, false);
    let small = rig.alloc(0, 64, false);
    let other = rig.alloc(0, 64, false);
    rig.ask(0, Request::FetchAdd { addr: small, n: 5 }).ok();
    for addr in [whole, small] {
        let away = send_away(rig, 0, addr);
        bring_back(rig, 1, &away);
    }
    rig.quiesce();
    rig.verify();
    rig.free(1, other, 64);
    // Taken back: no mover committed.
    let page = home_of(rig, whole).page;
    if move_out(rig, 1, whole).is_ok() {
        assert_eq!(settle(rig, 1, page), Ok(Reply::Settled { here: true }));
    }
    // Given up by a mover that dies, on both sides.
    rig.join(2);
    move_out(rig, 2, whole).ok();
    rig.ask(2, Request::MoveIn { page: PageId(5) }).ok();
    rig.kill(2);
    rig.quiesce();
    rig.verify();
}

#[test]
fn a_crash_at_any_effect_of_a_move_loses_nothing_doubles_nothing_and_leaks_nothing() {
    let mut effects = 0;
    for at in 0.. {
        let mut crashed = false;
        for loses in [false, true] {
            let mut rig = Rig::new(8);
            rig.loses = loses;
            rig.world.fuse.arm(at);
            script(&mut rig);
            crashed |= rig.restarts > 0;
            rig.world.fuse.disarm();
            rig.finish();
        }
        if !crashed {
            effects = at;
            break;
        }
    }
    println!("{effects} effects");
    assert!(effects > 300, "the script has only {effects} effects");
}

#[test]
fn what_may_not_leave_stays_and_says_why() {
    let mut rig = Rig::new(16);
    rig.join(0);
    rig.join(1);
    let owned = rig.alloc(0, PAGE, true);
    let locked = rig.alloc(0, PAGE, false);
    let free = rig.alloc(0, PAGE, false);
    let lock = Request::Lock { addr: GAddr(locked.0 + 128), lines: 1, write: true, wait_ms: 1000 };
    rig.ask(1, lock).unwrap();
    let run = rig.alloc(0, 2 * PAGE, false);
    for (addr, why) in [(owned, "session"), (locked, "lock")] {
        let error = move_out(&mut rig, 0, addr).unwrap_err();
        assert_eq!(error.code(), "stays");
        assert!(error.to_string().contains(why), "{error}");
    }
    let page = home_of(&rig, free).page;
    let stale = Request::MoveOut { page, generation: Generation(1) };
    assert_eq!(code(rig.ask(0, stale)), "stays");
    assert_eq!(code(rig.ask(0, Request::MoveIn { page })), "stays");
    let untaken = rig.world.consumed.clone();
    rig.world.consumed.iter_mut().for_each(|(_, seq)| *seq = 0);
    for last in [run, GAddr(run.0 + PAGE)] {
        let stays = code(move_out(&mut rig, 1, last));
        assert_eq!(stays, "stays", "the last allocation may come back");
    }
    rig.world.consumed = untaken;
    assert!(matches!(move_out(&mut rig, 1, free), Ok(Reply::Shut { .. })));
    assert_eq!(code(move_out(&mut rig, 0, free)), "stays", "another move is under way");
    assert!(matches!(move_out(&mut rig, 1, free), Ok(Reply::Shut { .. })), "asked again");
    assert_eq!(settle(&mut rig, 1, page), Ok(Reply::Settled { here: true }));
}

#[test]
fn a_page_that_leaves_is_refused_to_old_keys_and_searches_wait_for_its_end() {
    let mut rig = Rig::new(8);
    (0..3).for_each(|name| rig.join(name));
    let addr = rig.alloc(0, PAGE, false);
    let PageHome { page, frame, generation, .. } = home_of(&rig, addr);
    let Ok(Reply::Shut { key, .. }) = move_out(&mut rig, 0, addr) else { panic!("it leaves") };
    assert_ne!(key, generation);
    assert_eq!(rig.world.table_word(frame), key.0);
    let lock = Request::Lock { addr, lines: 1, write: true, wait_ms: 0 };
    assert_eq!(code(rig.ask(2, lock)), "moving");
    rig.submit(1, Request::Resolve { page, count: 1 });
    rig.take_replies();
    assert!(rig.clients[&1].pending.is_some(), "the search waits");
    assert_eq!(settle(&mut rig, 0, page), Ok(Reply::Settled { here: true }));
    let home = home_of(&rig, addr);
    assert_eq!(rig.clients[&1].last, Some(Ok(Reply::Homes(vec![home]))));
    assert!(home.generation > key, "the key is of no use any more");
    assert!(rig.world.fuse.answers.races.borrow().contains(&Race::SearchParked));
}

#[test]
fn a_reader_that_is_stopped_keeps_its_page_where_it_is() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let addr = rig.alloc(0, PAGE, false);
    let home = home_of(&rig, addr);
    rig.world.cells[CELL] = u64::from(home.frame.0) + 1;
    assert_eq!(code(move_out(&mut rig, 0, addr)), "stays");
    assert_eq!(home_of(&rig, addr), home);
    assert_eq!(rig.world.table_word(home.frame), home.generation.0, "cached places are good");
    rig.world.cells[CELL] = 0;
    rig.finish();
}

#[test]
fn a_mover_that_falls_silent_is_not_waited_for() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let addr = rig.alloc(0, PAGE, false);
    let page = home_of(&rig, addr).page;
    let Ok(Reply::Shut { key, .. }) = move_out(&mut rig, 0, addr) else { panic!("it leaves") };
    rig.ask(0, Request::MoveIn { page: PageId(9) }).unwrap();
    rig.quiesce();
    let home = home_of(&rig, addr);
    assert!(home.generation > key);
    assert_eq!(rig.ask(0, Request::MoveSettle { page }), Ok(Reply::Settled { here: true }));
    assert!(rig.world.fuse.answers.races.borrow().contains(&Race::MoveTooSlow));
    rig.finish();
}

#[test]
fn a_commit_that_comes_too_late_or_makes_no_sense_is_refused() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let addr = rig.alloc(0, PAGE / 4, false);
    let away = send_away(&mut rig, 0, addr);
    let page = away.home.page;
    let Ok(Reply::Room { generation, .. }) = rig.ask(0, Request::MoveIn { page }) else {
        panic!("there is room")
    };
    let commit = |keep: PageMetadata, generation| {
        let from = away.home;
        Request::MoveCommit { from, generation, keep }
    };
    let wrong_shift = PageMetadata { shift: 63, ..away.keep.clone() };
    let too_short = PageMetadata { objects: Vec::new(), ..away.keep.clone() };
    let past_end = PageMetadata { objects: vec![u64::MAX], ..away.keep.clone() };
    let token = PageMetadata { lock_token: u64::MAX, ..away.keep.clone() };
    for keep in [wrong_shift, too_short, past_end, token] {
        assert_eq!(code(rig.ask(0, commit(keep, generation))), "protocol");
    }
    let stale = Generation(generation.0 - 1);
    assert_eq!(code(rig.ask(0, commit(away.keep.clone(), stale))), "stays");
    // The old home took the page back meanwhile.
    let taken_back = PageHome { generation: Generation(5), ..away.home };
    rig.world.master.pages.insert(page.0, taken_back);
    assert_eq!(code(rig.ask(0, commit(away.keep.clone(), generation))), "stays");
    assert!(rig.world.fuse.answers.races.borrow().contains(&Race::ArrivalRefused));
    rig.world.master.pages.insert(page.0, away.home);
    bring_back(&mut rig, 0, &away);
    rig.finish();
}

#[test]
fn fencing_tokens_grow_when_a_page_comes() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let addr = rig.alloc(0, PAGE, false);
    let mut away = send_away(&mut rig, 0, addr);
    away.keep.lock_token = 41;
    bring_back(&mut rig, 0, &away);
    let lock = Request::Lock { addr, lines: 1, write: true, wait_ms: 0 };
    assert_eq!(rig.ask(0, lock), Ok(Reply::Locked { token: 42 }));
    assert_eq!(rig.ask(0, Request::Unlock { addr, token: 42 }), Ok(Reply::Held { held: true }));
    rig.finish();
}

#[test]
fn a_frame_for_a_page_that_nobody_was_given_is_refused() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let addr = rig.alloc(0, PAGE, false);
    let next = PageId(home_of(&rig, addr).page.0 + 1);
    for page in [PageId(0), next, PageId(u64::MAX)] {
        assert_eq!(code(rig.ask(0, Request::MoveIn { page })), "protocol", "{page}");
    }
    let after = rig.alloc(0, PAGE, false);
    assert_eq!(home_of(&rig, after).page, next);
    rig.finish();
}

#[test]
fn a_full_rack_takes_no_page() {
    let mut rig = Rig::new(2);
    rig.join(0);
    rig.alloc(0, 2 * PAGE, false);
    assert_eq!(code(rig.ask(0, Request::MoveIn { page: PageId(9) })), "full");
    rig.finish();
}

/// Whether the scenario goes wrong without a safeguard; with it, it must not.
fn bites(mutation: Mutation, scenario: impl Fn(&mut Rig)) {
    let fails = |mutation: Option<Mutation>| {
        let run = || {
            let mut rig = Rig::new(8);
            rig.world.fuse.answers.mutation.set(mutation);
            scenario(&mut rig);
            rig.world.fuse.disarm();
            rig.finish();
        };
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    assert!(!fails(None), "the scenario itself is right");
    assert!(fails(Some(mutation)), "{} changes nothing", mutation.name());
}

#[test]
fn each_safeguard_of_a_move_is_needed() {
    bites(Mutation::LeavePageOpen, |rig| {
        rig.join(0);
        let addr = rig.alloc(0, PAGE, false);
        let home = home_of(rig, addr);
        move_out(rig, 0, addr).unwrap();
        assert_ne!(rig.world.table_word(home.frame), home.generation.0);
    });
    bites(Mutation::CopyBeforeDrained, |rig| {
        rig.join(0);
        let addr = rig.alloc(0, PAGE, false);
        rig.world.cells[CELL] = u64::from(home_of(rig, addr).frame.0) + 1;
        assert_eq!(code(move_out(rig, 0, addr)), "stays");
        rig.world.cells[CELL] = 0;
    });
    bites(Mutation::MoveLockedPage, |rig| {
        rig.join(0);
        let addr = rig.alloc(0, PAGE, false);
        rig.ask(0, Request::Lock { addr, lines: 1, write: true, wait_ms: 0 }).unwrap();
        assert_eq!(code(move_out(rig, 0, addr)), "stays");
    });
    bites(Mutation::MoveUntakenPage, |rig| {
        rig.join(0);
        rig.join(1);
        let addr = rig.alloc(0, PAGE, false);
        rig.world.consumed.iter_mut().for_each(|(_, seq)| *seq = 0);
        assert_eq!(code(move_out(rig, 1, addr)), "stays");
        rig.world.consumed.insert(0, 1);
    });
    bites(Mutation::TakeBackUnasked, |rig| {
        rig.join(0);
        let addr = rig.alloc(0, PAGE, false);
        let away = send_away(rig, 0, addr);
        bring_back(rig, 0, &away);
    });
    bites(Mutation::GiveAwayUnasked, |rig| {
        rig.join(0);
        let addr = rig.alloc(0, PAGE, false);
        let page = home_of(rig, addr).page;
        move_out(rig, 0, addr).unwrap();
        assert_eq!(settle(rig, 0, page), Ok(Reply::Settled { here: true }));
    });
    for (mutation, bytes) in
        [(Mutation::HomeBeforeCommit, PAGE), (Mutation::ForgetObjects, PAGE / 4)]
    {
        bites(mutation, |rig| {
            rig.join(0);
            let addr = rig.alloc(0, bytes, false);
            let away = send_away(rig, 0, addr);
            bring_back(rig, 0, &away);
            rig.verify();
        });
    }
}

#[test]
fn an_attach_that_does_not_ask_loses_or_doubles_pages() {
    bites(Mutation::ForgetDeparture, |rig| {
        rig.join(0);
        let addr = rig.alloc(0, PAGE, false);
        let from = home_of(rig, addr);
        move_out(rig, 0, addr).unwrap();
        let words = words_of_frame(rig, from.frame);
        let home = PageHome { rack: ELSEWHERE, generation: Generation(1 << 40), ..from };
        rig.world.master.swap(from, home);
        rig.daemon = None;
        rig.start();
        rig.quiesce();
        assert_eq!(settle(rig, 0, from.page), Ok(Reply::Settled { here: false }));
        bring_back(rig, 0, &Away { home, keep: PageMetadata::default(), words });
    });
    bites(Mutation::ForgetArrival, |rig| {
        rig.join(0);
        let addr = rig.alloc(0, PAGE, false);
        let away = send_away(rig, 0, addr);
        let page = away.home.page;
        rig.ask(0, Request::MoveIn { page }).unwrap();
        rig.daemon = None;
        rig.start();
        rig.quiesce();
        assert_eq!(settle(rig, 0, page), Ok(Reply::Settled { here: false }));
        bring_back(rig, 0, &away);
    });
}

/// A move from before the daemon's start belongs to no session, but a client may have asked for its
/// end.
#[test]
fn an_answer_that_a_dead_client_waited_for_goes_to_nobody_else() {
    for leaves in [true, false] {
        let mut rig = Rig::new(8);
        rig.join(0);
        let addr = rig.alloc(0, PAGE, false);
        let name = rig.alloc(0, 64, false);
        let lock = |wait_ms| Request::Lock { addr: name, lines: 1, write: true, wait_ms };
        rig.ask(0, lock(0)).unwrap();
        let page = if leaves {
            move_out(&mut rig, 0, addr).unwrap();
            home_of(&rig, addr).page
        } else {
            let page = send_away(&mut rig, 0, addr).home.page;
            rig.ask(0, Request::MoveIn { page }).unwrap();
            page
        };
        rig.daemon = None;
        rig.start();
        rig.join(1);
        rig.submit(1, Request::MoveSettle { page });
        let dead = rig.clients[&1].id;
        rig.kill(1);
        rig.join(2);
        assert_eq!(rig.clients[&2].id, dead, "the slot of the dead one");
        // It waits for a lock, with the number of the dead one's request.
        rig.submit(2, lock(u64::MAX));
        (0..100).for_each(|_| rig.turn());
        rig.take_replies();
        assert_eq!(rig.clients[&2].last, None, "the request was another one");
        rig.ask(0, Request::Unlock { addr: name, token: 0 }).unwrap();
        assert!(matches!(rig.clients[&2].last, Some(Ok(Reply::Locked { .. }))));
        assert!(settle(&mut rig, 0, page).is_ok(), "the move is over");
    }
}

#[test]
fn the_table_names_no_frame_whose_page_is_elsewhere() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let addr = rig.alloc(0, PAGE, false);
    let frame = home_of(&rig, addr).frame;
    let away = send_away(&mut rig, 0, addr);
    assert_eq!(rig.world.table_mem().load(table_word(frame)), 0);
    let lock = Request::Lock { addr, lines: 1, write: true, wait_ms: 0 };
    assert_eq!(code(rig.ask(0, lock)), "not-mapped");
    bring_back(&mut rig, 0, &away);
    rig.finish();
}
