//! One seed: a cluster with clients at work, faults by the nemesis, checks while it runs, and an
//! audit when all is quiet.

use super::kernel::{Clock, ControlCosts, HostId, Kernel, Loop, ProcessId};
use super::rack::Rack;
use super::sweeping::Sweeper;
use super::table::{TableReport, Tables};
use super::workload::{self, Fate, Model};
use super::{Cluster, Path, StepCosts, audit, nemesis, shards};
use crate::check::conserve::{FrameAudit, frames_of};
use crate::device::Profile;
use crate::mem::{Coherence, Cpu, Hooks, HostCache, SwitchRates, Violations};
use crate::net::{Net, NetFaults};
use crate::rng::{Purpose, Rng};
use crate::run::{Config, Counts, Fault, Group, SeedOutcome};
use crate::time::Ps;
use rackpool_core::layout::{FrameState, RegionLayout};
use rackpool_core::master::directory::StoredHome;
use rackpool_core::policy::{self, BalanceParams, CostParams, PaperParams};
use rackpool_core::probe::{Mutation, Race, Rare};
use rackpool_core::wire::Resolved;
use rackpool_core::{GAddr, PageGeometry, PageId, RackId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Stack of a process, bytes; pages of it appear when touched.
const STACK_BYTES: usize = 256 << 10;
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

/// A client place: one process at a time.
struct Place {
    rack: usize,
    host: HostId,
    path: Path,
    process: Option<ProcessId>,
    /// It finished what it had.
    done: bool,
}

/// What the processes of a scenario share.
pub struct Scene {
    pub seed: u64,
    /// What the run was told.
    pub config: Config,
    pub cluster: Rc<Cluster>,
    /// What the clients did and must find.
    pub model: Model,
    /// The table that clients use beside, if the run has one.
    pub tables: Option<&'static dyn Tables>,
    places: RefCell<Vec<Place>>,
    counts: RefCell<Counts>,
    /// The processes that keep replicas: in which rack, of which home's pages.
    pub(super) keepers: RefCell<BTreeMap<(usize, RackId), ProcessId>>,
    /// The processes that sweep, by rack.
    pub(super) sweepers: RefCell<BTreeMap<usize, Sweeper>>,
    /// Whether a rack was removed, and its clients with it: what they held in other racks is due in
    /// no rack.
    pub removed: Cell<bool>,
    /// The rack that an operator drains now.
    pub drained: Cell<Option<usize>>,
    /// Racks that left or were given up: another region may have them from then on.
    pub opened: RefCell<BTreeSet<usize>>,
    set_up: Cell<bool>,
    repaired: Cell<bool>,
    repaired_at: Cell<Ps>,
    audited: Cell<bool>,
}

impl Scene {
    /// Whether the clients have done enough.
    pub fn is_over(&self) -> bool {
        self.model.operations.get() >= u64::from(self.config.operations)
    }

    /// Whether the shared objects are there.
    pub fn is_set_up(&self) -> bool {
        self.set_up.get()
    }

    /// The shared objects are there.
    pub fn set_up(self: &Rc<Self>) {
        self.set_up.set(true);
        // Not before: a table that fails again and again to be made leaves no room for itself.
        if self.config.faults.has(Fault::RareBranches) {
            self.cluster.hooks.draw_rares();
        }
        let places = self.places.borrow().len();
        (0..places).for_each(|place| self.start_client(place));
        self.keep_some();
        self.start_sweepers();
    }

    /// Whether an operator drains a rack now.
    pub fn is_drained_anywhere(&self) -> bool {
        self.drained.get().is_some()
    }

    /// A rack has left: what still runs on it ends, and its region is removed.
    pub fn remove_rack(&self, rack: usize) {
        self.cluster.kernel.say(|| format!("rack {rack} has left: its region is removed"));
        self.end_rack(rack);
        self.removed.set(true);
        self.cluster.racks[rack].make_region();
    }

    /// The daemon and all clients of a rack end.
    fn end_rack(&self, rack: usize) {
        self.kill_daemon(rack);
        self.end_keepers(rack);
        for place in self.places.borrow_mut().iter_mut().filter(|place| place.rack == rack) {
            if let Some(process) = place.process.take()
                && self.cluster.kernel.is_alive(process)
            {
                self.cluster.kernel.kill(process);
                self.model.on_killed(process, self.cluster.kernel.now());
            }
        }
    }

    /// Whether a page lives on a region that is gone, known to the master or not.
    pub fn is_lost(&self, addr: GAddr) -> bool {
        if self.model.nothing_lost() {
            return false;
        }
        let state = self.cluster.stored_state();
        let page = self.cluster.racks[0].layout.pages.page(addr);
        let Some(home) = state.directory().get(page) else { return true };
        let region = self.cluster.rack_of(home.rack).region.borrow().id;
        state.region_id(home.rack) != Some(region)
            || matches!(state.resolve(page), Resolved::Lost(_))
    }

    /// `kill -9` of a rack's daemon.
    pub fn kill_daemon(&self, rack: usize) {
        self.model.on_daemon_killed();
        self.cluster.kill_daemon(rack);
        // They are threads of its process; one that has a process of its own does no harm.
        if rack.is_multiple_of(2) {
            self.end_keepers(rack);
        }
        self.end_sweeper(rack);
    }

    pub fn count_fault(&self, fault: Fault) {
        self.counts.borrow_mut().fault(fault);
    }

    /// Counts an operation by its result.
    pub fn count_operation(&self, name: &'static str, result: &'static str) {
        self.counts.borrow_mut().add_result(Group::Operation, name, result, 1);
    }

    /// Counts something that a checker looked at.
    pub fn count_checked(&self, name: &'static str) {
        self.counts.borrow_mut().add(Group::Checked, name, 1);
    }

    /// Counts what the table was made of at its end.
    pub fn count_table(&self, report: &TableReport) {
        let mut counts = self.counts.borrow_mut();
        for (name, count) in [
            ("tables", 1),
            ("table keys", report.keys),
            ("table splits", report.splits),
            ("table splits left by the dead", report.splits_left),
            ("table words retired", report.words_retired),
        ] {
            counts.add(Group::Checked, name, count);
        }
    }

    pub fn pick_client(&self, rng: &mut Rng) -> Option<usize> {
        let places = self.places.borrow();
        let place = rng.below(places.len() as u64) as usize;
        let process = places[place].process?;
        (!places[place].done && self.cluster.kernel.is_alive(process)).then_some(place)
    }

    /// Whether some client maps the memory of other racks, or of other shards.
    pub fn has_mapped(&self) -> bool {
        if self.cluster.racks.iter().any(|rack| rack.id.is_divided()) {
            return true;
        }
        self.places.borrow().iter().any(|place| place.path == Path::Mapped)
    }

    /// The page that a process is seen to announce.
    pub fn announced(&self, process: ProcessId) -> Option<u64> {
        let racks = self.cluster.racks.iter();
        let seen = |rack: &Rc<Rack>| Some((rack.id, rack.announced(process)?));
        let (rack, frame) = racks.clone().find_map(seen)?;
        let state = self.cluster.stored_state();
        let there = |home: &StoredHome| home.rack == rack && home.frame.0 == frame;
        state.directory().iter().find(|(_, home)| there(home)).map(|(page, _)| page.0)
    }

    /// The process in a place.
    pub fn process_of(&self, place: usize) -> ProcessId {
        self.places.borrow()[place].process.expect("it was picked alive")
    }

    /// Starts a client in a place.
    pub fn start_client(self: &Rc<Self>, place: usize) {
        let (rack, host, path) = {
            let places = self.places.borrow();
            (places[place].rack, places[place].host, places[place].path)
        };
        let id = self.cluster.racks[rack].id;
        let cpu = self.cluster.cpu(host);
        let scene = self.clone();
        let id = self.cluster.kernel.spawn(format!("client {place}"), host, cpu, |ctx| {
            workload::client(ctx, scene, place, id, path)
        });
        self.places.borrow_mut()[place].process = Some(id);
    }

    /// A client has given back what it had.
    pub fn client_done(&self, place: usize) {
        self.places.borrow_mut()[place].done = true;
    }

    /// `kill -9` of a client; another one takes its place.
    pub fn kill_client(self: &Rc<Self>, place: usize) {
        let process = self.process_of(place);
        self.cluster.kernel.kill(process);
        self.model.on_killed(process, self.cluster.kernel.now());
        self.start_client(place);
    }

    /// A rack's host loses its power: everything on it ends, its memory is gone.
    pub fn lose_power(&self, rack: usize) {
        self.cluster.kernel.say(|| format!("rack {rack} loses its power"));
        self.end_rack(rack);
        let (kernel, state) = (&self.cluster.kernel, self.cluster.stored_state());
        let id = self.cluster.racks[rack].id;
        let geometry = self.cluster.racks[rack].layout.pages;
        let moving = self.moving_pages();
        let of_page = |page: u64| match state.directory().get(PageId(page)) {
            _ if moving.contains(&page) => Fate::Unknown,
            Some(home) if home.rack == id => Fate::Gone,
            _ => Fate::Safe,
        };
        // What can still be done with a run that is lost in part is not known.
        let fate = |addr: u64, bytes: u64| {
            let (first, last) = (GAddr(addr), GAddr(addr + bytes - 1));
            let first = geometry.page(first).0;
            let mut pages = first..=geometry.page(last).0;
            let same = pages.all(|page| of_page(page) == of_page(first));
            if same { of_page(first) } else { Fate::Unknown }
        };
        self.model.on_power_lost(rack, fate, kernel.now());
        self.cluster.racks[rack].make_region();
    }

    /// An allocation with an answer that no client has taken: it may come back, so its page must
    /// stay.
    pub fn untaken(&self, rng: &mut Rng) -> Option<GAddr> {
        let all: Vec<u64> =
            self.cluster.racks.iter().flat_map(|rack| rack.untaken_allocations()).collect();
        (!all.is_empty()).then(|| GAddr(all[rng.below(all.len() as u64) as usize]))
    }

    /// Pages that are on their way from rack to rack.
    fn moving_pages(&self) -> BTreeSet<u64> {
        let mut moving = BTreeSet::new();
        for rack in &self.cluster.racks {
            let region = rack.region.borrow();
            let word = |offset| region.word(offset);
            let frames =
                frames_of(&rack.layout, word, |offset| region.table.peek(offset), |_| None);
            let is_moving = |frame: &FrameAudit| {
                matches!(frame.state, FrameState::Arriving | FrameState::Departing)
            };
            let frames = frames.into_iter().flatten().filter(is_moving);
            moving.extend(frames.map(|frame| frame.page));
        }
        moving
    }

    /// The clients of a rack come back.
    pub fn restart_clients_of(self: &Rc<Self>, rack: usize) {
        let places = self.places.borrow().len();
        for place in 0..places {
            let gone = {
                let places = self.places.borrow();
                places[place].rack == rack && places[place].process.is_none()
            };
            if gone {
                self.start_client(place);
            }
        }
    }

    /// No fault any more: what is down comes up, what was cut off is reached, what was stopped goes
    /// on.
    pub fn repair(self: &Rc<Self>) {
        let kernel = &self.cluster.kernel;
        kernel.heal();
        self.cluster.registration_fails_ppm.set(0);
        self.cluster.kernel.set_ends_lost_ppm(0);
        self.cluster.hooks.calm();
        kernel.with_net(|net, _| net.set_faults(NetFaults::none()));
        for (index, rack) in self.cluster.racks.iter().enumerate() {
            rack.blocks_free.set(u64::MAX / 2);
            self.cluster.start_daemon(index);
        }
        if !kernel.is_alive(self.cluster.master.get()) {
            self.cluster.start_master();
        }
        let places = self.places.borrow().len();
        for place in 0..places {
            if self.places.borrow()[place].process.is_none() {
                self.start_client(place);
            }
        }
        self.repaired_at.set(kernel.now());
        self.repaired.set(true);
        kernel.say(|| "everything is repaired".into());
    }

    /// Whether all clients have finished and nothing is broken any more.
    pub fn is_calm(&self) -> bool {
        let done = self.repaired.get() && self.places.borrow().iter().all(|place| place.done);
        done && !self.has_keepers() && !self.has_sweepers()
    }

    pub fn audit_done(&self) {
        self.audited.set(true);
    }
}

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
struct Shape {
    racks: u32,
    clients: u32,
    page_shift: u8,
    frames: u32,
    switch: SwitchRates,
}

impl Shape {
    fn new(config: &Config, seed: u64, has_table: bool) -> Shape {
        let mut rng = Rng::new(seed, Purpose::Shape, 0);
        let racks = config.racks.unwrap_or(rng.between(2, 4) as u32);
        Shape {
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
    let shape = Shape::new(config, seed, tables.is_some());
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
    let layout = RegionLayout { pages, frame_count: shape.frames };
    let ids = match is_software {
        true => (0..shape.racks).map(|rack| RackId(rack as u16)).collect(),
        false => shards::ids(seed, shape.racks),
    };
    let rack =
        |(id, host): (RackId, &HostId)| Rack::new(id, *host, layout, &kernel, true, coherence);
    let racks: Vec<Rc<Rack>> = ids.into_iter().zip(&hosts).map(|one| Rc::new(rack(one))).collect();
    let hooks = Hooks::new(seed);
    hooks.set_mutation(config.mutation);
    let violations = kernel.violations().clone();
    let make_cpu = cpus(seed, (&hosts, shape.racks + 1), &hooks, shape.switch, &violations);
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
        model: Model::default(),
        tables,
        counts: RefCell::default(),
        keepers: RefCell::default(),
        sweepers: RefCell::default(),
        removed: Cell::default(),
        drained: Cell::default(),
        opened: RefCell::default(),
        set_up: Cell::new(false),
        repaired: Cell::new(false),
        repaired_at: Cell::new(Ps::ZERO),
        audited: Cell::new(false),
    })
}

/// Where clients run, and how they reach other racks. Of racks with two hosts on either.
fn places(rng: &mut Rng, shape: &Shape, hosts: &[HostId], is_software: bool) -> Vec<Place> {
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
    (hosts, daemons): (&[HostId], u32),
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
    let mut run = Loop::new(kernel.clone(), Some(STACK_BYTES));
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
    for (name, count) in scene.cluster.master_calls.borrow().iter() {
        counts.add(Group::Message, name, *count);
    }
    counts.add(Group::Fault, Fault::TornWrite.name(), scene.model.torn.get());
    let takeovers = scene.cluster.takeovers.get();
    if takeovers > 0 {
        counts.add(Group::Checked, "shards taken over", takeovers);
    }
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
