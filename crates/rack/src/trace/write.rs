//! Writers of traces: Parquet, which is what rackpool works with, and CSV.

use super::error::{Cause, TraceError};
use super::read::{COLUMNS, Column};
use super::{Header, Record, TraceInjection, Unit};
use flate2::Compression as GzLevel;
use flate2::write::GzEncoder;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{BoolType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

/// Rows of a group: what is in memory, 10 MiB.
const GROUP_ROWS: usize = 1 << 18;
/// The key of a file's pair that says how times were made.
pub(crate) const INJECTION_KEY: &str = "rackpool.injection";
/// Times are nanoseconds; numbers are unsigned; a write is true.
const SCHEMA: &str = "message trace {
    required int64 t_ns (INTEGER(64, false));
    required int32 node (INTEGER(16, false));
    required int32 pid (INTEGER(32, false));
    required int32 tid (INTEGER(32, false));
    required int64 addr (INTEGER(64, false));
    required boolean rw;
    required int32 size (INTEGER(16, false));
}";

pub trait Writer {
    /// Takes one more record, which is not before the last one; its time is in the unit of the
    /// header that the writer was made with. Blocks for as long as the file does.
    ///
    /// # Errors
    /// The system's.
    fn write(&mut self, record: &Record) -> Result<(), TraceError>;

    /// Writes what is left and ends the file. Without it the file is not whole.
    ///
    /// # Errors
    /// The system's.
    fn finish(self: Box<Self>) -> Result<(), TraceError>;
}

/// What a file becomes; its columns are `t_ns`, `node`, `pid`, `tid`, `addr`, `rw`, `size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    Parquet,
    /// Lines with commas.
    Csv,
    /// The same, compressed by gzip.
    CsvGz,
}

impl FileType {
    /// From the end of a file's name. A pipe or device has none: it gets CSV, as `-` does.
    ///
    /// # Errors
    /// The ends that there are, if it is another one.
    pub fn of(path: &Path) -> Result<FileType, String> {
        let name = path.to_string_lossy().to_ascii_lowercase();
        let ends = [
            (".parquet", FileType::Parquet),
            (".csv", FileType::Csv),
            (".csv.gz", FileType::CsvGz),
        ];
        if let Some((_, found)) = ends.iter().find(|(end, _)| name.ends_with(end)) {
            return Ok(*found);
        }
        let is_file = || path.metadata().map_or(true, |meta| meta.is_file() || meta.is_dir());
        // Also /dev/stdout where that goes into a file.
        if name == "-" || name.starts_with("/dev/") || !is_file() {
            return Ok(FileType::Csv);
        }
        let names = ends.map(|(end, _)| end).join(", ");
        Err(format!("{}: a trace's name ends in one of {names}", path.display()))
    }
}

/// Makes a file of the records of a stream, of the type that its name says. A file that is there is
/// replaced.
///
/// # Errors
/// The system's, or an end of the name that is none.
pub fn create(path: &Path, header: &Header) -> Result<Box<dyn Writer>, TraceError> {
    let name = path.display().to_string();
    let file_type = FileType::of(path).map_err(|what| Cause::Malformed(what).at(&name, 0))?;
    let file = File::create(path).map_err(|error| Cause::Io(error).at(&name, 0))?;
    writer(name, Box::new(file), file_type, header)
}

/// Writes records to anything; `name` is for messages.
///
/// # Errors
/// The system's.
pub fn writer(
    name: String,
    to: Box<dyn Write + Send>,
    file_type: FileType,
    header: &Header,
) -> Result<Box<dyn Writer>, TraceError> {
    let to = match file_type {
        FileType::Parquet => return Ok(Box::new(ParquetWriter::new(name, to, header)?)),
        FileType::Csv => Text::Plain(BufWriter::new(to)),
        FileType::CsvGz => {
            Text::Gzip(Box::new(GzEncoder::new(BufWriter::new(to), GzLevel::default())))
        }
    };
    Ok(Box::new(CsvWriter::new(name, to, header)?))
}

enum Text {
    Plain(BufWriter<Box<dyn Write + Send>>),
    Gzip(Box<GzEncoder<BufWriter<Box<dyn Write + Send>>>>),
}

impl Text {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Text::Plain(to) => to.write_all(bytes),
            Text::Gzip(to) => to.write_all(bytes),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Text::Plain(mut to) => to.flush(),
            Text::Gzip(to) => to.finish()?.flush(),
        }
    }
}

struct CsvWriter {
    name: String,
    unit: Unit,
    to: Text,
    line: Vec<u8>,
    records: u64,
}

impl CsvWriter {
    fn new(name: String, mut to: Text, header: &Header) -> Result<CsvWriter, TraceError> {
        let mut head = String::new();
        if let Some(injection) = header.injection {
            head = format!("{}{injection}\n", super::read::INJECTION_MARK);
        }
        head += &COLUMNS.map(|(name, _)| name).join(",");
        head.push('\n');
        let written = to.write_all(head.as_bytes());
        written.map_err(|error| Cause::Io(error).at(&name, 0))?;
        Ok(CsvWriter { name, unit: header.unit, to, line: Vec::new(), records: 0 })
    }
}

impl Writer for CsvWriter {
    fn write(&mut self, record: &Record) -> Result<(), TraceError> {
        self.records += 1;
        let Record { at, node, pid, tid, addr, size, write } = *record;
        let (at, rw) = (self.unit.to_ns(at), if write { 'W' } else { 'R' });
        self.line.clear();
        let written = writeln!(self.line, "{at},{node},{pid},{tid},{addr:#x},{rw},{size}");
        let written = written.and_then(|()| self.to.write_all(&self.line));
        written.map_err(|error| Cause::Io(error).at(&self.name, self.records))
    }

    fn finish(self: Box<Self>) -> Result<(), TraceError> {
        let (to, name, records) = (self.to, self.name, self.records);
        to.finish().map_err(|error| Cause::Io(error).at(&name, records))
    }
}

/// Writes Parquet to a file or into memory.
pub struct ParquetWriter<W: Write + Send> {
    name: String,
    unit: Unit,
    file: SerializedFileWriter<W>,
    group: Vec<Record>,
    records: u64,
}

impl<W: Write + Send> ParquetWriter<W> {
    /// Begins a file; `name` is for messages.
    ///
    /// # Errors
    /// The system's.
    pub fn new(name: String, to: W, header: &Header) -> Result<ParquetWriter<W>, TraceError> {
        let pairs = header.injection.map(|injection: TraceInjection| {
            vec![KeyValue::new(INJECTION_KEY.to_owned(), injection.to_string())]
        });
        let path = |column: &str| ColumnPath::from(column);
        let mut properties = WriterProperties::builder()
            .set_created_by("rackpool".to_owned())
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_statistics_enabled(EnabledStatistics::None)
            .set_key_value_metadata(pairs);
        for column in ["t_ns", "addr"] {
            properties = properties
                .set_column_dictionary_enabled(path(column), false)
                .set_column_encoding(path(column), Encoding::DELTA_BINARY_PACKED);
        }
        let schema = Arc::new(parse_message_type(SCHEMA).expect("the schema is well formed"));
        let file = SerializedFileWriter::new(to, schema, Arc::new(properties.build()))
            .map_err(|error| failed(error).at(&name, 0))?;
        let group = Vec::with_capacity(GROUP_ROWS);
        Ok(ParquetWriter { name, unit: header.unit, file, group, records: 0 })
    }

    /// Ends the file and gives back what it was written to.
    ///
    /// # Errors
    /// The system's.
    pub fn into_inner(mut self) -> Result<W, TraceError> {
        self.flush()?;
        let (name, records) = (self.name, self.records);
        self.file.into_inner().map_err(|error| failed(error).at(&name, records))
    }

    fn flush(&mut self) -> Result<(), TraceError> {
        let written = self.write_group();
        self.group.clear();
        written.map_err(|error| failed(error).at(&self.name, self.records))
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        if self.group.is_empty() {
            return Ok(());
        }
        let (rows, unit) = (&self.group, self.unit);
        let mut group = self.file.next_row_group()?;
        for (_, which) in COLUMNS {
            match which {
                Column::At => column::<Int64Type, _>(&mut group, rows, |row| {
                    unit.to_ns(row.at).cast_signed()
                })?,
                Column::Addr => {
                    column::<Int64Type, _>(&mut group, rows, |row| row.addr.cast_signed())?;
                }
                Column::Node => column::<Int32Type, _>(&mut group, rows, |row| row.node.into())?,
                Column::Size => column::<Int32Type, _>(&mut group, rows, |row| row.size.into())?,
                Column::Pid => {
                    column::<Int32Type, _>(&mut group, rows, |row| row.pid.cast_signed())?;
                }
                Column::Tid => {
                    column::<Int32Type, _>(&mut group, rows, |row| row.tid.cast_signed())?;
                }
                Column::Rw => column::<BoolType, _>(&mut group, rows, |row| row.write)?,
            }
        }
        group.close().map(drop)
    }
}

/// Writes the next column of a group.
fn column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    rows: &[Record],
    value: impl Fn(&Record) -> T::T,
) -> Result<(), ParquetError> {
    let mut writer = group.next_column()?.expect("the schema has these columns");
    let mut values = Vec::with_capacity(4096);
    for some in rows.chunks(4096) {
        values.clear();
        values.extend(some.iter().map(&value));
        writer.typed::<T>().write_batch(&values, None, None)?;
    }
    writer.close()
}

impl<W: Write + Send> Writer for ParquetWriter<W> {
    fn write(&mut self, record: &Record) -> Result<(), TraceError> {
        self.records += 1;
        self.group.push(*record);
        if self.group.len() == GROUP_ROWS { self.flush() } else { Ok(()) }
    }

    fn finish(self: Box<Self>) -> Result<(), TraceError> {
        self.into_inner().map(drop)
    }
}

fn failed(error: ParquetError) -> Cause {
    match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => Cause::Io(*error),
            Err(error) => Cause::Io(std::io::Error::other(error)),
        },
        other => Cause::Io(std::io::Error::other(other)),
    }
}
