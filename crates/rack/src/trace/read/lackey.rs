//! The text of Valgrind's lackey. Its lines come between those of the program, which writes to the
//! same place: what is no line of lackey's is another program's, and is counted, not refused.

use super::super::Record;
use super::super::error::Cause;
use super::super::pace::Pace;
use super::text::{blank, decimal, expected, hex};
use super::{Found, Parse, narrow};

/// `I  ADDR,SIZE`, ` L ADDR,SIZE`, ` S ADDR,SIZE` and ` M ADDR,SIZE`, the address in hex, with any
/// blanks and further words; `SB ADDR` begins a block, and lines with `==` are Valgrind's own. An
/// instruction is no record: it takes time.
pub(super) struct Lackey {
    base: Record,
    pace: Pace,
    counted: bool,
}

impl Lackey {
    pub(super) fn new(base: Record, pace: Pace) -> Lackey {
        Lackey { base, pace, counted: false }
    }
}

impl Parse for Lackey {
    const BYTES: Option<usize> = None;
    const MIXED: bool = true;

    fn parse(&mut self, line: &[u8], out: &mut Found) -> Result<(), Cause> {
        if blank(line) || of_valgrind(line) {
            return Ok(());
        }
        let wrong = || match expected("I, L, S or M with ADDR,SIZE", line) {
            Cause::Malformed(what) if begun(line) => Cause::Truncated(what),
            cause => cause,
        };
        let (kind, addr, size) = access(line).ok_or_else(wrong)?;
        let size = narrow("the size in bytes", size, u64::from(u16::MAX))?;
        if kind == b'I' {
            self.counted = true;
            return self.pace.instructions(1);
        }
        // Valgrind names each instruction before what it accesses, if it names any.
        if !self.counted && self.pace.needs_instructions() {
            return Err(Cause::NoInstructions);
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

/// What Valgrind says itself, and the begin of a block of instructions.
pub(super) fn of_valgrind(line: &[u8]) -> bool {
    match line {
        [b'=', b'=', ..] | [b'-', b'-', ..] | [b'*', b'*', ..] => true,
        [b'S', b'B', b' ', addr @ ..] => hex(addr.trim_ascii()).is_some(),
        _ => false,
    }
}

/// A line of lackey's without its end.
fn begun(line: &[u8]) -> bool {
    let [b'I' | b'L' | b'S' | b'M', b' ', rest @ ..] = line.trim_ascii_start() else {
        return false;
    };
    let place = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b',';
    rest.trim_ascii_start().iter().all(place)
}

/// Kind, address and size of a line; `None` if it is no line of lackey's.
#[inline]
pub(super) fn access(line: &[u8]) -> Option<(u8, u64, u64)> {
    let [kind @ (b'I' | b'L' | b'S' | b'M'), b' ' | b'\t', rest @ ..] = line.trim_ascii_start()
    else {
        return None;
    };
    let rest = rest.trim_ascii_start();
    let comma = memchr::memchr(b',', rest)?;
    let size = &rest[comma + 1..];
    let length = size.iter().position(u8::is_ascii_whitespace).unwrap_or(size.len());
    Some((*kind, hex(&rest[..comma])?, decimal(&size[..length])?))
}
