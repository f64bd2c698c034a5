//! A client's slot under loom, with the engines of both sides: what the word `ConsumedSeq` says of
//! an answer, and how a request and its answer meet when both ends sleep. Run with
//! `cargo xtask loom`.
use crate::engines::model::{model, spawn};
use crate::engines::{PAGE, Rack, Section};
use loom::thread;
use rackpool_core::GAddr;
use rackpool_core::client::{Client, OWN, Session};
use rackpool_core::daemon::{ClientId, Daemon};
use rackpool_core::layout::AllocationKind;
use rackpool_core::seam::Mem;
use rackpool_core::wire::{self, Reply, ReplyFrame, Request, RequestFrame};
use rackpool_mem::ring::bitmap::Bitmap;
use rackpool_mem::ring::{self, Consumer, Geometry, Producer, WakeConsumer};
use rackpool_mem::wait::{Waiter, sleep_until_woken, wake_if_sleeping};
use rackpool_mem::window::Window;
use std::time::{Duration, Instant};

const OURS: [u8; 16] = [1; 16];

/// A client with an allocation of the only page that is answered and not yet taken.
struct Answered {
    rack: Rack,
    daemon: Daemon,
    slot: u32,
    client: Client<Section>,
    session: Session,
    answer: ReplyFrame,
}

impl Answered {
    fn new() -> Answered {
        let (mut rack, mut daemon) = Rack::start(1, None);
        let (slot, mut client) = rack.join(&mut daemon, 7, 1);
        let mut session = Session::new("the daemon".into());
        let seq = session.begin(Request::Alloc { bytes: PAGE, kind: AllocationKind::User }).seq;
        let (addr, _) = rack.page(&mut daemon, (slot, &mut client), seq, false);
        let answer = ReplyFrame { seq, reply: Ok(Reply::Allocated { addr }) };
        Answered { rack, daemon, slot, client, session, answer }
    }
}

fn take_and_write(
    client: &Client<Section>,
    session: &mut Session,
    answer: ReplyFrame,
    slot: &Section,
) {
    let reply = session.take_reply(answer, slot).expect("it answers the request under way");
    let Reply::Allocated { addr } = reply.expect("it was allocated") else {
        panic!("an answer to an allocation")
    };
    // If the page is not at home any more, the test finds that nothing was written.
    let _ = client.write_warm(addr, &OURS);
}

/// The client dies before it takes the answer, or after it.
fn a_death(takes: bool) {
    model(None, move || {
        let Answered { mut rack, mut daemon, slot, client, mut session, answer } = Answered::new();
        // The control socket, which the kernel closes after the last instruction.
        let closed = Window::heap(8);
        let socket = closed.clone();
        let home = slot_home(&client, &answer);
        let section = rack.slot_section(slot).clone();
        let reaper = spawn(move || {
            while socket.load(0) == 0 {
                thread::yield_now();
            }
            rack.leave(&mut daemon, slot);
            daemon.tick(0, &mut rack);
            assert_eq!(
                daemon.frames_free(),
                u32::from(!takes),
                "taken stays, not taken comes back"
            );
            if takes {
                assert_eq!(rack.read_page(home), OURS);
            }
        });
        if takes {
            take_and_write(&client, &mut session, answer, &section);
        }
        closed.store(0, 1);
        reaper.join().expect("the reaper saw nothing wrong");
    });
}

fn slot_home(client: &Client<Section>, answer: &ReplyFrame) -> wire::PageHome {
    let Ok(Reply::Allocated { addr }) = answer.reply else { panic!("an allocation") };
    let entry = client.translation(client.geometry().page(addr)).expect("it was installed");
    wire::PageHome {
        page: entry.page,
        rack: client.rack_of(OWN),
        frame: entry.frame,
        generation: entry.generation,
    }
}

#[test]
fn an_allocation_whose_answer_was_taken_outlives_its_client() {
    a_death(true);
}

#[test]
fn an_allocation_whose_answer_was_not_taken_comes_back() {
    a_death(false);
}

/// Waits for a request. Not inlined: the stacks of a model's threads are small, and what decoding
/// takes of them is to be free again when the request is served.
#[inline(never)]
fn next_frame(consumer: &mut Consumer) -> RequestFrame {
    let decode = |bytes: &[u8]| wire::decode::<RequestFrame>(bytes, "client");
    loop {
        match consumer.pop(decode) {
            Some(frame) => break frame.expect("an intact ring").expect("a request"),
            None => thread::yield_now(),
        }
    }
}

/// The client takes the answer, uses the memory and asks for something else, in this order or,
/// broken, asks first. The next request makes the daemon take back what was not taken.
fn the_next_request(asks_first: bool) {
    model(None, move || {
        let Answered { rack, daemon, slot, client, mut session, answer } = Answered::new();
        let geometry = Geometry::SMALLEST;
        let requests = Window::heap(geometry.bytes());
        let mut producer = Producer::attach_with(requests.clone(), geometry);
        let home = slot_home(&client, &answer);
        let section = rack.slot_section(slot).clone();
        let mut engines = Box::new((rack, daemon));
        let server = spawn(move || {
            let (rack, daemon) = &mut *engines;
            let mut consumer = Consumer::attach_with(requests, geometry);
            let frame = next_frame(&mut consumer);
            daemon.on_request(ClientId::Slot(slot), frame, rack);
            rack.serve_master(daemon);
            engines
        });
        let next = Request::Free { addr: GAddr(0), bytes: 64 };
        let frame = RequestFrame { seq: answer.seq + 1, request: next };
        let push = |producer: &mut Producer| {
            let mut buffer = [0; 64];
            let bytes = wire::encode(&frame, &mut buffer).expect("it is short");
            producer.push(bytes).expect("the ring is empty");
        };
        if asks_first {
            push(&mut producer);
        }
        take_and_write(&client, &mut session, answer, &section);
        push(&mut producer);
        let engines = server.join().expect("the server saw nothing wrong");
        let (rack, daemon) = &*engines;
        assert_eq!(daemon.frames_free(), 0, "memory in use was taken back");
        assert_eq!(rack.read_page(home), OURS);
    });
}

#[test]
fn the_next_request_takes_nothing_back_that_was_taken() {
    the_next_request(false);
}

#[test]
#[should_panic(expected = "memory in use was taken back")]
fn a_client_that_asks_before_it_takes_is_caught() {
    the_next_request(true);
}

/// A request through ring and bell to a daemon that sleeps when it has nothing to do, and its
/// answer through the other ring to a client that sleeps until it is there. (That a daemon which
/// does not look again is caught, `shuttle_pool.rs` shows: a deadlock ends a loom process.)
#[test]
fn a_request_and_its_answer_meet_when_both_ends_sleep() {
    const BELL: u64 = 128;
    model(Some(2), move || {
        let (mut rack, mut daemon) = Rack::start(1, None);
        let (slot, _) = rack.join(&mut daemon, 7, 1);
        let geometry = Geometry::SMALLEST;
        let rings = [(); 2].map(|()| Window::heap(geometry.bytes()));
        // The bell, then the daemon's event with its sleeping word.
        let window = Window::heap(BELL + 16);
        let [requests, replies] = rings.clone();
        let bell_window = window.clone();
        let server = spawn(move || {
            let bell = Bitmap::attach_small(bell_window.clone(), 1);
            let mut consumer = Consumer::attach_with(requests, geometry);
            let mut producer = Producer::attach_with(replies, geometry);
            let event = || bell_window.load(BELL) != 0;
            loop {
                if bell.take(0) != 0 {
                    let popped =
                        consumer.pop(|bytes| wire::decode::<RequestFrame>(bytes, "client"));
                    let frame = popped.expect("it came with its bit").expect("an intact ring");
                    let from = ClientId::Slot(slot);
                    daemon.on_request(from, frame.expect("a request"), &mut rack);
                    let (_, reply) = rack.replies.pop().expect("a ping is answered at once");
                    let mut buffer = [0; 64];
                    let bytes = wire::encode(&reply, &mut buffer).expect("it is short");
                    producer.push(bytes).expect("the ring is empty");
                    producer.wake_if_sleeping();
                    return;
                }
                if bell.prepare_sleep() {
                    while !event() {
                        sleep_until_woken(&bell_window, BELL + 8, event, Duration::MAX);
                    }
                    bell_window.store(BELL, 0);
                    bell.awake();
                }
            }
        });
        let [requests, replies] = rings;
        let mut producer = Producer::attach_with(requests, geometry);
        let mut consumer = Consumer::attach_with(replies, geometry);
        let mut session = Session::new("the daemon".into());
        let mut buffer = [0; 64];
        let frame = wire::encode(session.begin(Request::Ping), &mut buffer).expect("it is short");
        producer.push(frame).expect("the ring is empty");
        if Bitmap::attach_small(window.clone(), 1).set(slot) {
            window.store(BELL, 1);
            wake_if_sleeping(&window, BELL + 8);
        }
        assert!(ring::wait(
            &consumer,
            &mut Waiter::new(),
            Instant::now() + Duration::from_secs(3600)
        ));
        let popped = consumer.pop(|bytes| wire::decode::<ReplyFrame>(bytes, "daemon"));
        let frame = popped.expect("waited for").expect("an intact ring").expect("an answer");
        assert_eq!(session.on_reply(frame), Some(Ok(Reply::Pong)));
        server.join().expect("the server saw nothing wrong");
    });
}
