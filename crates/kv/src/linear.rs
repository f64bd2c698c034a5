//! A checker of concurrent histories: is there an order of the operations, each taking effect at
//! one moment between its call and its return, that a sequential model allows? Histories in,
//! verdict out; used by tests. Operations that never returned may have taken effect or not.
//!
//! The search is that of Wing and Gong with Lowe's memory of configurations already seen. It is
//! exponential at worst: check objects that are independent (keys of a map) one by one.
//!
//! Source: Wing & Gong, "Testing and verifying concurrent objects" (1993); Lowe, "Testing for
//! linearizability" (2017).

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// What an object does when it is used by one client alone.
pub trait Model {
    /// Its state.
    type State: Clone + Eq + Hash + Debug;
    /// An operation together with what it answered.
    type Op: Debug;
    /// The state after `op`, or `None` if in this state `op` cannot answer what it did.
    fn step(state: &Self::State, op: &Self::Op) -> Option<Self::State>;
}

/// One operation of a history. Times come from one clock that all clients share.
#[derive(Clone, Debug)]
pub struct Event<Op> {
    /// When it was called.
    pub called: u64,
    /// When it returned; `None` if it never did.
    pub returned: Option<u64>,
    /// What it was, and what it answered.
    pub op: Op,
}

/// What the checker found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Linearizable,
    /// There is none. At best, all operations that returned before this time fit.
    Violation {
        /// The return by which every order fails.
        returned: u64,
    },
    /// The search was given up after this many configurations.
    GaveUp {
        /// Configurations looked at.
        configurations: usize,
    },
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Configuration<S> {
    /// All events before this one are done.
    first: usize,
    /// Events after it that are done, ascending.
    done: Vec<usize>,
    state: S,
}

impl<S> Configuration<S> {
    fn is_done(&self, event: usize) -> bool {
        event < self.first || self.done.binary_search(&event).is_ok()
    }

    fn with(&self, event: usize, state: S) -> Configuration<S> {
        let (mut first, mut done) = (self.first, self.done.clone());
        if let Err(at) = done.binary_search(&event) {
            done.insert(at, event);
        }
        let run = done.iter().enumerate().take_while(|(at, done)| **done == first + at).count();
        done.drain(..run);
        first += run;
        Configuration { first, done, state }
    }
}

/// Checks a history that starts in state `initial`, looking at `configurations_max` configurations
/// at most.
pub fn check<M: Model>(
    initial: M::State,
    history: &[Event<M::Op>],
    configurations_max: usize,
) -> Verdict {
    let mut events: Vec<&Event<M::Op>> = history.iter().collect();
    events.sort_by_key(|event| event.called);
    let mut stack = vec![Configuration { first: 0, done: Vec::new(), state: initial }];
    let mut seen = HashSet::new();
    let mut best = 0;
    while let Some(now) = stack.pop() {
        // The next event must have been called before any event that is not done returned.
        let open = |event: &usize| !now.is_done(*event);
        let deadline =
            (now.first..events.len()).filter(open).filter_map(|event| events[event].returned).min();
        let Some(deadline) = deadline else { return Verdict::Linearizable };
        best = best.max(deadline);
        let candidates = (now.first..events.len())
            .take_while(|event| events[*event].called <= deadline)
            .filter(open);
        for event in candidates {
            if let Some(state) = M::step(&now.state, &events[event].op) {
                let next = now.with(event, state);
                if seen.insert(next.clone()) {
                    stack.push(next);
                }
            }
        }
        if seen.len() > configurations_max {
            return Verdict::GaveUp { configurations: seen.len() };
        }
    }
    Verdict::Violation { returned: best }
}

/// One key of a map: absent, or a value.
#[derive(Clone, Copy, Debug)]
pub struct MapKey;

/// An operation on one key of a map with its answer; `None` where a client never saw the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapOp {
    /// Reads: the value, or `None` if absent.
    Get(Option<u64>),
    /// Adds a value; whether it did (it does not if the key is there).
    Insert(u64, Option<bool>),
    /// Replaces the value; whether it did (it does not if the key is absent).
    Update(u64, Option<bool>),
    /// Adds or replaces; whether it added.
    Put(u64, Option<bool>),
    /// Removes; whether the key was there.
    Delete(Option<bool>),
}

impl Model for MapKey {
    type State = Option<u64>;
    type Op = MapOp;

    fn step(state: &Option<u64>, op: &MapOp) -> Option<Option<u64>> {
        let there = state.is_some();
        let (next, truth, said) = match *op {
            MapOp::Get(value) => return (value == *state).then_some(*state),
            MapOp::Insert(value, said) => (state.or(Some(value)), !there, said),
            MapOp::Update(value, said) => (state.map(|_| value), there, said),
            MapOp::Put(value, said) => (Some(value), !there, said),
            MapOp::Delete(said) => (None, there, said),
        };
        said.is_none_or(|said| said == truth).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(called: u64, returned: u64, op: MapOp) -> Event<MapOp> {
        Event { called, returned: (returned > 0).then_some(returned), op }
    }

    fn verdict(history: &[Event<MapOp>]) -> Verdict {
        check::<MapKey>(None, history, 100_000)
    }

    #[test]
    fn a_sequential_history_is_linearizable() {
        let history = [
            event(1, 2, MapOp::Get(None)),
            event(3, 4, MapOp::Insert(7, Some(true))),
            event(5, 6, MapOp::Insert(8, Some(false))),
            event(7, 8, MapOp::Get(Some(7))),
            event(9, 10, MapOp::Put(9, Some(false))),
            event(11, 12, MapOp::Delete(Some(true))),
            event(13, 14, MapOp::Update(5, Some(false))),
        ];
        assert_eq!(verdict(&history), Verdict::Linearizable);
    }

    #[test]
    fn a_value_read_before_its_write_was_called_is_a_violation() {
        let history = [event(1, 2, MapOp::Get(Some(7))), event(3, 4, MapOp::Put(7, Some(true)))];
        assert_eq!(verdict(&history), Verdict::Violation { returned: 2 });
    }

    #[test]
    fn two_successful_inserts_of_one_key_are_a_violation() {
        let history =
            [event(1, 5, MapOp::Insert(1, Some(true))), event(2, 6, MapOp::Insert(2, Some(true)))];
        assert!(matches!(verdict(&history), Verdict::Violation { .. }));
    }

    #[test]
    fn a_stale_read_is_a_violation_but_a_concurrent_one_is_not() {
        let put = event(1, 2, MapOp::Put(1, Some(true)));
        let stale = [put.clone(), event(3, 4, MapOp::Put(2, Some(false)))];
        let read = |called| event(called, 9, MapOp::Get(Some(1)));
        assert_eq!(verdict(&[stale[0].clone(), stale[1].clone(), read(3)]), Verdict::Linearizable);
        assert!(matches!(
            verdict(&[stale[0].clone(), stale[1].clone(), read(5)]),
            Verdict::Violation { .. }
        ));
    }

    #[test]
    fn an_operation_without_return_may_take_effect_late_or_never() {
        let lost = event(1, 0, MapOp::Put(5, None));
        let never = [lost.clone(), event(3, 4, MapOp::Get(None))];
        assert_eq!(verdict(&never), Verdict::Linearizable);
        let late = [lost.clone(), event(3, 4, MapOp::Get(None)), event(5, 6, MapOp::Get(Some(5)))];
        assert_eq!(verdict(&late), Verdict::Linearizable);
        let twice = [
            lost,
            event(3, 4, MapOp::Get(Some(5))),
            event(5, 6, MapOp::Delete(Some(true))),
            event(7, 8, MapOp::Get(Some(5))),
        ];
        assert!(matches!(verdict(&twice), Verdict::Violation { .. }));
    }

    #[test]
    fn a_search_beyond_its_limit_says_so() {
        let history: Vec<_> = (0..12).map(|i| event(1, 100, MapOp::Put(i, None))).collect();
        let mut history = history;
        history.push(event(101, 102, MapOp::Get(Some(99))));
        assert!(matches!(check::<MapKey>(None, &history, 50), Verdict::GaveUp { .. }));
    }
}
