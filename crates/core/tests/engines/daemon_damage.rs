//! Damaged metadata: one wrong copy of a word changes nothing, at attach and while the daemon runs;
//! a word that is lost keeps its memory from being handed out.

use crate::daemon_world::{PAGE, RACK, Rig, TestWorld};
use rackpool_core::copies::{self, COPIES};
use rackpool_core::daemon::{Daemon, World};
use rackpool_core::layout::{
    AllocationKind, DebtWord, FRAMES_OFFSET, FrameWord, LockWord, REDO_HEADER_BYTES, REDO_OFFSET,
    STATE_OFFSET, SessionWord, StateWord, debt_word, due_word, frame_word, lock_word, session_word,
    table_word,
};
use rackpool_core::seam::Mutation;
use rackpool_core::wire::{DaemonStats, MetadataChecks, Request};
use rackpool_core::{Error, FrameIndex, GAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};

const FRAMES: u32 = 8;

/// A rack with something of everything: slabs, a run, what is owned, both kinds of session, a lock.
fn furnished() -> Rig {
    let mut rig = Rig::new(FRAMES);
    rig.join(0);
    rig.join_remote(1);
    for bytes in [64, 64, 1024, 3 * PAGE] {
        rig.alloc(0, bytes, false);
    }
    rig.alloc(1, PAGE, true);
    let name = rig.alloc(0, 64, false);
    rig.ask(0, Request::Lock { addr: name, lines: 1, write: true, wait_ms: 0 })
        .expect("it is free");
    rig.quiesce();
    rig
}

/// Offsets of the words that mean something there.
fn words_in_use(world: &TestWorld) -> Vec<u64> {
    let mut words: Vec<u64> = (0..8).map(|word| STATE_OFFSET + 8 * word).collect();
    words.extend((0..REDO_HEADER_BYTES / 8 + 8).map(|word| REDO_OFFSET + 8 * word));
    for record in [0, rackpool_core::constants::SLOTS_MAX] {
        words.extend((0..8).map(|word| session_word(record, SessionWord::Session) + 8 * word));
    }
    words.extend((0..4).map(|word| lock_word(0, LockWord::Name) + 8 * word));
    words.extend((0..3).map(|word| debt_word(0, DebtWord::Addr) + 8 * word));
    words.extend((0..3).map(|word| due_word(0, DebtWord::Addr) + 8 * word));
    let high = world.private().peek(StateWord::FramesHigh.offset()) as u32;
    for frame in (0..high).map(FrameIndex) {
        words.extend((0..4).map(|word| frame_word(frame, FrameWord::Page) + 8 * word));
        words.push(world.layout.bitmap_offset(frame));
    }
    words
}

fn flip(world: &TestWorld, offset: u64, copy: u64, bit: u32) {
    let place = copies::places(world.layout.private_bytes(), offset)[copy as usize];
    let private = world.private();
    private.poke(place, private.peek(place) ^ 1 << bit);
}

/// Damages a word so that no two of its copies agree.
fn lose(world: &TestWorld, offset: u64) {
    flip(world, offset, 0, 3);
    flip(world, offset, 2, 5);
}

/// The statistics, but for what an attach changes.
fn told(rig: &Rig) -> DaemonStats {
    let stats = rig.daemon.as_ref().expect("it runs").stats(&rig.world);
    DaemonStats { epoch: 0, metadata: MetadataChecks::default(), ..stats }
}

fn checks(rig: &Rig) -> MetadataChecks {
    rig.daemon.as_ref().expect("it runs").metadata_checks()
}

/// Ticks until all metadata was compared once more.
fn scrub(rig: &mut Rig) {
    let rounds = checks(rig).rounds + 2;
    while checks(rig).rounds < rounds {
        rig.run(|daemon, world| daemon.scrub(1, world));
    }
}

#[test]
fn a_flipped_bit_of_any_word_is_mended_at_attach() {
    let mut rig = furnished();
    let words = words_in_use(&rig.world);
    let private = rig.world.layout.private_bytes();
    rig.daemon = None;
    rig.start();
    let expected = told(&rig);
    let value = |rig: &Rig, at| copies::read(private, at, |raw| rig.world.private().peek(raw));
    let values: Vec<_> = words.iter().map(|at| value(&rig, *at)).collect();
    let is_epoch = |at: &u64| *at == StateWord::Epoch.offset();
    for (index, at) in words.iter().enumerate() {
        let bitmap_unused = values[index] == Some(0) && *at > FRAMES_OFFSET + 32 * 8;
        for copy in 0..COPIES {
            // Every bit of the copy that is read first.
            let step = if copy == 0 { 1 } else { 13 };
            for bit in (index as u32 % step..64).step_by(step as usize) {
                rig.daemon = None;
                flip(&rig.world, *at, copy, bit);
                let attached = Daemon::attach(&mut rig.world, RACK, None);
                rig.daemon = Some(attached.unwrap_or_else(|e| panic!("{at:#x} bit {bit}: {e}")));
                assert_eq!(told(&rig), expected, "{at:#x} bit {bit} of copy {copy}");
                let found = checks(&rig);
                assert_eq!(found.damaged, 0);
                assert!(found.repaired == 1 || bitmap_unused || *at > FRAMES_OFFSET, "{at:#x}");
                let now = value(&rig, *at);
                assert!(now == values[index] || is_epoch(at), "{at:#x} bit {bit}: {now:x?}");
                if found.repaired == 0 {
                    // A bitmap: the running daemon mends it, or it belongs to nothing.
                    flip(&rig.world, *at, copy, bit);
                }
            }
        }
    }
    rig.start();
    rig.verify();
}

#[test]
fn a_bit_that_flips_while_a_daemon_attaches_changes_nothing() {
    for word in [StateWord::FramesHigh, StateWord::GenerationNext] {
        let mut rig = furnished();
        let expected = told(&rig);
        rig.daemon = None;
        let private = rig.world.private();
        let value = private.peek(word.offset());
        // Right after it was looked at for the first time.
        private.meanwhile.set(Some((word.offset(), value ^ 1 << 40)));
        rig.start();
        assert_eq!(rig.world.private().meanwhile.get(), None, "it was looked at");
        assert_eq!(told(&rig).frames_free, expected.frames_free);
        scrub(&mut rig);
        assert_eq!(checks(&rig).repaired, 1);
        rig.finish();
    }
}

#[test]
fn a_flipped_bit_while_the_daemon_runs_is_mended_and_changes_nothing_before() {
    let mut rig = furnished();
    scrub(&mut rig);
    assert_eq!(checks(&rig).repaired, 0, "nothing was wrong");
    let expected = told(&rig);
    let words = words_in_use(&rig.world);
    let mut mended = 0;
    for (index, at) in words.iter().enumerate() {
        flip(&rig.world, *at, index as u64 % COPIES, (7 * index as u32) % 64);
        // What it serves meanwhile is as if nothing were.
        rig.verify();
        let addr = rig.alloc(0, 64, false);
        rig.free(0, addr, 64);
        scrub(&mut rig);
        assert_eq!(checks(&rig).damaged, 0);
        mended += 1;
    }
    let found = checks(&rig).repaired;
    assert!((mended / 2..=mended).contains(&found), "{found} of {mended}");
    rig.quiesce();
    assert_eq!(told(&rig).allocated_bytes, expected.allocated_bytes);
    rig.finish();
}

#[test]
fn an_object_is_not_given_out_twice_whatever_bit_of_its_bitmap_is_flipped() {
    for (bit, copy) in (0..64).flat_map(|bit| (0..COPIES).map(move |copy| (bit, copy))) {
        let mut rig = Rig::new(FRAMES);
        rig.join(0);
        let taken: Vec<GAddr> = (0..20).map(|_| rig.alloc(0, 64, false)).collect();
        let bitmap = rig.world.layout.bitmap_offset(FrameIndex(0));
        flip(&rig.world, bitmap, copy, bit);
        let more: Vec<GAddr> = (0..20).map(|_| rig.alloc(0, 64, false)).collect();
        assert!(more.iter().all(|addr| !taken.contains(addr)), "bit {bit} of copy {copy}");
        rig.verify();
        rig.free(0, taken[7], 64);
        rig.finish();
    }
}

#[test]
fn a_lost_part_of_the_metadata_is_made_again_and_two_lost_parts_are_refused() {
    for lost in 0..COPIES {
        let mut rig = furnished();
        rig.daemon = None;
        let clear = |world: &TestWorld, copy: u64| {
            let [first, part, _] = copies::places(world.layout.private_bytes(), STATE_OFFSET);
            for word in 0..(world.layout.copy_bytes() - STATE_OFFSET) / 8 {
                let at = first + copy * (part - first) + 8 * word;
                if world.private().peek(at) != 0 {
                    world.private().poke(at, 0);
                }
            }
        };
        clear(&rig.world, lost);
        rig.start();
        assert!(checks(&rig).repaired > 20, "{:?}", checks(&rig));
        rig.verify();
        scrub(&mut rig);
        rig.daemon = None;
        clear(&rig.world, (lost + 1) % COPIES);
        rig.start();
        rig.verify();
        rig.daemon = None;
        clear(&rig.world, lost);
        clear(&rig.world, (lost + 1) % COPIES);
        let error = Daemon::attach(&mut rig.world, RACK, None).map(|_| ()).unwrap_err();
        assert_eq!(error.code(), "bad-region");
    }
}

#[test]
fn a_lost_word_before_the_frames_is_refused_with_its_place() {
    for at in [
        StateWord::PageIdNext.offset(),
        StateWord::GenerationNext.offset(),
        session_word(0, SessionWord::Session),
        lock_word(0, LockWord::Name),
        debt_word(0, DebtWord::Addr),
        REDO_OFFSET + 8,
    ] {
        let mut rig = furnished();
        rig.daemon = None;
        lose(&rig.world, at);
        let error = Daemon::attach(&mut rig.world, RACK, None).map(|_| ()).unwrap_err();
        assert_eq!(error.code(), "bad-region");
        assert!(error.to_string().contains(&format!("{at:#x}")), "{error}");
    }
}

#[test]
fn a_frame_whose_entry_is_lost_is_not_handed_out() {
    for word in [FrameWord::Page, FrameWord::Generation, FrameWord::State, FrameWord::Owner] {
        for is_free in [false, true] {
            let mut rig = Rig::new(FRAMES);
            rig.join(0);
            let page = rig.alloc(0, PAGE, false);
            let other = rig.alloc(0, PAGE, false);
            let frame = rig.world.offset_of(page) / PAGE;
            if is_free {
                rig.free(0, page, PAGE);
                rig.quiesce();
            }
            rig.daemon = None;
            lose(&rig.world, frame_word(FrameIndex(frame as u32), word));
            rig.live.remove(&page.0);
            rig.start();
            assert_eq!(checks(&rig).damaged, 1);
            let stats = told(&rig);
            assert_eq!(stats.frames_free, u64::from(FRAMES) - 2, "neither of both is free");
            for _ in 0..FRAMES - 2 {
                let addr = rig.alloc(0, PAGE, false);
                assert_ne!(rig.world.offset_of(addr) / PAGE, frame);
            }
            let full = rig.ask(0, Request::Alloc { bytes: PAGE, kind: AllocationKind::User });
            assert!(matches!(full, Err(Error::Full { .. })), "{full:?}");
            if !is_free {
                let freed = rig.ask(0, Request::Free { addr: page, bytes: PAGE });
                assert!(freed.is_err(), "{freed:?}");
                let word = rig.world.table_word(FrameIndex(frame as u32));
                assert_ne!(word, 0, "by its place it may be read");
            }
            rig.free(0, other, PAGE);
            rig.verify();
        }
    }
}

#[test]
fn of_a_slab_page_with_a_lost_word_nothing_is_given_out_and_what_lives_stays() {
    for restarts in [false, true] {
        let mut rig = Rig::new(FRAMES);
        rig.join(0);
        let objects: Vec<GAddr> = (0..10).map(|_| rig.alloc(0, 64, false)).collect();
        let page = objects[0].0 / PAGE;
        if restarts {
            rig.daemon = None;
        }
        lose(&rig.world, rig.world.layout.bitmap_offset(FrameIndex(0)));
        if restarts {
            rig.start();
        }
        for _ in 0..10 {
            assert_ne!(rig.alloc(0, 64, false).0 / PAGE, page, "another page serves");
        }
        scrub(&mut rig);
        assert_eq!(checks(&rig).damaged, 1);
        let freed = rig.ask(0, Request::Free { addr: objects[0], bytes: 64 });
        let error = freed.expect_err("nothing says that it lives");
        assert!(error.to_string().contains("damaged"), "{error}");
        for addr in objects {
            // Their bytes can be read.
            assert!(rig.world.offset_of(addr) < PAGE);
        }
    }
}

#[test]
fn a_table_word_follows_from_its_entry() {
    let mut rig = furnished();
    let words: Vec<u64> =
        (0..FRAMES).map(|frame| rig.world.table_word(FrameIndex(frame))).collect();
    for (frame, bit) in (0..FRAMES).flat_map(|frame| (0..64).map(move |bit| (frame, bit))) {
        let at = table_word(FrameIndex(frame));
        rig.world.table_mem().poke(at, words[frame as usize] ^ 1 << bit);
        if bit % 2 == 0 {
            scrub(&mut rig);
        } else {
            rig.daemon = None;
            rig.start();
        }
        let high = rig.world.private().peek(StateWord::FramesHigh.offset());
        if u64::from(frame) < high {
            assert_eq!(rig.world.table_word(FrameIndex(frame)), words[frame as usize], "{bit}");
        } else {
            rig.world.table_mem().poke(at, 0);
        }
    }
    rig.finish();
}

#[test]
fn without_the_other_copies_a_flipped_bit_gives_an_object_out_twice() {
    let fails = |mutation: Option<Mutation>| {
        let run = || {
            let mut rig = Rig::new(FRAMES);
            rig.world.fuse.answers.mutation.set(mutation);
            rig.join(0);
            for _ in 0..5 {
                rig.alloc(0, 64, false);
            }
            flip(&rig.world, rig.world.layout.bitmap_offset(FrameIndex(0)), 0, 2);
            rig.alloc(0, 64, false);
            rig.finish();
        };
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    assert!(!fails(None), "the scenario itself is right");
    assert!(fails(Some(Mutation::TrustOneCopy)), "nothing was changed");
}
