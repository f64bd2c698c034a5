//! The pool's hash table in simulated runs: [`Table`] as the simulator's clients use
//! it, over the simulated pool. In: a seed, which decides how the table is made. Out: every
//! operation with its answer, which the simulator checks. Callers: `rackpool sim`.
//!
//! The tables are made to be worn out: few buckets to begin with, bucket words that are retired
//! after a few changes, and keys of which some are counted, so that buckets split.

use rackpool::CasOutcome;
use rackpool_core::client::{DaemonQuery, MasterQuery};
use rackpool_core::wire::{AuditReply, AuditRequest};
use rackpool_sim::check::keys::MapOp;
use rackpool_sim::rng::{Purpose, Rng};
use rackpool_sim::run::{Config, SeedOutcome};
use rackpool_sim::world::{self, TableError, TableMem, TableReport, Tables};
use rackpool_table::audit::{self, Audited};
use rackpool_table::constants::{INLINE_VALUE_BYTES_MAX, LEFT_BY_DEATH_MAX, SAMPLE_SHIFT};
use rackpool_table::words::{GAddr, Placement, PoolResult, RackId, WordSwap, Words};
use rackpool_table::{Error, KeyChange, Options, Table};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const NAME: &str = "table";
/// The generator of what a seed decides here, apart from the simulator's own.
const STREAM: u64 = 1 << 41;
/// One key in so many is counted in the table's header; more of them than in nature, so that a
/// table with few keys grows.
const SAMPLED_ONE_IN: u64 = 4;
/// One value in so many is long.
const LONG_ONE_IN: u64 = 24;
/// Words of a short value at most.
const SHORT_WORDS_MAX: u64 = 24;

/// Runs one seed of the simulated cluster, with a table in some seeds.
pub fn run_seed(config: &Config, seed: u64) -> SeedOutcome {
    world::run_seed_with(config, seed, &KvTables)
}

type Answer<T> = Result<T, TableError>;

struct KvTables;

struct Shape {
    keys: u64,
    options: Options,
}

impl Shape {
    fn new(seed: u64) -> Shape {
        let mut rng = Rng::new(seed, Purpose::Shape, STREAM);
        let index_placement = match rng.below(3) {
            0 => Placement::Rack(RackId(0)),
            _ => Placement::Spread,
        };
        let entry_placement = match rng.below(3) {
            0 => Placement::Spread,
            _ => Placement::Auto,
        };
        let options = Options {
            index_placement,
            entry_placement,
            level_first: rng.below(3) as u8,
            versions_per_word: rng.between(2, 12) as u32,
            seed: Some(seed),
            // In some runs the buckets share what is remembered, or nothing is.
            seen_bytes_max: [0, 16, 1 << 10][rng.below(3) as usize],
        };
        Shape { keys: rng.between(8, 16), options }
    }
}

impl Tables for KvTables {
    fn create(&self, mem: &mut TableMem<'_>, seed: u64) -> Answer<()> {
        let options = Shape::new(seed).options;
        match Table::open_or_create(&mut SimWords(mem), NAME, options) {
            Ok(_) => Ok(()),
            Err(Error::OutcomeUnknown { .. }) => Err(TableError::Unknown),
            Err(error) => Err(wrong(error)),
        }
    }

    fn open(&self, mem: &mut TableMem<'_>, seed: u64) -> Answer<Box<dyn world::TableClient>> {
        let shape = Shape::new(seed);
        let table = Table::open_with(&mut SimWords(mem), NAME, shape.options).map_err(wrong)?;
        let level_first = shape.options.level_first;
        let keys = (0..shape.keys).map(|key| key_of(seed, key)).collect();
        Ok(Box::new(KvTable { table, keys, level_first }))
    }

    fn keys(&self, seed: u64) -> u64 {
        Shape::new(seed).keys
    }

    fn sweep(&self, mem: &mut TableMem<'_>, due_in: Option<RackId>) -> Answer<bool> {
        match due_in {
            Some(rack) => audit::sweep(&mut SimWords(mem), rack).map_err(wrong),
            None => looked(mem, true),
        }
    }

    fn audit(&self, mem: &mut TableMem<'_>) -> Answer<bool> {
        looked(mem, false)
    }

    fn left_by_death_max(&self) -> u64 {
        LEFT_BY_DEATH_MAX
    }
}

/// Whether all could be looked at.
fn looked(mem: &mut TableMem<'_>, repair: bool) -> Answer<bool> {
    let found = audit::audit(&mut SimWords(mem), repair).map_err(wrong)?;
    // Of a rack that lost its memory nothing can be said.
    if !found.faults.is_empty() || !found.holders.is_empty() {
        return Ok(false);
    }
    match found.is_clean() {
        true => Ok(true),
        false => Err(TableError::Wrong(format!("the audit found {found:?}"))),
    }
}

/// A table as one client uses it.
struct KvTable {
    table: Table,
    keys: Vec<Vec<u8>>,
    level_first: u8,
}

impl world::TableClient for KvTable {
    fn apply(&mut self, mem: &mut TableMem<'_>, key: u64, op: MapOp) -> Answer<MapOp> {
        let (table, mem) = (&mut self.table, &mut SimWords(mem));
        let key = &self.keys[key as usize];
        let answer = match op {
            MapOp::Get(_) => {
                let found = table.get(mem, key).map_err(wrong)?;
                let number = found.map(|value| number_of(&value)).transpose();
                return number.map(MapOp::Get).map_err(TableError::Wrong);
            }
            MapOp::Insert(number, _) => table
                .insert(mem, key, &value_of(number))
                .map(|done| MapOp::Insert(number, Some(done))),
            MapOp::Update(number, _) => table
                .update(mem, key, &value_of(number))
                .map(|done| MapOp::Update(number, Some(done))),
            MapOp::Put(number, _) => {
                table.put(mem, key, &value_of(number)).map(|done| MapOp::Put(number, Some(done)))
            }
            MapOp::Delete(_) => table.delete(mem, key).map(|done| MapOp::Delete(Some(done))),
            MapOp::Modify(number, _) => {
                let mut seen = Ok(None);
                let done = table.modify(mem, key, |there| {
                    seen = there.map(number_of).transpose();
                    KeyChange::Put(value_of(number))
                });
                let seen = seen.map_err(TableError::Wrong)?;
                done.map(|_| MapOp::Modify(number, Some(seen)))
            }
            MapOp::PutIf(was, number, _) => {
                let version = was.map(|was| table.version_of(&value_of(was)));
                table
                    .put_if(mem, key, version, &value_of(number))
                    .map(|done| MapOp::PutIf(was, number, Some(done)))
            }
            MapOp::DeleteIf(was, _) => {
                let version = table.version_of(&value_of(was));
                table.delete_if(mem, key, version).map(|done| MapOp::DeleteIf(was, Some(done)))
            }
        };
        answer.map_err(wrong)
    }

    fn apply_many(&mut self, mem: &mut TableMem<'_>, ops: &[(u64, MapOp)]) -> Vec<Answer<MapOp>> {
        let (table, mem) = (&mut self.table, &mut SimWords(mem));
        let keys: Vec<_> = ops.iter().map(|(key, _)| &self.keys[*key as usize]).collect();
        match ops.first() {
            Some((_, MapOp::Put(..))) => {
                let number = |op: &MapOp| if let MapOp::Put(number, _) = op { *number } else { 0 };
                let numbers: Vec<_> = ops.iter().map(|(_, op)| number(op)).collect();
                let pairs: Vec<_> =
                    keys.into_iter().zip(numbers.iter().map(|number| value_of(*number))).collect();
                let done = table.put_many(mem, &pairs).into_iter().zip(numbers);
                done.map(|(done, number)| {
                    done.map(|done| MapOp::Put(number, Some(done))).map_err(wrong)
                })
                .collect()
            }
            Some((_, MapOp::Delete(_))) => {
                let done = table.delete_many(mem, &keys).into_iter();
                done.map(|done| done.map(|done| MapOp::Delete(Some(done))).map_err(wrong)).collect()
            }
            _ => {
                let found = table.get_many(mem, &keys).into_iter();
                let number = |found: Option<Vec<u8>>| {
                    found.map(|value| number_of(&value)).transpose().map_err(TableError::Wrong)
                };
                found.map(|found| found.map_err(wrong).and_then(number).map(MapOp::Get)).collect()
            }
        }
    }

    fn leaked_bytes(&self) -> u64 {
        self.table.leaked_bytes()
    }

    fn close(&mut self, mem: &mut TableMem<'_>) {
        self.table.flush(&mut SimWords(mem));
    }

    fn check(&mut self, mem: &mut TableMem<'_>) -> Answer<TableReport> {
        let report = self.table.check(&mut SimWords(mem)).map_err(wrong)?;
        Ok(TableReport {
            keys: report.keys,
            splits: report.buckets - (1 << self.level_first),
            words_retired: report.words_retired,
            splits_left: report.buckets_frozen,
        })
    }

    fn destroy(self: Box<Self>, mem: &mut TableMem<'_>) -> Answer<()> {
        self.table.destroy(&mut SimWords(mem)).map_err(wrong)
    }
}

/// What of a table's error is the pool's and may be, and what must never be. That so few clients
/// hinder each other for thousands of attempts is among the latter.
fn wrong(error: Error) -> TableError {
    match error {
        Error::Pool(error) => TableError::Pool(error.into_wire()),
        Error::OutcomeUnknown { .. } => TableError::Unknown,
        other => TableError::Wrong(other.to_string()),
    }
}

/// A key; some are of those that the table counts.
fn key_of(seed: u64, key: u64) -> Vec<u8> {
    let is_sampled = |bytes: &[u8]| {
        let hash = xxh3_64_with_seed(bytes, Table::hash_seed_of(seed));
        hash >> (u64::BITS - SAMPLE_SHIFT) == 0
    };
    let want_sampled = key.is_multiple_of(SAMPLED_ONE_IN);
    (0u64..)
        .map(|n| format!("key {key}.{n}").into_bytes())
        .find(|bytes| is_sampled(bytes) == want_sampled)
        .expect("one key in 64 is counted")
}

/// A value that shows which operation wrote it, and whether it is torn: its number again and again.
fn value_of(number: u64) -> Vec<u8> {
    let mut rng = Rng::new(number, Purpose::Workload, STREAM);
    let long_words = INLINE_VALUE_BYTES_MAX as u64 / 8;
    let words = match rng.below(LONG_ONE_IN) {
        0 => long_words + rng.between(1, 100),
        _ => rng.between(1, SHORT_WORDS_MAX),
    };
    number.to_le_bytes().repeat(words as usize)
}

fn number_of(value: &[u8]) -> Result<u64, String> {
    let first = value.first_chunk().ok_or_else(|| format!("a value of {} bytes", value.len()))?;
    let number = u64::from_le_bytes(*first);
    if value == value_of(number) {
        return Ok(number);
    }
    Err(format!("a value of {} bytes is torn; it begins with {number:#x}", value.len()))
}

/// The simulated pool as the table sees it.
struct SimWords<'m, 'h>(&'m mut TableMem<'h>);

impl Words for SimWords<'_, '_> {
    fn alloc(&mut self, bytes: u64, placement: Placement) -> PoolResult<GAddr> {
        Ok(self.0.alloc(bytes, placement)?)
    }

    fn free(&mut self, addr: GAddr, bytes: u64) -> PoolResult<()> {
        Ok(self.0.free(addr, bytes)?)
    }

    fn read(&mut self, addr: GAddr, buf: &mut [u8]) -> PoolResult<()> {
        Ok(self.0.read(addr, buf)?)
    }

    fn write(&mut self, addr: GAddr, bytes: &[u8]) -> PoolResult<()> {
        Ok(self.0.write(addr, bytes)?)
    }

    fn read_u64(&mut self, addr: GAddr) -> PoolResult<u64> {
        Ok(self.0.read_u64(addr)?)
    }

    fn write_u64(&mut self, addr: GAddr, value: u64) -> PoolResult<()> {
        Ok(self.0.write_u64(addr, value)?)
    }

    fn cas(&mut self, addr: GAddr, expected: u64, new: u64) -> PoolResult<CasOutcome> {
        Ok(match self.0.cas(addr, expected, new)? {
            Ok(_) => CasOutcome::Swapped,
            Err(found) => CasOutcome::Found(found),
        })
    }

    fn fetch_add(&mut self, addr: GAddr, n: u64) -> PoolResult<u64> {
        Ok(self.0.fetch_add(addr, n)?)
    }

    /// They have no order: here the last goes first.
    fn read_batch(&mut self, ops: &mut [(GAddr, &mut [u8])]) -> PoolResult<()> {
        ops.iter_mut().rev().try_for_each(|(addr, buf)| self.read(*addr, buf))
    }

    fn cas_batch(&mut self, swaps: &[WordSwap]) -> Vec<PoolResult<CasOutcome>> {
        let olds = self.0.cas_batch(swaps).into_iter().zip(swaps);
        olds.map(|(old, swap)| match old? {
            old if old == swap.expected => Ok(CasOutcome::Swapped),
            old => Ok(CasOutcome::Found(old)),
        })
        .collect()
    }

    fn root(&mut self, name: &str) -> PoolResult<Option<GAddr>> {
        Ok(self.0.root(name)?)
    }

    fn set_root(&mut self, name: &str, expected: GAddr, addr: GAddr) -> PoolResult<GAddr> {
        Ok(self.0.set_root(name, expected, addr)?)
    }

    fn begin_change(&mut self) {
        self.0.begin_change();
    }

    fn end_change(&mut self) {
        self.0.end_change();
    }
}

impl Audited for SimWords<'_, '_> {
    fn page_bytes(&self) -> u64 {
        self.0.page_bytes()
    }

    fn racks(&mut self) -> PoolResult<Vec<(RackId, bool)>> {
        let racks = self.0.ask_master(&MasterQuery::racks())?;
        Ok(racks.into_iter().map(|info| (info.rack, info.alive)).collect())
    }

    fn roots_after(&mut self, after: &str) -> PoolResult<Vec<(String, GAddr)>> {
        Ok(self.0.ask_master(&MasterQuery::roots_after(after))?)
    }

    fn audit(&mut self, rack: RackId, request: AuditRequest) -> PoolResult<AuditReply> {
        Ok(self.0.ask_rack(rack, DaemonQuery::audit(request))?)
    }

    fn is_allocated(&mut self, addr: GAddr, bytes: u64) -> PoolResult<bool> {
        Ok(self.0.is_allocated(addr, bytes)?)
    }

    fn reclaim(&mut self, addr: GAddr, watch: u64) -> PoolResult<()> {
        Ok(self.0.reclaim(addr, watch)?)
    }

    fn pause(&mut self, time: Duration) {
        self.0.pause(time.as_millis() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_back_and_a_torn_one_is_not() {
        for number in 0..200u64 {
            let mut value = value_of(number << 32 | 7);
            assert_eq!(number_of(&value), Ok(number << 32 | 7));
            value.push(0);
            assert!(number_of(&value).is_err());
        }
        assert!(number_of(b"short").is_err());
        assert!((0..200).any(|number| value_of(number).len() > INLINE_VALUE_BYTES_MAX));
    }
}
