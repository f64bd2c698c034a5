//! Defects of the published code of Rcmp, as scenarios that must go right here: one test a defect,
//! named after what went wrong there. Where a safeguard is against it, the scenario goes wrong
//! without the safeguard. Two racks are two engines; the test is the mover between them and keeps
//! what both see of the directory the same. Those about heat, about peers and about limits are in
//! the files beside this one.

use crate::daemon_world::{PAGE, RACK, Rig};
use crate::master_world;
use crate::safeguards::safeguarded;
use rackpool_core::client::{Miss, OWN};
use rackpool_core::constants::{CELLS, SLOTS_MAX};
use rackpool_core::heat::{Counts, PageUse, is_read_hot};
use rackpool_core::layout::AllocationKind;
use rackpool_core::layout::table_word;
use rackpool_core::policy::{AccessCosts, MigrationPolicy, PaperParams};
use rackpool_core::relocation::{Relocation, RelocationQuery};
use rackpool_core::seam::{Mem, Mutation, WorkStatus};
use rackpool_core::wire::{
    MasterAnswer, MasterCall, PageHome, PageMetadata, Reply, Request, Resolved,
};
use rackpool_core::{FrameIndex, GAddr, Generation, PageId, RackId, Result};
use std::collections::BTreeSet;

/// The other rack, as each of the two calls it.
const OTHER: RackId = RackId(77);
const FRAMES: u32 = 8;
/// A cell of a client that is in an access.
const CELL: usize = (SLOTS_MAX * CELLS - 1) as usize;

fn code<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
    result.expect_err("a refusal").code()
}

fn rack(mutation: Option<Mutation>) -> Rig {
    let mut rig = Rig::new(FRAMES);
    rig.world.fuse.answers.mutation.set(mutation);
    rig.join(0);
    rig
}

/// Two racks with room, client 0 in each.
fn racks(mutation: Option<Mutation>) -> (Rig, Rig) {
    let (old, mut new) = (rack(mutation), rack(mutation));
    new.world.master.next_id = 1 << 32;
    (old, new)
}

fn home_of(rig: &Rig, addr: GAddr) -> PageHome {
    rig.world.master.pages[&rig.world.layout.pages.page(addr).0]
}

/// A home as the other rack's master names it.
fn seen_from_there(home: PageHome) -> PageHome {
    PageHome { rack: if home.rack == RACK { OTHER } else { RACK }, ..home }
}

fn restart(rig: &mut Rig) {
    rig.daemon = None;
    rig.start();
    rig.quiesce();
}

/// A page's move that is under way.
struct Move {
    addr: GAddr,
    from: PageHome,
    frame: FrameIndex,
    generation: Generation,
    keep: PageMetadata,
}

impl Move {
    /// The new home has a frame, the old one has shut the page.
    fn begin(old: &mut Rig, new: &mut Rig, addr: GAddr) -> Move {
        let from = home_of(old, addr);
        let page = from.page;
        new.world.master.pages.insert(page.0, seen_from_there(from));
        let Ok(Reply::Room { frame, generation }) = new.ask(0, Request::MoveIn { page }) else {
            panic!("the new home has room")
        };
        let out = Request::MoveOut { page, generation: from.generation };
        let Ok(Reply::Shut { keep, .. }) = old.ask(0, out) else { panic!("the page may leave") };
        Move { addr, from, frame, generation, keep }
    }

    fn copy(&self, old: &Rig, new: &Rig) {
        let from = old.world.layout.frame_offset(self.from.frame);
        let to = new.world.layout.frame_offset(self.frame);
        for at in (0..PAGE).step_by(8) {
            new.world.pages_mem().poke(to + at, old.world.pages_mem().peek(from + at));
        }
    }

    /// The new home's answer; what both racks see of the directory is the same afterwards.
    fn commit(&self, old: &mut Rig, new: &mut Rig) -> Result<Reply> {
        let Move { from, generation, keep, .. } = self;
        let (from, keep) = (seen_from_there(*from), keep.clone());
        let reply = new.ask(0, Request::MoveCommit { from, generation: *generation, keep });
        let now = new.world.master.pages[&from.page.0];
        old.world.master.pages.insert(from.page.0, seen_from_there(now));
        reply
    }

    /// The old home is told, and the models of both racks follow if the page has moved.
    fn settle(&self, old: &mut Rig, new: &mut Rig) -> bool {
        let page = self.from.page;
        let settled = old.ask(0, Request::MoveSettle { page });
        let now = old.world.master.pages[&page.0];
        assert_eq!(settled, Ok(Reply::Settled { here: now.rack == RACK }), "which rack has it");
        new.world.master.pages.insert(page.0, seen_from_there(now));
        if now.rack == RACK {
            return false;
        }
        old.world.master.pages.remove(&page.0);
        let first = old.world.layout.pages.join(page, 0).0;
        for addr in old.live.range(first..first + PAGE).map(|(addr, _)| *addr).collect::<Vec<_>>() {
            new.live.insert(addr, old.live.remove(&addr).expect("it is there"));
            new.words.insert(addr, old.words.remove(&addr).expect("it has a word"));
        }
        true
    }

    /// A mover that gives up tells both.
    fn give_up(&self, old: &mut Rig, new: &mut Rig) {
        assert!(!self.settle(old, new), "no commit came");
        let here = new.ask(0, Request::MoveSettle { page: self.from.page });
        assert_eq!(here, Ok(Reply::Settled { here: false }));
        new.world.master.pages.remove(&self.from.page.0);
    }
}

fn migrate(old: &mut Rig, new: &mut Rig, addr: GAddr) {
    let one = Move::begin(old, new, addr);
    one.copy(old, new);
    assert!(matches!(one.commit(old, new), Ok(Reply::Moved(_))));
    assert!(one.settle(old, new), "it was committed");
    assert_eq!(home_of(new, one.addr).frame, one.frame);
}

/// Takes every frame that is free, and fills it.
fn fill(rig: &mut Rig) -> Vec<GAddr> {
    rig.quiesce();
    let mut pages = Vec::new();
    loop {
        match rig.ask(0, Request::Alloc { bytes: PAGE, kind: AllocationKind::User }) {
            Ok(Reply::Allocated { addr }) => pages.push(addr),
            other => {
                assert_eq!(code(other), "full");
                return pages;
            }
        }
    }
}

fn free_all(rig: &mut Rig, pages: Vec<GAddr>) {
    pages.into_iter().for_each(|addr| rig.free(0, addr, PAGE));
    rig.quiesce();
}

fn finish(old: Rig, new: Rig) {
    old.finish();
    new.finish();
}

#[test]
fn migration_into_a_rack_that_was_not_full_lost_the_page() {
    let by = [Mutation::GiveAwayUnasked, Mutation::TakeBackUnasked, Mutation::HomeBeforeCommit];
    safeguarded(&by, |mutation| {
        let (mut old, mut new) = racks(mutation);
        // Nothing comes in exchange, and the page is in one place.
        let first = old.alloc(0, PAGE, false);
        migrate(&mut old, &mut new, first);
        let addr = old.alloc(0, PAGE, false);
        // Given up in its midst: the old home has it, whole.
        let given_up = Move::begin(&mut old, &mut new, addr);
        given_up.give_up(&mut old, &mut new);
        // Taken back before the commit: the new home gets nothing.
        let late = Move::begin(&mut old, &mut new, addr);
        assert!(!late.settle(&mut old, &mut new));
        assert_eq!(code(late.commit(&mut old, &mut new)), "stays");
        new.world.master.pages.remove(&late.from.page.0);
        migrate(&mut old, &mut new, addr);
        // It is kept when all other frames are used anew.
        let filled = (fill(&mut old).len(), fill(&mut new).len());
        assert_eq!(filled, (FRAMES as usize, FRAMES as usize - 2));
        old.verify();
        new.verify();
        finish(old, new);
    });
}

#[test]
fn the_second_eviction_missed_clients_that_shared_the_page() {
    safeguarded(&[Mutation::LeavePageOpen, Mutation::CopyBeforeDrained], |mutation| {
        let (mut old, mut new) = racks(mutation);
        let addr = old.alloc(0, PAGE, false);
        for _ in 0..3 {
            let home = home_of(&old, addr);
            // A client in an access is waited for, each time.
            old.world.cells[CELL] = u64::from(home.frame.0) + 1;
            let out = Request::MoveOut { page: home.page, generation: home.generation };
            assert_eq!(code(old.ask(0, out)), "stays");
            old.world.cells[CELL] = 0;
            let one = Move::begin(&mut old, &mut new, addr);
            let refused = |rig: &Rig| {
                for _ in 0..3 {
                    let mut client = rig.world.client();
                    client.install(OWN, &[home]).expect("a frame of the rack");
                    assert_eq!(client.load_warm(addr), Err(Miss::Unknown));
                    assert_eq!(client.store_warm(addr, 1), Err(Miss::Unknown));
                }
            };
            refused(&old);
            one.copy(&old, &new);
            assert!(matches!(one.commit(&mut old, &mut new), Ok(Reply::Moved(_))));
            refused(&old);
            assert!(one.settle(&mut old, &mut new));
            let filled = fill(&mut old);
            refused(&old);
            old.verify();
            free_all(&mut old, filled);
            std::mem::swap(&mut old, &mut new);
        }
        finish(old, new);
    });
}

#[test]
fn a_reply_from_before_the_move_was_installed_after_it() {
    let by =
        [Mutation::SkipEpochCheckRead, Mutation::SkipValidationWrite, Mutation::ExecuteRevokedKey];
    safeguarded(&by, |mutation| {
        let (mut old, mut new) = racks(mutation);
        let addr = old.alloc(0, PAGE, false);
        let page = home_of(&old, addr).page;
        let reply = old.ask(0, Request::Resolve { page, count: 1 });
        let Ok(Reply::Homes(homes)) = reply else { panic!("{reply:?}") };
        migrate(&mut old, &mut new, addr);
        fill(&mut old);
        {
            let mut client = old.world.client();
            client.install(OWN, &homes).expect("a frame of the rack");
            assert_eq!(client.read_warm(addr, &mut [0; 64]), Err(Miss::Unknown));
            assert_eq!(client.write_warm(addr, &[1; 64]), Err(Miss::Unknown));
            let target = old.world.target();
            let (at, key) = (old.world.layout.frame_offset(homes[0].frame), homes[0].generation);
            assert_eq!(target.read(at, key, &mut [0; 64]), WorkStatus::BadKey);
            assert_eq!(target.write(at, key, &[1; 64]), WorkStatus::BadKey);
            assert_eq!(target.cas(at, key, 0, 1), WorkStatus::BadKey);
        }
        old.verify();
        new.verify();
        finish(old, new);
    });
}

#[test]
fn a_worker_read_other_threads_tables_without_their_lock() {
    safeguarded(&[Mutation::SkipEpochCheckRead, Mutation::SkipValidationWrite], |mutation| {
        let mut rig = rack(mutation);
        let addr = rig.alloc(0, PAGE, false);
        let home = home_of(&rig, addr);
        {
            // Each has a table of its own, and no other process reads or writes it.
            let (mut one, mut other) = (rig.world.client(), rig.world.client());
            one.install(OWN, &[home]).expect("a frame of the rack");
            assert_eq!(other.load_warm(addr), Err(Miss::Unknown));
            other.install(OWN, &[home]).expect("a frame of the rack");
            assert_eq!((one.load_warm(addr), other.load_warm(addr)), (Ok(0), Ok(0)));
            // What it knew of a page is of no use once the daemon has shut it, by one store.
            let word = table_word(home.frame);
            rig.world.table_mem().poke(word, home.generation.0 + 1);
            for client in [&mut one, &mut other] {
                assert_eq!(client.read_warm(addr, &mut [0; 8]), Err(Miss::Unknown));
                assert_eq!(client.write_warm(addr, &[1; 8]), Err(Miss::Unknown));
            }
            rig.world.table_mem().poke(word, home.generation.0);
        }
        rig.finish();
    });
}

#[test]
fn an_access_past_the_end_of_a_page_reached_the_next_frame() {
    safeguarded(&[Mutation::CrossPageUnchecked], |mutation| {
        let mut rig = rack(mutation);
        let pages = fill(&mut rig);
        for addr in &pages {
            let home = home_of(&rig, *addr);
            let mut client = rig.world.client();
            client.install(OWN, &[home]).expect("a frame of the rack");
            let end = GAddr(addr.0 + PAGE - 42);
            assert_eq!(client.read_warm(end, &mut [0; 84]), Err(Miss::CrossesPage));
            assert_eq!(client.write_warm(end, &[0xff; 84]), Err(Miss::CrossesPage));
            let target = rig.world.target();
            let at = rig.world.layout.frame_offset(home.frame) + PAGE - 42;
            assert_eq!(target.read(at, home.generation, &mut [0; 84]), WorkStatus::BadRange);
            assert_eq!(target.write(at, home.generation, &[0xff; 84]), WorkStatus::BadRange);
        }
        rig.verify();
        rig.finish();
    });
}

#[test]
fn local_and_remote_compare_and_swap_were_not_atomic_with_each_other() {
    let mut rig = rack(None);
    let addr = rig.alloc(0, 64, false);
    let home = home_of(&rig, addr);
    let at = rig.world.offset_of(addr);
    for round in 0..100 {
        let before = 4 * round;
        {
            let mut client = rig.world.client();
            client.install(OWN, &[home]).expect("a frame of the rack");
            let target = rig.world.target();
            let key = home.generation;
            assert_eq!(client.cas_warm(addr, before, before + 1), Ok(Ok(before)));
            // A client that compares with what it read before that is refused, wherever it runs.
            assert_eq!(target.cas(at, key, before, 7777), WorkStatus::Done(before + 1));
            assert_eq!(target.cas(at, key, before + 1, before + 2), WorkStatus::Done(before + 1));
            assert_eq!(client.cas_warm(addr, before + 1, 7777), Ok(Err(before + 2)));
            assert_eq!(target.fetch_add(at, key, 1), WorkStatus::Done(before + 2));
        }
        rig.words.insert(addr.0, before + 3);
        let old = rig.ask(0, Request::FetchAdd { addr, n: 1 });
        assert_eq!(old, Ok(Reply::Old { value: before + 3 }));
    }
    assert_eq!(rig.world.pages_mem().peek(at), 400);
    rig.finish();
}

#[test]
fn a_remote_compare_and_swap_let_a_local_one_come_in_between() {
    safeguarded(&[Mutation::AtomicsInTwoSteps], |mutation| {
        let mut rig = rack(mutation);
        let addr = rig.alloc(0, 64, false);
        let (home, at) = (home_of(&rig, addr), rig.world.offset_of(addr));
        let pages = rig.world.pages_mem();
        let before = pages.peek(at);
        // A client of the rack swaps the word as soon as another has read it.
        pages.meanwhile.set(Some((at, before + 1)));
        let remote = rig.world.target().cas(at, home.generation, before, before + 2);
        let local_swapped = pages.meanwhile.take().is_none();
        assert!(!(local_swapped && remote == WorkStatus::Done(before)), "both have swapped");
        rig.words.insert(addr.0, pages.peek(at));
        rig.finish();
    });
}

#[test]
fn what_was_known_of_a_page_was_never_freed() {
    safeguarded(&[Mutation::KeepFreedEntries], |mutation| {
        let mut world = master_world::World::without(mutation);
        let daemon = world.daemon(master_world::info(0, 1));
        for round in 0..100 {
            let page = world.page_ids(daemon, 1);
            let homes = vec![master_world::home(page, 0, round)];
            assert_eq!(
                world.call(daemon, MasterCall::CommitPages { homes }),
                Ok(MasterAnswer::Done)
            );
            let forget = MasterCall::RemovePages { rack: RackId(0), pages: vec![page] };
            assert_eq!(world.call(daemon, forget), Ok(MasterAnswer::Done));
        }
        assert_eq!(world.master.state().directory().iter().count(), 0);
    });
}

#[test]
fn read_heat_was_write_heat() {
    let mut rig = rack(None);
    let policy = MigrationPolicy::Paper(PaperParams::default());
    rig.run(|daemon, _| daemon.set_policy(policy));
    let page = PageId(1 << 30);
    let counts = Counts { reads: 700, writes: 20 };
    let used = PageUse { page, counts };
    assert_eq!(rig.ask(0, Request::NoteUse { pages: vec![used] }), Ok(Reply::Noted));
    let costs = AccessCosts {
        local_ns: 200,
        remote_ns: 20_000,
        round_trip_ns: 50_000,
        bytes_per_second: 2_000_000_000,
    };
    let query = RelocationQuery { costs, ..RelocationQuery::default() };
    let next = rig.ask(0, Request::NextMove(query.into()));
    let Ok(Reply::NextMove(Some(Relocation::Pull(ask)))) = next else { panic!("{next:?}") };
    assert_eq!(ask.asker_use.counts, counts);
    assert!(is_read_hot(&PaperParams::default().heat, ask.asker_use.counts));
}

#[test]
fn a_join_named_at_most_two_other_racks() {
    let mut world = master_world::World::without(None);
    for rack in 0..20 {
        world.daemon(master_world::info(rack, 1));
    }
    let client = world.connect();
    let Ok(MasterAnswer::Racks(racks)) = world.call(client, MasterCall::Racks) else {
        panic!("a client may ask")
    };
    assert!(racks.iter().map(|info| info.rack).eq((0..20).map(RackId)));
}

#[test]
fn freeing_several_pages_gave_the_first_id_back_several_times() {
    safeguarded(&[Mutation::GiveIdsAgain], |mutation| {
        let mut rig = rack(mutation);
        let mut ids = BTreeSet::new();
        for _ in 0..20 {
            let run = rig.alloc(0, 3 * PAGE, false);
            let first = rig.world.layout.pages.page(run).0;
            let new = (first..first + 3).all(|id| ids.insert(id));
            assert!(new, "an id is given out once");
            rig.free(0, run, 3 * PAGE);
            assert_ne!(rig.ask(0, Request::Free { addr: run, bytes: 3 * PAGE }), Ok(Reply::Freed));
            rig.quiesce();
            // Each frame is used by one page.
            let pages = fill(&mut rig);
            assert_eq!(pages.len(), FRAMES as usize);
            let frames: BTreeSet<_> = pages.iter().map(|addr| home_of(&rig, *addr).frame).collect();
            assert_eq!(frames.len(), pages.len());
            assert!(pages.iter().all(|addr| ids.insert(rig.world.layout.pages.page(*addr).0)));
            free_all(&mut rig, pages);
        }
        rig.finish();
    });
}

#[test]
fn pages_that_were_looked_up_ahead_had_wrong_ids() {
    safeguarded(&[Mutation::LookAheadOffByOne], |mutation| {
        let mut rig = rack(mutation);
        let runs = [rig.alloc(0, 2 * PAGE, false), rig.alloc(0, 3 * PAGE, false)];
        for (run, pages) in runs.into_iter().zip([2, 3]) {
            let page = rig.world.layout.pages.page(run);
            let reply = rig.ask(0, Request::Resolve { page, count: pages });
            let Ok(Reply::Homes(homes)) = reply else { panic!("{reply:?}") };
            let ids: Vec<u64> = homes.iter().map(|home| home.page.0).collect();
            assert_eq!(ids, (page.0..page.0 + u64::from(pages)).collect::<Vec<_>>());
            assert!(homes.iter().all(|home| *home == rig.world.master.pages[&home.page.0]));
        }
        rig.finish();
    });
}

#[test]
fn a_page_whose_move_failed_never_moved_again() {
    safeguarded(&[Mutation::GiveAwayUnasked], |mutation| {
        let (mut old, mut new) = racks(mutation);
        let addr = old.alloc(0, PAGE, false);
        let page = home_of(&old, addr).page;
        // No room, a lock, a reader, a mover that gives up, a mover that dies.
        let filled = fill(&mut new);
        assert_eq!(code(new.ask(0, Request::MoveIn { page })), "full");
        free_all(&mut new, filled);
        let out = |rig: &Rig| {
            let generation = home_of(rig, addr).generation;
            Request::MoveOut { page, generation }
        };
        let lock = Request::Lock { addr, lines: 1, write: true, wait_ms: 0 };
        let Ok(Reply::Locked { token }) = old.ask(0, lock) else { panic!("it is free") };
        assert_eq!(code(old.ask(0, out(&old))), "stays");
        old.ask(0, Request::Unlock { addr, token }).expect("it is held");
        old.world.cells[CELL] = u64::from(home_of(&old, addr).frame.0) + 1;
        assert_eq!(code(old.ask(0, out(&old))), "stays");
        old.world.cells[CELL] = 0;
        for _ in 0..3 {
            let given_up = Move::begin(&mut old, &mut new, addr);
            given_up.give_up(&mut old, &mut new);
        }
        old.join(1);
        old.ask(1, out(&old)).expect("it may leave");
        old.kill(1);
        old.quiesce();
        migrate(&mut old, &mut new, addr);
        new.verify();
        finish(old, new);
    });
}

#[test]
fn counters_of_memory_that_was_given_back_went_wrong() {
    safeguarded(&[Mutation::KeepCounts], |mutation| {
        let mut rig = rack(mutation);
        for round in 0..10_u64 {
            let objects: Vec<_> = (0..30).map(|_| rig.alloc(0, 256, false)).collect();
            let (even, odd): (Vec<_>, Vec<_>) = objects
                .iter()
                .enumerate()
                .partition(|(index, _)| (*index as u64 + round).is_multiple_of(2));
            for (_, addr) in even.into_iter().chain(odd) {
                rig.free(0, *addr, 256);
                let stats = rig.daemon.as_ref().expect("it runs").stats(&rig.world);
                let live = rig.live.len() as u64;
                assert_eq!((stats.allocations, stats.allocated_bytes), (live, 256 * live));
            }
        }
        rig.finish();
    });
}

#[test]
fn pages_were_handed_out_with_what_others_had_left_in_them() {
    safeguarded(&[Mutation::HandOutUnzeroed, Mutation::SkipPunch], |mutation| {
        let mut rig = rack(mutation);
        rig.join(1);
        for bytes in [64, 1000, PAGE, 3 * PAGE] {
            for _ in 0..5 {
                // The rig looks for zeros, then fills all of it.
                let secret = rig.alloc(0, bytes, false);
                rig.ask(0, Request::FetchAdd { addr: secret, n: 42 }).expect("a word of ours");
                rig.free(0, secret, bytes);
                let other = rig.alloc(1, bytes, false);
                let at = rig.world.offset_of(other);
                assert_eq!(rig.world.pages_mem().load(at), 0);
                rig.free(1, other, bytes);
            }
        }
        rig.finish();
    });
}

#[test]
fn a_dead_client_kept_its_pages_and_stopped_the_next_shootdown() {
    safeguarded(&[Mutation::NeverEndSessions, Mutation::KeepLocksOfDead], |mutation| {
        let (mut old, mut new) = racks(mutation);
        let addr = old.alloc(0, PAGE, false);
        old.join(1);
        old.alloc(1, PAGE, true);
        let lock = Request::Lock { addr, lines: 1, write: true, wait_ms: 0 };
        old.ask(1, lock).expect("it is free");
        old.submit(1, Request::Alloc { bytes: 2 * PAGE, kind: AllocationKind::User });
        old.kill(1);
        migrate(&mut old, &mut new, addr);
        assert_eq!(fill(&mut old).len(), FRAMES as usize, "nothing is kept for the dead");
        new.verify();
        finish(old, new);
    });
}

#[test]
fn a_daemon_that_died_in_the_midst_of_a_swap_never_came_back_with_the_page() {
    safeguarded(&[Mutation::ForgetDeparture, Mutation::ForgetArrival], |mutation| {
        let (mut old, mut new) = racks(mutation);
        let addr = old.alloc(0, PAGE, false);
        // Before the commit: it stays, whole, and the new home keeps nothing.
        let one = Move::begin(&mut old, &mut new, addr);
        restart(&mut old);
        restart(&mut new);
        let stays = one.settle(&mut old, &mut new);
        assert!(!stays, "no commit came");
        assert_eq!(code(one.commit(&mut old, &mut new)), "stays");
        new.world.master.pages.remove(&one.from.page.0);
        old.verify();
        // After it: it has gone, and the old home's frame is free.
        let one = Move::begin(&mut old, &mut new, addr);
        one.copy(&old, &new);
        assert!(matches!(one.commit(&mut old, &mut new), Ok(Reply::Moved(_))));
        restart(&mut old);
        restart(&mut new);
        assert!(one.settle(&mut old, &mut new), "it was committed");
        assert_eq!(fill(&mut old).len(), FRAMES as usize);
        new.verify();
        finish(old, new);
    });
}

#[test]
fn a_daemon_that_started_again_made_its_memory_anew() {
    let mut rig = rack(None);
    let kept = [rig.alloc(0, 64, false), rig.alloc(0, 2 * PAGE, false)];
    for _ in 0..3 {
        restart(&mut rig);
        assert!(kept.iter().all(|addr| rig.live.contains_key(&addr.0)));
        rig.verify();
    }
    rig.finish();
}

#[test]
fn a_master_that_died_took_the_directory_with_it_and_latches_stayed_held() {
    safeguarded(&[Mutation::AnswerUnstored], |mutation| {
        let mut world = master_world::World::without(mutation);
        let daemon = world.daemon(master_world::info(0, 1));
        world.daemon(master_world::info(1, 1));
        let home = master_world::home(world.page_ids(daemon, 1), 0, 5);
        let commit = MasterCall::CommitPages { homes: vec![home] };
        assert_eq!(world.call(daemon, commit), Ok(MasterAnswer::Done));
        let begin = MasterCall::BeginMove { page: home.page, to: RackId(1) };
        let now = Ok(MasterAnswer::Homes(vec![Resolved::Home(home)]));
        // The holder of the right to move a page dies: the next one gets it.
        let dead = world.connect();
        let alive = world.connect();
        assert_eq!(world.call(dead, begin.clone()), now);
        assert_eq!(code(world.call(alive, begin.clone())), "stays");
        world.master.on_closed(dead);
        assert_eq!(world.call(alive, begin.clone()), now);
        // The master dies while one holds it.
        world.crash();
        assert_eq!(world.resolve(home.page), Resolved::Home(home));
        let next = world.connect();
        assert_eq!(world.call(next, begin), now);
    });
}

#[test]
fn the_33rd_client_of_a_daemons_life_found_no_queue() {
    safeguarded(&[Mutation::NeverEndSessions], |mutation| {
        let mut rig = rack(mutation);
        for name in 1..=40 {
            rig.join(name);
            rig.alloc(name, 64, true);
            rig.kill(name);
        }
        (41..=80).for_each(|name| rig.join(name));
        let stats = rig.daemon.as_ref().expect("it runs").stats(&rig.world);
        assert_eq!((stats.slots_used, stats.sessions_reaped), (41, 40));
        rig.finish();
    });
}

#[test]
fn running_out_of_memory_gave_a_bogus_address() {
    safeguarded(&[Mutation::IgnoreFullMemory], |mutation| {
        let mut rig = rack(mutation);
        let pages = fill(&mut rig);
        for bytes in [64, PAGE, 2 * PAGE] {
            assert_eq!(
                code(rig.ask(0, Request::Alloc { bytes, kind: AllocationKind::User })),
                "full"
            );
        }
        rig.verify();
        free_all(&mut rig, pages);
        rig.world.host_blocks_free = 0;
        assert_eq!(
            code(rig.ask(0, Request::Alloc { bytes: PAGE, kind: AllocationKind::User })),
            "full"
        );
        assert_eq!(code(rig.ask(0, Request::MoveIn { page: PageId(9) })), "full");
        rig.world.host_blocks_free = u64::MAX / 2;
        rig.alloc(0, PAGE, false);
        rig.finish();
    });
}

#[test]
fn a_bad_address_ended_the_daemon_or_the_master() {
    safeguarded(&[Mutation::FreeAnySize], |mutation| {
        let mut rig = rack(mutation);
        let addr = rig.alloc(0, 64, false);
        assert_eq!(code(rig.ask(0, Request::Free { addr, bytes: 128 })), "bad-free");
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let edges =
            [0, 1, 7, addr.0 + 1, addr.0 + 8, addr.0 + PAGE, u64::MAX, u64::MAX - 7, 1 << 63];
        let random = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        });
        let mut world = master_world::World::new();
        let conn = world.daemon(master_world::info(0, 1));
        for bad in edges.into_iter().chain(random.take(200)) {
            let (addr, page) = (GAddr(bad), PageId(bad));
            let generation = Generation(bad);
            let requests = [
                Request::Free { addr, bytes: 64 },
                Request::AllocInto { word: addr, bytes: 64 },
                Request::FreeFrom { word: addr, bytes: 64 },
                Request::MoveOut { page, generation },
            ];
            for request in requests {
                let reply = rig.ask(0, request.clone());
                if matches!(reply, Ok(Reply::Apart { .. })) {
                    // What the word holds may be an address of another rack: the master knows.
                    continue;
                }
                let told = code(reply);
                let known = ["not-mapped", "bad-free", "misaligned", "occupied", "out-of-bounds"];
                assert!(known.contains(&told), "{request:?}: {told}");
            }
            match rig.ask(0, Request::Resolve { page, count: 1 }) {
                Ok(found) => assert_eq!(found, Reply::Homes(Vec::new())),
                Err(error) => assert_eq!(error.code(), "protocol"),
            }
            let unmapped = Ok(MasterAnswer::Homes(vec![Resolved::Unmapped]));
            match world.call(conn, MasterCall::Resolve { page, count: 1 }) {
                Err(error) => assert_eq!(error.code(), "protocol"),
                answer => assert_eq!(answer, unmapped),
            }
            let to = RackId(bad as u16);
            match world.call(conn, MasterCall::BeginMove { page, to }) {
                Err(error) => assert_eq!((error.code(), to.0 != 0), ("no-such-rack", true)),
                answer => assert_eq!((answer, to.0), (unmapped, 0)),
            }
        }
        rig.verify();
        rig.finish();
    });
}
