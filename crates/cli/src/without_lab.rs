//! The commands of the feature `lab` in a program that is built without it: each is refused at once
//! as wrong usage, with the build that has it. Stands in the place of `lab`.

use crate::args::BenchArgs;
use crate::failure::{Failure, Result};
use clap::{Args, Subcommand};
use rackpool_bench::report::Report;
use std::ffi::OsString;

pub use UnavailableCommand as LabCommand;

/// The commands, each refused.
#[derive(Debug, Subcommand)]
pub enum UnavailableCommand {
    /// Not in this build: the engines in virtual time (build with --features lab)
    #[command(after_help = BUILD)]
    Sim(Words),
    /// Not in this build: traces of memory accesses (build with --features lab)
    #[command(after_help = BUILD)]
    Trace(Words),
    /// Not in this build: this machine as a device profile (build with --features lab)
    #[command(after_help = BUILD)]
    Calibrate(Words),
    /// Not in this build: the evaluations of papers (build with --features lab)
    #[command(after_help = BUILD)]
    Repro(Words),
    /// Not in this build: what memory to buy (build with --features lab)
    #[command(after_help = BUILD)]
    Plan(Words),
}

const BUILD: &str = "\
Build the program that has it:
  cargo build --release --features lab";

/// What follows the command.
#[derive(Debug, Args)]
pub struct Words {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub fn run(command: &UnavailableCommand) -> Result<()> {
    let (name, Words { .. }) = match command {
        UnavailableCommand::Sim(words) => ("sim", words),
        UnavailableCommand::Trace(words) => ("trace", words),
        UnavailableCommand::Calibrate(words) => ("calibrate", words),
        UnavailableCommand::Repro(words) => ("repro", words),
        UnavailableCommand::Plan(words) => ("plan", words),
    };
    Err(missing(name))
}

/// A benchmark that needs no running racks.
pub fn bench(args: &BenchArgs) -> Result<Report> {
    let name = format!("{:?}", args.name).to_lowercase();
    Err(missing(&format!("bench {name}")))
}

fn missing(command: &str) -> Failure {
    let way_out = "build one that has: cargo build --release --features lab";
    Failure::usage(format!("this program has no `rackpool {command}`; {way_out}"))
}

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
