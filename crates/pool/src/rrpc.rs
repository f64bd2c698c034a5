//! RRPC in a handle: calls that carry data, objects with a length that only their home knows, and
//! the length up to which a call carries the data itself.
//!
//! Which way is taken: a place that is known, or mapped, is accessed directly. If the place is not
//! known but the rack probably is (`Client::guess`), a call does the access and brings the place.
//! Else the place is looked up and then accessed directly. Source: Rcmp §5.5; decision 0028.

use crate::clock;
use crate::drive::{Buffers, drive};
use crate::error::{Result, WireError, WireResult};
use crate::handle::Handle;
use crate::options::RrpcThreshold;
use crate::paths::CallSize;
use rackpool_core::GAddr;
pub use rackpool_core::client::FetchMode;
use rackpool_core::client::{Access, Brought, Calls, LinkId, Operation, Piece, Reach, Rpc, What};
use rackpool_core::rrpc::{
    self, Bytes, Carried, FetchExtent, Fetched, INLINE_BYTES_MAX, LinkProbe, OBJECT_PREFIX_BYTES,
    PROBE_BYTES, THRESHOLD_PAPER_BYTES,
};
use rackpool_fabric::LocalBuffer;

/// A rack is measured after so many calls: a client that makes a few would not get the time back.
const CALLS_BEFORE_MEASURING: u32 = 32;
/// How often each length is tried when a rack is measured …
const PROBE_ROUNDS: usize = 8;
/// … and for how long at most, ns; what was tried by then counts.
const PROBE_NS_MAX: u64 = 10_000_000;

/// Calls of a handle since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RrpcStats {
    /// Calls made.
    pub calls: u64,
    /// Of them, those with the data in the answer.
    pub inline: u64,
    /// Of them, those with the data written into the caller's buffer.
    pub written: u64,
}

/// What a handle knows of the racks that it calls.
#[derive(Debug, Default)]
pub(crate) struct RrpcState {
    racks: Vec<Measured>,
    stats: RrpcStats,
}

/// What was measured of a rack.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    /// Calls before it was measured.
    calls: u32,
    /// `None` before that.
    threshold: Option<u32>,
    /// Pages are looked up rather than called for.
    looks_up: bool,
}

impl Handle {
    /// Reads the object at `addr`: what [`Handle::write_object`] wrote there last. Its length
    /// need not be known. If its place is not known either, one call to its rack brings both, and
    /// short data with them; later reads are one-sided.
    ///
    /// ```
    /// # fn main() -> rackpool::Result<()> {
    /// use rackpool::{Placement, RackId, cluster::Cluster};
    /// let cluster = Cluster::start(2)?;
    /// let mut handle = cluster.pool(0)?.handle()?;
    /// let addr = handle.alloc(1024, Placement::Rack(RackId(1)))?;
    /// handle.write_object(addr, b"of any length")?;
    /// assert_eq!(handle.read_object(addr)?, b"of any length");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `misaligned` if `addr` is no multiple of 8; `out-of-bounds` if the length that is there does
    /// not fit into the allocation: it holds no object, or one that is being written; otherwise
    /// those of [`Handle::read`]. An object that is written meanwhile may be torn.
    pub fn read_object(&mut self, addr: GAddr) -> Result<Vec<u8>> {
        self.check_object(addr, 0)?;
        if let Some(link) = self.called(addr) {
            let fetched = self.call_object(addr, self.threshold(link), true)?;
            let data = self.complete(addr, fetched)?;
            self.calibrate(addr, link);
            return Ok(data);
        }
        let most = OBJECT_PREFIX_BYTES + u64::from(THRESHOLD_PAPER_BYTES);
        let first = most.min(self.client.bytes_in_page(addr));
        let mut all = vec![0; first as usize];
        self.read(addr, &mut all)?;
        let (prefix, _) = all.split_first_chunk().expect("an aligned address has 8 bytes");
        let needed = u64::from_le_bytes(*prefix).saturating_add(OBJECT_PREFIX_BYTES);
        if needed > self.client.bytes_in_page(addr) {
            // Nothing here says whether that is true: its home knows the allocation.
            let fetched = self.call_object(addr, 0, false)?;
            return self.complete(addr, fetched);
        }
        all.resize(needed as usize, 0);
        if needed > first {
            self.read(GAddr(addr.0 + first), &mut all[first as usize..])?;
        }
        all.drain(..OBJECT_PREFIX_BYTES as usize);
        Ok(all)
    }

    /// Reads many objects. Calls to one rack share a doorbell, and so do the reads of long data.
    ///
    /// # Errors
    /// Those of [`Handle::read_object`], for the first object that cannot be read.
    pub fn read_objects(&mut self, addrs: &[GAddr]) -> Result<Vec<Vec<u8>>> {
        for addr in addrs {
            self.check_object(*addr, 0)?;
        }
        let link = addrs.iter().find_map(|addr| self.client.guess(*addr));
        let inline = link.map_or(THRESHOLD_PAPER_BYTES, |link| self.threshold(link));
        let said = self.run(&mut Calls::new(addrs, FetchExtent::Object, inline))?;
        let mut objects = vec![Vec::new(); addrs.len()];
        let mut by_read = Vec::new();
        for (index, fetched) in said.into_iter().enumerate() {
            let Some(fetched) = fetched else {
                objects[index] = self.read_object(addrs[index])?;
                continue;
            };
            self.count(&fetched);
            match fetched.carried {
                Carried::Inline(data) => objects[index] = data.0,
                Carried::Written | Carried::Not => {
                    objects[index] = vec![0; fetched.bytes as usize];
                    by_read.push(index);
                }
            }
        }
        let mut reads: Vec<(GAddr, &mut [u8])> = Vec::with_capacity(by_read.len());
        let mut wanted = by_read.into_iter().peekable();
        for (index, object) in objects.iter_mut().enumerate() {
            if wanted.next_if_eq(&index).is_some() {
                reads.push((GAddr(addrs[index].0 + OBJECT_PREFIX_BYTES), object));
            }
        }
        self.read_batch(&mut reads)?;
        Ok(objects)
    }

    /// Writes an object at `addr`, an address that is a multiple of 8: 8 bytes of length, then
    /// `from`. It has to fit into the allocation there; that is not checked, as with any write.
    /// Readers see any mixture of the old object and the new one until this returns.
    ///
    /// # Errors
    /// `misaligned`; otherwise those of [`Handle::write`].
    pub fn write_object(&mut self, addr: GAddr, from: &[u8]) -> Result<()> {
        self.check_object(addr, from.len() as u64)?;
        let mut all = Vec::with_capacity(from.len() + OBJECT_PREFIX_BYTES as usize);
        all.extend_from_slice(&(from.len() as u64).to_le_bytes());
        all.extend_from_slice(from);
        self.write(addr, &all)
    }

    /// Reads `to.len()` bytes at `addr`, within one page, by a call to the home's daemon, whether
    /// or not the place is known. [`Handle::read`] is faster for places that are: this is for
    /// comparisons, and for callers that know better.
    ///
    /// # Errors
    /// `out-of-bounds` past the page's end, or for more than 8 KiB inline; otherwise those of
    /// [`Handle::read`].
    pub fn fetch(&mut self, addr: GAddr, to: &mut [u8], mode: FetchMode) -> Result<()> {
        let bytes = to.len() as u64;
        self.client.check(addr, bytes)?;
        let limit_bytes = match mode {
            FetchMode::Inline => self.client.bytes_in_page(addr).min(INLINE_BYTES_MAX.into()),
            _ => self.client.bytes_in_page(addr),
        };
        if bytes > limit_bytes {
            return Err(WireError::OutOfBounds { addr, bytes, limit_bytes }.into());
        }
        self.before_others(GAddr::NULL, 0)?;
        self.give_locks_back();
        self.links.tell_loss()?;
        let mut call = Rpc::new(&self.client, addr, mode.of(bytes));
        let brought =
            self.wait_with(&mut [LocalBuffer::Into(to)], async |cx, _| call.run(cx).await)?;
        let fetched = brought.fetched()?;
        self.count(&fetched);
        match fetched.carried {
            Carried::Inline(data) => to.copy_from_slice(&data.0),
            Carried::Written => {}
            Carried::Not => {
                let pieces = [Piece { addr, bytes }];
                self.transfer(Access::Read, &pieces, &mut [LocalBuffer::Into(to)])?;
            }
        }
        Ok(())
    }

    /// Writes `from` at `addr`, within one page and at most 8 KiB, by a call to the home's daemon.
    /// As with [`Handle::write`], a lost connection may write it twice.
    ///
    /// # Errors
    /// `out-of-bounds` for what a call does not carry; otherwise those of [`Handle::write`].
    pub fn store(&mut self, addr: GAddr, from: &[u8]) -> Result<()> {
        let bytes = from.len() as u64;
        self.client.check(addr, bytes)?;
        if self.links.is_read_only() {
            return Err(self.links.read_only_error().into());
        }
        let limit_bytes = self.client.bytes_in_page(addr).min(INLINE_BYTES_MAX.into());
        if bytes > limit_bytes {
            return Err(WireError::OutOfBounds { addr, bytes, limit_bytes }.into());
        }
        self.before_others(addr, bytes)?;
        self.links.tell_loss()?;
        self.rrpc.stats.calls += 1;
        let mut call = Rpc::new(&self.client, addr, What::Store(Bytes(from.to_vec())));
        self.run(&mut call)?;
        self.report_if_due();
        self.persist_if_due(addr, bytes)
    }

    /// What the calls of this handle brought so far.
    pub fn rrpc_stats(&self) -> RrpcStats {
        self.rrpc.stats
    }

    /// Up to which length calls to the rack of `addr` carry the data, bytes. `None` if that rack
    /// is not reached over a fabric, or is not known yet.
    pub fn rrpc_threshold_of(&self, addr: GAddr) -> Option<u32> {
        let page = self.client.geometry().page(addr);
        let link = self.client.translation(page).map(|entry| entry.link);
        let link = link.or_else(|| self.client.guess(addr))?;
        matches!(self.client.reach(link), Reach::OneSided(_)).then(|| self.threshold(link))
    }

    /// The first touch of a short piece in a rack that is probably known: one call instead of a
    /// question to the own daemon, one to the master and a read; whether that is what it was.
    pub(crate) fn first_read(&mut self, addr: GAddr, to: &mut [u8]) -> WireResult<bool> {
        let bytes = to.len() as u64;
        let Some(link) = self.short_guess(addr, bytes) else { return Ok(false) };
        let what = What::Fetch(FetchExtent::Bytes(bytes), self.threshold(link));
        self.links.tell_loss()?;
        self.give_locks_back();
        let call = Rpc::new(&self.client, addr, what);
        let fetched = self.first_call(addr, bytes, call)?.fetched()?;
        self.count(&fetched);
        let Carried::Inline(data) = fetched.carried else { return Ok(false) };
        to.copy_from_slice(&data.0);
        self.calibrate(addr, link);
        Ok(true)
    }

    /// As [`Handle::first_read`], of a write.
    pub(crate) fn first_write(&mut self, addr: GAddr, from: &[u8]) -> WireResult<bool> {
        let Some(_) = self.short_guess(addr, from.len() as u64) else { return Ok(false) };
        self.links.tell_loss()?;
        self.give_locks_back();
        self.rrpc.stats.calls += 1;
        let call = Rpc::new(&self.client, addr, What::Store(Bytes(from.to_vec())));
        self.first_call(addr, from.len() as u64, call)?;
        Ok(true)
    }

    fn first_call(&mut self, addr: GAddr, bytes: u64, mut call: Rpc) -> WireResult<Brought> {
        let started_ns = clock::now_ns();
        let said = drive(self.parts().1, Buffers::None, async |cx| call.run(cx).await);
        self.note(addr, CallSize { accesses: 1, bytes }, started_ns, said.is_err());
        self.report_if_due();
        said
    }

    /// The link of a short access within one page that a call would do.
    fn short_guess(&self, addr: GAddr, bytes: u64) -> Option<LinkId> {
        let link = self.called(addr)?;
        let most = u64::from(self.threshold(link)).min(self.client.bytes_in_page(addr));
        (bytes <= most).then_some(link)
    }

    fn check_object(&self, addr: GAddr, bytes: u64) -> Result<()> {
        if !addr.0.is_multiple_of(OBJECT_PREFIX_BYTES) {
            return Err(WireError::Misaligned { addr, align_bytes: OBJECT_PREFIX_BYTES }.into());
        }
        Ok(self.client.check(addr, bytes.saturating_add(OBJECT_PREFIX_BYTES))?)
    }

    /// Asks an object's home about it.
    fn call_object(&mut self, addr: GAddr, inline: u32, guess: bool) -> Result<Fetched> {
        let what = What::Fetch(FetchExtent::Object, inline);
        let mut call = match guess {
            true => Rpc::new(&self.client, addr, what),
            false => Rpc::without_guess(addr, what),
        };
        let fetched = self.run(&mut call)?.fetched()?;
        self.count(&fetched);
        Ok(fetched)
    }

    /// The bytes of an object, with those that the answer did not carry.
    fn complete(&mut self, addr: GAddr, fetched: Fetched) -> Result<Vec<u8>> {
        match fetched.carried {
            Carried::Inline(data) => Ok(data.0),
            Carried::Written | Carried::Not => {
                let mut data = vec![0; fetched.bytes as usize];
                self.read(GAddr(addr.0 + OBJECT_PREFIX_BYTES), &mut data)?;
                Ok(data)
            }
        }
    }

    fn count(&mut self, fetched: &Fetched) {
        let stats = &mut self.rrpc.stats;
        stats.calls += 1;
        match fetched.carried {
            Carried::Inline(_) => stats.inline += 1,
            Carried::Written => stats.written += 1,
            Carried::Not => {}
        }
        self.report_if_due();
    }

    /// The rack that is called for an address with an unknown place.
    fn called(&self, addr: GAddr) -> Option<LinkId> {
        let link = self.client.guess(addr)?;
        let rack = self.rrpc.racks.get(link.0 as usize);
        (!rack.is_some_and(|rack| rack.looks_up)).then_some(link)
    }

    fn threshold(&self, link: LinkId) -> u32 {
        let measured = self.rrpc.racks.get(link.0 as usize).and_then(|rack| rack.threshold);
        match self.links.options().rrpc_threshold {
            RrpcThreshold::Paper => THRESHOLD_PAPER_BYTES,
            RrpcThreshold::Bytes(bytes) => bytes.min(INLINE_BYTES_MAX),
            RrpcThreshold::Calibrated => measured.unwrap_or(THRESHOLD_PAPER_BYTES),
        }
    }

    /// Measures a rack, once, on a page that was just called for. What fails is not measured: the
    /// access itself has succeeded.
    fn calibrate(&mut self, addr: GAddr, link: LinkId) {
        let index = link.0 as usize;
        if self.rrpc.racks.len() <= index {
            self.rrpc.racks.resize(index + 1, Measured::default());
        }
        let rack = &mut self.rrpc.racks[index];
        rack.calls = rack.calls.saturating_add(1);
        let is_wanted = self.links.options().rrpc_threshold == RrpcThreshold::Calibrated;
        if !is_wanted || rack.threshold.is_some() || rack.calls < CALLS_BEFORE_MEASURING {
            return;
        }
        let stats = self.rrpc.stats;
        let (probes, lookup_ns) = self.probe(addr).unwrap_or_default();
        self.rrpc.stats = stats;
        let rack = &mut self.rrpc.racks[index];
        rack.threshold = Some(rrpc::threshold(&probes));
        let call_ns = probes.first().map_or(0, |probe| probe.inline_ns);
        rack.looks_up = !rrpc::calls_first(call_ns, lookup_ns);
    }

    /// The least that each length cost, both ways by turns, and the least that it cost to look a
    /// page up and to read the first length there.
    fn probe(&mut self, addr: GAddr) -> Result<(Vec<LinkProbe>, u64)> {
        let page = self.client.geometry().page(addr);
        let start = self.client.geometry().join(page, 0);
        let fitting = PROBE_BYTES.iter().filter(|bytes| u64::from(**bytes) <= self.page_bytes());
        let mut probes: Vec<LinkProbe> = fitting
            .map(|bytes| LinkProbe { bytes: *bytes, inline_ns: u64::MAX, two_steps_ns: u64::MAX })
            .collect();
        let mut buffer = vec![0; PROBE_BYTES[PROBE_BYTES.len() - 1] as usize];
        let (began_ns, mut lookup_ns) = (clock::now_ns(), u64::MAX);
        for _ in 0..PROBE_ROUNDS {
            for probe in &mut probes {
                let to = &mut buffer[..probe.bytes as usize];
                let started_ns = clock::now_ns();
                self.fetch(start, to, FetchMode::Inline)?;
                let between_ns = clock::now_ns();
                self.fetch(start, to, FetchMode::OneSidedRead)?;
                let ended_ns = clock::now_ns();
                probe.inline_ns = probe.inline_ns.min(between_ns - started_ns);
                probe.two_steps_ns = probe.two_steps_ns.min(ended_ns - between_ns);
            }
            let started_ns = clock::now_ns();
            self.client.forget(page);
            let pieces = [Piece { addr: start, bytes: u64::from(PROBE_BYTES[0]) }];
            let to = &mut buffer[..PROBE_BYTES[0] as usize];
            self.transfer(Access::Read, &pieces, &mut [LocalBuffer::Into(to)])?;
            lookup_ns = lookup_ns.min(clock::now_ns() - started_ns);
            if clock::now_ns() - began_ns > PROBE_NS_MAX {
                break;
            }
        }
        Ok((probes, lookup_ns))
    }
}
