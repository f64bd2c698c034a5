//! Simulated memory: one processor sees what it stored, copies tear and are cut off where they
//! may be, backing is watched, a seed decides everything, and what it costs.

use std::cell::Cell;
use std::rc::Rc;

use crate::processes::World;
use proptest::prelude::*;
use rackpool_core::seam::Mem;
use rackpool_sim::mem::{
    Coherence, Cpu, HostCache, MemCosts, Memory, SimMem, SwitchRates, Tier, Violations,
};
use rackpool_sim::time::Ps;

const BYTES: u64 = 3 * 4096;

fn dram(id: u32, bytes: u64) -> Rc<Memory> {
    Memory::new(id, bytes, Tier::Dram, Coherence::Hardware)
}

#[derive(Clone, Debug)]
enum Step {
    Store(u64, u64),
    CopyIn(u64, Vec<u8>),
    Zero(u64, u64),
    CompareExchange(u64, bool, u64),
    FetchAdd(u64, u64),
    Load(u64),
    CopyOut(u64, u64),
    Fence,
    Flush(u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Near the ends of blocks and lines.
    let near = prop_oneof![Just(0u64), Just(4096 - 16), Just(8192 - 64), Just(BYTES - 200)];
    let word = (near.clone(), 0u64..20).prop_map(|(base, index)| (base + 8 * index).min(BYTES - 8));
    let byte = (near, 0u64..80).prop_map(|(base, index)| base + index);
    prop_oneof![
        (word.clone(), any::<u64>()).prop_map(|(at, value)| Step::Store(at, value)),
        (byte.clone(), prop::collection::vec(any::<u8>(), 0..120))
            .prop_map(|(at, bytes)| Step::CopyIn(at, bytes)),
        (byte.clone(), 0u64..120).prop_map(|(at, bytes)| Step::Zero(at, bytes)),
        (word.clone(), any::<bool>(), any::<u64>())
            .prop_map(|(at, right, new)| Step::CompareExchange(at, right, new)),
        (word.clone(), any::<u64>()).prop_map(|(at, n)| Step::FetchAdd(at, n)),
        word.clone().prop_map(Step::Load),
        (byte, 0u64..120).prop_map(|(at, bytes)| Step::CopyOut(at, bytes)),
        Just(Step::Fence),
        word.prop_map(Step::Flush),
    ]
}

/// One step on the memory and on plain bytes; panics where they differ.
fn apply(mem: &SimMem, model: &mut [u8], step: &Step) {
    let word = |model: &[u8], at: u64| {
        u64::from_le_bytes(model[at as usize..at as usize + 8].try_into().unwrap())
    };
    let clip = |at: u64, bytes: u64| bytes.min(BYTES - at);
    match step {
        Step::Store(at, value) => {
            mem.store(*at, *value);
            model[*at as usize..][..8].copy_from_slice(&value.to_le_bytes());
        }
        Step::CopyIn(at, bytes) => {
            let bytes = &bytes[..clip(*at, bytes.len() as u64) as usize];
            mem.copy_in(*at, bytes);
            model[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        Step::Zero(at, bytes) => {
            let bytes = clip(*at, *bytes);
            mem.zero(*at, bytes);
            model[*at as usize..][..bytes as usize].fill(0);
        }
        Step::CompareExchange(at, right, new) => {
            let old = word(model, *at);
            let expected = if *right { old } else { !old };
            let result = mem.compare_exchange(*at, expected, *new);
            assert_eq!(result, if *right { Ok(old) } else { Err(old) });
            if *right {
                model[*at as usize..][..8].copy_from_slice(&new.to_le_bytes());
            }
        }
        Step::FetchAdd(at, n) => {
            let old = word(model, *at);
            assert_eq!(mem.fetch_add(*at, *n), old);
            let new = old.wrapping_add(*n);
            model[*at as usize..][..8].copy_from_slice(&new.to_le_bytes());
        }
        Step::Load(at) => assert_eq!(mem.load(*at), word(model, *at)),
        Step::CopyOut(at, bytes) => {
            let mut bytes = vec![1; clip(*at, *bytes) as usize];
            mem.copy_out(*at, &mut bytes);
            assert_eq!(bytes, model[*at as usize..][..bytes.len()]);
        }
        Step::Fence => mem.fence(),
        Step::Flush(at) => mem.flush(*at, 8),
    }
}

proptest! {
    // Failures print their seed; nothing is written beside the sources.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_processor_sees_what_it_stored(
        steps in prop::collection::vec(step(), 1..200),
        seed: u64,
        software: bool,
        performance: bool,
    ) {
        let host = HostCache::new(seed, 0, Violations::new());
        host.set_eviction_gap(5);
        let coherence = if software { Coherence::Software } else { Coherence::Hardware };
        let memory = Memory::new(1, BYTES, Tier::Cxl, coherence);
        let cpu = match performance {
            true => Cpu::performance(MemCosts::default()),
            false => Cpu::checking(host.clone(), seed, 0, SwitchRates::default()),
        };
        let mem = SimMem::new(memory.clone(), cpu.clone());
        let mut model = vec![0; BYTES as usize];
        steps.iter().for_each(|step| apply(&mem, &mut model, step));
        mem.flush(0, BYTES);
        let mut bytes = vec![1; BYTES as usize];
        memory.peek_bytes(0, &mut bytes);
        prop_assert_eq!(bytes, model);
        prop_assert_eq!(cpu.pending_stores(), 0);
    }
}

#[test]
fn what_lies_outside_or_across_or_is_read_only_panics() {
    let mem = SimMem::new(dram(1, 100), Cpu::performance(MemCosts::default()));
    let part = mem.slice(8, 16);
    let rights = mem.clone().read_only();
    type Bug<'a> = (&'a str, &'a dyn Fn());
    let bugs: [Bug; 7] = [
        ("outside", &|| assert_eq!(mem.load(96), 0)),
        ("outside", &|| mem.copy_out(u64::MAX, &mut [0; 2])),
        ("outside", &|| part.store(16, 0)),
        ("outside", &|| drop(part.slice(8, 9))),
        ("misaligned", &|| assert_eq!(mem.load(4), 0)),
        ("read-only", &|| rights.store(0, 1)),
        ("read-only", &|| assert_eq!(rights.fetch_add(0, 1), 0)),
    ];
    for (index, (expected, bug)) in bugs.iter().enumerate() {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(bug)).unwrap_err();
        let text = caught.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| caught.downcast_ref::<&str>().copied()).unwrap();
        assert!(text.contains(expected), "{index}: {text}");
    }
    assert_eq!((part.load(8), part.bytes(), part.base()), (0, 16, 8));
}

/// What a reader sees of a copy of so many ones over zeros, at `offset`: 0, 1, or mixed.
fn torn(offset: u64, bytes: usize) -> u32 {
    let mut mixed = 0;
    for seed in 0..2_000 {
        let mut world = World::new(seed, 1);
        let memory = dram(1, 4096);
        world.spawn(0, [&memory], move |[mem]| mem.copy_in(offset, &vec![1; bytes]));
        let seen = Rc::new(Cell::new(false));
        let tell = seen.clone();
        world.spawn(0, [&memory], move |[mem]| {
            let mut found = vec![0; bytes];
            mem.copy_out(offset, &mut found);
            tell.set(found.contains(&0) && found.contains(&1));
        });
        world.run();
        mixed += u32::from(seen.get());
    }
    mixed
}

#[test]
fn long_and_misaligned_copies_tear_and_aligned_short_ones_never() {
    assert!(torn(16, 16) > 0);
    assert!(torn(20, 8) > 0, "it lies in two words");
    assert!(torn(17, 2) > 0, "it is not aligned");
    for (offset, bytes) in [(16, 8), (20, 4), (18, 2), (17, 1)] {
        assert_eq!(torn(offset, bytes), 0, "{bytes} bytes at {offset}");
    }
}

#[test]
fn a_process_that_dies_in_a_copy_leaves_a_prefix() {
    let mut lengths = [0; 9];
    for seed in 0..2_000 {
        let mut world = World::new(seed, 1);
        let memory = dram(1, 4096);
        world.spawn(0, [&memory], move |[mem]| mem.copy_in(64, &[9; 64]));
        // Dies at some point of its life, or after it.
        for _ in 0..seed % 14 {
            world.step();
        }
        world.kill(0);
        let mut found = [0; 64];
        memory.peek_bytes(64, &mut found);
        let length = found.iter().take_while(|byte| **byte == 9).count();
        assert!(found[length..].iter().all(|byte| *byte == 0), "seed {seed}: {found:?}");
        assert_eq!(length % 8, 0, "seed {seed}");
        lengths[length / 8] += 1;
    }
    assert!(lengths.iter().all(|count| *count > 0), "{lengths:?}");
}

#[test]
fn a_kill_keeps_what_was_stored_and_a_power_loss_does_not() {
    let rates = SwitchRates { drain_gap: 0, switch_gap: 0, ..SwitchRates::default() };
    let host = HostCache::new(1, 0, Violations::new());
    host.set_eviction_gap(0);
    let memory = dram(1, 4096);
    let cached = Memory::new(2, 4096, Tier::Cxl, Coherence::Software);
    let killed = Cpu::checking(host.clone(), 1, 0, rates);
    let lost = Cpu::checking(host.clone(), 1, 1, rates);
    SimMem::new(memory.clone(), killed.clone()).store(0, 1);
    SimMem::new(cached.clone(), killed.clone()).store(0, 1);
    SimMem::new(memory.clone(), lost.clone()).store(8, 1);
    assert_eq!((memory.peek(0), killed.pending_stores(), lost.pending_stores()), (0, 2, 1));
    killed.kill();
    lost.lose_power();
    assert_eq!((memory.peek(0), memory.peek(8)), (1, 0));
    assert_eq!((cached.peek(0), host.lines()), (0, 1), "it is in the host's cache");
    host.lose_power();
    // The dead do nothing, and do not wait.
    let mem = SimMem::new(memory.clone(), killed);
    mem.store(16, 1);
    mem.fence();
    assert_eq!((mem.load(0), mem.compare_exchange(0, 5, 6), mem.fetch_add(0, 1)), (0, Ok(5), 0));
    assert_eq!((memory.peek(0), memory.peek(16), cached.peek(0)), (1, 0, 0));
}

#[test]
fn a_device_stores_at_once() {
    let host = HostCache::new(1, 0, Violations::new());
    let memory = dram(1, 4096);
    let mem = SimMem::new(memory.clone(), Cpu::checking(host, 1, 0, SwitchRates::device()));
    mem.copy_in(3, &[1; 9]);
    assert_eq!((memory.peek(0), memory.peek(8)), (0x0101_0101_0100_0000, 0x0101_0101));
}

#[test]
fn access_to_memory_that_is_not_backed_is_a_violation() {
    let violations = Violations::new();
    let host = HostCache::new(1, 0, violations.clone());
    let rates = SwitchRates { drain_gap: 0, ..SwitchRates::default() };
    let cpu = Cpu::checking(host, 1, 0, rates);
    let memory = dram(1, 10_000);
    let mem = SimMem::new(memory.clone(), cpu.clone());
    mem.store(0, 1);
    cpu.drain();
    memory.set_backed_tracking(true);
    memory.back(4096, 1);
    assert_eq!(memory.backed_bytes(), 4096);
    assert_eq!((mem.load(4096), mem.load(8184), violations.count()), (0, 0, 0));
    violations.set_now(Ps::ns(7));
    mem.load(8192);
    let list = violations.take();
    assert_eq!(list.len(), 1);
    assert!(list[0].0 == Ps::ns(7) && list[0].1.contains("0x2000 of memory 1"), "{list:?}");
    // A store is seen to hit nothing when it arrives: here, after the block was taken away.
    mem.store(4096, 3);
    cpu.drain();
    mem.store(4104, 3);
    memory.punch(4096, 10_000 - 4096);
    assert_eq!((memory.peek(4096), memory.backed_bytes(), violations.count()), (0, 0, 0));
    cpu.drain();
    assert_eq!(violations.count(), 1);
    // A hole that ends inside of a block takes nothing away, but is zero.
    memory.back(0, 10_000);
    memory.poke_bytes(4000, &[1; 200]);
    memory.punch(4000, 190);
    let mut bytes = [2; 200];
    memory.peek_bytes(4000, &mut bytes);
    assert!(bytes[..190] == [0; 190] && bytes[190..] == [1; 10], "{bytes:?}");
    assert_eq!(memory.backed_bytes(), 3 * 4096);
}

/// Three processes on two hosts at work; what happened, as one number.
fn busy(seed: u64) -> u64 {
    let mut world = World::new(seed, 2);
    let memory = dram(1, 4096);
    let cached = Memory::new(2, 4096, Tier::Cxl, Coherence::Software);
    for (process, host) in [(0u64, 0), (1, 0), (2, 1)] {
        world.spawn(host, [&memory, &cached], move |[mem, cached]| {
            for round in 0..50 {
                let seen = mem.fetch_add(0, process) + cached.load(8 * (round % 16));
                mem.copy_in(64 + seen % 128, &seen.to_le_bytes());
                cached.store(8 * (round % 16), seen);
                mem.announce(512, seen);
            }
        });
    }
    world.run();
    let mut bytes = [0; 4096];
    memory.peek_bytes(0, &mut bytes);
    bytes.iter().fold(world.trace, |trace, byte| trace.rotate_left(5) ^ u64::from(*byte))
}

#[test]
fn a_seed_decides_everything() {
    let traces: Vec<u64> = (0..20).map(busy).collect();
    assert_eq!(traces, (0..20).map(busy).collect::<Vec<u64>>());
    let other = std::thread::scope(|scope| {
        scope.spawn(|| (0..20).map(busy).collect::<Vec<u64>>()).join().unwrap()
    });
    assert_eq!(traces, other, "on another thread");
    let mut distinct = traces.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), traces.len());
}

fn costs() -> MemCosts {
    MemCosts {
        hit: Ps(1),
        transfer: Ps(10),
        dram_load: Ps(100),
        dram_store: Ps(200),
        dram_stream: Ps(5),
        cxl_load_line: Ps(1_000),
        cxl_store_line: Ps(2_000),
        cxl_stream_line: Ps(7),
        atomic: Ps(20),
        fence: Ps(30),
        flush_line: Ps(50),
    }
}

#[test]
fn costs_are_charged_by_the_line_and_by_who_had_it_last() {
    let one = Cpu::performance(costs());
    let two = Cpu::performance(costs());
    let memory = dram(1, 1 << 20);
    let (mine, theirs) =
        (SimMem::new(memory.clone(), one.clone()), SimMem::new(memory, two.clone()));
    mine.store(0, 1);
    assert_eq!(one.take_cost(), Ps(200));
    mine.store(8, 1);
    mine.load(0);
    assert_eq!(one.take_cost(), Ps(2));
    assert_eq!((theirs.load(0), two.take_cost()), (1, Ps(100)));
    theirs.load(8);
    assert_eq!(two.take_cost(), Ps(1));
    theirs.store(0, 2);
    assert_eq!((mine.load(0), one.take_cost()), (2, Ps(10)), "the other has stored to it");
    mine.load(56);
    theirs.fetch_add(0, 1);
    assert_eq!((one.take_cost(), two.take_cost()), (Ps(1), Ps(21)));
    mine.fetch_add(0, 1);
    mine.fence();
    assert_eq!(one.take_cost(), Ps(10 + 20 + 30));

    let far = Memory::new(2, 1 << 20, Tier::Cxl, Coherence::Software);
    let far = SimMem::new(far, one.clone());
    far.copy_out(0, &mut [0; 4096]);
    assert_eq!(one.take_cost(), Ps(1_000 + 63 * 7));
    far.copy_in(8192 + 60, &[1; 8]);
    far.flush(8192 + 60, 8);
    assert_eq!(one.take_cost(), Ps(2_000 + 7 + 2 * 50));
    far.prefetch(32_768);
    far.load(32_768);
    assert_eq!(one.take_cost(), Ps(7 + 1));
    far.zero(1 << 19, 4096);
    assert_eq!(one.take_cost(), Ps(64 * 7));
    one.charge(Ps::ns(1));
    assert_eq!((one.cost(), one.take_cost(), one.cost()), (Ps::ns(1), Ps::ns(1), Ps::ZERO));
    assert!(far.memory().allocated_bytes() < 16 << 10, "{}", far.memory().allocated_bytes());
}

#[test]
fn an_empty_memory_takes_almost_none() {
    let mut memory = None;
    let made = allocation_counter::measure(|| memory = Some(dram(1, 1 << 30)));
    assert!(made.bytes_total < 16 << 10, "{} bytes", made.bytes_total);
    let memory = memory.unwrap();
    let mem = SimMem::new(memory.clone(), Cpu::performance(MemCosts::default()));
    mem.zero(0, 1 << 30);
    mem.load(1 << 29);
    assert_eq!(memory.allocated_bytes(), 0);
    mem.store(1 << 29, 1);
    assert!(memory.allocated_bytes() < 9 << 10, "{} bytes", memory.allocated_bytes());
    let small = dram(2, 8192);
    small.poke(8184, 1);
    assert!(small.allocated_bytes() < 5 << 10, "{} bytes", small.allocated_bytes());
}
