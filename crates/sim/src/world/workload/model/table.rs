//! What the clients did to the table: the history of each key, which must be linearizable, and a
//! ledger of what the table has allocated.

use super::{DeferredFree, Fate};
use crate::check::conserve::AllocationAudit;
use crate::check::keys::{MapKey, MapOp};
use crate::check::linear::{Event, Histories, Times};
use crate::time::Ps;
use crate::world::kernel::{Kernel, ProcessId};
use rackpool_core::{Error, GAddr, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Configurations that the check of one key's history looks at.
const CONFIGURATIONS_MAX: usize = 400_000;

/// An allocation of the table.
#[derive(Clone, Copy, Debug)]
pub struct TableAllocation {
    bytes: u64,
    /// A free of it was called.
    pub freeing: bool,
    /// Sweeps that may have freed it.
    sweeps: u32,
    /// Who allocated it, and in which of its changes.
    taken_in: Option<(ProcessId, u64)>,
    /// Tells it from others at the same address.
    pub serial: u64,
}

impl TableAllocation {
    /// Whether it may be free.
    fn is_in_doubt(&self) -> bool {
        self.freeing || self.sweeps > 0
    }
}

#[derive(Clone, Copy, Debug)]
struct Call {
    op: MapOp,
    since: Ps,
    /// The daemon may hand memory out that nobody will know of.
    allocating: bool,
}

/// What the clients did to the table.
#[derive(Default)]
pub struct TableModel {
    histories: RefCell<Histories<u64, MapOp>>,
    pieces: RefCell<BTreeMap<u64, TableAllocation>>,
    serials: Cell<u64>,
    /// By client and key: a batch has several.
    under_way: RefCell<BTreeMap<(ProcessId, u64), Call>>,
    /// Changes that clients are in the middle of: how deep, and a number.
    changes: RefCell<BTreeMap<ProcessId, (u32, u64)>>,
    /// Operations that may have left memory behind: their client died, or told of a loss.
    lossy: Cell<u64>,
}

impl TableModel {
    /// A client calls an operation.
    pub fn called(&self, client: ProcessId, key: u64, op: MapOp, since: Ps) {
        let call = Call { op, since, allocating: false };
        self.under_way.borrow_mut().insert((client, key), call);
    }

    /// Its answer, or `None` if it may have been applied; not called for what was not.
    pub fn answered(&self, client: ProcessId, key: u64, answer: Option<MapOp>, at: Ps) {
        let call = self.under_way.borrow_mut().remove(&(client, key));
        let call = call.expect("an operation was called");
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
            self.histories.borrow_mut().add(key, event);
        }
    }

    /// The operation was refused: it is not applied and never will be.
    pub fn refused(&self, client: ProcessId, key: u64) {
        self.under_way.borrow_mut().remove(&(client, key));
    }

    /// An operation that has ended may have left memory behind.
    pub fn was_lossy(&self) {
        self.lossy.set(self.lossy.get() + 1);
    }

    pub fn change_begins(&self, client: ProcessId) {
        let mut changes = self.changes.borrow_mut();
        self.serials.set(self.serials.get() + 1);
        changes.entry(client).or_insert((0, self.serials.get())).0 += 1;
    }

    pub fn change_ends(&self, client: ProcessId) {
        let mut changes = self.changes.borrow_mut();
        let (depth, _) = changes.get_mut(&client).expect("it was begun");
        *depth -= 1;
        if *depth == 0 {
            changes.remove(&client);
        }
    }

    /// A client is about to leave: what it did not end is over.
    pub fn leaves(&self, client: ProcessId) {
        self.changes.borrow_mut().remove(&client);
    }

    /// A client died; the allocations that it may have been given without anybody knowing.
    pub fn on_killed(&self, client: ProcessId, at: Ps) -> u64 {
        self.leaves(client);
        let calls: Vec<_> = {
            let under_way = self.under_way.borrow();
            let of_client = under_way.range((client, 0)..=(client, u64::MAX));
            of_client.map(|((_, key), call)| (*key, call.allocating)).collect()
        };
        for (key, _) in &calls {
            self.was_lossy();
            self.answered(client, *key, None, at);
        }
        u64::from(calls.iter().any(|(_, allocating)| *allocating))
    }

    /// The memory of a rack is gone.
    pub fn on_power_lost(&self, fate: impl Fn(u64, u64) -> Fate) {
        self.pieces.borrow_mut().retain(|addr, piece| {
            let fate = fate(*addr, piece.bytes);
            piece.freeing |= fate == Fate::Unknown;
            fate != Fate::Gone
        });
    }

    pub fn set_allocating(&self, client: ProcessId, allocating: bool) {
        let mut under_way = self.under_way.borrow_mut();
        for (_, call) in under_way.range_mut((client, 0)..=(client, u64::MAX)) {
            call.allocating = allocating;
        }
    }

    pub fn took(&self, kernel: &Kernel, addr: GAddr, bytes: u64, by: ProcessId) {
        self.serials.set(self.serials.get() + 1);
        let taken_in = self.changes.borrow().get(&by).map(|(_, number)| (by, *number));
        let serial = self.serials.get();
        let piece = TableAllocation { bytes, freeing: false, sweeps: 0, taken_in, serial };
        let before = self.pieces.borrow_mut().insert(addr.0, piece);
        if let Some(before) = before.filter(|before| !before.is_in_doubt()) {
            kernel.fail("keys", format!("{addr} was handed out, and still is: {before:?}"));
        }
    }

    /// A client has got this memory for itself: pieces that were being freed there are free.
    pub fn taken_by_client(&self, addr: GAddr, bytes: u64) {
        let is_there =
            |one: u64, piece: &TableAllocation| one < addr.0 + bytes && addr.0 < one + piece.bytes;
        let mut pieces = self.pieces.borrow_mut();
        pieces.retain(|one, piece| !piece.is_in_doubt() || !is_there(*one, piece));
    }

    /// The piece as it was before.
    pub fn free_called(&self, addr: GAddr) -> Option<TableAllocation> {
        let mut pieces = self.pieces.borrow_mut();
        let piece = pieces.get_mut(&addr.0)?;
        let before = *piece;
        piece.freeing = true;
        Some(before)
    }

    /// Somebody else may have the address again already.
    pub fn freed(&self, addr: GAddr, serial: u64) {
        let mut pieces = self.pieces.borrow_mut();
        if pieces.get(&addr.0).is_some_and(|piece| piece.serial == serial) {
            pieces.remove(&addr.0);
        }
    }

    /// A sweep is about to free the piece.
    pub fn reclaim_called(&self, addr: GAddr) -> Option<TableAllocation> {
        let mut pieces = self.pieces.borrow_mut();
        let piece = pieces.get_mut(&addr.0)?;
        piece.sweeps += 1;
        Some(*piece)
    }

    /// It has freed it or was refused; with another error, or without an end, it may have.
    pub fn reclaim_ended(
        &self,
        kernel: &Kernel,
        addr: GAddr,
        piece: &TableAllocation,
        result: &Result<()>,
    ) {
        match result {
            Ok(()) => {
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

    pub fn forget(&self, addr: GAddr) {
        self.pieces.borrow_mut().remove(&addr.0);
    }

    /// What is still handed out.
    pub fn allocations(&self) -> Vec<AllocationAudit> {
        let pieces = self.pieces.borrow();
        let audit = |(addr, one): (&u64, &TableAllocation)| AllocationAudit {
            addr: *addr,
            bytes: one.bytes,
            owner: 0,
            certain: !one.is_in_doubt(),
        };
        pieces.iter().map(audit).collect()
    }

    /// After the table's end: what it did not give back. More than `each_max` for every operation
    /// that may have left something is a violation, if `bounded`.
    pub fn orphans(&self, kernel: &Kernel, each_max: u64, bounded: bool) -> Vec<DeferredFree> {
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
        let orphan = |(addr, one): (&u64, &TableAllocation)| DeferredFree {
            addr: GAddr(*addr),
            bytes: one.bytes,
            freeing: one.is_in_doubt(),
            readable: false,
        };
        pieces.iter().map(orphan).collect()
    }

    /// Whether the history of every key has an order that explains it.
    pub fn check_histories(&self, kernel: &Kernel) {
        let histories = self.histories.borrow();
        if let Err(found) = histories.check::<MapKey>(|_| None, CONFIGURATIONS_MAX) {
            kernel.fail("keys", found.violation("keys").text);
        }
    }
}
