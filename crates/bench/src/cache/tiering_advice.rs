//! Whether the mode that `tiers advise` names for a workload is the one that was measured best.
//!
//! In: what was advised, and what each mode has of what `advise` is to choose by: hits a second at
//! full load, or look-ups a second of a client at a load that is given.
//! Out: a row for each workload, and one with how many of them it was right for, and how many of
//! them each mode would have been right for as the only answer ever. Pure.

use crate::report::{Better, Reference, Row};

/// As `compare_all` has them; the names are those of [`rackpool_tiers::advice::TieringMode`], and
/// `far` is never advised.
const MODES: [&str; 4] = ["dram", "far", "transparent", "data"];
/// Of the best mode's score, what is as good.
const SHARE_MIN: f64 = 0.97;
/// Of the eight workloads, those for which the advice has to be right.
const RIGHT_MIN: usize = 7;
const WORKLOADS: usize = 8;
/// Of these, those for which one answer ever may be right: else the workloads tell nothing of the
/// advice.
const CONSTANT_MAX: usize = 5;

/// A workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    /// By mode.
    pub scores: [f64; 4],
    pub advised: &'static str,
}

impl Judged {
    fn of(&self, mode: &str) -> f64 {
        let found = MODES.iter().position(|other| *other == mode);
        self.scores[found.expect("every mode is measured")]
    }

    fn best(&self) -> &'static str {
        let best = MODES.into_iter().max_by(|a, b| self.of(a).total_cmp(&self.of(b)));
        best.expect("there are modes")
    }

    /// Whether a mode is nearly as good as the best.
    fn is_right(&self, mode: &str) -> bool {
        self.of(mode) >= SHARE_MIN * self.of(self.best())
    }

    pub fn row(&self, workload: &str, kind: &str) -> Row {
        let name = format!("{workload}_advised_{kind}");
        Row::new(&name, "ops/s", Better::Higher, self.of(self.advised))
            .against(Reference::Peer(self.of(self.best())))
            .with("advised", self.advised)
            .with("best", self.best())
            .with("is_right", self.is_right(self.advised))
    }
}

/// How many workloads the advice was right for, and each mode would have been.
pub(super) fn summary(judged: &[Judged], kind: &str) -> Row {
    let advised = judged.iter().filter(|one| one.is_right(one.advised)).count();
    let name = format!("advised_within_3_percent_{kind}");
    let always = MODES.map(|mode| judged.iter().filter(|one| one.is_right(mode)).count());
    let mut row = Row::new(&name, "count", Better::Higher, advised as f64);
    if judged.len() == WORKLOADS {
        let holds = advised >= RIGHT_MIN && always.iter().all(|count| *count <= CONSTANT_MAX);
        row = row.with("limit", RIGHT_MIN).with("always_limit", CONSTANT_MAX).with("holds", holds);
    }
    for (mode, count) in MODES.into_iter().zip(always) {
        row = row.with(&format!("always_{mode}"), count);
    }
    row.samples(judged.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_right_within_3_percent_of_the_best_mode_and_constants_are_counted_beside_it() {
        let one = |scores, advised| Judged { scores, advised };
        let judged = [
            one([100.0, 50.0, 97.0, 96.9], "transparent"),
            one([90.0, 60.0, 80.0, 100.0], "data"),
            one([90.0, 60.0, 80.0, 100.0], "dram"),
        ];
        let row = judged[2].row("cdn", "emulated");
        assert_eq!((row.name.as_str(), row.ratio), ("cdn_advised_emulated", Some(0.9)));
        assert_eq!((&row.extra["best"], &row.extra["is_right"]), (&"data".into(), &false.into()));
        let row = summary(&judged, "emulated");
        assert_eq!((row.ours, row.n, row.extra.contains_key("limit")), (2.0, 3, false));
        let always = MODES.map(|mode| row.extra[&format!("always_{mode}")].as_u64().unwrap());
        assert_eq!(always, [1, 0, 1, 2]);
        // Advice that is right does not hold where one answer ever is.
        let holds = |all: &[Judged]| summary(all, "emulated").extra["holds"] == true;
        assert!(!holds(&[judged[0]; 8]));
        let far = one([90.0, 100.0, 80.0, 60.0], "far");
        let mixed = [&[judged[0]; 4][..], &[judged[1]; 3], &[far]].concat();
        assert_eq!(summary(&mixed, "emulated").extra["limit"], 7);
        assert!(holds(&mixed));
        let wrong = [&[judged[0]; 4][..], &[judged[2]; 2], &[judged[1], far]].concat();
        assert!(!holds(&wrong));
    }
}
