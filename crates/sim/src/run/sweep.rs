//! Many seeds on several threads, with results as if one thread had run them in order.

use super::{Config, Counts, Failure, PANIC, SeedFn, SeedOutcome};
use crate::time::Ps;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once, mpsc};
use xxhash_rust::xxh3::Xxh3;

/// Failures that a sweep keeps word by word; further ones are counted.
pub const FAILURES_KEPT_MAX: usize = 32;

const THREADS_MAX: u64 = 1024;
/// Results of one thread that wait to be added up.
const RESULTS_WAITING_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedFailure {
    pub seed: u64,
    pub failure: Failure,
}

/// What a sweep is at.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub done: u64,
    pub seeds: u64,
    /// Of the done ones, those that failed.
    pub failed: u64,
    pub operations: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// The first seed; the others follow it.
    pub first_seed: u64,
    /// Seeds that were run: all, or those before the sweep was stopped.
    pub seeds: u64,
    /// A hash over the seeds and their traces, in order.
    pub trace_hash: u64,
    pub events: u64,
    pub operations: u64,
    /// The fewest operations of a seed that passed.
    pub operations_min: u64,
    /// Virtual time in all, at most what [`Ps`] holds.
    pub virtual_time: Ps,
    pub counts: Counts,
    pub failed_seeds: u64,
    /// The first failures, in the order of their seeds.
    pub failures: Vec<SeedFailure>,
}

/// Runs `seeds` seeds from `first_seed` on `threads` threads (at least one) and sums up in the
/// order of the seeds. `progress` is asked on the caller's thread after each seed; when it breaks,
/// no further seed is begun, and what was begun is finished and counted.
pub fn sweep(
    config: &Config,
    first_seed: u64,
    seeds: u64,
    threads: usize,
    run: &SeedFn,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Sweep {
    let threads = threads.clamp(1, seeds.clamp(1, THREADS_MAX) as usize);
    let queue = Mutex::new(Queue { next: 0, end: seeds });
    let take = || queue.lock().expect("no thread panics while holding it").take();
    let mut sum = Sum::new(first_seed);
    std::thread::scope(|scope| {
        let (sender, results) = mpsc::sync_channel(threads * RESULTS_WAITING_MAX);
        for _ in 0..threads {
            let sender = sender.clone();
            let take = &take;
            scope.spawn(move || {
                while let Some(index) = take() {
                    let outcome = guarded(run, config, first_seed.wrapping_add(index));
                    if sender.send((index, outcome)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut state = Progress { done: 0, seeds, failed: 0, operations: 0 };
        for (index, outcome) in results {
            state.done += 1;
            state.failed += u64::from(outcome.failure.is_some());
            state.operations += outcome.operations;
            sum.add(index, outcome);
            if progress(&state).is_break() {
                queue.lock().expect("no thread panics while holding it").close();
            }
        }
    });
    sum.finish()
}

/// The seeds that no thread has begun.
struct Queue {
    next: u64,
    end: u64,
}

impl Queue {
    fn take(&mut self) -> Option<u64> {
        let index = self.next;
        self.next += u64::from(index < self.end);
        (index < self.end).then_some(index)
    }

    /// What was taken is a run of seeds without a gap: the sum has no hole.
    fn close(&mut self) {
        self.end = self.next;
    }
}

/// Adds outcomes in the order of their seeds, whatever the order in which they come.
struct Sum {
    sweep: Sweep,
    hash: Xxh3,
    early: BTreeMap<u64, SeedOutcome>,
}

impl Sum {
    fn new(first_seed: u64) -> Sum {
        let sweep = Sweep { first_seed, operations_min: u64::MAX, ..Sweep::default() };
        Sum { sweep, hash: Xxh3::new(), early: BTreeMap::new() }
    }

    fn add(&mut self, index: u64, outcome: SeedOutcome) {
        self.early.insert(index, outcome);
        while let Some(outcome) = self.early.remove(&self.sweep.seeds) {
            self.add_next(outcome);
        }
    }

    fn add_next(&mut self, outcome: SeedOutcome) {
        let sweep = &mut self.sweep;
        self.hash.update(&outcome.seed.to_le_bytes());
        self.hash.update(&outcome.trace_hash.to_le_bytes());
        sweep.seeds += 1;
        sweep.events += outcome.events;
        sweep.operations += outcome.operations;
        sweep.virtual_time = Ps(sweep.virtual_time.0.saturating_add(outcome.virtual_time.0));
        sweep.counts.merge(&outcome.counts);
        match outcome.failure {
            None => sweep.operations_min = sweep.operations_min.min(outcome.operations),
            Some(failure) => {
                sweep.failed_seeds += 1;
                if sweep.failures.len() < FAILURES_KEPT_MAX {
                    sweep.failures.push(SeedFailure { seed: outcome.seed, failure });
                }
            }
        }
    }

    fn finish(mut self) -> Sweep {
        assert!(self.early.is_empty(), "every seed that was begun was finished");
        if self.sweep.operations_min == u64::MAX {
            self.sweep.operations_min = 0;
        }
        self.sweep.trace_hash = self.hash.digest();
        self.sweep
    }
}

std::thread_local! {
    /// While a run is on: where it panicked and why.
    static PANICKED: RefCell<Option<Option<String>>> = const { RefCell::new(None) };
}

/// Runs one seed; a panic becomes a failure of checker [`PANIC`] instead of text on standard
/// error.
pub fn guarded(run: &SeedFn, config: &Config, seed: u64) -> SeedOutcome {
    static HOOK: Once = Once::new();
    HOOK.call_once(catch_messages);
    PANICKED.set(Some(None));
    let outcome = catch_unwind(AssertUnwindSafe(|| run(config, seed)));
    let message = PANICKED.take().flatten();
    outcome.unwrap_or_else(|_| {
        let text = message.unwrap_or_else(|| "a panic without a message".into());
        let failure = Failure { checker: PANIC.into(), text, at: Ps::ZERO };
        SeedOutcome { seed, failure: Some(failure), ..SeedOutcome::default() }
    })
}

/// Keeps the message of a panic inside a run for its failure; other panics go on as before.
fn catch_messages() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let inside = PANICKED.try_with(|slot| match slot.borrow_mut().as_mut() {
            Some(message) => {
                // The first is the cause.
                message.get_or_insert_with(|| info.to_string().replace('\n', " "));
                true
            }
            None => false,
        });
        if !inside.unwrap_or(false) {
            before(info);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Rng};
    use crate::run::{Fault, Group};
    use std::sync::atomic::{AtomicU64, Ordering};

    fn toy(config: &Config, seed: u64) -> SeedOutcome {
        let mut rng = Rng::new(seed, Purpose::Shape, 0);
        let mut counts = Counts::default();
        counts.fault(Fault::ALL[rng.below(16) as usize]);
        counts.add_result(Group::Operation, "read", "ok", rng.below(9));
        // Seeds end in another order than they begin.
        (0..rng.below(20_000)).for_each(|_| std::hint::spin_loop());
        assert!(seed != 13, "thirteen\nis too many");
        let failure = Failure { checker: "toy".into(), text: "seven".into(), at: Ps::us(1) };
        SeedOutcome {
            seed,
            trace_hash: rng.next_u64(),
            events: seed,
            operations: u64::from(config.operations),
            virtual_time: Ps::ms(seed),
            counts,
            failure: seed.is_multiple_of(7).then_some(failure),
            trace: Vec::new(),
        }
    }

    fn on(threads: usize) -> Sweep {
        sweep(&Config::default(), 1, 100, threads, &toy, &mut |_| ControlFlow::Continue(()))
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let one = on(1);
        assert_eq!((one.seeds, one.events, one.operations), (100, 5050 - 13, 198_000));
        assert_eq!((one.failed_seeds, one.operations_min), (15, 2000));
        assert_eq!(one.failures[..2].iter().map(|f| f.seed).collect::<Vec<_>>(), [7, 13]);
        assert_eq!(one.failures[1].failure.checker, PANIC);
        let text = &one.failures[1].failure.text;
        assert!(text.contains("thirteen is too many") && text.contains("sweep.rs"), "{text}");
        assert_eq!(one, on(2));
        assert_eq!(one, on(7));
    }

    #[test]
    fn another_seed_or_another_trace_gives_another_hash() {
        let go = &mut |_: &Progress| ControlFlow::Continue(());
        let other = |config: &Config, seed| {
            let mut outcome = toy(config, seed);
            outcome.trace_hash ^= u64::from(seed == 50);
            outcome
        };
        let hash = on(1).trace_hash;
        assert_ne!(sweep(&Config::default(), 1, 100, 2, &other, go).trace_hash, hash);
        assert_ne!(sweep(&Config::default(), 2, 100, 2, &toy, go).trace_hash, hash);
    }

    #[test]
    fn a_sweep_that_is_stopped_has_no_gap_and_the_lowest_failure() {
        for threads in [1, 3] {
            let begun = AtomicU64::new(0);
            let counted = |config: &Config, seed| {
                // Relaxed: a count that is read after the threads have ended.
                begun.fetch_add(1, Ordering::Relaxed);
                toy(config, seed)
            };
            let mut stop = |progress: &Progress| match progress.failed {
                0 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            };
            let result = sweep(&Config::default(), 1, 1_000_000, threads, &counted, &mut stop);
            // Relaxed: as above.
            assert_eq!(result.seeds, begun.load(Ordering::Relaxed));
            assert_eq!(result.failures[0].seed, 7);
        }
    }

    #[test]
    fn no_seed_is_an_empty_sweep() {
        let go = &mut |_: &Progress| ControlFlow::Continue(());
        let none = sweep(&Config::default(), 1, 0, 4, &toy, go);
        assert_eq!((none.seeds, none.operations_min, none.failed_seeds), (0, 0, 0));
    }
}
