//! One thread's way into the pool: a handle, and the tables that were opened through it.

use crate::failure::{Failure, Outcome};
use rackpool::Handle;
use rackpool_table::{Options, Table};

/// The table that holds named objects, as in the command's shell.
pub const OBJECTS: &str = "objects";

/// Tables of one session; a program has a few.
const TABLES_MAX: usize = 1024;

/// When a value is stored under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    Always,
    /// Only if the key is not there.
    Insert,
    /// Only if the key is there.
    Update,
}

/// A handle with its tables, which are named by number. Tables give back what they hold at its end.
#[derive(Debug)]
pub struct Session {
    tables: Vec<Table>,
    pub handle: Handle,
}

impl Session {
    pub fn new(handle: Handle) -> Self {
        Self { tables: Vec::new(), handle }
    }

    /// The number of the table of that name, which is made if it shall be.
    pub fn open_table(&mut self, name: &str, is_made: bool) -> Outcome<usize> {
        if let Some(known) = self.tables.iter().position(|table| table.name() == name) {
            return Ok(known);
        }
        if self.tables.len() >= TABLES_MAX {
            return Err(Failure::misuse("more than 1024 tables through one handle"));
        }
        let table = match is_made {
            true => Table::open_or_create(&mut self.handle, name, Options::default())?,
            false => Table::open(&mut self.handle, name)?,
        };
        self.tables.push(table);
        Ok(self.tables.len() - 1)
    }

    /// The table of named objects, which is made by whatever needs it first.
    pub fn objects(&mut self) -> Outcome<usize> {
        self.open_table(OBJECTS, true)
    }

    /// Works with a table and the handle.
    pub fn with_table<R>(
        &mut self,
        number: usize,
        work: impl FnOnce(&mut Table, &mut Handle) -> rackpool_table::Result<R>,
    ) -> Outcome<R> {
        let Self { tables, handle } = self;
        let unknown = || Failure::misuse("no table of this number was opened by this handle");
        let table = tables.get_mut(number).ok_or_else(unknown)?;
        Ok(work(table, handle)?)
    }

    /// Stores a value; whether it was stored.
    pub fn put(&mut self, table: usize, key: &[u8], value: &[u8], mode: PutMode) -> Outcome<bool> {
        self.with_table(table, |table, handle| match mode {
            PutMode::Always => table.put(handle, key, value).map(|_| true),
            PutMode::Insert => table.insert(handle, key, value),
            PutMode::Update => table.update(handle, key, value),
        })
    }

    /// Puts the value of `key` into `value`, and uses its memory again; whether there is one.
    pub fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Outcome<bool> {
        self.with_table(table, |table, handle| table.get_into(handle, key, value))
    }

    /// Removes a key; whether it was there.
    pub fn delete(&mut self, table: usize, key: &[u8]) -> Outcome<bool> {
        self.with_table(table, |table, handle| table.delete(handle, key))
    }

    pub fn value_bytes(&mut self, table: usize, key: &[u8]) -> Outcome<Option<u64>> {
        self.with_table(table, |table, handle| table.value_bytes(handle, key))
    }

    /// Keys that begin with `prefix`, sorted, with the lengths of their values.
    pub fn list(&mut self, table: usize, prefix: &[u8]) -> Outcome<Vec<(Vec<u8>, u64)>> {
        self.with_table(table, |table, handle| table.list(handle, prefix))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for table in &mut self.tables {
            table.flush(&mut self.handle);
        }
    }
}
