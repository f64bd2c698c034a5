//! The fast multipole method in the plane: the potential of charges at each of them, near ones pair
//! by pair, far ones by expansions on a tree of squares (Greengard and Rokhlin, 1987).
//!
//! The potential of a charge q at distance r is q ln r. All squares of a level are of one size.

use super::Sink;
use super::drive::{Drive, KernelThread};
use super::space::{Array, Space};
use rackpool_sim::rng::{Purpose, Rng};
use std::ops::ControlFlow;

type Complex = [f64; 2];

/// Terms of an expansion behind the first. 12 give some six digits.
const TERMS: usize = 12;
type Expansion = [Complex; TERMS + 1];
/// Bytes of a coefficient.
const BYTES: u16 = 16;
/// Fewest particles of a leaf, on average; there are up to four times as many.
const LEAF_PARTICLES: u64 = 16;
/// The coarsest level with squares that are far from one another.
const TOP: usize = 2;
/// Squares, or leaves, of a unit of work.
const UNIT: usize = 16;

fn add(a: Complex, b: Complex) -> Complex {
    [a[0] + b[0], a[1] + b[1]]
}

fn sub(a: Complex, b: Complex) -> Complex {
    [a[0] - b[0], a[1] - b[1]]
}

fn mul(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

fn scaled(a: Complex, by: f64) -> Complex {
    [a[0] * by, a[1] * by]
}

fn inverse(a: Complex) -> Complex {
    let square = a[0] * a[0] + a[1] * a[1];
    [a[0] / square, -a[1] / square]
}

fn ln(a: Complex) -> Complex {
    [a[0].hypot(a[1]).ln(), a[1].atan2(a[0])]
}

fn binomials() -> [[f64; 2 * TERMS + 1]; 2 * TERMS + 1] {
    let mut table = [[0.0; 2 * TERMS + 1]; 2 * TERMS + 1];
    for n in 0..table.len() {
        table[n][0] = 1.0;
        for k in 1..=n {
            table[n][k] = table[n - 1][k - 1] + table[n - 1][k];
        }
    }
    table
}

/// Charges and the tree over them.
pub(super) struct Fmm {
    /// The level of the leaves: 4 to that power of them.
    depth: usize,
    /// Place and charge, leaf by leaf.
    particles: Array<[f64; 3]>,
    /// Where each leaf's particles begin, and the end.
    first: Array<u32>,
    /// By level, from [`TOP`]: what a square's charges do far away.
    outer: Vec<Array<Expansion>>,
    /// By level: what far charges do in a square.
    inner: Vec<Array<Expansion>>,
    potential: Array<f64>,
    binomials: [[f64; 2 * TERMS + 1]; 2 * TERMS + 1],
}

/// The level of leaves for so many particles.
fn depth_of(count: u64) -> usize {
    let fits = |depth: &u32| 4u64.pow(*depth) * LEAF_PARTICLES <= count;
    (TOP as u32..14).take_while(fits).last().unwrap_or(TOP as u32) as usize
}

fn bytes_of(count: u64) -> u64 {
    let depth = depth_of(count);
    let squares: u64 = (TOP..=depth).map(|level| 4u64.pow(level as u32)).sum();
    let leaves = 4u64.pow(depth as u32);
    count * 32 + (leaves + 1) * 4 + squares * 2 * size_of::<Expansion>() as u64
}

/// The number of the square of a level in which a place lies.
fn square_of(place: Complex, level: usize) -> usize {
    let side = 1 << level;
    let [x, y] = place.map(|along| ((along * side as f64) as usize).min(side - 1));
    y * side + x
}

fn center(square: usize, level: usize) -> Complex {
    let side = 1usize << level;
    [square % side, square / side].map(|along| (along as f64 + 0.5) / side as f64)
}

/// Squares of the level at a distance of at most `reach`, without order but always the same.
fn around(square: usize, level: usize, reach: usize) -> impl Iterator<Item = usize> {
    let side = 1usize << level;
    let (x, y) = (square % side, square / side);
    let span = move |at: usize| at.saturating_sub(reach)..(at + reach + 1).min(side);
    span(y).flat_map(move |y| span(x).map(move |x| y * side + x))
}

/// Squares that are far from this one, of parents that are not far from its own.
fn interacting(square: usize, level: usize) -> impl Iterator<Item = usize> {
    let side = 1usize << level;
    let (x, y) = (square % side, square / side);
    let parent = y / 2 * (side / 2) + x / 2;
    around(parent, level - 1, 1).flat_map(move |parent| {
        let (px, py) = (parent % (side / 2) * 2, parent / (side / 2) * 2);
        let children = [(px, py), (px + 1, py), (px, py + 1), (px + 1, py + 1)];
        let far = move |(cx, cy): &(usize, usize)| cx.abs_diff(x).max(cy.abs_diff(y)) > 1;
        children.into_iter().filter(far).map(move |(cx, cy)| cy * side + cx)
    })
}

impl Fmm {
    pub fn new(count: usize, seed: u64) -> Fmm {
        let depth = depth_of(count as u64);
        let mut rng = Rng::new(seed, Purpose::Workload, 0);
        let mut unit = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut places: Vec<[f64; 3]> =
            (0..count).map(|_| [unit(), unit(), 2.0 * unit() - 1.0]).collect();
        places.sort_by_key(|[x, y, _]| square_of([*x, *y], depth));
        let mut space = Space::new();
        let mut particles = space.array(count, [0.0; 3]);
        let leaves = 1 << (2 * depth);
        let mut first = space.array(leaves + 1, 0u32);
        for [x, y, _] in &places {
            first.data[square_of([*x, *y], depth) + 1] += 1;
        }
        (0..leaves).for_each(|leaf| first.data[leaf + 1] += first.data[leaf]);
        particles.data = places;
        let mut tree = || {
            let level = |level: usize| space.array(1usize << (2 * level), [[0.0; 2]; TERMS + 1]);
            (TOP..=depth).map(level).collect()
        };
        let (outer, inner) = (tree(), tree());
        let potential = space.array(count, 0.0);
        Fmm { depth, particles, first, outer, inner, potential, binomials: binomials() }
    }

    pub fn fitting(bytes: u64, seed: u64) -> Fmm {
        // More particles never take fewer bytes.
        let (mut low, mut high) = (64, (bytes / 32).clamp(65, u64::from(u32::MAX)));
        while low + 1 < high {
            let middle = low.midpoint(high);
            if bytes_of(middle) <= bytes { low = middle } else { high = middle }
        }
        Fmm::new(low as usize, seed)
    }

    pub fn bytes(&self) -> u64 {
        let tree = self.outer.iter().chain(&self.inner).map(Array::bytes).sum::<u64>();
        tree + self.particles.bytes() + self.first.bytes() + self.potential.bytes()
    }

    pub fn run(&mut self, drive: &mut Drive<'_>, steps: u32) -> ControlFlow<()> {
        self.begin(drive)?;
        (0..steps).try_for_each(|_| self.step(drive))
    }

    fn begin(&mut self, drive: &mut Drive<'_>) -> ControlFlow<()> {
        let (particles, first) = (&self.particles, &self.first);
        drive.phase(particles.data.chunks(256).enumerate(), |(chunk, some), sink| {
            (0..some.len()).for_each(|place| sink.store(particles.addr(chunk * 256 + place), 24));
        })?;
        drive.phase(first.data.chunks(256).enumerate(), |(chunk, some), sink| {
            (0..some.len()).for_each(|place| sink.store(first.addr(chunk * 256 + place), 4));
        })
    }

    pub fn step(&mut self, drive: &mut Drive<'_>) -> ControlFlow<()> {
        self.gather(drive)?;
        for level in (TOP..self.depth).rev() {
            self.upward(level, drive)?;
        }
        for level in TOP..=self.depth {
            self.downward(level, drive)?;
        }
        self.evaluate(drive)
    }

    /// Each leaf's charges become an expansion.
    fn gather(&mut self, drive: &mut Drive<'_>) -> ControlFlow<()> {
        let Fmm { particles, first, outer, depth, .. } = self;
        let leaves = outer.last_mut().expect("there is a level");
        let base = leaves.addr(0);
        drive.phase(leaves.data.chunks_mut(UNIT).enumerate(), |(unit, some), sink| {
            for (place, expansion) in some.iter_mut().enumerate() {
                let leaf = unit * UNIT + place;
                *expansion = [[0.0; 2]; TERMS + 1];
                for index in range(first, leaf, sink) {
                    sink.load(particles.addr(index), 24);
                    let [x, y, charge] = particles.data[index];
                    let from = sub([x, y], center(leaf, *depth));
                    expansion[0][0] += charge;
                    let mut power = from;
                    for (k, term) in expansion.iter_mut().enumerate().skip(1) {
                        *term = sub(*term, scaled(power, charge / k as f64));
                        power = mul(power, from);
                    }
                }
                store(base, leaf, sink);
            }
        })
    }

    /// Expansions of four squares become that of their parent.
    fn upward(&mut self, level: usize, drive: &mut Drive<'_>) -> ControlFlow<()> {
        let (coarse, fine) = self.outer.split_at_mut(level - TOP + 1);
        let (to, from) = (coarse.last_mut().expect("there is a level"), &fine[0]);
        let (base, binomials) = (to.addr(0), &self.binomials);
        drive.phase(to.data.chunks_mut(UNIT).enumerate(), |(unit, some), sink| {
            for (place, expansion) in some.iter_mut().enumerate() {
                let square = unit * UNIT + place;
                *expansion = [[0.0; 2]; TERMS + 1];
                let (side, here) = (1 << level, center(square, level));
                let (x, y) = (square % side * 2, square / side * 2);
                for (x, y) in [(x, y), (x + 1, y), (x, y + 1), (x + 1, y + 1)] {
                    let child = y * side * 2 + x;
                    load(from, child, sink);
                    let moved = sub(center(child, level + 1), here);
                    shift_outer(&from.data[child], moved, binomials, expansion);
                }
                store(base, square, sink);
            }
        })
    }

    /// What far charges do in each square: what they do in its parent, and those that are far from
    /// it and not from its parent.
    fn downward(&mut self, level: usize, drive: &mut Drive<'_>) -> ControlFlow<()> {
        let (coarse, fine) = self.inner.split_at_mut(level - TOP);
        let (parents, to) = (coarse.last(), &mut fine[0]);
        let (outer, base, binomials) = (&self.outer[level - TOP], to.addr(0), &self.binomials);
        drive.phase(to.data.chunks_mut(UNIT).enumerate(), |(unit, some), sink| {
            for (place, expansion) in some.iter_mut().enumerate() {
                let square = unit * UNIT + place;
                *expansion = [[0.0; 2]; TERMS + 1];
                let (side, here) = (1 << level, center(square, level));
                if let Some(parents) = parents {
                    let parent = square / side / 2 * (side / 2) + square % side / 2;
                    load(parents, parent, sink);
                    let moved = sub(here, center(parent, level - 1));
                    shift_inner(&parents.data[parent], moved, binomials, expansion);
                }
                for other in interacting(square, level) {
                    load(outer, other, sink);
                    let from = sub(center(other, level), here);
                    turn(&outer.data[other], from, binomials, expansion);
                }
                store(base, square, sink);
            }
        })
    }

    /// Far charges by the leaf's expansion, near ones one by one.
    fn evaluate(&mut self, drive: &mut Drive<'_>) -> ControlFlow<()> {
        let Fmm { particles, first, inner, potential, depth, .. } = self;
        let (base, inner) = (potential.addr(0), inner.last().expect("there is a level"));
        let (mut rest, mut units) = (&mut potential.data[..], Vec::new());
        for from in (0..inner.data.len()).step_by(UNIT) {
            let until = (from + UNIT).min(inner.data.len());
            let count = (first.data[until] - first.data[from]) as usize;
            let (some, others) = rest.split_at_mut(count);
            units.push((from..until, some));
            rest = others;
        }
        drive.phase(units.into_iter(), |(leaves, some), sink| {
            let begin = first.data[leaves.start] as usize;
            for leaf in leaves {
                load(inner, leaf, sink);
                for index in range(first, leaf, sink) {
                    sink.load(particles.addr(index), 24);
                    let [x, y, _] = particles.data[index];
                    let at = sub([x, y], center(leaf, *depth));
                    let far = inner.data[leaf].iter().rev();
                    let far = far.fold([0.0; 2], |sum, term| add(mul(sum, at), *term));
                    let near =
                        near(particles, first, Particle { index, leaf, depth: *depth }, sink);
                    some[index - begin] = far[0] + near;
                    sink.store(base + index as u64 * 8, 8);
                }
            }
        })
    }
}

/// A particle by its index, in a leaf of the tree's last level.
#[derive(Clone, Copy)]
struct Particle {
    index: usize,
    leaf: usize,
    depth: usize,
}

/// What charges of this leaf and those around it do at one of its particles.
fn near(
    particles: &Array<[f64; 3]>,
    first: &Array<u32>,
    particle: Particle,
    sink: &mut KernelThread,
) -> f64 {
    let Particle { index, leaf, depth } = particle;
    let [x, y, _] = particles.data[index];
    let mut sum = 0.0;
    for other in around(leaf, depth, 1) {
        for source in range(first, other, sink) {
            sink.load(particles.addr(source), 24);
            let [from_x, from_y, charge] = particles.data[source];
            let square = (x - from_x).powi(2) + (y - from_y).powi(2);
            if source != index && square > 0.0 {
                sum += charge * 0.5 * square.ln();
            }
        }
    }
    sum
}

/// The particles of a leaf.
fn range(first: &Array<u32>, leaf: usize, sink: &mut impl Sink) -> std::ops::Range<usize> {
    sink.load(first.addr(leaf), 8);
    first.data[leaf] as usize..first.data[leaf + 1] as usize
}

fn load(from: &Array<Expansion>, square: usize, sink: &mut impl Sink) {
    for term in 0..=TERMS as u64 {
        sink.load(from.addr(square) + term * u64::from(BYTES), BYTES);
    }
}

fn store(base: u64, square: usize, sink: &mut impl Sink) {
    for term in 0..=TERMS as u64 {
        let addr = base + square as u64 * Array::<Expansion>::BYTES;
        sink.store(addr + term * u64::from(BYTES), BYTES);
    }
}

/// Adds an outer expansion about a point that lies `moved` from the one of `to`.
fn shift_outer(
    from: &Expansion,
    moved: Complex,
    binomials: &[[f64; 2 * TERMS + 1]; 2 * TERMS + 1],
    to: &mut Expansion,
) {
    to[0] = add(to[0], from[0]);
    let mut powers = [[1.0, 0.0]; TERMS + 1];
    for l in 1..=TERMS {
        powers[l] = mul(powers[l - 1], moved);
        let mut sum = scaled(mul(from[0], powers[l]), -1.0 / l as f64);
        for k in 1..=l {
            sum = add(sum, scaled(mul(from[k], powers[l - k]), binomials[l - 1][k - 1]));
        }
        to[l] = add(to[l], sum);
    }
}

/// Adds an inner expansion about a point from which the one of `to` lies `moved`.
fn shift_inner(
    from: &Expansion,
    moved: Complex,
    binomials: &[[f64; 2 * TERMS + 1]; 2 * TERMS + 1],
    to: &mut Expansion,
) {
    let mut powers = [[1.0, 0.0]; TERMS + 1];
    for l in 1..=TERMS {
        powers[l] = mul(powers[l - 1], moved);
    }
    for l in 0..=TERMS {
        for k in l..=TERMS {
            to[l] = add(to[l], scaled(mul(from[k], powers[k - l]), binomials[k][l]));
        }
    }
}

/// Adds an outer expansion about a far point, which lies `from` the one of `to`, to an inner one.
fn turn(
    outer: &Expansion,
    from: Complex,
    binomials: &[[f64; 2 * TERMS + 1]; 2 * TERMS + 1],
    to: &mut Expansion,
) {
    let one = inverse(from);
    // Terms divided by powers of the distance, with alternating signs.
    let mut terms = [[0.0; 2]; TERMS + 1];
    let mut power = [1.0, 0.0];
    to[0] = add(to[0], mul(outer[0], ln(scaled(from, -1.0))));
    for k in 1..=TERMS {
        power = scaled(mul(power, one), -1.0);
        terms[k] = mul(outer[k], power);
        to[0] = add(to[0], terms[k]);
    }
    let mut power = [1.0, 0.0];
    for l in 1..=TERMS {
        power = mul(power, one);
        let mut sum = scaled(outer[0], -1.0 / l as f64);
        for k in 1..=TERMS {
            sum = add(sum, scaled(terms[k], binomials[l + k - 1][k - 1]));
        }
        to[l] = add(to[l], mul(sum, power));
    }
}

#[cfg(test)]
mod tests {
    use super::super::drive::silently;
    use super::*;

    #[test]
    fn potentials_are_those_of_all_pairs() {
        for count in [64, 1000, 5000] {
            let mut fmm = Fmm::new(count, 7);
            silently(3, |drive| fmm.step(drive));
            let charges: f64 = fmm.particles.data.iter().map(|[.., charge]| charge.abs()).sum();
            for (index, [x, y, _]) in fmm.particles.data.iter().enumerate().step_by(37) {
                let others = fmm.particles.data.iter().enumerate();
                let sum: f64 = others
                    .filter(|(other, _)| *other != index)
                    .map(|(_, [ox, oy, charge])| charge * (x - ox).hypot(y - oy).ln())
                    .sum();
                let wrong = (fmm.potential.data[index] - sum).abs() / charges;
                assert!(wrong < 1e-6, "{count}, {index}: wrong by {wrong}");
            }
        }
    }

    #[test]
    fn all_squares_are_near_or_interact_at_one_level() {
        let depth = 4;
        for square in [0, 17, 100, 255] {
            let mut seen = vec![0; 1 << (2 * depth)];
            around(square, depth, 1).for_each(|near| seen[near] += 1);
            let (mut level, mut above) = (depth, square);
            while level >= TOP {
                for other in interacting(above, level) {
                    for (leaf, count) in seen.iter_mut().enumerate() {
                        let (side, shift) = (1 << depth, depth - level);
                        let (x, y) = ((leaf % side) >> shift, (leaf / side) >> shift);
                        *count += usize::from((y << level) + x == other);
                    }
                }
                let side = 1 << level;
                above = above / side / 2 * (side / 2) + above % side / 2;
                level -= 1;
            }
            assert!(seen.iter().all(|count| *count == 1), "{square}");
        }
    }
}
