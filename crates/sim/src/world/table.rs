//! A table on the pool in a scenario: some clients' operations are the table's, on few keys that
//! all share. The table itself is handed in ([`Tables`]), since it stands on the pool's public API
//! and this crate does not know it; it works through [`TableMem`], by calls that block.
//!
//! What is kept here: the history of each key, which must be linearizable, and a ledger of what
//! the table has allocated. What dead clients held is swept, while others work and at the end
//! ([`Tables::sweep`]): nothing that a client holds or that the table names may be taken, and then
//! nothing may be left. Without a sweep, each piece must be excused by a client that died or that
//! reported a loss.

use super::handle::SimHandle;
use super::kernel::{Kernel, ProcessId, block_on};
use super::scenario::Scene;
use super::workload::{DeferredFree, Fate};
use crate::check::conserve::AllocationAudit;
use crate::check::keys::{MapKey, MapOp};
use crate::check::linear::{Event, Histories, Times};
use crate::time::Ps;
use rackpool_core::client::Placement;
use rackpool_core::layout::AllocationKind;
use rackpool_core::wire::{MasterAnswer, MasterCall, Reply, Request};
use rackpool_core::{Error, GAddr, RackId, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Configurations that the check of one key's history looks at.
const CONFIGURATIONS_MAX: usize = 400_000;

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
    ) -> std::result::Result<Box<dyn Table>, TableError>;
    /// Keys that clients use in this run, at least 1.
    fn keys(&self, seed: u64) -> u64;
    /// Gives back what no table names and no client holds, as long as that is due in a rack, or all
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
pub trait Table {
    /// Does `op` on a key and does not look at its answer; the same with the answer.
    fn apply(
        &mut self,
        mem: &mut TableMem<'_>,
        key: u64,
        op: MapOp,
    ) -> std::result::Result<MapOp, TableError>;
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
    pub(super) fn new(handle: &'a mut SimHandle, scene: &'a Rc<Scene>) -> TableMem<'a> {
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

    /// Reads an aligned word.
    pub fn read_u64(&mut self, addr: GAddr) -> Result<u64> {
        block_on(self.handle.read_u64(addr))
    }

    /// Writes an aligned word.
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

    pub fn end_change(&mut self) {
        self.model().change_ends(self.handle.ctx.id);
        self.handle.end_change();
    }

    pub fn page_bytes(&self) -> u64 {
        self.handle.page_bytes()
    }

    /// Asks the daemon of a rack.
    pub fn ask_rack(&mut self, rack: RackId, request: Request) -> Result<Reply> {
        block_on(self.handle.ask_rack(rack, request))
    }

    /// Asks the daemon of an address's home.
    pub fn ask_home(&mut self, addr: GAddr, request: Request) -> Result<Reply> {
        block_on(self.handle.ask_home(addr, request))
    }

    /// Frees what has been watched since `watch` began in its rack, for a sweep.
    pub fn reclaim(&mut self, addr: GAddr, watch: u64) -> Result<()> {
        let model = self.model();
        let before = model.reclaim_called(addr);
        let result = block_on(self.handle.ask_home(addr, Request::Reclaim { addr, watch }));
        let kernel = &self.handle.ctx.kernel;
        kernel.say(|| format!("the sweep frees {addr}: {result:?}"));
        if result.is_ok() {
            self.scene.count_checked("allocations swept");
        }
        if let Some(piece) = before {
            model.reclaim_ended(kernel, addr, &piece, &result);
        }
        result.map(drop)
    }

    pub fn ask_master(&mut self, call: MasterCall) -> Result<MasterAnswer> {
        block_on(self.handle.ask_master(call))
    }

    pub fn pause(&mut self, ms: u64) {
        block_on(self.handle.ctx.clone().sleep(Ps::ms(ms)));
    }

    /// Sets the address under a name if it is `expected` now.
    pub fn set_root(&mut self, name: &str, expected: GAddr, addr: GAddr) -> Result<GAddr> {
        block_on(self.handle.set_root(name, expected, addr))
    }
}

/// An allocation of the table.
#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    /// A free of it was called.
    freeing: bool,
    /// Sweeps that may have freed it.
    sweeps: u32,
    /// The process that allocated it, and in which of its changes.
    taken_in: Option<(ProcessId, u64)>,
    /// Tells it from others at the same address.
    serial: u64,
}

impl Piece {
    /// Whether it may be free.
    fn is_in_doubt(&self) -> bool {
        self.freeing || self.sweeps > 0
    }
}

#[derive(Clone, Copy, Debug)]
struct Call {
    key: u64,
    op: MapOp,
    since: Ps,
    /// The daemon may hand memory out that no client will know of.
    allocating: bool,
}

/// What the clients did to the table.
#[derive(Default)]
pub struct TableModel {
    histories: RefCell<Histories<u64, MapOp>>,
    pieces: RefCell<BTreeMap<u64, Piece>>,
    serials: Cell<u64>,
    under_way: RefCell<BTreeMap<ProcessId, Call>>,
    /// Changes that clients are in the middle of: how deep, and a number.
    changes: RefCell<BTreeMap<ProcessId, (u32, u64)>>,
    /// Operations that may have left memory behind: their client died, or told of a loss.
    lossy: Cell<u64>,
}

impl TableModel {
    /// A client calls an operation.
    pub(super) fn called(&self, client: ProcessId, key: u64, op: MapOp, since: Ps) {
        let call = Call { key, op, since, allocating: false };
        self.under_way.borrow_mut().insert(client, call);
    }

    /// Its answer, or `None` if it may have been applied; not called for what was not.
    pub(super) fn answered(&self, client: ProcessId, answer: Option<MapOp>, at: Ps) {
        let call = self.under_way.borrow_mut().remove(&client).expect("an operation was called");
        let (times, returned) = match answer {
            Some(_) => (Times::Once, Some(at.0)),
            None => (Times::AtMostOnce, None),
        };
        let event = Event {
            client: Some(client.0),
            called: call.since.0,
            returned,
            times,
            op: answer.unwrap_or(call.op),
        };
        if !matches!((answer, call.op), (None, MapOp::Get(_))) {
            self.histories.borrow_mut().add(call.key, event);
        }
    }

    /// The operation was refused: it is not applied and never will be.
    pub(super) fn refused(&self, client: ProcessId) {
        self.under_way.borrow_mut().remove(&client);
    }

    /// An operation that has ended may have left memory behind.
    pub(super) fn was_lossy(&self) {
        self.lossy.set(self.lossy.get() + 1);
    }

    fn change_begins(&self, client: ProcessId) {
        let mut changes = self.changes.borrow_mut();
        self.serials.set(self.serials.get() + 1);
        changes.entry(client).or_insert((0, self.serials.get())).0 += 1;
    }

    fn change_ends(&self, client: ProcessId) {
        let mut changes = self.changes.borrow_mut();
        let (depth, _) = changes.get_mut(&client).expect("it was begun");
        *depth -= 1;
        if *depth == 0 {
            changes.remove(&client);
        }
    }

    /// A client is about to leave: what it did not end is over.
    pub(super) fn leaves(&self, client: ProcessId) {
        self.changes.borrow_mut().remove(&client);
    }

    /// A client died; the allocations that it may have been given, though no client knows.
    pub(super) fn on_killed(&self, client: ProcessId, at: Ps) -> u64 {
        self.leaves(client);
        let Some(call) = self.under_way.borrow().get(&client).copied() else { return 0 };
        self.was_lossy();
        self.answered(client, None, at);
        u64::from(call.allocating)
    }

    /// The memory of a rack is gone.
    pub(super) fn on_power_lost(&self, fate: impl Fn(u64, u64) -> Fate) {
        self.pieces.borrow_mut().retain(|addr, piece| {
            let fate = fate(*addr, piece.bytes);
            piece.freeing |= fate == Fate::Unknown;
            fate != Fate::Gone
        });
    }

    fn set_allocating(&self, client: ProcessId, allocating: bool) {
        if let Some(call) = self.under_way.borrow_mut().get_mut(&client) {
            call.allocating = allocating;
        }
    }

    fn took(&self, kernel: &Kernel, addr: GAddr, bytes: u64, by: ProcessId) {
        self.serials.set(self.serials.get() + 1);
        let taken_in = self.changes.borrow().get(&by).map(|(_, number)| (by, *number));
        let serial = self.serials.get();
        let piece = Piece { bytes, freeing: false, sweeps: 0, taken_in, serial };
        let before = self.pieces.borrow_mut().insert(addr.0, piece);
        if let Some(before) = before.filter(|before| !before.is_in_doubt()) {
            kernel.fail("keys", format!("{addr} was handed out, and still is: {before:?}"));
        }
    }

    /// A client has got this memory for itself: pieces that were being freed there are free.
    pub(super) fn taken_by_client(&self, addr: GAddr, bytes: u64) {
        let is_there = |one: u64, piece: &Piece| one < addr.0 + bytes && addr.0 < one + piece.bytes;
        let mut pieces = self.pieces.borrow_mut();
        pieces.retain(|one, piece| !piece.is_in_doubt() || !is_there(*one, piece));
    }

    /// The piece as it was before.
    fn free_called(&self, addr: GAddr) -> Option<Piece> {
        let mut pieces = self.pieces.borrow_mut();
        let piece = pieces.get_mut(&addr.0)?;
        let before = *piece;
        piece.freeing = true;
        Some(before)
    }

    /// Another client may have the address again already.
    fn freed(&self, addr: GAddr, serial: u64) {
        let mut pieces = self.pieces.borrow_mut();
        if pieces.get(&addr.0).is_some_and(|piece| piece.serial == serial) {
            pieces.remove(&addr.0);
        }
    }

    /// A sweep is about to free the piece.
    fn reclaim_called(&self, addr: GAddr) -> Option<Piece> {
        let mut pieces = self.pieces.borrow_mut();
        let piece = pieces.get_mut(&addr.0)?;
        piece.sweeps += 1;
        Some(*piece)
    }

    /// It has freed it or was refused; with another error, or without an end, it may have.
    fn reclaim_ended(&self, kernel: &Kernel, addr: GAddr, piece: &Piece, result: &Result<Reply>) {
        match result {
            Ok(_) => {
                let changes = self.changes.borrow();
                let is_held = |(by, number): (ProcessId, u64)| {
                    changes.get(&by).is_some_and(|(_, open)| *open == number)
                };
                if piece.taken_in.is_some_and(is_held) {
                    kernel.fail("keys", format!("the sweep took {addr} out of hands: {piece:?}"));
                }
                self.freed(addr, piece.serial);
            }
            Err(Error::BadFree { .. } | Error::NotMapped { .. } | Error::Busy { .. }) => {
                let mut pieces = self.pieces.borrow_mut();
                if let Some(now) = pieces.get_mut(&addr.0).filter(|now| now.serial == piece.serial)
                {
                    now.sweeps -= 1;
                }
            }
            Err(_) => {}
        }
    }

    pub(super) fn forget(&self, addr: GAddr) {
        self.pieces.borrow_mut().remove(&addr.0);
    }

    /// What is still handed out.
    pub(super) fn allocations(&self) -> Vec<AllocationAudit> {
        let pieces = self.pieces.borrow();
        let audit = |(addr, one): (&u64, &Piece)| AllocationAudit {
            addr: *addr,
            bytes: one.bytes,
            owner: 0,
            certain: !one.is_in_doubt(),
        };
        pieces.iter().map(audit).collect()
    }

    /// After the table's end: what it did not give back. More than `each_max` for every operation
    /// that may have left something is a violation, if `bounded`.
    pub(super) fn orphans(
        &self,
        kernel: &Kernel,
        each_max: u64,
        bounded: bool,
    ) -> Vec<DeferredFree> {
        let pieces = self.pieces.borrow();
        let forgotten = pieces.values().filter(|piece| !piece.is_in_doubt()).count() as u64;
        let lossy = self.lossy.get();
        if bounded && forgotten > each_max * lossy {
            let first = pieces.iter().find(|(_, piece)| !piece.is_in_doubt());
            kernel.fail(
                "keys",
                format!(
                    "the table has lost {forgotten} allocations; {lossy} of its operations may \
                     have lost {each_max} each; the first: {first:x?}"
                ),
            );
        }
        let orphan = |(addr, one): (&u64, &Piece)| DeferredFree {
            addr: GAddr(*addr),
            bytes: one.bytes,
            freeing: one.is_in_doubt(),
            readable: false,
        };
        pieces.iter().map(orphan).collect()
    }

    /// Whether the history of every key has an order that explains it.
    pub(super) fn check_histories(&self, kernel: &Kernel) {
        let histories = self.histories.borrow();
        if let Err(found) = histories.check::<MapKey>(|_| None, CONFIGURATIONS_MAX) {
            kernel.fail("keys", found.violation("keys").text);
        }
    }
}
