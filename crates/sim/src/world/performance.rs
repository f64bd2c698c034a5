//! Performance mode: a cluster with processes that are charged by a [`Profile`], without faults,
//! with delays that do not vary, and memory that appears when it is stored to.
//!
//! What is charged: every access to memory by its line; `cpu.*` for steps of the engines and for
//! posting; `tcp.*` for control messages; the network's stages by themselves. A loop that polls is
//! not run while nothing happens: it sees what came after half a round of it (`poll.*`), on
//! average right, and a line that another processor stored costs its transfer where it is loaded.
//! One that is busy goes on with what came meanwhile as soon as it is done.
//!
//! Order: a process is resumed at its moment and runs ahead of the world by what it charges, so
//! own-rack accesses need no event. Whatever reaches others (rings, posts, messages) is brought
//! into the order of time first ([`Ctx::sync`]); loads and stores of shared memory are not, so
//! that their order among processes can differ from that of time by at most [`AHEAD_MAX`].
//!
//! One-sided operations, atomics among them, are executed by the home rack's card: they cost what
//! the profile says of the card and no processor's time there.

use super::kernel::{CallCosts, Clock, ControlCosts, Ctx, HostId, Kernel, Loop, ProcessId};
use super::{Cluster, Path, Rack, SimHandle, StepCosts};
use crate::device::Profile;
use crate::mem::{Coherence, Cpu, Hooks, MemCosts};
use crate::net::{Net, NetFaults};
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use rackpool_core::client::Placement;
use rackpool_core::daemon::Rings;
use rackpool_core::layout::{AllocationKind, RegionLayout};
use rackpool_core::placement::Policy;
use rackpool_core::policy;
use rackpool_core::{GAddr, PageGeometry, RackId};
use std::future::Future;
use std::rc::Rc;

/// How far a process may be ahead of the world with accesses to shared memory.
pub const AHEAD_MAX: Ps = Ps::us(2);
/// The journal's batch reaches stable storage: an NVMe drive with a write cache that survives
/// power loss. General knowledge, not part of the profiles.
pub const DISK_COMMIT: Ps = Ps::us(30);

/// The size of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Racks, from 1.
    pub racks: u32,
    /// The page size as a power of two.
    pub page_shift: u8,
    /// Page frames of each rack.
    pub frames: u32,
    pub seed: u64,
}

/// What can be chosen about the engines.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    pub placement: Policy,
    /// Whether and by what rule pages move.
    pub migration: policy::MigrationPolicy,
    /// How daemons serve their clients' rings.
    pub rings: Rings,
}

pub fn mem_costs(profile: &Profile) -> MemCosts {
    let memory = &profile.memory;
    MemCosts {
        hit: memory.hit,
        transfer: memory.line_transfer,
        dram_load: memory.dram_load,
        dram_store: memory.dram_store,
        dram_stream: memory.dram_bandwidth.time(64),
        cxl_load_line: memory.cxl_load_line,
        cxl_store_line: memory.cxl_store_line,
        cxl_stream_line: memory.cxl_bandwidth.time(64),
        atomic: memory.atomic,
        fence: memory.fence,
        flush_line: memory.flush_line,
    }
}

/// Half a round of a poll loop.
pub fn notice(round: Ps) -> Ps {
    Ps(round.0 / 2)
}

/// An empty world on the profile's devices.
pub fn kernel(profile: &Profile, seed: u64) -> Rc<Kernel> {
    let net = Net::new(profile, NetFaults::none(), Rng::new(seed, Purpose::Network, 0));
    // A message's time holds the processors' parts; the receiver's is charged there.
    let control = profile.tcp.message.saturating_sub(profile.tcp.receive);
    let line = profile.memory.line_transfer;
    let control = ControlCosts { local: control, remote: control, line };
    let kernel = Kernel::new(seed, net, control, false);
    kernel.set_call_costs(CallCosts {
        post_request: profile.cpu.post_request,
        post_doorbell: profile.cpu.post_doorbell,
        send: profile.tcp.send,
        receive: profile.tcp.receive,
    });
    kernel
}

/// A host with a correct clock.
pub fn add_host(kernel: &Kernel) -> HostId {
    kernel.add_host(Clock { drift_ppm: 0, offset_ns: 0 })
}

fn step_costs(profile: &Profile) -> StepCosts {
    StepCosts {
        master_request: profile.cpu.master_request,
        disk_commit: DISK_COMMIT,
        daemon_message: profile.cpu.completion,
        daemon_request: profile.cpu.daemon_request,
        client_submit: profile.cpu.client_submit,
        client_completion: profile.cpu.completion,
        client_message: profile.cpu.completion,
        client_copied_line: profile.memory.dram_bandwidth.time(64),
        client_buffered: profile.cpu.client_submit,
        daemon_notice: notice(profile.poll.daemon),
        master_notice: notice(profile.poll.master),
        ..StepCosts::default()
    }
}

/// A cluster and the loop that runs it.
pub struct World {
    /// The cluster; its daemons and its master run.
    pub cluster: Rc<Cluster>,
    pub looped: Loop,
    client_notice: Ps,
}

impl World {
    /// A cluster on the profile's devices.
    pub fn new(profile: &Profile, shape: Shape) -> World {
        World::with_policy(profile, shape, Policy::default())
    }

    /// A cluster with a master that places new memory by a policy.
    pub fn with_policy(profile: &Profile, shape: Shape, policy: Policy) -> World {
        World::with(profile, shape, Settings { placement: policy, ..Settings::default() })
    }

    /// A cluster with other than the usual settings.
    pub fn with(profile: &Profile, shape: Shape, settings: Settings) -> World {
        let kernel = kernel(profile, shape.seed);
        let host = || add_host(&kernel);
        let pages = PageGeometry::new(shape.page_shift).expect("a page size");
        let layout = RegionLayout { pages, frame_count: shape.frames };
        let master_host = host();
        let racks = (0..shape.racks).map(|rack| {
            Rc::new(Rack::new(
                RackId(rack as u16),
                host(),
                layout,
                &kernel,
                false,
                Coherence::Hardware,
            ))
        });
        let racks: Vec<Rc<Rack>> = racks.collect();
        let costs = mem_costs(profile);
        let mut cluster = Cluster::new(
            kernel.clone(),
            shape.seed,
            racks,
            master_host,
            step_costs(profile),
            Hooks::new(shape.seed),
            Box::new(move |_| Cpu::performance(costs)),
        );
        cluster.policy = settings.placement;
        cluster.migration = settings.migration;
        cluster.rings = settings.rings;
        cluster.device = Some(Box::new(|| Cpu::performance(MemCosts::default())));
        let cluster = Rc::new(cluster);
        cluster.start_master();
        (0..shape.racks as usize).for_each(|rack| cluster.start_daemon(rack));
        let client_notice = notice(profile.poll.client);
        World { cluster, looped: Loop::new(kernel, None), client_notice }
    }

    /// Starts a client of a rack.
    pub fn spawn<F: Future<Output = ()> + 'static>(
        &self,
        rack: u32,
        main: impl FnOnce(Ctx, Rc<Cluster>) -> F,
    ) -> ProcessId {
        let cluster = self.cluster.clone();
        let host = cluster.racks[rack as usize].host;
        let cpu = cluster.cpu(host);
        let kernel = cluster.kernel.clone();
        let id = kernel.spawn("client".into(), host, cpu, |ctx| main(ctx, cluster));
        kernel.set_notice(id, self.client_notice);
        id
    }

    /// As [`World::spawn`], of a client that may block: one that locks ranges.
    pub fn spawn_on_stack<F: Future<Output = ()> + 'static>(
        &self,
        rack: u32,
        main: impl FnOnce(Ctx, Rc<Cluster>) -> F,
    ) -> ProcessId {
        let id = self.spawn(rack, main);
        self.cluster.kernel.give_stack(id);
        id
    }

    /// Runs until `done`; an error if nothing is left to happen, or the cluster found a defect.
    pub fn run(&mut self, mut done: impl FnMut() -> bool) -> Result<(), String> {
        self.looped.run(Ps(u64::MAX), &mut done);
        let kernel = &self.cluster.kernel;
        match kernel.violation() {
            Some(violation) => Err(format!("{}: {}", violation.checker, violation.text)),
            None if done() => Ok(()),
            None => Err(format!("nothing happens any more at {}", kernel.now())),
        }
    }
}

/// Opens a handle of a rack that reaches others by one-sided operations.
pub async fn open(ctx: &Ctx, cluster: &Rc<Cluster>, rack: u32, translations: u32) -> SimHandle {
    let rack = RackId(rack as u16);
    SimHandle::open(ctx.clone(), cluster.clone(), rack, Path::OneSided, translations)
        .await
        .expect("daemons run and have slots")
}

/// Allocates `count` pages in the handle's own rack, one run.
pub async fn alloc_pages(handle: &mut SimHandle, count: u64) -> GAddr {
    let bytes = count * handle.page_bytes();
    handle
        .alloc(bytes, Placement::Local, AllocationKind::User)
        .await
        .expect("the rack has room for its pages")
}
