//! Simulated processes: no allocation per switch, an overflowing stack is found, and the speed of
//! switches and of memory operations, which is printed:
//! `cargo test --release -p rackpool-sim --test coro -- --nocapture`.

use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::rc::Rc;

use rackpool_core::seam::Mem;
use rackpool_sim::coro::{Coroutine, Order, Progress, STACK_BYTES, Wait, wait};
use rackpool_sim::mem::{
    Coherence, Cpu, HostCache, MemCosts, Memory, SimMem, SwitchRates, Tier, Violations,
};
use rackpool_sim::time::Ps;

const SWITCHES: u64 = if cfg!(debug_assertions) { 100_000 } else { 2_000_000 };

fn endless(count: usize) -> Vec<Coroutine> {
    let body = || {
        loop {
            wait(Wait::For(Ps::ns(1)));
        }
    };
    (0..count).map(|_| Coroutine::new(STACK_BYTES, body)).collect()
}

#[test]
fn a_switch_allocates_nothing() {
    let mut processes = endless(2);
    processes.iter_mut().for_each(|process| drop(process.resume(Order::Go)));
    let allocated = allocation_counter::measure(|| {
        for index in 0..10_000 {
            processes[index % 2].resume(Order::Go);
        }
    });
    assert_eq!(allocated.count_total, 0);
}

#[test]
fn an_operation_in_checking_mode_allocates_nothing() {
    let host = HostCache::new(1, 0, Violations::new());
    let cpu = Cpu::checking(host.clone(), 1, 0, SwitchRates::default());
    let memory = Memory::new(1, 1 << 16, Tier::Dram, Coherence::Hardware);
    let mem = SimMem::new(memory, cpu);
    let mut process = Coroutine::new(STACK_BYTES, move || {
        mem.fetch_add(0, 1);
        let allocated = allocation_counter::measure(|| {
            for round in 0..1_000 {
                mem.store(8 * (round % 64), round);
                mem.copy_in(100, &[7; 100]);
                mem.copy_out(100, &mut [0; 100]);
                mem.fetch_add(0, 1);
                host.barrier();
            }
        });
        assert_eq!(allocated.count_total, 0);
    });
    let mut progress = process.resume(Order::Go);
    while let Progress::Waiting(_) = progress {
        progress = process.resume(Order::Go);
    }
    assert_eq!(progress, Progress::Ended);
}

#[test]
fn a_thousand_processes_live_side_by_side() {
    let mut processes = endless(1_000);
    for round in 0..3 {
        for process in &mut processes {
            assert_eq!(
                process.resume(Order::Go),
                Progress::Waiting(Wait::For(Ps::ns(1))),
                "{round}"
            );
        }
    }
    assert!(processes.iter_mut().all(|process| process.resume(Order::Die) == Progress::Ended));
}

#[test]
#[ignore = "overflows its stack: run by the next test, in a process of its own"]
fn overflow() {
    fn deep(depth: u64) -> u64 {
        let room = black_box([depth; 64]);
        if black_box(depth) == u64::MAX { 0 } else { deep(depth + 1) + room[63] }
    }
    let mut process = Coroutine::new(64 << 10, || {
        black_box(deep(0));
    });
    process.resume(Order::Go);
}

#[test]
fn an_overflowing_stack_ends_the_simulator_and_damages_nothing() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "overflow"])
        .output()
        .unwrap();
    let signal = output.status.signal();
    assert!(matches!(signal, Some(11 | 6)), "{signal:?} {output:?}");
}

/// Processor time of this thread, nanoseconds: other programs do not count.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn nanos(count: u64, run: impl FnOnce()) -> f64 {
    let begin = cpu_ns();
    run();
    (cpu_ns() - begin) as f64 / count as f64
}

fn operations(name: &str, mem: &SimMem) {
    let count = SWITCHES;
    let spread = |index: u64| index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44 & !7;
    let load = nanos(count, || {
        (0..count).for_each(|index| {
            black_box(mem.load(spread(index)));
        });
    });
    let store = nanos(count, || (0..count).for_each(|index| mem.store(spread(index), index)));
    let add = nanos(count, || {
        (0..count).for_each(|index| {
            mem.fetch_add(spread(index), 1);
        });
    });
    let mut bytes = [0; 64];
    let copy = nanos(count / 4, || {
        (0..count / 4).for_each(|index| mem.copy_out(spread(index) & !63, &mut bytes));
    });
    let near = nanos(count, || {
        (0..count).for_each(|index| {
            black_box(mem.load(index % 64 * 8));
        });
    });
    println!(
        "{name:<12} load {load:>6.1} (near {near:>4.1})  store {store:>6.1}  fetch_add {add:>6.1}  \
         copy of 64 bytes {copy:>6.1} ns"
    );
}

#[test]
fn speeds_are_printed() {
    for count in [1usize, 64, 1_000] {
        let mut processes = endless(count);
        let switch = nanos(SWITCHES, || {
            for index in 0..SWITCHES as usize {
                processes[index % count].resume(Order::Go);
            }
        });
        println!("{count:>5} processes: {switch:>6.1} ns there and back");
    }
    let memory = Memory::new(1, 1 << 20, Tier::Dram, Coherence::Hardware);
    for at in (0..1 << 20).step_by(4096) {
        memory.poke(at, 1);
    }
    operations("performance", &SimMem::new(memory.clone(), Cpu::performance(MemCosts::default())));
    let host = HostCache::new(1, 0, Violations::new());
    let cpu = Cpu::checking(host, 1, 0, SwitchRates::default());
    operations("checking", &SimMem::new(memory.clone(), cpu));
    assert_eq!(Rc::strong_count(&memory), 1);
}
