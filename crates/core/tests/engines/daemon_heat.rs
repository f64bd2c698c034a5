//! What a daemon makes of its clients' use of pages: which page it asks for, which one makes room,
//! how it decides about its own, and what it forgets afterwards.

use crate::daemon_world::{PAGE, RACK, Rig};
use rackpool_core::constants::{
    DECISIONS_ANSWER_MAX, DECISIONS_MAX, MESSAGE_BYTES_MAX, MOVE_REST_NS, NS_PER_MS, NS_PER_SECOND,
};
use rackpool_core::heat::{Counts, PageUse, Recent};
use rackpool_core::policy::{
    AccessCosts, CostParams, Decided, Decision, DecisionRecord, HeatEffect, MigrationPolicy,
    MoveAsk, MoveReport, PaperParams, Reason, Use, Victim, replay,
};
use rackpool_core::relocation::{Relocation, RelocationQuery, RelocationReport};
use rackpool_core::wire::{DaemonStats, Reply, ReplyFrame, Request, encode_vec};
use rackpool_core::{PageId, RackId};

/// As over loopback: 20 µs for an access, 50 for a message, 2 GB/s.
const COSTS: AccessCosts = AccessCosts {
    local_ns: 200,
    remote_ns: 20_000,
    round_trip_ns: 50_000,
    bytes_per_second: 2_000_000_000,
};
/// Pages that no daemon here has.
const FAR: u64 = 1 << 30;

fn cost() -> MigrationPolicy {
    MigrationPolicy::Cost(CostParams::default())
}

fn paper() -> MigrationPolicy {
    MigrationPolicy::Paper(PaperParams::default())
}

fn rig(frames: u32, policy: MigrationPolicy) -> Rig {
    let mut rig = Rig::new(frames);
    rig.join(0);
    rig.run(|daemon, _| daemon.set_policy(policy));
    at(&mut rig, 10 * NS_PER_SECOND);
    rig
}

fn at(rig: &mut Rig, now_ns: u64) {
    rig.run(|daemon, _| daemon.note_time(now_ns));
}

fn note(rig: &mut Rig, pages: &[(u64, u32)]) {
    let used = |(page, writes): &(u64, u32)| PageUse {
        page: PageId(*page),
        counts: Counts { reads: 0, writes: *writes },
    };
    let pages = pages.iter().map(used).collect();
    assert_eq!(rig.ask(0, Request::NoteUse { pages }), Ok(Reply::Noted));
}

fn next(rig: &mut Rig, last: Option<MoveReport>) -> Option<MoveAsk> {
    let last = last.map(RelocationReport::Pulled);
    let query = RelocationQuery { costs: COSTS, last, balance: None };
    match rig.ask(0, Request::NextMove(query.into())) {
        Ok(Reply::NextMove(Some(Relocation::Pull(ask)))) => Some(*ask),
        Ok(Reply::NextMove(None)) => None,
        other => panic!("{other:?}"),
    }
}

fn decide(rig: &mut Rig, ask: MoveAsk) -> Decided {
    match rig.ask(0, Request::DecideMove(Box::new(ask))) {
        Ok(Reply::Decided(decided)) => decided,
        other => panic!("{other:?}"),
    }
}

fn stats(rig: &Rig) -> DaemonStats {
    rig.daemon.as_ref().unwrap().stats(&rig.world)
}

/// A page of its own, which could move.
fn page(rig: &mut Rig) -> u64 {
    let addr = rig.alloc(0, PAGE, false);
    rig.world.layout.pages.page(addr).0
}

fn used(writes: u32) -> Use {
    let counts = Counts { reads: 0, writes };
    let recent = Recent { counts, span_ns: NS_PER_SECOND };
    Use { heat_milli: 1000 + 1000 * u64::from(writes), counts, recent, rack: Recent::default() }
}

/// Another rack, with room, asks.
fn other_asks(page: u64, writes: u32) -> MoveAsk {
    MoveAsk {
        page: PageId(page),
        asker: RackId(9),
        asker_use: used(writes),
        free_frame: true,
        victim: None,
        missing_bytes: 0,
        costs: COSTS,
    }
}

#[test]
fn the_hottest_page_of_another_rack_is_asked_for_first_and_each_once() {
    let mut rig = rig(8, cost());
    let own = page(&mut rig);
    note(&mut rig, &[(FAR, 20), (FAR + 1, 500), (FAR + 2, 15), (own, 900)]);
    let ask = next(&mut rig, None).unwrap();
    let recent = Counts { reads: 0, writes: 500 };
    assert_eq!((ask.page, ask.asker, ask.free_frame), (PageId(FAR + 1), RACK, true));
    assert_eq!((ask.asker_use.recent.counts, ask.victim), (recent, None));
    assert_eq!(next(&mut rig, None).unwrap().page, PageId(FAR));
    // 15 are not enough to ask, and what lives here is not asked for.
    assert_eq!(next(&mut rig, None), None);
    note(&mut rig, &[(FAR + 2, 1)]);
    assert_eq!(next(&mut rig, None).unwrap().page, PageId(FAR + 2));
    assert_eq!((stats(&rig).moves.asked, stats(&rig).moves.heat_pages), (3, 4));
}

#[test]
fn a_full_rack_names_its_least_used_page_that_can_go() {
    let mut rig = rig(5, cost());
    let (first, second, third) = (page(&mut rig), page(&mut rig), page(&mut rig));
    // A session's own pages, and no client uses them: they cannot go.
    rig.alloc(0, 2 * PAGE, true);
    note(&mut rig, &[(first, 9), (second, 5), (third, 7), (FAR, 100)]);
    let ask = next(&mut rig, None).unwrap();
    let victim = ask.victim.unwrap();
    assert!(!ask.free_frame);
    assert_eq!((victim.page, victim.copy_bytes), (PageId(second), PAGE));
    assert_eq!(victim.asker_use.counts, Counts { reads: 0, writes: 5 });
    assert_eq!(victim.home_use, Recent::default());
    // A page that could not go is left alone for a while, and so is one that could not come.
    let failed = |page| {
        Some(MoveReport { page: PageId(FAR), decided: None, moved_bytes: 0, failed: Some(page) })
    };
    note(&mut rig, &[(FAR, 100)]);
    let ask = next(&mut rig, failed(PageId(second))).unwrap();
    assert_eq!(ask.victim.unwrap().page, PageId(third));
    note(&mut rig, &[(FAR, 200)]);
    assert_eq!(next(&mut rig, failed(PageId(FAR))), None);
    at(&mut rig, 10 * NS_PER_SECOND + MOVE_REST_NS);
    note(&mut rig, &[(FAR, 600)]);
    assert_eq!(next(&mut rig, None).unwrap().victim.unwrap().page, PageId(second));
    assert_eq!(stats(&rig).moves.failed, 2);
}

#[test]
fn the_home_decides_with_its_own_use_and_remembers_why() {
    let mut rig = rig(8, cost());
    let (hot, cold) = (page(&mut rig), page(&mut rig));
    note(&mut rig, &[(hot, 400)]);
    let to = RackId(9);
    let expected = [
        (other_asks(cold, 500), Decision::Move { to }),
        (other_asks(hot, 500), Decision::Leave(Reason::Even)),
        (other_asks(cold, 1), Decision::Leave(Reason::NotHot)),
        (MoveAsk { free_frame: false, ..other_asks(cold, 500) }, Decision::Leave(Reason::NoRoom)),
        (MoveAsk { asker: RACK, ..other_asks(cold, 500) }, Decision::Leave(Reason::OwnRack)),
        (
            MoveAsk { missing_bytes: 16 << 20, ..other_asks(cold, 500) },
            Decision::Leave(Reason::OverAllowance),
        ),
    ];
    for (ask, decision) in expected {
        assert_eq!(decide(&mut rig, ask), Decided { decision, effect: HeatEffect::Keep });
    }
    let unknown = rig.ask(0, Request::DecideMove(Box::new(other_asks(FAR, 500))));
    assert_eq!(unknown.unwrap_err().code(), "not-mapped");
    let Ok(Reply::Decisions(records)) = rig.ask(0, Request::Decisions { from: 3 }) else {
        panic!()
    };
    assert_eq!(records.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [3, 4, 5, 6]);
    for (number, record) in records {
        assert_eq!(record.decision, expected[number as usize - 1].1);
        assert_eq!(replay(&record), record.decision);
    }
    let moves = stats(&rig).moves;
    assert_eq!((moves.decided_move, moves.decided_swap), (1, 0));
    assert_eq!(moves.left["even"] + moves.left["no-room"], 2);
}

#[test]
fn a_swap_needs_a_free_frame_at_the_home_too() {
    let victim = Victim {
        page: PageId(FAR),
        copy_bytes: PAGE,
        heat_milli: 1000,
        asker_use: Recent::default(),
        home_use: Recent::default(),
    };
    for (frames, expected) in
        [(2, Decision::Swap { victim: PageId(FAR) }), (1, Decision::Leave(Reason::NoRoom))]
    {
        let mut rig = rig(frames, cost());
        let page = page(&mut rig);
        let ask = MoveAsk { free_frame: false, victim: Some(victim), ..other_asks(page, 500) };
        assert_eq!(decide(&mut rig, ask).decision, expected);
    }
}

#[test]
fn by_the_paper_a_loser_has_to_earn_its_heat_again_and_the_old_home_forgets() {
    let mut rig = rig(8, paper());
    let (hot, cold) = (page(&mut rig), page(&mut rig));
    note(&mut rig, &[(hot, 40), (cold, 2), (FAR, 9)]);
    let effect = HeatEffect::ClearAtAsker;
    let decision = Decision::Leave(Reason::HomeHotter);
    assert_eq!(decide(&mut rig, other_asks(hot, 20)), Decided { decision, effect });
    let moved = decide(&mut rig, other_asks(cold, 20));
    assert_eq!(moved.effect, HeatEffect::ClearAtOldHomes);
    let ask = |page| MoveAsk { asker_use: used(5), ..other_asks(page, 5) };
    assert_eq!(decide(&mut rig, ask(cold)).decision, Decision::Move { to: RackId(9) });
    assert_eq!(stats(&rig).moves.heat_pages, 2, "cold is forgotten");
    // The asker's part: refused, its heat is gone, and the page is hot again after five uses.
    assert_eq!(next(&mut rig, None).unwrap().page, PageId(FAR));
    let decided = Some(Decided { decision, effect });
    let report = MoveReport { page: PageId(FAR), decided, moved_bytes: 0, failed: None };
    assert_eq!(next(&mut rig, Some(report)), None);
    note(&mut rig, &[(FAR, 4)]);
    assert_eq!(next(&mut rig, None), None);
    note(&mut rig, &[(FAR, 1)]);
    assert_eq!(next(&mut rig, None).unwrap().asker_use.heat_milli, 6000);
}

#[test]
fn what_was_moved_is_missing_from_the_allowance_until_time_fills_it() {
    let mut rig = rig(8, cost());
    let report = |moved_bytes| {
        Some(MoveReport { page: PageId(FAR), decided: None, moved_bytes, failed: None })
    };
    note(&mut rig, &[(FAR, 100)]);
    assert_eq!(next(&mut rig, report(1 << 20)).unwrap().missing_bytes, 1 << 20);
    // 3 % of 2 GB/s: 60 kB in a millisecond.
    at(&mut rig, 10 * NS_PER_SECOND + 10 * NS_PER_MS);
    note(&mut rig, &[(FAR, 100)]);
    assert_eq!(next(&mut rig, None).unwrap().missing_bytes, (1 << 20) - 600_000);
    let moves = stats(&rig).moves;
    assert_eq!((moves.moved, moves.moved_bytes), ((1 << 20) / PAGE, 1 << 20));
}

#[test]
fn without_a_policy_nothing_is_kept_and_nothing_goes() {
    let mut rig = rig(8, MigrationPolicy::Off);
    let page = page(&mut rig);
    note(&mut rig, &[(page, 400), (FAR, 400)]);
    assert_eq!(next(&mut rig, None), None);
    let stays = Decision::Leave(Reason::Off);
    assert_eq!(decide(&mut rig, other_asks(page, 500)).decision, stays);
    assert_eq!(stats(&rig).moves.heat_pages, 0);
    assert!(!rig.daemon.as_ref().unwrap().counts_use());
}

#[test]
fn a_client_of_another_rack_says_nothing_of_this_racks_use() {
    let mut rig = rig(8, cost());
    rig.join_remote(1);
    let page = page(&mut rig);
    let query = RelocationQuery { costs: COSTS, ..RelocationQuery::default() };
    for request in [Request::NoteUse { pages: Vec::new() }, Request::NextMove(query.into())] {
        assert_eq!(rig.ask(1, request).unwrap_err().code(), "denied");
    }
    let decided = rig.ask(1, Request::DecideMove(Box::new(other_asks(page, 500))));
    assert!(matches!(decided, Ok(Reply::Decided(_))));
}

#[test]
fn of_many_decisions_the_last_are_kept_and_an_answer_fits_into_a_message() {
    let mut rig = rig(8, cost());
    let page = page(&mut rig);
    for _ in 0..DECISIONS_MAX + 10 {
        decide(&mut rig, other_asks(page, 3));
    }
    let answer = rig.ask(0, Request::Decisions { from: 0 });
    let Ok(Reply::Decisions(records)) = &answer else { panic!("{answer:?}") };
    assert_eq!((records[0].0, records.len()), (11, DECISIONS_ANSWER_MAX));
    let large = |record: &DecisionRecord| {
        let mut record = *record;
        let (counts, span_ns) = (Counts { reads: u32::MAX, writes: u32::MAX }, u64::MAX);
        let recent = Recent { counts, span_ns };
        let used = Use { heat_milli: u64::MAX, counts, recent, rack: Recent::default() };
        let page = PageId(u64::MAX);
        let o = &mut record.observation;
        (o.asker_use, o.home_use, o.others_use) = (used, used, recent);
        (o.now_ns, o.page, o.copy_bytes) = (u64::MAX, page, u64::MAX);
        let (copy_bytes, heat_milli) = (u64::MAX, u64::MAX);
        let uses = (recent, recent);
        let (asker_use, home_use) = uses;
        o.victim = Some(Victim { page, copy_bytes, heat_milli, asker_use, home_use });
        record
    };
    let records = records.iter().map(|(_, record)| (u64::MAX, large(record))).collect();
    let reply = ReplyFrame { seq: u64::MAX, reply: Ok(Reply::Decisions(records)) };
    // The rest of the numbers are small here: twice as many must fit.
    assert!(encode_vec(&reply).len() * 2 < MESSAGE_BYTES_MAX as usize);
}
