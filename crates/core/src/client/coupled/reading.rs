//! What a read is served from while ranges are locked: the buffer, the cache, or home with what is
//! not there yet.

use super::{Coupled, CoupledIo};
use crate::addr::GAddr;
use crate::client::{Cover, PageCache, Piece};
use crate::constants::{CACHED_BLOCK_BYTES, CACHED_PROOF_NS};
use crate::error::{Error, Result};
use crate::seam::{Mem, Mutation, Race};
use crate::wire::{Reply, Request};

impl Coupled {
    /// Reads what the warm path did not; `false` if it has to be read from home, with
    /// [`Coupled::overlay`] after that.
    pub fn read<M: Mem>(
        &mut self,
        io: &mut impl CoupledIo<M>,
        addr: GAddr,
        to: &mut [u8],
    ) -> Result<bool> {
        self.settle(io);
        self.tell()?;
        self.push(io);
        // What was lost on the way is told before anything is read without its lock.
        self.tell()?;
        let bytes = to.len() as u64;
        if let Some((flush, packed)) = io.packed()
            && flush.buffer.cover(addr, bytes) == Cover::Whole
            && !io.client().mutated(Mutation::ReadPastBuffer)
        {
            flush.buffer.overlay(addr, to, packed);
            self.stats.buffer_reads += 1;
            return Ok(true);
        }
        if self.cache.is_off()
            || bytes > CACHED_BLOCK_BYTES
            || self.range_at(addr, bytes).is_none_or(|range| range.write)
        {
            return Ok(false);
        }
        let served = self.read_cached(io, addr, to)?;
        if !served {
            self.tell()?;
        }
        Ok(served)
    }

    /// After a read from home: shows what is not there yet.
    pub fn overlay<M: Mem>(&mut self, io: &mut impl CoupledIo<M>, addr: GAddr, to: &mut [u8]) {
        if let Some((flush, packed)) = io.packed()
            && flush.buffer.cover(addr, to.len() as u64) != Cover::None
            && !io.client().mutated(Mutation::ReadPastBuffer)
        {
            io.client().met(Race::ReadOverlaid);
            flush.buffer.overlay(addr, to, packed);
        }
        self.leave_mapped(io);
    }

    /// Reads inside a range that is locked for reading; `false` if it is not, after all.
    fn read_cached<M: Mem>(
        &mut self,
        io: &mut impl CoupledIo<M>,
        addr: GAddr,
        to: &mut [u8],
    ) -> Result<bool> {
        let (mut done, misses) = (0, self.stats.cache_misses);
        while done < to.len() {
            let at = GAddr(addr.0 + done as u64);
            if !self.is_proved(io, at)? {
                return Ok(false);
            }
            let had = self.cache.read(at, &mut to[done..]);
            if had == 0 && !self.fetch_block(io, at)? {
                return Ok(false);
            }
            done += had;
        }
        self.stats.cache_hits += u64::from(self.stats.cache_misses == misses);
        Ok(true)
    }

    /// Whether the range around `at` is locked now: by an answer of its rack that is young enough,
    /// or by asking.
    fn is_proved<M: Mem>(&mut self, io: &mut impl CoupledIo<M>, at: GAddr) -> Result<bool> {
        let now_ns = io.now_ns();
        let Some(range) = self.range_at(at, 1) else { return Ok(false) };
        if now_ns.saturating_sub(range.proved_ns) < CACHED_PROOF_NS
            || io.client().mutated(Mutation::TrustCopies)
        {
            return Ok(true);
        }
        let (addr, token, link) = (range.first, range.token, range.link);
        io.client().met(Race::ProofRenewed);
        match io.ask(link, Request::CheckLock { addr, token })? {
            Reply::Held { held: true } => {}
            _ => {
                let rack = io.client().rack_of(link);
                io.with_held(|held| held.lose(rack, Some(&[token])));
                // Told by the error here.
                let _ = io.losses().tell();
                self.lose(io);
                return Err(Error::LockLost { addr, token });
            }
        }
        // Its answer may have come over a connection that a loss was learnt with.
        self.settle(io);
        let Some(range) = self.range_at(at, 1) else { return Ok(false) };
        range.proved_ns = now_ns;
        Ok(true)
    }

    /// Reads the block around `at` from home.
    fn fetch_block<M: Mem>(&mut self, io: &mut impl CoupledIo<M>, at: GAddr) -> Result<bool> {
        let Some(range) = self.range_at(at, 1) else { return Ok(false) };
        let id = range.id;
        let (addr, bytes) = PageCache::block_of(at, range.first..range.end);
        let mut block = self.cache.take_spare(bytes);
        self.settle(io);
        let started_ns = io.now_ns();
        let read = io.read_home(Piece { addr, bytes }, &mut block);
        self.settle(io);
        self.leave_mapped(io);
        let client = io.client();
        let home = client.translation(client.geometry().page(addr)).map(|entry| entry.link);
        let range = self.range_at(at, 1).filter(|range| range.id == id);
        let (Ok(()), Some(range)) = (&read, range) else {
            self.cache.give_back(block);
            return read.map(|()| false);
        };
        if home == Some(range.link) {
            range.proved_ns = started_ns;
        }
        self.cache.insert(addr, block);
        self.stats.cache_misses += 1;
        Ok(true)
    }
}
