//! Choices of a running master, written down so that they can be made again.
//!
//! ```text
//!  heartbeats ─┐              ┌─ a choice
//!  requests  ──┴→ Recorder ───┴─ entries: Chooser, then Accesses and Pick in their order
//! ```
//!
//! A [`Recorder`] is a [`Chooser`] that keeps what it was told and what it chose: postcard of
//! [`RecordedEvent`], one after the other, in two parts of bounded length. Each part begins with
//! the chooser as it was then, so that reading from there needs nothing older; when the second
//! part is full the first one is forgotten. [`Replay`] makes the choices again. Owned by the
//! master's engine; no clock, nothing outside.

use super::{Candidate, Choice, Chooser, PickRequest, pick_home};
use crate::addr::RackId;
use crate::constants::{PLACEMENT_ANSWER_BYTES_MAX, PLACEMENT_LOG_BYTES};
use crate::seam::Nanos;
use serde::{Deserialize, Serialize};

/// What a chooser was told, or chose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordedEvent {
    /// The chooser as it is here: where reading begins, and what a reader has come to.
    Chooser {
        choice: Choice,
        chooser: Box<Chooser>,
    },
    /// How often a rack's memory was accessed since its daemon started.
    Accesses {
        /// The rack, or a shard of it.
        rack: RackId,
        total: u64,
    },
    Pick(Pick),
}

/// A choice, with all that it was made of beside the [`Chooser`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pick {
    /// When, ns of the master's clock.
    pub at: Nanos,
    /// The rack that asked, which is not chosen.
    pub own: RackId,
    pub bytes: u64,
    pub tried: Vec<RackId>,
    /// What was known of each rack.
    pub candidates: Vec<Candidate>,
    pub chosen: Option<RackId>,
}

impl Pick {
    pub fn request(&self) -> PickRequest<'_> {
        PickRequest { own: self.own, bytes: self.bytes, tried: &self.tried }
    }
}

/// Some of what a [`Recorder`] remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPiece {
    /// The seed of the recorder: another one is another master.
    pub seed: u64,
    /// Where `bytes` begins, counted from the recorder's begin.
    pub at: u64,
    /// Postcard of entries; the last one may go on in the next piece.
    pub bytes: Vec<u8>,
}

/// A part of the log.
#[derive(Debug, Default)]
struct Part {
    begin: u64,
    bytes: Vec<u8>,
}

impl Part {
    fn end(&self) -> u64 {
        self.begin + self.bytes.len() as u64
    }
}

/// A chooser that keeps what it did. See the module.
#[derive(Debug)]
pub struct Recorder {
    seed: u64,
    choice: Choice,
    chooser: Chooser,
    old: Part,
    new: Part,
}

impl Recorder {
    /// Choices by `choice`, which follow from `seed` and the calls alone.
    pub fn new(choice: Choice, seed: u64) -> Recorder {
        let (chooser, old, new) = (Chooser::new(seed), Part::default(), Part::default());
        Recorder { seed, choice, chooser, old, new }
    }

    /// As [`Chooser::note_accesses`]. Racks that rest are not written down again and again.
    pub fn note_accesses(&mut self, rack: RackId, total: u64) {
        if !self.chooser.histories.is_news(rack, total) {
            return;
        }
        self.make_room();
        self.write(&RecordedEvent::Accesses { rack, total });
        self.chooser.note_accesses(rack, total);
    }

    /// As [`pick_home`].
    pub fn pick(
        &mut self,
        candidates: Vec<Candidate>,
        request: PickRequest<'_>,
        at: Nanos,
    ) -> Option<RackId> {
        self.make_room();
        let chosen = pick_home(self.choice, &candidates, request, at, &mut self.chooser);
        let PickRequest { own, bytes, tried } = request;
        let tried = tried.to_vec();
        self.write(&RecordedEvent::Pick(Pick { at, own, bytes, tried, candidates, chosen }));
        chosen
    }

    /// What is remembered from byte `from` on; from the begin of what is remembered if `from` is
    /// forgotten, or was never there. Empty at the end.
    pub fn read(&self, from: u64) -> LogPiece {
        let is_known = (self.old.begin..=self.new.end()).contains(&from);
        let at = if is_known { from } else { self.old.begin };
        let part = if at < self.new.begin { &self.old } else { &self.new };
        let begin = usize::try_from(at - part.begin).expect("it is within the part");
        let rest = &part.bytes[begin..];
        let bytes = rest[..rest.len().min(PLACEMENT_ANSWER_BYTES_MAX)].to_vec();
        LogPiece { seed: self.seed, at, bytes }
    }

    /// Begins a part if none has begun or the last one is full.
    fn make_room(&mut self) {
        if !self.new.bytes.is_empty() && self.new.bytes.len() < PLACEMENT_LOG_BYTES {
            return;
        }
        let next = Part { begin: self.new.end(), bytes: Vec::new() };
        self.old = std::mem::replace(&mut self.new, next);
        let chooser = Box::new(self.chooser.clone());
        self.write(&RecordedEvent::Chooser { choice: self.choice, chooser });
    }

    fn write(&mut self, entry: &RecordedEvent) {
        let bytes = postcard::to_stdvec(entry).expect("numbers and lists can be written");
        self.new.bytes.extend(bytes);
    }
}

/// A replay that does not do what was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    #[error("choice {pick} was {recorded:?}, and is {replayed:?} when it is made again")]
    Chosen { pick: u64, recorded: Option<RackId>, replayed: Option<RackId> },
    /// The same racks, but the chooser has come to something else.
    #[error("after {picks} choices the chooser is not what it was")]
    State {
        /// How many were made again.
        picks: u64,
    },
    /// The first entry is no [`RecordedEvent::Chooser`].
    #[error("it does not begin with a chooser")]
    NoBegin,
}

#[derive(Debug, Default)]
pub struct Replay {
    chooser: Option<(Choice, Chooser)>,
    picks: u64,
}

impl Replay {
    /// Choices that were made again and were the same.
    pub fn picks(&self) -> u64 {
        self.picks
    }

    /// What comes next is not what came after the last entry: it begins anew with a chooser.
    pub fn gap(&mut self) {
        self.chooser = None;
    }

    /// Does the next entry.
    ///
    /// # Errors
    /// What was done differs, or nothing is known to begin with.
    pub fn step(&mut self, entry: &RecordedEvent) -> Result<(), ReplayError> {
        match (entry, self.chooser.as_mut()) {
            (RecordedEvent::Chooser { choice, chooser }, None) => {
                self.chooser = Some((*choice, Chooser::clone(chooser)));
            }
            (RecordedEvent::Chooser { choice, chooser }, Some(own)) => {
                if (own.0, &own.1) != (*choice, &**chooser) {
                    return Err(ReplayError::State { picks: self.picks });
                }
            }
            (_, None) => return Err(ReplayError::NoBegin),
            (RecordedEvent::Accesses { rack, total }, Some((_, chooser))) => {
                chooser.note_accesses(*rack, *total);
            }
            (RecordedEvent::Pick(pick), Some((choice, chooser))) => {
                let request = pick.request();
                let replayed = pick_home(*choice, &pick.candidates, request, pick.at, chooser);
                self.picks += 1;
                if replayed != pick.chosen {
                    let (pick, recorded) = (self.picks, pick.chosen);
                    return Err(ReplayError::Chosen { pick, recorded, replayed });
                }
            }
        }
        Ok(())
    }
}

/// The whole entries at the begin of `bytes`, and how many bytes they take. `None` if they are not
/// entries.
pub fn entries_of(bytes: &[u8]) -> Option<(Vec<RecordedEvent>, usize)> {
    let (mut entries, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        match postcard::take_from_bytes(rest) {
            Ok((entry, after)) => {
                entries.push(entry);
                rest = after;
            }
            Err(postcard::Error::DeserializeUnexpectedEnd) => break,
            Err(_) => return None,
        }
    }
    Some((entries, bytes.len() - rest.len()))
}

#[cfg(test)]
mod tests {
    use super::super::Window;
    use super::*;

    fn racks(count: u16, turn: u64) -> Vec<Candidate> {
        let rack = |rack: u16| Candidate {
            rack: RackId(rack),
            alive: turn % 7 != u64::from(rack),
            free_bytes: 1_000 + turn * u64::from(rack) % 900,
            used_bytes: turn % 300 * u64::from(rack),
            promised_bytes: 0,
        };
        (0..count).map(rack).collect()
    }

    fn work(recorder: &mut Recorder, turns: std::ops::Range<u64>) {
        for turn in turns {
            recorder.note_accesses(RackId((turn % 5) as u16), turn * turn % 1_000_003);
            let own = RackId((turn % 5) as u16);
            let request = PickRequest { own, bytes: turn % 1_500, tried: &[RackId(4)] };
            recorder.pick(racks(5, turn), request, turn * 1_000_000);
        }
    }

    /// Everything from `from` on, and where it ends.
    fn all(recorder: &Recorder, from: u64) -> (u64, Vec<u8>, u64) {
        let first = recorder.read(from);
        let (begin, mut bytes) = (first.at, first.bytes);
        loop {
            let end = begin + bytes.len() as u64;
            let piece = recorder.read(end);
            assert_eq!(piece.at, end);
            if piece.bytes.is_empty() {
                return (begin, bytes, end);
            }
            bytes.extend(piece.bytes);
        }
    }

    const CHOICES: [Choice; 5] = [
        Choice::Random,
        Choice::LeastLoaded,
        Choice::RoundRobin,
        Choice::SmartIdle(Window::PerChoice),
        Choice::Even(Window::Ms(10)),
    ];

    #[test]
    fn recorded_choices_are_the_same_when_they_are_made_again() {
        for choice in CHOICES {
            let mut recorder = Recorder::new(choice, 7);
            work(&mut recorder, 0..500);
            let (begin, bytes, end) = all(&recorder, 0);
            let (entries, used) = entries_of(&bytes).unwrap();
            assert_eq!((begin, used as u64, entries.len()), (0, end, 1_001));
            let mut replay = Replay::default();
            entries.iter().for_each(|entry| replay.step(entry).unwrap());
            assert_eq!(replay.picks(), 500, "{choice:?}");
            // A reader that follows gets what is new.
            work(&mut recorder, 500..510);
            let (at, more, _) = all(&recorder, end);
            assert_eq!(at, end);
            let (entries, _) = entries_of(&more).unwrap();
            entries.iter().for_each(|entry| replay.step(entry).unwrap());
            assert_eq!(replay.picks(), 510);
        }
    }

    #[test]
    fn a_rack_that_rests_leaves_the_log_as_it_is() {
        let mut recorder = Recorder::new(Choice::SmartIdle(Window::PerChoice), 1);
        recorder.note_accesses(RackId(1), 9);
        let end = all(&recorder, 0).2;
        (0..1_000).for_each(|_| recorder.note_accesses(RackId(1), 9));
        assert_eq!(all(&recorder, 0).2, end);
        recorder.note_accesses(RackId(1), 10);
        assert!(all(&recorder, 0).2 > end);
    }

    #[test]
    fn another_choice_or_chooser_is_found() {
        let mut recorder = Recorder::new(Choice::SmartIdle(Window::PerChoice), 7);
        work(&mut recorder, 0..100);
        let (entries, _) = entries_of(&all(&recorder, 0).1).unwrap();
        let run = |entries: &[RecordedEvent]| {
            let mut replay = Replay::default();
            entries.iter().try_for_each(|entry| replay.step(entry))
        };
        assert_eq!(run(&entries), Ok(()));
        assert_eq!(run(&entries[1..]), Err(ReplayError::NoBegin));
        let mut changed = entries.clone();
        let RecordedEvent::Pick(pick) = &mut changed[100] else {
            panic!("every other entry is a pick")
        };
        pick.chosen = Some(RackId(77));
        let error = run(&changed).unwrap_err();
        assert!(matches!(error, ReplayError::Chosen { pick: 50, .. }), "{error}");
        let mut again = entries.clone();
        again.push(RecordedEvent::Chooser {
            choice: Choice::Random,
            chooser: Box::new(Chooser::new(7)),
        });
        assert_eq!(run(&again), Err(ReplayError::State { picks: 100 }));
    }

    #[test]
    fn the_log_is_bounded_and_what_is_left_begins_with_a_chooser() {
        let mut recorder = Recorder::new(Choice::Even(Window::PerChoice), 3);
        let mut turn = 0;
        while recorder.old.begin == 0 {
            work(&mut recorder, turn..turn + 100);
            turn += 100;
        }
        let (begin, bytes, end) = all(&recorder, 0);
        assert_eq!(begin, recorder.old.begin);
        assert!(bytes.len() < 2 * PLACEMENT_LOG_BYTES + 1_000, "{}", bytes.len());
        let (entries, used) = entries_of(&bytes).unwrap();
        assert_eq!(used, bytes.len());
        let mut replay = Replay::default();
        // The second part begins with a chooser as well, which is what the first one came to.
        entries.iter().for_each(|entry| replay.step(entry).unwrap());
        let begins = entries.iter().filter(|entry| matches!(entry, RecordedEvent::Chooser { .. }));
        assert_eq!(begins.count(), 2);
        // What was never there is answered with the begin, what is cut waits for the rest.
        assert_eq!(recorder.read(end + 1).at, begin);
        let (some, used) = entries_of(&bytes[..bytes.len() - 1]).unwrap();
        assert!(some.len() == entries.len() - 1 && used < bytes.len());
        assert_eq!(entries_of(&[200, 1]), None);
    }
}
