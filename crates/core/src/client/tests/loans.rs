//! What a handle does with what it was lent: nothing is sent as long as there is something.

use super::*;
use crate::constants::{FREE_QUEUE, MAGAZINE_BEGIN, MAGAZINE_BYTES_MAX};
use crate::layout::{LoanWord, SLOT_BYTES, free_queue_word, loan_word};
use crate::loan::{LENT, LoanState, object_word};
use crate::wire::{LentGroup, LoanRequest};

const BYTES: u64 = 64;
const SHIFT: u8 = 6;
const KIND: AllocationKind = AllocationKind::User;

/// A client with a whole slot; page p is in frame p with generation p + 1000.
fn with_slot(mutation: Option<Mutation>) -> (RackView<TestMem>, Client<TestMem>) {
    let mut own = view();
    own.slot = TestMem::new(SLOT_BYTES);
    own.slot.1 = mutation;
    for frame in 1..FRAMES {
        own.table.store(table_word(FrameIndex(frame)), u64::from(frame) + 1000);
    }
    let client = Client::new(RackId(0), Reach::Mapped(own.clone()), 64);
    (own, client)
}

fn free_word(loan: u16) -> u64 {
    loan_word(loan, LoanWord::Free)
}

/// The daemon lends a group: its objects by bits.
fn lend(
    (own, client): &mut (RackView<TestMem>, Client<TestMem>),
    (loan, addr, shift): (u16, GAddr, u8),
    free: u64,
) {
    own.slot.store(loan_word(loan, LoanWord::Group), object_word(addr, shift));
    own.slot.store(free_word(loan), free | LENT);
    let page = client.geometry().page(addr).0;
    let (frame, generation) = (FrameIndex((page % 16) as u32), Generation(page + 1000));
    let group = LentGroup { loan, addr, frame, generation };
    assert_eq!(client.on_lent(OWN, 1 << shift, KIND, &[group]), Ok(true));
}

#[test]
fn an_object_is_handed_out_zeroed_and_freed_once() {
    let taken = |mutation| {
        let mut both = with_slot(mutation);
        lend(&mut both, (3, addr(1, 2048), SHIFT), 0b10);
        let (own, mut client) = both;
        let at = PAGE + 2048 + BYTES;
        own.pages.store(at, 77);
        assert_eq!(client.take_object(OWN, BYTES, KIND), Take::Taken(addr(1, 2048 + BYTES)));
        assert_eq!(LoanState(own.slot.load(free_word(3))), LoanState(LENT));
        assert_eq!(client.take_object(OWN, BYTES, KIND), Take::Nothing);
        (own.pages.load(at), own, client)
    };
    assert_eq!(taken(Some(Mutation::TakeUnzeroed)).0, 77);
    let (word, own, mut client) = taken(None);
    assert_eq!(word, 0);
    let object = addr(1, 2048 + BYTES);
    assert_eq!(client.free_object(object, BYTES), LocalFree::Done);
    assert_eq!(LoanState(own.slot.load(free_word(3))).free(), 0b10);
    let again = client.free_object(object, BYTES);
    assert!(matches!(again, LocalFree::Bad(Error::BadFree { .. })), "{again:?}");
    // What it did not get, of another size, or inside an object, is the daemon's to say.
    for (wrong, bytes) in [(addr(1, 2048), BYTES), (object, 2 * BYTES), (addr(1, 2052), BYTES)] {
        assert_eq!(client.free_object(wrong, bytes), LocalFree::Ask, "{wrong} {bytes}");
    }
    // A steady mix finds what it needs.
    for _ in 0..1000 {
        assert_eq!(client.take_object(OWN, 50, KIND), Take::Taken(object));
        assert_eq!(client.free_object(object, 50), LocalFree::Done);
    }
}

#[test]
fn what_was_given_for_itself_is_freed_into_the_loan_that_follows() {
    let mut both = with_slot(None);
    both.1.note_single(OWN, addr(1, BYTES), BYTES);
    lend(&mut both, (0, addr(1, 0), SHIFT), 0b100);
    let (own, mut client) = both;
    assert_eq!(client.free_object(addr(1, BYTES), BYTES), LocalFree::Done);
    assert_eq!(LoanState(own.slot.load(free_word(0))).free(), 0b110);
    assert_eq!(client.free_object(addr(1, 0), BYTES), LocalFree::Ask);
}

#[test]
fn nothing_is_taken_from_a_loan_that_has_ended_nor_freed_there() {
    let after_the_end = |mutation| {
        let mut both = with_slot(mutation);
        lend(&mut both, (0, addr(1, 0), SHIFT), 0b11);
        let (own, mut client) = both;
        let Take::Taken(first) = client.take_object(OWN, BYTES, KIND) else { panic!("it is lent") };
        own.slot.store(free_word(0), 0);
        let take = client.take_object(OWN, BYTES, KIND);
        let free = client.free_object(first, BYTES);
        (take, free, own.slot.load(free_word(0)))
    };
    assert_eq!(after_the_end(None), (Take::Nothing, LocalFree::Ask, 0));
    assert_ne!(after_the_end(Some(Mutation::TakeUnlent)).0, Take::Nothing);
}

#[test]
fn a_page_that_is_not_known_is_asked_for_and_one_with_replicas_is_left() {
    let mut both = with_slot(None);
    lend(&mut both, (0, addr(1, 0), SHIFT), 0b11);
    let (own, mut client) = both;
    client.forget(PageId(1));
    assert_eq!(client.take_object(OWN, BYTES, KIND), Take::Unknown(addr(1, 0)));
    let shared = Generation(1001).shared();
    own.table.store(table_word(FrameIndex(1)), shared.0);
    client.install(OWN, &[home(1, 0, 1, shared.0)]).unwrap();
    assert_eq!(client.take_object(OWN, BYTES, KIND), Take::Nothing);
    assert_eq!(LoanState(own.slot.load(free_word(0))), LoanState(LENT | 0b11));
}

#[test]
fn frees_of_others_objects_wait_once_there_are_many() {
    let (own, mut client) = with_slot(None);
    client.install(OWN, &[home(2, 0, 2, 1002)]).unwrap();
    for _ in 0..MAGAZINE_BEGIN {
        assert_eq!(client.free_object(addr(2, 0), BYTES), LocalFree::Ask);
    }
    assert_eq!(client.free_object(addr(2, 0), BYTES), LocalFree::QueueFull(OWN));
    client.queue_emptied(OWN, true);
    for index in 0..u64::from(FREE_QUEUE) {
        assert_eq!(client.free_object(addr(2, BYTES * (index % 64)), BYTES), LocalFree::Done);
        let word = own.slot.load(free_queue_word(index as u32));
        assert_eq!(word, object_word(addr(2, BYTES * (index % 64)), SHIFT));
    }
    assert_eq!(client.free_object(addr(2, 0), BYTES), LocalFree::QueueFull(OWN));
    own.slot.store(free_queue_word(0), 0);
    // Not for a page that is elsewhere by now.
    own.table.store(table_word(FrameIndex(2)), 0);
    assert_eq!(client.free_object(addr(2, 0), BYTES), LocalFree::Ask);
    assert_eq!(own.slot.load(free_queue_word(0)), 0);
}

#[test]
fn what_is_free_beyond_the_bound_is_given_back() {
    let mut both = with_slot(None);
    let (shift, in_group) = (10, 4);
    // Pages of 4 KiB hold four objects of 1 KiB.
    let groups = (MAGAZINE_BYTES_MAX >> shift) / in_group + 1;
    for loan in 0..groups {
        let at = addr(1 + loan % 15, 0);
        lend(&mut both, (loan as u16, GAddr(at.0 + (loan / 15) * 16 * PAGE), shift), 0);
    }
    let (own, mut client) = both;
    for loan in 0..groups {
        own.slot.store(free_word(loan as u16), LENT | 0b1111);
    }
    let Some(LoanRequest::End { loans }) = client.end_request(OWN) else { panic!("too much") };
    let left_bytes = (groups - loans.len() as u64) * (in_group << shift);
    assert!(left_bytes <= MAGAZINE_BYTES_MAX / 2, "{left_bytes}");
    client.on_ended(OWN);
    assert_eq!(client.end_request(OWN), None);
}
