//! Which command is next: FR-FCFS.
//!
//! Each bank with requests of the current mode (reading or writing) has one candidate: an access
//! to its open row, else the command that leads to its oldest request's row. The candidate that is
//! legal first is chosen; among those of the same cycle first refreshes, then accesses, then the
//! older request. Nothing is chosen ahead of its cycle: a request that comes earlier is considered.
//!
//! - *Modes.* Writing begins when more than a share of the write queue is full or no reads wait,
//!   and ends when less than a share is and reads wait, or after as many writes as the queue holds;
//!   then the reads that waited have their turn.
//! - *Opened rows are used.* A row that was opened for a request stays open until one access, and
//!   when the mode changes the accesses of such rows come first; but a write in the background
//!   gives way to a read at once.
//! - *Caps.* Of a bank, `overtakes_max` accesses to the open row overtake an older request. The
//!   oldest request of a queue goes alone after `age_max` cycles.
//! - *Refresh.* From its due cycle a rank opens no rows; those just opened are used, all are
//!   closed, and it is refreshed. The ranks' due cycles are spread over the interval.

use super::{Channel, ChannelCounts, NEVER};
use crate::dram::Cycle;
use crate::dram::config::{BANKS_MAX, Config, RANKS_MAX};
use crate::dram::device::Device;
use crate::dram::queue::{Bits, RequestQueue};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum What {
    /// Nothing but that the choice is made anew.
    Nothing,
    Column {
        write: bool,
    },
    Activate {
        write: bool,
    },
    Precharge,
    /// Some rank's refresh is due now.
    RefreshDue,
    PrechargeAll,
    Refresh,
}

/// What happens next, when, to which bank (or to the rank of that bank).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Choice {
    pub(super) at: Cycle,
    pub(super) bank: usize,
    pub(super) what: What,
}

impl Choice {
    pub(super) const NONE: Choice = Choice { at: NEVER, bank: 0, what: What::Nothing };
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Modes {
    writing: bool,
    /// Writing began because many writes waited.
    forced: bool,
    /// Writes until reads have their turn.
    writes_left: u32,
    /// Reads until writes may force their turn.
    reads_owed: u32,
    high: u32,
    low: u32,
    /// Banks with a row that was opened for a read, or a write, and not used yet.
    fresh: [u64; 2],
    /// Banks with a last row that was closed for a request.
    pub(super) conflicts: u64,
    /// Banks with an open row that has been preferred often enough.
    capped: u64,
    #[serde(with = "crate::dram::array")]
    overtakes: [u32; BANKS_MAX as usize],
    overtakes_max: u32,
    age_max: Cycle,
    /// No request of the queue came before: reads, writes.
    oldest: [Cycle; 2],
    refresh_interval: Cycle,
    refresh_at: [Cycle; RANKS_MAX as usize],
    refresh_first: Cycle,
    /// Banks of ranks that wait for their refresh.
    refreshing: u64,
}

impl Modes {
    pub(super) fn new(config: &Config) -> Self {
        let interval = Cycle::from(config.timing.t_refi);
        let ranks = Cycle::from(config.geometry.ranks);
        let mut refresh_at = [NEVER; RANKS_MAX as usize];
        for (rank, at) in refresh_at[..ranks as usize].iter_mut().enumerate() {
            if interval > 0 {
                *at = interval * (rank as Cycle + 1) / ranks;
            }
        }
        // More than this share of the slots, less than that one.
        let high = config.write_queue * config.write_high_percent / 100;
        let low = (config.write_queue * config.write_low_percent).div_ceil(100).max(1);
        Self {
            writing: false,
            forced: false,
            writes_left: 0,
            reads_owed: 0,
            high,
            low,
            fresh: [0; 2],
            conflicts: 0,
            capped: 0,
            overtakes: [0; BANKS_MAX as usize],
            overtakes_max: config.overtakes_max,
            age_max: config.age_max,
            oldest: [0; 2],
            refresh_interval: interval,
            refresh_first: refresh_at[0],
            refresh_at,
            refreshing: 0,
        }
    }

    /// A row was opened for a read or a write.
    pub(super) fn opened(&mut self, bank: usize, write: bool) {
        self.fresh[usize::from(write)] |= 1 << bank;
        self.capped &= !(1 << bank);
    }

    pub(super) fn closed(&mut self, banks: u64) {
        self.capped &= !banks;
        self.fresh[0] &= !banks;
        self.fresh[1] &= !banks;
        for bank in Bits(banks) {
            self.overtakes[bank] = 0;
        }
    }

    /// The open row of a bank was accessed, past an older request of the queue or not.
    #[inline]
    pub(super) fn accessed(
        &mut self,
        bank: usize,
        write: bool,
        overtakes: bool,
        counts: &mut ChannelCounts,
    ) {
        let bit = 1 << bank;
        if (self.fresh[0] | self.fresh[1]) & bit == 0 {
            counts.row_hits += 1;
        } else if self.conflicts & bit != 0 {
            counts.row_conflicts += 1;
        } else {
            counts.row_misses += 1;
        }
        self.conflicts &= !bit;
        self.fresh[0] &= !bit;
        self.fresh[1] &= !bit;
        if overtakes {
            self.overtakes[bank] += 1;
            if self.overtakes[bank] >= self.overtakes_max {
                self.capped |= bit;
            }
        }
        if write {
            self.writes_left = self.writes_left.saturating_sub(1);
        } else {
            self.reads_owed = self.reads_owed.saturating_sub(1);
        }
    }

    /// The refresh of some rank is due.
    pub(super) fn refresh_due(&mut self, device: &Device, at: Cycle) {
        for (rank, due) in self.refresh_at.iter_mut().enumerate() {
            if *due <= at {
                *due += self.refresh_interval;
                self.refreshing |= device.banks_of(rank);
            }
        }
        self.refresh_first = self.refresh_at.into_iter().min().unwrap_or(NEVER);
    }

    pub(super) fn refreshed(&mut self, device: &Device, rank: usize) {
        self.refreshing &= !device.banks_of(rank);
    }

    /// No rank waits for its refresh.
    pub(super) fn is_refreshed(&self) -> bool {
        self.refreshing == 0
    }

    /// Leaves out as many whole intervals as there are until then, but the last two, in which the
    /// ranks' last refreshes come to the cycles that they would have had; how many.
    pub(super) fn skip_refreshes(&mut self, until: Cycle) -> u64 {
        let left = until.saturating_sub(self.refresh_first);
        let intervals = (left / self.refresh_interval).saturating_sub(2);
        let cycles = intervals * self.refresh_interval;
        for due in self.refresh_at.iter_mut().filter(|due| **due != NEVER) {
            *due += cycles;
        }
        self.refresh_first += cycles;
        intervals
    }

    /// Reading or writing? Whether that has changed.
    #[inline]
    pub(super) fn update(&mut self, reads: &RequestQueue, writes: &RequestQueue) -> bool {
        let waiting_reads = reads.len() - self.fresh[0].count_ones();
        let waiting_writes = writes.len() - self.fresh[1].count_ones();
        let many = waiting_writes > self.high && self.reads_owed == 0;
        if !self.writing {
            if many || (waiting_reads == 0 && waiting_writes > 0) {
                self.writing = true;
                self.forced = many;
                self.writes_left = writes.capacity();
            }
            return self.writing;
        }
        self.forced |= many;
        if waiting_reads > 0 && (waiting_writes < self.low || self.writes_left == 0) {
            self.writing = false;
            self.reads_owed = if self.writes_left == 0 { waiting_reads } else { 0 };
        }
        !self.writing
    }
}

/// The best candidate so far.
struct Best {
    /// Cycles from the first possible one, class and age: the smaller, the better.
    key: u64,
    bank: usize,
    what: What,
}

/// Among commands of the same cycle.
#[derive(Clone, Copy)]
enum Class {
    Refresh = 0,
    Column = 1,
    Row = 2,
}

impl Best {
    const CLASS_SHIFT: u32 = 32;
    const TIME_SHIFT: u32 = 34;

    #[inline]
    fn offer(&mut self, wait: Cycle, class: Class, age: u32, bank: usize, what: What) {
        let key = wait << Self::TIME_SHIFT | (class as u64) << Self::CLASS_SHIFT | u64::from(age);
        if key < self.key {
            *self = Self { key, bank, what };
        }
    }
}

impl Channel {
    pub(super) fn decide(&mut self) {
        self.modes.update(&self.reads, &self.writes);
        let start = self.clock.max(self.bus_free);
        let mut choice = self.best(start, u64::MAX);
        let writing = usize::from(self.modes.writing);
        let expiry = self.modes.oldest[writing] + self.modes.age_max;
        if choice.at != NEVER && choice.at >= expiry {
            choice = self.best_of_old(start, choice);
        }
        if choice.at >= self.modes.refresh_first {
            let at = self.modes.refresh_first.max(start);
            choice = Choice { at, bank: 0, what: What::RefreshDue };
        }
        self.choice = choice;
    }

    /// As [`Channel::best`], but if the oldest request has waited too long it goes alone.
    #[cold]
    fn best_of_old(&mut self, start: Cycle, choice: Choice) -> Choice {
        let writing = self.modes.writing;
        let queue = if writing { &self.writes } else { &self.reads };
        let Some(slot) = queue.oldest_of_all() else {
            return choice;
        };
        let (bank, arrived) = (usize::from(slot.bank), slot.arrived);
        self.modes.oldest[usize::from(writing)] = arrived;
        let expiry = arrived + self.modes.age_max;
        if choice.at < expiry {
            return choice;
        }
        if start < expiry {
            return Choice { at: expiry, bank, what: What::Nothing };
        }
        if queue.hit_overtakes(bank) {
            self.modes.capped |= 1 << bank;
        }
        self.best(start, 1 << bank)
    }

    /// The best candidate from cycle `start` on; only for these banks, and rows just opened.
    fn best(&self, start: Cycle, only: u64) -> Choice {
        let mut best = Best { key: u64::MAX, bank: 0, what: What::Nothing };
        let (device, modes) = (&self.device, &self.modes);
        let queue = if modes.writing { &self.writes } else { &self.reads };
        if modes.refreshing != 0 {
            self.offer_refresh(start, &mut best);
        }
        let allowed = only & !modes.refreshing;
        let hits = queue.hits & !modes.capped;
        // Rows that the other mode opened come first.
        let other = modes.fresh[usize::from(!modes.writing)];
        let exclusive = modes.writing || modes.forced;
        if other != 0 && !exclusive {
            for bank in Bits(other) {
                let age = self.age(self.writes.oldest_hit(bank).sequence);
                let wait = device.earliest_write(bank).saturating_sub(start);
                best.offer(wait, Class::Column, age, bank, What::Column { write: true });
            }
        }
        let (write, banks) = if other != 0 && exclusive {
            (!modes.writing, other)
        } else {
            (modes.writing, hits & allowed | modes.fresh[usize::from(modes.writing)])
        };
        let accessed = if write { &self.writes } else { &self.reads };
        for bank in Bits(banks) {
            let earliest =
                if write { device.earliest_write(bank) } else { device.earliest_read(bank) };
            let age = self.age(accessed.oldest_hit(bank).sequence);
            let wait = earliest.saturating_sub(start);
            best.offer(wait, Class::Column, age, bank, What::Column { write });
        }
        let waiting = queue.pending & allowed;
        for bank in Bits(waiting & device.open & !hits & !modes.fresh[0] & !modes.fresh[1]) {
            let wait = device.earliest_precharge(bank).saturating_sub(start);
            let age = self.age(queue.oldest(bank).sequence);
            best.offer(wait, Class::Row, age, bank, What::Precharge);
        }
        // Ranks that are activated late spare us a look at their banks.
        let closed = waiting & !device.open;
        let late = device.earliest_activate_of_all().saturating_sub(start) << Best::TIME_SHIFT;
        for bank in Bits(if late > best.key { 0 } else { closed }) {
            let wait = device.earliest_activate(bank).saturating_sub(start);
            let age = self.age(queue.oldest(bank).sequence);
            best.offer(wait, Class::Row, age, bank, What::Activate { write: modes.writing });
        }
        if best.key == u64::MAX {
            return Choice::NONE;
        }
        Choice { at: start + (best.key >> Best::TIME_SHIFT), bank: best.bank, what: best.what }
    }

    /// Ranks with a due refresh: rows just opened are used first.
    #[cold]
    fn offer_refresh(&self, start: Cycle, best: &mut Best) {
        let (device, modes) = (&self.device, &self.modes);
        let mut left = modes.refreshing;
        while left != 0 {
            let bank = left.trailing_zeros() as usize;
            let rank = device.rank(bank);
            let banks = device.banks_of(rank);
            left &= !banks;
            if device.open & banks == 0 {
                let wait = device.earliest_refresh(rank).saturating_sub(start);
                best.offer(wait, Class::Refresh, 0, bank, What::Refresh);
            } else if (modes.fresh[0] | modes.fresh[1]) & banks == 0 {
                let wait = device.earliest_precharge_all(rank).saturating_sub(start);
                best.offer(wait, Class::Refresh, 0, bank, What::PrechargeAll);
            }
        }
    }

    /// The smaller, the older; requests differ by less than 2^32 in their numbers.
    #[inline]
    fn age(&self, sequence: u64) -> u32 {
        // Numbers of now come out largest.
        sequence.wrapping_sub(self.next_sequence()) as u32
    }
}
