//! What only measures, simulates or reproduces: the simulator, the planner, traces, papers. Built
//! with the feature `lab`; without it `without_lab.rs` stands here and says so. In: a
//! [`LabCommand`], or a benchmark that needs no running racks. Called by `main` and by `bench`.

pub mod args;
mod bench;
mod files;
mod plan;
mod repro;
mod sim;
mod sim_args;
mod trace;
mod trace_args;

use crate::failure::Result;
pub use args::LabCommand;
pub use bench::measure as bench;

pub fn run(command: &LabCommand) -> Result<()> {
    match command {
        LabCommand::Sim(args) => sim::run(args),
        LabCommand::Trace(args) => trace::run(args),
        LabCommand::Calibrate(args) => sim::calibrate(args),
        LabCommand::Repro(args) => repro::run(args),
        LabCommand::Plan(args) => plan::run(args),
        LabCommand::MigrateWorker => bench::serve_migrate(),
        LabCommand::BaselinesWorker => bench::serve_baselines(),
        LabCommand::TieringWorker => bench::serve_tiering(),
    }
}
