//! The library `cmsgpack` of scripts: values of Lua as MessagePack has them.
//!
//! Source: MessagePack's specification, and what Redis says of its library.

use super::library::{self, Answer, Fault, Given, NamedFunction, number};
use super::pace;
use mlua::{Lua, MultiValue, Table, Value};

pub fn table(lua: &Lua) -> mlua::Result<Table> {
    library::table(lua, ENTRIES)
}

const ENTRIES: &[NamedFunction] = &[
    ("pack", pack),
    ("unpack", unpack),
    ("unpack_one", |given| unpack_some(given, 1, given.integer_or(1, 0)?)),
    ("unpack_limit", |given| unpack_some(given, given.integer(1)?, given.integer_or(2, 0)?)),
];

/// Tables within tables that are packed; those further in are nil.
const PACK_DEPTH_MAX: usize = 16;
/// Arrays and maps within one another that are unpacked.
const UNPACK_DEPTH_MAX: usize = 1000;

fn pack(given: &Given<'_>) -> Answer {
    if given.len() == 0 {
        return Err("bad argument #0 to 'pack' (MessagePack pack needs input.)".into());
    }
    let mut out = Vec::new();
    for value in given.values() {
        push(given.lua, &mut out, value, 0)?;
    }
    given.text(&out)
}

fn push(lua: &Lua, out: &mut Vec<u8>, value: &Value, depth: usize) -> Result<(), Fault> {
    pace::room(out.len())?;
    match value {
        Value::Boolean(is) => out.push(if *is { 0xc3 } else { 0xc2 }),
        Value::Integer(integer) => push_integer(out, *integer),
        Value::Number(number) => push_number(out, *number),
        Value::String(text) => {
            let text = text.as_bytes();
            match text.len() {
                count @ ..32 => out.push(0xa0 | count as u8),
                count @ ..=0xff => out.extend([0xd9, count as u8]),
                count => push_head(out, [0xda, 0xdb], count),
            }
            out.extend_from_slice(&text);
        }
        Value::Table(table) if depth < PACK_DEPTH_MAX => push_table(lua, out, table, depth + 1)?,
        _ => out.push(0xc0),
    }
    Ok(())
}

/// A head with a length of two bytes, or of four.
fn push_head(out: &mut Vec<u8>, heads: [u8; 2], count: usize) {
    if let Ok(count) = u16::try_from(count) {
        out.push(heads[0]);
        out.extend(count.to_be_bytes());
    } else {
        out.push(heads[1]);
        out.extend((count as u32).to_be_bytes());
    }
}

fn push_number(out: &mut Vec<u8>, number: f64) {
    if number as i64 as f64 == number && number.abs() < 9.2e18 {
        return push_integer(out, number as i64);
    }
    if f64::from(number as f32) == number {
        out.push(0xca);
        out.extend((number as f32).to_be_bytes());
    } else {
        out.push(0xcb);
        out.extend(number.to_be_bytes());
    }
}

fn push_integer(out: &mut Vec<u8>, value: i64) {
    if value >= 0 {
        match value as u64 {
            small @ ..=0x7f => out.push(small as u8),
            small @ ..=0xff => out.extend([0xcc, small as u8]),
            small @ ..=0xffff => {
                out.push(0xcd);
                out.extend((small as u16).to_be_bytes());
            }
            middle @ ..=0xffff_ffff => {
                out.push(0xce);
                out.extend((middle as u32).to_be_bytes());
            }
            large => {
                out.push(0xcf);
                out.extend(large.to_be_bytes());
            }
        }
    } else if value >= -32 {
        out.push(value as u8);
    } else if let Ok(small) = i8::try_from(value) {
        out.extend([0xd0, small as u8]);
    } else if let Ok(small) = i16::try_from(value) {
        out.push(0xd1);
        out.extend(small.to_be_bytes());
    } else if let Ok(middle) = i32::try_from(value) {
        out.push(0xd2);
        out.extend(middle.to_be_bytes());
    } else {
        out.push(0xd3);
        out.extend(value.to_be_bytes());
    }
}

/// How many entries a table has, if its keys are the integers from 1 on, and how many altogether.
fn is_array(lua: &Lua, table: &Table) -> Result<(bool, usize), Fault> {
    let (mut count, mut largest, mut is_array) = (0_usize, 0, true);
    for pair in table.pairs::<Value, Value>() {
        let (key, _) = pair?;
        pace::step(lua, 1)?;
        count += 1;
        match key {
            Value::Integer(key) if key > 0 => largest = largest.max(key as usize),
            _ => is_array = false,
        }
    }
    Ok((is_array && largest == count, count))
}

fn push_table(lua: &Lua, out: &mut Vec<u8>, table: &Table, depth: usize) -> Result<(), Fault> {
    let (is_array, count) = is_array(lua, table)?;
    let (small, heads) = if is_array { (0x90, [0xdc, 0xdd]) } else { (0x80, [0xde, 0xdf]) };
    match count {
        ..16 => out.push(small | count as u8),
        _ => push_head(out, heads, count),
    }
    if is_array {
        for index in 1..=count {
            pace::step(lua, 1)?;
            push(lua, out, &table.raw_get(index)?, depth)?;
        }
        return Ok(());
    }
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair?;
        pace::step(lua, 1)?;
        push(lua, out, &key, depth)?;
        push(lua, out, &value, depth)?;
    }
    Ok(())
}

fn unpack(given: &Given<'_>) -> Answer {
    let mut values = unpack_some(given, 0, 0)?;
    // Where the next one begins is told by the others alone.
    values.pop_front();
    Ok(values)
}

/// Unpacks so many values from `offset` on, all if both are 0; before them stands where the next one
/// begins, -1 at the end.
fn unpack_some(given: &Given<'_>, limit: i64, offset: i64) -> Answer {
    let data = given.string(0)?;
    let data = data.as_bytes();
    if offset < 0 || limit < 0 {
        return Err(format!(
            "Invalid request to unpack with offset of {offset} and limit of {}.",
            data.len()
        )
        .into());
    }
    if offset > data.len() as i64 {
        return Err(
            format!("Start offset {offset} greater than input length {}.", data.len()).into()
        );
    }
    let mut reader = MsgPackReader { lua: given.lua, rest: &data[offset as usize..] };
    let mut values = MultiValue::new();
    let takes_all = limit == 0 && offset == 0;
    while !reader.rest.is_empty() && (takes_all || (values.len() as i64) < limit) {
        if values.len() >= VALUES_MAX {
            return Err(TOO_MANY.into());
        }
        values.push_back(reader.value(0)?);
    }
    let next = if reader.rest.is_empty() { -1.0 } else { (data.len() - reader.rest.len()) as f64 };
    values.push_front(number(next));
    Ok(values)
}

const TOO_MANY: &str = "too many return values at once; use unpack_one or unpack_limit instead.";
/// Values that one call answers, as Lua's own `unpack`.
const VALUES_MAX: usize = 7000;

struct MsgPackReader<'r> {
    lua: &'r Lua,
    rest: &'r [u8],
}

impl<'r> MsgPackReader<'r> {
    fn take(&mut self, count: usize) -> Result<&'r [u8], Fault> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or("Missing bytes in input.")?;
        self.rest = rest;
        Ok(taken)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn count<const N: usize>(&mut self) -> Result<usize, Fault> {
        let bytes = self.bytes::<N>()?;
        Ok(bytes.iter().fold(0, |count, byte| count << 8 | usize::from(*byte)))
    }

    fn value(&mut self, depth: usize) -> Result<Value, Fault> {
        if depth > UNPACK_DEPTH_MAX {
            return Err("Bad data format in input.".into());
        }
        pace::step(self.lua, 1)?;
        let [head] = self.bytes()?;
        Ok(match head {
            ..=0x7f => number(f64::from(head)),
            0x80..=0x8f => self.map(usize::from(head & 15), depth)?,
            0x90..=0x9f => self.array(usize::from(head & 15), depth)?,
            0xa0..=0xbf => self.text(usize::from(head & 31))?,
            0xc0 => Value::Nil,
            0xc2 | 0xc3 => Value::Boolean(head == 0xc3),
            0xca => number(f64::from(f32::from_be_bytes(self.bytes()?))),
            0xcb => number(f64::from_be_bytes(self.bytes()?)),
            0xcc => number(f64::from(u8::from_be_bytes(self.bytes()?))),
            0xcd => number(f64::from(u16::from_be_bytes(self.bytes()?))),
            0xce => number(f64::from(u32::from_be_bytes(self.bytes()?))),
            0xcf => number(u64::from_be_bytes(self.bytes()?) as f64),
            0xd0 => number(f64::from(i8::from_be_bytes(self.bytes()?))),
            0xd1 => number(f64::from(i16::from_be_bytes(self.bytes()?))),
            0xd2 => number(f64::from(i32::from_be_bytes(self.bytes()?))),
            0xd3 => number(i64::from_be_bytes(self.bytes()?) as f64),
            0xd9 | 0xc4 => {
                let count = self.count::<1>()?;
                self.text(count)?
            }
            0xda | 0xc5 => {
                let count = self.count::<2>()?;
                self.text(count)?
            }
            0xdb | 0xc6 => {
                let count = self.count::<4>()?;
                self.text(count)?
            }
            0xdc => {
                let count = self.count::<2>()?;
                self.array(count, depth)?
            }
            0xdd => {
                let count = self.count::<4>()?;
                self.array(count, depth)?
            }
            0xde => {
                let count = self.count::<2>()?;
                self.map(count, depth)?
            }
            0xdf => {
                let count = self.count::<4>()?;
                self.map(count, depth)?
            }
            0xe0.. => number(f64::from(head as i8)),
            _ => return Err("Bad data format in input.".into()),
        })
    }

    fn text(&mut self, count: usize) -> Result<Value, Fault> {
        let text = self.take(count)?;
        Ok(Value::String(self.lua.create_string(text)?))
    }

    fn array(&mut self, count: usize, depth: usize) -> Result<Value, Fault> {
        let table = self.lua.create_table()?;
        for index in 1..=count {
            table.raw_set(index, self.value(depth + 1)?)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, count: usize, depth: usize) -> Result<Value, Fault> {
        let table = self.lua.create_table()?;
        for _ in 0..count {
            let (key, value) = (self.value(depth + 1)?, self.value(depth + 1)?);
            if key.is_nil() {
                return Err("table index is nil".into());
            }
            table.raw_set(key, value)?;
        }
        Ok(Value::Table(table))
    }
}
