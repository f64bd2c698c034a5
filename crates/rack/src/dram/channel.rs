//! A channel: requests in, completions out, commands between.
//!
//! The caller's time only goes forward. [`Channel::submit`] and [`Channel::advance`] first issue
//! the commands that were due before, so that a caller may sleep until [`Channel::next_event`]
//! and the outcome is that of a call at every cycle: it depends on the requests and their cycles
//! alone.
//!
//! A read completes with the last beat of its data, or in the next cycle if a queued write has its
//! line. A write completes in the cycle after it was accepted: it is *posted*. A second write to a
//! queued line is merged with the first.

mod schedule;

use super::Cycle;
use super::command::{Command, CommandKind};
use super::config::{Config, DramConfigError, RowPolicy};
use super::device::Device;
use super::map::Map;
use super::queue::{RequestQueue, Slot};
use super::timing::LINE_BYTES;
use schedule::{Choice, Modes, What};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

pub(super) const NEVER: Cycle = Cycle::MAX;

/// One access of a line of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The caller's; comes back in the completion.
    pub id: u64,
    /// A byte address; beyond the channel's bytes it begins at 0 again.
    pub addr: u64,
    pub write: bool,
}

/// An access that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    pub id: u64,
    /// When its last byte was there.
    pub at: Cycle,
    pub arrived: Cycle,
}

/// The queue that the request needs has no room: submit it again when an access of its kind has
/// been issued, at or after [`Channel::next_command`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue of the memory channel is full: submit again after its next command")]
pub struct Full;

/// What a channel has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelCounts {
    pub reads: u64,
    pub writes: u64,
    /// Reads answered by a queued write.
    pub forwarded: u64,
    /// Writes merged with a queued one.
    pub merged: u64,
    /// Accesses to a row that another one had opened.
    pub row_hits: u64,
    /// Accesses that opened a row of a closed bank.
    pub row_misses: u64,
    /// Accesses that had to close another row first.
    pub row_conflicts: u64,
    pub activates: u64,
    /// Rows closed by a command of their own.
    pub precharges: u64,
    /// Rows closed with their last access.
    pub auto_precharges: u64,
    pub refreshes: u64,
    pub commands: u64,
}

/// One channel and its controller. A checkpoint has all of it but the commands that were kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Channel {
    config: Config,
    map: Map,
    device: Device,
    reads: RequestQueue,
    writes: RequestQueue,
    modes: Modes,
    /// What happens next if nothing is submitted before.
    choice: Choice,
    /// Nothing more happens before this cycle.
    clock: Cycle,
    /// First cycle in which the command bus is free.
    bus_free: Cycle,
    sequence: u64,
    flying: VecDeque<Completion>,
    posted: VecDeque<Completion>,
    counts: ChannelCounts,
    #[serde(skip)]
    log: Option<Vec<Command>>,
}

impl Channel {
    /// A channel at cycle 0 with all rows closed.
    ///
    /// # Errors
    /// [`DramConfigError`].
    pub fn new(config: &Config) -> Result<Self, DramConfigError> {
        config.check()?;
        let mut channel = Self {
            map: Map::new(&config.map, &config.geometry)?,
            device: Device::new(&config.geometry, &config.timing),
            reads: RequestQueue::new(config.read_queue),
            writes: RequestQueue::new(config.write_queue),
            modes: Modes::new(config),
            choice: Choice::NONE,
            clock: 0,
            bus_free: 0,
            sequence: 0,
            flying: VecDeque::with_capacity(2 * config.read_queue as usize),
            posted: VecDeque::with_capacity(2 * config.write_queue as usize),
            counts: ChannelCounts::default(),
            log: None,
            config: config.clone(),
        };
        channel.decide();
        Ok(channel)
    }

    /// Hands a request over at cycle `now`; its first command may be issued in the same cycle.
    ///
    /// # Errors
    /// [`Full`]: nothing has happened to the request.
    ///
    /// # Panics
    /// When `now` is earlier than in a call before.
    pub fn submit(&mut self, now: Cycle, request: Request) -> Result<(), Full> {
        assert!(now >= self.clock, "submit at cycle {now}, after cycle {}", self.clock);
        if self.choice.at < now {
            self.run(now - 1);
        }
        self.clock = now;
        let place = self.map.place(request.addr);
        let (bank, line) = (place.bank as usize, request.addr / LINE_BYTES);
        let completion = Completion { id: request.id, at: now + 1, arrived: now };
        if self.writes.pending >> bank & 1 != 0 && self.writes.holds(bank, line) {
            let count =
                if request.write { &mut self.counts.merged } else { &mut self.counts.forwarded };
            *count += 1;
            self.posted.push_back(completion);
            return Ok(());
        }
        let queue = if request.write { &mut self.writes } else { &mut self.reads };
        if queue.is_full() {
            return Err(Full);
        }
        let hits = self.device.is_open(bank) && self.device.row(bank) == place.row;
        let sequence = self.sequence;
        self.sequence += 1;
        let slot = Slot { id: request.id, line, arrived: now, sequence, ..Slot::default() };
        let before = (queue.pending, queue.hits);
        queue.push(place, hits, slot);
        let changed = before != (queue.pending, queue.hits);
        if request.write {
            self.posted.push_back(completion);
        }
        // Behind an older request of its bank it changes nothing but perhaps the mode.
        if self.modes.update(&self.reads, &self.writes) || changed {
            self.decide();
        }
        Ok(())
    }

    /// The earliest cycle at which something can complete; it may turn out to be later. `None` if
    /// nothing will complete: queued writes are posted, and are issued as time goes on.
    #[must_use]
    #[inline]
    pub fn next_event(&self) -> Option<Cycle> {
        let posted = self.posted.front().map_or(NEVER, |completion| completion.at);
        let next = match self.flying.front() {
            Some(completion) => completion.at.min(posted),
            None if self.reads.len() > 0 => {
                let latency = Cycle::from(self.config.timing.read_latency());
                posted.min(self.choice.at.saturating_add(latency))
            }
            None => posted,
        };
        (next != NEVER).then_some(next)
    }

    /// When the next command is issued, if nothing is submitted before: for a caller that waits
    /// for room. `None` if nothing is queued and no refresh is due ever.
    #[must_use]
    #[inline]
    pub fn next_command(&self) -> Option<Cycle> {
        (self.choice.at != NEVER).then_some(self.choice.at)
    }

    /// Whether a request of that kind would be refused now.
    #[must_use]
    #[inline]
    pub const fn is_full(&self, write: bool) -> bool {
        if write { self.writes.is_full() } else { self.reads.is_full() }
    }

    /// Reads and writes that wait for their command.
    #[must_use]
    pub const fn queued(&self) -> (u32, u32) {
        (self.reads.len(), self.writes.len())
    }

    /// Does all that happens up to and including cycle `until`, and appends what completes to
    /// `done`, in the order of the cycles. A far `until` costs no more than a near one: while
    /// nothing is queued, refreshes are only counted.
    ///
    /// # Panics
    /// When `until` is earlier than the cycle of a request that was submitted.
    pub fn advance(&mut self, until: Cycle, done: &mut Vec<Completion>) {
        assert!(until >= self.clock, "advance to cycle {until}, after cycle {}", self.clock);
        if self.choice.at <= until {
            self.run(until);
        }
        self.clock = until;
        loop {
            let at = |front: Option<&Completion>| front.map_or(NEVER, |front| front.at);
            let (flying, posted) = (at(self.flying.front()), at(self.posted.front()));
            if flying.min(posted) > until || flying.min(posted) == NEVER {
                break;
            }
            let from = if flying <= posted { &mut self.flying } else { &mut self.posted };
            done.extend(from.pop_front());
        }
    }

    /// What has been done so far.
    #[must_use]
    pub const fn counts(&self) -> &ChannelCounts {
        &self.counts
    }

    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    #[inline]
    pub(super) const fn next_sequence(&self) -> u64 {
        self.sequence
    }

    /// Keeps the commands from now on, for [`Channel::take_commands`].
    pub fn keep_commands(&mut self) {
        self.log.get_or_insert_default();
    }

    /// Moves the commands that were kept to the end of `commands`.
    pub fn take_commands(&mut self, commands: &mut Vec<Command>) {
        if let Some(log) = &mut self.log {
            commands.append(log);
        }
    }

    /// Issues what is due up to and including `until`.
    fn run(&mut self, until: Cycle) {
        // By then nothing that was done before bounds a refresh any more.
        let settled = self.clock.saturating_add(2 * Cycle::from(self.config.timing.t_refi));
        while self.choice.at <= until.min(NEVER - 1) {
            if self.choice.at > settled {
                self.skip_idle(until);
            }
            let Choice { at, bank, what } = self.choice;
            self.clock = self.clock.max(at);
            match what {
                What::Nothing => {}
                What::Column { write } => self.access(at, bank, write),
                What::Activate { write } => self.activate(at, bank, write),
                What::Precharge => {
                    self.close(1 << bank);
                    self.device.precharge(at, bank);
                    self.modes.conflicts |= 1 << bank;
                    self.counts.precharges += 1;
                    self.issue(at, 1, CommandKind::Precharge, bank, 0, 0);
                }
                What::RefreshDue => self.modes.refresh_due(&self.device, at),
                What::PrechargeAll => {
                    let rank = self.device.rank(bank);
                    let open = self.device.open & self.device.banks_of(rank);
                    self.counts.precharges += u64::from(open.count_ones());
                    self.close(open);
                    self.device.precharge_all(at, rank);
                    self.issue(at, 1, CommandKind::PrechargeAll, bank, 0, 0);
                }
                What::Refresh => {
                    let rank = self.device.rank(bank);
                    self.device.refresh(at, rank);
                    self.modes.refreshed(&self.device, rank);
                    self.counts.refreshes += 1;
                    self.issue(at, 1, CommandKind::Refresh, bank, 0, 0);
                }
            }
            self.decide();
        }
    }

    /// An idle channel with all rows closed does the same in each interval of refreshes: whole
    /// intervals are left out, and their commands counted. Commands that are kept are all issued.
    fn skip_idle(&mut self, until: Cycle) {
        let is_idle = self.reads.len() == 0
            && self.writes.len() == 0
            && self.device.open == 0
            && matches!(self.choice.what, What::RefreshDue)
            && self.modes.is_refreshed();
        if !is_idle || self.log.is_some() {
            return;
        }
        let intervals = self.modes.skip_refreshes(until);
        let cycles = intervals * Cycle::from(self.config.timing.t_refi);
        self.device.later(cycles);
        self.clock += cycles;
        self.bus_free += cycles;
        self.choice.at += cycles;
        let refreshes = intervals * Cycle::from(self.config.geometry.ranks);
        self.counts.refreshes += refreshes;
        self.counts.commands += refreshes;
    }

    fn activate(&mut self, at: Cycle, bank: usize, write: bool) {
        let queue = if write { &self.writes } else { &self.reads };
        let row = queue.oldest(bank).row;
        self.device.activate(at, bank, row);
        self.reads.row_opened(bank, row);
        self.writes.row_opened(bank, row);
        self.modes.opened(bank, write);
        self.counts.activates += 1;
        self.issue(at, self.config.timing.t_cmd, CommandKind::Activate, bank, row, 0);
    }

    fn access(&mut self, at: Cycle, bank: usize, write: bool) {
        let queue = if write { &mut self.writes } else { &mut self.reads };
        let overtakes = queue.hit_overtakes(bank);
        let slot = queue.take_hit(bank);
        self.modes.accessed(bank, write, overtakes, &mut self.counts);
        if write {
            self.device.write(at, bank);
            self.counts.writes += 1;
        } else {
            self.device.read(at, bank);
            self.counts.reads += 1;
            let at = at + Cycle::from(self.config.timing.read_latency());
            self.flying.push_back(Completion { id: slot.id, at, arrived: slot.arrived });
        }
        let bit = 1 << bank;
        let last = (self.reads.hits | self.writes.hits) & bit == 0;
        let closes = self.config.page == RowPolicy::Closed && last;
        if closes {
            self.close(bit);
            self.device.precharge_after_access(bank);
            self.counts.auto_precharges += 1;
        }
        let kind = match (write, closes) {
            (false, false) => CommandKind::Read,
            (false, true) => CommandKind::ReadAuto,
            (true, false) => CommandKind::Write,
            (true, true) => CommandKind::WriteAuto,
        };
        self.issue(at, self.config.timing.t_cmd, kind, bank, slot.row, slot.column);
    }

    /// These banks' rows close: no request hits them any more.
    fn close(&mut self, banks: u64) {
        self.reads.rows_closed(banks);
        self.writes.rows_closed(banks);
        self.modes.closed(banks);
    }

    #[inline]
    fn issue(
        &mut self,
        at: Cycle,
        cycles: u32,
        kind: CommandKind,
        bank: usize,
        row: u32,
        column: u32,
    ) {
        self.bus_free = at + Cycle::from(cycles);
        self.counts.commands += 1;
        if let Some(log) = &mut self.log {
            log.push(Command { at, kind, bank: bank as u32, row, column });
        }
    }
}
