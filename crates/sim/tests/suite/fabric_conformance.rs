//! The conformance suite of `rackpool-fabric` on the simulated network: a world with real windows
//! as its memory, executed on by the same code as at real targets.

#[allow(clippy::disallowed_methods, reason = "time-outs of the suite on fabrics of real time")]
#[path = "../../../fabric/tests/suite/conformance/mod.rs"]
mod conformance;

use conformance::{Memory, Rig, checks, table};
use rackpool_core::seam::{BufId, FabricEvent, PeerId, Sge, Verb, WorkStatus};
use rackpool_core::target::TargetMemory;
use rackpool_mem::window::Window;
use rackpool_sim::device::Profile;
use rackpool_sim::net::{
    Connection, EndpointId, EventQueue, Executed, Net, NetEvent, NetFaults, NodeId, SharedNet,
    SimFabric, Sink,
};
use rackpool_sim::rng::{Purpose, Rng};
use rackpool_sim::time::Ps;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The world around the network.
struct World {
    events: BTreeMap<(Ps, u64), NetEvent>,
    scheduled: u64,
    to_execute: Vec<u32>,
    told: Vec<(Ps, EndpointId, FabricEvent)>,
    buffers: BTreeMap<u32, Vec<u8>>,
}

impl World {
    fn piece(&mut self, piece: &Sge) -> &mut [u8] {
        let buffer = self.buffers.get_mut(&piece.buf.0).expect("a buffer that is registered");
        &mut buffer[piece.offset as usize..][..piece.bytes as usize]
    }
}

impl Sink for World {
    fn schedule(&mut self, at: Ps, event: NetEvent) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }
    fn execute(&mut self, _at: Ps, _target: NodeId, token: u32) {
        self.to_execute.push(token);
    }
    fn deliver(&mut self, at: Ps, endpoint: EndpointId, event: FabricEvent) {
        self.told.push((at, endpoint, event));
    }
    fn read_local(&mut self, _endpoint: EndpointId, pieces: &[Sge], to: &mut Vec<u8>) {
        pieces.iter().for_each(|piece| to.extend_from_slice(self.piece(piece)));
    }
    fn write_local(&mut self, _endpoint: EndpointId, pieces: &[Sge], mut from: &[u8]) {
        for piece in pieces {
            let (now, later) = from.split_at(piece.bytes as usize);
            self.piece(piece).copy_from_slice(now);
            from = later;
        }
    }
    fn revoked(&mut self, _at: Ps, _node: NodeId, _cookie: u64) {}
}

impl EventQueue for World {
    fn take(&mut self, now: Ps, endpoint: EndpointId, events: &mut Vec<FabricEvent>) -> usize {
        let before = events.len();
        let is_due = |told: &mut (Ps, EndpointId, FabricEvent)| told.1 == endpoint && told.0 <= now;
        events.extend(self.told.extract_if(.., is_due).map(|(.., event)| event));
        events.len() - before
    }
}

/// An initiator and a target, each on a node of its own.
struct SimRig {
    memory: Memory,
    target_memory: TargetMemory<Window>,
    shared: Rc<RefCell<SharedNet<World>>>,
    end: SimFabric<World>,
    peer: PeerId,
    target: EndpointId,
    target_peer: PeerId,
    buffers: u32,
}

impl SimRig {
    /// One event of the network; `false` if there is none.
    fn step(&mut self) -> bool {
        let SharedNet { net, sink, now } = &mut *self.shared.borrow_mut();
        let Some(((at, _), event)) = sink.events.pop_first() else {
            // What is told later than the last event.
            let last = sink.told.iter().map(|told| told.0).max();
            let moved = last.is_some_and(|last| last > *now);
            *now = last.unwrap_or(*now).max(*now);
            return moved;
        };
        *now = at;
        net.on_event(at, event, sink);
        for token in std::mem::take(&mut sink.to_execute) {
            execute(&self.target_memory, net, at, token, sink);
        }
        true
    }

    /// Both ends of a connection to a new process with the target's memory.
    fn connect(&mut self) {
        {
            let SharedNet { net, sink, now } = &mut *self.shared.borrow_mut();
            let node = net.add_node();
            self.target = net.add_endpoint(node);
            let from = self.end.endpoint();
            self.peer = net.connect(*now, from, self.target, Connection::Reliable, sink);
        }
        let mut mine = Vec::new();
        while !mine.contains(&FabricEvent::Connected { peer: self.peer }) {
            self.poll(&mut mine);
        }
        while self.step() {}
        let mut theirs = Vec::new();
        let SharedNet { sink, now, .. } = &mut *self.shared.borrow_mut();
        sink.take(*now, self.target, &mut theirs);
        let [FabricEvent::Connected { peer }] = theirs[..] else { panic!("{theirs:?}") };
        self.target_peer = peer;
    }
}

/// Executes an operation on the target's memory, as a target's thread does.
fn execute(memory: &TargetMemory<Window>, net: &mut Net, now: Ps, token: u32, sink: &mut World) {
    let operation = net.operation(token);
    let at = operation.at().expect("messages are not executed");
    let mut data = vec![0; operation.bytes() as usize];
    let status = match operation.verb() {
        Verb::Read(_) => memory.read(at.offset, at.key, &mut data),
        Verb::Write(_) | Verb::WriteImm(..) => memory.write(at.offset, at.key, operation.payload()),
        Verb::Cas { expected, new, .. } => memory.cas(at.offset, at.key, expected, new),
        Verb::FetchAdd { n, .. } => memory.fetch_add(at.offset, at.key, n),
        Verb::Send => unreachable!("messages are not executed"),
    };
    let result = match (status, operation.verb()) {
        (WorkStatus::Done(_), Verb::Read(_)) => Executed::Data(&data),
        (WorkStatus::Done(old), Verb::Cas { .. } | Verb::FetchAdd { .. }) => Executed::Old(old),
        (WorkStatus::Done(_), _) => Executed::Done,
        (WorkStatus::BadKey, _) => Executed::BadKey,
        (WorkStatus::BadRange | WorkStatus::Flushed { .. }, _) => Executed::BadRange,
    };
    net.executed(now, token, result, sink);
}

impl Rig for SimRig {
    type End = SimFabric<World>;

    fn new() -> Self {
        let profile = Profile::load("modern").unwrap();
        let mut net = Net::new(&profile, NetFaults::none(), Rng::new(1, Purpose::Network, 0));
        let node = net.add_node();
        let own = net.add_endpoint(node);
        let sink = World {
            events: BTreeMap::new(),
            scheduled: 0,
            to_execute: Vec::new(),
            told: Vec::new(),
            buffers: BTreeMap::new(),
        };
        let shared = Rc::new(RefCell::new(SharedNet { net, sink, now: Ps::ZERO }));
        let memory = Memory::new();
        let Memory { pages, table, cell, layout } = memory.clone();
        let mut rig = SimRig {
            memory,
            target_memory: TargetMemory::new(pages, table, cell.slice(0, 8), layout).unwrap(),
            end: SimFabric::new(Rc::clone(&shared), own),
            shared,
            peer: PeerId(0),
            target: own,
            target_peer: PeerId(0),
            buffers: 0,
        };
        rig.connect();
        rig
    }
    fn register(&mut self, bytes: Vec<u8>) -> BufId {
        self.buffers += 1;
        self.shared.borrow_mut().sink.buffers.insert(self.buffers, bytes);
        BufId(self.buffers)
    }
    fn take(&mut self, buf: BufId) -> Vec<u8> {
        self.shared.borrow_mut().sink.buffers.remove(&buf.0).expect("it was registered")
    }
    fn bytes_of(&mut self, buf: BufId) -> Vec<u8> {
        self.shared.borrow().sink.buffers[&buf.0].clone()
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
        let SharedNet { sink, now, .. } = &mut *self.shared.borrow_mut();
        sink.take(*now, self.target, &mut events);
        events.retain(|event| !matches!(event, FabricEvent::Connected { .. }));
        events
    }
    fn application_sends(&mut self, message: &[u8]) {
        let buf = self.register(message.to_vec());
        let piece = [Sge { buf, offset: 0, bytes: message.len() as u64 }];
        let work = rackpool_core::seam::WorkRequest {
            id: 0,
            verb: Verb::Send,
            local: &piece,
            signalled: false,
        };
        let SharedNet { net, sink, now } = &mut *self.shared.borrow_mut();
        net.post(*now, self.target, self.target_peer, &[work], sink).unwrap();
    }
    fn kill(&mut self) {
        let SharedNet { net, sink, now } = &mut *self.shared.borrow_mut();
        net.endpoint_down(*now, self.target, rackpool_sim::net::Down::Crash, sink);
    }
    fn restart(&mut self) {
        self.connect();
    }

    /// Advances the network by an event.
    fn poll(&mut self, events: &mut Vec<FabricEvent>) -> usize {
        self.step();
        rackpool_core::seam::Fabric::poll(&mut self.end, 0, events)
    }
}

macro_rules! conformance {
    ($($name:ident),* $(,)?) => {
        $(#[test] fn $name() { checks::$name::<SimRig>(); })*
        #[test]
        fn no_check_is_missing() {
            table::require_all(&table::SIMULATED, &[$(stringify!($name)),*]);
        }
    };
}

conformance!(
    every_size_is_written_and_read_back_unaligned,
    atomics_answer_the_old_value,
    accesses_outside_one_frame_are_refused_and_touch_nothing,
    a_wrong_key_is_refused_and_touches_nothing,
    what_is_posted_around_a_refused_key_is_executed_exactly_once,
    pieces_are_gathered_and_scattered_in_order,
    messages_and_immediate_values_arrive_in_order_after_their_data,
    the_applications_messages_are_received,
    who_sees_a_flag_sees_the_data_written_before_it,
    completions_come_in_the_order_of_posting,
    unsignalled_work_is_silent_unless_it_fails,
    a_full_queue_answers_busy_and_keeps_what_was_posted,
    ten_thousand_operations_in_batches_all_take_effect,
    a_key_revoked_in_the_midst_of_a_write_lets_no_later_byte_through,
    a_key_revoked_in_the_midst_of_a_read_shows_nothing_of_the_next_page,
    a_dead_peer_ends_all_work_and_can_be_connected_to_again,
);
