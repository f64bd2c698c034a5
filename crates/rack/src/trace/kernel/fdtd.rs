//! Maxwell's equations on Yee's grid, in a box of metal: three electric and three magnetic fields
//! in turn, in units where light moves one cell in a unit of time.

use super::Sink;
use super::drive::Drive;
use super::space::{Array, Space};
use std::f64::consts::PI;
use std::ops::ControlFlow;

/// Time of a step; below 1/√3.
const STEP: f64 = 0.5;

/// The fields. Components lie as Yee has them: an electric one on the edge of a cell, a magnetic
/// one on its face.
pub(super) struct Fdtd {
    edge: usize,
    electric: [Array<f64>; 3],
    magnetic: [Array<f64>; 3],
}

impl Fdtd {
    pub fn new(edge: usize) -> Fdtd {
        let mut space = Space::new();
        let mut field = || space.array(edge * edge * edge, 0.0);
        let electric = [field(), field(), field()];
        Fdtd { edge, electric, magnetic: [field(), field(), field()] }
    }

    pub fn fitting(bytes: u64) -> Fdtd {
        let cells = bytes / 48;
        let edge = (3..).take_while(|edge| edge * edge * edge <= cells).last();
        Fdtd::new(edge.unwrap_or(3) as usize)
    }

    pub fn bytes(&self) -> u64 {
        self.electric.iter().chain(&self.magnetic).map(Array::bytes).sum()
    }

    pub fn run(&mut self, drive: &mut Drive<'_>, steps: u32) -> ControlFlow<()> {
        self.begin(drive)?;
        (0..steps).try_for_each(|_| self.step(drive))
    }

    /// A standing wave of the box: half a wave along x and along y.
    pub fn begin(&mut self, drive: &mut Drive<'_>) -> ControlFlow<()> {
        let edge = self.edge;
        let wave = |place: usize| (PI * place as f64 / (edge - 1) as f64).sin();
        for (axis, field) in self.electric.iter_mut().chain(&mut self.magnetic).enumerate() {
            let base = field.addr(0);
            drive.phase(field.data.chunks_mut(edge).enumerate(), |(row, values), sink| {
                let value = if axis == 2 { wave(row / edge) * wave(row % edge) } else { 0.0 };
                for (k, to) in values.iter_mut().enumerate() {
                    *to = value;
                    sink.store(base + ((row * edge + k) * 8) as u64, 8);
                }
            })?;
        }
        ControlFlow::Continue(())
    }

    pub fn step(&mut self, drive: &mut Drive<'_>) -> ControlFlow<()> {
        // A magnetic component changes by what lies above it, an electric one by what lies below.
        half(self.edge, &self.electric, &mut self.magnetic, true, drive)?;
        half(self.edge, &self.magnetic, &mut self.electric, false, drive)
    }
}

/// Half a step: all components of `to` change by the curl of `from`.
fn half(
    edge: usize,
    from: &[Array<f64>; 3],
    to: &mut [Array<f64>; 3],
    above: bool,
    drive: &mut Drive<'_>,
) -> ControlFlow<()> {
    let bases = [0, 1, 2].map(|axis| to[axis].addr(0));
    let [x, y, z] = to;
    let (x, y, z) = (x.data.chunks_mut(edge), y.data.chunks_mut(edge), z.data.chunks_mut(edge));
    let rows = x.zip(y).zip(z).enumerate();
    drive.phase(rows, |(row, ((x, y), z)), sink| {
        let (i, j) = (row / edge, row % edge);
        for k in 0..edge {
            for (axis, values) in [&mut *x, &mut *y, &mut *z].into_iter().enumerate() {
                if !lies([i, j, k], axis, edge, above) {
                    continue;
                }
                let curl = curl(from, [i, j, k], axis, edge, above, sink);
                let addr = bases[axis] + ((row * edge + k) * 8) as u64;
                sink.load(addr, 8);
                values[k] -= if above { STEP * curl } else { -STEP * curl };
                sink.store(addr, 8);
            }
        }
    })
}

/// Whether a component is there and changes: electric ones in the walls do not.
fn lies(at: [usize; 3], axis: usize, edge: usize, above: bool) -> bool {
    (0..3).all(|other| match (other == axis, above) {
        // A face lies across its axis, an edge along it.
        (true, true) => true,
        (false, true) | (true, false) => at[other] + 1 < edge,
        (false, false) => at[other] > 0 && at[other] + 1 < edge,
    })
}

/// A component of the curl.
fn curl(
    from: &[Array<f64>; 3],
    at: [usize; 3],
    axis: usize,
    edge: usize,
    above: bool,
    sink: &mut impl Sink,
) -> f64 {
    let (next, last) = ((axis + 1) % 3, (axis + 2) % 3);
    let strides = [edge * edge, edge, 1];
    let here = (at[0] * edge + at[1]) * edge + at[2];
    let mut difference = |field: usize, along: usize| {
        let (high, low) =
            if above { (here + strides[along], here) } else { (here, here - strides[along]) };
        sink.load(from[field].addr(high), 8);
        sink.load(from[field].addr(low), 8);
        from[field].data[high] - from[field].data[low]
    };
    difference(last, next) - difference(next, last)
}

#[cfg(test)]
mod tests {
    use super::super::drive::silently;
    use super::*;

    #[test]
    fn a_standing_wave_swings_with_the_frequency_of_the_grid() {
        let (edge, steps) = (12, 200);
        let mut fdtd = Fdtd::new(edge);
        let k = PI / (edge - 1) as f64;
        // The grid's own dispersion: sin²(ωΔt/2) = Δt² (sin²(kx/2) + sin²(ky/2)).
        let sine = STEP * (2.0 * (k / 2.0).sin().powi(2)).sqrt();
        let omega = 2.0 * sine.asin() / STEP;
        silently(3, |drive| {
            fdtd.begin(drive)?;
            for step in 1..=steps {
                fdtd.step(drive)?;
                // The magnetic field was 0 half a step before the beginning.
                let phase = omega * STEP * (f64::from(step) + 0.5);
                let expected = phase.cos() / (omega * STEP / 2.0).cos();
                for (i, j, z) in [(5, 4, 0), (1, 1, 3), (10, 6, 10)] {
                    let shape = (k * i as f64).sin() * (k * j as f64).sin();
                    let value = fdtd.electric[2].data[(i * edge + j) * edge + z];
                    assert!((value - shape * expected).abs() < 1e-12, "{step}: {value}");
                }
            }
            ControlFlow::Continue(())
        });
        // Nothing else appears: no electric field across, no magnetic one along.
        let others = [&fdtd.electric[0], &fdtd.electric[1], &fdtd.magnetic[2]];
        assert!(others.iter().all(|field| field.data.iter().all(|value| value.abs() < 1e-12)));
    }
}
