//! Renders a page of made-up numbers, to look at while working on the style:
//! `cargo run -p rackpool-bench --example demo_report -- /tmp/sample.html`.

use rackpool_bench::html::*;
use rackpool_bench::report::{Better, Kind, Machine, Reference, Row};
use rackpool_stats::format::Unit;

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "sample.html".to_owned());
    rackpool_mem::output::write(path.as_ref(), render(&sample()).as_bytes())
}

/// A page that uses everything; none of its numbers was ever measured.
pub fn sample() -> DemoReport {
    DemoReport {
        schema: DEMO_SCHEMA.to_owned(),
        title: "rackpool demo".to_owned(),
        kind: Kind::Measured,
        verdict: Verdict {
            good: true,
            headline: "1,204 files went in through rack 0 and came out of rack 1, byte for byte"
                .to_owned(),
            detail: "MADE-UP SAMPLE. Two racks, four clients and a master ran as real processes \
                     on this machine; every value of every workload carried a checksum that held."
                .to_owned(),
        },
        machine: Machine {
            cpu: "Abacus 9000 (made up)".to_owned(),
            cores: 2,
            memory_bytes: 24 << 30,
            kernel: "Linux 6.1.0".to_owned(),
        },
        command: "rackpool demo --html sample.html".to_owned(),
        git_revision: "0123456789ab".to_owned(),
        finished_at: "2026-01-01 12:00 UTC".to_owned(),
        duration_seconds: 48.2,
        key_numbers: vec![
            KeyNumber::new("Files verified", 1204.0, &Unit::Count, "412 MiB, none differs")
                .judged(true),
            KeyNumber::new("Into rack 0", 2.31e9, &Unit::BytesPerSecond, "from the page cache"),
            KeyNumber::new("Out of rack 1", 3.94e9, &Unit::BytesPerSecond, "over TCP"),
            KeyNumber::new("Own rack, 64 B read", 92.4, &Unit::Nanoseconds, "1.08 × a raw copy"),
        ],
        picture: Some(picture()),
        sections: vec![data(), ladder(), ycsb(), tail(), numbers()],
        notes: vec!["Numbers on this page are made up: this is a sample.".to_owned()],
    }
}

fn picture() -> Picture {
    let process = |name: &str, detail: &str| ProcessPicture {
        name: name.to_owned(),
        detail: detail.to_owned(),
    };
    let path = |label: &str, number: &str| PathPicture {
        label: label.to_owned(),
        number: number.to_owned(),
    };
    let rack = |index: usize, files: u64| RackPicture {
        name: format!("Rack {index}"),
        processes: vec![
            process("daemon", &format!("pid {}", 4100 + index)),
            process("client", &format!("pid {}", 4110 + index)),
            process("client", &format!("pid {}", 4120 + index)),
        ],
        inside: vec![path("64 B read, warm", "92 ns"), path("4 KiB read, warm", "310 ns")],
        memory: MemoryPicture {
            label: "/dev/shm, 2 MiB pages".to_owned(),
            total_bytes: 1 << 30,
            parts: vec![
                MemoryPart {
                    label: "page table".to_owned(),
                    bytes: 1 << 20,
                    tone: Tone::Reference,
                },
                MemoryPart { label: "files".to_owned(), bytes: files, tone: Tone::First },
                MemoryPart { label: "hash table".to_owned(), bytes: 160 << 20, tone: Tone::Third },
            ],
        },
    };
    Picture {
        master: Some(process("master", "127.0.0.1:7400")),
        racks: vec![rack(0, 412 << 20), rack(1, 96 << 20)],
        between: vec![
            path("64 B read over TCP", "7.40 µs"),
            path("1 MiB reads, stream", "8.20 GB/s"),
        ],
    }
}

fn data() -> Section {
    Section::new("Real data in and out", "Rust's library sources, stored and read back.").with(
        Block::Numbers {
            numbers: vec![
                KeyNumber::new("Files", 1204.0, &Unit::Count, "of 1,204 found"),
                KeyNumber::new("Bytes", 432e6, &Unit::Bytes, "in 2 MiB pages"),
                KeyNumber::new("Written", 2.31e9, &Unit::BytesPerSecond, "through rack 0"),
                KeyNumber::new("Read", 3.94e9, &Unit::BytesPerSecond, "through rack 1"),
                KeyNumber::new("Differences", 0.0, &Unit::Count, "compared byte by byte")
                    .judged(true),
            ],
        },
    )
}

fn ladder() -> Section {
    let bar =
        |label: &str, value: f64, tone: Tone, note: &str| Bar::new(label, value, tone).note(note);
    let mut emulated = bar("Own rack, CXL at 140 ns", 231.0, Tone::Third, "");
    emulated.kind = Some(Kind::Emulated);
    let chart = BarChart {
        title: "64 B read, median".to_owned(),
        unit: Unit::Nanoseconds,
        scale: Scale::Log,
        legend: vec![
            (Tone::Reference, "raw limit".to_owned()),
            (Tone::First, "own rack".to_owned()),
            (Tone::Third, "own rack, injected latency".to_owned()),
            (Tone::Fourth, "other rack".to_owned()),
        ],
        groups: vec![BarGroup {
            label: String::new(),
            bars: vec![
                bar("Raw copy", 85.6, Tone::Reference, "same mapping, same indices"),
                bar("Own rack, warm", 92.4, Tone::First, "1.08 × raw copy"),
                emulated,
                bar("Own rack, first touch", 1410.0, Tone::First, "one round trip to the daemon"),
                bar("Raw TCP ping-pong", 6600.0, Tone::Reference, "64 B each way, spinning"),
                bar("Other rack, warm", 7400.0, Tone::Fourth, "1.12 × raw TCP"),
                bar("Other rack, first touch", 21_300.0, Tone::Fourth, "asks the master once"),
            ],
        }],
    };
    Section::new(
        "Latency ladder",
        "Each step is a factor, not a difference: the axis is logarithmic, each line ten times \
         the one before.",
    )
    .with(Block::Bars(chart))
}

fn ycsb() -> Section {
    let group = |name: &str, uniform: f64, zipfian: f64| BarGroup {
        label: name.to_owned(),
        bars: vec![
            Bar::new("uniform", uniform, Tone::First).note("p50 0.9 µs · p99 4.2 µs"),
            Bar::new("zipfian 0.99", zipfian, Tone::Second).note("p50 0.7 µs · p99 6.8 µs"),
        ],
    };
    let chart = BarChart {
        title: String::new(),
        unit: Unit::OpsPerSecond,
        scale: Scale::Linear,
        legend: vec![
            (Tone::First, "uniform".to_owned()),
            (Tone::Second, "zipfian 0.99, scrambled".to_owned()),
        ],
        groups: vec![
            group("A · half reads, half updates", 1.21e6, 1.32e6),
            group("B · 95 % reads, 5 % updates", 1.94e6, 2.21e6),
            group("C · reads only", 2.05e6, 2.44e6),
            group("D · reads of the latest, 5 % inserts", 1.71e6, 2.02e6),
            group("F · read, then write back", 0.93e6, 1.04e6),
        ],
    };
    Section::new("YCSB", "Four clients in two racks; 1,000 B values, each verified when read.")
        .with(Block::Bars(chart))
        .with(Block::Note {
            text: "Workload E scans ranges in order; a hash table has no order.".to_owned(),
        })
}

fn tail() -> Section {
    let series = |label: &str, tone: Tone, base: f64, slope: f64| Series {
        label: label.to_owned(),
        tone,
        points: (0..=40)
            .map(|step| {
                let nines = f64::from(step) / 8.0;
                (1.0 - 10f64.powf(-nines), base * (1.0 + slope * nines.powi(3)))
            })
            .chain([(1.0, base * (1.0 + slope * 190.0))])
            .collect(),
    };
    Section::new("Tails", "The slowest of a thousand, of ten thousand, of a hundred thousand.")
        .with(Block::Series(SeriesChart {
            title: "Latency by percentile".to_owned(),
            unit: Unit::Nanoseconds,
            series: vec![
                series("Raw copy", Tone::Reference, 84.0, 0.04),
                series("Own rack, warm", Tone::First, 90.0, 0.05),
                series("Other rack, warm", Tone::Fourth, 6900.0, 0.09),
                series("Raw TCP", Tone::Third, 6300.0, 0.07),
            ],
        }))
}

fn numbers() -> Section {
    let time = |name: &str, ours: f64, raw: f64| {
        let mut row =
            Row::new(name, "ns", Better::Lower, ours).against(Reference::Raw(raw)).samples(400_000);
        (row.p50, row.p99, row.p999) =
            (Some(ours as u64), Some(ours as u64 * 2), Some(ours as u64 * 9));
        row
    };
    let rows = [
        time("read_64B_own_rack_warm", 92.4, 85.6),
        time("write_64B_own_rack_warm", 101.0, 86.0),
        time("read_64B_remote_warm", 7400.0, 6600.0),
        Row::new("read_1MiB_remote", "B/s", Better::Higher, 8.2e9)
            .against(Reference::Raw(9.4e9))
            .samples(2000),
    ];
    Section::new("All numbers", "").with(Block::Table(Table::of_results("", &rows)))
}
