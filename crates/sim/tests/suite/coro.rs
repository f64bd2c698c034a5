//! Simulated processes: no allocation per switch or memory operation, and an overflowing stack is
//! found.

use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;

use rackpool_core::seam::Mem;
use rackpool_sim::coro::{Coroutine, CoroutineState, Order, STACK_BYTES, Wait, wait};
use rackpool_sim::mem::{Coherence, Cpu, HostCache, Memory, SimMem, SwitchRates, Tier, Violations};
use rackpool_sim::time::Ps;

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
    while let CoroutineState::Waiting(_) = progress {
        progress = process.resume(Order::Go);
    }
    assert_eq!(progress, CoroutineState::Ended);
}

#[test]
fn a_thousand_processes_live_side_by_side() {
    let mut processes = endless(1_000);
    for round in 0..3 {
        for process in &mut processes {
            assert_eq!(
                process.resume(Order::Go),
                CoroutineState::Waiting(Wait::For(Ps::ns(1))),
                "{round}"
            );
        }
    }
    assert!(
        processes.iter_mut().all(|process| process.resume(Order::Die) == CoroutineState::Ended)
    );
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
        .args(["--ignored", "--exact", "coro::overflow"])
        .output()
        .unwrap();
    let signal = output.status.signal();
    assert!(matches!(signal, Some(11 | 6)), "{signal:?} {output:?}");
}
