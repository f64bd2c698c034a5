//! What can be changed while a server runs. In: the settings with which it was started, then
//! `CONFIG SET` of any client. Out: what holds now; each thread reads it where it needs it.

use super::shared::Settings;
use crate::cache::Millis;
use std::sync::atomic::{AtomicU64, Ordering};

/// How much may wait to be sent to a client before its connection ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimit {
    /// Bytes; 0 for no limit.
    pub hard_bytes: u64,
    /// Bytes; 0 for no limit.
    pub soft_bytes: u64,
    /// How long it may be more than the soft limit.
    pub soft_ms: Millis,
}

/// Numbers that stand by themselves: none tells anything of another one.
#[derive(Debug)]
pub struct Tunables {
    connections_max: AtomicU64,
    idle_ms: AtomicU64,
    slow_us: AtomicU64,
    latency_ms: AtomicU64,
    /// The least time, microseconds, that slow log or latency events want to know of.
    noted_us: AtomicU64,
    output_limit: [AtomicU64; 3],
    memory_asked: AtomicU64,
}

fn get(number: &AtomicU64) -> u64 {
    // Relaxed: see [`Tunables`].
    number.load(Ordering::Relaxed)
}

fn set(number: &AtomicU64, value: u64) {
    // Relaxed: see [`Tunables`].
    number.store(value, Ordering::Relaxed);
}

impl Tunables {
    pub fn of(settings: &Settings) -> Tunables {
        let number = AtomicU64::new;
        Tunables {
            connections_max: number(settings.connections_max as u64),
            idle_ms: number(settings.idle_ms),
            slow_us: number(settings.slow_us),
            latency_ms: number(0),
            noted_us: number(settings.slow_us),
            output_limit: Default::default(),
            memory_asked: number(u64::MAX),
        }
    }

    /// What `maxmemory` was set to, bytes, if that is less than the cache needs.
    pub fn memory_asked(&self) -> Option<u64> {
        Some(get(&self.memory_asked)).filter(|bytes| *bytes != u64::MAX)
    }

    pub fn set_memory_asked(&self, bytes: Option<u64>) {
        set(&self.memory_asked, bytes.unwrap_or(u64::MAX));
    }

    pub fn connections_max(&self) -> u64 {
        get(&self.connections_max)
    }

    pub fn set_connections_max(&self, connections: u64) {
        set(&self.connections_max, connections);
    }

    /// As [`Settings::idle_ms`].
    pub fn idle_ms(&self) -> Millis {
        get(&self.idle_ms)
    }

    pub fn set_idle_ms(&self, idle_ms: Millis) {
        set(&self.idle_ms, idle_ms);
    }

    /// As [`Settings::slow_us`]; `None`: no command is slow.
    pub fn slow_us(&self) -> Option<u64> {
        Some(get(&self.slow_us)).filter(|us| *us != u64::MAX)
    }

    pub fn set_slow_us(&self, slow_us: Option<u64>) {
        set(&self.slow_us, slow_us.unwrap_or(u64::MAX));
        self.note();
    }

    /// Commands that take as long are events of latency; `None`: none is.
    pub fn latency_ms(&self) -> Option<Millis> {
        Some(get(&self.latency_ms)).filter(|ms| *ms != 0)
    }

    pub fn set_latency_ms(&self, latency_ms: Millis) {
        set(&self.latency_ms, latency_ms);
        self.note();
    }

    /// Commands that take less are neither slow nor an event, microseconds.
    #[inline]
    pub fn noted_us(&self) -> u64 {
        get(&self.noted_us)
    }

    fn note(&self) {
        let latency_us = self.latency_ms().map_or(u64::MAX, |ms| ms.saturating_mul(1000));
        set(&self.noted_us, get(&self.slow_us).min(latency_us));
    }

    pub fn output_limit(&self) -> OutputLimit {
        let [hard_bytes, soft_bytes, soft_ms] =
            [0, 1, 2].map(|index| get(&self.output_limit[index]));
        OutputLimit { hard_bytes, soft_bytes, soft_ms }
    }

    pub fn set_output_limit(&self, limit: OutputLimit) {
        let OutputLimit { hard_bytes, soft_bytes, soft_ms } = limit;
        for (number, value) in self.output_limit.iter().zip([hard_bytes, soft_bytes, soft_ms]) {
            set(number, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_either_wants_to_know_is_noted() {
        let tunables = Tunables::of(&Settings { slow_us: 10_000, ..Settings::default() });
        assert_eq!((tunables.noted_us(), tunables.latency_ms()), (10_000, None));
        tunables.set_latency_ms(2);
        assert_eq!((tunables.noted_us(), tunables.slow_us()), (2_000, Some(10_000)));
        tunables.set_slow_us(Some(0));
        assert_eq!(tunables.noted_us(), 0);
        tunables.set_slow_us(None);
        assert_eq!((tunables.noted_us(), tunables.slow_us()), (2_000, None));
        tunables.set_latency_ms(0);
        assert_eq!(tunables.noted_us(), u64::MAX);
    }
}
