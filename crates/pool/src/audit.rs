//! What an audit of the pool's allocations needs of a handle: memory of a kind, changes that are
//! open, names, what lives where, and the free of what nothing names. Used by the structures that
//! live in the pool and by `rackpool fsck`; `docs/semantics.md` says what is promised.

use crate::error::Result;
use crate::handle::Handle;
use rackpool_core::GAddr;
use rackpool_core::client::{Alloc, Placement};
use rackpool_core::layout::AllocationKind;

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
        if self.is_free_to_go()
            && let Some(addr) = self.client.alloc_warm(bytes, placement, kind)
        {
            return Ok(addr);
        }
        let mut op = Alloc::new(&mut self.client, bytes, placement, kind);
        Ok(self.run(&mut op)?)
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
}
