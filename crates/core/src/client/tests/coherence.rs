//! What an access does where only the software keeps caches coherent: in which order it writes
//! lines back and drops them, and that it does neither where the hardware does.

use super::TestMem;
use crate::addr::{FrameIndex, Generation, PageGeometry, PageId, RackId};
use crate::client::{Client, Miss, OWN, RackView, Reach};
use crate::crash::{flush_client, flush_daemon};
use crate::layout::{RegionLayout, SLOT_BYTES, cell_offset, table_word};
use crate::seam::{Mem, Mutation, Probe};
use crate::wire::PageHome;
use std::cell::RefCell;
use std::rc::Rc;

/// Memory that notes what is done to it, as `name:operation:offset:bytes`.
#[derive(Clone, Debug)]
struct Noting {
    name: &'static str,
    is_coherent: bool,
    mutation: Option<Mutation>,
    notes: Rc<RefCell<Vec<String>>>,
    mem: TestMem,
}

impl Noting {
    fn note(&self, what: &str, offset: u64, bytes: u64) {
        self.notes.borrow_mut().push(format!("{}:{what}:{offset}:{bytes}", self.name));
    }
}

impl Probe for Noting {
    fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }
}

impl Mem for Noting {
    fn bytes(&self) -> u64 {
        self.mem.bytes()
    }
    fn load(&self, offset: u64) -> u64 {
        self.note("load", offset, 8);
        self.mem.load(offset)
    }
    fn store(&self, offset: u64, value: u64) {
        self.note("store", offset, 8);
        self.mem.store(offset, value);
    }
    fn announce(&self, offset: u64, value: u64) {
        self.note("announce", offset, 8);
        self.mem.announce(offset, value);
    }
    fn compare_exchange(&self, offset: u64, expected: u64, new: u64) -> Result<u64, u64> {
        self.note("cas", offset, 8);
        self.mem.compare_exchange(offset, expected, new)
    }
    fn fetch_add(&self, offset: u64, n: u64) -> u64 {
        self.note("add", offset, 8);
        self.mem.fetch_add(offset, n)
    }
    fn copy_out(&self, offset: u64, to: &mut [u8]) {
        self.note("out", offset, to.len() as u64);
        self.mem.copy_out(offset, to);
    }
    fn copy_in(&self, offset: u64, from: &[u8]) {
        self.note("in", offset, from.len() as u64);
        self.mem.copy_in(offset, from);
    }
    fn zero(&self, offset: u64, bytes: u64) {
        self.note("zero", offset, bytes);
        self.mem.zero(offset, bytes);
    }
    fn prefetch(&self, _offset: u64) {}
    fn fence(&self) {}
    fn is_coherent(&self) -> bool {
        self.is_coherent
    }
    fn flush(&self, offset: u64, bytes: u64) {
        self.note("flush", offset, bytes);
    }
    fn invalidate(&self, offset: u64, bytes: u64) {
        self.note("drop", offset, bytes);
    }
}

fn layout() -> RegionLayout {
    RegionLayout { pages: PageGeometry::new(12).unwrap(), frame_count: 4 }
}

/// A handle with one page in frame 1; what it did.
fn handle(
    [is_coherent, is_near]: [bool; 2],
    mutation: Option<Mutation>,
) -> (Client<Noting>, Rc<RefCell<Vec<String>>>) {
    let layout = layout();
    let notes = Rc::new(RefCell::new(Vec::new()));
    let section = |name, bytes, is_coherent| Noting {
        name,
        is_coherent,
        mutation,
        notes: notes.clone(),
        mem: TestMem::new(bytes),
    };
    let view = RackView {
        pages: section("pages", layout.pages_bytes(), is_coherent),
        table: section("table", layout.table_bytes(), is_coherent || is_near),
        slot: section("slot", SLOT_BYTES, is_coherent || is_near),
        layout,
    };
    view.table.mem.store(table_word(FrameIndex(1)), 7);
    let mut client = Client::new(RackId(0), Reach::Mapped(view), 16);
    let (page, rack) = (PageId(1), RackId(0));
    let home = PageHome { page, rack, frame: FrameIndex(1), generation: Generation(7) };
    client.install(OWN, &[home]).unwrap();
    (client, notes)
}

/// What a read of 100 bytes, then a write of 8, come to.
fn access([is_coherent, is_near]: [bool; 2], mutation: Option<Mutation>) -> Vec<String> {
    let (client, notes) = handle([is_coherent, is_near], mutation);
    let at = client.geometry().join(PageId(1), 64);
    client.read_warm(at, &mut [0; 100]).unwrap();
    client.write_warm(at, &[1; 8]).unwrap();
    notes.take()
}

fn expected() -> Vec<String> {
    let (cell, word) = (cell_offset(0), table_word(FrameIndex(1)));
    let begin = [
        format!("slot:announce:{cell}:8"),
        format!("slot:flush:{cell}:8"),
        format!("table:drop:{word}:8"),
        format!("table:load:{word}:8"),
    ];
    let end = [format!("slot:store:{cell}:8"), format!("slot:flush:{cell}:8")];
    let read = ["pages:drop:4160:100".to_owned(), "pages:out:4160:100".to_owned()];
    let write = ["drop", "in", "flush"].map(|what| format!("pages:{what}:4160:8"));
    [&begin[..], &read, &end, &begin, &write, &end].concat()
}

#[test]
fn an_access_of_another_host_drops_before_it_loads_and_shows_before_it_withdraws() {
    assert_eq!(access([false, false], None), expected());
}

#[test]
fn each_flush_and_each_drop_of_an_access_is_a_safeguard_of_its_own() {
    for (mutation, left_out) in [
        (Mutation::HideAnnouncement, 2),
        (Mutation::KeepTableLine, 2),
        (Mutation::KeepPageLines, 1),
        (Mutation::WriteIntoOldLines, 1),
        (Mutation::HidePageStores, 1),
        (Mutation::HideWithdrawal, 2),
    ] {
        let found = access([false, false], Some(mutation));
        assert_eq!(found.len() + left_out, expected().len(), "{mutation:?}");
    }
}

#[test]
fn where_the_hardware_is_coherent_nothing_is_flushed() {
    let found = access([true, true], None);
    let is_flush = |note: &String| note.contains(":flush:") || note.contains(":drop:");
    assert!(!found.iter().any(is_flush), "{found:?}");
    let plain: Vec<String> = expected().into_iter().filter(|note| !is_flush(note)).collect();
    assert_eq!(found, plain);
}

#[test]
fn on_the_daemons_own_host_only_pages_are_flushed() {
    let found = access([false, true], None);
    let is_flush = |note: &&String| note.contains(":flush:") || note.contains(":drop:");
    assert!(found.iter().filter(is_flush).all(|note| note.starts_with("pages:")), "{found:?}");
    assert_eq!(found.iter().filter(is_flush).count(), 3);
}

#[test]
fn words_of_another_hosts_memory_are_changed_by_its_daemon() {
    let at = |client: &Client<Noting>| client.geometry().join(PageId(1), 64);
    let (apart, notes) = handle([false, false], None);
    assert_eq!(apart.cas_warm(at(&apart), 0, 1), Err(Miss::Apart(OWN)));
    assert_eq!(apart.fetch_add_warm(at(&apart), 1), Err(Miss::Apart(OWN)));
    assert_eq!(apart.store_warm(at(&apart), 1), Err(Miss::Apart(OWN)));
    assert!(apart.pin(at(&apart), 8, 1).is_err());
    assert!(notes.borrow().is_empty(), "nothing was touched");
    assert_eq!(apart.load_warm(at(&apart)), Ok(0));
    let (near, _) = handle([false, true], None);
    assert_eq!(near.cas_warm(at(&near), 0, 1), Ok(Ok(0)));
    let (apart, _) = handle([false, false], Some(Mutation::AtomicsApart));
    assert_eq!(apart.fetch_add_warm(at(&apart), 1), Ok(0));
}

#[test]
fn what_the_dead_left_is_written_back() {
    let settled = |mutation| {
        let (client, notes) = handle([false, false], mutation);
        let Reach::Mapped(view) = client.reach(OWN) else { unreachable!("it was made so") };
        view.slot.mem.store(cell_offset(3), 2);
        // What a broken client announces is no frame.
        view.slot.mem.store(cell_offset(4), 100);
        flush_client(&view.slot, &view.pages, &view.layout, view.layout.frame_count);
        flush_daemon(&view.table, &view.pages, &view.layout, 2);
        let mut notes = notes.take();
        notes.retain(|note| !note.contains(":load:"));
        notes
    };
    let page_bytes = 4096;
    let of_slot = [format!("pages:flush:{page_bytes}:{page_bytes}"), whole("slot", SLOT_BYTES)];
    let table_bytes = RegionLayout::table_bytes(&layout());
    let of_daemon = [whole("table", table_bytes), whole("pages", 2 * page_bytes)];
    assert_eq!(settled(None), [&of_slot[..], &of_daemon].concat());
    assert_eq!(settled(Some(Mutation::LeaveDeadLines)), of_daemon);
    assert_eq!(settled(Some(Mutation::LeaveLinesAtAttach)), of_slot);
}

fn whole(name: &str, bytes: u64) -> String {
    format!("{name}:flush:0:{bytes}")
}
