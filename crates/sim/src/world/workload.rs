//! What clients do: a client works until it is told that it is enough. What all of them must find
//! is in [`model`].

mod asking;
mod fetching;
mod locking;
pub mod model;
mod moving;
mod naming;
mod others;
mod range_model;
mod ranges;
mod set_up;
mod table;
mod wishes;

pub use set_up::set_up;

use super::handle::{Path, SimHandle};
use super::kernel::Ctx;
use super::scene::Scene;
use crate::check::Violation;
use crate::check::bytes::{Backing, Refusal};
use crate::check::linear::{Event, Times};
use crate::check::words::WordOp;
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use model::{Object, UnderWay, times_of};
use naming::Name;
use rackpool_core::client::Placement;
use rackpool_core::layout::AllocationKind;
use rackpool_core::tier::Tier;
use rackpool_core::{Error, GAddr, RackId, Result};
use std::rc::Rc;
use table::TableSeat;

/// Objects of one client at most.
const OBJECTS_MAX: usize = 6;

pub struct Worker {
    ctx: Ctx,
    scene: Rc<Scene>,
    pub handle: SimHandle,
    rng: Rng,
    mine: Vec<GAddr>,
    /// Whole pages that were freed: no client may ever read them again.
    gone: Vec<GAddr>,
    next_value: u64,
    seat: Option<TableSeat>,
    names: Vec<Name>,
}

impl Scene {
    /// Starts a client in a place.
    pub fn start_client(self: &Rc<Self>, place: usize) {
        let (rack, host, path) = {
            let places = self.places.borrow();
            (places[place].rack, places[place].host, places[place].path)
        };
        let id = self.cluster.racks[rack].id;
        let cpu = self.cluster.cpu(host);
        let scene = self.clone();
        let id = self
            .cluster
            .kernel
            .spawn(format!("client {place}"), host, cpu, |ctx| client(ctx, scene, place, id, path));
        self.places.borrow_mut()[place].process = Some(id);
    }

    /// An error that the faults of the run explain. What is lost is lost only with its rack.
    pub(super) fn is_excused(&self, error: &Error) -> bool {
        let no_power = self.model.lost.borrow().is_empty();
        match error {
            Error::NotMapped { .. } | Error::Lost { .. } | Error::BadFree { .. } => !no_power,
            Error::OutOfBounds { .. } | Error::Misaligned { .. } => false,
            Error::Protocol { .. } | Error::BadRegion { .. } => false,
            Error::Version { .. } | Error::OtherRegion { .. } => false,
            _ => true,
        }
    }
}

pub async fn client(ctx: Ctx, scene: Rc<Scene>, place: usize, rack: RackId, path: Path) {
    let Some(handle) = open(&ctx, &scene, rack, path).await else {
        return scene.client_done(place);
    };
    let mut worker = Worker::new(ctx, scene.clone(), handle);
    while !scene.is_over() {
        worker.step().await;
        let pause = Ps::ns(worker.rng.between(0, 400));
        worker.ctx.sleep(pause).await;
    }
    worker.finish().await;
    worker.handle.leave().await;
    scene.client_done(place);
}

async fn open(ctx: &Ctx, scene: &Rc<Scene>, rack: RackId, path: Path) -> Option<SimHandle> {
    let mut rng = Rng::new(scene.seed, Purpose::Shape, u64::from(ctx.id.0));
    let translations = 1 << rng.between(1, 8);
    while !scene.is_over() {
        let cluster = scene.cluster.clone();
        match SimHandle::open(ctx.clone(), cluster, rack, path, translations).await {
            Ok(mut handle) => {
                // A write to a page with replicas may wait for a lease.
                handle.timeout = Ps::ms(rng.between(1_500, 10_000));
                return Some(handle);
            }
            Err(error) => {
                scene.count_operation("open", error.code());
                ctx.sleep(Ps::ms(1)).await;
            }
        }
    }
    None
}

impl Worker {
    /// A client that has nothing yet.
    pub fn new(ctx: Ctx, scene: Rc<Scene>, handle: SimHandle) -> Worker {
        let rng = Rng::new(scene.seed, Purpose::Workload, u64::from(ctx.id.0));
        let next_value = u64::from(ctx.id.0) << 32;
        let seat = scene.tables.map(|tables| TableSeat::new(tables, scene.seed));
        let (mine, gone, names) = (Vec::new(), Vec::new(), Vec::new());
        let mut worker = Worker { ctx, scene, handle, rng, mine, gone, next_value, seat, names };
        worker.couple();
        worker
    }

    fn begin(&self, name: &'static str) -> Ps {
        let since = self.ctx.now();
        let one = UnderWay { name, since, word: None };
        self.scene.model.under_way.borrow_mut().insert(self.ctx.id, one);
        self.scene.model.operations.set(self.scene.model.operations.get() + 1);
        since
    }

    fn note(&self, change: impl FnOnce(&mut UnderWay)) {
        let mut under_way = self.scene.model.under_way.borrow_mut();
        change(under_way.get_mut(&self.ctx.id).expect("an operation was begun"));
    }

    async fn end<T>(&self, name: &'static str, result: &Result<T>) {
        if let Err(Error::WritesLost { addr, token, .. }) = result {
            let key = (self.ctx.id, addr.0, *token);
            self.scene.model.ranges.borrow_mut().writes_lost(key);
        }
        self.end_as(name, result.as_ref().map_or_else(Error::code, |_| "ok")).await;
    }

    async fn end_as(&self, name: &'static str, code: &'static str) {
        // No operation begins and ends in one moment.
        self.ctx.sleep(Ps::ns(1)).await;
        // What was stored is in memory before any client learns that it was.
        self.ctx.cpu.drain();
        self.scene.model.under_way.borrow_mut().remove(&self.ctx.id);
        self.scene.count_operation(name, code);
        self.ctx.kernel.note(u64::from(self.ctx.id.0) << 32 | u64::from(code.as_bytes()[0]));
        self.ctx.kernel.say(|| format!("client {}: {name}: {code}", self.ctx.id.0));
    }

    fn violated(&self, checker: &'static str, text: String) {
        self.ctx.kernel.fail(checker, format!("client {}: {text}", self.ctx.id.0));
    }

    async fn step(&mut self) {
        if self.fulfil_wish().await {
            return;
        }
        if self.is_table_next() {
            return self.table_step().await;
        }
        match self.rng.below(100) {
            0..33 => self.word().await,
            33..36 => self.ranges().await,
            36..39 => self.migrate().await,
            39..41 => self.share().await,
            41..44 => self.lock().await,
            44..48 => self.tell_use().await,
            48..52 => self.write_mine().await,
            52..55 => self.read_mine().await,
            55..58 => self.name_step().await,
            58..75 => self.other().await,
            75..86 => self.alloc().await,
            86..93 => self.free_one().await,
            93 => self.read_gone().await,
            94 => self.free_wrong().await,
            95..97 => self.root().await,
            _ => self.ask().await,
        }
    }

    fn check_error<T>(&self, what: &str, result: &Result<T>) {
        if let Err(error) = result
            && !self.scene.is_excused(error)
        {
            self.violated("errors", format!("{what}: {error}"));
        }
    }

    fn pick_word(&mut self) -> GAddr {
        let words = self.scene.model.words.borrow();
        words[self.rng.below(words.len() as u64) as usize]
    }

    async fn read_word(&mut self, addr: GAddr) -> Result<u64> {
        let called = self.begin("read_u64");
        let read = self.handle.read_u64(addr).await;
        self.end("read_u64", &read).await;
        self.recorded(addr, called, WordOp::Read(0), &read);
        read
    }

    async fn word(&mut self) {
        let addr = self.pick_word();
        self.next_value += 1;
        let value = self.next_value;
        let (name, op) = match self.rng.below(4) {
            0 => ("read_u64", WordOp::Read(0)),
            1 => ("write_u64", WordOp::Write(value)),
            2 => ("fetch_add", WordOp::FetchAdd { add: 1, old: None }),
            _ => ("cas", WordOp::Cas { expected: 0, new: value, old: None }),
        };
        self.be_caught();
        // A swap expects what was just read, so that some succeed.
        let expected = match op {
            WordOp::Cas { .. } => self.read_word(addr).await.unwrap_or(0),
            _ => 0,
        };
        let op = match op {
            WordOp::Cas { new, old, .. } => WordOp::Cas { expected, new, old },
            op => op,
        };
        let called = self.begin(name);
        self.ctx.kernel.say(|| format!("client {}: {op:?} at {addr}", self.ctx.id.0));
        if !matches!(op, WordOp::Read(_)) {
            self.note(|one| one.word = Some((addr.0, op)));
        }
        let result = match op {
            WordOp::Read(_) => self.handle.read_u64(addr).await,
            WordOp::Write(value) => self.handle.write_u64(addr, value).await.map(|()| 0),
            WordOp::FetchAdd { add, .. } => self.handle.fetch_add(addr, add).await,
            WordOp::Cas { expected, new, .. } => {
                let result = self.handle.cas(addr, expected, new).await;
                result.map(|old| old.unwrap_or_else(|old| old))
            }
        };
        self.end(name, &result).await;
        self.recorded(addr, called, op, &result);
    }

    /// Puts an operation with its answer into the word's history.
    fn recorded(&self, addr: GAddr, called: Ps, op: WordOp, result: &Result<u64>) {
        self.check_error("a word", result);
        let returned = self.ctx.now().0;
        let (op, times, returned) = match (op, result) {
            (WordOp::Read(_), Err(_)) => return,
            (WordOp::Read(_), Ok(value)) => (WordOp::Read(*value), Times::Once, Some(returned)),
            // A write that rode through a lost connection may have been sent twice.
            (WordOp::Write(value), Ok(_)) => {
                (WordOp::Write(value), Times::OnceOrMore, Some(returned))
            }
            (WordOp::FetchAdd { add, .. }, Ok(old)) => {
                (WordOp::FetchAdd { add, old: Some(*old) }, Times::Once, Some(returned))
            }
            (WordOp::Cas { expected, new, .. }, Ok(old)) => {
                (WordOp::Cas { expected, new, old: Some(*old) }, Times::Once, Some(returned))
            }
            // A write may have landed before whatever then went wrong.
            (WordOp::Write(_), Err(_)) => (op, Times::Any, None),
            (_, Err(error)) if is_refused(error) => return,
            (op, Err(_)) => (op, times_of(&op), None),
        };
        let client = Some(self.ctx.id.0);
        let event = Event { client, called: called.0, returned, times, op };
        self.scene.model.histories.borrow_mut().add(addr.0, event);
    }

    /// Any rack; of a divided one a shard, or the rack by its number.
    fn any_rack(&mut self) -> RackId {
        let racks = &self.scene.cluster.racks;
        let id = racks[self.rng.below(racks.len() as u64) as usize].id;
        if id.is_divided() && self.rng.chance_ppm(500_000) { id.rack() } else { id }
    }

    async fn alloc(&mut self) {
        if self.mine.len() >= OBJECTS_MAX {
            return self.free_one().await;
        }
        let page = self.handle.page_bytes();
        let bytes = match self.rng.below(10) {
            0..4 => self.rng.between(1, 600),
            4..6 => self.rng.between(600, page / 2),
            _ => self.rng.between(page / 2 + 1, 3 * page),
        };
        let placement = match self.rng.below(4) {
            0 => Placement::Auto,
            1 if self.scene.config.has_tiers() => Placement::Tier(Tier::Far),
            1 => Placement::Local,
            2 => Placement::Spread,
            _ => Placement::Rack(self.any_rack()),
        };
        let owned = self.rng.chance_ppm(50_000);
        let kind = if owned { AllocationKind::Session } else { AllocationKind::User };
        let drains = self.racks_that_drain();
        self.begin("alloc");
        let result = self.handle.alloc(bytes, placement, kind).await;
        if let Ok(addr) = &result {
            self.check_place(*addr, &drains);
        }
        if let Ok(addr) = &result {
            self.took(*addr, bytes, owned);
        }
        self.scene.model.leaves_in_doubt(&mut self.handle);
        self.end("alloc", &result).await;
        self.check_error("alloc", &result);
        let Ok(addr) = result else { return };
        self.mine.push(addr);
        // It is zero, all of it.
        self.read_all(addr).await;
    }

    /// The moment in which the memory becomes this client's.
    fn took(&self, addr: GAddr, bytes: u64, owned: bool) {
        self.ctx.kernel.say(|| format!("client {}: has {bytes} at {addr}", self.ctx.id.0));
        let is_pages = bytes > self.handle.page_bytes() / 2;
        let backing = if is_pages { Backing::Pages } else { Backing::Object };
        let now = self.ctx.now();
        let taken = self.scene.model.bytes.borrow_mut().allocated(addr.0, bytes, backing, now);
        self.must(taken);
        let is_lost = self.scene.is_lost(addr);
        if is_lost {
            // Its rack lost its power while the answer was on its way.
            self.scene.model.bytes.borrow_mut().lost(|one, _| one == addr.0, now);
        }
        self.scene.model.table.taken_by_client(addr, bytes);
        let mut objects = self.scene.model.objects.borrow_mut();
        let object = Object {
            bytes,
            holder: Some(self.ctx.id),
            owned,
            freeing: is_lost,
            words: false,
            serial: now.0,
        };
        objects.insert(addr.0, object);
    }

    fn pick_mine(&mut self) -> Option<(GAddr, u64)> {
        if self.mine.is_empty() {
            return None;
        }
        let addr = self.mine[self.rng.below(self.mine.len() as u64) as usize];
        let bytes = self.scene.model.objects.borrow().get(&addr.0).map(|object| object.bytes);
        bytes.map(|bytes| (addr, bytes))
    }

    async fn write_mine(&mut self) {
        let Some((addr, bytes)) = self.pick_mine() else { return self.alloc().await };
        let offset = self.rng.below(bytes);
        let len = self.rng.between(1, (bytes - offset).min(2_000));
        let part = self.writable(offset..offset + len, bytes);
        let (offset, len) = (part.start, part.end - part.start);
        let first = self.rng.next_u64();
        let data: Vec<u8> = (0..len).map(|at| (first.wrapping_mul(at + 1) >> 24) as u8).collect();
        let at = GAddr(addr.0 + offset);
        let called = self.begin("write");
        let write = {
            let mut model = self.scene.model.bytes.borrow_mut();
            model.write_called(self.ctx.id.0, at.0, &data, called)
        };
        let write = match write {
            Ok(write) => write,
            Err(violation) => return self.must(Err(violation)),
        };
        let result = self.write_some_way(at, &data).await;
        self.end("write", &result).await;
        let now = self.ctx.now();
        // With an error it may be done in part, and may land later.
        if result.is_ok() {
            self.scene.model.bytes.borrow_mut().write_done(write, now, now);
        }
        self.after(addr, "write", &result);
    }

    async fn read_mine(&mut self) {
        let Some((addr, bytes)) = self.pick_mine() else { return self.alloc().await };
        if self.rng.chance_ppm(300_000) {
            return self.read_all(addr).await;
        }
        let offset = self.rng.below(bytes);
        let len = self.rng.between(1, bytes - offset);
        self.read_part(addr, offset, len).await;
    }

    /// Reads an allocation, which must be as the model says.
    pub async fn read_all(&mut self, addr: GAddr) {
        let bytes = self.scene.model.objects.borrow().get(&addr.0).map(|object| object.bytes);
        if let Some(bytes) = bytes {
            self.read_part(addr, 0, bytes).await;
        }
    }

    async fn read_part(&mut self, addr: GAddr, offset: u64, len: u64) {
        let mut found = vec![0xee; len as usize];
        let at = GAddr(addr.0 + offset);
        let called = self.begin("read");
        let result = self.read_some_way(at, &mut found).await;
        self.end("read", &result).await;
        if result.is_ok() {
            let now = self.ctx.now();
            let id = self.ctx.id.0;
            let mut model = self.scene.model.bytes.borrow_mut();
            let checked = model.read(id, at.0, &found, called, now);
            drop(model);
            self.must(checked);
        }
        let owned = self.scene.model.objects.borrow().get(&addr.0).is_some_and(|one| one.owned);
        if owned && result.is_err() {
            let now = self.ctx.now();
            self.scene.model.bytes.borrow_mut().free_called(addr.0, now);
        }
        self.refused(at, called, &result);
        self.after(addr, "read", &result);
    }

    fn must(&self, checked: std::result::Result<(), Violation>) {
        if let Err(violation) = checked {
            self.violated(violation.checker, violation.text);
        }
    }

    /// What is not there may only be said of what was freed or lost.
    fn refused<T>(&self, addr: GAddr, called: Ps, result: &Result<T>) {
        let refusal = match result {
            Err(Error::NotMapped { .. }) => Refusal::NotMapped,
            Err(Error::Lost { .. }) => Refusal::Lost,
            _ => return,
        };
        let (id, now) = (self.ctx.id.0, self.ctx.now());
        let model = &self.scene.model.bytes;
        let checked = model.borrow_mut().refused(id, addr.0, refusal, called, now);
        self.must(checked);
    }

    /// An object that went with its rack, or with a session that ended, is forgotten.
    fn after<T>(&mut self, addr: GAddr, what: &str, result: &Result<T>) {
        let owned = self.scene.model.objects.borrow().get(&addr.0).is_some_and(|one| one.owned);
        if owned && matches!(result, Err(Error::NotMapped { .. })) {
            return self.forget(addr);
        }
        self.check_error(&format!("{what} of {addr}"), result);
        match result {
            Err(Error::Lost { .. }) if self.is_run(addr) => self.leave(addr),
            Err(Error::NotMapped { .. } | Error::Lost { .. }) => self.forget(addr),
            _ => {}
        }
    }

    fn is_run(&self, addr: GAddr) -> bool {
        let objects = self.scene.model.objects.borrow();
        objects.get(&addr.0).is_some_and(|one| one.bytes > self.handle.page_bytes())
    }

    /// A run that is lost in part: the audit gives back what is left.
    fn leave(&mut self, addr: GAddr) {
        self.mine.retain(|one| *one != addr);
        let mut objects = self.scene.model.objects.borrow_mut();
        let object = objects.get_mut(&addr.0).expect("it is a run that is known");
        (object.holder, object.freeing) = (None, true);
        self.scene.model.bytes.borrow_mut().free_called(addr.0, self.ctx.now());
    }

    fn forget(&mut self, addr: GAddr) {
        self.mine.retain(|one| *one != addr);
        self.scene.model.objects.borrow_mut().remove(&addr.0);
    }

    async fn free_one(&mut self) {
        let Some((addr, bytes)) = self.pick_mine() else { return };
        self.free(addr, bytes).await;
    }

    async fn free(&mut self, addr: GAddr, bytes: u64) {
        self.begin("free");
        self.ctx.kernel.say(|| format!("client {}: frees {bytes} at {addr}", self.ctx.id.0));
        let serial = self.free_called(addr);
        let owned = self.scene.model.objects.borrow().get(&addr.0).is_some_and(|one| one.owned);
        self.mine.retain(|one| *one != addr);
        let result = self.handle.free(addr, bytes).await;
        self.end("free", &result).await;
        // A client that was away for longer than its session finds what was owned gone.
        let ended = owned && matches!(result, Err(Error::NotMapped { .. } | Error::BadFree { .. }));
        if !ended {
            self.check_error("free", &result);
        }
        self.free_ended(addr, bytes, serial, &result);
    }

    /// Reads all that this client has once more, and gives it back.
    async fn finish(&mut self) {
        self.close_table().await;
        self.end_names().await;
        for addr in self.mine.clone() {
            self.read_all(addr).await;
            let bytes = self.scene.model.objects.borrow().get(&addr.0).map(|one| one.bytes);
            if let Some(bytes) = bytes {
                self.free(addr, bytes).await;
            }
        }
    }
}

/// Whether an error says that nothing was done.
fn is_refused(error: &Error) -> bool {
    matches!(
        error,
        Error::NotMapped { .. }
            | Error::Lost { .. }
            | Error::Full { .. }
            | Error::Busy { .. }
            | Error::NoSuchRack { .. }
    )
}
