//! `rackpool trace`: traces of memory accesses are recorded, converted, counted and made. The
//! formats are in `rackpool-rack`; here is what is asked of them and how the answer is shown.

mod record;

use crate::args::{
    TraceArgs, TraceCommand, TraceConvertArgs, TraceKernelArgs, TracePackingArgs, TraceReadArgs,
    TraceStatArgs,
};
use crate::failure::{Failure, Result};
use crate::output::{self, Output};
use indicatif::ProgressBar;
use rackpool_rack::trace::filter::{Config, Counts, Filter};
use rackpool_rack::trace::packing::fixture;
use rackpool_rack::trace::{Cause, FileType, Header, Options, Reader, Record, TraceInjection};
use rackpool_rack::trace::{TraceError, Writer};
use rackpool_rack::trace::{kernel, open, stat, writer};
use std::fmt;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::Path;

/// Runs one of the commands.
pub fn run(args: &TraceArgs) -> Result<()> {
    match &args.command {
        TraceCommand::Run(args) => record::run(args),
        TraceCommand::Convert(args) => convert(args),
        TraceCommand::Stat(args) => count(args),
        TraceCommand::Kernel(args) => compute(args),
        TraceCommand::Packing(args) => packing(args),
    }
}

fn failed(error: TraceError) -> Failure {
    if let Cause::Io(cause) = &error.cause
        && cause.kind() == ErrorKind::BrokenPipe
    {
        return Failure::output(&error, cause);
    }
    let code = match error.cause {
        Cause::Io(_) => "io",
        Cause::Untimed { .. } | Cause::NoInstructions | Cause::Unknown => "usage",
        _ => "trace",
    };
    Failure::new(code, error.to_string())
}

fn options(args: &TraceReadArgs) -> Options {
    let TraceReadArgs { from, inject, clock, node } = *args;
    Options { format: from, node, hz: clock, injection: inject, ..Options::default() }
}

/// Opens where a trace goes, if its name says what it becomes.
fn open_trace(path: &Path) -> Result<Output> {
    FileType::of(path).map_err(Failure::usage)?;
    output::open(path)
}

fn convert(args: &TraceConvertArgs) -> Result<()> {
    let to = open_trace(&args.output)?;
    let reader = open(&args.input, &options(&args.read)).map_err(failed)?;
    let (copied, to) = copy(reader, args.filter.as_ref(), to, args.limit)?;
    to.commit()?;
    output::print(&format!("{copied}: {}\n", args.output.display()))
}

struct Copied {
    records: u64,
    /// What caches saw of it, if there were some.
    counts: Option<Counts>,
    /// Lines of other programs in the input.
    other_lines: u64,
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} records", self.records)?;
        if let Some(counts) = self.counts {
            write!(f, " of {} accesses", counts.accesses)?;
        }
        match self.other_lines {
            0 => Ok(()),
            lines => write!(f, ", {lines} lines of other text left out"),
        }
    }
}

/// Copies a stream into a file, through caches if there are some; the caller commits it.
fn copy(
    reader: Box<dyn Reader + Send>,
    caches: Option<&Config>,
    to: Output,
    limit: Option<u64>,
) -> Result<(Copied, Output)> {
    let Some(caches) = caches else {
        let mut reader = reader;
        let (records, to) = write(&mut reader, to, limit)?;
        let other_lines = reader.other_lines();
        return Ok((Copied { records, counts: None, other_lines }, to));
    };
    let mut filter = Filter::new(reader, caches).map_err(Failure::usage)?;
    let (records, to) = write(&mut filter, to, limit)?;
    let (counts, other_lines) = (Some(filter.counts()), filter.other_lines());
    Ok((Copied { records, counts, other_lines }, to))
}

fn write(reader: &mut dyn Reader, to: Output, limit: Option<u64>) -> Result<(u64, Output)> {
    let mut target = Target::new(to, reader.header())?;
    while limit.is_none_or(|limit| target.records < limit) {
        match reader.next().map_err(failed)? {
            Some(record) => target.write(&record)?,
            None => break,
        }
    }
    target.finish()
}

/// Records on their way into a file, and a sign of life.
struct Target {
    writer: Box<dyn Writer>,
    to: Output,
    records: u64,
    bar: ProgressBar,
}

impl Target {
    fn new(mut to: Output, header: &Header) -> Result<Target> {
        let file_type = FileType::of(to.path()).map_err(Failure::usage)?;
        let (name, file) = (to.path().display().to_string(), to.writer()?);
        let writer = writer(name, file, file_type, header).map_err(failed)?;
        Ok(Target { writer, to, records: 0, bar: output::spinner("records") })
    }

    fn write(&mut self, record: &Record) -> Result<()> {
        self.records += 1;
        if self.records.is_multiple_of(1_000_000) {
            self.bar.set_message(format!("{} million", self.records / 1_000_000));
        }
        self.writer.write(record).map_err(failed)
    }

    /// Ends the file; the caller commits it.
    fn finish(self) -> Result<(u64, Output)> {
        self.writer.finish().map_err(failed)?;
        self.bar.finish_and_clear();
        Ok((self.records, self.to))
    }
}

fn count(args: &TraceStatArgs) -> Result<()> {
    let mut options = options(&args.read);
    // What is counted does not depend on times.
    let untimed = options.injection.is_none();
    options.injection = options.injection.or(Some(TraceInjection::Closed { window: 1 }));
    let mut reader = open(&args.file, &options).map_err(failed)?;
    let injection = reader.header().injection;
    let closed = matches!(injection, Some(TraceInjection::Closed { .. }));
    let bar = output::spinner("records");
    let progress = |records| bar.set_message(format!("{} million", records / 1_000_000));
    let stat = stat(&mut *reader, progress);
    bar.finish_and_clear();
    let (stat, other_lines) = (stat.map_err(failed)?, reader.other_lines());
    let injected = match injection {
        Some(_) if closed && untimed => "none: the records have no times".to_owned(),
        Some(injection) => injection.to_string(),
        None => "as recorded".to_owned(),
    };
    if args.json {
        let json = serde_json::json!({
            "records": stat.records, "reads": stat.reads, "writes": stat.writes,
            "bytes": stat.bytes, "footprint_bytes": stat.footprint_bytes(),
            "footprint_is_more": stat.pages_are_more, "begin_ns": stat.begin_ns,
            "end_ns": stat.end_ns, "span_ns": stat.span_ns(), "times": injected,
            "nodes": stat.nodes, "processes": stat.processes, "threads": stat.threads,
            "other_lines": other_lines,
        });
        return output::print(&format!("{}\n", output::json(&json)?));
    }
    let other = match other_lines {
        0 => String::new(),
        lines => format!("left out   {lines} lines of other text\n"),
    };
    let more = if stat.pages_are_more { " at least" } else { "" };
    output::print(&format!(
        "records    {}\nreads      {}\nwrites     {}\nbytes      {}\nfootprint  {} bytes{more} \
         ({} pages of 4 KiB)\ntime span  {} ns, from {} to {}\ntimes      {injected}\n\
         sources    {} nodes, {} processes, {} threads\n{other}",
        stat.records,
        stat.reads,
        stat.writes,
        stat.bytes,
        stat.footprint_bytes(),
        stat.pages,
        stat.span_ns(),
        stat.begin_ns,
        stat.end_ns,
        stat.nodes,
        stat.processes,
        stat.threads,
    ))
}

fn compute(args: &TraceKernelArgs) -> Result<()> {
    let to = open_trace(&args.out)?;
    let here = || std::thread::available_parallelism().map_or(1, usize::from);
    let config = kernel::Config {
        threads: args.threads,
        steps: args.steps,
        node: args.node,
        caches: (!args.no_filter).then(|| Config { cores: args.threads.max(1), ..args.filter }),
        workers: args.workers.unwrap_or_else(here),
        seed: args.seed,
        ..kernel::Config::new(args.name, args.footprint)
    };
    config.check().map_err(Failure::usage)?;
    let mut target = Target::new(to, &config.header())?;
    let mut outcome = Ok(());
    let summary = kernel::run(&config, &mut |record| {
        outcome = target.write(&record);
        let enough = args.limit.is_some_and(|limit| target.records >= limit);
        if outcome.is_err() || enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    outcome?;
    let summary = summary.map_err(Failure::usage)?;
    let (records, to) = target.finish()?;
    to.commit()?;
    let Counts { accesses, memory_reads, memory_writes, .. } = summary.counts;
    let caches = match config.caches {
        Some(_) => format!(
            " of {accesses} accesses ({memory_reads} lines read, {memory_writes} written back)"
        ),
        None => String::new(),
    };
    output::print(&format!(
        "{records} records{caches}; arrays of {} bytes{}: {}\n",
        summary.footprint_bytes,
        if summary.stopped { ", stopped at the limit" } else { "" },
        args.out.display()
    ))
}

fn packing(args: &TracePackingArgs) -> Result<()> {
    output::directory(&args.out)?;
    let vm = output::open(&args.out.join("vm.csv"))?;
    let vm_type = output::open(&args.out.join("vmType.csv"))?;
    let made = fixture(args.stranding, args.machines, f64::from(args.days), args.seed);
    vm.write(made.vm_csv())?;
    vm_type.write(made.type_csv())?;
    let (vms, types) = (made.vms.len(), made.types.len());
    output::print(&format!("{vms} virtual machines of {types} types: {}\n", args.out.display()))
}
