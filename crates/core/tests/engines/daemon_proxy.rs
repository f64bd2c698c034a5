//! The engine that works for clients without a fabric endpoint: one connection for all, channels
//! that open and end, hostile orders, ends of clients and of connections.

use rackpool_core::constants::{
    FABRIC_OUTSTANDING_MAX, PROXY_CHANNELS_MAX, PROXY_PIECE_BYTES_MAX, RING_ENTRIES, SLOTS_MAX,
};
use rackpool_core::daemon::{OutcomeData, Proxy, Uplinks};
use rackpool_core::error::{DeathCause, Error};
use rackpool_core::seam::{FabricEvent, PeerId, Verb, WorkStatus};
use rackpool_core::wire::{
    self, FabricKind, ProxyOrder, ProxyOutcome, ProxyStatus, ProxyWork, RackInfo, RemoteReply,
    RemoteRequest, Routed,
};
use rackpool_core::{Generation, RackId, SessionId};
use std::collections::BTreeMap;

const RACK: RackId = RackId(1);
const PEER: PeerId = PeerId(7);

/// What the engine said to its world.
#[derive(Default)]
struct Said {
    finds: Vec<RackId>,
    connects: u32,
    posts: Vec<(u32, Verb, Vec<u8>, u32)>,
    told: Vec<(u32, ProxyOutcome, Vec<u8>)>,
    /// Slots with a full ring.
    full: Vec<u32>,
    reads: BTreeMap<u32, Vec<u8>>,
}

impl Uplinks for Said {
    fn find(&mut self, rack: RackId) {
        self.finds.push(rack);
    }
    fn connect(&mut self, _: &RackInfo) -> Option<PeerId> {
        self.connects += 1;
        Some(PEER)
    }
    fn post(&mut self, peer: PeerId, index: u32, verb: Verb, data: &[u8], bytes: u32) {
        assert!(peer == PEER && index < FABRIC_OUTSTANDING_MAX);
        self.posts.push((index, verb, data.to_vec(), bytes));
    }
    fn tell(&mut self, slot: u32, outcome: ProxyOutcome, data: OutcomeData<'_>) -> bool {
        if self.full.contains(&slot) {
            return false;
        }
        let data = match data {
            OutcomeData::Bytes(bytes) => bytes.to_vec(),
            OutcomeData::Read { peer, index, bytes } => self.copy(peer, index, bytes),
        };
        self.told.push((slot, outcome, data));
        true
    }
    fn copy(&self, _: PeerId, index: u32, bytes: u32) -> Vec<u8> {
        self.reads[&index][..bytes as usize].to_vec()
    }
}

struct Rig {
    proxy: Proxy,
    said: Said,
}

fn info() -> RackInfo {
    RackInfo {
        rack: RACK,
        region_id: [1, 1],
        epoch: 1,
        page_shift: 16,
        frame_count: 8,
        frames_free: 8,
        host: "host".into(),
        control: "control".into(),
        fabric: FabricKind::Tcp,
        fabric_addr: "127.0.0.1:1".into(),
        alive: true,
    }
}

impl Rig {
    fn new() -> Rig {
        Rig { proxy: Proxy::new(SessionId(77)), said: Said::default() }
    }

    /// With a channel 1 of slot 3 that is open.
    fn open() -> Rig {
        let mut rig = Rig::new();
        rig.order(3, ProxyOrder::Open { channel: 1, rack: RACK }, &[]).unwrap();
        assert_eq!(rig.said.finds, [RACK]);
        rig.proxy.on_rack(RACK, Ok(info()), &mut rig.said);
        rig.event(FabricEvent::Connected { peer: PEER });
        assert_eq!(rig.take(), [(3, ProxyOutcome::Opened { channel: 1 }, vec![])]);
        let hello = rig.posts().remove(0);
        let routed = wire::decode::<Routed<RemoteRequest>>(&hello.2, "test").unwrap();
        assert_eq!((routed.channel, routed.message), (0, RemoteRequest::Uplink(SessionId(77))));
        rig.complete(hello.0, WorkStatus::Done(0));
        rig
    }

    fn order(&mut self, slot: u32, order: ProxyOrder, data: &[u8]) -> Result<(), Error> {
        let bytes = [&wire::encode_vec(&order)[..], data].concat();
        self.proxy.on_order(slot, &bytes, &mut self.said)
    }

    fn work(&mut self, slot: u32, tag: u8, work: ProxyWork, data: &[u8]) -> Result<(), Error> {
        self.order(slot, ProxyOrder::Work { channel: 1, tag, work }, data)
    }

    fn event(&mut self, event: FabricEvent) {
        self.proxy.on_event(event, &mut self.said);
    }

    fn complete(&mut self, index: u32, status: WorkStatus) {
        self.event(FabricEvent::Completed { peer: PEER, id: index.into(), status });
    }

    fn take(&mut self) -> Vec<(u32, ProxyOutcome, Vec<u8>)> {
        std::mem::take(&mut self.said.told)
    }

    fn posts(&mut self) -> Vec<(u32, Verb, Vec<u8>, u32)> {
        std::mem::take(&mut self.said.posts)
    }
}

fn read(bytes: u32) -> ProxyWork {
    ProxyWork::Read { offset: 64, key: Generation(9), bytes }
}

const WRITE: ProxyWork = ProxyWork::Write { offset: 0, key: Generation(9) };

fn done(tag: u8, status: ProxyStatus) -> ProxyOutcome {
    ProxyOutcome::Done { tag, status }
}

#[test]
fn a_read_brings_its_data_and_work_of_one_channel_is_posted_in_its_order() {
    let mut rig = Rig::open();
    rig.work(3, 0, read(4), &[]).unwrap();
    rig.work(3, 1, WRITE, &[5; 10]).unwrap();
    let posts = rig.posts();
    assert_eq!(posts.len(), 2, "at once");
    assert!(matches!(posts[0].1, Verb::Read(at) if at.offset == 64 && at.key == Generation(9)));
    assert!(posts[0].3 == 4 && posts[1].2 == [5; 10]);
    rig.said.reads.insert(posts[0].0, vec![1, 2, 3, 4]);
    rig.complete(posts[0].0, WorkStatus::Done(0));
    rig.complete(posts[1].0, WorkStatus::BadKey);
    let first = (3, done(0, ProxyStatus::Done(0)), vec![1, 2, 3, 4]);
    assert_eq!(rig.take(), [first, (3, done(1, ProxyStatus::BadKey), vec![])]);
}

#[test]
fn all_clients_of_a_rack_share_one_connection_and_what_has_no_room_waits_in_order() {
    let mut rig = Rig::open();
    rig.order(4, ProxyOrder::Open { channel: 1, rack: RACK }, &[]).unwrap();
    assert_eq!(rig.take(), [(4, ProxyOutcome::Opened { channel: 1 }, vec![])], "it is up");
    for slot in [3, 4, 5] {
        if slot == 5 {
            rig.order(5, ProxyOrder::Open { channel: 1, rack: RACK }, &[]).unwrap();
        }
        for tag in 0..64 {
            rig.work(slot, tag, WRITE, &[slot as u8, tag]).unwrap();
        }
    }
    assert_eq!((rig.said.connects, rig.proxy.counts().uplinks), (1, 1));
    let posts = rig.posts();
    assert_eq!(posts.len(), FABRIC_OUTSTANDING_MAX as usize, "no more than the fabric takes");
    rig.take();
    for (index, ..) in &posts {
        rig.complete(*index, WorkStatus::Done(0));
    }
    let rest = rig.posts();
    let order: Vec<Vec<u8>> = rest.into_iter().map(|post| post.2).collect();
    assert_eq!(order, (0..64).map(|tag| vec![5, tag]).collect::<Vec<_>>());
    assert_eq!(rig.proxy.counts().operations, 192);
}

#[test]
fn hostile_orders_are_refused_and_do_nothing() {
    let mut rig = Rig::open();
    let long = vec![0; PROXY_PIECE_BYTES_MAX as usize + 1];
    let refused = [
        rig.work(3, 64, read(1), &[]),
        rig.work(3, 0, read(PROXY_PIECE_BYTES_MAX as u32 + 1), &[]),
        rig.work(3, 0, read(1), &[1]),
        rig.work(3, 0, WRITE, &long),
        rig.work(3, 0, ProxyWork::Send, &[255; 9]),
        rig.order(3, ProxyOrder::Open { channel: 1, rack: RACK }, &[]),
        rig.order(3, ProxyOrder::Close { channel: 1 }, &[0]),
        rig.proxy.on_order(3, &[99, 1], &mut rig.said),
        rig.proxy.on_order(3, &[], &mut rig.said),
    ];
    for one in refused {
        assert_eq!(one.unwrap_err().code(), "protocol");
    }
    assert!(rig.posts().is_empty() && rig.take().is_empty());
    rig.work(3, 0, read(1), &[]).unwrap();
    assert!(rig.work(3, 0, read(1), &[]).is_err(), "a tag that is under way");
    assert_eq!(rig.posts().len(), 1);
}

#[test]
fn channels_are_bounded() {
    let mut rig = Rig::new();
    let mut channel = 0;
    let refused = loop {
        channel += 1;
        let opened = rig.order(3, ProxyOrder::Open { channel, rack: RACK }, &[]);
        if let Err(error) = opened {
            break error;
        }
    };
    assert_eq!((refused.code(), channel), ("protocol", PROXY_CHANNELS_MAX as u32 + 1));
}

#[test]
fn who_opens_and_closes_without_end_is_refused_and_nothing_grows() {
    for full in [true, false] {
        let mut rig = Rig::open();
        for tag in 0..64 {
            rig.work(3, tag, WRITE, &[tag]).unwrap();
        }
        rig.order(4, ProxyOrder::Open { channel: 1, rack: RACK }, &[]).unwrap();
        for tag in 0..64 {
            rig.work(4, tag, WRITE, &[tag]).unwrap();
        }
        if full {
            rig.said.full.push(5);
        }
        let mut channel = 0;
        let refused = loop {
            channel += 1;
            let opened = rig.order(5, ProxyOrder::Open { channel, rack: RACK }, &[]);
            let closed = opened.and_then(|()| rig.order(5, ProxyOrder::Close { channel }, &[]));
            if let Err(error) = closed {
                break error;
            }
        };
        // So many answers to one client, and so many orders of all, wait at most.
        let bound = match full {
            true => RING_ENTRIES + 2 * PROXY_CHANNELS_MAX as u32,
            false => 2 * RING_ENTRIES * SLOTS_MAX + 1,
        };
        assert_eq!((refused.code(), channel), ("protocol", bound));
    }
}

#[test]
fn messages_get_the_channels_number_and_come_back_to_it() {
    let mut rig = Rig::open();
    let leave = Routed { channel: 0, message: RemoteRequest::Consumed(5) };
    rig.work(3, 0, ProxyWork::Send, &wire::encode_vec(&leave)).unwrap();
    let sent = rig.posts().remove(0);
    let routed = wire::decode::<Routed<RemoteRequest>>(&sent.2, "test").unwrap();
    assert!(routed.channel != 0 && routed.message == leave.message);
    let answer = |channel, message| wire::encode_vec(&Routed { channel, message });
    let message = answer(routed.channel, RemoteReply::Consumed(5));
    rig.event(FabricEvent::Received { peer: PEER, message: message.clone() });
    assert_eq!(rig.take(), [(3, ProxyOutcome::Message { channel: 1 }, message)]);
    // Of another, or of none.
    for message in [answer(routed.channel + 1, RemoteReply::Consumed(5)), vec![255; 3]] {
        rig.event(FabricEvent::Received { peer: PEER, message });
    }
    assert!(rig.take().is_empty());
    let message = answer(routed.channel, RemoteReply::Ended);
    rig.event(FabricEvent::Received { peer: PEER, message });
    let ended = ProxyOutcome::Ended { channel: 1, cause: DeathCause::Closed };
    assert_eq!(rig.take(), [(3, ended, vec![])]);
    assert_eq!(rig.proxy.counts().channels, 0);
}

#[test]
fn a_closed_channel_flushes_what_waits_and_tells_the_target_after_what_is_under_way() {
    let mut rig = Rig::open();
    for tag in 0..64 {
        rig.work(3, tag, WRITE, &[tag]).unwrap();
    }
    rig.order(4, ProxyOrder::Open { channel: 1, rack: RACK }, &[]).unwrap();
    rig.order(5, ProxyOrder::Open { channel: 1, rack: RACK }, &[]).unwrap();
    for tag in 0..64 {
        rig.work(4, tag, read(1), &[]).unwrap();
    }
    rig.work(5, 9, WRITE, &[9]).unwrap();
    let posts = rig.posts();
    rig.take();
    rig.order(5, ProxyOrder::Close { channel: 1 }, &[]).unwrap();
    let flushed = ProxyStatus::Flushed { executed: Some(false) };
    assert_eq!(rig.take(), [(5, done(9, flushed), vec![])]);
    rig.complete(posts[0].0, WorkStatus::Done(0));
    let last = rig.posts().remove(0);
    let routed = wire::decode::<Routed<RemoteRequest>>(&last.2, "test").unwrap();
    assert_eq!((last.1, routed.message), (Verb::Send, RemoteRequest::Ended));
    // Work for a channel that is not there is flushed, not refused: it may cross the end.
    rig.take();
    rig.work(5, 9, WRITE, &[9]).unwrap();
    assert_eq!(rig.take(), [(5, done(9, flushed), vec![])]);
}

#[test]
fn a_dead_clients_slot_can_be_used_at_once_and_hears_nothing_of_the_old_one() {
    let mut rig = Rig::open();
    rig.work(3, 0, read(8), &[]).unwrap();
    let old = rig.posts().remove(0);
    rig.proxy.on_slot_gone(3, &mut rig.said);
    let last = rig.posts().remove(0);
    let routed = wire::decode::<Routed<RemoteRequest>>(&last.2, "test").unwrap();
    assert_eq!(routed.message, RemoteRequest::Leave, "its session is over");
    rig.order(3, ProxyOrder::Open { channel: 1, rack: RACK }, &[]).unwrap();
    rig.work(3, 0, read(8), &[]).unwrap();
    let new = rig.posts().remove(0);
    rig.take();
    rig.said.reads.insert(old.0, vec![1; 8]);
    rig.said.reads.insert(new.0, vec![2; 8]);
    rig.complete(old.0, WorkStatus::Done(0));
    assert!(rig.take().is_empty(), "it was the dead one's");
    rig.complete(new.0, WorkStatus::Done(0));
    assert_eq!(rig.take(), [(3, done(0, ProxyStatus::Done(0)), vec![2; 8])]);
}

#[test]
fn the_end_of_a_connection_ends_all_its_channels_after_their_work() {
    let mut rig = Rig::open();
    rig.order(4, ProxyOrder::Open { channel: 2, rack: RACK }, &[]).unwrap();
    rig.work(3, 5, WRITE, &[1]).unwrap();
    rig.take();
    let posted = rig.posts().remove(0);
    rig.complete(posted.0, WorkStatus::Flushed { executed: None });
    rig.event(FabricEvent::Closed { peer: PEER, cause: DeathCause::Silent });
    let ended = |channel| ProxyOutcome::Ended { channel, cause: DeathCause::Silent };
    let unknown = done(5, ProxyStatus::Flushed { executed: None });
    let told = rig.take();
    assert_eq!(told, [(3, unknown, vec![]), (3, ended(1), vec![]), (4, ended(2), vec![])]);
    assert_eq!(
        rig.proxy.counts(),
        rackpool_core::counts::ProxyCounts { operations: 1, ..Default::default() }
    );
    // The next one asks the master again.
    rig.order(3, ProxyOrder::Open { channel: 3, rack: RACK }, &[]).unwrap();
    assert_eq!(rig.said.finds, [RACK, RACK]);
    rig.proxy.on_rack(RACK, Ok(RackInfo { alive: false, ..info() }), &mut rig.said);
    let ended = ProxyOutcome::Ended { channel: 3, cause: DeathCause::Closed };
    assert_eq!(rig.take(), [(3, ended, vec![])], "at once, not never");
}

#[test]
fn a_rack_that_may_not_know_of_a_lost_connection_is_told_by_the_next_one() {
    let mut rig = Rig::open();
    rig.proxy.on_slot_gone(3, &mut rig.said);
    rig.event(FabricEvent::Closed { peer: PEER, cause: DeathCause::Closed });
    assert_eq!(rig.said.finds, [RACK]);
    rig.proxy.reconcile(&mut rig.said);
    rig.proxy.reconcile(&mut rig.said);
    assert_eq!(rig.said.finds, [RACK, RACK], "once at a time, and nobody needs it");
    rig.posts();
    rig.proxy.on_rack(RACK, Ok(info()), &mut rig.said);
    rig.event(FabricEvent::Connected { peer: PEER });
    assert_eq!(rig.posts().len(), 1, "it says who it is");
    rig.proxy.reconcile(&mut rig.said);
    assert_eq!(rig.said.finds.len(), 2);
    rig.event(FabricEvent::Closed { peer: PEER, cause: DeathCause::Closed });
    rig.proxy.reconcile(&mut rig.said);
    rig.proxy.on_rack(RACK, Err(Error::NoSuchRack { rack: RACK }), &mut rig.said);
    rig.proxy.reconcile(&mut rig.said);
    assert_eq!(rig.said.finds.len(), 3, "what is no rack any more is not looked for");
}

#[test]
fn the_loss_of_the_master_ends_what_was_asked_there() {
    let mut rig = Rig::new();
    rig.order(3, ProxyOrder::Open { channel: 1, rack: RACK }, &[]).unwrap();
    rig.work(3, 0, WRITE, &[1]).unwrap();
    rig.proxy.on_master_down(&mut rig.said);
    let flushed = done(0, ProxyStatus::Flushed { executed: Some(false) });
    let ended = ProxyOutcome::Ended { channel: 1, cause: DeathCause::Closed };
    assert_eq!(rig.take(), [(3, flushed, vec![]), (3, ended, vec![])]);
}

#[test]
fn a_client_that_takes_nothing_keeps_its_own_outcomes_and_holds_up_nobody() {
    let mut rig = Rig::open();
    rig.order(4, ProxyOrder::Open { channel: 1, rack: RACK }, &[]).unwrap();
    rig.take();
    rig.said.full.push(3);
    for tag in 0..64 {
        rig.work(3, tag, read(2), &[]).unwrap();
    }
    rig.work(4, 0, read(2), &[]).unwrap();
    for (index, ..) in rig.posts() {
        rig.said.reads.insert(index, vec![index as u8; 2]);
        rig.complete(index, WorkStatus::Done(0));
    }
    assert_eq!(rig.take().len(), 1, "the other one's");
    assert!(rig.proxy.is_behind());
    for tag in 0..64 {
        rig.work(4, tag, read(2), &[]).unwrap();
    }
    assert_eq!(rig.posts().len(), 64, "no buffer is kept for the one that takes nothing");
    rig.proxy.deliver(&mut rig.said);
    assert!(rig.proxy.is_behind() && rig.take().is_empty());
    rig.said.full.clear();
    rig.proxy.deliver(&mut rig.said);
    let tags: Vec<u8> = rig
        .take()
        .iter()
        .map(|(_, outcome, data)| match outcome {
            ProxyOutcome::Done { tag, .. } if data.len() == 2 => *tag,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tags, (0..64).collect::<Vec<u8>>());
    assert!(!rig.proxy.is_behind());
}
