//! A page's way from one use of its frame to the next, under loom: the client engine and the
//! target against the daemon engine, every interleaving of their steps on shared memory, and every
//! value that the memory model lets a load see. Run with
//! `cargo xtask loom`.
use crate::engines::model::{model, spawn};
use crate::engines::{PAGE, Rack, Section};
use loom::thread;
use rackpool_core::client::{Client, Miss, OWN, Reach};
use rackpool_core::layout::{SlotWord, cell_offset};
use rackpool_core::seam::{Mem, Mutation, Rare, WorkStatus};
use rackpool_core::wire::{PageHome, Reply, Request};
use rackpool_core::{GAddr, daemon::Daemon};

const FIRST: [u8; 16] = [1; 16];
const NEXT: [u8; 16] = [2; 16];
const LATE: [u8; 16] = [9; 16];

/// A page with the frame that it will lose, and the threads that can reach it.
struct Page {
    rack: Rack,
    daemon: Daemon,
    slot: u32,
    client: Client<Section>,
    addr: GAddr,
    home: PageHome,
}

impl Page {
    /// One frame, one page in it.
    fn new(mutation: Option<Mutation>) -> Page {
        let (mut rack, mut daemon) = Rack::start(1, mutation);
        let (slot, mut client) = rack.join(&mut daemon, 7, 1);
        let (addr, home) = rack.page(&mut daemon, (slot, &mut client), 1, true);
        client.write_warm(addr, &FIRST).expect("the page is at home");
        // The first request's answer is taken.
        rack.slot_section(slot).store(SlotWord::ConsumedSeq as u64, 1);
        Page { rack, daemon, slot, client, addr, home }
    }
}

/// Frees the page, waits until its frame can be used again, and uses it. What is written then
/// stays.
fn free_and_use_again(mut rack: Rack, mut daemon: Daemon, slot: u32, addr: GAddr) {
    let freed = rack.request(&mut daemon, slot, 2, Request::Free { addr, bytes: PAGE });
    assert_eq!(freed, Reply::Freed);
    use_again(&mut rack, &mut daemon);
}

fn use_again(rack: &mut Rack, daemon: &mut Daemon) {
    while daemon.frames_free() == 0 {
        thread::yield_now();
        daemon.tick(0, rack);
    }
    let (slot, mut client) = rack.join(daemon, 8, 1);
    let (_, home) = rack.page(daemon, (slot, &mut client), 1, false);
    rack.write_page(home, &NEXT);
    thread::yield_now();
    assert_eq!(rack.read_page(home), NEXT, "an access came late");
}

/// `access` runs while the page is freed and its frame used again.
fn against_a_free(
    mutation: Option<Mutation>,
    access: impl Fn(&Client<Section>, GAddr, PageHome) + Send + Sync + 'static,
) {
    model(None, move || {
        let Page { rack, daemon, slot, client, addr, home } = Page::new(mutation);
        let freer = spawn(move || free_and_use_again(rack, daemon, slot, addr));
        access(&client, addr, home);
        freer.join().expect("the freer saw nothing wrong");
    });
}

fn read(client: &Client<Section>, addr: GAddr, _: PageHome) {
    let mut bytes = [0; 16];
    match client.read_warm(addr, &mut bytes) {
        Ok(()) => assert_eq!(bytes, FIRST, "a read saw the frame's next use"),
        Err(miss) => assert_eq!(miss, Miss::Unknown),
    }
}

fn write(client: &Client<Section>, addr: GAddr, _: PageHome) {
    let _ = client.write_warm(addr, &LATE);
}

#[test]
fn a_warm_read_never_sees_the_next_use_of_its_frame() {
    against_a_free(None, read);
}

#[test]
fn a_warm_write_never_hits_the_next_use_of_its_frame() {
    against_a_free(None, write);
}

#[test]
fn a_warm_atomic_never_hits_the_next_use_of_its_frame() {
    against_a_free(None, |client, addr, _| {
        if let Ok(old) = client.fetch_add_warm(addr, 1) {
            assert_eq!(old.to_le_bytes(), FIRST[..8], "an atomic saw the frame's next use");
        }
    });
}

#[test]
fn a_batch_withdraws_each_announcement_by_the_next() {
    against_a_free(None, |client, addr, _| {
        let mut ops = [(addr, [0; 8]), (addr.checked_add(8).expect("in the page"), [0; 8])];
        let mut missed = Vec::new();
        let copy = |pages: &Section, offset, op: &mut (GAddr, [u8; 8])| {
            pages.copy_out(offset, &mut op.1);
        };
        let kind = rackpool_core::client::Access::Read;
        client.batch_warm(kind, &mut ops, |op| (op.0, 8), copy, &mut missed);
        for (index, (_, bytes)) in ops.iter().enumerate() {
            let hit = !missed.contains(&(index as u32));
            assert!(!hit || *bytes == FIRST[..8], "a read saw the frame's next use");
        }
    });
}

#[test]
fn a_pinned_page_keeps_its_frame_until_it_is_let_go() {
    against_a_free(None, |client, addr, _| {
        if let Ok(pinned) = client.pin(addr, 16, 1) {
            let mut bytes = [0; 16];
            pinned.view.pages.copy_out(pinned.offset, &mut bytes);
            assert_eq!(bytes, FIRST, "a pin saw the frame's next use");
            pinned.view.slot.store(cell_offset(1), 0);
        }
    });
}

/// `access` is executed by the target while the page is freed and its frame used again.
fn target_against_a_free(
    mutation: Option<Mutation>,
    rare: Option<Rare>,
    access: impl Fn(&rackpool_core::target::TargetMemory<Section>, u64, PageHome)
    + Send
    + Sync
    + 'static,
) {
    model(None, move || {
        let Page { rack, daemon, slot, addr, home, .. } = Page::new(mutation);
        let target = rack.target(rare);
        let freer = spawn(move || free_and_use_again(rack, daemon, slot, addr));
        access(&target, target.layout().frame_offset(home.frame), home);
        freer.join().expect("the freer saw nothing wrong");
    });
}

fn one_sided_read(
    target: &rackpool_core::target::TargetMemory<Section>,
    offset: u64,
    home: PageHome,
) {
    let mut bytes = [0; 16];
    match target.read(offset, home.generation, &mut bytes) {
        WorkStatus::Done(_) => assert_eq!(bytes, FIRST, "a revoked key was executed"),
        status => assert_eq!(status, WorkStatus::BadKey),
    }
}

#[test]
fn a_one_sided_read_never_sees_the_next_use_of_its_frame() {
    target_against_a_free(None, None, one_sided_read);
}

#[test]
fn a_one_sided_write_never_hits_the_next_use_of_its_frame() {
    target_against_a_free(None, None, |target, offset, home| {
        target.write(offset, home.generation, &LATE);
    });
}

#[test]
fn an_operation_in_pieces_ends_with_the_first_refusal() {
    let words = Some(Rare::TargetOneWord);
    target_against_a_free(None, words, one_sided_read);
    target_against_a_free(None, words, |target, offset, home| {
        target.write(offset, home.generation, &LATE);
    });
}

#[test]
#[should_panic(expected = "a read saw the frame's next use")]
fn a_read_that_compares_no_generation_is_caught() {
    against_a_free(Some(Mutation::SkipEpochCheckRead), read);
}

#[test]
#[should_panic(expected = "an access came late")]
fn a_write_that_compares_no_generation_is_caught() {
    against_a_free(Some(Mutation::SkipValidationWrite), write);
}

#[test]
#[should_panic(expected = "a read saw the frame's next use")]
fn a_freer_without_its_barrier_is_caught() {
    against_a_free(Some(Mutation::OmitBarrier), read);
}

#[test]
#[should_panic(expected = "a read saw the frame's next use")]
fn a_frame_that_is_used_again_while_it_is_announced_is_caught() {
    against_a_free(Some(Mutation::ReuseBeforeDrained), read);
}

#[test]
#[should_panic(expected = "a revoked key was executed")]
fn a_target_that_executes_revoked_keys_is_caught() {
    target_against_a_free(Some(Mutation::ExecuteRevokedKey), None, one_sided_read);
}

/// A handle that is dropped says so in its slot; the daemon then gives its memory to others and
/// looks at the slot's cells no more.
fn against_a_leave(leaves_first: bool) {
    model(None, move || {
        let Page { mut rack, mut daemon, slot, client, addr, .. } = Page::new(None);
        let reaper = spawn(move || {
            while rack.slot_section(slot).load(SlotWord::Left as u64) == 0 {
                thread::yield_now();
            }
            rack.leave(&mut daemon, slot);
            use_again(&mut rack, &mut daemon);
        });
        let Reach::Mapped(view) = client.reach(OWN) else { unreachable!("it is mapped") };
        if leaves_first {
            view.slot.store(SlotWord::Left as u64, 1);
        }
        client.write_warm(addr, &LATE).ok();
        view.slot.store(SlotWord::Left as u64, 1);
        reaper.join().expect("the reaper saw nothing wrong");
    });
}

#[test]
fn what_a_handle_wrote_before_it_left_never_hits_the_next_use_of_its_frame() {
    against_a_leave(false);
}

#[test]
#[should_panic(expected = "an access came late")]
fn a_handle_that_writes_after_it_left_is_caught() {
    against_a_leave(true);
}
