//! What the event queue costs: no allocation per event, and its speed beside the standard heap.
//! The figures are printed:
//! `cargo test --release -p rackpool-sim --test suite wheel:: -- --nocapture`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rackpool_sim::rng::{Purpose, Rng};
use rackpool_sim::time::Ps;
use rackpool_sim::wheel::Wheel;

/// Mostly up to 120 ns, some up to 2 µs.
fn delay(rng: &mut Rng) -> u64 {
    let bound = if rng.chance_ppm(940_000) { 120_000 } else { 2_000_000 };
    rng.below(bound)
}

/// Pops one and pushes one, `events` times; the sum of the times, so that runs can be compared.
fn hold_wheel(wheel: &mut Wheel<u64>, rng: &mut Rng, events: u64) -> u64 {
    let mut sum = 0u64;
    for _ in 0..events {
        let (at, source, event) = wheel.pop().expect("events are held");
        sum = sum.wrapping_mul(31).wrapping_add(at.0 ^ event);
        wheel.push(at + Ps(delay(rng)), source, event);
    }
    sum
}

type Heap = BinaryHeap<Reverse<(u64, u32, u64, u64)>>;

fn hold_heap(heap: &mut Heap, sequence: &mut u64, rng: &mut Rng, events: u64) -> u64 {
    let mut sum = 0u64;
    for _ in 0..events {
        let Reverse((at, source, _, event)) = heap.pop().expect("events are held");
        sum = sum.wrapping_mul(31).wrapping_add(at ^ event);
        *sequence += 1;
        heap.push(Reverse((at + delay(rng), source, *sequence, event)));
    }
    sum
}

fn filled(pending: u64) -> (Wheel<u64>, Heap, Rng) {
    let mut rng = Rng::new(11, Purpose::Shape, pending);
    let (mut wheel, mut heap) = (Wheel::new(), Heap::new());
    for event in 0..pending {
        let (at, source) = (delay(&mut rng), (event % 64) as u32);
        wheel.push(Ps(at), source, event);
        heap.push(Reverse((at, source, event, event)));
    }
    (wheel, heap, rng)
}

#[test]
fn a_queue_in_its_steady_state_allocates_nothing() {
    for pending in [1, 64, 4_096] {
        let (mut wheel, _, mut rng) = filled(pending);
        hold_wheel(&mut wheel, &mut rng, 400_000);
        let capacity = wheel.capacity();
        let allocated = allocation_counter::measure(|| {
            hold_wheel(&mut wheel, &mut rng, 100_000);
        });
        // The sorted slot and the heap of late events may still meet a new largest size.
        assert!(allocated.count_total <= 2, "{} allocations", allocated.count_total);
        assert_eq!(wheel.capacity(), capacity);
    }
}

/// Processor time of this thread, nanoseconds: other programs do not count.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Millions a CPU-second.
fn rate(events: u64, run: impl FnOnce() -> u64) -> (f64, u64) {
    let begin = cpu_ns();
    let result = run();
    (events as f64 * 1e3 / (cpu_ns() - begin).max(1) as f64, result)
}

#[test]
fn the_order_is_that_of_the_standard_heap_and_the_speed_is_printed() {
    let events = if cfg!(debug_assertions) { 100_000 } else { 4_000_000 };
    println!("{:>9} {:>14} {:>14} {:>7}", "pending", "wheel M/s", "heap M/s", "ratio");
    for pending in [64, 1_024, 16_384, 262_144] {
        let (mut wheel, mut heap, rng) = filled(pending);
        let mut sequence = pending;
        let (wheel_rate, wheel_sum) =
            rate(events, || hold_wheel(&mut wheel, &mut rng.clone(), events));
        let (heap_rate, heap_sum) =
            rate(events, || hold_heap(&mut heap, &mut sequence, &mut rng.clone(), events));
        assert_eq!(wheel_sum, heap_sum, "{pending} pending");
        let ratio = wheel_rate / heap_rate;
        println!("{pending:>9} {wheel_rate:>14.1} {heap_rate:>14.1} {ratio:>7.1}");
    }
}
