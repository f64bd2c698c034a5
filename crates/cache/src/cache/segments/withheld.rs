//! Near units that are kept out of use, since the limit of memory is lower than what there is.

use super::{Memory, Segments};
use std::cmp::Ordering;

#[derive(Debug, Default)]
pub(crate) struct WithheldUnits {
    units: Vec<u32>,
    /// How many are to be.
    wanted: usize,
}

impl Segments {
    /// Has so many units kept out of use, step by step.
    pub fn withhold(&mut self, units: usize) {
        self.withheld.wanted = units;
    }

    pub fn withheld_count(&self) -> usize {
        self.withheld.units.len()
    }

    /// Whether more or fewer are kept out of use than are to be.
    pub fn compare_withheld(&self) -> Ordering {
        self.withheld_count().cmp(&self.withheld.wanted)
    }

    /// Takes a free unit out of use.
    pub fn withhold_one(&mut self) -> Option<u32> {
        let unit = self.free[Memory::Near as usize].pop()?;
        self.withheld.units.push(unit);
        Some(unit)
    }

    /// Has a unit come into use again.
    pub fn release_withheld(&mut self) {
        let unit = self.withheld.units.pop();
        self.free[Memory::Near as usize].extend(unit);
    }
}
