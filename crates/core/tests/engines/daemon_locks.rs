//! Locks in the daemon's engine: which client gets one when, what waits, what ends, and that no
//! crash at any effect gives a lock to two, loses it or keeps it without a holder.

use crate::daemon_world::{PAGE, RACK, Rig, TestWorld, remote_client};
use proptest::prelude::*;
use rackpool_core::constants::{LOCKS_MAX, LOCKS_OF_SESSION_MAX};
use rackpool_core::daemon::{ClientId, Daemon, World};
use rackpool_core::layout::{LockWord, StateWord, lock_word};
use rackpool_core::seam::Mem;
use rackpool_core::wire::{DaemonStats, Reply, Request};
use rackpool_core::{Error, GAddr, Result};
use std::collections::{BTreeMap, BTreeSet};

const WAIT_MS: u64 = 60_000;

fn lock(addr: GAddr, write: bool) -> Request {
    lock_lines(addr, 1, write)
}

fn lock_lines(addr: GAddr, lines: u32, write: bool) -> Request {
    Request::Lock { addr, lines, write, wait_ms: WAIT_MS }
}

fn code<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
    result.unwrap_err().code()
}

#[derive(Clone, Copy, Debug)]
struct Held {
    token: u64,
    write: bool,
    end: u64,
}

/// The rig with what its clients know of their locks.
struct Locker {
    rig: Rig,
    held: BTreeMap<(u32, u64), Held>,
    token_last: u64,
    given: BTreeSet<u64>,
    /// The clients that give back what they held.
    gives_back: BTreeSet<u32>,
    /// What the clients' requests under way are.
    asked: BTreeMap<u32, Request>,
}

impl Locker {
    fn new(clients: u32) -> Locker {
        let mut rig = Rig::new(16);
        (0..clients).for_each(|name| rig.join(name));
        Locker {
            rig,
            held: BTreeMap::new(),
            token_last: 0,
            given: BTreeSet::new(),
            gives_back: BTreeSet::new(),
            asked: BTreeMap::new(),
        }
    }

    /// Sends a request; what its answer means is noted by [`Locker::listen`].
    fn send(&mut self, name: u32, request: Request) {
        if let Request::Unlock { addr, .. } = request {
            // A client that gives it back does not rely on it any more.
            if self.held.remove(&(name, addr.0)).is_some() {
                self.gives_back.insert(name);
            }
        }
        self.asked.insert(name, request.clone());
        self.rig.submit(name, request);
        self.listen();
    }

    /// Takes the answers that are there.
    fn listen(&mut self) {
        self.rig.take_replies();
        for name in self.asked.keys().copied().collect::<Vec<_>>() {
            let Some(last) = self.rig.clients.get_mut(&name).and_then(|c| c.last.take()) else {
                continue;
            };
            let request = self.asked.remove(&name).unwrap();
            match (request, last) {
                (Request::Lock { addr, lines, write, .. }, Ok(Reply::Locked { token })) => {
                    self.granted(name, (addr, lines), write, token);
                }
                (
                    Request::Lock { addr: asked, lines, .. },
                    Err(Error::AlreadyLocked { addr, token }),
                ) => {
                    let held = self.held[&(name, addr.0)];
                    assert_eq!(held.token, token);
                    assert!(addr.0 < asked.0 + 64 * u64::from(lines) && asked.0 < held.end);
                }
                (Request::Lock { .. }, Err(Error::LockTimeout { .. } | Error::Busy { .. })) => {}
                (Request::Unlock { .. }, Ok(Reply::Held { held })) => {
                    assert_eq!(held, self.gives_back.remove(&name), "the answer of an unlock");
                }
                (request, last) => panic!("{request:?}: {last:?}"),
            }
        }
    }

    fn granted(&mut self, name: u32, (addr, lines): (GAddr, u32), write: bool, token: u64) {
        let end = addr.0 + 64 * u64::from(lines);
        let mut others = self.held.iter().filter(|((_, at), held)| *at < end && addr.0 < held.end);
        let apart = others.all(|((who, _), held)| *who != name && !write && !held.write);
        assert!(apart, "{addr} for {name} (alone: {write}) beside {:?}", self.held);
        assert!(self.given.insert(token), "token {token} twice");
        self.token_last = self.token_last.max(token);
        self.held.insert((name, addr.0), Held { token, write, end });
    }

    fn kill(&mut self, name: u32) {
        self.asked.remove(&name);
        self.gives_back.remove(&name);
        self.held.retain(|(holder, _), _| *holder != name);
        // What it still waited for is not the model's business.
        self.rig.kill(name);
        self.listen();
    }

    fn turn(&mut self) {
        self.rig.turn();
        self.listen();
    }

    fn holds(&mut self, name: u32, addr: GAddr) -> bool {
        self.listen();
        self.held.contains_key(&(name, addr.0))
    }

    fn stats(&self) -> DaemonStats {
        self.rig.daemon.as_ref().unwrap().stats(&self.rig.world)
    }

    /// All clients give back what they have, until none waits; then all leave.
    fn finish(mut self) {
        for _ in 0..1000 {
            self.listen();
            let idle =
                |(name, _): &(u32, u64), asked: &BTreeMap<u32, Request>| !asked.contains_key(name);
            let next = self.held.iter().find(|(key, _)| idle(key, &self.asked));
            match next.map(|((name, addr), held)| (*name, GAddr(*addr), held.token)) {
                Some((name, addr, token)) => self.send(name, Request::Unlock { addr, token }),
                None if self.asked.is_empty() => break,
                // A client that holds one and waits for another ends by the time, too.
                None => self.turn(),
            }
        }
        assert!(self.asked.is_empty() && self.held.is_empty(), "{:?} {:?}", self.asked, self.held);
        let stats = self.stats();
        assert_eq!((stats.locks_held, stats.lock_waiters), (0, 0));
        let private = self.rig.world.private();
        for entry in 0..LOCKS_MAX {
            assert_eq!(private.load(lock_word(entry, LockWord::Name)), 0, "entry {entry} is left");
        }
        assert!(private.load(StateWord::LockToken.offset()) >= self.token_last);
        self.rig.finish();
    }
}

#[test]
fn readers_share_a_lock_and_writers_have_it_alone_in_the_order_of_asking() {
    let mut all = Locker::new(5);
    let name = all.rig.alloc(0, 64, false);
    all.send(0, lock(name, false));
    all.send(1, lock(name, false));
    assert!(all.holds(0, name) && all.holds(1, name));
    all.send(2, lock(name, true));
    all.send(3, lock(name, false));
    all.send(4, lock(name, true));
    assert_eq!(all.stats().lock_waiters, 3, "a reader behind a writer waits");
    for (holder, next) in [(0, None), (1, Some(2)), (2, Some(3)), (3, Some(4))] {
        let token = all.held[&(holder, name.0)].token;
        all.send(holder, Request::Unlock { addr: name, token });
        assert!(next.is_none_or(|next| all.holds(next, name)), "after {holder}");
        assert_eq!(all.held.len(), 1);
    }
    let tokens: Vec<u64> = all.held.values().map(|held| held.token).collect();
    assert_eq!(tokens, [5], "each grant had a greater token");
    all.finish();
}

#[test]
fn names_that_are_no_locks_and_locks_that_are_held_are_refused() {
    let mut all = Locker::new(2);
    let run = all.rig.alloc(0, 3 * PAGE, false);
    assert_eq!(code(all.rig.ask(0, lock(GAddr(run.0 + 8), true))), "misaligned");
    assert_eq!(code(all.rig.ask(0, lock(GAddr::NULL, true))), "not-mapped");
    assert_eq!(code(all.rig.ask(0, lock(GAddr(run.0 + 99 * PAGE), true))), "not-mapped");
    all.send(0, lock(run, true));
    for write in [true, false] {
        all.send(0, lock(run, write));
        assert!(all.asked.is_empty(), "asking again is refused at once");
    }
    let tried = all.rig.ask(1, Request::Lock { addr: run, lines: 1, write: false, wait_ms: 0 });
    assert_eq!(code(tried), "lock-timeout");
    let wrong = all.rig.ask(1, Request::Unlock { addr: run, token: all.token_last });
    assert_eq!(wrong, Ok(Reply::Held { held: false }), "it is another's");
    let wrong = all.rig.ask(0, Request::Unlock { addr: run, token: 99 });
    assert_eq!(wrong, Ok(Reply::Held { held: false }), "that grant is none");
    assert!(all.holds(0, run));
    all.finish();
}

#[test]
fn a_handle_and_a_rack_have_bounded_locks_and_then_it_is_busy() {
    let mut all = Locker::new(LOCKS_MAX / LOCKS_OF_SESSION_MAX as u32 + 1);
    let run = all.rig.alloc(0, 8 * PAGE, false);
    let at = |index: u32| GAddr(run.0 + 64 * u64::from(index % 512));
    let names = all.rig.clients.keys().copied().collect::<Vec<_>>();
    for name in &names {
        for index in 0..LOCKS_OF_SESSION_MAX as u32 {
            all.send(*name, lock(at(index), false));
        }
        if all.stats().locks_held < u64::from(LOCKS_MAX) {
            assert_eq!(code(all.rig.ask(*name, lock(at(500), false))), "busy");
        }
    }
    assert_eq!(all.stats().locks_held, u64::from(LOCKS_MAX));
    assert_eq!(code(all.rig.ask(*names.last().unwrap(), lock(at(1), false))), "busy");
    names.into_iter().for_each(|name| all.kill(name));
    assert_eq!(all.stats().locks_held, 0);
    all.finish();
}

#[test]
fn who_waits_in_vain_learns_who_holds_it_and_for_how_long_and_leaves_nothing() {
    let mut all = Locker::new(3);
    let name = all.rig.alloc(0, 64, false);
    all.send(0, lock(name, true));
    (0..20).for_each(|_| all.turn());
    all.rig.submit(1, Request::Lock { addr: name, lines: 1, write: true, wait_ms: 500 });
    all.rig.submit(2, Request::Lock { addr: name, lines: 1, write: false, wait_ms: 300 });
    all.rig.settle();
    for (waiter, waited) in [(1, 500), (2, 300)] {
        let last = all.rig.clients.get_mut(&waiter).unwrap().last.take().unwrap();
        let Err(Error::LockTimeout { addr, waited_ms, holder_pid, held_ms }) = last else {
            panic!("{last:?}");
        };
        assert_eq!((addr, waited_ms, holder_pid), (name, waited, 1));
        assert!((2_000..4_000).contains(&held_ms), "{held_ms} ms");
    }
    assert_eq!(all.stats().lock_waiters, 0);
    let token = all.held[&(0, name.0)].token;
    all.send(0, Request::Unlock { addr: name, token });
    assert_eq!(all.stats().locks_held, 0, "no lock is granted that is no longer wanted");
    all.finish();
}

#[test]
fn a_request_that_was_given_up_is_out_of_the_way_of_others() {
    let mut all = Locker::new(3);
    let name = all.rig.alloc(0, 64, false);
    all.send(0, lock(name, false));
    all.send(1, lock(name, true));
    all.send(2, lock(name, false));
    assert!(!all.holds(2, name));
    // The writer asks for something else.
    all.asked.remove(&1);
    all.rig.clients.get_mut(&1).unwrap().pending = None;
    all.rig.alloc(1, 64, false);
    assert!(all.holds(2, name), "the reader behind it goes on");
    all.finish();
}

#[test]
fn locks_end_with_their_session_and_its_waiting_request_too() {
    let mut all = Locker::new(4);
    let name = all.rig.alloc(0, 64, false);
    all.send(0, lock(name, true));
    all.send(1, lock(name, true));
    all.send(2, lock(name, true));
    all.kill(1);
    all.kill(0);
    assert!(all.holds(2, name));
    all.finish();
}

#[test]
fn a_remote_session_without_a_connection_loses_its_locks_and_is_told() {
    let mut all = Locker::new(1);
    let name = all.rig.alloc(0, 64, false);
    all.rig.join_remote(7);
    all.send(7, lock(name, true));
    all.send(0, lock(name, true));
    let ClientId::Remote(record) = all.rig.clients[&7].id else { panic!("it is remote") };
    let token = all.held[&(7, name.0)].token;
    let holds = |all: &Locker| all.rig.daemon.as_ref().unwrap().holds_lock(record, name, token);
    all.rig.run(|daemon, _| daemon.leave_remote(record));
    assert!(holds(&all) && !all.holds(0, name), "it has a while to come back");
    all.held.remove(&(7, name.0));
    all.rig.run(|daemon, world| daemon.lose_locks(record, world));
    assert!(!holds(&all) && all.holds(0, name));
    let session = all.rig.clients[&7].session;
    all.rig.run(|daemon, world| daemon.join_remote(remote_client(session), world).unwrap());
    let again = all.rig.ask(7, Request::CheckLock { addr: name, token });
    assert_eq!(again, Ok(Reply::Held { held: false }));
    all.finish();
}

#[test]
fn a_request_that_waited_when_its_connection_ended_is_asked_again_and_served() {
    let mut all = Locker::new(1);
    let name = all.rig.alloc(0, 64, false);
    all.rig.join_remote(7);
    all.send(0, lock(name, true));
    all.send(7, lock(name, true));
    let ClientId::Remote(record) = all.rig.clients[&7].id else { panic!("it is remote") };
    all.rig.run(|daemon, _| daemon.leave_remote(record));
    assert_eq!(all.stats().lock_waiters, 0, "nobody would take it");
    let session = all.rig.clients[&7].session;
    all.rig.run(|daemon, world| daemon.join_remote(remote_client(session), world).unwrap());
    all.rig.resend();
    let token = all.held[&(0, name.0)].token;
    all.send(0, Request::Unlock { addr: name, token });
    assert!(all.holds(7, name));
    all.finish();
}

#[test]
fn a_repeated_request_for_a_lock_that_is_lost_is_not_answered_with_the_grant() {
    let mut all = Locker::new(0);
    all.rig.join_remote(7);
    let name = all.rig.alloc(7, 64, false);
    all.rig.submit(7, lock(name, true));
    let ClientId::Remote(record) = all.rig.clients[&7].id else { panic!("it is remote") };
    // The answer is on its way when the connection ends.
    all.rig.world.replies.clear();
    all.rig.run(|daemon, _| daemon.leave_remote(record));
    all.rig.run(|daemon, world| daemon.lose_locks(record, world));
    all.rig.resend();
    all.rig.settle();
    let last = all.rig.clients.get_mut(&7).unwrap().last.take().unwrap();
    assert_eq!(code(last), "lock-lost");
    all.finish();
}

#[test]
fn ranges_that_share_a_line_exclude_each_other_and_others_do_not() {
    let mut all = Locker::new(6);
    let run = all.rig.alloc(0, 2 * PAGE, false);
    let at = |line: u64| GAddr(run.0 + 64 * line);
    all.send(0, lock_lines(at(8), 8, true));
    all.send(1, lock_lines(at(0), 8, true));
    all.send(2, lock_lines(at(16), 48, true));
    assert_eq!(all.held.len(), 3, "they lie side by side");
    all.send(3, lock_lines(at(4), 8, true));
    all.send(4, lock_lines(at(7), 1, false));
    assert_eq!(all.stats().lock_waiters, 2);
    all.send(5, lock_lines(at(64), 64, true));
    assert!(all.holds(5, at(64)), "another page's lines");
    for (holder, line) in [(0, 8), (1, 0)] {
        assert!(!all.holds(3, at(4)), "not before both parts are free");
        let token = all.held[&(holder, at(line).0)].token;
        all.send(holder, Request::Unlock { addr: at(line), token });
    }
    assert!(all.holds(3, at(4)) && !all.holds(4, at(7)), "first come, first served");
    all.finish();
}

#[test]
fn who_waits_for_a_range_holds_no_part_of_it_and_is_not_overtaken_there() {
    let mut all = Locker::new(5);
    let run = all.rig.alloc(0, PAGE, false);
    let at = |line: u64| GAddr(run.0 + 64 * line);
    all.send(0, lock(at(2), true));
    all.send(1, lock_lines(at(0), 4, true));
    all.send(2, lock(at(4), true));
    assert!(all.holds(2, at(4)), "beside what is waited for");
    all.send(3, lock(at(0), false));
    assert!(!all.holds(3, at(0)), "behind the one that waits for it");
    all.send(4, lock_lines(at(3), 1, false));
    all.kill(1);
    assert!(all.holds(3, at(0)) && all.holds(4, at(3)), "none is before them any more");
    all.finish();
}

#[test]
fn ranges_that_no_page_holds_are_refused() {
    let mut all = Locker::new(1);
    let run = all.rig.alloc(0, 2 * PAGE, false);
    let object = all.rig.alloc(0, 128, false);
    for (addr, lines, expected) in [
        (run, 0, "out-of-bounds"),
        (run, 65, "out-of-bounds"),
        (GAddr(run.0 + PAGE - 64), 2, "out-of-bounds"),
        (run, u32::MAX, "out-of-bounds"),
        (GAddr(u64::MAX - 63), 1, "out-of-bounds"),
        (GAddr(run.0 + 32), 1, "misaligned"),
        (object, 3, "not-mapped"),
    ] {
        let refused = all.rig.ask(0, lock_lines(addr, lines, true));
        assert_eq!(code(refused), expected, "{lines} lines at {addr}");
    }
    all.send(0, lock_lines(run, 64, true));
    all.send(0, lock_lines(object, 2, true));
    assert_eq!(all.held.len(), 2);
    all.finish();
}

/// Readers and writers of two locks that give back, give up, and die.
fn script(all: &mut Locker) {
    let names = [all.rig.alloc(0, 64, false), all.rig.alloc(1, PAGE, false)];
    all.send(0, lock(names[0], true));
    all.send(1, lock(names[0], false));
    all.send(2, lock(names[0], false));
    all.send(3, lock_lines(names[1], 64, true));
    let token = all.held.get(&(0, names[0].0)).map_or(0, |held| held.token);
    all.send(0, Request::Unlock { addr: names[0], token });
    all.rig.settle();
    all.send(0, lock(names[0], true));
    all.turn();
    all.kill(2);
    let token = all.held.get(&(1, names[0].0)).map_or(0, |held| held.token);
    all.send(1, Request::Unlock { addr: names[0], token });
    all.send(1, lock_lines(names[1], 7, true));
    all.kill(3);
    all.rig.settle();
    all.listen();
    assert!(all.holds(0, names[0]) && all.holds(1, names[1]), "{:?}", all.held);
}

#[test]
fn a_crash_at_any_effect_gives_no_lock_to_two_and_keeps_none_for_nobody() {
    for loses in [false, true] {
        for at in 0.. {
            let mut all = Locker::new(4);
            all.rig.loses = loses;
            all.rig.world.fuse.arm(at);
            script(&mut all);
            let crashed = all.rig.restarts > 0;
            all.rig.world.fuse.disarm();
            all.finish();
            if !crashed {
                assert!(at > 150, "the script has only {at} effects");
                break;
            }
        }
    }
}

#[test]
fn a_table_of_locks_that_makes_no_sense_is_refused() {
    let spoilt = |spoil: &dyn Fn(&TestWorld, u32)| {
        let mut all = Locker::new(2);
        let name = all.rig.alloc(0, 64, false);
        all.send(0, lock(name, true));
        all.rig.daemon = None;
        spoil(&all.rig.world, 0);
        let error = Daemon::attach(&mut all.rig.world, RACK, None).map(|_| ()).unwrap_err();
        assert_eq!(error.code(), "bad-region");
    };
    let at = |entry, word| lock_word(entry, word);
    spoilt(&|world, entry| world.private().poke_copies(at(entry, LockWord::Token), 9));
    spoilt(&|world, entry| world.private().poke_copies(at(entry, LockWord::Token), 0));
    spoilt(&|world, entry| world.private().poke_copies(at(entry, LockWord::Name), 7));
    spoilt(&|world, entry| world.private().poke_copies(at(entry, LockWord::Lines), 0));
    spoilt(&|world, entry| world.private().poke_copies(at(entry, LockWord::Lines), 1 << 60));
    spoilt(&|world, _| {
        for word in [LockWord::Session, LockWord::Token, LockWord::Name] {
            let value = world.private().peek(at(0, word));
            world.private().poke_copies(at(1, word), value);
        }
    });
}

#[derive(Clone, Debug)]
enum Op {
    Lock { client: u32, name: usize, lines: u32, write: bool },
    Unlock { client: u32, name: usize },
    Kill { client: u32 },
    Turn,
    Crash { effects: u64, loses: bool },
}

fn op() -> impl Strategy<Value = Op> {
    let (client, name) = (|| 0u32..5, || 0usize..5);
    prop_oneof![
        8 => (client(), name(), 1..4u32, any::<bool>())
            .prop_map(|(client, name, lines, write)| Op::Lock { client, name, lines, write }),
        8 => (client(), name()).prop_map(|(client, name)| Op::Unlock { client, name }),
        1 => client().prop_map(|client| Op::Kill { client }),
        2 => Just(Op::Turn),
        1 => (0..60u64, any::<bool>()).prop_map(|(effects, loses)| Op::Crash { effects, loses }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn in_random_lives_no_lock_is_held_by_two_and_everybody_is_served(
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut all = Locker::new(5);
        let run = all.rig.alloc(0, PAGE, false);
        let mut next = 5;
        // The number that plays the part of each client now.
        let mut parts: Vec<u32> = (0..5).collect();
        for op in ops {
            match op {
                Op::Lock { client, name, lines, write } => {
                    let who = parts[client as usize];
                    if !all.asked.contains_key(&who) {
                        let addr = GAddr(run.0 + 64 * name as u64);
                        all.send(who, lock_lines(addr, lines, write));
                    }
                }
                Op::Unlock { client, name } => {
                    let who = parts[client as usize];
                    let addr = GAddr(run.0 + 64 * name as u64);
                    let held = all.held.get(&(who, addr.0)).map(|held| held.token);
                    if let (Some(token), false) = (held, all.asked.contains_key(&who)) {
                        all.send(who, Request::Unlock { addr, token });
                    }
                }
                Op::Kill { client } => {
                    all.kill(parts[client as usize]);
                    all.rig.join(next);
                    parts[client as usize] = next;
                    next += 1;
                }
                Op::Turn => all.turn(),
                Op::Crash { effects, loses } => {
                    all.rig.loses = loses;
                    all.rig.world.fuse.arm(effects);
                }
            }
        }
        all.rig.world.fuse.disarm();
        all.finish();
    }
}
