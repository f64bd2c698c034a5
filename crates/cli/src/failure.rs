//! How a command ends when it does not end well: a stable word for programs, a sentence for
//! people with the way out, and the exit code.
//!
//! Every part of the command line returns [`Failure`]; `main` prints it once, as
//! `error CODE message`, and turns it into the exit code. Source: DESIGN §5.

use rackpool::master::MasterError;
use rackpool_bench::run::BenchError;
use std::fmt;
use std::io;
use std::path::Path;

/// Exit code of a command that failed.
pub const EXIT_FAILED: u8 = 1;
/// Exit code of a command that was used wrongly.
pub const EXIT_USAGE: u8 = 2;

/// The code of a command that lost the reader of its output.
const BROKEN_PIPE: &str = "broken-pipe";

/// Result of a part of the command line.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    code: String,
    message: String,
}

impl Failure {
    /// A failure with a word of its own.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }

    /// The user asked for something that cannot be meant.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new("usage", message)
    }

    /// The system refused something to do with `what`.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::new("io", format!("{what}: {error}"))
    }

    /// The system refused something to do with a file.
    pub fn file(path: &Path, error: &io::Error) -> Self {
        Self::io(path.display(), error)
    }

    /// The system refused to take an answer; that its reader has gone is no failure.
    pub fn output(what: impl fmt::Display, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(BROKEN_PIPE, format!("{what}: {error}")),
            io::ErrorKind::IsADirectory => {
                Self::usage(format!("{what} is a directory, not a file"))
            }
            _ => Self::io(what, error),
        }
    }

    /// Whether it is only that the reader of an answer has gone.
    pub fn is_broken_pipe(&self) -> bool {
        self.code == BROKEN_PIPE
    }

    /// The user asked for an end by SIGINT, SIGTERM or SIGHUP.
    pub fn interrupted() -> Self {
        Self::new("interrupted", "stopped by a signal; everything that was started is gone")
    }

    /// The stable word.
    pub fn code(&self) -> &str {
        &self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same failure with a hint behind it.
    pub fn with_hint(mut self, hint: impl fmt::Display) -> Self {
        self.message = format!("{}; {hint}", self.message);
        self
    }

    /// The exit code that belongs to it.
    pub fn exit_code(&self) -> u8 {
        if self.code == "usage" { EXIT_USAGE } else { EXIT_FAILED }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One failure is one line, whatever an operating system or a peer put into it.
        let message = self.message.replace('\n', " ");
        write!(f, "error {} {}", self.code, message.trim())
    }
}

impl std::error::Error for Failure {}

/// Errors with a stable word of their own.
macro_rules! failures {
    ($($error:ty),+) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::new(error.code(), error.to_string())
            }
        }
    )+};
}

failures!(rackpool::Error, rackpool_core::Error, MasterError, rackpool_table::Error, BenchError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_with_its_code_first() {
        let failure = Failure::new("io", "two\nlines").with_hint("try again");
        assert_eq!(failure.to_string(), "error io two lines; try again");
        assert_eq!(failure.exit_code(), EXIT_FAILED);
    }

    #[test]
    fn wrong_usage_has_an_exit_code_of_its_own() {
        assert_eq!(Failure::usage("no").exit_code(), EXIT_USAGE);
    }

    #[test]
    fn no_line_says_its_code_twice() {
        use rackpool_core::Error;
        let reason = || String::from("a reason");
        for error in [
            Error::Denied { reason: reason() },
            Error::Config { reason: reason() },
            Error::BadRegion { reason: reason() },
            Error::Busy { what: reason(), limit: 1 },
        ] {
            let line = Failure::from(error.clone()).to_string();
            assert!(line.starts_with(&format!("error {} a reason", error.code())), "{line}");
        }
    }

    #[test]
    fn errors_of_the_pool_keep_their_code() {
        let error = rackpool_core::Error::Config { reason: "x".into() };
        assert_eq!(Failure::from(error).code(), "config");
    }
}
