//! The daemon dies at every single effect of a script, and is attached again over the same bytes:
//! nothing acknowledged is lost, nothing overlaps, nothing is applied twice, nothing leaks.

use crate::daemon_world::{PAGE, Rig};
use rackpool_core::constants::COMMIT_PAGES_MAX;
use rackpool_core::layout::AllocationKind;
use rackpool_core::wire::Request;

/// Slab objects, runs, owned and unconsumed allocations, atomics, frees, leaves, in one life.
fn script(rig: &mut Rig) {
    rig.join(0);
    rig.join(1);
    let small = rig.alloc(0, 64, false);
    let odd = rig.alloc(0, 100, false);
    rig.alloc(1, 64, true);
    let run = rig.alloc(1, 3 * PAGE - 5, false);
    rig.alloc(0, 2 * PAGE, true);
    for n in [5, 7] {
        rig.ask(0, Request::FetchAdd { addr: small, n }).ok();
    }
    let expected = rig.words[&small.0];
    rig.ask(1, Request::Cas { addr: small, expected, new: 99 }).ok();
    rig.ask(1, Request::Cas { addr: small, expected: 1, new: 2 }).ok();
    rig.free(0, odd, 100);
    rig.alloc(0, 128, false);
    let halves: Vec<_> = (0..4).map(|_| rig.alloc(0, PAGE / 2, false)).collect();
    for half in &halves {
        rig.free(1, *half, PAGE / 2);
    }
    rig.submit(0, Request::Alloc { bytes: 1024, kind: AllocationKind::User });
    rig.submit(1, Request::Alloc { bytes: 1024, kind: AllocationKind::User });
    rig.settle();
    rig.free(0, run, 3 * PAGE - 5);
    rig.kill(1);
    rig.join(2);
    rig.clients.get_mut(&2).unwrap().consumes = false;
    rig.ask(2, Request::Alloc { bytes: 64, kind: AllocationKind::User }).unwrap();
    rig.kill(2);
    rig.join(3);
    rig.clients.get_mut(&3).unwrap().consumes = false;
    rig.ask(3, Request::Alloc { bytes: 2 * PAGE, kind: AllocationKind::User }).unwrap();
    rig.kill(3);
    rig.join(4);
    rig.submit(4, Request::Alloc { bytes: 2 * PAGE, kind: AllocationKind::User });
    rig.kill(4);
    rig.join_remote(5);
    rig.alloc(5, 256, true);
    rig.ask(5, Request::FetchAdd { addr: small, n: 1 }).ok();
    rig.alloc(5, PAGE, false);
    rig.verify();
}

/// Allocations that words name, and their frees, by clients that live, give up and die.
fn words_script(rig: &mut Rig) {
    rig.join(0);
    rig.join(1);
    let words: Vec<_> = (0..4).map(|_| rig.alloc(0, 64, false)).collect();
    rig.alloc_into(0, words[0], 64);
    rig.alloc_into(1, words[1], 3 * PAGE - 5);
    rig.alloc_into(0, words[2], PAGE / 2);
    rig.ask(1, Request::AllocInto { word: words[0], bytes: 64 }).unwrap_err();
    rig.free_from(1, words[0], 64);
    rig.free_from(0, words[1], 3 * PAGE - 5);
    rig.submit(0, Request::AllocInto { word: words[0], bytes: 2 * PAGE });
    rig.submit(1, Request::AllocInto { word: words[0], bytes: 2 * PAGE });
    rig.settle();
    rig.submit(1, Request::AllocInto { word: words[1], bytes: PAGE });
    rig.turn();
    rig.kill(1);
    rig.join(2);
    rig.submit(2, Request::AllocInto { word: words[3], bytes: 256 });
    rig.kill(2);
    rig.join(3);
    rig.submit(3, Request::FreeFrom { word: words[2], bytes: PAGE / 2 });
    rig.kill(3);
    rig.join(4);
    rig.submit(4, Request::FreeFrom { word: words[0], bytes: 2 * PAGE });
    rig.kill(4);
    rig.join_remote(5);
    let inner = rig.alloc_into(5, rig.empty_word(&words), 128);
    rig.alloc_into(5, inner, PAGE);
    rig.free_from(5, inner, PAGE);
    let given = rig.alloc(5, 64, false);
    let expected = rig.words[&inner.0];
    rig.ask(5, Request::Cas { addr: inner, expected, new: given.0 }).ok();
    if rig.words[&inner.0] == given.0 {
        rig.free_from(0, inner, 64);
    }
    rig.verify();
}

/// Runs the script with a crash before effect `at`; whether it came to that.
fn run_with_crash(script: fn(&mut Rig), at: u64, loses: bool, second: Option<u64>) -> (bool, u32) {
    let mut rig = Rig::new(24);
    rig.loses = loses;
    rig.second_crash = second;
    rig.world.fuse.arm(at);
    script(&mut rig);
    let (crashed, unknown) = (rig.restarts > 0, rig.unknown);
    rig.world.fuse.disarm();
    rig.finish();
    (crashed, unknown)
}

#[test]
fn a_crash_at_any_effect_loses_nothing_doubles_nothing_and_leaks_nothing() {
    let mut unknown = 0;
    let mut effects = 0;
    for at in 0.. {
        let delivered = run_with_crash(script, at, false, None);
        let lost = run_with_crash(script, at, true, None);
        unknown += delivered.1 + lost.1;
        if !delivered.0 && !lost.0 {
            effects = at;
            break;
        }
    }
    println!("{effects} effects, {unknown} outcomes unknown");
    assert!(effects > 600, "the script has only {effects} effects");
    assert!(unknown > 0, "a crash inside an atomic is told");
}

#[test]
fn a_crash_at_any_effect_leaves_a_word_and_its_allocation_both_or_none() {
    let mut effects = 0;
    for at in 0.. {
        let delivered = run_with_crash(words_script, at, false, None);
        let lost = run_with_crash(words_script, at, true, None);
        if !delivered.0 && !lost.0 {
            effects = at;
            break;
        }
    }
    println!("{effects} effects");
    assert!(effects > 600, "the script has only {effects} effects");
}

#[test]
fn a_second_crash_while_attaching_changes_nothing() {
    for at in (0..).step_by(7) {
        let mut crashed = false;
        for second in [0, 1, 2, 3, 5, 8, 13, 21] {
            crashed |= run_with_crash(script, at, at % 2 == 0, Some(second)).0;
            crashed |= run_with_crash(words_script, at, at % 2 == 0, Some(second)).0;
        }
        if !crashed {
            assert!(at > 600, "the scripts have only {at} effects");
            return;
        }
    }
}

#[test]
fn a_run_of_many_chunks_is_there_as_a_whole_or_not_at_all() {
    let pages = 2 * COMMIT_PAGES_MAX + 100;
    let bytes = u64::from(pages) * PAGE;
    let script = |rig: &mut Rig| {
        rig.join(0);
        let run = rig.alloc(0, bytes, false);
        rig.verify();
        rig.free(0, run, bytes);
    };
    // About 4 stores a page to mark it, 1 to commit, 2 to free; a spread over all of them.
    let effects = u64::from(pages) * 12;
    let mut crashes = 0;
    for step in 0..23 {
        let mut rig = Rig::new(pages + 10);
        rig.loses = step % 2 == 0;
        rig.world.fuse.arm(effects * step / 23 + step);
        script(&mut rig);
        crashes += u32::from(rig.restarts > 0);
        rig.world.fuse.disarm();
        rig.finish();
    }
    assert!(crashes >= 20, "{crashes} of 23 crashes came");
}
