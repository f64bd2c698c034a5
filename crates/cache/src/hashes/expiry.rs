//! When fields expire, and on which condition that is changed.
//!
//! An expiry takes 6 bytes beside its field, as in an item's header word: 47 bits of milliseconds
//! and one that says that they are the wall clock's.

use super::text::little;
use crate::clock::Times;
use crate::{Millis, at_wall, wall_of};

pub(super) const EXPIRY_BYTES: usize = 6;
const WALL_BIT: u64 = 1 << 47;

pub(super) fn kept_expiry(expires: Millis) -> [u8; EXPIRY_BYTES] {
    let word = match wall_of(expires) {
        Some(at) => at | WALL_BIT,
        None => expires.min(WALL_BIT - 1),
    };
    let [a, b, c, d, e, f, ..] = word.to_le_bytes();
    [a, b, c, d, e, f]
}

pub(super) fn read_expiry(kept: &[u8]) -> Option<Millis> {
    let word = little(kept.get(..EXPIRY_BYTES)?);
    Some(if word & WALL_BIT != 0 { at_wall(word & !WALL_BIT) } else { word })
}

/// What a new value does to the expiry of its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldExpiry {
    /// It stays; a new field never expires. As `HINCRBY` and `KEEPTTL`.
    Keep,
    /// It is this from now on; 0 = never, as `HSET`.
    Set(Millis),
}

/// On which condition an expiry is changed. A field that never expires counts as one that expires
/// after all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// In any case.
    #[default]
    Always,
    /// The field has none: `NX`.
    IfNone,
    IfSome,
    /// The new one is later: `GT`.
    IfLater,
    /// The new one is earlier: `LT`.
    IfEarlier,
}

impl Condition {
    /// `before` is 0 for never; `after` is not.
    pub(super) fn holds(self, before: Millis, after: Millis, times: Times) -> bool {
        let at = |expires| by_wall(expires, times);
        match self {
            Condition::Always => true,
            Condition::IfNone => before == 0,
            Condition::IfSome => before != 0,
            Condition::IfLater => before != 0 && at(after) > at(before),
            Condition::IfEarlier => before == 0 || at(after) < at(before),
        }
    }
}

/// An expiry by the wall clock: those of two clocks can only be compared by one.
fn by_wall(expires: Millis, times: Times) -> i64 {
    match wall_of(expires) {
        Some(at) => at as i64,
        None => (expires as i64).saturating_sub(times.now as i64).saturating_add(times.wall as i64),
    }
}

/// How the change of an expiry went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// There is no such field.
    NoField,
    /// The condition does not hold.
    NotMet,
    Set,
    /// That time is over: the field is gone.
    Deleted,
}

/// How an expiry was taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persisted {
    /// There is no such field.
    NoField,
    NoExpiry,
    /// It never expires from now on.
    Done,
}
