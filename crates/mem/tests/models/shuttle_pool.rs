//! A whole rack under shuttle: the daemon engine behind bell and rings, two handles that join,
//! allocate, write, read one another's pages, free and leave, and a target that reads for others.
//! Every operation on shared memory is a point where another thread may run; schedules are random
//! and seeded. Run with
//! `cargo xtask shuttle`.
use crate::engines::{PAGE, Rack, Section};
use rackpool_core::client::{Client, Miss, OWN, Session};
use rackpool_core::daemon::{ClientId, Daemon};
use rackpool_core::layout::AllocationKind;
use rackpool_core::layout::SlotWord;
use rackpool_core::seam::{Mem, Mutation, WorkStatus};
use rackpool_core::target::TargetMemory;
use rackpool_core::wire::{self, PageHome, Reply, ReplyFrame, Request, RequestFrame};
use rackpool_core::{Error, GAddr};
use rackpool_mem::ring::bitmap::Bitmap;
use rackpool_mem::ring::{self, Consumer, Geometry, Producer, RingError, WakeConsumer};
use rackpool_mem::wait::{Waiter, sleep_until_woken, wake_if_sleeping};
use rackpool_mem::window::Window;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::mpsc::{Receiver, Sender, channel};
use shuttle::sync::{Arc, Mutex};
use shuttle::{Runner, thread};
use std::time::{Duration, Instant};

const FRAMES: u32 = 2;
const HANDLES: u64 = 2;
const ROUNDS: u64 = 2;
const EVENT: u64 = 128;
/// The rings' smallest geometry, with room for the homes of a few pages.
const RINGS: Geometry = Geometry { blocks: 16, control_bytes: 512, ..Geometry::SMALLEST };

/// What goes over a control socket.
enum Control {
    Join { session: u64, welcome: Sender<Welcome> },
    Closed { slot: u32 },
}

struct Welcome {
    slot: u32,
    client: Client<Section>,
    rings: [Window; 2],
}

/// What the handles know of one another's pages: which byte fills them.
type Board = Arc<Mutex<Vec<(GAddr, PageHome, u8)>>>;
/// How many handles have left.
type Left = Arc<Mutex<u64>>;

struct Server {
    rack: Rack,
    daemon: Daemon,
    bell: Bitmap,
    event: Window,
    control: Receiver<Control>,
    slots: Vec<Option<(Consumer, Producer)>>,
    /// Whether it looks at the bell once more before it sleeps.
    looks_again: bool,
}

impl Server {
    fn run(mut self) {
        let mut left = 0;
        while left < HANDLES {
            let mut bits = self.bell.take(0);
            let mut worked = bits != 0;
            while bits != 0 {
                self.serve(bits.trailing_zeros());
                bits &= bits - 1;
            }
            while let Ok(message) = self.control.try_recv() {
                worked = true;
                left += u64::from(self.on_control(message));
            }
            self.daemon.tick(0, &mut self.rack);
            self.rack.serve_master(&mut self.daemon);
            self.flush();
            if !worked {
                self.sleep();
            }
        }
        // Nothing is left that could hold a frame, but the target: all frames come back.
        while self.daemon.tick_ns().is_some() {
            thread::yield_now();
            self.daemon.tick(0, &mut self.rack);
        }
        assert_eq!(self.daemon.frames_free(), FRAMES, "frames were lost");
        assert_eq!(self.daemon.sessions().count(), 0);
    }

    fn serve(&mut self, slot: u32) {
        loop {
            let Some(Some((requests, _))) = self.slots.get_mut(slot as usize) else { return };
            let decode = |bytes: &[u8]| wire::decode::<RequestFrame>(bytes, "client");
            let Some(popped) = requests.pop(decode) else { return };
            let frame = popped.expect("an intact ring").expect("a request");
            self.daemon.on_request(ClientId::Slot(slot), frame, &mut self.rack);
            self.rack.serve_master(&mut self.daemon);
        }
    }

    fn on_control(&mut self, message: Control) -> bool {
        match message {
            Control::Join { session, welcome } => {
                let (slot, client) = self.rack.join(&mut self.daemon, session, 4);
                let rings = [(); 2].map(|()| Window::heap(RINGS.bytes()));
                let [requests, replies] = rings.clone();
                self.slots.resize_with(HANDLES as usize, || None);
                self.slots[slot as usize] = Some((
                    Consumer::attach_with(requests, RINGS),
                    Producer::attach_with(replies, RINGS),
                ));
                welcome.send(Welcome { slot, client, rings }).expect("the handle waits");
                false
            }
            Control::Closed { slot } => {
                // What the client still said before its end is served first.
                self.serve(slot);
                self.slots[slot as usize] = None;
                self.rack.leave(&mut self.daemon, slot);
                true
            }
        }
    }

    fn flush(&mut self) {
        for (to, frame) in std::mem::take(&mut self.rack.replies) {
            let ClientId::Slot(slot) = to else { unreachable!("all are local") };
            let Some((_, replies)) = &mut self.slots[slot as usize] else { continue };
            let bytes = wire::encode_vec(&frame);
            replies.push(&bytes).expect("one request of a client is under way");
            replies.wake_if_sleeping();
        }
    }

    /// Frames that wait for a cell are looked at again; without them the bell is waited for.
    fn sleep(&mut self) {
        if self.daemon.tick_ns().is_some() {
            thread::yield_now();
        } else if !self.looks_again || self.bell.prepare_sleep() {
            while self.event.load(EVENT) == 0 {
                let ready = || self.event.load(EVENT) != 0;
                sleep_until_woken(&self.event, EVENT + 8, ready, Duration::MAX);
            }
        }
        self.event.store(EVENT, 0);
        self.bell.awake();
    }
}

#[derive(Clone)]
struct Door {
    control: Sender<Control>,
    event: Window,
}

impl Door {
    fn notify(&self) {
        self.event.store(EVENT, 1);
        wake_if_sleeping(&self.event, EVENT + 8);
    }

    fn send(&self, message: Control) {
        self.control.send(message).expect("the daemon serves until all have left");
        self.notify();
    }
}

struct Handle {
    door: Door,
    bell: Bitmap,
    slot: u32,
    client: Client<Section>,
    section: Section,
    session: Session,
    requests: Producer,
    replies: Consumer,
}

impl Handle {
    fn join(door: Door, session: u64) -> Handle {
        let (sender, receiver) = channel();
        door.send(Control::Join { session, welcome: sender });
        let Welcome { slot, client, rings } = receiver.recv().expect("the daemon answers");
        let rackpool_core::client::Reach::Mapped(view) = client.reach(OWN) else {
            unreachable!("the rack is mapped")
        };
        let section = view.slot.clone();
        let [requests, replies] = rings;
        Handle {
            bell: Bitmap::attach_small(door.event.clone(), 1),
            door,
            slot,
            client,
            section,
            session: Session::new("the daemon".into()),
            requests: Producer::attach_with(requests, RINGS),
            replies: Consumer::attach_with(replies, RINGS),
        }
    }

    fn call(&mut self, request: Request) -> Result<Reply, Error> {
        let bytes = wire::encode_vec(self.session.begin(request));
        self.requests.push(&bytes).expect("one request is under way");
        if self.bell.set(self.slot) {
            self.door.notify();
        }
        loop {
            assert!(ring::wait(
                &self.replies,
                &mut Waiter::new(),
                Instant::now() + Duration::from_secs(3600)
            ));
            let decode = |bytes: &[u8]| wire::decode::<ReplyFrame>(bytes, "daemon");
            let Some(popped) = self.replies.pop(decode) else { continue };
            let frame = popped.expect("an intact ring").expect("an answer");
            if let Some(reply) = self.session.take_reply(frame, &self.section) {
                return reply;
            }
        }
    }

    fn resolve(&mut self, addr: GAddr) -> Option<PageHome> {
        let page = self.client.geometry().page(addr);
        let Ok(Reply::Homes(homes)) = self.call(Request::Resolve { page, count: 1 }) else {
            panic!("a search has an answer")
        };
        self.client.install(OWN, &homes).expect("homes in the region");
        homes.first().copied()
    }

    /// Allocates a page, shows it, changes it and frees it, or leaves it to the end.
    fn round(&mut self, fill: u8, frees: bool, board: &Board) {
        let reply = self.call(Request::Alloc { bytes: PAGE, kind: AllocationKind::Session });
        let addr = match reply {
            Ok(Reply::Allocated { addr }) => addr,
            Err(Error::Full { .. }) => return self.read_others(board),
            other => panic!("{other:?} to an allocation"),
        };
        let home = self.resolve(addr).expect("a page that was just allocated");
        self.client.write_warm(addr, &[fill; 16]).expect("its place is known");
        board.lock().expect("no thread panics").push((addr, home, fill));
        self.read_others(board);
        let mut bytes = [0; 16];
        self.client.read_warm(addr, &mut bytes).expect("it was not freed");
        assert_eq!(bytes, [fill; 16], "another's bytes are in a page of ours");
        if frees {
            assert_eq!(self.call(Request::Free { addr, bytes: PAGE }), Ok(Reply::Freed));
        }
    }

    /// Pages of others may be gone, but never show another page's bytes.
    fn read_others(&mut self, board: &Board) {
        let shown = board.lock().expect("no thread panics").clone();
        for (addr, home, fill) in shown {
            self.client.install(OWN, &[home]).expect("a home in the region");
            let mut bytes = [0; 16];
            match self.client.read_warm(addr, &mut bytes) {
                Ok(()) => assert_eq!(bytes, [fill; 16], "a read saw the frame's next use"),
                Err(miss) => assert_eq!(miss, Miss::Unknown),
            }
        }
    }

    fn leave(self) {
        self.section.store(SlotWord::Left as u64, 1);
        self.door.send(Control::Closed { slot: self.slot });
    }
}

/// Executes one-sided reads of whatever is shown, until all handles have left.
fn serve_remote(target: &TargetMemory<Section>, board: &Board, left: &Left) {
    while *left.lock().expect("no thread panics") < HANDLES {
        let shown = board.lock().expect("no thread panics").clone();
        for (_, home, fill) in shown {
            let mut bytes = [0; 16];
            let offset = target.layout().frame_offset(home.frame);
            match target.read(offset, home.generation, &mut bytes) {
                WorkStatus::Done(_) => assert_eq!(bytes, [fill; 16], "a revoked key was executed"),
                status => assert_eq!(status, WorkStatus::BadKey),
            }
        }
        thread::yield_now();
    }
}

fn whole_rack(mutation: Option<Mutation>, looks_again: bool) {
    let (rack, daemon) = Rack::start(FRAMES, mutation);
    let event = Window::heap(EVENT + 16);
    let (sender, control) = channel();
    let door = Door { control: sender, event: event.clone() };
    let board: Board = Arc::new(Mutex::new(Vec::new()));
    let target = rack.target(None);
    let bell = Bitmap::attach_small(event.clone(), 1);
    let server = Server { rack, daemon, bell, event, control, slots: Vec::new(), looks_again };
    let server = thread::spawn(move || server.run());
    // A target that goes on would hide the deadlock that is looked for.
    let left: Left = Arc::new(Mutex::new(if looks_again { 0 } else { HANDLES }));
    let (shown, gone) = (board.clone(), left.clone());
    let remote = thread::spawn(move || serve_remote(&target, &shown, &gone));
    let handles: Vec<_> = (1..=HANDLES)
        .map(|session| {
            let (door, board, left) = (door.clone(), board.clone(), left.clone());
            thread::spawn(move || {
                let mut handle = Handle::join(door, session);
                for round in 0..ROUNDS {
                    let fill = (16 * session + round + 1) as u8;
                    handle.round(fill, round == 0, &board);
                }
                handle.leave();
                *left.lock().expect("no thread panics") += 1;
            })
        })
        .collect();
    for handle in handles {
        handle.join().expect("a handle saw nothing wrong");
    }
    remote.join().expect("the target saw nothing wrong");
    server.join().expect("the daemon saw nothing wrong");
}

fn check(scheduler: impl Scheduler + 'static, run: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    // The default of 32 KiB is less than the engines need.
    config.stack_size = 1 << 20;
    // The model of memory is sequentially consistent: weaker orders are loom's matter.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(run);
}

/// A seed that differs each time and is printed, or the one that `RACKPOOL_SHUTTLE_SEED` names.
fn seed() -> u64 {
    let named = std::env::var("RACKPOOL_SHUTTLE_SEED").ok();
    let seed = named.map_or_else(
        || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64),
        |seed| seed.parse().expect("RACKPOOL_SHUTTLE_SEED is a number"),
    );
    println!("RACKPOOL_SHUTTLE_SEED={seed}");
    seed
}

/// So many times as `RACKPOOL_SEEDS_TIMES` says: `cargo xtask soak models` runs more.
fn times(schedules: usize) -> usize {
    let times = std::env::var("RACKPOOL_SEEDS_TIMES").ok();
    schedules
        * times.map_or(1, |times| times.parse::<usize>().expect("RACKPOOL_SEEDS_TIMES is a number"))
}

#[test]
fn two_handles_share_a_rack_under_random_schedules() {
    check(RandomScheduler::new_from_seed(seed(), times(10_000)), || whole_rack(None, true));
}

#[test]
fn two_handles_share_a_rack_under_schedules_with_few_changes() {
    check(PctScheduler::new_from_seed(seed(), 3, times(5_000)), || whole_rack(None, true));
}

/// Whether a schedule of a fixed seed shows that a safeguard is missing.
fn catches(mutation: Mutation) {
    check(RandomScheduler::new_from_seed(1, 20_000), move || whole_rack(Some(mutation), true));
}

#[test]
#[should_panic(expected = "a read saw the frame's next use")]
fn reads_without_a_generation_are_caught() {
    catches(Mutation::SkipEpochCheckRead);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_daemon_that_does_not_look_again_before_it_sleeps_is_caught() {
    check(RandomScheduler::new_from_seed(1, 20_000), || whole_rack(None, false));
}

#[test]
#[should_panic(expected = "a revoked key was executed")]
fn frames_that_are_used_again_while_announced_are_caught() {
    catches(Mutation::ReuseBeforeDrained);
}

#[test]
#[should_panic(expected = "a revoked key was executed")]
fn a_target_that_executes_revoked_keys_is_caught() {
    catches(Mutation::ExecuteRevokedKey);
}

/// Six messages, of which three are held at a time, through a ring of two entries and four blocks
/// with a producer that leaves a safeguard out.
fn a_ring(mutation: Option<Mutation>, bytes: usize) {
    check(RandomScheduler::new_from_seed(1, 1000), move || {
        let geometry = Geometry::SMALLEST;
        let section = Section::shared(Window::heap(geometry.bytes()), mutation);
        let mut producer = Producer::attach_with(section.clone(), geometry);
        let mut consumer = Consumer::attach_with(section, geometry);
        let sender = thread::spawn(move || {
            for i in 1..=6u8 {
                while let Err(error) = producer.push(&vec![i; bytes]) {
                    assert!(matches!(error, RingError::Full { .. }), "{error}");
                    thread::yield_now();
                }
            }
        });
        let mut held = Vec::new();
        for i in 1..=6u8 {
            let taken = loop {
                match consumer.hold() {
                    Some(taken) => break taken.expect("an intact ring"),
                    None => thread::yield_now(),
                }
            };
            held.push((taken, i));
            if i.is_multiple_of(3) {
                for (taken, i) in held.drain(..) {
                    assert_eq!(consumer.read(&taken), vec![i; bytes], "a message was overwritten");
                    consumer.finish(taken);
                }
            }
        }
        sender.join().expect("the sender saw nothing wrong");
    });
}

#[test]
fn messages_held_in_a_ring_stay_as_they_are() {
    a_ring(None, 16);
    a_ring(None, 64);
}

#[test]
#[should_panic(expected = "an intact ring: Corrupt")]
fn an_entry_that_is_written_again_before_it_was_taken_is_caught() {
    a_ring(Some(Mutation::ReuseSlotEarly), 16);
}

#[test]
#[should_panic(expected = "a message was overwritten")]
fn a_data_block_that_is_written_again_before_it_was_finished_is_caught() {
    a_ring(Some(Mutation::RecycleBufferEarly), 64);
}
