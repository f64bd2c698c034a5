//! What a memory is: its geometry, its timing constants, and presets of both.
//!
//! All times are in cycles of the memory's clock (half its transfers a second), so that nothing is
//! rounded in a run; `t_ck_ps` is what a cycle lasts. The names are those of the JEDEC standards.
//!
//! Sources: JESD79-4 (DDR4) and JESD79-5 (DDR5), in whole cycles as ramulator2 (c5b1c3a,
//! `dram/ddr4.py`, `dram/ddr5.py`) and gem5 (`DRAMInterface`) publish them.

use serde::{Deserialize, Serialize};

/// Bytes of one access: a burst fills a cache line.
pub const LINE_BYTES: u64 = 64;

/// How many there are of what; each a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    pub ranks: u32,
    /// Bank groups of a rank.
    pub groups: u32,
    pub banks: u32,
    pub rows: u32,
    /// Lines of 64 bytes of a row, over all chips of the rank.
    pub columns: u32,
}

impl Geometry {
    #[must_use]
    pub const fn banks_all(&self) -> u32 {
        self.ranks * self.groups * self.banks
    }

    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.banks_all() as u64 * self.rows as u64 * self.columns as u64 * LINE_BYTES
    }
}

/// Timing constants, in cycles unless named otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    pub t_ck_ps: u32,
    /// A burst on the data bus: half the burst length.
    pub burst: u32,
    /// Cycles that ACT, RD and WR take on the command bus (others take one).
    pub t_cmd: u32,
    pub t_cl: u32,
    pub t_cwl: u32,
    pub t_rcd: u32,
    pub t_rp: u32,
    pub t_ras: u32,
    /// Activate to activate, same bank.
    pub t_rc: u32,
    /// Activate to activate, another group of the rank.
    pub t_rrd_s: u32,
    /// Activate to activate, same group.
    pub t_rrd_l: u32,
    /// Window in which a rank is activated four times at most.
    pub t_faw: u32,
    /// Column access to one of its kind, another group of the rank.
    pub t_ccd_s: u32,
    /// Read to read, same group.
    pub t_ccd_l: u32,
    /// Write to write, same group.
    pub t_ccd_l_wr: u32,
    /// End of written data to precharge.
    pub t_wr: u32,
    pub t_rtp: u32,
    /// End of written data to read, another group of the rank.
    pub t_wtr_s: u32,
    /// End of written data to read, same group.
    pub t_wtr_l: u32,
    /// Cycles that the data bus is silent from read data to written data.
    pub turnaround: u32,
    /// Cycles that the data bus is silent when another rank drives or is driven (tRTRS, tCS).
    pub rank_switch: u32,
    /// Precharge to precharge, same rank; 0: no limit.
    pub t_ppd: u32,
    /// Average interval of refreshes of a rank; 0: never.
    pub t_refi: u32,
    /// Refresh of a whole rank to the next activate.
    pub t_rfc: u32,
}

impl Timing {
    /// Read to the end of its data.
    #[must_use]
    pub const fn read_latency(&self) -> u32 {
        self.t_cl + self.burst
    }

    /// Read to write, any two banks: the data bus turns round.
    #[must_use]
    pub const fn read_to_write(&self, same_rank: bool) -> u32 {
        let gap = if same_rank { self.turnaround } else { self.turnaround_or_switch() };
        (self.t_cl + self.burst + gap).saturating_sub(self.t_cwl)
    }

    /// Write to read of another rank: only the data bus is shared.
    #[must_use]
    pub const fn write_to_read_switch(&self) -> u32 {
        (self.t_cwl + self.burst + self.rank_switch).saturating_sub(self.t_cl)
    }

    const fn turnaround_or_switch(&self) -> u32 {
        if self.turnaround > self.rank_switch { self.turnaround } else { self.rank_switch }
    }
}

/// Shape and constants of a channel.
#[derive(Clone, Copy, Debug)]
pub struct ChannelSpec {
    pub geometry: Geometry,
    pub timing: Timing,
}

/// DDR4-2400R, 8 Gb chips of 8 bits, one rank of 8 GiB: 16 banks in 4 groups.
///
/// Source: JESD79-4 speed bin 2400R and tables for a page of 1 KB, as in ramulator2's
/// `DDR4_2400R` with `DDR4_8Gb_x8` (tRFC 360 ns, tREFI 7.8 µs, rounded up).
pub const DDR4_2400: ChannelSpec = ChannelSpec {
    geometry: Geometry { ranks: 1, groups: 4, banks: 4, rows: 1 << 16, columns: 128 },
    timing: Timing {
        t_ck_ps: 833,
        burst: 4,
        t_cmd: 1,
        t_cl: 16,
        t_cwl: 12,
        t_rcd: 16,
        t_rp: 16,
        t_ras: 39,
        t_rc: 55,
        t_rrd_s: 4,
        t_rrd_l: 6,
        t_faw: 26,
        t_ccd_s: 4,
        t_ccd_l: 6,
        t_ccd_l_wr: 6,
        t_wr: 18,
        t_rtp: 9,
        t_wtr_s: 3,
        t_wtr_l: 9,
        turnaround: 2,
        rank_switch: 2,
        t_ppd: 0,
        t_refi: 9364,
        t_rfc: 433,
    },
};

/// What DRackSim simulates: "DDR4-2400 x16" with 4 banks and no groups.
///
/// Source: DRackSim, `DRAMSIM2_ini/DDR4_x16_2400.ini`. What DRAMSim2 computes from it is computed:
/// write latency CL − 1, read to precharge BL/2 + max(tRTP, 2) − 2, tRTRS between read and write,
/// tREFI 7800 ns.
pub const DRACKSIM: ChannelSpec = ChannelSpec {
    geometry: Geometry { ranks: 1, groups: 1, banks: 4, rows: 1 << 16, columns: 128 },
    timing: Timing {
        t_ck_ps: 833,
        burst: 4,
        t_cmd: 1,
        t_cl: 16,
        t_cwl: 15,
        t_rcd: 16,
        t_rp: 16,
        t_ras: 32,
        t_rc: 48,
        t_rrd_s: 4,
        t_rrd_l: 4,
        t_faw: 20,
        t_ccd_s: 4,
        t_ccd_l: 4,
        t_ccd_l_wr: 4,
        t_wr: 18,
        t_rtp: 6,
        t_wtr_s: 5,
        t_wtr_l: 5,
        turnaround: 1,
        rank_switch: 1,
        t_ppd: 0,
        t_refi: 9364,
        t_rfc: 312,
    },
};

/// DDR5-4800B, 16 Gb chips of 8 bits, one rank of a 32-bit subchannel, 8 GiB: 32 banks in 8
/// groups.
///
/// Source: JESD79-5 speed bin 4800B, as in ramulator2's `DDR5_4800BN` with `DDR5_16Gb_x8`
/// (tRFC1 295 ns, tREFI 3.9 µs, rounded up; read to write with tWPRE 2); tFAW is the 32 cycles of
/// a 1 KB page, as in gem5's `DDR5_4400_4x8`. RD, WR and ACT take two cycles of the command bus.
pub const DDR5_4800: ChannelSpec = ChannelSpec {
    geometry: Geometry { ranks: 1, groups: 8, banks: 4, rows: 1 << 16, columns: 64 },
    timing: Timing {
        t_ck_ps: 416,
        burst: 8,
        t_cmd: 2,
        t_cl: 36,
        t_cwl: 34,
        t_rcd: 36,
        t_rp: 36,
        t_ras: 77,
        t_rc: 113,
        t_rrd_s: 8,
        t_rrd_l: 12,
        t_faw: 32,
        t_ccd_s: 8,
        t_ccd_l: 12,
        t_ccd_l_wr: 48,
        t_wr: 72,
        t_rtp: 18,
        t_wtr_s: 6,
        t_wtr_l: 24,
        turnaround: 4,
        rank_switch: 2,
        t_ppd: 2,
        t_refi: 9375,
        t_rfc: 710,
    },
};
