//! Runs by seed: what a run is told ([`Config`]), what it answers ([`SeedOutcome`]), and many of
//! them on all processors ([`sweep`]). The run itself is a function that is handed in: the
//! simulated cluster, or a toy in tests.
//!
//! One thread runs one seed from start to end and results are put together in the order of the
//! seeds, so that nothing depends on the number of threads. A panic inside a run (an assertion of
//! an engine) is a failure of its seed like any other.

mod counts;
mod faults;
mod sweep;

pub use counts::{Counts, Group};
pub use faults::{Fault, FaultError, FaultSet};
pub use sweep::{FAILURES_KEPT_MAX, Progress, SeedFailure, Sweep, guarded, sweep};

use crate::time::Ps;
use rackpool_core::placement::Policy;
use rackpool_core::probe::Mutation;
use serde::{Deserialize, Serialize};

/// Most racks of a run in checking mode.
pub const RACKS_MAX: u32 = 16;
/// Most clients of a run in checking mode.
pub const CLIENTS_MAX: u32 = 64;
/// Most operations that can be asked of one seed.
pub const OPERATIONS_MAX: u32 = 10_000_000;
/// Operations of one seed if nothing else is said.
pub const OPERATIONS_DEFAULT: u32 = 2000;
/// Events that a run may need beside its operations: start, faults, recovery, the last audit.
const EVENTS_BASE_MAX: u64 = 2_000_000;
/// Events that one operation may need, with all its repetitions.
const EVENTS_PER_OPERATION_MAX: u64 = 4_000;
/// Events that a rack may need in a millisecond in which clients only wait: its workers ask their
/// daemon all the while, which were up to 270 events.
const EVENTS_WAITING_PER_MS_MAX: u64 = 1_000;
/// The profile if nothing else is said.
pub const PROFILE_DEFAULT: &str = "rcmp-testbed";
/// The checker's name in the failure of a run that panicked.
pub const PANIC: &str = "panic";

/// What a run is told beside its seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Racks; `None`: two to four, by seed.
    pub racks: Option<u32>,
    /// Clients; `None`: four or more, by seed.
    pub clients: Option<u32>,
    /// Operations that a run does at least, whatever their result.
    pub operations: u32,
    pub faults: FaultSet,
    /// The name of the device profile.
    pub profile: String,
    #[serde(default)]
    pub placement: Policy,
    /// Whether racks have a second host with clients, and only the software keeps its caches
    /// coherent with the daemon's; `None`: in some seeds.
    #[serde(default)]
    pub software_coherent: Option<bool>,
    /// Whether racks have two memories, between which pages move.
    #[serde(default)]
    pub tiers: bool,
    /// Whether racks have a spill file, and half of their memory.
    #[serde(default)]
    pub spill: bool,
    /// The safeguard that the engines leave out; needs the feature `mutations`.
    #[serde(skip)]
    pub mutation: Option<Mutation>,
    /// How many of the last lines of the trace are kept for [`SeedOutcome::trace`].
    #[serde(skip)]
    pub trace_lines: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            racks: None,
            clients: None,
            operations: OPERATIONS_DEFAULT,
            faults: FaultSet::ALL,
            profile: PROFILE_DEFAULT.into(),
            placement: Policy::default(),
            software_coherent: None,
            tiers: false,
            spill: false,
            mutation: None,
            trace_lines: 0,
        }
    }
}

/// A configuration that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A number out of its range.
    #[error("{what}: {value} is outside {low} to {high}")]
    Range { what: &'static str, value: u32, low: u32, high: u32 },
    /// A mutation was asked of a program that holds none.
    #[error("mutation `{0}` needs a build with the feature `mutations`")]
    NoMutations(&'static str),
}

impl Config {
    /// Whether racks have two memories: as told, or for a safeguard that shows only there.
    pub fn has_tiers(&self) -> bool {
        self.tiers || self.mutation.is_some_and(Mutation::is_of_tiers)
    }

    /// Whether racks have a spill file: as told, or for a safeguard that shows only there.
    pub fn has_spill(&self) -> bool {
        self.spill || self.mutation.is_some_and(Mutation::is_of_spill)
    }

    /// Refuses what cannot be run.
    pub fn check(&self) -> Result<(), ConfigError> {
        let ranges = [
            ("racks", self.racks, RACKS_MAX),
            ("clients", self.clients, CLIENTS_MAX),
            ("operations", Some(self.operations), OPERATIONS_MAX),
        ];
        for (what, value, high) in ranges {
            if let Some(value) = value.filter(|value| !(1..=high).contains(value)) {
                return Err(ConfigError::Range { what, value, low: 1, high });
            }
        }
        match self.mutation {
            Some(mutation) if !cfg!(feature = "mutations") => {
                Err(ConfigError::NoMutations(mutation.name()))
            }
            _ => Ok(()),
        }
    }

    /// Events after which a run goes round in circles for sure: some hundred times what its
    /// operations need. The world ends it with a failure of checker `live`, so that a sweep and
    /// its shrinking end, too. A fault that lasts long adds to it ([`events_waiting_max`]).
    pub fn events_max(&self) -> u64 {
        EVENTS_BASE_MAX + EVENTS_PER_OPERATION_MAX * u64::from(self.operations)
    }

    /// The command that runs `seed` again under this configuration; what is left to the seed is
    /// left out.
    pub fn replay_command(&self, seed: u64) -> String {
        let mut line = format!("rackpool sim replay {seed}");
        for (name, value) in [("racks", self.racks), ("clients", self.clients)] {
            if let Some(value) = value {
                line.push_str(&format!(" --{name} {value}"));
            }
        }
        line.push_str(&format!(" --operations {} --faults {}", self.operations, self.faults));
        if self.profile != PROFILE_DEFAULT {
            line.push_str(&format!(" --profile {}", self.profile));
        }
        if self.placement != Policy::default() {
            line.push_str(&format!(" --placement {}", self.placement));
        }
        if let Some(software) = self.software_coherent {
            line.push_str(if software { " --coherence software" } else { " --coherence hardware" });
        }
        if self.tiers {
            line.push_str(" --tiers");
        }
        if self.spill {
            line.push_str(" --spill");
        }
        if let Some(mutation) = self.mutation {
            line.push_str(&format!(" --mutation {}", mutation.name()));
        }
        line
    }
}

/// Events that so many racks may need while clients wait for something that is stopped for so long,
/// beside [`Config::events_max`].
pub fn events_waiting_max(racks: u64, time: Ps) -> u64 {
    EVENTS_WAITING_PER_MS_MAX * racks * time.as_ns().div_ceil(1_000_000)
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The checker that found it: `bytes`, `words`, `keys`, `conserve`, `live`, [`PANIC`] …
    pub checker: String,
    /// What was found, what was allowed.
    pub text: String,
    pub at: Ps,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeedOutcome {
    pub seed: u64,
    /// A hash of everything that happened in the run, in order.
    pub trace_hash: u64,
    pub events: u64,
    pub operations: u64,
    /// How long the run lasted in its own time.
    pub virtual_time: Ps,
    pub counts: Counts,
    /// The first thing that went wrong.
    pub failure: Option<Failure>,
    /// The last lines of the trace, as many as the configuration asked for.
    pub trace: Vec<String>,
}

/// A run: a function of its configuration and its seed, and of nothing else.
pub type SeedFn<'a> = dyn Fn(&Config, u64) -> SeedOutcome + Sync + 'a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_out_of_range_is_refused_with_its_range() {
        let none = Config { racks: Some(0), ..Config::default() };
        let error = none.check().unwrap_err().to_string();
        assert_eq!(error, "racks: 0 is outside 1 to 16");
        let many = Config { clients: Some(65), ..Config::default() };
        assert!(many.check().is_err());
        assert_eq!(Config::default().check(), Ok(()));
    }

    #[test]
    fn only_a_build_for_it_leaves_safeguards_out() {
        let config = Config { mutation: Some(Mutation::OmitBarrier), ..Config::default() };
        assert_eq!(config.check().is_ok(), cfg!(feature = "mutations"));
    }

    #[test]
    fn the_replay_command_says_what_the_seed_does_not() {
        let config = Config { operations: 50, clients: Some(2), ..Config::default() };
        let line = config.replay_command(7);
        assert_eq!(line, "rackpool sim replay 7 --clients 2 --operations 50 --faults all");
    }
}
