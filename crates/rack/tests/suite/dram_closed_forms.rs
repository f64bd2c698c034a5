//! What the constants alone say, and what other simulators measured of the same constants.

use rackpool_rack::dram::stream::{AddressOrder, ArrivalRate, RequestStream, StreamResult};
use rackpool_rack::dram::{Channel, Completion, Config, Request, RowPolicy};

fn channel(config: &Config) -> Channel {
    Channel::new(config).unwrap()
}

/// The latency of one read at `now`, alone.
fn read(channel: &mut Channel, now: u64, addr: u64) -> u64 {
    channel.submit(now, Request { id: 7, addr, write: false }).unwrap();
    let mut done: Vec<Completion> = Vec::new();
    while done.is_empty() {
        let at = channel.next_event().unwrap();
        channel.advance(at, &mut done);
    }
    assert_eq!((done[0].id, done[0].arrived, done.len()), (7, now, 1));
    done[0].at - now
}

/// Latencies of a read in a closed bank, of one of the same row, and of one of another row.
fn alone(preset: &str) -> (u64, u64, u64) {
    let config = Config::preset(preset).unwrap();
    let mut channel = channel(&config);
    let row_bytes = u64::from(config.geometry.columns) * 64;
    let other_row = u64::from(config.geometry.banks_all()) * row_bytes;
    let latencies = (
        read(&mut channel, 1000, 0),
        read(&mut channel, 2000, 64),
        read(&mut channel, 3000, other_row),
    );
    let counts = channel.counts();
    assert_eq!((counts.row_misses, counts.row_hits, counts.row_conflicts), (1, 1, 1));
    assert_eq!((counts.activates, counts.precharges, counts.refreshes), (2, 1, 0));
    latencies
}

fn stream(pattern: AddressOrder, pace: ArrivalRate, writes_permille: u64) -> StreamResult {
    let stream = RequestStream { pattern, pace, writes_permille, requests: 300_000, seed: 1 };
    stream.run(0, &mut channel(&Config::preset("ddr4-2400").unwrap()), |_| ())
}

fn assert_within(what: &str, ours: f64, theirs: f64, percent: f64) {
    let off = 100.0 * (ours / theirs - 1.0);
    assert!(off.abs() <= percent, "{what}: {ours:.1}, {off:+.1} % off {theirs}");
}

#[test]
fn an_idle_ddr4_2400_reads_in_36_cycles_a_conflict_in_52_and_a_hit_in_20() {
    assert_eq!(alone("ddr4-2400"), (36, 20, 52));
    // tRCD + CL + BL/2, CL + BL/2, tRP + tRCD + CL + BL/2.
    assert_eq!(alone("ddr5-4800"), (36 + 36 + 8, 36 + 8, 36 + 36 + 36 + 8));
    assert_eq!(alone("dracksim"), (36, 20, 52));
}

#[test]
fn a_closed_page_reads_every_time_as_if_idle() {
    let mut config = Config::preset("ddr4-2400").unwrap();
    config.page = RowPolicy::Closed;
    let mut channel = channel(&config);
    for number in 0..10 {
        assert_eq!(read(&mut channel, 1000 * (number + 1), number << 22), 36);
    }
    assert_eq!((channel.counts().auto_precharges, channel.counts().precharges), (10, 0));
}

#[test]
fn a_posted_write_completes_in_the_next_cycle_and_answers_reads_of_its_line() {
    let mut channel = channel(&Config::preset("ddr4-2400").unwrap());
    let mut done = Vec::new();
    // Reads wait, so that the write does.
    for id in 0..4 {
        channel.submit(50, Request { id, addr: id << 24, write: false }).unwrap();
    }
    for (id, write) in [(10, true), (11, true), (12, false)] {
        channel.submit(50, Request { id, addr: 4096 + id % 2, write }).unwrap();
    }
    assert_eq!(channel.next_event(), Some(51));
    channel.advance(51, &mut done);
    assert_eq!(
        done.iter().map(|done| (done.id, done.at)).collect::<Vec<_>>(),
        [(10, 51), (11, 51), (12, 51)]
    );
    channel.advance(1000, &mut done);
    assert_eq!(done.len(), 7);
    assert_eq!(channel.next_event(), None);
    let counts = channel.counts();
    assert_eq!((counts.reads, counts.writes, counts.forwarded, counts.merged), (4, 1, 1, 1));
}

#[test]
fn random_reads_at_saturation_are_bound_by_four_activates_a_window_and_by_refreshes() {
    let outcome = stream(AddressOrder::Random, ArrivalRate::Saturated, 0);
    let bound = 300_000.0 * 26.0 / 4.0 / (1.0 - 433.0 / 9364.0);
    assert_within("cycles", outcome.cycles as f64, bound, 2.0);
    assert!(outcome.cycles as f64 >= bound, "quicker than the constants allow");
}

/// Figures of ramulator2 (c5b1c3a) with the same constants and kinds of streams: 300,000
/// requests, one in 20 cycles.
#[test]
fn light_streams_have_the_latencies_that_ramulator2_measures() {
    let random = stream(AddressOrder::Random, ArrivalRate::Every(20), 0);
    assert_within("random reads", random.average(), 73.6, 5.0);
    let sequential = stream(AddressOrder::Sequential, ArrivalRate::Every(20), 0);
    assert_within("sequential reads", sequential.average(), 36.3, 5.0);
    let random = stream(AddressOrder::Random, ArrivalRate::Every(20), 333);
    assert_within("random, a third writes", random.average(), 72.2, 15.0);
    assert_within("p99", random.percentile(0.99) as f64, 467.0, 15.0);
    let sequential = stream(AddressOrder::Sequential, ArrivalRate::Every(20), 333);
    assert_within("sequential, a third writes", sequential.average(), 37.9, 15.0);
    assert_within("p99", sequential.percentile(0.99) as f64, 416.0, 15.0);
}

/// Cycles of 300,000 requests, a third of them writes.
#[test]
fn saturated_streams_take_the_cycles_that_ramulator2_measures() {
    let random = stream(AddressOrder::Random, ArrivalRate::Saturated, 333);
    assert_within("random", random.cycles as f64, 2_117_000.0, 2.0);
    let sequential = stream(AddressOrder::Sequential, ArrivalRate::Saturated, 333);
    assert_within("sequential", sequential.cycles as f64, 1_623_000.0, 2.0);
}

/// Submits `lone` at cycle 0 and then as many reads of `busy` as there is room for; when the lone
/// one completed, and how many others had before.
fn beside_a_flood(config: &Config, lone: u64, busy: impl Fn(u64) -> u64) -> (u64, u64) {
    let mut channel = channel(config);
    let (mut now, mut done) = (0, Vec::new());
    // Its row is open first.
    assert!(read(&mut channel, now, busy(0)) > 0);
    now += 100;
    for id in 0.. {
        let (id, addr) = if id == 20 { (u64::MAX, lone) } else { (id, busy(id)) };
        while channel.submit(now, Request { id, addr, write: false }).is_err() {
            now = now.max(channel.next_command().unwrap());
            channel.advance(now, &mut done);
        }
        if let Some(index) = done.iter().position(|done| done.id == u64::MAX) {
            return (done[index].at - done[index].arrived, index as u64);
        }
    }
    unreachable!()
}

#[test]
fn sixteen_accesses_overtake_a_request_for_another_row_and_no_more() {
    let config = Config::preset("ddr4-2400").unwrap();
    let other_row = 16 * 128 * 64;
    let (_, before) = beside_a_flood(&config, other_row, |id| id % 128 * 64);
    // Those that came before it, and those that overtook it.
    assert_eq!(before, 20 + 16);
}

#[test]
fn a_rank_that_is_never_first_ready_waits_no_longer_than_the_age_cap() {
    let mut config = Config::preset("ddr4-2400").unwrap();
    config.geometry.ranks = 2;
    config.map.0 = "ro-ba-ra-co-bg".into();
    config.timing.t_refi = 0;
    config.age_max = 2000;
    // Accesses to the open rows of rank 0, one after another on the data bus; rank 1 is one line.
    let lone = 128 * 4 * 64;
    let (latency, _) = beside_a_flood(&config, lone, |id| id % 512 * 64);
    assert!((1000..2100).contains(&latency), "{latency}");
}

/// Bursts of requests with gaps between; `keep` has every command issued one by one.
fn with_gaps(
    config: &Config,
    gaps: &[u64],
    keep: bool,
) -> (Vec<Completion>, rackpool_rack::dram::ChannelCounts) {
    let mut channel = channel(config);
    if keep {
        channel.keep_commands();
    }
    let (mut now, mut id, mut done) = (0, 0, Vec::new());
    for gap in gaps {
        now += gap;
        channel.advance(now, &mut done);
        for turn in 0..7u64 {
            let addr = (id * 0x9e37_79b9) << 6;
            if channel.submit(now + turn, Request { id, addr, write: id % 3 == 0 }).is_ok() {
                id += 1;
            }
        }
        now += 7;
    }
    channel.advance(now + 100_000, &mut done);
    (done, *channel.counts())
}

#[test]
fn idle_time_is_left_out_and_everything_else_is_as_if_it_were_not() {
    for preset in ["ddr4-2400", "ddr5-4800", "dracksim"] {
        for page in [RowPolicy::Open, RowPolicy::Closed] {
            let config = Config { page, ..Config::preset(preset).unwrap() };
            let interval = u64::from(config.timing.t_refi);
            let around = (0..40).map(|turn| interval * turn / 7 + turn * 13);
            let gaps: Vec<u64> =
                around.chain([1_000_003, 77 * interval, 77 * interval + 1]).collect();
            assert_eq!(
                with_gaps(&config, &gaps, false),
                with_gaps(&config, &gaps, true),
                "{preset}"
            );
        }
    }
    // An hour and more between two accesses costs what the accesses cost.
    let config = Config::preset("ddr4-2400").unwrap();
    let (done, counts) = with_gaps(&config, &[1 << 42; 1000], false);
    assert_eq!(done.len(), 7000);
    assert!(counts.refreshes > 1000 * ((1 << 42) / 9_400), "{counts:?}");
}
