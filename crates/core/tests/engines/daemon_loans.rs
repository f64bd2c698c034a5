//! Objects that handles hand out themselves: whichever process dies when, what was handed out has
//! one owner and what was not is free, once.

use crate::daemon_world::loans::OBJECT;
use crate::daemon_world::{Rig, travel};
use rackpool_core::Error;
use rackpool_core::constants::{LEND_OBJECTS_MAX, LOAN_IDLE_NS, LOANS_MAX};
use rackpool_core::layout::{AllocationKind, LoanWord, loan_word};
use rackpool_core::wire::{AuditRequest, LoanReply, LoanRequest, Reply, Request};

const USER: AllocationKind = AllocationKind::User;

/// A handle allocates, frees and dies; another one follows it.
fn some_lives(rig: &mut Rig) {
    rig.join_with_slot(0);
    rig.join_with_slot(1);
    let single = rig.alloc(0, OBJECT, false);
    let groups = rig.lend(0, USER, 70);
    // If the daemon died meanwhile, its repeated answer is about what was left to lend.
    let mut taken = Vec::new();
    for group in groups.iter().take(2) {
        if rig.loan(0, group.loan).is_lent() {
            taken.push((*group, rig.take_lent(0, group)));
        }
    }
    rig.queue_free(0, 0, single);
    if let Some((group, addr)) = taken.pop() {
        rig.put_lent(0, &group, addr);
    }
    rig.empty_queue(0);
    if let Some((_, addr)) = taken.pop() {
        // Another client frees it: the loan ends.
        rig.free(1, addr, OBJECT);
    }
    if let Some(group) = rig.lend(0, USER, 1).first() {
        let last = rig.take_lent(0, group);
        rig.queue_free(0, 1, last);
        rig.begin_take(0, group);
    }
    rig.kill(0);
    rig.verify();
    if let Some(group) = rig.lend(1, USER, 1).first() {
        rig.take_lent(1, group);
    }
}

#[test]
fn what_is_lent_comes_back_or_has_one_owner_whenever_the_daemon_dies() {
    for effects in 0.. {
        let mut rig = Rig::new(8);
        rig.world.fuse.arm(effects);
        some_lives(&mut rig);
        rig.world.fuse.disarm();
        let is_over = !rig.world.fuse.burnt.get();
        rig.finish();
        if is_over {
            assert!(effects > 100, "{effects} effects");
            return;
        }
    }
}

#[test]
fn a_batch_has_as_many_objects_as_were_asked_for_and_the_bitmap_has_all_of_them() {
    let mut rig = Rig::with_pages(1 << 16, 8);
    rig.join_with_slot(0);
    let single = rig.alloc(0, OBJECT, false);
    let groups = rig.lend(0, USER, u32::MAX);
    let free: u32 = groups.iter().map(|group| rig.loan(0, group.loan).free().count_ones()).sum();
    // The first group has one object less than others.
    assert_eq!(free, LEND_OBJECTS_MAX + 31);
    assert_eq!(rig.daemon.as_ref().unwrap().stats(&rig.world).allocations, 1, "none is in use");
    rig.join(1);
    let other = rig.alloc(1, OBJECT, false);
    assert!(groups.iter().all(|group| other.0 - group.addr.0 >= 32 * OBJECT), "{other} is lent");
    // What the handle frees twice, another client cannot have got.
    let addr = rig.take_lent(0, &groups[1]);
    assert!(rig.put_lent(0, &groups[1], addr));
    let again = rig.ask(1, Request::Free { addr, bytes: OBJECT });
    assert!(matches!(again, Err(Error::BadFree { .. })), "{again:?}");
    assert!(!rig.loan(0, groups[1].loan).is_lent(), "only without the loan the bitmap tells");
    rig.free(1, single, OBJECT);
    rig.finish();
}

#[test]
fn a_loan_that_is_left_alone_ends_after_a_second() {
    let mut rig = Rig::new(8);
    rig.join_with_slot(0);
    rig.alloc(0, OBJECT, false);
    let groups = rig.lend(0, USER, 1);
    let addr = rig.take_lent(0, &groups[0]);
    for _ in 0..10 {
        rig.now += LOAN_IDLE_NS;
        rig.turn();
    }
    assert_eq!(rig.loan(0, groups[0].loan).0, 0);
    rig.free(0, addr, OBJECT);
    rig.finish();
}

#[test]
fn a_page_leaves_without_loans_and_with_what_waited_freed() {
    let mut rig = Rig::new(8);
    rig.join_with_slot(0);
    rig.join(1);
    let single = rig.alloc(0, OBJECT, false);
    let group = rig.lend(0, USER, 1)[0];
    let kept = rig.take_lent(0, &group);
    rig.empty_queue(0);
    rig.queue_free(0, 0, single);
    // While an object is being handed out its page stays.
    let (addr, index) = rig.begin_take(0, &group);
    let stays = travel::move_out(&mut rig, 1, kept);
    assert!(matches!(stays, Err(Error::Stays { .. })), "{stays:?}");
    let word = loan_word(group.loan, LoanWord::Free);
    let state = rig.section(0).peek(word);
    rig.section(0).poke(word, state.wrapping_add(rackpool_core::loan::LoanState::taken(index)));
    rig.born(addr, OBJECT, None);
    let away = travel::send_away(&mut rig, 1, kept);
    let live: u32 = away.keep.objects.iter().map(|word| word.count_ones()).sum();
    assert_eq!(live, 2, "what was handed out");
    travel::bring_back(&mut rig, 1, &away);
    rig.finish();
}

#[test]
fn loans_count_for_the_quota_and_end_for_another_handle_of_the_process() {
    let mut rig = Rig::new(8);
    rig.join_with_slot(0);
    rig.join(1);
    rig.run(|daemon, world| daemon.set_client_quota(Some(100 * OBJECT), world));
    rig.alloc(0, OBJECT, false);
    let groups = rig.lend(0, USER, LEND_OBJECTS_MAX);
    let free: u32 = groups.iter().map(|group| rig.loan(0, group.loan).free().count_ones()).sum();
    assert!((32..100).contains(&free), "{free}");
    for _ in 0..80 {
        rig.alloc(1, OBJECT, false);
    }
    let groups = rig.lend(0, USER, LEND_OBJECTS_MAX);
    let free: u32 = groups.iter().map(|group| rig.loan(0, group.loan).free().count_ones()).sum();
    assert!(free <= 19, "{free} of 19 that are left");
    let mut refused = 0;
    for _ in 0..30 {
        let alloc = Request::Alloc { bytes: OBJECT, kind: USER };
        refused += u32::from(matches!(rig.ask(1, alloc), Err(Error::Quota { .. })));
    }
    assert_eq!(refused, 11, "100 in all");
    rig.finish();
}

#[test]
fn memory_that_is_lent_is_given_to_others_for_want_of_it() {
    let mut rig = Rig::new(2);
    rig.join_with_slot(0);
    let single = rig.alloc(0, OBJECT, false);
    assert!(!rig.lend(0, USER, LEND_OBJECTS_MAX).is_empty());
    rig.free(0, single, OBJECT);
    rig.join(1);
    rig.alloc(1, 2 * crate::daemon_world::PAGE, false);
    rig.finish();
}

#[test]
fn an_audit_judges_nothing_that_a_handle_may_hand_out() {
    let mut rig = Rig::new(8);
    rig.join_with_slot(0);
    let table = AllocationKind::Table;
    let alloc = Request::Alloc { bytes: OBJECT, kind: table };
    let Ok(Reply::Allocated { addr }) = rig.ask(0, alloc) else { panic!("there is room") };
    let group = rig.lend(0, table, 1)[0];
    let lost = rig.take_lent(0, &group);
    rig.empty_queue(0);
    rig.queue_free(0, 0, addr);
    let Ok(Reply::Audit(begun)) = rig.ask(0, Request::Audit(AuditRequest::Begin)) else {
        panic!("a watch begins")
    };
    let rackpool_core::wire::AuditReply::Begun { watch } = begun else { panic!("{begun:?}") };
    assert!(!rig.loan(0, group.loan).is_lent());
    // What is lent from now on was free when the watch began.
    let group = rig.lend(0, table, 1)[0];
    let new = rig.take_lent(0, &group);
    let judged = rig.ask(0, Request::Reclaim { addr: new, watch });
    assert!(matches!(judged, Err(Error::BadFree { .. })), "{judged:?}");
    // One that its owner frees is not lost, though no table names it.
    rig.queue_free(0, 0, lost);
    let reclaimed = rig.ask(0, Request::Reclaim { addr: lost, watch });
    assert!(matches!(reclaimed, Err(Error::BadFree { .. })), "{reclaimed:?}");
    rig.ask(0, Request::Audit(AuditRequest::End { watch })).unwrap();
    rig.finish();
}

#[test]
fn words_of_a_slot_that_make_no_sense_free_nothing_and_break_nothing() {
    let mut rig = Rig::new(8);
    rig.join_with_slot(0);
    rig.alloc(0, OBJECT, false);
    let group = rig.lend(0, USER, 1)[0];
    for at in (0..LOANS_MAX as u16).step_by(7).filter(|loan| *loan != group.loan) {
        rig.section(0).poke(loan_word(at, LoanWord::Group), u64::MAX / (u64::from(at) + 1));
        rig.section(0).poke(loan_word(at, LoanWord::Free), u64::MAX);
    }
    rig.section(0).poke(rackpool_core::layout::free_queue_word(5), 12_345);
    let ended = LoanRequest::End { loans: (0..200).collect() };
    assert_eq!(rig.ask(0, Request::Loan(ended)), Ok(Reply::Loan(LoanReply::Ended)));
    rig.empty_queue(0);
    rig.loses = true;
    rig.world.fuse.arm(0);
    rig.join(1);
    rig.verify();
    rig.finish();
}
