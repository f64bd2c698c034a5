//! Orders to the pool, and questions about it: what an operator or a data structure's upkeep does,
//! beside the reads and writes of a [`Handle`]. What each may do is said by `core::client`; here it
//! is driven.
//!
//! Functions that are hidden from the documents speak the words of the protocol, which may change:
//! they are for the other crates of rackpool.

use crate::clock;
use crate::drive::block;
use crate::error::{Result, WireError, WireResult};
use crate::handle::{ATOMIC_ID, Handle};
use crate::stats::{PoolStats, RackStats};
use rackpool_core::client::{
    DaemonQuery, IsAllocated, MasterQuery, Migrate, Operation, Reclaim, Share,
};
use rackpool_core::constants::{BALANCES_MAX, SESSIONS_MAX};
use rackpool_core::error::DeathCause;
use rackpool_core::policy::{BalanceRecord, DecisionRecord};
use rackpool_core::wire::{AuditReply, AuditRequest, Reply, Request, SessionState};
use rackpool_core::{GAddr, RackId};
use rackpool_fabric::LocalBuffer;
use std::borrow::BorrowMut;

/// Orders to a pool through a handle: its own ([`Pool::admin`](crate::Pool::admin)), or one that
/// does other things too ([`Handle::admin`]).
#[derive(Debug)]
pub struct Admin<H: BorrowMut<Handle> = Handle> {
    pub(crate) handle: H,
}

impl Handle {
    /// Orders to the pool, and questions about it.
    pub fn admin(&mut self) -> Admin<&mut Handle> {
        Admin { handle: self }
    }
}

impl<H: BorrowMut<Handle>> Admin<H> {
    /// Moves the page of `addr` to the rack `to`, with everything that is in it: its address stays,
    /// and so does what other handles read and write there meanwhile, which takes longer while the
    /// page is on its way. The rack where the page is then: `to`, also if it was there already.
    /// `addr` may be any address in the page. Pages of one allocation move one by one, and so do
    /// a word and what it names (`alloc_into`).
    ///
    /// Blocks: one call to the master, two requests to each of the racks, and one copy of a page
    /// (2 MiB by default) through this process, all within `request_timeout_ms`. A failed move
    /// leaves the page where it was; telling racks and master so takes one more second each if they
    /// do not answer.
    ///
    /// ```
    /// # fn main() -> rackpool::Result<()> {
    /// use rackpool::{Placement, RackId, cluster::Cluster};
    /// let cluster = Cluster::start(2)?;
    /// let mut handle = cluster.pool(0)?.handle()?;
    /// let page_bytes = handle.page_bytes();
    /// let addr = handle.alloc(page_bytes, Placement::Local)?;
    /// handle.write(addr, b"goes along")?;
    /// assert_eq!(handle.admin().migrate(addr, RackId(1))?, RackId(1));
    /// let mut bytes = [0; 10];
    /// handle.read(addr, &mut bytes)?;
    /// assert_eq!(&bytes, b"goes along");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `stays` if the page cannot move, or not now, and the message says why: it is a session's own
    /// memory, locked or pinned, a client has not finished with it, something in it is being freed
    /// for another rack, or another client moves it. `busy` if too much moves at once; `full` if
    /// `to` has no free page; `no-such-rack`; `not-mapped` and `lost` for the page; `moving` if it
    /// was moved meanwhile; `denied` if the pool is read-only here; `peer-dead` and `timeout` if
    /// one of the racks does not answer: then the page is in one of them, whole, and moving it
    /// again tells where.
    pub fn migrate(&mut self, addr: GAddr, to: RackId) -> Result<RackId> {
        let handle = self.handle.borrow_mut();
        handle.client.check(addr, 1)?;
        if handle.links.is_read_only() {
            return Err(handle.links.read_only_error().into());
        }
        handle.give_locks_back();
        handle.links.tell_loss()?;
        let mut buffer = vec![0; Migrate::buffer_bytes(&handle.client) as usize];
        handle.rounds += 1;
        let mut op = Migrate::new(&handle.client, addr, to, ATOMIC_ID | handle.rounds);
        let buffers = &mut [LocalBuffer::Into(&mut buffer)];
        Ok(handle.wait_with(buffers, async |cx, _| op.run(cx).await)?.rack)
    }

    /// Asks the home of the page of `addr` for a replica of it in the rack `to`, from which clients
    /// of that rack then read. Writes go on and are seen by all reads that follow them, but each
    /// takes some messages more. That this returns says that the replica will be made; it may end
    /// at any time, for example when memory is wanted.
    ///
    /// # Errors
    /// `stays` if no daemon in that rack keeps replicas of this home's pages (those with
    /// `--migrate` do), or no memory for it; `not-mapped` and `lost` for the page; `peer-dead` and
    /// `timeout` if the home does not answer.
    pub fn replicate(&mut self, addr: GAddr, to: RackId) -> Result<()> {
        let handle = self.handle.borrow_mut();
        handle.client.check(addr, 1)?;
        Ok(handle.run(&mut Share::new(addr, to))?)
    }

    /// Ends all replicas of the page of `addr`. When this returns, none can be read, and for a
    /// second the page's home makes none by itself.
    ///
    /// # Errors
    /// As [`Admin::replicate`].
    pub fn recall(&mut self, addr: GAddr) -> Result<()> {
        let handle = self.handle.borrow_mut();
        handle.client.check(addr, 1)?;
        Ok(handle.run(&mut Share::recall(addr))?)
    }

    /// What the daemon of a rack decided about pages at home there, from decision number `from`
    /// on, with their numbers: the last 1024 at most, counted from 1 since the daemon started. Each
    /// record holds all that was known, and [`rackpool_core::policy::replay`] decides it again.
    /// Blocks for one request to the rack for every 16 decisions.
    ///
    /// # Errors
    /// `no-such-rack`, `peer-dead`, `timeout`.
    #[doc(hidden)]
    pub fn decisions(&mut self, rack: RackId, from: u64) -> Result<Vec<(u64, DecisionRecord)>> {
        let handle = self.handle.borrow_mut();
        let deadline_ns = clock::deadline_ns(handle.links.timeout_ms());
        let (mut all, mut from): (Vec<(u64, DecisionRecord)>, u64) = (Vec::new(), from);
        loop {
            let part = handle.query(rack, &DaemonQuery::decisions(from), deadline_ns)?;
            let Some((last, _)) = part.last() else { return Ok(all) };
            from = last.saturating_add(1).max(from.saturating_add(1));
            all.extend(part);
        }
    }

    /// What a rack's daemon decided about sending cold pages to emptier racks
    /// (`daemon --rebalance on`), from decision `from` on: as many as it remembers, with their
    /// numbers, which count from 1 in each of its processes. Asks the daemon several times.
    ///
    /// # Errors
    /// What the daemon's silence means.
    #[doc(hidden)]
    pub fn balances(&mut self, rack: RackId, from: u64) -> Result<Vec<(u64, BalanceRecord)>> {
        let handle = self.handle.borrow_mut();
        let deadline_ns = clock::deadline_ns(handle.links.timeout_ms());
        let mut all: Vec<(u64, BalanceRecord)> = Vec::new();
        while all.len() < BALANCES_MAX {
            let from = all.last().map_or(from, |(number, _)| number.saturating_add(1));
            let part = handle.query(rack, &DaemonQuery::balances(from), deadline_ns)?;
            if part.is_empty() {
                break;
            }
            all.extend(part);
        }
        Ok(all)
    }

    /// Counters of the master, of every rack's daemon, and of this handle. A rack that cannot be
    /// asked is listed with the reason.
    pub fn pool_stats(&mut self) -> Result<PoolStats> {
        let handle = self.handle.borrow_mut();
        handle.give_locks_back();
        let deadline_ns = clock::deadline_ns(handle.links.timeout_ms());
        let query = MasterQuery::stats();
        let master = query.answer(handle.links.master_call(query.call(), deadline_ns)?)?;
        let infos = handle.links.racks(deadline_ns)?;
        let racks = infos.into_iter().map(|info| {
            let asked = if info.alive {
                handle.query(info.rack, &DaemonQuery::stats(), deadline_ns)
            } else {
                Err(WireError::PeerDead {
                    peer: format!("daemon of rack {}", info.rack),
                    cause: DeathCause::Closed,
                })
            };
            let error = asked.as_ref().err().map(WireError::to_string);
            let (daemon, tiers) = asked.ok().unzip();
            RackStats {
                rack: info.rack,
                alive: info.alive,
                fabric: format!("{:?}", info.fabric).to_lowercase(),
                fabric_addr: info.fabric_addr,
                error,
                daemon,
                tiers: tiers.unwrap_or_default(),
            }
        });
        let racks = racks.collect();
        Ok(PoolStats { master, racks, handle: handle.handle_stats() })
    }

    /// The sessions at a rack's daemon: the handles of all clients, by record. What has ended is
    /// missing; a remote client that is gone is kept, not connected, for a while.
    ///
    /// # Errors
    /// `no-such-rack`, `peer-dead`, `timeout`.
    #[doc(hidden)]
    pub fn sessions(&mut self, rack: RackId) -> Result<Vec<SessionState>> {
        let handle = self.handle.borrow_mut();
        handle.give_locks_back();
        let deadline_ns = clock::deadline_ns(handle.links.timeout_ms());
        let (mut all, mut from): (Vec<SessionState>, u32) = (Vec::new(), 0);
        while from < SESSIONS_MAX {
            let part = handle.query(rack, &DaemonQuery::sessions(from), deadline_ns)?;
            let Some(last) = part.last() else { break };
            from = last.record.max(from) + 1;
            all.extend(part);
        }
        Ok(all)
    }

    /// All racks of the pool, or the shards of those that are divided, and whether the daemon of
    /// each is connected to the master.
    pub fn racks(&mut self) -> Result<Vec<(RackId, bool)>> {
        let handle = self.handle.borrow_mut();
        let deadline_ns = clock::deadline_ns(handle.links.timeout_ms());
        let infos = handle.links.racks(deadline_ns)?;
        Ok(infos.into_iter().map(|info| (info.rack, info.alive)).collect())
    }

    /// Names in the master's directory behind `after`, in order; empty after the last.
    pub fn roots_after(&mut self, after: &str) -> Result<Vec<(String, GAddr)>> {
        let handle = self.handle.borrow_mut();
        let deadline_ns = clock::deadline_ns(handle.links.timeout_ms());
        let query = MasterQuery::roots_after(after);
        Ok(query.answer(handle.links.master_call(query.call(), deadline_ns)?)?)
    }

    /// Whether address and size name an allocation.
    pub fn is_allocated(&mut self, addr: GAddr, bytes: u64) -> Result<bool> {
        let handle = self.handle.borrow_mut();
        handle.client.check(addr, 1)?;
        Ok(handle.run(&mut IsAllocated { addr, bytes })?)
    }

    /// Asks the daemon of a rack about its allocations.
    #[doc(hidden)]
    pub fn audit(&mut self, rack: RackId, request: AuditRequest) -> Result<AuditReply> {
        let handle = self.handle.borrow_mut();
        let deadline_ns = clock::deadline_ns(handle.links.timeout_ms());
        Ok(handle.query(rack, &DaemonQuery::audit(request), deadline_ns)?)
    }

    /// Frees an allocation of the kind [`AllocationKind::Table`](crate::AllocationKind::Table) that
    /// has lived since `watch` began in its rack.
    ///
    /// # Errors
    /// `bad-free` or `not-mapped` if it was freed since; `busy` if another watch has begun.
    #[doc(hidden)]
    pub fn reclaim(&mut self, addr: GAddr, watch: u64) -> Result<()> {
        let handle = self.handle.borrow_mut();
        handle.client.check(addr, 1)?;
        Ok(handle.run(&mut Reclaim { addr, watch })?)
    }
}

impl Handle {
    pub(crate) fn query<A>(
        &mut self,
        rack: RackId,
        query: &DaemonQuery<A>,
        deadline_ns: u64,
    ) -> WireResult<A> {
        query.answer(rack, self.ask_daemon(rack, query.request(), deadline_ns)?)
    }

    pub(crate) fn ask_daemon(
        &mut self,
        rack: RackId,
        request: Request,
        deadline_ns: u64,
    ) -> WireResult<Reply> {
        let Self { client, links, endpoint, .. } = self;
        if client.home_in(rack).is_none() {
            block(links.runtime(client, endpoint).connect(rack, deadline_ns))?;
        }
        let home = client.home_in(rack).expect("connecting adds the link");
        let link = client.link_of(home).expect("it was just found");
        block(links.runtime(client, endpoint).daemon_call(link, request, deadline_ns))
    }
}
