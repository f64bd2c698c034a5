//! Fixed seeds under all faults: none fails, and together they meet what the simulator is for.
//! Fresh seeds are run by `cargo xtask sim`.

use rackpool_sim::run::{Config, Fault, FaultSet, Group, sweep};
use rackpool_sim::world::run_seed;
use std::ops::ControlFlow;

const SEEDS: u64 = 40;
fn x() {}
