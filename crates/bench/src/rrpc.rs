//! `bench rrpc`: what calls for data cost by length and mode, beside the best raw operation of the
//! same length, a one-sided READ by a bare endpoint; what a first touch by a call costs beside one
//! by way of the master; and how the rate of short reads grows with the number under way.
//!
//! All sides of a comparison run by turns in the same process, against the same daemon.
//! Source: Rcmp §5.5, figs. 12 and 22.

use crate::interleave::compare;
use crate::micro::pin;
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, PoolSource, Progress, Size, Steps, Testbed, kind_of_path, slice_ns};
use rackpool::{FabricChoice, FetchMode, Handle, Options as PoolOptions, Placement, Pool};
use rackpool::{RackId, RrpcThreshold};
use rackpool_core::GAddr;
use rackpool_core::addr::Generation;
use rackpool_core::rrpc::{INLINE_BYTES_MAX, LinkProbe, THRESHOLD_PAPER_BYTES, threshold};
use rackpool_core::seam::WorkStatus;
use rackpool_core::seam::{BufId, Fabric, FabricEvent, PeerId, RemoteAddr, Sge, Verb, WorkRequest};
use rackpool_fabric::EndpointOptions;
use rackpool_fabric::tcp::TcpEndpoint;
use rackpool_fabric::{FabricError, LocalBuffers};
use rackpool_mem::process::monotonic_ns;
use rackpool_stats::histogram::Histogram;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// What `bench rrpc` measures on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub size: Size,
    /// The pool. Numbers taken with servers in processes of their own are the honest ones.
    pub source: PoolSource,
    /// How the other rack is reached: calls matter over `Tcp` only.
    pub fabric: FabricChoice,
}

/// The rack of the data; the client is in rack 0.
const HOME: RackId = RackId(1);
/// Lengths, bytes.
const SIZES: [usize; 7] = [64, 256, 512, 1024, 4096, 16 << 10, 64 << 10];
/// Reads under way at once.
const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Memory that short reads go to.
const LINES_BYTES: u64 = 1 << 20;
const RACK_BYTES: u64 = 64 << 20;
/// How long a raw READ may take before the bench gives up.
const RAW_NS_MAX: u64 = 10_000_000_000;
/// Names the random choices; any other would do.
const SEED: u64 = 23;

/// Measures.
///
/// # Errors
/// [`BenchError`]; nothing stays allocated then, unless the pool itself is gone.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Report, BenchError> {
    if options.fabric != FabricChoice::Tcp {
        let reason = "mapped racks are read by loads, not by calls: tcp".into();
        return Err(BenchError::Option { option: "fabric", reason });
    }
    let testbed = Testbed::open(&options.source, 2, RACK_BYTES)?;
    let cores = pin::allowed_cores()?;
    pin::pin_to(pin::two_cores()?.first)?;
    let mut run = RrpcBench::open(options.size, testbed)?;
    let mut steps = Steps::new(5 * SIZES.len() + 3 + DEPTHS.len(), progress);
    let measured = run.measure(&mut steps);
    pin::pin_to_any(&cores)?;
    let kind = kind_of_path(&mut run.handle, run.addr);
    let freed = run.handle.free(run.addr, LINES_BYTES);
    let results = measured?;
    freed?;
    steps.end();
    let mut report: Report = run.testbed.report(options.size, kind.unwrap_or(Kind::Measured));
    report.extra.insert("fabric".into(), "tcp".into());
    report.results = results;
    Ok(report)
}

struct RrpcBench {
    size: Size,
    testbed: Testbed,
    handle: Handle,
    raw: Raw,
    addr: GAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Call(FetchMode),
    OneSided,
}

impl Way {
    const ALL: [Way; 4] = [
        Way::Call(FetchMode::Inline),
        Way::Call(FetchMode::OneSidedRead),
        Way::Call(FetchMode::WriteBack),
        Way::OneSided,
    ];

    fn name(self) -> &'static str {
        match self {
            Way::Call(FetchMode::Inline) => "rpc_inline",
            Way::Call(FetchMode::OneSidedRead) => "rpc_then_read",
            Way::Call(FetchMode::WriteBack) => "rpc_write_back",
            Way::OneSided => "one_sided",
        }
    }

    fn carries(self, bytes: usize) -> bool {
        self != Way::Call(FetchMode::Inline) || bytes <= INLINE_BYTES_MAX as usize
    }

    fn read(self, handle: &mut Handle, at: GAddr, to: &mut [u8]) -> Result<(), BenchError> {
        match self {
            Way::Call(mode) => handle.fetch(at, to, mode)?,
            Way::OneSided => handle.read(at, to)?,
        }
        Ok(())
    }
}

impl RrpcBench {
    fn open(size: Size, testbed: Testbed) -> Result<Self, BenchError> {
        let mut handle = testbed.pool(0, FabricChoice::Tcp)?.handle()?;
        let addr = handle.alloc(LINES_BYTES, Placement::Rack(HOME))?;
        handle.write(addr, &vec![0x5a; LINES_BYTES as usize])?;
        let raw = Raw::open(&mut handle, addr)?;
        Ok(Self { size, testbed, handle, raw, addr })
    }

    fn measure(&mut self, steps: &mut Steps<'_>) -> Result<Vec<Row>, BenchError> {
        let mut rows = Vec::new();
        let mut probes = Vec::new();
        for bytes in SIZES {
            let mut ns = [None; Way::ALL.len()];
            for (way, ns) in Way::ALL.into_iter().zip(&mut ns) {
                let name = format!("{}_{bytes}B", way.name());
                steps.begin(&name);
                if way.carries(bytes) {
                    let row = self.beside_raw(&name, way, bytes)?;
                    *ns = Some(row.ours as u64);
                    rows.push(row);
                }
            }
            if let [Some(inline_ns), Some(two_steps_ns), ..] = ns {
                probes.push(LinkProbe { bytes: bytes as u32, inline_ns, two_steps_ns });
            }
            steps.begin(&format!("rpc_write_back_over_rpc_then_read_{bytes}B"));
            rows.push(self.modes(bytes)?);
        }
        let crossover = f64::from(threshold(&probes));
        let row = Row::new("rrpc_crossover", "B", Better::Higher, crossover);
        rows.push(row.against(Reference::Paper(f64::from(THRESHOLD_PAPER_BYTES))));
        for bytes in [64, 512, 4096] {
            steps.begin(&format!("first_read_object_{bytes}B"));
            rows.push(self.first_read(bytes)?);
        }
        for depth in DEPTHS {
            steps.begin(&format!("read_64B_{depth}_under_way"));
            rows.push(self.pipeline(depth)?);
        }
        Ok(rows)
    }

    /// One way beside a raw one-sided READ of the same bytes.
    fn beside_raw(&mut self, name: &str, way: Way, bytes: usize) -> Result<Row, BenchError> {
        let Self { size, testbed, handle, raw, addr } = self;
        let (slice, addr) = (size.slice(), *addr);
        let mut to = vec![0; bytes];
        let before = handle.handle_stats();
        way.read(handle, addr, &mut to)?;
        let after = handle.handle_stats();
        let comparison = compare(
            &size.rules(),
            SEED,
            &mut testbed.probe(),
            || slice_ns(slice, 1, || way.read(handle, addr, &mut to)),
            || slice_ns(slice, 1, || raw.read(bytes)),
        )?;
        if to.iter().any(|byte| *byte != 0x5a) {
            return Err(BenchError::Unsuitable { addr, reason: "other bytes than were written" });
        }
        let mut histogram = Histogram::new();
        for _ in 0..size.samples() {
            let start = Instant::now();
            way.read(handle, addr, &mut to)?;
            histogram.record(start.elapsed().as_nanos() as u64);
        }
        let row = Row::compared(name, "ns", Better::Lower, &comparison, Reference::Raw);
        let operations = after.fabric_operations - before.fabric_operations;
        Ok(row
            .percentiles(histogram.summary())
            .with("bytes", bytes)
            .with("fabric_operations", operations)
            .with("send_calls", after.fabric_send_calls - before.fabric_send_calls)
            .with("receive_calls", after.fabric_receive_calls - before.fabric_receive_calls))
    }

    /// Known length, place not known: written into the buffer, beside a call and a read.
    fn modes(&mut self, bytes: usize) -> Result<Row, BenchError> {
        let Self { size, testbed, handle, addr, .. } = self;
        let (slice, addr) = (size.slice(), *addr);
        let handle = std::cell::RefCell::new(handle);
        let to = std::cell::RefCell::new(vec![0; bytes]);
        let read = |mode| {
            slice_ns(slice, 1, || {
                let (mut handle, mut to) = (handle.borrow_mut(), to.borrow_mut());
                Ok(handle.fetch(addr, &mut to, mode)?)
            })
        };
        let comparison = compare(
            &size.rules(),
            SEED,
            &mut testbed.probe(),
            || read(FetchMode::WriteBack),
            || read(FetchMode::OneSidedRead),
        )?;
        let name = format!("rpc_write_back_over_rpc_then_read_{bytes}B");
        let row = Row::compared(&name, "ns", Better::Lower, &comparison, Reference::Peer);
        Ok(row.with("bytes", bytes).with("beside", "a call for the place and a one-sided read"))
    }

    /// The first read of an object in a probably known rack, by a call, beside the same by way
    /// of the own daemon and the master.
    fn first_read(&mut self, bytes: usize) -> Result<Row, BenchError> {
        let (size, testbed) = (self.size, &self.testbed);
        let forgetful = |threshold| -> Result<Handle, BenchError> {
            let mut options = PoolOptions::new(testbed.master(), 0).fabric(FabricChoice::Tcp);
            options.translation_entries = 1;
            Ok(Pool::open(options.rrpc_threshold(threshold))?.handle()?)
        };
        let mut by_call = forgetful(RrpcThreshold::Bytes(INLINE_BYTES_MAX))?;
        let mut by_master = forgetful(RrpcThreshold::Bytes(0))?;
        let first = by_call.alloc_pages(2, Placement::Rack(HOME))?;
        let pages = [first, GAddr(first.0 + by_call.page_bytes())];
        let outcome = (|| {
            for handle in [&mut by_call, &mut by_master] {
                for page in pages {
                    handle.write(page, &vec![0x5a; bytes])?;
                }
            }
            let before = by_call.handle_stats();
            let mut to = vec![0; bytes];
            by_call.read(pages[0], &mut to)?;
            let after = by_call.handle_stats();
            let touch = |handle: &mut Handle, to: &mut [u8]| {
                slice_ns(size.slice(), 2, || {
                    pages.iter().try_for_each(|page| Ok(handle.read(*page, to)?))
                })
            };
            let mut other = vec![0; bytes];
            let comparison = compare(
                &size.rules(),
                SEED,
                &mut testbed.probe(),
                || touch(&mut by_call, &mut to),
                || touch(&mut by_master, &mut other),
            )?;
            let name = format!("first_read_{bytes}B_by_call");
            let row = Row::compared(&name, "ns", Better::Lower, &comparison, Reference::Peer);
            Ok(row
                .with("beside", "the own daemon, the master, and a one-sided read")
                .with("master_messages", after.master_requests - before.master_requests)
                .with("ring_messages", after.ring_requests - before.ring_requests)
                .with("fabric_operations", after.fabric_operations - before.fabric_operations))
        })();
        by_call.free_pages(first, 2)?;
        outcome
    }

    /// The rate of reads of 64 bytes with so many under way, beside one under way.
    fn pipeline(&mut self, depth: usize) -> Result<Row, BenchError> {
        let Self { size, testbed, handle, addr, .. } = self;
        let (slice, addr) = (size.slice(), *addr);
        let handle = std::cell::RefCell::new(handle);
        let before = handle.borrow().handle_stats();
        let mut reads = 0;
        window(&mut handle.borrow_mut(), addr, depth, slice, &mut reads)?;
        let after = handle.borrow().handle_stats();
        let rate = |depth| window(&mut handle.borrow_mut(), addr, depth, slice, &mut 0);
        let comparison =
            compare(&size.rules(), SEED, &mut testbed.probe(), || rate(depth), || rate(1))?;
        let name = match depth {
            32 => "remote_read_pipeline_32_over_1".to_owned(),
            depth => format!("read_64B_{depth}_under_way"),
        };
        let row = Row::compared(&name, "ops/s", Better::Higher, &comparison, Reference::Raw);
        let each = |calls: u64| calls as f64 / reads.max(1) as f64;
        Ok(row
            .with("under_way", depth)
            .with("beside", "one under way")
            .with("send_calls_each", each(after.fabric_send_calls - before.fabric_send_calls))
            .with(
                "receive_calls_each",
                each(after.fabric_receive_calls - before.fabric_receive_calls),
            ))
    }
}

/// Reads of 64 bytes, `depth` of them under way all the time; how many a second.
fn window(
    handle: &mut Handle,
    addr: GAddr,
    depth: usize,
    slice: Duration,
    reads: &mut u64,
) -> Result<f64, BenchError> {
    let mut next = 0;
    let mut place = || {
        next = (next + 64 * 37) % LINES_BYTES;
        GAddr(addr.0 + next)
    };
    let start = Instant::now();
    for _ in 0..depth {
        handle.submit_read(place(), vec![0; 64])?;
    }
    let (mut done, mut under_way) = (0u64, depth);
    let mut is_over = false;
    while under_way > 0 {
        let Some(completed) = handle.wait_completion(RAW_NS_MAX / 1_000_000)? else {
            return Err(BenchError::Silent { end: "the other rack".into(), waited_s: 10 });
        };
        completed.result?;
        (done, under_way) = (done + 1, under_way - 1);
        // The clock costs as much as a tenth of a read: it is looked at now and then.
        is_over |= (done < 16 || done.is_multiple_of(16)) && start.elapsed() >= slice;
        if !is_over {
            handle.submit_read(place(), completed.buffer)?;
            under_way += 1;
        }
    }
    *reads = done;
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// A bare endpoint that reads the same memory one-sided.
struct Raw {
    endpoint: TcpEndpoint,
    peer: PeerId,
    buf: BufId,
    at: RemoteAddr,
    events: Vec<FabricEvent>,
}

impl Raw {
    fn open(handle: &mut Handle, addr: GAddr) -> Result<Self, BenchError> {
        let racks = handle.admin().pool_stats()?.racks;
        let home = racks.iter().find(|rack| rack.rack == HOME);
        let found: Option<SocketAddr> = home.and_then(|rack| rack.fabric_addr.parse().ok());
        let unsuitable = |reason| move || BenchError::Unsuitable { addr, reason };
        let target = found.ok_or_else(unsuitable("its rack has no address"))?;
        let place = handle.explain(addr)?;
        let offset = u64::from(place.frame) * handle.page_bytes() + place.offset_bytes;
        let at = RemoteAddr { offset, key: Generation(place.generation) };
        let mut endpoint = TcpEndpoint::new(EndpointOptions::default()).map_err(fabric)?;
        let peer = endpoint.connect(target, monotonic_ns()).map_err(fabric)?;
        let buf = endpoint.register(vec![0; SIZES[SIZES.len() - 1]]).map_err(fabric)?;
        let mut raw = Self { endpoint, peer, buf, at, events: Vec::new() };
        match raw.wait()? {
            FabricEvent::Connected { .. } => Ok(raw),
            _ => Err(unsuitable("its rack does not take the connection")()),
        }
    }

    fn read(&mut self, bytes: usize) -> Result<(), BenchError> {
        let local = [Sge { buf: self.buf, offset: 0, bytes: bytes as u64 }];
        let verb = Verb::Read(self.at);
        let posted = self
            .endpoint
            .post(self.peer, &[WorkRequest { id: 1, verb, local: &local, signalled: true }]);
        let is_done = posted.is_ok()
            && matches!(self.wait()?, FabricEvent::Completed { status: WorkStatus::Done(_), .. });
        if is_done { Ok(()) } else { Err(silent()) }
    }

    fn wait(&mut self) -> Result<FabricEvent, BenchError> {
        self.events.clear();
        let deadline = monotonic_ns() + RAW_NS_MAX;
        self.endpoint.wait(monotonic_ns, deadline, None, &mut self.events);
        self.events.pop().ok_or_else(silent)
    }
}

fn silent() -> BenchError {
    BenchError::Silent { end: "the raw endpoint's target".into(), waited_s: 10 }
}

fn fabric(error: FabricError) -> BenchError {
    let what = "a raw endpoint".into();
    BenchError::Io { what, source: std::io::Error::other(error.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_racks_are_refused_with_the_reason() {
        let (size, source) = (Size::Smoke, PoolSource::default());
        let options = Options { size, source, fabric: FabricChoice::Shm };
        assert_eq!(run(&options, &mut |_| ()).unwrap_err().code(), "config");
    }
}
