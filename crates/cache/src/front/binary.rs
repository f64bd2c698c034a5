//! memcached's binary protocol as data: 24 bytes of header, extras, key, value, all numbers big
//! endian. In: bytes. Out: a request with slices of them, or how many bytes there must be. The
//! value of a storage request follows its key and is not part of it. Executes nothing.
//!
//! Source: memcached's binary protocol description; which headers are refused, and how, as 1.6.18.

pub const HEADER_BYTES: usize = 24;
pub const MAGIC_REQUEST: u8 = 0x80;
pub const MAGIC_RESPONSE: u8 = 0x81;

#[derive(Debug, PartialEq, Eq)]
pub enum ParsedBinary<'a> {
    /// So many bytes must be there at least.
    Need(usize),
    /// A request with `used` bytes of header, extras and key; its value follows.
    Request { used: usize, request: BinaryRequest<'a> },
    /// Not a request: the connection ends.
    Magic,
}

/// A request without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BinaryRequest<'a> {
    pub opcode: u8,
    /// Extras, up to 255 bytes.
    pub extras: &'a [u8],
    /// Key, up to 64 KiB here.
    pub key: &'a [u8],
    /// Bytes of the value, which follows.
    pub value_bytes: u32,
    /// Given back as it is.
    pub opaque: u32,
    /// The version that must be there; 0 for any.
    pub cas: u64,
    /// The header contradicts itself: refuse and end.
    pub broken: bool,
}

impl BinaryRequest<'_> {
    /// Four bytes of the extras as a number; 0 where they end.
    pub fn extra32(&self, offset: usize) -> u32 {
        self.extras
            .get(offset..offset + 4)
            .map_or(0, |bytes| u32::from_be_bytes(bytes.try_into().expect("four bytes")))
    }

    /// Eight bytes of the extras as a number; 0 where they end.
    pub fn extra64(&self, offset: usize) -> u64 {
        u64::from(self.extra32(offset)) << 32 | u64::from(self.extra32(offset + 4))
    }
}

pub fn parse(input: &[u8]) -> ParsedBinary<'_> {
    if input.first().is_some_and(|magic| *magic != MAGIC_REQUEST) {
        return ParsedBinary::Magic;
    }
    let Some(header) = input.first_chunk::<HEADER_BYTES>() else {
        return ParsedBinary::Need(HEADER_BYTES);
    };
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|index| header[at + index]));
    let key_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let extras_bytes = usize::from(header[4]);
    let body_bytes = word(8);
    let before_value = key_bytes + extras_bytes;
    let used = HEADER_BYTES + before_value;
    let Some(body) = input.get(HEADER_BYTES..used) else {
        return ParsedBinary::Need(used);
    };
    let (extras, key) = body.split_at(extras_bytes);
    let value_bytes = body_bytes.checked_sub(before_value as u32);
    let request = BinaryRequest {
        opcode: header[1],
        extras,
        key,
        value_bytes: value_bytes.unwrap_or(0),
        opaque: word(12),
        cas: u64::from(word(16)) << 32 | u64::from(word(20)),
        broken: value_bytes.is_none(),
    };
    ParsedBinary::Request { used, request }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    Success = 0,
    NotFound = 1,
    /// It is there, or has another version.
    Exists = 2,
    TooLarge = 3,
    Invalid = 4,
    NotStored = 5,
    BadDelta = 6,
    AuthError = 0x20,
    UnknownCommand = 0x81,
    OutOfMemory = 0x82,
}

impl Status {
    pub fn text(self) -> &'static [u8] {
        match self {
            Status::Success => b"",
            Status::NotFound => b"Not found",
            Status::Exists => b"Data exists for key.",
            Status::TooLarge => b"Too large.",
            Status::Invalid => b"Invalid arguments",
            Status::NotStored => b"Not stored.",
            Status::BadDelta => b"Non-numeric server-side value for incr or decr",
            Status::AuthError => b"Auth failure.",
            Status::UnknownCommand => b"Unknown command",
            Status::OutOfMemory => b"Out of memory",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct BinaryReply {
    pub opcode: u8,
    pub opaque: u32,
    pub status: Status,
    pub extras_bytes: u8,
    pub key_bytes: u16,
    /// Bytes of extras, key and value.
    pub body_bytes: u32,
    /// The item's version, or 0.
    pub cas: u64,
}

impl BinaryReply {
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = MAGIC_RESPONSE;
        bytes[1] = self.opcode;
        bytes[2..4].copy_from_slice(&self.key_bytes.to_be_bytes());
        bytes[4] = self.extras_bytes;
        bytes[6..8].copy_from_slice(&(self.status as u16).to_be_bytes());
        bytes[8..12].copy_from_slice(&self.body_bytes.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.opaque.to_be_bytes());
        bytes[16..].copy_from_slice(&self.cas.to_be_bytes());
        bytes
    }
}

/// What an answer says behind its head.
#[derive(Clone, Copy, Default)]
pub struct ReplyBody<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(opcode: u8, extras: &[u8], key: &[u8], body: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        (bytes[0], bytes[1], bytes[4]) = (MAGIC_REQUEST, opcode, extras.len() as u8);
        bytes[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
        bytes[8..12].copy_from_slice(&body.to_be_bytes());
        bytes.extend_from_slice(extras);
        bytes.extend_from_slice(key);
        bytes
    }

    #[test]
    fn a_request_is_taken_apart() {
        let bytes = request(1, &[0, 0, 0, 7, 0, 0, 1, 0], b"key", 8 + 3 + 10);
        let ParsedBinary::Request { used, request } = parse(&bytes) else { panic!() };
        assert_eq!((used, request.key, request.value_bytes), (bytes.len(), &b"key"[..], 10));
        assert_eq!((request.extra32(0), request.extra32(4), request.extra64(0)), {
            (7, 256, 7 << 32 | 256)
        });
        assert_eq!(request.extra32(8), 0);
    }

    #[test]
    fn a_body_that_is_shorter_than_its_key_is_broken() {
        let bytes = request(0, b"", b"key", 2);
        let ParsedBinary::Request { request, .. } = parse(&bytes) else { panic!() };
        assert!(request.broken);
        assert_eq!(parse(b"x"), ParsedBinary::Magic);
    }

    proptest! {
        #[test]
        fn a_request_is_the_same_however_it_arrives(
            opcode: u8,
            extras in proptest::collection::vec(any::<u8>(), 0..30),
            key in proptest::collection::vec(any::<u8>(), 0..60),
            body in 0u32..200,
        ) {
            let bytes = request(opcode, &extras, &key, body);
            for split in 0..bytes.len() {
                let ParsedBinary::Need(need) = parse(&bytes[..split]) else { panic!("{split}") };
                prop_assert!(need > split && need <= bytes.len());
            }
            let ParsedBinary::Request { used, .. } = parse(&bytes) else { panic!() };
            prop_assert_eq!(used, bytes.len());
        }

        #[test]
        fn any_bytes_are_answered(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let is_other = bytes.first().is_some_and(|first| *first != MAGIC_REQUEST);
            prop_assert_eq!(parse(&bytes) == ParsedBinary::Magic, is_other);
            if let Some(first) = bytes.first_mut() {
                *first = MAGIC_REQUEST;
            }
            // Mostly longer than what is there; so are keys here that fit.
            if bytes.len() > 3 {
                (bytes[2], bytes[3]) = (0, bytes[3] % 100);
            }
            match parse(&bytes) {
                ParsedBinary::Need(least) => prop_assert!(least > bytes.len()),
                ParsedBinary::Request { used, request } => {
                    let before = [&bytes[..HEADER_BYTES], request.extras, request.key].concat();
                    prop_assert_eq!(before, &bytes[..used]);
                }
                ParsedBinary::Magic => prop_assert!(false, "it has its magic"),
            }
        }
    }
}
