//! The media that a rack can be built of, by their names in a configuration.

use super::config::ConfigError;
use super::memory::{Constant, Done, Medium};
use crate::dram::medium::{self, CxlLink, MediumConfig};
use crate::dram::timing::LINE_BYTES;
use crate::dram::{self, Completion, Request};
use crate::pmem::config::OPTANE100;
use crate::pmem::front::Front;
use crate::pmem::{Dimm, PRESETS, PmemPreset};
use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};

/// One channel of some medium.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Media {
    /// A constant time at a rate.
    Constant(Constant),
    Dram(Box<Dram>),
    /// A module of persistent memory.
    Dimm(Box<Dimm>),
    /// One with DRAM in front: Memory mode.
    Front(Box<Front<Dram, Dimm>>),
}

/// A channel of DRAM in picoseconds, maybe behind a link. An access begins with the first whole
/// cycle.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dram {
    channel: medium::DramMedium,
    cycle_ps: u64,
    #[serde(skip)]
    done: Vec<Completion>,
}

/// The preset of a module of persistent memory.
const OPTANE: &str = "optane100";
/// Most of DRAM in front of a channel, which the model has a word a line of.
const FRONT_MIB_MAX: u64 = 1024;
/// Bytes of a message on a link of CXL beside a line: a flit of 68 bytes holds 64.
const CXL_HEADER_BYTES: u64 = 4;

impl Dram {
    /// A preset of [`dram::config::PRESETS`], or one behind a link: `cxl:NS:GBPS:PRESET`, the time
    /// of one way and gigabytes per second of each direction.
    pub fn named(name: &str) -> Result<Dram, dram::DramConfigError> {
        let config = match linked(name) {
            None => MediumConfig::Dram(dram::Config::preset(name)?),
            Some((link, preset)) => MediumConfig::Cxl { link, dram: dram::Config::preset(preset)? },
        };
        let channel = medium::DramMedium::new(&config)?;
        Ok(Dram { cycle_ps: u64::from(channel.t_ck_ps()), channel, done: Vec::new() })
    }
}

fn linked(name: &str) -> Option<(CxlLink, &str)> {
    let (latency, rest) = name.strip_prefix("cxl:")?.split_once(':')?;
    let (rate, preset) = rest.split_once(':')?;
    let (ns, gbps): (u64, f64) = (latency.parse().ok()?, rate.parse().ok()?);
    let is_meant = ns < 1_000_000 && gbps > 0.0 && gbps < 1e6;
    let (latency_ps, bytes_per_us) = (ns * 1_000, (gbps * 1e3) as u64);
    let link = CxlLink { latency_ps, bytes_per_us, header_bytes: CXL_HEADER_BYTES };
    is_meant.then_some((link, preset))
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
        self.channel.next_room().map_or(Ps::ZERO, |cycle| Ps((cycle + 1) * self.cycle_ps))
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
    /// A channel: as [`Dram::named`], or `constant:NS:GBPS` (gigabytes per second), one of
    /// [`PRESETS`], or `front:MIB:PRESET:optane100` with so much DRAM in front.
    pub fn new(name: &str, field: &'static str) -> Result<Media, ConfigError> {
        if let Some(preset) = PmemPreset::named(name).filter(|preset| preset.media != name) {
            return Media::new(preset.media, field);
        }
        if name.starts_with("constant:") {
            return constant(name).map(Media::Constant).ok_or_else(|| ConfigError::Field {
                field,
                reason: format!("`{name}`: write constant:NS:GBPS, such as constant:150:32"),
            });
        }
        if name == OPTANE {
            return Ok(Media::Dimm(Box::new(Dimm::new(OPTANE100, 0))));
        }
        if name.starts_with("front:") {
            return front(name).map(|front| Media::Front(Box::new(front))).ok_or_else(|| {
                let reason = format!(
                    "`{name}`: write front:MIB:PRESET:{OPTANE}, MIB from 1 to {FRONT_MIB_MAX}, \
                     such as front:64:ddr4-2400:{OPTANE}"
                );
                ConfigError::Field { field, reason }
            });
        }
        let dram = Dram::named(name).map_err(|error| ConfigError::Field {
            field,
            reason: format!(
                "{error}; or cxl:NS:GBPS:PRESET, constant:NS:GBPS, front:MIB:PRESET:{OPTANE}, {}",
                PRESETS.map(|preset| preset.name).join(", ")
            ),
        })?;
        Ok(Media::Dram(Box::new(dram)))
    }
}

impl Media {
    /// One read of a line when nothing else is under way.
    pub fn idle_read(&self) -> Ps {
        let (mut medium, mut done) = (self.clone(), Vec::new());
        assert!(medium.submit(Ps::ZERO, 0, 0, false), "an idle medium has room");
        while done.is_empty() {
            let next = medium.next_event().expect("a read is under way");
            medium.advance(next, &mut done);
        }
        done[0].at
    }

    /// Lines that it carries at most, gigabytes per second.
    pub fn gbytes_per_s(&self) -> f64 {
        let line_ps = match self {
            Media::Constant(one) => one.gap.0,
            Media::Dram(one) => one.channel.line_ps(),
            Media::Dimm(one) => one.config().line_read_ps(),
            Media::Front(one) => one.near().channel.line_ps(),
        };
        LINE_BYTES as f64 * 1e3 / line_ps as f64
    }

    /// The source of the latencies of a medium of this name.
    pub fn source(name: &str) -> &'static str {
        match name {
            "ddr4-2400" => "memory by JESD79-4, speed bin 2400R",
            "ddr5-4800" => "memory by JESD79-5, speed bin 4800B",
            "dracksim" => "memory by DRackSim's DDR4_x16_2400.ini",
            _ => PmemPreset::named(name).map_or("memory as the plan's file says", |one| one.source),
        }
    }
}

/// DRAM in front of `optane100`.
fn front(name: &str) -> Option<Front<Dram, Dimm>> {
    let (mib, rest) = name.strip_prefix("front:")?.split_once(':')?;
    let preset = rest.strip_suffix(OPTANE)?.strip_suffix(':')?;
    let mib: u64 = mib.parse().ok()?;
    let near = Dram::named(preset).ok()?;
    (1..=FRONT_MIB_MAX).contains(&mib).then(|| Front::new(near, Dimm::new(OPTANE100, 0), mib << 20))
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
            Media::Dimm(one) => one.submit(now, id, addr, write),
            Media::Front(one) => one.submit(now, id, addr, write),
        }
    }

    #[inline]
    fn next_event(&self) -> Option<Ps> {
        match self {
            Media::Constant(one) => one.next_event(),
            Media::Dram(one) => one.next_event(),
            Media::Dimm(one) => one.next_event(),
            Media::Front(one) => one.next_event(),
        }
    }

    #[inline]
    fn next_room(&self) -> Ps {
        match self {
            Media::Constant(one) => one.next_room(),
            Media::Dram(one) => one.next_room(),
            Media::Dimm(one) => one.next_room(),
            Media::Front(one) => one.next_room(),
        }
    }

    #[inline]
    fn advance(&mut self, until: Ps, done: &mut Vec<Done>) {
        match self {
            Media::Constant(one) => one.advance(until, done),
            Media::Dram(one) => one.advance(until, done),
            Media::Dimm(one) => one.advance(until, done),
            Media::Front(one) => one.advance(until, done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of one read by a medium that is idle, ps.
    fn late_read(name: &str) -> u64 {
        let mut medium = Media::new(name, "pool_memory").unwrap();
        let now = Ps(833 * 100_000);
        assert!(medium.submit(now, 7, 1 << 20, false));
        let mut done = Vec::new();
        while done.is_empty() {
            let next = medium.next_event().expect("a read is under way");
            medium.advance(next, &mut done);
        }
        assert_eq!(done[0].id, 7);
        (done[0].at - now).0
    }

    #[test]
    fn media_are_named_and_take_what_their_name_says() {
        assert_eq!(late_read("ddr4-2400"), 36 * 833);
        assert_eq!(late_read("constant:150:32"), 150_000);
        // Two ways of 70 ns, a line and two headers at 32 bytes a nanosecond, in whole cycles.
        let linked = late_read("cxl:70:32:ddr4-2400");
        let expected = 36 * 833 + 2 * 70_000 + 72 * 1_000 / 32;
        assert!((expected..expected + 5 * 833).contains(&linked), "{linked}, {expected}");
        let of = |name| Media::new(name, "pool_memory").unwrap();
        assert_eq!(of("ddr4-2400").idle_read(), Ps(36 * 833));
        assert_eq!(of("constant:150:32").idle_read(), Ps::ns(150));
        // A burst of eight transfers of 8 bytes; what a link carries of lines.
        assert!((of("ddr4-2400").gbytes_per_s() - 19.2).abs() < 0.1);
        assert!((of("constant:150:32").gbytes_per_s() - 32.0).abs() < 0.1);
        assert!((of("cxl:70:8:ddr4-2400").gbytes_per_s() - 8.0 * 64.0 / 68.0).abs() < 0.1);
        // The unit's read and its way through the module; with DRAM in front, once it is there.
        assert_eq!(of("optane100").idle_read(), Ps(54_200 + 180_800));
        assert_eq!(of("front:1:ddr4-2400:optane100").idle_read(), Ps(54_200 + 180_800));
        assert!((of("optane100").gbytes_per_s() - 6.6).abs() < 0.1);
        for preset in PRESETS {
            assert_eq!(of(preset.name).idle_read(), of(preset.media).idle_read());
            assert_eq!(Media::source(preset.name), preset.source);
        }
        for wrong in ["front:0:ddr4-2400:optane100", "front:1:ddr4-2400", "front:1:optane100"] {
            let error = Media::new(wrong, "pool_memory").unwrap_err().to_string();
            assert!(error.contains("front:MIB"), "{error}");
        }
        for wrong in ["ddr3", "cxl:70:0:ddr4-2400", "cxl:70", "constant:0:1", "constant:5"] {
            let error = Media::new(wrong, "pool_memory").unwrap_err().to_string();
            assert!(error.contains("pool_memory") && error.contains("constant:"), "{error}");
        }
    }
}
