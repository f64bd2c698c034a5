//! A scenario that goes right, and wrong without any of its safeguards.

use rackpool_core::seam::Mutation;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the scenario with all safeguards, then without each of those named.
pub fn safeguarded(by: &[Mutation], scenario: impl Fn(Option<Mutation>)) {
    scenario(None);
    for mutation in by {
        let fails = catch_unwind(AssertUnwindSafe(|| scenario(Some(*mutation)))).is_err();
        assert!(fails, "{} changes nothing", mutation.name());
    }
}
