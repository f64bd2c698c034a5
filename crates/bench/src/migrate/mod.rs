//! `bench migrate`: what it is worth that pages move to where they are used. Two racks in processes
//! of their own, one client process in each, which reads and writes lines of the same pages; every
//! second page starts in each rack, so that half of what a rack likes is in the wrong one.
//!
//! Each measurement is a new pool. The policies take turns, round by round: `off`, `paper`, `cost`,
//! and an oracle that places pages right from the start and moves none. The oracle's clients count
//! as those under `cost` do, so that the two differ in nothing but the placement of pages; what
//! counting alone changes is measured under uniform load (`counting_over_off_uniform`).
//!
//! A rate is that at which both clients do the same work: twice the harmonic mean of the two. The
//! sum would praise a policy that gives one rack everything and starves the other, since a client
//! that never waits is a hundred times as fast; it stands beside it (`sum`). Rates are those
//! of the second half of a run, when pages have found their place; that of the whole run stands
//! beside it, too (`whole_run`). Ratios are medians over rounds; beside them that of the times in
//! which all rounds' work is done, each as much (`all_rounds`): bad luck in some is not forgotten.
//!
//! | Load | Which pages a client uses |
//! |---|---|
//! | own hot set | zipfian (0.99), each rack in an order of its own |
//! | same hot set | zipfian (0.99), both racks in the same order |
//! | uniform | all alike |
//! | even | one page, by both at the same pace |

mod client;

pub use client::worker;

use crate::crew::{Crew, WorkerReply};
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, PoolSource, Progress, Size, Steps};
use client::{LINE, line_of, order};
use rackpool::{FabricChoice, GAddr, Handle, Migration, Options as PoolOptions, Placement, Pool};
use rackpool_core::RackId;
use rackpool_core::policy::oracle::best_static_placement;
use rackpool_core::policy::{CostParams, PaperParams};
use rackpool_sim::repro::load::same_work;
use rackpool_stats::sample::median;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::any::Any;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub size: Size,
    /// Page sizes, bytes. The results of the first have the plain names.
    pub page_bytes: Vec<u64>,
    /// Names the run: the same seed gives the same operations.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { size: Size::default(), page_bytes: vec![4 << 10, 64 << 10], seed: 42 }
    }
}

/// A pool of two racks that a measurement needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// How it is decided where pages live.
    pub policy: Migration,
    pub page_bytes: u64,
    pub rack_bytes: u64,
}

/// A pool that is there until it is dropped.
pub struct Racks {
    pub source: PoolSource,
    pub guard: Box<dyn Any>,
}

const RACKS: u16 = 2;
/// Memory of the pages that are used, at most.
const DATA_BYTES_MAX: u64 = 256 << 20;
/// Pages that are used, at most.
const PAGES_MAX: u64 = 1024;
/// Handles that allocate at once: each waits for the master's disk.
const ALLOCATORS: usize = 16;
/// Pages of a rack beside those that are used: slabs of processes that join, moves under way.
const SPARE_PAGES: u64 = 64;
/// Threads that execute one-sided operations.
const FABRIC_THREAD: &str = "fabric-target";
/// Microseconds between two accesses of the page that both racks use alike.
const PACE_US: u64 = 500;

impl Options {
    fn pages(&self, page_bytes: u64) -> u64 {
        let pages = (DATA_BYTES_MAX / page_bytes).min(PAGES_MAX);
        if self.size == Size::Smoke { pages.min(64) } else { pages }
    }

    fn rounds(&self, likes: Likes) -> usize {
        match self.size {
            Size::Smoke => 1,
            // Where the racks want different pages, `paper` gains much or little by its luck.
            Size::Quick if likes == Likes::OwnHotSet => 5,
            Size::Quick => 3,
            Size::Full => 5,
        }
    }

    fn run_time(&self) -> Duration {
        Duration::from_millis(match self.size {
            Size::Smoke => 200,
            Size::Quick => 4_000,
            Size::Full => 12_000,
        })
    }
}

/// Which pages are used how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Likes {
    OwnHotSet,
    SameHotSet,
    Uniform,
    Even,
}

/// The first line that a client is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct MigrateJob {
    master: String,
    rack: u16,
    fabric: String,
    client: u64,
    likes: Likes,
    pages: Vec<u64>,
    page_bytes: u64,
    reads_milli: u64,
    pace_us: Option<u64>,
    seed: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
enum MigrateCommand {
    Go { run_ms: u64 },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
enum MigrateReply {
    /// It waits for `Go`.
    Ready,
    Ran(MigrateMeasurement),
    /// It ends with this error.
    Failed {
        code: String,
        reason: String,
    },
}

impl WorkerReply for MigrateReply {
    fn failure(&self) -> Option<(&str, &str)> {
        match self {
            MigrateReply::Failed { code, reason } => Some((code, reason)),
            MigrateReply::Ready | MigrateReply::Ran(_) => None,
        }
    }

    fn is_ready(&self) -> bool {
        matches!(self, MigrateReply::Ready)
    }
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct MigrateMeasurement {
    operations: u64,
    /// Those of the second half.
    late_operations: u64,
    elapsed_ns: u64,
}

/// What came of one measurement.
#[derive(Debug, Clone, Copy, Default)]
struct PolicyResult {
    /// Operations a second if both clients do as much, in the second half and in the whole run.
    late: f64,
    whole: f64,
    /// Operations a second of both clients together, in the second half.
    sum: f64,
    operations: u64,
    pages_moved: u64,
    moved_bytes: u64,
    failed: u64,
    fabric_bytes: u64,
    /// Processor time of the servers, seconds.
    cpu_s: f64,
    /// That of all their threads but those that execute one-sided operations.
    engine_cpu_s: f64,
}

/// A way to decide, with its name.
type Choice = (&'static str, Migration, bool);

const OFF: Choice = ("off", Migration::Off, false);

/// Counts, and never asks for a page.
fn counting() -> Migration {
    Migration::Cost(CostParams { count_min: u32::MAX, ..CostParams::default() })
}

fn oracle() -> Choice {
    ("oracle", counting(), true)
}

fn paper() -> Choice {
    ("paper", Migration::Paper(PaperParams::default()), false)
}

fn cost() -> Choice {
    ("cost", Migration::Cost(CostParams::default()), false)
}

/// Measures. `racks` starts two racks in processes of their own; `command` makes the command line
/// of client process number n: a program that calls [`worker`] with its standard input and output.
///
/// # Errors
/// [`BenchError`]: of the pool, of a client, or of `racks`. Clients and racks are gone then.
pub fn run(
    options: &Options,
    racks: &mut dyn FnMut(&Wanted) -> Result<Racks, BenchError>,
    command: &mut dyn FnMut(u32) -> Command,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, BenchError> {
    let plan = plan();
    let measurements =
        plan.iter().map(|(_, likes, choices)| options.rounds(*likes) * choices.len());
    let rounds = plan.iter().map(|(_, likes, _)| options.rounds(*likes)).max().unwrap_or(0);
    let sizes = options.page_bytes.len();
    let mut steps = Steps::new(sizes * measurements.sum::<usize>(), progress);
    let mut report = Report::here(Kind::Measured);
    for (index, &page_bytes) in options.page_bytes.iter().enumerate() {
        let mut found = Found::default();
        for round in 0..rounds {
            for (name, likes, choices) in &plan {
                if round >= options.rounds(*likes) {
                    continue;
                }
                for choice in choices {
                    steps.begin(&format!("{name}, {}, pages of {page_bytes} bytes", choice.0));
                    let seed = options.seed + round as u64;
                    let one = One { options, page_bytes, likes: *likes, choice: *choice, seed };
                    let outcome = one.run(racks, command)?;
                    found.outcomes.push(((*name, choice.0), outcome));
                }
            }
        }
        let suffix = if index == 0 { String::new() } else { format!("_{page_bytes}B") };
        report.results.extend(found.rows(&suffix, page_bytes));
    }
    report.extra.insert("servers".into(), "processes".into());
    report.extra.insert("size".into(), options.size.name().into());
    report.extra.insert("run_s".into(), options.run_time().as_secs_f64().into());
    report.extra.insert("seed".into(), options.seed.into());
    steps.end();
    Ok(report)
}

/// Loads and the policies that each is measured under, in turn.
fn plan() -> Vec<(&'static str, Likes, Vec<Choice>)> {
    vec![
        ("own hot set", Likes::OwnHotSet, vec![OFF, paper(), cost(), oracle()]),
        ("same hot set", Likes::SameHotSet, vec![OFF, paper(), cost()]),
        ("uniform", Likes::Uniform, vec![OFF, paper(), cost(), ("counting", counting(), false)]),
        ("even", Likes::Even, vec![paper(), cost()]),
    ]
}

struct One<'o> {
    options: &'o Options,
    page_bytes: u64,
    likes: Likes,
    choice: Choice,
    seed: u64,
}

impl One<'_> {
    fn run(
        &self,
        racks: &mut dyn FnMut(&Wanted) -> Result<Racks, BenchError>,
        command: &mut dyn FnMut(u32) -> Command,
    ) -> Result<PolicyResult, BenchError> {
        let pages = if self.likes == Likes::Even { 1 } else { self.options.pages(self.page_bytes) };
        let (_, policy, is_oracle) = self.choice;
        // Three quarters of the pages fit into a rack.
        let rack_bytes = (pages * 3 / 4 + SPARE_PAGES) * self.page_bytes;
        let rack_bytes = rack_bytes.next_multiple_of(2 << 20);
        let bed = racks(&Wanted { policy, page_bytes: self.page_bytes, rack_bytes })?;
        let master = bed.source.master.clone().ok_or(BenchError::Option {
            option: "racks",
            reason: "they are processes of their own".into(),
        })?;
        let homes = self.homes(pages as usize, is_oracle)?;
        let addrs = make_pages(&master, &homes, self.page_bytes)?;
        let mut crew = Crew::start(u32::from(RACKS), command)?;
        for rack in 0..RACKS {
            crew.tell(u32::from(rack), &self.job(&master, rack, &addrs))?;
        }
        crew.await_ready()?;
        let pool = Pool::open(PoolOptions::new(&master, 0))?;
        let before = counters(&pool, &bed.source)?;
        let run = self.options.run_time();
        crew.tell_all(&MigrateCommand::Go { run_ms: run.as_millis() as u64 })?;
        let (mut whole, mut late, mut operations) = (Vec::new(), Vec::new(), 0);
        crew.gather(run, |answer| match answer {
            MigrateReply::Ran(ran) => {
                operations += ran.operations;
                let seconds = ran.elapsed_ns as f64 / 1e9;
                whole.push(ran.operations as f64 / seconds);
                late.push(2.0 * ran.late_operations as f64 / seconds);
                Ok(())
            }
            other => Err(other),
        })?;
        let mut outcome = PolicyResult {
            late: same_work(&late),
            whole: same_work(&whole),
            sum: late.iter().sum(),
            operations,
            ..PolicyResult::default()
        };
        let after = counters(&pool, &bed.source)?;
        crew.end()?;
        outcome.pages_moved = after.pages_moved - before.pages_moved;
        outcome.moved_bytes = after.moved_bytes - before.moved_bytes;
        outcome.failed = after.failed - before.failed;
        outcome.fabric_bytes = after.fabric_bytes - before.fabric_bytes;
        outcome.cpu_s = after.cpu_s - before.cpu_s;
        outcome.engine_cpu_s = after.engine_cpu_s - before.engine_cpu_s;
        Ok(outcome)
    }

    fn job(&self, master: &str, rack: u16, addrs: &[GAddr]) -> MigrateJob {
        MigrateJob {
            master: master.to_owned(),
            rack,
            fabric: "tcp".into(),
            client: u64::from(rack),
            likes: self.likes,
            pages: addrs.iter().map(|addr| addr.0).collect(),
            page_bytes: self.page_bytes,
            // With the same hot set as YCSB-B, else as YCSB-A.
            reads_milli: if self.likes == Likes::SameHotSet { 950 } else { 500 },
            pace_us: (self.likes == Likes::Even).then_some(PACE_US),
            seed: self.seed,
        }
    }

    /// The rack in which each page starts.
    fn homes(&self, pages: usize, is_oracle: bool) -> Result<Vec<u8>, BenchError> {
        if !is_oracle {
            return Ok((0..pages).map(|page| (page % 2) as u8).collect());
        }
        let mut uses = vec![[0_u64; 2]; pages];
        for client in [0_u8, 1] {
            let order = order(self.likes, pages, self.seed, u64::from(client));
            for (rank, page) in order.iter().enumerate() {
                uses[*page as usize][usize::from(client)] = 1_000_000_000 / (rank as u64 + 1);
            }
        }
        let capacity = [pages * 3 / 4; 2];
        let best = best_static_placement(&uses, capacity);
        let best = best.map_err(|error| BenchError::Option {
            option: "page_bytes",
            reason: error.to_string(),
        })?;
        Ok(best.racks)
    }
}

/// Makes a page for each entry of `homes`, in that rack, each an allocation of its own, and fills
/// it.
fn make_pages(master: &str, homes: &[u8], page_bytes: u64) -> Result<Vec<GAddr>, BenchError> {
    let chunk = homes.len().div_ceil(ALLOCATORS).max(1);
    let make = |first: usize, homes: &[u8]| -> Result<Vec<GAddr>, BenchError> {
        let mut handle =
            Pool::open(PoolOptions::new(master, 0).fabric(FabricChoice::Tcp))?.handle()?;
        let mut data = vec![0; page_bytes as usize];
        let mut addrs = Vec::new();
        for (index, home) in homes.iter().enumerate() {
            let page = (first + index) as u64;
            let addr = handle.alloc(page_bytes, Placement::Rack(RackId(u16::from(*home))))?;
            for (line, bytes) in data.chunks_exact_mut(LINE).enumerate() {
                bytes.copy_from_slice(&line_of(page, line as u64));
            }
            handle.write(addr, &data)?;
            addrs.push(addr);
        }
        Ok(addrs)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = homes
            .chunks(chunk)
            .enumerate()
            .map(|(index, homes)| scope.spawn(move || make(index * chunk, homes)))
            .collect();
        let mut addrs = Vec::new();
        for thread in threads {
            addrs.extend(thread.join().expect("it answers with its errors")?);
        }
        Ok(addrs)
    })
}

/// What the daemons have counted so far.
fn counters(pool: &Pool, source: &PoolSource) -> Result<PolicyResult, BenchError> {
    let mut handle: Handle = pool.handle()?;
    let stats = handle.admin().pool_stats()?;
    let mut outcome = PolicyResult::default();
    for daemon in stats.racks.iter().filter_map(|rack| rack.daemon.as_ref()) {
        outcome.pages_moved += daemon.pages_came;
        outcome.moved_bytes += daemon.moves.moved_bytes;
        outcome.failed += daemon.moves.failed;
        outcome.fabric_bytes += daemon.fabric.sent_bytes + daemon.fabric.received_bytes;
    }
    for (thread, cpu_s) in source.server_pids.iter().flat_map(|pid| cpu_by_thread(*pid)) {
        outcome.cpu_s += cpu_s;
        outcome.engine_cpu_s += if thread == FABRIC_THREAD { 0.0 } else { cpu_s };
    }
    Ok(outcome)
}

/// Names and processor time so far, seconds, of the threads of a process; none where the kernel
/// does not tell.
fn cpu_by_thread(pid: u32) -> Vec<(String, f64)> {
    let of = |task: &Path| {
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
        let ns = text.split(' ').next()?.parse::<f64>().ok()?;
        Some((name.trim_end().to_owned(), ns / 1e9))
    };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| of(&task.path())).collect()
}

/// Everything that was measured with one page size.
#[derive(Default)]
struct Found {
    outcomes: Vec<((&'static str, &'static str), PolicyResult)>,
}

impl Found {
    /// The outcomes of a load under a policy, by round.
    fn of(&self, load: &str, policy: &str) -> Vec<PolicyResult> {
        let of = self.outcomes.iter().filter(|((l, p), _)| (*l, *p) == (load, policy));
        of.map(|(_, outcome)| *outcome).collect()
    }

    fn rows(&self, suffix: &str, page_bytes: u64) -> Vec<Row> {
        let mut rows = Vec::new();
        for (name, load, ours, theirs) in [
            ("zipf_own_hot_set_migration_gain", "own hot set", "paper", "off"),
            ("cost_over_paper_own_hot_set", "own hot set", "cost", "paper"),
            ("cost_over_paper_same_hot_set", "same hot set", "cost", "paper"),
            ("cost_over_off_own_hot_set", "own hot set", "cost", "off"),
            ("cost_over_off_same_hot_set", "same hot set", "cost", "off"),
            ("cost_over_off_uniform", "uniform", "cost", "off"),
            ("paper_over_off_uniform", "uniform", "paper", "off"),
            ("counting_over_off_uniform", "uniform", "counting", "off"),
        ] {
            rows.push(self.ratio(&format!("{name}{suffix}"), load, ours, theirs));
        }
        rows.push(self.oracle_share(&format!("oracle_gain_share{suffix}")));
        for (policy, name) in
            [("cost", "uniform_migration_share"), ("paper", "paper_uniform_migration_share")]
        {
            rows.push(self.fabric_share(&format!("{name}{suffix}"), policy));
        }
        for (policy, name) in [("cost", "even_page_moves"), ("paper", "paper_even_page_moves")] {
            let even = self.of("even", policy);
            let most = even.iter().map(|one| one.pages_moved).max().unwrap_or(0);
            let row = Row::new(&format!("{name}{suffix}"), "moves", Better::Lower, most as f64);
            rows.push(row.samples(even.len() as u64));
        }
        rows.into_iter().map(|row| row.with("page_bytes", page_bytes)).collect()
    }

    /// Rate under one policy beside that under another.
    fn ratio(&self, name: &str, load: &str, ours: &str, theirs: &str) -> Row {
        let (ours, theirs) = (self.of(load, ours), self.of(load, theirs));
        let late = median(ours.iter().map(|one| one.late));
        let reference = median(theirs.iter().map(|one| one.late));
        let ratios = |rate: fn(&PolicyResult) -> f64| {
            let pairs = ours.iter().zip(&theirs).map(|(ours, theirs)| rate(ours) / rate(theirs));
            pairs.collect::<Vec<f64>>()
        };
        let by_round = ratios(|one| one.late);
        let mut row = Row::new(name, "ops/s", Better::Higher, late);
        row = row.against(Reference::Peer(reference)).samples(ours.len() as u64);
        row.ratio = Some(median(by_round.iter().copied()));
        let moved = ours.iter().map(|one| one.pages_moved).sum::<u64>() / ours.len().max(1) as u64;
        row.with("ratios", json!(by_round))
            .with("whole_run", median(ratios(|one| one.whole)))
            .with("sum", median(ratios(|one| one.sum)))
            .with("all_rounds", all_rounds(&ours) / all_rounds(&theirs))
            .with("pages_moved", moved)
            .with("moves_failed", ours.iter().map(|one| one.failed).sum::<u64>())
    }

    /// What `cost` gains of what the oracle gains, both over `off`.
    fn oracle_share(&self, name: &str) -> Row {
        let of = |policy| self.of("own hot set", policy);
        let (off, cost, oracle) = (of("off"), of("cost"), of("oracle"));
        let share = |rate: fn(&PolicyResult) -> f64| {
            let rounds = off.iter().zip(&cost).zip(&oracle);
            let share = |((off, cost), oracle): ((&PolicyResult, &PolicyResult), &PolicyResult)| {
                (rate(cost) - rate(off)) / (rate(oracle) - rate(off))
            };
            median(rounds.map(share))
        };
        let over_off = median(off.iter().zip(&oracle).map(|(off, oracle)| oracle.late / off.late));
        Row::new(name, "share", Better::Higher, share(|one| one.late))
            .samples(off.len() as u64)
            .with("whole_run", share(|one| one.whole))
            .with("oracle_over_off", over_off)
    }

    /// Bytes of moves beside all bytes of the fabric, under uniform load. A page that moves crosses
    /// it twice at most: from its home to the mover, and not at all where the mover is. Beside it
    /// (`daemon_cpu_share`) what hearing of use, deciding and moving take of the servers' processor
    /// time: what their other threads take more than without, those that serve the fabric aside.
    fn fabric_share(&self, name: &str, policy: &str) -> Row {
        let (ours, off) = (self.of("uniform", policy), self.of("uniform", "off"));
        let share = |one: &PolicyResult| one.moved_bytes as f64 / one.fabric_bytes.max(1) as f64;
        let shares: Vec<f64> = ours.iter().map(share).collect();
        let cpu_s = |one: &PolicyResult| one.cpu_s / one.operations as f64;
        let cpu = ours.iter().zip(&off).map(|(ours, off)| cpu_s(ours) / cpu_s(off));
        let engine = ours
            .iter()
            .zip(&off)
            .map(|(ours, off)| (ours.engine_cpu_s - off.engine_cpu_s) / ours.cpu_s);
        let moved = ours.iter().map(|one| one.pages_moved).max().unwrap_or(0);
        Row::new(name, "share", Better::Lower, median(shares.iter().copied()))
            .samples(ours.len() as u64)
            .with("shares", json!(shares))
            .with("pages_moved_most", moved)
            .with("daemon_cpu_each_over_off", median(cpu))
            .with("daemon_cpu_share", median(engine))
    }
}

/// The rate over all rounds if as much is done in each.
fn all_rounds(outcomes: &[PolicyResult]) -> f64 {
    same_work(&outcomes.iter().map(|one| one.late).collect::<Vec<_>>()) / outcomes.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_answers_survive_their_way() {
        let line = serde_json::to_string(&MigrateCommand::Go { run_ms: 7 }).unwrap();
        assert_eq!(
            serde_json::from_str::<MigrateCommand>(&line).unwrap(),
            MigrateCommand::Go { run_ms: 7 }
        );
        let ran = MigrateMeasurement { operations: 3, late_operations: 1, elapsed_ns: 9 };
        let line = serde_json::to_string(&MigrateReply::Ran(ran)).unwrap();
        let MigrateReply::Ran(back) = serde_json::from_str(&line).unwrap() else {
            panic!("{line}")
        };
        assert_eq!((back.operations, back.late_operations), (3, 1));
    }

    #[test]
    fn racks_have_orders_of_their_own_or_the_same_one() {
        let of = |likes, client| order(likes, 100, 5, client);
        assert_ne!(of(Likes::OwnHotSet, 0), of(Likes::OwnHotSet, 1));
        assert_eq!(of(Likes::SameHotSet, 0), of(Likes::SameHotSet, 1));
        let mut all = of(Likes::OwnHotSet, 1);
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..100));
    }

    #[test]
    fn the_oracle_gives_each_rack_what_it_likes_and_the_others_every_second_page() {
        let options = Options::default();
        let (page_bytes, choice, seed) = (4096, oracle(), 5);
        let one = One { options: &options, page_bytes, likes: Likes::OwnHotSet, choice, seed };
        let homes = one.homes(100, true).unwrap();
        for client in 0..2_u64 {
            let [own, other] =
                [client, 1 - client].map(|it| order(Likes::OwnHotSet, 100, seed, it));
            // What one likes most and the other one does not like as much.
            let liked = own[..10].iter().filter(|page| !other[..10].contains(page));
            let liked: Vec<u8> = liked.map(|page| homes[*page as usize]).collect();
            assert!(liked.len() > 5 && liked.iter().all(|home| u64::from(*home) == client));
        }
        assert_eq!(one.homes(4, false).unwrap(), [0, 1, 0, 1]);
    }

    #[test]
    fn shares_and_ratios_are_medians_over_rounds() {
        let outcome = |late| PolicyResult { late, whole: late, ..PolicyResult::default() };
        let mut found = Found::default();
        for (round, off) in [10.0, 20.0, 40.0].into_iter().enumerate() {
            let cost = off * [3.0, 2.0, 2.0][round];
            for (policy, late) in
                [("off", off), ("paper", 1.5 * off), ("cost", cost), ("oracle", 4.0 * off)]
            {
                found.outcomes.push((("own hot set", policy), outcome(late)));
            }
        }
        let rows = found.rows("", 4096);
        let row = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!(row("zipf_own_hot_set_migration_gain").ratio, Some(1.5));
        assert_eq!(row("cost_over_off_own_hot_set").ratio, Some(2.0));
        assert!((row("oracle_gain_share").ours - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_machine_that_says_nothing_has_no_processor_time() {
        assert!(!cpu_by_thread(std::process::id()).is_empty());
        assert!(cpu_by_thread(0).is_empty());
    }
}
