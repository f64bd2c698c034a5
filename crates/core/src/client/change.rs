//! Changes: while one is open, the client may have allocations of the kind `Table` that no word
//! names. The own slot says so (`SlotWord::Changing`), so that audits wait for it, and so that the
//! daemon has what it held looked for if it dies.
//!
//! In: beginnings and ends of operations of the structures in the pool. Out: the word. Ordering:
//! whatever another party can learn of a change (a request, a swap of a word) comes after the
//! store that begins it and before the one that ends it; all of them release.

use super::{Client, OWN};
use crate::coherence;
use crate::layout::SlotWord;
use crate::seam::{Mem, Mutation};

#[derive(Debug, Default)]
pub(super) struct Changes {
    open: u32,
    /// What the word says: beginnings and ends.
    count: u64,
}

impl<M: Mem> Client<M> {
    /// Begins a change; they nest.
    pub fn begin_change(&mut self) {
        self.changes.open += 1;
        if self.changes.open == 1 {
            self.changes.count += 1;
            self.show_changes();
        }
    }

    pub fn end_change(&mut self) {
        assert!(self.changes.open > 0, "a change ends once");
        self.changes.open -= 1;
        if self.changes.open == 0 {
            self.changes.count += 1;
            self.show_changes();
        }
    }

    /// Says in the slot what it is to say; again after the slot has changed.
    pub(super) fn show_changes(&self) {
        let Some(view) = self.view(OWN).filter(|_| self.changes.count > 0) else { return };
        if view.slot.mutated(Mutation::ChangeUnmarked) {
            return;
        }
        let at = SlotWord::Changing as u64;
        coherence::store(&view.slot, Mutation::HideConsumed, at, self.changes.count);
    }
}
