//! Arrays with addresses.

/// Addresses begin here, on every machine and in every run.
const BEGIN: u64 = 1 << 32;
/// Arrays begin at a page, and a page lies between them.
const PAGE_BYTES: u64 = 4096;

/// An array that has a place.
#[derive(Clone, Debug)]
pub(super) struct Array<T> {
    pub data: Vec<T>,
    base: u64,
}

impl<T> Array<T> {
    /// Bytes of an element.
    pub const BYTES: u64 = size_of::<T>() as u64;

    #[inline]
    pub fn addr(&self, index: usize) -> u64 {
        self.base + index as u64 * Self::BYTES
    }

    pub fn bytes(&self) -> u64 {
        self.data.len() as u64 * Self::BYTES
    }
}

pub(super) struct Space(u64);

impl Space {
    pub fn new() -> Space {
        Space(BEGIN)
    }

    pub fn array<T: Clone>(&mut self, len: usize, value: T) -> Array<T> {
        let array = Array { data: vec![value; len], base: self.0 };
        self.0 += array.bytes().next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        array
    }
}
