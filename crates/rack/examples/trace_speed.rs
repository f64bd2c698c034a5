//! How fast traces are made and filtered, a second of a processor's time:
//! `cargo run --release -p rackpool-rack --example trace_speed [-- FOOTPRINT_BYTES]`.

use rackpool_rack::trace::filter::{self, Filter};
use rackpool_rack::trace::kernel::{Config, Name, run};
use rackpool_rack::trace::{Header, Options, ParquetWriter, Reader, Unit, Writer, read_bytes};
use std::fs;
use std::ops::ControlFlow;

/// Seconds of processors that this process has used.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/schedstat").expect("Linux has it");
    let ns: f64 = stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number");
    ns / 1e9
}

fn show(what: &str, count: u64, since: f64) {
    let seconds = cpu_seconds() - since;
    println!("{what:<24} {:>8.1} M/s  ({count} in {seconds:.2} s)", count as f64 / seconds / 1e6);
}

fn main() {
    let bytes = std::env::args().nth(1).map_or(64 << 20, |text| text.parse().expect("a number"));
    for name in Name::ALL {
        let config = Config::new(name, bytes);
        let begin = cpu_seconds();
        let summary = run(&config, &mut |_| ControlFlow::Continue(())).expect("it can be");
        show(&format!("{name} through caches"), summary.counts.accesses, begin);
    }
    let mut records = Vec::new();
    let config = Config { caches: None, ..Config::new(Name::Lbm, bytes) };
    let stopped = run(&config, &mut |record| {
        records.push(record);
        if records.len() < 8_000_000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    stopped.expect("it can be");
    let begin = cpu_seconds();
    let header = Header { name: String::new(), unit: Unit::Ns, injection: None };
    let mut writer = ParquetWriter::new("memory".into(), Vec::new(), &header).expect("memory");
    records.iter().for_each(|record| writer.write(record).expect("memory"));
    let file = writer.into_inner().expect("memory");
    show("Parquet written", records.len() as u64, begin);
    println!("{:.2} bytes a record", file.len() as f64 / records.len() as f64);
    let begin = cpu_seconds();
    let count = |mut reader: Box<dyn Reader>| {
        let mut count = 0;
        while reader.next().expect("it was just written").is_some() {
            count += 1;
        }
        count
    };
    let reader = read_bytes("memory", file.clone(), &Options::default()).expect("just written");
    show("Parquet read", count(reader), begin);
    let begin = cpu_seconds();
    let reader = read_bytes("memory", file, &Options::default()).expect("just written");
    count(Box::new(Filter::new(reader, &filter::Config::default()).expect("it can be")));
    show("read and filtered", records.len() as u64, begin);
}
