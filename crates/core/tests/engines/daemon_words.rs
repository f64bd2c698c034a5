//! Allocations that a word names: refusals are typed and change nothing, and a word that changes or
//! goes while its allocation is under way does no harm.

use crate::daemon_world::{PAGE, RACK, Rig, TestWorld};
use rackpool_core::daemon::{Daemon, World};
use rackpool_core::layout::{REDO_HEADER_BYTES, REDO_OFFSET, REDO_PAGES_TAG};
use rackpool_core::seam::Mem;
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{Error, GAddr};

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> &'static str {
    result.unwrap_err().code()
}

fn into(word: GAddr, bytes: u64) -> Request {
    Request::AllocInto { word, bytes }
}

fn from(word: GAddr, bytes: u64) -> Request {
    Request::FreeFrom { word, bytes }
}

#[test]
fn words_that_cannot_hold_an_address_are_refused_and_nothing_changes() {
    let mut rig = Rig::new(16);
    rig.join(0);
    let word = rig.alloc(0, 64, false);
    let freed = rig.alloc(0, 64, false);
    rig.free(0, freed, 64);
    let at = |offset: u64| GAddr(word.0 + offset);
    assert_eq!(code(rig.ask(0, into(GAddr::NULL, 64))), "not-mapped");
    assert_eq!(code(rig.ask(0, into(at(4), 64))), "misaligned");
    assert_eq!(code(rig.ask(0, into(freed, 64))), "not-mapped");
    assert_eq!(code(rig.ask(0, into(at(100 * PAGE), 64))), "not-mapped");
    assert_eq!(code(rig.ask(0, into(word, 0))), "bad-size");
    assert_eq!(code(rig.ask(0, into(word, 100 * PAGE))), "full");
    assert_eq!(code(rig.ask(0, into(at(8), 64))), "occupied");
    assert_eq!(code(rig.ask(0, from(GAddr::NULL, 64))), "not-mapped");
    assert_eq!(code(rig.ask(0, from(at(4), 64))), "misaligned");
    assert_eq!(code(rig.ask(0, from(word, 64))), "bad-free");
    rig.alloc_into(0, word, 2 * PAGE);
    assert_eq!(code(rig.ask(0, into(word, 64))), "occupied");
    assert_eq!(code(rig.ask(0, from(word, PAGE))), "bad-free");
    assert_eq!(code(rig.ask(0, from(word, 64))), "bad-free");
    rig.verify();
    rig.free_from(0, word, 2 * PAGE);
    rig.finish();
}

#[test]
fn a_word_inside_what_it_names_is_refused() {
    let mut rig = Rig::new(16);
    rig.join(0);
    for bytes in [64, 2 * PAGE] {
        let own = rig.alloc(0, bytes, false);
        let offset = rig.world.offset_of(own);
        rig.world.pages().poke(offset, own.0);
        rig.words.insert(own.0, own.0);
        assert_eq!(code(rig.ask(0, from(own, bytes))), "bad-free");
        rig.born_again(own, bytes);
        rig.verify();
    }
    rig.finish();
}

#[test]
fn a_word_that_fills_while_its_pages_are_on_their_way_keeps_what_it_got() {
    let mut rig = Rig::new(16);
    rig.join(0);
    let word = rig.alloc(0, 64, false);
    rig.submit(0, into(word, 2 * PAGE));
    let offset = rig.world.offset_of(word);
    rig.world.pages().poke(offset, 77);
    rig.words.insert(word.0, 77);
    rig.settle();
    let found = rig.clients.get_mut(&0).unwrap().last.take().unwrap();
    assert_eq!(found, Err(Error::Occupied { addr: word, found: 77 }));
    rig.verify();
    rig.quiesce();
    assert_eq!(rig.daemon.as_ref().unwrap().frames_free(), 15, "the pages came back");
    rig.finish();
}

#[test]
fn a_word_that_goes_while_its_pages_are_on_their_way_takes_them_with_it() {
    let mut rig = Rig::new(16);
    rig.join(0);
    rig.join(1);
    for bytes in [2 * PAGE, 1024] {
        let word = rig.alloc(0, PAGE, false);
        rig.submit(0, into(word, bytes));
        rig.submit(1, Request::Free { addr: word, bytes: PAGE });
        rig.settle();
        let found = rig.clients.get_mut(&0).unwrap().last.take().unwrap();
        assert_eq!(code(found), "not-mapped");
        rig.verify();
    }
    rig.finish();
}

#[test]
fn of_two_who_fill_one_word_one_is_refused_and_both_know() {
    for bytes in [64, 2 * PAGE] {
        let mut rig = Rig::new(16);
        rig.join(0);
        rig.join(1);
        let word = rig.alloc(0, 64, false);
        rig.submit(0, into(word, bytes));
        rig.submit(1, into(word, bytes));
        rig.settle();
        let last = |rig: &mut Rig, name| rig.clients.get_mut(&name).unwrap().last.take().unwrap();
        let (first, second) = (last(&mut rig, 0), last(&mut rig, 1));
        assert!(matches!(first, Ok(Reply::Allocated { .. })), "{first:?}");
        assert_eq!(code(second), "occupied");
        rig.verify();
        rig.finish();
    }
}

#[test]
fn what_a_word_names_stays_when_nobody_took_the_answer() {
    let mut rig = Rig::new(16);
    rig.join(0);
    let word = rig.alloc(0, 64, false);
    rig.join(1);
    rig.clients.get_mut(&1).unwrap().consumes = false;
    let addr = rig.alloc_into(1, word, 64);
    rig.kill(1);
    assert_eq!(rig.word(word), addr.0);
    rig.verify();
    rig.free_from(0, word, 64);
    rig.finish();
}

/// A region with a committed redo record that stores `value` at `offset`.
fn attach_with_redo(stores: &[(u64, u64)], prepare: impl Fn(&mut Rig)) -> Result<Rig, Error> {
    let mut rig = Rig::new(4);
    rig.join(0);
    prepare(&mut rig);
    let private = rig.world.private();
    let sequence = private.load(REDO_OFFSET);
    let mut bytes = sequence.to_le_bytes().to_vec();
    bytes.extend((stores.len() as u64).to_le_bytes());
    for (index, (offset, value)) in stores.iter().enumerate() {
        let entry = REDO_OFFSET + REDO_HEADER_BYTES + 16 * index as u64;
        private.poke_copies(entry, *offset);
        private.poke_copies(entry + 8, *value);
        bytes.extend(offset.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    private.poke_copies(REDO_OFFSET + 8, stores.len() as u64);
    private.poke_copies(REDO_OFFSET + 16, xxhash_rust::xxh3::xxh3_64(&bytes));
    rig.daemon = Some(Daemon::attach(&mut rig.world, RACK, None)?);
    Ok(rig)
}

#[test]
fn a_redo_record_stores_only_into_pages_that_live() {
    let alloc = |rig: &mut Rig| {
        rig.alloc(0, PAGE, false);
    };
    let rig = attach_with_redo(&[(16 | REDO_PAGES_TAG, 5)], alloc).unwrap();
    assert_eq!(rig.world.pages().peek(16), 5);
    let outside = |offset: u64| {
        let code = attach_with_redo(&[(offset | REDO_PAGES_TAG, 5)], alloc).map(|_| ());
        assert_eq!(code.unwrap_err().code(), "bad-region", "{offset:#x}");
    };
    for offset in [PAGE, 4 * PAGE, !7, 20, 1 << 44] {
        outside(offset);
    }
    let nothing = attach_with_redo(&[(16 | REDO_PAGES_TAG, 5)], |_| ()).map(|_| ());
    assert_eq!(nothing.unwrap_err().code(), "bad-region");
}

#[test]
fn a_torn_redo_record_stores_nothing_into_pages() {
    let mut world = TestWorld::formatted(4);
    let entry = REDO_OFFSET + REDO_HEADER_BYTES;
    world.private().poke_copies(entry, REDO_PAGES_TAG);
    world.private().poke_copies(entry + 8, 5);
    world.private().poke_copies(REDO_OFFSET + 8, 1);
    world.private().poke_copies(REDO_OFFSET + 16, 1234);
    Daemon::attach(&mut world, RACK, None).unwrap();
    assert_eq!(world.pages().peek(0), 0);
}
