//! Which format it is, from name and first bytes.

use super::super::Format;
use super::super::input::BYTE_ORDER_MARK;
use super::{lackey, text};

/// `None` if it could be several, or none.
pub(super) fn format(name: &str, head: &[u8]) -> Option<Format> {
    if head.starts_with(b"PAR1") {
        return Some(Format::Parquet);
    }
    let name = name.to_ascii_lowercase();
    let stem = [".gz", ".xz", ".zst"].iter().find_map(|end| name.strip_suffix(end));
    let stem = stem.unwrap_or(&name);
    if stem.ends_with(".csv") {
        return Some(Format::Csv);
    }
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    if head.iter().any(|byte| matches!(byte, 0..=8 | 14..=26 | 28..32 | 127)) {
        return binary(stem);
    }
    for (end, format) in [(".rstl", Format::Rstl), (".stl", Format::Stl)] {
        if stem.ends_with(end) {
            return Some(format);
        }
    }
    let lines = || head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    // Between its lines a program may have written anything.
    if lines().any(|line| line.starts_with(b"==") || lackey(line)) {
        return Some(Format::Lackey);
    }
    lines().find_map(line)
}

/// Binary formats have no mark: only the name can tell.
fn binary(stem: &str) -> Option<Format> {
    if stem.ends_with(".trc") {
        return Some(Format::DRackSim);
    }
    let champsim = [".champsim", ".champsimtrace"].iter().any(|end| stem.ends_with(end));
    champsim.then_some(Format::ChampSim)
}

/// The format that has such a line; `None` for lines that say nothing.
fn line(line: &[u8]) -> Option<Format> {
    if line.contains(&b',') && line.windows(4).any(|word| word == b"addr") {
        return Some(Format::Csv);
    }
    let mut words = text::words(line);
    let (first, second, third) = (words.next()?, words.next()?, words.next());
    let hex = |word: &[u8]| text::hex_address(word).is_some();
    match (first, second, third) {
        (b"LD" | b"ST" | b"R" | b"W", _, None) => Some(Format::Ramulator2),
        (addr, b"R" | b"W", None) if hex(addr) => Some(Format::Ramulator),
        (cycle, b"read" | b"write", Some(addr)) if cycle.ends_with(b":") && hex(addr) => {
            Some(Format::Stl)
        }
        (addr, kind, Some(cycle))
            if text::is_operation(kind) && hex(addr) && text::decimal(cycle).is_some() =>
        {
            Some(Format::Dramsim3)
        }
        _ => {
            let numbers = text::number(first).is_some() && text::number(second).is_some();
            let third = third.is_none_or(|third| text::number(third).is_some());
            (numbers && third && words.next().is_none()).then_some(Format::SimpleO3)
        }
    }
}

/// As it is written by Valgrind, not as it may have become since.
fn lackey(line: &[u8]) -> bool {
    let written = matches!(line, [b'I', b' ', b' ', ..] | [b' ', b'L' | b'S' | b'M', b' ', ..]);
    written && lackey::access(line).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_from_their_first_lines_or_their_names() {
        for (name, head, expected) in [
            ("a", "LD 0x1000\nST 64\n", Some(Format::Ramulator2)),
            ("a", "3 20734016\n", Some(Format::SimpleO3)),
            ("a", "1 0x40 0x80\n", Some(Format::SimpleO3)),
            ("a", "0x1000 READ 5\n", Some(Format::Dramsim3)),
            ("a", "1000 P_FETCH 5\n", Some(Format::Dramsim3)),
            ("k6.trc", "0x1000 BOFF 5\n", Some(Format::Dramsim3)),
            ("a", "12345680 W\n", Some(Format::Ramulator)),
            ("a", "W 0,0,1,2,77,3\n", Some(Format::Ramulator2)),
            ("a", "# remark\n31: read 0x400140\n", Some(Format::Stl)),
            ("a.rstl.gz", "31: write 0x400140 0xff\n", Some(Format::Rstl)),
            ("a", "\u{feff}t_ns,addr,rw\n", Some(Format::Csv)),
            ("a", "5 7\nh\u{e9}llo\n S 1ffe,8\n", Some(Format::Lackey)),
            ("a", "hello\n==12== Lackey\nI  0401,3\n", Some(Format::Lackey)),
            ("a", " L 1ffeffe7e,8\n", Some(Format::Lackey)),
            ("a", "t_ns,addr,rw\n", Some(Format::Csv)),
            ("a.csv.gz", "anything", Some(Format::Csv)),
            ("a", "PAR1\u{1}", Some(Format::Parquet)),
            ("TraceFile.trc", "\0\0", Some(Format::DRackSim)),
            ("400.champsimtrace.xz", "\0\0", Some(Format::ChampSim)),
            ("a", "\0\0", None),
            ("a", "", None),
            ("a", "once upon a time\n", None),
        ] {
            assert_eq!(format(name, head.as_bytes()), expected, "{name} {head:?}");
        }
    }
}
