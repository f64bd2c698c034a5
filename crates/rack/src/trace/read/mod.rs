//! Readers: one module for each family of formats.

mod binary;
mod csv;
mod guess;
mod lackey;
mod parquet;
mod text;

pub(crate) use csv::{COLUMNS, Column, INJECTION_MARK, fields};

use super::error::{Cause, TraceError};
use super::input::Input;
use super::pace::Pace;
use super::{Format, Header, Options, Reader, Record, Unit};
use ::parquet::file::reader::ChunkReader;
use bytes::Bytes;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

/// DRackSim's clock, if none is said (05-racksim §1).
const DRACKSIM_HZ: u64 = 3_600_000_000;
/// The clock of DDR4-2400 (05-racksim §1), for DRAMsim3 and DRAMSys.
const DRAM_HZ: u64 = 1_200_000_000;

/// Opens a trace. Text and binary formats may be compressed by gzip, xz or zstd, and come out of a
/// pipe.
///
/// # Errors
/// The system's, or what is wrong with the file at its head.
pub fn open(path: &Path, options: &Options) -> Result<Box<dyn Reader + Send>, TraceError> {
    let name = path.display().to_string();
    let opened = File::open(path).and_then(|file| {
        let is_file = file.metadata()?.is_file();
        Ok((file, is_file))
    });
    let (mut file, is_file) = opened.map_err(|error| Cause::Io(error).at(&name, 0))?;
    // A pipe gives its bytes once, and Parquet begins at its end: only in a file it is looked for.
    if is_file && is_parquet(&mut file, options).map_err(|cause| cause.at(&name, 0))? {
        return parquet(&name, file, options);
    }
    read_stream(&name, Box::new(file), options)
}

/// Whether it is said or seen; the file is at its begin afterwards.
fn is_parquet(file: &mut File, options: &Options) -> Result<bool, Cause> {
    if let Some(format) = options.format {
        return Ok(format == Format::Parquet);
    }
    let mut head = Vec::new();
    let read = (&mut *file).take(4).read_to_end(&mut head).and_then(|_| file.rewind());
    read.map_err(Cause::Io)?;
    Ok(head == *b"PAR1")
}

/// Reads a trace that is in memory.
///
/// # Errors
/// What is wrong with it at its head.
pub fn read_bytes(
    name: &str,
    bytes: Vec<u8>,
    options: &Options,
) -> Result<Box<dyn Reader + Send>, TraceError> {
    if options.format == Some(Format::Parquet)
        || options.format.is_none() && bytes.starts_with(b"PAR1")
    {
        return parquet(name, Bytes::from(bytes), options);
    }
    read_stream(name, Box::new(std::io::Cursor::new(bytes)), options)
}

/// Reads a trace as it comes, from a pipe for example; any format but Parquet, which begins at its
/// end. `name` is for messages.
///
/// # Errors
/// What is wrong with it at its head.
pub fn read_stream(
    name: &str,
    source: Box<dyn Read + Send>,
    options: &Options,
) -> Result<Box<dyn Reader + Send>, TraceError> {
    stream(name, source, options).map_err(|cause| cause.at(name, 0))
}

fn stream(
    name: &str,
    source: Box<dyn Read + Send>,
    options: &Options,
) -> Result<Box<dyn Reader + Send>, Cause> {
    let mut input = Input::new(source)?;
    let format = match options.format {
        Some(format) => format,
        None => guess::format(name, input.peek()?).ok_or(Cause::Unknown)?,
    };
    if !matches!(format, Format::DRackSim | Format::ChampSim | Format::Parquet) {
        input.skip_mark()?;
    }
    let cycles = |hz: u64| Header {
        name: name.to_owned(),
        unit: Unit::Cycles { hz: options.hz.unwrap_or(hz).max(1) },
        injection: None,
    };
    let pace = |instructions| Pace::new(options.injection, instructions);
    Ok(match format {
        Format::DRackSim => {
            let parser = binary::DRackSim { node: options.node };
            Box::new(Stream::new(input, cycles(DRACKSIM_HZ), parser))
        }
        Format::Dramsim3 => {
            let parser = text::Dramsim3 { base: base(options) };
            Box::new(Stream::new(input, cycles(DRAM_HZ), parser))
        }
        Format::Stl | Format::Rstl => {
            let since = (format == Format::Rstl).then_some(0);
            let parser = text::Stl { base: base(options), since };
            Box::new(Stream::new(input, cycles(DRAM_HZ), parser))
        }
        Format::Ramulator => {
            let pace = pace(false)?;
            let header = pace.header(name);
            Box::new(Stream::new(input, header, text::Ramulator { base: base(options), pace }))
        }
        Format::Ramulator2 => {
            let pace = pace(false)?;
            let header = pace.header(name);
            Box::new(Stream::new(input, header, text::Ramulator2 { base: base(options), pace }))
        }
        Format::SimpleO3 => {
            let pace = pace(true)?;
            let header = pace.header(name);
            Box::new(Stream::new(input, header, text::SimpleO3 { base: base(options), pace }))
        }
        Format::Lackey => {
            let pace = pace(true)?;
            let header = pace.header(name);
            Box::new(Stream::new(input, header, lackey::Lackey::new(base(options), pace)))
        }
        Format::ChampSim => {
            let pace = pace(true)?;
            let header = pace.header(name);
            Box::new(Stream::new(input, header, binary::ChampSim { base: base(options), pace }))
        }
        Format::Csv => {
            let (parser, header) = csv::Csv::new(name, &mut input, options)?;
            let lines = parser.head_lines;
            Box::new(Stream::after_head(input, header, parser, lines))
        }
        Format::Parquet => {
            let what = "Parquet begins at its end: it is read from a file, uncompressed";
            return Err(Cause::Malformed(what.to_owned()));
        }
    })
}

fn parquet<R: ChunkReader + 'static>(
    name: &str,
    source: R,
    options: &Options,
) -> Result<Box<dyn Reader + Send>, TraceError> {
    let reader = parquet::Parquet::new(name, source, options);
    Ok(Box::new(reader.map_err(|cause| cause.at(name, 0))?))
}

/// What records have in common if their format does not say it.
fn base(options: &Options) -> Record {
    Record { node: options.node, pid: options.pid, ..Record::default() }
}

/// How records are made of one line or one piece of bytes.
trait Parse {
    /// Bytes of a piece; `None` for lines.
    const BYTES: Option<usize>;
    /// Lines that are none of its own come from another program, and are left out.
    const MIXED: bool = false;

    /// Puts the piece's records, of which there may be none, into `out`.
    fn parse(&mut self, piece: &[u8], out: &mut Found) -> Result<(), Cause>;
}

/// Records of one piece. An instruction of ChampSim has the most: four loads and two stores.
#[derive(Debug, Default)]
struct Found {
    records: [Record; 6],
    count: usize,
    taken: usize,
}

impl Found {
    fn push(&mut self, record: Record) {
        self.records[self.count] = record;
        self.count += 1;
    }

    #[inline]
    fn pop(&mut self) -> Option<Record> {
        if self.taken == self.count {
            (self.taken, self.count) = (0, 0);
            return None;
        }
        self.taken += 1;
        Some(self.records[self.taken - 1])
    }
}

/// A reader of any format that goes from front to back.
struct Stream<P> {
    input: Input,
    header: Header,
    parser: P,
    found: Found,
    /// Of the piece that was read last, from 1.
    piece: u64,
    order: Order,
    records: u64,
    other_lines: u64,
    /// The first of them, with what is wrong with it.
    first_other: Option<(u64, Cause)>,
    ended: bool,
}

impl<P: Parse> Stream<P> {
    fn new(input: Input, header: Header, parser: P) -> Stream<P> {
        Stream {
            input,
            header,
            parser,
            found: Found::default(),
            piece: 0,
            order: Order::default(),
            records: 0,
            other_lines: 0,
            first_other: None,
            ended: false,
        }
    }

    /// So many lines were read already.
    fn after_head(input: Input, header: Header, parser: P, lines: u64) -> Stream<P> {
        Stream { piece: lines, ..Stream::new(input, header, parser) }
    }

    fn advance(&mut self) -> Result<Option<Record>, Cause> {
        loop {
            if let Some(record) = self.found.pop() {
                self.order.check(record.at)?;
                self.records += 1;
                return Ok(Some(record));
            }
            if self.ended {
                return Ok(None);
            }
            self.piece += 1;
            let read = match P::BYTES {
                Some(bytes) => self.input.exact(bytes),
                None => self.input.line(),
            };
            let parsed = match read {
                Ok(Some(piece)) => self.parser.parse(piece, &mut self.found),
                Ok(None) => {
                    self.ended = true;
                    self.end()
                }
                Err(cause @ Cause::Oversized { .. }) if P::MIXED => {
                    self.input.skip_line()?;
                    self.leave_out(cause);
                    Ok(())
                }
                Err(cause) => return Err(cause),
            };
            match parsed {
                Ok(()) => {}
                Err(cause) if self.ended => return Err(cause),
                Err(cause @ Cause::Malformed(_)) if P::MIXED => self.leave_out(cause),
                Err(cause @ Cause::Truncated(_)) if P::MIXED && !self.input.is_cut() => {
                    self.leave_out(cause);
                }
                Err(cause) => return Err(self.input.in_line(cause)),
            }
        }
    }

    /// A line of another program; the first one is what is wrong if all are such.
    fn leave_out(&mut self, cause: Cause) {
        self.other_lines += 1;
        self.first_other.get_or_insert((self.piece, cause));
    }

    fn end(&mut self) -> Result<(), Cause> {
        match self.first_other.take() {
            Some((piece, cause)) if self.records == 0 => {
                self.piece = piece;
                Err(cause)
            }
            _ => Ok(()),
        }
    }
}

impl<P: Parse> Reader for Stream<P> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn next(&mut self) -> Result<Option<Record>, TraceError> {
        let next = self.advance();
        next.map_err(|cause| {
            self.ended = true;
            self.found = Found::default();
            cause.at(&self.header.name, self.piece)
        })
    }

    fn other_lines(&self) -> u64 {
        self.other_lines
    }
}

/// That times do not go backwards.
#[derive(Debug, Default)]
struct Order {
    last: u64,
}

impl Order {
    #[inline]
    fn check(&mut self, at: u64) -> Result<(), Cause> {
        if at < self.last {
            return Err(Cause::Unsorted { at, before: self.last });
        }
        self.last = at;
        Ok(())
    }
}

/// A number of a file that is narrower here.
fn narrow<T: TryFrom<u64>>(what: &'static str, value: u64, max: u64) -> Result<T, Cause> {
    T::try_from(value).map_err(|_| Cause::Oversized { what, value, max })
}
