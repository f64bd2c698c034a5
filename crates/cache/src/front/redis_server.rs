//! Redis's commands on the connection and the server. In: a [`RespCall`]. Out: its answer, or an
//! error's text.

use super::auth::same;
use super::counters::Count;
use super::glob::Glob;
use super::redis::{CommandResult, RespCall, ResumePoint, syntax, wrong_arity};
use super::redis_keys::database;
use super::resp::{
    REDIS_VERSION, Version, push_array, push_bulk, push_integer, push_map, push_verbatim,
};
use super::stats;
use crate::cache::{Error, Tiering};
use rackpool_mem::numa::Placement;
use std::sync::Arc;

/// The only user there is.
const USER: &[u8] = b"default";

const WRONG: &str = "WRONGPASS invalid username-password pair or user is disabled.";

pub fn ping(call: &mut RespCall<'_>) -> CommandResult {
    match call.count() {
        1 => call.status("PONG"),
        2 => echo(call),
        _ => Err(wrong_arity("ping")),
    }
}

pub fn echo(call: &mut RespCall<'_>) -> CommandResult {
    let text = call.args.get(call.input, 1);
    push_bulk(&mut call.core.out.bytes, text);
    Ok(())
}

pub fn quit(call: &mut RespCall<'_>) -> CommandResult {
    call.client.quits = true;
    call.status("OK")
}

/// `RESET`
pub fn reset(call: &mut RespCall<'_>) -> CommandResult {
    let client = &mut *call.client;
    (client.transaction, client.version, client.database) = (None, Version::Two, 0);
    client.name.clear();
    client.known = call.core.shared.settings.password.is_none();
    call.core.use_database(0);
    call.core.shared.clients.changed(call.client);
    call.status("RESET")
}

/// `SELECT database`
pub fn select(call: &mut RespCall<'_>) -> CommandResult {
    let number = database(call, 1, "")?;
    call.client.database = number;
    call.core.use_database(number);
    call.core.shared.clients.changed(call.client);
    call.status("OK")
}

pub fn time(call: &mut RespCall<'_>) -> CommandResult {
    let now = call.core.times().wall;
    let out = &mut call.core.out.bytes;
    push_array(out, 2);
    push_bulk(out, (now / 1000).to_string().as_bytes());
    push_bulk(out, (now % 1000 * 1000).to_string().as_bytes());
    Ok(())
}

/// `AUTH [user] password`
pub fn auth(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() > 3 {
        return Err(syntax());
    }
    if call.count() == 2 && call.core.shared.settings.password.is_none() {
        return Err("ERR AUTH <password> called without any password configured for the default \
                    user. Are you sure your configuration is correct?"
            .into());
    }
    let last = call.count() - 1;
    let user = if call.count() == 3 { call.arg(1) } else { USER };
    let right = is_right(call, user, call.arg(last));
    answer_auth(call, right)?;
    call.status("OK")
}

fn is_right(call: &RespCall<'_>, user: &[u8], password: &[u8]) -> bool {
    let expected = &call.core.shared.settings.password;
    let right = expected.as_ref().is_none_or(|expected| same(expected.as_bytes(), password));
    right && user == USER
}

fn answer_auth(call: &mut RespCall<'_>, right: bool) -> CommandResult {
    call.core.count(Count::AuthCmds);
    if right {
        call.client.known = true;
        return Ok(());
    }
    call.core.count(Count::AuthErrors);
    Err(WRONG.into())
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`
pub fn hello(call: &mut RespCall<'_>) -> CommandResult {
    let mut version = call.client.version;
    let mut index = 1;
    if call.count() > 1 {
        version = match call.number(1) {
            Ok(2) => Version::Two,
            Ok(3) => Version::Three,
            Ok(_) => return Err("NOPROTO unsupported protocol version".into()),
            Err(_) => {
                let text = "ERR Protocol version is not an integer or out of range";
                return Err(text.into());
            }
        };
        index = 2;
    }
    let mut name = None;
    while index < call.count() {
        if call.is(index, "auth") && index + 2 < call.count() {
            let right = is_right(call, call.arg(index + 1), call.arg(index + 2));
            answer_auth(call, right)?;
            index += 3;
        } else if call.is(index, "setname") && index + 1 < call.count() {
            name = Some(checked_name(call.arg(index + 1))?);
            index += 2;
        } else {
            let word = String::from_utf8_lossy(call.arg(index)).into_owned();
            return Err(format!("ERR Syntax error in HELLO option '{word}'"));
        }
    }
    if !call.client.known {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise \
                    the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the \
                    client and select the RESP protocol version at the same time"
                .into(),
        );
    }
    call.client.version = version;
    if let Some(name) = name {
        call.client.name = name;
    }
    call.core.shared.clients.changed(call.client);
    let id = call.client.id as i64;
    let out = &mut call.core.out.bytes;
    push_map(out, 7, version);
    for text in ["server", "redis", "version", REDIS_VERSION, "proto"] {
        push_bulk(out, text.as_bytes());
    }
    push_integer(out, if version == Version::Two { 2 } else { 3 });
    push_bulk(out, b"id");
    push_integer(out, id);
    for text in ["mode", "standalone", "role", "master", "modules"] {
        push_bulk(out, text.as_bytes());
    }
    push_array(out, 0);
    Ok(())
}

fn checked_name(name: &[u8]) -> Result<Vec<u8>, String> {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Ok(name[..name.len().min(NAME_BYTES_MAX)].to_vec());
    }
    Err("ERR Client names cannot contain spaces, newlines or special characters.".into())
}

/// Bytes of a client's name that are kept.
const NAME_BYTES_MAX: usize = 256;

pub fn client_getname(call: &mut RespCall<'_>) -> CommandResult {
    match &call.client.name[..] {
        b"" => call.null(),
        name => {
            push_bulk(&mut call.core.out.bytes, name);
            Ok(())
        }
    }
}

pub fn client_id(call: &mut RespCall<'_>) -> CommandResult {
    call.integer(call.client.id as i64)
}

pub fn client_info(call: &mut RespCall<'_>) -> CommandResult {
    let line = call.core.shared.clients.line(call.core.now, call.client.id);
    client_lines(call, &line.unwrap_or_default())
}

/// `CLIENT SETNAME name`
pub fn client_setname(call: &mut RespCall<'_>) -> CommandResult {
    call.client.name = checked_name(call.arg(2))?;
    call.core.shared.clients.changed(call.client);
    call.status("OK")
}

/// `CLIENT SETINFO LIB-NAME name|LIB-VER version`
pub fn client_setinfo(call: &mut RespCall<'_>) -> CommandResult {
    let value = checked_name(call.arg(3))?;
    if call.is(2, "lib-name") {
        call.client.library.0 = value;
    } else if call.is(2, "lib-ver") {
        call.client.library.1 = value;
    } else {
        return Err("ERR Unrecognized option or bad number of args for: 'CLIENT SETINFO'".into());
    }
    call.core.shared.clients.changed(call.client);
    call.status("OK")
}

fn client_lines(call: &mut RespCall<'_>, lines: &str) -> CommandResult {
    push_verbatim(&mut call.core.out.bytes, lines.as_bytes(), call.client.version);
    Ok(())
}

/// `CLIENT LIST [TYPE type|ID number ...]`
pub fn client_list(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() == 2 {
        return client_list_all(call, ResumePoint::default());
    }
    if call.is(2, "type") && call.count() == 4 {
        let kind = call.arg(3).to_ascii_lowercase();
        return match &kind[..] {
            b"normal" => client_list_all(call, ResumePoint::default()),
            b"master" | b"replica" | b"slave" | b"pubsub" => client_lines(call, ""),
            _ => Err(format!("ERR Unknown client type '{}'", String::from_utf8_lossy(call.arg(3)))),
        };
    }
    if !call.is(2, "id") || call.count() == 3 {
        return Err(syntax());
    }
    client_list_ids(call, ResumePoint::at(3))
}

/// Lists the clients with numbers no lower than the part's.
fn client_list_all(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    loop {
        let shared = &call.core.shared;
        match shared.clients.list(call.core.now, part.index, CLIENTS_AT_ONCE, &mut part.text) {
            Some(next) => part.index = next,
            None => return client_lines(call, &part.text),
        }
        if call.is_to_pause() {
            return call.go_on_later(part, client_list_all);
        }
    }
}

/// Lists the clients that are named by words from the part's on.
fn client_list_ids(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    while (part.index as usize) < call.count() {
        let id = call.number(part.index as usize).map_err(|_| "ERR Invalid client ID")?;
        let line = call.core.shared.clients.line(call.core.now, id as u64);
        part.text.push_str(&line.unwrap_or_default());
        part.index += 1;
        if call.is_to_pause() {
            return call.go_on_later(part, client_list_ids);
        }
    }
    client_lines(call, &part.text)
}

/// Clients listed in one turn.
const CLIENTS_AT_ONCE: usize = 64;

/// `CLUSTER subcommand ...`
pub fn cluster(_: &mut RespCall<'_>) -> CommandResult {
    Err("ERR This instance has cluster support disabled".into())
}

pub fn config_resetstat(call: &mut RespCall<'_>) -> CommandResult {
    call.core.shared.reset_counts();
    call.status("OK")
}

pub fn config_rewrite(_: &mut RespCall<'_>) -> CommandResult {
    Err(FIXED.into())
}

const FIXED: &str = "ERR options are given when the server is started";

/// `CONFIG SET tiering dram|data|transparent[:NODES]`
pub fn config_set(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() != 4 || !call.is(2, "tiering") {
        return Err(FIXED.into());
    }
    let cache = call.core.cache();
    let mode = String::from_utf8_lossy(call.arg(3)).to_ascii_lowercase();
    let tiering = match mode.split_once(':') {
        Some(("transparent", nodes)) => {
            let nodes = nodes.parse::<Placement>().map_err(|error| format!("ERR {error}"))?;
            Tiering::Transparent(nodes)
        }
        None if mode == "transparent" => {
            Tiering::Transparent(cache.last_dealt_to().ok_or(NO_WEIGHTS)?)
        }
        None if mode == "data" => Tiering::Data,
        None if mode == "dram" => Tiering::Dram,
        _ => return Err("ERR tiering can be set to dram, data and transparent:NODES".into()),
    };
    cache.switch(&tiering).map_err(|error| match error {
        Error::BadOption { .. } => NO_FAR_MEMORY.to_owned(),
        other => format!("ERR {other}"),
    })?;
    call.status("OK")
}

const NO_WEIGHTS: &str = "ERR no nodes were given so far: set transparent:numa:0=3,numa:1=1, with \
                          weights that `rackpool tiers weights` finds";
const NO_FAR_MEMORY: &str = "ERR this server was started without far memory: start it with \
                             --tiering data:NODES, or dram:NODES";

/// `CONFIG GET pattern ...`
pub fn config_get(call: &mut RespCall<'_>) -> CommandResult {
    config_get_from(call, ResumePoint::at(2))
}

/// Answers with the options that match words from the part's on.
fn config_get_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let all = stats::config(&call.core.shared);
    let longest = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let is_done = call.each_word(&mut part, 1, |call, index, asked| {
        let pattern = Glob::new(&call.arg(index).to_ascii_lowercase(), longest);
        let matched =
            |(_, (name, _)): &(usize, &(String, String))| pattern.matches(name.as_bytes());
        let matching = all.iter().enumerate().filter(matched);
        Ok(matching.fold(asked, |asked, (index, _)| asked | 1 << index))
    })?;
    if !is_done {
        return call.go_on_later(part, config_get_from);
    }
    let out = &mut call.core.out.bytes;
    push_map(out, part.sum.count_ones() as usize, call.client.version);
    for (index, (name, value)) in all.iter().enumerate() {
        if part.sum >> index & 1 == 0 {
            continue;
        }
        push_bulk(out, name.as_bytes());
        push_bulk(out, value.as_bytes());
    }
    Ok(())
}

/// `INFO [section ...]`
pub fn info(call: &mut RespCall<'_>) -> CommandResult {
    info_from(call, ResumePoint::at(1))
}

/// Answers with the sections that are named by words from the part's on.
fn info_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let is_done = call.each_word(&mut part, 1, |call, index, asked| {
        Ok(asked | stats::info_sections(call.arg(index)))
    })?;
    if !is_done {
        return call.go_on_later(part, info_from);
    }
    let asked = if call.count() == 1 { stats::info_sections(b"default") } else { part.sum };
    let text = stats::info(call.core, asked);
    push_verbatim(&mut call.core.out.bytes, text.as_bytes(), call.client.version);
    Ok(())
}

pub fn slowlog_len(call: &mut RespCall<'_>) -> CommandResult {
    let len = call.core.shared.slow().entries().len();
    call.integer(len as i64)
}

pub fn slowlog_reset(call: &mut RespCall<'_>) -> CommandResult {
    call.core.shared.slow().clear();
    call.status("OK")
}

/// `SLOWLOG GET [count]`
pub fn slowlog_get(call: &mut RespCall<'_>) -> CommandResult {
    let wanted = if call.count() > 2 { call.number(2)? } else { 10 };
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
