//! What the commands run: the simulated cluster as three functions.

use rackpool_sim::report::Table;
use rackpool_sim::run::{Config, SeedOutcome};

/// Where seeds are run and tables are made.
#[derive(Clone, Copy)]
pub struct Engine {
    /// One run in checking mode.
    pub run_seed: fn(&Config, u64) -> SeedOutcome,
    /// The cost of accesses as the cluster grows up to so many racks, on a profile.
    pub scale: fn(&str, u32) -> Result<Vec<Table>, String>,
    /// The latency ladder on a profile.
    pub ladder: fn(&str) -> Result<Vec<Table>, String>,
}

/// The simulated cluster.
pub const CLUSTER: Engine = Engine {
    run_seed: rackpool_bench::sim_table::run_seed,
    scale: |_, _| Err("there is no cluster in performance mode in this build".to_owned()),
    ladder: |_| Err("there is no cluster in performance mode in this build".to_owned()),
};
