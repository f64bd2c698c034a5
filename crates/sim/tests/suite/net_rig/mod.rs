//! A small world around the network, for the tests: memory with one key a node, buffers, a queue
//! of events, and what endpoints were told.
#![allow(dead_code, reason = "each test binary uses a part")]

use rackpool_core::addr::Generation;
use rackpool_core::seam::{
    BufId, FabricEvent, PeerId, PostError, RemoteAddr, Sge, Verb, WorkRequest, WorkStatus,
};
use rackpool_sim::device::Profile;
use rackpool_sim::net::{
    Connection, EndpointId, EventQueue, Executed, Net, NetEvent, NetFaults, NodeId, Remote, Sink,
};
use rackpool_sim::rng::{Purpose, Rng};
use rackpool_sim::time::Ps;
use rackpool_sim::wheel::Wheel;

pub const KEY: Generation = Generation(7);
pub const MEMORY_BYTES: usize = 1 << 20;
pub const BUFFER_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
enum Event {
    Net(NetEvent),
    Executed(u32),
}

/// What an endpoint was told, when.
pub type Told = (Ps, EndpointId, FabricEvent);

pub struct World {
    events: Wheel<Event>,
    pub now: Ps,
    pub popped: u64,
    /// How long an execution takes.
    pub execution: Ps,
    pub memory: Vec<Vec<u8>>,
    pub key: Generation,
    pub buffer: Vec<u8>,
    pub told: Vec<Told>,
    pub revoked: Vec<(Ps, u64)>,
    /// Payload lengths and first words of the WRITEs that were executed, in order.
    pub written: Vec<(usize, u64)>,
    to_execute: Vec<u32>,
    data: Vec<u8>,
}

impl Sink for World {
    fn schedule(&mut self, at: Ps, event: NetEvent) {
        self.push(at, Event::Net(event));
    }
    fn execute(&mut self, at: Ps, _target: NodeId, token: u32) {
        match self.execution {
            Ps::ZERO => self.to_execute.push(token),
            time => self.push(at + time, Event::Executed(token)),
        }
    }
    fn deliver(&mut self, at: Ps, endpoint: EndpointId, event: FabricEvent) {
        assert!(at >= self.now);
        self.told.push((at, endpoint, event));
    }
    fn read_local(&mut self, _endpoint: EndpointId, pieces: &[Sge], to: &mut Vec<u8>) {
        for piece in pieces {
            to.extend(&self.buffer[piece.offset as usize..][..piece.bytes as usize]);
        }
    }
    fn write_local(&mut self, _endpoint: EndpointId, pieces: &[Sge], mut from: &[u8]) {
        for piece in pieces {
            let (now, later) = from.split_at(piece.bytes as usize);
            self.buffer[piece.offset as usize..][..piece.bytes as usize].copy_from_slice(now);
            from = later;
        }
        assert!(from.is_empty());
    }
    fn revoked(&mut self, at: Ps, _node: NodeId, cookie: u64) {
        self.revoked.push((at, cookie));
    }
}

impl EventQueue for World {
    fn take(&mut self, now: Ps, endpoint: EndpointId, events: &mut Vec<FabricEvent>) -> usize {
        let before = events.len();
        let ready = |told: &mut Told| told.1 == endpoint && told.0 <= now;
        events.extend(self.told.extract_if(.., ready).map(|(.., event)| event));
        events.len() - before
    }
}

impl World {
    fn push(&mut self, at: Ps, event: Event) {
        self.events.push(at, 0, event);
    }
}

pub struct Rig {
    pub net: Net,
    pub world: World,
}

impl Rig {
    pub fn new(profile: &Profile, faults: NetFaults, seed: u64) -> Rig {
        let world = World {
            events: Wheel::new(),
            data: Vec::new(),
            now: Ps::ZERO,
            popped: 0,
            execution: Ps::ZERO,
            memory: Vec::new(),
            key: KEY,
            buffer: vec![0; BUFFER_BYTES],
            told: Vec::new(),
            revoked: Vec::new(),
            written: Vec::new(),
            to_execute: Vec::new(),
        };
        Rig { net: Net::new(profile, faults, Rng::new(seed, Purpose::Network, 0)), world }
    }

    pub fn node(&mut self) -> NodeId {
        self.world.memory.push(vec![0; MEMORY_BYTES]);
        self.net.add_node()
    }

    pub fn connect(&mut self, from: EndpointId, to: impl Into<Remote>, kind: Connection) -> PeerId {
        let peer = self.net.connect(self.world.now, from, to, kind, &mut self.world);
        if kind != Connection::Datagram {
            while !self.told(from).contains(&FabricEvent::Connected { peer }) {
                assert!(self.step());
            }
        }
        peer
    }

    /// A client on a node of its own that is connected to the memory of another.
    pub fn pair(&mut self, kind: Connection) -> (EndpointId, PeerId, NodeId) {
        let (near, far) = (self.node(), self.node());
        let client = self.net.add_endpoint(near);
        let peer = self.connect(client, far, kind);
        self.world.told.clear();
        (client, peer, far)
    }

    pub fn post(
        &mut self,
        from: EndpointId,
        peer: PeerId,
        batch: &[WorkRequest<'_>],
    ) -> Result<(), (usize, PostError)> {
        self.net.post(self.world.now, from, peer, batch, &mut self.world)
    }

    /// One event; false if there is none.
    pub fn step(&mut self) -> bool {
        let Some((at, _, event)) = self.world.events.pop() else { return false };
        self.world.now = at;
        self.world.popped += 1;
        match event {
            Event::Net(event) => self.net.on_event(at, event, &mut self.world),
            Event::Executed(token) => self.run(token),
        }
        while let Some(token) = self.world.to_execute.pop() {
            self.run(token);
        }
        true
    }

    fn run(&mut self, token: u32) {
        let operation = self.net.operation(token);
        let at = operation.at().unwrap();
        let length = match operation.verb() {
            Verb::Write(_) | Verb::WriteImm(..) => operation.payload().len(),
            _ => operation.bytes() as usize,
        };
        let node = self.target(token);
        let memory = &mut self.world.memory[node];
        let mut data = std::mem::take(&mut self.world.data);
        data.clear();
        let result = if at.key != self.world.key {
            Executed::BadKey
        } else if at.offset as usize + length > memory.len() {
            Executed::BadRange
        } else {
            let place = &mut memory[at.offset as usize..][..length];
            let word = |place: &[u8]| u64::from_le_bytes(place[..8].try_into().unwrap());
            match operation.verb() {
                Verb::Write(_) | Verb::WriteImm(..) => {
                    place.copy_from_slice(operation.payload());
                    let first = if length >= 8 { word(place) } else { 0 };
                    self.world.written.push((length, first));
                    Executed::Done
                }
                Verb::Read(_) => {
                    data.extend_from_slice(place);
                    Executed::Data(&data)
                }
                Verb::FetchAdd { n, .. } => {
                    let old = word(place);
                    place.copy_from_slice(&old.wrapping_add(n).to_le_bytes());
                    Executed::Old(old)
                }
                Verb::Cas { expected, new, .. } => {
                    let old = word(place);
                    if old == expected {
                        place.copy_from_slice(&new.to_le_bytes());
                    }
                    Executed::Old(old)
                }
                Verb::Send => panic!("messages are not executed"),
            }
        };
        self.net.executed(self.world.now, token, result, &mut self.world);
        self.world.data = data;
    }

    fn target(&self, token: u32) -> usize {
        self.net.target(token).0 as usize
    }

    /// Runs until nothing is left.
    pub fn drain(&mut self) {
        while self.step() {}
    }

    /// Runs all events up to `until`.
    pub fn run_until(&mut self, until: Ps) {
        while self.world.events.peek_time().is_some_and(|at| at <= until) {
            self.step();
        }
        self.world.now = until;
    }

    /// What an endpoint was told so far.
    pub fn told(&self, endpoint: EndpointId) -> Vec<FabricEvent> {
        let mine = self.world.told.iter().filter(|told| told.1 == endpoint);
        mine.map(|told| told.2.clone()).collect()
    }

    pub fn statuses(&self, endpoint: EndpointId) -> Vec<(u64, WorkStatus)> {
        let completed = |event| match event {
            FabricEvent::Completed { id, status, .. } => Some((id, status)),
            _ => None,
        };
        self.told(endpoint).into_iter().filter_map(completed).collect()
    }

    /// Posts one request and drains: how long until its completion.
    pub fn time(&mut self, from: EndpointId, peer: PeerId, verb: Verb, bytes: u64) -> Ps {
        let start = self.world.now;
        let local = [sge(0, bytes)];
        let local = if is_atomic(verb) { &[][..] } else { &local };
        let work = WorkRequest { id: 1, verb, local, signalled: true };
        self.world.told.clear();
        self.post(from, peer, &[work]).unwrap();
        self.drain();
        let completed = |told: &&Told| matches!(told.2, FabricEvent::Completed { .. });
        let (at, _, event) = self.world.told.iter().find(completed).unwrap();
        assert!(
            matches!(event, FabricEvent::Completed { status: WorkStatus::Done(_), .. }),
            "{event:?}"
        );
        *at - start
    }
}

pub fn is_atomic(verb: Verb) -> bool {
    matches!(verb, Verb::Cas { .. } | Verb::FetchAdd { .. })
}

pub fn at(offset: u64) -> RemoteAddr {
    RemoteAddr { offset, key: KEY }
}

pub fn sge(offset: u64, bytes: u64) -> Sge {
    Sge { buf: BufId(0), offset, bytes }
}
