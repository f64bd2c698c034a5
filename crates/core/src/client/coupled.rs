//! Locks coupled with their data: ranges of another rack's memory that a handle has locked, the
//! write buffer under its write locks and the page cache under its read locks.
//!
//! In: grants of range locks, accesses that the warm path did not serve, guards that were dropped
//! and locks that were lost. Out: bytes from here, or what is to be done at home first. What only
//! the runtime can do (the fabric, daemons, time) it does through [`CoupledIo`]: its calls may
//! block; what is done when, and whether at all, is decided here. All of it is one handle's; other
//! handles see buffered writes when the lock is given back. The rules (decision 0020):
//!
//! * A write is buffered only inside a range that is locked for writing, and is at home before the
//!   lock is given back, before the handle asks whether the lock is still held, and before the
//!   handle does anything else that others can see through the fabric.
//! * A read is served from the cache only inside a range that is locked for reading, and only for
//!   half a lease after the home rack has last answered: for so long the lock is provably held.
//! * A range of a page that turns out to be mapped here, because it moved, is neither buffered nor
//!   cached any more: the warm path would not look here.

mod reading;

use super::{Client, Flush, HeldLocks, LinkId, Losses, PageCache, Piece, Reach};
use crate::addr::GAddr;
use crate::constants::{
    BUFFERED_WRITE_BYTES_MAX_DEFAULT, CACHED_BLOCKS_DEFAULT, WRITE_BUFFER_BYTES_DEFAULT,
};
use crate::error::{Error, Result};
use crate::seam::{Mem, Mutation, Nanos, Race};
use crate::wire::{Reply, Request};

/// Buffered writes between two looks at a flush under way.
const WRITES_A_LOOK: u64 = 32;

/// How much a handle buffers and caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoupledOptions {
    /// Longer writes are not buffered, bytes.
    pub buffered_write_bytes_max: u32,
    /// Both halves of the write buffer, bytes; 0 for none.
    pub write_buffer_bytes: u32,
    /// Blocks of 16 KiB of the page cache; 0 for none.
    pub page_cache_blocks: u32,
}

impl Default for CoupledOptions {
    fn default() -> Self {
        Self {
            buffered_write_bytes_max: BUFFERED_WRITE_BYTES_MAX_DEFAULT,
            write_buffer_bytes: WRITE_BUFFER_BYTES_DEFAULT,
            page_cache_blocks: CACHED_BLOCKS_DEFAULT,
        }
    }
}

/// What the runtime does for the coupled locks of a handle.
pub trait CoupledIo<M: Mem> {
    /// The client engine of the handle.
    fn client(&self) -> &Client<M>;
    /// Now, ns, by the clock of this process.
    fn now_ns(&self) -> Nanos;
    /// The handle's locks, which guards on other threads share.
    fn with_held<R>(&mut self, run: impl FnOnce(&mut HeldLocks) -> R) -> R;
    /// Whether a coupled guard was dropped or a lock was lost since the last call.
    fn take_changed(&mut self) -> bool;
    /// Gives back a lock that has no guard any more, now or with a later call.
    fn give_back(&mut self, id: u64);
    /// What the handle has lost.
    fn losses(&mut self) -> &mut Losses;
    /// The write buffer, once there is one.
    fn flush(&mut self) -> Option<&mut Flush>;
    /// The write buffer with the bytes of its half that leaves.
    fn packed(&self) -> Option<(&Flush, &[u8])>;
    /// Makes a write buffer with halves of so many bytes.
    fn open_buffer(&mut self, half_bytes: u32) -> Result<()>;
    fn begin_flush(&mut self);
    /// Goes on with a flush that is under way, as [`Flush::look`] says; its result when it has
    /// ended, after [`Flush::ended`].
    fn step_flush(&mut self) -> Option<Result<()>>;
    /// Hands over the completions that are there. `wait`: if there are none, waits for one, but no
    /// longer than the flush that is under way may take.
    fn take_completions(&mut self, wait: bool);
    /// Asks the daemon behind a link, through its restarts, until a call's deadline.
    fn ask(&mut self, link: LinkId, request: Request) -> Result<Reply>;
    /// Reads from home, whatever is buffered or cached.
    fn read_home(&mut self, piece: Piece, to: &mut [u8]) -> Result<()>;
    fn coupled(&mut self) -> &mut Coupled;
    /// Lets the coupled locks do something with the rest of the handle. Meanwhile it has an empty
    /// one in their place, so nothing that it does for them looks at locks again.
    fn with_coupled<R>(&mut self, run: impl FnOnce(&mut Coupled, &mut Self) -> R) -> R
    where
        Self: Sized,
    {
        let mut coupled = std::mem::take(self.coupled());
        let result = run(&mut coupled, self);
        *self.coupled() = coupled;
        result
    }
    /// Takes note of guards that were dropped and locks that were lost.
    fn settle_locked(&mut self)
    where
        Self: Sized,
    {
        if self.coupled().is_active() {
            self.with_coupled(|coupled, io| coupled.settle(io));
        }
    }
}

/// What the write buffer and the page cache of a handle did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CoupledStats {
    pub buffered_writes: u64,
    pub buffered_bytes: u64,
    /// Halves of the buffer that were brought home.
    pub flushes: u64,
    /// Batches (doorbells) in which that was done.
    pub flush_batches: u64,
    /// Reads that the write buffer served without the fabric.
    pub buffer_reads: u64,
    /// Reads that the page cache served without the fabric.
    pub cache_hits: u64,
    /// Blocks that the page cache read.
    pub cache_misses: u64,
}

/// A range of another rack that this handle has locked.
#[derive(Debug)]
struct Range {
    id: u64,
    first: GAddr,
    end: GAddr,
    write: bool,
    link: LinkId,
    token: u64,
    /// When a request began that the home rack has answered since.
    proved_ns: Nanos,
    /// Writes in the half of the buffer that fills, and in the one that leaves.
    filling: u64,
    leaving: u64,
    failed: Option<Error>,
    /// Not buffered or cached any more: the lock is lost, or the page turned out to be mapped here.
    is_over: bool,
}

impl Range {
    fn covers(&self, addr: GAddr, bytes: u64) -> bool {
        self.first <= addr && addr.0 + bytes <= self.end.0
    }

    /// Its writes that are not at home are given up; whether there were any.
    fn fail(&mut self, reason: &Error) -> bool {
        let writes = self.filling + self.leaving;
        (self.filling, self.leaving) = (0, 0);
        if writes > 0 {
            let (addr, token, reason) = (self.first, self.token, reason.to_string());
            self.failed = Some(Error::WritesLost { addr, token, writes, reason });
        }
        writes > 0
    }
}

/// The coupled locks of one handle.
#[derive(Debug)]
pub struct Coupled {
    options: CoupledOptions,
    /// By address; they share no line.
    ranges: Vec<Range>,
    cache: PageCache,
    /// The failure of a range that has no guard any more.
    untold: Option<Error>,
    stats: CoupledStats,
}

impl Default for Coupled {
    /// One that couples nothing, to stand in for another one that is being driven.
    fn default() -> Self {
        let (buffered_write_bytes_max, write_buffer_bytes, page_cache_blocks) = (0, 0, 0);
        Self::new(CoupledOptions {
            buffered_write_bytes_max,
            write_buffer_bytes,
            page_cache_blocks,
        })
    }
}

impl Coupled {
    pub fn new(options: CoupledOptions) -> Self {
        let (ranges, cache) = (Vec::new(), PageCache::new(options.page_cache_blocks));
        Self { options, ranges, cache, untold: None, stats: CoupledStats::default() }
    }

    /// Whether accesses have to look here.
    #[inline]
    pub fn is_active(&self) -> bool {
        !self.ranges.is_empty() || self.untold.is_some()
    }

    /// A range was granted to guard `id` by a request that began at `asked_ns`.
    pub fn add(&mut self, id: u64, write: bool, asked_ns: Nanos, held: &super::HeldLock) {
        let super::HeldLock { addr: first, end, link, token, .. } = *held;
        let (filling, leaving, failed, is_over) = (0, 0, None, false);
        let proved_ns = asked_ns;
        let index = self.ranges.partition_point(|other| other.first < first);
        self.ranges.insert(
            index,
            Range {
                id,
                first,
                end,
                write,
                link,
                token,
                proved_ns,
                filling,
                leaving,
                failed,
                is_over,
            },
        );
    }

    /// A piece will be written without the buffer.
    pub fn forget(&mut self, addr: GAddr, bytes: u64) {
        self.cache.forget(addr, GAddr(addr.0.saturating_add(bytes)));
    }

    /// What they did so far; `flush`: the write buffer.
    pub fn stats(&self, flush: Option<&Flush>) -> CoupledStats {
        CoupledStats { flush_batches: flush.map_or(0, Flush::doorbells), ..self.stats }
    }

    fn range_at(&mut self, addr: GAddr, bytes: u64) -> Option<&mut Range> {
        let index = self.ranges.partition_point(|range| range.first <= addr);
        let range = self.ranges[..index].last_mut()?;
        (range.covers(addr, bytes) && !range.is_over).then_some(range)
    }

    /// The first failure that was not reported yet, once.
    fn tell(&mut self) -> Result<()> {
        let ranges = self.ranges.iter_mut().map(|range| &mut range.failed);
        let mut failures = std::iter::once(&mut self.untold).chain(ranges);
        failures.find_map(Option::take).map_or(Ok(()), Err)
    }

    /// Puts a write into the buffer if it lies in a range that is locked for writing; whether it
    /// did. If not, everything buffered is at home.
    pub fn write<M: Mem>(
        &mut self,
        io: &mut impl CoupledIo<M>,
        addr: GAddr,
        from: &[u8],
    ) -> Result<bool> {
        self.settle(io);
        self.tell()?;
        let bytes = from.len() as u64;
        let limit = u64::from(self.options.buffered_write_bytes_max);
        let range = self.range_at(addr, bytes);
        let is_buffered = bytes <= limit && range.is_some_and(|range| range.write);
        if !is_buffered || !self.put(io, addr, from)? {
            self.before_others(io, addr, bytes)?;
            return Ok(false);
        }
        if let Some(range) = self.range_at(addr, bytes) {
            range.filling += 1;
        }
        self.stats.buffered_writes += 1;
        self.stats.buffered_bytes += bytes;
        if self.stats.buffered_writes.is_multiple_of(WRITES_A_LOOK) {
            self.push(io);
        }
        Ok(true)
    }

    /// Whether the buffer took a write. Makes room; a buffer that is too small for it takes none.
    fn put<M: Mem>(
        &mut self,
        io: &mut impl CoupledIo<M>,
        addr: GAddr,
        from: &[u8],
    ) -> Result<bool> {
        if io.flush().is_none() {
            let half_bytes = self.options.write_buffer_bytes / 2;
            if (half_bytes as usize) < from.len() {
                return Ok(false);
            }
            io.open_buffer(half_bytes)?;
        }
        for _ in 0..2 {
            let flush = io.flush().expect("it was made");
            if flush.buffer.put(addr, from) {
                return Ok(true);
            }
            io.client().met(Race::HalfFull);
            let is_under_way = io.flush().is_some_and(|flush| flush.is_under_way());
            if !is_under_way && io.client().mutated(Mutation::DropFullHalf) {
                let flush = io.flush().expect("it was made");
                flush.buffer.give_up(GAddr::NULL, GAddr(u64::MAX));
                continue;
            }
            // The other half leaves, and this one when that is done.
            self.end_flush(io);
            self.begin_flush(io);
            self.tell()?;
            // The lock may have been lost on the way, with nothing of its own to be told of.
            if self.range_at(addr, from.len() as u64).is_none() {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Before anything of this handle that the buffer and the cache do not see: what is buffered
    /// goes home, and copies of what will be written are dropped.
    pub fn before_others<M: Mem>(
        &mut self,
        io: &mut impl CoupledIo<M>,
        addr: GAddr,
        bytes: u64,
    ) -> Result<()> {
        if !self.is_active() {
            return Ok(());
        }
        self.settle(io);
        self.forget(addr, bytes);
        self.flush(io);
        self.tell()
    }

    /// Takes note of guards that were dropped and locks that were lost: cached blocks go, and
    /// buffered writes go home or are counted as lost.
    pub fn settle<M: Mem>(&mut self, io: &mut impl CoupledIo<M>) {
        if self.ranges.is_empty() || !io.take_changed() {
            return;
        }
        self.lose(io);
        let dropped = io.with_held(|held| held.dropped());
        let is_gone = |range: &&Range| dropped.contains(&range.id);
        if self.ranges.iter().filter(is_gone).any(|range| range.filling + range.leaving > 0) {
            self.flush(io);
        }
        for id in dropped {
            if let Err(error) = self.take(io, id) {
                self.untold.get_or_insert(error);
            }
            // Only now: until here it is fenced like any other lock.
            io.give_back(id);
        }
    }

    /// Gives up what was buffered and cached under locks that are lost.
    fn lose<M: Mem>(&mut self, io: &mut impl CoupledIo<M>) {
        let Self { ranges, cache, .. } = self;
        let mut are_told = false;
        for range in ranges {
            if !io.with_held(|held| held.is_lost(range.id)) {
                continue;
            }
            range.is_over = true;
            cache.forget(range.first, range.end);
            if io.client().mutated(Mutation::KeepLostWrites) {
                continue;
            }
            // What is posted goes over a connection that has ended.
            if let Some(flush) = io.flush().filter(|flush| !flush.is_under_way()) {
                flush.buffer.give_up(range.first, range.end);
                let (addr, token) = (range.first, range.token);
                are_told |= range.fail(&Error::LockLost { addr, token });
            }
        }
        if are_told {
            io.client().met(Race::BufferedWritesLost);
            io.losses().mark_told();
        }
    }

    /// Takes a range out, when its guard is gone: what was not told of it, or nothing.
    fn take<M: Mem>(&mut self, io: &impl CoupledIo<M>, id: u64) -> Result<()> {
        let index = self.ranges.iter().position(|range| range.id == id);
        let Some(index) = index else { return Ok(()) };
        let range = self.ranges.remove(index);
        if !io.client().mutated(Mutation::KeepCopiesAfterUnlock) {
            self.cache.forget(range.first, range.end);
        }
        range.failed.map_or(Ok(()), Err)
    }

    /// Brings home what is buffered under a guard's lock, then asks its daemon whether it is held.
    ///
    /// # Errors
    /// `lock-lost` if not; `writes-lost` if buffered writes did not all reach home; those of
    /// [`CoupledIo::ask`].
    pub fn check_lock<M: Mem>(
        &mut self,
        io: &mut impl CoupledIo<M>,
        id: u64,
        lost: Error,
    ) -> Result<()> {
        self.flush_guard(io, id)?;
        let held = io.with_held(|held| held.get(id).copied());
        let Some(held) = held else { return Err(lost) };
        let request = Request::CheckLock { addr: held.addr, token: held.token };
        match io.ask(held.link, request)? {
            Reply::Held { held: true } if io.with_held(|held| !held.is_lost(id)) => Ok(()),
            _ => Err(lost),
        }
    }

    /// Brings home what is buffered under a guard's lock, then gives it back.
    ///
    /// # Errors
    /// `lock-lost` if it was lost before; `writes-lost` if buffered writes did not all reach home
    /// (then the lock is given back with a later call, if it is held still); those of
    /// [`CoupledIo::ask`]: then its daemon is told later.
    pub fn unlock<M: Mem>(
        &mut self,
        io: &mut impl CoupledIo<M>,
        id: u64,
        lost: Error,
    ) -> Result<()> {
        let flushed = if io.client().mutated(Mutation::UnlockBeforeFlush) {
            Ok(())
        } else {
            self.flush_guard(io, id)
        };
        if let Err(error) = flushed.and(self.take(io, id)) {
            io.give_back(id);
            return Err(error);
        }
        // From here on the end of the guard finds nothing to give back.
        let Some(held) = io.with_held(|held| held.remove(id)) else { return Err(lost) };
        match io.ask(held.link, held.release().request()) {
            Ok(Reply::Held { held: true }) => Ok(()),
            Ok(_) => Err(lost),
            Err(error) => {
                io.with_held(|locks| locks.owe(held.release()));
                Err(error)
            }
        }
    }

    /// What of a guard's writes failed, if that has to be reported, after the others came home.
    fn flush_guard<M: Mem>(&mut self, io: &mut impl CoupledIo<M>, id: u64) -> Result<()> {
        self.settle(io);
        self.flush(io);
        let range = self.ranges.iter_mut().find(|range| range.id == id);
        range.and_then(|range| range.failed.take()).map_or(Ok(()), Err)
    }

    /// A range of a page that turned out to be mapped here: what is buffered goes there, and the
    /// warm path has it from now on.
    pub fn leave_mapped<M: Mem>(&mut self, io: &mut impl CoupledIo<M>) {
        let mut found = false;
        for range in self.ranges.iter_mut().filter(|range| !range.is_over) {
            let client = io.client();
            let entry = client.translation(client.geometry().page(range.first));
            if entry.is_some_and(|entry| matches!(client.reach(entry.link), Reach::Mapped(_))) {
                range.is_over = true;
                self.cache.forget(range.first, range.end);
                found = true;
            }
        }
        if found {
            self.flush(io);
        }
    }
}

/// When buffered writes go home, and what becomes of those that do not arrive.
impl Coupled {
    /// Lets a flush go on that is under way, without waiting.
    fn push<M: Mem>(&mut self, io: &mut impl CoupledIo<M>) {
        if !io.flush().is_some_and(|flush| flush.is_under_way()) {
            return;
        }
        io.take_completions(false);
        if let Some(result) = io.step_flush() {
            self.flush_ended(io, result);
        }
    }

    /// Sends the half that fills, or again what did not arrive, unless a half is under way.
    fn begin_flush<M: Mem>(&mut self, io: &mut impl CoupledIo<M>) {
        let Some(flush) = io.flush() else { return };
        if flush.is_under_way() || flush.buffer.is_empty() {
            return;
        }
        self.lose(io);
        let Some(flush) = io.flush().filter(|flush| !flush.buffer.is_empty()) else { return };
        if !flush.buffer.is_leaving() {
            for range in &mut self.ranges {
                range.leaving += std::mem::take(&mut range.filling);
            }
        }
        io.begin_flush();
        if let Some(result) = io.step_flush() {
            self.flush_ended(io, result);
        }
    }

    /// Waits for a flush that is under way.
    fn end_flush<M: Mem>(&mut self, io: &mut impl CoupledIo<M>) {
        while io.flush().is_some_and(|flush| flush.is_under_way()) {
            match io.step_flush() {
                Some(result) => self.flush_ended(io, result),
                None => io.take_completions(true),
            }
        }
    }

    /// Brings home everything that is buffered. What failed is noted with its range.
    pub fn flush<M: Mem>(&mut self, io: &mut impl CoupledIo<M>) {
        // Each turn ends a half, or begins one; a half begins anew only after a loss.
        while io.flush().is_some_and(|flush| !flush.buffer.is_empty()) {
            self.end_flush(io);
            self.begin_flush(io);
        }
    }

    fn flush_ended<M: Mem>(&mut self, io: &mut impl CoupledIo<M>, result: Result<()>) {
        self.stats.flushes += u64::from(result.is_ok());
        match result {
            Ok(()) => self.ranges.iter_mut().for_each(|range| range.leaving = 0),
            // The locks that are left have their writes sent again.
            Err(Error::LockLost { .. }) => self.lose(io),
            Err(error) => {
                let flush = io.flush().expect("it has ended");
                for range in self.ranges.iter_mut().filter(|range| range.leaving > 0) {
                    flush.buffer.give_up(range.first, range.end);
                    range.fail(&error);
                }
                flush.buffer.arrived();
            }
        }
    }
}
