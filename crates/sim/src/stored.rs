//! Seeds that failed once: small files that are kept for ever and run again by the tests, so that
//! what was found and mended stays mended. In: a shrunk failure. Out: a file; from a directory of
//! such files, the configurations to run.

use crate::run::{Config, ConfigError, SeedFn, guarded};
use crate::shrink::Shrunk;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The shape of a stored seed; the number grows when a reader must change.
pub const SCHEMA: &str = "rackpool-sim-seed/1";

/// A seed that failed when it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredSeed {
    pub schema: String,
    pub seed: u64,
    /// The smallest configuration that failed.
    pub config: Config,
    pub checker: String,
    pub found: String,
    /// The revision of the source, or `unknown`.
    pub git_revision: String,
}

/// Why a stored seed cannot be used or failed again. Nothing here is worth a retry.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// Not a stored seed.
    #[error("{path}: not a stored seed: {reason}")]
    Broken { path: PathBuf, reason: String },
    /// The configuration cannot be run.
    #[error("{path}: {source}")]
    Config { path: PathBuf, source: ConfigError },
    #[error("{path}: fails again: {checker}: {text}; replay: {command}")]
    FailedAgain {
        path: PathBuf,
        /// Which checker found it now.
        checker: String,
        text: String,
        /// The command that shows it.
        command: String,
    },
}

impl StoredSeed {
    /// What is to be kept of a failure.
    pub fn new(shrunk: &Shrunk, git_revision: &str) -> StoredSeed {
        StoredSeed {
            schema: SCHEMA.into(),
            seed: shrunk.seed,
            config: Config { mutation: None, trace_lines: 0, ..shrunk.config.clone() },
            checker: shrunk.failure.checker.clone(),
            found: shrunk.failure.text.clone(),
            git_revision: git_revision.into(),
        }
    }

    /// The name of its file: checker and seed.
    pub fn file_name(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let checker: String = self.checker.chars().map(plain).collect();
        format!("{checker}-{:016x}.json", self.seed)
    }

    /// Writes it into `directory`, which is made if it is missing; the file.
    pub fn write(&self, directory: &Path) -> Result<PathBuf, StoredError> {
        let path = directory.join(self.file_name());
        let broken = |e: serde_json::Error| StoredError::Broken {
            path: path.clone(),
            reason: e.to_string(),
        };
        let mut text = serde_json::to_string_pretty(self).map_err(broken)?;
        text.push('\n');
        let written = std::fs::create_dir_all(directory)
            .and_then(|()| rackpool_mem::output::write(&path, text.as_bytes()));
        match written {
            Ok(()) => Ok(path),
            Err(source) => Err(StoredError::Io { path, source }),
        }
    }

    pub fn read(path: &Path) -> Result<StoredSeed, StoredError> {
        let path_of = || path.to_owned();
        let text = std::fs::read_to_string(path)
            .map_err(|source| StoredError::Io { path: path_of(), source })?;
        let broken = |reason: String| StoredError::Broken { path: path_of(), reason };
        let stored: StoredSeed =
            serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
        if stored.schema != SCHEMA {
            return Err(broken(format!("schema `{}`, not `{SCHEMA}`", stored.schema)));
        }
        Ok(stored)
    }

    /// Runs it again: an error if it still fails.
    pub fn replay(&self, path: &Path, run: &SeedFn) -> Result<(), StoredError> {
        let path = path.to_owned();
        if let Err(source) = self.config.check() {
            return Err(StoredError::Config { path, source });
        }
        match guarded(run, &self.config, self.seed).failure {
            None => Ok(()),
            Some(failure) => {
                let command = self.config.replay_command(self.seed);
                let (checker, text) = (failure.checker, failure.text);
                Err(StoredError::FailedAgain { path, checker, text, command })
            }
        }
    }
}

/// The stored seeds of a directory, in the order of their names; a directory that is not there
/// holds none.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>, StoredError> {
    let io = |source| StoredError::Io { path: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io)?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Failure, Fault, FaultSet, SeedOutcome};
    use crate::time::Ps;

    fn stored() -> StoredSeed {
        let failure = Failure { checker: "words".into(), text: "lost".into(), at: Ps::ms(1) };
        let faults = FaultSet::NONE.with(Fault::Pause);
        let config = Config { racks: Some(2), operations: 12, faults, ..Config::default() };
        StoredSeed::new(&Shrunk { seed: 77, config, failure, runs: 5 }, "abc")
    }

    fn directory(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("rackpool-seeds-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_stored_seed_is_read_back_and_run_again() {
        let directory = directory("round");
        assert!(files(&directory).unwrap().is_empty());
        let stored = stored();
        let path = stored.write(&directory).unwrap();
        assert_eq!(path.file_name().unwrap(), "words-000000000000004d.json");
        assert_eq!(files(&directory).unwrap(), vec![path.clone()]);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"faults\": \"pause\""), "{text}");
        let back = StoredSeed::read(&path).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(back, stored);
        let run = |config: &Config, seed: u64| {
            let again = Failure { checker: "bytes".into(), text: "torn".into(), at: Ps::ZERO };
            let failure = config.faults.has(Fault::Pause).then_some(again);
            SeedOutcome { seed, failure, ..SeedOutcome::default() }
        };
        let error = back.replay(&path, &run).unwrap_err().to_string();
        let command = "rackpool sim replay 77 --racks 2 --operations 12 --faults pause";
        assert!(error.contains("fails again: bytes: torn") && error.ends_with(command), "{error}");
        let mut mended = back;
        mended.config.faults = FaultSet::NONE;
        mended.replay(&path, &run).unwrap();
        mended.config.racks = Some(99);
        assert!(matches!(mended.replay(&path, &run), Err(StoredError::Config { .. })));
    }

    #[test]
    fn what_is_no_stored_seed_is_refused() {
        let directory = directory("junk");
        let path = stored().write(&directory).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        for bad in ["{}".into(), good.replace("seed/1", "seed/2"), good.replace("pause", "fire")] {
            std::fs::write(&path, bad).unwrap();
            assert!(matches!(StoredSeed::read(&path), Err(StoredError::Broken { .. })));
        }
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(matches!(StoredSeed::read(&path), Err(StoredError::Io { .. })));
    }
}
