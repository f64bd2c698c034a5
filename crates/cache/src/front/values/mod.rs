//! What Redis's commands do with values of strings and hashes, as pure functions over bytes: no
//! key, no clock, no I/O. In: a value and numbers that were read from a command. Out: an answer or
//! the changed value. The rules are those of Redis 8; where 7.0 differs the function says so.
//!
//! ```text
//! range.rs        GETRANGE SETRANGE             long_double.rs  INCRBYFLOAT HINCRBYFLOAT
//! bits.rs         SETBIT GETBIT BITCOUNT BITPOS bit_ops.rs      BITOP
//! bitfield.rs     BITFIELD BITFIELD_RO          lcs.rs          LCS
//! hyperloglog.rs  PFADD PFCOUNT PFMERGE         dump.rs         DUMP RESTORE
//! ```

pub mod bit_ops;
pub mod bitfield;
pub mod bits;
mod crc64;
pub mod dump;
pub mod hyperloglog;
mod hyperloglog_sparse;
pub mod lcs;
mod listpack;
pub mod long_double;
mod lzf;
mod natural;
pub mod range;
mod reader;
mod ziplist;

/// What a client is told, word by word as Redis says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error("ERR syntax error")]
    Syntax,
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    #[error("ERR value is not a valid float")]
    NotAFloat,
    #[error("ERR increment would produce NaN or Infinity")]
    Infinite,
    #[error("ERR offset is out of range")]
    Offset,
    #[error("ERR string exceeds maximum allowed size (proto-max-bulk-len)")]
    TooLong,
    #[error("ERR bit offset is not an integer or out of range")]
    BitOffset,
    #[error("ERR BITOP NOT must be called with a single source key.")]
    OneSource,
    #[error("ERR BITOP {0} must be called with at least two source keys.")]
    TwoSources(&'static str),
    #[error(
        "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but \
         i64 is."
    )]
    FieldType,
    #[error("ERR Invalid OVERFLOW type specified")]
    Overflow,
    #[error("ERR BITFIELD_RO only supports the GET subcommand")]
    ReadOnly,
    #[error("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len")]
    LcsTooLong,
    #[error("WRONGTYPE Key is not a valid HyperLogLog string value.")]
    NoHyperLogLog,
    #[error("INVALIDOBJ Corrupted HLL object detected")]
    CorruptHyperLogLog,
    #[error("ERR DUMP payload version or checksum are wrong")]
    DumpChecksum,
    #[error("ERR Bad data format")]
    DumpFormat,
    #[error("ERR given type is not a function")]
    NoLibrary,
    #[error("ERR Failed loading library payload")]
    BadLibrary,
}
