//! Each safeguard of the daemon and the master is left out once, and the scenario that it is there
//! for goes wrong; with the safeguard it goes right. So no hook is without effect. (The client's
//! are in `client/tests.rs`; what memory models are needed for, in `loom_*.rs` of
//! `crates/mem/tests/models`.)

use crate::daemon_world::loans::OBJECT;
use crate::daemon_world::{PAGE, Rig, travel};
use crate::master_world;
use rackpool_core::constants::{CELLS, SLOTS_MAX};
use rackpool_core::daemon::ClientId;
use rackpool_core::layout::AllocationKind;
use rackpool_core::master::{ConnId, Master, MasterConfig, State};
use rackpool_core::placement::Policy;
use rackpool_core::seam::{Mutation, Probe, Race, Rare};
use rackpool_core::wire::{
    AuditReply, AuditRequest, MasterAnswer, MasterCall, MasterRequest, Reply, Request,
    RequestFrame, WIRE_VERSION,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Whether the scenario goes wrong.
fn fails(mutation: Option<Mutation>, scenario: &dyn Fn(&mut Rig)) -> bool {
    let run = || {
        let mut rig = Rig::new(8);
        rig.world.fuse.answers.mutation.set(mutation);
        scenario(&mut rig);
        rig.world.fuse.disarm();
        rig.finish();
    };
    catch_unwind(AssertUnwindSafe(run)).is_err()
}

fn bites(mutation: Mutation, scenario: impl Fn(&mut Rig)) {
    assert!(!fails(None, &scenario), "the scenario itself is right");
    assert!(fails(Some(mutation), &scenario), "{} changes nothing", mutation.name());
}

/// A stopped reader's cell.
const CELL: usize = (SLOTS_MAX * CELLS - 1) as usize;

#[test]
fn without_the_barrier_cells_are_looked_at_unfenced() {
    bites(Mutation::OmitBarrier, |rig| {
        rig.join(0);
        let run = rig.alloc(0, PAGE, false);
        let before = rig.world.barriers;
        rig.free(0, run, PAGE);
        rig.quiesce();
        assert_eq!(rig.world.barriers, before + 1, "one barrier for all table words");
    });
}

#[test]
fn without_the_look_at_the_cells_an_announced_frame_is_punched() {
    bites(Mutation::ReuseBeforeDrained, |rig| {
        rig.join(0);
        let run = rig.alloc(0, PAGE, false);
        rig.world.cells[CELL] = rig.world.offset_of(run) / PAGE + 1;
        rig.free(0, run, PAGE);
        for _ in 0..10 {
            rig.turn();
        }
        rig.world.cells[CELL] = 0;
    });
}

#[test]
fn without_the_masters_answer_the_directory_names_a_free_frame() {
    bites(Mutation::FreeBeforeCommit, |rig| {
        rig.join(0);
        let run = rig.alloc(0, PAGE, false);
        rig.submit(0, Request::Free { addr: run, bytes: PAGE });
        rig.run(|daemon, world| daemon.tick(1, world));
        // The daemon dies before the master has heard of it.
        rig.loses = true;
        rig.world.fuse.arm(0);
        rig.join(1);
    });
}

#[test]
fn without_the_session_record_a_repeated_atomic_is_applied_twice() {
    bites(Mutation::RetryAppliedTwice, |rig| {
        rig.join(0);
        let word = rig.alloc(0, 64, false);
        rig.ask(0, Request::FetchAdd { addr: word, n: 5 }).expect("a word of ours");
        let (id, seq) = (rig.clients[&0].id, rig.clients[&0].seq);
        let frame = RequestFrame { seq, request: Request::FetchAdd { addr: word, n: 5 } };
        rig.run(|daemon, world| daemon.on_request(id, frame, world));
        let (_, answer) = rig.world.replies.pop_back().expect("it is repeated");
        assert_eq!(answer.reply, Ok(Reply::Old { value: 0 }));
        rig.verify();
    });
}

#[test]
fn without_the_redo_record_an_answer_is_forgotten() {
    let scenario = |effects: u64| {
        move |rig: &mut Rig| {
            rig.join(0);
            rig.alloc(0, 64, false);
            rig.world.fuse.arm(effects);
            rig.alloc(0, 64, false);
            let word = *rig.live.keys().next().expect("two live");
            rig.ask(0, Request::FetchAdd { addr: rackpool_core::GAddr(word), n: 1 }).ok();
            rig.verify();
        }
    };
    let caught = (0..60).filter(|effects| {
        assert!(!fails(None, &scenario(*effects)), "a crash at effect {effects}");
        fails(Some(Mutation::DropRedo), &scenario(*effects))
    });
    assert!(caught.count() > 0);
}

#[test]
fn without_the_comparison_of_requests_the_end_of_an_old_one_answers_a_new_one() {
    bites(Mutation::ReuseSlotEarly, |rig| {
        rig.join(0);
        // Page ids are there, so that the next allocation is a job of its own.
        rig.alloc(0, 64, false);
        rig.submit(0, Request::Alloc { bytes: 2 * PAGE, kind: AllocationKind::User });
        rig.kill(0);
        rig.join(1);
        rig.submit(1, Request::Alloc { bytes: PAGE, kind: AllocationKind::User });
        rig.settle();
        rig.verify();
    });
}

struct Grants(bool);

impl Probe for Grants {
    fn mutated(&self, mutation: Mutation) -> bool {
        self.0 && mutation == Mutation::GrantWithoutLeaseWait
    }
}

fn state_after_a_join() -> State {
    let mut world = master_world::World::new();
    world.daemon(master_world::info(0, 1));
    master_world::load(&world.disk).expect("what was stored can be loaded")
}

#[test]
fn without_the_wait_a_restarted_master_gives_a_rack_away_at_once() {
    let granted = |grants| {
        let config = MasterConfig { lease_ms: 1000, policy: Policy::default(), seed: 1 };
        let mut master = Master::with_probe(state_after_a_join(), config, 5, Grants(grants));
        let mut out = Vec::new();
        let join = MasterCall::JoinDaemon(master_world::info(0, 2));
        for (id, call) in
            [MasterCall::Hello { version: WIRE_VERSION }, join].into_iter().enumerate()
        {
            let request = MasterRequest { id: id as u64, call };
            master.on_call(6, ConnId(1), request, &mut out);
        }
        assert!(matches!(out[..], [(_, ref reply)] if matches!(reply.answer,
            Ok(MasterAnswer::Welcome { .. }))));
        master.take_batch().len()
    };
    assert_eq!((granted(false), granted(true)), (0, 1));
}

#[test]
fn a_full_quarantine_is_busy_for_runs_and_nothing_else() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let small = rig.alloc(0, 64, false);
    let answers = &rig.world.fuse.answers;
    let others = Rare::ALL.into_iter().filter(|rare| *rare != Rare::QuarantineFull);
    answers.never.borrow_mut().extend(others);
    answers.dice.set(0x1234_5678_9abc);
    let mut busy = 0;
    for _ in 0..20 {
        let run = rig.alloc(0, PAGE, false);
        let before = rig.live.clone();
        while let Err(error) = rig.ask(0, Request::Free { addr: run, bytes: PAGE }) {
            assert_eq!(error.code(), "busy");
            busy += 1;
            rig.live = before.clone();
            rig.words.insert(run.0, 0);
            rig.verify();
        }
    }
    assert!(busy > 0, "it was forced");
    rig.free(0, small, 64);
    rig.world.fuse.answers.dice.set(0);
    rig.finish();
}

#[test]
fn a_remote_session_whose_record_is_needed_is_ended_as_a_whole() {
    let mut rig = Rig::new(8);
    rig.join_remote(0);
    let owned = rig.alloc(0, PAGE, true);
    let client = rig.clients.remove(&0).expect("it joined");
    let ClientId::Remote(record) = client.id else { panic!("a remote client") };
    rig.run(|daemon, _| daemon.leave_remote(record));
    let answers = &rig.world.fuse.answers;
    let others = Rare::ALL.into_iter().filter(|rare| *rare != Rare::RemoteTableFull);
    answers.never.borrow_mut().extend(others);
    answers.dice.set(0x1234_5678_9abc);
    let lives = |rig: &Rig| {
        let daemon = rig.daemon.as_ref().expect("it runs");
        daemon.sessions().any(|info| info.session == client.session)
    };
    for name in 1..100 {
        if lives(&rig) {
            rig.join_remote(name);
        }
    }
    assert!(!lives(&rig), "it is forced one time in four");
    rig.live.remove(&owned.0);
    rig.world.fuse.answers.dice.set(0);
    rig.finish();
}

#[test]
fn races_are_told_where_they_are_met() {
    let mut rig = Rig::new(8);
    rig.join(0);
    let run = rig.alloc(0, PAGE, false);
    rig.world.cells[CELL] = rig.world.offset_of(run) / PAGE + 1;
    rig.free(0, run, PAGE);
    rig.turn();
    rig.world.cells[CELL] = 0;
    rig.submit(0, Request::Alloc { bytes: 2 * PAGE, kind: AllocationKind::User });
    rig.kill(0);
    rig.quiesce();
    let met = rig.world.fuse.answers.races.borrow().clone();
    assert!(met.contains(&Race::CellSeen), "{met:?}");
    assert!(met.contains(&Race::JobOutlivedRequest), "{met:?}");
    assert!(!met.contains(&Race::RedoFinished), "{met:?}");
    rig.finish();
}

#[test]
fn without_the_list_of_open_changes_an_audit_waits_for_nobody() {
    bites(Mutation::HideChanges, |rig| {
        rig.join(0);
        rig.join(1);
        let ClientId::Slot(slot) = rig.clients[&1].id else { panic!("it is local") };
        rig.world.changing.insert(slot, 7);
        let told = match rig.ask(0, Request::Audit(AuditRequest::Changing)) {
            Ok(Reply::Audit(AuditReply::Changing(some))) => some.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(told, 1);
    });
}

#[test]
fn without_the_bitmap_what_is_lent_is_another_clients() {
    bites(Mutation::LendUnmarked, |rig| {
        rig.join_with_slot(0);
        rig.join(1);
        rig.alloc(1, OBJECT, false);
        let group = rig.lend(0, AllocationKind::User, 1)[0];
        rig.take_lent(0, &group);
        rig.alloc(1, OBJECT, false);
    });
}

#[test]
fn without_the_end_of_its_loans_a_session_leaks_what_it_did_not_hand_out() {
    bites(Mutation::KeepLoans, |rig| {
        rig.join_with_slot(0);
        rig.alloc(0, OBJECT, false);
        rig.lend(0, AllocationKind::User, 1);
        rig.kill(0);
    });
}

#[test]
fn without_the_end_of_a_waiting_free_another_clients_object_is_freed() {
    bites(Mutation::FreeQueuedTwice, |rig| {
        rig.join_with_slot(0);
        rig.join(1);
        let first = rig.alloc(0, OBJECT, false);
        rig.queue_free(0, 0, first);
        rig.empty_queue(0);
        assert_eq!(rig.alloc(1, OBJECT, false), first);
        rig.empty_queue(0);
    });
}

#[test]
fn without_the_look_at_waiting_frees_a_page_leaves_with_what_was_freed() {
    bites(Mutation::MoveQueuedFrees, |rig| {
        rig.join_with_slot(0);
        rig.join(1);
        let (freed, kept) = (rig.alloc(0, OBJECT, false), rig.alloc(0, OBJECT, false));
        rig.empty_queue(0);
        rig.queue_free(0, 0, freed);
        let away = travel::send_away(rig, 1, kept);
        assert_eq!(away.keep.objects.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
        travel::bring_back(rig, 1, &away);
    });
}
