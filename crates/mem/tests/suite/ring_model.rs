//! Rings against a queue: random messages of the lengths that matter, random order of taking and
//! finishing, full rings, wraps and resets; and everything that must be refused.
#![cfg(not(feature = "modelled"))]

use proptest::prelude::*;
use rackpool_core::constants::{MESSAGE_BYTES_MAX, RING_ENTRIES};
use rackpool_core::layout::RING_BYTES;
use rackpool_core::seam::Mem;
use rackpool_mem::ring::{
    Consumer, Geometry, HeldMessage, INLINE_BYTES, Producer, RingError, reset, reset_with,
};
use rackpool_mem::window::Window;
use std::collections::VecDeque;

const MAX: usize = MESSAGE_BYTES_MAX as usize;

fn pair() -> (Window, Producer, Consumer) {
    let window = Window::heap(RING_BYTES);
    (window.clone(), Producer::attach(window.clone()), Consumer::attach(window))
}

fn pop(consumer: &mut Consumer) -> Option<Vec<u8>> {
    consumer.pop(<[u8]>::to_vec).map(|result| result.expect("an intact ring"))
}

fn message(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|i| (seed.wrapping_mul(31) ^ i.wrapping_mul(7) ^ (i >> 8)) as u8)
        .collect()
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    Pop,
    Hold,
    Finish(usize),
    Reset,
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        Just(0),
        0..INLINE_BYTES + 8,
        (INLINE_BYTES - 1)..(INLINE_BYTES + 2),
        1000..3000usize,
        (MAX - 1)..(MAX + 2),
        0..MAX,
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        40 => lengths().prop_map(Step::Push),
        25 => Just(Step::Pop),
        10 => Just(Step::Hold),
        10 => (0..8usize).prop_map(Step::Finish),
        1 => Just(Step::Reset),
    ];
    proptest::collection::vec(step, 1..600)
}

/// Failures print their seed; nothing is written beside the sources.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn a_ring_behaves_as_a_bounded_queue(steps in steps()) {
        let (window, mut producer, mut consumer) = pair();
        let mut queue: VecDeque<Vec<u8>> = VecDeque::new();
        let mut held: Vec<(HeldMessage, Vec<u8>)> = vec![];
        for (seed, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push(bytes) => {
                    let message = message(seed as u64, bytes);
                    let blocks = |m: &Vec<u8>| {
                        if m.len() > INLINE_BYTES { m.len().div_ceil(1024) } else { 0 }
                    };
                    let used: usize =
                        queue.iter().chain(held.iter().map(|(_, m)| m)).map(blocks).sum();
                    match producer.push(&message) {
                        Ok(()) => queue.push_back(message),
                        Err(RingError::TooLong { .. }) => prop_assert!(bytes > MAX),
                        Err(RingError::Full { .. }) => {
                            let is_full = queue.len() == RING_ENTRIES as usize;
                            // Held runs may leave holes, but none as long as what is free in all
                            // unless something is held or queued in between.
                            prop_assert!(is_full || used > 0, "refused {bytes} bytes when empty");
                            prop_assert!(is_full || blocks(&message) > 0);
                        }
                        Err(error) => prop_assert!(false, "{error}"),
                    }
                }
                Step::Pop => prop_assert_eq!(pop(&mut consumer), queue.pop_front()),
                Step::Hold => match consumer.hold() {
                    None => prop_assert!(queue.is_empty()),
                    Some(result) => {
                        let message = queue.pop_front().expect("the model has one");
                        held.push((result.expect("an intact ring"), message));
                    }
                },
                Step::Finish(index) if !held.is_empty() => {
                    let (handle, expected) = held.swap_remove(index % held.len());
                    prop_assert_eq!(consumer.read(&handle), &expected[..]);
                    consumer.finish(handle);
                }
                Step::Finish(_) => {}
                Step::Reset => {
                    reset(&window);
                    producer = Producer::attach(window.clone());
                    consumer = Consumer::attach(window.clone());
                    queue.clear();
                    held.clear();
                }
            }
        }
        while let Some(expected) = queue.pop_front() {
            prop_assert_eq!(pop(&mut consumer), Some(expected));
        }
        prop_assert_eq!(pop(&mut consumer), None);
    }
}

#[test]
fn a_full_ring_answers_full_and_takes_again_after_one_pop() {
    let (_, mut producer, mut consumer) = pair();
    for lap in 0..5u8 {
        for i in 0..RING_ENTRIES as u8 {
            producer.push(&[lap, i]).unwrap();
        }
        for _ in 0..3 {
            let entries = u64::from(RING_ENTRIES);
            assert_eq!(producer.push(&[]), Err(RingError::Full { entries }));
        }
        assert_eq!(pop(&mut consumer), Some(vec![lap, 0]));
        producer.push(&[99]).unwrap();
        assert!(matches!(producer.push(&[]), Err(RingError::Full { .. })));
        for i in 1..RING_ENTRIES as u8 {
            assert_eq!(pop(&mut consumer), Some(vec![lap, i]));
        }
        assert_eq!(pop(&mut consumer), Some(vec![99]));
        assert_eq!(pop(&mut consumer), None);
    }
}

#[test]
fn four_messages_of_the_greatest_length_are_under_way_and_a_fifth_is_refused() {
    let (_, mut producer, mut consumer) = pair();
    for i in 0..4 {
        producer.push(&message(i, MAX)).unwrap();
    }
    assert_eq!(producer.push(&message(4, MAX)), Err(RingError::Full { entries: 4 }));
    assert_eq!(producer.push(&message(4, INLINE_BYTES + 1)), Err(RingError::Full { entries: 4 }));
    producer.push(&message(4, INLINE_BYTES)).unwrap();
    for i in 0..4 {
        assert_eq!(pop(&mut consumer), Some(message(i, MAX)));
    }
    assert_eq!(pop(&mut consumer), Some(message(4, INLINE_BYTES)));
    for i in 0..4 {
        producer.push(&message(i, MAX)).unwrap();
    }
}

#[test]
fn an_unfinished_message_never_blocks_a_finished_one() {
    let (_, mut producer, mut consumer) = pair();
    producer.push(&message(7, MAX)).unwrap();
    let slow = consumer.hold().unwrap().unwrap();
    for i in 0..1000 {
        producer.push(&message(i, MAX)).unwrap();
        producer.push(&message(i, 3000)).unwrap();
        producer.push(&message(i, 20)).unwrap();
        assert_eq!(pop(&mut consumer), Some(message(i, MAX)));
        assert_eq!(pop(&mut consumer), Some(message(i, 3000)));
        assert_eq!(pop(&mut consumer), Some(message(i, 20)));
    }
    assert_eq!(consumer.read(&slow), message(7, MAX));
    consumer.finish(slow);
    for i in 0..4 {
        producer.push(&message(i, MAX)).unwrap();
    }
}

#[test]
fn a_message_that_is_too_long_is_refused_with_numbers_and_changes_nothing() {
    let (_, mut producer, mut consumer) = pair();
    let error = producer.push(&vec![0; MAX + 1]).unwrap_err();
    let (bytes, limit_bytes) = (MAX as u64 + 1, MAX as u64);
    assert_eq!(error, RingError::TooLong { bytes, limit_bytes });
    assert_eq!(pop(&mut consumer), None);
    producer.push(b"next").unwrap();
    assert_eq!(pop(&mut consumer), Some(b"next".to_vec()));
}

#[test]
fn a_producer_that_dies_before_the_publishing_store_has_sent_nothing() {
    let (window, mut producer, mut consumer) = pair();
    producer.push(b"whole").unwrap();
    // What a push writes before it publishes: the payload of the next entry, and data blocks.
    window.copy_in(4096 + 64 + 8, &[0xaa; INLINE_BYTES]);
    window.copy_in(8192, &[0xaa; MAX]);
    assert_eq!(pop(&mut consumer), Some(b"whole".to_vec()));
    assert_eq!(pop(&mut consumer), None);
    reset(&window);
    let mut producer = Producer::attach(window.clone());
    let mut consumer = Consumer::attach(window);
    producer.push(b"after").unwrap();
    assert_eq!(pop(&mut consumer), Some(b"after".to_vec()));
    assert_eq!(pop(&mut consumer), None);
}

#[test]
fn a_late_store_of_an_old_producer_is_never_taken_for_a_message() {
    let (window, mut old, _) = pair();
    reset(&window);
    let mut producer = Producer::attach(window.clone());
    let mut consumer = Consumer::attach(window);
    old.push(b"stale").unwrap();
    let answer = consumer.pop(<[u8]>::to_vec).unwrap();
    assert!(matches!(answer, Err(RingError::Corrupt { .. })), "{answer:?}");
    producer.push(b"fresh").unwrap();
    assert_eq!(pop(&mut consumer), Some(b"fresh".to_vec()));
}

#[test]
fn a_consumer_that_claims_more_than_was_pushed_is_corrupt_for_the_producer() {
    let (window, mut producer, _) = pair();
    for _ in 0..RING_ENTRIES {
        producer.push(b"x").unwrap();
    }
    window.store(64, u64::from(RING_ENTRIES) + 1);
    assert!(matches!(producer.push(b"x"), Err(RingError::Corrupt { found: 65, .. })));
    window.store(64, 10);
    producer.push(b"x").unwrap();
}

#[test]
fn the_smallest_ring_wraps_as_the_standard_one() {
    let geometry = Geometry::SMALLEST;
    let window = Window::heap(geometry.bytes());
    reset_with(&window, geometry);
    let mut producer = Producer::attach_with(window.clone(), geometry);
    let mut consumer = Consumer::attach_with(window, geometry);
    for i in 0..1000u64 {
        let bytes = (i % (geometry.message_bytes_max() as u64 + 1)) as usize;
        producer.push(&message(i, bytes)).unwrap();
        producer.push(&message(i, 3)).unwrap();
        assert!(matches!(producer.push(b""), Err(RingError::Full { entries: 2 })));
        assert_eq!(pop(&mut consumer), Some(message(i, bytes)));
        assert_eq!(pop(&mut consumer), Some(message(i, 3)));
    }
}

#[test]
#[should_panic(expected = "does not fit")]
fn a_window_shorter_than_a_ring_is_a_bug_of_the_caller() {
    Producer::attach(Window::heap(RING_BYTES - 8));
}
