//! The load of Rcmp's evaluation (§6.1) in performance mode: items of one size in pages that are
//! spread equally over the racks, drawn uniformly or by a zipfian, read, written or changed.

use crate::device::Profile;
use crate::histogram::Histogram;
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use crate::world::performance::{self, AHEAD_MAX, ClientNumber, Settings, Shape, World};
use crate::world::{Cluster, Ctx, Input, Path, SimHandle};
use rackpool_core::client::{CoupledOptions, LockRange, RelocationOutcome, Relocator};
use rackpool_core::constants::TRANSLATION_ENTRIES_DEFAULT;
use rackpool_core::policy::{AccessCosts, MigrationPolicy};
use rackpool_core::{GAddr, PageGeometry, RackId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The skew of YCSB and of the paper.
const ZIPF: f64 = 0.99;
/// Items of a page that are used: the simulator keeps what was stored to.
const ITEMS_PER_PAGE: u64 = 64;
/// How long a lock is waited for that no other client wants, ms.
const LOCK_WAIT_MS: u64 = 100;
/// Both halves of a client's write buffer: each has room for what one lock's holder writes.
const WRITE_BUFFER_BYTES: u32 = 128 << 10;
/// Places of a client's part of a page that are written under a lock.
const LOCKED_PLACES: u64 = 256;
/// Frames of a rack that no page has. Racks are full, as the paper's are (§6.2: each has the same
/// number of pages from the start), so that pages change places; what is under way needs a frame.
const SPARE_FRAMES: u32 = 4;
/// A handle tells its use after so many accesses.
const TELL_EVERY: u64 = 1024;

/// The first stream of random numbers that makes orders of items; below are the clients'.
const ORDERS: u64 = 1 << 32;

#[derive(Clone, Copy, Debug)]
pub struct RcmpLoad {
    pub racks: u32,
    pub clients: u32,
    /// Operations of each client. The second half is measured: by then pages are where they go.
    pub operations: u64,
    /// How other racks are reached.
    pub path: Path,
    pub item_bytes: u64,
    /// Pages of each rack with items.
    pub pages: u64,
    /// Whether items are drawn by a zipfian, each rack with favourites of its own; else uniformly.
    pub is_zipfian: bool,
    /// Operations that write, parts per million.
    pub write_ppm: u32,
    /// Operations that read and then write the same item, parts per million.
    pub change_ppm: u32,
    /// Accesses that forget their page first, so that the daemon is asked: parts per million.
    pub first_touch_ppm: u32,
    /// Writes under one lock of a range that no other client wants; 0: writes without locks, of any
    /// item. Locked ones are of the writer's own part of a page, none beside another.
    pub writes_a_lock: u64,
    /// What the locks are coupled with.
    pub coupled: CoupledOptions,
    /// Whether other racks are reached by calls that carry the data.
    pub is_by_calls: bool,
    /// The page size as a power of two.
    pub page_shift: u8,
    pub settings: Settings,
}

impl RcmpLoad {
    /// Two racks of 8 clients through their daemons, items of 64 bytes in pages of 2 MiB,
    /// half reads and half writes, uniform. Source: Rcmp §6.1.
    pub fn paper() -> RcmpLoad {
        RcmpLoad {
            racks: 2,
            clients: 8,
            operations: 3000,
            path: Path::Proxied,
            item_bytes: 64,
            pages: 64,
            is_zipfian: false,
            write_ppm: 500_000,
            change_ppm: 0,
            first_touch_ppm: 0,
            writes_a_lock: 0,
            coupled: uncoupled(),
            is_by_calls: false,
            page_shift: 21,
            settings: Settings::default(),
        }
    }
}

impl RcmpLoad {
    /// How often a client takes a lock instead of one operation, parts per million, so that the
    /// share of operations that write is `write_ppm`.
    fn section_ppm(&self) -> u32 {
        if self.writes_a_lock == 0 {
            return 0;
        }
        let (writes, reads) = (u64::from(self.write_ppm), 1_000_000 - u64::from(self.write_ppm));
        (writes * 1_000_000 / (writes + self.writes_a_lock * reads)) as u32
    }
}

/// No write buffer and no page cache.
pub fn uncoupled() -> CoupledOptions {
    CoupledOptions { buffered_write_bytes_max: 0, write_buffer_bytes: 0, page_cache_blocks: 0 }
}

/// A write buffer for pieces of up to so many bytes, and no page cache.
pub fn buffered(buffered_write_bytes_max: u32) -> CoupledOptions {
    let write_buffer_bytes = WRITE_BUFFER_BYTES;
    CoupledOptions { buffered_write_bytes_max, write_buffer_bytes, page_cache_blocks: 0 }
}

#[derive(Clone, Debug, Default)]
pub struct LoadStats {
    pub reads: Histogram,
    pub writes: Histogram,
    pub all: Histogram,
    /// Accesses that asked the own rack's daemon about a page of the own rack, ps.
    pub asked: Histogram,
    /// Operations a second of all clients together if each does as many: see [`same_work`].
    pub rate: f64,
    pub moves: u64,
}

impl LoadStats {
    /// The mean of all operations, ns.
    pub fn mean_ns(&self) -> f64 {
        self.all.mean().unwrap_or(0.0) / 1e3
    }
}

struct RcmpState {
    load: RcmpLoad,
    seed: u64,
    pages: RefCell<Vec<Vec<GAddr>>>,
    /// Cumulated shares of the items, if they are not alike.
    shares: Vec<f64>,
    /// The items of each rack, its favourite first.
    orders: Vec<Vec<u32>>,
    ready: Cell<u32>,
    ended: Cell<u32>,
    seen: RefCell<LoadStats>,
    /// Operations a second of each client, in the order in which they ended.
    rates: RefCell<Vec<f64>>,
}

impl RcmpState {
    fn items(&self) -> u64 {
        u64::from(self.load.racks) * self.load.pages * ITEMS_PER_PAGE
    }

    /// The address of an item for a client of a rack: favourites are scattered over all pages,
    /// other ones in each rack.
    fn draw(&self, rack: u32, rng: &mut Rng, page_bytes: u64) -> (GAddr, bool) {
        let items = self.items();
        let rank = if self.load.is_zipfian {
            let at = rng.below(1 << 53) as f64 / (1u64 << 53) as f64;
            self.shares.partition_point(|share| *share < at).min(items as usize - 1) as u64
        } else {
            rng.below(items)
        };
        let item = u64::from(self.orders[rack as usize][rank as usize]);
        let page = item % (u64::from(self.load.racks) * self.load.pages);
        let slot = item / (u64::from(self.load.racks) * self.load.pages);
        let home = page % u64::from(self.load.racks);
        let base = self.pages.borrow()[home as usize][(page / u64::from(self.load.racks)) as usize];
        let step = (page_bytes / ITEMS_PER_PAGE).max(self.load.item_bytes);
        let offset = (slot * step) % (page_bytes - self.load.item_bytes + 1) / 64 * 64;
        (GAddr(base.0 + offset), home == u64::from(rack))
    }
}

pub fn run(profile: &Profile, load: &RcmpLoad) -> Result<LoadStats, String> {
    let frames = load.pages as u32 + SPARE_FRAMES;
    let shape = Shape { racks: load.racks, page_shift: load.page_shift, frames, seed: 7 };
    let mut world = World::with(profile, shape, load.settings);
    let mut shared = RcmpState {
        load: *load,
        seed: 7,
        pages: RefCell::default(),
        shares: Vec::new(),
        orders: Vec::new(),
        ready: Cell::new(0),
        ended: Cell::new(0),
        seen: RefCell::default(),
        rates: RefCell::default(),
    };
    let items = shared.items() as u32;
    shared.orders = (0..load.racks).map(|rack| order(items, rack)).collect();
    if load.is_zipfian {
        shared.shares = shares(shared.items());
    }
    let shared = Rc::new(shared);
    for rack in 0..load.racks {
        let one = shared.clone();
        world.spawn(rack, move |ctx, cluster| async move {
            let shared = one;
            let mut handle = performance::open(&ctx, &cluster, rack, 1).await;
            let mut pages = Vec::new();
            for _ in 0..shared.load.pages {
                pages.push(performance::alloc_pages(&mut handle, 1).await);
            }
            shared.pages.borrow_mut().push(pages);
            handle.leave().await;
            shared.ready.set(shared.ready.get() + 1);
        });
        // One after the other, in the order of racks.
        let one = shared.clone();
        world.run(|| one.ready.get() == rack + 1)?;
    }
    shared.ready.set(0);
    let mut clients = Vec::new();
    for rack in 0..load.racks {
        for index in 0..load.clients {
            let shared = shared.clone();
            let number = ClientNumber { rack, index };
            let main = move |ctx, cluster| RcmpClient::run(ctx, cluster, shared, number);
            clients.push(match load.writes_a_lock {
                0 => world.spawn(rack, main),
                _ => world.spawn_on_stack(rack, main),
            });
        }
        if load.settings.migration != MigrationPolicy::Off {
            let shared = shared.clone();
            world.spawn(rack, move |ctx, cluster| mover(ctx, cluster, shared, rack));
        }
    }
    let (one, all) = (shared.clone(), clients.len() as u32);
    world.run(|| one.ready.get() == all)?;
    let kernel = world.cluster.kernel.clone();
    let start = kernel.now();
    clients.iter().for_each(|client| kernel.post(*client, start, Input::Tell(0)));
    world.run(|| one.ended.get() == all)?;
    let mut seen = shared.seen.borrow().clone();
    seen.rate = same_work(&shared.rates.borrow());
    Ok(seen)
}

/// The rate of all together if each does as much as the others: as many times their harmonic mean.
/// The sum would praise what gives one rack everything and starves the other.
pub fn same_work(rates: &[f64]) -> f64 {
    (rates.len() * rates.len()) as f64 / rates.iter().map(|rate| 1.0 / rate).sum::<f64>()
}

/// Cumulated shares of a zipfian.
fn shares(items: u64) -> Vec<f64> {
    let mut sum = 0.0;
    let mut shares: Vec<f64> = (1..=items)
        .map(|rank| {
            sum += (rank as f64).powf(-ZIPF);
            sum
        })
        .collect();
    shares.iter_mut().for_each(|share| *share /= sum);
    shares
}

/// All items in an order of the rack's own (Fisher and Yates).
fn order(items: u32, rack: u32) -> Vec<u32> {
    let mut rng = Rng::new(7, Purpose::Workload, ORDERS + u64::from(rack));
    let mut order: Vec<u32> = (0..items).collect();
    for left in (1..items as usize).rev() {
        order.swap(left, rng.below(left as u64 + 1) as usize);
    }
    order
}

async fn open(ctx: &Ctx, cluster: &Rc<Cluster>, rack: u32, path: Path) -> SimHandle {
    let translations = TRANSLATION_ENTRIES_DEFAULT;
    let (ctx, cluster) = (ctx.clone(), cluster.clone());
    let opened = SimHandle::open(ctx, cluster, RackId(rack as u16), path, translations).await;
    opened.expect("daemons run and have slots")
}

struct RcmpClient {
    shared: Rc<RcmpState>,
    rack: u32,
    number: u64,
    rng: Rng,
    handle: SimHandle,
    buffer: Vec<u8>,
    page_bytes: u64,
    done: u64,
    /// When the second half of them began, and how many there were then.
    begun: Option<(Ps, u64)>,
}

impl RcmpClient {
    async fn run(ctx: Ctx, cluster: Rc<Cluster>, shared: Rc<RcmpState>, number: ClientNumber) {
        let ClientNumber { rack, index } = number;
        let load = shared.load;
        let stream = u64::from(rack) * 1024 + u64::from(index);
        let mut handle = open(&ctx, &cluster, rack, load.path).await;
        handle.set_coupled(load.coupled);
        if load.is_by_calls {
            handle.reach_by_calls();
        }
        let mut client = RcmpClient {
            rack,
            number: u64::from(rack * load.clients + index),
            rng: Rng::new(shared.seed, Purpose::Workload, stream),
            buffer: vec![0; load.item_bytes as usize],
            page_bytes: handle.page_bytes(),
            handle,
            shared: shared.clone(),
            done: 0,
            begun: None,
        };
        client.begin(&ctx).await;
        while client.done < load.operations {
            if client.done >= load.operations / 2 {
                client.begun.get_or_insert((ctx.now(), client.done));
            }
            let before = client.done;
            let locks = load.section_ppm();
            match locks > 0 && client.rng.chance_ppm(locks) {
                true => client.section(&ctx).await,
                false => client.access(&ctx).await,
            }
            ctx.sync(AHEAD_MAX).await;
            let told = before / TELL_EVERY != client.done / TELL_EVERY;
            if load.settings.migration != MigrationPolicy::Off && told {
                client.handle.tell_use().await.expect("the daemon listens");
            }
        }
        ctx.sync(Ps::ZERO).await;
        let (at, before) = client.begun.expect("there is more than one operation");
        let seconds = (ctx.now() - at).as_ns_f64() / 1e9;
        shared.rates.borrow_mut().push((client.done - before) as f64 / seconds);
        shared.ended.set(shared.ended.get() + 1);
        // It stays, as clients do; ending is not what is measured.
        while ctx.recv(None).await.is_some() {}
    }

    /// Touches every page once and waits for the others.
    async fn begin(&mut self, ctx: &Ctx) {
        let all: Vec<GAddr> = self.shared.pages.borrow().iter().flatten().copied().collect();
        for addr in all {
            self.handle.read(addr, &mut self.buffer[..8]).await.expect("the page is there");
        }
        ctx.sync(Ps::ZERO).await;
        self.shared.ready.set(self.shared.ready.get() + 1);
        self.handle.told(ctx.now() + Ps::ms(1_000_000_000)).await.expect("work begins");
    }

    /// One operation without a lock.
    async fn access(&mut self, ctx: &Ctx) {
        let load = self.shared.load;
        let (addr, is_own) = self.shared.draw(self.rack, &mut self.rng, self.page_bytes);
        let asks = self.rng.chance_ppm(load.first_touch_ppm);
        if asks {
            self.handle.forget(addr);
        }
        let start = ctx.now();
        let writes = self.rng.chance_ppm(load.write_ppm) && load.writes_a_lock == 0;
        let changes = self.rng.chance_ppm(load.change_ppm);
        if changes || !writes {
            self.handle.read(addr, &mut self.buffer).await.expect("the page is there");
        }
        if changes || writes {
            self.buffer[..8].copy_from_slice(&self.done.to_le_bytes());
            self.handle.write(addr, &self.buffer).await.expect("the page is there");
        }
        let took = (ctx.now() - start).0;
        self.saw(took, writes || changes);
        if asks && is_own && self.begun.is_some() {
            self.shared.seen.borrow_mut().asked.record(took);
        }
    }

    /// Takes a lock of its own part of a page, writes, and gives it back.
    async fn section(&mut self, ctx: &Ctx) {
        let load = self.shared.load;
        let (drawn, _) = self.shared.draw(self.rack, &mut self.rng, self.page_bytes);
        let geometry = PageGeometry::new(load.page_shift).expect("a page size");
        let page = drawn.0 - geometry.offset(drawn);
        let parts = u64::from(load.racks * load.clients);
        let places = (self.page_bytes / parts / (2 * load.item_bytes)).min(LOCKED_PLACES);
        let bytes = places * 2 * load.item_bytes;
        let first = GAddr(page + self.number * bytes);
        let range = LockRange::of(geometry, first, bytes).expect("a part of a page");
        let guard = self.handle.lock(range, true, LOCK_WAIT_MS).await.expect("it is free");
        let from = self.rng.below(places);
        for index in 0..load.writes_a_lock {
            let start = ctx.now();
            // Out of order and every other place, so that no two writes become one piece.
            let place = (from + index * 37) % places;
            let addr = GAddr(first.0 + place * 2 * load.item_bytes);
            self.buffer[..8].copy_from_slice(&self.done.to_le_bytes());
            self.handle.write(addr, &self.buffer).await.expect("the lock is held");
            self.saw((ctx.now() - start).0, true);
            ctx.sync(AHEAD_MAX).await;
        }
        self.handle.unlock(guard).expect("the lock is held and all is at home");
    }

    fn saw(&mut self, took: u64, writes: bool) {
        self.done += 1;
        if self.begun.is_some() {
            let mut seen = self.shared.seen.borrow_mut();
            seen.all.record(took);
            match writes {
                true => seen.writes.record(took),
                false => seen.reads.record(took),
            }
        }
    }
}

/// Moves what the rack wants, as the daemon's worker does, at a pace of its own.
async fn mover(ctx: Ctx, cluster: Rc<Cluster>, shared: Rc<RcmpState>, rack: u32) {
    let mut handle = open(&ctx, &cluster, rack, Path::OneSided).await;
    let mut relocator = Relocator::default();
    loop {
        match handle.perform(|id| relocator.step(id, false)).await {
            Ok(RelocationOutcome::Unmeasured(other, there)) => {
                let own = shared.pages.borrow()[rack as usize][0];
                relocator.measured(other, measure(&ctx, &mut handle, own, there).await);
            }
            Ok(RelocationOutcome::Pulled(report, None)) if report.moved_bytes > 0 => {
                shared.seen.borrow_mut().moves += 1;
            }
            // Nothing to do, or left where it is.
            _ => ctx.sleep(Ps::us(20)).await,
        }
    }
}

/// What accesses and copies cost here.
async fn measure(ctx: &Ctx, handle: &mut SimHandle, own: GAddr, there: GAddr) -> AccessCosts {
    let mut line = [0; 64];
    let mut times = [0; 2];
    for (time, addr) in times.iter_mut().zip([own, there]) {
        for _ in 0..3 {
            let start = ctx.now();
            // A page that is gone by now was measured before, or will be.
            let _ = handle.read(addr, &mut line).await;
            *time = (ctx.now() - start).as_ns();
        }
    }
    let [local_ns, remote_ns] = times.map(|time| time.max(1));
    AccessCosts {
        local_ns,
        remote_ns: remote_ns.max(local_ns + 1),
        round_trip_ns: 2 * remote_ns,
        bytes_per_second: 12_500_000_000,
    }
}
