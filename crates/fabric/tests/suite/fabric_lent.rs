//! A check of the conformance suite that only fabrics with local buffers in private memory can run.

use crate::fabric_rig::{PAGE, Rig, at, events_until, pattern, sge, statuses, work};
use rackpool_core::seam::{Fabric, Verb, WorkStatus};
use rackpool_fabric::{LocalBuffer, LocalBuffers};
use rackpool_mem::process::monotonic_ns;

pub fn lent_buffers_carry_data_and_are_let_go_even_while_work_is_under_way<R: Rig>()
where
    R::End: LocalBuffers,
{
    let mut rig = R::new();
    let peer = rig.peer();
    let source = pattern(100_000, 5);
    let mut sink = vec![0; 100_000];
    let place = at(PAGE + 1);
    let lent = &mut [LocalBuffer::From(&source), LocalBuffer::Into(&mut sink)];
    let done = rig.end().with_buffers(lent, |end, ids| {
        let (from, to) = ([sge(ids.id(0), 0, 100_000)], [sge(ids.id(1), 0, 100_000)]);
        let batch = [work(1, Verb::Write(place), &from), work(2, Verb::Read(place), &to)];
        end.post(peer, &batch).unwrap();
        let poll = |events: &mut Vec<_>| _ = end.poll(monotonic_ns(), events);
        statuses(&events_until(poll, |events| events.len() >= 2))
    });
    assert_eq!(done.unwrap(), [(1, WorkStatus::Done(0)), (2, WorkStatus::Done(0))]);
    assert!(sink == source);
    // Now the scope ends by panic, with a READ under way.
    sink.fill(1);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut lent = [LocalBuffer::Into(&mut sink)];
        let result = rig.end().with_buffers(&mut lent, |end, ids| {
            let to = [sge(ids.id(0), 0, 100_000)];
            end.post(peer, &[work(3, Verb::Read(place), &to)]).unwrap();
            panic!("on purpose");
        });
        result.unwrap()
    }));
    assert!(panicked.is_err());
    let then = sink.clone();
    let events = rig.poll_until(|events| !statuses(events).is_empty());
    assert_eq!(statuses(&events), [(3, WorkStatus::Done(0))]);
    assert!(sink == then, "nothing is received into a buffer that was taken back");
    assert_eq!(rig.write(at(0), b"alive"), WorkStatus::Done(0));
}
