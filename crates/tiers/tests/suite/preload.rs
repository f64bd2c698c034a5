//! The library of `rackpool tiers run` against the kernel, on any machine: compiled so that nodes 0
//! to 3 are policies of node 0 that the kernel keeps apart, which `/proc/PID/numa_maps` shows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        // Relaxed: an add gives each number once.
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rackpool-place-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn compile(source: &str, out: &Path, flags: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]);
    command.arg("-I").arg(root.join("preload"));
    let built = command.args(flags).arg(root.join(source)).arg("-o").arg(out).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// The library with nodes that are there on every machine.
fn library(dir: &Dir) -> PathBuf {
    let out = dir.0.join("place.so");
    let flags = ["-DVIRTUAL_NODES", "-fPIC", "-shared", "-nostdlib", "-fvisibility=hidden"];
    let linked = ["-fno-stack-protector", "-Wl,-z,now,-z,initfirst,-z,noexecstack"];
    compile("preload/place.c", &out, &[&flags[..], &linked[..]].concat());
    out
}

fn may_place() -> bool {
    let refused = rackpool_mem::policy::refused();
    if !refused.is_empty() || !Path::new("/proc/self/numa_maps").exists() {
        println!("NOT TESTED: memory policies are refused here: {refused:?}");
        return false;
    }
    true
}

fn preloaded(program: &str, library: &Path, weights: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library).env("RACKPOOL_TIERS_PLACE", weights);
    command
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Bytes of private memory by policy in a text like `numa_maps`.
fn by_policy(maps: &str) -> BTreeMap<String, u64> {
    let mut bytes = BTreeMap::new();
    for line in maps.lines().filter(|line| !line.contains(" file=")) {
        let policy = line.split(' ').nth(1).unwrap_or_default();
        let pages = line.split(' ').find_map(|word| word.strip_prefix("N0="));
        let pages: u64 = pages.map_or(0, |pages| pages.parse().unwrap());
        let huge = line.contains("kernelpagesize_kB=2048");
        *bytes.entry(policy.to_owned()).or_default() += pages * if huge { 2 << 20 } else { 4096 };
    }
    bytes
}

#[test]
fn extents_books_and_moves_hold_against_a_model_and_the_kernel() {
    if !may_place() {
        return;
    }
    let dir = Dir::new();
    let driver = dir.0.join("driver");
    compile("tests/suite/preload/driver.c", &driver, &["-DVIRTUAL_NODES"]);
    let output = Command::new(&driver).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out == "all hold\n", "{out} {}", output.status);
}

const PYTHON: &str = "\
import threading
large = bytearray(100 << 20)
small = [bytes(100) for _ in range(200000)]
middle = [bytes(50000) for _ in range(1000)]
def in_thread():
    global other
    other = [bytes(30000) for _ in range(1000)]
thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
for _ in range(20):
    large.extend(bytes(1 << 20))
print(open('/proc/self/numa_maps').read())";

/// Mappings, heaps of malloc in the main thread and in another one, and a mapping that grows.
#[test]
fn an_unchanged_program_has_its_memory_in_exact_shares() {
    if !may_place() {
        return;
    }
    let dir = Dir::new();
    let library = library(&dir);
    for (weights, expected) in [
        ("0=3,1=1", &[("prefer:0", 0.75), ("bind:0", 0.25)] as &[_]),
        ("0=1,1=1,2=2", &[("prefer:0", 0.25), ("bind:0", 0.25), ("interleave:0", 0.5)]),
        ("1=1", &[("bind:0", 1.0)]),
    ] {
        let output = preloaded("python3", &library, weights).args(["-c", PYTHON]).output();
        let bytes = by_policy(&text(&output.unwrap()));
        let all: u64 = bytes.values().sum();
        assert!(all > 200 << 20, "{bytes:?}");
        for (policy, share) in expected {
            let found = bytes[*policy] as f64 / all as f64;
            assert!((found - share).abs() < 0.02, "{weights}: {policy} {found}, {bytes:?}");
        }
        let elsewhere = bytes.get("default").copied().unwrap_or(0);
        assert!(elsewhere < 2 << 20, "{bytes:?}");
    }
}

#[test]
fn fork_and_exec_keep_it_also_with_an_environment_of_the_programs_own() {
    if !may_place() {
        return;
    }
    let dir = Dir::new();
    let library = library(&dir);
    let counted = "grep -c place.so /proc/self/maps";
    for script in [
        counted.to_owned(),
        format!("sh -c '{counted}; true'"),
        format!("env -i sh -c '{counted}; true'"),
        format!("unset LD_PRELOAD RACKPOOL_TIERS_PLACE; env sh -c '{counted}; true'"),
        format!("LD_PRELOAD= exec sh -c '{counted}'"),
        "python3 -c \"import subprocess; \
         print(subprocess.run(['grep', '-c', 'place.so', '/proc/self/maps'], env={'A': 'b'}, \
         capture_output=True, text=True).stdout)\""
            .to_owned(),
    ] {
        let output = preloaded("sh", &library, "0=3,1=1").args(["-c", &script]).output();
        let count: u32 = text(&output.unwrap()).trim().parse().unwrap();
        assert!(count > 0, "{script}");
    }
    let forked = "\
import os
kept = bytearray(40 << 20)
if os.fork() == 0:
    more = bytearray(80 << 20)
    print(open('/proc/self/numa_maps').read(), flush=True)
    os._exit(0)
os.wait()";
    let output = preloaded("python3", &library, "0=1,1=1").args(["-c", forked]).output();
    let bytes = by_policy(&text(&output.unwrap()));
    let difference = bytes["prefer:0"].abs_diff(bytes["bind:0"]);
    assert!(difference < 4 << 20, "{bytes:?}");
}

#[test]
fn without_weights_the_library_does_nothing() {
    let dir = Dir::new();
    let library = library(&dir);
    for weights in ["", "x", "0=0"] {
        let output = preloaded("cat", &library, weights).arg("/proc/self/numa_maps").output();
        let bytes = by_policy(&text(&output.unwrap()));
        assert!(bytes.keys().all(|policy| policy == "default"), "{weights}: {bytes:?}");
    }
}
