//! One key of a table (get, insert, update, put, delete) as a [`Model`] for the checker of
//! histories. A change with an outcome that the client does not know has the answer `None`; whether
//! it may have happened not at all or twice is its event's [`Times`](super::linear::Times).

use super::linear::Model;

/// The model: absent, or a value.
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
    /// Adds or replaces by a function of what was there; what the last call of it saw.
    Modify(u64, Option<Option<u64>>),
    /// Adds or replaces if this was there; whether it did.
    PutIf(Option<u64>, u64, Option<bool>),
    /// Removes if this was there; whether it did.
    DeleteIf(u64, Option<bool>),
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
            MapOp::Modify(value, seen) => {
                return seen.is_none_or(|seen| seen == *state).then_some(Some(value));
            }
            MapOp::PutIf(was, value, said) => {
                (if *state == was { Some(value) } else { *state }, *state == was, said)
            }
            MapOp::DeleteIf(was, said) => {
                (state.filter(|state| *state != was), *state == Some(was), said)
            }
        };
        said.is_none_or(|said| said == truth).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::linear::{Event, Times, Verdict, check};

    fn event(called: u64, returned: u64, op: MapOp) -> Event<MapOp> {
        Event::once(called, (returned > 0).then_some(returned), op)
    }

    fn verdict(history: &[Event<MapOp>]) -> Verdict {
        check::<MapKey>(None, history, 100_000)
    }

    #[test]
    fn a_delete_that_comes_back_is_a_violation() {
        let put = event(1, 2, MapOp::Put(7, Some(true)));
        let delete = event(3, 4, MapOp::Delete(Some(true)));
        let back = event(5, 6, MapOp::Get(Some(7)));
        let bad = [put.clone(), delete.clone(), back.clone()];
        assert_eq!(verdict(&bad), Verdict::Violation { returned: 6 });
        // A put that was repeated and is still under way may bring it back.
        let put = Event { times: Times::OnceOrMore, ..event(1, 9, MapOp::Put(7, None)) };
        let seen = event(2, 3, MapOp::Get(Some(7)));
        assert_eq!(verdict(&[put, seen, delete, back]), Verdict::Linearizable);
    }

    #[test]
    fn an_update_of_a_key_that_is_not_there_is_a_violation() {
        let update = event(1, 2, MapOp::Update(5, Some(true)));
        assert!(matches!(verdict(&[update]), Verdict::Violation { .. }));
        let delete = event(1, 2, MapOp::Delete(Some(true)));
        assert!(matches!(verdict(&[delete]), Verdict::Violation { .. }));
    }

    #[test]
    fn a_change_that_did_not_see_the_one_before_is_a_violation() {
        let put = event(1, 2, MapOp::Put(7, Some(true)));
        for (seen, verdict_wanted) in [(Some(7), true), (None, false)] {
            let change = event(3, 4, MapOp::Modify(8, Some(seen)));
            let fits = verdict(&[put.clone(), change]) == Verdict::Linearizable;
            assert_eq!(fits, verdict_wanted);
        }
        for (was, said) in [(Some(7), true), (None, false), (Some(6), false)] {
            let conditional = event(3, 4, MapOp::PutIf(was, 8, Some(said)));
            let left = if said { 8 } else { 7 };
            let get = event(5, 6, MapOp::Get(Some(left)));
            assert_eq!(verdict(&[put.clone(), conditional, get]), Verdict::Linearizable);
            let lie = event(3, 4, MapOp::PutIf(was, 8, Some(!said)));
            assert!(matches!(verdict(&[put.clone(), lie]), Verdict::Violation { .. }));
        }
        let kept = event(3, 4, MapOp::DeleteIf(6, Some(false)));
        let gone = event(5, 6, MapOp::DeleteIf(7, Some(true)));
        let get = event(7, 8, MapOp::Get(None));
        assert_eq!(verdict(&[put, kept, gone, get]), Verdict::Linearizable);
    }

    #[test]
    fn a_delete_of_unknown_outcome_is_final_once_its_client_is_back() {
        let put = event(1, 2, MapOp::Put(7, Some(true)));
        let delete = Event { times: Times::AtMostOnce, ..event(3, 4, MapOp::Delete(None)) };
        let get = |called, value| event(called, called + 1, MapOp::Get(value));
        let kept = [put.clone(), delete.clone(), get(5, Some(7)), get(7, Some(7))];
        assert_eq!(verdict(&kept), Verdict::Linearizable);
        assert_eq!(verdict(&[put.clone(), delete.clone(), get(5, None)]), Verdict::Linearizable);
        let late = [put, delete, get(5, Some(7)), get(7, None)];
        assert!(matches!(verdict(&late), Verdict::Violation { .. }));
    }
}
