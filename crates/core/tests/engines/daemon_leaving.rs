//! A rack that is being drained, in its daemon's engine: what it refuses, what it gives all the
//! same, and which pages it names.

use crate::daemon_world::{PAGE, RACK, Rig, kind_of};
use rackpool_core::constants::{DRAIN_REASON_BYTES_MAX, DRAIN_REASONS_MAX};
use rackpool_core::member::{DrainReport, RackState};
use rackpool_core::relocation::{Relocation, RelocationQuery, RelocationReport, SendResult};
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{Error, PageId, Result};

fn stand(rig: &mut Rig, standing: RackState) {
    rig.run(|daemon, world| daemon.set_standing(standing, world));
}

/// What the worker is to do next, after it has said what came of a page.
fn next(rig: &mut Rig, client: u32, last: Option<(u64, SendResult)>) -> Result<Relocation> {
    let last = last.map(|(page, result)| RelocationReport::Sent(PageId(page), result));
    let query = RelocationQuery { last, ..RelocationQuery::default() };
    match rig.ask(client, Request::NextMove(query.into()))? {
        Reply::NextMove(Some(next)) => Ok(next),
        other => panic!("{other:?}"),
    }
}

/// Pages that a pass names, and how it ends.
fn pass(rig: &mut Rig) -> (Vec<PageId>, Relocation) {
    let mut pages = Vec::new();
    loop {
        match next(rig, 0, None) {
            Ok(Relocation::Evacuate(page)) => pages.push(page),
            Ok(ended) => return (pages, ended),
            Err(error) => panic!("{error}"),
        }
    }
}

fn told(rig: &mut Rig, client: u32) -> DrainReport {
    match rig.ask(client, Request::DrainReport) {
        Ok(Reply::DrainReport(report)) => report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_draining_rack_gives_no_memory_but_into_words_and_takes_no_page() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let word = rig.alloc(0, 64, false);
    stand(&mut rig, RackState::Draining);
    let refused = Err(Error::Draining { rack: RACK });
    for (bytes, owned) in [(64, false), (PAGE, false), (64, true)] {
        assert_eq!(rig.ask(0, Request::Alloc { bytes, kind: kind_of(owned) }), refused);
    }
    assert_eq!(rig.ask(0, Request::MoveIn { page: PageId(5) }), refused);
    let into = rig.ask(0, Request::AllocInto { word, bytes: 64 });
    assert!(matches!(into, Ok(Reply::Allocated { .. })), "{into:?}");
    assert_eq!(rig.ask(0, Request::FreeFrom { word, bytes: 64 }), Ok(Reply::Freed));
    stand(&mut rig, RackState::Serving);
    let again = rig.alloc(0, 64, false);
    rig.free(0, again, 64);
    rig.free(0, word, 64);
    rig.finish();
}

#[test]
fn its_pages_are_named_in_order_and_empty_slab_pages_go_by_themselves() {
    let mut rig = Rig::new(16);
    rig.join(0);
    let (small, large) = (rig.alloc(0, 64, false), rig.alloc(0, 2 * PAGE, false));
    let kept = rig.alloc(0, 256, false);
    rig.free(0, kept, 256);
    rig.quiesce();
    let of = |rig: &Rig, addr| rig.world.layout.pages.page(addr);
    let (small_page, large_page) = (of(&rig, small), of(&rig, large));
    let idle = Ok(Reply::NextMove(None));
    assert_eq!(rig.ask(0, Request::NextMove(RelocationQuery::default().into())), idle);
    stand(&mut rig, RackState::Draining);
    rig.quiesce();
    let mut expected = vec![small_page, large_page, PageId(large_page.0 + 1)];
    expected.sort();
    // Without the spare page of a class, and all of them again in the next pass.
    for _ in 0..2 {
        let over = Relocation::PassOver(DrainReport::default());
        assert_eq!(pass(&mut rig), (expected.clone(), over));
    }
    // The last object of a page takes the page with it.
    rig.free(0, small, 64);
    rig.free(0, large, 2 * PAGE);
    rig.quiesce();
    assert_eq!(pass(&mut rig), (Vec::new(), Relocation::Leave));
    rig.finish();
}

#[test]
fn only_the_own_racks_worker_asks_and_tells_and_every_client_may_read_the_report() {
    let mut rig = Rig::new(32);
    rig.join(0);
    rig.join_remote(1);
    let all: Vec<_> = (0..20).map(|_| rig.alloc(0, PAGE, false)).collect();
    stand(&mut rig, RackState::Draining);
    assert_eq!(next(&mut rig, 1, None).unwrap_err().code(), "denied");
    let stays = |reason: &str| SendResult::Stays(reason.into());
    let mut last = None;
    let report = loop {
        match next(&mut rig, 0, last.take()).unwrap() {
            Relocation::Evacuate(page) if page == rig.world.layout.pages.page(all[0]) => {
                last = Some((page.0, SendResult::Moved));
            }
            Relocation::Evacuate(page) if page == rig.world.layout.pages.page(all[1]) => {
                last = Some((page.0, stays(&"é".repeat(500))));
            }
            Relocation::Evacuate(page) if page == rig.world.layout.pages.page(all[2]) => {
                last = Some((page.0, SendResult::Gone));
            }
            Relocation::Evacuate(page) => last = Some((page.0, stays("short"))),
            Relocation::PassOver(report) => break report,
            Relocation::Leave | Relocation::Pull(_) | Relocation::Push { .. } => panic!(),
        }
    };
    assert_eq!((report.moved, report.stayed, report.reasons.len()), (1, 18, DRAIN_REASONS_MAX));
    let (cut, short) = (&report.reasons[0].1, &report.reasons[1].1);
    assert!(cut.len() <= DRAIN_REASON_BYTES_MAX && cut.starts_with("éé"), "{cut}");
    assert_eq!(short, "short");
    for client in [0, 1] {
        assert_eq!(told(&mut rig, client), report);
    }
    // It is forgotten when the rack is to stay.
    stand(&mut rig, RackState::Serving);
    assert_eq!(told(&mut rig, 1), DrainReport::default());
    all.into_iter().for_each(|addr| rig.free(0, addr, PAGE));
    rig.finish();
}
