//! Why a value is refused as soon as its length is known. In: the length that a client announced.
//! Out: which limit it is over, as the protocols' answers say it.

use super::core::Core;
use crate::constants::{LINE_BYTES_MAX, STREAM_BYTES_MIN};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// What was asked for at the start.
    MaxValue,
    /// The memory that long values lie in now: it changes when the cache leaves far memory.
    Partition,
    /// What is held of a command until it is whole.
    Held,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    pub limit: Limit,
    /// Length of the value, or of the command, bytes.
    pub bytes: u64,
    pub max_bytes: u64,
}

impl TooLong {
    /// Whether a value of this length is taken now; `streams`: it is written into the cache as it
    /// arrives. The lock is taken for long ones alone: the limit is never below two units.
    #[inline]
    pub fn of(core: &Core, bytes: u64, streams: bool) -> Option<TooLong> {
        let settings = &core.shared.settings;
        let over =
            |limit, max_bytes| (bytes > max_bytes).then_some(TooLong { limit, bytes, max_bytes });
        over(Limit::MaxValue, settings.value_bytes_max).or_else(|| {
            if bytes < STREAM_BYTES_MIN {
                return None;
            }
            let held = (settings.input_bytes_max() - 2 * LINE_BYTES_MAX) as u64;
            over(Limit::Partition, core.cache().longest_value())
                .or_else(|| if streams { None } else { over(Limit::Held, held) })
        })
    }
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max_bytes = self.max_bytes;
        match self.limit {
            Limit::MaxValue => write!(f, "--max-value is {max_bytes}"),
            Limit::Partition => {
                write!(f, "the memory of a partition takes values of up to {max_bytes} bytes")
            }
            Limit::Held => {
                write!(f, "up to {max_bytes} bytes are held until it is whole; values that are ")?;
                f.write_str("set may be longer")
            }
        }
    }
}
