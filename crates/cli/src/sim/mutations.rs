//! `sim mutations`: for each safeguard that the engines have, leave it out and count the seeds
//! until a checker speaks. Only in a build with the feature `mutations`.

use super::{Engine, configure, threads};
use crate::args::SimMutationsArgs;
use crate::failure::{Failure, Result};
use crate::output;
use rackpool_bench::report::{Better, Kind, Report, Row, TextTable};
use rackpool_core::probe::Mutation;
use rackpool_sim::run::{Config, Progress, SeedFailure, sweep};
use std::ops::ControlFlow;

/// A mutation and the first seed that caught it.
struct Fate {
    mutation: Mutation,
    /// Seeds that were run, up to the failing one.
    seeds: u64,
    caught: Option<SeedFailure>,
}

/// Prints the table; fails if a mutation survives.
pub fn run(engine: &Engine, args: &SimMutationsArgs) -> Result<()> {
    let (config, _) = configure(&args.config)?;
    if let Some(path) = &args.json {
        output::check_writable(path)?;
    }
    let chosen = match args.only()? {
        only if only.is_empty() => {
            Mutation::ALL.into_iter().filter(|one| one.is_simulated()).collect()
        }
        only => only,
    };
    let threads = threads(args.threads);
    let fates: Vec<Fate> =
        chosen.into_iter().map(|mutation| fate(engine, &config, mutation, args, threads)).collect();
    if let Some(path) = &args.json {
        let written = json(&fates).write(path);
        written.map_err(|error| Failure::new("io", error.to_string()))?;
    }
    output::print(&table(&fates))?;
    let survivors: Vec<&str> = fates
        .iter()
        .filter(|fate| fate.caught.is_none())
        .map(|fate| fate.mutation.name())
        .collect();
    if survivors.is_empty() {
        return Ok(());
    }
    let message = format!("within {} seeds survived: {}", args.seeds, survivors.join(", "));
    Err(Failure::new("mutation-survived", message))
}

/// Runs seeds until one fails. The lowest failing seed is the answer, however many threads run.
fn fate(
    engine: &Engine,
    config: &Config,
    mutation: Mutation,
    args: &SimMutationsArgs,
    threads: usize,
) -> Fate {
    let config = Config { mutation: Some(mutation), ..config.clone() };
    let bar = output::bar(mutation.name(), args.seeds, "seeds");
    let mut progress = |progress: &Progress| {
        bar.set_position(progress.done);
        match progress.failed {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    };
    let swept =
        sweep(&config, args.first_seed, args.seeds, threads, &engine.run_seed, &mut progress);
    bar.finish_and_clear();
    let caught = swept.failures.into_iter().next();
    let needed = |failed: &SeedFailure| failed.seed.wrapping_sub(args.first_seed) + 1;
    Fate { mutation, seeds: caught.as_ref().map_or(swept.seeds, needed), caught }
}

fn table(fates: &[Fate]) -> String {
    let mut table = TextTable::new(&["mutation", "fate", "seeds", "checker", "seed"]);
    for fate in fates {
        let (word, checker, seed) = match &fate.caught {
            Some(failed) => ("caught", failed.failure.checker.clone(), failed.seed.to_string()),
            None => ("SURVIVED", String::new(), String::new()),
        };
        let name = fate.mutation.name().to_owned();
        table.row([name, word.to_owned(), fate.seeds.to_string(), checker, seed]);
    }
    table.show()
}

fn json(fates: &[Fate]) -> Report {
    let mut report = Report::here(Kind::Simulated);
    for fate in fates {
        let name = fate.mutation.name();
        let mut row = Row::new(name, "seeds", Better::Lower, fate.seeds as f64);
        row = row.with("caught", fate.caught.is_some());
        if let Some(failed) = &fate.caught {
            row = row.with("checker", failed.failure.checker.clone());
            row = row.with("seed", failed.seed).with("found", failed.failure.text.clone());
        }
        report.results.push(row);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command, SimCommand};
    use clap::Parser;
    use rackpool_sim::run::SeedOutcome;
    use rackpool_sim::time::Ps;

    fn toy(config: &Config, seed: u64) -> SeedOutcome {
        let caught = config.mutation != Some(Mutation::OmitBarrier) && seed >= 5;
        let failure = rackpool_sim::run::Failure {
            checker: "bytes".into(),
            text: "stale".into(),
            at: Ps::ZERO,
        };
        SeedOutcome { seed, failure: caught.then_some(failure), ..SeedOutcome::default() }
    }

    fn mutations(line: &str) -> Result<()> {
        let cli = Cli::try_parse_from(line.split_whitespace()).expect("a good line");
        let Command::Sim(args) = cli.command else { panic!("not sim") };
        let SimCommand::Mutations(args) = args.command else { panic!("not mutations") };
        let engine = Engine {
            run_seed: toy,
            scale: |_, _, _| Err("no".into()),
            ladder: |_| Err("no".into()),
        };
        run(&engine, &args)
    }

    #[test]
    fn a_mutation_that_survives_is_a_failure_that_names_it() {
        let failure = mutations("rackpool sim mutations --seeds 20 --first-seed 2").unwrap_err();
        let expected = "error mutation-survived within 20 seeds survived: omit-barrier";
        assert_eq!(failure.to_string(), expected);
        mutations("rackpool sim mutations --seeds 20 --only drop-redo").unwrap();
        let wrong = mutations("rackpool sim mutations --seeds 20 --only drop-everything");
        assert_eq!(wrong.unwrap_err().exit_code(), 2);
    }

    #[test]
    fn the_table_says_what_was_needed() {
        let caught = SeedFailure { seed: 9, failure: toy(&Config::default(), 9).failure.unwrap() };
        let fates = [
            Fate { mutation: Mutation::DropRedo, seeds: 4, caught: Some(caught) },
            Fate { mutation: Mutation::OmitBarrier, seeds: 20, caught: None },
        ];
        let text = table(&fates);
        assert!(text.contains("caught") && text.contains("SURVIVED"), "{text}");
        let report = json(&fates);
        assert_eq!(report.results[0].extra["checker"], "bytes");
        assert_eq!(report.results[1].extra["caught"], false);
    }
}
