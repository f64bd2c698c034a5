//! `repro racksim`: the rack simulator's evaluation, as drawings, tables, JSON and a page.

use crate::args::ReproArgs;
use crate::failure::{Failure, Result};
use crate::lab::sim;
use crate::output;
use rackpool_bench::html::{self, Block, DemoReport, Verdict};
use rackpool_bench::report::{Kind, Report};
use rackpool_rack::model::config::Preset;
use rackpool_rack::model::{Config, Outcome};
use rackpool_rack::report;
use rackpool_rack::repro::{self, Drawing, PRESETS, PaperClaim, Run, Runs};
use rackpool_rack::run::{Sweep, hash_of, sweep};
use rackpool_rack::source::TraceSet;
use rackpool_sim::report::Table;
use serde_json::{Value, json};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Memories are so many times smaller than the paper's, so that all runs take minutes.
const DIVISOR: u64 = 64;
/// `--quick` runs so many times fewer accesses.
const QUICK: u64 = 8;

/// What came out under one preset.
struct Made {
    preset: Preset,
    claims: Vec<PaperClaim>,
    drawings: Vec<Drawing>,
    tables: Vec<Table>,
}

/// Runs both presets and writes what came out.
pub fn run(args: &ReproArgs) -> Result<()> {
    if args.profile.is_some() {
        return Err(Failure::usage("racksim has presets of its own and takes no --profile"));
    }
    output::directory(&args.out)?;
    let to_json = output::open(&args.out.join("racksim.json"))?;
    let to_html = output::open(&args.out.join("racksim.html"))?;
    let start = Instant::now();
    let mut points = repro::points(DIVISOR);
    if args.quick {
        points.iter_mut().for_each(|point| point.accesses /= QUICK);
    }
    let outcomes = simulate(&points)?;
    let hash = hash_of(&outcomes);
    let points: Vec<(Config, Outcome)> = points.into_iter().zip(outcomes).collect();
    let by_preset = PRESETS.into_iter().zip(points.chunks(Run::ALL.len()));
    let made: Vec<Made> = by_preset.map(|(preset, points)| make(preset, points)).collect();
    for drawing in made.iter().flat_map(|made| &made.drawings) {
        output::open(&args.out.join(format!("{}.svg", drawing.name)))?.write(&drawing.svg)?;
    }
    to_json.report(&report_of(&made, &points, hash))?;
    let page = to_html.path().to_owned();
    let seconds = start.elapsed().as_secs_f64();
    to_html.write(page_of(&made, seconds))?;
    for one in &made {
        for table in std::iter::once(&claims_table(one)).chain(&one.tables) {
            output::print(&format!("{}\n", sim::text_of(table)))?;
        }
    }
    let page = page.display();
    output::print(&format!("{seconds:.0} s; result hash {hash:016x}\nwritten: {page}\n"))
}

fn simulate(points: &[Config]) -> Result<Vec<Outcome>> {
    let bar = output::spinner("recording");
    let traces = TraceSet::record(points, &mut |what| bar.set_message(what.to_owned()));
    bar.finish_and_clear();
    let traces = traces.map_err(|error| Failure::new("trace", error.to_string()))?;
    let stop = AtomicBool::new(false);
    let meter = sim::Meter::new(points.len());
    let told = |point: usize, over: u64, all: u64| meter.told(point, over, all);
    let how = Sweep { threads: sim::threads(None), checkpoints: None, stop: &stop, told: &told };
    let outcomes = sweep(points, &traces, &how);
    meter.finish();
    outcomes.map_err(|error| Failure::new("sim", error.to_string()))
}

fn make(preset: Preset, points: &[(Config, Outcome)]) -> Made {
    let runs = Runs::new(points);
    Made {
        preset,
        claims: repro::judge(&runs),
        drawings: repro::draw(preset.name(), &runs),
        tables: vec![report::summary(points), report::bins(points)],
    }
}

fn claims_table(made: &Made) -> Table {
    let title = format!("What the paper says, preset {}", made.preset.name());
    let columns = [("claim", ""), ("says", ""), ("origin", ""), ("holds", ""), ("because", "")];
    let mut table = Table::new("claims", &title, &columns);
    for claim in &made.claims {
        let holds = if claim.holds { "yes" } else { "NO" };
        let because = (&*claim.because).into();
        table.row([
            claim.name.into(),
            claim.says.into(),
            claim.origin.into(),
            holds.into(),
            because,
        ]);
    }
    table.note(totals(made));
    table
}

/// As the totals of the other evaluations: all claims are predicted, and are words.
fn totals_json(claims: &[PaperClaim]) -> Value {
    let met = claims.iter().filter(|claim| claim.holds).count();
    json!({ "predicted_words": { "as_stated": met, "stated": claims.len() } })
}

/// How many claims hold, and what that depends on.
fn totals(made: &Made) -> String {
    let met = made.claims.iter().filter(|claim| claim.holds).count();
    format!(
        "predicted: {met} of {} statements hold under {} with this length and pace of the run, \
         which decide; the text has no numbers that could be read",
        made.claims.len(),
        made.preset.name()
    )
}

fn report_of(made: &[Made], points: &[(Config, Outcome)], hash: u64) -> Report {
    let mut report = Report::here(Kind::Simulated);
    let presets = made.iter().map(|one| {
        json!({
            "preset": one.preset.name(),
            "claims": one.claims,
            "totals": totals_json(&one.claims),
            "drawings": one.drawings.iter().map(|drawing| &drawing.name).collect::<Vec<_>>(),
            "tables": one.tables.iter().map(Table::to_json).collect::<Vec<_>>(),
        })
    });
    report.extra.insert("presets".into(), presets.collect::<Vec<Value>>().into());
    let points = points.iter().map(|(config, outcome)| report::json(config, outcome));
    report.extra.insert("points".into(), points.collect::<Vec<Value>>().into());
    report.extra.insert("result_hash".into(), format!("{hash:016x}").into());
    report.extra.insert("divisor".into(), DIVISOR.into());
    report
}

fn page_of(made: &[Made], seconds: f64) -> String {
    let verdict = Verdict {
        good: true,
        headline: "Rack-scale disaggregation again".into(),
        detail: format!(
            "WL-Mix, {DIVISOR} times smaller: 64 nodes, 6 pools, programs that resemble the \
             paper's in their patterns. Simulated and uncalibrated; no constant was chosen for a \
             result."
        ),
    };
    let mut page = DemoReport::here("rackpool repro racksim", Kind::Simulated, verdict);
    page.duration_seconds = seconds;
    for one in made {
        let mut claims = sim::section_of(&claims_table(one));
        for Drawing { svg, .. } in &one.drawings {
            claims.blocks.push(Block::Drawing { svg: svg.clone() });
        }
        page.sections.push(claims);
        page.sections.extend(one.tables.iter().map(sim::section_of));
    }
    html::render(&page)
}
