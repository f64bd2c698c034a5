//! RRPC: calls to the daemon of a page's home that carry the data themselves or tell where it is.
//! Owns what such a call says and answers, and the length up to which data is carried.
//!
//! In: [`Fetch`] of a client engine, measured times of a link. Out: [`Fetched`] of a daemon
//! engine, a threshold. Knows neither engine. Source: Rcmp §5.5; where a call is worth it:
//! decision 0028.

use crate::addr::GAddr;
use crate::addr::PageHome;
use crate::seam::{Exposure, Nanos};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The paper's threshold: data up to this length is carried by the call. Source: Rcmp §5.5.
pub const THRESHOLD_PAPER_BYTES: u32 = 512;
/// Longest data that a call or an answer carries, bytes: with all else in it, half of a message.
pub const INLINE_BYTES_MAX: u32 = 8 << 10;
/// An object begins with its length, a little-endian word; its bytes follow.
pub const OBJECT_PREFIX_BYTES: u64 = 8;
/// Calls that one doorbell carries at most.
pub const CALLS_MAX: usize = 32;
/// Lengths at which a link is measured for its threshold, bytes.
pub const PROBE_BYTES: [u32; 3] = [64, 1 << 10, 4 << 10];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FetchExtent {
    /// So many bytes, within one page.
    Bytes(u64),
    /// The object that begins there; its home knows the length.
    Object,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    pub addr: GAddr,
    pub extent: FetchExtent,
    /// Up to this length the answer carries it, bytes; more than [`INLINE_BYTES_MAX`] is never
    /// carried.
    pub inline_bytes_max: u32,
    /// Where it may be written to, if it is longer. Ends with the call.
    pub into: Option<Exposure>,
}

/// The answer to a [`Fetch`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// Where the page is: later accesses need no call.
    pub home: PageHome,
    /// Length of the data; of an object without its prefix, bytes.
    pub bytes: u64,
    pub carried: Carried,
}

/// How the data of an answer comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carried {
    Inline(Bytes),
    /// It was written to where the call said, before the answer was sent.
    Written,
    /// Not at all: it is to be read one-sided.
    Not,
}

/// Bytes that are encoded as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Taker;
        impl<'de> Visitor<'de> for Taker {
            type Value = Bytes;
            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(to, "at most {INLINE_BYTES_MAX} bytes")
            }
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                if bytes.len() > INLINE_BYTES_MAX as usize {
                    return Err(E::invalid_length(bytes.len(), &self));
                }
                Ok(Bytes(bytes.to_vec()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Bytes, A::Error> {
                Err(A::Error::custom("bytes come as a whole"))
            }
        }
        from.deserialize_bytes(Taker)
    }
}

/// What one length costs on a link, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkProbe {
    pub bytes: u32,
    /// A call with the data in its answer.
    pub inline_ns: Nanos,
    /// A call that says where the data is, and a one-sided read of it.
    pub two_steps_ns: Nanos,
}

/// The length up to which the answer shall carry the data, by what a link was measured to cost:
/// the last of the lengths, in ascending order, up to which carrying was never slower, and from
/// there on towards the first where it was, in proportion to the two differences. Without a
/// measurement the paper's.
pub fn threshold(probes: &[LinkProbe]) -> u32 {
    let mut last: Option<(u32, u64)> = None;
    for probe in probes {
        if probe.inline_ns <= probe.two_steps_ns {
            last = Some((probe.bytes, probe.two_steps_ns - probe.inline_ns));
            continue;
        }
        let Some((bytes, gain)) = last else { return 0 };
        let loss = probe.inline_ns - probe.two_steps_ns;
        let span = u64::from(probe.bytes.saturating_sub(bytes));
        let part = u128::from(span) * u128::from(gain) / (u128::from(gain) + u128::from(loss));
        return (bytes + part as u32).min(INLINE_BYTES_MAX);
    }
    match last {
        // Carrying was never slower: nothing says where that ends.
        Some(_) => INLINE_BYTES_MAX,
        None => THRESHOLD_PAPER_BYTES,
    }
}

/// Whether the first touch of a short piece shall be a call, by the least times that were measured
/// for one and for looking the page up and reading it one-sided. A call asks fewer parties, so it
/// is made when in doubt.
pub fn calls_first(call_ns: Nanos, lookup_ns: Nanos) -> bool {
    call_ns <= lookup_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(bytes: u32, inline_ns: u64, two_steps_ns: u64) -> LinkProbe {
        LinkProbe { bytes, inline_ns, two_steps_ns }
    }

    #[test]
    fn the_threshold_is_where_the_two_lines_cross() {
        let probes = [probe(64, 10, 20), probe(1024, 12, 20), probe(4096, 36, 24)];
        // Between 1024 (8 faster) and 4096 (12 slower): at two fifths of the way.
        assert_eq!(threshold(&probes), 1024 + 3072 * 8 / 20);
    }

    #[test]
    fn without_a_measurement_it_is_the_papers_and_at_the_ends_it_is_bounded() {
        assert_eq!(threshold(&[]), THRESHOLD_PAPER_BYTES);
        assert_eq!(threshold(&[probe(64, 30, 20)]), 0);
        assert_eq!(threshold(&[probe(64, 10, 20), probe(4096, 11, 20)]), INLINE_BYTES_MAX);
        let far = [probe(64, 0, u64::MAX), probe(u32::MAX, u64::MAX, 0)];
        assert_eq!(threshold(&far), INLINE_BYTES_MAX);
    }

    #[test]
    fn one_slow_sample_in_the_middle_ends_it_there() {
        let probes = [probe(64, 10, 20), probe(1024, 30, 20), probe(4096, 10, 20)];
        assert!(threshold(&probes) < 1024);
    }
}
