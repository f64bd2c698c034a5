//! A table as CSV, row by row.

use super::super::error::{Cause, TraceError};
use super::super::input::Input;
use super::super::read::fields;

/// A table of which `N` columns are read.
pub(super) struct Table<const N: usize> {
    name: String,
    input: Input,
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
        let marked = self.input.skip_mark();
        let head = marked.and_then(|()| self.read(|line| places(line, columns)));
        let missing = || Cause::Truncated("there is no line of names".to_owned());
        let head = head.and_then(|places| places.ok_or_else(missing));
        self.places = head.map_err(|cause| self.fails(cause))?;
        Ok(())
    }

    /// The next row, as `parse` understands it.
    pub(super) fn row<T>(
        &mut self,
        parse: impl Fn([&str; N]) -> Option<T>,
    ) -> Result<Option<T>, TraceError> {
        let places = self.places;
        let row = self.read(|line| {
            let shown = || String::from_utf8_lossy(&line[..line.len().min(60)]).into_owned();
            let row = words(line, &places).and_then(&parse);
            row.ok_or_else(|| {
                Cause::Malformed(format!("no row of the table: `{}`", shown().escape_debug()))
            })
        });
        row.map_err(|cause| self.fails(cause))
    }

    /// The next line that is not empty.
    fn read<T>(
        &mut self,
        parse: impl FnOnce(&[u8]) -> Result<T, Cause>,
    ) -> Result<Option<T>, Cause> {
        loop {
            self.line += 1;
            let Some(line) = self.input.line()? else { return Ok(None) };
            if !line.trim_ascii().is_empty() {
                let parsed = parse(line);
                return parsed.map(Some).map_err(|cause| self.input.in_line(cause));
            }
        }
    }

    /// An error in the row that was read last.
    pub(super) fn fails(&self, cause: Cause) -> TraceError {
        cause.at(&self.name, self.line)
    }
}

fn places<const N: usize>(line: &[u8], columns: [&str; N]) -> Result<[usize; N], Cause> {
    let names: Vec<&[u8]> = fields(line).collect();
    let mut places = [0; N];
    for (place, column) in places.iter_mut().zip(columns) {
        let found = names.iter().position(|name| name.eq_ignore_ascii_case(column.as_bytes()));
        *place = found.ok_or_else(|| Cause::Malformed(format!("there is no column {column}")))?;
    }
    Ok(places)
}

fn words<'a, const N: usize>(line: &'a [u8], places: &[usize; N]) -> Option<[&'a str; N]> {
    let mut found = [None; N];
    for (index, word) in fields(line).enumerate() {
        for (field, place) in found.iter_mut().zip(places) {
            if *place == index {
                *field = std::str::from_utf8(word).ok();
            }
        }
    }
    found.iter().all(Option::is_some).then(|| found.map(Option::unwrap_or_default))
}
