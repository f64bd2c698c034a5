//! What a report says: plain data, without a thought for how it looks.
//!
//! Numbers stay numbers with a [`Unit`] wherever a chart draws them; texts are free and are
//! escaped when the page is made. Everything is serde, so that the same data can be kept as JSON.

use crate::report::{Kind, Machine, Row, command_line, git_revision};
use rackpool_stats::format::{Unit, digits};
use rackpool_stats::histogram::Histogram;
use serde::{Deserialize, Serialize};

/// The shape of the data; the number grows when a reader must change.
pub const DEMO_SCHEMA: &str = "rackpool-demo/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DemoReport {
    /// [`DEMO_SCHEMA`].
    pub schema: String,
    pub title: String,
    /// Where the numbers come from, unless a section says otherwise.
    pub kind: Kind,
    /// The outcome in one sentence.
    pub verdict: Verdict,
    /// The machine behind the numbers.
    pub machine: Machine,
    /// The command that made them.
    pub command: String,
    /// The revision of the source, or `unknown`.
    pub git_revision: String,
    /// When the run ended, as text; may be empty.
    pub finished_at: String,
    pub duration_seconds: f64,
    /// The few numbers to see first; four fit a line.
    pub key_numbers: Vec<KeyNumber>,
    pub picture: Option<Picture>,
    /// The rest of the page, in order.
    pub sections: Vec<Section>,
    /// Remarks at the end, a paragraph each.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub good: bool,
    pub headline: String,
    pub detail: String,
}

/// A number on a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyNumber {
    pub label: String,
    /// The number as text; what follows its first space is shown smaller.
    pub value: String,
    /// A line below; may be empty.
    pub detail: String,
    /// Whether this is good or bad news; neither when absent.
    pub good: Option<bool>,
}

/// A part of the page under one heading.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Section {
    pub title: String,
    /// What the reader should see here; may be empty.
    pub lead: String,
    /// Where the numbers come from, if not as on the rest of the page.
    pub kind: Option<Kind>,
    pub blocks: Vec<Block>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Block {
    Numbers {
        numbers: Vec<KeyNumber>,
    },
    Bars(BarChart),
    /// Lines over percentiles.
    Series(SeriesChart),
    Table(Table),
    /// SVG of our own, which goes into the page as it is.
    Drawing {
        svg: String,
    },
    /// A paragraph in small print.
    Note {
        text: String,
    },
}

/// How bar length follows from the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Length is proportional, from zero.
    Linear,
    /// Each decade has the same length: for latencies from nanoseconds to milliseconds.
    Log,
}

/// Colours with a meaning that a legend gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tone {
    First,
    Second,
    Third,
    Fourth,
    /// Grey: a raw limit or another system.
    Reference,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BarChart {
    /// Heading; may be empty.
    pub title: String,
    pub unit: Unit,
    /// How length follows from the value.
    pub scale: Scale,
    /// What the tones mean; one entry or none shows no legend.
    pub legend: Vec<(Tone, String)>,
    /// Bars in groups; a group with an empty label has no heading.
    pub groups: Vec<BarGroup>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BarGroup {
    /// The label; may be empty.
    pub label: String,
    pub bars: Vec<Bar>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    pub label: String,
    /// Its length; what is not finite or, on a logarithmic scale, not positive has none.
    pub value: f64,
    /// A few words behind the value: `1.08 × raw`, `p99 3.1 µs`; may be empty.
    pub note: String,
    pub tone: Tone,
    /// Where this number comes from, if not as in the rest of the section.
    pub kind: Option<Kind>,
}

/// Lines over percentiles, both axes logarithmic: each further nine takes the same room.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeriesChart {
    /// Heading; may be empty.
    pub title: String,
    pub unit: Unit,
    /// The lines; five colours are told apart.
    pub series: Vec<Series>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    pub label: String,
    pub tone: Tone,
    /// Points (quantile from 0 to 1, value), rising.
    pub points: Vec<(f64, f64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Heading; may be empty.
    pub title: String,
    pub columns: Vec<Column>,
    /// Cells as text, one for each column.
    pub rows: Vec<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    pub heading: String,
    /// Numbers stand to the right.
    pub numeric: bool,
}

/// Racks with their processes and memories, side by side, and the paths between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Picture {
    /// The process above all racks, if there is one.
    pub master: Option<ProcessPicture>,
    /// The racks, from the left; two or three look best.
    pub racks: Vec<RackPicture>,
    /// Paths between neighbouring racks, with their numbers; three at most are drawn.
    pub between: Vec<PathPicture>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RackPicture {
    pub name: String,
    /// Its processes; four at most are drawn.
    pub processes: Vec<ProcessPicture>,
    /// Paths between processes and memory, with their numbers; three at most are drawn.
    pub inside: Vec<PathPicture>,
    pub memory: MemoryPicture,
}

/// One process, or several of a kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessPicture {
    /// What it is: `daemon`, `2 clients`.
    pub name: String,
    /// A few words: its process number, its address; may be empty.
    pub detail: String,
}

/// A region of memory and what lies in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryPicture {
    /// What it is: `/dev/shm, 2 MiB pages`.
    pub label: String,
    pub total_bytes: u64,
    /// What lies in it; the rest is free.
    pub parts: Vec<MemoryPart>,
}

/// A part of a region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPart {
    /// What it is: `files`.
    pub label: String,
    pub bytes: u64,
    pub tone: Tone,
}

/// One path and what it costs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathPicture {
    /// What it is: `64 B read, warm`.
    pub label: String,
    /// Its number as text: `92 ns`.
    pub number: String,
}

impl DemoReport {
    /// A page about this process on this machine, without contents yet.
    #[must_use]
    pub fn here(title: &str, kind: Kind, verdict: Verdict) -> Self {
        Self {
            schema: DEMO_SCHEMA.to_owned(),
            title: title.to_owned(),
            kind,
            verdict,
            machine: Machine::here(),
            command: command_line(),
            git_revision: git_revision(),
            finished_at: String::new(),
            duration_seconds: 0.0,
            key_numbers: Vec::new(),
            picture: None,
            sections: Vec::new(),
            notes: Vec::new(),
        }
    }
}

impl KeyNumber {
    /// A number with its unit.
    #[must_use]
    pub fn new(label: &str, number: f64, unit: &Unit, detail: &str) -> Self {
        Self {
            label: label.to_owned(),
            value: unit.show(number),
            detail: detail.to_owned(),
            good: None,
        }
    }

    /// Marks the number as good or bad news.
    #[must_use]
    pub const fn judged(mut self, good: bool) -> Self {
        self.good = Some(good);
        self
    }
}

impl Section {
    /// A section without contents yet.
    #[must_use]
    pub fn new(title: &str, lead: &str) -> Self {
        Self { title: title.to_owned(), lead: lead.to_owned(), kind: None, blocks: Vec::new() }
    }

    /// Adds contents at the end.
    #[must_use]
    pub fn with(mut self, block: Block) -> Self {
        self.blocks.push(block);
        self
    }
}

impl Bar {
    /// A bar without a note.
    #[must_use]
    pub fn new(label: &str, value: f64, tone: Tone) -> Self {
        Self { label: label.to_owned(), value, note: String::new(), tone, kind: None }
    }

    /// Adds a few words behind the value.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

impl Series {
    /// The percentile curve of a histogram.
    #[must_use]
    pub fn of_histogram(label: &str, tone: Tone, histogram: &Histogram) -> Self {
        let curve = histogram.percentile_curve(8);
        let points = curve.into_iter().map(|(quantile, value)| (quantile, value as f64)).collect();
        Self { label: label.to_owned(), tone, points }
    }
}

impl Table {
    /// All numbers of a report's results, with units.
    #[must_use]
    pub fn of_results(title: &str, rows: &[Row]) -> Self {
        let column = |(index, heading): (usize, &str)| Column {
            heading: heading.to_owned(),
            numeric: index > 0,
        };
        let headings =
            ["Result", "Ours", "Reference", "Ours / reference", "p50", "p99", "p99.9", "Samples"];
        let cells = |row: &Row| {
            let unit = Unit::from_name(&row.unit);
            let time = |ns: Option<u64>| {
                ns.map_or_else(String::new, |ns| Unit::Nanoseconds.show(ns as f64))
            };
            vec![
                row.name.clone(),
                unit.show(row.ours),
                row.reference().map_or_else(String::new, |value| unit.show(value)),
                row.ratio.map_or_else(String::new, digits),
                time(row.p50),
                time(row.p99),
                time(row.p999),
                Unit::Count.show(row.n as f64),
            ]
        };
        Self {
            title: title.to_owned(),
            columns: headings.into_iter().enumerate().map(column).collect(),
            rows: rows.iter().map(cells).collect(),
        }
    }
}

impl Tone {
    /// The class that the style sheet colours.
    #[must_use]
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::First => "t1",
            Self::Second => "t2",
            Self::Third => "t3",
            Self::Fourth => "t4",
            Self::Reference => "t0",
        }
    }
}
