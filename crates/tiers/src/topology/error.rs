//! What cannot be read of a machine's description, with the file and the way out.

use std::io;
use std::path::PathBuf;

/// A file or folder that does not say what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The folder describes no machine.
    #[error(
        "{} has no folder `devices`: name what stands for /sys, such as /sys itself or a copy with \
         devices/system/node in it",
        path.display()
    )]
    NoSysfs { path: PathBuf },
    /// It is not there, or the system refuses to read it. Retry as a user that may.
    #[error("{}: {source}; it must be there, and this user be allowed to read it", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// It says what no kernel writes. What it describes is taken as unknown.
    #[error(
        "{} says {text:?}, not {expected}: taken as unknown; see whether the kernel wrote it",
        path.display()
    )]
    Garbage { path: PathBuf, text: String, expected: &'static str },
}

impl TopologyError {
    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            TopologyError::NoSysfs { .. } => "usage",
            TopologyError::Io { .. } => "io",
            TopologyError::Garbage { .. } => "bad-file",
        }
    }
}
