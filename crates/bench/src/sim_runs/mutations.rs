//! For each safeguard that the engines have: leave it out and count the seeds until a checker
//! speaks. Only a build with the simulator's feature `mutations` can leave one out.

use super::Seeds;
use crate::report::{Better, Kind, Report, Row};
use rackpool_core::probe::Mutation;
use rackpool_sim::run::{Config, Progress, SeedFailure, sweep};
use rackpool_stats::table::TextTable;
use std::ops::ControlFlow;

/// A mutation and the first seed that caught it.
pub struct Fate {
    pub mutation: Mutation,
    /// Seeds that were run, up to the failing one.
    pub seeds: u64,
    /// The seed that failed; `None` if it survived.
    pub caught: Option<SeedFailure>,
}

impl Seeds<'_> {
    /// Runs them with a mutation until one fails. The lowest failing seed is the answer, however
    /// many threads run. `told` is called after each seed.
    pub fn fate(&self, mutation: Mutation, told: &mut dyn FnMut(&Progress)) -> Fate {
        let config = Config { mutation: Some(mutation), ..self.config.clone() };
        let mut progress = |progress: &Progress| {
            told(progress);
            match progress.failed {
                0 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        };
        let swept = sweep(&config, self.first, self.count, self.threads, self.run, &mut progress);
        let caught = swept.failures.into_iter().next();
        let needed = |failed: &SeedFailure| failed.seed.wrapping_sub(self.first) + 1;
        Fate { mutation, seeds: caught.as_ref().map_or(swept.seeds, needed), caught }
    }
}

/// The names of those that no seed noticed.
pub fn survivors(fates: &[Fate]) -> Vec<&'static str> {
    fates.iter().filter(|fate| fate.caught.is_none()).map(|fate| fate.mutation.name()).collect()
}

pub fn table(fates: &[Fate]) -> String {
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

pub fn json(fates: &[Fate]) -> Report {
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
    use rackpool_sim::run::{Failure, SeedOutcome};
    use rackpool_sim::time::Ps;

    fn toy(config: &Config, seed: u64) -> SeedOutcome {
        let is_caught = config.mutation != Some(Mutation::OmitBarrier) && seed >= 5;
        let failure = Failure { checker: "bytes".into(), text: "stale".into(), at: Ps::ZERO };
        SeedOutcome { seed, failure: is_caught.then_some(failure), ..SeedOutcome::default() }
    }

    #[test]
    fn fates_say_what_was_needed_and_what_survived() {
        let config = Config::default();
        let seeds = Seeds { config: &config, first: 2, count: 20, threads: 3, run: &toy };
        let fate = |mutation| seeds.fate(mutation, &mut |_| ());
        let fates = [fate(Mutation::DropRedo), fate(Mutation::OmitBarrier)];
        assert_eq!((fates[0].seeds, fates[1].seeds), (4, 20));
        assert_eq!(survivors(&fates), ["omit-barrier"]);
        let text = table(&fates);
        assert!(text.contains("caught") && text.contains("SURVIVED"), "{text}");
        let report = json(&fates);
        assert_eq!(
            (&report.results[0].extra["checker"], &report.results[0].extra["seed"]),
            (&"bytes".into(), &5.into())
        );
        assert_eq!(report.results[1].extra["caught"], false);
    }
}
