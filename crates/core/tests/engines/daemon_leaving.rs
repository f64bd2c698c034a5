//! A rack that is being drained, in its daemon's engine: what it refuses, what it gives all the
//! same, and which pages it names.

use crate::daemon_world::{PAGE, RACK, Rig, kind_of};
use rackpool_core::constants::DRAIN_REASON_BYTES_MAX;
use rackpool_core::member::{DrainReply, DrainReport, DrainRequest, RackState};
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{Error, PageId, Result};

fn stand(rig: &mut Rig, standing: RackState) {
    rig.run(|daemon, world| daemon.set_standing(standing, world));
}

fn ask(rig: &mut Rig, client: u32, request: DrainRequest) -> Result<DrainReply> {
    match rig.ask(client, Request::Drain(request))? {
        Reply::Drain(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

fn pages(rig: &mut Rig, from: PageId) -> Vec<PageId> {
    match ask(rig, 0, DrainRequest::Pages { from }) {
        Ok(DrainReply::Pages(pages)) => pages,
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
    assert_eq!(pages(&mut rig, PageId(0)).len(), 4, "with the spare page of a class");
    stand(&mut rig, RackState::Draining);
    rig.quiesce();
    let mut expected = vec![small_page, large_page, PageId(large_page.0 + 1)];
    expected.sort();
    assert_eq!(pages(&mut rig, PageId(0)), expected);
    assert_eq!(pages(&mut rig, expected[1]), expected[1..]);
    assert_eq!(pages(&mut rig, PageId(expected[2].0 + 1)), []);
    // The last object of a page takes the page with it.
    rig.free(0, small, 64);
    rig.free(0, large, 2 * PAGE);
    rig.quiesce();
    assert_eq!(pages(&mut rig, PageId(0)), []);
    rig.finish();
}

#[test]
fn only_the_own_racks_mover_asks_and_tells_and_everybody_may_read_the_report() {
    let mut rig = Rig::new(8);
    rig.join(0);
    rig.join_remote(1);
    stand(&mut rig, RackState::Draining);
    let reasons = vec![(PageId(7), "é".repeat(500)), (PageId(8), "short".into())];
    let report = DrainReport { moved: 3, stayed: 2, reasons };
    let from = PageId(0);
    for refused in [DrainRequest::Pages { from }, DrainRequest::Note(report.clone())] {
        assert_eq!(ask(&mut rig, 1, refused).unwrap_err().code(), "denied");
    }
    assert_eq!(ask(&mut rig, 0, DrainRequest::Note(report)), Ok(DrainReply::Noted));
    let Ok(DrainReply::Report(told)) = ask(&mut rig, 1, DrainRequest::Report) else { panic!() };
    assert_eq!((told.moved, told.stayed), (3, 2));
    let (cut, short) = (&told.reasons[0].1, &told.reasons[1].1);
    assert!(cut.len() <= DRAIN_REASON_BYTES_MAX && cut.starts_with("éé"), "{cut}");
    assert_eq!(short, "short");
    rig.finish();
}
