//! What encrypts the bytes of a connection: transport messages of Noise, one key each way.
//!
//! A record is the length of what follows in two little-endian bytes, then a transport message: the
//! encrypted bytes and a tag of 16. Its number is the nonce, and is nowhere said: a record that is
//! changed, cut, left out, repeated or put elsewhere does not open, and the connection ends. After
//! [`RECORDS_PER_KEY`] records both ends go on to the next key, by Noise's `REKEY`.
//!
//! The caller owns the memory; snow encrypts and decrypts in it. Source: Noise §4.2, §11.3;
//! decision 0038.

use rustix::io::Errno;
use snow::TransportState;

/// Bytes of the length before a record.
pub(super) const HEAD_BYTES: usize = 2;
/// Bytes of the tag behind it.
pub(super) const TAG_BYTES: usize = 16;
/// Most bytes in a record. Noise would allow 65,519; these stay in the first caches on both ends.
pub(super) const PLAIN_BYTES_MAX: usize = 16 << 10;
/// Bytes of the longest record with all that goes with it.
pub(super) const RECORD_BYTES_MAX: usize = HEAD_BYTES + PLAIN_BYTES_MAX + TAG_BYTES;
/// Records under one key, 16 GiB at most: below the 2^24.5 of 16 KiB that RFC 8446 §5.5 allows.
const RECORDS_PER_KEY: u64 = 1 << 20;

/// The keys of one connection, as one end of it has them.
pub struct RecordLayer {
    noise: Box<TransportState>,
    records_per_key: u64,
}

impl RecordLayer {
    pub(crate) fn new(noise: Box<TransportState>) -> Self {
        Self { noise, records_per_key: RECORDS_PER_KEY }
    }

    /// Makes a record of `plain`, 1 to [`PLAIN_BYTES_MAX`] bytes, at the beginning of `to`, which
    /// has room for it; how many bytes it has.
    pub(super) fn encrypt(&mut self, plain: &[u8], to: &mut [u8]) -> usize {
        assert!((1..=PLAIN_BYTES_MAX).contains(&plain.len()), "a record of {}", plain.len());
        let (head, body) = to.split_at_mut(HEAD_BYTES);
        let written = self.noise.write_message(plain, body);
        let bytes = written.expect("there is room, and nonces last for longer than connections");
        head.copy_from_slice(&(bytes as u16).to_le_bytes());
        if self.noise.sending_nonce().is_multiple_of(self.records_per_key) {
            self.noise.rekey_outgoing();
        }
        HEAD_BYTES + bytes
    }

    /// The bytes that are encrypted in the record at the beginning of `input`, if it is whole.
    /// Errors: `EBADMSG` if no record has this length.
    pub(super) fn next<'a>(&self, input: &'a [u8]) -> Result<Option<&'a [u8]>, Errno> {
        let Some(head) = input.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let bytes = usize::from(u16::from_le_bytes(*head));
        if !(TAG_BYTES + 1..=PLAIN_BYTES_MAX + TAG_BYTES).contains(&bytes) {
            return Err(Errno::BADMSG);
        }
        Ok(input.get(HEAD_BYTES..HEAD_BYTES + bytes))
    }

    /// Decrypts what [`RecordLayer::next`] found into `to`, which is at least as long: snow opens
    /// it there, tag and all. Answers how many bytes it holds. Errors: `EBADMSG` if the other end
    /// did not encrypt it, as the next one; `to` then holds zeros.
    pub(super) fn decrypt(&mut self, body: &[u8], to: &mut [u8]) -> Result<usize, Errno> {
        assert!(to.len() >= body.len(), "{} bytes do not fit into {}", body.len(), to.len());
        let Ok(bytes) = self.noise.read_message(body, to) else {
            to[..body.len()].fill(0);
            return Err(Errno::BADMSG);
        };
        if self.noise.receiving_nonce().is_multiple_of(self.records_per_key) {
            self.noise.rekey_incoming();
        }
        Ok(bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::handshake::{Handshake, Purpose};
    use crate::secret::Secret;

    /// The two ends of a new connection.
    pub(crate) fn ends() -> (RecordLayer, RecordLayer) {
        let secret = Secret::new(&[7; 32]).unwrap().encrypting(true);
        let (mut one, first) = Handshake::begin(&secret, Purpose::Fabric).unwrap();
        let mut other = Handshake::accept(Some(&secret), Purpose::Fabric).unwrap();
        let greeting = other.advance(&first).reply.unwrap();
        let proof = one.advance(&greeting).reply.unwrap();
        let proof = other.advance(&proof).reply.unwrap();
        one.advance(&proof);
        (one.into_records().unwrap(), other.into_records().unwrap())
    }

    fn record(layer: &mut RecordLayer, plain: &[u8]) -> Vec<u8> {
        let mut out = vec![0; RECORD_BYTES_MAX];
        let bytes = layer.encrypt(plain, &mut out);
        out.truncate(bytes);
        out
    }

    fn open(layer: &mut RecordLayer, record: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        let Some(body) = layer.next(record)? else { return Ok(None) };
        let mut plain = vec![0; PLAIN_BYTES_MAX + TAG_BYTES];
        let bytes = layer.decrypt(body, &mut plain)?;
        Ok(Some(plain[..bytes].to_vec()))
    }

    #[test]
    fn what_one_end_seals_the_other_one_opens_and_nothing_of_it_is_seen_between() {
        let (mut one, mut other) = ends();
        for plain in [&b"x"[..], &[7; 1000], &[9; PLAIN_BYTES_MAX]] {
            let bytes = record(&mut one, plain);
            assert_eq!(bytes.len(), HEAD_BYTES + plain.len() + TAG_BYTES);
            assert!(plain.len() == 1 || !bytes.windows(8).any(|part| part == &plain[..8]));
            assert_eq!(open(&mut other, &bytes), Ok(Some(plain.to_vec())));
        }
    }

    #[test]
    fn the_two_directions_have_keys_of_their_own() {
        let (mut one, _) = ends();
        let bytes = record(&mut one, b"to the other end");
        assert_eq!(open(&mut one, &bytes), Err(Errno::BADMSG));
    }

    #[test]
    fn a_record_that_is_changed_repeated_left_out_or_of_other_keys_does_not_open() {
        for bit in 0..8 * (HEAD_BYTES + 5 + TAG_BYTES) {
            let (mut one, mut other) = ends();
            let mut bytes = record(&mut one, b"bytes");
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(open(&mut other, &bytes), Ok(Some(_))), "bit {bit}");
        }
        let (mut one, mut other) = ends();
        let first = record(&mut one, b"first");
        let second = record(&mut one, b"second");
        assert_eq!(open(&mut other, &second), Err(Errno::BADMSG));
        assert!(open(&mut other, &first).unwrap().is_some());
        assert_eq!(open(&mut other, &first), Err(Errno::BADMSG));
        assert_eq!(open(&mut ends().1, &first), Err(Errno::BADMSG));
    }

    #[test]
    fn a_record_that_is_cut_is_waited_for_and_one_whose_length_is_changed_does_not_open() {
        let (mut one, mut other) = ends();
        let bytes = record(&mut one, &[3; 100]);
        for length in 0..bytes.len() {
            assert_eq!(open(&mut other, &bytes[..length]), Ok(None), "{length} bytes");
        }
        let body = 100 + TAG_BYTES;
        for length in [TAG_BYTES + 1, body - 1] {
            let shorter = [&(length as u16).to_le_bytes(), &bytes[HEAD_BYTES..]].concat();
            assert_eq!(open(&mut other, &shorter), Err(Errno::BADMSG), "{length} bytes");
        }
        for length in [0, TAG_BYTES, PLAIN_BYTES_MAX + TAG_BYTES + 1, usize::from(u16::MAX)] {
            let none = [&(length as u16).to_le_bytes(), &bytes[HEAD_BYTES..]].concat();
            assert_eq!(open(&mut other, &none), Err(Errno::BADMSG), "{length} bytes");
        }
        assert!(open(&mut other, &bytes).unwrap().is_some());
    }

    #[test]
    fn keys_are_changed_after_their_share_of_records_at_both_ends() {
        let (mut one, mut other) = ends();
        (one.records_per_key, other.records_per_key) = (3, 3);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..12 {
            let bytes = record(&mut one, b"the same bytes each time");
            assert!(seen.insert(bytes.clone()), "a nonce was used twice under a key");
            assert!(open(&mut other, &bytes).unwrap().is_some());
        }
        other.records_per_key = RECORDS_PER_KEY;
        // At most three more records, then the one end has a new key and the other one has not.
        let outcomes: Vec<_> = (0..4).map(|_| open(&mut other, &record(&mut one, b"x"))).collect();
        assert_eq!(outcomes.last(), Some(&Err(Errno::BADMSG)), "it has the old key");
    }
}
