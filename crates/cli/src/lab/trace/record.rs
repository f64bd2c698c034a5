//! `rackpool trace run`: a program under Valgrind's lackey; its lines come through a pipe and are
//! records before the program has ended.

use super::{copy, failed, open_trace};
use crate::args::TraceRunArgs;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output;
use rackpool_rack::trace::{Format, Options, read_stream};
use rustix::io::{FdFlags, fcntl_setfd};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process::{Child, Command};

const MISSING: &str = "valgrind is not installed; install it (apt-get install valgrind), or make a \
    trace without it (rackpool trace kernel), or bring one (rackpool trace convert)";

pub fn run(args: &TraceRunArgs) -> Result<()> {
    let out = open_trace(&args.out)?;
    let pipe = |error: rustix::io::Errno| Failure::io("a pipe", &error.into());
    let (lines, to) = rustix::pipe::pipe().map_err(pipe)?;
    // Only the writing end goes to Valgrind.
    fcntl_setfd(&lines, FdFlags::CLOEXEC).map_err(pipe)?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=lackey", "--trace-mem=yes", "--child-silent-after-fork=yes"]);
    command.arg(format!("--log-fd={}", to.as_raw_fd())).args(&args.program);
    let child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::new("missing", MISSING),
        _ => Failure::io("valgrind", &error),
    })?;
    let mut running = Running(child);
    // Else the pipe would never end.
    drop(to);
    let options = Options {
        format: Some(Format::Lackey),
        node: args.node,
        injection: Some(args.inject),
        ..Options::default()
    };
    let program = args.program[0].to_string_lossy().into_owned();
    let reader = read_stream(&program, Box::new(File::from(lines)), &options).map_err(failed)?;
    let (copied, out) = copy(reader, args.filter.as_ref(), out, args.limit)?;
    let ended = running.end(args.limit.is_some_and(|limit| copied.records >= limit))?;
    // The signal that ended the program was for us as well: this is not all of its trace.
    interrupt::end_if_asked();
    if copied.records == 0 && args.filter.is_none() {
        // A trace without a record is no trace.
        let what = format!("{program}: nothing was recorded, {ended}");
        return Err(Failure::new("trace", what));
    }
    out.commit()?;
    output::print(&format!("{copied}, times by {}, {ended}: {}\n", args.inject, args.out.display()))
}

/// A program that does not outlive its recording.
struct Running(Child);

impl Running {
    /// How it ended; if enough was recorded, it is ended.
    fn end(&mut self, enough: bool) -> Result<String> {
        if enough {
            // It fails if it has ended by itself.
            let _ = self.0.kill();
        }
        let status = self.0.wait().map_err(|error| Failure::io("valgrind", &error))?;
        Ok(if enough { "stopped at the limit".to_owned() } else { status.to_string() })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if it has ended, as it mostly has.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
