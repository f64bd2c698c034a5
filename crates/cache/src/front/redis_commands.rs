//! Redis's commands by their names: how many words they have, what they are called with, and what
//! `COMMAND` answers for each. The session calls [`run`] for each command but plain look-ups and
//! stores, which wait in the batch.
//!
//! Source: the answers of redis 7.0, word by word.

use super::counters::Count;
use super::redis::{CommandResult, RespCall, ResumePoint, Subcommand, Unfinished, wrong_arity};
use super::redis_strings::Unit;
use super::resp::{Version, push_array, push_bulk, push_integer, push_map, push_status};
use super::{redis_keys, redis_server, redis_strings};

/// First word that is a key, last one (negative: from the end), and the step; 0 for none.
type KeyWords = [i32; 3];

const NO_KEYS: KeyWords = [0, 0, 0];
const ONE: KeyWords = [1, 1, 1];
const ALL: KeyWords = [1, -1, 1];
const PAIRS: KeyWords = [1, -1, 2];

struct Spec {
    /// In lower case.
    name: &'static str,
    /// Words with the name; negative: at least so many.
    arity: i32,
    writes: bool,
    keys: KeyWords,
    run: fn(&mut RespCall<'_>) -> CommandResult,
    group: &'static str,
    /// The version in which Redis got it.
    since: &'static str,
    summary: &'static str,
}

macro_rules! commands {
    ($($name:literal $arity:literal $writes:literal $keys:ident $run:expr,
        $group:literal $since:literal $summary:literal;)*) => {
        &[$(Spec {
            name: $name,
            arity: $arity,
            writes: $writes,
            keys: $keys,
            run: $run,
            group: $group,
            since: $since,
            summary: $summary,
        }),*]
    };
}

static COMMANDS: &[Spec] = commands! {
    "append" 3 true ONE redis_strings::append,
        "string" "2.0.0" "Appends to a value; there need not be one.";
    "auth" -2 false NO_KEYS redis_server::auth,
        "connection" "1.0.0" "Authenticates the connection.";
    "client" -2 false NO_KEYS redis_server::client,
        "connection" "2.4.0" "Names the connection, or tells of all.";
    "command" -1 false NO_KEYS command,
        "server" "2.8.13" "Tells which commands there are.";
    "config" -2 false NO_KEYS redis_server::config,
        "server" "2.0.0" "Tells how the server was started, or resets what it counts.";
    "dbsize" 1 false NO_KEYS redis_keys::dbsize,
        "server" "1.0.0" "Counts the keys.";
    "decr" 2 true ONE |call| redis_strings::count(call, -1),
        "string" "1.0.0" "Takes one from an integer, which is 0 at first.";
    "decrby" 3 true ONE redis_strings::decrby,
        "string" "1.0.0" "Takes a number from an integer, which is 0 at first.";
    "del" -2 true ALL redis_keys::del,
        "generic" "1.0.0" "Deletes keys.";
    "echo" 2 false NO_KEYS redis_server::echo,
        "connection" "1.0.0" "Answers the given text.";
    "exists" -2 false ALL redis_keys::exists,
        "generic" "1.0.0" "Counts those of the keys that exist.";
    "expire" -3 true ONE |call| redis_keys::expire(call, Unit::EX),
        "generic" "1.0.0" "Sets when a key expires, seconds from now.";
    "expireat" -3 true ONE |call| redis_keys::expire(call, Unit::EXAT),
        "generic" "1.2.0" "Sets when a key expires, seconds since 1970.";
    "expiretime" 2 false ONE |call| redis_keys::left(call, |_, at| (at + 500) / 1000),
        "generic" "7.0.0" "Tells when a key expires, seconds since 1970.";
    "flushall" -1 true NO_KEYS redis_keys::flush,
        "server" "1.0.0" "Deletes all keys.";
    "flushdb" -1 true NO_KEYS redis_keys::flush,
        "server" "1.0.0" "Deletes all keys.";
    "get" 2 false ONE redis_strings::get,
        "string" "1.0.0" "Tells a value.";
    "getdel" 2 true ONE redis_strings::getdel,
        "string" "6.2.0" "Tells a value and deletes its key.";
    "getex" -2 true ONE redis_strings::getex,
        "string" "6.2.0" "Tells a value and sets when its key expires.";
    "getset" 3 true ONE redis_strings::getset,
        "string" "1.0.0" "Sets a value and tells what it was.";
    "hello" -1 false NO_KEYS redis_server::hello,
        "connection" "6.0.0" "Chooses the version of the protocol, and authenticates.";
    "incr" 2 true ONE |call| redis_strings::count(call, 1),
        "string" "1.0.0" "Adds one to an integer, which is 0 at first.";
    "incrby" 3 true ONE |call| redis_strings::count(call, call.number(2)?),
        "string" "1.0.0" "Adds a number to an integer, which is 0 at first.";
    "info" -1 false NO_KEYS redis_server::info,
        "server" "1.0.0" "Tells what the server is and counts.";
    "memory" -2 false NO_KEYS redis_keys::memory,
        "server" "4.0.0" "Tells how much memory a key takes.";
    "mget" -2 false ALL redis_strings::mget,
        "string" "1.0.0" "Tells the values of several keys.";
    "mset" -3 true PAIRS redis_strings::mset,
        "string" "1.0.1" "Sets the values of several keys.";
    "persist" 2 true ONE redis_keys::persist,
        "generic" "2.2.0" "Has a key never expire.";
    "pexpire" -3 true ONE |call| redis_keys::expire(call, Unit::PX),
        "generic" "2.6.0" "Sets when a key expires, milliseconds from now.";
    "pexpireat" -3 true ONE |call| redis_keys::expire(call, Unit::PXAT),
        "generic" "2.6.0" "Sets when a key expires, milliseconds since 1970.";
    "pexpiretime" 2 false ONE |call| redis_keys::left(call, |_, at| at),
        "generic" "7.0.0" "Tells when a key expires, milliseconds since 1970.";
    "ping" -1 false NO_KEYS redis_server::ping,
        "connection" "1.0.0" "Answers PONG, or the given text.";
    "psetex" 4 true ONE |call| redis_strings::set_for(call, Unit::PX),
        "string" "2.6.0" "Sets a value that expires, milliseconds from now.";
    "pttl" 2 false ONE |call| redis_keys::left(call, |left, _| left),
        "generic" "2.6.0" "Tells how long a key has, milliseconds.";
    "quit" -1 false NO_KEYS redis_server::quit,
        "connection" "1.0.0" "Ends the connection.";
    "scan" -2 false NO_KEYS redis_keys::scan,
        "generic" "2.8.0" "Walks over the keys.";
    "select" 2 false NO_KEYS redis_server::select,
        "connection" "1.0.0" "Chooses a database, of which there is one, 0.";
    "set" -3 true ONE redis_strings::set,
        "string" "1.0.0" "Sets a value, if asked so only if there is one, or none.";
    "setex" 4 true ONE |call| redis_strings::set_for(call, Unit::EX),
        "string" "2.0.0" "Sets a value that expires, seconds from now.";
    "setnx" 3 true ONE redis_strings::setnx,
        "string" "1.0.0" "Sets a value if there is none.";
    "slowlog" -2 false NO_KEYS redis_server::slowlog,
        "server" "2.2.12" "Tells of commands that took long.";
    "strlen" 2 false ONE redis_strings::strlen,
        "string" "2.2.0" "Tells how long a value is.";
    "time" 1 false NO_KEYS redis_server::time,
        "server" "2.6.0" "Tells the time.";
    "touch" -2 false ALL redis_keys::exists,
        "generic" "3.2.1" "Counts those of the keys that exist; they are used.";
    "ttl" 2 false ONE |call| redis_keys::left(call, |left, _| (left + 500) / 1000),
        "generic" "1.0.0" "Tells how long a key has, seconds.";
    "type" 2 false ONE redis_keys::type_of,
        "generic" "1.0.0" "Tells what kind of value a key has.";
    "unlink" -2 true ALL redis_keys::del,
        "generic" "4.0.0" "Deletes keys.";
};

/// The command of that name, in upper or lower case.
fn find(name: &[u8]) -> Option<&'static Spec> {
    let mut lower = [0; 16];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let index = COMMANDS.binary_search_by(|spec| spec.name.as_bytes().cmp(lower)).ok()?;
    Some(&COMMANDS[index])
}

/// Executes a command; what is left of it.
pub fn run(mut call: RespCall<'_>) -> Option<Unfinished> {
    call.core.count(Count::RespCommands);
    let answer = checked(&mut call);
    call.finish(answer)
}

fn checked(call: &mut RespCall<'_>) -> CommandResult {
    let Some(spec) = find(call.arg(0)) else { return Err(unknown(call)) };
    if !call.fits(spec.arity) {
        return Err(wrong_arity(spec.name));
    }
    if !call.client.known && !matches!(spec.name, "auth" | "hello" | "quit") {
        return Err("NOAUTH Authentication required.".into());
    }
    (spec.run)(call)
}

/// Bytes of its words that a command that is not known gets back.
const UNKNOWN_BYTES_MAX: usize = 128;

fn unknown(call: &RespCall<'_>) -> String {
    let text = |bytes: &[u8], most: usize| {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        bytes[..end.min(most)].to_vec()
    };
    let mut line = b"ERR unknown command '".to_vec();
    line.extend(text(call.arg(0), UNKNOWN_BYTES_MAX));
    line.extend_from_slice(b"', with args beginning with: ");
    let mut shown = 0;
    for index in 1..call.count() {
        if shown >= UNKNOWN_BYTES_MAX {
            break;
        }
        let word = text(call.arg(index), UNKNOWN_BYTES_MAX - shown);
        shown += word.len() + 3;
        line.push(b'\'');
        line.extend(word);
        line.extend_from_slice(b"' ");
    }
    // An error's text is one of bytes; ours are strings, so what is no text is marked.
    String::from_utf8_lossy(&line).into_owned()
}

/// `COMMAND [COUNT|DOCS|INFO|LIST ...]`
fn command(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() == 1 {
        call.array(COMMANDS.len());
        COMMANDS.iter().for_each(|spec| push_spec(&mut call.core.out.bytes, spec));
        return Ok(());
    }
    let known: &[Subcommand] = &[
        ("count", -2, |call| call.integer(COMMANDS.len() as i64)),
        ("docs", -2, |call| command_docs(call, ResumePoint::at(2))),
        ("info", -2, |call| {
            call.array(call.count() - 2);
            command_info_from(call, ResumePoint::at(2))
        }),
        ("list", -2, |call| {
            let out = &mut call.core.out.bytes;
            push_array(out, COMMANDS.len());
            COMMANDS.iter().for_each(|spec| push_bulk(out, spec.name.as_bytes()));
            Ok(())
        }),
    ];
    call.subcommand("command", known)
}

/// Answers with the documentation of the commands named by words from the part's on.
fn command_docs(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let is_done = call.each_word(&mut part, 1, |call, index, asked| {
        let named = COMMANDS.iter().position(|spec| call.is(index, spec.name));
        Ok(asked | named.map_or(0, |index| 1 << index))
    })?;
    if !is_done {
        return call.go_on_later(part, command_docs);
    }
    let is_asked = |index: usize| call.count() == 2 || part.sum >> index & 1 == 1;
    let asked = COMMANDS.iter().enumerate().filter(|(index, _)| is_asked(*index));
    let asked: Vec<_> = asked.collect();
    let version = call.client.version;
    let out = &mut call.core.out.bytes;
    push_map(out, asked.len(), version);
    for (_, spec) in asked {
        push_bulk(out, spec.name.as_bytes());
        push_map(out, 3, version);
        for text in ["summary", spec.summary, "since", spec.since, "group", spec.group] {
            push_bulk(out, text.as_bytes());
        }
    }
    Ok(())
}

/// Answers with the commands that are named by words from the part's on.
fn command_info_from(call: &mut RespCall<'_>, part: ResumePoint) -> CommandResult {
    for index in part.index as usize..call.count() {
        if call.is_to_pause() {
            return call.go_on_later(ResumePoint::at(index as u64), command_info_from);
        }
        let out = &mut call.core.out.bytes;
        match find(call.args.get(call.input, index)) {
            Some(spec) => push_spec(out, spec),
            None => out.extend_from_slice(match call.client.version {
                Version::Two => b"*-1\r\n",
                Version::Three => b"_\r\n",
            }),
        }
    }
    Ok(())
}

fn push_spec(out: &mut Vec<u8>, spec: &Spec) {
    push_array(out, 6);
    push_bulk(out, spec.name.as_bytes());
    push_integer(out, i64::from(spec.arity));
    push_array(out, 1);
    push_status(out, if spec.writes { "write" } else { "readonly" });

    spec.keys.into_iter().for_each(|number| push_integer(out, i64::from(number)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_in_order_and_found_in_any_letters() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        assert_eq!(find(b"GeT").unwrap().name, "get");
        assert!(find(b"lpush").is_none() && find(b"").is_none());
        assert!(find(b"a command of more than sixteen bytes").is_none());
    }
}
