//! Audits in the daemon's engine: what they list by kind, what a watch lets them free and what not,
//! and which sessions leave a sweep behind.

use crate::daemon_world::{PAGE, Rig};
use rackpool_core::daemon::ClientId;
use rackpool_core::layout::AllocationKind;
use rackpool_core::wire::{AllocationPiece, AuditReply, AuditRequest, KindTotal, Reply, Request};
use rackpool_core::{Error, GAddr, Result};

const TABLE: AllocationKind = AllocationKind::Table;

fn alloc(rig: &mut Rig, bytes: u64, kind: AllocationKind) -> GAddr {
    match rig.ask(0, Request::Alloc { bytes, kind }) {
        Ok(Reply::Allocated { addr }) => addr,
        other => panic!("{bytes} bytes: {other:?}"),
    }
}

fn audit(rig: &mut Rig, request: AuditRequest) -> Result<AuditReply> {
    match rig.ask(0, Request::Audit(request))? {
        Reply::Audit(reply) => Ok(reply),
        other => panic!("{request:?}: {other:?}"),
    }
}

fn begin(rig: &mut Rig) -> u64 {
    match audit(rig, AuditRequest::Begin) {
        Ok(AuditReply::Begun { watch }) => watch,
        other => panic!("{other:?}"),
    }
}

fn due(rig: &mut Rig) -> u64 {
    match audit(rig, AuditRequest::Due) {
        Ok(AuditReply::Due { count }) => count,
        other => panic!("{other:?}"),
    }
}

fn pieces(rig: &mut Rig, watch: u64) -> (Vec<AllocationPiece>, Vec<KindTotal>) {
    match audit(rig, AuditRequest::Pieces { watch, from: (0, 0) }) {
        Ok(AuditReply::Pieces { pieces, totals, next: None }) => (pieces, totals),
        other => panic!("{other:?}"),
    }
}

fn reclaim(rig: &mut Rig, addr: GAddr, watch: u64) -> Result<Reply> {
    let reply = rig.ask(0, Request::Reclaim { addr, watch });
    if reply.is_ok() {
        rig.live.remove(&addr.0);
        rig.words.remove(&addr.0);
    }
    reply
}

#[test]
fn an_audit_frees_what_it_has_watched_and_never_what_came_after() {
    let mut rig = Rig::new(32);
    rig.join(0);
    let (kept, freed) = (alloc(&mut rig, 64, TABLE), alloc(&mut rig, 64, TABLE));
    let (run, user) = (alloc(&mut rig, 2 * PAGE, TABLE), alloc(&mut rig, 64, AllocationKind::User));
    let watch = begin(&mut rig);
    rig.free(0, freed, 64);
    let new = alloc(&mut rig, 64, TABLE);
    assert_eq!(new, freed, "the lowest object is given out again");
    let new_run = alloc(&mut rig, PAGE, TABLE);
    for addr in [new, new_run, user, GAddr(kept.0 + 8)] {
        let refused = reclaim(&mut rig, addr, watch);
        assert!(matches!(refused, Err(Error::BadFree { .. })), "{addr}: {refused:?}");
    }
    assert_eq!(reclaim(&mut rig, kept, watch), Ok(Reply::Freed));
    let again = reclaim(&mut rig, kept, watch);
    assert!(matches!(again, Err(Error::BadFree { .. })), "{again:?}");
    assert_eq!(reclaim(&mut rig, run, watch), Ok(Reply::Freed));
    let next = begin(&mut rig);
    let ended = audit(&mut rig, AuditRequest::End { watch });
    assert_eq!(ended, Ok(AuditReply::Due { count: 0 }));
    let refused = reclaim(&mut rig, new, watch);
    assert!(matches!(refused, Err(Error::Busy { .. })), "the watch is over: {refused:?}");
    assert_eq!(reclaim(&mut rig, new, next), Ok(Reply::Freed));
    rig.finish();
}

#[test]
fn allocations_are_listed_by_kind_also_after_a_restart() {
    let mut rig = Rig::new(32);
    rig.join(0);
    let object = alloc(&mut rig, 100, TABLE);
    let run = alloc(&mut rig, 3 * PAGE, TABLE);
    for kind in [AllocationKind::User, AllocationKind::Session, AllocationKind::Cache] {
        alloc(&mut rig, 64, kind);
        alloc(&mut rig, 64, kind);
    }
    for is_restarted in [false, true] {
        if is_restarted {
            rig.daemon = None;
            rig.start();
        }
        let watch = begin(&mut rig);
        let (pieces, totals) = pieces(&mut rig, watch);
        let bytes: Vec<(u64, u64)> = totals.iter().map(|t| (t.allocations, t.bytes)).collect();
        assert_eq!(bytes, [(2, 128), (2, 128 + 3 * PAGE), (2, 128), (2, 128)]);
        let of = |addr| rig.world.layout.pages.page(addr);
        let found = |page| pieces.iter().find(|piece| piece.page == page).expect("it is listed");
        assert_eq!(found(of(object)).objects, [1]);
        assert_eq!((found(of(object)).shift, found(of(run)).run_pages), (7, 3));
        assert_eq!(pieces.len(), 2);
    }
    rig.finish();
}

#[test]
fn a_session_that_ends_in_the_middle_of_a_change_leaves_a_sweep_behind() {
    let mut rig = Rig::new(32);
    (0..4).for_each(|name| rig.join(name));
    for (name, count) in [(1, 7), (2, 8)] {
        let ClientId::Slot(slot) = rig.clients[&name].id else { panic!("it is local") };
        rig.world.changing.insert(slot, count);
    }
    let Ok(AuditReply::Changing(some)) = audit(&mut rig, AuditRequest::Changing) else { panic!() };
    let told: Vec<_> = some.iter().map(|one| (one.session, one.count)).collect();
    assert_eq!(told, [(rig.clients[&1].session, 7)]);
    rig.kill(2);
    rig.kill(3);
    assert_eq!(due(&mut rig), 0);
    rig.kill(1);
    assert_eq!(due(&mut rig), 1);
    rig.daemon = None;
    rig.start();
    assert_eq!(due(&mut rig), 1);
    let swept = audit(&mut rig, AuditRequest::Swept { count: 1 });
    assert_eq!(swept, Ok(AuditReply::Due { count: 0 }));
    rig.finish();
}
