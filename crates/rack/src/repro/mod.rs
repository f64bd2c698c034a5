//! The evaluation of Rack-scale disaggregation again: seven claims, R1 to R7, each judged by what
//! comes out. The paper's figures are images that could not be read, so the claims are orderings,
//! and what "much" or "gradual" means is said here, before any run, and nowhere changed by one.
//!
//! Source: Rack-scale disaggregation, §IV and §V, figures 2 to 5.

mod claims;
mod figures;

pub use claims::{PaperClaim, judge};
pub use figures::{Drawing, draw};

use crate::model::config::Preset;
use crate::model::{Config, Outcome, builtin};

/// A run of one preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Run {
    AlternateRandom,
    /// Own memory first, random pools.
    LocalRandom,
    /// Own memory first, pools in turn.
    LocalTurns,
    LocalIdle,
    /// Alternate pages, pools in turn.
    AlternateTurns,
    AlternateIdle,
    /// Own memory first, even: ours.
    LocalEven,
    /// Alternate pages, even: ours.
    AlternateEven,
}

impl Run {
    /// All, in the order of the reports.
    pub const ALL: [Run; 8] = [
        Run::AlternateRandom,
        Run::LocalRandom,
        Run::LocalTurns,
        Run::LocalIdle,
        Run::LocalEven,
        Run::AlternateTurns,
        Run::AlternateIdle,
        Run::AlternateEven,
    ];

    pub fn placement(self, window_us: u64) -> String {
        match self {
            Run::AlternateRandom => "alternate+random".into(),
            Run::LocalRandom => "local-first+random".into(),
            Run::LocalTurns => "local-first+round-robin".into(),
            Run::LocalIdle => "local-first+smart-idle".into(),
            Run::AlternateTurns => "alternate+round-robin".into(),
            Run::AlternateIdle => "alternate+smart-idle".into(),
            Run::LocalEven => format!("local-first+even:{window_us}us"),
            Run::AlternateEven => format!("alternate+even:{window_us}us"),
        }
    }
}

/// The presets that are run, in the order of the reports.
pub const PRESETS: [Preset; 2] = [Preset::DracksimFaithful, Preset::Corrected];

/// WL-Mix a divisor smaller, under each preset with each policy, in the order of [`PRESETS`] and
/// [`Run::ALL`].
pub fn points(divisor: u64) -> Vec<Config> {
    let base = builtin::wl_mix(divisor);
    let of = |preset| {
        let base = base.clone();
        Run::ALL.map(move |run| {
            let placement = run.placement(base.window_us);
            let placement = placement.parse().expect("it is a placement");
            Config { preset, placement, ..base.clone() }
        })
    };
    PRESETS.into_iter().flat_map(of).collect()
}

/// The runs of one preset.
pub struct Runs<'a> {
    points: &'a [(Config, Outcome)],
}

impl<'a> Runs<'a> {
    /// Of points in the order of [`Run::ALL`].
    ///
    /// # Panics
    /// If they are not as many.
    pub fn new(points: &'a [(Config, Outcome)]) -> Runs<'a> {
        assert_eq!(points.len(), Run::ALL.len(), "a point for each run");
        Runs { points }
    }

    pub fn get(&self, run: Run) -> &'a (Config, Outcome) {
        let index = Run::ALL.iter().position(|one| *one == run).expect("all are in ALL");
        &self.points[index]
    }
}
