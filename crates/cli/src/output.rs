//! What commands say besides their answers: log lines and progress on standard error, JSON.
//! Standard output belongs to the answers. Progress shows on a terminal and is silent in a pipe.

use crate::failure::{Failure, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How grave a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// What a person wants to know.
    Info,
    /// What a person should look at.
    Warn,
}

/// Writes one line to standard error: time in UTC, level, who, what.
pub fn log(level: Level, who: &str, what: impl fmt::Display) {
    let level = match level {
        Level::Info => "INFO",
        Level::Warn => "WARN",
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    eprintln!("{}.{:03}Z {level} {who}: {what}", utc(now, 'T'), now.subsec_millis());
}

/// A time since 1970 as date and time of day, UTC.
pub fn utc(since_1970: Duration, separator: char) -> String {
    let seconds = since_1970.as_secs();
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = date(seconds / 86_400);
    format!("{year:04}-{month:02}-{day:02}{separator}{hour:02}:{minute:02}:{second:02}")
}

/// The civil date of a day since 1970, counted in years that begin in March, so that the leap day
/// is the last one.
fn date(days_since_1970: u64) -> (u64, u64, u64) {
    let days = days_since_1970 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// A bar that fills up to `total`; `unit` is `bytes` or the word for what is counted.
pub fn bar(title: &str, total: u64, unit: &str) -> ProgressBar {
    let counted = match unit {
        "bytes" => "{binary_bytes:>11} of {binary_total_bytes:<11} {binary_bytes_per_sec}".into(),
        unit => format!("{{human_pos:>9}} of {{human_len:<9}} {unit}"),
    };
    let template = format!("  {{prefix:<22}} {{bar:32}} {counted}");
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    bar.set_style(style(&template));
    bar.set_prefix(title.to_owned());
    bar
}

/// A bar with rate and time left, for work whose length is said later.
pub fn timed_bar(title: &str, unit: &str) -> ProgressBar {
    let template = format!(
        "  {{prefix:<22}} {{bar:32}} {{human_pos:>11}} of {{human_len}} {unit}, {{per_sec}}, \
         {{eta}} left"
    );
    let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
    bar.set_style(style(&template));
    bar.set_prefix(title.to_owned());
    bar
}

/// A sign of life for work whose length is unknown.
pub fn spinner(title: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(style("  {prefix:<22} {spinner} {elapsed} {msg}"));
    bar.set_prefix(title.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).expect("templates here are well formed");
    style.progress_chars("━╸─")
}

/// A value as a tree of JSON.
pub fn to_json(value: &impl Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(value).map_err(|e| Failure::new("io", format!("JSON: {e}")))
}

/// A value as indented JSON.
pub fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value).map_err(|e| Failure::new("io", format!("JSON: {e}")))
}

/// Writes to standard output.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Failure::io("standard output", &error))
}

/// Writes a file whole or not at all.
pub fn write_file(path: &Path, text: &str) -> Result<()> {
    rackpool_bench::report::write_whole(path, text).map_err(|error| Failure::file(path, &error))
}

/// Fails if a file cannot be made there: better said before the work than after it.
pub fn check_writable(path: &Path) -> Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let refused = rustix::fs::access(directory, rustix::fs::Access::WRITE_OK);
    refused.map_err(|error| Failure::file(directory, &error.into()))?;
    if path.is_dir() {
        let message = format!("{} is a directory, not a file", path.display());
        return Err(Failure::usage(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_164_799, "2024-02-28 23:59:59"),
            (1_735_689_600, "2025-01-01 00:00:00"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(utc(Duration::from_secs(seconds), ' '), text);
        }
    }

    #[test]
    fn templates_are_well_formed() {
        bar("files", 3, "bytes").finish_and_clear();
        bar("files", 3, "files").finish_and_clear();
        spinner("waiting").finish_and_clear();
        timed_bar("simulating", "accesses").finish_and_clear();
    }
}
