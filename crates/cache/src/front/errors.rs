//! How many errors of each kind were answered: by the first word of their texts, for `INFO
//! errorstats`.

use crate::constants::{ERROR_KIND_BYTES_MAX, ERROR_KINDS_MAX};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Errors of further kinds than may be counted.
const OTHERS: &str = "ERRORSTATS_OVERFLOW";

#[derive(Debug, Default)]
pub struct ErrorCounts(Mutex<BTreeMap<String, u64>>);

impl ErrorCounts {
    /// Counts an error with this text.
    #[cold]
    pub fn count(&self, text: &[u8]) {
        let end = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
        let kind = String::from_utf8_lossy(&text[..end.min(ERROR_KIND_BYTES_MAX)]);
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !counts.contains_key(&*kind);
        let kind = if is_new && counts.len() >= ERROR_KINDS_MAX { OTHERS.into() } else { kind };
        *counts.entry(kind.into_owned()).or_default() += 1;
    }

    pub fn all(&self) -> BTreeMap<String, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn reset(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_their_first_word_and_kinds_are_bounded() {
        let counts = ErrorCounts::default();
        for text in ["ERR a b", "ERR c", "WRONGTYPE d", "ALONE"] {
            counts.count(text.as_bytes());
        }
        let all: Vec<_> = counts.all().into_iter().collect();
        let expected = [("ALONE", 1), ("ERR", 2), ("WRONGTYPE", 1)];
        assert_eq!(all, expected.map(|(kind, count)| (kind.to_owned(), count)));
        for number in 0..2 * ERROR_KINDS_MAX {
            counts.count(format!("KIND{number} x").as_bytes());
        }
        let all = counts.all();
        assert!(all.len() == ERROR_KINDS_MAX + 1 && all[OTHERS] > 0);
        counts.reset();
        assert!(counts.all().is_empty());
    }
}
