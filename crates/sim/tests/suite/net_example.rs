//! How a world drives the network: keep what the sink is asked for, pop events in order of time,
//! execute on memory, answer.

use rackpool_core::addr::Generation;
use rackpool_core::seam::{BufId, FabricEvent, RemoteAddr, Sge, Verb, WorkRequest, WorkStatus};
use rackpool_sim::device::Profile;
use rackpool_sim::net::{Connection, EndpointId, Executed, Net, NetEvent, NetFaults, NodeId, Sink};
use rackpool_sim::rng::{Purpose, Rng};
use rackpool_sim::time::Ps;
use std::collections::BTreeMap;

/// The simplest world: one buffer, and a queue of events by time and number.
#[derive(Default)]
struct World {
    events: BTreeMap<(Ps, u64), NetEvent>,
    scheduled: u64,
    to_execute: Vec<u32>,
    delivered: Vec<(Ps, EndpointId, FabricEvent)>,
    buffer: Vec<u8>,
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
        self.delivered.push((at, endpoint, event));
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
    }
    fn revoked(&mut self, _at: Ps, _node: NodeId, _cookie: u64) {}
}

impl World {
    /// Runs until nothing is scheduled; `memory` is the target's.
    fn run(&mut self, net: &mut Net, memory: &mut [u8]) {
        while let Some(((now, _), event)) = self.events.pop_first() {
            net.on_event(now, event, self);
            for token in std::mem::take(&mut self.to_execute) {
                let operation = net.operation(token);
                let at = operation.at().expect("messages are not executed").offset as usize;
                let data = memory[at..][..operation.bytes() as usize].to_vec();
                let result = match operation.verb() {
                    Verb::Write(_) => {
                        memory[at..][..operation.payload().len()]
                            .copy_from_slice(operation.payload());
                        Executed::Done
                    }
                    _ => Executed::Data(&data),
                };
                net.executed(now, token, result, self);
            }
        }
    }
}

#[test]
fn a_write_and_a_read_go_there_and_back() {
    let profile = Profile::load("rcmp-testbed").unwrap();
    let mut net = Net::new(&profile, NetFaults::none(), Rng::new(1, Purpose::Network, 0));
    let (mut world, mut memory) = (World { buffer: vec![7; 128], ..World::default() }, [0; 256]);
    let (a, b) = (net.add_node(), net.add_node());
    let client = net.add_endpoint(a);
    let peer = net.connect(Ps::ZERO, client, b, Connection::Reliable, &mut world);
    world.run(&mut net, &mut memory);
    assert_eq!(world.delivered[0].2, FabricEvent::Connected { peer });

    let at = RemoteAddr { offset: 64, key: Generation(1) };
    let (from, to) = (sge(0), sge(64));
    let batch = [
        WorkRequest { id: 1, verb: Verb::Write(at), local: &from, signalled: false },
        WorkRequest { id: 2, verb: Verb::Read(at), local: &to, signalled: true },
    ];
    world.buffer[64..].fill(0);
    net.post(Ps::us(10), client, peer, &batch, &mut world).unwrap();
    world.run(&mut net, &mut memory);
    let (when, _, done) = world.delivered.pop().unwrap();
    assert_eq!(done, FabricEvent::Completed { peer, id: 2, status: WorkStatus::Done(0) });
    assert!(world.buffer[64..] == [7; 64] && memory[64..128] == [7; 64]);
    println!("{}: written and read in {}", profile.label(), when - Ps::us(10));
    assert_eq!(net.operations_alive(), 0);
}

fn sge(offset: u64) -> [Sge; 1] {
    [Sge { buf: BufId(0), offset, bytes: 64 }]
}
