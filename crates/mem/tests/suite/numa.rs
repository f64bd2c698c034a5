//! Memory that is dealt out to nodes in small grains: each where its turn says.

use rackpool_core::seam::Mem;
use rackpool_mem::numa::Placement;
use rackpool_mem::window::Window;
use std::collections::BTreeMap;
use std::os::fd::AsFd;

const BYTES: u64 = 80 << 20;

/// The first two of those that `RACKPOOL_NODES` says are there, if they are several.
#[test]
fn every_grain_lies_on_the_node_whose_turn_it_was() {
    let nodes = std::env::var("RACKPOOL_NODES").unwrap_or_default();
    let nodes: Vec<&str> = nodes.split(',').collect();
    let [first, second, ..] = nodes[..] else {
        println!("NOT TESTED: one memory node");
        return;
    };
    let placement: Placement = format!("numa:{first}=3,numa:{second}=1").parse().unwrap();
    let [first, second] = [first, second].map(|node| node.parse::<i32>().unwrap());
    for grain in [4 << 10, 64 << 10] {
        let check = |window: &Window| {
            let pages = window.node_pages().unwrap();
            let all = BYTES / 4096;
            assert_eq!(pages, BTreeMap::from([(first, all / 4 * 3), (second, all / 4)]));
            for (turn, at) in (0..).zip((0..BYTES).step_by(grain as usize)) {
                let node = if turn % 4 == 3 { second } else { first };
                let pages = window.slice(at, grain).node_pages().unwrap();
                assert_eq!(pages, BTreeMap::from([(node, grain / 4096)]), "grain {turn}");
            }
        };
        let window = Window::private(BYTES).unwrap();
        placement.deal(&window, grain).unwrap();
        check(&window);
        let fd = rustix::fs::memfd_create("grains", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let window = placement.file(fd.as_fd(), BYTES, grain).unwrap();
        check(&window);
        drop(window);
        // Opened again: nothing is taken, and what is touched lies where it lay.
        let window = placement.file(fd.as_fd(), BYTES, grain).unwrap();
        (0..BYTES).step_by(4096).for_each(|at| _ = window.load(at));
        check(&window);
    }
}
