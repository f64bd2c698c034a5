//! Which node blocks come from: by a placer that writes down, on any machine, and by the kernel.

use crate::support::Recorder;
use rackpool_tiers_alloc::{
    Arena, CLASSES, Error, Hint, NodeBytes, Policy, arenas, free, prometheus, usable_size,
};
use std::sync::atomic::Ordering;

const MIB: usize = 1 << 20;
const EXTENT: u64 = 2 << 20;

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

fn arena(name: &str, text: &str, recorder: &'static Recorder) -> Arena {
    Arena::with_placer(name, policy(text), recorder).unwrap()
}

fn give(blocks: Vec<*mut u8>) {
    for block in blocks {
        // SAFETY: blocks of an arena, each once.
        unsafe { free(block) };
    }
}

/// Whether bytes are as the weights say, but for so many extents.
fn assert_shares(nodes: &[NodeBytes], extents: u64) {
    let bytes: u64 = nodes.iter().map(|node| node.bytes).sum();
    let weights: u64 = nodes.iter().map(|node| u64::from(node.weight)).sum();
    assert!(bytes > 0);
    for node in nodes {
        let due = bytes / weights * u64::from(node.weight);
        assert!(node.bytes.abs_diff(due) <= extents * EXTENT, "{nodes:?}");
    }
}

#[test]
fn shares_are_exact_to_an_extent_for_all_sizes_and_threads() {
    for (name, weights) in [("w11", "0=1,1=1"), ("w31", "0=3,1=1"), ("w521", "0=5,1=2,2=1")] {
        let recorder = Recorder::new(u64::MAX);
        let arena = arena(name, &format!("weighted:{weights}"), recorder);
        let fill = |seed: usize| {
            let sizes = [16, 100, 1000, 5000, 70_000, 900_000, 3 * MIB, 33 * MIB];
            let sizes = sizes.iter().cycle().skip(seed).take(16).copied();
            let mut blocks = Vec::new();
            for size in sizes {
                let many = (2 * MIB / size).clamp(1, 4000);
                blocks.extend((0..many).map(|_| arena.malloc(size).expose_provenance()));
            }
            blocks
        };
        let blocks = std::thread::scope(|scope| {
            let threads = [0, 1, 2].map(|seed| scope.spawn(move || fill(seed)));
            threads.map(|thread| thread.join().unwrap()).concat()
        });
        let statistics = arena.statistics();
        let place = statistics.placements().next().unwrap();
        // Beside the extents' own: the last one of a mapping of its own is shorter.
        assert_shares(place.nodes(), 2);
        assert_eq!((place.unplaced_bytes, place.refused, place.regions), (0, 0, 1));
        // A page that tries the node is among the calls.
        let tried: usize = place.nodes().len() * 4096;
        let ranges = recorder.ranges.lock().unwrap();
        let told: usize = ranges.iter().map(|range| range.1).sum();
        let counted: u64 = place.nodes().iter().map(|node| node.bytes).sum();
        assert_eq!(told - tried, counted as usize);
        drop(ranges);
        give(blocks.into_iter().map(std::ptr::with_exposed_provenance_mut).collect());
        let kept = arena.statistics();
        let kept: u64 = (0..4).map(|node| kept.node_bytes(node)).sum();
        // Mappings of their own are gone, and taken off.
        assert!(kept < counted - 33 * MIB as u64, "{kept} of {counted}");
    }
}

#[test]
fn every_block_lies_in_an_extent_that_was_placed() {
    let recorder = Recorder::new(u64::MAX);
    let arena = arena("placed", "size:4096;preferred:1;weighted:2=1,3=1", recorder);
    let mut blocks = Vec::new();
    for size in [1, 8, 64, 4096, 4097, 100_000, MIB, 40 * MIB].into_iter().cycle().take(400) {
        let block = arena.malloc(size);
        assert!(!block.is_null());
        let node = recorder.node_of(block).expect("placed");
        assert_eq!(node == 1, size <= 4096, "{size} bytes on {node}");
        blocks.push(block);
        if blocks.len() == 40 {
            give(std::mem::take(&mut blocks));
        }
    }
    give(blocks);
}

#[test]
fn a_block_moves_with_its_size_and_stays_where_its_hint_put_it() {
    let recorder = Recorder::new(u64::MAX);
    let by_size = arena("grow", "size:4096;preferred:0;preferred:1", recorder);
    let block = by_size.malloc(4000);
    assert_eq!(recorder.node_of(block), Some(0));
    // SAFETY: a block of the arena.
    let block = unsafe { by_size.realloc(block, 5000) };
    assert_eq!(recorder.node_of(block), Some(1));
    // SAFETY: a block of the arena.
    let block = unsafe { by_size.realloc(block, 3000) };
    assert_eq!(recorder.node_of(block), Some(0));
    give(vec![block]);

    let by_hint = arena("hint", "hint;preferred:2;preferred:3", recorder);
    let near = by_hint.malloc(100);
    let far = by_hint.malloc_hint(100, Hint::Far);
    let node_of = |block| recorder.node_of(block);
    assert_eq!((node_of(near), node_of(far)), (Some(2), Some(3)));
    // SAFETY: a block of the arena.
    let far = unsafe { by_hint.realloc(far, 50 * MIB) };
    assert_eq!(node_of(far), Some(3));
    // SAFETY: a block of the arena.
    let far = unsafe { by_hint.realloc(far, 100) };
    assert_eq!(node_of(far), Some(3));
    // SAFETY: a block of another arena, which moves.
    let moved = unsafe { by_size.realloc(far, 100) };
    assert_eq!(node_of(moved), Some(0));
    give(vec![near, moved]);
}

#[test]
fn a_full_node_refuses_under_bind_and_gives_again_when_it_has_room() {
    let recorder = Recorder::new(200 << 20);
    let arena = arena("full", "bind:1", recorder);
    let mut blocks = Vec::new();
    loop {
        let block = arena.malloc(MIB);
        if block.is_null() {
            break;
        }
        blocks.push(block);
        // What was taken is no longer free.
        let left = (200 << 20) - recorder.populated.load(Ordering::SeqCst);
        recorder.left[1].store(left, Ordering::SeqCst);
    }
    // All but the margin of 32 MiB, and what is asked for at once.
    assert!((120..=168).contains(&blocks.len()), "{}", blocks.len());
    let place = |arena: Arena| *arena.statistics().placements().next().unwrap();
    assert!(place(arena).refused > 0);
    assert_eq!(place(arena).regions, 1, "a full node is no reason for more addresses");
    assert!(arena.malloc(64 * MIB).is_null());
    assert_eq!(place(arena).classes[26].blocks, 0);
    recorder.left[1].store(1 << 30, Ordering::SeqCst);
    let block = arena.malloc(64 * MIB);
    assert!(!block.is_null());
    let place = place(arena);
    assert_eq!((place.classes[26].blocks, place.classes[26].bytes), (1, 64 << 20));
    blocks.push(block);
    give(blocks);
    assert!(recorder.ranges.lock().unwrap().iter().all(|range| range.2 == 1 && range.3));
}

#[test]
fn shares_go_to_the_other_node_when_one_is_full_under_bind() {
    let recorder = Recorder::new(u64::MAX);
    recorder.left[0].store(0, Ordering::SeqCst);
    let arena = arena("other", "bind:0=1,1=1", recorder);
    let block = arena.malloc(8 * MIB);
    assert_eq!(recorder.node_of(block), Some(1));
    assert_eq!(arena.statistics().node_bytes(0), 0);
    give(vec![block]);
}

#[test]
fn classes_count_what_is_in_use_and_prometheus_reads_it() {
    let recorder = Recorder::new(u64::MAX);
    let arena = arena("classes", "preferred:2", recorder);
    let mut blocks: Vec<*mut u8> = (0..1000).map(|_| arena.malloc(64)).collect();
    blocks.extend((0..10).map(|_| arena.malloc(1 << 20)));
    blocks.push(arena.malloc(40 * MIB));
    let statistics = arena.statistics();
    assert_eq!((statistics.class(6).blocks, statistics.class(6).bytes), (1000, 64_000));
    assert!(statistics.class(20).blocks + statistics.class(21).blocks >= 10);
    assert_eq!(statistics.class(26).blocks, 1);
    let mut text = String::new();
    prometheus(&mut text).unwrap();
    let line = "rackpool_tiers_blocks{arena=\"classes\",placement=\"0\",up_to=\"64\"} 1000\n";
    assert!(text.contains(line), "{text}");
    let line = "rackpool_tiers_placed_bytes{arena=\"classes\",placement=\"0\",node=\"2\"} ";
    assert!(text.contains(line), "{text}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(series.starts_with("rackpool_tiers_") && value.parse::<u64>().is_ok(), "{line}");
    }
    give(blocks);
    let statistics = arena.statistics();
    let left: u64 = (0..CLASSES).map(|class| statistics.class(class).blocks).sum();
    assert_eq!(left, 0);
    assert!(arenas().any(|other| other.name() == "classes"));
}

#[test]
fn threads_that_end_leave_their_memory_to_others() {
    let recorder = Recorder::new(u64::MAX);
    let arena = arena("ending", "preferred:1", recorder);
    for _ in 0..100 {
        let taken = std::thread::spawn(move || {
            let mut blocks: Vec<_> = (0..2000).map(|_| arena.malloc(1000)).collect();
            give(blocks.split_off(1000));
            blocks.into_iter().map(<*mut u8>::expose_provenance).collect::<Vec<_>>()
        });
        let blocks = taken.join().unwrap();
        give(blocks.into_iter().map(std::ptr::with_exposed_provenance_mut).collect());
    }
    // Of 200 MB that were taken one after the other.
    let kept = arena.node_bytes(1);
    assert_eq!(kept, arena.statistics().node_bytes(1));
    assert!(kept <= 16 * EXTENT, "{kept}");
}

#[test]
fn what_cannot_move_for_want_of_memory_shrinks_where_it_is() {
    let recorder = Recorder::new(u64::MAX);
    let arena = arena("shrink", "size:4096;bind:0;bind:1", recorder);
    let block = arena.malloc(MIB);
    recorder.left[0].store(0, Ordering::SeqCst);
    // SAFETY: a block of the arena.
    let shrunk = unsafe { arena.realloc(block, 100) };
    assert_eq!((shrunk, recorder.node_of(shrunk)), (block, Some(1)));
    give(vec![shrunk]);
}

#[test]
fn collections_live_on_an_arena() {
    let recorder = Recorder::new(u64::MAX);
    let arena = arena("collections", "preferred:3", recorder);
    let mut numbers = allocator_api2::vec::Vec::new_in(arena);
    numbers.extend(0..100_000u64);
    assert_eq!(recorder.node_of(numbers.as_ptr().cast()), Some(3));
    assert_eq!(numbers.iter().sum::<u64>(), 99_999 * 50_000);
    drop(numbers);
    let statistics = arena.statistics();
    assert_eq!((0..CLASSES).map(|class| statistics.class(class).blocks).sum::<u64>(), 0);
}

#[test]
fn wrong_names_and_nodes_are_refused() {
    let recorder = Recorder::new(u64::MAX);
    for name in ["", "a b", "a\"", &"x".repeat(33)] {
        let made = Arena::with_placer(name, policy("bind:0"), recorder);
        assert_eq!(made.err(), Some(Error::Name), "{name}");
    }
    let made = Arena::with_placer("node", policy("weighted:0=1,9=1"), recorder);
    assert_eq!(made.err(), Some(Error::Node { node: 9 }));
}

#[test]
fn sizes_that_cannot_be_are_refused_and_small_ones_are_blocks() {
    let recorder = Recorder::new(u64::MAX);
    let arena = arena("sizes", "preferred:0", recorder);
    assert!(arena.malloc(usize::MAX).is_null());
    assert!(arena.malloc(isize::MAX as usize).is_null());
    assert!(arena.calloc(usize::MAX / 2, 3).is_null());
    assert!(arena.calloc(1 << 33, 1 << 33).is_null());
    assert!(arena.aligned_alloc(48, 10).is_null());
    assert!(arena.aligned_alloc(1 << 62, 10).is_null());
    let block = arena.malloc(0);
    assert!(!block.is_null());
    // SAFETY: a block of the arena.
    let usable = unsafe { usable_size(block) };
    assert!(usable < 64);
    // SAFETY: null is no block.
    assert_eq!(unsafe { usable_size(std::ptr::null()) }, 0);
    // SAFETY: a block of the arena, which stays.
    assert!(unsafe { arena.realloc(block, usize::MAX) }.is_null());
    give(vec![block, std::ptr::null_mut()]);
}

#[test]
fn the_kernel_places_by_its_policy_and_refuses_nodes_without_memory() {
    let arena = match Arena::new("kernel", policy("bind:0")) {
        Err(error) if !std::path::Path::new("/sys/devices/system/node/node0").exists() => {
            println!("NOT TESTED: no memory nodes here: {error}");
            return;
        }
        Err(error @ Error::Refused { .. }) => {
            println!("NOT TESTED: {error}");
            return;
        }
        arena => arena.unwrap(),
    };
    let made = Arena::new("absent", policy("weighted:0=1,1023=1"));
    assert_eq!(made.err(), Some(Error::Node { node: 1023 }));
    let blocks: Vec<*mut u8> = [100, 10_000, MIB, 40 * MIB]
        .into_iter()
        .map(|size| {
            let block = arena.malloc(size);
            // SAFETY: a block of that size.
            unsafe { block.write_bytes(1, size) };
            block
        })
        .collect();
    let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
    for block in &blocks {
        let starts = maps.lines().filter_map(|line| {
            let (start, rest) = line.split_once(' ')?;
            Some((usize::from_str_radix(start, 16).ok()?, rest))
        });
        let (_, line) = starts.filter(|(start, _)| *start <= block.addr()).max().unwrap();
        assert!(line.starts_with("bind=static:0 ") || line.starts_with("bind:0 "), "{line}");
    }
    assert!(arena.statistics().node_bytes(0) >= 40 << 20);
    give(blocks);
}
