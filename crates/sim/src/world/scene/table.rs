//! A table on the pool in a scenario: some clients' operations are the table's, on few keys that
//! all share. The table itself is handed in ([`Tables`]), since it stands on the pool's public API
//! and this crate does not know it; it works through [`TableMem`], whose calls block.
//!
//! The history of each key, which must be linearizable, and a ledger of what the table has
//! allocated are in [`TableModel`]. What dead clients held is swept, while others work and at the
//! end ([`Tables::sweep`]): nothing that somebody holds or that the table names may be taken, and
//! then nothing may be left. Without a sweep, each piece must be excused by a client that died or
//! that reported a loss.

use super::Scene;
use crate::check::keys::MapOp;
use crate::time::Ps;
use crate::world::handle::SimHandle;
use crate::world::kernel::block_on;
use crate::world::workload::model::table::TableModel;
use rackpool_core::client::{DaemonQuery, IsAllocated, MasterQuery, Placement, Reclaim, WordSwap};
use rackpool_core::layout::AllocationKind;
use rackpool_core::{Error, GAddr, RackId, Result};
use std::rc::Rc;

/// How the table's operations end without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableError {
    /// The pool could not do it: the table is unchanged.
    Pool(Error),
    /// It happened once or not at all.
    Unknown,
    /// What must never be.
    Wrong(String),
}

/// What a table is made of when all is quiet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableReport {
    pub keys: u64,
    /// Buckets by which the table has grown.
    pub splits: u64,
    /// Bucket words that were used up.
    pub words_retired: u64,
    /// Buckets that a client left in the middle of a split.
    pub splits_left: u64,
}

/// The table of a scenario, as every client opens it. Calls block.
pub trait Tables: Sync {
    /// Makes the run's table unless it is there. What it looks like is up to the seed.
    fn create(&self, mem: &mut TableMem<'_>, seed: u64) -> std::result::Result<(), TableError>;
    fn open(
        &self,
        mem: &mut TableMem<'_>,
        seed: u64,
    ) -> std::result::Result<Box<dyn TableClient>, TableError>;
    /// Keys that clients use in this run, at least 1.
    fn keys(&self, seed: u64) -> u64;
    /// Gives back what no table names and no client holds, while that is due in a rack, or all
    /// of it; an error if something else is wrong. `false`: it could not be done now.
    fn sweep(
        &self,
        _mem: &mut TableMem<'_>,
        _due_in: Option<RackId>,
    ) -> std::result::Result<bool, TableError> {
        Ok(false)
    }
    /// Looks at everything; an error if a thing is lost or something else is wrong. `false`: it
    /// could not be done now.
    fn audit(&self, _mem: &mut TableMem<'_>) -> std::result::Result<bool, TableError> {
        Ok(false)
    }
    /// Allocations that a client may leave behind if it dies inside of one operation, or if that
    /// operation reports a loss.
    fn left_by_death_max(&self) -> u64;
}

/// A table as one client uses it. Calls block.
pub trait TableClient {
    /// Does `op`, whose answer is not looked at, on a key; the same with the answer.
    fn apply(
        &mut self,
        mem: &mut TableMem<'_>,
        key: u64,
        op: MapOp,
    ) -> std::result::Result<MapOp, TableError>;
    /// Does operations of one kind (gets, puts or deletes) on keys that differ, as one batch.
    fn apply_many(
        &mut self,
        mem: &mut TableMem<'_>,
        ops: &[(u64, MapOp)],
    ) -> Vec<std::result::Result<MapOp, TableError>>;
    /// Bytes that this client could not give back.
    fn leaked_bytes(&self) -> u64;
    /// Gives back what it holds for itself, before the client leaves.
    fn close(&mut self, mem: &mut TableMem<'_>);
    /// Looks at everything in it.
    fn check(&mut self, mem: &mut TableMem<'_>) -> std::result::Result<TableReport, TableError>;
    /// Frees all of its memory.
    fn destroy(self: Box<Self>, mem: &mut TableMem<'_>) -> std::result::Result<(), TableError>;
}

/// The pool as the table sees it through one client's handle: calls that block, for processes that
/// run on a stack of their own.
pub struct TableMem<'a> {
    handle: &'a mut SimHandle,
    scene: &'a Rc<Scene>,
}

impl<'a> TableMem<'a> {
    pub(crate) fn new(handle: &'a mut SimHandle, scene: &'a Rc<Scene>) -> TableMem<'a> {
        TableMem { handle, scene }
    }

    fn model(&self) -> &'a TableModel {
        &self.scene.model.table
    }

    pub fn alloc(&mut self, bytes: u64, placement: Placement) -> Result<GAddr> {
        let (id, model) = (self.handle.ctx.id, self.model());
        model.set_allocating(id, true);
        let result = block_on(self.handle.alloc(bytes, placement, AllocationKind::Table));
        model.set_allocating(id, false);
        self.scene.model.leaves_in_doubt(self.handle);
        if let Ok(addr) = result
            && !self.scene.is_lost(addr)
        {
            self.handle.ctx.kernel.say(|| format!("client {}: table has {bytes} at {addr}", id.0));
            model.took(&self.handle.ctx.kernel, addr, bytes, id);
            self.scene.model.taken_by_table(addr, bytes, self.handle.ctx.now());
        }
        result
    }

    pub fn free(&mut self, addr: GAddr, bytes: u64) -> Result<()> {
        let model = self.model();
        let before = model.free_called(addr);
        let result = block_on(self.handle.free(addr, bytes));
        self.handle.ctx.kernel.say(|| format!("table frees {bytes} at {addr}: {result:?}"));
        match (&result, before) {
            (Ok(()), Some(piece)) => model.freed(addr, piece.serial),
            (Err(Error::BadFree { .. } | Error::NotMapped { .. }), Some(piece))
                if piece.freeing => {}
            (Ok(()) | Err(Error::BadFree { .. } | Error::NotMapped { .. }), _)
                if self.scene.model.nothing_lost() =>
            {
                let text = format!("{bytes} bytes at {addr} were freed ({result:?}): {before:?}");
                self.handle.ctx.kernel.fail("keys", text);
            }
            _ => {}
        }
        result
    }

    /// Reads `to.len()` bytes at `addr`.
    pub fn read(&mut self, addr: GAddr, to: &mut [u8]) -> Result<()> {
        block_on(self.handle.read(addr, to))
    }

    pub fn write(&mut self, addr: GAddr, from: &[u8]) -> Result<()> {
        block_on(self.handle.write(addr, from))
    }

    pub fn read_u64(&mut self, addr: GAddr) -> Result<u64> {
        block_on(self.handle.read_u64(addr))
    }

    pub fn write_u64(&mut self, addr: GAddr, value: u64) -> Result<()> {
        block_on(self.handle.write_u64(addr, value))
    }

    /// Compares and swaps an aligned word. Inner `Err` carries the value that was there.
    pub fn cas(
        &mut self,
        addr: GAddr,
        expected: u64,
        new: u64,
    ) -> Result<std::result::Result<u64, u64>> {
        block_on(self.handle.cas(addr, expected, new))
    }

    /// Compares and swaps many words; the value that was in each.
    pub fn cas_batch(&mut self, swaps: &[WordSwap]) -> Vec<Result<u64>> {
        block_on(self.handle.cas_batch(swaps))
    }

    /// Adds to an aligned word; the value before.
    pub fn fetch_add(&mut self, addr: GAddr, n: u64) -> Result<u64> {
        block_on(self.handle.fetch_add(addr, n))
    }

    /// The address under a name.
    pub fn root(&mut self, name: &str) -> Result<Option<GAddr>> {
        block_on(self.handle.root(name))
    }

    /// From here on this client may have allocations that nothing names.
    pub fn begin_change(&mut self) {
        self.model().change_begins(self.handle.ctx.id);
        self.handle.begin_change();
    }

    /// Ends what [`TableMem::begin_change`] began.
    pub fn end_change(&mut self) {
        self.model().change_ends(self.handle.ctx.id);
        self.handle.end_change();
    }

    pub fn page_bytes(&self) -> u64 {
        self.handle.page_bytes()
    }

    /// Asks the daemon of a rack.
    pub fn ask_rack<A>(&mut self, rack: RackId, query: DaemonQuery<A>) -> Result<A> {
        block_on(self.handle.ask_rack(rack, query))
    }

    /// Whether address and size name an allocation.
    pub fn is_allocated(&mut self, addr: GAddr, bytes: u64) -> Result<bool> {
        self.handle.client().check(addr, 1)?;
        block_on(self.handle.run(&mut IsAllocated { addr, bytes }))
    }

    /// Frees what has been watched since `watch` began in its rack, for a sweep.
    pub fn reclaim(&mut self, addr: GAddr, watch: u64) -> Result<()> {
        let model = self.model();
        let before = model.reclaim_called(addr);
        let checked = self.handle.client().check(addr, 1);
        let result = checked.and_then(|()| block_on(self.handle.run(&mut Reclaim { addr, watch })));
        let kernel = &self.handle.ctx.kernel;
        kernel.say(|| format!("the sweep frees {addr}: {result:?}"));
        if result.is_ok() {
            self.scene.count_checked("allocations swept");
        }
        if let Some(piece) = before {
            model.reclaim_ended(kernel, addr, &piece, &result);
        }
        result
    }

    pub fn ask_master<A>(&mut self, query: &MasterQuery<A>) -> Result<A> {
        block_on(self.handle.ask_master(query))
    }

    pub fn pause(&mut self, ms: u64) {
        block_on(self.handle.ctx.clone().sleep(Ps::ms(ms)));
    }

    /// Sets the address under a name if it is `expected` now.
    pub fn set_root(&mut self, name: &str, expected: GAddr, addr: GAddr) -> Result<GAddr> {
        block_on(self.handle.set_root(name, expected, addr))
    }
}
