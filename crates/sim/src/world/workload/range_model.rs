//! What must hold of ranges of lines and of what is read and written under them.
//!
//! Grants of a line are ordered by their fencing tokens. What a line holds when a grant begins
//! follows from the grants before: a client that gave its lock back without having been told of
//! lost writes has left its last write there; one that died, or was told, has left any of its
//! writes or none. Nothing of them comes later: so what a holder has once seen is there until a
//! client with a greater token writes. A line is written as a whole, and is seen as a whole.

use crate::time::Ps;
use crate::world::kernel::ProcessId;
use rackpool_core::RackId;
use rackpool_core::client::LockRange;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const LINE_BYTES: u64 = 64;
pub(super) const WORDS: usize = 8;

/// A lock that a client was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) process: ProcessId,
    /// From the first line's first byte to behind the last line's last.
    pub(super) lines: (u64, u64),
    pub(super) token: u64,
    pub(super) write: bool,
    /// Its daemon is of the client's host, or its memory is mapped there.
    pub(super) is_local: bool,
    /// The rack that gave it.
    pub(super) rack: RackId,
}

impl Grant {
    pub(super) fn key(&self) -> Key {
        (self.process, self.lines.0, self.token)
    }

    fn excludes(&self, other: &Grant) -> bool {
        (self.write || other.write) && self.lines.0 < other.lines.1 && other.lines.0 < self.lines.1
    }
}

/// How far a client is with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has it, as far as it was told.
    Held,
    Ending,
    /// It was given back, and everything that was written under it is at home.
    Published,
    /// It died, or was told that writes are lost.
    Doubtful,
}

#[derive(Clone, Debug)]
struct Hold {
    grant: Grant,
    phase: Phase,
    /// Another client was told that it has a line of it, while this one was not giving it back.
    superseded: Option<Ps>,
    /// It was told of lost writes.
    is_told: bool,
    /// Its home's daemon was killed since, or a write said that it may be done in part.
    is_broken: bool,
    /// Lines that it wrote: it may see them in its buffer.
    own: BTreeSet<u64>,
}

impl Hold {
    /// Whether a line of it may be there in part.
    fn may_tear(&self) -> bool {
        self.grant.is_local || self.is_broken
    }
}

/// Which client has which first line under which token: regions count for themselves.
pub(super) type Key = (ProcessId, u64, u64);

#[derive(Clone, Debug)]
struct Line {
    /// What each word may be when the grant with this token begins.
    token: u64,
    words: [Vec<u64>; WORDS],
    /// It was seen in parts, and the client at fault was known.
    is_mixed: bool,
    /// Values by the token of their grant, and their holds.
    writes: BTreeMap<u64, (Key, Vec<u64>)>,
}

impl Line {
    fn zero() -> Line {
        Line {
            token: 0,
            words: std::array::from_fn(|_| vec![0]),
            is_mixed: false,
            writes: BTreeMap::new(),
        }
    }
}

#[derive(Default)]
pub(super) struct RangeModel {
    /// First byte and lines.
    areas: BTreeMap<u64, u64>,
    lines: BTreeMap<u64, Line>,
    holds: BTreeMap<Key, Hold>,
    /// The last token that a rack gave, and when that was known.
    tokens: BTreeMap<RackId, (u64, Ps)>,
    /// Clocks that jumped, by host of a rack: leases may have been shorter for a lease.
    jumps: BTreeMap<RackId, Ps>,
    /// What a client should ask for, and the one that should not.
    wanted: Option<(LockRange, ProcessId)>,
}

/// How long the jump of a clock is felt.
const JUMP_FELT: Ps = Ps::ms(1_500);

impl RangeModel {
    pub(super) fn add_area(&mut self, first: u64, lines: u64) {
        self.areas.insert(first, lines);
        let all = (0..lines).map(|line| (first + LINE_BYTES * line, Line::zero()));
        self.lines.extend(all);
    }

    /// Areas: first byte and lines.
    pub(super) fn areas(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.areas.iter().map(|(first, lines)| (*first, *lines))
    }

    /// Areas that are gone, or that lost their locks.
    pub(super) fn on_power_lost(&mut self, is_gone: impl Fn(u64, u64) -> bool) {
        self.tokens.clear();
        let areas =
            self.areas.iter().filter(|(first, lines)| is_gone(**first, LINE_BYTES * **lines));
        let gone: Vec<u64> = areas.map(|(first, _)| *first).collect();
        for first in gone {
            let end = first + LINE_BYTES * self.areas.remove(&first).unwrap_or_default();
            self.lines.retain(|line, _| !(first..end).contains(line));
            self.holds.retain(|_, hold| !(first..end).contains(&hold.grant.lines.0));
        }
    }

    /// The clock of a rack's host jumped.
    pub(super) fn on_jump(&mut self, rack: RackId, at: Ps) {
        self.jumps.insert(rack, at);
    }

    /// A rack's daemon was killed.
    pub(super) fn on_daemon_killed(&mut self) {
        self.holds.values_mut().for_each(|hold| hold.is_broken = true);
    }

    pub(super) fn ended(&mut self, process: ProcessId) {
        let of_process = (process, 0, 0)..=(process, u64::MAX, u64::MAX);
        for (_, hold) in self.holds.range_mut(of_process) {
            if matches!(hold.phase, Phase::Held | Phase::Ending) {
                hold.phase = Phase::Doubtful;
            }
        }
    }

    /// A client other than this one should ask for a range.
    pub(super) fn want(&mut self, range: LockRange, but: ProcessId) {
        self.wanted = Some((range, but));
    }

    /// What this client should ask for.
    pub(super) fn take_wanted(&mut self, process: ProcessId) -> Option<LockRange> {
        let (range, _) = self.wanted.filter(|(_, but)| *but != process)?;
        self.wanted = None;
        self.areas.range(..=range.first.0).next_back().map(|_| range)
    }

    /// A client was told that it has a range, for which it asked at `asked`; what is wrong with
    /// that. `are_sure`: no rack has lost its power.
    pub(super) fn granted(
        &mut self,
        grant: Grant,
        are_sure: bool,
        (asked, at): (Ps, Ps),
    ) -> Option<String> {
        let mut wrong = None;
        let held = self.holds.values_mut().filter(|hold| hold.phase == Phase::Held);
        for hold in held.filter(|hold| hold.grant.excludes(&grant)) {
            if hold.grant.token < grant.token {
                // A living client of the host keeps its locks.
                if hold.grant.is_local && are_sure {
                    wrong.get_or_insert_with(|| format!("{grant:?} is given while {hold:?}"));
                }
                hold.superseded.get_or_insert(at);
            }
        }
        let last = self.tokens.entry(grant.rack).or_default();
        if last.0 >= grant.token && last.1 < asked {
            wrong.get_or_insert_with(|| format!("{grant:?} comes after token {}", last.0));
        }
        if grant.token > last.0 {
            *last = (grant.token, at);
        }
        let mut newer = self.holds.values().filter(|hold| hold.grant.token > grant.token);
        let superseded = newer.any(|hold| hold.grant.excludes(&grant)).then_some(at);
        let (phase, is_told, is_broken) = (Phase::Held, false, false);
        let own = BTreeSet::new();
        let hold = Hold { grant, phase, superseded, is_told, is_broken, own };
        self.holds.insert(grant.key(), hold);
        wrong
    }

    /// A client is about to write a line.
    pub(super) fn write_called(&mut self, key: Key, line: u64, value: u64) {
        let Some(hold) = self.holds.get_mut(&key) else { return };
        hold.own.insert(line);
        // A client that has lost its lock writes nothing any more, whether it knows or not.
        let Some(state) = self.lines.get_mut(&line).filter(|_| hold.superseded.is_none()) else {
            return;
        };
        state.writes.entry(key.2).or_insert_with(|| (key, Vec::new())).1.push(value);
    }

    /// A client was told that writes under a token are lost.
    pub(super) fn writes_lost(&mut self, key: Key) {
        if let Some(hold) = self.holds.get_mut(&key) {
            hold.is_told = true;
            if hold.phase == Phase::Published {
                hold.phase = Phase::Doubtful;
            }
        }
    }

    /// A write under a token ended with an error: it may be done in part.
    pub(super) fn write_failed(&mut self, key: Key) {
        self.writes_lost(key);
        if let Some(hold) = self.holds.get_mut(&key) {
            hold.is_broken = true;
        }
    }

    /// A client is about to give a lock back.
    pub(super) fn unlock_called(&mut self, key: Key) {
        if let Some(hold) = self.holds.get_mut(&key) {
            hold.phase = Phase::Ending;
        }
    }

    /// It has; what it was told of lost writes is known.
    pub(super) fn unlocked(&mut self, key: Key) {
        if let Some(hold) = self.holds.get_mut(&key) {
            hold.phase = if hold.is_told { Phase::Doubtful } else { Phase::Published };
        }
    }

    /// The pool said of a lock, asked at `called`, that it is held; what is wrong with that.
    pub(super) fn held(&self, key: Key, called: Ps) -> Option<String> {
        let hold = self.holds.get(&key)?;
        let lost = hold.superseded.is_some_and(|at| at < called);
        lost.then(|| format!("it is told that it has what somebody else was given: {hold:?}"))
    }

    /// A client read whole lines under a lock; what is wrong with that.
    pub(super) fn read(
        &mut self,
        key: Key,
        first: u64,
        words: &[u64],
        called: Ps,
    ) -> Option<String> {
        let hold = self.holds.get(&key)?.clone();
        if let Some(at) = hold.superseded {
            let jumped = self.jumps.get(&hold.grant.rack);
            let felt = jumped.is_some_and(|jump| *jump + JUMP_FELT >= called);
            let lines = words.len() / WORDS;
            let mut all = (0..lines as u64).map(|line| first + LINE_BYTES * line);
            let told = hold.grant.is_local || felt || all.any(|line| hold.own.contains(&line));
            let late = at < called && !told;
            return late.then(|| format!("it reads under a lock that somebody else has: {hold:?}"));
        }
        for (index, found) in words.chunks_exact(WORDS).enumerate() {
            let at = first + LINE_BYTES * index as u64;
            let wrong = self.read_line(key, at, found);
            if wrong.is_some() {
                return wrong.map(|text| format!("line {at:#x} under {:?}: {text}", hold.grant));
            }
        }
        None
    }

    fn read_line(&mut self, key: Key, at: u64, found: &[u64]) -> Option<String> {
        let token = key.2;
        let Self { lines, holds, .. } = self;
        let line = lines.get_mut(&at)?;
        if token < line.token {
            return None;
        }
        // What it was told of lost writes may be of these.
        let is_told = holds.get(&key).is_some_and(|hold| hold.is_told);
        if let Some((owner, values)) = line.writes.get(&token)
            && *owner == key
        {
            let last = values.last().copied().unwrap_or_default();
            let is_own = found.iter().all(|word| *word == last);
            // It may come from the buffer, and be lost from there: of home it says nothing.
            if is_own {
                return None;
            }
            if !is_told {
                return Some(format!("{found:x?}, written were {values:x?}"));
            }
        }
        let (mut may, mut may_tear) = (line.words.clone(), line.is_mixed);
        let before = line.writes.range(..token + u64::from(is_told));
        for (owner, values) in before.map(|(_, write)| write) {
            let hold = holds.get(owner);
            let last = values.last().copied().unwrap_or_default();
            if hold.is_some_and(|hold| hold.phase == Phase::Published) {
                may = std::array::from_fn(|_| vec![last]);
                may_tear = false;
            } else {
                may.iter_mut().for_each(|word| word.extend(values));
                may_tear |= hold.is_none_or(Hold::may_tear);
            }
        }
        let explained = found.iter().zip(&may).all(|(word, may)| may.contains(word));
        if !explained {
            return Some(format!("{found:x?}, there may be {may:x?}; {:x?}", line.writes));
        }
        let is_mixed = found.iter().any(|word| *word != found[0]);
        if is_mixed && !may_tear {
            return Some(format!("{found:x?} is torn; {:x?}", line.writes));
        }
        line.token = token;
        line.words = std::array::from_fn(|word| vec![found[word]]);
        line.is_mixed = is_mixed;
        line.writes = line.writes.split_off(&token);
        None
    }
}
