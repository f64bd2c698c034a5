//! `rackpool repro`: the evaluations of the papers again, as a page, as JSON and as text.

mod claims;
mod hmsdk;
mod optane;
mod racksim;

use crate::args::{PaperName, ReproArgs};
use crate::failure::{Failure, Result};
use crate::lab::sim;
use crate::output;
use rackpool_bench::report::{Better, Kind, Reference, Report, Row};
use rackpool_sim::device::Profile;
use rackpool_sim::report::Table;
use rackpool_sim::repro::evaluation::evaluate;
use rackpool_sim::repro::herd::figures::Herd;
use rackpool_sim::repro::rcmp::Rcmp;
use rackpool_sim::repro::{Figure, Paper, Repro, Share, Totals};
use serde_json::{Value, json};
use std::time::Instant;

/// Runs an evaluation and writes what came out.
pub fn run(args: &ReproArgs) -> Result<()> {
    type Made = std::result::Result<Repro, String>;
    type Make = fn(&Profile, bool, &dyn Fn(&str) -> bool, &mut dyn FnMut(&str)) -> Made;
    let (name, testbed, make): (_, _, Make) = match args.paper {
        PaperName::Rcmp => ("rcmp", "rcmp-testbed", evaluate::<Rcmp>),
        PaperName::Herd => ("herd", "herd-apt", evaluate::<Herd>),
        PaperName::Racksim => return racksim::run(args),
        PaperName::Hmsdk => return hmsdk::run(args),
        PaperName::Optane => return optane::run(args),
    };
    let profile = args.profile.as_deref().unwrap_or(testbed);
    let profile = Profile::load(profile).map_err(|error| Failure::usage(error.to_string()))?;
    output::directory(&args.out)?;
    let to_json = output::open(&args.out.join(format!("{name}.json")))?;
    let to_html = output::open(&args.out.join(format!("{name}.html")))?;
    let bar = output::spinner("simulating");
    let start = Instant::now();
    let mut told = |what: &str| bar.set_message(what.to_owned());
    let made = make(&profile, args.quick, &|_| true, &mut told);
    bar.finish_and_clear();
    let made = made.map_err(|reason| Failure::new("sim", reason))?;
    let tables: Vec<Table> = std::iter::once(made.table()).chain(made.tables.clone()).collect();
    to_json.report(&report(&made, &tables, &profile))?;
    let title = format!("rackpool repro {name}");
    let page = sim::page_of(&title, &tables, &profile, start.elapsed().as_secs_f64());
    let html = to_html.path().display().to_string();
    to_html.write(page)?;
    for table in &tables {
        output::print(&format!("{}\n", sim::text_of(table)))?;
    }
    output::print(&format!("{}; {}\nwritten: {html}\n", made.totals(), profile.label()))
}

/// Each figure as a result, `paper` beside `ours`, and the curves as tables.
fn report(made: &Repro, tables: &[Table], profile: &Profile) -> Report {
    let mut report = Report::here(Kind::Simulated);
    report.results = made.figures.iter().map(row).collect();
    let tables = tables.iter().map(Table::to_json).collect::<Vec<Value>>();
    report.extra.insert("tables".into(), tables.into());
    report.extra.insert("profile".into(), profile.name.clone().into());
    report.extra.insert("totals".into(), totals_json(&made.totals()));
    report
}

/// Of what is predicted and what is not, how many figures are `as_stated` and how many there are.
fn totals_json(totals: &Totals) -> Value {
    let share = |share: Share| json!({ "as_stated": share.met, "stated": share.all });
    json!({
        "predicted_numbers": share(totals.numbers),
        "predicted_words": share(totals.words),
        "not_predicted": share(totals.set),
    })
}

fn row(figure: &Figure) -> Row {
    let better = if figure.is_lower_better { Better::Lower } else { Better::Higher };
    let row = Row::new(&figure.name, figure.unit, better, figure.ours)
        .with("origin", figure.origin.name())
        .with("note", figure.note.clone());
    let (row, bound) = match figure.paper {
        Paper::Is(value) => (row.against(Reference::Paper(value)), "is"),
        Paper::Below(value) => (row.against(Reference::Paper(value)), "below"),
        Paper::Above(value) => (row.against(Reference::Paper(value)), "above"),
        Paper::Words(..) => (row.with("paper_words", figure.paper_text()), "words"),
        Paper::Silent => return row,
    };
    row.with("paper_says", bound).with("as_stated", figure.is_met())
}
