//! A pool's memory as a [`Tier`] of the cache: values in allocations of a running pool, in the own
//! rack or in others.
//!
//! One handle owns all of it, so that it comes back when this process ends, however it ends. What
//! the cache gives back is freed by a thread of its own: no caller waits for it under a lock. That
//! thread keeps the owner's sessions as well, since a daemon that restarts waits for them for a
//! while only. Reads and writes go through a handle for each thread that is at it.

use crate::cache::{ReadCost, Tier, TierError};
use rackpool::{AllocationKind, Error, GAddr, Handle, Placement, Pool};
use rackpool_core::Error as WireError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a full pool is asked again while memory that was given back may still be on its way.
const FULL_RETRIES: u32 = 20;
/// Between two of these, and before a free that was refused is tried again.
const RETRY: Duration = Duration::from_millis(1);
/// How often the owner's sessions are kept: far less than the grace that a daemon gives one.
const KEEP_EVERY: Duration = Duration::from_secs(2);
/// How long that may take, while nothing is stored in the pool: a rack that cannot be reached.
const KEEP_TIMEOUT_MS: u64 = 200;
/// Frees that were refused for the moment, after which one is given up: its memory comes back when
/// the process ends.
const FREE_RETRIES_MAX: u32 = 1000;
/// Bytes of a short read, of which nearly all is latency.
const SHORT_BYTES: usize = 64;
/// Bytes of a long one, and of each value.
const LONG_BYTES: usize = 64 << 10;
/// Short reads that are timed at once: one alone may take less than the clock can tell.
const GROUP: usize = 16;
/// Values that are read: 64 MiB.
const VALUES_MAX: u64 = 1024;

#[derive(Debug)]
pub struct PoolTier {
    shared: Arc<PoolTierShared>,
    releaser: Option<JoinHandle<()>>,
}

struct PoolTierShared {
    pool: Pool,
    owner: Mutex<Handle>,
    given_back: Mutex<GivenBack>,
    news: Condvar,
    /// Frees that were given up.
    leaked: AtomicU64,
}

impl std::fmt::Debug for PoolTierShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolTierShared")
            .field("options", self.pool.options())
            .finish_non_exhaustive()
    }
}

/// What is to be freed.
#[derive(Debug, Default)]
struct GivenBack {
    values: Vec<(GAddr, u64)>,
    is_over: bool,
}

impl PoolTier {
    /// Memory of this pool.
    ///
    /// # Errors
    /// Of [`Pool::handle`].
    pub fn new(pool: Pool) -> Result<PoolTier, Error> {
        let owner = Mutex::new(pool.handle()?);
        let (given_back, news, leaked) = Default::default();
        let shared = Arc::new(PoolTierShared { pool, owner, given_back, news, leaked });
        let releaser = Arc::clone(&shared);
        let releaser = rackpool_mem::log::spawn("kv-release", move || releaser.release());
        let what = "starting a thread".to_owned();
        let releaser =
            releaser.map_err(|error| WireError::Io { what, reason: error.to_string() })?;
        Ok(PoolTier { shared, releaser: Some(releaser) })
    }

    /// Values of which the memory could not be freed; it comes back when the process ends.
    pub fn leaked(&self) -> u64 {
        // Relaxed: a count for people.
        self.shared.leaked.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tier_error(error: &Error) -> TierError {
    match error.code() {
        "full" => TierError::Full,
        _ => TierError::Failed(error.to_string()),
    }
}

impl PoolTierShared {
    /// Frees what was given back, and keeps the owner's sessions, until the end.
    fn release(&self) {
        let mut kept = Instant::now();
        let mut given_back = lock(&self.given_back);
        while !given_back.is_over {
            let left = KEEP_EVERY.saturating_sub(kept.elapsed());
            if given_back.values.is_empty() && !left.is_zero() {
                let waited = self.news.wait_timeout(given_back, left);
                given_back = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            drop(given_back);
            self.free_some();
            if left.is_zero() {
                // What does not answer now is asked again.
                let _ = lock(&self.owner).keep_sessions(KEEP_TIMEOUT_MS);
                kept = Instant::now();
            }
            given_back = lock(&self.given_back);
        }
    }

    /// Frees what was given back; how many bytes.
    fn free_some(&self) -> u64 {
        let values = std::mem::take(&mut lock(&self.given_back).values);
        values.iter().map(|(addr, bytes)| self.free_one(*addr, *bytes)).sum()
    }

    fn free_one(&self, addr: GAddr, bytes: u64) -> u64 {
        for _ in 0..FREE_RETRIES_MAX {
            let freed = lock(&self.owner).free(addr, bytes);
            match freed.map_err(|error| error.code()) {
                Err("busy") => std::thread::sleep(RETRY),
                // Or gone already: a rack was given up, or the handle's session ended.
                Ok(()) | Err("not-mapped" | "lost") => return bytes,
                Err(_) => break,
            }
        }
        // Relaxed: a count for people.
        self.leaked.fetch_add(1, Ordering::Relaxed);
        0
    }
}

impl Tier for PoolTier {
    fn alloc(&self, bytes: u64) -> Result<u64, TierError> {
        let mut freed = 0;
        for _ in 0..FULL_RETRIES {
            match lock(&self.shared.owner).alloc_as(bytes, Placement::Auto, AllocationKind::Cache) {
                Ok(addr) => return Ok(addr.0),
                Err(error) if error.code() == "full" => {}
                Err(error) => return Err(tier_error(&error)),
            }
            let now = self.shared.free_some();
            freed += now;
            if freed == 0 {
                return Err(TierError::Full);
            }
            if now == 0 {
                // Freed memory rests for a moment before it is handed out again.
                std::thread::sleep(RETRY);
            }
        }
        Err(TierError::Full)
    }

    fn free(&self, place: u64, bytes: u64) {
        lock(&self.shared.given_back).values.push((GAddr(place), bytes));
        self.shared.news.notify_one();
    }

    fn write(&self, place: u64, offset: u64, from: &[u8]) -> Result<(), TierError> {
        let done = self.shared.pool.with(|handle| handle.write(GAddr(place + offset), from));
        done.map_err(|error| tier_error(&error))
    }

    fn read(&self, place: u64, offset: u64, to: &mut [u8]) -> Result<(), TierError> {
        let done = self.shared.pool.with(|handle| handle.read(GAddr(place + offset), to));
        done.map_err(|error| tier_error(&error))
    }
}

impl Drop for PoolTier {
    fn drop(&mut self) {
        lock(&self.shared.given_back).is_over = true;
        self.shared.news.notify_one();
        if let Some(releaser) = self.releaser.take() {
            // A thread that panicked has said so.
            let _ = releaser.join();
        }
    }
}

/// What reads of a tier cost, measured, of which `memory` bytes may be taken: a quarter of them is,
/// and given back. Of memory nodes `rackpool tiers measure` knows it; a pool has no profile. Values
/// are read in the order in which they were written, so that most of what is read has left the
/// processor's caches again; where those hold 64 MiB, a pool of this host looks quicker than it is.
/// Blocks.
///
/// # Errors
/// Of the tier; [`TierError::Full`] if it has no room for one value of 64 KiB.
pub fn read_cost(tier: &dyn Tier, memory: u64) -> Result<ReadCost, TierError> {
    let count = (memory / 4 / LONG_BYTES as u64).clamp(1, VALUES_MAX);
    let mut places = Vec::new();
    let taken = (0..count).try_for_each(|_| {
        places.push(tier.alloc(LONG_BYTES as u64)?);
        Ok::<_, TierError>(())
    });
    let cost = match taken {
        Err(error) if error != TierError::Full || places.is_empty() => Err(error),
        _ => timed(tier, &places),
    };
    places.iter().for_each(|place| tier.free(*place, LONG_BYTES as u64));
    cost
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let cost = read_cost(&tier, 1 << 30).unwrap();
        assert!(cost.latency_ns >= WAIT.as_nanos() as u64, "{cost:?}");
        assert_eq!(*tier.values.lock().unwrap(), 0);
        let tier = slow(20, true);
        assert_eq!(read_cost(&tier, 1 << 30), Err(TierError::Failed("broken".into())));
        assert_eq!(*tier.values.lock().unwrap(), 0);
        assert_eq!(read_cost(&slow(0, false), 1 << 30), Err(TierError::Full));
    }
}
