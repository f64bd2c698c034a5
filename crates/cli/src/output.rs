//! What commands say and write: answers on standard output, files that the user asked for, log
//! lines and progress on standard error. If a file is standard output (`--json -`), that is the
//! only thing there, and what would be said goes to standard error. Progress shows on a terminal
//! and is silent in a pipe.

use crate::failure::{Failure, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rackpool_bench::report::Report;
use rackpool_mem::output::OutputFile;
pub use rackpool_stats::time::utc;
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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

/// A bar with rate and time left, for work with a length that is set later.
#[cfg(feature = "lab")]
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

/// A sign of life for work of unknown length.
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

/// Whether a file that the user asked for is standard output.
static STDOUT_IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Says an answer. That its reader has gone ends nothing: the work is done all the same.
pub fn print(text: &str) -> Result<()> {
    // Relaxed: set before the work, by the same thread.
    let written = match STDOUT_IS_TAKEN.load(Ordering::Relaxed) {
        true => write_to(io::stderr().lock(), text),
        false => write_to(io::stdout().lock(), text),
    };
    match written.map_err(|error| Failure::output("standard output", &error)) {
        Err(failure) if failure.is_broken_pipe() => Ok(()),
        written => written,
    }
}

/// Says something to a person, on standard error. It may have no reader.
pub fn say(text: &str) {
    let _ = write_to(io::stderr().lock(), &format!("{text}\n"));
}

fn write_to(mut out: impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// A file that the user asked for. It is as it was before until it is written.
pub struct Output {
    file: OutputFile,
    path: PathBuf,
}

/// Opens a file that the user asked for, before the work: what cannot be written is said at once.
pub fn open(path: &Path) -> Result<Output> {
    let file = OutputFile::open(path).map_err(|error| Failure::output(path.display(), &error))?;
    if file.is_stdout() {
        // Relaxed: read by the same thread, after the work.
        STDOUT_IS_TAKEN.store(true, Ordering::Relaxed);
    }
    Ok(Output { file, path: path.to_owned() })
}

/// As [`open`], if a file was asked for.
pub fn open_if(path: Option<&PathBuf>) -> Result<Option<Output>> {
    path.map(|path| open(path)).transpose()
}

/// A directory that the user asked for, made if it is missing.
#[cfg(feature = "lab")]
pub fn directory(path: &Path) -> Result<()> {
    if path == Path::new("-") {
        return Err(Failure::usage("- is standard output, and a directory is needed here"));
    }
    std::fs::create_dir_all(path).map_err(|error| Failure::file(path, &error))
}

impl Output {
    /// What the user called it.
    #[cfg(feature = "lab")]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is standard output.
    pub fn is_stdout(&self) -> bool {
        self.file.is_stdout()
    }

    /// Where to write what is long; [`Output::commit`] follows.
    pub fn writer(&mut self) -> Result<Box<dyn Write + Send>> {
        self.file.writer().map_err(|error| Failure::output(self.path.display(), &error))
    }

    /// Makes what was written the file.
    pub fn commit(self) -> Result<()> {
        let Output { file, path } = self;
        file.commit().map_err(|error| Failure::output(path.display(), &error))
    }

    pub fn write(self, bytes: impl AsRef<[u8]>) -> Result<()> {
        let Output { file, path } = self;
        let written = file.write(bytes.as_ref());
        written.map_err(|error| Failure::output(path.display(), &error))
    }

    /// Writes a report as JSON.
    pub fn report(self, report: &Report) -> Result<()> {
        let json = report.to_json();
        self.write(json.map_err(|error| Failure::new("io", error.to_string()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_well_formed() {
        bar("files", 3, "bytes").finish_and_clear();
        bar("files", 3, "files").finish_and_clear();
        spinner("waiting").finish_and_clear();
        #[cfg(feature = "lab")]
        timed_bar("simulating", "accesses").finish_and_clear();
    }
}
