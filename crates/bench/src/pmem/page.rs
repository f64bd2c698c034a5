//! What was measured as a page, a table for each part, with the guide's numbers beside.

use crate::html::{self, Block, Column, DemoReport, Section, Table, Verdict};
use crate::report::{Report, Row};
use rackpool_stats::format::digits;

/// The first word of rows' names, and what they are.
const PARTS: [(&str, &str); 9] = [
    ("latency", "Idle latency"),
    ("tail", "Writes of 64 B to a hot spot of so many bytes: the slowest of 100,000"),
    ("threads", "Accesses of 256 B in order by threads"),
    ("size", "Random accesses by size"),
    ("fenced", "Writes in order, a fence after each"),
    ("mix", "Reads and ntstores of 256 B by percent of reads"),
    ("fence", "One thread, a fence after so many bytes"),
    ("buffer", "Halves of so many units written, then their other halves"),
    ("rule", "Without and with each rule, in the model"),
];

/// A page of a report of [`super::run`] or [`super::run_rules`].
pub fn page(report: &Report, seconds: f64) -> String {
    let on = report.extra.get("memory").and_then(|memory| memory.as_str());
    let verdict = Verdict {
        good: true,
        headline: "A guide's measurements of persistent memory".into(),
        detail: match on {
            Some(memory) => format!("On {memory}; the guide's are of six Optane DIMMs."),
            None => "The guide's four rules in a model of Optane DIMMs.".into(),
        },
    };
    let mut page = DemoReport::here("rackpool bench pmem", report.kind, verdict);
    page.duration_seconds = seconds;
    page.sections = PARTS.into_iter().filter_map(|part| section(report, part)).collect();
    if let Some(profile) = report.extra.get("profile") {
        page.notes.push(format!("Media profile: {profile}"));
    }
    html::render(&page)
}

fn section(report: &Report, (word, title): (&str, &str)) -> Option<Section> {
    let is_of = |row: &&Row| row.name.split('_').next() == Some(word);
    let rows: Vec<Vec<String>> = report.results.iter().filter(is_of).map(cells).collect();
    let column = |(heading, numeric): (&str, bool)| Column { heading: heading.into(), numeric };
    let headings =
        [("", false), ("without", true), ("here", true), ("unit", false), ("guide", true)];
    let table = Table { title: String::new(), columns: headings.map(column).into(), rows };
    (!table.rows.is_empty()).then(|| Section {
        title: title.into(),
        lead: String::new(),
        kind: None,
        blocks: vec![Block::Table(table)],
    })
}

fn cells(row: &Row) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or(String::new(), digits);
    let without = row.extra.get("without").and_then(|value| value.as_f64());
    let name = row.extra.get("what").and_then(|what| what.as_str()).unwrap_or(&row.name);
    vec![name.to_owned(), number(without), digits(row.ours), row.unit.clone(), number(row.paper)]
}
