//! The faults that a run may have, one by one or as a set on a command line.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Declares the faults with their names.
macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Something that goes wrong, each with its own probability.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Fault { $($(#[$doc])* $variant,)* }

        impl Fault {
            /// All of them, in the order of their numbers.
            pub const ALL: [Fault; [$($name),*].len()] = [$(Fault::$variant),*];

            /// The name on command lines and in reports.
            pub const fn name(self) -> &'static str {
                match self { $(Fault::$variant => $name,)* }
            }
        }
    };
}

faults! {
    /// A client ends at any step.
    CrashClient = "crash-client",
    /// A daemon ends at any step and is started again.
    CrashDaemon = "crash-daemon",
    /// The master ends at any step and is started again.
    CrashMaster = "crash-master",
    /// A rack loses power: its processes end and its memory is gone.
    PowerLoss = "power-loss",
    /// Two hosts do not reach each other for a while.
    Partition = "partition",
    /// One direction between two hosts loses everything for a while.
    OneWayLoss = "one-way-loss",
    /// Packets come late.
    Delay = "delay",
    /// Packets come twice, where the transport permits.
    Duplicate = "duplicate",
    /// Packets overtake one another, where the transport permits.
    Reorder = "reorder",
    /// A host's processors are slow.
    SlowNode = "slow-node",
    /// What is longer than 8 bytes is written in part when its writer ends.
    TornWrite = "torn-write",
    /// A process or a host stops for any length of time and goes on.
    Pause = "pause",
    /// Clocks differ and drift.
    ClockSkew = "clock-skew",
    /// A host gives no more memory.
    FullMemory = "full-memory",
    /// A region cannot be registered with the fabric.
    FailedRegistration = "failed-registration",
    /// Engines take branches that they seldom take.
    RareBranches = "rare-branches",
    /// A rack is drained: it leaves and joins again with a new region, or is to stay.
    Drain = "drain",
    /// A bit of a rack's metadata flips.
    Flip = "flip",
}

const _: () = assert!(Fault::ALL.len() <= 32);

/// Which faults a run may have. On a command line: `all`, `none`, or names with commas between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FaultSet(u32);

/// A list of faults that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no fault; there are all, none and {}", names())]
pub struct FaultError {
    found: String,
}

fn names() -> String {
    Fault::ALL.map(Fault::name).join(", ")
}

impl FaultSet {
    pub const NONE: FaultSet = FaultSet(0);
    pub const ALL: FaultSet = FaultSet(((1u64 << Fault::ALL.len()) - 1) as u32);

    pub const fn has(self, fault: Fault) -> bool {
        self.0 >> fault as u32 & 1 == 1
    }

    #[must_use]
    pub const fn with(self, fault: Fault) -> FaultSet {
        FaultSet(self.0 | 1 << fault as u32)
    }

    /// This set but for `fault`.
    #[must_use]
    pub const fn without(self, fault: Fault) -> FaultSet {
        FaultSet(self.0 & !(1 << fault as u32))
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Those that may happen, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.into_iter().filter(move |fault| self.has(*fault))
    }
}

impl FromIterator<Fault> for FaultSet {
    fn from_iter<I: IntoIterator<Item = Fault>>(faults: I) -> FaultSet {
        faults.into_iter().fold(FaultSet::NONE, FaultSet::with)
    }
}

impl FromStr for FaultSet {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<FaultSet, FaultError> {
        match text {
            "all" => return Ok(FaultSet::ALL),
            "none" => return Ok(FaultSet::NONE),
            _ => {}
        }
        let fault = |name: &str| {
            let found = Fault::ALL.into_iter().find(|fault| fault.name() == name);
            found.ok_or_else(|| FaultError { found: name.to_owned() })
        };
        text.split(',').map(|name| fault(name.trim())).collect()
    }
}

impl fmt::Display for FaultSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FaultSet::ALL => f.write_str("all"),
            FaultSet::NONE => f.write_str("none"),
            some => f.write_str(&some.iter().map(Fault::name).collect::<Vec<_>>().join(",")),
        }
    }
}

impl TryFrom<String> for FaultSet {
    type Error = FaultError;

    fn try_from(text: String) -> Result<FaultSet, FaultError> {
        text.parse()
    }
}

impl From<FaultSet> for String {
    fn from(set: FaultSet) -> String {
        set.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_read_back_as_it_is_shown() {
        let some = FaultSet::NONE.with(Fault::Partition).with(Fault::CrashClient);
        assert_eq!(some.to_string(), "crash-client,partition");
        for set in [FaultSet::ALL, FaultSet::NONE, some] {
            assert_eq!(set.to_string().parse(), Ok(set));
        }
        let every: FaultSet = Fault::ALL.into_iter().collect();
        assert_eq!((every, every.len()), (FaultSet::ALL, 18));
        assert!(!FaultSet::ALL.without(Fault::Delay).has(Fault::Delay));
    }

    #[test]
    fn a_word_that_is_no_fault_is_refused_with_the_names() {
        for wrong in ["", "fire", "delay,", "all,delay"] {
            let error = wrong.parse::<FaultSet>().unwrap_err().to_string();
            assert!(error.contains("rare-branches"), "{error}");
        }
    }
}
