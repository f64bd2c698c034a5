//! What atomics answer.

/// What a compare-and-swap did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the word may have had another value"]
pub enum CasOutcome {
    /// The word was as expected and has the new value.
    Swapped,
    /// Nothing was done: the word had this value.
    Found(u64),
}

impl CasOutcome {
    /// Whether the word was as expected and has the new value.
    pub fn is_swapped(self) -> bool {
        self == Self::Swapped
    }
}
