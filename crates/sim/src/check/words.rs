//! One aligned word of 8 bytes under reads, writes, compare-and-swap and fetch-and-add, as a
//! [`Model`] for the checker of histories.
//!
//! How calls become events (docs/semantics.md):
//!
//! | the call | [`Times`] | returned |
//! |---|---|---|
//! | answered | `Once` | at its return; own-rack stores: when they left the store buffer |
//! | a write that was answered, connections lost meanwhile | `OnceOrMore` | at its return |
//! | a write that ended with an error | `Any` | when the handle had reached the rack again |
//! | a swap or addition with an unknown outcome | `AtMostOnce`, answer `None` | the same |
//! | any change by a client that died, or that never reached the rack again | as above | never |
//! | a read without an answer | leave it out | |
//!
//! [`Times`]: super::linear::Times

use super::linear::{Event, Model};

/// The model: the state is the word.
#[derive(Clone, Copy, Debug)]
pub struct Word;

/// An operation on one word with its answer; `None` where the client does not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordOp {
    Read(u64),
    Write(u64),
    /// Stores `new` if the word is `expected`; the value before.
    Cas {
        /// What has to be there.
        expected: u64,
        new: u64,
        old: Option<u64>,
    },
    /// Adds, wrapping; the value before.
    FetchAdd {
        add: u64,
        old: Option<u64>,
    },
}

impl Model for Word {
    type State = u64;
    type Op = WordOp;

    fn step(state: &u64, op: &WordOp) -> Option<u64> {
        let state = *state;
        let (next, said) = match *op {
            WordOp::Read(value) => (state, Some(value)),
            WordOp::Write(value) => (value, None),
            WordOp::Cas { expected, new, old } => {
                (if state == expected { new } else { state }, old)
            }
            WordOp::FetchAdd { add, old } => (state.wrapping_add(add), old),
        };
        said.is_none_or(|said| said == state).then_some(next)
    }

    /// A value that no operation saw or expected, nor the values that additions with an unknown
    /// outcome can make of it: only what overwrites it can have come next.
    fn is_unseen(op: &WordOp, history: &[Event<WordOp>]) -> bool {
        let (WordOp::Write(value) | WordOp::Cas { new: value, old: None, .. }) = *op else {
            return false;
        };
        let unknown = history.iter().map(|event| match event.op {
            WordOp::FetchAdd { add, old: None } => u128::from(add),
            _ => 0,
        });
        let reach: u128 = unknown.sum();
        let is_near = |seen: u64| u128::from(seen.wrapping_sub(value)) <= reach;
        history.iter().all(|event| match event.op {
            WordOp::Read(seen) => !is_near(seen),
            WordOp::Write(_) => true,
            WordOp::Cas { expected, old, .. } => !is_near(expected) && !old.is_some_and(is_near),
            WordOp::FetchAdd { old, .. } => !old.is_some_and(is_near),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::linear::{Event, Histories, Times, Verdict, check};

    const LOST: u64 = 0;

    fn event(called: u64, returned: u64, op: WordOp) -> Event<WordOp> {
        Event::once(called, (returned != LOST).then_some(returned), op)
    }

    fn verdict(history: &[Event<WordOp>]) -> Verdict {
        check::<Word>(0, history, 100_000)
    }

    fn good(history: &[Event<WordOp>]) {
        assert_eq!(verdict(history), Verdict::Linearizable, "{history:#?}");
    }

    fn bad(history: &[Event<WordOp>]) {
        assert!(matches!(verdict(history), Verdict::Violation { .. }), "{history:#?}");
    }

    fn add(called: u64, returned: u64, old: u64) -> Event<WordOp> {
        event(called, returned, WordOp::FetchAdd { add: 1, old: Some(old) })
    }

    fn cas(called: u64, returned: u64, expected: u64, new: u64, old: u64) -> Event<WordOp> {
        event(called, returned, WordOp::Cas { expected, new, old: Some(old) })
    }

    fn read(called: u64, returned: u64, value: u64) -> Event<WordOp> {
        event(called, returned, WordOp::Read(value))
    }

    fn write(called: u64, returned: u64, value: u64) -> Event<WordOp> {
        event(called, returned, WordOp::Write(value))
    }

    #[test]
    fn a_lost_update_is_a_violation() {
        good(&[add(1, 9, 0), add(2, 8, 1), read(10, 11, 2)]);
        bad(&[add(1, 9, 0), add(2, 8, 0)]);
        bad(&[add(1, 9, 0), add(2, 8, 1), read(10, 11, 1)]);
        bad(&[cas(1, 5, 0, 7, 0), cas(2, 6, 0, 8, 0)]);
    }

    #[test]
    fn a_stale_read_is_a_violation() {
        good(&[write(1, 2, 5), write(3, 9, 6), read(4, 5, 5), read(6, 7, 6)]);
        bad(&[write(1, 2, 5), write(3, 4, 6), read(5, 6, 5)]);
        // What one client has seen, a later read cannot take back.
        bad(&[write(1, 2, 5), write(3, 9, 6), read(4, 5, 6), read(6, 7, 5)]);
    }

    #[test]
    fn a_value_from_nowhere_is_a_violation() {
        bad(&[write(1, 2, 5), read(3, 4, 55)]);
        bad(&[read(1, 2, 1), write(3, 4, 1)]);
        bad(&[cas(1, 2, 0, 7, 3)]);
    }

    #[test]
    fn an_addition_of_unknown_outcome_counts_once_or_not_but_never_twice() {
        let unknown = |returned: u64| Event {
            times: Times::AtMostOnce,
            ..event(1, returned, WordOp::FetchAdd { add: 1, old: None })
        };
        good(&[unknown(4), read(5, 6, 0)]);
        good(&[unknown(4), read(5, 6, 1)]);
        bad(&[unknown(4), read(5, 6, 2)]);
        // When the outcome is final it stays what it was seen to be.
        bad(&[unknown(4), read(5, 6, 0), read(7, 8, 1)]);
        good(&[unknown(LOST), read(5, 6, 0), read(7, 8, 1)]);
        bad(&[unknown(LOST), read(5, 6, 1), read(7, 8, 2)]);
    }

    #[test]
    fn a_repeated_write_may_land_twice_while_it_is_under_way() {
        let mine = Event { times: Times::OnceOrMore, ..write(1, 9, 5) };
        let twice = [mine.clone(), read(2, 3, 5), write(4, 5, 6), read(6, 7, 6), read(8, 10, 5)];
        good(&twice);
        let mut once = twice.to_vec();
        once[0].times = Times::Once;
        bad(&once);
        let mut over = twice.to_vec();
        (over[0].returned, over[4].called, over[4].returned) = (Some(5), 8, Some(9));
        bad(&over);
        // It did return, so it landed at least once.
        bad(&[Event { times: Times::OnceOrMore, ..write(1, 2, 5) }, read(3, 4, 0)]);
        good(&[Event { times: Times::Any, ..write(1, 2, 5) }, read(3, 4, 0)]);
    }

    #[test]
    fn writes_of_unknown_outcome_that_nobody_saw_cost_nothing() {
        let lost = |called: u64, value: u64| Event {
            times: Times::Any,
            ..event(called, LOST, WordOp::Write(value))
        };
        let adds = |called: u64| Event {
            times: Times::AtMostOnce,
            ..event(called, LOST, WordOp::FetchAdd { add: 1, old: None })
        };
        let mut history: Vec<_> = (0..40).map(|n| lost(n, 1000 * (n + 1))).collect();
        history.push(read(50, 51, 0));
        assert_eq!(check::<Word>(0, &history, 10), Verdict::Linearizable);
        // What an addition made of a value shows the value.
        history.extend([adds(52), read(60, 61, 7001)]);
        assert_eq!(check::<Word>(0, &history, 50), Verdict::Linearizable);
        history.push(read(62, 63, 7003));
        bad(&history);
    }

    #[test]
    fn a_store_in_its_buffer_is_seen_by_its_own_client_first() {
        // Stored at 2, visible to others at 8.
        let by = |client: u32, event: Event<WordOp>| Event { client: Some(client), ..event };
        let own = by(1, read(3, 8, 5));
        good(&[by(1, write(1, 8, 5)), own.clone(), by(2, read(4, 5, 0))]);
        // But the own client never sees the value before its store.
        bad(&[by(1, write(1, 8, 5)), by(1, read(3, 8, 0))]);
        good(&[by(1, write(1, 8, 5)), by(2, read(3, 8, 0))]);
        // A store without end holds its client's next operations not up.
        good(&[by(1, write(1, LOST, 5)), by(1, read(3, 8, 0))]);
    }

    #[test]
    fn words_are_checked_one_by_one_and_the_bad_one_is_named() {
        let mut histories = Histories::default();
        for address in 0..50u64 {
            for step in 0..40 {
                histories.add(address, add(10 * step + 1, 10 * step + 25, step));
            }
        }
        assert_eq!(histories.size(), (50, 2000));
        assert_eq!(histories.check::<Word>(|_| 0, 10_000), Ok(()));
        histories.add(33, read(500, 501, 39));
        let found = histories.check::<Word>(|_| 0, 10_000).unwrap_err();
        assert_eq!(found.object, 33);
        assert_eq!(found.verdict, Verdict::Violation { returned: 501 });
        assert!(found.events.last().unwrap().contains("Read(39)"), "{:?}", found.events);
    }
}
