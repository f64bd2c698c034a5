//! Why a program is not run as wanted, with the way out.

use rackpool_mem::policy::PolicyCall;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Do not retry.
    #[error("`{text}` says no {what}: {example}")]
    Syntax { text: String, what: &'static str, example: &'static str },
    /// Name one weight for each node with memory, or name the nodes.
    #[error(
        "{weights} weights for {nodes} nodes with memory ({list}): name as many, or the nodes \
         themselves, such as 0=3,1=1"
    )]
    Count { weights: usize, nodes: usize, list: String },
    #[error("node {node} has no memory for this process; nodes that have some: {there}")]
    NoNode { node: u16, there: String },
    /// Measure, or name weights.
    #[error(
        "no bandwidth of node {node} is known, neither from a profile nor from the firmware: \
         rackpool tiers measure --store FILE, then --profile FILE; or name weights"
    )]
    NoBandwidth { node: u16 },
    #[error("the kernel cannot place so: {why}; leave out --mechanism kernel, or {way_out}")]
    NoKernel { why: String, way_out: &'static str },
    #[error("{policy} is the kernel's to do: leave out --mechanism preload")]
    NoPreload { policy: String },
    #[error(
        "{call} is refused ({error}): by a seccomp filter, or the kernel has no memory nodes; in a \
         container: docker run --cap-add SYS_NICE, or a seccomp profile that allows it"
    )]
    Refused { call: PolicyCall, error: io::Error },
    /// A library can be preloaded into dynamic programs alone.
    #[error(
        "{path} is linked statically: no library can be preloaded into it; the kernel places it by \
         --interleave, --preferred, --membind, or weights that are equal or that its own table has",
        path = path.display()
    )]
    Static { path: PathBuf },
    #[error(
        "{path}: {why}, so that no library is preloaded into it; the kernel places it by \
         --interleave, --preferred, --membind, or weights that are equal or that its own table has",
        path = path.display()
    )]
    Unsuited { path: PathBuf, why: &'static str },
    #[error("{program}: no such program; name its path, or one that is in PATH")]
    NoProgram { program: String },
    #[error("{path}: {source}", path = path.display())]
    NotRun { path: PathBuf, source: io::Error },
    /// Where the library is kept.
    #[error(
        "{path}: {why}; XDG_CACHE_HOME names the folder in which rackpool keeps its library",
        path = path.display()
    )]
    Cache { path: PathBuf, why: String },
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

impl RunError {
    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            RunError::Syntax { .. } | RunError::Count { .. } => "usage",
            RunError::NoNode { .. } => "no-node",
            RunError::NoBandwidth { .. } => "no-profile",
            RunError::NoKernel { .. } | RunError::NoPreload { .. } => "unsupported",
            RunError::Refused { .. } => "denied",
            RunError::Static { .. } => "static-program",
            RunError::Unsuited { .. } => "unsuited-program",
            RunError::NoProgram { .. } => "no-program",
            RunError::NotRun { .. } => "not-run",
            RunError::Cache { .. } | RunError::Io { .. } => "io",
        }
    }

    /// As shells do: 127 for a program that is not there, or what it is run by, 126 for one that
    /// cannot be run; none for all else.
    pub fn shell_code(&self) -> Option<u8> {
        match self {
            RunError::NoProgram { .. } => Some(127),
            RunError::NotRun { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some(127)
            }
            RunError::NotRun { .. } => Some(126),
            _ => None,
        }
    }
}

pub(super) fn io_error(what: &'static str) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::Io { what, source }
}
