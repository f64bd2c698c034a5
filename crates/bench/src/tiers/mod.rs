//! `rackpool bench tiers`, section by section: each adds its rows to one report.

mod allocator;

use crate::report::{Kind, Report};
use crate::run::{BenchError, Progress, Size};

/// Measures.
///
/// # Errors
/// [`BenchError`].
pub fn run(size: Size, progress: &mut dyn FnMut(Progress)) -> Result<Report, BenchError> {
    let mut report = Report::here(Kind::Measured);
    report.extra.insert("size".into(), size.name().into());
    allocator::add(&mut report, size, progress)?;
    Ok(report)
}
