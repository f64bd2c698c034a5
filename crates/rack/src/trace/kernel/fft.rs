//! The six-step Fourier transform of one dimension: a matrix is transposed, its rows transformed
//! and turned by roots of unity, transposed, transformed, transposed.

use super::Sink;
use super::drive::{Drive, KernelThread};
use super::space::{Array, Space};
use std::f64::consts::TAU;
use std::ops::ControlFlow;

type Complex = [f64; 2];

/// Rows of a block of a transposition.
const BLOCK_ROWS: usize = 8;
/// Bytes of a number.
const BYTES: u16 = 16;

fn times(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

/// e to the -2πi `part` / `of`.
fn root(part: usize, of: usize) -> Complex {
    let (sine, cosine) = (-TAU * part as f64 / of as f64).sin_cos();
    [cosine, sine]
}

/// The numbers, as a matrix of `rows` rows, and a matrix to work in.
pub(super) struct Fft {
    rows: usize,
    columns: usize,
    data: Array<Complex>,
    work: Array<Complex>,
    /// Roots of unity for the longer rows.
    roots: Array<Complex>,
}

impl Fft {
    /// `1 << bits` numbers.
    pub fn new(bits: u32) -> Fft {
        let (rows, columns) = (1 << (bits / 2), 1 << bits.div_ceil(2));
        let mut space = Space::new();
        let mut matrix = || space.array(rows * columns, [0.0; 2]);
        let (data, work) = (matrix(), matrix());
        Fft { rows, columns, data, work, roots: space.array(columns / 2, [0.0; 2]) }
    }

    pub fn fitting(bytes: u64) -> Fft {
        let bits = (4_u32..36).take_while(|bits| {
            let roots = 1u64 << bits.div_ceil(2);
            (2 << bits) * u64::from(BYTES) + roots / 2 * u64::from(BYTES) <= bytes
        });
        Fft::new(bits.last().unwrap_or(4))
    }

    pub fn bytes(&self) -> u64 {
        self.data.bytes() + self.work.bytes() + self.roots.bytes()
    }

    pub fn run(&mut self, drive: &mut Drive<'_>, steps: u32) -> ControlFlow<()> {
        self.begin(drive, |index| {
            let value = index.wrapping_mul(2_654_435_761) % 1024;
            [value as f64 / 512.0 - 1.0, 0.0]
        })?;
        (0..steps).try_for_each(|_| self.transform(drive))
    }

    /// Fills in numbers by their index, and the roots.
    pub fn begin(
        &mut self,
        drive: &mut Drive<'_>,
        value: impl Fn(usize) -> Complex + Sync,
    ) -> ControlFlow<()> {
        let columns = self.columns;
        for (array, given) in [(&mut self.data, true), (&mut self.roots, false)] {
            let base = array.addr(0);
            let length = columns.min(array.data.len());
            drive.phase(array.data.chunks_mut(length).enumerate(), |(row, values), sink| {
                for (place, to) in values.iter_mut().enumerate() {
                    let index = row * length + place;
                    *to = if given { value(index) } else { root(index, columns) };
                    sink.store(base + index as u64 * u64::from(BYTES), BYTES);
                }
            })?;
        }
        ControlFlow::Continue(())
    }

    /// Transforms; the result lies in the order of frequencies in the same array.
    pub fn transform(&mut self, drive: &mut Drive<'_>) -> ControlFlow<()> {
        let Fft { rows, columns, data, work, roots } = self;
        let (rows, columns) = (*rows, *columns);
        transpose(data, rows, columns, work, drive)?;
        transform_rows(work, rows, roots, true, drive)?;
        transpose(work, columns, rows, data, drive)?;
        transform_rows(data, columns, roots, false, drive)?;
        transpose(data, rows, columns, work, drive)?;
        std::mem::swap(data, work);
        ControlFlow::Continue(())
    }
}

/// Makes columns of a matrix rows of another, block by block.
fn transpose(
    from: &Array<Complex>,
    rows: usize,
    columns: usize,
    to: &mut Array<Complex>,
    drive: &mut Drive<'_>,
) -> ControlFlow<()> {
    let base = to.addr(0);
    let height = BLOCK_ROWS.min(columns);
    drive.phase(to.data.chunks_mut(height * rows).enumerate(), |(block, values), sink| {
        for row in 0..rows {
            for place in 0..values.len() / rows {
                let index = row * columns + block * height + place;
                sink.load(from.addr(index), BYTES);
                values[place * rows + row] = from.data[index];
                let index = (block * height + place) * rows + row;
                sink.store(base + index as u64 * u64::from(BYTES), BYTES);
            }
        }
    })
}

/// Transforms each row; then turns it by its roots if it is `turned`.
fn transform_rows(
    matrix: &mut Array<Complex>,
    length: usize,
    roots: &Array<Complex>,
    turned: bool,
    drive: &mut Drive<'_>,
) -> ControlFlow<()> {
    let (base, all) = (matrix.addr(0), matrix.data.len());
    drive.phase(matrix.data.chunks_mut(length).enumerate(), |(row, values), sink| {
        let base = base + (row * length) as u64 * u64::from(BYTES);
        let mut row_of = Row { values, base, sink };
        row_of.transform(roots);
        if turned {
            for place in 0..length {
                let value = row_of.load(place);
                row_of.store(place, times(value, root(row * place, all)));
            }
        }
    })
}

/// A row with its address.
struct Row<'a> {
    values: &'a mut [Complex],
    base: u64,
    sink: &'a mut KernelThread,
}

impl Row<'_> {
    fn load(&mut self, place: usize) -> Complex {
        self.sink.load(self.base + place as u64 * u64::from(BYTES), BYTES);
        self.values[place]
    }

    fn store(&mut self, place: usize, value: Complex) {
        self.sink.store(self.base + place as u64 * u64::from(BYTES), BYTES);
        self.values[place] = value;
    }

    fn transform(&mut self, roots: &Array<Complex>) {
        let length = self.values.len();
        let bits = length.trailing_zeros();
        for place in 0..length {
            let other = place.reverse_bits() >> (usize::BITS - bits).min(usize::BITS - 1);
            if place < other {
                let (a, b) = (self.load(place), self.load(other));
                self.store(place, b);
                self.store(other, a);
            }
        }
        let mut half = 1;
        while half < length {
            let stride = roots.data.len() / half;
            for from in (0..length).step_by(2 * half) {
                for place in 0..half {
                    self.sink.load(roots.addr(place * stride), BYTES);
                    let a = self.load(from + place);
                    let b = self.load(from + place + half);
                    let b = times(b, roots.data[place * stride]);
                    self.store(from + place, [a[0] + b[0], a[1] + b[1]]);
                    self.store(from + place + half, [a[0] - b[0], a[1] - b[1]]);
                }
            }
            half *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::drive::silently;
    use super::*;

    #[test]
    fn the_transform_is_the_sum_that_defines_it() {
        for bits in [4, 7, 10] {
            let count: usize = 1 << bits;
            let value = |index: usize| {
                let part = |by: usize| ((index * by + 3) % 17) as f64 / 8.0 - 1.0;
                [part(5), part(11)]
            };
            let mut fft = Fft::new(bits);
            silently(3, |drive| {
                fft.begin(drive, value)?;
                fft.transform(drive)
            });
            for frequency in 0..count {
                let mut sum = [0.0; 2];
                for index in 0..count {
                    let term = times(value(index), root(index * frequency % count, count));
                    sum = [sum[0] + term[0], sum[1] + term[1]];
                }
                let found = fft.data.data[frequency];
                let wrong = (found[0] - sum[0]).hypot(found[1] - sum[1]);
                assert!(wrong < 1e-9, "{bits} bits, {frequency}: {found:?} {sum:?}");
            }
        }
    }
}
