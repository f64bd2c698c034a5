//! Fabrics with both ends in this process, for the tests.
#![allow(dead_code, reason = "each test binary uses a part")]

#[path = "../conformance/mod.rs"]
pub mod conformance;

#[allow(unused_imports, reason = "each test binary uses a part")]
pub use conformance::{FRAMES, Memory, PAGE, PATIENCE, Rig, at, key, pattern, sge, statuses};
use rackpool_core::seam::{BufId, Fabric, FabricEvent, PeerId};
use rackpool_hw::fabric::shm::{HandOff, HandOffError, ShmEndpoint, ShmOptions, ShmPeer};
use rackpool_hw::fabric::tcp::{TcpEndpoint, TcpEndpointOptions, TcpTarget, TcpTargetOptions};
use rackpool_hw::fabric::{LocalBuffers, monotonic_ns, shared};
use rackpool_hw::secret::Secret;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Buffers of a rig are its end's.
macro_rules! buffers_of_the_end {
    () => {
        fn register(&mut self, bytes: Vec<u8>) -> BufId {
            self.end().register(bytes).unwrap()
        }
        fn take(&mut self, buf: BufId) -> Vec<u8> {
            self.end().take(buf)
        }
        fn bytes_of(&mut self, buf: BufId) -> Vec<u8> {
            self.end().buffer(buf).to_vec()
        }
    };
}
#[allow(unused_imports, reason = "not every test with a rig has an end of its own")]
pub(crate) use buffers_of_the_end;

impl Memory {
    pub fn target_options(&self) -> TcpTargetOptions {
        TcpTargetOptions::new(
            "127.0.0.1:0".parse().unwrap(),
            self.layout,
            self.pages.clone(),
            self.table.clone(),
            self.cell.slice(0, 8),
        )
    }
}

pub type TcpRig = TcpRigOf<false>;
/// With a secret on both sides that encrypts.
pub type EncryptedRig = TcpRigOf<true>;

pub struct TcpRigOf<const ENCRYPTED: bool> {
    pub memory: Memory,
    pub target: Option<TcpTarget>,
    pub end: TcpEndpoint,
    pub peer: PeerId,
    pub target_peer: PeerId,
}

impl<const ENCRYPTED: bool> TcpRigOf<ENCRYPTED> {
    fn secret() -> Option<Secret> {
        ENCRYPTED.then(|| Secret::new(&[7; 32]).unwrap().encrypting(true))
    }

    pub fn with(target: TcpTargetOptions, memory: Memory, end: TcpEndpointOptions) -> Self {
        let target = Some(TcpTarget::start(target).unwrap());
        let options = TcpEndpointOptions { ..end };
        let end = TcpEndpoint::new(options).unwrap();
        let mut rig = Self { memory, target, end, peer: PeerId(0), target_peer: PeerId(0) };
        rig.connect();
        rig
    }

    pub fn target(&self) -> &TcpTarget {
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

impl<const ENCRYPTED: bool> Rig for TcpRigOf<ENCRYPTED> {
    type End = TcpEndpoint;
    buffers_of_the_end!();

    fn new() -> Self {
        let memory = Memory::new();
        let target = TcpTargetOptions { secret: Self::secret(), ..memory.target_options() };
        let end = TcpEndpointOptions { secret: Self::secret(), ..TcpEndpointOptions::default() };
        Self::with(target, memory, end)
    }
    fn end(&mut self) -> &mut TcpEndpoint {
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
        let options = TcpTargetOptions { secret: Self::secret(), ..self.memory.target_options() };
        self.target = Some(TcpTarget::start(options).unwrap());
        self.connect();
    }
}

/// A member that shares its connection with another one, which does nothing.
pub struct SharedRig {
    memory: Memory,
    target: Option<TcpTarget>,
    end: shared::MemberEndpoint,
    other: shared::MemberEndpoint,
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
    type End = shared::MemberEndpoint;
    buffers_of_the_end!();

    fn new() -> Self {
        let options = TcpEndpointOptions { ..TcpEndpointOptions::default() };
        let shared_endpoint = shared::SharedEndpoint::new(options).unwrap();
        let [end, other] = [(); 2].map(|()| shared::MemberEndpoint::new(&shared_endpoint).unwrap());
        let memory = Memory::new();
        let target = Some(TcpTarget::start(memory.target_options()).unwrap());
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
        self.target = Some(TcpTarget::start(self.memory.target_options()).unwrap());
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
        let peer = ShmPeer::new(pages, table, cell.slice(0, 8), layout).unwrap();
        self.queue = Queue::default();
        self.peer = self.end.connect(peer, self.queue.clone()).unwrap();
        let mut events = Vec::new();
        self.end.poll(0, &mut events);
        assert_eq!(events, [FabricEvent::Connected { peer: self.peer }]);
    }
}

impl Rig for ShmRig {
    type End = ShmEndpoint<Queue>;
    buffers_of_the_end!();

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
