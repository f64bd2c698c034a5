//! Formats of lines: those of ramulator, ramulator2, DRAMsim3 and DRAMSys.

use super::super::Record;
use super::super::error::Cause;
use super::super::pace::Pace;
use super::{Found, Parse, narrow};

/// Bytes of an access to memory, where the format does not say it: a line of a cache.
const LINE_BYTES: u16 = 64;

/// The words of a line.
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// A number, in hex after `0x`; `None` if it is none or does not fit into 64 bits.
#[inline]
pub(super) fn number(word: &[u8]) -> Option<u64> {
    match word {
        [b'0', b'x' | b'X', digits @ ..] => hex(digits),
        digits => decimal(digits),
    }
}

#[inline]
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[inline]
pub(super) fn hex(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            b'A'..=b'F' => digit - b'A' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })
}

/// What a line should have been.
pub(super) fn expected(what: &str, line: &[u8]) -> Cause {
    let shown = String::from_utf8_lossy(&line[..line.len().min(60)]);
    Cause::Malformed(format!("{what} expected, `{}` found", shown.escape_debug()))
}

pub(super) fn blank(line: &[u8]) -> bool {
    line.trim_ascii().is_empty()
}

/// In hex with or without `0x`.
#[inline]
pub(super) fn hex_address(word: &[u8]) -> Option<u64> {
    hex(word.strip_prefix(b"0x").or(word.strip_prefix(b"0X")).unwrap_or(word))
}

/// `ADDR R|W`, the address in hex. Its own reader looks at the first letter alone, and takes an
/// address without one for a read.
pub(super) struct Ramulator {
    pub base: Record,
    pub pace: Pace,
}

impl Parse for Ramulator {
    const BYTES: Option<usize> = None;

    fn parse(&mut self, line: &[u8], out: &mut Found) -> Result<(), Cause> {
        if blank(line) {
            return Ok(());
        }
        let wrong = || expected("ADDR R or ADDR W", line);
        let mut words = words(line);
        let addr = words.next().and_then(hex_address).ok_or_else(wrong)?;
        let write = match words.next().map(|word| word[0]) {
            None | Some(b'R') => false,
            Some(b'W') => true,
            Some(_) => return Err(wrong()),
        };
        if words.next().is_some() {
            return Err(wrong());
        }
        let at = self.pace.record()?;
        out.push(Record { at, addr, size: LINE_BYTES, write, ..self.base });
        Ok(())
    }
}

/// `LD ADDR` or `ST ADDR`; `R PLACE` or `W PLACE` with the place in the memory, see [`place`].
pub(super) struct Ramulator2 {
    pub base: Record,
    pub pace: Pace,
}

impl Parse for Ramulator2 {
    const BYTES: Option<usize> = None;

    fn parse(&mut self, line: &[u8], out: &mut Found) -> Result<(), Cause> {
        if blank(line) {
            return Ok(());
        }
        let wrong = || expected("LD ADDR, ST ADDR, R PLACE or W PLACE", line);
        let mut words = words(line);
        let (Some(kind), Some(addr), None) = (words.next(), words.next(), words.next()) else {
            return Err(wrong());
        };
        let (write, addr) = match kind {
            b"LD" | b"ST" => (kind == b"ST", number(addr).ok_or_else(wrong)?),
            b"R" | b"W" => (kind == b"W", place(addr, line)?),
            _ => return Err(wrong()),
        };
        let at = self.pace.record()?;
        out.push(Record { at, addr, size: LINE_BYTES, write, ..self.base });
        Ok(())
    }
}

/// Levels of a place above its row: channel, rank, bank group and bank, not all in each memory.
const LEVELS_MAX: usize = 4;
/// Bits of an address for each of them, for the row and for the column, which counts lines.
const LEVEL_BITS: u32 = 5;
const ROW_BITS: u32 = 20;
const COLUMN_BITS: u32 = 10;

/// `CHANNEL,RANK,BANKGROUP,BANK,ROW,COLUMN` as an address: each level has bits of its own, so that
/// different places are different addresses, and what is in a row lies together.
fn place(word: &[u8], line: &[u8]) -> Result<u64, Cause> {
    let wrong = || expected("a place of two to six numbers with commas", line);
    let mut levels = [0; LEVELS_MAX + 2];
    let mut count = 0;
    for number in word.split(|byte| *byte == b',') {
        *levels.get_mut(count).ok_or_else(wrong)? = decimal(number).ok_or_else(wrong)?;
        count += 1;
    }
    let [above @ .., row, column] = &levels[..count] else { return Err(wrong()) };
    let levels = above.iter().map(|level| ("a number of the place", *level, LEVEL_BITS));
    let row = [("the row", *row, ROW_BITS), ("the column", *column, COLUMN_BITS)];
    let mut addr = 0;
    for (what, value, bits) in levels.chain(row) {
        let max = (1 << bits) - 1;
        if value > max {
            return Err(Cause::Oversized { what, value, max });
        }
        addr = addr << bits | value;
    }
    Ok(addr * u64::from(LINE_BYTES))
}

/// `BUBBLES LOAD [STORE]`: instructions without access to memory, then one with it; `STORE` is
/// the line that it pushes out of the caches.
pub(super) struct SimpleO3 {
    pub base: Record,
    pub pace: Pace,
}

impl Parse for SimpleO3 {
    const BYTES: Option<usize> = None;

    fn parse(&mut self, line: &[u8], out: &mut Found) -> Result<(), Cause> {
        if blank(line) {
            return Ok(());
        }
        let wrong = || expected("BUBBLES LOAD [STORE]", line);
        let mut words = words(line);
        let (Some(bubbles), Some(load)) = (words.next(), words.next()) else {
            return Err(wrong());
        };
        let store = words.next();
        if words.next().is_some() {
            return Err(wrong());
        }
        let (bubbles, load) = number(bubbles).zip(number(load)).ok_or_else(wrong)?;
        let store = store.map(|store| number(store).ok_or_else(wrong)).transpose()?;
        self.pace.instructions(bubbles)?;
        let at = self.pace.record()?;
        out.push(Record { at, addr: load, size: LINE_BYTES, write: false, ..self.base });
        if let Some(addr) = store {
            let at = self.pace.record()?;
            out.push(Record { at, addr, size: LINE_BYTES, write: true, ..self.base });
        }
        self.pace.instructions(1)
    }
}

/// `ADDR READ|WRITE CYCLE`, the address in hex with or without `0x`.
pub(super) struct Dramsim3 {
    pub base: Record,
}

/// Whether DRAMsim3 takes this word for a write: all but four are reads, such as IFETCH and
/// P_LOCK_RD. `None` if it is no word.
fn operation(word: &[u8]) -> Option<bool> {
    let is_word = word.first()?.is_ascii_alphabetic()
        && word.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_/".contains(byte));
    is_word.then_some(matches!(word, b"WRITE" | b"write" | b"P_MEM_WR" | b"BOFF"))
}

/// Whether it is a word of DRAMsim3's or DRAMSim2's own traces.
pub(super) fn is_operation(word: &[u8]) -> bool {
    word.starts_with(b"P_")
        || matches!(word, b"READ" | b"read" | b"WRITE" | b"write" | b"IFETCH" | b"FETCH" | b"BOFF")
}

impl Parse for Dramsim3 {
    const BYTES: Option<usize> = None;

    fn parse(&mut self, line: &[u8], out: &mut Found) -> Result<(), Cause> {
        if blank(line) {
            return Ok(());
        }
        let wrong = || expected("ADDR READ|WRITE CYCLE", line);
        let mut words = words(line);
        let (Some(addr), Some(kind), Some(at), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(wrong());
        };
        let addr = hex_address(addr).ok_or_else(wrong)?;
        let write = operation(kind).ok_or_else(wrong)?;
        let at = decimal(at).ok_or_else(wrong)?;
        out.push(Record { at, addr, size: LINE_BYTES, write, ..self.base });
        Ok(())
    }
}

/// `CYCLE: [(BYTES)] read|write ADDR [DATA]`, the address in hex; a line with `#` is a remark.
pub(super) struct Stl {
    pub base: Record,
    /// If cycles count from the record before: when that was.
    pub since: Option<u64>,
}

impl Parse for Stl {
    const BYTES: Option<usize> = None;

    fn parse(&mut self, line: &[u8], out: &mut Found) -> Result<(), Cause> {
        if blank(line) || line[0] == b'#' {
            return Ok(());
        }
        let wrong = || expected("CYCLE: read|write ADDR", line);
        let mut words = words(line).peekable();
        let cycle = words.next().map(|word| word.strip_suffix(b":").unwrap_or(word));
        let cycle = cycle.and_then(decimal).ok_or_else(wrong)?;
        let bytes = words.next_if(|word| word[0] == b'(').map(|word| {
            let digits = word.strip_prefix(b"(").and_then(|word| word.strip_suffix(b")"));
            digits.and_then(decimal).ok_or_else(wrong)
        });
        let size = match bytes.transpose()? {
            Some(bytes) => narrow("the size in bytes", bytes, u64::from(u16::MAX))?,
            None => LINE_BYTES,
        };
        let write = match words.next() {
            Some(b"read") => false,
            Some(b"write") => true,
            _ => return Err(wrong()),
        };
        let addr = words.next().and_then(hex_address).ok_or_else(wrong)?;
        // What is read or written is of no use here; nothing may come after it.
        let is_data = |word: &[u8]| {
            word.strip_prefix(b"0x").unwrap_or(word).iter().all(u8::is_ascii_hexdigit)
        };
        if words.next().is_some_and(|word| !is_data(word)) || words.next().is_some() {
            return Err(wrong());
        }
        let at = match &mut self.since {
            None => cycle,
            Some(since) => {
                let (what, max) = ("the sum of cycles", u64::MAX);
                let sum = since.checked_add(cycle);
                *since = sum.ok_or(Cause::Oversized { what, value: cycle, max })?;
                *since
            }
        };
        out.push(Record { at, addr, size, write, ..self.base });
        Ok(())
    }
}
