//! Which cores this process may use, and a thread on one of them.
//!
//! A pinned thread stays on its core until it is pinned elsewhere or released; the setting is the
//! thread's own and goes to threads that it starts later.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Why a thread was not pinned. A retry does not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The kernel refused: the core does not exist or is not ours.
    #[error("core {core}: {reason}")]
    Refused { core: usize, reason: rustix::io::Errno },
    /// The number is beyond what the kernel interface can name.
    #[error("core {core} is beyond the largest that can be named, {max}")]
    NoSuchCore { core: usize, max: usize },
    /// The kernel did not tell which cores are allowed.
    #[error("the allowed cores cannot be read: {reason}")]
    Unreadable { reason: rustix::io::Errno },
}

/// The cores that the calling thread may run on, in rising order.
///
/// # Errors
/// [`PinError::Unreadable`].
pub fn allowed_cores() -> Result<Vec<usize>, PinError> {
    let set = sched_getaffinity(None).map_err(|reason| PinError::Unreadable { reason })?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Puts the calling thread on `core` and nowhere else.
///
/// # Errors
/// [`PinError::Refused`] or [`PinError::NoSuchCore`]; the thread then runs where it ran.
pub fn pin_to(core: usize) -> Result<(), PinError> {
    pin_to_any(&[core])
}

/// Lets the calling thread run on any of `cores`: undoes [`pin_to`] with what
/// [`allowed_cores`] said before.
///
/// # Errors
/// As [`pin_to`], naming the first core.
pub fn pin_to_any(cores: &[usize]) -> Result<(), PinError> {
    let max = CpuSet::MAX_CPU - 1;
    let mut set = CpuSet::new();
    for &core in cores {
        if core > max {
            return Err(PinError::NoSuchCore { core, max });
        }
        set.set(core);
    }
    let core = cores.first().copied().unwrap_or(0);
    sched_setaffinity(None, &set).map_err(|reason| PinError::Refused { core, reason })
}

/// The cores of two ends that talk to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CorePair {
    pub first: usize,
    /// The first again where there is only one.
    pub second: usize,
}

/// Two cores for two ends that talk to each other, the same one twice when there is but one.
///
/// # Errors
/// [`PinError::Unreadable`].
pub fn two_cores() -> Result<CorePair, PinError> {
    let cores = allowed_cores()?;
    let first = cores.first().copied().unwrap_or(0);
    Ok(CorePair { first, second: cores.get(1).copied().unwrap_or(first) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_pinned_and_released() {
        let outcome = std::thread::spawn(|| {
            let before = allowed_cores().unwrap();
            let last = *before.last().unwrap();
            pin_to(last).unwrap();
            assert_eq!(allowed_cores().unwrap(), [last]);
            pin_to_any(&before).unwrap();
            assert_eq!(allowed_cores().unwrap(), before);
        });
        outcome.join().unwrap();
    }

    #[test]
    fn a_core_that_does_not_exist_is_refused() {
        assert!(matches!(pin_to(1_000_000), Err(PinError::NoSuchCore { .. })));
        assert!(matches!(pin_to_any(&[]), Err(PinError::Refused { .. })));
        let absent = CpuSet::MAX_CPU - 1;
        if !allowed_cores().unwrap().contains(&absent) {
            assert!(matches!(pin_to(absent), Err(PinError::Refused { .. })));
        }
    }
}
