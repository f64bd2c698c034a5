//! What the network costs to simulate: events of an operation, asserted, and operations a second
//! of real time, printed.

mod net_rig;

use net_rig::{Rig, at, sge};
use rackpool_core::seam::{FabricEvent, Verb, WorkRequest};
use rackpool_sim::device::Profile;
use rackpool_sim::net::{Connection, NetFaults};

#[test]
fn small_operations_cost_few_events() {
    let p = Profile::load("modern").unwrap();
    let mut rig = Rig::new(&p, NetFaults::none(), 1);
    let (client, peer, _) = rig.pair(Connection::Reliable);
    // One timer is left over from each time the connection was idle.
    for (verb, events) in [(Verb::Read(at(0)), 8 + 1), (Verb::Write(at(0)), 6 + 1)] {
        rig.drain();
        let before = rig.world.popped;
        rig.time(client, peer, verb, 64);
        assert_eq!(rig.world.popped - before, events, "{verb:?}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the simulator's own speed is measured")]
fn small_reads_are_simulated_quickly() {
    let p = Profile::load("modern").unwrap();
    let count = if cfg!(debug_assertions) { 20_000 } else { 2_000_000 };
    let mut rig = Rig::new(&p, NetFaults::none(), 1);
    let server = rig.node();
    let mut ends = Vec::new();
    for _ in 0..16 {
        let node = rig.node();
        let client = rig.net.add_endpoint(node);
        ends.push((client, rig.connect(client, server, Connection::Reliable)));
    }
    let local = [sge(0, 64)];
    let work = WorkRequest { id: 1, verb: Verb::Read(at(0)), local: &local, signalled: true };
    let start = std::time::Instant::now();
    let popped = rig.world.popped;
    for (client, peer) in &ends {
        rig.post(*client, *peer, &[work; 4]).unwrap();
    }
    let mut done = 0;
    while done < count {
        assert!(rig.step());
        while let Some((_, client, event)) = rig.world.told.pop() {
            if let FabricEvent::Completed { peer, .. } = event {
                done += 1;
                rig.post(client, peer, &[work]).unwrap();
            }
        }
    }
    let events = rig.world.popped - popped;
    let ns = start.elapsed().as_nanos() as f64;
    println!(
        "{:.0} ns a READ, {:.1} events, {:.1} M events/s, with a binary heap",
        ns / f64::from(count),
        events as f64 / f64::from(count),
        events as f64 / ns * 1e3
    );
    assert!(rig.net.operations_alive() <= 16 * 4, "slots are used again");
}
