//! Where keys go when a table is filled: cuckoo with three hashes and one slot a bucket, hopscotch
//! with a neighbourhood of [`FARM_SLOTS`].
//!
//! Source: Pagh and Rodler 2004 (cuckoo); Herlihy, Shavit and Tzafrir 2008 (hopscotch).

use super::{FARM_SLOTS, hash};

/// Hashes of a key in the cuckoo table. Source: HERD, background on Pilaf (3-1 cuckoo).
pub(super) const CUCKOO_HASHES: u64 = 3;
/// Moves until an insertion gives up.
const MOVES_MAX: u64 = 10_000;
/// Until here slots of the hopscotch table are searched for an empty one.
const PROBES_MAX: u64 = 4096;

/// A key found no place while a table was filled. Another size of the table may have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {table} table has no place for key {key}")]
pub struct NoPlace {
    pub table: &'static str,
    pub key: u64,
}

/// The bucket of a key by one of its hashes.
pub(super) fn bucket(key: u64, which: u64, buckets: u64) -> u64 {
    hash(key, 3 + which) % buckets
}

/// The first slot of a key's neighbourhood.
pub(super) fn home(key: u64, slots: u64) -> u64 {
    hash(key, 7) % slots
}

/// The bucket of each key.
pub(super) fn place_cuckoo(keys: u64, buckets: u64) -> Result<Vec<u64>, NoPlace> {
    let place = |key: u64, which: u64| bucket(key, which, buckets);
    let mut held = vec![0u64; buckets as usize];
    for key in 1..=keys {
        let (mut moving, mut which) = (key, 0);
        for moves in 0..=MOVES_MAX {
            let free = (0..CUCKOO_HASHES).find(|which| held[place(moving, *which) as usize] == 0);
            which = free.unwrap_or((which + 1 + hash(moving, moves) % 2) % CUCKOO_HASHES);
            let at = place(moving, which) as usize;
            moving = std::mem::replace(&mut held[at], moving);
            if moving == 0 {
                break;
            }
            which =
                (0..CUCKOO_HASHES).find(|which| place(moving, *which) as usize == at).unwrap_or(0);
        }
        if moving != 0 {
            return Err(NoPlace { table: "cuckoo", key: moving });
        }
    }
    Ok(places_of(&held, keys))
}

/// The slot of each key, at most [`FARM_SLOTS`] - 1 from its home.
pub(super) fn place_hopscotch(keys: u64, slots: u64) -> Result<Vec<u64>, NoPlace> {
    let mut held = vec![0u64; (slots + FARM_SLOTS) as usize];
    let full = |key: u64| NoPlace { table: "hopscotch", key };
    for key in 1..=keys {
        let from = home(key, slots);
        let last = (from + PROBES_MAX).min(slots + FARM_SLOTS - 1);
        let mut empty = (from..last).find(|at| held[*at as usize] == 0).ok_or_else(|| full(key))?;
        while empty - from >= FARM_SLOTS {
            // Some key before the empty slot may go there.
            let first = empty + 1 - FARM_SLOTS;
            let moved = (first..empty).find(|at| {
                let other = held[*at as usize];
                other != 0 && empty - home(other, slots) < FARM_SLOTS
            });
            let moved = moved.ok_or_else(|| full(key))?;
            held.swap(moved as usize, empty as usize);
            empty = moved;
        }
        held[empty as usize] = key;
    }
    Ok(places_of(&held, keys))
}

fn places_of(held: &[u64], keys: u64) -> Vec<u64> {
    let mut places = vec![0; keys as usize];
    for (place, key) in (0..).zip(held).filter(|(_, key)| **key > 0) {
        places[*key as usize - 1] = place;
    }
    places
}
