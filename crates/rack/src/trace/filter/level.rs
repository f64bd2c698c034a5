//! One set-associative cache, or TLB.

use super::CacheSize;

/// No line: numbers of lines are below 2⁵⁸.
const EMPTY: u64 = u64::MAX;

/// A cache. A set's entries lie in the order of their use, the latest first.
#[derive(Clone, Debug)]
pub struct Level {
    /// Number of the line, and in the lowest bit whether it was stored to.
    entries: Box<[u64]>,
    ways: usize,
    set_mask: u64,
}

impl Level {
    /// An empty cache. The number of its sets is a power of two.
    ///
    /// # Panics
    /// If it is not, see [`super::Config::check`].
    pub fn new(size: CacheSize) -> Level {
        let lines = size.bytes / super::LINE_BYTES;
        let sets = lines / u64::from(size.ways);
        assert!(sets.is_power_of_two(), "{sets} sets");
        let entries = vec![EMPTY; lines as usize].into_boxed_slice();
        Level { entries, ways: size.ways as usize, set_mask: sets - 1 }
    }

    /// Uses a line, and marks it if it is stored to. If it was not there, it is now, and `Err` has
    /// what left for it: its number if it was stored to.
    #[inline]
    pub fn access(&mut self, line: u64, store: bool) -> Result<(), Option<u64>> {
        let from = (line & self.set_mask) as usize * self.ways;
        let set = &mut self.entries[from..from + self.ways];
        let store = u64::from(store);
        if set[0] >> 1 == line {
            set[0] |= store;
            return Ok(());
        }
        // Each entry moves one place back, up to the one that is used.
        let mut moved = set[0];
        for entry in &mut set[1..] {
            std::mem::swap(&mut moved, entry);
            if moved >> 1 == line {
                set[0] = moved | store;
                return Ok(());
            }
        }
        set[0] = line << 1 | store;
        Err((moved != EMPTY && moved & 1 == 1).then_some(moved >> 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    struct LruModel {
        sets: Vec<VecDeque<(u64, bool)>>,
        ways: usize,
    }

    impl LruModel {
        fn access(&mut self, line: u64, store: bool) -> Result<(), Option<u64>> {
            let index = line as usize % self.sets.len();
            let set = &mut self.sets[index];
            if let Some(place) = set.iter().position(|(there, _)| *there == line) {
                let (_, stored) = set.remove(place).unwrap();
                set.push_front((line, stored || store));
                return Ok(());
            }
            set.push_front((line, store));
            let left = if set.len() > self.ways { set.pop_back() } else { None };
            Err(left.and_then(|(line, stored)| stored.then_some(line)))
        }
    }

    #[test]
    fn the_least_recently_used_line_leaves_as_in_a_model_of_lists() {
        for ways in [1, 2, 4, 16] {
            let mut level = Level::new(CacheSize { bytes: 8 * 64 * ways, ways: ways as u32 });
            let mut model = LruModel { sets: vec![VecDeque::new(); 8], ways: ways as usize };
            let mut state = 1u64;
            for _ in 0..100_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (line, store) = ((state >> 40) % (16 * ways), state >> 63 == 1);
                assert_eq!(level.access(line, store), model.access(line, store));
            }
        }
    }
}
