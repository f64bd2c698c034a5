//! The report: one page that needs nothing else. A manager reads its first section, an engineer
//! finds under each figure what it assumes.

use super::answer::Answer;
use super::cost::PARTS;
use super::decide::P99;
use super::input::{Plan, VmTrace};
use super::stats::Estimate;
use super::summary::Origin;
use super::tables::{self, SHOWN_MAX, number, shown};
use rackpool_sim::report::{Cell, Table};
use rackpool_stats::html::Escaped;
use rackpool_stats::svg::{Dot, Range, Ranges, Scatter, Stacks};
use std::fmt::Write;

/// Most designs in a chart of rows.
const ROWS_MAX: usize = 24;

const STYLE: &str = "\
body{font:15px/1.5 sans-serif;margin:0 auto;max-width:60rem;padding:0 1rem 3rem;color:#1c2430}\
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #ccd}\
.box{overflow-x:auto;max-width:100%}.box svg{display:block;width:100%;min-width:34rem}\
table{border-collapse:collapse;font-size:.85rem}caption{text-align:left;font-weight:bold}\
td,th{border-bottom:1px solid #dde;padding:.25rem .6rem;text-align:left;vertical-align:top}\
td.n{text-align:right;white-space:nowrap}td.no{background:#fbd9dd}\
.verdict{border-left:.4rem solid #2e8b57;background:#eef6f1;padding:.6rem 1rem;\
overflow-wrap:anywhere}.verdict.not{border-color:#d1495b;background:#fbeff0}\
.assumes{font-size:.82rem;color:#4a5566;overflow-wrap:anywhere}figure{margin:1rem 0}";

/// Looks whether everything that was written can be seen, and says so in the document itself.
const SELF_CHECK: &str = "\
<script>window.onerror=function(m){document.documentElement.dataset.scriptError=m};\
window.onload=function(){var e=document.documentElement,w=[];\
function all(s,f){Array.prototype.forEach.call(document.querySelectorAll(s),f)}\
all('section',function(s){if(!s.querySelector('h2')||s.getBoundingClientRect().height<20)\
w.push('section '+s.id)});\
all('figure.chart',function(f){var s=f.querySelector('svg');\
if(!s||s.getBoundingClientRect().width<100||!f.querySelector('.assumes'))w.push('chart '+f.id)});\
all('figure.table',function(f){if(f.querySelectorAll('tr').length<2||\
!f.querySelector('.assumes'))w.push('table '+f.id)});\
if(e.scrollWidth>e.clientWidth)w.push('wider than the screen');\
e.dataset.width=e.clientWidth;e.dataset.selfCheck=w.length?w.join('; '):'ok'}</script>";

struct HtmlPage {
    out: String,
}

impl HtmlPage {
    fn section(&mut self, id: &str, heading: &str) {
        let close = if self.out.contains("<section") { "</section>" } else { "" };
        let _ = write!(self.out, "{close}<section id=\"{id}\"><h2>{heading}</h2>");
    }

    fn text(&mut self, text: &str) {
        let _ = write!(self.out, "<p>{}</p>", Escaped(text));
    }

    fn chart(&mut self, id: &str, svg: &str, assumes: &str) {
        let _ = write!(
            self.out,
            "<figure class=\"chart\" id=\"{id}\"><div class=\"box\">{svg}</div>\
             <figcaption class=\"assumes\">Uncalibrated. Assumes: {}</figcaption></figure>",
            Escaped(assumes)
        );
    }

    fn table(&mut self, table: &Table, assumes: &str) {
        let _ = write!(
            self.out,
            "<figure class=\"table\" id=\"table-{}\"><div class=\"box\"><table><caption>{}\
             </caption><thead><tr>",
            table.name,
            Escaped(&table.title)
        );
        for column in &table.columns {
            let unit = if column.unit.is_empty() || column.unit == "count" {
                String::new()
            } else {
                format!(", {}", column.unit)
            };
            let _ = write!(self.out, "<th>{}{}</th>", Escaped(&column.name), Escaped(&unit));
        }
        self.out.push_str("</tr></thead><tbody>");
        for row in &table.rows {
            self.out.push_str("<tr>");
            row.iter().for_each(|cell| self.cell(cell));
            self.out.push_str("</tr>");
        }
        self.out.push_str("</tbody></table></div><figcaption class=\"assumes\">");
        for note in &table.notes {
            let _ = write!(self.out, "{}. ", Escaped(note));
        }
        let _ = write!(self.out, "Assumes: {}</figcaption></figure>", Escaped(assumes));
    }

    fn cell(&mut self, cell: &Cell) {
        let _ = match cell {
            Cell::Number(value) if value.fract() == 0.0 => {
                write!(self.out, "<td class=\"n\">{value:.0}</td>")
            }
            Cell::Number(value) => write!(self.out, "<td class=\"n\">{value:.2}</td>"),
            Cell::Text(text) if text == "NO" => write!(self.out, "<td class=\"no\">NO</td>"),
            Cell::Text(text) => write!(self.out, "<td>{}</td>", Escaped(text)),
            Cell::Empty => write!(self.out, "<td></td>"),
        };
    }
}

pub fn page(plan: &Plan, answer: &Answer, origin: &Origin) -> String {
    let title = format!("rackpool plan: {}", plan.name);
    let title = Escaped(&title);
    let mut page = HtmlPage {
        out: format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <link rel=\"icon\" href=\"data:,\"><style>{STYLE}</style></head><body><h1>{title}</h1>"
        ),
    };
    head(&mut page, plan, answer);
    capacity(&mut page, plan, answer);
    designs(&mut page, plan, answer);
    performance(&mut page, plan, answer);
    certainty(&mut page, plan, answer);
    cache(&mut page, plan, answer);
    running(&mut page, answer);
    sources(&mut page, plan, answer, origin);
    let _ = writeln!(page.out, "</section>{SELF_CHECK}</body></html>");
    page.out
}

fn head(page: &mut HtmlPage, plan: &Plan, answer: &Answer) {
    page.section("recommendation", "Recommendation");
    let class = if answer.verdict.pool { "verdict" } else { "verdict not" };
    let text = Escaped(&answer.verdict.text);
    let _ = write!(page.out, "<p class=\"{class}\">{text}</p>");
    page.text(
        "Simulated and uncalibrated: times of links, switches and memories come from published \
         figures and standards, not from measurements of the hardware that would be bought. \
         Capacity comes from a trace of virtual machines alone, latency from memory accesses \
         alone; neither is inferred from the other.",
    );
    let goals = &plan.goals;
    page.text(&format!(
        "Wanted: a p99 of at most {}, a saving of at least {} %, memory that suffices {} % of the \
         time. Intervals are of Student's t over {} seeds at {} % confidence.",
        goals.p99_max,
        goals.saving_min_percent,
        plan.capacity.percentile,
        plan.run.seeds,
        plan.run.confidence_percent
    ));
}

fn of_trace(plan: &Plan) -> String {
    match &plan.capacity.trace {
        VmTrace::Made { stranding, days } => format!(
            "a made trace with {} stranding, {days} days, another one for each seed",
            match stranding {
                crate::trace::packing::Stranding::Little => "little",
                crate::trace::packing::Stranding::Much => "much",
            }
        ),
        VmTrace::Files { vms, machine_kind, .. } => {
            format!("the trace {}, machines of kind {machine_kind}", vms.display())
        }
    }
}

fn capacity(page: &mut HtmlPage, plan: &Plan, answer: &Answer) {
    page.section("stranding", "Memory today");
    let trace = of_trace(plan);
    page.table(
        &tables::stranding(plan, answer),
        &format!(
            "{trace}; {} machines; each virtual machine goes to the machine with the fewest free \
             processors that has room for it. Stranded is memory that is free where no processor \
             is free for the smallest virtual machine. What suffices is the {}th percentile over \
             machines and time, in steps of {}.",
            plan.machines.count, plan.capacity.percentile, plan.machines.memory_step
        ),
    );
    page.section("blast", "When a pool fails");
    let spare = match plan.capacity.n_plus_1 {
        true => "Each pod has room for all pooled memory when one pool is gone (N+1).",
        false => "Pods have no spare pool.",
    };
    page.text(spare);
    page.table(
        &tables::blasts(answer, &shown(answer, ROWS_MAX)),
        "a virtual machine's pooled memory is in one pool, chosen by the policy (smart-idle \
         looks at accesses, which this trace has not; it becomes least-loaded). \
         A virtual machine loses its memory in a pool that fails.",
    );
}

fn designs(page: &mut HtmlPage, plan: &Plan, answer: &Answer) {
    page.section("designs", "Designs");
    let order = shown(answer, SHOWN_MAX);
    page.table(
        &tables::sizes(plan, answer, &order),
        "virtual machines run where they run without pools; pools have the percentile of a pod's \
         demand over pods, time and seeds. Over is the time in which a pod wants more, each seed \
         against a size from the others. Cost is memory, pools, links and switch ports at the \
         prices below, without power, space and work.",
    );
    front(page, plan, answer);
    let baseline = &answer.baseline;
    let rows = shown(answer, ROWS_MAX);
    let bar = |index: &usize| (number(*index), answer.points[*index].cost.parts().to_vec());
    let local = ("everything local".to_owned(), vec![baseline.cost, 0.0, 0.0, 0.0, 0.0]);
    let stacks = Stacks {
        title: "What a machine costs".into(),
        unit: plan.currency.clone(),
        parts: PARTS.map(str::to_owned).into(),
        bars: std::iter::once(local).chain(rows.iter().map(bar)).collect(),
    };
    page.chart("chart-cost", &stacks.svg(), "the prices below; shares of a pod's parts.");
    let range = |index: &usize| {
        let saving = answer.points[*index].saving_percent;
        Range {
            name: number(*index),
            ends: [saving.low, saving.high],
            marks: vec![saving.mean],
            text: format!("{:.1} %", saving.mean),
        }
    };
    let ranges: Vec<Range> = rows.iter().map(range).collect();
    let ranges = Ranges {
        title: "Saving",
        unit: "% of the cost without pools",
        rows: &ranges,
        base: Some(0.0),
    };
    let svg = ranges.svg();
    page.chart(
        "chart-saving",
        &svg,
        "against machines with the memory that suffices without pools, not with what is bought \
         today; each seed's own sizes.",
    );
}

fn front(page: &mut HtmlPage, plan: &Plan, answer: &Answer) {
    page.section("pareto", "Cost against p99");
    let baseline = &answer.baseline;
    let mut dots: Vec<Dot> = Vec::new();
    for (index, point) in answer.points.iter().enumerate() {
        let Estimate { mean, low, high, .. } = point.latency[P99];
        dots.push(Dot {
            name: number(index),
            x: point.cost.sum(),
            y: [low, mean, high],
            group: point.design.tier,
            marked: point.is_on_front,
        });
    }
    for (pod, latency) in &baseline.latency {
        let Estimate { mean, low, high, .. } = latency[P99];
        dots.push(Dot {
            name: format!("local, {pod}"),
            x: baseline.cost,
            y: [low, mean, high],
            group: plan.tiers.len(),
            marked: true,
        });
    }
    let tiers = plan.tiers.iter().map(|tier| tier.name.clone());
    let groups: Vec<String> = tiers.chain(["everything local".to_owned()]).collect();
    let across = format!("cost of a machine's memory and share of pools, {}", plan.currency);
    let scatter = Scatter {
        title: "Cost against p99",
        across: &across,
        up: "p99 of all accesses, ns",
        groups: &groups,
        dots: &dots,
    };
    page.chart(
        "chart-pareto",
        &scatter.svg(),
        "filled: nothing else is both cheaper and faster; upright lines are intervals over seeds.",
    );
}

fn performance(page: &mut HtmlPage, plan: &Plan, answer: &Answer) {
    page.section("latency", "Latency");
    let rows = shown(answer, ROWS_MAX);
    let row = |name: String, all: &[Estimate; 8]| Range {
        name,
        ends: [all[1].mean, all[3].mean],
        marks: vec![all[0].mean, all[P99].mean],
        text: format!("p99 {:.0} ns", all[P99].mean),
    };
    let local = answer.baseline.latency.iter();
    let ranges: Vec<Range> = local
        .map(|(pod, latency)| row(format!("everything local, {pod} machines"), latency))
        .chain(rows.iter().map(|index| row(number(*index), &answer.points[*index].latency)))
        .collect();
    let goal = plan.goals.p99_max.0 as f64;
    let ranges = Ranges {
        title: "From p50 to p99.9, with mean and p99",
        unit: "ns",
        rows: &ranges,
        base: Some(goal),
    };
    let svg = ranges.svg();
    page.table(
        &tables::tiers(plan),
        "one line of 64 bytes and nothing else under way; several links are one of as many times \
         the rate; without a switch a machine's links to all pools are one. Look here first: a \
         tier with too slow a single access cannot be saved by anything below.",
    );
    let performance = &plan.performance;
    let jobs: Vec<&str> = performance.workloads.iter().map(|job| job.name.as_str()).collect();
    let assumes = format!(
        "one pod of machines, each with {} of {} of its own, running {} ({} accesses each at \
         most); a machine has 128 accesses under way at most; page faults are not in an access's \
         time; several links are one of as many times the rate; seeds shift the machines' starts, \
         random choices and synthetic streams. The red line is the goal.",
        "the local part",
        performance.footprint,
        jobs.join(", "),
        performance.accesses
    );
    page.chart("chart-latency", &svg, &assumes);
    page.table(
        &tables::latencies(answer, &rows),
        "percentiles are known to 1/32 of their value. Link use is what the pools' links carried \
         of what both directions could have carried, while the simulation ran.",
    );
}

fn certainty(page: &mut HtmlPage, plan: &Plan, answer: &Answer) {
    page.section("sensitivity", "What it depends on");
    let of = match answer.verdict.best {
        Some(best) => format!("design {}", number(best)),
        None => "no design".to_owned(),
    };
    let range = |one: &super::sensitivity::Swing| Range {
        name: one.what.clone(),
        ends: one.saving_percent,
        marks: Vec::new(),
        text: format!("{} to {}", one.range[0], one.range[1]),
    };
    let ranges: Vec<Range> = answer.swings.iter().map(range).collect();
    let base = answer.verdict.best.map(|best| {
        let point = &answer.points[best];
        100.0 * (1.0 - point.cost.sum() / answer.baseline.cost)
    });
    let ranges =
        Ranges { title: "Saving when one thing changes", unit: "% saved", rows: &ranges, base };
    let svg = ranges.svg();
    let assumes = format!(
        "{of}; prices from low to high as the plan says, a fifth either way where it does not; \
         the percentile with twice and half the risk; everything else as it is (red)."
    );
    page.chart("chart-tornado", &svg, &assumes);
    page.table(&tables::swings(answer), &assumes);
    page.table(
        &tables::break_even(plan, answer),
        &format!("{of}; each price alone, all others as they are."),
    );
    page.section("confirmation", "Tried again");
    page.table(
        &tables::checks(answer),
        &format!(
            "the sizes of the recommendation, {} seeds from {} on that had no part in it; bounds \
             are for their means at {} % confidence.",
            plan.run.seeds,
            plan.run.first_seed.wrapping_add(plan.run.seeds.into()),
            plan.run.confidence_percent
        ),
    );
}

fn cache(page: &mut HtmlPage, plan: &Plan, answer: &Answer) {
    let (Some(question), Some(split)) = (&plan.cache, &answer.cache) else { return };
    page.section("cache", "A cache's memories");
    page.text(&question.verdict(split, &plan.currency));
    page.table(
        &tables::cache(plan, question, split),
        "what is asked for most lies in the fastest memory; a hit takes its memory's time.",
    );
}

fn running(page: &mut HtmlPage, answer: &Answer) {
    let Some(live) = &answer.live else { return };
    page.section("live", "Beside the running pool");
    page.text(&format!(
        "Recording {}, placement {}: all {} choices of racks and {} decisions about pages came out \
         the same when they were made again.",
        live.recording_hash, live.placement, live.choices_replayed, live.pages_decided_again
    ));
    page.table(
        &tables::live(live),
        "requests, their times and accesses of racks are the recorded ones; the prediction keeps \
         the racks' memory by itself, from the first recorded choice on, and nothing is freed. \
         Live are the master's choices, and the daemons' counters at the end of the recording: \
         they have also what was allocated without asking the master, and freed.",
    );
    page.table(&tables::live_policies(live), "the same requests; accesses stay where they were.");
}

fn sources(page: &mut HtmlPage, plan: &Plan, answer: &Answer, origin: &Origin) {
    page.section("prices", "Prices");
    page.table(&tables::prices(plan), "what the plan's file says; there is no built-in price.");
    page.section("origin", "How to get this again");
    let tiers = plan.tiers.iter().map(|tier| {
        let preset = tier.preset.name();
        format!("{}: {preset}, {} × {}", tier.name, tier.pool_channels, tier.pool_memory)
    });
    page.text(&format!(
        "rackpool {}; plan {:016x}; traces {:016x}; seeds {} to {}; presets: {}; machines: {} × \
         {}. summary.json and samples.parquet hold all figures and what they come from. The same \
         plan gives the same figures with any number of threads.",
        origin.git_revision,
        origin.plan_hash,
        answer.trace_hash,
        answer.seeds.first().copied().unwrap_or_default(),
        answer.seeds.last().copied().unwrap_or_default(),
        tiers.collect::<Vec<_>>().join("; "),
        plan.machines.local_channels,
        plan.machines.local_memory
    ));
}
