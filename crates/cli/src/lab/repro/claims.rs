//! What a source says beside ours, for each `repro` that judges claims: table, row, page.

use crate::lab::sim;
use rackpool_bench::hmsdk::claims::{Claim, Judged};
use rackpool_bench::html::{self, DemoReport, Verdict};
use rackpool_bench::report::{Better, Kind, Reference, Row};
use rackpool_sim::report::Table;

/// Where the figures of claims come from.
pub const PREDICTED: &str = "predicted";

/// All claims, with the sum below.
pub fn table(title: &str, judged: &[Judged], totals: String) -> Table {
    let columns = [
        ("claim", ""),
        ("says", ""),
        ("case", ""),
        ("paper", ""),
        ("ours", ""),
        ("unit", ""),
        ("origin", ""),
        ("holds", ""),
        ("because", ""),
    ];
    let mut table = Table::new("claims", title, &columns);
    for judged in judged {
        let claim = &judged.claim;
        table.row([
            (&*claim.name).into(),
            (&*claim.says).into(),
            (&*judged.case).into(),
            claim.value.into(),
            judged.ours.into(),
            (&*claim.unit).into(),
            PREDICTED.into(),
            if judged.holds { "yes" } else { "NO" }.into(),
            (&*judged.because).into(),
        ]);
    }
    table.note(totals);
    table
}

fn better(claim: &Claim) -> Better {
    if claim.value.is_some_and(|value| value < 0.0) { Better::Lower } else { Better::Higher }
}

/// A claim as a result.
pub fn row(judged: &Judged) -> Row {
    let claim = &judged.claim;
    let row = Row::new(&claim.name, &claim.unit, better(claim), judged.ours)
        .with("origin", PREDICTED)
        .with("case", judged.case.clone())
        .with("paper_words", claim.says.clone())
        .with("holds_if", claim.holds_if.clone())
        .with("as_stated", judged.holds)
        .with("note", judged.because.clone());
    // A ratio to nothing is none.
    match claim.value {
        Some(value) if value != 0.0 => row.against(Reference::Paper(value)),
        _ => row,
    }
}

/// A page of tables under its outcome.
pub fn page(command: &str, verdict: Verdict, tables: &[Table], seconds: f64) -> String {
    let mut page = DemoReport::here(command, Kind::Simulated, verdict);
    page.duration_seconds = seconds;
    page.sections = tables.iter().map(sim::section_of).collect();
    html::render(&page)
}
