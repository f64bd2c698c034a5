//! Links and fixed times before and in place of a channel.

use rackpool_rack::dram::medium::{CxlLink, DramMedium, MediumConfig};
use rackpool_rack::dram::{Completion, Config, Request};

/// 50 cycles of 833 ps a way, 64 + 8 bytes in 8 cycles of 833 ps.
const LINK: CxlLink = CxlLink { latency_ps: 50 * 833, bytes_per_us: 10_805, header_bytes: 8 };

fn cxl(link: CxlLink) -> DramMedium {
    let dram = Config::preset("ddr4-2400").unwrap();
    DramMedium::new(&MediumConfig::Cxl { link, dram }).unwrap()
}

fn finish(medium: &mut DramMedium) -> Vec<Completion> {
    let mut done = Vec::new();
    while let Some(at) = medium.next_event() {
        medium.advance(at, &mut done);
    }
    done
}

#[test]
fn an_idle_link_adds_its_latency_twice_and_its_transfers() {
    let mut medium = cxl(LINK);
    medium.submit(10, Request { id: 3, addr: 0, write: false }).unwrap();
    // The header there in 0.9 cycles, 36 cycles of the channel, header and line back in 8.
    let arrives = 10 + 1 + 50;
    let done = finish(&mut medium);
    assert_eq!(done, [Completion { id: 3, at: arrives + 36 + 8 + 50, arrived: 10 }]);
    let start = done[0].at + 10;
    medium.submit(start, Request { id: 4, addr: 1 << 20, write: true }).unwrap();
    // Line and header there, accepted in a cycle, a header back.
    assert_eq!(finish(&mut medium)[0].at, start + 8 + 50 + 1 + 1 + 50);
}

#[test]
fn a_link_bounds_the_rate_and_loses_nothing_when_the_channel_is_slower() {
    let slow = CxlLink { bytes_per_us: LINK.bytes_per_us / 4, ..LINK };
    // 32 cycles a line; random lines of the channel take 6.5.
    for (link, cycles_a_read) in
        [(slow, 32.0), (LINK, 8.0), (CxlLink { bytes_per_us: 1_000_000, ..LINK }, 6.8)]
    {
        let mut medium = cxl(link);
        let (mut now, mut done, count) = (0, Vec::new(), 20_000_u64);
        for id in 0..count {
            let addr = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            while medium.submit(now, Request { id, addr, write: false }).is_err() {
                now = now.max(medium.next_room().unwrap());
                medium.advance(now, &mut done);
            }
        }
        done.extend(finish(&mut medium));
        let measured = done.last().unwrap().at as f64 / count as f64;
        assert!((measured / cycles_a_read - 1.0).abs() < 0.05, "{link:?}: {measured}");
        let mut ids: Vec<u64> = done.iter().map(|done| done.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn a_link_without_bandwidth_is_refused() {
    let dram = Config::preset("ddr4-2400").unwrap();
    let link = CxlLink { bytes_per_us: 0, ..LINK };
    let error = DramMedium::new(&MediumConfig::Cxl { link, dram }).err().unwrap();
    assert_eq!(
        error.to_string(),
        format!("link.bytes_per_us is 0; it must be from 1 to {}", u64::MAX)
    );
}

#[test]
fn a_fixed_time_is_the_same_for_all() {
    let mut medium = DramMedium::new(&MediumConfig::Fixed { t_ck_ps: 1000, latency: 80 }).unwrap();
    for id in 0..5 {
        medium.submit(id, Request { id, addr: 0, write: id == 2 }).unwrap();
    }
    let done = finish(&mut medium);
    assert!(done.iter().all(|done| done.at == done.arrived + 80));
    assert_eq!((medium.counts().reads, medium.counts().writes, done.len()), (4, 1, 5));
}
