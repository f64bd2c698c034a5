//! A handle: one thread's way into the pool. The warm path is the client engine inlined; all else
//! goes through `drive.rs`, which does what an operation says it needs until it is done.
//!
//! A handle owns its slot and rings at the own rack's daemon, its connections to other racks and
//! to the master, and its translation cache. Dropping it gives all of them back.

use crate::clock;
use crate::drive::{Buffers, Driver, Parts, block, drive};
use crate::error::{Result, WireError, WireResult};
use crate::links::{Links, Shared};
use crate::options::Options;
use crate::paths::{Call, CallSize, Path, PathStats};
use crate::pin::{Pin, pin};
use crate::rrpc::RrpcState;
use crate::stats::{Explain, HandleStats};
use crate::submit::{Completed, Submissions, Ticket};
use rackpool_core::GAddr;
use rackpool_core::client::{
    Access, AtWord, Client, Coupled, CoupledIo, CoupledOptions, DaemonQuery, Free, Locate,
    MasterQuery, Miss, OWN, Operation, Piece, Placement, Reach, Transfer, TransferTables,
};
use rackpool_core::constants::STALE_RETRIES_MAX;
use rackpool_core::layout::AllocationKind;
use rackpool_core::seam::Mem;
use rackpool_fabric::Endpoint;
use rackpool_fabric::{LocalBuffer, LocalBuffers};
use rackpool_mem::window::Window;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// One thread's access to the pool; see [`Pool::handle`](crate::Pool::handle).
///
/// ```
/// # fn main() -> rackpool::Result<()> {
/// use rackpool::{Placement, cluster::Cluster};
/// let cluster = Cluster::start(2)?;
/// let mut handle = cluster.pool(0)?.handle()?;
/// let addr = handle.alloc(4096, Placement::Auto)?;
/// handle.write(addr, b"to be read from the other rack")?;
///
/// let mut other = cluster.pool(1)?.handle()?;
/// let mut bytes = [0; 30];
/// other.read(addr, &mut bytes)?;
/// assert_eq!(&bytes, b"to be read from the other rack");
/// other.free(addr, 4096)?;
/// # Ok(()) }
/// ```
///
/// What a handle knows of the pool is its own, without a lock; the compiler refuses two threads
/// that use one at a time.
///
/// ```compile_fail,E0499
/// # use rackpool::GAddr;
/// fn both_read(handle: &mut rackpool::Handle, addr: GAddr) {
///     std::thread::scope(|scope| {
///         scope.spawn(|| handle.read(addr, &mut [0; 8]));
///         scope.spawn(|| handle.read(addr, &mut [0; 8]));
///     });
/// }
/// ```
pub struct Handle {
    pub(crate) client: Client<Window>,
    tables: TransferTables,
    pub(crate) links: Links,
    pub(crate) endpoint: Endpoint,
    misses: Vec<u32>,
    pieces: Vec<Piece>,
    /// Work requests are told apart by this.
    pub(crate) rounds: u64,
    pub(crate) submissions: Submissions,
    pub(crate) coupled: Coupled,
    paths: PathStats,
    pub(crate) rrpc: RrpcState,
    pub(crate) replica_reads: u64,
}

/// Work request ids of atomics and of moves have this bit, those of transfers do not.
pub(crate) const ATOMIC_ID: u64 = 1 << 63;
/// Pieces of a batch that go through the fabric at once.
const BATCH_PIECES_MAX: usize = 256;

impl Handle {
    /// A handle of a pool that is joined for it.
    pub(crate) fn join(options: Options) -> WireResult<Self> {
        Self::open(Arc::new(Shared::new(options)?))
    }

    pub(crate) fn open(shared: Arc<Shared>) -> WireResult<Self> {
        let deadline_ns = clock::deadline_ns(shared.options.request_timeout_ms);
        let (links, endpoint, own) = Links::open(shared, deadline_ns)?;
        let options = links.options();
        let mut client = Client::new(links.own_rack(), own, options.translation_entries);
        client.count_use(links.counts_use());
        let coupled = Coupled::new(CoupledOptions {
            buffered_write_bytes_max: options.buffered_write_bytes_max,
            write_buffer_bytes: options.write_buffer_bytes,
            page_cache_blocks: options.page_cache_blocks,
        });
        Ok(Self {
            client,
            tables: TransferTables::default(),
            links,
            endpoint,
            misses: Vec::with_capacity(BATCH_PIECES_MAX),
            pieces: Vec::with_capacity(BATCH_PIECES_MAX),
            rounds: 0,
            submissions: Submissions::default(),
            coupled,
            paths: PathStats::default(),
            rrpc: RrpcState::default(),
            replica_reads: 0,
        })
    }

    /// Allocates `bytes` bytes, zeroed. Up to half a page: an object of the next power of two
    /// (at least 64 bytes), aligned to its size; above: whole pages. It outlives this process.
    ///
    /// # Errors
    /// `full` where [`Placement`] allows no other rack, or all are full; `bad-size`;
    /// `outcome-unknown` if the daemon died for good meanwhile.
    pub fn alloc(&mut self, bytes: u64, placement: Placement) -> Result<GAddr> {
        self.alloc_as(bytes, placement, AllocationKind::User)
    }

    /// As [`Handle::alloc`]; the memory comes back by itself when this handle ends, however it
    /// ends.
    pub fn alloc_owned(&mut self, bytes: u64, placement: Placement) -> Result<GAddr> {
        self.alloc_as(bytes, placement, AllocationKind::Session)
    }

    /// Frees what [`Handle::alloc`] gave; `bytes` as given there.
    ///
    /// # Errors
    /// `bad-free` if that is no allocation of this size; `not-mapped` if it was freed.
    pub fn free(&mut self, addr: GAddr, bytes: u64) -> Result<()> {
        self.client.check(addr, bytes)?;
        Ok(self.run(&mut Free::new(addr, bytes))?)
    }

    /// Allocates as [`Handle::alloc`] does, in the rack where `word` lives, and stores the address
    /// there, both in one step: whichever process dies when, either the word holds the address and
    /// the memory is allocated, or the word is 0 and nothing is. So an allocation that a structure
    /// in the pool shall hold cannot leak. `word` is aligned to 8 bytes, lies in allocated memory
    /// and holds 0. Others may read it meanwhile; until this returns none may write to it.
    ///
    /// ```
    /// # fn main() -> rackpool::Result<()> {
    /// use rackpool::{GAddr, Placement, cluster::Cluster};
    /// let cluster = Cluster::start(1)?;
    /// let mut handle = cluster.pool(0)?.handle()?;
    /// let list = handle.alloc(64, Placement::Auto)?;
    /// let first = handle.alloc_into(list, 4096)?;
    /// assert_eq!(handle.read_u64(list)?, first.0);
    /// assert_eq!(handle.alloc_into(list, 4096).unwrap_err().code(), "occupied");
    /// handle.free_from(list, 4096)?;
    /// assert_eq!(handle.read_u64(list)?, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `occupied` if the word is not 0; `not-mapped`, `lost` or `misaligned` for the word; `full`
    /// if its rack is; `bad-size`. After `outcome-unknown` calling again tells: `occupied` means
    /// that it was done.
    pub fn alloc_into(&mut self, word: GAddr, bytes: u64) -> Result<GAddr> {
        self.client.check_atomic(word)?;
        self.check_writes()?;
        Ok(self.run(&mut AtWord::alloc(word, bytes))?)
    }

    /// Frees what `word` names, `bytes` as given when it was allocated, and sets the word to 0,
    /// both in one step as [`Handle::alloc_into`] does, wherever the memory is by now: another rack
    /// frees it as soon as it can. How it was allocated does not matter.
    ///
    /// # Errors
    /// `bad-free` if the word names no allocation of this size, or lies inside it; the errors for
    /// the word of [`Handle::alloc_into`]; `busy` (quarantine, frees owed to other racks). After
    /// `outcome-unknown` a word that is 0 means that it was done.
    pub fn free_from(&mut self, word: GAddr, bytes: u64) -> Result<()> {
        self.client.check_atomic(word)?;
        self.check_writes()?;
        self.run(&mut AtWord::free(word, bytes))?;
        Ok(())
    }

    /// Allocates `count` whole pages with consecutive addresses.
    pub fn alloc_pages(&mut self, count: u32, placement: Placement) -> Result<GAddr> {
        self.alloc(u64::from(count) * self.page_bytes(), placement)
    }

    /// Frees what [`Handle::alloc_pages`] gave.
    pub fn free_pages(&mut self, addr: GAddr, count: u32) -> Result<()> {
        self.free(addr, u64::from(count) * self.page_bytes())
    }

    /// Reads `to.len()` bytes at `addr`, across pages and racks. Aligned pieces of up to 8 bytes
    /// are read at once; longer ones may be torn by a concurrent write.
    ///
    /// # Errors
    /// `not-mapped`, `lost`, `out-of-bounds`; `peer-dead` or `timeout` if the home rack does not
    /// come back in time.
    #[inline]
    pub fn read(&mut self, addr: GAddr, to: &mut [u8]) -> Result<()> {
        match self.client.read_warm(addr, to) {
            Ok(()) => {
                self.report_if_due();
                Ok(())
            }
            Err(miss) => self.read_cold(addr, to, miss),
        }
    }

    /// Writes `from` at `addr`, under the same rules. When it returns, every reader sees it.
    #[inline]
    pub fn write(&mut self, addr: GAddr, from: &[u8]) -> Result<()> {
        if self.links.writes_apart() {
            return self.write_apart(addr, from);
        }
        self.write_home(addr, from)
    }

    #[inline]
    pub(crate) fn write_home(&mut self, addr: GAddr, from: &[u8]) -> Result<()> {
        match self.client.write_warm(addr, from) {
            Ok(()) => {
                self.report_if_due();
                Ok(())
            }
            Err(miss) => self.write_cold(addr, from, miss),
        }
    }

    #[cold]
    #[inline(never)]
    fn read_cold(&mut self, addr: GAddr, to: &mut [u8], miss: Miss) -> Result<()> {
        self.client.check(addr, to.len() as u64)?;
        if !self.coupled.is_active() {
            return Ok(self.read_home(addr, to, miss)?);
        }
        if !self.with_coupled(|coupled, io| coupled.read(io, addr, to))? {
            self.read_home(addr, to, miss)?;
            self.with_coupled(|coupled, io| coupled.overlay(io, addr, to));
        }
        Ok(())
    }

    fn read_home(&mut self, addr: GAddr, to: &mut [u8], miss: Miss) -> WireResult<()> {
        let client = &self.client;
        let done = warm_prefix(client, addr, to.len(), miss, |addr, range| {
            client.read_warm(addr, &mut to[range])
        });
        if done == to.len() {
            return Ok(());
        }
        if done == 0 && miss == Miss::Unknown && self.first_read(addr, to)? {
            return Ok(());
        }
        if matches!(miss, Miss::OneSided(..)) && self.read_replica(addr, to)? {
            return Ok(());
        }
        let to = &mut to[done..];
        let pieces = [Piece { addr: GAddr(addr.0 + done as u64), bytes: to.len() as u64 }];
        self.transfer(Access::Read, &pieces, &mut [LocalBuffer::Into(to)])
    }

    #[cold]
    #[inline(never)]
    fn write_cold(&mut self, addr: GAddr, from: &[u8], miss: Miss) -> Result<()> {
        self.client.check(addr, from.len() as u64)?;
        if self.coupled.is_active()
            && self.with_coupled(|coupled, io| coupled.write(io, addr, from))?
        {
            return Ok(());
        }
        let client = &self.client;
        let done = warm_prefix(client, addr, from.len(), miss, |addr, range| {
            client.write_warm(addr, &from[range])
        });
        if done == from.len() {
            return Ok(());
        }
        if done == 0 && miss == Miss::Unknown && self.first_write(addr, from)? {
            return Ok(());
        }
        let from = &from[done..];
        let pieces = [Piece { addr: GAddr(addr.0 + done as u64), bytes: from.len() as u64 }];
        Ok(self.transfer(Access::Write, &pieces, &mut [LocalBuffer::From(from)])?)
    }

    /// Reads many pieces. Mapped ones are prefetched together, remote ones share doorbells and
    /// are all under way at once. Stops at the first error; which pieces were read by then is not
    /// said.
    pub fn read_batch(&mut self, ops: &mut [(GAddr, &mut [u8])]) -> Result<()> {
        self.misses.clear();
        self.client.batch_warm(
            Access::Read,
            ops,
            |(addr, to)| (*addr, to.len() as u64),
            |pages, offset, (_, to)| pages.copy_out(offset, to),
            &mut self.misses,
        );
        self.report_if_due();
        if self.misses.is_empty() {
            return Ok(());
        }
        self.batch_cold(
            Access::Read,
            ops.iter_mut().map(|(addr, to)| (*addr, LocalBuffer::Into(to))),
        )
    }

    /// Writes many pieces, under the same rules as [`Handle::read_batch`].
    pub fn write_batch(&mut self, ops: &mut [(GAddr, &[u8])]) -> Result<()> {
        if self.links.writes_apart() {
            return self.write_batch_apart(ops);
        }
        self.write_batch_home(ops)
    }

    #[inline]
    pub(crate) fn write_batch_home(&mut self, ops: &mut [(GAddr, &[u8])]) -> Result<()> {
        self.misses.clear();
        self.client.batch_warm(
            Access::Write,
            ops,
            |(addr, from)| (*addr, from.len() as u64),
            |pages, offset, (_, from)| pages.copy_in(offset, from),
            &mut self.misses,
        );
        self.report_if_due();
        if self.misses.is_empty() {
            return Ok(());
        }
        self.batch_cold(
            Access::Write,
            ops.iter().map(|(addr, from)| (*addr, LocalBuffer::From(from))),
        )
    }

    /// The pieces named by `self.misses`, in groups that the fabric takes at once.
    fn batch_cold<'b>(
        &mut self,
        access: Access,
        ops: impl Iterator<Item = (GAddr, LocalBuffer<'b>)>,
    ) -> Result<()> {
        self.before_others(GAddr::NULL, 0)?;
        let misses = std::mem::take(&mut self.misses);
        let mut missing = misses.iter().peekable();
        let mut left = ops
            .enumerate()
            .filter(|(index, _)| missing.next_if(|next| **next as usize == *index).is_some());
        let mut result = Ok(());
        while result.is_ok() {
            let mut pieces = std::mem::take(&mut self.pieces);
            pieces.clear();
            let mut buffers = Vec::with_capacity(BATCH_PIECES_MAX);
            for (_, (addr, buffer)) in left.by_ref().take(BATCH_PIECES_MAX) {
                let bytes = match &buffer {
                    LocalBuffer::From(from) => from.len() as u64,
                    LocalBuffer::Into(to) => to.len() as u64,
                };
                if access == Access::Write && self.coupled.is_active() {
                    self.coupled.forget(addr, bytes);
                }
                result = result.and(self.client.check(addr, bytes));
                pieces.push(Piece { addr, bytes });
                buffers.push(buffer);
            }
            if buffers.is_empty() {
                self.pieces = pieces;
                break;
            }
            if result.is_ok() {
                result = self.transfer(access, &pieces, &mut buffers);
            }
            self.pieces = pieces;
        }
        drop(left);
        self.misses = misses;
        Ok(result?)
    }

    /// Reads the aligned word at `addr`, at once.
    #[inline]
    pub fn read_u64(&mut self, addr: GAddr) -> Result<u64> {
        self.client.check_atomic(addr)?;
        match self.client.load_warm(addr) {
            Ok(value) => {
                self.report_if_due();
                Ok(value)
            }
            Err(miss) => {
                let mut bytes = [0; 8];
                self.read_cold(addr, &mut bytes, miss)?;
                Ok(u64::from_le_bytes(bytes))
            }
        }
    }

    /// Writes the aligned word at `addr`, at once.
    #[inline]
    pub fn write_u64(&mut self, addr: GAddr, value: u64) -> Result<()> {
        self.client.check_atomic(addr)?;
        if self.links.writes_apart() {
            return self.write_u64_apart(addr, value);
        }
        self.write_u64_home(addr, value)
    }

    #[inline]
    pub(crate) fn write_u64_home(&mut self, addr: GAddr, value: u64) -> Result<()> {
        match self.client.store_warm(addr, value) {
            Ok(()) => {
                self.report_if_due();
                Ok(())
            }
            // A word is stored by its home, since processors of that host may change other words of
            // the line.
            Err(_) if self.client.is_apart() => self.store(addr, &value.to_le_bytes()),
            Err(miss) => self.write_cold(addr, &value.to_le_bytes(), miss),
        }
    }

    /// The address under a name, if the name exists. Names are kept by the master.
    pub fn root(&mut self, name: &str) -> Result<Option<GAddr>> {
        let addr = self.ask_master(&MasterQuery::root(name))?;
        Ok((!addr.is_null()).then_some(addr))
    }

    /// Sets the address under a name if it is `expected` now (null: if the name does not exist);
    /// null removes the name. The address under the name afterwards, whichever client set it.
    pub fn set_root(&mut self, name: &str, expected: GAddr, addr: GAddr) -> Result<GAddr> {
        Ok(self.ask_master(&MasterQuery::set_root(name, expected, addr))?)
    }

    /// Sets how long each later call of this handle may wait instead of
    /// [`Options::request_timeout_ms`](crate::Options::request_timeout_ms), ms; `None` for that
    /// again.
    pub fn set_timeout_ms(&mut self, timeout_ms: Option<u64>) {
        self.links.set_timeout_ms(timeout_ms);
    }

    /// The size of a page, bytes.
    #[inline]
    pub fn page_bytes(&self) -> u64 {
        self.client.geometry().page_bytes()
    }

    /// Where `addr` lives, which path an access of this handle takes, and why. Blocks for one
    /// request to the home of `addr`, and what finding it takes.
    ///
    /// # Errors
    /// `not-mapped` and `lost` for the page; `peer-dead` and `timeout` if its home, or the master,
    /// does not answer.
    pub fn explain(&mut self, addr: GAddr) -> Result<Explain> {
        self.client.check(addr, 1)?;
        let page = self.client.geometry().page(addr);
        let was_cached = self.client.read_warm(addr, &mut [0]) != Err(Miss::Unknown);
        self.client.forget(page);
        let mut locate = Locate::new(&self.client, addr, 1);
        self.run(&mut locate)?;
        let entry = *self.client.translation(page).expect("a located page has a translation");
        let mapped = matches!(self.client.reach(entry.link), Reach::Mapped(_));
        let home = self.client.rack_of(entry.link);
        let deadline_ns = clock::deadline_ns(self.links.timeout_ms());
        let (_, tiers) = self.query(home, &DaemonQuery::stats(), deadline_ns)?;
        let tier = tiers.of(entry.frame.0);
        Ok(Explain {
            addr: addr.to_string(),
            page: page.0,
            offset_bytes: self.client.geometry().offset(addr),
            rack: home.number(),
            shard: home.shard(),
            shards: home.shards(),
            own_rack: home.same_rack(self.client.own_rack()),
            path: if mapped { "mapped" } else { self.links.fabric_name() }.into(),
            why: self.links.why(home, mapped),
            frame: entry.frame.0,
            tier: tier.map(|(number, _)| number),
            node: tier.map(|(_, tier)| tier.node),
            generation: entry.generation.plain().0,
            replicated: entry.generation.is_shared(),
            translation_cached: was_cached,
            emulated_latency_ns: self.links.emulated_ns(entry.link),
        })
    }

    /// The memory behind `addr`, if its rack is mapped: the pages section and the offset of
    /// `addr` in it, bytes. For measurements of what an access costs beyond the bare copy: it
    /// goes around the access protocol, so no client may free or move the page meanwhile.
    #[doc(hidden)]
    pub fn raw_window_at(&mut self, addr: GAddr) -> Result<Option<(Window, u64)>> {
        self.client.check(addr, 1)?;
        let mut locate = Locate::new(&self.client, addr, 1);
        self.run(&mut locate)?;
        let geometry = self.client.geometry();
        let page = geometry.page(addr);
        let entry = *self.client.translation(page).expect("a located page has a translation");
        Ok(match self.client.reach(entry.link) {
            Reach::Mapped(view) => Some((view.pages.clone(), entry.base + geometry.offset(addr))),
            Reach::OneSided(_) => None,
        })
    }

    /// What this handle sent so far. Warm accesses to mapped racks count nowhere: they send
    /// nothing.
    pub fn handle_stats(&self) -> HandleStats {
        let (paths, coupled) = (self.paths, self.coupled_stats());
        let replica_reads = self.replica_reads;
        HandleStats { paths, coupled, replica_reads, ..self.links.stats(&self.endpoint) }
    }

    /// Starts a read of `buffer.len()` bytes at `addr` into `buffer` and returns at once; the
    /// buffer comes back with its completion. A page that this handle does not know is looked up
    /// first, which may wait for a daemon or the master.
    ///
    /// ```
    /// # fn main() -> rackpool::Result<()> {
    /// use rackpool::{Placement, RackId, cluster::Cluster};
    /// let cluster = Cluster::start(2)?;
    /// let mut handle = cluster.pool(0)?.handle()?;
    /// let far = handle.alloc(1 << 16, Placement::Rack(RackId(1)))?;
    /// handle.write(far, b"hello")?;
    /// let ticket = handle.submit_read(far, vec![0; 5])?;
    /// let done = handle.wait_completion(1_000)?.expect("it takes less than a second");
    /// assert_eq!((done.ticket, done.buffer.as_slice()), (ticket, &b"hello"[..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `busy` if 64 submissions are under way; otherwise what can be said at once. An error here
    /// drops the buffer; later ones bring it back.
    pub fn submit_read(&mut self, addr: GAddr, mut buffer: Vec<u8>) -> Result<Ticket> {
        self.submit_read_from(addr, &mut buffer)
    }

    /// Starts a write of `buffer` to `addr`, under the same rules as [`Handle::submit_read`].
    pub fn submit_write(&mut self, addr: GAddr, mut buffer: Vec<u8>) -> Result<Ticket> {
        self.submit_write_from(addr, &mut buffer)
    }

    /// As [`Handle::submit_read`], and after an error the buffer is still there: for memory that
    /// other code has the address of.
    pub fn submit_read_from(&mut self, addr: GAddr, buffer: &mut Vec<u8>) -> Result<Ticket> {
        self.submit(Access::Read, addr, buffer)
    }

    /// As [`Handle::submit_write`], with the buffer as in [`Handle::submit_read_from`].
    pub fn submit_write_from(&mut self, addr: GAddr, buffer: &mut Vec<u8>) -> Result<Ticket> {
        self.check_submitted_write()?;
        self.submit(Access::Write, addr, buffer)
    }

    fn submit(&mut self, access: Access, addr: GAddr, buffer: &mut Vec<u8>) -> Result<Ticket> {
        self.client.check(addr, buffer.len() as u64)?;
        self.before_others(addr, buffer.len() as u64)?;
        self.links.tell_loss()?;
        let Self { client, links, endpoint, submissions, rounds, .. } = self;
        *rounds += 1;
        let submitted = submissions.submit(client, links, endpoint, *rounds, access, addr, buffer);
        self.report_if_due();
        Ok(submitted?)
    }

    /// Submissions that count against their bound.
    pub(crate) fn submitted(&self) -> usize {
        self.submissions.count()
    }

    /// A submission that has ended, if there is one. Does not block, unless a page that moved has
    /// to be looked up again.
    pub fn poll_completion(&mut self) -> Result<Option<Completed>> {
        let Self { client, links, endpoint, submissions, .. } = self;
        let done = submissions.poll(client, links, endpoint);
        self.leave_mapped();
        Ok(done?)
    }

    /// Waits up to `timeout_ms` for a submission to end. `None` if none did, or none is under way.
    pub fn wait_completion(&mut self, timeout_ms: u64) -> Result<Option<Completed>> {
        let deadline_ns = clock::deadline_ns(timeout_ms);
        let Self { client, links, endpoint, submissions, .. } = self;
        let done = submissions.wait(client, links, endpoint, deadline_ns);
        self.leave_mapped();
        Ok(done?)
    }

    /// A descriptor that becomes readable when [`Handle::poll_completion`] may have something to
    /// do: for an event loop of the caller's. To be asked for again before each sleep.
    pub fn completion_fd(&mut self) -> Result<BorrowedFd<'_>> {
        Ok(self.endpoint.prepare_sleep().map_err(crate::links::fabric_error)?)
    }

    /// Pins `bytes` bytes at `addr`, within one page of a mapped rack: until the guard is dropped
    /// the page stays where it is, and the guard reads and writes without looking anything up.
    ///
    /// ```
    /// # fn main() -> rackpool::Result<()> {
    /// use rackpool::{Placement, cluster::Cluster};
    /// let cluster = Cluster::start(1)?;
    /// let mut handle = cluster.pool(0)?.handle()?;
    /// let addr = handle.alloc(4096, Placement::Local)?;
    /// let pin = handle.pin(addr, 4096)?;
    /// pin.write(0, b"direct");
    /// assert!(!pin.is_revoked());
    /// handle.free(addr, 4096)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `denied` if the rack is not mapped; `misaligned` if `addr` is not a multiple of 8;
    /// `out-of-bounds` across pages; `busy` if seven pins of this handle's slot are held.
    pub fn pin(&mut self, addr: GAddr, bytes: u64) -> Result<Pin> {
        self.client.check(addr, bytes)?;
        for _ in 0..=STALE_RETRIES_MAX {
            if let Some(pin) = pin(&self.client, &self.links, addr, bytes)? {
                return Ok(pin);
            }
            let stale = self.client.forget_stale(self.client.geometry().page(addr));
            if stale.is_some_and(|home| home.generation.is_shared()) {
                self.admin().recall(addr)?;
            }
            let mut locate = Locate::new(&self.client, addr, bytes).after(stale);
            self.run(&mut locate)?;
        }
        Err(WireError::Moving { addr, retries: STALE_RETRIES_MAX }.into())
    }

    fn ask_master<A>(&mut self, query: &MasterQuery<A>) -> WireResult<A> {
        let deadline_ns = clock::deadline_ns(self.links.timeout_ms());
        query.answer(self.links.master_call(query.call(), deadline_ns)?)
    }

    pub(crate) fn run<O: Operation<Window>>(&mut self, op: &mut O) -> WireResult<O::Output> {
        self.wait_for(async |cx| op.run(cx).await)
    }

    /// Runs an operation without buffers, to its end.
    pub(crate) fn wait_for<T>(
        &mut self,
        operation: impl for<'d> AsyncFnOnce(&mut Driver<'d>) -> WireResult<T>,
    ) -> WireResult<T> {
        self.before_others(GAddr::NULL, 0)?;
        self.give_locks_back();
        drive(self.parts().1, Buffers::None, operation)
    }

    /// Runs an operation with buffer i as its piece i, to its end. `operation` gets the tables of
    /// the handle's transfers.
    pub(crate) fn wait_with<T>(
        &mut self,
        buffers: &mut [LocalBuffer<'_>],
        operation: impl for<'d> AsyncFnOnce(&mut Driver<'d>, &mut TransferTables) -> WireResult<T>,
    ) -> WireResult<T> {
        let (tables, Parts { client, links, endpoint, submissions }) = self.parts();
        endpoint
            .with_buffers(buffers, |endpoint, ids| {
                let parts = Parts { client, links, endpoint, submissions };
                drive(parts, Buffers::Scoped(ids), async |cx| operation(cx, tables).await)
            })
            .map_err(crate::links::fabric_error)?
    }

    pub(crate) fn parts(&mut self) -> (&mut TransferTables, Parts<'_>) {
        let Self { client, links, endpoint, submissions, tables, .. } = self;
        (tables, Parts { client, links, endpoint, submissions: Some(submissions) })
    }

    /// Accesses that are not warm, or not mapped.
    pub(crate) fn transfer(
        &mut self,
        access: Access,
        pieces: &[Piece],
        buffers: &mut [LocalBuffer<'_>],
    ) -> WireResult<()> {
        let started_ns = clock::now_ns();
        let result = self.transfer_uncounted(access, pieces, buffers);
        let bytes = pieces.iter().map(|piece| piece.bytes).sum();
        let size = CallSize { accesses: pieces.len() as u64, bytes };
        self.note(pieces[0].addr, size, started_ns, result.is_err());
        self.report_if_due();
        result
    }

    /// Counts a call on the path of its first byte.
    pub(crate) fn note(
        &mut self,
        addr: GAddr,
        CallSize { accesses, bytes }: CallSize,
        started_ns: u64,
        failed: bool,
    ) {
        let page = self.client.geometry().page(addr);
        let path = match self.client.translation(page).map(|entry| entry.link) {
            None => Path::Unresolved,
            Some(OWN) => Path::OwnRack,
            Some(link) => match self.client.reach(link) {
                Reach::Mapped(_) => Path::OtherRackMapped,
                Reach::OneSided(_) => Path::OtherRackFabric,
            },
        };
        let elapsed_ns = clock::now_ns().saturating_sub(started_ns);
        self.paths.note(path, &Call { accesses, bytes, elapsed_ns, failed });
    }

    fn transfer_uncounted(
        &mut self,
        access: Access,
        pieces: &[Piece],
        buffers: &mut [LocalBuffer<'_>],
    ) -> WireResult<()> {
        self.give_locks_back();
        self.links.tell_loss()?;
        self.rounds += 1;
        let round = self.rounds;
        self.wait_with(buffers, async |cx, tables| {
            Transfer::new(tables, round, access, pieces).run(cx).await
        })
    }
}

impl Handle {
    pub(crate) fn give_locks_back(&mut self) {
        self.settle_locked();
        if self.links.locks.is_due() {
            let Self { client, links, endpoint, .. } = self;
            block(links.runtime(client, endpoint).release_owed());
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.settle_locked();
        self.with_coupled(|coupled, io| coupled.flush(io));
        // A pin may keep the slot, and so the session, for longer.
        self.links.locks.give_back_all();
        self.give_locks_back();
        self.links.leave(&mut self.endpoint);
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("rack", &self.client.own_rack()).finish_non_exhaustive()
    }
}

/// Runs the warm path page by page over an access that crosses pages; how many bytes were done
/// before the first page that is not mapped and warm.
fn warm_prefix(
    client: &Client<Window>,
    addr: GAddr,
    bytes: usize,
    miss: Miss,
    mut access: impl FnMut(GAddr, std::ops::Range<usize>) -> std::result::Result<(), Miss>,
) -> usize {
    let mut done = 0;
    while miss == Miss::CrossesPage && done < bytes {
        let at = GAddr(addr.0 + done as u64);
        let part = ((bytes - done) as u64).min(client.bytes_in_page(at)) as usize;
        if access(at, done..done + part).is_err() {
            break;
        }
        done += part;
    }
    done
}
