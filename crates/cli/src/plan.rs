//! `plan`: what to buy, as a page, as JSON and as samples; and what a running pool decided.

mod record;

use crate::args::{PlanArgs, PlanCommand};
use crate::failure::{Failure, Result};
use crate::output;
use crate::servers::install_shutdown;
use crate::sim;
use rackpool_bench::report::git_revision;
use rackpool_rack::plan::{self, Answer, Live, Origin, Plan, PlanError, Progress};
use rackpool_rack::run::SimError;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Works a plan out, or writes the example.
pub fn run(args: &PlanArgs) -> Result<()> {
    if let Some(PlanCommand::Init { file }) = &args.command {
        return init(file);
    }
    let asked = args.file.as_deref().map(read).transpose()?;
    let recorded = args.from_pool.as_deref().map(|master| record::run(master, args)).transpose()?;
    let (text, mut question) = match (asked, &recorded) {
        (Some(asked), _) => asked,
        (None, Some(_)) => return Ok(()),
        (None, None) => return Err(Failure::usage("which plan? PLAN.toml, or --from-pool ADDR")),
    };
    question.live = recorded.map(|recording| Live { recording }).or(question.live);
    std::fs::create_dir_all(&args.out).map_err(|error| Failure::file(&args.out, &error))?;
    let start = Instant::now();
    let answer = work_out(&question, args)?;
    let origin = Origin::new(git_revision(), &text);
    write(&question, &answer, &origin, &args.out)?;
    let page = args.out.join("report.html");
    output::print(&format!(
        "{}\n{} designs with {} seeds each in {:.0} s; uncalibrated\n",
        answer.verdict.text,
        answer.points.len(),
        answer.seeds.len(),
        start.elapsed().as_secs_f64()
    ))?;
    for one in question.tier_facts() {
        let link = one.link_gbytes_per_s.map_or(String::new(), |rate| {
            format!(" behind {:.0} ns and links of {rate} GB/s", one.round_trip_ns)
        });
        output::print(&format!(
            "{}: a line in {:.0} ns, {:.0} ns and {:.1} GB/s of memory{link} ({})\n",
            one.tier,
            one.read_ns(),
            one.memory_ns,
            one.memory_gbytes_per_s,
            one.source
        ))?;
    }
    for check in &answer.checks {
        let holds = if check.holds { "holds" } else { "DOES NOT HOLD" };
        let (what, claimed, seen) = (check.what, check.claimed, check.seen);
        output::print(&format!(
            "with other seeds: {what}: claimed {claimed:.2}, seen {seen:.2}: {holds}\n"
        ))?;
    }
    output::print(&format!("written: {}\n", page.display()))
}

/// A plan, and its text.
fn read(file: &Path) -> Result<(String, Plan)> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::usage(format!("{}: {error}; `rackpool plan init` writes one", file.display()))
    })?;
    let plan = Plan::from_toml(&text);
    // The day that begins first anywhere on earth.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let today = &output::utc(now + Duration::from_secs(14 * 3600), ' ')[..10];
    let plan = plan.and_then(|plan| plan.check_dates(&text, today).map(|()| plan));
    let plan = plan.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    Ok((text, plan))
}

/// A file that is there is somebody's work.
fn init(file: &Path) -> Result<()> {
    if file.exists() {
        return Err(Failure::usage(format!("{} is there already", file.display())));
    }
    output::write_file(file, plan::EXAMPLE)?;
    let name = file.display();
    output::print(&format!("written: {name}\nnext: rackpool plan {name} --out report\n"))
}

fn work_out(question: &Plan, args: &PlanArgs) -> Result<Answer> {
    let shutdown = install_shutdown()?;
    let stop = AtomicBool::new(false);
    let bar = output::timed_bar("planning", "steps");
    let last = Mutex::new(String::new());
    let told = |what: &str, over: u64, all: u64| {
        let mut last = last.lock().expect("nobody panics with it");
        if *last != what {
            what.clone_into(&mut last);
            bar.set_prefix(what.to_owned());
            bar.reset_eta();
        }
        bar.set_length(all.max(1));
        bar.set_position(over);
        if shutdown.is_requested() {
            // Relaxed: seen sooner or later.
            stop.store(true, Ordering::Relaxed);
        }
    };
    let progress = Progress { threads: sim::threads(args.threads), stop: &stop, told: &told };
    let answer = plan::work_out(question, &progress);
    bar.finish_and_clear();
    answer.map_err(|error| match error {
        PlanError::Sim(SimError::Stopped) => Failure::interrupted(),
        error => Failure::new("plan", error.to_string()),
    })
}

fn write(question: &Plan, answer: &Answer, origin: &Origin, out: &Path) -> Result<()> {
    let summary = plan::json(question, answer, origin);
    output::write_file(&out.join("summary.json"), &output::json(&summary)?)?;
    let path = out.join("samples.parquet");
    let file = std::fs::File::create(&path).map_err(|error| Failure::file(&path, &error))?;
    plan::write_samples(answer, &origin.pairs(answer), file)
        .map_err(|error| Failure::new("io", format!("{}: {error}", path.display())))?;
    output::write_file(&out.join("report.html"), &plan::page(question, answer, origin))
}
