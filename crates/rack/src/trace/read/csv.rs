//! Lines with commas, as RFC 4180 has them but for line ends within quotes. The first line names
//! the columns, in any order.

use super::super::error::Cause;
use super::super::input::Input;
use super::super::pace::Pace;
use super::super::{Header, Options, Record, TraceInjection, Unit};
use super::{Found, Parse, narrow, text};

/// A column, of CSV and of Parquet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    At,
    Node,
    Pid,
    Tid,
    Addr,
    Rw,
    Size,
}

/// The columns with their names, in the order in which they are written.
pub(crate) const COLUMNS: [(&str, Column); 7] = [
    ("t_ns", Column::At),
    ("node", Column::Node),
    ("pid", Column::Pid),
    ("tid", Column::Tid),
    ("addr", Column::Addr),
    ("rw", Column::Rw),
    ("size", Column::Size),
];

/// Bytes of an access without a column of sizes.
pub(super) const SIZE_DEFAULT: u16 = 64;
/// Before the names, a line with `# injection=` says how times were made.
pub(crate) const INJECTION_MARK: &str = "# injection=";

pub(super) struct Csv {
    columns: Vec<Column>,
    base: Record,
    /// If there is no column of times.
    pace: Option<Pace>,
    /// Lines before the first record.
    pub head_lines: u64,
}

impl Csv {
    pub(super) fn new(
        name: &str,
        input: &mut Input,
        options: &Options,
    ) -> Result<(Csv, Header), Cause> {
        let missing = || Cause::Truncated("there is no line of names".to_owned());
        let mut line = input.line()?.ok_or_else(missing)?.to_vec();
        let mut injection = None;
        if let Some(text) = line.strip_prefix(INJECTION_MARK.as_bytes()) {
            let text = String::from_utf8_lossy(text).into_owned();
            injection = Some(text.parse::<TraceInjection>().map_err(Cause::Malformed)?);
            line = input.line()?.ok_or_else(missing)?.to_vec();
        }
        let mut columns = Vec::new();
        for word in fields(&line) {
            columns.push(column(word, &columns)?);
        }
        for needed in [Column::Addr, Column::Rw] {
            if !columns.contains(&needed) {
                return Err(text::expected("columns addr and rw", &line));
            }
        }
        let base = Record { size: SIZE_DEFAULT, ..super::base(options) };
        let head_lines = 1 + u64::from(injection.is_some());
        if columns.contains(&Column::At) {
            let header = Header { name: name.to_owned(), unit: Unit::Ns, injection };
            return Ok((Csv { columns, base, pace: None, head_lines }, header));
        }
        let pace = Pace::new(options.injection, false)?;
        let header = pace.header(name);
        Ok((Csv { columns, base, pace: Some(pace), head_lines }, header))
    }
}

fn column(word: &[u8], before: &[Column]) -> Result<Column, Cause> {
    let found = COLUMNS.iter().find(|(name, _)| name.as_bytes() == word);
    let Some((name, column)) = found else {
        return Err(text::expected("a column of t_ns,node,pid,tid,addr,rw,size", word));
    };
    if before.contains(column) {
        return Err(Cause::Malformed(format!("two columns are named {name}")));
    }
    Ok(*column)
}

impl Parse for Csv {
    const BYTES: Option<usize> = None;

    fn parse(&mut self, line: &[u8], out: &mut Found) -> Result<(), Cause> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let mut record = self.base;
        let mut words = fields(line);
        for column in &self.columns {
            let wrong = || text::expected("a number for each column, R or W for rw", line);
            let word = words.next().ok_or_else(wrong)?;
            if *column == Column::Rw {
                record.write = match word {
                    b"R" | b"r" | b"0" => false,
                    b"W" | b"w" | b"1" => true,
                    _ => return Err(wrong()),
                };
                continue;
            }
            set(&mut record, *column, text::number(word).ok_or_else(wrong)?)?;
        }
        if words.next().is_some() {
            return Err(text::expected("no more fields than columns", line));
        }
        if let Some(pace) = &mut self.pace {
            record.at = pace.record()?;
        }
        out.push(record);
        Ok(())
    }
}

/// The fields of a line, without blanks and quotes around them. What is wrong with its quotes is no
/// number and no name: such a field keeps them. A quote within quotes stays doubled.
pub(crate) fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut left = Some(line);
    std::iter::from_fn(move || {
        let line = left?;
        let (mut quoted, mut end) = (false, line.len());
        for place in memchr::memchr2_iter(b',', b'"', line) {
            if line[place] == b'"' {
                quoted = !quoted;
            } else if !quoted {
                end = place;
                break;
            }
        }
        left = line.get(end + 1..);
        let word = line[..end].trim_ascii();
        let inside = word.strip_prefix(b"\"").and_then(|word| word.strip_suffix(b"\""));
        Some(inside.unwrap_or(word))
    })
}

/// Sets a column that is a number.
pub(super) fn set(record: &mut Record, column: Column, value: u64) -> Result<(), Cause> {
    let (short, word) = (u64::from(u16::MAX), u64::from(u32::MAX));
    match column {
        Column::At => record.at = value,
        Column::Addr => record.addr = value,
        Column::Node => record.node = narrow("the node", value, short)?,
        Column::Size => record.size = narrow("the size in bytes", value, short)?,
        Column::Pid => record.pid = narrow("the process", value, word)?,
        Column::Tid => record.tid = narrow("the thread", value, word)?,
        Column::Rw => record.write = value != 0,
    }
    Ok(())
}
