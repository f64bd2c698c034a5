//! Names of policies, as the command line takes them: `off`, `paper` or `cost`, and behind a comma
//! each what shall differ from its defaults, such as `cost,fabric_share_milli=100`.

use super::{CostParams, MigrationPolicy, PaperParams};
use crate::heat::HeatParams;
use std::fmt;
use std::str::FromStr;

/// A text that names no policy, or a constant that it does not have. Correct it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{part}`: write off, paper or cost, and constants behind commas: {constants}")]
pub struct MigrationPolicyNameError {
    /// The part that makes no sense.
    pub part: String,
    pub constants: String,
}

enum Field<'p> {
    Short(&'p mut u32),
    Long(&'p mut u64),
}

fn heat_fields(heat: &mut HeatParams) -> Vec<(&'static str, Field<'_>)> {
    vec![
        ("hot_milli", Field::Long(&mut heat.hot_milli)),
        ("read_hot_milli", Field::Short(&mut heat.read_hot_milli)),
        ("expiry_ms", Field::Short(&mut heat.expiry_ms)),
        ("decay_per_second_micro", Field::Short(&mut heat.decay_per_second_micro)),
    ]
}

fn cost_fields(cost: &mut CostParams) -> Vec<(&'static str, Field<'_>)> {
    vec![
        ("horizon_ms", Field::Short(&mut cost.horizon_ms)),
        ("margin_milli", Field::Short(&mut cost.margin_milli)),
        ("count_min", Field::Short(&mut cost.count_min)),
        ("deviations_squared", Field::Short(&mut cost.deviations_squared)),
        ("dominance_milli", Field::Short(&mut cost.dominance_milli)),
        ("settle_ms", Field::Short(&mut cost.settle_ms)),
        ("fabric_share_milli", Field::Short(&mut cost.fabric_share_milli)),
        ("bytes_per_second_max", Field::Long(&mut cost.bytes_per_second_max)),
        ("burst_bytes", Field::Long(&mut cost.burst_bytes)),
    ]
}

fn fields(policy: &mut MigrationPolicy) -> Vec<(&'static str, Field<'_>)> {
    match policy {
        MigrationPolicy::Off => Vec::new(),
        MigrationPolicy::Paper(params) => heat_fields(&mut params.heat),
        MigrationPolicy::Cost(params) => cost_fields(params),
    }
}

fn named(name: &str) -> Option<MigrationPolicy> {
    match name {
        "off" => Some(MigrationPolicy::Off),
        "paper" => Some(MigrationPolicy::Paper(PaperParams::default())),
        "cost" => Some(MigrationPolicy::Cost(CostParams::default())),
        _ => None,
    }
}

impl FromStr for MigrationPolicy {
    type Err = MigrationPolicyNameError;

    fn from_str(text: &str) -> Result<Self, MigrationPolicyNameError> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        let wrong = |part: &str, policy: Option<MigrationPolicy>| {
            let names: Vec<_> = fields(&mut policy.unwrap_or_default())
                .into_iter()
                .map(|(name, _)| format!("{name}=N"))
                .collect();
            let constants = if names.is_empty() { "none".into() } else { names.join(", ") };
            MigrationPolicyNameError { part: part.into(), constants }
        };
        let mut policy = named(name).ok_or_else(|| wrong(name, None))?;
        for part in parts {
            let set = part.split_once('=').and_then(|(key, value)| set(&mut policy, key, value));
            set.ok_or_else(|| wrong(part, Some(policy)))?;
        }
        Ok(policy)
    }
}

fn set(policy: &mut MigrationPolicy, key: &str, value: &str) -> Option<()> {
    let plain = value.bytes().all(|byte| byte.is_ascii_digit());
    let (_, field) = fields(policy).into_iter().find(|(name, _)| *name == key && plain)?;
    match field {
        Field::Short(at) => *at = value.parse().ok()?,
        Field::Long(at) => *at = value.parse().ok()?,
    }
    Some(())
}

impl fmt::Display for MigrationPolicy {
    /// The shortest text that means this policy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            MigrationPolicy::Off => "off",
            MigrationPolicy::Paper(_) => "paper",
            MigrationPolicy::Cost(_) => "cost",
        };
        f.write_str(name)?;
        let value = |field: &Field<'_>| match field {
            Field::Short(value) => u64::from(**value),
            Field::Long(value) => **value,
        };
        let (mut own, mut default) = (*self, named(name).unwrap_or_default());
        for ((name, own), (_, default)) in fields(&mut own).iter().zip(fields(&mut default)) {
            if value(own) != value(&default) {
                write!(f, ",{name}={}", value(own))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_policies_and_say_only_what_differs() {
        for name in
            ["off", "paper", "cost", "paper,hot_milli=3000", "cost,horizon_ms=5000,burst_bytes=0"]
        {
            assert_eq!(name.parse::<MigrationPolicy>().unwrap().to_string(), name);
        }
        let same: MigrationPolicy = "cost,margin_milli=2000".parse().unwrap();
        assert_eq!(
            (same, same.to_string()),
            (MigrationPolicy::Cost(CostParams::default()), "cost".into())
        );
    }

    #[test]
    fn what_means_nothing_is_refused_with_what_could_stand_there() {
        for wrong in ["", "on", "off,hot_milli=1", "paper,horizon_ms=1", "cost,", "cost,count_min"]
        {
            assert!(wrong.parse::<MigrationPolicy>().is_err(), "{wrong}");
        }
        for value in ["-1", "+1", "4294967296", "1.5", ""] {
            let error = format!("cost,count_min={value}").parse::<MigrationPolicy>().unwrap_err();
            assert!(error.to_string().contains("horizon_ms=N"), "{error}");
        }
    }
}
