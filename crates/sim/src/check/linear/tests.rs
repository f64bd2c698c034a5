//! Histories that are linearizable and histories that are not.

use super::*;
use crate::check::keys::{MapKey, MapOp};

fn event(called: u64, returned: u64, op: MapOp) -> Event<MapOp> {
    Event::once(called, (returned > 0).then_some(returned), op)
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
