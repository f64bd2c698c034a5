//! Golden weights, the solver against all weights there are, and refusals.

use super::*;
use proptest::prelude::*;

/// Bandwidths in thousands of MB/s, the best weights, HMSDK's, and what the two reach.
type Golden = (&'static [f64], &'static [u32], f64, &'static [u32], f64);

const GOLDEN: &[Golden] = &[
    (&[300.0, 100.0], &[3, 1], 1.0, &[3, 1], 1.0),
    (&[350.0, 60.0], &[6, 1], 0.996, &[11, 2], 0.951),
    (&[200.0, 50.0], &[4, 1], 1.0, &[3, 1], 0.8),
    (&[307.0, 52.0], &[6, 1], 0.998, &[9, 2], 0.797),
    (&[150.0, 25.0], &[6, 1], 1.0, &[9, 2], 0.786),
    (&[100.0, 50.0], &[2, 1], 1.0, &[2, 1], 1.0),
    (&[200.0, 80.0, 40.0], &[5, 2, 1], 1.0, &[6, 2, 1], 0.938),
    (&[40.0, 80.0, 200.0], &[1, 2, 5], 1.0, &[1, 2, 6], 0.938),
    (&[100.0], &[1], 1.0, &[1], 1.0),
    (&[70.0, 70.0, 70.0], &[1, 1, 1], 1.0, &[1, 1, 1], 1.0),
    // Slower than a sixteenth of the other: no weights up to 16 are of use, HMSDK goes above.
    (&[300.0, 3.0], &[16, 1], 0.168, &[146, 1], 0.997),
];

#[test]
fn weights_and_their_utilisation_are_as_computed_by_hand() {
    for (bandwidths, weights, reached, hmsdk, hmsdk_reached) in GOLDEN {
        let mbps: Vec<f64> = bandwidths.iter().map(|thousands| thousands * 1000.0).collect();
        let best = solve(&mbps, WEIGHT_MAX_DEFAULT).unwrap();
        assert_eq!(best.weights, *weights, "{bandwidths:?}");
        assert!((best.utilisation - reached).abs() < 5e-4, "{bandwidths:?} {best:?}");
        let theirs = rounded(&mbps).unwrap().unwrap();
        assert_eq!(theirs.weights, *hmsdk, "{bandwidths:?}");
        assert!((theirs.utilisation - hmsdk_reached).abs() < 5e-4, "{bandwidths:?} {theirs:?}");
        assert_eq!(utilisation(&mbps, weights).unwrap(), best.utilisation);
    }
}

/// The best of all weights, by counting through them.
fn brute_force(mbps: &[f64], max: u32) -> Vec<u32> {
    let bandwidths = bytes_per_s(mbps).unwrap();
    let mut weights = vec![1; mbps.len()];
    let mut best = Candidate::of(&bandwidths, weights.clone());
    loop {
        let Some(index) = weights.iter().position(|weight| *weight < max) else {
            return best.weights;
        };
        weights[index] += 1;
        weights[..index].fill(1);
        let candidate = Candidate::of(&bandwidths, weights.clone());
        if candidate.is_better_than(&best) {
            best = candidate;
        }
    }
}

/// Bandwidths of memories, as free and as round as they come.
fn bandwidths(memories: usize) -> impl Strategy<Value = Vec<f64>> {
    let one = prop_oneof![
        (1u32..40).prop_map(f64::from),
        (1u32..500_000).prop_map(f64::from),
        1.0..500_000.0,
    ];
    proptest::collection::vec(one, memories)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_weights_of_two_memories_are_better(mbps in bandwidths(2), max in 1u32..=64) {
        prop_assert_eq!(solve(&mbps, max).unwrap().weights, brute_force(&mbps, max));
    }

    #[test]
    fn no_weights_of_three_memories_are_better(mbps in bandwidths(3), max in 1u32..=16) {
        prop_assert_eq!(solve(&mbps, max).unwrap().weights, brute_force(&mbps, max));
    }

    #[test]
    fn no_weights_of_four_memories_are_better(mbps in bandwidths(4), max in 1u32..=8) {
        prop_assert_eq!(solve(&mbps, max).unwrap().weights, brute_force(&mbps, max));
    }

    #[test]
    fn the_best_weights_are_never_worse_than_hmsdks(mbps in bandwidths(8)) {
        let best = solve(&mbps, WEIGHT_MAX).unwrap();
        prop_assert!(best.utilisation <= 1.0 && best.weights.len() == 8);
        if let Some(theirs) = rounded(&mbps).unwrap()
            && theirs.weights.iter().all(|weight| *weight <= WEIGHT_MAX)
        {
            prop_assert!(theirs.utilisation <= best.utilisation);
        }
        // The order of the memories is of no consequence.
        let reversed: Vec<f64> = mbps.iter().rev().copied().collect();
        let other: Vec<u32> = solve(&reversed, WEIGHT_MAX).unwrap().weights;
        prop_assert_eq!(other.into_iter().rev().collect::<Vec<_>>(), best.weights);
    }

    #[test]
    fn a_mix_lies_between_the_bandwidths_of_its_parts(
        read in 1.0..1e6, write in 1.0..1e6, share in 0.0..=1.0,
    ) {
        let points = [point(1.0, read), point(0.0, write)];
        let mixed = mixed_mbps(&points, share).unwrap();
        let (least, most) = (f64::min(read, write), f64::max(read, write));
        prop_assert!(least * 0.999_999 <= mixed && mixed <= most * 1.000_001);
    }
}

#[test]
fn four_memories_and_weights_up_to_16_are_solved_as_by_counting() {
    for mbps in [[200e3, 80e3, 40e3, 13e3], [7.0, 5.0, 3.0, 2.0], [1.0, 1.0, 1.0, 17.0]] {
        assert_eq!(solve(&mbps, 16).unwrap().weights, brute_force(&mbps, 16), "{mbps:?}");
    }
}

#[test]
fn of_equally_good_weights_the_smallest_are_taken() {
    assert_eq!(solve(&[2.0, 1.0], 255).unwrap().weights, [2, 1]);
    assert_eq!(solve(&[5.0; 8], 255).unwrap().weights, [1; 8]);
}

#[test]
fn hmsdk_refuses_a_weight_of_0_and_exceeds_the_kernels_limit() {
    assert_eq!(rounded(&[8.0, 0.4]), Ok(None));
    assert_eq!(rounded(&[0.3, 0.1]), Ok(None));
    let far_apart = rounded(&[300_000.0, 300.0]).unwrap().unwrap();
    assert!(far_apart.weights[0] > WEIGHT_MAX, "{far_apart:?}");
}

#[test]
fn what_is_no_bandwidth_is_refused() {
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-9, 1e13] {
        for result in [solve(&[5.0, wrong], 16).map(Some), rounded(&[5.0, wrong])] {
            let Err(WeightsError::Bandwidth { index: 1, mbps }) = result else {
                panic!("{wrong}: {result:?}");
            };
            assert_eq!(mbps.to_bits(), wrong.to_bits());
        }
    }
    assert_eq!(solve(&[], 16), Err(WeightsError::NoMemory));
    assert_eq!(rounded(&[]), Err(WeightsError::NoMemory));
    assert_eq!(solve(&[1.0; 65], 16), Err(WeightsError::TooMany { count: 65 }));
    for max in [0, 256, u32::MAX] {
        assert_eq!(solve(&[1.0], max), Err(WeightsError::Max { max }));
    }
    for weights in [&[1][..], &[1, 0], &[1, 1, 1]] {
        let refused = utilisation(&[2.0, 1.0], weights);
        let weights = weights.to_vec();
        assert_eq!(refused, Err(WeightsError::Weights { weights, memories: 2 }));
    }
}

fn point(read_share: f64, mbps: f64) -> MixPoint {
    MixPoint { read_share, mbps }
}

#[test]
fn a_mix_adds_the_times_of_reads_and_writes() {
    let ends = [point(0.0, 50.0), point(1.0, 100.0)];
    // Three bytes read take 3 units, one that is written 2: 4 bytes in 5 units.
    assert!((mixed_mbps(&ends, 0.75).unwrap() - 80.0).abs() < 1e-9);
    assert_eq!(mixed_mbps(&ends, 1.0), Ok(100.0));
    assert_eq!(mixed_mbps(&ends, 0.0), Ok(50.0));
    // A link that carries both at once is measured between the ends.
    let measured = [point(1.0, 100.0), point(0.5, 120.0), point(0.0, 50.0)];
    assert_eq!(mixed_mbps(&measured, 0.5), Ok(120.0));
    assert!((mixed_mbps(&measured, 0.75).unwrap() - 1.0 / (0.5 / 100.0 + 0.5 / 120.0)) < 1e-9);
    // Outside of what is known the nearest holds.
    assert_eq!(mixed_mbps(&measured[..2], 0.1), Ok(120.0));
    assert_eq!(mixed_mbps(&[], 0.5), Err(WeightsError::NoPoint));
    assert_eq!(mixed_mbps(&ends, 1.5), Err(WeightsError::ReadShare { share: 1.5 }));
    assert!(matches!(mixed_mbps(&ends, f64::NAN), Err(WeightsError::ReadShare { .. })));
    let broken = [point(1.0, 100.0), point(0.0, 0.0)];
    assert_eq!(mixed_mbps(&broken, 1.0), Err(WeightsError::Bandwidth { index: 1, mbps: 0.0 }));
}

#[test]
fn the_report_is_as_the_contract_says() {
    let report = |text| Report::of(&parse_bandwidths(text).unwrap(), WEIGHT_MAX_DEFAULT).unwrap();
    let json = serde_json::to_string(&report("300000, 100000")).unwrap();
    assert_eq!(
        json,
        r#"{"weights":[3,1],"utilisation":1.0,"rounded":{"weights":[3,1],"utilisation":1.0}}"#
    );
    let json = serde_json::to_string(&report("8,0.4")).unwrap();
    assert!(json.starts_with(r#"{"weights":[16,1],"#) && json.ends_with(r#""rounded":null}"#));
    for (text, part) in [("", ""), ("3,,1", ""), ("3:1", "3:1"), ("3,x", "x")] {
        let part = part.to_owned();
        assert_eq!(parse_bandwidths(text), Err(WeightsError::Text { part }));
    }
    // A number, and no bandwidth.
    let nan = parse_bandwidths("1,NaN").unwrap();
    assert!(matches!(solve(&nan, 16), Err(WeightsError::Bandwidth { index: 1, .. })));
}
