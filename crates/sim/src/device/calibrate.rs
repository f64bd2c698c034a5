//! `rackpool calibrate`: measures what this machine can measure and writes a profile. What needs
//! hardware that is not there (CXL, network cards, switches) is taken from another profile and
//! says so in its source. Main memory is measured elsewhere, as `rackpool tiers measure` does it,
//! and handed in.
//!
//! Each figure is a low percentile of many rounds of some 100 us: a round that another program
//! disturbed says nothing about the machine. It takes some seconds and two threads.

#![expect(clippy::disallowed_methods, reason = "measuring the machine needs the real clock")]

use super::profile::Profile;
use super::reader::Parameter;
use rackpool_core::addr::GAddr;
use rackpool_core::layout::RING_BYTES;
use rackpool_core::ring::{Consumer, Producer};
use rackpool_core::seam::Mem;
use rackpool_core::wire::{Reply, ReplyFrame, Request, RequestFrame, decode, encode};
use rackpool_mem::process::processor_name;
use rackpool_mem::window::Window;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Why a machine could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The loopback's sockets did not work. Retry when they do.
    #[error("measuring sockets on the loopback: {0}")]
    Sockets(#[from] std::io::Error),
    /// A measurement brought something that no profile can hold, such as a rate of 0. Retry on
    /// a quieter machine.
    #[error("the measured profile cannot be used: {0}")]
    Profile(#[from] super::ProfileError),
}

/// How often measurements are repeated for figures to be used.
pub const ROUNDS: usize = 15;
/// For tests: seconds are saved, the figures mean little.
pub const ROUNDS_QUICK: usize = 3;

/// One figure: table, key, value, unit.
pub type Figure = (&'static str, &'static str, f64, &'static str);

/// What is known of memories.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryFigures {
    /// With the source of each.
    pub figures: Vec<(Figure, String)>,
    /// By what, where and when they were measured.
    pub source: String,
}

/// Measures this machine but for its memories, and answers the text of a profile called `name`;
/// what is not measured comes from `base`. Blocks for some seconds.
pub fn calibrate(
    name: &str,
    base: &Profile,
    rounds: usize,
    memory: &MemoryFigures,
) -> Result<String, CalibrateError> {
    let mut figures = caches(rounds);
    figures.push(("memory", "line_transfer", line_transfer(rounds), "ns"));
    figures.extend(engines(rounds));
    figures.extend(sockets(rounds)?);
    let cpu = processor_name();
    let here = format!("measured by rackpool calibrate on {cpu}, {}", today());
    let here = figures.iter().map(|figure| (figure, here.as_str()));
    let memories = memory.figures.iter().map(|(figure, source)| (figure, source.as_str()));
    let measured: Vec<(&Figure, &str)> = here.chain(memories).collect();
    let parameters = base.parameters().iter();
    let parameters: Vec<Parameter> =
        parameters.map(|parameter| merge(parameter, &measured, &base.name)).collect();
    let has_cxl = memory.figures.iter().any(|((_, key, ..), _)| key.starts_with("cxl_"));
    let cxl = if has_cxl { "" } else { "CXL, " };
    let against = format!(
        "memory {}; processor and sockets measured on {cpu}; {cxl}PCIe, card and switch are those \
         of the profile {}",
        memory.source, base.name
    );
    // Not calibrated as a whole: the network was not measured.
    let text = Profile::write(name, false, &against, &parameters);
    Profile::parse(name, &text)?;
    Ok(text)
}

/// A parameter as it was measured, with the source, else as in the profile called `profile`.
fn merge(base: &Parameter, measured: &[(&Figure, &str)], profile: &str) -> Parameter {
    let mut found = measured.iter();
    let found = found.find(|((group, key, ..), _)| base.group == *group && base.key == *key);
    let mut parameter = base.clone();
    match found {
        Some(((_, _, value, unit), source)) => {
            // Three digits after the point are picoseconds; more would claim too much.
            parameter.value = (value * 1e3).round() / 1e3;
            (parameter.unit, parameter.source) = ((*unit).to_owned(), (*source).to_owned());
        }
        None => parameter.source = format!("not measured, as in {profile}: {}", base.source),
    }
    parameter
}

/// The value at `percent` of the sorted `rounds` results of `measure`.
fn percentile(rounds: usize, percent: usize, mut measure: impl FnMut() -> f64) -> f64 {
    let mut values: Vec<f64> = (0..rounds.max(1)).map(|_| measure()).collect();
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) * percent / 100]
}

/// Nanoseconds that one of `count` repetitions takes, as the first quartile of short rounds.
fn each_ns(rounds: usize, count: u64, mut run: impl FnMut(u64)) -> f64 {
    run(count / 10 + 1);
    percentile(rounds * 32, 25, || {
        let start = Instant::now();
        run(count);
        start.elapsed().as_nanos() as f64 / count as f64
    })
}

fn caches(rounds: usize) -> Vec<Figure> {
    let window = Window::heap(4096);
    let count = 50_000;
    let mut at = 0;
    // Each word holds the next word's offset, so that a load waits for the one before.
    (0..512).for_each(|word: u64| window.store(word * 8, (word + 1) % 512 * 8));
    let hit = each_ns(rounds, count, |count| (0..count).for_each(|_| at = window.load(at)));
    black_box(at);
    let store = each_ns(rounds, count, |count| {
        (0..count).for_each(|i| window.store(i % 512 * 8, i));
    });
    let atomic = each_ns(rounds, count, |count| {
        (0..count).for_each(|i| {
            black_box(window.fetch_add(0, i));
        });
    });
    let fence = each_ns(rounds, count, |count| (0..count).for_each(|_| window.fence()));
    let figure = |key, value| ("memory", key, value, "ns");
    vec![
        figure("hit", hit),
        figure("store", store),
        figure("atomic", atomic),
        figure("fence", fence),
    ]
}

/// One way of a line between two processors, ns: half of a ping-pong.
fn line_transfer(rounds: usize) -> f64 {
    let window = Window::heap(4096);
    let count = 500u64;
    let rounds = rounds as u64 * 40;
    let last = rounds * count;
    std::thread::scope(|scope| {
        let echo = window.clone();
        scope.spawn(move || {
            for turn in 1..=last {
                await_word(&echo, 0, turn);
                echo.store(2048, turn);
            }
        });
        let mut turn = 0;
        percentile(rounds as usize, 10, || {
            let start = Instant::now();
            for _ in 0..count {
                turn += 1;
                window.store(0, turn);
                await_word(&window, 2048, turn);
            }
            start.elapsed().as_nanos() as f64 / count as f64 / 2.0
        })
    })
}

/// Spins, and lets others run if it takes long: there may be one processor only.
fn await_word(window: &Window, offset: u64, value: u64) {
    let mut spins = 0u32;
    while window.load(offset) != value {
        spins += 1;
        match spins % 10_000 {
            0 => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }
}

/// Steps of the engines on warm memory: what a ring's ends and the messages' coding cost.
fn engines(rounds: usize) -> Vec<Figure> {
    let window = Window::heap(RING_BYTES);
    let (mut producer, mut consumer) = (Producer::attach(window.clone()), Consumer::attach(window));
    let request = RequestFrame { seq: 1, request: Request::FetchAdd { addr: GAddr(64), n: 1 } };
    let mut buffer = vec![0; 256];
    let count = 2_000;
    let empty = each_ns(rounds, count, |count| {
        (0..count).for_each(|_| assert!(!black_box(consumer.is_ready())));
    });
    let encoded = each_ns(rounds, count, |count| {
        (0..count).for_each(|_| {
            black_box(encode(&request, &mut buffer).expect("256 bytes are enough"));
        });
    });
    let message = encode(&request, &mut buffer).expect("256 bytes are enough").to_vec();
    let moved = each_ns(rounds, count, |count| {
        (0..count).for_each(|_| {
            producer.push(black_box(&message)).expect("the ring is empty");
            consumer.pop(|bytes| black_box(bytes.len())).expect("it is there").expect("intact");
        });
    });
    let reply = ReplyFrame { seq: 1, reply: Ok(Reply::Old { value: 1 }) };
    let mut answer = vec![0; 256];
    let decoded = each_ns(rounds, count, |count| {
        (0..count).for_each(|_| {
            let request: RequestFrame = decode(black_box(&message), "self").expect("intact");
            black_box(request);
            black_box(encode(&reply, &mut answer).expect("256 bytes are enough"));
        });
    });
    let figure = |group, key, value| (group, key, value, "ns");
    vec![
        figure("cpu", "client_submit", encoded + moved / 2.0),
        figure("cpu", "completion", moved / 2.0),
        figure("cpu", "daemon_request", moved + decoded),
        figure("poll", "client", empty.max(0.001)),
        // Ready bitmap, fabric events, timer: three looks.
        figure("poll", "daemon", (3.0 * empty).max(0.001)),
    ]
}

/// Sockets of the loopback: one way, both calls, a stream.
fn sockets(rounds: usize) -> Result<Vec<Figure>, std::io::Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    for end in [&near, &far] {
        end.set_nodelay(true)?;
        end.set_read_timeout(Some(Duration::from_secs(10)))?;
        end.set_write_timeout(Some(Duration::from_secs(10)))?;
    }
    let (mut send, mut receive, mut message) = (Vec::new(), Vec::new(), [7; 64]);
    for _ in 0..rounds * 100 {
        let start = Instant::now();
        near.write_all(&message)?;
        send.push(start.elapsed().as_nanos() as f64);
        // On the loopback what was written is there when the call returns.
        let start = Instant::now();
        far.read_exact(&mut message)?;
        receive.push(start.elapsed().as_nanos() as f64);
    }
    let middle = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let pings = rounds * 200;
    let chunk = 256 << 10;
    let chunks = rounds * 16;
    let (way, stream) = std::thread::scope(|scope| {
        let echo = scope.spawn(move || -> Result<(), std::io::Error> {
            let mut message = [0; 64];
            for _ in 0..pings {
                far.read_exact(&mut message)?;
                far.write_all(&message)?;
            }
            let mut sink = vec![0; chunk];
            (0..chunks).try_for_each(|_| far.read_exact(&mut sink))?;
            far.write_all(&[1])
        });
        let measured = ping_and_stream(&mut near, pings, chunks, &vec![3; chunk]);
        // Without this a failed near end would leave the echo waiting for its timeout.
        drop(near);
        let echoed = echo.join().expect("the echo does not panic");
        echoed.and(measured)
    })?;
    Ok(vec![
        ("tcp", "message", way, "ns"),
        ("tcp", "bandwidth", stream, "GB/s"),
        ("tcp", "send", middle(send), "ns"),
        ("tcp", "receive", middle(receive), "ns"),
    ])
}

/// One way in ns, and a stream in GB/s.
fn ping_and_stream(
    near: &mut TcpStream,
    pings: usize,
    chunks: usize,
    data: &[u8],
) -> Result<(f64, f64), std::io::Error> {
    let (mut ways, mut message) = (Vec::with_capacity(pings), [5; 64]);
    for _ in 0..pings {
        let start = Instant::now();
        near.write_all(&message)?;
        near.read_exact(&mut message)?;
        ways.push(start.elapsed().as_nanos() as f64 / 2.0);
    }
    ways.sort_by(f64::total_cmp);
    let mut times = Vec::with_capacity(chunks);
    for _ in 0..chunks {
        let start = Instant::now();
        near.write_all(data)?;
        times.push(start.elapsed().as_nanos() as f64);
    }
    near.read_exact(&mut message[..1])?;
    times.sort_by(f64::total_cmp);
    // The fastest quarter may only have filled the buffers of the sockets.
    Ok((ways[pings / 10], data.len() as f64 / times[chunks / 2]))
}

/// The date in UTC, such as 2026-11-21.
#[expect(clippy::disallowed_types, reason = "a measurement has a date")]
fn today() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    rackpool_stats::time::date(since.map_or(0, |since| since.as_secs() / 86_400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_measured_and_the_rest_is_marked_as_not_measured() {
        let base = Profile::load("modern").unwrap();
        let source = "measured by a test".to_owned();
        let figures = vec![(("memory", "dram_load", 81.5, "ns"), source.clone())];
        let memory = MemoryFigures { figures, source };
        let text = calibrate("here", &base, ROUNDS_QUICK, &memory).unwrap();
        let profile = Profile::parse("here", &text).unwrap();
        assert!(!profile.calibrated && profile.label().contains("here: uncalibrated (memory"));
        let from = |source: &str| {
            let all = profile.parameters().iter();
            all.filter(|p| p.source.starts_with(source)).collect::<Vec<_>>()
        };
        let measured = from("measured by rackpool calibrate on ");
        assert_eq!(measured.len(), 14);
        assert!(measured.iter().all(|p| p.value > 0.0), "{measured:?}");
        let [load] = from("measured by a test")[..] else { panic!("one figure was handed in") };
        assert_eq!((load.key.as_str(), load.value), ("dram_load", 81.5));
        let taken = from("not measured, as in modern: ");
        assert_eq!(measured.len() + 1 + taken.len(), base.parameters().len());
        assert_eq!(profile.rnic, base.rnic);
        println!("{text}");
    }
}
