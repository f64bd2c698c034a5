//! A running pool's choices: recorded in a file, made again here, and set beside a prediction.
//!
//! ```text
//!  running pool → rackpool plan --from-pool → recording → replay: the same choices, or an error
//!                                                       → prediction beside what the pool did
//! ```
//!
//! A recording is text, a line of JSON each: first `header`, then `counters` of the racks when it
//! began, `entry` for each thing that the master's placement was told or chose
//! ([`RecordedEvent`]), `gap` where some are missing, `heat` for each decision of a daemon about a
//! page with all counts that it was made of ([`DecisionRecord`]), and `counters` again at the end.

mod predict;

pub use predict::{PolicyRow, RackRow, Report};

use rackpool_core::addr::RackId;
use rackpool_core::placement::{Policy, RecordedEvent, Replay, ReplayError};
use rackpool_core::policy::{self, DecisionRecord};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Of a recording: changes when a line changes its meaning or goes.
pub const SCHEMA: &str = "rackpool-recording/1";

/// A line of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordLine {
    Header(RecordHeader),
    /// The racks at the begin, and at the end.
    Counters(Counters),
    /// What placement was told, or chose.
    Entry(RecordedEvent),
    /// Entries are missing here; what follows begins with a chooser.
    Gap,
    /// A decision about a page.
    Heat(Heat),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordHeader {
    pub schema: String,
    pub master: String,
    pub placement: Policy,
}

/// The racks at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Since the recording began, ns.
    pub at_ns: u64,
    /// Those that could be asked.
    pub racks: Vec<RackCounters>,
}

/// A rack, or a shard of it, as its daemon counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RackCounters {
    pub rack: RackId,
    pub page_bytes: u64,
    pub frames: u64,
    pub frames_free: u64,
    /// Requests since its process started.
    pub requests: u64,
    /// Operations of other racks on its memory since its process started.
    pub operations: u64,
}

impl RackCounters {
    pub fn used_bytes(&self) -> u64 {
        self.frames.saturating_sub(self.frames_free).saturating_mul(self.page_bytes)
    }
}

/// A decision about a page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    pub rack: RackId,
    /// The decision's number, of that rack's process.
    pub number: u64,
    /// What was known, and decided.
    pub record: Box<DecisionRecord>,
}

/// A recording that says nothing, or something that was not so.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: std::io::Error },
    /// A line is none of a recording.
    #[error("{path}: line {line}: {reason}")]
    Line { path: PathBuf, line: usize, reason: String },
    /// The master made no choice: racks that have room themselves never ask it.
    #[error(
        "{0}: no placement decision is recorded: a pool that is local-first asks its master only \
         when a rack is full"
    )]
    Nothing(PathBuf),
    /// A choice that is made again is another one.
    #[error("{path}: line {line}: {error}")]
    Placement { path: PathBuf, line: usize, error: ReplayError },
    /// A decision about a page that is made again is another one.
    #[error("{path}: line {line}: decision {number} of rack {rack} is another one when made again")]
    Heat { path: PathBuf, line: usize, rack: RackId, number: u64 },
}

/// What a file says, after everything in it was decided again.
#[derive(Clone, Debug)]
pub struct Recording {
    pub header: RecordHeader,
    pub hash: u64,
    /// What placement was told, or chose, since the last gap.
    pub entries: Vec<RecordedEvent>,
    /// Choices that were made again.
    pub picks: u64,
    /// Decisions about pages that were made again.
    pub pages_decided: u64,
    /// The racks at the end.
    pub end: Counters,
}

impl Recording {
    /// Reads a file and makes every choice and decision in it again, with the code that a master
    /// and a daemon run.
    ///
    /// # Errors
    /// [`RecordingError`]; a choice that comes out otherwise is one.
    pub fn open(path: &Path) -> Result<Recording, RecordingError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| RecordingError::Io { path: path.to_owned(), error })?;
        Recording::read(path, &text)
    }

    /// As [`Recording::open`], of a file's text.
    ///
    /// # Errors
    /// As [`Recording::open`].
    pub fn read(path: &Path, text: &str) -> Result<Recording, RecordingError> {
        let broken = |line: usize, reason: String| RecordingError::Line {
            path: path.to_owned(),
            line: line + 1,
            reason,
        };
        let mut lines = text.lines().enumerate();
        let first = lines.next().map_or("", |(_, line)| line);
        let header = match serde_json::from_str(first) {
            Ok(RecordLine::Header(header)) if header.schema == SCHEMA => header,
            Ok(_) => return Err(broken(0, format!("the header of {SCHEMA} was expected"))),
            Err(error) => return Err(broken(0, error.to_string())),
        };
        let (mut replay, mut all) = (Replay::default(), Recording::empty(header, text));
        for (number, line) in lines {
            let line = serde_json::from_str(line);
            match line.map_err(|error| broken(number, error.to_string()))? {
                RecordLine::Header(_) => return Err(broken(number, "a second header".into())),
                RecordLine::Counters(counters) => all.end = counters,
                RecordLine::Gap => {
                    replay.gap();
                    all.entries.clear();
                }
                RecordLine::Entry(entry) => {
                    let (path, line) = (path.to_owned(), number + 1);
                    replay.step(&entry).map_err(|error| RecordingError::Placement {
                        path,
                        line,
                        error,
                    })?;
                    all.entries.push(entry);
                }
                RecordLine::Heat(Heat { rack, number: count, record }) => {
                    if policy::replay(&record) != record.decision {
                        let (path, line) = (path.to_owned(), number + 1);
                        return Err(RecordingError::Heat { path, line, rack, number: count });
                    }
                    all.pages_decided += 1;
                }
            }
        }
        all.picks = replay.picks();
        match all.picks {
            0 => Err(RecordingError::Nothing(path.to_owned())),
            _ => Ok(all),
        }
    }

    fn empty(header: RecordHeader, text: &str) -> Recording {
        let (hash, end) = (xxh3_64(text.as_bytes()), Counters::default());
        Recording { header, hash, entries: Vec::new(), picks: 0, pages_decided: 0, end }
    }
}

impl RecordLine {
    /// As it is in a file, with its end.
    pub fn to_text(&self) -> String {
        let line = serde_json::to_string(self).expect("numbers and lists can be written");
        line + "\n"
    }
}
