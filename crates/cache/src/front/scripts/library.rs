//! What functions of Rust that a script calls have in common: their arguments, and errors. A
//! function answers with values or a [`Fault`], which is raised as Lua's own functions raise
//! theirs: a text with the line that called it before it, or a table as Redis's functions do.

use super::convert;
use mlua::{Function, Lua, LuaString, MultiValue, Table, Value};
use std::fmt;

pub enum Fault {
    /// An error of the script that called it, in its words.
    Text(String),
    /// One that scripts have as a table with this text, its code included.
    Reply(Vec<u8>),
    /// As [`Fault::Reply`], of a command, which counted it.
    Answer(Vec<u8>),
    /// Of Lua itself: no memory is left, the script is to end.
    Lua(mlua::Error),
}

/// [`Fault::Reply`], or [`Fault::Answer`], on its way through Lua.
#[derive(Debug)]
struct ReplyError {
    text: Vec<u8>,
    is_counted: bool,
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

impl std::error::Error for ReplyError {}

impl Fault {
    /// An error of one of Redis's own functions.
    pub fn reply(text: &str) -> Self {
        Fault::Reply([b"ERR ", text.as_bytes()].concat())
    }

    /// The error that the function that was called raises.
    pub fn raised(self, lua: &Lua) -> mlua::Error {
        match self {
            Fault::Text(text) => mlua::Error::runtime(caller(lua) + &text),
            Fault::Reply(text) => mlua::Error::external(ReplyError { text, is_counted: false }),
            Fault::Answer(text) => mlua::Error::external(ReplyError { text, is_counted: true }),
            Fault::Lua(error) => error,
        }
    }
}

/// What Lua's files are called that are not a script's.
pub const PRELUDE_SOURCE: &str = "=redis";

/// Calls, the innermost first, in which an error's line is looked for.
pub const CALLS_MAX: usize = 32;

/// The line that called the function of Rust that runs, as Lua puts it before an error's text.
fn caller(lua: &Lua) -> String {
    for level in 1..CALLS_MAX {
        let found = lua.inspect_stack(level, |at| {
            let source = at.source();
            let is_ours = source.source.as_deref() == Some(PRELUDE_SOURCE);
            let line = at.current_line().map(|line| {
                format!("{}:{line}: ", source.short_src.as_deref().unwrap_or_default())
            });
            (is_ours, line)
        });
        match found {
            Some((true, _)) => {}
            Some((false, line)) => return line.unwrap_or_default(),
            None => break,
        }
    }
    String::new()
}

/// An error that was caught, as a script has it: a text, or a table.
pub fn caught(lua: &Lua, error: &mlua::Error) -> mlua::Result<Value> {
    let cause = cause(error);
    if let Some(ReplyError { text, is_counted }) = cause.downcast_ref() {
        return convert::error(lua, text, *is_counted);
    }
    Ok(Value::String(lua.create_string(text_of(cause))?))
}

/// An error of Lua's without what surrounds it.
fn cause(error: &mlua::Error) -> &mlua::Error {
    match error {
        mlua::Error::CallbackError { cause: inner, .. }
        | mlua::Error::WithContext { cause: inner, .. } => cause(inner),
        other => other,
    }
}

pub fn text_of(error: &mlua::Error) -> String {
    match cause(error) {
        mlua::Error::RuntimeError(text) => text.clone(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::MemoryError(_) => "not enough memory".into(),
        other => other.to_string(),
    }
}

impl From<mlua::Error> for Fault {
    fn from(error: mlua::Error) -> Self {
        Fault::Lua(error)
    }
}

impl From<String> for Fault {
    fn from(text: String) -> Self {
        Fault::Text(text)
    }
}

impl From<&str> for Fault {
    fn from(text: &str) -> Self {
        Fault::Text(text.to_owned())
    }
}

pub type Answer = Result<MultiValue, Fault>;

/// The values that a script gave a function.
pub struct Given<'a> {
    pub lua: &'a Lua,
    values: MultiValue,
}

impl Given<'_> {
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Value `index`, counted from 0; nil if there is none.
    pub fn value(&self, index: usize) -> Value {
        self.values.get(index).cloned().unwrap_or(Value::Nil)
    }

    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.values.iter()
    }

    pub fn has(&self, index: usize) -> bool {
        self.values.get(index).is_some_and(|value| !value.is_nil())
    }

    /// What Lua says of an argument: the function's name is the one that it was called by, and what
    /// stands before `:` is no argument.
    pub fn bad(&self, index: usize, why: &str) -> Fault {
        let called = self.lua.inspect_stack(0, |at| {
            let names = at.names();
            let is_method = names.name_what == Some("method");
            (names.name.map(std::borrow::Cow::into_owned), is_method)
        });
        let (name, is_method) = called.unwrap_or_default();
        let name = name.as_deref().unwrap_or("?");
        Fault::Text(match (index + 1).checked_sub(usize::from(is_method)) {
            Some(0) => format!("calling '{name}' on bad self ({why})"),
            number => format!("bad argument #{} to '{name}' ({why})", number.unwrap_or(0)),
        })
    }

    fn expected(&self, index: usize, what: &str) -> Fault {
        let found = self.values.get(index).map_or("no value", type_name);
        self.bad(index, &format!("{what} expected, got {found}"))
    }

    pub fn number(&self, index: usize) -> Result<f64, Fault> {
        let found = self.lua.coerce_number(self.value(index))?;
        found.ok_or_else(|| self.expected(index, "number"))
    }

    /// A number without its fraction.
    pub fn integer(&self, index: usize) -> Result<i64, Fault> {
        self.number(index).map(|number| number as i64)
    }

    pub fn integer_or(&self, index: usize, default: i64) -> Result<i64, Fault> {
        if self.has(index) { self.integer(index) } else { Ok(default) }
    }

    pub fn string(&self, index: usize) -> Result<LuaString, Fault> {
        match self.value(index) {
            Value::String(text) => Ok(text),
            number @ (Value::Integer(_) | Value::Number(_)) => {
                let text = self.lua.coerce_string(number)?;
                text.ok_or_else(|| self.expected(index, "string"))
            }
            _ => Err(self.expected(index, "string")),
        }
    }

    pub fn text(&self, bytes: &[u8]) -> Answer {
        one(Value::String(self.lua.create_string(bytes)?))
    }
}

/// A type's name as scripts know it.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) | Value::Number(_) => "number",
        Value::LightUserData(_) | Value::Error(_) | Value::Other(_) => "userdata",
        other => other.type_name(),
    }
}

pub fn one(value: Value) -> Answer {
    Ok(MultiValue::from_vec(vec![value]))
}

/// A number as scripts have them.
pub fn number(value: f64) -> Value {
    Value::Number(value)
}

/// A function for scripts.
pub fn function(lua: &Lua, run: impl Fn(&Given<'_>) -> Answer + 'static) -> mlua::Result<Function> {
    lua.create_function(move |lua, values: MultiValue| {
        run(&Given { lua, values }).map_err(|fault| fault.raised(lua))
    })
}

pub type NamedFunction = (&'static str, fn(&Given<'_>) -> Answer);

pub fn table(lua: &Lua, entries: &[NamedFunction]) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    for (name, run) in entries {
        table.raw_set(*name, function(lua, *run)?)?;
    }
    Ok(table)
}

/// A number as C's `%.Ng` prints it, with so many significant digits.
pub fn general(number: f64, digits: usize) -> String {
    if !number.is_finite() {
        let sign = if number.is_sign_negative() { "-" } else { "" };
        return format!("{sign}{}", if number.is_nan() { "nan" } else { "inf" });
    }
    let scientific = format!("{number:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let short = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", short(mantissa), exponent.abs());
    }
    let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
    short(&format!("{number:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_c_prints_them() {
        for (number, digits, text) in [
            (0.0, 17, "0"),
            (-0.0, 17, "-0"),
            (3.0, 17, "3"),
            (3.3, 17, "3.2999999999999998"),
            (3.3, 14, "3.3"),
            (1e15, 14, "1e+15"),
            (1e14, 14, "1e+14"),
            (1e13, 14, "10000000000000"),
            (0.0001, 14, "0.0001"),
            (0.00001, 14, "1e-05"),
            (-123456.75, 14, "-123456.75"),
            (1e100, 17, "1e+100"),
            (f64::INFINITY, 17, "inf"),
            (f64::NEG_INFINITY, 17, "-inf"),
            (9007199254740993.0, 17, "9007199254740992"),
        ] {
            assert_eq!(general(number, digits), text);
        }
    }
}
