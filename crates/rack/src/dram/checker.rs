//! A judge of commands: is told each one as it was issued and names the first rule that it breaks.
//!
//! It keeps for each bank, group and rank when which command was last there, and measures from
//! those; the scheduler keeps earliest times of what comes. The two share the timing constants and
//! nothing else. What is not checked: whether the scheduler's choice was a good one.

use super::Cycle;
use super::command::{Command, CommandKind};
use super::config::Config;
use super::timing::Timing;

/// A rule of the standards, by the constant that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Commands come one after the other, each with its cycles of the bus.
    CommandBus,
    /// A row is opened only in a closed bank.
    BankIsOpen,
    /// An access needs its own row open; a refresh needs all rows closed.
    RowState,
    Rcd,
    /// Precharge to activate or refresh.
    Rp,
    Ras,
    /// Activate to activate or refresh.
    Rc,
    /// Activate to activate, other group.
    RrdS,
    /// Activate to activate, same group.
    RrdL,
    /// Five activates in the window of four.
    Faw,
    /// Access to access, other group.
    CcdS,
    /// Access to access, same group.
    CcdL,
    Wr,
    Rtp,
    /// Written data to read, other group.
    WtrS,
    /// Written data to read, same group.
    WtrL,
    /// Data of two accesses overlap, or the bus has no time to turn or to change ranks.
    DataBus,
    Ppd,
    /// Refresh to the next command that needs the rank.
    Rfc,
    /// More than eight refreshes are missing.
    Refi,
}

/// A rule that a command broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{command:?} breaks {rule:?}: it was allowed from cycle {earliest}")]
pub struct Violation {
    pub rule: Rule,
    pub command: Command,
    /// When the rule would have allowed it; for rules without a time the command's own cycle.
    pub earliest: Cycle,
}

/// Refreshes that may be postponed (JESD79-4 §4.26, JESD79-5).
const POSTPONED_MAX: u64 = 8;

#[derive(Clone, Copy, Default)]
struct Bank {
    row: Option<u32>,
    activated: Option<Cycle>,
    precharged: Option<Cycle>,
    read: Option<Cycle>,
    written: Option<Cycle>,
}

#[derive(Clone, Copy, Default)]
struct Group {
    activated: Option<Cycle>,
    read: Option<Cycle>,
    written: Option<Cycle>,
}

#[derive(Clone, Default)]
struct Rank {
    /// The last four, oldest first.
    activated: [Option<Cycle>; 4],
    read: Option<Cycle>,
    written: Option<Cycle>,
    precharged: Option<Cycle>,
    refreshed: Option<Cycle>,
    refreshes: u64,
}

/// Data on the bus: its first cycle, the rank that drives it, and its direction.
#[derive(Clone, Copy)]
struct Burst {
    start: Cycle,
    rank: usize,
    write: bool,
}

/// The judge of one channel.
pub struct Checker {
    timing: Timing,
    groups: usize,
    banks_a_group: usize,
    banks: Vec<Bank>,
    group: Vec<Group>,
    ranks: Vec<Rank>,
    bus: Option<(Cycle, u32)>,
    burst: Option<Burst>,
    commands: u64,
}

impl Checker {
    /// The judge of a channel built from `config`, before its first command.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let g = &config.geometry;
        Self {
            timing: config.timing,
            groups: g.groups as usize,
            banks_a_group: g.banks as usize,
            banks: vec![Bank::default(); g.banks_all() as usize],
            group: vec![Group::default(); (g.ranks * g.groups) as usize],
            ranks: vec![Rank::default(); g.ranks as usize],
            bus: None,
            burst: None,
            commands: 0,
        }
    }

    #[must_use]
    pub const fn commands(&self) -> u64 {
        self.commands
    }

    /// Judges the next command.
    ///
    /// # Errors
    /// [`Violation`]; the checker is of no use afterwards.
    ///
    /// # Panics
    /// When the command names a bank that the configuration does not have.
    pub fn check(&mut self, command: &Command) -> Result<(), Violation> {
        let judge = Judge { command };
        self.commands += 1;
        let cycles = match command.kind {
            CommandKind::Activate
            | CommandKind::Read
            | CommandKind::ReadAuto
            | CommandKind::Write
            | CommandKind::WriteAuto => self.timing.t_cmd,
            _ => 1,
        };
        if let Some((at, cycles)) = self.bus {
            judge.after(Rule::CommandBus, Some(at), cycles)?;
        }
        self.bus = Some((command.at, cycles));
        let bank = command.bank as usize;
        let rank = bank / (self.groups * self.banks_a_group);
        self.check_refreshed(&judge, rank)?;
        match command.kind {
            CommandKind::Activate => self.activate(&judge, bank, rank),
            CommandKind::Read => self.access(&judge, bank, rank, false, false),
            CommandKind::ReadAuto => self.access(&judge, bank, rank, false, true),
            CommandKind::Write => self.access(&judge, bank, rank, true, false),
            CommandKind::WriteAuto => self.access(&judge, bank, rank, true, true),
            CommandKind::Precharge => {
                self.precharge_bank(&judge, bank)?;
                self.precharge_rank(&judge, rank)
            }
            CommandKind::PrechargeAll => {
                for bank in self.banks_of(rank) {
                    self.precharge_bank(&judge, bank)?;
                }
                self.precharge_rank(&judge, rank)
            }
            CommandKind::Refresh => self.refresh(&judge, rank),
        }
    }

    fn banks_of(&self, rank: usize) -> std::ops::Range<usize> {
        let count = self.groups * self.banks_a_group;
        rank * count..(rank + 1) * count
    }

    /// No command but the next refresh is of use to a rank that misses too many refreshes.
    fn check_refreshed(&self, judge: &Judge, rank: usize) -> Result<(), Violation> {
        let interval = Cycle::from(self.timing.t_refi);
        if interval == 0 {
            return Ok(());
        }
        let due = judge.command.at / interval;
        judge.unless(Rule::Refi, due > self.ranks[rank].refreshes + POSTPONED_MAX)
    }

    fn activate(&mut self, judge: &Judge, bank: usize, rank: usize) -> Result<(), Violation> {
        let t = self.timing;
        let at = judge.command.at;
        let state = &mut self.banks[bank];
        judge.unless(Rule::BankIsOpen, state.row.is_some())?;
        judge.after(Rule::Rp, state.precharged, t.t_rp)?;
        judge.after(Rule::Rc, state.activated, t.t_rc)?;
        state.row = Some(judge.command.row);
        state.activated = Some(at);
        let group = &mut self.group[bank / self.banks_a_group];
        judge.after(Rule::RrdL, group.activated, t.t_rrd_l)?;
        group.activated = Some(at);
        let rank = &mut self.ranks[rank];
        judge.after(Rule::RrdS, rank.activated[3], t.t_rrd_s)?;
        judge.after(Rule::Faw, rank.activated[0], t.t_faw)?;
        judge.after(Rule::Rfc, rank.refreshed, t.t_rfc)?;
        rank.activated.rotate_left(1);
        rank.activated[3] = Some(at);
        Ok(())
    }

    fn access(
        &mut self,
        judge: &Judge,
        bank: usize,
        rank: usize,
        write: bool,
        closes: bool,
    ) -> Result<(), Violation> {
        let t = self.timing;
        let at = judge.command.at;
        let state = &mut self.banks[bank];
        judge.unless(Rule::RowState, state.row != Some(judge.command.row))?;
        judge.after(Rule::Rcd, state.activated, t.t_rcd)?;
        let group = &mut self.group[bank / self.banks_a_group];
        let of_rank = &mut self.ranks[rank];
        if write {
            judge.after(Rule::CcdL, group.written, t.t_ccd_l_wr)?;
            judge.after(Rule::CcdS, of_rank.written, t.t_ccd_s)?;
            (state.written, group.written, of_rank.written) = (Some(at), Some(at), Some(at));
        } else {
            let data = t.t_cwl + t.burst;
            judge.after(Rule::WtrL, group.written, data + t.t_wtr_l)?;
            judge.after(Rule::WtrS, of_rank.written, data + t.t_wtr_s)?;
            judge.after(Rule::CcdL, group.read, t.t_ccd_l)?;
            judge.after(Rule::CcdS, of_rank.read, t.t_ccd_s)?;
            (state.read, group.read, of_rank.read) = (Some(at), Some(at), Some(at));
        }
        if closes {
            // It closes itself, as soon as the rules for a precharge are met.
            let from =
                |event: Option<Cycle>, delay: u32| event.map_or(0, |at| at + Cycle::from(delay));
            let written = t.t_cwl + t.burst + t.t_wr;
            let closed = from(state.activated, t.t_ras)
                .max(from(state.read, t.t_rtp))
                .max(from(state.written, written));
            state.row = None;
            state.precharged = Some(closed);
        }
        self.transfer(judge, rank, write)
    }

    /// The data of an access, on the bus that all ranks share.
    fn transfer(&mut self, judge: &Judge, rank: usize, write: bool) -> Result<(), Violation> {
        let t = self.timing;
        let delay = Cycle::from(if write { t.t_cwl } else { t.t_cl });
        let start = judge.command.at + delay;
        if let Some(last) = self.burst {
            let turn = if write && !last.write { t.turnaround } else { 0 };
            let switch = if rank == last.rank { 0 } else { t.rank_switch };
            let free = last.start + Cycle::from(t.burst + turn.max(switch));
            if start < free {
                return Err(judge.violation(Rule::DataBus, free.saturating_sub(delay)));
            }
        }
        self.burst = Some(Burst { start, rank, write });
        Ok(())
    }

    fn precharge_bank(&mut self, judge: &Judge, bank: usize) -> Result<(), Violation> {
        let t = self.timing;
        let state = &mut self.banks[bank];
        if state.row.take().is_none() {
            // A closed bank does not feel it.
            return Ok(());
        }
        judge.after(Rule::Ras, state.activated, t.t_ras)?;
        judge.after(Rule::Rtp, state.read, t.t_rtp)?;
        judge.after(Rule::Wr, state.written, t.t_cwl + t.burst + t.t_wr)?;
        state.precharged = Some(judge.command.at);
        Ok(())
    }

    fn precharge_rank(&mut self, judge: &Judge, rank: usize) -> Result<(), Violation> {
        let rank = &mut self.ranks[rank];
        judge.after(Rule::Ppd, rank.precharged, self.timing.t_ppd)?;
        judge.after(Rule::Rfc, rank.refreshed, self.timing.t_rfc)?;
        rank.precharged = Some(judge.command.at);
        Ok(())
    }

    fn refresh(&mut self, judge: &Judge, rank: usize) -> Result<(), Violation> {
        for bank in self.banks_of(rank) {
            let state = &self.banks[bank];
            judge.unless(Rule::RowState, state.row.is_some())?;
            judge.after(Rule::Rp, state.precharged, self.timing.t_rp)?;
            judge.after(Rule::Rc, state.activated, self.timing.t_rc)?;
        }
        let rank = &mut self.ranks[rank];
        judge.after(Rule::Rfc, rank.refreshed, self.timing.t_rfc)?;
        rank.refreshed = Some(judge.command.at);
        rank.refreshes += 1;
        Ok(())
    }
}

struct Judge<'c> {
    command: &'c Command,
}

impl Judge<'_> {
    /// The command must come so many cycles after the event, if that ever was.
    #[inline]
    fn after(&self, rule: Rule, event: Option<Cycle>, cycles: u32) -> Result<(), Violation> {
        match event {
            Some(at) if self.command.at < at + Cycle::from(cycles) => {
                Err(self.violation(rule, at + Cycle::from(cycles)))
            }
            _ => Ok(()),
        }
    }

    fn unless(&self, rule: Rule, broken: bool) -> Result<(), Violation> {
        if broken { Err(self.violation(rule, self.command.at)) } else { Ok(()) }
    }

    #[cold]
    fn violation(&self, rule: Rule, earliest: Cycle) -> Violation {
        Violation { rule, command: *self.command, earliest }
    }
}
