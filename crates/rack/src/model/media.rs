//! The media that a rack can be built of, by their names in a configuration.

use super::config::ConfigError;
use super::memory::{Constant, Done, Medium};
use crate::dram::{self, Channel, Completion, Request};
use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};

/// One channel of some medium.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Media {
    /// A constant time at a rate.
    Constant(Constant),
    /// DRAM, command by command.
    Dram(Box<Dram>),
}

/// A channel of DRAM in picoseconds. An access begins with the first whole cycle.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dram {
    channel: Channel,
    cycle_ps: u64,
    /// Empty between calls.
    #[serde(skip)]
    done: Vec<Completion>,
}

impl Dram {
    /// A preset of [`dram::config::PRESETS`].
    pub fn preset(name: &str) -> Result<Dram, dram::ConfigError> {
        let config = dram::Config::preset(name)?;
        let cycle_ps = u64::from(config.timing.t_ck_ps);
        Ok(Dram { channel: Channel::new(&config)?, cycle_ps, done: Vec::new() })
    }
}

impl Medium for Dram {
    #[inline]
    fn submit(&mut self, now: Ps, id: u64, addr: u64, write: bool) -> bool {
        self.channel.submit(now.0.div_ceil(self.cycle_ps), Request { id, addr, write }).is_ok()
    }

    #[inline]
    fn next_event(&self) -> Option<Ps> {
        self.channel.next_event().map(|cycle| Ps(cycle * self.cycle_ps))
    }

    fn next_room(&self) -> Ps {
        self.channel.next_command().map_or(Ps::ZERO, |cycle| Ps((cycle + 1) * self.cycle_ps))
    }

    #[inline]
    fn advance(&mut self, until: Ps, done: &mut Vec<Done>) {
        // An access may have been submitted for the cycle that begins after `until`.
        self.channel.advance(until.0.div_ceil(self.cycle_ps), &mut self.done);
        let over = |one: Completion| Done { id: one.id, at: Ps(one.at * self.cycle_ps) };
        done.extend(self.done.drain(..).map(over));
    }
}

impl Media {
    /// A channel: a preset of DRAM, or `constant:NS:GBPS` (gigabytes per second).
    pub fn new(name: &str, field: &'static str) -> Result<Media, ConfigError> {
        if name.starts_with("constant:") {
            return constant(name).map(Media::Constant).ok_or_else(|| ConfigError::Field {
                field,
                reason: format!("`{name}`: write constant:NS:GBPS, such as constant:150:32"),
            });
        }
        let dram = Dram::preset(name).map_err(|error| ConfigError::Field {
            field,
            reason: format!("{error}, or constant:NS:GBPS"),
        })?;
        Ok(Media::Dram(Box::new(dram)))
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
            Media::Dram(one) => one.submit(now, id, addr, write),
        }
    }

    #[inline]
    fn next_event(&self) -> Option<Ps> {
        match self {
            Media::Constant(one) => one.next_event(),
            Media::Dram(one) => one.next_event(),
        }
    }

    #[inline]
    fn next_room(&self) -> Ps {
        match self {
            Media::Constant(one) => one.next_room(),
            Media::Dram(one) => one.next_room(),
        }
    }

    #[inline]
    fn advance(&mut self, until: Ps, done: &mut Vec<Done>) {
        match self {
            Media::Constant(one) => one.advance(until, done),
            Media::Dram(one) => one.advance(until, done),
        }
    }
}
