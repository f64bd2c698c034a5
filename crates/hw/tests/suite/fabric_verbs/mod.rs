//! The verbs fabric with both ends in this process, on two devices: `RACKPOOL_VERBS_TARGET_DEVICE`
//! and `RACKPOOL_VERBS_DEVICE` name them. `RACKPOOL_VERBS_ATOMICS=device` lets devices execute
//! atomics.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod far;

use crate::fabric_rig::{Memory, PATIENCE, Rig, at, buffers_of_the_end};
use rackpool_core::seam::{BufId, Fabric, FabricEvent, PeerId, Verb, WorkRequest};
use rackpool_hw::fabric::verbs::{Atomics, DeviceOptions, VerbsEndpoint, start_target};
use rackpool_hw::fabric::{EndpointOptions, LocalBuffers, Target, TargetOptions, monotonic_ns};
use rackpool_hw::secret::Secret;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A device that the environment names; the first one if it does not.
fn device(variable: &str) -> DeviceOptions {
    let text = std::env::var(variable).unwrap_or_default();
    let atomics = match std::env::var("RACKPOOL_VERBS_ATOMICS").as_deref() {
        Ok("device") => Atomics::Device,
        _ => Atomics::Safe,
    };
    DeviceOptions { device: text.parse().expect("the name of a device"), atomics }
}

fn secret() -> Option<Secret> {
    Some(Secret::new(b"known to both ends of the tests").expect("it is long enough"))
}

pub fn serve(memory: &Memory, listen: SocketAddr) -> Target {
    let Memory { pages, table, cell, layout } = memory.clone();
    let options = TargetOptions {
        secret: secret(),
        // The emulated processors of virtual machines stop for long.
        lease_ms: 5000,
        ..TargetOptions::new(listen, layout, pages, table, cell)
    };
    start_target(options, device("RACKPOOL_VERBS_TARGET_DEVICE")).unwrap()
}

pub fn endpoint() -> VerbsEndpoint {
    let options =
        EndpointOptions { secret: secret(), lease_ms: 5000, ..EndpointOptions::default() };
    VerbsEndpoint::new(options, &device("RACKPOOL_VERBS_DEVICE")).unwrap()
}

/// Waits for a new connection at the initiator.
pub fn connect(end: &mut VerbsEndpoint, addr: SocketAddr) -> PeerId {
    let peer = end.connect(addr, monotonic_ns()).unwrap();
    let (mut events, start) = (Vec::new(), Instant::now());
    while !events.contains(&FabricEvent::Connected { peer }) {
        end.wait(monotonic_ns() + 10_000_000, &mut events);
        assert!(start.elapsed() < PATIENCE, "{events:?}");
    }
    peer
}

pub struct LocalRig {
    memory: Memory,
    target: Option<Target>,
    end: VerbsEndpoint,
    peer: PeerId,
    target_peer: PeerId,
}

impl LocalRig {
    fn connect(&mut self) {
        let target = self.target.as_ref().unwrap();
        self.peer = connect(&mut self.end, target.local_addr());
        let (mut events, start) = (Vec::new(), Instant::now());
        while target.poll(&mut events) == 0 {
            std::thread::yield_now();
            assert!(start.elapsed() < PATIENCE);
        }
        let [FabricEvent::Connected { peer }] = events[..] else { panic!("{events:?}") };
        self.target_peer = peer;
    }

    fn start(memory: &Memory) -> Target {
        serve(memory, "127.0.0.1:0".parse().unwrap())
    }
}

impl Rig for LocalRig {
    type End = VerbsEndpoint;
    buffers_of_the_end!();

    fn new() -> Self {
        let memory = Memory::new();
        let target = Some(Self::start(&memory));
        let nobody = PeerId(0);
        let mut rig =
            LocalRig { memory, target, end: endpoint(), peer: nobody, target_peer: nobody };
        rig.connect();
        rig
    }
    fn end(&mut self) -> &mut VerbsEndpoint {
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
        events
    }
    fn application_sends(&mut self, message: &[u8]) {
        self.target.as_ref().unwrap().send(self.target_peer, message).unwrap();
    }
    fn kill(&mut self) {
        self.target = None;
    }
    fn restart(&mut self) {
        self.target = Some(Self::start(&self.memory));
        self.connect();
    }

    /// Gives way at once: the device's own software needs the processor.
    fn poll(&mut self, events: &mut Vec<FabricEvent>) -> usize {
        self.end.wait(monotonic_ns() + 1_000_000, events)
    }
}

fn add_one(rig: &mut LocalRig, id: u64) {
    let verb = Verb::FetchAdd { at: at(0), n: 1 };
    let work = WorkRequest { id, verb, local: &[], signalled: true };
    let peer = rig.peer();
    rig.end().post(peer, &[work]).unwrap();
}

/// The device tells only of what comes after it was asked to.
#[test]
#[ignore = "needs RDMA devices: cargo xtask vm verbs-one"]
fn an_answer_that_came_before_the_sleep_is_told_of() {
    let mut rig = LocalRig::new();
    for id in 1..=20 {
        add_one(&mut rig, id);
        std::thread::sleep(Duration::from_millis(50));
        let mut fds = [PollFd::from_borrowed_fd(rig.end().prepare_sleep(), PollFlags::IN)];
        let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        assert_eq!(ready, 1, "the answer to {id} is there");
        let (mut events, start) = (Vec::new(), Instant::now());
        while events.is_empty() {
            rig.end().wait(monotonic_ns() + 1_000_000_000, &mut events);
            assert!(start.elapsed() < PATIENCE);
        }
        assert!(matches!(events[..], [FabricEvent::Completed { .. }]), "{events:?}");
    }
}
