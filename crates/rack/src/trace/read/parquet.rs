//! Parquet, group of rows by group, in batches.
//!
//! The library that decodes it believes some numbers of a page's head; [`Checked`] looks at those
//! before. Where it panics all the same, the file is malformed ([`guarded`]). Columns are found by
//! name; those that a trace can do without may be missing.

use super::super::error::{Cause, TraceError};
use super::super::pace::Pace;
use super::super::write::INJECTION_KEY;
use super::super::{Header, Options, Reader, Record, Unit};
use super::csv::{COLUMNS, Column, SIZE_DEFAULT, set};
use super::{Order, base};
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::errors::{ParquetError, Result as PageResult};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, FileReader};
use parquet::file::serialized_reader::SerializedFileReader;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Rows that are decoded at a time.
const BATCH_ROWS: usize = 4096;
/// Longest description of a file, in bytes.
const FOOTER_BYTES_MAX: u64 = 8 << 20;
/// Most bytes of a column in a group of rows, decoded. A page is no longer, and one of each column
/// is in memory.
const CHUNK_BYTES_MAX: u64 = 1 << 30;

pub(super) struct Parquet<R: ChunkReader + 'static> {
    file: SerializedFileReader<R>,
    header: Header,
    /// Which column of the file each one is.
    columns: Vec<(Column, usize)>,
    base: Record,
    pace: Option<Pace>,
    order: Order,
    /// The group that is read next.
    group: usize,
    /// Rows of the present group that are not decoded yet.
    rows_left: u64,
    readers: Vec<ColumnReader>,
    batch: Vec<Record>,
    taken: usize,
    /// Rows that were given out.
    row: u64,
    ended: bool,
}

impl<R: ChunkReader + 'static> Parquet<R> {
    pub(super) fn new(name: &str, source: R, options: &Options) -> Result<Parquet<R>, Cause> {
        check_ends(&source)?;
        let file = guarded(|| SerializedFileReader::new(source))?;
        let schema = file.metadata().file_metadata().schema_descr_ptr();
        let mut columns = Vec::new();
        for (place, column) in schema.columns().iter().enumerate() {
            let found = COLUMNS.iter().find(|(known, _)| column.path().string() == *known);
            let Some((known, which)) = found else { continue };
            if columns.iter().any(|(before, _)| before == which) {
                return Err(Cause::Malformed(format!("two columns are named {known}")));
            }
            let number = matches!(column.physical_type(), Type::INT32 | Type::INT64);
            let text = matches!(column.physical_type(), Type::BOOLEAN | Type::BYTE_ARRAY);
            if !(number || text && *which == Column::Rw) || column.max_rep_level() > 0 {
                let what = format!("column {known} is {}", column.physical_type());
                return Err(Cause::Malformed(what));
            }
            columns.push((*which, place));
        }
        for (needed, which) in [("addr", Column::Addr), ("rw", Column::Rw)] {
            if !columns.iter().any(|(column, _)| *column == which) {
                return Err(Cause::Malformed(format!("there is no column {needed}")));
            }
        }
        let timed = columns.iter().any(|(column, _)| *column == Column::At);
        let pace = (!timed).then(|| Pace::new(options.injection, false)).transpose()?;
        let header = match &pace {
            Some(pace) => pace.header(name),
            None => Header { name: name.to_owned(), unit: Unit::Ns, injection: stored(&file)? },
        };
        Ok(Parquet {
            file,
            header,
            columns,
            base: Record { size: SIZE_DEFAULT, ..base(options) },
            pace,
            order: Order::default(),
            group: 0,
            rows_left: 0,
            readers: Vec::new(),
            batch: Vec::new(),
            taken: 0,
            row: 0,
            ended: false,
        })
    }

    fn advance(&mut self) -> Result<Option<Record>, Cause> {
        while self.taken == self.batch.len() {
            if self.ended {
                return Ok(None);
            }
            if self.rows_left > 0 {
                self.decode()?;
            } else if self.group < self.file.num_row_groups() {
                self.begin()?;
            } else {
                self.ended = true;
            }
        }
        let mut record = self.batch[self.taken];
        self.taken += 1;
        self.row += 1;
        if let Some(pace) = &mut self.pace {
            record.at = pace.record()?;
        }
        self.order.check(record.at)?;
        Ok(Some(record))
    }

    /// Goes to the next group of rows.
    fn begin(&mut self) -> Result<(), Cause> {
        let group = guarded(|| self.file.get_row_group(self.group))?;
        let about = group.metadata();
        self.rows_left = u64::try_from(about.num_rows())
            .map_err(|_| Cause::Malformed("a group of rows has less than none".to_owned()))?;
        self.readers.clear();
        for (_, place) in &self.columns {
            check_chunk(about, *place)?;
            let pages = guarded(|| group.get_column_page_reader(*place))?;
            let descriptor = about.column(*place).column_descr_ptr();
            let value_bytes = match descriptor.physical_type() {
                Type::INT64 => 8,
                // A text has its length before it.
                Type::INT32 | Type::BYTE_ARRAY => 4,
                _ => 1,
            };
            let rows_left = self.rows_left;
            let pages = Checked { pages, value_bytes, rows_left, dictionary: false };
            self.readers.push(get_column_reader(descriptor, Box::new(pages)));
        }
        self.group += 1;
        Ok(())
    }

    fn decode(&mut self) -> Result<(), Cause> {
        let rows = BATCH_ROWS.min(usize::try_from(self.rows_left).unwrap_or(BATCH_ROWS));
        self.batch.clear();
        self.taken = 0;
        self.batch.resize(rows, self.base);
        for ((column, _), reader) in self.columns.iter().zip(&mut self.readers) {
            let into = &mut self.batch;
            match reader {
                ColumnReader::BoolColumnReader(reader) => {
                    fill(reader, into, |record, value| set(record, *column, u64::from(value)))?;
                }
                ColumnReader::Int32ColumnReader(reader) => fill(reader, into, |record, value| {
                    set(record, *column, u64::from(value.cast_unsigned()))
                })?,
                ColumnReader::Int64ColumnReader(reader) => {
                    fill(reader, into, |record, value| set(record, *column, value.cast_unsigned()))?
                }
                ColumnReader::ByteArrayColumnReader(reader) => {
                    fill(reader, into, |record, value| match value.data() {
                        b"R" | b"r" => set(record, *column, 0),
                        b"W" | b"w" => set(record, *column, 1),
                        _ => Err(Cause::Malformed("rw is neither R nor W".to_owned())),
                    })?;
                }
                _ => unreachable!("types were looked at when the file was opened"),
            }
        }
        self.rows_left -= rows as u64;
        Ok(())
    }
}

/// Decodes a column of a batch.
fn fill<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    batch: &mut [Record],
    mut set: impl FnMut(&mut Record, T::T) -> Result<(), Cause>,
) -> Result<(), Cause> {
    let (mut levels, mut values, mut done) = (Vec::new(), Vec::new(), 0);
    while done < batch.len() {
        levels.clear();
        let want = batch.len() - done;
        let (records, ..) =
            guarded(|| reader.read_records(want, Some(&mut levels), None, &mut values))?;
        if records == 0 {
            let what = format!("a column ends {want} rows before its group does");
            return Err(Cause::Truncated(what));
        }
        done += records;
    }
    if values.len() != batch.len() {
        return Err(Cause::Malformed("a column has empty values".to_owned()));
    }
    batch.iter_mut().zip(values).try_for_each(|(record, value)| set(record, value))
}

impl<R: ChunkReader + 'static> Reader for Parquet<R> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn next(&mut self) -> Result<Option<Record>, TraceError> {
        let next = self.advance();
        next.map_err(|cause| {
            self.ended = true;
            self.rows_left = 0;
            self.taken = self.batch.len();
            let row = self.row.max(1);
            cause.at(&self.header.name, row)
        })
    }
}

/// The mark at both ends, and a description that is not too long.
fn check_ends(source: &impl ChunkReader) -> Result<(), Cause> {
    let bytes = source.len();
    if bytes < 12 {
        return Err(Cause::Truncated(format!("{bytes} bytes are no file of Parquet")));
    }
    if source.get_bytes(0, 4).map_err(decoding)?.as_ref() != b"PAR1" {
        return Err(Cause::Malformed("the file does not begin with PAR1".to_owned()));
    }
    let end = source.get_bytes(bytes - 8, 8).map_err(decoding)?;
    if &end[4..] != b"PAR1" {
        return Err(Cause::Truncated("the file does not end with PAR1".to_owned()));
    }
    let length = [end[0], end[1], end[2], end[3]];
    let (value, swapped) = (u32::from_le_bytes(length), u32::from_be_bytes(length));
    if u64::from(value) > bytes && u64::from(swapped) < bytes && swapped > 0 {
        return Err(Cause::WrongEndian);
    }
    let (value, max) = (u64::from(value), FOOTER_BYTES_MAX);
    let what = "the description of the file in bytes";
    if value > max { Err(Cause::Oversized { what, value, max }) } else { Ok(()) }
}

fn check_chunk(group: &RowGroupMetaData, place: usize) -> Result<(), Cause> {
    let chunk = group.column(place);
    let what = "a column of a group of rows in bytes";
    let max = CHUNK_BYTES_MAX;
    for size in [chunk.uncompressed_size(), chunk.compressed_size()] {
        let value = u64::try_from(size)
            .map_err(|_| Cause::Malformed("a column has less than no bytes".to_owned()))?;
        if value > max {
            return Err(Cause::Oversized { what, value, max });
        }
    }
    Ok(())
}

/// How the times were made, if the file says it.
fn stored<R: ChunkReader + 'static>(
    file: &SerializedFileReader<R>,
) -> Result<Option<super::super::TraceInjection>, Cause> {
    let pairs = file.metadata().file_metadata().key_value_metadata();
    let found = pairs.into_iter().flatten().find(|pair| pair.key == INJECTION_KEY);
    let text = found.and_then(|pair| pair.value.as_deref());
    text.map(|text| text.parse().map_err(Cause::Malformed)).transpose()
}

/// Asks the library for something. It checks most of what it reads, not all: its panic says that
/// the file is not right. What panicked is not used again, because the stream ends with the error.
fn guarded<T>(ask: impl FnOnce() -> PageResult<T>) -> Result<T, Cause> {
    match catch_unwind(AssertUnwindSafe(ask)) {
        Ok(answer) => answer.map_err(decoding),
        Err(_) => Err(Cause::Malformed("its bytes cannot be decoded".to_owned())),
    }
}

/// What the library says of bytes that it cannot decode.
fn decoding(error: ParquetError) -> Cause {
    match error {
        ParquetError::EOF(what) => Cause::Truncated(what),
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => Cause::reading(*error),
            Err(error) => Cause::Malformed(error.to_string()),
        },
        other => Cause::Malformed(other.to_string()),
    }
}

/// Pages with heads that were checked against their bytes.
struct Checked {
    pages: Box<dyn PageReader>,
    /// The least that a value takes.
    value_bytes: u64,
    /// Of the group, in pages that did not come yet.
    rows_left: u64,
    dictionary: bool,
}

impl Checked {
    fn check(&mut self, page: &Page) -> PageResult<()> {
        let general = |what: String| Err(ParquetError::General(what));
        let values = u64::from(page.num_values());
        if page.is_dictionary_page() {
            if std::mem::replace(&mut self.dictionary, true) {
                return general("a column has two dictionaries".to_owned());
            }
            let bytes = page.buffer().len() as u64;
            if values * self.value_bytes > bytes {
                return general(format!("a dictionary of {values} values has {bytes} bytes"));
            }
            return Ok(());
        }
        let indirect = matches!(page.encoding(), Encoding::RLE_DICTIONARY)
            || page.encoding() as i32 == Encoding::PLAIN_DICTIONARY as i32;
        if indirect && !self.dictionary {
            return general("a page needs a dictionary, and there is none".to_owned());
        }
        match self.rows_left.checked_sub(values) {
            Some(left) => self.rows_left = left,
            None => return general(format!("a page has {values} values, its group fewer rows")),
        }
        Ok(())
    }
}

impl Iterator for Checked {
    type Item = PageResult<Page>;

    fn next(&mut self) -> Option<PageResult<Page>> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Checked {
    fn get_next_page(&mut self) -> PageResult<Option<Page>> {
        let page = self.pages.get_next_page()?;
        page.as_ref().map_or(Ok(()), |page| self.check(page))?;
        Ok(page)
    }

    fn peek_next_page(&mut self) -> PageResult<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> PageResult<()> {
        self.pages.skip_next_page()
    }
}
