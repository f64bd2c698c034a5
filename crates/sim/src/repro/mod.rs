//! The evaluations of the papers again, in virtual time: each number that a paper's text states
//! beside ours. What is not reached is shown as it is.

pub mod baselines;
pub mod calls;
pub mod evaluation;
pub mod herd;
pub mod load;
pub mod rcmp;
pub mod rrpc;

use crate::report::{Cell, Table};

/// What a paper's text says of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paper {
    Is(f64),
    Below(f64),
    Above(f64),
    /// Words without a number, and from where to where ours is taken to agree with them.
    Words(&'static str, [f64; 2]),
    /// Nothing: the number is ours alone.
    Silent,
}

impl Paper {
    /// "More", "adds", "faster": a factor above 1.
    pub const fn more(words: &'static str) -> Paper {
        Paper::Words(words, [1.0, f64::INFINITY])
    }

    /// "Less", "falls", "lower": a factor below 1.
    pub const fn less(words: &'static str) -> Paper {
        Paper::Words(words, [0.0, 1.0])
    }
}

/// Where a number of ours comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is a constant of the profile, and comes out as it went in.
    Input,
    /// It follows from constants by a quotient, a sum or Little's law.
    Derived,
    /// A constant was chosen by it.
    Fitted,
    /// No constant was chosen by it, and the run has to be made to know it.
    Predicted,
}

impl Origin {
    /// The word in JSON and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Origin::Input => "input",
            Origin::Derived => "derived",
            Origin::Fitted => "fitted",
            Origin::Predicted => "predicted",
        }
    }
}

/// A figure that is not predicted, and by what it was set.
pub type Set = (&'static str, Origin, &'static str);

#[derive(Clone, Debug)]
pub struct Figure {
    pub name: String,
    /// Unit: `ns`, or `x` for a factor.
    pub unit: &'static str,
    pub is_lower_better: bool,
    pub ours: f64,
    pub origin: Origin,
    pub paper: Paper,
    /// How near ours has to be to a number, as a share of it.
    pub within: f64,
    /// Where, and anything that has to be said of the comparison.
    pub note: String,
}

impl Figure {
    /// Ours divided by the paper's number, if it has one.
    pub fn ratio(&self) -> Option<f64> {
        let paper = match self.paper {
            Paper::Is(value) | Paper::Below(value) | Paper::Above(value) => value,
            Paper::Words(..) | Paper::Silent => return None,
        };
        Some(self.ours / paper)
    }

    /// Whether it is what the text says: near enough to a number and, where that is a gain or a
    /// loss, one as well; on the right side of a bound; as its words are read. `None` if the text
    /// says nothing.
    pub fn is_met(&self) -> Option<bool> {
        Some(match self.paper {
            Paper::Is(value) => {
                let near = (self.ours / value - 1.0).abs() <= self.within;
                near && (self.unit != "x" || value == 1.0 || (self.ours > 1.0) == (value > 1.0))
            }
            Paper::Below(value) => self.ours <= value,
            Paper::Above(value) => self.ours >= value,
            Paper::Words(_, [least, most]) => self.ours > least && self.ours < most,
            Paper::Silent => return None,
        })
    }

    /// What the paper says, as text.
    pub fn paper_text(&self) -> String {
        match self.paper {
            Paper::Is(value) => format!("{value}"),
            Paper::Below(value) => format!("< {value}"),
            Paper::Above(value) => format!("> {value}"),
            Paper::Words(words, range) => format!("\"{words}\", read as {}", reading(range)),
            Paper::Silent => String::new(),
        }
    }
}

/// What words are read as, as text.
fn reading([least, most]: [f64; 2]) -> String {
    match (least > 0.0, most.is_finite()) {
        (_, false) => format!("> {least}"),
        (false, true) => format!("< {most}"),
        (true, true) => format!("{least} to {most}"),
    }
}

/// So many of so many are as the text says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub met: usize,
    pub all: usize,
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.met, self.all)
    }
}

/// How many figures are as the text says. Only what is predicted counts as reproduced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Predicted, where the text has a number.
    pub numbers: Share,
    /// Predicted, where the text has words only.
    pub words: Share,
    /// Not predicted: these say nothing of the model.
    pub set: Share,
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "predicted as the text has it: {} numbers and {} statements without a number; {} more \
             figures agree because they are inputs, follow from them or were fitted",
            self.numbers, self.words, self.set
        )
    }
}

/// What a reproduction has to say.
#[derive(Clone, Debug, Default)]
pub struct Repro {
    pub figures: Vec<Figure>,
    /// Curves, beside which the paper has pictures only.
    pub tables: Vec<Table>,
}

impl Repro {
    /// Takes a figure; one that is in `set` is not predicted.
    fn push(&mut self, mut figure: Figure, set: &[Set]) {
        if let Some((_, origin, by)) = set.iter().find(|(name, ..)| *name == figure.name) {
            figure.origin = *origin;
            figure.note = format!("{}; {}: {by}", figure.note, origin.name());
        }
        self.figures.push(figure);
    }

    /// How many of the figures are as the text says.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for figure in &self.figures {
            let Some(is_met) = figure.is_met() else { continue };
            let share = match (figure.origin, figure.paper) {
                (Origin::Predicted, Paper::Words(..)) => &mut totals.words,
                (Origin::Predicted, _) => &mut totals.numbers,
                _ => &mut totals.set,
            };
            share.all += 1;
            share.met += usize::from(is_met);
        }
        totals
    }

    /// The numbers as a table.
    pub fn table(&self) -> Table {
        let columns = [
            ("figure", ""),
            ("ours", ""),
            ("unit", ""),
            ("origin", ""),
            ("paper", ""),
            ("ratio", ""),
            ("as stated", ""),
            ("note", ""),
        ];
        let mut table = Table::new("figures", "What the paper's text states, and ours", &columns);
        for figure in &self.figures {
            let met = match figure.is_met() {
                None => "",
                Some(true) => "yes",
                Some(false) => "NO",
            };
            table.row([
                figure.name.clone().into(),
                figure.ours.into(),
                figure.unit.into(),
                figure.origin.name().into(),
                figure.paper_text().into(),
                figure.ratio().into(),
                Cell::Text(met.into()),
                figure.note.clone().into(),
            ]);
        }
        table.note(self.totals().to_string());
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(ours: f64, paper: Paper) -> Figure {
        Figure {
            name: "a".to_owned(),
            unit: "x",
            is_lower_better: false,
            ours,
            origin: Origin::Predicted,
            paper,
            within: 0.2,
            note: String::new(),
        }
    }

    #[test]
    fn a_loss_is_not_a_gain_however_near_they_are() {
        assert_eq!(figure(0.97, Paper::Is(1.05)).is_met(), Some(false));
        assert_eq!(figure(1.01, Paper::Is(1.05)).is_met(), Some(true));
        assert_eq!(figure(0.97, Paper::Is(1.0)).is_met(), Some(true));
        assert_eq!(figure(0.6, Paper::Words("slight loss", [0.8, 1.0])).is_met(), Some(false));
        assert_eq!(figure(1.0, Paper::more("adds")).is_met(), Some(false));
        assert_eq!(figure(1.0, Paper::Silent).is_met(), None);
    }

    #[test]
    fn only_what_is_predicted_counts_as_reproduced() {
        let mut repro = Repro::default();
        let set = [("a", Origin::Fitted, "the rate of lines")];
        repro.push(figure(1.05, Paper::Is(1.05)), &set);
        assert_eq!(repro.figures[0].note, "; fitted: the rate of lines");
        for paper in [Paper::Is(1.05), Paper::Is(2.0), Paper::more("adds"), Paper::Silent] {
            repro.push(figure(1.05, paper), &[]);
        }
        let share = |met, all| Share { met, all };
        let totals = Totals { numbers: share(1, 2), words: share(1, 1), set: share(1, 1) };
        assert_eq!(repro.totals(), totals);
    }
}
