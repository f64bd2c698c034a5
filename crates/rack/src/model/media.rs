//! The media that a rack can be built of, by their names in a configuration.

use super::config::ConfigError;
use super::memory::{Constant, Done, Medium};
use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};

/// One channel of some medium.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Media {
    /// A constant time at a rate.
    Constant(Constant),
}

impl Media {
    /// A channel: a preset of DRAM, or `constant:NS:GBPS` (gigabytes per second).
    pub fn new(name: &str, field: &'static str) -> Result<Media, ConfigError> {
        constant(name).map(Media::Constant).ok_or_else(|| ConfigError::Field {
            field,
            reason: format!("`{name}` is no memory; write constant:NS:GBPS"),
        })
    }
}

fn constant(name: &str) -> Option<Constant> {
    let (latency, rate) = name.strip_prefix("constant:")?.split_once(':')?;
    let (ns, rate): (u64, u64) = (latency.parse().ok()?, rate.parse().ok()?);
    let is_meant = ns > 0 && ns < 1_000_000 && rate > 0 && rate < 64_000;
    is_meant.then(|| Constant::new(Ps::ns(ns), Ps(64_000 / rate)))
}

impl Medium for Media {
    #[inline]
    fn submit(&mut self, now: Ps, id: u64, addr: u64, write: bool) -> bool {
        match self {
            Media::Constant(one) => one.submit(now, id, addr, write),
        }
    }

    #[inline]
    fn next_event(&self) -> Option<Ps> {
        match self {
            Media::Constant(one) => one.next_event(),
        }
    }

    #[inline]
    fn next_room(&self) -> Ps {
        match self {
            Media::Constant(one) => one.next_room(),
        }
    }

    #[inline]
    fn advance(&mut self, until: Ps, done: &mut Vec<Done>) {
        match self {
            Media::Constant(one) => one.advance(until, done),
        }
    }
}
