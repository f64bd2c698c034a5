//! What a trace is like.

use super::error::TraceError;
use super::{Reader, Record};
use std::collections::BTreeMap;

/// Pages of the footprint, in bytes.
const PAGE_BYTES: u64 = 4096;
/// Groups of 64 pages that are remembered: some 200 MiB of memory at most, for a footprint of
/// 1 TiB if it is dense.
const GROUPS_MAX: usize = 4 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    pub records: u64,
    pub reads: u64,
    pub writes: u64,
    /// Bytes that were loaded or stored.
    pub bytes: u64,
    /// Different pages of 4 KiB, of each process of each node.
    pub pages: u64,
    /// There were more pages than could be remembered: [`Stat::pages`] is a lower bound.
    pub pages_are_more: bool,
    /// The first record's time, in nanoseconds.
    pub begin_ns: u64,
    /// The last record's time, in nanoseconds.
    pub end_ns: u64,
    /// Different nodes, processes and threads: the last are counted for each process.
    pub nodes: u64,
    pub processes: u64,
    pub threads: u64,
}

impl Stat {
    pub fn footprint_bytes(&self) -> u64 {
        self.pages.saturating_mul(PAGE_BYTES)
    }

    /// From first to last record, in nanoseconds.
    pub fn span_ns(&self) -> u64 {
        self.end_ns - self.begin_ns
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThreadId {
    node: u16,
    pid: u32,
    tid: u32,
}

/// Counts until a stream ends. Memory grows with the footprint, up to a bound.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    stat: Stat,
    /// By process and number of the group, a bit for each page.
    groups: BTreeMap<(u64, u64), u64>,
    /// The group that was used last, with the bits that it has.
    last: Option<((u64, u64), u64)>,
    threads: BTreeMap<(u16, u32), BTreeMap<u32, ()>>,
    /// Of the last record.
    thread: Option<ThreadId>,
}

const THREADS_MAX: u64 = 1 << 16;

impl Counter {
    fn add(&mut self, record: &Record, ns: u64) {
        let stat = &mut self.stat;
        if stat.records == 0 {
            stat.begin_ns = ns;
        }
        stat.end_ns = ns;
        stat.records += 1;
        stat.writes += u64::from(record.write);
        stat.bytes += u64::from(record.size);
        let last = record.addr.saturating_add(u64::from(record.size.max(1)) - 1);
        let space = u64::from(record.node) << 32 | u64::from(record.pid);
        for page in record.addr / PAGE_BYTES..=last / PAGE_BYTES {
            self.page(space, page);
        }
        let thread = ThreadId { node: record.node, pid: record.pid, tid: record.tid };
        if self.thread != Some(thread) {
            self.thread = Some(thread);
            self.thread(thread);
        }
    }

    fn page(&mut self, space: u64, page: u64) {
        let (key, bit) = ((space, page / 64), 1 << (page % 64));
        if self.last.is_some_and(|(last, bits)| last == key && bits & bit != 0) {
            return;
        }
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&key) {
            self.stat.pages_are_more = true;
            return;
        }
        let bits = self.groups.entry(key).or_default();
        self.stat.pages += u64::from(*bits & bit == 0);
        *bits |= bit;
        self.last = Some((key, *bits));
    }

    fn thread(&mut self, thread: ThreadId) {
        let ThreadId { node, pid, tid } = thread;
        if self.stat.threads < THREADS_MAX {
            let threads = self.threads.entry((node, pid)).or_default();
            self.stat.threads += u64::from(threads.insert(tid, ()).is_none());
        }
    }

    fn end(mut self) -> Stat {
        self.stat.reads = self.stat.records - self.stat.writes;
        self.stat.processes = self.threads.len() as u64;
        let mut nodes: Vec<u16> = self.threads.keys().map(|(node, _)| *node).collect();
        nodes.dedup();
        self.stat.nodes = nodes.len() as u64;
        self.stat
    }
}

/// Reads a stream to its end and counts. `progress` is told of each million records.
///
/// # Errors
/// The stream's.
pub fn stat(reader: &mut dyn Reader, mut progress: impl FnMut(u64)) -> Result<Stat, TraceError> {
    let unit = reader.header().unit;
    let mut counter = Counter::default();
    while let Some(record) = reader.next()? {
        counter.add(&record, unit.to_ns(record.at));
        if counter.stat.records.is_multiple_of(1_000_000) {
            progress(counter.stat.records);
        }
    }
    Ok(counter.end())
}
