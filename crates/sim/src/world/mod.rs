//! A cluster in virtual time: a master, racks with their daemons, and clients, all running the
//! project's engines over simulated memory and a simulated network.

mod audit;
pub mod closed;
mod daemon;
mod handle;
mod helpers;
mod impostor;
mod kernel;
pub mod ladder;
pub mod load;
mod master;
mod nemesis;
mod operator;
pub mod performance;
mod rack;
mod relocating;
pub mod scale;
mod scenario;
mod scene;
mod shards;
mod spill;
mod sweeping;
mod target;
mod uplinks;
mod workload;

pub use handle::{FetchMode, Path, SimGuard, SimHandle};
pub use kernel::{Clock, ControlCosts, Ctx, HostId, Input, Kernel, Loop, ProcessId, block_on};
pub use rack::Rack;
pub use scenario::{run_seed, run_seed_logged, run_seed_with};
pub use scene::table::{TableClient, TableError, TableMem, TableReport, Tables};

use crate::mem::{Cpu, Hooks};
use crate::net::EndpointId;
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use master::Disk;
use rackpool_core::constants::{LEASE_MS_DEFAULT, SESSION_GRACE_MS_DEFAULT};
use rackpool_core::master::{MasterConfig, State};
use rackpool_core::placement::Policy;
use rackpool_core::policy;
use rackpool_core::wire::CallCounts;
use rackpool_core::{RackId, SessionId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Processor time of an engine's steps; zero in checking mode, where time passes in between.
#[derive(Clone, Debug, Default)]
pub struct StepCosts {
    /// The master takes a request.
    pub master_request: Ps,
    /// The master's journal stores a batch.
    pub disk_commit: Ps,
    /// The daemon takes a message of a fabric client.
    pub daemon_message: Ps,
    /// The daemon looks at a ring.
    pub daemon_poll: Ps,
    /// The daemon serves a request, beyond its memory accesses.
    pub daemon_request: Ps,
    /// A client starts an operation.
    pub client_submit: Ps,
    /// The client engine takes a step of an operation.
    pub client_step: Ps,
    /// The client takes a completion.
    pub client_completion: Ps,
    /// The client takes a message out of its completion queue.
    pub client_message: Ps,
    /// The client copies a line of what a message carries, or of what it gathers in its memory.
    pub client_copied_line: Ps,
    /// The client finds the place of a write in its write buffer.
    pub client_buffered: Ps,
    /// The client looks at its ring.
    pub client_poll: Ps,
    /// The fabric thread takes an operation.
    pub target_request: Ps,
    /// How long after an input came an idle daemon sees it.
    pub daemon_notice: Ps,
    /// The same for the master.
    pub master_notice: Ps,
}

/// What the processes of a run share.
pub struct Cluster {
    pub kernel: Rc<Kernel>,
    pub seed: u64,
    pub racks: Vec<Rc<Rack>>,
    pub master: Cell<ProcessId>,
    pub master_host: HostId,
    disk: RefCell<Disk>,
    pub costs: StepCosts,
    /// How long a call rides through the restart of a peer.
    pub request_timeout: Ps,
    /// How long a session outlives its connection, ms.
    pub session_grace_ms: u64,
    pub lease_ms: u64,
    pub policy: Policy,
    /// How the daemons decide where pages live.
    pub migration: policy::MigrationPolicy,
    /// How the daemons serve their clients' rings.
    pub rings: rackpool_core::daemon::Rings,
    /// Whether, and how, full racks send cold pages to emptier ones.
    pub balance: Option<policy::BalanceParams>,
    /// Rare branches, mutations, and what was met.
    pub hooks: Hooks,
    /// How often registering a buffer with the network fails, and how often it did.
    pub registration_fails_ppm: Cell<u32>,
    pub registrations_failed: Cell<u64>,
    registration_rng: RefCell<Rng>,
    make_cpu: Box<dyn Fn(HostId) -> Rc<Cpu>>,
    /// What executes one-sided operations, if it is not a processor like the others.
    device: Option<Box<dyn Fn() -> Rc<Cpu>>>,
    sessions: Cell<u64>,
    /// Shards that went on with a sibling's daemon.
    pub takeovers: Cell<u64>,
    /// Calls to the master by kind.
    pub master_calls: Cell<CallCounts>,
    /// Bytes of the master's answers that describe racks.
    pub rack_answer_bytes: Cell<u64>,
}

impl Cluster {
    /// A cluster of these racks in which nothing runs yet.
    pub fn new(
        kernel: Rc<Kernel>,
        seed: u64,
        racks: Vec<Rc<Rack>>,
        master_host: HostId,
        costs: StepCosts,
        hooks: Hooks,
        make_cpu: Box<dyn Fn(HostId) -> Rc<Cpu>>,
    ) -> Cluster {
        Cluster {
            kernel,
            seed,
            racks,
            master: Cell::new(ProcessId(u32::MAX)),
            master_host,
            disk: RefCell::default(),
            costs,
            request_timeout: Ps::ms(10_000),
            session_grace_ms: SESSION_GRACE_MS_DEFAULT,
            lease_ms: LEASE_MS_DEFAULT,
            policy: Policy::default(),
            migration: policy::MigrationPolicy::Off,
            rings: Default::default(),
            balance: None,
            hooks,
            registration_fails_ppm: Cell::new(0),
            registrations_failed: Cell::new(0),
            registration_rng: RefCell::new(Rng::new(seed, Purpose::Faults, 1)),
            make_cpu,
            device: None,
            sessions: Cell::new(0),
            takeovers: Cell::new(0),
            master_calls: Cell::default(),
            rack_answer_bytes: Cell::new(0),
        }
    }

    fn master_config(&self) -> MasterConfig {
        MasterConfig { lease_ms: self.lease_ms, policy: self.policy, seed: self.seed }
    }

    /// A processor of a host.
    pub fn cpu(&self, host: HostId) -> Rc<Cpu> {
        (self.make_cpu)(host)
    }

    /// A rack, or one shard of it; of a divided rack that is named its first shard.
    pub fn rack_of(&self, id: RackId) -> &Rc<Rack> {
        let exact = self.racks.iter().find(|rack| rack.id == id);
        let named = || self.racks.iter().find(|rack| rack.id.same_rack(id));
        exact.or_else(named).expect("ids are those of racks")
    }

    /// What executes one-sided operations on a host.
    fn device(&self, host: HostId) -> Rc<Cpu> {
        self.device.as_ref().map_or_else(|| self.cpu(host), |device| device())
    }

    /// Whether the next buffer cannot be registered.
    fn registration_fails(&self) -> bool {
        let ppm = self.registration_fails_ppm.get();
        let fails = ppm > 0 && self.registration_rng.borrow_mut().chance_ppm(ppm);
        self.registrations_failed.set(self.registrations_failed.get() + u64::from(fails));
        fails
    }

    /// A session that no client had.
    pub fn new_session(&self) -> SessionId {
        self.sessions.set(self.sessions.get() + 1);
        SessionId(self.sessions.get())
    }

    /// A fabric endpoint of a process.
    fn add_endpoint(&self, ctx: &Ctx, owner: ProcessId) -> EndpointId {
        let node = self.kernel.node_of(ctx.host);
        let endpoint = self.kernel.net.borrow_mut().add_endpoint(node);
        self.kernel.route_endpoint(endpoint, owner);
        endpoint
    }

    pub fn start_master(self: &Rc<Self>) {
        let cpu = self.cpu(self.master_host);
        let cluster = self.clone();
        let id = self
            .kernel
            .spawn("master".into(), self.master_host, cpu, |ctx| master::main(ctx, cluster));
        self.kernel.set_notice(id, self.costs.master_notice);
        self.master.set(id);
    }

    /// Bytes of the master's state as it is stored.
    pub fn master_bytes(&self) -> u64 {
        self.disk.borrow().bytes()
    }

    /// The master's state as it is stored.
    fn stored_state(&self) -> State {
        self.disk.borrow().load().expect("the master has stored its first state")
    }
}
