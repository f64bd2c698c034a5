//! `repro optane`: the guide's figures of persistent memory in virtual time, as tables, JSON and a
//! page.

use super::claims::{self, PREDICTED};
use crate::args::ReproArgs;
use crate::failure::{Failure, Result};
use crate::lab::sim;
use crate::output;
use rackpool_bench::html::Verdict;
use rackpool_bench::optane::rules;
use rackpool_bench::optane::{self, GuideStudy, ShownPoint};
use rackpool_bench::pmem;
use rackpool_bench::report::{Better, Kind, Reference, Report, Row};
use rackpool_bench::run::Size;
use rackpool_sim::report::Table;
use serde_json::{Value, json};
use std::time::Instant;

const FITTED: &str = "fitted";

/// Runs all figures and writes what came out.
pub fn run(args: &ReproArgs) -> Result<()> {
    if args.profile.is_some() {
        return Err(Failure::usage("optane has a machine of its own and takes no --profile"));
    }
    output::directory(&args.out)?;
    let to_json = output::open(&args.out.join("optane.json"))?;
    let to_html = output::open(&args.out.join("optane.html"))?;
    let bar = output::spinner("simulating");
    let start = Instant::now();
    let study = optane::run(Size::quick(args.quick), &mut |what| bar.set_message(what.to_owned()));
    bar.finish_and_clear();
    let rules = rules::table(&study.rules);
    let judged = claims::table("What the guide says, and ours", &study.judged, totals(&study));
    let mut tables = vec![judged, rules, inputs_table(&study), constants_table()];
    tables.extend(study.tables.iter().cloned());
    to_json.report(&report_of(&study, &tables))?;
    let page = to_html.path().display().to_string();
    let seconds = start.elapsed().as_secs_f64();
    to_html.write(page_of(&study, &tables, seconds))?;
    for table in &tables {
        output::print(&format!("{}\n", sim::text_of(table)))?;
    }
    output::print(&format!("{}; {seconds:.0} s\nwritten: {page}\n", totals(&study)))
}

fn totals(study: &GuideStudy) -> String {
    let [numbers, orders] = study.totals();
    format!(
        "{} of {} numbers and {} of {} orders are as stated, none of them fitted, all simulated",
        numbers.0, numbers.1, orders.0, orders.1
    )
}

fn inputs_table(study: &GuideStudy) -> Table {
    let columns = [("input", ""), ("paper", ""), ("says", ""), ("origin", "")];
    let mut table = Table::new("inputs", "What the guide says and is put in", &columns);
    for input in &study.claims.input {
        table.row([
            (&*input.name).into(),
            input.value.to_string().into(),
            (&*input.says).into(),
            (&*input.kind).into(),
        ]);
    }
    table
}

fn constants_table() -> Table {
    let columns = [("constant", ""), ("value", ""), ("unit", ""), ("origin", ""), ("source", "")];
    let mut table = Table::new("constants", "The model's constants", &columns);
    for one in optane::constants() {
        table.row([
            one.name.into(),
            one.value.into(),
            one.unit.into(),
            one.origin.name().into(),
            one.source.into(),
        ]);
    }
    table
}

fn report_of(study: &GuideStudy, tables: &[Table]) -> Report {
    let mut report = Report::here(Kind::Simulated);
    report.results = study.judged.iter().map(claims::row).collect();
    report.results.extend(study.rules.iter().map(|rule| pmem::rule_row(rule, PREDICTED)));
    report.results.extend(study.points.iter().map(point_row));
    let tables = tables.iter().map(Table::to_json).collect::<Vec<Value>>();
    report.extra.insert("tables".into(), tables.into());
    let [numbers, orders] =
        study.totals().map(|(met, all)| json!({ "as_stated": met, "stated": all }));
    let totals = json!({ "predicted_numbers": numbers, "predicted_words": orders });
    report.extra.insert("totals".into(), totals);
    report
}

fn point_row(point: &ShownPoint) -> Row {
    let better = if point.unit == "ns" { Better::Lower } else { Better::Higher };
    Row::new(&point.name, point.unit, better, point.ours)
        .with("origin", if point.is_fitted { FITTED } else { PREDICTED })
        .against(Reference::Paper(point.paper))
}

fn page_of(study: &GuideStudy, tables: &[Table], seconds: f64) -> String {
    let verdict = Verdict {
        good: true,
        headline: "The figures of a guide to Optane memory again".into(),
        detail: format!("Threads, queues, DIMMs and a link in virtual time; {}.", totals(study)),
    };
    claims::page("rackpool repro optane", verdict, tables, seconds)
}
