//! The verbs fabric with both ends in this process, on two devices: `RACKPOOL_VERBS_TARGET_DEVICE`
//! and `RACKPOOL_VERBS_DEVICE` name them. `RACKPOOL_VERBS_ATOMICS=device` lets devices execute
//! atomics.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod far;

use crate::fabric_rig::{Kind, Memory, Rig, TargetRig, at, events_until};
use rackpool_core::seam::{FabricEvent, PeerId, Verb};
use rackpool_fabric::secret::Secret;
use rackpool_fabric::verbs::{Atomics, DeviceOptions, VerbsEndpoint, start_target};
use rackpool_fabric::{EndpointOptions, Target, TargetOptions};
use rackpool_mem::process::monotonic_ns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::SocketAddr;
use std::time::Duration;

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
    let wait = |events: &mut Vec<_>| _ = end.wait(monotonic_ns() + 10_000_000, events);
    events_until(wait, |events| events.contains(&FabricEvent::Connected { peer }));
    peer
}

/// Moments at which a key is revoked: a page takes a second on an emulated device.
const REVOCATIONS: u64 = 7;

pub struct Verbs;

pub type LocalRig = TargetRig<Verbs>;

impl Kind for Verbs {
    type End = VerbsEndpoint;
    const REVOCATIONS: u64 = REVOCATIONS;

    fn new() -> (Self, VerbsEndpoint) {
        (Self, endpoint())
    }
    fn serve(memory: &Memory) -> Target {
        serve(memory, "127.0.0.1:0".parse().unwrap())
    }
    fn connect(&mut self, end: &mut VerbsEndpoint, addr: SocketAddr) -> PeerId {
        end.connect(addr, monotonic_ns()).unwrap()
    }
    /// Gives way at once: the device's own software needs the processor.
    fn poll(end: &mut VerbsEndpoint, events: &mut Vec<FabricEvent>) -> usize {
        end.wait(monotonic_ns() + 1_000_000, events)
    }
}

/// The device tells only of what comes after it was asked to.
#[test]
#[ignore = "needs RDMA devices: cargo xtask vm verbs-one"]
fn an_answer_that_came_before_the_sleep_is_told_of() {
    let mut rig = LocalRig::new();
    for id in 1..=20 {
        rig.post(id, Verb::FetchAdd { at: at(0), n: 1 }, &[]);
        std::thread::sleep(Duration::from_millis(50));
        let mut fds = [PollFd::from_borrowed_fd(rig.end().prepare_sleep(), PollFlags::IN)];
        let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        assert_eq!(ready, 1, "the answer to {id} is there");
        let wait = |events: &mut Vec<_>| _ = rig.end().wait(monotonic_ns() + 1_000_000_000, events);
        let events = events_until(wait, |events| !events.is_empty());
        assert!(matches!(events[..], [FabricEvent::Completed { .. }]), "{events:?}");
    }
}
