//! The kernel's side of the network: which process owns an endpoint, which one executes for a node,
//! the registered buffers, and the cuts.

use super::{Event, HostId, Input, Kernel, ProcessId};
use crate::net::{Down, EndpointId, Net, NetEvent, NodeId, Sink};
use crate::time::Ps;
use rackpool_core::seam::{BufId, Exposure, FabricEvent, PeerId, Sge};

/// Registered buffers of one endpoint. A number is not used again while the network may know it.
#[derive(Default)]
pub(super) struct Buffers {
    registered: Vec<(u32, Vec<u8>)>,
    next: u32,
}

impl Buffers {
    fn find(&self, number: u32) -> Option<usize> {
        self.registered.iter().position(|(of, _)| *of == number)
    }
}

/// A piece of a registered buffer that the other end of a connection may write into.
pub(super) struct Exposed {
    endpoint: EndpointId,
    peer: PeerId,
    key: u64,
    piece: Sge,
    come: u64,
}

#[derive(Default)]
pub(super) struct Routes {
    pub(super) endpoints: Vec<Option<ProcessId>>,
    pub(super) executors: Vec<Option<ProcessId>>,
}

/// Vectors that are kept, and their longest.
const SPARES_MAX: usize = 1024;
const SPARE_BYTES_MAX: usize = 16 << 10;

impl Kernel {
    /// Nothing passes from one host to another for a while: control messages wait, packets are
    /// lost.
    pub fn cut_for(&self, from: HostId, to: HostId, time: Ps) {
        let until = self.now.get() + time;
        let mut cuts = self.cuts.borrow_mut();
        let cut = cuts.entry((from, to)).or_insert(until);
        *cut = until.max(*cut);
        self.net.borrow_mut().partition(self.node_of(from), self.node_of(to), true);
        self.wheel.borrow_mut().push(until, u32::MAX - 1, Event::Heal(from, to));
    }

    pub(super) fn on_heal(&self, from: HostId, to: HostId) {
        let until = self.cuts.borrow().get(&(from, to)).copied();
        if until.is_some_and(|until| until <= self.now.get()) {
            self.cuts.borrow_mut().remove(&(from, to));
            self.net.borrow_mut().partition(self.node_of(from), self.node_of(to), false);
        }
    }

    /// All hosts reach each other, and each process that was stopped goes on.
    pub fn heal(&self) {
        self.cuts.borrow_mut().clear();
        self.net.borrow_mut().heal();
        let count = self.processes.borrow().len() as u32;
        for id in (0..count).map(ProcessId).filter(|id| self.is_alive(*id)) {
            self.processes.borrow_mut()[id.0 as usize].paused_until = self.now.get();
            self.run_at(id, self.now.get());
        }
    }

    /// A host's network card takes `factor` times as long for everything.
    pub fn slow(&self, host: HostId, factor: u32) {
        self.net.borrow_mut().slow_node(self.node_of(host), 100 * factor);
    }

    /// Registers a buffer of an endpoint.
    pub fn register(&self, endpoint: EndpointId, bytes: Vec<u8>) -> BufId {
        let mut all = self.buffers.borrow_mut();
        let buffers = buffers_of(&mut all, endpoint);
        buffers.next = buffers.next.wrapping_add(1);
        buffers.registered.push((buffers.next, bytes));
        BufId(buffers.next)
    }

    /// Takes a registered buffer back: whatever the network still reads from it is garbage, what
    /// it writes to it is lost.
    pub fn take_buffer(&self, endpoint: EndpointId, buf: BufId) -> Vec<u8> {
        let buffers = &mut self.buffers.borrow_mut()[endpoint.0 as usize];
        let index = buffers.find(buf.0).expect("a buffer is taken once");
        buffers.registered.swap_remove(index).1
    }

    /// Copies what is in a registered buffer now.
    pub fn copy_buffer(&self, endpoint: EndpointId, buf: BufId, to: &mut [u8]) {
        let buffers = &self.buffers.borrow()[endpoint.0 as usize];
        let index = buffers.find(buf.0).expect("the buffer is registered");
        to.copy_from_slice(&buffers.registered[index].1);
    }

    /// Copies bytes of a piece of a registered buffer, from `at` on.
    pub fn read_buffer(&self, endpoint: EndpointId, piece: &Sge, at: u64, to: &mut [u8]) {
        let buffers = &self.buffers.borrow()[endpoint.0 as usize];
        let index = buffers.find(piece.buf.0).expect("the buffer is registered");
        let from = (piece.offset + at) as usize;
        to.copy_from_slice(&buffers.registered[index].1[from..from + to.len()]);
    }

    /// Stores bytes into a piece of a registered buffer, from `at` on.
    pub fn write_buffer(&self, endpoint: EndpointId, piece: &Sge, at: u64, from: &[u8]) {
        let buffers = &mut self.buffers.borrow_mut()[endpoint.0 as usize];
        let index = buffers.find(piece.buf.0).expect("the buffer is registered");
        let to = (piece.offset + at) as usize;
        buffers.registered[index].1[to..to + from.len()].copy_from_slice(from);
    }

    /// Lets the other end of a connection write into a piece of a registered buffer.
    pub fn expose(&self, endpoint: EndpointId, peer: PeerId, piece: Sge) -> Exposure {
        let key = self.exposures_made.get() + 1;
        self.exposures_made.set(key);
        self.exposures.borrow_mut().push(Exposed { endpoint, peer, key, piece, come: 0 });
        Exposure { id: 0, key, bytes: piece.bytes }
    }

    /// Ends that; how many bytes have come.
    pub fn conceal(&self, endpoint: EndpointId, peer: PeerId, exposure: &Exposure) -> u64 {
        let mut all = self.exposures.borrow_mut();
        let found = all
            .iter()
            .position(|one| (one.endpoint, one.peer, one.key) == (endpoint, peer, exposure.key));
        found.map_or(0, |index| all.swap_remove(index).come)
    }

    /// Data of a target is there. What is no longer exposed to the peer gets nothing; what is
    /// exposed must still be registered, or it is its owner's again.
    fn land(&self, (endpoint, peer): (EndpointId, PeerId), to: &Exposure, from: &[u8]) {
        let mut exposures = self.exposures.borrow_mut();
        let found = exposures
            .iter_mut()
            .find(|one| (one.endpoint, one.peer, one.key) == (endpoint, peer, to.key));
        let Some(one) = found else { return };
        let mut all = self.buffers.borrow_mut();
        let buffers = buffers_of(&mut all, endpoint);
        match buffers.find(one.piece.buf.0) {
            Some(index) if from.len() as u64 <= one.piece.bytes => {
                let start = one.piece.offset as usize;
                buffers.registered[index].1[start..start + from.len()].copy_from_slice(from);
                one.come = from.len() as u64;
            }
            Some(_) => self.fail("buffers", "more data than is exposed".into()),
            None => {
                let text = "data landed in a buffer that its owner had taken back";
                self.fail("buffers", text.into());
            }
        }
    }

    /// An empty vector for a buffer.
    pub fn spare(&self) -> Vec<u8> {
        self.spares.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes a vector back, to be used again.
    pub fn recycle(&self, mut bytes: Vec<u8>) {
        let mut spares = self.spares.borrow_mut();
        if spares.len() < SPARES_MAX && bytes.capacity() <= SPARE_BYTES_MAX {
            bytes.clear();
            spares.push(bytes);
        }
    }

    /// All connections of a process over the fabric end.
    pub fn reset_endpoints(&self, process: ProcessId) {
        let now = self.now.get();
        for endpoint in self.endpoints_of(process) {
            self.with_net(|net, wires| net.reset(now, endpoint, wires));
        }
    }

    /// The endpoints of a process.
    pub(super) fn endpoints_of(&self, process: ProcessId) -> Vec<EndpointId> {
        let routes = self.routes.borrow();
        let owned = (0..).map(EndpointId).zip(routes.endpoints.iter());
        let owned = owned.filter(|(_, owner)| **owner == Some(process));
        owned.map(|(endpoint, _)| endpoint).collect()
    }

    /// A process's endpoint is gone with it.
    pub fn close_endpoint(&self, endpoint: EndpointId, how: Down) {
        let now = self.now.get();
        self.with_net(|net, wires| net.endpoint_down(now, endpoint, how, wires));
    }

    /// Runs `f` on the network; its wishes go into the wheel.
    pub fn with_net<R>(&self, f: impl FnOnce(&mut Net, &mut Wires<'_>) -> R) -> R {
        f(&mut self.net.borrow_mut(), &mut Wires(self))
    }

    /// An endpoint's events go to that process.
    pub fn route_endpoint(&self, endpoint: EndpointId, to: ProcessId) {
        put(&mut self.routes.borrow_mut().endpoints, endpoint.0 as usize, to);
    }

    /// What arrives at a node is executed by that process.
    pub fn route_node(&self, node: NodeId, to: ProcessId) {
        put(&mut self.routes.borrow_mut().executors, node.0 as usize, to);
    }
}

fn buffers_of(all: &mut Vec<Buffers>, endpoint: EndpointId) -> &mut Buffers {
    if all.len() <= endpoint.0 as usize {
        all.resize_with(endpoint.0 as usize + 1, Buffers::default);
    }
    &mut all[endpoint.0 as usize]
}

fn put(routes: &mut Vec<Option<ProcessId>>, index: usize, to: ProcessId) {
    if routes.len() <= index {
        routes.resize(index + 1, None);
    }
    routes[index] = Some(to);
}

/// Where the network's wishes go.
pub struct Wires<'a>(&'a Kernel);

impl Sink for Wires<'_> {
    fn schedule(&mut self, at: Ps, event: NetEvent) {
        self.0.wheel.borrow_mut().push(at, u32::MAX, Event::Net(event));
    }

    fn execute(&mut self, at: Ps, target: NodeId, token: u32) {
        let executor = self.0.routes.borrow().executors.get(target.0 as usize).copied().flatten();
        if let Some(to) = executor {
            self.0.post(to, at, Input::Execute(token));
        }
    }

    fn deliver(&mut self, at: Ps, endpoint: EndpointId, event: FabricEvent) {
        let owner = self.0.routes.borrow().endpoints.get(endpoint.0 as usize).copied().flatten();
        if let Some(to) = owner {
            self.0.post(to, at, Input::Fabric(event));
        }
    }

    fn read_local(&mut self, endpoint: EndpointId, pieces: &[Sge], to: &mut Vec<u8>) {
        let mut buffers = self.0.buffers.borrow_mut();
        let buffers = buffers_of(&mut buffers, endpoint);
        for Sge { buf, offset, bytes } in pieces {
            match buffers.find(buf.0).map(|index| &buffers.registered[index].1) {
                Some(from) => {
                    to.extend_from_slice(&from[*offset as usize..(offset + bytes) as usize]);
                }
                // Its owner uses it for something else by now.
                None => to.resize(to.len() + *bytes as usize, 0xdb),
            }
        }
    }

    fn write_local(&mut self, endpoint: EndpointId, pieces: &[Sge], mut from: &[u8]) {
        let mut buffers = self.0.buffers.borrow_mut();
        let buffers = buffers_of(&mut buffers, endpoint);
        for Sge { buf, offset, bytes } in pieces {
            let (here, rest) = from.split_at((*bytes as usize).min(from.len()));
            if let Some(index) = buffers.find(buf.0) {
                let to = &mut buffers.registered[index].1;
                to[*offset as usize..][..here.len()].copy_from_slice(here);
            }
            from = rest;
        }
    }

    fn write_exposed(&mut self, at: (EndpointId, PeerId), to: &Exposure, from: &[u8]) {
        self.0.land(at, to, from);
    }

    fn revoked(&mut self, _at: Ps, _node: NodeId, _cookie: u64) {}
}
