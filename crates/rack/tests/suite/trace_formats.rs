//! Every format as it should be, and every way to be wrong: truncated, unsorted, oversized,
//! wrong-endian. Errors name file, record and cause.

use proptest::prelude::*;
use rackpool_rack::trace::{
    Cause, Format, Header, Options, TraceInjection, Unit, open, read_bytes,
};
use rackpool_rack::trace::{FileType, ParquetWriter, Reader, Record, Writer, create, stat};
use std::io::Write;

fn options(format: Format) -> Options {
    let injection = Some(TraceInjection::Gap { ps: 10_000 });
    Options { format: Some(format), node: 3, pid: 7, injection, ..Options::default() }
}

fn all(mut reader: Box<dyn Reader + Send>) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    while let Some(record) = reader.next().map_err(|error| error.to_string())? {
        records.push(record);
    }
    Ok(records)
}

fn read(format: Format, bytes: &[u8]) -> Result<Vec<Record>, String> {
    let reader = read_bytes("a.trace", bytes.to_vec(), &options(format));
    all(reader.map_err(|error| error.to_string())?)
}

fn short(records: &[Record]) -> Vec<(u64, u64, u16, bool)> {
    records.iter().map(|record| (record.at, record.addr, record.size, record.write)).collect()
}

/// DRackSim's structure, in either order of bytes.
fn dracksim(pid: u32, tid: u32, addr: u64, kind: u8, cycle: u64, big: bool) -> Vec<u8> {
    let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
    let long = |value: u64| if big { value.to_be_bytes() } else { value.to_le_bytes() };
    let mut bytes = [word(pid), word(tid)].concat();
    bytes.extend(long(addr));
    bytes.extend([kind, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa]);
    bytes.extend(long(cycle));
    bytes
}

fn champsim(ip: u64, stores: [u64; 2], loads: [u64; 4], big: bool) -> Vec<u8> {
    let long = |value: u64| if big { value.to_be_bytes() } else { value.to_le_bytes() };
    let mut bytes = long(ip).to_vec();
    bytes.extend([1, 0, 2, 0, 3, 4, 0, 0]);
    stores.into_iter().chain(loads).for_each(|addr| bytes.extend(long(addr)));
    bytes
}

#[test]
fn dracksims_records_are_its_structure() {
    let bytes = [
        dracksim(1, 2, 0x7fff_0000_1040, b'R', 100, false),
        dracksim(1, 3, 0x40, b'W', 100, false),
        dracksim(1, 3, 0x80, b'F', 136, false),
    ];
    let reader = read_bytes("a", bytes.concat(), &options(Format::DRackSim)).unwrap();
    assert_eq!(reader.header().unit, Unit::Cycles { hz: 3_600_000_000 });
    let records = all(reader).unwrap();
    let expected = [(100, 0x7fff_0000_1040, 64, false), (100, 0x40, 64, true)];
    assert_eq!(short(&records)[..2], expected);
    assert_eq!((records[2].at, records[2].write), (136, false));
    assert_eq!((records[0].node, records[0].pid, records[0].tid), (3, 1, 2));
}

#[test]
fn what_is_wrong_with_dracksims_records_is_named() {
    let good = dracksim(1, 2, 0x1040, b'R', 100, false);
    for (second, expected) in [
        (good[..31].to_vec(), "a.trace, record 2: truncated: 31 bytes of a record of 32"),
        (
            dracksim(1, 2, 0, b'R', 99, false),
            "a.trace, record 2: unsorted: time 99 comes after 100",
        ),
        (dracksim(1, 2, 0x1040, b'R', 101, true), "a.trace, record 2: wrong-endian"),
        (dracksim(0, 0, 0x7fff_1234_5640, b'W', 101, true), "a.trace, record 2: wrong-endian"),
        (dracksim(1, 2, 0, b'R', 1 << 60, false), "a.trace, record 2: oversized: the cycle is"),
        (dracksim(1 << 31, 2, 0, b'R', 101, false), "a.trace, record 2: oversized: the process is"),
        (dracksim(1, 2, 0, b'x', 101, false), "a.trace, record 2: malformed: the kind is byte 120"),
    ] {
        let error = read(Format::DRackSim, &[good.clone(), second].concat()).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn champsims_instructions_load_and_then_store() {
    let bytes = [
        champsim(0x40_0000, [0x5000, 0], [0x1000, 0, 0x2000, 0], false),
        champsim(0x40_0004, [0, 0], [0; 4], false),
        champsim(0x40_0008, [0, 0x6000], [0; 4], false),
    ];
    let cpi = Some(TraceInjection::Instruction { ps: 500 });
    let options = Options { injection: cpi, ..options(Format::ChampSim) };
    let records = all(read_bytes("a", bytes.concat(), &options).unwrap()).unwrap();
    let expected =
        [(0, 0x1000, 8, false), (0, 0x2000, 8, false), (0, 0x5000, 8, true), (1, 0x6000, 8, true)];
    assert_eq!(short(&records), expected);
    for (bytes, expected) in [
        (bytes.concat()[..100].to_vec(), "a.trace, record 2: truncated: 36 bytes"),
        (
            champsim(0x40_0001, [0; 2], [0x7fff_1234_5678, 0, 0, 0], true),
            "a.trace, record 1: wrong",
        ),
        (champsim(0x1234_5678_9abc_def0, [0; 2], [0; 4], false), "a.trace, record 1: oversized"),
    ] {
        let error = read(Format::ChampSim, &bytes).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn texts_are_read_line_by_line() {
    let records = read(Format::Ramulator2, b"LD 0x1000\n\nST 64\r\n").unwrap();
    assert_eq!(short(&records), [(0, 0x1000, 64, false), (10, 64, 64, true)]);
    assert_eq!((records[0].node, records[0].pid), (3, 7));
    let records = read(Format::SimpleO3, b"3 4096\n1 0x40 128\n").unwrap();
    let expected = [(0, 4096, 64, false), (10, 0x40, 64, false), (20, 128, 64, true)];
    assert_eq!(short(&records), expected);
    let records = read(Format::Dramsim3, b"0x1000 READ 5\nff WRITE 5\n0x40 P_MEM_WR 9\n").unwrap();
    let expected = [(5, 0x1000, 64, false), (5, 0xff, 64, true), (9, 0x40, 64, true)];
    assert_eq!(short(&records), expected);
    let lackey = b"==9== Lackey\nI  04001000,3\n L 1ffe,8\nI  04001003,2\n M 2000,4\n S 30,2\n";
    let records = read(Format::Lackey, lackey).unwrap();
    let expected = [(0, 0x1ffe, 8, false), (10, 0x2000, 4, false), (20, 0x2000, 4, true)];
    assert_eq!(short(&records)[..3], expected);
    assert_eq!(short(&records)[3], (30, 0x30, 2, true));
    let cpi = Some(TraceInjection::Instruction { ps: 2000 });
    let timed = Options { injection: cpi, ..options(Format::Lackey) };
    let records = all(read_bytes("a", lackey.to_vec(), &timed).unwrap()).unwrap();
    assert_eq!(records.iter().map(|record| record.at).collect::<Vec<_>>(), [2, 4, 4, 4]);
}

#[test]
fn what_the_peers_own_readers_accept_is_accepted() {
    let both = [(0, 0x1000, 64, false), (10, 0x2000, 64, true)];
    let same: [(Format, &str); 9] = [
        (Format::Ramulator2, "LD 0x1000\nST 0x2000"),
        (Format::Ramulator, "0x1000 R\n2000 W\n"),
        (Format::Ramulator, "1000\n0x2000 WRITE"),
        (Format::Lackey, "I  04000000,3\nSB 04000003\n L 1000,64\n S 2000,64\n"),
        (Format::Lackey, "==1== Lackey\nhello\nI  04000000,3\n L 1000,64\nh\u{e9}\0\n S 2000,64"),
        (Format::Lackey, "L\t1000,64  \n   S   2000,64 and more\r\n"),
        (Format::Csv, "\u{feff}addr,rw\r\n\"0x1000\",\"R\"\r\n8192,\"w\""),
        (Format::Csv, "\"rw\" , \"addr\"\n\nR,0x1000\n\"W\", 0x2000 \n"),
        (Format::Csv, "addr,rw\n0x1000,0\n0x2000,1"),
    ];
    for (format, text) in same {
        assert_eq!(short(&read(format, text.as_bytes()).unwrap()), both, "{text}");
    }
    let words = "0x10 IFETCH 5\n20 P_FETCH 6\n0x30 BOFF 7\n40 P_LOCK_WR 8\n50 P_I/O_RD 9\n60 x 9";
    let records = read(Format::Dramsim3, words.as_bytes()).unwrap();
    assert_eq!(
        records.iter().map(|it| it.addr).sum::<u64>(),
        0x10 + 0x20 + 0x30 + 0x40 + 0x50 + 0x60
    );
    let writes: Vec<u64> = records.iter().filter(|it| it.write).map(|it| it.addr).collect();
    assert_eq!(writes, [0x30]);
    let stl = "# remark\n31: read 0x400140\n\n33: (32) write 400000 0x00ff\r\n40 read 0x0";
    let expected = [(31, 0x40_0140, 64, false), (33, 0x40_0000, 32, true), (40, 0, 64, false)];
    assert_eq!(short(&read(Format::Stl, stl.as_bytes()).unwrap()), expected);
    let times = read(Format::Rstl, stl.as_bytes()).unwrap();
    assert_eq!(times.iter().map(|it| it.at).collect::<Vec<_>>(), [31, 64, 104]);
}

#[test]
fn places_in_a_memory_are_addresses_that_differ() {
    let text = "R 0,0,0,0,1,0\nR 0,0,0,0,1,1\nW 1,0,0,0,1,0\nW 0,1,0,0,1,0\nR 0,0,0,1,1,0\nR 2,3\n";
    let records = read(Format::Ramulator2, text.as_bytes()).unwrap();
    let mut addresses: Vec<u64> = records.iter().map(|it| it.addr).collect();
    // Neighbours in a row are neighbours.
    assert_eq!((addresses[1] - addresses[0], addresses[5]), (64, (2 << 10 | 3) * 64));
    assert_eq!(records.iter().filter(|it| it.write).count(), 2);
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 6);
}

#[test]
fn lines_of_another_program_are_counted_and_nothing_else_is_no_trace() {
    let long = "x".repeat(300_000);
    let text = format!("hello\nI  1,3\n L 10,8\n{long}\n S 20,8\n L 10\nbye");
    let options = options(Format::Lackey);
    let mut reader = read_bytes("a.trace", text.into_bytes(), &options).unwrap();
    let addresses: Vec<u64> =
        std::iter::from_fn(|| reader.next().unwrap()).map(|it| it.addr).collect();
    assert_eq!((addresses, reader.other_lines()), (vec![0x10, 0x20], 4));
    for (text, expected) in [
        (
            "\nonce\nupon a time\n",
            "record 2: malformed: I, L, S or M with ADDR,SIZE expected, `once`",
        ),
        (" L 10,8\n S 2", "record 2: truncated"),
    ] {
        let error = read(Format::Lackey, text.as_bytes()).unwrap_err();
        assert!(error.starts_with(&format!("a.trace, {expected}")), "{error}");
    }
}

#[test]
fn no_time_is_made_of_instructions_that_are_not_there() {
    let cpi = Some(TraceInjection::Instruction { ps: 500 });
    let options = Options { injection: cpi, ..options(Format::Lackey) };
    let read = |text: &str| {
        let reader = read_bytes("a.trace", text.as_bytes().to_vec(), &options);
        all(reader.map_err(|error| error.to_string())?)
    };
    let error = read("==1== Lackey\n L 10,4\n S 20,4\n L 30,4\n").unwrap_err();
    assert!(error.starts_with("a.trace, record 2: no instructions are counted here"), "{error}");
    assert_eq!(read("I  1,3\nI  4,3\n L 10,4\n").unwrap()[0].at, 1);
}

#[test]
fn what_is_wrong_with_a_text_is_named_with_its_line() {
    let long = format!("LD {}\n", "1".repeat(5000));
    for (format, text, expected) in [
        (Format::Ramulator, "10 R\n20 X\n", "record 2: malformed: ADDR R or ADDR W expected"),
        (Format::Ramulator2, "LD 1\nST", "record 2: truncated: the last line has no line end"),
        (Format::Ramulator2, "LD 1\nXX 2\n", "record 2: malformed: LD ADDR, ST ADDR, R PLACE"),
        (Format::Ramulator2, "R 0,1,-1\n", "record 1: malformed: a place of two to six numbers"),
        (Format::Ramulator2, "R 0,0,0,0,0,0,0\n", "record 1: malformed: a place of two"),
        (Format::Ramulator2, "R 32,0,0\n", "record 1: oversized: a number of the place is 32"),
        (Format::Ramulator2, &long, "record 1: oversized: the line in bytes is"),
        (Format::Ramulator2, "LD 99999999999999999999\n", "record 1: malformed"),
        (Format::SimpleO3, "1 2 3 4\n", "record 1: malformed"),
        (Format::SimpleO3, "1 2\n1", "record 2: truncated"),
        (Format::Dramsim3, "0 READ 5\n0 READ 4\n", "record 2: unsorted: time 4 comes after 5"),
        (Format::Dramsim3, "0 READ 5\n0 READ ", "record 2: truncated"),
        (Format::Dramsim3, "0 0x5 5\n", "record 1: malformed"),
        (Format::Stl, "5: read 0x10\n4: read 0x10\n", "record 2: unsorted: time 4 comes after 5"),
        (Format::Stl, "5: fetch 0x10\n", "record 1: malformed: CYCLE: read|write ADDR expected"),
        (Format::Stl, "5: (x) read 0x10\n", "record 1: malformed"),
        (Format::Stl, "5: write 0x10 data\n", "record 1: malformed"),
        (Format::Rstl, "1: read 1\n18446744073709551615: read 1\n", "record 2: oversized: the sum"),
        (Format::Lackey, " L 10,8\n L 10", "record 2: truncated"),
        (Format::Lackey, " L 10,70000\n", "record 1: oversized: the size in bytes is 70000"),
        (Format::Lackey, " Q 10,8\n", "record 1: malformed"),
        (Format::Csv, "t_ns,addr,rw\n9,1,R\n8,1,W\n", "record 3: unsorted: time 8 comes after 9"),
        (Format::Csv, "t_ns,addr,rw\n9,1,R\n10,1", "record 3: truncated"),
        (Format::Csv, "addr,rw,node\n1,R,65536\n", "record 2: oversized: the node is 65536"),
        (Format::Csv, "addr,rw\n1,R,5\n", "record 2: malformed"),
        (Format::Csv, "addr,rw\n\"1,R\n", "record 2: malformed"),
        (Format::Csv, "addr,addr,rw\n", "as a whole: malformed: two columns"),
        (Format::Csv, "t_ns,rw\n", "as a whole: malformed: columns addr and rw expected"),
        (Format::Csv, "", "as a whole: truncated: there is no line of names"),
    ] {
        let error = read(format, text.as_bytes()).unwrap_err();
        assert!(error.starts_with(&format!("a.trace, {expected}")), "{format}: {error}");
    }
}

#[test]
fn a_trace_without_times_is_refused_until_it_is_said_how_it_is_injected() {
    for (format, bytes) in [
        (Format::Ramulator2, b"LD 1\n".to_vec()),
        (Format::SimpleO3, b"1 1\n".to_vec()),
        (Format::Lackey, b" L 1,1\n".to_vec()),
        (Format::ChampSim, champsim(1, [0; 2], [64, 0, 0, 0], false)),
        (Format::Csv, b"addr,rw\n1,R\n".to_vec()),
    ] {
        let silent = Options { format: Some(format), ..Options::default() };
        let error = read_bytes("a", bytes.clone(), &silent).err().unwrap();
        assert!(matches!(error.cause, Cause::Untimed { .. }), "{error}");
        let closed = Some(TraceInjection::Closed { window: 16 });
        let mut reader = read_bytes("a", bytes, &Options { injection: closed, ..silent }).unwrap();
        assert_eq!(reader.header().injection, closed);
        assert_eq!(reader.next().unwrap().unwrap().at, 0);
    }
    let cpi = Some(TraceInjection::Instruction { ps: 1 });
    let options = Options { injection: cpi, ..options(Format::Ramulator2) };
    let error = read_bytes("a", b"LD 1\n".to_vec(), &options).err().unwrap();
    assert!(matches!(error.cause, Cause::NoInstructions), "{error}");
}

fn parquet(records: &[Record], header: &Header) -> Vec<u8> {
    let mut writer = ParquetWriter::new("a".into(), Vec::new(), header).unwrap();
    records.iter().for_each(|record| writer.write(record).unwrap());
    writer.into_inner().unwrap()
}

fn nanoseconds(injection: Option<TraceInjection>) -> Header {
    Header { name: "a".into(), unit: Unit::Ns, injection }
}

#[test]
fn what_is_wrong_with_parquet_is_named() {
    let record = |at| Record { at, addr: 64, size: 8, ..Record::default() };
    let good = parquet(&[record(1), record(2)], &nanoseconds(None));
    let unsorted = parquet(&[record(1), record(3), record(2)], &nanoseconds(None));
    let mut big = good.clone();
    let at = big.len() - 8;
    big[at..at + 4].reverse();
    let mut long = good.clone();
    long[at..at + 4].copy_from_slice(&0x7f00_7f00u32.to_le_bytes());
    for (bytes, expected) in [
        (good[..good.len() - 5].to_vec(), "a.trace, as a whole: truncated: the file does not end"),
        (good[..7].to_vec(), "a.trace, as a whole: truncated: 7 bytes"),
        (unsorted, "a.trace, record 3: unsorted: time 2 comes after 3"),
        (big, "a.trace, as a whole: wrong-endian"),
        (long, "a.trace, as a whole: oversized: the description of the file"),
        (b"t_ns,addr,rw\n1,1,R\n".to_vec(), "a.trace, as a whole: malformed"),
    ] {
        let error = read(Format::Parquet, &bytes).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn parquet_of_any_codec_is_read() {
    use parquet::basic::Compression;
    use parquet::data_type::{BoolType, Int64Type};
    use parquet::file::{properties::WriterProperties, writer::SerializedFileWriter};
    let schema = "message trace { required int64 t_ns; required int64 addr; required boolean rw; }";
    let schema = std::sync::Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    for codec in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::BROTLI(Default::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(Default::default()),
    ] {
        let properties = WriterProperties::builder().set_compression(codec).build();
        let schema = std::sync::Arc::clone(&schema);
        let mut file = SerializedFileWriter::new(Vec::new(), schema, properties.into()).unwrap();
        let mut group = file.next_row_group().unwrap();
        for column in 0..3 {
            let mut writer = group.next_column().unwrap().unwrap();
            if column < 2 {
                let numbers: Vec<i64> = (0..1000).collect();
                writer.typed::<Int64Type>().write_batch(&numbers, None, None).unwrap();
            } else {
                writer.typed::<BoolType>().write_batch(&[true; 1000], None, None).unwrap();
            }
            writer.close().unwrap();
        }
        group.close().unwrap();
        let records = read(Format::Parquet, &file.into_inner().unwrap()).unwrap();
        assert_eq!(records.iter().map(|it| it.addr).sum::<u64>(), 499_500, "{codec}");
        assert!(records.iter().all(|it| it.write && it.at == it.addr), "{codec}");
    }
}

#[test]
fn a_file_becomes_what_its_name_says_or_none() {
    let directory = std::env::temp_dir().join(format!("rackpool-ends-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let record = Record { at: 5, addr: 64, size: 8, write: true, ..Record::default() };
    for (name, magic) in
        [("a.CSV", &b"t_ns"[..]), ("o.csv.gz", b"\x1f\x8b"), ("a.parquet", b"PAR1")]
    {
        let path = directory.join(name);
        let mut writer = create(&path, &nanoseconds(None)).unwrap();
        writer.write(&record).unwrap();
        writer.finish().unwrap();
        assert!(std::fs::read(&path).unwrap().starts_with(magic), "{name}");
        assert_eq!(all(open(&path, &Options::default()).unwrap()).unwrap(), [record], "{name}");
    }
    for name in ["-", "/dev/stdout", "/dev/null"] {
        assert_eq!(FileType::of(name.as_ref()), Ok(FileType::Csv), "{name}");
    }
    for name in ["x.txt", "x", "csv", "x.parquet.gz", "x.csv.zst"] {
        let error = create(&directory.join(name), &nanoseconds(None)).err().unwrap().to_string();
        assert!(error.contains("ends in one of .parquet, .csv, .csv.gz"), "{error}");
        assert!(!directory.join(name).exists(), "{name}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn the_injection_stays_with_the_file_and_cycles_become_nanoseconds() {
    for injection in
        [Some(TraceInjection::Closed { window: 8 }), Some(TraceInjection::Gap { ps: 5 }), None]
    {
        let bytes = parquet(&[Record::default()], &nanoseconds(injection));
        let reader = read_bytes("a", bytes, &Options::default()).unwrap();
        assert_eq!(reader.header().injection, injection);
    }
    let clock = Header { unit: Unit::Cycles { hz: 3_600_000_000 }, ..nanoseconds(None) };
    let bytes = parquet(&[Record { at: 36, ..Record::default() }], &clock);
    assert_eq!(all(read_bytes("a", bytes, &Options::default()).unwrap()).unwrap()[0].at, 10);
}

#[test]
fn compressed_files_are_read_as_what_they_hold() {
    let directory = std::env::temp_dir().join(format!("rackpool-trace-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let text = b"0x1000 READ 5\n0x40 WRITE 9\n";
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(text).unwrap();
    let preset = lzma_rust2::XzOptions::with_preset(1);
    let mut xz = lzma_rust2::XzWriter::new(Vec::new(), preset).unwrap();
    xz.write_all(text).unwrap();
    let packed =
        [gz.finish().unwrap(), xz.finish().unwrap(), zstd::encode_all(&text[..], 1).unwrap()];
    for (place, packed) in packed.into_iter().enumerate() {
        let path = directory.join(format!("{place}.trace"));
        std::fs::write(&path, packed).unwrap();
        let records = all(open(&path, &Options::default()).unwrap()).unwrap();
        assert_eq!(short(&records), [(5, 0x1000, 64, false), (9, 0x40, 64, true)]);
    }
    let missing = open(&directory.join("none"), &Options::default()).err().unwrap();
    assert!(missing.to_string().contains("none, as a whole: No such file"), "{missing}");
    std::fs::remove_dir_all(&directory).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read_back(
        rows in prop::collection::vec(
            (0u64..1 << 40, any::<(u16, u32, u32, u64, u16, bool)>()), 0..300),
    ) {
        let mut at = 0;
        let records: Vec<Record> = rows
            .into_iter()
            .map(|(later, (node, pid, tid, addr, size, write))| {
                at += later;
                Record { at, node, pid, tid, addr, size, write }
            })
            .collect();
        let bytes = parquet(&records, &nanoseconds(None));
        let reader = read_bytes("a", bytes, &Options::default()).unwrap();
        prop_assert_eq!(all(reader).unwrap(), &records[..]);
        let name = format!("rackpool-trace-{}-{at}.csv", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut writer = create(&path, &nanoseconds(None)).unwrap();
        records.iter().for_each(|record| writer.write(record).unwrap());
        writer.finish().unwrap();
        let read = all(open(&path, &Options::default()).unwrap());
        std::fs::remove_file(&path).unwrap();
        prop_assert_eq!(read.unwrap(), records);
    }
}

#[test]
fn a_trace_of_several_groups_is_streamed_and_counted() {
    let records: Vec<Record> = (0..600_000u64)
        .map(|number| Record {
            at: number * 3,
            node: (number % 2) as u16,
            pid: 1,
            tid: (number % 8) as u32,
            addr: number % 1000 * 4096,
            size: 64,
            write: number % 4 == 0,
        })
        .collect();
    let bytes = parquet(&records, &nanoseconds(None));
    let mut reader = read_bytes("a", bytes, &Options::default()).unwrap();
    let stat = stat(&mut *reader, |_| {}).unwrap();
    assert_eq!((stat.records, stat.reads, stat.writes), (600_000, 450_000, 150_000));
    assert_eq!((stat.span_ns(), stat.bytes), (599_999 * 3, 600_000 * 64));
    // Even numbers are one node's, odd ones the other's.
    assert_eq!((stat.pages, stat.footprint_bytes()), (1000, 1000 * 4096));
    assert_eq!((stat.nodes, stat.processes, stat.threads), (2, 2, 8));
}
