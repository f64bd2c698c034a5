//! The model that all clients of a scenario share: what they did, and what they must find.

pub mod table;

use super::locking::LockModel;
use super::range_model::RangeModel;
use crate::check::bytes::ByteModel;
use crate::check::conserve::AllocationAudit;
use crate::check::linear::{Event, Histories, Times};
use crate::check::words::{Word, WordOp};
use crate::time::Ps;
use crate::world::handle::SimHandle;
use crate::world::kernel::{Kernel, ProcessId};
use rackpool_core::{GAddr, RackId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use table::TableModel;

/// Configurations that the check of one word's history looks at.
const CONFIGURATIONS_MAX: usize = 400_000;

/// What the nemesis wants of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The holder of the page frees it.
    Free,
    Move,
}

#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) bytes: u64,
    /// Who uses it; `None`: its client died, and the audit takes it.
    pub(super) holder: Option<ProcessId>,
    /// It ends with its session.
    pub(super) owned: bool,
    /// Its end is under way or unknown.
    pub(super) freeing: bool,
    /// It holds words, which have histories instead of bytes.
    pub(super) words: bool,
    /// Tells it from others at the same address.
    pub(super) serial: u64,
}

#[derive(Clone, Debug)]
pub(super) struct UnderWay {
    pub(super) name: &'static str,
    pub(super) since: Ps,
    /// Its event in a word's history.
    pub(super) word: Option<(u64, WordOp)>,
}

/// What became of a page when a rack lost its power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was in another rack.
    Safe,
    Gone,
    /// It was on its way: its new home may have it, or may have been about to.
    Unknown,
}

/// An allocation that no client holds.
pub struct DeferredFree {
    pub addr: GAddr,
    pub bytes: u64,
    /// A free of it has an unknown end.
    pub freeing: bool,
    /// The model knows its bytes.
    pub readable: bool,
}

/// What the clients did and must find.
#[derive(Default)]
pub struct WorkloadModel {
    pub operations: Cell<u64>,
    pub(super) words: RefCell<Vec<GAddr>>,
    pub(super) histories: RefCell<Histories<u64, WordOp>>,
    /// Racks that lost their power since the words were made.
    pub(super) lost: RefCell<Vec<usize>>,
    pub(super) bytes: RefCell<ByteModel>,
    pub(super) objects: RefCell<BTreeMap<u64, Object>>,
    pub(super) under_way: RefCell<BTreeMap<ProcessId, UnderWay>>,
    /// Allocations that a client died in, or was cut off in: their answer may have been taken.
    pub maybe_leaked: Cell<u64>,
    pub(super) locks: RefCell<LockModel>,
    pub(super) ranges: RefCell<RangeModel>,
    /// What is to be done to the page that a client uses, once that is caught in the midst of it.
    pub wish: Cell<Option<(ProcessId, Wish)>>,
    /// Clients that died while they wrote.
    pub torn: Cell<u64>,
    /// The table, if the run has one.
    pub table: TableModel,
}

impl WorkloadModel {
    /// A client died: what it was doing has an unknown end, what it had is the audit's.
    pub fn on_killed(&self, process: ProcessId, at: Ps) {
        self.locks.borrow_mut().ended(process);
        self.ranges.borrow_mut().ended(process);
        let leaked = self.maybe_leaked.get() + self.table.on_killed(process, at);
        self.maybe_leaked.set(leaked);
        if let Some(one) = self.under_way.borrow_mut().remove(&process) {
            self.torn.set(self.torn.get() + u64::from(one.name.starts_with("write")));
            if matches!(one.name, "alloc" | "alloc-into") {
                self.maybe_leaked.set(self.maybe_leaked.get() + 1);
            }
            if let Some((addr, op)) = one.word {
                let times = times_of(&op);
                let event = Event {
                    client: Some(process.0),
                    called: one.since.0,
                    returned: None,
                    times,
                    op,
                };
                self.histories.borrow_mut().add(addr, event);
            }
        }
        self.objects.borrow_mut().retain(|addr, object| {
            if object.holder == Some(process) {
                object.holder = None;
                if object.owned {
                    // It comes back with the session, sooner or later.
                    self.bytes.borrow_mut().free_called(*addr, at);
                }
                return !object.owned;
            }
            true
        });
    }

    /// What a client gave up while its daemon was told that it was taken may be lost.
    pub fn leaves_in_doubt(&self, handle: &mut SimHandle) {
        self.maybe_leaked.set(self.maybe_leaked.get() + handle.take_in_doubt());
    }

    /// The table has got this memory: objects that were being freed there are free.
    pub fn taken_by_table(&self, addr: GAddr, bytes: u64, at: Ps) {
        self.objects.borrow_mut().retain(|one, object| {
            let there = *one < addr.0 + bytes && addr.0 < one + object.bytes;
            let free = object.freeing && there;
            if free {
                self.bytes.borrow_mut().freed(*one, at);
            }
            !free
        });
    }

    /// A rack's memory is gone, with all allocations whose pages were there. What was on its way
    /// from rack to rack is there or not.
    pub fn on_power_lost(&self, rack: usize, fate: impl Fn(u64, u64) -> Fate, at: Ps) {
        self.lost.borrow_mut().push(rack);
        self.locks.borrow_mut().doubt();
        self.ranges.borrow_mut().on_power_lost(|addr, bytes| fate(addr, bytes) != Fate::Safe);
        let mut bytes = self.bytes.borrow_mut();
        self.objects.borrow_mut().retain(|addr, object| {
            let fate = fate(*addr, object.bytes);
            if fate == Fate::Unknown {
                object.freeing = true;
                bytes.free_called(*addr, at);
            }
            fate != Fate::Gone
        });
        self.table.on_power_lost(&fate);
        bytes.lost(|addr, bytes| fate(addr, bytes) == Fate::Gone, at);
    }

    /// A daemon was killed: what it was copying is there in part.
    pub fn on_daemon_killed(&self) {
        self.ranges.borrow_mut().on_daemon_killed();
    }

    /// The clock of a rack's host jumped.
    pub fn on_jump(&self, rack: RackId, at: Ps) {
        self.ranges.borrow_mut().on_jump(rack, at);
    }

    /// What no client holds any more.
    pub fn orphans(&self) -> Vec<DeferredFree> {
        let objects = self.objects.borrow();
        let orphan = |(addr, one): (&u64, &Object)| DeferredFree {
            addr: GAddr(*addr),
            bytes: one.bytes,
            freeing: one.freeing,
            readable: !one.freeing && !one.words,
        };
        objects.iter().map(orphan).collect()
    }

    pub fn forget(&self, addr: GAddr, at: Ps) {
        self.objects.borrow_mut().remove(&addr.0);
        self.table.forget(addr);
        let mut bytes = self.bytes.borrow_mut();
        bytes.free_called(addr.0, at);
        bytes.freed(addr.0, at);
    }

    /// What is still handed out.
    pub fn allocations(&self) -> Vec<AllocationAudit> {
        let objects = self.objects.borrow();
        let audit = |(addr, one): (&u64, &Object)| AllocationAudit {
            addr: *addr,
            bytes: one.bytes,
            owner: 0,
            certain: !one.freeing,
        };
        let mut all: Vec<AllocationAudit> = objects.iter().map(audit).collect();
        all.extend(self.table.allocations());
        all
    }

    /// Whether no rack has lost its power.
    pub fn nothing_lost(&self) -> bool {
        self.lost.borrow().is_empty()
    }

    /// What is under way, for a person.
    pub fn under_way(&self) -> String {
        let mut text = String::new();
        for (process, one) in self.under_way.borrow().iter() {
            let _ = write!(text, "process {} {} since {}; ", process.0, one.name, one.since);
        }
        if text.is_empty() { "nothing".into() } else { text }
    }

    /// Whether the histories of all words have an order that explains them.
    pub fn check_histories(&self, kernel: &Kernel) {
        let histories = self.histories.borrow();
        if let Err(found) = histories.check::<Word>(|_| 0, CONFIGURATIONS_MAX) {
            let violation = found.violation("words");
            kernel.fail("words", violation.text);
        }
        self.table.check_histories(kernel);
    }
}

/// An operation without an answer.
pub(super) fn times_of(op: &WordOp) -> Times {
    match op {
        WordOp::Write(_) => Times::Any,
        _ => Times::AtMostOnce,
    }
}
