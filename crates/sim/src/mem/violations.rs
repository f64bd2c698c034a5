//! What no correct run does, written down where it happens and read by the checker.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::time::Ps;

/// So many are kept; later ones are only counted.
const KEPT_MAX: usize = 64;

/// A list of violations with their virtual times, shared by all processors of a run.
#[derive(Default)]
pub struct Violations {
    now: Cell<Ps>,
    count: Cell<u64>,
    list: RefCell<Vec<(Ps, String)>>,
}

impl Violations {
    pub fn new() -> Rc<Violations> {
        Rc::default()
    }

    /// The world says what time it is; what is recorded then bears it.
    pub fn set_now(&self, now: Ps) {
        self.now.set(now);
    }

    pub fn record(&self, what: String) {
        self.count.set(self.count.get() + 1);
        let mut list = self.list.borrow_mut();
        if list.len() < KEPT_MAX {
            list.push((self.now.get(), what));
        }
    }

    /// How many there were, kept or not.
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// Takes those that were kept.
    pub fn take(&self) -> Vec<(Ps, String)> {
        self.count.set(0);
        self.list.take()
    }
}
