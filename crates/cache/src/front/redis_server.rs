//! Redis's commands on the connection and the server. In: a [`RespCall`]. Out: its answer, or an
//! error's text.

use super::auth::same;
use super::clients::ReplyMode;
use super::counters::Count;
use super::info;
use super::redis::{CommandResult, RespCall, ResumePoint, syntax, wrong_arity};
use super::redis_keys::database;
use super::resp::{
    REDIS_VERSION, Version, push_array, push_bulk, push_integer, push_map, push_verbatim,
};

/// The only user there is.
pub const USER: &[u8] = b"default";

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

pub fn checked_name(name: &[u8]) -> Result<Vec<u8>, String> {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Ok(name[..name.len().min(NAME_BYTES_MAX)].to_vec());
    }
    Err("ERR Client names cannot contain spaces, newlines or special characters.".into())
}

/// Bytes of a client's name that are kept.
const NAME_BYTES_MAX: usize = 256;

pub fn cluster(_: &mut RespCall<'_>) -> CommandResult {
    Err("ERR This instance has cluster support disabled".into())
}

pub fn info(call: &mut RespCall<'_>) -> CommandResult {
    info_from(call, ResumePoint::at(1))
}

/// Answers with the sections that are named by words from the part's on.
fn info_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let is_done = call.each_word(&mut part, 1, |call, index, asked| {
        Ok(asked | info::sections(call.arg(index)))
    })?;
    if !is_done {
        return call.go_on_later(part, info_from);
    }
    let asked = if call.count() == 1 { info::sections(b"default") } else { part.sum };
    let text = info::text(call.core, asked);
    push_verbatim(&mut call.core.out.bytes, text.as_bytes(), call.client.version);
    Ok(())
}

pub fn role(call: &mut RespCall<'_>) -> CommandResult {
    let out = &mut call.core.out.bytes;
    push_array(out, 3);
    push_bulk(out, b"master");
    // Nothing is replicated.
    push_integer(out, 0);
    push_array(out, 0);
    Ok(())
}

/// `LASTSAVE`: as Redis answers that has saved nothing, when the server began.
pub fn lastsave(call: &mut RespCall<'_>) -> CommandResult {
    let (_, started) = call.core.shared.started;
    call.integer((started / 1000) as i64)
}

/// `RESET`: the connection is as a new one.
pub fn reset(call: &mut RespCall<'_>) -> CommandResult {
    if let Some(queue) = call.client.monitor.take() {
        call.core.shared.monitors.remove(&queue);
    }
    let client = &mut *call.client;
    client.known = call.core.shared.settings.password.is_none();
    (client.name, client.version, client.transaction) = (Vec::new(), Version::Two, None);
    (client.reply, client.goes_last) = (ReplyMode::On, false);
    client.database = 0;
    call.core.use_database(0);
    call.core.shared.clients.changed(call.client);
    call.status("RESET")
}

pub fn monitor(call: &mut RespCall<'_>) -> CommandResult {
    if call.core.section.is_some() {
        return Err("ERR MONITOR isn't allowed for DENY BLOCKING client".into());
    }
    if call.client.monitor.is_none() {
        let queue = call.core.shared.monitors.add(call.core.thread);
        call.client.monitor = Some(queue.ok_or("ERR as many clients monitor as may")?);
        call.core.shared.clients.changed(call.client);
        call.core.look_at_watchers();
    }
    call.status("OK")
}
