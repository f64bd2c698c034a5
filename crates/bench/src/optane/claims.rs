//! What the guide says, as `optane/claims.toml` has it, and the numbers behind its figures, as
//! `optane/published.toml` has them.

pub use crate::hmsdk::claims::{Claim, Judged};
use serde::Deserialize;

/// What is put in, and is no result.
#[derive(Clone, Debug, Deserialize)]
pub struct ClaimInput {
    pub name: String,
    /// `setting`, of the machine or the method; `fitted`, what a constant was fitted to.
    pub kind: String,
    pub value: serde_json::Value,
    pub says: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct GuideClaims {
    pub input: Vec<ClaimInput>,
    pub claim: Vec<Claim>,
}

impl GuideClaims {
    /// # Panics
    /// Never: the text is part of the program, and read by a test.
    pub fn of_the_guide() -> GuideClaims {
        let text = include_str!("../../optane/claims.toml");
        toml::from_str(text).expect("the claims are well-formed")
    }

    /// # Panics
    /// If there is none of this name.
    pub fn get(&self, name: &str) -> &Claim {
        self.claim.iter().find(|claim| claim.name == name).expect("a claim of the guide")
    }
}

/// A number behind a figure.
#[derive(Clone, Debug, Deserialize)]
pub struct PublishedPoint {
    pub figure: String,
    pub series: String,
    pub x: f64,
    pub value: f64,
    /// A constant was fitted to it.
    #[serde(default)]
    pub fitted: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Published {
    pub point: Vec<PublishedPoint>,
}

impl Published {
    /// # Panics
    /// Never: the text is part of the program, and read by a test.
    pub fn all() -> Published {
        let text = include_str!("../../optane/published.toml");
        toml::from_str(text).expect("the published numbers are well-formed")
    }

    pub fn get(&self, figure: &str, series: &str, x: f64) -> Option<&PublishedPoint> {
        let is = |point: &&PublishedPoint| {
            point.figure == figure && point.series == series && point.x == x
        };
        self.point.iter().find(is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_claim_has_a_name_of_its_own_and_inputs_are_settings_or_fitted() {
        let claims = GuideClaims::of_the_guide();
        let mut names: Vec<&str> = claims.claim.iter().map(|claim| &*claim.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert!(claims.input.iter().all(|input| ["setting", "fitted"].contains(&&*input.kind)));
        assert!(Published::all().point.iter().all(|point| point.value > 0.0));
    }
}
