//! Which format it is, from name and first bytes.

use super::super::Format;
use super::text;

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
    if head.iter().any(|byte| !matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~')) {
        return binary(stem);
    }
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    lines.find_map(line)
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
    if line.starts_with(b"==") || line.starts_with(b"I  ") || lackey(line) {
        return Some(Format::Lackey);
    }
    if line.contains(&b',') && line.windows(4).any(|word| word == b"addr") {
        return Some(Format::Csv);
    }
    let mut words = text::words(line);
    let (first, second, third) = (words.next()?, words.next()?, words.next());
    match (first, third) {
        (b"LD" | b"ST", None) => Some(Format::Ramulator2),
        (_, Some(cycle)) if text::operation(second).is_some() && text::number(cycle).is_some() => {
            Some(Format::Dramsim3)
        }
        _ => {
            let numbers = text::number(first).is_some() && text::number(second).is_some();
            let third = third.is_none_or(|third| text::number(third).is_some());
            (numbers && third && words.next().is_none()).then_some(Format::SimpleO3)
        }
    }
}

fn lackey(line: &[u8]) -> bool {
    matches!(line, [b' ', b'L' | b'S' | b'M', b' ', ..]) && line.contains(&b',')
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
            ("a", "==12== Lackey\nI  0401,3\n", Some(Format::Lackey)),
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
