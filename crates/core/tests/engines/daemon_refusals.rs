//! Each refusal of the daemon is typed and keeps its state; each wait ends.

use crate::daemon_world::{PAGE, RACK, Rig, TestWorld, local_client, remote_client};
use rackpool_core::constants::{
    QUARANTINE_FRAMES_MAX, REMOTE_SESSIONS_MAX, RESOLVE_PAGES_MAX, RUN_PAGES_MAX, SLOTS_MAX,
};
use rackpool_core::copies::COPIES;
use rackpool_core::daemon::{ClientId, Daemon, LocalClient, World, format, read_superblock};
use rackpool_core::layout::AllocationKind;
use rackpool_core::layout::{
    FrameState, FrameWord, LAYOUT_VERSION, RegionLayout, StateWord, frame_word, session_word,
};
use rackpool_core::seam::Mem;
use rackpool_core::wire::{MasterCall, Reply, Request, RequestFrame};
use rackpool_core::{Error, FrameIndex, GAddr, PageGeometry, PageId, RackId, SessionId};

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> &'static str {
    result.unwrap_err().code()
}

fn attach(world: &mut TestWorld) -> Result<Daemon, Error> {
    Daemon::attach(world, RACK, None)
}

fn alloc(bytes: u64) -> Request {
    Request::Alloc { bytes, kind: AllocationKind::User }
}

#[test]
fn a_full_region_answers_full_and_keeps_its_state() {
    let mut rig = Rig::new(4);
    rig.join(0);
    let run = rig.alloc(0, 3 * PAGE, false);
    let error = rig.ask(0, alloc(2 * PAGE)).unwrap_err();
    assert!(matches!(error, Error::Full { bytes: 8192, free_bytes: 4096, .. }), "{error}");
    let last = rig.alloc(0, 64, false);
    for _ in 1..PAGE / 64 {
        rig.alloc(0, 64, false);
    }
    assert_eq!(code(rig.ask(0, alloc(64))), "full");
    assert_eq!(code(rig.ask(0, alloc(PAGE))), "full");
    rig.verify();
    rig.free(0, last, 64);
    assert_eq!(rig.alloc(0, 64, false), last);
    rig.free(0, run, 3 * PAGE);
    rig.alloc(0, 2 * PAGE, false);
    rig.finish();
}

#[test]
fn an_allocation_above_the_region_is_full_without_giving_up_cached_pages() {
    let mut rig = Rig::new(4);
    rig.join(0);
    let object = rig.alloc(0, 64, false);
    rig.free(0, object, 64);
    rig.quiesce();
    let served = rig.world.master.served;
    assert_eq!(code(rig.ask(0, alloc(5 * PAGE))), "full");
    assert_eq!(rig.world.master.served, served);
    rig.alloc(0, 4 * PAGE, false);
    rig.finish();
}

#[test]
fn a_host_without_memory_answers_full_and_rolls_back() {
    let mut rig = Rig::new(16);
    rig.join(0);
    rig.world.host_blocks_free = 3;
    rig.alloc(0, 2 * PAGE, false);
    assert_eq!(code(rig.ask(0, alloc(2 * PAGE))), "full");
    rig.quiesce();
    assert_eq!(rig.daemon.as_ref().unwrap().frames_free(), 14);
    rig.alloc(0, 64, false);
    assert_eq!(code(rig.ask(0, alloc(2048))), "full");
    rig.world.host_blocks_free = 100;
    rig.alloc(0, 2 * PAGE, false);
    rig.finish();
}

#[test]
fn a_free_that_names_no_allocation_is_told_what_is_there() {
    let mut rig = Rig::new(16);
    rig.join(0);
    let object = rig.alloc(0, 100, false);
    let run = rig.alloc(0, 3 * PAGE, false);
    let bad = [
        (object, 0),
        (object, 200),
        (object, 64),
        (object, PAGE),
        (GAddr(object.0 + 8), 100),
        (GAddr(object.0 + 128), 100),
        (run, 2 * PAGE),
        (run, 4 * PAGE),
        (run, 100),
        (GAddr(run.0 + 8), 3 * PAGE),
        (GAddr(run.0 + PAGE), 2 * PAGE),
        (GAddr(run.0 + PAGE), 3 * PAGE),
        (GAddr(run.0 + 3 * PAGE), 3 * PAGE),
        (GAddr::NULL, 64),
        (GAddr(u64::MAX), u64::MAX),
    ];
    rig.live.clear();
    for (addr, bytes) in bad {
        assert_eq!(code(rig.ask(0, Request::Free { addr, bytes })), "bad-free", "{addr} {bytes}");
    }
    for (addr, bytes) in [(object, 100), (run, 3 * PAGE)] {
        rig.free(0, addr, bytes);
        assert_eq!(code(rig.ask(0, Request::Free { addr, bytes })), "bad-free", "{addr} twice");
    }
    rig.finish();
}

#[test]
fn sizes_alignments_addresses_and_counts_out_of_bounds_are_typed_errors() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let object = rig.alloc(0, 64, false);
    let limit = u64::from(RUN_PAGES_MAX) * PAGE;
    for bytes in [0, limit + 1, u64::MAX] {
        assert_eq!(code(rig.ask(0, alloc(bytes))), "bad-size");
    }
    let add = |addr| Request::FetchAdd { addr: GAddr(addr), n: 1 };
    let cas = |addr| Request::Cas { addr: GAddr(addr), expected: 0, new: 1 };
    rig.words.clear();
    for request in [add as fn(u64) -> Request, cas] {
        let mut refused = |addr| {
            let client = ClientId::Slot(0);
            let seq = rig.clients[&0].seq + 1;
            let frame = RequestFrame { seq, request: request(addr) };
            rig.run(|daemon, world| daemon.on_request(client, frame, world));
            let (_, reply) = rig.world.replies.pop_front().unwrap();
            code(reply.reply)
        };
        assert_eq!(refused(object.0 + 4), "misaligned");
        assert_eq!(refused(object.0 + 64), "not-mapped");
        assert_eq!(refused(0), "not-mapped");
        assert_eq!(refused(u64::MAX - 7), "not-mapped");
    }
    let page = PageId(object.0 / PAGE);
    for (page, count) in
        [(page, 0), (page, RESOLVE_PAGES_MAX + 1), (page, u32::MAX), (PageId(u64::MAX), 2)]
    {
        assert_eq!(code(rig.ask(0, Request::Resolve { page, count })), "protocol");
    }
    let before = PageId(page.0 - 5);
    match rig.ask(0, Request::Resolve { page: before, count: RESOLVE_PAGES_MAX }) {
        Ok(Reply::Homes(homes)) => assert_eq!(homes, [rig.world.master.pages[&page.0]]),
        other => panic!("{other:?}"),
    }
    rig.words.insert(object.0, 0);
    rig.finish();
}

#[test]
fn a_region_that_cannot_be_used_is_refused_and_never_made_anew() {
    let mut fresh = TestWorld::new(8);
    fresh.back_private(0, 4096).unwrap();
    assert_eq!(code(attach(&mut fresh).map(|_| ())), "bad-region");

    let refused = |rack, expected: Option<u8>, spoil: &dyn Fn(&TestWorld)| {
        let mut world = TestWorld::formatted(8);
        spoil(&world);
        let expected = expected.map(|shift| PageGeometry::new(shift).unwrap());
        let error = Daemon::attach(&mut world, rack, expected).map(|_| ()).unwrap_err();
        let layout = world.layout;
        assert_eq!(code(format(&mut world, RACK, [1, 1], layout)), "bad-region");
        error
    };
    let untouched: &dyn Fn(&TestWorld) = &|_| {};
    assert_eq!(refused(RackId(4), None, untouched).code(), "bad-region");
    assert_eq!(refused(RACK, Some(21), untouched).code(), "bad-region");
    let version = refused(RACK, None, &|world| {
        let word = world.private().load(8);
        world.private().store(8, word + 1);
    });
    let found = LAYOUT_VERSION + 1;
    let newer = Error::Version { peer: "the region".into(), found, supported: LAYOUT_VERSION };
    assert_eq!(version, newer);
    for byte in (8..128).filter(|byte| !(8..12).contains(byte)) {
        let torn = refused(RACK, None, &|world| {
            let offset = byte / 8 * 8;
            let word = world.private().load(offset);
            world.private().store(offset, word ^ 1 << (8 * (byte % 8)));
        });
        assert_eq!(torn.code(), "bad-region", "byte {byte}");
    }
}

#[test]
fn a_foreign_first_word_and_unknown_features_are_refused() {
    let mut world = TestWorld::formatted(8);
    let magic = world.private().load(0);
    world.private().store(0, magic ^ 1);
    assert_eq!(code(attach(&mut world).map(|_| ())), "bad-region");
    world.private().store(0, magic);
    let mut block = read_superblock(world.private()).unwrap();
    block.features = 4;
    block.checksum = block.checksum_of();
    world.private().store(40, block.features);
    world.private().store(120, block.checksum);
    let error = attach(&mut world).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("features 0x4"), "{error}");
}

#[test]
fn sections_shorter_than_the_superblock_says_are_refused() {
    let small = TestWorld::formatted(8);
    let mut world = TestWorld::new(4);
    world.back_private(0, 16384).unwrap();
    for offset in (0..4096).step_by(8) {
        world.private().store(offset, small.private().peek(offset));
    }
    assert_eq!(code(attach(&mut world).map(|_| ())), "bad-region");
    let layout = RegionLayout { frame_count: 8, ..world.layout };
    assert_eq!(code(format(&mut TestWorld::new(4), RACK, [1, 1], layout)), "bad-region");
}

#[test]
fn a_crash_while_a_region_is_made_leaves_none_and_making_it_again_works() {
    let mut crashes = 0;
    for effects in 0..40 {
        let mut world = TestWorld::new(8);
        let layout = world.layout;
        world.fuse.arm(effects);
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            format(&mut world, RACK, [1, 2], layout).unwrap();
        }));
        world.fuse.disarm();
        if made.is_err() {
            crashes += 1;
            assert!(effects == 0 || attach(&mut world).is_err(), "{effects} effects");
            format(&mut world, RACK, [1, 2], layout).unwrap();
        }
        assert_eq!(attach(&mut world).unwrap().region_id(), [1, 2]);
    }
    assert!(crashes > 10, "making a region has {crashes} effects");
}

#[test]
fn entries_that_make_no_sense_are_bad_regions_and_not_panics() {
    let spoilt = |spoil: &dyn Fn(&TestWorld)| {
        let mut rig = Rig::new(8);
        rig.join(0);
        rig.alloc(0, 3 * PAGE, false);
        rig.alloc(0, 2048, false);
        rig.daemon = None;
        spoil(&rig.world);
        let error = attach(&mut rig.world).map(|_| ()).unwrap_err();
        assert_eq!(error.code(), "bad-region");
    };
    use rackpool_core::layout::{DebtWord, debt_word, due_word};
    spoilt(&|world| world.private().poke_copies(debt_word(3, DebtWord::Addr), 4096));
    spoilt(&|world| {
        (0..2).for_each(|due| world.private().poke_copies(due_word(due, DebtWord::Addr), 4096));
    });
    let entry = |frame, word| frame_word(FrameIndex(frame), word);
    let state = |frame| entry(frame, FrameWord::State);
    spoilt(&|world| world.private().poke_copies(StateWord::FramesHigh.offset(), 9));
    spoilt(&|world| world.private().poke_copies(StateWord::GenerationNext.offset(), 0));
    spoilt(&|world| world.private().poke_copies(StateWord::PageIdEnd.offset(), 1));
    spoilt(&|world| world.private().poke_copies(state(0), 77));
    spoilt(&|world| {
        world.private().poke_copies(state(1), 1 << 32 | 1 << 16 | FrameState::Home as u64)
    });
    spoilt(&|world| world.private().poke_copies(state(2), 1 << 32 | FrameState::Home as u64));
    spoilt(&|world| world.private().poke_copies(state(0), 40 << 8 | 1 << 16 | 1 << 32 | 2));
    spoilt(&|world| world.private().poke_copies(entry(1, FrameWord::Page), 0));
    spoilt(&|world| world.private().poke_copies(entry(1, FrameWord::Page), u64::MAX));
    spoilt(&|world| world.private().poke_copies(entry(1, FrameWord::Generation), 0));
    spoilt(&|world| {
        let page = world.private().peek(entry(0, FrameWord::Page));
        world.private().poke_copies(entry(1, FrameWord::Page), page);
    });
    spoilt(&|world| {
        let bitmap = world.layout.bitmap_offset(FrameIndex(3));
        world.private().poke_copies(bitmap, 1 << 2);
    });
    let record = |word| session_word(0, word);
    use rackpool_core::layout::SessionWord;
    spoilt(&|world| world.private().poke_copies(record(SessionWord::ResultKind), 9));
    spoilt(&|world| world.private().poke_copies(session_word(1, SessionWord::Session), 100));
    spoilt(&|world| world.private().poke_copies(rackpool_core::layout::REDO_OFFSET + 8, 1 << 40));
}

#[test]
fn a_frame_that_a_stopped_reader_announces_waits_for_it_and_the_free_does_not() {
    let mut rig = Rig::new(2);
    rig.join(0);
    let page = rig.alloc(0, PAGE, false);
    let frame = rig.world.offset_of(page) / PAGE;
    rig.world.cells[9] = frame + 1;
    let barriers = rig.world.barriers;
    rig.free(0, page, PAGE);
    assert_eq!(rig.world.barriers, barriers + 1);
    for _ in 0..10 {
        rig.turn();
    }
    let stats = rig.daemon.as_ref().unwrap().stats(&rig.world);
    assert_eq!((stats.frames_quarantined, stats.frames_free), (1, 1));
    assert!(rig.daemon.as_ref().unwrap().tick_ns().is_some());
    rig.alloc(0, PAGE, false);
    let error = rig.ask(0, alloc(PAGE)).unwrap_err();
    assert!(error.to_string().contains("1 frames wait"), "{error}");
    rig.world.cells[9] = 0;
    rig.turn();
    assert_eq!(rig.world.barriers, barriers + 1, "a scan alone needs no barrier");
    rig.alloc(0, PAGE, false);
    assert_eq!(rig.daemon.as_ref().unwrap().tick_ns(), None);
    rig.finish();
}

#[test]
fn a_full_quarantine_answers_busy_before_the_free_starts() {
    let mut rig = Rig::new(QUARANTINE_FRAMES_MAX + 8);
    rig.join(0);
    let bytes = u64::from(QUARANTINE_FRAMES_MAX) * PAGE;
    let run = rig.alloc(0, bytes, false);
    let other = rig.alloc(0, PAGE, false);
    rig.world.cells = (0..QUARANTINE_FRAMES_MAX).map(|frame| u64::from(frame) + 1).collect();
    rig.free(0, run, bytes);
    let again = Request::Free { addr: other, bytes: PAGE };
    let frame = RequestFrame { seq: rig.clients[&0].seq + 1, request: again };
    rig.run(|daemon, world| daemon.on_request(ClientId::Slot(0), frame, world));
    let (_, reply) = rig.world.replies.pop_front().unwrap();
    assert!(matches!(reply.reply, Err(Error::Busy { limit: 4096, .. })), "{reply:?}");
    rig.verify();
    rig.world.cells.fill(0);
    rig.turn();
    rig.free(0, other, PAGE);
    rig.finish();
}

#[test]
fn an_allocation_whose_answer_was_not_taken_comes_back_and_a_taken_one_stays() {
    for bytes in [64, 2 * PAGE] {
        let mut rig = Rig::new(8);
        rig.join(0);
        rig.join(1);
        rig.clients.get_mut(&1).unwrap().consumes = false;
        rig.alloc(0, bytes, false);
        rig.alloc(1, bytes, false);
        rig.kill(0);
        rig.kill(1);
        rig.quiesce();
        assert_eq!(rig.live.len(), 1);
        rig.verify();
        rig.finish();
    }
}

#[test]
fn a_leave_never_frees_what_another_got_at_the_same_address() {
    let mut rig = Rig::new(8);
    for name in 0..3 {
        rig.join(name);
    }
    rig.clients.get_mut(&0).unwrap().consumes = false;
    let addr = rig.alloc(0, 64, false);
    rig.free(1, addr, 64);
    assert_eq!(rig.alloc(2, 64, false), addr);
    rig.kill(0);
    rig.verify();
    rig.finish();
}

#[test]
fn what_a_client_asked_for_before_it_died_is_rolled_back() {
    let mut rig = Rig::new(8);
    rig.join(9);
    rig.alloc(9, 64, false);
    for (name, bytes) in [(0, 64), (1, 3 * PAGE)] {
        rig.join(name);
        rig.submit(name, Request::Alloc { bytes, kind: AllocationKind::Session });
        rig.kill(name);
    }
    rig.quiesce();
    assert_eq!(rig.world.replies.len(), 0);
    assert_eq!(rig.daemon.as_ref().unwrap().frames_free(), 7);
    rig.finish();
}

#[test]
fn forty_clients_join_and_leave_and_the_slot_is_the_same() {
    let mut rig = Rig::new(8);
    for name in 0..40 {
        rig.join(name);
        assert_eq!(rig.clients[&name].id, ClientId::Slot(0));
        rig.alloc(name, 100, true);
        rig.alloc(name, PAGE, true);
        rig.kill(name);
    }
    let stats = rig.daemon.as_ref().unwrap().stats(&rig.world);
    assert_eq!((stats.sessions_reaped, stats.slots_used), (40, 0));
    rig.finish();
}

#[test]
fn the_257th_slot_and_the_769th_remote_session_are_busy() {
    let mut rig = Rig::new(8);
    for name in 0..SLOTS_MAX {
        rig.join(name);
    }
    let join = |rig: &mut Rig, session| {
        let client = local_client(SessionId(session));
        rig.run(|daemon, world| daemon.join_local(client, world)).unwrap()
    };
    assert_eq!(code(join(&mut rig, 5000)), "busy");
    assert_eq!(code(join(&mut rig, 0)), "denied");
    assert_eq!(code(join(&mut rig, 100)), "denied");
    let remote = |rig: &mut Rig, session| {
        let client = remote_client(SessionId(session));
        rig.run(|daemon, world| daemon.join_remote(client, world)).unwrap()
    };
    for index in 0..REMOTE_SESSIONS_MAX {
        assert_eq!(remote(&mut rig, 10_000 + u64::from(index)), Ok((SLOTS_MAX + index, false)));
    }
    assert_eq!(code(remote(&mut rig, 5000)), "busy");
    assert_eq!(code(remote(&mut rig, 100)), "denied");
    for record in [SLOTS_MAX + 7, SLOTS_MAX + 3] {
        rig.run(|daemon, _| daemon.leave_remote(record));
    }
    assert_eq!(remote(&mut rig, 10_007), Ok((SLOTS_MAX + 7, true)), "a known one comes back");
    rig.run(|daemon, _| daemon.leave_remote(SLOTS_MAX + 7));
    assert_eq!(remote(&mut rig, 5000), Ok((SLOTS_MAX + 3, false)), "the oldest goes");
    assert_eq!(remote(&mut rig, 5001), Ok((SLOTS_MAX + 7, false)));
    assert_eq!(code(remote(&mut rig, 10_007)), "busy");
    let daemon = rig.daemon.as_mut().unwrap();
    assert!(daemon.resume_local(SessionId(100), 2, 0).is_ok());
    assert_eq!(code(daemon.resume_local(SessionId(100), 3, 1)), "denied");
    assert_eq!(code(daemon.resume_local(SessionId(100), 3, SLOTS_MAX)), "denied");
}

/// A client says hello anew after its time was up; a daemon that was stopped hears both, and makes
/// the rings anew for what it serves.
#[test]
fn a_hello_that_is_heard_after_a_later_one_is_refused() {
    let mut rig = Rig::new(8);
    let session = SessionId(7);
    let client = LocalClient { hello: 4, ..local_client(session) };
    let slot = rig.run(|daemon, world| daemon.join_local(client, world)).unwrap();
    let slot = slot.expect("a slot is free");
    let daemon = rig.daemon.as_mut().unwrap();
    assert_eq!(code(daemon.resume_local(session, 3, slot)), "denied");
    assert_eq!(code(daemon.resume_local(session, 4, slot)), "denied");
    assert!(daemon.resume_local(session, 9, slot).is_ok());
    assert_eq!(code(daemon.resume_local(session, 8, slot)), "denied");
    rig.start();
    // Nothing that was said to the daemon before is heard by its successor.
    assert!(rig.daemon.as_mut().unwrap().resume_local(session, 10, slot).is_ok());
}

#[test]
fn who_has_a_lock_keeps_its_session_from_newcomers_for_a_lease() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let addr = rig.alloc(0, 64, false);
    let join = |rig: &mut Rig, session| {
        let client = remote_client(SessionId(session));
        rig.run(|daemon, world| daemon.join_remote(client, world)).unwrap()
    };
    for index in 0..REMOTE_SESSIONS_MAX {
        assert!(join(&mut rig, 10_000 + u64::from(index)).is_ok());
    }
    let (holder, other) = (SLOTS_MAX, SLOTS_MAX + 1);
    let request = Request::Lock { addr, lines: 1, write: false, wait_ms: 0 };
    let frame = RequestFrame { seq: 1, request };
    rig.run(|daemon, world| daemon.on_request(ClientId::Remote(holder), frame, world));
    let reply = rig.world.replies.pop_front().map(|(_, frame)| frame.reply);
    let Some(Ok(Reply::Locked { token })) = reply else { panic!("{reply:?}") };
    rig.run(|daemon, _| daemon.leave_remote(holder));
    assert_eq!(code(join(&mut rig, 5000)), "busy", "no other is closed");
    rig.run(|daemon, _| daemon.leave_remote(other));
    assert_eq!(join(&mut rig, 5000), Ok((other, false)), "not the oldest, which has a lock");
    assert!(rig.daemon.as_ref().unwrap().holds_lock(holder, addr, token));
    rig.run(|daemon, world| daemon.lose_locks(holder, world));
    assert_eq!(join(&mut rig, 5001), Ok((holder, false)));
}

/// Sends one frame and takes what is answered at once.
fn send(rig: &mut Rig, seq: u64, request: Request) -> Option<Result<Reply, Error>> {
    let frame = RequestFrame { seq, request };
    rig.run(|daemon, world| daemon.on_request(ClientId::Slot(0), frame, world));
    rig.world.replies.pop_front().map(|(_, frame)| frame.reply)
}

#[test]
fn a_repeated_request_repeats_its_answer_and_an_older_one_is_refused() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let addr = rig.alloc(0, 64, false);
    assert_eq!(send(&mut rig, 1, alloc(64)), Some(Ok(Reply::Allocated { addr })));
    let add = Request::FetchAdd { addr, n: 2 };
    assert_eq!(send(&mut rig, 5, add.clone()), Some(Ok(Reply::Old { value: 0 })));
    assert_eq!(send(&mut rig, 5, add.clone()), Some(Ok(Reply::Old { value: 0 })));
    assert_eq!(send(&mut rig, 6, add.clone()), Some(Ok(Reply::Old { value: 2 })));
    assert_eq!(code(send(&mut rig, 5, add.clone()).unwrap()), "protocol");
    assert_eq!(code(send(&mut rig, 0, add).unwrap()), "protocol");
    let stranger = RequestFrame { seq: 1, request: Request::Ping };
    rig.run(|daemon, world| daemon.on_request(ClientId::Slot(9), stranger, world));
    assert_eq!(code(rig.world.replies.pop_front().unwrap().1.reply), "protocol");
}

#[test]
fn a_duplicate_of_a_request_under_way_is_answered_once() {
    let mut rig = Rig::new(8);
    rig.join(0);
    rig.alloc(0, 64, false);
    assert_eq!(send(&mut rig, 2, alloc(PAGE)), None);
    assert_eq!(send(&mut rig, 2, alloc(PAGE)), None);
    assert_eq!(code(send(&mut rig, 1, alloc(PAGE)).unwrap()), "protocol");
    assert_eq!(send(&mut rig, 3, Request::Ping), Some(Ok(Reply::Pong)));
    while !rig.world.calls.is_empty() {
        rig.turn();
    }
    assert_eq!(rig.world.replies.len(), 1);
}

#[test]
fn a_request_that_was_given_up_leaves_nothing_when_the_next_one_comes() {
    let mut rig = Rig::new(8);
    rig.join(0);
    rig.alloc(0, 64, false);
    let stats = |rig: &Rig| rig.daemon.as_ref().unwrap().stats(&rig.world);
    let before = stats(&rig);
    // One is given up while the master commits it, one after its answer was on its way.
    for bytes in [2 * PAGE, 128] {
        let seq = rig.clients[&0].seq + 1;
        assert_eq!(send(&mut rig, seq, alloc(bytes)), None);
        assert_eq!(send(&mut rig, seq + 1, alloc(3 * PAGE)), None);
        assert_eq!(code(send(&mut rig, seq, alloc(bytes)).unwrap()), "protocol");
        while !rig.world.calls.is_empty() || rig.daemon.as_ref().unwrap().tick_ns().is_some() {
            rig.turn();
        }
        let replies: Vec<u64> = rig.world.replies.drain(..).map(|(_, frame)| frame.seq).collect();
        assert_eq!(replies, [seq + 1]);
        assert_eq!(stats(&rig).allocations, before.allocations + 1, "the one that was answered");
        rig.clients.get_mut(&0).unwrap().seq = seq + 1;
    }
    // The last answer was not taken either.
    rig.alloc(0, 64, false);
    while !rig.world.calls.is_empty() || rig.daemon.as_ref().unwrap().tick_ns().is_some() {
        rig.turn();
    }
    let after = stats(&rig);
    assert_eq!(after.allocations, before.allocations + 1);
    assert_eq!(after.allocated_bytes, before.allocated_bytes + 64);
}

#[test]
fn an_allocation_whose_answer_a_remote_client_never_took_ends_with_its_session() {
    for taken in [false, true] {
        for crash in [false, true] {
            let mut rig = Rig::new(8);
            rig.join_remote(0);
            rig.clients.get_mut(&0).unwrap().consumes = taken;
            rig.ask(0, alloc(2 * PAGE)).unwrap();
            if crash {
                // What the client has taken is known again when it comes back, which the rig's
                // clients do, or else counts as taken.
                rig.start();
            }
            rig.kill(0);
            let left = rig.daemon.as_ref().unwrap().stats(&rig.world).allocations;
            assert_eq!(left, u64::from(taken), "taken {taken}, crash {crash}");
        }
    }
}

#[test]
fn a_free_repeated_after_a_crash_waits_until_the_master_has_forgotten() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let run = rig.alloc(0, 2 * PAGE, false);
    let free = Request::Free { addr: run, bytes: 2 * PAGE };
    assert_eq!(send(&mut rig, 2, free.clone()), None);
    rig.world.calls.clear();
    rig.start();
    assert_eq!(send(&mut rig, 2, free.clone()), None);
    while !rig.world.calls.is_empty() {
        rig.turn();
    }
    assert_eq!(rig.world.replies.pop_front().unwrap().1.reply, Ok(Reply::Freed));
    // Pages of it may have been in other racks: the master knows.
    assert_eq!(send(&mut rig, 2, free), None);
    rig.turn();
    assert_eq!(rig.world.replies.pop_front().unwrap().1.reply, Ok(Reply::Freed));
}

#[test]
fn clients_that_want_the_same_new_slab_page_share_it_and_later_ones_ask_no_master() {
    let mut rig = Rig::new(16);
    for name in 0..5 {
        rig.join(name);
        rig.submit(name, alloc(1000));
    }
    rig.settle();
    let commits = rig.world.master.pages.len();
    assert_eq!(commits, 2, "five objects of 1024 bytes need two pages");
    let served = rig.world.master.served;
    for _ in 0..3 {
        rig.alloc(0, 1000, false);
    }
    assert_eq!(rig.world.master.served, served);
    rig.finish();
}

#[test]
fn a_class_keeps_one_empty_page_and_gives_it_up_when_frames_run_out() {
    let mut rig = Rig::new(3);
    rig.join(0);
    let halves: Vec<_> = (0..6).map(|_| rig.alloc(0, PAGE / 2, false)).collect();
    for half in halves {
        rig.free(0, half, PAGE / 2);
    }
    rig.quiesce();
    let stats = rig.daemon.as_ref().unwrap().stats(&rig.world);
    assert_eq!((stats.frames_slab, stats.frames_free), (1, 2));
    rig.alloc(0, 3 * PAGE, false);
    rig.finish();
}

#[test]
fn an_allocation_waits_for_frames_that_are_coming_back() {
    let mut rig = Rig::new(2);
    rig.join(0);
    rig.join(1);
    let run = rig.alloc(0, 2 * PAGE, false);
    rig.submit(0, Request::Free { addr: run, bytes: 2 * PAGE });
    rig.submit(1, alloc(2 * PAGE));
    assert_eq!(rig.world.replies.len(), 0);
    rig.settle();
    assert!(rig.clients[&1].last.as_ref().unwrap().is_ok());
    rig.finish();
}

#[test]
fn an_allocation_waits_while_the_master_is_away_and_goes_on_after_it() {
    let mut rig = Rig::new(8);
    rig.join(0);
    rig.alloc(0, 64, false);
    rig.run(|daemon, _| daemon.master_down());
    rig.submit(0, alloc(PAGE));
    assert!(rig.world.calls.is_empty() && rig.world.replies.is_empty());
    rig.run(|daemon, world| daemon.master_up(world));
    let question = rig.world.calls.pop_front().unwrap();
    assert_eq!(question.1, MasterCall::NextOrphans);
    let lost = rig.world.calls.pop_front().unwrap();
    assert!(matches!(lost.1, MasterCall::CommitPages { .. }));
    rig.run(|daemon, world| {
        daemon.master_down();
        daemon.master_up(world);
    });
    assert_eq!(rig.world.calls, [question, lost]);
    rig.settle();
    rig.finish();
}

#[test]
fn a_busy_master_is_asked_again_and_a_refusing_one_fails_the_allocation() {
    let mut rig = Rig::new(8);
    rig.join(0);
    rig.alloc(0, 64, false);
    let busy = Error::Busy { what: "log".into(), limit: 1 };
    rig.world.master.refusals.push_back(busy);
    rig.alloc(0, PAGE, false);
    let refusal = Error::Denied { reason: "no".into() };
    rig.world.master.refusals.push_back(refusal.clone());
    assert_eq!(rig.ask(0, alloc(PAGE)), Err(refusal.clone()));
    rig.quiesce();
    assert_eq!(rig.daemon.as_ref().unwrap().frames_free(), 6);
    let page = *rig.live.last_key_value().unwrap().0;
    rig.world.master.refusals.push_back(refusal);
    rig.free(0, GAddr(page), PAGE);
    rig.finish();
}

#[test]
fn a_master_without_page_ids_is_a_typed_error_for_those_who_wait() {
    let mut rig = Rig::new(8);
    let refusal = Error::Denied { reason: "no ids".into() };
    rig.join(0);
    rig.world.master.refusals.push_back(refusal.clone());
    assert_eq!(rig.ask(0, alloc(64)), Err(refusal));
    rig.alloc(0, 64, false);
    rig.finish();
}

#[test]
fn a_run_that_does_not_fit_into_the_rest_of_the_leased_ids_takes_the_next_range() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let first = rig.alloc(0, PAGE, false);
    rig.daemon = None;
    let private = rig.world.private();
    let end = private.peek(StateWord::PageIdEnd.offset());
    private.poke_copies(StateWord::PageIdNext.offset(), end - 2);
    rig.start();
    let second = rig.alloc(0, 3 * PAGE, false);
    assert!(second.0 / PAGE >= end && first.0 / PAGE < end);
    rig.verify();
    rig.finish();
}

#[test]
fn a_tebibyte_of_frames_attaches_in_proportion_to_what_was_used() {
    let mut world = TestWorld::formatted(1 << 16);
    let mut daemon = attach(&mut world).unwrap();
    assert_eq!((daemon.epoch(), daemon.frames_free()), (1, 1 << 16));
    assert_eq!(daemon.tick_ns(), None);
    daemon.tick(0, &mut world);
    assert_eq!(world.private().backed_bytes(), COPIES * rackpool_core::layout::FRAMES_OFFSET);
    assert_eq!(attach(&mut world).unwrap().epoch(), 2);
}

#[test]
fn what_is_owned_by_a_session_that_is_over_is_freed_at_attach() {
    let mut rig = Rig::new(8);
    rig.join(0);
    for bytes in [64, 3 * PAGE] {
        rig.alloc(0, bytes, true);
    }
    rig.daemon = None;
    let record = session_word(0, rackpool_core::layout::SessionWord::Session);
    rig.world.private().poke_copies(record, 0);
    rig.clients.clear();
    rig.live.clear();
    rig.start();
    rig.finish();
}

#[test]
fn an_answer_never_goes_to_a_later_session_of_the_same_name_slot_and_number() {
    let mut rig = Rig::new(8);
    rig.join(0);
    rig.submit(0, alloc(3 * PAGE));
    rig.kill(0);
    rig.join(0);
    rig.submit(0, alloc(PAGE));
    rig.quiesce();
    assert_eq!(rig.daemon.as_ref().unwrap().frames_free(), 7);
    rig.verify();
    rig.finish();
}

#[test]
fn empty_slab_pages_beyond_one_a_class_are_given_back_at_attach() {
    let mut rig = Rig::new(8);
    rig.join(0);
    for _ in 0..5 {
        rig.alloc(0, PAGE / 2, false);
    }
    rig.daemon = None;
    for frame in 0..3 {
        rig.world.private().poke_copies(rig.world.layout.bitmap_offset(FrameIndex(frame)), 0);
    }
    rig.live.clear();
    rig.start();
    rig.quiesce();
    let stats = rig.daemon.as_ref().unwrap().stats(&rig.world);
    assert_eq!((stats.frames_slab, stats.allocations, stats.frames_free), (1, 0, 7));
    rig.finish();
}

#[test]
fn pages_of_2_mib_find_every_object_of_long_bitmaps_and_give_the_bitmaps_back() {
    let page_bytes = 2 << 20;
    let mut rig = Rig::with_pages(page_bytes, 4);
    rig.join(0);
    let metadata = rig.world.private().backed_bytes();
    let objects: Vec<_> = (0..page_bytes / 64 + 1).map(|_| rig.alloc(0, 64, false)).collect();
    let stats = rig.daemon.as_ref().unwrap().stats(&rig.world);
    assert_eq!((stats.frames_slab, stats.allocations), (2, page_bytes / 64 + 1));
    let grown = rig.world.private().backed_bytes() - metadata;
    assert_eq!(grown, COPIES * (4096 + 2 * 4096), "a block of entries and two bitmaps");
    for index in [20_000, 3, 32_767, 64, 63] {
        rig.free(0, objects[index], 64);
        assert_eq!(rig.alloc(0, 64, false), objects[index], "the lowest free object");
    }
    for index in (0..objects.len()).step_by(97) {
        rig.free(0, objects[index], 64);
    }
    rig.daemon = None;
    rig.start();
    for index in (0..objects.len() - 97).step_by(97) {
        assert_eq!(rig.alloc(0, 64, false), objects[index]);
    }
    rig.alloc(0, page_bytes / 2, false);
    rig.alloc(0, page_bytes, false);
    rig.verify();
    let private = rig.world.private().backed_bytes();
    assert_eq!(private - metadata, COPIES * (4096 + 3 * 4096));
    rig.finish();
}
