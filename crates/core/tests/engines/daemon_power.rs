//! The power goes at every single effect of a script, in memory that persists: of each word that
//! was not made durable since, any version that it had is left. Whatever was acknowledged is there,
//! nothing overlaps, and what is handed out afterwards is zero.

use crate::daemon_images::is_thorough;
use crate::daemon_world::{Crash, Durability, PAGE, Rig};
use rackpool_core::layout::{FRAMES_OFFSET, SESSIONS_OFFSET};
use rackpool_core::persist::{PersistError, PersistenceDomain};
use rackpool_core::seam::Mutation;
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{Error, GAddr};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// What dropping sessions and locks takes: 16 words of one copy are an effect.
const EFFECTS_OF_DROP: u64 = 3 * (FRAMES_OFFSET - SESSIONS_OFFSET) / 128;

/// Words that atomics have changed: what was acknowledged as durable, or nothing that is known.
type Counted = BTreeMap<u64, Option<u64>>;

/// Adds to a word; a daemon that is killed meanwhile may have done it or not.
fn add(rig: &mut Rig, addr: GAddr, n: u64) {
    match rig.ask(0, Request::FetchAdd { addr, n }) {
        Ok(_) => {}
        Err(Error::OutcomeUnknown { .. }) => {
            let found = rig.world.pages_mem().peek(rig.world.offset_of(addr));
            rig.words.insert(addr.0, found);
        }
        Err(error) => panic!("{error}"),
    }
}

/// Slab objects, runs and what sessions own, frees, words that name allocations, atomics that are
/// made durable and others that are not.
fn script(rig: &mut Rig, counted: &mut Counted) {
    rig.join(0);
    rig.join(1);
    let small = rig.alloc(0, 64, false);
    let second = rig.alloc(0, 64, false);
    rig.alloc(1, 64, true);
    let run = rig.alloc(1, 3 * PAGE - 5, false);
    rig.alloc(0, 2 * PAGE, true);
    for n in [5, 7] {
        counted.insert(small.0, None);
        add(rig, small, n);
        let kept = rig.words[&small.0];
        assert_eq!(rig.ask(1, Request::Persist { addr: small, bytes: 8 }), Ok(Reply::Persisted));
        counted.insert(small.0, Some(kept));
    }
    counted.insert(second.0, None);
    add(rig, second, 9);
    // Its place is handed out again, zeroed.
    rig.free(0, second, 64);
    counted.remove(&second.0);
    rig.alloc(1, 64, false);
    let word = rig.alloc(0, 64, false);
    rig.alloc_into(0, word, 128);
    rig.free_from(1, word, 128);
    rig.alloc_into(0, word, PAGE);
    let halves: Vec<GAddr> = (0..4).map(|_| rig.alloc(0, PAGE / 2, false)).collect();
    halves.iter().for_each(|half| rig.free(1, *half, PAGE / 2));
    rig.free(0, run, 3 * PAGE - 5);
    rig.alloc(1, 3 * PAGE - 5, false);
    rig.kill(1);
    rig.join_remote(2);
    rig.alloc(2, 256, true);
    rig.alloc(2, PAGE, false);
}

/// An allocation and the word that names it are both there, or neither is.
fn check_named(rig: &mut Rig, word: GAddr, bytes: u64, unknown: u64) {
    let addr = GAddr(rig.word(word));
    assert_eq!(u64::from(!addr.is_null()), unknown, "{word} names {addr}");
    if !addr.is_null() {
        assert_eq!(rig.ask(10, Request::CheckFree { addr, bytes }), Ok(Reply::Known));
    }
}

/// From one effect to the next that is tried, unless all are.
fn stride(usual: usize) -> usize {
    if is_thorough() { 1 } else { usual }
}

#[derive(Clone, Copy)]
struct Setting {
    durability: Durability,
    /// The power goes again at that effect of the recovery.
    second: Option<u64>,
    mutation: Option<Mutation>,
}

const KEPT: Setting = Setting { durability: Durability::Kept, second: None, mutation: None };

/// Runs the script until the power goes before effect `at`, and looks at what is left; whether it
/// came to that.
fn run(at: u64, seed: u64, setting: Setting) -> bool {
    let Setting { durability, second, mutation } = setting;
    let mut rig = Rig::that_persists(24, durability);
    rig.world.fuse.answers.mutation.set(mutation);
    rig.world.power_seed = seed;
    rig.world.fuse.arm(at);
    let mut counted = Counted::new();
    let ended = catch_unwind(AssertUnwindSafe(|| script(&mut rig, &mut counted)));
    let has_crashed = match ended {
        Ok(()) => false,
        Err(cause) if cause.is::<Crash>() => true,
        Err(cause) => resume_unwind(cause),
    };
    rig.world.fuse.disarm();
    let pending = rig.clients.values().find_map(|client| client.pending.clone());
    let named = match pending {
        Some(Request::AllocInto { word, bytes } | Request::FreeFrom { word, bytes }) => {
            counted.insert(word.0, None);
            Some((word, bytes))
        }
        _ => None,
    };
    if let Some(effects) = second {
        rig.world.fuse.arm(effects);
    }
    check_after_loss(&mut rig, counted, named);
    has_crashed
}

/// A daemon is killed before effect `at` and started again, the script goes on to its end, then
/// the power goes; whether it came to the kill.
fn run_killed(at: u64, seed: u64) -> bool {
    let mut rig = Rig::that_persists(24, Durability::Kept);
    rig.loses_power = false;
    rig.world.power_seed = seed;
    rig.world.fuse.arm(at);
    let mut counted = Counted::new();
    script(&mut rig, &mut counted);
    rig.world.fuse.disarm();
    let was_killed = rig.restarts > 0;
    check_after_loss(&mut rig, counted, None);
    was_killed
}

/// The power goes: what was acknowledged is there, and life goes on.
fn check_after_loss(rig: &mut Rig, counted: Counted, named: Option<(GAddr, u64)>) {
    rig.lose_power();
    rig.world.fuse.disarm();
    for (addr, kept) in counted {
        if rig.live.contains_key(&addr) {
            let found = rig.world.pages_mem().peek(rig.world.offset_of(GAddr(addr)));
            rig.words.insert(addr, kept.unwrap_or(found));
        }
    }
    rig.join(10);
    rig.verify_content();
    let sessions = rig.daemon.as_ref().unwrap().sessions().count();
    assert_eq!(sessions, 1, "all others ended with the power");
    // The frees that sessions are owed come first.
    rig.quiesce();
    let (live, stats) = (rig.live.len() as u64, rig.daemon.as_ref().unwrap().stats(&rig.world));
    let found = stats.allocations;
    // One request was under way, or its answer was being taken.
    assert!((live..=live + 1).contains(&found), "{found} of {live} live: {stats:?}");
    if let Some((word, bytes)) = named {
        check_named(rig, word, bytes, found - live);
    }
    assert!(rig.daemon.as_ref().unwrap().sweeps_due() > 0, "what was under way is looked for");
    // Life goes on: nothing that lives is handed out again, and all of it can be freed.
    for bytes in [64, 64, 128, 256, PAGE / 2, PAGE, 2 * PAGE] {
        rig.alloc(10, bytes, false);
    }
    rig.verify_content();
    let all: Vec<(u64, u64)> = rig.live.iter().map(|(at, live)| (*at, live.bytes)).collect();
    all.into_iter().for_each(|(addr, bytes)| rig.free(10, GAddr(addr), bytes));
    rig.quiesce();
}

#[test]
fn a_loss_of_power_at_any_effect_loses_nothing_that_was_acknowledged() {
    let mut effects = 0;
    for at in (0..).step_by(stride(3)) {
        // The oldest versions and the newest ones in turn, and a mixture.
        let crashed = [at % 2, at + 2].map(|seed| run(at, seed, KEPT));
        if crashed == [false; 2] {
            effects = at;
            break;
        }
    }
    println!("{effects} effects");
    assert!(effects > 600, "the script has only {effects} effects");
}

#[test]
fn the_power_may_go_again_while_a_daemon_recovers() {
    for at in (0..).step_by(17 * stride(3)) {
        let mut crashed = false;
        let drops = [0, EFFECTS_OF_DROP, 2 * EFFECTS_OF_DROP];
        for second in drops.iter().flat_map(|drop| [0, 1, 2, 3, 5, 8, 13, 21].map(|n| drop + n)) {
            crashed |= run(at, at + second, Setting { second: Some(second), ..KEPT });
        }
        if !crashed {
            assert!(at > 600, "the script has only {at} effects");
            return;
        }
    }
}

#[test]
fn what_a_killed_daemon_left_in_the_caches_is_made_durable_by_the_next() {
    let mut killed = 0;
    for at in (0..).step_by(3 * stride(3)) {
        if !run_killed(at, killed % 3) {
            break;
        }
        killed += 1;
    }
    assert!(killed > 60, "only {killed} kills");
}

#[test]
fn durability_that_is_only_pretended_is_noticed() {
    let setting = Setting { durability: Durability::Pretended, ..KEPT };
    let failed =
        (0..400).step_by(7).filter(|at| catch_unwind(|| run(*at, at + 2, setting)).is_err());
    assert!(failed.count() > 10, "the metadata hangs on being made durable");
}

#[test]
fn each_step_of_durability_that_is_left_out_is_noticed() {
    for mutation in Mutation::ALL.into_iter().filter(|one| one.is_of_power()) {
        let setting = Setting { mutation: Some(mutation), ..KEPT };
        let fails = |at: u64, seed: u64| catch_unwind(|| run(at, seed, setting)).is_err();
        let is_noticed = (0..2500).any(|at| [at % 2, at + 2].iter().any(|seed| fails(at, *seed)));
        assert!(is_noticed, "{} changes nothing", mutation.name());
    }
}

#[test]
fn others_are_served_while_a_disk_is_waited_for() {
    let mut rig = Rig::that_persists(8, Durability::Kept);
    (0..3).for_each(|name| rig.join(name));
    let addr = rig.alloc(0, 64, false);
    rig.world.pages_mem().domain.set(PersistenceDomain::Msync);
    rig.world.persists = Some(Vec::new());
    let persist = Request::Persist { addr, bytes: 8 };
    (0..3).for_each(|name| rig.submit(name, persist.clone()));
    let jobs = rig.world.persists.replace(Vec::new()).unwrap();
    assert_eq!((jobs.len(), jobs[0].bytes, rig.world.replies.len()), (3, 8, 0));
    rig.join(4);
    rig.submit(4, Request::Ping);
    rig.take_replies();
    assert_eq!(rig.clients[&4].last, Some(Ok(Reply::Pong)));
    // One has ended, and another has its record.
    rig.kill(1);
    rig.join(5);
    let failed = PersistError::NotWritten { offset: 0, bytes: 8, errno: 5 };
    for (job, result) in jobs.into_iter().zip([Ok(()), Ok(()), Err(failed)]) {
        rig.run(|daemon, world| daemon.on_persisted(job, result, world));
    }
    assert_eq!(rig.world.replies.len(), 2);
    rig.take_replies();
    assert_eq!(rig.clients[&0].last, Some(Ok(Reply::Persisted)));
    assert!(matches!(rig.clients[&2].last, Some(Err(Error::Io { .. }))));
    // What cannot be done beside it is waited for.
    rig.world.persists = None;
    assert_eq!(rig.ask(5, persist), Ok(Reply::Persisted));
}

#[test]
fn memory_that_does_not_persist_says_so() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let addr = rig.alloc(0, 64, false);
    let error = rig.ask(0, Request::Persist { addr, bytes: 8 }).unwrap_err();
    assert!(error.to_string().contains("does not outlive a loss of power"), "{error}");
    let mut rig = Rig::that_persists(8, Durability::Kept);
    rig.join(0);
    let addr = rig.alloc(0, 64, false);
    let persist = |addr, bytes| Request::Persist { addr, bytes };
    assert_eq!(rig.ask(0, persist(addr, PAGE)), Ok(Reply::Persisted));
    let beyond = rig.ask(0, persist(addr, PAGE + 1));
    assert!(matches!(beyond, Err(Error::OutOfBounds { limit_bytes: PAGE, .. })), "{beyond:?}");
    let nowhere = rig.ask(0, persist(GAddr(100 * PAGE), 8));
    assert!(matches!(nowhere, Err(Error::NotMapped { .. })), "{nowhere:?}");
}
