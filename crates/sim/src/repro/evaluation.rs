//! A paper's evaluation while it is made, part by part. `rcmp.rs` and `herd/` have the parts; what
//! they have in common is here: the profile, shorter runs, the figures and the tables.

use super::{Figure, Origin, Paper, Repro, Set};
use crate::device::Profile;
use crate::report::Table;
use std::marker::PhantomData;

/// A part of a paper's evaluation.
pub type Part<P> = fn(&mut Evaluation<P>) -> Result<(), String>;

/// The evaluation of a paper.
pub trait PaperParts: Sized + 'static {
    /// The parts by what they are called, in the order in which they run.
    const PARTS: &'static [(&'static str, Part<Self>)];
    /// What is not predicted.
    const SET: &'static [Set];
    /// How near a figure has to be to be as stated, as a share of it.
    const WITHIN: f64;

    /// Whether what the paper says of a figure is of this profile.
    fn speaks_of(_: &Profile, _figure: &str) -> bool {
        true
    }
}

pub struct Evaluation<P> {
    pub profile: Profile,
    pub is_quick: bool,
    repro: Repro,
    paper: PhantomData<P>,
}

/// Runs the parts that are `wanted` by what they are called. `told` hears of each.
///
/// # Errors
/// What the simulator objects to.
pub fn evaluate<P: PaperParts>(
    profile: &Profile,
    is_quick: bool,
    wanted: &dyn Fn(&str) -> bool,
    told: &mut dyn FnMut(&str),
) -> Result<Repro, String> {
    let (profile, repro) = (profile.clone(), Repro::default());
    let mut one: Evaluation<P> = Evaluation { profile, is_quick, repro, paper: PhantomData };
    for (name, part) in P::PARTS.iter().filter(|(name, _)| wanted(name)) {
        told(name);
        part(&mut one)?;
    }
    Ok(one.repro)
}

impl<P: PaperParts> Evaluation<P> {
    /// How many operations are run instead of so many.
    pub fn operations(&self, operations: u64) -> u64 {
        operations / if self.is_quick { 5 } else { 1 }
    }

    pub fn figure(
        &mut self,
        name: &str,
        unit: &'static str,
        ours: f64,
        paper: Paper,
        note: &'static str,
    ) {
        let paper = if P::speaks_of(&self.profile, name) { paper } else { Paper::Silent };
        let is_lower_better = matches!(unit, "ns" | "cores");
        let (name, note, origin) = (name.to_owned(), note.to_owned(), Origin::Predicted);
        let within = P::WITHIN;
        let figure = Figure { name, unit, is_lower_better, ours, origin, paper, within, note };
        self.repro.push(figure, P::SET);
    }

    pub fn table(&mut self, table: Table) {
        self.repro.tables.push(table);
    }
}
