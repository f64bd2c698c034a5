//! Every limit and default of the hash table, each with its reason.

pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Longest value, bytes. What one allocation of the pool can hold may be less.
pub const VALUE_BYTES_MAX: u64 = 64 << 30;
/// Longest value that is stored in its bucket's blob, bytes; longer ones are allocations of their
/// own. Above, copying the neighbours at each change costs more than the one further access that
/// a separate value costs; below lie the records of YCSB (1 KB).
pub const INLINE_VALUE_BYTES_MAX: usize = 2048;
/// Longest blob, bytes: some longest keys in one bucket. The hash is seeded per table, so only a
/// table that cannot grow any more (a full pool) comes near.
pub const BLOB_BYTES_MAX: usize = 1 << 20;
/// Entries of one blob; its header counts them in 16 bits.
pub const BLOB_ENTRIES_MAX: usize = u16::MAX as usize;

/// log2 of the bucket words of a chunk: 32 KiB, small enough to be a slab object of 2 MiB pages
/// and to be a small loss if a client dies between its allocation and its publication.
pub const CHUNK_SHIFT: u32 = 12;
/// Most doublings: 2^40 buckets, 8 TiB of bucket words.
pub const LEVEL_MAX: u8 = 40;
/// Level of a new table: 1024 buckets, 8 KiB of the first chunk.
pub const LEVEL_DEFAULT: u8 = 10;
/// The table doubles when it holds more keys than this share of its buckets. A key meets on
/// average less than this share of strangers in its bucket's blob.
pub const LOAD_PERCENT: u64 = 75;
/// One key in `1 << SAMPLE_SHIFT`, chosen by its hash, is counted in the table's header, so that
/// the counter is not a meeting point of all writers.
pub const SAMPLE_SHIFT: u32 = 6;

/// Changes of a bucket after which its word is retired, by default and at most: the version field
/// of a bucket word has 16 bits.
pub const VERSIONS_PER_WORD_MAX: u32 = 1 << 16;
/// Fewest: freezing and thawing a bucket at its split are two changes.
pub const VERSIONS_PER_WORD_MIN: u32 = 2;

/// Allocations that a client leaves behind at most if it dies in an operation, for each key of a
/// batch under way (beside those that it holds back as below): its new blob and long value, while
/// the halves of a split are written and the bucket's word is retired. Three of the five were never
/// seen by another client if it dies later.
pub const LEFT_BY_DEATH_MAX: u64 = 5;

/// How often an operation starts again because others changed its bucket meanwhile. Each time,
/// another client made progress; after this many the answer is a typed error.
pub const ATTEMPTS_MAX: u32 = 1 << 14;
/// Attempts before the operation yields its processor before each further one.
pub const ATTEMPTS_EAGER: u32 = 4;
/// How often a compare-and-swap of unknown outcome is repeated in order to know.
pub const RESOLVE_MAX: u32 = 4;
/// Freed pieces that a handle holds back while the pool is too busy to take them; more are
/// forgotten and counted as leaked.
pub const FREES_PENDING_MAX: usize = 1024;
/// Retired bucket words of which a handle remembers the successor.
pub const FORWARDS_MAX: usize = 256;
/// Entries with which a handle begins to remember the buckets' words: 8 KiB, for the 1024 buckets
/// of a new table.
pub(crate) const SEEN_ENTRIES_MIN: u64 = 1024;
/// Bytes in which a handle remembers the buckets' words, by default at most: a million keys.
pub const SEEN_BYTES_MAX_DEFAULT: u64 = 16 << 20;
/// A long value up to this length is believed by its checksum alone, so that it costs no further
/// access to its bucket's word: that takes less time than a round trip.
pub(crate) const CHECKSUM_ALONE_BYTES_MAX: u64 = 32 << 10;
/// Keys of a batch that are under way at once: a word and a blob of each are what one connection
/// takes.
pub const BATCH_KEYS_MAX: usize = 64;
/// How often a batch goes over the keys that others have changed, or that share a bucket, before
/// the rest is done one by one.
pub(crate) const BATCH_ROUNDS_MAX: u32 = 4;
/// Bytes of a long value that are read or written at once where it comes piece by piece.
pub(crate) const STREAM_BYTES: u64 = 1 << 20;
/// Bytes of a value that are verified at once.
pub const VERIFY_BYTES: u64 = 1 << 20;
