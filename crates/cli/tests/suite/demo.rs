//! The demonstration with a small tree: everything real, nothing left.

use crate::common::{Dir, WITHIN, descendants, lives, own_directories, rackpool, told};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::Path;
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
    let looking = std::thread::spawn(move || {
        let mut seen = BTreeSet::new();
        while Path::new(&format!("/proc/{pid}/fd")).exists() {
            seen.extend(own_directories(pid));
            std::thread::sleep(Duration::from_millis(20));
        }
        seen
    });
    let (code, out, err) = told(&child.wait_with_output().unwrap());
    println!("took {:?}\n{out}", began.elapsed());
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("4 files went in through rack 0 and came out of rack 1"), "{out}");
    let seen = looking.join().unwrap();
    assert!(!seen.is_empty() && seen.iter().all(|directory| !directory.exists()), "{seen:?}");

    let page = std::fs::read_to_string(dir.file("rackpool-demo.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script"));
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["kind"], "measured");
    assert_eq!(report["demo"]["files_verified"], 4);
    assert_eq!(report["demo"]["bytes_taken"], 3_070_007);
    let rows = report["results"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let ycsb = rows.iter().filter(|row| row["name"].as_str().unwrap().starts_with("ycsb_"));
    let reads: u64 = ycsb.map(|row| row["reads"]["n"].as_u64().unwrap()).sum();
    let verified = report["demo"]["ycsb_values_verified"].as_u64().unwrap();
    assert!(verified >= reads && reads > 0, "{verified} values of {reads} reads were looked at");
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
    let mut killed = Vec::new();
    for (signal, wait_ms, code) in [
        (Signal::KILL, 1500, None),
        (Signal::INT, 300, Some(130)),
        (Signal::TERM, 1200, Some(143)),
        (Signal::HUP, 1200, Some(129)),
    ] {
        let mut child = start(&["--quick", "--input", &input], &dir);
        let pid = child.id();
        std::thread::sleep(Duration::from_millis(wait_ms));
        let began = Instant::now();
        // The one that is interrupted early may have nothing yet.
        while signal != Signal::INT
            && (own_directories(pid).is_empty() || descendants(pid).is_empty())
        {
            assert!(began.elapsed() < WITHIN, "{signal:?}: there are no racks");
            std::thread::sleep(Duration::from_millis(20));
        }
        let (directories, processes) = (own_directories(pid), descendants(pid));
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), code, "{signal:?}");
        if signal == Signal::KILL {
            // It cannot clean up: its children notice, and the next one removes the directory.
            let began = Instant::now();
            let regions = || {
                let entries = directories.iter().filter_map(|path| std::fs::read_dir(path).ok());
                let names = entries.flatten().flatten().map(|entry| entry.file_name());
                names.filter(|name| name.to_string_lossy().starts_with("rack")).count()
            };
            while regions() > 0 {
                assert!(began.elapsed() < WITHIN, "{directories:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
            killed = directories;
        } else {
            let left: Vec<_> = directories.iter().filter(|path| path.exists()).collect();
            assert!(left.is_empty(), "{signal:?}: {left:?}");
        }
        let began = Instant::now();
        while processes.iter().copied().any(lives) {
            assert!(began.elapsed() < WITHIN, "{signal:?}: a process is left");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert!(killed.iter().all(|directory| !directory.exists()), "{killed:?}");
}
