//! Turns of a mover against scripted daemons: which peers it asks, in which order, and what it says
//! came of it.

use super::moving::*;
use super::*;
use crate::constants::NS_PER_SECOND;
use crate::heat::Recent;
use crate::policy::{
    AccessCosts, Decided, Decision, HeatEffect, MoveAsk, MoveReport, Reason, Use, Victim,
};
use crate::wire::PageMetadata;
use std::collections::BTreeMap;

const FAR: u64 = 107;
const VICTIM: u64 = 8;
const COSTS: AccessCosts = AccessCosts {
    local_ns: 100,
    remote_ns: 20_000,
    round_trip_ns: 50_000,
    bytes_per_second: 1_000_000_000,
};

/// A page of each rack; the own daemon wants the other's, and its home decides as a test says.
struct Script {
    homes: BTreeMap<u64, PageHome>,
    decision: Decision,
    /// Pages that their home does not let go.
    stays: Vec<u64>,
    wants: bool,
    heard: Vec<(AccessCosts, Option<MoveReport>)>,
    asked: Vec<MoveAsk>,
}

fn ask() -> MoveAsk {
    let victim = Victim {
        page: PageId(VICTIM),
        copy_bytes: PAGE,
        heat_milli: 1000,
        asker_use: Recent::default(),
        home_use: Recent::default(),
    };
    MoveAsk {
        page: PageId(FAR),
        asker: RackId(0),
        asker_use: Use::default(),
        free_frame: false,
        victim: Some(victim),
        missing_bytes: 5,
        costs: AccessCosts::default(),
    }
}

impl Script {
    fn new(decision: Decision) -> Self {
        let homes = [home(FAR, 1, 11, 30), home(VICTIM, 0, 8, 40)];
        let homes = homes.into_iter().map(|home| (home.page.0, home)).collect();
        let (heard, asked) = (Vec::new(), Vec::new());
        Script { homes, decision, stays: Vec::new(), wants: true, heard, asked }
    }

    fn word(world: &World, at: PageHome, value: u64) {
        let view = if at.rack == RackId(0) { &world.own } else { &world.remote };
        view.table.store(table_word(at.frame), value);
    }

    fn answer(&mut self, world: &mut World, need: &Need) -> Said {
        let (rack, request) = match need {
            Need::Daemon(link, request) => (RackId(link.0), request),
            Need::Master(MasterCall::BeginMove { page, .. }) => {
                return names(&[self.homes[&page.0]]);
            }
            Need::Master(MasterCall::Resolve { page, .. }) => {
                return names(&[self.homes[&page.0]]);
            }
            other => panic!("{other:?}"),
        };
        let free = |page: PageId| home(page.0, rack.0, (page.0 % 16) as u32, page.0 + 500);
        let reply = match request {
            Request::NextMove { costs, last } => {
                self.heard.push((*costs, *last));
                let wants = std::mem::take(&mut self.wants);
                Ok(Reply::NextMove(wants.then(|| ask().into())))
            }
            Request::Resolve { page, .. } => {
                let home = self.homes[&page.0];
                Ok(Reply::Homes(if home.rack == rack { vec![home] } else { Vec::new() }))
            }
            Request::DecideMove(ask) => {
                assert_eq!(rack, self.homes[&ask.page.0].rack);
                self.asked.push(**ask);
                let effect = HeatEffect::ClearAtOldHomes;
                Ok(Reply::Decided(Decided { decision: self.decision, effect }))
            }
            Request::MoveIn { page } => {
                let PageHome { frame, generation, .. } = free(*page);
                Self::word(world, free(*page), generation.0);
                Ok(Reply::Room { frame, generation })
            }
            Request::MoveOut { page, .. } if self.stays.contains(&page.0) => {
                Err(Error::Stays { page: *page, reason: "it is locked".into() })
            }
            Request::MoveOut { page, .. } => {
                Self::word(world, self.homes[&page.0], 777);
                Ok(Reply::Shut { key: Generation(777), keep: PageMetadata::default() })
            }
            Request::MoveCommit { from, .. } => {
                self.homes.insert(from.page.0, free(from.page));
                Ok(Reply::Moved(free(from.page)))
            }
            Request::MoveSettle { .. } => Ok(Reply::Settled { here: false }),
            other => panic!("{other:?}"),
        };
        Said::Daemon(reply)
    }

    fn turn(&mut self, mover: &mut Mover) -> (crate::Result<Turned>, Log) {
        let (mut world, mut client) = World::new(vec![vec![0; PAGE as usize]]);
        client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
        let mut turn = mover.turn(1 << 63);
        drive(&mut world, &mut client, &mut turn, &mut |world, need| self.answer(world, need))
    }
}

fn mover() -> Mover {
    let mut mover = Mover::default();
    mover.measured(RackId(1), COSTS);
    mover
}

const SEARCH: [&str; 2] = ["resolve 0", "master resolve"];

fn report(decision: Decision, pages: u64, failed: Option<u64>) -> MoveReport {
    let decided = Some(Decided { decision, effect: HeatEffect::ClearAtOldHomes });
    let (page, failed) = (PageId(FAR), failed.map(PageId));
    MoveReport { page, decided, moved_bytes: pages * PAGE, failed }
}

#[test]
fn a_turn_asks_searches_decides_moves_and_says_so_with_the_next_one() {
    let decision = Decision::Move { to: RackId(0) };
    let (mut script, mut mover) = (Script::new(decision), mover());
    let (turned, log) = script.turn(&mut mover);
    let expected = report(decision, 1, None);
    assert_eq!(turned.unwrap(), Turned::Asked(expected, None));
    let moves = ["begin 0", "in 0", "out 1", "commit 0", "settle 1"];
    let all = ["next 0", SEARCH[0], SEARCH[1], "decide 1"].into_iter().chain(moves);
    assert_eq!(log, all.collect::<Vec<_>>());
    assert_eq!(script.asked, [MoveAsk { costs: COSTS, ..ask() }]);
    let (turned, log) = script.turn(&mut mover);
    assert_eq!((turned.unwrap(), log), (Turned::Idle, vec!["next 0".to_owned()]));
    // What was said once is not said again.
    script.turn(&mut mover).0.unwrap();
    assert_eq!(script.heard, [(COSTS, None), (COSTS, Some(expected)), (COSTS, None)]);
}

#[test]
fn a_swap_makes_room_first() {
    let decision = Decision::Swap { victim: PageId(VICTIM) };
    let mut script = Script::new(decision);
    let (turned, log) = script.turn(&mut mover());
    assert_eq!(turned.unwrap(), Turned::Asked(report(decision, 2, None), None));
    let moves: Vec<_> = log.iter().filter(|asked| asked.starts_with("begin")).collect();
    assert_eq!(moves, ["begin 1", "begin 0"]);
    assert_eq!(script.homes[&VICTIM].rack, RackId(1));
}

#[test]
fn a_page_that_stays_is_named_and_the_other_one_counts() {
    for (stays, pages, error) in [(VICTIM, 0, "stays"), (FAR, 1, "stays")] {
        let decision = Decision::Swap { victim: PageId(VICTIM) };
        let mut script = Script { stays: vec![stays], ..Script::new(decision) };
        let Ok(Turned::Asked(said, Some(failed))) = script.turn(&mut mover()).0 else { panic!() };
        assert_eq!(said, report(decision, pages, Some(stays)));
        assert_eq!(failed.code(), error);
    }
}

#[test]
fn a_refusal_moves_nothing_and_nonsense_is_no_decision() {
    let decision = Decision::Leave(Reason::Even);
    let (turned, log) = Script::new(decision).turn(&mut mover());
    assert_eq!(turned.unwrap(), Turned::Asked(report(decision, 0, None), None));
    assert_eq!(log.last().unwrap(), "decide 1");
    // To another rack, or for a page that was not offered.
    for decision in [Decision::Move { to: RackId(1) }, Decision::Swap { victim: PageId(9) }] {
        let (turned, log) = Script::new(decision).turn(&mut mover());
        let Ok(Turned::Asked(said, Some(error))) = turned else { panic!("{turned:?}") };
        assert_eq!((error.code(), said.decided, said.failed), ("protocol", None, Some(said.page)));
        assert!(!log.iter().any(|asked| asked.starts_with("begin")));
    }
}

#[test]
fn a_rack_whose_costs_are_unknown_is_measured_before_it_is_asked() {
    let decision = Decision::Move { to: RackId(0) };
    let (mut script, mut mover) = (Script::new(decision), Mover::default());
    let (turned, _) = script.turn(&mut mover);
    assert_eq!(turned.unwrap(), Turned::Unmeasured(RackId(1), addr(FAR, 0)));
    mover.measured(RackId(1), COSTS);
    let (turned, log) = script.turn(&mut mover);
    assert_eq!(turned.unwrap(), Turned::Asked(report(decision, 1, None), None));
    assert_eq!(log[0], "resolve 0", "the page is not asked for again");
    // A rack that cannot be measured gives up its page for now.
    let (mut script, mut mover) = (Script::new(decision), Mover::default());
    script.turn(&mut mover).0.unwrap();
    mover.unmeasurable();
    assert_eq!(script.turn(&mut mover).0.unwrap(), Turned::Idle);
    let (_, last) = script.heard[1];
    assert_eq!(last.map(|last| last.failed), Some(Some(PageId(FAR))));
}

#[test]
fn a_page_that_is_here_by_now_is_not_asked_for() {
    let mut script = Script::new(Decision::Leave(Reason::Even));
    script.homes.insert(FAR, home(FAR, 0, 3, 50));
    let (turned, log) = script.turn(&mut mover());
    let Ok(Turned::Asked(said, None)) = turned else { panic!("{turned:?}") };
    assert_eq!((said.decided, said.failed, log.len()), (None, None, 2));
}

#[test]
fn a_turn_whose_driver_fails_ends_in_order() {
    let decision = Decision::Move { to: RackId(0) };
    let timeout = || Error::Timeout { peer: "daemon".into(), waited_ms: 1 };
    for (fails_at, settles) in [("next 0", 0), ("decide 1", 0), ("out 1", 2)] {
        let (mut script, mut mover) = (Script::new(decision), mover());
        let (mut world, mut client) = World::new(vec![vec![0; PAGE as usize]]);
        client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
        let mut turn = mover.turn(1 << 63);
        let mut answer = |world: &mut World, need: &Need| {
            let fails = name(need) == fails_at;
            if fails { Said::Fails(timeout()) } else { script.answer(world, need) }
        };
        let (result, log) = drive(&mut world, &mut client, &mut turn, &mut answer);
        assert_eq!(result, Err(timeout()));
        let told = log.iter().filter(|asked| asked.starts_with("settle")).count();
        assert_eq!(told, settles, "{fails_at}: {log:?}");
        let failed = mover.last.and_then(|report| report.failed);
        assert_eq!(failed, (fails_at != "next 0").then_some(PageId(FAR)));
    }
}

#[test]
fn asking_in_vain_pauses_twice_as_long_each_time_until_something_moves() {
    let mut mover = Mover::default();
    let report = |decision, moved_bytes| {
        let decided = Some(Decided { decision, effect: HeatEffect::Keep });
        MoveReport { page: PageId(FAR), decided, moved_bytes, failed: None }
    };
    let vain = report(Decision::Leave(Reason::Even), 0);
    let mut pauses = |count: usize, report: &MoveReport, took_ns| -> Vec<u64> {
        (0..count).map(|_| mover.pause_ns(report, took_ns)).collect()
    };
    assert_eq!(pauses(10, &vain, 10), [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 2560]);
    assert_eq!(pauses(100, &vain, u64::MAX).last(), Some(&NS_PER_SECOND));
    let moved = report(Decision::Move { to: RackId(0) }, PAGE);
    let copied = report(Decision::Replicate { lease_ms: 9 }, 0);
    for good in [moved, copied] {
        assert_eq!(pauses(1, &good, 10), [0]);
        assert_eq!(pauses(2, &vain, 10), [10, 20]);
    }
}
