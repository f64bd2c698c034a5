//! `LATENCY` and `SLOWLOG`: what took long. In: a [`RespCall`]. Out: its answer, or an error's
//! text.

use super::commands;
use super::counters::CommandStats;
use super::latency::{COMMAND, FAST_COMMAND, LatencyEvents};
use super::redis::{CommandResult, RespCall, ResumePoint, wrong_words};
use super::resp::{Version, push_array, push_bulk, push_integer, push_map, push_verbatim};
use std::fmt::Write;
use std::sync::Arc;

pub fn latest(call: &mut RespCall<'_>) -> CommandResult {
    let shared = Arc::clone(&call.core.shared);
    let log = shared.latency();
    let out = &mut call.core.out.bytes;
    push_array(out, log.all().len());
    for (kind, LatencyEvents { samples, longest_ms }) in log.all() {
        let last = samples.back().expect("a kind has events");
        push_array(out, 4);
        push_bulk(out, kind.as_bytes());
        for number in [last.at_s, last.took_ms, *longest_ms] {
            push_integer(out, number as i64);
        }
    }
    Ok(())
}

pub fn history(call: &mut RespCall<'_>) -> CommandResult {
    let shared = Arc::clone(&call.core.shared);
    let log = shared.latency();
    let samples = log.of(call.arg(2)).map(|events| &events.samples);
    let out = &mut call.core.out.bytes;
    push_array(out, samples.map_or(0, |samples| samples.len()));
    for sample in samples.into_iter().flatten() {
        push_array(out, 2);
        push_integer(out, sample.at_s as i64);
        push_integer(out, sample.took_ms as i64);
    }
    Ok(())
}

pub fn reset(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() == 2 {
        let kinds = call.core.shared.latency().forget_all();
        return call.integer(kinds as i64);
    }
    reset_from(call, ResumePoint::at(2))
}

fn reset_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let is_done = call.each_word(&mut part, 1, |call, index, sum| {
        Ok(sum + i64::from(call.core.shared.latency().forget(call.arg(index))))
    })?;
    if is_done { call.integer(part.sum) } else { call.go_on_later(part, reset_from) }
}

pub fn doctor(call: &mut RespCall<'_>) -> CommandResult {
    let shared = Arc::clone(&call.core.shared);
    let log = shared.latency();
    let mut text = String::new();
    if shared.tunables.latency_ms().is_none() {
        text.push_str(
            "Latency is not monitored. CONFIG SET latency-monitor-threshold MILLISECONDS has \
             commands noted that take as long.\n",
        );
    } else if log.all().next().is_none() {
        text.push_str("No command took as long as latency-monitor-threshold says.\n");
    }
    for (kind, LatencyEvents { samples, longest_ms }) in log.all() {
        let (count, sum) = (samples.len(), samples.iter().map(|one| one.took_ms).sum::<u64>());
        let mean = sum as f64 / count as f64;
        let about = match kind {
            FAST_COMMAND => "commands that should take microseconds: look for a busy machine",
            COMMAND => "commands whose time is by their words: SLOWLOG GET names the last",
            _ => "others",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{kind}: {count} seconds with events, mean {mean:.0} ms, longest {longest_ms} ms; \
             {about}."
        );
    }
    push_verbatim(&mut call.core.out.bytes, text.as_bytes(), call.client.version);
    Ok(())
}

pub fn histogram(call: &mut RespCall<'_>) -> CommandResult {
    let shared = Arc::clone(&call.core.shared);
    let is_asked = |name: &str| {
        let is = |index: usize| {
            let word = call.arg(index);
            let container = name.split_once('|').map_or(name, |(container, _)| container);
            [name, container].iter().any(|name| name.as_bytes().eq_ignore_ascii_case(word))
        };
        call.count() == 2 || (2..call.count().min(COMMANDS_ASKED_MAX)).any(is)
    };
    let called = shared.command_stats().filter(|(_, stats)| stats.calls > 0);
    let called: Vec<_> = called.filter(|(name, _)| is_asked(name)).collect();
    let version = call.client.version;
    let out = &mut call.core.out.bytes;
    push_map(out, called.len(), version);
    for (name, stats) in called {
        push_bulk(out, name.as_bytes());
        push_histogram(out, stats, version);
    }
    Ok(())
}

/// Words of a `LATENCY HISTOGRAM` that are looked at: twice as many as there are commands.
const COMMANDS_ASKED_MAX: usize = 2 * commands::COMMANDS.len();

fn push_histogram(out: &mut Vec<u8>, stats: CommandStats, version: Version) {
    push_map(out, 2, version);
    push_bulk(out, b"calls");
    push_integer(out, stats.calls as i64);
    push_bulk(out, b"histogram_usec");
    let buckets = stats.histogram();
    push_map(out, buckets.len(), version);
    for (end_us, up_to) in buckets {
        push_integer(out, end_us as i64);
        push_integer(out, up_to as i64);
    }
}

pub fn slowlog_len(call: &mut RespCall<'_>) -> CommandResult {
    let len = call.core.shared.slow().entries().len();
    call.integer(len as i64)
}

pub fn slowlog_reset(call: &mut RespCall<'_>) -> CommandResult {
    call.core.shared.slow().clear();
    call.status("OK")
}

/// Entries that `SLOWLOG GET` shows if no number is given.
const SLOW_SHOWN: i64 = 10;

pub fn slowlog_get(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() > 3 {
        return Err(wrong_words(call));
    }
    let wanted = if call.count() > 2 { call.number(2) } else { Ok(SLOW_SHOWN) };
    let wanted = wanted.ok().filter(|wanted| *wanted >= -1);
    let wanted = wanted.ok_or("ERR count should be greater than or equal to -1")?;
    let shared = Arc::clone(&call.core.shared);
    let log = shared.slow();
    let count = usize::try_from(wanted).unwrap_or(usize::MAX).min(log.entries().len());
    let out = &mut call.core.out.bytes;
    push_array(out, count);
    for entry in log.entries().take(count) {
        push_array(out, 6);
        for number in [entry.id, entry.at_s, entry.took_us] {
            push_integer(out, number as i64);
        }
        push_array(out, entry.words.len());
        entry.words.iter().for_each(|word| push_bulk(out, word));
        push_bulk(out, entry.client.as_bytes());
        push_bulk(out, entry.name.as_bytes());
    }
    Ok(())
}
