//! The command line without a pool: help, wrong usage, exit codes, the machine's description.

use crate::common::{Dir, WITHIN, run, told};
use std::time::Instant;

#[test]
fn help_shows_every_command_and_examples() {
    let (code, out, err) = told(&run(&["help"]));
    assert_eq!((code, err.as_str()), (0, ""));
    let commands =
        ["demo", "master", "daemon", "shell", "top", "tiers", "bench", "doctor", "inspect"];
    let of_lab: &[&str] = if cfg!(feature = "lab") { &["sim", "trace", "plan"] } else { &[] };
    for &command in commands.iter().chain(of_lab) {
        assert!(out.contains(command), "{out}");
        let (code, out, _) = told(&run(&["help", command]));
        assert_eq!(code, 0);
        assert!(out.contains("Examples:\n  rackpool "), "{command}: {out}");
        assert_eq!(told(&run(&[command, "--help"])).1, out);
    }
    assert!(!out.contains("worker"), "internal commands stay internal");
    assert!(told(&run(&["--version"])).1.starts_with("rackpool "));
}

fn refused(words: &[&str]) {
    let (code, out, err) = told(&run(words));
    assert_eq!((code, out.as_str()), (2, ""), "{words:?}: {err}");
    assert!(err.starts_with("error usage "), "{words:?}: {err}");
}

#[test]
fn wrong_usage_ends_with_2_and_says_so() {
    // Without the feature `lab` the commands of it are wrong usage as well.
    for words in [
        &["fly"] as &[&str],
        &["master"],
        &["daemon"],
        &["daemon", "--rack", "x"],
        &["daemon", "--rack", "0", "--memory", "tape:0"],
        &["daemon", "--rack", "0", "--fabric", "pigeons"],
        &["demo", "--clients", "0"],
        &["demo", "--html", "/"],
        &["bench", "gravity"],
        &["bench", "migrate", "--pages", "3"],
        &["top", "--interval", "0"],
        &["master", "--state", "x", "--metrics", "nowhere"],
        &["bench", "ycsb", "--workload", "E"],
        &["sim", "run", "--faults", "fire"],
        &["sim", "run", "--racks", "99"],
        &["sim", "run", "--profile", "nowhere"],
        &["trace", "kernel", "gravity", "--out", "x"],
        &["trace", "kernel", "lbm", "--out", "x", "--footprint", "1"],
        &["trace", "run"],
        &["trace", "convert", "a", "b", "--inject", "closed:0"],
        &["trace", "convert", "a", "b", "--filter", "l1=33K"],
        &["shell", "-c", "fly"],
        &["shell", "-c", "put 'open"],
        &["shell", "alloc"],
        &["shell", "--rack", "0", "write", "0x0", "hello"],
        &["inspect", "heap:1G"],
    ] {
        refused(words);
    }
    if !cfg!(feature = "mutations") {
        refused(&["sim", "replay", "1", "--mutation", "drop-redo"]);
        refused(&["sim", "mutations"]);
    }
    let (code, _, err) = told(&run(&[]));
    assert_eq!(code, 2);
    assert!(err.contains("Examples:"), "{err}");
}

#[test]
fn failures_end_with_1_and_one_line() {
    let dir = Dir::new();
    let (junk, nowhere) = (dir.file("junk"), dir.file("nowhere/report.html"));
    std::fs::write(format!("{junk}.meta"), vec![7; 8192]).unwrap();
    let state = dir.file("state");
    for (words, code) in [
        (&["demo", "--input", "/nowhere"] as &[&str], "io"),
        (&["demo", "--html", &nowhere], "io"),
        (&["demo", "--quick", "--input", &dir.file("")], "config"),
        (&["master", "--listen", "0.0.0.0:0", "--state", &state], "denied"),
        (&["inspect", "/nowhere"], "io"),
        (&["inspect", &junk], "bad-region"),
        (&["shell", "--master", "127.0.0.1:1", "-c", "put a file:/nowhere"], "io"),
    ] {
        // The directory of the third case holds a file too large for nothing: make it empty.
        if code == "config" {
            std::fs::remove_file(format!("{junk}.meta")).unwrap();
        } else {
            std::fs::write(format!("{junk}.meta"), vec![7; 8192]).unwrap();
        }
        let (exit, out, err) = told(&run(words));
        assert_eq!((exit, out.as_str()), (1, ""), "{words:?}: {err}");
        assert!(err.starts_with(&format!("error {code} ")), "{words:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{words:?}: {err}");
    }
}

#[test]
fn an_address_without_a_master_is_answered_quickly_and_with_a_way_out() {
    let start = Instant::now();
    let (code, _, err) = told(&run(&["shell", "--master", "127.0.0.1:1", "-c", "ls"]));
    println!("answered after {:?}", start.elapsed());
    assert!(start.elapsed() < WITHIN / 6);
    assert_eq!(code, 1);
    assert!(err.starts_with("error peer-dead no master answers at 127.0.0.1:1"), "{err}");
    assert!(err.contains("rackpool master"), "{err}");
}

#[test]
fn a_shell_without_commands_needs_no_pool() {
    assert_eq!(told(&run(&["shell"])), (0, String::new(), String::new()));
    let (code, out, _) = told(&run(&["shell", "-c", "help; quit; fly"]));
    assert_eq!(code, 0);
    assert!(out.contains("alloc BYTES [local|rack:N|spread|tier:T]"), "{out}");
}

#[test]
fn the_doctor_describes_this_machine() {
    let (code, out, err) = told(&run(&["doctor", "--json"]));
    assert_eq!((code, err.as_str()), (0, ""));
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["schema"], "rackpool-doctor/2");
    assert!(answer["machine"]["cores"].as_u64().unwrap() > 0);
    let checks = answer["checks"].as_array().unwrap();
    for name in ["cpu", "/dev/shm", "membarrier", "rdma", "dax", "loopback", "memory nodes"] {
        let check = checks.iter().find(|check| check["name"] == name).unwrap();
        assert!(
            ["good", "but", "missing", "bad"].contains(&check["state"].as_str().unwrap()),
            "{check}"
        );
        assert_eq!(check["state"] == "good", check["way_out"] == "", "{check}");
    }
    let (code, out, _) = told(&run(&["doctor"]));
    assert_eq!(code, 0);
    assert!(out.contains("membarrier"), "{out}");
}

#[cfg(feature = "lab")]
#[test]
fn a_device_profile_has_the_memories_of_a_stored_profile_or_measures_them() {
    let dir = Dir::new();
    let (stored, device) = (dir.file("profile.json"), dir.file("device.toml"));
    std::fs::write(&stored, crate::tiers::profile().to_string()).unwrap();
    let calibrate = |words: &[&str]| {
        let first = ["calibrate", "--quick", "--out", &device];
        told(&run(&[&first[..], words].concat()))
    };
    let (code, _, err) = calibrate(&["--tiers", &stored, "--cxl-node", "2"]);
    assert_eq!(code, 0, "{err}");
    let text = std::fs::read_to_string(&device).unwrap();
    let source = "measured by rackpool tiers measure on of a test, 2023-11-14";
    for figure in [
        "dram_load = { value = 90, unit = \"ns\"",
        "dram_bandwidth = { value = 300, unit = \"GB/s\"",
        "cxl_load_line = { value = 250, unit = \"ns\"",
        "cxl_bandwidth = { value = 100, unit = \"GB/s\"",
    ] {
        assert!(text.contains(&format!("{figure}, source = \"{source}\"")), "{figure}: {text}");
    }
    // A store was not timed.
    let store = "cxl_store_line = { value = 250, unit = \"ns\", source = \"as cxl_load_line: ";
    assert!(text.contains(&format!("{store}{source}\"")), "{text}");
    assert!(text.contains(&format!("memory {source}; processor and sockets")), "{text}");
    let (code, _, err) = calibrate(&["--tiers", &stored, "--cxl-node", "7"]);
    assert!(code == 1 && err.contains("has nothing of memory node 7"), "{err}");
    let (code, _, err) = calibrate(&["--cxl-node", "1000"]);
    assert!(code == 1 && err.starts_with("error no-node there is no node 1000"), "{err}");
    let (code, out, err) = calibrate(&[]);
    assert!(code == 0 && out.contains("CXL, PCIe, card"), "{err}{out}");
}

#[cfg(feature = "lab")]
#[test]
fn a_few_seeds_are_run_and_reported() {
    let dir = Dir::new();
    let file = dir.file("sim.json");
    let words = ["sim", "run", "--seeds", "3", "--operations", "300", "--json", &file];
    let (code, out, err) = told(&run(&words));
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("3 seeds, 1 to 3") && out.contains("fault injected"), "{out}");
    let report = std::fs::read_to_string(&file).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["seeds"], &report["failed_seeds"]), (&3.into(), &0.into()));
    assert!(out.contains(report["trace_hash"].as_str().unwrap()), "{out}");
}

#[cfg(feature = "lab")]
#[test]
fn a_plan_is_made_and_a_wrong_one_is_answered_with_line_and_field() {
    let dir = Dir::new();
    let file = dir.file("plan.toml");
    assert_eq!(told(&run(&["plan", "init", &file])).0, 0);
    let (code, _, err) = told(&run(&["plan", "init", &file]));
    assert_eq!(code, 2, "a file that is there is not overwritten: {err}");
    let text = std::fs::read_to_string(&file).unwrap();
    let small = [
        ("accesses = 4000", "accesses = 300"),
        ("pod_machines = [8, 16]", "pod_machines = [16]"),
        ("pools = [2, 4]", "pools = [2]"),
        ("local_percent = [40, 60]", "local_percent = [40]"),
    ];
    let small = small.iter().fold(text.clone(), |text, (from, to)| text.replacen(from, to, 1));
    std::fs::write(&file, &small).unwrap();
    let out = dir.file("report");
    let (code, said, err) = told(&run(&["plan", &file, "--out", &out, "--threads", "2"]));
    assert_eq!(code, 0, "{err}");
    assert!(said.contains("6 designs with 10 seeds each"), "{said}");
    for name in ["report.html", "summary.json", "samples.parquet"] {
        assert!(dir.0.join("report").join(name).metadata().unwrap().len() > 1000, "{name}");
    }
    std::fs::write(&file, small.replacen("count = 64", "count = -64", 1)).unwrap();
    let (code, said, err) = told(&run(&["plan", &file, "--out", &out]));
    assert_eq!((code, said.as_str()), (2, ""));
    assert!(err.starts_with("error usage ") && err.contains("plan.toml: line "), "{err}");
    assert!(err.contains("`machines.count`"), "{err}");
}
