//! What processors may see of one another's stores in checking mode: the classic litmus tests of
//! x86-TSO, the pool's own (announcement and barrier), and software-coherent lines.

use std::cell::Cell;
use std::rc::Rc;

use crate::processes::{World, wait_for};
use rackpool_core::seam::Mem;
use rackpool_sim::mem::{Coherence, Memory, SimMem, Tier};

const SEEDS: u64 = 3_000;
/// Words on lines of their own.
const X: u64 = 0;
const Y: u64 = 64;

fn shared(id: u32, coherence: Coherence) -> Rc<Memory> {
    Memory::new(id, 4096, Tier::Cxl, coherence)
}

/// Runs two processes that each tell one number, over all seeds; how often each pair came out.
fn outcomes(
    first: impl Fn(&SimMem) -> u64 + Clone + 'static,
    second: impl Fn(&SimMem) -> u64 + Clone + 'static,
) -> [[u32; 2]; 2] {
    let mut counts = [[0; 2]; 2];
    for seed in 0..SEEDS {
        let mut world = World::new(seed, 1);
        let memory = shared(1, Coherence::Hardware);
        let told = [Rc::new(Cell::new(0)), Rc::new(Cell::new(0))];
        let (tell, body) = (told[0].clone(), first.clone());
        world.spawn(0, [&memory], move |[mem]| tell.set(body(&mem)));
        let (tell, body) = (told[1].clone(), second.clone());
        world.spawn(0, [&memory], move |[mem]| tell.set(body(&mem)));
        world.run();
        counts[told[0].get() as usize][told[1].get() as usize] += 1;
    }
    counts
}

fn store_then_load(mine: u64, other: u64, between: fn(&SimMem)) -> impl Fn(&SimMem) -> u64 + Clone {
    move |mem| {
        mem.store(mine, 1);
        between(mem);
        mem.load(other)
    }
}

#[test]
fn store_buffering_is_seen_without_a_fence_and_never_with_one() {
    let plain: fn(&SimMem) = |_| {};
    let fence: fn(&SimMem) = |mem| mem.fence();
    let locked: fn(&SimMem) = |mem| {
        mem.fetch_add(512, 1);
    };
    let counts = outcomes(store_then_load(X, Y, plain), store_then_load(Y, X, plain));
    assert!(counts[0][0] > 0, "{counts:?}");
    // One fence is not enough.
    let counts = outcomes(store_then_load(X, Y, fence), store_then_load(Y, X, plain));
    assert!(counts[0][0] > 0, "{counts:?}");
    for (one, two) in [(fence, fence), (fence, locked), (locked, locked)] {
        let counts = outcomes(store_then_load(X, Y, one), store_then_load(Y, X, two));
        assert_eq!(counts[0][0], 0, "{counts:?}");
        assert!(counts[0][1] > 0 && counts[1][0] > 0 && counts[1][1] > 0, "{counts:?}");
    }
}

#[test]
fn messages_are_passed_in_order_without_any_fence() {
    let send = |mem: &SimMem| {
        mem.store(X, 1);
        mem.store(Y, 1);
        0
    };
    // 1 if the flag was seen and the message was not.
    let receive = |mem: &SimMem| u64::from(mem.load(Y) == 1 && mem.load(X) == 0);
    let counts = outcomes(send, receive);
    assert_eq!(counts, [[SEEDS as u32, 0], [0, 0]]);
}

#[test]
fn loads_are_never_passed_by_later_stores() {
    let one = |mem: &SimMem| {
        let seen = mem.load(X);
        mem.store(Y, 1);
        seen
    };
    let two = |mem: &SimMem| {
        let seen = mem.load(Y);
        mem.store(X, 1);
        seen
    };
    let counts = outcomes(one, two);
    assert_eq!(counts[1][1], 0, "{counts:?}");
    assert!(counts[0][1] > 0 && counts[1][0] > 0, "{counts:?}");
}

/// How often a reader used a frame that the mover took for unused.
fn announce_races(asymmetric: bool, barrier: bool, fence: bool) -> u32 {
    let mut both = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed, 1);
        let host = world.host(0).clone();
        host.set_asymmetric(asymmetric);
        let memory = shared(1, Coherence::Hardware);
        memory.poke(Y, 7);
        let used = Rc::new(Cell::new(false));
        let unused = Rc::new(Cell::new(false));
        let (tell_used, tell_unused) = (used.clone(), unused.clone());
        world.spawn(0, [&memory], move |[mem]| {
            mem.announce(X, 1);
            tell_used.set(mem.load(Y) == 7);
        });
        world.spawn(0, [&memory], move |[mem]| {
            mem.store(Y, 0);
            if barrier {
                host.barrier();
            }
            if fence {
                mem.fence();
            }
            tell_unused.set(mem.load(X) == 0);
        });
        world.run();
        both += u32::from(used.get() && unused.get());
    }
    both
}

#[test]
fn an_announcement_is_safe_with_the_movers_barrier_and_not_without() {
    assert_eq!(announce_races(true, true, false), 0);
    assert!(announce_races(true, false, false) > 0, "no barrier");
    assert!(announce_races(true, false, true) > 0, "the mover's own fence is not enough");
    // Where announcements are fenced, the mover's own fence is.
    assert_eq!(announce_races(false, false, true), 0);
}

/// A message from one host to another; how often the receiver read what was there before.
fn stale_messages(flush: bool, invalidate: bool) -> u32 {
    let mut stale = 0;
    for seed in 0..300 {
        let mut world = World::new(seed, 2);
        let data = shared(1, Coherence::Software);
        let flags = shared(2, Coherence::Hardware);
        world.spawn(0, [&data, &flags], move |[data, flags]| {
            data.copy_in(8, &[5; 100]);
            if flush {
                data.flush(8, 100);
            }
            flags.store(X, 1);
        });
        let old = Rc::new(Cell::new(false));
        let tell = old.clone();
        world.spawn(1, [&data, &flags], move |[data, flags]| {
            let mut bytes = [0; 100];
            data.copy_out(8, &mut bytes);
            wait_for(&flags, X, 1);
            if invalidate {
                data.invalidate(8, 100);
            }
            data.copy_out(8, &mut bytes);
            tell.set(bytes != [5; 100]);
        });
        world.run();
        stale += u32::from(old.get());
    }
    stale
}

#[test]
fn hosts_pass_messages_over_software_coherent_memory_only_with_flush_and_invalidate() {
    assert_eq!(stale_messages(true, true), 0);
    assert!(stale_messages(false, true) > 0, "no flush");
    assert!(stale_messages(true, false) > 0, "no invalidation");
    assert!(stale_messages(false, false) > 0, "neither");
}

#[test]
fn processors_of_one_host_agree_about_software_coherent_memory() {
    for seed in 0..300 {
        let mut world = World::new(seed, 1);
        let memory = shared(1, Coherence::Software);
        for _ in 0..2 {
            world.spawn(0, [&memory], move |[mem]| {
                (0..20).for_each(|_| {
                    mem.fetch_add(X, 1);
                });
            });
        }
        let last = Rc::new(Cell::new(0));
        let tell = last.clone();
        world.spawn(0, [&memory], move |[mem]| {
            wait_for(&mem, X, 40);
            mem.flush(X, 8);
            tell.set(mem.load(X));
        });
        world.run();
        assert_eq!((last.get(), memory.peek(X)), (40, 40), "seed {seed}");
    }
}

#[test]
fn atomics_of_two_hosts_are_not_atomic_on_software_coherent_memory() {
    let mut lost = 0;
    for seed in 0..100 {
        let mut world = World::new(seed, 2);
        let memory = shared(1, Coherence::Software);
        for host in 0..2 {
            world.spawn(host, [&memory], move |[mem]| {
                for _ in 0..20 {
                    mem.fetch_add(X, 1);
                    mem.invalidate(X, 8);
                }
            });
        }
        world.run();
        lost += u32::from(memory.peek(X) != 40);
    }
    assert!(lost > 50, "{lost} of 100");
}

#[test]
fn a_line_goes_back_as_a_whole_over_what_another_host_stored_in_it() {
    let mut world = World::new(1, 2);
    world.host(0).set_eviction_gap(0);
    let memory = shared(1, Coherence::Software);
    let seen = memory.clone();
    world.spawn(0, [&memory], move |[mem]| {
        mem.store(0, 1);
        mem.load(0);
        seen.poke(8, 2);
        mem.flush(0, 8);
        assert_eq!(mem.load(8), 0, "the copy is from before");
    });
    world.run();
    assert_eq!((memory.peek(0), memory.peek(8)), (1, 0));
}
