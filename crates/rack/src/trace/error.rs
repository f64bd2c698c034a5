//! What can be wrong with a trace.

use std::io;

/// What is wrong with which record of which file.
#[derive(Debug, thiserror::Error)]
#[error("{file}, {}: {cause}", place(*.record))]
pub struct TraceError {
    /// The file, or what else records came from.
    pub file: String,
    /// The record, from 1: a line of a text, a row of Parquet; 0 if it is the file as a whole.
    pub record: u64,
    pub cause: Cause,
}

fn place(record: u64) -> String {
    match record {
        0 => "as a whole".to_owned(),
        number => format!("record {number}"),
    }
}

/// What is wrong. None of it gets better by trying again, except perhaps [`Cause::Io`].
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The system refused to read or write.
    #[error("{0}")]
    Io(io::Error),
    /// The end came in the midst of something.
    #[error("truncated: {0}")]
    Truncated(String),
    #[error("unsorted: time {at} comes after {before}")]
    Unsorted {
        at: u64,
        /// The time of the one before.
        before: u64,
    },
    /// A number is greater than what it may be.
    #[error("oversized: {what} is {value}, at most {max} is accepted")]
    Oversized { what: &'static str, value: u64, max: u64 },
    /// Only the other byte order gives numbers that mean something.
    #[error("wrong-endian: the numbers are big-endian, little-endian ones are read")]
    WrongEndian,
    /// It is not what the format says.
    #[error("malformed: {0}")]
    Malformed(String),
    /// The format has no times, and it was not said how records are injected.
    #[error(
        "untimed: these records have no times; say how they are injected (gap:TIME, \
         closed:WINDOW{})", if *.instructions { ", cpi:N@CLOCK" } else { "" }
    )]
    Untimed {
        /// Whether the format counts instructions.
        instructions: bool,
    },
    /// Times were to be made of instructions, and none are counted before this record.
    #[error("no instructions are counted here: cpi cannot be used, gap or closed can")]
    NoInstructions,
    /// Nothing says what format it is.
    #[error("the format is not to be told from name and content; say it (--from)")]
    Unknown,
}

impl Cause {
    /// An error of reading: an early end is a truncated file.
    pub(crate) fn reading(error: io::Error) -> Cause {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Cause::Truncated(error.to_string()),
            // What decoders of compressed files say of their content.
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                Cause::Malformed(error.to_string())
            }
            io::ErrorKind::OutOfMemory => Cause::Malformed(error.to_string()),
            _ => Cause::Io(error),
        }
    }

    /// The error of a record of a file.
    pub(crate) fn at(self, file: &str, record: u64) -> TraceError {
        TraceError { file: file.to_owned(), record, cause: self }
    }
}
