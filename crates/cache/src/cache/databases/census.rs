//! How many items of each database expire, and in what time. In: how many items are to be looked
//! at. Out: a census, of all items if there are no more, else of a part: by their hashes, so it is
//! like the rest. Called by the servers.

use super::DATABASES_MAX;
use crate::cache::{Cache, Item, Millis, wall_of};

/// Buckets between two that are looked at with the lock given back.
const BUCKETS_AT_ONCE: usize = 64;
/// Buckets that are looked at for each item that is wanted, at most.
const BUCKETS_PER_ITEM: u64 = 4;

#[derive(Clone, Copy, Debug, Default)]
struct DatabaseCensus {
    items: u64,
    expiring: u64,
    /// Time that those have left together.
    left_ms: u64,
}

/// What [`Cache::census`] found.
#[derive(Clone, Debug, Default)]
pub struct Census {
    databases: [DatabaseCensus; DATABASES_MAX],
    seen: u64,
    is_whole: bool,
}

impl Census {
    /// Counts an item of a database, if it is of one; `nows`: by the items' clock and the wall's.
    fn count(&mut self, number: Option<usize>, expires: Millis, nows: [Millis; 2]) {
        self.seen += 1;
        let Some(number) = number else { return };
        let database = &mut self.databases[number];
        database.items += 1;
        if expires != 0 {
            database.expiring += 1;
            database.left_ms += match wall_of(expires) {
                Some(at_wall) => at_wall.saturating_sub(nows[1]),
                None => expires.saturating_sub(nows[0]),
            };
        }
    }

    /// Of a database with so many items: how many of them expire, and the milliseconds that these
    /// have left on average. Where not all were looked at, estimates.
    pub fn expiring(&self, number: u8, items: u64) -> (u64, Millis) {
        let DatabaseCensus { items: seen, expiring, left_ms } = self.databases[usize::from(number)];
        let all = if self.is_whole || seen == 0 {
            expiring
        } else {
            (u128::from(expiring) * u128::from(items) / u128::from(seen)) as u64
        };
        (all.min(items), left_ms / expiring.max(1))
    }
}

impl Cache {
    /// Looks at some `items_max` items, expired ones left out.
    pub fn census(&self, items_max: u64, now: Millis) -> Census {
        let spaces = self.databases.lock().spaces;
        let nows = [now, now.saturating_add_signed(self.wall_ahead())];
        let (mut census, mut buckets) = (Census::default(), items_max * BUCKETS_PER_ITEM);
        for partition in self.partitions.iter() {
            let mut cursor = 0;
            loop {
                if census.seen >= items_max || buckets == 0 {
                    return census;
                }
                let partition = partition.lock();
                for _ in 0..BUCKETS_AT_ONCE {
                    let count = |item: &Item<'_>| {
                        let number = spaces.iter().position(|space| *space == item.space());
                        census.count(number, item.expires(), nows);
                    };
                    cursor = partition.scan(cursor, now, count);
                    buckets = buckets.saturating_sub(1);
                    if cursor == 0 {
                        break;
                    }
                }
                if cursor == 0 {
                    break;
                }
            }
        }
        census.is_whole = true;
        census
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Options, at_wall};

    #[test]
    fn a_small_cache_is_counted_and_a_large_one_estimated() {
        let options = Options { memory: 32 << 20, partitions: 2, ..Options::default() };
        let cache = Cache::new(options).unwrap();
        let [first, third] = [0, 2].map(|number| cache.in_database(number));
        cache.set_wall(1_000_000);
        for key in 0..20_000_u32 {
            let expires = if key.is_multiple_of(4) { 1 + 60_000 } else { 0 };
            first.set(&key.to_le_bytes(), b"value", 0, expires, 1).unwrap();
        }
        third.set(b"never", b"value", 0, 0, 1).unwrap();
        third.set(b"soon", b"value", 0, at_wall(1_000_001 + 500), 1).unwrap();
        third.set(b"later", b"value", 0, 1 + 1500, 1).unwrap();
        let whole = cache.census(1 << 20, 1);
        assert_eq!(whole.expiring(0, 20_000), (5000, 60_000));
        assert_eq!(whole.expiring(2, 3), (2, 1000));
        assert_eq!(whole.expiring(1, 0), (0, 0));
        let (expires, left_ms) = cache.census(4000, 1).expiring(0, 20_000);
        assert!(expires.abs_diff(5000) < 600 && left_ms == 60_000, "{expires} {left_ms}");
    }
}
