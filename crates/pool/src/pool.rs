//! [`Pool`]: what a program opens. Shared by all threads; each thread works through a handle of
//! its own, taken with [`Pool::handle`] for hot loops, or lent by the convenience methods here.

use crate::admin::Admin;
use crate::async_handle::AsyncHandle;
use crate::cas::CasOutcome;
use crate::error::Result;
use crate::handle::Handle;
use crate::links::Shared;
use crate::options::Options;
use crate::stats::{Explain, PoolStats};
use rackpool_core::GAddr;
use rackpool_core::client::Placement;
use std::sync::{Arc, Mutex};

/// A memory pool that this program has joined. `Send + Sync`; clones are the same pool.
///
/// ```
/// # fn main() -> rackpool::Result<()> {
/// use rackpool::{Placement, cluster::Cluster};
/// let cluster = Cluster::start(1)?;
/// let pool = cluster.pool(0)?;
/// let counter = pool.alloc(8, Placement::Auto)?;
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| pool.fetch_add(counter, 10).unwrap());
///     }
/// });
/// assert_eq!(pool.read_u64(counter)?, 40);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    idle: Arc<Mutex<Vec<Handle>>>,
}

/// Handles that wait for the next borrower; more are closed.
const IDLE_HANDLES_MAX: usize = 64;

impl Pool {
    /// Joins a pool: reaches the master and the own rack's daemon, and maps its memory.
    ///
    /// # Errors
    /// `timeout` or `peer-dead` if the master or the daemon does not answer within
    /// `request_timeout_ms`; `no-such-rack`; `version`; `config`; `busy` if all slots are taken.
    pub fn open(options: Options) -> Result<Pool> {
        let shared = Arc::new(Shared::new(options)?);
        let pool = Pool { shared, idle: Arc::new(Mutex::default()) };
        let first = pool.handle()?;
        pool.put_back(first);
        Ok(pool)
    }

    /// A handle for one thread: its own slot, rings and translation cache; its own connections to
    /// other racks as [`Options::connections`] says.
    pub fn handle(&self) -> Result<Handle> {
        let idle = self.idle.lock().expect("no panic happens under this lock").pop();
        match idle {
            Some(handle) => Ok(handle),
            None => Ok(Handle::open(Arc::clone(&self.shared))?),
        }
    }

    /// A handle with reads and writes that are futures.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn async_handle(&self) -> Result<AsyncHandle> {
        self.handle().map(AsyncHandle::new)
    }

    /// Orders to the pool, and questions about it, through a handle of their own.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn admin(&self) -> Result<Admin> {
        Ok(Admin { handle: self.handle()? })
    }

    /// The options that the pool was opened with.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    fn put_back(&self, mut handle: Handle) {
        handle.set_timeout_ms(None);
        let mut idle = self.idle.lock().expect("no panic happens under this lock");
        if idle.len() < IDLE_HANDLES_MAX {
            idle.push(handle);
        }
    }

    /// Runs `work` with a borrowed handle.
    pub fn with<R>(&self, work: impl FnOnce(&mut Handle) -> Result<R>) -> Result<R> {
        let mut handle = self.handle()?;
        let result = work(&mut handle);
        self.put_back(handle);
        result
    }

    /// [`Handle::alloc`] with a borrowed handle.
    pub fn alloc(&self, bytes: u64, placement: Placement) -> Result<GAddr> {
        self.with(|handle| handle.alloc(bytes, placement))
    }

    /// [`Handle::free`] with a borrowed handle.
    pub fn free(&self, addr: GAddr, bytes: u64) -> Result<()> {
        self.with(|handle| handle.free(addr, bytes))
    }

    /// [`Handle::alloc_into`] with a borrowed handle.
    pub fn alloc_into(&self, word: GAddr, bytes: u64) -> Result<GAddr> {
        self.with(|handle| handle.alloc_into(word, bytes))
    }

    /// [`Handle::free_from`] with a borrowed handle.
    pub fn free_from(&self, word: GAddr, bytes: u64) -> Result<()> {
        self.with(|handle| handle.free_from(word, bytes))
    }

    /// [`Handle::read`] with a borrowed handle.
    pub fn read(&self, addr: GAddr, to: &mut [u8]) -> Result<()> {
        self.with(|handle| handle.read(addr, to))
    }

    /// [`Handle::write`] with a borrowed handle.
    pub fn write(&self, addr: GAddr, from: &[u8]) -> Result<()> {
        self.with(|handle| handle.write(addr, from))
    }

    /// [`Handle::read_u64`] with a borrowed handle.
    pub fn read_u64(&self, addr: GAddr) -> Result<u64> {
        self.with(|handle| handle.read_u64(addr))
    }

    /// [`Handle::write_u64`] with a borrowed handle.
    pub fn write_u64(&self, addr: GAddr, value: u64) -> Result<()> {
        self.with(|handle| handle.write_u64(addr, value))
    }

    /// [`Handle::cas`] with a borrowed handle.
    pub fn cas(&self, addr: GAddr, expected: u64, new: u64) -> Result<CasOutcome> {
        self.with(|handle| handle.cas(addr, expected, new))
    }

    /// [`Handle::fetch_add`] with a borrowed handle.
    pub fn fetch_add(&self, addr: GAddr, n: u64) -> Result<u64> {
        self.with(|handle| handle.fetch_add(addr, n))
    }

    /// [`Handle::explain`] with a borrowed handle.
    pub fn explain(&self, addr: GAddr) -> Result<Explain> {
        self.with(|handle| handle.explain(addr))
    }

    /// Counters of the master, of every rack's daemon, and of the handle that asked.
    pub fn stats(&self) -> Result<PoolStats> {
        self.with(|handle| handle.admin().pool_stats())
    }
}
