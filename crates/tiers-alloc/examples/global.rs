//! A program whose every block comes from an arena:
//! `cargo run -p rackpool-tiers-alloc --example global`.

use rackpool_tiers_alloc::TiersAlloc;
use std::collections::HashMap;

#[global_allocator]
static ALLOCATOR: TiersAlloc = TiersAlloc::new("global", "preferred:0");

fn main() {
    let words = |of: u64| (0..50_000).map(move |n| (n * of, format!("{of} times {n}")));
    let threads = [3, 5, 7].map(|of| std::thread::spawn(move || words(of).collect::<Vec<_>>()));
    let words: HashMap<_, _> =
        threads.into_iter().flat_map(|thread| thread.join().expect("it made words")).collect();
    let statistics = ALLOCATOR.arena().expect("it gave all of that").statistics();
    let bytes = statistics.node_bytes(0);
    println!("{} words in {} MiB that node 0 was asked for", words.len(), bytes >> 20);
}
