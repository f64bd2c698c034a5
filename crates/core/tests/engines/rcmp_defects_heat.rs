//! Defects of the published code of Rcmp in what it makes of the use of pages, as scenarios that
//! must go right here.

use crate::daemon_world::{PAGE, Rig};
use rackpool_core::PageId;
use rackpool_core::constants::{NS_PER_MS, NS_PER_SECOND};
use rackpool_core::heat::{Counts, HEAT_MILLI_MIN, PageUse};
use rackpool_core::policy::{
    AccessCosts, Decided, Decision, HeatEffect, MigrationPolicy, MoveAsk, MoveReport, PaperParams,
    Reason,
};
use rackpool_core::relocation::{Relocation, RelocationQuery, RelocationReport};
use rackpool_core::seam::Mutation;
use rackpool_core::wire::{Reply, Request};

const FRAMES: u32 = 8;
/// A page of another rack.
const FAR: PageId = PageId(1 << 30);

/// A rack that counts as the paper does, at a time when all is cold.
fn rack(mutation: Option<Mutation>) -> Rig {
    let mut rig = Rig::new(FRAMES);
    rig.world.fuse.answers.mutation.set(mutation);
    rig.join(0);
    rig.run(|daemon, _| daemon.set_policy(MigrationPolicy::Paper(PaperParams::default())));
    at(&mut rig, 10 * NS_PER_SECOND);
    rig
}

fn at(rig: &mut Rig, now_ns: u64) {
    rig.run(|daemon, world| daemon.tick(now_ns, world));
}

fn note(rig: &mut Rig, reads: u32, writes: u32) {
    let pages = vec![PageUse { page: FAR, counts: Counts { reads, writes } }];
    assert_eq!(rig.ask(0, Request::NoteUse { pages }), Ok(Reply::Noted));
}

/// What the rack asks for now.
fn next(rig: &mut Rig, last: Option<MoveReport>) -> Option<MoveAsk> {
    let costs = AccessCosts {
        local_ns: 200,
        remote_ns: 20_000,
        round_trip_ns: 50_000,
        bytes_per_second: 2_000_000_000,
    };
    let query = RelocationQuery { costs, last: last.map(RelocationReport::Pulled), balance: None };
    match rig.ask(0, Request::NextMove(query.into())) {
        Ok(Reply::NextMove(Some(Relocation::Pull(ask)))) => Some(*ask),
        Ok(Reply::NextMove(None)) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hundred_seconds_were_48_microseconds() {
    let mut rig = rack(None);
    note(&mut rig, 100, 0);
    at(&mut rig, 10 * NS_PER_SECOND + NS_PER_MS);
    note(&mut rig, 1, 0);
    let ask = next(&mut rig, None).expect("it is hot");
    assert_eq!(ask.asker_use.counts.reads, 101);
    assert!(ask.asker_use.heat_milli > 101_000, "{}", ask.asker_use.heat_milli);
    rig.finish();
}

#[test]
fn it_fired_only_when_heat_was_exactly_the_threshold() {
    let mut rig = rack(None);
    // From nothing to 50 in one report.
    note(&mut rig, 50, 0);
    let ask = next(&mut rig, None).expect("it is hot");
    assert_eq!(ask.asker_use.counts.reads, 50);
    rig.finish();
}

#[test]
fn counters_that_had_expired_went_on() {
    let mut rig = rack(None);
    note(&mut rig, 60, 40);
    next(&mut rig, None).expect("it is hot");
    at(&mut rig, 112 * NS_PER_SECOND);
    note(&mut rig, 6, 0);
    let ask = next(&mut rig, None).expect("it is hot again");
    assert_eq!(ask.asker_use.counts, Counts { reads: 6, writes: 0 });
    assert_eq!(ask.asker_use.heat_milli, 6000 + HEAT_MILLI_MIN);
    rig.finish();
}

#[test]
fn clearing_heat_cleared_the_writes_twice_and_the_reads_never() {
    let mut rig = rack(None);
    note(&mut rig, 70, 90);
    next(&mut rig, None).expect("it is hot");
    let decision = Decision::Leave(Reason::HomeHotter);
    let decided = Some(Decided { decision, effect: HeatEffect::ClearAtAsker });
    let report = MoveReport { page: FAR, decided, moved_bytes: 0, failed: None };
    assert_eq!(next(&mut rig, Some(report)), None);
    note(&mut rig, 5, 0);
    let ask = next(&mut rig, None).expect("it is hot again");
    assert_eq!(ask.asker_use.counts, Counts { reads: 5, writes: 0 });
    rig.finish();
}

#[test]
fn the_search_for_a_victim_took_pairs_for_ids_and_span_with_fewer_than_ten_pages() {
    let mut rig = rack(None);
    // Two pages that may go, and six that are a session's own.
    let pages = [rig.alloc(0, PAGE, false), rig.alloc(0, PAGE, false)];
    rig.alloc(0, 6 * PAGE, true);
    note(&mut rig, 50, 0);
    let ask = next(&mut rig, None).expect("it is hot");
    let victim = ask.victim.expect("a page that may go").page;
    assert!(!ask.free_frame);
    assert!(pages.iter().any(|addr| rig.world.layout.pages.page(*addr) == victim));
    rig.finish();
}
