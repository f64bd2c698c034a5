//! A mover against scripted racks: what it asks for, what it copies, and which peers it tells when
//! it gives up.

use super::moving::*;
use super::*;
use crate::constants::{MOVE_BITMAP_WORDS_MAX, MOVE_CHUNK_BYTES};
use crate::wire::PageMetadata;

const PAGE_7: u64 = 7;
const KEY: u64 = 777;
/// The stages of a move, as the script calls them.
const STAGES: [&str; 3] = ["in", "out", "commit"];

fn keep() -> PageMetadata {
    PageMetadata { shift: 6, objects: vec![5; 1], lock_token: 3, ..PageMetadata::default() }
}

/// Two racks that do as they should, except for what a test changes.
struct Racks {
    from: PageHome,
    room: PageHome,
    /// What the request of that stage is answered instead.
    instead: Vec<(&'static str, Said)>,
}

impl Racks {
    /// Page 7 moves out of that rack into the other one.
    fn out_of(rack: u16) -> Self {
        let (from, room) = (home(PAGE_7, rack, 3, 30), home(PAGE_7, 1 - rack, 4, 40));
        Self { from, room, instead: vec![] }
    }

    fn but(mut self, stage: &'static str, said: Said) -> Self {
        self.instead.push((stage, said));
        self
    }

    fn view<'w>(&self, world: &'w World, rack: RackId) -> &'w RackView<TestMem> {
        if rack == RackId(0) { &world.own } else { &world.remote }
    }

    fn word(&self, world: &World, at: PageHome, value: u64) {
        self.view(world, at.rack).table.store(table_word(at.frame), value);
    }

    fn answer(&mut self, world: &mut World, need: &Need) -> Said {
        let Need::Daemon(link, request) = need else {
            let Need::Master(MasterCall::BeginMove { page: PageId(PAGE_7), to }) = need else {
                panic!("{need:?}")
            };
            let stage = if *to == self.room.rack { "begin" } else { "give up" };
            return self.take(stage).unwrap_or_else(|| names(&[self.from]));
        };
        let rack = RackId(link.0);
        let (stage, from, room) = match request {
            Request::MoveIn { page } => {
                assert_eq!((*page, rack), (self.room.page, self.room.rack));
                self.word(world, self.room, self.room.generation.0);
                let Racks { room: PageHome { frame, generation, .. }, .. } = *self;
                return self.said("in", Reply::Room { frame, generation });
            }
            Request::MoveOut { page, generation } => {
                let asked = PageHome { page: *page, rack, generation: *generation, ..self.from };
                assert_eq!(asked, self.from);
                self.word(world, self.from, KEY);
                return self.said("out", Reply::Shut { key: Generation(KEY), keep: keep() });
            }
            Request::MoveCommit { from, generation, keep: with } => {
                assert_eq!(
                    (rack, *generation, with),
                    (self.room.rack, self.room.generation, &keep())
                );
                ("commit", *from, self.room)
            }
            Request::MoveSettle { page } => {
                assert_eq!(*page, self.from.page);
                let stage = if rack == self.from.rack { "settle source" } else { "settle target" };
                self.word(world, if rack == self.from.rack { self.from } else { self.room }, 0);
                return self.said(stage, Reply::Settled { here: false });
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(from, self.from);
        self.said(stage, Reply::Moved(room))
    }

    fn take(&mut self, stage: &str) -> Option<Said> {
        let index = self.instead.iter().position(|(of, _)| *of == stage)?;
        Some(self.instead.remove(index).1)
    }

    fn said(&mut self, stage: &str, reply: Reply) -> Said {
        self.take(stage).unwrap_or(Said::Daemon(Ok(reply)))
    }
}

/// A client with links to both racks, with page 7 full of a pattern.
fn start(racks: &Racks) -> (World, Client<TestMem>, Vec<u8>) {
    let (world, mut client) = World::new(vec![vec![0; PAGE as usize]]);
    client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
    let bytes: Vec<u8> = (0..PAGE).map(|i| (i % 251) as u8).collect();
    racks.word(&world, racks.from, racks.from.generation.0);
    let at = u64::from(racks.from.frame.0) * PAGE;
    racks.view(&world, racks.from.rack).pages.copy_in(at, &bytes);
    (world, client, bytes)
}

fn migrate(
    world: &mut World,
    client: &mut Client<TestMem>,
    racks: &mut Racks,
) -> (crate::Result<PageHome>, Log) {
    let mut op = Migrate::new(client, addr(PAGE_7, 100), racks.room.rack, 1 << 63);
    let (result, log) = drive(world, client, &mut op, &mut |world, need| racks.answer(world, need));
    for view in [&world.own, &world.remote] {
        assert_eq!(view.slot.load(cell_offset(0)), 0, "no cell stays announced");
    }
    (result, log)
}

/// The error and what was asked, of a move out of rack 0.
fn failed(racks: Racks) -> (Error, Log) {
    let mut racks = racks;
    let (mut world, mut client, _) = start(&racks);
    let (result, log) = migrate(&mut world, &mut client, &mut racks);
    (result.unwrap_err(), log)
}

#[test]
fn a_move_is_one_call_to_the_master_four_requests_and_one_copy_of_the_page() {
    for (rack, log) in [
        (0, ["begin 1", "in 1", "out 0", "commit 1", "settle 0"]),
        (1, ["begin 0", "in 0", "out 1", "commit 0", "settle 1"]),
    ] {
        let mut racks = Racks::out_of(rack);
        let (mut world, mut client, bytes) = start(&racks);
        let (result, asked) = migrate(&mut world, &mut client, &mut racks);
        assert_eq!(result, Ok(racks.room));
        assert_eq!(asked, log);
        assert_eq!(world.doorbells, 1, "one side is mapped, the other one takes one operation");
        assert_eq!(client.home_of(PageId(PAGE_7)), Some(racks.room));
        let mut arrived = vec![0; PAGE as usize];
        let at = u64::from(racks.room.frame.0) * PAGE;
        racks.view(&world, racks.room.rack).pages.copy_out(at, &mut arrived);
        assert_eq!(arrived, bytes);
    }
}

#[test]
fn a_page_moves_between_two_other_racks_as_well() {
    let mut racks = Racks::out_of(1);
    racks.room.rack = RackId(2);
    let (mut world, mut client, bytes) = start(&racks);
    let third = view();
    third.table.store(table_word(racks.room.frame), racks.room.generation.0);
    client.add_link(RackId(2), Reach::Mapped(third.clone())).unwrap();
    let (result, log) = migrate(&mut world, &mut client, &mut racks);
    assert_eq!(result, Ok(racks.room));
    assert_eq!(log, ["begin 2", "in 2", "out 1", "commit 2", "settle 1"]);
    let mut arrived = vec![0; PAGE as usize];
    third.pages.copy_out(u64::from(racks.room.frame.0) * PAGE, &mut arrived);
    assert_eq!(arrived, bytes);
    assert_eq!(third.slot.load(cell_offset(0)), 0);
}

#[test]
fn a_large_page_goes_in_chunks_through_a_small_buffer() {
    let page_bytes = 4 * MOVE_CHUNK_BYTES;
    let layout =
        RegionLayout { pages: PageGeometry::from_page_bytes(page_bytes).unwrap(), frame_count: 1 };
    let view = || RackView {
        pages: TestMem::new(layout.pages_bytes()),
        table: TestMem::new(layout.table_bytes()),
        slot: TestMem::new(4096),
        layout,
    };
    let (mut world, _) = World::new(vec![vec![0; MOVE_CHUNK_BYTES as usize]]);
    (world.own, world.remote) = (view(), view());
    let mut client = Client::new(RackId(0), Reach::Mapped(world.own.clone()), 64);
    client.add_link(RackId(1), Reach::OneSided(layout)).unwrap();
    assert_eq!(Migrate::buffer_bytes(&client), MOVE_CHUNK_BYTES);
    let mut racks = Racks::out_of(0);
    (racks.from.frame, racks.room.frame) = (FrameIndex(0), FrameIndex(0));
    (0..page_bytes / 8).for_each(|i| world.own.pages.store(8 * i, i + 1));
    let mut op = Migrate::new(&client, layout.pages.join(PageId(PAGE_7), 5), RackId(1), 9);
    let answer = &mut |world: &mut World, need: &Need| racks.answer(world, need);
    let (result, log) = drive(&mut world, &mut client, &mut op, answer);
    assert_eq!(result.map(|home| home.rack), Ok(RackId(1)));
    assert_eq!(log.len(), 5);
    assert_eq!(world.doorbells, 4);
    assert!((0..page_bytes / 8).all(|i| world.remote.pages.load(8 * i) == i + 1));
}

#[test]
fn a_page_that_is_there_already_costs_one_call_and_is_known_afterwards() {
    let mut racks = Racks::out_of(0);
    let there = racks.room;
    racks = racks.but("begin", names(&[there]));
    let (mut world, mut client, _) = start(&racks);
    let (result, log) = migrate(&mut world, &mut client, &mut racks);
    assert_eq!(result, Ok(there));
    assert_eq!(log, ["begin 1"]);
    assert_eq!(client.home_of(PageId(PAGE_7)), Some(there));
}

#[test]
fn racks_are_connected_before_the_page_is_shut_and_the_old_home_is_asked_for_again() {
    let mut racks = Racks::out_of(1);
    racks.room.rack = RackId(2);
    let (mut world, mut client) = World::new(vec![vec![0; PAGE as usize]]);
    racks.word(&world, racks.from, 30);
    let mut op = Migrate::new(&client, addr(PAGE_7, 0), RackId(2), 9);
    let mut asked = 0;
    let (result, log) = drive(&mut world, &mut client, &mut op, &mut |world, need| {
        // Links are numbered in the order in which they are made: rack 2 is link 1.
        let need = match need {
            Need::Daemon(link, request) => {
                Need::Daemon(LinkId([0, 2, 1][link.0 as usize]), request.clone())
            }
            need => need.clone(),
        };
        let said = racks.answer(world, &need);
        asked += 1;
        if asked == 3 { Said::Fails(not_there()) } else { said }
    });
    assert_eq!(result, Err(not_there()));
    let told = ["settle 1", "begin 1"];
    let asked = ["link 2", "begin 2", "link 1", "begin 2", "in 1"];
    assert_eq!(log, asked.into_iter().chain(told).collect::<Vec<_>>());
}

fn not_there() -> Error {
    Error::Timeout { peer: "a script".into(), waited_ms: 1 }
}

#[test]
fn pages_that_are_nowhere_are_told_apart_and_nobody_is_bothered() {
    for (resolved, code) in
        [(Resolved::Unmapped, "not-mapped"), (Resolved::Lost(RackId(0)), "lost")]
    {
        let said = Said::Master(Ok(MasterAnswer::Homes(vec![resolved])));
        let (error, log) = failed(Racks::out_of(0).but("begin", said));
        assert_eq!(error.code(), code);
        assert_eq!(log, ["begin 1"]);
    }
    let busy = Error::Busy { what: "move".into(), limit: 1 };
    let (error, log) = failed(Racks::out_of(0).but("begin", Said::Master(Err(busy.clone()))));
    assert_eq!((error, log), (busy, vec!["begin 1".to_string()]));
    for bad in [vec![], vec![home(8, 0, 3, 30)], vec![home(PAGE_7, 0, FRAMES, 30)]] {
        let (error, log) = failed(Racks::out_of(0).but("begin", names(&bad)));
        assert_eq!(error.code(), "protocol");
        assert_eq!(log[0], "begin 1");
        assert!(!log[1..].iter().any(|asked| asked.starts_with("in")));
    }
}

/// What is asked after the first refusal of each stage.
fn asked_after(stage: &str, log: &[String]) -> Vec<String> {
    let first = log.iter().position(|one| one.starts_with(stage)).unwrap();
    log[first + 1..].to_vec()
}

#[test]
fn who_refuses_is_not_told_again_and_everybody_else_is() {
    let stays = Error::Stays { page: PageId(PAGE_7), reason: "a script says so".into() };
    let told = [vec!["begin 0"], vec!["settle 1", "begin 0"], vec!["settle 0"]];
    for (stage, told) in STAGES.into_iter().zip(told) {
        let said = Said::Daemon(Err(stays.clone()));
        let (error, log) = failed(Racks::out_of(0).but(stage, said));
        assert_eq!(error, stays);
        assert_eq!(asked_after(stage, &log), told, "{stage}");
    }
}

#[test]
fn an_old_home_that_does_not_have_the_page_now_is_between_two_moves() {
    let said = Said::Daemon(Err(Error::NotMapped { addr: addr(PAGE_7, 0) }));
    let (error, log) = failed(Racks::out_of(0).but("out", said));
    assert_eq!(error.code(), "moving");
    assert_eq!(asked_after("out", &log), ["settle 1", "begin 0"]);
}

#[test]
fn who_may_have_done_it_is_told_as_well() {
    let dead = Error::PeerDead { peer: "a script".into(), cause: DeathCause::Closed };
    let unknown = Error::OutcomeUnknown { operation: "x".into(), peer: "a script".into() };
    let told =
        [vec!["settle 1", "begin 0"], vec!["settle 0", "settle 1"], vec!["settle 0", "settle 1"]];
    for (stage, told) in STAGES.into_iter().zip(told) {
        for lost in [not_there(), dead.clone(), unknown.clone()] {
            let (error, log) = failed(Racks::out_of(0).but(stage, Said::Daemon(Err(lost.clone()))));
            assert_eq!(error, lost);
            assert_eq!(asked_after(stage, &log), told, "{stage}");
            // The same if the runtime ends the call by itself.
            let (error, log) = failed(Racks::out_of(0).but(stage, Said::Fails(lost.clone())));
            assert_eq!(error, lost);
            assert_eq!(asked_after(stage, &log), told, "{stage}");
        }
    }
}

#[test]
fn answers_that_make_no_sense_end_the_move_and_both_racks_are_told() {
    let room = |frame, generation| Reply::Room {
        frame: FrameIndex(frame),
        generation: Generation(generation),
    };
    let long = PageMetadata { objects: vec![0; MOVE_BITMAP_WORDS_MAX + 1], ..keep() };
    let moved = |rack, generation| Reply::Moved(home(PAGE_7, rack, 4, generation));
    for (stage, reply) in [
        ("in", room(FRAMES, 40)),
        ("in", room(4, 0)),
        ("in", Reply::Pong),
        ("out", Reply::Shut { key: Generation(0), keep: keep() }),
        ("out", Reply::Shut { key: Generation(KEY), keep: long }),
        ("out", Reply::Pong),
        ("commit", moved(1, 41)),
        ("commit", moved(0, 40)),
        ("commit", Reply::Settled { here: true }),
    ] {
        let (error, log) = failed(Racks::out_of(0).but(stage, Said::Daemon(Ok(reply.clone()))));
        assert_eq!(error.code(), "protocol", "{reply:?}");
        assert!(log.contains(&"settle 1".to_string()), "{reply:?}");
        assert_eq!(log.contains(&"settle 0".to_string()), stage != "in", "{reply:?}");
    }
}

#[test]
fn an_old_home_that_cannot_be_told_finds_it_out_by_itself() {
    let mut racks = Racks::out_of(0).but("settle source", Said::Daemon(Err(not_there())));
    let (mut world, mut client, _) = start(&racks);
    assert_eq!(migrate(&mut world, &mut client, &mut racks).0, Ok(racks.room));

    // A move that failed: then only the master's own clock ends the claim.
    let stays = Error::Stays { page: PageId(PAGE_7), reason: "a script says so".into() };
    let racks = Racks::out_of(0)
        .but("commit", Said::Daemon(Err(stays.clone())))
        .but("settle source", Said::Daemon(Err(not_there())))
        .but("give up", Said::Master(Err(not_there())));
    let (error, log) = failed(racks);
    assert_eq!(error, stays);
    assert_eq!(asked_after("commit", &log), ["settle 0", "begin 0"]);
}

#[test]
fn a_frame_that_is_taken_back_is_neither_read_nor_written() {
    for rack in [0, 1] {
        for taken_from_source in [true, false] {
            let mut racks = Racks::out_of(rack);
            let (mut world, mut client, _) = start(&racks);
            let at = u64::from(racks.room.frame.0) * PAGE;
            let (from, room) = (racks.from, racks.room);
            let mut op = Migrate::new(&client, addr(PAGE_7, 0), room.rack, 9);
            let (result, log) = drive(&mut world, &mut client, &mut op, &mut |world, need| {
                let said = racks.answer(world, need);
                if let Need::Daemon(_, Request::MoveOut { .. }) = need {
                    // Another page lives in the frame by now.
                    racks.word(world, if taken_from_source { from } else { room }, 4711);
                }
                said
            });
            assert_eq!(result.unwrap_err().code(), "stays");
            let settles = [format!("settle {}", from.rack), format!("settle {}", room.rack)];
            assert_eq!(asked_after("out", &log), settles);
            let racks = Racks::out_of(rack);
            let pages = &racks.view(&world, room.rack).pages;
            assert!((0..PAGE / 8).all(|i| pages.load(at + 8 * i) == 0), "nothing was written");
        }
    }
}

#[test]
fn a_region_that_took_the_place_of_the_one_that_gave_a_key_is_neither_read_nor_written() {
    // A mapped page of one chunk is read without a wait after its key was given.
    for (rack, replaces) in [(0, vec![false]), (1, vec![true, false])] {
        for replaces_source in replaces {
            let mut racks = Racks::out_of(rack);
            let (mut world, mut client, _) = start(&racks);
            let (from, room) = (racks.from, racks.room);
            let replaced = if replaces_source { from.rack } else { room.rack };
            let mut op = Migrate::new(&client, addr(PAGE_7, 0), room.rack, 9);
            // A rack loses its memory; its next region gives out the same generations. The new home
            // while the old one is asked, the old one while it is read.
            let mut say = |world: &mut World, client: &mut Client<TestMem>, need: &Need| {
                let is_out = matches!(need, Need::Daemon(_, Request::MoveOut { .. }));
                let is_read = matches!(need, Need::Completions);
                if if replaces_source { is_read } else { is_out } {
                    client.forget_link(client.link_of(replaced).unwrap());
                }
                if is_read && !replaces_source {
                    return Said::Completed(world.complete());
                }
                if is_read {
                    world.posted.take();
                    return Said::Completed(vec![(9, WorkStatus::Flushed { executed: None })]);
                }
                racks.answer(world, need)
            };
            let result = ask(&mut world, &mut client, &mut op, &mut say);
            assert_eq!(result.unwrap_err().code(), "stays");
            let at = u64::from(room.frame.0) * PAGE;
            let pages = &racks.view(&world, room.rack).pages;
            assert!((0..PAGE / 8).all(|i| pages.load(at + 8 * i) == 0), "nothing was written");
        }
    }
}

#[test]
fn a_chunk_whose_connection_ended_goes_over_the_next_one() {
    for rack in [0, 1] {
        let mut racks = Racks::out_of(rack);
        let (mut world, mut client, bytes) = start(&racks);
        let id = 1 << 63;
        let mut op = Migrate::new(&client, addr(PAGE_7, 0), racks.room.rack, id);
        let mut lost = 0;
        let mut log = Log::new();
        let moved = ask(&mut world, &mut client, &mut op, &mut |world, _, need| match need {
            Need::Completions if lost < 3 => {
                world.posted.take();
                let executed = [None, Some(false), Some(true)][lost];
                lost += 1;
                world.down = lost == 2;
                // The first is of another operation: not taken for ours.
                let flushed = WorkStatus::Flushed { executed };
                Said::Completed(vec![(id + 1, WorkStatus::Done(0)), (id, flushed)])
            }
            Need::Completions => Said::Completed(world.complete()),
            Need::Link(rack) => {
                log.push(format!("link {rack}"));
                world.down = false;
                Said::Linked
            }
            need => racks.answer(world, need),
        });
        let moved = moved.unwrap();
        assert_eq!((moved, lost, world.doorbells), (racks.room, 3, 4));
        assert_eq!(log, ["link 1"]);
        let mut arrived = vec![0; PAGE as usize];
        let at = u64::from(racks.room.frame.0) * PAGE;
        racks.view(&world, racks.room.rack).pages.copy_out(at, &mut arrived);
        assert_eq!(arrived, bytes);
    }
}

#[test]
fn time_that_is_up_ends_the_move_and_tells_both_racks() {
    let mut racks = Racks::out_of(0);
    let (mut world, mut client, _) = start(&racks);
    let mut op = Migrate::new(&client, addr(PAGE_7, 0), RackId(1), 9);
    let mut log = Log::new();
    let result = ask(&mut world, &mut client, &mut op, &mut |world, _, need| match need {
        Need::Completions => Said::Fails(not_there()),
        need => {
            log.push(name(need));
            racks.answer(world, need)
        }
    });
    assert_eq!(result, Err(not_there()));
    assert_eq!(asked_after("out", &log), ["settle 0", "settle 1"]);
}

#[test]
fn a_move_that_fails_at_any_wait_leaves_nothing_reserved() {
    for rack in [0, 1] {
        for fails_at in 1.. {
            let mut racks = Racks::out_of(rack);
            let (mut world, mut client, _) = start(&racks);
            let mut op = Migrate::new(&client, addr(PAGE_7, 0), racks.room.rack, 9);
            let (mut asked, mut log) = (0, Log::new());
            let result = ask(&mut world, &mut client, &mut op, &mut |world, _, need| {
                asked += 1;
                if asked == fails_at {
                    return Said::Fails(not_there());
                }
                match need {
                    Need::Completions => Said::Completed(world.complete()),
                    need => {
                        log.push(name(need));
                        racks.answer(world, need)
                    }
                }
            });
            if asked < fails_at {
                assert_eq!(result, Ok(racks.room));
                break;
            }
            assert_eq!(result, Err(not_there()), "{log:?}");
            let has = |what: &str| log.iter().any(|one| one == what);
            let (from, room) = (racks.from.rack, racks.room.rack);
            // A rack that may keep something is told, unless the page has moved.
            if asked > 2 && !has(&format!("commit {room}")) || fails_at == 5 && rack == 0 {
                assert!(has(&format!("settle {room}")), "failed at {fails_at}: {log:?}");
            }
            if has(&format!("out {from}")) && fails_at < 6 {
                assert!(has(&format!("settle {from}")), "failed at {fails_at}: {log:?}");
            }
        }
    }
}
