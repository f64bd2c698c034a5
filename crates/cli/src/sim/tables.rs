//! `sim scale` and `sim ladder`: tables of the simulated cluster in performance mode.

use super::{Engine, calibration, page, profile, show};
use crate::args::{SimLadderArgs, SimOutputArgs, SimScaleArgs};
use crate::failure::{Failure, Result};
use crate::output;
use rackpool_bench::report::{Better, Kind, Report, Row};
use rackpool_sim::device::Profile;
use rackpool_sim::report::{Cell, Column, Table};
use serde_json::Value;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What an access costs as the cluster grows.
pub fn scale(engine: &Engine, args: &SimScaleArgs) -> Result<()> {
    let make = || (engine.scale)(&args.profile, args.racks_max);
    make_and_show("rackpool sim scale", &args.profile, &args.output, make)
}

/// What each kind of access costs.
pub fn ladder(engine: &Engine, args: &SimLadderArgs) -> Result<()> {
    let make = || (engine.ladder)(&args.profile);
    make_and_show("rackpool sim ladder", &args.profile, &args.output, make)
}

fn make_and_show(
    title: &str,
    profile_name: &str,
    to: &SimOutputArgs,
    make: impl FnOnce() -> Result<Vec<Table>, String>,
) -> Result<()> {
    let profile = profile(profile_name)?;
    for path in to.json.iter().chain(&to.html) {
        output::check_writable(path)?;
    }
    let bar = output::spinner("simulating");
    let start = Instant::now();
    let made = make();
    bar.finish_and_clear();
    let tables = made.map_err(|reason| Failure::new("sim", reason))?;
    if let Some(path) = &to.json {
        let written = json(&tables, &profile).write(path);
        written.map_err(|error| Failure::new("io", error.to_string()))?;
    }
    if let Some(path) = &to.html {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let finished_at = format!("{} UTC", output::utc(now, ' '));
        let seconds = start.elapsed().as_secs_f64();
        let page = page::of_tables(title, &tables, &profile, finished_at, seconds);
        output::write_file(path, &rackpool_bench::html::render(&page))?;
    }
    for table in &tables {
        output::print(&format!("{}\n", show::table(table)))?;
    }
    output::print(&format!("simulated, profile {} ({})\n", profile.name, calibration(&profile)))
}

/// The tables as they are, and each number that has a unit as a result.
fn json(tables: &[Table], profile: &Profile) -> Report {
    let mut report = Report::here(Kind::Simulated);
    report.results = tables.iter().flat_map(results).collect();
    let tables = tables.iter().map(Table::to_json).collect::<Vec<Value>>();
    report.extra.insert("tables".into(), tables.into());
    report.extra.insert("profile".into(), profile.name.clone().into());
    report.extra.insert("calibration".into(), calibration(profile).into());
    report.extra.insert("calibrated_against".into(), profile.against.clone().into());
    report
}

fn results(table: &Table) -> Vec<Row> {
    let number = |label: &str, column: &Column, cell: &Cell| match cell {
        Cell::Number(value) if !column.unit.is_empty() => {
            let better = if column.unit.ends_with("/s") { Better::Higher } else { Better::Lower };
            let name = format!("{}_{label}_{}", table.name, word(&column.name));
            Some(Row::new(&name, &column.unit, better, *value))
        }
        _ => None,
    };
    let of_row = |row: &Vec<Cell>| {
        let label = match &row[0] {
            Cell::Number(number) => format!("{number}_{}", word(&table.columns[0].name)),
            Cell::Text(text) => word(text),
            Cell::Empty => "all".to_owned(),
        };
        let cells = table.columns.iter().zip(row).skip(1);
        cells.filter_map(|(column, cell)| number(&label, column, cell)).collect::<Vec<_>>()
    };
    table.rows.iter().flat_map(of_row).collect()
}

/// A heading as a part of a name.
fn word(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_with_a_unit_is_a_result_with_a_name() {
        let columns = [("access", ""), ("median", "ns"), ("rate", "ops/s"), ("messages", "")];
        let mut table = Table::new("ladder", "Cost", &columns);
        table.row(["own rack, 64 B".into(), 410.0.into(), 2e6.into(), 0u64.into()]);
        table.row(["other rack".into(), Cell::Empty, 1e6.into(), 2u64.into()]);
        let names: Vec<String> = results(&table).into_iter().map(|row| row.name).collect();
        let expected = [
            "ladder_own_rack__64_B_median",
            "ladder_own_rack__64_B_rate",
            "ladder_other_rack_rate",
        ];
        assert_eq!(names, expected);
        let profile = Profile::load("rcmp-testbed").unwrap();
        let report = json(&[table.clone()], &profile);
        let value: Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        assert_eq!(value["kind"], "simulated");
        assert_eq!(value["tables"][0]["rows"][1]["rate"], 1e6);
        assert_eq!(value["results"][1]["better"], "higher");
        let text = show::table(&table);
        assert!(text.contains("410 ns") && text.contains("2.00 M ops/s"), "{text}");
        let page = page::of_tables("t", &[table], &profile, String::new(), 1.0);
        let html = rackpool_bench::html::render(&page);
        assert!(html.contains("own rack, 64 B") && html.contains("rcmp-testbed"));
    }
}
