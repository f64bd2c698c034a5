//! What reads cost in a tier and in this process's own memory, measured: for
//! [`TierRule::Bandwidth`](crate::cache::TierRule). Looks at the clock; takes and gives back memory
//! of the tier.
//!
//! Values are written and then read in the order in which they were written, up to 64 MiB of them,
//! so that most of what is read has left the processor's caches again. Where those hold more, a
//! tier on the memory bus looks quicker than it is, and fewer values get a copy.

use crate::cache::{ReadCost, Speeds, Tier, TierError};
use rackpool_core::seam::Mem;
use rackpool_mem::window::Window;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes of a short read, of which nearly all is latency.
const SHORT_BYTES: usize = 64;
/// Bytes of a long one, and of each value.
const LONG_BYTES: usize = 64 << 10;
/// Short reads that are timed at once: one alone may take less than the clock can tell.
const GROUP: usize = 16;
/// Values that are read: 64 MiB.
const VALUES_MAX: u64 = 1024;

/// Measures a tier of which `memory` bytes may be taken: a quarter of them is. Blocks for as long
/// as it takes to write and read 64 MiB there.
///
/// # Errors
/// Of the tier; [`TierError::Full`] if it has no room for one value of 64 KiB.
pub fn measure(tier: &dyn Tier, memory: u64) -> Result<Speeds, TierError> {
    let count = (memory / 4 / LONG_BYTES as u64).clamp(1, VALUES_MAX);
    let far = cost_of(tier, count)?;
    let bytes = VALUES_MAX * LONG_BYTES as u64;
    let window = Window::private(bytes).map_err(|error| TierError::Failed(error.to_string()))?;
    let near = cost_of(&Own { window, used: AtomicU64::new(0) }, VALUES_MAX)?;
    Ok(Speeds { far, near })
}

fn cost_of(tier: &dyn Tier, count: u64) -> Result<ReadCost, TierError> {
    let mut places = Vec::new();
    for _ in 0..count {
        match tier.alloc(LONG_BYTES as u64) {
            Ok(place) => places.push(place),
            Err(TierError::Full) if !places.is_empty() => break,
            Err(error) => {
                give_back(tier, &places);
                return Err(error);
            }
        }
    }
    let cost = timed(tier, &places);
    give_back(tier, &places);
    cost
}

fn give_back(tier: &dyn Tier, places: &[u64]) {
    places.iter().for_each(|place| tier.free(*place, LONG_BYTES as u64));
}

fn timed(tier: &dyn Tier, places: &[u64]) -> Result<ReadCost, TierError> {
    let mut bytes = vec![0x5a; LONG_BYTES];
    places.iter().try_for_each(|place| tier.write(*place, 0, &bytes))?;
    let median = |group: usize, bytes: &mut [u8]| {
        let mut times = Vec::new();
        for group in places.chunks(group) {
            let start = Instant::now();
            group.iter().try_for_each(|place| tier.read(*place, 0, bytes))?;
            times.push(start.elapsed().as_nanos() as u64 / group.len() as u64);
        }
        times.sort_unstable();
        Ok::<_, TierError>(times[times.len() / 2])
    };
    let latency_ns = median(GROUP, &mut bytes[..SHORT_BYTES])?;
    let long_ns = median(1, &mut bytes)?;
    let byte_ps = long_ns.saturating_sub(latency_ns) * 1000 / (LONG_BYTES - SHORT_BYTES) as u64;
    Ok(ReadCost { latency_ns, byte_ps })
}

/// Memory of this process as a tier that only grows.
#[derive(Debug)]
struct Own {
    window: Window,
    used: AtomicU64,
}

impl Tier for Own {
    fn alloc(&self, bytes: u64) -> Result<u64, TierError> {
        // Relaxed: a number that no other thread has.
        let place = self.used.fetch_add(bytes, Ordering::Relaxed);
        (place + bytes <= self.window.bytes()).then_some(place).ok_or(TierError::Full)
    }

    fn free(&self, _place: u64, _bytes: u64) {}

    fn write(&self, place: u64, offset: u64, from: &[u8]) -> Result<(), TierError> {
        self.window.copy_in(place + offset, from);
        Ok(())
    }

    fn read(&self, place: u64, offset: u64, to: &mut [u8]) -> Result<(), TierError> {
        self.window.copy_out(place + offset, to);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Duration;

    const WAIT: Duration = Duration::from_micros(200);

    /// A tier with reads that wait and room for so many values, which it counts.
    #[derive(Debug)]
    struct Slow {
        room: u64,
        values: Mutex<u64>,
        is_broken: bool,
    }

    impl Tier for Slow {
        fn alloc(&self, bytes: u64) -> Result<u64, TierError> {
            assert_eq!(bytes, LONG_BYTES as u64);
            let mut values = self.values.lock().unwrap();
            if *values == self.room {
                return Err(TierError::Full);
            }
            *values += 1;
            Ok(*values)
        }

        fn free(&self, _: u64, _: u64) {
            *self.values.lock().unwrap() -= 1;
        }

        fn write(&self, _: u64, _: u64, _: &[u8]) -> Result<(), TierError> {
            Ok(())
        }

        fn read(&self, _: u64, _: u64, _: &mut [u8]) -> Result<(), TierError> {
            if self.is_broken {
                return Err(TierError::Failed("broken".into()));
            }
            let start = Instant::now();
            while start.elapsed() < WAIT {
                std::hint::spin_loop();
            }
            Ok(())
        }
    }

    #[test]
    fn a_tier_is_measured_with_what_room_it_has_and_gets_it_back() {
        let slow = |room, is_broken| Slow { room, values: Mutex::new(0), is_broken };
        let tier = slow(20, false);
        let speeds = measure(&tier, 1 << 30).unwrap();
        assert!(speeds.far.latency_ns >= WAIT.as_nanos() as u64, "{speeds:?}");
        assert_eq!(*tier.values.lock().unwrap(), 0);
        let tier = slow(20, true);
        assert_eq!(measure(&tier, 1 << 30), Err(TierError::Failed("broken".into())));
        assert_eq!(*tier.values.lock().unwrap(), 0);
        assert_eq!(measure(&slow(0, false), 1 << 30), Err(TierError::Full));
    }
}
