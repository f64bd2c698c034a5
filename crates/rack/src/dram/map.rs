//! From an address to rank, group, bank, row and column.
//!
//! A map is written as DRAM simulators write it: fields from the highest bits of the address to
//! the lowest, `ro-ba-bg-ra-co`. `lo` are the two lowest bits of the column where they stand apart
//! (four lines beside each other, then the next bank: Kaseridis and others, "Minimalist Open-page",
//! MICRO 2011). A trailing `^` exchanges the bank and group bits for their exclusive or with the
//! lowest bits of the row (Zhang, Zhu, Zhang, "A Permutation-based Page Interleaving Scheme",
//! MICRO 2000).

use super::timing::{Geometry, LINE_BYTES};
use serde::{Deserialize, Serialize};

/// Bits of the column that `lo` takes.
const LOW_BITS: u32 = 2;

/// An order of fields, from the highest bits to the lowest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MapName(pub String);

impl MapName {
    /// ramulator2's `RoBaRaCoCh`: neighbouring lines share a row, neighbouring rows no group.
    #[must_use]
    pub fn row_first() -> Self {
        Self("ro-ba-bg-ra-co".into())
    }

    /// Neighbouring lines lie in different groups, then banks.
    #[must_use]
    pub fn interleaved() -> Self {
        Self("ro-co-ra-ba-bg".into())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineAddress {
    /// Rank, group and bank in one: `(rank * groups + group) * banks + bank`.
    pub bank: u32,
    pub row: u32,
    /// Line of the row.
    pub column: u32,
}

/// Why a map is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    #[error("address map: \"{0}\" is none of ro, ra, bg, ba, co, lo")]
    Unknown(String),
    /// Each field is needed once (`lo` once or not at all).
    #[error("address map: field \"{0}\" is there {1} times")]
    Count(&'static str, usize),
    /// `lo` takes two bits of the column.
    #[error("address map: a row of {0} lines has no two low bits")]
    Low(u32),
}

/// Some bits of a line's number.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct BitField {
    shift: u32,
    mask: u32,
}

impl BitField {
    #[inline]
    const fn of(self, line: u64) -> u32 {
        (line >> self.shift) as u32 & self.mask
    }
}

/// A map for one geometry. Addresses beyond the channel's bytes begin at its start again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Map {
    row: BitField,
    rank: BitField,
    group: BitField,
    bank: BitField,
    column: BitField,
    low: BitField,
    low_bits: u32,
    group_bits: u32,
    bank_bits: u32,
    /// Ones if banks are permuted.
    permute: u32,
}

const FIELDS: [&str; 6] = ["ro", "ra", "bg", "ba", "co", "lo"];

impl Map {
    /// The map of that name, for that geometry.
    ///
    /// # Errors
    /// [`MapError`]; the geometry's powers of two are taken for granted.
    pub fn new(name: &MapName, geometry: &Geometry) -> Result<Self, MapError> {
        let (order, permute) = match name.0.strip_suffix('^') {
            Some(order) => (order, u32::MAX),
            None => (name.0.as_str(), 0),
        };
        let order: Vec<&str> = order.split('-').collect();
        if let Some(unknown) = order.iter().find(|field| !FIELDS.contains(field)) {
            return Err(MapError::Unknown((*unknown).to_owned()));
        }
        for field in FIELDS {
            let count = order.iter().filter(|name| **name == field).count();
            if count > 1 || (count == 0 && field != "lo") {
                return Err(MapError::Count(field, count));
            }
        }
        let low_bits = if order.contains(&"lo") { LOW_BITS } else { 0 };
        let column_bits = geometry.columns.trailing_zeros();
        let Some(high_bits) = column_bits.checked_sub(low_bits) else {
            return Err(MapError::Low(geometry.columns));
        };
        let mut map = Self {
            row: BitField::default(),
            rank: BitField::default(),
            group: BitField::default(),
            bank: BitField::default(),
            column: BitField::default(),
            low: BitField::default(),
            low_bits,
            group_bits: geometry.groups.trailing_zeros(),
            bank_bits: geometry.banks.trailing_zeros(),
            permute,
        };
        let mut shift = 0;
        for field in order.iter().rev() {
            let (bits, at) = match *field {
                "ro" => (geometry.rows.trailing_zeros(), &mut map.row),
                "ra" => (geometry.ranks.trailing_zeros(), &mut map.rank),
                "bg" => (map.group_bits, &mut map.group),
                "ba" => (map.bank_bits, &mut map.bank),
                "lo" => (low_bits, &mut map.low),
                _ => (high_bits, &mut map.column),
            };
            *at = BitField { shift, mask: (1 << bits) - 1 };
            shift += bits;
        }
        Ok(map)
    }

    /// Where the line of the byte at `address` is.
    #[inline]
    #[must_use]
    pub const fn place(&self, address: u64) -> LineAddress {
        let line = address / LINE_BYTES;
        let row = self.row.of(line);
        let mixed = row & self.permute;
        let group = self.group.of(line) ^ (mixed & self.group.mask);
        let bank = self.bank.of(line) ^ ((mixed >> self.group_bits) & self.bank.mask);
        let rank = self.rank.of(line);
        let column = (self.column.of(line) << self.low_bits) | self.low.of(line);
        let bank = (((rank << self.group_bits) | group) << self.bank_bits) | bank;
        LineAddress { bank, row, column }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dram::timing::{DDR4_2400, DDR5_4800};
    use std::collections::BTreeSet;

    fn map(name: &str, geometry: &Geometry) -> Map {
        Map::new(&MapName(name.into()), geometry).unwrap()
    }

    #[test]
    fn every_map_gives_each_line_a_place_of_its_own() {
        let small = Geometry { ranks: 2, groups: 4, banks: 2, rows: 16, columns: 8 };
        for name in ["ro-ba-bg-ra-co", "ro-co-ra-ba-bg", "ro-co-ba-bg-ra-lo^", "co-ro-ra-bg-ba"] {
            let map = map(name, &small);
            let lines = small.bytes() / LINE_BYTES;
            let mut places = BTreeSet::new();
            for line in 0..lines {
                let place = map.place(line * LINE_BYTES + 5);
                assert!(place.bank < small.banks_all() && place.row < small.rows, "{name}");
                assert!(place.column < small.columns, "{name}");
                places.insert((place.bank, place.row, place.column));
            }
            assert_eq!(places.len() as u64, lines, "{name}");
            assert_eq!(map.place(small.bytes()), map.place(0), "{name}");
        }
    }

    #[test]
    fn neighbours_share_a_row_or_change_the_group_as_the_name_says() {
        let geometry = &DDR4_2400.geometry;
        let rows = map(&MapName::row_first().0, geometry);
        assert_eq!(rows.place(64), LineAddress { bank: 0, row: 0, column: 1 });
        assert_eq!(rows.place(128 * 64), LineAddress { bank: 4, row: 0, column: 0 });
        let groups = map(&MapName::interleaved().0, geometry);
        assert_eq!(groups.place(64), LineAddress { bank: 4, row: 0, column: 0 });
        assert_eq!(groups.place(4 * 64), LineAddress { bank: 1, row: 0, column: 0 });
        let four = map("ro-co-ra-ba-bg-lo", &DDR5_4800.geometry);
        assert_eq!(four.place(3 * 64), LineAddress { bank: 0, row: 0, column: 3 });
        assert_eq!(four.place(4 * 64), LineAddress { bank: 4, row: 0, column: 0 });
    }

    #[test]
    fn a_map_that_misses_or_repeats_a_field_is_refused() {
        let error = |name: &str| Map::new(&MapName(name.into()), &DDR4_2400.geometry).unwrap_err();
        assert_eq!(error("ro-ba-bg-ra"), MapError::Count("co", 0));
        assert_eq!(error("ro-ba-bg-ra-co-ba"), MapError::Count("ba", 2));
        assert_eq!(error("ro-xx-bg-ra-co"), MapError::Unknown("xx".into()));
        let tiny = Geometry { columns: 2, ..DDR4_2400.geometry };
        assert_eq!(
            Map::new(&MapName("ro-co-ba-bg-ra-lo".into()), &tiny).unwrap_err(),
            MapError::Low(2)
        );
    }
}
