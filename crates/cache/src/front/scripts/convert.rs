//! Between values of Lua and answers of RESP. What a command answered becomes a value for the
//! script that called it; what the script answers becomes RESP for its client.
//!
//! Source: Redis's documentation of scripts, "Data type conversion".

use super::library::{Fault, general, number};
use super::pace;
use crate::constants::SCRIPT_BYTES_MAX;
use crate::front::bytes::push_i64;
use crate::front::resp::{
    Version, push_array, push_bulk, push_error, push_integer, push_map, push_null, push_set,
};
use mlua::{Lua, Table, Value};

/// Tables within tables that a script answers; what is further in is an error instead.
const DEPTH_MAX: usize = 256;

/// Larger integers have an exponent in the words of commands: so Redis prints them.
const INTEGERS_MAX: u64 = 100_000_000_000_000_000;

/// Appends a word of a command that a script calls, as a bulk string; what is wrong with it.
pub fn push_word(out: &mut Vec<u8>, word: &Value) -> Result<(), &'static str> {
    match word {
        Value::String(text) => push_bulk(out, &text.as_bytes()),
        Value::Integer(integer) if integer.unsigned_abs() < INTEGERS_MAX => {
            push_bulk(out, itoa::Buffer::new().format(*integer).as_bytes());
        }
        Value::Integer(integer) => push_bulk(out, general(*integer as f64, 17).as_bytes()),
        Value::Number(number) => push_bulk(out, general(*number, 17).as_bytes()),
        _ => return Err("Lua redis lib command arguments must be strings or integers"),
    }
    if out.len() > SCRIPT_BYTES_MAX { Err("the command is too long") } else { Ok(()) }
}

/// What a command answered, or its error.
pub fn to_lua(lua: &Lua, reply: &[u8]) -> Result<Value, Fault> {
    if reply.first() == Some(&b'-') {
        return Err(Fault::Answer(with_code(reply)));
    }
    Ok(value(lua, &mut &reply[..])?)
}

fn line<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let end = memchr::memchr(b'\r', bytes).unwrap_or(bytes.len());
    let line = &bytes[..end];
    *bytes = bytes.get(end + 2..).unwrap_or_default();
    line
}

/// In an error that a command answered and counted, as Redis names it.
const COUNTED: &str = "ignore_error_stats_update";

/// An error as scripts have it.
pub fn error(lua: &Lua, text: &[u8], is_counted: bool) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    table.raw_set("err", lua.create_string(text)?)?;
    if is_counted {
        table.raw_set(COUNTED, true)?;
    }
    Ok(Value::Table(table))
}

/// Whether a script's outcome is the error of one of its commands, if it is an error.
pub fn is_counted(value: &Value) -> bool {
    let Value::Table(table) = value else { return false };
    table.raw_get(COUNTED).is_ok_and(|is_counted: bool| is_counted)
}

pub fn field(lua: &Lua, name: &str, value: Value) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    table.raw_set(name, value)?;
    Ok(Value::Table(table))
}

fn value(lua: &Lua, bytes: &mut &[u8]) -> mlua::Result<Value> {
    let head = line(bytes);
    let Some((kind, rest)) = head.split_first() else { return Ok(Value::Nil) };
    let text = |text: &[u8]| Ok::<_, mlua::Error>(Value::String(lua.create_string(text)?));
    let count = || crate::decimal::strict_i64(rest).unwrap_or(0);
    Ok(match kind {
        b'+' => field(lua, "ok", text(rest)?)?,
        b'-' => field(lua, "err", text(&with_code(head))?)?,
        b':' => number(count() as f64),
        b'#' => Value::Boolean(rest == b"t"),
        b',' => {
            let shown = std::str::from_utf8(rest).unwrap_or_default();
            field(lua, "double", number(shown.parse().unwrap_or(f64::NAN)))?
        }
        b'(' => field(lua, "big_number", text(rest)?)?,
        b'$' | b'*' if count() < 0 => Value::Boolean(false),
        b'$' | b'=' => {
            let (bulk, behind) = bytes.split_at((count() as usize).min(bytes.len()));
            *bytes = behind.get(2..).unwrap_or_default();
            match bulk.get(3) {
                Some(b':') if *kind == b'=' => {
                    let table = lua.create_table()?;
                    table.raw_set("format", text(&bulk[..3])?)?;
                    table.raw_set("string", text(&bulk[4..])?)?;
                    field(lua, "verbatim_string", Value::Table(table))?
                }
                _ => text(bulk)?,
            }
        }
        b'*' | b'>' => {
            let table = lua.create_table()?;
            for index in 1..=count() {
                table.raw_set(index, value(lua, bytes)?)?;
            }
            Value::Table(table)
        }
        b'%' | b'~' => {
            let table = lua.create_table()?;
            for _ in 0..count() {
                let key = value(lua, bytes)?;
                let here = if *kind == b'%' { value(lua, bytes)? } else { Value::Boolean(true) };
                if !key.is_nil() {
                    table.raw_set(key, here)?;
                }
            }
            field(lua, if *kind == b'%' { "map" } else { "set" }, Value::Table(table))?
        }
        // `_`
        _ => Value::Nil,
    })
}

/// An error's text as scripts have it: with a code, and without its sign.
pub fn with_code(text: &[u8]) -> Vec<u8> {
    let text = without_end(text);
    let text = text.strip_prefix(b"-").unwrap_or(text);
    if text.contains(&b' ') { text.to_vec() } else { [b"ERR ", text].concat() }
}

/// Of statuses and errors Redis takes what stands before a NUL.
fn until_nul(text: &[u8]) -> &[u8] {
    &text[..memchr::memchr(0, text).unwrap_or(text.len())]
}

fn without_end(text: &[u8]) -> &[u8] {
    let kept = text.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n'));
    &text[..kept.map_or(0, |last| last + 1)]
}

pub fn push_failure(out: &mut Vec<u8>, text: &str) {
    push_error(out, without_end(text.as_bytes()));
}

/// The text of an error that is a table.
pub fn error_text(table: &Table) -> mlua::Result<String> {
    Ok(match table.raw_get::<Value>("err")? {
        Value::String(text) => text.to_string_lossy(),
        _ => "ERR unknown error".into(),
    })
}

/// Appends what a script, or function, of that name answered, or its error; `versions`: the one
/// that it chose for its calls, and its client's.
pub fn push_outcome(
    lua: &Lua,
    out: &mut Vec<u8>,
    is_right: bool,
    value: &Value,
    name: &dyn Fn() -> String,
    versions: [Version; 2],
) -> mlua::Result<()> {
    if is_right {
        let [script, client] = versions;
        return ScriptReply { lua, out, script, client }.push(value, 0);
    }
    let text = match value {
        Value::Table(fault) => {
            let text = error_text(fault)?;
            let source = fault.raw_get::<Option<String>>("source");
            let line = fault.raw_get::<Option<i64>>("line");
            match (source, line) {
                (Ok(Some(source)), Ok(Some(line))) => {
                    format!("{text} script: {}, on {source}:{line}.", name())
                }
                _ => text,
            }
        }
        other => format!("ERR Error running script {}, {}", name(), other.to_string()?),
    };
    push_failure(out, &text);
    Ok(())
}

struct ScriptReply<'a> {
    lua: &'a Lua,
    out: &'a mut Vec<u8>,
    script: Version,
    client: Version,
}

impl ScriptReply<'_> {
    fn push(&mut self, value: &Value, depth: usize) -> mlua::Result<()> {
        pace::step(self.lua, 1)?;
        pace::room(self.out.len())?;
        match value {
            Value::Boolean(is) => self.push_boolean(*is),
            Value::Integer(integer) => push_integer(self.out, *integer),
            Value::Number(number) => push_integer(self.out, truncated(*number)),
            Value::String(text) => push_bulk(self.out, &text.as_bytes()),
            Value::Table(_) if depth > DEPTH_MAX => {
                push_error(self.out, b"ERR reached lua stack limit");
            }
            Value::Table(table) => self.push_table(table, depth)?,
            _ => push_null(self.out, self.client),
        }
        Ok(())
    }

    fn push_boolean(&mut self, is: bool) {
        match (self.script, self.client) {
            (Version::Two, client) if !is => push_null(self.out, client),
            (Version::Three, Version::Three) => {
                self.out.extend_from_slice(if is { b"#t\r\n" } else { b"#f\r\n" });
            }
            _ => push_integer(self.out, i64::from(is)),
        }
    }

    fn push_table(&mut self, table: &Table, depth: usize) -> mlua::Result<()> {
        if let Value::String(text) = table.raw_get("err")? {
            push_error(self.out, without_end(until_nul(&text.as_bytes())));
            return Ok(());
        }
        if let Value::String(text) = table.raw_get("ok")? {
            self.out.push(b'+');
            let plain = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
            self.out.extend(until_nul(&text.as_bytes()).iter().map(plain));
            self.out.extend_from_slice(b"\r\n");
            return Ok(());
        }
        if let Some(double) = as_double(&table.raw_get("double")?) {
            self.push_marked(b",", b"", general(double, 17).as_bytes());
            return Ok(());
        }
        if let Value::Table(pairs) = table.raw_get("map")? {
            return self.push_pairs(&pairs, depth, true);
        }
        if let Value::Table(members) = table.raw_get("set")? {
            return self.push_pairs(&members, depth, false);
        }
        if let Value::String(digits) = table.raw_get("big_number")? {
            let plain = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
            let digits: Vec<_> = digits.as_bytes().iter().map(plain).collect();
            self.push_marked(b"(", b"", &digits);
            return Ok(());
        }
        if let Value::Table(verbatim) = table.raw_get("verbatim_string")? {
            let (text, format) = (verbatim.raw_get("string")?, verbatim.raw_get("format")?);
            if let (Value::String(text), Value::String(format)) = (text, format) {
                let mut kind = format.as_bytes().to_vec();
                kind.resize(3, b' ');
                kind.push(b':');
                self.push_marked(b"=", &kind, &text.as_bytes());
                return Ok(());
            }
        }
        self.push_list(table, depth)
    }

    /// What RESP2 has as a bulk string and RESP3 with a mark.
    fn push_marked(&mut self, mark: &[u8], kind: &[u8], text: &[u8]) {
        if self.client == Version::Two {
            return push_bulk(self.out, text);
        }
        self.out.extend_from_slice(mark);
        if !kind.is_empty() {
            push_i64(self.out, (kind.len() + text.len()) as i64);
            self.out.extend_from_slice(b"\r\n");
        }
        self.out.extend_from_slice(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    /// The values from 1 on, up to the first that is nil.
    fn push_list(&mut self, table: &Table, depth: usize) -> mlua::Result<()> {
        let start = self.out.len();
        let mut count = 0;
        loop {
            let value = table.raw_get::<Value>(count + 1)?;
            if value.is_nil() {
                break;
            }
            self.push(&value, depth + 1)?;
            count += 1;
        }
        self.put_head(start, |head| push_array(head, count));
        Ok(())
    }

    fn push_pairs(&mut self, table: &Table, depth: usize, is_map: bool) -> mlua::Result<()> {
        let start = self.out.len();
        let mut count = 0;
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            self.push(&key, depth + 1)?;
            if is_map {
                self.push(&value, depth + 1)?;
            }
            count += 1;
        }
        let client = self.client;
        self.put_head(start, |head| match is_map {
            true => push_map(head, count, client),
            false => push_set(head, count, client),
        });
        Ok(())
    }

    /// Puts the head of what is known to have so many elements now before them.
    fn put_head(&mut self, start: usize, push: impl FnOnce(&mut Vec<u8>)) {
        let mut head = Vec::new();
        push(&mut head);
        self.out.splice(start..start, head);
    }
}

fn as_double(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(integer) => Some(*integer as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}

/// As C converts a number to 64 bits on this machine.
fn truncated(number: f64) -> i64 {
    let fits = (-9.3e18..9.223_372_036_854_775e18).contains(&number);
    if fits { number as i64 } else { i64::MIN }
}
