//! The formula, and one test for each defect of the code that was published with the paper.

use super::*;
use crate::constants::NS_PER_SECOND;
use proptest::prelude::*;

const SECOND: u64 = NS_PER_SECOND;

fn params() -> HeatParams {
    HeatParams::default()
}

#[test]
fn the_nth_access_of_a_burst_finds_heat_n_and_the_fifth_is_hot() {
    let mut heat = PageHeat::default();
    for n in 1..=10 {
        let found = heat.note_reads(&params(), 1, SECOND);
        assert_eq!(found, n * 1000);
        assert_eq!(found > params().hot_milli, n >= 5);
    }
}

#[test]
fn heat_falls_by_e_in_25_seconds_and_never_below_one() {
    let mut heat = PageHeat::default();
    heat.note_writes(&params(), 1000, SECOND);
    assert_eq!(heat.heat_milli(&params(), SECOND), 1_001_000);
    // 1000 / e = 367.879
    assert!(heat.heat_milli(&params(), 26 * SECOND).abs_diff(368_879) <= 2);
    // 1000 / e^4 = 18.316, and a nanosecond later it has expired.
    assert!(heat.heat_milli(&params(), 101 * SECOND).abs_diff(19_316) <= 1);
    assert_eq!(heat.heat_milli(&params(), 101 * SECOND + 1), HEAT_MILLI_MIN);
}

#[test]
fn defect_tick_unit_a_hundred_seconds_were_48_microseconds() {
    let mut heat = PageHeat::default();
    heat.note_reads(&params(), 100, SECOND);
    let after = |ns: u64| heat.heat_milli(&params(), SECOND + ns);
    assert_eq!(after(0), 101_000);
    assert!(after(48_000) >= 100_999, "48 µs are 2 millionths of a time constant");
    assert!(after(10 * SECOND) > 67_000);
    assert!(after(100 * SECOND) > HEAT_MILLI_MIN);
    assert_eq!(after(100 * SECOND + 1), HEAT_MILLI_MIN);
}

#[test]
fn defect_expiry_did_not_reset_the_counters() {
    let mut heat = PageHeat::default();
    heat.note_reads(&params(), 60, SECOND);
    heat.note_writes(&params(), 40, SECOND);
    let late = 102 * SECOND;
    assert_eq!(heat.note_reads(&params(), 1, late), 1000, "an expired page is as new");
    assert_eq!(heat.counts(&params(), late), Counts { reads: 1, writes: 0 });
    assert_eq!(heat.note_reads(&params(), 1, late), 2000);
}

#[test]
fn defect_it_fired_only_when_heat_was_exactly_three() {
    let mut heat = PageHeat::default();
    // A batch that jumps over the threshold, and everything above it, is hot.
    assert!(heat.note_reads(&params(), 50, SECOND) > params().hot_milli);
    for _ in 0..100 {
        assert!(heat.is_hot(&params(), SECOND));
        assert!(heat.note_reads(&params(), 1, SECOND) > params().hot_milli);
    }
}

#[test]
fn defect_read_heat_was_write_heat() {
    let mut heat = PageHeat::default();
    heat.note_writes(&params(), 2, SECOND);
    heat.note_reads(&params(), 5, SECOND);
    assert_eq!(heat.counts(&params(), SECOND), Counts { reads: 5, writes: 2 });
    assert_eq!(heat.recent(&params(), SECOND).counts, Counts { reads: 5, writes: 2 });
    // Two writes count twice, not more.
    let mut heat = PageHeat::default();
    assert_eq!(heat.note_writes(&params(), 2, SECOND), 2000);
}

#[test]
fn defect_clear_cleared_the_writes_twice_and_the_reads_never() {
    let mut heat = PageHeat::default();
    heat.note_reads(&params(), 7, SECOND);
    heat.note_writes(&params(), 9, SECOND);
    heat.clear();
    assert_eq!(heat.counts(&params(), SECOND), Counts::default());
    assert_eq!(heat.recent(&params(), SECOND).counts, Counts::default());
    assert_eq!(heat.heat_milli(&params(), SECOND), HEAT_MILLI_MIN);
}

#[test]
fn defect_there_was_no_read_hot_ratio() {
    let ratio = |reads, writes| is_read_hot(&params(), Counts { reads, writes });
    assert!(ratio(1, 0) && ratio(1000, 1) && ratio(100, 100) && ratio(91, 100));
    assert!(!ratio(90, 100) && !ratio(0, 1) && !ratio(0, 0));
    assert!(ratio(u32::MAX, 1) && !ratio(1, u32::MAX));
}

#[test]
fn idle_clients_do_not_make_a_page_hot() {
    let idle = PageHeat::default();
    let mut used = PageHeat::default();
    used.note_reads(&params(), 2, SECOND);
    let weight = |heat: &PageHeat| heat.weight_milli(&params(), SECOND);
    assert_eq!(heat_of_all_milli((0..100).map(|_| weight(&idle))), 1000);
    assert_eq!(heat_of_all_milli([weight(&used), weight(&idle), weight(&used)]), 5000);
}

#[test]
fn recent_counts_cover_this_window_and_the_one_before() {
    let mut heat = PageHeat::default();
    heat.note_reads(&params(), 10, 10 * SECOND);
    let at = |heat: &PageHeat, ns| heat.recent(&params(), ns);
    assert_eq!(at(&heat, 10 * SECOND + SECOND / 2).counts.reads, 10);
    assert_eq!(at(&heat, 10 * SECOND + SECOND / 2).span_ns, SECOND * 3 / 2);
    assert_eq!(at(&heat, 11 * SECOND + SECOND / 2).counts.reads, 10);
    assert_eq!(at(&heat, 12 * SECOND).counts.reads, 0);
    heat.note_writes(&params(), 20, 11 * SECOND);
    assert_eq!(at(&heat, 11 * SECOND + 1).counts, Counts { reads: 10, writes: 20 });
    // 30 accesses in one and a half seconds are 20 a second.
    assert_eq!(at(&heat, 11 * SECOND + SECOND / 2).per_second_milli(), 20_000);
    assert_eq!(Recent::default().per_second_milli(), 0);
}

#[test]
fn counters_stop_at_their_largest_value() {
    let mut heat = PageHeat::default();
    for _ in 0..3 {
        heat.note(&params(), Counts { reads: u32::MAX, writes: u32::MAX }, u64::MAX);
    }
    assert_eq!(heat.heat_milli(&params(), u64::MAX), 2 * u64::from(u32::MAX) * 1000 + 1000);
    assert!(heat.is_hot(&params(), 0), "a clock that went back is the last time");
}

proptest! {
    #[test]
    fn a_batch_is_as_many_accesses_one_by_one(
        batches in proptest::collection::vec((0_u32..20, 0_u32..20, 0_u64..150_000), 1..30),
    ) {
        let (mut whole, mut single) = (PageHeat::default(), PageHeat::default());
        let mut now_ns = 0;
        for (reads, writes, ms) in batches {
            now_ns += ms * NS_PER_MS;
            let found = whole.note(&params(), Counts { reads, writes }, now_ns);
            let mut last = single.heat_milli(&params(), now_ns);
            for _ in 0..reads {
                last = single.note_reads(&params(), 1, now_ns);
            }
            for _ in 0..writes {
                last = single.note_writes(&params(), 1, now_ns);
            }
            prop_assert_eq!(found, last);
            prop_assert_eq!(whole, single);
        }
    }

    #[test]
    fn no_time_and_no_constants_make_it_panic(
        notes in proptest::collection::vec(any::<(u32, u32, u64)>(), 1..20),
        (expiry_ms, decay, hot, ratio, window_ms) in any::<(u32, u32, u64, u32, u32)>(),
    ) {
        let params = HeatParams {
            expiry_ms,
            decay_per_second_micro: decay,
            hot_milli: hot,
            read_hot_milli: ratio,
            window_ms,
        };
        let mut heat = PageHeat::default();
        for (reads, writes, now_ns) in notes {
            let found = heat.note(&params, Counts { reads, writes }, now_ns);
            prop_assert!(found >= HEAT_MILLI_MIN);
            prop_assert!(heat.recent(&params, now_ns).span_ns > 0);
            prop_assert!(heat.recent(&params, now_ns).per_second_milli() < u64::MAX);
        }
    }
}
