//! Regions that something happened to: bits flipped under a daemon that runs or is away, and what
//! release ce772c9 left on disk (`kept/ce772c9`: one rack of 4 MiB with a value in it, killed).

use crate::common::{Dir, Server, WITHIN, run, told};
use flate2::read::GzDecoder;
use rackpool_core::copies;
use rackpool_core::layout::{FrameWord, RegionLayout, StateWord, frame_word, table_word};
use rackpool_core::{FrameIndex, PageGeometry};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

macro_rules! kept {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../kept/ce772c9/", $name, ".gz")).as_slice())
    };
}

const REGION: [(&str, &[u8]); 5] = [
    kept!("rack0"),
    kept!("rack0.meta"),
    kept!("rack0.table"),
    kept!("rack0.bell"),
    kept!("rack0.slot-0"),
];

fn unpack(files: &[(&str, &[u8])], dir: &Path) {
    for (name, packed) in files {
        let mut bytes = Vec::new();
        GzDecoder::new(*packed).read_to_end(&mut bytes).expect("it was packed by gzip");
        std::fs::write(dir.join(name), bytes).expect("a directory of ours");
    }
}

#[test]
fn a_region_that_an_earlier_release_kept_is_refused_with_the_way_out() {
    let dir = Dir::new();
    unpack(&REGION, &dir.0);
    let master = Server::start(&["master", "--listen", "127.0.0.1:0", "--ephemeral"]);
    let base = dir.file("rack0");
    let before = std::fs::read(dir.file("rack0.meta")).unwrap();
    for memory in [format!("shm:{base}"), format!("shm:{base}?size=4M&pages=64K")] {
        let daemon = ["daemon", "--rack", "0", "--master", &master.addr, "--memory", &memory];
        let (code, _, text) = told(&run(&daemon));
        assert_eq!(code, 1, "{text}");
        for part in ["layout version 7", "all data in it", &format!("rm {base} {base}.*")] {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
    }
    let (code, _, text) = told(&run(&["inspect", &base]));
    assert!(code == 1 && text.contains(&format!("rm {base} {base}.*")), "{text}");
    assert_eq!(std::fs::read(dir.file("rack0.meta")).unwrap(), before, "nothing was changed");

    for (name, _) in REGION {
        std::fs::remove_file(dir.file(name)).expect("as the message says");
    }
    let memory = format!("shm:{base}?size=4M&pages=64K");
    let mut daemon =
        Server::start(&["daemon", "--rack", "0", "--master", &master.addr, "--memory", &memory]);
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_directory_that_an_earlier_release_kept_is_opened() {
    let dir = Dir::new();
    unpack(&[kept!("master.redb")], &dir.0);
    let state = dir.0.to_str().expect("temporary paths are text");
    let master = Server::start(&["master", "--listen", "127.0.0.1:0", "--state", state]);
    let (code, racks, text) = told(&run(&["racks", "--master", &master.addr, "--json"]));
    assert_eq!(code, 0, "{text}");
    for part in ["\"rack\": 0", "\"frames\": 64", "\"pages\": 3", "\"alive\": false"] {
        assert!(racks.contains(part), "`{part}` is not in: {racks}");
    }
}

/// Flips a bit of a file that others have mapped.
fn flip(path: &str, offset: u64, bit: u32) {
    let file = File::options().read(true).write(true).open(path).expect("the region's");
    let mut byte = [0];
    let at = offset + u64::from(bit / 8);
    file.read_exact_at(&mut byte, at).expect("within the file");
    file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], at).expect("within the file");
}

/// A counter of the rack's, from its metrics.
fn counter(addr: &str, name: &str) -> u64 {
    let mut stream = TcpStream::connect(addr).expect("the metrics endpoint listens");
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: rackpool\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let name = format!("rackpool_rack_{name}{{");
    let line = answer.lines().find(|line| line.starts_with(&name)).expect("it is counted");
    line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok()).expect("a number")
}

#[test]
fn flipped_bits_under_a_running_daemon_and_a_killed_one_change_nothing() {
    let dir = Dir::new();
    let master = Server::start(&["master", "--listen", "127.0.0.1:0", "--ephemeral"]);
    let base = dir.file("rack0");
    let memory = format!("shm:{base}?size=4M&pages=64K");
    let words = ["daemon", "--rack", "0", "--master", &master.addr, "--memory", &memory];
    let start = || Server::start(&[&words[..], &["--metrics", "0"]].concat());
    let shell = |text: &str| {
        let done = told(&run(&["shell", "--rack", "0", "--master", &master.addr, "-c", text]));
        assert_eq!((done.0, done.2.as_str()), (0, ""), "{text}");
        done.1
    };
    let (meta, table) = (format!("{base}.meta"), format!("{base}.table"));
    let layout = RegionLayout { pages: PageGeometry::new(16).unwrap(), frame_count: 64 };
    let frame = |word| frame_word(FrameIndex(0), word);
    let metadata = [
        StateWord::PageIdNext.offset(),
        StateWord::FramesHigh.offset(),
        StateWord::GenerationNext.offset(),
        frame(FrameWord::State),
        frame(FrameWord::Page),
        layout.bitmap_offset(FrameIndex(0)),
    ];
    let mut daemon = start();
    shell("put greeting text:hello");
    for (index, offset) in metadata.into_iter().enumerate() {
        let metrics = daemon.addr.split_once(" metrics=").expect("metrics were asked for").1;
        let before = counter(metrics, "metadata_repaired_total");
        flip(&meta, copies::places(layout.private_bytes(), offset)[index % 3], 5 * index as u32);
        flip(&table, table_word(FrameIndex(0)), 3);
        let from = Instant::now();
        while counter(metrics, "metadata_repaired_total") < before + 2 {
            assert!(from.elapsed() < WITHIN, "the flipped bit of {offset:#x} is not found");
            std::thread::sleep(Duration::from_millis(20));
        }
        shell(&format!("put other{index} text:{index}"));
        assert!(shell("get greeting").contains("hello"));
    }
    for offset in metadata {
        daemon.child.kill().expect("our own child");
        daemon.child.wait().expect("our own child");
        flip(&meta, offset, 40);
        let seen = told(&run(&["inspect", &base])).1;
        let differing = u64::from(offset < layout.bitmaps_offset());
        assert!(seen.contains(&format!("words_differing={differing}")), "{offset:#x}: {seen}");
        daemon = start();
        assert!(shell("get greeting").contains("hello"));
        for index in 0..metadata.len() {
            assert!(shell(&format!("get other{index}")).contains(&index.to_string()));
        }
    }
    assert_eq!(daemon.terminate(), Some(0));
    assert!(told(&run(&["inspect", &base])).1.contains("words_damaged=0"));
}
