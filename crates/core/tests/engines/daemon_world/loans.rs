//! The rig's part that is about objects which a handle hands out itself: it does by hand what
//! `core::client` does with the words of a slot.

use super::{Rig, TestMem};
use rackpool_core::GAddr;
use rackpool_core::daemon::ClientId;
use rackpool_core::layout::{
    AllocationKind, LoanWord, SLOT_BYTES, SlotWord, free_queue_word, loan_word,
};
use rackpool_core::loan::{LoanState, object_word};
use rackpool_core::seam::Mem;
use rackpool_core::wire::{LentGroup, LoanReply, LoanRequest, Reply, Request};

/// Bytes of the objects, and log2 of that.
pub const OBJECT: u64 = 64;
const SHIFT: u8 = 6;

impl Rig {
    pub fn join_with_slot(&mut self, name: u32) {
        self.join(name);
        let slot = self.slot_of(name);
        let section = TestMem::new(SLOT_BYTES, true, &self.world.fuse);
        assert!((SlotWord::Cells as u64) < section.bytes());
        self.world.slots.insert(slot, section);
    }

    fn slot_of(&self, name: u32) -> u32 {
        match self.clients[&name].id {
            ClientId::Slot(slot) => slot,
            other => panic!("{other:?} has no slot"),
        }
    }

    pub fn section(&self, name: u32) -> &TestMem {
        &self.world.slots[&self.slot_of(name)]
    }

    pub fn lend(&mut self, name: u32, kind: AllocationKind, objects: u32) -> Vec<LentGroup> {
        let lend = LoanRequest::Lend { bytes: OBJECT, kind, objects, ended: Vec::new() };
        match self.ask(name, Request::Loan(lend)) {
            Ok(Reply::Loan(LoanReply::Lent(groups))) => groups,
            other => panic!("{objects} objects for {name}: {other:?}"),
        }
    }

    pub fn loan(&self, name: u32, loan: u16) -> LoanState {
        LoanState(self.section(name).peek(loan_word(loan, LoanWord::Free)))
    }

    fn set_loan(&self, name: u32, loan: u16, state: LoanState) {
        self.section(name).poke(loan_word(loan, LoanWord::Free), state.0);
    }

    /// The first steps of handing an object out.
    pub fn begin_take(&mut self, name: u32, group: &LentGroup) -> (GAddr, u32) {
        let state = self.loan(name, group.loan);
        assert!(state.is_lent() && state.free() != 0, "{state:?}");
        let index = state.free().trailing_zeros();
        self.set_loan(name, group.loan, state.take(index));
        let addr = GAddr(group.addr.0 + (u64::from(index) << SHIFT));
        let at = self.world.offset_of(addr);
        (at..at + OBJECT).step_by(8).for_each(|word| self.world.pages_mem().poke(word, 0));
        (addr, index)
    }

    /// Hands an object out.
    pub fn take_lent(&mut self, name: u32, group: &LentGroup) -> GAddr {
        let (addr, index) = self.begin_take(name, group);
        let state = self.loan(name, group.loan);
        self.set_loan(name, group.loan, LoanState(state.0.wrapping_add(LoanState::taken(index))));
        self.born(addr, OBJECT, None);
        addr
    }

    fn forget(&mut self, addr: GAddr) {
        self.live.remove(&addr.0).expect("it lives");
        self.words.remove(&addr.0);
    }

    /// Frees an object into the loan that it is from, if that goes on.
    pub fn put_lent(&mut self, name: u32, group: &LentGroup, addr: GAddr) -> bool {
        let state = self.loan(name, group.loan);
        if state.is_lent() {
            self.forget(addr);
            let index = (addr.0 - group.addr.0) >> SHIFT;
            self.set_loan(name, group.loan, state.put(index as u32));
        }
        state.is_lent()
    }

    /// Leaves a free in the slot.
    pub fn queue_free(&mut self, name: u32, index: u32, addr: GAddr) {
        self.forget(addr);
        self.section(name).poke(free_queue_word(index), object_word(addr, SHIFT));
    }

    pub fn empty_queue(&mut self, name: u32) -> LoanReply {
        match self.ask(name, Request::Loan(LoanRequest::EmptyQueue)) {
            Ok(Reply::Loan(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }
}
