//! The fabric thread of a daemon: executes what other racks' clients ask of its memory, and sends
//! and closes what the loop tells it, in order.

use super::Cluster;
use super::kernel::{Ctx, Input, ProcessId};
use super::rack::Rack;
use crate::mem::{Memory, SimMem};
use crate::net::{EndpointId, Executed};
use rackpool_core::runtime::daemon::FabricTarget;
use rackpool_core::seam::{EncodedWriteBack, FabricEvent, PeerId, Verb, WorkStatus};
use rackpool_core::target::TargetMemory;
use std::rc::Rc;

/// Starts the thread beside its daemon's loop, with an endpoint of their own.
pub fn start(daemon: &Ctx, cluster: &Rc<Cluster>, rack: &Rc<Rack>, cells: Rc<Memory>) -> ProcessId {
    let endpoint = cluster.add_endpoint(daemon, daemon.id);
    rack.endpoint.set(endpoint);
    let cpu = cluster.device(rack.host);
    let (kernel, cluster, rack) = (&cluster.kernel, cluster.clone(), rack.clone());
    let node = rack.node;
    let name = format!("fabric {}", rack.id);
    let loop_id = daemon.id;
    let id = kernel
        .spawn(name, rack.host, cpu, move |ctx| main(ctx, cluster, rack, cells, endpoint, loop_id));
    kernel.route_node(node, id);
    kernel.route_endpoint(endpoint, id);
    id
}

async fn main(
    ctx: Ctx,
    cluster: Rc<Cluster>,
    rack: Rc<Rack>,
    cells: Rc<Memory>,
    endpoint: EndpointId,
    loop_id: ProcessId,
) {
    let pages = rack.view(&ctx, |region| region.pages.clone());
    let table = rack.view(&ctx, |region| region.table.clone()).read_only();
    let cell = SimMem::new(cells, ctx.cpu.clone());
    let memory = TargetMemory::new(pages, table, cell, rack.layout)
        .expect("the sections have their geometry");
    let mut data = Vec::new();
    while let Some(input) = ctx.recv(None).await {
        match input {
            Input::Execute(token) => {
                ctx.cpu.charge(cluster.costs.target_request);
                execute(&ctx, &memory, token, &mut data);
            }
            Input::Target(command) => {
                let (ctx, cluster, memory) = (&ctx, &cluster, &memory);
                command.carry_out(&mut TargetPort { ctx, cluster, endpoint, memory });
            }
            Input::Fabric(FabricEvent::Completed { id, .. }) => {
                ctx.sent(endpoint, id);
            }
            Input::Fabric(event) => ctx.ring(loop_id, Input::Served(event)),
            _ => {}
        }
    }
}

/// The thread's connections.
struct TargetPort<'a> {
    ctx: &'a Ctx,
    cluster: &'a Cluster,
    endpoint: EndpointId,
    memory: &'a TargetMemory<SimMem>,
}

impl FabricTarget for TargetPort<'_> {
    fn send(&mut self, peer: PeerId, message: Vec<u8>) -> bool {
        self.ctx.send_message(self.endpoint, peer, message).is_ok()
    }

    /// Puts memory into a client's buffer, then the answer that is true.
    fn write_back(&mut self, peer: PeerId, job: EncodedWriteBack) -> bool {
        self.ctx.cpu.charge(self.cluster.costs.target_request);
        let EncodedWriteBack { to, from, bytes, done, refused } = job;
        let mut data = vec![0; bytes as usize];
        let answer = match self.memory.read(from.offset, from.key, &mut data) {
            WorkStatus::Done(_) => {
                if self.ctx.write_back(self.endpoint, peer, to, data).is_err() {
                    return false;
                }
                done
            }
            _ => refused,
        };
        self.send(peer, answer)
    }

    fn close(&mut self, peer: PeerId) {
        self.ctx.close_peer(self.endpoint, peer);
    }
}

/// Runs an operation on the rack's memory. Its memory operations can be interrupted, so nothing
/// of the network is held meanwhile.
fn execute(ctx: &Ctx, memory: &TargetMemory<SimMem>, token: u32, data: &mut Vec<u8>) {
    let (verb, bytes) = {
        let net = ctx.kernel.net.borrow();
        let operation = net.operation(token);
        // A READ overwrites all of it, or is not answered.
        if !matches!(operation.verb(), Verb::Read(_)) {
            data.clear();
            data.extend_from_slice(operation.payload());
        }
        (operation.verb(), operation.bytes())
    };
    let status = match verb {
        Verb::Read(at) => {
            data.resize(bytes as usize, 0);
            memory.read(at.offset, at.key, data)
        }
        Verb::Write(at) | Verb::WriteImm(at, _) => memory.write(at.offset, at.key, data),
        Verb::Cas { at, expected, new } => memory.cas(at.offset, at.key, expected, new),
        Verb::FetchAdd { at, n } => memory.fetch_add(at.offset, at.key, n),
        Verb::Send => unreachable!("messages are not executed"),
    };
    // What was stored is in memory before the answer goes out.
    ctx.cpu.drain();
    let executed = match (status, verb) {
        (WorkStatus::BadKey, _) => Executed::BadKey,
        (WorkStatus::BadRange, _) => Executed::BadRange,
        (_, Verb::Read(_)) => Executed::Data(data),
        (WorkStatus::Done(old), Verb::Cas { .. } | Verb::FetchAdd { .. }) => Executed::Old(old),
        _ => Executed::Done,
    };
    ctx.executed(token, executed);
}
