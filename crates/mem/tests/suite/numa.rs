//! Memory that is dealt out to nodes in small grains: each where its turn says, also if it is in
//! use by then.

use rackpool_core::seam::Mem;
use rackpool_mem::numa::{GRAIN_BYTES_MAX, MovedPages, PageTarget, Placement};
use rackpool_mem::window::Window;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

const BYTES: u64 = 80 << 20;
const PAGES: u64 = BYTES / 4096;

/// The first two nodes of those that `RACKPOOL_NODES` says are there, if they are several.
fn two_nodes() -> Option<[i32; 2]> {
    let nodes = std::env::var("RACKPOOL_NODES").unwrap_or_default();
    let nodes: Vec<i32> = nodes.split(',').filter_map(|node| node.parse().ok()).collect();
    if nodes.len() < 2 {
        println!("NOT TESTED: one memory node");
    }
    nodes.first_chunk().copied()
}

fn placement([first, second]: [i32; 2]) -> Placement {
    format!("numa:{first}=3,numa:{second}=1").parse().unwrap()
}

/// By weights of 3 and 1.
fn is_dealt_out(window: &Window, [first, second]: [i32; 2], grain: u64) {
    let pages = window.node_pages().unwrap();
    assert_eq!(pages, BTreeMap::from([(first, PAGES / 4 * 3), (second, PAGES / 4)]));
    for (turn, at) in (0..).zip((0..BYTES).step_by(grain as usize)) {
        let node = if turn % 4 == 3 { second } else { first };
        let pages = window.slice(at, grain).node_pages().unwrap();
        assert_eq!(pages, BTreeMap::from([(node, grain / 4096)]), "grain {turn}");
    }
}

#[test]
fn every_grain_lies_on_the_node_whose_turn_it_was() {
    let Some(nodes) = two_nodes() else { return };
    let placement = placement(nodes);
    for grain in [4 << 10, 64 << 10] {
        let window = Window::private(BYTES).unwrap();
        placement.deal(&window, grain).unwrap();
        is_dealt_out(&window, nodes, grain);
        let fd = rustix::fs::memfd_create("grains", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let window = placement.file(fd.as_fd(), BYTES, grain).unwrap();
        is_dealt_out(&window, nodes, grain);
        drop(window);
        // Opened again: nothing is taken, and what is touched lies where it lay.
        let window = placement.file(fd.as_fd(), BYTES, grain).unwrap();
        (0..BYTES).step_by(4096).for_each(|at| _ = window.load(at));
        is_dealt_out(&window, nodes, grain);
    }
}

/// Moves pages while a thread adds 1 to a word of each again and again.
fn moved(window: &Window, target: &PageTarget) -> MovedPages {
    target.check(std::slice::from_ref(window)).unwrap();
    target.apply(window).unwrap();
    let (mut sum, ends) = (MovedPages::default(), AtomicBool::new(false));
    let words: Vec<u64> = (0..BYTES).step_by(4096).map(|at| window.load(at)).collect();
    let rounds = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rounds = 0;
            // Relaxed: the flag carries no data.
            while !ends.load(Ordering::Relaxed) {
                (0..BYTES).step_by(4096).for_each(|at| _ = window.fetch_add(at, 1));
                rounds += 1;
            }
            rounds
        });
        let piece_bytes = target.piece_bytes();
        for at in (0..BYTES).step_by(piece_bytes as usize) {
            let moved = target.move_pages(window, 0, at, piece_bytes);
            sum.moved_bytes += moved.moved_bytes;
            sum.stayed_bytes += moved.stayed_bytes;
        }
        // Relaxed: as above.
        ends.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    for (at, word) in (0..BYTES).step_by(4096).zip(words) {
        assert_eq!(window.load(at), word + rounds, "a write at {at} was lost");
    }
    sum
}

#[test]
fn pages_move_by_turns_and_come_back_while_they_are_written() {
    let Some(nodes) = two_nodes() else { return };
    let fd = rustix::fs::memfd_create("moving", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let windows = [Window::private(BYTES).unwrap(), Window::of_file(fd.as_fd(), BYTES).unwrap()];
    for window in &windows {
        (0..BYTES).step_by(4096).for_each(|at| window.store(at + 8, at));
        for grain in [4 << 10, 64 << 10, GRAIN_BYTES_MAX] {
            let target = PageTarget::dealt(&placement(nodes), grain, BYTES);
            let quarter = MovedPages { moved_bytes: BYTES / 4, stayed_bytes: 0 };
            assert_eq!(moved(window, &target), quarter);
            is_dealt_out(window, nodes, grain);
            assert_eq!(moved(window, &target), MovedPages::default());
            // The kernel may put small pages together to huge ones meanwhile, and so moves some.
            let back = moved(window, &PageTarget::near(grain).unwrap());
            assert!(back.stayed_bytes == 0 && back.moved_bytes <= BYTES / 4, "{back:?}");
            let pages = window.node_pages().unwrap();
            assert_eq!(pages, BTreeMap::from([(nodes[0], PAGES)]));
        }
        assert!((0..BYTES).step_by(4096).all(|at| window.load(at + 8) == at));
    }
}
