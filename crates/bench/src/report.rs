//! Results for programs: one JSON document a command, the shape of DESIGN §5.
//!
//! A [`Report`] says on what machine, by which command and from which revision its [`Row`]s come.
//! `ratio` is always ours/reference, for times and for rates. A command makes the report, prints
//! [`Report::table`] for people and [`Report::write`]s the JSON; [`Report::read`] takes it back.

use crate::interleave::Comparison;
use rackpool_mem::memory::HostMemory;
use rackpool_mem::process::processor_name;
use rackpool_stats::format::{Unit, digits};
use rackpool_stats::histogram::Summary;
use rackpool_stats::table::TextTable;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The shape of the document; the number grows when a reader must change.
pub const SCHEMA: &str = "rackpool-bench/1";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Taken with a clock on this machine as it is.
    Measured,
    /// Taken with a clock, with injected latency.
    Emulated,
    Simulated,
}

impl Kind {
    /// The word in JSON and on labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Emulated => "emulated",
            Self::Simulated => "simulated",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Lower,
    Higher,
}

/// What ours is compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reference {
    /// The machine's raw limit, measured in the same run.
    Raw(f64),
    /// Another system, measured in the same run.
    Peer(f64),
    Paper(f64),
}

/// The machine behind the numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model as it names itself.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory that this process may use: what is installed, or a control group's limit.
    pub memory_bytes: u64,
    pub kernel: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Stable name, `read_64B_own_rack_warm`.
    pub name: String,
    /// Unit of `ours` and the reference: `ns`, `ops/s`, `B/s` …
    pub unit: String,
    pub better: Better,
    pub ours: f64,
    /// The raw limit in the same run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub raw: Option<f64>,
    /// Another system in the same run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peer: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub paper: Option<f64>,
    /// Ours divided by the reference; absent without a reference.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ratio: Option<f64>,
    /// Median, in `ns` unless an extra field `percentile_unit` says otherwise.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub p50: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub p99: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub p999: Option<u64>,
    pub n: u64,
    /// Further fields of this result.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    /// Where the numbers come from.
    pub kind: Kind,
    pub machine: Machine,
    /// The command that made them.
    pub command: String,
    /// The revision of the source, or `unknown`.
    pub git_revision: String,
    pub results: Vec<Row>,
    /// Further fields of the document.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// Why a report was not written or read. A retry helps only when the file system was at fault.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// Not the JSON of a report.
    #[error("not the JSON of a report: {0}")]
    Json(#[from] serde_json::Error),
    /// A report of another shape.
    #[error("a report of schema \"{found}\", not \"{SCHEMA}\"")]
    Schema {
        /// The schema in the document.
        found: String,
    },
    /// JSON has no word for infinite numbers and for none.
    #[error("result \"{name}\": {field} is no finite number")]
    NotFinite { name: String, field: &'static str },
}

impl Row {
    /// A number of ours, without a reference.
    #[must_use]
    pub fn new(name: &str, unit: &str, better: Better, ours: f64) -> Self {
        Self {
            name: name.to_owned(),
            unit: unit.to_owned(),
            better,
            ours,
            raw: None,
            peer: None,
            paper: None,
            ratio: None,
            p50: None,
            p99: None,
            p999: None,
            n: 1,
            extra: BTreeMap::new(),
        }
    }

    /// The outcome of an interleaved comparison with the raw limit (or, by `reference`, with
    /// something else); carries the count of kept and disturbed pairs.
    #[must_use]
    pub fn compared(
        name: &str,
        unit: &str,
        better: Better,
        comparison: &Comparison,
        reference: fn(f64) -> Reference,
    ) -> Self {
        let mut row = Self::new(name, unit, better, comparison.ours)
            .against(reference(comparison.reference))
            .with("kept", comparison.kept)
            .with("disturbed", comparison.disturbed)
            .with("ratio_p25", comparison.ratio_p25)
            .with("ratio_p75", comparison.ratio_p75);
        if comparison.disturbed_kept {
            row = row.with("disturbed_kept", true);
        }
        row.ratio = Some(comparison.ratio);
        row.n = comparison.kept as u64;
        row
    }

    /// Sets the reference and the ratio to it. For pairs use [`Row::compared`]: the median of
    /// ratios is not the ratio of medians.
    #[must_use]
    pub fn against(mut self, reference: Reference) -> Self {
        (self.raw, self.peer, self.paper) = (None, None, None);
        let value = match reference {
            Reference::Raw(value) => *self.raw.insert(value),
            Reference::Peer(value) => *self.peer.insert(value),
            Reference::Paper(value) => *self.paper.insert(value),
        };
        self.ratio = Some(self.ours / value);
        self
    }

    /// Sets percentiles and the number of samples from a histogram.
    #[must_use]
    pub const fn percentiles(mut self, summary: Summary) -> Self {
        self.p50 = Some(summary.p50);
        self.p99 = Some(summary.p99);
        self.p999 = Some(summary.p999);
        self.n = summary.n;
        self
    }

    /// Sets the number of samples or operations.
    #[must_use]
    pub const fn samples(mut self, n: u64) -> Self {
        self.n = n;
        self
    }

    /// Adds a further field.
    ///
    /// # Panics
    /// When the field has a place of its own.
    #[must_use]
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        const OWN: [&str; 11] = [
            "name", "unit", "better", "ours", "raw", "peer", "paper", "ratio", "p50", "p99", "p999",
        ];
        assert!(!OWN.contains(&field) && field != "n", "\"{field}\" has a place of its own");
        self.extra.insert(field.to_owned(), value.into());
        self
    }

    /// The reference, whatever it is.
    #[must_use]
    pub fn reference(&self) -> Option<f64> {
        self.raw.or(self.peer).or(self.paper)
    }

    fn check_finite(&self) -> Result<(), ReportError> {
        let fields = [
            ("ours", Some(self.ours)),
            ("raw", self.raw),
            ("peer", self.peer),
            ("paper", self.paper),
            ("ratio", self.ratio),
        ];
        match fields.into_iter().find(|(_, value)| value.is_some_and(|v| !v.is_finite())) {
            Some((field, _)) => Err(ReportError::NotFinite { name: self.name.clone(), field }),
            None => Ok(()),
        }
    }
}

impl Report {
    /// A report of this process on this machine, without results yet.
    #[must_use]
    pub fn here(kind: Kind) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            kind,
            machine: Machine::here(),
            command: command_line(),
            git_revision: git_revision(),
            results: Vec::new(),
            extra: BTreeMap::new(),
        }
    }

    /// The document as indented JSON with a final line feed.
    ///
    /// # Errors
    /// [`ReportError::NotFinite`] when a number is infinite or none.
    pub fn to_json(&self) -> Result<String, ReportError> {
        self.results.iter().try_for_each(Row::check_finite)?;
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }

    /// Reads what [`Report::to_json`] wrote; the last bit of a fraction may differ.
    ///
    /// # Errors
    /// [`ReportError::Json`] or [`ReportError::Schema`].
    pub fn from_json(text: &str) -> Result<Self, ReportError> {
        let report: Self = serde_json::from_str(text)?;
        if report.schema != SCHEMA {
            return Err(ReportError::Schema { found: report.schema });
        }
        Ok(report)
    }

    /// Writes the JSON to `path`, whole or not at all ([`rackpool_mem::output`]).
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn write(&self, path: &Path) -> Result<(), ReportError> {
        rackpool_mem::output::write(path, self.to_json()?.as_bytes())
            .map_err(|source| ReportError::Io { path: path.to_owned(), source })
    }

    /// Reads the JSON at `path`.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ReportError::Io { path: path.to_owned(), source })?;
        Self::from_json(&text)
    }

    /// The results as a table for a terminal.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = TextTable::new(&[
            "result",
            "ours",
            "reference",
            "ratio",
            "p50",
            "p99",
            "p99.9",
            "n",
            "",
        ]);
        for row in &self.results {
            table.row(table_row(row));
        }
        let Machine { cpu, cores, kernel, .. } = &self.machine;
        let kind = self.kind.name();
        format!("{}\n{kind} on {cpu}, {cores} cores, {kernel}\n", table.show())
    }
}

fn table_row(row: &Row) -> Vec<String> {
    let unit = Unit::from_name(&row.unit);
    let reference = match (row.raw, row.peer, row.paper) {
        (Some(raw), ..) => format!("{} raw", unit.show(raw)),
        (_, Some(peer), _) => format!("{} peer", unit.show(peer)),
        (.., Some(paper)) => format!("{} paper", unit.show(paper)),
        _ => String::new(),
    };
    let time = |ns: Option<u64>| {
        ns.map_or_else(String::new, |ns| match row.unit.as_str() {
            _ if !row.extra.contains_key("percentile_unit") => Unit::Nanoseconds.show(ns as f64),
            _ => ns.to_string(),
        })
    };
    let disturbed = row.extra.get("disturbed").and_then(Value::as_u64).unwrap_or(0);
    vec![
        row.name.clone(),
        unit.show(row.ours),
        reference,
        row.ratio.map_or_else(String::new, digits),
        time(row.p50),
        time(row.p99),
        time(row.p999),
        Unit::Count.show(row.n as f64),
        if disturbed > 0 { format!("{disturbed} disturbed") } else { String::new() },
    ]
}

impl Machine {
    /// The machine that this process runs on; what cannot be found out is `unknown` or 0.
    #[must_use]
    pub fn here() -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: processor_name(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: HostMemory::now().map_or(0, |memory| memory.total_bytes),
            kernel: match kernel.trim() {
                "" => "unknown".to_owned(),
                release => format!("Linux {release}"),
            },
        }
    }
}

/// This process's command line; arguments with spaces are quoted.
#[must_use]
pub fn command_line() -> String {
    let mut words = Vec::new();
    for (index, word) in std::env::args_os().enumerate() {
        let mut word = word.to_string_lossy().into_owned();
        if index == 0 {
            word = word.rsplit('/').next().unwrap_or_default().to_owned();
        }
        let plain = !word.is_empty() && !word.contains([' ', '\t', '\n', '"', '\'', ';', '$']);
        words.push(if plain { word } else { format!("'{}'", word.replace('\'', r"'\''")) });
    }
    words.join(" ")
}

/// The source's revision: `RACKPOOL_GIT_REVISION` of the build, else what `git` says of the
/// source directory (with `-dirty` when files were changed), else `unknown`.
#[must_use]
pub fn git_revision() -> String {
    if let Some(revision) = option_env!("RACKPOOL_GIT_REVISION").filter(|text| !text.is_empty()) {
        return revision.to_owned();
    }
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        let output = command.args(["-C", env!("CARGO_MANIFEST_DIR")]).args(arguments).output().ok();
        let output = output.filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(revision) if !revision.is_empty() => {
            let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
            let dirty = changed.is_some_and(|files| !files.is_empty());
            format!("{revision}{}", if dirty { "-dirty" } else { "" })
        }
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interleave::Pair;

    fn comparison() -> Comparison {
        let pair = Pair { ours: 3.0, reference: 2.0, ours_first: true, disturbance: None };
        Comparison {
            ours: 3.0,
            reference: 2.0,
            ratio: 1.4,
            ratio_p25: 1.3,
            ratio_p75: 1.6,
            kept: 15,
            disturbed: 2,
            disturbed_kept: false,
            pairs: vec![pair],
        }
    }

    fn sample() -> Report {
        let mut report = Report::here(Kind::Measured);
        let summary = Summary { n: 9, mean: 4.0, p50: 3, p99: 8, p999: 9, max: 9 };
        report.results.push(
            Row::compared("read", "ns", Better::Lower, &comparison(), Reference::Raw)
                .percentiles(summary),
        );
        report
            .results
            .push(Row::new("stream", "B/s", Better::Higher, 9e9).against(Reference::Paper(1e10)));
        report.results.push(Row::new("alone", "count", Better::Lower, 0.0).samples(7));
        report
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let report = sample();
        assert_eq!(Report::from_json(&report.to_json().unwrap()).unwrap(), report);
        let directory =
            std::env::temp_dir().join(format!("rackpool-report-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("report.json");
        report.write(&path).unwrap();
        assert_eq!(Report::read(&path).unwrap(), report);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "no part is left");
        fs::remove_dir_all(&directory).unwrap();
        assert!(matches!(report.write(&path), Err(ReportError::Io { .. })));
        assert!(matches!(Report::read(&path), Err(ReportError::Io { .. })));
    }

    #[test]
    fn the_document_has_the_fields_of_the_design() {
        let value: Value = serde_json::from_str(&sample().to_json().unwrap()).unwrap();
        for field in ["schema", "kind", "machine", "command", "git_revision", "results"] {
            assert!(!value[field].is_null(), "{field} is missing");
        }
        assert_eq!(value["kind"], "measured");
        let row = &value["results"][0];
        for field in
            ["name", "unit", "better", "ours", "raw", "ratio", "p50", "p99", "p999", "n", "kept"]
        {
            assert!(!row[field].is_null(), "{field} is missing");
        }
        assert!(row.get("peer").is_none() && row.get("paper").is_none());
        assert_eq!(row["better"], "lower");
        assert_eq!(row["disturbed"], 2);
    }

    #[test]
    fn the_ratio_is_ours_over_the_reference_for_times_and_rates() {
        let results = sample().results;
        assert_eq!(results[0].ratio, Some(1.4), "the median of the pairs' ratios");
        assert_eq!(results[1].ratio, Some(0.9));
        assert_eq!(results[2].ratio, None);
        let peer = Row::new("r", "ns", Better::Lower, 1.0).against(Reference::Peer(4.0));
        assert_eq!((peer.ratio, peer.reference(), peer.raw), (Some(0.25), Some(4.0), None));
    }

    #[test]
    fn a_report_of_another_schema_or_with_endless_numbers_is_refused() {
        let other = sample().to_json().unwrap().replace(SCHEMA, "rackpool-bench/9");
        assert!(matches!(Report::from_json(&other), Err(ReportError::Schema { .. })));
        assert!(matches!(Report::from_json("{}"), Err(ReportError::Json(_))));
        let mut endless = sample();
        endless.results[1] =
            Row::new("zero", "ns", Better::Lower, 1.0).against(Reference::Raw(0.0));
        let error = endless.to_json().unwrap_err().to_string();
        assert_eq!(error, "result \"zero\": ratio is no finite number");
    }

    #[test]
    #[should_panic(expected = "\"p99\" has a place of its own")]
    fn an_extra_field_cannot_hide_a_real_one() {
        let _ = Row::new("r", "ns", Better::Lower, 1.0).with("p99", 3);
    }

    #[test]
    fn the_table_shows_units() {
        let table = sample().table();
        assert!(table.contains("3.00 ns") && table.contains("10.0 GB/s paper"), "{table}");
        assert!(table.contains("2 disturbed") && table.contains("measured on"), "{table}");
    }

    #[test]
    fn the_machine_is_described_from_proc() {
        let Machine { cpu, cores, memory_bytes, .. } = Machine::here();
        assert!(!cpu.is_empty() && cores > 0 && memory_bytes > 0);
    }

    #[test]
    fn the_revision_is_a_hash_or_honestly_unknown() {
        let revision = git_revision();
        let hash = revision.strip_suffix("-dirty").unwrap_or(&revision);
        let is_hash = hash.len() >= 7 && hash.chars().all(|c| c.is_ascii_hexdigit());
        assert!(is_hash || option_env!("RACKPOOL_GIT_REVISION").is_some() || hash == "unknown");
    }
}
