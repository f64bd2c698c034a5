//! What `RESTORE` reads bytes with, of which a client says what they are.

/// Bytes of which each is read once; `None` where they end too early.
#[derive(Debug)]
pub(super) struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    pub fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    pub fn left(&self) -> usize {
        self.0.len()
    }

    pub fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// A signed number of up to 8 bytes, the lowest first.
    pub fn number(&mut self, count: usize) -> Option<i64> {
        let taken = self.take(count)?;
        let mut bytes = [0; 8];
        bytes[8 - count..].copy_from_slice(taken);
        Some(i64::from_le_bytes(bytes) >> (64 - 8 * count as u32))
    }
}
