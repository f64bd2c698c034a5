//! Runs with pages in several racks and words that name memory in another one, in the daemon's
//! engine: they are moved and freed, and no crash at any effect frees anything twice, leaves a page
//! without an owner, or takes a page of a run that begins elsewhere for a leftover. The other racks
//! are played by the test; two real engines meet in the simulator.

use crate::daemon_world::travel::*;
use crate::daemon_world::{PAGE, Rig};
use rackpool_core::constants::DEBTS_MAX;
use rackpool_core::layout::{DebtWord, debt_word, due_word};
use rackpool_core::seam::Mutation;
use rackpool_core::wire::{DeferredFree, PageMetadata, Reply, Request};
use rackpool_core::{Error, GAddr, PageId, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn code<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
    result.unwrap_err().code()
}

fn page_of(rig: &Rig, addr: GAddr) -> PageId {
    rig.world.layout.pages.page(addr)
}

fn at(addr: GAddr, pages: u64) -> GAddr {
    GAddr(addr.0 + pages * PAGE)
}

/// The run is freed in another rack, which has its first page.
fn freed_elsewhere(rig: &mut Rig, run: GAddr, pages: u64) {
    rig.live.remove(&run.0).expect("it was allocated");
    rig.words.remove(&run.0);
    for page in 0..pages {
        let page = page_of(rig, at(run, page));
        rig.world.master.orphan(page);
    }
    rig.quiesce();
}

/// A word of another rack named the allocation, and was freed there.
fn owed(rig: &mut Rig, addr: GAddr, bytes: u64, id: u64) {
    rig.live.remove(&addr.0).expect("it was allocated");
    rig.words.remove(&addr.0);
    rig.world.master.owed.insert(addr.0, DeferredFree { id, addr, bytes });
    rig.quiesce();
}

/// Frees what a word names in the other rack, as a client does.
fn free_apart(rig: &mut Rig, name: u32, word: GAddr, bytes: u64) {
    let Ok(Reply::Apart { addr }) = rig.ask(name, Request::FreeFrom { word, bytes }) else {
        panic!("the memory is elsewhere")
    };
    let reply = rig.ask(name, Request::FreeApart { word, addr, bytes });
    assert_eq!(reply, Ok(Reply::Freed));
}

/// Pages of runs go and come, their run is freed here and elsewhere.
fn runs_script(rig: &mut Rig) {
    rig.join(0);
    rig.join_remote(1);
    let run = rig.alloc(0, 4 * PAGE - 5, false);
    let second = send_away(rig, 0, at(run, 1));
    let last = send_away(rig, 1, at(run, 3));
    bring_back(rig, 0, &last);
    let first = send_away(rig, 0, run);
    bring_back(rig, 1, &first);
    rig.quiesce();
    rig.free(0, run, 4 * PAGE - 5);
    rig.quiesce();
    let told = &rig.world.master.orphans_elsewhere;
    assert!(told.iter().eq([&second.home.page.0]), "{told:?}");
    // A run with its first page elsewhere, through a restart.
    let run = rig.alloc(1, 3 * PAGE, false);
    let first = send_away(rig, 1, run);
    rig.daemon = None;
    rig.start();
    bring_back(rig, 0, &first);
    rig.quiesce();
    rig.verify();
    send_away(rig, 0, run);
    freed_elsewhere(rig, run, 3);
    rig.verify();
}

/// Words and what they name part, and are freed in either rack.
fn words_script(rig: &mut Rig) {
    rig.join(0);
    rig.join_remote(1);
    let word = rig.alloc(0, 64, false);
    let named = rig.alloc_into(0, word, PAGE / 2);
    let mut away = send_away(rig, 0, named);
    free_apart(rig, 1, word, PAGE / 2);
    away.keep.objects = vec![0];
    bring_back(rig, 0, &away);
    let run = rig.alloc_into(1, word, 2 * PAGE);
    send_away(rig, 1, run);
    free_apart(rig, 0, word, 2 * PAGE);
    rig.world.master.pages.remove(&page_of(rig, run).0);
    rig.world.master.orphan(PageId(page_of(rig, run).0 + 1));
    rig.quiesce();
    let addrs: Vec<GAddr> = rig.world.master.debts.iter().map(|debt| debt.addr).collect();
    assert_eq!(addrs, [named, run], "each is owed once");
    // The other way round: this rack has the memory.
    let object = rig.alloc(0, 64, false);
    owed(rig, object, 64, 1);
    let again = rig.alloc(0, 64, false);
    assert_eq!(again, object, "it was free");
    rig.quiesce();
    rig.verify();
    let run = rig.alloc(1, 3 * PAGE, false);
    let middle = send_away(rig, 0, at(run, 1));
    owed(rig, run, 3 * PAGE, 2);
    assert!(rig.world.master.orphans_elsewhere.contains(&middle.home.page.0));
    rig.verify();
}

fn crash_at_each_effect(script: fn(&mut Rig)) -> u64 {
    for at in 0.. {
        let mut crashed = false;
        for loses in [false, true] {
            let mut rig = Rig::new(12);
            rig.loses = loses;
            rig.world.fuse.arm(at);
            script(&mut rig);
            crashed |= rig.restarts > 0;
            rig.world.fuse.disarm();
            rig.finish();
        }
        if !crashed {
            println!("{at} effects");
            return at;
        }
    }
    unreachable!("a script has an end")
}

#[test]
fn a_crash_at_any_effect_frees_each_page_of_a_run_once_wherever_it_is() {
    assert!(crash_at_each_effect(runs_script) > 200);
}

#[test]
fn a_crash_at_any_effect_frees_what_a_word_named_elsewhere_once() {
    assert!(crash_at_each_effect(words_script) > 300);
}

#[test]
fn a_run_is_freed_where_its_first_page_is_and_nowhere_else() {
    let mut rig = Rig::new(12);
    rig.join(0);
    let run = rig.alloc(0, 3 * PAGE, false);
    let before = rig.daemon.as_ref().unwrap().stats(&rig.world);
    let first = send_away(&mut rig, 0, run);
    let stats = rig.daemon.as_ref().unwrap().stats(&rig.world);
    assert_eq!((before.allocations, stats.allocations), (1, 0));
    assert_eq!(stats.allocated_bytes, 2 * PAGE, "pages count where they are");
    let later = rig.live.clone();
    for (addr, bytes) in [(run, 3 * PAGE), (at(run, 1), 3 * PAGE), (at(run, 1), 2 * PAGE)] {
        assert_eq!(code(rig.ask(0, Request::Free { addr, bytes })), "bad-free");
        rig.live = later.clone();
        rig.words.insert(run.0, 0);
    }
    assert_eq!((first.keep.run_index, first.keep.run_more), (0, 2));
    bring_back(&mut rig, 0, &first);
    let middle = send_away(&mut rig, 0, at(run, 1));
    assert_eq!((middle.keep.run_index, middle.keep.run_more), (1, 0));
    rig.free(0, run, 3 * PAGE);
    rig.finish();
}

#[test]
fn a_page_that_makes_no_sense_in_its_run_is_refused() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let addr = rig.alloc(0, 2 * PAGE, false);
    let away = send_away(&mut rig, 0, at(addr, 1));
    let page = away.home.page;
    let Ok(Reply::Room { generation, .. }) = rig.ask(0, Request::MoveIn { page }) else {
        panic!("there is room")
    };
    for (run_index, run_more, shift) in [(1, 1, 0), (u32::MAX, 0, 0), (0, 1 << 16, 0), (1, 0, 6)] {
        let keep = PageMetadata { run_index, run_more, shift, ..away.keep.clone() };
        let commit = Request::MoveCommit { from: away.home, generation, keep };
        assert_eq!(code(rig.ask(0, commit)), "protocol", "{run_index} {run_more} {shift}");
    }
    rig.ask(0, Request::MoveSettle { page }).unwrap();
    bring_back(&mut rig, 0, &away);
    rig.finish();
}

#[test]
fn a_page_that_is_leaving_when_its_run_is_freed_goes_nowhere() {
    let mut rig = Rig::new(8);
    rig.join(0);
    rig.join(1);
    let run = rig.alloc(0, 3 * PAGE, false);
    let page = page_of(&rig, at(run, 2));
    assert!(matches!(move_out(&mut rig, 1, at(run, 2)), Ok(Reply::Shut { .. })));
    rig.free(0, run, 3 * PAGE);
    rig.quiesce();
    assert_eq!(settle(&mut rig, 1, page), Ok(Reply::Settled { here: false }));
    rig.finish();
}

#[test]
fn a_page_that_arrives_when_its_run_is_freed_is_given_up() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let run = rig.alloc(0, 3 * PAGE, false);
    let away = send_away(&mut rig, 0, at(run, 1));
    let page = away.home.page;
    let Ok(Reply::Room { generation, .. }) = rig.ask(0, Request::MoveIn { page }) else {
        panic!("there is room")
    };
    rig.free(0, run, 3 * PAGE);
    let commit = Request::MoveCommit { from: away.home, generation, keep: away.keep };
    assert_eq!(code(rig.ask(0, commit)), "stays");
    rig.finish();
}

#[test]
fn what_a_word_names_elsewhere_is_owed_in_the_step_that_clears_the_word() {
    let mut rig = Rig::new(12);
    rig.join(0);
    let word = rig.alloc(0, 64, false);
    let named = rig.alloc_into(0, word, PAGE);
    let away = send_away(&mut rig, 0, named);
    let other = GAddr(named.0 + 64);
    let wrong = Request::FreeApart { word, addr: other, bytes: PAGE };
    assert_eq!(code(rig.ask(0, wrong)), "occupied");
    let null = Request::FreeApart { word: at(word, 900), addr: named, bytes: PAGE };
    assert_eq!(code(rig.ask(0, null)), "not-mapped");
    let apart = Request::FreeApart { word, addr: named, bytes: PAGE };
    rig.submit(0, apart.clone());
    assert_eq!(rig.word(word), 0);
    let debt = rig.world.private_mem().peek(debt_word(0, DebtWord::Addr));
    assert_eq!(debt, named.0, "it is stored before the master hears of it");
    rig.settle();
    assert_eq!(rig.world.private_mem().peek(debt_word(0, DebtWord::Addr)), 0);
    assert_eq!(rig.world.master.debts.len(), 1);
    rig.world.master.pages.remove(&away.home.page.0);
    rig.finish();
}

#[test]
fn a_rack_that_owes_too_much_is_busy_and_keeps_its_words() {
    let mut rig = Rig::new(100);
    rig.join(0);
    let words = rig.alloc(0, 8 * (DEBTS_MAX as u64 + 1), false);
    rig.quiesce();
    rig.run(|daemon, _| daemon.master_down());
    for index in 0..=DEBTS_MAX as u64 {
        let word = GAddr(words.0 + 8 * index);
        let named = GAddr(1 << 40 | index << 12);
        let offset = rig.world.offset_of(word);
        rig.world.pages_mem().poke(offset, named.0);
        rig.submit(0, Request::FreeApart { word, addr: named, bytes: 64 });
        let left = if index < DEBTS_MAX as u64 { 0 } else { named.0 };
        assert_eq!(rig.word(word), left, "{index}");
        rig.take_replies();
        rig.clients.get_mut(&0).unwrap().pending = None;
    }
    let last = rig.clients.get_mut(&0).unwrap().last.take().expect("it is refused at once");
    assert!(matches!(last, Err(Error::Busy { limit, .. }) if limit == DEBTS_MAX as u64));
    rig.run(|daemon, world| daemon.master_up(world));
    rig.quiesce();
    assert_eq!(rig.world.master.debts.len(), DEBTS_MAX);
}

#[test]
fn memory_that_is_about_to_be_freed_for_another_rack_stays_and_is_free_only_then() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let object = rig.alloc(0, 64, false);
    let other = rig.alloc(0, 64, false);
    rig.live.remove(&object.0);
    rig.words.remove(&object.0);
    let orphan = DeferredFree { id: 9, addr: object, bytes: 64 };
    rig.world.master.owed.insert(object.0, orphan);
    // Its question is answered; the master has not heard that it is noted.
    let reply = rig.world.master.ripe().expect("the daemon asks at its start");
    rig.run(|daemon, world| daemon.on_master(1, reply, world));
    assert_eq!(rig.world.private_mem().peek(due_word(0, DebtWord::Addr)), object.0);
    assert_eq!(code(move_out(&mut rig, 0, other)), "stays");
    let live = rig.daemon.as_ref().unwrap().stats(&rig.world).allocations;
    assert_eq!(live, 2, "no other client can have it");
    rig.quiesce();
    assert_eq!(rig.world.private_mem().peek(due_word(0, DebtWord::Addr)), 0);
    assert!(matches!(move_out(&mut rig, 0, other), Ok(Reply::Shut { .. })));
    let page = page_of(&rig, other);
    settle(&mut rig, 0, page).unwrap();
    // What is owed and not there is forgotten.
    rig.world.master.owed.insert(object.0, DeferredFree { id: 10, ..orphan });
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
fn each_safeguard_of_frees_in_several_racks_is_needed() {
    bites(Mutation::ForgetApart, |rig| {
        rig.join(0);
        let run = rig.alloc(0, 2 * PAGE, false);
        send_away(rig, 0, at(run, 1));
        rig.free(0, run, 2 * PAGE);
    });
    bites(Mutation::ForgetDebt, |rig| {
        rig.join(0);
        let word = rig.alloc(0, 64, false);
        let named = rig.alloc_into(0, word, PAGE);
        let away = send_away(rig, 0, named);
        free_apart(rig, 0, word, PAGE);
        rig.quiesce();
        assert_eq!(rig.world.master.debts.len(), 1);
        rig.world.master.pages.remove(&away.home.page.0);
    });
    bites(Mutation::DropStrayPage, |rig| {
        rig.join(0);
        let run = rig.alloc(0, 2 * PAGE, false);
        let first = send_away(rig, 0, run);
        rig.daemon = None;
        rig.start();
        bring_back(rig, 0, &first);
    });
}

#[test]
fn a_page_alone_is_a_page_alone_wherever_it_goes() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let addr = rig.alloc(0, PAGE, false);
    let away = send_away(&mut rig, 0, addr);
    assert_eq!((away.keep.run_index, away.keep.run_more), (0, 0));
    bring_back(&mut rig, 0, &away);
    rig.free(0, addr, PAGE);
    rig.finish();
}
