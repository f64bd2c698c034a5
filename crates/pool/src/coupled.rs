//! Locks coupled with their data: ranges of another rack's memory that a handle has locked, the
//! write buffer under its write locks and the page cache under its read locks.
//!
//! In: grants of range locks (`locks.rs`), accesses that the warm path did not serve
//! (`handle.rs`), guards that were dropped and locks that were lost. Out: bytes from here, or
//! accesses to the home rack. All of it is one handle's; other handles see buffered writes when the
//! lock is given back. The rules (decision 0020):
//!
//! * A write is buffered only inside a range that is locked for writing, and is at home before the
//!   lock is given back, before the handle asks whether the lock is still held, and before the
//!   handle does anything else that others can see through the fabric.
//! * A read is served from the cache only inside a range that is locked for reading, and only for
//!   half a lease after the home rack has last answered: for so long the lock is provably held.
//! * A range whose page turns out to be mapped here, because it moved, is neither buffered nor
//!   cached any more: the warm path would not look here.

use crate::clock;
use crate::flush::Flush;
use crate::handle::Handle;
use rackpool_core::client::{Access, Cover, LinkId, PageCache, Piece, Reach, WriteBuffer};
use rackpool_core::constants::{CACHED_BLOCK_BYTES, CACHED_PROOF_NS};
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{Error, GAddr, Result};
use rackpool_hw::fabric::LocalBuffer;
use serde::Serialize;

/// Buffered writes between two looks at a flush under way.
const WRITES_A_LOOK: u64 = 32;

/// What the write buffer and the page cache of a handle did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CoupledStats {
    /// Writes that were buffered.
    pub buffered_writes: u64,
    /// Bytes of those.
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
pub(crate) struct Locked {
    id: u64,
    first: GAddr,
    end: GAddr,
    write: bool,
    link: LinkId,
    token: u64,
    /// When a request began that the home rack has answered since.
    proved_ns: u64,
    /// Writes in the half of the buffer that fills, and in the one that leaves.
    filling: u64,
    leaving: u64,
    failed: Option<Error>,
    /// Not buffered or cached any more: the lock is lost, or the page turned out to be mapped here.
    is_over: bool,
}

impl Locked {
    pub(crate) fn new(
        (id, token): (u64, u64),
        (first, end): (GAddr, GAddr),
        write: bool,
        link: LinkId,
        proved_ns: u64,
    ) -> Self {
        let (filling, leaving, failed, is_over) = (0, 0, None, false);
        Self { id, first, end, write, link, token, proved_ns, filling, leaving, failed, is_over }
    }

    fn covers(&self, addr: GAddr, bytes: u64) -> bool {
        self.first <= addr && addr.0 + bytes <= self.end.0
    }

    fn fail(&mut self, reason: &Error) {
        let writes = self.filling + self.leaving;
        (self.filling, self.leaving) = (0, 0);
        if writes > 0 {
            let (addr, token, reason) = (self.first, self.token, reason.to_string());
            self.failed = Some(Error::WritesLost { addr, token, writes, reason });
        }
    }
}

/// The coupled locks of one handle.
#[derive(Debug)]
pub(crate) struct Coupled {
    /// By address; they share no line.
    ranges: Vec<Locked>,
    cache: PageCache,
    /// What became of a range whose guard nobody has any more.
    untold: Option<Error>,
    stats: CoupledStats,
}

impl Coupled {
    pub(crate) fn new(cached_blocks: u32) -> Self {
        let (ranges, cache) = (Vec::new(), PageCache::new(cached_blocks));
        Self { ranges, cache, untold: None, stats: CoupledStats::default() }
    }

    /// Whether accesses have to look here.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        !self.ranges.is_empty() || self.untold.is_some()
    }

    pub(crate) fn add(&mut self, locked: Locked) {
        let index = self.ranges.partition_point(|other| other.first < locked.first);
        self.ranges.insert(index, locked);
    }

    /// A piece will be written without the buffer.
    pub(crate) fn forget(&mut self, addr: GAddr, buffer: &LocalBuffer<'_>) {
        let bytes = match buffer {
            LocalBuffer::From(from) => from.len() as u64,
            LocalBuffer::Into(to) => to.len() as u64,
        };
        self.cache.forget(addr, GAddr(addr.0.saturating_add(bytes)));
    }

    fn range_at(&mut self, addr: GAddr, bytes: u64) -> Option<&mut Locked> {
        let index = self.ranges.partition_point(|range| range.first <= addr);
        let range = self.ranges[..index].last_mut()?;
        (range.covers(addr, bytes) && !range.is_over).then_some(range)
    }

    /// The first failure that nobody was told of, once.
    fn tell(&mut self) -> Result<()> {
        let ranges = self.ranges.iter_mut().map(|range| &mut range.failed);
        let mut failures = std::iter::once(&mut self.untold).chain(ranges);
        failures.find_map(Option::take).map_or(Ok(()), Err)
    }
}

impl Handle {
    /// Puts a write into the buffer if it lies in a range that is locked for writing; whether it
    /// did. If not, everything buffered is at home.
    pub(crate) fn write_coupled(&mut self, addr: GAddr, from: &[u8]) -> Result<bool> {
        self.settle_locked();
        self.coupled.tell()?;
        let bytes = from.len() as u64;
        let limit = u64::from(self.links.options().buffered_write_bytes_max);
        let range = self.coupled.range_at(addr, bytes);
        let is_buffered = bytes <= limit && range.is_some_and(|range| range.write);
        if !is_buffered || !self.put(addr, from)? {
            self.before_others(addr, bytes)?;
            return Ok(false);
        }
        if let Some(range) = self.coupled.range_at(addr, bytes) {
            range.filling += 1;
        }
        let stats = &mut self.coupled.stats;
        stats.buffered_writes += 1;
        stats.buffered_bytes += bytes;
        if stats.buffered_writes.is_multiple_of(WRITES_A_LOOK) {
            self.push_flush();
        }
        Ok(true)
    }

    /// Whether the buffer took a write. Makes room; a buffer that is too small for it takes none.
    fn put(&mut self, addr: GAddr, from: &[u8]) -> Result<bool> {
        if self.submissions.flush.is_none() {
            let half_bytes = self.links.options().write_buffer_bytes / 2;
            if (half_bytes as usize) < from.len() {
                return Ok(false);
            }
            let buffer = WriteBuffer::new(self.client.geometry(), half_bytes);
            self.submissions.flush = Some(Box::new(Flush::new(buffer, &mut self.endpoint)?));
        }
        for _ in 0..2 {
            let flush = self.submissions.flush.as_mut().expect("it was made");
            if flush.buffer.put(addr, from) {
                return Ok(true);
            }
            // The other half leaves, and this one when that is done.
            self.end_flush();
            self.begin_flush();
            self.coupled.tell()?;
        }
        Ok(false)
    }

    /// Before anything of this handle that the buffer and the cache do not see: what is buffered
    /// goes home, and copies of what will be written are dropped.
    pub(crate) fn before_others(&mut self, addr: GAddr, bytes: u64) -> Result<()> {
        if !self.coupled.is_active() {
            return Ok(());
        }
        self.settle_locked();
        self.coupled.cache.forget(addr, GAddr(addr.0 + bytes));
        self.flush_locked();
        self.coupled.tell()
    }

    /// Reads what the warm path did not, while ranges are locked.
    pub(crate) fn read_coupled(&mut self, addr: GAddr, to: &mut [u8]) -> Result<bool> {
        self.settle_locked();
        self.coupled.tell()?;
        self.push_flush();
        let bytes = to.len() as u64;
        let flush = self.submissions.flush.as_ref();
        let flush = flush.filter(|flush| flush.buffer.cover(addr, bytes) == Cover::Whole);
        if let Some(flush) = flush {
            flush.buffer.overlay(addr, to, flush.packed(&self.endpoint));
            self.coupled.stats.buffer_reads += 1;
            return Ok(true);
        }
        if self.coupled.cache.is_off()
            || bytes > CACHED_BLOCK_BYTES
            || self.coupled.range_at(addr, bytes).is_none_or(|range| range.write)
        {
            return Ok(false);
        }
        self.read_cached(addr, to)
    }

    /// After a read from home: shows what is not there yet.
    pub(crate) fn overlay_locked(&mut self, addr: GAddr, to: &mut [u8]) {
        if let Some(flush) = &self.submissions.flush
            && flush.buffer.cover(addr, to.len() as u64) != Cover::None
        {
            flush.buffer.overlay(addr, to, flush.packed(&self.endpoint));
        }
        self.leave_mapped();
    }

    /// Reads inside a range that is locked for reading; `false` if it is not, after all.
    fn read_cached(&mut self, addr: GAddr, to: &mut [u8]) -> Result<bool> {
        let (mut done, misses) = (0, self.coupled.stats.cache_misses);
        while done < to.len() {
            let at = GAddr(addr.0 + done as u64);
            if !self.is_proved(at)? {
                return Ok(false);
            }
            let had = self.coupled.cache.read(at, &mut to[done..]);
            if had == 0 && !self.fetch_block(at)? {
                return Ok(false);
            }
            done += had;
        }
        let stats = &mut self.coupled.stats;
        stats.cache_hits += u64::from(stats.cache_misses == misses);
        Ok(true)
    }

    /// Whether the range around `at` is locked now: by an answer of its rack that is young enough,
    /// or by asking.
    fn is_proved(&mut self, at: GAddr) -> Result<bool> {
        let now_ns = clock::now_ns();
        let Some(range) = self.coupled.range_at(at, 1) else { return Ok(false) };
        if now_ns.saturating_sub(range.proved_ns) < CACHED_PROOF_NS {
            return Ok(true);
        }
        let (addr, token, link) = (range.first, range.token, range.link);
        let deadline_ns = clock::deadline_ns(self.links.options().request_timeout_ms);
        let request = Request::CheckLock { addr, token };
        let Self { client, links, endpoint, .. } = self;
        match links.daemon_call(client, endpoint, link, request, deadline_ns)? {
            Reply::Held { held: true } => {}
            _ => {
                links.locks.lose(client.rack_of(link), Some(&[token]));
                // Told by the error here.
                let _ = links.tell_loss();
                self.settle_locked();
                return Err(Error::LockLost { addr, token });
            }
        }
        // Its answer may have come over a connection that a loss was learnt with.
        self.settle_locked();
        let Some(range) = self.coupled.range_at(at, 1) else { return Ok(false) };
        range.proved_ns = now_ns;
        Ok(true)
    }

    /// Reads the block around `at` from home.
    fn fetch_block(&mut self, at: GAddr) -> Result<bool> {
        let Some(range) = self.coupled.range_at(at, 1) else { return Ok(false) };
        let id = range.id;
        let (first, bytes) = PageCache::block_of(at, (range.first, range.end));
        let mut block = self.coupled.cache.take_spare(bytes);
        let started_ns = clock::now_ns();
        let pieces = [Piece { addr: first, bytes }];
        let read = self.transfer(Access::Read, &pieces, &mut [LocalBuffer::Into(&mut block)]);
        self.settle_locked();
        self.leave_mapped();
        let home = self.client.translation(self.client.geometry().page(first)).map(|e| e.link);
        let range = self.coupled.range_at(at, 1).filter(|range| range.id == id);
        let (Ok(()), Some(range)) = (&read, range) else {
            self.coupled.cache.give_back(block);
            return read.map(|()| false);
        };
        if home == Some(range.link) {
            range.proved_ns = started_ns;
        }
        self.coupled.cache.insert(first, block);
        self.coupled.stats.cache_misses += 1;
        Ok(true)
    }

    /// Takes note of guards that were dropped and locks that were lost: cached blocks go, and
    /// buffered writes go home or are counted as lost.
    pub(crate) fn settle_locked(&mut self) {
        if self.coupled.ranges.is_empty() || !self.links.locks.take_changed() {
            return;
        }
        self.lose_locked();
        let dropped = self.links.locks.dropped();
        let kept = |range: &&Locked| dropped.contains(&range.id);
        if self.coupled.ranges.iter().filter(kept).any(|range| range.filling + range.leaving > 0) {
            self.flush_locked();
        }
        for id in dropped {
            if let Err(error) = self.take_locked(id) {
                self.coupled.untold.get_or_insert(error);
            }
            // Only now: until here it is fenced like any other lock.
            self.links.locks.give_back(id);
        }
    }

    /// Gives up what was buffered and cached under locks that are lost.
    fn lose_locked(&mut self) {
        let Self { coupled, links, submissions, .. } = self;
        for range in &mut coupled.ranges {
            if !links.locks.is_lost(range.id) {
                continue;
            }
            range.is_over = true;
            coupled.cache.forget(range.first, range.end);
            // What is posted goes over a connection that has ended.
            if let Some(flush) = submissions.flush.as_mut().filter(|flush| !flush.is_under_way()) {
                flush.buffer.give_up(range.first, range.end);
                let (addr, token) = (range.first, range.token);
                range.fail(&Error::LockLost { addr, token });
            }
        }
    }

    /// Takes a range out, when its guard is gone: what was not told of it, or nothing.
    fn take_locked(&mut self, id: u64) -> Result<()> {
        let index = self.coupled.ranges.iter().position(|range| range.id == id);
        let Some(index) = index else { return Ok(()) };
        let range = self.coupled.ranges.remove(index);
        self.coupled.cache.forget(range.first, range.end);
        range.failed.map_or(Ok(()), Err)
    }

    /// Brings home what is buffered under a guard's lock; what of it failed, if anybody has to be
    /// told.
    pub(crate) fn flush_guard(&mut self, id: u64) -> Result<()> {
        self.settle_locked();
        self.flush_locked();
        let range = self.coupled.ranges.iter_mut().find(|range| range.id == id);
        range.and_then(|range| range.failed.take()).map_or(Ok(()), Err)
    }

    /// As [`Handle::flush_guard`], when the lock is to be given back.
    pub(crate) fn end_guard(&mut self, id: u64) -> Result<()> {
        let flushed = self.flush_guard(id);
        flushed.and(self.take_locked(id))
    }

    /// A range whose page turned out to be mapped here: what is buffered goes there, and the warm
    /// path has it from now on.
    pub(crate) fn leave_mapped(&mut self) {
        let Self { client, coupled, .. } = self;
        let mut found = false;
        for range in coupled.ranges.iter_mut().filter(|range| !range.is_over) {
            let entry = client.translation(client.geometry().page(range.first));
            if entry.is_some_and(|entry| matches!(client.reach(entry.link), Reach::Mapped(_))) {
                range.is_over = true;
                coupled.cache.forget(range.first, range.end);
                found = true;
            }
        }
        if found {
            self.flush_locked();
        }
    }

    /// Lets a flush go on that is under way, without waiting.
    fn push_flush(&mut self) {
        if !self.submissions.flush.as_ref().is_some_and(|flush| flush.is_under_way()) {
            return;
        }
        let Self { client, links, endpoint, submissions, .. } = self;
        links.poll_completions(endpoint);
        let routed: Vec<_> = links.take_completions().collect();
        for (id, status) in routed {
            submissions.on_completion(client, id, status);
        }
        let flush = submissions.flush.as_mut().expect("it is under way");
        if let Some(result) = flush.step(client, links, endpoint) {
            self.flush_ended(result);
        }
    }

    fn begin_flush(&mut self) {
        let Some(flush) = &self.submissions.flush else { return };
        if flush.is_under_way() || flush.buffer.is_empty() {
            return;
        }
        self.lose_locked();
        let Self { client, links, endpoint, submissions, rounds, .. } = self;
        let Some(flush) = submissions.flush.as_mut().filter(|one| !one.buffer.is_empty()) else {
            return;
        };
        if !flush.buffer.is_leaving() {
            for range in &mut self.coupled.ranges {
                range.leaving += std::mem::take(&mut range.filling);
            }
        }
        *rounds += 1;
        flush.begin(endpoint, links, *rounds);
        if let Some(result) = flush.step(client, links, endpoint) {
            self.flush_ended(result);
        }
    }

    /// Waits for a flush that is under way.
    fn end_flush(&mut self) {
        while let Some(flush) = self.submissions.flush.as_mut().filter(|one| one.is_under_way()) {
            let Self { client, links, endpoint, .. } = self;
            if let Some(result) = flush.step(client, links, endpoint) {
                self.flush_ended(result);
                continue;
            }
            let deadline_ns = flush.deadline_ns().expect("it is under way");
            links.wait_completions(endpoint, deadline_ns);
            for (id, status) in links.take_completions() {
                self.submissions.on_completion(client, id, status);
            }
        }
    }

    /// Brings home everything that is buffered. What failed is noted with its range.
    pub(crate) fn flush_locked(&mut self) {
        // Each turn ends a half, or begins one; a half begins anew only after a loss.
        while self.submissions.flush.as_ref().is_some_and(|flush| !flush.buffer.is_empty()) {
            self.end_flush();
            self.begin_flush();
        }
    }

    fn flush_ended(&mut self, result: Result<()>) {
        self.coupled.stats.flushes += u64::from(result.is_ok());
        match result {
            Ok(()) => self.coupled.ranges.iter_mut().for_each(|range| range.leaving = 0),
            // The locks that are left have their writes sent again.
            Err(Error::LockLost { .. }) => self.lose_locked(),
            Err(error) => {
                let flush = self.submissions.flush.as_mut().expect("it has ended");
                for range in self.coupled.ranges.iter_mut().filter(|range| range.leaving > 0) {
                    flush.buffer.give_up(range.first, range.end);
                    range.fail(&error);
                }
                flush.buffer.arrived();
            }
        }
    }

    /// What the write buffer and the page cache did.
    pub(crate) fn coupled_stats(&self) -> CoupledStats {
        let flush_batches = self.submissions.flush.as_ref().map_or(0, |flush| flush.doorbells());
        CoupledStats { flush_batches, ..self.coupled.stats }
    }
}
