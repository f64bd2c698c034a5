//! A concurrent hash table in the pool: variable keys and values, many client processes in all
//! racks at once, growing while in use. It stands on the pool's public API alone ([`Words`]).
//! Callers: applications, the shell's `put`, `get`, `del` and `ls`, the benchmarks.
//!
//! # Shape
//! ```text
//! name -> header -> chunk -> bucket word -> blob { key, value; key, value … } -> long value
//! ```
//! A bucket is **one word**, and all of its keys with their short values are in **one blob**,
//! which never changes: a change writes a new blob and swaps the word. The table keeps fewer keys
//! than buckets, so a blob is mostly one entry. A first `get` is two dependent accesses: the word,
//! the blob (the word says how much to read). Values above 2 KiB are allocations of their own and
//! cost one more access, and long ones another to validate.
//!
//! # Trips
//! A handle remembers the words that it saw, in at most 16 bytes a key, and asks for a word and for
//! the blob that it named *together*. If the word that comes back is another one, the blob is asked
//! for again; nothing else depends on what is remembered. Round trips to other racks, one after the
//! other, if everything is there, the chunk's place is known and new blobs are in the own rack:
//!
//! | operation | first time | later | changed meanwhile |
//! |---|---|---|---|
//! | `get`; of a key that is not there, in an empty bucket | 2; 1 | 1; 1 | 2; 1 |
//! | `update`, `put`, `insert`, `modify`, conditional | 3 | 2: that, and the swap | 3 |
//! | `insert` into an empty bucket | 2 | 2 | 2 |
//! | `get_many`; `put_many`, `delete_many`, up to 64 keys | 2; 3 | 1; 2 | 2; 3 |
//! | splitting a bucket, before a write | 4 more | | |
//!
//! Each trip of a batch rings one doorbell a rack (for 32 pieces). A new blob's memory is allocated
//! before the word is read, in the size that is likely, so that the word need not be read again.
//! The old blob's free is one more message if another rack has it, after the operation has taken
//! effect.
//!
//! # Why each key is linearizable
//! 1. **A word never comes back.** Each change of a bucket raises the version in its word by one.
//!    When the version is used up, the word is retired for ever: its successor lies in a *cell*
//!    that the home word names from then on; cells are never freed, so the home word never repeats
//!    either. Hence a compare-and-swap that succeeds found exactly the state that its owner had
//!    read, however long it slept in between, and a word that is unchanged was so all along.
//!    Version and base of the cell make the bucket's *sequence number*.
//! 2. **A change is one compare-and-swap** of the bucket's whole state: no key can be in a bucket
//!    twice, and of two concurrent changes one fails and starts again. This is where `insert`,
//!    `update`, `put` and `delete` take effect; refusals take effect where the word was read.
//! 3. **What a reader accepts is what was published.** A blob's checksum is seeded with its stamp:
//!    table, bucket, sequence number. A writer allocates a blob *before* it reads the word (or
//!    reads the word again after), and only then writes the blob under the next number *n*. If it
//!    still writes when another's blob *n* is published, it has held its own memory all the while,
//!    so the two lie at different addresses. No client writes a stamp *n* later on, since none
//!    reads word *n* − 1 any more. So at the address that word *n* names, only the published blob
//!    ever verifies from its publication on, also after it was freed and its memory used again.
//!    `get` takes effect where the word was read, and needs no validation. (A mixture of old and
//!    new bytes passes a 64-bit checksum by a chance of 2⁻⁶⁴; a blob that fails while its word
//!    stands is damage and answered [`Error::Corrupt`].)
//! 4. **A long value** has no stamp. After it was read, the word is read again: unchanged, the
//!    value was allocated all along. Changed, the value counts if its checksum matches, else the
//!    reader starts again.
//!
//! # Growing
//! A bucket of *depth* d holds the keys with a hash that agrees with its number in the d lowest
//! bits. The depth is part of its state, so no client needs to know how large the table is: a
//! reader that lands in a bucket that does not cover its key (or in one that does not exist)
//! follows the bits to the right one. The header's level only says where to begin and when to
//! split. Splitting bucket b: *freeze* its word; publish the new bucket b + 2^d with its half;
//! *thaw* b with the other half at depth d + 1. Each is one compare-and-swap that any client can
//! do, so one that needs to write in a frozen bucket finishes the split itself. While b is frozen
//! nothing changes in it; the new bucket takes over its half in the moment of its publication, and
//! a reader of a frozen bucket looks whether that has happened.
//!
//! # Death
//! No lock is held at any time, so a client may die between any two accesses. What it may leave:
//! a frozen bucket, which the next writer thaws; what its one operation had allocated but not yet
//! published or unlinked but not yet freed (at most [`LEFT_BY_DEATH_MAX`] allocations), and what it
//! still held back because the pool had been too busy to take it. All of that is held within a
//! *change* of its handle, so that its daemon knows; a sweep ([`audit`]) finds what no table
//! names and frees it. The count of keys that steers the growth may be off by one sample.
//!
//! [`LEFT_BY_DEATH_MAX`]: constants::LEFT_BY_DEATH_MAX
//!
//! An operation that answers with an error of the pool was not applied. One that answers
//! [`Error::OutcomeUnknown`] (the memory's rack fell silent in the middle of a swap) may have been;
//! the swap was repeated first, which is safe because its old word never comes back.
//!
//! # Limits
//! Memory of the index is given back only by [`Table::destroy`]: 8 bytes a bucket and 64 bytes for
//! 65,536 changes of one bucket. A bucket word holds addresses below 2^47 (long values: any).
//! In a full pool, deleting a key that shares its bucket needs a small allocation, and so does
//! writing into a bucket that a dead client left frozen. Order and atomicity are per key; `list`
//! and `len` see each key that is there from their start to their end, and of others either.
//!
//! Source: Rcmp §6.4 (a key-value store on the pool, inside a hash table); the design is ours: the
//! published table neither deletes nor has concurrent writers.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[allow(missing_docs)]
pub mod audit;
mod blob;
#[allow(missing_docs)]
pub mod constants;
#[allow(missing_docs)]
mod error;
mod header;
mod index;
mod many;
mod modify;
mod read;
mod scan;
mod seen;
mod split;
mod stream;
mod walk;
mod word;
#[allow(missing_docs)]
pub mod words;
mod write;

use blob::{Builder, Stamp};
use constants::{
    CHUNK_SHIFT, LEVEL_DEFAULT, SEEN_BYTES_MAX_DEFAULT, VERSIONS_PER_WORD_MAX,
    VERSIONS_PER_WORD_MIN,
};
use header::{CHUNK_0_OFFSET, Fixed, HEADER_BYTES, LEVEL_OFFSET, MAGIC, VERSION};
use index::{CHUNK_BYTES, TableIndex};
use seen::SeenWords;
use std::hash::BuildHasher;
use word::Word;
use words::{ErrorKind, GAddr, Placement, PoolError, Words};
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::{FromBytes, IntoBytes};

pub use error::{Error, Result};
pub use modify::KeyChange;
pub use read::ValueVersion;
pub use scan::{ScanCursor, ScanPage};
pub use walk::Report;
pub(crate) use walk::{Named, NamedBy};

/// How a table is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where this handle places the index: chunks of bucket words.
    pub index_placement: Placement,
    /// Where this handle places keys and values.
    pub entry_placement: Placement,
    /// log2 of the buckets to begin with, 0 to 12. Kept in the table.
    pub level_first: u8,
    /// Changes of a bucket after which its word is retired, 2 to 65,536. Kept in the table.
    pub versions_per_word: u32,
    /// Makes the table's identity and the seed of its hash, which else are random. Two tables
    /// must never have the same seed in one pool; for repeatable tests. Kept in the table.
    pub seed: Option<u64>,
    /// Bytes in which this handle at most remembers where keys are, 16 a key, so that reading one
    /// of another rack is one round trip; 0 for not at all.
    pub seen_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            index_placement: Placement::Spread,
            entry_placement: Placement::Auto,
            level_first: LEVEL_DEFAULT,
            versions_per_word: VERSIONS_PER_WORD_MAX,
            seed: None,
            seen_bytes_max: SEEN_BYTES_MAX_DEFAULT,
        }
    }
}

impl Options {
    fn check(&self) -> Result<()> {
        let (option, value, min, max) = if u32::from(self.level_first) > CHUNK_SHIFT {
            ("level_first", u64::from(self.level_first), 0, u64::from(CHUNK_SHIFT))
        } else if !(VERSIONS_PER_WORD_MIN..=VERSIONS_PER_WORD_MAX).contains(&self.versions_per_word)
        {
            let bounds = (u64::from(VERSIONS_PER_WORD_MIN), u64::from(VERSIONS_PER_WORD_MAX));
            ("versions_per_word", u64::from(self.versions_per_word), bounds.0, bounds.1)
        } else {
            return Ok(());
        };
        Err(Error::BadOption { option, value, min, max })
    }
}

/// A table as one handle uses it: where its parts are, and buffers. Every thread opens its own;
/// all of them see the same keys. Each call takes the handle of the pool through which it works.
///
/// ```
/// use rackpool::cluster::Cluster;
/// use rackpool_table::{Options, Table};
/// let cluster = Cluster::start(2)?;
/// let mut here = cluster.pool(0)?.handle()?;
/// let mut table = Table::create(&mut here, "fruit", Options::default())?;
/// assert!(table.insert(&mut here, b"apple", b"green")?);
///
/// let mut there = cluster.pool(1)?.handle()?;
/// let mut table = Table::open(&mut there, "fruit")?;
/// assert!(table.update(&mut there, b"apple", b"red")?);
/// assert_eq!(table.get(&mut there, b"apple")?.as_deref(), Some(&b"red"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Table {
    name: String,
    header: GAddr,
    fixed: Fixed,
    /// What is known of the table's level: where to begin and when to split, never more.
    level: u8,
    index: TableIndex,
    seen: SeenWords,
    entry_placement: Placement,
    /// The last blob that was read: the first `blob_bytes`.
    buf: Vec<u8>,
    blob_bytes: usize,
    low: Builder,
    high: Builder,
    frees_pending: Vec<(GAddr, u64)>,
    leaked_bytes: u64,
    /// Whether a change was not ended: frees are held back, or something may be under way still.
    holds: bool,
}

impl Table {
    /// Makes an empty table under `name`. Fails with [`Error::Exists`] if the name is taken.
    pub fn create<W: Words>(mem: &mut W, name: &str, options: Options) -> Result<Table> {
        options.check()?;
        if let Some(addr) = mem.root(name)? {
            return Err(Error::Exists { name: name.into(), addr });
        }
        let mut fixed = Fixed {
            magic: MAGIC,
            version: VERSION,
            level_first: u32::from(options.level_first),
            table_id: options.seed.unwrap_or_else(random_u64),
            hash_seed: options.seed.map_or_else(random_u64, Table::hash_seed_of),
            versions_per_word: options.versions_per_word,
            reserved: [0; 5],
            checksum: 0,
        };
        fixed.checksum = fixed.checksum_of();
        mem.begin_change();
        let mut unnamed = Unnamed::default();
        let made = Table::make(mem, name, &fixed, options.index_placement, &mut unnamed);
        // A change that is not ended is swept when its handle has ended.
        if made.is_ok() || unnamed.is_freed(mem, &made) {
            mem.end_change();
        }
        Ok(Table::new(name, made?, fixed, options))
    }

    /// Allocates and names an empty table; its header.
    fn make<W: Words>(
        mem: &mut W,
        name: &str,
        fixed: &Fixed,
        placement: Placement,
        unnamed: &mut Unnamed,
    ) -> Result<GAddr> {
        let mut alloc = |bytes| -> Result<GAddr> {
            let addr = mem.alloc(bytes, placement)?;
            unnamed.allocations.push((addr, bytes));
            Ok(addr)
        };
        let (chunk, header) = (alloc(CHUNK_BYTES)?, alloc(HEADER_BYTES)?);
        write_new(mem, header, chunk, fixed)?;
        unnamed.may_be_named = true;
        let there = name_it(mem, name, header)?;
        unnamed.may_be_named = false;
        if there != header {
            return Err(Error::Exists { name: name.into(), addr: there });
        }
        Ok(header)
    }

    /// Opens the table under `name`; [`Error::NotFound`] if there is none.
    pub fn open<W: Words>(mem: &mut W, name: &str) -> Result<Table> {
        Table::open_with(mem, name, Options::default())
    }

    /// As [`Table::open`]; of the options the placements count, the rest is the table's own.
    pub fn open_with<W: Words>(mem: &mut W, name: &str, options: Options) -> Result<Table> {
        let Some(header) = mem.root(name)? else {
            return Err(Error::NotFound { name: name.into() });
        };
        let mut bytes = [0; size_of::<Fixed>()];
        mem.read(header, &mut bytes)?;
        let fixed = Fixed::read_from_bytes(&bytes).expect("the buffer has the size of the struct");
        if let Some(reason) = fixed.fault() {
            let (name, is_other) = (name.into(), fixed.magic != MAGIC);
            return Err(Error::NotATable { name, addr: header, reason, is_other });
        }
        let mut table = Table::new(name, header, fixed, options);
        table.refresh_level(mem)?;
        Ok(table)
    }

    /// Opens the table under `name`, and makes it first if there is none.
    pub fn open_or_create<W: Words>(mem: &mut W, name: &str, options: Options) -> Result<Table> {
        match Table::open_with(mem, name, options) {
            Err(Error::NotFound { .. }) => {}
            other => return other,
        }
        match Table::create(mem, name, options) {
            Err(Error::Exists { .. }) => Table::open_with(mem, name, options),
            other => other,
        }
    }

    /// The name under which the table was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that this handle could not give back to the pool: it was silent or too busy.
    pub fn leaked_bytes(&self) -> u64 {
        self.leaked_bytes + self.index.leaked_bytes
    }

    /// Gives back what the pool was too busy to take when it was freed; the bytes that are still
    /// held back. Every change begins with this; a client that drops a table calls it before, or
    /// they are lost. Blocks as long as a free does.
    pub fn flush<W: Words>(&mut self, mem: &mut W) -> u64 {
        self.change(mem, Self::flush_frees);
        self.frees_pending.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The seed of the keys' hash in a table that was made with [`Options::seed`].
    pub fn hash_seed_of(seed: u64) -> u64 {
        !seed
    }

    fn new(name: &str, header: GAddr, fixed: Fixed, options: Options) -> Table {
        let level = fixed.level_first as u8;
        Table {
            name: name.into(),
            header,
            fixed,
            level,
            seen: SeenWords::new(level, options.seen_bytes_max),
            index: TableIndex::new(header, fixed.versions_per_word, options.index_placement),
            entry_placement: options.entry_placement,
            buf: Vec::new(),
            blob_bytes: 0,
            low: Builder::default(),
            high: Builder::default(),
            frees_pending: Vec::new(),
            leaked_bytes: 0,
            holds: false,
        }
    }

    /// Runs an operation that allocates or frees as a change of `mem`, which goes on while this
    /// handle has something that nothing names.
    fn change<W: Words, T>(
        &mut self,
        mem: &mut W,
        operation: impl FnOnce(&mut Self, &mut W) -> T,
    ) -> T {
        mem.begin_change();
        let result = operation(self, mem);
        let holds = !self.frees_pending.is_empty() || self.leaked_bytes() > 0;
        let held = std::mem::replace(&mut self.holds, holds);
        if !holds || held {
            mem.end_change();
        }
        if held && !holds {
            mem.end_change();
        }
        result
    }

    fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.fixed.hash_seed)
    }

    fn level_first(&self) -> u8 {
        self.fixed.level_first as u8
    }

    fn stamp(&self, bucket: u64, seq: u64) -> Stamp {
        Stamp { table_id: self.fixed.table_id, bucket, seq }
    }

    fn refresh_level<W: Words>(&mut self, mem: &mut W) -> Result<u8> {
        let level = mem.read_u64(GAddr(self.header.0 + LEVEL_OFFSET))?;
        let possible = u64::from(self.level_first())..=u64::from(crate::constants::LEVEL_MAX);
        if !possible.contains(&level) {
            let addr = GAddr(self.header.0 + LEVEL_OFFSET);
            return Err(Error::Corrupt { bucket: 0, addr, reason: "an impossible level" });
        }
        self.level = level as u8;
        Ok(self.level)
    }
}

/// What was allocated for a table that has no name yet.
#[derive(Default)]
struct Unnamed {
    allocations: Vec<(GAddr, u64)>,
    may_be_named: bool,
}

impl Unnamed {
    /// Frees all of it, unless it may have a name or more of it may come; whether nothing is left.
    fn is_freed<W: Words>(&mut self, mem: &mut W, made: &Result<GAddr>) -> bool {
        if self.may_be_named || made.as_ref().is_err_and(is_in_doubt) {
            return false;
        }
        let frees = self.allocations.drain(..).map(|(addr, bytes)| mem.free(addr, bytes).is_ok());
        frees.fold(true, |all, one| all & one)
    }
}

/// Whether an error leaves open whether something was done, or will be.
fn is_in_doubt(error: &Error) -> bool {
    match error {
        Error::Pool(error) => is_pool_in_doubt(error),
        error => matches!(error, Error::OutcomeUnknown { .. }),
    }
}

fn is_pool_in_doubt(error: &PoolError) -> bool {
    matches!(error.kind(), ErrorKind::OutcomeUnknown | ErrorKind::Timeout)
}

fn low_bits(hash: u64, bits: u8) -> u64 {
    hash & ((1 << bits) - 1)
}

/// A word that no other process has; the standard library seeds its maps from the system.
fn random_u64() -> u64 {
    std::collections::hash_map::RandomState::new().hash_one(std::process::id())
}

fn write_new<W: Words>(mem: &mut W, header: GAddr, chunk: GAddr, fixed: &Fixed) -> Result<()> {
    let level = fixed.level_first as u8;
    let word = Word::empty(level, 0).0.to_le_bytes();
    mem.write(chunk, &word.repeat(1 << level))?;
    mem.write(header, fixed.as_bytes())?;
    mem.write_u64(GAddr(header.0 + LEVEL_OFFSET), u64::from(level))?;
    mem.write_u64(GAddr(header.0 + CHUNK_0_OFFSET), chunk.0)?;
    Ok(())
}

/// Puts the header under its name; what is under the name now.
fn name_it<W: Words>(mem: &mut W, name: &str, header: GAddr) -> Result<GAddr> {
    match mem.set_root(name, GAddr::NULL, header) {
        Err(error) if is_pool_in_doubt(&error) => {}
        other => return Ok(other?),
    }
    // A name that is taken by a header is taken for good, so asking again tells. The header of
    // ours cannot be under it by any other way.
    Ok(mem.set_root(name, GAddr::NULL, header)?)
}
