//! `rackpool bench tiers`, section by section: each adds its rows to one report.

mod allocator;
mod weights;

use crate::report::{Kind, Report};
use crate::run::{BenchError, Progress, Size};

/// Measures.
///
/// # Errors
/// [`BenchError`].
pub fn run(size: Size, progress: &mut dyn FnMut(Progress)) -> Result<Report, BenchError> {
    let mut report = Report::here(Kind::Measured);
    report.extra.insert("size".into(), size.name().into());
    weights::add(&mut report, size, progress)?;
    allocator::add(&mut report, size, progress)?;
    Ok(report)
}
