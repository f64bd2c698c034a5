//! Channels of random shape under random requests: no rule is broken, nothing is lost, and it does
//! not matter when the caller looks.

use proptest::prelude::*;
use rackpool_rack::dram::checker::Checker;
use rackpool_rack::dram::map::MapName;
use rackpool_rack::dram::timing::{DDR4_2400, DDR5_4800, DRACKSIM};
use rackpool_rack::dram::{Channel, Command, Completion, Config, Request, RowPolicy};

/// Presets with other shapes, other constants and other policies.
fn config() -> impl Strategy<Value = Config> {
    let preset = prop_oneof![Just(DDR4_2400), Just(DDR5_4800), Just(DRACKSIM)];
    let maps = ["ro-ba-bg-ra-co", "ro-co-ra-ba-bg", "ro-co-ba-bg-ra-lo^", "ra-ba-bg-ro-co^"];
    let shape = (0..2_u32, 0..3_u32, 0..3_u32, 0..maps.len(), any::<bool>());
    let queues = (1..=64_u32, 1..=64_u32, 0..=99_u32, 0..=99_u32);
    let times = (0..9_u32, 0..30_u32, 0..6_u32, 0..3_u32, 1000..9000_u32);
    let caps = (1..20_u32, 50..3000_u64);
    (preset, shape, queues, times, caps).prop_map(move |(preset, shape, queues, times, caps)| {
        let mut config = Config::new(preset);
        config.geometry.ranks = 1 << shape.0;
        config.geometry.groups = 1 << shape.1;
        config.geometry.banks = 1 << shape.2;
        config.map = MapName(maps[shape.3].into());
        config.page = if shape.4 { RowPolicy::Open } else { RowPolicy::Closed };
        (config.read_queue, config.write_queue) = (queues.0, queues.1);
        config.write_low_percent = queues.2.min(queues.3);
        config.write_high_percent = queues.2.max(queues.3);
        let t = &mut config.timing;
        t.t_rrd_l += times.0;
        t.t_faw += times.1;
        t.t_ccd_l += times.2;
        t.t_ppd = times.3;
        t.t_rc += times.0;
        t.t_rtp += times.1;
        t.rank_switch += times.3;
        t.t_refi = times.4.max(t.t_rfc + 4 * t.t_rc + t.t_wr + 200);
        (config.overtakes_max, config.age_max) = caps;
        config
    })
}

/// Gaps, lines of a small set of rows, reads or writes.
fn requests() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    let gap = prop_oneof![4 => Just(0_u64), 4 => 1..30_u64, 1 => 30..3000_u64];
    let line = prop_oneof![(0..256_u64), (0..64_u64).prop_map(|line| line << 11)];
    prop::collection::vec((gap, line, prop::bool::weighted(0.4)), 1..300)
}

struct Run {
    commands: Vec<Command>,
    completions: Vec<Completion>,
}

/// Submits each request when it comes or as soon as there is room; between requests the caller
/// looks at every cycle, or only when the channel says.
fn run(config: &Config, requests: &[(u64, u64, bool)], every_cycle: bool) -> Run {
    let mut channel = Channel::new(config).unwrap();
    channel.keep_commands();
    let (mut now, mut done, mut commands) = (0, Vec::new(), Vec::new());
    for (id, &(gap, line, write)) in requests.iter().enumerate() {
        let next = now + gap;
        while every_cycle && now < next {
            channel.advance(now, &mut done);
            now += 1;
        }
        now = next;
        let request = Request { id: id as u64, addr: line * 64, write };
        while channel.submit(now, request).is_err() {
            now = now.max(channel.next_command().unwrap());
            channel.advance(now, &mut done);
        }
    }
    while channel.queued() != (0, 0) || channel.next_event().is_some() {
        let command = channel.next_command().unwrap_or(u64::MAX);
        let next = channel.next_event().unwrap_or(u64::MAX).min(command).max(now);
        now = if every_cycle { now + 1 } else { next };
        channel.advance(now, &mut done);
    }
    channel.take_commands(&mut commands);
    Run { commands, completions: done }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_rule_is_broken_and_nothing_is_lost_whenever_the_caller_looks(
        config in config(),
        requests in requests(),
    ) {
        let lazy = run(&config, &requests, false);
        let mut checker = Checker::new(&config);
        for command in &lazy.commands {
            prop_assert_eq!(checker.check(command), Ok(()));
        }
        let mut ids: Vec<u64> = lazy.completions.iter().map(|done| done.id).collect();
        prop_assert!(lazy.completions.is_sorted_by_key(|done| done.at));
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..requests.len() as u64).collect::<Vec<_>>());
        let eager = run(&config, &requests, true);
        let ends = eager.commands.len().min(lazy.commands.len());
        prop_assert_eq!(&eager.commands[..ends], &lazy.commands[..ends]);
        prop_assert_eq!(eager.completions, lazy.completions);
    }
}
