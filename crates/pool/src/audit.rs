//! What an audit of the pool's allocations needs of a handle: memory of a kind, changes that are
//! open, names, what lives where, and the free of what nothing names. Used by the structures that
//! live in the pool and by `rackpool fsck`; `docs/semantics.md` says what is promised.

use crate::clock;
use crate::handle::{Handle, unexpected_reply};
use rackpool_core::client::{Alloc, AtHome, Placement};
use rackpool_core::layout::AllocationKind;
use rackpool_core::wire::{AuditReply, AuditRequest, MasterCall, Reply, Request};
use rackpool_core::{Error, GAddr, RackId, Result};

impl Handle {
    /// As [`Handle::alloc`], for memory of this kind: whether it ends with this handle
    /// ([`AllocationKind::is_owned`]), and whether an audit of the pool has to find a name for it.
    /// What is allocated as [`AllocationKind::Table`] is freed by an audit unless a hash table
    /// names it, or this handle is in the middle of a change ([`Handle::begin_change`]).
    ///
    /// # Errors
    /// As [`Handle::alloc`].
    pub fn alloc_as(
        &mut self,
        bytes: u64,
        placement: Placement,
        kind: AllocationKind,
    ) -> Result<GAddr> {
        self.client.set_order(self.links.order());
        let mut op = Alloc::new(&mut self.client, bytes, placement, kind);
        self.run(&mut op)
    }

    /// From here to [`Handle::end_change`] this handle may have allocations of the kind
    /// [`AllocationKind::Table`] that no table names: new ones that are to be published, old ones
    /// that are to be freed. If its process dies meanwhile, they are looked for and freed. Calls
    /// nest. Costs one store into memory that is mapped.
    pub fn begin_change(&mut self) {
        self.client.begin_change();
    }

    /// Ends what [`Handle::begin_change`] began. A change that is never ended counts until this
    /// handle ends; audits free nothing meanwhile.
    ///
    /// # Panics
    /// If no change is open.
    pub fn end_change(&mut self) {
        self.client.end_change();
    }

    /// Names in the master's directory behind `after`, in order; empty after the last.
    pub fn roots_after(&mut self, after: &str) -> Result<Vec<(String, GAddr)>> {
        let deadline_ns = clock::deadline_ns(self.links.options().request_timeout_ms);
        self.links.master_call(MasterCall::Roots { after: after.into() }, deadline_ns)?.roots()
    }

    /// All racks of the pool, or the shards of those that are divided, and whether the daemon of
    /// each is connected to the master.
    pub fn racks(&mut self) -> Result<Vec<(RackId, bool)>> {
        let deadline_ns = clock::deadline_ns(self.links.options().request_timeout_ms);
        let infos = self.links.racks(deadline_ns)?;
        Ok(infos.into_iter().map(|info| (info.rack, info.alive)).collect())
    }

    /// Whether address and size name an allocation.
    pub fn is_allocated(&mut self, addr: GAddr, bytes: u64) -> Result<bool> {
        self.client.check(addr, 1)?;
        match self.run(&mut AtHome::new(addr, Request::CheckFree { addr, bytes })) {
            Ok((_, Reply::Known)) => Ok(true),
            Ok((link, other)) => Err(unexpected_reply(self.client.rack_of(link), &other)),
            Err(Error::BadFree { .. } | Error::NotMapped { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Asks the daemon of a rack about its allocations.
    pub fn audit(&mut self, rack: RackId, request: AuditRequest) -> Result<AuditReply> {
        let deadline_ns = clock::deadline_ns(self.links.options().request_timeout_ms);
        match self.ask_daemon(rack, Request::Audit(request), deadline_ns)? {
            Reply::Audit(reply) => Ok(reply),
            other => Err(unexpected_reply(rack, &other)),
        }
    }

    /// Frees an allocation of the kind [`AllocationKind::Table`] that has lived since `watch` began
    /// in its rack.
    ///
    /// # Errors
    /// `bad-free` or `not-mapped` if it was freed since; `busy` if another watch has begun.
    pub fn reclaim(&mut self, addr: GAddr, watch: u64) -> Result<()> {
        self.client.check(addr, 1)?;
        let (link, reply) = self.run(&mut AtHome::new(addr, Request::Reclaim { addr, watch }))?;
        match reply {
            Reply::Freed => Ok(()),
            other => Err(unexpected_reply(self.client.rack_of(link), &other)),
        }
    }
}
