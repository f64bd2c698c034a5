//! Keys as look-ups compare them: bytes, and the space to which an item belongs
//! ([decision 0059](../../../../docs/decisions/0059-a-database-is-a-byte-behind-the-key.md)). Space
//! 0 is free: its items have no byte more, and where it is known to be 0 nothing is compared.

use super::error::{Error, Result};
use super::layout::Header;
use super::{Cache, KEY_BYTES_MAX};
use crate::hashes::HashItemKey;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The space of the items that belong to large hashes: no client's key is in it.
pub(crate) const PARTS: u8 = u8::MAX;

/// A key of an item of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key<'a> {
    pub bytes: &'a [u8],
    pub space: u8,
}

impl<'a> Key<'a> {
    #[inline(always)]
    pub fn plain(bytes: &'a [u8]) -> Key<'a> {
        Key { bytes, space: 0 }
    }

    /// The key of an item from what stands as such; `header` is its header.
    pub fn of_stored(stored: &'a [u8], header: Header) -> Key<'a> {
        match stored.split_last() {
            Some((space, bytes)) if header.is_spaced() => Key { bytes, space: *space },
            _ => Key::plain(stored),
        }
    }

    /// Bytes that stand as the key.
    #[inline(always)]
    pub fn stored_bytes(self) -> usize {
        self.bytes.len() + usize::from(self.space != 0)
    }

    /// As [`Header::key_word`].
    #[inline(always)]
    pub fn word(self) -> u32 {
        match self.space {
            0 => self.bytes.len() as u32,
            _ => (self.bytes.len() as u32 + 1) | Header::SPACED,
        }
    }

    /// Whether its space stands behind it where it begins at `at`; `load` reads a word.
    #[inline(always)]
    pub fn has_space_at(self, at: u64, load: impl FnOnce(u64) -> u64) -> bool {
        let end = at + self.bytes.len() as u64;
        self.space == 0 || load(end & !7).to_le_bytes()[(end & 7) as usize] == self.space
    }

    pub fn hash(self, seed: u64) -> u64 {
        match self.space {
            PARTS => HashItemKey::index_hash(self.bytes),
            space => xxh3_64_with_seed(self.bytes, seed_in(seed, space)),
        }
    }
}

/// The seed of a space's hashes, by that of the cache.
pub(crate) fn seed_in(seed: u64, space: u8) -> u64 {
    seed.wrapping_add(u64::from(space).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl Cache {
    #[inline]
    pub(super) fn key<'a>(&self, bytes: &'a [u8]) -> Key<'a> {
        Key { bytes, space: self.space }
    }

    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }

    pub(super) fn checked_hash(&self, key: &[u8]) -> Result<u64> {
        if key.len() > KEY_BYTES_MAX {
            let (bytes, max_bytes) = (key.len() as u64, KEY_BYTES_MAX as u64);
            return Err(Error::KeySize { bytes, max_bytes });
        }
        Ok(self.hash(key))
    }

    /// Whether it is a key that there may be and that is not empty, and a value that is none of a
    /// tier's.
    #[inline]
    pub(super) fn is_short(&self, key: &[u8], value: &[u8]) -> bool {
        (1..=KEY_BYTES_MAX).contains(&key.len()) && (value.len() as u64) < self.far_bytes_min
    }

    /// The same cache, in which this handle and its clones see the items of a space alone, which
    /// others do not see. A cache begins with space 0; items of others cost a byte more. What is
    /// said of all items ([`Cache::flush_all`], [`Cache::stats`], [`Cache::len`]) is of all spaces.
    ///
    /// # Panics
    /// With space 255: the parts of large hashes are there.
    pub fn in_space(&self, space: u8) -> Cache {
        assert_ne!(space, PARTS, "a space for clients");
        Cache { space, seed: seed_in(self.options.seed, space), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Options;

    #[test]
    fn a_key_comes_back_from_what_is_stored_of_it() {
        for (bytes, space) in [(&b"k"[..], 0), (b"k\x01", 0), (b"k", 1), (b"k", 255)] {
            let key = Key { bytes, space };
            let mut stored = bytes.to_vec();
            stored.extend((space != 0).then_some(space));
            let header = Header::new(key.word(), 0, 0);
            assert_eq!(header.key_bytes() as usize, key.stored_bytes());
            assert_eq!(Key::of_stored(&stored, header), key);
            stored.resize(8, 0);
            let word = u64::from_le_bytes(stored[..8].try_into().unwrap());
            assert!(key.has_space_at(0, |_| word));
            let other = Key { space: space.wrapping_add(1).max(1), ..key };
            assert!(!other.has_space_at(0, |_| word));
        }
    }

    #[test]
    fn spaces_do_not_see_one_another() {
        for partitions in [1, 4] {
            let options = Options { memory: 16 << 20, partitions, ..Options::default() };
            let cache = Cache::new(options).unwrap();
            let spaces: Vec<_> = [0, 1, 2, 254].map(|space| cache.in_space(space)).into();
            let value = |cache: &Cache, key: &[u8]| {
                let mut value = Vec::new();
                let found = cache.get(key, 1, |item| item.append_to(&mut value).unwrap());
                found.map(|()| value)
            };
            // A plain key that ends as one with its space.
            for key in [&b"a key"[..], b"a key\x01", b"a key\x02", b"12345678"] {
                for (index, space) in spaces.iter().enumerate() {
                    assert_eq!(value(space, key), None);
                    space.set(key, &[index as u8; 3], 0, 0, 1).unwrap();
                }
                for (index, space) in spaces.iter().enumerate() {
                    assert_eq!(value(space, key), Some(vec![index as u8; 3]));
                    let mut many = None;
                    space.get_many(&[key], 1, |_, item| many = item.map(|item| item.key()));
                    assert_eq!(many.as_deref(), Some(key));
                }
            }
            assert!(spaces[1].remove(b"a key", 1) && !spaces[1].remove(b"a key", 1));
            for (index, space) in spaces.iter().enumerate() {
                let mut count = 0;
                let mut cursor = 0;
                loop {
                    cursor = space.scan(cursor, 1000, 1, |_| count += 1);
                    if cursor == 0 {
                        break;
                    }
                }
                assert_eq!(count, if index == 1 { 3 } else { 4 });
            }
        }
    }
}
