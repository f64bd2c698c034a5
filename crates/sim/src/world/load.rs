//! A load on a cluster in performance mode: each client reads and writes lines of pages of its own
//! rack and of some partner racks, a given share of them as first touches. What it saw is counted
//! and timed by kind, apart from setting up.

use super::kernel::{Ctx, Input, ProcessId};
use super::performance::{self, AHEAD_MAX, ClientNumber, Shape, World};
use super::{Cluster, SimHandle};
use crate::device::Profile;
use crate::histogram::Histogram;
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use rackpool_core::GAddr;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Clone, Copy, Debug)]
pub struct ClusterLoad {
    pub clients: u32,
    /// Measured operations of each client.
    pub operations: u32,
    /// Racks besides its own that a client works on, at most all others.
    pub partners: u32,
    /// Pages of each rack that a client works on.
    pub pages: u32,
    /// Bytes of each page that are worked on: the simulator keeps what was stored to.
    pub window_bytes: u64,
    /// Bytes of an access, aligned.
    pub access_bytes: u64,
    /// Accesses to partner racks, parts per million.
    pub remote_ppm: u32,
    /// Accesses that forget their page first, parts per million.
    pub first_touch_ppm: u32,
    pub write_ppm: u32,
}

impl ClusterLoad {
    /// Half remote, half writes, a tenth first touches, lines of 64 bytes.
    pub fn mixed(clients: u32, operations: u32) -> ClusterLoad {
        ClusterLoad {
            clients,
            operations,
            partners: 3,
            pages: 16,
            window_bytes: 4096,
            access_bytes: 64,
            remote_ppm: 500_000,
            first_touch_ppm: 100_000,
            write_ppm: 500_000,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Own rack, the place is known.
    OwnWarm,
    /// Own rack, the place is asked for.
    OwnFirst,
    /// Another rack, the place is known.
    RemoteWarm,
    /// Another rack, the place is asked for.
    RemoteFirst,
}

impl AccessKind {
    fn of(remote: bool, first: bool) -> AccessKind {
        match (remote, first) {
            (false, false) => AccessKind::OwnWarm,
            (false, true) => AccessKind::OwnFirst,
            (true, false) => AccessKind::RemoteWarm,
            (true, true) => AccessKind::RemoteFirst,
        }
    }
}

/// What was seen of one kind, or of a phase.
#[derive(Clone, Debug, Default)]
pub struct AccessStats {
    /// Latencies in picoseconds; their number is that of the operations.
    pub latency: Histogram,
    /// Calls of clients to the master.
    pub master_calls: u64,
    /// Requests of clients to daemons.
    pub daemon_requests: u64,
}

/// What a phase counted in the whole cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PhaseCounts {
    /// Calls that the master took, by kind.
    pub master_calls: BTreeMap<&'static str, u64>,
    /// Bytes of the master's answers that describe racks.
    pub rack_answer_bytes: u64,
    /// Operations that network cards executed.
    pub fabric_operations: u64,
    pub events: u64,
    pub time: Ps,
}

/// What the clients of a run share.
struct ClusterLoadState {
    load: ClusterLoad,
    seed: u64,
    /// First page of each rack.
    pages: RefCell<Vec<GAddr>>,
    ready: Cell<u32>,
    ended: Cell<u32>,
    links: Cell<u64>,
    seen: [RefCell<AccessStats>; 4],
    /// A sum over all bytes that were read: two runs that did the same have the same.
    digest: Cell<u64>,
}

/// A cluster with its clients, connected and with all places known, about to work.
pub struct Prepared {
    world: World,
    shared: Rc<ClusterLoadState>,
    clients: Vec<ProcessId>,
    setup: PhaseCounts,
}

impl Prepared {
    /// Builds the cluster, allocates pages and connects everybody.
    pub fn new(profile: &Profile, shape: Shape, load: ClusterLoad) -> Result<Prepared, String> {
        let mut world = World::new(profile, shape);
        let racks = shape.racks as usize;
        let shared = Rc::new(ClusterLoadState {
            load: ClusterLoad { partners: load.partners.min(shape.racks - 1), ..load },
            seed: shape.seed,
            pages: RefCell::new(vec![GAddr(0); racks]),
            ready: Cell::new(0),
            ended: Cell::new(0),
            links: Cell::new(0),
            seen: Default::default(),
            digest: Cell::new(0),
        });
        for rack in 0..shape.racks {
            let shared = shared.clone();
            world.spawn(rack, |ctx, cluster| loader(ctx, cluster, shared, rack));
        }
        let one = shared.clone();
        world.run(|| one.ready.get() == shape.racks)?;
        shared.ready.set(0);
        let mut clients = Vec::new();
        for rack in 0..shape.racks {
            for index in 0..load.clients {
                let shared = shared.clone();
                let number = ClientNumber { rack, index };
                clients
                    .push(world.spawn(rack, |ctx, cluster| client(ctx, cluster, shared, number)));
            }
        }
        let all = clients.len() as u32;
        let one = shared.clone();
        world.run(|| one.ready.get() == all)?;
        let setup = totals(&world.cluster);
        Ok(Prepared { world, shared, clients, setup })
    }

    /// Lets the clients do their operations.
    pub fn run(&mut self) -> Result<(), String> {
        let kernel = &self.world.cluster.kernel;
        let now = kernel.now();
        self.clients.iter().for_each(|client| kernel.post(*client, now, Input::Tell(0)));
        let (shared, all) = (self.shared.clone(), self.clients.len() as u32);
        self.world.run(|| shared.ended.get() == all)
    }

    pub fn cluster(&self) -> &Rc<Cluster> {
        &self.world.cluster
    }

    /// The cluster with its loop, for what comes after the load.
    pub fn world(&mut self) -> &mut World {
        &mut self.world
    }

    /// What was seen of a kind of access.
    pub fn seen(&self, kind: AccessKind) -> AccessStats {
        self.shared.seen[kind as usize].borrow().clone()
    }

    pub fn operations(&self) -> u64 {
        self.shared.seen.iter().map(|seen| seen.borrow().latency.count()).sum()
    }

    pub fn setup(&self) -> &PhaseCounts {
        &self.setup
    }

    /// What the operations took, without setting up.
    pub fn work(&self) -> PhaseCounts {
        let mut work = totals(&self.world.cluster);
        for (name, count) in &mut work.master_calls {
            *count -= self.setup.master_calls.get(name).copied().unwrap_or(0);
        }
        work.rack_answer_bytes -= self.setup.rack_answer_bytes;
        work.fabric_operations -= self.setup.fabric_operations;
        work.events -= self.setup.events;
        work.time = work.time - self.setup.time;
        work
    }

    /// Links of all clients, those to their own racks among them.
    pub fn links(&self) -> u64 {
        self.shared.links.get()
    }

    /// A number that tells runs apart that did something else, or at another time.
    pub fn fingerprint(&self) -> u64 {
        self.world.cluster.kernel.trace_hash() ^ self.shared.digest.get()
    }
}

fn totals(cluster: &Cluster) -> PhaseCounts {
    PhaseCounts {
        master_calls: cluster.master_calls.get().by_kind().into_iter().collect(),
        rack_answer_bytes: cluster.rack_answer_bytes.get(),
        fabric_operations: cluster.kernel.net.borrow().counters().executed,
        events: cluster.kernel.events(),
        time: cluster.kernel.now(),
    }
}

async fn loader(ctx: Ctx, cluster: Rc<Cluster>, shared: Rc<ClusterLoadState>, rack: u32) {
    let mut handle = performance::open(&ctx, &cluster, rack, 1).await;
    let addr = performance::alloc_pages(&mut handle, u64::from(shared.load.pages)).await;
    shared.pages.borrow_mut()[rack as usize] = addr;
    handle.leave().await;
    shared.ready.set(shared.ready.get() + 1);
}

/// The places that one client works on.
struct Places {
    own: GAddr,
    partners: Vec<GAddr>,
    page_bytes: u64,
}

impl Places {
    /// A random access: its address, and whether it is remote.
    fn draw(&self, load: &ClusterLoad, rng: &mut Rng) -> (GAddr, bool) {
        let remote = !self.partners.is_empty() && rng.chance_ppm(load.remote_ppm);
        let base = match remote {
            true => self.partners[rng.below(self.partners.len() as u64) as usize],
            false => self.own,
        };
        let page = rng.below(u64::from(load.pages)) * self.page_bytes;
        let slot = rng.below(load.window_bytes / load.access_bytes) * load.access_bytes;
        (GAddr(base.0 + page + slot), remote)
    }
}

async fn client(
    ctx: Ctx,
    cluster: Rc<Cluster>,
    shared: Rc<ClusterLoadState>,
    number: ClientNumber,
) {
    let ClientNumber { rack, index } = number;
    let load = shared.load;
    let number = u64::from(rack) * u64::from(load.clients) + u64::from(index);
    let mut rng = Rng::new(shared.seed, Purpose::Workload, number);
    let pages = (load.partners + 1) * load.pages;
    // So large that pages of neighbours are not in one another's way.
    let mut handle = performance::open(&ctx, &cluster, rack, (4 * pages).max(128)).await;
    let racks = cluster.racks.len() as u32;
    // The partners of a rack are its neighbours, so that each rack has as many.
    let partners: Vec<GAddr> = (1..=load.partners)
        .map(|step| shared.pages.borrow()[((rack + step) % racks) as usize])
        .collect();
    let own = shared.pages.borrow()[rack as usize];
    let places = Places { own, partners, page_bytes: handle.page_bytes() };
    let mut buffer = vec![0; load.access_bytes as usize];
    for base in std::iter::once(&places.own).chain(&places.partners) {
        for page in 0..u64::from(load.pages) {
            let addr = GAddr(base.0 + page * places.page_bytes);
            handle.read(addr, &mut buffer).await.expect("the page is there");
        }
    }
    shared.links.set(shared.links.get() + handle.link_count());
    ctx.sync(Ps::ZERO).await;
    shared.ready.set(shared.ready.get() + 1);
    let far = ctx.now() + Ps::ms(1_000_000_000);
    handle.told(far).await.expect("work begins");
    work(&ctx, &shared, &mut handle, &places, &mut rng).await;
    shared.ended.set(shared.ended.get() + 1);
    // It stays, as clients do; ending is not what is measured.
    while ctx.recv(None).await.is_some() {}
}

async fn work(
    ctx: &Ctx,
    shared: &ClusterLoadState,
    handle: &mut SimHandle,
    places: &Places,
    rng: &mut Rng,
) {
    let load = &shared.load;
    let mut buffer = vec![0; load.access_bytes as usize];
    for operation in 0..u64::from(load.operations) {
        let (addr, remote) = places.draw(load, rng);
        let first = rng.chance_ppm(load.first_touch_ppm);
        if first {
            handle.forget(addr);
        }
        let (start, sent) = (ctx.now(), handle.sent());
        if rng.chance_ppm(load.write_ppm) {
            buffer[..8].copy_from_slice(&(operation ^ addr.0).to_le_bytes());
            handle.write(addr, &buffer).await.expect("the page is there");
        } else {
            handle.read(addr, &mut buffer).await.expect("the page is there");
            let word = u64::from_le_bytes(buffer[..8].try_into().expect("8 bytes"));
            let mixed = (shared.digest.get() ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            shared.digest.set(mixed.rotate_left(31));
        }
        {
            let mut seen = shared.seen[AccessKind::of(remote, first) as usize].borrow_mut();
            seen.latency.record((ctx.now() - start).0);
            seen.daemon_requests += handle.sent().0 - sent.0;
            seen.master_calls += handle.sent().1 - sent.1;
        }
        ctx.sync(AHEAD_MAX).await;
    }
    ctx.sync(Ps::ZERO).await;
}
