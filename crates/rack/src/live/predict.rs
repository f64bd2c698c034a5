//! What racks would have been chosen if the simulator had kept their memory: requests, times and
//! accesses are the recorded ones, free memory is what earlier choices left. Nothing is freed.

use super::Recording;
use rackpool_core::addr::RackId;
use rackpool_core::placement::{
    Candidate, Choice, Chooser, Pick, RecordedEvent, Window, pick_home,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// A rack: what was predicted, and what it was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RackRow {
    pub rack: RackId,
    /// How often it was chosen.
    pub choices: [u64; 2],
    /// Bytes that it was chosen for.
    pub placed_bytes: [u64; 2],
    /// Bytes in use at the end; what it was if its daemon could be asked.
    pub used_bytes: (u64, Option<u64>),
}

/// The same requests under another policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyRow {
    pub choice: String,
    /// Bytes in use in the fullest rack.
    pub most_bytes: u64,
    pub least_bytes: u64,
    /// Requests for which no rack had room.
    pub refused: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Of the recording, as text.
    pub recording_hash: String,
    pub placement: String,
    /// Choices that came out the same when they were made again: all of them.
    pub choices_replayed: u64,
    /// Decisions about pages, likewise.
    pub pages_decided_again: u64,
    /// Choices since the last gap, which the rows are of.
    pub choices: u64,
    /// Requests for which no rack had room: predicted, and live.
    pub refused: [u64; 2],
    pub racks: Vec<RackRow>,
    pub policies: Vec<PolicyRow>,
}

const CHOICES: [Choice; 5] = [
    Choice::Random,
    Choice::RoundRobin,
    Choice::LeastLoaded,
    Choice::SmartIdle(Window::PerChoice),
    Choice::Even(Window::PerChoice),
];

/// A rack of the model.
#[derive(Clone, Copy, Debug, Default)]
struct Rack {
    free: u64,
    used: u64,
    choices: u64,
    placed: u64,
}

#[derive(Debug, Default)]
struct Model {
    racks: BTreeMap<RackId, Rack>,
    refused: u64,
}

impl Model {
    /// Does what was asked for, by a choice.
    fn run(entries: &[RecordedEvent], other: Option<Choice>) -> Model {
        let mut model = Model::default();
        let mut policy: Option<(Choice, Chooser)> = None;
        for entry in entries {
            match (entry, policy.as_mut()) {
                (RecordedEvent::Chooser { choice, chooser }, None) => {
                    policy = Some((other.unwrap_or(*choice), Chooser::clone(chooser)));
                }
                (RecordedEvent::Accesses { rack, total }, Some((_, chooser))) => {
                    chooser.note_accesses(*rack, *total);
                }
                (RecordedEvent::Pick(pick), Some((choice, chooser))) => {
                    let candidates = model.candidates(pick);
                    let chosen = pick_home(*choice, &candidates, pick.request(), pick.at, chooser);
                    model.place(chosen, pick.bytes);
                }
                // Later ones are where the live chooser came to; the model's is another one.
                (RecordedEvent::Chooser { .. }, Some(_)) | (_, None) => {}
            }
        }
        model
    }

    /// Racks as the model knows them; one that it sees first is as it was.
    fn candidates(&mut self, pick: &Pick) -> Vec<Candidate> {
        let known = |live: &Candidate| {
            let fresh = Rack { free: live.free_bytes, used: live.used_bytes, ..Rack::default() };
            let rack = *self.racks.entry(live.rack).or_insert(fresh);
            let (free_bytes, used_bytes) = (rack.free, rack.used);
            Candidate { free_bytes, used_bytes, promised_bytes: 0, ..*live }
        };
        pick.candidates.iter().map(known).collect()
    }

    fn place(&mut self, chosen: Option<RackId>, bytes: u64) {
        let Some(rack) = chosen.and_then(|rack| self.racks.get_mut(&rack)) else {
            self.refused += 1;
            return;
        };
        rack.free = rack.free.saturating_sub(bytes);
        rack.used = rack.used.saturating_add(bytes);
        rack.placed = rack.placed.saturating_add(bytes);
        rack.choices += 1;
    }
}

impl Report {
    pub fn of(recording: &Recording) -> Report {
        let model = Model::run(&recording.entries, None);
        let mut live = Model::default();
        for entry in &recording.entries {
            if let RecordedEvent::Pick(pick) = entry {
                live.candidates(pick);
                live.place(pick.chosen, pick.bytes);
            }
        }
        let used = |rack: RackId| {
            let found = recording.end.racks.iter().find(|one| one.rack == rack);
            found.map(super::RackCounters::used_bytes)
        };
        let row = |(rack, own): (&RackId, &Rack)| RackRow {
            rack: *rack,
            choices: [own.choices, live.racks[rack].choices],
            placed_bytes: [own.placed, live.racks[rack].placed],
            used_bytes: (own.used, used(*rack)),
        };
        let policy = |choice: Choice| {
            let model = Model::run(&recording.entries, Some(choice));
            let used = || model.racks.values().map(|rack| rack.used);
            PolicyRow {
                choice: choice.to_string(),
                most_bytes: used().max().unwrap_or(0),
                least_bytes: used().min().unwrap_or(0),
                refused: model.refused,
            }
        };
        let picks =
            recording.entries.iter().filter(|entry| matches!(entry, RecordedEvent::Pick(_)));
        Report {
            recording_hash: format!("{:016x}", recording.hash),
            placement: recording.header.placement.to_string(),
            choices_replayed: recording.picks,
            pages_decided_again: recording.pages_decided,
            choices: picks.count() as u64,
            refused: [model.refused, live.refused],
            racks: model.racks.iter().map(row).collect(),
            policies: CHOICES.into_iter().map(policy).collect(),
        }
    }
}
