//! What accesses and pages cost as the cluster grows: the same load on clusters of more and more
//! racks, with counts of messages, connections and metadata beside latencies. The load of a rack
//! stays the same, so whatever grows with the number of racks shows.
//!
//! Not here: the real master serves a bounded number of connections
//! (`MASTER_CONNECTIONS_MAX`), the simulated one as many as come.

#![expect(clippy::disallowed_methods, reason = "the table says how long the simulation took")]

use super::load::{AccessKind, ClusterLoad, PhaseCounts, Prepared};
use super::performance::{self, Shape};
use crate::device::Profile;
use crate::report::{Cell as Field, Table};
use crate::time::Ps;
use rackpool_core::client::Placement;
use rackpool_core::constants::MASTER_CONNECTIONS_MAX;
use rackpool_core::layout::{AllocationKind, RegionLayout};
use rackpool_core::{PageGeometry, RackId};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

pub const RACKS_DEFAULT: [u32; 6] = [2, 8, 32, 128, 512, 1024];
/// Pages that one client allocates, moves to another rack and frees, one after the other.
const MOVED: u32 = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Numbers of racks, each at least 2, at most 1024.
    pub racks: Vec<u32>,
    pub clients: u32,
    pub operations: u32,
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { racks: RACKS_DEFAULT.to_vec(), clients: 64, operations: 200, seed: 1 }
    }
}

#[derive(Clone, Debug)]
pub struct Point {
    pub racks: u32,
    pub operations: u64,
    /// Latencies and messages of each [`AccessKind`].
    pub kinds: [KindPoint; 4],
    pub setup: PhaseCounts,
    pub work: PhaseCounts,
    /// Links of one client, on average, the own rack's among them.
    pub links_per_client: f64,
    /// Clients of other racks that one rack serves, on average.
    pub remote_clients_per_rack: f64,
    /// Bytes that a client is told of racks, for each other rack that it connects to.
    pub rack_bytes_per_link: f64,
    /// Bytes of a region's private and table sections for each page frame.
    pub region_bytes_per_page: f64,
    /// Bytes of the stored directory and registry for each page that exists.
    pub master_bytes_per_page: f64,
    /// What a page that moves costs.
    pub moved: PageCost,
    /// What a page that is allocated and given back costs.
    pub freed: PageCost,
    /// Most resident memory that the simulating process had so far, bytes; 0 if the system does
    /// not say.
    pub host_bytes: u64,
    /// Processor time of the master while the clients worked, seconds.
    pub master_busy_seconds: f64,
    /// Real time of this size.
    pub host_seconds: f64,
    /// See [`Prepared::fingerprint`].
    pub fingerprint: u64,
}

/// What is done for a page, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PageCost {
    /// Barriers in the rack that takes it from its users: the invalidations.
    pub barriers: f64,
    /// Cells looked at there.
    pub cells: f64,
    pub master_calls: f64,
    pub time: Ps,
}

/// One kind of access at one size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KindPoint {
    pub count: u64,
    pub p50: Option<u64>,
    /// 99th percentile, ps.
    pub p99: Option<u64>,
    /// Calls to the master for each access.
    pub master_calls: f64,
    /// Ring messages for each access, request and answer.
    pub ring_messages: f64,
}

pub fn point(profile: &Profile, options: &Options, racks: u32) -> Result<Point, String> {
    point_told(profile, options, racks, &mut |_| {})
}

/// One size; `told` hears of each phase.
fn point_told(
    profile: &Profile,
    options: &Options,
    racks: u32,
    told: &mut dyn FnMut(&str),
) -> Result<Point, String> {
    let start = Instant::now();
    let load = ClusterLoad::mixed(options.clients, options.operations);
    let load = ClusterLoad { pages: 8, partners: 2, ..load };
    let frames = load.pages + 2 * MOVED;
    let shape = Shape { racks, page_shift: 21, frames, seed: options.seed };
    told(&format!("{racks} racks: {} clients connect", racks * options.clients));
    let mut run = Prepared::new(profile, shape, load)?;
    let pages = u64::from(racks * load.pages);
    let master_bytes = run.cluster().master_bytes();
    let accesses = u64::from(racks * options.clients) * u64::from(options.operations);
    told(&format!("{racks} racks: {accesses} accesses"));
    run.run()?;
    let (work, fingerprint) = (run.work(), run.fingerprint());
    let kinds = [
        AccessKind::OwnWarm,
        AccessKind::OwnFirst,
        AccessKind::RemoteWarm,
        AccessKind::RemoteFirst,
    ];
    let kinds = kinds.map(|kind| kind_point(&run, kind));
    let master_busy_seconds = master_busy_seconds(profile, &work);
    let moved = page_cost(&mut run, true)?;
    let freed = page_cost(&mut run, false)?;
    let clients = f64::from(racks * options.clients);
    let links = run.links() as f64;
    let layout = RegionLayout {
        pages: PageGeometry::new(shape.page_shift).expect("a page size"),
        frame_count: frames,
    };
    Ok(Point {
        racks,
        operations: run.operations(),
        kinds,
        setup: run.setup().clone(),
        work,
        links_per_client: links / clients,
        remote_clients_per_rack: (links - clients) / f64::from(racks),
        rack_bytes_per_link: run.setup().rack_answer_bytes as f64 / (links - clients),
        region_bytes_per_page: region_bytes(layout),
        master_bytes_per_page: master_bytes as f64 / pages as f64,
        moved,
        freed,
        master_busy_seconds,
        host_bytes: host_bytes(),
        host_seconds: start.elapsed().as_secs_f64(),
        fingerprint,
    })
}

fn kind_point(run: &Prepared, kind: AccessKind) -> KindPoint {
    let seen = run.seen(kind);
    let count = seen.latency.count();
    let each = |sum: u64| sum as f64 / count.max(1) as f64;
    KindPoint {
        count,
        p50: seen.latency.percentile(500_000),
        p99: seen.latency.percentile(990_000),
        master_calls: each(seen.master_calls),
        ring_messages: 2.0 * each(seen.daemon_requests),
    }
}

/// Processor time that the master's requests took.
fn master_busy_seconds(profile: &Profile, work: &PhaseCounts) -> f64 {
    let each = profile.cpu.master_request + profile.tcp.receive + profile.tcp.send;
    let calls: u64 = work.master_calls.values().sum();
    each.times(calls).as_ns_f64() / 1e9
}

/// What a page adds to a region's sections, without what any region has.
fn region_bytes(layout: RegionLayout) -> f64 {
    let bytes = |layout: RegionLayout| layout.private_bytes() + layout.table_bytes();
    let more = RegionLayout { frame_count: layout.frame_count + (1 << 20), ..layout };
    (bytes(more) - bytes(layout)) as f64 / f64::from(1 << 20)
}

/// Moves pages from rack 0 to rack 1, or allocates and frees some, while all clients are there.
fn page_cost(run: &mut Prepared, moves: bool) -> Result<PageCost, String> {
    let rack = run.cluster().racks[0].clone();
    let names: &[&str] =
        if moves { &["begin_move", "move_page"] } else { &["commit_pages", "remove_pages"] };
    let calls = |run: &Prepared| -> u64 {
        let calls = run.cluster().master_calls.get().by_kind();
        calls.iter().filter(|(name, _)| names.contains(name)).map(|(_, count)| count).sum()
    };
    let (invalidations, calls_before) = (rack.invalidations.get(), calls(run));
    let (done, time) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(Ps::ZERO)));
    let (told, spent) = (done.clone(), time.clone());
    run.world().spawn(0, move |ctx, cluster| async move {
        let mut handle = performance::open(&ctx, &cluster, 0, 1).await;
        let bytes = handle.page_bytes();
        let mut addrs = Vec::new();
        for _ in 0..MOVED {
            let since = ctx.now();
            let addr = handle
                .alloc(bytes, Placement::Local, AllocationKind::User)
                .await
                .expect("there is room");
            if moves {
                let since = ctx.now();
                handle.migrate(addr, RackId(1)).await.expect("the page may move");
                spent.set(spent.get() + (ctx.now() - since));
                addrs.push(addr);
            } else {
                handle.free(addr, bytes).await.expect("it was just allocated");
                spent.set(spent.get() + (ctx.now() - since));
            }
        }
        // What is waited for before a frame is used again is looked at by the clock.
        ctx.sleep(Ps::ms(20)).await;
        told.set(true);
        for addr in addrs {
            handle.free(addr, bytes).await.expect("it is allocated");
        }
        handle.leave().await;
    });
    run.world().run(|| done.get())?;
    let after = rack.invalidations.get();
    let each = |count: u64| count as f64 / f64::from(MOVED);
    Ok(PageCost {
        barriers: each(after.0 - invalidations.0),
        cells: each(after.1 - invalidations.1),
        master_calls: each(calls(run) - calls_before),
        time: Ps(time.get().0 / u64::from(MOVED)),
    })
}

/// The most resident memory that this process had.
fn host_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// All sizes as tables. `told` hears what is being simulated.
pub fn scale(
    profile: &Profile,
    options: &Options,
    told: &mut dyn FnMut(&str),
) -> Result<Vec<Table>, String> {
    let mut points = Vec::new();
    for racks in &options.racks {
        points.push(point_told(profile, options, *racks, told)?);
    }
    Ok(tables(profile, options, &points))
}

fn tables(profile: &Profile, options: &Options, points: &[Point]) -> Vec<Table> {
    let mut tables = vec![
        of_accesses(points),
        of_latencies(points),
        of_master(points),
        of_metadata(points),
        of_simulation(points),
    ];
    tables[0].note(profile.label());
    tables[0].note(format!(
        "{} clients a rack; each works on its own rack and on two neighbours, half of its \
         accesses there, half of all writes, a tenth first touches",
        options.clients
    ));
    tables
}

fn of_accesses(points: &[Point]) -> Table {
    let mut table = Table::new(
        "scale",
        "Messages of one access as the cluster grows",
        &[
            ("racks", ""),
            ("accesses", ""),
            ("master, own rack", "per access"),
            ("master, other rack, warm", "per access"),
            ("master, other rack, first touch", "per access"),
            ("ring, warm", "per access"),
            ("ring, first touch", "per access"),
            ("fabric", "per access"),
            ("links of a client", "per client"),
            ("remote clients of a rack", "per rack"),
        ],
    );
    for point in points {
        let [own, own_first, remote, remote_first] = point.kinds;
        table.row([
            u64::from(point.racks).into(),
            point.operations.into(),
            own.master_calls.max(own_first.master_calls).into(),
            remote.master_calls.into(),
            remote_first.master_calls.into(),
            own.ring_messages.max(remote.ring_messages).into(),
            remote_first.ring_messages.max(own_first.ring_messages).into(),
            (point.work.fabric_operations as f64 / point.operations as f64).into(),
            point.links_per_client.into(),
            point.remote_clients_per_rack.into(),
        ]);
    }
    table.note("Ring messages are requests and answers; fabric operations are means of all.");
    table
}

fn of_latencies(points: &[Point]) -> Table {
    let columns = [
        ("racks", ""),
        ("own rack p50", "ns"),
        ("own rack p99", "ns"),
        ("own first touch p50", "ns"),
        ("own first touch p99", "ns"),
        ("other rack p50", "ns"),
        ("other rack p99", "ns"),
        ("other first touch p50", "ns"),
        ("other first touch p99", "ns"),
    ];
    let mut table = Table::new("scale_latency", "Latency as the cluster grows", &columns);
    for point in points {
        let ns = |ps: Option<u64>| Field::from(ps.map(|ps| ps as f64 / 1e3));
        let times = point.kinds.iter().flat_map(|kind| [ns(kind.p50), ns(kind.p99)]);
        table.row([Field::from(u64::from(point.racks))].into_iter().chain(times));
    }
    table.note("All clients work at the same time, without pauses: queues are part of it.");
    table
}

fn of_master(points: &[Point]) -> Table {
    let mut table = Table::new(
        "scale_master",
        "Calls to the master as the cluster grows",
        &[
            ("racks", ""),
            ("connections", ""),
            ("joins", ""),
            ("racks asked for", ""),
            ("told of one", "B"),
            ("lists of all racks", ""),
            ("resolves while connecting", ""),
            ("resolves while working", ""),
            ("heartbeats while working", ""),
            ("others while working", ""),
            ("busy while working", "%"),
        ],
    );
    for point in points {
        let of = |totals: &PhaseCounts, name| totals.master_calls.get(name).copied().unwrap_or(0);
        let joins = of(&point.setup, "join_client") + of(&point.setup, "join_daemon");
        let all: u64 = point.work.master_calls.values().sum();
        let known = of(&point.work, "resolve") + of(&point.work, "heartbeat");
        let busy = point.master_busy_seconds / (point.work.time.as_ns_f64() / 1e9);
        table.row([
            u64::from(point.racks).into(),
            joins.into(),
            joins.into(),
            of(&point.setup, "rack").into(),
            point.rack_bytes_per_link.into(),
            of(&point.setup, "racks").into(),
            of(&point.setup, "resolve").into(),
            of(&point.work, "resolve").into(),
            of(&point.work, "heartbeat").into(),
            (all - known).into(),
            (100.0 * busy).into(),
        ]);
    }
    table.note(format!(
        "A real master serves {MASTER_CONNECTIONS_MAX} connections; the simulated one serves all."
    ));
    table
}

fn of_metadata(points: &[Point]) -> Table {
    let mut table = Table::new(
        "scale_pages",
        "What a page costs as the cluster grows",
        &[
            ("racks", ""),
            ("region metadata of a page", "B"),
            ("stored at the master", "B"),
            ("invalidations", "per migration"),
            ("cells looked at", "per migration"),
            ("master calls", "per migration"),
            ("time", "ns per migration"),
            ("invalidations", "per page freed"),
            ("cells looked at", "per page freed"),
            ("master calls, allocate and free", "per page"),
        ],
    );
    for point in points {
        table.row([
            u64::from(point.racks).into(),
            point.region_bytes_per_page.into(),
            point.master_bytes_per_page.into(),
            point.moved.barriers.into(),
            point.moved.cells.into(),
            point.moved.master_calls.into(),
            point.moved.time.as_ns_f64().into(),
            point.freed.barriers.into(),
            point.freed.cells.into(),
            point.freed.master_calls.into(),
        ]);
    }
    table.note(
        "An invalidation is one barrier in the rack that takes the page from its users, who find \
         out when they use it next: no message goes to any of them, however many they are.",
    );
    table.note("What the master stores includes one entry for each rack.");
    table
}

fn of_simulation(points: &[Point]) -> Table {
    let mut table = Table::new(
        "scale_simulation",
        "What the simulation took",
        &[
            ("racks", ""),
            ("clients", ""),
            ("virtual time", "ns"),
            ("events", ""),
            ("real time", "s"),
            ("most resident memory so far", "B"),
        ],
    );
    for point in points {
        table.row([
            u64::from(point.racks).into(),
            (point.setup.master_calls.get("join_client").copied().unwrap_or(0)
                - u64::from(point.racks))
            .into(),
            (point.setup.time + point.work.time).as_ns_f64().into(),
            (point.setup.events + point.work.events).into(),
            point.host_seconds.into(),
            point.host_bytes.into(),
        ]);
    }
    table
}
