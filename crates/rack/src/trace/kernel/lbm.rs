//! Lattice-Boltzmann: 19 directions in three dimensions, one relaxation time, periodic.
//!
//! Cells lie one after the other with their 19 values, in two grids; a step gathers each cell's
//! values from its neighbours in one grid, collides, and stores them in the other.

use super::Sink;
use super::drive::Drive;
use super::space::{Array, Space};
use std::f64::consts::TAU;
use std::ops::ControlFlow;

const Q: usize = 19;
const TAU_STEPS: f64 = 0.8;
/// Speed of the wave that the fluid begins with.
const SPEED: f64 = 0.01;

/// Where each value goes in a step, and its weight.
const DIRECTIONS: [([i32; 3], f64); Q] = {
    const A: f64 = 1.0 / 18.0;
    const B: f64 = 1.0 / 36.0;
    [
        ([0, 0, 0], 1.0 / 3.0),
        ([1, 0, 0], A),
        ([-1, 0, 0], A),
        ([0, 1, 0], A),
        ([0, -1, 0], A),
        ([0, 0, 1], A),
        ([0, 0, -1], A),
        ([1, 1, 0], B),
        ([-1, -1, 0], B),
        ([1, -1, 0], B),
        ([-1, 1, 0], B),
        ([1, 0, 1], B),
        ([-1, 0, -1], B),
        ([1, 0, -1], B),
        ([-1, 0, 1], B),
        ([0, 1, 1], B),
        ([0, -1, -1], B),
        ([0, 1, -1], B),
        ([0, -1, 1], B),
    ]
};

pub(super) struct Lbm {
    /// Cells of an edge of the cube.
    edge: usize,
    /// Which grid is the present one.
    now: usize,
    grids: [Array<f64>; 2],
}

impl Lbm {
    pub fn new(edge: usize) -> Lbm {
        let mut space = Space::new();
        let mut grid = || space.array(edge * edge * edge * Q, 0.0);
        Lbm { edge, now: 0, grids: [grid(), grid()] }
    }

    pub fn fitting(bytes: u64) -> Lbm {
        let cells = bytes / (2 * Q as u64 * 8);
        let edge = (2..).take_while(|edge| edge * edge * edge <= cells).last();
        Lbm::new(edge.unwrap_or(2) as usize)
    }

    pub fn bytes(&self) -> u64 {
        self.grids.iter().map(Array::bytes).sum()
    }

    pub fn run(&mut self, drive: &mut Drive<'_>, steps: u32) -> ControlFlow<()> {
        self.begin(drive)?;
        (0..steps).try_for_each(|_| self.step(drive))
    }

    /// A wave: fluid moves along x, by the sine of z.
    pub fn begin(&mut self, drive: &mut Drive<'_>) -> ControlFlow<()> {
        let edge = self.edge;
        let [grid, _] = &mut self.grids;
        let base = grid.addr(0);
        drive.phase(grid.data.chunks_mut(edge * Q).enumerate(), |(row, values), sink| {
            let z = row / edge;
            let speed = SPEED * (TAU * z as f64 / edge as f64).sin();
            for (place, value) in values.iter_mut().enumerate() {
                *value = equilibrium(place % Q, 1.0, [speed, 0.0, 0.0]);
                sink.store(base + ((row * edge * Q + place) * 8) as u64, 8);
            }
        })
    }

    pub fn step(&mut self, drive: &mut Drive<'_>) -> ControlFlow<()> {
        let edge = self.edge;
        let [first, second] = &mut self.grids;
        let (from, to) = if self.now == 0 { (&*first, second) } else { (&*second, first) };
        self.now = 1 - self.now;
        let base = to.addr(0);
        drive.phase(to.data.chunks_mut(edge * Q).enumerate(), |(row, values), sink| {
            let (y, z) = (row % edge, row / edge);
            for (x, cell) in values.chunks_mut(Q).enumerate() {
                let gathered = gather(from, edge, [x, y, z], sink);
                cell.copy_from_slice(&collide(&gathered));
                for q in 0..Q {
                    sink.store(base + (((row * edge + x) * Q + q) * 8) as u64, 8);
                }
            }
        })
    }

    #[cfg(test)]
    fn cell(&self, at: [usize; 3]) -> &[f64] {
        let [x, y, z] = at;
        let cell = (z * self.edge + y) * self.edge + x;
        &self.grids[self.now].data[cell * Q..(cell + 1) * Q]
    }
}

fn equilibrium(q: usize, density: f64, speed: [f64; 3]) -> f64 {
    let (direction, weight) = DIRECTIONS[q];
    let along: f64 = direction.iter().zip(speed).map(|(e, u)| f64::from(*e) * u).sum();
    let square: f64 = speed.iter().map(|u| u * u).sum();
    weight * density * (1.0 + 3.0 * along + 4.5 * along * along - 1.5 * square)
}

/// What streams into a cell.
fn gather(from: &Array<f64>, edge: usize, at: [usize; 3], sink: &mut impl Sink) -> [f64; Q] {
    let mut gathered = [0.0; Q];
    for (q, (direction, _)) in DIRECTIONS.iter().enumerate() {
        let [x, y, z] = [0, 1, 2].map(|axis| match direction[axis] {
            1 if at[axis] == 0 => edge - 1,
            1 => at[axis] - 1,
            -1 if at[axis] + 1 == edge => 0,
            -1 => at[axis] + 1,
            _ => at[axis],
        });
        let index = ((z * edge + y) * edge + x) * Q + q;
        sink.load(from.addr(index), 8);
        gathered[q] = from.data[index];
    }
    gathered
}

/// What becomes of a cell's values.
fn collide(values: &[f64; Q]) -> [f64; Q] {
    let density: f64 = values.iter().sum();
    let mut momentum = [0.0; 3];
    for (value, (direction, _)) in values.iter().zip(&DIRECTIONS) {
        for axis in 0..3 {
            momentum[axis] += f64::from(direction[axis]) * value;
        }
    }
    let speed = momentum.map(|along| along / density);
    std::array::from_fn(|q| values[q] - (values[q] - equilibrium(q, density, speed)) / TAU_STEPS)
}

#[cfg(test)]
mod tests {
    use super::super::drive::silently;
    use super::*;

    fn mass(lbm: &Lbm) -> f64 {
        lbm.grids[lbm.now].data.iter().sum()
    }

    /// Speed along x of one cell in each layer.
    fn speeds(lbm: &Lbm) -> Vec<f64> {
        let along = |cell: &[f64]| -> f64 {
            let moved = cell.iter().zip(&DIRECTIONS);
            moved.map(|(value, (direction, _))| value * f64::from(direction[0])).sum()
        };
        (0..lbm.edge).map(|z| along(lbm.cell([1, 2, z]))).collect()
    }

    #[test]
    fn mass_is_conserved_and_a_wave_decays_by_the_viscosity() {
        let (edge, steps) = (24, 30);
        let mut lbm = Lbm::new(edge);
        let mut before = 0.0;
        silently(3, |drive| {
            lbm.begin(drive)?;
            before = mass(&lbm);
            (0..steps).try_for_each(|_| lbm.step(drive))
        });
        assert!((mass(&lbm) / before - 1.0).abs() < 1e-12, "{before} {}", mass(&lbm));
        // Viscosity is (τ - ½) / 3; the wave's amplitude decays by exp(-ν k² t).
        let k = TAU / edge as f64;
        let decay = (-(TAU_STEPS - 0.5) / 3.0 * k * k * f64::from(steps)).exp();
        let amplitude = speeds(&lbm).into_iter().fold(0.0, f64::max);
        assert!((amplitude / (SPEED * decay) - 1.0).abs() < 0.01, "{amplitude} {decay}");
    }

    #[test]
    fn a_cell_is_read_and_written_once_in_each_direction() {
        let mut counts = [0u64; 2];
        let mut emit = |record: crate::trace::Record| {
            counts[usize::from(record.write)] += 1;
            ControlFlow::Continue(())
        };
        let config = super::super::Config::new(super::super::Name::Lbm, 1 << 20);
        let config = super::super::Config { caches: None, steps: 2, ..config };
        super::super::run(&config, &mut emit).unwrap();
        let cells = Lbm::fitting(1 << 20).edge.pow(3) as u64;
        assert_eq!(counts, [2 * 19 * cells, 3 * 19 * cells]);
    }
}
