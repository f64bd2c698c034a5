//! Turns of a drainer and of a balancer against scripted daemons: which peers they ask, in which
//! order, and what they say came of it.

use super::moving::*;
use super::*;
use crate::member::{
    BalanceReply, BalanceRequest, DrainReply, DrainReport, DrainRequest, MemberAnswer, MemberCall,
    PoolLoad, RackState,
};
use crate::wire::{FabricKind, PageMetadata, RackInfo};
use std::collections::BTreeMap;

/// Two pages of the own rack, and what is refused.
#[derive(Default)]
struct Script {
    homes: BTreeMap<u64, PageHome>,
    /// Why the old home does not let go, by page.
    stays: Vec<u64>,
    /// Whether rack 1 is full.
    full: bool,
    /// How often the rack is still not allowed to leave.
    denied: u32,
    tried: Vec<usize>,
    noted: Vec<DrainReport>,
    /// What the daemon was told when it was asked for a cold page.
    asked: Vec<BalanceRequest>,
}

fn info(rack: u16) -> RackInfo {
    RackInfo {
        rack: RackId(rack),
        region_id: [1, 1],
        epoch: 1,
        page_shift: 12,
        frame_count: 16,
        frames_free: 3,
        host: String::new(),
        control: String::new(),
        fabric: FabricKind::Tcp,
        fabric_addr: String::new(),
        alive: true,
    }
}

const LOAD: PoolLoad = PoolLoad { racks: 2, mean_milli: 500, emptiest: Some((RackId(1), 100)) };

fn full() -> Error {
    Error::Full { bytes: PAGE, free_bytes: 0, place: "there".into() }
}

impl Script {
    fn new() -> Self {
        let homes = [home(7, 0, 7, 30), home(8, 0, 8, 40)];
        let homes = homes.into_iter().map(|home| (home.page.0, home)).collect();
        Script { homes, ..Script::default() }
    }

    fn master(&mut self, call: &MasterCall) -> Said {
        Said::Master(match call {
            MasterCall::BeginMove { page, .. } => return names(&[self.homes[&page.0]]),
            MasterCall::PickRack { tried, .. } => {
                self.tried.push(tried.len());
                if tried.is_empty() { Ok(MasterAnswer::Rack(info(1))) } else { Err(full()) }
            }
            MasterCall::Member(MemberCall::Leave(RackId(0))) if self.denied > 0 => {
                self.denied -= 1;
                Err(Error::Denied { reason: "it has pages".into() })
            }
            MasterCall::Member(MemberCall::Leave(RackId(0))) => {
                Ok(MasterAnswer::Member(MemberAnswer::RackState(RackState::Left)))
            }
            MasterCall::Member(MemberCall::Load) => {
                Ok(MasterAnswer::Member(MemberAnswer::Load(LOAD)))
            }
            other => panic!("{other:?}"),
        })
    }

    fn answer(&mut self, world: &mut World, need: &Need) -> Said {
        let (rack, request) = match need {
            Need::Daemon(link, request) => (RackId(link.0), request),
            Need::Master(call) => return self.master(call),
            other => panic!("{other:?}"),
        };
        let new = |page: PageId| home(page.0, 1, (page.0 % 16) as u32, page.0 + 500);
        let word = |view: &RackView<TestMem>, at: PageHome, value| {
            view.table.store(table_word(at.frame), value);
        };
        let reply = match request {
            Request::Drain(DrainRequest::Pages { from }) => {
                let here = self.homes.values().filter(|home| home.rack == RackId(0));
                let pages = here.map(|home| home.page).filter(|page| page >= from);
                Ok(Reply::Drain(DrainReply::Pages(pages.collect())))
            }
            Request::Drain(DrainRequest::Note(report)) => {
                self.noted.push(report.clone());
                Ok(Reply::Drain(DrainReply::Noted))
            }
            Request::Balance(request) => {
                self.asked.push(request.clone());
                Ok(Reply::Balance(BalanceReply::Next(Some((PageId(7), RackId(1))))))
            }
            Request::MoveIn { .. } if self.full => Err(full()),
            Request::MoveIn { page } => {
                let PageHome { frame, generation, .. } = new(*page);
                word(&world.remote, new(*page), generation.0);
                Ok(Reply::Room { frame, generation })
            }
            Request::MoveOut { page, .. } if self.stays.contains(&page.0) => {
                Err(Error::Stays { page: *page, reason: "it is locked".into() })
            }
            Request::MoveOut { page, .. } => {
                word(&world.own, self.homes[&page.0], 777);
                Ok(Reply::Shut { key: Generation(777), keep: PageMetadata::default() })
            }
            Request::MoveCommit { from, .. } => {
                self.homes.insert(from.page.0, new(from.page));
                Ok(Reply::Moved(new(from.page)))
            }
            Request::MoveSettle { .. } => Ok(Reply::Settled { here: rack == RackId(0) }),
            other => panic!("{other:?}"),
        };
        Said::Daemon(reply)
    }

    fn run<O: Operation<TestMem>>(&mut self, op: &mut O) -> (crate::Result<O::Output>, Log) {
        let (mut world, mut client) = World::new(vec![vec![0; PAGE as usize]]);
        client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
        drive(&mut world, &mut client, op, &mut |world, need| self.answer(world, need))
    }

    fn turn(&mut self, drainer: &mut Drainer) -> Drained {
        self.run(&mut drainer.turn(1 << 63)).0.unwrap()
    }
}

#[test]
fn all_pages_go_then_a_pass_finds_none_and_the_rack_leaves() {
    let (mut script, mut drainer) = (Script { denied: 1, ..Script::new() }, Drainer::default());
    let (first, log) = script.run(&mut drainer.turn(1 << 63));
    assert_eq!(first.unwrap(), Drained::Moved(PageId(7), RackId(1)));
    let moves = ["begin 1", "in 1", "out 0", "commit 1", "settle 0"];
    assert_eq!(log, ["pages 0", "pick"].into_iter().chain(moves).collect::<Vec<_>>());
    assert_eq!(script.turn(&mut drainer), Drained::Moved(PageId(8), RackId(1)));
    let report = DrainReport { moved: 2, ..DrainReport::default() };
    assert_eq!(script.turn(&mut drainer), Drained::PassOver(report.clone()));
    assert_eq!(script.noted, [report]);
    // Something was on its way still.
    assert_eq!(script.turn(&mut drainer), Drained::PassOver(DrainReport::default()));
    let (last, log) = script.run(&mut drainer.turn(1 << 63));
    assert_eq!((last.unwrap(), log), (Drained::Left, vec!["pages 0".into(), "leave".to_owned()]));
}

#[test]
fn a_page_that_stays_is_told_with_its_reason_and_tried_again() {
    let (mut script, mut drainer) = (Script::new(), Drainer::default());
    script.stays = vec![7];
    let Drained::Stays(PageId(7), error) = script.turn(&mut drainer) else { panic!() };
    assert_eq!(error.code(), "stays");
    assert_eq!(script.turn(&mut drainer), Drained::Moved(PageId(8), RackId(1)));
    let Drained::PassOver(report) = script.turn(&mut drainer) else { panic!() };
    assert_eq!((report.moved, report.stayed), (1, 1));
    assert!(report.reasons[0].1.contains("it is locked"), "{report:?}");
    script.stays.clear();
    assert_eq!(script.turn(&mut drainer), Drained::Moved(PageId(7), RackId(1)));
}

#[test]
fn a_rack_that_does_not_take_a_page_is_not_picked_again_for_it() {
    let (mut script, mut drainer) = (Script { full: true, ..Script::new() }, Drainer::default());
    let Drained::Stays(PageId(7), error) = script.turn(&mut drainer) else { panic!() };
    assert_eq!((error.code(), script.tried.clone()), ("full", vec![0, 1]));
}

#[test]
fn a_turn_that_is_given_up_tells_both_racks_and_picks_no_other() {
    let (mut script, mut drainer) = (Script::new(), Drainer::default());
    let (mut world, mut client) = World::new(vec![vec![0; PAGE as usize]]);
    client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
    let mut turn = drainer.turn(1 << 63);
    let dead = || Error::PeerDead { peer: "it".into(), cause: crate::error::DeathCause::Closed };
    let (failed, log) = drive(&mut world, &mut client, &mut turn, &mut |world, need| match need {
        Need::Daemon(_, Request::MoveCommit { .. }) => Said::Fails(dead()),
        need => script.answer(world, need),
    });
    assert_eq!(failed.unwrap_err(), dead());
    let after = log.iter().position(|one| one == "commit 1").unwrap() + 1;
    assert_eq!(log[after..], ["settle 0", "settle 1"]);
    // The page stays, and the pass goes on without it.
    let (note, _) = script.run(&mut drainer.turn(1 << 63));
    assert!(matches!(note.unwrap(), Drained::Moved(..) | Drained::PassOver(_)));
}

#[test]
fn answers_that_make_no_sense_end_the_turn() {
    let mut drainer = Drainer::default();
    let (mut world, mut client) = World::new(vec![vec![0; PAGE as usize]]);
    for reply in [
        Reply::Pong,
        Reply::Drain(DrainReply::Pages(vec![PageId(8), PageId(7)])),
        Reply::Drain(DrainReply::Pages(vec![PageId(1); 600])),
    ] {
        let mut turn = drainer.turn(1 << 63);
        let mut say = |_: &mut World, _: &Need| Said::Daemon(Ok(reply.clone()));
        let (ended, _) = drive(&mut world, &mut client, &mut turn, &mut say);
        assert_eq!(ended.unwrap_err().code(), "protocol", "{reply:?}");
    }
}

#[test]
fn a_cold_page_goes_where_the_daemon_says_and_one_that_stays_is_named_with_the_next_question() {
    let (mut script, mut balancer) = (Script::new(), Balancer::default());
    balancer.measured(5);
    let (sent, log) = script.run(&mut balancer.turn(1 << 63));
    assert_eq!(sent.unwrap(), Balanced::Sent(PageId(7), RackId(1)));
    let moves = ["begin 1", "in 1", "out 0", "commit 1", "settle 0"];
    assert_eq!(log, ["load", "balance 0"].into_iter().chain(moves).collect::<Vec<_>>());
    let mut script = Script { full: true, ..Script::new() };
    let stays = script.run(&mut balancer.turn(1 << 63)).0.unwrap();
    assert_eq!(stays, Balanced::Stays(PageId(7), full()));
    script.run(&mut balancer.turn(1 << 63)).0.unwrap();
    let next = |failed| BalanceRequest::Next { load: LOAD, bytes_per_second: 5, failed };
    assert_eq!(script.asked, [next(None), next(Some(PageId(7)))]);
}

#[test]
fn a_rack_that_lost_its_region_gets_nothing_under_a_key_of_the_old_one() {
    let mut script = Script::new();
    let (mut world, mut client) = World::new(vec![vec![0x5a; PAGE as usize]]);
    let link = client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
    let mut op = Migrate::new(&client, addr(7, 0), RackId(1), 1 << 63);
    let frame = u64::from(home(7, 1, 7, 507).frame.0) * PAGE;
    let mut log = Log::new();
    let ended = ask(&mut world, &mut client, &mut op, &mut |world, client, need| {
        log.push(name(need));
        if matches!(need, Need::Daemon(_, Request::MoveOut { .. })) {
            // Before anything is copied.
            client.forget_link(link);
            world.remote.pages.store(frame, 0xdead);
        }
        script.answer(world, need)
    });
    assert_eq!(ended.unwrap_err().code(), "stays");
    assert_eq!(log[3..5], ["settle 0", "settle 1"]);
    assert_eq!(world.remote.pages.load(frame), 0xdead, "it is somebody else's by now");
}
