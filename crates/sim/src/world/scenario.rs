//! One seed: a cluster with clients at work, faults by the nemesis, checks while it runs, and an
//! audit when all is quiet.

use super::kernel::{Clock, ControlCosts, HostId, Kernel, Loop};
use super::rack::Rack;
use super::scene::table::Tables;
use super::scene::{Place, Scene};
use super::workload;
use super::workload::model::WorkloadModel;
use super::{Cluster, Path, StepCosts, audit, nemesis, shards};
use crate::device::Profile;
use crate::mem::{Coherence, Cpu, Hooks, HostCache, SwitchRates, Violations};
use crate::net::{Net, NetFaults};
use crate::rng::{Purpose, Rng};
use crate::run::{Config, Counts, Fault, Group, SeedOutcome};
use crate::time::Ps;
use rackpool_core::layout::RegionLayout;
use rackpool_core::policy::{self, BalanceParams, CostParams, PaperParams};
use rackpool_core::probe::{Mutation, Race, Rare};
use rackpool_core::tier::Tiers;
use rackpool_core::{PageGeometry, RackId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// After the last fault, everything ends within this time: the longest pause that may be left, a
/// deadline, a session's grace, a lease and some turns.
const CALM: Ps = Ps::ms(120_000);
/// A run that works for longer than this hangs.
const WORK_MAX: Ps = Ps::ms(3_600_000);

/// Of the seeds that may have a table, those that do, parts per million.
const TABLE_PPM: u32 = 400_000;
/// Frames of each rack that a table may need: a chunk, slabs of all classes, long values.
const TABLE_FRAMES: u32 = 24;
/// The generator that says how pages move by themselves.
const MIGRATION_STREAM: u64 = (1 << 40) + 1;
/// The generator that says whether pages move for balance.
const BALANCE_STREAM: u64 = (1 << 40) + 2;
/// The generator that says whether only the software keeps the caches of a rack's hosts coherent.
const COHERENCE_STREAM: u64 = (1 << 40) + 3;
/// Of the seeds, those where it does, parts per million.
const SOFTWARE_PPM: u32 = 125_000;
/// The generator that says whether there is one: far from those of processes.
const TABLE_STREAM: u64 = 1 << 40;

/// How pages move by themselves: with thresholds that a run of milliseconds meets.
fn migration(seed: u64) -> policy::MigrationPolicy {
    let mut rng = Rng::new(seed, Purpose::Shape, MIGRATION_STREAM);
    match rng.below(4) {
        0 => policy::MigrationPolicy::Off,
        1 | 2 => policy::MigrationPolicy::Paper(PaperParams::default()),
        _ => policy::MigrationPolicy::Cost(CostParams {
            count_min: 4,
            deviations_squared: 1,
            dominance_milli: 1000,
            margin_milli: 10,
            ..CostParams::default()
        }),
    }
}

/// Whether full racks send cold pages away, in a run of milliseconds: in one seed of three.
fn balance(seed: u64) -> Option<BalanceParams> {
    let mut rng = Rng::new(seed, Purpose::Shape, BALANCE_STREAM);
    let eager = BalanceParams {
        high_milli: 20,
        stop_milli: 5,
        low_milli: 5,
        cold_max: u64::MAX,
        burst_pages: 1000,
        ..BalanceParams::default()
    };
    rng.chance_ppm(333_333).then_some(eager)
}

/// What keeps the caches of a rack's hosts coherent: in some seeds the software; where a safeguard
/// is left out, if it is one of that. Then racks have clients on a second host each.
fn coherence(config: &Config, seed: u64) -> Coherence {
    let mut rng = Rng::new(seed, Purpose::Shape, COHERENCE_STREAM);
    let drawn = rng.chance_ppm(SOFTWARE_PPM);
    let is_about = config.mutation.map(Mutation::is_of_coherence);
    match config.software_coherent.or(is_about).unwrap_or(drawn) {
        true => Coherence::Software,
        false => Coherence::Hardware,
    }
}

/// What a seed decides of a run.
struct RunShape {
    racks: u32,
    clients: u32,
    page_shift: u8,
    frames: u32,
    switch: SwitchRates,
}

impl RunShape {
    fn new(config: &Config, seed: u64, has_table: bool) -> RunShape {
        let mut rng = Rng::new(seed, Purpose::Shape, 0);
        let racks = config.racks.unwrap_or(rng.between(2, 4) as u32);
        RunShape {
            racks,
            clients: config.clients.unwrap_or((2 * racks).max(4) + rng.below(3) as u32),
            page_shift: 12,
            frames: rng.between(12, 48) as u32 + if has_table { TABLE_FRAMES } else { 0 },
            switch: switch_rates(config, &mut rng),
        }
    }
}

/// How often processors are interrupted: some seeds hardly ever, some at every few operations.
fn switch_rates(config: &Config, rng: &mut Rng) -> SwitchRates {
    let pauses = config.faults.has(Fault::Pause);
    SwitchRates {
        switch_gap: 1 << rng.between(1, 7),
        micros_ppm: 20_000,
        millis_ppm: if pauses { [0, 100, 1_000, 10_000][rng.below(4) as usize] } else { 0 },
        drain_gap: 1 << rng.between(1, 6),
        // Time passes where processes are interrupted, and nowhere else: so what happens first is
        // also earlier.
        operation: Ps::ZERO,
        ..SwitchRates::default()
    }
}

/// A cluster as the seed shapes it, in which nothing runs yet.
fn build(config: &Config, seed: u64, tables: Option<&'static dyn Tables>) -> Rc<Scene> {
    let mut rng = Rng::new(seed, Purpose::Shape, TABLE_STREAM);
    let coherence = coherence(config, seed);
    let is_software = coherence == Coherence::Software;
    let tables = tables.filter(|_| rng.chance_ppm(TABLE_PPM) && !is_software);
    let mut rng = Rng::new(seed, Purpose::Shape, 1);
    let shape = RunShape::new(config, seed, tables.is_some());
    let profile = Profile::load(&config.profile).expect("the profile was checked before");
    let faults = net_faults(config, &mut rng);
    let net = Net::new(&profile, faults, Rng::new(seed, Purpose::Network, 0));
    let control = ControlCosts { local: Ps::us(2), remote: Ps::us(20), line: Ps::ns(150) };
    let kernel = Kernel::new(seed, net, control, true);
    let skewed = config.faults.has(Fault::ClockSkew);
    let mut host = || {
        let drift_ppm = if skewed { rng.between(0, 2000) as i64 - 1000 } else { 0 };
        let offset_ns = if skewed { rng.below(10_000_000_000) } else { 0 };
        kernel.add_host(Clock { drift_ppm, offset_ns })
    };
    // Of the racks, the master, and where there are, the racks' second ones.
    let count = shape.racks + 1 + if is_software { shape.racks } else { 0 };
    let hosts: Vec<HostId> = (0..count).map(|_| host()).collect();
    let pages = PageGeometry::new(shape.page_shift).expect("a page size");
    let (tiers, frame_count) = tiers(config, shape.frames);
    let layout = RegionLayout { pages, frame_count };
    let ids = match is_software {
        true => (0..shape.racks).map(|rack| RackId(rack as u16)).collect(),
        false => shards::ids(seed, shape.racks),
    };
    let rack = |(id, host): (RackId, &HostId)| {
        let mut rack = Rack::new(id, *host, layout, &kernel, true, coherence);
        rack.tiers = tiers.clone();
        rack
    };
    let racks: Vec<Rc<Rack>> = ids.into_iter().zip(&hosts).map(|one| Rc::new(rack(one))).collect();
    let hooks = Hooks::new(seed);
    hooks.set_mutation(config.mutation);
    let violations = kernel.violations().clone();
    let make_cpu = cpus(seed, &hosts, shape.racks + 1, &hooks, shape.switch, &violations);
    let master_host = hosts[shape.racks as usize];
    let costs = StepCosts { disk_commit: Ps::us(30), ..StepCosts::default() };
    let mut cluster = Cluster::new(kernel, seed, racks, master_host, costs, hooks, make_cpu);
    cluster.policy = config.placement;
    (cluster.migration, cluster.balance) = (migration(seed), balance(seed));
    let cluster = Rc::new(cluster);
    if config.faults.has(Fault::OneWayLoss) {
        cluster.kernel.set_ends_lost_ppm([0, 20_000, 200_000][rng.below(3) as usize]);
    }
    if config.faults.has(Fault::FailedRegistration) {
        cluster.registration_fails_ppm.set(rng.below(20_000) as u32);
    }
    let places = places(&mut rng, &shape, &hosts, is_software);
    let mapped = places.iter().any(|one| one.path == Path::Mapped);
    let is_mapped = |rack: &Rack| mapped || rack.id.is_divided();
    cluster.racks.iter().for_each(|rack| rack.mapped_elsewhere.set(is_mapped(rack)));
    Rc::new(Scene {
        seed,
        config: config.clone(),
        places: RefCell::new(places),
        cluster,
        model: WorkloadModel::default(),
        tables,
        counts: RefCell::default(),
        helpers: RefCell::default(),
        removed: Cell::default(),
        drained: Cell::default(),
        opened: RefCell::default(),
        set_up: Cell::new(false),
        repaired: Cell::new(false),
        repaired_at: Cell::new(Ps::ZERO),
        audited: Cell::new(false),
    })
}

/// The memories of each rack, two halves if the configuration says so, and its frames. With a spill
/// file half of them are memory, and as many as all are slots.
fn tiers(config: &Config, frames: u32) -> (Tiers, u32) {
    let memory = if config.has_spill() { frames / 2 } else { frames };
    let tiers = match config.has_tiers() {
        true => Tiers::by_weights(memory, &[(0, 1), (1, 1)]).expect("frames for both"),
        false => Tiers::default(),
    };
    match config.has_spill() {
        true => (tiers.with_spill(memory, frames).expect("few frames"), memory + frames),
        false => (tiers, frames),
    }
}

/// Where clients run, and how they reach other racks. Of racks with two hosts on either.
fn places(rng: &mut Rng, shape: &RunShape, hosts: &[HostId], is_software: bool) -> Vec<Place> {
    let mapped = rng.below(3);
    let place = |place| {
        let path = match mapped {
            1 | 2 if !is_software && rng.chance_ppm(300_000) => Path::Mapped,
            _ if rng.chance_ppm(300_000) => Path::Proxied,
            _ => Path::OneSided,
        };
        let rack = (place % shape.racks) as usize;
        let is_apart = is_software && rng.chance_ppm(500_000);
        let host = hosts[rack + if is_apart { shape.racks as usize + 1 } else { 0 }];
        Place { rack, host, path, process: None, done: false }
    };
    (0..shape.clients).map(place).collect()
}

/// Makes the processors of a run, one a process, over one cache a host.
fn cpus(
    seed: u64,
    hosts: &[HostId],
    daemons: u32,
    hooks: &Hooks,
    rates: SwitchRates,
    violations: &Rc<Violations>,
) -> Box<dyn Fn(HostId) -> Rc<Cpu>> {
    let cache = |host: &HostId| HostCache::new(seed, u64::from(host.0), violations.clone());
    let caches: Vec<Rc<HostCache>> = hosts.iter().map(cache).collect();
    // The barrier of a daemon's host does not reach the second hosts.
    caches.iter().zip(0..).for_each(|(cache, host)| cache.set_asymmetric(host < daemons));
    let (made, hooks) = (Cell::new(0), hooks.clone());
    Box::new(move |host| {
        made.set(made.get() + 1);
        let cpu = Cpu::checking(caches[host.0 as usize].clone(), seed, made.get(), rates);
        cpu.set_hooks(hooks.clone());
        cpu
    })
}

/// What the network does to packets.
fn net_faults(config: &Config, rng: &mut Rng) -> NetFaults {
    let mut rate = |fault, ppm: u64| match config.faults.has(fault) && rng.chance_ppm(700_000) {
        true => rng.between(ppm / 50, ppm) as u32,
        false => 0,
    };
    NetFaults {
        loss_ppm: rate(Fault::OneWayLoss, 30_000),
        duplicate_ppm: rate(Fault::Duplicate, 50_000),
        delay_ppm: rate(Fault::Delay, 100_000),
        delay_max: Ps::us(200),
        reorder_ppm: rate(Fault::Reorder, 100_000),
        reorder_max: Ps::us(20),
    }
}

fn start(scene: &Rc<Scene>) {
    let cluster = &scene.cluster;
    cluster.start_master();
    (0..cluster.racks.len()).for_each(|rack| cluster.start_daemon(rack));
    let kernel = &cluster.kernel;
    let spawn = |name: &str, host: HostId| (name.to_owned(), host, cluster.cpu(host));
    let (name, host, cpu) = spawn("set-up", cluster.racks[0].host);
    let one = scene.clone();
    kernel.spawn(name, host, cpu, |ctx| workload::set_up(ctx, one));
    let (name, host, cpu) = spawn("nemesis", cluster.master_host);
    let one = scene.clone();
    kernel.spawn(name, host, cpu, |ctx| nemesis::main(ctx, one));
    let (name, host, cpu) = spawn("auditor", cluster.racks[0].host);
    let one = scene.clone();
    kernel.spawn(name, host, cpu, |ctx| audit::main(ctx, one));
}

/// Runs one seed in checking mode.
pub fn run_seed(config: &Config, seed: u64) -> SeedOutcome {
    run(config, seed, None)
}

/// As [`run_seed`]; in some seeds the clients use one of these tables, too.
pub fn run_seed_with(config: &Config, seed: u64, tables: &'static dyn Tables) -> SeedOutcome {
    run(config, seed, Some(tables))
}

fn run(config: &Config, seed: u64, tables: Option<&'static dyn Tables>) -> SeedOutcome {
    let scene = build(config, seed, tables);
    let kernel = scene.cluster.kernel.clone();
    kernel.set_events_max(config.events_max());
    if config.trace_lines > 0 {
        *kernel.log.borrow_mut() = Some(Vec::new());
    }
    start(&scene);
    let mut run = Loop::new(kernel.clone(), Some(crate::coro::STACK_BYTES));
    run.run(WORK_MAX, || scene.repaired.get());
    if kernel.violation().is_none() && !scene.repaired.get() {
        kernel
            .fail("live", format!("no end of work after {WORK_MAX}; {}", scene.model.under_way()));
    }
    let limit = kernel.now() + CALM;
    run.run(limit, || scene.audited.get());
    if kernel.violation().is_none() && !scene.audited.get() {
        let waited = kernel.now() - scene.repaired_at.get();
        let text = format!("{waited} after the last fault still at: {}", scene.model.under_way());
        kernel.fail("live", text);
    }
    if kernel.violation().is_none() {
        scene.model.check_histories(&kernel);
    }
    outcome(&scene)
}

/// As [`run_seed`], with every line of the trace.
pub fn run_seed_logged(config: &Config, seed: u64) -> SeedOutcome {
    let config = Config { trace_lines: u32::MAX, ..config.clone() };
    run_seed(&config, seed)
}

fn outcome(scene: &Rc<Scene>) -> SeedOutcome {
    let kernel = &scene.cluster.kernel;
    let mut counts = scene.counts.take();
    count_hooks(&scene.cluster.hooks, &mut counts);
    count_packets(&kernel.net.borrow(), &mut counts);
    let calls = scene.cluster.master_calls.get().by_kind();
    for (name, count) in calls.into_iter().filter(|(_, count)| *count > 0) {
        counts.add(Group::Message, name, count);
    }
    counts.add(Group::Fault, Fault::TornWrite.name(), scene.model.torn.get());
    let takeovers = scene.cluster.takeovers.get();
    if takeovers > 0 {
        counts.add(Group::Checked, "shards taken over", takeovers);
    }
    let moves = scene.cluster.racks.iter().map(|rack| rack.tier_moves.get()).sum();
    counts.add(Group::Message, "pages moved between tiers", moves);
    let failed = scene.cluster.registrations_failed.get();
    counts.add(Group::Fault, Fault::FailedRegistration.name(), failed);
    let lines = kernel.log.take().unwrap_or_default();
    let skipped = lines.len().saturating_sub(scene.config.trace_lines as usize);
    SeedOutcome {
        seed: scene.seed,
        trace_hash: kernel.trace_hash(),
        events: kernel.events(),
        operations: scene.model.operations.get(),
        virtual_time: kernel.now(),
        counts,
        failure: kernel.violation().map(Into::into),
        trace: lines.into_iter().skip(skipped).collect(),
    }
}

fn count_hooks(hooks: &Hooks, counts: &mut Counts) {
    for (rare, count) in Rare::ALL.into_iter().zip(hooks.rare_counts()) {
        counts.add(Group::Rare, rare.name(), count);
    }
    for (race, count) in Race::ALL.into_iter().zip(hooks.race_counts()) {
        counts.add(Group::Race, race.name(), count);
    }
}

/// Faults of the network are rates: what came of them.
fn count_packets(net: &Net, counts: &mut Counts) {
    let packets = net.counters();
    for (fault, count) in [
        (Fault::OneWayLoss, packets.lost),
        (Fault::Delay, packets.delayed),
        (Fault::Duplicate, packets.duplicated),
        (Fault::Reorder, packets.reordered),
    ] {
        counts.add(Group::Fault, fault.name(), count);
    }
    for (name, count) in [
        ("packets", packets.delivered),
        ("packets lost", packets.lost + packets.partitioned),
        ("packets sent again", packets.retried),
        ("connections ended", packets.qp_errors),
        ("operations executed", packets.executed),
    ] {
        counts.add(Group::Message, name, count);
    }
}
