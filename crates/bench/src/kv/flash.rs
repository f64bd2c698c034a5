//! `bench flash`: our server with `--flash` beside memcached's extstore and, with the feature
//! `peers`, beside foyer's hybrid cache, on the same bytes of memory and disk; and what flash costs
//! a look-up that memory answers.
//!
//! Memory is what holds items and says where they lie: of ours the index of flash goes off
//! `--memory`. What all have beside it, buffers for writes above all, is in `resident_bytes`. Keys
//! are so many that all items have eight times the memory. `disk_bytes_per_stored_byte` is what a
//! process had written to devices for each byte of keys and values that its client stored;
//! `write_amplification` for each byte of items that went to flash.

use super::blocking::BlockingClient;
use super::capacity::{HitShares, look_aside, text_key};
use super::client::{LoadGenerator, LoadOptions, Work, store_all};
use super::servers::{self, ServerLimits, ServerProcess};
use super::{KvCores, SEED, Still, settle, started};
use crate::cache::workload::{self, CacheWorkload, Op};
use crate::interleave::compare;
use crate::micro::pin::{self, CorePair};
use crate::probe::SystemProbe;
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, Progress, Size, Steps, io_error};
use rackpool_mem::temporary::TemporaryDir;
use rackpool_stats::histogram::Histogram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What `bench flash` measures on.
pub struct FlashOptions<'c> {
    pub size: Size,
    /// Memcached, if it is to be measured, and foyer if this program has it.
    pub memcached: Option<PathBuf>,
    /// Where files are made, which go at the end: on the device that is measured.
    pub directory: PathBuf,
    /// Names of workloads; none for all.
    pub workloads: Vec<String>,
    /// Starts our server with these further words.
    pub ours: &'c mut dyn FnMut(&[&str]) -> Command,
}

const WORKLOADS: [&str; 3] = ["kvcache_l2_reg", "kvcache_l2_wc", "leader_fbobj"];
/// Bytes of all items, times the memory.
const WORKING_SET: u64 = 8;
/// Bytes of flash, times the memory.
const FLASH: u64 = 4;
/// Operations before what is counted, and as many that are, for each key.
const OPS_PER_KEY: u64 = 3;
/// Keys that are asked for while memory answers.
const HOT_KEYS: u32 = 10_000;
/// Operations a second of the client beside that one.
const BESIDE_PER_S: f64 = 1_000.0;
/// Those that it has under way at once.
const BESIDE_AT_ONCE: usize = 8;
/// As extstore's own document has it for small items.
const EXTSTORE_ITEM_BYTES: u64 = 128;

const fn memory_mib(size: Size) -> u64 {
    match size {
        Size::Smoke => 16,
        Size::Quick => 32,
        Size::Full => 64,
    }
}

/// What a cache did with a workload.
pub(super) struct FlashOutcome {
    pub name: &'static str,
    pub shares: HitShares,
    pub written_bytes: u64,
    /// Of items that went to flash.
    pub admitted_bytes: Option<u64>,
    pub resident_bytes: u64,
    pub took: Duration,
}

/// One workload, for all caches alike.
pub(super) struct FlashContest<'w> {
    pub workload: &'w CacheWorkload,
    pub keys: u64,
    pub memory_bytes: u64,
    pub flash_bytes: u64,
}

impl<'w> FlashContest<'w> {
    fn new(workload: &'w CacheWorkload, size: Size) -> FlashContest<'w> {
        let memory_bytes = memory_mib(size) << 20;
        let item_bytes = workload.value_bytes_mean() + workload.key_bytes_mean();
        let keys = ((memory_bytes * WORKING_SET) as f64 / item_bytes) as u64;
        FlashContest { workload, keys, memory_bytes, flash_bytes: memory_bytes * FLASH }
    }

    pub fn ops(&self) -> impl Iterator<Item = Op> + use<'w> {
        let stream = self.workload.stream(self.keys as f64 / self.workload.keys, SEED);
        stream.with_even_lengths()
    }

    pub fn counted_from(&self) -> u64 {
        self.keys * OPS_PER_KEY
    }
}

/// Measures all caches, one after the other.
///
/// # Errors
/// [`BenchError`]; every process that was started and every file is gone then.
pub fn run(
    options: &mut FlashOptions<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, BenchError> {
    let mut report = Report::here(Kind::Measured);
    let wanted =
        |name: &&str| options.workloads.is_empty() || options.workloads.iter().any(|it| it == name);
    let names: Vec<&str> = WORKLOADS.into_iter().filter(wanted).collect();
    if names.len() < options.workloads.len() {
        let reason = format!("they are {}", WORKLOADS.join(", "));
        return Err(BenchError::Option { option: "workload", reason });
    }
    report.extra.insert("size".into(), options.size.name().into());
    if let Some(program) = &options.memcached {
        report.extra.insert("memcached".into(), servers::version(program)?.into());
    }
    let folder = TemporaryDir::new(&options.directory, "benchflash").map_err(io_error("files"))?;
    let cores = pin::allowed_cores()?;
    let CorePair { first: server, second: client } = pin::two_cores()?;
    let mut steps = Steps::new(3 * names.len() + 2, progress);
    let measured = rows(options, &names, folder.path(), KvCores { server, client }, &mut steps);
    pin::pin_to_any(&cores)?;
    report.results = measured?;
    steps.end();
    Ok(report)
}

fn rows(
    options: &mut FlashOptions<'_>,
    names: &[&str],
    folder: &Path,
    cores: KvCores,
    steps: &mut Steps<'_>,
) -> Result<Vec<Row>, BenchError> {
    let all = workload::all();
    let mut rows = Vec::new();
    for name in names {
        let workload = all.iter().find(|it| it.name == *name).expect("one of the eight");
        let contest = FlashContest::new(workload, options.size);
        steps.begin(name);
        let mut outcomes = vec![ours(options, &contest, folder, cores)?];
        if let Some(program) = &options.memcached {
            steps.begin(&format!("{name}: extstore"));
            outcomes.push(extstore(program, &contest, folder, cores)?);
            #[cfg(feature = "peers")]
            {
                steps.begin(&format!("{name}: foyer"));
                // As fast as ours was asked: its writer drops what comes faster than it writes.
                let pace = outcomes[0].took / (2 * contest.counted_from()) as u32;
                outcomes.push(super::flash_foyer::measure(&contest, folder, pace)?);
            }
        }
        rows.push(hit_row(&contest, &outcomes));
    }
    for (name, is_busy) in [("get_memory_hit", false), ("get_memory_hit_busy", true)] {
        steps.begin(name);
        rows.extend(hit_cost(options, name, is_busy, folder, cores)?);
    }
    Ok(rows)
}

fn hit_row(contest: &FlashContest<'_>, outcomes: &[FlashOutcome]) -> Row {
    let name = format!("hit_{}", contest.workload.name);
    let mut row = Row::new(&name, "hit ratio", Better::Higher, outcomes[0].shares.objects)
        .samples(contest.counted_from())
        .with("memory_bytes", contest.memory_bytes)
        .with("flash_bytes", contest.flash_bytes)
        .with("keys", contest.keys);
    let peers = outcomes[1..].iter().map(|peer| peer.shares.objects);
    if let Some(best) = peers.reduce(f64::max) {
        row = row.against(Reference::Peer(best));
    }
    for FlashOutcome { name, shares, written_bytes, admitted_bytes, resident_bytes, took } in
        outcomes
    {
        let per = |bytes: u64| *written_bytes as f64 / bytes.max(1) as f64;
        row = row
            .with(&format!("{name}_hit"), shares.objects)
            .with(&format!("{name}_bytes_hit"), shares.bytes)
            .with(&format!("{name}_disk_bytes_per_stored_byte"), per(shares.stored_bytes))
            .with(&format!("{name}_resident_bytes"), *resident_bytes)
            .with(&format!("{name}_took_s"), took.as_secs_f64());
        if let Some(admitted) = admitted_bytes {
            row = row.with(&format!("{name}_write_amplification"), per(*admitted));
        }
    }
    row
}

/// Asks a server for a workload.
fn ask(
    name: &'static str,
    server: &ServerProcess,
    contest: &FlashContest<'_>,
) -> Result<FlashOutcome, BenchError> {
    settle([server].into_iter())?;
    let start = Instant::now();
    let client = BlockingClient::new(server.address(false), false)?;
    let shares = look_aside(client, contest.ops(), contest.counted_from())?;
    let took = start.elapsed();
    let written_bytes = server.written_bytes()?;
    let resident_bytes = server.resident_bytes()?;
    Ok(FlashOutcome { name, shares, written_bytes, admitted_bytes: None, resident_bytes, took })
}

fn ours(
    options: &mut FlashOptions<'_>,
    contest: &FlashContest<'_>,
    folder: &Path,
    cores: KvCores,
) -> Result<FlashOutcome, BenchError> {
    // A slot for each item that has room there, as the option's own guess of their length may not.
    let index_bytes = index_bytes(contest);
    let place = place(folder, contest.flash_bytes, index_bytes);
    let memory_mib = (contest.memory_bytes - index_bytes) >> 20;
    let limits = ServerLimits { memory_mib, ..limits(contest) };
    let words = ["--flash", &place];
    let server = started(cores, || servers::ours(options.ours, limits, &words))?;
    let outcome = ask("ours", &server, contest)?;
    let mut client = BlockingClient::new(server.address(false), false)?;
    let admitted_bytes = client.stat("flash_admitted_bytes ")?;
    drop(server);
    remove(folder)?;
    Ok(FlashOutcome { admitted_bytes, ..outcome })
}

fn index_bytes(contest: &FlashContest<'_>) -> u64 {
    let item_bytes = contest.workload.value_bytes_mean() + contest.workload.key_bytes_mean();
    // 16 bytes a slot, of which three quarters are used.
    ((contest.flash_bytes as f64 / item_bytes) as u64 * 22).next_multiple_of(1 << 20)
}

fn place(folder: &Path, bytes: u64, index_bytes: u64) -> String {
    let path = folder.join("flash").display().to_string();
    format!("{path}?size={}k&index={}k", bytes >> 10, index_bytes >> 10)
}

fn limits(contest: &FlashContest<'_>) -> ServerLimits {
    ServerLimits { memory_mib: contest.memory_bytes >> 20, connections: 1024 }
}

fn extstore(
    program: &Path,
    contest: &FlashContest<'_>,
    folder: &Path,
    cores: KvCores,
) -> Result<FlashOutcome, BenchError> {
    let path = folder.join("extstore").display().to_string();
    let disk = format!(
        "ext_page_size=16,ext_wbuf_size=4,ext_threads=4,ext_item_size={EXTSTORE_ITEM_BYTES},\
         ext_path={path}:{}m",
        contest.flash_bytes >> 20
    );
    // Its user has to be allowed into the folder.
    let words = ["-u", "root", "-o", &disk];
    let server = started(cores, || servers::memcached_with(program, limits(contest), &words))?;
    let outcome = ask("extstore", &server, contest)?;
    let mut client = BlockingClient::new(server.address(false), false)?;
    let [objects, rescues] = ["extstore_objects_written ", "extstore_compact_rescues "];
    let (objects, rescues) = (client.stat(objects)?, client.stat(rescues)?);
    // It counts objects, not bytes, of what it writes once more.
    let admitted = objects.zip(rescues).map(|(objects, rescues)| {
        let first = objects.saturating_sub(rescues) as f64 / objects.max(1) as f64;
        (outcome.written_bytes as f64 * first) as u64
    });
    drop(server);
    remove(folder)?;
    Ok(FlashOutcome { admitted_bytes: admitted, ..outcome })
}

/// Makes room for the next one.
pub(super) fn remove(folder: &Path) -> Result<(), BenchError> {
    for entry in std::fs::read_dir(folder).map_err(io_error("files"))? {
        let path = entry.map_err(io_error("files"))?.path();
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        removed.map_err(io_error("files"))?;
    }
    Ok(())
}

/// A server, and what it is asked for that its memory has.
struct HotSide<'s> {
    client: LoadGenerator,
    server: &'s ServerProcess,
    other: &'s ServerProcess,
    contest: &'s FlashContest<'s>,
    is_busy: bool,
    latency: Histogram,
}

impl<'s> HotSide<'s> {
    fn new(
        servers: [&'s ServerProcess; 2],
        contest: &'s FlashContest<'s>,
        is_busy: bool,
    ) -> Result<HotSide<'s>, BenchError> {
        let [server, other] = servers;
        let addr = server.address(false);
        store_all(addr, false, HOT_KEYS)?;
        let work = Work::Get { depth: 1 };
        let (resp, connections, keys, seed) = (false, 1, HOT_KEYS, SEED);
        let client = LoadGenerator::new(LoadOptions { addr, resp, work, connections, keys, seed })?;
        Ok(HotSide { client, server, other, contest, is_busy, latency: Histogram::new() })
    }

    /// This quantile of a slice, ns.
    fn slice(&mut self, time: Duration, quantile: f64) -> Result<f64, BenchError> {
        let _still = Still::hold(&[self.other])?;
        let mut latency = Histogram::new();
        let is_over = AtomicBool::new(false);
        let (server, contest) = (self.server, self.contest);
        std::thread::scope(|scope| {
            let beside = self.is_busy.then(|| scope.spawn(|| beside(server, contest, &is_over)));
            let asked = self.client.run(time, &mut latency);
            // Relaxed: the thread looks at nothing else.
            is_over.store(true, Ordering::Relaxed);
            let beside = beside.map(|beside| {
                beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            asked?;
            beside.transpose()
        })?;
        self.latency.merge(&latency);
        Ok(latency.quantile(quantile) as f64)
    }
}

/// Another client, which asks for what lies on flash as well, at an even rate.
fn beside(
    server: &ServerProcess,
    contest: &FlashContest<'_>,
    is_over: &AtomicBool,
) -> Result<(), BenchError> {
    let mut client = BlockingClient::new(server.address(false), false)?;
    let value = vec![b'v'; 1 << 20];
    let (mut ops, start, mut done) = (contest.ops(), Instant::now(), 0);
    // Relaxed: see `HotSide::slice`.
    while !is_over.load(Ordering::Relaxed) {
        let ops: Vec<Op> = ops.by_ref().take(BESIDE_AT_ONCE).collect();
        ops.iter().for_each(|op| client.queue_get(&text_key(&op.key)));
        client.send()?;
        let mut missing = Vec::new();
        for op in &ops {
            if client.found()?.is_none() {
                missing.push(op.key);
            }
        }
        for key in &missing {
            client.queue_set(&text_key(key), &value[..key.value_bytes as usize]);
        }
        client.send()?;
        for _ in &missing {
            client.stored()?;
        }
        done += BESIDE_AT_ONCE;
        let until = start + Duration::from_secs_f64(done as f64 / BESIDE_PER_S);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// Look-ups that memory answers, with and without flash.
fn hit_cost(
    options: &mut FlashOptions<'_>,
    name: &str,
    is_busy: bool,
    folder: &Path,
    cores: KvCores,
) -> Result<Vec<Row>, BenchError> {
    let all = workload::all();
    let workload = all.iter().find(|it| it.name == WORKLOADS[0]).expect("one of the eight");
    let contest = FlashContest::new(workload, options.size);
    let place = place(folder, contest.flash_bytes, index_bytes(&contest));
    let limits = limits(&contest);
    let with = started(cores, || servers::ours(options.ours, limits, &["--flash", &place]))?;
    let without = started(cores, || servers::ours(options.ours, limits, &[]))?;
    for server in [&with, &without] {
        let client = BlockingClient::new(server.address(false), false)?;
        look_aside(client, contest.ops(), contest.counted_from() / 4)?;
    }
    settle([&with, &without].into_iter())?;
    let mut ours = HotSide::new([&with, &without], &contest, is_busy)?;
    let mut theirs = HotSide::new([&without, &with], &contest, is_busy)?;
    let (rules, time) = (options.size.rules(), slice(options.size));
    let mut rows = Vec::new();
    for (quantile, word) in [(0.5, "p50"), (0.99, "p99")] {
        let mut probe =
            SystemProbe::of_processes(vec![std::process::id(), with.pid(), without.pid()]);
        let (ours_slice, theirs_slice) =
            (|| ours.slice(time, quantile), || theirs.slice(time, quantile));
        let compared = compare(&rules, SEED, &mut probe, ours_slice, theirs_slice)?;
        let name = format!("{name}_{word}");
        rows.push(Row::compared(&name, "ns", Better::Lower, &compared, Reference::Raw));
    }
    drop((ours, theirs));
    drop((with, without));
    remove(folder)?;
    Ok(rows)
}

fn slice(size: Size) -> Duration {
    Duration::from_millis(match size {
        Size::Smoke => 20,
        Size::Quick => 300,
        Size::Full => 1_000,
    })
}
