//! Steps that are the table's, if the run has one. See [`super::super::table`].

use super::Worker;
use crate::check::keys::MapOp;
use crate::world::scene::table::{TableClient, TableError, TableMem, Tables};
use rackpool_core::{Error, RackId};
use std::collections::BTreeMap;

/// How many of a client's steps are the table's, in parts per million.
const SHARE_PPM: u32 = 130_000;
/// Sweeps of what is due in a rack, at the end.
const LAST_SWEEPS_MAX: u32 = 20;
/// Keys that get half of the operations.
const HOT_KEYS: u64 = 3;

/// A client's view of the run's table.
pub struct TableSeat {
    tables: &'static dyn Tables,
    table: Option<Box<dyn TableClient>>,
    keys: u64,
    /// What this client last saw under each key.
    seen: BTreeMap<u64, Option<u64>>,
}

impl TableSeat {
    pub fn new(tables: &'static dyn Tables, seed: u64) -> TableSeat {
        TableSeat { tables, table: None, keys: tables.keys(seed), seen: BTreeMap::new() }
    }
}

type TableAnswer = Result<MapOp, TableError>;

/// What is under a key after an operation, if its answer tells.
fn value_after(answer: MapOp) -> Option<Option<u64>> {
    match answer {
        MapOp::Get(value) => Some(value),
        MapOp::Put(value, _)
        | MapOp::Insert(value, Some(true))
        | MapOp::Update(value, Some(true))
        | MapOp::Modify(value, _)
        | MapOp::PutIf(_, value, Some(true)) => Some(Some(value)),
        MapOp::Delete(_) | MapOp::DeleteIf(_, Some(true)) => Some(None),
        _ => None,
    }
}

fn name_of(op: MapOp) -> &'static str {
    match op {
        MapOp::Get(_) => "table-get",
        MapOp::Insert(..) => "table-insert",
        MapOp::Update(..) => "table-update",
        MapOp::Put(..) => "table-put",
        MapOp::Delete(_) => "table-delete",
        MapOp::Modify(..) => "table-modify",
        MapOp::PutIf(..) => "table-put-if",
        MapOp::DeleteIf(..) => "table-delete-if",
    }
}

impl Worker {
    /// Whether the next step is the table's.
    pub(super) fn is_table_next(&mut self) -> bool {
        self.seat.is_some() && self.rng.chance_ppm(SHARE_PPM)
    }

    /// One operation on the table.
    pub(super) async fn table_step(&mut self) {
        let Some((mut table, keys)) = self.take_table().await else { return };
        let hot = self.rng.chance_ppm(500_000);
        let key = self.rng.below(if hot { HOT_KEYS.min(keys) } else { keys });
        self.next_value += 1;
        let value = self.next_value;
        let seen = self.seat.as_ref().and_then(|seat| seat.seen.get(&key).copied()).flatten();
        let op = match self.rng.below(100) {
            0..28 => MapOp::Get(None),
            28..42 => MapOp::Put(value, None),
            42..54 => MapOp::Insert(value, None),
            54..66 => MapOp::Update(value, None),
            66..74 => MapOp::Delete(None),
            74..81 => MapOp::Modify(value, None),
            81..89 => MapOp::PutIf(seen, value, None),
            89..92 => MapOp::DeleteIf(seen.unwrap_or_default(), None),
            _ => {
                self.table_batch(&mut *table, keys).await;
                return self.put_back(table);
            }
        };
        self.table_operation(&mut *table, key, op).await;
        self.put_back(table);
    }

    /// A batch of operations on some of the keys.
    async fn table_batch(&mut self, table: &mut dyn TableClient, keys: u64) {
        let first = self.rng.below(keys);
        let count = self.rng.between(1, keys);
        let kind = self.rng.below(4);
        let mut ops = Vec::new();
        for key in (first..first + count).map(|key| key % keys) {
            self.next_value += 1;
            ops.push(match kind {
                0 | 1 => (key, MapOp::Put(self.next_value, None)),
                2 => (key, MapOp::Delete(None)),
                _ => (key, MapOp::Get(None)),
            });
        }
        let name = ["table-put-many", "table-delete-many", "table-get-many"]
            [kind.saturating_sub(1) as usize];
        let since = self.begin(name);
        for (key, op) in &ops {
            self.scene.model.table.called(self.ctx.id, *key, *op, since);
        }
        let leaked_before = table.leaked_bytes();
        let results = table.apply_many(&mut TableMem::new(&mut self.handle, &self.scene), &ops);
        let failed = results.iter().find_map(|result| result.as_ref().err());
        self.end_as(name, failed.map_or("ok", code_of)).await;
        if table.leaked_bytes() > leaked_before {
            // Each of its keys may have left as much as an operation for one.
            ops.iter().for_each(|_| self.scene.model.table.was_lossy());
        }
        for ((key, op), result) in ops.into_iter().zip(results) {
            self.answer(name, key, op, &result);
        }
    }

    /// Notes how an operation on a key ended.
    fn answer(&mut self, name: &'static str, key: u64, op: MapOp, result: &TableAnswer) {
        let (id, now) = (self.ctx.id, self.ctx.now());
        self.ctx.kernel.say(|| format!("client {}: key {key}: {op:?}: {result:?}", id.0));
        let model = &self.scene.model.table;
        match result {
            Ok(answer) => {
                model.answered(id, key, Some(*answer), now);
                if let (Some(seat), Some(value)) = (&mut self.seat, value_after(*answer)) {
                    seat.seen.insert(key, value);
                }
            }
            Err(TableError::Unknown) => {
                model.was_lossy();
                model.answered(id, key, None, now);
            }
            Err(error) => {
                model.refused(id, key);
                self.check_table_error(name, error);
            }
        }
    }

    /// Gives back what no table names, if that is due in a rack, or all of it; whether that was
    /// done.
    pub async fn sweep(&mut self, due_in: Option<RackId>) -> bool {
        self.look_through("sweep", |tables, mem| tables.sweep(mem, due_in)).await
    }

    /// When all is quiet: sweeps what is due in any rack. Then nothing may be lost, unless what was
    /// due went with a rack: then everything is swept. Whether all could be looked at.
    pub async fn sweep_last(&mut self) -> bool {
        let racks: Vec<RackId> = self.scene.cluster.racks.iter().map(|rack| rack.id).collect();
        for rack in racks {
            for _ in 0..LAST_SWEEPS_MAX {
                if self.sweep(Some(rack)).await {
                    break;
                }
            }
        }
        match self.scene.model.nothing_lost() && !self.scene.removed.get() {
            true => self.look_through("audit", |tables, mem| tables.audit(mem)).await,
            false => self.sweep(None).await,
        }
    }

    async fn look_through(
        &mut self,
        name: &'static str,
        look: impl FnOnce(&dyn Tables, &mut TableMem<'_>) -> Result<bool, TableError>,
    ) -> bool {
        let Some(tables) = self.seat.as_ref().map(|seat| seat.tables) else { return false };
        let looked = look(tables, &mut TableMem::new(&mut self.handle, &self.scene));
        let code =
            looked.as_ref().map_or_else(code_of, |done| if *done { "ok" } else { "not-now" });
        self.scene.count_operation(name, code);
        self.ctx.kernel.say(|| format!("process {}: {name}: {looked:?}", self.ctx.id.0));
        looked.unwrap_or_else(|error| {
            self.check_table_error(name, &error);
            false
        })
    }

    /// Reads every key once more and looks at all that is in the table; then takes it away.
    pub async fn end_table(&mut self) {
        let Some((mut table, keys)) = self.take_table().await else { return };
        for key in 0..keys {
            self.table_operation(&mut *table, key, MapOp::Get(None)).await;
        }
        let checked = table.check(&mut TableMem::new(&mut self.handle, &self.scene));
        match checked {
            Ok(report) => self.scene.count_table(&report),
            Err(error) => self.check_table_error("looking at the table", &error),
        }
        let destroyed = table.destroy(&mut TableMem::new(&mut self.handle, &self.scene));
        if let Err(error) = destroyed {
            self.check_table_error("destroying the table", &error);
        }
    }

    /// What the client's table still holds for itself goes back.
    pub(super) async fn close_table(&mut self) {
        if let Some(table) = self.seat.as_mut().and_then(|seat| seat.table.as_mut()) {
            table.close(&mut TableMem::new(&mut self.handle, &self.scene));
        }
        self.scene.model.table.leaves(self.ctx.id);
    }

    /// Opens the table if it is not open; nothing if that fails.
    async fn take_table(&mut self) -> Option<(Box<dyn TableClient>, u64)> {
        let seat = self.seat.as_mut()?;
        let keys = seat.keys;
        if let Some(table) = seat.table.take() {
            return Some((table, keys));
        }
        let tables = seat.tables;
        self.begin("table-open");
        let opened =
            tables.open(&mut TableMem::new(&mut self.handle, &self.scene), self.scene.seed);
        self.end_as("table-open", opened.as_ref().map_or_else(code_of, |_| "ok")).await;
        match opened {
            Ok(table) => Some((table, keys)),
            Err(error) => {
                self.check_table_error("opening the table", &error);
                None
            }
        }
    }

    fn put_back(&mut self, table: Box<dyn TableClient>) {
        if let Some(seat) = &mut self.seat {
            seat.table = Some(table);
        }
    }

    async fn table_operation(&mut self, table: &mut dyn TableClient, key: u64, op: MapOp) {
        let id = self.ctx.id;
        let name = name_of(op);
        let since = self.begin(name);
        self.scene.model.table.called(id, key, op, since);
        let leaked_before = table.leaked_bytes();
        let result = table.apply(&mut TableMem::new(&mut self.handle, &self.scene), key, op);
        self.end_as(name, result.as_ref().map_or_else(code_of, |_| "ok")).await;
        if table.leaked_bytes() > leaked_before && result != Err(TableError::Unknown) {
            self.scene.model.table.was_lossy();
        }
        self.answer(name, key, op, &result);
    }

    fn check_table_error(&self, what: &str, error: &TableError) {
        match error {
            TableError::Pool(error) if self.scene.is_excused(error) => {}
            TableError::Pool(error) => self.violated("errors", format!("{what}: {error}")),
            TableError::Unknown => {}
            TableError::Wrong(text) => self.violated("keys", format!("{what}: {text}")),
        }
    }
}

fn code_of(error: &TableError) -> &'static str {
    match error {
        TableError::Pool(error) => Error::code(error),
        TableError::Unknown => "outcome-unknown",
        TableError::Wrong(_) => "wrong",
    }
}
