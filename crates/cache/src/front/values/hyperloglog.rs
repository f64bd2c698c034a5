//! `PFADD`, `PFCOUNT` and `PFMERGE`: how many different texts were seen, in Redis's own format, so
//! that a value may be read and written by Redis as well. A header of 16 bytes (`HYLL`, encoding,
//! three zeros, the last count or that there is none), then 16384 registers: of 6 bits each
//! (dense), or runs of equal ones (sparse, see `hyperloglog_sparse.rs`). A text's hash says
//! which register is meant and, by its zeros, what is in it at least.
//!
//! Source of the estimate: Otmar Ertl, "New cardinality estimation algorithms for HyperLogLog
//! sketches", arXiv:1702.01284.

use super::ValueError;
use super::hyperloglog_sparse::{self as sparse, HEADER_BYTES, INDEX_BITS, REGISTERS};

/// Bits of a hash in which zeros are counted.
const RANK_BITS: u32 = 64 - INDEX_BITS;
const REGISTER_BITS: usize = 6;
const REGISTER_MAX: u8 = 63;
const DENSE_BYTES: usize = HEADER_BYTES + REGISTERS * REGISTER_BITS / 8;

/// Longest sparse value by default, bytes.
pub const SPARSE_BYTES_MAX: usize = 3000;

const MAGIC: &[u8; 4] = b"HYLL";
const ENCODING: usize = 4;
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
const COUNT: usize = 8;
/// In the count's last byte: it is of an earlier state.
const OUTDATED: u8 = 0x80;

/// A value in which nothing was seen. Redis marks its count as outdated once it is stored.
pub fn empty() -> Vec<u8> {
    let mut value = vec![0; HEADER_BYTES];
    value[..MAGIC.len()].copy_from_slice(MAGIC);
    value[ENCODING] = SPARSE;
    value[HEADER_BYTES - 1] = OUTDATED;
    sparse::push_zeros(&mut value, REGISTERS);
    value
}

/// Whether it is a dense value.
fn is_dense(value: &[u8]) -> Result<bool, ValueError> {
    let is_ours = value.len() >= HEADER_BYTES && value.starts_with(MAGIC);
    match value.get(ENCODING) {
        Some(&DENSE) if is_ours && value.len() == DENSE_BYTES => Ok(true),
        Some(&SPARSE) if is_ours => Ok(false),
        _ => Err(ValueError::NoHyperLogLog),
    }
}

/// Refuses a value of another kind.
pub fn check(value: &[u8]) -> Result<(), ValueError> {
    is_dense(value).map(drop)
}

/// Counts a text in; whether that changed anything. A value that would be longer than
/// `sparse_bytes_max` becomes dense. After an error the value is as it was.
pub fn add(value: &mut Vec<u8>, text: &[u8], sparse_bytes_max: usize) -> Result<bool, ValueError> {
    let (index, rank) = register_of(text);
    raise(value, index, rank, sparse_bytes_max)
}

/// The register that a text is counted in, and the place of the first set bit in the rest of its
/// hash.
fn register_of(text: &[u8]) -> (usize, u8) {
    let hash = murmur_hash(text);
    let rest = hash >> INDEX_BITS | 1 << RANK_BITS;
    (hash as usize % REGISTERS, rest.trailing_zeros() as u8 + 1)
}

/// Makes a register at least `rank`.
fn raise(
    value: &mut Vec<u8>,
    index: usize,
    rank: u8,
    sparse_bytes_max: usize,
) -> Result<bool, ValueError> {
    let is_raised = if is_dense(value)? {
        raise_dense(value, index, rank)
    } else {
        match sparse::raise(value, index, rank, sparse_bytes_max)? {
            sparse::Raised::No => false,
            sparse::Raised::Yes => true,
            sparse::Raised::Impossible => {
                make_dense(value)?;
                raise_dense(value, index, rank)
            }
        }
    };
    if is_raised {
        value[HEADER_BYTES - 1] |= OUTDATED;
    }
    Ok(is_raised)
}

fn raise_dense(value: &mut [u8], index: usize, rank: u8) -> bool {
    let is_raised = dense_register(value, index) < rank;
    if is_raised {
        let bit = index * REGISTER_BITS;
        let (byte, shift) = (HEADER_BYTES + bit / 8, bit % 8);
        let (mask, rank) = (u16::from(REGISTER_MAX) << shift, u16::from(rank) << shift);
        value[byte] = value[byte] & !mask as u8 | rank as u8;
        // The last register ends with the last byte.
        if let Some(next) = value.get_mut(byte + 1) {
            *next = *next & !(mask >> 8) as u8 | (rank >> 8) as u8;
        }
    }
    is_raised
}

fn dense_register(value: &[u8], index: usize) -> u8 {
    let bit = index * REGISTER_BITS;
    let byte = HEADER_BYTES + bit / 8;
    let next = value.get(byte + 1).copied().unwrap_or(0);
    (u16::from_le_bytes([value[byte], next]) >> (bit % 8)) as u8 & REGISTER_MAX
}

/// Turns a sparse value into a dense one.
fn make_dense(value: &mut Vec<u8>) -> Result<(), ValueError> {
    let mut dense = vec![0; DENSE_BYTES];
    dense[..HEADER_BYTES].copy_from_slice(&value[..HEADER_BYTES]);
    dense[ENCODING] = DENSE;
    sparse::each_run(value, |first, count, rank| {
        if rank > 0 {
            (first..first + count).for_each(|index| _ = raise_dense(&mut dense, index, rank));
        }
    })?;
    *value = dense;
    Ok(())
}

/// How many different texts were seen, about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cardinality {
    pub count: u64,
    /// The value said so itself; if not, it is to be told by [`keep_count`].
    pub is_kept: bool,
}

pub fn count(value: &[u8]) -> Result<Cardinality, ValueError> {
    let is_dense = is_dense(value)?;
    if value[HEADER_BYTES - 1] & OUTDATED == 0 {
        let kept = value[COUNT..HEADER_BYTES].iter().rev();
        let count = kept.fold(0, |count, byte| count << 8 | u64::from(*byte));
        return Ok(Cardinality { count, is_kept: true });
    }
    let mut histogram = Histogram::default();
    if is_dense {
        // Four registers in three bytes.
        for three in value[HEADER_BYTES..].chunks_exact(3) {
            let four = u32::from_le_bytes([three[0], three[1], three[2], 0]);
            (0..4).for_each(|index| histogram.add((four >> (6 * index)) as u8 & REGISTER_MAX, 1));
        }
    } else {
        sparse::each_run(value, |_, count, rank| histogram.add(rank, count as u32))?;
    }
    Ok(Cardinality { count: histogram.estimate(), is_kept: false })
}

/// Makes a value say its own count.
pub fn keep_count(value: &mut [u8], count: u64) {
    value[COUNT..HEADER_BYTES].copy_from_slice(&count.to_le_bytes());
}

/// What was seen by several values.
#[derive(Clone, Debug)]
pub struct Union {
    registers: Vec<u8>,
    is_any_dense: bool,
}

impl Default for Union {
    fn default() -> Self {
        Self { registers: vec![0; REGISTERS], is_any_dense: false }
    }
}

impl Union {
    pub fn add(&mut self, value: &[u8]) -> Result<(), ValueError> {
        if is_dense(value)? {
            self.is_any_dense = true;
            for (index, register) in self.registers.iter_mut().enumerate() {
                *register = dense_register(value, index).max(*register);
            }
            return Ok(());
        }
        sparse::each_run(value, |first, count, rank| {
            let run = &mut self.registers[first..first + count];
            run.iter_mut().for_each(|register| *register = rank.max(*register));
        })
    }

    pub fn count(&self) -> u64 {
        let mut histogram = Histogram::default();
        self.registers.iter().for_each(|rank| histogram.add(*rank, 1));
        histogram.estimate()
    }

    /// Adds everything to a value, which becomes dense if one of those that were added was.
    pub fn store_in(&self, value: &mut Vec<u8>, sparse_bytes_max: usize) -> Result<(), ValueError> {
        if self.is_any_dense && !is_dense(value)? {
            make_dense(value)?;
        }
        for (index, rank) in self.registers.iter().enumerate().filter(|(_, rank)| **rank > 0) {
            raise(value, index, *rank, sparse_bytes_max)?;
        }
        value[HEADER_BYTES - 1] |= OUTDATED;
        Ok(())
    }
}

/// How many registers have which rank.
struct Histogram([u32; 1 << REGISTER_BITS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; 1 << REGISTER_BITS])
    }
}

impl Histogram {
    fn add(&mut self, rank: u8, count: u32) {
        self.0[usize::from(rank)] += count;
    }

    fn estimate(&self) -> u64 {
        /// 1 / (2 ln 2)
        const ALPHA: f64 = 0.721_347_520_444_481_7;
        let registers = REGISTERS as f64;
        let full = f64::from(self.0[RANK_BITS as usize + 1]);
        let mut sum = registers * tau((registers - full) / registers);
        for count in self.0[1..=RANK_BITS as usize].iter().rev() {
            sum = (sum + f64::from(*count)) * 0.5;
        }
        sum += registers * sigma(f64::from(self.0[0]) / registers);
        (ALPHA * registers * registers / sum).round() as u64
    }
}

/// The paper's functions for the registers that are empty and for those that are full: series that
/// are summed until nothing changes any more.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut weight, mut sum) = (1.0, x);
    loop {
        x *= x;
        let before = sum;
        sum += x * weight;
        weight += weight;
        if sum == before {
            return sum;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut weight, mut sum) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = sum;
        weight *= 0.5;
        sum -= (1.0 - x) * (1.0 - x) * weight;
        if sum == before {
            return sum / 3.0;
        }
    }
}

/// MurmurHash2 in its 64-bit form A, with Redis's seed.
fn murmur_hash(text: &[u8]) -> u64 {
    const SEED: u64 = 0xadc8_3b19;
    const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;
    const SHIFT: u32 = 47;
    let mut hash = SEED ^ (text.len() as u64).wrapping_mul(MULTIPLIER);
    let (words, rest) = text.as_chunks::<8>();
    for word in words {
        let mut mixed = u64::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        mixed = (mixed ^ mixed >> SHIFT).wrapping_mul(MULTIPLIER);
        hash = (hash ^ mixed).wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        let last = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        hash = (hash ^ last).wrapping_mul(MULTIPLIER);
    }
    hash = (hash ^ hash >> SHIFT).wrapping_mul(MULTIPLIER);
    hash ^ hash >> SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// A value that has seen the numbers below this one.
    fn seen(numbers: u32, sparse_bytes_max: usize) -> Vec<u8> {
        let mut value = empty();
        for number in 0..numbers {
            add(&mut value, number.to_string().as_bytes(), sparse_bytes_max).unwrap();
        }
        value
    }

    fn counted(value: &[u8]) -> u64 {
        count(value).unwrap().count
    }

    #[test]
    fn a_new_value_is_the_one_of_redis() {
        assert_eq!(empty(), b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80\x7f\xff");
        assert_eq!(count(&empty()), Ok(Cardinality { count: 0, is_kept: false }));
    }

    #[test]
    fn a_few_texts_are_counted_exactly_and_only_once() {
        let mut value = empty();
        let mut add_all = |texts: &[&str]| {
            let added = texts.iter().map(|text| add(&mut value, text.as_bytes(), SPARSE_BYTES_MAX));
            let is_changed = added.fold(false, |any, one| any | one.unwrap());
            (is_changed, counted(&value))
        };
        assert_eq!(add_all(&["1", "2", "3", "4", "5"]), (true, 5));
        assert_eq!(add_all(&["1", "2", "3", "4", "5"]), (false, 5));
        assert_eq!(add_all(&["6", "7", "8", "8", "9", "10"]), (true, 10));
        assert_eq!(add_all(&[""]), (true, 11));
    }

    #[test]
    fn a_count_is_kept_until_a_register_changes() {
        let mut value = seen(3, SPARSE_BYTES_MAX);
        assert_eq!(count(&value), Ok(Cardinality { count: 3, is_kept: false }));
        keep_count(&mut value, 3);
        assert_eq!(count(&value), Ok(Cardinality { count: 3, is_kept: true }));
        assert_eq!(add(&mut value, b"2", SPARSE_BYTES_MAX), Ok(false));
        assert!(count(&value).unwrap().is_kept);
        assert_eq!(add(&mut value, b"3", SPARSE_BYTES_MAX), Ok(true));
        assert_eq!(count(&value), Ok(Cardinality { count: 4, is_kept: false }));
    }

    #[test]
    fn a_value_that_grows_becomes_dense_and_counts_the_same() {
        let (sparse, dense) = (seen(900, SPARSE_BYTES_MAX), seen(900, 20));
        assert_eq!((is_dense(&sparse), is_dense(&dense)), (Ok(false), Ok(true)));
        assert_eq!(counted(&sparse), counted(&dense));
        let mut made = sparse.clone();
        make_dense(&mut made).unwrap();
        assert_eq!(made, dense);
        assert_eq!(is_dense(&seen(3000, SPARSE_BYTES_MAX)), Ok(true));
    }

    #[test]
    fn counts_are_near_at_every_size() {
        for numbers in [100, 1000, 10_000, 100_000, 300_000] {
            let count = counted(&seen(numbers, SPARSE_BYTES_MAX));
            // Six standard errors.
            let off = f64::from(numbers) * 6.0 * 1.04 / (REGISTERS as f64).sqrt();
            assert!((count as f64 - f64::from(numbers)).abs() <= off, "{numbers}: {count}");
        }
    }

    #[test]
    fn a_union_has_what_any_has() {
        let (few, many) = (seen(700, SPARSE_BYTES_MAX), seen(20_000, SPARSE_BYTES_MAX));
        let mut others = empty();
        for number in 0..500 {
            add(&mut others, format!("x{number}").as_bytes(), SPARSE_BYTES_MAX).unwrap();
        }
        let mut both = Union::default();
        [&few, &others].into_iter().try_for_each(|value| both.add(value)).unwrap();
        let mut stored = empty();
        both.store_in(&mut stored, SPARSE_BYTES_MAX).unwrap();
        assert_eq!((is_dense(&stored), counted(&stored)), (Ok(false), both.count()));
        let mut expected = few.clone();
        for number in 0..500 {
            add(&mut expected, format!("x{number}").as_bytes(), SPARSE_BYTES_MAX).unwrap();
        }
        assert_eq!(both.count(), counted(&expected));
        both.add(&many).unwrap();
        both.store_in(&mut stored, SPARSE_BYTES_MAX).unwrap();
        assert_eq!((is_dense(&stored), counted(&stored)), (Ok(true), both.count()));
    }

    #[test]
    fn what_is_no_such_value_or_a_damaged_one_is_refused() {
        let good = seen(3, SPARSE_BYTES_MAX);
        let refused = |value: &[u8]| {
            let mut changed = value.to_vec();
            let error = add(&mut changed, b"new", SPARSE_BYTES_MAX).err();
            assert!(changed == value || error.is_none());
            let mut union = Union::default();
            (count(value).err(), union.add(value).err())
        };
        let no_value = (Some(ValueError::NoHyperLogLog), Some(ValueError::NoHyperLogLog));
        assert_eq!(refused(b""), no_value);
        assert_eq!(refused(&good[..15]), no_value);
        assert_eq!(refused(&[b"0123".as_slice(), &good[4..]].concat()), no_value);
        assert_eq!(refused(&[&good[..4], b"x", &good[5..]].concat()), no_value);
        assert_eq!(refused(&seen(900, 20)[1..]), no_value);
        assert_eq!(refused(&[seen(900, 20).as_slice(), b"x"].concat()), no_value);
        let damaged = (Some(ValueError::CorruptHyperLogLog), Some(ValueError::CorruptHyperLogLog));
        assert_eq!(refused(&[good.as_slice(), b"hello"].concat()), damaged);
        assert_eq!(refused(&good[..good.len() - 1]), damaged);
        assert_eq!(refused(&good[..HEADER_BYTES]), damaged);
    }

    proptest! {
        #[test]
        fn registers_keep_the_greatest_rank_in_both_forms(
            ranks in vec((0..REGISTERS, 1u8..=51), 0..200),
            near in vec((0usize..40, 1u8..6), 0..300),
            sparse_bytes_max in 18usize..700,
        ) {
            let mut expected = vec![0; REGISTERS];
            let (mut value, mut dense) = (empty(), empty());
            make_dense(&mut dense).unwrap();
            for (index, rank) in near.into_iter().chain(ranks) {
                let is_raised = expected[index] < rank;
                expected[index] = rank.max(expected[index]);
                prop_assert_eq!(raise(&mut value, index, rank, sparse_bytes_max), Ok(is_raised));
                prop_assert_eq!(raise(&mut dense, index, rank, sparse_bytes_max), Ok(is_raised));
            }
            let is_short = value.len() <= sparse_bytes_max || is_dense(&value) == Ok(true);
            prop_assert!(is_short);
            prop_assert_eq!(counted(&value), counted(&dense));
            for each in [&value, &dense] {
                let mut union = Union::default();
                union.add(each).unwrap();
                prop_assert_eq!(&union.registers, &expected);
            }
        }
    }
}
