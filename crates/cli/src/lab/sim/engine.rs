//! What the commands run: the simulated cluster as three functions.

use rackpool_sim::device::Profile;
use rackpool_sim::report::Table;
use rackpool_sim::run::{Config, SeedOutcome};
use rackpool_sim::world::{self, scale};

/// Makes the tables of `sim scale`; tells what it simulates.
type MakeScale = fn(&Profile, &scale::Options, &mut dyn FnMut(&str)) -> Result<Vec<Table>, String>;

/// Where seeds are run and tables are made.
#[derive(Clone, Copy)]
pub struct Engine {
    /// One run in checking mode.
    pub run_seed: fn(&Config, u64) -> SeedOutcome,
    /// The cost of accesses as the cluster grows, on a profile.
    pub scale: MakeScale,
    /// The latency ladder on a profile.
    pub ladder: fn(&Profile) -> Result<Vec<Table>, String>,
}

pub const CLUSTER: Engine = Engine {
    run_seed: rackpool_bench::sim_table::run_seed,
    scale: scale::scale,
    ladder: world::ladder::ladder,
};
