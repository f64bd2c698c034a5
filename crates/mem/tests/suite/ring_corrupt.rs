//! Rings with another side that writes anything anywhere: every answer is a message in bounds,
//! nothing, or a typed error; never a panic, never an access outside the window.
#![cfg(not(feature = "modelled"))]

use proptest::prelude::*;
use rackpool_core::constants::MESSAGE_BYTES_MAX;
use rackpool_core::layout::RING_BYTES;
use rackpool_core::seam::Mem;
use rackpool_mem::ring::{Consumer, INLINE_BYTES, Producer, RingError, WakeConsumer};
use rackpool_mem::window::Window;

const ENTRIES_OFFSET: u64 = 4096;

fn drain(consumer: &mut Consumer) -> Option<RingError> {
    for _ in 0..200 {
        match consumer.pop(<[u8]>::len) {
            None => return None,
            Some(Ok(bytes)) => assert!(bytes <= MESSAGE_BYTES_MAX as usize),
            Some(Err(error)) => return Some(error),
        }
    }
    None
}

/// A word of an entry that is likely to get past the first check.
fn entry_words() -> impl Strategy<Value = (u64, u64)> {
    let first = (0u64..4, any::<u16>()).prop_map(|(lap, low)| lap << 16 | u64::from(low));
    prop_oneof![(first.clone(), 0u64..80), (first, any::<u64>()), (any::<u64>(), any::<u64>())]
}

/// Failures print their seed; nothing is written beside the sources.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn any_bytes_in_the_whole_ring_are_survived_by_both_ends(
        seed in any::<u64>(),
        before in 0..100usize,
        attach_late in any::<bool>(),
    ) {
        let window = Window::heap(RING_BYTES);
        let mut producer = Producer::attach(window.clone());
        let mut consumer = Consumer::attach(window.clone());
        for i in 0..before {
            let _ = producer.push(&vec![i as u8; i * 37 % 2000]);
            if i % 3 == 0 {
                drain(&mut consumer);
            }
        }
        let mut state = seed | 1;
        let noise: Vec<u8> = (0..RING_BYTES)
            .map(|_| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d);
                state = state.wrapping_add(0x1405_7b7e_f767_814f);
                (state >> 56) as u8
            })
            .collect();
        window.copy_in(0, &noise);
        if attach_late {
            producer = Producer::attach(window.clone());
            consumer = Consumer::attach(window.clone());
        }
        drain(&mut consumer);
        for i in 0..200usize {
            if let Err(RingError::TooLong { .. }) = producer.push(&vec![1; i * 97 % 16_000]) {
                prop_assert!(false, "no message here is too long");
            }
        }
        drain(&mut consumer);
        producer.wake_if_sleeping();
    }

    #[test]
    fn entries_made_up_by_the_other_side_are_survived(
        words in proptest::collection::vec(entry_words(), 1..64),
    ) {
        let window = Window::heap(RING_BYTES);
        let mut consumer = Consumer::attach(window.clone());
        for (i, (first, second)) in words.iter().enumerate() {
            window.store(ENTRIES_OFFSET + 64 * i as u64, *first);
            window.store(ENTRIES_OFFSET + 64 * i as u64 + 8, *second);
        }
        if let Some(error) = drain(&mut consumer) {
            prop_assert!(matches!(error, RingError::Corrupt { .. }), "{error}");
            prop_assert_eq!(drain(&mut consumer), Some(error), "the error stays");
        }
        if let Some(Ok(held)) = consumer.hold() {
            consumer.read(&held);
            consumer.finish(held);
        }
    }
}

fn answer_to(first: u64, second: u64) -> Option<Result<usize, RingError>> {
    let window = Window::heap(RING_BYTES);
    let mut consumer = Consumer::attach(window.clone());
    window.store(ENTRIES_OFFSET, first);
    window.store(ENTRIES_OFFSET + 8, second);
    consumer.pop(<[u8]>::len)
}

#[test]
fn each_bound_of_an_entry_is_checked_at_its_edge() {
    const LAP: u64 = 1 << 16;
    const DATA: u64 = 0x8000;
    let inline = INLINE_BYTES as u64;
    let max = u64::from(MESSAGE_BYTES_MAX);
    let corrupt =
        |first, second| matches!(answer_to(first, second), Some(Err(RingError::Corrupt { .. })));
    assert_eq!(answer_to(0, 0), None);
    assert_eq!(answer_to(LAP, 0), Some(Ok(0)));
    assert_eq!(answer_to(LAP | inline, 0), Some(Ok(INLINE_BYTES)));
    assert!(corrupt(LAP | (inline + 1), 0));
    assert!(corrupt(2 * LAP, 0));
    assert!(corrupt(u64::MAX, 0));
    assert!(corrupt(LAP | DATA | inline, 0), "short messages are inline");
    assert_eq!(answer_to(LAP | DATA | (inline + 1), 63), Some(Ok(INLINE_BYTES + 1)));
    assert!(corrupt(LAP | DATA | (inline + 1), 64));
    assert_eq!(answer_to(LAP | DATA | max, 48), Some(Ok(max as usize)));
    assert!(corrupt(LAP | DATA | max, 49));
    assert!(corrupt(LAP | DATA | max, u64::MAX));
    assert!(corrupt(LAP | DATA | (max + 1), 0));
}
