//! The table of a scenario: one that is what it says passes under all faults, one that loses
//! updates and one that loses memory are found out.

use rackpool_core::client::Placement;
use rackpool_core::{Error, GAddr};
use rackpool_sim::check::keys::MapOp;
use rackpool_sim::run::{Config, Group, Progress, Sweep, sweep};
use rackpool_sim::world::{TableClient, TableError, TableMem, TableReport, Tables, run_seed_with};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const KEYS: u64 = 8;
const BYTES: u64 = 8 * KEYS;
const NAME: &str = "words";

/// A word for each key, 0 if it is absent.
struct WordTables {
    /// Changes are one compare-and-swap; else a load and a store.
    swaps: bool,
    /// Each change allocates something and forgets it.
    forgets: bool,
}

static GOOD: WordTables = WordTables { swaps: true, forgets: false };
static RACY: WordTables = WordTables { swaps: false, forgets: false };
static LEAKY: WordTables = WordTables { swaps: true, forgets: true };

struct WordTable {
    kind: &'static WordTables,
    base: GAddr,
}

type Answer<T> = Result<T, TableError>;

fn failed(error: Error) -> TableError {
    match error {
        Error::OutcomeUnknown { .. } | Error::Timeout { .. } => TableError::Unknown,
        other => TableError::Pool(other),
    }
}

impl Tables for &'static WordTables {
    fn create(&self, mem: &mut TableMem<'_>, _: u64) -> Answer<()> {
        let addr = mem.alloc(BYTES, Placement::Auto).map_err(TableError::Pool)?;
        mem.set_root(NAME, GAddr::NULL, addr).map(drop).map_err(TableError::Pool)
    }

    fn open(&self, mem: &mut TableMem<'_>, _: u64) -> Answer<Box<dyn TableClient>> {
        let base = mem.root(NAME).map_err(failed)?;
        let base = base.ok_or_else(|| TableError::Wrong("there is no table".into()))?;
        Ok(Box::new(WordTable { kind: self, base }))
    }

    fn keys(&self, _: u64) -> u64 {
        KEYS
    }

    fn left_by_death_max(&self) -> u64 {
        0
    }
}

impl TableClient for WordTable {
    fn apply(&mut self, mem: &mut TableMem<'_>, key: u64, op: MapOp) -> Answer<MapOp> {
        let at = GAddr(self.base.0 + 8 * key);
        if self.kind.forgets && !matches!(op, MapOp::Get(_)) {
            let _ = mem.alloc(64, Placement::Auto);
        }
        loop {
            let found = mem.read_u64(at).map_err(TableError::Pool)?;
            let there = found != 0;
            let (new, answer) = match op {
                MapOp::Get(_) => return Ok(MapOp::Get(there.then_some(found))),
                MapOp::Insert(value, _) => {
                    (if there { found } else { value }, MapOp::Insert(value, Some(!there)))
                }
                MapOp::Update(value, _) => {
                    (if there { value } else { found }, MapOp::Update(value, Some(there)))
                }
                MapOp::Put(value, _) => (value, MapOp::Put(value, Some(!there))),
                MapOp::Delete(_) => (0, MapOp::Delete(Some(there))),
                MapOp::Modify(value, _) => {
                    (value, MapOp::Modify(value, Some(there.then_some(found))))
                }
                MapOp::PutIf(was, value, _) => {
                    let same = was.unwrap_or(0) == found;
                    (if same { value } else { found }, MapOp::PutIf(was, value, Some(same)))
                }
                MapOp::DeleteIf(was, _) => {
                    let same = there && was == found;
                    (if same { 0 } else { found }, MapOp::DeleteIf(was, Some(same)))
                }
            };
            if !self.kind.swaps {
                return mem.write_u64(at, new).map(|()| answer).map_err(failed);
            }
            if mem.cas(at, found, new).map_err(failed)?.is_ok() {
                return Ok(answer);
            }
        }
    }

    fn apply_many(&mut self, mem: &mut TableMem<'_>, ops: &[(u64, MapOp)]) -> Vec<Answer<MapOp>> {
        ops.iter().map(|(key, op)| self.apply(mem, *key, *op)).collect()
    }

    fn leaked_bytes(&self) -> u64 {
        0
    }

    fn close(&mut self, _: &mut TableMem<'_>) {}

    fn check(&mut self, _: &mut TableMem<'_>) -> Answer<TableReport> {
        Ok(TableReport::default())
    }

    fn destroy(self: Box<Self>, mem: &mut TableMem<'_>) -> Answer<()> {
        mem.free(self.base, BYTES).map_err(TableError::Pool)
    }
}

fn config() -> Config {
    Config { operations: 600, ..Config::default() }
}

fn swept(tables: &'static &'static WordTables, seeds: u64) -> Sweep {
    let run = |config: &Config, seed| run_seed_with(config, seed, tables);
    sweep(&config(), 1, seeds, 2, &run, &mut |_| ControlFlow::Continue(()))
}

/// Whether one of the first seeds says this of its keys; no seed is begun after that one.
fn is_found_out(tables: &'static &'static WordTables, seeds: u64, text: &str) -> bool {
    // Relaxed: a seed more than is needed does no harm.
    let is_found = AtomicBool::new(false);
    let run = |config: &Config, seed| {
        let outcome = run_seed_with(config, seed, tables);
        let failure = outcome.failure.as_ref();
        let says = failure.is_some_and(|one| one.checker == "keys" && one.text.contains(text));
        is_found.fetch_or(says, Relaxed);
        outcome
    };
    let mut go = |_: &Progress| match is_found.load(Relaxed) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let sum = sweep(&config(), 1, seeds, 2, &run, &mut go);
    println!("{} of {seeds} seeds were run: {:#?}", sum.seeds, sum.failures);
    is_found.into_inner()
}

#[test]
fn a_table_of_swapped_words_passes_under_all_faults() {
    static TABLES: &WordTables = &GOOD;
    let sum = swept(&TABLES, 40);
    assert!(sum.failures.is_empty(), "{:#?}", sum.failures);
    for name in ["table-get", "table-insert", "table-update", "table-put", "table-delete"] {
        assert!(sum.counts.get(Group::Operation, name) > 0, "{name} was never called");
    }
    // Not every seed has a table, and not every table lives to the end.
    let tables = sum.counts.get(Group::Checked, "tables");
    assert!((1..40).contains(&tables), "{tables} tables");
}

#[test]
fn a_table_that_loses_updates_is_found_out() {
    static TABLES: &WordTables = &RACY;
    assert!(is_found_out(&TABLES, 400, "no order of its operations explains"));
}

#[test]
fn a_table_that_loses_memory_is_found_out() {
    static TABLES: &WordTables = &LEAKY;
    assert!(is_found_out(&TABLES, 20, "allocations"));
}
