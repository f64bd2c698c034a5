//! Loads for which one mode is plainly right, what follows if a figure changes, and refusals.

use super::*;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn near() -> CacheMemory {
    CacheMemory {
        bytes: 64 * GIB,
        latency_ns: 90.0,
        bandwidth_mbps: 300_000.0,
        thread_mbps: 10_000.0,
        thread_store_mbps: 5_000.0,
    }
}

fn far() -> CacheMemory {
    CacheMemory {
        bytes: 192 * GIB,
        latency_ns: 250.0,
        bandwidth_mbps: 100_000.0,
        thread_mbps: 5_000.0,
        thread_store_mbps: 2_000.0,
    }
}

/// Hit ratios by capacity in GiB.
fn curve(points: &[(u64, f64)]) -> Vec<CurvePoint> {
    let point = |(gib, hit_ratio): &(u64, f64)| {
        let capacity_bytes = gib * GIB;
        CurvePoint { capacity_bytes, hit_ratio: *hit_ratio }
    };
    points.iter().map(point).collect()
}

/// A million look-ups a second of items of 500 bytes: half a GB/s.
fn load(points: &[(u64, f64)]) -> CacheLoad {
    CacheLoad {
        gets_per_s: Some(1e6),
        sets_per_get: 0.05,
        fills_per_miss: 0.0,
        item_bytes: 500.0,
        copies: 0.0,
        sizes: vec![SizeShare { bytes: 500.0, share: 1.0 }],
        curve: curve(points),
        threads: 64,
        work_ns: 500.0,
        wait_share: 1.0,
        miss_ns: 100_000.0,
    }
}

fn advice(load: &CacheLoad) -> TieringAdvice {
    advise(&near(), Some(&far()), load).unwrap()
}

fn of(advice: &TieringAdvice, mode: TieringMode) -> &Predicted {
    advice.modes.iter().find(|one| one.mode == mode).unwrap()
}

#[test]
fn where_all_that_is_read_fits_into_dram_it_stays_there() {
    let advice = advice(&load(&[(16, 0.95)]));
    assert_eq!(advice.chosen, TieringMode::Dram, "{advice:?}");
    assert_eq!(advice.gain.dram_saved_bytes, 0);
    assert_eq!((advice.gain.hit_ratio, advice.gain.get_ns_ratio), (0.0, 1.0));
    // By hand: index, item, 436 bytes behind its first line at 10 bytes a ns.
    let dram = of(&advice, TieringMode::Dram);
    let expected = 500.0 + 90.0 + 0.95 * (90.0 + 43.6) + 0.05 * 100_000.0;
    assert!((dram.get_ns - expected).abs() < 1e-6, "{dram:?}");
    // The same with far memory: nothing that is read lies there. But 5 % of 500 bytes a look-up
    // are stored, and go there.
    let data = of(&advice, TieringMode::Data);
    assert!((data.get_ns - expected).abs() < 1e-6, "{data:?}");
    assert!((data.far_share - 25.0 / (64.0 + 475.0 + 2.0 * 25.0)).abs() < 1e-9, "{data:?}");
}

#[test]
fn where_more_capacity_hits_more_and_misses_cost_much_data_goes_far() {
    let advice = advice(&load(&[(59, 0.8), (250, 0.95)]));
    assert_eq!(advice.chosen, TieringMode::Data, "{advice:?}");
    let (dram, data) = (of(&advice, TieringMode::Dram), of(&advice, TieringMode::Data));
    assert!(dram.hit_ratio > 0.79 && dram.hit_ratio < 0.81, "{dram:?}");
    assert!(data.hit_ratio > 0.94, "{data:?}");
    assert!(advice.gain.get_ns_ratio < 0.35, "{:?}", advice.gain);
    assert_eq!(advice.gain.dram_saved_bytes, 192 * GIB);
    let all = advice.reasons.join("; ");
    assert!(all.contains("a look-up takes") && all.contains("take 192 GiB more of it"), "{all}");
}

#[test]
fn where_a_miss_costs_less_than_far_memory_items_are_dropped_instead() {
    let cheap = CacheLoad { miss_ns: 100.0, ..load(&[(59, 0.8), (250, 0.95)]) };
    assert_eq!(advice(&cheap).chosen, TieringMode::Dram);
}

#[test]
fn where_stores_and_long_items_bind_the_bandwidth_all_is_interleaved() {
    let long = CacheLoad {
        gets_per_s: Some(15e6),
        sets_per_get: 0.3,
        item_bytes: 16_384.0,
        sizes: Vec::new(),
        threads: 128,
        ..load(&[(16, 0.95)])
    };
    let advice = advice(&long);
    assert_eq!(advice.chosen, TieringMode::Transparent, "{advice:?}");
    let (dram, both) = (of(&advice, TieringMode::Dram), of(&advice, TieringMode::Transparent));
    // 64 of the index, 0.95 read and 0.3 stored of 16 KiB.
    let bytes = 64.0 + 1.25 * 16_384.0;
    assert!((dram.memory_gets_per_s - 300e9 / bytes).abs() < 1.0, "{dram:?}");
    assert!((both.memory_gets_per_s - 400e9 / bytes).abs() < 1.0, "{both:?}");
    assert_eq!((both.weights, both.far_share), (Some([3, 1]), 0.25));
    let all = advice.reasons.join("; ");
    assert!(all.contains("dram carries 14.6 M ops/s, which its memories bound"), "{all}");
}

#[test]
fn long_items_that_fit_into_dram_are_not_sent_far() {
    let long = CacheLoad { item_bytes: 100_000.0, sizes: Vec::new(), ..load(&[(16, 0.95)]) };
    let advice = advice(&CacheLoad { gets_per_s: Some(1e5), ..long });
    assert_eq!(advice.chosen, TieringMode::Dram, "{advice:?}");
    assert!(of(&advice, TieringMode::Data).far_share > 0.9);
}

#[test]
fn without_a_rate_the_mode_with_most_hits_a_second_is_named() {
    // Read alone, near memory saturated: data splits reads by bandwidth, and has room for more.
    let most = CacheLoad {
        gets_per_s: None,
        sets_per_get: 0.0,
        item_bytes: 4096.0,
        sizes: Vec::new(),
        threads: 1000,
        ..load(&[(59, 0.8), (250, 0.95)])
    };
    let advice = advice(&most);
    assert_eq!(advice.chosen, TieringMode::Data, "{advice:?}");
    let data = of(&advice, TieringMode::Data);
    let bytes = 64.0 + data.hit_ratio * 4096.0;
    assert!((data.memory_gets_per_s - 400e9 / bytes).abs() < 1.0, "{data:?}");
    assert!((data.far_share - 0.25).abs() < 1e-9 && data.load.is_none(), "{data:?}");
    assert!(advice.reasons[0].starts_with("at full load data gives"), "{:?}", advice.reasons);
}

#[test]
fn threads_that_do_not_saturate_near_memory_have_no_reads_split() {
    let data = |gets_per_s| {
        let few = CacheLoad {
            gets_per_s,
            sets_per_get: 0.0,
            item_bytes: 4096.0,
            sizes: Vec::new(),
            threads: 1,
            ..load(&[(59, 0.8), (250, 0.95)])
        };
        of(&advice(&few), TieringMode::Data).clone()
    };
    let (most, few) = (data(None), data(Some(1e5)));
    assert_eq!((most.far_share, most.get_ns), (few.far_share, few.get_ns));
    assert!(most.far_share < 0.2, "{most:?}");
    // More than one thread can ask for is not asked of the memories.
    assert_eq!(data(Some(1e9)).far_share, few.far_share);
}

#[test]
fn stores_take_the_threads_time_by_the_memories_that_they_go_to() {
    let advice = |sets_per_get| advice(&CacheLoad { sets_per_get, ..load(&[(16, 0.95)]) });
    let (without, with) = (advice(0.0), advice(1.0));
    let time = |advice: &TieringAdvice, mode| 64e9 / of(advice, mode).thread_gets_per_s;
    // By hand: the work, and 500 bytes at 5 bytes a ns near, at 2 bytes a ns far.
    let near_ns = 90.0 + 100.0;
    for (mode, waits) in [
        (TieringMode::Dram, near_ns),
        (TieringMode::Data, near_ns + 250.0),
        (TieringMode::Transparent, 0.75 * near_ns + 0.25 * (250.0 + 250.0)),
    ] {
        let store_ns = time(&with, mode) - time(&without, mode);
        assert!((store_ns - 500.0 - waits).abs() < 1e-6, "{mode:?}: {store_ns}");
    }
}

/// Half of all look-ups miss, and a store follows each; one more in ten look-ups.
fn observed() -> ObservedLoad {
    ObservedLoad {
        gets: 1000.0,
        gets_per_s: None,
        sets_per_get: 0.6,
        misses_per_get: 0.5,
        item_bytes: 500.0,
        copied_bytes: 0.0,
        memory_bytes: None,
        within: vec![(59 * GIB, 500.0), (250 * GIB, 900.0)],
        by_item: vec![(512, 500.0)],
        found_bytes: 250_000.0,
        threads: 1,
        command_ns: None,
    }
}

#[test]
fn a_mode_that_misses_less_stores_less() {
    let load = observed().load(&near(), None, 1, 0.0).unwrap();
    assert!((load.sets_per_get - 0.1).abs() < 1e-9 && load.fills_per_miss == 1.0, "{load:?}");
    let advice = advice(&load);
    let (dram, data) = (of(&advice, TieringMode::Dram), of(&advice, TieringMode::Data));
    assert!(data.hit_ratio - dram.hit_ratio > 0.35, "{advice:?}");
    // A thread's time: a look-up, and 0.6 stores in DRAM alone, 0.2 with far memory.
    let stores = |one: &Predicted| 1e9 / one.thread_gets_per_s - one.get_ns;
    assert!((stores(dram) - 0.6 * 190.0).abs() < 3.0, "{dram:?}");
    assert!((stores(data) - 0.2 * (190.0 + 250.0)).abs() < 3.0, "{data:?}");
    // Fewer stores than misses: each of them follows one.
    let few = ObservedLoad { sets_per_get: 0.1, ..observed() };
    let load = few.load(&near(), None, 1, 0.0).unwrap();
    assert_eq!((load.sets_per_get, load.fills_per_miss), (0.0, 0.2));
    let none = ObservedLoad { misses_per_get: 0.0, ..observed() };
    let load = none.load(&near(), None, 1, 0.0).unwrap();
    assert_eq!((load.sets_per_get, load.fills_per_miss), (0.6, 0.0));
}

#[test]
fn what_the_cache_misses_corrects_hits_by_capacity_and_what_it_copies_is_moved() {
    // By capacity alone a tenth misses with so much memory, and half with 59 GiB.
    let ratios = |misses_per_get| {
        let seen = ObservedLoad { misses_per_get, memory_bytes: Some(1 << 60), ..observed() };
        let load = seen.load(&near(), None, 1, 0.0).unwrap();
        load.curve.iter().map(|point| point.hit_ratio).collect::<Vec<f64>>()
    };
    let is_close = |ratios: &[f64], expected: [f64; 2]| {
        ratios.iter().zip(expected).all(|(ratio, expected)| (ratio - expected).abs() < 1e-9)
    };
    assert!(is_close(&ratios(0.05), [0.75, 0.95]), "{:?}", ratios(0.05));
    assert!(is_close(&ratios(0.25), [0.0, 0.75]), "{:?}", ratios(0.25));
    // 300 bytes a look-up are stored, and 600 copied: each is read and written.
    let copying = ObservedLoad { copied_bytes: 600.0, ..observed() };
    let load = copying.load(&near(), None, 1, 0.0).unwrap();
    assert!((load.copies - 2.0).abs() < 1e-9, "{load:?}");
    let carried = |load: &CacheLoad, mode| of(&advice(load), mode).memory_gets_per_s;
    let none = observed().load(&near(), None, 1, 0.0).unwrap();
    let more = 1e9 * 300.0 / carried(&load, TieringMode::Dram)
        - 1e9 * 300.0 / carried(&none, TieringMode::Dram);
    assert!((more - 1200.0).abs() < 20.0, "{more}");
    assert!(carried(&load, TieringMode::Data) < carried(&none, TieringMode::Data));
}

#[test]
fn what_a_command_took_tells_its_work_or_how_much_its_waits_overlap() {
    let load = |command_ns| {
        let observed = ObservedLoad { command_ns: Some(command_ns), ..observed() };
        observed.load(&near(), None, 1, 0.0).unwrap()
    };
    // Of 1.6 commands.
    let waits = (90.0 * 1.5 + 0.5 * (500.0 - 64.0) / 10.0 + 0.6 * 190.0) / 1.6;
    for command_ns in [40.0, 1000.0] {
        let load = load(command_ns);
        let advice = advice(&load);
        let dram = of(&advice, TieringMode::Dram);
        let commands = dram.thread_gets_per_s * (1.0 + load.sets(dram.hit_ratio));
        assert!((1e9 / commands - command_ns).abs() < 1e-6, "{load:?}");
        let work_ns = (command_ns - waits).max(0.0);
        assert!((load.work_ns - work_ns).abs() < 3.0, "{load:?}");
        assert_eq!(load.wait_share < 1.0, command_ns < waits);
    }
}

#[test]
fn one_memory_leaves_no_choice_and_wrong_figures_are_refused() {
    let right = load(&[(16, 0.95)]);
    let alone = advise(&near(), None, &right).unwrap();
    assert_eq!((alone.chosen, alone.modes.len()), (TieringMode::Dram, 1));
    assert_eq!(alone.reasons, ["there is one memory only"]);
    let slow = CacheMemory { bandwidth_mbps: 0.0, ..far() };
    let refused = advise(&near(), Some(&slow), &right);
    assert!(matches!(refused, Err(WeightsError::Bandwidth { index: 1, .. })), "{refused:?}");
    for wrong in [
        CacheLoad { item_bytes: 0.0, ..right.clone() },
        CacheLoad { threads: 0, ..right.clone() },
        CacheLoad { gets_per_s: Some(f64::NAN), ..right.clone() },
        CacheLoad { miss_ns: -1.0, ..right.clone() },
        CacheLoad { fills_per_miss: 1.5, ..right.clone() },
        CacheLoad { wait_share: 0.0, ..right.clone() },
        CacheLoad { curve: curve(&[(1, 1.5)]), ..right.clone() },
    ] {
        let refused = advise(&near(), Some(&far()), &wrong);
        assert!(matches!(refused, Err(WeightsError::Figure { .. })), "{refused:?}");
    }
}

/// Far memory that is larger and slower in all.
fn memories() -> impl Strategy<Value = (CacheMemory, CacheMemory)> {
    let near = (1u64..200, 60.0..150.0, 20e3..400e3, 3e3..20e3);
    let near = near.prop_map(|(gib, latency_ns, bandwidth_mbps, thread_mbps)| CacheMemory {
        bytes: gib * GIB,
        latency_ns,
        bandwidth_mbps,
        thread_mbps,
        thread_store_mbps: thread_mbps / 2.0,
    });
    (near, 1.0..8.0, 1.0..5.0, 0.1..1.0, 0.1..1.0).prop_map(
        |(near, more, slower, bandwidth, thread)| {
            let far = CacheMemory {
                bytes: (near.bytes as f64 * more) as u64,
                latency_ns: near.latency_ns * slower,
                bandwidth_mbps: near.bandwidth_mbps * bandwidth,
                thread_mbps: near.thread_mbps * thread,
                thread_store_mbps: near.thread_store_mbps * thread,
            };
            (near, far)
        },
    )
}

fn loads() -> impl Strategy<Value = CacheLoad> {
    let steps = proptest::collection::vec((1u64..100, 0.0..0.2), 1..6);
    let rate = prop_oneof![Just(None), (1e3..1e8).prop_map(Some)];
    let rates = (rate, 0.0..1.0, 0.0..1.0, 20.0..100_000.0, 0.0..8.0);
    let times = (0.0..5e3, 0.1..1.0, 0.0..1e6);
    (rates, steps, 1u32..200, times).prop_map(
        |(rates, steps, threads, (work_ns, wait_share, miss_ns))| {
            let (gets_per_s, sets_per_get, fills_per_miss, item_bytes, copies) = rates;
            let (mut gib, mut hit_ratio) = (0, 0.0);
            let curve: Vec<CurvePoint> = steps
                .iter()
                .map(|(more, hits)| {
                    (gib, hit_ratio) = (gib + more, hit_ratio + hits);
                    CurvePoint { capacity_bytes: gib * GIB, hit_ratio }
                })
                .collect();
            CacheLoad {
                gets_per_s,
                sets_per_get,
                fills_per_miss,
                item_bytes,
                copies,
                sizes: Vec::new(),
                curve,
                threads,
                work_ns,
                wait_share,
                miss_ns,
            }
        },
    )
}

/// Not above it, but for rounding.
fn at_most(a: f64, b: f64) -> bool {
    a <= b * (1.0 + 1e-9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn more_far_memory_never_hits_less(
        (near, far) in memories(),
        load in loads(),
        more in 1.0..4.0,
    ) {
        let larger = CacheMemory { bytes: (far.bytes as f64 * more) as u64, ..far };
        let before = advise(&near, Some(&far), &load).unwrap();
        let after = advise(&near, Some(&larger), &load).unwrap();
        for (before, after) in before.modes.iter().zip(&after.modes) {
            prop_assert!(at_most(before.hit_ratio, after.hit_ratio), "{before:?} {after:?}");
        }
    }

    #[test]
    fn later_answers_of_far_memory_never_shorten_a_look_up(
        (near, far) in memories(),
        load in loads(),
        later in 1.0..4.0,
    ) {
        let slower = CacheMemory { latency_ns: far.latency_ns * later, ..far };
        let before = advise(&near, Some(&far), &load).unwrap();
        let after = advise(&near, Some(&slower), &load).unwrap();
        for (before, after) in before.modes.iter().zip(&after.modes) {
            prop_assert!(at_most(before.get_ns, after.get_ns), "{before:?} {after:?}");
        }
        prop_assert_eq!(&before.modes[0], &after.modes[0]);
    }

    #[test]
    fn more_bandwidth_of_far_memory_carries_no_less_data(
        (near, far) in memories(),
        load in loads(),
        more in 1.0..4.0,
    ) {
        let faster = CacheMemory { bandwidth_mbps: far.bandwidth_mbps * more, ..far };
        let before = advise(&near, Some(&far), &load).unwrap();
        let after = advise(&near, Some(&faster), &load).unwrap();
        let gets = |advice: &TieringAdvice| of(advice, TieringMode::Data).memory_gets_per_s;
        prop_assert!(at_most(gets(&before), gets(&after)), "{before:?} {after:?}");
    }

    #[test]
    fn dearer_misses_never_speak_for_less_memory(
        (near, far) in memories(),
        load in loads(),
        dearer in 1.0..100.0,
    ) {
        let before = advise(&near, Some(&far), &load).unwrap();
        let dear = CacheLoad { miss_ns: load.miss_ns * dearer, ..load };
        let after = advise(&near, Some(&far), &dear).unwrap();
        prop_assert!(
            before.chosen == TieringMode::Dram || after.chosen != TieringMode::Dram,
            "{before:?} {after:?}"
        );
    }

    #[test]
    fn dram_with_bandwidth_to_spare_that_holds_all_is_enough(
        (near, far) in memories(),
        load in loads(),
    ) {
        let curve = vec![CurvePoint { capacity_bytes: 1 << 20, hit_ratio: 0.9 }];
        let advice = advise(&near, Some(&far), &CacheLoad { curve, ..load }).unwrap();
        let is_carried = of(&advice, TieringMode::Dram).is_carried();
        prop_assert!(!is_carried || advice.chosen == TieringMode::Dram, "{advice:?}");
    }

    #[test]
    fn the_choice_is_within_what_is_told_apart_of_the_best(
        (near, far) in memories(),
        load in loads(),
    ) {
        let advice = advise(&near, Some(&far), &load).unwrap();
        let chosen = of(&advice, advice.chosen);
        for other in &advice.modes {
            match (chosen.is_carried(), other.is_carried()) {
                (true, true) => prop_assert!(chosen.get_ns * 0.98 <= other.get_ns, "{advice:?}"),
                (false, false) => {
                    prop_assert!(chosen.hits_per_s_max() * 1.03 >= other.hits_per_s_max());
                }
                (is_carried, _) => prop_assert!(is_carried, "{advice:?}"),
            }
        }
    }
}
