//! What a run is compared with. Each checker is fed what clients called and saw, or what engines
//! hold at the end, and answers with a [`Violation`] in words.
//!
//! | checker | what it knows | when it speaks |
//! |---|---|---|
//! | [`bytes`] | every byte that was acknowledged, and what may still arrive | at each read |
//! | [`words`], [`keys`] with [`linear`] | histories of words and of table keys | at the end |
//! | [`conserve`] | frames, directory, allocations, sessions | when all is quiet |
//! | [`live`] | operations under way | after the last fault |
//!
//! Nothing here knows the engines: checkers are held against docs/semantics.md alone.

pub mod bytes;
pub mod conserve;
pub mod keys;
pub mod linear;
pub mod live;
pub mod words;

use crate::run::Failure;
use crate::time::Ps;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub checker: &'static str,
    /// What was found and what was allowed.
    pub text: String,
    pub at: Ps,
}

impl Violation {
    pub fn new(checker: &'static str, at: Ps, text: impl Into<String>) -> Violation {
        Violation { checker, text: text.into(), at }
    }
}

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Failure {
        let Violation { checker, text, at } = violation;
        Failure { checker: checker.to_owned(), text, at }
    }
}

impl<K: std::fmt::Debug> linear::Found<K> {
    /// The violation that this is. A search that was given up is one too: nothing was proved.
    pub fn violation(&self, checker: &'static str) -> Violation {
        let (at, what) = match self.verdict {
            linear::Verdict::Violation { returned } => {
                (Ps(returned), "no order of its operations explains".to_owned())
            }
            linear::Verdict::GaveUp { configurations, returned } => (
                Ps(returned),
                format!("{configurations} configurations were not enough to explain"),
            ),
            linear::Verdict::Linearizable => (Ps::ZERO, "there is an order that explains".into()),
        };
        let events = self.events.join("; ");
        Violation::new(checker, at, format!("{:x?}: {what} {events}", self.object))
    }
}
