//! `HGETALL` of a large hash: its answer begins with the count of fields, so it has to be of one
//! moment, and it is given in steps, part by part in the order of hashes, while others change the
//! hash. What replaces a part ahead of a stream leaves it the old one, once.
//!
//! If the hash goes meanwhile, its items stay until the stream is at its end; before all that there
//! is goes at once, the stream keeps what it has not given yet.

use super::shape::{PartId, Shape};
use crate::clock::Times;
use std::collections::BTreeMap;

/// Where an answer is; `H` holds on to the memory of a part that was replaced.
#[derive(Debug)]
pub struct FieldStream<H> {
    times: Times,
    /// The first hash that was not given yet.
    at: Option<u64>,
    /// Parts as they were when the stream began, by their first hashes.
    old: BTreeMap<u64, (PartId, H)>,
}

/// What comes next in an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<H> {
    /// This part, which was replaced meanwhile.
    Old(H),
    /// This one, as it is now.
    Part(PartId),
    End,
}

impl<H> FieldStream<H> {
    /// A stream of all that is there now. Nothing may have expired by `times` that is still there
    /// ([`Root::may_have_expired`](super::Root::may_have_expired)): the root's count is announced.
    #[must_use]
    pub fn new(times: Times) -> FieldStream<H> {
        FieldStream { times, at: Some(0), old: BTreeMap::new() }
    }

    /// The moment by which fields have expired.
    #[must_use]
    pub fn times(&self) -> Times {
        self.times
    }

    /// Whether the part, which is to be replaced or to go, has to be kept for it.
    #[must_use]
    pub fn wants(&self, part: PartId) -> bool {
        let first = part.first_hash();
        let before = self.old.range(..=first).next_back();
        let is_kept = before.is_some_and(|(_, (old, _))| old.next_hash().is_none_or(|n| n > first));
        self.at.is_some_and(|at| first >= at) && !is_kept
    }

    /// Holds on to a part that it wants.
    pub fn keep(&mut self, part: PartId, old: H) {
        self.old.insert(part.first_hash(), (part, old));
    }

    /// Parts that it holds on to.
    #[must_use]
    pub fn kept_count(&self) -> usize {
        self.old.len()
    }

    /// The first part from `at` on that it wants, of a hash that has this shape now.
    #[must_use]
    pub fn next_wanted(&self, at: u64, shape: Shape) -> Option<PartId> {
        let mut next = self.at.map(|first| first.max(at));
        while let Some(at) = next {
            let part = shape.part_of(at);
            if self.wants(part) {
                return Some(part);
            }
            next = part.next_hash();
        }
        None
    }

    /// Goes on by a part that it holds on to, if that comes next.
    pub fn next_old(&mut self) -> Option<Next<H>> {
        let Some(at) = self.at else { return Some(Next::End) };
        let (part, old) = self.old.remove(&at)?;
        self.at = part.next_hash();
        Some(Next::Old(old))
    }

    /// Goes on by a part of a hash that has this shape now.
    pub fn next(&mut self, shape: Shape) -> Next<H> {
        if let Some(next) = self.next_old() {
            return next;
        }
        let Some(at) = self.at else { return Next::End };
        let part = shape.part_of(at);
        assert_eq!(part.first_hash(), at, "what was replaced ahead of a stream is kept for it");
        self.at = part.next_hash();
        Next::Part(part)
    }
}
