//! `rackpool sim`: runs by seed, one of them again, and the tables of the simulated cluster. The
//! runs are in `rackpool-sim` and, in bulk, `rackpool_bench::sim_runs`; here is what is asked of
//! them and how their answers are shown.
//! Everything is a function of [`Engine`], so that tests put a toy in the cluster's place.

mod calibrate;
mod engine;
#[cfg(feature = "mutations")]
mod mutations;
mod page;
mod rack;
mod speed;
mod sweep;
mod tables;

use crate::args::{SimArgs, SimCommand, SimConfigArgs};
use crate::failure::{Failure, Result};
pub use calibrate::run as calibrate;
pub use engine::Engine;
pub use page::section as section_of;
pub use rack::Meter;
pub use rackpool_bench::sim_runs::threads;
use rackpool_bench::sim_runs::{calibration, show};
use rackpool_sim::device::Profile;
use rackpool_sim::report::Table;
use rackpool_sim::run::Config;
pub use speed::run as speed;
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs one of the commands on the simulated cluster.
pub fn run(args: &SimArgs) -> Result<()> {
    run_on(&engine::CLUSTER, args)
}

fn run_on(engine: &Engine, args: &SimArgs) -> Result<()> {
    match &args.command {
        SimCommand::Run(args) => sweep::run(engine, args),
        SimCommand::Replay(args) => sweep::replay(engine, args),
        SimCommand::Scale(args) => tables::scale(engine, args),
        SimCommand::Rack(args) => rack::run(args),
        SimCommand::Ladder(args) => tables::ladder(engine, args),
        #[cfg(feature = "mutations")]
        SimCommand::Mutations(args) => mutations::run(engine, args),
    }
}

/// The configuration that the words ask for, and its profile.
fn configure(args: &SimConfigArgs) -> Result<(Config, Profile)> {
    let profile = profile(&args.profile)?;
    let config = Config {
        racks: args.racks,
        clients: args.clients,
        operations: args.operations,
        faults: args.faults,
        profile: args.profile.clone(),
        placement: args.placement,
        software_coherent: args.coherence.as_deref().map(|keeper| keeper == "software"),
        tiers: args.tiers,
        spill: args.spill,
        ..Config::default()
    };
    config.check().map_err(|error| Failure::usage(error.to_string()))?;
    Ok((config, profile))
}

fn profile(name: &str) -> Result<Profile> {
    Profile::load(name).map_err(|error| Failure::usage(error.to_string()))
}

pub fn text_of(table: &Table) -> String {
    show::table(table)
}

/// Tables as a page for people.
pub fn page_of(title: &str, tables: &[Table], profile: &Profile, seconds: f64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let finished_at = format!("{} UTC", crate::output::utc(now, ' '));
    let page = page::of_tables(title, tables, profile, finished_at, seconds);
    rackpool_bench::html::render(&page)
}
