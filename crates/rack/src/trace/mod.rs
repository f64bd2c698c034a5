//! Traces of memory accesses: one record, readers of the formats that people have, a filter of
//! caches, kernels that make traces, and the trace of virtual machines for studies of packing.
//!
//! Everything is a stream: [`Reader::next`] gives one [`Record`] after the other in the order of
//! their times, and memory stays bounded however long a trace is. Nothing that a file says is
//! trusted; what is wrong with it is a [`TraceError`] with file, record and [`Cause`].

mod error;
pub mod filter;
mod input;
pub mod kernel;
mod pace;
pub mod packing;
mod read;
mod stat;
mod write;

pub use error::{Cause, TraceError};
pub use pace::{TraceInjection, parse_hz};
pub use read::{open, read_bytes, read_stream};
pub use stat::{Stat, stat};
pub use write::{FileType, ParquetWriter, Writer, create, writer};

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Record {
    /// When, in the [`Header`]'s unit; never less than in the record before. 0 in all records of a
    /// trace that is replayed in a closed loop.
    pub at: u64,
    /// Which node of the rack.
    pub node: u16,
    /// Which process of the node.
    pub pid: u32,
    /// Which thread of the process.
    pub tid: u32,
    /// The first byte's virtual address.
    pub addr: u64,
    /// How many bytes.
    pub size: u16,
    /// A store; else a load.
    pub write: bool,
}

/// What [`Record::at`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Ns,
    Cycles {
        /// The clock's frequency, not 0.
        hz: u64,
    },
}

impl Unit {
    /// A time in nanoseconds, rounded down; the greatest one if it is beyond 584 years.
    pub fn to_ns(self, at: u64) -> u64 {
        match self {
            Unit::Ns => at,
            Unit::Cycles { hz } => scale(at, 1_000_000_000, hz),
        }
    }

    /// A time in cycles of a clock, rounded down; the greatest one if it is too great.
    pub fn to_cycles(self, at: u64, hz: u64) -> u64 {
        match self {
            Unit::Cycles { hz: own } if own == hz => at,
            Unit::Cycles { hz: own } => scale(at, hz, own),
            Unit::Ns => scale(at, hz, 1_000_000_000),
        }
    }
}

/// `value × by ÷ of`.
fn scale(value: u64, by: u64, of: u64) -> u64 {
    match value.checked_mul(by) {
        Some(product) => product / of,
        None => {
            (u128::from(value) * u128::from(by) / u128::from(of)).try_into().unwrap_or(u64::MAX)
        }
    }
}

/// What holds for all records of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where the records come from, for messages.
    pub name: String,
    pub unit: Unit,
    /// How the times were made, if the trace has none of its own.
    pub injection: Option<TraceInjection>,
}

/// A stream of records in the order of their times.
pub trait Reader {
    /// What holds for all records.
    fn header(&self) -> &Header;

    /// The next record; `None` at the end. Blocks for as long as the source does.
    ///
    /// # Errors
    /// What is wrong with the trace. The stream is at its end then.
    fn next(&mut self) -> Result<Option<Record>, TraceError>;

    /// Lines of other programs that were left out until now ([`Format::Lackey`]).
    fn other_lines(&self) -> u64 {
        0
    }
}

impl<R: Reader + ?Sized> Reader for Box<R> {
    fn header(&self) -> &Header {
        (**self).header()
    }

    fn next(&mut self) -> Result<Option<Record>, TraceError> {
        (**self).next()
    }

    fn other_lines(&self) -> u64 {
        (**self).other_lines()
    }
}

/// A format that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// DRackSim's records of 32 bytes: process, thread, address, kind, cycle.
    DRackSim,
    /// ramulator's `ADDR R|W`, the address in hex; no times.
    Ramulator,
    /// ramulator2's `LD|ST ADDR` and `R|W CHANNEL,RANK,..,ROW,COLUMN`; no times.
    Ramulator2,
    /// The processors of ramulator and ramulator2 (SimpleO3): `BUBBLES LOAD [STORE]`; counts
    /// instructions.
    SimpleO3,
    /// DRAMsim3's `ADDR READ|WRITE CYCLE`; each word but WRITE, write, P_MEM_WR and BOFF reads.
    Dramsim3,
    /// DRAMSys' `CYCLE: [(BYTES)] read|write ADDR [DATA]`.
    Stl,
    /// The same with the cycles since the record before.
    Rstl,
    /// The text of Valgrind's lackey, also between lines of the program; counts instructions.
    Lackey,
    /// ChampSim's instructions of 64 bytes; counts instructions.
    ChampSim,
    /// Lines with commas under a line of names.
    Csv,
    /// Parquet with the columns of [`create`].
    Parquet,
}

impl Format {
    /// All, in the order of the help.
    pub const ALL: [Format; 11] = [
        Format::DRackSim,
        Format::Ramulator,
        Format::Ramulator2,
        Format::SimpleO3,
        Format::Dramsim3,
        Format::Stl,
        Format::Rstl,
        Format::Lackey,
        Format::ChampSim,
        Format::Csv,
        Format::Parquet,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::DRackSim => "dracksim",
            Format::Ramulator => "ramulator",
            Format::Ramulator2 => "ramulator2",
            Format::SimpleO3 => "simpleo3",
            Format::Dramsim3 => "dramsim3",
            Format::Stl => "stl",
            Format::Rstl => "rstl",
            Format::Lackey => "lackey",
            Format::ChampSim => "champsim",
            Format::Csv => "csv",
            Format::Parquet => "parquet",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Format, String> {
        let names = || Format::ALL.map(Format::name).join(", ");
        let found = Format::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| format!("`{name}` is no format of traces; there are {}", names()))
    }
}

/// What a file does not say by itself.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format; guessed from name and content if it is not said.
    pub format: Option<Format>,
    /// Node of records that name none.
    pub node: u16,
    /// Process of records that name none.
    pub pid: u32,
    /// Frequency of the clock that cycles are of: 3.6 GHz for DRackSim, 1.2 GHz for DRAMsim3 and
    /// DRAMSys (DDR4-2400) if it is not said.
    pub hz: Option<u64>,
    /// How records without times are injected. Such a trace is refused without it.
    pub injection: Option<TraceInjection>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_and_nanoseconds_become_each_other_without_overflow() {
        let clock = Unit::Cycles { hz: 3_600_000_000 };
        assert_eq!(clock.to_ns(3_600_000_000), 1_000_000_000);
        assert_eq!(Unit::Ns.to_cycles(5, 3_600_000_000), 18);
        assert_eq!(clock.to_ns(u64::MAX), 5_124_095_576_030_431_004);
        assert_eq!(Unit::Cycles { hz: 1 }.to_ns(u64::MAX), u64::MAX);
        assert_eq!(clock.to_cycles(7, 3_600_000_000), 7);
    }

    #[test]
    fn formats_are_found_by_their_names() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        assert!("vcd".parse::<Format>().unwrap_err().contains("champsim"));
    }
}
