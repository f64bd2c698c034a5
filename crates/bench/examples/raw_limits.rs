//! The raw limits of this machine, to know what a pool can at best reach:
//! `cargo run --release -p rackpool-bench --example raw_limits`.

use rackpool_bench::micro::tcp::{TcpClient, TcpError, TcpServer};
use rackpool_bench::micro::{Wait, line, pin};
use rackpool_bench::report::{Better, Kind, Report, Row};
use rackpool_stats::histogram::Histogram;
use std::error::Error;
use std::time::Instant;

const PINGS: u64 = 200_000;
const MEBIBYTE: usize = 1 << 20;
const TRANSFERS: usize = 4000;

fn main() -> Result<(), Box<dyn Error>> {
    let pin::CorePair { first, second } = pin::two_cores()?;
    let wait = Wait::for_cores(if first == second { 1 } else { 2 });
    let mut report = Report::here(Kind::Measured);
    let ns = line::ping_pong_ns(first, second, 1_000_000)?;
    report.results.push(Row::new("line_roundtrip", "ns", Better::Lower, ns).samples(1_000_000));
    let ns = line::ping_pong_ns(first, first, 20_000)?;
    report
        .results
        .push(Row::new("line_roundtrip_one_core", "ns", Better::Lower, ns).samples(20_000));
    pin::pin_to(first)?;
    let server = TcpServer::spawn(wait, Some(second))?;
    let mut client = TcpClient::connect(server.address(), wait)?;
    report.results.push(pings(&mut client)?);
    for (name, depth) in [("tcp_read_1MiB", 1), ("tcp_read_1MiB_stream", 4)] {
        let start = Instant::now();
        client.read_stream(MEBIBYTE, TRANSFERS, depth)?;
        report.results.push(rate(name, start));
    }
    for (name, depth) in [("tcp_write_1MiB", 1), ("tcp_write_1MiB_stream", 4)] {
        let start = Instant::now();
        client.write_stream(MEBIBYTE, TRANSFERS, depth)?;
        report.results.push(rate(name, start));
    }
    drop(client);
    server.join()?;
    print!("{}", report.table());
    Ok(())
}

fn pings(client: &mut TcpClient) -> Result<Row, TcpError> {
    let mut histogram = Histogram::new();
    for _ in 0..PINGS / 10 {
        client.ping()?;
    }
    for _ in 0..PINGS {
        let start = Instant::now();
        client.ping()?;
        histogram.record(start.elapsed().as_nanos() as u64);
    }
    let summary = histogram.summary();
    let row = Row::new("tcp_ping_pong_64B", "ns", Better::Lower, summary.mean);
    Ok(row.percentiles(summary))
}

fn rate(name: &str, start: Instant) -> Row {
    let bytes = (TRANSFERS * MEBIBYTE) as f64;
    let row = Row::new(name, "B/s", Better::Higher, bytes / start.elapsed().as_secs_f64());
    row.samples(TRANSFERS as u64)
}
