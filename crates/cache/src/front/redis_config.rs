//! `CONFIG`: what a server was started with, and what of it can be changed while it runs. In: a
//! [`RespCall`]. Out: its answer, or an error's text. All options of one `CONFIG SET` are read
//! before the first is changed.

use super::glob::Glob;
use super::redis::{CommandResult, RespCall, ResumePoint, syntax};
use super::resp::{push_bulk, push_map};
use super::server::raise_file_limit;
use super::shared::Shared;
use super::stats::shown;
use super::tunables::OutputLimit;
use crate::cache::{Error, Tiering};
use crate::constants::{KEEPALIVE_IDLE_S, SLOW_ENTRIES_MAX};
use rackpool_mem::numa::Placement;
use std::sync::PoisonError;

/// What is done when all options were read.
type Change = Box<dyn FnOnce(&Shared) -> Result<(), String>>;

/// How the value of an option is read: what is to be done, or what is wrong with it.
type Read = fn(&Shared, &str) -> Result<Change, String>;

struct ConfigOption {
    name: &'static str,
    get: fn(&Shared) -> String,
    set: Read,
}

const fn option(name: &'static str, get: fn(&Shared) -> String, set: Read) -> ConfigOption {
    ConfigOption { name, get, set }
}

/// Options that mean something here, by Redis's names and one of our own.
const OPTIONS: &[ConfigOption] = &[
    option("appendonly", |_| "no".into(), |_, value| stays(value, "no")),
    option("bind", bind, |shared, value| stays(value, &bind(shared))),
    option("client-output-buffer-limit", output_limit, read_output_limit),
    option("client-query-buffer-limit", query_limit, |shared, value| {
        stays_bytes(value, shared.settings.input_bytes_max() as u64)
    }),
    option("cluster-enabled", |_| "no".into(), fixed),
    option("daemonize", |_| "no".into(), fixed),
    option("databases", |it| it.settings.databases.to_string(), fixed),
    option("io-threads", |it| it.settings.threads.to_string(), fixed),
    option(HIDDEN, |_| "0".into(), |_, value| stays(value, "0")),
    option("latency-monitor-threshold", latency_ms, |_, value| {
        let ms = number(value, 0, i64::MAX)?;
        change(move |shared| shared.tunables.set_latency_ms(ms as u64))
    }),
    option("latency-tracking", |_| "yes".into(), |_, value| stays(value, "yes")),
    option("maxclients", |it| it.tunables.connections_max().to_string(), read_maxclients),
    option("maxmemory", |it| it.maxmemory().to_string(), read_maxmemory),
    option(
        "maxmemory-clients",
        |it| it.settings.held_bytes_max.to_string(),
        |shared, value| {
            let percent = value.strip_suffix('%').and_then(|number| number.parse::<u64>().ok());
            match percent {
                Some(101..) => Err("percentage argument must be less or equal to 100".into()),
                _ => stays_bytes(value, shared.settings.held_bytes_max),
            }
        },
    ),
    option(
        "maxmemory-policy",
        |it| it.settings.policy.clone(),
        |shared, value| stays(value, &shared.settings.policy),
    ),
    option(
        "maxmemory-samples",
        |_| "0".into(),
        |_, value| match value {
            "0" => change(|_| ()),
            _ => Err("it is `0`: what goes is not found by samples".into()),
        },
    ),
    option("port", port, |shared, value| {
        number(value, 0, i64::from(u16::MAX))?;
        stays(value, &port(shared))
    }),
    option(
        "proto-max-bulk-len",
        |it| longest_value(it).to_string(),
        |shared, value| stays_bytes(value, longest_value(shared)),
    ),
    option("save", |_| String::new(), |_, value| stays(value, "")),
    option("slowlog-log-slower-than", slow_us, |_, value| {
        let us = u64::try_from(number(value, -1, i64::MAX)?).ok();
        change(move |shared| shared.tunables.set_slow_us(us))
    }),
    option(
        "slowlog-max-len",
        |it| it.slow().entries_max().to_string(),
        |_, value| {
            let count = number(value, 0, SLOW_ENTRIES_MAX as i64)?;
            change(move |shared| shared.slow().set_entries_max(count as usize))
        },
    ),
    option("tcp-keepalive", keepalive, |shared, value| stays(value, &keepalive(shared))),
    option("tiering", |it| it.cache.tiering().name().to_owned(), read_tiering),
    option(
        "timeout",
        |it| (it.tunables.idle_ms() / 1000).to_string(),
        |_, value| {
            let seconds = number(value, 0, i64::from(i32::MAX))?;
            change(move |shared| shared.tunables.set_idle_ms(seconds as u64 * 1000))
        },
    ),
    option("unixsocket", |it| shown(&it.sockets.resp).unwrap_or_default(), fixed),
    option("unixsocketperm", |it| format!("{:o}", it.sockets.mode), fixed),
];

/// Told where it is asked for by name alone.
const HIDDEN: &str = "key-load-delay";

/// Of [`ResumePoint::sum`], a bit an option.
const _: () = assert!(OPTIONS.len() < 63);

fn resp_addr(shared: &Shared) -> Option<std::net::SocketAddr> {
    shared.addrs.lock().unwrap_or_else(PoisonError::into_inner).1
}

fn bind(shared: &Shared) -> String {
    resp_addr(shared).map_or_else(String::new, |addr| addr.ip().to_string())
}

fn port(shared: &Shared) -> String {
    resp_addr(shared).map_or(0, |addr| addr.port()).to_string()
}

fn longest_value(shared: &Shared) -> u64 {
    shared.settings.value_bytes_max.min(shared.cache.longest_value())
}

fn query_limit(shared: &Shared) -> String {
    shared.settings.input_bytes_max().to_string()
}

fn keepalive(_: &Shared) -> String {
    KEEPALIVE_IDLE_S.to_string()
}

fn latency_ms(shared: &Shared) -> String {
    shared.tunables.latency_ms().unwrap_or(0).to_string()
}

fn slow_us(shared: &Shared) -> String {
    shared.tunables.slow_us().map_or("-1".into(), |us| us.to_string())
}

fn output_limit(shared: &Shared) -> String {
    let OutputLimit { hard_bytes, soft_bytes, soft_ms } = shared.tunables.output_limit();
    format!("normal {hard_bytes} {soft_bytes} {}", soft_ms / 1000)
}

/// A change that does not fail.
fn change(change: impl FnOnce(&Shared) + 'static) -> Result<Change, String> {
    Ok(Box::new(move |shared: &Shared| {
        change(shared);
        Ok(())
    }))
}

/// It is as it was when the server was started.
fn fixed(_: &Shared, _: &str) -> Result<Change, String> {
    Err("can't set immutable config".into())
}

/// It stays as it is, which may be said.
fn stays(value: &str, is: &str) -> Result<Change, String> {
    if value.eq_ignore_ascii_case(is) {
        return change(|_| ());
    }
    Err(format!("it is `{is}`, as the server was started"))
}

fn stays_bytes(value: &str, is: u64) -> Result<Change, String> {
    if memory(value) == Some(is) {
        return change(|_| ());
    }
    Err(format!("it is `{is}` bytes, as the server was started"))
}

fn number(value: &str, least: i64, most: i64) -> Result<i64, String> {
    let number = super::bytes::strict_i64(value.as_bytes());
    let number = number.ok_or("argument couldn't be parsed into an integer")?;
    if !(least..=most).contains(&number) {
        return Err(format!("argument must be between {least} and {most} inclusive"));
    }
    Ok(number)
}

/// Bytes with a unit of Redis's: `k` is 1000, `kb` 1024.
fn memory(value: &str) -> Option<u64> {
    let value = value.to_ascii_lowercase();
    let end = value.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(end);
    let unit: u64 = match unit {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

fn read_maxmemory(shared: &Shared, value: &str) -> Result<Change, String> {
    let bytes = memory(value).ok_or("argument must be a memory value")?;
    let most = shared.settings.memory_bytes;
    if bytes > most {
        return Err(format!("the cache has the {most} bytes with which the server was started"));
    }
    let bytes = if bytes == 0 { most } else { bytes };
    // Items go in idle turns, of which each thread has some a second. Of less than the cache needs
    // it uses as much as it needs, and takes nothing in.
    Ok(Box::new(move |shared: &Shared| {
        let limit = shared.cache.limit_memory_near(bytes).map_err(|error| error.to_string())?;
        shared.tunables.set_memory_asked((limit != bytes).then_some(bytes));
        Ok(())
    }))
}

fn read_maxclients(_: &Shared, value: &str) -> Result<Change, String> {
    let connections = number(value, 1, i64::from(u32::MAX))? as u64;
    raise_file_limit(connections).map_err(|most| {
        format!(
            "The operating system is not able to handle the specified number of clients, try \
             with {most}"
        )
    })?;
    change(move |shared| shared.tunables.set_connections_max(connections))
}

/// `class hard-bytes soft-bytes soft-seconds ...`
fn read_output_limit(_: &Shared, value: &str) -> Result<Change, String> {
    let words: Vec<_> = value.split_ascii_whitespace().collect();
    if words.is_empty() || !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".into());
    }
    let mut limit = OutputLimit::default();
    for some in words.chunks_exact(4) {
        if !some[0].eq_ignore_ascii_case("normal") {
            return Err("Invalid client class specified in buffer limit configuration.".into());
        }
        let seconds = some[3].parse::<u32>().ok();
        let (Some(hard_bytes), Some(soft_bytes), Some(seconds)) =
            (memory(some[1]), memory(some[2]), seconds)
        else {
            let wrong =
                "Error in hard, soft or soft_seconds setting in buffer limit configuration.";
            return Err(wrong.into());
        };
        limit = OutputLimit { hard_bytes, soft_bytes, soft_ms: u64::from(seconds) * 1000 };
    }
    change(move |shared| shared.tunables.set_output_limit(limit))
}

/// `dram|data|transparent[:NODES]`
fn read_tiering(shared: &Shared, value: &str) -> Result<Change, String> {
    let mode = value.to_ascii_lowercase();
    let tiering = match mode.split_once(':') {
        Some(("transparent", nodes)) => {
            let nodes = nodes.parse::<Placement>().map_err(|error| error.to_string())?;
            Tiering::Transparent(nodes)
        }
        None if mode == "transparent" => {
            Tiering::Transparent(shared.cache.last_dealt_to().ok_or(NO_WEIGHTS)?)
        }
        None if mode == "data" => Tiering::Data,
        None if mode == "dram" => Tiering::Dram,
        _ => return Err("it can be set to dram, data and transparent:NODES".into()),
    };
    Ok(Box::new(move |shared: &Shared| {
        shared.cache.switch(&tiering).map_err(|error| match error {
            Error::BadOption { .. } => NO_FAR_MEMORY.to_owned(),
            other => other.to_string(),
        })
    }))
}

const NO_WEIGHTS: &str = "no nodes were given so far: set transparent:numa:0=3,numa:1=1, with \
                          weights that `rackpool tiers weights` finds";
const NO_FAR_MEMORY: &str = "this server was started without far memory: start it with \
                             --tiering data:NODES, or dram:NODES";

/// `CONFIG SET option value [option value ...]`
pub fn set(call: &mut RespCall<'_>) -> CommandResult {
    let failed = |name: &str, why: &str| {
        format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}")
    };
    if !call.count().is_multiple_of(2) {
        return Err(syntax());
    }
    let shared: &Shared = &call.core.shared;
    let (mut changes, mut named) = (Vec::new(), 0_u64);
    for index in (2..call.count()).step_by(2) {
        let is_asked =
            |option: &ConfigOption| call.arg(index).eq_ignore_ascii_case(option.name.as_bytes());
        let known = OPTIONS.iter().position(is_asked);
        let Some(known) = known else {
            let name = String::from_utf8_lossy(call.arg(index));
            return Err(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
            ));
        };
        let name = OPTIONS[known].name;
        if named >> known & 1 == 1 {
            return Err(failed(name, "duplicate parameter"));
        }
        named |= 1 << known;
        let value = String::from_utf8_lossy(call.arg(index + 1));
        let change = (OPTIONS[known].set)(shared, &value).map_err(|why| failed(name, &why))?;
        changes.push((name, change));
    }
    // The one that may still fail comes first.
    changes.sort_by_key(|(name, _)| *name != "tiering");
    for (name, change) in changes {
        change(shared).map_err(|why| failed(name, &why))?;
    }
    call.status("OK")
}

pub fn get(call: &mut RespCall<'_>) -> CommandResult {
    get_from(call, ResumePoint::at(2))
}

/// Answers with the options that match words from the part's on.
fn get_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let longest = OPTIONS.iter().map(|option| option.name.len()).max().unwrap_or(0);
    let is_done = call.each_word(&mut part, 1, |call, index, asked| {
        let pattern = Glob::new(&call.arg(index).to_ascii_lowercase(), longest);
        let options = OPTIONS.iter().enumerate();
        let is_hidden = !call.arg(index).eq_ignore_ascii_case(HIDDEN.as_bytes());
        let matching = options.filter(|(_, option)| {
            pattern.matches(option.name.as_bytes()) && !(is_hidden && option.name == HIDDEN)
        });
        Ok(matching.fold(asked, |asked, (index, _)| asked | 1 << index))
    })?;
    if !is_done {
        return call.go_on_later(part, get_from);
    }
    let out = &mut call.core.out.bytes;
    push_map(out, part.sum.count_ones() as usize, call.client.version);
    for (index, option) in OPTIONS.iter().enumerate() {
        if part.sum >> index & 1 == 1 {
            push_bulk(out, option.name.as_bytes());
            push_bulk(out, (option.get)(&call.core.shared).as_bytes());
        }
    }
    Ok(())
}

pub fn resetstat(call: &mut RespCall<'_>) -> CommandResult {
    call.core.shared.reset_counts();
    call.status("OK")
}

/// `CONFIG REWRITE`: options are given when a server is started, and no file is written.
pub fn rewrite(_: &mut RespCall<'_>) -> CommandResult {
    Err("ERR The server is running without a config file".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_sorted_and_memory_is_read_as_redis_does() {
        assert!(OPTIONS.is_sorted_by(|a, b| a.name < b.name));
        for (text, bytes) in [
            ("1", Some(1)),
            ("2b", Some(2)),
            ("3k", Some(3000)),
            ("3KB", Some(3072)),
            ("1gb", Some(1 << 30)),
            ("1G", Some(1_000_000_000)),
            ("", None),
            ("kb", None),
            ("1x", None),
            ("-1", None),
            ("99999999999gb", None),
        ] {
            assert_eq!(memory(text), bytes, "{text}");
        }
    }
}
