//! `bench table`: what an operation of the pool's hash table costs beside the accesses that it
//! cannot do without. In the own rack: two dependent loads of random lines among the table's own.
//! In another one over tcp: a bare exchange of 64 bytes. Keys are random among all of a table of
//! the size of the region (own rack), or among those that the client has seen (other rack); every
//! value that is read is verified.

use crate::interleave::compare;
use crate::micro::index::IndexStream;
use crate::micro::pin;
use crate::remote::RawTcp;
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, PoolSource, Progress, Size, Steps, Testbed, kind_of_path, slice_ns};
use crate::value;
use rackpool::{FabricChoice, Handle, Placement};
use rackpool_core::seam::Mem;
use rackpool_core::{GAddr, RackId};
use rackpool_mem::window::Window;
use rackpool_stats::histogram::Histogram;
use rackpool_table::Table;
use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::Instant;

/// What `bench table` measures on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub size: Size,
    pub source: PoolSource,
    /// How the other rack is reached.
    pub fabric: FabricChoice,
}

const VALUE_BYTES: usize = 64;
/// What a key takes: its blob, its part of the index, and what is in use twice meanwhile.
const KEY_FOOTPRINT_BYTES: u64 = 192;
/// Keys of the other rack that the client reads before it is measured, at most.
const SEEN_KEYS_MAX: u64 = 65_536;
/// Keys that are stored at once.
const LOAD_BATCH: u64 = 1024;
const BATCH: usize = 16;
/// Operations between two looks at the clock.
const BLOCK: u64 = 16;
const LINE_BYTES: u64 = 64;
/// Keys that are asked for their places, so that nearly every page is found.
const PLACES: u64 = 20_000;
const SPARE_BYTES: u64 = 64 << 20;
/// Names the index streams; any other would do.
const SEED: u64 = 17;

/// Measures.
///
/// # Errors
/// [`BenchError`]; the tables are gone then, unless the pool itself is.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Report, BenchError> {
    let mut steps = Steps::new(8, progress);
    let rack_bytes = options.size.region_bytes() + SPARE_BYTES;
    let testbed = Testbed::open(&options.source, 2, rack_bytes)?;
    let cores = pin::allowed_cores()?;
    let pair = pin::two_cores()?;
    let bench = TableBench {
        size: options.size,
        fabric: options.fabric,
        testbed,
        raw: RawTcp::new(pair),
        keys: keys_of(options.size),
    };
    pin::pin_to(pair.first)?;
    let measured = bench.measure(&mut steps);
    pin::pin_to_any(&cores)?;
    steps.end();
    measured
}

/// As many keys as the region has room for.
fn keys_of(size: Size) -> u64 {
    match size {
        Size::Smoke => 2_000,
        size => size.region_bytes() / KEY_FOOTPRINT_BYTES,
    }
}

struct TableBench {
    size: Size,
    fabric: FabricChoice,
    testbed: Testbed,
    raw: RawTcp,
    keys: u64,
}

/// An operation on one key.
type KeyOperation = fn(&mut MeasuredTable, u64) -> Result<(), BenchError>;

/// A table as one client uses it.
struct MeasuredTable {
    handle: Handle,
    table: Table,
    found: Vec<u8>,
    value: [u8; VALUE_BYTES],
    version: u64,
}

impl MeasuredTable {
    fn new(handle: Handle, table: Table) -> Self {
        Self { handle, table, found: Vec::new(), value: [0; VALUE_BYTES], version: 1 }
    }

    fn get(&mut self, key: u64) -> Result<(), BenchError> {
        if !self.table.get_into(&mut self.handle, &key.to_le_bytes(), &mut self.found)? {
            return Err(BenchError::Missing { key, operation: "get" });
        }
        value::verify(&self.found, key)?;
        Ok(())
    }

    fn get_many(&mut self, keys: &[u64]) -> Result<(), BenchError> {
        let names: Vec<_> = keys.iter().map(|key| key.to_le_bytes()).collect();
        for (key, found) in keys.iter().zip(self.table.get_many(&mut self.handle, &names)) {
            let missing = BenchError::Missing { key: *key, operation: "get" };
            value::verify(&found?.ok_or(missing)?, *key)?;
        }
        Ok(())
    }

    fn next_value(&mut self, key: u64) {
        self.version += 1;
        value::fill(&mut self.value, key, self.version);
    }

    fn update(&mut self, key: u64) -> Result<(), BenchError> {
        self.next_value(key);
        match self.table.update(&mut self.handle, &key.to_le_bytes(), &self.value)? {
            true => Ok(()),
            false => Err(BenchError::Missing { key, operation: "update" }),
        }
    }

    fn insert(&mut self, key: u64) -> Result<(), BenchError> {
        self.next_value(key);
        match self.table.insert(&mut self.handle, &key.to_le_bytes(), &self.value)? {
            true => Ok(()),
            false => Err(BenchError::Missing { key, operation: "insert" }),
        }
    }

    /// Stores keys from `0` to `keys`.
    fn load(&mut self, keys: u64) -> Result<(), BenchError> {
        for first in (0..keys).step_by(LOAD_BATCH as usize) {
            let mut pairs = Vec::with_capacity(LOAD_BATCH as usize);
            for key in first..keys.min(first + LOAD_BATCH) {
                self.next_value(key);
                pairs.push((key.to_le_bytes(), self.value));
            }
            for stored in self.table.put_many(&mut self.handle, &pairs) {
                stored?;
            }
        }
        Ok(())
    }

    fn remove(&mut self, keys: impl Iterator<Item = u64>) -> Result<(), BenchError> {
        let names: Vec<_> = keys.map(u64::to_le_bytes).collect();
        for removed in self.table.delete_many(&mut self.handle, &names) {
            removed?;
        }
        Ok(())
    }
}

impl TableBench {
    fn handle(&self, rack: u16) -> Result<Handle, BenchError> {
        Ok(self.testbed.pool(rack, self.fabric)?.handle()?)
    }

    fn options(&self, rack: u16) -> rackpool_table::Options {
        rackpool_table::Options {
            index_placement: Placement::Rack(RackId(rack)),
            seen_bytes_max: 16 * self.keys,
            ..rackpool_table::Options::default()
        }
    }

    /// A table with everything in `rack`, as a client there has it.
    fn loaded(&self, rack: u16) -> Result<MeasuredTable, BenchError> {
        let mut handle = self.handle(rack)?;
        let name = format!("bench-table-{}-{rack}", std::process::id());
        let table = Table::create(&mut handle, &name, self.options(rack))?;
        let mut client = MeasuredTable::new(handle, table);
        match client.load(self.keys) {
            Ok(()) => Ok(client),
            Err(error) => {
                client.table.destroy(&mut client.handle)?;
                Err(error)
            }
        }
    }

    fn measure(&self, steps: &mut Steps<'_>) -> Result<Report, BenchError> {
        steps.begin("loading the own rack");
        let mut own = self.loaded(0)?;
        let measured = self.own_rack(&mut own, steps);
        own.table.destroy(&mut own.handle)?;
        let mut rows = measured?;
        steps.begin("loading the other rack");
        let mut home = self.loaded(1)?;
        let measured = self.other_rack(&mut home, steps);
        home.table.destroy(&mut home.handle)?;
        let (kind, others) = measured?;
        rows.extend(others);
        let mut report = self.testbed.report(self.size, kind);
        report.results = rows;
        let facts = [
            ("keys", self.keys.into()),
            ("value_bytes", VALUE_BYTES.into()),
            ("region_bytes", self.size.region_bytes().into()),
            ("raw_tcp", self.raw.describe()),
        ];
        report.extra.extend(facts.map(|(name, fact)| (name.to_owned(), fact)));
        Ok(report)
    }

    fn own_rack(
        &self,
        client: &mut MeasuredTable,
        steps: &mut Steps<'_>,
    ) -> Result<Vec<Row>, BenchError> {
        // Looks at every bucket once.
        client.table.len(&mut client.handle)?;
        let mut lines = RawLines::of(client, self.keys)?;
        let mut rows = Vec::new();
        for (name, operation) in [
            ("get_own_rack", MeasuredTable::get as KeyOperation),
            ("update_own_rack", MeasuredTable::update),
        ] {
            steps.begin(name);
            let mut stream = IndexStream::new(self.keys, SEED);
            let mut next = |client: &mut MeasuredTable| operation(client, stream.next_index());
            let comparison = compare(
                &self.size.rules(),
                SEED,
                &mut self.testbed.probe(),
                || slice_ns(self.size.slice(), BLOCK, || (0..BLOCK).try_for_each(|_| next(client))),
                || lines.two_ns(self.size),
            )?;
            let row = Row::compared(name, "ns", Better::Lower, &comparison, Reference::Raw);
            rows.push(self.sampled(row, client, next)?);
        }
        Ok(rows)
    }

    fn other_rack(
        &self,
        home: &mut MeasuredTable,
        steps: &mut Steps<'_>,
    ) -> Result<(Kind, Vec<Row>), BenchError> {
        let mut handle = self.handle(0)?;
        let (addr, _) = home
            .table
            .locate(&mut home.handle, &0u64.to_le_bytes())?
            .ok_or(BenchError::Missing { key: 0, operation: "locate" })?;
        let kind = kind_of_path(&mut handle, addr)?;
        let table = Table::open_with(&mut handle, home.table.name(), self.options(1))?;
        let mut client = MeasuredTable::new(handle, table);
        // Keys from all over the table.
        let count = self.keys.min(SEEN_KEYS_MAX);
        let mut all = IndexStream::new(self.keys, SEED);
        let seen: Vec<u64> = (0..count).map(|_| all.next_index()).collect();
        for _ in 0..2 {
            seen.chunks(64).try_for_each(|keys| client.get_many(keys))?;
        }
        let mut stream = IndexStream::new(count, SEED);
        let mut next_key = || seen[stream.next_index() as usize];
        let mut rows = Vec::new();
        let name = "get_remote_tcp";
        steps.begin(name);
        rows.push(self.beside_raw(name, &mut client, |client| client.get(next_key()))?);
        let name = "get_many_16_remote";
        steps.begin(name);
        rows.push(self.many(name, &mut client, &mut next_key)?);
        let name = "update_remote_tcp";
        steps.begin(name);
        rows.push(self.beside_raw(name, &mut client, |client| client.update(next_key()))?);
        let name = "insert_remote_tcp";
        steps.begin(name);
        let mut new = self.keys;
        let row = self.beside_raw(name, &mut client, |client| {
            new += 1;
            client.insert(new)
        })?;
        rows.push(row.with("inserted", new - self.keys));
        client.remove(self.keys + 1..=new)?;
        client.table.flush(&mut client.handle);
        Ok((kind, rows))
    }

    /// One operation after the other, beside a bare exchange.
    fn beside_raw(
        &self,
        name: &str,
        client: &mut MeasuredTable,
        mut next: impl FnMut(&mut MeasuredTable) -> Result<(), BenchError>,
    ) -> Result<Row, BenchError> {
        let slice = self.size.slice();
        let comparison = compare(
            &self.size.rules(),
            SEED,
            &mut self.testbed.probe(),
            || slice_ns(slice, BLOCK, || (0..BLOCK).try_for_each(|_| next(client))),
            || self.raw.ping_ns(slice),
        )?;
        let row = Row::compared(name, "ns", Better::Lower, &comparison, Reference::Raw);
        self.sampled(row, client, next)
    }

    /// Keys a second in batches, beside those one by one.
    fn many(
        &self,
        name: &str,
        client: &mut MeasuredTable,
        next_key: &mut impl FnMut() -> u64,
    ) -> Result<Row, BenchError> {
        let slice = self.size.slice();
        let shared = std::cell::RefCell::new((client, next_key));
        let rate = |ns: f64| 1e9 / ns;
        let comparison = compare(
            &self.size.rules(),
            SEED,
            &mut self.testbed.probe(),
            || -> Result<f64, BenchError> {
                let (client, next_key) = &mut *shared.borrow_mut();
                let ns = slice_ns(slice, BATCH as u64, || {
                    let keys: [u64; BATCH] = std::array::from_fn(|_| next_key());
                    client.get_many(&keys)
                })?;
                Ok(rate(ns))
            },
            || {
                let (client, next_key) = &mut *shared.borrow_mut();
                let ns =
                    slice_ns(slice, BLOCK, || (0..BLOCK).try_for_each(|_| client.get(next_key())))?;
                Ok(rate(ns))
            },
        )?;
        let row = Row::compared(name, "ops/s", Better::Higher, &comparison, Reference::Peer);
        Ok(row.with("batch", BATCH).with("peer_is", "single gets"))
    }

    /// Percentiles, and the trips that were counted: calls to the system that sent something.
    fn sampled(
        &self,
        row: Row,
        client: &mut MeasuredTable,
        mut next: impl FnMut(&mut MeasuredTable) -> Result<(), BenchError>,
    ) -> Result<Row, BenchError> {
        let mut histogram = Histogram::new();
        let before = client.handle.handle_stats();
        let samples = self.size.samples();
        for _ in 0..samples {
            let start = Instant::now();
            next(client)?;
            histogram.record(start.elapsed().as_nanos() as u64);
        }
        let after = client.handle.handle_stats();
        let each = |count: u64| count as f64 / samples as f64;
        Ok(row
            .percentiles(histogram.summary())
            .with("trips", each(after.fabric_send_calls - before.fabric_send_calls))
            .with("ring_requests", each(after.ring_requests - before.ring_requests)))
    }
}

/// Lines of the pages that a table's blobs are in.
struct RawLines {
    window: Window,
    /// Where the pages begin in the window, bytes.
    pages: Vec<u64>,
    lines_per_page: u64,
    stream: IndexStream,
}

impl RawLines {
    fn of(client: &mut MeasuredTable, keys: u64) -> Result<Self, BenchError> {
        let page_bytes = client.handle.page_bytes();
        let mut stream = IndexStream::new(keys, SEED + 1);
        let mut found = BTreeSet::new();
        for _ in 0..PLACES.min(keys) {
            let key = stream.next_index().to_le_bytes();
            let place = client.table.locate(&mut client.handle, &key)?;
            found.extend(place.map(|(addr, _)| addr.0 / page_bytes * page_bytes));
        }
        let mut mapped = None;
        let mut pages = Vec::new();
        for page in found {
            let addr = GAddr(page);
            let reason = "the own rack's memory is not mapped";
            let unsuitable = BenchError::Unsuitable { addr, reason };
            let (window, offset) = client.handle.raw_window_at(addr)?.ok_or(unsuitable)?;
            mapped = Some(window);
            pages.push(offset);
        }
        let missing = BenchError::Missing { key: 0, operation: "locate" };
        let lines_per_page = page_bytes / LINE_BYTES;
        let stream = IndexStream::new(pages.len() as u64 * lines_per_page, SEED + 2);
        Ok(Self { window: mapped.ok_or(missing)?, pages, lines_per_page, stream })
    }

    /// Nanoseconds of two loads of random lines, of which the second waits for the first.
    fn two_ns(&mut self, size: Size) -> Result<f64, BenchError> {
        let Self { window, pages, lines_per_page, stream } = self;
        // The compiler does not know that it is 0: so each place depends on what was loaded before.
        let zero = black_box(0u64);
        let mut last = 0;
        slice_ns(size.slice(), BLOCK, || {
            for _ in 0..2 * BLOCK {
                let line = stream.next_index();
                let page = pages[(line / *lines_per_page) as usize];
                let at = page + line % *lines_per_page * LINE_BYTES;
                last = window.load(at + (last & zero));
            }
            black_box(last);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_contract_is_measured_in_a_smoke_run() {
        let source = PoolSource::default();
        let options = Options { size: Size::Smoke, source, fabric: FabricChoice::Tcp };
        let report = run(&options, &mut |_| ()).unwrap();
        let names: Vec<_> = report.results.iter().map(|row| row.name.as_str()).collect();
        let wanted = [
            "get_own_rack",
            "update_own_rack",
            "get_remote_tcp",
            "get_many_16_remote",
            "update_remote_tcp",
            "insert_remote_tcp",
        ];
        assert_eq!(names, wanted);
        assert!(report.results.iter().all(|row| row.ours > 0.0 && row.ratio.is_some()));
        let trips = |index: usize| report.results[index].extra["trips"].as_f64().unwrap();
        assert!(trips(0) == 0.0 && (0.9..1.2).contains(&trips(2)), "{} {}", trips(0), trips(2));
    }
}
