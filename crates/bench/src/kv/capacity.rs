//! What a server makes of its memory: how many items of a size it keeps (`items_*`), what a
//! look-aside client finds in it (`hit_*`), and what an idle connection takes (`idle_connection`).
//!
//! Nothing here is timed. Each server is started anew for each row, has the same memory as the
//! others, and is there alone; Redis both with its LRU and with its LFU where that may matter. The
//! peer of a row is the better of all.

use super::blocking::BlockingClient;
use super::selection::RowSelection;
use super::servers::{self, ServerLimits, ServerProcess};
use super::{KvCores, Options, SEED, settle, started};
use crate::cache::workload::{CacheWorkload, Key, Op};
use crate::report::{Better, Reference, Report, Row};
use crate::run::{BenchError, Size, Steps};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;

/// Lengths of the values of `items_*`, bytes.
const ITEM_VALUES: [(&str, usize); 5] = [
    ("items_10", 10),
    ("items_50", 50),
    ("items_200", 200),
    ("items_1024", 1024),
    ("items_8000", 8000),
];
const ITEM_KEY_BYTES: usize = 16;
const ITEM_MEMORY_MIB: u64 = 256;
/// How far past what a server keeps it is filled.
const FILLED_TIMES: u64 = 2;
/// Times the memory that may be written before a server must have let something go.
const WRITTEN_TIMES_MAX: u64 = 4;
/// Values that are under way at once, bytes.
const FILL_BYTES_AT_ONCE: usize = 64 << 10;

/// Workloads of `hit_*`, and the memory of the servers, MiB.
const HITS: [(&str, &str, u64); 3] = [
    ("hit_leader_fbobj", "leader_fbobj", 64),
    ("hit_follower_assocs", "follower_assocs", 64),
    ("hit_cdn", "cdn", 256),
];
const HIT_KEYS: u64 = 500_000;
/// Operations before what is counted, and as many that are, for each key.
const HIT_OPS_PER_KEY: u64 = 2;
/// Operations that are under way at once.
const HIT_OPS_AT_ONCE: usize = 16;
const HIT_VALUE_BYTES_MAX: usize = 8 << 20;

const IDLE: &str = "idle_connection";
const IDLE_CONNECTIONS: u64 = 10_000;
const IDLE_MEMORY_MIB: u64 = 64;
/// Descriptors of a process beside its connections.
const DESCRIPTORS_BESIDE: u64 = 200;
/// How long servers have to give back what a connection has only while it is in use.
const IDLE_FOR: Duration = Duration::from_secs(10);

pub fn names() -> impl Iterator<Item = &'static str> {
    let items = ITEM_VALUES.iter().map(|(name, _)| *name);
    items.chain(HITS.iter().map(|(name, ..)| *name)).chain([IDLE])
}

/// A full run's memory, keys or connections divided by this.
const fn divisor(size: Size) -> u64 {
    match size {
        Size::Smoke => 16,
        Size::Quick => 4,
        Size::Full => 1,
    }
}

/// Servers that are measured one after another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerKind {
    Ours,
    RedisLru,
    RedisLfu,
    Memcached,
}

impl ServerKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::RedisLru => "redis_lru",
            Self::RedisLfu => "redis_lfu",
            Self::Memcached => "memcached",
        }
    }

    const fn is_resp(self) -> bool {
        !matches!(self, Self::Memcached)
    }
}

/// What each server did, ours first.
type Outcome<T> = Vec<(ServerKind, T)>;

/// Where the servers run, and which there are.
struct Contest<'o, 'c> {
    options: &'o mut Options<'c>,
    cores: KvCores,
}

impl Contest<'_, '_> {
    fn start(
        &mut self,
        kind: ServerKind,
        limits: ServerLimits,
    ) -> Result<ServerProcess, BenchError> {
        let Options { ours, peers, .. } = &mut *self.options;
        started(self.cores, || match (kind, peers) {
            (ServerKind::RedisLru, Some(peers)) => {
                servers::redis(&peers.redis, limits, Some("allkeys-lru"))
            }
            (ServerKind::RedisLfu, Some(peers)) => {
                servers::redis(&peers.redis, limits, Some("allkeys-lfu"))
            }
            (ServerKind::Memcached, Some(peers)) => servers::memcached(&peers.memcached, limits),
            _ => servers::ours(*ours, limits, &[]),
        })
    }

    /// What `measure` says of each server, which is there for it alone.
    fn each<T>(
        &mut self,
        kinds: &[ServerKind],
        limits: ServerLimits,
        mut measure: impl FnMut(ServerKind, &ServerProcess) -> Result<T, BenchError>,
    ) -> Result<Outcome<T>, BenchError> {
        let peers = if self.options.peers.is_some() { kinds } else { &[] };
        let mut outcome = Vec::new();
        for kind in [&[ServerKind::Ours], peers].concat() {
            let server = self.start(kind, limits)?;
            settle([&server].into_iter())?;
            outcome.push((kind, measure(kind, &server)?));
        }
        Ok(outcome)
    }
}

/// A row of ours beside the best of the others, with the figure of each.
fn row(name: &str, unit: &str, better: Better, outcome: &[(ServerKind, f64)]) -> Row {
    let mut row = Row::new(name, unit, better, outcome[0].1);
    let is_better = |a: f64, b: f64| match better {
        Better::Higher => a > b,
        Better::Lower => a < b,
    };
    let peers = &outcome[1..];
    let best = peers.iter().reduce(|a, b| if is_better(b.1, a.1) { b } else { a });
    if let Some((kind, figure)) = best {
        row = row.against(Reference::Peer(*figure)).with("peer_name", kind.name());
    }
    peers.iter().fold(row, |row, (kind, figure)| row.with(kind.name(), *figure))
}

/// The rows.
pub fn rows(
    options: &mut Options<'_>,
    cores: KvCores,
    selection: &RowSelection,
    steps: &mut Steps<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    let mut contest = Contest { options, cores };
    for (name, value_bytes) in ITEM_VALUES {
        if selection.has(name) {
            steps.begin(name);
            report.results.push(items_row(&mut contest, name, value_bytes)?);
        }
    }
    let workloads = crate::cache::workload::all();
    for (name, workload, memory_mib) in HITS {
        if selection.has(name) {
            steps.begin(name);
            let workload = workloads.iter().find(|it| it.name == workload);
            let workload = workload.expect("one of the eight");
            report.results.push(hit_row(&mut contest, name, workload, memory_mib)?);
        }
    }
    if selection.has(IDLE) {
        steps.begin(IDLE);
        report.results.push(idle_row(&mut contest)?);
    }
    Ok(())
}

fn items_row(
    contest: &mut Contest<'_, '_>,
    name: &str,
    value_bytes: usize,
) -> Result<Row, BenchError> {
    let memory_mib = ITEM_MEMORY_MIB / divisor(contest.options.size);
    let limits = ServerLimits { memory_mib, connections: 1024 };
    let memory = memory_mib << 20;
    let kept =
        contest.each(&[ServerKind::RedisLru, ServerKind::Memcached], limits, |kind, server| {
            fill(server, kind.is_resp(), memory, value_bytes)
        })?;
    let figures: Outcome<f64> = kept.iter().map(|(kind, kept)| (*kind, *kept as f64)).collect();
    let mut row = row(name, "count", Better::Higher, &figures)
        .with("memory_bytes", memory)
        .with("value_bytes", value_bytes)
        .with("key_bytes", ITEM_KEY_BYTES);
    for (kind, kept) in kept {
        let beside = memory as f64 / kept as f64 - (ITEM_KEY_BYTES + value_bytes) as f64;
        row = row.with(&format!("{}_overhead_bytes", kind.name()), beside);
    }
    Ok(row)
}

/// Stores items until there were [`FILLED_TIMES`] those that are kept; how many are.
fn fill(
    server: &ServerProcess,
    is_resp: bool,
    memory: u64,
    value_bytes: usize,
) -> Result<u64, BenchError> {
    let mut client = BlockingClient::new(server.address(is_resp), is_resp)?;
    // No number, which Redis would keep as such.
    let value = vec![b'v'; value_bytes];
    let item_bytes = ITEM_KEY_BYTES + value_bytes;
    let at_once = (FILL_BYTES_AT_ONCE / item_bytes).max(1) as u64;
    let written_max = WRITTEN_TIMES_MAX * memory / item_bytes as u64;
    // So often that the count is near what it would be at the end.
    let step = (written_max / 32).next_multiple_of(at_once);
    let (mut written, mut kept) = (0, 0);
    while written < FILLED_TIMES * kept || kept == 0 {
        if written >= written_max {
            let reason = format!("{kept} of {written} items are kept in {memory} bytes");
            return Err(BenchError::Option { option: "rows", reason });
        }
        for first in (written..written + step).step_by(at_once as usize) {
            for number in first..first + at_once {
                client.queue_set(&format!("{number:0ITEM_KEY_BYTES$}"), &value);
            }
            client.send()?;
            for _ in 0..at_once {
                client.stored()?;
            }
        }
        written += step;
        kept = client.items()?;
    }
    Ok(kept)
}

/// What a look-aside client found, as shares of what it asked for, and bytes that it stored.
pub(super) struct HitShares {
    pub objects: f64,
    pub bytes: f64,
    pub stored_bytes: u64,
}

fn hit_row(
    contest: &mut Contest<'_, '_>,
    name: &str,
    workload: &CacheWorkload,
    memory_mib: u64,
) -> Result<Row, BenchError> {
    let divisor = divisor(contest.options.size);
    let (keys, memory_mib) = (HIT_KEYS / divisor, memory_mib / divisor);
    let limits = ServerLimits { memory_mib, connections: 1024 };
    let kinds = [ServerKind::RedisLru, ServerKind::RedisLfu, ServerKind::Memcached];
    let shares = contest.each(&kinds, limits, |kind, server| {
        let client = BlockingClient::new(server.address(kind.is_resp()), kind.is_resp())?;
        let stream = workload.stream(keys as f64 / workload.keys, SEED);
        look_aside(client, stream, keys * HIT_OPS_PER_KEY)
    })?;
    let of = |share: fn(&HitShares) -> f64| -> Outcome<f64> {
        shares.iter().map(|(kind, shares)| (*kind, share(shares))).collect()
    };
    let (objects, bytes) = (of(|shares| shares.objects), of(|shares| shares.bytes));
    let mut row = row(name, "hit ratio", Better::Higher, &objects)
        .samples(keys * HIT_OPS_PER_KEY)
        .with("memory_bytes", memory_mib << 20)
        .with("keys", keys)
        .with("ours_bytes_hit", bytes[0].1);
    for (kind, share) in &bytes[1..] {
        row = row.with(&format!("{}_bytes_hit", kind.name()), *share);
    }
    Ok(row)
}

/// Looks keys up and stores what is not there; what was found after as many operations that were
/// not counted.
pub(super) fn look_aside(
    mut client: BlockingClient,
    mut stream: impl Iterator<Item = Op>,
    counted_from: u64,
) -> Result<HitShares, BenchError> {
    let value = vec![b'v'; HIT_VALUE_BYTES_MAX];
    let (mut gets, mut hits, mut asked_bytes, mut hit_bytes) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut stored_bytes = 0;
    let mut number = 0;
    while number < 2 * counted_from {
        let ops: Vec<Op> = stream.by_ref().take(HIT_OPS_AT_ONCE).collect();
        ops.iter().filter(|op| op.is_get).for_each(|op| client.queue_get(&text_key(&op.key)));
        client.send()?;
        let mut missing = Vec::with_capacity(ops.len());
        for op in &ops {
            let found = if op.is_get { client.found()? } else { None };
            if found.is_none() {
                missing.push(op.key);
            }
            if op.is_get && number >= counted_from {
                let bytes = u64::from(op.key.value_bytes);
                (gets, asked_bytes) = (gets + 1, asked_bytes + bytes);
                hits += u64::from(found.is_some());
                hit_bytes += if found.is_some() { bytes } else { 0 };
            }
            number += 1;
        }
        for key in &missing {
            stored_bytes += u64::from(key.key_bytes + key.value_bytes);
            client.queue_set(&text_key(key), &value[..key.value_bytes as usize]);
        }
        client.send()?;
        for _ in &missing {
            client.stored()?;
        }
    }
    let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
    let (objects, bytes) = (share(hits, gets), share(hit_bytes, asked_bytes));
    Ok(HitShares { objects, bytes, stored_bytes })
}

/// A key as text, which memcached's protocol asks for: of the same length.
pub(super) fn text_key(key: &Key) -> String {
    let kind = if key.id >> 63 == 1 { 'l' } else { 'k' };
    let mut text = format!("{kind}{:07x}", key.id & !(1 << 63));
    text.extend(std::iter::repeat_n('.', (key.key_bytes as usize).saturating_sub(text.len())));
    text
}

fn idle_row(contest: &mut Contest<'_, '_>) -> Result<Row, BenchError> {
    let count = (IDLE_CONNECTIONS / divisor(contest.options.size)).min(descriptors_left());
    let connections = count as usize + DESCRIPTORS_BESIDE as usize;
    let limits = ServerLimits { memory_mib: IDLE_MEMORY_MIB, connections };
    let bytes =
        contest.each(&[ServerKind::RedisLru, ServerKind::Memcached], limits, |kind, server| {
            let before = server.resident_bytes()?;
            let idle: Result<Vec<_>, BenchError> = (0..count)
                .map(|_| {
                    let mut client =
                        BlockingClient::new(server.address(kind.is_resp()), kind.is_resp())?;
                    client.ping()?;
                    Ok(client.into_stream())
                })
                .collect();
            let idle = idle?;
            std::thread::sleep(IDLE_FOR);
            let grown = server.resident_bytes()?.saturating_sub(before);
            Ok(grown as f64 / idle.len() as f64)
        })?;
    Ok(row(IDLE, "B", Better::Lower, &bytes).with("connections", count))
}

/// Connections that this process may still have, with its limit raised as far as it may be.
fn descriptors_left() -> u64 {
    let Rlimit { maximum, current } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let limit = if raised.is_ok() { maximum } else { current };
    limit.unwrap_or(u64::MAX).saturating_sub(DESCRIPTORS_BESIDE)
}
