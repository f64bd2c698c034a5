//! Runs and tables as text for a terminal. Pure.

use super::{Findings, calibration};
use rackpool_sim::device::Profile;
use rackpool_sim::report::{Cell, Column, Table};
use rackpool_sim::run::{Config, Counts, Group, SeedOutcome, Sweep};
use rackpool_stats::format::{Unit, digits};
use rackpool_stats::table::TextTable;
use std::path::PathBuf;
use std::time::Duration;

/// A whole number with its digits in groups.
pub fn count(number: u64) -> String {
    Unit::Count.show(number as f64)
}

/// Groups of counters with their headings, in the order in which they are shown.
pub const GROUPS: [(Group, &str); 6] = [
    (Group::Fault, "fault injected"),
    (Group::Rare, "rare branch forced"),
    (Group::Race, "race met"),
    (Group::Operation, "operation"),
    (Group::Message, "message"),
    (Group::Checked, "checked"),
];

/// Name, count and results of each counter of a group; the results of one name are one row.
pub fn counters(counts: &Counts, group: Group) -> Vec<[String; 3]> {
    let mut rows: Vec<[String; 3]> = Vec::new();
    for (name, result, number) in counts.group(group) {
        let result =
            if result.is_empty() { String::new() } else { format!("{} {result}", count(number)) };
        match rows.last_mut().filter(|row| row[0] == name) {
            Some(row) => row[2] = format!("{}, {result}", row[2]),
            None => rows.push([name.to_owned(), count(counts.get(group, name)), result]),
        }
    }
    rows
}

/// One line about the size of a sweep and one about its identity.
pub fn summary(findings: &Findings) -> String {
    let Findings { config, profile, sweep, threads, took, .. } = findings;
    let seconds = took.as_secs_f64().max(1e-9);
    let rate = |number: u64| Unit::OpsPerSecond.show(number as f64 / seconds);
    let last = sweep.first_seed.wrapping_add(sweep.seeds.saturating_sub(1));
    format!(
        "{} seeds, {} to {last}: {} operations in {} of virtual and {} of real time ({} on \
         {threads} threads, {} events)\n\
         trace hash {:016x}; faults {}; simulated, profile {} ({})\n",
        count(sweep.seeds),
        sweep.first_seed,
        count(sweep.operations),
        Unit::Nanoseconds.show(sweep.virtual_time.as_ns_f64()),
        Unit::Seconds.show(took.as_secs_f64()),
        rate(sweep.operations),
        count(sweep.events),
        sweep.trace_hash,
        config.faults,
        profile.name,
        calibration(profile),
    )
}

/// What never happened although it could have, in one sentence; empty if everything did.
pub fn never(config: &Config, sweep: &Sweep) -> String {
    let never = sweep.counts.never(config.faults);
    match never.is_empty() {
        true => String::new(),
        false => format!("never happened in these seeds: {}", never.join(", ")),
    }
}

/// Everything that a sweep has to say.
pub fn findings(findings: &Findings, stored: &[PathBuf]) -> String {
    let sweep = &findings.sweep;
    let mut text = String::new();
    for (group, heading) in GROUPS {
        let rows = counters(&sweep.counts, group);
        if !rows.is_empty() {
            let mut table = TextTable::new(&[heading, "count", "results"]);
            rows.into_iter().for_each(|row| table.row(row));
            text.push_str(&table.show());
            text.push('\n');
        }
    }
    text.push_str(&summary(findings));
    let never = never(&findings.config, sweep);
    if !never.is_empty() {
        text.push_str(&format!("{never}\n"));
    }
    text.push_str(&failures(findings));
    for path in stored {
        text.push_str(&format!("stored {}\n", path.display()));
    }
    text
}

fn failures(findings: &Findings) -> String {
    let mut text = String::new();
    for failed in &findings.sweep.failures {
        let failure = &failed.failure;
        text.push_str(&format!(
            "seed {} failed: {}: {}\n",
            failed.seed, failure.checker, failure.text
        ));
        let shrunk = findings.shrunk.iter().find(|shrunk| shrunk.seed == failed.seed);
        let line = match shrunk {
            Some(shrunk) => {
                let command = shrunk.config.replay_command(shrunk.seed);
                format!("  shortest replay, after {} runs: {command}\n", shrunk.runs)
            }
            None => format!("  replay: {}\n", findings.config.replay_command(failed.seed)),
        };
        text.push_str(&line);
    }
    let more = findings.sweep.failed_seeds - findings.sweep.failures.len() as u64;
    if more > 0 {
        text.push_str(&format!("and {} further seeds failed\n", count(more)));
    }
    text
}

/// One run: the end of its trace, then what it did.
pub fn outcome(
    outcome: &SeedOutcome,
    config: &Config,
    profile: &Profile,
    took: Duration,
) -> String {
    let mut text: String = outcome.trace.iter().map(|line| format!("{line}\n")).collect();
    text.push_str(&format!(
        "seed {}: {} operations, {} events, {} of virtual and {} of real time\n\
         trace hash {:016x}; faults {}; simulated, profile {} ({})\n",
        outcome.seed,
        count(outcome.operations),
        count(outcome.events),
        Unit::Nanoseconds.show(outcome.virtual_time.as_ns_f64()),
        Unit::Seconds.show(took.as_secs_f64()),
        outcome.trace_hash,
        config.faults,
        profile.name,
        calibration(profile),
    ));
    text.push_str(&match &outcome.failure {
        None => "passed every checker\n".to_owned(),
        Some(failure) => format!("failed at {}: {}\n", failure.at, failure.checker),
    });
    text
}

/// A cell with the unit of its column.
pub fn cell(column: &Column, cell: &Cell) -> String {
    match cell {
        Cell::Empty => String::new(),
        Cell::Text(text) => text.clone(),
        Cell::Number(number) if column.unit.is_empty() && number.fract() == 0.0 => {
            Unit::Count.show(*number)
        }
        Cell::Number(number) if column.unit.is_empty() => digits(*number),
        Cell::Number(number) => Unit::from_name(&column.unit).show(*number),
    }
}

/// A table with its title and remarks.
pub fn table(table: &Table) -> String {
    let headings: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    let mut text = TextTable::new(&headings);
    for row in &table.rows {
        text.row(table.columns.iter().zip(row).map(|(column, one)| cell(column, one)));
    }
    let notes: String = table.notes.iter().map(|note| format!("{note}\n")).collect();
    format!("{}\n{}{notes}", table.title, text.show())
}
