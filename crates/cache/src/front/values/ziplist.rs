//! Ziplists: how Redis 2.6 to 6.2 packed a small hash. Ten bytes of total length, last element's
//! offset and number of elements, then the elements, each behind the length of the one before it,
//! then 0xff. Read only.

use super::listpack::text;
use super::reader::Reader;

const END: u8 = 0xff;
/// Stands before a length of four bytes.
const LONG_LENGTH: u8 = 0xfe;
/// Stands for a number of elements that does not fit.
const MANY: u16 = u16::MAX;

/// The elements as texts; `None` if it is no ziplist.
pub fn read(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut reader = Reader::new(bytes);
    let total = u32::from_le_bytes(reader.array()?);
    let last = u32::from_le_bytes(reader.array()?);
    let count = u16::from_le_bytes(reader.array()?);
    if total as usize != bytes.len() {
        return None;
    }
    let mut elements = Vec::new();
    // Where the last element starts, and how long it is.
    let (mut start, mut length) = (bytes.len() - reader.left(), 0);
    loop {
        let here = bytes.len() - reader.left();
        let before = match reader.byte()? {
            END => break,
            LONG_LENGTH => u32::from_le_bytes(reader.array()?),
            short => u32::from(short),
        };
        if before as usize != length {
            return None;
        }
        elements.push(element(&mut reader)?);
        (start, length) = (here, bytes.len() - reader.left() - here);
    }
    let is_whole = reader.left() == 0 && last as usize == start;
    let is_counted = count == MANY || usize::from(count) == elements.len();
    (is_whole && is_counted).then_some(elements)
}

fn element(reader: &mut Reader<'_>) -> Option<Vec<u8>> {
    let kind = reader.byte()?;
    let length = match kind {
        ..0x40 => usize::from(kind),
        0x40..0x80 => usize::from(kind & 0x3f) << 8 | usize::from(reader.byte()?),
        0x80 => u32::from_be_bytes(reader.array()?) as usize,
        0xc0 => return reader.number(2).map(text),
        0xd0 => return reader.number(4).map(text),
        0xe0 => return reader.number(8).map(text),
        0xf0 => return reader.number(3).map(text),
        0xfe => return reader.number(1).map(text),
        0xf1..=0xfd => return Some(text(i64::from(kind) - 0xf1)),
        _ => return None,
    };
    reader.take(length).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(bytes: &[u8]) -> Option<Vec<String>> {
        let text = |element: &Vec<u8>| String::from_utf8(element.clone()).unwrap();
        read(bytes).map(|elements| elements.iter().map(text).collect())
    }

    /// An element behind one of so many bytes.
    fn single(element: &[u8]) -> Vec<u8> {
        let mut bytes = (element.len() as u32 + 12).to_le_bytes().to_vec();
        bytes.extend([10, 0, 0, 0, 1, 0, 0]);
        bytes.extend_from_slice(element);
        bytes.push(END);
        bytes
    }

    #[test]
    fn elements_of_each_kind_are_read() {
        let three =
            b"\x19\0\0\0\x16\0\0\0\x06\0\0\xf1\x02\xf1\x02\xf2\x02\x02_1\x04\xf3\x02\xf3\xff";
        assert_eq!(texts(three).unwrap(), ["0", "0", "1", "_1", "2", "2"]);
        for (element, expected) in [
            (b"\xfe\x80".as_slice(), "-128"),
            (b"\xc0\x00\x80", "-32768"),
            (b"\xf0\x00\x00\x80", "-8388608"),
            (b"\xd0\xff\xff\xff\x7f", "2147483647"),
            (b"\xe0\x00\x00\x00\x00\x00\x00\x00\x80", "-9223372036854775808"),
            (b"\xfd", "12"),
            (b"\x02ab", "ab"),
            (b"\x40\x02ab", "ab"),
            (b"\x80\x00\x00\x00\x02ab", "ab"),
        ] {
            assert_eq!(texts(&single(element)).unwrap(), [expected], "{element:x?}");
        }
        let long = [b"\x41\x00".as_slice(), &[b'a'; 256]].concat();
        let mut bytes = [b"\0\0\0\0\x0d\x01\0\0\x02\0\0".as_slice(), &long].concat();
        bytes.extend_from_slice(b"\xfe\x03\x01\0\0\x01b\xff");
        let total = bytes.len() as u32;
        bytes[..4].copy_from_slice(&total.to_le_bytes());
        assert_eq!(texts(&bytes).unwrap()[1], "b");
    }

    #[test]
    fn what_is_no_ziplist_is_refused() {
        let good = single(b"\x02ab");
        for at in 0..good.len() {
            assert_eq!(read(&good[..at]), None);
        }
        for (at, byte) in [(0, 1), (4, 11), (8, 2), (10, 1), (11, 3), (11, 0xff), (14, 0)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(read(&bad), None, "{at} {byte}");
        }
    }
}
