//! The simulator's answers to what the engines ask their world: which safeguard is left out,
//! which rare branch is taken, and how often each was.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rackpool_core::seam::{Mutation, Probe, Race, Rare};

use crate::rng::{Purpose, Rng};

const RARES: usize = Rare::ALL.len();
const RACES: usize = Race::ALL.len();

/// Shared answers and counts of a run; clones are the same. Also the probe of a master, which
/// sees no memory.
#[derive(Clone)]
pub struct Hooks(Rc<Inner>);

struct Inner {
    mutation: Cell<Option<Mutation>>,
    mutated: Cell<u64>,
    rng: RefCell<Rng>,
    rare_ppm: [Cell<u32>; RARES],
    rares: [Cell<u64>; RARES],
    races: [Cell<u64>; RACES],
}

impl Hooks {
    /// No mutation, no forced branch, all counts 0.
    pub fn new(seed: u64) -> Hooks {
        Hooks(Rc::new(Inner {
            mutation: Cell::new(None),
            mutated: Cell::new(0),
            rng: RefCell::new(Rng::new(seed, Purpose::Rare, 0)),
            rare_ppm: [const { Cell::new(0) }; RARES],
            rares: [const { Cell::new(0) }; RARES],
            races: [const { Cell::new(0) }; RACES],
        }))
    }

    /// Leaves this safeguard out from now on. Without the cargo feature `mutations` the engines
    /// are never told so, and the answer is false.
    pub fn set_mutation(&self, mutation: Option<Mutation>) -> bool {
        self.0.mutation.set(mutation);
        cfg!(feature = "mutations")
    }

    /// Takes this rare branch with this probability, in parts per million, whenever asked.
    pub fn set_rare_ppm(&self, rare: Rare, ppm: u32) {
        self.0.rare_ppm[rare as usize].set(ppm);
    }

    /// Draws for each rare branch whether this run takes it never, now and then or often.
    pub fn draw_rares(&self) {
        let mut rng = self.0.rng.borrow_mut();
        for ppm in &self.0.rare_ppm {
            ppm.set([0, 0, 2_000, 20_000, 100_000, 300_000][rng.below(6) as usize]);
        }
    }

    /// Takes no rare branch from now on.
    pub fn calm(&self) {
        self.0.rare_ppm.iter().for_each(|ppm| ppm.set(0));
    }

    /// How often the mutation was met.
    pub fn mutated_count(&self) -> u64 {
        self.0.mutated.get()
    }

    /// How often each rare branch was forced, in the order of `Rare::ALL`.
    pub fn rare_counts(&self) -> [u64; RARES] {
        std::array::from_fn(|index| self.0.rares[index].get())
    }

    /// How often each race was met, in the order of `Race::ALL`.
    pub fn race_counts(&self) -> [u64; RACES] {
        std::array::from_fn(|index| self.0.races[index].get())
    }
}

fn count(cell: &Cell<u64>) {
    cell.set(cell.get() + 1);
}

impl Probe for Hooks {
    #[inline]
    fn mutated(&self, mutation: Mutation) -> bool {
        let out = cfg!(feature = "mutations") && self.0.mutation.get() == Some(mutation);
        if out {
            count(&self.0.mutated);
        }
        out
    }

    #[inline]
    fn rare(&self, rare: Rare) -> bool {
        let ppm = self.0.rare_ppm[rare as usize].get();
        let taken = ppm != 0 && self.0.rng.borrow_mut().chance_ppm(ppm);
        if taken {
            count(&self.0.rares[rare as usize]);
        }
        taken
    }

    fn met(&self, race: Race) {
        count(&self.0.races[race as usize]);
    }
}
