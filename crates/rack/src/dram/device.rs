//! What the chips allow: for each bank, group and rank the earliest cycle of each command, kept up
//! to date as commands are issued.

use super::Cycle;
use super::config::{BANKS_MAX, RANKS_MAX};
use super::queue::Bits;
use super::timing::{Geometry, Timing};
use serde::{Deserialize, Serialize};

const BANKS: usize = BANKS_MAX as usize;
const RANKS: usize = RANKS_MAX as usize;

/// What a rank as a whole waits for.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct RankReady {
    activate: Cycle,
    precharge: Cycle,
    read: Cycle,
    write: Cycle,
    /// Its last four activates, each with `t_faw` added, oldest at `oldest`.
    activates: [Cycle; 4],
    oldest: u8,
}

/// Delays that are sums of constants.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Delays {
    rcd: Cycle,
    rp: Cycle,
    ras: Cycle,
    rc: Cycle,
    rrd_s: Cycle,
    rrd_l: Cycle,
    faw: Cycle,
    ccd_s: Cycle,
    ccd_l: Cycle,
    ccd_l_wr: Cycle,
    rtp: Cycle,
    ppd: Cycle,
    rfc: Cycle,
    read_to_write: Cycle,
    read_to_read_switch: Cycle,
    read_to_write_switch: Cycle,
    write_to_read_s: Cycle,
    write_to_read_l: Cycle,
    write_to_read_switch: Cycle,
    write_to_precharge: Cycle,
}

impl Delays {
    fn new(t: &Timing) -> Self {
        let written = t.t_cwl + t.burst;
        let c = Cycle::from;
        Self {
            rcd: c(t.t_rcd),
            rp: c(t.t_rp),
            ras: c(t.t_ras),
            rc: c(t.t_rc),
            rrd_s: c(t.t_rrd_s),
            rrd_l: c(t.t_rrd_l),
            faw: c(t.t_faw),
            ccd_s: c(t.t_ccd_s),
            ccd_l: c(t.t_ccd_l),
            ccd_l_wr: c(t.t_ccd_l_wr),
            rtp: c(t.t_rtp),
            ppd: c(t.t_ppd),
            rfc: c(t.t_rfc),
            read_to_write: c(t.read_to_write(true)),
            read_to_read_switch: c(t.burst + t.rank_switch),
            read_to_write_switch: c(t.read_to_write(false)),
            write_to_read_s: c(written + t.t_wtr_s),
            write_to_read_l: c(written + t.t_wtr_l),
            write_to_read_switch: c(t.write_to_read_switch()),
            write_to_precharge: c(written + t.t_wr),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Device {
    delays: Delays,
    /// Banks with an open row.
    pub(super) open: u64,
    #[serde(with = "super::array")]
    rows: [u32; BANKS],
    #[serde(with = "super::array")]
    activate: [Cycle; BANKS],
    #[serde(with = "super::array")]
    precharge: [Cycle; BANKS],
    #[serde(with = "super::array")]
    column: [Cycle; BANKS],
    #[serde(with = "super::array")]
    group_activate: [Cycle; BANKS],
    #[serde(with = "super::array")]
    group_read: [Cycle; BANKS],
    #[serde(with = "super::array")]
    group_write: [Cycle; BANKS],
    ranks: [RankReady; RANKS],
    rank_count: usize,
    group_shift: u32,
    rank_shift: u32,
    /// Ones for the banks of rank 0.
    rank_banks: u64,
}

impl Device {
    pub(super) fn new(geometry: &Geometry, timing: &Timing) -> Self {
        let banks_a_rank = geometry.groups * geometry.banks;
        Self {
            delays: Delays::new(timing),
            open: 0,
            rows: [0; BANKS],
            activate: [0; BANKS],
            precharge: [0; BANKS],
            column: [0; BANKS],
            group_activate: [0; BANKS],
            group_read: [0; BANKS],
            group_write: [0; BANKS],
            ranks: [RankReady::default(); RANKS],
            rank_count: geometry.ranks as usize,
            group_shift: geometry.banks.trailing_zeros(),
            rank_shift: banks_a_rank.trailing_zeros(),
            rank_banks: u64::MAX >> (u64::BITS - banks_a_rank),
        }
    }

    #[inline]
    const fn group(&self, bank: usize) -> usize {
        bank >> self.group_shift
    }

    #[inline]
    pub(super) const fn rank(&self, bank: usize) -> usize {
        bank >> self.rank_shift
    }

    /// The banks of a rank.
    #[inline]
    pub(super) const fn banks_of(&self, rank: usize) -> u64 {
        self.rank_banks << (rank << self.rank_shift)
    }

    /// The open row of a bank that has one, or its last one.
    #[inline]
    pub(super) const fn row(&self, bank: usize) -> u32 {
        self.rows[bank]
    }

    #[inline]
    pub(super) const fn is_open(&self, bank: usize) -> bool {
        self.open >> bank & 1 != 0
    }

    #[inline]
    pub(super) fn earliest_activate(&self, bank: usize) -> Cycle {
        let rank = self.ranks[self.rank(bank)].activate;
        self.activate[bank].max(self.group_activate[self.group(bank)]).max(rank)
    }

    /// No bank can be activated before.
    #[inline]
    pub(super) fn earliest_activate_of_all(&self) -> Cycle {
        let ranks = &self.ranks[..self.rank_count];
        ranks.iter().fold(Cycle::MAX, |least, rank| least.min(rank.activate))
    }

    #[inline]
    pub(super) fn earliest_precharge(&self, bank: usize) -> Cycle {
        self.precharge[bank].max(self.ranks[self.rank(bank)].precharge)
    }

    #[inline]
    pub(super) fn earliest_read(&self, bank: usize) -> Cycle {
        let rank = self.ranks[self.rank(bank)].read;
        self.column[bank].max(self.group_read[self.group(bank)]).max(rank)
    }

    #[inline]
    pub(super) fn earliest_write(&self, bank: usize) -> Cycle {
        let rank = self.ranks[self.rank(bank)].write;
        self.column[bank].max(self.group_write[self.group(bank)]).max(rank)
    }

    /// When all open rows of the rank can be closed at once.
    pub(super) fn earliest_precharge_all(&self, rank: usize) -> Cycle {
        let open = Bits(self.open & self.banks_of(rank));
        open.map(|bank| self.precharge[bank]).fold(self.ranks[rank].precharge, Cycle::max)
    }

    /// When a rank without open rows can be refreshed.
    pub(super) fn earliest_refresh(&self, rank: usize) -> Cycle {
        let banks = Bits(self.banks_of(rank));
        banks.map(|bank| self.activate[bank]).max().unwrap_or(0)
    }

    pub(super) fn activate(&mut self, at: Cycle, bank: usize, row: u32) {
        let (group, rank) = (self.group(bank), self.rank(bank));
        let d = &self.delays;
        self.open |= 1 << bank;
        self.rows[bank] = row;
        self.column[bank] = at + d.rcd;
        self.precharge[bank] = at + d.ras;
        self.activate[bank] = at + d.rc;
        self.group_activate[group] = at + d.rrd_l;
        let rank = &mut self.ranks[rank];
        // Of the last four activates the oldest bounds the next one.
        rank.activates[rank.oldest as usize] = at + d.faw;
        rank.oldest = (rank.oldest + 1) & 3;
        rank.activate = (at + d.rrd_s).max(rank.activates[rank.oldest as usize]);
    }

    pub(super) fn read(&mut self, at: Cycle, bank: usize) {
        let (group, own) = (self.group(bank), self.rank(bank));
        let d = &self.delays;
        self.precharge[bank] = self.precharge[bank].max(at + d.rtp);
        self.group_read[group] = at + d.ccd_l;
        for (number, rank) in self.ranks[..self.rank_count].iter_mut().enumerate() {
            let (read, write) = if number == own {
                (d.ccd_s, d.read_to_write)
            } else {
                (d.read_to_read_switch, d.read_to_write_switch)
            };
            rank.read = rank.read.max(at + read);
            rank.write = rank.write.max(at + write);
        }
    }

    pub(super) fn write(&mut self, at: Cycle, bank: usize) {
        let (group, own) = (self.group(bank), self.rank(bank));
        let d = &self.delays;
        self.precharge[bank] = self.precharge[bank].max(at + d.write_to_precharge);
        self.group_write[group] = at + d.ccd_l_wr;
        self.group_read[group] = self.group_read[group].max(at + d.write_to_read_l);
        for (number, rank) in self.ranks[..self.rank_count].iter_mut().enumerate() {
            let (read, write) = if number == own {
                (d.write_to_read_s, d.ccd_s)
            } else {
                (d.write_to_read_switch, d.read_to_read_switch)
            };
            rank.read = rank.read.max(at + read);
            rank.write = rank.write.max(at + write);
        }
    }

    pub(super) fn precharge(&mut self, at: Cycle, bank: usize) {
        self.close(at, bank);
        let rank = self.rank(bank);
        self.ranks[rank].precharge = at + self.delays.ppd;
    }

    pub(super) fn precharge_all(&mut self, at: Cycle, rank: usize) {
        for bank in Bits(self.open & self.banks_of(rank)) {
            self.close(at, bank);
        }
        self.ranks[rank].precharge = at + self.delays.ppd;
    }

    /// The row closes by itself as soon as it may.
    pub(super) fn precharge_after_access(&mut self, bank: usize) {
        self.close(self.precharge[bank], bank);
    }

    pub(super) fn refresh(&mut self, at: Cycle, rank: usize) {
        for bank in Bits(self.banks_of(rank)) {
            self.activate[bank] = at + self.delays.rfc;
        }
    }

    /// Its last refreshes were so much later.
    pub(super) fn later(&mut self, cycles: Cycle) {
        let banks = self.rank_count << self.rank_shift;
        self.activate[..banks].iter_mut().for_each(|at| *at += cycles);
    }

    fn close(&mut self, at: Cycle, bank: usize) {
        self.open &= !(1 << bank);
        self.activate[bank] = self.activate[bank].max(at + self.delays.rp);
    }
}
