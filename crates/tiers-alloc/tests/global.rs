//! A program whose every block comes from an arena: this one, the harness included. Where there can
//! be no arena the system's allocator takes its place, and the test says so.

use rackpool_tiers_alloc::{Hint, Policy, TiersAlloc};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;

#[global_allocator]
static ALLOCATOR: ArenaOrSystem =
    ArenaOrSystem(TiersAlloc::new("global", "size:256;preferred:0;bind:0"));

struct ArenaOrSystem(TiersAlloc);

impl ArenaOrSystem {
    fn chosen(&self) -> &dyn GlobalAlloc {
        if self.0.arena().is_some() { &self.0 } else { &System }
    }
}

// SAFETY: one of two allocators, the same one from the first block to the last.
unsafe impl GlobalAlloc for ArenaOrSystem {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.chosen().alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.chosen().alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { self.chosen().dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.chosen().realloc(block, layout, bytes) }
    }
}

#[test]
fn a_program_lives_on_an_arena() {
    let words = |of: u64| (0..50_000).map(move |n| (n * 10 + of, format!("{n} and {of}")));
    let threads = [3, 5, 7].map(|of| std::thread::spawn(move || words(of).collect::<Vec<_>>()));
    let words: HashMap<u64, String> =
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert_eq!((words.len(), words[&123_453].as_str()), (150_000, "12345 and 3"));
    let Some(arena) = ALLOCATOR.0.arena() else {
        println!("NOT TESTED: no arena here");
        return;
    };
    let statistics = arena.statistics();
    let short: u64 = (0..=5).map(|class| statistics.class(class).blocks).sum();
    assert!(short >= 150_000, "{short}");
    // The map's own table.
    assert!(statistics.node_bytes(0) >= 4 << 20, "{}", statistics.node_bytes(0));
    let policy: Policy = "size:256;preferred:0;bind:0".parse().unwrap();
    assert_eq!(arena.policy(), policy);
    let aligned = Layout::from_size_align(100, 4096).unwrap();
    let block = arena.allocate(aligned, Hint::Near).unwrap();
    assert!(block.addr().get().is_multiple_of(4096));
    // SAFETY: a block of the arena, which is gone.
    unsafe { arena.deallocate(block) };
}
