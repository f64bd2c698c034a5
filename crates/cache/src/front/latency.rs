//! Events of latency: commands that took as long as `latency-monitor-threshold` says, the longest
//! of each second. In: what took how long. Out: the last ones of each kind.

use crate::constants::LATENCY_SAMPLES;
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencySample {
    /// Seconds since the epoch.
    pub at_s: u64,
    pub took_ms: u64,
}

#[derive(Clone, Debug, Default)]
pub struct LatencyEvents {
    pub samples: VecDeque<LatencySample>,
    /// The longest of all, also of those that are not remembered.
    pub longest_ms: u64,
}

/// By kind of event: Redis's names.
#[derive(Debug, Default)]
pub struct LatencyLog(BTreeMap<&'static str, LatencyEvents>);

/// A command that should never take long, and any other one.
pub const FAST_COMMAND: &str = "fast-command";
pub const COMMAND: &str = "command";

impl LatencyLog {
    pub fn note(&mut self, kind: &'static str, sample: LatencySample) {
        let events = self.0.entry(kind).or_default();
        events.longest_ms = events.longest_ms.max(sample.took_ms);
        match events.samples.back_mut() {
            Some(last) if last.at_s == sample.at_s => {
                last.took_ms = last.took_ms.max(sample.took_ms);
            }
            _ => {
                if events.samples.len() == LATENCY_SAMPLES {
                    events.samples.pop_front();
                }
                events.samples.push_back(sample);
            }
        }
    }

    pub fn all(&self) -> impl ExactSizeIterator<Item = (&'static str, &LatencyEvents)> {
        self.0.iter().map(|(kind, events)| (*kind, events))
    }

    pub fn of(&self, kind: &[u8]) -> Option<&LatencyEvents> {
        self.0.get(std::str::from_utf8(kind).ok()?)
    }

    /// Forgets the events of a kind; whether there were any.
    pub fn forget(&mut self, kind: &[u8]) -> bool {
        std::str::from_utf8(kind).is_ok_and(|kind| self.0.remove(kind).is_some())
    }

    /// Forgets all events; of how many kinds there were some.
    pub fn forget_all(&mut self) -> usize {
        std::mem::take(&mut self.0).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_each_second_is_remembered_and_the_last_seconds() {
        let mut log = LatencyLog::default();
        let mut note = |at_s, took_ms| log.note(COMMAND, LatencySample { at_s, took_ms });
        [(1, 5), (1, 9), (1, 7), (2, 3)]
            .into_iter()
            .for_each(|(at_s, took_ms)| note(at_s, took_ms));
        let events = log.of(b"command").unwrap();
        let samples: Vec<_> = events.samples.iter().map(|one| (one.at_s, one.took_ms)).collect();
        assert_eq!((samples, events.longest_ms), (vec![(1, 9), (2, 3)], 9));
        for at_s in 3..1000 {
            log.note(COMMAND, LatencySample { at_s, took_ms: 1 });
        }
        let events = log.of(b"command").unwrap();
        assert_eq!((events.samples.len(), events.longest_ms), (LATENCY_SAMPLES, 9));
        log.note(FAST_COMMAND, LatencySample { at_s: 1, took_ms: 1 });
        assert_eq!(log.all().map(|(kind, _)| kind).collect::<Vec<_>>(), [COMMAND, FAST_COMMAND]);
        assert!(log.forget(b"command") && !log.forget(b"command") && !log.forget(b"\xff"));
        assert_eq!((log.forget_all(), log.forget_all()), (1, 0));
    }
}
