//! How a channel is built and scheduled, and what is wrong with a configuration.

use super::Cycle;
use super::map::{MapError, MapName};
use super::timing::{ChannelSpec, DDR4_2400, DDR5_4800, DRACKSIM, Geometry, Timing};
use serde::{Deserialize, Serialize};

/// Most banks of a channel, all ranks together: a bit each in a word.
pub const BANKS_MAX: u32 = 64;
/// Most ranks of a channel.
pub const RANKS_MAX: u32 = 8;
/// Most requests of a queue.
pub const QUEUE_MAX: u32 = 64;
/// No timing constant is larger, in cycles.
const CYCLES_MAX: u32 = 1 << 20;

/// What happens to a row after an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowPolicy {
    /// It stays open until another row of the bank is asked for.
    Open,
    /// It closes with the last access that waits for it.
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub geometry: Geometry,
    pub timing: Timing,
    pub map: MapName,
    pub page: RowPolicy,
    /// Reads that wait at most, 1 to 64.
    pub read_queue: u32,
    /// Writes that wait at most, 1 to 64.
    pub write_queue: u32,
    /// Writing ends when fewer writes wait than this share of their queue and reads wait.
    pub write_low_percent: u32,
    /// Writing begins when more writes wait than this share of their queue, or no reads wait.
    pub write_high_percent: u32,
    /// Accesses to an open row that overtake an older request for another row of the bank.
    pub overtakes_max: u32,
    /// A request that has waited so many cycles goes before all others of its queue.
    pub age_max: Cycle,
}

/// What is wrong with a configuration. Do not retry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DramConfigError {
    /// Numbers of parts must be powers of two.
    #[error("geometry: {field} is {value}, which is no power of two")]
    PowerOfTwo { field: &'static str, value: u32 },
    /// A number outside of its range.
    #[error("{field} is {value}; it must be from {min} to {max}")]
    Range { field: &'static str, value: u64, min: u64, max: u64 },
    /// A constant that must not be smaller than another one.
    #[error("timing: {larger} must not be less than {smaller}")]
    Order {
        /// The one that is too small.
        larger: &'static str,
        /// The one that it must reach.
        smaller: &'static str,
    },
    /// A preset that is none.
    #[error("\"{name}\" is no memory preset; there are {}", PRESETS.join(", "))]
    Preset { name: String },
    #[error(transparent)]
    Map(#[from] MapError),
}

pub const PRESETS: [&str; 3] = ["ddr4-2400", "ddr5-4800", "dracksim"];

impl Config {
    /// Geometry and timing under the usual controller: queues of 32, writes drained from 0.8 to
    /// 0.2 of their queue (ramulator2's defaults), rows kept open, up to 16 accesses to a row past
    /// an older request (gem5's `max_accesses_per_row`, the cap of ramulator's FR-FCFS-Cap), and
    /// a request that has waited for a refresh interval goes first.
    #[must_use]
    pub fn new(spec: ChannelSpec) -> Self {
        let ChannelSpec { geometry, timing } = spec;
        Self {
            geometry,
            timing,
            map: MapName::row_first(),
            page: RowPolicy::Open,
            read_queue: 32,
            write_queue: 32,
            write_low_percent: 20,
            write_high_percent: 80,
            overtakes_max: 16,
            age_max: Cycle::from(if timing.t_refi > 0 { timing.t_refi } else { 10_000 }),
        }
    }

    /// One of [`PRESETS`].
    ///
    /// # Errors
    /// [`DramConfigError::Preset`].
    pub fn preset(name: &str) -> Result<Self, DramConfigError> {
        match name {
            "ddr4-2400" => Ok(Self::new(DDR4_2400)),
            "ddr5-4800" => Ok(Self::new(DDR5_4800)),
            "dracksim" => Ok(Self::new(DRACKSIM)),
            _ => Err(DramConfigError::Preset { name: name.to_owned() }),
        }
    }

    /// Checks all but the map.
    ///
    /// # Errors
    /// [`DramConfigError`], the first that is found.
    pub fn check(&self) -> Result<(), DramConfigError> {
        let g = &self.geometry;
        let parts = [
            ("ranks", g.ranks),
            ("groups", g.groups),
            ("banks", g.banks),
            ("rows", g.rows),
            ("columns", g.columns),
        ];
        for (field, value) in parts {
            if !value.is_power_of_two() {
                return Err(DramConfigError::PowerOfTwo { field, value });
            }
        }
        let banks = u64::from(g.ranks) * u64::from(g.groups) * u64::from(g.banks);
        range("banks of all ranks", banks, 1, BANKS_MAX.into())?;
        range("ranks", g.ranks.into(), 1, RANKS_MAX.into())?;
        range("rows", g.rows.into(), 1, 1 << 24)?;
        range("columns", g.columns.into(), 1, 1 << 16)?;
        range("read_queue", self.read_queue.into(), 1, QUEUE_MAX.into())?;
        range("write_queue", self.write_queue.into(), 1, QUEUE_MAX.into())?;
        range("write_high_percent", self.write_high_percent.into(), 0, 99)?;
        range(
            "write_low_percent",
            self.write_low_percent.into(),
            0,
            self.write_high_percent.into(),
        )?;
        range("overtakes_max", self.overtakes_max.into(), 1, u32::MAX.into())?;
        range("age_max", self.age_max, 1, u64::from(u32::MAX))?;
        self.check_timing()
    }

    fn check_timing(&self) -> Result<(), DramConfigError> {
        let t = &self.timing;
        range("t_ck_ps", t.t_ck_ps.into(), 1, CYCLES_MAX.into())?;
        range("t_cmd", t.t_cmd.into(), 1, 4)?;
        let positive = [("burst", t.burst), ("t_rcd", t.t_rcd), ("t_rp", t.t_rp), ("t_cl", t.t_cl)];
        for (field, value) in positive {
            range(field, value.into(), 1, CYCLES_MAX.into())?;
        }
        let others = [
            ("t_cwl", t.t_cwl),
            ("t_ras", t.t_ras),
            ("t_rc", t.t_rc),
            ("t_rrd_l", t.t_rrd_l),
            ("t_faw", t.t_faw),
            ("t_ccd_l", t.t_ccd_l),
            ("t_ccd_l_wr", t.t_ccd_l_wr),
            ("t_wr", t.t_wr),
            ("t_rtp", t.t_rtp),
            ("t_wtr_l", t.t_wtr_l),
            ("turnaround", t.turnaround),
            ("rank_switch", t.rank_switch),
            ("t_ppd", t.t_ppd),
            ("t_rfc", t.t_rfc),
            ("t_refi", t.t_refi),
        ];
        for (field, value) in others {
            range(field, value.into(), 0, CYCLES_MAX.into())?;
        }
        let ordered = [
            ("t_ccd_s", t.t_ccd_s, "burst", t.burst),
            ("t_ccd_l", t.t_ccd_l, "t_ccd_s", t.t_ccd_s),
            ("t_ccd_l_wr", t.t_ccd_l_wr, "t_ccd_s", t.t_ccd_s),
            ("t_rrd_l", t.t_rrd_l, "t_rrd_s", t.t_rrd_s),
            ("t_wtr_l", t.t_wtr_l, "t_wtr_s", t.t_wtr_s),
            ("t_ras", t.t_ras, "t_rcd", t.t_rcd),
            ("t_rc", t.t_rc, "t_ras", t.t_ras),
        ];
        for (larger, large, smaller, small) in ordered {
            if large < small {
                return Err(DramConfigError::Order { larger, smaller });
            }
        }
        // A rank must have time for its requests between two refreshes.
        let busy = t.t_rfc + 2 * (t.t_rc + t.t_rp) + t.t_cwl + t.burst + t.t_wr;
        if t.t_refi != 0 && t.t_refi <= busy {
            return Err(DramConfigError::Order {
                larger: "t_refi",
                smaller: "a refresh with what goes before it",
            });
        }
        Ok(())
    }
}

fn range(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), DramConfigError> {
    if value < min || value > max {
        return Err(DramConfigError::Range { field, value, min, max });
    }
    Ok(())
}
