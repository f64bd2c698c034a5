//! Several engines at once: caches on memory of their own, each with a thread on a core of its own.

use super::tiering_load::{Load, LoadSummary, TieringTest};
use crate::micro::pin::{self, PinError};
use crate::run::BenchError;
use rackpool_cache::Options;
use rackpool_mem::emulation::FarModel;
use rackpool_tiers::advice::ObservedLoad;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

/// Does the work for each item at once, on a thread of its own on a core of its own. What is for
/// one core is done by the caller, which is there.
pub(super) fn together<I: Send, T: Send>(
    cores: &[usize],
    items: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> T + Sync,
) -> Result<Vec<T>, BenchError> {
    if let [_] = cores {
        return Ok(items.into_iter().map(work).collect());
    }
    let (start, work) = (&Barrier::new(cores.len()), &work);
    let done: Result<Vec<T>, PinError> = thread::scope(|scope| {
        let run = |(core, item): (usize, I)| {
            scope.spawn(move || {
                let pinned = pin::pin_to(core);
                start.wait();
                pinned.map(|()| work(item))
            })
        };
        let threads: Vec<_> = cores.iter().copied().zip(items).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("an engine's thread")).collect()
    });
    Ok(done?)
}

/// Engines that have gone through what warms them up.
pub(super) struct Engines<'w> {
    cores: &'w [usize],
    loads: Vec<Load<'w>>,
}

impl<'w> Engines<'w> {
    /// One on each core, each with these options and a stream of its own.
    pub fn load(
        cores: &'w [usize],
        test: &TieringTest<'w>,
        options: &Options,
        stored: &'w [u8],
    ) -> Result<Engines<'w>, BenchError> {
        let load = |engine| test.load(options.clone(), stored, engine);
        let loads = together(cores, 0..cores.len() as u64, load)?;
        Ok(Engines { cores, loads: loads.into_iter().collect::<Result<_, BenchError>>()? })
    }

    /// As [`Load::emulate`]: each has this model to itself.
    pub fn emulate(&self, model: FarModel, weights: Option<[u32; 2]>) -> Result<(), BenchError> {
        self.loads.iter().try_for_each(|load| load.emulate(model, weights))
    }

    /// Operations a second of all, each over at least `least`.
    pub fn slice(&mut self, least: Duration) -> Result<f64, BenchError> {
        let rates = together(self.cores, &mut self.loads, |load| load.slice(least))?;
        Ok(rates.into_iter().sum())
    }

    /// As [`Load::observe`], of the first one while all do the same.
    pub fn observe(&mut self, operations: u64) -> Result<ObservedLoad, BenchError> {
        let observed = together(self.cores, &mut self.loads, |load| load.observe(operations))?;
        Ok(observed.into_iter().next().expect("there is an engine"))
    }

    /// Of all.
    pub fn seen(&self) -> LoadSummary {
        LoadSummary::of(&self.loads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Size;
    use std::slice;

    #[test]
    fn engines_share_nothing_and_their_rates_and_counts_add_up() {
        let cores = pin::allowed_cores().unwrap();
        let two = [cores[0], cores[cores.len() - 1]];
        let test = TieringTest::zipfian(Size::Smoke);
        let stored = vec![7; 1 << 16];
        let mut engines = Engines::load(&two, &test, &test.options(test.memory), &stored).unwrap();
        let rate = engines.slice(Duration::from_millis(20)).unwrap();
        let counts = engines.loads.iter().map(|load| LoadSummary::of(slice::from_ref(load)));
        let counts: Vec<u64> = counts.map(|seen| seen.batches.n).collect();
        let seen = engines.seen();
        assert!(rate > 0.0 && counts.iter().all(|count| *count > 0), "{rate}, {counts:?}");
        assert_eq!(seen.batches.n, counts.iter().sum::<u64>());
        // All fit, for each.
        assert!(seen.hit_ratio > 0.99 && seen.hits_per_op > 0.99, "{seen:?}");
    }

    #[test]
    fn a_core_that_is_not_there_is_an_error() {
        let error = together(&[0, usize::MAX], [1, 2], |item| item).unwrap_err();
        assert!(matches!(error, BenchError::Pin(PinError::NoSuchCore { .. })));
    }
}
