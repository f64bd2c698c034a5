//! The master's log and state on disk: one redb file in the state directory. Owns the file and
//! the lock on the directory. State writes of whole batches flow in, one transaction each, synced
//! before `commit` returns; at start the stored records flow out.
//!
//! Ordering rule: a batch's log index is stored in the same transaction as its effects, so a
//! crash at any moment leaves whole batches. A new file is made beside its place and renamed
//! into it once it is complete: an incomplete file under the final name was never ours, and
//! nothing that is there is ever overwritten.
//!
//! A batch is applied before it is stored, so it must not fail for want of room: a file beside the
//! state holds some in reserve. The batch for which the disk has no room takes the reserve's, and
//! until there is a new reserve the master takes no change.

use super::error::MasterError;
use rackpool_core::constants::MASTER_RESERVE_BYTES;
use rackpool_core::master::{Loader, State, StateWrite, Table};
use rackpool_mem::files::{lock, open_private, take_rights};
use rackpool_mem::log;
use redb::{Database, DatabaseError, Durability, ReadableDatabase, ReadableTable};
use redb::{TableDefinition, TableError};
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file's name in the state directory.
pub const STATE_FILE: &str = "master.redb";
const NEW_FILE: &str = "master.redb.new";
const RESERVE_FILE: &str = "master.reserve";
/// Memory for cached pages of the file; the state itself is in memory anyway.
const CACHE_BYTES: usize = 32 << 20;

type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

fn definition(table: Table) -> Definition {
    TableDefinition::new(table.name())
}

pub(super) struct Journal {
    /// `None` only while it is opened again.
    database: Option<Database>,
    path: PathBuf,
    /// Whether there is a reserve.
    has_reserve: bool,
    /// Holds the lock for as long as it is open.
    _directory: File,
}

impl Journal {
    /// Opens the state in `state_dir` or makes a new pool there, and begins a new term.
    pub(super) fn open(state_dir: &Path) -> Result<(Self, State), MasterError> {
        let directory = lock_directory(state_dir)?;
        let path = state_dir.join(STATE_FILE);
        let exists = path.try_exists();
        if !exists.map_err(MasterError::system(format!("look for {}", path.display())))? {
            create(state_dir, &path, &directory)?;
        }
        let opened = log::guarded(|| {
            // Refuses what is not this user's alone.
            let file = open_private(&path, OFlags::RDWR);
            let file = file.map_err(MasterError::system(format!("open {}", path.display())))?;
            let mut builder = Database::builder();
            let database = builder.set_cache_size(CACHE_BYTES).open(&path);
            let database = database.map_err(|error| open_error(&path, error))?;
            let state = load(&database, &path)?;
            let what = format!("take the rights of {}", path.display());
            take_rights(file).map_err(MasterError::system(what))?;
            Ok((database, state))
        });
        // A damaged file can make the store stumble over its own assertions: an answer like any
        // other damage, since nothing of it is kept.
        let (database, mut state) = opened.unwrap_or_else(|| {
            let reason = "damaged: the store gave up reading it".into();
            Err(MasterError::BadState { path: path.clone(), reason })
        })?;
        let reserve = fs::metadata(reserve_path(&path));
        let has_reserve = reserve.is_ok_and(|file| file.len() == MASTER_RESERVE_BYTES);
        let database = Some(database);
        let mut journal = Self { database, path, has_reserve, _directory: directory };
        let term = state.begin_term();
        journal.commit(&[term])?;
        Ok((journal, state))
    }

    /// Stores a batch as a whole; returns once it would survive a power cut. After an error the
    /// batch may be there or not: no client may be told that it is.
    pub(super) fn commit(&mut self, writes: &[StateWrite]) -> Result<(), MasterError> {
        let stored = self.store(writes);
        if stored.is_ok() || !self.has_reserve {
            return stored;
        }
        // What was stored of it is stored again: a record is a key and its value.
        let _ = fs::remove_file(reserve_path(&self.path));
        self.has_reserve = false;
        // A store that has failed once refuses everything.
        drop(self.database.take());
        let opened = Database::builder().set_cache_size(CACHE_BYTES).open(&self.path);
        self.database = Some(opened.map_err(|error| open_error(&self.path, error))?);
        self.store(writes)
    }

    fn store(&self, writes: &[StateWrite]) -> Result<(), MasterError> {
        let database = self.database.as_ref().expect("only `commit` is without one");
        store(database, writes).map_err(|error| MasterError::Storage {
            path: self.path.clone(),
            reason: error.to_string(),
        })
    }

    /// Whether the next batch will be stored even if the disk has no room.
    pub(super) fn has_reserve(&self) -> bool {
        self.has_reserve
    }

    /// Takes room for a reserve, if there is none.
    pub(super) fn make_reserve(&mut self) -> io::Result<()> {
        if self.has_reserve {
            return Ok(());
        }
        let path = reserve_path(&self.path);
        // What is there is one that a crash left half made.
        let _ = fs::remove_file(&path);
        let made = File::options().write(true).create_new(true).mode(0o600).open(&path).and_then(
            |mut file| {
                let flags = rustix::fs::FallocateFlags::empty();
                match rustix::fs::fallocate(&file, flags, 0, MASTER_RESERVE_BYTES) {
                    // A file system that gives no room beforehand gives it with the bytes.
                    Err(rustix::io::Errno::OPNOTSUPP) => {
                        file.write_all(&vec![1; MASTER_RESERVE_BYTES as usize])?;
                    }
                    allocated => allocated?,
                }
                file.sync_all()
            },
        );
        if made.is_err() {
            let _ = fs::remove_file(&path);
        }
        self.has_reserve = made.is_ok();
        made
    }
}

fn reserve_path(state: &Path) -> PathBuf {
    state.with_file_name(RESERVE_FILE)
}

/// Makes the directory if needed and locks it against a second master.
fn lock_directory(state_dir: &Path) -> Result<File, MasterError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir);
    made.map_err(MasterError::system(format!("make {}", state_dir.display())))?;
    let directory = File::open(state_dir);
    let directory =
        directory.map_err(MasterError::system(format!("open {}", state_dir.display())))?;
    match lock(&directory) {
        Ok(()) => Ok(directory),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(MasterError::Locked { path: state_dir.to_path_buf() })
        }
        Err(error) => Err(MasterError::system(format!("lock {}", state_dir.display()))(error)),
    }
}

/// Makes the file of a new pool; a crash leaves nothing under `path`.
fn create(state_dir: &Path, path: &Path, directory: &File) -> Result<(), MasterError> {
    let fresh = state_dir.join(NEW_FILE);
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(MasterError::system(format!("remove {}", fresh.display()))(error));
        }
        _ => {}
    }
    let random = || rackpool_mem::process::random_u64();
    let pool_id = random().and_then(|high| Ok([high, random()?]));
    let pool_id = pool_id.map_err(MasterError::system("draw a random pool id"))?;
    let failed = |reason: String| MasterError::Storage { path: fresh.clone(), reason };
    let file = open_private(&fresh, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL);
    let file = file.map_err(MasterError::system(format!("make {}", fresh.display())))?;
    let database = Database::builder().create_file(file.into());
    let database = database.map_err(|error| failed(error.to_string()))?;
    let (_, writes) = State::create(pool_id);
    store(&database, &writes).map_err(|error| failed(error.to_string()))?;
    drop(database);
    let placed = fs::rename(&fresh, path).and_then(|()| directory.sync_all());
    placed.map_err(MasterError::system(format!("make {}", path.display())))
}

fn store(database: &Database, writes: &[StateWrite]) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    for table in Table::ALL {
        let mut stored = transaction.open_table(definition(table))?;
        for write in writes.iter().filter(|write| write.table == table) {
            match &write.value {
                Some(value) => stored.insert(write.key.as_slice(), value.as_slice())?,
                None => stored.remove(write.key.as_slice())?,
            };
        }
    }
    transaction.commit()?;
    Ok(())
}

fn load(database: &Database, path: &Path) -> Result<State, MasterError> {
    let bad = |reason: String| MasterError::BadState { path: path.to_path_buf(), reason };
    let transaction = database.begin_read().map_err(|error| bad(error.to_string()))?;
    let mut loader = Loader::default();
    for table in Table::ALL {
        let stored = match transaction.open_table(definition(table)) {
            Ok(stored) => stored,
            Err(TableError::TableDoesNotExist(name)) => {
                return Err(bad(format!("it has no table {name}: no master made it")));
            }
            Err(error) => return Err(bad(error.to_string())),
        };
        for record in stored.iter().map_err(|error| bad(error.to_string()))? {
            let (key, value) = record.map_err(|error| bad(error.to_string()))?;
            let inserted = loader.insert(table, key.value(), value.value());
            inserted.map_err(|error| MasterError::state(path.to_path_buf(), error))?;
        }
    }
    loader.finish().map_err(|error| MasterError::state(path.to_path_buf(), error))
}

fn open_error(path: &Path, error: DatabaseError) -> MasterError {
    let path = path.to_path_buf();
    match error {
        DatabaseError::DatabaseAlreadyOpen => MasterError::Locked { path },
        error => MasterError::BadState { path, reason: error.to_string() },
    }
}
