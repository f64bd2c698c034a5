//! What functions of Rust that a script calls have in common: their arguments, and errors. A
//! function answers with values or a [`Fault`]; the prelude raises a fault's text as an error of
//! the line that called it.

use mlua::{Function, Lua, LuaString, MultiValue, Table, Value};

pub enum Fault {
    /// An error of the script that called it, in its words.
    Text(String),
    /// Of Lua itself: no memory is left, the script is to end.
    Lua(mlua::Error),
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

/// The values that a script gave a function, and the function's name.
pub struct Given<'a> {
    pub lua: &'a Lua,
    pub name: &'static str,
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

    pub fn bad(&self, index: usize, why: &str) -> Fault {
        Fault::Text(format!("bad argument #{} to '{}' ({why})", index + 1, self.name))
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

/// A function for scripts: answers with `true` and what it answers, or with `false` and its fault.
pub fn function(
    lua: &Lua,
    name: &'static str,
    run: impl Fn(&Given<'_>) -> Answer + 'static,
) -> mlua::Result<Function> {
    lua.create_function(move |lua, values: MultiValue| match run(&Given { lua, name, values }) {
        Ok(mut values) => {
            values.push_front(Value::Boolean(true));
            Ok(values)
        }
        Err(Fault::Text(text)) => {
            let text = Value::String(lua.create_string(text)?);
            Ok(MultiValue::from_vec(vec![Value::Boolean(false), text]))
        }
        Err(Fault::Lua(error)) => Err(error),
    })
}

pub type NamedFunction = (&'static str, fn(&Given<'_>) -> Answer);

pub fn table(lua: &Lua, entries: &[NamedFunction]) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    for (name, run) in entries {
        table.raw_set(*name, function(lua, name, *run)?)?;
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
