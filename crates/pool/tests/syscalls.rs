//! Warm accesses make no system call: counted by `strace` on the thread that makes them. Its own
//! `main`, because the tracer follows one thread and the test harness starts others.

use rackpool::cluster::Cluster;
use rackpool::{FabricChoice, GAddr, Placement, RackId};
use std::io::Write;
use std::process::Command;

/// Set in the process that is traced.
const TRACED: &str = "RACKPOOL_TEST_TRACED";
const BEGIN: &str = "warm accesses begin";
const END: &str = "warm accesses end";

fn main() {
    match std::env::var_os(TRACED) {
        Some(_) => run_traced(),
        None => a_warm_access_makes_no_system_call(),
    }
}

/// Runs warm accesses to the own rack and to a mapped other one between two marks.
fn run_traced() {
    let cluster = Cluster::start(2).unwrap();
    let mut handle = cluster.pool_over(0, FabricChoice::Shm).unwrap().handle().unwrap();
    let places = [Placement::Local, Placement::Rack(RackId(1))];
    let addrs = places.map(|place| handle.alloc(64 << 10, place).unwrap());
    let mut bytes = [0; 64];
    for addr in addrs {
        handle.write(addr, &bytes).unwrap();
    }
    let mut objects: Vec<GAddr> =
        (0..1000).map(|_| handle.alloc(64, Placement::Local).unwrap()).collect();
    mark(BEGIN);
    for i in 0..1000 {
        let one = &mut objects[i as usize * 7 % 1000];
        handle.free(*one, 64).unwrap();
        *one = handle.alloc(64, Placement::Local).unwrap();
        for addr in addrs {
            let at = GAddr(addr.0 + 64 * i);
            handle.write(at, &bytes).unwrap();
            handle.read(at, &mut bytes).unwrap();
            handle.fetch_add(at, 1).unwrap();
            assert!(handle.cas(at, 1, 0).unwrap().is_swapped());
            handle.read_batch(&mut [(at, &mut bytes[..32])]).unwrap();
        }
    }
    mark(END);
}

/// One system call that the trace shows.
fn mark(text: &str) {
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}

fn a_warm_access_makes_no_system_call() {
    let trace = std::env::temp_dir().join(format!("rackpool-trace-{}", std::process::id()));
    let status = Command::new("strace")
        .arg("-o")
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .env(TRACED, "1")
        .status();
    let text = std::fs::read_to_string(&trace).unwrap_or_default();
    let _ = std::fs::remove_file(&trace);
    match status {
        Ok(status) if status.success() => {}
        other => {
            let why = format!("strace cannot trace ({other:?}): `cargo xtask deps` installs it");
            assert!(std::env::var_os("CI").is_none(), "{why}");
            println!("NOT TESTED: {why}");
            return;
        }
    }
    let calls: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.contains(BEGIN))
        .skip(1)
        .take_while(|line| !line.contains(END))
        .collect();
    assert!(text.contains(END), "the traced process did not come to its end");
    assert!(calls.is_empty(), "{} system calls: {:?}", calls.len(), &calls[..calls.len().min(5)]);
    println!("test result: ok. 1 passed; 0 failed");
}
