//! What the memory of these tests answers to the engine's questions.

use rackpool_core::seam::{Mutation, Probe, Race, Rare};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// What the engine's questions are answered with.
#[derive(Default)]
pub struct Answers {
    pub mutation: Cell<Option<Mutation>>,
    /// State of the dice that decide on rare branches; 0 takes none.
    pub dice: Cell<u64>,
    /// Branches that the rig does not know how to play.
    pub never: RefCell<BTreeSet<Rare>>,
    /// What was met so far.
    pub races: RefCell<BTreeSet<Race>>,
}

impl Answers {
    /// One in four, by a xorshift generator.
    fn roll(&self) -> bool {
        let mut x = self.dice.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.dice.set(x);
        x >> 32 & 3 == 3
    }
}

impl Probe for Answers {
    fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation.get() == Some(mutation)
    }

    fn rare(&self, rare: Rare) -> bool {
        self.roll() && !self.never.borrow().contains(&rare)
    }

    fn met(&self, race: Race) {
        self.races.borrow_mut().insert(race);
    }
}
