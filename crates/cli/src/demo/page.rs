//! The page of `demo`: what was running, what went in and came out, YCSB, the ladder, the tails.
//! Says what to show; `rackpool_bench::html` draws it. Pure.

use super::{Findings, summary};
use rackpool_bench::html::{
    Bar, BarChart, BarGroup, Block, DemoReport, KeyNumber, MemoryPart, MemoryPicture, PathPicture,
    Picture, ProcessPicture, RackPicture, Scale, Section, Series, SeriesChart, Table, Tone,
    Verdict,
};
use rackpool_bench::report::{Kind, Report, Row};
use rackpool_stats::format::{Unit, digits};
use serde_json::Value;

pub fn page(findings: &Findings, report: &Report, finished_at: String) -> DemoReport {
    let good = findings.judge().is_ok();
    let detail = format!(
        "A master, two rack daemons and {} clients ran as real processes on this machine. {} \
         values of YCSB were read and every one held its checksum.",
        findings.clients,
        Unit::Count.show(summary::values_verified(findings) as f64)
    );
    let verdict = Verdict { good, headline: summary::headline(findings), detail };
    let mut page = DemoReport::here("rackpool demo", findings.kind, verdict);
    page.finished_at = finished_at;
    page.duration_seconds = findings.took.as_secs_f64();
    page.key_numbers = key_numbers(findings);
    page.picture = Some(picture(findings));
    page.sections.push(files(findings));
    page.sections.push(rates(findings));
    page.sections.extend(ladder(findings));
    page.sections.push(tails(findings));
    let numbers = Section::new("All numbers", "Ours beside its raw limit, where there is one.");
    let table = Table::of_results("", &report.results);
    page.sections.push(numbers.with(Block::Table(table)));
    page.notes = summary::remarks(findings);
    page
}

fn key_numbers(findings: &Findings) -> Vec<KeyNumber> {
    let moved = &findings.moved;
    let bytes = Unit::Bytes.show(moved.read.bytes as f64);
    let none_differs = moved.read.different_count == 0;
    let detail = if none_differs { format!("{bytes}, none differs") } else { "differ!".into() };
    let mut numbers = vec![
        KeyNumber::new("Files verified", moved.read.items as f64, &Unit::Count, &detail)
            .judged(none_differs),
        KeyNumber::new(
            "Into rack 0",
            moved.stored.rate(),
            &Unit::BytesPerSecond,
            "reading the files included",
        ),
    ];
    let best = findings.ycsb.results.iter().map(|row| row.ours).fold(0.0, f64::max);
    numbers.push(KeyNumber::new("YCSB, best", best, &Unit::OpsPerSecond, "all clients together"));
    if let Some(row) = ladder_row(findings, "read_64B_own_rack_warm") {
        let detail = row.ratio.map_or(String::new(), |r| format!("{} × a raw copy", digits(r)));
        let unit = Unit::from_name(&row.unit);
        numbers.push(KeyNumber::new("Own rack, 64 B read", row.ours, &unit, &detail));
    }
    numbers
}

fn ladder_row<'a>(findings: &'a Findings, name: &str) -> Option<&'a Row> {
    findings.ladder.iter().flat_map(|report| &report.results).find(|row| row.name == name)
}

fn picture(findings: &Findings) -> Picture {
    let process = |name: &str, pid: u32| ProcessPicture {
        name: name.to_owned(),
        detail: format!("pid {pid}"),
    };
    let racks = findings.pids.daemons.iter().enumerate().map(|(rack, daemon)| {
        let mut processes = vec![process("daemon", *daemon)];
        let clients: Vec<u32> = findings
            .pids
            .clients
            .iter()
            .filter(|(of, _)| usize::from(*of) == rack)
            .map(|(_, pid)| *pid)
            .collect();
        match clients[..] {
            [_, _, _, _, ..] => processes.push(ProcessPicture {
                name: format!("{} clients", clients.len()),
                detail: format!("pid {} …", clients[0]),
            }),
            _ => processes.extend(clients.iter().map(|pid| process("client", *pid))),
        }
        RackPicture {
            name: format!("Rack {rack}"),
            processes,
            inside: paths(
                findings,
                &[
                    ("64 B read, warm", "read_64B_own_rack_warm"),
                    ("4 KiB read, warm", "read_4KiB_own_rack_warm"),
                    ("ring, there and back", "ring_roundtrip"),
                ],
            ),
            memory: memory(findings, rack),
        }
    });
    let racks = racks.collect();
    let between = paths(
        findings,
        &[("64 B read", "read_64B_remote_warm"), ("1 MiB reads", "read_1MiB_remote")],
    );
    Picture { master: Some(process("master", findings.pids.master)), racks, between }
}

fn paths(findings: &Findings, wanted: &[(&str, &str)]) -> Vec<PathPicture> {
    let path = |(label, name): &(&str, &str)| {
        let row = ladder_row(findings, name)?;
        let number = Unit::from_name(&row.unit).show(row.ours);
        Some(PathPicture { label: (*label).to_owned(), number })
    };
    wanted.iter().filter_map(path).collect()
}

/// What lies in a rack's memory, as its daemon counts.
fn memory(findings: &Findings, rack: usize) -> MemoryPicture {
    let daemon = &findings.stats["racks"][rack]["daemon"];
    let number = |name: &str| daemon[name].as_u64().unwrap_or(0);
    let page_bytes = number("page_bytes");
    let slabs = number("frames_slab") * page_bytes;
    let used = number("frames").saturating_sub(number("frames_free")) * page_bytes;
    let part = |label: &str, bytes: u64, tone| MemoryPart { label: label.to_owned(), bytes, tone };
    MemoryPicture {
        label: format!("/dev/shm, {} pages", Unit::Bytes.show(page_bytes as f64)),
        total_bytes: findings.rack_bytes,
        parts: vec![
            part("metadata", number("metadata_bytes"), Tone::Reference),
            part("whole pages", used.saturating_sub(slabs), Tone::First),
            part("slabs", slabs, Tone::Third),
        ],
    }
}

fn files(findings: &Findings) -> Section {
    let (plan, moved) = (&findings.plan, &findings.moved);
    let lead = format!(
        "Regular files under {}, each an object in the pool's hash table: stored by the clients \
         of rack 0, read back by the clients of rack 1 over {} and compared with the disk.",
        findings.input.display(),
        findings.fabric
    );
    let found = format!("of {} found", Unit::Count.show(plan.found_files as f64));
    let pool_only = |rate: f64| format!("{} in the pool alone", Unit::BytesPerSecond.show(rate));
    let different = moved.read.different_count;
    let number = |label: &str, number: f64, unit: Unit, detail: &str| {
        KeyNumber::new(label, number, &unit, detail)
    };
    let into = pool_only(moved.stored.pool_rate());
    let back = pool_only(moved.back.pool_rate());
    Section::new("Real data in and out", &lead).with(Block::Numbers {
        numbers: vec![
            number("Files", moved.stored.moved.items as f64, Unit::Count, &found),
            number("Bytes", moved.stored.moved.bytes as f64, Unit::Bytes, "stored"),
            number("Into rack 0", moved.stored.rate(), Unit::BytesPerSecond, &into),
            number("Out of rack 1", moved.back.rate(), Unit::BytesPerSecond, &back),
            number("Differences", different as f64, Unit::Count, "compared byte by byte")
                .judged(different == 0),
        ],
    })
}

const TONES: [(&str, Tone); 3] =
    [("uniform", Tone::First), ("zipfian", Tone::Second), ("latest", Tone::Third)];

fn rates(findings: &Findings) -> Section {
    let number = |field: &str| findings.ycsb.extra.get(field).and_then(Value::as_u64).unwrap_or(0);
    let lead = format!(
        "{} records of {} bytes, {} client processes in two racks; operations a second of all \
         clients together. Every value that is read is verified.",
        Unit::Count.show(number("records") as f64),
        Unit::Count.show(number("value_bytes") as f64),
        number("clients")
    );
    let bar = |row: &Row| {
        let distribution = text(row, "distribution");
        let tone = TONES.iter().find(|(of, _)| *of == distribution);
        let tone = tone.map_or(Tone::Fourth, |(_, tone)| *tone);
        let p99 = row.p99.map_or(String::new(), |ns| Unit::Nanoseconds.show(ns as f64));
        Bar::new(distribution, row.ours, tone).note(format!("p99 {p99}"))
    };
    let rows = &findings.ycsb.results;
    let mut workloads: Vec<&str> = rows.iter().map(|row| text(row, "workload")).collect();
    workloads.dedup();
    let group = |workload: &str| {
        let rows = rows.iter().filter(|row| text(row, "workload") == workload);
        BarGroup { label: format!("Workload {workload}"), bars: rows.map(bar).collect() }
    };
    let chart = BarChart {
        title: String::new(),
        unit: Unit::OpsPerSecond,
        scale: Scale::Linear,
        legend: TONES.iter().map(|(of, tone)| (*tone, (*of).to_owned())).collect(),
        groups: workloads.into_iter().map(group).collect(),
    };
    let mut section = Section::new("YCSB", &lead).with(Block::Bars(chart));
    section.kind = Some(findings.ycsb.kind);
    section
}

fn text<'a>(row: &'a Row, field: &str) -> &'a str {
    row.extra.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The ladder, one section a kind of number.
fn ladder(findings: &Findings) -> Vec<Section> {
    let of_kind = |kind: Kind| {
        let rows = findings.ladder.iter().filter(move |report| report.kind == kind);
        let rows = rows.flat_map(|report| &report.results);
        // Bare copies are the measure of the measure: they are in the table below.
        let rows: Vec<&Row> = rows.filter(|row| !row.name.starts_with("copy_")).collect();
        (!rows.is_empty()).then(|| ladder_section(kind, &rows))
    };
    [Kind::Measured, Kind::Emulated].into_iter().filter_map(of_kind).collect()
}

fn ladder_section(kind: Kind, rows: &[&Row]) -> Section {
    let lead = "From the own rack's memory over a ring to another rack: each access beside the \
                raw limit of this machine, measured in turn in the same run.";
    let mut section = Section::new("The latency ladder", lead);
    section.kind = Some(kind);
    for (unit, title, scale) in [
        ("ns", "Time of one access (logarithmic)", Scale::Log),
        ("ops/s", "Rate (logarithmic)", Scale::Log),
        ("B/s", "Bandwidth", Scale::Linear),
    ] {
        let groups: Vec<BarGroup> =
            rows.iter().filter(|row| row.unit == unit).map(|row| bars(row)).collect();
        if groups.is_empty() {
            continue;
        }
        section = section.with(Block::Bars(BarChart {
            title: title.to_owned(),
            unit: Unit::from_name(unit),
            scale,
            legend: vec![(Tone::First, "ours".to_owned()), (Tone::Reference, "raw".to_owned())],
            groups,
        }));
    }
    section
}

fn bars(row: &Row) -> BarGroup {
    let note = row.ratio.map_or(String::new(), |ratio| format!("{} × raw", digits(ratio)));
    let mut bars = vec![Bar::new("ours", row.ours, Tone::First).note(note)];
    bars.extend(row.reference().map(|value| Bar::new("raw", value, Tone::Reference)));
    BarGroup { label: readable(&row.name), bars }
}

/// `read_64B_own_rack_warm` as `read 64 B own rack warm`.
fn readable(name: &str) -> String {
    let word = |word: &str| {
        let digits = word.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = word.split_at(digits);
        match (number, unit) {
            (number, "B" | "KiB" | "MiB" | "GiB") if !number.is_empty() => {
                format!("{number} {unit}")
            }
            _ => word.to_owned(),
        }
    };
    name.split('_').map(word).collect::<Vec<_>>().join(" ")
}

fn tails(findings: &Findings) -> Section {
    let lead = "How long the slowest operations take: each step to the right is ten times rarer.";
    let series = |side: &str| -> Vec<Series> {
        let rows = findings.ycsb.results.iter();
        let zipfian = rows.filter(|row| text(row, "distribution") == "zipfian");
        let tones = [Tone::First, Tone::Second, Tone::Third, Tone::Fourth, Tone::Reference];
        let lines = zipfian.zip(tones).filter_map(|(row, tone)| {
            let times = row.extra.get(side)?;
            let value = |name: &str| times.get(name).and_then(Value::as_u64);
            let label = format!("workload {}", text(row, "workload"));
            value("n").filter(|n| *n > 0)?;
            let named = [(0.5, "p50"), (0.99, "p99"), (0.999, "p999")];
            let points = named.iter().filter_map(|(at, name)| Some((*at, value(name)? as f64)));
            Some(Series { label, tone, points: points.collect() })
        });
        lines.collect()
    };
    let chart = |title: &str, side: &str| {
        let (title, unit) = (title.to_owned(), Unit::Nanoseconds);
        Block::Series(SeriesChart { title, unit, series: series(side) })
    };
    Section::new("Tails", lead)
        .with(chart("Reads, zipfian", "reads"))
        .with(chart("Operations that write, zipfian", "writes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_results_become_readable() {
        assert_eq!(readable("read_64B_own_rack_warm"), "read 64 B own rack warm");
        assert_eq!(readable("ring_roundtrip"), "ring roundtrip");
        assert_eq!(readable("read_1MiB_remote"), "read 1 MiB remote");
    }
}
