//! One cache line between two cores: the floor under every ring and every message in a rack.
//!
//! Two pinned threads write the same line in turn, the first odd numbers, the second even ones.
//! A round trip is two changes of ownership. Nothing else is on the line.

use super::Wait;
use super::pin::{PinError, pin_to};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for one answer before the other end counts as lost.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(10);
/// Turns between two looks at the clock.
const TURNS_PER_CLOCK_LOOK: u32 = 1 << 16;

/// Alone on its line, also for processors that fetch lines in pairs.
#[repr(align(128))]
struct SharedLine(AtomicU64);

/// Why there is no number. A retry helps when the machine was overloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// A thread could not be put on its core.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// No answer in ten seconds.
    #[error("no answer from the other core within {} s", ANSWER_WAIT_MAX.as_secs())]
    Lost,
}

/// Nanoseconds for a round trip of one cache line between `core_first` and `core_second`, the
/// mean over `round_trips`. On one core both ends yield instead of spinning. Blocks the caller,
/// and does not move its thread.
///
/// # Errors
/// [`LineError`].
///
/// # Panics
/// When `round_trips` is 0.
pub fn ping_pong_ns(
    core_first: usize,
    core_second: usize,
    round_trips: u64,
) -> Result<f64, LineError> {
    assert!(round_trips > 0, "no round trip, no time");
    let wait = if core_first == core_second { Wait::Yield } else { Wait::Spin };
    let (line, stop) = (SharedLine(AtomicU64::new(0)), AtomicBool::new(false));
    let warmup = (round_trips / 10).clamp(1, 10_000);
    thread::scope(|scope| {
        let answerer = scope.spawn(|| {
            let outcome = pin_to(core_second)
                .map_err(LineError::from)
                .and_then(|()| answer(&line.0, &stop, wait, warmup + round_trips));
            if outcome.is_err() {
                // Relaxed: only ends the asker's wait early; the flag carries no data.
                stop.store(true, Ordering::Relaxed);
            }
            outcome
        });
        let asker = scope.spawn(|| {
            let outcome = pin_to(core_first).map_err(LineError::from).and_then(|()| {
                ask(&line.0, &stop, wait, 0, warmup)?;
                let start = Instant::now();
                ask(&line.0, &stop, wait, warmup, round_trips)?;
                Ok(start.elapsed())
            });
            if outcome.is_err() {
                // Relaxed: only ends the answerer's wait early; the flag carries no data.
                stop.store(true, Ordering::Relaxed);
            }
            outcome
        });
        let elapsed = asker.join().map_err(|_| LineError::Lost)??;
        answerer.join().map_err(|_| LineError::Lost)??;
        Ok(elapsed.as_secs_f64() * 1e9 / round_trips as f64)
    })
}

fn ask(
    line: &AtomicU64,
    stop: &AtomicBool,
    wait: Wait,
    done: u64,
    count: u64,
) -> Result<(), LineError> {
    for trip in done..done + count {
        // Release: pairs with the Acquire in `await_value` of the answering thread.
        line.store(2 * trip + 1, Ordering::Release);
        await_value(line, stop, wait, 2 * trip + 2)?;
    }
    Ok(())
}

fn answer(line: &AtomicU64, stop: &AtomicBool, wait: Wait, count: u64) -> Result<(), LineError> {
    for trip in 0..count {
        await_value(line, stop, wait, 2 * trip + 1)?;
        // Release: pairs with the Acquire in `await_value` of the asking thread.
        line.store(2 * trip + 2, Ordering::Release);
    }
    Ok(())
}

#[inline]
fn await_value(
    line: &AtomicU64,
    stop: &AtomicBool,
    wait: Wait,
    value: u64,
) -> Result<(), LineError> {
    let (mut turn, mut deadline) = (0u32, None);
    // Acquire: pairs with the Release stores in `ask` and `answer`.
    while line.load(Ordering::Acquire) != value {
        turn = turn.saturating_add(1);
        wait.pause(turn);
        if turn >= TURNS_PER_CLOCK_LOOK {
            turn = 0;
            let now = Instant::now();
            // Relaxed: the flag of `ping_pong_ns` carries no data.
            if stop.load(Ordering::Relaxed) || now > *deadline.get_or_insert(now + ANSWER_WAIT_MAX)
            {
                return Err(LineError::Lost);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::pin::{CorePair, two_cores};
    use super::*;

    #[test]
    fn a_line_goes_between_two_cores_in_less_than_a_disk_access() {
        let CorePair { first, second } = two_cores().unwrap();
        let ns = ping_pong_ns(first, second, 2_000).unwrap();
        println!("cores {first} and {second}: {ns:.1} ns a round trip");
        assert!(ns > 1.0 && ns < 10_000_000.0, "{ns} ns");
    }

    #[test]
    fn both_ends_on_one_core_yield_to_each_other() {
        let core = two_cores().unwrap().first;
        let ns = ping_pong_ns(core, core, 200).unwrap();
        println!("core {core} with itself: {ns:.1} ns a round trip");
        assert!(ns < 100_000_000.0, "{ns} ns");
    }

    #[test]
    fn a_core_that_does_not_exist_ends_both_threads() {
        let core = two_cores().unwrap().first;
        let refused = ping_pong_ns(core, 100_000, 100);
        assert!(refused.is_err());
        assert!(matches!(ping_pong_ns(100_000, core, 100), Err(LineError::Pin(_))));
    }
}
