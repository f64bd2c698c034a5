//! Defects of the published code of Rcmp in what it makes of others (what they say, that they fall
//! silent, what they may take) and in its limits, as scenarios that must go right here and go wrong
//! without their safeguard.

use crate::daemon_world::{PAGE, RACK, Rig, TestWorld, kind_of};
use crate::master_world::{LEASE, World, code, home, info};
use crate::safeguards::safeguarded;
use rackpool_core::access::AccessList;
use rackpool_core::client::OWN;
use rackpool_core::copies::COPIES;
use rackpool_core::daemon::{World as _, format};
use rackpool_core::layout::AllocationKind;
use rackpool_core::layout::FRAMES_OFFSET;
use rackpool_core::member::MemberCall;
use rackpool_core::seam::Mutation;
use rackpool_core::wire::{
    MasterAnswer, MasterCall, PageHome, PageMetadata, Reply, Request, RequestFrame, Resolved,
};
use rackpool_core::{FrameIndex, GAddr, Generation, PageId, RackId};

const FRAMES: u32 = 8;

fn rack(mutation: Option<Mutation>) -> Rig {
    let mut rig = Rig::new(FRAMES);
    rig.world.fuse.answers.mutation.set(mutation);
    rig.join(0);
    rig
}

#[test]
fn a_latch_was_destroyed_while_it_was_held() {
    safeguarded(&[Mutation::CommitUncompared], |mutation| {
        let mut world = World::without(mutation);
        let (zero, one) = (world.daemon(info(0, 1)), world.daemon(info(1, 1)));
        let at = home(world.page_ids(zero, 1), 0, 5);
        let page = at.page;
        let commit = MasterCall::CommitPages { homes: vec![at] };
        assert_eq!(world.call(zero, commit), Ok(MasterAnswer::Done));
        // A client has the right to move the page, and it is freed meanwhile.
        let (holder, next) = (world.connect(), world.connect());
        let begin = MasterCall::BeginMove { page, to: RackId(1) };
        let claimed = Ok(MasterAnswer::Homes(vec![Resolved::Home(at)]));
        assert_eq!(world.call(holder, begin.clone()), claimed);
        assert_eq!(code(world.call(next, begin.clone())), "stays");
        let free = MasterCall::RemovePages { rack: RackId(0), pages: vec![page] };
        assert_eq!(world.call(zero, free), Ok(MasterAnswer::Done));
        // The next client to ask is told so, and what is done by that right has no effect.
        let unmapped = Ok(MasterAnswer::Homes(vec![Resolved::Unmapped]));
        assert_eq!(world.call(next, begin.clone()), unmapped);
        let moved = MasterCall::MovePage { from: at, to: home(page, 1, 7) };
        assert_eq!(world.call(one, moved), unmapped);
        assert_eq!(world.call(holder, begin), unmapped);
        assert_eq!(world.resolve(page), Resolved::Unmapped);
        world.crash();
        assert_eq!(world.resolve(page), Resolved::Unmapped);
    });
}

#[test]
fn memory_with_a_lock_in_it_is_freed_and_the_lock_can_still_be_given_back() {
    let mut rig = rack(None);
    rig.join(1);
    let addr = rig.alloc(0, PAGE, false);
    let lock = Request::Lock { addr, lines: 1, write: true, wait_ms: 0 };
    let Ok(Reply::Locked { token }) = rig.ask(1, lock) else { panic!("it is free") };
    rig.free(0, addr, PAGE);
    rig.quiesce();
    assert_eq!(rig.ask(1, Request::Unlock { addr, token }), Ok(Reply::Held { held: true }));
    assert_eq!(rig.ask(1, Request::CheckLock { addr, token }), Ok(Reply::Held { held: false }));
    rig.finish();
}

#[test]
fn pointers_from_peers_were_followed() {
    safeguarded(&[Mutation::TrustPeers], |mutation| {
        // A client is told of a frame that its rack does not have.
        let rig = rack(mutation);
        for frame in [FRAMES, FRAMES + 1, u32::MAX] {
            let page = PageId(7);
            let (frame, generation) = (FrameIndex(frame), Generation(1));
            let mut client = rig.world.client();
            let told = client.install(OWN, &[PageHome { page, rack: RACK, frame, generation }]);
            assert_eq!(code(told), "protocol");
        }
        rig.finish();
    });
    safeguarded(&[Mutation::TrustPeers], |mutation| {
        // A daemon is told of objects behind the end of a page.
        let mut rig = rack(mutation);
        let page = PageId(7);
        let from =
            PageHome { page, rack: RackId(77), frame: FrameIndex(0), generation: Generation(5) };
        rig.world.master.pages.insert(page.0, from);
        let Ok(Reply::Room { generation, .. }) = rig.ask(0, Request::MoveIn { page }) else {
            panic!("there is room")
        };
        // Four objects of 1 KiB.
        let keep = |objects| PageMetadata { shift: 10, objects, ..PageMetadata::default() };
        for objects in [vec![1 << 4], vec![u64::MAX], vec![1, 1], vec![]] {
            let keep = keep(objects);
            let commit = rig.ask(0, Request::MoveCommit { from, generation, keep });
            assert_eq!(code(commit), "protocol");
        }
        assert_eq!(rig.world.master.pages[&page.0], from);
        rig.world.master.pages.remove(&page.0);
        assert_eq!(rig.ask(0, Request::MoveSettle { page }), Ok(Reply::Settled { here: false }));
        rig.finish();
    });
}

#[test]
fn any_client_could_end_the_daemon() {
    safeguarded(&[Mutation::LeaveWithPages], |mutation| {
        let mut world = World::without(mutation);
        world.daemon(info(0, 1));
        let one = world.daemon(info(1, 1));
        let at = home(world.page_ids(one, 1), 1, 3);
        let commit = MasterCall::CommitPages { homes: vec![at] };
        assert_eq!(world.call(one, commit), Ok(MasterAnswer::Done));
        // A daemon ends when its rack has left: not while it has pages, whatever process says so.
        let client = world.connect();
        let member = |call| MasterCall::Member(call);
        assert_eq!(code(world.call(client, member(MemberCall::Leave(RackId(1))))), "denied");
        world.call(client, member(MemberCall::Drain(RackId(1)))).expect("it can be undone");
        assert_eq!(code(world.call(client, member(MemberCall::Leave(RackId(1))))), "denied");
        assert_eq!(code(world.call(client, member(MemberCall::Forget(RackId(1))))), "denied");
        assert_eq!(world.resolve(at.page), Resolved::Home(at));
        assert!(world.rack(1).alive);
    });
    // What a daemon is asked out of turn or out of sense is refused, and it serves on.
    let mut rig = rack(None);
    let addr = rig.alloc(0, 64, false);
    let id = rig.clients[&0].id;
    let senseless = [
        Request::Resolve { page: PageId(1), count: 0 },
        Request::Resolve { page: PageId(u64::MAX), count: u32::MAX },
        Request::Alloc { bytes: u64::MAX, kind: AllocationKind::User },
        Request::Free { addr, bytes: u64::MAX },
        Request::Unlock { addr, token: u64::MAX },
        Request::Lock { addr, lines: u32::MAX, write: true, wait_ms: u64::MAX },
        Request::MoveSettle { page: PageId(u64::MAX) },
        Request::Recall { page: PageId(u64::MAX) },
        Request::Sharers { page: PageId(u64::MAX) },
    ];
    for seq in [0, 1, u64::MAX - 1] {
        for request in senseless.clone() {
            let frame = RequestFrame { seq, request };
            rig.run(|daemon, world| daemon.on_request(id, frame, world));
        }
    }
    rig.world.replies.clear();
    rig.join(1);
    rig.alloc(1, 64, false);
    rig.verify();
}

#[test]
fn a_lost_message_hung_who_waited_for_its_answer() {
    safeguarded(&[Mutation::LoseCalls], |mutation| {
        let mut rig = rack(mutation);
        rig.alloc(0, 64, false);
        for _ in 0..3 {
            rig.submit(0, Request::Alloc { bytes: PAGE, kind: AllocationKind::User });
            // What was sent is lost with the connection, more than once.
            for _ in 0..2 {
                rig.world.calls.clear();
                rig.run(|daemon, _| daemon.master_down());
                rig.run(|daemon, world| daemon.master_up(world));
            }
            rig.settle();
            let last = rig.clients.get_mut(&0).and_then(|client| client.last.take());
            assert!(matches!(last, Some(Ok(Reply::Allocated { .. }))), "{last:?}");
        }
        rig.finish();
    });
}

#[test]
fn a_silent_peer_was_waited_for_without_end() {
    safeguarded(&[Mutation::NeverExpireLeases], |mutation| {
        let mut world = World::without(mutation);
        let silent = world.daemon(info(0, 1));
        assert!(world.rack(0).alive);
        for _ in 0..5 {
            world.now += LEASE / 4;
            world.master.tick(world.now, &mut Vec::new());
        }
        assert!(!world.rack(0).alive, "a lease has passed");
        let client = world.connect();
        let pick = MasterCall::PickRack { own: RackId(1), bytes: 64, tried: vec![] };
        assert_eq!(code(world.call(client, pick)), "full", "no client is sent to it");
        let beat = MasterCall::Heartbeat { frames_free: 1000, accesses: 0 };
        world.call(silent, beat).expect("it lives");
        assert!(world.rack(0).alive);
    });
}

#[test]
fn errors_were_one_value_and_asserts_that_release_builds_leave_out() {
    safeguarded(&[Mutation::IgnoreFullMemory, Mutation::FreeAnySize], |mutation| {
        let mut rig = rack(mutation);
        let addr = rig.alloc(0, 64, false);
        let page = rig.world.layout.pages.page(addr);
        let inside = GAddr(addr.0 + 4);
        let lock = |addr| Request::Lock { addr, lines: 1, write: true, wait_ms: 0 };
        let Ok(Reply::Locked { .. }) = rig.ask(0, lock(addr)) else { panic!("it is free") };
        let all = u64::from(FRAMES) * PAGE;
        for (request, said) in [
            (Request::Alloc { bytes: 0, kind: AllocationKind::User }, "bad-size"),
            (Request::Alloc { bytes: all + PAGE, kind: AllocationKind::User }, "full"),
            (Request::Free { addr, bytes: 128 }, "bad-free"),
            (Request::AllocInto { word: inside, bytes: 64 }, "misaligned"),
            (Request::FreeFrom { word: GAddr(addr.0 + all), bytes: 64 }, "not-mapped"),
            (lock(addr), "already-locked"),
            (Request::MoveOut { page, generation: Generation(99) }, "stays"),
            (Request::Resolve { page, count: 0 }, "protocol"),
        ] {
            assert_eq!(code(rig.ask(0, request)), said);
        }
        rig.world.host_blocks_free = 0;
        assert_eq!(
            code(rig.ask(0, Request::Alloc { bytes: PAGE, kind: AllocationKind::User })),
            "full"
        );
        rig.verify();
        rig.world.host_blocks_free = u64::MAX / 2;
        rig.finish();
    });
}

#[test]
fn the_1001st_node_found_no_id() {
    safeguarded(&[Mutation::NeverEndSessions], |mutation| {
        let mut rig = rack(mutation);
        for name in 1..=1100 {
            rig.join(name);
            rig.kill(name);
        }
        rig.alloc(0, 64, false);
        let stats = rig.daemon.as_ref().expect("it runs").stats(&rig.world);
        assert_eq!((stats.slots_used, stats.sessions_made), (1, 1101));
        rig.finish();
    });
}

#[test]
fn a_rack_cost_two_gib_before_the_first_page() {
    let mut world = TestWorld::with_pages(2 << 20, 64);
    world.fuse.answers.mutation.set(None);
    let layout = world.layout;
    format(&mut world, RACK, [7, 8], layout).expect("fresh sections");
    let table_bytes = world.table_mem().backed_bytes();
    assert_eq!(world.metadata_bytes(), COPIES * FRAMES_OFFSET + table_bytes);
    assert!(layout.private_bytes() > COPIES * FRAMES_OFFSET + table_bytes);
}

#[test]
fn anybody_of_the_host_could_use_the_memory() {
    safeguarded(&[Mutation::AdmitAnybody], |mutation| {
        let rig = rack(mutation);
        let refused = |access: &AccessList, user| {
            let error = access.check(user, rig.world.private()).expect_err("not on the list");
            assert_eq!(error.code(), "denied");
            assert!(error.to_string().contains(&format!("--allow-user {user}")), "{error}");
        };
        // The user that serves it and root, which cannot be kept out, and each user that is listed.
        for (own, users, others) in [
            (999, &[][..], &[1, 1000, u32::MAX][..]),
            (999, &[1000, 1001], &[1, 1002]),
            (0, &[], &[999, 1000]),
        ] {
            let access = AccessList::new(own, users.iter().copied());
            for user in [own, 0].iter().chain(users) {
                assert_eq!(access.check(*user, rig.world.private()), Ok(()));
            }
            others.iter().for_each(|user| refused(&access, *user));
        }
        rig.finish();
    });
}

#[test]
fn one_client_could_take_all_memory() {
    safeguarded(&[Mutation::IgnoreQuota], |mutation| {
        let mut rig = rack(mutation);
        let limited = |rig: &mut Rig, bytes| {
            rig.run(|daemon, world| daemon.set_client_quota(bytes, world));
        };
        limited(&mut rig, Some(3 * PAGE));
        let refused = |rig: &mut Rig, name, bytes, owned| {
            let error = rig
                .ask(name, Request::Alloc { bytes, kind: kind_of(owned) })
                .expect_err("over its quota");
            assert_eq!(error.code(), "quota");
            error.to_string()
        };
        let held = |rig: &Rig| {
            let stats = rig.daemon.as_ref().expect("it runs").stats(&rig.world);
            (stats.client_quota_bytes, stats.client_held_bytes_max)
        };
        let run = rig.alloc(0, 2 * PAGE, false);
        let object = rig.alloc(0, 1000, true);
        assert_eq!(held(&rig), (3 * PAGE, 2 * PAGE + 1024));
        let told = refused(&mut rig, 0, PAGE, false);
        assert!(told.contains("has 9216 bytes") && told.contains("may have 12288"), "{told}");
        refused(&mut rig, 0, PAGE, true);
        // Another handle of the same process has nothing more, another process has.
        rig.join(1);
        refused(&mut rig, 1, 4 * PAGE, false);
        refused(&mut rig, 1, PAGE, false);
        rig.join_remote(2);
        let other = rig.alloc(2, 2 * PAGE, false);
        refused(&mut rig, 2, 2 * PAGE, false);
        // Up to the last byte, in whatever order.
        let rest: Vec<GAddr> = (0..48).map(|_| rig.alloc(0, 64, false)).collect();
        assert_eq!(held(&rig).1, 3 * PAGE);
        refused(&mut rig, 1, 64, false);
        // Whichever client frees it.
        rig.free(2, run, 2 * PAGE);
        rest.into_iter().for_each(|addr| rig.free(1, addr, 64));
        assert_eq!(held(&rig).1, 2 * PAGE, "the other client's");
        rig.free(0, other, 2 * PAGE);
        assert_eq!(held(&rig).1, 1024);
        // A daemon that starts again counts what is owned.
        rig.daemon = None;
        rig.start();
        limited(&mut rig, Some(3 * PAGE));
        assert_eq!(held(&rig).1, 1024);
        refused(&mut rig, 0, 3 * PAGE, false);
        rig.free(0, object, 1000);
        assert_eq!(held(&rig).1, 0);
        // What no client took and what a session owned come back.
        let pages = rig.alloc(0, 2 * PAGE, true);
        rig.submit(1, Request::Alloc { bytes: PAGE, kind: AllocationKind::User });
        rig.kill(1);
        rig.quiesce();
        assert_eq!(held(&rig).1, 2 * PAGE);
        rig.free(0, pages, 2 * PAGE);
        limited(&mut rig, None);
        let all = rig.alloc(0, u64::from(FRAMES) * PAGE, false);
        rig.free(0, all, u64::from(FRAMES) * PAGE);
        rig.finish();
    });
}
