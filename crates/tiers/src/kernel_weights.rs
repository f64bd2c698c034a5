//! The kernel's own weights of weighted interleave (Linux 6.9): one table for the whole machine,
//! for memory that is taken from then on. In: a tree of files like `/sys`, and a [`WeightsChange`].
//! Out: what is set; a change is made whole, or put back. Called by `rackpool tiers apply`: nothing
//! else in rackpool writes them.
//!
//! Newer kernels (6.16) choose weights themselves, by the bandwidths that the firmware says, until
//! one is written; with no such bandwidth they do not take the choice back (`ENODEV`). So weights
//! are written first, and the choice is given back after them.
//!
//! Source: Linux `Documentation/ABI/testing/sysfs-kernel-mm-mempolicy-weighted-interleave`.

use rackpool_mem::numa::{NODES_MAX, list};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const FOLDER: &str = "kernel/mm/mempolicy/weighted_interleave";
/// Its name as documented, and as some kernels have it.
const AUTO_NAMES: [&str; 2] = ["auto", "__auto_type"];
const WEIGHT_MAX: u16 = crate::weights::WEIGHT_MAX as u16;
const SCHEMA: &str = "rackpool.tiers.kernel-weights/1";
/// More than a weight for each node that Linux can have.
const SAVED_BYTES_MAX: u64 = 1 << 20;
/// Bytes that are read of a file of the kernel, all of which are shorter.
const FILE_BYTES_MAX: u64 = 64;

/// Why weights are not read, set or put back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelWeightsError {
    /// Boot another kernel, or place programs one by one.
    #[error(
        "{path} is not there: this kernel has no weighted interleave, Linux 6.9 or newer has; \
         without it rackpool tiers run --weighted places single programs",
        path = path.display()
    )]
    Unsupported { path: PathBuf },
    #[error(
        "this kernel does not choose weights itself, Linux 6.16 or newer does: name weights, such \
         as --weighted 3:1"
    )]
    NoAuto,
    /// Nothing was changed.
    #[error(
        "the kernel chooses no weights: the firmware says no bandwidths (HMAT, CDAT); name weights \
         (--weighted), or measure (rackpool tiers measure --store FILE, then --profile FILE)"
    )]
    NoBandwidth,
    #[error("the kernel has no weight of node {node}; nodes that have one: {there}")]
    NoNode { node: u16, there: String },
    #[error("the weight of node {node} is {weight}: the kernel takes 1 to 255")]
    Weight { node: u16, weight: u16 },
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    /// No kernel writes this.
    #[error("{path} says {text:?}, not {expected}", path = path.display())]
    Garbage { path: PathBuf, text: String, expected: &'static str },
    /// Name another file.
    #[error(
        "{path}: {why}; rackpool tiers apply ... --save FILE writes such files",
        path = path.display()
    )]
    Saved { path: PathBuf, why: String },
    /// The kernel did not take one; what had been written before it is put back.
    #[error("{path}: {source}{right}; {back}", path = path.display(), right = right_to(source))]
    Write { path: PathBuf, source: io::Error, back: PutBack },
}

impl KernelWeightsError {
    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } | Self::NoAuto | Self::NoBandwidth => "unsupported",
            Self::Weight { .. } => "usage",
            Self::NoNode { .. } => "no-node",
            Self::Garbage { .. } | Self::Saved { .. } => "bad-file",
            Self::Write { source, .. } if is_denied(source) => "denied",
            Self::Io { .. } | Self::Write { .. } => "io",
        }
    }
}

fn is_denied(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
}

fn right_to(error: &io::Error) -> &'static str {
    if is_denied(error) {
        " (needs root, or the right CAP_DAC_OVERRIDE; in a container a /sys that may be written)"
    } else {
        ""
    }
}

/// What became of weights that were written before one that the kernel did not take.
#[derive(Debug)]
pub enum PutBack {
    /// There were none.
    Unchanged,
    Done,
    /// The kernel does not choose itself any more.
    WithoutAuto,
    /// The first that could not be written. The others were.
    Failed {
        path: PathBuf,
        error: io::Error,
    },
}

impl Display for PutBack {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            PutBack::Unchanged => f.write_str("nothing was changed"),
            PutBack::Done => f.write_str("what was set before is set again"),
            PutBack::WithoutAuto => f.write_str(
                "the weights of before are set again, but the kernel does not choose them itself \
                 any more: the firmware says no bandwidths",
            ),
            PutBack::Failed { path, error } => {
                let path = path.display();
                write!(f, "not all that was set before is set again ({path}: {error})")
            }
        }
    }
}

/// What the kernel has set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelWeights {
    /// By node.
    pub weights: BTreeMap<u16, u16>,
    /// Whether the kernel chooses them itself; none if it cannot.
    pub auto: Option<bool>,
}

/// What a user wants set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightsChange {
    /// By node; others keep theirs.
    Set(BTreeMap<u16, u16>),
    /// The kernel chooses.
    Auto,
    /// What was set once.
    Restore(KernelWeights),
}

impl WeightsChange {
    /// Weights to write, and whether the kernel chooses after that.
    #[must_use]
    pub fn parts(&self) -> (BTreeMap<u16, u16>, bool) {
        match self {
            WeightsChange::Set(weights) => (weights.clone(), false),
            WeightsChange::Auto => (BTreeMap::new(), true),
            WeightsChange::Restore(state) => (state.weights.clone(), state.auto == Some(true)),
        }
    }
}

/// What is set after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// As read back.
    pub now: KernelWeights,
    /// Whether the kernel chose before, and does not take that back: its weights are as they were.
    pub is_auto_refused: bool,
}

/// As the kernel's files are written: a path and a text.
type Writer<'w> = &'w mut dyn FnMut(&Path, &str) -> io::Result<()>;

/// A file that was not written.
struct Refusal {
    path: PathBuf,
    error: io::Error,
}

impl Refusal {
    fn is_no_bandwidth(&self) -> bool {
        self.error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
    }
}

impl KernelWeights {
    /// What is set below `sys`, which stands for `/sys`.
    ///
    /// # Errors
    /// [`KernelWeightsError::Unsupported`], [`KernelWeightsError::Io`],
    /// [`KernelWeightsError::Garbage`].
    pub fn read(sys: &Path) -> Result<KernelWeights, KernelWeightsError> {
        let folder = sys.join(FOLDER);
        let failed = |source| KernelWeightsError::Io { path: folder.clone(), source };
        let mut weights = BTreeMap::new();
        match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            entries => {
                for entry in entries.map_err(failed)? {
                    let entry = entry.map_err(failed)?;
                    if let Some(node) = entry.file_name().to_str().and_then(node_of) {
                        weights.insert(node, parsed(&entry.path(), "a weight, 1 to 255", weight)?);
                    }
                }
            }
        }
        if weights.is_empty() {
            return Err(KernelWeightsError::Unsupported { path: folder });
        }
        let is_true = |text: &str| text.parse::<bool>().ok();
        let auto = auto_file(&folder).map(|path| parsed(&path, "true or false", is_true));
        Ok(KernelWeights { weights, auto: auto.transpose()? })
    }

    /// What [`KernelWeights::saved`] has written into a file.
    ///
    /// # Errors
    /// [`KernelWeightsError::Io`], [`KernelWeightsError::Saved`].
    pub fn load(path: &Path) -> Result<KernelWeights, KernelWeightsError> {
        let path = path.to_owned();
        let mut bytes = Vec::new();
        let read = File::open(&path)
            .and_then(|file| file.take(SAVED_BYTES_MAX + 1).read_to_end(&mut bytes));
        if let Err(source) = read {
            return Err(KernelWeightsError::Io { path, source });
        }
        if bytes.len() as u64 > SAVED_BYTES_MAX {
            let why = format!("it is longer than {SAVED_BYTES_MAX} bytes");
            return Err(KernelWeightsError::Saved { path, why });
        }
        parse(&bytes).map_err(|why| KernelWeightsError::Saved { path, why })
    }

    /// For a file that [`KernelWeights::load`] reads: JSON.
    #[must_use]
    pub fn saved(&self) -> String {
        let weights = self.weights.iter();
        let saved = SavedWeights {
            schema: SCHEMA.to_owned(),
            nodes: weights.map(|(id, weight)| SavedNode { id: *id, weight: *weight }).collect(),
            auto: self.auto,
        };
        let text = serde_json::to_string_pretty(&saved);
        format!("{}\n", text.expect("numbers and words are JSON"))
    }

    /// Whether a change can be made where this is set.
    ///
    /// # Errors
    /// [`KernelWeightsError::NoNode`], [`KernelWeightsError::Weight`],
    /// [`KernelWeightsError::NoAuto`].
    pub fn check(&self, change: &WeightsChange) -> Result<(), KernelWeightsError> {
        let (weights, is_auto) = change.parts();
        for (node, weight) in weights {
            if !self.weights.contains_key(&node) {
                let nodes: Vec<u16> = self.weights.keys().copied().collect();
                return Err(KernelWeightsError::NoNode { node, there: list(&nodes) });
            }
            if !(1..=WEIGHT_MAX).contains(&weight) {
                return Err(KernelWeightsError::Weight { node, weight });
            }
        }
        if is_auto && self.auto.is_none() { Err(KernelWeightsError::NoAuto) } else { Ok(()) }
    }

    /// Makes a change below `sys`, where this is set. All of it is checked before anything is
    /// written, and if the kernel does not take a weight, those before it are put back.
    ///
    /// # Errors
    /// Of [`KernelWeights::check`] and [`KernelWeights::read`]; [`KernelWeightsError::NoBandwidth`]
    /// for [`WeightsChange::Auto`]; [`KernelWeightsError::Write`].
    pub fn change(
        &self,
        sys: &Path,
        change: &WeightsChange,
    ) -> Result<Changed, KernelWeightsError> {
        self.change_by(sys, change, &mut write)
    }

    fn change_by(
        &self,
        sys: &Path,
        change: &WeightsChange,
        write: Writer<'_>,
    ) -> Result<Changed, KernelWeightsError> {
        self.check(change)?;
        let folder = sys.join(FOLDER);
        let (weights, is_auto) = change.parts();
        if is_auto && self.auto == Some(true) {
            // A weight that is written takes the choice away, perhaps for good.
            return Ok(Changed { now: self.clone(), is_auto_refused: false });
        }
        let mut written = Vec::new();
        for (node, weight) in weights {
            if let Err(refusal) = write_weight(&folder, node, weight, write) {
                return Err(self.put_back(&folder, &written, refusal, write));
            }
            written.push(node);
        }
        let refusal = if is_auto { write_auto(&folder, write).err() } else { None };
        let is_auto_refused = refusal.as_ref().is_some_and(Refusal::is_no_bandwidth);
        match refusal {
            Some(_) if is_auto_refused && *change == WeightsChange::Auto => {
                return Err(KernelWeightsError::NoBandwidth);
            }
            Some(refusal) if !is_auto_refused => {
                return Err(self.put_back(&folder, &written, refusal, write));
            }
            _ => {}
        }
        Ok(Changed { now: KernelWeights::read(sys)?, is_auto_refused })
    }

    /// Sets again what was set of `written` nodes.
    fn put_back(
        &self,
        folder: &Path,
        written: &[u16],
        refusal: Refusal,
        write: Writer<'_>,
    ) -> KernelWeightsError {
        let mut failed = None;
        for node in written {
            let back = write_weight(folder, *node, self.weights[node], write);
            failed = failed.or(back.err());
        }
        // Weights that were written took the choice from the kernel.
        let is_auto = self.auto == Some(true) && !written.is_empty();
        let of_auto = if is_auto { write_auto(folder, write).err() } else { None };
        let back = match (failed, of_auto) {
            (Some(Refusal { path, error }), _) => PutBack::Failed { path, error },
            (None, Some(refusal)) if refusal.is_no_bandwidth() => PutBack::WithoutAuto,
            (None, Some(Refusal { path, error })) => PutBack::Failed { path, error },
            (None, None) if written.is_empty() => PutBack::Unchanged,
            (None, None) => PutBack::Done,
        };
        KernelWeightsError::Write { path: refusal.path, source: refusal.error, back }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedWeights {
    schema: String,
    nodes: Vec<SavedNode>,
    auto: Option<bool>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedNode {
    id: u16,
    weight: u16,
}

/// What was saved, or why it is nothing of the kind.
fn parse(bytes: &[u8]) -> Result<KernelWeights, String> {
    let wrong = |error: serde_json::Error| format!("no saved weights: {error}");
    let value: serde_json::Value = serde_json::from_slice(bytes).map_err(wrong)?;
    // Another version's fields are no errors of this one's.
    if value["schema"] != SCHEMA {
        return Err(format!("its schema is {}, not {SCHEMA:?}", value["schema"]));
    }
    let SavedWeights { nodes, auto, .. } = serde_json::from_value(value).map_err(wrong)?;
    let mut weights = BTreeMap::new();
    for SavedNode { id, weight } in nodes {
        if !(1..=WEIGHT_MAX).contains(&weight) || u32::from(id) >= NODES_MAX {
            return Err(format!("node {id} has weight {weight}, which no kernel writes"));
        }
        if weights.insert(id, weight).is_some() {
            return Err(format!("node {id} comes twice"));
        }
    }
    if weights.is_empty() {
        return Err("it has no weights".to_owned());
    }
    Ok(KernelWeights { weights, auto })
}

fn weight(text: &str) -> Option<u16> {
    text.parse::<u16>().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight))
}

/// The node of a file such as `node0`.
fn node_of(name: &str) -> Option<u16> {
    let digits = name.strip_prefix("node")?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse::<u16>().ok().filter(|node| is_number && u32::from(*node) < NODES_MAX)
}

fn auto_file(folder: &Path) -> Option<PathBuf> {
    AUTO_NAMES.iter().map(|name| folder.join(name)).find(|path| path.exists())
}

fn parsed<T>(
    path: &Path,
    expected: &'static str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<T, KernelWeightsError> {
    let path = path.to_owned();
    let mut bytes = Vec::new();
    let opened = File::open(&path).map(|file| file.take(FILE_BYTES_MAX));
    if let Err(source) = opened.and_then(|mut file| file.read_to_end(&mut bytes)) {
        return Err(KernelWeightsError::Io { path, source });
    }
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    read(&text).ok_or(KernelWeightsError::Garbage { path, text, expected })
}

fn write_weight(folder: &Path, node: u16, weight: u16, write: Writer<'_>) -> Result<(), Refusal> {
    let path = folder.join(format!("node{node}"));
    write(&path, &weight.to_string()).map_err(|error| Refusal { path, error })
}

fn write_auto(folder: &Path, write: Writer<'_>) -> Result<(), Refusal> {
    let path = auto_file(folder).unwrap_or_else(|| folder.join(AUTO_NAMES[0]));
    write(&path, "true").map_err(|error| Refusal { path, error })
}

/// At once, as the kernel wants it; a file that is not there is not made.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    file.write_all(format!("{text}\n").as_bytes())
}

#[cfg(test)]
mod tests;
