//! The words of `rackpool tiers`. Part of [`crate::args`].

use crate::tiers_run::{RUN_EXAMPLES, TiersRunArgs};
use clap::{Args, Subcommand};
use std::path::PathBuf;

pub const TIERS_EXAMPLES: &str = "\
Examples:
  rackpool tiers show
  rackpool tiers show --json nodes.json";

const SHOW_EXAMPLES: &str = "\
Reads what kernel and firmware say; nothing is measured or changed. Speeds are those of the
firmware (HMAT), from the processors that are nearest; 1 MB/s is 10^6 bytes a second. Distances
are to each node in the order of the lines; 10 is near. Of tiers, a lower number is faster.
What the machine does not say is left empty, or null in JSON.
--sysfs reads a copy of /sys, perhaps of another machine; what this process may use is not looked
at then.

Examples:
  rackpool tiers show
  rackpool tiers show --json - | jq '.nodes[] | select(.cpus == [])'
  rackpool tiers show --sysfs ./copy-of-sys";

/// Options of `tiers`.
#[derive(Debug, Args)]
pub struct TiersArgs {
    /// What to do
    #[command(subcommand)]
    pub command: TiersCommand,
}

#[derive(Debug, Subcommand)]
pub enum TiersCommand {
    /// List memory nodes: processors, memory, speeds, devices, and what is kept from this process
    #[command(after_help = SHOW_EXAMPLES)]
    Show(TiersShowArgs),
    /// Run a program with its memory on nodes by weights, or on nodes of your choice
    #[command(after_help = RUN_EXAMPLES)]
    Run(TiersRunArgs),
}

/// Options of `tiers show`.
#[derive(Debug, Args)]
pub struct TiersShowArgs {
    /// What stands for /sys
    #[arg(long, value_name = "DIR", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// Write the nodes as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
