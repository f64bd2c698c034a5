//! `plan`: what to buy, as a page, as JSON and as samples; and what a running pool decided.

mod record;

use crate::args::{PlanArgs, PlanCommand};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::lab::sim;
use crate::output::{self, Output};
use rackpool_bench::report::git_revision;
use rackpool_rack::plan::{self, Answer, Live, Origin, Plan, Progress};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
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
    // A signal that ended the recording ends the command as well.
    interrupt::end_if_asked();
    interrupt::allow(Duration::ZERO);
    let files = Files::open(&args.out)?;
    let start = Instant::now();
    let answer = work_out(&question, args)?;
    let origin = Origin::new(git_revision(), &text);
    files.write(&question, &answer, &origin)?;
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
    if let (Some(cache), Some(split)) = (&question.cache, &answer.cache) {
        output::print(&format!("{}\n", cache.verdict(split, &question.currency)))?;
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
    // Where it is latest on earth: a price may be of there.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let today = &output::utc(now + Duration::from_secs(14 * 3600), ' ')[..10];
    let plan = plan.and_then(|plan| plan.check_dates(&text, today).map(|()| plan));
    let plan = plan.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    Ok((text, plan))
}

/// Never overwrites a file.
fn init(file: &Path) -> Result<()> {
    if file.is_file() {
        return Err(Failure::usage(format!("{} is there already", file.display())));
    }
    output::open(file)?.write(plan::EXAMPLE)?;
    let name = file.display();
    output::print(&format!("written: {name}\nnext: rackpool plan {name} --out report\n"))
}

fn work_out(question: &Plan, args: &PlanArgs) -> Result<Answer> {
    let stop = AtomicBool::new(false);
    let bar = output::timed_bar("planning", "steps");
    let last = Mutex::new(String::new());
    let told = |what: &str, over: u64, all: u64| {
        let mut last = last.lock().expect("no thread panics with it");
        if *last != what {
            what.clone_into(&mut last);
            bar.set_prefix(what.to_owned());
            bar.reset_eta();
        }
        bar.set_length(all.max(1));
        bar.set_position(over);
    };
    let progress = Progress { threads: sim::threads(args.threads), stop: &stop, told: &told };
    let answer = plan::work_out(question, &progress);
    bar.finish_and_clear();
    answer.map_err(|error| Failure::new("plan", error.to_string()))
}

/// What is written of an answer.
struct Files {
    summary: Output,
    samples: Output,
    page: Output,
}

impl Files {
    fn open(directory: &Path) -> Result<Files> {
        output::directory(directory)?;
        let open = |name| output::open(&directory.join(name));
        let (summary, samples) = (open("summary.json")?, open("samples.parquet")?);
        Ok(Files { summary, samples, page: open("report.html")? })
    }

    fn write(self, question: &Plan, answer: &Answer, origin: &Origin) -> Result<()> {
        let Files { summary, mut samples, page } = self;
        summary.write(output::json(&plan::json(question, answer, origin))?)?;
        let written = plan::write_samples(answer, &origin.pairs(answer), samples.writer()?);
        written.map_err(|error| {
            Failure::new("io", format!("{}: {error}", samples.path().display()))
        })?;
        samples.commit()?;
        page.write(plan::page(question, answer, origin))
    }
}
