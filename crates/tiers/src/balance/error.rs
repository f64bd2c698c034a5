//! Why memory is not balanced as wanted, with the way out.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BalanceError {
    /// Parameters that do not go together. Do not retry.
    #[error("{why}")]
    Parameters { why: String },
    #[error("node {node} has no memory; nodes that have some: {there}")]
    NoNode { node: u16, there: String },
    #[error("all memory is in node {node}: there is no other one to move pages to")]
    OneMemory { node: u16 },
    /// Name them.
    #[error(
        "nodes {nodes} are all alike, by processors or as named: none is left on the other \
         side; name --fast NODES and --slow NODES"
    )]
    NoSides { nodes: String },
    /// One process has one set of hot pages, which goes to one node.
    #[error(
        "nodes {nodes} are fast, and the hot pages of a process go to one node: name it, such as \
         --fast {first}"
    )]
    SeveralFast { nodes: String, first: u16 },
    #[error(
        "the kernel names no memory blocks of node {node}, whose addresses DAMON needs: it lacks \
         CONFIG_MEMORY_HOTPLUG; --pid needs no addresses"
    )]
    NoBlocks { node: u16 },
    #[error("there is no process {pid}, or it has ended")]
    NoProcess { pid: u32 },
    #[error("there is no control group {path}: name it as in /proc/PID/cgroup, such as /app")]
    NoCgroup { path: String },
    #[error(
        "the memory of control group {path} is not accounted by itself: echo +memory > \
         cgroup.subtree_control in the group above it"
    )]
    NoMemoryController { path: String },
    #[error("control group {path} has more than {limit} groups in it: name one below it")]
    ManyCgroups { path: String, limit: usize },
    /// Filters that let pass come with Linux 6.14.
    #[error(
        "control group {path} has groups in it, and this kernel's DAMON takes one at a time: name \
         one without others in it, or use Linux 6.14 or newer"
    )]
    CgroupsWithin { path: String },
    #[error(
        "this kernel has no DAMON at /sys/kernel/mm/damon/admin: it needs CONFIG_DAMON_SYSFS, with \
         CONFIG_DAMON_PADDR (machine, --cgroup) and CONFIG_DAMON_VADDR (--pid), and Linux 6.11 or \
         newer; --kernel-tiering does without"
    )]
    NoDamon,
    #[error(
        "this kernel's DAMON has no operations {operations}, but: {there}; {option} has them; \
         --kernel-tiering does without"
    )]
    NoOperations { operations: &'static str, option: &'static str, there: String },
    #[error(
        "this kernel's DAMON cannot move pages to a node: actions migrate_hot and migrate_cold \
         come with Linux 6.11; --kernel-tiering does without"
    )]
    NoMigrate,
    #[error(
        "this kernel's DAMON cannot move pages of one process: that comes with Linux 6.17; put \
         process {pid} into a control group and use --cgroup"
    )]
    NoProcessMigrate { pid: u32 },
    /// Another program's settings, which are never touched.
    #[error(
        "DAMON is in use by another program, and is left alone: {kdamonds}; end that program (damo \
         stop), or use --kernel-tiering"
    )]
    InUse { kdamonds: String },
    #[error(
        "kernel module {module} is on and has DAMON for itself: echo N > \
         /sys/module/{module}/parameters/enabled, or --kernel-tiering"
    )]
    Module { module: &'static str },
    #[error("the kernel has no {path}: it lacks {option}; balance without --kernel-tiering")]
    NoKernelTiering { path: &'static str, option: &'static str },
    #[error(
        "the kernel has one memory tier: it neither promotes nor demotes between equals; balance \
         without --kernel-tiering, and with --fast NODES and --slow NODES"
    )]
    OneTier,
    /// Retry as a user that may.
    #[error(
        "{path}: {source}; only root may change it, where /sys and /proc can be written (docker \
         run --privileged)"
    )]
    Denied { path: String, source: io::Error },
    /// The kernel lacks the file, or does not take the value.
    #[error("{value} > {path}: {source}; the kernel's log (dmesg) may say more")]
    Refused { path: String, value: String, source: io::Error },
    #[error("{path}: {source}; another program works with DAMON: try again when it has ended")]
    Busy { path: String, source: io::Error },
    #[error("{path} says {text:?}, not {expected}")]
    Garbage { path: String, text: String, expected: &'static str },
    #[error("{path}: {source}")]
    Io { path: String, source: io::Error },
    #[error("another tiers balance runs, process {pid}: end it first")]
    Running { pid: u32 },
    #[error(
        "a tiers balance, process {pid}, was killed before it set back what it had changed: \
         rackpool tiers balance --restore"
    )]
    LeftOver { pid: u32 },
    /// The file in which the settings of before are kept.
    #[error(
        "{path}, which keeps what a tiers balance has to set back: {why}; remove it if there is \
         nothing",
        path = path.display()
    )]
    State { path: PathBuf, why: String },
    #[error(
        "not everything is as it was before: {source}; what it was is kept in {path}: rackpool \
         tiers balance --restore",
        path = path.display()
    )]
    NotRestored { path: PathBuf, source: Box<BalanceError> },
}

impl BalanceError {
    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        use BalanceError::*;
        match self {
            Parameters { .. } | NoSides { .. } | SeveralFast { .. } => "usage",
            NoNode { .. } | OneMemory { .. } => "no-node",
            NoProcess { .. } => "no-process",
            NoCgroup { .. } | NoMemoryController { .. } | ManyCgroups { .. } => "no-cgroup",
            NoBlocks { .. }
            | CgroupsWithin { .. }
            | NoDamon
            | NoOperations { .. }
            | NoMigrate
            | NoProcessMigrate { .. }
            | NoKernelTiering { .. }
            | OneTier
            | Refused { .. } => "unsupported",
            InUse { .. } | Module { .. } | Busy { .. } | Running { .. } => "busy",
            Denied { .. } => "denied",
            Garbage { .. } | State { .. } => "bad-file",
            Io { .. } => "io",
            LeftOver { .. } | NotRestored { .. } => "not-restored",
        }
    }
}

/// What the system said about a file.
pub(super) fn failed(path: &str, source: io::Error) -> BalanceError {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    let path = path.to_owned();
    match source.kind() {
        ResourceBusy => BalanceError::Busy { path, source },
        PermissionDenied | ReadOnlyFilesystem => BalanceError::Denied { path, source },
        _ => BalanceError::Io { path, source },
    }
}
