//! Reads without a lock under loom: a bucket with a version, items in memory that is used again,
//! and an owner that replaces and moves entries, as the key-value cache does. And that loom would
//! find it, if a reader did not ask or an owner did not say. Run with
//! `cargo xtask loom`.
use loom::thread;
use rackpool_core::seam::Mem;
use rackpool_mem::version;
use rackpool_mem::window::Window;

const TAIL: u64 = 0;
/// Two slots, each of which names an item by its place.
const SLOTS: [u64; 2] = [8, 16];
/// Two items of two words: key and value, which are the same number.
const ITEMS: [u64; 2] = [64, 128];

/// As in `loom_ring.rs`: few preemptions suffice.
fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

fn write(window: &Window, item: u64, number: u64) {
    window.copy_in(item, [number.to_le_bytes(); 2].as_flattened());
}

fn read(window: &Window, item: u64) -> [u64; 2] {
    let mut words = [[0; 8]; 2];
    window.copy_out(item, words.as_flattened_mut());
    words.map(u64::from_le_bytes)
}

/// What a reader does with what it has read.
type Ask = fn(version::Seen, &Window) -> bool;
/// How an owner changes slots.
type Change = fn(&Window, &dyn Fn());

fn asks(seen: version::Seen, window: &Window) -> bool {
    seen.is_still(window, TAIL)
}

fn changes(window: &Window, change: &dyn Fn()) {
    version::change(window, TAIL, change);
}

/// The item of the first slot is replaced twice; the second time its memory is used again.
fn replaced(ask: Ask, change: Change) {
    model(move || {
        let window = Window::heap(192);
        write(&window, ITEMS[0], 1);
        window.store(SLOTS[0], ITEMS[0]);
        let owner = window.clone();
        let owner = thread::spawn(move || {
            for (number, item) in [(2, ITEMS[1]), (3, ITEMS[0])] {
                write(&owner, item, number);
                change(&owner, &|| owner.store(SLOTS[0], item));
            }
        });
        if let Some(seen) = version::begin(&window, TAIL) {
            let [key, value] = read(&window, window.load(SLOTS[0]));
            assert!(!ask(seen, &window) || key == value, "a torn item");
        }
        owner.join().expect("the owner is done");
    });
}

/// The entry in the second slot is moved to the first one, which was another's.
fn moved(ask: Ask, change: Change) {
    model(move || {
        let window = Window::heap(192);
        window.store(SLOTS[0], 1);
        window.store(SLOTS[1], 2);
        let owner = window.clone();
        let owner = thread::spawn(move || {
            change(&owner, &|| {
                owner.store(SLOTS[0], 2);
                owner.store(SLOTS[1], 0);
            });
        });
        if let Some(seen) = version::begin(&window, TAIL) {
            let is_there = SLOTS.iter().any(|slot| window.load(*slot) == 2);
            assert!(!ask(seen, &window) || is_there, "an entry was missed");
        }
        owner.join().expect("the owner is done");
    });
}

#[test]
fn a_reader_believes_no_torn_item_whose_memory_is_used_again() {
    replaced(asks, changes);
}

#[test]
fn a_reader_misses_no_entry_that_is_moved_in_its_bucket() {
    moved(asks, changes);
}

#[test]
#[should_panic(expected = "a torn item")]
fn a_reader_that_does_not_ask_believes_a_torn_item() {
    replaced(|_, _| true, changes);
}

#[test]
#[should_panic(expected = "an entry was missed")]
fn a_reader_that_does_not_ask_misses_an_entry() {
    moved(|_, _| true, changes);
}

#[test]
#[should_panic(expected = "a torn item")]
fn an_owner_that_changes_no_version_deceives_its_readers() {
    replaced(asks, |_, change| change());
}

#[test]
#[should_panic(expected = "an entry was missed")]
fn an_owner_that_says_so_only_afterwards_deceives_its_readers() {
    moved(asks, |window, change| {
        change();
        version::change(window, TAIL, || ());
    });
}
