//! What `demo` found, as numbers for programs ([`report`]) and as a few lines for people
//! ([`text`]). Pure.

use super::Findings;
use rackpool_bench::report::{Better, Report, Row};
use rackpool_stats::format::{Unit, digits};
use rackpool_stats::table::TextTable;

/// All numbers in one report: files, YCSB, ladder.
pub fn report(findings: &Findings) -> Report {
    let mut report = Report::here(findings.kind);
    let moved = &findings.moved;
    for (name, direction) in
        [("store_files_rack_0", &moved.stored), ("read_files_rack_1", &moved.back)]
    {
        let row = Row::new(name, "B/s", Better::Higher, direction.rate());
        let row = row.samples(direction.moved.items).with("bytes", direction.moved.bytes);
        let row = row.with("clients", direction.clients);
        report.results.push(row.with("pool_only_bytes_per_second", direction.pool_rate()));
    }
    for part in std::iter::once(&findings.ycsb).chain(&findings.ladder) {
        let kind = part.kind.name();
        let labelled = |row: &Row| row.clone().with("kind", kind);
        report.results.extend(part.results.iter().map(labelled));
    }
    let extra = &mut report.extra;
    extra.insert("demo".into(), details(findings));
    report
}

fn details(findings: &Findings) -> serde_json::Value {
    let (plan, moved) = (&findings.plan, &findings.moved);
    serde_json::json!({
        "input": findings.input.display().to_string(),
        "quick": findings.quick,
        "fabric": findings.fabric,
        "emulate": findings.emulate,
        "rack_bytes": findings.rack_bytes,
        "clients": findings.clients,
        "files_found": plan.found_files,
        "bytes_found": plan.found_bytes,
        "files_taken": plan.entries.len(),
        "bytes_taken": plan.bytes(),
        "files_stored": moved.stored.moved.items,
        "files_verified": moved.read.items - moved.read.different_count,
        "files_different": moved.read.different_count,
        "files_changed_meanwhile": moved.read.changed,
        "files_unreadable": moved.stored.moved.unreadable,
        "ycsb_values_verified": values_verified(findings),
        "seconds": findings.took.as_secs_f64(),
        "stats": findings.stats,
    })
}

/// Values of YCSB that were read and held their checksum; one that does not ends the run.
pub fn values_verified(findings: &Findings) -> u64 {
    let of_row = |row: &Row| row.extra.get("values_verified").and_then(|value| value.as_u64());
    findings.ycsb.results.iter().filter_map(of_row).sum()
}

/// What happened to the files, in one sentence.
pub fn headline(findings: &Findings) -> String {
    let read = &findings.moved.read;
    let show = |number: u64| Unit::Count.show(number as f64);
    match read.different_count {
        0 => format!(
            "{} files went in through rack 0 and came out of rack 1, byte for byte",
            show(read.items)
        ),
        count => format!("{} of {} files came back different", show(count), show(read.items)),
    }
}

/// What is to be said beside the headline: what was left out, and why.
pub fn remarks(findings: &Findings) -> Vec<String> {
    let (plan, moved) = (&findings.plan, &findings.moved);
    let mut remarks = Vec::new();
    if plan.is_share() {
        remarks.push(format!(
            "{} of the {} files under {} were taken ({}).",
            plan.entries.len(),
            plan.found_files,
            findings.input.display(),
            if findings.quick { "--quick takes a share" } else { "as many as fit" }
        ));
    }
    for (count, what) in [
        (moved.stored.moved.unreadable, "could not be read from disk"),
        (moved.read.unreadable, "could not be read from disk for the comparison"),
        (moved.read.changed, "changed on disk between storing and comparing"),
    ] {
        if count > 0 {
            remarks.push(format!("{count} files {what} and do not count."));
        }
    }
    if let Some(emulate) = &findings.emulate {
        remarks.push(format!("Latency was injected ({emulate}): numbers are emulated."));
    }
    remarks
}

/// The last lines on the terminal.
pub fn text(findings: &Findings, report: &Report) -> String {
    let mut table = TextTable::new(&["", "rate", "ours", "raw", "ratio", "p50", "p99", "n"]);
    for row in &report.results {
        let unit = Unit::from_name(&row.unit);
        let (rate, time) = match row.better {
            Better::Higher => (unit.show(row.ours), String::new()),
            Better::Lower => (String::new(), unit.show(row.ours)),
        };
        let ns = |ns: Option<u64>| ns.map_or(String::new(), |ns| Unit::Nanoseconds.show(ns as f64));
        table.row([
            row.name.clone(),
            rate,
            time,
            row.reference().map_or(String::new(), |value| unit.show(value)),
            row.ratio.map_or(String::new(), digits),
            ns(row.p50),
            ns(row.p99),
            Unit::Count.show(row.n as f64),
        ]);
    }
    let values = Unit::Count.show(values_verified(findings) as f64);
    let seconds = Unit::Seconds.show(findings.took.as_secs_f64());
    let mut text = format!("\n{}\n{}\n", table.show(), headline(findings));
    for remark in remarks(findings) {
        text.push_str(&format!("{remark}\n"));
    }
    let left = match findings.residue.is_empty() {
        true => "nothing is left in /dev/shm and no process",
        false => "something was left behind",
    };
    let kind = findings.kind.name();
    text.push_str(&format!(
        "{values} values of YCSB were read and every one held its checksum\n\
         {kind} numbers; took {seconds}; {left}\n"
    ));
    text
}
