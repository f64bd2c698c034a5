//! What release ce772c9 left on disk (`kept/ce772c9`): one rack of 4 MiB with a value in it, killed.

mod common;

use common::{Dir, Server, run, told};
use flate2::read::GzDecoder;
use std::io::Read;
use std::path::Path;

macro_rules! kept {
    ($name:literal) => {
        ($name, include_bytes!(concat!("kept/ce772c9/", $name, ".gz")).as_slice())
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
