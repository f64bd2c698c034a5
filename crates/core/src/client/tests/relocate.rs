//! Steps of a relocation worker against scripted daemons: which peers it asks, in which order, and
//! what it says came of it.

use super::moving::*;
use super::*;
use crate::heat::Recent;
use crate::member::{DrainReport, MemberAnswer, MemberCall, PoolLoad, RackState};
use crate::policy::{
    AccessCosts, Decided, Decision, HeatEffect, MoveAsk, MoveReport, Reason, Use, Victim,
};
use crate::relocation::{BalanceQuery, Relocation, RelocationQuery, RelocationReport, SendResult};
use crate::wire::{FabricKind, PageMetadata, RackInfo};
use std::collections::{BTreeMap, VecDeque};

const FAR: u64 = 107;
const VICTIM: u64 = 8;
const COSTS: AccessCosts = AccessCosts {
    local_ns: 100,
    remote_ns: 20_000,
    round_trip_ns: 50_000,
    bytes_per_second: 1_000_000_000,
};

const LOAD: PoolLoad = PoolLoad { racks: 2, mean_milli: 500, emptiest: Some((RackId(1), 100)) };
const MOVES: [&str; 5] = ["begin 1", "in 1", "out 0", "commit 1", "settle 0"];

/// Pages of two racks: what the own daemon wants, and what the peers make of it.
struct Script {
    homes: BTreeMap<u64, PageHome>,
    /// What the own daemon answers, one question after another; then nothing.
    wants: VecDeque<Relocation>,
    decision: Decision,
    /// Pages that their home does not let go.
    stays: Vec<u64>,
    /// Whether rack 1 is full.
    full: bool,
    /// How often the rack is still not allowed to leave.
    denied: u32,
    heard: Vec<RelocationQuery>,
    asked: Vec<MoveAsk>,
    /// How many racks had refused a page at each pick.
    tried: Vec<usize>,
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

fn info(rack: u16) -> RackInfo {
    RackInfo {
        rack: RackId(rack),
        region_id: [1, 1],
        epoch: 1,
        page_shift: 12,
        frame_count: 16,
        frames_free: 3,
        host: String::new(),
        control: String::new(),
        fabric: FabricKind::Tcp,
        fabric_addr: String::new(),
        alive: true,
    }
}

fn full() -> Error {
    Error::Full { bytes: PAGE, free_bytes: 0, place: "there".into() }
}

impl Script {
    fn wanting(wants: impl IntoIterator<Item = Relocation>) -> Self {
        let homes = [home(FAR, 1, 11, 30), home(7, 0, 7, 30), home(VICTIM, 0, 8, 40)];
        Script {
            homes: homes.into_iter().map(|home| (home.page.0, home)).collect(),
            wants: wants.into_iter().collect(),
            decision: Decision::Leave(Reason::Even),
            stays: Vec::new(),
            full: false,
            denied: 0,
            heard: Vec::new(),
            asked: Vec::new(),
            tried: Vec::new(),
        }
    }

    /// The own rack wants a page of the other one, and its home decides so.
    fn new(decision: Decision) -> Self {
        Script { decision, ..Script::wanting([Relocation::Pull(ask().into())]) }
    }

    fn master(&mut self, call: &MasterCall) -> Said {
        Said::Master(match call {
            MasterCall::BeginMove { page, .. } | MasterCall::Resolve { page, .. } => {
                return names(&[self.homes[&page.0]]);
            }
            MasterCall::PickRack { tried, .. } => {
                self.tried.push(tried.len());
                if tried.is_empty() { Ok(MasterAnswer::Rack(info(1))) } else { Err(full()) }
            }
            MasterCall::Member(MemberCall::Leave(RackId(0))) if self.denied > 0 => {
                self.denied -= 1;
                Err(Error::Denied { reason: "it has pages".into() })
            }
            MasterCall::Member(MemberCall::Leave(RackId(0))) => {
                Ok(MasterAnswer::Member(MemberAnswer::RackState(RackState::Left)))
            }
            MasterCall::Member(MemberCall::Load) => {
                Ok(MasterAnswer::Member(MemberAnswer::Load(LOAD)))
            }
            other => panic!("{other:?}"),
        })
    }

    fn word(world: &World, at: PageHome, value: u64) {
        let view = if at.rack == RackId(0) { &world.own } else { &world.remote };
        view.table.store(table_word(at.frame), value);
    }

    fn answer(&mut self, world: &mut World, need: &Need) -> Said {
        let (rack, request) = match need {
            Need::Daemon(link, request) => (RackId(link.0), request),
            Need::Master(call) => return self.master(call),
            other => panic!("{other:?}"),
        };
        let free = |page: PageId| home(page.0, rack.0, (page.0 % 16) as u32, page.0 + 500);
        let reply = match request {
            Request::NextMove(query) => {
                self.heard.push((**query).clone());
                Ok(Reply::NextMove(self.wants.pop_front()))
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
            Request::MoveIn { .. } if self.full => Err(full()),
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

    fn run<O: Operation<TestMem>>(&mut self, mut op: O) -> (crate::Result<O::Output>, Log) {
        let (mut world, mut client) = World::new(vec![vec![0; PAGE as usize]]);
        client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
        drive(&mut world, &mut client, &mut op, &mut |world, need| self.answer(world, need))
    }

    fn step(&mut self, relocator: &mut Relocator) -> (crate::Result<RelocationOutcome>, Log) {
        self.run(relocator.step(1 << 63, false))
    }

    /// What was said of costs and of the page before, with each question.
    fn told(&self) -> Vec<(AccessCosts, Option<RelocationReport>)> {
        self.heard.iter().map(|query| (query.costs, query.last.clone())).collect()
    }
}

fn relocator() -> Relocator {
    let mut relocator = Relocator::default();
    relocator.measured(RackId(1), COSTS);
    relocator
}

const SEARCH: [&str; 2] = ["resolve 0", "master resolve"];

fn report(decision: Decision, pages: u64, failed: Option<u64>) -> MoveReport {
    let decided = Some(Decided { decision, effect: HeatEffect::ClearAtOldHomes });
    let (page, failed) = (PageId(FAR), failed.map(PageId));
    MoveReport { page, decided, moved_bytes: pages * PAGE, failed }
}

#[test]
fn a_step_asks_searches_decides_moves_and_says_so_with_the_next_one() {
    let decision = Decision::Move { to: RackId(0) };
    let (mut script, mut relocator) = (Script::new(decision), relocator());
    let (outcome, log) = script.step(&mut relocator);
    let expected = report(decision, 1, None);
    assert_eq!(outcome.unwrap(), RelocationOutcome::Pulled(expected, None));
    let moves = ["begin 0", "in 0", "out 1", "commit 0", "settle 1"];
    let all = ["next 0", SEARCH[0], SEARCH[1], "decide 1"].into_iter().chain(moves);
    assert_eq!(log, all.collect::<Vec<_>>());
    assert_eq!(script.asked, [MoveAsk { costs: COSTS, ..ask() }]);
    let (outcome, log) = script.step(&mut relocator);
    assert_eq!((outcome.unwrap(), log), (RelocationOutcome::Idle, vec!["next 0".to_owned()]));
    // What was said once is not said again.
    script.step(&mut relocator).0.unwrap();
    let pulled = Some(RelocationReport::Pulled(expected));
    assert_eq!(script.told(), [(COSTS, None), (COSTS, pulled), (COSTS, None)]);
}

#[test]
fn a_swap_makes_room_first() {
    let decision = Decision::Swap { victim: PageId(VICTIM) };
    let mut script = Script::new(decision);
    let (outcome, log) = script.step(&mut relocator());
    assert_eq!(outcome.unwrap(), RelocationOutcome::Pulled(report(decision, 2, None), None));
    let moves: Vec<_> = log.iter().filter(|asked| asked.starts_with("begin")).collect();
    assert_eq!(moves, ["begin 1", "begin 0"]);
    assert_eq!(script.homes[&VICTIM].rack, RackId(1));
}

#[test]
fn a_page_that_stays_is_named_and_the_other_one_counts() {
    for (stays, pages, error) in [(VICTIM, 0, "stays"), (FAR, 1, "stays")] {
        let decision = Decision::Swap { victim: PageId(VICTIM) };
        let mut script = Script { stays: vec![stays], ..Script::new(decision) };
        let Ok(RelocationOutcome::Pulled(said, Some(failed))) = script.step(&mut relocator()).0
        else {
            panic!()
        };
        assert_eq!(said, report(decision, pages, Some(stays)));
        assert_eq!(failed.code(), error);
    }
}

#[test]
fn a_refusal_moves_nothing_and_nonsense_is_no_decision() {
    let decision = Decision::Leave(Reason::Even);
    let (outcome, log) = Script::new(decision).step(&mut relocator());
    assert_eq!(outcome.unwrap(), RelocationOutcome::Pulled(report(decision, 0, None), None));
    assert_eq!(log.last().unwrap(), "decide 1");
    // To another rack, or for a page that was not offered.
    for decision in [Decision::Move { to: RackId(1) }, Decision::Swap { victim: PageId(9) }] {
        let (outcome, log) = Script::new(decision).step(&mut relocator());
        let Ok(RelocationOutcome::Pulled(said, Some(error))) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!((error.code(), said.decided, said.failed), ("protocol", None, Some(said.page)));
        assert!(!log.iter().any(|asked| asked.starts_with("begin")));
    }
}

#[test]
fn a_rack_whose_costs_are_unknown_is_measured_before_it_is_asked() {
    let decision = Decision::Move { to: RackId(0) };
    let (mut script, mut relocator) = (Script::new(decision), Relocator::default());
    let (outcome, _) = script.step(&mut relocator);
    assert_eq!(outcome.unwrap(), RelocationOutcome::Unmeasured(RackId(1), addr(FAR, 0)));
    relocator.measured(RackId(1), COSTS);
    let (outcome, log) = script.step(&mut relocator);
    assert_eq!(outcome.unwrap(), RelocationOutcome::Pulled(report(decision, 1, None), None));
    assert_eq!(log[0], "resolve 0", "the page is not asked for again");
    // A rack that cannot be measured gives up its page for now.
    let (mut script, mut relocator) = (Script::new(decision), Relocator::default());
    script.step(&mut relocator).0.unwrap();
    relocator.unmeasurable();
    assert_eq!(script.step(&mut relocator).0.unwrap(), RelocationOutcome::Idle);
    let failed = Some(PageId(FAR));
    let gives_up = MoveReport { page: PageId(FAR), decided: None, moved_bytes: 0, failed };
    assert_eq!(script.told()[1].1, Some(RelocationReport::Pulled(gives_up)));
}

#[test]
fn a_page_that_is_here_by_now_is_not_asked_for() {
    let mut script = Script::new(Decision::Leave(Reason::Even));
    script.homes.insert(FAR, home(FAR, 0, 3, 50));
    let (outcome, log) = script.step(&mut relocator());
    let Ok(RelocationOutcome::Pulled(said, None)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((said.decided, said.failed, log.len()), (None, None, 2));
}

#[test]
fn a_step_whose_driver_fails_ends_in_order() {
    let decision = Decision::Move { to: RackId(0) };
    let timeout = || Error::Timeout { peer: "daemon".into(), waited_ms: 1 };
    for (fails_at, settles) in [("next 0", 0), ("decide 1", 0), ("out 1", 2)] {
        let (mut script, mut relocator) = (Script::new(decision), relocator());
        let (mut world, mut client) = World::new(vec![vec![0; PAGE as usize]]);
        client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
        let mut step = relocator.step(1 << 63, false);
        let mut answer = |world: &mut World, need: &Need| {
            let fails = name(need) == fails_at;
            if fails { Said::Fails(timeout()) } else { script.answer(world, need) }
        };
        let (result, log) = drive(&mut world, &mut client, &mut step, &mut answer);
        assert_eq!(result, Err(timeout()));
        let told = log.iter().filter(|asked| asked.starts_with("settle")).count();
        assert_eq!(told, settles, "{fails_at}: {log:?}");
        let failed = match relocator.last {
            Some(RelocationReport::Pulled(report)) => report.failed,
            _ => None,
        };
        assert_eq!(failed, (fails_at != "next 0").then_some(PageId(FAR)));
    }
}

#[test]
fn pages_of_a_draining_rack_go_and_then_it_leaves() {
    let report = DrainReport { moved: 1, ..DrainReport::default() };
    let wants = [
        Relocation::Evacuate(PageId(7)),
        Relocation::PassOver(report.clone()),
        Relocation::Leave,
        Relocation::Leave,
    ];
    let mut script = Script { denied: 1, ..Script::wanting(wants) };
    let mut relocator = Relocator::default();
    let (first, log) = script.step(&mut relocator);
    let went = RelocationOutcome::Evacuated(PageId(7), Ok(Some(RackId(1))));
    assert_eq!(first.unwrap(), went);
    assert_eq!(log, ["next 0", "pick"].into_iter().chain(MOVES).collect::<Vec<_>>());
    assert_eq!(script.step(&mut relocator).0.unwrap(), RelocationOutcome::PassOver(report));
    let moved = RelocationReport::Sent(PageId(7), SendResult::Moved);
    assert_eq!(script.told()[1].1, Some(moved));
    // Something was on its way still.
    let over = RelocationOutcome::PassOver(DrainReport::default());
    assert_eq!(script.step(&mut relocator).0.unwrap(), over);
    let (last, log) = script.step(&mut relocator);
    assert_eq!(last.unwrap(), RelocationOutcome::Left);
    assert_eq!(log, ["next 0", "leave"]);
}

fn stays(outcome: RelocationOutcome) -> Error {
    match outcome {
        RelocationOutcome::Evacuated(PageId(7), Err(error))
        | RelocationOutcome::Pushed(PageId(7), Err(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_page_that_does_not_leave_is_told_with_its_reason() {
    let evacuate = Relocation::Evacuate(PageId(7));
    let mut script = Script { stays: vec![7], ..Script::wanting([evacuate.clone(), evacuate]) };
    let mut relocator = Relocator::default();
    assert_eq!(stays(script.step(&mut relocator).0.unwrap()).code(), "stays");
    script.step(&mut relocator).0.unwrap();
    let (_, last) = script.told().pop().unwrap();
    let Some(RelocationReport::Sent(PageId(7), SendResult::Stays(reason))) = last else {
        panic!("{last:?}")
    };
    assert!(reason.contains("it is locked"), "{reason}");
}

#[test]
fn a_rack_that_does_not_take_a_page_is_not_picked_again_for_it() {
    let mut script = Script { full: true, ..Script::wanting([Relocation::Evacuate(PageId(7))]) };
    let error = stays(script.step(&mut Relocator::default()).0.unwrap());
    assert_eq!((error.code(), script.tried.clone()), ("full", vec![0, 1]));
}

#[test]
fn an_evacuation_that_is_given_up_tells_both_racks_and_picks_no_other() {
    let evacuate = |page| Relocation::Evacuate(PageId(page));
    let mut script = Script::wanting([evacuate(7), evacuate(VICTIM)]);
    let mut relocator = Relocator::default();
    let (mut world, mut client) = World::new(vec![vec![0; PAGE as usize]]);
    client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
    let mut step = relocator.step(1 << 63, false);
    let dead = || Error::PeerDead { peer: "it".into(), cause: crate::error::DeathCause::Closed };
    let (failed, log) = drive(&mut world, &mut client, &mut step, &mut |world, need| match need {
        Need::Daemon(_, Request::MoveCommit { .. }) => Said::Fails(dead()),
        need => script.answer(world, need),
    });
    assert_eq!(failed.unwrap_err(), dead());
    let after = log.iter().position(|one| one == "commit 1").unwrap() + 1;
    assert_eq!(log[after..], ["settle 0", "settle 1"]);
    // The page stays, and the pass goes on without it.
    let went = RelocationOutcome::Evacuated(PageId(VICTIM), Ok(Some(RackId(1))));
    assert_eq!(script.step(&mut relocator).0.unwrap(), went);
    let (_, last) = script.told().pop().unwrap();
    let is_told = |last| matches!(last, RelocationReport::Sent(PageId(7), SendResult::Stays(_)));
    assert!(last.is_some_and(is_told));
}

#[test]
fn answers_that_make_no_sense_end_the_step() {
    let mut relocator = Relocator::default();
    let (mut world, mut client) = World::new(vec![vec![0; PAGE as usize]]);
    let to_own = Relocation::Push { page: PageId(7), to: RackId(0) };
    for reply in [Reply::Pong, Reply::NextMove(Some(to_own))] {
        let mut step = relocator.step(1 << 63, false);
        let mut say = |_: &mut World, _: &Need| Said::Daemon(Ok(reply.clone()));
        let (ended, _) = drive(&mut world, &mut client, &mut step, &mut say);
        assert_eq!(ended.unwrap_err().code(), "protocol", "{reply:?}");
    }
}

#[test]
fn a_cold_page_goes_where_the_daemon_says_and_one_that_stays_is_named_with_the_next_question() {
    let push = Relocation::Push { page: PageId(7), to: RackId(1) };
    let mut relocator = Relocator::default();
    let mut script = Script::wanting([push.clone()]);
    let (sent, log) = script.run(relocator.step(1 << 63, true));
    assert_eq!(sent.unwrap(), RelocationOutcome::Pushed(PageId(7), Ok(Some(RackId(1)))));
    assert_eq!(log, ["load", "next 0"].into_iter().chain(MOVES).collect::<Vec<_>>());
    relocator.moved_in(PAGE / 4);
    let mut script = Script { full: true, ..Script::wanting([push]) };
    let error = stays(script.run(relocator.step(1 << 63, true)).0.unwrap());
    assert_eq!(error, full());
    script.run(relocator.step(1 << 63, true)).0.unwrap();
    let balance = Some(BalanceQuery { load: LOAD, bytes_per_second: 4_000_000_000 });
    let reports = [SendResult::Moved, SendResult::Stays(full().to_string())];
    let next = |result| RelocationQuery {
        costs: AccessCosts::default(),
        last: Some(RelocationReport::Sent(PageId(7), result)),
        balance,
    };
    assert_eq!(script.heard, reports.map(next));
}

#[test]
fn a_rack_that_lost_its_region_gets_nothing_under_a_key_of_the_old_one() {
    let mut script = Script::wanting([]);
    let (mut world, mut client) = World::new(vec![vec![0x5a; PAGE as usize]]);
    let link = client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
    let mut op = Migrate::new(&client, addr(7, 0), RackId(1), 1 << 63);
    let frame = u64::from(home(7, 1, 7, 507).frame.0) * PAGE;
    let mut log = Log::new();
    let ended = super::ask(&mut world, &mut client, &mut op, &mut |world, client, need| {
        log.push(name(need));
        if matches!(need, Need::Daemon(_, Request::MoveOut { .. })) {
            // Before anything is copied.
            client.forget_link(link);
            world.remote.pages.store(frame, 0xdead);
        }
        script.answer(world, need)
    });
    assert_eq!(ended.unwrap_err().code(), "stays");
    assert_eq!(log[3..5], ["settle 0", "settle 1"]);
    assert_eq!(world.remote.pages.load(frame), 0xdead, "another client has it by now");
}
