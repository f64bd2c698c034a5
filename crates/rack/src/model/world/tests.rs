//! Whole racks against closed forms and bounds; nothing lost; the same again.

use super::*;
use crate::model::config::{Hot, Prefetch, Preset, Workload};
use crate::net::config::Fabric;
use crate::source::{Access, Pattern, Synthetic, SyntheticStream, Walk};

/// Accesses that are written down.
struct Listed(std::vec::IntoIter<Access>);

impl Source for Listed {
    fn next(&mut self) -> Option<Access> {
        self.0.next()
    }
}

fn listed(accesses: &[(u64, u64, bool)]) -> Box<dyn Source> {
    let access = |(ns, addr, write): &(u64, u64, bool)| Access {
        at: Ps::ns(*ns),
        pid: 0,
        addr: *addr,
        write: *write,
    };
    Box::new(Listed(accesses.iter().map(access).collect::<Vec<_>>().into_iter()))
}

fn synthetic(walk: Walk) -> Synthetic {
    Synthetic { walk, footprint_kib: 8 << 10, gap_ns: 40, write_percent: 25 }
}

/// Four nodes and three pools with media of 50 and 80 ns.
fn config(placement: &str) -> Config {
    Config {
        name: "test".into(),
        preset: Preset::Corrected,
        seed: 1,
        placement: placement.parse().unwrap(),
        racks: 1,
        pools: 3,
        local_mib: 2,
        pool_mib: 64,
        chunk_kib: 512,
        accesses: 20_000,
        pool_load_percent: None,
        end_ms: None,
        local_memory: Some("constant:50:16".into()),
        pool_memory: Some("constant:80:16".into()),
        local_channels: 1,
        pool_channels: 1,
        costs: None,
        injection: None,
        hot: None,
        prefetch: None,
        pool_holds_back: None,
        fabric: None,
        window_us: 50,
        workloads: vec![Workload {
            name: "w".into(),
            nodes: 4,
            pattern: Pattern::Synthetic(synthetic(Walk::Random)),
            stagger_us: 0,
        }],
    }
}

fn streams(config: &Config) -> Vec<Box<dyn Source>> {
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    for workload in &config.workloads {
        let Pattern::Synthetic(spec) = &workload.pattern else { unreachable!() };
        for _ in 0..workload.nodes {
            sources.push(Box::new(SyntheticStream::new(spec, config.seed, sources.len() as u64)));
        }
    }
    sources
}

fn run(config: &Config, sources: Vec<Box<dyn Source>>) -> Outcome {
    let mut world = World::new(config, sources).unwrap();
    assert!(world.run(u64::MAX).unwrap());
    assert_eq!(world.under_way(), 0, "nothing is lost");
    let outcome = world.outcome();
    assert_eq!(outcome.net.sent, outcome.net.delivered);
    outcome
}

fn run_streams(config: &Config) -> Outcome {
    let outcome = run(config, streams(config));
    assert_eq!(outcome.accesses, config.accesses * u64::from(config.nodes()));
    outcome
}

#[test]
fn one_local_and_one_remote_access_take_their_closed_forms() {
    let mut config = config("alternate+round-robin");
    config.workloads[0].nodes = 1;
    for preset in Preset::ALL {
        config.preset = preset;
        let fabric = config.fabric();
        // The first page is the node's own, the second one a pool's.
        let accesses = [(0, 0, false), (100_000, 4096, false), (200_000, 4160, true)];
        let outcome = run(&config, vec![listed(&accesses)]);
        let stats = &outcome.workloads[0];
        assert_eq!(stats.local.ps, 50_000, "{preset:?}");
        let round =
            |there, back| fabric.one_way(fabric.bytes(there)) + fabric.one_way(fabric.bytes(back));
        let read = round(PacketKind::ReadLine, PacketKind::LineData);
        let write = round(PacketKind::WriteLine, PacketKind::LineWritten);
        let lookups = 2 * config.costs().lookup_step_ps;
        assert_eq!(stats.pool.ps, 160_000, "{preset:?}");
        assert_eq!(stats.network().ps, (read + write).0 + lookups, "{preset:?}");
        let faults = 2 * config.costs().fault_ns;
        let asked = config.costs().manager_ns + config.costs().chunk_ns;
        assert_eq!(stats.fault_time.ps, (faults + asked) * 1_000, "{preset:?}");
        assert_eq!((stats.faults, outcome.choices.len()), (2, 1));
    }
}

#[test]
fn page_policies_use_own_memory_as_they_say() {
    // 512 frames of the node's own, and a footprint of 2048 pages.
    for (placement, own) in [("local-first", 512), ("alternate", 512), ("random", 0)] {
        let mut config = config(placement);
        config.workloads[0].nodes = 1;
        let accesses: Vec<_> = (0..2048).map(|page| (page * 200, page * 4096, false)).collect();
        let half = run(&config, vec![listed(&accesses[..600])]);
        let all = run(&config, vec![listed(&accesses)]);
        let local = |outcome: &Outcome| outcome.workloads[0].local.count;
        let first = match placement {
            "local-first" => 512,
            "alternate" => 300,
            _ => 0,
        };
        assert_eq!((local(&half), local(&all)), (first, own), "{placement}");
        let is_exhausted = all.workloads[0].exhausted.is_some();
        assert_eq!(is_exhausted, own > 0);
        assert_eq!(all.chunks.iter().sum::<u32>(), 0, "a node that ends gives all back");
        assert_eq!(all.chunks_returned, all.choices.len() as u64);
    }
}

#[test]
fn a_rack_without_memory_says_which_node_and_when() {
    let mut config = config("alternate+least-loaded");
    (config.pool_mib, config.local_mib) = (1, 1);
    let mut world = World::new(&config, streams(&config)).unwrap();
    let error = world.run(u64::MAX).unwrap_err();
    assert!(matches!(error, RunError::NoMemory { local_mib: 1, .. }), "{error}");
}

#[test]
fn every_pool_policy_runs_alike_twice_and_loses_nothing() {
    for pool in
        ["random", "round-robin", "smart-idle", "smart-idle:50us", "least-loaded", "even:50us"]
    {
        for preset in [Preset::DracksimFaithful, Preset::Corrected] {
            let mut config = config(&format!("alternate+{pool}"));
            config.preset = preset;
            config.workloads[0].stagger_us = 3;
            let (first, again) = (run_streams(&config), run_streams(&config));
            assert_eq!(first, again, "{pool}");
            config.seed = 2;
            assert_ne!(first.end, run_streams(&config).end, "{pool}");
        }
    }
}

#[test]
fn a_run_goes_on_from_a_checkpoint_as_if_it_had_not_stopped() {
    let mut config = config("alternate+smart-idle");
    config.hot = Some(Hot { accesses_min: 6, times_victim: 2, window_us: 100, moves_max: 4 });
    config.prefetch = Some(Prefetch { depth: 2, buffer_lines: 64, hit_ns: 10 });
    config.workloads[0].pattern = Pattern::Synthetic(synthetic(Walk::Skewed));
    let whole = run_streams(&config);
    let mut world = World::new(&config, streams(&config)).unwrap();
    for events in [1, 10_000, 77_777] {
        assert!(!world.run(events).unwrap());
        let bytes = world.checkpoint();
        // Both go on: the one that was written down and the one that wrote.
        let mut twin = World::resume(&config, streams(&config), &bytes).unwrap();
        assert!(twin.run(u64::MAX).unwrap());
        assert_eq!(twin.outcome(), whole);
    }
    let bytes = world.checkpoint();
    assert!(world.run(u64::MAX).unwrap());
    assert_eq!(world.outcome(), whole);
    let resume = |config: &Config, bytes: &[u8]| {
        World::resume(config, streams(config), bytes).map(drop).unwrap_err()
    };
    let other = Config { seed: 9, ..config.clone() };
    assert_eq!(resume(&other, &bytes), CheckpointError::OtherConfig);
    let mut damaged = bytes.clone();
    damaged[1000] ^= 1;
    for wrong in [&damaged[..], &bytes[..bytes.len() - 1], &bytes[..5], b"0123456789abcdefgh"] {
        assert!(matches!(resume(&config, wrong), CheckpointError::Damaged(_)));
    }
}

#[test]
fn hot_pages_come_home_and_accesses_get_faster() {
    // Every other page is a pool's, also of the few that are used most.
    let mut config = config("alternate+round-robin");
    config.workloads[0].pattern = Pattern::Synthetic(synthetic(Walk::Skewed));
    config.accesses = 60_000;
    let without = run_streams(&config);
    config.hot = Some(Hot { accesses_min: 8, times_victim: 2, window_us: 300, moves_max: 4 });
    let with = run_streams(&config);
    assert!(with.workloads[0].moved[0] > 100, "{:?}", with.workloads[0].moved);
    let remote = |outcome: &Outcome| outcome.workloads[0].remote.count;
    assert!(remote(&with) < remote(&without) / 2);
    let mean = |outcome: &Outcome| outcome.workloads[0].all.mean_ns();
    assert!(mean(&with) < mean(&without));
    // With free frames pages move without a victim, and empty chunks go back meanwhile.
    config.placement = "random".parse().unwrap();
    let moved = run_streams(&config).workloads[0].moved;
    assert!(moved[0] > 500, "{moved:?}");
}

#[test]
fn hot_pages_change_places_with_cold_ones_where_no_frame_is_free() {
    let mut config = config("local-first+round-robin");
    config.workloads[0].nodes = 1;
    config.local_mib = 1;
    config.accesses = u64::MAX / 8;
    config.hot = Some(Hot { accesses_min: 8, times_victim: 2, window_us: 500, moves_max: 4 });
    // 256 pages fill the frames and rest; then 16 others, again and again.
    let cold = (0..256).map(|page| (page * 100, page * 4096, false));
    let hot = (0..1_600).map(|turn| (30_000 + turn * 200, (256 + turn % 16) * 4096, turn % 3 == 0));
    let outcome = run(&config, vec![listed(&cold.chain(hot).collect::<Vec<_>>())]);
    let stats = &outcome.workloads[0];
    assert_eq!(stats.moved, [0, 16]);
    // A page that comes is read, and its victim written.
    assert_eq!(outcome.pools.pages.iter().sum::<u64>(), 32);
    // Eight accesses of each at least, and those while it was on its way, were remote.
    assert!((128..400).contains(&stats.remote.count), "{}", stats.remote.count);
}

#[test]
fn lines_that_follow_one_another_come_before_they_are_wanted() {
    let mut config = config("random");
    let spec = Synthetic { write_percent: 0, gap_ns: 200, ..synthetic(Walk::Sequential) };
    config.workloads[0].pattern = Pattern::Synthetic(spec);
    let without = run_streams(&config);
    config.prefetch = Some(Prefetch { depth: 4, buffer_lines: 64, hit_ns: 10 });
    let with = run_streams(&config);
    let stats = &with.workloads[0];
    // All but the first two lines of each page.
    let share = stats.prefetched.count as f64 / stats.all.count as f64;
    assert!(share > 0.9, "{share}");
    assert!(stats.all.mean_ns() < 0.4 * without.workloads[0].all.mean_ns());
    assert!(stats.all.count == stats.local.count + stats.remote.count + stats.prefetched.count);
}

#[test]
fn a_window_of_accesses_bounds_what_is_under_way_and_shifts_the_trace() {
    // Little's law: with W under way and a round trip of T, W / T accesses a second.
    let mut config = config("random");
    config.injection = Some(Injection::Window(2));
    config.workloads[0].nodes = 1;
    let spec = Synthetic { write_percent: 0, gap_ns: 1, ..synthetic(Walk::Random) };
    config.workloads[0].pattern = Pattern::Synthetic(spec);
    config.costs = Some(Costs { fault_ns: 0, chunk_ns: 0, manager_ns: 0, ..config.costs() });
    let outcome = run_streams(&config);
    let stats = &outcome.workloads[0];
    let expected = stats.all.mean_ns() * stats.all.count as f64 / 2.0;
    let took = outcome.end.as_ns_f64();
    assert!((took / expected - 1.0).abs() < 0.01, "{took} ns instead of {expected}");
    assert!(stats.stalls.count > 19_000);
}

#[test]
fn a_pool_that_holds_back_fills_the_interconnect_and_loses_nothing() {
    let mut config = config("random");
    // One pool of 1 GB/s: 64 ns a line, of four nodes with a line each 40 ns.
    config.pools = 1;
    config.pool_mib = 256;
    config.pool_memory = Some("constant:80:1".into());
    config.injection = Some(Injection::Open);
    config.fabric = Some(Fabric {
        nic_bytes: 8 << 10,
        input_bytes: 8 << 10,
        output_bytes: 8 << 10,
        ..config.fabric()
    });
    let held = run_streams(&config);
    assert!(held.net.blocked > 1_000, "{:?}", held.net);
    assert!(held.pool_waiting_max < 200, "{}", held.pool_waiting_max);
    config.pool_holds_back = Some(false);
    let unbound = run_streams(&config);
    assert!(unbound.pool_waiting_max > 10_000, "{}", unbound.pool_waiting_max);
    // The same bottleneck, so the same end.
    let ends = [held.end, unbound.end].map(Ps::as_ns_f64);
    assert!((ends[0] / ends[1] - 1.0).abs() < 0.01, "{ends:?}");
    assert!((ends[0] / (80_000.0 * 64.0) - 1.0).abs() < 0.02, "{ends:?}");
}

#[test]
fn other_racks_pools_are_used_when_the_own_ones_are_full_and_cost_the_uplink() {
    let mut config = config("random");
    (config.racks, config.pools, config.pool_mib) = (2, 2, 16);
    config.workloads[0].nodes = 3;
    // Nodes 0 and 2 are in rack 0 and fill its pool.
    let outcome = run_streams(&config);
    let fabric = config.fabric();
    let own = fabric.one_way(fabric.bytes(PacketKind::ReadLine)).as_ns_f64();
    let tail = outcome.tails.remote.percentile(990_000).unwrap() as f64 / 1e3;
    assert!(outcome.chunks_returned > 0 && tail > 2.0 * own, "{tail} ns");
    config.pool_mib = 64;
    let near = run_streams(&config).tails.remote.percentile(990_000).unwrap() as f64 / 1e3;
    assert!(near < 1_000.0, "{near} ns");
}

#[test]
fn chunk_sizes_change_how_often_the_manager_is_asked_and_what_a_look_up_costs() {
    let asked = |chunk_kib| {
        let mut config = config("random");
        config.chunk_kib = chunk_kib;
        let outcome = run_streams(&config);
        let network = outcome.workloads[0].network();
        (outcome.choices.len(), network.mean_ns())
    };
    let (small, large) = (asked(64), asked(4096));
    // 8 MiB of each of four nodes.
    assert_eq!((small.0, large.0), (4 * 128, 4 * 2));
    assert!(small.1 > large.1 + 2.0, "{small:?} {large:?}");
}

#[test]
fn the_cost_of_a_run_follows_its_accesses_not_its_time() {
    let mut config = config("local-first+round-robin");
    (config.workloads[0].nodes, config.local_mib) = (1, 1);
    (config.local_memory, config.pool_memory) = (None, Some("cxl:70:32:ddr5-4800".into()));
    config.pool_channels = 4;
    // A hundred milliseconds between two accesses, 26 minutes in all.
    let accesses: Vec<(u64, u64, bool)> = (0..16_000)
        .map(|turn| (turn * 100_000_000, turn * 4096 % (4 << 20), turn % 3 == 0))
        .collect();
    let outcome = run(&config, vec![listed(&accesses)]);
    assert_eq!(outcome.accesses, 16_000);
    assert!(outcome.end >= Ps::ms(1_599_900) && outcome.events < 40 * 16_000, "{}", outcome.events);
    // Windows became longer until there were few enough; nothing is missing in them.
    let stats = &outcome.workloads[0];
    assert!(outcome.window > Ps::us(config.window_us));
    assert!(stats.slices.len() as u64 <= crate::model::stats::WINDOWS_MAX);
    assert_eq!(stats.slices.iter().map(|slice| slice.all.count).sum::<u64>(), 16_000);
    let counted: u64 = outcome.pools.accesses.iter().flatten().map(|count| u64::from(*count)).sum();
    assert_eq!(counted, stats.remote.count);
}

#[test]
fn what_is_longer_than_virtual_time_is_refused() {
    for change in [
        (|config: &mut Config| config.end_ms = Some(u64::MAX)) as fn(&mut Config),
        |config| config.window_us = u64::MAX,
        |config| config.workloads[0].stagger_us = u64::MAX / 2,
        |config| {
            let costs = Costs { fault_ns: u64::MAX, ..config.costs() };
            config.costs = Some(costs);
        },
        |config| config.pool_channels = u16::MAX,
    ] {
        let mut config = config("local-first");
        change(&mut config);
        assert!(config.check().is_err(), "{config:?}");
    }
}
