//! Sweeps and tables as a page. Says what to show; `rackpool_bench::html` draws it. Pure.

use rackpool_bench::html::{
    Bar, BarChart, BarGroup, Block, Column, DemoReport, KeyNumber, Scale, Section, Table, Tone,
    Verdict,
};
use rackpool_bench::report::Kind;
use rackpool_bench::sim_runs::{Findings, calibration, show};
use rackpool_sim::device::Profile;
use rackpool_sim::report;
use rackpool_sim::run::Group;
use rackpool_stats::format::Unit;

/// The page of a sweep.
pub fn of_sweep(findings: &Findings, finished_at: String) -> DemoReport {
    let sweep = &findings.sweep;
    let good = sweep.failed_seeds == 0;
    let headline = match good {
        true => format!("{} seeds passed every checker", show::count(sweep.seeds)),
        false => {
            format!(
                "{} of {} seeds failed",
                show::count(sweep.failed_seeds),
                show::count(sweep.seeds)
            )
        }
    };
    let verdict = Verdict { good, headline, detail: show::summary(findings).replace('\n', " ") };
    let mut page = DemoReport::here("rackpool sim run", Kind::Simulated, verdict);
    page.finished_at = finished_at;
    page.duration_seconds = findings.took.as_secs_f64();
    page.key_numbers = key_numbers(findings);
    if !good {
        page.sections.push(failures(findings));
    }
    for (group, heading) in show::GROUPS {
        page.sections.extend(counters(findings, group, heading));
    }
    let never = show::never(&findings.config, sweep);
    if !never.is_empty() {
        page.notes.push(never);
    }
    page
}

fn key_numbers(findings: &Findings) -> Vec<KeyNumber> {
    let sweep = &findings.sweep;
    let seconds = findings.took.as_secs_f64().max(1e-9);
    let failed = sweep.failed_seeds;
    let speed = format!("{} of real time", Unit::Seconds.show(seconds));
    vec![
        KeyNumber::new("Seeds", sweep.seeds as f64, &Unit::Count, "each a cluster of its own"),
        KeyNumber::new("Failed", failed as f64, &Unit::Count, "").judged(failed == 0),
        KeyNumber::new("Operations", sweep.operations as f64, &Unit::Count, &speed),
        KeyNumber::new("Events", sweep.events as f64, &Unit::Count, "of the event wheel"),
    ]
}

fn text_table(headings: &[(&str, bool)], rows: Vec<Vec<String>>) -> Block {
    let column = |(heading, numeric): &(&str, bool)| Column {
        heading: (*heading).into(),
        numeric: *numeric,
    };
    let columns = headings.iter().map(column).collect();
    Block::Table(Table { title: String::new(), columns, rows })
}

fn counters(findings: &Findings, group: Group, heading: &str) -> Option<Section> {
    let rows = show::counters(&findings.sweep.counts, group);
    if rows.is_empty() {
        return None;
    }
    let mut title = heading.to_owned();
    title[..1].make_ascii_uppercase();
    let headings = [("What", false), ("Count", true), ("Results", false)];
    let rows = rows.into_iter().map(Vec::from).collect();
    Some(Section::new(&title, "").with(text_table(&headings, rows)))
}

fn failures(findings: &Findings) -> Section {
    let shortest = |seed: u64| {
        let shrunk = findings.shrunk.iter().find(|shrunk| shrunk.seed == seed);
        let config = shrunk.map_or(&findings.config, |shrunk| &shrunk.config);
        config.replay_command(seed)
    };
    let rows = findings.sweep.failures.iter().map(|failed| {
        let failure = &failed.failure;
        let text = failure.text.clone();
        vec![failed.seed.to_string(), failure.checker.clone(), text, shortest(failed.seed)]
    });
    let headings =
        [("Seed", true), ("Checker", false), ("What it found", false), ("Replay", false)];
    let lead = "Each command shows its failure again, on any machine.";
    Section::new("Failures", lead).with(text_table(&headings, rows.collect()))
}

/// The page of some tables.
pub fn of_tables(
    title: &str,
    tables: &[report::Table],
    profile: &Profile,
    finished_at: String,
    seconds: f64,
) -> DemoReport {
    let headline = tables.first().map_or_else(String::new, |table| table.title.clone());
    let detail = format!("Simulated on the profile {} ({}).", profile.name, calibration(profile));
    let verdict = Verdict { good: true, headline, detail };
    let mut page = DemoReport::here(title, Kind::Simulated, verdict);
    page.finished_at = finished_at;
    page.duration_seconds = seconds;
    page.sections = tables.iter().map(section).collect();
    page
}

/// A table of a page, with its times drawn.
pub fn section(table: &report::Table) -> Section {
    let numeric =
        |index: usize| table.rows.iter().all(|row| !matches!(row[index], report::Cell::Text(_)));
    let columns = table
        .columns
        .iter()
        .enumerate()
        .map(|(index, column)| Column { heading: column.name.clone(), numeric: numeric(index) });
    let cells = |row: &Vec<report::Cell>| -> Vec<String> {
        table.columns.iter().zip(row).map(|(column, cell)| show::cell(column, cell)).collect()
    };
    let rows = table.rows.iter().map(cells).collect();
    let mut section = Section::new(&table.title, "");
    if let Some(chart) = chart(table) {
        section = section.with(Block::Bars(chart));
    }
    let columns = columns.collect();
    section = section.with(Block::Table(Table { title: String::new(), columns, rows }));
    let note = |section: Section, text: &String| section.with(Block::Note { text: text.clone() });
    table.notes.iter().fold(section, note)
}

/// The times of a table side by side: a bar for each row and each column in nanoseconds.
fn chart(table: &report::Table) -> Option<BarChart> {
    const TONES: [Tone; 5] =
        [Tone::First, Tone::Second, Tone::Third, Tone::Fourth, Tone::Reference];
    let times = table.columns.iter().enumerate().filter(|(_, column)| column.unit == "ns");
    let times: Vec<_> =
        times.zip(TONES).map(|((index, column), tone)| (index, column, tone)).collect();
    if times.is_empty() {
        return None;
    }
    let group = |row: &Vec<report::Cell>| BarGroup {
        label: show::cell(&table.columns[0], &row[0]),
        bars: times
            .iter()
            .filter_map(|(index, column, tone)| match row[*index] {
                report::Cell::Number(value) => Some(Bar::new(&column.name, value, *tone)),
                _ => None,
            })
            .collect(),
    };
    Some(BarChart {
        title: String::new(),
        unit: Unit::Nanoseconds,
        scale: Scale::Log,
        legend: times.iter().map(|(_, column, tone)| (*tone, column.name.clone())).collect(),
        groups: table.rows.iter().map(group).collect(),
    })
}
