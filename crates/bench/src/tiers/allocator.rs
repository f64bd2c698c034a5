//! An operation on an arena, beside the same of mimalloc itself, on which arenas are built, and of
//! an arena of jemalloc and of memkind where they are installed: a block given back and another
//! taken, by one thread and by two; a block resized; a block that another thread gives back. All
//! blocks come from node 0: what is measured is the allocator, not the memory.

use crate::interleave::{Comparison, compare};
use crate::micro::pin::{self, CorePair};
use crate::probe::SystemProbe;
use crate::report::{Better, Reference, Report, Row};
use crate::run::{BenchError, Progress, Size, Steps, slice_ns};
use rackpool_stats::histogram::{Histogram, Summary};
use rackpool_tiers_alloc::Arena;
use rackpool_tiers_alloc::load::{Jemalloc, Memkind, Source, Table};
use std::sync::Barrier;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

/// What ours may cost, times the other.
const LIMIT: f64 = 1.1;
const SEED: u64 = 35;
/// Blocks that a thread has at a time, some 12 MB.
const LIVE: usize = 1 << 14;
/// Blocks that a thread takes before another gets them.
const BATCH: usize = 1 << 10;
/// Operations between two looks at the clock.
const BLOCK: u64 = 1024;
/// How often both sides are timed operation by operation, in turn.
const TURNS: u64 = 10;
/// Batches of a thread on their way.
const BATCHES: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Replace,
    Resize,
    ReplaceByTwo,
    FreeByAnother,
}

impl Load {
    fn threads(self) -> u64 {
        match self {
            Load::Replace | Load::Resize => 1,
            Load::ReplaceByTwo | Load::FreeByAnother => 2,
        }
    }
}

/// Name, load, policy.
const CASES: [(&str, Load, &str); 5] = [
    ("alloc_replace", Load::Replace, "preferred:0"),
    ("alloc_replace_by_size", Load::Replace, "size:256;preferred:0;preferred:0"),
    ("alloc_resize", Load::Resize, "preferred:0"),
    ("alloc_replace_2_threads", Load::ReplaceByTwo, "preferred:0"),
    ("alloc_free_by_another_thread", Load::FreeByAnother, "preferred:0"),
];

/// Adds the rows, and why there is no jemalloc or memkind beside.
pub(super) fn add(
    report: &mut Report,
    size: Size,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), BenchError> {
    let mut others = vec![("mimalloc", Source::Mimalloc)];
    match Jemalloc::load() {
        Ok(jemalloc) => {
            others.push(("jemalloc", Source::Jemalloc(jemalloc)));
            others.push(("jemalloc_arena", Source::JemallocArena(jemalloc)));
        }
        Err(error) => {
            report.extra.insert("jemalloc_absent".into(), error.to_string().into());
        }
    }
    match Memkind::load() {
        Ok(memkind) => others.push(("memkind", Source::Memkind(memkind))),
        Err(error) => {
            report.extra.insert("memkind_absent".into(), error.to_string().into());
        }
    }
    let mut steps = Steps::new(CASES.len() * others.len(), progress);
    let (allowed, cores) = (pin::allowed_cores()?, pin::two_cores()?);
    pin::pin_to(cores.first)?;
    let measured = (|| {
        for (case, load, policy) in CASES {
            let ours = Source::Arena(Arena::new(case, policy.parse()?)?);
            for (other, source) in &others {
                let name = format!("{case}_vs_{other}");
                steps.begin(&name);
                let pair = Sides { ours, other: *source, load, size, cores };
                report.results.push(pair.row(&name)?.with("policy", policy));
            }
        }
        Ok(())
    })();
    pin::pin_to_any(&allowed)?;
    steps.end();
    measured
}

/// What is measured in turn.
#[derive(Clone, Copy)]
struct Sides {
    ours: Source,
    other: Source,
    load: Load,
    size: Size,
    cores: CorePair,
}

impl Sides {
    fn row(self, name: &str) -> Result<Row, BenchError> {
        self.other.enter()?;
        let live = if self.load == Load::FreeByAnother { BATCHES * BATCH } else { LIVE };
        let row = |comparison: &Comparison| {
            Row::compared(name, "ns", Better::Lower, comparison, Reference::Peer)
                .with("limit", LIMIT)
                .with("beside", self.other.name())
                .with("threads", self.load.threads())
                .with("blocks", live)
        };
        if self.load.threads() > 1 {
            return Ok(row(&self.compare(|| self.by_two(self.ours), || self.by_two(self.other))?));
        }
        let mut ours = Table::new(self.ours, LIVE, SEED);
        let mut other = Table::new(self.other, LIVE, SEED);
        ours.fill()?;
        other.fill()?;
        let compared = self.compare(|| self.slice(&mut ours), || self.slice(&mut other))?;
        let [ours, other] = self.time_each(&mut ours, &mut other)?;
        let Summary { p50, p99, p999, .. } = other;
        let row = row(&compared).with("other_p50", p50).with("other_p99", p99);
        // Each with a look at the clock.
        Ok(row.with("other_p999", p999).percentiles(ours))
    }

    fn compare(
        self,
        ours: impl FnMut() -> Result<f64, BenchError>,
        other: impl FnMut() -> Result<f64, BenchError>,
    ) -> Result<Comparison, BenchError> {
        compare(&self.size.rules(), SEED, &mut SystemProbe::of_this_process(), ours, other)
    }

    fn slice(self, table: &mut Table) -> Result<f64, BenchError> {
        slice_ns(self.size.slice(), BLOCK, || self.step(table, BLOCK))
    }

    fn step(self, table: &mut Table, times: u64) -> Result<(), BenchError> {
        match self.load {
            Load::Resize => table.resize(times)?,
            Load::Replace | Load::ReplaceByTwo | Load::FreeByAnother => table.replace(times)?,
        }
        Ok(())
    }

    /// One operation after the other with the clock, both sides in turn.
    fn time_each(self, ours: &mut Table, other: &mut Table) -> Result<[Summary; 2], BenchError> {
        let mut sides = [(ours, Histogram::new()), (other, Histogram::new())];
        for _ in 0..TURNS {
            for (table, times) in &mut sides {
                for _ in 0..self.size.samples() / TURNS {
                    let start = Instant::now();
                    self.step(table, 1)?;
                    times.record(start.elapsed().as_nanos() as u64);
                }
            }
        }
        Ok(sides.map(|(_, times)| times.summary()))
    }

    /// ns an operation of two threads, each on a core if there are two.
    fn by_two(self, source: Source) -> Result<f64, BenchError> {
        let start = Barrier::new(2);
        let (to_first, from_second) = sync_channel(BATCHES);
        let (to_second, from_first) = sync_channel(BATCHES);
        let ends =
            [(self.cores.first, to_second, from_second), (self.cores.second, to_first, from_first)];
        let both = std::thread::scope(|scope| {
            let worker = |(core, to, from)| {
                let start = &start;
                move || {
                    let prepared = pin::pin_to(core).map_err(BenchError::from);
                    let prepared = prepared.and_then(|()| Ok(source.enter()?));
                    start.wait();
                    prepared?;
                    match self.load {
                        Load::FreeByAnother => exchange(source, self.size, &to, &from),
                        _ => self.replace(source, core as u64),
                    }
                }
            };
            let workers = ends.map(|end| scope.spawn(worker(end)));
            workers.map(|worker| worker.join().expect("a thread that measures"))
        });
        Ok(both.into_iter().sum::<Result<f64, BenchError>>()? / 2.0)
    }

    fn replace(self, source: Source, seed: u64) -> Result<f64, BenchError> {
        let mut table = Table::new(source, LIVE, SEED ^ seed);
        table.fill()?;
        self.slice(&mut table)
    }
}

/// Takes a batch, sends it to the other thread, and gives back one of the other's.
fn exchange(
    source: Source,
    size: Size,
    to: &SyncSender<Table>,
    from: &Receiver<Table>,
) -> Result<f64, BenchError> {
    let rounds = match size {
        Size::Smoke => 4,
        Size::Quick => 300,
        Size::Full => 1500,
    };
    let gone = |_| BenchError::Silent { end: "the other thread".into(), waited_s: 0 };
    let mut table = Table::new(source, BATCH, SEED);
    // So that neither thread waits for the other's next batch.
    let mut first = Table::new(source, BATCH, SEED + 1);
    first.fill()?;
    // What the other no longer wants is given back here.
    drop(to.send(first));
    let start = Instant::now();
    for _ in 0..rounds {
        table.fill()?;
        drop(to.send(table));
        table = from.recv().map_err(gone)?;
        table.empty();
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / (rounds * BATCH) as f64)
}
