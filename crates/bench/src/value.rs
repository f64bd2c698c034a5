//! Values that prove themselves: of which key, how new, and that no byte is torn.
//!
//! A value is `checksum ‖ key ‖ version ‖ body`, little-endian words of eight bytes, then a body
//! that key and version determine. The checksum (XXH3, 64 bits) covers all that follows it and
//! the length. Benchmarks call [`fill`] before each write and [`verify`] after each read: a run
//! that ends without [`Corrupt`] has read only what was written, whole.

use rackpool_stats::random::{SplitMix64, mix64};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of the header, so of the smallest value.
pub const VALUE_BYTES_MIN: usize = 24;

/// Why bytes are not the value of the key they were read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// Fewer bytes than a header; do not retry, the store lost the rest.
    #[error("a value of {got_bytes} bytes is shorter than its header of {VALUE_BYTES_MIN} bytes")]
    Short { got_bytes: usize },
    /// The bytes are no value that was ever written: torn, cut, damaged or never written.
    #[error(
        "checksum {found:#018x} of key {key} does not match its {bytes} bytes ({computed:#018x})"
    )]
    Checksum {
        /// The key that was asked for.
        key: u64,
        bytes: usize,
        /// The checksum in the value.
        found: u64,
        /// The checksum of the bytes.
        computed: u64,
    },
    /// A whole value, of another key: the store answered with another key's data.
    #[error("asked for key {expected}, got the value of key {found} (version {version})")]
    Foreign {
        /// The key that was asked for.
        expected: u64,
        /// The key in the value.
        found: u64,
        /// The version in the value.
        version: u64,
    },
}

/// Writes the value of `key` at `version` over all of `value`.
///
/// # Panics
/// When `value` has fewer than [`VALUE_BYTES_MIN`] bytes.
pub fn fill(value: &mut [u8], key: u64, version: u64) {
    assert!(
        value.len() >= VALUE_BYTES_MIN,
        "a value needs {VALUE_BYTES_MIN} bytes, not {}",
        value.len()
    );
    value[8..16].copy_from_slice(&key.to_le_bytes());
    value[16..24].copy_from_slice(&version.to_le_bytes());
    let mut body = SplitMix64::new(mix64(key) ^ version);
    for chunk in value[VALUE_BYTES_MIN..].chunks_mut(8) {
        chunk.copy_from_slice(&body.next_u64().to_le_bytes()[..chunk.len()]);
    }
    let checksum = checksum_of(value);
    value[..8].copy_from_slice(&checksum.to_le_bytes());
}

/// The version of `key` that `value` holds.
///
/// # Errors
/// [`Corrupt`] when the bytes are not one whole value of this key. A value that was never
/// written (all zero) is [`Corrupt::Checksum`].
pub fn verify(value: &[u8], key: u64) -> Result<u64, Corrupt> {
    if value.len() < VALUE_BYTES_MIN {
        return Err(Corrupt::Short { got_bytes: value.len() });
    }
    let (found, computed) = (word_at(value, 0), checksum_of(value));
    if found != computed {
        return Err(Corrupt::Checksum { key, bytes: value.len(), found, computed });
    }
    let (found, version) = (word_at(value, 8), word_at(value, 16));
    if found != key {
        return Err(Corrupt::Foreign { expected: key, found, version });
    }
    Ok(version)
}

fn checksum_of(value: &[u8]) -> u64 {
    xxh3_64_with_seed(&value[8..], value.len() as u64)
}

fn word_at(value: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&value[offset..offset + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of(bytes: usize, key: u64, version: u64) -> Vec<u8> {
        let mut value = vec![0xAA; bytes];
        fill(&mut value, key, version);
        value
    }

    #[test]
    fn a_value_tells_its_version() {
        for bytes in [24, 25, 31, 32, 100, 1000, 4096, 100_000] {
            assert_eq!(verify(&value_of(bytes, 17, 3), 17), Ok(3), "{bytes} bytes");
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let value = value_of(133, 5, 9);
        for bit in 0..value.len() * 8 {
            let mut damaged = value.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let answer = verify(&damaged, 5);
            assert!(matches!(answer, Err(Corrupt::Checksum { .. })), "bit {bit}: {answer:?}");
        }
    }

    #[test]
    fn a_value_torn_between_two_versions_is_found_at_every_cut() {
        let (old, new) = (value_of(256, 5, 1), value_of(256, 5, 2));
        for cut in 1..256 {
            let torn = [&new[..cut], &old[cut..]].concat();
            // A cut beyond the last byte in which both differ tears nothing.
            if torn != new && torn != old {
                assert!(verify(&torn, 5).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn another_key_s_value_is_foreign_and_named() {
        let answer = verify(&value_of(64, 8, 2), 7);
        assert_eq!(answer, Err(Corrupt::Foreign { expected: 7, found: 8, version: 2 }));
    }

    #[test]
    fn short_cut_and_padded_values_are_found() {
        let value = value_of(64, 1, 1);
        assert_eq!(verify(&value[..23], 1), Err(Corrupt::Short { got_bytes: 23 }));
        assert_eq!(verify(&[], 1), Err(Corrupt::Short { got_bytes: 0 }));
        for bytes in 24..64 {
            assert!(verify(&value[..bytes], 1).is_err(), "{bytes} bytes");
        }
        assert!(verify(&[value.as_slice(), &[0]].concat(), 1).is_err());
    }

    #[test]
    fn memory_that_was_never_written_is_no_value() {
        for bytes in [24, 64, 1000] {
            assert!(verify(&vec![0; bytes], 0).is_err(), "{bytes} bytes");
        }
    }

    #[test]
    #[should_panic(expected = "a value needs 24 bytes, not 23")]
    fn a_value_without_room_for_its_header_is_refused() {
        fill(&mut [0; 23], 1, 1);
    }
}
