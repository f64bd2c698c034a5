//! Redis's `INFO`: what exporters, dashboards and libraries read, by the names that they know.
//! What means nothing here is not there. In: counters of all threads and of the cache. Out: text.

use super::core::Core;
use super::counters::{CommandStats, Count};
use super::resp::REDIS_VERSION;
use super::shared::{Shared, UNIT_BYTES};
use super::stats::{Pairs, backing, cpu_seconds, pairs, resident_bytes, uptime_s};
use crate::cache::DATABASES_MAX;
use crate::constants::CENSUS_ITEMS;
use rustix::system::{sysinfo, uname};
use std::fmt::Write;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// A bit for each section of [`text`] that this word asks for.
pub fn sections(word: &[u8]) -> i64 {
    let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    let all = (1 << SECTIONS.len()) - 1;
    if ["all", "everything"].into_iter().any(is) {
        return all;
    }
    if is("default") {
        return ONLY_IF_ASKED.iter().fold(all, |some, name| some & !sections(name.as_bytes()));
    }
    SECTIONS.iter().position(|(name, _)| is(name)).map_or(0, |index| 1 << index)
}

/// The sections asked for, by their bits.
pub fn text(core: &Core, asked: i64) -> String {
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

type Section = (&'static str, fn(&Core) -> Pairs);

/// The sections that are shown only to those that ask for them.
const ONLY_IF_ASKED: [&str; 2] = ["Commandstats", "Latencystats"];

const SECTIONS: &[Section] = &[
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", |_| {
        pairs! { "loading" => 0, "rdb_bgsave_in_progress" => 0, "aof_enabled" => 0,
        "aof_rewrite_in_progress" => 0, }
    }),
    ("Stats", stats),
    ("Replication", |_| pairs! { "role" => "master", "connected_slaves" => 0, }),
    ("CPU", |_| {
        let [user, system] = cpu_seconds();
        pairs! { "used_cpu_sys" => system, "used_cpu_user" => user, }
    }),
    (ONLY_IF_ASKED[0], commands),
    ("Errorstats", |core| {
        let pair = |(kind, count)| (format!("errorstat_{kind}"), format!("count={count}"));
        core.shared.errors.all().into_iter().map(pair).collect()
    }),
    (ONLY_IF_ASKED[1], latencies),
    ("Cluster", |_| pairs! { "cluster_enabled" => 0, }),
    ("Keyspace", keyspace),
];

fn server(core: &Core) -> Pairs {
    let shared = &core.shared;
    let (_, resp) = *shared.addrs.lock().unwrap_or_else(PoisonError::into_inner);
    let (uptime, system) = (uptime_s(shared), uname());
    let [system, release, machine] =
        [system.sysname(), system.release(), system.machine()].map(|text| text.to_string_lossy());
    let mut pairs = pairs! {
        "redis_version" => REDIS_VERSION,
        "rackpool_version" => env!("CARGO_PKG_VERSION"),
        "redis_mode" => "standalone",
        "os" => format!("{system} {release} {machine}"),
        "arch_bits" => usize::BITS,
        "multiplexing_api" => "epoll",
        "process_id" => std::process::id(),
    };
    if !shared.run_id.is_empty() {
        pairs.extend(pairs! { "run_id" => shared.run_id, });
    }
    pairs.extend(pairs! {
        "tcp_port" => resp.map_or(0, |addr| addr.port()),
        "server_time_usec" => core.times().wall * 1000,
        "uptime_in_seconds" => uptime,
        "uptime_in_days" => uptime / 86_400,
        "io_threads_active" => shared.settings.threads,
    });
    pairs
}

fn clients(core: &Core) -> Pairs {
    pairs! {
        "connected_clients" => core.shared.connections(),
        "maxclients" => core.shared.tunables.connections_max(),
        "blocked_clients" => 0,
    }
}

/// Bytes with a unit, as Redis shows them to people.
fn human(bytes: u64) -> String {
    let units = ["B", "K", "M", "G", "T", "P", "E"];
    let index = (bytes.max(1).ilog2() / 10) as usize;
    match index {
        0 => format!("{bytes}B"),
        index => format!("{:.2}{}", bytes as f64 / (1_u64 << (10 * index)) as f64, units[index]),
    }
}

fn percent(part: u64, of: u64) -> String {
    format!("{:.2}%", part as f64 * 100.0 / of.max(1) as f64)
}

fn memory(core: &Core) -> Pairs {
    let (shared, cache, resident) = (&core.shared, core.cache().stats(), resident_bytes());
    let (used, peak) = shared.used_bytes(&cache);
    let system = sysinfo();
    let unit: u64 = system.mem_unit.max(1).into();
    let system = system.totalram * unit;
    let (most, known) = (shared.maxmemory(), shared.scripts.counts());
    pairs! {
        "used_memory" => used,
        "used_memory_human" => human(used),
        "used_memory_rss" => resident,
        "used_memory_rss_human" => human(resident),
        "used_memory_peak" => peak,
        "used_memory_peak_human" => human(peak),
        "used_memory_peak_perc" => percent(used, peak),
        "used_memory_overhead" => used.saturating_sub(cache.live_bytes),
        "used_memory_dataset" => cache.live_bytes,
        "used_memory_dataset_perc" => percent(cache.live_bytes, used),
        "total_system_memory" => system,
        "total_system_memory_human" => human(system),
        "maxmemory" => most,
        "maxmemory_human" => human(most),
        "maxmemory_policy" => shared.settings.policy,
        "number_of_cached_scripts" => known.scripts,
        "number_of_functions" => known.functions,
        "number_of_libraries" => known.libraries,
        "mem_fragmentation_ratio" => format!("{:.2}", resident as f64 / used.max(1) as f64),
        // Relaxed: a number for display.
        "mem_clients_normal" => shared.held_bytes.load(Ordering::Relaxed),
        "tiering" => core.cache().tiering().name(),
        "far_bytes" => cache.far_bytes,
        "far_held_bytes" => cache.far_held_units * UNIT_BYTES,
        "pages_left_bytes" => cache.pages_left_bytes,
        "pages_moved_bytes" => cache.pages_moved_bytes,
        "pages_stayed_bytes" => cache.pages_stayed_bytes,
    }
}

fn stats(core: &Core) -> Pairs {
    let shared = &core.shared;
    let cache = shared.cache_stats();
    let rate = *shared.rate.lock().unwrap_or_else(PoisonError::into_inner);
    let kilobytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1024.0);
    let mut pairs = pairs! {
        "total_connections_received" => shared.count(Count::Accepted),
        "total_commands_processed" => shared.count(Count::Commands),
        "instantaneous_ops_per_sec" => rate.commands,
        "total_net_input_bytes" => shared.count(Count::BytesRead),
        "total_net_output_bytes" => shared.count(Count::BytesWritten),
        "instantaneous_input_kbps" => kilobytes(rate.bytes_read),
        "instantaneous_output_kbps" => kilobytes(rate.bytes_written),
        "rejected_connections" => shared.count(Count::Rejected),
        "expired_keys" => cache.expired,
        "evicted_keys" => cache.evictions + cache.index_evictions,
        "evicted_clients" => shared.count(Count::HeldTooMuch),
        "keyspace_hits" => shared.count(Count::KeyHits),
        "keyspace_misses" => shared.count(Count::KeyMisses),
        "total_error_replies" => shared.errors.all().values().sum::<u64>(),
        "client_output_buffer_limit_disconnections" => shared.count(Count::SlowReaders),
        "acl_access_denied_auth" => shared.count(Count::AuthErrors),
    };
    pairs.extend(backing(shared));
    pairs
}

/// What was counted of the commands that were called.
fn called(shared: &Shared) -> impl Iterator<Item = (&'static str, CommandStats)> {
    shared.command_stats().filter(|(_, stats)| stats.calls + stats.rejected > 0)
}

fn commands(core: &Core) -> Pairs {
    let pair = |(name, stats): (&str, CommandStats)| {
        let CommandStats { calls, took_ns, rejected, failed, .. } = stats;
        let us = took_ns / 1000;
        let each = us as f64 / calls.max(1) as f64;
        let text = format!(
            "calls={calls},usec={us},usec_per_call={each:.2},rejected_calls={rejected},\
             failed_calls={failed}"
        );
        (format!("cmdstat_{name}"), text)
    };
    called(&core.shared).map(pair).collect()
}

/// Each is the end of the bucket, twice as long as the one before, in which that share of the calls
/// ends.
fn latencies(core: &Core) -> Pairs {
    let pair = |(name, stats): (&str, CommandStats)| {
        let buckets = stats.histogram();
        let within = |share: f64| {
            let calls = (stats.calls as f64 * share).ceil() as u64;
            let found = buckets.iter().find(|(_, up_to)| *up_to >= calls);
            found.map_or(0, |(end_us, _)| *end_us)
        };
        let [half, most, nearly_all] = [0.5, 0.99, 0.999].map(within);
        let text = format!("p50={half}.000,p99={most}.000,p99.9={nearly_all}.000");
        (format!("latency_percentiles_usec_{name}"), text)
    };
    called(&core.shared).filter(|(_, stats)| stats.calls > 0).map(pair).collect()
}

/// How many of them expire, and when on average, is counted in a cache with few items and estimated
/// in one with many.
fn keyspace(core: &Core) -> Pairs {
    let census = core.cache().census(CENSUS_ITEMS, core.now);
    let databases = core.shared.settings.databases.min(DATABASES_MAX as u8);
    let numbers = 0..databases;
    let counted = numbers.map(|number| (number, core.cache().items_of(number)));
    let filled = counted.filter(|(_, keys)| *keys > 0);
    let pair = |(number, keys): (u8, u64)| {
        let (expires, left_ms) = census.expiring(number, keys);
        (format!("db{number}"), format!("keys={keys},expires={expires},avg_ttl={left_ms}"))
    };
    filled.map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_as_redis_shows_them() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.00K"),
            (1_014_960, "991.17K"),
            (25_325_268_992, "23.59G"),
            (u64::MAX, "16.00E"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }

    #[test]
    fn sections_have_names_and_some_are_shown_only_if_asked_for() {
        let all = sections(b"everything");
        assert_eq!(all.count_ones() as usize, SECTIONS.len());
        let default = sections(b"DEFAULT");
        assert_eq!(all & !default, sections(b"commandstats") | sections(b"latencystats"));
        assert_eq!((sections(b"nonsense"), sections(b"Keyspace").count_ones()), (0, 1));
    }
}
