//! Names of scripts: the SHA-1 of their texts.

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sha1([u8; 20]);

impl Sha1 {
    pub fn of(text: &[u8]) -> Self {
        let mut sha = [0; 20];
        sha.copy_from_slice(digest(&SHA1_FOR_LEGACY_USE_ONLY, text).as_ref());
        Self(sha)
    }

    /// The one that 40 hexadecimal digits stand for.
    pub fn parse(digits: &[u8]) -> Option<Self> {
        if digits.len() != 40 {
            return None;
        }
        let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
        let mut sha = [0; 20];
        for (byte, two) in sha.iter_mut().zip(digits.chunks(2)) {
            *byte = digit(two[0])? << 4 | digit(two[1])?;
        }
        Some(Self(sha))
    }

    pub fn hex(self) -> String {
        use std::fmt::Write;
        let mut text = String::with_capacity(40);
        for byte in self.0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}
