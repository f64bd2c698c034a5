//! The library `cjson` of scripts.
//!
//! Source: lua-cjson's manual, with the options that Redis starts it with.

mod decode;

use super::library::{self, Answer, Fault, Given, general, one, type_name};
use super::pace;
use mlua::{Lua, Table, Value};
use std::cell::RefCell;
use std::rc::Rc;

/// What `cjson`, or one of its like made by `cjson.new`, is set to.
#[derive(Clone, Copy, Debug)]
struct Config {
    /// An array with too many holes is an object, not an error.
    converts_sparse: bool,
    /// A table is no array if its largest key is more than so many times its entries …
    sparse_ratio: i64,
    /// … and more than this.
    sparse_safe: i64,
    encode_depth_max: i64,
    decode_depth_max: i64,
    digits: i64,
    keeps_buffer: bool,
    encodes_invalid: Invalid,
    decodes_invalid: Invalid,
}

/// What happens to numbers that JSON has not.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Invalid {
    Refused,
    Taken,
    Null,
}

const DEFAULT: Config = Config {
    converts_sparse: false,
    sparse_ratio: 2,
    sparse_safe: 10,
    encode_depth_max: 1000,
    decode_depth_max: 1000,
    digits: 14,
    keeps_buffer: true,
    encodes_invalid: Invalid::Refused,
    decodes_invalid: Invalid::Taken,
};

/// Deepest nesting that an option allows: calls of ours have a stack of their own.
const DEPTH_MAX: i64 = 1000;

type SharedConfig = Rc<RefCell<Config>>;

/// A function of the library.
type Entry = fn(&Given<'_>, &SharedConfig) -> Answer;

pub fn table(lua: &Lua) -> mlua::Result<Table> {
    let config: SharedConfig = Rc::new(RefCell::new(DEFAULT));
    let table = lua.create_table()?;
    let entries: [(&str, Entry); 9] = [
        ("encode", encode),
        ("decode", |given, config| decode::decode(given, *config.borrow())),
        ("encode_sparse_array", sparse_array),
        ("encode_max_depth", |given, config| {
            option(given, &mut config.borrow_mut().encode_depth_max, DEPTH_MAX)
        }),
        ("decode_max_depth", |given, config| {
            option(given, &mut config.borrow_mut().decode_depth_max, DEPTH_MAX)
        }),
        ("encode_number_precision", |given, config| {
            option(given, &mut config.borrow_mut().digits, 14)
        }),
        ("encode_keep_buffer", |given, config| {
            let mut config = config.borrow_mut();
            if given.has(0) {
                config.keeps_buffer = is_true(&given.value(0));
            }
            one(Value::Boolean(config.keeps_buffer))
        }),
        ("encode_invalid_numbers", |given, config| {
            invalid(given, &mut config.borrow_mut().encodes_invalid, true)
        }),
        ("decode_invalid_numbers", |given, config| {
            invalid(given, &mut config.borrow_mut().decodes_invalid, false)
        }),
    ];
    for (name, run) in entries {
        let config = Rc::clone(&config);
        table.raw_set(name, library::function(lua, move |given| run(given, &config))?)?;
    }
    table.raw_set(
        "new",
        library::function(lua, |given| one(Value::Table(self::table(given.lua)?)))?,
    )?;
    table.raw_set("null", Value::NULL)?;
    table.raw_set("_NAME", "cjson")?;
    table.raw_set("_VERSION", "2.1.0")?;
    Ok(table)
}

fn is_true(value: &Value) -> bool {
    !matches!(value, Value::Nil | Value::Boolean(false))
}

/// Sets an option between 1 and `most`, if one is given; what it is.
fn option(given: &Given<'_>, option: &mut i64, most: i64) -> Answer {
    if given.has(0) {
        let value = given.integer(0)?;
        if !(1..=most).contains(&value) {
            return Err(given.bad(0, &format!("expected integer between 1 and {most}")));
        }
        *option = value;
    }
    one(Value::Integer(*option))
}

fn invalid(given: &Given<'_>, option: &mut Invalid, may_be_null: bool) -> Answer {
    match given.value(0) {
        Value::Nil => {}
        Value::Boolean(is) => *option = if is { Invalid::Taken } else { Invalid::Refused },
        Value::String(word) => {
            let word = word.as_bytes();
            *option = match &*word {
                b"on" => Invalid::Taken,
                b"off" => Invalid::Refused,
                b"null" if may_be_null => Invalid::Null,
                other => {
                    let why = format!("invalid option '{}'", String::from_utf8_lossy(other));
                    return Err(given.bad(0, &why));
                }
            };
        }
        _ => return Err(given.bad(0, "expected boolean or string")),
    }
    match option {
        Invalid::Refused => one(Value::Boolean(false)),
        Invalid::Taken => one(Value::Boolean(true)),
        Invalid::Null => given.text(b"null"),
    }
}

fn sparse_array(given: &Given<'_>, config: &SharedConfig) -> Answer {
    let mut config = config.borrow_mut();
    if given.has(0) {
        config.converts_sparse = is_true(&given.value(0));
    }
    config.sparse_ratio = given.integer_or(1, config.sparse_ratio)?.max(0);
    config.sparse_safe = given.integer_or(2, config.sparse_safe)?.max(0);
    Ok([
        Value::Boolean(config.converts_sparse),
        Value::Integer(config.sparse_ratio),
        Value::Integer(config.sparse_safe),
    ]
    .into_iter()
    .collect())
}

fn encode(given: &Given<'_>, config: &SharedConfig) -> Answer {
    if given.len() != 1 {
        return Err(given.bad(0, "expected 1 argument"));
    }
    let mut encoder = Encoder { lua: given.lua, config: *config.borrow(), out: Vec::new() };
    encoder.push(&given.value(0), 0)?;
    given.text(&encoder.out)
}

struct Encoder<'e> {
    lua: &'e Lua,
    config: Config,
    out: Vec<u8>,
}

impl Encoder<'_> {
    fn push(&mut self, value: &Value, depth: i64) -> Result<(), Fault> {
        pace::step(self.lua, 1)?;
        pace::room(self.out.len())?;
        match value {
            Value::String(text) => self.push_text(&text.as_bytes()),
            Value::Integer(integer) => self.push_number(*integer as f64)?,
            Value::Number(number) => self.push_number(*number)?,
            Value::Boolean(is) => {
                self.out.extend_from_slice(if *is { b"true" } else { b"false" });
            }
            Value::Table(table) => self.push_table(table, depth + 1)?,
            Value::Nil => self.out.extend_from_slice(b"null"),
            null if *null == Value::NULL => self.out.extend_from_slice(b"null"),
            other => return Err(cannot(other, "type not supported")),
        }
        Ok(())
    }

    fn push_number(&mut self, number: f64) -> Result<(), Fault> {
        match self.config.encodes_invalid {
            Invalid::Refused if !number.is_finite() => {
                return Err("Cannot serialise number: must not be NaN or Inf".into());
            }
            Invalid::Null if !number.is_finite() => self.out.extend_from_slice(b"null"),
            _ => self.out.extend(general(number, self.config.digits as usize).into_bytes()),
        }
        Ok(())
    }

    fn push_text(&mut self, text: &[u8]) {
        self.out.push(b'"');
        for byte in text {
            match byte {
                b'"' => self.out.extend_from_slice(b"\\\""),
                b'\\' => self.out.extend_from_slice(b"\\\\"),
                b'/' => self.out.extend_from_slice(b"\\/"),
                8 => self.out.extend_from_slice(b"\\b"),
                b'\t' => self.out.extend_from_slice(b"\\t"),
                b'\n' => self.out.extend_from_slice(b"\\n"),
                12 => self.out.extend_from_slice(b"\\f"),
                b'\r' => self.out.extend_from_slice(b"\\r"),
                0..=31 | 127 => self.out.extend(format!("\\u{byte:04x}").into_bytes()),
                other => self.out.push(*other),
            }
        }
        self.out.push(b'"');
    }

    fn push_table(&mut self, table: &Table, depth: i64) -> Result<(), Fault> {
        if depth > self.config.encode_depth_max {
            return Err(format!("Cannot serialise, excessive nesting ({depth})").into());
        }
        match self.array_len(table)? {
            Some(count @ 1..) => {
                self.out.push(b'[');
                for index in 1..=count {
                    if index > 1 {
                        self.out.push(b',');
                    }
                    self.push(&table.raw_get(index)?, depth)?;
                }
                self.out.push(b']');
            }
            _ => self.push_object(table, depth)?,
        }
        Ok(())
    }

    fn push_object(&mut self, table: &Table, depth: i64) -> Result<(), Fault> {
        self.out.push(b'{');
        let mut is_first = true;
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            if !std::mem::take(&mut is_first) {
                self.out.push(b',');
            }
            match &key {
                Value::String(text) => self.push_text(&text.as_bytes()),
                Value::Integer(_) | Value::Number(_) => {
                    self.out.push(b'"');
                    self.push(&key, depth)?;
                    self.out.push(b'"');
                }
                other => return Err(cannot(other, "table key must be a number or string")),
            }
            self.out.push(b':');
            self.push(&value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    /// How long it is as an array, if it is one.
    fn array_len(&self, table: &Table) -> Result<Option<i64>, Fault> {
        let (mut largest, mut count) = (0, 0);
        for pair in table.pairs::<Value, Value>() {
            let (key, _) = pair?;
            pace::step(self.lua, 1)?;
            match key {
                Value::Integer(key) if key >= 1 => (largest, count) = (largest.max(key), count + 1),
                _ => return Ok(None),
            }
        }
        let Config { sparse_ratio, sparse_safe, converts_sparse, .. } = self.config;
        let limit = count * sparse_ratio;
        if sparse_ratio > 0 && largest > limit && largest > sparse_safe {
            if !converts_sparse {
                return Err("Cannot serialise table: excessively sparse array".into());
            }
            return Ok(None);
        }
        Ok(Some(largest))
    }
}

fn cannot(value: &Value, why: &str) -> Fault {
    Fault::Text(format!("Cannot serialise {}: {why}", type_name(value)))
}
