//! Failures as exceptions. The classes are in Python (`rackpool._errors`), where they can be
//! subclasses of Python's own too.

use pyo3::prelude::*;
use rackpool_bindings::{Failure, Status};

fn class_of(status: Status) -> &'static str {
    match status {
        Status::NotFound => "NotFound",
        Status::Lost => "Lost",
        Status::Full => "PoolFull",
        Status::Busy => "Busy",
        Status::Timeout => "Timeout",
        Status::Unreachable => "Unreachable",
        Status::OutcomeUnknown => "OutcomeUnknown",
        Status::Denied => "Denied",
        Status::Invalid | Status::TooSmall => "Invalid",
        _ => "Error",
    }
}

/// The exception for a failure.
pub fn exception(py: Python<'_>, failure: &Failure) -> PyErr {
    let made = py.import("rackpool._errors").and_then(|errors| {
        let class = errors.getattr(class_of(failure.status()))?;
        class.call1((failure.text(), failure.code(), failure.may_retry()))
    });
    made.map_or_else(|error| error, PyErr::from_value)
}

/// As `exception`, of what the binding finds by itself.
pub fn invalid(py: Python<'_>, text: &'static str) -> PyErr {
    exception(py, &Failure::invalid(text))
}
