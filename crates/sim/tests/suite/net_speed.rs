//! What the network costs to simulate: events of an operation, asserted, and operations a second
//! of real time, printed.

use crate::net_rig::{Rig, at, sge};
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
fn operations_in_steady_state_allocate_nothing() {
    let p = Profile::load("modern").unwrap();
    let mut rig = Rig::new(&p, NetFaults::none(), 1);
    let (client, peer, _) = rig.pair(Connection::Reliable);
    let local = [sge(0, 64)];
    let work = |verb| WorkRequest { id: 1, verb, local: &local, signalled: true };
    let add = WorkRequest { local: &[], ..work(Verb::FetchAdd { at: at(0), n: 1 }) };
    let long = [sge(0, 9_000)];
    let page = WorkRequest { local: &long, ..work(Verb::Write(at(0))) };
    let batch = [work(Verb::Read(at(0))), work(Verb::Write(at(0))), add, page];
    let round = |rig: &mut Rig| {
        rig.post(client, peer, &batch).unwrap();
        rig.drain();
        assert_eq!(rig.world.told.len(), batch.len());
        rig.world.told.clear();
        rig.world.written.clear();
    };
    (0..2_000).for_each(|_| round(&mut rig));
    let allocated = allocation_counter::measure(|| (0..1_000).for_each(|_| round(&mut rig)));
    assert_eq!(allocated.count_total, 0);
}

#[test]
fn small_reads_cost_few_events_also_when_many_are_under_way() {
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
    let start = cpu_ns();
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
    let ns = (cpu_ns() - start) as f64;
    // As many as of one that is alone, whatever else is under way.
    let each = events as f64 / f64::from(count);
    assert!((7.9..8.2).contains(&each), "{each} events a READ");
    println!(
        "{:.0} ns of processor time a READ, {:.1} events, {:.1} M events/s",
        ns / f64::from(count),
        each,
        events as f64 / ns * 1e3
    );
    assert!(rig.net.operations_alive() <= 16 * 4, "slots are used again");
}

/// Processor time of this thread; 0 where the system does not tell.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}
