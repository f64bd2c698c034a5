//! Why a master cannot start or go on. Errors of single calls travel in their answers instead.

use crate::error::{Error, WireError};
use rackpool_core::master::StateError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a master cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MasterError {
    /// The address to listen on is not one. Correct it.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// What was given.
        listen: String,
        /// What the system says.
        source: io::Error,
    },
    /// Every machine on the network could change the pool. Use a loopback address, or a secret.
    #[error(
        "{addr} is reachable from elsewhere, which needs authentication: give all processes of \
         the pool a secret (--secret-file), or use 127.0.0.1"
    )]
    NotLoopback {
        /// What was given.
        addr: SocketAddr,
    },
    /// Another master serves this state. Stop it, or use another directory.
    #[error("{path} is in use by another master: stop it, or use another state directory")]
    Locked {
        /// The state directory.
        path: PathBuf,
    },
    /// The file is damaged, or no master wrote it. Nothing was changed. Restore it from a copy, or
    /// use another directory, which makes a new pool.
    #[error("{path} is not usable as a master's state, and was left as it is: {reason}")]
    BadState {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Another release wrote the file. Nothing was changed. Use that release.
    #[error("{path} has version {found}, this program reads {supported}: use the same release")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u8,
        /// Ours.
        supported: u8,
    },
    /// The state could not be stored, so nothing of the last batch was answered. It is applied
    /// as a whole or not at all at the next start. Make room, then start again.
    #[error("cannot store the state in {path}: {reason}")]
    Storage {
        /// The file.
        path: PathBuf,
        /// What the store says.
        reason: String,
    },
    /// The counters cannot be served where they should. Choose another address.
    #[error("{0}")]
    Metrics(Error),
    /// The system refuses something that a master cannot do without.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system says.
        source: io::Error,
    },
}

impl MasterError {
    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            MasterError::Listen { .. } => "listen",
            MasterError::NotLoopback { .. } => "not-loopback",
            MasterError::Locked { .. } => "locked",
            MasterError::BadState { .. } => "bad-state",
            MasterError::Version { .. } => "version",
            MasterError::Storage { .. } => "storage",
            MasterError::Metrics(error) => error.code(),
            MasterError::System { .. } => "system",
        }
    }

    pub(super) fn state(path: PathBuf, error: StateError) -> Self {
        match error {
            StateError::Version { found, supported } => Self::Version { path, found, supported },
            damaged @ StateError::Damaged { .. } => {
                Self::BadState { path, reason: damaged.to_string() }
            }
        }
    }

    pub(super) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}

impl From<MasterError> for Error {
    fn from(error: MasterError) -> Self {
        let reason = error.to_string();
        match error {
            MasterError::Listen { .. } | MasterError::NotLoopback { .. } => {
                WireError::Config { reason }.into()
            }
            MasterError::Locked { .. } => WireError::Denied { reason }.into(),
            MasterError::Metrics(error) => error,
            _ => WireError::Io { what: "master".into(), reason }.into(),
        }
    }
}
