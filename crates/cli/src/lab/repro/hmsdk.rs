//! `repro hmsdk`: the cache over DDR5 and CXL memory in virtual time, as tables, JSON and a page.

use super::claims;
use crate::args::ReproArgs;
use crate::failure::{Failure, Result};
use crate::lab::sim;
use crate::output;
use rackpool_bench::hmsdk::{self, COPIED_LINE_PS, GET_PS, SET_PS, Study};
use rackpool_bench::html::Verdict;
use rackpool_bench::report::{Better, Kind, Report, Row};
use rackpool_bench::run::Size;
use rackpool_sim::report::Table;
use serde_json::{Value, json};
use std::time::Instant;

/// Where figures come from that were measured for the model.
const INPUT: &str = "input";

/// Runs all cases and writes what came out.
pub fn run(args: &ReproArgs) -> Result<()> {
    if args.profile.is_some() {
        return Err(Failure::usage("hmsdk has memories of its own and takes no --profile"));
    }
    output::directory(&args.out)?;
    let to_json = output::open(&args.out.join("hmsdk.json"))?;
    let to_html = output::open(&args.out.join("hmsdk.html"))?;
    let bar = output::spinner("simulating");
    let start = Instant::now();
    let made = hmsdk::run(Size::quick(args.quick), &mut |what| bar.set_message(what.to_owned()));
    bar.finish_and_clear();
    let study = made?;
    let judged = claims::table("What the study says, and ours", &study.judged, totals(&study));
    let mut tables = vec![judged, inputs_table(&study), cpu_table(&study)];
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

fn totals(study: &Study) -> String {
    let met = study.judged.iter().filter(|judged| judged.holds).count();
    format!("{met} of {} statements hold, all simulated", study.judged.len())
}

fn inputs_table(study: &Study) -> Table {
    let columns = [("input", ""), ("paper", ""), ("ours", ""), ("says", ""), ("origin", "")];
    let mut table = Table::new("inputs", "What the study says of its setting", &columns);
    let keys = format!(
        "input: from the paper, put in by {:.2} times the keys that CacheBench has for such a \
         cache",
        study.follower_keys
    );
    for input in &study.claims.input {
        let (ours, origin) = match &*input.name {
            "hit_ratio_percent" => (Some(study.follower_hits_percent), &*keys),
            "object_bytes" => (None, "not put in: the workload has its own"),
            _ => (input.value.as_f64(), "input: from the paper, put in"),
        };
        table.row([
            (&*input.name).into(),
            input.value.to_string().into(),
            ours.into(),
            (&*input.says).into(),
            origin.into(),
        ]);
    }
    table
}

/// What the constants were measured as, on this machine again.
fn cpu_times(study: &Study) -> [(&'static str, u64, f64); 3] {
    let [get, set, line] = study.cpu_ns;
    [("cpu_get", GET_PS, get), ("cpu_set", SET_PS, set), ("cpu_copied_line", COPIED_LINE_PS, line)]
}

fn cpu_table(study: &Study) -> Table {
    let columns = [("time of the processor", ""), ("here", "ns"), ("model", "ns"), ("origin", "")];
    let mut table = Table::new("cpu", "The engine with all in the processor's caches", &columns);
    for (name, model_ps, here) in cpu_times(study) {
        let model = model_ps as f64 / 1e3;
        table.row([name.into(), here.into(), model.into(), INPUT.into()]);
    }
    table
}

fn report_of(study: &Study, tables: &[Table]) -> Report {
    let mut report = Report::here(Kind::Simulated);
    report.results = study.judged.iter().map(claims::row).collect();
    for (name, model_ps, here) in cpu_times(study) {
        let row = Row::new(name, "ns", Better::Lower, here)
            .with("origin", INPUT)
            .with("kind", Kind::Measured.name())
            .with("model", model_ps as f64 / 1e3);
        report.results.push(row);
    }
    let tables = tables.iter().map(Table::to_json).collect::<Vec<Value>>();
    report.extra.insert("tables".into(), tables.into());
    let met = study.judged.iter().filter(|judged| judged.holds).count();
    let totals = json!({ "as_stated": met, "stated": study.judged.len() });
    report.extra.insert("totals".into(), totals);
    report
}

fn page_of(study: &Study, tables: &[Table], seconds: f64) -> String {
    let verdict = Verdict {
        good: true,
        headline: "A cache over DDR5 and CXL memory again".into(),
        detail: format!(
            "Three engines of 20 cores, scaled, in virtual time; {}. No constant was chosen for a \
             result.",
            totals(study)
        ),
    };
    claims::page("rackpool repro hmsdk", verdict, tables, seconds)
}
