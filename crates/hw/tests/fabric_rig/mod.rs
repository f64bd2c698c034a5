//! Fabrics with both ends in this process, for the tests.
#![allow(dead_code, reason = "each test binary uses a part")]

use rackpool_core::addr::{FrameIndex, Generation, PageGeometry};
use rackpool_core::layout::{RegionLayout, table_word};
use rackpool_core::seam::{
    BufId, Fabric, FabricEvent, Mem, PeerId, PostError, RemoteAddr, Sge, Verb, WorkRequest,
    WorkStatus,
};
use rackpool_hw::fabric::shm::{HandOff, HandOffError, ShmEndpoint, ShmOptions, ShmPeer};
use rackpool_hw::fabric::tcp::{Endpoint, EndpointOptions, Target, TargetOptions};
use rackpool_hw::fabric::{LocalBuffers, monotonic_ns, shared};
use rackpool_hw::window::Window;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(20);
pub const PAGE: u64 = 8 << 20;
pub const FRAMES: u32 = 4;

/// The memory that a fabric gives access to.
#[derive(Clone)]
pub struct Memory {
    pub pages: Window,
    pub table: Window,
    pub cell: Window,
    pub layout: RegionLayout,
}

impl Memory {
    pub fn new() -> Self {
        let pages = PageGeometry::from_page_bytes(PAGE).unwrap();
        let layout = RegionLayout { pages, frame_count: FRAMES };
        let memory = Memory {
            pages: Window::heap(layout.pages_bytes()),
            table: Window::heap(layout.table_bytes()),
            cell: Window::heap(64),
            layout,
        };
        for frame in 0..FRAMES {
            memory.set_key(frame, key(frame));
        }
        memory
    }

    pub fn set_key(&self, frame: u32, key: Generation) {
        self.table.store(table_word(FrameIndex(frame)), key.0);
    }

    /// Revokes a frame as its owner does: new table word, barrier, wait for the cell.
    pub fn revoke(&self, frame: u32) {
        self.set_key(frame, Generation(0));
        self.table.fence();
        let start = Instant::now();
        while self.cell.load(0) == u64::from(frame) + 1 {
            assert!(start.elapsed() < PATIENCE, "the cell stays announced");
            std::thread::yield_now();
        }
    }

    pub fn bytes(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut to = vec![0; bytes as usize];
        self.pages.copy_out(offset, &mut to);
        to
    }

    pub fn target_options(&self) -> TargetOptions {
        let mut options = TargetOptions::new(
            "127.0.0.1:0".parse().unwrap(),
            self.layout,
            self.pages.clone(),
            self.table.clone(),
            self.cell.clone(),
        );
        options.log = Arc::new(|_| ());
        options
    }
}

pub fn key(frame: u32) -> Generation {
    Generation(100 + u64::from(frame))
}

pub fn at(offset: u64) -> RemoteAddr {
    RemoteAddr { offset, key: key((offset / PAGE) as u32) }
}

pub fn sge(buf: BufId, offset: u64, bytes: u64) -> Sge {
    Sge { buf, offset, bytes }
}

pub fn statuses(events: &[FabricEvent]) -> Vec<(u64, WorkStatus)> {
    let completed = events.iter().filter_map(|event| match event {
        FabricEvent::Completed { id, status, .. } => Some((*id, *status)),
        _ => None,
    });
    completed.collect()
}

/// Numbers that differ at every place.
pub fn pattern(bytes: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let words = std::iter::repeat_with(next).take(bytes as usize / 8 + 1);
    let mut all: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    all.truncate(bytes as usize);
    all
}

/// A fabric with both ends here.
pub trait Rig {
    type End: Fabric + LocalBuffers;
    fn new() -> Self;
    fn end(&mut self) -> &mut Self::End;
    fn peer(&self) -> PeerId;
    fn memory(&self) -> Memory;
    /// What the target's application receives, without connection events.
    fn application(&mut self) -> Vec<FabricEvent>;
    /// A message of the target's application to us.
    fn application_sends(&mut self, message: &[u8]);
    /// The target dies.
    fn kill(&mut self);
    /// The target starts again with the same memory and is connected to.
    fn restart(&mut self);

    fn poll(&mut self, events: &mut Vec<FabricEvent>) -> usize {
        let count = self.end().poll(monotonic_ns(), events);
        if count == 0 {
            std::thread::yield_now();
        }
        count
    }

    /// Posts all of a batch, however often the queue is full, and waits for all completions.
    fn run(&mut self, batch: &[WorkRequest<'_>]) -> Vec<(u64, WorkStatus)> {
        let peer = self.peer();
        let (mut posted, mut events) = (0, Vec::new());
        let start = Instant::now();
        while posted < batch.len() || statuses(&events).len() < batch.len() {
            if posted < batch.len() {
                posted += match self.end().post(peer, &batch[posted..]) {
                    Ok(()) => batch.len() - posted,
                    Err((some, PostError::Busy)) => some,
                    Err((_, PostError::Down)) => panic!("the connection is down: {events:?}"),
                };
            }
            self.poll(&mut events);
            assert!(start.elapsed() < PATIENCE, "{} completed", statuses(&events).len());
        }
        statuses(&events)
    }

    fn one(&mut self, verb: Verb, local: &[Sge]) -> WorkStatus {
        let done = self.run(&[WorkRequest { id: 7, verb, local, signalled: true }]);
        assert_eq!((done.len(), done[0].0), (1, 7));
        done[0].1
    }

    fn read(&mut self, at: RemoteAddr, to: &mut [u8]) -> WorkStatus {
        let bytes = to.len() as u64;
        let buf = self.end().register(vec![0xee; to.len()]).unwrap();
        let status = self.one(Verb::Read(at), &[sge(buf, 0, bytes)]);
        to.copy_from_slice(&self.end().take(buf));
        status
    }

    fn write(&mut self, at: RemoteAddr, from: &[u8]) -> WorkStatus {
        let buf = self.end().register(from.to_vec()).unwrap();
        let status = self.one(Verb::Write(at), &[sge(buf, 0, from.len() as u64)]);
        self.end().take(buf);
        status
    }

    fn await_application(&mut self, count: usize) -> Vec<FabricEvent> {
        let (mut events, start) = (Vec::new(), Instant::now());
        while events.len() < count {
            events.extend(self.application());
            self.poll(&mut Vec::new());
            assert!(start.elapsed() < PATIENCE, "{events:?}");
        }
        events
    }
}

pub struct TcpRig {
    pub memory: Memory,
    pub target: Option<Target>,
    pub end: Endpoint,
    pub peer: PeerId,
    pub target_peer: PeerId,
}

impl TcpRig {
    pub fn with(target: TargetOptions, memory: Memory, end: EndpointOptions) -> Self {
        let target = Some(Target::start(target).unwrap());
        let options = EndpointOptions { log: Arc::new(|_| ()), ..end };
        let end = Endpoint::new(options).unwrap();
        let mut rig = TcpRig { memory, target, end, peer: PeerId(0), target_peer: PeerId(0) };
        rig.connect();
        rig
    }

    pub fn target(&self) -> &Target {
        self.target.as_ref().unwrap()
    }

    pub fn connect(&mut self) {
        self.peer = self.end.connect(self.target().local_addr(), monotonic_ns()).unwrap();
        let (mut events, start) = (Vec::new(), Instant::now());
        while !events.contains(&FabricEvent::Connected { peer: self.peer }) {
            self.end.poll(monotonic_ns(), &mut events);
            assert!(start.elapsed() < PATIENCE, "{events:?}");
        }
        let mut events = Vec::new();
        while self.target().poll(&mut events) == 0 {
            assert!(start.elapsed() < PATIENCE);
        }
        let [FabricEvent::Connected { peer }] = events[..] else { panic!("{events:?}") };
        self.target_peer = peer;
    }
}

impl Rig for TcpRig {
    type End = Endpoint;

    fn new() -> Self {
        let memory = Memory::new();
        Self::with(memory.target_options(), memory, EndpointOptions::default())
    }
    fn end(&mut self) -> &mut Endpoint {
        &mut self.end
    }
    fn peer(&self) -> PeerId {
        self.peer
    }
    fn memory(&self) -> Memory {
        self.memory.clone()
    }
    fn application(&mut self) -> Vec<FabricEvent> {
        let mut events = Vec::new();
        self.target().poll(&mut events);
        events
    }
    fn application_sends(&mut self, message: &[u8]) {
        self.target().send(self.target_peer, message).unwrap();
    }
    fn kill(&mut self) {
        self.target = None;
    }
    fn restart(&mut self) {
        self.target = Some(Target::start(self.memory.target_options()).unwrap());
        self.connect();
    }
}

/// A member that shares its connection with another one, which does nothing.
pub struct SharedRig {
    memory: Memory,
    target: Option<Target>,
    end: shared::Endpoint,
    other: shared::Endpoint,
    peer: PeerId,
}

impl SharedRig {
    fn connect(&mut self) {
        let addr = self.target.as_ref().unwrap().local_addr();
        self.other.connect(addr, monotonic_ns()).unwrap();
        self.peer = self.end.connect(addr, monotonic_ns()).unwrap();
        let (mut events, start) = (Vec::new(), Instant::now());
        while !events.contains(&FabricEvent::Connected { peer: self.peer }) {
            self.end.wait(monotonic_ns() + 10_000_000, &mut events);
            assert!(start.elapsed() < PATIENCE, "{events:?}");
        }
        assert_eq!(self.end.stats().connections, 1);
    }
}

impl Rig for SharedRig {
    type End = shared::Endpoint;

    fn new() -> Self {
        let options = EndpointOptions { log: Arc::new(|_| ()), ..EndpointOptions::default() };
        let hub = shared::Hub::new(options).unwrap();
        let [end, other] = [(); 2].map(|()| shared::Endpoint::new(&hub).unwrap());
        let memory = Memory::new();
        let target = Some(Target::start(memory.target_options()).unwrap());
        let mut rig = SharedRig { memory, target, end, other, peer: PeerId(0) };
        rig.connect();
        rig
    }
    fn end(&mut self) -> &mut Self::End {
        &mut self.end
    }
    fn peer(&self) -> PeerId {
        self.peer
    }
    fn memory(&self) -> Memory {
        self.memory.clone()
    }
    fn application(&mut self) -> Vec<FabricEvent> {
        let mut events = Vec::new();
        self.target.as_ref().unwrap().poll(&mut events);
        events.retain(|event| !matches!(event, FabricEvent::Connected { .. }));
        events
    }
    fn application_sends(&mut self, _message: &[u8]) {
        unreachable!("messages of a shared connection are routed; fabric_shared.rs has them")
    }
    fn kill(&mut self) {
        self.target = None;
    }
    fn restart(&mut self) {
        self.target = Some(Target::start(self.memory.target_options()).unwrap());
        self.connect();
    }
}

#[derive(Default)]
pub struct Queues {
    to_application: VecDeque<FabricEvent>,
    to_us: VecDeque<Vec<u8>>,
    is_dead: bool,
}

/// A hand-off of at most 100 messages; its events bear the number 1.
#[derive(Clone, Default)]
pub struct Queue(Arc<Mutex<Queues>>);

impl HandOff for Queue {
    fn room(&mut self) -> Result<(), HandOffError> {
        let queues = self.0.lock().unwrap();
        match queues.is_dead {
            true => Err(HandOffError::Down),
            false if queues.to_application.len() >= 100 => Err(HandOffError::Busy),
            false => Ok(()),
        }
    }
    fn message(&mut self, message: &[u8]) -> Result<(), HandOffError> {
        self.room()?;
        let event = FabricEvent::Received { peer: PeerId(1), message: message.to_vec() };
        self.0.lock().unwrap().to_application.push_back(event);
        Ok(())
    }
    fn imm(&mut self, imm: u32) -> Result<(), HandOffError> {
        self.room()?;
        let event = FabricEvent::ReceivedImm { peer: PeerId(1), imm };
        self.0.lock().unwrap().to_application.push_back(event);
        Ok(())
    }
    fn receive(&mut self) -> Option<Vec<u8>> {
        self.0.lock().unwrap().to_us.pop_front()
    }
}

pub struct ShmRig {
    memory: Memory,
    end: ShmEndpoint<Queue>,
    queue: Queue,
    peer: PeerId,
}

impl ShmRig {
    fn connect(&mut self) {
        let Memory { pages, table, cell, layout } = self.memory.clone();
        let peer = ShmPeer::new(pages, table, cell, layout).unwrap();
        self.queue = Queue::default();
        self.peer = self.end.connect(peer, self.queue.clone()).unwrap();
        let mut events = Vec::new();
        self.end.poll(0, &mut events);
        assert_eq!(events, [FabricEvent::Connected { peer: self.peer }]);
    }
}

impl Rig for ShmRig {
    type End = ShmEndpoint<Queue>;

    fn new() -> Self {
        let mut rig = ShmRig {
            memory: Memory::new(),
            end: ShmEndpoint::new(ShmOptions::default()),
            queue: Queue::default(),
            peer: PeerId(0),
        };
        rig.connect();
        rig
    }
    fn end(&mut self) -> &mut Self::End {
        &mut self.end
    }
    fn peer(&self) -> PeerId {
        self.peer
    }
    fn memory(&self) -> Memory {
        self.memory.clone()
    }
    fn application(&mut self) -> Vec<FabricEvent> {
        self.queue.0.lock().unwrap().to_application.drain(..).collect()
    }
    fn application_sends(&mut self, message: &[u8]) {
        self.queue.0.lock().unwrap().to_us.push_back(message.to_vec());
    }
    fn kill(&mut self) {
        self.queue.0.lock().unwrap().is_dead = true;
        self.end.close(self.peer);
    }
    fn restart(&mut self) {
        self.connect();
    }
}
