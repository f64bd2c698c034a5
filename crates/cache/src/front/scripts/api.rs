//! Functions of `redis` that scripts call, for the prelude. In: what a script gives them. Out: what
//! the thread that drives the script answers ([`Exchange`]).

use super::convert::{self, field, push_word};
use super::interpreter::{CALLS, Exchange, few_values};
use super::library::{self, Answer, Fault, Given, one};
use super::sha1::Sha1;
use crate::front::commands::scripted;
use crate::front::resp::Version;
use mlua::{Lua, MultiValue, Table, Value};
use rackpool_mem::coroutine::suspend;
use std::rc::Rc;

pub fn table(lua: &Lua, exchange: &Rc<Exchange>) -> mlua::Result<Table> {
    let table = library::table(
        lua,
        &[
            ("acl_check_cmd", acl_check_cmd),
            ("error_reply", |given| reply(given, "err")),
            ("log", log),
            ("set_repl", set_repl),
            ("sha1hex", sha1hex),
            ("status_reply", |given| reply(given, "ok")),
        ],
    )?;
    let inside = Rc::clone(exchange);
    let call = move |lua: &Lua, words: MultiValue| {
        ask(lua, &inside, &words).map_err(|fault| fault.raised(lua))
    };
    table.raw_set("call", lua.create_function(call)?)?;
    let inside = Rc::clone(exchange);
    let pcall = move |lua: &Lua, words: MultiValue| match ask(lua, &inside, &words) {
        Err(Fault::Reply(text)) => convert::error(lua, &text, false),
        Err(Fault::Answer(text)) => convert::error(lua, &text, true),
        answered => answered.map_err(|fault| fault.raised(lua)),
    };
    table.raw_set("pcall", lua.create_function(pcall)?)?;
    let inside = Rc::clone(exchange);
    let setresp = library::function(lua, move |given| {
        if given.len() != 1 {
            return Err(Fault::reply("redis.setresp() requires one argument."));
        }
        inside.version.set(match given.number(0) {
            Ok(2.0) => Version::Two,
            Ok(3.0) => Version::Three,
            _ => return Err(Fault::reply("RESP version must be 2 or 3.")),
        });
        Ok(MultiValue::new())
    });
    table.raw_set("setresp", setresp?)?;
    Ok(table)
}

const NO_WORDS: &str = "Please specify at least one argument for this redis lib call";

/// What a command with these words answers, or its error.
fn ask(lua: &Lua, exchange: &Exchange, words: &MultiValue) -> Result<Value, Fault> {
    if words.is_empty() {
        return Err(Fault::reply(NO_WORDS));
    }
    {
        let mut bytes = exchange.words.borrow_mut();
        bytes.clear();
        for word in words {
            push_word(&mut bytes, word).map_err(Fault::reply)?;
        }
    }
    exchange.count.set(words.len());
    suspend(CALLS);
    if exchange.pace.stopped().is_some() {
        exchange.pace.look()?;
    }
    let reply = exchange.reply.borrow();
    few_values(lua, reply.len(), || convert::to_lua(lua, &reply))
}

fn acl_check_cmd(given: &Given<'_>) -> Answer {
    if given.len() == 0 {
        return Err(Fault::reply(NO_WORDS));
    }
    let is_known = given.string(0).is_ok_and(|name| scripted::is_known(&name.as_bytes()));
    if is_known {
        return one(Value::Boolean(true));
    }
    Err(Fault::reply("Invalid command passed to redis.acl_check_cmd()"))
}

/// A table with one text, which is a script's answer.
fn reply(given: &Given<'_>, name: &str) -> Answer {
    let text = match given.value(0) {
        Value::String(text) if given.len() == 1 => text,
        _ => {
            let why = given.lua.create_string("ERR wrong number or type of arguments")?;
            return one(field(given.lua, "err", Value::String(why))?);
        }
    };
    let text = match name {
        "err" => given.lua.create_string(convert::with_code(&text.as_bytes()))?,
        _ => text,
    };
    one(field(given.lua, name, Value::String(text))?)
}

/// Nothing is replicated: what is asked for is only checked.
fn set_repl(given: &Given<'_>) -> Answer {
    if given.len() != 1 {
        return Err(Fault::reply("redis.set_repl() requires two arguments."));
    }
    if !(0..=3).contains(&given.integer(0).unwrap_or(0)) {
        let why = "Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.";
        return Err(Fault::reply(why));
    }
    Ok(MultiValue::new())
}

fn sha1hex(given: &Given<'_>) -> Answer {
    if given.len() != 1 {
        return Err(Fault::reply("wrong number of arguments"));
    }
    // What is no text is an empty one.
    let sha = given.string(0).map_or_else(|_| Sha1::of(b""), |text| Sha1::of(&text.as_bytes()));
    given.text(sha.hex().as_bytes())
}

/// Levels of `redis.log` from which on a line is written.
const LOGGED_LEVEL: i64 = 2;
const LEVEL_MAX: i64 = 3;

fn log(given: &Given<'_>) -> Answer {
    if given.len() < 2 {
        return Err(Fault::reply("redis.log() requires two arguments or more."));
    }
    let not_a_number = |_| Fault::reply("First argument must be a number (log level).");
    let level = given.integer(0).map_err(not_a_number)?;
    if !(0..=LEVEL_MAX).contains(&level) {
        return Err(Fault::reply("Invalid debug level."));
    }
    if level >= LOGGED_LEVEL {
        let words = (1..given.len()).filter_map(|index| given.string(index).ok());
        let texts: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        rackpool_mem::log::line(format_args!("script: {}", texts.join(" ")));
    }
    Ok(MultiValue::new())
}
