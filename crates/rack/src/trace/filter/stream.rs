//! A stream of loads and stores becomes the stream of what reaches memory.

use super::core::{Core, CoreEvent, Passed, Shared};
use super::order::ReorderBuffer;
use super::{Config, Counts, LINE_BYTES};
use crate::trace::{Header, Reader, Record, TraceError, TraceInjection, Unit};

/// A reader behind caches.
///
/// A core begins an access at its record's time, or when its last one is over if that is later. A
/// stream without times (a closed loop) stays without. Nodes have no caches of their own: filter
/// the stream of one node.
pub struct Filter<R> {
    inner: R,
    header: Header,
    timed: bool,
    hz: u64,
    cores: Vec<Core>,
    /// When each core's last access is over, in cycles.
    clocks: Vec<u64>,
    shared: Shared,
    reads: u64,
    writes: u64,
    events: Vec<CoreEvent>,
    order: ReorderBuffer,
    /// No record comes before this any more.
    sure: u64,
}

impl<R: Reader> Filter<R> {
    /// Puts caches before a reader.
    ///
    /// # Errors
    /// What is wrong with the caches.
    pub fn new(inner: R, config: &Config) -> Result<Filter<R>, String> {
        config.check()?;
        let mut header = inner.header().clone();
        let timed = !matches!(header.injection, Some(TraceInjection::Closed { .. }));
        if timed {
            header.unit = Unit::Cycles { hz: config.hz };
        }
        Ok(Filter {
            inner,
            header,
            timed,
            hz: config.hz,
            cores: vec![Core::new(config); config.cores as usize],
            clocks: vec![0; config.cores as usize],
            shared: Shared::new(config),
            reads: 0,
            writes: 0,
            events: Vec::new(),
            order: ReorderBuffer::default(),
            sure: 0,
        })
    }

    /// What went in and came out until now.
    pub fn counts(&self) -> Counts {
        let (memory_reads, memory_writes) = (self.reads, self.writes);
        let mut all = Counts { memory_reads, memory_writes, ..Counts::default() };
        self.cores.iter().for_each(|core| all.add_core(&core.counts));
        all
    }

    fn take(&mut self, record: &Record) {
        let at = self.inner.header().unit.to_cycles(record.at, self.hz);
        self.sure = at;
        let index = record.tid as usize % self.cores.len();
        let core = &mut self.cores[index];
        let events = &mut self.events;
        core.access(record.addr, record.size, record.write, |event| events.push(event));
        let mut clock = self.clocks[index].max(at);
        for place in 0..self.events.len() {
            let event = self.events[place];
            let Passed { cycles, read, written } = self.shared.pass(&event);
            clock = clock.saturating_add(event.gap);
            if let Some(after) = read {
                self.reads += 1;
                self.put(clock.saturating_add(after), record, event.addr, false);
            }
            clock = clock.saturating_add(cycles);
            if let Some(addr) = written {
                self.writes += 1;
                self.put(clock, record, addr, true);
            }
        }
        self.events.clear();
        self.clocks[index] = clock.saturating_add(std::mem::take(&mut self.cores[index].gap));
    }

    fn put(&mut self, at: u64, of: &Record, addr: u64, write: bool) {
        let at = if self.timed { at } else { 0 };
        self.order.put(Record { at, addr, size: LINE_BYTES as u16, write, ..*of });
    }
}

impl<R: Reader> Reader for Filter<R> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn next(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            if let Some(record) = self.order.take(self.sure) {
                return Ok(Some(record));
            }
            match self.inner.next()? {
                Some(record) => self.take(&record),
                None => return Ok(self.order.take(u64::MAX)),
            }
        }
    }

    fn other_lines(&self) -> u64 {
        self.inner.other_lines()
    }
}

#[cfg(test)]
mod tests {
    use super::super::CacheSize;
    use super::*;
    use crate::trace::{Options, read_bytes};

    fn filtered(lines: &str, config: &Config) -> (Vec<Record>, Counts) {
        let csv = format!("t_ns,tid,addr,rw,size\n{lines}");
        let reader = read_bytes("a.csv", csv.into_bytes(), &Options::default()).unwrap();
        let mut filter = Filter::new(reader, config).unwrap();
        let mut records = Vec::new();
        while let Some(record) = filter.next().unwrap() {
            records.push(record);
        }
        (records, filter.counts())
    }

    #[test]
    fn only_misses_and_lines_that_were_stored_to_reach_memory() {
        // One set of two lines in each level. Line 0 is stored to; while it is in the second level
        // it does not come from memory again, and when it has left the third, it is written.
        let size = CacheSize { bytes: 128, ways: 2 };
        let config = Config { l1: size, l2: size, l3: size, cores: 1, ..Config::default() };
        let lines = "0,0,0,W,8\n1,0,8,R,8\n2,0,64,R,8\n3,0,128,R,8\n4,0,0,R,4\n";
        let more = "5,0,192,R,8\n6,0,256,R,8\n7,0,320,R,8\n8,0,384,R,8\n";
        let (records, counts) = filtered(&format!("{lines}{more}"), &config);
        let seen: Vec<_> = records.iter().map(|record| (record.addr / 64, record.write)).collect();
        let mut expected: Vec<_> = (0..7).map(|line| (line, false)).collect();
        expected.push((0, true));
        assert_eq!(seen, expected);
        assert_eq!((counts.accesses, counts.l1_misses, counts.l2_misses), (9, 8, 7));
        assert_eq!((counts.memory_reads, counts.memory_writes), (7, 1));
    }

    #[test]
    fn a_miss_comes_when_its_core_has_looked_everywhere() {
        let (records, _) = filtered("10,0,0,R,8\n10,0,0,R,8\n10,0,4096,R,8\n", &Config::default());
        // 10 ns are 36 cycles. The TLB's miss takes longer than the third level's; a hit of the
        // first level takes what the TLB takes.
        let times: Vec<u64> = records.iter().map(|record| record.at).collect();
        assert_eq!(times, [36 + 60, 36 + 60 + 10 + 60]);
        let config = Config { memory_cycles: 200, ..Config::default() };
        let (records, _) = filtered("0,0,0,R,8\n0,0,64,R,8\n", &config);
        let times: Vec<u64> = records.iter().map(|record| record.at).collect();
        assert_eq!(times, [60, 60 + 200 + 42]);
    }

    #[test]
    fn an_access_across_lines_is_an_access_to_each() {
        let (records, counts) = filtered("0,0,60,R,8\n", &Config::default());
        let lines: Vec<u64> = records.iter().map(|record| record.addr).collect();
        assert_eq!((lines, counts.accesses), (vec![0, 64], 2));
    }

    #[test]
    fn cores_that_lag_do_not_unsort_the_stream() {
        let mut lines = String::new();
        for number in 0..20_000 {
            let addr = number * 4096;
            lines += &format!("{},{},{addr},R,8\n", number / 16, number % 8);
        }
        let (records, counts) = filtered(&lines, &Config::default());
        assert_eq!((records.len(), counts.memory_reads), (20_000, 20_000));
        assert!(records.is_sorted_by_key(|record| record.at));
    }
}
