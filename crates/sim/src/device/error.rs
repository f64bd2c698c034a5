//! Why a profile cannot be used.

/// Why a profile cannot be used. Do not retry: edit the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file is not TOML.
    #[error("{path}:{line}: {reason}")]
    Syntax { path: String, line: usize, reason: String },
    /// A number that every profile has is not there.
    #[error("{path}:{line}: `{key}` is missing")]
    Missing { path: String, line: usize, key: String },
    /// A key that no profile has.
    #[error("{path}:{line}: `{key}` is not known")]
    Unknown { path: String, line: usize, key: String },
    /// A value that makes no sense.
    #[error("{path}:{line}: {reason}")]
    Invalid {
        path: String,
        line: usize,
        /// What is wrong and what is allowed.
        reason: String,
    },
    /// Neither a profile of the program nor a file.
    #[error("profile `{name}`: {reason}; there are {known}, or the path of a file")]
    NotFound {
        name: String,
        reason: String,
        /// The profiles of the program.
        known: String,
    },
}
