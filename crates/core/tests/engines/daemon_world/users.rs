//! What touches the memory of the rig's rack: a client on its host, and the fabric's target.

use super::{RACK, TestMem, TestWorld};
use rackpool_core::client::{Client, RackView, Reach};
use rackpool_core::seam::{Mem, Mutation, Probe, Race, Rare};
use rackpool_core::target::TargetMemory;

/// A section, mapped by another as well.
#[derive(Clone, Copy)]
pub struct Shared<'a>(&'a TestMem);

impl Probe for Shared<'_> {
    fn mutated(&self, mutation: Mutation) -> bool {
        self.0.mutated(mutation)
    }
    fn rare(&self, rare: Rare) -> bool {
        self.0.rare(rare)
    }
    fn met(&self, race: Race) {
        self.0.met(race);
    }
}

impl Mem for Shared<'_> {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
    fn load(&self, offset: u64) -> u64 {
        self.0.load(offset)
    }
    fn store(&self, offset: u64, value: u64) {
        self.0.store(offset, value);
    }
    fn announce(&self, offset: u64, value: u64) {
        self.0.announce(offset, value);
    }
    fn compare_exchange(&self, offset: u64, expected: u64, new: u64) -> Result<u64, u64> {
        self.0.compare_exchange(offset, expected, new)
    }
    fn fetch_add(&self, offset: u64, n: u64) -> u64 {
        self.0.fetch_add(offset, n)
    }
    fn copy_out(&self, offset: u64, to: &mut [u8]) {
        self.0.copy_out(offset, to);
    }
    fn copy_in(&self, offset: u64, from: &[u8]) {
        self.0.copy_in(offset, from);
    }
    fn zero(&self, offset: u64, bytes: u64) {
        self.0.zero(offset, bytes);
    }
    fn prefetch(&self, _: u64) {}
    fn fence(&self) {}
    fn flush(&self, _: u64, _: u64) {}
}

impl TestWorld {
    /// A client that knows no page yet.
    pub fn client(&self) -> Client<Shared<'_>> {
        let (pages, table) = (Shared(&self.pages), Shared(&self.table));
        let view = RackView { pages, table, slot: Shared(&self.slot), layout: self.layout };
        Client::new(RACK, Reach::Mapped(view), 64)
    }

    pub fn target(&self) -> TargetMemory<Shared<'_>> {
        let (pages, table) = (Shared(&self.pages), Shared(&self.table));
        TargetMemory::new(pages, table, Shared(&self.slot), self.layout).expect("long enough")
    }
}
