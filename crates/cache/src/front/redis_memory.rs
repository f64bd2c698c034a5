//! `MEMORY`: where the cache's memory is. In: a [`RespCall`]. Out: its answer, or an error's text.

use super::counters::Count;
use super::redis::{CommandResult, RespCall};
use super::resp::{Version, push_bulk, push_integer, push_map, push_verbatim};
use super::stats::resident_bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A value of `MEMORY STATS`.
enum Figure {
    Bytes(u64),
    Ratio(f64),
}

pub fn stats(call: &mut RespCall<'_>) -> CommandResult {
    let (shared, cache, resident) =
        (Arc::clone(&call.core.shared), call.core.cache().stats(), resident_bytes());
    let (used, peak) = shared.used_bytes(&cache);
    let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
    let figures = [
        ("peak.allocated", Figure::Bytes(peak)),
        ("total.allocated", Figure::Bytes(used)),
        // Relaxed: a number for display.
        ("clients.normal", Figure::Bytes(shared.held_bytes.load(Ordering::Relaxed))),
        ("overhead.total", Figure::Bytes(cache.metadata_bytes)),
        ("keys.count", Figure::Bytes(cache.items)),
        ("keys.bytes-per-key", Figure::Bytes(used / cache.items.max(1))),
        ("dataset.bytes", Figure::Bytes(cache.live_bytes)),
        ("dataset.percentage", Figure::Ratio(100.0 * share(cache.live_bytes, used))),
        ("peak.percentage", Figure::Ratio(100.0 * share(used, peak))),
        ("fragmentation", Figure::Ratio(share(resident, used))),
        ("fragmentation.bytes", Figure::Bytes(resident.saturating_sub(used))),
    ];
    let version = call.client.version;
    let out = &mut call.core.out.bytes;
    push_map(out, figures.len(), version);
    for (name, figure) in figures {
        push_bulk(out, name.as_bytes());
        match (figure, version) {
            (Figure::Bytes(bytes), _) => push_integer(out, bytes as i64),
            (Figure::Ratio(ratio), Version::Two) => push_bulk(out, ratio.to_string().as_bytes()),
            (Figure::Ratio(ratio), Version::Three) => {
                out.extend_from_slice(format!(",{ratio}\r\n").as_bytes());
            }
        }
    }
    Ok(())
}

pub fn doctor(call: &mut RespCall<'_>) -> CommandResult {
    let shared = &call.core.shared;
    let cache = shared.cache_stats();
    let refused = shared.count(Count::NoMemory);
    let mut text = String::new();
    let mut say = |holds: bool, line: String| {
        if holds {
            text.push_str(&line);
            text.push('\n');
        }
    };
    say(
        refused > 0,
        format!("{refused} values were refused since there was no memory: give more to --memory."),
    );
    say(
        cache.index_evictions > 0,
        format!(
            "{} items went since the index had no room: give --items the number of items.",
            cache.index_evictions
        ),
    );
    say(
        cache.live_bytes.max(cache.memory_bytes / 8) < cache.metadata_bytes,
        "Index, headers and tables take more than the items: items are few, or very small.".into(),
    );
    if text.is_empty() {
        text.push_str("No problem was found.\n");
    }
    push_verbatim(&mut call.core.out.bytes, text.as_bytes(), call.client.version);
    Ok(())
}

/// `MEMORY PURGE`: what was flushed or has expired is given back to the cache, in turns.
pub fn purge(call: &mut RespCall<'_>) -> CommandResult {
    call.core.tidy_all();
    call.status("OK")
}
