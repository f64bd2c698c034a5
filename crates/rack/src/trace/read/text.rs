//! Formats of lines: ramulator2's two, DRAMsim3's, lackey's.

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

fn blank(line: &[u8]) -> bool {
    line.trim_ascii().is_empty()
}

/// `LD ADDR` or `ST ADDR`.
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
        let wrong = || expected("LD ADDR or ST ADDR", line);
        let mut words = words(line);
        let (Some(kind), Some(addr), None) = (words.next(), words.next(), words.next()) else {
            return Err(wrong());
        };
        let write = match kind {
            b"LD" => false,
            b"ST" => true,
            _ => return Err(wrong()),
        };
        let addr = number(addr).ok_or_else(wrong)?;
        let at = self.pace.record()?;
        out.push(Record { at, addr, size: LINE_BYTES, write, ..self.base });
        Ok(())
    }
}

/// `BUBBLES LOAD [STORE]`: instructions without access to memory, then one with it, whose line
/// pushes another one out of the caches.
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

/// Whether DRAMsim3 takes this word for a write; `None` if it knows it not at all.
pub(super) fn operation(word: &[u8]) -> Option<bool> {
    match word {
        b"READ" | b"read" | b"P_MEM_RD" => Some(false),
        b"WRITE" | b"write" | b"P_MEM_WR" => Some(true),
        _ => None,
    }
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
        let digits = addr.strip_prefix(b"0x").or(addr.strip_prefix(b"0X")).unwrap_or(addr);
        let addr = hex(digits).ok_or_else(wrong)?;
        let write = operation(kind).ok_or_else(wrong)?;
        let at = decimal(at).ok_or_else(wrong)?;
        out.push(Record { at, addr, size: LINE_BYTES, write, ..self.base });
        Ok(())
    }
}

/// `I  ADDR,SIZE`, ` L ADDR,SIZE`, ` S ADDR,SIZE` and ` M ADDR,SIZE`, the address in hex; lines
/// that begin with `==` are Valgrind's own words. An instruction is no record: it takes time.
pub(super) struct Lackey {
    pub base: Record,
    pub pace: Pace,
}

impl Parse for Lackey {
    const BYTES: Option<usize> = None;

    fn parse(&mut self, line: &[u8], out: &mut Found) -> Result<(), Cause> {
        let wrong = || expected("I, L, S or M with ADDR,SIZE", line);
        let (kind, rest) = match line {
            [b'I', b' ', b' ', rest @ ..] => (b'I', rest),
            [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] => (*kind, rest),
            [b'=' | b'-' | b'*', b'=' | b'-' | b'*', ..] => return Ok(()),
            _ if blank(line) => return Ok(()),
            _ => return Err(wrong()),
        };
        let comma = rest.iter().position(|byte| *byte == b',').ok_or_else(wrong)?;
        let addr = hex(&rest[..comma]).ok_or_else(wrong)?;
        let size = decimal(&rest[comma + 1..]).ok_or_else(wrong)?;
        let size = narrow("the size in bytes", size, u64::from(u16::MAX))?;
        if kind == b'I' {
            return self.pace.instructions(1);
        }
        for (write, is) in [(false, kind != b'S'), (true, kind != b'L')] {
            if is {
                let at = self.pace.record()?;
                out.push(Record { at, addr, size, write, ..self.base });
            }
        }
        Ok(())
    }
}
