//! `sim scale` and `sim ladder`: tables of the simulated cluster in performance mode.

use super::{Engine, calibration, page_of, profile, show};
use crate::args::{BenchName, SimLadderArgs, SimOutputArgs, SimScaleArgs};
use crate::bench::{self, Setup, YcsbPlan};
use crate::failure::{Failure, Result};
use crate::output;
use indicatif::ProgressBar;
use rackpool::FabricChoice;
use rackpool_bench::report::{Better, Kind, Reference, Report, Row};
use rackpool_bench::run::Size;
use rackpool_sim::device::Profile;
use rackpool_sim::report::{Cell, Column, Table};
use rackpool_sim::world::scale::Options;
use serde_json::Value;
use std::time::Instant;

/// What an access costs as the cluster grows.
pub fn scale(engine: &Engine, args: &SimScaleArgs) -> Result<()> {
    let options = Options {
        racks: args.racks.clone(),
        clients: args.clients,
        operations: args.operations,
        seed: args.seed,
    };
    make_and_show("rackpool sim scale", &args.profile, &args.output, |profile, bar| {
        (engine.scale)(profile, &options, &mut |what| bar.set_message(what.to_owned()))
    })
}

/// What each kind of access costs.
pub fn ladder(engine: &Engine, args: &SimLadderArgs) -> Result<()> {
    make_and_show("rackpool sim ladder", &args.profile, &args.output, |profile, bar| {
        let mut tables = (engine.ladder)(profile)?;
        if args.measure {
            bar.set_message("measuring this machine");
            tables.push(measured().map_err(|failure| failure.to_string())?);
        }
        Ok(tables)
    })
}

/// The ladder of this machine: real processes on its memory and sockets, a second or two each.
fn measured() -> Result<Table> {
    let all: [String; 0] = [];
    let setup = |fabric| -> Result<Setup> {
        let ycsb = YcsbPlan::new(&all, &all, 1)?;
        Ok(Setup { size: Size::quick(true), fabric, emulate: None, ycsb })
    };
    let names = [BenchName::Local, BenchName::Remote];
    let mut reports = bench::measure(&names, &setup(FabricChoice::Tcp)?)?;
    let names = [BenchName::Remote];
    let mut proxied = bench::measure(&names, &setup(FabricChoice::Proxied)?)?;
    for row in proxied.iter_mut().flat_map(|report| &mut report.results) {
        row.name += "_proxied";
    }
    reports.append(&mut proxied);
    let columns = [("measured", ""), ("ours", "ns"), ("p99", "ns"), ("raw limit", "ns")];
    let mut table = Table::new("ladder_measured", "The same on this machine, measured", &columns);
    let rows = reports.iter().flat_map(|report| &report.results).filter(|row| row.unit == "ns");
    for row in rows {
        let p99 = row.p99.map(|ns| ns as f64);
        table.row([row.name.as_str().into(), row.ours.into(), p99.into(), row.reference().into()]);
    }
    table.note("Measured, not simulated: real processes, shared memory, TCP on the loopback.");
    Ok(table)
}

fn make_and_show(
    title: &str,
    profile_name: &str,
    to: &SimOutputArgs,
    make: impl FnOnce(&Profile, &ProgressBar) -> Result<Vec<Table>, String>,
) -> Result<()> {
    let profile = profile(profile_name)?;
    let to_json = output::open_if(to.json.as_ref())?;
    let to_html = output::open_if(to.html.as_ref())?;
    let bar = output::spinner("simulating");
    let start = Instant::now();
    let made = make(&profile, &bar);
    bar.finish_and_clear();
    let tables = made.map_err(|reason| Failure::new("sim", reason))?;
    if let Some(to) = to_json {
        to.report(&json(&tables, &profile))?;
    }
    if let Some(to) = to_html {
        let seconds = start.elapsed().as_secs_f64();
        to.write(page_of(title, &tables, &profile, seconds))?;
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
        let is_reference = |column: &Column| REFERENCES.contains(&column.name.as_str());
        let cells = cells.filter(|(column, _)| !is_reference(column));
        let mut rows: Vec<Row> =
            cells.filter_map(|(column, cell)| number(&label, column, cell)).collect();
        if let (Some(first), Some(reference)) = (rows.first_mut(), reference(table, row)) {
            *first = first.clone().against(reference);
        }
        rows
    };
    table.rows.iter().flat_map(of_row).collect()
}

/// Columns that the first number of a row is compared with, instead of results of their own.
const REFERENCES: [&str; 2] = ["paper", "raw limit"];

fn reference(table: &Table, row: &[Cell]) -> Option<Reference> {
    let of = |name: &str| {
        let index = table.columns.iter().position(|column| column.name == name)?;
        if let Cell::Number(value) = row[index] { Some(value) } else { None }
    };
    of("paper").map(Reference::Paper).or_else(|| of("raw limit").map(Reference::Raw))
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
        let page = super::super::page::of_tables("t", &[table], &profile, String::new(), 1.0);
        let html = rackpool_bench::html::render(&page);
        assert!(html.contains("own rack, 64 B") && html.contains("rcmp-testbed"));
    }
}
