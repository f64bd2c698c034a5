//! A rack with a spill file, in its daemon's engine: more pages than there is memory, a crash at
//! every effect, a file that fails, and what stays in memory.

use crate::daemon_images::is_thorough;
use crate::daemon_world::travel::home_of;
use crate::daemon_world::{Crash, PAGE, Rig, kind_of};
use rackpool_core::constants::{CELLS, NS_PER_SECOND, SLOTS_MAX};
use rackpool_core::layout::{FrameWord, frame_word};
use rackpool_core::seam::Mutation;
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{Error, GAddr, Result};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The last cell, of a reader that has stopped.
const CELL: usize = (SLOTS_MAX * CELLS - 1) as usize;
const MEMORY: u32 = 4;
const SLOTS: u32 = 16;

fn spilling() -> Rig {
    let mut rig = Rig::with_spill(MEMORY, SLOTS);
    rig.join(0);
    rig
}

fn is_spilled(rig: &Rig, addr: GAddr) -> bool {
    home_of(rig, addr).frame.0 >= MEMORY
}

/// How many allocations are in slots.
fn spilled(rig: &Rig) -> usize {
    rig.live.keys().filter(|addr| is_spilled(rig, GAddr(**addr))).count()
}

fn search(rig: &mut Rig, addr: GAddr) -> Result<Reply> {
    let page = rig.world.layout.pages.page(addr);
    rig.ask(0, Request::Resolve { page, count: 1 })
}

/// Whether an access finds the page.
fn is_open(rig: &Rig, addr: GAddr) -> bool {
    let home = home_of(rig, addr);
    rig.world.table_word(home.frame) == home.generation.0
}

/// Has a page in memory, and what was written into it is there. A page that was just about to go is
/// shut when its search is answered: its client searches again.
fn read(rig: &mut Rig, addr: GAddr) {
    for _ in 0..100 {
        let found = search(rig, addr);
        let Ok(Reply::Homes(homes)) = found else { panic!("{addr}: {found:?}") };
        if !homes.is_empty() && is_open(rig, addr) {
            let (live, word) = (rig.live[&addr.0].clone(), rig.words[&addr.0]);
            let at = rig.world.offset_of(addr);
            for offset in (0..live.bytes.min(PAGE)).step_by(8) {
                let written = live.tag << 32 | (addr.0 + offset) & 0xffff_ffff;
                let wanted = if offset == 0 { word } else { written };
                assert_eq!(rig.world.pages_mem().peek(at + offset), wanted, "{addr} + {offset}");
            }
            return;
        }
    }
    panic!("{addr} never comes back");
}

fn read_all(rig: &mut Rig) {
    let all: Vec<u64> = rig.live.keys().copied().collect();
    all.into_iter().for_each(|addr| read(rig, GAddr(addr)));
}

/// Frees what may be in a slot: a client that hears `moving` searches and tries again.
fn free(rig: &mut Rig, addr: GAddr) {
    let (live, word) = (rig.live[&addr.0].clone(), rig.words[&addr.0]);
    for _ in 0..100 {
        match rig.ask(0, Request::Free { addr, bytes: live.bytes }) {
            Ok(Reply::Freed) => return,
            Err(Error::Moving { .. }) => {
                rig.live.insert(addr.0, live.clone());
                rig.words.insert(addr.0, word);
                read(rig, addr);
            }
            other => panic!("{addr}: {other:?}"),
        }
    }
    panic!("{addr} is never freed");
}

/// Frees all but one page, and looks whether anything is missing.
fn finish(mut rig: Rig) {
    rig.quiesce();
    read_all(&mut rig);
    let all: Vec<u64> = rig.live.keys().copied().collect();
    all.into_iter().skip(1).for_each(|addr| free(&mut rig, GAddr(addr)));
    read_all(&mut rig);
    rig.quiesce();
    let used = rig.world.spill.used();
    assert_eq!(used, 0, "slots without a page are punched");
    rig.finish();
}

fn alloc_pages(rig: &mut Rig, count: usize) -> Vec<GAddr> {
    (0..count).map(|_| rig.alloc(0, PAGE, false)).collect()
}

#[test]
fn a_rack_holds_more_pages_than_it_has_memory_and_gives_each_byte_back() {
    let mut rig = spilling();
    let pages = alloc_pages(&mut rig, 15);
    assert!(spilled(&rig) >= 11, "{} pages are in slots", spilled(&rig));
    for addr in pages.iter().chain(pages.iter().rev()) {
        read(&mut rig, *addr);
    }
    let stats = rig.daemon.as_ref().unwrap().stats(&rig.world);
    assert_eq!((stats.allocations, stats.allocated_bytes), (15, 15 * PAGE));
    let report = rig.daemon.as_ref().unwrap().tier_report();
    let tiers: Vec<_> = report.tiers.iter().map(|tier| (tier.node, tier.frames)).collect();
    assert_eq!(tiers, [(0, u64::from(MEMORY)), (u16::MAX, u64::from(SLOTS))]);
    // The next daemon finds all of them.
    rig.start();
    read_all(&mut rig);
    finish(rig);
}

#[test]
fn no_access_finds_a_slot_and_what_cannot_wait_has_the_page_come_back() {
    let mut rig = spilling();
    let pages = alloc_pages(&mut rig, 8);
    let away = *pages.iter().find(|addr| is_spilled(&rig, **addr)).unwrap();
    let frame = home_of(&rig, away).frame;
    assert_eq!(rig.world.table_word(frame), 0);
    // An atomic at the home.
    let refused = rig.ask(0, Request::CheckFree { addr: away, bytes: PAGE });
    assert_eq!(refused, Err(Error::Moving { addr: away, retries: 0 }));
    rig.quiesce();
    assert!(!is_spilled(&rig, away), "its asker tries again");
    finish(rig);
}

#[test]
fn objects_in_slots_are_counted_and_freed_as_those_in_memory() {
    let mut rig = spilling();
    let small: Vec<GAddr> = (0..3).map(|_| rig.alloc(0, 64, false)).collect();
    let pages = alloc_pages(&mut rig, 8);
    assert!(is_spilled(&rig, small[0]), "the coldest page has the objects");
    let stats = rig.daemon.as_ref().unwrap().stats(&rig.world);
    assert_eq!((stats.allocations, stats.frames_slab), (11, 1));
    assert_eq!(stats.allocated_bytes, 8 * PAGE + 3 * 64);
    rig.start();
    let stats = rig.daemon.as_ref().unwrap().stats(&rig.world);
    assert_eq!((stats.allocations, stats.allocated_bytes), (11, 8 * PAGE + 3 * 64));
    free(&mut rig, small[1]);
    // A new object has a page in memory.
    let more = rig.alloc(0, 64, false);
    assert!(!is_spilled(&rig, more));
    pages.into_iter().for_each(|addr| free(&mut rig, addr));
    finish(rig);
}

#[test]
fn a_run_is_freed_with_its_pages_in_slots() {
    let mut rig = spilling();
    let run = rig.alloc(0, 3 * PAGE, false);
    alloc_pages(&mut rig, 6);
    let of_run = |rig: &Rig| (0..3).filter(|i| is_spilled(rig, GAddr(run.0 + i * PAGE))).count();
    assert!(of_run(&rig) > 0);
    free(&mut rig, run);
    finish(rig);
}

/// Pages go and come back, and are freed.
fn script(rig: &mut Rig) {
    let small = rig.alloc(0, 64, false);
    let pages = alloc_pages(rig, 5);
    for addr in [small, pages[0], pages[3]] {
        read(rig, addr);
    }
    free(rig, pages[1]);
    read_all(rig);
}

/// The script with a crash at an effect; false if it has fewer effects.
fn crashes_at(at: u64, loses: bool, mutation: Option<Mutation>) -> bool {
    let mut rig = Rig::with_spill(3, 6);
    rig.join(0);
    rig.world.fuse.answers.mutation.set(mutation);
    rig.loses = loses;
    rig.world.fuse.arm(at);
    script(&mut rig);
    let crashed = rig.restarts > 0;
    rig.world.fuse.disarm();
    finish(rig);
    crashed
}

/// From one effect to the next that is tried, unless all are: most are words of pages.
fn stride() -> usize {
    if is_thorough() { 1 } else { 19 }
}

#[test]
fn a_crash_at_any_effect_loses_no_page_and_leaks_none() {
    let crashes = |at: &u64| [false, true].map(|loses| crashes_at(*at, loses, None)) != [false; 2];
    let effects = (0..).step_by(stride()).take_while(crashes).count();
    println!("{effects} crashes");
    assert!(effects * stride() > 4000, "{effects} crashes");
}

#[test]
fn each_safeguard_is_needed() {
    let fails = |mutation, at| {
        let run = || crashes_at(at, false, Some(mutation));
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    for mutation in [Mutation::SkipSeal, Mutation::FreeSlotEarly, Mutation::DropArrival] {
        let found = (0..4000).any(|at| fails(mutation, at));
        assert!(found, "{} changes nothing", mutation.name());
    }
    let open = || {
        let mut rig = spilling();
        rig.world.fuse.answers.mutation.set(Some(Mutation::OpenSpilledPage));
        let pages = alloc_pages(&mut rig, 8);
        let away = *pages.iter().find(|addr| is_spilled(&rig, **addr)).unwrap();
        rig.world.table_word(home_of(&rig, away).frame)
    };
    assert_ne!(open(), 0, "{} changes nothing", Mutation::OpenSpilledPage.name());
}

/// The power goes at an effect of the script, of a rack with memory that persists; whether it came
/// to that.
fn power_goes_at(at: u64, mutation: Option<Mutation>) -> bool {
    let mut rig = Rig::spilling_that_persists(3, 6);
    rig.join(0);
    rig.world.fuse.answers.mutation.set(mutation);
    rig.world.power_seed = at % 3;
    rig.world.fuse.arm(at);
    let ended = catch_unwind(AssertUnwindSafe(|| script(&mut rig)));
    rig.world.fuse.disarm();
    let has_crashed = match ended {
        Ok(()) => false,
        Err(cause) if cause.is::<Crash>() => true,
        Err(cause) => resume_unwind(cause),
    };
    rig.lose_power();
    rig.join(0);
    rig.quiesce();
    read_all(&mut rig);
    let all: Vec<u64> = rig.live.keys().copied().collect();
    all.into_iter().for_each(|addr| free(&mut rig, GAddr(addr)));
    rig.quiesce();
    // One request was under way.
    assert!(rig.world.spill.used() <= 1, "{} slots are in use", rig.world.spill.used());
    has_crashed
}

#[test]
fn a_loss_of_power_at_any_effect_loses_no_page_of_memory_that_persists() {
    let effects = (0..).step_by(stride()).take_while(|at| power_goes_at(*at, None)).count();
    println!("{effects} losses");
    assert!(effects * stride() > 4000, "{effects} losses");
    let is_noticed = |at| {
        let early = Some(Mutation::AcknowledgeUnpersisted);
        catch_unwind(|| power_goes_at(at, early)).is_err()
    };
    assert!((0..4000).any(is_noticed), "pages that come back hang on being made durable");
}

fn io_error() -> Error {
    Error::Io { what: "the spill file".into(), reason: "Input/output error".into() }
}

#[test]
fn a_file_that_cannot_be_written_leaves_the_pages_in_memory() {
    let mut rig = spilling();
    rig.world.spill.error = Some(io_error());
    let pages = alloc_pages(&mut rig, MEMORY as usize);
    let refused = rig.ask(0, Request::Alloc { bytes: PAGE, kind: kind_of(false) });
    assert_eq!(refused.unwrap_err().code(), "full");
    assert_eq!(spilled(&rig), 0);
    pages.iter().for_each(|addr| read(&mut rig, *addr));
    rig.world.spill.error = None;
    rig.now += 2 * NS_PER_SECOND;
    rig.turn();
    alloc_pages(&mut rig, 3);
    finish(rig);
}

#[test]
fn a_page_that_cannot_be_read_is_an_error_and_stays() {
    let mut rig = spilling();
    let pages = alloc_pages(&mut rig, 8);
    let away = *pages.iter().find(|addr| is_spilled(&rig, **addr)).unwrap();
    rig.quiesce();
    rig.world.spill.error = Some(io_error());
    assert_eq!(search(&mut rig, away), Err(io_error()));
    assert!(is_spilled(&rig, away));
    rig.world.spill.error = None;
    read(&mut rig, away);
    finish(rig);
}

#[test]
fn a_slot_with_other_bytes_is_no_page() {
    let found = |mutation| {
        let mut rig = spilling();
        rig.world.fuse.answers.mutation.set(mutation);
        let pages = alloc_pages(&mut rig, 8);
        rig.quiesce();
        let away = *pages.iter().find(|addr| is_spilled(&rig, **addr)).unwrap();
        let slot = home_of(&rig, away).frame.0 - MEMORY;
        rig.world.spill.damage(slot);
        search(&mut rig, away).map(|_| ()).map_err(|error| error.code())
    };
    assert_eq!(found(None), Err("io"));
    assert_eq!(found(Some(Mutation::TrustSlot)), Ok(()), "without the look it is taken for one");
}

#[test]
fn a_slow_file_keeps_no_page_shut() {
    let mut rig = spilling();
    let pages = alloc_pages(&mut rig, MEMORY as usize - 1);
    rig.world.spill.is_slow = true;
    rig.submit(0, Request::Alloc { bytes: 2 * PAGE, kind: kind_of(false) });
    for _ in 0..200 {
        rig.turn();
    }
    rig.world.spill.is_slow = false;
    rig.settle();
    rig.quiesce();
    pages.iter().for_each(|addr| read(&mut rig, *addr));
    finish(rig);
}

#[test]
fn without_a_master_nothing_is_spilled() {
    let mut rig = spilling();
    alloc_pages(&mut rig, MEMORY as usize - 1);
    rig.quiesce();
    let begun = rig.world.spill.begun;
    rig.run(|daemon, _| daemon.master_down());
    for _ in 0..20 {
        rig.turn();
    }
    assert_eq!(rig.world.spill.begun, begun);
    rig.run(|daemon, world| daemon.master_up(world));
    finish(rig);
}

#[test]
fn pages_that_a_user_does_not_let_go_of_stay_and_requests_hear_that_it_is_full() {
    let mut rig = spilling();
    // The pages that are in memory are pinned.
    let pages = alloc_pages(&mut rig, MEMORY as usize);
    rig.quiesce();
    let in_memory: Vec<GAddr> =
        pages.iter().copied().filter(|addr| !is_spilled(&rig, *addr)).collect();
    for (index, addr) in in_memory.iter().enumerate() {
        rig.world.cells[CELL - index] = u64::from(home_of(&rig, *addr).frame.0) + 1;
    }
    let bytes = u64::from(MEMORY) * PAGE;
    let refused = rig.ask(0, Request::Alloc { bytes, kind: kind_of(false) });
    assert_eq!(refused.unwrap_err().code(), "full");
    in_memory.iter().for_each(|addr| assert!(!is_spilled(&rig, *addr)));
    (0..in_memory.len()).for_each(|index| rig.world.cells[CELL - index] = 0);
    finish(rig);
}

#[test]
fn more_than_memory_and_slots_hold_is_full_at_once() {
    let mut rig = spilling();
    let bytes = u64::from(MEMORY + 1) * PAGE;
    let refused = rig.ask(0, Request::Alloc { bytes, kind: kind_of(false) });
    assert_eq!(refused.unwrap_err().code(), "full", "a run is in memory when it is made");
    let before = rig.restarts;
    let all = (MEMORY + SLOTS) as usize;
    for _ in 0..all + 4 {
        if rig.ask(0, Request::Alloc { bytes: PAGE, kind: kind_of(false) }).is_err() {
            break;
        }
    }
    assert!(rig.live.len() >= all - 1, "{} of {all} pages", rig.live.len());
    assert_eq!(rig.restarts, before);
    finish(rig);
}

#[test]
fn what_a_session_owns_is_not_spilled() {
    let mut rig = spilling();
    let owned = rig.alloc(0, PAGE, true);
    alloc_pages(&mut rig, 8);
    assert!(!is_spilled(&rig, owned));
    let state = frame_word(home_of(&rig, owned).frame, FrameWord::State);
    assert_eq!(rig.world.private_mem().peek(state) & 0xff, 2);
    finish(rig);
}

/// Pages, objects and a run, of which most are in slots; then the machine starts again.
fn rebooted(effects: Option<u64>) -> Rig {
    let mut rig = spilling();
    rig.alloc(0, 64, false);
    alloc_pages(&mut rig, 9);
    rig.quiesce();
    let in_slots = spilled(&rig);
    assert!(in_slots >= 6, "{in_slots} in slots");
    rig.reboot(effects);
    assert_eq!(rig.live.len(), in_slots);
    rig
}

#[test]
fn after_a_reboot_pages_in_slots_are_back_with_each_byte_and_no_others() {
    let mut rig = rebooted(None);
    rig.join(0);
    rig.quiesce();
    assert!(!rig.world.spill.is_adopting, "it is told that they are");
    let stats = rig.daemon.as_ref().unwrap().stats(&rig.world);
    assert_eq!(stats.allocations, rig.live.len() as u64);
    read_all(&mut rig);
    alloc_pages(&mut rig, 6);
    finish(rig);
}

#[test]
fn a_crash_at_any_effect_of_an_adoption_loses_none_of_them() {
    let crashes = |at: u64| {
        let mut rig = rebooted(Some(at));
        rig.join(0);
        rig.quiesce();
        let crashed = rig.world.fuse.burnt.get();
        rig.world.fuse.disarm();
        assert!(!rig.world.spill.is_adopting);
        read_all(&mut rig);
        finish(rig);
        crashed
    };
    let effects = (0..).take_while(|at| crashes(*at)).count();
    println!("{effects} effects");
    assert!(effects > 50, "an adoption has only {effects} effects");
}

#[test]
fn what_the_directory_does_not_have_in_a_slot_is_given_back() {
    let mut rig = spilling();
    alloc_pages(&mut rig, 9);
    rig.quiesce();
    let gone = rig.live.keys().copied().find(|addr| is_spilled(&rig, GAddr(*addr))).unwrap();
    let page = rig.world.layout.pages.page(GAddr(gone));
    rig.world.master.pages.remove(&page.0);
    rig.reboot(None);
    rig.join(0);
    rig.quiesce();
    assert_eq!(rig.world.spill.used(), rig.live.len());
    finish(rig);
}
