//! The keys of look-ups, and the numbers that all measurements of them share.

/// Bytes of a key and of a value.
pub(super) const KEY_BYTES: usize = 16;
pub(super) const VALUE_BYTES: usize = 32;
pub(super) const BATCH: usize = 32;
/// Look-ups between two looks at the clock.
pub(super) const BLOCK: u64 = 1024;
/// Names the streams; any other would do.
pub(super) const SEED: u64 = 0x6361_6368_6531;

/// The key of an index.
pub(super) fn key_of(index: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&index.to_le_bytes());
    key[8..].copy_from_slice(&(!index).to_be_bytes());
    key
}
