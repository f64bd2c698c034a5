//! The latency ladder in virtual time: one access at a time, from a line of local memory to the
//! first touch of another rack, each beside the sum of the profile's numbers where there is one
//! ([`super::closed`]) and beside what the Rcmp paper says of its testbed.
//!
//! rackpool's clients reach other racks themselves, or through their daemon as the paper's do
//! (`Path::Proxied`): both are paths of the engines.

use super::closed;
use super::handle::Path;
use super::kernel::Ctx;
use super::performance::{self, Shape, World};
use super::{Cluster, SimHandle};
use crate::device::Profile;
use crate::mem::{Coherence, Memory, SimMem, Tier};
use crate::report::{Cell as Field, Table};
use crate::time::Ps;
use rackpool_core::GAddr;
use rackpool_core::client::Placement;
use rackpool_core::layout::AllocationKind;
use rackpool_core::seam::Mem;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const ROUNDS: u64 = 33;
/// Pages that are worked on in each of the two racks.
const PAGES: u64 = 40;
const KIB4: u64 = 4 << 10;
const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub struct Rung {
    pub name: &'static str,
    pub p50: Ps,
    pub max: Ps,
    /// The sum of the profile's numbers, if there is one.
    pub closed: Option<Ps>,
}

/// What the paper says of a rung on its testbed: name, nanoseconds if it is one number, words.
const PAPER: &[(&str, Option<f64>, &str)] = &[
    ("DRAM load", Some(93.0), "93 ns measured (Rcmp 6.2); 80-140 ns"),
    ("own rack, bare CXL load", Some(138.5), "138.5 ns measured (Rcmp 6.2); 90-150 ns"),
    ("own rack, read 64 B", Some(250.0), "about 0.25 us, inferred from its mean"),
    ("other rack, read 64 B", None, "its RDMA alone: 1.5-3 us"),
    ("other rack, write 64 B", None, "its RDMA alone: 1.5-3 us"),
    ("the paper's path, read 64 B", Some(4300.0), "about 4.3 us, inferred from its mean"),
    ("half own rack, half the paper's path, read 64 B", Some(2300.0), "below 3 us at all sizes"),
    ("half own rack, half the paper's path, write 64 B", Some(2300.0), "below 3.5 us at all sizes"),
];

struct LadderState {
    rungs: RefCell<Vec<Rung>>,
    /// First pages of the two racks.
    pages: [Cell<GAddr>; 2],
    ready: Cell<u32>,
    done: Cell<bool>,
}

/// All rungs on a profile.
pub fn climb(profile: &Profile) -> Result<Vec<Rung>, String> {
    let shape = Shape { racks: 2, page_shift: 21, frames: 4 * PAGES as u32, seed: 1 };
    let mut world = World::new(profile, shape);
    let shared = Rc::new(LadderState {
        rungs: RefCell::default(),
        pages: Default::default(),
        ready: Cell::new(0),
        done: Cell::new(false),
    });
    for rack in 0..2 {
        let shared = shared.clone();
        world.spawn(rack, move |ctx, cluster| async move {
            let mut handle = performance::open(&ctx, &cluster, rack, 1).await;
            let addr = performance::alloc_pages(&mut handle, PAGES).await;
            shared.pages[rack as usize].set(addr);
            shared.ready.set(shared.ready.get() + 1);
            handle.leave().await;
        });
    }
    let one = shared.clone();
    world.run(|| one.ready.get() == 2)?;
    let (one, profile) = (shared.clone(), Rc::new(profile.clone()));
    world.spawn(0, move |ctx, cluster| async move {
        Climber::new(ctx, cluster, one, profile).await.climb().await;
    });
    let one = shared.clone();
    world.run(|| one.done.get())?;
    let rungs = shared.rungs.borrow().clone();
    Ok(rungs)
}

/// The ladder as a table.
pub fn ladder(profile: &Profile) -> Result<Vec<Table>, String> {
    let rungs = climb(profile)?;
    let columns = [
        ("access", ""),
        ("simulated", "ns"),
        ("longest", "ns"),
        ("sum of the profile", "ns"),
        ("paper", "ns"),
        ("the paper says", ""),
    ];
    let title = "What one access costs on an idle cluster";
    let mut table = Table::new("ladder", title, &columns);
    let is_testbed = profile.name == "rcmp-testbed";
    for rung in &rungs {
        let paper = PAPER.iter().find(|(name, ..)| is_testbed && *name == rung.name);
        table.row([
            rung.name.into(),
            rung.p50.as_ns_f64().into(),
            rung.max.as_ns_f64().into(),
            rung.closed.map(Ps::as_ns_f64).into(),
            paper.and_then(|(_, ns, _)| *ns).into(),
            paper.map_or(Field::Empty, |(.., words)| (*words).into()),
        ]);
    }
    table.note(profile.label());
    table.note(
        "The paper's path: a ring to the own rack's daemon, its one-sided operation, a ring back; \
         handles choose it by fabric `proxied`.",
    );
    table.note(
        "Atomics of the other rack are executed by its card. Where a card's atomics are not \
         atomic with the processor's, a processor of the home rack executes them instead.",
    );
    Ok(vec![table])
}

/// The client that takes the times.
struct Climber {
    ctx: Ctx,
    shared: Rc<LadderState>,
    profile: Rc<Profile>,
    handle: SimHandle,
    cluster: Rc<Cluster>,
    buffer: Vec<u8>,
}

impl Climber {
    async fn new(
        ctx: Ctx,
        cluster: Rc<Cluster>,
        shared: Rc<LadderState>,
        profile: Rc<Profile>,
    ) -> Climber {
        let handle = performance::open(&ctx, &cluster, 0, 1024).await;
        Climber { ctx, shared, profile, handle, cluster, buffer: vec![0; MIB as usize] }
    }

    /// An address in the page number `page` of a rack; no line is used by two rounds of one rung.
    fn at(&self, rack: usize, round: u64, bytes: u64) -> GAddr {
        let base = self.shared.pages[rack].get().0;
        let page = round % PAGES * self.handle.page_bytes();
        GAddr(base + page + round * bytes % self.handle.page_bytes())
    }

    async fn settle(&self) {
        // The world is idle again, and this process is not ahead of it.
        self.ctx.sleep(Ps::us(50)).await;
    }

    fn add(&self, name: &'static str, times: &[Ps], closed: Option<Ps>) {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let (p50, max) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
        self.shared.rungs.borrow_mut().push(Rung { name, p50, max, closed });
    }

    async fn climb(mut self) {
        self.bare();
        self.own().await;
        self.remote().await;
        self.first_touches().await;
        self.paper().await;
        self.allocations().await;
        self.shared.done.set(true);
    }
}

impl Climber {
    /// Bare loads: a line that no cache has.
    fn bare(&self) {
        let kernel = &self.ctx.kernel;
        let bare = |tier| {
            let memory = Memory::new(kernel.new_memory(), MIB, tier, Coherence::Hardware);
            let view = SimMem::new(memory, self.ctx.cpu.clone());
            let time = |round: u64| {
                let start = self.ctx.now();
                view.load(round * 64);
                self.ctx.now() - start
            };
            (0..ROUNDS).map(time).collect::<Vec<Ps>>()
        };
        self.add("DRAM load", &bare(Tier::Dram), Some(closed::dram_load(&self.profile)));
        let cxl = closed::cxl_load(&self.profile);
        self.add("own rack, bare CXL load", &bare(Tier::Cxl), Some(cxl));
    }

    async fn own(&mut self) {
        let p = self.profile.clone();
        let rungs: [(&str, u64, bool, Ps); 4] = [
            ("own rack, read 64 B", 64, false, closed::own_read(&p, 64)),
            ("own rack, write 64 B", 64, true, closed::own_write(&p, 64)),
            ("own rack, read 4 KiB", KIB4, false, closed::own_read(&p, KIB4)),
            ("own rack, write 4 KiB", KIB4, true, closed::own_write(&p, KIB4)),
        ];
        for (name, bytes, writes, closed) in rungs {
            self.access(name, 0, bytes, writes, Some(closed)).await;
        }
    }

    async fn remote(&mut self) {
        let p = self.profile.clone();
        let one_packet = p.link.mtu.0 >= KIB4;
        let of = |closed: fn(&Profile, u64) -> Ps, bytes| {
            (bytes == 64 || one_packet && bytes == KIB4).then(|| closed(&p, bytes))
        };
        let long = |one: Ps| closed::packets_after(&p, MIB).map(|rest| one + rest);
        let first = p.link.mtu.0;
        let rungs: [(&str, u64, bool); 6] = [
            ("other rack, read 64 B", 64, false),
            ("other rack, write 64 B", 64, true),
            ("other rack, read 4 KiB", KIB4, false),
            ("other rack, write 4 KiB", KIB4, true),
            ("other rack, read 1 MiB", MIB, false),
            ("other rack, write 1 MiB", MIB, true),
        ];
        for (name, bytes, writes) in rungs {
            let closed = match writes {
                false if bytes == MIB => long(closed::remote_read(&p, first)),
                true if bytes == MIB => long(closed::remote_write_long(&p)),
                false => of(closed::remote_read, bytes),
                true => of(closed::remote_write, bytes),
            };
            self.access(name, 1, bytes, writes, closed).await;
        }
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let addr = self.at(1, round, 64);
            self.settle().await;
            let start = self.ctx.now();
            self.handle.cas(addr, 0, 0).await.expect("the page is there").ok();
            times.push(self.ctx.now() - start);
        }
        let closed = closed::remote_atomic(&self.profile);
        self.add("other rack, compare and swap", &times, Some(closed));
    }

    /// Reads or writes with the place known.
    async fn access(
        &mut self,
        name: &'static str,
        rack: usize,
        bytes: u64,
        writes: bool,
        closed: Option<Ps>,
    ) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let part = &mut buffer[..bytes as usize];
        let mut times = Vec::new();
        for page in 0..PAGES {
            let end = self.at(rack, page, 0).0 + self.handle.page_bytes() - 64;
            self.handle.read(GAddr(end), &mut [0; 8]).await.expect("it is there");
        }
        for round in 0..ROUNDS {
            // Lines that no rung before has touched.
            let addr = GAddr(self.at(rack, round, bytes.max(64)).0 + MIB * u64::from(writes) / 2);
            let addr = if bytes == MIB { self.at(rack, round, bytes) } else { addr };
            self.settle().await;
            let start = self.ctx.now();
            match writes {
                true => self.handle.write(addr, part).await,
                false => self.handle.read(addr, part).await,
            }
            .expect("the page is there");
            times.push(self.ctx.now() - start);
        }
        self.buffer = buffer;
        self.add(name, &times, closed);
    }

    /// Places that have to be asked for: of the own daemon, of the master, and a rack that was
    /// never spoken to.
    async fn first_touches(&mut self) {
        for (name, rack) in
            [("own rack, first touch of a page", 0), ("other rack, first touch of a page", 1)]
        {
            let mut times = Vec::new();
            for round in 0..ROUNDS {
                let addr = self.at(rack, round, 64);
                self.handle.forget(addr);
                self.settle().await;
                let start = self.ctx.now();
                self.handle.read(addr, &mut [0; 64]).await.expect("the page is there");
                times.push(self.ctx.now() - start);
            }
            self.add(name, &times, None);
        }
        let mut times = Vec::new();
        for round in 0..3 {
            let mut fresh = performance::open(&self.ctx, &self.cluster, 0, 1024).await;
            self.settle().await;
            let start = self.ctx.now();
            fresh.read(self.at(1, round, 64), &mut [0; 64]).await.expect("the page is there");
            times.push(self.ctx.now() - start);
            fresh.leave().await;
        }
        self.add("other rack, first touch of the rack", &times, None);
    }

    async fn allocations(&mut self) {
        let page = self.handle.page_bytes();
        for (name, bytes) in [("allocate 64 B", 64), ("allocate a page", page)] {
            let mut times = Vec::new();
            for _ in 0..ROUNDS {
                self.settle().await;
                let start = self.ctx.now();
                let made = self.handle.alloc(bytes, Placement::Local, AllocationKind::User).await;
                made.expect("the rack has room");
                times.push(self.ctx.now() - start);
            }
            self.add(name, &times, None);
        }
    }
}

impl Climber {
    /// The same accesses by a handle that its rack's daemon works for.
    async fn paper(&mut self) {
        let (ctx, cluster) = (self.ctx.clone(), self.cluster.clone());
        let opened = SimHandle::open(ctx, cluster, self.handle.rack(), Path::Proxied, 1024).await;
        let direct = std::mem::replace(&mut self.handle, opened.expect("the daemon has slots"));
        // A lap of the rings first, so that their lines are where they are in the long run.
        for round in 0..64 {
            let addr = self.at(1, round, 64);
            self.handle.read(addr, &mut [0; 64]).await.expect("the page is there");
        }
        let rungs: [(&str, u64, bool); 4] = [
            ("the paper's path, read 64 B", 64, false),
            ("the paper's path, write 64 B", 64, true),
            ("the paper's path, read 4 KiB", KIB4, false),
            ("the paper's path, write 4 KiB", KIB4, true),
        ];
        for (name, bytes, writes) in rungs {
            self.access(name, 1, bytes, writes, None).await;
        }
        std::mem::replace(&mut self.handle, direct).leave().await;
        self.mix("half own rack, half the paper's path, read 64 B", "read 64 B");
        self.mix("half own rack, half the paper's path, write 64 B", "write 64 B");
    }

    /// The mean of an own-rack access and the same through the daemon.
    fn mix(&self, name: &'static str, what: &str) {
        let mean = {
            let rungs = self.shared.rungs.borrow();
            let of = |prefix: &str| {
                let wanted = format!("{prefix}, {what}");
                let rung = rungs.iter().find(|rung| rung.name == wanted);
                rung.expect("it was climbed before").p50
            };
            Ps((of("own rack").0 + of("the paper's path").0) / 2)
        };
        self.add(name, &[mean], None);
    }
}
