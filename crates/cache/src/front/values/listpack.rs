//! Listpacks: how Redis 7 and later pack a small hash. Six bytes of total length and number of
//! elements, then the elements, each with its own length behind it, then 0xff. Whole numbers in
//! their decimal form are kept as integers.

use super::super::bytes::{push_i64, strict_i64};
use super::reader::Reader;

const HEADER_BYTES: usize = 6;
const END: u8 = 0xff;
/// Stands for a number of elements that does not fit.
const MANY: u16 = u16::MAX;

#[derive(Debug)]
pub struct Listpack {
    bytes: Vec<u8>,
    count: usize,
}

impl Listpack {
    pub fn new() -> Self {
        Self { bytes: vec![0; HEADER_BYTES], count: 0 }
    }

    pub fn push(&mut self, text: &[u8]) {
        if let Some(number) = strict_i64(text) {
            return self.push_number(number);
        }
        let start = self.bytes.len();
        match text.len() {
            length @ ..64 => self.bytes.push(0x80 | length as u8),
            length @ ..4096 => self.bytes.extend([0xe0 | (length >> 8) as u8, length as u8]),
            length => {
                self.bytes.push(0xf0);
                self.bytes.extend_from_slice(&(length as u32).to_le_bytes());
            }
        }
        self.bytes.extend_from_slice(text);
        self.end_element(start);
    }

    pub fn push_number(&mut self, number: i64) {
        let start = self.bytes.len();
        let bytes = number.to_le_bytes();
        if (0..128).contains(&number) {
            self.bytes.push(bytes[0]);
        } else if (-0x1000..0x1000).contains(&number) {
            self.bytes.extend([0xc0 | bytes[1] & 0x1f, bytes[0]]);
        } else {
            // Shortest of 16, 24, 32 and 64 bits.
            let bits = 65 - (number ^ (number >> 63)).leading_zeros();
            let (kind, count) = match bits {
                0..=16 => (0xf1, 2),
                17..=24 => (0xf2, 3),
                25..=32 => (0xf3, 4),
                _ => (0xf4, 8),
            };
            self.bytes.push(kind);
            self.bytes.extend_from_slice(&bytes[..count]);
        }
        self.end_element(start);
    }

    fn end_element(&mut self, start: usize) {
        let (length, count) = back_length(self.bytes.len() - start);
        self.bytes.extend_from_slice(&length[5 - count..]);
        self.count += 1;
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.push(END);
        let total = self.bytes.len() as u32;
        let count = u16::try_from(self.count).unwrap_or(MANY);
        self.bytes[..4].copy_from_slice(&total.to_le_bytes());
        self.bytes[4..HEADER_BYTES].copy_from_slice(&count.to_le_bytes());
        self.bytes
    }
}

/// An element's length as it stands behind it, to be read backwards: 7 bits a byte, all but the
/// first one marked. The last so many of five bytes.
fn back_length(length: usize) -> ([u8; 5], usize) {
    let mut bytes = [0; 5];
    let (mut rest, mut count) = (length, 0);
    loop {
        count += 1;
        bytes[5 - count] = (rest & 0x7f) as u8 | 0x80;
        rest >>= 7;
        if rest == 0 || count == 5 {
            break;
        }
    }
    bytes[5 - count] &= 0x7f;
    (bytes, count)
}

/// The elements of a listpack as texts; `None` if it is none.
pub fn read(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut reader = Reader::new(bytes);
    let total = u32::from_le_bytes(reader.array()?);
    let count = u16::from_le_bytes(reader.array()?);
    if total as usize != bytes.len() {
        return None;
    }
    let mut elements = Vec::new();
    loop {
        let before = reader.left();
        let kind = reader.byte()?;
        if kind == END {
            break;
        }
        elements.push(element(kind, &mut reader)?);
        let (length, count) = back_length(before - reader.left());
        if reader.take(count)? != &length[5 - count..] {
            return None;
        }
    }
    let is_whole = reader.left() == 0;
    let is_counted = count == MANY || usize::from(count) == elements.len();
    (is_whole && is_counted).then_some(elements)
}

fn element(kind: u8, reader: &mut Reader<'_>) -> Option<Vec<u8>> {
    let length = match kind {
        ..0x80 => return Some(text(i64::from(kind))),
        0x80..0xc0 => usize::from(kind & 0x3f),
        0xc0..0xe0 => {
            // 13 bits with a sign.
            let high = i16::from_be_bytes([kind << 3, 0]) >> 3;
            return Some(text(i64::from(high | i16::from(reader.byte()?))));
        }
        0xe0..0xf0 => usize::from(kind & 0x0f) << 8 | usize::from(reader.byte()?),
        0xf0 => u32::from_le_bytes(reader.array()?) as usize,
        0xf1 => return reader.number(2).map(text),
        0xf2 => return reader.number(3).map(text),
        0xf3 => return reader.number(4).map(text),
        0xf4 => return reader.number(8).map(text),
        _ => return None,
    };
    reader.take(length).map(<[u8]>::to_vec)
}

/// A number in its decimal form.
pub fn text(number: i64) -> Vec<u8> {
    let mut text = Vec::new();
    push_i64(&mut text, number);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(texts: &[&[u8]]) -> Vec<u8> {
        let mut listpack = Listpack::new();
        texts.iter().for_each(|text| listpack.push(text));
        listpack.finish()
    }

    #[test]
    fn elements_are_as_redis_packs_them() {
        assert_eq!(packed(&[]), b"\x07\0\0\0\0\0\xff");
        assert_eq!(packed(&[b"f1", b"v1"]), b"\x0f\0\0\0\x02\0\x82f1\x03\x82v1\x03\xff");
        for (number, expected) in [
            (0i64, b"\x00\x01".as_slice()),
            (127, b"\x7f\x01"),
            (128, b"\xc0\x80\x02"),
            (-1, b"\xdf\xff\x02"),
            (-4096, b"\xd0\x00\x02"),
            (4096, b"\xf1\x00\x10\x03"),
            (-32768, b"\xf1\x00\x80\x03"),
            (32768, b"\xf2\x00\x80\x00\x04"),
            (1 << 23, b"\xf3\x00\x00\x80\x00\x05"),
            (1 << 31, b"\xf4\x00\x00\x00\x80\x00\x00\x00\x00\x09"),
        ] {
            let text = number.to_string();
            let bytes = packed(&[text.as_bytes()]);
            assert_eq!(&bytes[HEADER_BYTES..bytes.len() - 1], expected, "{number}");
        }
        let long = packed(&[&[b'x'; 200]]);
        assert_eq!(&long[6..8], b"\xe0\xc8");
        assert_eq!(&long[208..], b"\x01\xca\xff");
    }

    #[test]
    fn what_is_no_listpack_is_refused() {
        let good = packed(&[b"ab", b"7"]);
        for at in 0..good.len() {
            assert_eq!(read(&good[..at]), None);
        }
        for (at, byte) in [(0, 9), (4, 3), (6, 0x83), (6, 0xf5), (9, 4), (12, 0)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(read(&bad), None, "{at} {byte}");
        }
        assert_eq!(read(b"\x0b\0\0\0\x01\0\xf0\xff\xff\xff\xff"), None);
        assert_eq!(read(b"\x08\0\0\0\0\0\xff\xff"), None);
    }

    proptest! {
        #[test]
        fn what_is_packed_is_read_back(
            texts in proptest::collection::vec("[a-z]{0,70}|-?[0-9]{1,20}|[ab]{4000,4200}", 0..20),
            numbers in proptest::collection::vec(any::<i64>(), 0..20),
            shift in 0u32..64,
        ) {
            let mut listpack = Listpack::new();
            texts.iter().for_each(|text| listpack.push(text.as_bytes()));
            numbers.iter().for_each(|number| listpack.push_number(number >> shift));
            let expected: Vec<Vec<u8>> = texts
                .iter()
                .cloned()
                .chain(numbers.iter().map(|number| (number >> shift).to_string()))
                .map(String::into_bytes)
                .collect();
            prop_assert_eq!(read(&listpack.finish()), Some(expected));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut framed = (bytes.len() as u32 + 7).to_le_bytes().to_vec();
            framed.extend([0xff, 0xff]);
            framed.extend(bytes);
            framed.push(END);
            let _ = read(&framed);
        }
    }
}
