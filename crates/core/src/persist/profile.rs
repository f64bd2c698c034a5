//! What copies and logs go by on a medium: constants of the guide, or those that `bench pmem`
//! measured. A rule is off with the value that [`MediaProfile::UNRULED`] has for it.

use crate::constants::{COMBINER_BYTES, STREAM_BYTES_MIN};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MediaProfile {
    /// From this length on a copy goes around the caches; a shorter one is stored and written back.
    pub stream_bytes_min: u64,
    /// The same where bandwidth counts more than latency.
    pub stream_bandwidth_bytes_min: u64,
    /// Entries of a log are gathered in a record of up to so many bytes; at 0 each has its own.
    pub combiner_bytes: u64,
    /// Threads that write, and that read, at once so that more would gain nothing.
    pub writers_max: u16,
    pub readers_max: u16,
    /// Fences closer than this cost bandwidth.
    pub fence_bytes_min: u64,
}

impl MediaProfile {
    /// The guide's numbers for six DIMMs that are interleaved.
    pub const GUIDE: Self = Self {
        stream_bytes_min: STREAM_BYTES_MIN as u64,
        stream_bandwidth_bytes_min: 256,
        combiner_bytes: COMBINER_BYTES as u64,
        writers_max: 4,
        readers_max: 16,
        fence_bytes_min: 256,
    };

    /// For a medium on which every rule is off.
    pub const UNRULED: Self = Self {
        stream_bytes_min: u64::MAX,
        stream_bandwidth_bytes_min: u64::MAX,
        combiner_bytes: 0,
        writers_max: u16::MAX,
        readers_max: u16::MAX,
        fence_bytes_min: 0,
    };
}

impl Default for MediaProfile {
    fn default() -> Self {
        Self::GUIDE
    }
}
