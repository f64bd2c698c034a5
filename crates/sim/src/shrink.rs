//! From a failing seed to the smallest run that fails the same way: fewer operations, no faults or
//! few, fewer racks and clients. In: a configuration, a seed, the run. Out: the configuration to
//! replay, and how many runs it took.
//!
//! A smaller configuration is another run, so nothing says that it fails: each is tried, and kept
//! if the same checker finds something. The seed stays. Source: Zeller & Hildebrandt,
//! "Simplifying and isolating failure-inducing input" (2002), for the faults.

use crate::run::{Config, Failure, Fault, FaultSet, SeedFn, guarded};

/// Runs that one shrinking makes at most.
pub const RUNS_MAX: u32 = 200;

/// The smallest failing run that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk {
    pub seed: u64,
    pub config: Config,
    pub failure: Failure,
    pub runs: u32,
}

/// Shrinks a failing run. `None` if it does not fail: then it is no function of its seed.
pub fn shrink(config: &Config, seed: u64, run: &SeedFn) -> Option<Shrunk> {
    let outcome = guarded(run, config, seed);
    let failure = outcome.failure?;
    let shrunk = Shrunk { seed, config: config.clone(), failure, runs: 1 };
    let mut shrinker = Shrinker { shrunk, run };
    // What a run did until it failed is enough, if the number changes nothing else.
    let enough = u32::try_from(outcome.operations).unwrap_or(u32::MAX).max(1);
    shrinker.try_operations(enough);
    // Each step may make room for another; twice around finds nearly all.
    for _ in 0..2 {
        let before = shrinker.shrunk.config.clone();
        shrinker.operations();
        shrinker.faults();
        shrinker.racks();
        shrinker.clients();
        if shrinker.shrunk.config == before {
            break;
        }
    }
    Some(shrinker.shrunk)
}

struct Shrinker<'a> {
    shrunk: Shrunk,
    run: &'a SeedFn<'a>,
}

impl Shrinker<'_> {
    /// Keeps this configuration if it fails in the same way.
    fn attempt(&mut self, config: Config) -> bool {
        if self.shrunk.runs >= RUNS_MAX || config == self.shrunk.config {
            return false;
        }
        self.shrunk.runs += 1;
        let failure = guarded(self.run, &config, self.shrunk.seed).failure;
        let same = failure.filter(|failure| failure.checker == self.shrunk.failure.checker);
        let Some(failure) = same else { return false };
        (self.shrunk.config, self.shrunk.failure) = (config, failure);
        true
    }

    fn try_operations(&mut self, operations: u32) -> bool {
        let smaller = operations < self.shrunk.config.operations;
        smaller && self.attempt(Config { operations, ..self.shrunk.config.clone() })
    }

    /// The fewest operations, by halves: exact if more operations never hide a failure.
    fn operations(&mut self) {
        let mut passes = 0;
        while self.shrunk.config.operations - passes > 1 {
            let middle = passes + (self.shrunk.config.operations - passes) / 2;
            if !self.try_operations(middle) {
                passes = middle;
            }
        }
    }

    /// The fewest faults: none, one, halves, then one less each time.
    fn faults(&mut self) {
        let with = |config: &Config, faults| Config { faults, ..config.clone() };
        if self.shrunk.config.faults.is_empty()
            || self.attempt(with(&self.shrunk.config, FaultSet::NONE))
        {
            return;
        }
        let one = |fault| FaultSet::NONE.with(fault);
        let all: Vec<Fault> = self.shrunk.config.faults.iter().collect();
        if all.len() == 1 || all.iter().any(|f| self.attempt(with(&self.shrunk.config, one(*f)))) {
            return;
        }
        for size in [8, 4, 2] {
            let kept: Vec<Fault> = self.shrunk.config.faults.iter().collect();
            for part in kept.chunks(size).filter(|part| part.len() < kept.len()) {
                let less = part.iter().fold(self.shrunk.config.faults, |set, f| set.without(*f));
                self.attempt(with(&self.shrunk.config, less));
            }
        }
        for fault in self.shrunk.config.faults.iter().collect::<Vec<_>>() {
            let less = self.shrunk.config.faults.without(fault);
            self.attempt(with(&self.shrunk.config, less));
        }
    }

    fn racks(&mut self) {
        let most = self.shrunk.config.racks.unwrap_or(5);
        let _ = (1..most)
            .any(|racks| self.attempt(Config { racks: Some(racks), ..self.shrunk.config.clone() }));
    }

    fn clients(&mut self) {
        let most = self.shrunk.config.clients.unwrap_or(9);
        let fewer = |clients| clients < most;
        let _ = [1, 2, 3, 4, 6, 8, 12, 16, 32].into_iter().filter(|n| fewer(*n)).any(|clients| {
            self.attempt(Config { clients: Some(clients), ..self.shrunk.config.clone() })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::SeedOutcome;
    use crate::time::Ps;
    use std::cell::Cell;
    use std::sync::Mutex;

    fn outcome(seed: u64, operations: u32, checker: Option<&str>) -> SeedOutcome {
        let failure = checker.map(|checker| Failure {
            checker: checker.into(),
            text: format!("after {operations}"),
            at: Ps::ms(1),
        });
        SeedOutcome { seed, operations: operations.into(), failure, ..SeedOutcome::default() }
    }

    /// Fails at operation 137 if there are three racks, two clients and both of two faults.
    fn picky(config: &Config, seed: u64) -> SeedOutcome {
        let enough = config.racks.unwrap_or(4) >= 3 && config.clients.unwrap_or(6) >= 2;
        let both = config.faults.has(Fault::Pause) && config.faults.has(Fault::CrashMaster);
        if !enough || !both {
            // Another failure is no reason to keep a configuration.
            return outcome(seed, config.operations, Some("other").filter(|_| !both));
        }
        let failed = config.operations >= 137;
        outcome(seed, config.operations.min(137), Some("bytes").filter(|_| failed))
    }

    #[test]
    fn the_smallest_run_that_fails_in_the_same_way_is_found() {
        let shrunk = shrink(&Config::default(), 9, &picky).unwrap();
        assert_eq!(shrunk.failure.checker, "bytes");
        let line = shrunk.config.replay_command(9);
        let expected = "rackpool sim replay 9 --racks 3 --clients 2 --operations 137 \
                        --faults crash-master,pause";
        assert_eq!(line, expected);
        assert!(shrunk.runs < 100, "{} runs", shrunk.runs);
        assert_eq!(picky(&shrunk.config, 9).failure, Some(shrunk.failure));
    }

    #[test]
    fn a_run_that_fails_always_shrinks_to_nothing() {
        let always = |config: &Config, seed| outcome(seed, config.operations, Some("live"));
        let shrunk = shrink(&Config::default(), 1, &always).unwrap();
        let line = shrunk.config.replay_command(1);
        assert_eq!(
            line,
            "rackpool sim replay 1 --racks 1 --clients 1 --operations 1 --faults none"
        );
    }

    #[test]
    fn a_panic_shrinks_like_any_failure_and_a_passing_run_does_not() {
        let panics = |config: &Config, seed| {
            assert!(config.operations < 10, "too many");
            outcome(seed, config.operations, None)
        };
        let shrunk = shrink(&Config::default(), 1, &panics).unwrap();
        assert_eq!((shrunk.config.operations, shrunk.failure.checker.as_str()), (10, "panic"));
        let fine = |config: &Config, seed| outcome(seed, config.operations, None);
        assert_eq!(shrink(&Config::default(), 1, &fine), None);
    }

    #[test]
    fn a_run_that_never_fails_alike_costs_a_bounded_number_of_runs() {
        let runs = Mutex::new(Cell::new(0));
        let fickle = |config: &Config, seed| {
            let runs = runs.lock().unwrap();
            runs.set(runs.get() + 1);
            outcome(seed, config.operations, Some(if runs.get() == 1 { "first" } else { "then" }))
        };
        let shrunk = shrink(&Config::default(), 1, &fickle).unwrap();
        assert_eq!(shrunk.config, Config::default());
        assert!(shrunk.runs <= RUNS_MAX && shrunk.runs == runs.lock().unwrap().get());
    }
}
