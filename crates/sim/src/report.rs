//! What simulated runs have to report, as plain data: a [`Table`] of numbers with units for
//! `sim scale` and `sim ladder`, and a sweep as JSON. The command line adds the machine, the
//! command and the revision, and prints.

use crate::run::{Config, Sweep};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its heading, which is also its name in JSON.
    pub name: String,
    /// The unit of its numbers: `ns`, `count`, `B` …; empty for text and plain numbers.
    pub unit: String,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// A number in the unit of its column.
    Number(f64),
    Text(String),
    Empty,
}

impl From<f64> for Cell {
    fn from(number: f64) -> Cell {
        Cell::Number(number)
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Cell {
        Cell::Number(number as f64)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<Option<f64>> for Cell {
    fn from(number: Option<f64>) -> Cell {
        number.map_or(Cell::Empty, Cell::Number)
    }
}

/// Rows and columns, in the order in which they are to be shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Stable name, `scale` or `ladder`.
    pub name: String,
    /// What the reader sees here, in one sentence.
    pub title: String,
    /// The columns; the first one names the row.
    pub columns: Vec<Column>,
    /// The rows, a cell for each column.
    pub rows: Vec<Vec<Cell>>,
    /// Remarks below the table, a sentence each.
    pub notes: Vec<String>,
}

impl Table {
    /// A table with these columns, each a heading and a unit.
    pub fn new(name: &str, title: &str, columns: &[(&str, &str)]) -> Table {
        let column =
            |(name, unit): &(&str, &str)| Column { name: (*name).into(), unit: (*unit).into() };
        Table {
            name: name.into(),
            title: title.into(),
            columns: columns.iter().map(column).collect(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When there is not one cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.columns.len(), "a cell for each column of {}", self.name);
        self.rows.push(cells);
    }

    /// Adds a row of a name and what is in the other columns.
    ///
    /// # Panics
    /// As [`Table::row`].
    pub fn line<C: Into<Cell>>(&mut self, name: impl ToString, rest: impl IntoIterator<Item = C>) {
        let name = Cell::Text(name.to_string());
        self.row(std::iter::once(name).chain(rest.into_iter().map(Into::into)));
    }

    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// One object a row, with the columns' names as fields and the units beside them.
    pub fn to_json(&self) -> Value {
        let object = |row: &Vec<Cell>| -> Value {
            let fields = self.columns.iter().zip(row);
            fields.map(|(column, cell)| (column.name.clone(), json!(cell))).collect()
        };
        let with_unit = self.columns.iter().filter(|column| !column.unit.is_empty());
        let units: Value =
            with_unit.map(|column| (column.name.clone(), json!(column.unit))).collect();
        json!({
            "name": self.name,
            "title": self.title,
            "units": units,
            "rows": self.rows.iter().map(object).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

/// The fields of a sweep's report. Hashes are text: a number of 64 bits is not safe in every
/// reader of JSON.
pub fn sweep_json(config: &Config, sweep: &Sweep) -> Vec<(&'static str, Value)> {
    let failure = |failed: &crate::run::SeedFailure| {
        json!({
            "seed": failed.seed,
            "checker": failed.failure.checker,
            "text": failed.failure.text,
            "at_ns": failed.failure.at.as_ns_f64(),
            "replay": config.replay_command(failed.seed),
        })
    };
    let mutation = config.mutation.map(rackpool_core::probe::Mutation::name);
    vec![
        ("first_seed", json!(sweep.first_seed)),
        ("seeds", json!(sweep.seeds)),
        ("trace_hash", json!(format!("{:016x}", sweep.trace_hash))),
        ("events", json!(sweep.events)),
        ("operations", json!(sweep.operations)),
        ("operations_min_per_seed", json!(sweep.operations_min)),
        ("virtual_seconds", json!(sweep.virtual_time.as_ns_f64() / 1e9)),
        ("failed_seeds", json!(sweep.failed_seeds)),
        ("failures", sweep.failures.iter().map(failure).collect()),
        ("counts", json!(sweep.counts)),
        ("never", json!(sweep.counts.never(config.faults))),
        ("config", json!(config)),
        ("mutation", json!(mutation)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_becomes_one_object_a_row() {
        let mut table = Table::new("scale", "Cost by size", &[("racks", ""), ("access", "ns")]);
        table.row([2u64.into(), 140.5.into()]);
        table.row([Cell::from("many"), Cell::from(None)]);
        table.note("64 clients a rack");
        let json = table.to_json();
        assert_eq!(json["rows"][0], json!({"racks": 2.0, "access": 140.5}));
        assert_eq!(json["rows"][1], json!({"racks": "many", "access": null}));
        assert_eq!(json["units"], json!({"access": "ns"}));
        let back: Table = serde_json::from_value(serde_json::to_value(&table).unwrap()).unwrap();
        assert_eq!(back, table);
    }

    #[test]
    #[should_panic(expected = "a cell for each column")]
    fn a_row_with_a_hole_is_a_bug() {
        Table::new("t", "t", &[("a", ""), ("b", "")]).row([Cell::Empty]);
    }

    #[test]
    fn a_sweep_says_what_programs_read() {
        let sweep = Sweep { trace_hash: 0xabc, seeds: 3, ..Sweep::default() };
        let fields = sweep_json(&Config::default(), &sweep);
        let get = |name| &fields.iter().find(|(field, _)| *field == name).unwrap().1;
        assert_eq!(get("trace_hash"), "0000000000000abc");
        assert_eq!(get("config")["faults"], "all");
        for name in ["events", "operations", "failed_seeds", "counts", "never", "mutation"] {
            get(name);
        }
    }
}
