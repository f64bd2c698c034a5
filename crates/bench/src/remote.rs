//! `bench remote`: what an access to another rack's memory costs beyond the raw way there.
//!
//! The client is in one rack, the data in another. Over `tcp` ours stands beside a bare TCP
//! exchange of the same bytes between the same cores with spinning ends; the raw stream is tuned
//! first, since a slow one would flatter us. Over `shm` it stands beside the bare copy out of the
//! same mapping (`arena.rs`). Each raw server lives for one slice only, so that it does not spin
//! while ours is measured.

use crate::arena::{Arena, Direction, LINE};
use crate::interleave::compare;
use crate::local::{bandwidth, latency};
use crate::micro::Wait;
use crate::micro::index::IndexStream;
use crate::micro::pin::{self, CorePair};
use crate::micro::tcp::{TcpClient, TcpServer, Tuning};
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::ring::Touches;
use crate::run::{BenchError, PoolSource, Progress, Size, Steps, Testbed, kind_of_path, slice_ns};
use rackpool::{FabricChoice, Handle, HandleStats, Placement};
use rackpool_core::{GAddr, RackId};
use rackpool_stats::histogram::Histogram;
use serde_json::json;
use std::time::{Duration, Instant};

/// What `bench remote` measures on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub size: Size,
    /// The pool. Numbers taken with servers in processes of their own are the honest ones.
    pub source: PoolSource,
    /// How the other rack is reached: `Tcp`, `Proxied` or `Shm`.
    pub fabric: FabricChoice,
    pub rack: u16,
    pub remote_rack: u16,
}

impl Default for Options {
    fn default() -> Self {
        let (size, source) = (Size::default(), PoolSource::default());
        Self { size, source, fabric: FabricChoice::Tcp, rack: 0, remote_rack: 1 }
    }
}

/// Memory of the other rack that is accessed over TCP.
const TCP_BYTES: u64 = 32 << 20;
/// Bytes beside the data that a rack needs.
const SPARE_BYTES: u64 = 8 << 20;
const LARGE: usize = 1 << 20;
/// Large accesses under way at once in a stream, on both sides.
const STREAM_DEPTH: usize = 4;
/// Small accesses between two looks at the clock.
const BLOCK: u64 = 16;
/// Bytes through a new connection before it is measured: its window has to open first.
const WARMUP_BYTES: usize = 32 << 20;
/// Small exchanges on a new connection before it is measured.
const WARMUP_PINGS: u64 = 500;
/// How often each setting of the raw stream is tried.
const TUNING_TRIES: usize = 5;
/// Names the index streams; any other would do.
const SEED: u64 = 11;

/// Measures.
///
/// # Errors
/// [`BenchError`]; nothing stays allocated then, unless the pool itself is gone.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Report, BenchError> {
    let data_bytes = match options.fabric {
        FabricChoice::Tcp | FabricChoice::Proxied => TCP_BYTES,
        FabricChoice::Shm => options.size.region_bytes(),
        FabricChoice::Auto | FabricChoice::Verbs => {
            let reason = "say which one is to be measured: tcp, proxied or shm".into();
            return Err(BenchError::Option { option: "fabric", reason });
        }
    };
    if options.rack == options.remote_rack {
        let reason = format!("rack {} is the client's own", options.rack);
        return Err(BenchError::Option { option: "remote_rack", reason });
    }
    let racks = 1 + options.rack.max(options.remote_rack);
    let testbed = Testbed::open(&options.source, racks, data_bytes + SPARE_BYTES)?;
    let cores = pin::allowed_cores()?;
    let pair = pin::two_cores()?;
    let run =
        RemoteBench { options, testbed, placement: Placement::Rack(RackId(options.remote_rack)) };
    let measured = match options.fabric {
        FabricChoice::Shm => run.over_shm(pair.first, progress),
        _ => run.over_tcp(pair, progress),
    };
    pin::pin_to_any(&cores)?;
    measured
}

struct RemoteBench<'o> {
    options: &'o Options,
    testbed: Testbed,
    placement: Placement,
}

impl RemoteBench<'_> {
    fn handle(&self) -> Result<Handle, BenchError> {
        Ok(self.testbed.pool(self.options.rack, self.options.fabric)?.handle()?)
    }

    fn report(&self, kind: Kind) -> Report {
        let mut report = self.testbed.report(self.options.size, kind);
        let fabric = format!("{:?}", self.options.fabric).to_lowercase();
        report.extra.insert("fabric".into(), fabric.into());
        report
    }

    fn over_shm(
        &self,
        core: usize,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, BenchError> {
        let mut steps = Steps::new(6, progress);
        steps.begin("making the region");
        let mut report = self.report(Kind::Measured);
        let handle = self.handle()?;
        pin::pin_to(core)?;
        let mut arena =
            Arena::new(handle, self.placement, self.options.size, self.testbed.probe())?;
        let addr = arena.addr();
        report.kind = kind_of_path(arena.handle(), addr)?;
        let region_bytes = self.options.size.region_bytes();
        report.extra.insert("region_bytes".into(), region_bytes.into());
        let before = arena.handle().handle_stats();
        let name = "read_64B_remote_warm";
        steps.begin(name);
        report.results.push(latency(name, &arena.read_latency::<LINE>()?));
        let name = "write_64B_remote_warm";
        steps.begin(name);
        report.results.push(latency(name, &arena.write_latency()?));
        for (name, direction) in
            [("read_1MiB_remote", Direction::Read), ("write_1MiB_remote", Direction::Write)]
        {
            steps.begin(name);
            report.results.push(bandwidth(name, &mut arena, direction)?);
        }
        let sent = master_messages(before, arena.handle().handle_stats());
        arena.end()?;
        let counted = |row: Row| row.with("master_messages", sent);
        report.results = report.results.into_iter().map(counted).collect();
        steps.begin("first_touch_remote");
        let cores = pin::two_cores()?;
        report.results.push(self.first_touch(&RawTcp::new(cores))?);
        steps.end();
        Ok(report)
    }

    fn over_tcp(
        &self,
        cores: CorePair,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, BenchError> {
        let mut steps = Steps::new(9, progress);
        steps.begin("tuning the raw stream");
        let mut raw = RawTcp::new(cores);
        let mut report = self.report(Kind::Measured);
        let mut handle = self.handle()?;
        let addr = handle.alloc(TCP_BYTES, self.placement)?;
        report.kind = kind_of_path(&mut handle, addr)?;
        pin::pin_to(cores.first)?;
        raw.tune(self.options.size)?;
        report.extra.insert("raw_tcp".into(), raw.describe());
        let mut bench =
            TcpBench { handle, addr, size: self.options.size, raw: &raw, testbed: &self.testbed };
        let measured = bench.measure(&mut steps);
        bench.handle.free(addr, TCP_BYTES)?;
        report.results = measured?;
        steps.begin("first_touch_remote");
        report.results.push(self.first_touch(&raw)?);
        steps.end();
        Ok(report)
    }

    /// First touches of pages of the other rack: a call to it, as it can be guessed, where that was
    /// measured to be faster; otherwise one question to the own daemon, which does not know, and
    /// one to the master.
    fn first_touch(&self, raw: &RawTcp) -> Result<Row, BenchError> {
        let size = self.options.size;
        let mut handle = self.testbed.forgetful(self.options.rack, self.options.fabric)?;
        let addr = handle.alloc_pages(2, self.placement)?;
        let mut touches = Touches::new(handle, addr);
        let outcome = (|| -> Result<_, BenchError> {
            // Connects.
            touches.messages()?;
            let comparison = compare(
                &size.rules(),
                SEED,
                &mut self.testbed.probe(),
                || touches.slice(size.slice()),
                || raw.ping_ns(size.slice()),
            )?;
            Ok((comparison, touches.sample(size.samples())?, touches.messages()?))
        })();
        touches.end()?;
        let (comparison, histogram, messages) = outcome?;
        let name = "first_touch_remote";
        let row = Row::compared(name, "ns", Better::Lower, &comparison, Reference::Raw);
        Ok(row
            .percentiles(histogram.summary())
            .with("ring_messages", messages.ring)
            .with("master_messages", messages.master))
    }
}

fn master_messages(before: HandleStats, after: HandleStats) -> u64 {
    after.master_requests - before.master_requests
}

struct TcpBench<'r> {
    handle: Handle,
    addr: GAddr,
    size: Size,
    raw: &'r RawTcp,
    testbed: &'r Testbed,
}

impl TcpBench<'_> {
    fn measure(&mut self, steps: &mut Steps<'_>) -> Result<Vec<Row>, BenchError> {
        self.touch_all()?;
        let before = self.handle.handle_stats();
        let mut rows = Vec::new();
        let mut line = [0x5a_u8; LINE];
        let name = "read_64B_remote_warm";
        steps.begin(name);
        rows.push(self.small(name, |handle, at| Ok(handle.read(at, &mut line)?))?);
        let name = "write_64B_remote_warm";
        steps.begin(name);
        rows.push(self.small(name, |handle, at| Ok(handle.write(at, &[0x5a; LINE])?))?);
        let name = "fetch_add_remote";
        steps.begin(name);
        rows.push(self.small(name, |handle, at| Ok(handle.fetch_add(at, 1).map(|_| ())?))?);
        for (name, direction, depth) in [
            ("read_1MiB_remote", Direction::Read, 1),
            ("read_1MiB_remote_stream", Direction::Read, STREAM_DEPTH),
            ("write_1MiB_remote", Direction::Write, 1),
            ("write_1MiB_remote_stream", Direction::Write, STREAM_DEPTH),
        ] {
            steps.begin(name);
            rows.push(self.large(name, direction, depth)?);
        }
        let sent = master_messages(before, self.handle.handle_stats());
        Ok(rows.into_iter().map(|row| row.with("master_messages", sent)).collect())
    }

    /// Learns where every page is, and gives every one memory of its own.
    fn touch_all(&mut self) -> Result<(), BenchError> {
        let data = vec![0x5a; LARGE];
        for start in (0..TCP_BYTES).step_by(LARGE) {
            self.handle.write(GAddr(self.addr.0 + start), &data)?;
        }
        Ok(())
    }

    /// One small access after the other, at random places, beside a raw exchange of 64 bytes.
    fn small(
        &mut self,
        name: &str,
        mut access: impl FnMut(&mut Handle, GAddr) -> Result<(), BenchError>,
    ) -> Result<Row, BenchError> {
        let Self { handle, addr, size, raw, testbed } = self;
        let (addr, slice) = (addr.0, size.slice());
        let mut stream = IndexStream::new(TCP_BYTES / LINE as u64, SEED);
        let mut next =
            |handle: &mut Handle| access(handle, GAddr(addr + stream.next_index() * LINE as u64));
        let comparison = compare(
            &size.rules(),
            SEED,
            &mut testbed.probe(),
            || slice_ns(slice, BLOCK, || (0..BLOCK).try_for_each(|_| next(handle))),
            || raw.ping_ns(slice),
        )?;
        let mut histogram = Histogram::new();
        for _ in 0..size.samples() {
            let start = Instant::now();
            next(handle)?;
            histogram.record(start.elapsed().as_nanos() as u64);
        }
        let row = Row::compared(name, "ns", Better::Lower, &comparison, Reference::Raw);
        Ok(row.percentiles(histogram.summary()))
    }

    /// Large accesses, `depth` of them under way, beside the raw stream.
    fn large(&mut self, name: &str, direction: Direction, depth: usize) -> Result<Row, BenchError> {
        let Self { handle, addr, size, raw, testbed } = self;
        let slice = size.slice();
        // The same addresses again and again, as the raw server sends the same bytes again and
        // again: it is the way there that is measured, not the memory behind it.
        let addrs: Vec<_> =
            (0..depth).map(|index| GAddr(addr.0 + (index * LARGE) as u64)).collect();
        let mut buffers = vec![0x5a_u8; depth * LARGE];
        let rate = |ns: f64| LARGE as f64 * 1e9 / ns;
        let ours = || -> Result<f64, BenchError> {
            let ns = match direction {
                Direction::Read => {
                    let buffers = buffers.chunks_mut(LARGE);
                    let mut ops: Vec<_> = addrs.iter().copied().zip(buffers).collect();
                    slice_ns(slice, depth as u64, || match &mut ops[..] {
                        [(at, to)] => Ok(handle.read(*at, to)?),
                        ops => Ok(handle.read_batch(ops)?),
                    })?
                }
                Direction::Write => {
                    let buffers = buffers.chunks(LARGE);
                    let mut ops: Vec<_> = addrs.iter().copied().zip(buffers).collect();
                    slice_ns(slice, depth as u64, || match &mut ops[..] {
                        [(at, from)] => Ok(handle.write(*at, from)?),
                        ops => Ok(handle.write_batch(ops)?),
                    })?
                }
            };
            Ok(rate(ns))
        };
        let comparison = compare(&size.rules(), SEED, &mut testbed.probe(), ours, || {
            Ok(rate(raw.stream_ns(slice, direction)?))
        })?;
        let row = Row::compared(name, "B/s", Better::Higher, &comparison, Reference::Raw);
        Ok(row.with("under_way", depth))
    }
}

/// The bare exchange: a new server and connection for each slice.
pub(crate) struct RawTcp {
    wait: Wait,
    core: usize,
    read: StreamTuning,
    write: StreamTuning,
}

/// How a raw stream runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StreamTuning {
    tuning: Tuning,
    depth: usize,
}

impl RawTcp {
    pub(crate) fn new(cores: CorePair) -> Self {
        let CorePair { first, second } = cores;
        let wait = Wait::for_cores(if first == second { 1 } else { 2 });
        let stream = StreamTuning { tuning: Tuning::default(), depth: STREAM_DEPTH };
        Self { wait, core: second, read: stream, write: stream }
    }

    pub(crate) fn describe(&self) -> serde_json::Value {
        let stream = |StreamTuning { tuning, depth }: StreamTuning| {
            json!({
                "socket_buffer_bytes": tuning.socket_buffer_bytes,
                "piece_bytes": tuning.piece_bytes,
                "under_way": depth,
            })
        };
        json!({
            "waiting": format!("{:?}", self.wait).to_lowercase(),
            "read": stream(self.read),
            "write": stream(self.write),
        })
    }

    fn with_client<R>(
        &self,
        tuning: Tuning,
        work: impl FnOnce(&mut TcpClient) -> Result<R, BenchError>,
    ) -> Result<R, BenchError> {
        let server = TcpServer::spawn_tuned(self.wait, Some(self.core), tuning)?;
        let mut client = TcpClient::connect_tuned(server.address(), self.wait, tuning)?;
        let result = work(&mut client);
        drop(client);
        let served = server.join();
        let result = result?;
        served?;
        Ok(result)
    }

    /// Nanoseconds for 64 bytes there and back.
    pub(crate) fn ping_ns(&self, slice: Duration) -> Result<f64, BenchError> {
        self.with_client(Tuning::default(), |client| {
            (0..WARMUP_PINGS).try_for_each(|_| client.ping())?;
            slice_ns(slice, BLOCK, || Ok((0..BLOCK).try_for_each(|_| client.ping())?))
        })
    }

    /// Nanoseconds for a large transfer in an unbroken stream of them.
    fn stream_ns(&self, slice: Duration, direction: Direction) -> Result<f64, BenchError> {
        let StreamTuning { tuning, depth } = match direction {
            Direction::Read => self.read,
            Direction::Write => self.write,
        };
        self.with_client(tuning, |client| {
            let warmup = WARMUP_BYTES / LARGE;
            transfer(client, direction, warmup, depth)?;
            let start = Instant::now();
            transfer(client, direction, warmup, depth)?;
            let per_slice = slice.as_secs_f64() / start.elapsed().as_secs_f64();
            let count = ((per_slice * warmup as f64) as usize).max(warmup);
            // The stream runs dry only at its end.
            let start = Instant::now();
            transfer(client, direction, count, depth)?;
            Ok(start.elapsed().as_secs_f64() * 1e9 / count as f64)
        })
    }

    /// Takes the settings with which the raw streams are fastest.
    fn tune(&mut self, size: Size) -> Result<(), BenchError> {
        if size == Size::Smoke {
            return Ok(());
        }
        let mut best = [(Duration::MAX, self.read), (Duration::MAX, self.write)];
        for socket_buffer_bytes in [None, Some(1 << 20), Some(4 << 20)] {
            for piece_bytes in [256 << 10, 512 << 10, 1 << 20] {
                let tuning = Tuning { socket_buffer_bytes, piece_bytes };
                self.with_client(tuning, |client| try_streams(client, tuning, &mut best))?;
            }
        }
        [(_, self.read), (_, self.write)] = best;
        Ok(())
    }
}

fn transfer(
    client: &mut TcpClient,
    direction: Direction,
    count: usize,
    depth: usize,
) -> Result<(), BenchError> {
    Ok(match direction {
        Direction::Read => client.read_stream(LARGE, count, depth),
        Direction::Write => client.write_stream(LARGE, count, depth),
    }?)
}

/// Both directions over one connection; the shortest of a few tries counts, so that a disturbed
/// try does not rule its settings out.
fn try_streams(
    client: &mut TcpClient,
    tuning: Tuning,
    best: &mut [(Duration, StreamTuning); 2],
) -> Result<(), BenchError> {
    for (direction, best) in [Direction::Read, Direction::Write].into_iter().zip(best) {
        for depth in [1, STREAM_DEPTH, 4 * STREAM_DEPTH] {
            for _ in 0..TUNING_TRIES {
                let start = Instant::now();
                transfer(client, direction, WARMUP_BYTES / LARGE, depth)?;
                let elapsed = start.elapsed();
                if elapsed < best.0 {
                    *best = (elapsed, StreamTuning { tuning, depth });
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let auto = Options { fabric: FabricChoice::Auto, ..Options::default() };
        assert_eq!(run(&auto, &mut |_| ()).unwrap_err().code(), "config");
        let own = Options { remote_rack: 0, ..Options::default() };
        assert_eq!(run(&own, &mut |_| ()).unwrap_err().code(), "config");
    }

    #[test]
    fn the_raw_stream_moves_in_both_directions() {
        let raw = RawTcp::new(pin::two_cores().unwrap());
        let slice = Duration::from_millis(1);
        assert!(raw.ping_ns(slice).unwrap() > 0.0);
        assert!(raw.stream_ns(slice, Direction::Read).unwrap() > 0.0);
        assert!(raw.stream_ns(slice, Direction::Write).unwrap() > 0.0);
    }
}
