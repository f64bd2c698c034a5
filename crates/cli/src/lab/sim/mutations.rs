//! `sim mutations`: what `rackpool_bench::sim_runs` finds of each safeguard that is left out, with
//! a bar for each. Only in a build with the feature `mutations`.

use super::{Engine, configure};
use crate::args::SimMutationsArgs;
use crate::failure::{Failure, Result};
use crate::output;
use rackpool_bench::sim_runs::{Seeds, mutations_json, mutations_table, survivors, threads};
use rackpool_core::probe::Mutation;

/// Prints the table; fails if a mutation survives.
pub fn run(engine: &Engine, args: &SimMutationsArgs) -> Result<()> {
    let (config, _) = configure(&args.config)?;
    let json = output::open_if(args.json.as_ref())?;
    let chosen = match args.only()? {
        only if only.is_empty() => {
            Mutation::ALL.into_iter().filter(|one| one.is_simulated()).collect()
        }
        only => only,
    };
    let (first, count, threads) = (args.first_seed, args.seeds, threads(args.threads));
    let seeds = Seeds { config: &config, first, count, threads, run: &engine.run_seed };
    let fate = |mutation: Mutation| {
        let bar = output::bar(mutation.name(), count, "seeds");
        let fate = seeds.fate(mutation, &mut |progress| bar.set_position(progress.done));
        bar.finish_and_clear();
        fate
    };
    let fates: Vec<_> = chosen.into_iter().map(fate).collect();
    if let Some(json) = json {
        json.report(&mutations_json(&fates))?;
    }
    output::print(&mutations_table(&fates))?;
    match &survivors(&fates)[..] {
        [] => Ok(()),
        alive => {
            let message = format!("within {count} seeds survived: {}", alive.join(", "));
            Err(Failure::new("mutation-survived", message))
        }
    }
}
