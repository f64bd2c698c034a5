//! `DUMP` and `RESTORE`, also those of `FUNCTION`: a value as Redis keeps it in its RDB files, then the version of that
//! format and a checksum. Written is the oldest version that has what is in the value, so that as
//! many servers as possible read it: 10 (Redis 7.0, all of Valkey), 12 (Redis 7.4) for hashes with
//! fields that expire. Strings are whole numbers, shortened by LZF, or as they are; hashes of up to
//! 512 fields of up to 64 bytes are packed, as Redis does by default.

use std::borrow::Cow;

use super::super::bytes::strict_i64;
use super::crc64::checksum;
use super::listpack::{self, Listpack, text};
use super::reader::Reader;
use super::{ValueError, lzf, ziplist};

/// A field of a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashField<B> {
    pub name: B,
    pub value: B,
    /// When it expires by the wall clock, milliseconds.
    pub expires_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restored {
    String(Vec<u8>),
    /// Not empty, and each name once. What is over is there as well.
    Hash(Vec<HashField<Vec<u8>>>),
}

const TYPE_STRING: u8 = 0;
const TYPE_HASH: u8 = 4;
const TYPE_HASH_ZIPLIST: u8 = 13;
const TYPE_HASH_LISTPACK: u8 = 16;
const TYPE_HASH_EXPIRING: u8 = 24;
const TYPE_HASH_LISTPACK_EXPIRING: u8 = 25;

/// Stands before the text of a library of functions.
const LIBRARY: u8 = 0xf5;

const VERSION: u16 = 10;
const VERSION_EXPIRING: u16 = 12;
/// The last version that is known to have nothing new for strings and hashes: Redis 8.8.
const VERSION_MAX: u16 = 14;
/// Versions of Valkey's own, of which those types that are read here are the same.
const VERSIONS_VALKEY: [u16; 2] = [80, 81];
const VERSION_BYTES: usize = 2;
const FOOTER_BYTES: usize = 10;

const ENCODED_INT8: u8 = 0;
const ENCODED_INT16: u8 = 1;
const ENCODED_INT32: u8 = 2;
const ENCODED_LZF: u8 = 3;

/// Longer texts are not tried as numbers: none of 32 bits has more digits.
const NUMBER_BYTES_MAX: usize = 11;
/// Texts of up to this length are not shortened …
const PLAIN_BYTES_MAX: usize = 20;
/// … nor where it saves less.
const SAVED_BYTES_MIN: usize = 4;
const PACKED_FIELDS_MAX: usize = 512;
const PACKED_BYTES_MAX: usize = 64;
/// The last point in time at which a field may expire.
const EXPIRES_MS_MAX: u64 = (1 << 48) - 1;

pub fn dump_string(value: &[u8]) -> Vec<u8> {
    let mut out = vec![TYPE_STRING];
    push_string(&mut out, value);
    finish(out, VERSION)
}

/// The payload of libraries of functions with these texts.
pub fn dump_libraries<'b>(texts: impl Iterator<Item = &'b [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for text in texts {
        out.push(LIBRARY);
        push_string(&mut out, text);
    }
    finish(out, VERSION)
}

/// The payload of a hash, which has a field.
pub fn dump_hash<B: AsRef<[u8]>>(fields: &[HashField<B>]) -> Vec<u8> {
    let expires = fields.iter().filter_map(|field| field.expires_ms);
    let first_expires = expires.min();
    let is_short = |bytes: &B| bytes.as_ref().len() <= PACKED_BYTES_MAX;
    let is_packed = fields.len() <= PACKED_FIELDS_MAX
        && fields.iter().all(|field| is_short(&field.name) && is_short(&field.value));
    let kind = match (is_packed, first_expires) {
        (true, None) => TYPE_HASH_LISTPACK,
        (true, Some(_)) => TYPE_HASH_LISTPACK_EXPIRING,
        (false, None) => TYPE_HASH,
        (false, Some(_)) => TYPE_HASH_EXPIRING,
    };
    let mut out = vec![kind];
    if let Some(first_expires) = first_expires {
        out.extend_from_slice(&first_expires.to_le_bytes());
    }
    if is_packed {
        push_string(&mut out, &packed(fields, first_expires.is_some()));
    } else {
        push_length(&mut out, fields.len() as u64);
        for field in fields {
            if let Some(first_expires) = first_expires {
                // 0: never.
                let expires = field.expires_ms.map_or(0, |expires| expires - first_expires + 1);
                push_length(&mut out, expires);
            }
            push_string(&mut out, field.name.as_ref());
            push_string(&mut out, field.value.as_ref());
        }
    }
    finish(out, if first_expires.is_some() { VERSION_EXPIRING } else { VERSION })
}

/// What expires first comes first, what never does last, as Redis wants it.
fn packed<B: AsRef<[u8]>>(fields: &[HashField<B>], is_expiring: bool) -> Vec<u8> {
    let mut sorted: Vec<&HashField<B>> = fields.iter().collect();
    sorted.sort_by_key(|field| field.expires_ms.unwrap_or(u64::MAX));
    let mut listpack = Listpack::new();
    for field in sorted {
        listpack.push(field.name.as_ref());
        listpack.push(field.value.as_ref());
        if is_expiring {
            listpack.push_number(field.expires_ms.unwrap_or(0) as i64);
        }
    }
    listpack.finish()
}

fn finish(mut out: Vec<u8>, version: u16) -> Vec<u8> {
    out.extend_from_slice(&version.to_le_bytes());
    let sum = checksum(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

fn push_length(out: &mut Vec<u8>, length: u64) {
    match length {
        0..=0x3f => out.push(length as u8),
        0x40..=0x3fff => out.extend([0x40 | (length >> 8) as u8, length as u8]),
        0x4000..=0xffff_ffff => {
            out.push(0x80);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
        _ => {
            out.push(0x81);
            out.extend_from_slice(&length.to_be_bytes());
        }
    }
}

fn push_string(out: &mut Vec<u8>, value: &[u8]) {
    let number = Some(value).filter(|value| value.len() <= NUMBER_BYTES_MAX).and_then(strict_i64);
    if let Some(number) = number.and_then(|number| i32::try_from(number).ok()) {
        let bytes = number.to_le_bytes();
        let (kind, count) = match number {
            -0x80..=0x7f => (ENCODED_INT8, 1),
            -0x8000..=0x7fff => (ENCODED_INT16, 2),
            _ => (ENCODED_INT32, 4),
        };
        out.push(0xc0 | kind);
        out.extend_from_slice(&bytes[..count]);
        return;
    }
    let short = (value.len() > PLAIN_BYTES_MAX)
        .then(|| lzf::compress(value, value.len() - SAVED_BYTES_MIN))
        .flatten();
    if let Some(short) = &short {
        out.push(0xc0 | ENCODED_LZF);
        push_length(out, short.len() as u64);
    }
    push_length(out, value.len() as u64);
    out.extend_from_slice(short.as_deref().unwrap_or(value));
}

/// What a payload holds before its footer, if it is whole.
fn checked(payload: &[u8]) -> Result<&[u8], ValueError> {
    let split = payload.len().checked_sub(FOOTER_BYTES).ok_or(ValueError::DumpChecksum)?;
    let (object, footer) = payload.split_at(split);
    let (version, sum) = footer.split_at(VERSION_BYTES);
    let version = u16::from_le_bytes([version[0], version[1]]);
    let is_known = version <= VERSION_MAX || VERSIONS_VALKEY.contains(&version);
    let is_whole = sum == checksum(&payload[..split + VERSION_BYTES]).to_le_bytes();
    if !is_known || !is_whole {
        return Err(ValueError::DumpChecksum);
    }
    Ok(object)
}

/// Reads a payload. `bytes_max`: longest value, which also no shortened text may exceed.
pub fn restore(payload: &[u8], bytes_max: u64) -> Result<Restored, ValueError> {
    let mut reader = Reader::new(checked(payload)?);
    let restored = match reader.byte() {
        Some(TYPE_STRING) => reader.string(bytes_max).map(Cow::into_owned).map(Restored::String),
        Some(kind) => reader.hash(kind, bytes_max).map(Restored::Hash),
        None => None,
    };
    restored.ok_or(ValueError::DumpFormat)
}

/// The texts of the libraries in a payload, of up to so many bytes together.
pub fn restore_libraries(payload: &[u8], bytes_max: u64) -> Result<Vec<Vec<u8>>, ValueError> {
    let mut reader = Reader::new(checked(payload)?);
    let (mut texts, mut left) = (Vec::new(), bytes_max);
    while let Some(kind) = reader.byte() {
        if kind != LIBRARY {
            return Err(ValueError::NoLibrary);
        }
        let text = reader.string(left).ok_or(ValueError::BadLibrary)?;
        left = left.checked_sub(text.len() as u64).ok_or(ValueError::BadLibrary)?;
        texts.push(text.into_owned());
    }
    Ok(texts)
}

impl<'b> Reader<'b> {
    /// A length, or of what kind the text is that follows.
    fn length_or_kind(&mut self) -> Option<Result<u64, u8>> {
        let first = self.byte()?;
        Some(match first {
            ..0x40 => Ok(u64::from(first)),
            0x40..0x80 => Ok(u64::from(first & 0x3f) << 8 | u64::from(self.byte()?)),
            0x80 => Ok(u64::from(u32::from_be_bytes(self.array()?))),
            0x81 => Ok(u64::from_be_bytes(self.array()?)),
            0xc0.. => Err(first & 0x3f),
            _ => return None,
        })
    }

    fn length(&mut self) -> Option<u64> {
        self.length_or_kind()?.ok()
    }

    fn string(&mut self, bytes_max: u64) -> Option<Cow<'b, [u8]>> {
        let decimal = |number: Option<i64>| -> Option<Cow<'b, [u8]>> {
            number.map(|number| Cow::Owned(text(number)))
        };
        match self.length_or_kind()? {
            Ok(length) => self.take(usize::try_from(length).ok()?).map(Cow::Borrowed),
            Err(ENCODED_INT8) => decimal(self.number(1)),
            Err(ENCODED_INT16) => decimal(self.number(2)),
            Err(ENCODED_INT32) => decimal(self.number(4)),
            Err(ENCODED_LZF) => {
                let short = self.length()?;
                let length = self.length().filter(|length| *length <= bytes_max)?;
                let short = self.take(usize::try_from(short).ok()?)?;
                lzf::decompress(short, usize::try_from(length).ok()?).map(Cow::Owned)
            }
            Err(_) => None,
        }
    }

    fn hash(&mut self, kind: u8, bytes_max: u64) -> Option<Vec<HashField<Vec<u8>>>> {
        let is_expiring = matches!(kind, TYPE_HASH_EXPIRING | TYPE_HASH_LISTPACK_EXPIRING);
        let first_expires =
            if is_expiring { Some(u64::from_le_bytes(self.array()?)) } else { None };
        let fields = match kind {
            TYPE_HASH | TYPE_HASH_EXPIRING => self.fields(first_expires, bytes_max)?,
            TYPE_HASH_ZIPLIST => tuples(ziplist::read(&self.string(bytes_max)?)?, false)?,
            TYPE_HASH_LISTPACK | TYPE_HASH_LISTPACK_EXPIRING => {
                tuples(listpack::read(&self.string(bytes_max)?)?, is_expiring)?
            }
            _ => return None,
        };
        let mut names: Vec<&[u8]> = fields.iter().map(|field| field.name.as_slice()).collect();
        names.sort_unstable();
        let is_twice = names.windows(2).any(|pair| pair[0] == pair[1]);
        let is_late = fields.iter().any(|field| field.expires_ms > Some(EXPIRES_MS_MAX));
        (!fields.is_empty() && !is_twice && !is_late).then_some(fields)
    }

    /// Fields one by one, with their expiry if one is given, which they count from.
    fn fields(
        &mut self,
        first_expires: Option<u64>,
        bytes_max: u64,
    ) -> Option<Vec<HashField<Vec<u8>>>> {
        let mut fields = Vec::new();
        for _ in 0..self.length()? {
            let expires_ms = match first_expires {
                Some(first) => match self.length()? {
                    0 => None,
                    after => Some(first.checked_add(after - 1)?),
                },
                None => None,
            };
            let name = self.string(bytes_max)?.into_owned();
            let value = self.string(bytes_max)?.into_owned();
            fields.push(HashField { name, value, expires_ms });
        }
        Some(fields)
    }
}

/// Fields of elements that lie behind each other: name, value and, if they have one, expiry.
fn tuples(elements: Vec<Vec<u8>>, is_expiring: bool) -> Option<Vec<HashField<Vec<u8>>>> {
    let mut fields = Vec::new();
    let mut elements = elements.into_iter();
    while let Some(name) = elements.next() {
        let value = elements.next()?;
        let expires = if is_expiring { strict_i64(&elements.next()?)? } else { 0 };
        let expires_ms = Some(u64::try_from(expires).ok()?).filter(|expires| *expires > 0);
        fields.push(HashField { name, value, expires_ms });
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option::of;
    use proptest::prelude::*;

    const MAX: u64 = 512 << 20;

    fn field(name: &str, value: &str, expires_ms: Option<u64>) -> HashField<Vec<u8>> {
        HashField { name: name.into(), value: value.into(), expires_ms }
    }

    fn string(text: &[u8]) -> Result<Restored, ValueError> {
        Ok(Restored::String(text.to_vec()))
    }

    /// The object of a payload with this footer's version.
    fn restored(object: &[u8], version: u16) -> Result<Restored, ValueError> {
        restore(&finish(object.to_vec(), version), MAX)
    }

    #[test]
    fn strings_are_dumped_as_redis_dumps_them() {
        assert_eq!(dump_string(b"10"), b"\x00\xc0\n\n\x00n\x9fWE\x0e\xaec\xbb");
        let object = |text: &[u8]| {
            let dump = dump_string(text);
            dump[1..dump.len() - FOOTER_BYTES].to_vec()
        };
        assert_eq!(object(b""), b"\0");
        assert_eq!(object(b"-128"), b"\xc0\x80");
        assert_eq!(object(b"128"), b"\xc1\x80\0");
        assert_eq!(object(b"-32769"), b"\xc2\xff\x7f\xff\xff");
        assert_eq!(object(b"-2147483648"), b"\xc2\0\0\0\x80");
        assert_eq!(object(b"2147483648"), b"\x0a2147483648");
        assert_eq!(object(b"007"), b"\x03007");
        assert_eq!(object(&[b'a'; 20])[..2], *b"\x14a");
        assert_eq!(object(&[b'a'; 21]), b"\xc3\x05\x15\0a\xe0\x0b\0");
        let long = |count| -> Vec<u8> {
            (0..count).map(|at: u32| (at.wrapping_mul(at) >> 5) as u8).collect()
        };
        assert_eq!(object(b"abcdefghijklmnopqrstuvwxyz")[0], 26);
        assert_eq!(restore(&dump_string(&long(70_000)), MAX), string(&long(70_000)));
    }

    #[test]
    fn dumps_of_other_versions_are_restored() {
        let redis_2_6 = b"\x00\x05redis\x06\x00S\xbd\xc1q\x17z\x81\xb2";
        assert_eq!(restore(redis_2_6, MAX), string(b"redis"));
        let redis_2_6 = b"\x00\x15hello, dumping world!\x06\x00E\xa0Z\x82\xd8r\xc1\xde";
        assert_eq!(restore(redis_2_6, MAX), string(b"hello, dumping world!"));
        assert_eq!(restored(b"\0\x01a", 14), string(b"a"));
        assert_eq!(restored(b"\0\x01a", 80), string(b"a"));
        let ziplist = b"\x0d\x19\x19\0\0\0\x16\0\0\0\x06\0\0\xf1\x02\xf1\x02\xf2\x02\x02_1\x04\xf3\
            \x02\xf3\xff";
        let fields = vec![field("0", "0", None), field("1", "_1", None), field("2", "2", None)];
        assert_eq!(restored(ziplist, 9), Ok(Restored::Hash(fields)));
        assert_eq!(restored(b"\x04\x01\x01a\xc0\x07", 1), {
            Ok(Restored::Hash(vec![field("a", "7", None)]))
        });
    }

    #[test]
    fn hashes_are_dumped_as_redis_dumps_them() {
        let two = [field("f2", "v2", None), field("f1", "1", None)];
        let object = b"\x10\x15\x15\0\0\0\x04\0\x82f2\x03\x82v2\x03\x82f1\x03\x01\x01\xff";
        assert_eq!(dump_hash(&two), finish(object.to_vec(), VERSION));

        let two = [field("f2", "v2", None), field("f1", "1", Some(1000))];
        let dump = dump_hash(&two);
        assert_eq!(dump[..9], *b"\x19\xe8\x03\0\0\0\0\0\0");
        assert_eq!(dump[dump.len() - FOOTER_BYTES], 12);
        let sorted = vec![two[1].clone(), two[0].clone()];
        assert_eq!(restore(&dump, MAX), Ok(Restored::Hash(sorted)));

        let long = "x".repeat(65);
        let plain = [field("f", &long, Some(7)), field("g", "1", None), field("h", "", Some(9))];
        let dump = dump_hash(&plain);
        assert_eq!(dump[..12], *b"\x18\x07\0\0\0\0\0\0\0\x03\x01\x01");
        assert_eq!(restore(&dump, MAX), Ok(Restored::Hash(plain.to_vec())));
        let plain = [field("f", &long, None)];
        assert_eq!(dump_hash(&plain)[..4], *b"\x04\x01\x01f");
        assert_eq!(restore(&dump_hash(&plain), MAX), Ok(Restored::Hash(plain.to_vec())));
    }

    #[test]
    fn what_is_no_payload_is_refused() {
        let good = dump_string(b"good");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(restore(&bad, MAX), Err(ValueError::DumpChecksum), "{at}");
            assert_eq!(restore(&good[..at], MAX), Err(ValueError::DumpChecksum), "{at}");
        }
        assert_eq!(restored(b"\0\x01a", 15), Err(ValueError::DumpChecksum));
        assert_eq!(restored(b"\0\x01a", 79), Err(ValueError::DumpChecksum));
        for bad in [
            b"".as_slice(),
            // A list; a text that ends too early; lengths and kinds of text that there are not.
            b"\x01\x01\x01a",
            b"\0\x02a",
            b"\0\x82\x01a",
            b"\0\xc4\x01a",
            // A shortened text that is another one's, and one that would be too long.
            b"\0\xc3\x02\x03\0a",
            b"\0\xc3\x02\x81\xff\xff\xff\xff\xff\xff\xff\xff\0a",
            // No fields, fewer than are announced, one twice, one without a value.
            b"\x04\0",
            b"\x04\x02\x01a\x01b",
            b"\x04\x02\x01a\x01b\x01a\x01d",
            b"\x10\x17\x17\0\0\0\x04\0\x82a\0\x03\x82b\0\x03\x82a\0\x03\x82d\0\x03\xff",
            b"\x10\x09\x09\0\0\0\x01\0\x01\x01\xff",
            b"\x10\x07\x07\0\0\0\0\0\xff",
            // Expiries that are no number or too late.
            b"\x19\x01\0\0\0\0\0\0\0\x0e\x0e\0\0\0\x03\0\x01\x01\x02\x01\x81a\x02\xff",
            b"\x18\0\0\0\0\0\0\x01\0\x01\x01\x01a\x01b",
        ] {
            assert_eq!(restored(bad, 12), Err(ValueError::DumpFormat), "{bad:x?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_dumped_is_restored(
            text in vec(any::<u8>(), 0..300),
            number: i64,
            fields in vec(("[a-z]{0,4}", "[a-z0-9]{0,70}", of(1u64..1 << 47)), 1..9),
        ) {
            prop_assert_eq!(restore(&dump_string(&text), MAX), string(&text));
            let number = number.to_string();
            let number = number.as_bytes();
            prop_assert_eq!(restore(&dump_string(number), MAX), string(number));
            let mut fields: Vec<_> =
                fields.iter().map(|(name, value, expires)| field(name, value, *expires)).collect();
            fields.sort_by(|a, b| a.name.cmp(&b.name));
            fields.dedup_by(|a, b| a.name == b.name);
            let Ok(Restored::Hash(mut restored)) = restore(&dump_hash(&fields), MAX) else {
                return Err(TestCaseError::fail("no hash"));
            };
            restored.sort_by(|a, b| a.name.cmp(&b.name));
            prop_assert_eq!(restored, fields);
        }

        #[test]
        fn no_bytes_make_the_reader_panic(
            kind in prop_oneof![Just(0u8), Just(4), Just(13), Just(16), Just(24), Just(25)],
            bytes in vec(any::<u8>(), 0..60),
        ) {
            let _ = restored(&[std::slice::from_ref(&kind), &bytes].concat(), VERSION);
        }
    }

    #[test]
    fn libraries_come_back_and_other_payloads_are_refused() {
        let texts = [&b"#!lua name=a\n"[..], &[b'x'; 1000]];
        let dump = dump_libraries(texts.into_iter());
        assert_eq!(restore_libraries(&dump, 1013).unwrap(), texts);
        assert_eq!(restore_libraries(&dump, 1012), Err(ValueError::BadLibrary));
        assert_eq!(restore_libraries(&dump[1..], MAX), Err(ValueError::DumpChecksum));
        for (object, error) in [
            (vec![TYPE_STRING, 1, b'a'], ValueError::NoLibrary),
            (vec![LIBRARY, 5, b'a'], ValueError::BadLibrary),
            (vec![LIBRARY], ValueError::BadLibrary),
        ] {
            assert_eq!(restore_libraries(&finish(object, VERSION), MAX), Err(error));
        }
        assert_eq!(restore_libraries(&finish(vec![], VERSION), MAX).unwrap().len(), 0);
    }
}
