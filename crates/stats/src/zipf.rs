//! The skewed popularity of YCSB: rank 0 is asked for most, rank r with 1/(r+1)^θ of that.
//!
//! [`Zipfian`] turns uniform fractions into ranks by Gray's closed form; it owns its zeta sum and
//! extends it when items are inserted. [`scrambled`] spreads ranks over a key space with FNV-1a.
//! Callers are the operation streams of YCSB. Nothing here allocates.
//!
//! Source: Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD 1994;
//! YCSB `ZipfianGenerator`, `ScrambledZipfianGenerator` and `Utils.fnvhash64`.

use crate::random::Rng;

pub const THETA: f64 = 0.99;
/// Items of YCSB's scrambled generator, whatever the size of the key space behind it.
pub const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// `zeta(SCRAMBLED_ITEMS, THETA)`, as published with YCSB.
pub const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// Terms that are added one by one; the rest of a longer sum is Euler-Maclaurin's formula; its
/// error beyond a million terms is below 1e-20, far less than the rounding of the sum itself.
const ZETA_TERMS_EXACT: u64 = 1 << 20;

/// The sum of `1/i^theta` for `i` in `1..=items`, in at most some 20 ms.
#[must_use]
pub fn zeta(items: u64, theta: f64) -> f64 {
    zeta_from(0, items, theta, 0.0)
}

/// `zeta(items, theta)` given `known_sum = zeta(known_items, theta)`: only the new terms cost.
///
/// # Panics
/// When `items < known_items`: a sum that shrinks is made anew with [`zeta`].
#[must_use]
pub fn zeta_from(known_items: u64, items: u64, theta: f64, known_sum: f64) -> f64 {
    assert!(known_items <= items, "a zeta sum over {known_items} cannot shrink to {items}");
    let exact_to = items.min(known_items.max(ZETA_TERMS_EXACT));
    let head: f64 = (known_items + 1..=exact_to).map(|i| (i as f64).powf(-theta)).sum();
    known_sum + head + zeta_tail(exact_to, items, theta)
}

/// The sum over `from + 1 ..= to` for a large `from`.
fn zeta_tail(from: u64, to: u64, theta: f64) -> f64 {
    if from == to {
        return 0.0;
    }
    let (a, b) = (from as f64, to as f64);
    let integral = (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (b.powf(-theta) - a.powf(-theta)) / 2.0;
    let slopes = theta * (a.powf(-theta - 1.0) - b.powf(-theta - 1.0)) / 12.0;
    integral + ends + slopes
}

/// Ranks with a Zipfian popularity.
///
/// Ranks 0 and 1 come with exactly their Zipfian probability, the others by a continuous
/// approximation: that is the published algorithm, kept so that results compare with others'.
#[derive(Debug, Clone)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    alpha: f64,
    zeta_two: f64,
    zeta_items: f64,
    eta: f64,
    second_below: f64,
}

impl Zipfian {
    /// Ranks `0..items` with skew `theta`, `0 < theta < 1`.
    ///
    /// # Panics
    /// When there are no items or `theta` is out of range.
    #[must_use]
    pub fn new(items: u64, theta: f64) -> Self {
        Self::with_zeta(items, theta, zeta(items, theta))
    }

    /// As [`Zipfian::new`] with the known value of `zeta(items, theta)`.
    ///
    /// # Panics
    /// As [`Zipfian::new`].
    #[must_use]
    pub fn with_zeta(items: u64, theta: f64, zeta_items: f64) -> Self {
        assert!(items > 0, "a Zipfian popularity needs an item");
        assert!(theta > 0.0 && theta < 1.0, "skew {theta} is not between 0 and 1");
        let mut zipfian = Self {
            items,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta_two: zeta(2, theta),
            zeta_items,
            eta: 0.0,
            second_below: 1.0 + 0.5f64.powf(theta),
        };
        zipfian.eta = zipfian.eta_of_items();
        zipfian
    }

    /// Items that ranks are drawn from.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.items
    }

    /// The current zeta sum: rank r has probability `1 / ((r + 1)^theta · zeta)`.
    #[must_use]
    pub const fn zeta(&self) -> f64 {
        self.zeta_items
    }

    /// Extends the ranks to `0..items`; costs only the new terms. Fewer items than now are
    /// ignored, as in YCSB: a count read a moment ago must not trigger a long computation.
    pub fn grow_to(&mut self, items: u64) {
        if items > self.items {
            self.zeta_items = zeta_from(self.items, items, self.theta, self.zeta_items);
            self.items = items;
            self.eta = self.eta_of_items();
        }
    }

    /// The next rank, below [`Zipfian::items`].
    #[inline]
    pub fn next_rank(&self, rng: &mut Rng) -> u64 {
        self.rank_at(rng.next_f64())
    }

    #[inline]
    fn rank_at(&self, fraction: f64) -> u64 {
        let scaled = fraction * self.zeta_items;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.second_below {
            return 1.min(self.items - 1);
        }
        let base = self.eta * fraction - self.eta + 1.0;
        // The cast saturates, and rounding may touch the upper end: hence the `min`.
        ((self.items as f64 * base.powf(self.alpha)) as u64).min(self.items - 1)
    }

    /// Gray's η for the current count. YCSB keeps the *first* count here after an insert, which
    /// lets ranks drift from the distribution; this follows the paper instead.
    fn eta_of_items(&self) -> f64 {
        (1.0 - (2.0 / self.items as f64).powf(1.0 - self.theta))
            / (1.0 - self.zeta_two / self.zeta_items)
    }
}

/// FNV-1a over bytes, 64 bits.
#[inline]
#[must_use]
pub const fn fnv1a_64(bytes: &[u8]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(0x0000_0100_0000_01B3);
        index += 1;
    }
    hash
}

/// YCSB's hash of a number: FNV-1a over its eight bytes, low byte first, then the absolute value
/// of the result as a signed number.
#[inline]
#[must_use]
pub const fn hash_number(number: u64) -> u64 {
    (fnv1a_64(&number.to_le_bytes()) as i64).unsigned_abs()
}

/// The key that `rank` stands for in a scrambled space of `keys` keys.
///
/// # Panics
/// When there are no keys.
#[inline]
#[must_use]
pub const fn scrambled(rank: u64, keys: u64) -> u64 {
    hash_number(rank) % keys
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 2_000_000;

    /// `draws` independent trials of probability `p` hit `hits` times: within five standard
    /// deviations (one false alarm in two million).
    fn assert_binomial(hits: u32, p: f64, what: &str) {
        let mean = f64::from(DRAWS) * p;
        let deviation = (mean * (1.0 - p)).sqrt();
        let distance = (f64::from(hits) - mean).abs() / deviation;
        assert!(distance < 5.0, "{what}: {hits} hits, {mean:.1} expected, {distance:.1} sigma");
    }

    #[test]
    fn zeta_of_ten_billion_is_the_published_constant() {
        let computed = zeta(SCRAMBLED_ITEMS, THETA);
        // The published sum was added up term by term in doubles; its rounding is about 1e-8.
        assert!((computed - SCRAMBLED_ZETA).abs() < 1e-7, "{computed}");
    }

    #[test]
    fn a_sum_continued_is_the_sum_made_at_once() {
        for (first, second) in [(0, 1), (1, 2), (10, 1000), (1 << 20, (1 << 20) + 5), (3, 3)] {
            let at_once = zeta(second, THETA);
            let continued = zeta_from(first, second, THETA, zeta(first, THETA));
            assert!((at_once - continued).abs() < 1e-11, "{first} to {second}");
        }
        let naive: f64 = (1..=3_000_000u32).map(|i| f64::from(i).powf(-THETA)).sum();
        assert!((naive - zeta(3_000_000, THETA)).abs() < 1e-9);
    }

    #[test]
    fn the_two_hottest_ranks_have_exactly_their_zipfian_share() {
        for items in [1000u64, 100_000] {
            let (zipfian, mut rng) = (Zipfian::new(items, THETA), Rng::new(42));
            let mut hits = [0u32; 2];
            for _ in 0..DRAWS {
                if let Some(hit) = hits.get_mut(zipfian.next_rank(&mut rng) as usize) {
                    *hit += 1;
                }
            }
            for (rank, hit) in hits.into_iter().enumerate() {
                let share = ((rank + 1) as f64).powf(-THETA) / zipfian.zeta();
                assert_binomial(hit, share, &format!("seed 42, {items} items, rank {rank}"));
            }
        }
    }

    #[test]
    fn every_rank_has_the_share_that_the_published_formula_gives_it() {
        let (zipfian, mut rng) = (Zipfian::new(1000, THETA), Rng::new(43));
        let mut hits = vec![0u32; 1000];
        for _ in 0..DRAWS {
            hits[zipfian.next_rank(&mut rng) as usize] += 1;
        }
        let sum = |count: u32| (1..=count).map(|i| f64::from(i).powf(-THETA)).sum::<f64>();
        let eta = (1.0 - (2.0 / 1000f64).powf(1.0 - THETA)) / (1.0 - sum(2) / sum(1000));
        // The inverse of Gray's form: the fraction at which rank r begins.
        let begin = |rank: u64| {
            let base = (rank as f64 / 1000.0).powf(1.0 - THETA);
            ((base - 1.0 + eta) / eta).max((1.0 + 0.5f64.powf(THETA)) / sum(1000))
        };
        for rank in 2..1000 {
            let share = begin(rank + 1) - begin(rank);
            assert_binomial(hits[rank as usize], share, &format!("seed 43, rank {rank}"));
        }
    }

    #[test]
    fn the_head_of_the_distribution_is_zipfian_within_the_form_s_known_error() {
        let (zipfian, mut rng) = (Zipfian::new(100_000, THETA), Rng::new(44));
        let mut below = [(10u64, 0u32), (100, 0), (1000, 0), (10_000, 0)];
        for _ in 0..DRAWS {
            let rank = zipfian.next_rank(&mut rng);
            for (limit, hits) in &mut below {
                *hits += u32::from(rank < *limit);
            }
        }
        for (limit, hits) in below {
            let exact = zeta(limit, THETA) / zipfian.zeta();
            let seen = f64::from(hits) / f64::from(DRAWS);
            assert!((seen - exact).abs() < 0.02, "top {limit}: {seen} seen, {exact} exact");
        }
    }

    #[test]
    fn growth_gives_the_generator_of_the_larger_count() {
        let mut grown = Zipfian::new(1000, THETA);
        grown.grow_to(5000);
        grown.grow_to(10);
        let fresh = Zipfian::new(5000, THETA);
        assert_eq!(grown.items(), 5000);
        assert!((grown.eta - fresh.eta).abs() < 1e-12);
        let (mut a, mut b) = (Rng::new(3), Rng::new(3));
        for _ in 0..10_000 {
            assert_eq!(grown.next_rank(&mut a), fresh.next_rank(&mut b));
        }
    }

    #[test]
    fn ranks_stay_in_range_at_the_edges() {
        for items in [1u64, 2, 3, 4, 1 << 40] {
            let zipfian = Zipfian::new(items, THETA);
            for fraction in [0.0, 0.5, 1.0 - f64::EPSILON / 2.0] {
                assert!(zipfian.rank_at(fraction) < items, "{items} items at {fraction}");
            }
        }
    }

    #[test]
    fn fnv_gives_the_published_vectors() {
        assert_eq!(fnv1a_64(b""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv1a_64(b"a"), 0xAF63_DC4C_8601_EC8C);
        assert_eq!(fnv1a_64(b"foobar"), 0x8594_4171_F739_67E8);
    }

    #[test]
    fn numbers_hash_as_in_ycsb() {
        assert_eq!(hash_number(0), 6_284_781_860_667_377_211);
        assert_eq!(hash_number(1), 8_517_097_267_634_966_620);
        assert_eq!(hash_number(2), 1_820_151_046_732_198_393);
    }

    #[test]
    fn scrambled_ranks_keep_the_published_share_of_the_hottest_item() {
        let zipfian = Zipfian::with_zeta(SCRAMBLED_ITEMS, THETA, SCRAMBLED_ZETA);
        let mut rng = Rng::new(45);
        let keys = 1_000_000;
        let (first, second) = (scrambled(0, keys), scrambled(1, keys));
        assert_eq!((first, second), (377_211, 966_620));
        let mut hits = [0u32; 2];
        for _ in 0..DRAWS {
            let key = scrambled(zipfian.next_rank(&mut rng), keys);
            hits[0] += u32::from(key == first);
            hits[1] += u32::from(key == second);
        }
        // Each key also gets a millionth of the cold ranks: far below the tolerance.
        assert_binomial(hits[0], 1.0 / SCRAMBLED_ZETA, "seed 45, hottest key");
        assert_binomial(hits[1], 0.5f64.powf(THETA) / SCRAMBLED_ZETA, "seed 45, second key");
    }
}
