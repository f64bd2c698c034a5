//! What the constants alone say.

use rackpool_rack::dram::stream::{Pace, Pattern, Stream};
use rackpool_rack::dram::{Channel, Completion, Config, Request};

fn channel(preset: &str) -> Channel {
    Channel::new(&Config::preset(preset).unwrap()).unwrap()
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

#[test]
fn an_idle_ddr4_2400_reads_in_36_cycles_a_conflict_in_52_and_a_hit_in_20() {
    let mut channel = channel("ddr4-2400");
    assert_eq!(read(&mut channel, 100, 0), 36);
    assert_eq!(read(&mut channel, 200, 64), 20);
    // Another row of bank 0.
    assert_eq!(read(&mut channel, 300, 16 * 128 * 64), 52);
    let counts = channel.counts();
    assert_eq!((counts.row_misses, counts.row_hits, counts.row_conflicts), (1, 1, 1));
}

#[test]
fn print_streams() {
    for (pattern, pace, writes) in [
        (Pattern::Random, Pace::Saturated, 0),
        (Pattern::Random, Pace::Saturated, 333),
        (Pattern::Sequential, Pace::Saturated, 0),
        (Pattern::Sequential, Pace::Saturated, 333),
        (Pattern::Random, Pace::Every(20), 0),
        (Pattern::Random, Pace::Every(20), 333),
        (Pattern::Sequential, Pace::Every(20), 0),
        (Pattern::Sequential, Pace::Every(20), 333),
    ] {
        let mut channel = channel("ddr4-2400");
        let stream = Stream { pattern, pace, writes_permille: writes, requests: 300_000, seed: 1 };
        let start = std::time::Instant::now();
        let o = stream.run(0, &mut channel, |_| ());
        println!(
            "{:?} avg {:.1} p50 {} p99 {} {:?} {:?}",
            stream,
            o.average(),
            o.percentile(0.5),
            o.percentile(0.99),
            o.cycles,
            channel.counts()
        );
        println!("{:.2} M/s", 0.3 / start.elapsed().as_secs_f64());
    }
}
