//! Rings and the ready bitmap between two threads: many messages with checksums, sleeping and
//! waking, and both ends on one processor.
#![cfg(not(feature = "modelled"))]

use rackpool_core::layout::{BELL_BYTES, RING_BYTES};
use rackpool_mem::ring::bitmap::Bitmap;
use rackpool_mem::ring::{self, Consumer, Producer, RingError, WakeConsumer};
use rackpool_mem::wait::Waiter;
use rackpool_mem::window::Window;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::{Duration, Instant};

fn far() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// A small generator: the same numbers on both sides.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn message(&mut self) -> Vec<u8> {
        let bytes = match self.next() % 16 {
            0 => self.next() % 16385,
            1 => self.next() % 3000,
            _ => self.next() % 60,
        };
        let seed = self.next();
        (0..bytes).map(|i| (seed >> (i % 57)) as u8 ^ i as u8).collect()
    }
}

#[test]
fn a_hundred_thousand_messages_arrive_whole_and_in_order() {
    const COUNT: u64 = 100_000;
    let window = Window::heap(RING_BYTES);
    let mut producer = Producer::attach(window.clone());
    let mut consumer = Consumer::attach(window);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut numbers = Numbers(0x5eed);
            for _ in 0..COUNT {
                let message = numbers.message();
                while let Err(error) = producer.push(&message) {
                    assert!(matches!(error, RingError::Full { .. }), "{error}");
                    std::thread::yield_now();
                }
                producer.wake_if_sleeping();
            }
        });
        let (mut numbers, mut waiter) = (Numbers(0x5eed), Waiter::new());
        for i in 0..COUNT {
            assert!(ring::wait(&consumer, &mut waiter, far()), "message {i} never came");
            let expected = numbers.message();
            consumer.pop(|m| assert_eq!(m, expected, "message {i}")).unwrap().unwrap();
        }
    });
}

#[test]
fn waiting_for_nothing_ends_at_the_deadline() {
    let consumer = Consumer::attach(Window::heap(RING_BYTES));
    let start = Instant::now();
    assert!(!ring::wait(&consumer, &mut Waiter::new(), start + Duration::from_millis(30)));
    assert!(start.elapsed() >= Duration::from_millis(30));
}

/// Round trips a second through two rings, the ends pinned as told.
fn round_trips_per_s(cpus: Option<(usize, usize)>, count: u32) -> f64 {
    let (to, from) = (Window::heap(RING_BYTES), Window::heap(RING_BYTES));
    let (mut ask, mut answer) = (Producer::attach(to.clone()), Producer::attach(from.clone()));
    let pin = |cpu: usize| {
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set).expect("pinning to a processor that we may use");
    };
    let mut elapsed = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if let Some((cpu, _)) = cpus {
                pin(cpu);
            }
            let (mut asked, mut waiter) = (Consumer::attach(to), Waiter::new());
            for _ in 0..count {
                assert!(ring::wait(&asked, &mut waiter, far()));
                asked.pop(|m| answer.push(m)).unwrap().unwrap().unwrap();
                answer.wake_if_sleeping();
            }
        });
        let client = scope.spawn(|| {
            if let Some((_, cpu)) = cpus {
                pin(cpu);
            }
            let (mut answered, mut waiter) = (Consumer::attach(from), Waiter::new());
            let start = Instant::now();
            for i in 0..count {
                ask.push(&i.to_le_bytes()).unwrap();
                ask.wake_if_sleeping();
                assert!(ring::wait(&answered, &mut waiter, far()));
                answered.pop(|m| assert_eq!(m, i.to_le_bytes())).unwrap().unwrap();
            }
            start.elapsed()
        });
        elapsed = client.join().expect("the client");
    });
    f64::from(count) / elapsed.as_secs_f64()
}

#[test]
fn two_ends_on_one_processor_do_not_crawl() {
    let allowed = sched_getaffinity(None).unwrap();
    let cpu = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
    let rate = round_trips_per_s(Some((cpu, cpu)), 20_000);
    println!("one processor, pinned: {rate:.0} round trips/s");
    // A tenth of the goal of 20,000: the machine may be busy with other tests.
    assert!(rate > 2_000.0, "{rate:.0} round trips/s");
    let rate = round_trips_per_s(None, 20_000);
    println!("not pinned: {rate:.0} round trips/s");
    assert!(rate > 2_000.0, "{rate:.0} round trips/s");
}

#[test]
fn the_bitmap_hands_over_each_slot_once() {
    let bell = Window::heap(BELL_BYTES);
    let (client, daemon) = (Bitmap::attach(bell.clone()), Bitmap::attach(bell));
    for slot in [0, 63, 64, 255] {
        assert!(!client.set(slot), "an awake daemon needs no wake-up");
    }
    assert_eq!(daemon.words(), 4);
    let taken: Vec<u64> = (0..4).map(|i| daemon.take(i)).collect();
    assert_eq!(taken, [1 | 1 << 63, 1, 0, 1 << 63]);
    assert!(!daemon.is_any_set());
    assert_eq!(daemon.take(0), 0);
}

#[test]
fn one_client_is_asked_to_wake_a_sleeping_daemon() {
    let bell = Window::heap(BELL_BYTES);
    let (client, daemon) = (Bitmap::attach(bell.clone()), Bitmap::attach(bell));
    let _ = client.set(5);
    assert!(!daemon.prepare_sleep(), "a set bit keeps the daemon awake");
    assert_eq!(daemon.take(0), 1 << 5);
    assert!(daemon.prepare_sleep());
    assert!(client.set(6));
    assert!(!client.set(7), "the first one wakes it");
    daemon.awake();
    assert!(!client.set(8));
}

#[test]
#[should_panic(expected = "slot 256")]
fn a_slot_outside_the_bitmap_is_a_bug_of_the_caller() {
    let _ = Bitmap::attach(Window::heap(BELL_BYTES)).set(256);
}
