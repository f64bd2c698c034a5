//! The evaluations of the papers again, in virtual time: each number that a paper's text states
//! beside ours. What is not reached is shown as it is.

pub mod baselines;
pub mod herd;
pub mod load;
pub mod rcmp;
pub mod rrpc;

use crate::report::{Cell, Table};

/// What a paper's text says of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paper {
    /// It is this.
    Is(f64),
    /// It is below this.
    Below(f64),
    /// It is above this.
    Above(f64),
    /// Nothing: the number is ours alone.
    Silent,
}

/// One number.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Stable name.
    pub name: String,
    /// Unit: `ns`, or `x` for a factor.
    pub unit: &'static str,
    /// Whether less is better.
    pub is_lower_better: bool,
    /// What came out.
    pub ours: f64,
    /// What the paper says.
    pub paper: Paper,
    /// How near ours has to be to a number, as a share of it.
    pub within: f64,
    /// Where, and anything that has to be said of the comparison.
    pub note: &'static str,
}

impl Figure {
    /// Ours divided by the paper's.
    pub fn ratio(&self) -> Option<f64> {
        let paper = match self.paper {
            Paper::Is(value) | Paper::Below(value) | Paper::Above(value) => value,
            Paper::Silent => return None,
        };
        Some(self.ours / paper)
    }

    /// Whether it is what the text says: near enough to a number, or on the right side of a
    /// bound. `None` if the text says nothing.
    pub fn is_met(&self) -> Option<bool> {
        let ratio = self.ratio()?;
        Some(match self.paper {
            Paper::Is(_) => (1.0 - self.within..=1.0 + self.within).contains(&ratio),
            Paper::Below(_) => ratio <= 1.0,
            Paper::Above(_) => ratio >= 1.0,
            Paper::Silent => true,
        })
    }

    /// The paper's number, as text.
    pub fn paper_text(&self) -> String {
        match self.paper {
            Paper::Is(value) => format!("{value}"),
            Paper::Below(value) => format!("< {value}"),
            Paper::Above(value) => format!("> {value}"),
            Paper::Silent => String::new(),
        }
    }
}

/// What a reproduction has to say.
#[derive(Clone, Debug, Default)]
pub struct Repro {
    /// The numbers.
    pub figures: Vec<Figure>,
    /// Curves, beside which the paper has pictures only.
    pub tables: Vec<Table>,
}

impl Repro {
    /// The numbers as a table.
    pub fn table(&self) -> Table {
        let columns = [
            ("figure", ""),
            ("ours", ""),
            ("unit", ""),
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
                figure.paper_text().into(),
                figure.ratio().into(),
                Cell::Text(met.into()),
                figure.note.into(),
            ]);
        }
        table
    }
}
