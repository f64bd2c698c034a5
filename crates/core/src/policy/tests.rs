//! Choices step by step, replay, and what no policy may do.

use super::*;
use crate::constants::MOVE_DOUBLINGS_MAX;
use crate::heat::{HeatParams, HeatTable};
use proptest::prelude::*;

const COSTS: AccessCosts = AccessCosts {
    local_ns: 250,
    remote_ns: 4300,
    round_trip_ns: 4000,
    bytes_per_second: 12_500_000_000,
};
const SECOND: u64 = NS_PER_SECOND;
const RACKS: [RackId; 2] = [RackId(0), RackId(1)];

fn recent(reads: u32, writes: u32) -> Recent {
    Recent { counts: Counts { reads, writes }, span_ns: SECOND }
}

fn used(heat: u64, reads: u32, writes: u32) -> Use {
    let recent = recent(reads, writes);
    Use { heat_milli: heat * 1000, counts: recent.counts, recent, rack: Recent::default() }
}

/// Rack 0 asks for a page of 4 KiB in rack 1 that only it uses; a cold page can make room.
fn wanted() -> Observation {
    Observation {
        now_ns: 100 * SECOND,
        page: PageId(7),
        asker: RACKS[0],
        home: RACKS[1],
        copy_bytes: 4096,
        asker_use: used(1000, 500, 500),
        home_use: used(1, 0, 0),
        others_use: recent(0, 0),
        free_frame: false,
        victim: Some(Victim {
            page: PageId(9),
            copy_bytes: 4096,
            heat_milli: 1000,
            asker_use: recent(0, 0),
            home_use: recent(0, 0),
        }),
        replica_room: true,
        under_way: false,
        history: MoveHistory::default(),
        costs: COSTS,
    }
}

fn paper() -> MigrationPolicy {
    MigrationPolicy::Paper(PaperParams::default())
}

fn cost() -> MigrationPolicy {
    MigrationPolicy::Cost(CostParams::default())
}

fn decide(policy: MigrationPolicy, observation: &Observation) -> Decision {
    policy.decide(observation, &Allowance::default()).decision
}

const SWAP: Decision = Decision::Swap { victim: PageId(9) };
const MOVE: Decision = Decision::Move { to: RackId(0) };

#[test]
fn off_leaves_every_page() {
    let record = MigrationPolicy::Off.decide(&wanted(), &Allowance::default());
    assert_eq!(record.decision, Decision::Leave(Reason::Off));
    assert_eq!((record.fabric_bytes, record.heat_effect()), (0, HeatEffect::Keep));
}

#[test]
fn paper_takes_the_six_steps_in_their_order() {
    let mut o = wanted();
    assert_eq!(decide(paper(), &o), SWAP);
    assert_eq!(decide(paper(), &Observation { free_frame: true, ..o }), MOVE);
    assert_eq!(
        decide(paper(), &Observation { victim: None, ..o }),
        Decision::Leave(Reason::NoRoom)
    );
    // Step 3: the home is hotter. Half of the asker's accesses are reads: read-hot at 0.9.
    o.home_use.heat_milli = o.asker_use.heat_milli + 1;
    assert_eq!(decide(paper(), &o), Decision::Replicate { lease_ms: 1000 });
    let no_room = Observation { replica_room: false, ..o };
    assert_eq!(decide(paper(), &no_room), Decision::Leave(Reason::HomeHotter));
    o.asker_use.counts = Counts { reads: 400, writes: 600 };
    assert_eq!(decide(paper(), &o), Decision::Leave(Reason::HomeHotter));
    // Step 2 comes before step 3, step 1 before step 2.
    o.victim.as_mut().unwrap().heat_milli = 4001;
    assert_eq!(decide(paper(), &o), Decision::Leave(Reason::VictimHot));
    o.under_way = true;
    assert_eq!(decide(paper(), &o), Decision::Leave(Reason::UnderWay));
    o.asker_use.heat_milli = 4000;
    assert_eq!(decide(paper(), &o), Decision::Leave(Reason::NotHot));
    assert_eq!(
        decide(paper(), &Observation { home: o.asker, ..o }),
        Decision::Leave(Reason::OwnRack)
    );
}

#[test]
fn no_policy_moves_a_page_between_shards_of_one_rack() {
    let [home, asker] = [0, 1].map(|shard| RackId::sharded(3, shard, 2).unwrap());
    for policy in [paper(), MigrationPolicy::Cost(CostParams::default())] {
        let o = Observation { home, asker, ..wanted() };
        assert_eq!(decide(policy, &o), Decision::Leave(Reason::OwnRack));
        let o = Observation { home: RackId(4), ..o };
        assert_ne!(decide(policy, &o), Decision::Leave(Reason::OwnRack));
    }
}

#[test]
fn paper_clears_the_heat_of_who_lost_and_of_what_moved() {
    let effect = |o: &Observation| paper().decide(o, &Allowance::default()).heat_effect();
    assert_eq!(effect(&wanted()), HeatEffect::ClearAtOldHomes);
    let mut o = wanted();
    o.asker_use.heat_milli = 4000;
    assert_eq!(effect(&o), HeatEffect::Keep, "a rack that does not ask loses nothing");
    assert_eq!(effect(&Observation { under_way: true, ..wanted() }), HeatEffect::ClearAtAsker);
    let mut o = wanted();
    o.home_use.heat_milli = u64::MAX;
    assert_eq!(effect(&o), HeatEffect::Keep, "a copy is no loss");
    o.asker_use.counts.reads = 0;
    assert_eq!(effect(&o), HeatEffect::ClearAtAsker);
    assert_eq!(cost().decide(&o, &Allowance::default()).heat_effect(), HeatEffect::Keep);
}

#[test]
fn cost_moves_a_page_that_one_rack_uses_and_leaves_one_that_does_not_pay() {
    assert_eq!(decide(cost(), &wanted()), SWAP);
    assert_eq!(decide(cost(), &Observation { free_frame: true, ..wanted() }), MOVE);
    let few = Observation { asker_use: used(9, 4, 3), ..wanted() };
    assert_eq!(decide(cost(), &few), Decision::Leave(Reason::NotHot));
    let nowhere = Observation { victim: None, replica_room: false, ..wanted() };
    assert_eq!(decide(cost(), &nowhere), Decision::Leave(Reason::NoRoom));
    // 40 writes a second for 10 s save 1.6 ms: a page of 4 KiB is worth that, one of 1 GiB is not.
    let some = Observation { asker_use: used(9, 0, 40), free_frame: true, ..wanted() };
    assert_eq!(decide(cost(), &some), MOVE);
    let huge = Observation { copy_bytes: 1 << 30, ..some };
    assert_eq!(decide(cost(), &huge), Decision::Leave(Reason::NoGain));
}

#[test]
fn cost_decides_by_the_bytes_of_the_extent_not_of_the_page() {
    let mut o = Observation { asker_use: used(9, 0, 30), free_frame: true, ..wanted() };
    o.costs.bytes_per_second = 1_250_000_000;
    assert_eq!(decide(cost(), &Observation { copy_bytes: 64 << 10, ..o }), MOVE);
    let page = Observation { copy_bytes: 2 << 20, ..o };
    assert_eq!(decide(cost(), &page), Decision::Leave(Reason::NoGain));
}

#[test]
fn cost_gives_up_no_page_that_is_used_more_than_the_one_that_comes() {
    let mut o = Observation { replica_room: false, ..wanted() };
    o.victim.as_mut().unwrap().asker_use = recent(600, 600);
    assert_eq!(decide(cost(), &o), Decision::Leave(Reason::NoGain));
    // Unless the other rack uses that one even more.
    o.victim.as_mut().unwrap().home_use = recent(1200, 1200);
    assert_eq!(decide(cost(), &o), SWAP);
}

#[test]
fn cost_copies_what_both_racks_read_and_leaves_what_both_write() {
    let both = |reads, writes| Observation {
        asker_use: used(1000, reads, writes),
        home_use: used(1000, reads, writes),
        ..wanted()
    };
    let Decision::Replicate { lease_ms } = decide(cost(), &both(1900, 100)) else {
        panic!("a page that is read 19 times for each write is copied");
    };
    // 202 writes a second: one in 5 ms. The shortest lease is 10 ms.
    assert_eq!(lease_ms, 10);
    // Two writes a second are expected although none was seen.
    assert_eq!(decide(cost(), &both(2000, 0)), Decision::Replicate { lease_ms: 500 });
    let left = decide(cost(), &both(1000, 1000));
    assert_eq!(left, Decision::Leave(Reason::NoGain));
    // 2 MiB are fetched once, not for each twentieth access.
    let large = Observation { copy_bytes: 2 << 20, ..both(1900, 100) };
    assert!(matches!(decide(cost(), &large), Decision::Replicate { .. }));
    // A page that its home uses an eighth as much may be one that it would use alike.
    let less = Observation { home_use: used(1000, 240, 13), ..both(1900, 100) };
    assert!(matches!(decide(cost(), &less), Decision::Replicate { .. }));
    let alone = Observation { home_use: used(1000, 40, 2), ..both(1900, 100) };
    assert!(matches!(decide(cost(), &alone), Decision::Move { .. } | Decision::Swap { .. }));
}

#[test]
fn cost_does_not_favour_the_rack_that_is_faster() {
    let of = |count, all: u32| Use { rack: recent(all / 2, all / 2), ..used(99, 0, count) };
    let page = |asker, home| Observation {
        asker_use: of(300, asker),
        home_use: of(600, home),
        ..wanted()
    };
    assert_eq!(decide(cost(), &page(10_000, 10_000)), Decision::Leave(Reason::NoGain));
    // A third of what the other does: the page is three times as large a part of its work.
    assert_eq!(decide(cost(), &page(10_000, 60_000)), SWAP);
    // But a rack that does next to nothing is not served before one that does a lot.
    let idle = Observation { asker_use: of(20, 20), home_use: of(1200, 60_000), ..wanted() };
    assert_eq!(decide(cost(), &idle), Decision::Leave(Reason::NoGain));
    // Nor does a rack that is slow for a moment lose what is as large a part of its work.
    let starved = Observation { asker_use: of(600, 120_000), home_use: of(15, 3000), ..wanted() };
    assert_eq!(decide(cost(), &starved), Decision::Leave(Reason::NoGain));
    let asleep = Observation { asker_use: of(600, 120_000), home_use: of(2, 100), ..wanted() };
    assert_eq!(decide(cost(), &asleep), SWAP);
}

#[test]
fn cost_takes_no_chance_for_a_difference() {
    let near = |asker, home| Observation {
        asker_use: used(99, 0, asker),
        home_use: used(99, 0, home),
        ..wanted()
    };
    assert_eq!(decide(cost(), &near(60, 40)), Decision::Leave(Reason::Even));
    assert_eq!(decide(cost(), &near(110, 100)), Decision::Leave(Reason::Even));
    assert_eq!(decide(cost(), &near(100_000, 80_000)), Decision::Leave(Reason::Even));
    assert_eq!(decide(cost(), &near(100, 20)), SWAP);
}

#[test]
fn cost_asks_more_of_a_page_that_moved_lately() {
    let mut o = Observation { asker_use: used(9, 0, 30), free_frame: true, ..wanted() };
    assert_eq!(decide(cost(), &o), MOVE);
    let settle_ns = CostParams::default().settle_ns();
    for _ in 0..5 {
        o.history.note(o.now_ns, settle_ns);
    }
    assert_eq!(decide(cost(), &o), Decision::Leave(Reason::MovedLately));
    o.asker_use = used(9, 0, 30 * 32);
    assert_eq!(decide(cost(), &o), MOVE);
    // It is forgotten, one move for each settling time.
    o.asker_use = used(9, 0, 30);
    o.now_ns += 2 * settle_ns;
    assert_eq!(o.history.lately(o.now_ns, settle_ns), 3);
    o.now_ns += 3 * settle_ns;
    assert_eq!(decide(cost(), &o), MOVE);
}

#[test]
fn cost_stops_at_its_share_of_the_fabric() {
    let params = CostParams { burst_bytes: 10_000, ..CostParams::default() };
    let limit = params.limit(&COSTS);
    assert_eq!(limit.bytes_per_second, 375_000_000);
    let mut allowance = Allowance::default();
    let mut moved_bytes = 0;
    let step_ns = 1000;
    for step in 0..1_000_000_u64 / step_ns {
        let o = Observation { now_ns: step * step_ns, ..wanted() };
        let record = MigrationPolicy::Cost(params).decide(&o, &allowance);
        match record.decision {
            Decision::Swap { .. } => {
                assert_eq!(record.fabric_bytes, 8192);
                moved_bytes += record.fabric_bytes;
                allowance.take(&limit, o.now_ns, record.fabric_bytes);
            }
            other => assert_eq!(other, Decision::Leave(Reason::OverAllowance)),
        }
    }
    // 3 % of 12.5 MB in a millisecond, and the burst at the start.
    assert!(moved_bytes <= 375_000 + 10_000 && moved_bytes > 370_000, "{moved_bytes} bytes");
    let capped = CostParams { bytes_per_second_max: 1000, ..params };
    assert_eq!(capped.limit(&COSTS).bytes_per_second, 1000);
}

#[test]
fn what_is_not_measured_moves_nothing() {
    let leaves = |costs| {
        let o = Observation { costs, ..wanted() };
        assert_eq!(decide(cost(), &o), Decision::Leave(Reason::Unmeasured));
    };
    leaves(AccessCosts { bytes_per_second: 0, ..COSTS });
    leaves(AccessCosts { remote_ns: 250, ..COSTS });
    leaves(AccessCosts { remote_ns: 0, ..COSTS });
    let mut o = wanted();
    o.asker_use.recent.span_ns = 0;
    assert_eq!(decide(cost(), &o), Decision::Leave(Reason::Unmeasured));
}

/// Equal use of a page by two racks, with free frames in both.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    /// Accesses of each rack in a round.
    each: u64,
    /// Accesses of one rack before the other has its turn.
    turn: u64,
    pause_ns: u64,
    reads: bool,
}

/// The moves of the page in 1000 rounds.
fn moves_of_equal_use(policy: MigrationPolicy, rounds: Rounds) -> u64 {
    let page = PageId(1);
    let mut tables = [0, 1].map(|_| HeatTable::new(HeatParams::default(), 4000).unwrap());
    let (mut home, mut now_ns, mut moves) = (0, 0, 0);
    let (mut history, mut allowance) = (MoveHistory::default(), Allowance::default());
    for access in 0..1000 * 2 * rounds.each {
        let rack = (access / rounds.turn % 2) as usize;
        now_ns += rounds.pause_ns;
        now_ns += if rack == home { COSTS.local_ns } else { COSTS.remote_ns };
        let counts = Counts { reads: rounds.reads.into(), writes: (!rounds.reads).into() };
        let noted = tables[rack].note(page, counts, now_ns);
        if rack == home || !policy.asks(&noted) {
            continue;
        }
        let of = |table: &HeatTable| {
            let (heat, params) = (table.get(page), table.params());
            Use {
                heat_milli: heat.heat_milli(params, now_ns),
                counts: heat.counts(params, now_ns),
                recent: heat.recent(params, now_ns),
                rack: Recent::default(),
            }
        };
        let o = Observation {
            now_ns,
            page,
            asker: RACKS[rack],
            home: RACKS[home],
            asker_use: of(&tables[rack]),
            home_use: of(&tables[home]),
            free_frame: true,
            replica_room: false,
            history,
            ..wanted()
        };
        let record = policy.decide(&o, &allowance);
        assert_eq!(replay(&record), record.decision);
        let settle_ns = CostParams::default().settle_ns();
        allowance.take(&CostParams::default().limit(&COSTS), now_ns, record.fabric_bytes);
        match record.heat_effect() {
            HeatEffect::ClearAtAsker => assert!(tables[rack].remove(page)),
            HeatEffect::ClearAtOldHomes => drop(tables[home].remove(page)),
            HeatEffect::Keep => {}
        }
        if let Decision::Move { to } = record.decision {
            home = usize::from(to.0);
            moves += 1;
            history.note(now_ns, settle_ns);
        }
    }
    moves
}

/// Nothing but time saved and spent.
fn unguarded() -> MigrationPolicy {
    MigrationPolicy::Cost(CostParams {
        margin_milli: 1000,
        deviations_squared: 0,
        dominance_milli: 0,
        settle_ms: 0,
        ..CostParams::default()
    })
}

#[test]
fn a_page_that_two_racks_use_equally_never_goes_back_and_forth() {
    let mut moves_unguarded = 0;
    for reads in [true, false] {
        // Rounds of microseconds to a fifth of a second: a run lasts up to 200 windows.
        for pause_ns in [0, 50_000, 5_000_000] {
            for (each, turn) in [(1, 1), (7, 1), (20, 5), (20, 20), (100, 1), (100, 7)] {
                let rounds = Rounds { each, turn, pause_ns, reads };
                let moves = moves_of_equal_use(cost(), rounds);
                assert!(moves <= 1, "{moves} moves in 1000 of {rounds:?}");
                moves_unguarded += moves_of_equal_use(unguarded(), rounds);
            }
        }
    }
    assert!(moves_unguarded > 100, "the traces tempt: {moves_unguarded}");
}

#[test]
fn long_turns_of_two_racks_are_followed_once_in_a_settling_time() {
    // In turns of four seconds each, for 8000 s.
    let rounds = Rounds { each: 1000, turn: 1000, pause_ns: 4_000_000, reads: false };
    let [naive, moves] = [unguarded(), cost()].map(|policy| moves_of_equal_use(policy, rounds));
    assert!(naive >= 1000, "{naive} of 2000 turns are followed without guards");
    let settled = 8000 / 10 + u64::from(MOVE_DOUBLINGS_MAX);
    assert!((400..=settled).contains(&moves), "{moves} moves in 800 settling times");
}

fn any_recent() -> impl Strategy<Value = Recent> {
    let count = prop_oneof![0..100_u32, any::<u32>()];
    let span_ns = prop_oneof![Just(0), Just(SECOND), any::<u64>()];
    (count.clone(), count, span_ns)
        .prop_map(|(reads, writes, span_ns)| Recent { counts: Counts { reads, writes }, span_ns })
}

fn any_use() -> impl Strategy<Value = Use> {
    let heat = prop_oneof![0..10_000_u64, any::<u64>()];
    let recent = (any_recent(), any_recent(), any_recent());
    (heat, recent).prop_map(|(heat_milli, (counted, recent, rack))| Use {
        heat_milli,
        counts: counted.counts,
        recent,
        rack,
    })
}

prop_compose! {
    fn any_victim()(
        (page, copy_bytes, heat_milli) in any::<(u64, u64, u64)>(),
        small in any::<bool>(),
        (asker_use, home_use) in (any_recent(), any_recent()),
    ) -> Victim {
        let copy_bytes = if small { copy_bytes % 4096 } else { copy_bytes };
        let heat_milli = if small { heat_milli % 8000 } else { heat_milli };
        Victim { page: PageId(page), copy_bytes, heat_milli, asker_use, home_use }
    }
}

prop_compose! {
    fn any_observation()(
        (now_ns, page, asker, home) in (any::<u64>(), any::<u64>(), 0_u16..3, 0_u16..3),
        copy_bytes in prop_oneof![Just(4096), Just(2 << 20), any::<u64>()],
        (asker_use, home_use, others_use) in (any_use(), any_use(), any_recent()),
        (free_frame, replica_room, under_way) in any::<(bool, bool, bool)>(),
        victim in proptest::option::of(any_victim()),
        (moves, last_ns) in (0_u32..20, any::<u64>()),
        wild in proptest::option::of(any::<(u64, u64, u64, u64)>()),
    ) -> Observation {
        let costs = wild.map_or(COSTS, |(local_ns, remote_ns, round_trip_ns, bytes_per_second)| {
            AccessCosts { local_ns, remote_ns, round_trip_ns, bytes_per_second }
        });
        Observation {
            now_ns, page: PageId(page), asker: RackId(asker), home: RackId(home), copy_bytes,
            asker_use, home_use, others_use, free_frame, victim, replica_room, under_way,
            history: MoveHistory { moves, last_ns }, costs,
        }
    }
}

fn any_policy() -> impl Strategy<Value = MigrationPolicy> {
    let wild = any::<([u32; 9], [u64; 3])>().prop_map(|(small, large)| {
        MigrationPolicy::Cost(CostParams {
            horizon_ms: small[0],
            margin_milli: small[1],
            count_min: small[2] % 100,
            deviations_squared: small[3],
            dominance_milli: small[4],
            settle_ms: small[5],
            move_round_trips: small[6],
            copy_write_accesses: small[6],
            copy_dominance_milli: small[6],
            slower_counts_milli: small[6],
            slower_home_counts_milli: small[7],
            fabric_share_milli: small[7],
            bytes_per_second_max: large[0],
            burst_bytes: large[1],
            lease_ms_min: small[8],
            lease_ms_max: large[2] as u32,
        })
    });
    prop_oneof![Just(MigrationPolicy::Off), Just(paper()), Just(cost()), wild]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_record_decides_again_what_was_decided(
        policy in any_policy(),
        observation in any_observation(),
        taken in proptest::option::of(any::<(u64, u64)>()),
    ) {
        let mut allowance = Allowance::default();
        if let Some((now_ns, bytes)) = taken {
            allowance.take(&CostParams::default().limit(&COSTS), now_ns, bytes);
        }
        let record = policy.decide(&observation, &allowance);
        prop_assert_eq!(replay(&record), record.decision);
        let stored = postcard::to_stdvec(&record).unwrap();
        let read: DecisionRecord = postcard::from_bytes(&stored).unwrap();
        prop_assert_eq!(read, record);
        prop_assert_eq!(replay(&read), record.decision);
    }

    #[test]
    fn a_page_comes_only_to_the_rack_that_asks_and_only_if_there_is_room(
        policy in any_policy(),
        o in any_observation(),
    ) {
        let record = policy.decide(&o, &Allowance::default());
        match record.decision {
            Decision::Leave(_) => prop_assert_eq!(record.fabric_bytes, 0),
            Decision::Move { to } => {
                prop_assert!(to == o.asker && to != o.home && o.free_frame && !o.under_way);
            }
            Decision::Swap { victim } => {
                let chosen = o.victim.expect("a swap needs a page to swap with");
                prop_assert!(chosen.page == victim && !o.free_frame && o.asker != o.home);
                if let MigrationPolicy::Paper(_) = policy {
                    prop_assert!(chosen.heat_milli <= 4000, "hot");
                    prop_assert!(chosen.heat_milli < o.asker_use.heat_milli, "hotter");
                }
            }
            Decision::Replicate { .. } => prop_assert!(o.replica_room && o.asker != o.home),
        }
    }

    #[test]
    fn cost_moves_nothing_that_saves_less_than_it_costs(
        o in any_observation(),
    ) {
        let record = cost().decide(&o, &Allowance::default());
        let Reasoning::Cost(r) = record.reasoning else { panic!("cost reasons by cost") };
        match record.decision {
            Decision::Move { .. } | Decision::Swap { .. } => {
                prop_assert!(r.move_saves_ns > r.move_costs_ns && r.difference > 0);
            }
            Decision::Replicate { .. } => prop_assert!(r.copy_saves_ns > r.copy_costs_ns),
            Decision::Leave(_) => {}
        }
    }
}

#[test]
fn a_history_goes_from_one_clock_to_another() {
    let settle_ns = 10 * NS_PER_SECOND;
    let mut here = MoveHistory::default();
    here.note(100 * NS_PER_SECOND, settle_ns);
    here.note(101 * NS_PER_SECOND, settle_ns);
    let there = here.leaving(104 * NS_PER_SECOND).arrived(7000 * NS_PER_SECOND);
    assert_eq!(there.lately(7000 * NS_PER_SECOND, settle_ns), 2);
    assert_eq!(there.lately(7006 * NS_PER_SECOND, settle_ns), 2);
    assert_eq!(there.lately(7007 * NS_PER_SECOND, settle_ns), 1);
    // A clock that is younger than the history forgets no move too early.
    assert_eq!(here.leaving(104 * NS_PER_SECOND).arrived(1).lately(1, settle_ns), 2);
}
