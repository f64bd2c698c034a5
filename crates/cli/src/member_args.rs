//! The commands about racks that come and go, as data.

use crate::values::parse_seconds;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

pub const RACKS_EXAMPLES: &str = "\
States: serving takes new memory; draining takes none, and its pages move to other racks; left has
no pages and is no member any more; lost was given up with `rackpool forget`.

Examples:
  rackpool racks
  rackpool racks --master 127.0.0.1:7400 --json";

pub const DRAIN_EXAMPLES: &str = "\
The rack takes no new memory from then on, and its daemon moves its pages to the other racks while
programs go on using them. When none is left the rack leaves the pool and its daemon ends. A rack
with several daemons is drained as a whole. Pages
stay as long as a living program owns, locks or pins memory in them; the reasons are told. What was
ordered outlives this command and restarts of the daemon and the master.

Examples:
  rackpool drain --rack 2                        waits until the rack has left, with progress
  rackpool drain --rack 2 --timeout 60           fails after a minute and tells what stays
  rackpool drain --rack 2 --no-wait; rackpool racks
  rackpool undrain --rack 2                      the rack serves again";

pub const UNDRAIN_EXAMPLES: &str = "\
The rack takes new memory again and keeps the pages that it still has; those that moved stay where
they are.

Examples:
  rackpool undrain --rack 2";

pub const FORGET_EXAMPLES: &str = "\
DATA LOSS: everything with its home in the rack is given up for good, also if its memory is still
there. For racks that will not come back: their pages answer `lost` at once instead of being waited
for. Refused while the rack's daemon is alive or was a moment ago. To take a living rack out of the
pool with nothing lost, use `rackpool drain`.

Asks for the rack's number before it does so; where there is no terminal to ask at, it needs --yes.

Examples:
  rackpool forget --rack 2
  rackpool forget --rack 2 --yes                 does not ask: for scripts";

/// Where a pool's master is, for commands that look at the pool from outside.
#[derive(Clone, Debug, Default, Args)]
pub struct MasterAt {
    /// Address of the master; several with commas between [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDR")]
    pub master: Option<String>,
    /// File with the pool's secret
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// It is not.
    Off,
    /// It is.
    On,
}

#[derive(Debug, Args)]
pub struct RacksArgs {
    #[command(flatten)]
    pub at: MasterAt,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The rack
    #[arg(long, value_name = "N")]
    pub rack: u16,
    #[command(flatten)]
    pub at: MasterAt,
    /// Wait until the rack has left the pool (the default)
    #[arg(long, conflicts_with = "no_wait")]
    pub wait: bool,
    /// Give the order and return
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait, seconds; the rack goes on draining after it [default: no limit]
    #[arg(long, value_name = "S", value_parser = parse_seconds, conflicts_with = "no_wait")]
    pub timeout: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct UndrainArgs {
    /// The rack
    #[arg(long, value_name = "N")]
    pub rack: u16,
    #[command(flatten)]
    pub at: MasterAt,
}

#[derive(Debug, Args)]
pub struct ForgetArgs {
    /// The rack
    #[arg(long, value_name = "N")]
    pub rack: u16,
    #[command(flatten)]
    pub at: MasterAt,
    /// Do not ask; needed where standard input is no terminal
    #[arg(long)]
    pub yes: bool,
}
