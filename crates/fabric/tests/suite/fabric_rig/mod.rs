//! Fabrics with both ends in this process, for the tests.
#![allow(dead_code, reason = "each test binary uses a part")]

#[path = "../conformance/mod.rs"]
pub mod conformance;

#[allow(unused_imports, reason = "each test binary uses a part")]
pub use conformance::{
    FRAMES, Memory, PAGE, PATIENCE, REVOCATIONS, Rig, at, events_until, is_closed, key, pattern,
    sge, statuses, wait_until, work,
};
use rackpool_core::seam::{BufId, Fabric, FabricEvent, PeerId};
use rackpool_fabric::secret::Secret;
use rackpool_fabric::shared::{MemberEndpoint, SharedEndpoint};
use rackpool_fabric::shm::{HandOff, HandOffError, ShmEndpoint, ShmOptions, ShmPeer};
use rackpool_fabric::tcp::{TcpEndpoint, start_target};
use rackpool_fabric::{EndpointOptions, LocalBuffers, Target, TargetOptions};
use rackpool_mem::process::monotonic_ns;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

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
    pub fn target_options(&self) -> TargetOptions {
        TargetOptions::new(
            "127.0.0.1:0".parse().unwrap(),
            self.layout,
            self.pages.clone(),
            self.table.clone(),
            self.cell.slice(0, 8),
        )
    }
}

/// What differs between the fabrics that have a target.
pub trait Kind: Sized {
    type End: Fabric + LocalBuffers;
    const REVOCATIONS: u64 = REVOCATIONS;
    fn new() -> (Self, Self::End);
    fn serve(memory: &Memory) -> Target;
    fn connect(&mut self, end: &mut Self::End, addr: SocketAddr) -> PeerId;
    fn poll(end: &mut Self::End, events: &mut Vec<FabricEvent>) -> usize {
        let count = end.poll(monotonic_ns(), events);
        if count == 0 {
            std::thread::yield_now();
        }
        count
    }
}

/// A target and an endpoint that is connected to it.
pub struct TargetRig<K: Kind> {
    pub memory: Memory,
    pub target: Option<Target>,
    kind: K,
    pub end: K::End,
    pub peer: PeerId,
    pub target_peer: PeerId,
}

impl<K: Kind> TargetRig<K> {
    pub fn on(memory: Memory, target: Target, (kind, end): (K, K::End)) -> Self {
        let (peer, target_peer) = (PeerId(0), PeerId(0));
        let mut rig = Self { memory, target: Some(target), kind, end, peer, target_peer };
        rig.connect();
        rig
    }

    pub fn target(&self) -> &Target {
        self.target.as_ref().unwrap()
    }

    pub fn connect(&mut self) {
        let addr = self.target().local_addr();
        self.peer = self.kind.connect(&mut self.end, addr);
        let is_up =
            |events: &[FabricEvent]| events.contains(&FabricEvent::Connected { peer: self.peer });
        events_until(|events| _ = K::poll(&mut self.end, events), is_up);
        let events = events_until(|to| _ = self.target().poll(to), |events| !events.is_empty());
        let [FabricEvent::Connected { peer }] = events[..] else { panic!("{events:?}") };
        self.target_peer = peer;
    }
}

impl<K: Kind> Rig for TargetRig<K> {
    type End = K::End;
    const REVOCATIONS: u64 = K::REVOCATIONS;
    buffers_of_the_end!();

    fn new() -> Self {
        let memory = Memory::new();
        let target = K::serve(&memory);
        Self::on(memory, target, K::new())
    }
    fn end(&mut self) -> &mut K::End {
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
        self.target = Some(K::serve(&self.memory));
        self.connect();
    }
    fn poll(&mut self, events: &mut Vec<FabricEvent>) -> usize {
        K::poll(&mut self.end, events)
    }
}

/// Frames on sockets; with a secret on both sides that encrypts, or without one.
pub struct Tcp<const ENCRYPTED: bool>;

pub type TcpRig = TargetRig<Tcp<false>>;
pub type EncryptedRig = TargetRig<Tcp<true>>;

impl TcpRig {
    pub fn with(target: TargetOptions, memory: Memory, end: EndpointOptions) -> Self {
        let end = TcpEndpoint::new(end).unwrap();
        Self::on(memory, start_target(target).unwrap(), (Tcp, end))
    }
}

impl<const ENCRYPTED: bool> Tcp<ENCRYPTED> {
    fn secret() -> Option<Secret> {
        ENCRYPTED.then(|| Secret::new(&[7; 32]).unwrap().encrypting(true))
    }
}

impl<const ENCRYPTED: bool> Kind for Tcp<ENCRYPTED> {
    type End = TcpEndpoint;
    fn new() -> (Self, TcpEndpoint) {
        let options = EndpointOptions { secret: Self::secret(), ..EndpointOptions::default() };
        (Self, TcpEndpoint::new(options).unwrap())
    }
    fn serve(memory: &Memory) -> Target {
        let options = TargetOptions { secret: Self::secret(), ..memory.target_options() };
        start_target(options).unwrap()
    }
    fn connect(&mut self, end: &mut TcpEndpoint, addr: SocketAddr) -> PeerId {
        end.connect(addr, monotonic_ns()).unwrap()
    }
}

/// The other member of the shared endpoint, which does nothing.
pub struct Shared(MemberEndpoint);

pub type SharedRig = TargetRig<Shared>;

impl Kind for Shared {
    type End = MemberEndpoint;
    fn new() -> (Self, MemberEndpoint) {
        let shared_endpoint = SharedEndpoint::new(EndpointOptions::default()).unwrap();
        let [end, other] = [(); 2].map(|()| MemberEndpoint::new(&shared_endpoint).unwrap());
        (Shared(other), end)
    }
    fn serve(memory: &Memory) -> Target {
        start_target(memory.target_options()).unwrap()
    }
    fn connect(&mut self, end: &mut MemberEndpoint, addr: SocketAddr) -> PeerId {
        let Shared(other) = self;
        other.connect(addr, monotonic_ns()).unwrap();
        let peer = end.connect(addr, monotonic_ns()).unwrap();
        assert_eq!(end.stats().connections, 1);
        peer
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
