//! A stored profile: what was measured, by what, where and when. JSON; read back with every figure
//! checked, since the file may come from another machine, another version, or an editor.

use super::{PairProfile, Traffic};
use rackpool_mem::process::{allowed_cores, processor_name};
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SCHEMA: &str = "rackpool.tiers.profile/1";
/// The longest file that is read.
pub const PROFILE_BYTES_MAX: u64 = 16 << 20;

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Measure, or name another file.
    #[error("profile {path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("the profile is longer than {PROFILE_BYTES_MAX} bytes: this is another kind of file")]
    TooLong,
    /// No JSON, or not these fields.
    #[error("the profile's text, line {line} column {column}: {message}")]
    Text { line: usize, column: usize, message: String },
    /// Of another version, or no profile. Measure anew.
    #[error("the profile has schema {found:?}, this program reads {SCHEMA:?}: measure anew")]
    Schema { found: String },
    /// What no measurement gives. Measure anew.
    #[error("the profile's {what} is {value}: it must be a number above 0; measure anew")]
    Value { what: String, value: f64 },
    #[error("the profile's {what} is not as a measurement writes it: measure anew")]
    Shape { what: String },
}

impl ProfileError {
    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            ProfileError::Io { .. } => "io",
            _ => "bad-file",
        }
    }
}

/// The machine of a profile, as far as figures depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The processor's name, as the kernel tells it.
    pub processor: String,
    /// Those that the measuring process could use.
    pub cores: u32,
    pub kernel: String,
}

impl Machine {
    /// The one that this process runs on.
    pub fn here() -> Machine {
        let cores = allowed_cores().map_or(0, |cores| cores.len() as u32);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine { processor: processor_name(), cores, kernel: kernel.trim().to_owned() }
    }
}

/// All pairs that were measured on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    schema: String,
    /// What measured, in words.
    pub source: String,
    pub machine: Machine,
    /// When, in seconds since 1970.
    pub taken_unix_s: u64,
    /// What the figures were held to: see [`super::NoiseRule::bound`].
    pub noise_bound: f64,
    pub pairs: Vec<PairProfile>,
}

impl Profile {
    /// A profile of this machine, taken `taken_unix_s` seconds after 1970.
    pub fn new(taken_unix_s: u64, noise_bound: f64, pairs: Vec<PairProfile>) -> Profile {
        let (schema, source) = (SCHEMA.to_owned(), "measured by rackpool tiers measure".to_owned());
        Profile { schema, source, machine: Machine::here(), taken_unix_s, noise_bound, pairs }
    }

    /// The pair of a CPU node and a memory node.
    pub fn pair(&self, cpu_node: u16, memory_node: u16) -> Option<&PairProfile> {
        let is_it =
            |pair: &&PairProfile| pair.cpu_node == cpu_node && pair.memory_node == memory_node;
        self.pairs.iter().find(is_it)
    }

    /// How old it is; none if it comes from the future, by this machine's clock.
    pub fn age(&self, now_unix_s: u64) -> Option<Duration> {
        now_unix_s.checked_sub(self.taken_unix_s).map(Duration::from_secs)
    }

    /// # Errors
    /// [`ProfileError::Text`], [`ProfileError::Schema`], [`ProfileError::Value`],
    /// [`ProfileError::Shape`].
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let wrong = |error: serde_json::Error| {
            let (line, column) = (error.line(), error.column());
            ProfileError::Text { line, column, message: error.to_string() }
        };
        // Another version's fields are no errors of this one's.
        #[derive(Deserialize)]
        struct Head {
            schema: String,
        }
        let Head { schema: found } = serde_json::from_str(text).map_err(wrong)?;
        if found != SCHEMA {
            return Err(ProfileError::Schema { found });
        }
        let profile: Profile = serde_json::from_str(text).map_err(wrong)?;
        above_0("noise_bound", profile.noise_bound)?;
        for (index, pair) in profile.pairs.iter().enumerate() {
            check(index, pair)?;
            let nodes = |pair: &PairProfile| (pair.cpu_node, pair.memory_node);
            if profile.pairs[..index].iter().any(|other| nodes(other) == nodes(pair)) {
                let what = format!("pairs[{index}], which comes a second time,");
                return Err(ProfileError::Shape { what });
            }
        }
        Ok(profile)
    }

    /// # Errors
    /// As [`Profile::parse`]; [`ProfileError::Io`], [`ProfileError::TooLong`].
    pub fn load(path: &Path) -> Result<Profile, ProfileError> {
        let io = |error| ProfileError::Io { path: path.to_owned(), error };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(io)?;
        let bytes = file.take(PROFILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(io)?;
        if bytes as u64 > PROFILE_BYTES_MAX {
            return Err(ProfileError::TooLong);
        }
        Profile::parse(&text)
    }
}

fn check(index: usize, pair: &PairProfile) -> Result<(), ProfileError> {
    let name = |what: &str| format!("pairs[{index}].{what}");
    let kinds = pair.bandwidth.iter().map(|curve| curve.traffic);
    if !kinds.eq(Traffic::ALL) {
        return Err(ProfileError::Shape { what: name("bandwidth") });
    }
    for curve in &pair.bandwidth {
        let what = name(&format!("bandwidth, {:?}", curve.traffic));
        let threads = |index: usize| curve.points[index].threads;
        let is_rising = (1..curve.points.len()).all(|index| threads(index - 1) < threads(index));
        if curve.points.is_empty() || threads(0) == 0 || !is_rising {
            return Err(ProfileError::Shape { what });
        }
        curve.points.iter().try_for_each(|point| above_0(&what, point.mbps.value))?;
    }
    let what = name("latency");
    if pair.latency.first().is_none_or(|idle| idle.threads != 0) {
        return Err(ProfileError::Shape { what });
    }
    pair.latency.iter().try_for_each(|point| above_0(&what, point.latency_ns.value))
}

fn above_0(what: &str, value: f64) -> Result<(), ProfileError> {
    match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => Err(ProfileError::Value { what: what.to_owned(), value }),
    }
}
