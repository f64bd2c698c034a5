//! The library `struct` of scripts: numbers and texts in the bytes of C's structures.
//!
//! A format is a row of letters: `<`, `>`, `=` byte orders; `!n` aligns to n bytes at most; `x` a
//! byte of zero; `b`, `h`, `i`n, `l`, `T` integers, in capitals without a sign; `f`, `d` floating
//! point; `s` a text up to a zero; `c`n a text of n bytes.
//!
//! Source: the description of Roberto Ierusalimschy's library struct 0.2.

use super::library::{self, Answer, Fault, Given, NamedFunction, number, one};
use mlua::{Lua, MultiValue, Table, Value};

pub fn table(lua: &Lua) -> mlua::Result<Table> {
    library::table(lua, ENTRIES)
}

const ENTRIES: &[NamedFunction] = &[("pack", pack), ("unpack", unpack), ("size", size)];

/// Longest integer that a format may name, bytes.
const INTEGER_BYTES_MAX: usize = 32;
const ALIGN_MAX: usize = 8;
/// Longest packed text: what a C integer counts.
const SIZE_MAX: usize = i32::MAX as usize;

#[derive(Clone, Copy, Debug, PartialEq)]
enum StructItem {
    Zero,
    Integer {
        bytes: usize,
        signed: bool,
    },
    Float,
    Double,
    /// Up to a zero byte.
    Text,
    Bytes(usize),
}

struct Format<'f> {
    given: &'f Given<'f>,
    rest: &'f [u8],
    big_endian: bool,
    align: usize,
}

impl<'f> Format<'f> {
    fn new(given: &'f Given<'f>, rest: &'f [u8]) -> Self {
        Format { given, rest, big_endian: cfg!(target_endian = "big"), align: 1 }
    }

    fn count(&mut self) -> Result<Option<usize>, Fault> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let count = number.iter().try_fold(0_usize, |count, digit| {
            let count = count.checked_mul(10)?.checked_add(usize::from(digit - b'0'))?;
            (count <= SIZE_MAX).then_some(count)
        });
        let count = count.ok_or("integral size overflow")?;
        Ok((digits > 0).then_some(count))
    }

    fn integer(&mut self, default: Option<usize>, signed: bool) -> Result<StructItem, Fault> {
        let bytes = match default {
            Some(bytes) => bytes,
            None => self.count()?.unwrap_or(size_of::<i32>()),
        };
        if bytes > INTEGER_BYTES_MAX {
            let text = format!("integral size {bytes} is larger than limit of {INTEGER_BYTES_MAX}");
            return Err(text.into());
        }
        Ok(StructItem::Integer { bytes, signed })
    }

    /// The next item, and how many bytes of padding come before it at byte `at`.
    fn next(&mut self, at: usize) -> Result<Option<(StructItem, usize)>, Fault> {
        while let Some((letter, rest)) = self.rest.split_first() {
            self.rest = rest;
            let item = match letter {
                b'b' | b'B' => self.integer(Some(1), *letter == b'b')?,
                b'h' | b'H' => self.integer(Some(2), *letter == b'h')?,
                b'l' | b'L' => self.integer(Some(8), *letter == b'l')?,
                b'T' => self.integer(Some(size_of::<usize>()), false)?,
                b'i' | b'I' => self.integer(None, *letter == b'i')?,
                b'f' => StructItem::Float,
                b'd' => StructItem::Double,
                b'x' => StructItem::Zero,
                b's' => StructItem::Text,
                b'c' => StructItem::Bytes(self.count()?.unwrap_or(1)),
                b' ' => continue,
                b'<' => {
                    self.big_endian = false;
                    continue;
                }
                b'>' => {
                    self.big_endian = true;
                    continue;
                }
                b'=' => {
                    self.big_endian = cfg!(target_endian = "big");
                    continue;
                }
                b'!' => {
                    self.align = self.count()?.unwrap_or(ALIGN_MAX);
                    if !self.align.is_power_of_two() {
                        return Err(format!("alignment {} is not a power of 2", self.align).into());
                    }
                    continue;
                }
                other => {
                    let why = format!("invalid format option '{}'", *other as char);
                    return Err(self.given.bad(0, &why));
                }
            };
            return Ok(Some((item, self.padding(item, at))));
        }
        Ok(None)
    }

    fn padding(&self, item: StructItem, at: usize) -> usize {
        let bytes = match item {
            StructItem::Zero => 1,
            StructItem::Integer { bytes, .. } => bytes,
            StructItem::Float => 4,
            StructItem::Double => 8,
            StructItem::Text | StructItem::Bytes(_) => 0,
        };
        let bytes = bytes.min(self.align);
        if bytes > 1 { (bytes - (at & (bytes - 1))) & (bytes - 1) } else { 0 }
    }
}

fn put(out: &mut Vec<u8>, mut bytes: Vec<u8>, big_endian: bool) {
    if big_endian {
        bytes.reverse();
    }
    out.extend(bytes);
}

fn pack(given: &Given<'_>) -> Answer {
    let format = given.string(0)?;
    let format = format.as_bytes();
    let mut format = Format::new(given, &format);
    let (mut out, mut index) = (Vec::new(), 1);
    while let Some((item, padding)) = format.next(out.len())? {
        out.resize(out.len() + padding, 0);
        let big_endian = format.big_endian;
        match item {
            StructItem::Zero => {
                out.push(0);
                continue;
            }
            StructItem::Integer { bytes, .. } => {
                let number = given.number(index)?;
                // As C converts: what is too large for a signed one may still be unsigned.
                let value = if number < 0.0 { number as i64 as u64 } else { number as u64 };
                let mut little = value.to_le_bytes().to_vec();
                little.resize(bytes, 0);
                put(&mut out, little, big_endian);
            }
            StructItem::Float => {
                let number = given.number(index)? as f32;
                put(&mut out, number.to_le_bytes().to_vec(), big_endian);
            }
            StructItem::Double => {
                put(&mut out, given.number(index)?.to_le_bytes().to_vec(), big_endian);
            }
            StructItem::Text => {
                out.extend_from_slice(&given.string(index)?.as_bytes());
                out.push(0);
            }
            StructItem::Bytes(count) => {
                let text = given.string(index)?;
                let text = text.as_bytes();
                let count = if count == 0 { text.len() } else { count };
                let text = text.get(..count);
                out.extend_from_slice(text.ok_or_else(|| given.bad(index, "string too short"))?);
            }
        }
        index += 1;
    }
    given.text(&out)
}

fn unpack(given: &Given<'_>) -> Answer {
    let (format, data) = (given.string(0)?, given.string(1)?);
    let (format, data) = (format.as_bytes(), data.as_bytes());
    let first = given.integer_or(2, 1)?;
    let first = usize::try_from(first).ok().filter(|first| *first > 0);
    let mut at = first.ok_or_else(|| given.bad(2, "offset must be 1 or greater"))? - 1;
    let mut format = Format::new(given, &format);
    let mut values: Vec<Value> = Vec::new();
    while let Some((item, padding)) = format.next(at)? {
        at += padding;
        let too_short = || given.bad(1, "data string too short");
        let rest = data.get(at..).ok_or_else(too_short)?;
        let take = |count: usize| rest.get(..count).ok_or_else(too_short);
        let big_endian = format.big_endian;
        let used = match item {
            StructItem::Zero => take(1)?.len(),
            StructItem::Integer { bytes, signed } => {
                values.push(number(integer(take(bytes)?, signed, big_endian)));
                bytes
            }
            StructItem::Float => {
                let bytes = ordered::<4>(take(4)?, big_endian);
                values.push(number(f64::from(f32::from_le_bytes(bytes))));
                4
            }
            StructItem::Double => {
                values.push(number(f64::from_le_bytes(ordered::<8>(take(8)?, big_endian))));
                8
            }
            StructItem::Text => {
                let end = memchr::memchr(0, rest).ok_or("unfinished string in data")?;
                values.push(Value::String(given.lua.create_string(&rest[..end])?));
                end + 1
            }
            StructItem::Bytes(count) => {
                let count = match count {
                    // As many as the number before says, which is none of the answers.
                    0 => previous(given, values.pop())?,
                    count => count,
                };
                values.push(Value::String(given.lua.create_string(take(count)?)?));
                count
            }
        };
        at += used;
    }
    values.push(number((at + 1) as f64));
    Ok(MultiValue::from_vec(values))
}

fn previous(given: &Given<'_>, value: Option<Value>) -> Result<usize, Fault> {
    let number = match value {
        Some(value @ (Value::Integer(_) | Value::Number(_))) => given.lua.coerce_number(value)?,
        _ => None,
    };
    Ok(number.ok_or("format 'c0' needs a previous size")? as usize)
}

/// The bytes from the lowest to the highest.
fn ordered<const N: usize>(bytes: &[u8], big_endian: bool) -> [u8; N] {
    let mut ordered = [0; N];
    ordered.copy_from_slice(&bytes[..N]);
    if big_endian {
        ordered.reverse();
    }
    ordered
}

/// An integer of any length, of which the lowest 8 bytes count.
fn integer(bytes: &[u8], signed: bool, big_endian: bool) -> f64 {
    let mut little = bytes.to_vec();
    if big_endian {
        little.reverse();
    }
    let is_negative = signed && little.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut value = [if is_negative && little.len() < 8 { 0xff } else { 0 }; 8];
    let count = little.len().min(8);
    value[..count].copy_from_slice(&little[..count]);
    if signed { i64::from_le_bytes(value) as f64 } else { u64::from_le_bytes(value) as f64 }
}

fn size(given: &Given<'_>) -> Answer {
    let format = given.string(0)?;
    let format = format.as_bytes();
    let mut format = Format::new(given, &format);
    let mut at = 0_usize;
    while let Some((item, padding)) = format.next(at)? {
        let bytes = match item {
            StructItem::Zero => 1,
            StructItem::Integer { bytes, .. } | StructItem::Bytes(bytes @ 1..) => bytes,
            StructItem::Float => 4,
            StructItem::Double => 8,
            StructItem::Text => return Err(given.bad(0, "option 's' has no fixed size")),
            StructItem::Bytes(0) => return Err(given.bad(0, "option 'c0' has no fixed size")),
        };
        at += padding + bytes;
        if at > SIZE_MAX {
            return Err("format result too large".into());
        }
    }
    one(number(at as f64))
}
