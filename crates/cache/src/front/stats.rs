//! What a server says about itself, by the names that tools expect: memcached's `stats`,
//! Prometheus. In: counters of all threads and of the cache. Called by the commands, and by the
//! thread that answers over HTTP. Redis's `INFO` is in `info.rs`.

use super::binary::{BinaryRequest, ReplyBody, Status};
use super::core::Core;
use super::counters::{self, COUNTS, CommandStats, Count, Counted, MORE_COUNTS, REFUSALS};
use super::listing::Listing;
use super::memcached::AfterCommand;
use super::shared::{Shared, UNIT_BYTES};
use super::text::{VERSION, WordIter};
use super::watch::{LINES_BYTES_MAX, PREFIX_END};
use crate::cache::{Mode, Reuse};
use crate::herd::HerdCounter;
use rackpool::metrics::{Kind, Page, Text};
use rustix::process::{Resource, getrlimit};
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

pub type Pairs = Vec<(String, String)>;

macro_rules! pairs {
    ($($name:literal => $value:expr,)*) => { vec![$(($name.to_owned(), $value.to_string())),*] };
}
pub(super) use pairs;

/// Answers to `stats` with the words behind it.
pub fn text(core: &mut Core, mut words: WordIter<'_>) -> AfterCommand {
    let word = words.next();
    let Some(pairs) = collect(core, word.unwrap_or(b"")) else {
        let answer = match word {
            Some(b"sizes") => return AfterCommand::List(Listing::Sizes),
            Some(b"conns") => {
                push_listener(core);
                return AfterCommand::List(Listing::Connections);
            }
            Some(b"reset") => {
                core.shared.reset_counts();
                "RESET"
            }
            Some(b"detail") => detail(core, words.next()),
            Some(b"cachedump") => "CLIENT_ERROR stats cachedump not allowed",
            _ => "ERROR",
        };
        core.say(answer, false);
        return AfterCommand::Command;
    };
    let out = &mut core.out.bytes;
    for (name, value) in pairs {
        // Writing to a vector cannot fail.
        let _ = std::io::Write::write_fmt(out, format_args!("STAT {name} {value}\r\n"));
    }
    out.extend_from_slice(b"END\r\n");
    AfterCommand::Command
}

/// Counts by prefixes of keys from now on, or no more, or tells what was counted; the end of the
/// answer.
fn detail(core: &mut Core, word: Option<&[u8]>) -> &'static str {
    match word {
        Some(b"dump") => {
            core.shared.watch.push_prefixes(&mut core.out.bytes);
            return "END";
        }
        Some(b"on") => core.shared.watch.count_prefixes(true),
        Some(b"off") => core.shared.watch.count_prefixes(false),
        _ => return "CLIENT_ERROR usage: stats detail on|off|dump",
    }
    core.look_at_watch();
    "OK"
}

/// Appends what is known of the socket at which clients of memcached's protocols come in.
fn push_listener(core: &mut Core) {
    let (memcached, _) = *core.shared.addrs.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(addr) = memcached {
        core.say(&format!("STAT 0:addr tcp:{addr}"), false);
        core.say("STAT 0:state conn_listening", false);
    }
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
        let body = ReplyBody { key: name.as_bytes(), value: value.as_bytes() };
        core.binary_reply(request, Status::Success, body, 0);
    }
}

fn collect(core: &Core, word: &[u8]) -> Option<Pairs> {
    let shared = &core.shared;
    Some(match word {
        b"" => general(core),
        b"settings" => settings(shared),
        b"items" => items(shared),
        b"slabs" => slabs(shared),
        _ => return None,
    })
}

pub fn uptime_s(shared: &Shared) -> u64 {
    rackpool_mem::process::monotonic_ns() / 1_000_000_000 - shared.started.0 / 1000
}

/// CPU times of this process as seconds, user and system.
pub fn cpu_seconds() -> [String; 2] {
    // Fields 14 and 15 of the line, counted after the name's closing bracket; in ticks of 10 ms.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut ticks = rest.split_ascii_whitespace().skip(11).map(|n| n.parse().unwrap_or(0u64));
    [(); 2].map(|()| {
        let ticks = ticks.next().unwrap_or(0);
        format!("{}.{:02}0000", ticks / 100, ticks % 100)
    })
}

/// Memory of this process that lies in pages, bytes.
pub fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0u64) * rustix::param::page_size() as u64
}

fn general(core: &Core) -> Pairs {
    let shared = &core.shared;
    let cache = shared.cache_stats();
    let [user, system] = cpu_seconds();
    let rejected = shared.count(Count::Rejected);
    let counts = |counts: &'static [Counted]| {
        counts.iter().map(|(name, count, _)| ((*name).to_owned(), shared.count(*count).to_string()))
    };
    let mut pairs: Pairs = pairs! {
        "pid" => std::process::id(),
        "uptime" => uptime_s(shared),
        "time" => core.shared.wall(core.now) / 1000,
        "version" => VERSION,
        "pointer_size" => usize::BITS,
        "rusage_user" => user,
        "rusage_system" => system,
        "max_connections" => shared.tunables.connections_max(),
        "curr_connections" => shared.connections(),
        "total_connections" => shared.count(Count::Accepted),
        "rejected_connections" => rejected,
        // Here clients are refused one by one, and listeners stay open.
        "listen_disabled_num" => rejected,
    };
    pairs.extend(counts(COUNTS));
    pairs.extend(pairs! { "get_expired" => cache.expired, });
    pairs.extend(counts(REFUSALS));
    pairs.extend(pairs! {
        "limit_maxbytes" => shared.cache.memory_limit(),
        "accepting_conns" => 1,
        "threads" => shared.settings.threads,
        "bytes" => cache.live_bytes,
        "metadata_bytes" => cache.metadata_bytes,
        "curr_items" => cache.items,
        "far_bytes" => cache.far_bytes,
        "far_held_bytes" => cache.far_held_units * UNIT_BYTES,
        "pages_left_bytes" => cache.pages_left_bytes,
        "pages_moved_bytes" => cache.pages_moved_bytes,
        "pages_stayed_bytes" => cache.pages_stayed_bytes,
        "promotions" => cache.promotions,
        "demotions" => cache.demotions,
        "crossed_bytes" => cache.crossed_bytes,
        "near_bytes_read" => cache.near_bytes_read,
        "far_bytes_read" => cache.far_bytes_read,
        "tier_items" => cache.tier_items,
        "tier_bytes" => cache.tier_bytes,
        "tier_bytes_read" => cache.tier_bytes_read,
        "tier_promotions" => cache.tier_promotions,
        "tier_near_hits" => cache.tier_near_hits,
        "tier_near_bytes" => cache.tier_near_bytes,
        "total_items" => cache.sets,
        "evictions" => cache.evictions + cache.index_evictions,
        "reclaimed" => cache.expired,
        "hash_bytes" => cache.index_units * UNIT_BYTES,
    });
    pairs.extend(backing(shared));
    let watched = shared.watch.counts();
    pairs.extend(watched.map(|(name, count)| (name.to_owned(), count.to_string())));
    pairs.extend(herd(shared).map(|(name, value)| (name, value.to_string())));
    pairs
}

/// What lies behind memory, where anything does.
pub fn backing(shared: &Shared) -> impl Iterator<Item = (String, String)> {
    let counts = shared.cache.backing_counts();
    counts.into_iter().map(|(name, count)| (name.to_owned(), count.to_string()))
}

/// What HERD's listener has counted, if it is open.
fn herd(shared: &Shared) -> impl Iterator<Item = (String, u64)> {
    let counters = shared.herd.get().filter(|counters| !counters.is_empty());
    counters.into_iter().flat_map(|counters| {
        HerdCounter::ALL.iter().map(|(what, name)| {
            let sum = counters.iter().map(|counters| counters.get(*what)).sum();
            (format!("herd_{name}"), sum)
        })
    })
}

fn settings(shared: &Shared) -> Pairs {
    let settings = &shared.settings;
    let (memcached, _) = *shared.addrs.lock().unwrap_or_else(PoisonError::into_inner);
    let yes = |on: bool| if on { "yes" } else { "no" };
    let evicts = shared.cache.options().mode == Mode::Cache;
    pairs! {
        "maxbytes" => shared.cache.memory_limit(),
        "maxconns" => shared.tunables.connections_max(),
        "tcpport" => memcached.map_or(0, |addr| addr.port()),
        "udpport" => 0,
        "inter" => memcached.map_or("NULL".into(), |addr| addr.ip().to_string()),
        "domain_socket" => shown(&shared.sockets.memcached).unwrap_or("NULL".into()),
        "umask" => format!("{:o}", shared.sockets.mode),
        // Relaxed: a number for display.
        "verbosity" => shared.verbosity.load(Ordering::Relaxed),
        "evictions" => if evicts { "on" } else { "off" },
        "shutdown_command" => yes(settings.allows_shutdown),
        "num_threads" => settings.threads,
        "stat_key_prefix" => char::from(PREFIX_END),
        "detail_enabled" => yes(shared.watch.counts_prefixes()),
        "cas_enabled" => "yes",
        "binding_protocol" => "auto-negotiate",
        "auth_enabled_sasl" => "no",
        "auth_enabled_ascii" => yes(!settings.users.is_empty()),
        "item_size_max" => settings.value_bytes_max.min(shared.cache.longest_value()),
        "maxconns_fast" => "yes",
        "flush_enabled" => "yes",
        "dump_enabled" => "yes",
        "hash_algorithm" => "xxh3",
        "lru_crawler" => "no",
        "watcher_logbuf_size" => LINES_BYTES_MAX,
        "track_sizes" => "yes",
        "client_flags_size" => size_of::<u32>(),
        "eviction_policy" => &settings.policy,
        "tiering" => shared.cache.tiering().name(),
        "idle_timeout" => shared.tunables.idle_ms() / 1000,
        "slow_us" => shared.tunables.slow_us().unwrap_or(u64::MAX),
    }
}

/// All items are of one class: segments hold items of every size.
fn items(shared: &Shared) -> Pairs {
    let cache = shared.cache_stats();
    if cache.items == 0 {
        return Pairs::new();
    }
    pairs! {
        "items:1:number" => cache.items,
        "items:1:mem_requested" => cache.live_bytes,
        "items:1:evicted" => cache.evictions + cache.index_evictions,
        "items:1:reclaimed" => cache.expired,
        "items:1:outofmemory" => shared.count(Count::NoMemory),
    }
}

fn slabs(shared: &Shared) -> Pairs {
    let cache = shared.cache_stats();
    let count = |count| shared.count(count);
    pairs! {
        "1:chunk_size" => 64 << 10,
        "1:chunks_per_page" => 1,
        "1:total_pages" => cache.units,
        "1:total_chunks" => cache.units,
        "1:used_chunks" => cache.units - cache.free_units,
        "1:free_chunks" => cache.free_units,
        "1:get_hits" => cache.hits,
        "1:cmd_set" => cache.sets,
        "1:delete_hits" => cache.removes,
        "1:incr_hits" => count(Count::IncrHits),
        "1:decr_hits" => count(Count::DecrHits),
        "1:cas_hits" => count(Count::CasHits),
        "1:cas_badval" => count(Count::CasBadval),
        "1:touch_hits" => count(Count::TouchHits),
        "active_slabs" => 1,
        "total_malloced" => cache.memory_bytes,
    }
}

pub fn shown(path: &Option<PathBuf>) -> Option<String> {
    path.as_ref().map(|path| path.display().to_string())
}

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
    show("resp_commands_total", Kind::Counter, "Commands of RESP", shared.resp_commands());
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
        ("promotions", "Items that came from far to near memory", cache.promotions),
        ("demotions", "Items that went from near to far memory", cache.demotions),
        ("crossed_bytes", "Bytes of both", cache.crossed_bytes),
        ("copied_bytes", "Bytes of items copied for room in near memory", cache.copied_bytes()),
        ("pages_moved_bytes", "Bytes of pages that went to other nodes", cache.pages_moved_bytes),
        ("near_bytes_read", "Bytes read from near memory, by samples", cache.near_bytes_read),
        ("far_bytes_read", "Bytes read from far memory, by samples", cache.far_bytes_read),
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
        ("connections_max", "Most connections", shared.tunables.connections_max()),
        ("held_bytes", "Memory for half-sent commands and unread answers", held_bytes),
        ("held_bytes_max", "Most such memory", shared.settings.held_bytes_max),
        ("items", "Items", cache.items),
        ("live_bytes", "Bytes of items", cache.live_bytes),
        ("metadata_bytes", "Bytes of index and headers", cache.metadata_bytes),
        ("far_bytes", "Bytes of items in far memory", cache.far_bytes),
        ("memory_bytes", "Memory of the cache", cache.memory_bytes),
        ("far_memory_bytes", "Far memory of that", cache.far_units * UNIT_BYTES),
        ("far_memory_used", "1 while items may go there", shared.cache.uses_far().into()),
        ("far_held_bytes", "Of that, not given back", cache.far_held_units * UNIT_BYTES),
        ("pages_left_bytes", "Memory whose pages may go to other nodes", cache.pages_left_bytes),
        ("pages_stayed_bytes", "Bytes of pages that could not", cache.pages_stayed_bytes),
        ("threads", "Threads that serve, each listener", shared.settings.threads as u64),
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
    if let Some(reuse) = shared.cache.reuse() {
        reads_by_capacity(&mut text, &reuse);
    }
    calls_by_command(&mut text, shared);
    let (buckets, sum_ns) = counters::durations(&shared.counters);
    let help = "Time of commands; those that came together count as their share of it";
    text.durations("kv_command_seconds", help, buckets.into_iter(), sum_ns);
    text.finish()
}

type ByCommand = (&'static str, &'static str, fn(CommandStats) -> u64);

const BY_COMMAND: &[ByCommand] = &[
    ("kv_resp_calls_total", "Commands of RESP that ran", |stats| stats.calls),
    ("kv_resp_us_total", "Microseconds that they took", |stats| stats.took_ns / 1000),
    ("kv_resp_failed_total", "Those that answered with an error", |stats| stats.failed),
    ("kv_resp_rejected_total", "Those that did not run", |stats| stats.rejected),
];

fn calls_by_command(text: &mut Text, shared: &Shared) {
    for (name, help, value) in BY_COMMAND {
        let stats = shared.command_stats().filter(|(_, stats)| *stats != CommandStats::default());
        let values = stats.map(|(name, stats)| (name, value(stats)));
        text.by(name, Kind::Counter, help, "command", values);
    }
}

impl Shared {
    /// The counters, as they are served to Prometheus.
    pub fn metrics(&self) -> String {
        prometheus(self)
    }
}

fn reads_by_capacity(text: &mut Text, reuse: &Reuse) {
    let (name, help) = ("kv_reads_within_total", "Reads that so many bytes of items answer");
    let within = reuse.by_capacity.iter().scan(0_u64, |within, (bytes, reads)| {
        *within += reads;
        Some((*bytes, *within))
    });
    text.by(name, Kind::Counter, help, "bytes", within);
    let help = "Reads that more than this did not answer";
    text.one("kv_first_reads_total", Kind::Counter, help, reuse.first_reads);
    let (name, help) = ("kv_reads_by_item_total", "Reads of items up to so many bytes");
    text.by(name, Kind::Counter, help, "bytes", reuse.by_item.iter().copied());
    let help = "Bytes of the items of these";
    text.one("kv_found_bytes_total", Kind::Counter, help, reuse.found_bytes);
}
