//! What encrypts the bytes of a connection: one key each way, and records of at most 16 KiB.
//!
//! A record is the length of what follows in two little-endian bytes, the sealed bytes, and a tag
//! of 16 bytes, which covers the length, too. Its number is the nonce, and is nowhere said: a
//! record that is changed, left out, repeated or put elsewhere does not open, and the connection
//! ends. After [`RECORDS_PER_KEY`] records both ends go on to the next key of their chain.
//!
//! AES-256-GCM (RFC 5116) with keys of HKDF-SHA256 (RFC 5869); bound on records of one key:
//! RFC 8446 §5.5. Source: decision 0038.

use ring::aead::{self, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::hkdf::{self, Prk};
use rustix::io::Errno;

/// Most bytes in a record.
pub(super) const PLAIN_BYTES_MAX: usize = 16 << 10;
/// Bytes of the length before a record.
pub(super) const HEAD_BYTES: usize = 2;
/// Bytes of the tag behind it.
const TAG_BYTES: usize = 16;
/// Bytes of the longest record with all that goes with it.
pub(super) const RECORD_BYTES_MAX: usize = HEAD_BYTES + PLAIN_BYTES_MAX + TAG_BYTES;
/// Records under one key: below the 2^24.5 of full size that RFC 8446 §5.5 allows.
const RECORDS_PER_KEY: u64 = 1 << 23;

/// The keys of one connection, as one end of it has them.
pub struct Seal {
    pub(super) outgoing: Chain,
    pub(super) incoming: Chain,
}

impl Seal {
    /// Of what both ends and nobody else know: `shared` by an exchange of keys that goes with the
    /// connection, `salt` by the secret.
    pub(crate) fn new(salt: &[u8], shared: &[u8], is_initiator: bool) -> Self {
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(shared);
        let chain = |label: &[u8]| Chain::new(derive_chain(&root, label));
        let (initiator, target) = (chain(b"rackpool initiator"), chain(b"rackpool target"));
        let (outgoing, incoming) =
            if is_initiator { (initiator, target) } else { (target, initiator) };
        Self { outgoing, incoming }
    }
}

/// The keys of one direction, of which one is in use.
pub(super) struct Chain {
    root: Prk,
    key: LessSafeKey,
    /// Records sealed or opened by `key`.
    records: u64,
    records_per_key: u64,
}

impl Chain {
    fn new(root: Prk) -> Self {
        let key = derive_key(&root);
        Self { root, key, records: 0, records_per_key: RECORDS_PER_KEY }
    }

    /// The nonce of the next record.
    fn next(&mut self) -> Nonce {
        if self.records == self.records_per_key {
            self.root = derive_chain(&self.root, b"rackpool next");
            (self.key, self.records) = (derive_key(&self.root), 0);
        }
        let mut nonce = [0; aead::NONCE_LEN];
        nonce[..8].copy_from_slice(&self.records.to_le_bytes());
        self.records += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Makes a record of `record`, which holds room for the length and then the plain bytes.
    pub(super) fn seal(&mut self, out: &mut Vec<u8>, start: usize) {
        let body = out.len() - start - HEAD_BYTES;
        assert!((1..=PLAIN_BYTES_MAX).contains(&body), "a record of {body} bytes");
        let head = ((body + TAG_BYTES) as u16).to_le_bytes();
        out[start..start + HEAD_BYTES].copy_from_slice(&head);
        let (nonce, plain) = (self.next(), &mut out[start + HEAD_BYTES..]);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(head), plain);
        let tag: Tag = tag.expect("no record is too long");
        out.extend_from_slice(tag.as_ref());
    }

    /// Opens the record at the beginning of `bytes`, in its place. Answers how many bytes it took,
    /// of which the last 16 and the first 2 are not of it; `None` if it is not whole yet. Errors:
    /// `EBADMSG` if nobody with our key has sealed it, as the next one.
    pub(super) fn open(&mut self, bytes: &mut [u8]) -> Result<Option<Opened>, Errno> {
        let Some(head) = bytes.first_chunk::<HEAD_BYTES>().copied() else { return Ok(None) };
        let body = usize::from(u16::from_le_bytes(head));
        if !(TAG_BYTES + 1..=PLAIN_BYTES_MAX + TAG_BYTES).contains(&body) {
            return Err(Errno::BADMSG);
        }
        let Some(sealed) = bytes.get_mut(HEAD_BYTES..HEAD_BYTES + body) else { return Ok(None) };
        let nonce = self.next();
        let opened = self.key.open_in_place(nonce, Aad::from(head), sealed);
        let plain_bytes = opened.map_err(|_| Errno::BADMSG)?.len();
        Ok(Some(Opened { plain_bytes, record_bytes: HEAD_BYTES + body }))
    }
}

/// A record that was opened in its place, behind its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    /// Bytes that were sealed.
    pub plain_bytes: usize,
    /// Bytes of the whole record.
    pub record_bytes: usize,
}

fn derive_key(root: &Prk) -> LessSafeKey {
    let okm = root.expand(&[b"rackpool key"], &aead::AES_256_GCM);
    LessSafeKey::new(UnboundKey::from(okm.expect("a key is not too long")))
}

fn derive_chain(root: &Prk, label: &[u8]) -> Prk {
    let label = [label];
    let okm = root.expand(&label, hkdf::HKDF_SHA256);
    Prk::from(okm.expect("a digest is not too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (Seal, Seal) {
        (Seal::new(&[1; 32], &[2; 32], true), Seal::new(&[1; 32], &[2; 32], false))
    }

    fn record(chain: &mut Chain, plain: &[u8]) -> Vec<u8> {
        let mut out = vec![0; HEAD_BYTES];
        out.extend_from_slice(plain);
        chain.seal(&mut out, 0);
        out
    }

    #[test]
    fn what_one_end_seals_the_other_one_opens_and_nothing_of_it_is_seen_between() {
        let (mut one, mut other) = ends();
        for plain in [&b"x"[..], &[7; 1000], &[9; PLAIN_BYTES_MAX]] {
            let mut bytes = record(&mut one.outgoing, plain);
            assert_eq!(bytes.len(), HEAD_BYTES + plain.len() + TAG_BYTES);
            assert!(plain.len() == 1 || !bytes.windows(8).any(|part| part == &plain[..8]));
            let opened = other.incoming.open(&mut bytes).unwrap().unwrap();
            assert_eq!(opened.record_bytes, bytes.len());
            assert_eq!(&bytes[HEAD_BYTES..HEAD_BYTES + opened.plain_bytes], plain);
        }
    }

    #[test]
    fn the_two_directions_have_keys_of_their_own() {
        let (mut one, _) = ends();
        let mut bytes = record(&mut one.outgoing, b"to the other end");
        assert_eq!(one.incoming.open(&mut bytes), Err(Errno::BADMSG));
    }

    #[test]
    fn a_record_that_is_changed_repeated_left_out_or_of_other_keys_does_not_open() {
        for bit in 0..8 * (HEAD_BYTES + 5 + TAG_BYTES) {
            let (mut one, mut other) = ends();
            let mut bytes = record(&mut one.outgoing, b"bytes");
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(other.incoming.open(&mut bytes), Ok(Some(_))), "bit {bit}");
        }
        let (mut one, mut other) = ends();
        let first = record(&mut one.outgoing, b"first");
        let mut second = record(&mut one.outgoing, b"second");
        assert_eq!(other.incoming.open(&mut second), Err(Errno::BADMSG));
        let (_, mut other) = ends();
        assert!(other.incoming.open(&mut first.clone()).unwrap().is_some());
        assert_eq!(other.incoming.open(&mut first.clone()), Err(Errno::BADMSG));
        for (salt, shared) in [([1; 32], [3; 32]), ([3; 32], [2; 32])] {
            let mut stranger = Seal::new(&salt, &shared, false);
            assert_eq!(stranger.incoming.open(&mut first.clone()), Err(Errno::BADMSG));
        }
    }

    #[test]
    fn keys_are_changed_after_their_share_of_records_at_both_ends() {
        let (mut one, mut other) = ends();
        (one.outgoing.records_per_key, other.incoming.records_per_key) = (3, 3);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..12 {
            let mut bytes = record(&mut one.outgoing, b"the same bytes each time");
            assert!(seen.insert(bytes.clone()), "a nonce was used twice under a key");
            assert!(other.incoming.open(&mut bytes).unwrap().is_some());
        }
        let mut bytes = record(&mut one.outgoing, b"x");
        other.incoming.records_per_key = RECORDS_PER_KEY;
        assert_eq!(other.incoming.open(&mut bytes), Err(Errno::BADMSG), "it has the old key");
    }
}
