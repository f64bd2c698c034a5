//! `CLIENT`: what clients are told of each other, and what they may do to each other. In: a
//! [`RespCall`]. Out: its answer, or an error's text.

use super::clients::{AskingClient, ClientFilter, ReplyMode};
use super::pause::Pause;
use super::redis::{CommandResult, RespCall, ResumePoint, syntax, wrong_words};
use super::redis_server::{USER, checked_name};
use super::resp::{push_bulk, push_verbatim};

/// Clients that are looked at between two looks at the clock.
const CLIENTS_AT_ONCE: usize = 64;
/// Words of a `CLIENT KILL`: each filter several times over. They are read again in each turn.
const KILL_WORDS_MAX: usize = 64;
/// Turns in which others may end those that were killed, before that is answered.
const TURNS_UNTIL_ENDED: u64 = 1000;

pub fn getname(call: &mut RespCall<'_>) -> CommandResult {
    match &call.client.name[..] {
        b"" => call.null(),
        name => {
            push_bulk(&mut call.core.out.bytes, name);
            Ok(())
        }
    }
}

pub fn id(call: &mut RespCall<'_>) -> CommandResult {
    call.integer(call.client.id as i64)
}

fn asking(call: &RespCall<'_>) -> AskingClient {
    AskingClient { id: call.client.id, input_bytes: call.input.len() as u64 }
}

pub fn info(call: &mut RespCall<'_>) -> CommandResult {
    let line = call.core.shared.clients.line(asking(call), call.core.now, call.client.id);
    lines(call, &line.unwrap_or_default())
}

pub fn setname(call: &mut RespCall<'_>) -> CommandResult {
    call.client.name = checked_name(call.arg(2))?;
    call.core.shared.clients.changed(call.client);
    call.status("OK")
}

/// `CLIENT SETINFO LIB-NAME name|LIB-VER version`
pub fn setinfo(call: &mut RespCall<'_>) -> CommandResult {
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

fn lines(call: &mut RespCall<'_>, lines: &str) -> CommandResult {
    push_verbatim(&mut call.core.out.bytes, lines.as_bytes(), call.client.version);
    Ok(())
}

/// Whether clients of the type of word `index` are normal ones, as all are.
fn is_normal(call: &RespCall<'_>, index: usize) -> Result<bool, String> {
    let kind = call.arg(index).to_ascii_lowercase();
    match &kind[..] {
        b"normal" => Ok(true),
        b"master" | b"replica" | b"slave" | b"pubsub" => Ok(false),
        _ => {
            let word = String::from_utf8_lossy(call.arg(index));
            Err(format!("ERR Unknown client type '{word}'"))
        }
    }
}

/// `CLIENT LIST [TYPE type|ID number ...]`
pub fn list(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() == 2 {
        return list_all(call, ResumePoint::default());
    }
    if call.is(2, "type") && call.count() == 4 {
        return match is_normal(call, 3)? {
            true => list_all(call, ResumePoint::default()),
            false => lines(call, ""),
        };
    }
    if !call.is(2, "id") || call.count() == 3 {
        return Err(syntax());
    }
    list_ids(call, ResumePoint::at(3))
}

/// Lists the clients with numbers no lower than the part's.
fn list_all(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    loop {
        let (shared, some) = (&call.core.shared, (part.index, CLIENTS_AT_ONCE));
        match shared.clients.list(asking(call), call.core.now, some, &mut part.text) {
            Some(next) => part.index = next,
            None => return lines(call, &part.text),
        }
        if call.is_to_pause() {
            return call.go_on_later(part, list_all);
        }
    }
}

/// Lists the clients that are named by words from the part's on.
fn list_ids(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    while (part.index as usize) < call.count() {
        let id = call.number(part.index as usize).map_err(|_| "ERR Invalid client ID")?;
        let line = call.core.shared.clients.line(asking(call), call.core.now, id as u64);
        part.text.push_str(&line.unwrap_or_default());
        part.index += 1;
        if call.is_to_pause() {
            return call.go_on_later(part, list_ids);
        }
    }
    lines(call, &part.text)
}

/// `CLIENT KILL address`, `CLIENT KILL filter value [filter value ...]`
pub fn kill(call: &mut RespCall<'_>) -> CommandResult {
    kill_from(call, ResumePoint::default())
}

/// Kills clients with numbers no lower than the part's.
fn kill_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    loop {
        let filter = filter(call)?;
        let (shared, now, own) = (&call.core.shared, call.core.now, call.client.id);
        let some = (part.index, CLIENTS_AT_ONCE);
        let mut threads = Vec::new();
        let next = shared.clients.kill(&filter, own, some, now, &mut threads);
        part.sum += threads.len() as i64;
        threads.sort_unstable();
        threads.dedup();
        threads.into_iter().for_each(|thread| shared.wake(thread));
        let Some(next) = next else { break };
        part.index = next;
        if call.is_to_pause() {
            return call.go_on_later(part, kill_from);
        }
    }
    part.index = 0;
    answer_when_ended(call, part)
}

/// Answers when the connections of those killed have ended: that is how libraries find out. A
/// thread that is busy for longer is not waited for.
fn answer_when_ended(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    if part.index < TURNS_UNTIL_ENDED && call.core.shared.clients.are_ending() {
        part.index += 1;
        call.core.timer.end_turn();
        return call.go_on_later(part, answer_when_ended);
    }
    // It is not listed any more if it was among them.
    let is_there = call.core.shared.clients.is_there(call.client.id);
    call.client.quits |= !is_there && part.sum > 0;
    match (call.count(), part.sum) {
        (3, 0) => Err("ERR No such client".into()),
        (3, _) => call.status("OK"),
        (_, killed) => call.integer(killed),
    }
}

fn filter<'a>(call: &'a RespCall<'_>) -> Result<ClientFilter<'a>, String> {
    let mut filter = ClientFilter::default();
    if call.count() == 3 {
        filter.addr = Some(call.arg(2));
        return Ok(filter);
    }
    if call.count() > KILL_WORDS_MAX {
        return Err(syntax());
    }
    filter.skipped = Some(call.client.id);
    for index in (2..call.count()).step_by(2) {
        let value = index + 1;
        if value == call.count() {
            return Err(syntax());
        }
        if call.is(index, "id") {
            let id = call.number(value).ok().filter(|id| *id > 0);
            filter.id = Some(id.ok_or("ERR client-id should be greater than 0")? as u64);
        } else if call.is(index, "type") {
            filter.is_of_none = !is_normal(call, value)?;
        } else if call.is(index, "addr") {
            filter.addr = Some(call.arg(value));
        } else if call.is(index, "laddr") {
            filter.local = Some(call.arg(value));
        } else if call.is(index, "user") {
            if call.arg(value) != USER {
                let name = String::from_utf8_lossy(call.arg(value));
                return Err(format!("ERR No such user '{name}'"));
            }
        } else if call.is(index, "maxage") {
            let age_s = call.number(value).map_err(|_| MAXAGE)?;
            filter.age_s_min = u64::try_from(age_s).ok().filter(|age| *age > 0).ok_or(MAXAGE)?;
        } else if call.is(index, "skipme") && call.is(value, "yes") {
            filter.skipped = Some(call.client.id);
        } else if call.is(index, "skipme") && call.is(value, "no") {
            filter.skipped = None;
        } else {
            return Err(syntax());
        }
    }
    Ok(filter)
}

const MAXAGE: &str = "ERR maxage is not an integer or out of range";

pub fn pause(call: &mut RespCall<'_>) -> CommandResult {
    let is_of_all = match call.count() {
        3 => true,
        4 if call.is(3, "all") => true,
        4 if call.is(3, "write") => false,
        4 => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".into()),
        _ => return Err(wrong_words(call)),
    };
    let ms = call.number(2).map_err(|_| "ERR timeout is not an integer or out of range")?;
    let ms = u64::try_from(ms).map_err(|_| "ERR timeout is negative")?;
    let until = call.core.now.checked_add(ms).filter(|until| until >> 63 == 0);
    let until = until.ok_or("ERR timeout is not an integer or out of range")?;
    call.core.shared.pause.give(Pause::until(until, is_of_all));
    call.core.look_at_watchers();
    // What came behind it in the same read waits as well.
    call.core.timer.end_turn();
    call.status("OK")
}

pub fn unpause(call: &mut RespCall<'_>) -> CommandResult {
    call.core.shared.pause.give(Pause::default());
    call.core.look_at_watchers();
    call.core.shared.wake_all();
    call.status("OK")
}

/// `CLIENT REPLY ON|OFF|SKIP`: the last two have no answer themselves.
pub fn reply(call: &mut RespCall<'_>) -> CommandResult {
    let before = call.client.reply;
    if call.is(2, "on") {
        call.client.reply = ReplyMode::On;
        return call.status("OK");
    }
    if call.is(2, "off") {
        call.client.reply = ReplyMode::Off;
    } else if !call.is(2, "skip") {
        return Err(syntax());
    } else if before != ReplyMode::Off {
        call.client.reply = ReplyMode::SkipNext;
    }
    // What came behind it in the same read is answered accordingly.
    call.core.timer.end_turn();
    Ok(())
}

/// `ON` or `OFF`, the third word.
fn switch(call: &RespCall<'_>) -> Result<bool, String> {
    if call.is(2, "on") {
        return Ok(true);
    }
    call.is(2, "off").then_some(false).ok_or_else(syntax)
}

pub fn no_evict(call: &mut RespCall<'_>) -> CommandResult {
    call.client.goes_last = switch(call)?;
    call.core.shared.clients.changed(call.client);
    call.status("OK")
}

pub fn no_touch(call: &mut RespCall<'_>) -> CommandResult {
    if switch(call)? {
        return Err("ERR every read counts as a use of its item".into());
    }
    call.status("OK")
}

/// `CLIENT UNBLOCK id [TIMEOUT|ERROR]`: no command waits for others, so none is found that does.
pub fn unblock(call: &mut RespCall<'_>) -> CommandResult {
    match call.count() {
        3 => {}
        4 if call.is(3, "timeout") || call.is(3, "error") => {}
        4 => return Err("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".into()),
        _ => return Err(wrong_words(call)),
    }
    call.number(2)?;
    call.integer(0)
}
