//! `rackpool tiers show`: this machine, and others by a copy of their `/sys`.

use crate::common::{Dir, run, told};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// A `/sys` with these files.
fn sysfs(files: &[(&str, &str)]) -> Dir {
    let dir = Dir::new();
    for (file, text) in files {
        let path = dir.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

/// A node with processors beside one without, as QEMU makes them with HMAT, and kmem memory.
const FAR: [(&str, &str); 18] = [
    ("devices/system/node/node0/cpulist", "0-1\n"),
    ("devices/system/node/node0/distance", "10 30\n"),
    ("devices/system/node/node0/meminfo", "Node 0 MemTotal: 1024 kB\nNode 0 MemFree: 512 kB\n"),
    ("devices/system/node/node0/access0/initiators/read_bandwidth", "102400\n"),
    ("devices/system/node/node0/access0/initiators/write_bandwidth", "102400\n"),
    ("devices/system/node/node0/access0/initiators/read_latency", "80\n"),
    ("devices/system/node/node0/access0/initiators/write_latency", "80\n"),
    ("devices/system/node/node1/cpulist", "\n"),
    ("devices/system/node/node1/distance", "30 10\n"),
    ("devices/system/node/node1/meminfo", "Node 1 MemTotal: 2048 kB\nNode 1 MemFree: 2048 kB\n"),
    ("devices/system/node/node1/access0/initiators/read_bandwidth", "20480\n"),
    ("devices/system/node/node1/access0/initiators/read_latency", "250\n"),
    ("devices/system/node/node1/memory32/state", "offline\n"),
    ("devices/system/memory/memory32/state", "offline\n"),
    ("devices/system/memory/block_size_bytes", "8000000\n"),
    ("devices/virtual/memory_tiering/memory_tier4/nodelist", "0\n"),
    ("devices/virtual/memory_tiering/memory_tier22/nodelist", "1\n"),
    ("bus/dax/devices/dax0.0/target_node", "1\n"),
];

#[test]
fn another_machine_is_shown_by_its_files_to_programs_and_people() {
    let sys = sysfs(&FAR);
    let (code, text, err) = told(&run(&["tiers", "show", "--sysfs", &sys.file(""), "--json", "-"]));
    assert_eq!(code, 0, "{err}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let expected = json!([
        {
            "id": 0, "cpus": [0, 1], "memory_bytes": 1 << 20, "free_bytes": 1 << 19,
            "offline_bytes": null, "poisoned_pages": null, "kind": "dram", "tier": 4,
            "distance": [10, 30], "initiators": [], "read_bandwidth_mbps": 102_400,
            "write_bandwidth_mbps": 102_400, "read_latency_ns": 80, "write_latency_ns": 80,
            "device": null, "allowed": null,
        },
        {
            "id": 1, "cpus": [], "memory_bytes": 2 << 20, "free_bytes": 2 << 20,
            "offline_bytes": 128 << 20, "poisoned_pages": null, "kind": "other", "tier": 22,
            "distance": [30, 10], "initiators": [], "read_bandwidth_mbps": 20_480,
            "write_bandwidth_mbps": null, "read_latency_ns": 250, "write_latency_ns": null,
            "device": "dax0.0", "allowed": null,
        },
    ]);
    assert_eq!(answer["nodes"], expected);
    assert_eq!((&answer["refused"], &answer["faults"]), (&Value::Null, &json!([])));
    // People get the same where JSON takes standard output.
    for part in [
        "none  other  2.00 MiB  2.00 MiB",
        "20.5 GB/s",
        "No processors in node 1",
        "128 MiB of node 1 are offline",
        "is not looked at",
    ] {
        assert!(err.contains(part), "{part}: {err}");
    }
}

#[test]
fn what_is_no_machine_or_says_nonsense_is_answered_with_the_file() {
    let nonsense = ("devices/system/node/node1/cpulist", "all\n");
    let files: Vec<_> = FAR.into_iter().chain([nonsense]).collect();
    let sys = sysfs(&files);
    let json = sys.file("a.json");
    let (code, out, err) =
        told(&run(&["tiers", "show", "--sysfs", &sys.file(""), "--json", &json]));
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("node1/cpulist says \"all\", not a list of processors"), "{out}");
    let answer: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(answer["nodes"][1]["cpus"], Value::Null);
    assert_eq!(answer["faults"].as_array().unwrap().len(), 1);

    let other = sysfs(&[("readme", "")]);
    for (dir, code, start) in [
        ("/nowhere", 1, "error io /nowhere: "),
        (&other.file(""), 2, "error usage "),
        (&other.file("readme"), 1, "error io "),
    ] {
        let (exit, out, err) = told(&run(&["tiers", "show", "--sysfs", dir]));
        assert_eq!((exit, out.as_str()), (code, ""), "{err}");
        assert!(err.starts_with(start) && err.lines().count() == 1, "{err}");
    }
}

#[test]
fn a_kernel_without_nodes_is_one_memory_and_says_so() {
    let sys = sysfs(&[("devices/system/cpu/online", "0-3\n")]);
    let (code, out, err) = told(&run(&["tiers", "show", "--sysfs", &sys.file("")]));
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("has no memory nodes") && out.contains("0-3"), "{out}");
}

#[test]
fn this_machine_is_shown() {
    let (code, text, err) = told(&run(&["tiers", "show", "--json", "-"]));
    assert_eq!(code, 0, "{err}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let nodes = answer["nodes"].as_array().unwrap();
    assert_eq!(answer["numa"], Path::new("/sys/devices/system/node/node0").exists());
    assert!(!nodes.is_empty() && answer["refused"].is_array());
    for node in nodes {
        assert!(node["memory_bytes"].is_u64() && node["free_bytes"].is_u64(), "{node}");
    }
    if nodes.len() == 1 && answer["numa"] == true {
        assert!(err.contains("One memory node: to the kernel all memory is alike"), "{err}");
    }
    for words in [&["help", "tiers", "show"] as &[&str], &["tiers", "show", "--help"]] {
        let (code, out, _) = told(&run(words));
        assert!(code == 0 && out.contains("Examples:\n  rackpool tiers show"), "{out}");
    }
}
