//! The bytes of a part of a long value, one that does not fit into a slot: they are the value of
//! its message.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | which long value: the number of the request that was its first part |
//! | 8 | where in the value the part begins, bytes |
//! | 16 | length of the whole value, bytes; 0 in a request to read |
//! | 24 | the part |
//!
//! Everything is little-endian. Every part of a value but the last is as long as a slot allows, so
//! a value is moved by as many requests as it has such parts, in all windows at once. The number of
//! the long value grows from one to the next, so that parts of one that was given up are known for
//! that.

use super::geometry::Geometry;
use super::message::{PART_HEAD_BYTES, word};

/// What stands before a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartHead {
    pub id: u64,
    pub offset: u64,
    pub total: u64,
}

impl PartHead {
    pub fn bytes(&self) -> [u8; PART_HEAD_BYTES] {
        let mut bytes = [0; PART_HEAD_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip([self.id, self.offset, self.total]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The head and the part in the value of a message.
    pub fn read(value: &[u8]) -> Option<(PartHead, &[u8])> {
        let (head, part) = value.split_first_chunk::<PART_HEAD_BYTES>()?;
        let word = |at| word(head, at);
        Some((PartHead { id: word(0), offset: word(8), total: word(16) }, part))
    }
}

/// Longest part in a slot of these sizes, bytes; 0 if a slot is too short for any.
pub(super) const fn part_bytes(geometry: &Geometry) -> usize {
    (geometry.value_bytes as usize).saturating_sub(PART_HEAD_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_as_it_was_written_and_less_is_none() {
        let head = PartHead { id: 7, offset: 976, total: 65536 };
        let value = [&head.bytes()[..], b"part"].concat();
        assert_eq!(PartHead::read(&value), Some((head, &b"part"[..])));
        assert_eq!(PartHead::read(&value[..PART_HEAD_BYTES]), Some((head, &b""[..])));
        assert_eq!(PartHead::read(&value[..PART_HEAD_BYTES - 1]), None);
        let geometry = Geometry { servers: 1, clients: 1, windows: 1, value_bytes: 1000 };
        assert_eq!(part_bytes(&geometry), 976);
        assert_eq!(part_bytes(&Geometry { value_bytes: 24, ..geometry }), 0);
        assert_eq!(part_bytes(&Geometry { value_bytes: 3, ..geometry }), 0);
    }
}
