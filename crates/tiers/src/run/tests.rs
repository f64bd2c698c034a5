//! What is decided and read without running a program; `crates/cli` runs some.

use super::program::require_dynamic;
use super::*;
use rackpool_mem::policy::PolicyCall;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn weighted(text: &str) -> Wanted {
    Wanted::Weighted(Weighting::parse(text).unwrap())
}

fn machine(nodes: &[u16]) -> Machine {
    Machine {
        nodes: nodes.to_vec(),
        bandwidth_mbps: BTreeMap::new(),
        kernel_weights: None,
        refused: Vec::new(),
    }
}

fn shares(shares: &[(u16, u16)]) -> Vec<Share> {
    shares.iter().map(|(node, weight)| Share { node: *node, weight: *weight }).collect()
}

/// A folder that goes with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("rackpool-run-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn placements_are_read_and_others_are_refused_with_examples() {
    assert_eq!(Weighting::parse("auto").unwrap(), Weighting::Auto);
    assert_eq!(Weighting::parse("3:1").unwrap(), Weighting::Ratio(vec![3, 1]));
    let nodes = Weighting::Nodes(shares(&[(0, 3), (2, 255)]));
    assert_eq!(Weighting::parse("2=255,0=3").unwrap(), nodes);
    for text in ["", "x", "0:1", "256:1", "3:", "0=0", "0=1,0=2", "0=1,1", "1024=1", "0=1,", "-1"] {
        let error = Weighting::parse(text).unwrap_err();
        assert!(
            error.code() == "usage" && error.to_string().contains("0=3,1=1"),
            "{text}: {error}"
        );
    }
    assert_eq!(Wanted::parse_nodes("0,2-3").unwrap(), [0, 2, 3]);
    for text in ["", "x", "3-1", "1024"] {
        assert_eq!(Wanted::parse_nodes(text).unwrap_err().code(), "usage", "{text}");
    }
    let told = [weighted("0=3,1=1"), weighted("3:1"), Wanted::Membind(vec![0, 1])];
    let told = told.map(|wanted| wanted.to_string());
    assert_eq!(told, ["weighted 0=3,1=1", "weighted 3:1", "membind 0-1"]);
}

#[test]
fn the_kernel_places_what_it_can_and_the_library_the_rest() {
    let mut two = machine(&[0, 2]);
    let planned = |wanted: &Wanted, machine: &Machine| plan(wanted, None, machine).unwrap();
    let kernel = |policy| Plan::Kernel(policy);
    for (wanted, expected) in [
        (Wanted::Interleave(vec![0, 2]), kernel(KernelPolicy::Interleave(vec![0, 2]))),
        (Wanted::Membind(vec![2]), kernel(KernelPolicy::Bind(vec![2]))),
        (Wanted::Preferred(2), kernel(KernelPolicy::Preferred(2))),
        (weighted("4:4"), kernel(KernelPolicy::Interleave(vec![0, 2]))),
        (weighted("2=9"), kernel(KernelPolicy::Preferred(2))),
        (weighted("3:1"), Plan::Preload(shares(&[(0, 3), (2, 1)]))),
    ] {
        assert_eq!(planned(&wanted, &two), expected, "{wanted}");
    }
    // The kernel's own weights are used if they have the ratio, and never changed.
    two.kernel_weights = Some(BTreeMap::from([(0, 6), (2, 2)]));
    let by_kernel = kernel(KernelPolicy::WeightedInterleave(vec![0, 2]));
    assert_eq!(planned(&weighted("3:1"), &two), by_kernel);
    assert_eq!(planned(&weighted("2:1"), &two), Plan::Preload(shares(&[(0, 2), (2, 1)])));
    let error = plan(&weighted("2:1"), Some(Mechanism::Kernel), &two).unwrap_err();
    assert!(error.code() == "unsupported" && error.to_string().contains("0=6,2=2"), "{error}");
    let preload = Some(Mechanism::Preload);
    assert_eq!(
        plan(&weighted("3:1"), preload, &two).unwrap(),
        Plan::Preload(shares(&[(0, 3), (2, 1)]))
    );
    let error = plan(&Wanted::Membind(vec![0]), preload, &two).unwrap_err();
    assert_eq!(error.code(), "unsupported");
}

#[test]
fn weights_come_from_bandwidth_and_what_is_not_there_is_refused_with_the_way_out() {
    let mut two = machine(&[0, 1]);
    let error = plan(&weighted("auto"), None, &two).unwrap_err();
    assert!(error.code() == "no-profile" && error.to_string().contains("tiers measure"), "{error}");
    two.bandwidth_mbps = BTreeMap::from([(0, 300e3), (1, 100e3)]);
    let auto = plan(&weighted("auto"), None, &two).unwrap();
    assert_eq!(auto, Plan::Preload(shares(&[(0, 3), (1, 1)])));
    for wanted in [weighted("0=1,7=1"), Wanted::Preferred(7), Wanted::Membind(vec![0, 7])] {
        let error = plan(&wanted, None, &two).unwrap_err();
        assert!(error.code() == "no-node" && error.to_string().contains("0-1"), "{error}");
    }
    assert_eq!(plan(&weighted("1:2:3"), None, &two).unwrap_err().code(), "usage");
    two.refused = vec![(PolicyCall::SetMempolicy, 1)];
    let error = plan(&Wanted::Preferred(1), None, &two).unwrap_err();
    assert!(error.code() == "denied" && error.to_string().contains("SYS_NICE"), "{error}");
    assert!(plan(&weighted("3:1"), None, &two).is_ok(), "the library does without");
    two.refused = vec![(PolicyCall::Mbind, 1)];
    assert_eq!(plan(&weighted("3:1"), None, &two).unwrap_err().code(), "denied");
}

#[test]
fn one_memory_needs_no_placement() {
    let one = machine(&[0]);
    for wanted in [weighted("auto"), weighted("5"), Wanted::Membind(vec![0])] {
        let planned = plan(&wanted, None, &one).unwrap();
        assert_eq!(planned, Plan::Kernel(KernelPolicy::Unchanged));
    }
    assert_eq!(plan(&weighted("3:1"), None, &one).unwrap_err().code(), "usage");
    let planned = plan(&weighted("auto"), Some(Mechanism::Preload), &one).unwrap();
    assert_eq!(planned, Plan::Preload(shares(&[(0, 1)])));
}

#[test]
fn bytes_are_read_by_node_from_the_kernels_text() {
    let mut reading = Reading {
        at: Instant::now(),
        nodes: BTreeMap::new(),
        processes: 0,
        unreached: 0,
        unseen: 0,
        took: Duration::ZERO,
    };
    let text = "\
5581 default file=/usr/bin/x mapped=3 N0=2 N1=1 kernelpagesize_kB=4
5582 prefer:1 anon=5 dirty=5 N0=1 N1=4 kernelpagesize_kB=4
5583 default heap anon=2 dirty=2 N0=2 kernelpagesize_kB=4
5584 bind:1 huge anon=1 dirty=1 N1=1 kernelpagesize_kB=2048
5585 default file=/lib/place.so mapped=1 N0=1 kernelpagesize_kB=4
5586 default
5587 default stack Nx=3 N9 N0=y";
    assert!(reading.add_maps(text, Some(Path::new("/link-to-lib/place.so"))));
    let expected = [
        (0, NodeBytes { private: 3 << 12, mapped: 3 << 12 }),
        (1, NodeBytes { private: (4 << 12) + (2 << 20), mapped: 1 << 12 }),
    ];
    assert_eq!(reading.nodes, BTreeMap::from(expected));
    assert!(!reading.add_maps(text, Some(Path::new("/lib/other.so"))));
}

#[test]
fn the_library_is_kept_under_its_hash_and_checked_before_each_use() {
    let dir = Dir::new("kept");
    let folder = dir.0.join("a/rackpool");
    let path = preload::keep(&folder).unwrap();
    assert_eq!(path, preload::keep(&folder).unwrap());
    let about = fs::metadata(&path).unwrap();
    assert_eq!(about.permissions().mode() & 0o777, 0o500);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no part is left");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(preload::keep(&folder).unwrap_err().code(), "io");
    fs::write(&path, "other").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o500)).unwrap();
    let error = preload::keep(&folder).unwrap_err().to_string();
    assert!(error.contains("content") && error.contains("XDG_CACHE_HOME"), "{error}");
    let blank = preload::keep(&dir.0.join("a b")).unwrap_err().to_string();
    assert!(blank.contains("LD_PRELOAD"), "{blank}");
}

/// A program of 64 bits with these kinds of segments, and no code.
fn elf(kinds: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[18] = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    bytes[32] = 64;
    bytes[54] = 56;
    bytes[56] = kinds.len() as u8;
    for kind in kinds {
        let mut segment = vec![0; 56];
        segment[..4].copy_from_slice(&kind.to_le_bytes());
        bytes.extend(segment);
    }
    bytes
}

#[test]
fn programs_that_take_no_library_are_told_from_those_that_do() {
    let dir = Dir::new("programs");
    let file = |name: &str, content: &[u8]| {
        let path = dir.0.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let dynamic = file("dynamic", &elf(&[6, 3, 1]));
    require_dynamic(&dynamic).unwrap();
    let fixed = file("static", &elf(&[1, 1]));
    let error = require_dynamic(&fixed).unwrap_err();
    assert!(error.code() == "static-program" && error.to_string().contains("--interleave"));
    let mut other = elf(&[3]);
    other[4] = 1;
    assert_eq!(require_dynamic(&file("small", &other)).unwrap_err().code(), "unsuited-program");
    let script = |path: &Path| format!("#! {} -x\nexit", path.display()).into_bytes();
    require_dynamic(&file("script", &script(&dynamic))).unwrap();
    let script = file("script-of-static", &script(&fixed));
    assert_eq!(require_dynamic(&script).unwrap_err().code(), "static-program");
    let endless = dir.0.join("endless");
    let text = format!("#!{}\n", endless.display());
    require_dynamic(&file("endless", text.as_bytes())).unwrap();
    require_dynamic(&file("short", b"\x7fELF")).unwrap();
    require_dynamic(&file("cut", &elf(&[3])[..100])).unwrap_err();

    assert_eq!(find(fixed.as_os_str()).unwrap(), fixed);
    assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
    for name in ["no-such-program-here", "", "/nowhere/at/all"] {
        assert_eq!(find(OsStr::new(name)).unwrap_err().shell_code(), Some(127), "{name}");
    }
    assert_eq!(find(dir.0.as_os_str()).unwrap_err().shell_code(), Some(126));
}
