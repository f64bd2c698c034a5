//! The library `bit` of scripts: 32-bit integers, with signs in what they answer.
//!
//! Source: the description of Lua BitOp.

use super::library::{self, Answer, Fault, Given, NamedFunction, number, one};
use mlua::{Lua, Table};

pub fn table(lua: &Lua) -> mlua::Result<Table> {
    library::table(lua, ENTRIES)
}

const ENTRIES: &[NamedFunction] = &[
    ("tobit", |given| answer(bits(given, 0)?)),
    ("bnot", |given| answer(!bits(given, 0)?)),
    ("band", |given| fold(given, |a, b| a & b)),
    ("bor", |given| fold(given, |a, b| a | b)),
    ("bxor", |given| fold(given, |a, b| a ^ b)),
    ("lshift", |given| shift(given, |value, by| value << by)),
    ("rshift", |given| shift(given, |value, by| value >> by)),
    ("arshift", |given| shift(given, |value, by| (value as i32 >> by) as u32)),
    ("rol", |given| shift(given, u32::rotate_left)),
    ("ror", |given| shift(given, u32::rotate_right)),
    ("bswap", |given| answer(bits(given, 0)?.swap_bytes())),
    ("tohex", tohex),
];

/// A number's lowest 32 bits, rounded to an integer.
fn bits(given: &Given<'_>, index: usize) -> Result<u32, Fault> {
    let number = given.number(index)?.round_ties_even() % 4_294_967_296.0;
    Ok(number as i64 as u32)
}

fn answer(bits: u32) -> Answer {
    one(number(f64::from(bits as i32)))
}

fn fold(given: &Given<'_>, join: fn(u32, u32) -> u32) -> Answer {
    let mut joined = bits(given, 0)?;
    for index in 1..given.len() {
        joined = join(joined, bits(given, index)?);
    }
    answer(joined)
}

fn shift(given: &Given<'_>, shift: fn(u32, u32) -> u32) -> Answer {
    answer(shift(bits(given, 0)?, bits(given, 1)? & 31))
}

fn tohex(given: &Given<'_>) -> Answer {
    let value = bits(given, 0)?;
    let digits = if given.has(1) { bits(given, 1)? as i32 } else { 8 };
    let text = format!("{value:08x}");
    let shown = &text[8 - digits.unsigned_abs().min(8) as usize..];
    let shown = if digits < 0 { shown.to_ascii_uppercase() } else { shown.to_owned() };
    given.text(shown.as_bytes())
}
