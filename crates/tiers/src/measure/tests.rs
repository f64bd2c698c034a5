//! This machine is measured quickly: shape and counts, never times. Profiles, as they are stored
//! and refused.

use super::*;

fn pair() -> Pair {
    let cores = allowed_cores().unwrap();
    Pair { cpu_node: 0, cores, memory_node: 0, is_bound: false, available_bytes: None }
}

/// Where the first node has memory, this machine's figures.
fn measured() -> PairProfile {
    measure(&pair(), Effort::quick(), &mut |_| {}).unwrap()
}

#[test]
fn this_machine_is_measured() {
    let mut steps = Vec::new();
    let measured = measure(&pair(), Effort::quick(), &mut |step| steps.push(step.to_owned()));
    let measured = measured.unwrap();
    assert_eq!(steps.len(), STEPS as usize);
    assert_eq!(steps[2], "bandwidth, 3:1");
    let cores = pair().cores.len().min(4);
    let kinds: Vec<Traffic> = measured.bandwidth.iter().map(|curve| curve.traffic).collect();
    assert_eq!(kinds, Traffic::ALL);
    for curve in &measured.bandwidth {
        let threads: Vec<usize> = curve.points.iter().map(|point| point.threads as usize).collect();
        let all: Vec<usize> = thread_counts(cores).collect();
        assert_eq!(threads, all[..threads.len()]);
        assert!(threads.len() == all.len() || curve.is_saturated, "{curve:?}");
        assert!(curve.best().unwrap().mbps.value > 0.0);
        assert!(curve.points.iter().all(|point| point.mbps.runs == 3));
    }
    let threads: Vec<u32> = measured.latency.iter().map(|point| point.threads).collect();
    assert_eq!(threads[0], 0);
    assert_eq!(threads.len(), 1 + thread_counts(cores - 1).count());
    assert_eq!(measured.latency[0].load_mbps, 0.0);
    assert!(measured.latency[1..].iter().all(|point| point.load_mbps > 0.0));
    assert!(measured.idle_latency_ns().unwrap() > 0.0);
    assert!(measured.figures().count() <= Effort::quick().figures(&[pair()]) as usize);
    let shares: Vec<f64> = measured.mix_points().iter().map(|point| point.read_share).collect();
    assert_eq!(shares, [1.0, 0.75, 0.5, 0.0]);
    assert!(crate::weights::mixed_mbps(&measured.mix_points(), 0.9).unwrap() > 0.0);
    println!("{measured:#?}");
}

#[test]
fn memory_is_bound_to_a_node_and_its_pages_are_looked_up() {
    let bound = Pair { is_bound: true, ..pair() };
    match measure(&bound, Effort::quick(), &mut |_| {}) {
        Ok(measured) => assert_eq!((measured.cpu_node, measured.memory_node), (0, 0)),
        // A seccomp filter, or a kernel without NUMA.
        Err(error) => assert!(matches!(error, MeasureError::Bind { node: 0, .. }), "{error}"),
    }
    let absent = Pair { memory_node: 1000, ..bound };
    let refused = measure(&absent, Effort::quick(), &mut |_| {});
    assert!(matches!(refused, Err(MeasureError::Bind { node: 1000, .. })), "{refused:?}");
    // Not bound and not there: the figures would be another node's.
    let wrong = Pair { is_bound: false, ..absent };
    match measure(&wrong, Effort::quick(), &mut |_| {}) {
        Ok(measured) => assert!(!measured.is_verified),
        Err(error) => {
            assert!(matches!(error, MeasureError::Elsewhere { node: 1000, .. }), "{error}");
        }
    }
}

#[test]
fn a_node_without_room_or_cores_is_refused_before_memory_is_taken() {
    let full = Pair { available_bytes: Some((16 << 20) - 1), ..pair() };
    let refused = measure(&full, Effort::quick(), &mut |_| {}).unwrap_err();
    assert!(matches!(refused, MeasureError::NoRoom { needed_bytes: 8_388_608, .. }), "{refused}");
    let small = Effort { bytes: 4096, ..Effort::quick() };
    let refused = measure(&pair(), small, &mut |_| {}).unwrap_err();
    assert!(matches!(refused, MeasureError::TooSmall { bytes: 4096, .. }), "{refused}");
    let none = Pair { cores: vec![1_000_000], cpu_node: 3, ..pair() };
    let refused = measure(&none, Effort::quick(), &mut |_| {}).unwrap_err();
    assert!(matches!(refused, MeasureError::NoCore { cpu_node: 3 }), "{refused}");
}

#[test]
fn a_limit_of_time_is_kept_by_fewer_runs() {
    let pairs = [Pair { cores: vec![0, 1, 2, 3], ..pair() }, Pair { cores: vec![0], ..pair() }];
    let effort = Effort { threads_max: 3, ..Effort::quick() };
    // Of three threads and of one: five kinds of traffic each, and loads from 0.
    assert_eq!(effort.figures(&pairs), 5 * 3 + 3 + 5 + 1);
    let effort = Effort { duration: Duration::from_millis(50), ..effort };
    let rule = NoiseRule { bound: 0.03, last: 5, runs_max: 25 };
    let runs_max = |seconds| {
        let limited = Effort { rule, ..effort }.within(Duration::from_secs(seconds), &pairs);
        limited.map(|effort| effort.rule.runs_max)
    };
    assert_eq!(runs_max(3600).unwrap(), 25);
    assert_eq!(runs_max(12).unwrap(), 10);
    let refused = runs_max(5).unwrap_err();
    assert!(
        refused.to_string().starts_with("5 s are too short for 24 figures, 6 s are"),
        "{refused}"
    );
}

#[test]
fn threads_rise_by_halves_and_end_with_all_cores() {
    let counts = |most| thread_counts(most).collect::<Vec<_>>();
    assert!(counts(0).is_empty());
    assert_eq!(counts(1), [1]);
    assert_eq!(counts(2), [1, 2]);
    assert_eq!(counts(3), [1, 2, 3]);
    assert_eq!(counts(20), [1, 2, 3, 4, 6, 8, 12, 16, 20]);
}

#[test]
fn a_curve_ends_when_more_threads_bring_no_more() {
    let figure = |value| Figure { value, spread: 0.0, runs: 5, disturbed: 0, is_settled: true };
    let mbps = |threads: usize| Ok::<_, ()>(figure(f64::min(threads as f64 * 10.0, 40.0)));
    let (points, is_saturated) = rising(thread_counts(64), 0.03, mbps).unwrap();
    let threads: Vec<u32> = points.iter().map(|point| point.threads).collect();
    assert_eq!((threads.as_slice(), is_saturated), (&[1, 2, 3, 4, 6, 8][..], true));
    let curve = Curve { traffic: Traffic::Read, points, is_saturated };
    assert_eq!(curve.best().unwrap().mbps.value, 40.0);
    // Much noise is allowed, and a third more is a gain all the same.
    let (points, is_saturated) = rising(thread_counts(4), 0.5, mbps).unwrap();
    assert_eq!((points.len(), is_saturated), (4, false));
    // Out of cores while it rises.
    let (points, is_saturated) = rising(thread_counts(3), 0.03, mbps).unwrap();
    assert_eq!((points.len(), is_saturated), (3, false));
}

#[test]
fn caches_count_once_and_memory_is_many_times_as_large_where_there_is_room() {
    let cores = allowed_cores().unwrap();
    let (one, all) = (cache_bytes(&cores[..1]), cache_bytes(&cores));
    assert!(0 < one && one <= all);
    assert_eq!(cache_bytes(&[cores[0], cores[0]]), one);
    assert_eq!(cache_bytes(&[1_000_000]), CACHES_BYTES);
    let bytes = |available_bytes| {
        let effort = Effort::thorough(&[pair(), Pair { available_bytes, ..pair() }]);
        assert_eq!(effort.uncached_bytes, (all * CACHES_TIMES).max(BYTES_MIN));
        effort.bytes
    };
    assert_eq!(bytes(Some(u64::MAX)), (all * CACHES_TIMES).clamp(BYTES_MIN, BYTES_MAX));
    assert_eq!(bytes(Some(16 << 20)), BYTES_MIN);
}

fn profile() -> Profile {
    Profile::new(1_700_000_000, 0.03, vec![measured()])
}

#[test]
fn a_profile_that_was_stored_is_read_back() {
    let profile = profile();
    let name = format!("rackpool-tiers-{}.json", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, serde_json::to_string_pretty(&profile).unwrap()).unwrap();
    let read = Profile::load(&path);
    std::fs::remove_file(&path).unwrap();
    let read = read.unwrap();
    assert_eq!(read, profile);
    assert_eq!(read.machine, Machine::here());
    assert!(read.pair(0, 0).is_some() && read.pair(0, 1).is_none());
    assert_eq!(read.age(1_700_000_060), Some(Duration::from_secs(60)));
    assert_eq!(read.age(1_600_000_000), None);
    assert!(matches!(Profile::load(&path), Err(ProfileError::Io { .. })));
}

#[test]
fn a_profile_that_no_measurement_writes_is_refused() {
    let text = serde_json::to_string(&profile()).unwrap();
    assert!(matches!(Profile::parse(&text[..100]), Err(ProfileError::Text { line: 1, .. })));
    assert!(matches!(Profile::parse("[]"), Err(ProfileError::Text { .. })));
    let other = text.replace("rackpool.tiers.profile/1", "rackpool.tiers.profile/9");
    let Err(ProfileError::Schema { found }) = Profile::parse(&other) else {
        panic!("another version is read");
    };
    assert_eq!(found, "rackpool.tiers.profile/9");
    let unknown = text.replace("\"source\"", "\"sauce\"");
    assert!(matches!(Profile::parse(&unknown), Err(ProfileError::Text { .. })));
    let wrong = |change: fn(&mut Profile)| {
        let mut profile: Profile = serde_json::from_str(&text).unwrap();
        change(&mut profile);
        Profile::parse(&serde_json::to_string(&profile).unwrap()).unwrap_err().to_string()
    };
    let zero = wrong(|profile| profile.pairs[0].bandwidth[0].points[0].mbps.value = 0.0);
    assert_eq!(
        zero,
        "the profile's pairs[0].bandwidth, Read is 0: it must be a number above 0; \
         measure anew"
    );
    let minus = wrong(|profile| profile.pairs[0].latency[0].latency_ns.value = -4.0);
    assert!(minus.contains("pairs[0].latency is -4"), "{minus}");
    for shape in [
        wrong(|profile| profile.pairs[0].bandwidth.truncate(2)),
        wrong(|profile| profile.pairs[0].bandwidth[1].points.clear()),
        wrong(|profile| profile.pairs[0].bandwidth[1].points[0].threads = 0),
        wrong(|profile| profile.pairs[0].latency.clear()),
        wrong(|profile| profile.pairs.push(profile.pairs[0].clone())),
    ] {
        assert!(shape.ends_with("is not as a measurement writes it: measure anew"), "{shape}");
    }
}
