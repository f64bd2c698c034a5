//! Rings, bitmap, sleeping words and announcements under loom: every interleaving, and every
//! value that the memory model lets a load see. Run with
//! `cargo xtask loom`.
use loom::thread;
use rackpool_core::seam::Mem;
use rackpool_mem::ring::bitmap::Bitmap;
use rackpool_mem::ring::{self, Consumer, Geometry, Producer, RingError, WakeConsumer};
use rackpool_mem::wait::{Waiter, sleep_until_woken, wake_if_sleeping};
use rackpool_mem::window::Window;
use std::time::{Duration, Instant};

/// Checks with at most so many preemptions: few suffice for every known bug of such protocols, and
/// all of them would take hours.
fn model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

fn ring() -> (Producer, Consumer) {
    let geometry = Geometry::SMALLEST;
    let window = Window::heap(geometry.bytes());
    (Producer::attach_with(window.clone(), geometry), Consumer::attach_with(window, geometry))
}

fn push_until_taken(producer: &mut Producer, message: &[u8]) {
    while let Err(error) = producer.push(message) {
        assert!(matches!(error, RingError::Full { .. }), "{error}");
        thread::yield_now();
    }
}

fn pop_until_there(consumer: &mut Consumer) -> Vec<u8> {
    loop {
        if let Some(result) = consumer.pop(<[u8]>::to_vec) {
            return result.expect("an intact ring");
        }
        thread::yield_now();
    }
}

#[test]
fn inline_messages_arrive_whole_while_the_ring_wraps() {
    model(3, || {
        let (mut producer, mut consumer) = ring();
        let sender = thread::spawn(move || {
            for i in 1..=3u8 {
                push_until_taken(&mut producer, &[i; 16]);
            }
        });
        for i in 1..=3u8 {
            assert_eq!(pop_until_there(&mut consumer), [i; 16]);
        }
        sender.join().unwrap();
    });
}

#[test]
fn long_messages_keep_their_blocks_until_they_are_finished() {
    model(2, || {
        let geometry = Geometry { blocks: 4, block_bytes: 64, ..Geometry::SMALLEST };
        let window = Window::heap(geometry.bytes());
        let mut producer = Producer::attach_with(window.clone(), geometry);
        let mut consumer = Consumer::attach_with(window, geometry);
        // Three messages fill three of the four blocks, so that the fourth and the fifth of the
        // thread below need one that comes back while it runs.
        let mut held = vec![];
        for i in 1..=3u8 {
            producer.push(&[i; 64]).unwrap();
            held.push((consumer.hold().unwrap().unwrap(), i));
        }
        let sender = thread::spawn(move || {
            for i in 4..=5u8 {
                push_until_taken(&mut producer, &[i; 64]);
            }
        });
        let (middle, i) = held.remove(1);
        assert_eq!(consumer.read(&middle), [i; 64]);
        consumer.finish(middle);
        for i in 4..=5u8 {
            assert_eq!(pop_until_there(&mut consumer), [i; 64]);
        }
        for (left, i) in held {
            assert_eq!(consumer.read(&left), [i; 64]);
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_waiting_consumer_never_misses_its_wake_up() {
    model(3, || {
        let (mut producer, mut consumer) = ring();
        let sender = thread::spawn(move || {
            for i in 1..=2u8 {
                push_until_taken(&mut producer, &[i; 8]);
                producer.wake_if_sleeping();
            }
        });
        let deadline = Instant::now() + Duration::from_secs(3600);
        for i in 1..=2u8 {
            assert!(ring::wait(&consumer, &mut Waiter::new(), deadline));
            assert_eq!(consumer.pop(<[u8]>::to_vec), Some(Ok(vec![i; 8])));
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_sleeping_word_loses_no_wake_up() {
    model(4, || {
        let window = Window::heap(128);
        let waker = window.clone();
        let thread = thread::spawn(move || {
            waker.store(0, 1);
            wake_if_sleeping(&waker, 64);
        });
        while window.load(0) == 0 {
            sleep_until_woken(&window, 64, || window.load(0) != 0, Duration::MAX);
        }
        thread.join().unwrap();
    });
}

/// The daemon's loop on the bitmap; `EVENT` stands for its eventfd.
#[test]
fn the_bitmap_loses_no_wake_up_of_two_clients() {
    const REQUESTS: u64 = 192;
    const EVENT: u64 = 256;
    model(2, || {
        let window = Window::heap(320);
        let daemon = Bitmap::attach_small(window.clone(), 1);
        let client = |slot: u32| {
            let (window, bitmap) = (window.clone(), Bitmap::attach_small(window.clone(), 1));
            thread::spawn(move || {
                window.store(REQUESTS + 8 * u64::from(slot), 1);
                if bitmap.set(slot) {
                    window.store(EVENT, 1);
                    wake_if_sleeping(&window, EVENT + 8);
                }
            })
        };
        let clients = [client(0), client(1)];
        let mut served = 0u64;
        while served != 0b11 {
            let mut bits = daemon.take(0);
            while bits != 0 {
                let slot = bits.trailing_zeros();
                bits &= bits - 1;
                let request = window.load(REQUESTS + 8 * u64::from(slot));
                assert_eq!(request, 1, "the request comes with its bit");
                served |= 1 << slot;
            }
            if served != 0b11 && daemon.prepare_sleep() {
                while window.load(EVENT) == 0 {
                    sleep_until_woken(
                        &window,
                        EVENT + 8,
                        || window.load(EVENT) != 0,
                        Duration::MAX,
                    );
                }
                window.store(EVENT, 0);
                daemon.awake();
            }
        }
        for client in clients {
            client.join().unwrap();
        }
    });
}

const CELL: u64 = 0;
const TABLE: u64 = 64;
const FRAME: u64 = 128;

/// Frees the frame as a mover does: new generation, fence, wait for the cells; then uses it again.
fn free_and_use_again(window: &Window) {
    window.store(TABLE, 0);
    window.fence();
    while window.load(CELL) == 1 {
        thread::yield_now();
    }
    window.copy_in(FRAME, &[2; 16]);
}

#[test]
fn a_reader_that_announced_the_frame_never_sees_what_came_after_its_generation() {
    model(4, || {
        let window = Window::heap(192);
        window.store(TABLE, 7);
        window.copy_in(FRAME, &[1; 16]);
        let mover = window.clone();
        let mover = thread::spawn(move || free_and_use_again(&mover));
        for _ in 0..2 {
            window.announce(CELL, 1);
            if window.load(TABLE) == 7 {
                let mut bytes = [0; 16];
                window.copy_out(FRAME, &mut bytes);
                assert_eq!(bytes, [1; 16], "a stale generation, new bytes");
            }
            window.store(CELL, 0);
        }
        mover.join().unwrap();
    });
}

#[test]
fn a_writer_that_announced_the_frame_never_writes_into_its_next_use() {
    model(4, || {
        let window = Window::heap(192);
        window.store(TABLE, 7);
        let mover = window.clone();
        let mover = thread::spawn(move || {
            free_and_use_again(&mover);
            let mut bytes = [0; 16];
            mover.copy_out(FRAME, &mut bytes);
            assert_eq!(bytes, [2; 16], "a write came late");
        });
        window.announce(CELL, 1);
        if window.load(TABLE) == 7 {
            window.copy_in(FRAME, &[9; 16]);
        }
        window.store(CELL, 0);
        mover.join().unwrap();
    });
}

/// The model is worth something only if it finds the bug that the fence prevents.
#[test]
#[should_panic(expected = "a stale generation, new bytes")]
fn without_the_full_fence_the_reader_would_see_them() {
    model(4, || {
        let window = Window::heap(192);
        window.store(TABLE, 7);
        window.copy_in(FRAME, &[1; 16]);
        let mover = window.clone();
        let mover = thread::spawn(move || free_and_use_again(&mover));
        window.store(CELL, 1);
        if window.load(TABLE) == 7 {
            let mut bytes = [0; 16];
            window.copy_out(FRAME, &mut bytes);
            assert_eq!(bytes, [1; 16], "a stale generation, new bytes");
        }
        window.store(CELL, 0);
        mover.join().unwrap();
    });
}
