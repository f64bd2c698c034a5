//! A table as CSV, row by row.

use super::super::error::{Cause, TraceError};
use super::super::input::Input;

/// A table of which `N` columns are read.
pub(super) struct Table<const N: usize> {
    name: String,
    input: Input,
    /// Where the columns are.
    places: [usize; N],
    /// Lines that were read.
    line: u64,
}

impl<const N: usize> Table<N> {
    pub(super) fn new(name: String, input: Input) -> Result<Table<N>, TraceError> {
        Ok(Table { name, input, places: [0; N], line: 0 })
    }

    /// Reads the names and finds the columns.
    pub(super) fn head(&mut self, columns: [&str; N]) -> Result<(), TraceError> {
        self.line += 1;
        let found = match self.input.line() {
            Ok(Some(line)) => places(line, columns),
            Ok(None) => Err(Cause::Truncated("there is no line of names".to_owned())),
            Err(cause) => Err(cause),
        };
        self.places = found.map_err(|cause| cause.at(&self.name, self.line))?;
        Ok(())
    }

    /// The next row, as `parse` understands it.
    pub(super) fn row<T>(
        &mut self,
        parse: impl Fn([&str; N]) -> Option<T>,
    ) -> Result<Option<T>, TraceError> {
        self.line += 1;
        let row = match self.input.line() {
            Ok(None) => Ok(None),
            Ok(Some(line)) => {
                let words = fields(line, &self.places);
                let shown = || String::from_utf8_lossy(&line[..line.len().min(60)]).into_owned();
                let row = words.and_then(&parse);
                row.map(Some).ok_or_else(|| {
                    Cause::Malformed(format!("no row of the table: `{}`", shown().escape_debug()))
                })
            }
            Err(cause) => Err(cause),
        };
        row.map_err(|cause| cause.at(&self.name, self.line))
    }

    /// An error in the row that was read last.
    pub(super) fn fails(&self, cause: Cause) -> TraceError {
        cause.at(&self.name, self.line)
    }
}

fn plain(word: &[u8]) -> &[u8] {
    let word = word.trim_ascii();
    word.strip_prefix(b"\"").and_then(|word| word.strip_suffix(b"\"")).unwrap_or(word)
}

fn places<const N: usize>(line: &[u8], columns: [&str; N]) -> Result<[usize; N], Cause> {
    let names: Vec<&[u8]> = line.split(|byte| *byte == b',').map(plain).collect();
    let mut places = [0; N];
    for (place, column) in places.iter_mut().zip(columns) {
        let found = names.iter().position(|name| name.eq_ignore_ascii_case(column.as_bytes()));
        *place = found.ok_or_else(|| Cause::Malformed(format!("there is no column {column}")))?;
    }
    Ok(places)
}

fn fields<'a, const N: usize>(line: &'a [u8], places: &[usize; N]) -> Option<[&'a str; N]> {
    let mut fields = [None; N];
    for (index, word) in line.split(|byte| *byte == b',').enumerate() {
        for (field, place) in fields.iter_mut().zip(places) {
            if *place == index {
                *field = std::str::from_utf8(plain(word)).ok();
            }
        }
    }
    fields.iter().all(Option::is_some).then(|| fields.map(Option::unwrap_or_default))
}
