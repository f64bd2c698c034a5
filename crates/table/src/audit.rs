//! The audit of a pool: every allocation by kind, and whether each part of a hash table is named by
//! a table exactly once. What nothing names is freed if that is asked for: a *sweep*. Callers:
//! `rackpool fsck`, and the thread of a daemon after a client died in the middle of a change.
//!
//! The pool may be in use. What is *lost* has lived since a watch began ([`AuditRequest::Begin`]),
//! and no client can have it in its hands:
//! 1. The watch begins in every rack. What is not watched is not judged.
//! 2. Every client that is in the middle of a change now is waited for: what it had allocated
//!    before the watch is published by then, or freed and so no longer watched.
//! 3. All tables are walked. What is named all the time is found (`walk.rs`); nothing that is
//!    named no more is named again.
//! 4. Every client that is in the middle of a change now is waited for: what it had taken out of a
//!    table before the walk is freed by then.
//! 5. What is watched still and was not found is lost. The daemon frees it if it is watched even
//!    then, so an address that was given out again meanwhile is safe.
//!
//! A client that stays in the middle of a change (stopped, or with a long value to write) may have
//! all of it in its hands: then what was not found is *held*. A table, name or rack that cannot be
//! read may name all of it: then the audit is incomplete and nothing is freed.
//!
//! What a dead client sent over a fabric before its end may still be on its way: a sweep waits a
//! lease between the beginning of the watch and the first free.

use crate::error::{Error, Result};
use crate::words::{GAddr, PoolResult, RackId, Words};
use crate::{Named, NamedBy, Table};
use rackpool::protocol::{AllocationPiece, AuditReply, AuditRequest, ChangingSession, KindTotal};
use rackpool::{AllocationKind, Handle};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Between two looks at clients that are in the middle of a change.
const PAUSE: Duration = Duration::from_millis(10);
/// Looks at them before what was not found counts as held: 5 s.
const CHANGES_LOOKS_MAX: u32 = 500;
/// Pauses between the beginning of a sweep's watch and its first free: more than a lease.
const SETTLE_PAUSES: u32 = 120;
/// How often a table is walked that changes too fast.
const WALKS_MAX: u32 = 4;
/// How often all is looked at, as long as something was named twice, or named and not there.
const LOOKS_MAX: u32 = 3;
/// Names of tables, addresses and faults that a report lists; more are counted.
pub const LISTED_MAX: usize = 100;

/// A pool that can be audited.
pub trait Audited: Words {
    fn page_bytes(&self) -> u64;
    /// All racks, or shards of them, and whether each is there.
    fn racks(&mut self) -> PoolResult<Vec<(RackId, bool)>>;
    /// Names behind one, in order, with what is under them; empty after the last.
    fn roots_after(&mut self, after: &str) -> PoolResult<Vec<(String, GAddr)>>;
    /// Asks a rack about its allocations.
    fn audit(&mut self, rack: RackId, request: AuditRequest) -> PoolResult<AuditReply>;
    /// Whether address and size name an allocation.
    fn is_allocated(&mut self, addr: GAddr, bytes: u64) -> PoolResult<bool>;
    /// Frees what has been watched since `watch` began in its rack.
    fn reclaim(&mut self, addr: GAddr, watch: u64) -> PoolResult<()>;
    fn pause(&mut self, time: Duration);
}

impl Audited for Handle {
    fn page_bytes(&self) -> u64 {
        Handle::page_bytes(self)
    }

    fn racks(&mut self) -> PoolResult<Vec<(RackId, bool)>> {
        self.admin().racks()
    }

    fn roots_after(&mut self, after: &str) -> PoolResult<Vec<(String, GAddr)>> {
        self.admin().roots_after(after)
    }

    fn audit(&mut self, rack: RackId, request: AuditRequest) -> PoolResult<AuditReply> {
        self.admin().audit(rack, request)
    }

    fn is_allocated(&mut self, addr: GAddr, bytes: u64) -> PoolResult<bool> {
        self.admin().is_allocated(addr, bytes)
    }

    fn reclaim(&mut self, addr: GAddr, watch: u64) -> PoolResult<()> {
        self.admin().reclaim(addr, watch)
    }

    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub allocations: u64,
    /// Their bytes, as they take them: size classes and whole pages.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.allocations += 1;
        self.bytes += bytes;
    }
}

/// What lives in a rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RackFindings {
    pub rack: RackId,
    pub kinds: BTreeMap<AllocationKind, Amount>,
    /// Of the kind `table`: what no table names and no client holds.
    pub lost: Amount,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFindings {
    pub name: String,
    /// What it names. Bytes as they were asked for.
    pub named: Amount,
}

/// What an audit has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub racks: Vec<RackFindings>,
    pub tables: Vec<TableFindings>,
    /// Allocations that no table names and no client holds.
    pub lost: Amount,
    pub lost_at: Vec<GAddr>,
    /// What no table names, and a client in the middle of a change may hold.
    pub held: Amount,
    /// The processes of these clients.
    pub holders: Vec<u32>,
    /// What tables name that was allocated as an application's, as by versions before layout 8.
    pub older: Amount,
    pub named_twice: Vec<GAddr>,
    pub named_free: Vec<GAddr>,
    /// Why the audit is incomplete.
    pub faults: Vec<String>,
    /// Of what was lost: given back by this audit.
    pub reclaimed: Amount,
}

impl Findings {
    /// Whether each part of a table is named exactly once, or was given back.
    pub fn is_clean(&self) -> bool {
        self.lost == self.reclaimed && self.is_whole()
    }

    fn is_whole(&self) -> bool {
        self.named_twice.is_empty() && self.named_free.is_empty() && self.faults.is_empty()
    }
}

/// Looks at the whole pool; with `repair` gives back what is lost. Takes about as long as reading
/// the tables' indexes and short values, and up to ten seconds for clients in the middle of a
/// change.
///
/// # Errors
/// `timeout` or `peer-dead` if the master is not there, `busy` if another audit began meanwhile.
/// What a rack could not answer is in the findings.
pub fn audit<A: Audited>(pool: &mut A, repair: bool) -> Result<Findings> {
    let (mut doubts, mut reclaimed) = (Doubts::default(), Amount::default());
    for look in 1..=LOOKS_MAX {
        let mut looked = Look::default();
        let mut found = looked.run(pool, repair)?;
        // What earlier looks gave back is lost no more.
        for amount in [&mut found.lost, &mut found.reclaimed] {
            amount.allocations += reclaimed.allocations;
            amount.bytes += reclaimed.bytes;
        }
        reclaimed = found.reclaimed;
        // In a pool in use a thing may be freed, or go to another bucket, while tables are walked.
        // If the same state of a bucket names it in two looks, it was named all the time between.
        found.named_twice = in_both(&looked.doubts.twice, &doubts.twice);
        found.named_free = in_both(&looked.doubts.free, &doubts.free);
        doubts = looked.doubts;
        let is_wrong = !found.named_twice.is_empty() || !found.named_free.is_empty();
        let is_plain = doubts.twice.is_empty() && doubts.free.is_empty();
        if is_wrong || is_plain || look == LOOKS_MAX {
            return Ok(found);
        }
    }
    unreachable!("the last look returns")
}

fn in_both(one: &BTreeSet<(u64, NamedBy)>, other: &BTreeSet<(u64, NamedBy)>) -> Vec<GAddr> {
    one.intersection(other).take(LISTED_MAX).map(|(addr, _)| GAddr(*addr)).collect()
}

/// Sweeps as long as some are due in `rack`; whether none is due any more.
pub fn sweep<A: Audited>(pool: &mut A, rack: RackId) -> Result<bool> {
    let AuditReply::Due { count } = pool.audit(rack, AuditRequest::Due)? else {
        return Ok(false);
    };
    if count == 0 {
        return Ok(true);
    }
    let found = audit(pool, true)?;
    if !found.faults.is_empty() || found.held.allocations > 0 || found.lost != found.reclaimed {
        return Ok(false);
    }
    match pool.audit(rack, AuditRequest::Swept { count })? {
        AuditReply::Due { count } => Ok(count == 0),
        _ => Ok(false),
    }
}

/// A page of the kind `table`, or a run of them.
struct Page {
    rack: RackId,
    shift: u8,
    run_pages: u32,
    /// Which of its objects are watched, and which a table names; of a run bit 0.
    watched: Vec<u64>,
    named: Vec<u64>,
}

impl Page {
    fn bytes(&self, page_bytes: u64) -> u64 {
        if self.shift == 0 { u64::from(self.run_pages) * page_bytes } else { 1 << self.shift }
    }
}

/// One look at the pool.
#[derive(Default)]
struct Look {
    found: Findings,
    watches: BTreeMap<RackId, u64>,
    pages: BTreeMap<u64, Page>,
    /// Named, and not of the kind `table`, or not watched.
    outside: Vec<Named>,
    doubts: Doubts,
    holders: BTreeSet<u32>,
}

/// What one look alone cannot tell from what changed meanwhile: addresses with what named them.
#[derive(Default)]
struct Doubts {
    twice: BTreeSet<(u64, NamedBy)>,
    free: BTreeSet<(u64, NamedBy)>,
}

impl Look {
    fn run<A: Audited>(&mut self, pool: &mut A, repair: bool) -> Result<Findings> {
        let looked = self.look(pool, repair);
        for (rack, watch) in &self.watches {
            // A watch that is not ended ends when there are too many.
            let _ = pool.audit(*rack, AuditRequest::End { watch: *watch });
        }
        looked.map(|()| std::mem::take(&mut self.found))
    }

    fn look<A: Audited>(&mut self, pool: &mut A, repair: bool) -> Result<()> {
        self.begin(pool)?;
        self.await_changes(pool);
        self.list_pages(pool, true)?;
        self.walk_tables(pool)?;
        self.await_changes(pool);
        self.list_pages(pool, false)?;
        self.check_outside(pool);
        let unnamed = self.unnamed(pool.page_bytes());
        self.judge(&unnamed);
        let is_sure = self.found.faults.is_empty() && self.holders.is_empty();
        if repair && is_sure && !unnamed.is_empty() {
            for _ in 0..SETTLE_PAUSES {
                pool.pause(PAUSE);
            }
            self.reclaim(pool, &unnamed)?;
        }
        Ok(())
    }

    /// A rack that does not answer makes the audit incomplete.
    fn fault(&mut self, what: String) {
        if self.found.faults.len() < LISTED_MAX && !self.found.faults.contains(&what) {
            self.found.faults.push(what);
        }
    }

    fn begin<A: Audited>(&mut self, pool: &mut A) -> Result<()> {
        for (rack, is_there) in pool.racks()? {
            if !is_there {
                self.fault(format!("rack {rack} is not there"));
                continue;
            }
            match pool.audit(rack, AuditRequest::Begin) {
                Ok(AuditReply::Begun { watch }) => {
                    self.watches.insert(rack, watch);
                }
                Ok(_) => self.fault(format!("rack {rack} gave an unexpected answer")),
                Err(error) => self.fault(format!("rack {rack}: {error}")),
            }
        }
        Ok(())
    }

    /// Waits for all clients that are in the middle of a change now.
    fn await_changes<A: Audited>(&mut self, pool: &mut A) {
        let mut waited_for = self.changing(pool);
        for _ in 0..CHANGES_LOOKS_MAX {
            if waited_for.is_empty() {
                return;
            }
            pool.pause(PAUSE);
            let now = self.changing(pool);
            waited_for.retain(|one| now.contains(one));
        }
        self.holders.extend(waited_for.iter().map(|(_, session)| session.pid));
    }

    fn changing<A: Audited>(&mut self, pool: &mut A) -> Vec<(RackId, ChangingSession)> {
        let racks: Vec<RackId> = self.watches.keys().copied().collect();
        let mut all = Vec::new();
        for rack in racks {
            match pool.audit(rack, AuditRequest::Changing) {
                Ok(AuditReply::Changing(some)) => all.extend(some.iter().map(|one| (rack, *one))),
                Ok(_) => self.fault(format!("rack {rack} gave an unexpected answer")),
                Err(error) => self.fault(format!("rack {rack}: {error}")),
            }
        }
        all
    }

    /// Asks for all that is watched: at first, or again after the walk, when less may be.
    fn list_pages<A: Audited>(&mut self, pool: &mut A, is_first: bool) -> Result<()> {
        if !is_first {
            self.pages.values_mut().for_each(|page| page.watched.fill(0));
        }
        for (rack, watch) in self.watches.clone() {
            let mut kinds: BTreeMap<AllocationKind, Amount> = BTreeMap::new();
            let mut from = Some((0, 0));
            while let Some(at) = from.take() {
                match pool.audit(rack, AuditRequest::Pieces { watch, from: at }) {
                    Ok(AuditReply::Pieces { pieces, totals, next }) => {
                        pieces.into_iter().for_each(|piece| self.take_piece(rack, piece));
                        for KindTotal { kind, allocations, bytes } in totals {
                            let amount = kinds.entry(kind).or_default();
                            amount.allocations += allocations;
                            amount.bytes += bytes;
                        }
                        from = next.filter(|next| *next > at);
                    }
                    Ok(_) => self.fault(format!("rack {rack} gave an unexpected answer")),
                    Err(error) if error.code() == "busy" => return Err(error.into()),
                    Err(error) => self.fault(format!("rack {rack}: {error}")),
                }
            }
            if is_first {
                let lost = Amount::default();
                self.found.racks.push(RackFindings { rack, kinds, lost });
            }
        }
        Ok(())
    }

    fn take_piece(&mut self, rack: RackId, piece: AllocationPiece) {
        let AllocationPiece { page, shift, run_pages, first_object, objects } = piece;
        let entry = self.pages.entry(page.0).or_insert_with(|| {
            let (watched, named) = (Vec::new(), Vec::new());
            Page { rack, shift, run_pages, watched, named }
        });
        let objects = if shift == 0 { vec![1] } else { objects };
        let first = first_object as usize / 64;
        let length = entry.watched.len().max(first + objects.len());
        entry.watched.resize(length, 0);
        entry.named.resize(length, 0);
        entry.watched[first..first + objects.len()].copy_from_slice(&objects);
    }

    fn walk_tables<A: Audited>(&mut self, pool: &mut A) -> Result<()> {
        let mut after = String::new();
        loop {
            let roots = pool.roots_after(&after)?;
            let Some((last, _)) = roots.last() else { return Ok(()) };
            after.clone_from(last);
            for (name, _) in roots {
                self.walk_table(pool, &name);
            }
        }
    }

    fn walk_table<A: Audited>(&mut self, pool: &mut A, name: &str) {
        for walk in 1..=WALKS_MAX {
            let mut named: Vec<Named> = Vec::new();
            let walked = Table::open(pool, name)
                .and_then(|mut table| table.for_each_named(pool, |_, one| named.push(one)));
            match walked {
                Ok(()) => {
                    let mut amount = Amount::default();
                    named.iter().for_each(|one| amount.add(one.bytes));
                    self.found.tables.push(TableFindings { name: name.into(), named: amount });
                    let page_bytes = pool.page_bytes();
                    named.iter().for_each(|one| self.name(*one, page_bytes));
                    return;
                }
                // Removed meanwhile, or an application's own.
                Err(Error::NotFound { .. } | Error::NotATable { is_other: true, .. }) => return,
                Err(Error::Pool(error))
                    if matches!(error.code(), "not-mapped" | "out-of-bounds")
                        && named.is_empty()
                        && !self.is_table_page(pool, name) =>
                {
                    return;
                }
                Err(error) if walk == WALKS_MAX => self.fault(format!("table {name}: {error}")),
                Err(_) => pool.pause(PAUSE),
            }
        }
    }

    /// Whether a name is of an address in a page of the kind `table`.
    fn is_table_page<A: Audited>(&self, pool: &mut A, name: &str) -> bool {
        let page_bytes = pool.page_bytes();
        match pool.root(name) {
            Ok(Some(addr)) => self.pages.contains_key(&(addr.0 / page_bytes)),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    fn name(&mut self, one: Named, page_bytes: u64) {
        let addr = one.addr;
        let page = self.pages.get_mut(&(addr.0 / page_bytes));
        let offset = addr.0 % page_bytes;
        let Some(page) = page.filter(|page| offset.is_multiple_of(1 << page.shift)) else {
            return self.outside.push(one);
        };
        let index = if page.shift == 0 { 0 } else { (offset >> page.shift) as usize };
        let bit = 1 << (index % 64);
        if page.watched.get(index / 64).is_none_or(|word| word & bit == 0) {
            return self.outside.push(one);
        }
        if page.named[index / 64] & bit != 0 {
            self.doubts.twice.insert((addr.0, one.by));
        }
        page.named[index / 64] |= bit;
    }

    fn check_outside<A: Audited>(&mut self, pool: &mut A) {
        let page_bytes = pool.page_bytes();
        for Named { addr, bytes, by } in std::mem::take(&mut self.outside) {
            match pool.is_allocated(addr, bytes) {
                Ok(true) if !self.pages.contains_key(&(addr.0 / page_bytes)) => {
                    self.found.older.add(bytes);
                }
                // New since the watch began.
                Ok(true) => {}
                Ok(false) => {
                    self.doubts.free.insert((addr.0, by));
                }
                Err(error) => self.fault(format!("{addr}: {error}")),
            }
        }
    }

    /// What is watched and was not named: rack, address, bytes.
    fn unnamed(&self, page_bytes: u64) -> Vec<(RackId, GAddr, u64)> {
        let mut all = Vec::new();
        for (id, page) in &self.pages {
            for (index, (watched, named)) in page.watched.iter().zip(&page.named).enumerate() {
                let mut left = watched & !named;
                while left != 0 {
                    let object = 64 * index as u64 + u64::from(left.trailing_zeros());
                    let addr = GAddr(id * page_bytes + (object << page.shift));
                    all.push((page.rack, addr, page.bytes(page_bytes)));
                    left &= left - 1;
                }
            }
        }
        all
    }

    fn judge(&mut self, unnamed: &[(RackId, GAddr, u64)]) {
        self.found.holders = self.holders.iter().copied().collect();
        for (rack, addr, bytes) in unnamed {
            if !self.holders.is_empty() {
                self.found.held.add(*bytes);
                continue;
            }
            self.found.lost.add(*bytes);
            if self.found.lost_at.len() < LISTED_MAX {
                self.found.lost_at.push(*addr);
            }
            if let Some(of_rack) = self.found.racks.iter_mut().find(|one| one.rack == *rack) {
                of_rack.lost.add(*bytes);
            }
        }
    }

    fn reclaim<A: Audited>(
        &mut self,
        pool: &mut A,
        unnamed: &[(RackId, GAddr, u64)],
    ) -> Result<()> {
        for (rack, addr, bytes) in unnamed {
            match pool.reclaim(*addr, self.watches[rack]) {
                Ok(()) => self.found.reclaimed.add(*bytes),
                Err(error) => match error.code() {
                    // It was freed since, by an audit before this one.
                    "bad-free" | "not-mapped" => self.found.reclaimed.add(*bytes),
                    "busy" => return Err(error.into()),
                    _ => self.fault(format!("{addr}: {error}")),
                },
            }
        }
        Ok(())
    }
}
