//! `bench verbs`: what HERD measures of verbs, on any fabric. The time of one READ, WRITE (inline
//! where the fabric has that) and ECHO; the rate of READs and WRITEs into one target from several
//! endpoints and out of one endpoint to several targets, by size; ECHO by the kinds of its request
//! and its answer; all to all.
//!
//! Everything is in this process, one thread drives all endpoints, the targets' threads are the
//! fabric's own. On a device that the kernel emulates (Soft-RoCE) numbers prove that the code works
//! and say nothing of its speed; the report says so.
//!
//! ECHO answered by WRITE has a server with an endpoint of its own, connected to memory of the
//! client. Left out: on mapped memory ECHO with messages, since those go by rings (`bench ring`).
//!
//! Source: HERD §3.2 (verbs alone, ECHO), §3.3 (all to all).

mod echo;
mod perftest;
mod rig;

pub use crate::baselines::Carrier;
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, Progress, Size, Steps};
use echo::{EchoLoad, Request};
use rackpool_core::seam::{FabricEvent, Sge, Verb, WorkRequest, WorkStatus};
use rackpool_fabric::{Endpoint, FabricOptions, LocalBuffers, Over};
use rackpool_mem::process::monotonic_ns;
use rackpool_stats::histogram::Histogram;
use rackpool_stats::sample::quantile;
use rig::{ConnectedEndpoint, Mesh, PAGE_BYTES, at};
use std::time::{Duration, Instant};

/// What `bench verbs` measures on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub size: Size,
    pub carrier: Carrier,
    /// The device, `NAME[:PORT][/GID]`, if it is one of them.
    pub device: Option<String>,
}

/// Bytes of the latencies, and of ECHO: HERD's.
const SMALL_BYTES: u64 = 32;
const SIZES: [u64; 6] = [4, 32, 64, 128, 256, 1024];
/// Endpoints of one target, targets of one endpoint, and both of all to all.
const MANY: usize = 4;
/// Operations under one doorbell, of which the last is completed, and doorbells under way.
const BATCH: usize = 16;
const BATCHES: usize = 4;
/// Echoes under way in the rates: HERD's windows.
const WINDOWS: u64 = 16;
/// Nothing completes for so long: the other end is gone.
const SILENCE_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy)]
enum OneSided {
    Read,
    Write,
}

impl OneSided {
    const BOTH: [OneSided; 2] = [OneSided::Read, OneSided::Write];

    const fn name(self) -> &'static str {
        match self {
            OneSided::Read => "read",
            OneSided::Write => "write",
        }
    }

    fn verb(self, offset: u64) -> Verb {
        match self {
            OneSided::Read => Verb::Read(at(offset)),
            OneSided::Write => Verb::Write(at(offset)),
        }
    }
}

/// Measures.
///
/// # Errors
/// [`BenchError::Fabric`] of a fabric that is not there; [`BenchError::Silent`].
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Report, BenchError> {
    let mut report = Report::here(Kind::Measured);
    report.extra.insert("fabric".into(), options.carrier.name().into());
    report.extra.insert("size".into(), options.size.name().into());
    let mut steps = Steps::new(9, progress);
    if options.carrier == Carrier::Shm {
        let make = |ends, nodes| rig::mapped(ends, nodes);
        one_sided(options.size, &mut steps, &mut report, &make, 0)?;
        echo_by_writes(options.size, &mut steps, &mut report, &make)?;
        steps.end();
        return Ok(report);
    }
    let over = if options.carrier == Carrier::Verbs { Over::Verbs } else { Over::Tcp };
    let device = options.device.clone();
    let fabric = FabricOptions { over, device, ..FabricOptions::default() };
    let mut mesh = rig::connected(1, 1, &fabric)?;
    let device = mesh.endpoints[0].end.device_name().map(str::to_owned);
    let inline_bytes =
        rackpool_core::seam::Fabric::capabilities(&mesh.endpoints[0].end).inline_bytes_max;
    echoes(options.size, &mut steps, &mut report, &mut mesh)?;
    drop(mesh);
    let make = |ends, nodes| rig::connected(ends, nodes, &fabric);
    one_sided(options.size, &mut steps, &mut report, &make, inline_bytes.into())?;
    echo_by_writes(options.size, &mut steps, &mut report, &make)?;
    steps.begin("perftest");
    if let Some(device) = device {
        beside(&mut report, &device);
    }
    steps.end();
    Ok(report)
}

/// Says what the device is, and puts perftest's times beside ours.
fn beside(report: &mut Report, device: &str) {
    report.extra.insert("device".into(), device.into());
    // A card is somewhere on a bus; what the kernel emulates is nowhere.
    let is_soft =
        !std::path::Path::new("/sys/class/infiniband").join(device).join("device").exists();
    report.extra.insert("is_emulated_device".into(), is_soft.into());
    if is_soft {
        let note = "a device that the kernel emulates: this proves the code, not its speed";
        report.extra.insert("note".into(), note.into());
    }
    for (row, tool) in [("read_32B", "ib_read_lat"), ("write_32B", "ib_write_lat")] {
        let Some(row) = report.results.iter_mut().find(|found| found.name == row) else { continue };
        if let Some(ns) = perftest::typical_ns(tool, device, SMALL_BYTES) {
            // Its WRITE is half of a round trip of WRITEs; ours waits for the completion.
            *row = row.clone().against(Reference::Peer(ns)).with("peer_name", tool);
        }
    }
}

fn one_sided<E: LocalBuffers>(
    size: Size,
    steps: &mut Steps<'_>,
    report: &mut Report,
    make: &dyn Fn(usize, usize) -> Result<Mesh<E>, BenchError>,
    inline_bytes: u64,
) -> Result<(), BenchError> {
    steps.begin("latency");
    let mut mesh = make(1, 1)?;
    let not_inline = (inline_bytes + 64).next_multiple_of(64);
    for (what, bytes) in [
        (OneSided::Read, SMALL_BYTES),
        (OneSided::Write, SMALL_BYTES),
        (OneSided::Write, not_inline),
    ] {
        let is_inline = matches!(what, OneSided::Write) && bytes <= inline_bytes;
        let mut latency = Histogram::new();
        for _ in 0..size.samples() {
            latency.record(once(&mut mesh.endpoints[0], what, bytes)?);
        }
        let summary = latency.summary();
        let name = format!("{}_{bytes}B", what.name());
        let row = Row::new(&name, "ns", Better::Lower, summary.p50 as f64);
        report.results.push(row.percentiles(summary).with("inline", is_inline));
    }
    drop(mesh);
    for (place, ends, nodes) in [("in", MANY, 1), ("out", 1, MANY)] {
        steps.begin(if place == "in" { "rates in" } else { "rates out" });
        let mut mesh = make(ends, nodes)?;
        for what in OneSided::BOTH {
            for bytes in SIZES {
                let name = format!("{place}_{}_{bytes}B", what.name());
                report.results.push(rate_row(&name, size, &mut mesh, what, bytes)?);
            }
        }
    }
    steps.begin("all to all");
    let mut mesh = make(MANY, MANY)?;
    for what in OneSided::BOTH {
        let name = format!("all_to_all_{}_{SMALL_BYTES}B", what.name());
        report.results.push(rate_row(&name, size, &mut mesh, what, SMALL_BYTES)?);
    }
    Ok(())
}

/// One operation alone: nanoseconds from its posting to its completion.
fn once<E: LocalBuffers>(
    endpoint: &mut ConnectedEndpoint<E>,
    what: OneSided,
    bytes: u64,
) -> Result<u64, BenchError> {
    let local = [Sge { buf: endpoint.buf, offset: 0, bytes }];
    let work = WorkRequest { id: 1, verb: what.verb(0), local: &local, signalled: true };
    let start = Instant::now();
    endpoint.end.post(endpoint.peers[0], &[work]).map_err(|(_, error)| refused(error))?;
    let mut events = Vec::new();
    loop {
        endpoint.end.poll(monotonic_ns(), &mut events);
        if completed(&mut events)? > 0 {
            return Ok(start.elapsed().as_nanos() as u64);
        }
        check_silence(start)?;
        std::hint::spin_loop();
    }
}

fn refused(error: rackpool_core::seam::PostError) -> BenchError {
    let source = std::io::Error::other(format!("{error:?}"));
    BenchError::Io { what: "posting to the fabric".into(), source }
}

fn check_silence(since: Instant) -> Result<(), BenchError> {
    if since.elapsed() > SILENCE_MAX {
        let (end, waited_s) = ("the fabric".into(), SILENCE_MAX.as_secs());
        return Err(BenchError::Silent { end, waited_s });
    }
    Ok(())
}

/// Takes the events; how many completions were among them.
fn completed(events: &mut Vec<FabricEvent>) -> Result<usize, BenchError> {
    let mut count = 0;
    for event in events.drain(..) {
        match event {
            FabricEvent::Completed { status: WorkStatus::Done(_), .. } => count += 1,
            FabricEvent::Completed { .. } | FabricEvent::Closed { .. } => {
                let source = std::io::Error::other(format!("{event:?}"));
                return Err(BenchError::Io { what: "the fabric".into(), source });
            }
            _ => {}
        }
    }
    Ok(count)
}

fn rate_row<E: LocalBuffers>(
    name: &str,
    size: Size,
    mesh: &mut Mesh<E>,
    what: OneSided,
    bytes: u64,
) -> Result<Row, BenchError> {
    let mut rates = Vec::new();
    // The first slice only warms up.
    for number in 0..=size.rules().pairs {
        let rate = rate(mesh, what, bytes, size.slice())?;
        if number > 0 {
            rates.push(rate);
        }
    }
    let row = Row::new(name, "ops/s", Better::Higher, quantile(&rates, 0.5));
    Ok(row
        .samples(rates.len() as u64)
        .with("endpoints", mesh.endpoints.len())
        .with("targets", mesh.nodes.len())
        .with("batch", BATCH))
}

/// Keeps all connections of all endpoints busy for some time: operations a second.
fn rate<E: LocalBuffers>(
    mesh: &mut Mesh<E>,
    what: OneSided,
    bytes: u64,
    time: Duration,
) -> Result<f64, BenchError> {
    let (start, mut last, mut done) = (Instant::now(), Instant::now(), 0);
    let mut under_way: Vec<Vec<usize>> =
        mesh.endpoints.iter().map(|endpoint| vec![0; endpoint.peers.len()]).collect();
    let mut events = Vec::new();
    let mut is_over = false;
    while !is_over || under_way.iter().flatten().any(|count| *count > 0) {
        is_over = start.elapsed() >= time;
        for (endpoint, under_way) in mesh.endpoints.iter_mut().zip(&mut under_way) {
            for (peer, under_way) in endpoint.peers.iter().zip(under_way.iter_mut()) {
                if *under_way < BATCHES && !is_over {
                    post_batch(&mut endpoint.end, endpoint.buf, *peer, what, bytes)?;
                    *under_way += 1;
                }
            }
            endpoint.end.poll(monotonic_ns(), &mut events);
            for event in &events {
                if let FabricEvent::Completed { peer, .. } = event
                    && let Some(index) = endpoint.peers.iter().position(|known| known == peer)
                {
                    under_way[index] -= 1;
                }
            }
            let count = completed(&mut events)?;
            if count > 0 {
                (done, last) = (done + count * BATCH, Instant::now());
            }
        }
        check_silence(last)?;
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

fn post_batch<E: LocalBuffers>(
    end: &mut E,
    buf: rackpool_core::seam::BufId,
    peer: rackpool_core::seam::PeerId,
    what: OneSided,
    bytes: u64,
) -> Result<(), BenchError> {
    let step = bytes.next_multiple_of(64);
    debug_assert!(step * BATCH as u64 <= PAGE_BYTES);
    let local: [[Sge; 1]; BATCH] =
        std::array::from_fn(|index| [Sge { buf, offset: index as u64 * step, bytes }]);
    let work: [WorkRequest<'_>; BATCH] = std::array::from_fn(|index| WorkRequest {
        id: index as u64,
        verb: what.verb(index as u64 * step),
        local: &local[index],
        signalled: index + 1 == BATCH,
    });
    end.post(peer, &work).map_err(|(_, error)| refused(error))
}

fn echoes(
    size: Size,
    steps: &mut Steps<'_>,
    report: &mut Report,
    mesh: &mut Mesh<Endpoint>,
) -> Result<(), BenchError> {
    let kinds = [
        ("write_send", Request::Write),
        ("write_imm_send", Request::WriteImm),
        ("send_send", Request::Send),
    ];
    for (name, request) in kinds {
        echo_rows(size, steps, report, name, &mut |load, latency| {
            echo::rate(mesh, request, load, latency)
        })?;
    }
    Ok(())
}

fn echo_by_writes<E: LocalBuffers + Send>(
    size: Size,
    steps: &mut Steps<'_>,
    report: &mut Report,
    make: &dyn Fn(usize, usize) -> Result<Mesh<E>, BenchError>,
) -> Result<(), BenchError> {
    let (mut there, mut back) = (make(1, 1)?, make(1, 1)?);
    echo_rows(size, steps, report, "write_write", &mut |load, latency| {
        echo::rate_by_writes(&mut there, &mut back, load, latency)
    })
}

/// Echoes a second.
type MeasureEchoes<'a> = dyn FnMut(EchoLoad, &mut Histogram) -> Result<f64, BenchError> + 'a;

/// The time of one echo alone, and the rate of many.
fn echo_rows(
    size: Size,
    steps: &mut Steps<'_>,
    report: &mut Report,
    name: &str,
    measure: &mut MeasureEchoes<'_>,
) -> Result<(), BenchError> {
    steps.begin(&format!("echo_{name}"));
    let mut latency = Histogram::new();
    let (bytes, time) = (SMALL_BYTES, Duration::ZERO);
    measure(EchoLoad { bytes, windows: 1, time, least: size.samples() / 10 }, &mut latency)?;
    let summary = latency.summary();
    let row = format!("echo_{name}_{SMALL_BYTES}B");
    let row = Row::new(&row, "ns", Better::Lower, summary.p50 as f64);
    report.results.push(row.percentiles(summary));
    let mut rates = Vec::new();
    for _ in 0..size.rules().pairs {
        let load = EchoLoad { bytes, windows: WINDOWS, time: size.slice(), least: 1 };
        rates.push(measure(load, &mut latency)?);
    }
    let row = format!("echo_rate_{name}_{SMALL_BYTES}B");
    let row = Row::new(&row, "ops/s", Better::Higher, quantile(&rates, 0.5));
    report.results.push(row.samples(rates.len() as u64).with("windows", WINDOWS));
    Ok(())
}
