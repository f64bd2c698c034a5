//! Writes of a handle that outlive a loss of power.
//!
//! In: a range that was written, by this handle or others that have told it so. Out: nothing, once
//! it is durable at its home. Only the home's daemon can say that: a completion of the fabric says
//! that the bytes are in the other host's memory or caches. Each request goes to it over the ring
//! of the own rack or the connection to another, behind the writes. Without `durability = write`
//! no write comes here.

use crate::cas::CasOutcome;
use crate::error::{Result, WireError};
use crate::handle::Handle;
use rackpool_core::GAddr;
use rackpool_core::client::AtHome;
use rackpool_core::durability::Durability;
use rackpool_core::wire::{Reply, Request};

/// What one request asks a daemon to make durable at most, bytes: it serves no other client
/// meanwhile.
const PERSIST_BYTES_MAX: u64 = 1 << 20;

impl Handle {
    /// Makes `bytes` bytes at `addr` outlive a loss of power of their home's host. When this
    /// returns, all that this handle wrote there before is durable, and what others wrote as far as
    /// this handle has seen it. Of a range for which this was not called, or has not returned, each
    /// aligned word of 8 bytes may be lost by itself; none is torn.
    ///
    /// Blocks for one request to the home's daemon for each page, and each MiB of a page. Does
    /// nothing if the pool was opened with [`Durability::None`].
    ///
    /// ```no_run
    /// # fn main() -> rackpool::Result<()> {
    /// use rackpool::{Options, Placement, Pool};
    /// // Its daemon was started with --memory pmem:/mnt/pmem/rack0?size=1G
    /// let mut handle = Pool::open(Options::new("127.0.0.1:7400", 0))?.handle()?;
    /// let addr = handle.alloc(64, Placement::Local)?;
    /// handle.write(addr, b"kept")?;
    /// handle.persist(addr, 4)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `denied` if the memory there does not persist; `io` if the device refuses to; `not-mapped`,
    /// `lost`, `out-of-bounds`; `peer-dead` or `timeout` if the home does not answer in time.
    /// After any of them nothing is known of the range; it can be asked again.
    pub fn persist(&mut self, addr: GAddr, bytes: u64) -> Result<()> {
        self.client.check(addr, bytes)?;
        match self.links.options().durability {
            Durability::None => Ok(()),
            Durability::Flush | Durability::Write => self.persist_home(addr, bytes),
        }
    }

    fn persist_home(&mut self, addr: GAddr, bytes: u64) -> Result<()> {
        // What a locked range still buffers here is at its home first.
        self.before_others(addr, bytes)?;
        self.links.tell_loss()?;
        let (mut at, mut left) = (addr, bytes);
        while left > 0 {
            let part = left.min(self.client.bytes_in_page(at)).min(PERSIST_BYTES_MAX);
            let request = Request::Persist { addr: at, bytes: part };
            match self.run(&mut AtHome::new(at, request))? {
                (_, Reply::Persisted) => {}
                (_, other) => {
                    let (peer, reason) = ("daemon".into(), format!("unexpected answer {other:?}"));
                    return Err(WireError::Protocol { peer, reason }.into());
                }
            }
            (at, left) = (GAddr(at.0 + part), left - part);
        }
        Ok(())
    }

    /// As [`Handle::write`], and durable when it returns, whatever the pool's durability is.
    ///
    /// # Errors
    /// Those of [`Handle::write`] and [`Handle::persist`].
    pub fn write_durable(&mut self, addr: GAddr, from: &[u8]) -> Result<()> {
        self.check_writes()?;
        self.write_home(addr, from)?;
        self.persist_home(addr, from.len() as u64)
    }

    /// After a write, if the pool's durability is that of writes.
    pub(crate) fn persist_if_due(&mut self, addr: GAddr, bytes: u64) -> Result<()> {
        match self.links.options().durability {
            Durability::Write => self.persist(addr, bytes),
            Durability::None | Durability::Flush => Ok(()),
        }
    }

    pub(crate) fn check_writes(&self) -> Result<()> {
        if self.links.is_read_only() { Err(self.links.read_only_error().into()) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn write_apart(&mut self, addr: GAddr, from: &[u8]) -> Result<()> {
        self.check_writes()?;
        self.write_home(addr, from)?;
        self.persist_if_due(addr, from.len() as u64)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn write_u64_apart(&mut self, addr: GAddr, value: u64) -> Result<()> {
        self.check_writes()?;
        self.write_u64_home(addr, value)?;
        self.persist_if_due(addr, 8)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn write_batch_apart(&mut self, ops: &mut [(GAddr, &[u8])]) -> Result<()> {
        self.check_writes()?;
        self.write_batch_home(ops)?;
        ops.iter().try_for_each(|(addr, from)| self.persist_if_due(*addr, from.len() as u64))
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn cas_apart(&mut self, addr: GAddr, expected: u64, new: u64) -> Result<CasOutcome> {
        self.check_writes()?;
        let outcome = self.cas_home(addr, expected, new)?;
        // What was found is told on as well: it may not be durable yet.
        self.persist_if_due(addr, 8)?;
        Ok(outcome)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn fetch_add_apart(&mut self, addr: GAddr, n: u64) -> Result<u64> {
        self.check_writes()?;
        let old = self.fetch_add_home(addr, n)?;
        self.persist_if_due(addr, 8)?;
        Ok(old)
    }

    /// A write that completes later cannot be durable by then.
    pub(crate) fn check_submitted_write(&self) -> Result<()> {
        self.check_writes()?;
        if self.links.options().durability != Durability::Write {
            return Ok(());
        }
        let reason = "durability `write` is not for submitted writes: use `flush`, and persist \
                      what has completed";
        Err(WireError::Config { reason: reason.into() }.into())
    }
}
