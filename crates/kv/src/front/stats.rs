//! What a server says about itself, by the names that tools expect: memcached's `stats`, Redis's
//! `INFO` and `CONFIG GET`, Prometheus. In: counters of all threads and of the cache. Called by the
//! commands, and by the thread that answers over HTTP.

use super::binary::{BinaryReply, BinaryRequest, Status};
use super::core::Core;
use super::counters::{self, Count};
use super::resp::REDIS_VERSION;
use super::shared::Shared;
use super::text::{VERSION, WordIter};
use crate::cache::{Mode, Stats};
use crate::herd::HerdCounter;
use rackpool::metrics::{Kind, Page, Text};
use rustix::process::{Resource, getrlimit};
use std::fmt::Write;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Names and values, in order.
type Pairs = Vec<(String, String)>;

fn pair(pairs: &mut Pairs, name: &str, value: impl ToString) {
    pairs.push((name.to_owned(), value.to_string()));
}

/// Answers to `stats` with the words behind it.
pub fn text(core: &mut Core, mut words: WordIter<'_>) {
    let word = words.next();
    let Some(pairs) = collect(core, word.unwrap_or(b"")) else {
        let answer: &[u8] = match word {
            Some(b"reset") => {
                core.shared.reset_counts();
                b"RESET\r\n"
            }
            Some(b"detail") => match words.next() {
                Some(b"on" | b"off") => b"OK\r\n",
                Some(b"dump") => b"END\r\n",
                _ => b"CLIENT_ERROR usage: stats detail on|off|dump\r\n",
            },
            Some(b"cachedump") => b"CLIENT_ERROR stats cachedump not allowed\r\n",
            _ => b"ERROR\r\n",
        };
        return core.out.bytes.extend_from_slice(answer);
    };
    let out = &mut core.out.bytes;
    for (name, value) in pairs {
        // Writing to a vector cannot fail.
        let _ = std::io::Write::write_fmt(out, format_args!("STAT {name} {value}\r\n"));
    }
    out.extend_from_slice(b"END\r\n");
}

/// Answers to a `STAT` request: each pair is an answer of its own, an empty one ends them.
pub fn binary(core: &mut Core, request: &BinaryRequest<'_>) {
    let pairs = match request.key {
        b"reset" => {
            core.shared.reset_counts();
            Pairs::new()
        }
        word => match collect(core, word) {
            Some(pairs) => pairs,
            None => return core.binary_error(request, Status::NotFound),
        },
    };
    let end = [(String::new(), String::new())];
    for (name, value) in pairs.iter().chain(&end) {
        let head = BinaryReply {
            opcode: request.opcode,
            opaque: request.opaque,
            status: Status::Success,
            extras_bytes: 0,
            key_bytes: name.len() as u16,
            body_bytes: (name.len() + value.len()) as u32,
            cas: 0,
        };
        let out = &mut core.out.bytes;
        out.extend_from_slice(&head.bytes());
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(value.as_bytes());
    }
}

fn collect(core: &Core, word: &[u8]) -> Option<Pairs> {
    let shared = &core.shared;
    match word {
        b"" => Some(general(core)),
        b"settings" => Some(settings(shared)),
        b"items" => Some(items(&shared.cache_stats())),
        b"slabs" => Some(slabs(shared)),
        b"sizes" => Some(vec![("sizes_status".into(), "disabled".into())]),
        b"conns" => Some(vec![("curr_connections".into(), shared.connections().to_string())]),
        _ => None,
    }
}

/// Seconds since the server started.
fn uptime_s(shared: &Shared) -> u64 {
    rackpool_hw::process::monotonic_ns() / 1_000_000_000 - shared.started.0 / 1000
}

/// CPU time of this process: user and system, microseconds.
fn cpu_us() -> (u64, u64) {
    // Fields 14 and 15 of the line, counted after the name's closing bracket; in ticks of 10 ms.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut ticks = rest.split_ascii_whitespace().skip(11).map(|n| n.parse().unwrap_or(0));
    let mut next = || ticks.next().unwrap_or(0u64) * 10_000;
    (next(), next())
}

/// Memory of this process that lies in pages, bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0u64) * rustix::param::page_size() as u64
}

/// A counter: its name, what it is, and in words.
type Counted = (&'static str, Count, &'static str);

/// Counters that go by their names in `stats` here as well.
const COUNTS: &[Counted] = &[
    ("cmd_get", Count::CmdGet, "Keys looked up by memcached's commands"),
    ("cmd_set", Count::CmdSet, "Values that memcached's commands brought"),
    ("cmd_flush", Count::CmdFlush, "Orders to empty the cache"),
    ("cmd_touch", Count::CmdTouch, "New expiries by memcached's commands"),
    ("cmd_meta", Count::CmdMeta, "Meta commands of memcached"),
    ("get_hits", Count::GetHits, "Keys that memcached's commands found"),
    ("get_misses", Count::GetMisses, "Keys that memcached's commands did not find"),
    ("delete_misses", Count::DeleteMisses, "Removals of what was not there"),
    ("delete_hits", Count::DeleteHits, "Items removed by memcached's commands"),
    ("incr_misses", Count::IncrMisses, "Numbers to be raised that were not there"),
    ("incr_hits", Count::IncrHits, "Numbers raised"),
    ("decr_misses", Count::DecrMisses, "Numbers to be lowered that were not there"),
    ("decr_hits", Count::DecrHits, "Numbers lowered"),
    ("cas_misses", Count::CasMisses, "Values stored on a condition whose item was not there"),
    ("cas_hits", Count::CasHits, "Values stored on a condition that held"),
    ("cas_badval", Count::CasBadval, "Values not stored since their condition did not hold"),
    ("touch_hits", Count::TouchHits, "New expiries of what was there"),
    ("touch_misses", Count::TouchMisses, "New expiries of what was not there"),
    ("store_too_large", Count::TooLarge, "Values refused since they were too long"),
    ("store_no_memory", Count::NoMemory, "Values refused since there was no memory"),
    ("tier_failed", Count::TierFailed, "Values that could not be read from another tier"),
    ("auth_cmds", Count::AuthCmds, "Passwords given"),
    ("auth_errors", Count::AuthErrors, "Wrong passwords"),
    ("bytes_read", Count::BytesRead, "Bytes received"),
    ("bytes_written", Count::BytesWritten, "Bytes sent"),
];

/// Why connections were refused or ended, by names of our own.
const REFUSALS: &[Counted] = &[
    ("slow_readers", Count::SlowReaders, "Connections ended that took no answers"),
    ("slow_writers", Count::SlowWriters, "Connections ended that did not go on with a command"),
    ("idle_kicks", Count::IdleKicks, "Connections ended that were silent"),
    ("idle_evictions", Count::IdleEvictions, "Silent connections ended for new ones"),
    (
        "handshake_timeouts",
        Count::HandshakeTimeouts,
        "Connections ended before handshake and password were over",
    ),
    ("held_too_much", Count::HeldTooMuch, "Connections ended since all held too much memory"),
    ("address_rejected", Count::AddressRejected, "Connections refused to addresses with many"),
    ("http_refused", Count::HttpRefused, "Connections ended since HTTP came"),
    ("protocol_errors", Count::ProtocolErrors, "Connections ended since no protocol came"),
];

fn general(core: &Core) -> Pairs {
    let shared = &core.shared;
    let cache = shared.cache_stats();
    let mut pairs = Pairs::new();
    let mut put = |name: &str, value: String| pairs.push((name.to_owned(), value));
    let (user, system) = cpu_us();
    let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    put("pid", std::process::id().to_string());
    put("uptime", uptime_s(shared).to_string());
    put("time", (core.shared.wall(core.now) / 1000).to_string());
    put("version", VERSION.to_owned());
    put("pointer_size", usize::BITS.to_string());
    put("rusage_user", seconds(user));
    put("rusage_system", seconds(system));
    put("max_connections", shared.settings.connections_max.to_string());
    put("curr_connections", shared.connections().to_string());
    put("total_connections", shared.count(Count::Accepted).to_string());
    put("rejected_connections", shared.count(Count::Rejected).to_string());
    // Here clients are refused one by one, and listeners stay open.
    put("listen_disabled_num", shared.count(Count::Rejected).to_string());
    for (name, count, _) in COUNTS {
        put(name, shared.count(*count).to_string());
    }
    put("get_expired", cache.expired.to_string());
    for (name, count, _) in REFUSALS {
        put(name, shared.count(*count).to_string());
    }
    put("limit_maxbytes", shared.settings.memory_bytes.to_string());
    put("accepting_conns", "1".into());
    put("threads", shared.settings.threads.to_string());
    put("bytes", cache.live_bytes.to_string());
    put("metadata_bytes", cache.metadata_bytes.to_string());
    put("curr_items", cache.items.to_string());
    put("tier_items", cache.tier_items.to_string());
    put("tier_bytes", cache.tier_bytes.to_string());
    put("tier_bytes_read", cache.tier_bytes_read.to_string());
    put("tier_promotions", cache.tier_promotions.to_string());
    put("tier_near_hits", cache.tier_near_hits.to_string());
    put("tier_near_bytes", cache.tier_near_bytes.to_string());
    put("total_items", cache.sets.to_string());
    put("evictions", (cache.evictions + cache.index_evictions).to_string());
    put("reclaimed", cache.expired.to_string());
    for (name, value) in herd(shared) {
        put(&name, value.to_string());
    }
    pairs
}

/// What HERD's listener has counted, if it is open.
fn herd(shared: &Shared) -> Vec<(String, u64)> {
    let Some(counters) = shared.herd.get().filter(|counters| !counters.is_empty()) else {
        return Vec::new();
    };
    let sum = |what| counters.iter().map(|counters| counters.get(what)).sum();
    HerdCounter::ALL.iter().map(|(what, name)| (format!("herd_{name}"), sum(*what))).collect()
}

fn settings(shared: &Shared) -> Pairs {
    let settings = &shared.settings;
    let (memcached, _) = *shared.addrs.lock().unwrap_or_else(PoisonError::into_inner);
    let yes = |on: bool| if on { "yes" } else { "no" };
    let mut pairs = Pairs::new();
    pair(&mut pairs, "maxbytes", settings.memory_bytes);
    pair(&mut pairs, "maxconns", settings.connections_max);
    pair(&mut pairs, "tcpport", memcached.map_or(0, |addr| addr.port()));
    pair(&mut pairs, "udpport", 0);
    pair(&mut pairs, "inter", memcached.map_or("NULL".into(), |addr| addr.ip().to_string()));
    pair(&mut pairs, "verbosity", 0);
    let evicts = shared.cache.options().mode == Mode::Cache;
    pair(&mut pairs, "evictions", if evicts { "on" } else { "off" });
    pair(&mut pairs, "num_threads", settings.threads);
    pair(&mut pairs, "cas_enabled", "yes");
    pair(&mut pairs, "binding_protocol", "auto-negotiate");
    pair(&mut pairs, "auth_enabled_sasl", "no");
    pair(&mut pairs, "auth_enabled_ascii", yes(!settings.users.is_empty()));
    pair(&mut pairs, "item_size_max", settings.value_bytes_max);
    pair(&mut pairs, "flush_enabled", "yes");
    pair(&mut pairs, "dump_enabled", "no");
    pair(&mut pairs, "hash_algorithm", "xxh3");
    pair(&mut pairs, "eviction_policy", &settings.policy);
    pair(&mut pairs, "idle_timeout", settings.idle_ms / 1000);
    pair(&mut pairs, "slow_us", settings.slow_us);
    pairs
}

/// All items are of one class: segments hold items of every size.
fn items(cache: &Stats) -> Pairs {
    let mut pairs = Pairs::new();
    if cache.items > 0 {
        pair(&mut pairs, "items:1:number", cache.items);
        pair(&mut pairs, "items:1:mem_requested", cache.live_bytes);
        pair(&mut pairs, "items:1:evicted", cache.evictions + cache.index_evictions);
        pair(&mut pairs, "items:1:reclaimed", cache.expired);
        pair(&mut pairs, "items:1:outofmemory", 0);
    }
    pairs
}

fn slabs(shared: &Shared) -> Pairs {
    let cache = shared.cache_stats();
    let mut pairs = Pairs::new();
    let used = cache.units - cache.free_units;
    pair(&mut pairs, "1:chunk_size", 64 << 10);
    pair(&mut pairs, "1:chunks_per_page", 1);
    pair(&mut pairs, "1:total_pages", cache.units);
    pair(&mut pairs, "1:total_chunks", cache.units);
    pair(&mut pairs, "1:used_chunks", used);
    pair(&mut pairs, "1:free_chunks", cache.free_units);
    pair(&mut pairs, "1:get_hits", cache.hits);
    pair(&mut pairs, "1:cmd_set", cache.sets);
    pair(&mut pairs, "1:delete_hits", cache.removes);
    pair(&mut pairs, "active_slabs", 1);
    pair(&mut pairs, "total_malloced", cache.memory_bytes);
    pairs
}

pub fn config(shared: &Shared) -> Pairs {
    let settings = &shared.settings;
    let (_, resp) = *shared.addrs.lock().unwrap_or_else(PoisonError::into_inner);
    let mut pairs = Pairs::new();
    pair(&mut pairs, "appendonly", "no");
    pair(&mut pairs, "bind", resp.map_or(String::new(), |addr| addr.ip().to_string()));
    pair(&mut pairs, "databases", 1);
    pair(&mut pairs, "io-threads", settings.threads);
    pair(&mut pairs, "maxclients", settings.connections_max);
    pair(&mut pairs, "maxmemory", settings.memory_bytes);
    pair(&mut pairs, "maxmemory-policy", &settings.policy);
    pair(&mut pairs, "port", resp.map_or(0, |addr| addr.port()));
    pair(&mut pairs, "proto-max-bulk-len", settings.value_bytes_max);
    pair(&mut pairs, "save", "");
    pair(&mut pairs, "slowlog-log-slower-than", settings.slow_us);
    pair(&mut pairs, "timeout", settings.idle_ms / 1000);
    pairs
}

/// A bit for each section of [`info`] that this word asks for.
pub fn info_sections(word: &[u8]) -> i64 {
    let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    if ["all", "default", "everything"].into_iter().any(is) {
        return (1 << SECTIONS.len()) - 1;
    }
    SECTIONS.iter().position(|(name, _)| is(name)).map_or(0, |index| 1 << index)
}

/// Redis's `INFO`: the sections asked for, by their bits.
pub fn info(core: &Core, asked: i64) -> String {
    let mut text = String::new();
    for (index, (name, show)) in SECTIONS.iter().enumerate() {
        if asked >> index & 1 == 1 {
            let break_before = if text.is_empty() { "" } else { "\r\n" };
            // Writing to a string cannot fail.
            let _ = write!(text, "{break_before}# {name}\r\n");
            for (name, value) in show(core) {
                let _ = write!(text, "{name}:{value}\r\n");
            }
        }
    }
    text
}

/// A section of `INFO` with what it shows.
type Section = (&'static str, fn(&Core) -> Pairs);

const SECTIONS: &[Section] = &[
    ("Server", info_server),
    ("Clients", info_clients),
    ("Memory", info_memory),
    ("Persistence", |_| vec![("loading".into(), "0".into())]),
    ("Stats", info_stats),
    ("Replication", |_| {
        vec![("role".into(), "master".into()), ("connected_slaves".into(), "0".into())]
    }),
    ("CPU", info_cpu),
    ("Cluster", |_| vec![("cluster_enabled".into(), "0".into())]),
    ("Keyspace", info_keyspace),
];

fn info_server(core: &Core) -> Pairs {
    let shared = &core.shared;
    let (_, resp) = *shared.addrs.lock().unwrap_or_else(PoisonError::into_inner);
    let uptime = uptime_s(shared);
    let mut pairs = Pairs::new();
    pair(&mut pairs, "redis_version", REDIS_VERSION);
    pair(&mut pairs, "rackpool_version", env!("CARGO_PKG_VERSION"));
    pair(&mut pairs, "redis_mode", "standalone");
    pair(&mut pairs, "os", std::env::consts::OS);
    pair(&mut pairs, "arch_bits", usize::BITS);
    pair(&mut pairs, "multiplexing_api", "epoll");
    pair(&mut pairs, "process_id", std::process::id());
    pair(&mut pairs, "tcp_port", resp.map_or(0, |addr| addr.port()));
    pair(&mut pairs, "uptime_in_seconds", uptime);
    pair(&mut pairs, "uptime_in_days", uptime / 86_400);
    pair(&mut pairs, "io_threads_active", shared.settings.threads);
    pairs
}

fn info_clients(core: &Core) -> Pairs {
    let shared = &core.shared;
    let mut pairs = Pairs::new();
    pair(&mut pairs, "connected_clients", shared.connections());
    pair(&mut pairs, "maxclients", shared.settings.connections_max);
    pair(&mut pairs, "blocked_clients", 0);
    pairs
}

fn info_memory(core: &Core) -> Pairs {
    let cache = core.cache().stats();
    let used = (cache.units - cache.free_units) * (64 << 10);
    let mut pairs = Pairs::new();
    pair(&mut pairs, "used_memory", used);
    pair(&mut pairs, "used_memory_human", format!("{:.2}M", used as f64 / (1 << 20) as f64));
    pair(&mut pairs, "used_memory_rss", resident_bytes());
    pair(&mut pairs, "used_memory_dataset", cache.live_bytes);
    pair(&mut pairs, "used_memory_overhead", cache.metadata_bytes);
    pair(&mut pairs, "maxmemory", core.shared.settings.memory_bytes);
    pair(&mut pairs, "maxmemory_policy", &core.shared.settings.policy);
    pairs
}

fn info_stats(core: &Core) -> Pairs {
    let shared = &core.shared;
    let cache = shared.cache_stats();
    let mut pairs = Pairs::new();
    pair(&mut pairs, "total_connections_received", shared.count(Count::Accepted));
    pair(&mut pairs, "total_commands_processed", shared.count(Count::Commands));
    let rate = *shared.rate.lock().unwrap_or_else(PoisonError::into_inner);
    pair(&mut pairs, "instantaneous_ops_per_sec", rate.per_second);
    pair(&mut pairs, "total_net_input_bytes", shared.count(Count::BytesRead));
    pair(&mut pairs, "total_net_output_bytes", shared.count(Count::BytesWritten));
    pair(&mut pairs, "rejected_connections", shared.count(Count::Rejected));
    pair(&mut pairs, "expired_keys", cache.expired);
    pair(&mut pairs, "evicted_keys", cache.evictions + cache.index_evictions);
    pair(&mut pairs, "keyspace_hits", shared.count(Count::KeyHits));
    pair(&mut pairs, "keyspace_misses", shared.count(Count::KeyMisses));
    pair(&mut pairs, "client_output_buffer_limit_disconnections", {
        shared.count(Count::SlowReaders)
    });
    pairs
}

fn info_cpu(_: &Core) -> Pairs {
    let (user, system) = cpu_us();
    let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    vec![("used_cpu_sys".into(), seconds(system)), ("used_cpu_user".into(), seconds(user))]
}

fn info_keyspace(core: &Core) -> Pairs {
    let keys = core.cache().len();
    if keys == 0 {
        return Pairs::new();
    }
    // How many of them expire is not counted.
    vec![("db0".into(), format!("keys={keys}"))]
}

/// Counters that only Prometheus has by these names.
const MORE_COUNTS: &[Counted] = &[
    ("commands", Count::Commands, "Commands of all protocols"),
    ("resp_commands", Count::RespCommands, "Commands of RESP"),
    ("resp_hits", Count::KeyHits, "Keys that commands of RESP found"),
    ("resp_misses", Count::KeyMisses, "Keys that commands of RESP did not find"),
    ("connections_accepted", Count::Accepted, "Connections taken"),
    ("connections_rejected", Count::Rejected, "Connections refused since there were too many"),
    ("slow_commands", Count::Slow, "Commands that took longer than --slow-us"),
];

/// A page of the server for monitoring.
///
/// # Errors
/// Why it is not as it should be.
pub fn page(shared: &Shared, page: Page) -> Result<String, String> {
    if let Some((_, reason)) = &*shared.failure.lock().unwrap_or_else(PoisonError::into_inner) {
        return Err(reason.clone());
    }
    match page {
        Page::Metrics => Ok(prometheus(shared)),
        Page::Live => Ok("live\n".into()),
        // Relaxed: the flag carries no data.
        Page::Ready if shared.stopping.load(Ordering::Relaxed) => Err("stopping".into()),
        Page::Ready => Ok("ready\n".into()),
    }
}

/// Counters and gauges in the format of Prometheus.
fn prometheus(shared: &Shared) -> String {
    let mut text = Text::default();
    text.process("kv");
    let mut show = |name: &str, kind, help: &str, value| {
        text.one(&format!("kv_{name}"), kind, help, value);
    };
    let cache = shared.cache.stats();
    for (name, count, help) in COUNTS.iter().chain(MORE_COUNTS).chain(REFUSALS) {
        show(&format!("{name}_total"), Kind::Counter, help, shared.count(*count));
    }
    for (name, value) in herd(shared) {
        show(&format!("{name}_total"), Kind::Counter, "What HERD's path counts, as stats", value);
    }
    for (name, help, value) in [
        ("cache_hits", "Look-ups of all protocols that found an item", cache.hits),
        ("cache_misses", "Look-ups of all protocols that found none", cache.misses),
        ("cache_sets", "Items stored", cache.sets),
        ("evictions", "Items that went since memory was needed", cache.evictions),
        ("index_evictions", "Items that went since the index had no room", cache.index_evictions),
        ("expired", "Items whose time was over", cache.expired),
        ("tier_bytes_read", "Bytes read from another tier", cache.tier_bytes_read),
        ("tier_promotions", "Values of another tier that got a copy here", cache.tier_promotions),
        ("tier_near_hits", "Reads served by such copies", cache.tier_near_hits),
    ] {
        show(&format!("{name}_total"), Kind::Counter, help, value);
    }
    // Relaxed: numbers for display.
    let held_bytes = shared.held_bytes.load(Ordering::Relaxed);
    for (name, help, value) in [
        ("connections", "Connections now", shared.connections()),
        ("connections_max", "Most connections", shared.settings.connections_max as u64),
        ("held_bytes", "Memory for half-sent commands and unread answers", held_bytes),
        ("held_bytes_max", "Most such memory", shared.settings.held_bytes_max),
        ("items", "Items", cache.items),
        ("live_bytes", "Bytes of items", cache.live_bytes),
        ("metadata_bytes", "Bytes of index and headers", cache.metadata_bytes),
        ("memory_bytes", "Memory of the cache", cache.memory_bytes),
        ("free_units", "Units of 64 KiB that are free", cache.free_units),
        ("tier_items", "Values in another tier", cache.tier_items),
        ("tier_bytes", "Their bytes", cache.tier_bytes),
        ("tier_near_bytes", "Bytes of copies of such values", cache.tier_near_bytes),
        ("open_files_max", "Descriptors that this process may have", {
            getrlimit(Resource::Nofile).current.unwrap_or(0)
        }),
    ] {
        show(name, Kind::Gauge, help, value);
    }
    let (buckets, sum_ns) = counters::durations(&shared.counters);
    let help = "Time of commands; those that came together count as their share of it";
    text.durations("kv_command_seconds", help, buckets.into_iter(), sum_ns);
    text.finish()
}
