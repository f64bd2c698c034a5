//! A rack with several memories, in its daemon's engine: where memory comes from, and pages that
//! move between them, with a crash at every effect.

use crate::daemon_world::travel::home_of;
use crate::daemon_world::{PAGE, RACK, Rig, kind_of};
use rackpool_core::constants::{CELLS, NS_PER_SECOND, SLOTS_MAX};
use rackpool_core::heat::{Counts, PageUse};
use rackpool_core::policy::{CostParams, MigrationPolicy};
use rackpool_core::seam::Mutation;
use rackpool_core::tier::Tier;
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{Error, GAddr, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A stopped reader's cell.
const CELL: usize = (SLOTS_MAX * CELLS - 1) as usize;

/// Six frames near, two far.
fn two_memories() -> Rig {
    let mut rig = Rig::with_tiers(8, &[(0, 3), (2, 1)]);
    rig.join(0);
    rig
}

fn ask_in(rig: &mut Rig, tier: Tier, bytes: u64) -> Result<Reply> {
    rig.ask(0, Request::AllocIn { bytes, kind: kind_of(false), tier })
}

fn alloc_in(rig: &mut Rig, tier: Tier, bytes: u64) -> GAddr {
    match ask_in(rig, tier, bytes) {
        Ok(Reply::Allocated { addr }) => addr,
        other => panic!("{bytes} bytes in {tier}: {other:?}"),
    }
}

fn tier_of(rig: &Rig, addr: GAddr) -> u8 {
    rig.world.tiers.of(home_of(rig, addr).frame.0).unwrap()
}

fn moved(rig: &Rig) -> u64 {
    rig.daemon.as_ref().unwrap().tier_report().moved
}

/// The pages of addresses are used; what that moves has moved afterwards.
fn use_often(rig: &mut Rig, addrs: &[GAddr], reads: u32) {
    rig.now += 2 * NS_PER_SECOND;
    let now = rig.now;
    rig.run(|daemon, _| daemon.note_time(now));
    let pages = addrs.iter().map(|addr| rig.world.layout.pages.page(*addr));
    let pages = pages.map(|page| PageUse { page, counts: Counts { reads, writes: 0 } }).collect();
    rig.ask(0, Request::NoteUse { pages }).unwrap();
    rig.quiesce();
}

fn count_use(rig: &mut Rig) {
    rig.run(|daemon, _| daemon.set_policy(MigrationPolicy::Cost(CostParams::default())));
}

#[test]
fn memory_comes_from_the_tier_that_is_named_or_not_at_all() {
    let mut rig = two_memories();
    let far = [Tier::Far, Tier::Number(1)].map(|tier| alloc_in(&mut rig, tier, PAGE));
    assert_eq!(far.map(|addr| tier_of(&rig, addr)), [1, 1]);
    let refused = ask_in(&mut rig, Tier::Far, 64);
    let place = format!("tier far of rack {RACK}");
    assert_eq!(refused, Err(Error::Full { bytes: 64, free_bytes: 0, place }));
    assert_eq!(ask_in(&mut rig, Tier::Number(2), 64).unwrap_err().code(), "full");
    // The frames before the far ones are still there, also for the next daemon.
    rig.start();
    let near = rig.alloc(0, 4 * PAGE, false);
    assert_eq!(tier_of(&rig, near), 0);
    alloc_in(&mut rig, Tier::Near, 2 * PAGE);
    assert_eq!(ask_in(&mut rig, Tier::Near, PAGE).unwrap_err().code(), "full");
    let report = match rig.ask(0, Request::Stats) {
        Ok(Reply::TieredStats(_, report)) => report,
        other => panic!("{other:?}"),
    };
    let free = report.tiers.iter().map(|tier| (tier.node, tier.frames, tier.frames_free));
    assert_eq!(free.collect::<Vec<_>>(), [(0, 6, 0), (2, 2, 0)]);
    rig.free(0, far[0], PAGE);
    alloc_in(&mut rig, Tier::Far, 64);
    rig.finish();
}

#[test]
fn memory_without_a_tier_is_near_as_long_as_there_is_some() {
    let mut rig = two_memories();
    let far = alloc_in(&mut rig, Tier::Far, 64);
    let near = rig.alloc(0, 64, false);
    assert_eq!((tier_of(&rig, far), tier_of(&rig, near)), (1, 0));
    rig.alloc(0, 5 * PAGE, false);
    // The near slab page has room, a page of another class has not.
    let more = [64, 256].map(|bytes| rig.alloc(0, bytes, false));
    assert_eq!(more.map(|addr| tier_of(&rig, addr)), [0, 1]);
    let far_again = alloc_in(&mut rig, Tier::Far, 64);
    assert_eq!(home_of(&rig, far_again).frame, home_of(&rig, far).frame);
    rig.finish();
}

#[test]
fn a_run_may_lie_in_two_tiers() {
    let mut rig = two_memories();
    let run = rig.alloc(0, 7 * PAGE, false);
    assert_eq!((tier_of(&rig, run), tier_of(&rig, GAddr(run.0 + 6 * PAGE))), (0, 1));
    rig.finish();
}

#[test]
fn a_hot_page_comes_near_and_a_cold_one_makes_room() {
    let mut rig = two_memories();
    count_use(&mut rig);
    let hot = alloc_in(&mut rig, Tier::Far, PAGE);
    use_often(&mut rig, &[hot], 7);
    assert_eq!((tier_of(&rig, hot), moved(&rig)), (1, 0), "too few accesses");
    use_often(&mut rig, &[hot], 100);
    assert_eq!((tier_of(&rig, hot), moved(&rig)), (0, 1));
    let mut pages = vec![hot];
    pages.extend((0..5).map(|_| rig.alloc(0, PAGE, false)));
    let other = alloc_in(&mut rig, Tier::Far, 64);
    for _ in 0..3 {
        use_often(&mut rig, &[other], 1000);
    }
    assert_eq!((tier_of(&rig, other), moved(&rig)), (0, 3));
    assert_eq!(pages.iter().filter(|addr| tier_of(&rig, **addr) == 1).count(), 1);
    // A page that is as hot as those in the nearer memory stays.
    pages.push(other);
    use_often(&mut rig, &pages, 1000);
    assert_eq!(moved(&rig), 3);
    let stats = rig.daemon.as_ref().unwrap().stats(&rig.world);
    assert_eq!((stats.pages_came, stats.pages_went), (0, 0));
    rig.finish();
}

/// Whole pages and slab pages come near, with users and frees meanwhile.
fn script(rig: &mut Rig) {
    rig.join(1);
    let whole = alloc_in(rig, Tier::Far, PAGE);
    let small = alloc_in(rig, Tier::Far, 64);
    rig.ask(1, Request::FetchAdd { addr: small, n: 5 }).ok();
    for addr in [whole, small] {
        // What was known of use is forgotten in a crash.
        count_use(rig);
        use_often(rig, &[addr], 100);
        rig.verify();
    }
    rig.ask(1, Request::FetchAdd { addr: small, n: 7 }).ok();
    rig.free(1, whole, PAGE);
}

/// The script with a crash at an effect; false if it has fewer effects.
fn crashes_at(at: u64, loses: bool, mutation: Option<Mutation>) -> bool {
    let mut rig = two_memories();
    rig.world.fuse.answers.mutation.set(mutation);
    rig.loses = loses;
    rig.world.fuse.arm(at);
    script(&mut rig);
    let crashed = rig.restarts > 0;
    assert!(crashed || moved(&rig) == 2);
    rig.world.fuse.disarm();
    rig.finish();
    crashed
}

#[test]
fn a_crash_at_any_effect_of_a_move_between_tiers_loses_nothing_and_leaks_nothing() {
    let crashes = |at: &u64| [false, true].map(|loses| crashes_at(*at, loses, None)) != [false; 2];
    let effects = (0..).take_while(crashes).count();
    println!("{effects} effects");
    assert!(effects > 200, "the script has only {effects} effects");
}

#[test]
fn each_safeguard_of_a_move_between_tiers_is_needed() {
    let fails = |mutation, at| {
        let run = || crashes_at(at, false, Some(mutation));
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    assert!(fails(Mutation::SkipTierCopy, u64::MAX), "a page without its bytes");
    assert!((0..2000).any(|at| fails(Mutation::DropArrival, at)), "a page given up unasked");
}

#[test]
fn without_a_master_no_page_is_shut() {
    let mut rig = two_memories();
    count_use(&mut rig);
    let hot = alloc_in(&mut rig, Tier::Far, PAGE);
    rig.run(|daemon, _| daemon.master_down());
    use_often(&mut rig, &[hot], 100);
    assert_eq!((tier_of(&rig, hot), moved(&rig)), (1, 0));
    rig.run(|daemon, world| daemon.master_up(world));
    use_often(&mut rig, &[hot], 100);
    assert_eq!((tier_of(&rig, hot), moved(&rig)), (0, 1));
    rig.finish();
}

#[test]
fn a_page_that_a_user_touches_stays_and_is_not_copied() {
    let stays = |mutation: Option<Mutation>| {
        let mut rig = two_memories();
        rig.world.fuse.answers.mutation.set(mutation);
        count_use(&mut rig);
        let addr = alloc_in(&mut rig, Tier::Far, PAGE);
        rig.world.cells[CELL] = u64::from(home_of(&rig, addr).frame.0) + 1;
        use_often(&mut rig, &[addr], 100);
        assert_eq!((tier_of(&rig, addr), moved(&rig)), (1, 0));
        rig.world.cells[CELL] = 0;
        rig.finish();
    };
    stays(None);
    let copied = catch_unwind(AssertUnwindSafe(|| stays(Some(Mutation::CopyBeforeDrained))));
    assert!(copied.is_err(), "late writes are lost, and nothing tells");
}
