//! The client engine over plain memory and scripted peers: what it asks for, in which order, and
//! that it never touches a frame that is not the page's home any more.

use super::*;
use crate::addr::FrameIndex;
use crate::constants::{USE_ACCESSES_MAX, USE_ACCESSES_MIN, USE_NS, USE_PAGES_MAX};
use crate::error::DeathCause;
use crate::heat::{Counts, PageUse};
use crate::layout::{AllocationKind, SlotWord};
use crate::seam::{PostError, Sge, WorkRequest, WorkStatus};
use crate::wire::{MasterAnswer, MasterCall, Reply, ReplyFrame, Request, RequestFrame, Resolved};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

mod coherence;
mod loans;
mod migrate;
mod moving;
mod relocate;
mod replica;
mod rrpc;
mod script;
mod usage;

use script::{Need, Said, ask};

#[derive(Clone, Debug)]
struct TestMem(Rc<Vec<Cell<u64>>>, Option<Mutation>);

impl TestMem {
    fn new(bytes: u64) -> Self {
        Self(Rc::new(vec![Cell::new(0); (bytes / 8) as usize]), None)
    }
    fn word(&self, offset: u64) -> &Cell<u64> {
        assert_eq!(offset % 8, 0);
        &self.0[(offset / 8) as usize]
    }
    fn byte(&self, offset: u64) -> u8 {
        self.0[(offset / 8) as usize].get().to_le_bytes()[(offset % 8) as usize]
    }
    fn set_byte(&self, offset: u64, value: u8) {
        let cell = &self.0[(offset / 8) as usize];
        let mut bytes = cell.get().to_le_bytes();
        bytes[(offset % 8) as usize] = value;
        cell.set(u64::from_le_bytes(bytes));
    }
}

impl crate::seam::Probe for TestMem {
    fn mutated(&self, mutation: Mutation) -> bool {
        self.1 == Some(mutation)
    }
}

impl Mem for TestMem {
    fn bytes(&self) -> u64 {
        self.0.len() as u64 * 8
    }
    fn load(&self, offset: u64) -> u64 {
        self.word(offset).get()
    }
    fn store(&self, offset: u64, value: u64) {
        self.word(offset).set(value);
    }
    fn announce(&self, offset: u64, value: u64) {
        self.word(offset).set(value);
    }
    fn compare_exchange(&self, offset: u64, expected: u64, new: u64) -> Result<u64, u64> {
        let old = self.word(offset).get();
        if old != expected {
            return Err(old);
        }
        self.word(offset).set(new);
        Ok(old)
    }
    fn fetch_add(&self, offset: u64, n: u64) -> u64 {
        let old = self.word(offset).get();
        self.word(offset).set(old.wrapping_add(n));
        old
    }
    fn copy_out(&self, offset: u64, to: &mut [u8]) {
        (offset..).zip(to).for_each(|(at, byte)| *byte = self.byte(at));
    }
    fn copy_in(&self, offset: u64, from: &[u8]) {
        (offset..).zip(from).for_each(|(at, byte)| self.set_byte(at, *byte));
    }
    fn zero(&self, offset: u64, bytes: u64) {
        (offset..offset + bytes).for_each(|at| self.set_byte(at, 0));
    }
    fn prefetch(&self, _offset: u64) {}
    fn fence(&self) {}
    fn flush(&self, _offset: u64, _bytes: u64) {}
}

const PAGE: u64 = 4096;
const FRAMES: u32 = 16;

fn layout() -> RegionLayout {
    RegionLayout { pages: PageGeometry::from_page_bytes(PAGE).unwrap(), frame_count: FRAMES }
}

fn view() -> RackView<TestMem> {
    RackView {
        pages: TestMem::new(layout().pages_bytes()),
        table: TestMem::new(layout().table_bytes()),
        slot: TestMem::new(4096),
        layout: layout(),
    }
}

fn home(page: u64, rack: u16, frame: u32, generation: u64) -> PageHome {
    PageHome {
        page: PageId(page),
        rack: RackId(rack),
        frame: FrameIndex(frame),
        generation: Generation(generation),
    }
}

/// Rack 0 is ours and mapped, rack 1 is behind a fabric that runs on `remote` when it completes.
struct World {
    own: RackView<TestMem>,
    remote: RackView<TestMem>,
    buffers: Vec<Vec<u8>>,
    posted: RefCell<Vec<(u64, crate::seam::Verb, Vec<Sge>)>>,
    doorbells: u32,
    down: bool,
    daemon_asked: u32,
    master_asked: u32,
    links_asked: u32,
}

impl World {
    fn new(buffers: Vec<Vec<u8>>) -> (Self, Client<TestMem>) {
        Self::without(None, buffers)
    }

    /// A client that leaves a safeguard out.
    fn without(mutation: Option<Mutation>, buffers: Vec<Vec<u8>>) -> (Self, Client<TestMem>) {
        let (mut own, remote) = (view(), view());
        own.slot.1 = mutation;
        let client = Client::new(RackId(0), Reach::Mapped(own.clone()), 64);
        let world = Self {
            own,
            remote,
            buffers,
            posted: RefCell::default(),
            doorbells: 0,
            down: false,
            daemon_asked: 0,
            master_asked: 0,
            links_asked: 0,
        };
        (world, client)
    }

    /// Page p lives in rack 0 for p < 100 in frame p % 16, else in rack 1; generation p + 1000.
    fn place(&self, page: u64) -> PageHome {
        let rack = u16::from(page >= 100);
        let home = home(page, rack, (page % 16) as u32, page + 1000);
        let view = if rack == 0 { &self.own } else { &self.remote };
        view.table.store(table_word(home.frame), home.generation.0);
        home
    }

    /// Runs an operation with peers that do as they should.
    fn run<O: Operation<TestMem>>(
        &mut self,
        client: &mut Client<TestMem>,
        op: &mut O,
    ) -> crate::Result<O::Output> {
        ask(self, client, op, &mut |world, client, need| world.answer(client, need))
    }

    fn answer(&mut self, client: &mut Client<TestMem>, need: &Need) -> Said {
        match need {
            Need::Link(rack) => {
                self.links_asked += 1;
                self.down = false;
                client.add_link(*rack, Reach::OneSided(layout())).unwrap();
                Said::Linked
            }
            Need::Master(MasterCall::Resolve { page, count }) => {
                self.master_asked += 1;
                let pages = page.0..page.0 + u64::from(*count);
                let homes = pages.map(|page| Resolved::Home(self.place(page))).collect();
                Said::Master(Ok(MasterAnswer::Homes(homes)))
            }
            Need::Daemon(OWN, Request::Resolve { page, count }) => {
                self.daemon_asked += 1;
                let pages = page.0..page.0 + u64::from(*count);
                let homes = pages.filter(|p| *p < 100).map(|p| self.place(p)).collect();
                Said::Daemon(Ok(Reply::Homes(homes)))
            }
            Need::Completions => Said::Completed(self.complete()),
            other => panic!("only resolves are expected here: {other:?}"),
        }
    }

    /// Executes what was posted.
    fn complete(&mut self) -> Vec<(u64, WorkStatus)> {
        let posted = self.posted.take();
        let execute = |(id, verb, local): (u64, _, Vec<Sge>)| (id, self.execute(verb, &local));
        posted.into_iter().map(execute).collect()
    }

    fn execute(&mut self, verb: crate::seam::Verb, local: &[Sge]) -> WorkStatus {
        use crate::seam::Verb;
        let (Verb::Read(at) | Verb::Write(at) | Verb::FetchAdd { at, .. } | Verb::Cas { at, .. }) =
            verb
        else {
            panic!("{verb:?}")
        };
        let frame = FrameIndex((at.offset / self.remote.layout.pages.page_bytes()) as u32);
        if self.remote.table.load(table_word(frame)) != at.key.0 {
            return WorkStatus::BadKey;
        }
        let range = |sge: &Sge| sge.offset as usize..(sge.offset + sge.bytes) as usize;
        match verb {
            Verb::Read(_) => {
                let to = &mut self.buffers[local[0].buf.0 as usize][range(&local[0])];
                self.remote.pages.copy_out(at.offset, to);
            }
            Verb::Write(_) => {
                let from = &self.buffers[local[0].buf.0 as usize][range(&local[0])];
                self.remote.pages.copy_in(at.offset, from);
            }
            Verb::FetchAdd { n, .. } => {
                return WorkStatus::Done(self.remote.pages.fetch_add(at.offset, n));
            }
            _ => {}
        }
        WorkStatus::Done(0)
    }
}

impl Io for World {
    fn target(&mut self, piece: u32, offset: u64, bytes: u64) -> &mut [u8] {
        &mut self.buffers[piece as usize][offset as usize..(offset + bytes) as usize]
    }
    fn source(&self, piece: u32, offset: u64, bytes: u64) -> &[u8] {
        &self.buffers[piece as usize][offset as usize..(offset + bytes) as usize]
    }
    fn sge(&self, piece: u32, offset: u64, bytes: u64) -> Sge {
        Sge { buf: crate::seam::BufId(piece), offset, bytes }
    }
    fn post(
        &mut self,
        _link: LinkId,
        batch: &[WorkRequest<'_>],
    ) -> std::result::Result<(), (usize, PostError)> {
        if self.down {
            return Err((0, PostError::Down));
        }
        self.doorbells += 1;
        let mut posted = self.posted.borrow_mut();
        posted.extend(batch.iter().map(|one| (one.id, one.verb, one.local.to_vec())));
        Ok(())
    }
}

fn addr(page: u64, offset: u64) -> GAddr {
    layout().pages.join(PageId(page), offset)
}

fn transfer(
    world: &mut World,
    client: &mut Client<TestMem>,
    access: Access,
    pieces: &[Piece],
) -> crate::Result<()> {
    let mut tables = TransferTables::default();
    let mut transfer = Transfer::new(&mut tables, 1, access, pieces);
    world.run(client, &mut transfer)
}

#[test]
fn a_transfer_across_own_and_remote_pages_arrives_whole() {
    let data: Vec<u8> = (0..5 * PAGE + 100).map(|i| (i % 251) as u8).collect();
    let (mut world, mut client) = World::new(vec![data.clone()]);
    let pieces = [Piece { addr: addr(97, 50), bytes: data.len() as u64 }];
    transfer(&mut world, &mut client, Access::Write, &pieces).unwrap();
    world.buffers[0].fill(0);
    transfer(&mut world, &mut client, Access::Read, &pieces).unwrap();
    assert_eq!(world.buffers[0], data);
    assert_eq!(world.own.slot.load(cell_offset(0)), 0, "no cell stays announced");
}

#[test]
fn the_first_touch_of_a_remote_page_costs_one_round_trip_to_the_master_and_the_next_none() {
    let (mut world, mut client) = World::new(vec![vec![7; 64]]);
    let pieces = [Piece { addr: addr(100, 0), bytes: 64 }];
    transfer(&mut world, &mut client, Access::Read, &pieces).unwrap();
    // The first touch of the rack: asked again once it is connected.
    assert_eq!((world.daemon_asked, world.master_asked, world.links_asked), (1, 2, 1));
    assert_eq!(world.doorbells, 1);
    let other = [Piece { addr: addr(101, 0), bytes: 64 }];
    transfer(&mut world, &mut client, Access::Read, &other).unwrap();
    assert_eq!((world.daemon_asked, world.master_asked, world.links_asked), (2, 3, 1));
    for pieces in [&pieces, &other] {
        transfer(&mut world, &mut client, Access::Read, pieces).unwrap();
        assert_eq!((world.daemon_asked, world.master_asked, world.links_asked), (2, 3, 1));
    }
    assert_eq!(world.doorbells, 4);
}

#[test]
fn many_small_remote_pieces_share_a_doorbell() {
    let (mut world, mut client) = World::new(vec![vec![7; 64]; 32]);
    let pieces: Vec<_> =
        (0..32).map(|i| Piece { addr: addr(100 + i % 4, 64 * i), bytes: 64 }).collect();
    transfer(&mut world, &mut client, Access::Write, &pieces).unwrap();
    let before = world.doorbells;
    transfer(&mut world, &mut client, Access::Read, &pieces).unwrap();
    assert_eq!(world.doorbells, before + 1);
}

#[test]
fn a_frame_whose_generation_changed_is_not_touched() {
    let (mut world, mut client) = World::new(vec![vec![9; 64]]);
    client.install(OWN, &[world.place(5)]).unwrap();
    world.own.table.store(table_word(FrameIndex(5)), 77);
    assert_eq!(client.write_warm(addr(5, 0), &[9; 64]), Err(Miss::Unknown));
    assert_eq!(world.own.pages.load(5 * PAGE), 0);
    let pieces = [Piece { addr: addr(5, 0), bytes: 64 }];
    transfer(&mut world, &mut client, Access::Write, &pieces).unwrap();
    assert_eq!(world.own.pages.byte(5 * PAGE), 9, "located again, then written");
}

#[test]
fn a_page_that_moves_at_every_try_answers_moving_and_does_not_loop() {
    let (mut world, mut client) = World::new(vec![vec![0; 8]]);
    let mut tables = TransferTables::default();
    let pieces = [Piece { addr: addr(5, 0), bytes: 8 }];
    let mut op = Transfer::new(&mut tables, 1, Access::Read, &pieces);
    let result = ask(&mut world, &mut client, &mut op, &mut |_, _, need| match need {
        Need::Daemon(..) => Said::Daemon(Ok(Reply::Homes(vec![home(5, 0, 5, 1)]))),
        other => panic!("{other:?}"),
    });
    assert_eq!(result.unwrap_err().code(), "moving");
}

#[test]
fn a_revoked_key_is_resolved_again_and_the_read_repeated() {
    let (mut world, mut client) = World::new(vec![vec![0; 8]]);
    client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
    client.install(LinkId(1), &[home(100, 1, 4, 1)]).unwrap();
    world.place(100);
    world.remote.pages.store(4 * PAGE, 42);
    let pieces = [Piece { addr: addr(100, 0), bytes: 8 }];
    transfer(&mut world, &mut client, Access::Read, &pieces).unwrap();
    assert_eq!(world.buffers[0], 42u64.to_le_bytes());
    assert_eq!(world.master_asked, 1);
}

#[test]
fn a_closed_connection_is_asked_for_again_and_the_transfer_goes_on() {
    let (mut world, mut client) = World::new(vec![vec![3; 64]]);
    let pieces = [Piece { addr: addr(100, 0), bytes: 64 }];
    transfer(&mut world, &mut client, Access::Write, &pieces).unwrap();
    world.down = true;
    transfer(&mut world, &mut client, Access::Write, &pieces).unwrap();
    assert_eq!(world.links_asked, 2);
}

#[test]
fn a_client_in_the_middle_of_a_change_says_so_in_its_slot() {
    let said = |mutation| {
        let (world, mut client) = World::without(mutation, vec![]);
        let word = || world.own.slot.load(SlotWord::Changing as u64);
        client.begin_change();
        client.begin_change();
        client.end_change();
        let during = word();
        client.end_change();
        (during, word())
    };
    assert_eq!(said(None), (1, 2));
    assert_eq!(said(Some(Mutation::ChangeUnmarked)), (0, 0));
}

/// Whether a write arrives if its connection ended after it was posted.
fn arrives_after_a_loss(mutation: Option<Mutation>) -> bool {
    let (mut world, mut client) = World::without(mutation, vec![vec![3; 64]]);
    let pieces = [Piece { addr: addr(100, 0), bytes: 64 }];
    transfer(&mut world, &mut client, Access::Read, &pieces).unwrap();
    world.buffers[0].fill(9);
    let mut tables = TransferTables::default();
    let mut op = Transfer::new(&mut tables, 7, Access::Write, &pieces);
    let mut is_lost = false;
    ask(&mut world, &mut client, &mut op, &mut |world, client, need| match need {
        Need::Completions if !std::mem::replace(&mut is_lost, true) => {
            let lost = WorkStatus::Flushed { executed: None };
            Said::Completed(world.posted.take().iter().map(|(id, ..)| (*id, lost)).collect())
        }
        need => world.answer(client, need),
    })
    .unwrap();
    world.buffers[0].fill(0);
    transfer(&mut world, &mut client, Access::Read, &pieces).unwrap();
    world.buffers[0] == [9; 64]
}

#[test]
fn a_write_whose_connection_ended_is_posted_again_and_not_taken_for_done() {
    assert!(arrives_after_a_loss(None));
    assert!(!arrives_after_a_loss(Some(Mutation::FlushedIsDone)));
}

#[test]
fn a_failed_completion_woke_nobody_and_what_failed_to_post_was_followed() {
    let arrives = |mutation| std::panic::catch_unwind(|| arrives_after_a_loss(mutation));
    assert_eq!(arrives(None).ok(), Some(true));
    assert!(arrives(Some(Mutation::DropFailedCompletion)).is_err(), "the write does not end");
    let (mut world, mut client) = World::new(vec![vec![3; 64]]);
    let pieces = [Piece { addr: addr(100, 0), bytes: 64 }];
    world.down = true;
    transfer(&mut world, &mut client, Access::Write, &pieces).expect("it is posted again");
}

#[test]
fn an_atomic_lost_after_its_post_answers_outcome_unknown_and_one_lost_before_is_repeated() {
    let (mut world, mut client) = World::new(vec![]);
    let id = 1 << 63;
    let mut atomic = Atomic::new(addr(100, 8), AtomicOp::FetchAdd { n: 5 }, id);
    assert_eq!(world.run(&mut client, &mut atomic).unwrap(), 0);
    let mut lose = |id, executed| {
        let mut atomic = Atomic::new(addr(100, 8), AtomicOp::FetchAdd { n: 5 }, id);
        let mut is_lost = false;
        ask(&mut world, &mut client, &mut atomic, &mut |world, client, need| match need {
            Need::Completions if !std::mem::replace(&mut is_lost, true) => {
                world.posted.take();
                Said::Completed(vec![(id, WorkStatus::Flushed { executed })])
            }
            need => world.answer(client, need),
        })
    };
    assert_eq!(lose(id + 1, Some(false)), Ok(5));
    assert_eq!(lose(id + 2, None).unwrap_err().code(), "outcome-unknown");
}

#[test]
fn an_atomic_that_has_not_completed_in_time_answers_outcome_unknown() {
    let (mut world, mut client) = World::new(vec![]);
    let mut atomic = Atomic::new(addr(100, 8), AtomicOp::FetchAdd { n: 5 }, 1 << 63);
    let result = ask(&mut world, &mut client, &mut atomic, &mut |world, client, need| match need {
        Need::Completions => Said::Fails(Error::Timeout { peer: "it".into(), waited_ms: 1 }),
        need => world.answer(client, need),
    });
    assert_eq!(result.unwrap_err().code(), "outcome-unknown");
}

#[test]
fn null_unaligned_and_overflowing_addresses_are_typed_errors() {
    let (_, client) = World::new(vec![]);
    assert_eq!(client.check(GAddr::NULL, 1).unwrap_err().code(), "not-mapped");
    assert_eq!(client.check(GAddr(100), 1).unwrap_err().code(), "not-mapped");
    assert_eq!(client.check(GAddr(u64::MAX - 1), 8).unwrap_err().code(), "out-of-bounds");
    assert_eq!(client.check_atomic(addr(1, 4)).unwrap_err().code(), "misaligned");
}

#[test]
fn homes_outside_the_region_are_refused() {
    let (_, mut client) = World::new(vec![]);
    assert!(client.install(OWN, &[home(1, 0, FRAMES, 1)]).is_err());
    assert!(client.install(OWN, &[home(1, 0, 0, 0)]).is_err());
}

#[test]
fn an_allocation_goes_to_the_own_rack_then_to_picked_ones_until_all_are_full() {
    let (mut world, mut client) = World::new(vec![]);
    let full = || Error::Full { bytes: 64, free_bytes: 0, place: "rack".into() };
    let own = Request::Alloc { bytes: 64, kind: AllocationKind::User };
    for (placement, asked) in [
        (
            Placement::Auto,
            vec![
                Need::Daemon(OWN, own.clone()),
                Need::Master(MasterCall::PickRack {
                    own: RackId(0),
                    bytes: 64,
                    tried: vec![RackId(0)],
                }),
            ],
        ),
        (Placement::Local, vec![Need::Daemon(OWN, own)]),
    ] {
        let mut alloc = Alloc::new(&mut client, 64, placement, AllocationKind::User);
        let mut needs = vec![];
        let result = ask(&mut world, &mut client, &mut alloc, &mut |_, _, need| {
            needs.push(need.clone());
            match need {
                Need::Daemon(..) => Said::Daemon(Err(full())),
                _ => Said::Master(Err(full())),
            }
        });
        assert_eq!(result.unwrap_err().code(), "full");
        assert_eq!(needs, asked);
    }
}

#[test]
fn the_pools_order_says_when_the_own_rack_is_asked() {
    let (mut world, mut client) = World::new(vec![]);
    let anybody = RackId(u16::MAX);
    // The peers that four allocations ask first: the own daemon, or the master with this rack left
    // out.
    let turns = |client: &mut Client<_>, world: &mut World, placement| {
        (0..4)
            .map(|_| {
                let mut alloc = Alloc::new(client, 64, placement, AllocationKind::User);
                let mut first = None;
                let end = || Error::Busy { what: "a script".into(), limit: 0 };
                ask(world, client, &mut alloc, &mut |_, _, need| match need {
                    Need::Daemon(OWN, _) => Said::Daemon(Err(end())),
                    Need::Master(MasterCall::PickRack { own, .. }) => {
                        first = Some(*own);
                        Said::Master(Err(end()))
                    }
                    other => panic!("{other:?}"),
                })
                .unwrap_err();
                first
            })
            .collect::<Vec<_>>()
    };
    for (order, asked) in [
        (Order::LocalFirst, [None; 4]),
        (Order::Alternate, [None, Some(RackId(0)), None, Some(RackId(0))]),
        (Order::Anywhere, [Some(anybody); 4]),
    ] {
        client.set_order(order);
        assert_eq!(turns(&mut client, &mut world, Placement::Auto), asked, "{order:?}");
        assert_eq!(turns(&mut client, &mut world, Placement::Local), [None; 4], "{order:?}");
        assert_eq!(turns(&mut client, &mut world, Placement::Spread), [Some(anybody); 4]);
    }

    // Alternate: an own rack that is full sends its turns to others, and others without room
    // send theirs to the own rack.
    let full = || Error::Full { bytes: 64, free_bytes: 0, place: "rack".into() };
    client.set_order(Order::Alternate);
    for (first, last) in [("own", "master"), ("master", "own")] {
        let mut alloc = Alloc::new(&mut client, 64, Placement::Auto, AllocationKind::User);
        let mut asked = vec![];
        ask(&mut world, &mut client, &mut alloc, &mut |_, _, need| match need {
            Need::Daemon(OWN, _) => {
                asked.push("own");
                Said::Daemon(Err(full()))
            }
            _ => {
                asked.push("master");
                Said::Master(Err(full()))
            }
        })
        .unwrap_err();
        assert_eq!(asked[..2], [first, last]);
    }
}

#[test]
fn a_session_repeats_what_is_safe_and_says_unknown_where_it_is_not() {
    let mut session = Session::new("daemon of rack 0".into());
    let seq = session.begin(Request::Ping).seq;
    let stale = ReplyFrame { seq: seq + 9, reply: Ok(Reply::Pong) };
    assert!(session.on_reply(stale).is_none(), "answers to others are ignored");
    assert_eq!(session.on_loss(LinkLoss::Resumed), None);
    assert_eq!(session.on_loss(LinkLoss::SessionForgotten), None);
    assert_eq!(session.under_way().unwrap().seq, seq);
    let gone = session.on_loss(LinkLoss::Gone(DeathCause::Closed)).unwrap();
    assert_eq!(gone.unwrap_err().code(), "peer-dead");
    session.begin(Request::FetchAdd { addr: addr(1, 0), n: 1 });
    assert_eq!(session.on_loss(LinkLoss::Resumed), None);
    let unknown = session.on_loss(LinkLoss::SessionForgotten).unwrap();
    assert_eq!(unknown.unwrap_err().code(), "outcome-unknown");
    // What was granted has no holder: the session that held it is forgotten.
    let lock = Request::Lock { addr: addr(1, 0), lines: 1, write: true, wait_ms: 10 };
    let asked = session.begin(lock).seq;
    assert_eq!(session.on_loss(LinkLoss::SessionForgotten), None);
    assert_eq!(session.under_way().unwrap().seq, asked);
    let unknown = session.on_loss(LinkLoss::Gone(DeathCause::Closed)).unwrap();
    assert_eq!(unknown.unwrap_err().code(), "outcome-unknown");
}

#[test]
fn nobody_learns_of_remote_memory_before_the_daemon_knows_that_it_was_taken() {
    let ask = |session: &mut Session| {
        let request = Request::Alloc { bytes: 64, kind: AllocationKind::User };
        let seq = session.begin(request).seq;
        let frame = ReplyFrame { seq, reply: Ok(Reply::Allocated { addr: addr(1, seq) }) };
        assert_eq!(session.on_remote_reply(frame.clone()), Some(Taken::Confirm(seq)));
        assert_eq!(session.on_remote_reply(frame), None, "an answer is taken once");
        assert_eq!(session.consumed_seq(), seq, "a join says it as well");
        seq
    };
    let mut session = Session::new("daemon of rack 1".into());
    // The message arrives.
    let first = ask(&mut session);
    assert_eq!(session.confirmed(), Some(Reply::Allocated { addr: addr(1, first) }));
    assert_eq!(session.confirmed(), None);
    // The connection breaks, and the join of the next one says it.
    let second = ask(&mut session);
    let resumed = session.on_loss(LinkLoss::Resumed);
    assert_eq!(resumed, Some(Ok(Reply::Allocated { addr: addr(1, second) })));
    // Neither: the caller never learns of it, and the next join says that it was not taken.
    for loss in [
        LinkLoss::SessionForgotten,
        LinkLoss::Gone(DeathCause::Closed),
        LinkLoss::TimeUp { waited_ms: 1 },
    ] {
        ask(&mut session);
        let ended = session.on_loss(loss).unwrap().unwrap_err();
        assert_eq!(ended.code(), "outcome-unknown");
        assert_eq!(session.consumed_seq(), second);
    }
    // Other answers end their request at once.
    let seq = session.begin(Request::Ping).seq;
    let frame = ReplyFrame { seq, reply: Ok(Reply::Pong) };
    assert_eq!(session.on_remote_reply(frame), Some(Taken::Done(Ok(Reply::Pong))));
    assert!(session.under_way().is_none());
}

#[test]
fn a_request_that_was_sent_once_never_ends_as_if_nothing_was_done() {
    let busy = || Error::Busy { what: "request ring".into(), limit: 64 };
    let mut session = Session::new("daemon of rack 0".into());
    session.begin(Request::Free { addr: addr(1, 0), bytes: 64 });
    assert_eq!(session.give_up(busy()).code(), "outcome-unknown");
    session.begin(Request::Ping);
    assert_eq!(session.give_up(busy()), busy(), "nothing is in doubt");
    assert!(session.under_way().is_none());
}

/// What two accesses see and do after the page's frame was given to another page.
fn stale_accesses(mutation: Option<Mutation>) -> (bool, bool) {
    let (world, mut client) = World::without(mutation, vec![]);
    client.install(OWN, &[world.place(1)]).unwrap();
    world.own.table.store(table_word(FrameIndex(1)), 4711);
    let read = client.read_warm(addr(1, 0), &mut [0; 8]).is_ok();
    (read, client.write_warm(addr(1, 0), &[1; 8]).is_ok())
}

#[test]
fn without_their_comparison_stale_accesses_happen() {
    assert_eq!(stale_accesses(None), (false, false));
    assert_eq!(stale_accesses(Some(Mutation::SkipEpochCheckRead)), (true, false));
    assert_eq!(stale_accesses(Some(Mutation::SkipValidationWrite)), (false, true));
}

/// How many work requests are under way when a transfer of a remote page says that it is done.
fn under_way_when_done(mutation: Option<Mutation>, access: Access) -> usize {
    let (mut world, mut client) = World::without(mutation, vec![vec![7; 100]]);
    let pieces = [Piece { addr: addr(150, 0), bytes: 100 }];
    transfer(&mut world, &mut client, access, &pieces).unwrap();
    world.posted.take().len()
}

#[test]
fn without_waiting_for_completions_transfers_end_while_they_are_under_way() {
    let (early_write, early_read) =
        (Some(Mutation::AcknowledgeBeforeCopy), Some(Mutation::RecycleBufferEarly));
    for access in [Access::Read, Access::Write] {
        assert_eq!(under_way_when_done(None, access), 0);
    }
    assert_eq!(under_way_when_done(early_write, Access::Write), 1);
    assert_eq!(under_way_when_done(early_write, Access::Read), 0);
    assert_eq!(under_way_when_done(early_read, Access::Read), 1);
    assert_eq!(under_way_when_done(early_read, Access::Write), 0);
}

#[test]
fn without_outcome_unknown_a_lost_atomic_is_posted_again() {
    let posts = |mutation| {
        let (mut world, mut client) = World::without(mutation, vec![]);
        let mut atomic = Atomic::new(addr(150, 8), AtomicOp::FetchAdd { n: 5 }, 9);
        client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
        client.install(LinkId(1), &[world.place(150)]).unwrap();
        let mut posts = 0;
        let _ = ask(&mut world, &mut client, &mut atomic, &mut |world, _, _| {
            posts += world.posted.take().len();
            let lost = WorkStatus::Flushed { executed: None };
            Said::Completed(vec![(9, if posts == 1 { lost } else { WorkStatus::Done(0) })])
        });
        posts
    };
    assert_eq!((posts(None), posts(Some(Mutation::RetryAppliedTwice))), (1, 2));
}

fn used(page: u64, reads: u32, writes: u32) -> PageUse {
    PageUse { page: PageId(page), counts: Counts { reads, writes } }
}

/// Reads a page at each of these numbers, over whichever path.
fn read_pages(world: &mut World, client: &mut Client<TestMem>, pages: &[u64]) {
    for (round, page) in pages.iter().enumerate() {
        let pieces = [Piece { addr: GAddr(page * PAGE), bytes: 8 }];
        let mut tables = TransferTables::default();
        let mut op = Transfer::new(&mut tables, round as u64 + 1, Access::Read, &pieces);
        world.run(client, &mut op).unwrap();
    }
}

#[test]
fn each_page_is_told_of_once_with_the_reads_and_writes_since_the_last_report() {
    let (mut world, mut client) = World::new(vec![vec![0; 8]]);
    client.count_use(true);
    read_pages(&mut world, &mut client, &[5, 120, 120, 120, 7, 5]);
    client.write_warm(GAddr(5 * PAGE), &[1]).unwrap();
    client.fetch_add_warm(GAddr(7 * PAGE), 1).unwrap();
    let mut ops = [(GAddr(7 * PAGE), ()), (GAddr(7 * PAGE + 8), ())];
    let access = |_: &TestMem, _, _: &mut (GAddr, ())| ();
    client.batch_warm(Access::Write, &mut ops, |op| (op.0, 8), access, &mut Vec::new());
    // The most used first, of equals in the order of the cache.
    assert_eq!(client.take_use(), [used(7, 1, 3), used(5, 2, 1), used(120, 3, 0)]);
    assert_eq!(client.take_use(), []);
    read_pages(&mut world, &mut client, &[5]);
    assert_eq!(client.take_use(), [used(5, 1, 0)]);
}

/// How often a handle that counts looks at the clock in 16,000 accesses of 50 ns.
fn looks(mutation: Option<Mutation>) -> u32 {
    let (mut world, mut client) = World::without(mutation, vec![vec![0; 8]]);
    read_pages(&mut world, &mut client, &[5]);
    client.count_use(true);
    let (mut reports, mut looks) = (UseReports::default(), 0);
    for access in 0..16_000 {
        client.read_warm(GAddr(5 * PAGE), &mut [0]).unwrap();
        if client.use_is_due() {
            looks += 1;
            reports.look(&mut client, 50 * access, true);
        }
    }
    looks
}

#[test]
fn an_access_read_the_clock_three_times() {
    let few = |looks| looks <= 16_000 / USE_ACCESSES_MIN;
    assert!(few(looks(None)));
    assert!(!few(looks(Some(Mutation::ClockEachAccess))));
}

#[test]
fn a_handle_looks_at_the_clock_as_often_as_it_is_slow() {
    let (mut world, mut client) = World::new(vec![vec![0; 8]]);
    read_pages(&mut world, &mut client, &[5, 120]);
    let read = |client: &Client<TestMem>| client.read_warm(GAddr(5 * PAGE), &mut [0]).unwrap();
    (0..10 * USE_ACCESSES_MAX).for_each(|_| read(&client));
    assert!(!client.use_is_due() && client.take_use().is_empty(), "nothing is counted");
    client.count_use(true);
    let (mut reports, mut now) = (UseReports::default(), 1_000_000_000);
    // Accesses until the next look, each of which takes so long, and what is told then.
    let mut until_look = |client: &mut Client<TestMem>, each_ns: u64, is_heard: bool| {
        let mut accesses = 0;
        while !client.use_is_due() {
            read(client);
            accesses += 1;
            now += each_ns;
        }
        let told = reports.look(client, now, is_heard);
        (accesses, told.map(|report| (report.pages[0].counts.reads, report.waits)))
    };
    assert_eq!(until_look(&mut client, 50, true), (USE_ACCESSES_MIN, Some((16, false))));
    assert_eq!(until_look(&mut client, 50, true), (USE_ACCESSES_MIN, None));
    let between = USE_NS / 50 / u64::from(USE_ACCESSES_MAX);
    for _ in 1..between {
        assert_eq!(until_look(&mut client, 50, true), (USE_ACCESSES_MAX, None));
    }
    let told = (0..10).find_map(|_| until_look(&mut client, 50, true).1);
    assert!(
        told.is_some_and(|(reads, waits)| reads.abs_diff((USE_NS / 50) as u32) < 512 && !waits),
        "{told:?}"
    );
    // Slow accesses: after a first stretch as before, reports of sixteen.
    until_look(&mut client, 4_000_000, true);
    assert_eq!(until_look(&mut client, 4_000_000, true), (USE_ACCESSES_MIN, Some((16, false))));
    // A daemon that does not answer is left alone for a while, and then waited for.
    let looks = (0..50).map(|_| until_look(&mut client, 4_000_000, false));
    let told: Vec<_> = looks.filter_map(|(_, told)| told).collect();
    assert_eq!(told.len(), 3, "3.2 s: {told:?}");
    assert!(told.iter().all(|(_, waits)| *waits));
    client.count_use(false);
    read(&client);
    assert_eq!(client.take_use(), []);
}
