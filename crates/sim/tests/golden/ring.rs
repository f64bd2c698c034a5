//! The real rings on simulated memory: every interleaving of the two ends that a seed leads to,
//! the producer's death at any step, forced rare branches and mutations.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::processes::World;
use rackpool_core::ring::{Consumer, Geometry, Producer, RingError, reset_with};
use rackpool_core::seam::{Mem, Mutation, Probe, Race, Rare};
use rackpool_sim::coro::{Wait, wait};
use rackpool_sim::mem::{Coherence, Hooks, Memory, SimMem, Tier};
use rackpool_sim::time::Ps;

/// More entries than blocks, so that it runs out of either.
const GEOMETRY: Geometry = Geometry { entries: 8, ..Geometry::SMALLEST };
const MESSAGES: u64 = 40;

/// Message number `index`. First most have data blocks, then all are inline: the ring runs out of
/// blocks, later of entries.
fn message(index: u64) -> Vec<u8> {
    let lengths = if index < MESSAGES / 2 { [57, 0, 64, 56, 60] } else { [0, 3, 8, 55, 56] };
    let bytes = lengths[index as usize % 5];
    (0..bytes as u64).map(|at| (index * 31 + at) as u8 | 1).collect()
}

/// The other end may pause for 10 ms; an end that waits for longer takes it for dead.
const IDLE_MAX: u32 = 200;

fn idle_wait(idle: &mut u32) -> bool {
    wait(Wait::For(Ps::ns(50 << (*idle / 4).min(11))));
    *idle += 1;
    *idle < IDLE_MAX
}

fn produce(mem: SimMem) {
    let mut producer = Producer::attach_with(mem, GEOMETRY);
    for index in 0..MESSAGES {
        let mut idle = 0;
        while let Err(error) = producer.push(&message(index)) {
            assert!(matches!(error, RingError::Full { .. }), "{error}");
            if !idle_wait(&mut idle) {
                return;
            }
        }
    }
}

/// What the consumer made of it: messages that were right, and whether one was not.
#[derive(Default)]
struct Taken {
    right: Cell<u64>,
    wrong: Cell<bool>,
}

fn consume(mem: SimMem, taken: &Taken) {
    let mut consumer = Consumer::attach_with(mem, GEOMETRY);
    let mut idle = 0;
    while taken.right.get() < MESSAGES {
        let expected = message(taken.right.get());
        match consumer.pop(|bytes| bytes == expected) {
            Some(Ok(true)) => taken.right.set(taken.right.get() + 1),
            Some(_) => return taken.wrong.set(true),
            None if idle_wait(&mut idle) => continue,
            None => return,
        }
        idle = 0;
    }
}

/// Runs both ends; kills the producer after so many steps of the world.
fn run(seed: u64, hooks: &Hooks, steps: Option<u64>) -> Rc<Taken> {
    let mut world = World::new(seed, 1);
    let memory = Memory::new(1, GEOMETRY.bytes(), Tier::Dram, Coherence::Hardware);
    let taken = Rc::new(Taken::default());
    let tell = taken.clone();
    let producer = world.spawn(0, [&memory], |[mem]| produce(mem));
    let consumer = world.spawn(0, [&memory], move |[mem]| consume(mem, &tell));
    reset_with(&SimMem::new(memory, consumer.clone()), GEOMETRY);
    consumer.drain();
    producer.set_hooks(hooks.clone());
    consumer.set_hooks(hooks.clone());
    if let Some(steps) = steps {
        (0..steps).for_each(|_| {
            world.step();
        });
        world.kill(0);
    }
    world.run();
    taken
}

#[test]
fn messages_arrive_whole_and_in_order() {
    let mut forced = 0;
    for seed in 0..300 {
        let hooks = Hooks::new(seed);
        hooks.set_rare_ppm(Rare::RingFull, 100_000);
        let taken = run(seed, &hooks, None);
        assert_eq!((taken.right.get(), taken.wrong.get()), (MESSAGES, false), "seed {seed}");
        forced += hooks.rare_counts()[Rare::RingFull as usize];
    }
    assert!(forced > 300, "{forced}");
}

#[test]
fn a_producer_that_dies_anywhere_leaves_whole_messages() {
    let lengths = RefCell::new(std::collections::BTreeSet::new());
    for seed in 0..600 {
        let taken = run(seed, &Hooks::new(seed), Some(seed));
        assert!(!taken.wrong.get(), "seed {seed}");
        lengths.borrow_mut().insert(taken.right.get());
    }
    assert!(lengths.borrow().len() > 20, "{lengths:?}");
}

#[test]
fn a_mutation_breaks_the_ring_if_mutations_are_compiled_in_and_only_then() {
    for mutation in [Mutation::ReuseSlotEarly, Mutation::RecycleBufferEarly] {
        let broken = |seed: &u64| {
            let hooks = Hooks::new(*seed);
            let compiled = hooks.set_mutation(Some(mutation));
            let taken = run(*seed, &hooks, None);
            assert!(compiled || hooks.mutated_count() == 0, "seed {seed}");
            taken.wrong.get() || taken.right.get() != MESSAGES
        };
        let found = (0..200).find(broken);
        assert_eq!(found.is_some(), cfg!(feature = "mutations"), "{}", mutation.name());
    }
}

#[test]
fn hooks_answer_by_seed_and_count() {
    let answers = |seed| {
        let hooks = Hooks::new(seed);
        hooks.draw_rares();
        let rare = |_| Rare::ALL.map(|rare| hooks.rare(rare));
        let answers: Vec<_> = (0..200).map(rare).collect();
        let yes = answers.iter().flatten().filter(|yes| **yes).count() as u64;
        assert_eq!(hooks.rare_counts().iter().sum::<u64>(), yes);
        answers
    };
    assert_eq!(answers(1), answers(1));
    assert_ne!(answers(1), answers(2));
    let hooks = Hooks::new(1);
    let memory = Memory::new(1, 64, Tier::Dram, Coherence::Hardware);
    let cpu = rackpool_sim::mem::Cpu::performance(Default::default());
    let mem = SimMem::new(memory, cpu.clone());
    assert!(!mem.rare(Rare::RingFull), "without hooks");
    cpu.set_hooks(hooks.clone());
    hooks.set_rare_ppm(Rare::RingFull, 1_000_000);
    mem.met(Race::CellSeen);
    assert!(mem.slice(0, 8).rare(Rare::RingFull) && !mem.mutated(Mutation::DropRedo));
    assert_eq!(hooks.race_counts()[Race::CellSeen as usize], 1);
    assert_eq!(mem.bytes(), 64);
}
