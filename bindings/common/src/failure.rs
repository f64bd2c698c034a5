//! One error for all that a call can answer, with a number, a word and a line of text.

use rackpool::ErrorKind;
use rackpool_table::Error as TableError;

/// A result of a call from another language.
pub type Outcome<T = ()> = Result<T, Failure>;

/// What to do about a failure: the numbers of `rackpool.h`, which never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    Ok = 0,
    NotFound = 1,
    Lost = 2,
    Full = 3,
    Busy = 4,
    Timeout = 5,
    Unreachable = 6,
    OutcomeUnknown = 7,
    Occupied = 8,
    Invalid = 9,
    Denied = 10,
    Corrupt = 11,
    Version = 12,
    Io = 13,
    /// The program broke a rule of the interface; nothing was done.
    Misuse = 14,
    /// The object is of the parent process.
    Forked = 15,
    /// A bug of rackpool; the object cannot be used any more.
    Internal = 16,
    /// What was asked for does not fit into the memory that was given.
    TooSmall = 17,
}

impl Status {
    pub const ALL: [Status; 18] = [
        Status::Ok,
        Status::NotFound,
        Status::Lost,
        Status::Full,
        Status::Busy,
        Status::Timeout,
        Status::Unreachable,
        Status::OutcomeUnknown,
        Status::Occupied,
        Status::Invalid,
        Status::Denied,
        Status::Corrupt,
        Status::Version,
        Status::Io,
        Status::Misuse,
        Status::Forked,
        Status::Internal,
        Status::TooSmall,
    ];

    fn of_kind(kind: ErrorKind) -> Status {
        match kind {
            ErrorKind::NotFound => Status::NotFound,
            ErrorKind::Lost => Status::Lost,
            ErrorKind::Full => Status::Full,
            ErrorKind::Busy => Status::Busy,
            ErrorKind::Timeout => Status::Timeout,
            ErrorKind::Unreachable => Status::Unreachable,
            ErrorKind::OutcomeUnknown => Status::OutcomeUnknown,
            ErrorKind::Occupied => Status::Occupied,
            ErrorKind::Invalid => Status::Invalid,
            ErrorKind::Denied => Status::Denied,
            ErrorKind::Corrupt => Status::Corrupt,
            ErrorKind::Version => Status::Version,
            ErrorKind::Io => Status::Io,
            _ => Status::Internal,
        }
    }

    fn of_table(error: &TableError) -> Status {
        match error {
            TableError::Pool(error) => Status::of_kind(error.kind()),
            TableError::NotFound { .. } => Status::NotFound,
            TableError::Exists { .. } => Status::Occupied,
            TableError::NotATable { is_other: true, .. } | TableError::Corrupt { .. } => {
                Status::Corrupt
            }
            TableError::NotATable { .. } => Status::Version,
            TableError::BucketFull { .. } => Status::Full,
            TableError::Contended { .. } => Status::Busy,
            TableError::OutcomeUnknown { .. } => Status::OutcomeUnknown,
            _ => Status::Invalid,
        }
    }
}

/// Why a call has not done what it should.
#[derive(Debug)]
pub enum Failure {
    Pool(rackpool::Error),
    Table(TableError),
    /// What the binding itself found.
    Own(Status, &'static str),
    /// What a panic said, after a bug.
    Panic(String),
}

impl Failure {
    pub fn misuse(text: &'static str) -> Self {
        Self::Own(Status::Misuse, text)
    }

    pub fn invalid(text: &'static str) -> Self {
        Self::Own(Status::Invalid, text)
    }

    /// A key or name that is not there.
    pub fn absent() -> Self {
        Self::Own(Status::NotFound, "there is nothing under this name")
    }

    pub fn forked() -> Self {
        let text = "it belongs to the parent of this process: after a fork the child opens its own";
        Self::Own(Status::Forked, text)
    }

    /// What a panic of ours carried.
    pub fn of_panic(panic: &(dyn std::any::Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Self::Panic(format!("a bug of rackpool: {}", text.unwrap_or("it panicked")))
    }

    pub fn status(&self) -> Status {
        match self {
            Self::Pool(error) => Status::of_kind(error.kind()),
            Self::Table(error) => Status::of_table(error),
            Self::Own(status, _) => *status,
            Self::Panic(_) => Status::Internal,
        }
    }

    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Pool(error) => error.code(),
            Self::Table(error) => error.code(),
            Self::Own(Status::NotFound, _) => "not-found",
            Self::Own(Status::Occupied, _) => "occupied",
            Self::Own(Status::Busy, _) => "busy",
            Self::Own(Status::Misuse, _) => "misuse",
            Self::Own(Status::Forked, _) => "forked",
            Self::Own(Status::TooSmall, _) => "too-small",
            Self::Own(Status::Invalid, _) => "config",
            Self::Own(..) | Self::Panic(_) => "internal",
        }
    }

    /// Whether the same call may succeed later without anything being changed by the caller.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Pool(error) => error.may_retry(),
            Self::Table(error) => error.may_retry(),
            Self::Own(..) | Self::Panic(_) => false,
        }
    }

    /// One line with numbers, units and the way out.
    pub fn text(&self) -> String {
        match self {
            Self::Pool(error) => error.to_string(),
            Self::Table(error) => error.to_string(),
            Self::Own(_, text) => (*text).into(),
            Self::Panic(text) => text.clone(),
        }
    }
}

impl From<rackpool::Error> for Failure {
    fn from(error: rackpool::Error) -> Self {
        Self::Pool(error)
    }
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_numbered_in_order() {
        let numbers = Status::ALL.map(|status| status as i32);
        assert_eq!(numbers.to_vec(), (0..18).collect::<Vec<i32>>());
    }

    #[test]
    fn a_panic_is_told_with_its_text() {
        let told = |panic: Box<dyn std::any::Any + Send>| Failure::of_panic(&*panic);
        let failure = told(Box::new("out of order"));
        assert_eq!((failure.status(), failure.code()), (Status::Internal, "internal"));
        assert_eq!(failure.text(), "a bug of rackpool: out of order");
        assert_eq!(told(Box::new(7)).text(), "a bug of rackpool: it panicked");
    }
}
