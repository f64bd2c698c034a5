//! Racks, and the shards that a rack's memory may be divided into. A shard is what one daemon
//! owns: a region with its page table, sessions, locks and redo record. So a page's home, a link's
//! other end and a member at the master are shards, each named by a [`RackId`] that tells rack,
//! shard and how many shards the rack has. A rack that is not divided is its only shard, and its
//! id is the rack's number.
//!
//! What is meant by "the rack" (where memory is placed, what is near, whether a page should move)
//! compares [`RackId::rack`]; what is meant for one engine compares the whole id.
//! Source: Rcmp §4.2 (c); decision 0026.

use crate::constants::{RACK_SHARDS_MAX, RACKS_MAX};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A rack, one domain of load/store memory, or one shard of it. On the wire and in regions: bits
/// 0 to 9 are the rack's number, 10 to 12 the shard, 13 to 15 the count of shards less one. As
/// text: `3`, or `3.1` for shard 1 of a divided rack; in JSON a number or such a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RackId(pub u16);

const SHARD_SHIFT: u32 = 10;
const SHARDS_SHIFT: u32 = 13;
const _: () = assert!(RACKS_MAX == 1 << SHARD_SHIFT);
const _: () = assert!(RACK_SHARDS_MAX == 1 << (SHARDS_SHIFT - SHARD_SHIFT));

impl RackId {
    /// No rack, where a call may name one.
    pub const NONE: RackId = RackId(u16::MAX);

    /// Shard `shard` of a rack that is divided into `shards`; `None` if there is no such thing.
    pub fn sharded(rack: u16, shard: u16, shards: u16) -> Option<RackId> {
        let fits = rack < RACKS_MAX && (1..=RACK_SHARDS_MAX).contains(&shards) && shard < shards;
        let id = RackId(rack | shard << SHARD_SHIFT | shards.saturating_sub(1) << SHARDS_SHIFT);
        // The last shard of that rack would be none: the last number has one shard less.
        let has_none = (rack, shards) == (RACKS_MAX - 1, RACK_SHARDS_MAX);
        (fits && !has_none).then_some(id)
    }

    /// Whether the bits name a rack or a shard of one.
    pub fn is_valid(self) -> bool {
        Self::sharded(self.number(), self.shard(), self.shards()) == Some(self)
    }

    pub fn number(self) -> u16 {
        self.0 & (RACKS_MAX - 1)
    }

    /// The rack, whatever its shards; none of none.
    pub fn rack(self) -> RackId {
        if self == Self::NONE { self } else { RackId(self.number()) }
    }

    /// Which of the rack's shards, from 0.
    pub fn shard(self) -> u16 {
        self.0 >> SHARD_SHIFT & (RACK_SHARDS_MAX - 1)
    }

    /// How many shards the rack has, 1 if it is not divided.
    pub fn shards(self) -> u16 {
        (self.0 >> SHARDS_SHIFT) + 1
    }

    /// Whether the rack has more than one shard.
    pub fn is_divided(self) -> bool {
        self.shards() > 1
    }

    /// Whether both are shards of one rack.
    pub fn same_rack(self, other: RackId) -> bool {
        self.rack() == other.rack()
    }

    /// The shard of this rack that `hash` falls on. Any number will do as a hash.
    pub fn shard_of(self, hash: u64) -> RackId {
        // The high half of a product spreads what differs in any bits (Fibonacci hashing).
        let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let shard = (mixed * u64::from(self.shards())) >> 32;
        let shard = u16::try_from(shard).expect("below the count of shards");
        Self::sharded(self.number(), shard, self.shards()).unwrap_or(self)
    }

    /// The rack's other shards, in order, from the one after this.
    pub fn siblings(self) -> impl Iterator<Item = RackId> {
        let (number, own, shards) = (self.number(), self.shard(), self.shards());
        let after = (1..shards).map(move |step| (own + step) % shards);
        after.filter_map(move |shard| Self::sharded(number, shard, shards))
    }
}

impl fmt::Display for RackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_divided() && self.is_valid() {
            return write!(f, "{}.{}", self.number(), self.shard());
        }
        self.0.fmt(f)
    }
}

impl Serialize for RackId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() && self.is_divided() && self.is_valid() {
            return to.collect_str(&format_args!("{self}/{}", self.shards()));
        }
        to.serialize_u16(self.0)
    }
}

/// A rack's id as a person reads it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Readable {
    Number(u16),
    Text(String),
}

impl<'de> Deserialize<'de> for RackId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if !from.is_human_readable() {
            return u16::deserialize(from).map(RackId);
        }
        match Readable::deserialize(from)? {
            Readable::Number(id) => Ok(RackId(id)),
            Readable::Text(text) => parse(&text)
                .ok_or_else(|| D::Error::custom(format!("`{text}` is no shard such as 3.1/2"))),
        }
    }
}

fn parse(text: &str) -> Option<RackId> {
    let (rack, rest) = text.split_once('.')?;
    let (shard, shards) = rest.split_once('/')?;
    RackId::sharded(rack.parse().ok()?, shard.parse().ok()?, shards.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_undivided_rack_is_its_number_and_every_shard_comes_apart_again() {
        for rack in [0, 3, RACKS_MAX - 1] {
            assert_eq!(RackId::sharded(rack, 0, 1), Some(RackId(rack)));
            for shards in 1..=RACK_SHARDS_MAX {
                for shard in 0..shards {
                    let Some(id) = RackId::sharded(rack, shard, shards) else {
                        assert_eq!((rack, shards), (1023, 8), "one of its numbers is none");
                        continue;
                    };
                    assert_eq!((id.number(), id.shard(), id.shards()), (rack, shard, shards));
                    assert!(id.is_valid() && id.same_rack(RackId(rack)));
                    let json = serde_json::to_string(&id).unwrap();
                    assert_eq!(serde_json::from_str::<RackId>(&json).unwrap(), id, "{json}");
                    assert_eq!(id.siblings().count(), usize::from(shards) - 1);
                }
            }
        }
        for (rack, shard, shards) in [(1024, 0, 1), (0, 1, 1), (0, 0, 0), (0, 2, 2), (0, 8, 9)] {
            assert_eq!(RackId::sharded(rack, shard, shards), None);
        }
        assert!(!RackId::NONE.is_valid() && !RackId(1024).is_valid());
        assert!(!RackId::NONE.same_rack(RackId(1023)), "none is no rack's");
    }

    #[test]
    fn names_tell_the_shard_of_divided_racks_alone() {
        let shard = RackId::sharded(3, 1, 2).unwrap();
        assert_eq!((RackId(3).to_string(), shard.to_string()), ("3".into(), "3.1".into()));
        assert_eq!(serde_json::to_string(&RackId(3)).unwrap(), "3");
        assert_eq!(serde_json::to_string(&shard).unwrap(), "\"3.1/2\"");
        assert!(serde_json::from_str::<RackId>("\"3.2/2\"").is_err());
    }

    #[test]
    fn hashes_spread_over_all_shards() {
        for shards in 1..=RACK_SHARDS_MAX {
            let id = RackId::sharded(5, 0, shards).unwrap();
            let mut counts = vec![0u32; usize::from(shards)];
            for hash in 0..8_000u64 {
                let of = id.shard_of(hash);
                assert!(of.same_rack(id) && of.shards() == shards);
                counts[usize::from(of.shard())] += 1;
            }
            let even = 8_000 / u32::from(shards);
            assert!(counts.iter().all(|n| n.abs_diff(even) <= even / 10), "{counts:?}");
        }
    }
}
