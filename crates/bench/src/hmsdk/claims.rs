//! What the study says, as `hmsdk/claims.toml` has it, and what was judged by it.

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub struct Claim {
    pub name: String,
    pub says: String,
    /// Where the study has a number.
    pub value: Option<f64>,
    pub unit: String,
    pub holds_if: String,
}

/// What is put in, and is no result.
#[derive(Clone, Debug, Deserialize)]
pub struct Input {
    pub name: String,
    pub value: serde_json::Value,
    pub says: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Claims {
    pub input: Vec<Input>,
    pub claim: Vec<Claim>,
}

impl Claims {
    /// # Panics
    /// Never: the text is part of the program, and read by a test.
    pub fn of_the_study() -> Claims {
        let text = include_str!("../../hmsdk/claims.toml");
        toml::from_str(text).expect("the claims are well-formed")
    }

    /// # Panics
    /// If there is none of this name.
    pub fn get(&self, name: &str) -> &Claim {
        self.claim.iter().find(|claim| claim.name == name).expect("a claim of the study")
    }

    /// # Panics
    /// If there is no such number.
    pub fn input(&self, name: &str) -> f64 {
        let input = self.input.iter().find(|input| input.name == name);
        input.and_then(|input| input.value.as_f64()).expect("an input of the study")
    }
}

/// A claim with what came out in one case.
#[derive(Clone, Debug)]
pub struct Judged {
    pub claim: Claim,
    pub case: String,
    pub ours: f64,
    pub holds: bool,
    /// The figures that decide it.
    pub because: String,
}
