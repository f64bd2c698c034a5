//! The demonstration with a small tree: everything real, nothing left.

mod common;

use common::{Dir, WITHIN, rackpool, told};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

fn tree(dir: &Dir) -> String {
    let root = dir.0.join("tree/deep");
    std::fs::create_dir_all(&root).unwrap();
    for (name, bytes) in [("empty", 0), ("small", 7), ("middle", 70_000), ("large", 3_000_000)] {
        let contents: Vec<u8> =
            (0..bytes as u32).map(|i| (i.wrapping_mul(7) ^ (i >> 9)) as u8).collect();
        std::fs::write(root.join(name), contents).unwrap();
    }
    std::os::unix::fs::symlink("small", root.join("link")).unwrap();
    dir.file("tree")
}

fn leftovers(pid: u32) -> Vec<String> {
    let ours = format!("rackpool-demo-{pid}");
    let names = |directory: &str| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let temporary = std::env::temp_dir().to_string_lossy().into_owned();
    let all = names("/dev/shm").into_iter().chain(names(&temporary));
    all.filter(|name| name.starts_with(&ours)).collect()
}

fn start(words: &[&str], dir: &Dir) -> Child {
    let mut command = rackpool();
    command.arg("demo").args(words).current_dir(&dir.0);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

#[test]
fn a_quick_demo_stores_verifies_measures_reports_and_leaves_nothing() {
    let dir = Dir::new();
    let input = tree(&dir);
    let json = dir.file("demo.json");
    let child = start(&["--quick", "--input", &input, "--json", &json], &dir);
    let pid = child.id();
    let began = Instant::now();
    let (code, out, err) = told(&child.wait_with_output().unwrap());
    println!("took {:?}\n{out}", began.elapsed());
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("4 files went in through rack 0 and came out of rack 1"), "{out}");
    assert_eq!(leftovers(pid), Vec::<String>::new());

    let page = std::fs::read_to_string(dir.file("rackpool-demo.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script"));
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["kind"], "measured");
    assert_eq!(report["demo"]["files_verified"], 4);
    assert_eq!(report["demo"]["bytes_taken"], 3_070_007);
    assert!(report["demo"]["ycsb_values_verified"].as_u64().unwrap() > 0);
    let names: Vec<&str> = report["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    for name in [
        "store_files_rack_0",
        "read_files_rack_1",
        "ycsb_A_zipfian",
        "ycsb_D_latest",
        "ycsb_F_uniform",
        "read_64B_own_rack_warm",
        "ring_roundtrip",
        "read_64B_remote_warm",
    ] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
}

#[test]
fn a_demo_that_is_interrupted_or_killed_leaves_no_process_and_no_region() {
    let dir = Dir::new();
    let input = tree(&dir);
    for (signal, wait_ms) in [("INT", 300), ("TERM", 1200), ("KILL", 1500)] {
        let mut child = start(&["--quick", "--input", &input], &dir);
        let pid = child.id();
        std::thread::sleep(Duration::from_millis(wait_ms));
        let number = match signal {
            "INT" => rustix::process::Signal::INT,
            "TERM" => rustix::process::Signal::TERM,
            _ => rustix::process::Signal::KILL,
        };
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), number).unwrap();
        let status = child.wait().unwrap();
        // A killed one cannot clean up: its children notice, and its temporary directory stays.
        if signal == "KILL" {
            let began = Instant::now();
            let regions = || {
                let left = leftovers(pid).into_iter();
                left.filter(|name| name.contains("-rack")).collect::<Vec<_>>()
            };
            while !regions().is_empty() && began.elapsed() < WITHIN {
                std::thread::sleep(Duration::from_millis(20));
            }
            println!("regions were gone after {:?}", began.elapsed());
            assert_eq!(regions(), Vec::<String>::new());
            let _ =
                std::fs::remove_dir_all(std::env::temp_dir().join(format!("rackpool-demo-{pid}")));
        } else {
            assert_eq!(status.code(), Some(1), "{signal}");
            assert_eq!(leftovers(pid), Vec::<String>::new(), "{signal}");
        }
    }
}
