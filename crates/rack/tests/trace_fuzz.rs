//! Every reader of traces with what files say and worse: traces with bytes changed, cut,
//! repeated and mixed. Nothing panics, records come in the order of their times, and what is wrong
//! is said with file and record.
//!
//! `cargo test --release -p rackpool-rack --test trace_fuzz -- --inputs 10000000` for a long run of
//! each reader; `--seed N` to repeat one, `--reader N` for one of them.

use rackpool_rack::trace::packing::{Packing, Stranding, fixture};
use rackpool_rack::trace::{
    Format, Options, ParquetWriter, Record, TraceInjection, Writer, read_bytes,
};
use rackpool_rack::trace::{Header, Unit};
use std::io::Write;

/// Inputs for each reader in an ordinary run.
const INPUTS: u64 = 20_000;
/// A changed trace may say that it has very many records; no more are read.
const RECORDS_MAX: usize = 20_000;
/// Words that have a meaning somewhere.
const WORDS: &[&[u8]] = &[
    b"\n",
    b"\r\n",
    b",",
    b" ",
    b"0x",
    b"-1",
    b"18446744073709551615",
    b"18446744073709551616",
    b"ffffffffffffffff",
    b"99999",
    b"LD 1\n",
    b"\xef\xbb\xbf",
    b"\"",
    b"W 0,0,0\n",
    b"7: read 0x40 0xff\n",
    b"hello\n",
    b" M 1,8\n",
    b"I  1,1\n",
    b"t_ns",
    b"addr",
    b"# injection=closed:0\n",
    b"NULL",
    b"-7157",
    b"nan",
    b"PAR1",
    b"\0\0\0\0\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x08",
];

/// xorshift64*.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound.max(1)
    }
}

/// What is fuzzed: a format, compressed or not, or the trace of virtual machines.
#[derive(Clone, Copy, Debug)]
enum Subject {
    Trace(Format),
    Packed(&'static str),
    Vms,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--list") {
        return;
    }
    let number = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        Some(words[at + 1].parse::<u64>().expect("a number"))
    };
    let (inputs, seed) = (number("--inputs").unwrap_or(INPUTS), number("--seed").unwrap_or(1));
    // The library that decodes Parquet panics at times, which its reader turns into an error.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.location().is_some_and(|at| at.file().contains("/parquet-")) {
            print(info);
        }
    }));
    let formats = Format::ALL.map(Subject::Trace);
    let others = [Subject::Packed("gzip"), Subject::Packed("zstd"), Subject::Packed("xz")];
    let subjects = formats.into_iter().chain(others).chain([Subject::Vms]);
    for (place, subject) in subjects.enumerate() {
        if number("--reader").is_some_and(|only| only != place as u64) {
            continue;
        }
        let (records, errors) = fuzz(subject, inputs, seed);
        println!(
            "fuzz: {inputs} inputs to {subject:?} (seed {seed}): {records} records, \
             {errors} errors, no panic"
        );
        assert!(errors > 0 && records > 0);
    }
}

fn fuzz(subject: Subject, inputs: u64, seed: u64) -> (u64, u64) {
    let mut rng = Rng(seed | 1);
    let seeds: Vec<Vec<u8>> = (0..64).map(|_| valid(subject, &mut rng)).collect();
    for valid in &seeds {
        assert_eq!(read(subject, valid, 0).1, 0, "{subject:?} refuses a trace that is right");
    }
    let (mut records, mut errors) = (0, 0);
    for _ in 0..inputs {
        let input = change(&mut rng, &seeds);
        let (read, failed) = read(subject, &input, rng.next());
        records += read;
        errors += failed;
    }
    (records, errors)
}

/// Reads to the end or the first error: how many records, and whether there was an error.
fn read(subject: Subject, bytes: &[u8], options: u64) -> (u64, u64) {
    let injection = match (options % 8, subject) {
        (7, _) => None,
        (6, _) => Some(TraceInjection::Closed { window: 4 }),
        (5, _) => Some(TraceInjection::Instruction { ps: options }),
        _ => Some(TraceInjection::Gap { ps: options % 5000 }),
    };
    let format = match subject {
        Subject::Trace(_) if options % 16 == 8 => None,
        Subject::Trace(format) => Some(format),
        Subject::Packed(_) => Some(Format::Csv),
        Subject::Vms => return read_vms(bytes),
    };
    let options = Options { format, injection, ..Options::default() };
    let mut reader = match read_bytes("fuzz", bytes.to_vec(), &options) {
        Ok(reader) => reader,
        Err(error) => {
            assert!(error.file == "fuzz" && !error.to_string().is_empty());
            return (0, 1);
        }
    };
    let (mut records, mut last) = (0, 0);
    while records < RECORDS_MAX as u64 {
        match reader.next() {
            Ok(Some(Record { at, .. })) => {
                assert!(at >= last, "{at} comes after {last}");
                (records, last) = (records + 1, at);
            }
            Ok(None) => return (records, 0),
            Err(error) => {
                assert!(error.file == "fuzz" && error.record > 0, "{error}");
                assert!(matches!(reader.next(), Ok(None)), "something comes after an error");
                return (records, 1);
            }
        }
    }
    (records, 0)
}

fn read_vms(bytes: &[u8]) -> (u64, u64) {
    // Both tables in one input.
    let cut = bytes.iter().position(|byte| *byte == b'|').unwrap_or(bytes.len() / 2);
    let types = bytes[(cut + 1).min(bytes.len())..].to_vec();
    let Ok(mut packing) = Packing::read_bytes(bytes[..cut].to_vec(), types) else {
        return (0, 1);
    };
    let mut vms = 0;
    loop {
        match packing.next_vm() {
            Ok(Some(_)) => vms += 1,
            Ok(None) => return (vms, 0),
            Err(_) => return (vms, 1),
        }
    }
}

/// A trace that is right.
fn valid(subject: Subject, rng: &mut Rng) -> Vec<u8> {
    let records: Vec<Record> = (0..1 + rng.below(40))
        .scan(0, |at, _| {
            *at += rng.below(100) as u64;
            Some(Record {
                at: *at,
                node: rng.below(3) as u16,
                pid: rng.below(3) as u32,
                tid: rng.below(8) as u32,
                addr: rng.next() >> 20,
                size: rng.below(65) as u16,
                write: rng.below(3) == 0,
            })
        })
        .collect();
    match subject {
        Subject::Trace(format) => trace(format, &records),
        Subject::Packed(how) => pack(how, &trace(Format::Csv, &records)),
        Subject::Vms => {
            let made = fixture(Stranding::Much, 1, 0.2, rng.next());
            format!("{}|{}", made.vm_csv(), made.type_csv()).into_bytes()
        }
    }
}

fn trace(format: Format, records: &[Record]) -> Vec<u8> {
    let mut out = Vec::new();
    if format == Format::Csv {
        out.extend_from_slice(b"t_ns,node,pid,tid,addr,rw,size\n");
    }
    if format == Format::Parquet {
        let header = Header { name: String::new(), unit: Unit::Ns, injection: None };
        let mut writer = ParquetWriter::new("fuzz".into(), Vec::new(), &header).unwrap();
        records.iter().for_each(|record| writer.write(record).unwrap());
        return writer.into_inner().unwrap();
    }
    for record in records {
        let Record { at, node, pid, tid, addr, size, write } = *record;
        let kind = |read: &'static str, written| if write { written } else { read };
        match format {
            Format::DRackSim => {
                out.extend_from_slice(&pid.to_le_bytes());
                out.extend_from_slice(&tid.to_le_bytes());
                out.extend_from_slice(&addr.to_le_bytes());
                out.extend_from_slice(&[kind("R", "W").as_bytes()[0], 0, 0, 0, 0, 0, 0, 0]);
                out.extend_from_slice(&at.to_le_bytes());
            }
            Format::ChampSim => {
                let store = if write { addr } else { 0 };
                out.extend_from_slice(&(0x40_0000 + at).to_le_bytes());
                out.extend_from_slice(&[0; 8]);
                for word in [store, 0, addr, 0, 0, 0] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
            }
            Format::Ramulator => writeln!(out, "{addr:x} {}", kind("R", "W")).unwrap(),
            Format::Ramulator2 if tid % 2 == 1 => {
                let row = addr >> 40;
                writeln!(out, "{} 0,{node},1,2,{row},{tid}", kind("R", "W")).unwrap();
            }
            Format::Stl | Format::Rstl => {
                writeln!(out, "{at}: ({size}) {} {addr:#x}", kind("read", "write")).unwrap();
            }
            Format::Ramulator2 => writeln!(out, "{} {addr:#x}", kind("LD", "ST")).unwrap(),
            Format::SimpleO3 if write => writeln!(out, "{tid} {addr} {}", addr / 2).unwrap(),
            Format::SimpleO3 => writeln!(out, "{tid} {addr}").unwrap(),
            Format::Dramsim3 => {
                writeln!(out, "{addr:#x} {} {at}", kind("READ", "WRITE")).unwrap();
            }
            Format::Lackey => {
                writeln!(out, "I  {:x},3\n {} {addr:x},{size}", at, kind("L", "M")).unwrap();
            }
            Format::Csv => {
                let rw = kind("R", "W");
                writeln!(out, "{at},{node},{pid},{tid},{addr:#x},{rw},{size}").unwrap();
            }
            Format::Parquet => unreachable!("written above"),
        }
    }
    out
}

fn pack(how: &str, bytes: &[u8]) -> Vec<u8> {
    match how {
        "gzip" => {
            let level = flate2::Compression::fast();
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        "zstd" => zstd::encode_all(bytes, 1).unwrap(),
        _ => {
            let mut options = lzma_rust2::XzOptions::with_preset(0);
            options.lzma_options.dict_size = 1 << 16;
            let mut encoder = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
    }
}

/// Makes an input of the seeds.
fn change(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = seeds[rng.below(seeds.len())].clone();
    for _ in 0..1 + rng.below(5) {
        let at = rng.below(input.len() + 1);
        match rng.below(8) {
            0 if at < input.len() => input[at] ^= 1 << rng.below(8),
            1 if at < input.len() => input[at] = rng.next() as u8,
            2 => {
                let end = (at + rng.below(20)).min(input.len());
                input.drain(at..end);
            }
            3 => drop(input.splice(at..at, WORDS[rng.below(WORDS.len())].iter().copied())),
            4 => {
                let word = WORDS[rng.below(WORDS.len())];
                let end = (at + word.len()).min(input.len());
                drop(input.splice(at..end, word.iter().copied()));
            }
            5 => {
                let other = &seeds[rng.below(seeds.len())];
                let from = rng.below(other.len());
                let until = (from + rng.below(100)).min(other.len());
                drop(input.splice(at..at, other[from..until].iter().copied()));
            }
            6 => {
                let end = (at + rng.below(60)).min(input.len());
                input.extend_from_within(at..end);
            }
            _ => input.truncate(at),
        }
    }
    input
}
